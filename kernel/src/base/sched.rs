//! The scheduler: which thread runs on which CPU. Fair by weighted virtual run time, one queue per
//! CPU, wake-ups go to an idle CPU if there is one, idle CPUs take from busy ones.
//!
//! A thread is in exactly one [`RunState`], kept under the thread's own lock:
//!
//! | from | to | by |
//! |---|---|---|
//! | `Running(cpu)` | `Sleeping` | itself, in [`park`] |
//! | `Sleeping` | `Queued(cpu)` | whoever wakes it, in [`unpark`] |
//! | `Queued(cpu)` | `Running(cpu)` | the CPU that takes it off a queue, in [`schedule`] |
//! | `Running(cpu)` | `Queued(cpu)` | itself, preempted, in [`schedule`] |
//! | `Running(cpu)` | `Dead` | itself, in [`exit_current`] |
//!
//! A thread may be woken, and even taken by another CPU, between its decision to sleep and the
//! moment its registers are saved; the machine's switch makes the other CPU wait for that moment.
//!
//! Isolated CPUs (`isolcpus=`) take no part in any of that: a thread runs there if its affinity
//! names no other CPU. One that is alone on a CPU of `nohz_full=` is not interrupted by a tick.
//!
//! Threads are preempted when they return to user mode, or at [`yield_if_needed`], never elsewhere
//! in the kernel. Lock order: thread's `sched`, then a queue.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use context_tracking::isolation;
use context_tracking::work::Cause;
use machine::cpu::{self, MAX_CPUS};
use machine::percpu::{self, PerCpu, cpu_id};
use machine::sync::{IrqGuard, SpinLock};
use machine::task::{Current, CurrentSlot};

use crate::base::{schedstats, time, watchdog};
use crate::process::{Thread, work};

/// Which sleep: whether signals end it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sleep {
    /// A pending signal ends the sleep.
    Interruptible,
    /// Only the end of the process ends the sleep early.
    Killable,
    /// Only the wake-up ends it.
    Uninterruptible,
}

impl Sleep {
    /// Whether something that is pending for `thread` ends such a sleep.
    #[inline]
    pub fn is_ended_for(self, thread: &Thread) -> bool {
        match self {
            Sleep::Interruptible => thread.has_pending_signal(),
            Sleep::Killable => thread.task().work() & work::EXIT != 0,
            Sleep::Uninterruptible => false,
        }
    }
}

/// See the module's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunState {
    /// On this CPU.
    Running(usize),
    /// In the queue of this CPU.
    Queued(usize),
    /// Waiting.
    Sleeping(Sleep),
    /// Will never run again.
    Dead,
}

/// The scheduler's part of a thread.
pub struct SchedEntity {
    /// Where the thread is.
    pub state: RunState,
    /// Run time in nanoseconds, scaled by weight: the smallest runs next.
    pub vruntime_ns: u64,
    /// When the thread last started to run, or was last accounted for.
    pub ran_since_ns: u64,
    /// Total time on CPUs.
    pub runtime_ns: u64,
    /// Nice value, -20 to 19.
    pub nice: i32,
    /// Scheduling policy as set by sched_setscheduler(2); all are served by the fair scheduler.
    pub policy: u32,
    /// Priority that goes with the policy.
    pub priority: i32,
    /// CPUs the thread may run on, one bit each.
    pub affinity: u32,
    /// CPU it last ran on.
    pub last_cpu: usize,
    /// Since when it is queued, and how long it was queued before; only while that is measured.
    queued_since_ns: u64,
    /// Time it waited for a CPU, as far as that was measured.
    pub waited_ns: u64,
    /// The key under which it is queued.
    key: (u64, u64),
    /// Times it gave up the CPU by itself, and times it was preempted.
    pub switches: (u64, u64),
}

impl SchedEntity {
    /// A new thread: asleep until `unpark`, anywhere, at normal priority.
    pub fn new() -> Self {
        SchedEntity {
            state: RunState::Sleeping(Sleep::Uninterruptible),
            vruntime_ns: 0,
            ran_since_ns: 0,
            runtime_ns: 0,
            nice: 0,
            policy: 0,
            priority: 0,
            affinity: default_affinity(),
            last_cpu: 0,
            queued_since_ns: 0,
            waited_ns: 0,
            key: (0, 0),
            switches: (0, 0),
        }
    }

