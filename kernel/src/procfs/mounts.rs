//! What is mounted, as the process with its root directory sees it: mounts, mountinfo,
//! mountstats (proc(5)).

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use abi::{Errno, Result, general as raw};

use super::process_dir::Subject;
use crate::base::poll::{PollTable, events};
use crate::drivers::chrdev::{major, minor};
use crate::fs::pseudo::{Content, Text};
use crate::vfs::hooks;
use crate::vfs::mount::{self, Mount};
use crate::vfs::path::Location;

/// Appends a path; blanks and backslashes as octal numbers, so that lines can be taken apart.
fn put_path(out: &mut Text, path: &[u8]) {
    let is_escaped = |byte: &u8| matches!(byte, b' ' | b'\t' | b'\n' | b'\\' | b'#');
    for piece in path.split_inclusive(is_escaped) {
        match piece.split_last() {
            Some((byte, plain)) if is_escaped(byte) => {
                out.bytes(plain);
                write!(out, "\\{byte:03o}");
            }
            _ => out.bytes(piece),
        }
    }
}

/// Makes the text from the mounts below a root, each with its place.
type ShowMounts = fn(Vec<(Arc<Mount>, Vec<u8>)>, &mut Text);

/// A file about mounts, as seen from the root that the process had when it was opened.
struct Mounts {
    root: Location,
    show: ShowMounts,
    /// Changes of mounts of which this open file has told.
    told: AtomicU64,
}

/// Binds a file to the process's root. EINVAL once it has ended.
pub(super) fn open(subject: &Subject, show: ShowMounts) -> Result<Box<dyn Content>> {
    let fs = subject.fs().ok_or(Errno::EINVAL)?;
    let root = fs.root.lock().clone();
    let told = AtomicU64::new(mount::changes().0);
    Ok(Box::new(Mounts { root, show, told }))
}

impl Content for Mounts {
    /// A change is told once (proc_pid_mounts(5)).
    fn poll(&self, table: &mut PollTable) -> Option<u32> {
        let (_, queue) = mount::changes();
        table.wait_on(queue);
        let now = mount::changes().0;
        let changed = self.told.swap(now, Ordering::SeqCst) != now;
        let change = if changed { events::PRI | events::ERR } else { 0 };
        Some(events::READABLE | change)
    }

    fn is_pollable(&self) -> bool {
        true
    }

    fn generate(&self, out: &mut Text) -> Result<()> {
        let mut seen = Vec::new();
        for mount in mount::all() {
            let top = mount.top();
            if top.is_within(&self.root) {
                hooks::sb_show_options((&top,))?;
                let path = top.path(&self.root);
                seen.push((mount, path));
            }
        }
        (self.show)(seen, out);
        Ok(())
    }
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
        (raw::MS_NOSYMFOLLOW, ",nosymfollow"),
    ];
    names.iter().filter(|(flag, _)| flags & flag != 0).for_each(|(_, name)| {
        out.bytes(name.as_bytes());
    });
}

pub(super) fn mounts(visible: Vec<(Arc<Mount>, Vec<u8>)>, out: &mut Text) {
    for (mount, path) in visible {
        put_path(out, mount.source());
        out.bytes(b" ");
        put_path(out, &path);
        write!(out, " {} ", mount.file_system().name());
        put_flags(out, mount.flags());
        out.bytes(&mount.file_system().options());
        out.bytes(b" 0 0\n");
    }
}

pub(super) fn mountstats(visible: Vec<(Arc<Mount>, Vec<u8>)>, out: &mut Text) {
    for (mount, path) in visible {
        out.bytes(b"device ");
        put_path(out, mount.source());
        out.bytes(b" mounted on ");
        put_path(out, &path);
        writeln!(out, " with fstype {}", mount.file_system().name());
    }
}

pub(super) fn mountinfo(visible: Vec<(Arc<Mount>, Vec<u8>)>, out: &mut Text) {
    for (mount, path) in visible {
        let parent = mount.place().map_or(0, |place| place.mount.id());
        let device = mount.root().inode().metadata().map_or(0, |metadata| metadata.device);
        out.decimal(mount.id(), 0);
        out.decimals(&[parent, major(device).into()]);
        out.named(":", minor(device).into());
        out.bytes(b" ");
        put_path(out, &path_in_fs(&mount));
        out.bytes(b" ");
        put_path(out, &path);
        out.bytes(b" ");
        put_flags(out, mount.flags());
        out.bytes(b" - ");
        out.bytes(mount.file_system().name().as_bytes());
        out.bytes(b" ");
        put_path(out, mount.source());
        out.bytes(if mount.flags() & raw::MS_RDONLY != 0 { b" ro" } else { b" rw" });
        out.bytes(&mount.file_system().options());
        out.bytes(b"\n");
    }
}

/// Where the top of the mount is in its file system: `/` unless it is a bind mount of a part.
pub fn path_in_fs(mount: &Mount) -> Vec<u8> {
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
