//! Which thread each CPU runs, and the switch from one to the next.
//!
//! The task that goes may at once be picked by another CPU, before its registers are saved here:
//! `on_cpu` makes that CPU wait for the moment the stack is free. The reference to the task that
//! went is dropped by the one that came, because the last reference frees the very stack the switch
//! ran on.

use alloc::sync::Arc;
use core::marker::PhantomData;
use core::ops::Deref;
use core::sync::atomic::{AtomicPtr, Ordering};

use super::{Task, task_switch};
use crate::cpu::percpu;
use crate::cpu::shadow_stack::ShadowStack;
use crate::cpu::sync::Once;
use crate::cpu::{self, MAX_CPUS};
use crate::memory;
use crate::text::static_branch::static_branch_unlikely;

/// A thread of the kernel, as far as the switch is concerned.
pub trait Schedulable: Send + Sync + 'static {
    /// Its machine part: a field of the value itself, always the same. The switch checks it.
    fn task(&self) -> &Task;
}

/// Where in a thread of type `T` its task lies. Panics if it lies elsewhere: then two threads could
/// have one task.
fn place_of_task<T: Schedulable>(thread: &T) -> usize {
    let start: *const T = thread;
    let task: *const Task = thread.task();
    let place = task.addr().wrapping_sub(start.addr());
    assert!(place < size_of::<T>(), "a task outside its thread");
    place
}

/// What each CPU runs. The kernel has one static of it.
pub struct CurrentSlot<T> {
    current: [AtomicPtr<T>; MAX_CPUS],
    previous: [AtomicPtr<T>; MAX_CPUS],
    /// Where in each thread its task lies.
    place: Once<usize>,
    _owns: PhantomData<Arc<T>>,
}

/// The thread that runs this code. Tied to the thread: it cannot be sent or stored elsewhere. Nor
/// may one be leaked (`Box::leak`), which would let a reference to the thread outlive it; no type
/// can say that, so `limen check` forbids leaking to the kernel.
pub struct Current<T: 'static> {
    thread: &'static T,
    _not_send: PhantomData<*const ()>,
}

impl<T> Current<T> {
    /// # Safety
    /// `thread` was made by `Arc::into_raw`, belongs to the thread that runs this code and to no
    /// other, and is owned until that thread has been switched from for the last time.
    pub(super) unsafe fn new(thread: *const T) -> Self {
        // SAFETY: alive for as long as this code runs, by the caller's contract.
        Current { thread: unsafe { &*thread }, _not_send: PhantomData }
    }
}

impl<T> Clone for Current<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Current<T> {}

impl<T> Deref for Current<T> {
    type Target = T;
    #[inline(always)]
    fn deref(&self) -> &T {
        self.thread
    }
}

impl<T> Current<T> {
    /// A counted reference to the thread.
    pub fn to_arc(self) -> Arc<T> {
        // SAFETY: the slot holds a reference made by `Arc::into_raw` while the thread runs, and
        // `Current` exists only on the running thread.
        unsafe { Arc::increment_strong_count(self.thread) };
        // SAFETY: the count was just taken for this value.
        unsafe { Arc::from_raw(self.thread) }
    }
}

impl<T: Schedulable> CurrentSlot<T> {
    /// No CPU runs anything yet.
    #[expect(clippy::new_without_default, reason = "only made once, in a static")]
    pub const fn new() -> Self {
        CurrentSlot {
            current: [const { AtomicPtr::new(core::ptr::null_mut()) }; MAX_CPUS],
            previous: [const { AtomicPtr::new(core::ptr::null_mut()) }; MAX_CPUS],
            place: Once::new(),
            _owns: PhantomData,
        }
    }

