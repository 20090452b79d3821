//! Waiting: the queue that threads (and epoll) wait on, and the lock that sleeps.
//!
//! A wait is a [`Waiter`]: made before the condition is looked at, put on a queue, and then slept
//! on. Whoever makes the condition true wakes the queue, which marks the waiter first; so a wake-up
//! that comes between the look and the sleep is never lost, and the look may itself sleep.
//!
//! Lock order: a queue's own spin lock comes after every other lock but those of the scheduler and
//! the heap. Wakers are called with it held; they only mark and enqueue.

use alloc::sync::Arc;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicBool, Ordering};

use abi::Errno;
use machine::sync::{SpinLock, TryGuard, TryLock, TryReadMostly};

use crate::base::lists::{Lists, Place};
use crate::base::sched::{self, Sleep, current};
use crate::base::thread::Thread;
use crate::base::time::Deadline;

/// Something a queue can wake: a waiting thread, or an epoll item.
pub trait Wake: Send + Sync {
    /// The event happened. `events` is a poll mask (`POLLIN` …), or 0 for "anything". Called with
    /// interrupts masked and the queue's lock held: mark, enqueue, and no more. Returns whether it
    /// counts as one of the wake-ups asked for (exclusive waiters).
    fn wake(&self, events: u32) -> bool;
}

/// One thread's wait. Sleeping with it ends when it has been marked.
pub struct Waiter {
    thread: Arc<Thread>,
    marked: AtomicBool,
}

impl Waiter {
    /// A wait of the current thread, not marked.
    #[must_use]
    pub fn new() -> Arc<Waiter> {
        let thread = current();
        let mut spare = thread.spare_waiter.replace(thread, None);
        // Only if nobody else has it: else it could be marked late.
        if let Some(waiter) = spare.as_mut().and_then(Arc::get_mut) {
            *waiter.marked.get_mut() = false;
        } else {
            spare = None;
        }
        spare.unwrap_or_else(|| {
            Arc::new(Waiter { thread: thread.to_arc(), marked: AtomicBool::new(false) })
        })
    }

    /// The wait is over: keeps the waiter for the thread's next one.
    fn keep(self: Arc<Self>) {
        let thread = current();
        drop(thread.spare_waiter.replace(thread, Some(self)));
    }

    /// The current thread will not wait any more: the waiter, which keeps it alive, goes.
    pub fn forget_spare() {
        let thread = current();
        drop(thread.spare_waiter.replace(thread, None));
    }

    /// Whether the wait is over.
    pub fn is_marked(&self) -> bool {
        self.marked.load(Ordering::SeqCst)
    }

    /// Prepares the waiter for another round.
    pub fn clear(&self) {
        self.marked.store(false, Ordering::SeqCst);
    }

    /// Sleeps until the waiter is marked, a signal comes (if `sleep` allows) or the deadline
    /// passes. May also return early for no reason: look at the condition again.
    pub fn sleep(self: &Arc<Self>, sleep: Sleep, deadline: Option<Deadline>) {
        let timer = deadline.map(|deadline| crate::base::time::wake_at(deadline, self.clone()));
        sched::park(sleep, || self.is_marked());
        if let Some(timer) = timer {
            timer.cancel();
        }
    }
}

impl Wake for Waiter {
    fn wake(&self, _events: u32) -> bool {
        // Whoever marked it before also wakes the thread; a thread that clears the mark looks
        // again.
        if self.marked.swap(true, Ordering::SeqCst) {
            return false;
        }
        sched::unpark(&self.thread);
        true
    }
}

/// Why a wait ended without its condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitError {
    /// A signal is pending. System calls turn this into a restart or EINTR.
    Interrupted,
    /// The deadline has passed.
    TimedOut,
}

/// The lists of a queue: those that are all woken, and those of which as many as there is for.
const SHARED: usize = 0;
const EXCLUSIVE: usize = 1;

fn list_of(is_exclusive: bool) -> usize {
    if is_exclusive { EXCLUSIVE } else { SHARED }
}

/// A queue of waiters for one kind of event. Put it in an `Arc` if files expose it to poll.
pub struct WaitQueue {
    entries: SpinLock<Lists<Arc<dyn Wake>, 2>>,
    /// Whether `entries` may be non-empty: lets a wake-up of nobody take no lock.
    occupied: AtomicBool,
}

impl Default for WaitQueue {
    fn default() -> Self {
        Self::new()
    }
}

impl WaitQueue {
    /// An empty queue.
    #[must_use]
    #[cfg_attr(feature = "lockstat", track_caller)]
    pub const fn new() -> Self {
        WaitQueue { entries: SpinLock::new(Lists::new()), occupied: AtomicBool::new(false) }
    }

    /// Adds a waker. Exclusive ones are woken one at a time by [`WaitQueue::wake_one`].
    pub fn add(&self, waker: Arc<dyn Wake>, exclusive: bool) -> Place {
        let mut entries = self.entries.lock();
        let place = entries.push_back(list_of(exclusive), waker);
        self.occupied.store(true, Ordering::SeqCst);
        place
    }

