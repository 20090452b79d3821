//! Pipes, eventfd, timerfd, epoll, poll and select: everything one can wait on.
//!
//! Manual pages: pipe(7), splice(2), tee(2), eventfd(2), timerfd_create(2), epoll(7), poll(2),
//! select(2).

use crate::sys::*;
use crate::{sc, tests};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

tests!("channels":
    pipe_moves_bytes, pipe_atomic_writes, pipe_full_and_empty, pipe_hangup, pipe_size,
    pipe_opened_again, fifo_hangup,
    pipe_splice_tee_vmsplice, pipe_big_transfer, pipe_packet_mode, pipe_reader_blocks,
    eventfd_counts, eventfd_semaphore, eventfd_limits, eventfd_blocks, timerfd_expires,
    timerfd_interval_and_gettime,
    timers_of_the_past_are_due_at_once, timerfd_rules, epoll_level, epoll_edge, epoll_oneshot,
    epoll_exclusive_wakes, epoll_ctl_rules, epoll_nested, epoll_loop_is_refused,
    epoll_closed_fd_leaves, epoll_descriptor_of_two_files, epoll_many, epoll_between_threads,
    epoll_data_is_kept, epoll_tells_what_it_can,
    epoll_pwait_mask, poll_events, poll_of_many,
    poll_timeout_and_bad, ppoll_mask, select_sets, select_of_many,
    select_rules,
    pselect_mask, poll_wakes_on_close,
);

fn pipe_moves_bytes() {
    let (r, w) = pipe();
    write(w, b"hello");
    assert_eq!(read(r, 2), b"he");
    write(w, b"!");
    assert_eq!(read(r, 100), b"llo!");
    let mut b = [0u8; 1];
    sc!(SYS_read, w, b.as_mut_ptr(), 1).fails(EBADF);
    sc!(SYS_write, r, b.as_ptr(), 1).fails(EBADF);
    sc!(SYS_read, r, b.as_mut_ptr(), 0).is(0);
    let mut p = [0i32; 2];
    sc!(SYS_pipe2, p.as_mut_ptr(), 0x1000_0000).fails(EINVAL);
}

fn pipe_atomic_writes() {
    let (r, w) = pipe();
    let writers: Vec<i32> = (0..8u8)
        .map(|i| {
            fork(|| {
                close(r);
                (0..100).for_each(|_| write(w, &[i; 512]));
                0
            })
        })
        .collect();
    close(w);
    let mut all = Vec::new();
    loop {
        let part = read(r, 100_000);
        if part.is_empty() {
            break;
        }
        all.extend(part);
    }
    assert_eq!(all.len(), 8 * 100 * 512);
    assert!(all.chunks(512).all(|ch| ch.iter().all(|b| b == &ch[0])), "a write was torn");
    writers.into_iter().for_each(|p| wait_code(p, 0));
}

fn pipe_full_and_empty() {
    let (r, w) = pipe_flags(O_NONBLOCK);
    let mut b = [7u8; 4096];
    sc!(SYS_read, r, b.as_mut_ptr(), 1).fails(EAGAIN);
    let mut total = 0;
    while let Ok(n) = sc!(SYS_write, w, b.as_ptr(), 4096) {
        total += n;
    }
    assert_eq!(total, 65536);
    let mut p = pollfd { fd: w, events: POLLOUT, revents: 0 };
    sc!(SYS_poll, &raw mut p, 1, 0).is(0);
    assert_eq!(read(r, 4096).len(), 4096);
    sc!(SYS_poll, &raw mut p, 1, 0).is(1);
    sc!(SYS_write, w, b.as_ptr(), 4096).is(4096);
    // More than PIPE_BUF may be written in part.
    assert_eq!(read(r, 4096).len(), 4096);
    let big = vec![1u8; 20_000];
    sc!(SYS_write, w, big.as_ptr(), 20_000).is(4096);
}

fn pipe_hangup() {
    let (r, w) = pipe();
    write(w, b"x");
    close(w);
    let mut p = pollfd { fd: r, events: POLLIN, revents: 0 };
    sc!(SYS_poll, &raw mut p, 1, -1i32).is(1);
    assert_eq!(p.revents, POLLIN | POLLHUP);
    assert_eq!(read(r, 9), b"x");
    assert_eq!(read(r, 9), b"");
    let (r, w) = pipe();
    close(r);
    let mut p = pollfd { fd: w, events: POLLOUT, revents: 0 };
    sc!(SYS_poll, &raw mut p, 1, -1i32).is(1);
    assert_eq!(p.revents, POLLOUT | POLLERR);
}

