//! Extended attributes (xattr(7)): setxattr(2), getxattr(2), listxattr(2), removexattr(2), each by
//! path, by path without following a link, and by descriptor.

use alloc::vec::Vec;

use abi::{Errno, Result, general as raw};

use super::names::attributes_changed;
use super::{CWD, file, resolve_at};
use crate::base::user::{UserPtr, read_c_string};
use crate::process::current;
use crate::security::{Capability, Subject};
use crate::vfs::anon::{AnonInode, PROTOCOL_NAME};
use crate::vfs::path::Location;
use crate::vfs::permission::{self, READ, WRITE};
use crate::vfs::{FileType, flags, hooks};

/// Longest name (limits.h: XATTR_NAME_MAX).
const NAME_MAX: usize = 255;
/// Longest value (XATTR_SIZE_MAX), and longest list of names.
const SIZE_MAX: usize = 65_536;

fn by_path(path: u64, follow: bool) -> Result<Location> {
    Ok(resolve_at(CWD, path, 0, follow)?.1)
}

fn by_file(fd: u64) -> Result<Location> {
    let file = file(fd)?;
    Ok(match &file.location {
        Some(location) => location.clone(),
        None => crate::vfs::anon::location(file.ops().inode()),
    })
}

fn read_name(address: u64) -> Result<Vec<u8>> {
    let name = read_c_string(address, NAME_MAX + 1, Errno::ERANGE)?;
    if name.is_empty() { Err(Errno::ERANGE) } else { Ok(name) }
}

/// The name spaces whose attributes have names of their own in them.
const SPACES: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];

/// Whether the caller may use the attribute, and whether it has a name; `wanted` is READ or WRITE.
fn check(at: &Location, name: &[u8], wanted: u32, who: &Subject) -> Result<()> {
    check_rights(at, name, wanted, who)?;
    if !SPACES.contains(&name) {
        return Ok(());
    }
    // Where there are no attributes at all, the name is not looked at.
    let has_none = at.inode().get_xattr(name) == Err(Errno::EOPNOTSUPP);
    Err(if has_none { Errno::EOPNOTSUPP } else { Errno::EINVAL })
}

fn check_rights(at: &Location, name: &[u8], wanted: u32, who: &Subject) -> Result<()> {
    let inode = at.inode().as_ref();
    if wanted == WRITE {
        flags::check_not_guarded(inode)?;
    }
    let admin = who.capable(Capability::SysAdmin);
    if name.starts_with(b"user.") {
        // To their file system pidfds are regular files, which have none and never change.
        let is_pidfd = |anon: &AnonInode| anon.is_pidfd() && wanted == READ;
        if inode.downcast_ref::<AnonInode>().is_some_and(is_pidfd) {
            return permission::check(inode, wanted, who).and(Err(Errno::EOPNOTSUPP));
        }
        if !matches!(at.file_type(), FileType::Regular | FileType::Directory) {
            return Err(if wanted == WRITE { Errno::EPERM } else { Errno::ENODATA });
        }
        // Of a sticky directory only its owner may write them.
        let of = inode.metadata()?;
        let is_sticky = of.file_type == FileType::Directory && of.mode & 0o1000 != 0;
        if wanted == WRITE && is_sticky && !permission::is_owner(&of, who) {
            return Err(Errno::EPERM);
        }
        return permission::check(inode, wanted, who);
    }
    if name.starts_with(b"trusted.") {
        let error = if wanted == WRITE { Errno::EPERM } else { Errno::ENODATA };
        return if admin { Ok(()) } else { Err(error) };
    }
    if name.starts_with(b"security.") {
        // Who may change which of them is the policies' matter.
        return Ok(());
    }
    if !name.starts_with(b"system.") {
        permission::check(inode, wanted, who)?;
    }
    let is_told = name == PROTOCOL_NAME && wanted == READ && inode.is::<AnonInode>();
    if is_told { Ok(()) } else { Err(Errno::EOPNOTSUPP) }
}

/// Whether an object without a name can be labelled (`security.`): sockets only by policies, which
/// `of_sockets` says; eventfd(2) and the like not at all.
fn check_label(at: &Location, name: &[u8], of_sockets: Errno) -> Result<()> {
    if !name.starts_with(b"security.") || !at.inode().is::<AnonInode>() {
        return Ok(());
    }
    match at.file_type() {
        FileType::Socket if current().subject().capable(Capability::SysAdmin) => Err(of_sockets),
        FileType::Anonymous => Err(Errno::EOPNOTSUPP),
        _ => Ok(()),
    }
}

/// setxattr(2).
pub fn setxattr(path: u64, name: u64, value: u64, size: u64, flags: u64) -> Result<u64> {
    set(|| by_path(path, true), name, (value, size), flags)
}

/// lsetxattr(2).
pub fn lsetxattr(path: u64, name: u64, value: u64, size: u64, flags: u64) -> Result<u64> {
    set(|| by_path(path, false), name, (value, size), flags)
}

