//! The watchdog: nothing ever hangs silently. Every tick of every CPU checks two things:
//!
//! - that every other CPU has ticked within [`LIMIT_NS`]: one that has not runs with interrupts masked
//!   for ever, or spins for a lock that nobody will free;
//! - that this CPU's thread has come to a point where it may be preempted within [`LIMIT_NS`] of being
//!   asked: one that has not loops in the kernel.
//!
//! Either prints where every CPU is, and panics. Idle CPUs tick too, once a second (`time::arm_idle`).

use core::sync::atomic::{AtomicU64, Ordering};

use machine::cpu::{MAX_CPUS, cpu_count};
use machine::percpu::{PerCpu, cpu_id};

/// How long no progress is still taken for slowness: 10 s.
pub const LIMIT_NS: u64 = 10 * crate::time::NS_PER_SEC;

struct Progress {
    /// Last tick; 0 before the first.
    ticked_ns: AtomicU64,
    /// Since when the CPU has had no pass of the scheduler although asked for one; 0: it is not asked.
    asked_ns: AtomicU64,
}

static PROGRESS: PerCpu<Progress> = PerCpu::from_array(
    [const { Progress { ticked_ns: AtomicU64::new(0), asked_ns: AtomicU64::new(0) } }; MAX_CPUS],
);

/// Called by every pass of the scheduler: the running thread has come to where others may run. Counts
/// as a tick too: a CPU that is woken often and has little to do puts its timer off each time.
#[inline]
pub fn passed(now_ns: u64) {
    let mine = PROGRESS.get();
    mine.asked_ns.store(0, Ordering::Relaxed);
    mine.ticked_ns.store(now_ns, Ordering::Relaxed);
}

/// Called by every tick. `asked`: the running thread has been asked to let others run.
pub fn tick(now_ns: u64, asked: bool) {
    let mine = PROGRESS.get();
    mine.ticked_ns.store(now_ns, Ordering::Relaxed);
    let asked_ns = mine.asked_ns.load(Ordering::Relaxed);
    if asked && asked_ns == 0 {
        mine.asked_ns.store(now_ns, Ordering::Relaxed);
    } else if asked_ns != 0 && now_ns.saturating_sub(asked_ns) > LIMIT_NS {
        panic!("watchdog: cpu {} has looped in the kernel for 10 s", cpu_id());
    }
    for cpu in 0..cpu_count() {
        let ticked_ns = PROGRESS.of(cpu).ticked_ns.load(Ordering::Relaxed);
        if ticked_ns != 0 && now_ns.saturating_sub(ticked_ns) > LIMIT_NS {
            machine::panic::stuck(format_args!("watchdog: cpu {cpu} has not ticked for 10 s"));
        }
    }
}
