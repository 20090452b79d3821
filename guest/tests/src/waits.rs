//! What ends a wait: every call that can block, with what it waits for, with a signal, with a
//! signal whose handler says SA_RESTART, and with the end of whoever could have ended it.
//!
//! The first part is a table: each row blocks a thread in a call, which is seen in /proc, and then
//! ends it in each way (signal(7), "Interruption of system calls"). The second part is about single
//! calls that return at once where one could think they wait.

use crate::sys::*;
use crate::{sc, tests};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

tests!("waits":
    every_wait_ends_with_its_event, every_wait_ends_with_a_signal, every_wait_restarts_or_not,
    splice_moves_what_fits, splice_checks_its_target_first, vmsplice_without_waiting,
    tee_without_waiting, waitid_for_stops_of_a_zombie, waitid_when_the_last_child_ends,
    death_signal_of_a_thread, death_signal_after_exec_of_a_thread, negative_socket_timeouts,
    datagram_sockets_after_shutdown,
);

/// What a row's functions share.
struct World {
    /// Two descriptors, or whatever the row makes of them.
    a: i32,
    b: i32,
    words: &'static [AtomicU32; 1024],
}

impl World {
    fn word(&self) -> &'static AtomicU32 {
        &self.words[512]
    }
}

/// What a signal's handler with SA_RESTART does to a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Restart {
    /// It goes on waiting.
    Goes,
    /// It gives EINTR.
    Gives,
}
use Restart::{Gives, Goes};

struct Row {
    name: &'static str,
    /// Makes what it takes; two descriptors.
    make: fn() -> (i32, i32),
    /// The call that blocks.
    call: fn(&World) -> Res,
    /// Brings about what it waits for.
    end: fn(&World),
    /// What it gives then.
    gives: Res,
    restart: Restart,
}

macro_rules! rows {
    ($($name:literal: $make:expr, $call:expr, $end:expr, $gives:expr, $restart:ident;)*) => {
        &[$(Row {
            name: $name, make: $make, call: $call, end: $end, gives: $gives, restart: $restart,
        }),*]
    };
}

const FOREVER: usize = 0;

fn nothing() -> (i32, i32) {
    (-1, -1)
}

fn full_pipe() -> (i32, i32) {
    let (r, w) = pipe();
    sc!(SYS_fcntl, w, F_SETFL, O_NONBLOCK).must();
    while sc!(SYS_write, w, [7u8; 4096].as_ptr(), 4096).is_ok() {}
    sc!(SYS_fcntl, w, F_SETFL, 0).must();
    (r, w)
}

fn sockets(kind: i32) -> (i32, i32) {
    let mut p = [0i32; 2];
    sc!(SYS_socketpair, AF_UNIX, kind, 0, p.as_mut_ptr()).is(0);
    (p[0], p[1])
}

fn full_socket(kind: i32) -> (i32, i32) {
    let (a, b) = sockets(kind);
    for size in [4096, 16] {
        while sc!(SYS_sendto, a, [7u8; 4096].as_ptr(), size, MSG_DONTWAIT, 0, 0).is_ok() {}
    }
    (a, b)
}

fn address(name: &str) -> Vec<u8> {
    let mut bytes = (AF_UNIX as u16).to_ne_bytes().to_vec();
    bytes.push(0);
    bytes.extend(format!("{name}-{}", pid()).bytes());
    bytes
}

fn listener() -> (i32, i32) {
    let s = sc!(SYS_socket, AF_UNIX, SOCK_STREAM, 0).fd();
    let at = address("limen-waits");
    sc!(SYS_bind, s, at.as_ptr(), at.len()).is(0);
    sc!(SYS_listen, s, 0).is(0);
    let client = sc!(SYS_socket, AF_UNIX, SOCK_STREAM, 0).fd();
    (s, client)
}

/// A listener whose backlog is full, and a client to wait in connect(2).
fn full_listener() -> (i32, i32) {
    let (s, first) = listener();
    sc!(SYS_fcntl, first, F_SETFL, O_NONBLOCK).must();
    loop {
        let at = address("limen-waits");
        let next = sc!(SYS_socket, AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0).fd();
        if sc!(SYS_connect, next, at.as_ptr(), at.len()).is_err() {
            sc!(SYS_fcntl, next, F_SETFL, 0).must();
            return (s, next);
        }
    }
}

fn connect_to_full(w: &World) -> Res {
    let at = address("limen-waits");
    sc!(SYS_connect, w.b, at.as_ptr(), at.len())
}

/// A process that sleeps until it is killed.
fn sleeper() -> (i32, i32) {
    let child = fork(|| {
        loop {
            let _ = sc!(SYS_pause);
        }
    });
    (child, -1)
}

fn kill_sleeper(w: &World) {
    sc!(SYS_kill, w.a, SIGKILL).is(0);
}

