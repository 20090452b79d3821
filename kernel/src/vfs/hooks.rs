//! What the policies are asked about files, names and mounts (`security::hooks`).

use core::cell::Cell;

use alloc::sync::Arc;
use lsm::fold::{All, Collect, First};

use super::dentry::Dentry;
use super::path::{Context, Location};
use super::{File, FileType, Inode, SetAttributes};
use crate::security::Subject;
use crate::security::hooks::define_hooks;

/// Among the flags of [`file_open()`]: the file is opened to be executed. No flag of open(2).
pub const EXEC: u32 = 1 << 5;

/// A change of names.
pub struct Rename<'a> {
    /// The directory that loses the name.
    pub from: &'a Location,
    /// What moves.
    pub moved: &'a Arc<Dentry>,
    /// The directory that gets the name.
    pub to: &'a Location,
    /// What has the new name already.
    pub replaced: Option<&'a Arc<Dentry>>,
    /// Whether that gets the old name.
    pub exchange: bool,
    /// Whether the mark of union file systems takes the old name (RENAME_WHITEOUT).
    pub leaves_mark: bool,
    /// The old name and the new one.
    pub names: (&'a [u8], &'a [u8]),
}

/// The policies that implement hooks of this part.
mod policies {
    pub(super) use super::super::{capability, landlock, profile};
}

lsm::vfs_hooks!(define_hooks);
