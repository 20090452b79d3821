//! The scheduler's promise, searched for in a small world: two CPUs, three or four threads, every
//! order of what can happen to them. The world uses the decisions exactly as the kernel does:
//! nobody looks at a queue unless a timer, an interrupt or a call makes it look, and the timer is
//! armed only when the decisions say so. After each order of events the threads spin, and then:
//!
//! - nobody who may run waits longer than the promise says (`bound_ns`), lost interrupts included;
//! - no CPU is idle while a thread waits that may run there, and none has more to do than another
//!   one could take from it;
//! - whoever stays gets its share by weight.
//!
//! Each mutant breaks one rule, and the search must then find an order that breaks the promise.

use scheduler::balance::{self, CpuLoad};
use scheduler::queue::{LAG_MAX_NS, SLICE_NS, UNDISTURBED_NS};
use scheduler::{Arrival, Class, Entity, Handle, Preempt, RunQueue, Share};

const CPUS: usize = 2;
/// The tick of a CPU on which threads wait.
const TICK_NS: u64 = 4_000_000;
/// How often a CPU looks on which nobody waits.
const LAZY_NS: u64 = 1_000_000_000;

/// A rule that is broken on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mutant {
    None,
    /// Whoever puts a second thread on a CPU leaves the timer as it is.
    LazyTimer,
    /// Nobody tells another CPU to look at its queue.
    NoInterrupt,
    /// Nothing is moved but by idle CPUs.
    NoPush,
    /// Idle CPUs take nothing.
    NoPull,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Asleep,
    Waiting(usize),
    Running(usize),
}

#[derive(Clone, Debug)]
struct Thread {
    at: At,
    entity: Entity,
    handle: Handle,
    class: Class,
    affinity: u32,
    last: usize,
    /// Since when it waits, and how much had been lost by late interrupts until then.
    since_ns: (u64, u64),
    /// The most that the promise has allowed since then: others may have come and gone.
    allowed_ns: u64,
    ran_ns: u64,
    /// The promise was broken.
    broken: bool,
}

#[derive(Clone, Debug)]
struct Cpu {
    queue: RunQueue<usize>,
    armed_ns: u64,
    /// An interrupt of another CPU is on its way.
    poked: bool,
    runs: Option<usize>,
}

#[derive(Clone, Debug)]
struct World {
    now_ns: u64,
    /// Time in which no interrupt arrived.
    late_ns: u64,
    threads: Vec<Thread>,
    cpus: Vec<Cpu>,
    mutant: Mutant,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Wake(usize),
    Sleep(usize),
    Yield(usize),
    Nice(usize, u32),
    Pin(usize, u32),
    /// Time passes, and timers and interrupts arrive: on time, or late.
    Pass(u64, bool),
}

impl World {
    fn new(classes: &[Class], mutant: Mutant) -> World {
        let thread = |class: &Class| Thread {
            at: At::Asleep,
            entity: Entity::new(*class),
            handle: Handle::NONE,
            class: *class,
            affinity: (1 << CPUS) - 1,
            last: 0,
            since_ns: (0, 0),
            allowed_ns: 0,
            ran_ns: 0,
            broken: false,
        };
        let cpu = |_| Cpu { queue: RunQueue::new(), armed_ns: LAZY_NS, poked: false, runs: None };
        World {
            now_ns: 1,
            late_ns: 0,
            threads: classes.iter().map(thread).collect(),
            cpus: (0..CPUS).map(cpu).collect(),
            mutant,
        }
    }

    fn load(&self, cpu: usize) -> CpuLoad {
        let queue = &self.cpus[cpu].queue;
        CpuLoad {
            idle: self.cpus[cpu].runs.is_none(),
            waiting: queue.waiting(),
            load: queue.load(),
            running_priority: queue.running_priority(),
            waiting_priority: queue.waiting_priority(),
        }
    }

    fn choose(&self, thread: usize) -> usize {
        let its = &self.threads[thread];
        balance::place(its.class, its.last, its.affinity, CPUS, |cpu| self.load(cpu))
    }

    fn arm(&mut self, cpu: usize) {
        let (now_ns, cpu) = (self.now_ns, &mut self.cpus[cpu]);
        let due_ns = match cpu.queue.look_again_ns(now_ns) {
            Some(due_ns) if due_ns > now_ns => due_ns.min(now_ns + TICK_NS),
            Some(_) => now_ns + TICK_NS,
            None if cpu.armed_ns > now_ns => return,
            None => now_ns + LAZY_NS,
        };
        if cpu.armed_ns > due_ns || cpu.armed_ns <= now_ns {
            cpu.armed_ns = due_ns;
        }
    }

