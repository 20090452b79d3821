//! Data: read(2), write(2), pread(2), readv(2), preadv2(2) and so on, lseek(2).
//!
//! Neighbour: `io::transfer` has what all of these do with the open file.

use alloc::sync::Arc;

use abi::{Errno, Result, general as raw};
use machine::task::Current;

use super::file;
use crate::base::io::{Sink, Source, read_buffers};
use crate::base::user::UserPtr;
use crate::fs::pseudo::{self, PseudoInode};
use crate::io::transfer::{self, RequestFlags, read_at, read_stream, write_at, write_stream};
use crate::process::{Thread, current, file_of};
use crate::vfs::inotify::Inotify;
use crate::vfs::{File, FileType};

/// read(2).
pub fn read(thread: Current<Thread>, fd: u32, buffer: u64, count: u64) -> Result<u64> {
    let file = file_of(thread, fd)?;
    file.check_readable()?;
    check_buffer(buffer, count).or_else(|_| check_reads(&file).and(Err(Errno::EFAULT)))?;
    thread.reads(|| read_stream(&file, &mut Sink::user(buffer, count as usize)))
}

/// write(2).
pub fn write(thread: Current<Thread>, fd: u32, buffer: u64, count: u64) -> Result<u64> {
    let file = file_of(thread, fd)?;
    file.check_writable()?;
    check_buffer(buffer, count).or_else(|_| check_writes(&file).and(Err(Errno::EFAULT)))?;
    thread.writes(|| write_stream(&file, &mut Source::user(buffer, count as usize)))
}

/// readv(2).
pub fn readv(fd: u64, vector: u64, count: u64) -> Result<u64> {
    current().reads(|| {
        let file = file(fd)?;
        check_reads(&file)?;
        let Some(vector) = read_buffers(vector, count)? else { return Ok(0) };
        read_stream(&file, &mut Sink::user_vector(&vector))
    })
}

/// writev(2).
pub fn writev(fd: u64, vector: u64, count: u64) -> Result<u64> {
    current().writes(|| {
        let file = file(fd)?;
        check_writes(&file)?;
        let Some(vector) = read_buffers(vector, count)? else { return Ok(0) };
        write_stream(&file, &mut Source::user_vector(&vector))
    })
}

/// pread64(2).
pub fn pread64(fd: u64, buffer: u64, count: u64, offset: u64) -> Result<u64> {
    let offset = check_offset(offset)?;
    let file = positioned(fd)?;
    file.check_readable()?;
    check_buffer(buffer, count)?;
    current().reads(|| read_at(&file, offset, &mut Sink::user(buffer, count as usize)))
}

/// pwrite64(2).
pub fn pwrite64(fd: u64, buffer: u64, count: u64, offset: u64) -> Result<u64> {
    let offset = check_offset(offset)?;
    let file = positioned_to_write(fd)?;
    file.check_writable()?;
    check_buffer(buffer, count)?;
    current().writes(|| write_at(&file, offset, &mut Source::user(buffer, count as usize)))
}

/// preadv(2).
pub fn preadv(fd: u64, vector: u64, count: u64, offset: u64) -> Result<u64> {
    let offset = check_offset(offset)?;
    current().reads(|| {
        let file = positioned(fd)?;
        check_reads(&file)?;
        let Some(vector) = read_buffers(vector, count)? else { return Ok(0) };
        read_at(&file, offset, &mut Sink::user_vector(&vector))
    })
}

/// pwritev(2).
pub fn pwritev(fd: u64, vector: u64, count: u64, offset: u64) -> Result<u64> {
    let offset = check_offset(offset)?;
    current().writes(|| {
        let file = positioned_to_write(fd)?;
        check_writes(&file)?;
        let Some(vector) = read_buffers(vector, count)? else { return Ok(0) };
        write_at(&file, offset, &mut Source::user_vector(&vector))
    })
}

/// preadv2(2): an offset of -1 means the file's position. Its upper half is a word of its own
/// where registers are narrow, and ignored here.
pub fn preadv2(
    fd: u64,
    vector: u64,
    count: u64,
    offset: u64,
    _upper: u64,
    flags: u64,
) -> Result<u64> {
    current().reads(|| {
        let (file, offset) = at_offset(fd, offset)?;
        check_reads(&file)?;
        let Some(vector) = read_buffers(vector, count)? else { return Ok(0) };
        let sink = Sink::user_vector(&vector);
        transfer::check_end(offset.unwrap_or(0), sink.left())?;
        // The events of inotify(7), and directories, are read as before there were flags.
        let is_directory = file.inode().file_type() == FileType::Directory;
        let is_old = is_directory || file.ops_as::<Inotify>().is_some();
        let check = if is_old { RequestFlags::of_old_read } else { RequestFlags::of_read };
        transfer::read_request(&file, offset, sink, check(flags as u32)?)
    })
}

