//! Threads and futexes: what the C library's locks, joins and thread-local storage stand on.
//!
//! A lost wake-up shows as a hang, which the runner's bound turns into a failure; the storms
//! (storm.rs) repeat these protocols many times. Manual pages: futex(2), clone(2),
//! set_tid_address(2), get_robust_list(2).

use crate::sys::*;
use crate::{sc, tests};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Barrier, Condvar, Mutex};

tests!("threads":
    std_threads_join, thread_ids_differ, thread_locals_are_apart, mutex_counts, condvar_ping_pong,
    many_threads, futex_value_mismatch, futex_wake_without_waiters, futex_timeout_expires,
    futex_absolute_timeouts, futex_bitset_selects, futex_requeue_moves, futex_cmp_requeue,
    futex_wake_op, futex_bad_arguments, futex_shared_between_processes, futex_private_is_private,
    futex_signal_interrupts, futex_in_file_mapping, clear_child_tid_wakes, robust_list_marks_dead,
    robust_list_registration, pi_futex_lock_unlock, fs_base_survives, gs_base_by_arch_prctl,
    tgkill_hits_one_thread, exec_kills_threads, rwlock_and_barrier, thread_exit_frees,
    futex_waitv_one, futexes_by_calls_of_their_own, what_no_futex_can_be,
    sigkill_ends_all_threads, thread_stack_fault_kills_all,
);

fn futex(word: &AtomicU32, op: i32, val: u32, timeout: usize) -> Res {
    sc!(SYS_futex, word.as_ptr(), op, val, timeout)
}

const WAIT: i32 = FUTEX_WAIT;
const WAIT_BITSET: i32 = FUTEX_WAIT_BITSET;
const WAKE: i32 = FUTEX_WAKE;

/// Wakes until `n` waiters in all have been woken: they may not be asleep yet.
fn wake_n(word: &AtomicU32, op: i32, n: usize) {
    let mut woken = 0;
    while woken < n {
        woken += futex(word, op, 1, 0).must();
        let _ = sc!(SYS_sched_yield);
    }
}

fn std_threads_join() {
    let hs: Vec<_> = (0..8u64).map(|i| std::thread::spawn(move || i * i)).collect();
    let sum: u64 = hs.into_iter().map(|h| h.join().unwrap()).sum();
    assert_eq!(sum, 140);
}

fn thread_ids_differ() {
    let me = pid();
    assert_eq!(tid(), me);
    let ids: Vec<i32> = (0..10)
        .map(|_| {
            std::thread::spawn(move || {
                assert_eq!(pid(), me);
                tid()
            })
            .join()
            .unwrap()
        })
        .collect();
    assert!(ids.iter().all(|&t| t != me));
}

fn thread_locals_are_apart() {
    std::thread_local!(static V: std::cell::Cell<usize> = const { std::cell::Cell::new(5) });
    V.set(1);
    let hs: Vec<_> = (10..20)
        .map(|i| {
            std::thread::spawn(move || {
                assert_eq!(V.get(), 5);
                for _ in 0..100 {
                    V.set(i);
                    std::thread::yield_now();
                    assert_eq!(V.get(), i);
                }
            })
        })
        .collect();
    hs.into_iter().for_each(|h| h.join().unwrap());
    assert_eq!(V.get(), 1);
}

fn mutex_counts() {
    let m = Arc::new(Mutex::new(0u64));
    let hs: Vec<_> = (0..8)
        .map(|_| {
            let m = m.clone();
            std::thread::spawn(move || (0..5000).for_each(|_| *m.lock().unwrap() += 1))
        })
        .collect();
    hs.into_iter().for_each(|h| h.join().unwrap());
    assert_eq!(*m.lock().unwrap(), 40_000);
}

fn condvar_ping_pong() {
    let pair = Arc::new((Mutex::new(0u32), Condvar::new()));
    let other = pair.clone();
    let turn = |p: &(Mutex<u32>, Condvar), odd: u32| {
        for _ in 0..500 {
            let mut g = p.0.lock().unwrap();
            while *g % 2 != odd {
                g = p.1.wait(g).unwrap();
            }
            *g += 1;
            p.1.notify_one();
        }
    };
    let h = std::thread::spawn(move || turn(&other, 1));
    turn(&pair, 0);
    h.join().unwrap();
    assert_eq!(*pair.0.lock().unwrap(), 1000);
}

