//! Descriptors: made, doubled, closed. open(2), openat2(2), close(2), close_range(2), dup(2),
//! memfd_create(2), umask(2).

use core::sync::atomic::Ordering;

use abi::{Errno, Result, general as raw};
use machine::task::Current;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::{PathName, any_file};
use crate::base::args::Word;
use crate::base::user::{UserPtr, read_c_string};
use crate::fs::memfd;
use crate::process::{Own, Thread, current, give_file, own};
use crate::vfs::open::{How, KNOWN_FLAGS, PATH_FLAGS, open as open_path, taken_flags, whole_sync};
use crate::vfs::path::{self, Context, FsContext, walk};
use crate::vfs::{Fd, hooks};

/// `struct open_how` (openat2(2)).
#[derive(FromBytes, IntoBytes, Immutable, Clone, Copy, Default)]
#[repr(C)]
struct OpenHow {
    flags: u64,
    mode: u64,
    resolve: u64,
}

/// open(2).
pub fn open(path: u64, flags: u32, mode: u32) -> Result<u64> {
    open_fd(raw::AT_FDCWD, path, flags, mode)
}

/// openat(2).
pub fn openat(directory: i32, path: u64, flags: u32, mode: u32) -> Result<u64> {
    open_fd(directory, path, flags, mode)
}

/// creat(2).
pub fn creat(path: u64, mode: u32) -> Result<u64> {
    let flags = raw::O_CREAT | raw::O_WRONLY | raw::O_TRUNC;
    open_fd(raw::AT_FDCWD, path, flags, mode)
}

fn open_fd(dirfd: i32, path: u64, flags: u32, mode: u32) -> Result<u64> {
    let flags = taken_flags(flags);
    check_together(flags)?;
    let path = PathName::read(path)?;
    finish(dirfd, &path, &How { flags, mode: mode & 0o7777, walk: 0 })
}

/// The checks that open(2) and openat2(2) share, the opening, and the descriptor.
fn finish(dirfd: i32, path: &PathName, how: &How) -> Result<u64> {
    let flags = how.flags;
    check_together(flags)?;
    let context = Context::current();
    let file = open_path(&context, dirfd, path.bytes(), how).map_err(|error| {
        // That there is no room for it comes before all that is wrong with the file.
        let process = &current().process;
        let is_full = process.files().is_full(process.fd_limit());
        if is_full { Errno::EMFILE } else { error }
    })?;
    give_file(file, flags & raw::O_CLOEXEC != 0)
}

/// EINVAL for flags that exclude each other, before anything is looked up.
fn check_together(flags: u32) -> Result<()> {
    let unnamed = raw::O_TMPFILE & !raw::O_DIRECTORY;
    if flags & unnamed != 0 {
        let writes = flags & raw::O_ACCMODE != raw::O_RDONLY;
        if flags & raw::O_TMPFILE != raw::O_TMPFILE || !writes || flags & raw::O_CREAT != 0 {
            return Err(Errno::EINVAL);
        }
    }
    if flags & (raw::O_CREAT | raw::O_DIRECTORY) == raw::O_CREAT | raw::O_DIRECTORY {
        return Err(Errno::EINVAL);
    }
    Ok(())
}

/// openat2(2).
pub fn openat2(directory: i32, path: u64, how_at: u64, size: usize) -> Result<u64> {
    if size < size_of::<OpenHow>() {
        return Err(Errno::EINVAL);
    }
    if size > 4096 {
        return Err(Errno::E2BIG);
    }
    let how = UserPtr::<OpenHow>::new(how_at).read()?;
    let rest = size - size_of::<OpenHow>();
    let rest = UserPtr::<u8>::new(how_at + size_of::<OpenHow>() as u64).read_many(rest)?;
    if rest.iter().any(|&byte| byte != 0) {
        return Err(Errno::E2BIG);
    }
    let flags = u32::try_from(how.flags).map_err(|_| Errno::EINVAL)?;
    let makes = flags & (raw::O_CREAT | raw::O_TMPFILE & !raw::O_DIRECTORY) != 0;
    if flags & !KNOWN_FLAGS != 0
        || flags & raw::O_PATH != 0 && flags & !PATH_FLAGS != 0
        || how.mode & !0o7777 != 0
        || how.mode != 0 && !makes
    {
        return Err(Errno::EINVAL);
    }
    let walk = resolve_flags(how.resolve)?;
    check_together(flags)?;
    let flags = whole_sync(flags);
    let is_cached = how.resolve & u64::from(raw::RESOLVE_CACHED) != 0;
    if is_cached && (makes || flags & raw::O_TRUNC != 0) {
        return Err(Errno::EAGAIN);
    }
    let path = PathName::read(path)?;
    let flags = flags | raw::O_LARGEFILE;
    let opened = finish(directory, &path, &How { flags, mode: how.mode as u32, walk });
    // Names are looked up in memory; that there is no such name is not remembered, whatever its
    // length.
    opened.map_err(|error| match error {
        Errno::ENOENT | Errno::ENAMETOOLONG if is_cached => Errno::EAGAIN,
        // Nor is it known on the way that something is no directory, or closed to the caller: that
        // is said of what the path begins with, and of what it leads to.
        Errno::ENOTDIR | Errno::EACCES if is_cached && !is_reached(directory, &path, walk) => {
            Errno::EAGAIN
        }
        error => error,
    })
}

