//! Attributes changed: chmod(2), chown(2), utimensat(2), truncate(2), fallocate(2), fsync(2).

use alloc::sync::Arc;

use abi::{Errno, Result, general as raw};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::names::attributes_changed;
use super::{CWD, file, resolve_at};
use crate::base::time::realtime_ns;
use crate::base::user::UserPtr;
use crate::io::transfer::is_syncable;
use crate::process::current;
use crate::process::pidfd::PidFile;
use crate::process::signal::send_to_current;
use crate::security::{Capability, Resource, Subject};
use crate::vfs::anon::AnonInode;
use crate::vfs::deny_write::WriteAccess;
use crate::vfs::path::{Context, Location};
use crate::vfs::permission::{self, Reason, WRITE, is_owner};
use crate::vfs::{File, FileType, Metadata, SetAttributes, flags, hooks, inotify, leases};

const NS: i64 = 1_000_000_000;
/// Advice numbers of fadvise64(2) end here.
const FADVISE_MAX: u32 = raw::POSIX_FADV_NOREUSE;

/// The place behind a descriptor whose attributes are to change; objects without a name get one
/// that nobody else sees.
fn place_of(file: &File) -> Location {
    match &file.location {
        Some(location) => location.clone(),
        None => crate::vfs::anon::location(file.ops().inode()),
    }
}

// ------------------------------------------------------------------------------------------------
// Mode and owner

/// chmod(2).
pub fn chmod(path: u64, mode: u32) -> Result<u64> {
    let (context, location) = resolve_at(CWD, path, 0, true)?;
    change_mode(&context.subject, &location, mode)
}

/// fchmod(2).
pub fn fchmod(fd: u64, mode: u32) -> Result<u64> {
    let file = file(fd)?;
    change_mode(&current().subject(), &place_of(&file), mode)
}

/// fchmodat(2), which has no flags.
pub fn fchmodat(directory: u64, path: u64, mode: u32) -> Result<u64> {
    let (context, location) = resolve_at(directory, path, 0, true)?;
    change_mode(&context.subject, &location, mode)
}

/// fchmodat2(2).
pub fn fchmodat2(directory: u64, path: u64, mode: u32, flags: u64) -> Result<u64> {
    let flags = super::check_flags(flags, raw::AT_SYMLINK_NOFOLLOW | raw::AT_EMPTY_PATH)?;
    let (context, location) = resolve_at(directory, path, flags, true)?;
    change_mode(&context.subject, &location, mode)
}

fn change_mode(who: &Subject, location: &Location, mode: u32) -> Result<u64> {
    location.mount.check_writable()?;
    if matches!(location.file_type(), FileType::Symlink | FileType::Anonymous) {
        return Err(Errno::EOPNOTSUPP);
    }
    hooks::path_chmod((who, location, mode & 0o7777))?;
    let of = location.inode().metadata()?;
    if !is_owner(&of, who) {
        return Err(Errno::EPERM);
    }
    let mut mode = mode & 0o7777;
    if !who.in_group(of.gid) && !who.capable(Capability::Fsetid) {
        mode &= !0o2000;
    }
    let changes = SetAttributes { mode: Some(mode), ..SetAttributes::default() };
    permission::set_attributes(location.inode().as_ref(), &changes, Reason::Mode)?;
    location.inode().state().set_plain(false);
    attributes_changed(location);
    Ok(0)
}

/// chown(2).
pub fn chown(path: u64, owner: u32, group: u32) -> Result<u64> {
    let (context, location) = resolve_at(CWD, path, 0, true)?;
    change_owner(&context.subject, &location, owner, group)
}

/// lchown(2).
pub fn lchown(path: u64, owner: u32, group: u32) -> Result<u64> {
    let (context, location) = resolve_at(CWD, path, 0, false)?;
    change_owner(&context.subject, &location, owner, group)
}

