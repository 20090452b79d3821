//! Images made by hand: what layers do to each other, and what hostile ones are told.

use std::fs;
use std::io::Write as _;
use std::path::Path;

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tar::{EntryType, Header};

use super::layer::Builder;
use super::manifest::{Chosen, choose};
use super::rootfs::{NodeKind, Rootfs};
use super::store::Store;
use crate::Error;
use crate::failure::Failure;
use crate::pack::files::hex;

/// What an entry is: its kind, name, and contents or target.
type TarEntry<'a> = (EntryType, &'a str, &'a str);

const FILE: EntryType = EntryType::Regular;
const LINK: EntryType = EntryType::Symlink;
/// So much may a layer of a test unpack to.
const FREE_BYTES: u64 = 1 << 20;

/// A layer, uncompressed. Names go in as they are: the crate's own writer refuses hostile ones.
fn layer(entries: &[TarEntry<'_>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (kind, name, text) in entries {
        let mut header = Header::new_ustar();
        header.set_entry_type(*kind);
        header.set_mode(0o4751);
        header.set_uid(33);
        header.set_gid(44);
        header.set_mtime(1_000_000_000);
        let raw = header.as_old_mut();
        raw.name[..name.len()].copy_from_slice(name.as_bytes());
        let is_file = *kind == FILE;
        if !is_file {
            raw.linkname[..text.len()].copy_from_slice(text.as_bytes());
        }
        header.set_size(if is_file { text.len() as u64 } else { 0 });
        header.set_cksum();
        bytes.extend_from_slice(header.as_bytes());
        if is_file {
            bytes.extend_from_slice(text.as_bytes());
            bytes.resize(bytes.len().next_multiple_of(512), 0);
        }
    }
    bytes.resize(bytes.len() + 1024, 0);
    bytes
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).expect("into memory");
    encoder.finish().expect("into memory")
}

fn hash(bytes: &[u8]) -> String {
    format!("sha256:{}", hex(&Sha256::digest(bytes)))
}

fn config(layers: &[Vec<u8>]) -> Vec<u8> {
    let hashes: Vec<String> = layers.iter().map(|layer| hash(layer)).collect();
    let config = json!({
        "architecture": "amd64", "os": "linux",
        "config": { "Env": ["A=b"], "Entrypoint": ["/bin/e"], "Cmd": ["c", "d"], "User": "web",
                    "WorkingDir": "/srv/app/" },
        "rootfs": { "type": "layers", "diff_ids": hashes },
    });
    config.to_string().into_bytes()
}

/// Writes a layout with one image of these layers, compressed.
fn layout(dir: &Path, layers: &[Vec<u8>]) {
    let blobs = dir.join("blobs/sha256");
    fs::create_dir_all(&blobs).expect("folder");
    let put = |bytes: &[u8], kind: &str| -> Value {
        let digest = hash(bytes);
        fs::write(blobs.join(&digest[7..]), bytes).expect("blob");
        json!({ "mediaType": format!("application/vnd.oci.image.{kind}"), "digest": digest,
                "size": bytes.len() })
    };
    let config = put(&config(layers), "config.v1+json");
    let layers: Vec<Value> =
        layers.iter().map(|layer| put(&gzip(layer), "layer.v1.tar+gzip")).collect();
    let manifest = json!({ "schemaVersion": 2, "config": config, "layers": layers });
    let mut manifest = put(manifest.to_string().as_bytes(), "manifest.v1+json");
    manifest["annotations"] = json!({ "org.opencontainers.image.ref.name": "app:1" });
    let index = json!({ "schemaVersion": 2, "manifests": [manifest] });
    fs::write(dir.join("index.json"), index.to_string()).expect("index");
    fs::write(dir.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).expect("layout");
}

fn unpack(store: &Store, chosen: &Chosen, to: &Path) -> Result<Rootfs, Failure> {
    let mut builder = Builder::new(to, FREE_BYTES);
    for layer in &chosen.layers {
        builder.apply(store, layer)?;
    }
    builder.finish("/srv/app")?;
    Ok(Rootfs::new(to.to_owned()))
}

/// The root file system of these layers, in a folder that lasts as long as the first value.
fn rootfs(layers: &[Vec<u8>]) -> Result<(tempfile::TempDir, Rootfs), Error> {
    let dir = tempfile::tempdir()?;
    layout(&dir.path().join("image"), layers);
    let store = Store::open(&dir.path().join("image"))?;
    let to = dir.path().join("root");
    fs::create_dir(&to)?;
    let rootfs = unpack(&store, &choose(&store, None)?, &to)?;
    Ok((dir, rootfs))
}