fn many_threads() {
    let barrier = Arc::new(Barrier::new(101));
    let hs: Vec<_> = (0..100)
        .map(|_| {
            let b = barrier.clone();
            std::thread::Builder::new()
                .stack_size(64 * 1024)
                .spawn(move || {
                    b.wait();
                    1usize
                })
                .unwrap()
        })
        .collect();
    barrier.wait();
    assert_eq!(hs.into_iter().map(|h| h.join().unwrap()).sum::<usize>(), 100);
}

fn futex_value_mismatch() {
    let w = AtomicU32::new(5);
    futex(&w, WAIT, 4, 0).fails(EAGAIN);
    futex(&w, WAIT | FUTEX_PRIVATE_FLAG, 4, 0).fails(EAGAIN);
}

fn futex_wake_without_waiters() {
    let w = AtomicU32::new(0);
    futex(&w, WAKE, 100, 0).is(0);
    futex(&w, WAKE | FUTEX_PRIVATE_FLAG, 1, 0).is(0);
}

fn futex_timeout_expires() {
    let w = AtomicU32::new(0);
    for nanos in [0, 1, 1_000_000, 20_000_000] {
        let ts = timespec { tv_sec: 0, tv_nsec: nanos };
        let before = std::time::Instant::now();
        futex(&w, WAIT, 0, &raw const ts as usize).fails(ETIMEDOUT);
        assert!(before.elapsed().as_nanos() >= nanos as u128, "woke early");
    }
    let bad = timespec { tv_sec: 0, tv_nsec: 1_000_000_000 };
    futex(&w, WAIT, 0, &raw const bad as usize).fails(EINVAL);
    let negative = timespec { tv_sec: -1, tv_nsec: 0 };
    futex(&w, WAIT, 0, &raw const negative as usize).fails(EINVAL);
}

fn futex_absolute_timeouts() {
    let w = AtomicU32::new(0);
    for (clock, flag) in [(CLOCK_MONOTONIC, 0), (CLOCK_REALTIME, FUTEX_CLOCK_REALTIME)] {
        let mut ts = timespec { tv_sec: 0, tv_nsec: 0 };
        sc!(SYS_clock_gettime, clock, &raw mut ts).is(0);
        ts.tv_nsec += 10_000_000;
        if ts.tv_nsec >= 1_000_000_000 {
            ts.tv_nsec -= 1_000_000_000;
            ts.tv_sec += 1;
        }
        let t = &raw const ts;
        sc!(SYS_futex, w.as_ptr(), WAIT_BITSET | flag, 0, t, 0, !0u32).fails(ETIMEDOUT);
        let mut now = timespec { tv_sec: 0, tv_nsec: 0 };
        sc!(SYS_clock_gettime, clock, &raw mut now).is(0);
        assert!((now.tv_sec, now.tv_nsec) >= (ts.tv_sec, ts.tv_nsec), "woke early");
    }
}

fn futex_bitset_selects() {
    let w = Arc::new(AtomicU32::new(0));
    let spawn = |mask: u32| {
        let w = w.clone();
        std::thread::spawn(move || {
            sc!(SYS_futex, w.as_ptr(), WAIT_BITSET, 0, 0, 0, mask).is(0);
        })
    };
    let (a, b) = (spawn(1), spawn(2));
    let wake = |mask: u32| sc!(SYS_futex, w.as_ptr(), FUTEX_WAKE_BITSET, 9, 0, 0, mask).must();
    until(|| wake(2) == 1);
    b.join().unwrap();
    assert_eq!(wake(2 | 4), 0);
    until(|| wake(1) == 1);
    a.join().unwrap();
    sc!(SYS_futex, w.as_ptr(), WAIT_BITSET, 0, 0, 0, 0).fails(EINVAL);
    sc!(SYS_futex, w.as_ptr(), FUTEX_WAKE_BITSET, 1, 0, 0, 0).fails(EINVAL);
}

