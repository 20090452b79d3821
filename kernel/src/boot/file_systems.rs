//! The kinds of file systems that mount(2) knows. Each stands on a floor above the mounts, so they
//! are named here. Of those that show the kernel itself there is one instance, so that all mounts
//! of it share one cache of names.

use crate::fs::{devfs, tmpfs};
use crate::procfs::{self, sysfs};
use crate::tty::devpts;
use crate::vfs::mount::{FileSystemType, mounted};

/// Name and maker of each.
pub const TYPES: &[FileSystemType] = &[
    ("sysfs", |_, _| Ok(mounted(b"sysfs").unwrap_or_else(|| sysfs::new()))),
    ("tmpfs", |_, options| tmpfs::mount_with("tmpfs", options)),
    ("ramfs", |_, options| tmpfs::mount_with("ramfs", options)),
    ("proc", |_, _| Ok(mounted(b"proc").unwrap_or_else(|| procfs::new()))),
    ("devtmpfs", |_, _| match mounted(b"devtmpfs") {
        Some(fs) => Ok(fs),
        None => Ok(devfs::new()?),
    }),
    ("mqueue", |_, _| Ok(crate::ipc::mqueue::fs::file_system())),
    ("devpts", |_, _| Ok(devpts::file_system())),
];