/// A file, and a process that has locked it.
fn locked_file() -> (i32, i32) {
    let fd = open(&format!("{}/f", dir()), O_RDWR | O_CREAT).fd();
    let (r, w) = pipe();
    let child = fork(|| {
        let own = open(&format!("/proc/self/fd/{fd}"), O_RDWR).fd();
        sc!(SYS_flock, own, LOCK_EX).is(0);
        sc!(SYS_fcntl, own, F_SETLK, &raw const WHOLE).is(0);
        write(w, b"x");
        loop {
            let _ = sc!(SYS_pause);
        }
    });
    read(r, 1);
    (child, fd)
}

static WHOLE: flock = flock { l_type: F_WRLCK as i16, l_whence: 0, l_start: 0, l_len: 0, l_pid: 0 };

fn fifo() -> (i32, i32) {
    let path = c(&fifo_path());
    let _ = sc!(SYS_unlink, path.as_ptr());
    sc!(SYS_mknod, path.as_ptr(), S_IFIFO | 0o644, 0).is(0);
    (-1, -1)
}

fn fifo_path() -> String {
    format!("{}/limen-{}-fifo", place("/tmp"), test_number())
}

fn open_fifo(flags: i32) -> Res {
    let path = c(&fifo_path());
    sc!(SYS_openat, AT_FDCWD, path.as_ptr(), flags, 0).map(|_| 0)
}

fn eventfd(_: ()) -> (i32, i32) {
    (sc!(SYS_eventfd2, 0, 0).fd(), -1)
}

fn full_eventfd() -> (i32, i32) {
    let fd = sc!(SYS_eventfd2, 0, 0).fd();
    write(fd, &(u64::MAX - 1).to_ne_bytes());
    (fd, -1)
}

fn timerfd() -> (i32, i32) {
    (sc!(SYS_timerfd_create, CLOCK_MONOTONIC, 0).fd(), -1)
}

fn fire(w: &World) {
    let spec = [0u64, 0, 0, 1];
    sc!(SYS_timerfd_settime, w.a, 0, spec.as_ptr(), 0).is(0);
}

fn signalfd() -> (i32, i32) {
    let set = bit(SIGUSR2);
    sigmask(SIG_BLOCK, set);
    (sc!(SYS_signalfd4, -1i32, &raw const set, 8, 0).fd(), -1)
}

fn own_signal(_: &World) {
    sc!(SYS_kill, pid(), SIGUSR2).is(0);
}

fn blocked_signal() -> (i32, i32) {
    sigmask(SIG_BLOCK, bit(SIGUSR2));
    (-1, -1)
}

fn inotify() -> (i32, i32) {
    let fd = sc!(SYS_inotify_init1, 0).fd();
    let at = dir();
    sc!(SYS_inotify_add_watch, fd, c(&at).as_ptr(), IN_CREATE).must();
    let dir = open(&at, O_RDONLY | O_DIRECTORY).fd();
    (fd, dir)
}

fn make_file(w: &World) {
    sc!(SYS_mkdirat, w.b, c"x".as_ptr(), 0o755).is(0);
}

fn poll_set() -> (i32, i32) {
    let (r, w) = pipe();
    (r, w)
}

fn epoll() -> (i32, i32) {
    let (r, w) = pipe();
    let ep = sc!(SYS_epoll_create1, 0).fd();
    let mut event = epoll_event { events: EPOLLIN as u32, u64: 0 };
    sc!(SYS_epoll_ctl, ep, EPOLL_CTL_ADD, r, &raw mut event).is(0);
    (ep, w)
}

fn write_b(w: &World) {
    write(w.b, b"x");
}

fn close_b(w: &World) {
    close(w.b);
}

fn close_a(w: &World) {
    close(w.a);
}

fn drain_a(w: &World) {
    read(w.a, 8192);
}

fn drain_b(w: &World) {
    while sc!(SYS_recvfrom, w.b, [0u8; 8192].as_mut_ptr(), 8192, MSG_DONTWAIT, 0, 0).is_ok() {}
}

fn wake_word(w: &World) {
    w.word().store(1, SeqCst);
    until(|| sc!(SYS_futex, w.word().as_ptr(), FUTEX_WAKE, 1, 0, 0, 0) != Ok(0));
}

fn read_1(fd: i32) -> Res {
    sc!(SYS_read, fd, [0u8; 64].as_mut_ptr(), 1)
}

fn read_8(fd: i32) -> Res {
    sc!(SYS_read, fd, [0u8; 8].as_mut_ptr(), 8)
}

fn recv(fd: i32) -> Res {
    sc!(SYS_recvfrom, fd, [0u8; 64].as_mut_ptr(), 64, 0, 0, 0)
}

fn semaphore() -> (i32, i32) {
    (sc!(SYS_semget, IPC_PRIVATE, 1, 0o600).fd(), -1)
}

fn remove_semaphore(w: &World) {
    sc!(SYS_semctl, w.a, 0, IPC_RMID, 0).is(0);
}

fn take_semaphore(w: &World, time: usize) -> Res {
    let op = [0u16, u16::MAX, 0];
    sc!(SYS_semtimedop, w.a, op.as_ptr(), 1, time)
}

fn queue() -> (i32, i32) {
    (sc!(SYS_msgget, IPC_PRIVATE, 0o600).fd(), -1)
}