fn futex_requeue_moves() {
    let words = Arc::new([const { AtomicU32::new(0) }; 2]);
    let hs: Vec<_> = (0..4)
        .map(|_| {
            let w = words.clone();
            std::thread::spawn(move || futex(&w[0], WAIT, 0, 0).is(0))
        })
        .collect();
    // Move all four (wake none), as they arrive; then wake them where they were moved to.
    let mut moved = 0;
    while moved < 4 {
        let (a, b) = (words[0].as_ptr(), words[1].as_ptr());
        moved += sc!(SYS_futex, a, FUTEX_REQUEUE, 0, 100, b, 0).must();
        let _ = sc!(SYS_sched_yield);
    }
    assert_eq!(moved, 4);
    futex(&words[0], WAKE, 100, 0).is(0);
    futex(&words[1], WAKE, 1, 0).is(1);
    futex(&words[1], WAKE, 100, 0).is(3);
    hs.into_iter().for_each(|h| h.join().unwrap());
}

fn futex_cmp_requeue() {
    let words = Arc::new([const { AtomicU32::new(0) }; 2]);
    let (a, b) = (words[0].as_ptr(), words[1].as_ptr());
    sc!(SYS_futex, a, FUTEX_CMP_REQUEUE, 1, 1, b, 7).fails(EAGAIN);
    let hs: Vec<_> = (0..3)
        .map(|_| {
            let w = words.clone();
            std::thread::spawn(move || futex(&w[0], WAIT, 0, 0).is(0))
        })
        .collect();
    let mut seen = 0;
    while seen < 3 {
        // One is woken, the others moved; the answer counts both.
        seen += sc!(SYS_futex, a, FUTEX_CMP_REQUEUE, 1, 100, b, 0).must();
        let _ = futex(&words[1], WAKE, 100, 0).must();
        let _ = sc!(SYS_sched_yield);
    }
    hs.into_iter().for_each(|h| h.join().unwrap());
}

fn futex_wake_op() {
    let words = [const { AtomicU32::new(0) }; 2];
    words[1].store(10, SeqCst);
    // FUTEX_OP(SET, 33, CMP_EQ, 10): opcode 0, cmp 0.
    let op = (33u32 << 12) | 10;
    let (a, b) = (words[0].as_ptr(), words[1].as_ptr());
    sc!(SYS_futex, a, FUTEX_WAKE_OP, 1, 1, b, op).is(0);
    assert_eq!(words[1].load(SeqCst), 33);
    // ADD 2
    sc!(SYS_futex, a, FUTEX_WAKE_OP, 1, 1, b, (1u32 << 28) | (2 << 12)).is(0);
    assert_eq!(words[1].load(SeqCst), 35);
}

fn futex_bad_arguments() {
    let w = [AtomicU32::new(0), AtomicU32::new(0)];
    let odd = w[0].as_ptr() as usize + 1;
    sc!(SYS_futex, odd, WAIT, 0, 0).fails(EINVAL);
    sc!(SYS_futex, 0, WAIT, 0, 0).fails(EFAULT);
    sc!(SYS_futex, 0xffff_8000_0000_0000usize, WAIT, 0, 0).fails(EFAULT);
    sc!(SYS_futex, w[0].as_ptr(), 99, 0, 0).fails(ENOSYS);
    sc!(SYS_futex, w[0].as_ptr(), WAIT, 0, 8).fails(EFAULT);
    sc!(SYS_futex, w[0].as_ptr(), FUTEX_REQUEUE, -1i32, 1, w[1].as_ptr(), 0).fails(EINVAL);
}

fn futex_shared_between_processes() {
    let w = new_shared();
    let children: Vec<i32> =
        (0..3).map(|_| fork(|| i32::from(futex(&w[0], WAIT, 0, 0) != Ok(0)))).collect();
    wake_n(&w[0], WAKE, 3);
    children.into_iter().for_each(|p| wait_code(p, 0));
}

fn futex_private_is_private() {
    // Private words of a parent and its child at the same address are two words.
    let p = anon(4096) as usize;
    // SAFETY: an aligned word of the test's own mapping, which lives on.
    let w = unsafe { &*(p as *const AtomicU32) };
    let s = new_shared();
    let child = fork(|| {
        let ts = timespec { tv_sec: 0, tv_nsec: 1_000_000 };
        while s[0].load(SeqCst) == 0 {
            futex(w, WAIT | FUTEX_PRIVATE_FLAG, 0, &raw const ts as usize).fails(ETIMEDOUT);
        }
        0
    });
    for _ in 0..1000 {
        futex(w, WAKE | FUTEX_PRIVATE_FLAG, 1, 0).is(0);
        let _ = sc!(SYS_sched_yield);
    }
    s[0].store(1, SeqCst);
    wait_code(child, 0);
}

