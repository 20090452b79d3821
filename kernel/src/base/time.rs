//! Time for the kernel: deadlines and timers. One queue of timers per CPU, run by that CPU's timer
//! interrupt, which is armed for whatever comes first: the tick of a busy CPU or the next timer.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use abi::{Errno, Result};
use context_tracking::work::Cause;
use machine::cpu::MAX_CPUS;
use machine::percpu::{PerCpu, cpu_id};
use machine::sync::{IrqGuard, Once, SpinLock};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::base::sync::Wake;
use crate::base::timer_queue::{Handle, TimerQueue};
use crate::base::user::UserPtr;

pub use machine::time::now_ns;

/// Nanoseconds in a second.
pub const NS_PER_SEC: u64 = 1_000_000_000;
/// The tick of a CPU on which threads wait: 250 Hz.
pub const TICK_NS: u64 = 4_000_000;
/// A CPU without timers, on which nobody waits, still looks around this often.
const MAX_IDLE_NS: u64 = NS_PER_SEC;

/// A moment on the monotonic clock, nanoseconds since boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(pub u64);

impl Deadline {
    /// `ns` nanoseconds from now; far in the future if that overflows.
    #[must_use]
    pub fn after_ns(ns: u64) -> Deadline {
        Deadline(now_ns().saturating_add(ns))
    }

    /// A program's absolute timeout, on the wall clock or the monotonic one; None without one.
    /// EFAULT, EINVAL.
    pub fn read(at: UserPtr<TimeSpec>, realtime: bool) -> Result<Option<Deadline>> {
        let Some(at) = at.non_null() else { return Ok(None) };
        let ns = at.read()?.to_ns()?;
        let offset_ns = if realtime { realtime_offset_ns() } else { 0 };
        Ok(Some(Deadline(ns.saturating_sub(offset_ns))))
    }

    /// Whether the moment is past.
    pub fn has_passed(self) -> bool {
        now_ns() >= self.0
    }
}

/// Wall-clock time in nanoseconds since 1970: the clock at boot, plus what clock_settime(2)
/// changed.
pub fn realtime_ns() -> u64 {
    now_ns().wrapping_add(realtime_offset_ns())
}

/// What to add to the monotonic clock to get the wall clock.
pub fn realtime_offset_ns() -> u64 {
    machine::time::boot_wall_ns().wrapping_add(ADJUSTMENT_NS.load(Ordering::Relaxed))
}

static ADJUSTMENT_NS: AtomicU64 = AtomicU64::new(0);

/// Sets the wall clock.
pub fn set_realtime_ns(ns: u64) {
    let at_boot = ns.wrapping_sub(now_ns());
    let adjustment = at_boot.wrapping_sub(machine::time::boot_wall_ns());
    ADJUSTMENT_NS.store(adjustment, Ordering::Relaxed);
    for notify in CLOCK_NOTIFIERS.get().copied().unwrap_or_default() {
        notify();
    }
}

machine::ro_after_init! {
    static CLOCK_NOTIFIERS: Once<&'static [fn()]> = Once::new();
}

/// Names, once, what is called after the wall clock was set: floors above keep what depends on it.
pub fn notify_of_clock(notifiers: &'static [fn()]) {
    CLOCK_NOTIFIERS.call_once(|| notifiers);
}

/// Timers that one CPU runs.
struct Timers {
    queue: SpinLock<TimerQueue<Arc<dyn Wake>>>,
    /// When the first of them is due, for a look without the lock; `u64::MAX`: there is none.
    first_ns: AtomicU64,
}

impl Timers {
    const fn new() -> Self {
        Timers { queue: SpinLock::new(TimerQueue::new()), first_ns: AtomicU64::new(u64::MAX) }
    }

    fn change<R>(&self, change: impl FnOnce(&mut TimerQueue<Arc<dyn Wake>>) -> R) -> R {
        let mut queue = self.queue.lock();
        let result = change(&mut queue);
        self.first_ns.store(queue.first().unwrap_or(u64::MAX), Ordering::SeqCst);
        result
    }
}

static TIMERS: PerCpu<Timers> = PerCpu::from_array([const { Timers::new() }; MAX_CPUS]);
/// When each CPU's timer interrupt is due; `u64::MAX`: not armed.
static ARMED_NS: PerCpu<AtomicU64> =
    PerCpu::from_array([const { AtomicU64::new(u64::MAX) }; MAX_CPUS]);

/// A timer that may still fire.
#[must_use = "dropping it leaves the timer armed; cancel() it when it is no longer wanted"]
pub struct Timer {
    cpu: usize,
    handle: Handle,
}

impl Timer {
    /// Makes sure the timer does not fire any more. False if it had fired already.
    pub fn cancel(&self) -> bool {
        let removed = TIMERS.of(self.cpu).change(|queue| queue.remove(self.handle));
        removed.is_some()
    }
}

/// Calls `waker.wake(0)` from interrupt context once the deadline has passed. Timers of CPUs
/// without tick go to the first CPU.
pub fn wake_at(deadline: Deadline, waker: Arc<dyn Wake>) -> Timer {
    let _irq = IrqGuard::new();
    let here = cpu_id();
    let cpu = if machine::context::isolation().nohz_full & 1 << here != 0 { 0 } else { here };
    let handle = TIMERS.of(cpu).change(|queue| queue.insert(deadline.0, waker));
    if cpu != here {
        // It looks at its timers when it looks at its run queue. Always: it may be arming right
        // now.
        machine::ipi::send_reschedule(cpu, Cause::Timer);
    } else if deadline.0 < ARMED_NS.of(cpu).load(Ordering::Relaxed) {
        arm(deadline.0, now_ns());
    }
    Timer { cpu, handle }
}

