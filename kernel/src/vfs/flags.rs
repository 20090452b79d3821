//! Flags of files and directories that are no permission bits (chattr(1), ioctl_iflags(2)): what is
//! immutable is changed by nobody, what is append-only grows and does no more, root's own calls
//! included.
//!
//! Where they hold: `permission::check` refuses writes to what is immutable, whatever the call, and
//! `permission::set_attributes` changes of attributes, which have to say why they are made; the
//! rest is asked for here by those who open, remove, link, resize, map and change `xattr(7)`s.
//! Neighbours: `files/flags.rs` has the requests, [`super::InodeState`] the flags.

use abi::{Errno, Result, general as raw};

use super::{FileType, Inode, SetAttributes, permission};
use crate::security::{Capability, Subject};

/// Those that there are.
const KNOWN: u32 =
    raw::FS_IMMUTABLE_FL | raw::FS_APPEND_FL | raw::FS_NODUMP_FL | raw::FS_NOATIME_FL;
/// Those that take rights, and take a capability.
const GUARDED: u32 = raw::FS_IMMUTABLE_FL | raw::FS_APPEND_FL;
/// Those that what is made in a directory has from it.
const INHERITED: u32 = raw::FS_NODUMP_FL | raw::FS_NOATIME_FL;

/// EPERM for what is immutable or append-only: it keeps its names and its attributes.
#[inline]
pub fn check_not_guarded(inode: &dyn Inode) -> Result<()> {
    if inode.state().flags() & GUARDED == 0 { Ok(()) } else { Err(Errno::EPERM) }
}

/// EPERM for what is immutable.
#[inline]
pub fn check_not_immutable(inode: &dyn Inode) -> Result<()> {
    if inode.state().is_immutable() { Err(Errno::EPERM) } else { Ok(()) }
}

/// EPERM for what is append-only, if it would be changed otherwise.
#[inline]
pub fn check_not_append_only(inode: &dyn Inode) -> Result<()> {
    if inode.state().is_append_only() { Err(Errno::EPERM) } else { Ok(()) }
}

/// The flags of an object. ENOTTY if it has none: other kinds of objects, and other file systems.
pub fn of(inode: &dyn Inode) -> Result<u32> {
    let has_flags = matches!(inode.file_type(), FileType::Regular | FileType::Directory)
        && inode.file_system().has_inode_flags();
    if has_flags { Ok(inode.state().flags()) } else { Err(Errno::ENOTTY) }
}

/// Sets them all to what is wanted, or fails with why that cannot be. ENOTTY, before that, as
/// [`of`]; EPERM for who does not own it, or may not guard it; EOPNOTSUPP for flags that there are
/// not.
pub fn set(inode: &dyn Inode, wanted: Result<u32>, who: &Subject) -> Result<()> {
    let (old, flags) = (of(inode)?, wanted?);
    if !permission::is_owner(&inode.metadata()?, who) {
        return Err(Errno::EPERM);
    }
    if (flags ^ old) & GUARDED != 0 && !who.capable(Capability::LinuxImmutable) {
        return Err(Errno::EPERM);
    }
    if flags & !KNOWN != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    // Its time of change; and a file system that keeps only what was changed keeps it from now on.
    inode.set_attributes(&SetAttributes::default())?;
    inode.state().set_flags(flags);
    Ok(())
}

/// Gives a new object what it has from its directory.
pub fn inherit(directory: &dyn Inode, new: &dyn Inode) {
    let flags = directory.state().flags() & INHERITED;
    if flags != 0 {
        new.state().set_flags(flags);
    }
}