    fn enqueue(&mut self, thread: usize, cpu: usize, why: Arrival) {
        let now_ns = self.now_ns;
        let its = &mut self.threads[thread];
        if its.entity.class() != its.class {
            its.entity.set_class(its.class);
        }
        let queue = &mut self.cpus[cpu].queue;
        queue.charge(now_ns);
        let (handle, preempts) = queue.enqueue(thread, &its.entity, now_ns, why);
        if !matches!(its.at, At::Waiting(_)) {
            (its.since_ns, its.allowed_ns) = ((now_ns, self.late_ns), 0);
        }
        (its.handle, its.at, its.last) = (handle, At::Waiting(cpu), cpu);
        let due_ns = match preempts {
            Preempt::Now => 0,
            Preempt::At(due_ns) => due_ns,
            Preempt::No => now_ns + TICK_NS,
        };
        let cpu = &mut self.cpus[cpu];
        let lazy = self.mutant == Mutant::LazyTimer && preempts == Preempt::No;
        let tells = self.mutant != Mutant::NoInterrupt;
        cpu.poked |= tells && (cpu.runs.is_none() || cpu.armed_ns > due_ns && !lazy);
    }

    /// What the promise says of a thread that waits on `cpu` now.
    fn bound_ns(&self, thread: usize, cpu: usize) -> u64 {
        let weight = |class: Class| class.load().max(1);
        let own = weight(self.threads[thread].class);
        let on = |t: &&Thread| matches!(t.at, At::Waiting(c) | At::Running(c) if c == cpu);
        let all: u64 = self.threads.iter().filter(on).map(|t| weight(t.class)).sum();
        let count = self.threads.iter().filter(on).count() as u64;
        // To repay the largest debt, to be reached among equals; and each of the others may be in
        // the middle of a request.
        (LAG_MAX_NS + SLICE_NS) * all / own + count * SLICE_NS + TICK_NS + UNDISTURBED_NS
    }

    fn runs(&mut self, cpu: usize, thread: usize) {
        self.cpus[cpu].runs = Some(thread);
        let its = &mut self.threads[thread];
        (its.at, its.last) = (At::Running(cpu), cpu);
    }

    /// Whoever has left `cpu` is followed by the next.
    fn next(&mut self, cpu: usize) {
        self.cpus[cpu].runs = None;
        let now_ns = self.now_ns;
        if let Some(next) = self.cpus[cpu].queue.take_next(now_ns, |_| true) {
            self.runs(cpu, next);
        } else if self.mutant != Mutant::NoPull {
            for from in (0..CPUS).filter(|&from| from != cpu) {
                if let Some(next) = self.steal(from, cpu, |_| true, true) {
                    self.runs(cpu, next);
                    break;
                }
            }
        }
        self.arm(cpu);
    }

    fn steal(
        &mut self,
        from: usize,
        to: usize,
        may_go: impl Fn(Class) -> bool,
        runs: bool,
    ) -> Option<usize> {
        let now_ns = self.now_ns;
        let threads = &self.threads;
        let may_go = |&t: &usize, class| threads[t].affinity & 1 << to != 0 && may_go(class);
        let (thread, left) = self.cpus[from].queue.steal(now_ns, may_go)?;
        if runs {
            self.cpus[to].queue.start(&left, now_ns);
        } else {
            self.threads[thread].entity = left;
            self.enqueue(thread, to, Arrival::Moved);
        }
        Some(thread)
    }

    /// `cpu` comes to where threads are switched.
    fn schedule(&mut self, cpu: usize, yields: bool) {
        self.cpus[cpu].poked = false;
        let now_ns = self.now_ns;
        let Some(thread) = self.cpus[cpu].runs else { return self.next(cpu) };
        if self.threads[thread].affinity & 1 << cpu == 0 {
            self.leave(cpu, thread);
            let target = self.choose(thread);
            self.enqueue(thread, target, Arrival::Moved);
            return self.next(cpu);
        }
        let queue = &mut self.cpus[cpu].queue;
        queue.charge(now_ns);
        if yields {
            queue.yield_running(now_ns);
        }
        if let Some((next, handle)) = queue.preempt(now_ns, |_| true, || thread) {
            let its = &mut self.threads[thread];
            (its.at, its.handle) = (At::Waiting(cpu), handle);
            (its.since_ns, its.allowed_ns) = ((now_ns, self.late_ns), 0);
            self.runs(cpu, next);
        }
        self.arm(cpu);
    }

    fn leave(&mut self, cpu: usize, thread: usize) {
        if let Some(left) = self.cpus[cpu].queue.leave(self.now_ns) {
            self.threads[thread].entity = left;
        }
    }