fn full_queue() -> (i32, i32) {
    let (id, _) = queue();
    let message = [1u64; 64];
    while sc!(SYS_msgsnd, id, message.as_ptr(), 256, IPC_NOWAIT).is_ok() {}
    (id, -1)
}

fn remove_queue(w: &World) {
    sc!(SYS_msgctl, w.a, IPC_RMID, 0).is(0);
}

fn long() -> [u64; 2] {
    [100_000, 0]
}

const WAITV: i64 = 449;

fn waitv(w: &World) -> Res {
    // val, uaddr, flags (FUTEX2_SIZE_U32), reserved.
    let entry = [0u64, w.word().as_ptr() as u64, 2];
    sc!(WAITV, entry.as_ptr(), 1, 0, 0, 0)
}

fn iov(bytes: &mut [u8]) -> [usize; 2] {
    [bytes.as_mut_ptr() as usize, bytes.len()]
}

fn two_pipes() -> (i32, i32) {
    pipe()
}

fn splice_in(w: &World) -> Res {
    let (_r, out) = pipe();
    sc!(SYS_splice, w.a, 0, out, 0, 16, 0)
}

fn tee_in(w: &World) -> Res {
    let (_r, out) = pipe();
    sc!(SYS_tee, w.a, out, 16, 0)
}

fn splice_out(w: &World) -> Res {
    let (r, fill) = pipe();
    write(fill, b"abc");
    sc!(SYS_splice, r, 0, w.b, 0, 16, 0)
}

fn vmsplice(fd: i32) -> Res {
    let mut bytes = [1u8; 16];
    sc!(SYS_vmsplice, fd, iov(&mut bytes).as_ptr(), 1, 0)
}

fn sendfile_out(w: &World) -> Res {
    let fd = open("/proc/self/exe", O_RDONLY).fd();
    sc!(SYS_sendfile, w.b, fd, 0, 16)
}