    /// The same for a queue that programs can make as long as they like. ENOMEM.
    pub fn try_add(&self, waker: Arc<dyn Wake>, exclusive: bool) -> abi::Result<Place> {
        let mut entries = self.entries.lock();
        entries.try_reserve_one().map_err(|_| Errno::ENOMEM)?;
        let place = entries.push_back(list_of(exclusive), waker);
        self.occupied.store(true, Ordering::SeqCst);
        Ok(place)
    }

    /// Removes the waker that was added so, and got this place.
    pub fn remove(&self, place: Place, exclusive: bool) {
        let mut entries = self.entries.lock();
        let removed = entries.remove(list_of(exclusive), place);
        entries.shrink_if_empty();
        self.occupied.store(!entries.is_empty(), Ordering::SeqCst);
        drop(entries);
        // The waker's last reference must not be dropped under the lock.
        drop(removed);
    }

    /// Whether anybody is on the queue, at this moment.
    #[inline]
    pub fn has_waiters(&self) -> bool {
        self.occupied.load(Ordering::SeqCst)
    }

    /// Wakes all waiters. `events`: poll mask, 0 for "anything".
    #[inline]
    pub fn wake_all(&self, events: u32) {
        self.wake(usize::MAX, events);
    }

    /// Wakes all non-exclusive waiters and one exclusive one.
    #[inline]
    pub fn wake_one(&self, events: u32) {
        self.wake(1, events);
    }

    /// Wakes all non-exclusive waiters and up to `exclusive` exclusive ones.
    #[inline]
    pub fn wake(&self, exclusive: usize, events: u32) {
        // The waiter adds itself before it looks at the condition, which the caller has made true
        // before this load; both sides are SeqCst, so one of them sees the other.
        core::sync::atomic::fence(Ordering::SeqCst);
        if self.occupied.load(Ordering::SeqCst) {
            self.wake_slow(exclusive, events);
        }
    }

    /// As [`WaitQueue::wake_one`], for a caller who has made the condition true before a [`Mutex`]
    /// that it has freed since: the unlocking was the barrier.
    #[inline(always)]
    pub fn wake_one_after_unlock(&self, events: u32) {
        if self.occupied.load(Ordering::SeqCst) {
            self.wake_slow(1, events);
        }
    }

    #[cold]
    fn wake_slow(&self, mut exclusive: usize, events: u32) {
        let entries = self.entries.lock();
        for waker in entries.iter(SHARED) {
            waker.wake(events);
        }
        for waker in entries.iter(EXCLUSIVE) {
            if exclusive == 0 {
                break;
            }
            exclusive -= usize::from(waker.wake(events));
        }
    }

    /// Sleeps until `ready` gives a value; a signal ends the wait.
    pub fn wait<T>(&self, ready: impl FnMut() -> Option<T>) -> Result<T, WaitError> {
        self.wait_deadline(Sleep::Interruptible, None, ready)
    }

    /// Sleeps until `ready` gives a value, whatever signals come. Only for waits that are bounded
    /// by what the kernel itself does.
    pub fn wait_uninterruptible<T>(&self, ready: impl FnMut() -> Option<T>) -> T {
        match self.wait_deadline(Sleep::Uninterruptible, None, ready) {
            Ok(value) => value,
            Err(error) => unreachable!("an uninterruptible wait without deadline: {error:?}"),
        }
    }

    /// Sleeps until `ready` gives a value, a signal comes (if `sleep` allows), or the deadline.
    pub fn wait_deadline<T>(
        &self,
        sleep: Sleep,
        deadline: Option<Deadline>,
        mut ready: impl FnMut() -> Option<T>,
    ) -> Result<T, WaitError> {
        match ready() {
            Some(value) => Ok(value),
            None => self.wait_longer(sleep, deadline, ready),
        }
    }

    /// The same for a caller who has just looked in vain, or may look in vain without harm: `ready`
    /// is asked once this thread is on the queue.
    pub fn wait_longer<T>(
        &self,
        sleep: Sleep,
        deadline: Option<Deadline>,
        mut ready: impl FnMut() -> Option<T>,
    ) -> Result<T, WaitError> {
        let waiter = Waiter::new();
        let place = self.add(waiter.clone(), true);
        let result = loop {
            waiter.clear();
            if let Some(value) = ready() {
                break Ok(value);
            }
            if sleep.is_ended_for(&current()) {
                break Err(WaitError::Interrupted);
            }
            if deadline.is_some_and(|deadline| deadline.has_passed()) {
                break Err(WaitError::TimedOut);
            }
            waiter.sleep(sleep, deadline);
        };
        self.remove(place, true);
        // A wake-up that came after our last look was not for us: it goes to the next one.
        if waiter.is_marked() {
            self.wake_one(0);
        }
        waiter.keep();
        result
    }
}

/// Mutual exclusion whose waiters sleep. Use for anything that may itself sleep while held (page
/// faults, file data, address spaces); use `SpinLock` for everything short.
pub struct Mutex<T: ?Sized> {
    queue: WaitQueue,
    lock: TryLock<T>,
}

