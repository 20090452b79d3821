//! The kinds of file systems that mount(2) knows. Each stands on a floor above the mounts, so they
//! are made known from here.

use crate::fs::{devfs, tmpfs};
use crate::procfs::{self, sysfs};
use crate::tty::devpts;
use crate::vfs::mount::{mounted, register_type};

/// Makes the kinds known that every system has. Of those that show the kernel itself there is one
/// instance, so that all mounts of it share one cache of names.
pub fn register() {
    tmpfs::register();
    register_type("proc", |_, _| Ok(mounted(b"proc").unwrap_or_else(|| procfs::new())));
    register_type("sysfs", |_, _| Ok(mounted(b"sysfs").unwrap_or_else(|| sysfs::new())));
    register_type("devtmpfs", |_, _| match mounted(b"devtmpfs") {
        Some(fs) => Ok(fs),
        None => Ok(devfs::new()?),
    });
    register_type("mqueue", |_, _| Ok(crate::ipc::mqueue::fs::file_system()));
    register_type("devpts", |_, _| Ok(devpts::file_system()));
}
