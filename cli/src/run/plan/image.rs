//! Programs of a container image: how it says that they are started, with what was asked for on
//! top.
//!
//! Neighbour: `crate::oci` unpacks images and knows them.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use super::environment::{Environment, Sees};
use super::{RunArgs, Start, Started, guest_cwd, not_executable, not_found, words};
use crate::Error;
use crate::oci::user::{self, Names};
use crate::oci::{Image, NodeKind, Rootfs};
use crate::pack::files::{FileSet, Place};
use crate::run::lookup::{DEFAULT_PATH, Found};
use crate::run::qemu::SharedRoot;
use crate::tree::absolute;

/// What container runtimes give programs.
const UMASK: u32 = 0o022;

pub(super) fn start(args: &RunArgs, here: &Path, image: &Path) -> Result<Started, Error> {
    let image = Image::open(image)?;
    let rootfs = &image.rootfs;
    let command = image.command(&args.program)?;
    let cwd = guest_cwd(args, "--image")?;
    let cwd = cwd.unwrap_or_else(|| PathBuf::from(&image.settings.working_dir));
    let names = Names { passwd: rootfs.text("/etc/passwd"), group: rootfs.text("/etc/group") };
    let user = match &args.user {
        Some(name) => names.resolve(name)?,
        None => user::resolve(&image.settings.user, &names.passwd, &names.group)?,
    };
    let mut env = Environment::of_caller(args, Sees::Nothing);
    env.set("PATH", DEFAULT_PATH);
    let home = user.home.clone().filter(|home| !home.is_empty());
    env.set("HOME", home.unwrap_or_else(|| "/".to_owned()));
    for entry in &image.settings.env {
        env.set_entry(entry.as_bytes());
    }
    env.set_given(&args.env);
    let mut files = FileSet::default();
    let place = |path: &Path| match rootfs.find(path) {
        None => Place::Nothing,
        Some((_, meta)) if meta.kind == NodeKind::Folder => Place::Folder,
        Some(_) => Place::Other,
    };
    files.add_arguments(here, &args.file, &args.dir, place)?;
    let path = env.get("PATH").unwrap_or_default().to_owned();
    let program = match find(rootfs, &files, &command[0], &path, &cwd) {
        Found::At(path) => path,
        Found::NotExecutable(path) => return Ok(Err(not_executable(path))),
        Found::Nowhere => return Ok(Err(not_found(&command[0]))),
    };
    Ok(Ok(Start {
        program,
        argv: words(&command),
        env: env.encode(),
        hidden: args.hide.iter().map(|path| absolute(&cwd, path)).collect(),
        cwd,
        user,
        umask: UMASK,
        files: files.archive()?,
        root: Some(SharedRoot { path: rootfs.dir().to_owned(), is_mapped: true, served: None }),
        names,
    }))
}

/// Looks for a program as `run/lookup.rs` does in a tree of the host.
fn find(rootfs: &Rootfs, added: &FileSet, name: &OsStr, path: &OsStr, cwd: &Path) -> Found {
    let examine = |candidate: PathBuf| {
        let of_image = || {
            let (_, meta) = rootfs.find(&candidate)?;
            Some(if meta.kind == NodeKind::File { meta.perm } else { 0 })
        };
        match added.file_mode(&candidate).or_else(of_image) {
            Some(mode) if mode & 0o111 != 0 => Found::At(candidate),
            Some(_) => Found::NotExecutable(candidate),
            None => Found::Nowhere,
        }
    };
    if name.as_bytes().contains(&b'/') {
        return examine(absolute(cwd, Path::new(name)));
    }
    let folders = std::env::split_paths(path);
    let found: Vec<Found> =
        folders.map(|folder: PathBuf| examine(absolute(cwd, &folder).join(name))).collect();
    let is_at = |found: &&Found| matches!(found, Found::At(_));
    let best = found.iter().find(is_at);
    best.or_else(|| found.iter().find(|found| **found != Found::Nowhere))
        .cloned()
        .unwrap_or(Found::Nowhere)
}
