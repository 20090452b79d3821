//! Landlock's answers about files (landlock(7)): what `lsm::landlock` needs to know of a place is
//! which objects stand above it.
//!
//! Why it is hard: a move between directories must not give an object rights that it did not have,
//! so both sides are walked to the top, and compared layer by layer. Nothing here is called before
//! a program has restricted itself.

use abi::{Errno, Result, general as raw};
use alloc::sync::Arc;
use lsm::landlock::{Granted, Moved, ObjectId, Refused, check_move, fs};

use super::FileType;
use super::dentry::Dentry;
use super::hooks::{self, EXEC, Rename};
use super::path::Location;
use crate::security::Subject;
use crate::security::landlock::Domain;

/// What an object is known by while a rule holds its dentry.
pub fn identity(at: &Location) -> Result<ObjectId> {
    identity_of(at, &at.dentry)
}

fn identity_of(at: &Location, dentry: &Arc<Dentry>) -> Result<ObjectId> {
    if at.mount.file_system().caches_names() {
        return Ok(ObjectId(0, Arc::as_ptr(dentry.inode()).cast::<()>().addr() as u64));
    }
    // Objects are found anew by each walk: only their numbers stay.
    let metadata = dentry.inode().metadata()?;
    Ok(ObjectId(metadata.device, metadata.inode))
}

/// What is granted at a place, up to the point where `enough` is; `None`: the object is the
/// kernel's own (a pipe, say), and below no directory.
fn granted(domain: &Domain, place: &Location, enough: u64) -> Result<Option<Granted>> {
    let mut granted = domain.start();
    let mut at = place.clone();
    loop {
        domain.visit(&mut granted, identity(&at)?);
        if enough & !granted.by_all() == 0 {
            return Ok(Some(granted));
        }
        match at.up_or_back() {
            Some(above) => at = above,
            None if at.mount.is_internal() => return Ok(None),
            None => return Ok(Some(granted)),
        }
    }
}

/// EACCES unless all of `wanted` is granted at a place.
fn check(who: &Subject, place: &Location, wanted: u64) -> Result<()> {
    let Some(domain) = &who.domain else { return Ok(()) };
    if !domain.handles(wanted) {
        return Ok(());
    }
    match granted(domain, place, wanted)? {
        Some(granted) if wanted & !granted.by_all() != 0 => Err(Errno::EACCES),
        _ => Ok(()),
    }
}

pub(super) fn file_open((context, place, flags, grant): hooks::file_open::Given<'_>) -> Result<()> {
    let Some(domain) = &context.subject.domain else { return Ok(()) };
    if flags & raw::O_PATH != 0 {
        return Ok(());
    }
    let mode = flags & raw::O_ACCMODE;
    let mut wanted = 0;
    if mode == raw::O_RDONLY || mode == raw::O_RDWR {
        let directory = place.file_type() == FileType::Directory;
        wanted |= if directory { fs::READ_DIR } else { fs::READ_FILE };
    }
    if mode == raw::O_WRONLY || mode == raw::O_RDWR {
        wanted |= fs::WRITE_FILE;
    }
    if flags & EXEC != 0 {
        wanted |= fs::EXECUTE;
    }
    let later = fs::TRUNCATE | fs::IOCTL_DEV;
    if !domain.handles(wanted | later) {
        return Ok(());
    }
    let Some(granted) = granted(domain, place, wanted | later)? else { return Ok(()) };
    if wanted & !granted.by_all() != 0 {
        return Err(Errno::EACCES);
    }
    grant.set(grant.get() & granted.by_all());
    Ok(())
}

pub(super) fn file_truncate((file,): hooks::file_truncate::Given<'_>) -> Result<()> {
    if file.granted() & fs::TRUNCATE != 0 { Ok(()) } else { Err(Errno::EACCES) }
}

/// Commands that have nothing to do with the device behind a file.
fn is_about_the_file(command: u32) -> bool {
    use abi::ioctl::{FICLONE, FICLONERANGE, FIDEDUPERANGE, FIFREEZE, FIGETBSZ, FITHAW};
    use abi::ioctl::{FIOASYNC, FIOCLEX, FIONBIO, FIONCLEX, FIOQSIZE, FS_IOC_FIEMAP};
    /// _IOR(0x15, 0, 17 bytes) and _IOR(0x15, 1, 129 bytes).
    const GETFSUUID: u32 = 0x8011_1500;
    const GETFSSYSFSPATH: u32 = 0x8081_1501;
    matches!(command, FIOCLEX | FIONCLEX | FIONBIO | FIOASYNC | FIOQSIZE | FIGETBSZ)
        || matches!(
            command,
            FIFREEZE | FITHAW | FS_IOC_FIEMAP | FICLONE | FICLONERANGE | FIDEDUPERANGE
        )
        || matches!(command, GETFSUUID | GETFSSYSFSPATH)
}

pub(super) fn file_ioctl((file, command): hooks::file_ioctl::Given<'_>) -> Result<()> {
    if file.granted() & fs::IOCTL_DEV != 0 || is_about_the_file(command) {
        return Ok(());
    }
    let kind = file.location.as_ref().map(Location::file_type);
    match kind {
        Some(FileType::CharDevice | FileType::BlockDevice) => Err(Errno::EACCES),
        _ => Ok(()),
    }
}

