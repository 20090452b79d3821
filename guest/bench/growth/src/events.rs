//! Rows about what waits and what is told: epoll, select, inotify, timers, signals, filters, SysV.

use libc::*;

use crate::cost::Cost;
use crate::sys::{at, close, create, good, path};
use crate::{MANY, Row, SOME};

pub const ROWS: &[Row] = &[
    Row { name: "epoll_add_del_among_files", sizes: MANY, run: epoll_add },
    Row { name: "epoll_wait_among_files", sizes: MANY, run: epoll_wait },
    Row { name: "epoll_add_del_among_sets", sizes: SOME, run: epoll_sets },
    Row { name: "poll_of_files", sizes: MANY, run: poll },
    Row { name: "select_of_files", sizes: [10, 100, 500, 1000], run: select },
    Row { name: "inotify_add_rm_among_watches", sizes: MANY, run: inotify_add },
    Row { name: "inotify_event_among_watches", sizes: MANY, run: inotify_event },
    Row { name: "timer_create_delete_among_timers", sizes: MANY, run: timer_create },
    Row { name: "timer_settime_among_timers", sizes: MANY, run: timer_settime },
    Row { name: "timerfd_settime_among_timers", sizes: MANY, run: timerfd },
    Row { name: "sigqueue_take_among_signals", sizes: MANY, run: signals },
    Row { name: "getpid_with_filters", sizes: [1, 4, 16, 64], run: filters },
    Row { name: "semop_among_sets", sizes: SOME, run: semop },
    Row { name: "semget_rmid_among_sets", sizes: SOME, run: semget },
    Row { name: "semop_among_semaphores", sizes: MANY, run: semop_in_set },
    Row { name: "semctl_getall_of_semaphores", sizes: MANY, run: semctl_all },
    Row { name: "shmget_rmid_among_segments", sizes: [10, 100, 1000, 3000], run: shmget },
    Row { name: "msgsnd_rcv_among_queues", sizes: SOME, run: msgsnd },
];

/// An eventfd that is ready to be read, or not.
fn eventfd(ready: usize) -> usize {
    good(SYS_eventfd2, &[ready, 0])
}

fn epoll_ctl(epoll: usize, op: i32, fd: usize) -> usize {
    let event = epoll_event { events: EPOLLIN as u32, u64: fd as u64 };
    good(SYS_epoll_ctl, &[epoll, op as usize, fd, &raw const event as usize])
}

fn epoll_of(n: usize) -> usize {
    let epoll = good(SYS_epoll_create1, &[0]);
    (0..n).for_each(|_| _ = epoll_ctl(epoll, EPOLL_CTL_ADD, eventfd(0)));
    epoll
}

fn epoll_add(cost: &mut Cost, n: usize) {
    let (epoll, fd) = (epoll_of(n), eventfd(0));
    cost.repeat(|| {
        epoll_ctl(epoll, EPOLL_CTL_ADD, fd);
        epoll_ctl(epoll, EPOLL_CTL_DEL, fd)
    });
}

fn epoll_wait(cost: &mut Cost, n: usize) {
    let (epoll, fd) = (epoll_of(n), eventfd(1));
    epoll_ctl(epoll, EPOLL_CTL_ADD, fd);
    let mut events = [epoll_event { events: 0, u64: 0 }; 8];
    let events = events.as_mut_ptr() as usize;
    cost.repeat(|| assert_eq!(good(SYS_epoll_wait, &[epoll, events, 8, 0]), 1));
}

/// One file in many sets.
fn epoll_sets(cost: &mut Cost, n: usize) {
    let (epoll, fd) = (epoll_of(0), eventfd(0));
    (0..n).for_each(|_| _ = epoll_ctl(epoll_of(0), EPOLL_CTL_ADD, fd));
    cost.repeat(|| {
        epoll_ctl(epoll, EPOLL_CTL_ADD, fd);
        epoll_ctl(epoll, EPOLL_CTL_DEL, fd)
    });
}

fn poll(cost: &mut Cost, n: usize) {
    let one =
        |i| pollfd { fd: eventfd(usize::from(i == n / 2)) as i32, events: POLLIN, revents: 0 };
    let mut fds: Vec<pollfd> = (0..n).map(one).collect();
    let fds = fds.as_mut_ptr() as usize;
    cost.repeat(|| assert_eq!(good(SYS_poll, &[fds, n, 0]), 1));
}