/// Through /proc a pipe is opened again without waiting for an other end, as `<(command)` does.
fn pipe_opened_again() {
    let (r, w) = pipe();
    write(w, b"left");
    close(w);
    let again = open(&format!("/proc/self/fd/{r}"), O_RDONLY).fd();
    assert_eq!(read(again, 9), b"left");
    assert_eq!(read(again, 9), b"");
    close(again);
    let w = open(&format!("/proc/self/fd/{r}"), O_WRONLY).fd();
    write(w, b"more");
    assert_eq!(read(r, 9), b"more");
}

/// A reader that came when there was a writer sees it go, though none came since.
fn fifo_hangup() {
    let name = format!("{}/fifo", dir());
    let path = std::ffi::CString::new(name.as_str()).unwrap();
    sc!(SYS_mknod, path.as_ptr(), S_IFIFO | 0o600, 0).is(0);
    let early = open(&name, O_RDONLY | O_NONBLOCK).fd();
    let mut p = pollfd { fd: early, events: POLLIN, revents: 0 };
    sc!(SYS_poll, &raw mut p, 1, 0).is(0);
    let w = open(&name, O_WRONLY).fd();
    let late = open(&name, O_RDONLY).fd();
    close(w);
    for fd in [early, late] {
        let mut p = pollfd { fd, events: POLLIN, revents: 0 };
        sc!(SYS_poll, &raw mut p, 1, -1i32).is(1);
        assert_eq!(p.revents, POLLHUP);
    }
    sc!(SYS_unlink, path.as_ptr()).is(0);
}

fn pipe_size() {
    let (r, w) = pipe_flags(O_NONBLOCK);
    sc!(SYS_fcntl, r, F_GETPIPE_SZ).is(65536);
    sc!(SYS_fcntl, w, F_SETPIPE_SZ, 100_000).is(131_072);
    sc!(SYS_fcntl, r, F_GETPIPE_SZ).is(131_072);
    let mut n = 0;
    while let Ok(k) = sc!(SYS_write, w, [0u8; 4096].as_ptr(), 4096) {
        n += k;
    }
    assert_eq!(n, 131_072);
    sc!(SYS_fcntl, w, F_SETPIPE_SZ, 4096).fails(EBUSY);
    sc!(SYS_fcntl, w, F_SETPIPE_SZ, 0).fails(EBUSY);
}

fn pipe_splice_tee_vmsplice() {
    let ((r1, w1), (r2, w2)) = (pipe(), pipe());
    write(w1, b"abcdef");
    sc!(SYS_tee, r1, w2, 4, 0).is(4);
    assert_eq!(read(r2, 9), b"abcd");
    sc!(SYS_splice, r1, 0, w2, 0, 100, 0).is(6);
    assert_eq!(read(r2, 9), b"abcdef");
    sc!(SYS_splice, r1, 0, w2, 0, 1, SPLICE_F_NONBLOCK).fails(EAGAIN);
    sc!(SYS_tee, r1, w1, 1, 0).fails(EINVAL);
    let iov = [c"vm".as_ptr() as usize, 2];
    sc!(SYS_vmsplice, w1, iov.as_ptr(), 1, 0).is(2);
    assert_eq!(read(r1, 9), b"vm");
}

fn pipe_big_transfer() {
    let (r, w) = pipe();
    let n = 8 << 20;
    let child = fork(|| {
        close(r);
        let block: Vec<u8> = (0..n).map(|i| ((i * 31) >> 3) as u8).collect();
        write(w, &block);
        0
    });
    close(w);
    let mut at = 0usize;
    loop {
        let part = read(r, 70_001);
        if part.is_empty() {
            break;
        }
        assert!(part.iter().enumerate().all(|(i, &b)| b == (((at + i) * 31) >> 3) as u8));
        at += part.len();
    }
    assert_eq!(at, n);
    wait_code(child, 0);
}

fn pipe_packet_mode() {
    let (r, w) = pipe_flags(O_DIRECT);
    write(w, b"one");
    write(w, b"three");
    assert_eq!(read(r, 100), b"one");
    assert_eq!(read(r, 2), b"th", "the rest of a packet is lost");
    write(w, b"x");
    assert_eq!(read(r, 9), b"x");
}

