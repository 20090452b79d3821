//! The scheduler: which thread runs on which CPU. What to do is decided by `mechanisms/scheduler`,
//! here it is done: queues are locked, threads switched, timers armed, other CPUs told.
//!
//! A thread is in exactly one [`RunState`], kept under the thread's own lock:
//!
//! | from | to | by |
//! |---|---|---|
//! | `Running(cpu)` | `Sleeping` | itself, in [`park`] |
//! | `Sleeping` | `Queued(cpu)` | whoever wakes it, in [`unpark`] |
//! | `Queued(cpu)` | `Running(cpu)` | the CPU that takes it off a queue, in `switch` |
//! | `Queued(cpu)` | `Queued(other)` | whoever moves it (`balance`, [`affinity_changed`]) |
//! | `Running(cpu)` | `Queued(cpu)` | itself, preempted, in [`schedule`] |
//! | `Running(cpu)` | `Dead` | itself, in [`exit_current`] |
//!
//! A thread may be woken, and even taken by another CPU, between its decision to sleep and the
//! moment its registers are saved; the machine's switch makes the other CPU wait for that moment.
//!
//! Between the moment a CPU takes a thread off a queue and the moment it has the thread's lock, the
//! thread is in no queue though its state says `Queued`. What changes about it meanwhile is written
//! into its [`SchedEntity`], where whoever took it looks once it has the lock.
//!
//! A CPU that leaves idle keeps the timer it had, which may be a second away: arming it costs more
//! than the rest of the switch. So whoever puts a second thread there sees to it that the timer
//! ends the first one's slice: a CPU that is not told would let the second wait for that second
//! (`enqueue`).
//!
//! Isolated CPUs (`isolcpus=`) take no part in any balance: a thread runs there if its affinity
//! names no other CPU. One that is alone on a CPU of `nohz_full=` is not interrupted by a tick.
//!
//! Threads are preempted when they return to user mode, or at [`yield_if_needed`], never elsewhere
//! in the kernel. Lock order: a thread's `sched`, then one queue.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use abi::{Errno, Result, general as raw};
use context_tracking::isolation;
use context_tracking::work::Cause;
use machine::cpu::{self, MAX_CPUS};
use machine::percpu::{self, PerCpu, cpu_id};
use machine::sync::{IrqGuard, SpinLock};
use machine::task::{Current, CurrentSlot};
use machine::trace;
use scheduler::balance::{self as rules, CpuLoad};
use scheduler::class::{WEIGHT_IDLE, weight_of_nice};
use scheduler::{Arrival, Class, Entity, Handle, Preempt, RunQueue, Share};

use super::thread::{Thread, work};
use crate::base::sync::{Mutex, Waiter};
use crate::base::{balance, schedstats, time, watchdog};

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
    /// What is kept of it while it is in no queue and does not run.
    entity: Entity,
    /// How it is to be scheduled: follows from nice value, policy and priority.
    class: Class,
    /// Its place in the queue, while it is `Queued`.
    handle: Handle,
    /// Class or affinity changed while it was `Queued`, but in no queue.
    changed_in_flight: bool,
    /// When the thread last started to run, or was last accounted for.
    pub ran_since_ns: u64,
    /// Total time on CPUs.
    pub runtime_ns: u64,
    /// Nice value, -20 to 19.
    pub nice: i32,
    /// Scheduling policy as set by sched_setscheduler(2), with SCHED_RESET_ON_FORK.
    pub policy: u32,
    /// Priority that goes with the policy.
    pub priority: i32,
    /// What ioprio_set(2) set, 0 if nothing.
    pub io_priority: u32,
    /// CPUs the thread may run on, one bit each.
    pub affinity: u32,
    /// CPU it last ran on.
    pub last_cpu: usize,
    /// Since when it is queued, and how long it was queued before; only while that is measured.
    queued_since_ns: u64,
    /// Time it waited for a CPU, as far as that was measured.
    pub waited_ns: u64,
    /// Times it gave up the CPU by itself, and times it was preempted.
    pub switches: (u64, u64),
}