    fn tick(&mut self, cpu: usize) {
        self.cpus[cpu].armed_ns = u64::MAX;
        let waits = self.cpus[cpu].queue.look_again_ns(self.now_ns).is_some();
        if waits && self.mutant != Mutant::NoPush {
            let here = self.load(cpu);
            for to in (0..CPUS).filter(|&to| to != cpu) {
                let there = self.load(to);
                if there.is_free() {
                    self.cpus[to].poked = true;
                    break;
                }
                let may_go = |class| balance::evens_out(class, &here, &there);
                if self.steal(cpu, to, may_go, false).is_some() {
                    break;
                }
            }
        }
        self.schedule(cpu, false);
        if self.cpus[cpu].armed_ns == u64::MAX {
            self.cpus[cpu].armed_ns = self.now_ns + LAZY_NS;
        }
    }

    fn do_it(&mut self, event: Event) {
        match event {
            Event::Wake(t) if self.threads[t].at == At::Asleep => {
                let cpu = self.choose(t);
                self.enqueue(t, cpu, Arrival::Woken);
            }
            Event::Sleep(t) => {
                let At::Running(cpu) = self.threads[t].at else { return };
                self.account();
                self.leave(cpu, t);
                self.threads[t].entity.sleeps();
                self.threads[t].at = At::Asleep;
                self.next(cpu);
            }
            Event::Yield(t) => {
                let At::Running(cpu) = self.threads[t].at else { return };
                self.schedule(cpu, true);
            }
            Event::Nice(t, weight) => self.reclass(t, weight),
            Event::Pin(t, affinity) => {
                self.threads[t].affinity = affinity;
                match self.threads[t].at {
                    At::Waiting(cpu) if affinity & 1 << cpu == 0 => {
                        self.unqueue(t, cpu);
                        let target = self.choose(t);
                        self.enqueue(t, target, Arrival::Moved);
                    }
                    At::Running(cpu) if affinity & 1 << cpu == 0 => self.cpus[cpu].poked = true,
                    _ => {}
                }
            }
            Event::Pass(ns, late) => self.pass(ns, late),
            Event::Wake(_) => {}
        }
    }

    fn unqueue(&mut self, t: usize, cpu: usize) {
        let queue = &mut self.cpus[cpu].queue;
        queue.charge(self.now_ns);
        let removed = queue.remove(self.threads[t].handle, self.now_ns);
        self.threads[t].entity = removed.expect("it waits here").1;
    }

    fn reclass(&mut self, t: usize, weight: u32) {
        let class = Class::Fair { weight, share: Share::Normal };
        self.threads[t].class = class;
        match self.threads[t].at {
            At::Waiting(cpu) => {
                self.unqueue(t, cpu);
                self.enqueue(t, cpu, Arrival::Moved);
            }
            At::Running(cpu) => {
                self.cpus[cpu].queue.reclass(class, self.now_ns);
                self.cpus[cpu].poked = true;
            }
            At::Asleep => self.threads[t].entity.set_class(class),
        }
    }

    /// Notes how long those wait that wait.
    fn account(&mut self) {
        for t in 0..self.threads.len() {
            if let At::Waiting(cpu) = self.threads[t].at {
                let bound_ns = self.bound_ns(t, cpu);
                let its = &mut self.threads[t];
                let waited_ns = self.now_ns - its.since_ns.0;
                let late_ns = self.late_ns - its.since_ns.1;
                its.allowed_ns = its.allowed_ns.max(bound_ns);
                its.broken |= waited_ns > its.allowed_ns + late_ns;
            }
        }
    }

    /// Time passes. Interrupts arrive at once, or only at its end.
    fn pass(&mut self, ns: u64, late: bool) {
        let end_ns = self.now_ns + ns;
        loop {
            let poked = (0..CPUS).find(|&cpu| self.cpus[cpu].poked);
            if let Some(cpu) = poked.filter(|_| !late || self.now_ns == end_ns) {
                self.schedule(cpu, false);
                continue;
            }
            let armed = |cpu: &usize| self.cpus[*cpu].armed_ns;
            let first = (0..CPUS).min_by_key(armed).expect("there are CPUs");
            let due_ns = if late { end_ns.max(armed(&first)) } else { armed(&first) };
            let step_ns = due_ns.min(end_ns).saturating_sub(self.now_ns);
            for cpu in 0..CPUS {
                if let Some(thread) = self.cpus[cpu].runs {
                    self.threads[thread].ran_ns += step_ns;
                }
            }
            self.now_ns += step_ns;
            self.late_ns += if late { step_ns } else { 0 };
            if due_ns <= self.now_ns {
                self.account();
                self.tick(first);
            } else {
                self.account();
                return;
            }
        }
    }

