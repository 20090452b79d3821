//! Who may do what to an object (path_resolution(7), capabilities(7)).
//!
//! The superuser's question is answered without asking the file system where the answer does not
//! depend on the object; that keeps path walking short.

use abi::{Errno, Result};

use super::{FileType, Inode, Metadata};
use crate::security::credentials::Credentials;

/// Read permission, as in access(2).
pub const READ: u32 = 4;
/// Write permission.
pub const WRITE: u32 = 2;
/// Execute, or for directories search permission.
pub const EXECUTE: u32 = 1;

/// Capabilities that files care about (capabilities(7)).
#[expect(missing_docs, reason = "capabilities(7) describes each")]
pub mod capability {
    pub const CHOWN: u32 = 0;
    pub const DAC_OVERRIDE: u32 = 1;
    pub const DAC_READ_SEARCH: u32 = 2;
    pub const FOWNER: u32 = 3;
    pub const FSETID: u32 = 4;
    pub const SYS_CHROOT: u32 = 18;
    pub const SYS_ADMIN: u32 = 21;
    pub const SYS_RESOURCE: u32 = 24;
    pub const MKNOD: u32 = 27;
    pub const SETFCAP: u32 = 31;
}

/// EACCES unless `credentials` give every permission of `wanted`.
#[inline]
pub fn check(inode: &dyn Inode, wanted: u32, credentials: &Credentials) -> Result<()> {
    if credentials.has(capability::DAC_OVERRIDE)
        && (wanted & EXECUTE == 0 || inode.file_type() == FileType::Directory)
    {
        return Ok(());
    }
    match check_metadata(&inode.metadata()?, wanted, credentials) {
        Err(Errno::EACCES) if inode.is_own() => Ok(()),
        answer => answer,
    }
}

/// As [`check`], for attributes at hand.
pub fn check_metadata(of: &Metadata, wanted: u32, credentials: &Credentials) -> Result<()> {
    let class = if credentials.fsuid == of.uid {
        of.mode >> 6
    } else if credentials.in_group(of.gid) {
        of.mode >> 3
    } else {
        of.mode
    };
    if wanted & !class & 7 == 0 {
        return Ok(());
    }
    let is_directory = of.file_type == FileType::Directory;
    let may_execute = is_directory || of.mode & 0o111 != 0;
    if credentials.has(capability::DAC_OVERRIDE) && (wanted & EXECUTE == 0 || may_execute) {
        return Ok(());
    }
    let reads = wanted == READ || is_directory && wanted & WRITE == 0;
    if credentials.has(capability::DAC_READ_SEARCH) && reads {
        return Ok(());
    }
    Err(Errno::EACCES)
}

/// Whether the caller owns the object or may act as if.
pub fn is_owner(of: &Metadata, credentials: &Credentials) -> bool {
    credentials.fsuid == of.uid || credentials.has(capability::FOWNER)
}

/// EPERM if a sticky directory protects `victim` (unlink(2)).
pub fn check_sticky(
    directory: &Metadata,
    victim: &dyn Inode,
    credentials: &Credentials,
) -> Result<()> {
    if directory.mode & 0o1000 == 0
        || credentials.has(capability::FOWNER)
        || credentials.fsuid == directory.uid
        || credentials.fsuid == victim.metadata()?.uid
    {
        return Ok(());
    }
    Err(Errno::EPERM)
}