/// What is left of how a thread was scheduled that has ended, and was not waited for.
#[derive(Clone, Copy, Default)]
pub struct Left {
    nice: i32,
    policy: u32,
    priority: i32,
    affinity: u32,
    last_cpu: usize,
}

impl SchedEntity {
    /// As it was asked for, of a thread that has ended.
    pub fn of_ended(left: Left) -> Self {
        let Left { nice, policy, priority, affinity, last_cpu } = left;
        SchedEntity { nice, policy, priority, affinity, last_cpu, ..SchedEntity::new() }
    }

    /// What is left of it.
    pub fn left(&self) -> Left {
        let SchedEntity { nice, policy, priority, affinity, last_cpu, .. } = *self;
        Left { nice, policy, priority, affinity, last_cpu }
    }

    /// A new thread: asleep until `unpark`, anywhere, at normal priority.
    pub fn new() -> Self {
        SchedEntity {
            state: RunState::Sleeping(Sleep::Uninterruptible),
            entity: Entity::new(Class::NORMAL),
            class: Class::NORMAL,
            handle: Handle::NONE,
            changed_in_flight: false,
            ran_since_ns: 0,
            runtime_ns: 0,
            nice: 0,
            policy: 0,
            priority: 0,
            io_priority: 0,
            affinity: default_affinity(),
            last_cpu: 0,
            queued_since_ns: 0,
            waited_ns: 0,
            switches: (0, 0),
        }
    }

    /// What a new thread takes over from the one that makes it.
    pub fn inherit(&mut self, from: &SchedEntity) {
        let reset = from.policy & raw::SCHED_RESET_ON_FORK != 0;
        self.nice = if reset { from.nice.max(0) } else { from.nice };
        self.policy = if reset { 0 } else { from.policy };
        self.priority = if reset { 0 } else { from.priority };
        self.io_priority = from.io_priority;
        self.affinity = from.affinity;
        self.last_cpu = from.last_cpu;
        self.class = self.wanted_class();
        self.entity = Entity::new(self.class);
    }

    /// What nice value, policy and priority say.
    fn wanted_class(&self) -> Class {
        let weight = weight_of_nice(self.nice);
        match self.policy & !raw::SCHED_RESET_ON_FORK {
            raw::SCHED_FIFO | raw::SCHED_RR => Class::RealTime {
                priority: self.priority.clamp(1, 99) as u8,
                takes_turns: self.policy & !raw::SCHED_RESET_ON_FORK == raw::SCHED_RR,
            },
            raw::SCHED_BATCH => Class::Fair { weight, share: Share::Batch },
            raw::SCHED_IDLE => Class::Fair { weight: WEIGHT_IDLE, share: Share::Idle },
            _ => Class::Fair { weight, share: Share::Normal },
        }
    }

    /// Its run time, scaled by the weight it has now: for /proc/PID/sched.
    pub fn vruntime_ns(&self) -> u64 {
        let Class::Fair { weight, .. } = self.class else { return 0 };
        (u128::from(self.runtime_ns) * u128::from(weight_of_nice(0)) / u128::from(weight)) as u64
    }

    /// Charges the time since the last accounting.
    fn account(&mut self, now_ns: u64) {
        let ran_ns = now_ns.saturating_sub(self.ran_since_ns);
        self.ran_since_ns = now_ns;
        self.runtime_ns += ran_ns;
    }
}

impl Default for SchedEntity {
    fn default() -> Self {
        Self::new()
    }
}

/// CPUs for threads that nobody has placed: all but the isolated ones.
pub fn default_affinity() -> u32 {
    !machine::context::isolation().isolated
}

/// Whether CPU `cpu` is left alone by the balance of load.
pub fn is_isolated(cpu: usize) -> bool {
    machine::context::isolation().isolated & 1 << cpu != 0
}