fn pipe_reader_blocks() {
    let (r, w) = pipe();
    let s = new_shared();
    let child = fork(|| {
        let got = read(r, 1);
        i32::from(got != b"z" || s[0].load(SeqCst) != 1)
    });
    (0..50).for_each(|_| drop(sc!(SYS_sched_yield).must().to_string()));
    s[0].store(1, SeqCst);
    write(w, b"z");
    wait_code(child, 0);
}

fn ev_read(fd: i32) -> Result<u64, i32> {
    let mut v = 0u64;
    sc!(SYS_read, fd, &raw mut v, 8).map(|_| v)
}

fn ev_write(fd: i32, v: u64) -> Res {
    sc!(SYS_write, fd, &raw const v, 8)
}

fn eventfd_counts() {
    let fd = sc!(SYS_eventfd2, 3, EFD_NONBLOCK).fd();
    assert_eq!(ev_read(fd), Ok(3));
    assert_eq!(ev_read(fd), Err(EAGAIN));
    ev_write(fd, 5).is(8);
    ev_write(fd, 6).is(8);
    assert_eq!(ev_read(fd), Ok(11));
    sc!(SYS_eventfd2, 0, 0x10).fails(EINVAL);
}

fn eventfd_semaphore() {
    let fd = sc!(SYS_eventfd2, 2, EFD_NONBLOCK | EFD_SEMAPHORE).fd();
    assert_eq!((ev_read(fd), ev_read(fd), ev_read(fd)), (Ok(1), Ok(1), Err(EAGAIN)));
}

fn eventfd_limits() {
    let fd = sc!(SYS_eventfd2, 0, EFD_NONBLOCK).fd();
    ev_write(fd, u64::MAX).fails(EINVAL);
    ev_write(fd, u64::MAX - 1).is(8);
    ev_write(fd, 1).fails(EAGAIN);
    let mut p = pollfd { fd, events: POLLIN | POLLOUT, revents: 0 };
    sc!(SYS_poll, &raw mut p, 1, 0).is(1);
    assert_eq!(p.revents, POLLIN);
    let mut b = 0u32;
    sc!(SYS_read, fd, &raw mut b, 4).fails(EINVAL);
    sc!(SYS_write, fd, &raw mut b, 4).fails(EINVAL);
}

fn eventfd_blocks() {
    let fd = sc!(SYS_eventfd2, 0, 0).fd();
    let child = fork(|| i32::from((0..100).any(|_| ev_read(fd).is_err())));
    let mut status = 0;
    until(|| {
        ev_write(fd, 1).is(8);
        sc!(SYS_wait4, child, &raw mut status, WNOHANG, 0) == Ok(child as usize)
    });
    assert_eq!(WEXITSTATUS(status), 0);
}

fn set_timer(fd: i32, flags: i32, interval_ns: i64, first_ns: i64) {
    let t = [0, interval_ns, first_ns / 1_000_000_000, first_ns % 1_000_000_000];
    sc!(SYS_timerfd_settime, fd, flags, t.as_ptr(), 0).is(0);
}

fn timerfd_expires() {
    let fd = sc!(SYS_timerfd_create, CLOCK_MONOTONIC, 0).fd();
    let start = std::time::Instant::now();
    set_timer(fd, 0, 0, 20_000_000);
    assert_eq!(ev_read(fd), Ok(1));
    assert!(start.elapsed().as_millis() >= 20, "early");
    // An absolute time that is past expires at once.
    set_timer(fd, TFD_TIMER_ABSTIME, 0, 1);
    assert_eq!(ev_read(fd), Ok(1));
}

/// Linux may need an interrupt for it; here the call itself sees that the time has passed.
fn timers_of_the_past_are_due_at_once() {
    let settles = |done: &dyn Fn() -> bool| if is_limen() { assert!(done()) } else { until(done) };
    let fd = sc!(SYS_timerfd_create, CLOCK_REALTIME, TFD_NONBLOCK).fd();
    let event = [0u64, SIGUSR1 as u64, 0, 0, 0, 0, 0, 0];
    let mut id = 0i32;
    sc!(SYS_timer_create, CLOCK_MONOTONIC, event.as_ptr(), &raw mut id).is(0);
    sigmask(SIG_BLOCK, bit(SIGUSR1));
    let set = bit(SIGUSR1);
    let past = [0u64, 0, 0, 1000];
    for _ in 0..500 {
        set_timer(fd, TFD_TIMER_ABSTIME, 0, 1000);
        settles(&|| ev_read(fd) == Ok(1));
        sc!(SYS_timer_settime, id, TIMER_ABSTIME, past.as_ptr(), 0).is(0);
        settles(&|| {
            sc!(SYS_rt_sigtimedwait, &raw const set, 0, [0u64; 2].as_ptr(), 8)
                == Ok(SIGUSR1 as usize)
        });
    }
}

