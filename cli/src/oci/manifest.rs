//! Which image is meant, which layers it has, and how its program is to be started.
//!
//! Two forms: the OCI image layout (`index.json`, then documents named by their hash) and what
//! `docker save` wrote before it wrote that, too (`manifest.json`). Every document and layer that
//! is named by a hash is checked against it. The formats are those of the OCI image specification
//! 1.1 (`oci-spec` has its types) and of Docker's image specification 1.2.
//!
//! Neighbours: `store.rs` reads, `layer.rs` unpacks what is chosen here.

use oci_spec::image::{Arch, Descriptor, ImageConfiguration, ImageIndex, ImageManifest, Os};
use serde::Deserialize;
use sha2::{Digest as _, Sha256};

use super::store::Store;
use crate::failure::Failure;
use crate::pack::files::hex;

/// Indexes may name indexes; so deep at most.
const INDEX_DEPTH_MAX: usize = 4;
/// More layers than any tool makes (overlay file systems end at 500 or before).
const LAYERS_MAX: usize = 512;
/// The annotation that holds an image's name.
const NAME_ANNOTATION: &str = "org.opencontainers.image.ref.name";
/// The only kind of hash that is in use.
const HASH_PREFIX: &str = "sha256:";

/// How the image's program is started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) entrypoint: Vec<String>,
    pub(crate) command: Vec<String>,
    /// `NAME=VALUE` each.
    pub(crate) env: Vec<String>,
    /// `USER[:GROUP]`, names or numbers; empty: root.
    pub(crate) user: String,
    /// Absolute.
    pub(crate) working_dir: String,
}

/// A layer: the name of its bytes in the store, and what they must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Layer {
    pub(super) name: String,
    /// Hash of the bytes as they are stored, where the image tells it.
    pub(super) stored_hash: Option<String>,
    /// Hash of the tar archive.
    pub(super) tar_hash: String,
}

/// The image that was meant.
#[derive(Clone, Debug)]
pub(super) struct Chosen {
    pub(super) settings: Settings,
    pub(super) layers: Vec<Layer>,
    /// Names the unpacked form: the hash of the configuration, which names all layers.
    pub(super) hash: String,
}

/// One image of a `manifest.json`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Saved {
    config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

pub(super) fn choose(store: &Store, name: Option<&str>) -> Result<Chosen, Failure> {
    if store.has("index.json") {
        of_layout(store, name)
    } else if store.has("manifest.json") {
        of_saved(store, name)
    } else {
        let what = "neither index.json (OCI image layout) nor manifest.json (docker save) is there";
        Err(Failure::unfit(what))
    }
}

fn of_layout(store: &Store, name: Option<&str>) -> Result<Chosen, Failure> {
    let mut found = Vec::new();
    collect(store, &store.document("index.json")?, None, INDEX_DEPTH_MAX, &mut found)?;
    let fits = |(of, _): &&(Option<String>, Descriptor)| {
        name.is_none_or(|name| of.as_deref().is_some_and(|of| is_named(of, name)))
    };
    let matching: Vec<_> = found.iter().filter(fits).collect();
    let names = || found.iter().filter_map(|(name, _)| name.as_deref());
    let (_, descriptor) = one_of(&matching, names().map(str::to_owned).collect())?;
    let bytes = checked(store, descriptor)?;
    let manifest: ImageManifest = parsed(&bytes, "the manifest")?;
    let config = checked(store, manifest.config())?;
    let layers = manifest.layers().iter().map(|layer| {
        let hash = hash_of(layer)?;
        Ok((blob(&hash), Some(hash)))
    });
    chosen(&config, layers.collect::<Result<_, Failure>>()?)
}

/// The manifests for this machine that an index names, with their names.
fn collect(
    store: &Store,
    index: &[u8],
    name: Option<&str>,
    depth: usize,
    found: &mut Vec<(Option<String>, Descriptor)>,
) -> Result<(), Failure> {
    if depth == 0 {
        return Err(Failure::refused("indexes in indexes, too deep").within("index.json"));
    }
    let index: ImageIndex = parsed(index, "index.json")?;
    for descriptor in index.manifests() {
        let ours = descriptor.platform().as_ref().is_none_or(|platform| {
            *platform.architecture() == Arch::Amd64 && *platform.os() == Os::Linux
        });
        let own = descriptor.annotations().as_ref().and_then(|notes| notes.get(NAME_ANNOTATION));
        let name = own.map(String::as_str).or(name);
        let kind = descriptor.media_type().to_string();
        if kind.ends_with("image.index.v1+json") || kind.ends_with("manifest.list.v2+json") {
            collect(store, &checked(store, descriptor)?, name, depth - 1, found)?;
        } else if ours {
            found.push((name.map(str::to_owned), descriptor.clone()));
        }
    }
    Ok(())
}

