//! Data from one file to another without a program's buffer: sendfile(2), splice(2), tee(2),
//! vmsplice(2), copy_file_range(2).
//!
//! All go through one bounded buffer of the kernel. A stream's data is looked at first and removed
//! only once it is written, so that nothing is lost when the other side takes less.

use alloc::sync::Arc;
use alloc::vec::Vec;

use abi::{Errno, Result, general as raw};

use super::rw::{self, read_stream, write_stream};
use super::{file, is_regular};
use crate::base::args::Args;
use crate::base::io::{MAX_TRANSFER, Sink, Source, read_iovec};
use crate::base::sched;
use crate::base::user::UserPtr;
use crate::ipc::pipe::{self, Pipe};
use crate::vfs::{File, FileType};

/// Bytes copied in one turn.
const CHUNK: usize = 64 * 1024;
const SPLICE_FLAGS: u32 =
    raw::SPLICE_F_MOVE | raw::SPLICE_F_NONBLOCK | raw::SPLICE_F_MORE | raw::SPLICE_F_GIFT;

fn buffer(len: usize) -> Result<Vec<u8>> {
    let len = len.min(CHUNK);
    let mut buffer = Vec::new();
    buffer.try_reserve_exact(len).map_err(|_| Errno::ENOMEM)?;
    buffer.resize(len, 0);
    Ok(buffer)
}

/// Where a seekable file is read or written: at an offset of the program's, or at its position.
struct Cursor {
    file: Arc<File>,
    offset: Option<u64>,
    address: UserPtr<u64>,
}

impl Cursor {
    /// ESPIPE for an offset into a stream.
    fn new(file: Arc<File>, address: u64) -> Result<Cursor> {
        let address = UserPtr::<u64>::new(address);
        let offset = match address.non_null() {
            None => None,
            Some(_) if !file.is_seekable() => return Err(Errno::ESPIPE),
            Some(at) => {
                let offset = at.read()?;
                if offset > i64::MAX as u64 {
                    return Err(Errno::EINVAL);
                }
                Some(offset)
            }
        };
        Ok(Cursor { file, offset, address })
    }

    /// Where the next byte is.
    fn at(&self) -> u64 {
        self.offset.unwrap_or_else(|| *self.file.position.lock())
    }

    /// Reads without moving.
    fn peek(&self, buffer: &mut [u8]) -> Result<usize> {
        self.file.ops().read_at(&self.file, self.at(), &mut Sink::kernel(buffer))
    }

    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        let mut source = Source::kernel(bytes);
        match self.offset {
            Some(at) => {
                let written = rw::write_at(&self.file, at, &mut source)? as usize;
                self.advance(written);
                Ok(written)
            }
            None => write_stream(&self.file, &mut source).map(|written| written as usize),
        }
    }

    fn advance(&mut self, len: usize) {
        match &mut self.offset {
            Some(offset) => *offset += len as u64,
            None => *self.file.position.lock() += len as u64,
        }
    }

    /// Tells whoever watches that so much was read.
    fn note_read(&self, done: u64) {
        rw::note(&self.file, raw::IN_ACCESS, done as usize);
    }

    /// Tells the program its new offset.
    fn finish(&self) -> Result<()> {
        match self.offset {
            Some(offset) => self.address.write(&offset),
            None => Ok(()),
        }
    }
}

/// Repeats `step` (given what is left) until it moves nothing or less than asked.
fn repeat(len: u64, mut step: impl FnMut(usize) -> Result<(usize, bool)>) -> Result<u64> {
    let len = (len as usize).min(MAX_TRANSFER);
    let mut done = 0;
    while done < len {
        match step(len - done) {
            Ok((moved, more)) => {
                done += moved;
                if !more {
                    break;
                }
            }
            Err(error) if done == 0 => return Err(error),
            Err(_) => break,
        }
        sched::yield_if_needed();
    }
    Ok(done as u64)
}

