//! Data from one file to another without a program's buffer: sendfile(2), splice(2), tee(2),
//! vmsplice(2), copy_file_range(2).
//!
//! Neighbour: `splice` moves the data.

use alloc::sync::Arc;

use abi::{Errno, Result, general as raw};

use super::pipe::{self, Pipe};
use super::splice::{CHUNK, Cursor, between_pipes, buffer, drain, fill, repeat};
use super::transfer::write_stream;
use crate::base::args::check_flags;
use crate::base::io::{IoVec, MAX_TRANSFER, Sink, Source, read_iovec};
use crate::base::user::UserPtr;
use crate::fs::devfs;
use crate::fs::pseudo::PseudoInode;
use crate::process::{current, own_open_file};
use crate::vfs::{File, FileType};

const SPLICE_FLAGS: u32 =
    raw::SPLICE_F_MOVE | raw::SPLICE_F_NONBLOCK | raw::SPLICE_F_MORE | raw::SPLICE_F_GIFT;

/// EINVAL for a count that is negative where sizes have a sign.
fn check_length(len: u64) -> Result<()> {
    if len > i64::MAX as u64 { Err(Errno::EINVAL) } else { Ok(()) }
}

/// A call that reads and writes, as /proc/PID/io counts.
fn counted(transfer: impl FnOnce() -> Result<u64>) -> Result<u64> {
    let thread = current();
    thread.reads(|| thread.writes(transfer))
}

/// sendfile(2).
pub fn sendfile(to: u64, from: u64, offset: u64, count: u64) -> Result<u64> {
    UserPtr::<u64>::new(offset).non_null().map(UserPtr::read).transpose()?;
    let input = own_open_file(from as u32)?;
    input.check_readable()?;
    let is_stream = !input.is_seekable() && !input.stays();
    let mut from = Cursor::new(input, offset)?;
    check_length(count)?;
    let end = from.at().checked_add(count);
    if end.is_none_or(|end| end > i64::MAX as u64) {
        return Err(Errno::EINVAL);
    }
    let output = own_open_file(to as u32)?;
    output.check_writable()?;
    if output.flags() & raw::O_APPEND != 0 {
        return Err(Errno::EINVAL);
    }
    // Where nothing is to be moved, nothing need be able to; but from a stream only into a pipe.
    let gives = gives_data(&from.file);
    let into = pipe::of(&output);
    if let Some(pipe) = into {
        // Before the other side is asked for anything.
        pipe.wait_writable(output.is_nonblocking())?;
    }
    if let Some(pipe) = into.filter(|_| is_stream && gives && count > 0) {
        // A stream can only be moved into a pipe, as by splice(2).
        if pipe::of(&from.file).is_some() {
            return Err(Errno::EINVAL);
        }
        return counted(|| fill(&mut from, pipe, &output, count));
    }
    if is_stream && into.is_none() {
        return Err(Errno::EINVAL);
    }
    if into.is_none() {
        // Whether or not there is anything to move.
        from.file.note_read();
    }
    if count > 0 && (is_stream || !gives) {
        return Err(Errno::EINVAL);
    }
    // The same open file may be both: then each side moves its position from where it was.
    let is_same = Arc::ptr_eq(&from.file, &output) && from.offset.is_none();
    let start = from.at();
    let mut bytes = buffer(count as usize)?;
    let step = |left: usize| {
        let read = from.peek(&mut bytes[..left.min(CHUNK)])?;
        if read == 0 {
            return Ok((0, false));
        }
        if !moves_data(&output) || is_text(&output) {
            return Err(Errno::EINVAL);
        }
        let written = write_stream(&output, &mut Source::kernel(&bytes[..read]))? as usize;
        if !is_same {
            from.advance(written);
        }
        Ok((written, written == read))
    };
    let done = counted(|| repeat(count, step))?;
    if is_same {
        *from.file.position.lock() = start + done;
    }
    from.note_read(done);
    from.finish()?;
    Ok(done)
}

/// EXDEV for files of two file systems.
pub fn check_same_place(one: &File, other: &File) -> Result<()> {
    // A pidfd is a file of a file system of its own.
    let is_pidfd = |file: &File| crate::process::pidfd::process_of(file).is_ok();
    let device = |file: &File| file.inode().metadata().map(|metadata| metadata.device);
    let is_same = is_pidfd(one) == is_pidfd(other) && device(one)? == device(other)?;
    if is_same { Ok(()) } else { Err(Errno::EXDEV) }
}

