//! futex_waitv(2): waiting on several words at once.

use alloc::sync::Arc;
use alloc::vec::Vec;

use abi::{Errno, Result, general as raw};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{FutexWaiter, QueuedFutex, TABLE, bucket_of, key_of, with_word};
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
    let is_known = matches!(clock, raw::CLOCK_MONOTONIC | raw::CLOCK_REALTIME);
    if timeout_at.non_null().is_some() && !is_known {
        return Err(Errno::EINVAL);
    }
    let deadline = Deadline::read(timeout_at, clock == raw::CLOCK_REALTIME)?;
    let words = UserPtr::<Word>::new(waiters).read_many(count as usize)?;
    let mut keys = Vec::new();
    for word in &words {
        let known = raw::FUTEX2_SIZE_MASK | raw::FUTEX2_PRIVATE;
        let is_32_bits = word.flags & raw::FUTEX2_SIZE_MASK == raw::FUTEX2_SIZE_U32;
        if word.flags & !known != 0 || !is_32_bits || word.reserved != 0 {
            return Err(Errno::EINVAL);
        }
        keys.push(key_of(word.address, word.flags & raw::FUTEX2_PRIVATE != 0)?);
    }
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
