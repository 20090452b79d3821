//! Files that are written and files that run exclude each other: ETXTBSY (open(2), execve(2)).
//!
//! Each inode of a regular file has a [`WriterCount`]; who writes or runs the file holds a guard.
//! One number serves both sides, so that of two that come at the same time exactly one wins.
//! Neighbours: `open` takes [`WriteAccess`], `process::exec` takes [`WriteDenial`].

use alloc::sync::Arc;
use core::sync::atomic::{AtomicI32, Ordering};

use abi::{Errno, Result};

use super::Inode;

/// Above zero: so many write; below: so many run it.
#[derive(Default)]
pub struct WriterCount(AtomicI32);

impl WriterCount {
    /// Counts one more on the side of `step` (1 or -1), unless the other side is there.
    fn enter(&self, step: i32) -> Result<()> {
        let next = |count: i32| if count * step >= 0 { count.checked_add(step) } else { None };
        self.0
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, next)
            .map(|_| ())
            .map_err(|_| Errno::ETXTBSY)
    }

    fn leave(&self, step: i32) {
        self.0.fetch_sub(step, Ordering::AcqRel);
    }
}

/// An open file may be written to: while it exists the file cannot be executed.
pub struct WriteAccess(Arc<dyn Inode>);

impl WriteAccess {
    /// ETXTBSY while the file runs.
    pub fn new(inode: Arc<dyn Inode>) -> Result<WriteAccess> {
        inode.writer_count().map_or(Ok(()), |count| count.enter(1))?;
        Ok(WriteAccess(inode))
    }
}

impl Drop for WriteAccess {
    fn drop(&mut self) {
        if let Some(count) = self.0.writer_count() {
            count.leave(1);
        }
    }
}

/// A program runs from the file: while it exists the file cannot be opened for writing.
pub struct WriteDenial(Arc<dyn Inode>);

impl WriteDenial {
    /// ETXTBSY while the file is open for writing.
    pub fn new(inode: Arc<dyn Inode>) -> Result<WriteDenial> {
        inode.writer_count().map_or(Ok(()), |count| count.enter(-1))?;
        Ok(WriteDenial(inode))
    }
}

impl Drop for WriteDenial {
    fn drop(&mut self) {
        if let Some(count) = self.0.writer_count() {
            count.leave(-1);
        }
    }
}