/// Whether a thread that is alone on CPU `cpu` runs without a tick.
pub fn is_tickless(cpu: usize) -> bool {
    machine::context::isolation().nohz_full & 1 << cpu != 0
}

/// What each CPU has. The atomics are copies of what the queue says, for those without its lock.
pub(crate) struct CpuState {
    queue: SpinLock<RunQueue<Arc<Thread>>>,
    waiting: AtomicU32,
    load: AtomicU64,
    running_priority: AtomicU8,
    waiting_priority: AtomicU8,
    idle: AtomicBool,
    /// Awake: for how long it has slept. Asleep, which a CPU without tick may be for hours: what
    /// the clock said when it began, less that, with [`ASLEEP`]. One word: nobody sees half of it.
    slept: AtomicU64,
    /// Time in user mode, as the ticks fell.
    user_ns: AtomicU64,
    switches: AtomicU64,
    idle_thread: machine::sync::Once<Arc<Thread>>,
}

/// The mark of a CPU that sleeps, above any time.
const ASLEEP: u64 = 1 << 63;
/// In its place while the CPU looks at the clock, so that nobody sees a time that is then changed.
const CHANGES: u64 = u64::MAX;

static CPUS: PerCpu<CpuState> = PerCpu::from_array(
    [const {
        CpuState {
            queue: SpinLock::new(RunQueue::new()),
            waiting: AtomicU32::new(0),
            load: AtomicU64::new(0),
            running_priority: AtomicU8::new(0),
            waiting_priority: AtomicU8::new(0),
            idle: AtomicBool::new(false),
            slept: AtomicU64::new(0),
            user_ns: AtomicU64::new(0),
            switches: AtomicU64::new(0),
            idle_thread: machine::sync::Once::new(),
        }
    }; MAX_CPUS],
);

/// CPUs on which a real-time thread waits, one bit each.
static REAL_TIME_WAITING: AtomicU32 = AtomicU32::new(0);

impl CpuState {
    /// Tells those without the lock what the queue of `cpu` looks like now.
    fn publish(&self, queue: &RunQueue<Arc<Thread>>, cpu: usize) {
        // Whoever puts a thread here looks afterwards whether this CPU's timer is armed, and
        // whoever arms the timer looks afterwards whether somebody waits: SeqCst on both sides.
        self.waiting.store(queue.waiting(), Ordering::SeqCst);
        if cpu::cpu_count() == 1 {
            return;
        }
        self.load.store(queue.load(), Ordering::Relaxed);
        self.running_priority.store(queue.running_priority(), Ordering::Relaxed);
        let waiting_priority = queue.waiting_priority();
        if self.waiting_priority.swap(waiting_priority, Ordering::Relaxed) != waiting_priority {
            if waiting_priority == 0 {
                REAL_TIME_WAITING.fetch_and(!(1 << cpu), Ordering::Relaxed);
            } else {
                REAL_TIME_WAITING.fetch_or(1 << cpu, Ordering::Relaxed);
            }
        }
    }

    fn is_idle_thread(&self, thread: &Thread) -> bool {
        self.idle_thread.get().is_some_and(|idle| core::ptr::eq(Arc::as_ptr(idle), thread))
    }
}

/// What CPU `cpu` has to do, as far as can be told without its lock.
pub(crate) fn load_of(cpu: usize) -> CpuLoad {
    let state = CPUS.of(cpu);
    CpuLoad {
        idle: state.idle.load(Ordering::Relaxed),
        waiting: state.waiting.load(Ordering::Relaxed),
        load: state.load.load(Ordering::Relaxed),
        running_priority: state.running_priority.load(Ordering::Relaxed),
        waiting_priority: state.waiting_priority.load(Ordering::Relaxed),
    }
}

/// Most threads in the system.
pub const THREADS_MAX: usize = 16_384;

/// Threads for which each queue has room; see [`reserve`].
static RESERVED: AtomicUsize = AtomicUsize::new(0);