fn timerfd_interval_and_gettime() {
    let fd = sc!(SYS_timerfd_create, CLOCK_MONOTONIC, TFD_NONBLOCK).fd();
    assert_eq!(ev_read(fd), Err(EAGAIN));
    set_timer(fd, 0, 1_000_000, 1_000_000);
    let mut p = pollfd { fd, events: POLLIN, revents: 0 };
    let mut total = 0;
    while total < 10 {
        sc!(SYS_poll, &raw mut p, 1, -1i32).is(1);
        total += ev_read(fd).unwrap();
    }
    let mut t = [0i64; 4];
    sc!(SYS_timerfd_gettime, fd, t.as_mut_ptr()).is(0);
    assert_eq!((t[0], t[1]), (0, 1_000_000));
    set_timer(fd, 0, 0, 0);
    sc!(SYS_timerfd_gettime, fd, t.as_mut_ptr()).is(0);
    assert_eq!(t, [0; 4]);
    assert_eq!(ev_read(fd), Err(EAGAIN));
}

fn timerfd_rules() {
    sc!(SYS_timerfd_create, 99, 0).fails(EINVAL);
    sc!(SYS_timerfd_create, CLOCK_MONOTONIC, 0x10).fails(EINVAL);
    let fd = sc!(SYS_timerfd_create, CLOCK_REALTIME, TFD_CLOEXEC).fd();
    let bad = [0i64, 0, 0, 1_000_000_000];
    sc!(SYS_timerfd_settime, fd, 0, bad.as_ptr(), 0).fails(EINVAL);
    sc!(SYS_timerfd_settime, 0, 0, [0i64; 4].as_ptr(), 0).fails(EINVAL);
}

#[repr(C, packed)]
#[derive(Clone, Copy, Default)]
struct Event {
    events: u32,
    data: u64,
}

fn ep_new() -> i32 {
    sc!(SYS_epoll_create1, EPOLL_CLOEXEC).fd()
}

fn ep_ctl(ep: i32, op: i32, fd: i32, events: i32, data: u64) -> Res {
    let e = Event { events: events as u32, data };
    sc!(SYS_epoll_ctl, ep, op, fd, &raw const e)
}

/// (events, data) of what is ready within `ms`.
fn ep_wait(ep: i32, max: usize, ms: i32) -> Vec<(u32, u64)> {
    let mut evs = [Event::default(); 64];
    let n = sc!(SYS_epoll_wait, ep, evs.as_mut_ptr(), max, ms).must();
    evs[..n].iter().map(|e| (e.events, e.data)).collect()
}

const IN: i32 = EPOLLIN;

fn epoll_level() {
    let (ep, (r, w)) = (ep_new(), pipe());
    ep_ctl(ep, EPOLL_CTL_ADD, r, IN, 42).is(0);
    assert!(ep_wait(ep, 9, 0).is_empty());
    write(w, b"ab");
    for _ in 0..3 {
        assert_eq!(ep_wait(ep, 9, -1), [(IN as u32, 42)]);
    }
    read(r, 9);
    assert!(ep_wait(ep, 9, 0).is_empty());
    close(w);
    assert_eq!(ep_wait(ep, 9, -1), [(EPOLLHUP as u32, 42)]);
}

fn epoll_edge() {
    let (ep, (r, w)) = (ep_new(), pipe());
    ep_ctl(ep, EPOLL_CTL_ADD, r, IN | EPOLLET, 1).is(0);
    write(w, b"a");
    assert_eq!(ep_wait(ep, 9, -1).len(), 1);
    assert!(ep_wait(ep, 9, 0).is_empty(), "no new edge");
    write(w, b"b");
    assert_eq!(ep_wait(ep, 9, -1).len(), 1, "new data is an edge though old was not read");
    ep_ctl(ep, EPOLL_CTL_MOD, r, IN | EPOLLET, 2).is(0);
    assert_eq!(ep_wait(ep, 9, -1), [(IN as u32, 2)], "MOD looks again");
}