const ROWS: &[Row] = rows! {
    "read of a pipe": pipe, |w| read_1(w.a), write_b, Ok(1), Goes;
    "read of a pipe whose writer closes": pipe, |w| read_1(w.a), close_b, Ok(0), Goes;
    "write to a pipe":
        full_pipe, |w| sc!(SYS_write, w.b, [1u8; 16].as_ptr(), 16), drain_a, Ok(16), Goes;
    "write to a pipe whose reader closes":
        full_pipe, |w| sc!(SYS_write, w.b, [1u8; 16].as_ptr(), 16),
        close_a, Err(EPIPE), Goes;
    "open of a FIFO to read":
        fifo, |_| open_fifo(O_RDONLY), |_| { open_fifo(O_WRONLY).is(0) }, Ok(0), Goes;
    "open of a FIFO to write":
        fifo, |_| open_fifo(O_WRONLY), |_| { open_fifo(O_RDONLY).is(0) }, Ok(0), Goes;
    "splice from a pipe": two_pipes, splice_in, write_b, Ok(1), Goes;
    "splice from a pipe whose writer closes": two_pipes, splice_in, close_b, Ok(0), Goes;
    "splice to a pipe": full_pipe, splice_out, drain_a, Ok(3), Goes;
    "splice to a pipe whose reader closes": full_pipe, splice_out, close_a, Err(EPIPE), Goes;
    "tee": two_pipes, tee_in, write_b, Ok(1), Goes;
    "vmsplice to a pipe": full_pipe, |w| vmsplice(w.b), drain_a, Ok(16), Goes;
    "vmsplice to a pipe whose reader closes":
        full_pipe, |w| vmsplice(w.b), close_a, Err(EPIPE), Goes;
    "vmsplice from a pipe": pipe, |w| vmsplice(w.a), write_b, Ok(1), Goes;
    "sendfile to a pipe": full_pipe, sendfile_out, drain_a, Ok(16), Goes;
    "recv of a stream": || sockets(SOCK_STREAM), |w| recv(w.a), write_b, Ok(1), Goes;
    "recv of a stream whose peer closes":
        || sockets(SOCK_STREAM), |w| recv(w.a), close_b, Ok(0), Goes;
    "recv of a stream whose peer shuts down": || sockets(SOCK_STREAM), |w| recv(w.a),
        |w| sc!(SYS_shutdown, w.b, SHUT_WR).is(0), Ok(0), Goes;
    "recv of a stream shut down": || sockets(SOCK_STREAM), |w| recv(w.a),
        |w| sc!(SYS_shutdown, w.a, SHUT_RD).is(0), Ok(0), Goes;
    "recv of records": || sockets(SOCK_SEQPACKET), |w| recv(w.a), write_b, Ok(1), Goes;
    "recv of records whose peer closes":
        || sockets(SOCK_SEQPACKET), |w| recv(w.a), close_b, Ok(0), Goes;
    "recv of datagrams": || sockets(SOCK_DGRAM), |w| recv(w.a), write_b, Ok(1), Goes;
    "recv of datagrams shut down": || sockets(SOCK_DGRAM), |w| recv(w.a),
        |w| sc!(SYS_shutdown, w.a, SHUT_RD).is(0), Ok(0), Goes;
    "send to a stream":
        || full_socket(SOCK_STREAM), |w| sc!(SYS_write, w.a, [1u8; 16].as_ptr(), 16),
        drain_b, Ok(16), Goes;
    "send to a stream whose peer closes": || full_socket(SOCK_STREAM),
        |w| sc!(SYS_write, w.a, [1u8; 16].as_ptr(), 16), close_b, Err(ECONNRESET), Goes;
    "send of a datagram":
        || full_socket(SOCK_DGRAM), |w| sc!(SYS_write, w.a, [1u8; 16].as_ptr(), 16),
        drain_b, Ok(16), Goes;
    "send of a datagram whose peer closes": || full_socket(SOCK_DGRAM),
        |w| sc!(SYS_write, w.a, [1u8; 16].as_ptr(), 16), close_b, Err(ECONNREFUSED), Goes;
    "send of a datagram shut down": || full_socket(SOCK_DGRAM),
        |w| sc!(SYS_write, w.a, [1u8; 16].as_ptr(), 16),
        |w| sc!(SYS_shutdown, w.a, SHUT_WR).is(0), Err(EPIPE), Goes;
    "accept":
        listener, |w| sc!(SYS_accept, w.a, 0, 0).map(|_| 0), |w| { connect_to_full(w).is(0) },
        Ok(0), Goes;
    "accept at a listener shut down": listener, |w| sc!(SYS_accept, w.a, 0, 0).map(|_| 0),
        |w| sc!(SYS_shutdown, w.a, SHUT_RDWR).is(0), Err(EINVAL), Goes;
    "connect":
        full_listener, connect_to_full, |w| { sc!(SYS_accept, w.a, 0, 0).must(); }, Ok(0), Goes;
    "connect to a listener that closes":
        full_listener, connect_to_full, close_a, Err(ECONNREFUSED), Goes;
    "read of an eventfd":
        || eventfd(()), |w| read_8(w.a), |w| write(w.a, &1u64.to_ne_bytes()), Ok(8), Goes;
    "write to an eventfd":
        full_eventfd, |w| sc!(SYS_write, w.a, &raw const ONE, 8), |w| { read_8(w.a).is(8) },
        Ok(8), Goes;
    "read of a timerfd": timerfd, |w| read_8(w.a), fire, Ok(8), Goes;
    "read of a signalfd":
        signalfd, |w| sc!(SYS_read, w.a, [0u8; 128].as_mut_ptr(), 128), own_signal, Ok(128), Goes;
    "read of an inotify":
        inotify, |w| sc!(SYS_read, w.a, [0u8; 128].as_mut_ptr(), 128), make_file, Ok(32), Goes;
    "flock whose holder dies":
        locked_file, |w| sc!(SYS_flock, w.b, LOCK_EX), kill_sleeper, Ok(0), Goes;
    "fcntl lock whose holder dies":
        locked_file, |w| sc!(SYS_fcntl, w.b, F_SETLKW, &raw const WHOLE),
        kill_sleeper, Ok(0), Goes;
    "wait4 for a child that dies":
        sleeper, |w| sc!(SYS_wait4, w.a, 0, 0, 0).map(|_| 0), kill_sleeper, Ok(0), Goes;
    "waitid for a child that dies":
        sleeper, |w| sc!(SYS_waitid, P_PID, w.a, 0, WEXITED, 0), kill_sleeper,
        Ok(0), Goes;
    "waitid for a stop of a child that dies":
        sleeper, |_| sc!(SYS_waitid, P_ALL, 0, 0, WSTOPPED, 0),
        kill_sleeper, Err(ECHILD), Goes;
    "wait4 for a child that stops": sleeper, |w| sc!(SYS_wait4, w.a, 0, WUNTRACED, 0).map(|_| 0),
        |w| sc!(SYS_kill, w.a, SIGSTOP).is(0), Ok(0), Goes;
    "poll": poll_set, |w| { let mut p = pollfd { fd: w.a, events: POLLIN, revents: 0 };
        sc!(SYS_poll, &raw mut p, 1, -1i32) }, write_b, Ok(1), Gives;
    "poll at a hang-up": poll_set, |w| { let mut p = pollfd { fd: w.a, events: 0, revents: 0 };
        sc!(SYS_poll, &raw mut p, 1, -1i32) }, close_b, Ok(1), Gives;
    "ppoll": poll_set, |w| { let mut p = pollfd { fd: w.a, events: POLLIN, revents: 0 };
        sc!(SYS_ppoll, &raw mut p, 1, 0, 0, 8) }, write_b, Ok(1), Gives;
    "select": poll_set, |w| { let mut set = [0u64; 16]; set[0] = 1 << w.a;
        sc!(SYS_select, w.a + 1, set.as_mut_ptr(), 0, 0, 0) }, write_b, Ok(1), Gives;
    "pselect": poll_set, |w| { let mut set = [0u64; 16]; set[0] = 1 << w.a;
        sc!(SYS_pselect6, w.a + 1, set.as_mut_ptr(), 0, 0, 0, 0) }, write_b, Ok(1), Gives;
    "epoll_wait":
        epoll, |w| sc!(SYS_epoll_wait, w.a, [0u8; 12].as_mut_ptr(), 1, -1i32), write_b, Ok(1),
        Gives;
    "epoll_wait at a hang-up":
        epoll, |w| sc!(SYS_epoll_wait, w.a, [0u8; 12].as_mut_ptr(), 1, -1i32), close_b,
        Ok(1), Gives;
    "futex wait":
        nothing, |w| sc!(SYS_futex, w.word().as_ptr(), FUTEX_WAIT, 0, FOREVER, 0, 0), wake_word,
        Ok(0), Goes;
    "futex wait with a timeout": nothing,
        |w| sc!(SYS_futex, w.word().as_ptr(), FUTEX_WAIT, 0, long().as_ptr(), 0, 0), wake_word,
        Ok(0), Gives;
    "futex wait for bits": nothing,
        |w| sc!(SYS_futex, w.word().as_ptr(), FUTEX_WAIT_BITSET, 0, FOREVER, 0, 1u32), wake_word,
        Ok(0), Goes;
    "futex wait for several": nothing, waitv, wake_word, Ok(0), Goes;
    "semop":
        semaphore, |w| take_semaphore(w, FOREVER), |w| { sc!(SYS_semctl, w.a, 0, 16, 1).is(0) },
        Ok(0), Gives;
    "semop on a set that goes":
        semaphore, |w| take_semaphore(w, FOREVER), remove_semaphore, Err(EIDRM), Gives;
    "semtimedop":
        semaphore, |w| take_semaphore(w, long().as_ptr() as usize), remove_semaphore, Err(EIDRM),
        Gives;
    "msgrcv": queue, |w| sc!(SYS_msgrcv, w.a, [0u64; 64].as_mut_ptr(), 256, 0, 0),
        |w| sc!(SYS_msgsnd, w.a, [1u64; 64].as_ptr(), 8, 0).is(0), Ok(8), Gives;
    "msgrcv of a queue that goes":
        queue, |w| sc!(SYS_msgrcv, w.a, [0u64; 64].as_mut_ptr(), 256, 0, 0),
        remove_queue, Err(EIDRM), Gives;
    "msgsnd": full_queue, |w| sc!(SYS_msgsnd, w.a, [1u64; 64].as_ptr(), 256, 0),
        |w| { sc!(SYS_msgrcv, w.a, [0u64; 64].as_mut_ptr(), 256, 0, 0).must(); }, Ok(0), Gives;
    "msgsnd to a queue that goes":
        full_queue, |w| sc!(SYS_msgsnd, w.a, [1u64; 64].as_ptr(), 256, 0),
        remove_queue, Err(EIDRM), Gives;
    "sigtimedwait": blocked_signal, |_| { let set = bit(SIGUSR2);
        sc!(SYS_rt_sigtimedwait, &raw const set, 0, 0, 8) }, own_signal, Ok(SIGUSR2 as usize),
        Gives;
};

