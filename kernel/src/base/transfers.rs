//! What threads move by read(2), write(2) and their like: /proc/PID/io (proc(5)).
//!
//! Calls count and bytes do, whatever the file is; send(2) and splice(2) move data and count
//! nowhere, as on Linux. A thread counts in a place of its own; what those counted that have ended,
//! and children that were waited for, stands with the process.

use core::sync::atomic::{AtomicU64, Ordering};

use abi::Result;

/// Bytes and calls one way.
#[derive(Default)]
pub struct Direction {
    bytes: AtomicU64,
    calls: AtomicU64,
}

/// See the module.
#[derive(Default)]
pub struct Transfers {
    /// By calls that read.
    pub read: Direction,
    /// By calls that write.
    pub written: Direction,
}

/// What was moved in all.
#[derive(Clone, Copy, Debug, Default)]
pub struct Totals {
    /// Bytes read.
    pub read: u64,
    /// Bytes written.
    pub written: u64,
    /// Calls that read.
    pub read_calls: u64,
    /// Calls that write.
    pub write_calls: u64,
}

impl Direction {
    /// A call of the running thread, whose own this is, has ended: nobody else adds to it.
    #[inline(always)]
    pub fn note(&self, result: &Result<u64>) {
        let add = |to: &AtomicU64, more| {
            to.store(to.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
        };
        add(&self.calls, 1);
        if let Ok(bytes) = result {
            add(&self.bytes, *bytes);
        }
    }
}

impl Transfers {
    /// What has been counted up to now.
    pub fn totals(&self) -> Totals {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Totals {
            read: of(&self.read.bytes),
            written: of(&self.written.bytes),
            read_calls: of(&self.read.calls),
            write_calls: of(&self.written.calls),
        }
    }

    /// Adds what others have counted.
    pub fn add(&self, more: Totals) {
        self.read.bytes.fetch_add(more.read, Ordering::Relaxed);
        self.written.bytes.fetch_add(more.written, Ordering::Relaxed);
        self.read.calls.fetch_add(more.read_calls, Ordering::Relaxed);
        self.written.calls.fetch_add(more.write_calls, Ordering::Relaxed);
    }
}
