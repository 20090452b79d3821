//! The watchdog: nothing ever hangs silently. Every tick of every CPU checks two things:
//!
//! - that every other CPU has ticked within [`LIMIT_NS`]: one that has not, and answers an NMI,
//!   runs with interrupts masked for ever, or spins for a lock that nobody will free;
//! - that this CPU's thread has come to a point where it may be preempted within [`LIMIT_NS`] of
//!   the CPU's own time: one that has not loops in the kernel.
//!
//! Either prints where every CPU is, and panics. Idle CPUs tick too, once a second
//! (`time::arm_idle`). Neither takes a CPU for stuck that its host does not run
//! (`scheduler::watch`, which decides).
//!
//! Where no CPU ticked for much longer, the machine as a whole stood still: its process was
//! stopped, or its host slept. That says nothing of any CPU, and such time does not count: all
//! stamps here are of the watchdog's own clock ([`watched`]), which stands still with the machine.
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
use machine::panic::{answers, ask};
use machine::percpu::{PerCpu, cpu_id};
use machine::sync::SpinLock;
use scheduler::watch::{Asked, LIMIT_NS, Probe, Verdict, of_silent};

use crate::base::time::NS_PER_SEC;

/// Without any tick for so long, the machine stood still: 3 s, where idle CPUs tick once a second.
const STANDSTILL_NS: u64 = 3 * NS_PER_SEC;
/// So much older the latest tick may seem than it is: not each tick writes what all CPUs share.
const ROUGHLY_NS: u64 = NS_PER_SEC / 4;

struct Progress {
    /// Last tick; 0 before the first.
    ticked_ns: AtomicU64,
    /// What the CPU has run without a pass of the scheduler although asked for one ([`Asked`]).
    asked: AtomicU64,
    /// When a CPU that does not tick by itself was interrupted; 0: it was not.
    interrupted_ns: AtomicU64,
    /// The silence for which it was sent an NMI: since when; 0: none was.
    probed_ns: AtomicU64,
    /// When somebody saw that it had answered; 0: nobody has.
    answered_ns: AtomicU64,
}

static PROGRESS: PerCpu<Progress> = PerCpu::from_array(
    [const {
        Progress {
            ticked_ns: AtomicU64::new(0),
            asked: AtomicU64::new(0),
            interrupted_ns: AtomicU64::new(0),
            probed_ns: AtomicU64::new(0),
            answered_ns: AtomicU64::new(0),
        }
    }; MAX_CPUS],
);

/// The latest tick of any CPU; 0 before the first.
static LATEST_NS: AtomicU64 = AtomicU64::new(0);
/// How long the machine has stood still.
static STOOD_NS: AtomicU64 = AtomicU64::new(0);
/// Held by the CPU that notices that it stood still.
static STANDSTILL: SpinLock<()> = SpinLock::new(());

/// The watchdog's time. Behind a standstill it may be ahead until a CPU notices: then a stamp lies
/// in the future, and its CPU is looked after as much later.
fn watched(now_ns: u64) -> u64 {
    now_ns.saturating_sub(STOOD_NS.load(Ordering::Relaxed))
}

/// Some CPU ticks: nobody did for long, and the time since then is nobody's fault, or it is noted.
fn note_tick(now_ns: u64) {
    let latest_ns = LATEST_NS.load(Ordering::Acquire);
    let since_ns = now_ns.saturating_sub(latest_ns);
    if since_ns < ROUGHLY_NS {
        return;
    }
    if latest_ns == 0 || since_ns < STANDSTILL_NS {
        LATEST_NS.fetch_max(now_ns, Ordering::Relaxed);
        return;
    }
    // One notices; the others wait here, and see both.
    let _standstill = STANDSTILL.lock();
    let since_ns = now_ns.saturating_sub(LATEST_NS.load(Ordering::Relaxed));
    if since_ns >= STANDSTILL_NS {
        STOOD_NS.fetch_add(since_ns, Ordering::Relaxed);
        LATEST_NS.fetch_max(now_ns, Ordering::Release);
    }
}

/// Called by every pass of the scheduler: the running thread has come to where others may run.
/// Counts as a tick too: a CPU that is woken often and has little to do puts its timer off each
/// time.
#[inline]
pub fn passed(now_ns: u64) {
    let mine = PROGRESS.get();
    mine.asked.store(0, Ordering::Relaxed);
    mine.interrupted_ns.store(0, Ordering::Relaxed);
    mine.ticked_ns.store(watched(now_ns), Ordering::Relaxed);
}