static ONE: u64 = 1;

/// Calls that nothing ends but a signal or their own time.
const SLEEPS: &[Row] = rows! {
    "pause": nothing, |_| sc!(SYS_pause), |_| (), Ok(0), Gives;
    "sigsuspend":
        nothing, |_| { let set = 0u64; sc!(SYS_rt_sigsuspend, &raw const set, 8) }, |_| (), Ok(0),
        Gives;
    "nanosleep": nothing, |_| sc!(SYS_nanosleep, long().as_ptr(), 0), |_| (), Ok(0), Gives;
    "clock_nanosleep":
        nothing, |_| sc!(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, long().as_ptr(), 0), |_| (),
        Ok(0), Gives;
    "clock_nanosleep until a time": nothing,
        |_| sc!(SYS_clock_nanosleep, CLOCK_MONOTONIC, TIMER_ABSTIME, [i32::MAX as u64, 0].as_ptr(),
        0), |_| (),
        Ok(0), Gives;
    "poll of nothing": nothing, |_| sc!(SYS_poll, 0, 0, -1i32), |_| (), Ok(0), Gives;
    "recv with SO_RCVTIMEO": timed_sockets, |w| recv(w.a), |_| (), Ok(0), Gives;
    "accept with SO_RCVTIMEO": timed_listener, |w| sc!(SYS_accept, w.a, 0, 0), |_| (), Ok(0), Gives;
    "send with SO_SNDTIMEO":
        timed_full, |w| sc!(SYS_write, w.a, [1u8; 16].as_ptr(), 16), |_| (), Ok(0), Gives;
};

fn set_time(fd: i32, name: i32, seconds: i64) {
    let time = [seconds, 0];
    sc!(SYS_setsockopt, fd, SOL_SOCKET, name, time.as_ptr(), 16).is(0);
}

fn timed_sockets() -> (i32, i32) {
    let (a, b) = sockets(SOCK_STREAM);
    set_time(a, SO_RCVTIMEO, 100_000);
    (a, b)
}