/// Whether one may be copied to the other, whatever part of it.
pub fn check_copying(input: &Arc<File>, output: &Arc<File>) -> Result<()> {
    let inodes = [input.inode(), output.inode()];
    // A pidfd is a file of a file system of its own.
    let is_pidfd = |file: &File| crate::process::pidfd::process_of(file).is_ok();
    let is_plain =
        |file: &Arc<File>| file.inode().file_type() == FileType::Regular || is_pidfd(file);
    if inodes.iter().any(|inode| inode.file_type() == FileType::Directory) {
        return Err(Errno::EISDIR);
    }
    if !is_plain(input) || !is_plain(output) {
        return Err(Errno::EINVAL);
    }
    input.check_readable()?;
    output.check_writable()?;
    if output.flags() & raw::O_APPEND != 0 {
        return Err(Errno::EBADF);
    }
    check_same_place(input, output)?;
    if output.inode().state().is_immutable() {
        return Err(Errno::EPERM);
    }
    Ok(())
}

/// copy_file_range(2).
pub fn copy_file_range(
    from: u64,
    from_offset: u64,
    to: u64,
    to_offset: u64,
    count: u64,
    flags: u64,
) -> Result<u64> {
    let (input, output) = (own_open_file(from as u32)?, own_open_file(to as u32)?);
    for offset in [from_offset, to_offset] {
        UserPtr::<u64>::new(offset).non_null().map(UserPtr::read).transpose()?;
    }
    if flags != 0 {
        return Err(Errno::EINVAL);
    }
    check_copying(&input, &output)?;
    let (from, to) = (Cursor::any(input, from_offset)?, Cursor::any(output, to_offset)?);
    if from.at().checked_add(count).is_none() || to.at().checked_add(count).is_none() {
        return Err(Errno::EOVERFLOW);
    }
    if to.at() as i64 == i64::MAX {
        return Err(Errno::EFBIG);
    }
    let (mut from, mut to) = (from.positive()?, to.positive()?);
    // What lies behind the end is not copied, and overlaps nothing.
    let left = from.file.inode().metadata()?.size.saturating_sub(from.at());
    let len = count.min(left).min(MAX_TRANSFER as u64);
    let (from_end, to_end) = (from.at() + len, to.at() + len);
    let same = Arc::as_ptr(&from.file.inode()).addr() == Arc::as_ptr(&to.file.inode()).addr();
    if same && len > 0 && from.at() < to_end && to.at() < from_end {
        return Err(Errno::EINVAL);
    }
    // Of text that is made when it is read no length is known: nothing of it is copied.
    let mut bytes = buffer(len as usize)?;
    let step = |left: usize| {
        let read = from.peek(&mut bytes[..left.min(CHUNK)])?;
        if read == 0 {
            return Ok((0, false));
        }
        let written = to.write(&bytes[..read])?;
        from.advance(written);
        Ok((written, written == read))
    };
    let done = counted(|| repeat(len, step))?;
    from.note_read(done);
    from.finish()?;
    to.finish()?;
    Ok(done)
}

/// Passes a program's buffers on one by one: those before one that is not there have gone.
fn give_parts(pipe: &Pipe, parts: &[IoVec]) -> Result<usize> {
    let mut done = 0;
    for part in parts.iter().filter(|part| part.len > 0) {
        match pipe.write_now(&mut Source::user(part.base, part.len as usize)) {
            Ok(len) => {
                done += len;
                if len < part.len as usize {
                    break;
                }
            }
            Err(error) if done == 0 => return Err(error),
            Err(_) => break,
        }
    }
    Ok(done)
}

/// splice(2): at least one side is a pipe. What ends its waits: data in the pipe it reads, its last
/// writer's end, room in the pipe it fills, its last reader's end (EPIPE), a signal.
pub fn splice(
    from_word: u64,
    from_offset: u64,
    to_word: u64,
    to_offset: u64,
    count: u64,
    flags: u64,
) -> Result<u64> {
    if count == 0 {
        return Ok(0);
    }
    let flags = check_flags(flags, SPLICE_FLAGS)?;
    let (input, output) = (own_open_file(from_word as u32)?, own_open_file(to_word as u32)?);
    let at_once = |files: &[&File]| {
        flags & raw::SPLICE_F_NONBLOCK != 0 || files.iter().any(|f| f.is_nonblocking())
    };
    let (from_pipe, to_pipe) = (pipe::of(&input).cloned(), pipe::of(&output).cloned());
    if from_pipe.is_some() && from_offset != 0 || to_pipe.is_some() && to_offset != 0 {
        return Err(Errno::ESPIPE);
    }
    for offset in [to_offset, from_offset] {
        UserPtr::<u64>::new(offset).non_null().map(UserPtr::read).transpose()?;
    }
    input.check_readable()?;
    output.check_writable()?;
    if from_pipe.is_none() || to_pipe.is_none() {
        check_length(count)?;
    }
    match (from_pipe, to_pipe) {
        (Some(from), Some(to)) => between_pipes(&from, &to, count, at_once(&[&input, &output])),
        (Some(from), None) => {
            if output.flags() & raw::O_APPEND != 0 || !moves_data(&output) {
                return Err(Errno::EINVAL);
            }
            let nonblocking = at_once(&[&input]);
            let mut to = seekable_cursor(output, to_offset, count)?;
            let done = drain(&from, count, nonblocking, |bytes| to.write(bytes))?;
            to.finish()?;
            Ok(done)
        }
        (None, Some(to)) => {
            let gives = gives_data(&input);
            let mut from = seekable_cursor(input, from_offset, count)?;
            to.wait_writable(at_once(&[&output]))?;
            if !gives {
                return Err(Errno::EINVAL);
            }
            let done = fill(&mut from, &to, &output, count)?;
            from.finish()?;
            Ok(done)
        }
        (None, None) => Err(Errno::EINVAL),
    }
}

