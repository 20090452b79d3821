//! What is mounted, as the process with its root directory sees it: mounts and mountinfo (proc(5)).

use alloc::sync::Arc;
use alloc::vec::Vec;

use abi::{Result, general as raw};

use super::gone;
use super::process_dir::Subject;
use crate::fs::pseudo::Text;
use crate::vfs::chrdev::{major, minor};
use crate::vfs::mount::{self, Mount};
use crate::vfs::path::Location;

/// Appends a path; blanks and backslashes as octal numbers, so that lines can be taken apart.
fn put_path(out: &mut Text, path: &[u8]) {
    for &byte in path {
        match byte {
            b' ' | b'\t' | b'\n' | b'\\' | b'#' => write!(out, "\\{byte:03o}"),
            _ => out.bytes(&[byte]),
        }
    }
}

/// The mounts below the process's root, each with its place.
fn visible(subject: &Subject) -> Result<Vec<(Arc<Mount>, Vec<u8>)>> {
    let fs = subject.process.fs.lock().clone().ok_or_else(gone)?;
    let root: Location = fs.root.lock().clone();
    let seen = mount::all().into_iter().filter_map(|mount| {
        let top = mount.top();
        top.is_within(&root).then(|| {
            let path = top.path(&root);
            (mount, path)
        })
    });
    Ok(seen.collect())
}

fn put_flags(out: &mut Text, flags: u32) {
    out.bytes(if flags & raw::MS_RDONLY != 0 { b"ro" } else { b"rw" });
    let names = [
        (raw::MS_NOSUID, ",nosuid"),
        (raw::MS_NODEV, ",nodev"),
        (raw::MS_NOEXEC, ",noexec"),
        (raw::MS_NOATIME, ",noatime"),
        (raw::MS_NODIRATIME, ",nodiratime"),
        (raw::MS_RELATIME, ",relatime"),
    ];
    names.iter().filter(|(flag, _)| flags & flag != 0).for_each(|(_, name)| {
        out.bytes(name.as_bytes());
    });
}

pub(super) fn mounts(subject: &Subject, out: &mut Text) -> Result<()> {
    for (mount, path) in visible(subject)? {
        put_path(out, mount.source());
        out.bytes(b" ");
        put_path(out, &path);
        write!(out, " {} ", mount.file_system().name());
        put_flags(out, mount.flags());
        out.bytes(&mount.file_system().options());
        out.bytes(b" 0 0\n");
    }
    Ok(())
}

pub(super) fn mountinfo(subject: &Subject, out: &mut Text) -> Result<()> {
    for (mount, path) in visible(subject)? {
        let parent = mount.place().map_or(0, |place| place.mount.id());
        let device = mount.root().inode().metadata().map_or(0, |metadata| metadata.device);
        write!(out, "{} {parent} {}:{} ", mount.id(), major(device), minor(device));
        put_path(out, &path_in_fs(&mount));
        out.bytes(b" ");
        put_path(out, &path);
        out.bytes(b" ");
        put_flags(out, mount.flags());
        write!(out, " - {} ", mount.file_system().name());
        put_path(out, mount.source());
        out.bytes(if mount.flags() & raw::MS_RDONLY != 0 { b" ro" } else { b" rw" });
        out.bytes(&mount.file_system().options());
        out.bytes(b"\n");
    }
    Ok(())
}

/// Where the top of the mount is in its file system: `/` unless it is a bind mount of a part.
fn path_in_fs(mount: &Mount) -> Vec<u8> {
    let mut names = Vec::new();
    let mut at = mount.root().clone();
    while let (Some(parent), name) = at.parent_and_name() {
        names.push(name);
        at = parent;
    }
    let mut path = Vec::new();
    for name in names.iter().rev() {
        path.push(b'/');
        path.extend_from_slice(name);
    }
    if path.is_empty() {
        path.push(b'/');
    }
    path
}