fn epoll_oneshot() {
    let (ep, (r, w)) = (ep_new(), pipe());
    ep_ctl(ep, EPOLL_CTL_ADD, r, IN | EPOLLONESHOT, 1).is(0);
    write(w, b"a");
    assert_eq!(ep_wait(ep, 9, -1).len(), 1);
    write(w, b"b");
    assert!(ep_wait(ep, 9, 0).is_empty());
    ep_ctl(ep, EPOLL_CTL_MOD, r, IN | EPOLLONESHOT, 1).is(0);
    assert_eq!(ep_wait(ep, 9, -1).len(), 1);
}

fn epoll_exclusive_wakes() {
    let (r, w) = pipe();
    let kids: Vec<i32> = (0..3)
        .map(|_| {
            fork(|| {
                let ep = ep_new();
                ep_ctl(ep, EPOLL_CTL_ADD, r, IN | EPOLLEXCLUSIVE, 1).is(0);
                // Every one gets a byte in the end: a wake-up may be shared but never lost.
                loop {
                    ep_wait(ep, 1, -1);
                    let mut b = 0u8;
                    if sc!(SYS_read, r, &raw mut b, 1) == Ok(1) {
                        return 0;
                    }
                }
            })
        })
        .collect();
    sc!(SYS_fcntl, r, F_SETFL, O_NONBLOCK).is(0);
    (0..3).for_each(|_| write(w, b"x"));
    kids.into_iter().for_each(|p| wait_code(p, 0));
    let ep = ep_new();
    ep_ctl(ep, EPOLL_CTL_ADD, r, IN | EPOLLEXCLUSIVE | EPOLLONESHOT, 1).fails(EINVAL);
}

fn epoll_ctl_rules() {
    let (ep, (r, _w)) = (ep_new(), pipe());
    ep_ctl(ep, EPOLL_CTL_MOD, r, IN, 0).fails(ENOENT);
    ep_ctl(ep, EPOLL_CTL_DEL, r, IN, 0).fails(ENOENT);
    ep_ctl(ep, EPOLL_CTL_ADD, r, IN, 0).is(0);
    ep_ctl(ep, EPOLL_CTL_ADD, r, IN, 0).fails(EEXIST);
    ep_ctl(ep, EPOLL_CTL_ADD, 9999, IN, 0).fails(EBADF);
    ep_ctl(ep, EPOLL_CTL_ADD, ep, IN, 0).fails(EINVAL);
    ep_ctl(r, EPOLL_CTL_ADD, ep, IN, 0).fails(EINVAL);
    ep_ctl(ep, 77, r, IN, 0).fails(EINVAL);
    let file = open("/proc/self/exe", O_RDONLY).fd();
    ep_ctl(ep, EPOLL_CTL_ADD, file, IN, 0).fails(EPERM);
    let mut e = Event::default();
    sc!(SYS_epoll_wait, ep, &raw mut e, 0, 0).fails(EINVAL);
    sc!(SYS_epoll_wait, r, &raw mut e, 1, 0).fails(EINVAL);
    sc!(SYS_epoll_create1, 1).fails(EINVAL);
    sc!(SYS_epoll_create, 0).fails(EINVAL);
    sc!(SYS_epoll_ctl, ep, EPOLL_CTL_DEL, r, 0).is(0);
}

fn epoll_nested() {
    let (outer, inner, (r, w)) = (ep_new(), ep_new(), pipe());
    ep_ctl(inner, EPOLL_CTL_ADD, r, IN, 1).is(0);
    ep_ctl(outer, EPOLL_CTL_ADD, inner, IN, 2).is(0);
    assert!(ep_wait(outer, 9, 0).is_empty());
    write(w, b"x");
    assert_eq!(ep_wait(outer, 9, -1), [(IN as u32, 2)]);
    assert_eq!(ep_wait(inner, 9, -1), [(IN as u32, 1)]);
    read(r, 1);
    assert!(ep_wait(outer, 9, 0).is_empty());
}

fn epoll_loop_is_refused() {
    let eps: Vec<i32> = (0..3).map(|_| ep_new()).collect();
    ep_ctl(eps[0], EPOLL_CTL_ADD, eps[1], IN, 0).is(0);
    ep_ctl(eps[1], EPOLL_CTL_ADD, eps[2], IN, 0).is(0);
    ep_ctl(eps[2], EPOLL_CTL_ADD, eps[0], IN, 0).fails(ELOOP);
    let chain: Vec<i32> = (0..8).map(|_| ep_new()).collect();
    let results: Vec<Res> =
        chain.windows(2).map(|w| ep_ctl(w[1], EPOLL_CTL_ADD, w[0], IN, 0)).collect();
    assert_eq!(results.iter().find(|r| r.is_err()), Some(&Err(ELOOP)), "too deep");
}

