//! Out of memory: somebody has to go (proc(5), oom_score_adj).
//!
//! When only the reserve is left, every call and page fault that could need more comes here first.
//! What can be read again is dropped; if that is not enough, the process that holds most is killed
//! and the caller waits for its memory. If nobody holds much, it is a crowd that fills the memory,
//! a fork bomb: then the process group that holds most is killed as a whole, the first process
//! apart, for killing one after the other would never overtake it.
//!
//! Why it is hard: the victim must come to its end without memory. Calls that only give back pass
//! without a check, the kernel's own objects may come from the reserve, and one that waits here is
//! woken by its own end. All waits are bounded; who has waited in vain gets ENOMEM.
//!
//! Callers hold no lock that an ending process needs. Neighbours: `machine::frame` (the reserve),
//! `signal` (the kill), `base::reserve` (who asks).

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use abi::{Errno, Result, general as nr};
use machine::frame::is_short;

use crate::base::reserve::reclaim;
use crate::base::sched::Sleep;
use crate::base::sync::{Mutex, WaitQueue};
use crate::base::time::{Deadline, NS_PER_SEC};
use crate::mm::PAGE;
use crate::process::signal::{SigInfo, send_to_process};
use crate::process::{Pid, Process, all_processes, current, find_process, upper, work};

/// How long a victim may take to end before the next one is chosen.
const VICTIM_NS: u64 = 2 * NS_PER_SEC;
/// How much longer for each member of a crowd.
const MEMBER_NS: u64 = NS_PER_SEC / 50;
/// Longest wait of one caller for memory.
const PATIENCE_NS: u64 = 10 * NS_PER_SEC;
/// Interval of looks at the memory while waiting.
const LOOK_NS: u64 = 2_000_000;
/// Least members of a group that counts as a crowd.
const CROWD: usize = 8;
/// What a descriptor counts, pages, beside what is queued behind it.
const PAGES_PER_FILE: u64 = 1;
/// What a thread counts, pages: its stack in the kernel.
const PAGES_PER_THREAD: u64 = 8;

/// Who was killed last, and until when they may take to end. By number: their memory is wanted.
static VICTIMS: Mutex<(Vec<Pid>, Option<Deadline>)> = Mutex::new((Vec::new(), None));
static WAITERS: WaitQueue = WaitQueue::new();

/// The check before a system call, when memory is short. ENOMEM if there is no way to get any.
#[cold]
pub fn before_call(number: u32) -> Result<()> {
    let gives_back = matches!(
        number,
        nr::__NR_exit
            | nr::__NR_exit_group
            | nr::__NR_munmap
            | nr::__NR_close
            | nr::__NR_close_range
            | nr::__NR_rt_sigreturn
            | nr::__NR_kill
            | nr::__NR_wait4
            | nr::__NR_waitid
            | nr::__NR_unlink
            | nr::__NR_unlinkat
            | nr::__NR_reboot
    );
    if gives_back || relieve() { Ok(()) } else { Err(Errno::ENOMEM) }
}

/// Makes memory free, by killing if need be, and waits until there is some. False if there is none
/// and nobody to kill, or the caller itself is to end.
#[cold]
pub fn relieve() -> bool {
    let timeout = Deadline::after_ns(PATIENCE_NS);
    while is_short() {
        reclaim();
        upper::collect_garbage();
        if !is_short() {
            return true;
        }
        if current().task().work() & work::EXIT != 0 || timeout.has_passed() || !kill_somebody() {
            return false;
        }
        let look = Deadline::after_ns(LOOK_NS);
        let free = || (!is_short()).then_some(());
        // A signal that is not the end is no reason to give up: it waits until the call is done.
        let sleep = if current().has_pending_signal() {
            Sleep::Uninterruptible
        } else {
            Sleep::Interruptible
        };
        let _ = WAITERS.wait_deadline(sleep, Some(look), free);
    }
    true
}