/// The right to make an object of this kind. The mark of union file systems, a device that is none,
/// is guarded as a file: anybody may make one.
fn make(kind: FileType, rdev: u64) -> u64 {
    match kind {
        FileType::CharDevice if rdev == 0 => fs::MAKE_REG,
        FileType::Directory => fs::MAKE_DIR,
        FileType::Symlink => fs::MAKE_SYM,
        FileType::CharDevice => fs::MAKE_CHAR,
        FileType::BlockDevice => fs::MAKE_BLOCK,
        FileType::Fifo => fs::MAKE_FIFO,
        FileType::Socket => fs::MAKE_SOCK,
        FileType::Regular | FileType::Anonymous => fs::MAKE_REG,
    }
}

/// The right to make what is there already, elsewhere.
fn make_again(dentry: &Dentry) -> Result<u64> {
    let kind = dentry.kind();
    let is_device = kind == FileType::CharDevice;
    Ok(make(kind, if is_device { dentry.inode().metadata()?.rdev } else { 0 }))
}

/// The right to take the name of such an object away.
const fn remove(is_directory: bool) -> u64 {
    if is_directory { fs::REMOVE_DIR } else { fs::REMOVE_FILE }
}

pub(super) fn path_mknod(
    (who, directory, _, kind, rdev): hooks::path_mknod::Given<'_>,
) -> Result<()> {
    check(&who.subject, directory, make(kind, rdev))
}

pub(super) fn path_mkdir((who, directory, _): hooks::path_mkdir::Given<'_>) -> Result<()> {
    check(&who.subject, directory, fs::MAKE_DIR)
}

pub(super) fn path_symlink((who, directory, _): hooks::path_symlink::Given<'_>) -> Result<()> {
    check(&who.subject, directory, fs::MAKE_SYM)
}

pub(super) fn path_unlink((who, directory, _): hooks::path_unlink::Given<'_>) -> Result<()> {
    check(&who.subject, directory, fs::REMOVE_FILE)
}

pub(super) fn path_rmdir((who, directory, _): hooks::path_rmdir::Given<'_>) -> Result<()> {
    check(&who.subject, directory, fs::REMOVE_DIR)
}

pub(super) fn path_truncate((who, place): hooks::path_truncate::Given<'_>) -> Result<()> {
    check(&who.subject, place, fs::TRUNCATE)
}

/// A change between two directories.
struct Change<'a> {
    from: &'a Location,
    to: &'a Location,
    /// What the change needs in each.
    wanted: (u64, u64),
    moved: &'a Arc<Dentry>,
    back: Option<&'a Arc<Dentry>>,
}

fn check_change(domain: &Domain, change: &Change<'_>) -> Result<()> {
    let all = (change.wanted.0 | change.wanted.1) | fs::ALL;
    let sides = (granted(domain, change.from, all)?, granted(domain, change.to, all)?);
    let (Some(from), Some(to)) = sides else { return Ok(()) };
    let own = |dentry: &Arc<Dentry>| -> Result<Moved> {
        let mut own = domain.start();
        domain.visit(&mut own, identity_of(change.from, dentry)?);
        Ok(Moved { own, is_directory: dentry.is_directory() })
    };
    let back = change.back.map(own).transpose()?;
    let result = check_move(&from, &to, change.wanted, &own(change.moved)?, back.as_ref());
    result.map_err(|refused| match refused {
        Refused::Access => Errno::EACCES,
        Refused::CrossDevice => Errno::EXDEV,
    })
}

pub(super) fn path_link((who, object, to, _): hooks::path_link::Given<'_>) -> Result<()> {
    let Some(domain) = &who.subject.domain else { return Ok(()) };
    let wanted = make_again(&object.dentry)?;
    let parent = object.dentry.parent();
    let Some(parent) = parent else { return check(&who.subject, to, wanted) };
    if Arc::ptr_eq(&parent, &to.dentry) {
        return check(&who.subject, to, wanted);
    }
    if !domain.handles(wanted | fs::REFER) {
        return Ok(());
    }
    let from = Location::new(object.mount.clone(), parent);
    let (wanted, moved) = ((0, wanted), &object.dentry);
    check_change(domain, &Change { from: &from, to, wanted, moved, back: None })
}

pub(super) fn path_rename((who, rename): hooks::path_rename::Given<'_>) -> Result<()> {
    let Some(domain) = &who.subject.domain else { return Ok(()) };
    let Rename { from, moved, to, replaced, exchange, leaves_mark, .. } = *rename;
    let mut there = make_again(moved)?;
    if let Some(replaced) = replaced {
        there |= remove(replaced.is_directory());
    }
    let mut here = remove(moved.is_directory());
    let back = replaced.filter(|_| exchange);
    if let Some(back) = back {
        here |= make_again(back)?;
    }
    if leaves_mark {
        here |= fs::MAKE_REG;
    }
    if Arc::ptr_eq(&from.dentry, &to.dentry) {
        return check(&who.subject, to, here | there);
    }
    if !domain.handles(here | there | fs::REFER) {
        return Ok(());
    }
    check_change(domain, &Change { from, to, wanted: (here, there), moved, back })
}

/// EPERM for whoever is restricted in what they do with files: mounts would undo it.
fn check_mounts(who: &Subject) -> Result<()> {
    let restricted = who.domain.as_ref().is_some_and(|domain| domain.handles_files());
    if restricted { Err(Errno::EPERM) } else { Ok(()) }
}

pub(super) fn sb_mount((who,): hooks::sb_mount::Given<'_>) -> Result<()> {
    check_mounts(who)
}

pub(super) fn sb_umount((who,): hooks::sb_umount::Given<'_>) -> Result<()> {
    check_mounts(who)
}

pub(super) fn sb_pivotroot((who,): hooks::sb_pivotroot::Given<'_>) -> Result<()> {
    check_mounts(who)
}
