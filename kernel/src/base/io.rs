//! Where data goes to and comes from in read and write calls: a program's buffers or the kernel's.
//!
//! [`Sink`] and [`Source`] are a request's side of a transfer: cursors over its buffers, and
//! whether the request may wait ([`Sink::may_wait`]), which is not for the open file alone to say
//! (RWF_NOWAIT). They know how much is left, and copying through them may sleep and fail with
//! EFAULT, so no spin lock may be held. What was copied before a fault stays copied and is counted:
//! a buffer that is only partly there takes what fits into that part.

use alloc::vec::Vec;

use abi::{Errno, Result};
use machine::frame::{Frame, PAGE_SIZE};
use machine::uaccess;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::base::user::{UserPtr, efault};

/// `struct iovec` (readv(2)).
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy, Debug)]
#[repr(C)]
pub struct IoVec {
    /// Start of the buffer in the program.
    pub base: u64,
    /// Its length, bytes.
    pub len: u64,
}

/// Most elements of an I/O vector (IOV_MAX).
pub const IOV_MAX: usize = 1024;
/// The most one call transfers (read(2): 0x7ffff000).
pub const MAX_TRANSFER: usize = 0x7fff_f000;

/// As [`read_iovec`]; None for one without bytes: then nothing is done, whatever it is for.
pub fn read_buffers(address: u64, count: u64) -> Result<Option<Vec<IoVec>>> {
    let vector = read_iovec(address, count)?;
    let has_bytes = vector.iter().any(|part| part.len != 0);
    Ok(has_bytes.then_some(vector))
}

/// Reads and checks an I/O vector. The total is cut at [`MAX_TRANSFER`].
pub fn read_iovec(address: u64, count: u64) -> Result<Vec<IoVec>> {
    if count > IOV_MAX as u64 {
        return Err(Errno::EINVAL);
    }
    if count == 0 {
        return Ok(Vec::new());
    }
    let mut vector = UserPtr::<IoVec>::new(address).read_many(count as usize)?;
    if vector.iter().any(|part| part.len > i64::MAX as u64) {
        return Err(Errno::EINVAL);
    }
    let mut left = MAX_TRANSFER as u64;
    if let [only] = &mut vector[..] {
        // A single part is cut before it is looked at, as that of read(2) is.
        only.len = only.len.min(left);
    }
    for part in &mut vector {
        // An address of nothing must be one of the program's, too.
        if !uaccess::is_user_range(part.base, part.len as usize) {
            return Err(Errno::EFAULT);
        }
        part.len = part.len.min(left);
        left -= part.len;
    }
    Ok(vector)
}

/// Copies `len` bytes of a program's one buffer, which goes on at `at`, with `copy` (address,
/// position, length): as much as is there.
#[inline(always)]
fn pass(
    at: &mut u64,
    len: usize,
    mut copy: impl FnMut(u64, usize, usize) -> Result<()>,
) -> Result<usize> {
    let done = match copy(*at, 0, len) {
        Ok(()) => len,
        Err(error) => copy_pages(*at, len, &mut copy, error)?,
    };
    *at += done as u64;
    Ok(done)
}

/// Copies page by page up to the one that is not there, after the whole failed with `error`, which
/// it is again if not even the first is there.
#[cold]
fn copy_pages(
    at: u64,
    len: usize,
    copy: &mut dyn FnMut(u64, usize, usize) -> Result<()>,
    error: Errno,
) -> Result<usize> {
    let mut done = 0;
    while done < len {
        let here = at + done as u64;
        let step = (PAGE_SIZE - here as usize % PAGE_SIZE).min(len - done);
        if copy(here, done, step).is_err() {
            break;
        }
        done += step;
    }
    if done == 0 { Err(error) } else { Ok(done) }
}

/// A program's buffers, from where the next byte is.
struct UserVector<'a> {
    parts: &'a [IoVec],
    /// Bytes of the first part already used.
    used: usize,
}