fn epoll_closed_fd_leaves() {
    let (ep, (r, w)) = (ep_new(), pipe());
    let dup = sc!(SYS_dup, r).fd();
    ep_ctl(ep, EPOLL_CTL_ADD, r, IN, 9).is(0);
    write(w, b"x");
    close(r);
    assert_eq!(ep_wait(ep, 9, 0).len(), 1, "the open file lives on in its duplicate");
    close(dup);
    assert!(ep_wait(ep, 9, 0).is_empty());
}

fn epoll_many() {
    let ep = ep_new();
    let pipes: Vec<_> = (0..200).map(|_| pipe()).collect();
    for (i, (r, _)) in pipes.iter().enumerate() {
        ep_ctl(ep, EPOLL_CTL_ADD, *r, IN, i as u64).is(0);
    }
    for (i, (_, w)) in pipes.iter().enumerate().filter(|(i, _)| i % 3 == 0) {
        write(*w, &[i as u8]);
    }
    let mut seen = std::collections::BTreeSet::new();
    // Level-triggered entries go round, so that a small buffer sees all of them in time.
    for _ in 0..60 {
        seen.extend(ep_wait(ep, 5, 0).into_iter().map(|e| e.1));
    }
    assert_eq!(seen.len(), 67);
    assert!(seen.iter().all(|i| i % 3 == 0));
}

/// A descriptor that was closed, while its file lives on, and stands for another file then.
fn epoll_descriptor_of_two_files() {
    let ep = ep_new();
    let ((r, w), (r2, w2)) = (pipe(), pipe());
    let kept = sc!(SYS_dup, r).fd();
    ep_ctl(ep, EPOLL_CTL_ADD, r, IN, 1).is(0);
    sc!(SYS_dup2, r2, r).is(r as usize);
    ep_ctl(ep, EPOLL_CTL_ADD, r, IN, 2).is(0);
    ep_ctl(ep, EPOLL_CTL_ADD, r, IN, 3).fails(EEXIST);
    write(w, b"x");
    write(w2, b"x");
    let mut seen: Vec<u64> = ep_wait(ep, 9, 0).into_iter().map(|e| e.1).collect();
    seen.sort_unstable();
    assert_eq!(seen, [1, 2]);
    // The descriptor means the second file now, and only that one leaves.
    ep_ctl(ep, EPOLL_CTL_DEL, r, 0, 0).is(0);
    ep_ctl(ep, EPOLL_CTL_DEL, r, 0, 0).fails(ENOENT);
    assert_eq!(ep_wait(ep, 9, 0), [(IN as u32, 1)]);
    ep_ctl(ep, EPOLL_CTL_ADD, r, IN, 4).is(0);
    close(kept);
    assert_eq!(ep_wait(ep, 9, 0), [(IN as u32, 4)]);
    ep_ctl(ep, EPOLL_CTL_MOD, r, IN, 5).is(0);
    assert_eq!(ep_wait(ep, 9, 0), [(IN as u32, 5)]);
}

fn epoll_between_threads() {
    let (ep, (r, w)) = (ep_new(), pipe());
    let h = std::thread::spawn(move || ep_wait(ep, 9, -1));
    // Added after the wait began, perhaps; either way it must wake.
    ep_ctl(ep, EPOLL_CTL_ADD, r, IN, 5).is(0);
    write(w, b"x");
    assert_eq!(h.join().unwrap(), [(IN as u32, 5)]);
}

fn epoll_data_is_kept() {
    let (ep, (_r, w)) = (ep_new(), pipe());
    ep_ctl(ep, EPOLL_CTL_ADD, w, EPOLLOUT, 0x1122_3344_5566_7788).is(0);
    assert_eq!(ep_wait(ep, 1, -1), [(EPOLLOUT as u32, 0x1122_3344_5566_7788)]);
}

static GOT: AtomicU32 = AtomicU32::new(0);

extern "C" fn got(_: i32) {
    GOT.fetch_add(1, SeqCst);
}

fn pend_usr1() -> u64 {
    on_signal(SIGUSR1, got as *const () as usize, 0, 0);
    sigmask(SIG_BLOCK, bit(SIGUSR1));
    sc!(SYS_kill, pid(), SIGUSR1).is(0);
    !bit(SIGUSR1)
}