/// Makes sure that any queue can take all of `threads` threads without an allocation: waking one
/// must not fail. ENOMEM.
pub fn reserve(threads: usize) -> Result<()> {
    /// Threads of the kernel itself.
    const KERNEL_THREADS: usize = 64;
    let needed = threads + KERNEL_THREADS;
    if needed <= RESERVED.load(Ordering::Relaxed) {
        return Ok(());
    }
    static GROWING: Mutex<()> = Mutex::new(());
    let _growing = GROWING.lock();
    let room = (needed * 2).min(THREADS_MAX + KERNEL_THREADS).max(needed);
    for cpu in 0..cpu::cpu_count() {
        let larger = RunQueue::room_for(room).ok_or(Errno::ENOMEM)?;
        let old = CPUS.of(cpu).queue.lock().move_to(larger);
        drop(old);
    }
    RESERVED.fetch_max(room, Ordering::Relaxed);
    Ok(())
}

static CURRENT: CurrentSlot<Thread> = CurrentSlot::new();

/// The running thread.
#[inline(always)]
pub fn current() -> Current<Thread> {
    CURRENT.get()
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
    let _irq = IrqGuard::new();
    let (thread, cpu, now_ns) = (current(), cpu_id(), time::now_ns());
    if REAL_TIME_WAITING.load(Ordering::Relaxed) & !(1 << cpu) != 0 {
        balance::pull_real_time(cpu);
    }
    let mut entity = thread.sched.lock();
    // Wakers mark first and then take this lock: either we see the mark, or they see us asleep.
    if woken() || sleep.is_ended_for(&thread) {
        return;
    }
    entity.state = RunState::Sleeping(sleep);
    entity.switches.0 += 1;
    begin(&thread, now_ns);
    let next = leave(thread, &mut entity, cpu, now_ns, true);
    drop(entity);
    switch(thread, cpu, next, now_ns);
}

/// A pass of the scheduler begins: from here on, whoever changes a queue asks for another one.
fn begin(thread: &Thread, now_ns: u64) {
    watchdog::passed(now_ns);
    thread.task().take_work(work::RESCHEDULE);
}

/// Whom to run, and when somebody has to look at the queue again.
type Next = (Option<Arc<Thread>>, Option<u64>);

/// The current thread leaves its CPU's queue; gives the next one of it.
fn leave(
    thread: Current<Thread>,
    entity: &mut SchedEntity,
    cpu: usize,
    now_ns: u64,
    sleeps: bool,
) -> Next {
    entity.account(now_ns);
    let state = CPUS.of(cpu);
    let mut queue = state.queue.lock();
    if let Some(mut left) = queue.leave(now_ns) {
        if sleeps {
            left.sleeps();
        }
        entity.entity = left;
    }
    take_next(&mut queue, &thread, cpu, now_ns)
}

/// Takes the thread that should run off `cpu`'s queue, on which none runs.
fn take_next(queue: &mut RunQueue<Arc<Thread>>, going: &Thread, cpu: usize, now_ns: u64) -> Next {
    let next = queue.take_next(now_ns, |next| is_free_for(next, going));
    CPUS.of(cpu).publish(queue, cpu);
    (next, queue.look_again_ns(now_ns))
}

/// Whether no CPU's registers hold `thread`, or it is the one that `going` will switch from.
///
/// A thread whose registers another CPU still holds is not taken: that CPU may be waiting to switch
/// to the thread that goes here, and the two would wait for each other for ever. It stays queued; a
/// CPU with a thread in its queue does not halt, so it is looked at again at once.
fn is_free_for(thread: &Arc<Thread>, going: &Thread) -> bool {
    !thread.task().is_on_cpu() || core::ptr::eq(Arc::as_ptr(thread), going)
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
    enqueue(&mut entity, thread.clone(), cpu, Arrival::Woken);
}

/// Where the thread should wait. An isolated CPU only if no other is allowed.
#[inline]
fn choose_cpu(entity: &SchedEntity) -> usize {
    match cpu::cpu_count() {
        1 => 0,
        count => choose_of(count, entity),
    }
}

