//! One CPU's queue: who waits, who runs, and until when.
//!
//! **Virtual time.** Each fair thread has a virtual time `v` that advances with its run time
//! divided by its weight. The queue's own, `V`, is the average of all its threads' by weight, the
//! running one included. What a thread is owed is its *lag*, `V - v`; lags times weights sum to
//! nothing, so what one has too much is exactly what others have too little.
//!
//! **Choice.** A thread asks for a *request* of time at once, which gives it a deadline,
//! `v + request / weight`. Among those that are owed nothing less than nothing (`v <= V`:
//! *eligible*) the earliest deadline runs, as a rule until its request is used up. So short
//! requests are served soon, yet give nobody more than a share. A request is as long as the thread
//! lately ran between two sleeps, from [`REQUEST_MIN_NS`] to [`SLICE_NS`].
//!
//! **Coming and going.** Whoever leaves takes the lag along in an [`Entity`], and is placed by it
//! where it comes to. A debt shrinks while its owner sleeps, as fast as the queue it comes to would
//! have let it. Nothing is kept beyond [`LAG_MAX_NS`] either way: a thread that stole from the
//! others for a second because a tick came late pays back no more than that.
//!
//! Real-time threads precede all that. If they have used [`RT_RUNTIME_NS`] of a window of
//! [`RT_PERIOD_NS`] and fair threads wait, the rest of the window is theirs.

use alloc::vec::Vec;

use crate::class::{Class, Share, WEIGHT_UNIT};
use crate::tree::{Key, NIL, Node, Nodes};

/// The longest request: how long a thread runs while another one of its queue waits.
pub const SLICE_NS: u64 = 4_000_000;
/// The shortest request.
pub const REQUEST_MIN_NS: u64 = 500_000;
/// What a thread may run at once before one that is woken preempts it. Whoever wakes another one is
/// often about to sleep itself, and two switches are saved.
pub const UNDISTURBED_NS: u64 = 500_000;
/// A thread preempts another one in the middle of its request if its own deadline is earlier by
/// more than this.
pub const GRANULARITY_NS: u64 = 250_000;
/// What a thread may be owed or owe, in time of the CPU.
pub const LAG_MAX_NS: u64 = 2 * SLICE_NS;
/// How long threads of SCHED_RR with equal priorities run in turn.
pub const RR_SLICE_NS: u64 = 100_000_000;
/// Window for the share of real-time threads (sched_rt_period_us, sched(7)).
pub const RT_PERIOD_NS: u64 = 1_000_000_000;
/// What they may use of it while others wait (sched_rt_runtime_us).
pub const RT_RUNTIME_NS: u64 = 950_000_000;
/// How many threads of a queue are asked whether they can run elsewhere.
const SEARCH_MAX: u32 = 64;
/// Time that is charged at once at most: a CPU without a tick may not have looked for years.
const CHARGE_MAX_NS: u64 = 1 << 40;

/// Virtual time starts here: accounts may lie before it by what is owed to them, which is at most
/// `2 * LAG_MAX_NS` divided by the least weight.
const VIRTUAL_START: u64 = 1 << 40;
/// Longer runs are not told apart.
const RAN_MAX_NS: u64 = 1_000_000_000;

/// What is kept of a thread while it is in no queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entity {
    class: Class,
    /// Virtual nanoseconds it was owed when it left.
    lag: i64,
    left_ns: u64,
    /// How long it ran between its last sleeps: a decaying average.
    burst_ns: u32,
    /// How long it has run since it woke, up to a second.
    ran_ns: u32,
}

impl Entity {
    /// A new thread: owed nothing, and expected to want half a slice.
    #[must_use]
    pub const fn new(class: Class) -> Entity {
        Entity { class, lag: 0, left_ns: 0, burst_ns: SLICE_NS as u32 / 2, ran_ns: 0 }
    }