/// Whether a file is one whose bytes can be spliced: the objects of eventfd(2), epoll(7) and the
/// like only have values that are read and written whole, and directories have none.
fn moves_data(file: &File) -> bool {
    !matches!(file.inode().file_type(), FileType::Directory | FileType::Anonymous)
}

/// Whether it is text that is made when it is read, which takes nothing but what write(2) brings.
fn is_text(file: &File) -> bool {
    file.inode().is::<PseudoInode>() && !file.ops().is_written_at_places()
}

/// Whether bytes can be spliced from a file, which is no pipe.
fn gives_data(file: &File) -> bool {
    moves_data(file) && !devfs::is_null(file) && file.ops().gives_pieces()
}

/// splice(2) calls an offset into a stream EINVAL.
fn seekable_cursor(file: Arc<File>, address: u64, count: u64) -> Result<Cursor> {
    let cursor = Cursor::new(file, address).map_err(|error| match error {
        Errno::ESPIPE => Errno::EINVAL,
        error => error,
    })?;
    // Nor may the end lie behind all files.
    let fits = cursor.at().checked_add(count).is_some_and(|end| end <= i64::MAX as u64);
    if fits || cursor.offset.is_none() { Ok(cursor) } else { Err(Errno::EINVAL) }
}

/// tee(2): copies from pipe to pipe and removes nothing. Its waits end as splice's do.
pub fn tee(from: u64, to: u64, count: u64, flags: u64) -> Result<u64> {
    let flags = check_flags(flags, SPLICE_FLAGS)?;
    if count == 0 {
        return Ok(0);
    }
    let (input, output) = (own_open_file(from as u32)?, own_open_file(to as u32)?);
    input.check_readable()?;
    output.check_writable()?;
    let from = pipe::of(&input).ok_or(Errno::EINVAL)?;
    let to = pipe::of(&output).ok_or(Errno::EINVAL)?;
    if Arc::ptr_eq(from, to) {
        return Err(Errno::EINVAL);
    }
    let nonblocking =
        flags & raw::SPLICE_F_NONBLOCK != 0 || input.is_nonblocking() || output.is_nonblocking();
    loop {
        let is_open = from.wait_readable(nonblocking)?;
        to.wait_writable(nonblocking)?;
        if !is_open {
            return Ok(0);
        }
        let mut bytes = buffer((count as usize).min(to.room().max(1)))?;
        let want = bytes.len();
        let seen = from.peek(0, want, &mut Sink::kernel(&mut bytes))?;
        match to.write_now(&mut Source::kernel(&bytes[..seen])) {
            Ok(0) | Err(Errno::EAGAIN) if !nonblocking => {}
            written => return written.map(|written| written as u64),
        }
    }
}

/// vmsplice(2): a program's memory into a pipe, or out of one, by copying. It waits only until
/// something can move: for data or room, for the other end to close, for a signal.
pub fn vmsplice(fd: u64, vector: u64, count: u64, flags: u64) -> Result<u64> {
    let flags = check_flags(flags, SPLICE_FLAGS)?;
    let file = own_open_file(fd as u32)?;
    if file.check_writable().is_err() {
        file.check_readable()?;
    }
    let vector = read_iovec(vector, count)?;
    if vector.iter().all(|part| part.len == 0) {
        return Ok(0);
    }
    let pipe = pipe::of(&file).ok_or(Errno::EBADF)?;
    let nonblocking = flags & raw::SPLICE_F_NONBLOCK != 0;
    let moved = if file.check_writable().is_ok() {
        pipe.wait_writable(nonblocking)?;
        give_parts(pipe, &vector)?
    } else {
        if !pipe.wait_readable(nonblocking)? {
            return Ok(0);
        }
        pipe.read_now(&mut Sink::user_vector(&vector))?
    };
    Ok(moved as u64)
}
