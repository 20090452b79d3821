//! The calls about files and names, one file for each subject: `open` (descriptors), `rw` (data),
//! `stat` (attributes read), `attr` (attributes changed), `names` (the tree of names), `dirs`
//! (directories), `control` (fcntl, ioctl, flock), `xattr`, `notify`, `mounts`, `mount_api`,
//! `statmount`, `handles`.
//!
//! Each function takes the six arguments as they came and checks them as its manual page says.

use alloc::sync::Arc;
use alloc::vec::Vec;

use abi::{Result, general as raw};

use crate::base::args::check_flags;
use crate::base::names::find;
use crate::base::user::{PATH_MAX, UserPtr, read_path};
use crate::process::{own_file, own_open_file};
use crate::vfs::path::{Context, walk};
use crate::vfs::{File, FileType, Inode};

mod attr;
mod control;
mod dirs;
mod flags;
mod handles;
mod mount_api;
mod mounts;
mod names;
mod notify;
mod open;
mod rw;
mod stat;
mod statmount;
mod xattr;

pub use attr::*;
pub use control::*;
pub use dirs::*;
pub use handles::*;
pub use mount_api::*;
pub use mounts::*;
pub use names::*;
pub use notify::*;
pub use open::*;
pub use rw::*;
pub use stat::*;
pub use statmount::*;
pub use xattr::*;

/// Paths up to this length need no allocation.
const INLINE_PATH: usize = 120;

/// A path argument, copied in.
pub(super) enum PathName {
    Inline([u8; INLINE_PATH], usize),
    Long(Vec<u8>),
}

impl PathName {
    /// Copies a path in: ENAMETOOLONG from PATH_MAX on.
    #[inline]
    pub(super) fn read(address: u64) -> Result<PathName> {
        let mut bytes = [0; INLINE_PATH];
        let mut len = 0;
        // A few words at a time, never into a page before the one at hand is known to have no NUL.
        while len < INLINE_PATH {
            let at = address.wrapping_add(len as u64);
            let to_page_end = 4096 - (at % 4096) as usize;
            let step = (INLINE_PATH - len).min(to_page_end).min(40);
            let chunk = &mut bytes[len..len + step];
            UserPtr::<u8>::new(at).read_bytes(chunk)?;
            if let Some(end) = find(chunk, 0) {
                return Ok(PathName::Inline(bytes, len + end));
            }
            len += step;
        }
        const { assert!(INLINE_PATH < PATH_MAX) };
        Ok(PathName::Long(read_path(address)?))
    }

    /// As [`PathName::read`]; a null pointer is the empty path of a descriptor if AT_EMPTY_PATH is
    /// in `flags`.
    pub(super) fn read_or_empty(dirfd: i32, address: u64, flags: u32) -> Result<PathName> {
        if address == 0 && dirfd >= 0 && flags & raw::AT_EMPTY_PATH != 0 {
            return Ok(PathName::Inline([0; INLINE_PATH], 0));
        }
        Self::read(address)
    }

    #[inline(always)]
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            PathName::Inline(bytes, len) => &bytes[..*len],
            PathName::Long(bytes) => bytes,
        }
    }
}

/// The open file behind a descriptor argument, whatever it is.
#[inline]
pub(super) fn any_file(fd: u64) -> Result<Arc<File>> {
    own_file(fd as u32)
}

/// The open file behind a descriptor argument; EBADF if it only names a place (O_PATH).
#[inline]
pub(super) fn file(fd: u64) -> Result<Arc<File>> {
    own_open_file(fd as u32)
}

/// Flags of `*at` calls as flags of a walk. `follow` is what the call does without
/// AT_SYMLINK_NOFOLLOW.
pub(super) fn walk_flags(at_flags: u32, follow: bool) -> u32 {
    let mut flags = 0;
    if follow && at_flags & raw::AT_SYMLINK_NOFOLLOW == 0 || at_flags & raw::AT_SYMLINK_FOLLOW != 0
    {
        flags |= walk::FOLLOW;
    }
    if at_flags & raw::AT_EMPTY_PATH != 0 {
        flags |= walk::EMPTY;
    }
    flags
}

/// The process's context and a path argument resolved in it.
pub(super) fn resolve_at(
    dirfd: u64,
    path: u64,
    flags: u32,
    follow: bool,
) -> Result<(Context, crate::vfs::path::Location)> {
    let path = PathName::read(path)?;
    let context = Context::current();
    let location =
        crate::vfs::path::resolve(&context, dirfd as i32, path.bytes(), walk_flags(flags, follow))?;
    Ok((context, location))
}

/// Current directory, as a descriptor argument.
pub(super) const CWD: u64 = raw::AT_FDCWD as u64;

/// Whether the object is a regular file with contents of its own.
pub(super) fn is_regular(inode: &Arc<dyn Inode>) -> bool {
    inode.file_type() == FileType::Regular && inode.page_cache().is_some()
}
