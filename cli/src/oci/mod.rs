//! Container images: `limen run --image PATH` and `limen pack --image PATH`.
//!
//! An image is a configuration and layers, each a tar archive of what it changes. It comes from
//! a folder in the OCI image layout or from a `docker save` archive; nothing is fetched. The
//! layers are unpacked once, into the cache, in a form that keeps owners and modes without root
//! (`rootfs.rs`), and the guest gets that folder read-only below its copy-on-write overlay.
//!
//! Why it is hard: whoever made the image may be hostile, and unpacking happens on the host. So
//! `layer.rs` refuses, by name, what no image needs, and the unpacked form holds nothing but
//! folders and regular files: no link that the host could follow.
//!
//! Reading order: `store` (where the bytes are), `manifest` (which belong together), `layer` (what
//! they change), `rootfs` (the result), `user` (who the program runs as).

mod layer;
mod manifest;
mod rootfs;
mod store;
#[cfg(test)]
mod tests;
pub(crate) mod user;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::Error;
use crate::cache::{self, Folder};
use crate::failure::{Doing, Failure};
use crate::progress::Progress;
use manifest::Chosen;
pub(crate) use manifest::Settings;
pub(crate) use rootfs::{NodeKind, Rootfs};
use store::Store;

/// An image that is ready to run.
#[derive(Debug)]
pub(crate) struct Image {
    pub(crate) settings: Settings,
    pub(crate) rootfs: Rootfs,
}

impl Image {
    /// Opens and, the first time, unpacks what `--image` names: `PATH`, or `PATH:NAME` where there
    /// are several images at PATH.
    pub(crate) fn open(given: &Path) -> Result<Self, Error> {
        let of_image = |failure: Failure| failure.within(format!("--image {}", given.display()));
        let (path, name) = split(given);
        if let Err(error) = path.metadata() {
            return Err(crate::usage(format!("--image {}: {error}", given.display())));
        }
        let store = Store::open(&path).map_err(of_image)?;
        let chosen = manifest::choose(&store, name.as_deref()).map_err(of_image)?;
        let images = Folder::of(cache::IMAGES)?;
        let rootfs = unpacked(&store, &chosen, &images).map_err(of_image)?;
        Ok(Self { settings: chosen.settings, rootfs })
    }

    /// The words to run: the image's entry point, and then what was given or else its command.
    pub(crate) fn command(&self, given: &[OsString]) -> Result<Vec<OsString>, Error> {
        let of_image = || self.settings.command.iter().map(OsString::from).collect();
        let arguments = if given.is_empty() { of_image() } else { given.to_vec() };
        let entry = self.settings.entrypoint.iter().map(OsString::from);
        let words: Vec<OsString> = entry.chain(arguments).collect();
        match words.is_empty() {
            false => Ok(words),
            true => {
                Err(crate::usage("--image: the image names no program: give one behind the path"))
            }
        }
    }
}

/// `PATH:NAME`, where nothing is at the whole of it.
fn split(given: &Path) -> (PathBuf, Option<String>) {
    let text = given.to_string_lossy();
    let parts = text.char_indices().filter(|(_, c)| *c == ':');
    let found = parts.map(|(at, _)| text.split_at(at)).find(|(path, _)| Path::new(path).exists());
    match found.filter(|_| !given.exists()) {
        Some((path, name)) => (path.into(), Some(name[1..].to_owned())),
        None => (given.to_owned(), None),
    }
}

/// The image's root file system, from the cache where it is there.
fn unpacked(store: &Store, chosen: &Chosen, images: &Folder) -> Result<Rootfs, Failure> {
    if let Some(place) = images.find(&chosen.hash) {
        return Ok(Rootfs::new(place));
    }
    images.make()?;
    let place = images.path().join(&chosen.hash);
    let plural = if chosen.layers.len() == 1 { "" } else { "s" };
    say!("limen: unpacking {} layer{}", chosen.layers.len(), plural);
    let dir = tempfile::Builder::new().prefix(".unpacking-").tempdir_in(images.path());
    let dir = dir.map_err(Failure::at(Doing::Make, images.path()))?;
    let mut builder = layer::Builder::new(dir.path(), layer::FREE_BYTES);
    for (index, layer) in chosen.layers.iter().enumerate() {
        let of = chosen.layers.len();
        let _slow = Progress::of(format!("unpacking layer {} of {of}", index + 1));
        builder.apply(store, layer)?;
    }
    builder.finish(&chosen.settings.working_dir)?;
    // Whoever was faster has unpacked the same.
    match std::fs::rename(dir.path(), &place) {
        Err(error) if !place.is_dir() => return Err(Failure::at(Doing::Make, &place)(error)),
        _ => {}
    }
    images.prune();
    Ok(Rootfs::new(place))
}