    /// Lets those that are awake, or everybody, spin for a while; then the promises are looked at.
    fn check(&mut self, wakes: bool) -> bool {
        for t in (0..self.threads.len()).filter(|_| wakes) {
            self.do_it(Event::Wake(t));
        }
        self.pass(LAZY_NS * 2 / 5, false);
        for thread in &mut self.threads {
            thread.ran_ns = 0;
        }
        let window_ns = LAZY_NS / 5;
        self.pass(window_ns, false);
        let mut holds = true;
        for cpu in 0..CPUS {
            let here = |t: &&Thread| matches!(t.at, At::Waiting(c) | At::Running(c) if c == cpu);
            let its: Vec<&Thread> = self.threads.iter().filter(here).collect();
            let all: u64 = its.iter().map(|t| t.class.load()).sum();
            for thread in &its {
                let fair_ns = window_ns * thread.class.load() / all;
                let slack_ns = 2 * LAG_MAX_NS + TICK_NS * its.len() as u64;
                holds &= thread.ran_ns.abs_diff(fair_ns) <= slack_ns;
            }
            let could_come = |t: &Thread| {
                matches!(t.at, At::Waiting(other) if other != cpu) && t.affinity & 1 << cpu != 0
            };
            holds &= !its.is_empty() || !self.threads.iter().any(could_come);
            let uneven = |t: &Thread| {
                let At::Waiting(from) = t.at else { return false };
                let evens_out = balance::evens_out(t.class, &self.load(from), &self.load(cpu));
                could_come(t) && evens_out
            };
            holds &= !self.threads.iter().any(uneven);
        }
        holds && !self.threads.iter().any(|t| t.broken)
    }
}

const NORMAL: Class = Class::NORMAL;
const LIGHT: u32 = 335;
const HEAVY: u32 = 3125;

fn events(threads: usize) -> Vec<Event> {
    let mut all = vec![
        Event::Pass(TICK_NS, false),
        Event::Pass(37 * TICK_NS, false),
        Event::Pass(11 * TICK_NS, true),
        Event::Pass(300_000, true),
    ];
    for t in 0..threads {
        all.extend([Event::Wake(t), Event::Sleep(t)]);
    }
    // What threads do is alike: one of each kind is enough.
    all.extend([Event::Yield(0), Event::Nice(1, LIGHT), Event::Nice(1, HEAVY)]);
    all.extend([Event::Pin(0, 1), Event::Pin(0, 2), Event::Pin(0, 3)]);
    all
}

/// Every order of `depth` events; the first one that breaks a promise.
fn search(world: &World, all: &[Event], depth: u32, path: &mut Vec<Event>) -> Option<Vec<Event>> {
    if !world.clone().check(false) || !world.clone().check(true) {
        return Some(path.clone());
    }
    if depth == 0 {
        return None;
    }
    for &event in all {
        let mut next = world.clone();
        next.do_it(event);
        path.push(event);
        let found = search(&next, all, depth - 1, path);
        path.pop();
        if found.is_some() {
            return found;
        }
    }
    None
}

/// The start of each search: everybody has been woken, one after the other.
fn start(mutant: Mutant, threads: usize) -> World {
    let mut world = World::new(&vec![NORMAL; threads], mutant);
    for t in 0..threads {
        world.do_it(Event::Wake(t));
        world.pass(TICK_NS / 4, false);
    }
    world
}

fn find(mutant: Mutant, threads: usize, depth: u32) -> Option<Vec<Event>> {
    search(&start(mutant, threads), &events(threads), depth, &mut Vec::new())
}

/// Panics with what the threads were like in the end.
fn assert_holds(threads: usize, depth: u32) {
    let Some(path) = find(Mutant::None, threads, depth) else { return };
    let mut world = start(Mutant::None, threads);
    for &event in &path {
        world.do_it(event);
    }
    let asleep = !world.clone().check(false);
    world.check(!asleep);
    panic!("{path:?} breaks the promise: {:#?}", world.threads);
}

#[test]
fn no_order_of_events_breaks_the_promise() {
    assert_holds(3, 4);
    assert_holds(5, 3);
}

#[test]
fn each_mutant_breaks_it() {
    use Mutant::{LazyTimer, NoInterrupt, NoPull, NoPush};
    for mutant in [LazyTimer, NoInterrupt, NoPush, NoPull] {
        let found = find(mutant, 3, 3).or_else(|| find(mutant, 5, 3));
        assert!(found.is_some(), "{mutant:?} is not noticed");
    }
}
