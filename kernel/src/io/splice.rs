//! Data from one open file to another: sendfile(2), splice(2), copy_file_range(2).
//!
//! All goes through one bounded buffer of the kernel. A stream's data is looked at first and
//! removed only once it is written, so that nothing is lost when the other side takes less.
//! Neighbours: `pipe` has the ends, `transfer` reads and writes one file.

use alloc::sync::Arc;
use alloc::vec::Vec;

use abi::{Errno, Result, general as raw};

use super::pipe::Pipe;
use super::transfer::{self, read_stream, write_stream};
use crate::base::io::{MAX_TRANSFER, Sink, Source};
use crate::base::sched;
use crate::base::user::UserPtr;
use crate::vfs::permission::READ;
use crate::vfs::{File, hooks};

/// Bytes copied in one turn.
pub const CHUNK: usize = 64 * 1024;

/// A buffer for one turn, or for `len` bytes if that is less. ENOMEM.
pub fn buffer(len: usize) -> Result<Vec<u8>> {
    let len = len.min(CHUNK);
    let mut buffer = Vec::new();
    buffer.try_reserve_exact(len).map_err(|_| Errno::ENOMEM)?;
    buffer.resize(len, 0);
    Ok(buffer)
}

/// Where a seekable file is read or written: at an offset of the program's, or at its position.
pub struct Cursor {
    /// Which.
    pub file: Arc<File>,
    /// The program's own offset; None: the file's position counts.
    pub offset: Option<u64>,
    address: UserPtr<u64>,
}

impl Cursor {
    /// ESPIPE for an offset into a stream, EINVAL for a negative one.
    pub fn new(file: Arc<File>, address: u64) -> Result<Cursor> {
        Self::any(file, address)?.positive()
    }

    /// As [`Cursor::new`], for a caller that asks for the sign later.
    pub fn any(file: Arc<File>, address: u64) -> Result<Cursor> {
        let address = UserPtr::<u64>::new(address);
        let offset = match address.non_null() {
            None => None,
            Some(_) if !file.has_places() => return Err(Errno::ESPIPE),
            Some(at) => Some(at.read()?),
        };
        Ok(Cursor { file, offset, address })
    }

    /// EINVAL if the program's offset is negative.
    pub fn positive(self) -> Result<Cursor> {
        let is_negative = self.offset.is_some_and(|offset| offset > i64::MAX as u64);
        if is_negative { Err(Errno::EINVAL) } else { Ok(self) }
    }

    /// Where the next byte is.
    pub fn at(&self) -> u64 {
        self.offset.unwrap_or_else(|| *self.file.position.lock())
    }

    /// Reads without moving.
    pub fn peek(&self, buffer: &mut [u8]) -> Result<usize> {
        hooks::file_permission((&self.file, READ))?;
        self.file.ops().read_at(&self.file, self.at(), &mut Sink::kernel(buffer))
    }

    /// Writes where the cursor is, and moves it.
    pub fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        let mut source = Source::kernel(bytes);
        match self.offset {
            Some(at) => {
                let written = transfer::write_at(&self.file, at, &mut source)? as usize;
                self.advance(written);
                Ok(written)
            }
            None => write_stream(&self.file, &mut source).map(|written| written as usize),
        }
    }

    /// Moves it, if the file has places (zeros(4) has none).
    pub fn advance(&mut self, len: usize) {
        if !self.file.has_positions() {
            return;
        }
        match &mut self.offset {
            Some(offset) => *offset += len as u64,
            None => *self.file.position.lock() += len as u64,
        }
    }

    /// Tells whoever watches that so much was read.
    pub fn note_read(&self, done: u64) {
        transfer::note(&self.file, raw::IN_ACCESS, done as usize);
    }

    /// Tells the program its new offset.
    pub fn finish(&self) -> Result<()> {
        match self.offset {
            Some(offset) => self.address.write(&offset),
            None => Ok(()),
        }
    }
}

/// Repeats `step` (given what is left) until it moves nothing or less than asked.
pub fn repeat(len: u64, mut step: impl FnMut(usize) -> Result<(usize, bool)>) -> Result<u64> {
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

/// Moves bytes from pipe to pipe: what is there and fits. Waits only until something can move.
pub fn between_pipes(from: &Arc<Pipe>, to: &Arc<Pipe>, len: u64, nonblocking: bool) -> Result<u64> {
    if Arc::ptr_eq(from, to) {
        return Err(Errno::EINVAL);
    }
    let mut bytes = buffer(len as usize)?;
    loop {
        let is_open = from.wait_readable(nonblocking)?;
        to.wait_writable(nonblocking)?;
        if !is_open {
            return Ok(0);
        }
        let moved = repeat(len, |left| {
            let want = left.min(CHUNK).min(to.room());
            let seen = from.peek(0, want, &mut Sink::kernel(&mut bytes[..want]))?;
            if seen == 0 {
                return Ok((0, false));
            }
            let written = to.write_now(&mut Source::kernel(&bytes[..seen]))?;
            from.consume(written);
            Ok((written, written == seen))
        });
        match moved {
            // Somebody else was faster at one of the two ends.
            Ok(0) | Err(Errno::EAGAIN) if !nonblocking => {}
            Ok(0) => return Err(Errno::EAGAIN),
            moved => return moved,
        }
    }
}

/// Moves up to `len` bytes out of a pipe. Waits for the first of them only.
pub fn drain(
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

/// Moves up to `len` bytes of a file into a pipe that has room: as much as fits.
pub fn fill(from: &mut Cursor, to: &Pipe, end: &Arc<File>, len: u64) -> Result<u64> {
    let mut bytes = buffer(len as usize)?;
    let seekable = from.file.is_seekable();
    repeat(len, |left| {
        let want = left.min(CHUNK).min(to.room().max(1));
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
        let more = seekable && written == want && to.room() > 0;
        Ok((written, more))
    })
}
