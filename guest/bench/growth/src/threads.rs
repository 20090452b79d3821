//! Rows about threads of one process.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::{Builder, JoinHandle};

use libc::*;

use crate::cost::Cost;
use crate::sys::{self, PAGE, call, close, good, pipe, wait};
use crate::{Row, SOME};

pub const ROWS: &[Row] = &[
    Row { name: "thread_create_join_among_threads", sizes: SOME, run: create_join },
    Row { name: "futex_wake_among_waiters", sizes: SOME, run: wake_one },
    Row { name: "futex_wake_all_waiters", sizes: SOME, run: wake_all },
    Row { name: "exit_of_threads", sizes: SOME, run: exit_of },
    Row { name: "fork_wait_among_threads", sizes: SOME, run: fork_among },
    Row { name: "tgkill_among_threads", sizes: SOME, run: tgkill },
];

fn thread(body: impl FnOnce() + Send + 'static) -> JoinHandle<()> {
    Builder::new().stack_size(4 * PAGE).spawn(body).expect("a thread")
}

fn futex(word: &AtomicU32, op: i32, value: usize) -> isize {
    call(SYS_futex, &[word.as_ptr() as usize, (op | FUTEX_PRIVATE_FLAG) as usize, value, 0])
}

/// Gives the calling thread a scheduling policy and, with a real-time one, the lowest priority.
fn set_policy(policy: i32) {
    let priority = i32::from(policy != SCHED_OTHER);
    good(SYS_sched_setscheduler, &[0, policy as usize, &raw const priority as usize]);
}

/// Threads that sleep, each on a word of its own, until it is not 0.
fn sleepers(n: usize) -> Arc<Vec<AtomicU32>> {
    let words: Arc<Vec<AtomicU32>> = Arc::new((0..n).map(|_| AtomicU32::new(0)).collect());
    for i in 0..n {
        let words = Arc::clone(&words);
        thread(move || {
            while words[i].load(Ordering::Relaxed) == 0 {
                futex(&words[i], FUTEX_WAIT, 0);
            }
        });
    }
    sys::quiet();
    words
}

fn create_join(cost: &mut Cost, n: usize) {
    let _words = sleepers(n);
    cost.repeat(|| thread(|| ()).join().expect("it ends"));
}

fn wake_one(cost: &mut Cost, n: usize) {
    let words = sleepers(n);
    let word = &words[n / 2];
    for _ in 0..cost.samples() {
        assert_eq!(cost.time(|| futex(word, FUTEX_WAKE, 1)), 1);
        sys::quiet();
    }
}

fn wake_all(cost: &mut Cost, n: usize) {
    let word = Arc::new(AtomicU32::new(0));
    for _ in 0..n {
        let word = Arc::clone(&word);
        thread(move || {
            loop {
                futex(&word, FUTEX_WAIT, 0);
            }
        });
    }
    // The wake-up alone: how many of those who are woken would run before its end is a matter of
    // time slices, and differs with their number.
    for _ in 0..cost.few() {
        sys::quiet();
        set_policy(SCHED_FIFO);
        assert_eq!(cost.time(|| futex(&word, FUTEX_WAKE, n)), n as isize);
        set_policy(SCHED_OTHER);
    }
}

fn exit_of(cost: &mut Cost, n: usize) {
    for _ in 0..cost.few() {
        let ((outside, gate), (ready_r, ready_w)) = (pipe(), pipe());
        let mut byte = 0u8;
        let byte = &raw mut byte as usize;
        let pid = sys::fork(|| {
            close(gate);
            let _words = sleepers(n);
            good(SYS_write, &[ready_w, byte, 1]);
            call(SYS_read, &[outside, byte, 1]);
            sys::exit(0);
        });
        good(SYS_read, &[ready_r, byte, 1]);
        sys::quiet();
        cost.time(|| {
            close(gate);
            wait(pid)
        });
        [outside, ready_r, ready_w].into_iter().for_each(close);
    }
}

fn fork_among(cost: &mut Cost, n: usize) {
    let _words = sleepers(n);
    cost.repeat(|| wait(sys::fork(|| ())));
}

fn tgkill(cost: &mut Cost, n: usize) {
    let _words = sleepers(n);
    let (pid, tid) = (good(SYS_getpid, &[]), good(SYS_gettid, &[]));
    cost.repeat(|| good(SYS_tgkill, &[pid, tid, 0]));
}