/// fchown(2).
pub fn fchown(fd: u64, owner: u32, group: u32) -> Result<u64> {
    let file = file(fd)?;
    let who = current().subject();
    change_owner(&who, &place_of(&file), owner, group)
}

/// fchownat(2).
pub fn fchownat(directory: u64, path: u64, owner: u32, group: u32, flags: u64) -> Result<u64> {
    let flags = super::check_flags(flags, raw::AT_SYMLINK_NOFOLLOW | raw::AT_EMPTY_PATH)?;
    let (context, location) = resolve_at(directory, path, flags, true)?;
    change_owner(&context.subject, &location, owner, group)
}

/// `u32::MAX` leaves an id as it is.
fn change_owner(who: &Subject, location: &Location, uid: u32, gid: u32) -> Result<u64> {
    location.mount.check_writable()?;
    if location.file_type() == FileType::Anonymous {
        return Err(Errno::EOPNOTSUPP);
    }
    hooks::path_chown((who, location, uid, gid))?;
    let of = location.inode().metadata()?;
    let uid = (uid != u32::MAX).then_some(uid);
    let gid = (gid != u32::MAX).then_some(gid);
    if !who.capable(Capability::Chown) {
        let owns = who.fsuid == of.uid;
        let uid_stays = uid.is_none_or(|uid| uid == of.uid);
        let gid_fits = gid.is_none_or(|gid| gid == of.gid || who.in_group(gid));
        if uid.is_some() && !(owns && uid_stays) || gid.is_some() && !(owns && gid_fits) {
            return Err(Errno::EPERM);
        }
    }
    let mode = (of.file_type != FileType::Directory).then(|| without_privilege(&of));
    let mode = mode.filter(|&mode| mode != of.mode);
    let changes = SetAttributes { mode, uid, gid, ..SetAttributes::default() };
    let why = Reason::Owner { is_given: uid.is_some() || gid.is_some() };
    permission::set_attributes(location.inode().as_ref(), &changes, why)?;
    location.inode().state().set_plain(false);
    attributes_changed(location);
    Ok(0)
}

/// A program's mode without set-user-ID and set-group-ID (chown(2)).
fn without_privilege(of: &Metadata) -> u32 {
    let group = if of.mode & 0o010 != 0 { 0o2000 } else { 0 };
    of.mode & !0o4000 & !group
}

// ------------------------------------------------------------------------------------------------
// Times

/// `struct timespec`.
#[derive(FromBytes, IntoBytes, Immutable, Clone, Copy)]
#[repr(C)]
pub struct Timespec {
    sec: i64,
    nsec: i64,
}

/// Times to set; None leaves a time as it is.
struct Times {
    atime_ns: Option<i64>,
    mtime_ns: Option<i64>,
    /// Both are "now", which whoever may write to the file may set.
    now: bool,
}

impl Times {
    fn now() -> Times {
        let now_ns = realtime_ns() as i64;
        Times { atime_ns: Some(now_ns), mtime_ns: Some(now_ns), now: true }
    }

    fn chosen(access: Timespec, change: Timespec) -> Result<Times> {
        let is_now = |time: &Timespec| time.nsec == i64::from(raw::UTIME_NOW);
        Ok(Times {
            now: is_now(&access) && is_now(&change),
            atime_ns: chosen_time(access)?,
            mtime_ns: chosen_time(change)?,
        })
    }

    fn explicit(atime_ns: i64, mtime_ns: i64) -> Times {
        Times { atime_ns: Some(atime_ns), mtime_ns: Some(mtime_ns), now: false }
    }
}

