//! What a floor above the scheduler has of each thread: found as fast as the thread itself, though
//! the scheduler does not know its type.
//!
//! Why it is hard: the part owns the scheduler's thread, which has to lead to the part while it
//! runs. So a task owns its part from [`PartSlot::attach`] on, and lets go of it when the thread
//! has ended and another one runs on its CPU, or when it is given up before it ever ran. In between
//! the switch puts the part's address where [`PartSlot::get`] finds it.

use alloc::sync::Arc;
use core::marker::PhantomData;
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use super::{Current, Task};
use crate::cpu::sync::Once;
use crate::cpu::{MAX_CPUS, percpu};

/// The parts of the running threads, by CPU.
type Slots = [AtomicPtr<()>; MAX_CPUS];

/// The slots that switches fill: of the one [`PartSlot`] that has been attached to.
static SLOTS: AtomicPtr<Slots> = AtomicPtr::new(core::ptr::null_mut());

/// The parts, of type `P`, of the threads that CPUs run. A kernel has one static of it.
pub struct PartSlot<P> {
    current: Slots,
    _owns: PhantomData<Arc<P>>,
}

/// A task's part, without its type.
#[derive(Default)]
pub(super) struct Part {
    owned: Once<Owned>,
    /// The task owns it still.
    is_held: AtomicBool,
    has_ended: AtomicBool,
}

/// From `Arc::into_raw`, and what takes it back.
struct Owned {
    value: *const (),
    release: unsafe fn(*const ()),
}

// SAFETY: `attach` takes parts that may be shared by threads and dropped by any.
unsafe impl Send for Owned {}
// SAFETY: as for `Send`: the pointer is only handed out as a shared reference.
unsafe impl Sync for Owned {}

impl Part {
    /// The task runs on `cpu` from now on. Interrupts are masked.
    #[inline]
    pub(super) fn becomes_current(&self, cpu: usize) {
        let slots = SLOTS.load(Ordering::Relaxed);
        if slots.is_null() {
            return;
        }
        let value = self.owned.get().map_or(core::ptr::null(), |owned| owned.value);
        // SAFETY: `attach` stored the address of a static.
        let slots = unsafe { &*slots };
        slots[cpu].store(value.cast_mut(), Ordering::Relaxed);
    }

    pub(super) fn end(&self) {
        self.has_ended.store(true, Ordering::Relaxed);
    }

    pub(super) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Relaxed)
    }

    /// The task lets go of it. No CPU runs the task, or ever will.
    pub(super) fn release(&self) {
        if !self.is_held.swap(false, Ordering::AcqRel) {
            return;
        }
        if let Some(owned) = self.owned.get() {
            // SAFETY: `value` and `release` are of one type, and `is_held` lets this happen once.
            unsafe { (owned.release)(owned.value) };
        }
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.release();
    }
}

/// # Safety
/// `value` came from `Arc::<P>::into_raw`, and this is its count.
unsafe fn release<P>(value: *const ()) {
    // SAFETY: the caller's count is given back as it was taken.
    drop(unsafe { Arc::from_raw(value.cast::<P>()) });
}

impl<P: Send + Sync + 'static> PartSlot<P> {
    /// No thread has a part yet.
    #[expect(clippy::new_without_default, reason = "only made once, in a static")]
    pub const fn new() -> Self {
        let current = [const { AtomicPtr::new(core::ptr::null_mut()) }; MAX_CPUS];
        PartSlot { current, _owns: PhantomData }
    }

    /// Makes `part` the part of `task`, which has not run yet, or is about to be adopted. Panics if
    /// it has one, or if parts of another slot are in use.
    pub fn attach(&'static self, task: &Task, part: P) -> Arc<P> {
        let own = (&raw const self.current).cast_mut();
        let others = SLOTS.compare_exchange(
            core::ptr::null_mut(),
            own,
            Ordering::Relaxed,
            Ordering::Relaxed,
        );
        assert!(others.is_ok() || others == Err(own), "a second kind of parts");
        // The value is new, so it is no other task's part, and never will be.
        let part = Arc::new(part);
        let mut is_first = false;
        task.part.owned.call_once(|| {
            is_first = true;
            let value = Arc::into_raw(part.clone()).cast();
            Owned { value, release: release::<P> }
        });
        assert!(is_first, "a task with a part");
        task.part.is_held.store(true, Ordering::Release);
        part
    }

    /// The part of the thread that runs this code. Panics if it has none.
    #[inline(always)]
    pub fn get(&'static self) -> Current<P> {
        let part = self.current[percpu::cpu_id()].load(Ordering::Relaxed).cast::<P>();
        assert!(!part.is_null(), "a thread without its part");
        // SAFETY: only values that `attach` of this slot made get into these slots, since switches
        // fill the slots of one `PartSlot` alone; `attach` gave this one to the running task and to
        // no other, and the task owns it until `finish_switch` after its last run.
        unsafe { Current::new(part) }
    }

    /// Whether the thread that runs this code has a part; false early in boot.
    pub fn is_set(&'static self) -> bool {
        !self.current[percpu::cpu_id()].load(Ordering::Relaxed).is_null()
    }
}
