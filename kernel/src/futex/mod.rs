//! futex(2): sleeping on a word of user memory.
//!
//! Waiters lie in buckets chosen by the word's identity. A waiter looks at the word and enters its
//! bucket under the bucket's lock, and a waker takes waiters out under the same lock after the
//! program has changed the word; so no wake-up falls between look and sleep. The look cannot sleep
//! there: if the page is not present it fails, the page is brought in without the lock, and the
//! look is tried again.
//!
//! A waiter is taken out exactly once, by whoever wins the bucket's lock: waker, timeout or signal.
//!
//! Reading order: [`FutexWaiter`], [`wait`], [`wake`]; then `requeue`, `pi`, `robust`, `futex2`.
//! Lock order: buckets by index; then the scheduler's.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use abi::{Errno, Result, general as raw};
use machine::sync::{SpinGuard, SpinLock};

use crate::base::sched::{self, Sleep};
use crate::base::sync::Wake;
use crate::base::time::{Deadline, TimeSpec};
use crate::base::user::UserPtr;
use crate::mm::FutexKey;
use crate::process::Thread;
use crate::process::current;
use crate::process::restart;

pub mod futex2;
pub mod pi;
pub mod requeue;
mod requeue_pi;
pub mod robust;

/// Buckets: a power of two, enough that threads rarely share one by accident.
const BUCKETS: usize = 256;

/// A sleeping thread.
pub(super) struct FutexWaiter {
    thread: Arc<Thread>,
    /// 1 + index of the word that was woken; 0: not woken yet.
    woken: AtomicU32,
    timer_fired: AtomicBool,
    /// Bucket in which it is queued; only for waiters on one word, which may be requeued.
    bucket: AtomicUsize,
}

/// A waiter's place in a bucket.
pub(super) struct QueuedFutex {
    key: FutexKey,
    /// Which wake-ups it takes (FUTEX_WAIT_BITSET).
    bitset: u32,
    /// Index of the word.
    index: u32,
    /// It waits on several words: it must stay where it is.
    is_one_of_many: bool,
    /// It waits for a lock with an owner, which is handed over (FUTEX_LOCK_PI).
    is_pi: bool,
    /// It is to be moved to such a lock, the one with this key (FUTEX_WAIT_REQUEUE_PI): nothing
    /// else wakes it.
    goes_to: Option<FutexKey>,
    waiter: Arc<FutexWaiter>,
}

impl QueuedFutex {
    /// A waiter on one word.
    fn new(key: FutexKey, waiter: Arc<FutexWaiter>, bitset: u32) -> QueuedFutex {
        let (is_one_of_many, is_pi, goes_to) = (false, false, None);
        QueuedFutex { key, bitset, index: 0, is_one_of_many, is_pi, goes_to, waiter }
    }
}

type Bucket = VecDeque<QueuedFutex>;

static TABLE: [SpinLock<Bucket>; BUCKETS] = [const { SpinLock::new(VecDeque::new()) }; BUCKETS];

fn bucket_of(key: FutexKey) -> usize {
    // Objects are aligned addresses and offsets multiples of 4: mix, then take high bits.
    let mixed = (key.object >> 4 ^ key.offset >> 2).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 56) as usize % BUCKETS
}

impl FutexWaiter {
    fn new() -> Arc<FutexWaiter> {
        Arc::new(FutexWaiter {
            thread: current().to_arc(),
            woken: AtomicU32::new(0),
            timer_fired: AtomicBool::new(false),
            bucket: AtomicUsize::new(0),
        })
    }

    /// Marks it as woken by word `index` and lets it run. The entry has been taken out.
    fn release(&self, index: u32) {
        self.woken.store(index + 1, Ordering::SeqCst);
        sched::unpark(&self.thread.base);
    }

    /// The word that woke it.
    fn woken_by(&self) -> Option<u32> {
        self.woken.load(Ordering::SeqCst).checked_sub(1)
    }

    /// Sleeps until it is woken, the deadline passes or a signal comes.
    fn sleep(self: &Arc<Self>, deadline: Option<Deadline>) {
        let timer = deadline.map(|deadline| crate::base::time::wake_at(deadline, self.clone()));
        let over = || self.woken_by().is_some() || self.timer_fired.load(Ordering::SeqCst);
        while !over() && !current().has_pending_signal() {
            sched::park(Sleep::Interruptible, over);
        }
        if let Some(timer) = timer {
            timer.cancel();
        }
    }
}

