//! The calls that futex(2)'s operations became (Documentation/userspace-api/futex2.rst): one for
//! each of waiting, waking and moving waiters, and futex_waitv(2), which waits on several words at
//! once.

use alloc::sync::Arc;
use alloc::vec::Vec;

use abi::{Errno, Result, general as raw};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{FutexWaiter, QueuedFutex, TABLE, bucket_of, key_of, requeue, with_word};
use crate::base::time::{Deadline, TimeSpec};
use crate::base::user::UserPtr;
use crate::mm::FutexKey;

/// `struct futex_waitv`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy)]
#[repr(C)]
struct Word {
    value: u64,
    address: u64,
    flags: u32,
    reserved: u32,
}

impl Word {
    /// Whether the word is of this process alone. EINVAL for what is no word of 32 bits.
    fn check(&self) -> Result<bool> {
        let private = is_private(self.flags)?;
        fitting(self.value)?;
        if self.reserved == 0 { Ok(private) } else { Err(Errno::EINVAL) }
    }
}

/// Whether the word is of this process alone. EINVAL for other sizes than 32 bits.
fn is_private(flags: u32) -> Result<bool> {
    let known = raw::FUTEX2_SIZE_MASK | raw::FUTEX2_PRIVATE;
    if flags & !known != 0 || flags & raw::FUTEX2_SIZE_MASK != raw::FUTEX2_SIZE_U32 {
        return Err(Errno::EINVAL);
    }
    Ok(flags & raw::FUTEX2_PRIVATE != 0)
}

/// A value or mask for a word of 32 bits.
fn fitting(value: u64) -> Result<u32> {
    u32::try_from(value).map_err(|_| Errno::EINVAL)
}

/// The end of a wait by one of two clocks; EINVAL for others.
fn deadline(timeout_at: UserPtr<TimeSpec>, clock: u32) -> Result<Option<Deadline>> {
    let is_known = matches!(clock, raw::CLOCK_MONOTONIC | raw::CLOCK_REALTIME);
    if timeout_at.non_null().is_some() && !is_known {
        return Err(Errno::EINVAL);
    }
    Deadline::read(timeout_at, clock == raw::CLOCK_REALTIME)
}

/// futex_wake(2): at most `count` waiters, none if that is 0.
pub fn futex_wake(address: u64, mask: u64, count: u32, flags: u32) -> Result<u64> {
    let private = is_private(flags)?;
    let mask = fitting(mask)?;
    if mask == 0 {
        return Err(Errno::EINVAL);
    }
    let key = key_of(address, private)?;
    if count == 0 { Ok(0) } else { super::wake(key, super::wake_count(count), mask) }
}

/// futex_wait(2); the timeout is a moment of `clock`.
pub fn futex_wait(
    address: u64,
    value: u64,
    mask: u64,
    flags: u32,
    timeout_at: UserPtr<TimeSpec>,
    clock: u32,
) -> Result<u64> {
    let private = is_private(flags)?;
    let (value, mask) = (fitting(value)?, fitting(mask)?);
    super::wait(address, private, value, mask, deadline(timeout_at, clock)?)
}

/// futex_requeue(2): wakes some waiters of the first of two words, which must have its value, and
/// moves others to the second.
pub fn futex_requeue(waiters: u64, flags: u32, wakes: u32, moves: u32) -> Result<u64> {
    if flags != 0 || waiters == 0 {
        return Err(Errno::EINVAL);
    }
    let [from, to] = UserPtr::<[Word; 2]>::new(waiters).read()?;
    let private = [from.check()?, to.check()?];
    if from.flags != to.flags {
        return Err(Errno::EINVAL);
    }
    let counts = [requeue::count(wakes)?, requeue::count(moves)?];
    let keys = [key_of(from.address, private[0])?, key_of(to.address, private[1])?];
    requeue::requeue(from.address, keys, counts, Some(fitting(from.value)?))
}

/// futex_waitv(2).
pub fn futex_waitv(
    waiters: u64,
    count: u64,
    flags: u64,
    timeout_at: UserPtr<TimeSpec>,
    clock: u32,
) -> Result<u64> {
    if count == 0 || count > u64::from(raw::FUTEX_WAITV_MAX) || flags != 0 || waiters == 0 {
        return Err(Errno::EINVAL);
    }
    let deadline = deadline(timeout_at, clock)?;
    let words = UserPtr::<Word>::new(waiters).read_many(count as usize)?;
    let key = |word: &Word| key_of(word.address, word.check()?);
    let keys = words.iter().map(key).collect::<Result<Vec<_>>>()?;
    wait_all(&words, &keys, deadline)
}

fn wait_all(words: &[Word], keys: &[FutexKey], deadline: Option<Deadline>) -> Result<u64> {
    let waiter = FutexWaiter::new();
    let mut queued = Ok(());
    for (index, (word, &key)) in words.iter().zip(keys).enumerate() {
        queued = with_word(word.address, key, |bucket, found| {
            if u64::from(found) != word.value {
                return Err(Errno::EAGAIN);
            }
            bucket.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
            let waiter = waiter.clone();
            let entry = QueuedFutex::new(key, waiter, u32::MAX);
            bucket.push_back(QueuedFutex { index: index as u32, is_one_of_many: true, ..entry });
            Ok(())
        })
        .and_then(|result| result);
        if queued.is_err() || waiter.woken_by().is_some() {
            break;
        }
    }
    if queued.is_ok() {
        waiter.sleep(deadline);
    }
    remove_all(&waiter, keys);
    if let Some(index) = waiter.woken_by() {
        return Ok(u64::from(index));
    }
    queued?;
    let timed_out = deadline.is_some_and(Deadline::has_passed);
    Err(if timed_out { Errno::ETIMEDOUT } else { Errno::ERESTARTSYS })
}

fn remove_all(waiter: &Arc<FutexWaiter>, keys: &[FutexKey]) {
    for &key in keys {
        let mut bucket = TABLE[bucket_of(key)].lock();
        // The other references keep the waiter alive: nothing is freed under the lock.
        bucket.retain(|entry| !Arc::ptr_eq(&entry.waiter, waiter));
    }
}
