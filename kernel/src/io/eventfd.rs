//! Event counters (eventfd(2)).
//!
//! The whole state is one atomic word, so reading and writing take no lock.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering};

use abi::{Errno, Result, general as raw};

use crate::base::io::{Sink, Source};
use crate::base::poll::{PollTable, events};
use crate::base::sync::WaitQueue;
use crate::vfs::{File, FileOps, FileType, Inode, anon::AnonInode};

/// The largest value a write can reach.
const MAX: u64 = u64::MAX - 1;

/// An event counter.
pub struct EventFd {
    count: AtomicU64,
    is_semaphore: bool,
    read_queue: Arc<WaitQueue>,
    write_queue: Arc<WaitQueue>,
    inode: Arc<AnonInode>,
}

impl EventFd {
    /// Takes from the counter what a read takes; None while it is 0.
    #[inline]
    fn try_take(&self) -> Option<u64> {
        let mut count = self.count.load(Ordering::SeqCst);
        loop {
            if count == 0 {
                return None;
            }
            let taken = if self.is_semaphore { 1 } else { count };
            let swap = self.count.compare_exchange_weak(
                count,
                count - taken,
                Ordering::SeqCst,
                Ordering::SeqCst,
            );
            match swap {
                Ok(_) => return Some(taken),
                Err(now) => count = now,
            }
        }
    }

    /// Adds `value`; None while that would pass [`MAX`].
    #[inline]
    fn try_add(&self, value: u64) -> Option<()> {
        let mut count = self.count.load(Ordering::SeqCst);
        loop {
            if MAX - count < value {
                return None;
            }
            let swap = self.count.compare_exchange_weak(
                count,
                count + value,
                Ordering::SeqCst,
                Ordering::SeqCst,
            );
            match swap {
                Ok(_) => return Some(()),
                Err(now) => count = now,
            }
        }
    }
}

impl EventFd {
    /// Takes what a read would, and wakes writers; None while it is 0. For watchers in the kernel,
    /// callable where they are woken: under the lock of the readers' queue.
    pub fn consume(&self) -> Option<u64> {
        let taken = self.try_take()?;
        self.write_queue.wake_all(events::WRITABLE);
        Some(taken)
    }

    /// Adds 1 as a write does, but never waits: what does not fit is lost. Callable from
    /// interrupts.
    pub fn signal(&self) {
        if self.try_add(1).is_some() {
            self.read_queue.wake_one(events::READABLE);
        }
    }
}

impl FileOps for EventFd {
    fn read_at(&self, file: &File, _offset: u64, sink: &mut Sink<'_>) -> Result<usize> {
        if sink.left() < 8 {
            return Err(Errno::EINVAL);
        }
        let value = match self.try_take() {
            Some(value) => value,
            None if file.is_nonblocking() || !sink.may_wait() => return Err(Errno::EAGAIN),
            None => self.read_queue.wait(|| self.try_take())?,
        };
        self.write_queue.wake_all(events::WRITABLE);
        if self.is_semaphore && self.count.load(Ordering::Relaxed) > 0 {
            self.read_queue.wake_one(events::READABLE);
        }
        sink.put_u64(value)
    }

    fn write_at(&self, file: &File, _offset: u64, source: &mut Source<'_>) -> Result<usize> {
        if source.left() != 8 {
            return Err(Errno::EINVAL);
        }
        let value = source.take_u64()?;
        if value == u64::MAX {
            return Err(Errno::EINVAL);
        }
        match self.try_add(value) {
            Some(()) => {}
            None if file.is_nonblocking() || !source.may_wait() => return Err(Errno::EAGAIN),
            None => self.write_queue.wait(|| self.try_add(value))?,
        }
        self.read_queue.wake_one(events::READABLE);
        Ok(8)
    }

    fn poll(&self, _file: &File, table: &mut PollTable) -> u32 {
        table.wait_on(&self.read_queue);
        table.wait_on(&self.write_queue);
        let count = self.count.load(Ordering::SeqCst);
        let mut mask = 0;
        if count > 0 {
            mask |= events::READABLE;
        }
        if count < MAX {
            mask |= events::WRITABLE;
        }
        // eventfd_poll names neither "normal" band.
        mask & (events::IN | events::OUT)
    }

    fn describe(&self, out: &mut dyn core::fmt::Write) {
        // Text in memory has no error to give.
        let _ = writeln!(out, "eventfd-count: {:16x}", self.count.load(Ordering::Relaxed));
        let _ = writeln!(out, "eventfd-semaphore: {}", u8::from(self.is_semaphore));
    }

    fn inode(&self) -> Arc<dyn Inode> {
        self.inode.clone()
    }
}

/// eventfd(2), the old call without flags.
pub fn sys_eventfd(value: u32) -> Result<u64> {
    make(value, 0)
}

/// eventfd2(2): what the library calls eventfd.
pub fn sys_eventfd2(value: u32, flags: u32) -> Result<u64> {
    make(value, flags)
}

fn make(initial: u32, flags: u32) -> Result<u64> {
    if flags & !(raw::EFD_SEMAPHORE | raw::EFD_CLOEXEC | raw::EFD_NONBLOCK) != 0 {
        return Err(Errno::EINVAL);
    }
    let event = EventFd {
        count: AtomicU64::new(u64::from(initial)),
        is_semaphore: flags & raw::EFD_SEMAPHORE != 0,
        read_queue: Arc::new(WaitQueue::new()),
        write_queue: Arc::new(WaitQueue::new()),
        inode: AnonInode::new(FileType::Anonymous, 0o600, "[eventfd]"),
    };
    let open = raw::O_RDWR | flags & raw::EFD_NONBLOCK;
    super::give_ops(Arc::new(event), open, flags & raw::EFD_CLOEXEC != 0)
}