/// pwritev2(2), as [`preadv2`].
pub fn pwritev2(
    fd: u64,
    vector: u64,
    count: u64,
    offset: u64,
    _upper: u64,
    flags: u64,
) -> Result<u64> {
    current().writes(|| {
        let (file, offset) = at_offset(fd, offset)?;
        if offset.is_some() && !file.ops().is_written_at_places() {
            return Err(Errno::ESPIPE);
        }
        check_writes(&file)?;
        let Some(vector) = read_buffers(vector, count)? else { return Ok(0) };
        let source = Source::user_vector(&vector);
        transfer::check_end(offset.unwrap_or(0), source.left())?;
        let flags = RequestFlags::of_write(flags as u32)?;
        transfer::write_request(&file, offset, source, flags)
    })
}

/// The file behind a descriptor argument of a call with an offset: ESPIPE for a stream.
fn positioned(fd: u64) -> Result<Arc<File>> {
    let file = file(fd)?;
    if file.is_seekable() {
        return Ok(file);
    }
    Err(if file.has_places() { Errno::EINVAL } else { Errno::ESPIPE })
}

/// As [`positioned`], for writing: ESPIPE for text that takes what is written as a whole, too.
fn positioned_to_write(fd: u64) -> Result<Arc<File>> {
    let file = positioned(fd)?;
    if file.ops().is_written_at_places() { Ok(file) } else { Err(Errno::ESPIPE) }
}

/// As [`positioned`], and the offset; None for -1, which stands for the file's position.
fn at_offset(fd: u64, offset: u64) -> Result<(Arc<File>, Option<u64>)> {
    if offset == u64::MAX {
        return Ok((file(fd)?, None));
    }
    let offset = check_offset(offset)?;
    Ok((positioned(fd)?, Some(offset)))
}

/// EBADF for a file that was not opened for it, EINVAL for one of which nothing is ever read:
/// before a vector is looked at.
fn check_reads(file: &File) -> Result<()> {
    file.check_readable()?;
    if file.ops().has_data().0 { Ok(()) } else { Err(Errno::EINVAL) }
}

/// As [`check_reads`], for writing.
fn check_writes(file: &File) -> Result<()> {
    file.check_writable()?;
    if file.ops().has_data().1 { Ok(()) } else { Err(Errno::EINVAL) }
}

#[inline]
fn check_offset(offset: u64) -> Result<u64> {
    if offset > i64::MAX as u64 { Err(Errno::EINVAL) } else { Ok(offset) }
}

/// EFAULT for a buffer that is not all in user space, whatever its length.
#[inline]
fn check_buffer(base: u64, len: u64) -> Result<()> {
    if UserPtr::<u8>::new(base).is_user_range(len as usize) { Ok(()) } else { Err(Errno::EFAULT) }
}

/// lseek(2).
pub fn lseek(fd: u64, offset: i64, whence: u32) -> Result<u64> {
    let file = file(fd)?;
    if whence > raw::SEEK_HOLE {
        return Err(Errno::EINVAL);
    }
    if !file.is_seekable() {
        return if file.stays() { Ok(0) } else { Err(Errno::ESPIPE) };
    }
    if let Some(result) = file.ops().seek(offset, whence) {
        return result;
    }
    if !file.has_positions() {
        return Ok(0);
    }
    // A directory's end is no position (readdir(3)); those of /proc and /sys are empty to it.
    let inode = file.inode();
    let is_directory = inode.file_type() == FileType::Directory && !inode.is::<PseudoInode>();
    // Nor has text that is made when it is read one; what takes settings is empty to it.
    let is_text = pseudo::has_end(&file) == Some(false);
    if (is_directory || is_text) && !matches!(whence, raw::SEEK_SET | raw::SEEK_CUR) {
        return Err(Errno::EINVAL);
    }
    let mut position = file.position.lock();
    let base = match whence {
        raw::SEEK_SET => 0,
        raw::SEEK_CUR => *position,
        raw::SEEK_END => file_size(&file)?,
        raw::SEEK_DATA | raw::SEEK_HOLE => {
            let from = u64::try_from(offset).map_err(|_| Errno::ENXIO)?;
            *position = seek_content(&file, from, whence == raw::SEEK_DATA)?;
            return Ok(*position);
        }
        _ => return Err(Errno::EINVAL),
    };
    let target = (base as i64).checked_add(offset).ok_or(Errno::EINVAL)?;
    *position = u64::try_from(target).map_err(|_| Errno::EINVAL)?;
    Ok(*position)
}

/// Where its end is, to seek from.
pub(super) fn file_size(file: &File) -> Result<u64> {
    let inode = file.inode();
    match inode.page_cache() {
        Some(cache) => Ok(cache.size()),
        // What their sizes count is no positions.
        None if inode.is::<PseudoInode>() => Ok(0),
        None => Ok(inode.metadata()?.size),
    }
}

fn seek_content(file: &File, from: u64, data: bool) -> Result<u64> {
    if let Some(cache) = file.inode().page_cache() {
        return if data { cache.next_data(from) } else { cache.next_hole(from) };
    }
    // Without knowledge of holes all of it is data (lseek(2)).
    let size = file_size(file)?;
    if from >= size {
        return Err(Errno::ENXIO);
    }
    Ok(if data { from } else { size })
}
