//! What is done to descriptors and open files: fcntl(2), flock(2), ioctl(2).

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use abi::{Errno, Result, general as raw, ioctl as cmd};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::rw::file_size;
use super::{any_file, file};
use crate::base::user::UserPtr;
use crate::fs::pseudo::PseudoInode;
use crate::fs::tmpfs::TmpInode;
use crate::io::copying::{check_copying, check_same_place};
use crate::io::io_signals::{self, OwnerEx};
use crate::net::SocketFile;
use crate::process::current;
use crate::security::{Capability, Subject};
use crate::vfs::anon::AnonInode;
use crate::vfs::flags::check_not_append_only;
use crate::vfs::locks::{self, Lock, Owner};
use crate::vfs::{Fd, File, FileType, hooks, permission};

/// Commands that linux-raw-sys does not have (fcntl(2), linux/fcntl.h).
const F_DUPFD_QUERY: u32 = raw::F_LINUX_SPECIFIC_BASE + 3;
const F_CREATED_QUERY: u32 = raw::F_LINUX_SPECIFIC_BASE + 4;
const ALL_SEALS: u32 = raw::F_SEAL_SEAL
    | raw::F_SEAL_SHRINK
    | raw::F_SEAL_GROW
    | raw::F_SEAL_WRITE
    | raw::F_SEAL_FUTURE_WRITE
    | raw::F_SEAL_EXEC;

/// How long what is written is likely to stay (F_SET_RW_HINT, fcntl(2)): a hint that is kept.
const F_GET_RW_HINT: u32 = raw::F_LINUX_SPECIFIC_BASE + 11;
const F_SET_RW_HINT: u32 = raw::F_LINUX_SPECIFIC_BASE + 12;
const HINT_MAX: u64 = 5;

/// fcntl(2).
pub fn fcntl(fd_word: u64, command_word: u32, argument_at: u64) -> Result<u64> {
    let (fd, command, argument) = (fd_word as Fd, command_word, argument_at);
    let file = any_file(fd_word)?;
    let files = || current().files();
    if is_about_descriptor(command) {
        hooks::file_fcntl((&file, command, argument))?;
    }
    match command {
        raw::F_DUPFD => return duplicate(file, argument, false),
        raw::F_DUPFD_CLOEXEC => return duplicate(file, argument, true),
        raw::F_GETFD => return Ok(files().close_on_exec(fd)?.into()),
        raw::F_SETFD => {
            let close_on_exec = argument as u32 & raw::FD_CLOEXEC != 0;
            return files().set_close_on_exec(fd, close_on_exec).map(|()| 0);
        }
        raw::F_GETFL => return Ok(file.flags().into()),
        F_DUPFD_QUERY => {
            let other = any_file(argument)?;
            return Ok(Arc::ptr_eq(&file, &other).into());
        }
        F_CREATED_QUERY => return Ok(file.is_created.into()),
        _ => {}
    }
    if file.flags() & raw::O_PATH != 0 {
        return Err(Errno::EBADF);
    }
    hooks::file_fcntl((&file, command, argument))?;
    match command {
        raw::F_SETFL => set_flags(fd, &file, argument as u32),
        raw::F_GETLK => get_lock(&file, argument, false),
        raw::F_OFD_GETLK => get_lock(&file, argument, true),
        raw::F_SETLK => set_lock(fd, &file, argument, false, false),
        raw::F_SETLKW => set_lock(fd, &file, argument, false, true),
        raw::F_OFD_SETLK => set_lock(fd, &file, argument, true, false),
        raw::F_OFD_SETLKW => set_lock(fd, &file, argument, true, true),
        raw::F_GETOWN => Ok(i64::from(io_signals::owner_number(&file)) as u64),
        raw::F_SETOWN => {
            hooks::file_set_fowner((&file,))?;
            io_signals::set_owner(&file, argument as i32).map(|()| 0)
        }
        raw::F_GETOWN_EX => {
            UserPtr::<OwnerEx>::new(argument).write(&io_signals::owner(&file)).map(|()| 0)
        }
        F_GETOWNER_UIDS => {
            UserPtr::<[u32; 2]>::new(argument).write(&io_signals::owner_uids(&file)).map(|()| 0)
        }
        raw::F_SETOWN_EX => {
            let owner = UserPtr::<OwnerEx>::new(argument).read()?;
            hooks::file_set_fowner((&file,))?;
            io_signals::own(&file, owner).map(|()| 0)
        }
        raw::F_GETSIG => Ok(io_signals::signal(&file).into()),
        raw::F_SETSIG => io_signals::set_signal(&file, argument).map(|()| 0),
        F_GET_RW_HINT => {
            let hint = file.inode().state().lifetime_hint.load(Ordering::Relaxed);
            UserPtr::<u64>::new(argument).write(&hint.into()).map(|()| 0)
        }
        F_SET_RW_HINT => set_hint(&file, argument, &current().subject()),
        raw::F_NOTIFY => io_signals::watch_directory(fd, &file, argument as u32).map(|()| 0),
        raw::F_GETLEASE => Ok(io_signals::lease(&file).into()),
        raw::F_SETLEASE => io_signals::set_lease(fd, &file, argument as u32).map(|()| 0),
        raw::F_GETPIPE_SZ => crate::io::pipe::fcntl_get_size(&file),
        raw::F_SETPIPE_SZ => crate::io::pipe::fcntl_set_size(&file, argument),
        raw::F_ADD_SEALS => add_seals(&file, argument as u32),
        raw::F_GET_SEALS => Ok(seals(&file)?.seals().ok_or(Errno::EINVAL)?.into()),
        _ => Err(Errno::EINVAL),
    }
}

