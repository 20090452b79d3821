//! open(2): from a path to an open file.
//!
//! Why it is hard: O_CREAT looks for a name and makes it as one step, yet follows a link to a name
//! that does not exist; and what may be opened how depends on the kind of object, the mount and the
//! caller's rights. Neighbours: `path` walks, `namei` makes, `Inode::open` gives the operations.

use alloc::sync::Arc;
use core::cell::Cell;

use abi::{Errno, Result, general as raw};

use super::file::Opening;
use super::flags::check_not_append_only;
use super::path::{Context, Last, Location, Walk, walk};
use super::permission::{self, EXECUTE, READ, Reason, WRITE};
use super::{File, FileType, SetAttributes, hooks, inotify, leases};
use crate::security::Credentials;
use crate::vfs::deny_write::{Access, ReadAccess, WriteAccess};
use crate::vfs::namei;

/// Flags that open(2) knows; others are ignored by it and refused by openat2(2).
pub const KNOWN_FLAGS: u32 = raw::O_ACCMODE
    | raw::O_CREAT
    | raw::O_EXCL
    | raw::O_NOCTTY
    | raw::O_TRUNC
    | raw::O_APPEND
    | raw::O_NONBLOCK
    | raw::O_DSYNC
    | raw::O_SYNC
    | raw::FASYNC
    | raw::O_DIRECT
    | raw::O_LARGEFILE
    | raw::O_DIRECTORY
    | raw::O_NOFOLLOW
    | raw::O_NOATIME
    | raw::O_CLOEXEC
    | raw::O_PATH
    | raw::O_TMPFILE;
/// The flags that go with O_PATH.
pub const PATH_FLAGS: u32 = raw::O_DIRECTORY | raw::O_NOFOLLOW | raw::O_PATH | raw::O_CLOEXEC;
/// The bit of O_TMPFILE that is not O_DIRECTORY.
const TMPFILE_BIT: u32 = raw::O_TMPFILE & !raw::O_DIRECTORY;

/// Those flags that open(2) takes of a program's: it ignores what it does not know, and what does
/// not go with O_PATH.
#[must_use]
pub fn taken_flags(flags: u32) -> u32 {
    let flags = whole_sync(flags & KNOWN_FLAGS | raw::O_LARGEFILE);
    if flags & raw::O_PATH != 0 { flags & PATH_FLAGS } else { flags }
}

/// The bit that is O_SYNC's alone stands for all of it.
#[must_use]
pub fn whole_sync(flags: u32) -> u32 {
    let is_meant = flags & raw::O_SYNC & !raw::O_DSYNC != 0;
    if is_meant { flags | raw::O_SYNC } else { flags }
}

/// How to open.
#[derive(Clone, Copy, Debug)]
pub struct How {
    /// open(2)'s flags.
    pub flags: u32,
    /// Permission bits of a new file, before the umask.
    pub mode: u32,
    /// Flags of the walk that go beyond open(2)'s (openat2(2)).
    pub walk: u32,
}

/// Opens the object a path names.
pub fn open(context: &Context, dirfd: i32, path: &[u8], how: &How) -> Result<Arc<File>> {
    let flags = how.flags;
    let nofollow = flags & raw::O_NOFOLLOW != 0
        || flags & (raw::O_CREAT | raw::O_EXCL) == raw::O_CREAT | raw::O_EXCL;
    let mut walk_flags = how.walk;
    if !nofollow {
        walk_flags |= walk::FOLLOW;
    }
    if flags & raw::O_DIRECTORY != 0 {
        walk_flags |= walk::DIRECTORY;
    }
    let walk = Walk::new(context, dirfd, path, walk_flags)?;
    if flags & raw::O_PATH != 0 {
        return Ok(name_only(context, walk.finish()?, flags));
    }
    if flags & TMPFILE_BIT != 0 {
        let directory = walk.finish()?;
        let location = namei::make_unnamed(context, &directory, how.mode)?;
        let granted = ask(context, &location, flags)?;
        let access = access(&location, flags)?;
        let opening = Opening { opener: opener(context), access, granted, ..Opening::default() };
        return open_inode(location, flags, opening);
    }
    if flags & raw::O_CREAT != 0 {
        return open_or_create(context, walk, how);
    }
    let location = walk.finish()?;
    open_location(context, location, flags, false)
}