fn timed_listener() -> (i32, i32) {
    let (a, b) = listener();
    set_time(a, SO_RCVTIMEO, 100_000);
    (a, b)
}

fn timed_full() -> (i32, i32) {
    let (a, b) = full_socket(SOCK_STREAM);
    set_time(a, SO_SNDTIMEO, 100_000);
    (a, b)
}

static HANDLED: AtomicU32 = AtomicU32::new(0);

extern "C" fn count(_: i32, _: usize, _: usize) {
    HANDLED.fetch_add(1, SeqCst);
}

/// Runs a row in a process of its own: a thread blocks in the call, `then` ends it somehow and says
/// what must come out.
fn run(row: &Row, flags: i32, then: impl Fn(&World, i32) -> Res) {
    let child = fork(|| {
        HANDLED.store(0, SeqCst);
        on_signal(SIGUSR1, count as *const () as usize, flags, 0);
        on_signal(SIGPIPE, SIG_IGN, 0, 0);
        let (a, b) = (row.make)();
        let world: &'static World = Box::leak(Box::new(World { a, b, words: new_shared() }));
        let call = row.call;
        let blocked = std::thread::spawn(move || {
            world.words[0].store(tid() as u32, SeqCst);
            call(world)
        });
        until(|| world.words[0].load(SeqCst) != 0);
        let tid = world.words[0].load(SeqCst) as i32;
        until_asleep(tid);
        let expected = then(world, tid);
        let got = blocked.join().unwrap();
        let _ = sc!(SYS_unlink, c(&fifo_path()).as_ptr());
        if got != expected {
            eprintln!("{}: {got:?} instead of {expected:?}", row.name);
        }
        // What a row left running must not outlive it.
        if row.make as *const () == sleeper as *const ()
            || row.make as *const () == locked_file as *const ()
        {
            let _ = sc!(SYS_kill, a, SIGKILL);
        }
        i32::from(got != expected)
    });
    let status = wait(child);
    assert!(WIFEXITED(status) && WEXITSTATUS(status) == 0, "{}: {}", row.name, describe(status));
}

fn send(tid: i32) {
    sc!(SYS_tgkill, pid(), tid, SIGUSR1).is(0);
    until(|| HANDLED.load(SeqCst) > 0);
}

fn every_wait_ends_with_its_event() {
    for row in ROWS {
        run(row, 0, |world, _| {
            (row.end)(world);
            row.gives
        });
    }
}

fn every_wait_ends_with_a_signal() {
    for row in ROWS.iter().chain(SLEEPS) {
        run(row, 0, |_, tid| {
            send(tid);
            Err(EINTR)
        });
    }
}

fn every_wait_restarts_or_not() {
    for row in ROWS.iter().chain(SLEEPS) {
        run(row, SA_RESTART, |world, tid| {
            send(tid);
            if row.restart == Gives {
                return Err(EINTR);
            }
            // Asleep again, and so not done.
            until_asleep(tid);
            (row.end)(world);
            row.gives
        });
    }
}

fn splice_moves_what_fits() {
    let (r, w) = pipe();
    let (_out, into) = pipe();
    let page = [5u8; 4096];
    for _ in 0..14 {
        write(into, &page);
    }
    for _ in 0..4 {
        write(w, &page);
    }
    // Two pages fit: more is not waited for.
    sc!(SYS_splice, r, 0, into, 0, 4 * 4096, 0).is(2 * 4096);
    sc!(SYS_splice, r, 0, into, 0, 4 * 4096, SPLICE_F_NONBLOCK).fails(EAGAIN);
    // From an empty pipe, either flag says not to wait.
    let (empty, _w) = pipe_flags(O_NONBLOCK);
    sc!(SYS_splice, empty, 0, into, 0, 16, 0).fails(EAGAIN);
    let (empty, writer) = pipe();
    sc!(SYS_splice, empty, 0, into, 0, 16, SPLICE_F_NONBLOCK).fails(EAGAIN);
    close(writer);
    // Room comes before the end.
    sc!(SYS_splice, empty, 0, into, 0, 16, SPLICE_F_NONBLOCK).fails(EAGAIN);
    let (_r, into) = pipe();
    sc!(SYS_splice, empty, 0, into, 0, 16, 0).is(0);
    // A file is cut, too.
    let (_r, small) = pipe();
    sc!(SYS_fcntl, small, F_SETPIPE_SZ, 4096).is(4096);
    let exe = open("/proc/self/exe", O_RDONLY).fd();
    sc!(SYS_splice, exe, 0, small, 0, 3 * 4096, 0).is(4096);
    sc!(SYS_splice, exe, 0, small, 0, 3 * 4096, SPLICE_F_NONBLOCK).fails(EAGAIN);
}