/// ioctl_ficlonerange(2).
const FICLONE: u32 = 0x4004_9409;
const FICLONERANGE: u32 = 0x4020_940d;

/// No file shares its blocks with another: whatever could be cloned is told so.
fn clone_into(file: &Arc<File>, from: u64) -> Result<u64> {
    let from = any_file(from)?;
    if from.flags() & raw::O_PATH != 0 {
        return Err(Errno::EBADF);
    }
    check_same_place(&from, file)?;
    check_copying(&from, file)?;
    Err(Errno::EOPNOTSUPP)
}

/// What F_SETOWN does, of sockets (socket(7)).
const FIOSETOWN: u32 = 0x8901;
const SIOCSPGRP: u32 = 0x8902;

/// Who has set the owner of a file's signals (linux/fcntl.h); linux-raw-sys does not have it.
const F_GETOWNER_UIDS: u32 = 17;

/// Commands that take any descriptor, also one made with O_PATH.
fn is_about_descriptor(command: u32) -> bool {
    matches!(command, raw::F_DUPFD | raw::F_DUPFD_CLOEXEC | raw::F_GETFD | raw::F_SETFD)
        || matches!(command, raw::F_GETFL | F_DUPFD_QUERY | F_CREATED_QUERY)
}

fn duplicate(file: Arc<File>, from: u64, close_on_exec: bool) -> Result<u64> {
    let process = &current().process;
    let limit = process.fd_limit();
    if from >= limit as u64 || from > i32::MAX as u64 {
        return Err(Errno::EINVAL);
    }
    let fd = process.files().insert(file, close_on_exec, from as Fd, limit)?;
    Ok(fd.into())
}