/// utimensat(2). A null path means the descriptor itself.
pub fn utimensat(
    directory: u64,
    path: u64,
    times_at: UserPtr<[Timespec; 2]>,
    flags: u64,
) -> Result<u64> {
    let known = raw::AT_SYMLINK_NOFOLLOW | raw::AT_EMPTY_PATH;
    // That a time is none is said after what is wrong with the path.
    let times = match times_at.non_null() {
        None => Ok(Times::now()),
        Some(at) => {
            let [access, change] = at.read()?;
            let omit = |time: &Timespec| time.nsec == i64::from(raw::UTIME_OMIT);
            if omit(&access) && omit(&change) {
                return Ok(0);
            }
            Times::chosen(access, change)
        }
    };
    if path == 0 && directory as i32 != raw::AT_FDCWD {
        super::check_flags(flags, 0)?;
        let file = file(directory)?;
        return change_times(&Context::current(), &place_of(&file), &times?);
    }
    let known_flags = super::check_flags(flags, known)?;
    let (context, location) = resolve_at(directory, path, known_flags, true)?;
    change_times(&context, &location, &times?)
}

fn chosen_time(time: Timespec) -> Result<Option<i64>> {
    match time.nsec {
        nsec if nsec == i64::from(raw::UTIME_NOW) => Ok(Some(realtime_ns() as i64)),
        nsec if nsec == i64::from(raw::UTIME_OMIT) => Ok(None),
        nsec @ 0..NS => Ok(Some(time.sec.saturating_mul(NS).saturating_add(nsec))),
        _ => Err(Errno::EINVAL),
    }
}

/// utime(2): whole seconds.
pub fn utime(path: u64, times_at: UserPtr<[i64; 2]>) -> Result<u64> {
    let times = match times_at.non_null() {
        None => Times::now(),
        Some(at) => {
            let [access, change] = at.read()?;
            Times::explicit(access.saturating_mul(NS), change.saturating_mul(NS))
        }
    };
    let (context, location) = resolve_at(CWD, path, 0, true)?;
    change_times(&context, &location, &times)
}

/// utimes(2): microseconds.
pub fn utimes(path: u64, times: u64) -> Result<u64> {
    set_microseconds(CWD, path, times)
}

/// futimesat(2).
pub fn futimesat(directory: u64, path: u64, times: u64) -> Result<u64> {
    if path != 0 || directory as i32 == raw::AT_FDCWD {
        return set_microseconds(directory, path, times);
    }
    // Without a path it is about the descriptor.
    let times = microseconds(times)?;
    change_times(&Context::current(), &place_of(&*file(directory)?), &times)
}

fn set_microseconds(dirfd: u64, path: u64, times: u64) -> Result<u64> {
    let times = microseconds(times)?;
    let (context, location) = resolve_at(dirfd, path, 0, true)?;
    change_times(&context, &location, &times)
}

/// The times of utimes(2) at this address. EINVAL.
fn microseconds(times: u64) -> Result<Times> {
    Ok(match UserPtr::<[i64; 4]>::new(times).non_null() {
        None => Times::now(),
        Some(at) => {
            let [access, access_us, change, change_us] = at.read()?;
            let range = 0..1_000_000;
            if !range.contains(&access_us) || !range.contains(&change_us) {
                return Err(Errno::EINVAL);
            }
            let ns = |sec: i64, us: i64| sec.saturating_mul(NS).saturating_add(us * 1000);
            Times::explicit(ns(access, access_us), ns(change, change_us))
        }
    })
}

fn change_times(context: &Context, location: &Location, times: &Times) -> Result<u64> {
    location.mount.check_writable()?;
    let inode = location.inode().as_ref();
    if !times.now && inode.file_type() == FileType::Anonymous {
        return Err(Errno::EOPNOTSUPP);
    }
    let of = inode.metadata()?;
    if !is_owner(&of, &context.subject) {
        if !times.now {
            return Err(Errno::EPERM);
        }
        permission::check(inode, WRITE, &context.subject)?;
    }
    let changes = SetAttributes {
        atime_ns: times.atime_ns,
        mtime_ns: times.mtime_ns,
        ..SetAttributes::default()
    };
    permission::set_attributes(inode, &changes, Reason::Times { are_now: times.now })?;
    attributes_changed(location);
    Ok(0)
}

