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
    Row { name: "futex_requeue_all_waiters", sizes: SOME, run: requeue_all },
    Row { name: "flock_unlock_among_waiters", sizes: SOME, run: flock_waiters },
    Row { name: "semop_wake_among_waiters", sizes: SOME, run: semop_waiters },
    Row { name: "write_wake_among_readers", sizes: SOME, run: pipe_readers },
    Row { name: "write_wake_all_pollers", sizes: SOME, run: pollers },
    Row { name: "proc_task_list_of_threads", sizes: SOME, run: proc_task },
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

/// Threads that wait again each time that they are woken, as long as there is what to wait for.
fn waiters(n: usize, wait: impl Fn(usize) -> isize + Clone + Send + 'static) {
    for i in 0..n {
        let wait = wait.clone();
        thread(move || while wait(i) >= 0 {});
    }
}

/// Samples of a wake-up alone: those who are woken run after it.
fn wake_ups(cost: &mut Cost, mut wake: impl FnMut()) {
    for _ in 0..cost.few() {
        sys::quiet();
        set_policy(SCHED_FIFO);
        cost.time(&mut wake);
        set_policy(SCHED_OTHER);
    }
    sys::quiet();
}

fn requeue_all(cost: &mut Cost, n: usize) {
    let words = Arc::new([AtomicU32::new(0), AtomicU32::new(0)]);
    let theirs = Arc::clone(&words);
    waiters(n, move |_| futex(&theirs[0], FUTEX_WAIT, 0));
    sys::quiet();
    let requeue = (FUTEX_REQUEUE | FUTEX_PRIVATE_FLAG) as usize;
    let all = usize::from(u16::MAX);
    let mut places = [words[0].as_ptr() as usize, words[1].as_ptr() as usize];
    cost.repeat(|| {
        good(SYS_futex, &[places[0], requeue, 0, all, places[1], 0]);
        places.reverse();
    });
}

/// Each waits with a description of its own; one comes next.
fn flock_waiters(cost: &mut Cost, n: usize) {
    let name = sys::path("flock");
    let fd = sys::create(&name);
    good(SYS_flock, &[fd, LOCK_EX as usize]);
    waiters(n, move |_| {
        let fd = sys::open(&sys::path("flock"), O_RDWR);
        let locked = call(SYS_flock, &[fd, LOCK_EX as usize]);
        close(fd);
        locked
    });
    wake_ups(cost, || _ = good(SYS_flock, &[fd, LOCK_UN as usize]));
}

/// Each waits for a semaphore of its own, of one set.
fn semop_waiters(cost: &mut Cost, n: usize) {
    let id = good(SYS_semget, &[0x10, n, IPC_CREAT as usize | 0o600]);
    waiters(n, move |i| {
        let down = [i as i16, -1, 0];
        call(SYS_semop, &[id, down.as_ptr() as usize, 1])
    });
    let up = [(n / 2) as i16, 1, 0];
    wake_ups(cost, || _ = good(SYS_semop, &[id, up.as_ptr() as usize, 1]));
    good(SYS_semctl, &[id, 0, IPC_RMID as usize]);
}

/// All wait for one pipe; one takes the byte.
fn pipe_readers(cost: &mut Cost, n: usize) {
    let (read, write) = pipe();
    waiters(n, move |_| {
        let mut byte = 0u8;
        call(SYS_read, &[read, &raw mut byte as usize, 1])
    });
    let byte = 1u8;
    wake_ups(cost, || _ = good(SYS_write, &[write, &raw const byte as usize, 1]));
}

/// All poll one counter, which one of them takes.
fn pollers(cost: &mut Cost, n: usize) {
    let fd = good(SYS_eventfd2, &[0, EFD_NONBLOCK as usize]);
    waiters(n, move |_| {
        let mut entry = pollfd { fd: fd as i32, events: POLLIN, revents: 0 };
        let ready = call(SYS_poll, &[&raw mut entry as usize, 1, usize::MAX]);
        let mut value = 0u64;
        call(SYS_read, &[fd, &raw mut value as usize, 8]);
        ready
    });
    let one = 1u64;
    wake_ups(cost, || _ = good(SYS_write, &[fd, &raw const one as usize, 8]));
}

fn proc_task(cost: &mut Cost, n: usize) {
    let _words = sleepers(n);
    let mut buf = vec![0u8; 32 << 10];
    let (address, size) = (buf.as_mut_ptr() as usize, buf.len());
    cost.repeat(|| {
        let fd = sys::open(c"/proc/self/task", O_RDONLY | O_DIRECTORY);
        while good(SYS_getdents64, &[fd, address, size]) > 0 {}
        close(fd);
    });
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