    /// The task of a thread. Panics if it is not where the first thread's was.
    fn task_of<'a>(&self, thread: &'a T) -> &'a Task {
        let task = thread.task();
        let start: *const T = thread;
        let place = (task as *const Task).addr().wrapping_sub(start.addr());
        assert!(self.place.get() == Some(&place), "a task elsewhere in its thread");
        task
    }

    /// The thread that runs this code. Panics before [`CurrentSlot::adopt`] on this CPU.
    #[inline(always)]
    pub fn get(&'static self) -> Current<T> {
        let thread = self.current[percpu::cpu_id()].load(Ordering::Relaxed);
        assert!(!thread.is_null(), "no current thread yet");
        // SAFETY: the slot owns a reference, made by `Arc::into_raw`, while the thread runs.
        unsafe { Current::new(thread) }
    }

    /// Whether this CPU has a current thread already.
    pub fn is_set(&self) -> bool {
        !self.current[percpu::cpu_id()].load(Ordering::Relaxed).is_null()
    }

    /// Makes the code that runs now, on the boot stack, the thread `boot`. Panics if this CPU runs
    /// a thread already, or another CPU runs `boot`.
    pub fn adopt(&self, boot: Arc<T>) {
        let cpu = percpu::cpu_id();
        assert!(percpu::running_task().is_null(), "this CPU has a current thread");
        self.place.call_once(|| place_of_task(&*boot));
        let task = self.task_of(&boot);
        let is_free = !task.on_cpu.swap(true, Ordering::Acquire);
        assert!(is_free, "a thread that another CPU runs");
        let task: *const Task = task;
        percpu::local().task.store(task.cast_mut().cast(), Ordering::Relaxed);
        boot.task().part.becomes_current(cpu);
        let old = self.current[cpu].swap(Arc::into_raw(boot).cast_mut(), Ordering::Relaxed);
        assert!(old.is_null(), "this CPU has a current thread");
    }

    /// Runs `next` on this CPU; returns when the calling thread is chosen again, maybe on another
    /// CPU. Interrupts must be masked. `next` must not be queued anywhere or run by another CPU.
    pub fn switch_to(&'static self, next: Arc<T>) {
        let cpu = percpu::cpu_id();
        let old = self.current[cpu].load(Ordering::Relaxed);
        if core::ptr::eq(old, Arc::as_ptr(&next)) {
            return;
        }
        assert!(!old.is_null(), "no current thread yet");
        let next = Arc::into_raw(next);
        // SAFETY: the slot owns a reference to `old` until `finish_switch`.
        let old_task = self.task_of(unsafe { &*old });
        // SAFETY: the slot owns the reference that was made raw just now.
        let next_task = self.task_of(unsafe { &*next });
        // Behind `Schedulable::task`, which is the kernel's: nothing of it runs from here on.
        assert!(!cpu::interrupts_enabled(), "switching with interrupts enabled");
        claim(next_task);
        self.current[cpu].store(next.cast_mut(), Ordering::Relaxed);
        next_task.part.becomes_current(cpu);
        let local = percpu::local();
        local.task.store((next_task as *const Task).cast_mut().cast(), Ordering::Relaxed);
        local.kernel_stack_top.set(next_task.stack.top());
        crate::entry::descriptors::set_kernel_stack(next_task.stack.top());
        if static_branch_unlikely::<ShadowStack>() && next_task.user.is_some() {
            cpu::shadow_stack::set_entry_token(next_task.stack.shadow_token());
        }
        old_task.save_user();
        let mut space_id = 0;
        if let Some(space) = &*next_task.space.lock() {
            memory::activate(space);
            space_id = space.number();
        }
        next_task.load_user();
        crate::mitigations::switched(space_id, next_task.speculation.load(Ordering::Relaxed));
        cpu::repair_ss();
        // Last: whoever finds it here takes the registers for saved.
        self.previous[cpu].store(old, Ordering::Relaxed);
        // SAFETY: both tasks are alive. `claim` waited until `next`'s registers were saved, and
        // nobody writes where now: to a frame that `task_switch` or a constructor made.
        unsafe { task_switch(old_task.saved.get(), next_task.saved.get()) };
        self.finish_switch();
    }

    /// The first thing a thread does after it was switched to: lets go of the one before.
    pub fn finish_switch(&self) {
        let cpu = percpu::cpu_id();
        let previous = self.previous[cpu].swap(core::ptr::null_mut(), Ordering::Relaxed);
        if previous.is_null() {
            return;
        }
        // SAFETY: `switch_to` left the slot's reference here for exactly this call.
        let previous = unsafe { Arc::from_raw(previous) };
        if previous.task().part.has_ended() {
            // It stays on this CPU for ever, so that nothing can switch to it again.
            previous.task().part.release();
            return;
        }
        previous.task().on_cpu.store(false, Ordering::Release);
    }
}

/// Waits until no CPU's registers hold the task, then marks it as this CPU's.
pub(super) fn claim(task: &Task) {
    while task.on_cpu.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
        crate::cpu::sync::spin_wait();
    }
}
