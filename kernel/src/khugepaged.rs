//! The thread that makes small pages huge ones in the background
//! (Documentation/admin-guide/mm/transhuge.rst, "Khugepaged controls").
//!
//! It looks at few pages at a time, with long rests: [`Tunables`]. Spaces that are loaded on an
//! isolated CPU are left alone: what changes of them would interrupt it. While no memory is to be
//! had that way it does nothing.
//!
//! What it sleeps for: the time between two looks, or a change of its settings.
//!
//! Neighbour: `mm::huge`, which decides what may become huge.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering};

use abi::Result;
use machine::memory::HUGE_PAGE;

use crate::base::sched::{Sleep, default_affinity, yield_if_needed};
use crate::base::sync::WaitQueue;
use crate::base::time::Deadline;
use crate::mm::huge::{Limits, Looked, Policy, policy};
use crate::mm::{Mm, PAGE};
use crate::page_cache::huge::HugeFiles;
use crate::process::{Pid, processes_from, spawn_kernel};

const NS_PER_MS: u64 = 1_000_000;
/// Pages of a huge one.
const PAGES: u64 = HUGE_PAGE / PAGE;

/// Settings, files of /sys/kernel/mm/transparent_hugepage/khugepaged.
pub struct Tunables {
    /// Pages looked at between two rests.
    pub pages_to_scan: AtomicU64,
    /// How long a rest is, milliseconds.
    pub scan_sleep_millisecs: AtomicU64,
    /// How long it is where there was no memory in one piece, milliseconds.
    pub alloc_sleep_millisecs: AtomicU64,
    /// See [`Limits`].
    pub max_ptes_none: AtomicU64,
    /// See [`Limits`].
    pub max_ptes_shared: AtomicU64,
}

/// What holds now.
pub static TUNABLES: Tunables = Tunables {
    pages_to_scan: AtomicU64::new(8 * PAGES),
    scan_sleep_millisecs: AtomicU64::new(10_000),
    alloc_sleep_millisecs: AtomicU64::new(60_000),
    max_ptes_none: AtomicU64::new(PAGES - 1),
    max_ptes_shared: AtomicU64::new(PAGES / 2),
};

/// Huge pages that it made.
pub static PAGES_COLLAPSED: AtomicU64 = AtomicU64::new(0);
/// How often it has seen all processes.
pub static FULL_SCANS: AtomicU64 = AtomicU64::new(0);

static SETTINGS_CHANGED: WaitQueue = WaitQueue::new();
static CHANGES: AtomicU64 = AtomicU64::new(0);

/// Starts it.
pub fn start() -> Result<()> {
    spawn_kernel("khugepaged", run)?;
    Ok(())
}

/// Has it look at its settings again: a rest ends.
pub fn note_change() {
    CHANGES.fetch_add(1, Ordering::SeqCst);
    SETTINGS_CHANGED.wake_all(0);
}

/// Where it goes on.
struct Place {
    pid: Pid,
    address: u64,
}

fn run() {
    let mut place = Place { pid: 0, address: 0 };
    loop {
        let changes = CHANGES.load(Ordering::SeqCst);
        let rest_ms = look(&mut place);
        let until = rest_ms.map(|ms| Deadline::after_ns(ms.saturating_mul(NS_PER_MS)));
        let changed = || (CHANGES.load(Ordering::SeqCst) != changes).then_some(());
        // Over by time, or by a change: both are a reason to go on.
        let _ = SETTINGS_CHANGED.wait_deadline(Sleep::Uninterruptible, until, changed);
    }
}

/// Looks at as many pages as is allowed. How long to rest then, milliseconds; None if nothing is
/// to become huge.
fn look(place: &mut Place) -> Option<u64> {
    let of_files = HugeFiles::of_nameless();
    if policy() == Policy::Never && matches!(of_files, HugeFiles::Never | HugeFiles::Deny) {
        return None;
    }
    let limits = Limits {
        none: TUNABLES.max_ptes_none.load(Ordering::Relaxed),
        shared: TUNABLES.max_ptes_shared.load(Ordering::Relaxed),
    };
    let mut left = TUNABLES.pages_to_scan.load(Ordering::Relaxed);
    while left > 0 {
        yield_if_needed();
        // A process counts as a page.
        left -= 1;
        let Some(process) = processes_from(place.pid, 1).pop() else {
            *place = Place { pid: 0, address: 0 };
            FULL_SCANS.fetch_add(1, Ordering::Relaxed);
            break;
        };
        if process.pid != place.pid {
            *place = Place { pid: process.pid, address: 0 };
        }
        let mm = process.mm().ok().filter(may_be_disturbed);
        let looked = mm.map_or(Looked::End, |mm| mm.look_for_huge(place.address, &limits));
        match looked {
            Looked::At(next, is_huge) => {
                place.address = next;
                left = left.saturating_sub(PAGES - 1);
                PAGES_COLLAPSED.fetch_add(is_huge.into(), Ordering::Relaxed);
            }
            Looked::End => *place = Place { pid: process.pid + 1, address: 0 },
            Looked::NoMemory => {
                place.address += HUGE_PAGE;
                return Some(TUNABLES.alloc_sleep_millisecs.load(Ordering::Relaxed));
            }
        }
    }
    Some(TUNABLES.scan_sleep_millisecs.load(Ordering::Relaxed))
}

/// Whether no isolated CPU has the space loaded.
fn may_be_disturbed(mm: &Arc<Mm>) -> bool {
    mm.space().cpus() & !default_affinity() == 0
}