fn epoll_pwait_mask() {
    let mask = pend_usr1();
    let (ep, mut e) = (ep_new(), Event::default());
    sc!(SYS_epoll_pwait, ep, &raw mut e, 1, -1i32, &raw const mask, 8).fails(EINTR);
    assert_eq!(GOT.load(SeqCst), 1);
    assert_eq!(sigmask(SIG_BLOCK, 0), bit(SIGUSR1));
    sc!(SYS_epoll_pwait, ep, &raw mut e, 1, 0, &raw const mask, 4).fails(EINVAL);
}

fn poll_events() {
    let (r, w) = pipe();
    let mut p = [
        pollfd { fd: r, events: POLLIN, revents: 9 },
        pollfd { fd: w, events: POLLOUT, revents: 9 },
        pollfd { fd: -1, events: POLLIN, revents: 9 },
        pollfd { fd: 9999, events: POLLIN, revents: 9 },
    ];
    sc!(SYS_poll, p.as_mut_ptr(), 4, -1i32).is(2);
    assert_eq!(p.map(|p| p.revents), [0, POLLOUT, 0, POLLNVAL]);
    let f = open("/proc/self/exe", O_RDONLY).fd();
    let mut p = pollfd { fd: f, events: POLLIN | POLLOUT, revents: 0 };
    sc!(SYS_poll, &raw mut p, 1, -1i32).is(1);
    assert_eq!(p.revents, POLLIN | POLLOUT, "a file is always ready");
}

/// More than are looked up at once, with gaps, closed ones, and one twice.
fn poll_of_many() {
    let pipes: Vec<_> = (0..25).map(|_| pipe()).collect();
    let mut list: Vec<pollfd> = Vec::new();
    for (i, (r, w)) in pipes.iter().enumerate() {
        let fd = if i % 5 == 4 { -1 } else { *r };
        list.push(pollfd { fd, events: POLLIN, revents: 0x55 });
        list.push(pollfd { fd: *w, events: POLLOUT, revents: 0x55 });
    }
    list.push(pollfd { fd: pipes[3].0, events: POLLIN, revents: 0x55 });
    write(pipes[3].1, b"x");
    close(pipes[20].1);
    sc!(SYS_poll, list.as_mut_ptr(), list.len(), 0).is(25 + 3);
    for (i, entry) in list.iter().enumerate() {
        let expected = match (i / 2, i % 2) {
            (3, 0) | (25, 0) => POLLIN,
            (20, 0) => POLLHUP,
            (20, 1) => POLLNVAL,
            (_, 1) => POLLOUT,
            _ => 0,
        };
        assert_eq!(entry.revents, expected, "entry {i}");
    }
}

fn poll_timeout_and_bad() {
    let start = std::time::Instant::now();
    sc!(SYS_poll, 0, 0, 30).is(0);
    assert!(start.elapsed().as_millis() >= 30, "early");
    sc!(SYS_poll, 8, 1, 0).fails(EFAULT);
    sc!(SYS_poll, 0, 1 << 30, 0).fails(EINVAL);
    let bad = timespec { tv_sec: 0, tv_nsec: -1 };
    sc!(SYS_ppoll, 0, 0, &raw const bad, 0, 8).fails(EINVAL);
}

fn ppoll_mask() {
    let mask = pend_usr1();
    sc!(SYS_ppoll, 0, 0, 0, &raw const mask, 8).fails(EINTR);
    assert_eq!((GOT.load(SeqCst), sigmask(SIG_BLOCK, 0)), (1, bit(SIGUSR1)));
}

fn select_sets() {
    let (r, w) = pipe();
    let (mut rs, mut ws) = ([0u64; 16], [0u64; 16]);
    rs[r as usize / 64] |= 1 << (r % 64);
    ws[w as usize / 64] |= 1 << (w % 64);
    let n = r.max(w) + 1;
    sc!(SYS_select, n, rs.as_mut_ptr(), ws.as_mut_ptr(), 0, 0).is(1);
    assert_eq!((rs[r as usize / 64], ws[w as usize / 64]), (0, 1 << (w % 64)));
    write(w, b"x");
    rs[r as usize / 64] |= 1 << (r % 64);
    sc!(SYS_select, n, rs.as_mut_ptr(), ws.as_mut_ptr(), 0, 0).is(2);
    let mut tv = [0i64, 10_000];
    sc!(SYS_select, 0, 0, 0, 0, tv.as_mut_ptr()).is(0);
    assert_eq!(tv, [0, 0], "what is left");
}

