//! Unpacks the archive that the loader left in memory into a file system.
//!
//! Why it is hard: the bytes come from outside. An archive that is truncated or no archive at all
//! is an error with a line in the log, and what was unpacked before it stays. `formats::cpio`
//! reads; here are only directories and files. Names go straight to the file system, past the cache
//! of names: no program runs yet.

use alloc::sync::Arc;

use abi::{Errno, Result};
use formats::cpio::{Entry, Reader, mode};

use super::special::make_device;
use super::{File, FileType, Inode, NewObject, SetAttributes};
use crate::io::Source;

/// Deepest directory in an archive.
const DEPTH_MAX: usize = 256;
/// Most entries in an archive.
const ENTRIES_MAX: usize = 1 << 20;

/// Unpacks `archive` below `root`; returns how many entries there were. EINVAL if it is malformed
/// (the log says where), or what the file system says.
pub fn unpack(archive: &[u8], root: &Arc<dyn Inode>) -> Result<usize> {
    let mut count = 0;
    for entry in Reader::new(archive).take(ENTRIES_MAX) {
        let entry = entry.map_err(|error| {
            machine::log!("{error}");
            Errno::EINVAL
        })?;
        if let Err(error) = unpack_entry(root, &entry) {
            let path = core::str::from_utf8(entry.path).unwrap_or("(name is not UTF-8)");
            machine::log!("initramfs: {path}: {error:?}");
            return Err(error);
        }
        count += 1;
    }
    Ok(count)
}

fn unpack_entry(root: &Arc<dyn Inode>, entry: &Entry<'_>) -> Result<()> {
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
        return root.set_attributes(&attributes);
    }
    let (directory, name) = match entry.path.iter().rposition(|&byte| byte == b'/') {
        Some(slash) => (directory_at(root, &entry.path[..slash])?, &entry.path[slash + 1..]),
        None => (root.clone(), entry.path),
    };
    check_name(name)?;
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

/// A later entry replaces an earlier one of the same name; directories are kept and completed.
fn make(directory: &Arc<dyn Inode>, name: &[u8], new: &NewObject<'_>) -> Result<Arc<dyn Inode>> {
    match directory.create(name, new) {
        Err(Errno::EEXIST) => {}
        result => return result,
    }
    let old = directory.lookup(name)?;
    if old.file_type() == FileType::Directory {
        return if new.file_type == FileType::Directory { Ok(old) } else { Err(Errno::EISDIR) };
    }
    directory.unlink(name)?;
    directory.create(name, new)
}

/// The directory at a path, made as needed.
fn directory_at(root: &Arc<dyn Inode>, path: &[u8]) -> Result<Arc<dyn Inode>> {
    let mut at = root.clone();
    for (depth, name) in path.split(|&byte| byte == b'/').enumerate() {
        if depth >= DEPTH_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        if name.is_empty() || name == b"." {
            continue;
        }
        check_name(name)?;
        at = match at.lookup(name) {
            Err(Errno::ENOENT) => {
                let file_type = FileType::Directory;
                let new =
                    NewObject { file_type, mode: 0o755, uid: 0, gid: 0, rdev: 0, target: b"" };
                at.create(name, &new)?
            }
            result => result?,
        };
    }
    Ok(at)
}

fn check_name(name: &[u8]) -> Result<()> {
    if name.is_empty() || name == b"." || name == b".." {
        return Err(Errno::EINVAL);
    }
    if name.len() > super::path::NAME_MAX { Err(Errno::ENAMETOOLONG) } else { Ok(()) }
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