impl Wake for FutexWaiter {
    /// The timeout.
    fn wake(&self, _events: u32) -> bool {
        self.timer_fired.store(true, Ordering::SeqCst);
        sched::unpark(&self.thread.base);
        true
    }
}

/// The word a call names, and who shares it.
pub(super) fn key_of(address: u64, private: bool) -> Result<FutexKey> {
    if !address.is_multiple_of(4) {
        return Err(Errno::EINVAL);
    }
    if !UserPtr::<u8>::new(address).is_user_range(4) {
        return Err(Errno::EFAULT);
    }
    current().process.mm()?.futex_key(address, private)
}

/// Looks at the word while the bucket's lock is held; brings the page in and tries again if it
/// must. `decide` gets the bucket and the value.
fn with_word<R>(
    address: u64,
    key: FutexKey,
    mut decide: impl FnMut(&mut SpinGuard<'_, Bucket>, u32) -> R,
) -> Result<R> {
    loop {
        {
            let mut bucket = TABLE[bucket_of(key)].lock();
            // The lock forbids page faults: this fails instead of sleeping.
            if let Ok(value) = UserPtr::<u32>::new(address).load() {
                return Ok(decide(&mut bucket, value));
            }
        }
        UserPtr::<u32>::new(address).load()?;
        if current().has_pending_signal() {
            return Err(Errno::ERESTARTNOINTR);
        }
    }
}

/// Takes a waiter on one word out of its bucket. False: somebody has woken it already.
fn cancel(waiter: &Arc<FutexWaiter>) -> bool {
    take_out(waiter).is_some()
}

/// The same; the place it had.
fn take_out(waiter: &Arc<FutexWaiter>) -> Option<QueuedFutex> {
    loop {
        let index = waiter.bucket.load(Ordering::SeqCst);
        let mut bucket = TABLE[index].lock();
        if waiter.bucket.load(Ordering::SeqCst) != index {
            // Requeued to another bucket meanwhile.
            continue;
        }
        let at = bucket.iter().position(|entry| Arc::ptr_eq(&entry.waiter, waiter));
        return at.and_then(|at| bucket.remove(at));
    }
}

/// A FUTEX_WAIT that a signal has interrupted.
#[derive(Clone, Copy, Debug)]
pub struct PendingWait {
    address: u64,
    private: bool,
    value: u32,
    bitset: u32,
    deadline_ns: u64,
}

/// Sleeps while the word has this value. EAGAIN if it has not; ETIMEDOUT; ERESTARTSYS.
fn wait(
    address: u64,
    private: bool,
    value: u32,
    bitset: u32,
    deadline: Option<Deadline>,
) -> Result<u64> {
    if bitset == 0 {
        return Err(Errno::EINVAL);
    }
    let key = key_of(address, private)?;
    let waiter = FutexWaiter::new();
    waiter.bucket.store(bucket_of(key), Ordering::SeqCst);
    let queued = with_word(address, key, |bucket, found| {
        if found != value {
            return Err(Errno::EAGAIN);
        }
        bucket.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        let waiter = waiter.clone();
        bucket.push_back(QueuedFutex::new(key, waiter, bitset));
        Ok(())
    })?;
    queued?;
    waiter.sleep(deadline);
    if waiter.woken_by().is_some() || !cancel(&waiter) {
        return Ok(0);
    }
    if deadline.is_some_and(Deadline::has_passed) {
        return Err(Errno::ETIMEDOUT);
    }
    Err(Errno::ERESTARTSYS)
}

/// Goes on with an interrupted wait.
pub fn resume(pending: PendingWait) -> Result<u64> {
    let PendingWait { address, private, value, bitset, deadline_ns } = pending;
    wait(address, private, value, bitset, Some(Deadline(deadline_ns))).map_err(|error| {
        if error == Errno::ERESTARTSYS { restart::later(move || resume(pending)) } else { error }
    })
}

/// Takes up to `count` waiters that match out of a bucket and wakes them.
fn wake_in(bucket: &mut Bucket, key: FutexKey, count: usize, bitset: u32) -> u64 {
    let mut woken = 0;
    let mut at = 0;
    while at < bucket.len() && (woken as usize) < count {
        let entry = &bucket[at];
        let is_apart = entry.is_pi || entry.goes_to.is_some();
        if entry.key != key || entry.bitset & bitset == 0 || is_apart {
            at += 1;
            continue;
        }
        // As a rule it is the first, for which nothing has to move.
        let taken = if at == 0 { bucket.pop_front() } else { bucket.remove(at) };
        if let Some(entry) = taken {
            entry.waiter.release(entry.index);
            woken += 1;
        }
    }
    woken
}

/// Wakes up to `count` waiters; returns how many.
fn wake(key: FutexKey, count: usize, bitset: u32) -> Result<u64> {
    if bitset == 0 {
        return Err(Errno::EINVAL);
    }
    let mut bucket = TABLE[bucket_of(key)].lock();
    // Most wake-ups find nobody: programs cannot know.
    Ok(if bucket.is_empty() { 0 } else { wake_in(&mut bucket, key, count, bitset) })
}

/// Wakes waiters on a word of the current process, however they share it; for exit and robust
/// lists.
pub fn wake_address(address: u64, count: usize) -> Result<u64> {
    wake(key_of(address, false)?, count, u32::MAX)
}

/// A count argument: negative ones act as 0 does in Linux's loops, after at least one wake-up.
fn wake_count(argument: u32) -> usize {
    usize::try_from(argument as i32).unwrap_or(0).max(1)
}

/// The two words of an operation, by address.
struct Pair {
    first: u64,
    second: u64,
    private: bool,
    /// How many waiters of each; what for is the operation's matter.
    counts: [u32; 2],
}

/// futex(2).
pub fn futex(
    address: u64,
    operation: u32,
    value: u32,
    timeout: UserPtr<TimeSpec>,
    second: u64,
    third: u32,
) -> Result<u64> {
    let command = operation & !(raw::FUTEX_PRIVATE_FLAG | raw::FUTEX_CLOCK_REALTIME);
    let private = operation & raw::FUTEX_PRIVATE_FLAG != 0;
    let realtime = operation & raw::FUTEX_CLOCK_REALTIME != 0;
    let clock_matters = matches!(
        command,
        raw::FUTEX_WAIT_BITSET | raw::FUTEX_WAIT_REQUEUE_PI | raw::FUTEX_LOCK_PI2
    );
    if realtime && !clock_matters {
        return Err(Errno::ENOSYS);
    }
    // Of two words: the counts for each, the second in the place of the timeout.
    let pair =
        || Pair { first: address, second, private, counts: [value, timeout.address() as u32] };
    match command {
        raw::FUTEX_WAIT => wait_relative(address, private, value, timeout),
        raw::FUTEX_WAIT_BITSET => {
            wait(address, private, value, third, Deadline::read(timeout, realtime)?)
        }
        raw::FUTEX_WAKE => wake(key_of(address, private)?, wake_count(value), u32::MAX),
        raw::FUTEX_WAKE_BITSET if third == 0 => Err(Errno::EINVAL),
        raw::FUTEX_WAKE_BITSET => wake(key_of(address, private)?, wake_count(value), third),
        raw::FUTEX_REQUEUE => requeue::requeue_pair(&pair(), None),
        raw::FUTEX_CMP_REQUEUE => requeue::requeue_pair(&pair(), Some(third)),
        raw::FUTEX_WAKE_OP => requeue::wake_op(&pair(), third),
        // The older of the two always uses the wall clock.
        raw::FUTEX_LOCK_PI => pi::lock(address, private, Deadline::read(timeout, true)?),
        raw::FUTEX_LOCK_PI2 => pi::lock(address, private, Deadline::read(timeout, realtime)?),
        raw::FUTEX_TRYLOCK_PI => pi::try_lock(address, private),
        raw::FUTEX_UNLOCK_PI => pi::unlock(address, private),
        raw::FUTEX_WAIT_REQUEUE_PI => {
            requeue_pi::wait(&pair(), value, Deadline::read(timeout, realtime)?)
        }
        raw::FUTEX_CMP_REQUEUE_PI => requeue_pi::requeue(&pair(), third),
        _ => Err(Errno::ENOSYS),
    }
}

/// FUTEX_WAIT: the timeout is relative, so a restart needs the moment it was meant to end.
fn wait_relative(
    address: u64,
    private: bool,
    value: u32,
    timeout: UserPtr<TimeSpec>,
) -> Result<u64> {
    let Some(timeout) = timeout.non_null() else {
        return wait(address, private, value, u32::MAX, None);
    };
    let deadline_ns = Deadline::after_ns(timeout.read()?.to_ns()?).0;
    resume(PendingWait { address, private, value, bitset: u32::MAX, deadline_ns })
}