    /// Charges the time since the last accounting.
    fn account(&mut self, now_ns: u64) {
        let ran_ns = now_ns.saturating_sub(self.ran_since_ns);
        self.ran_since_ns = now_ns;
        self.runtime_ns += ran_ns;
        self.vruntime_ns += ran_ns * WEIGHT_UNIT / weight(self.nice);
    }
}

impl Default for SchedEntity {
    fn default() -> Self {
        Self::new()
    }
}

/// How long a thread runs before another one of its queue is preferred.
const SLICE_NS: u64 = 4_000_000;
/// A woken thread preempts if it is this far behind the running one.
const WAKE_GRANULARITY_NS: u64 = 1_000_000;
/// A thread that slept long comes back with at most this much credit.
const SLEEP_CREDIT_NS: u64 = 6_000_000;
const WEIGHT_UNIT: u64 = 1024;

/// CPU share of a nice value: each step is a factor of about 1.25 (sched(7)).
fn weight(nice: i32) -> u64 {
    let mut weight = WEIGHT_UNIT;
    for _ in 0..nice.clamp(-20, 19).unsigned_abs() {
        weight = if nice < 0 { weight * 5 / 4 } else { (weight * 4 / 5).max(15) };
    }
    weight
}

/// CPUs for threads that nobody has placed: all but the isolated ones.
pub fn default_affinity() -> u32 {
    !machine::context::isolation().isolated
}

/// Whether CPU `cpu` is left alone by the balance of load.
fn is_isolated(cpu: usize) -> bool {
    machine::context::isolation().isolated & 1 << cpu != 0
}

/// Whether a thread that is alone on CPU `cpu` runs without a tick.
fn is_tickless(cpu: usize) -> bool {
    machine::context::isolation().nohz_full & 1 << cpu != 0
}

struct RunQueue {
    queued: BTreeMap<(u64, u64), Arc<Thread>>,
    /// Never goes back: where newcomers start.
    min_vruntime_ns: u64,
    sequence: u64,
}

struct CpuState {
    queue: SpinLock<RunQueue>,
    /// Threads in the queue, readable without the lock.
    queued: AtomicU32,
    idle: AtomicBool,
    /// vruntime of the running thread at the last accounting, for wake-up preemption.
    current_vruntime_ns: AtomicU64,
    idle_ns: AtomicU64,
    /// Since when it sleeps, 0 if it does not: a CPU without tick may do so for hours.
    idle_since_ns: AtomicU64,
    /// Time in user mode, as the ticks fell.
    user_ns: AtomicU64,
    switches: AtomicU64,
    idle_thread: machine::sync::Once<Arc<Thread>>,
}

static CPUS: PerCpu<CpuState> = PerCpu::from_array(
    [const {
        CpuState {
            queue: SpinLock::new(RunQueue {
                queued: BTreeMap::new(),
                min_vruntime_ns: 0,
                sequence: 0,
            }),
            queued: AtomicU32::new(0),
            idle: AtomicBool::new(false),
            current_vruntime_ns: AtomicU64::new(0),
            idle_ns: AtomicU64::new(0),
            idle_since_ns: AtomicU64::new(0),
            user_ns: AtomicU64::new(0),
            switches: AtomicU64::new(0),
            idle_thread: machine::sync::Once::new(),
        }
    }; MAX_CPUS],
);

static CURRENT: CurrentSlot<Thread> = CurrentSlot::new();

/// The running thread.
#[inline(always)]
pub fn current() -> Current<Thread> {
    CURRENT.get()
}

/// Whether this CPU runs a thread already; false only early in boot.
pub fn has_current() -> bool {
    CURRENT.is_set()
}

/// Makes the boot code of this CPU its idle thread. From now on it may sleep and be woken.
pub fn adopt_idle_thread(thread: Arc<Thread>) {
    thread.sched.lock().state = RunState::Running(cpu_id());
    CPUS.get().idle_thread.call_once(|| thread.clone());
    CURRENT.adopt(thread);
}