fn splice_checks_its_target_first() {
    // Nothing is in the pipe and nothing will ever come: a call that waited would not return.
    let (empty, writer) = pipe();
    let append = open(&format!("{}/f", dir()), O_WRONLY | O_CREAT | O_APPEND).fd();
    let event = sc!(SYS_eventfd2, 0, 0).fd();
    let epoll = sc!(SYS_epoll_create1, 0).fd();
    let timer = sc!(SYS_timerfd_create, CLOCK_MONOTONIC, 0).fd();
    for target in [append, event, epoll, timer] {
        sc!(SYS_splice, empty, 0, target, 0, 16, 0).fails(EINVAL);
    }
    let read_only = open("/proc/self/exe", O_RDONLY).fd();
    sc!(SYS_splice, empty, 0, read_only, 0, 16, 0).fails(EBADF);
    sc!(SYS_splice, empty, 0, writer, 0, 16, 0).fails(EINVAL);
    let mut offset = 0u64;
    let (a, _b) = sockets(SOCK_STREAM);
    sc!(SYS_splice, empty, 0, a, &raw mut offset, 16, 0).fails(EINVAL);
    sc!(SYS_splice, empty, &raw mut offset, a, 0, 16, 0).fails(ESPIPE);
    // And a source that gives no bytes.
    for source in [event, timer] {
        sc!(SYS_splice, source, 0, writer, 0, 16, 0).fails(EINVAL);
    }
}

fn vmsplice_without_waiting() {
    let (r, w) = full_pipe();
    // Whole pages: Linux counts pieces of pages.
    // SAFETY: a fresh mapping of this size.
    let bytes = unsafe { std::slice::from_raw_parts_mut(anon(4 * 4096), 4 * 4096) };
    let now = SPLICE_F_NONBLOCK;
    sc!(SYS_vmsplice, w, iov(bytes).as_ptr(), 1, now).fails(EAGAIN);
    sc!(SYS_vmsplice, w, iov(&mut []).as_ptr(), 1, 0).is(0);
    read(r, 4096);
    // One page fits; the rest is not waited for, with the flag or without.
    sc!(SYS_vmsplice, w, iov(bytes).as_ptr(), 1, 0).is(4096);
    let (r, w) = pipe();
    sc!(SYS_vmsplice, r, iov(bytes).as_ptr(), 1, now).fails(EAGAIN);
    write(w, b"abc");
    sc!(SYS_vmsplice, r, iov(bytes).as_ptr(), 1, 0).is(3);
    close(w);
    sc!(SYS_vmsplice, r, iov(bytes).as_ptr(), 1, 0).is(0);
    sc!(SYS_vmsplice, 99, iov(bytes).as_ptr(), 1, now).fails(EBADF);
}

fn tee_without_waiting() {
    let (r, w) = pipe();
    let (_full, into) = full_pipe();
    sc!(SYS_tee, r, into, 16, SPLICE_F_NONBLOCK).fails(EAGAIN);
    write(w, b"abc");
    sc!(SYS_tee, r, into, 16, SPLICE_F_NONBLOCK).fails(EAGAIN);
    let (_r, into) = pipe();
    sc!(SYS_tee, r, into, 2, 0).is(2);
    sc!(SYS_tee, r, into, 0, 0).is(0);
    assert_eq!(read(r, 9), b"abc");
    close(w);
    sc!(SYS_tee, r, into, 2, 0).is(0);
}

fn waitid_for_stops_of_a_zombie() {
    let child = fork(|| 3);
    sc!(SYS_waitid, P_PID, child, 0, WEXITED | WNOWAIT, 0).is(0);
    for options in [WSTOPPED, WCONTINUED, WSTOPPED | WCONTINUED, WSTOPPED | WNOHANG] {
        sc!(SYS_waitid, P_ALL, 0, 0, options, 0).fails(ECHILD);
        sc!(SYS_waitid, P_PID, child, 0, options, 0).fails(ECHILD);
    }
    wait_code(child, 3);
}

fn waitid_when_the_last_child_ends() {
    // Whoever waits for a stop learns that there will be none.
    let child = fork(|| {
        nap(30);
        4
    });
    sc!(SYS_waitid, P_ALL, 0, 0, WSTOPPED, 0).fails(ECHILD);
    wait_code(child, 4);
    // The same for one whose end is not kept.
    on_signal(SIGCHLD, SIG_IGN, 0, 0);
    fork(|| {
        nap(30);
        4
    });
    sc!(SYS_waitid, P_ALL, 0, 0, WSTOPPED, 0).fails(ECHILD);
}

/// A child that asks for SIGUSR2 at its parent's end and counts what it gets in `words[1]`.
fn counts_death_signals(words: &'static [AtomicU32; 1024]) -> i32 {
    fork(|| {
        HANDLED.store(0, SeqCst);
        on_signal(SIGUSR2, count as *const () as usize, 0, 0);
        sc!(SYS_prctl, PR_SET_PDEATHSIG, SIGUSR2, 0, 0, 0).is(0);
        words[0].store(1, SeqCst);
        until(|| {
            words[1].store(HANDLED.load(SeqCst), SeqCst);
            words[2].load(SeqCst) == 1
        });
        7
    })
}

