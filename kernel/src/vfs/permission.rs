//! Who may do what to an object (path_resolution(7), capabilities(7)).
//!
//! The superuser's question is answered without asking the file system where the answer does not
//! depend on the object; that keeps path walking short.

use abi::{Errno, Result};

use super::{FileType, Inode, Metadata, SetAttributes, capability, flags, hooks};
use crate::security::{Capability, Subject};

/// Read permission, as in access(2).
pub const READ: u32 = 4;
/// Write permission.
pub const WRITE: u32 = 2;
/// Execute, or for directories search permission.
pub const EXECUTE: u32 = 1;

/// EACCES unless `who` has every permission of `wanted`.
#[inline]
pub fn check(inode: &dyn Inode, wanted: u32, who: &Subject) -> Result<()> {
    check_as(inode, wanted, who, || inode.file_type() == FileType::Directory)
}

/// As [`check`] for search permission of what is known to be a directory.
#[inline(always)]
pub fn check_search(directory: &dyn Inode, who: &Subject) -> Result<()> {
    check_as(directory, EXECUTE, who, || true)
}

#[inline(always)]
fn check_as(
    inode: &dyn Inode,
    wanted: u32,
    who: &Subject,
    is_directory: impl FnOnce() -> bool,
) -> Result<()> {
    if wanted & WRITE != 0 && inode.state().is_immutable() {
        return Err(Errno::EPERM);
    }
    let overrides =
        who.capable(Capability::DacOverride) && (wanted & EXECUTE == 0 || is_directory());
    if !overrides {
        check_mode(inode, wanted, who)?;
    }
    hooks::inode_permission((who, inode, wanted))
}

#[inline(never)]
fn check_mode(inode: &dyn Inode, wanted: u32, who: &Subject) -> Result<()> {
    match check_metadata(&inode.metadata()?, wanted, who) {
        Err(Errno::EACCES) if inode.is_own() => Ok(()),
        answer => answer,
    }
}

/// Why attributes change, which says what the object's flags (chattr(1)) have to say about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// chmod(2).
    Mode,
    /// chown(2); whether a user or a group was given.
    Owner {
        /// Without one nothing changes but what the file gives to who executes it.
        is_given: bool,
    },
    /// utimensat(2); whether both times are those of now, which who may write may set.
    Times {
        /// Both.
        are_now: bool,
    },
    /// The contents changed: who opened the file for it was asked then.
    Contents,
}

/// Changes attributes of an object, as far as its flags and the policies let the caller. Whether
/// the mode bits and the owner let it has been checked.
pub fn set_attributes(inode: &dyn Inode, changes: &SetAttributes, why: Reason) -> Result<()> {
    match why {
        Reason::Mode | Reason::Owner { is_given: true } | Reason::Times { are_now: false } => {
            flags::check_not_guarded(inode)?;
        }
        Reason::Times { are_now: true } => flags::check_not_immutable(inode)?,
        Reason::Owner { is_given: false } | Reason::Contents => {}
    }
    hooks::inode_setattr((inode, changes))?;
    if let Reason::Owner { .. } = why {
        drop_capabilities(inode)?;
    }
    inode.set_attributes(changes)?;
    hooks::inode_post_setattr((inode,));
    Ok(())
}

/// As [`check`], for attributes at hand.
pub fn check_metadata(of: &Metadata, wanted: u32, who: &Subject) -> Result<()> {
    let class = if who.fsuid == of.uid {
        of.mode >> 6
    } else if who.in_group(of.gid) {
        of.mode >> 3
    } else {
        of.mode
    };
    if wanted & !class & 7 == 0 {
        return Ok(());
    }
    let is_directory = of.file_type == FileType::Directory;
    let may_execute = is_directory || of.mode & 0o111 != 0;
    if who.capable(Capability::DacOverride) && (wanted & EXECUTE == 0 || may_execute) {
        return Ok(());
    }
    let reads = wanted == READ || is_directory && wanted & WRITE == 0;
    if who.capable(Capability::DacReadSearch) && reads {
        return Ok(());
    }
    Err(Errno::EACCES)
}

/// Takes away what makes a program of a file more than its caller, because its contents are about
/// to change: set-user-ID, set-group-ID and capabilities (write(2), truncate(2), capabilities(7)).
/// Who has CAP_FSETID may keep the bits, nobody the capabilities.
#[inline]
pub fn drop_privileges(inode: &dyn Inode, who: &Subject) -> Result<()> {
    if inode.state().is_plain() { Ok(()) } else { drop_privileges_slow(inode, who) }
}

#[cold]
fn drop_privileges_slow(inode: &dyn Inode, who: &Subject) -> Result<()> {
    if inode.file_type() != FileType::Regular {
        // Nobody executes it, whatever its attributes become.
        inode.state().set_plain(true);
        return Ok(());
    }
    // Before the look: a change that comes after it takes this back.
    inode.state().set_plain(true);
    let result = take_privileges(inode, who);
    if result != Ok(true) {
        inode.state().set_plain(false);
    }
    result.map(|_| ())
}

/// Takes them away. Whether there are none left.
fn take_privileges(inode: &dyn Inode, who: &Subject) -> Result<bool> {
    let of = inode.metadata()?;
    kill_privileges(inode)?;
    let mut mode = of.mode;
    if !who.capable(Capability::Fsetid) {
        let keeps_group = of.mode & 0o010 == 0 && who.in_group(of.gid);
        mode &= if keeps_group { !0o4000 } else { !0o6000 };
    }
    if mode != of.mode {
        inode.set_attributes(&SetAttributes { mode: Some(mode), ..SetAttributes::default() })?;
    }
    Ok(mode & 0o6000 == 0)
}

/// Takes the capabilities of a file away, whose owner is to change (chown(2)).
fn drop_capabilities(inode: &dyn Inode) -> Result<()> {
    if inode.file_type() == FileType::Regular { kill_privileges(inode) } else { Ok(()) }
}

/// Asks the policies whether the object gives privileges, and has them taken away.
fn kill_privileges(inode: &dyn Inode) -> Result<()> {
    if hooks::inode_need_killpriv((inode,))? == 0 {
        return Ok(());
    }
    hooks::inode_killpriv((inode,))?;
    capability::remove_file_sets(inode)
}

/// Whether the caller owns the object or may act as if.
pub fn is_owner(of: &Metadata, who: &Subject) -> bool {
    who.fsuid == of.uid || who.capable(Capability::Fowner)
}

/// EPERM unless `who` may leave no trace of reading the object (open(2), O_NOATIME).
pub fn check_noatime(inode: &dyn Inode, who: &Subject) -> Result<()> {
    if is_owner(&inode.metadata()?, who) { Ok(()) } else { Err(Errno::EPERM) }
}

/// EPERM if a sticky directory protects `victim` (unlink(2)).
pub fn check_sticky(directory: &Metadata, victim: &dyn Inode, who: &Subject) -> Result<()> {
    if directory.mode & 0o1000 == 0
        || who.capable(Capability::Fowner)
        || who.fsuid == directory.uid
        || who.fsuid == victim.metadata()?.uid
    {
        return Ok(());
    }
    Err(Errno::EPERM)
}