fn set_flags(fd: Fd, file: &Arc<File>, flags: u32) -> Result<u64> {
    if (flags ^ file.flags()) & raw::O_APPEND != 0 {
        check_not_append_only(file.inode().as_ref())?;
    }
    let added = flags & !file.flags();
    if added & raw::O_NOATIME != 0 {
        permission::check_noatime(file.inode().as_ref(), &current().subject())?;
    }
    let is_new = added & raw::O_DIRECT != 0;
    // A memory file was never opened: nobody asked its file system.
    let is_memory = file.location.as_ref().is_none_or(|location| location.mount.is_internal());
    let is_file = !is_memory && super::is_regular(&file.inode());
    if is_new && !is_file && crate::io::pipe::of(file).is_none() {
        return Err(Errno::EINVAL);
    }
    let is_async = io_signals::set_async(file, fd, flags & raw::FASYNC != 0)?;
    file.set_flags(flags & !raw::FASYNC | if is_async { raw::FASYNC } else { 0 });
    Ok(0)
}

fn set_hint(file: &File, at: u64, subject: &Subject) -> Result<u64> {
    let inode = file.inode();
    if !permission::is_owner(&inode.metadata()?, subject) {
        return Err(Errno::EPERM);
    }
    let hint = UserPtr::<u64>::new(at).read()?;
    if hint > HINT_MAX {
        return Err(Errno::EINVAL);
    }
    inode.state().lifetime_hint.store(hint as u8, Ordering::Relaxed);
    Ok(0)
}

fn seals(file: &File) -> Result<&TmpInode> {
    let inode = file.ops_as::<TmpInode>().ok_or(Errno::EINVAL)?;
    inode.seals().map(|_| inode).ok_or(Errno::EINVAL)
}

fn add_seals(file: &File, added: u32) -> Result<u64> {
    if file.check_writable().is_err() {
        return Err(Errno::EPERM);
    }
    if added & !ALL_SEALS != 0 {
        return Err(Errno::EINVAL);
    }
    seals(file)?.add_seals(added)?;
    Ok(0)
}

// ------------------------------------------------------------------------------------------------
// Locks

/// `struct flock` (fcntl(2)).
#[derive(FromBytes, IntoBytes, Immutable, Clone, Copy)]
#[repr(C)]
struct Flock {
    kind: i16,
    whence: i16,
    pad: i32,
    start: i64,
    len: i64,
    pid: i32,
    pad2: i32,
}

/// The bytes and the owner that the structure names; for unlocking, the range only.
fn parse(file: &Arc<File>, flock: &Flock, by_file: bool) -> Result<Lock> {
    if by_file && flock.pid != 0 {
        return Err(Errno::EINVAL);
    }
    let base = match flock.whence as u32 {
        raw::SEEK_SET => 0,
        raw::SEEK_CUR => *file.position.lock() as i64,
        raw::SEEK_END => file_size(file)? as i64,
        _ => return Err(Errno::EINVAL),
    };
    let start = base.checked_add(flock.start).ok_or(Errno::EOVERFLOW)?;
    let (start, end) = match flock.len {
        0 => (start, i64::MAX),
        len if len > 0 => (start, start.checked_add(len - 1).ok_or(Errno::EOVERFLOW)?),
        len => (start.checked_add(len).ok_or(Errno::EINVAL)?, start - 1),
    };
    let start = u64::try_from(start).map_err(|_| Errno::EINVAL)?;
    let end = if end == i64::MAX { u64::MAX } else { end as u64 };
    let process = &current().process;
    let (owner, pid) = if by_file {
        (Owner::OpenFile(file.id), -1)
    } else {
        (Owner::Process(process.files().identity()), process.pid as i32)
    };
    let exclusive = flock.kind as u32 == raw::F_WRLCK;
    Ok(Lock { owner, exclusive, start, end, pid, file: file.id })
}