// ------------------------------------------------------------------------------------------------
// Size and contents

/// truncate(2).
pub fn truncate(path: u64, length: u64) -> Result<u64> {
    let size = check_size(length)?;
    let (context, location) = resolve_at(CWD, path, 0, true)?;
    match location.file_type() {
        FileType::Regular => {}
        FileType::Directory => return Err(Errno::EISDIR),
        _ => return Err(Errno::EINVAL),
    }
    location.mount.check_writable()?;
    permission::check(location.inode().as_ref(), WRITE, &context.subject)?;
    flags::check_not_append_only(location.inode().as_ref())?;
    hooks::path_truncate((&context, &location))?;
    let _access = WriteAccess::new(&location)?;
    leases::break_for(location.inode().as_ref(), raw::O_WRONLY)?;
    resize(&location, size)
}

/// ftruncate(2).
pub fn ftruncate(fd: u64, length: u64) -> Result<u64> {
    let size = check_size(length)?;
    let file = file(fd)?;
    if file.ops_as::<PidFile>().is_some() {
        return Err(Errno::EOPNOTSUPP);
    }
    let location = file.location.clone().ok_or(Errno::EINVAL)?;
    if location.file_type() != FileType::Regular || file.check_writable().is_err() {
        return Err(Errno::EINVAL);
    }
    flags::check_not_append_only(location.inode().as_ref())?;
    hooks::file_truncate((&file,))?;
    resize(&location, size)
}

fn check_size(size: u64) -> Result<u64> {
    if size > i64::MAX as u64 { Err(Errno::EINVAL) } else { Ok(size) }
}

/// EFBIG, and SIGXFSZ, for a file that would get longer than RLIMIT_FSIZE allows.
fn check_size_limit(size: u64) -> Result<()> {
    if size > current().process.limit(Resource::FileSize) {
        send_to_current(raw::SIGXFSZ);
        return Err(Errno::EFBIG);
    }
    Ok(())
}

fn resize(location: &Location, size: u64) -> Result<u64> {
    if size > location.inode().metadata()?.size {
        check_size_limit(size)?;
    }
    permission::drop_privileges(&**location.inode(), &current().subject())?;
    let changes = SetAttributes { size: Some(size), ..SetAttributes::default() };
    permission::set_attributes(location.inode().as_ref(), &changes, Reason::Contents)?;
    inotify::event(&location.dentry, raw::IN_MODIFY);
    Ok(0)
}

/// fallocate(2).
pub fn fallocate(fd: u64, mode: u32, offset: i64, len: i64) -> Result<u64> {
    let file = file(fd)?;
    let (Ok(offset), Ok(len)) = (u64::try_from(offset), u64::try_from(len)) else {
        return Err(Errno::EINVAL);
    };
    if len == 0 {
        return Err(Errno::EINVAL);
    }
    check_allocate_mode(mode)?;
    file.check_writable()?;
    let inode = file.inode();
    if inode.downcast_ref::<AnonInode>().is_some_and(AnonInode::is_pidfd)
        || inode.state().is_immutable()
    {
        return Err(Errno::EPERM);
    }
    if mode & !raw::FALLOC_FL_KEEP_SIZE != 0 {
        flags::check_not_append_only(inode.as_ref())?;
    }
    match inode.file_type() {
        FileType::Regular => {}
        FileType::Directory => return Err(Errno::EISDIR),
        FileType::Fifo => return Err(Errno::ESPIPE),
        _ => return Err(Errno::ENODEV),
    }
    if offset.checked_add(len).is_none_or(|end| end > i64::MAX as u64) {
        return Err(Errno::EFBIG);
    }
    hooks::file_permission((&file, WRITE))?;
    // What is kept behind the end takes room as what makes the file longer.
    let takes_room = mode & raw::FALLOC_FL_PUNCH_HOLE == 0;
    if takes_room && offset + len > inode.page_cache().map_or(0, |cache| cache.size()) {
        check_size_limit(offset + len)?;
    }
    inode.allocate(mode, offset, len)?;
    // Of what was refused nothing has changed.
    file.drop_privileges(|| current().subject())?;
    if let Some(location) = &file.location {
        inotify::event(&location.dentry, raw::IN_MODIFY);
    }
    Ok(0)
}

