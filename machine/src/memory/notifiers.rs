//! Who is told before an address space loses a right: those that have translations of their own,
//! made from its tables (guests, `vmrun`).
//!
//! What is told is a range of addresses, and the answer is that nobody uses an old translation of
//! it any more; so nobody holds a lock meanwhile that such a use could wait for.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};

use crate::cpu::PAGE_SIZE;
use crate::cpu::sync::SpinLock;
use crate::memory::frame::OutOfMemory;

const PAGE: u64 = PAGE_SIZE as u64;

/// Has translations of its own.
pub(crate) trait MmuNotifier: Send + Sync {
    /// Drops those made from `start` to `end`; returns when nobody can use them any more.
    fn invalidate(&self, start: u64, end: u64);
}

/// Guests whose memory is an address space's: what it loses, they lose first.
pub(crate) struct MmuNotifiers {
    any: AtomicBool,
    list: SpinLock<Vec<Weak<dyn MmuNotifier>>>,
}

impl MmuNotifiers {
    pub(crate) const fn new() -> Self {
        MmuNotifiers { any: AtomicBool::new(false), list: SpinLock::new(Vec::new()) }
    }

    /// From now on `notifier` is told, while it lives.
    pub(crate) fn add(&self, notifier: &Arc<dyn MmuNotifier>) -> Result<(), OutOfMemory> {
        let mut list = self.list.lock();
        list.retain(|old| old.strong_count() > 0);
        list.try_reserve(1).map_err(|_| OutOfMemory)?;
        list.push(Arc::downgrade(notifier));
        self.any.store(true, Ordering::SeqCst);
        Ok(())
    }

    /// One has died: once all have, nobody is told. The list is not shortened before, because
    /// somebody may be on the way through it.
    pub(crate) fn one_less(&self) {
        let mut list = self.list.lock();
        if list.iter().all(|notifier| notifier.strong_count() == 0) {
            list.clear();
            self.any.store(false, Ordering::SeqCst);
        }
    }

    /// Whether there may be any. Who has the space's table, exclusively or not, keeps the answer
    /// "none"; the last one may die at any time.
    #[inline(always)]
    pub(crate) fn any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    /// `pages` pages from `start` on lose rights.
    #[inline(always)]
    pub(crate) fn invalidate(&self, start: u64, pages: u64) {
        if self.any() {
            self.invalidate_all(start, start.saturating_add(pages.saturating_mul(PAGE)));
        }
    }

    #[cold]
    fn invalidate_all(&self, start: u64, end: u64) {
        let mut n = 0;
        // Not under the lock of the list: the wait for other CPUs may be long.
        loop {
            let notifier = match self.list.lock().get(n) {
                Some(notifier) => notifier.upgrade(),
                None => return,
            };
            if let Some(notifier) = notifier {
                notifier.invalidate(start, end);
            }
            n += 1;
        }
    }
}
