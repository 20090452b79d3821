//! Chains that grow: strict mode, and one more filter in front, of one thread or of all.

use alloc::sync::Arc;

use abi::{Errno, Result};
use machine::sync::SpinGuard;
use mitigations::by_program;

use super::{Filter, Mode, set};
use crate::process::{Pid, Thread};

/// Most instructions of a chain, and what each filter of it counts besides its own.
const PATH_INSNS_MAX: usize = 32_768;
const PATH_INSNS_EACH: usize = 4;

/// What [`attach`] does besides.
#[derive(Clone, Copy)]
pub struct Attach {
    /// All threads of the process get the chain (SECCOMP_FILTER_FLAG_TSYNC).
    pub all_threads: bool,
    /// A thread in the way is ESRCH, not its number (SECCOMP_FILTER_FLAG_TSYNC_ESRCH).
    pub fails: bool,
    /// Speculation stays as it is (SECCOMP_FILTER_FLAG_SPEC_ALLOW).
    pub speculates: bool,
}

/// The running thread keeps four calls. EINVAL: it has filters.
pub fn set_strict(thread: &Thread) -> Result<u64> {
    // Its own TSYNC cannot be under way, but that of another thread can.
    let _threads = thread.process.threads.lock();
    match &*thread.seccomp.mode.lock() {
        Mode::Filter(_) => return Err(Errno::EINVAL),
        Mode::Disabled | Mode::Strict => {}
    }
    set(thread, Mode::Strict);
    Ok(0)
}

/// Puts the filter in front of those of `thread`, which is the running one, and if so asked in
/// front of all threads'. Gives the number of a thread that stands in the way, or 0.
pub fn attach(thread: &Thread, mut filter: Filter, how: Attach) -> Result<u64> {
    // Of another chain, or too long a one, nothing is left: it goes when no lock is held.
    let threads = thread.process.threads.lock();
    let result = extend(thread, &mut filter);
    let result = result.and_then(|()| {
        let stranger = if how.all_threads { stranger(thread, &threads) } else { None };
        match stranger {
            None => Ok(()),
            Some(_) if how.fails => Err(Err(Errno::ESRCH)),
            Some(tid) => Err(Ok(u64::from(tid))),
        }
    });
    if let Err(failed) = result {
        return give_up(threads, filter, failed);
    }
    filter.note_allowed();
    let filter = Arc::new(filter);
    set(thread, Mode::Filter(filter.clone()));
    if !how.speculates {
        restrict_speculation();
    }
    if how.all_threads {
        for other in threads.iter().filter(|other| other.tid() != thread.tid()) {
            set(other, Mode::Filter(filter.clone()));
            if thread.seccomp.no_new_privs() {
                other.seccomp.set_no_new_privs();
            }
        }
    }
    drop(threads);
    Ok(0)
}

/// Where the boot says so, who filters its calls does not trust its code.
fn restrict_speculation() {
    let flags = machine::task::speculation();
    let selection = machine::mitigations::selection();
    machine::task::set_speculation(by_program::under_seccomp(selection, flags));
}

/// Lets go of the lock, then of the filter.
fn give_up<T>(lock: SpinGuard<'_, T>, filter: Filter, result: Result<u64>) -> Result<u64> {
    drop(lock);
    drop(filter);
    result
}

/// Makes the thread's chain the one that `filter` stands in front of.
fn extend(thread: &Thread, filter: &mut Filter) -> core::result::Result<(), Result<u64>> {
    let previous = match thread.seccomp.mode() {
        Mode::Disabled => return Ok(()),
        Mode::Strict => return Err(Err(Errno::EINVAL)),
        Mode::Filter(previous) => previous,
    };
    let insns = filter.path_insns + PATH_INSNS_EACH + previous.path_insns;
    (filter.path_insns, filter.depth) = (insns, previous.depth + 1);
    let has_supervisor = previous.chain().any(|filter| filter.supervisor.is_some());
    filter.previous = Some(previous);
    if filter.supervisor.is_some() && has_supervisor {
        return Err(Err(Errno::EBUSY));
    }
    if insns > PATH_INSNS_MAX { Err(Err(Errno::ENOMEM)) } else { Ok(()) }
}

/// A thread whose filters are not a part of the running thread's: it cannot be given those.
fn stranger(own: &Thread, threads: &[Arc<Thread>]) -> Option<Pid> {
    let Mode::Filter(chain) = own.seccomp.mode() else {
        return strange_without(own, threads);
    };
    let found = threads.iter().find(|other| match &*other.seccomp.mode.lock() {
        Mode::Disabled => false,
        Mode::Strict => true,
        Mode::Filter(theirs) => !chain.chain().any(|f| core::ptr::eq(f, Arc::as_ptr(theirs))),
    });
    found.map(|other| other.tid())
}

/// The same if the running thread has no filter yet.
fn strange_without(own: &Thread, threads: &[Arc<Thread>]) -> Option<Pid> {
    let is_filtered = |other: &Thread| !matches!(&*other.seccomp.mode.lock(), Mode::Disabled);
    threads.iter().find(|o| o.tid() != own.tid() && is_filtered(o)).map(|other| other.tid())
}
