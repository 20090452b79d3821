//! Threads go to where there is less to do. What is idle takes (`pull`), what has a tick because
//! threads wait there gives (`push`): so a CPU that runs one thread without a tick need not look.
//! Which CPU and which thread is decided by `scheduler::balance`; isolated CPUs take no part.

use alloc::sync::Arc;

use machine::cpu::cpu_count;
use scheduler::balance as rules;

use crate::base::sched::{could_spare, is_isolated, kick, load_of, real_time_waiting, steal};
use crate::base::thread::Thread;
use crate::base::time;

fn others(cpu: usize) -> impl Iterator<Item = usize> {
    let count = if is_isolated(cpu) { 1 } else { cpu_count() };
    (1..count).map(move |step| (cpu + step) % cpu_count()).filter(|&other| !is_isolated(other))
}

/// Whether CPU `from` has more to run than one thread.
fn has_more_than_one(from: usize) -> bool {
    let load = load_of(from);
    // An idle CPU is about to run the first of its queue.
    load.waiting > u32::from(load.idle)
}

/// A thread of another CPU for `cpu`, which has none.
pub fn pull(cpu: usize, now_ns: u64) -> Option<Arc<Thread>> {
    let first = rules::busiest(others(cpu).filter(|&from| has_more_than_one(from)), load_of)?;
    let rest = others(cpu).filter(|&from| from != first && has_more_than_one(from));
    core::iter::once(first).chain(rest).find_map(|from| steal(from, cpu, now_ns, |_, _| true, true))
}

/// Brings real-time threads that wait elsewhere to `cpu` if they precede what is here. Called
/// before `cpu` chooses.
#[cold]
pub fn pull_real_time(cpu: usize) {
    let waiting = real_time_waiting();
    for from in others(cpu).filter(|from| waiting & 1 << from != 0) {
        let here = load_of(cpu).waiting_priority;
        if load_of(from).waiting_priority > here {
            steal(from, cpu, time::now_ns(), |_, class| class.priority() > here, false);
        }
    }
}

/// Whether another CPU has a thread to spare for CPU `cpu`, which is idle.
pub fn others_have_work(cpu: usize) -> bool {
    others(cpu).any(|from| has_more_than_one(from) && could_spare(from, cpu))
}

/// Gives away a thread that waits on `cpu`, if that evens out what is to do. Whoever placed it may
/// have found another CPU busy for a moment; and an idle CPU sleeps until somebody tells it.
pub fn push(cpu: usize, now_ns: u64) {
    let here = load_of(cpu);
    for to in others(cpu) {
        let there = load_of(to);
        if there.is_free() {
            if could_spare(cpu, to) {
                return kick(to);
            }
        } else if there.load < here.load || here.waiting_priority > there.running_priority {
            let may_go = |_: &Arc<Thread>, class| rules::evens_out(class, &here, &there);
            if steal(cpu, to, now_ns, may_go, false).is_some() {
                return;
            }
        }
    }
}
