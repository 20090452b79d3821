//! One queue by itself: shares by weight, real-time classes, yielding, and random lives in which
//! the books must agree.

use proptest::prelude::*;
use scheduler::class::weight_of_nice;
use scheduler::queue::{RR_SLICE_NS, RT_PERIOD_NS, RT_RUNTIME_NS, SLICE_NS};
use scheduler::{Arrival, Class, Entity, Preempt, RunQueue, Share};

const MS: u64 = 1_000_000;

fn fair(weight: u32) -> Class {
    Class::Fair { weight, share: Share::Normal }
}

fn fifo(priority: u8) -> Class {
    Class::RealTime { priority, takes_turns: false }
}

/// Lets the classes spin for a time and gives what each got, with a look every `tick_ns`.
fn spin(classes: &[Class], total_ns: u64, tick_ns: u64) -> Vec<u64> {
    let mut queue = RunQueue::new();
    for (item, class) in classes.iter().enumerate() {
        queue.enqueue(item, &Entity::new(*class), 0, Arrival::Woken);
    }
    let mut got = vec![0; classes.len()];
    let mut now_ns = 0;
    let mut running = queue.take_next(now_ns, |_| true).expect("somebody waits");
    while now_ns < total_ns {
        let next_ns = queue.look_again_ns(now_ns).unwrap_or(u64::MAX);
        let step_ns = next_ns.saturating_sub(now_ns).clamp(100_000, tick_ns);
        now_ns += step_ns;
        got[running] += step_ns;
        assert_eq!(queue.charge(now_ns), step_ns);
        let current = running;
        if let Some((next, _)) = queue.preempt(now_ns, |_| true, || current) {
            running = next;
        }
    }
    got
}

#[test]
fn shares_are_by_weight() {
    let nices = [-5, 0, 5, 10];
    let classes = nices.map(|nice| fair(weight_of_nice(nice)));
    let total: u64 = classes.iter().map(|class| class.load()).sum();
    let window_ns = 4000 * MS;
    for (got, class) in spin(&classes, window_ns, 4 * MS).iter().zip(classes) {
        let fair_ns = window_ns * class.load() / total;
        assert!(got.abs_diff(fair_ns) <= 3 * SLICE_NS, "{got} instead of {fair_ns}");
    }
}

#[test]
fn a_thread_of_sched_idle_gets_next_to_nothing_but_something() {
    let idle = Class::Fair { weight: 3, share: Share::Idle };
    let got = spin(&[Class::NORMAL, idle], 10_000 * MS, 4 * MS);
    assert!((1..80 * MS).contains(&got[1]), "{}", got[1]);
}

#[test]
fn real_time_threads_leave_the_others_a_twentieth() {
    let got = spin(&[fifo(1), Class::NORMAL, fifo(50)], 20 * RT_PERIOD_NS, 4 * MS);
    assert_eq!(got[0], 0, "the higher priority never ends");
    let left_ns = 20 * (RT_PERIOD_NS - RT_RUNTIME_NS);
    assert!(got[1].abs_diff(left_ns) < 200 * MS, "{}", got[1]);
}

#[test]
fn equals_take_turns_under_round_robin_only() {
    let rr = Class::RealTime { priority: 5, takes_turns: true };
    let got = spin(&[rr, rr, rr], 90 * RR_SLICE_NS, 4 * MS);
    assert!(got.iter().all(|got| got.abs_diff(30 * RR_SLICE_NS) <= 2 * RR_SLICE_NS), "{got:?}");
    let got = spin(&[fifo(5), fifo(5)], 10 * RR_SLICE_NS, 4 * MS);
    assert_eq!(got[1], 0);
}

#[test]
fn a_preempted_fifo_thread_comes_before_its_equals_and_a_yielding_one_after() {
    let mut queue = RunQueue::new();
    let entity = |priority| Entity::new(fifo(priority));
    queue.start(&entity(5), 0);
    queue.enqueue('b', &entity(5), 0, Arrival::Woken);
    let (_, preempts) = queue.enqueue('h', &entity(6), 0, Arrival::Woken);
    assert_eq!(preempts, Preempt::Now);
    let (next, _) = queue.preempt(MS, |_| true, || 'a').expect("a higher one waits");
    assert_eq!(next, 'h');
    queue.leave(2 * MS);
    assert_eq!(queue.take_next(2 * MS, |_| true), Some('a'));
    queue.yield_running(3 * MS);
    let (next, _) = queue.preempt(3 * MS, |_| true, || 'a').expect("an equal waits");
    assert_eq!(next, 'b');
}

