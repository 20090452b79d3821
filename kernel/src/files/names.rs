//! The tree of names: mkdir(2), rmdir(2), unlink(2), rename(2), link(2), symlink(2), readlink(2),
//! mknod(2). The work is in `fs::tree`.

use alloc::string::ToString;
use alloc::sync::Arc;
use alloc::vec::Vec;

use abi::{Errno, Result, general as raw};

use super::{CWD, PathName, any_file, check_flags, walk_flags};
use crate::base::user::UserPtr;
use crate::security::Capability;
use crate::vfs::anon::AnonInode;
use crate::vfs::namei::{self as tree, Make};
use crate::vfs::path::{self, Context};
use crate::vfs::{FileType, Inode, hooks, inotify};

/// mkdir(2).
pub fn mkdir(path: u64, mode: u64) -> Result<u64> {
    make_directory(CWD, path, mode)
}

/// mkdirat(2).
pub fn mkdirat(directory: u64, path: u64, mode: u64) -> Result<u64> {
    make_directory(directory, path, mode)
}

fn make_directory(dirfd: u64, path: u64, mode: u64) -> Result<u64> {
    let path = PathName::read(path)?;
    let what = Make::plain(FileType::Directory, mode as u32 & 0o1777);
    tree::make(&Context::current(), dirfd as i32, path.bytes(), &what)?;
    Ok(0)
}

/// mknod(2).
pub fn mknod(path: u64, mode: u32, device: u64) -> Result<u64> {
    make_node(CWD, path, mode, device)
}

/// mknodat(2).
pub fn mknodat(directory: u64, path: u64, mode: u32, device: u64) -> Result<u64> {
    make_node(directory, path, mode, device)
}

fn make_node(dirfd: u64, path: u64, mode: u32, device: u64) -> Result<u64> {
    let file_type = FileType::from_mode(mode).ok_or(Errno::EINVAL)?;
    match file_type {
        FileType::Directory => return Err(Errno::EPERM),
        FileType::Symlink => return Err(Errno::EINVAL),
        _ => {}
    }
    let context = Context::current();
    let is_device = matches!(file_type, FileType::CharDevice | FileType::BlockDevice);
    let path = PathName::read(path)?;
    let rdev = if is_device { u64::from(device as u32) } else { 0 };
    let what = Make { file_type, mode: mode & 0o7777, rdev, target: b"" };
    tree::make(&context, dirfd as i32, path.bytes(), &what)?;
    Ok(0)
}

/// symlink(2).
pub fn symlink(target: u64, path: u64) -> Result<u64> {
    make_symlink(target, CWD, path)
}

/// symlinkat(2).
pub fn symlinkat(target: u64, directory: u64, path: u64) -> Result<u64> {
    make_symlink(target, directory, path)
}

fn make_symlink(target: u64, dirfd: u64, path: u64) -> Result<u64> {
    let target = PathName::read(target)?;
    if target.bytes().is_empty() {
        return Err(Errno::ENOENT);
    }
    let path = PathName::read(path)?;
    let file_type = FileType::Symlink;
    let what = Make { file_type, mode: 0o777, rdev: 0, target: target.bytes() };
    tree::make(&Context::current(), dirfd as i32, path.bytes(), &what)?;
    Ok(0)
}

/// link(2): does not follow a link.
pub fn link(old: u64, new: u64) -> Result<u64> {
    make_link((CWD, old), (CWD, new), 0)
}

/// linkat(2).
pub fn linkat(
    old_directory: u64,
    old: u64,
    new_directory: u64,
    new: u64,
    flags: u64,
) -> Result<u64> {
    let flags = check_flags(flags, raw::AT_SYMLINK_FOLLOW | raw::AT_EMPTY_PATH)?;
    make_link((old_directory, old), (new_directory, new), flags)
}

/// A descriptor alone, or what a path finds below one, is no right to a name with AT_EMPTY_PATH:
/// ENOENT unless it was opened with the credentials the
/// caller still has, or CAP_DAC_READ_SEARCH lets the caller find the file anyway (linkat(2)).
fn check_empty_link(context: &Context, fd: u64) -> Result<()> {
    if fd as i32 == raw::AT_FDCWD || context.subject.capable(Capability::DacReadSearch) {
        return Ok(());
    }
    let file = super::any_file(fd)?;
    let is_own = |opener| Arc::ptr_eq(opener, &context.subject.credentials);
    // What has no name anywhere, a pipe say, gets none for another reason.
    if file.opener.as_ref().is_none_or(is_own) { Ok(()) } else { Err(Errno::ENOENT) }
}

