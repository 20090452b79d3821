//! Directories: getdents(2), getcwd(2), chdir(2), chroot(2).

use alloc::vec::Vec;

use abi::{Errno, Result, general as raw};

use super::{CWD, any_file, file, resolve_at};
use crate::base::user::UserPtr;
use crate::process::current;
use crate::security::Capability;
use crate::vfs::path::FsContext;
use crate::vfs::path::Location;
use crate::vfs::permission::{self, EXECUTE, READ};
use crate::vfs::{File, FileType, Inode, hooks, inotify};

/// Most bytes of entries one call gives.
const BATCH_BYTES: usize = 32 * 1024;
/// Most entries asked of a file system at once.
const BATCH_ENTRIES: usize = 128;
/// Bytes that an entry takes on average, for a guess how many fit: names are about this long.
const ENTRY_BYTES: usize = 32;

/// Which layout entries have.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Layout {
    /// `struct linux_dirent`: the type is the last byte.
    Old,
    /// `struct linux_dirent64`: the type comes before the name.
    New,
}

/// getdents(2).
pub fn getdents(fd: u64, buffer: u64, count: i32) -> Result<u64> {
    list(fd, buffer, count, Layout::Old)
}

/// getdents64(2).
pub fn getdents64(fd: u64, buffer: u64, count: i32) -> Result<u64> {
    list(fd, buffer, count, Layout::New)
}

fn list(fd: u64, buffer: u64, count: i32, layout: Layout) -> Result<u64> {
    let file = file(fd)?;
    let inode = file.inode();
    if inode.file_type() != FileType::Directory {
        return Err(Errno::ENOTDIR);
    }
    if file.location.as_ref().is_some_and(|location| location.dentry.is_unlinked()) {
        return Err(Errno::ENOENT);
    }
    hooks::file_permission((&file, READ))?;
    // What is left of a count that is negative holds no entry.
    let room = usize::try_from(count).unwrap_or(0).min(BATCH_BYTES);
    let mut position = file.position.lock();
    let mut entries = Entries { bytes: Vec::new(), room, layout };
    let result = fill(&file, inode.as_ref(), *position, &mut entries).and_then(|next| {
        // Where there is nothing to write, nobody looks at where to.
        if !entries.bytes.is_empty() {
            UserPtr::<u8>::new(buffer).write_many(&entries.bytes)?;
        }
        *position = next;
        Ok(entries.bytes.len() as u64)
    });
    // It has been read, whether or not somebody got anything of it.
    file.note_read();
    if let Some(location) = &file.location {
        inotify::event(&location.dentry, raw::IN_ACCESS);
    }
    result
}

/// Fills entries from `position` on; returns the position after the last. Positions 0 and 1 are `.`
/// and `..`; the file system's own follow.
fn fill(file: &File, inode: &dyn Inode, mut position: u64, into: &mut Entries) -> Result<u64> {
    while position < 2 {
        let (name, number) = match (position, &file.location) {
            (0, _) => (b".".as_slice(), inode.number()?),
            (_, Some(at)) => (b"..".as_slice(), above(at)?),
            (_, None) => (b"..".as_slice(), inode.number()?),
        };
        if !into.push(name, number, FileType::Directory, position + 1)? {
            return Ok(position);
        }
        position += 1;
    }
    loop {
        let fit = into.room.saturating_sub(into.bytes.len()) / ENTRY_BYTES;
        let batch = inode.read_dir(position - 2, fit.clamp(1, BATCH_ENTRIES))?;
        if batch.is_empty() {
            // Known before an entry is there to say so: the directory is empty.
            return Ok(inode.directory_end().map_or(position, |end| end + 2));
        }
        for entry in &batch {
            let next = entry.next.saturating_add(2);
            if !into.push(&entry.name, entry.inode, entry.file_type, next)? {
                return Ok(position);
            }
            position = next;
        }
    }
}

/// Inode number of the directory above.
fn above(at: &Location) -> Result<u64> {
    let mut at = at.clone();
    while at.is_mount_top() {
        match at.mount.place() {
            Some(place) => at = place,
            None => return at.inode().number(),
        }
    }
    match at.dentry.parent() {
        Some(parent) => Ok(parent.inode().number()?),
        None => Ok(at.inode().number()?),
    }
}

