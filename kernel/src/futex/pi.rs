//! Locks whose word names the owner: FUTEX_LOCK_PI and its like (futex(2), "priority-inheritance").
//!
//! The word is 0, or the owner's thread id, with FUTEX_WAITERS if the owner must call the kernel to
//! unlock, and FUTEX_OWNER_DIED. The kernel hands the lock over: it writes the next owner's id
//! before it wakes it. Priorities are not inherited: all threads are served by the fair scheduler.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicUsize, Ordering};

use abi::{Errno, Result, general as raw};
use machine::sync::SpinGuard;

use super::{Bucket, FutexWaiter, QueuedFutex, TABLE, bucket_of, cancel, key_of};
use crate::base::time::Deadline;
use crate::base::user::UserPtr;
use crate::mm::FutexKey;
use crate::process::current;
use crate::process::{Thread, find_thread};

/// Waiters for locks of this kind, so that exit need not search when there are none.
static WAITING: AtomicUsize = AtomicUsize::new(0);

/// A thread that waits, or will, for a lock of this kind.
pub(super) struct Counted;

impl Counted {
    pub(super) fn new() -> Counted {
        WAITING.fetch_add(1, Ordering::SeqCst);
        Counted
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        WAITING.fetch_sub(1, Ordering::SeqCst);
    }
}

/// What to do after a look at the word under the bucket's lock.
enum Step {
    Done,
    Fail(Errno),
    /// Queued: sleep.
    Sleep,
    /// The page is missing, or the word changed in between: look again.
    Again,
}