impl<T> Mutex<T> {
    /// A free lock around `value`.
    #[cfg_attr(feature = "lockstat", track_caller)]
    pub const fn new(value: T) -> Self {
        Mutex { queue: WaitQueue::new(), lock: TryLock::new(value) }
    }

    /// Takes the value out of a lock nobody else can see.
    pub fn into_inner(self) -> T {
        self.lock.into_inner()
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Sleeps until the lock is free, and takes it. Signals do not end the wait.
    #[inline(always)]
    #[track_caller]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        machine::sync::assert_may_sleep();
        match self.lock.try_lock() {
            Some(inner) => MutexGuard { inner, _wake: WakeOnDrop(&self.queue) },
            None => self.lock_later(),
        }
    }

    #[cold]
    fn lock_later(&self) -> MutexGuard<'_, T> {
        MutexGuard::after_wait(&self.queue, || self.lock.try_lock())
    }

    /// Takes the lock if it is free.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        Some(MutexGuard { inner: self.lock.try_lock()?, _wake: WakeOnDrop(&self.queue) })
    }

    /// The value of a lock nobody else can see.
    pub fn get_mut(&mut self) -> &mut T {
        self.lock.get_mut()
    }
}

impl<T: Default> Default for Mutex<T> {
    fn default() -> Self {
        Mutex::new(T::default())
    }
}

/// A [`Mutex`] whose value may also be read, by many CPUs at a time, by who does not sleep.
pub struct ReadMutex<T> {
    queue: WaitQueue,
    lock: TryReadMostly<T>,
}

impl<T> ReadMutex<T> {
    /// A free lock around `value`.
    #[cfg_attr(feature = "lockstat", track_caller)]
    pub const fn new(value: T) -> Self {
        ReadMutex { queue: WaitQueue::new(), lock: TryReadMostly::new(value) }
    }

    /// As [`Mutex::lock`].
    #[inline(always)]
    #[track_caller]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        machine::sync::assert_may_sleep();
        match self.lock.try_lock() {
            Some(inner) => MutexGuard { inner, _wake: WakeOnDrop(&self.queue) },
            None => self.lock_later(),
        }
    }

    #[cold]
    fn lock_later(&self) -> MutexGuard<'_, T> {
        MutexGuard::after_wait(&self.queue, || self.lock.try_lock())
    }

    /// Calls `read` with the value, beside other readers, if nobody has the lock. It must not
    /// sleep.
    #[inline(always)]
    pub fn try_read<R>(&self, read: impl FnOnce(&T) -> R) -> Option<R>
    where
        T: Sync,
    {
        self.lock.try_read(read)
    }
}

/// Access to the value of a held [`Mutex`] or [`ReadMutex`]. Fields are dropped in this order: the
/// lock is free before a waiter is woken.
pub struct MutexGuard<'a, T: ?Sized> {
    inner: TryGuard<'a, T>,
    _wake: WakeOnDrop<'a>,
}

impl<'a, T: ?Sized> MutexGuard<'a, T> {
    fn after_wait(
        queue: &'a WaitQueue,
        try_lock: impl FnMut() -> Option<TryGuard<'a, T>>,
    ) -> MutexGuard<'a, T> {
        let inner = queue.wait_uninterruptible(try_lock);
        MutexGuard { inner, _wake: WakeOnDrop(queue) }
    }
}

struct WakeOnDrop<'a>(&'a WaitQueue);

impl Drop for WakeOnDrop<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        // The lock was freed by a SeqCst store just now, which is the barrier.
        self.0.wake_one_after_unlock(0);
    }
}

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;
    #[inline(always)]
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

/// A wait inside a system call: a signal means "restart or EINTR", decided at delivery.
impl From<WaitError> for Errno {
    fn from(error: WaitError) -> Errno {
        match error {
            WaitError::Interrupted => Errno::ERESTARTSYS,
            WaitError::TimedOut => Errno::ETIMEDOUT,
        }
    }
}

/// How long a call may wait.
#[derive(Clone, Copy, Debug, Default)]
pub struct Timeout {
    /// Not at all.
    pub nonblocking: bool,
    /// Until then.
    pub deadline: Option<Deadline>,
}

impl Timeout {
    /// Waits until `ready` gives something. EAGAIN when timeout is over; an interrupted wait is
    /// only restarted if it has no deadline (signal(7)).
    #[inline]
    pub fn wait<T>(
        self,
        queue: &WaitQueue,
        mut ready: impl FnMut() -> Option<abi::Result<T>>,
    ) -> abi::Result<T> {
        if let Some(result) = ready() {
            return result;
        }
        if self.nonblocking {
            return Err(Errno::EAGAIN);
        }
        match queue.wait_deadline(Sleep::Interruptible, self.deadline, ready) {
            Ok(result) => result,
            Err(WaitError::TimedOut) => Err(Errno::EAGAIN),
            Err(WaitError::Interrupted) if self.deadline.is_some() => Err(Errno::EINTR),
            Err(WaitError::Interrupted) => Err(Errno::ERESTARTSYS),
        }
    }
}