/// Kills unless a victim is still ending. False if there is nobody to kill.
fn kill_somebody() -> bool {
    // Somebody else is choosing.
    let Some(mut last) = VICTIMS.try_lock() else { return true };
    let is_late = last.1.is_none_or(Deadline::has_passed);
    if !is_late
        && !last.0.iter().all(|&pid| find_process(pid).is_none_or(|process| has_ended(&process)))
    {
        return true;
    }
    let Some(victims) = choose() else { return false };
    let patience_ns = VICTIM_NS + victims.len() as u64 * MEMBER_NS;
    let numbers = victims.iter().map(|process| process.pid).collect();
    let next = (numbers, Some(Deadline::after_ns(patience_ns)));
    let old = core::mem::replace(&mut *last, next);
    drop(last);
    drop(old);
    for process in &victims {
        // SIGKILL is never refused.
        let _ = send_to_process(process, SigInfo::kernel(nr::SIGKILL));
    }
    true
}

fn has_ended(process: &Process) -> bool {
    process.is_zombie.load(Ordering::Acquire)
}

/// What a process holds, in pages.
fn weight(process: &Process) -> u64 {
    let Ok(mm) = process.mm() else { return 0 };
    let files = process.files();
    let threads = process.threads.lock().len() as u64;
    let queued = files.held_bytes() as u64 / PAGE;
    let open = files.count() as u64;
    mm.pages_estimate() + queued + open * PAGES_PER_FILE + threads * PAGES_PER_THREAD
}

/// What the process's first thread is called; empty if it has none any more.
fn name(process: &Process) -> Vec<u8> {
    let thread = process.threads.lock().first().cloned();
    let name = thread.map_or([0; 16], |thread| *thread.name.lock());
    name.into_iter().take_while(|&byte| byte != 0).collect()
}

/// What most of a crowd are called.
fn most_common(names: impl Iterator<Item = Vec<u8>>) -> Vec<u8> {
    let mut counts: BTreeMap<Vec<u8>, usize> = BTreeMap::new();
    names.for_each(|name| *counts.entry(name).or_default() += 1);
    counts.into_iter().max_by_key(|(_, count)| *count).map(|(name, _)| name).unwrap_or_default()
}

/// Whom to kill: one process, or a crowd. Logs the choice.
fn choose() -> Option<Vec<Arc<Process>>> {
    let (all, _) = machine::frame::usage();
    let mut heaviest: Option<(i64, u64, Arc<Process>)> = None;
    let mut groups: BTreeMap<Pid, (u64, usize)> = BTreeMap::new();
    let processes = all_processes();
    for process in &processes {
        let adjust = i64::from(process.settings.oom_score_adj.load(Ordering::Relaxed));
        if adjust == -1000 || has_ended(process) || process.is_exiting() {
            continue;
        }
        let pages = weight(process);
        let group = groups.entry(process.group()).or_default();
        *group = (group.0 + pages, group.1 + 1);
        let score = pages as i64 + adjust * all as i64 / 1000;
        if heaviest.as_ref().is_none_or(|(most, ..)| score > *most) {
            heaviest = Some((score, pages, process.clone()));
        }
    }
    let (_, pages, process) = heaviest?;
    let total: u64 = groups.values().map(|(pages, _)| pages).sum();
    // Nobody here has the memory; killing would not bring it back.
    if total < all as u64 / 8 {
        return None;
    }
    let crowd = groups.iter().max_by_key(|(_, (pages, _))| *pages);
    if let Some((&group, &(together, members))) = crowd
        && members >= CROWD
        && pages < all as u64 / 8
        && together > 2 * pages
    {
        let is_member = |p: &Arc<Process>| p.group() == group && p.pid != 1;
        let victims: Vec<_> = processes.into_iter().filter(is_member).collect();
        let name = most_common(victims.iter().map(|process| name(process)));
        machine::log!(
            "warning: out of memory: killed {} and the others of process group {group}, {members} \
             processes, {} KiB",
            name.escape_ascii(),
            together * 4
        );
        return Some(victims);
    }
    let name = name(&process);
    machine::log!(
        "warning: out of memory: killed {} ({}), {} KiB",
        name.escape_ascii(),
        process.pid,
        pages * 4
    );
    Some(Vec::from([process]))
}
