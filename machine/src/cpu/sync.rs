//! Locks that the machine and the kernel share: the spin lock, and "set once".
//!
//! There is one kind of spin lock, and it masks interrupts while it is held. Interrupt handlers
//! may therefore take any of them, and the usual question "may this lock be taken from an
//! interrupt?" has one answer. The price is a CLI and a POPF per lock; the gain is that a whole
//! class of deadlocks cannot be written. Sleeping while one is held is a bug; [`assert_may_sleep`]
//! catches it, in every build, at the place of the mistake.
//!
//! Kernel code is never preempted between two of its own instructions except by interrupt
//! handlers, which return to it; so holding a lock is short wherever its critical section is.

use core::arch::asm;
use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

#[cfg(feature = "lockstat")]
use crate::cpu::lockstat::LockStat;
use crate::cpu::sealed::sealed;
use crate::cpu::{self, percpu};

pub use super::read_mostly::{ReadMostly, TryReadMostly};
pub use spin::Once;

/// Whether `word` is 0 now: a compare with memory and a branch, where the compiler would load the
/// word first. For the questions of every system call.
#[inline(always)]
pub fn is_zero(word: &AtomicU32) -> bool {
    'other: {
        // SAFETY: an aligned load of a live word, which tears nothing; the label is in this
        // function.
        unsafe {
            asm!("cmp dword ptr [{word}], 0",
                 "jne {other}",
                 word = in(reg) word.as_ptr(),
                 other = label { break 'other false; },
                 options(nostack, readonly));
        }
        true
    }
}

/// Masks interrupts on this CPU while it lives; restores what was before.
pub struct IrqGuard {
    were_enabled: bool,
    // Interrupt state belongs to the CPU: the guard must be dropped where it was made.
    _not_send: core::marker::PhantomData<*const ()>,
}

impl IrqGuard {
    /// Masks interrupts.
    #[inline(always)]
    #[expect(clippy::new_without_default, reason = "making one has an effect")]
    pub fn new() -> Self {
        let were_enabled = cpu::interrupts_enabled();
        cpu::irq_disable();
        IrqGuard { were_enabled, _not_send: core::marker::PhantomData }
    }
}

impl Drop for IrqGuard {
    #[inline(always)]
    fn drop(&mut self) {
        if self.were_enabled {
            cpu::irq_enable();
        }
    }
}

/// Mutual exclusion by spinning, interrupts masked while held. Never sleep while holding one.
///
/// Whoever comes first takes it. A queue (tickets) would be fair, but hands the lock to a CPU that
/// the host may have descheduled, and everybody waits for the host: with 4 CPUs on 2 cores a futex
/// storm ran into the watchdog.
pub struct SpinLock<T: ?Sized> {
    held: AtomicBool,
    #[cfg(feature = "lockstat")]
    stat: LockStat,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached only through a guard, and `held` admits one guard at a time.
unsafe impl<T: ?Sized + Send> Send for SpinLock<T> {}
// SAFETY: as above; `&SpinLock<T>` gives `&mut T` to one CPU at a time, so `T: Send` suffices.
unsafe impl<T: ?Sized + Send> Sync for SpinLock<T> {}

impl<T> SpinLock<T> {
    /// A free lock around `value`.
    #[cfg_attr(feature = "lockstat", track_caller)]
    pub const fn new(value: T) -> Self {
        SpinLock {
            held: AtomicBool::new(false),
            #[cfg(feature = "lockstat")]
            stat: LockStat::new(),
            value: UnsafeCell::new(value),
        }
    }

    /// Takes the value out of a lock nobody else can see.
    pub fn into_inner(self) -> T {
        self.value.into_inner()
    }
}

impl<T: ?Sized> SpinLock<T> {
    /// Waits for the lock. Deadlocks, visibly (the watchdog reports it), if this CPU holds it.
    #[inline(always)]
    pub fn lock(&self) -> SpinGuard<'_, T> {
        let irq = IrqGuard::new();
        if self.held.swap(true, Ordering::SeqCst) {
            #[cfg(feature = "lockstat")]
            self.stat.note_waited();
            self.wait();
        }
        #[cfg(feature = "lockstat")]
        self.stat.note_taken();
        percpu::atomic_enter();
        SpinGuard { lock: self, _irq: irq }
    }

    #[cold]
    fn wait(&self) {
        loop {
            while self.held.load(Ordering::Relaxed) {
                spin_wait();
            }
            if !self.held.swap(true, Ordering::SeqCst) {
                return;
            }
        }
    }

    /// Takes the lock if it is free.
    pub fn try_lock(&self) -> Option<SpinGuard<'_, T>> {
        let irq = IrqGuard::new();
        if self.held.swap(true, Ordering::SeqCst) {
            #[cfg(feature = "lockstat")]
            self.stat.note_waited();
            return None;
        }
        #[cfg(feature = "lockstat")]
        self.stat.note_taken();
        percpu::atomic_enter();
        Some(SpinGuard { lock: self, _irq: irq })
    }

    /// The value of a lock nobody else can see.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }

    /// Whether it is held. For [`read_mostly`](super::read_mostly), which has written before.
    #[inline(always)]
    pub(super) fn is_held(&self) -> bool {
        self.held.load(Ordering::SeqCst)
    }

    /// Where the value is: whoever follows it knows why nobody has the lock.
    #[inline(always)]
    pub(super) fn value(&self) -> *const T {
        self.value.get()
    }

    /// The value is read beside the lock.
    #[cfg(feature = "lockstat")]
    pub(super) fn note_read(&self) {
        self.stat.note_read();
    }

    /// Opens the lock whoever holds it. Only for the panic path, which has stopped the others.
    pub(crate) fn force_unlock(&self) {
        self.held.store(false, Ordering::Release);
    }
}