fn arm(at_ns: u64, now_ns: u64) {
    ARMED_NS.get().store(at_ns, Ordering::Relaxed);
    machine::apic::arm_timer(at_ns.saturating_sub(now_ns).max(1));
}

fn next_timer_ns() -> u64 {
    TIMERS.get().first_ns.load(Ordering::SeqCst)
}

/// Whether this CPU's timer will interrupt it.
pub fn is_armed() -> bool {
    ARMED_NS.get().load(Ordering::Relaxed) != u64::MAX
}

/// When the timer of CPU `cpu` is due; `u64::MAX`: not armed.
pub fn armed_ns(cpu: usize) -> u64 {
    ARMED_NS.of(cpu).load(Ordering::SeqCst)
}

/// When the tick after `now_ns` falls: [`TICK_NS`] later on average, but at no moment that a
/// program could know. The tick samples whether its time goes to the program or to the kernel; a
/// program in step with it would always be seen doing the same, or never be seen.
pub fn next_tick_ns(now_ns: u64) -> u64 {
    static STATE: PerCpu<AtomicU64> = PerCpu::from_array([const { AtomicU64::new(0) }; MAX_CPUS]);
    let state = STATE.get();
    let mut word = match state.load(Ordering::Relaxed) {
        0 => machine::entropy::random_u64() | 1,
        word => word,
    };
    // Marsaglia's xorshift: never 0, and good enough to be out of step with.
    word ^= word << 13;
    word ^= word >> 7;
    word ^= word << 17;
    state.store(word, Ordering::Relaxed);
    now_ns + TICK_NS / 2 + word % TICK_NS
}

/// Sees to it that this CPU's timer interrupts it by `due_ns`. Interrupts are masked.
pub fn arm_by(due_ns: u64, now_ns: u64) {
    let armed_ns = ARMED_NS.get().load(Ordering::Relaxed);
    // An earlier interrupt that is still to come re-arms itself, and timers arm for themselves.
    if armed_ns > due_ns || armed_ns <= now_ns {
        arm(next_timer_ns().min(due_ns), now_ns);
    }
}

/// Arms this CPU's timer for a CPU on which nobody waits: the next timer only. Interrupts are
/// masked.
pub fn arm_idle(now_ns: u64) {
    arm(next_timer_ns().min(now_ns + MAX_IDLE_NS), now_ns);
}

/// Arms this CPU's timer for its own timers, of which there are none as a rule: then it is silent.
/// Interrupts are masked.
pub fn arm_timers_only(now_ns: u64) {
    let due = next_timer_ns();
    if due != u64::MAX {
        arm(due, now_ns);
    } else if ARMED_NS.get().swap(u64::MAX, Ordering::Relaxed) != u64::MAX {
        machine::apic::stop_timer();
    }
}

/// Runs the timers of this CPU that are due. Called by the timer interrupt, interrupts masked.
pub fn run_timers(now_ns: u64) {
    // See `sched::CpuState::publish`.
    ARMED_NS.get().store(u64::MAX, Ordering::SeqCst);
    let mut due: Vec<Arc<dyn Wake>> = Vec::new();
    loop {
        TIMERS.get().change(|queue| {
            while due.len() < 32
                && let Some(waker) = queue.pop_due(now_ns)
            {
                due.push(waker);
            }
        });
        if due.is_empty() {
            return;
        }
        for waker in due.drain(..) {
            waker.wake(0);
        }
    }
}

/// `struct timespec`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct TimeSpec {
    /// Seconds.
    pub sec: i64,
    /// Nanoseconds, 0 to 999,999,999.
    pub nsec: i64,
}

impl TimeSpec {
    /// From nanoseconds.
    #[must_use]
    pub const fn from_ns(ns: u64) -> Self {
        TimeSpec { sec: (ns / NS_PER_SEC) as i64, nsec: (ns % NS_PER_SEC) as i64 }
    }

    /// In nanoseconds; the largest value if it does not fit. EINVAL if it is negative or not
    /// normalised.
    pub fn to_ns(self) -> Result<u64> {
        if self.sec < 0 || !(0..NS_PER_SEC as i64).contains(&self.nsec) {
            return Err(Errno::EINVAL);
        }
        let seconds_ns = (self.sec as u64).saturating_mul(NS_PER_SEC);
        Ok(seconds_ns.saturating_add(self.nsec as u64))
    }
}

/// `struct timeval`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct TimeVal {
    /// Seconds.
    pub sec: i64,
    /// Microseconds, 0 to 999,999.
    pub usec: i64,
}

impl TimeVal {
    /// From nanoseconds, rounded down.
    #[must_use]
    pub const fn from_ns(ns: u64) -> Self {
        TimeVal { sec: (ns / NS_PER_SEC) as i64, usec: (ns % NS_PER_SEC / 1000) as i64 }
    }

    /// In nanoseconds; the largest value if it does not fit. EINVAL if it is negative or not
    /// normalised.
    pub fn to_ns(self) -> Result<u64> {
        if !(0..1_000_000).contains(&self.usec) {
            return Err(Errno::EINVAL);
        }
        TimeSpec { sec: self.sec, nsec: self.usec * 1000 }.to_ns()
    }
}