fn futex_signal_interrupts() {
    let s = new_shared();
    on_signal(SIGUSR1, nothing as *const () as usize, 0, 0);
    let child = fork(|| i32::from(futex(&s[0], WAIT, 0, 0) != Err(EINTR)));
    let mut status = 0;
    until(|| {
        let _ = sc!(SYS_kill, child, SIGUSR1);
        sc!(SYS_wait4, child, &raw mut status as usize, WNOHANG, 0) == Ok(child as usize)
    });
}

fn futex_in_file_mapping() {
    let path = format!("{}/f", dir());
    let fd = open(&path, O_RDWR | O_CREAT).fd();
    sc!(SYS_ftruncate, fd, 4096).is(0);
    let map = || {
        let p = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0).must();
        // SAFETY: a mapping that stays.
        unsafe { &*(p as *const AtomicU32) }
    };
    let (mine, other) = (map(), map());
    assert_ne!(mine.as_ptr(), other.as_ptr());
    let child = fork(|| i32::from(futex(mine, WAIT, 0, 0) != Ok(0)));
    // Woken through another address: the key is the file and offset.
    wake_n(other, WAKE, 1);
    wait_code(child, 0);
}

extern "C" fn exit_now(_: *mut c_void) -> c_int {
    0
}

fn clear_child_tid_wakes() {
    let w = new_shared();
    w[0].store(12345, SeqCst);
    let stack = anon(65536);
    let flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_CHILD_CLEARTID;
    // SAFETY: a fresh stack; the word is waited for below.
    let t = unsafe {
        libc::clone(
            exit_now,
            stack.add(65536).cast(),
            flags | SIGCHLD,
            std::ptr::null_mut(),
            0usize,
            0usize,
            w[0].as_ptr(),
        )
    };
    assert!(t > 0);
    loop {
        let seen = w[0].load(SeqCst);
        if seen == 0 {
            break;
        }
        // No timeout: the kernel must wake this when it clears the word.
        match futex(&w[0], WAIT, seen, 0) {
            Ok(0) | Err(EAGAIN) => {}
            r => panic!("{r:?}"),
        }
    }
    wait_code(t, 0);
}

#[repr(C)]
struct RobustHead {
    next: usize,
    offset: isize,
    pending: usize,
}

fn robust_list_marks_dead() {
    let s = new_shared();
    // Layout in the shared page: one list entry at word 16, its lock word at word 20.
    let entry = s[16].as_ptr() as usize;
    let lock = &s[20];
    let child = fork(|| {
        let head = Box::leak(Box::new(RobustHead { next: entry, offset: 16, pending: 0 }));
        let h = &raw const *head;
        // SAFETY: the entry lies in the shared page; it points back to the head: a list of one.
        unsafe { (entry as *mut usize).write(h as usize) };
        let _ = sc!(SYS_set_robust_list, h, 24);
        lock.store(tid() as u32 | FUTEX_WAITERS, SeqCst);
        s[0].store(1, SeqCst);
        until_at_least(&s[1], 1);
        0
    });
    until_at_least(&s[0], 1);
    let waiter = fork(|| {
        let v = lock.load(SeqCst);
        if v & FUTEX_OWNER_DIED == 0 {
            s[1].store(1, SeqCst);
            let _ = futex(lock, WAIT, v, 0);
        }
        i32::from(lock.load(SeqCst) & FUTEX_OWNER_DIED == 0)
    });
    wait_code(child, 0);
    wait_code(waiter, 0);
    let v = lock.load(SeqCst);
    assert_eq!(v & (FUTEX_OWNER_DIED | FUTEX_TID_MASK), FUTEX_OWNER_DIED, "{v:#x}");
}

fn robust_list_registration() {
    let head = RobustHead { next: 0, offset: 0, pending: 0 };
    sc!(SYS_set_robust_list, &raw const head, 23).fails(EINVAL);
    sc!(SYS_set_robust_list, &raw const head, 24).is(0);
    let (mut p, mut len) = (0usize, 0usize);
    sc!(SYS_get_robust_list, 0, &raw mut p, &raw mut len).is(0);
    assert_eq!((p, len), (&raw const head as usize, 24));
    // A list that points nowhere must not hurt the exit.
    in_child(|| {
        let head = RobustHead { next: 0x1234_5678, offset: -8, pending: usize::MAX };
        sc!(SYS_set_robust_list, &raw const head, 24).is(0);
        quit(0);
    });
}

