//! FUTEX_WAIT_REQUEUE_PI and FUTEX_CMP_REQUEUE_PI: from a condition to the lock that goes with it
//! (futex(2), "priority-inheritance futexes").
//!
//! A waiter says beforehand which lock it is to be moved to. Who moves it takes the lock for it if
//! it is free, or queues it there with those who wait for the lock; then it wakes as its owner, as
//! [`super::pi::lock`] would. Nothing else wakes it. Neighbours: `requeue` for words without an
//! owner, `pi` for the lock.

use core::sync::atomic::Ordering;

use abi::{Errno, Result, general as raw};

use super::requeue::{count, with_buckets};
use super::{Bucket, FutexWaiter, Pair, QueuedFutex, bucket_of, key_of, pi, take_out, with_word};
use crate::base::time::Deadline;
use crate::base::user::UserPtr;
use crate::mm::FutexKey;
use crate::process::{current, find_thread};

/// The keys of the condition and of the lock. EINVAL if they are one word.
fn keys(words: &Pair) -> Result<(FutexKey, FutexKey)> {
    if words.first == words.second {
        return Err(Errno::EINVAL);
    }
    let to = key_of(words.second, words.private)?;
    let from = key_of(words.first, words.private)?;
    if from == to { Err(Errno::EINVAL) } else { Ok((from, to)) }
}

/// FUTEX_WAIT_REQUEUE_PI. EAGAIN if the word has another value, or if a signal came after the move;
/// ETIMEDOUT.
pub(super) fn wait(words: &Pair, value: u32, deadline: Option<Deadline>) -> Result<u64> {
    let (from, to) = keys(words)?;
    let waiter = FutexWaiter::new();
    waiter.bucket.store(bucket_of(from), Ordering::SeqCst);
    let _counted = pi::Counted::new();
    with_word(words.first, from, |bucket, found| {
        if found != value {
            return Err(Errno::EAGAIN);
        }
        bucket.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        let entry = QueuedFutex::new(from, waiter.clone(), u32::MAX);
        bucket.push_back(QueuedFutex { goes_to: Some(to), ..entry });
        Ok(())
    })??;
    waiter.sleep(deadline);
    if waiter.woken_by().is_some() {
        return Ok(0);
    }
    let Some(entry) = take_out(&waiter) else { return Ok(0) };
    if deadline.is_some_and(Deadline::has_passed) {
        return Err(Errno::ETIMEDOUT);
    }
    // Before the move the call can be made again as it is.
    Err(if entry.is_pi { Errno::EAGAIN } else { Errno::ERESTARTNOINTR })
}

/// What became of one waiter.
enum Moved {
    Done,
    Fail(Errno),
    /// The page is missing, or the word changed in between: look again.
    Again,
}

/// FUTEX_CMP_REQUEUE_PI: how many waiters got the lock or wait for it now.
pub(super) fn requeue(words: &Pair, expected: u32) -> Result<u64> {
    let [wakes, moves] = words.counts;
    let (wakes, moves) = (count(wakes)?, count(moves)?);
    if wakes != 1 {
        return Err(Errno::EINVAL);
    }
    let (from, to) = keys(words)?;
    let (condition, lock) = (UserPtr::<u32>::new(words.first), UserPtr::<u32>::new(words.second));
    let mut total = 0;
    loop {
        let done = with_buckets(from, to, |first, mut second| {
            match condition.load() {
                Ok(value) if value != expected => return Some(Err(Errno::EAGAIN)),
                Ok(_) => {}
                Err(_) => return None,
            }
            while total < wakes + moves {
                let is_next = |entry: &QueuedFutex| entry.key == from && !entry.is_pi;
                let Some(at) = first.iter().position(is_next) else { break };
                if first[at].goes_to != Some(to) {
                    return Some(Err(Errno::EINVAL));
                }
                match move_one(lock, first, second.as_deref_mut(), at, to) {
                    Moved::Done => total += 1,
                    Moved::Fail(error) => return Some(Err(error)),
                    Moved::Again => return None,
                }
            }
            Some(Ok(()))
        });
        match done {
            Some(Err(error)) if total == 0 => return Err(error),
            Some(_) => return Ok(total as u64),
            None => {}
        }
        condition.load()?;
        let value = lock.load()?;
        lock.compare_exchange(value, value)?;
        if total > 0 || current().has_pending_signal() {
            // The rest is still there for the next call.
            return if total > 0 { Ok(total as u64) } else { Err(Errno::ERESTARTNOINTR) };
        }
    }
}

/// Gives the lock to the waiter at `at`, or has it wait for it.
fn move_one(
    lock: UserPtr<u32>,
    first: &mut Bucket,
    mut second: Option<&mut Bucket>,
    at: usize,
    to: FutexKey,
) -> Moved {
    if second.as_deref_mut().is_some_and(|second| second.try_reserve(1).is_err()) {
        return Moved::Fail(Errno::ENOMEM);
    }
    let Ok(word) = lock.load() else { return Moved::Again };
    let owner = word & raw::FUTEX_TID_MASK;
    let waits = |bucket: &Bucket| bucket.iter().any(|entry| entry.is_pi && entry.key == to);
    let is_waited_for = second.as_deref().map_or_else(|| waits(first), waits);
    let is_free = owner == 0 && !is_waited_for;
    if !is_free && owner != 0 && find_thread(owner).is_none() {
        return Moved::Fail(Errno::ESRCH);
    }
    let tid = first[at].waiter.thread.tid();
    if owner == tid {
        return Moved::Fail(Errno::EDEADLK);
    }
    let new = match is_free {
        true => word & raw::FUTEX_OWNER_DIED | tid,
        false => word | raw::FUTEX_WAITERS,
    };
    if lock.compare_exchange(word, new) != Ok(word) {
        return Moved::Again;
    }
    let Some(mut entry) = first.remove(at) else { return Moved::Done };
    if is_free {
        entry.waiter.release(entry.index);
        return Moved::Done;
    }
    (entry.key, entry.is_pi, entry.goes_to) = (to, true, None);
    entry.waiter.bucket.store(bucket_of(to), Ordering::SeqCst);
    second.unwrap_or(first).push_back(entry);
    Moved::Done
}