fn make_link(from: (u64, u64), to: (u64, u64), flags: u32) -> Result<u64> {
    let context = Context::current();
    let old = PathName::read(from.1)?;
    if flags & raw::AT_EMPTY_PATH != 0 && old.bytes().first() != Some(&b'/') {
        check_empty_link(&context, from.0)?;
    }
    let target = path::resolve(&context, from.0 as i32, old.bytes(), walk_flags(flags, false))?;
    let new = PathName::read(to.1)?;
    tree::link(&context, &target, to.0 as i32, new.bytes())?;
    Ok(0)
}

/// unlink(2).
pub fn unlink(path: u64) -> Result<u64> {
    let path = PathName::read(path)?;
    tree::unlink(&Context::current(), raw::AT_FDCWD, path.bytes())?;
    Ok(0)
}

/// rmdir(2).
pub fn rmdir(path: u64) -> Result<u64> {
    let path = PathName::read(path)?;
    tree::rmdir(&Context::current(), raw::AT_FDCWD, path.bytes())?;
    Ok(0)
}

/// unlinkat(2).
pub fn unlinkat(directory: i32, path: u64, flags: u64) -> Result<u64> {
    let flags = check_flags(flags, raw::AT_REMOVEDIR)?;
    let path = PathName::read(path)?;
    let context = Context::current();
    if flags & raw::AT_REMOVEDIR != 0 {
        tree::rmdir(&context, directory, path.bytes())?;
    } else {
        tree::unlink(&context, directory, path.bytes())?;
    }
    Ok(0)
}

/// rename(2).
pub fn rename(old: u64, new: u64) -> Result<u64> {
    rename_at((CWD, old), (CWD, new), 0)
}

/// renameat(2).
pub fn renameat(old_directory: u64, old: u64, new_directory: u64, new: u64) -> Result<u64> {
    rename_at((old_directory, old), (new_directory, new), 0)
}

/// renameat2(2).
pub fn renameat2(
    old_directory: u64,
    old: u64,
    new_directory: u64,
    new: u64,
    flags: u32,
) -> Result<u64> {
    rename_at((old_directory, old), (new_directory, new), flags)
}

fn rename_at(from: (u64, u64), to: (u64, u64), flags: u32) -> Result<u64> {
    tree::check_rename_flags(flags)?;
    let old = PathName::read(from.1)?;
    let new = PathName::read(to.1);
    let context = Context::current();
    if new.is_err() {
        // A bad place comes before a bad name for where it goes.
        path::resolve_parent(&context, from.0 as i32, old.bytes(), 0)?;
    }
    let new = new?;
    tree::rename(&context, (from.0 as i32, old.bytes()), (to.0 as i32, new.bytes()), flags)?;
    Ok(0)
}

/// readlink(2).
pub fn readlink(path: u64, buffer: u64, size: u64) -> Result<u64> {
    read_link(CWD, path, buffer, size)
}

/// readlinkat(2): an empty path is the descriptor itself.
pub fn readlinkat(directory: u64, path: u64, buffer: u64, size: u64) -> Result<u64> {
    read_link(directory, path, buffer, size)
}

fn text_of(link: &dyn Inode) -> Result<Vec<u8>> {
    hooks::inode_readlink((link,))?;
    let text = link.read_link()?;
    link.note_read();
    Ok(text)
}

fn read_link(dirfd: u64, path: u64, buffer: u64, size: u64) -> Result<u64> {
    let size = size as i32;
    if size <= 0 {
        return Err(Errno::EINVAL);
    }
    let path = PathName::read(path)?;
    let context = Context::current();
    let is_descriptor = path.bytes().is_empty() && dirfd as i32 != raw::AT_FDCWD;
    let target = if is_descriptor {
        let file = any_file(dirfd)?;
        match &file.location {
            Some(location) if location.file_type() == FileType::Symlink => {
                text_of(location.inode().as_ref())?
            }
            _ => return Err(Errno::ENOENT),
        }
    } else {
        let location = path::resolve(&context, dirfd as i32, path.bytes(), 0)?;
        if location.file_type() != FileType::Symlink {
            return Err(Errno::EINVAL);
        }
        text_of(location.inode().as_ref())?
    };
    let len = target.len().min(size as usize);
    UserPtr::<u8>::new(buffer).write_many(&target[..len])?;
    Ok(len as u64)
}

/// What /proc/PID/fd/N and the like show for an open file, as seen from `root`.
pub fn link_text(file: &crate::vfs::File, root: &path::Location) -> alloc::vec::Vec<u8> {
    match &file.location {
        Some(location) => location.path(root),
        None => match file.ops().inode().downcast_ref::<AnonInode>() {
            Some(anon) => anon.link_text().into_bytes(),
            None => "anon_inode:[unknown]".to_string().into_bytes(),
        },
    }
}

/// Tells watchers that the attributes of an object changed.
pub(super) fn attributes_changed(location: &path::Location) {
    inotify::event(&location.dentry, raw::IN_ATTRIB);
}