fn pi_futex_lock_unlock() {
    let w = AtomicU32::new(0);
    futex(&w, FUTEX_LOCK_PI, 0, 0).is(0);
    assert_eq!(w.load(SeqCst) & FUTEX_TID_MASK, tid() as u32);
    futex(&w, FUTEX_LOCK_PI, 0, 0).fails(EDEADLK);
    futex(&w, FUTEX_TRYLOCK_PI, 0, 0).fails(EDEADLK);
    futex(&w, FUTEX_UNLOCK_PI, 0, 0).is(0);
    assert_eq!(w.load(SeqCst), 0);
    futex(&w, FUTEX_UNLOCK_PI, 0, 0).fails(EPERM);
}

fn fs_base_survives() {
    let mut base = 0usize;
    sc!(SYS_arch_prctl, 0x1003, &raw mut base).is(0);
    assert_ne!(base, 0);
    for _ in 0..1000 {
        let _ = sc!(SYS_sched_yield);
        let mut again = 0usize;
        sc!(SYS_arch_prctl, 0x1003, &raw mut again).is(0);
        assert_eq!(base, again);
    }
    sc!(SYS_arch_prctl, 0x9999, 0).fails(EINVAL);
    sc!(SYS_arch_prctl, 0x1002, 1usize << 63).fails(EPERM);
}

fn gs_base_by_arch_prctl() {
    let cell = Box::leak(Box::new([0x1122_3344_5566_7788u64, 2]));
    sc!(SYS_arch_prctl, 0x1001, cell.as_ptr()).is(0);
    let read = || {
        let v: u64;
        // SAFETY: GS points at `cell`.
        unsafe { std::arch::asm!("mov {}, gs:[0]", out(reg) v) };
        v
    };
    for _ in 0..200 {
        assert_eq!(read(), cell[0]);
        nap(0);
    }
    in_child(|| assert_eq!(read(), 0x1122_3344_5566_7788));
    assert_eq!(read(), cell[0]);
}

static HIT: AtomicU32 = AtomicU32::new(0);

extern "C" fn note_tid(_: i32) {
    HIT.store(tid() as u32, SeqCst);
}

fn tgkill_hits_one_thread() {
    on_signal(SIGUSR1, note_tid as *const () as usize, 0, 0);
    let done = Arc::new(AtomicU32::new(0));
    let spawn = || {
        let d = done.clone();
        let (tx, rx) = std::sync::mpsc::channel();
        let h = std::thread::spawn(move || {
            tx.send(tid()).unwrap();
            until_at_least(&d, 1);
        });
        (h, rx.recv().unwrap())
    };
    let threads: Vec<_> = (0..4).map(|_| spawn()).collect();
    for (_, t) in &threads {
        HIT.store(0, SeqCst);
        sc!(SYS_tgkill, pid(), *t, SIGUSR1).is(0);
        until(|| HIT.load(SeqCst) == *t as u32);
    }
    done.store(1, SeqCst);
    threads.into_iter().for_each(|(h, _)| h.join().unwrap());
}

fn exec_kills_threads() {
    let me = c(&own_path());
    let child = fork(|| {
        for _ in 0..5 {
            std::thread::spawn(|| {
                loop {
                    let _ = sc!(SYS_sched_yield);
                }
            });
        }
        // From a thread that is not the first: the new program has the first one's id.
        let want = format!("{}", pid());
        let h = std::thread::spawn(move || {
            let want = c(&want);
            let argv = [
                c"x".as_ptr(),
                c"child".as_ptr(),
                c"pid-is".as_ptr(),
                want.as_ptr(),
                std::ptr::null(),
            ];
            let _ = sc!(SYS_execve, me.as_ptr(), argv.as_ptr(), 0);
        });
        let _ = h.join();
        99
    });
    wait_code(child, 0);
}

fn rwlock_and_barrier() {
    let lock = Arc::new(std::sync::RwLock::new(0u32));
    let barrier = Arc::new(Barrier::new(6));
    let hs: Vec<_> = (0..6)
        .map(|i| {
            let (l, b) = (lock.clone(), barrier.clone());
            std::thread::spawn(move || {
                for round in 1..=50u32 {
                    if i == 0 {
                        *l.write().unwrap() = round;
                    }
                    b.wait();
                    assert_eq!(*l.read().unwrap(), round);
                    b.wait();
                }
            })
        })
        .collect();
    hs.into_iter().for_each(|h| h.join().unwrap());
}

