//! What random programs found (`differ`), as tests of their own: capabilities that were missing,
//! and answers that a program can notice.

use crate::sys::*;
use crate::{sc, tests};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

tests!("found":
    a_waiter_is_moved_to_a_lock, urgent_bytes_of_unix_streams, what_eventfd_shows_to_fstat,
    timers_tell_their_times, a_fatal_signal_ends_the_process_at_once, a_reader_of_a_place_is_none,
);

fn a_waiter_is_moved_to_a_lock() {
    let words = anon(4096) as *const [AtomicU32; 2];
    // SAFETY: fresh memory of this size that is never unmapped.
    let [condition, lock] = unsafe { &*words };
    let call =
        |first: &AtomicU32, op: i32, value: u32, more: usize, second: &AtomicU32, third: u32| {
            sc!(SYS_futex, first.as_ptr(), op, value, more, second.as_ptr(), third)
        };
    call(condition, FUTEX_WAIT_REQUEUE_PI, 1, 0, lock, 0).fails(EAGAIN);
    call(condition, FUTEX_WAIT_REQUEUE_PI, 0, 0, condition, 0).fails(EINVAL);
    call(condition, FUTEX_CMP_REQUEUE_PI, 2, 0, lock, 0).fails(EINVAL);
    call(condition, FUTEX_CMP_REQUEUE_PI, 1, 0, lock, 7).fails(EAGAIN);
    call(condition, FUTEX_CMP_REQUEUE_PI, 1, 0, lock, 0).is(0);
    // The lock is held: who is moved gets it when it is given up.
    sc!(SYS_futex, lock.as_ptr(), FUTEX_LOCK_PI, 0, 0, 0, 0).is(0);
    let shared = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0).must();
    // SAFETY: fresh memory, shared with children, that is never unmapped.
    let told = unsafe { &*(shared as *const AtomicU32) };
    let waiter = std::thread::spawn(move || {
        call(condition, FUTEX_WAIT_REQUEUE_PI, 0, 0, lock, 0).is(0);
        assert_eq!(lock.load(SeqCst) & FUTEX_TID_MASK, tid() as u32);
        told.store(1, SeqCst);
        sc!(SYS_futex, lock.as_ptr(), FUTEX_UNLOCK_PI, 0, 0, 0, 0).is(0);
    });
    while call(condition, FUTEX_CMP_REQUEUE_PI, 1, 5, lock, 0).must() == 0 {
        let _ = sc!(SYS_sched_yield);
    }
    assert_eq!(told.load(SeqCst), 0);
    sc!(SYS_futex, lock.as_ptr(), FUTEX_UNLOCK_PI, 0, 0, 0, 0).is(0);
    waiter.join().unwrap();
    assert_eq!(lock.load(SeqCst) & FUTEX_TID_MASK, 0);
}

fn urgent_bytes_of_unix_streams() {
    let mut pair = [0i32; 2];
    sc!(SYS_socketpair, AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair.as_mut_ptr()).is(0);
    let [a, b] = pair;
    let mut buffer = [0u8; 8];
    sc!(SYS_recvfrom, b, buffer.as_mut_ptr(), 8, MSG_OOB, 0, 0).fails(EINVAL);
    sc!(SYS_sendto, a, b"".as_ptr(), 0, MSG_OOB, 0, 0).fails(EOPNOTSUPP);
    sc!(SYS_sendto, a, b"abc".as_ptr(), 3, MSG_OOB, 0, 0).is(3);
    let mut entry = pollfd { fd: b, events: POLLIN | POLLPRI, revents: 0 };
    sc!(SYS_poll, &raw mut entry, 1, 0).is(1);
    assert_eq!(entry.revents, POLLIN | POLLPRI);
    sc!(SYS_recvfrom, b, buffer.as_mut_ptr(), 8, 0, 0, 0).is(2);
    sc!(SYS_recvfrom, b, buffer.as_mut_ptr(), 8, MSG_OOB, 0, 0).is(1);
    assert_eq!(buffer[0], b'c');
    sc!(SYS_sendto, a, b"d".as_ptr(), 1, 0, 0, 0).is(1);
    sc!(SYS_recvfrom, b, buffer.as_mut_ptr(), 8, 0, 0, 0).is(1);
    assert_eq!(buffer[0], b'd');
}

fn what_eventfd_shows_to_fstat() {
    let (event, timer) =
        (sc!(SYS_eventfd2, 0, 0).fd(), sc!(SYS_timerfd_create, CLOCK_MONOTONIC, 0).fd());
    let stat = |fd: i32| {
        let mut words = [0u64; 18];
        sc!(SYS_fstat, fd, words.as_mut_ptr()).is(0);
        words
    };
    let (one, other) = (stat(event), stat(timer));
    // No kind, and one object for all of them.
    assert_eq!(one[3] as u32 & S_IFMT, 0);
    assert_eq!((one[0], one[1]), (other[0], other[1]));
    // A write is of exactly eight bytes.
    sc!(SYS_write, event, [0u64; 2].as_ptr(), 16).fails(EINVAL);
}

fn timers_tell_their_times() {
    let timer = sc!(SYS_timerfd_create, CLOCK_BOOTTIME, 0).fd();
    let text = || std::fs::read_to_string(format!("/proc/self/fdinfo/{timer}")).unwrap();
    let idle = "clockid: 7\nticks: 0\nsettime flags: 00\nit_value: (0, 0)\nit_interval: (0, 0)\n";
    assert!(text().ends_with(idle), "{}", text());
    let spec = [5u64, 7, 1 << 40, 0];
    sc!(SYS_timerfd_settime, timer, TFD_TIMER_ABSTIME, spec.as_ptr(), 0).is(0);
    let armed = text();
    assert!(armed.contains("settime flags: 01\n"), "{armed}");
    assert!(armed.contains("it_interval: (5, 7)\n") && !armed.contains("it_value: (0,"), "{armed}");
}

/// The process dies of a signal that one thread sends to another: the sender makes no other call.
fn a_fatal_signal_ends_the_process_at_once() {
    let shared = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0).must();
    // SAFETY: fresh memory that is never unmapped.
    let [word, ready] = unsafe { &*(shared as *const [AtomicU32; 2]) };
    let child = fork(|| {
        let main = tid();
        let sender = std::thread::spawn(move || {
            while ready.load(SeqCst) == 0 {
                let _ = sc!(SYS_sched_yield);
            }
            sc!(SYS_tgkill, pid(), main, SIGUSR1).is(0);
            word.store(1, SeqCst);
        });
        // While a thread is made the library blocks all signals in who makes it.
        ready.store(1, SeqCst);
        let _ = sender.join();
        0
    });
    let mut status = 0;
    sc!(SYS_wait4, child, &raw mut status, 0, 0).is(child as usize);
    assert_eq!((status & 0x7f, word.load(SeqCst)), (SIGUSR1, 0));
}

/// A descriptor made with O_PATH shows only what open(2) says of it, and nobody waits for it.
fn a_reader_of_a_place_is_none() {
    let place = open("/", O_PATH | O_DIRECTORY).fd();
    sc!(SYS_fcntl, place, F_GETFL).is((O_PATH | O_DIRECTORY) as usize);
    let mut entry = pollfd { fd: place, events: POLLIN, revents: 0 };
    sc!(SYS_poll, &raw mut entry, 1, 0).is(1);
    assert_eq!(entry.revents, POLLNVAL);
}