fn refusal(entries: &[TarEntry<'_>]) -> String {
    match rootfs(&[layer(&[(FILE, "etc/ok", "")]), layer(entries)]) {
        Ok(_) => String::new(),
        Err(error) => error.to_string(),
    }
}

#[test]
fn owners_modes_links_and_times_are_kept() {
    let entries = [
        (EntryType::Directory, "./usr/bin/", ""),
        (FILE, "usr/bin/tool", "text"),
        (LINK, "bin", "/usr/bin"),
        (FILE, "bin/other", "through the link"),
        (EntryType::Link, "bin/hard", "usr/bin/tool"),
        (EntryType::Fifo, "run/pipe", ""),
    ];
    let (_dir, rootfs) = rootfs(&[layer(&entries)]).expect("a plain image");
    let (path, meta) = rootfs.find(Path::new("/bin/tool")).expect("is there");
    assert_eq!(path, Path::new("/usr/bin/tool"));
    assert_eq!((meta.kind, meta.perm, meta.uid, meta.gid), (NodeKind::File, 0o4751, 33, 44));
    assert_eq!(rootfs.text("/usr/bin/other"), "through the link");
    assert_eq!(rootfs.text("/bin/hard"), "text");
    let all = rootfs.walk().expect("whole");
    let of =
        |path: &str| all.iter().find(|(other, ..)| other == Path::new(path)).map(|e| (e.1, e.2));
    assert_eq!(of("/bin").map(|(meta, _)| meta.kind), Some(NodeKind::Link));
    assert_eq!(of("/run/pipe").map(|(meta, _)| meta.kind), Some(NodeKind::Fifo));
    assert_eq!(of("/usr/bin").map(|(_, time)| time), Some(1_000_000_000));
    assert_eq!(of("/usr").map(|(meta, _)| (meta.perm, meta.uid)), Some((0o755, 0)));
    assert_eq!(of("/tmp").map(|(meta, _)| meta.perm), Some(0o1777));
    assert!(of("/srv/app").is_some(), "the working directory");
    // Nothing on the host is a link.
    let host = fs::symlink_metadata(rootfs.on_host(Path::new("/bin"))).expect("is there");
    assert!(host.is_file());
}

#[test]
fn whiteouts_take_away_what_is_below() {
    let below = [
        (FILE, "a/old", ""),
        (FILE, "a/kept", ""),
        (FILE, "b/deep/old", ""),
        (FILE, "c/old", ""),
        (FILE, "d", "a file"),
    ];
    let above = [
        (FILE, "a/.wh.old", ""),
        // What this layer adds stays, whatever comes first.
        (FILE, "b/new", ""),
        (FILE, "b/.wh..wh..opq", ""),
        (FILE, ".wh.c", ""),
        (FILE, "d/now-a-folder", ""),
    ];
    // A file of the layer below is in the way of the folder.
    assert!(rootfs(&[layer(&below), layer(&above)]).is_err());
    let above = [&above[..4], &[(EntryType::Directory, "d", ""), (FILE, "d/new", "")]].concat();
    let (_dir, rootfs) = rootfs(&[layer(&below), layer(&above)]).expect("an image");
    let has = |path: &str| rootfs.find(Path::new(path)).is_some();
    let gone = ["/a/old", "/b/deep", "/b/deep/old", "/c", "/a/.wh.old"];
    assert!(gone.iter().all(|path| !has(path)), "{gone:?}");
    assert!(["/a/kept", "/b/new", "/d/new"].iter().all(|path| has(path)));
}

#[test]
fn device_nodes_are_left_out() {
    let below = [(FILE, "srv/x", "a file"), (EntryType::Char, "dev/mem", "")];
    let above = [(EntryType::Block, "srv/x", ""), (FILE, "srv/y", "")];
    let (_dir, rootfs) = rootfs(&[layer(&below), layer(&above)]).expect("an image");
    let has = |path: &str| rootfs.find(Path::new(path)).is_some();
    assert!(has("/dev") && has("/srv/y"));
    // It took the place of the file below, which the image does not have any more.
    assert!(!has("/dev/mem") && !has("/srv/x"));
}

#[test]
fn hostile_layers_are_refused_by_name() {
    for (entries, name, why) in [
        (&[(FILE, "../../etc/x", "")][..], "../../etc/x", "`..`"),
        (&[(FILE, "a/../../x", "")], "a/../../x", "`..`"),
        (&[(LINK, "l", "../../tmp"), (FILE, "l/x", "")], "l/x", "out of the image"),
        (&[(LINK, "l", "l"), (FILE, "l/x", "")], "l/x", "too many links"),
        (&[(EntryType::Link, "h", "../../etc/passwd")], "h", "out of the image"),
        (&[(EntryType::Link, "h", "/etc/passwd")], "h", "no file of the image"),
        (&[(FILE, ".virtfs_metadata/x", "virtfs.uid=0")], "metadata/x", "not allowed"),
        (&[(LINK, "l", "")], "l", "without a target"),
    ] {
        let said = refusal(entries);
        assert!(said.starts_with("layer 2: "), "{said}");
        assert!(said.contains(name) && said.contains(why), "{said}");
    }
    // An absolute link is the image's own.
    assert_eq!(refusal(&[(LINK, "l", "/etc"), (FILE, "l/x", "")]), "");
}

#[test]
fn bombs_are_refused() {
    let zeros = "\0".repeat(2 << 20);
    let said = refusal(&[(FILE, "zeros", &zeros)]);
    assert!(said.contains("a bomb?"), "{said}");
    // A name that says it is a gigabyte long is not read.
    let mut long = Header::new_gnu();
    long.set_entry_type(EntryType::GNULongName);
    long.set_size(1 << 30);
    long.set_cksum();
    let mut bytes = long.as_bytes().to_vec();
    bytes.resize(bytes.len() + (900 << 10), b'a');
    let error = rootfs(&[bytes]).map(|_| ()).expect_err("cut").to_string();
    assert!(error.starts_with("layer 1: "), "{error}");
}

#[test]
fn hashes_are_checked() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let image = dir.path();
    layout(image, &[layer(&[(FILE, "x", "right")])]);
    let wrong = gzip(&layer(&[(FILE, "x", "wrong")]));
    let right = hash(&gzip(&layer(&[(FILE, "x", "right")])));
    fs::write(image.join("blobs/sha256").join(&right[7..]), wrong).expect("blob");
    let store = Store::open(image).expect("a folder");
    let chosen = choose(&store, None).expect("documents are right");
    let root = tempfile::tempdir().expect("temporary directory");
    let error = unpack(&store, &chosen, root.path()).expect_err("another hash").to_string();
    assert!(error.contains("hash"), "{error}");
}