#[test]
fn whoever_yields_goes_behind_all_others() {
    let mut queue = RunQueue::new();
    for item in 0..4 {
        queue.enqueue(item, &Entity::new(Class::NORMAL), 0, Arrival::Woken);
    }
    let mut running = queue.take_next(0, |_| true).expect("four wait");
    let mut seen = vec![running];
    for step in 1..40 {
        queue.yield_running(step * 1000);
        let current = running;
        running = queue.preempt(step * 1000, |_| true, || current).expect("others wait").0;
        seen.push(running);
    }
    // Each window of two rounds has everybody.
    for window in seen.windows(8) {
        assert!((0..4).all(|item| window.contains(&item)), "{seen:?}");
    }
}

#[test]
fn a_sleeper_with_short_runs_is_served_before_those_that_spin() {
    let mut queue = RunQueue::new();
    let mut short = Entity::new(Class::NORMAL);
    for _ in 0..16 {
        short.sleeps();
    }
    for item in 0..10 {
        queue.enqueue(item, &Entity::new(Class::NORMAL), 0, Arrival::Woken);
    }
    let mut running = queue.take_next(0, |_| true).expect("ten wait");
    for now_ns in (1..100).map(|tick| tick * SLICE_NS) {
        queue.charge(now_ns);
        let current = running;
        running = queue.preempt(now_ns, |_| true, || current).map_or(running, |(next, _)| next);
    }
    let mut now_ns = 99 * SLICE_NS + MS;
    queue.charge(now_ns);
    queue.enqueue(99, &short, now_ns, Arrival::Woken);
    let woken_ns = now_ns;
    while running != 99 {
        now_ns = queue.look_again_ns(now_ns).expect("ten wait").max(now_ns + MS / 10);
        queue.charge(now_ns);
        let current = running;
        running = queue.preempt(now_ns, |_| true, || current).map_or(running, |(next, _)| next);
    }
    // The ten have more than ten slices to run before it if deadlines did not count.
    assert!(now_ns - woken_ns <= 2 * SLICE_NS, "served after {} ns", now_ns - woken_ns);
}

proptest! {
    /// What all threads are owed, by weight, sums to nothing; and what was put in comes out.
    #[test]
    fn the_books_agree(
        steps in prop::collection::vec((0u8..6, 0usize..6, 0u64..9 * MS, -20i32..20), 1..120)
    ) {
        let mut queue: RunQueue<usize> = RunQueue::new();
        let mut asleep: Vec<(usize, Entity)> =
            (0..6).map(|item| (item, Entity::new(Class::NORMAL))).collect();
        let mut handles = [None; 6];
        let mut running = None;
        let mut now_ns = 1;
        for (what, who, step_ns, nice) in steps {
            now_ns += step_ns;
            queue.charge(now_ns);
            match what {
                0 | 1 if !asleep.is_empty() => {
                    let (item, entity) = asleep.swap_remove(who % asleep.len());
                    handles[item] = Some(queue.enqueue(item, &entity, now_ns, Arrival::Woken).0);
                }
                2 => {
                    if let (Some(item), Some(entity)) = (running.take(), queue.leave(now_ns)) {
                        asleep.push((item, entity));
                    }
                }
                3 => queue.yield_running(now_ns),
                4 => queue.reclass(fair(weight_of_nice(nice)), now_ns),
                _ => {
                    let removed = handles[who].take().and_then(|h| queue.remove(h, now_ns));
                    asleep.extend(removed);
                }
            }
            let next = match running {
                None => queue.take_next(now_ns, |_| true).map(|next| (next, None)),
                Some(current) => queue
                    .preempt(now_ns, |_| true, || current)
                    .map(|(next, handle)| (next, Some((current, handle)))),
            };
            if let Some((next, before)) = next {
                if let Some((item, handle)) = before {
                    handles[item] = Some(handle);
                }
                running = Some(next);
            }
            let awake = queue.waiting() as usize + usize::from(running.is_some());
            prop_assert_eq!(awake + asleep.len(), 6);
            prop_assert!(running.is_some() || queue.waiting() == 0);
            let (now, own) = queue.virtual_times();
            if let (Some(own), Some(class), 0) = (own, queue.running_class(), queue.waiting()) {
                prop_assert_eq!(own, now);
                prop_assert_eq!(queue.load(), class.load());
            }
        }
    }
}