/// fsetxattr(2).
pub fn fsetxattr(fd: u64, name: u64, value: u64, size: u64, flags: u64) -> Result<u64> {
    let at = by_file(fd)?;
    set(|| Ok(at), name, (value, size), flags)
}

/// What is set, at an address with a size, comes before a path to what it is set on.
fn set(
    find: impl FnOnce() -> Result<Location>,
    name: u64,
    (value, size): (u64, u64),
    flags: u64,
) -> Result<u64> {
    let flags = super::check_flags(flags, raw::XATTR_CREATE | raw::XATTR_REPLACE)?;
    let name = read_name(name)?;
    if size > SIZE_MAX as u64 {
        return Err(Errno::E2BIG);
    }
    let value = UserPtr::<u8>::new(value).read_many(size as usize)?;
    let at = &find()?;
    at.mount.check_writable()?;
    let who = current().subject();
    check(at, &name, WRITE, &who)?;
    let inode = at.inode().as_ref();
    check_label(at, &name, Errno::EOPNOTSUPP)?;
    hooks::inode_setxattr((&who, inode, &name, &value))?;
    inode.set_xattr(&name, &value, flags)?;
    hooks::inode_post_setxattr((inode, &name));
    at.inode().state().set_plain(false);
    attributes_changed(at);
    Ok(0)
}

/// getxattr(2).
pub fn getxattr(path: u64, name: u64, buffer: u64, size: u64) -> Result<u64> {
    get(&by_path(path, true)?, name, buffer, size)
}

/// lgetxattr(2).
pub fn lgetxattr(path: u64, name: u64, buffer: u64, size: u64) -> Result<u64> {
    get(&by_path(path, false)?, name, buffer, size)
}

/// fgetxattr(2).
pub fn fgetxattr(fd: u64, name: u64, buffer: u64, size: u64) -> Result<u64> {
    get(&by_file(fd)?, name, buffer, size)
}

fn get(at: &Location, name: u64, buffer: u64, size: u64) -> Result<u64> {
    let name = read_name(name)?;
    check(at, &name, READ, &current().subject())?;
    hooks::inode_getxattr((at.inode().as_ref(), &name))?;
    give(&at.inode().get_xattr(&name)?, buffer, size)
}

/// Copies an answer out; a size of 0 only asks for its length. ERANGE if it does not fit.
fn give(bytes: &[u8], buffer: u64, size: u64) -> Result<u64> {
    if size != 0 {
        if bytes.len() as u64 > size {
            return Err(Errno::ERANGE);
        }
        UserPtr::<u8>::new(buffer).write_many(bytes)?;
    }
    Ok(bytes.len() as u64)
}

/// listxattr(2).
pub fn listxattr(path: u64, buffer: u64, size: u64) -> Result<u64> {
    list(&by_path(path, true)?, buffer, size)
}

/// llistxattr(2).
pub fn llistxattr(path: u64, buffer: u64, size: u64) -> Result<u64> {
    list(&by_path(path, false)?, buffer, size)
}

/// flistxattr(2).
pub fn flistxattr(fd: u64, buffer: u64, size: u64) -> Result<u64> {
    list(&by_file(fd)?, buffer, size)
}

fn list(at: &Location, buffer: u64, size: u64) -> Result<u64> {
    let admin = current().subject().capable(Capability::SysAdmin);
    hooks::inode_listxattr((at.inode().as_ref(),))?;
    let mut names = at.inode().list_xattr()?;
    if !admin {
        let all = core::mem::take(&mut names);
        let shown = all.split_inclusive(|&byte| byte == 0);
        let shown = shown.filter(|name| !name.starts_with(b"trusted."));
        shown.for_each(|name| names.extend_from_slice(name));
    }
    if names.len() > SIZE_MAX {
        return Err(Errno::E2BIG);
    }
    give(&names, buffer, size)
}

/// removexattr(2).
pub fn removexattr(path: u64, name: u64) -> Result<u64> {
    remove(|| by_path(path, true), name)
}

/// lremovexattr(2).
pub fn lremovexattr(path: u64, name: u64) -> Result<u64> {
    remove(|| by_path(path, false), name)
}

/// fremovexattr(2).
pub fn fremovexattr(fd: u64, name: u64) -> Result<u64> {
    let at = by_file(fd)?;
    remove(|| Ok(at), name)
}

/// The name comes before a path to what has it.
fn remove(find: impl FnOnce() -> Result<Location>, name: u64) -> Result<u64> {
    let name = read_name(name)?;
    let at = &find()?;
    at.mount.check_writable()?;
    let who = current().subject();
    check(at, &name, WRITE, &who)?;
    let inode = at.inode().as_ref();
    check_label(at, &name, Errno::EAGAIN)?;
    hooks::inode_removexattr((&who, inode, &name))?;
    inode.remove_xattr(&name)?;
    hooks::inode_post_removexattr((inode, &name));
    attributes_changed(at);
    Ok(0)
}
