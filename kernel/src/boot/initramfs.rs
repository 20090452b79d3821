//! Unpacks the archive that the loader left in memory into a file system.
//!
//! Why it is hard: the bytes come from outside. An archive that is truncated or no archive at all
//! is an error with a line in the log, and what was unpacked before it stays. `formats::cpio`
//! reads; here are only directories and files. Names go straight to the file system, past the cache
//! of names: no program runs yet. So links on the way are followed here: where `/bin` is a link to
//! `usr/bin`, a file for `/bin/x` goes to `/usr/bin/x`.

use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

use abi::{Errno, Result};
use formats::cpio::{ArchiveEntry, Reader, mode};
use formats::ports;

use crate::base::io::Source;
use crate::drivers::chrdev::make_device;
use crate::vfs::{File, FileType, Inode, NewObject, SetAttributes};

/// Most steps to a directory in an archive, and most links on the way (path_resolution(7)).
const DEPTH_MAX: usize = 256;
const LINKS_MAX: usize = 40;
/// Most entries in an archive.
const ENTRIES_MAX: usize = 1 << 20;

/// Unpacks `archive` below `root`; returns how many entries there were. EINVAL if it is malformed
/// (the log says where), or what the file system says. `completes`: what is below `root` is
/// somebody else's, and directories that are there keep owner, mode and times.
pub fn unpack(archive: &[u8], root: &Arc<dyn Inode>, completes: bool) -> Result<usize> {
    let mut count = 0;
    for entry in Reader::new(archive).take(ENTRIES_MAX) {
        let entry = entry.map_err(|error| {
            machine::log!("{error}");
            Errno::EINVAL
        })?;
        if is_private(entry.path) {
            continue;
        }
        if let Err(error) = unpack_entry(root, &entry, completes) {
            let path = core::str::from_utf8(entry.path).unwrap_or("(name is not UTF-8)");
            machine::log!("initramfs: {path}: {error:?}");
            return Err(error);
        }
        count += 1;
    }
    Ok(count)
}

/// The boot configuration, which has the program's environment in it, is no file of the guest's.
fn is_private(path: &[u8]) -> bool {
    let folder = ports::CONFIG_PATH.as_bytes().split(|byte| *byte == b'/').next();
    path.split(|byte| *byte == b'/').next() == folder
}

fn unpack_entry(root: &Arc<dyn Inode>, entry: &ArchiveEntry<'_>, completes: bool) -> Result<()> {
    let file_type = FileType::from_mode(entry.mode).ok_or(Errno::EINVAL)?;
    let mtime_ns = i64::from(entry.mtime_s) * 1_000_000_000;
    let attributes = SetAttributes {
        mode: Some(entry.mode & 0o7777),
        uid: Some(entry.uid),
        gid: Some(entry.gid),
        size: None,
        atime_ns: Some(mtime_ns),
        mtime_ns: Some(mtime_ns),
    };
    if entry.path == b"." {
        return if completes { Ok(()) } else { root.set_attributes(&attributes) };
    }
    let (directory, name) = match entry.path.iter().rposition(|&byte| byte == b'/') {
        Some(slash) => (directory_at(root, &entry.path[..slash])?, &entry.path[slash + 1..]),
        None => (root.clone(), entry.path),
    };
    check_name(name)?;
    if file_type == FileType::Directory
        && let Some(old) = directory_there(root, &directory, name, entry.path)?
    {
        return if completes { Ok(()) } else { old.set_attributes(&attributes) };
    }
    let new = NewObject {
        file_type,
        mode: entry.mode & 0o7777,
        uid: entry.uid,
        gid: entry.gid,
        rdev: make_device(entry.rdev.0, entry.rdev.1),
        target: if entry.mode & mode::TYPE == mode::SYMLINK { entry.data } else { b"" },
    };
    let inode = make(&directory, name, &new)?;
    if file_type == FileType::Regular && !entry.data.is_empty() {
        write(&inode, entry.data)?;
    }
    inode.set_attributes(&attributes)
}