/// Called by every reschedule interrupt: interrupts are not masked for ever.
pub fn interrupted() {
    let now_ns = watched(crate::base::time::now_ns());
    PROGRESS.get().ticked_ns.store(now_ns, Ordering::Relaxed);
}

/// What an NMI says of a CPU that has been silent since `since_ns`.
fn probe_of(cpu: usize, since_ns: u64, now_ns: u64) -> Probe {
    let its = PROGRESS.of(cpu);
    if its.probed_ns.load(Ordering::Acquire) != since_ns {
        return Probe::None;
    }
    if !answers(cpu) {
        return Probe::Sent;
    }
    // The first who sees it notes when that was.
    let noted = its.answered_ns.compare_exchange(0, now_ns, Ordering::Relaxed, Ordering::Relaxed);
    Probe::Answered(now_ns.saturating_sub(noted.err().unwrap_or(now_ns)))
}

/// Judges a CPU that shows no sign of life since `since_ns`. Panics if it is `what`.
fn judge(cpu: usize, since_ns: u64, now_ns: u64, what: &str) {
    let silent_ns = now_ns.saturating_sub(since_ns);
    if silent_ns <= LIMIT_NS {
        return;
    }
    match of_silent(silent_ns, probe_of(cpu, since_ns, now_ns)) {
        Verdict::Fine => {}
        Verdict::Ask => {
            let its = PROGRESS.of(cpu);
            ask(cpu);
            its.answered_ns.store(0, Ordering::Relaxed);
            its.probed_ns.store(since_ns, Ordering::Release);
        }
        Verdict::Stuck => machine::panic::stuck(format_args!("watchdog: cpu {cpu} {what}")),
        Verdict::Deaf => {
            machine::panic::stuck(format_args!("watchdog: cpu {cpu} does not answer an NMI"))
        }
    }
}

/// Looks after a CPU without tick.
fn look_after(cpu: usize, now_ns: u64) {
    let its = PROGRESS.of(cpu);
    if context::of(cpu) != Context::Kernel || crate::base::sched::is_idle(cpu) {
        its.interrupted_ns.store(0, Ordering::Relaxed);
        its.ticked_ns.store(now_ns, Ordering::Relaxed);
        return;
    }
    let interrupted_ns = its.interrupted_ns.load(Ordering::Relaxed);
    if interrupted_ns != 0 {
        return judge(cpu, interrupted_ns, now_ns, "is stuck in the kernel");
    }
    let ticked_ns = its.ticked_ns.load(Ordering::Relaxed);
    let silent = ticked_ns != 0 && now_ns.saturating_sub(ticked_ns) > LIMIT_NS / 2;
    let first = |word: &AtomicU64| {
        word.compare_exchange(0, now_ns, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    };
    // One of those who look asks.
    if silent && first(&its.interrupted_ns) {
        machine::ipi::send_reschedule(cpu, Cause::Watchdog);
    }
}

/// Called by every tick. `asked`: the running thread has been asked to let others run.
pub fn tick(now_ns: u64, asked: bool) {
    note_tick(now_ns);
    let now_ns = watched(now_ns);
    let mine = PROGRESS.get();
    let gap_ns = now_ns.saturating_sub(mine.ticked_ns.swap(now_ns, Ordering::Relaxed));
    let since = Asked::from_word(mine.asked.load(Ordering::Relaxed)).tick(asked, gap_ns);
    mine.asked.store(since.word(), Ordering::Relaxed);
    if since.is_stuck() {
        panic!("watchdog: cpu {} has looped in the kernel for 10 s", cpu_id());
    }
    let tickless = context::isolation().nohz_full;
    for cpu in (0..cpu_count()).filter(|&cpu| cpu != cpu_id()) {
        if tickless & 1 << cpu != 0 {
            look_after(cpu, now_ns);
            continue;
        }
        let ticked_ns = PROGRESS.of(cpu).ticked_ns.load(Ordering::Relaxed);
        if ticked_ns != 0 {
            judge(cpu, ticked_ns, now_ns, "has not ticked for 10 s");
        }
    }
}