impl UserVector<'_> {
    /// The next contiguous piece: address and length. None at the end.
    fn piece(&mut self) -> Option<(u64, usize)> {
        loop {
            let part = self.parts.first()?;
            if self.used < part.len as usize {
                return Some((part.base + self.used as u64, part.len as usize - self.used));
            }
            self.parts = &self.parts[1..];
            self.used = 0;
        }
    }

    /// Copies up to `len` bytes with `copy` (address, position, length); an error only if nothing
    /// went.
    fn pass(
        &mut self,
        len: usize,
        mut copy: impl FnMut(u64, usize, usize) -> Result<()>,
    ) -> Result<usize> {
        let mut done = 0;
        while done < len
            && let Some((at, room)) = self.piece()
        {
            let step = room.min(len - done);
            let went = match copy(at, done, step) {
                Ok(()) => step,
                Err(error) => {
                    let mut rest = |at, from, len| copy(at, done + from, len);
                    match copy_pages(at, step, &mut rest, error) {
                        Ok(went) => went,
                        Err(_) if done > 0 => break,
                        Err(error) => return Err(error),
                    }
                }
            };
            self.used += went;
            done += went;
            if went < step {
                break;
            }
        }
        Ok(done)
    }
}

/// Bytes of all parts.
fn total(vector: &[IoVec]) -> usize {
    vector.iter().map(|part| part.len as usize).sum()
}

/// Where the next byte goes.
enum To<'a> {
    User(u64),
    Vector(UserVector<'a>),
    Kernel(&'a mut [u8]),
}

/// Where a read puts its data.
pub struct Sink<'a> {
    left: usize,
    to: To<'a>,
    nowait: bool,
}

impl<'a> Sink<'a> {
    /// A program's buffer.
    #[must_use]
    pub fn user(base: u64, len: usize) -> Self {
        Sink { left: len.min(MAX_TRANSFER), to: To::User(base), nowait: false }
    }

    /// A program's buffers, from [`read_iovec`].
    #[must_use]
    pub fn user_vector(vector: &'a [IoVec]) -> Self {
        let to = To::Vector(UserVector { parts: vector, used: 0 });
        Sink { left: total(vector), to, nowait: false }
    }

    /// A buffer of the kernel.
    #[must_use]
    pub fn kernel(buffer: &'a mut [u8]) -> Self {
        Sink { left: buffer.len(), to: To::Kernel(buffer), nowait: false }
    }

    /// The same, for a request that does not wait for data to come or for room (RWF_NOWAIT).
    #[must_use]
    pub fn without_waiting(self, nowait: bool) -> Self {
        Self { nowait, ..self }
    }

    /// Whether the request may wait, as far as it says itself; the open file may forbid it, too.
    #[inline(always)]
    pub fn may_wait(&self) -> bool {
        !self.nowait
    }

    /// Bytes that still fit.
    #[must_use]
    #[inline(always)]
    pub fn left(&self) -> usize {
        self.left
    }

    /// Copies as many of `bytes` as fit; returns how many. EFAULT only if not one byte went.
    pub fn put(&mut self, bytes: &[u8]) -> Result<usize> {
        self.put_with(
            bytes.len(),
            |at, from, len| uaccess::write_bytes(at, &bytes[from..from + len]).map_err(efault),
            |to, from, len| to.copy_from_slice(&bytes[from..from + len]),
        )
    }

    /// Puts one word, or what fits of it. EFAULT.
    #[inline]
    pub fn put_u64(&mut self, value: u64) -> Result<usize> {
        match &mut self.to {
            To::User(at) if self.left >= 8 => {
                uaccess::write_u64(*at, value).map_err(efault)?;
                *at += 8;
                self.left -= 8;
                Ok(8)
            }
            _ => match self.put(&value.to_ne_bytes())? {
                put if put < 8 && self.left() > 0 => Err(Errno::EFAULT),
                put => Ok(put),
            },
        }
    }