/// Called on a thread's first run, and after every switch by the machine.
pub fn task_started() {
    CURRENT.finish_switch();
}

// ------------------------------------------------------------------------------------------------
// Sleeping and waking

/// Puts the current thread to sleep unless `woken` says it must not. Returns when it runs again.
#[track_caller]
pub fn park(sleep: Sleep, woken: impl Fn() -> bool) {
    machine::sync::assert_may_sleep();
    let thread = current();
    {
        let mut entity = thread.sched.lock();
        // Wakers mark first and then take this lock: either we see the mark, or they see us asleep.
        if woken() || sleep.is_ended_for(&thread) {
            return;
        }
        entity.state = RunState::Sleeping(sleep);
        entity.switches.0 += 1;
    }
    schedule();
}

/// Wakes the thread if it sleeps. Callable from interrupts and with spin locks held.
pub fn unpark(thread: &Arc<Thread>) {
    unpark_if(thread, |_| true);
}

/// Makes a thread notice exit work that was just set: ends its sleep if it is one that such work
/// ends, or interrupts the CPU it runs on. Callable from interrupts and with spin locks held.
pub fn notify(thread: &Arc<Thread>) {
    let state = thread.sched.lock().state;
    match state {
        RunState::Running(cpu) if cpu != cpu_id() => {
            machine::ipi::send_reschedule(cpu, Cause::Reschedule);
        }
        RunState::Sleeping(_) => unpark_if(thread, |sleep| sleep.is_ended_for(thread)),
        // It looks at its work before it sleeps, and before it returns to its program.
        _ => {}
    }
}

fn unpark_if(thread: &Arc<Thread>, wanted: impl Fn(Sleep) -> bool) {
    let mut entity = thread.sched.lock();
    let RunState::Sleeping(sleep) = entity.state else { return };
    if !wanted(sleep) {
        return;
    }
    let cpu = choose_cpu(&entity);
    enqueue(&mut entity, thread.clone(), cpu, true);
    let behind = entity.vruntime_ns + WAKE_GRANULARITY_NS;
    drop(entity);
    let target = CPUS.of(cpu);
    let preempts = behind < target.current_vruntime_ns.load(Ordering::Relaxed);
    // Without a tick nothing else would make the CPU look.
    if target.idle.load(Ordering::SeqCst) || preempts || is_tickless(cpu) {
        kick(cpu);
    }
}

/// An idle CPU if there is one, the last one first. An isolated one only if no other is allowed.
fn choose_cpu(entity: &SchedEntity) -> usize {
    let count = cpu::cpu_count();
    let common = entity.affinity & default_affinity();
    let mask = if common & isolation::all(count) != 0 { common } else { entity.affinity };
    let allowed = |cpu: usize| mask & 1 << cpu != 0;
    let last = entity.last_cpu;
    let idle = |cpu: usize| {
        CPUS.of(cpu).idle.load(Ordering::Relaxed)
            && CPUS.of(cpu).queued.load(Ordering::Relaxed) == 0
    };
    if allowed(last) && last < count && idle(last) {
        return last;
    }
    let here = cpu_id();
    (0..count)
        .filter(|&cpu| allowed(cpu))
        .find(|&cpu| idle(cpu))
        .or((allowed(last) && last < count).then_some(last))
        .or(allowed(here).then_some(here))
        .or((0..count).find(|&cpu| allowed(cpu)))
        .unwrap_or(0)
}

/// Puts a thread into a queue. Its lock is held.
fn enqueue(entity: &mut SchedEntity, thread: Arc<Thread>, cpu: usize, woken: bool) {
    let state = CPUS.of(cpu);
    let mut queue = state.queue.lock();
    if woken {
        let floor = queue.min_vruntime_ns.saturating_sub(SLEEP_CREDIT_NS);
        // A thread from another queue may be far ahead of this one's time: it starts level.
        let ceiling = queue.min_vruntime_ns + SLICE_NS * 8;
        entity.vruntime_ns = entity.vruntime_ns.clamp(floor, ceiling.max(floor));
    }
    if schedstats::is_on() {
        entity.queued_since_ns = time::now_ns();
    }
    queue.sequence += 1;
    entity.key = (entity.vruntime_ns, queue.sequence);
    entity.state = RunState::Queued(cpu);
    entity.last_cpu = cpu;
    queue.queued.insert(entity.key, thread);
    state.queued.store(queue.queued.len() as u32, Ordering::SeqCst);
}