struct Entries {
    bytes: Vec<u8>,
    room: usize,
    layout: Layout,
}

impl Entries {
    /// Adds an entry. False if it does not fit any more; EINVAL if it does not even fit alone.
    fn push(&mut self, name: &[u8], inode: u64, file_type: FileType, next: u64) -> Result<bool> {
        // Inode, offset, length, (type or end of name), name, NUL (or type).
        let len = (8 + 8 + 2 + 1 + name.len() + 1).next_multiple_of(8);
        if self.bytes.len() + len > self.room {
            return if self.bytes.is_empty() { Err(Errno::EINVAL) } else { Ok(false) };
        }
        // Zeros, more than an entry ends with: all but the name is copied in fixed sizes.
        const PADDING: [u8; 16] = [0; 16];
        self.bytes.try_reserve(len + PADDING.len()).map_err(|_| Errno::ENOMEM)?;
        let end = self.bytes.len() + len;
        let mut head = [0; 19];
        head[..8].copy_from_slice(&inode.to_le_bytes());
        head[8..16].copy_from_slice(&next.to_le_bytes());
        head[16..18].copy_from_slice(&(len as u16).to_le_bytes());
        head[18] = file_type as u8;
        self.bytes.extend_from_slice(&head);
        if self.layout == Layout::Old {
            self.bytes.pop();
        }
        self.bytes.extend_from_slice(name);
        self.bytes.extend_from_slice(&PADDING);
        self.bytes.truncate(end);
        if self.layout == Layout::Old {
            self.bytes[end - 1] = file_type as u8;
        }
        Ok(true)
    }
}

/// getcwd(2): the length with the NUL.
pub fn getcwd(buffer: UserPtr<u8>, size: u64) -> Result<u64> {
    let fs = current().fs();
    let (cwd, root) = (fs.cwd.read(Clone::clone), fs.root.read(Clone::clone));
    if cwd.dentry.is_unlinked() {
        return Err(Errno::ENOENT);
    }
    let mut path = cwd.path(&root);
    if path.len() >= crate::base::user::PATH_MAX {
        return Err(Errno::ENAMETOOLONG);
    }
    path.push(0);
    if path.len() as u64 > size {
        return Err(Errno::ERANGE);
    }
    buffer.write_many(&path)?;
    Ok(path.len() as u64)
}

/// chdir(2).
pub fn chdir(path: u64) -> Result<u64> {
    let (context, location) = resolve_at(CWD, path, 0, true)?;
    check_directory(&location)?;
    permission::check(location.inode().as_ref(), EXECUTE, &context.subject)?;
    set_cwd(&context.fs, location);
    Ok(0)
}

/// fchdir(2).
pub fn fchdir(fd: u64) -> Result<u64> {
    let file = any_file(fd)?;
    let location = file.location.clone().ok_or(Errno::ENOTDIR)?;
    check_directory(&location)?;
    let thread = current();
    permission::check(location.inode().as_ref(), EXECUTE, &thread.subject())?;
    set_cwd(&thread.fs(), location);
    Ok(0)
}

/// chroot(2).
pub fn chroot(path: u64) -> Result<u64> {
    let (context, location) = resolve_at(CWD, path, 0, true)?;
    check_directory(&location)?;
    permission::check(location.inode().as_ref(), EXECUTE, &context.subject)?;
    if !context.subject.capable(Capability::SysChroot) {
        return Err(Errno::EPERM);
    }
    hooks::path_chroot((&context, &location))?;
    let old = core::mem::replace(&mut *context.fs.root.lock(), location);
    drop(old);
    Ok(0)
}

fn check_directory(location: &Location) -> Result<()> {
    if location.dentry.is_directory() { Ok(()) } else { Err(Errno::ENOTDIR) }
}

/// The old directory is dropped outside the lock: it may be the last use of it.
fn set_cwd(fs: &FsContext, location: Location) {
    let old = core::mem::replace(&mut *fs.cwd.lock(), location);
    drop(old);
}