/// What stands for a directory already: one, or a link that leads to one.
fn directory_there(
    root: &Arc<dyn Inode>,
    directory: &Arc<dyn Inode>,
    name: &[u8],
    path: &[u8],
) -> Result<Option<Arc<dyn Inode>>> {
    match directory.lookup(name) {
        Ok(old) if old.file_type() == FileType::Directory => Ok(Some(old)),
        Ok(old) if old.file_type() == FileType::Symlink => directory_at(root, path).map(Some),
        Ok(_) | Err(Errno::ENOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

/// A later entry replaces an earlier one of the same name, but no directory. File systems leave it
/// to the cache of names, which is not in use yet, to know that a name is taken.
fn make(directory: &Arc<dyn Inode>, name: &[u8], new: &NewObject<'_>) -> Result<Arc<dyn Inode>> {
    match directory.lookup(name) {
        Ok(old) if old.file_type() == FileType::Directory => return Err(Errno::EISDIR),
        Ok(_) => directory.unlink(name)?,
        Err(Errno::ENOENT) => {}
        Err(error) => return Err(error),
    }
    directory.create(name, new)
}

/// The directory at a path, made as needed. Links are followed inside `root`.
fn directory_at(root: &Arc<dyn Inode>, path: &[u8]) -> Result<Arc<dyn Inode>> {
    // The directories down to here, and the names to come, last first.
    let mut above = vec![root.clone()];
    let mut todo = names_reversed(path);
    let mut links = 0;
    while let Some(name) = todo.pop() {
        let at = above.last().ok_or(Errno::EINVAL)?.clone();
        if name == b".." {
            if above.len() > 1 {
                above.pop();
            }
            continue;
        }
        check_name(&name)?;
        let next = match at.lookup(&name) {
            Err(Errno::ENOENT) => at.create(&name, &NEW_DIRECTORY)?,
            result => result?,
        };
        if next.file_type() == FileType::Symlink {
            links += 1;
            let target = next.read_link()?;
            if target.starts_with(b"/") {
                above = vec![root.clone()];
            }
            todo.append(&mut names_reversed(&target));
        } else {
            above.push(next);
        }
        if links > LINKS_MAX || above.len() + todo.len() > DEPTH_MAX {
            return Err(if links > LINKS_MAX { Errno::ELOOP } else { Errno::ENAMETOOLONG });
        }
    }
    let found = above.pop().ok_or(Errno::EINVAL)?;
    if found.file_type() == FileType::Directory { Ok(found) } else { Err(Errno::ENOTDIR) }
}

/// A directory that an archive takes for granted.
const NEW_DIRECTORY: NewObject<'static> =
    NewObject { file_type: FileType::Directory, mode: 0o755, uid: 0, gid: 0, rdev: 0, target: b"" };

fn names_reversed(path: &[u8]) -> Vec<Vec<u8>> {
    let names = path.split(|&byte| byte == b'/').rev();
    names.filter(|name| !name.is_empty() && *name != b".").map(<[u8]>::to_vec).collect()
}

fn check_name(name: &[u8]) -> Result<()> {
    if name.is_empty() || name == b"." || name == b".." {
        return Err(Errno::EINVAL);
    }
    if name.len() > crate::vfs::path::NAME_MAX { Err(Errno::ENAMETOOLONG) } else { Ok(()) }
}

fn write(inode: &Arc<dyn Inode>, data: &[u8]) -> Result<()> {
    let operations = inode.clone().open(abi::general::O_WRONLY)?;
    let file = File::new(operations, abi::general::O_WRONLY, None);
    let mut source = Source::kernel(data);
    let mut done = 0;
    while source.left() > 0 {
        let step = file.ops().write_at(&file, done, &mut source)?;
        if step == 0 {
            return Err(Errno::ENOSPC);
        }
        done += step as u64;
    }
    Ok(())
}