/// Makes CPU `cpu` look at its queue soon.
fn kick(cpu: usize) {
    if cpu == cpu_id() {
        if CURRENT.is_set() {
            current().task().set_work(work::RESCHEDULE);
        }
    } else {
        machine::ipi::send_reschedule(cpu, Cause::Reschedule);
    }
}

/// The reschedule interrupt.
pub fn reschedule_interrupt() {
    watchdog::interrupted();
    if CURRENT.is_set() {
        current().task().set_work(work::RESCHEDULE);
    }
}

// ------------------------------------------------------------------------------------------------
// Choosing

/// Gives the CPU to whoever is next. The current thread goes on later if it is still runnable.
pub fn schedule() {
    let irq = IrqGuard::new();
    let cpu = cpu_id();
    let thread = current();
    let now_ns = time::now_ns();
    watchdog::passed(now_ns);
    thread.task().take_work(work::RESCHEDULE);
    let is_idle_thread = CPUS.of(cpu).idle_thread.get().is_some_and(|t| t.tid() == thread.tid());
    {
        let mut entity = thread.sched.lock();
        entity.account(now_ns);
        if entity.state == RunState::Running(cpu) && !is_idle_thread {
            entity.switches.1 += 1;
            let target = if entity.affinity & 1 << cpu != 0 { cpu } else { choose_cpu(&entity) };
            enqueue(&mut entity, thread.to_arc(), target, false);
            if target != cpu {
                kick(target);
            }
        }
    }
    let next = take_next(cpu);
    {
        let mut entity = next.sched.lock();
        entity.state = RunState::Running(cpu);
        entity.last_cpu = cpu;
        entity.ran_since_ns = now_ns;
        if schedstats::is_on() && entity.queued_since_ns != 0 {
            entity.waited_ns += now_ns.saturating_sub(entity.queued_since_ns);
            entity.queued_since_ns = 0;
        }
        CPUS.of(cpu).current_vruntime_ns.store(entity.vruntime_ns, Ordering::Relaxed);
    }
    let waiting = CPUS.of(cpu).queued.load(Ordering::Relaxed) > 0;
    let next_is_watched = next.process.settings.watches_cpu_time.load(Ordering::Relaxed);
    if is_tickless(cpu) && !waiting && !next_is_watched {
        time::arm_timers_only(now_ns);
    } else if !is_idle_thread || waiting || !time::is_armed() {
        // An idle CPU has its timer armed, and saves doing it again; but one that has taken its
        // first thread before it was ever idle has not.
        time::arm_tick(now_ns);
    }
    // Only this CPU writes it, with interrupts masked.
    let switches = &CPUS.of(cpu).switches;
    switches.store(switches.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    if !core::ptr::eq(Arc::as_ptr(&next), &*thread) {
        machine::trace::switch(next.tid());
    }
    CURRENT.switch_to(next);
    drop(irq);
}

/// The first of this CPU's queue, else one of another queue, else the idle thread.
fn take_next(cpu: usize) -> Arc<Thread> {
    if let Some(thread) = take_from(cpu, cpu) {
        return thread;
    }
    let count = cpu::cpu_count();
    let others = if is_isolated(cpu) { 1..1 } else { 1..count };
    for other in others.map(|step| (cpu + step) % count).filter(|&other| !is_isolated(other)) {
        if CPUS.of(other).queued.load(Ordering::Relaxed) > 0
            && let Some(thread) = take_from(other, cpu)
        {
            return thread;
        }
    }
    CPUS.of(cpu).idle_thread.get().expect("adopted at boot").clone()
}

/// Takes the first thread of `from`'s queue that may run on `cpu`.
///
/// Not one whose registers another CPU still holds: that CPU may be waiting to switch to the thread
/// that goes here, and the two would wait for each other for ever. It stays queued; a CPU with a
/// thread in its queue does not halt, so it is looked at again at once.
fn take_from(from: usize, cpu: usize) -> Option<Arc<Thread>> {
    let state = CPUS.of(from);
    let mut queue = state.queue.lock();
    let going = current();
    let is_free = |thread: &Arc<Thread>| {
        !thread.task().is_on_cpu() || core::ptr::eq(Arc::as_ptr(thread), &*going)
    };
    let (&key, _) = queue
        .queued
        .iter()
        .find(|(_, thread)| (from == cpu || may_run_on(thread, cpu)) && is_free(thread))?;
    let thread = queue.queued.remove(&key)?;
    queue.min_vruntime_ns = queue.min_vruntime_ns.max(key.0);
    state.queued.store(queue.queued.len() as u32, Ordering::SeqCst);
    Some(thread)
}

/// Whether the thread's affinity names CPU `cpu`.
fn may_run_on(thread: &Thread, cpu: usize) -> bool {
    thread.affinity_hint.load(Ordering::Relaxed) & 1 << cpu != 0
}

/// Lets others run if this thread's time is over. Long loops in the kernel call it.
pub fn yield_if_needed() {
    if current().task().work() & work::RESCHEDULE != 0 && percpu::may_sleep() {
        schedule();
    }
}

/// Whether anybody waits in this CPU's queue.
pub fn has_queued() -> bool {
    CPUS.get().queued.load(Ordering::Relaxed) > 0
}

/// Behind everybody of its queue.
pub fn yield_now() {
    let thread = current();
    {
        let mut entity = thread.sched.lock();
        let queue = CPUS.get().queue.lock();
        if let Some((&(last, _), _)) = queue.queued.last_key_value() {
            entity.vruntime_ns = entity.vruntime_ns.max(last + 1);
        }
    }
    schedule();
}

/// The tick: accounts, and preempts when the slice is over.
pub fn timer_tick(from_user: bool) {
    let now_ns = time::now_ns();
    time::run_timers(now_ns);
    if !CURRENT.is_set() {
        return;
    }
    let state = CPUS.get();
    let thread = current();
    watchdog::tick(now_ns, thread.task().work() & work::RESCHEDULE != 0);
    let is_idle = state.idle_thread.get().is_some_and(|t| t.tid() == thread.tid());
    if !is_idle {
        let mut entity = thread.sched.lock();
        let ran_ns = now_ns.saturating_sub(entity.ran_since_ns);
        entity.account(now_ns);
        state.current_vruntime_ns.store(entity.vruntime_ns, Ordering::Relaxed);
        drop(entity);
        thread.charge(ran_ns, from_user);
        if from_user {
            state.user_ns.fetch_add(ran_ns, Ordering::Relaxed);
        }
        if has_queued() {
            find_help();
        }
        // Asked even if nobody waits: the watchdog wants to see that it would have worked.
        thread.task().set_work(work::RESCHEDULE);
        time::arm_tick(now_ns);
    } else {
        time::arm_idle(now_ns);
    }
}

/// Ends the current thread: it never runs again.
pub fn exit_current() -> ! {
    current().sched.lock().state = RunState::Dead;
    schedule();
    unreachable!("a dead thread was scheduled");
}

/// Moves the thread to an allowed CPU after its affinity changed.
pub fn affinity_changed(thread: &Arc<Thread>) {
    let mut entity = thread.sched.lock();
    thread.affinity_hint.store(entity.affinity, Ordering::Relaxed);
    match entity.state {
        RunState::Queued(cpu) if entity.affinity & 1 << cpu == 0 => {
            let removed = {
                let state = CPUS.of(cpu);
                let mut queue = state.queue.lock();
                let removed = queue.queued.remove(&entity.key);
                state.queued.store(queue.queued.len() as u32, Ordering::SeqCst);
                removed
            };
            if let Some(thread) = removed {
                let target = choose_cpu(&entity);
                enqueue(&mut entity, thread, target, true);
                drop(entity);
                kick(target);
            }
        }
        RunState::Running(cpu) if entity.affinity & 1 << cpu == 0 => {
            drop(entity);
            thread.task().set_work(work::RESCHEDULE);
            kick(cpu);
        }
        _ => {}
    }
}

/// What a CPU does when there is nothing to do: waits for interrupts, tickless.
pub fn idle_loop() -> ! {
    let state = CPUS.get();
    loop {
        machine::memory::deactivate();
        let irq = IrqGuard::new();
        state.current_vruntime_ns.store(u64::MAX, Ordering::Relaxed);
        state.idle.store(true, Ordering::SeqCst);
        let may_help = !is_isolated(cpu_id()) && others_have_work(cpu_id());
        if state.queued.load(Ordering::SeqCst) == 0 && !may_help {
            let start_ns = time::now_ns();
            if is_tickless(cpu_id()) {
                time::arm_timers_only(start_ns);
            } else {
                time::arm_idle(start_ns);
            }
            state.idle_since_ns.store(start_ns, Ordering::Relaxed);
            cpu::idle_wait();
            let slept_ns = time::now_ns().saturating_sub(start_ns);
            state.idle_since_ns.store(0, Ordering::Relaxed);
            state.idle_ns.fetch_add(slept_ns, Ordering::Relaxed);
        }
        state.idle.store(false, Ordering::SeqCst);
        drop(irq);
        schedule();
    }
}

/// Whether another CPU has a thread to spare for CPU `cpu`.
fn others_have_work(cpu: usize) -> bool {
    let mut others = (0..cpu::cpu_count()).filter(|&other| other != cpu && !is_isolated(other));
    others.any(|other| can_spare(other, cpu))
}

/// Whether CPU `from` has more to run than one thread, and some of it may run on CPU `cpu`.
fn can_spare(from: usize, cpu: usize) -> bool {
    let state = CPUS.of(from);
    // An idle CPU is about to run the first of its queue.
    let about_to_run = u32::from(state.idle.load(Ordering::SeqCst));
    let may = |thread: &Arc<Thread>| may_run_on(thread, cpu);
    state.queued.load(Ordering::SeqCst) > about_to_run
        && state.queue.lock().queued.values().any(may)
}

/// Wakes an idle CPU that may run what waits here. Whoever placed a thread may have found that CPU
/// busy for a moment; and it sleeps until somebody tells it.
fn find_help() {
    let here = cpu_id();
    let could_help =
        |&cpu: &usize| cpu != here && !is_isolated(cpu) && is_idle(cpu) && can_spare(here, cpu);
    if !is_isolated(here)
        && let Some(cpu) = (0..cpu::cpu_count()).find(could_help)
    {
        kick(cpu);
    }
}

/// Idle time of a CPU since boot, nanoseconds; for /proc/stat and /proc/uptime.
pub fn idle_ns(cpu: usize) -> u64 {
    let state = CPUS.of(cpu);
    let since_ns = state.idle_since_ns.load(Ordering::Relaxed);
    let now_ns = if since_ns == 0 { 0 } else { time::now_ns() };
    state.idle_ns.load(Ordering::Relaxed) + now_ns.saturating_sub(since_ns)
}

/// Whether CPU `cpu` waits for interrupts.
pub fn is_idle(cpu: usize) -> bool {
    CPUS.of(cpu).idle.load(Ordering::Relaxed)
}

/// Time of a CPU in user mode since boot, nanoseconds, to the accuracy of a tick. A CPU without
/// tick is there for the sake of its program: all its time that is not idle counts.
pub fn user_ns(cpu: usize) -> u64 {
    if is_tickless(cpu) {
        return time::now_ns().saturating_sub(idle_ns(cpu));
    }
    CPUS.of(cpu).user_ns.load(Ordering::Relaxed)
}

/// Context switches since boot, for /proc/stat.
pub fn switches() -> u64 {
    CPUS.iter().map(|state| state.switches.load(Ordering::Relaxed)).sum()
}

/// Threads that run or wait to, for /proc/loadavg and sysinfo(2).
pub fn runnable() -> usize {
    (0..cpu::cpu_count())
        .map(|cpu| {
            let state = CPUS.of(cpu);
            let running = usize::from(!state.idle.load(Ordering::Relaxed));
            running + state.queued.load(Ordering::Relaxed) as usize
        })
        .sum()
}