fn choose_of(count: usize, entity: &SchedEntity) -> usize {
    let common = entity.affinity & default_affinity();
    let mask = if common & isolation::all(count) != 0 { common } else { entity.affinity };
    rules::place(entity.class, entity.last_cpu, mask, count, load_of)
}

/// Puts a thread that is in no queue into the one of `cpu`, and tells that CPU if it should not go
/// on as it would. The thread's lock is held.
fn enqueue(entity: &mut SchedEntity, thread: Arc<Thread>, cpu: usize, why: Arrival) {
    let now_ns = time::now_ns();
    if entity.entity.class() != entity.class {
        entity.entity.set_class(entity.class);
    }
    if schedstats::is_on() {
        entity.queued_since_ns = now_ns;
    }
    let state = CPUS.of(cpu);
    let preempts = {
        let mut queue = state.queue.lock();
        queue.charge(now_ns);
        let (handle, preempts) = queue.enqueue(thread, &entity.entity, now_ns, why);
        entity.handle = handle;
        entity.state = RunState::Queued(cpu);
        entity.last_cpu = cpu;
        state.publish(&queue, cpu);
        preempts
    };
    let due_ns = match preempts {
        Preempt::Now => return kick(cpu),
        Preempt::At(due_ns) => due_ns,
        Preempt::No => now_ns + time::TICK_NS,
    };
    // Without a tick nothing else would make the CPU look.
    if state.idle.load(Ordering::SeqCst) || is_tickless(cpu) {
        kick(cpu);
    } else if time::armed_ns(cpu) > due_ns {
        if cpu == cpu_id() { time::arm_by(due_ns, now_ns) } else { kick(cpu) }
    }
}

