//! Values inside a thread's structure that the thread itself reaches without a lock.
//!
//! Whose a cell is, is told by where it lies: inside the structure that [`Current`] names, which
//! cannot leave its thread.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicUsize, Ordering};

use super::Current;
use crate::cpu::sync::SpinLock;

/// A value inside a thread's structure that only the thread itself reaches: no lock, and no count
/// of the value's own.
pub struct ThreadCell<T> {
    /// Calls of `with` that have not returned. Each has a frame on the thread's stack, so it does
    /// not overflow. Only the thread itself counts, by a load and a store; they are atomic so that
    /// the compiler leaves them together, as one instruction that counts in memory.
    readers: AtomicUsize,
    value: UnsafeCell<T>,
}

// SAFETY: `owner` lets only the thread in whose structure the cell lies reach the value; `T: Send`
// because the structure, and the value with it, may be dropped by another thread.
unsafe impl<T: Send> Sync for ThreadCell<T> {}

impl<T> ThreadCell<T> {
    /// A cell with a value.
    pub const fn new(value: T) -> Self {
        ThreadCell { readers: AtomicUsize::new(0), value: UnsafeCell::new(value) }
    }

    /// Calls `f` with the value. Panics if the cell is not in `thread`.
    #[inline(always)]
    pub fn with<Th, R>(&self, thread: Current<Th>, f: impl FnOnce(&T) -> R) -> R {
        assert!(self.is_in(&thread), "a cell of another thread");
        // SAFETY: the cell is the running thread's.
        unsafe { self.with_own(f) }
    }

    /// Puts a value there and returns the one before. Panics as `with`, or from inside `with`.
    pub fn replace<Th>(&self, thread: Current<Th>, value: T) -> T {
        assert!(self.is_in(&thread), "a cell of another thread");
        assert!(self.readers.load(Ordering::Relaxed) == 0, "a value that is being read");
        // SAFETY: no other thread gets here, and this one is in no `with_own`, which alone give
        // out references.
        unsafe { core::mem::replace(&mut *self.value.get(), value) }
    }

    /// # Safety
    /// The cell lies in the structure of the running thread.
    #[inline(always)]
    unsafe fn with_own<R>(&self, f: impl FnOnce(&T) -> R) -> R {
        self.count(1);
        // SAFETY: only `replace` changes the value, and not while `readers` counts this call. If
        // `f` does not return, it counts for ever.
        let result = f(unsafe { &*self.value.get() });
        self.count(usize::MAX);
        result
    }

    #[inline(always)]
    fn count(&self, by: usize) {
        let readers = self.readers.load(Ordering::Relaxed);
        self.readers.store(readers.wrapping_add(by), Ordering::Relaxed);
    }

    /// Whether the cell is part of the running thread's structure. `Current` cannot leave its
    /// thread.
    #[inline(always)]
    fn is_in<Th>(&self, thread: &Current<Th>) -> bool {
        let start: *const Th = &**thread;
        let offset = (&raw const *self).addr().wrapping_sub(start.addr());
        offset < size_of::<Th>()
    }
}

/// A value inside a thread's structure that only the thread itself changes, and reads without a
/// lock; others read it, too.
pub struct OwnedCell<T> {
    value: ThreadCell<T>,
    /// Held by others that read, and by the owner while it changes the value.
    change: SpinLock<()>,
}

// SAFETY: others get shared references alone, which `T: Sync` allows, and only while `change` keeps
// the owner from changing the value; `T: Send` as in `ThreadCell`.
unsafe impl<T: Send + Sync> Sync for OwnedCell<T> {}

impl<T> OwnedCell<T> {
    /// A cell with a value.
    pub const fn new(value: T) -> Self {
        OwnedCell { value: ThreadCell::new(value), change: SpinLock::new(()) }
    }

    /// Calls `f` with the value. `reader` is the running thread; if it is not the owner, `f` runs
    /// under a spin lock.
    #[inline(always)]
    pub fn read<Th, R>(&self, reader: Current<Th>, f: impl FnOnce(&T) -> R) -> R {
        if self.value.is_in(&reader) {
            // SAFETY: the cell lies in the structure of the running thread.
            return unsafe { self.value.with_own(f) };
        }
        let _change = self.change.lock();
        // SAFETY: only `replace` changes the value, and waits for `change`.
        f(unsafe { &*self.value.value.get() })
    }

    /// Puts a value there and returns the one before. Panics if the cell is not in `thread`, or
    /// from inside `read`.
    pub fn replace<Th>(&self, thread: Current<Th>, value: T) -> T {
        let _change = self.change.lock();
        self.value.replace(thread, value)
    }
}