fn thread_exit_frees() {
    // Far more threads, one after the other, than could live at once.
    for i in 0..2000u32 {
        let h = std::thread::Builder::new().stack_size(32 * 1024).spawn(move || i).unwrap();
        assert_eq!(h.join().unwrap(), i);
    }
}

fn futex_waitv_one() {
    // Linux 5.16; a kernel without it says ENOSYS, as an older Linux does.
    let w = AtomicU32::new(5);
    let v = [4u64, w.as_ptr() as u64, 2];
    match sc!(SYS_futex_waitv, v.as_ptr(), 1, 0, 0, 0) {
        Err(EAGAIN | ENOSYS) => {}
        r => panic!("{r:?}"),
    }
}

const FUTEX_WAKE_CALL: usize = 454;
const FUTEX_WAIT_CALL: usize = 455;
const FUTEX_REQUEUE_CALL: usize = 456;
/// FUTEX2_SIZE_U32, alone and private.
const SHARED: u32 = 2;
const PRIVATE: u32 = 2 | 128;

/// Who waits by one call is woken, moved and timed by the others, and by futex(2).
fn futexes_by_calls_of_their_own() {
    let words = new_shared();
    let [first, second] = [&words[0], &words[1]];
    let wait = |word: &AtomicU32, value: u64, mask: u64, flags: u32, timeout: usize, clock: i32| {
        sc!(FUTEX_WAIT_CALL, word.as_ptr(), value, mask, flags, timeout, clock)
    };
    let wake = |word: &AtomicU32, mask: u64, count: i32, flags: u32| {
        sc!(FUTEX_WAKE_CALL, word.as_ptr(), mask, count, flags)
    };
    wait(first, 1, 1, SHARED, 0, 0).fails(EAGAIN);
    let past = [1u64, 0];
    wait(first, 0, 1, SHARED, past.as_ptr() as usize, CLOCK_MONOTONIC).fails(ETIMEDOUT);
    wait(first, 0, 1, PRIVATE, past.as_ptr() as usize, CLOCK_REALTIME).fails(ETIMEDOUT);
    wake(first, 1, 1, SHARED).is(0);
    let waiters: Vec<i32> = (0..3)
        .map(|n| {
            let child = fork(|| {
                words[20 + n].store(1, SeqCst);
                wait(first, 0, 1 << n, SHARED, 0, 0).is(0);
                words[10].fetch_add(1, SeqCst);
                0
            });
            // The order in which they wait decides who is woken and moved.
            until(|| words[20 + n].load(SeqCst) == 1 && is_asleep(child));
            child
        })
        .collect();
    // A word of this process alone is another one; nobody has this bit; none are wanted.
    wake(first, u64::from(u32::MAX), 9, PRIVATE).is(0);
    wake(first, 8, 9, SHARED).is(0);
    wake(first, 7, 0, SHARED).is(0);
    let pair = |value: u64| {
        [
            value,
            first.as_ptr() as u64,
            u64::from(SHARED),
            0,
            second.as_ptr() as u64,
            u64::from(SHARED),
        ]
    };
    sc!(FUTEX_REQUEUE_CALL, pair(1).as_ptr(), 0, 1, 1).fails(EAGAIN);
    sc!(FUTEX_REQUEUE_CALL, pair(0).as_ptr(), 0, 0, 2).is(2);
    until(|| words[10].load(SeqCst) == 0);
    wake(second, 4, 9, SHARED).is(0);
    // The bits of those that were moved are their own still.
    wake(second, 1, 9, SHARED).is(1);
    wait_code(waiters[0], 0);
    assert_eq!(futex(second, WAKE, 9, 0), Ok(1));
    wait_code(waiters[1], 0);
    // A count below zero wakes one, as futex(2)'s does.
    wake(first, 4, -1, SHARED).is(1);
    wait_code(waiters[2], 0);
}

fn is_asleep(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit(')').next().is_some_and(|rest| rest.starts_with(" S"))
}

