//! FUTEX_REQUEUE, FUTEX_CMP_REQUEUE, FUTEX_WAKE_OP: two words at once.

use core::sync::atomic::Ordering;

use abi::{Errno, Result, general as raw};

use super::{Bucket, Pair, TABLE, bucket_of, key_of, wake_in};
use crate::base::user::UserPtr;
use crate::mm::FutexKey;
use crate::process::current;

/// A count argument of these calls: EINVAL if negative.
pub(super) fn count(argument: u32) -> Result<usize> {
    usize::try_from(argument as i32).map_err(|_| Errno::EINVAL)
}

/// Locks the buckets of two keys, lower index first, and gives them to `f` in the order of the
/// keys; None for the second if it is the same bucket.
pub(super) fn with_buckets<R>(
    first: FutexKey,
    second: FutexKey,
    f: impl FnOnce(&mut Bucket, Option<&mut Bucket>) -> R,
) -> R {
    let (a, b) = (bucket_of(first), bucket_of(second));
    if a == b {
        return f(&mut TABLE[a].lock(), None);
    }
    if a < b {
        let mut first = TABLE[a].lock();
        let mut second = TABLE[b].lock();
        f(&mut first, Some(&mut second))
    } else {
        let mut second = TABLE[b].lock();
        let mut first = TABLE[a].lock();
        f(&mut first, Some(&mut second))
    }
}

/// Wakes some waiters of the first word and moves others to the second.
pub(super) fn requeue_pair(words: &Pair, expected: Option<u32>) -> Result<u64> {
    let [wakes, moves] = words.counts;
    let counts = [count(wakes)?, count(moves)?];
    let keys = [key_of(words.first, words.private)?, key_of(words.second, words.private)?];
    requeue(words.first, keys, counts, expected)
}

/// The same by keys, of which the first is that of the word at `address`.
pub(super) fn requeue(
    address: u64,
    [from, to]: [FutexKey; 2],
    [wakes, moves]: [usize; 2],
    expected: Option<u32>,
) -> Result<u64> {
    loop {
        let done = with_buckets(from, to, |first, second| {
            if let Some(expected) = expected {
                match UserPtr::<u32>::new(address).load() {
                    Ok(value) if value != expected => return Some(Err(Errno::EAGAIN)),
                    Ok(_) => {}
                    Err(_) => return None,
                }
            }
            let woken = wake_in(first, from, wakes, u32::MAX);
            Some(move_entries(first, second, from, to, moves).map(|moved| woken + moved))
        });
        if let Some(result) = done {
            return result;
        }
        UserPtr::<u32>::new(address).load()?;
        if current().has_pending_signal() {
            return Err(Errno::ERESTARTNOINTR);
        }
    }
}

fn move_entries(
    first: &mut Bucket,
    second: Option<&mut Bucket>,
    from: FutexKey,
    to: FutexKey,
    moves: usize,
) -> Result<u64> {
    let index = bucket_of(to);
    let mut count = 0;
    // Of one bucket those that were moved are behind all others: nobody is moved twice.
    let mut left = first.len();
    let mut at = 0;
    let mut second = second;
    while left > 0 && count < moves {
        left -= 1;
        let entry = &first[at];
        let stays = entry.is_pi || entry.is_one_of_many || entry.goes_to.is_some();
        if entry.key != from || stays {
            at += 1;
            continue;
        }
        if second.as_mut().is_some_and(|second| second.try_reserve(1).is_err()) {
            break;
        }
        let Some(mut entry) = first.remove(at) else { break };
        entry.key = to;
        entry.waiter.bucket.store(index, Ordering::SeqCst);
        second.as_deref_mut().unwrap_or(first).push_back(entry);
        count += 1;
    }
    Ok(count as u64)
}

/// Changes the second word, wakes waiters of the first, and waiters of the second if its old value
/// compares as asked.
pub(super) fn wake_op(words: &Pair, operation: u32) -> Result<u64> {
    let [first_count, second_count] = words.counts.map(super::wake_count);
    let first_key = key_of(words.first, words.private)?;
    let second_key = key_of(words.second, words.private)?;
    let operation = Operation::decode(operation)?;
    loop {
        let done = with_buckets(first_key, second_key, |first, second| {
            let old = operation.apply(words.second)?;
            let mut woken = wake_in(first, first_key, first_count, u32::MAX);
            if operation.compares(old) {
                let second = second.unwrap_or(first);
                woken += wake_in(second, second_key, second_count, u32::MAX);
            }
            Some(woken)
        });
        if let Some(woken) = done {
            return Ok(woken);
        }
        // Bring the page in, writable.
        let value = UserPtr::<u32>::new(words.second).load()?;
        UserPtr::<u32>::new(words.second).compare_exchange(value, value)?;
        if current().has_pending_signal() {
            return Err(Errno::ERESTARTNOINTR);
        }
    }
}

/// The operation of FUTEX_WAKE_OP: change and comparison, packed in 32 bits (futex(2)).
struct Operation {
    kind: u32,
    operand: u32,
    comparison: u32,
    compared_with: i32,
}

/// How often the change is tried before another CPU that keeps changing the word is let through.
const MOST_TRIES: u32 = 64;

impl Operation {
    fn decode(packed: u32) -> Result<Operation> {
        // Both operands are 12 bits, signed.
        let signed = |value: u32| (value << 20) as i32 >> 20;
        let mut operand = signed(packed >> 12) as u32;
        let kind = packed >> 28 & 7;
        let comparison = packed >> 24 & 0xf;
        if packed >> 28 & raw::FUTEX_OP_OPARG_SHIFT != 0 {
            operand = 1 << (operand & 31);
        }
        if kind > raw::FUTEX_OP_XOR || comparison > raw::FUTEX_OP_CMP_GE {
            return Err(Errno::ENOSYS);
        }
        Ok(Operation { kind, operand, comparison, compared_with: signed(packed) })
    }

    fn change(&self, old: u32) -> u32 {
        match self.kind {
            raw::FUTEX_OP_SET => self.operand,
            raw::FUTEX_OP_ADD => old.wrapping_add(self.operand),
            raw::FUTEX_OP_OR => old | self.operand,
            raw::FUTEX_OP_ANDN => old & !self.operand,
            _ => old ^ self.operand,
        }
    }

    /// Changes the word; its old value. None if the page is missing or others keep changing it.
    fn apply(&self, address: u64) -> Option<u32> {
        let mut old = UserPtr::<u32>::new(address).load().ok()?;
        for _ in 0..MOST_TRIES {
            let found =
                UserPtr::<u32>::new(address).compare_exchange(old, self.change(old)).ok()?;
            if found == old {
                return Some(old);
            }
            old = found;
        }
        None
    }

    fn compares(&self, old: u32) -> bool {
        let old = old as i32;
        match self.comparison {
            raw::FUTEX_OP_CMP_EQ => old == self.compared_with,
            raw::FUTEX_OP_CMP_NE => old != self.compared_with,
            raw::FUTEX_OP_CMP_LT => old < self.compared_with,
            raw::FUTEX_OP_CMP_LE => old <= self.compared_with,
            raw::FUTEX_OP_CMP_GT => old > self.compared_with,
            _ => old >= self.compared_with,
        }
    }
}