    /// How it is scheduled.
    #[must_use]
    #[inline]
    pub const fn class(&self) -> Class {
        self.class
    }

    /// Gives it another class. What it is owed stays the same in time of the CPU.
    pub fn set_class(&mut self, class: Class) {
        let service = self.lag.saturating_mul(weight_of(self.class) as i64);
        self.lag = service / weight_of(class) as i64;
        self.class = class;
    }

    /// It goes to sleep: what it ran since it woke is what it will ask for.
    #[inline]
    pub fn sleeps(&mut self) {
        self.burst_ns = (3 * self.burst_ns + self.ran_ns.min(4 * SLICE_NS as u32)) / 4;
        self.ran_ns = 0;
    }
}

/// The weight of a fair thread; real-time ones have no virtual time.
#[inline]
fn weight_of(class: Class) -> u64 {
    match class {
        Class::Fair { weight, .. } => weight.into(),
        Class::RealTime { .. } => WEIGHT_UNIT.into(),
    }
}

/// Time of a CPU as virtual time of a thread.
#[inline]
fn to_virtual(ns: u64, weight: u64) -> u64 {
    if weight == u64::from(WEIGHT_UNIT) { ns } else { ns * u64::from(WEIGHT_UNIT) / weight }
}

/// Why a thread comes to a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// It was woken, or is new.
    Woken,
    /// It was in another queue, or in this one with another class.
    Moved,
}

/// When a thread that comes should preempt the one that runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preempt {
    /// At once.
    Now,
    /// At this time, nanoseconds.
    At(u64),
    /// When that one's request is used up, which is at most [`SLICE_NS`] from now.
    No,
}

/// Finds a waiting thread again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handle {
    index: u32,
    key: Key,
}

impl Handle {
    /// Finds nobody.
    pub const NONE: Handle = Handle { index: NIL, key: (0, 0) };
}

/// What a thread has while it waits or runs.
#[derive(Clone, Copy, Debug)]
struct Account {
    class: Class,
    vruntime: u64,
    deadline: u64,
    /// What is left of its turn (SCHED_RR).
    turn_ns: u32,
    burst_ns: u32,
    ran_ns: u32,
}

#[derive(Clone, Debug)]
struct Waiter<T> {
    account: Account,
    item: T,
}

#[derive(Clone, Debug)]
struct Running {
    account: Account,
    /// When it came.
    since_ns: u64,
    /// Up to when it has been charged.
    charged_ns: u64,
    /// Somebody who should preempt it waits until it has run for [`UNDISTURBED_NS`].
    disturbed: bool,
    /// It has given up its turn among real-time equals.
    yields: bool,
}

/// Room for more waiters, made by [`RunQueue::room_for`] outside of locks.
#[derive(Debug)]
pub struct Room<T>(Vec<Node<Waiter<T>>>);

/// One CPU's queue. `T` names a thread.
#[derive(Clone, Debug)]
pub struct RunQueue<T> {
    nodes: Nodes<Waiter<T>>,
    fair: u32,
    real_time: u32,
    /// None: the idle thread runs.
    running: Option<Running>,
    waiting: u32,
    waiting_fair: u32,
    /// Where virtual time is counted from; close to `V`.
    base: u64,
    /// Sum of `(v - base) * weight` over all fair threads here.
    sum: i64,
    /// Sum of their weights.
    weight: u64,
    sequence: u64,
    rt_window_ns: u64,
    rt_used_ns: u64,
}

impl<T> Default for RunQueue<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> RunQueue<T> {
    /// Nobody waits and nobody runs.
    #[must_use]
    pub const fn new() -> Self {
        RunQueue {
            nodes: Nodes::new(),
            fair: NIL,
            real_time: NIL,
            running: None,
            waiting: 0,
            waiting_fair: 0,
            base: VIRTUAL_START,
            sum: 0,
            weight: 0,
            sequence: 0,
            rt_window_ns: 0,
            rt_used_ns: 0,
        }
    }