/// More than are looked up at once.
fn select_of_many() {
    let pipes: Vec<_> = (0..60).map(|_| pipe()).collect();
    let bits = |fds: &mut dyn Iterator<Item = i32>| {
        let mut set = [0u64; 16];
        fds.for_each(|fd| set[fd as usize / 64] |= 1 << (fd % 64));
        set
    };
    let mut rs = bits(&mut pipes.iter().map(|p| p.0));
    let mut ws = bits(&mut pipes.iter().map(|p| p.1));
    write(pipes[7].1, b"x");
    write(pipes[59].1, b"x");
    sc!(SYS_select, 1024, rs.as_mut_ptr(), ws.as_mut_ptr(), 0, 0).is(62);
    assert_eq!(rs, bits(&mut [pipes[7].0, pipes[59].0].into_iter()));
    assert_eq!(ws, bits(&mut pipes.iter().map(|p| p.1)));
    // One that is closed fails the call, wherever it stands, and changes no set.
    for closed in [0, 31, 58] {
        close(pipes[closed].0);
        let all = bits(&mut pipes.iter().map(|p| p.0));
        let mut rs = all;
        sc!(SYS_select, 1024, rs.as_mut_ptr(), 0, 0, 0).fails(EBADF);
        assert_eq!(rs, all);
        sc!(SYS_dup2, pipes[1].0, pipes[closed].0).is(pipes[closed].0 as usize);
    }
}

fn select_rules() {
    let mut set = [0u64; 16];
    set[0] = 1 << 50;
    sc!(SYS_select, 51, set.as_mut_ptr(), 0, 0, 0).fails(EBADF);
    sc!(SYS_select, -1i32, 0, 0, 0, 0).fails(EINVAL);
    let tv = [-1i64, 0];
    sc!(SYS_select, 0, 0, 0, 0, tv.as_ptr()).fails(EINVAL);
}

fn pselect_mask() {
    let mask = pend_usr1();
    let arg = [&raw const mask as usize, 8];
    sc!(SYS_pselect6, 0, 0, 0, 0, 0, arg.as_ptr()).fails(EINTR);
    assert_eq!((GOT.load(SeqCst), sigmask(SIG_BLOCK, 0)), (1, bit(SIGUSR1)));
}

fn poll_wakes_on_close() {
    let (r, w) = pipe();
    let child = fork(|| {
        close(w);
        let mut p = pollfd { fd: r, events: POLLIN, revents: 0 };
        sc!(SYS_poll, &raw mut p, 1, -1i32).is(1);
        i32::from(p.revents != POLLHUP)
    });
    close(w);
    wait_code(child, 0);
}

/// Events that do not fit what may be written are told by the next wait; the first ones are told.
fn epoll_tells_what_it_can() {
    const EVENT: usize = 12;
    let ep = ep_new();
    let counters: Vec<i32> = (0..20).map(|_| sc!(SYS_eventfd2, 1, 0).fd()).collect();
    for (data, &fd) in counters.iter().enumerate() {
        ep_ctl(ep, EPOLL_CTL_ADD, fd, IN | if data < 10 { EPOLLONESHOT } else { 0 }, data as u64)
            .is(0);
    }
    let private = MAP_PRIVATE | MAP_ANONYMOUS;
    let pages = sc!(SYS_mmap, 0, 8192, PROT_READ | PROT_WRITE, private, -1i32, 0).must();
    sc!(SYS_mprotect, pages + 4096, 4096, PROT_NONE).is(0);
    let room = |events: usize| pages + 4096 - events * EVENT - EVENT / 2;
    sc!(SYS_epoll_wait, ep, room(0), 20, 0).fails(EFAULT);
    sc!(SYS_epoll_wait, ep, room(5), 20, 0).is(5);
    // Five of those that are told once are left, and those that are told each time.
    let mut left: Vec<u64> = ep_wait(ep, 64, 0).iter().map(|event| event.1).collect();
    left.sort_unstable();
    assert_eq!(left.len(), 15, "{left:?}");
    assert!((10..20).all(|data| left.contains(&data)), "{left:?}");
    let again: Vec<u64> = ep_wait(ep, 64, 0).iter().map(|event| event.1).collect();
    assert_eq!(again.len(), 10, "{again:?}");
    assert!(again.iter().all(|data| *data >= 10), "{again:?}");
    sc!(SYS_munmap, pages, 8192).is(0);
}