fn select(cost: &mut Cost, n: usize) {
    let fds: Vec<usize> = (0..n).map(|i| eventfd(usize::from(i == n / 2))).collect();
    let last = fds[n - 1];
    let mut wanted = [0u64; 16];
    fds.iter().for_each(|fd| wanted[fd / 64] |= 1 << (fd % 64));
    let zero = [0u64; 2];
    cost.repeat(|| {
        let mut set = wanted;
        let args = [last + 1, set.as_mut_ptr() as usize, 0, 0, zero.as_ptr() as usize];
        assert_eq!(good(SYS_select, &args), 1);
    });
}

/// Runs it with an inotify descriptor that watches `n` files, and one file more.
fn watching(n: usize, body: impl FnOnce(usize, &std::ffi::CStr)) {
    let inotify = good(SYS_inotify_init1, &[IN_NONBLOCK as usize]);
    let name = |i: usize| path(format_args!("watched-{i}"));
    for i in 0..n {
        close(create(&name(i)));
        good(SYS_inotify_add_watch, &[inotify, at(&name(i)), IN_MODIFY as usize]);
    }
    let other = path("watched");
    close(create(&other));
    body(inotify, &other);
    close(inotify);
    (0..n).for_each(|i| _ = good(SYS_unlink, &[at(&name(i))]));
    good(SYS_unlink, &[at(&other)]);
}

fn inotify_add(cost: &mut Cost, n: usize) {
    let mut event = [0u8; 64];
    watching(n, |inotify, other| {
        cost.repeat(|| {
            let watch = good(SYS_inotify_add_watch, &[inotify, at(other), IN_MODIFY as usize]);
            good(SYS_inotify_rm_watch, &[inotify, watch]);
            good(SYS_read, &[inotify, event.as_mut_ptr() as usize, event.len()])
        });
    });
}

fn inotify_event(cost: &mut Cost, n: usize) {
    let mut event = [0u8; 64];
    watching(n, |inotify, other| {
        good(SYS_inotify_add_watch, &[inotify, at(other), IN_MODIFY as usize]);
        let fd = create(other);
        cost.repeat(|| {
            good(SYS_pwrite64, &[fd, event.as_ptr() as usize, 1, 0]);
            good(SYS_read, &[inotify, event.as_mut_ptr() as usize, event.len()])
        });
        close(fd);
    });
}

/// Of the monotonic clock; expires without a signal.
fn timer() -> usize {
    let mut event = [0u64; 8];
    event[1] = (SIGEV_NONE as u64) << 32;
    let mut id = 0i32;
    let id_at = &raw mut id as usize;
    good(SYS_timer_create, &[CLOCK_MONOTONIC as usize, event.as_ptr() as usize, id_at]);
    id as usize
}

/// In so many seconds, once.
fn in_seconds(seconds: i64) -> [i64; 4] {
    [0, 0, seconds, 0]
}

fn set(timer: usize, seconds: i64) -> usize {
    let when = in_seconds(seconds);
    good(SYS_timer_settime, &[timer, 0, when.as_ptr() as usize, 0])
}

fn timers(n: usize) {
    (0..n).for_each(|i| _ = set(timer(), 1000 + i as i64));
}

fn timer_create(cost: &mut Cost, n: usize) {
    timers(n);
    cost.repeat(|| good(SYS_timer_delete, &[timer()]));
}

fn timer_settime(cost: &mut Cost, n: usize) {
    timers(n);
    let timer = timer();
    cost.repeat(|| {
        set(timer, 1000 + n as i64 / 2);
        set(timer, 0)
    });
}

fn timerfd(cost: &mut Cost, n: usize) {
    let set = |fd: usize, seconds: i64| {
        let when = in_seconds(seconds);
        good(SYS_timerfd_settime, &[fd, 0, when.as_ptr() as usize, 0])
    };
    let new = || good(SYS_timerfd_create, &[CLOCK_MONOTONIC as usize, 0]);
    (0..n).for_each(|i| _ = set(new(), 1000 + i as i64));
    let fd = new();
    cost.repeat(|| {
        set(fd, 1000 + n as i64 / 2);
        set(fd, 0)
    });
}

/// Signals of one number wait; one of another comes and is taken.
fn signals(cost: &mut Cost, n: usize) {
    const MANY_OF: usize = 40;
    const ONE: usize = 41;
    let mask = 1u64 << (MANY_OF - 1) | 1 << (ONE - 1);
    good(SYS_rt_sigprocmask, &[SIG_BLOCK as usize, &raw const mask as usize, 0, 8]);
    let mut info = [0i32; 32];
    info[2] = SI_QUEUE;
    let (pid, info) = (good(SYS_getpid, &[]), info.as_ptr() as usize);
    (0..n).for_each(|_| _ = good(SYS_rt_sigqueueinfo, &[pid, MANY_OF, info]));
    let wanted = 1u64 << (ONE - 1);
    cost.repeat(|| {
        good(SYS_rt_sigqueueinfo, &[pid, ONE, info]);
        good(SYS_rt_sigtimedwait, &[&raw const wanted as usize, 0, 0, 8])
    });
}

