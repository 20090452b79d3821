//! Which CPU: where a woken or new thread waits, and who takes from whom. Pure functions over what
//! is known of each CPU without its lock, so it may be a moment old; [`crate::queue`]'s periodic
//! look corrects what follows from that.

use crate::class::Class;

/// What is known of a CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuLoad {
    /// It waits for interrupts.
    pub idle: bool,
    /// Threads that wait there.
    pub waiting: u32,
    /// What all its threads count for ([`Class::load`]).
    pub load: u64,
    /// Priority of the real-time thread that runs there, 0 for none.
    pub running_priority: u8,
    /// Highest real-time priority that waits there, 0 for none.
    pub waiting_priority: u8,
}

impl CpuLoad {
    /// Whether a thread that comes there runs at once.
    #[must_use]
    pub fn is_free(&self) -> bool {
        self.idle && self.waiting == 0
    }
}

/// The CPU on which a thread that wakes, is new, or must leave its CPU should wait. It was on
/// `last`; `allowed` has a bit for each of the `count` CPUs that it may run on.
///
/// A free CPU, the last one first. Else the last one, unless another one has less to do even with
/// this thread. A real-time thread goes where it runs at once.
#[must_use]
pub fn place(
    class: Class,
    last: usize,
    allowed: u32,
    count: usize,
    cpu: impl Fn(usize) -> CpuLoad,
) -> usize {
    let may = |&at: &usize| at < count && allowed & 1 << at != 0;
    let first = (0..count).find(may).unwrap_or(0);
    let last = if may(&last) { last } else { first };
    if count == 1 || allowed == 1 << last {
        return last;
    }
    let there = cpu(last);
    if there.is_free() {
        return last;
    }
    let mut best = (last, there);
    for at in (0..count).filter(may).filter(|&at| at != last) {
        let load = cpu(at);
        if load.is_free() {
            return at;
        }
        let better = match class {
            Class::RealTime { priority, .. } => {
                let (here, its) = (best.1.running_priority, load.running_priority);
                here >= priority && its < priority && its < here
            }
            Class::Fair { .. } => {
                let own = if best.0 == last { class.load() } else { 0 };
                load.load + own < best.1.load
            }
        };
        if better {
            best = (at, load);
        }
    }
    best.0
}

/// Whether a thread of `class` that waits on a CPU with `from` to do should move to one with `to`:
/// the busier of the two must have less to do afterwards. So it never goes to and fro.
#[must_use]
pub fn evens_out(class: Class, from: &CpuLoad, to: &CpuLoad) -> bool {
    match class {
        Class::RealTime { priority, .. } => {
            to.is_free() || to.running_priority < priority && to.waiting_priority < priority
        }
        Class::Fair { .. } => to.is_free() || to.load + class.load() < from.load,
    }
}

/// The CPU of `others` that has the most waiting for a CPU that is about to be idle.
#[must_use]
pub fn busiest(
    others: impl Iterator<Item = usize>,
    cpu: impl Fn(usize) -> CpuLoad,
) -> Option<usize> {
    let waiting = others.map(|at| (at, cpu(at))).filter(|(_, load)| load.waiting > 0);
    waiting.max_by_key(|(_, load)| (load.waiting_priority, load.load)).map(|(at, _)| at)
}

/// The CPU of `others` that has the least to do.
#[must_use]
pub fn idlest(
    others: impl Iterator<Item = usize>,
    cpu: impl Fn(usize) -> CpuLoad,
) -> Option<(usize, CpuLoad)> {
    others.map(|at| (at, cpu(at))).min_by_key(|(_, load)| (!load.is_free(), load.load))
}