impl<T: Default> Default for SpinLock<T> {
    #[cfg_attr(feature = "lockstat", track_caller)]
    fn default() -> Self {
        SpinLock::new(T::default())
    }
}

sealed! {
    /// Serves what others want of this CPU (`CpuLocal::tlb_wanted`).
    static SERVE: Once<fn()> = Once::new();
}

/// Says what serves requests of other CPUs: before there are any.
pub(crate) fn serve_by(serve: fn()) {
    SERVE.call_once(|| serve);
}

/// One turn of a busy wait. Answers TLB shootdowns on the way: the CPU this one waits for may
/// itself wait for this one's acknowledgement, and interrupts may be masked here.
#[inline]
pub fn spin_wait() {
    if percpu::local().tlb_wanted.load(Ordering::Relaxed) != 0 {
        serve();
    }
    core::hint::spin_loop();
}

#[cold]
fn serve() {
    if let Some(serve) = SERVE.get() {
        serve();
    }
}

/// Access to the value of a held [`SpinLock`].
pub struct SpinGuard<'a, T: ?Sized> {
    lock: &'a SpinLock<T>,
    _irq: IrqGuard,
}

impl<T: ?Sized> Deref for SpinGuard<'_, T> {
    type Target = T;
    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: this guard holds the lock, so no other reference to the value exists.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T: ?Sized> DerefMut for SpinGuard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`, and `&mut self` makes this the only access through the guard.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T: ?Sized> Drop for SpinGuard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        percpu::atomic_exit();
        self.lock.held.store(false, Ordering::Release);
        // `_irq` is dropped after this body: interrupts come back with the lock already free.
    }
}

/// Stops the machine if this CPU may not sleep here: it holds a spin lock or is in a handler.
#[inline(always)]
#[track_caller]
pub fn assert_may_sleep() {
    assert!(percpu::may_sleep(), "sleeping in atomic context");
}

/// Mutual exclusion without a way to wait: the kernel adds sleeping to it (`kernel::sync::Mutex`).
/// Holding it does not mask interrupts, and may sleep.
pub struct TryLock<T: ?Sized> {
    held: AtomicBool,
    #[cfg(feature = "lockstat")]
    stat: LockStat,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached only through a guard, and `held` admits one guard at a time.
unsafe impl<T: ?Sized + Send> Send for TryLock<T> {}
// SAFETY: as above: whoever has no guard does not reach the value.
unsafe impl<T: ?Sized + Send> Sync for TryLock<T> {}

impl<T> TryLock<T> {
    /// A free lock around `value`.
    #[cfg_attr(feature = "lockstat", track_caller)]
    pub const fn new(value: T) -> Self {
        TryLock {
            held: AtomicBool::new(false),
            #[cfg(feature = "lockstat")]
            stat: LockStat::new(),
            value: UnsafeCell::new(value),
        }
    }

    /// Takes the value out.
    pub fn into_inner(self) -> T {
        self.value.into_inner()
    }
}

impl<T: ?Sized> TryLock<T> {
    /// Takes the lock if it is free.
    #[inline(always)]
    pub fn try_lock(&self) -> Option<TryGuard<'_, T>> {
        let taken =
            self.held.compare_exchange(false, true, Ordering::SeqCst, Ordering::Relaxed).is_ok();
        #[cfg(feature = "lockstat")]
        if taken {
            self.stat.note_taken();
        } else {
            self.stat.note_waited();
        }
        taken.then(|| TryGuard { lock: self })
    }

    /// Whether it is held. For [`read_mostly`](super::read_mostly), which has written before.
    #[inline(always)]
    pub(super) fn is_held(&self) -> bool {
        self.held.load(Ordering::SeqCst)
    }

    /// Where the value is: whoever follows it knows why nobody has the lock.
    #[inline(always)]
    pub(super) fn value(&self) -> *const T {
        self.value.get()
    }

    /// The value is read beside the lock.
    #[cfg(feature = "lockstat")]
    pub(super) fn note_read(&self) {
        self.stat.note_read();
    }

    /// The value of a lock nobody else can see.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }
}

/// Access to the value of a held [`TryLock`].
pub struct TryGuard<'a, T: ?Sized> {
    lock: &'a TryLock<T>,
}

impl<T: ?Sized> Deref for TryGuard<'_, T> {
    type Target = T;
    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: this guard holds the lock, so no other reference to the value exists.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T: ?Sized> DerefMut for TryGuard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`, and `&mut self` makes this the only access through the guard.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T: ?Sized> Drop for TryGuard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        self.lock.held.store(false, Ordering::SeqCst);
    }
}