/// Whether there is something at the end of the path, or the beginning is no directory.
fn is_reached(directory: i32, path: &PathName, walk_flags: u32) -> bool {
    let bytes = path.bytes();
    let end = bytes.iter().rposition(|&byte| byte != b'/').map_or(bytes.len(), |last| last + 1);
    let context = Context::current();
    let is_relative = bytes.first() != Some(&b'/');
    let begins = || path::resolve(&context, directory, b".", 0).is_ok();
    if is_relative && directory != raw::AT_FDCWD && !begins() {
        return true;
    }
    path::resolve(&context, directory, &bytes[..end], walk_flags).is_ok()
}

fn resolve_flags(resolve: u64) -> Result<u32> {
    const TABLE: [(u32, u32); 5] = [
        (raw::RESOLVE_NO_XDEV, walk::NO_XDEV),
        (raw::RESOLVE_NO_MAGICLINKS, walk::NO_MAGIC),
        (raw::RESOLVE_NO_SYMLINKS, walk::NO_LINKS),
        (raw::RESOLVE_BENEATH, walk::BENEATH),
        (raw::RESOLVE_IN_ROOT, walk::IN_ROOT),
    ];
    let mut left = u32::try_from(resolve).map_err(|_| Errno::EINVAL)? & !raw::RESOLVE_CACHED;
    let mut flags = 0;
    for (resolve, walk) in TABLE {
        if left & resolve != 0 {
            flags |= walk;
        }
        left &= !resolve;
    }
    let both = walk::BENEATH | walk::IN_ROOT;
    if left != 0 || flags & both == both { Err(Errno::EINVAL) } else { Ok(flags) }
}

/// close(2).
pub fn close(thread: Current<Thread>, fd: u32) -> Word {
    let file = Own::with_files(thread, |files| files.remove(fd).ok_or(Errno::EBADF));
    file.map(|_| 0).into()
}

/// Flags of close_range(2) (linux/close_range.h).
const CLOSE_RANGE_UNSHARE: u32 = 1 << 1;
const CLOSE_RANGE_CLOEXEC: u32 = 1 << 2;

/// close_range(2).
pub fn close_range(first: u32, last: u32, flags: u32) -> Result<u64> {
    let known = CLOSE_RANGE_UNSHARE | CLOSE_RANGE_CLOEXEC;
    if flags & !known != 0 || first > last {
        return Err(Errno::EINVAL);
    }
    let thread = current();
    if flags & CLOSE_RANGE_UNSHARE != 0 {
        own::unshare_files(thread)?;
    }
    let files = thread.files();
    let within = |fd: Fd| fd >= first && fd <= last;
    if flags & CLOSE_RANGE_CLOEXEC != 0 {
        for fd in files.list().into_iter().filter(|&fd| within(fd)) {
            // Another thread may have closed it since.
            let _ = files.set_close_on_exec(fd, true);
        }
    } else {
        drop(files.remove_where(|fd, _| within(fd)));
    }
    Ok(0)
}

/// dup(2).
pub fn dup(fd: u64) -> Result<u64> {
    give_file(any_file(fd)?, false)
}

/// dup2(2).
pub fn dup2(old_at: u64, new_at: u64) -> Result<u64> {
    let (old, new) = (old_at as Fd, new_at as Fd);
    if old == new {
        any_file(old_at)?;
        return Ok(new.into());
    }
    dup_to(old, new, false)
}

/// dup3(2).
pub fn dup3(old_at: u64, new_at: u64, flag_word: u32) -> Result<u64> {
    let (old, new, flags) = (old_at as Fd, new_at as Fd, flag_word);
    if flags & !raw::O_CLOEXEC != 0 || old == new {
        return Err(Errno::EINVAL);
    }
    dup_to(old, new, flags & raw::O_CLOEXEC != 0)
}

fn dup_to(old: Fd, new: Fd, close_on_exec: bool) -> Result<u64> {
    let process = &current().process;
    let files = process.files();
    let file = files.get(old)?;
    let replaced = files.replace(new, file, close_on_exec, process.fd_limit())?;
    drop(replaced);
    Ok(new.into())
}

/// umask(2).
pub fn umask(thread: Current<Thread>, mask: u32) -> Word {
    let set = |own: &FsContext| own.umask.swap(mask & 0o777, Ordering::Relaxed);
    Own::with_fs(thread, set).into()
}

/// Longest name of a memfd, without its NUL (memfd_create(2)).
const MEMFD_NAME_MAX: usize = 249;

/// memfd_create(2).
pub fn memfd_create(name: u64, flags: u32) -> Result<u64> {
    let known = raw::MFD_CLOEXEC | raw::MFD_ALLOW_SEALING | raw::MFD_NOEXEC_SEAL | raw::MFD_EXEC;
    let both = raw::MFD_NOEXEC_SEAL | raw::MFD_EXEC;
    if flags & !known != 0 || flags & both == both {
        return Err(Errno::EINVAL);
    }
    let name = read_c_string(name, MEMFD_NAME_MAX + 1, Errno::EINVAL)?;
    let who = current().credentials();
    let noexec = flags & raw::MFD_NOEXEC_SEAL != 0;
    let mode = if noexec { 0o666 } else { 0o777 };
    let inode = memfd::make(mode, who.fsuid, who.fsgid)?;
    hooks::inode_init_security_anon((inode.as_ref(),))?;
    inode.set_seals(match (noexec, flags & raw::MFD_ALLOW_SEALING != 0) {
        (true, _) => raw::F_SEAL_EXEC,
        (false, true) => 0,
        (false, false) => raw::F_SEAL_SEAL,
    });
    let shown = [b"/memfd:", name.as_slice(), b" (deleted)"].concat();
    let file = memfd::open(inode, &shown)?;
    give_file(file, flags & raw::MFD_CLOEXEC != 0)
}