    /// Copies up to `len` bytes of a frame.
    #[inline]
    pub fn put_frame(&mut self, frame: &Frame, offset: usize, len: usize) -> Result<usize> {
        self.put_with(
            len,
            |at, from, len| uaccess::copy_from_frame(at, frame, offset + from, len).map_err(efault),
            |to, from, _| frame.read(offset + from, to),
        )
    }

    /// Writes up to `len` zero bytes.
    pub fn put_zeros(&mut self, len: usize) -> Result<usize> {
        self.put_with(
            len,
            |at, _, len| uaccess::write_zeros(at, len).map_err(efault),
            |to, _, _| to.fill(0),
        )
    }

    /// Passes over up to `len` bytes, which stay as they are; returns how many.
    pub fn skip(&mut self, len: usize) -> usize {
        self.put_with(len, |_, _, _| Ok(()), |_, _, _| ()).unwrap_or(0)
    }

    #[inline(always)]
    fn put_with(
        &mut self,
        len: usize,
        mut to_user: impl FnMut(u64, usize, usize) -> Result<()>,
        mut to_kernel: impl FnMut(&mut [u8], usize, usize),
    ) -> Result<usize> {
        let len = len.min(self.left);
        // Nothing to copy is no access: the address may be anything.
        if len == 0 {
            return Ok(0);
        }
        let done = match &mut self.to {
            To::User(at) => pass(at, len, &mut to_user)?,
            To::Vector(vector) => vector.pass(len, to_user)?,
            To::Kernel(buffer) => {
                let (now, later) = core::mem::take(buffer).split_at_mut(len);
                to_kernel(now, 0, len);
                *buffer = later;
                len
            }
        };
        self.left -= done;
        Ok(done)
    }
}

/// Where the next byte comes from.
enum From<'a> {
    User(u64),
    Vector(UserVector<'a>),
    Kernel(&'a [u8]),
}

/// Where a write takes its data from.
pub struct Source<'a> {
    left: usize,
    from: From<'a>,
    nowait: bool,
    append: Option<bool>,
}

impl<'a> Source<'a> {
    /// A program's buffer.
    #[must_use]
    pub fn user(base: u64, len: usize) -> Self {
        Self::of(len.min(MAX_TRANSFER), From::User(base))
    }

    /// A program's buffers, from [`read_iovec`].
    #[must_use]
    pub fn user_vector(vector: &'a [IoVec]) -> Self {
        Self::of(total(vector), From::Vector(UserVector { parts: vector, used: 0 }))
    }

    /// A buffer of the kernel.
    #[must_use]
    pub fn kernel(buffer: &'a [u8]) -> Self {
        Self::of(buffer.len(), From::Kernel(buffer))
    }

    #[inline(always)]
    fn of(left: usize, from: From<'a>) -> Self {
        Source { left, from, nowait: false, append: None }
    }

    /// The same, for a request that does not wait for data to come or for room (RWF_NOWAIT).
    #[must_use]
    pub fn without_waiting(self, nowait: bool) -> Self {
        Self { nowait, ..self }
    }

    /// The same, for a request that says whether its data goes to the file's end (RWF_APPEND,
    /// RWF_NOAPPEND).
    #[must_use]
    pub fn appending(self, append: Option<bool>) -> Self {
        Self { append, ..self }
    }

    /// Whether the data goes to the end: as the request says, or else an open file with these
    /// flags (O_APPEND).
    #[inline(always)]
    pub fn appends(&self, flags: u32) -> bool {
        self.append.unwrap_or(flags & abi::general::O_APPEND != 0)
    }

    /// Whether the request may wait, as far as it says itself; the open file may forbid it, too.
    #[inline(always)]
    pub fn may_wait(&self) -> bool {
        !self.nowait
    }

    /// Bytes that are left.
    #[must_use]
    #[inline(always)]
    pub fn left(&self) -> usize {
        self.left
    }

