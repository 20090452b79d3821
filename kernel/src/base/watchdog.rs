//! The watchdog: nothing ever hangs silently. Every tick of every CPU checks two things:
//!
//! - that every other CPU has ticked within [`LIMIT_NS`]: one that has not runs with interrupts
//!   masked for ever, or spins for a lock that nobody will free;
//! - that this CPU's thread has come to a point where it may be preempted within [`LIMIT_NS`] of
//!   being asked: one that has not loops in the kernel.
//!
//! Either prints where every CPU is, and panics. Idle CPUs tick too, once a second
//! (`time::arm_idle`).
//!
//! CPUs of `nohz_full=` do not tick. While one is in user mode or idle there is nothing to watch;
//! the others see that in its state word, and interrupt nobody. One that is seen in the kernel at
//! every look for half the limit is interrupted once, and must then answer and reschedule as if it
//! ticked.

use core::sync::atomic::{AtomicU64, Ordering};

use context_tracking::state::Context;
use context_tracking::work::Cause;
use machine::context;
use machine::cpu::{MAX_CPUS, cpu_count};
use machine::percpu::{PerCpu, cpu_id};

/// How long no progress is still taken for slowness: 10 s.
pub const LIMIT_NS: u64 = 10 * crate::base::time::NS_PER_SEC;

struct Progress {
    /// Last tick; 0 before the first.
    ticked_ns: AtomicU64,
    /// Since when the CPU has had no pass of the scheduler although asked for one; 0: it is not
    /// asked.
    asked_ns: AtomicU64,
}

static PROGRESS: PerCpu<Progress> = PerCpu::from_array(
    [const { Progress { ticked_ns: AtomicU64::new(0), asked_ns: AtomicU64::new(0) } }; MAX_CPUS],
);

/// Called by every pass of the scheduler: the running thread has come to where others may run.
/// Counts as a tick too: a CPU that is woken often and has little to do puts its timer off each
/// time.
#[inline]
pub fn passed(now_ns: u64) {
    let mine = PROGRESS.get();
    mine.asked_ns.store(0, Ordering::Relaxed);
    mine.ticked_ns.store(now_ns, Ordering::Relaxed);
}

/// Called by every reschedule interrupt: interrupts are not masked for ever.
pub fn interrupted() {
    PROGRESS.get().ticked_ns.store(crate::base::time::now_ns(), Ordering::Relaxed);
}

/// Looks after a CPU without tick. True: it has been in the kernel for too long.
fn is_stuck_without_tick(cpu: usize, now_ns: u64) -> bool {
    let its = PROGRESS.of(cpu);
    if context::of(cpu) != Context::Kernel || crate::base::sched::is_idle(cpu) {
        its.asked_ns.store(0, Ordering::Relaxed);
        its.ticked_ns.store(now_ns, Ordering::Relaxed);
        return false;
    }
    let asked_ns = its.asked_ns.load(Ordering::Relaxed);
    let ticked_ns = its.ticked_ns.load(Ordering::Relaxed);
    if asked_ns != 0 {
        return now_ns.saturating_sub(asked_ns) > LIMIT_NS;
    }
    let silent = ticked_ns != 0 && now_ns.saturating_sub(ticked_ns) > LIMIT_NS / 2;
    // One of those who look asks.
    let asks = silent
        && its.asked_ns.compare_exchange(0, now_ns, Ordering::Relaxed, Ordering::Relaxed).is_ok();
    if asks {
        machine::ipi::send_reschedule(cpu, Cause::Watchdog);
    }
    false
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
    let tickless = context::isolation().nohz_full;
    for cpu in 0..cpu_count() {
        if tickless & 1 << cpu != 0 && cpu != cpu_id() {
            if is_stuck_without_tick(cpu, now_ns) {
                machine::panic::stuck(format_args!("watchdog: cpu {cpu} is stuck in the kernel"));
            }
            continue;
        }
        let ticked_ns = PROGRESS.of(cpu).ticked_ns.load(Ordering::Relaxed);
        if ticked_ns != 0 && now_ns.saturating_sub(ticked_ns) > LIMIT_NS {
            machine::panic::stuck(format_args!("watchdog: cpu {cpu} has not ticked for 10 s"));
        }
    }
}
