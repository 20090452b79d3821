//! What many CPUs read and few write: to begin and to end, readers write no line that another CPU
//! reads, so they do not slow each other down, however many there are. What they do with the value
//! is theirs: who takes a counted reference writes the count.
//!
//! Why it is hard: a reader must not be seen by other readers, but by every writer. So a reader
//! says what it reads in a word of its own CPU, and only then looks whether the value is locked; a
//! writer locks it, and only then looks at the words of the CPUs that ever read it. Either the
//! reader sees the writer, and waits as a writer would, or the writer sees the reader, and waits
//! for its end. Each side writes before it looks, by an instruction that is a barrier (XCHG; SDM
//! 3A, 9.2.2).
//!
//! Readers do not sleep, and nothing that preempts them leaves their CPU (ARCHITECTURE.md,
//! invariant 7), so what a writer waits for is short. A CPU reads one such value at a time: a
//! reader amid another's closure takes the lock.
//!
//! Not chosen: deferred freeing (RCU). It would spare writers the look at other CPUs, and cost
//! every owner the proof of what may still be seen after its end.
//!
//! Neighbours: `sync` has the locks below; `mechanisms/context_tracking/tests/read_mostly.rs` goes
//! through all interleavings of the protocol, and of wrong ones.

use core::marker::PhantomData;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use crate::cpu::MAX_CPUS;
use crate::cpu::percpu;
use crate::cpu::sync::{IrqGuard, SpinGuard, SpinLock, TryGuard, TryLock, spin_wait};

const _: () = assert!(MAX_CPUS <= u32::BITS as usize);

/// Who reads one value. Its address is what a CPU that reads has in `CpuLocal::reading`, which only
/// that CPU writes.
struct Readers {
    /// Bit n: CPU n has read it. None is ever taken back: a CPU that came once may come again.
    cpus: AtomicU32,
}

/// This CPU reads, until it is dropped.
struct Reading {
    own: &'static AtomicUsize,
    /// The word is the CPU's on which it was made.
    _not_send: PhantomData<*const ()>,
}

impl Readers {
    const fn new() -> Readers {
        Readers { cpus: AtomicU32::new(0) }
    }

    #[inline(always)]
    fn key(&self) -> usize {
        core::ptr::from_ref(self).addr()
    }

    /// Says that this CPU reads from now on; None if it reads something already. The caller looks
    /// whether the value is locked after that.
    #[inline(always)]
    fn enter(&self) -> Option<Reading> {
        let own = &percpu::local().reading;
        if own.load(Ordering::Relaxed) != 0 {
            return None;
        }
        let cpu = percpu::cpu_id();
        if self.cpus.load(Ordering::Relaxed) & 1 << cpu == 0 {
            self.cpus.fetch_or(1 << cpu, Ordering::SeqCst);
        }
        own.swap(self.key(), Ordering::SeqCst);
        percpu::atomic_enter();
        Some(Reading { own, _not_send: PhantomData })
    }

    /// Waits for those who read. The caller has locked the value by a SeqCst exchange, so none
    /// begins. False at once if this very CPU reads it: below the caller, who would wait for ever.
    #[inline(always)]
    fn wait_for_end(&self) -> bool {
        let cpus = self.cpus.load(Ordering::SeqCst);
        if cpus == 0 {
            return true;
        }
        let others = cpus & !(1 << percpu::cpu_id());
        if others != 0 {
            self.wait_for(others);
        }
        percpu::local().reading.load(Ordering::Relaxed) != self.key()
    }

    #[cold]
    fn wait_for(&self, mut cpus: u32) {
        while cpus != 0 {
            let cpu = percpu::of(cpus.trailing_zeros() as usize);
            while cpu.reading.load(Ordering::SeqCst) == self.key() {
                spin_wait();
            }
            cpus &= cpus - 1;
        }
    }
}

impl Drop for Reading {
    #[inline(always)]
    fn drop(&mut self) {
        percpu::atomic_exit();
        self.own.store(0, Ordering::Release);
    }
}

/// A spin lock whose value may also be read, by many CPUs at a time. Interrupts are masked while it
/// is locked or read.
pub struct ReadMostly<T> {
    readers: Readers,
    lock: SpinLock<T>,
}

impl<T> ReadMostly<T> {
    /// A free lock around `value`.
    #[cfg_attr(feature = "lockstat", track_caller)]
    pub const fn new(value: T) -> Self {
        ReadMostly { readers: Readers::new(), lock: SpinLock::new(value) }
    }

    /// Waits for the lock, and for those who read. As [`SpinLock::lock`].
    #[inline(always)]
    pub fn lock(&self) -> SpinGuard<'_, T> {
        let guard = self.lock.lock();
        assert!(self.readers.wait_for_end(), "locked by who reads it");
        guard
    }

    /// Calls `read` with the value, beside other readers.
    #[inline(always)]
    pub fn read<R>(&self, read: impl FnOnce(&T) -> R) -> R
    where
        T: Sync,
    {
        let irq = IrqGuard::new();
        if let Some(reading) = self.readers.enter()
            && !self.lock.is_held()
        {
            #[cfg(feature = "lockstat")]
            self.lock.note_read();
            // SAFETY: this CPU says that it reads, and then found the lock free: whoever locks it
            // after that waits until `reading` is gone. `T: Sync`, so readers may be many.
            let result = read(unsafe { &*self.lock.value() });
            drop(reading);
            return result;
        }
        drop(irq);
        self.read_locked(read)
    }

    #[cold]
    fn read_locked<R>(&self, read: impl FnOnce(&T) -> R) -> R {
        read(&self.lock())
    }

    /// The value of a lock nobody else can see.
    pub fn get_mut(&mut self) -> &mut T {
        self.lock.get_mut()
    }
}

impl<T: Default> Default for ReadMostly<T> {
    #[cfg_attr(feature = "lockstat", track_caller)]
    fn default() -> Self {
        ReadMostly::new(T::default())
    }
}

/// As [`ReadMostly`], for a lock that is held by who sleeps: without a way to wait for it.
pub struct TryReadMostly<T> {
    readers: Readers,
    lock: TryLock<T>,
}

impl<T> TryReadMostly<T> {
    /// A free lock around `value`.
    #[cfg_attr(feature = "lockstat", track_caller)]
    pub const fn new(value: T) -> Self {
        TryReadMostly { readers: Readers::new(), lock: TryLock::new(value) }
    }

    /// Takes the lock if it is free, and waits for those who read.
    #[inline(always)]
    pub fn try_lock(&self) -> Option<TryGuard<'_, T>> {
        let guard = self.lock.try_lock()?;
        self.readers.wait_for_end().then_some(guard)
    }

    /// Calls `read` with the value, beside other readers, if the lock is free. It does not sleep.
    #[inline(always)]
    pub fn try_read<R>(&self, read: impl FnOnce(&T) -> R) -> Option<R>
    where
        T: Sync,
    {
        let reading = self.readers.enter()?;
        if self.lock.is_held() {
            return None;
        }
        #[cfg(feature = "lockstat")]
        self.lock.note_read();
        // SAFETY: this CPU says that it reads, and then found the lock free: whoever takes it after
        // that waits until `reading` is gone. `T: Sync`, so readers may be many.
        let result = read(unsafe { &*self.lock.value() });
        drop(reading);
        Some(result)
    }
}