/// Which flags go together (fallocate(2)).
fn check_allocate_mode(mode: u32) -> Result<()> {
    let known = raw::FALLOC_FL_KEEP_SIZE
        | raw::FALLOC_FL_PUNCH_HOLE
        | raw::FALLOC_FL_COLLAPSE_RANGE
        | raw::FALLOC_FL_ZERO_RANGE
        | raw::FALLOC_FL_INSERT_RANGE
        | raw::FALLOC_FL_UNSHARE_RANGE;
    let kind = mode & !raw::FALLOC_FL_KEEP_SIZE;
    let keeps = mode & raw::FALLOC_FL_KEEP_SIZE != 0;
    if mode & !known != 0 || kind.count_ones() > 1 || kind == raw::FALLOC_FL_PUNCH_HOLE && !keeps {
        return Err(Errno::EOPNOTSUPP);
    }
    let shifts = raw::FALLOC_FL_COLLAPSE_RANGE | raw::FALLOC_FL_INSERT_RANGE;
    if kind & shifts != 0 && keeps { Err(Errno::EINVAL) } else { Ok(()) }
}

/// fsync(2) and fdatasync(2).
pub fn fsync(fd: u64) -> Result<u64> {
    sync_file(&file(fd)?)
}

fn sync_file(file: &Arc<File>) -> Result<u64> {
    if !is_syncable(file) {
        return Err(Errno::EINVAL);
    }
    file.inode().sync().map(|()| 0)
}

/// sync_file_range(2): writes the whole file back.
pub fn sync_file_range(fd: u64, offset: i64, len: i64, flags: u32) -> Result<u64> {
    let file = file(fd)?;
    if flags & !7 != 0 || offset < 0 || len < 0 || offset.checked_add(len).is_none() {
        return Err(Errno::EINVAL);
    }
    if file.ops_as::<PidFile>().is_some() {
        return Ok(0);
    }
    let inode = file.inode();
    let has_data = matches!(inode.file_type(), FileType::Regular | FileType::Directory);
    if !file.is_seekable() || !has_data {
        return Err(Errno::ESPIPE);
    }
    inode.sync()?;
    Ok(0)
}

/// sync(2).
pub fn sync() -> Result<u64> {
    for mount in crate::vfs::mount::all() {
        // sync(2) has no way to report an error; fsync(2) of the file does.
        let _ = mount.file_system().sync();
    }
    Ok(0)
}

/// syncfs(2).
pub fn syncfs(fd: u64) -> Result<u64> {
    file(fd)?.inode().file_system().sync()?;
    Ok(0)
}

/// fadvise64(2): the advice is checked, and not needed.
pub fn fadvise64(fd: u64, _offset: u64, length: i64, advice: u32) -> Result<u64> {
    let file = file(fd)?;
    if file.inode().file_type() == FileType::Fifo {
        return Err(Errno::ESPIPE);
    }
    if advice > FADVISE_MAX || length < 0 { Err(Errno::EINVAL) } else { Ok(0) }
}

/// readahead(2): reads happen in large steps anyway.
pub fn readahead(fd: u64, _offset: u64, count: u64) -> Result<u64> {
    let file = file(fd)?;
    file.check_readable()?;
    let is_file = file.inode().file_type() == FileType::Regular && file.is_seekable();
    if is_file && count <= i64::MAX as u64 { Ok(0) } else { Err(Errno::EINVAL) }
}
