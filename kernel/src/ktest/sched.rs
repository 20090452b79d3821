//! Threads, wait queues and timers.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use machine::ensure;
use machine::ktest::Test;

use crate::base::sched::Sleep;
use crate::base::sync::{Mutex, WaitError, WaitQueue};
use crate::base::time::{self, Deadline, NS_PER_SEC};
use crate::process::spawn_kernel;

pub(super) const TESTS: &[Test] = &[
    Test { name: "sched::threads_run_and_end", run: threads },
    Test { name: "wait_queue::no_wake_up_is_lost", run: ping_pong },
    Test { name: "timer::deadline_ends_a_wait", run: deadline },
    Test { name: "mutex::excludes", run: mutex },
    Test { name: "shadow_stack::threads_begin_switch_and_end", run: on_shadow_stacks },
];

/// How long a test waits for what must come.
const PATIENCE_NS: u64 = 30 * NS_PER_SEC;

fn threads() -> Result<(), String> {
    const THREADS: u64 = 32;
    let done = Arc::new((AtomicU64::new(0), WaitQueue::new()));
    for n in 1..=THREADS {
        let done = done.clone();
        let body = move || {
            done.0.fetch_add(n, Ordering::SeqCst);
            done.1.wake_all(0);
        };
        spawn_kernel("ktest", body).map_err(|e| format!("{e:?}"))?;
    }
    let all = || (done.0.load(Ordering::SeqCst) == THREADS * (THREADS + 1) / 2).then_some(());
    let deadline = Some(Deadline::after_ns(PATIENCE_NS));
    let result = done.1.wait_deadline(Sleep::Uninterruptible, deadline, all);
    ensure!(result.is_ok(), "not all threads have run: {}", done.0.load(Ordering::SeqCst));
    Ok(())
}

/// Threads that begin, switch and end, on shadow stacks that were used before.
fn on_shadow_stacks() -> Result<(), String> {
    const TIMES: usize = 4;
    for _ in 0..TIMES {
        threads()?;
        ping_pong()?;
    }
    Ok(())
}

fn ping_pong() -> Result<(), String> {
    const ROUNDS: u64 = 2000;
    let turn = Arc::new((AtomicU64::new(0), WaitQueue::new(), WaitQueue::new()));
    let other = turn.clone();
    let body = move || {
        for round in 0..ROUNDS {
            let mine = || (other.0.load(Ordering::SeqCst) == 2 * round + 1).then_some(());
            other.1.wait_uninterruptible(mine);
            other.0.fetch_add(1, Ordering::SeqCst);
            other.2.wake_one(0);
        }
    };
    spawn_kernel("pong", body).map_err(|e| format!("{e:?}"))?;
    for round in 0..ROUNDS {
        turn.0.fetch_add(1, Ordering::SeqCst);
        turn.1.wake_one(0);
        let deadline = Some(Deadline::after_ns(PATIENCE_NS));
        let mine = || (turn.0.load(Ordering::SeqCst) == 2 * round + 2).then_some(());
        let result = turn.2.wait_deadline(Sleep::Uninterruptible, deadline, mine);
        ensure!(result.is_ok(), "no answer in round {round}");
    }
    Ok(())
}

fn deadline() -> Result<(), String> {
    const NS: u64 = 5_000_000;
    let queue = WaitQueue::new();
    let before = time::now_ns();
    let never = || None::<()>;
    let result = queue.wait_deadline(Sleep::Uninterruptible, Some(Deadline::after_ns(NS)), never);
    let waited = time::now_ns() - before;
    ensure!(result == Err(WaitError::TimedOut), "{result:?}");
    ensure!(waited >= NS, "it waited {waited} ns only");
    ensure!(waited < PATIENCE_NS, "it waited {waited} ns");
    ensure!(!queue.has_waiters(), "the waiter is still queued");
    Ok(())
}

fn mutex() -> Result<(), String> {
    const THREADS: usize = 8;
    const ROUNDS: usize = 200;
    let shared = Arc::new((Mutex::new(Vec::new()), AtomicU64::new(0), WaitQueue::new()));
    for n in 0..THREADS {
        let shared = shared.clone();
        let body = move || {
            for _ in 0..ROUNDS {
                let mut list = shared.0.lock();
                let len = list.len();
                // Gives the others every opportunity to break in.
                crate::base::sched::yield_now();
                if list.len() == len {
                    list.push(n);
                }
            }
            shared.1.fetch_add(1, Ordering::SeqCst);
            shared.2.wake_all(0);
        };
        spawn_kernel("mutex", body).map_err(|e| format!("{e:?}"))?;
    }
    let all = || (shared.1.load(Ordering::SeqCst) == THREADS as u64).then_some(());
    let deadline = Some(Deadline::after_ns(PATIENCE_NS));
    let result = shared.2.wait_deadline(Sleep::Uninterruptible, deadline, all);
    ensure!(result.is_ok(), "the threads did not end");
    let count = shared.0.lock().len();
    ensure!(count == THREADS * ROUNDS, "{count} pushes were counted");
    Ok(())
}