fn filters(cost: &mut Cost, n: usize) {
    const ALLOW: u32 = 0x7fff_0000;
    let insn = |code, k, jf| sock_filter { code, jt: 0, jf, k };
    let mut insns = [insn(0x20, 0, 0), insn(0x15, 1999, 1), insn(0x06, 0, 0), insn(0x06, ALLOW, 0)];
    let program = sock_fprog { len: insns.len() as u16, filter: insns.as_mut_ptr() };
    good(SYS_prctl, &[PR_SET_NO_NEW_PRIVS as usize, 1, 0, 0, 0]);
    (0..n).for_each(|_| _ = good(SYS_seccomp, &[1, 0, &raw const program as usize]));
    cost.repeat(|| good(SYS_getpid, &[]));
}

/// A System V object that is removed at the end: SYS_semctl, SYS_shmctl or SYS_msgctl.
fn remove(ctl: c_long, id: usize) {
    let remove = IPC_RMID as usize;
    // semctl has the number of a semaphore before the command.
    let args = if ctl == SYS_semctl { [id, 0, remove] } else { [id, remove, 0] };
    good(ctl, &args);
}

fn sets(n: usize) -> Vec<usize> {
    let flags = IPC_CREAT as usize | 0o600;
    (0..n).map(|i| good(SYS_semget, &[0x1000 + i, 1, flags])).collect()
}

fn semop(cost: &mut Cost, n: usize) {
    let ids = sets(n);
    let (up, down) = ([0i16, 1, 0], [0i16, -1, 0]);
    let id = ids[n / 2];
    cost.repeat(|| {
        good(SYS_semop, &[id, up.as_ptr() as usize, 1]);
        good(SYS_semop, &[id, down.as_ptr() as usize, 1])
    });
    ids.iter().for_each(|&id| remove(SYS_semctl, id));
}

fn semget(cost: &mut Cost, n: usize) {
    let ids = sets(n);
    cost.repeat(|| {
        remove(SYS_semctl, good(SYS_semget, &[0x10, 1, IPC_CREAT as usize | 0o600]));
    });
    ids.iter().for_each(|&id| remove(SYS_semctl, id));
}

/// Runs it with a set of so many semaphores.
fn with_set(n: usize, body: impl FnOnce(usize)) {
    let id = good(SYS_semget, &[0x10, n, IPC_CREAT as usize | 0o600]);
    body(id);
    remove(SYS_semctl, id);
}

fn semop_in_set(cost: &mut Cost, n: usize) {
    let middle = (n / 2) as i16;
    let (up, down) = ([middle, 1, 0], [middle, -1, 0]);
    with_set(n, |id| {
        cost.repeat(|| {
            good(SYS_semop, &[id, up.as_ptr() as usize, 1]);
            good(SYS_semop, &[id, down.as_ptr() as usize, 1])
        });
    });
}

fn semctl_all(cost: &mut Cost, n: usize) {
    const GETALL: usize = 13;
    let mut values = vec![0u16; n];
    with_set(n, |id| {
        cost.repeat(|| good(SYS_semctl, &[id, 0, GETALL, values.as_mut_ptr() as usize]));
    });
}

fn shmget(cost: &mut Cost, n: usize) {
    let get = |key: usize| good(SYS_shmget, &[key, 4096, IPC_CREAT as usize | 0o600]);
    let ids: Vec<usize> = (0..n).map(|i| get(0x1000 + i)).collect();
    cost.repeat(|| remove(SYS_shmctl, get(0x10)));
    ids.iter().for_each(|&id| remove(SYS_shmctl, id));
}

fn msgsnd(cost: &mut Cost, n: usize) {
    let get = |key: usize| good(SYS_msgget, &[key, IPC_CREAT as usize | 0o600]);
    let ids: Vec<usize> = (0..n).map(|i| get(0x1000 + i)).collect();
    let mut message = [1u64, 2];
    let (id, message) = (ids[n / 2], message.as_mut_ptr() as usize);
    cost.repeat(|| {
        good(SYS_msgsnd, &[id, message, 8, 0]);
        good(SYS_msgrcv, &[id, message, 8, 0, 0])
    });
    ids.iter().for_each(|&id| remove(SYS_msgctl, id));
}
