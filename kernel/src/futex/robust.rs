//! Robust futexes: what a thread that ends still held is released for it (get_robust_list(2)).
//!
//! The program keeps a list of the locks it holds in its own memory and tells the kernel only where
//! it begins. Everything read here is the program's word: the walk is bounded, a bad pointer ends
//! it, and at worst the program's own locks stay locked.

use core::sync::atomic::Ordering;

use abi::{Errno, Result, general as raw};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{pi, wake_address};
use crate::base::user::UserPtr;
use crate::process::current;
use crate::process::ptrace::access::{self, Ids};
use crate::process::{Thread, find_process, find_thread};

/// `struct robust_list_head`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy)]
#[repr(C)]
struct Head {
    /// First entry; the last one points back here. Bit 0: a PI lock.
    first: u64,
    /// From an entry to its futex word.
    offset: u64,
    /// An entry that was being locked or unlocked.
    pending: u64,
}

/// Most entries that are followed, as in Linux.
const MOST_ENTRIES: usize = 2048;

/// set_robust_list(2).
pub fn set_robust_list(head: u64, length: u64) -> Result<u64> {
    if length != size_of::<Head>() as u64 {
        return Err(Errno::EINVAL);
    }
    current().robust_list.store(head, Ordering::Relaxed);
    Ok(0)
}

/// get_robust_list(2).
pub fn get_robust_list(tid: i32, head: UserPtr<u64>, length: UserPtr<u64>) -> Result<u64> {
    let (process, thread) = match tid {
        0 => (current().process.clone(), Some(current().to_arc())),
        1.. => match find_thread(tid as u32) {
            Some(thread) => (thread.process.clone(), Some(thread)),
            // One that has ended and was not waited for has none.
            None => (find_process(tid as u32).ok_or(Errno::ESRCH)?, None),
        },
        _ => return Err(Errno::ESRCH),
    };
    let list = access::inspect(&process, Ids::Real, Errno::EPERM, || {
        Ok(thread.map_or(0, |thread| thread.robust_list.load(Ordering::Relaxed)))
    })?;
    head.write(&list)?;
    length.write(&(size_of::<Head>() as u64))?;
    Ok(0)
}

/// The running thread gives up its address space, by ending or by executing a program: releases the
/// robust futexes it holds, and tells who waits for it to be gone (set_tid_address(2)).
pub fn leaves_memory(thread: &Thread) {
    release_held(thread);
    let clear_tid = thread.clear_child_tid.swap(0, Ordering::Relaxed);
    if clear_tid != 0 {
        // The memory may be gone: then nobody waits there either.
        let _ = UserPtr::<u32>::new(clear_tid).write(&0);
        let _ = wake_address(clear_tid, 1);
    }
}

fn release_held(thread: &Thread) {
    let head_at = thread.robust_list.swap(0, Ordering::Relaxed);
    if head_at != 0 {
        // A fault ends the walk: then the rest is unreachable.
        let _ = walk(thread, head_at);
    }
}

fn walk(thread: &Thread, head_at: u64) -> Result<()> {
    let head = UserPtr::<Head>::new(head_at).read()?;
    let (pending, pending_pi) = (head.pending & !1, head.pending & 1 != 0);
    let mut next = head.first;
    for _ in 0..MOST_ENTRIES {
        let (entry, is_pi) = (next & !1, next & 1 != 0);
        if entry == head_at || entry == 0 {
            break;
        }
        // Read the link first: the next owner may change it at once.
        let after = UserPtr::<u64>::new(entry).read();
        if entry != pending {
            release(thread, entry.wrapping_add(head.offset), is_pi, false)?;
        }
        next = after?;
    }
    if pending != 0 {
        release(thread, pending.wrapping_add(head.offset), pending_pi, true)?;
    }
    Ok(())
}

/// Marks the word as orphaned if this thread holds it, and wakes one waiter.
fn release(thread: &Thread, address: u64, is_pi: bool, is_pending: bool) -> Result<()> {
    // The owner alone changes a held word, but for the waiters' bit: a few tries suffice.
    for _ in 0..16 {
        let value = UserPtr::<u32>::new(address).load()?;
        let owner = value & raw::FUTEX_TID_MASK;
        if is_pending && !is_pi && owner == 0 {
            // Unlocked already, but the wake-up had not been sent yet.
            let _ = wake_address(address, 1);
            return Ok(());
        }
        if owner != thread.tid() {
            return Ok(());
        }
        if is_pi && pi::owner_died(thread, address) {
            return Ok(());
        }
        let new = value & raw::FUTEX_WAITERS | raw::FUTEX_OWNER_DIED;
        let found = UserPtr::<u32>::new(address).compare_exchange(value, new)?;
        if found == value {
            if !is_pi && value & raw::FUTEX_WAITERS != 0 {
                let _ = wake_address(address, 1);
            }
            return Ok(());
        }
    }
    Ok(())
}