/// What O_PATH makes: a descriptor that stands for a place, and does nothing.
fn name_only(context: &Context, location: Location, flags: u32) -> Arc<File> {
    let opening = Opening { opener: opener(context), ..Opening::default() };
    File::opened(super::path_file::operations(), flags & PATH_FLAGS, location, opening)
}

/// Opens what was found without a path (open_by_handle_at(2)), as [`open`] does what it comes to.
pub fn open_known(context: &Context, location: Location, flags: u32) -> Result<Arc<File>> {
    if flags & raw::O_DIRECTORY != 0 && location.file_type() != FileType::Directory {
        return Err(Errno::ENOTDIR);
    }
    if flags & raw::O_PATH != 0 {
        return Ok(name_only(context, location, flags));
    }
    open_location(context, location, flags, false)
}

fn open_or_create(context: &Context, mut walk: Walk<'_>, how: &How) -> Result<Arc<File>> {
    let exclusive = how.flags & raw::O_EXCL != 0;
    loop {
        walk.to_last()?;
        let name = match walk.last() {
            Last::Name(_, _, false) => walk.name(Errno::EISDIR)?,
            Last::Name(..) => return Err(Errno::EISDIR),
            // `.` and `..` are there already, if they may be gone to.
            _ => {
                walk.take_last()?;
                walk.check_scope()?;
                return Err(if exclusive { Errno::EEXIST } else { Errno::EISDIR });
            }
        };
        let mut created = false;
        let child = match walk.last_child()? {
            Some(_) if exclusive => return Err(Errno::EEXIST),
            Some(child) => child,
            None => {
                let directory = &walk.at;
                let found = namei::find_or_make(context, directory, name, how.mode, exclusive)?;
                created = found.1;
                found.0
            }
        };
        let follow = how.flags & raw::O_NOFOLLOW == 0;
        if walk.enter(child, follow)? {
            walk.check_scope()?;
            return open_location(context, walk.at, how.flags, created);
        }
    }
}

/// Opens an object at hand. `created`: it was made by this very call, so its mode does not matter.
pub fn open_location(
    context: &Context,
    location: Location,
    flags: u32,
    created: bool,
) -> Result<Arc<File>> {
    if !created {
        check(context, &location, flags)?;
    }
    let granted = ask(context, &location, flags)?;
    let access = access(&location, flags)?;
    leases::break_for(location.inode().as_ref(), flags)?;
    let truncates =
        !created && flags & raw::O_TRUNC != 0 && location.file_type() == FileType::Regular;
    if truncates {
        hooks::path_truncate((context, &location))?;
        permission::drop_privileges(&**location.inode(), &context.subject)?;
        let changes = SetAttributes { size: Some(0), ..SetAttributes::default() };
        permission::set_attributes(location.inode().as_ref(), &changes, Reason::Contents)?;
    }
    let dentry = location.dentry.clone();
    let opening = Opening { opener: opener(context), access, granted, is_created: created };
    let file = open_inode(location, flags, opening)?;
    if truncates {
        inotify::event(&dentry, raw::IN_MODIFY);
    }
    Ok(file)
}

/// What the policies grant to whoever opens this.
fn ask(context: &Context, location: &Location, flags: u32) -> Result<u64> {
    let granted = Cell::new(u64::MAX);
    hooks::file_open((context, location, flags, &granted))?;
    Ok(granted.get())
}

/// How an open file counts on a regular file: who writes may do so only where nobody executes it.
fn access(location: &Location, flags: u32) -> Result<Access> {
    if location.file_type() != FileType::Regular {
        return Ok(Access::Uncounted);
    }
    match flags & raw::O_ACCMODE {
        raw::O_RDONLY if leases::counts_readers() => {
            Ok(Access::Read(ReadAccess::new(location.inode().clone())))
        }
        raw::O_RDONLY | raw::O_ACCMODE => Ok(Access::Uncounted),
        _ => WriteAccess::new(location).map(Access::Write),
    }
}