/// Makes CPU `cpu` look at its queue soon.
pub(crate) fn kick(cpu: usize) {
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

/// Gives the CPU to whoever should have it, which may be the current thread.
pub fn schedule() {
    reschedule(false);
}

fn reschedule(yields: bool) {
    let _irq = IrqGuard::new();
    let (thread, cpu, now_ns) = (current(), cpu_id(), time::now_ns());
    begin(&thread, now_ns);
    if REAL_TIME_WAITING.load(Ordering::Relaxed) & !(1 << cpu) != 0 {
        balance::pull_real_time(cpu);
    }
    let state = CPUS.of(cpu);
    if state.is_idle_thread(&thread) {
        let next = take_next(&mut state.queue.lock(), &thread, cpu, now_ns);
        return switch(thread, cpu, next, now_ns);
    }
    let mut entity = thread.sched.lock();
    if entity.affinity & 1 << cpu == 0 {
        let next = leave(thread, &mut entity, cpu, now_ns, false);
        entity.switches.1 += 1;
        let target = choose_cpu(&entity);
        enqueue(&mut entity, thread.to_arc(), target, Arrival::Moved);
        drop(entity);
        return switch(thread, cpu, next, now_ns);
    }
    entity.account(now_ns);
    let mut queue = state.queue.lock();
    queue.charge(now_ns);
    if yields {
        queue.yield_running(now_ns);
    }
    let is_free = |next: &Arc<Thread>| is_free_for(next, &thread);
    let Some((next, handle)) = queue.preempt(now_ns, is_free, || thread.to_arc()) else {
        let look_again_ns = queue.look_again_ns(now_ns);
        drop(queue);
        drop(entity);
        return arm(cpu, &thread, look_again_ns, now_ns);
    };
    entity.state = RunState::Queued(cpu);
    entity.handle = handle;
    entity.switches.1 += 1;
    if schedstats::is_on() {
        entity.queued_since_ns = now_ns;
    }
    state.publish(&queue, cpu);
    let look_again_ns = queue.look_again_ns(now_ns);
    drop(queue);
    drop(entity);
    switch(thread, cpu, (Some(next), look_again_ns), now_ns);
}

/// Runs `next`, or else a thread of another CPU's queue, or else the idle thread, instead of
/// `thread`, which has left the queue or waits in it. Interrupts are masked.
fn switch(thread: Current<Thread>, cpu: usize, next: Next, now_ns: u64) {
    let state = CPUS.of(cpu);
    let (next, look_again_ns) = next;
    let next = next
        .or_else(|| balance::pull(cpu, now_ns))
        .unwrap_or_else(|| state.idle_thread.get().expect("adopted at boot").clone());
    {
        let mut entity = next.sched.lock();
        entity.state = RunState::Running(cpu);
        if entity.last_cpu != cpu && next.watches_cpu.load(Ordering::Relaxed) {
            next.task().set_work(work::RSEQ);
        }
        entity.last_cpu = cpu;
        entity.ran_since_ns = now_ns;
        if schedstats::is_on() && entity.queued_since_ns != 0 {
            entity.waited_ns += now_ns.saturating_sub(entity.queued_since_ns);
            entity.queued_since_ns = 0;
        }
        if core::mem::take(&mut entity.changed_in_flight) {
            settle_changes(&entity, &next, cpu, now_ns);
        }
    }
    arm(cpu, &next, look_again_ns, now_ns);
    // Only this CPU writes it, with interrupts masked.
    state.switches.store(state.switches.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    if !core::ptr::eq(Arc::as_ptr(&next), &*thread) {
        let tid = || match state.is_idle_thread(&next) {
            true => trace::IDLE,
            false => next.tid.load(Ordering::Relaxed),
        };
        trace::switch(tid);
    }
    thread.was_switched.store(true, Ordering::Relaxed);
    CURRENT.switch_to(next);
}

/// The thread was taken off a queue just when its class or affinity changed.
#[cold]
fn settle_changes(entity: &SchedEntity, thread: &Thread, cpu: usize, now_ns: u64) {
    if entity.affinity & 1 << cpu == 0 {
        thread.task().set_work(work::RESCHEDULE);
    }
    let state = CPUS.of(cpu);
    let mut queue = state.queue.lock();
    queue.reclass(entity.class, now_ns);
    state.publish(&queue, cpu);
}

/// Arms this CPU's timer for the thread that runs from now on. Interrupts are masked.
fn arm(cpu: usize, running: &Thread, look_again_ns: Option<u64>, now_ns: u64) {
    let is_measured = running.is_measured.load(Ordering::Relaxed);
    if let Some(look_again_ns) = look_again_ns {
        let soon_ns = time::next_tick_ns(now_ns);
        let due_ns = if look_again_ns > now_ns { look_again_ns.min(soon_ns) } else { soon_ns };
        time::arm_by(due_ns, now_ns);
    } else if is_measured {
        time::arm_by(time::next_tick_ns(now_ns), now_ns);
    } else if is_tickless(cpu) {
        time::arm_timers_only(now_ns);
    } else if !time::is_armed() {
        time::arm_idle(now_ns);
    }
}

/// Moves a thread from `from`'s queue to `cpu`, which runs it at once (`runs`) or has it wait.
pub(crate) fn steal(
    from: usize,
    cpu: usize,
    now_ns: u64,
    may_go: impl Fn(&Arc<Thread>, Class) -> bool,
    runs: bool,
) -> Option<Arc<Thread>> {
    let going = current();
    let may_go = |thread: &Arc<Thread>, class| {
        may_run_on(thread, cpu) && is_free_for(thread, &going) && may_go(thread, class)
    };
    let (thread, left) = {
        let state = CPUS.of(from);
        let mut queue = state.queue.lock();
        let stolen = queue.steal(now_ns, may_go)?;
        state.publish(&queue, from);
        stolen
    };
    if runs {
        let state = CPUS.of(cpu);
        let mut queue = state.queue.lock();
        queue.start(&left, now_ns);
        state.publish(&queue, cpu);
    } else {
        let mut entity = thread.sched.lock();
        entity.entity = left;
        let target = if entity.affinity & 1 << cpu != 0 { cpu } else { choose_cpu(&entity) };
        enqueue(&mut entity, thread.clone(), target, Arrival::Moved);
    }
    Some(thread)
}

/// Whether a thread waits on `from` that may run on `cpu` and [`steal`] would find.
pub(crate) fn could_spare(from: usize, cpu: usize) -> bool {
    CPUS.of(from).queue.lock().could_spare(|thread, _| may_run_on(thread, cpu))
}

/// CPUs on which a real-time thread waits, one bit each.
pub(crate) fn real_time_waiting() -> u32 {
    REAL_TIME_WAITING.load(Ordering::Relaxed)
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
    CPUS.get().waiting.load(Ordering::Relaxed) > 0
}

/// Behind everybody of its queue, and of its priority.
pub fn yield_now() {
    reschedule(true);
}

machine::ro_after_init! {
    /// Who is told of ticks of threads that are measured.
    static MEASURED_TICK: machine::sync::Once<fn()> = machine::sync::Once::new();
}

/// Has `tell` called at each tick of a thread that [`Thread::is_measured`], once it is charged.
/// Interrupts are masked then. Once only.
pub fn on_measured_tick(tell: fn()) {
    MEASURED_TICK.call_once(|| tell);
}

/// The tick: accounts, and preempts when the slice is over.
pub fn timer_tick(from_user: bool) {
    let now_ns = time::now_ns();
    time::run_timers(now_ns);
    if !CURRENT.is_set() {
        return;
    }
    let (state, thread, cpu) = (CPUS.get(), current(), cpu_id());
    watchdog::tick(now_ns, thread.task().work() & work::RESCHEDULE != 0);
    if state.is_idle_thread(&thread) {
        return time::arm_idle(now_ns);
    }
    let ran_ns = {
        let mut entity = thread.sched.lock();
        let ran_ns = now_ns.saturating_sub(entity.ran_since_ns);
        entity.account(now_ns);
        ran_ns
    };
    thread.charge(ran_ns, from_user);
    if thread.is_measured.load(Ordering::Relaxed)
        && let Some(tell) = MEASURED_TICK.get()
    {
        tell();
    }
    if from_user {
        state.user_ns.fetch_add(ran_ns, Ordering::Relaxed);
    }
    let look_again_ns = {
        let mut queue = state.queue.lock();
        queue.charge(now_ns);
        queue.look_again_ns(now_ns)
    };
    if look_again_ns.is_some() {
        balance::push(cpu, now_ns);
    }
    // Asked even if nobody waits: the watchdog wants to see that it would have worked.
    thread.task().set_work(work::RESCHEDULE);
    if !is_tickless(cpu) {
        // Samples where the thread is, for the division of its time.
        time::arm_by(time::next_tick_ns(now_ns), now_ns);
    }
    arm(cpu, &thread, look_again_ns, now_ns);
}

/// Ends the current thread: it never runs again.
pub fn exit_current() -> ! {
    Waiter::forget_spare();
    let _irq = IrqGuard::new();
    let (thread, cpu, now_ns) = (current(), cpu_id(), time::now_ns());
    thread.task().end();
    begin(&thread, now_ns);
    let next = {
        let mut entity = thread.sched.lock();
        entity.state = RunState::Dead;
        leave(thread, &mut entity, cpu, now_ns, true)
    };
    switch(thread, cpu, next, now_ns);
    unreachable!("a dead thread was scheduled");
}

/// Changes nice value, policy or priority of a thread, wherever it is.
pub fn change(thread: &Thread, change: impl FnOnce(&mut SchedEntity)) {
    let mut entity = thread.sched.lock();
    change(&mut entity);
    let class = entity.wanted_class();
    if class == entity.class {
        return;
    }
    entity.class = class;
    let now_ns = time::now_ns();
    match entity.state {
        RunState::Queued(cpu) => {
            if let Some(thread) = unqueue(&mut entity, cpu, now_ns) {
                enqueue(&mut entity, thread, cpu, Arrival::Moved);
            }
        }
        RunState::Running(cpu) => {
            let state = CPUS.of(cpu);
            {
                let mut queue = state.queue.lock();
                queue.reclass(class, now_ns);
                state.publish(&queue, cpu);
            }
            thread.task().set_work(work::RESCHEDULE);
            kick(cpu);
        }
        RunState::Sleeping(_) | RunState::Dead => entity.entity.set_class(class),
    }
}

/// Takes a queued thread out of its queue; None if somebody has just taken it to run or move it.
fn unqueue(entity: &mut SchedEntity, cpu: usize, now_ns: u64) -> Option<Arc<Thread>> {
    let state = CPUS.of(cpu);
    let mut queue = state.queue.lock();
    queue.charge(now_ns);
    let Some((thread, left)) = queue.remove(entity.handle, now_ns) else {
        entity.changed_in_flight = true;
        return None;
    };
    entity.entity = left;
    state.publish(&queue, cpu);
    Some(thread)
}

/// Moves the thread to an allowed CPU after its affinity changed.
pub fn affinity_changed(thread: &Arc<Thread>) {
    let mut entity = thread.sched.lock();
    thread.affinity_hint.store(entity.affinity, Ordering::Relaxed);
    match entity.state {
        RunState::Queued(cpu) if entity.affinity & 1 << cpu == 0 => {
            if let Some(thread) = unqueue(&mut entity, cpu, time::now_ns()) {
                let target = choose_cpu(&entity);
                enqueue(&mut entity, thread, target, Arrival::Moved);
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
        state.idle.store(true, Ordering::SeqCst);
        let may_help = balance::others_have_work(cpu_id());
        if state.waiting.load(Ordering::SeqCst) == 0 && !may_help {
            let start_ns = time::now_ns();
            if is_tickless(cpu_id()) {
                time::arm_timers_only(start_ns);
            } else {
                time::arm_idle(start_ns);
            }
            let before_ns = state.slept.swap(CHANGES, Ordering::SeqCst);
            let base_ns = time::now_ns() - before_ns;
            state.slept.store(ASLEEP | base_ns, Ordering::SeqCst);
            machine::task::idle_wait();
            state.slept.store(CHANGES, Ordering::SeqCst);
            state.slept.store(time::now_ns() - base_ns, Ordering::SeqCst);
        }
        state.idle.store(false, Ordering::SeqCst);
        drop(irq);
        schedule();
    }
}

/// Idle time of a CPU since boot, nanoseconds; for /proc/stat and /proc/uptime.
pub fn idle_ns(cpu: usize) -> u64 {
    idle_now(cpu).1
}

/// The time, and for how long the CPU had slept then.
fn idle_now(cpu: usize) -> (u64, u64) {
    let slept = &CPUS.of(cpu).slept;
    loop {
        let word = slept.load(Ordering::SeqCst);
        let now_ns = time::now_ns();
        // No word comes twice: what it said was so at that time. The CPU is done with its look at
        // the clock soon; it takes no interrupt then.
        if word != CHANGES && slept.load(Ordering::SeqCst) == word {
            let base_ns = word & !ASLEEP;
            return (now_ns, if word == base_ns { word } else { now_ns.saturating_sub(base_ns) });
        }
    }
}

/// Whether CPU `cpu` waits for interrupts.
pub fn is_idle(cpu: usize) -> bool {
    CPUS.of(cpu).idle.load(Ordering::Relaxed)
}

/// Time of a CPU in user mode since boot, nanoseconds, to the accuracy of a tick. A CPU without
/// tick is there for the sake of its program: all its time that is not idle counts.
pub fn user_ns(cpu: usize) -> u64 {
    if is_tickless(cpu) {
        let (now_ns, idle_ns) = idle_now(cpu);
        return now_ns.saturating_sub(idle_ns);
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
            running + state.waiting.load(Ordering::Relaxed) as usize
        })
        .sum()
}