/// sendfile(2).
pub fn sendfile(a: &Args) -> Result<u64> {
    let (output, input) = (file(a.a0())?, file(a.a1())?);
    input.check_readable()?;
    output.check_writable()?;
    if !input.is_seekable() || output.flags() & raw::O_APPEND != 0 {
        return Err(Errno::EINVAL);
    }
    let mut from = Cursor::new(input, a.a2())?;
    let mut bytes = buffer(a.a3() as usize)?;
    let done = repeat(a.a3(), |left| {
        let read = from.peek(&mut bytes[..left.min(CHUNK)])?;
        if read == 0 {
            return Ok((0, false));
        }
        let written = write_stream(&output, &mut Source::kernel(&bytes[..read]))? as usize;
        from.advance(written);
        Ok((written, written == read))
    })?;
    from.note_read(done);
    from.finish()?;
    Ok(done)
}

/// copy_file_range(2).
pub fn copy_file_range(a: &Args) -> Result<u64> {
    let (input, output) = (file(a.a0())?, file(a.a2())?);
    input.check_readable()?;
    output.check_writable()?;
    if a.a5() != 0 {
        return Err(Errno::EINVAL);
    }
    if output.flags() & raw::O_APPEND != 0 {
        return Err(Errno::EBADF);
    }
    for file in [&input, &output] {
        match file.inode().file_type() {
            FileType::Directory => return Err(Errno::EISDIR),
            FileType::Regular if is_regular(&file.inode()) => {}
            _ => return Err(Errno::EINVAL),
        }
    }
    if input.inode().metadata()?.device != output.inode().metadata()?.device {
        return Err(Errno::EXDEV);
    }
    let mut from = Cursor::new(input, a.a1())?;
    let mut to = Cursor::new(output, a.a3())?;
    let len = a.a4().min(MAX_TRANSFER as u64);
    let ends = (from.at().checked_add(len), to.at().checked_add(len));
    let (Some(from_end), Some(to_end)) = ends else { return Err(Errno::EOVERFLOW) };
    let same = Arc::as_ptr(&from.file.inode()).addr() == Arc::as_ptr(&to.file.inode()).addr();
    if same && from.at() < to_end && to.at() < from_end {
        return Err(Errno::EINVAL);
    }
    let mut bytes = buffer(len as usize)?;
    let done = repeat(len, |left| {
        let read = from.peek(&mut bytes[..left.min(CHUNK)])?;
        if read == 0 {
            return Ok((0, false));
        }
        let written = to.write(&bytes[..read])?;
        from.advance(written);
        Ok((written, written == read))
    })?;
    from.note_read(done);
    from.finish()?;
    to.finish()?;
    Ok(done)
}

/// splice(2): at least one side is a pipe.
pub fn splice(a: &Args) -> Result<u64> {
    let flags = super::check_flags(a.a5(), SPLICE_FLAGS)?;
    if a.a4() == 0 {
        return Ok(0);
    }
    let (input, output) = (file(a.a0())?, file(a.a2())?);
    input.check_readable()?;
    output.check_writable()?;
    let nonblocking = flags & raw::SPLICE_F_NONBLOCK != 0;
    let (from_pipe, to_pipe) = (pipe::of(&input).cloned(), pipe::of(&output).cloned());
    if from_pipe.is_some() && a.a1() != 0 || to_pipe.is_some() && a.a3() != 0 {
        return Err(Errno::ESPIPE);
    }
    match (from_pipe, to_pipe) {
        (Some(from), Some(to)) if Arc::ptr_eq(&from, &to) => Err(Errno::EINVAL),
        (Some(from), to) => {
            if let Some(to) = &to {
                check_room(to, &output, nonblocking)?;
            }
            if output.flags() & raw::O_APPEND != 0 {
                return Err(Errno::EINVAL);
            }
            let mut to = Cursor::new(output, a.a3())?;
            let nonblocking = nonblocking || input.is_nonblocking();
            let done = drain(&from, a.a4(), nonblocking, |bytes| to.write(bytes))?;
            to.finish()?;
            Ok(done)
        }
        (None, Some(to)) => {
            check_room(&to, &output, nonblocking)?;
            let mut from = Cursor::new(input, a.a1())?;
            let done = fill(&mut from, &to, &output, a.a4())?;
            from.finish()?;
            Ok(done)
        }
        (None, None) => Err(Errno::EINVAL),
    }
}