fn opener(context: &Context) -> Option<Arc<Credentials>> {
    Some(context.subject.credentials.clone())
}

fn open_inode(location: Location, flags: u32, opening: Opening) -> Result<Arc<File>> {
    let operations = location.inode().clone().open(flags)?;
    let kept = flags & !(raw::O_NOCTTY | raw::O_TRUNC);
    inotify::event(&location.dentry, raw::IN_OPEN);
    let file = File::opened(operations, kept, location, opening);
    hooks::file_post_open((&file, flags))?;
    Ok(file)
}

/// Whether the caller may open the object this way.
fn check(context: &Context, location: &Location, flags: u32) -> Result<()> {
    let reads = matches!(flags & raw::O_ACCMODE, raw::O_RDONLY | raw::O_RDWR);
    let writes =
        matches!(flags & raw::O_ACCMODE, raw::O_WRONLY | raw::O_RDWR) || flags & raw::O_TRUNC != 0;
    match location.file_type() {
        FileType::Symlink => return Err(Errno::ELOOP),
        FileType::Directory
            if writes || flags & raw::O_CREAT != 0 || flags & raw::O_ACCMODE == raw::O_ACCMODE =>
        {
            return Err(Errno::EISDIR);
        }
        FileType::Directory => {}
        _ if flags & raw::O_DIRECTORY != 0 => return Err(Errno::ENOTDIR),
        FileType::CharDevice | FileType::BlockDevice
            if location.mount.flags() & raw::MS_NODEV != 0 =>
        {
            return Err(Errno::EACCES);
        }
        FileType::Regular if writes => location.mount.check_writable()?,
        _ => {}
    }
    let mut wanted = 0;
    if reads || flags & raw::O_ACCMODE == raw::O_ACCMODE {
        wanted |= READ;
    }
    if writes || flags & raw::O_ACCMODE == raw::O_ACCMODE {
        wanted |= WRITE;
    }
    let who = &context.subject;
    permission::check(location.inode().as_ref(), wanted, who)?;
    let changes_otherwise = flags & raw::O_ACCMODE != raw::O_RDONLY && flags & raw::O_APPEND == 0;
    if changes_otherwise || flags & raw::O_TRUNC != 0 {
        check_not_append_only(location.inode().as_ref())?;
    }
    if flags & raw::O_NOATIME != 0 {
        permission::check_noatime(location.inode().as_ref(), who)?;
    }
    let is_plain = || location.inode().page_cache().is_some();
    if flags & raw::O_DIRECT != 0 && !(location.file_type() == FileType::Regular && is_plain()) {
        return Err(Errno::EINVAL);
    }
    Ok(())
}

/// Opens a program to be executed: a regular file, executable, not on a noexec mount. `flags` are
/// those of execveat(2).
pub fn open_executable(
    context: &Context,
    dirfd: i32,
    path: &[u8],
    flags: u32,
) -> Result<Arc<File>> {
    let mut walk_flags = walk::FOLLOW;
    if flags & raw::AT_SYMLINK_NOFOLLOW != 0 {
        walk_flags &= !walk::FOLLOW;
    }
    if flags & raw::AT_EMPTY_PATH != 0 {
        walk_flags |= walk::EMPTY;
    }
    let location = super::path::resolve(context, dirfd, path, walk_flags)?;
    match location.file_type() {
        FileType::Symlink => return Err(Errno::ELOOP),
        FileType::Regular => {}
        _ => return Err(Errno::EACCES),
    }
    if location.mount.flags() & raw::MS_NOEXEC != 0 {
        return Err(Errno::EACCES);
    }
    permission::check(location.inode().as_ref(), EXECUTE, &context.subject)?;
    let granted = ask(context, &location, raw::O_RDONLY | hooks::EXEC)?;
    let access = access(&location, raw::O_RDONLY)?;
    leases::break_for(location.inode().as_ref(), raw::O_RDONLY)?;
    let opening = Opening { access, granted, ..Opening::default() };
    open_inode(location, raw::O_RDONLY | raw::O_LARGEFILE, opening)
}