fn of_saved(store: &Store, name: Option<&str>) -> Result<Chosen, Failure> {
    let saved: Vec<Saved> = parsed(&store.document("manifest.json")?, "manifest.json")?;
    let tags = |saved: &Saved| saved.repo_tags.clone().unwrap_or_default();
    let fits =
        |image: &&Saved| name.is_none_or(|name| tags(image).iter().any(|tag| is_named(tag, name)));
    let matching: Vec<&Saved> = saved.iter().filter(fits).collect();
    let image = one_of(&matching, saved.iter().flat_map(tags).collect())?;
    let config = store.document(&image.config)?;
    chosen(&config, image.layers.iter().map(|name| (name.clone(), None)).collect())
}

/// `NAME`, `NAME:TAG`, or the end of a longer name.
fn is_named(of: &str, name: &str) -> bool {
    of == name || of.strip_suffix(name).is_some_and(|start| start.ends_with(['/', ':']))
}

fn one_of<'a, T>(matching: &[&'a T], names: Vec<String>) -> Result<&'a T, Failure> {
    match matching {
        [one] => Ok(one),
        [] if names.is_empty() => Err(Failure::unfit("no image for linux/amd64 in it")),
        [] => {
            let text = format!("no such image for linux/amd64; there are: {}", names.join(", "));
            Err(Failure::unfit(text))
        }
        _ => {
            let text = "several images: name one as PATH:NAME";
            Err(Failure::unfit(format!("{text}; there are: {}", names.join(", "))))
        }
    }
}

fn chosen(config: &[u8], layers: Vec<(String, Option<String>)>) -> Result<Chosen, Failure> {
    let parsed: ImageConfiguration = parsed(config, "the configuration")?;
    if *parsed.architecture() != Arch::Amd64 || *parsed.os() != Os::Linux {
        let (os, arch) = (parsed.os(), parsed.architecture());
        let text = format!("the image is for {os}/{arch}; programs run as linux/amd64");
        return Err(Failure::unfit(text));
    }
    let hashes = parsed.rootfs().diff_ids();
    if hashes.len() != layers.len() || layers.len() > LAYERS_MAX {
        let text = format!("{} layers and {} hashes of them", layers.len(), hashes.len());
        return Err(Failure::damaged(text));
    }
    let layers = layers.into_iter().zip(hashes).map(|((name, stored_hash), tar_hash)| {
        let tar_hash = plain_hash(tar_hash)?;
        Ok(Layer { name, stored_hash, tar_hash })
    });
    let layers = layers.collect::<Result<_, Failure>>()?;
    let settings = parsed.config().as_ref().map_or_else(Settings::default, |config| Settings {
        entrypoint: config.entrypoint().clone().unwrap_or_default(),
        command: config.cmd().clone().unwrap_or_default(),
        env: config.env().clone().unwrap_or_default(),
        user: config.user().clone().unwrap_or_default(),
        working_dir: config.working_dir().clone().unwrap_or_default(),
    });
    let working_dir = format!("/{}", settings.working_dir.trim_matches('/'));
    let settings = Settings { working_dir, ..settings };
    Ok(Chosen { settings, layers, hash: hex(&Sha256::digest(config)) })
}

/// A document that a descriptor names, checked against the hash.
fn checked(store: &Store, descriptor: &Descriptor) -> Result<Vec<u8>, Failure> {
    let hash = hash_of(descriptor)?;
    let bytes = store.document(&blob(&hash))?;
    match hex(&Sha256::digest(&bytes)) == hash {
        true => Ok(bytes),
        false => Err(Failure::damaged("its hash is another").within(blob(&hash))),
    }
}

fn parsed<'a, T: Deserialize<'a>>(bytes: &'a [u8], what: &str) -> Result<T, Failure> {
    serde_json::from_slice(bytes).map_err(|error| Failure::damaged(error.to_string()).within(what))
}

fn blob(hash: &str) -> String {
    format!("blobs/sha256/{hash}")
}

fn hash_of(descriptor: &Descriptor) -> Result<String, Failure> {
    plain_hash(descriptor.digest().as_ref())
}

/// The digits of `sha256:DIGITS`.
fn plain_hash(text: &str) -> Result<String, Failure> {
    let digits = text
        .strip_prefix(HASH_PREFIX)
        .filter(|digits| digits.len() == 64 && digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
    let not = || Failure::damaged("not a SHA-256").within(text);
    digits.map(str::to_ascii_lowercase).ok_or_else(not)
}
