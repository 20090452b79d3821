//! Files that are written and files that run exclude each other: ETXTBSY (open(2), execve(2)).
//!
//! Each inode has a [`WriterCount`] in its state; who writes or runs the file holds a guard.
//! One number serves both sides, so that of two that come at the same time exactly one wins.
//! Neighbours: `open` takes an [`Access`], `exec` takes [`WriteDenial`], `leases` looks at the
//! counts.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicI32, Ordering};

use abi::{Errno, Result};

use super::Inode;
use super::mount::Mount;
use super::path::Location;

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

    /// Above zero: so many write; below: so many run it.
    pub fn count(&self) -> i32 {
        self.0.load(Ordering::SeqCst)
    }

    fn leave(&self, step: i32) {
        self.0.fetch_sub(step, Ordering::AcqRel);
    }
}

/// An open file may be written to: while it exists the file cannot be executed, and its mount
/// cannot become read-only.
pub struct WriteAccess {
    inode: Arc<dyn Inode>,
    mount: Option<Arc<Mount>>,
}

impl WriteAccess {
    /// ETXTBSY while the file runs, EROFS on a read-only mount.
    pub fn new(location: &Location) -> Result<WriteAccess> {
        location.mount.enter_writer()?;
        if let Err(error) = location.inode().state().writers.enter(1) {
            location.mount.leave_writer();
            return Err(error);
        }
        let mount = Some(location.mount.clone());
        Ok(WriteAccess { inode: location.inode().clone(), mount })
    }

    /// The same of an object that is on no mount.
    pub fn unnamed(inode: Arc<dyn Inode>) -> Result<WriteAccess> {
        inode.state().writers.enter(1)?;
        Ok(WriteAccess { inode, mount: None })
    }
}

impl Drop for WriteAccess {
    fn drop(&mut self) {
        self.inode.state().writers.leave(1);
        if let Some(mount) = &self.mount {
            mount.leave_writer();
        }
    }
}

/// An open file only reads: while it exists nobody gets a lease for himself alone.
pub struct ReadAccess(Arc<dyn Inode>);

impl ReadAccess {
    /// Counts one more reader.
    pub fn new(inode: Arc<dyn Inode>) -> ReadAccess {
        inode.state().readers.fetch_add(1, Ordering::SeqCst);
        ReadAccess(inode)
    }
}

impl Drop for ReadAccess {
    fn drop(&mut self) {
        self.0.state().readers.fetch_sub(1, Ordering::SeqCst);
    }
}

/// How an open file counts on its object.
pub enum Access {
    /// Not at all: it is no regular file, or has no name.
    Uncounted,
    /// It reads.
    Read(ReadAccess),
    /// It may be written to.
    Write(WriteAccess),
}

/// A program runs from the file: while it exists the file cannot be opened for writing.
pub struct WriteDenial(Arc<dyn Inode>);

impl WriteDenial {
    /// ETXTBSY while the file is open for writing.
    pub fn new(inode: Arc<dyn Inode>) -> Result<WriteDenial> {
        inode.state().writers.enter(-1)?;
        Ok(WriteDenial(inode))
    }
}

impl Drop for WriteDenial {
    fn drop(&mut self) {
        self.0.state().writers.leave(-1);
    }
}