/// EAGAIN if a pipe is full and nobody wants to wait.
fn check_room(pipe: &Pipe, end: &File, nonblocking: bool) -> Result<()> {
    let full = pipe.len() >= pipe.capacity();
    if full && (nonblocking || end.is_nonblocking()) { Err(Errno::EAGAIN) } else { Ok(()) }
}

/// Moves up to `len` bytes out of a pipe. Waits for the first of them only.
fn drain(
    from: &Pipe,
    len: u64,
    nonblocking: bool,
    mut write: impl FnMut(&[u8]) -> Result<usize>,
) -> Result<u64> {
    let mut bytes = buffer(len as usize)?;
    if !from.wait_readable(nonblocking)? {
        return Ok(0);
    }
    repeat(len, |left| {
        let want = left.min(CHUNK);
        let seen = from.peek(0, want, &mut Sink::kernel(&mut bytes[..want]))?;
        if seen == 0 {
            return Ok((0, false));
        }
        let written = write(&bytes[..seen])?;
        from.consume(written);
        Ok((written, written == seen && !from.is_empty()))
    })
}

/// Moves up to `len` bytes of a file into a pipe: as much as fits, at least one turn.
fn fill(from: &mut Cursor, to: &Pipe, end: &Arc<File>, len: u64) -> Result<u64> {
    let mut bytes = buffer(len as usize)?;
    let seekable = from.file.is_seekable();
    repeat(len, |left| {
        let room = to.capacity().saturating_sub(to.len()).max(1);
        let want = left.min(CHUNK).min(room);
        let read = if seekable {
            from.peek(&mut bytes[..want])?
        } else {
            read_stream(&from.file, &mut Sink::kernel(&mut bytes[..want]))? as usize
        };
        if read == 0 {
            return Ok((0, false));
        }
        let written = write_stream(end, &mut Source::kernel(&bytes[..read]))? as usize;
        if seekable {
            from.advance(written);
        }
        let more = seekable && written == want && to.len() < to.capacity();
        Ok((written, more))
    })
}

/// tee(2): copies from pipe to pipe and removes nothing.
pub fn tee(a: &Args) -> Result<u64> {
    let flags = super::check_flags(a.a3(), SPLICE_FLAGS)?;
    let (input, output) = (file(a.a0())?, file(a.a1())?);
    input.check_readable()?;
    output.check_writable()?;
    let from = pipe::of(&input).ok_or(Errno::EINVAL)?;
    let to = pipe::of(&output).ok_or(Errno::EINVAL)?;
    if Arc::ptr_eq(from, to) {
        return Err(Errno::EINVAL);
    }
    let nonblocking = flags & raw::SPLICE_F_NONBLOCK != 0;
    check_room(to, &output, nonblocking)?;
    if a.a2() == 0 || !from.wait_readable(nonblocking || input.is_nonblocking())? {
        return Ok(0);
    }
    let room = to.capacity().saturating_sub(to.len()).max(1);
    let mut bytes = buffer((a.a2() as usize).min(room))?;
    let want = bytes.len();
    let seen = from.peek(0, want, &mut Sink::kernel(&mut bytes))?;
    write_stream(&output, &mut Source::kernel(&bytes[..seen]))
}

/// vmsplice(2): a program's memory into a pipe, or out of one, by copying.
pub fn vmsplice(a: &Args) -> Result<u64> {
    super::check_flags(a.a3(), SPLICE_FLAGS)?;
    let file = file(a.a0())?;
    if pipe::of(&file).is_none() {
        return Err(Errno::EBADF);
    }
    let vector = read_iovec(a.a1(), a.a2())?;
    if file.check_writable().is_ok() {
        write_stream(&file, &mut Source::user_vector(&vector))
    } else {
        read_stream(&file, &mut Sink::user_vector(&vector))
    }
}