    /// How many can wait without an allocation.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.nodes.capacity()
    }

    /// Room for `count` waiters, for [`RunQueue::move_to`]; None: there is no memory.
    #[must_use]
    pub fn room_for(count: usize) -> Option<Room<T>> {
        let mut room = Vec::new();
        room.try_reserve_exact(count).ok()?;
        Some(Room(room))
    }

    /// Moves to a larger room. The old one is to be dropped outside of locks.
    #[must_use]
    pub fn move_to(&mut self, room: Room<T>) -> Room<T> {
        if room.0.capacity() < self.nodes.capacity() {
            return room;
        }
        Room(self.nodes.move_to(room.0))
    }

    /// How many wait.
    #[must_use]
    pub fn waiting(&self) -> u32 {
        self.waiting
    }

    /// What all threads here count for, the running one included.
    #[must_use]
    pub fn load(&self) -> u64 {
        let running = self.running.as_ref().map_or(0, |running| running.account.class.load());
        let running_fair = self.running.as_ref().is_some_and(Running::is_fair);
        let waiting_rt = u64::from(self.waiting - self.waiting_fair);
        let rt_load = Class::RealTime { priority: 1, takes_turns: false }.load();
        self.weight + waiting_rt * rt_load + if running_fair { 0 } else { running }
    }

    /// The priority of the real-time thread that runs; 0: none does.
    #[must_use]
    pub fn running_priority(&self) -> u8 {
        self.running.as_ref().map_or(0, |running| running.account.class.priority())
    }

    /// The highest priority that waits; 0: no real-time thread does.
    #[must_use]
    pub fn waiting_priority(&self) -> u8 {
        if self.waiting == self.waiting_fair {
            return 0;
        }
        let first = self.nodes.first(self.real_time, u64::MAX, &mut 1, &|_| true);
        let waiter = first.and_then(|index| self.nodes.data(index));
        waiter.map_or(0, |waiter| waiter.account.class.priority())
    }

    /// What the running thread is now.
    #[must_use]
    pub fn running_class(&self) -> Option<Class> {
        self.running.as_ref().map(|running| running.account.class)
    }

    /// Virtual time of the queue, and of the running thread if it is a fair one.
    #[must_use]
    pub fn virtual_times(&mut self) -> (u64, Option<u64>) {
        let now = self.virtual_now();
        let running = self.running.as_ref().filter(|running| running.is_fair());
        (now, running.map(|running| running.account.vruntime))
    }

    /// `V`, to which the books are moved.
    fn virtual_now(&mut self) -> u64 {
        // Nearly always the books are there already, or the running thread is alone in them.
        if self.sum as u64 >= self.weight && self.weight != 0 {
            let ahead = if self.sum >= 0 {
                (self.sum as u64 / self.weight) as i64
            } else {
                -(self.sum.unsigned_abs().div_ceil(self.weight) as i64)
            };
            self.base = self.base.wrapping_add_signed(ahead);
            self.sum -= ahead * self.weight as i64;
        }
        self.base
    }

    /// Enters a fair thread's virtual time into the books.
    fn joins(&mut self, vruntime: u64, weight: u64) {
        self.sum += vruntime.wrapping_sub(self.base) as i64 * weight as i64;
        self.weight += weight;
    }

    /// Takes it out of them.
    fn parts(&mut self, vruntime: u64, weight: u64) {
        self.sum -= vruntime.wrapping_sub(self.base) as i64 * weight as i64;
        self.weight -= weight;
        if self.weight == 0 {
            self.base = vruntime.max(self.base);
            self.sum = 0;
        }
    }

    // --------------------------------------------------------------------------------------------
    // Time

    /// Charges the running thread up to now, and returns how much that was.
    pub fn charge(&mut self, now_ns: u64) -> u64 {
        let Some(running) = &mut self.running else { return 0 };
        let ran_ns = now_ns.saturating_sub(running.charged_ns);
        running.charged_ns = now_ns.max(running.charged_ns);
        let account = &mut running.account;
        let ran_short_ns = ran_ns.min(RAN_MAX_NS) as u32;
        account.ran_ns = account.ran_ns.saturating_add(ran_short_ns);
        let charged_ns = ran_ns.min(CHARGE_MAX_NS);
        match account.class {
            Class::Fair { weight, .. } => {
                let advance = to_virtual(charged_ns, weight.into());
                account.vruntime += advance;
                self.sum += advance as i64 * i64::from(weight);
            }
            Class::RealTime { .. } => {
                account.turn_ns = account.turn_ns.saturating_sub(ran_short_ns);
                if now_ns.saturating_sub(self.rt_window_ns) >= RT_PERIOD_NS {
                    self.rt_window_ns = now_ns;
                    self.rt_used_ns = 0;
                } else {
                    self.rt_used_ns += ran_ns;
                }
            }
        }
        ran_ns
    }

    /// Whether real-time threads have had their share of the window, and others wait for theirs.
    fn is_throttled(&self, now_ns: u64) -> bool {
        let in_window = now_ns.saturating_sub(self.rt_window_ns) < RT_PERIOD_NS;
        let fair_runs = self.running.as_ref().is_some_and(Running::is_fair);
        in_window && self.rt_used_ns >= RT_RUNTIME_NS && (self.waiting_fair > 0 || fair_runs)
    }

    /// When somebody has to look at this queue again, whatever happens. None: nobody waits, and
    /// the running thread may go on for ever.
    #[must_use]
    pub fn look_again_ns(&self, now_ns: u64) -> Option<u64> {
        if self.waiting == 0 {
            return None;
        }
        let window_end_ns = self.rt_window_ns + RT_PERIOD_NS;
        let waits_rt = self.waiting > self.waiting_fair;
        let Some(running) = &self.running else { return Some(now_ns) };
        let account = &running.account;
        let due_ns = match account.class {
            Class::Fair { weight, .. } => {
                let left = account.deadline.saturating_sub(account.vruntime);
                let left_ns = left.saturating_mul(weight.into()) / u64::from(WEIGHT_UNIT);
                let end_ns = running.charged_ns.saturating_add(left_ns);
                let calm_ns = running.undisturbed_until_ns();
                let end_ns = if running.disturbed { end_ns.min(calm_ns) } else { end_ns };
                let slice_ns = if self.waiting_fair > 0 { end_ns } else { u64::MAX };
                if waits_rt { slice_ns.min(window_end_ns) } else { slice_ns }
            }
            Class::RealTime { takes_turns, .. } => {
                let budget_ns = RT_RUNTIME_NS.saturating_sub(self.rt_used_ns);
                let throttle_ns = running.charged_ns + budget_ns;
                let fair_ns = if self.waiting_fair > 0 { throttle_ns } else { u64::MAX };
                let turn_ns = running.charged_ns + u64::from(account.turn_ns);
                if takes_turns { fair_ns.min(turn_ns) } else { fair_ns }
            }
        };
        Some(due_ns)
    }

    // --------------------------------------------------------------------------------------------
    // Coming

    /// What a thread has on this queue from now on.
    #[inline(always)]
    fn place(&mut self, entity: &Entity, now_ns: u64, why: Arrival) -> Account {
        let mut account = Account {
            class: entity.class,
            vruntime: 0,
            deadline: 0,
            burst_ns: entity.burst_ns,
            ran_ns: entity.ran_ns,
            turn_ns: RR_SLICE_NS as u32,
        };
        let Class::Fair { weight, .. } = entity.class else { return account };
        let weight = u64::from(weight);
        let request =
            to_virtual(u64::from(entity.burst_ns).clamp(REQUEST_MIN_NS, SLICE_NS), weight);
        let now = self.virtual_now();
        let lag = if self.weight == 0 { 0 } else { self.lag_here(entity, weight, now_ns, why) };
        account.vruntime = now.wrapping_add_signed(-lag);
        account.deadline = account.vruntime.saturating_add(request);
        account
    }

    /// What a thread that comes is owed, so that it is owed that much once it is here.
    fn lag_here(&self, entity: &Entity, weight: u64, now_ns: u64, why: Arrival) -> i64 {
        if entity.lag == 0 {
            return 0;
        }
        let with = (self.weight + weight) as i64;
        let mut lag = clamp_lag(entity.lag, weight);
        if lag < 0 && why == Arrival::Woken {
            // Its debt would have become smaller at the pace of the others' virtual time.
            let slept_ns = now_ns.saturating_sub(entity.left_ns).min(CHARGE_MAX_NS);
            lag = (lag + (slept_ns * u64::from(WEIGHT_UNIT)) as i64 / with).min(0);
        }
        // Being here, it pulls the average towards itself. The product fits: a lag is below 2^32,
        // and the weights of as many threads as there can be add up to less than 2^31.
        lag * with / self.weight as i64
    }

    /// A thread comes and waits. When it should preempt the one that runs, as far as that is
    /// decided by the two alone. [`RunQueue::charge`] was called.
    pub fn enqueue(
        &mut self,
        item: T,
        entity: &Entity,
        now_ns: u64,
        why: Arrival,
    ) -> (Handle, Preempt) {
        let account = self.place(entity, now_ns, why);
        if let Class::Fair { weight, .. } = account.class {
            self.joins(account.vruntime, weight.into());
        }
        let preempts = if why == Arrival::Woken {
            self.preempts(&account, now_ns)
        } else if account.class.priority() > self.running_priority() {
            Preempt::Now
        } else {
            Preempt::No
        };
        (self.insert(Waiter { account, item }, false), preempts)
    }

    #[inline(always)]
    fn insert(&mut self, waiter: Waiter<T>, first: bool) -> Handle {
        self.sequence += 1;
        self.waiting += 1;
        let (account, sequence) = (&waiter.account, self.sequence);
        let (vruntime, is_fair, key);
        let root = match account.class {
            Class::Fair { .. } => {
                (vruntime, is_fair, key) = (account.vruntime, true, (account.deadline, sequence));
                &mut self.fair
            }
            Class::RealTime { priority, .. } => {
                // Those that were preempted come before their equals, the last one first.
                let order = (1 << 62) + sequence as i64 * if first { -1 } else { 1 };
                (vruntime, is_fair, key) = (0, false, (u64::from(!priority), order as u64));
                &mut self.real_time
            }
        };
        self.waiting_fair += u32::from(is_fair);
        let index = self.nodes.insert(root, key, vruntime, waiter);
        Handle { index, key }
    }

    fn take_out(&mut self, index: u32) -> Waiter<T> {
        let fair = self.nodes.data(index).is_some_and(|w| w.account.class.priority() == 0);
        self.waiting -= 1;
        self.waiting_fair -= u32::from(fair);
        self.nodes.remove(if fair { &mut self.fair } else { &mut self.real_time }, index)
    }

    /// Whether a woken thread need not wait for the end of the running one's request.
    fn preempts(&mut self, woken: &Account, now_ns: u64) -> Preempt {
        let throttled = woken.class.priority() > 0 && self.is_throttled(now_ns);
        let Some(running) = &self.running else { return Preempt::Now };
        let earlier = is_earlier(woken, &running.account);
        let earlier = earlier && woken.vruntime <= self.virtual_now();
        let Some(running) = &mut self.running else { return Preempt::Now };
        let preempts = match (running.account.class, woken.class) {
            (Class::Fair { share: Share::Idle, .. }, Class::Fair { share, .. }) => {
                share != Share::Idle
            }
            (Class::Fair { .. }, Class::Fair { share: Share::Normal, .. }) => {
                if earlier && now_ns < running.undisturbed_until_ns() {
                    running.disturbed = true;
                    return Preempt::At(running.undisturbed_until_ns());
                }
                earlier
            }
            (Class::Fair { .. }, Class::Fair { .. }) => false,
            (runs, woken) => woken.priority() > runs.priority() && !throttled,
        };
        if preempts { Preempt::Now } else { Preempt::No }
    }

    // --------------------------------------------------------------------------------------------
    // Going

    /// What becomes of an account whose thread leaves the queue for a while. The books still hold
    /// it, and are right up to now.
    fn settle(&mut self, account: &Account, now_ns: u64) -> Entity {
        let mut entity = Entity {
            class: account.class,
            lag: 0,
            left_ns: now_ns,
            burst_ns: account.burst_ns,
            ran_ns: account.ran_ns,
        };
        if let Class::Fair { weight, .. } = account.class {
            let lag = self.virtual_now().wrapping_sub(account.vruntime) as i64;
            entity.lag = clamp_lag(lag, weight.into());
            self.parts(account.vruntime, weight.into());
        }
        entity
    }

    /// The running thread leaves: it sleeps, ends, or goes elsewhere. None: the idle thread runs.
    pub fn leave(&mut self, now_ns: u64) -> Option<Entity> {
        self.charge(now_ns);
        let running = self.running.take()?;
        Some(self.settle(&running.account, now_ns))
    }

    /// A waiting thread leaves. None if it does not wait here any more.
    pub fn remove(&mut self, handle: Handle, now_ns: u64) -> Option<(T, Entity)> {
        self.nodes.data_mut(handle.index, handle.key)?;
        let waiter = self.take_out(handle.index);
        Some((waiter.item, self.settle(&waiter.account, now_ns)))
    }

    /// The running thread has another class from now on.
    pub fn reclass(&mut self, class: Class, now_ns: u64) {
        let yields = self.running.as_ref().is_some_and(|running| running.yields);
        if let Some(mut entity) = self.leave(now_ns) {
            entity.set_class(class);
            self.start(&entity, now_ns);
            if let Some(running) = &mut self.running {
                running.yields = yields;
            }
        }
    }

    /// A thread that was taken from another queue runs here at once.
    pub fn start(&mut self, entity: &Entity, now_ns: u64) {
        let account = self.place(entity, now_ns, Arrival::Moved);
        if let Class::Fair { weight, .. } = account.class {
            self.joins(account.vruntime, weight.into());
        }
        self.running = Some(Running::new(account, now_ns));
    }

    /// The running thread gives up what it is owed, and goes behind all who wait.
    pub fn yield_running(&mut self, now_ns: u64) {
        self.charge(now_ns);
        let Some(running) = &mut self.running else { return };
        running.yields = true;
        let Class::Fair { weight, .. } = running.account.class else { return };
        let weight = u64::from(weight);
        if self.weight <= weight {
            return;
        }
        let mut account = running.account;
        // The others' average: above it, one is not eligible.
        self.parts(account.vruntime, weight);
        let others = self.virtual_now();
        account.vruntime = account.vruntime.max(others + 1);
        account.deadline = account.vruntime.saturating_add(to_virtual(SLICE_NS, weight));
        self.joins(account.vruntime, weight);
        if let Some(running) = &mut self.running {
            running.account = account;
        }
    }

    // --------------------------------------------------------------------------------------------
    // Choosing

    /// Takes the thread that should run now that the running one has left. Not one that `can_run`
    /// refuses.
    pub fn take_next(&mut self, now_ns: u64, can_run: impl Fn(&T) -> bool) -> Option<T> {
        let index = self.best(now_ns, &can_run)?;
        Some(self.run(index, now_ns))
    }

    fn run(&mut self, index: u32, now_ns: u64) -> T {
        let Waiter { account, item } = self.take_out(index);
        self.running = Some(Running::new(account, now_ns));
        item
    }

    /// Who should run of those that wait.
    fn best(&mut self, now_ns: u64, can_run: &impl Fn(&T) -> bool) -> Option<u32> {
        if self.waiting == 0 {
            return None;
        }
        if self.waiting == self.waiting_fair {
            return self.best_fair(can_run);
        }
        let throttled = self.is_throttled(now_ns);
        let real_time = if throttled { None } else { self.best_real_time(can_run) };
        let found = real_time.or_else(|| self.best_fair(can_run));
        if throttled { found.or_else(|| self.best_real_time(can_run)) } else { found }
    }

    fn best_real_time(&self, can_run: &impl Fn(&T) -> bool) -> Option<u32> {
        let mut patience = SEARCH_MAX;
        let wanted = |waiter: &Waiter<T>| can_run(&waiter.item);
        self.nodes.first(self.real_time, u64::MAX, &mut patience, &wanted)
    }

    fn best_fair(&mut self, can_run: &impl Fn(&T) -> bool) -> Option<u32> {
        if self.fair == NIL {
            return None;
        }
        let wanted = |waiter: &Waiter<T>| can_run(&waiter.item);
        if self.waiting_fair == 1 {
            // Eligible or not: there is no other.
            return self.nodes.data(self.fair).is_some_and(wanted).then_some(self.fair);
        }
        let now = self.virtual_now();
        let eligible = self.nodes.first(self.fair, now, &mut SEARCH_MAX.clone(), &wanted);
        // Somebody is always eligible, but maybe only the running thread, or one that cannot run.
        eligible.or_else(|| self.nodes.first(self.fair, u64::MAX, &mut SEARCH_MAX.clone(), &wanted))
    }

    /// Whether the running thread, which could go on, has to make place now, and for whom:
    /// `current` gives its name, under which it waits from then on. None: it goes on.
    pub fn preempt(
        &mut self,
        now_ns: u64,
        can_run: impl Fn(&T) -> bool,
        current: impl FnOnce() -> T,
    ) -> Option<(T, Handle)> {
        let renewed = self.renew();
        let best = self.best(now_ns, &can_run);
        let throttled = self.is_throttled(now_ns);
        let now = self.virtual_now();
        let running = self.running.as_mut()?;
        let yields = core::mem::take(&mut running.yields);
        let account = running.account;
        let is_idle = matches!(account.class, Class::Fair { share: Share::Idle, .. });
        let calm = now_ns < running.undisturbed_until_ns() && !is_idle;
        running.disturbed &= calm;
        let other = self.nodes.data(best?)?.account;
        let is_eligible = account.vruntime <= now;
        let goes_on = match (account.class, other.class) {
            (Class::Fair { .. }, Class::Fair { .. }) if yields => false,
            (Class::Fair { .. }, Class::Fair { .. }) if other.vruntime > now => is_eligible,
            (Class::Fair { .. }, Class::Fair { .. }) if renewed => {
                is_eligible && account.deadline <= other.deadline
            }
            (Class::Fair { .. }, Class::Fair { .. }) => calm || !is_earlier(&other, &account),
            (Class::RealTime { priority, .. }, Class::RealTime { priority: others, .. }) => {
                others < priority || others == priority && !yields && !renewed
            }
            (Class::RealTime { .. }, Class::Fair { .. }) => !throttled,
            (Class::Fair { .. }, Class::RealTime { .. }) => throttled,
        };
        // A real-time thread that did not give up its turn itself comes before its equals.
        let first = !yields && !renewed;
        if goes_on {
            return None;
        }
        self.running = None;
        let account = self.forgive(account);
        let handle = self.insert(Waiter { account, item: current() }, first);
        Some((self.run(best?, now_ns), handle))
    }

    /// A thread that ran far too long, because nobody looked, owes [`LAG_MAX_NS`] and no more.
    fn forgive(&mut self, mut account: Account) -> Account {
        let Class::Fair { weight, .. } = account.class else { return account };
        let weight = u64::from(weight);
        let limit = to_virtual(LAG_MAX_NS, weight);
        if account.vruntime <= self.base.saturating_add(limit) {
            return account;
        }
        let with = self.weight;
        self.parts(account.vruntime, weight);
        if let Some(behind) = (limit * with).checked_div(self.weight) {
            // So that it is that far behind the average once it is part of it again.
            let most = self.virtual_now().saturating_add(behind);
            let forgiven = account.vruntime.saturating_sub(most);
            account.vruntime -= forgiven;
            account.deadline = account.deadline.saturating_sub(forgiven);
        }
        self.joins(account.vruntime, weight);
        account
    }

    /// A new request if the last one is used up. Whether it was.
    fn renew(&mut self) -> bool {
        let Some(running) = &mut self.running else { return false };
        let account = &mut running.account;
        match account.class {
            Class::Fair { weight, .. } if account.vruntime >= account.deadline => {
                let slice = to_virtual(SLICE_NS, weight.into());
                account.deadline = account.vruntime.saturating_add(slice);
                true
            }
            Class::RealTime { takes_turns: true, .. } if account.turn_ns == 0 => {
                account.turn_ns = RR_SLICE_NS as u32;
                true
            }
            _ => false,
        }
    }

    /// Takes a waiting thread for another CPU: of those that `may_go` the one that would run here
    /// first.
    pub fn steal(
        &mut self,
        now_ns: u64,
        may_go: impl Fn(&T, Class) -> bool,
    ) -> Option<(T, Entity)> {
        self.charge(now_ns);
        let now = self.virtual_now();
        let wanted = |waiter: &Waiter<T>| may_go(&waiter.item, waiter.account.class);
        let mut patience = SEARCH_MAX;
        let nodes = &self.nodes;
        let index = nodes
            .first(self.real_time, u64::MAX, &mut patience, &wanted)
            .or_else(|| nodes.first(self.fair, now, &mut patience, &wanted))
            .or_else(|| nodes.first(self.fair, u64::MAX, &mut SEARCH_MAX.clone(), &wanted))?;
        let handle = Handle { index, key: nodes.key(index) };
        self.remove(handle, now_ns)
    }

    /// Whether a waiting thread `may_go`, as far as [`RunQueue::steal`] would look.
    #[must_use]
    pub fn could_spare(&self, may_go: impl Fn(&T, Class) -> bool) -> bool {
        let wanted = |waiter: &Waiter<T>| may_go(&waiter.item, waiter.account.class);
        let roots = [self.real_time, self.fair];
        let mut patience = SEARCH_MAX;
        roots.iter().any(|&root| self.nodes.first(root, u64::MAX, &mut patience, &wanted).is_some())
    }
}

impl Running {
    #[inline]
    fn new(account: Account, now_ns: u64) -> Self {
        let (since_ns, charged_ns) = (now_ns, now_ns);
        Running { account, since_ns, charged_ns, disturbed: false, yields: false }
    }

    /// Until when it is left alone by woken threads of its kind.
    #[inline]
    fn undisturbed_until_ns(&self) -> u64 {
        self.since_ns + UNDISTURBED_NS
    }

    #[inline]
    fn is_fair(&self) -> bool {
        matches!(self.account.class, Class::Fair { .. })
    }
}

/// Whether `a`'s deadline is so much earlier that it need not wait for the end of `b`'s request.
#[inline]
fn is_earlier(a: &Account, b: &Account) -> bool {
    a.deadline.saturating_add(GRANULARITY_NS) < b.deadline
}

/// Within [`LAG_MAX_NS`], which is time of the CPU.
#[inline]
fn clamp_lag(lag: i64, weight: u64) -> i64 {
    let most = to_virtual(LAG_MAX_NS, weight) as i64;
    lag.clamp(-most, most)
}