fn what_no_futex_can_be() {
    let w = AtomicU32::new(0);
    let at = w.as_ptr() as u64;
    // Other sizes, and flags that there are not.
    for flags in [0, 1, 3, 2 | 4, 2 | 16, 2 | 256, 1 << 31] {
        sc!(FUTEX_WAKE_CALL, at, 1, 1, flags).fails(EINVAL);
        sc!(FUTEX_WAIT_CALL, at, 1, 1, flags, 0, 0).fails(EINVAL);
        let pair = [0, at, flags, 0, at, 2];
        sc!(FUTEX_REQUEUE_CALL, pair.as_ptr(), 0, 0, 0).fails(EINVAL);
        let pair = [0, at, 2, 0, at, flags];
        sc!(FUTEX_REQUEUE_CALL, pair.as_ptr(), 0, 0, 0).fails(EINVAL);
    }
    let large = 1u64 << 32;
    sc!(FUTEX_WAKE_CALL, at, large, 1, PRIVATE).fails(EINVAL);
    sc!(FUTEX_WAKE_CALL, at, 0, 1, PRIVATE).fails(EINVAL);
    sc!(FUTEX_WAIT_CALL, at, large, 1, PRIVATE, 0, 0).fails(EINVAL);
    sc!(FUTEX_WAIT_CALL, at, 1, large, PRIVATE, 0, 0).fails(EINVAL);
    sc!(FUTEX_WAIT_CALL, at, 1, 0, PRIVATE, 0, 0).fails(EINVAL);
    let time = [1u64, 0];
    sc!(FUTEX_WAIT_CALL, at, 0, 1, PRIVATE, time.as_ptr(), 2).fails(EINVAL);
    sc!(FUTEX_WAIT_CALL, at, 0, 1, PRIVATE, 8, CLOCK_MONOTONIC).fails(EFAULT);
    sc!(FUTEX_WAIT_CALL, at, 0, 1, PRIVATE, [1u64, 1_000_000_000].as_ptr(), 0).fails(EINVAL);
    sc!(FUTEX_WAIT_CALL, at, 1, 1, PRIVATE, 0, 77).fails(EAGAIN);
    sc!(FUTEX_WAIT_CALL, at + 1, 1, 1, PRIVATE, 0, 0).fails(EINVAL);
    sc!(FUTEX_WAIT_CALL, 8, 1, 1, PRIVATE, 0, 0).fails(EFAULT);
    let pair = [0, at, 2, 0, at, 2];
    sc!(FUTEX_REQUEUE_CALL, pair.as_ptr(), 1, 0, 0).fails(EINVAL);
    sc!(FUTEX_REQUEUE_CALL, 0, 0, 0, 0).fails(EINVAL);
    sc!(FUTEX_REQUEUE_CALL, 8, 0, 0, 0).fails(EFAULT);
    sc!(FUTEX_REQUEUE_CALL, pair.as_ptr(), 0, u32::MAX, 0).fails(EINVAL);
    sc!(FUTEX_REQUEUE_CALL, pair.as_ptr(), 0, 0, u32::MAX).fails(EINVAL);
    let pair = [0, at, 2, 0, at, 2 | large];
    sc!(FUTEX_REQUEUE_CALL, pair.as_ptr(), 0, 0, 0).fails(EINVAL);
    let one = [large, at, 2];
    sc!(SYS_futex_waitv, one.as_ptr(), 1, 0, 0, 0).fails(EINVAL);
}

fn sigkill_ends_all_threads() {
    let s = new_shared();
    let child = fork(|| {
        for i in 0..6usize {
            std::thread::spawn(move || {
                s[i].store(1, SeqCst);
                match i % 3 {
                    0 => loop {
                        std::hint::spin_loop();
                    },
                    1 => drop(futex(&s[100], WAIT, 0, 0)),
                    _ => loop {
                        nap(1000);
                    },
                }
            });
        }
        loop {
            let _ = sc!(SYS_pause);
        }
    });
    (0..6).for_each(|i| until_at_least(&s[i], 1));
    sc!(SYS_kill, child, SIGKILL).is(0);
    wait_signal(child, SIGKILL);
}

fn thread_stack_fault_kills_all() {
    let child = fork(|| {
        // The Rust runtime's own handler is taken away, so that the default action shows.
        on_signal(SIGSEGV, SIG_DFL, 0, 0);
        std::thread::spawn(|| {
            // SAFETY: the fault is the point.
            unsafe { std::hint::black_box(8 as *mut u8).write_volatile(1) };
        });
        loop {
            let _ = sc!(SYS_pause);
        }
    });
    wait_signal(child, SIGSEGV);
}