fn get_lock(file: &Arc<File>, at: u64, by_file: bool) -> Result<u64> {
    let at = UserPtr::<Flock>::new(at);
    let mut flock = at.read()?;
    // An open file may ask for its own (F_OFD_GETLK), by F_UNLCK.
    let asks_for_own = by_file && flock.kind as u32 == raw::F_UNLCK;
    if !asks_for_own && !matches!(flock.kind as u32, raw::F_RDLCK | raw::F_WRLCK) {
        return Err(Errno::EINVAL);
    }
    let wanted = parse(file, &flock, by_file)?;
    let find = if asks_for_own { locks::own } else { locks::conflict };
    match find(&*file.inode(), &wanted) {
        None => flock.kind = raw::F_UNLCK as i16,
        Some(lock) => {
            flock.kind = if lock.exclusive { raw::F_WRLCK } else { raw::F_RDLCK } as i16;
            flock.whence = raw::SEEK_SET as i16;
            flock.start = lock.start as i64;
            flock.len = if lock.end == u64::MAX { 0 } else { (lock.end - lock.start + 1) as i64 };
            flock.pid = lock.pid;
        }
    }
    at.write(&flock)?;
    Ok(0)
}

fn set_lock(fd: Fd, file: &Arc<File>, at: u64, by_file: bool, wait: bool) -> Result<u64> {
    let flock = UserPtr::<Flock>::new(at).read()?;
    let wanted = parse(file, &flock, by_file)?;
    let inode = file.inode();
    hooks::file_lock((file, flock.kind as u32))?;
    match flock.kind as u32 {
        raw::F_UNLCK => {
            locks::release(&*inode, &wanted);
            return Ok(0);
        }
        raw::F_RDLCK => file.check_readable()?,
        raw::F_WRLCK => file.check_writable()?,
        _ => return Err(Errno::EINVAL),
    }
    locks::acquire(&inode, &wanted, wait)?;
    // Who closes the descriptor meanwhile has found no lock to release: none may stay.
    let is_open = || current().files().get(fd).is_ok_and(|now| Arc::ptr_eq(&now, file));
    if !by_file && !is_open() {
        locks::release(&*inode, &wanted);
        return Err(Errno::EBADF);
    }
    Ok(0)
}

/// flock(2).
pub fn flock(fd: u64, operation: u32) -> Result<u64> {
    /// Mandatory locks of old: the call says yes and does nothing.
    const LOCK_MAND: u32 = 32;
    if operation & LOCK_MAND != 0 {
        return Ok(0);
    }
    if !matches!(operation & !raw::LOCK_NB, raw::LOCK_UN | raw::LOCK_SH | raw::LOCK_EX) {
        return Err(Errno::EINVAL);
    }
    let file = file(fd)?;
    let wait = operation & raw::LOCK_NB == 0;
    let owner = Owner::Flock(file.id);
    let pid = current().process.pid as i32;
    let lock = |exclusive| Lock { owner, exclusive, start: 0, end: u64::MAX, pid, file: file.id };
    let inode = file.inode();
    let kind = match operation & !raw::LOCK_NB {
        raw::LOCK_UN => raw::F_UNLCK,
        raw::LOCK_SH => raw::F_RDLCK,
        raw::LOCK_EX => raw::F_WRLCK,
        _ => return Err(Errno::EINVAL),
    };
    // Who asked for neither to read nor to write gives back only.
    let is_open = file.check_readable().is_ok() || file.check_writable().is_ok();
    if kind != raw::F_UNLCK && !is_open {
        return Err(Errno::EBADF);
    }
    hooks::file_lock((&file, kind))?;
    match kind {
        raw::F_UNLCK => locks::release(&*inode, &lock(false)),
        exclusive => locks::acquire(&inode, &lock(exclusive == raw::F_WRLCK), wait)?,
    }
    Ok(0)
}

// ------------------------------------------------------------------------------------------------
// ioctl

const FIOQSIZE: u32 = 0x5460;
const FS_IOC_FIEMAP: u32 = 0xc020_660b;
const FIBMAP: u32 = 1;

/// Whether FIONREAD tells what is left behind the position: text that is made when it is read has
/// no size, which is 0.
fn has_left(file: &File) -> bool {
    let inode = file.inode();
    let is_text = inode.is::<PseudoInode>() && inode.file_type() == FileType::Regular;
    is_text || super::is_regular(&inode)
}