    /// Forgets all but the next `len` bytes.
    pub fn truncate(&mut self, len: usize) {
        self.left = self.left.min(len);
    }

    /// Copies as many bytes as there are and fit; returns how many. EFAULT only if not one went.
    pub fn take(&mut self, into: &mut [u8]) -> Result<usize> {
        let len = into.len();
        let into = core::cell::RefCell::new(into);
        self.take_with(
            len,
            |at, to, len| {
                uaccess::read_bytes(at, &mut into.borrow_mut()[to..to + len]).map_err(efault)
            },
            |bytes, to| into.borrow_mut()[to..to + bytes.len()].copy_from_slice(bytes),
        )
    }

    /// Fills `into`, from the beginning on as far as there is anything left. EFAULT unless all of
    /// that is there.
    pub fn take_whole(&mut self, into: &mut [u8]) -> Result<usize> {
        let len = into.len().min(self.left());
        if self.take(into)? < len { Err(Errno::EFAULT) } else { Ok(len) }
    }

    /// EFAULT unless the next byte is there, if any is left: so what a write needs is not made for
    /// nothing.
    pub fn probe(&mut self) -> Result<()> {
        let next = match &mut self.from {
            _ if self.left == 0 => None,
            From::User(at) => Some(*at),
            From::Vector(vector) => vector.piece().map(|(at, _)| at),
            From::Kernel(_) => None,
        };
        next.map_or(Ok(()), |at| uaccess::read_bytes(at, &mut [0]).map_err(efault))
    }

    /// Reads all of it for nobody: EFAULT unless it is there.
    pub fn read_through(&mut self) -> Result<()> {
        let mut piece = [0; 256];
        while self.left() > 0 {
            self.take_whole(&mut piece)?;
        }
        Ok(())
    }

    /// Takes one word; EINVAL if there is less, EFAULT.
    #[inline]
    pub fn take_u64(&mut self) -> Result<u64> {
        match &mut self.from {
            From::User(at) if self.left >= 8 => {
                let value = uaccess::read_u64(*at).map_err(efault)?;
                *at += 8;
                self.left -= 8;
                Ok(value)
            }
            _ => self.take_u64_slowly(),
        }
    }

    #[cold]
    fn take_u64_slowly(&mut self) -> Result<u64> {
        if self.left() < 8 {
            return Err(Errno::EINVAL);
        }
        let mut bytes = [0; 8];
        if self.take(&mut bytes)? < 8 { Err(Errno::EFAULT) } else { Ok(u64::from_ne_bytes(bytes)) }
    }

    /// Copies up to `len` bytes into a frame.
    #[inline]
    pub fn take_frame(&mut self, frame: &Frame, offset: usize, len: usize) -> Result<usize> {
        self.take_with(
            len,
            |at, to, len| uaccess::copy_to_frame(frame, offset + to, at, len).map_err(efault),
            |bytes, to| frame.write(offset + to, bytes),
        )
    }

    /// Passes over up to `len` bytes.
    pub fn skip(&mut self, len: usize) -> usize {
        self.take_with(len, |_, _, _| Ok(()), |_, _| ()).unwrap_or(0)
    }

    #[inline(always)]
    fn take_with(
        &mut self,
        len: usize,
        mut from_user: impl FnMut(u64, usize, usize) -> Result<()>,
        mut from_kernel: impl FnMut(&[u8], usize),
    ) -> Result<usize> {
        let len = len.min(self.left);
        if len == 0 {
            return Ok(0);
        }
        let done = match &mut self.from {
            From::User(at) => pass(at, len, &mut from_user)?,
            From::Vector(vector) => vector.pass(len, from_user)?,
            From::Kernel(buffer) => {
                let (now, later) = buffer.split_at(len);
                from_kernel(now, 0);
                *buffer = later;
                len
            }
        };
        self.left -= done;
        Ok(done)
    }
}