#[test]
fn what_docker_saves_is_the_same_image() {
    let layers = [layer(&[(FILE, "x", "saved")])];
    let dir = tempfile::tempdir().expect("temporary directory");
    let saved = dir.path().join("saved.tar");
    let mut archive = tar::Builder::new(fs::File::create(&saved).expect("file"));
    let manifest =
        json!([{ "Config": "c.json", "RepoTags": ["app:1"], "Layers": ["l/layer.tar"] }]);
    for (name, bytes) in [
        ("manifest.json", manifest.to_string().into_bytes()),
        ("c.json", config(&layers)),
        ("l/layer.tar", layers[0].clone()),
    ] {
        let mut header = Header::new_gnu();
        header.set_size(bytes.len() as u64);
        archive.append_data(&mut header, name, &bytes[..]).expect("into a file");
    }
    archive.finish().expect("into a file");
    let store = Store::open(&saved).expect("an archive");
    assert!(choose(&store, Some("other")).is_err());
    let of_saved = choose(&store, Some("app:1")).expect("one image");
    assert_eq!(of_saved.settings.entrypoint, ["/bin/e"]);
    assert_eq!(of_saved.settings.working_dir, "/srv/app");
    let root = tempfile::tempdir().expect("temporary directory");
    let rootfs = unpack(&store, &of_saved, root.path()).expect("an image");
    assert_eq!(rootfs.text("/x"), "saved");
    layout(dir.path(), &layers);
    let store = Store::open(dir.path()).expect("a folder");
    let of_layout = choose(&store, Some("app:1")).expect("one image");
    assert_eq!((of_layout.settings, of_layout.hash), (of_saved.settings, of_saved.hash));
}

#[test]
fn other_machines_images_and_wrong_names_are_refused() {
    let dir = tempfile::tempdir().expect("temporary directory");
    assert!(choose(&Store::open(dir.path()).expect("a folder"), None).is_err());
    let config = json!([{ "Config": "../../etc/passwd", "Layers": [] }]);
    fs::write(dir.path().join("manifest.json"), config.to_string()).expect("file");
    let error = choose(&Store::open(dir.path()).expect("a folder"), None).expect_err("out");
    assert!(error.to_string().contains("out of the image"), "{error}");
}