/// Whether FIOQSIZE tells a size (linux/fs.h).
fn has_size(file: &File) -> bool {
    let inode = file.inode();
    let kind = inode.file_type();
    let is_plain = matches!(kind, FileType::Regular | FileType::Directory);
    is_plain && !is_numberless(file) && file.is_seekable()
}

/// Whether it is one of eventfd(2) and its kin, which lie in no file system with blocks.
fn is_numberless(file: &File) -> bool {
    let inode = file.inode();
    inode.downcast_ref::<AnonInode>().is_some_and(AnonInode::is_unnumbered)
}

/// FIBMAP: no file system tells where its blocks are. EPERM, EFAULT.
fn block_of(argument: u64) -> Result<u64> {
    if !current().subject().capable(Capability::SysRawio) {
        return Err(Errno::EPERM);
    }
    UserPtr::<i32>::new(argument).read()?;
    Err(Errno::EINVAL)
}

/// ioctl(2): what every file has, then the file's own.
pub fn ioctl(fd_word: u64, request: u32, argument_at: u64) -> Result<u64> {
    let (fd, command, argument) = (fd_word as Fd, request, argument_at);
    let file = file(fd_word)?;
    hooks::file_ioctl((&file, command))?;
    let flag = |bit: u32| -> Result<u64> {
        let on = UserPtr::<i32>::new(argument).read()? != 0;
        let flags = if on { file.flags() | bit } else { file.flags() & !bit };
        file.set_flags(flags);
        Ok(0)
    };
    match command {
        cmd::FIOCLEX | cmd::FIONCLEX => {
            let on = command == cmd::FIOCLEX;
            current().files().set_close_on_exec(fd, on)?;
            Ok(0)
        }
        cmd::FIONBIO => flag(raw::O_NONBLOCK),
        cmd::FIOASYNC => {
            let on = UserPtr::<i32>::new(argument).read()? != 0;
            let changes = on != (file.flags() & raw::FASYNC != 0);
            if changes && !file.ops().has_io_signals() {
                return Err(Errno::ENOTTY);
            }
            let flags = file.flags() & !raw::FASYNC;
            set_flags(fd, &file, if on { flags | raw::FASYNC } else { flags })
        }
        FIOQSIZE if has_size(&file) => {
            // What it takes, in blocks of 512 bytes, and not where it ends.
            let bytes = file.inode().metadata()?.blocks * 512;
            UserPtr::<u64>::new(argument).write(&bytes).map(|()| 0)
        }
        FS_IOC_FIEMAP => Err(Errno::EOPNOTSUPP),
        FIBMAP if file.inode().file_type() == FileType::Regular => block_of(argument),
        cmd::FIONREAD if has_left(&file) => {
            // Negative behind the end, and as many bits of it as an int has.
            let left = file.inode().metadata()?.size.wrapping_sub(*file.position.lock());
            UserPtr::<i32>::new(argument).write(&(left as i32))?;
            Ok(0)
        }
        cmd::FIGETBSZ => {
            let size = file.inode().metadata()?.block_size;
            UserPtr::<i32>::new(argument).write(&(size as i32))?;
            Ok(0)
        }
        FICLONE => clone_into(&file, argument),
        FICLONERANGE => {
            let range = UserPtr::<[u64; 4]>::new(argument).read()?;
            clone_into(&file, range[0])
        }
        FIOSETOWN | SIOCSPGRP if file.ops_as::<SocketFile>().is_some() => {
            let owner = UserPtr::<i32>::new(argument).read()?;
            hooks::file_set_fowner((&file,))?;
            io_signals::set_owner(&file, owner).map(|()| 0)
        }
        _ => match super::flags::ioctl(&file, command, argument) {
            Some(answer) => answer,
            None => file.ops().ioctl(&file, command, argument),
        },
    }
}