/// Runs `step` with the bucket's lock until it says something else than "again".
fn repeat(
    address: u64,
    key: FutexKey,
    mut step: impl FnMut(&mut SpinGuard<'_, Bucket>) -> Step,
) -> Result<bool> {
    loop {
        let result = step(&mut TABLE[bucket_of(key)].lock());
        match result {
            Step::Done => return Ok(true),
            Step::Sleep => return Ok(false),
            Step::Fail(error) => return Err(error),
            Step::Again => {
                let value = UserPtr::<u32>::new(address).load()?;
                UserPtr::<u32>::new(address).compare_exchange(value, value)?;
                if current().has_pending_signal() {
                    return Err(Errno::ERESTARTNOINTR);
                }
            }
        }
    }
}

/// Replaces the word if it still has the value; None: look again.
fn replace(address: u64, old: u32, new: u32) -> Option<()> {
    (UserPtr::<u32>::new(address).compare_exchange(old, new) == Ok(old)).then_some(())
}

/// Takes the lock if it is free. Some: decided.
fn try_take(address: u64, bucket: &Bucket, key: FutexKey) -> Step {
    let own = current().tid();
    let Ok(value) = UserPtr::<u32>::new(address).load() else { return Step::Again };
    let owner = value & raw::FUTEX_TID_MASK;
    if owner == own {
        return Step::Fail(Errno::EDEADLK);
    }
    if owner != 0 {
        return Step::Sleep;
    }
    let waiters = if has_waiters(bucket, key) { raw::FUTEX_WAITERS } else { 0 };
    let new = value & raw::FUTEX_OWNER_DIED | own | waiters;
    replace(address, value, new).map_or(Step::Again, |()| Step::Done)
}

fn has_waiters(bucket: &Bucket, key: FutexKey) -> bool {
    bucket.iter().any(|entry| entry.is_pi && entry.key == key)
}

/// FUTEX_TRYLOCK_PI.
pub(super) fn try_lock(address: u64, private: bool) -> Result<u64> {
    let key = key_of(address, private)?;
    let taken = repeat(address, key, |bucket| try_take(address, bucket, key))?;
    if taken {
        return Ok(0);
    }
    // An owner that there is not will not unlock it either.
    let owner = UserPtr::<u32>::new(address).load()? & raw::FUTEX_TID_MASK;
    let is_gone = owner != 0 && find_thread(owner).is_none();
    Err(if is_gone { Errno::ESRCH } else { Errno::EAGAIN })
}

/// FUTEX_LOCK_PI.
pub(super) fn lock(address: u64, private: bool, deadline: Option<Deadline>) -> Result<u64> {
    let key = key_of(address, private)?;
    let waiter = FutexWaiter::new();
    waiter.bucket.store(bucket_of(key), Ordering::SeqCst);
    let taken = repeat(address, key, |bucket| match try_take(address, bucket, key) {
        Step::Sleep => queue(address, bucket, key, &waiter),
        decided => decided,
    })?;
    if taken {
        return Ok(0);
    }
    let counted = Counted::new();
    waiter.sleep(deadline);
    let owns = waiter.woken_by().is_some() || !cancel(&waiter);
    drop(counted);
    if owns {
        Ok(0)
    } else if deadline.is_some_and(Deadline::has_passed) {
        Err(Errno::ETIMEDOUT)
    } else {
        // The call can be made again as it is: its deadline is absolute.
        Err(Errno::ERESTARTNOINTR)
    }
}

/// Announces the waiter in the word and queues it. ESRCH if the owner does not exist.
fn queue(
    address: u64,
    bucket: &mut SpinGuard<'_, Bucket>,
    key: FutexKey,
    waiter: &Arc<FutexWaiter>,
) -> Step {
    let Ok(value) = UserPtr::<u32>::new(address).load() else { return Step::Again };
    let owner = value & raw::FUTEX_TID_MASK;
    if owner == 0 {
        return Step::Again;
    }
    let Some(owner) = find_thread(owner) else {
        return Step::Fail(Errno::ESRCH);
    };
    if owner.signals.lock().is_exiting {
        // It is about to hand over or has just done so.
        drop(owner);
        return Step::Fail(Errno::ESRCH);
    }
    if bucket.try_reserve(1).is_err() {
        return Step::Fail(Errno::ENOMEM);
    }
    if replace(address, value, value | raw::FUTEX_WAITERS).is_none() {
        return Step::Again;
    }
    let waiter = waiter.clone();
    bucket.push_back(QueuedFutex { is_pi: true, ..QueuedFutex::new(key, waiter, u32::MAX) });
    Step::Sleep
}

/// FUTEX_UNLOCK_PI.
pub(super) fn unlock(address: u64, private: bool) -> Result<u64> {
    let is_owner = |value: u32| value & raw::FUTEX_TID_MASK == current().tid();
    // The word is asked before its address is looked at.
    if !is_owner(UserPtr::<u32>::new(address).read()?) {
        return Err(Errno::EPERM);
    }
    let key = key_of(address, private)?;
    repeat(address, key, |bucket| {
        let Ok(value) = UserPtr::<u32>::new(address).load() else { return Step::Again };
        if !is_owner(value) {
            return Step::Fail(Errno::EPERM);
        }
        hand_over(address, bucket, key, value, 0)
    })?;
    Ok(0)
}

/// Gives the lock to the first waiter, or frees it. `extra`: bits to keep in the word.
fn hand_over(
    address: u64,
    bucket: &mut SpinGuard<'_, Bucket>,
    key: FutexKey,
    value: u32,
    extra: u32,
) -> Step {
    let at = bucket.iter().position(|entry| entry.is_pi && entry.key == key);
    let Some(at) = at else {
        return replace(address, value, extra).map_or(Step::Again, |()| Step::Done);
    };
    let more = bucket.iter().skip(at + 1).any(|entry| entry.is_pi && entry.key == key);
    let waiters = if more { raw::FUTEX_WAITERS } else { 0 };
    let next = bucket[at].waiter.thread.tid() | waiters | extra;
    if replace(address, value, next).is_none() {
        return Step::Again;
    }
    if let Some(entry) = bucket.remove(at) {
        entry.waiter.release(entry.index);
    }
    Step::Done
}

/// A thread ends that may own the lock at `address`: hands it over with FUTEX_OWNER_DIED. True if
/// there was a waiter.
pub(super) fn owner_died(thread: &Thread, address: u64) -> bool {
    if WAITING.load(Ordering::SeqCst) == 0 {
        return false;
    }
    let own = thread.tid();
    // Nobody says whether the lock was private: its waiters are found by one of both keys.
    [false, true].into_iter().any(|private| {
        let Ok(key) = key_of(address, private) else { return false };
        let handed_over = repeat(address, key, |bucket| {
            let Ok(value) = UserPtr::<u32>::new(address).load() else { return Step::Again };
            if value & raw::FUTEX_TID_MASK != own || !has_waiters(bucket, key) {
                return Step::Fail(Errno::EAGAIN);
            }
            hand_over(address, bucket, key, value, raw::FUTEX_OWNER_DIED)
        });
        handed_over.is_ok()
    })
}