fn death_signal_of_a_thread() {
    // "Parent" is the thread that made the child (PR_SET_PDEATHSIG(2const)).
    let words = new_shared();
    let child = std::thread::spawn(|| {
        let child = counts_death_signals(words);
        until(|| words[0].load(SeqCst) == 1);
        assert_eq!(words[1].load(SeqCst), 0);
        child
    });
    let child = child.join().unwrap();
    until_at_least(&words[1], 1);
    // Another thread's end is nothing to it.
    std::thread::spawn(|| ()).join().unwrap();
    words[2].store(1, SeqCst);
    wait_code(child, 7);
    assert_eq!(words[1].load(SeqCst), 1);
}

fn death_signal_after_exec_of_a_thread() {
    // The thread that executes goes on; the one it takes the id from ends.
    sc!(SYS_prctl, PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0).is(0);
    let words = new_shared();
    let parent = fork(|| {
        counts_death_signals(words);
        until(|| words[0].load(SeqCst) == 1);
        std::thread::spawn(|| {
            let (exe, mode) = (c(&own_path()), c"pause");
            let args = [exe.as_ptr(), c"child".as_ptr(), mode.as_ptr(), std::ptr::null()];
            let _ = sc!(SYS_execve, exe.as_ptr(), args.as_ptr(), [0usize].as_ptr());
        })
        .join()
        .unwrap();
        1
    });
    until_at_least(&words[1], 1);
    sc!(SYS_kill, parent, SIGKILL).is(0);
    wait_signal(parent, SIGKILL);
    words[2].store(1, SeqCst);
    let mut status = 0;
    sc!(SYS_wait4, -1i32, &raw mut status, 0, 0).must();
    assert_eq!(WEXITSTATUS(status), 7);
}

fn negative_socket_timeouts() {
    let (a, _b) = sockets(SOCK_STREAM);
    for time in [[-1i64, 0], [i64::MIN, 5]] {
        sc!(SYS_setsockopt, a, SOL_SOCKET, SO_RCVTIMEO, time.as_ptr(), 16).is(0);
        recv(a).fails(EAGAIN);
        let (mut shown, mut len) = ([9i64; 2], 16u32);
        sc!(SYS_getsockopt, a, SOL_SOCKET, SO_RCVTIMEO, shown.as_mut_ptr(), &raw mut len).is(0);
        assert_eq!(shown, [0, 0]);
    }
    for time in [[1i64, -1], [1, 1_000_000], [-1, -1]] {
        sc!(SYS_setsockopt, a, SOL_SOCKET, SO_RCVTIMEO, time.as_ptr(), 16).fails(EDOM);
    }
    let (a, _b) = full_socket(SOCK_STREAM);
    set_time(a, SO_SNDTIMEO, -1);
    sc!(SYS_write, a, [1u8; 16].as_ptr(), 16).fails(EAGAIN);
    let (s, _client) = listener();
    set_time(s, SO_RCVTIMEO, -5);
    sc!(SYS_accept, s, 0, 0).fails(EAGAIN);
}

fn datagram_sockets_after_shutdown() {
    let send = |fd: i32| sc!(SYS_write, fd, c"x".as_ptr(), 1);
    let states = |fd: i32| {
        let mut p = pollfd { fd, events: POLLIN | POLLOUT | POLLRDHUP, revents: 0 };
        sc!(SYS_poll, &raw mut p, 1, 0).must();
        p.revents
    };
    // The receiving side: who sends is told, without SIGPIPE; what came before is still there.
    let (a, b) = sockets(SOCK_DGRAM);
    send(a).is(1);
    sc!(SYS_shutdown, b, SHUT_RD).is(0);
    send(a).fails(EPIPE);
    recv(b).is(1);
    recv(b).is(0);
    assert_eq!((states(a), states(b)), (POLLOUT, POLLIN | POLLOUT | POLLRDHUP));
    send(b).is(1);
    // The sending side: the peer notices nothing.
    let (a, b) = sockets(SOCK_DGRAM);
    sc!(SYS_shutdown, a, SHUT_WR).is(0);
    send(a).fails(EPIPE);
    assert_eq!((states(a), states(b)), (POLLOUT, POLLOUT));
    send(b).is(1);
    recv(a).is(1);
    // Both.
    let (a, b) = sockets(SOCK_DGRAM);
    sc!(SYS_shutdown, b, SHUT_RDWR).is(0);
    send(a).fails(EPIPE);
    send(b).fails(EPIPE);
    recv(b).is(0);
    assert_eq!(states(a), POLLOUT);
    assert_eq!(states(b), POLLIN | POLLOUT | POLLRDHUP | POLLHUP);
    // A peer that is gone.
    let (a, b) = sockets(SOCK_DGRAM);
    close(b);
    send(a).fails(ECONNREFUSED);
    // Sockets without a peer may be told, too.
    for kind in [SOCK_DGRAM, SOCK_STREAM, SOCK_SEQPACKET] {
        let s = sc!(SYS_socket, AF_UNIX, kind, 0).fd();
        sc!(SYS_shutdown, s, SHUT_RDWR).is(0);
        sc!(SYS_shutdown, s, 3).fails(EINVAL);
    }
}
