//! What random programs found (`differ`), as tests of their own: capabilities that were missing,
//! and answers that a program can notice.

use crate::sys::*;
use crate::{sc, tests};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

tests!("found":
    a_waiter_is_moved_to_a_lock, urgent_bytes_of_unix_streams, what_eventfd_shows_to_fstat,
    timers_tell_their_times, a_fatal_signal_ends_the_process_at_once, a_reader_of_a_place_is_none,
    vectors_are_checked_in_order, a_failed_connection_is_told_first, shutdown_without_a_peer,
    devices_keep_their_place, what_can_be_moved_where, places_of_copies, locked_before_missing,
    a_threads_id_names_who_handles, a_policy_is_remembered, limits_without_a_unit,
    texts_before_places, what_a_pidfd_is, who_writes_keeps_a_mount_writable,
    words_are_private_or_shared, what_nobody_took_comes_back,
    what_a_thread_sets_for_itself, where_texts_end, nothing_moved_from_a_counter,
    the_way_to_the_last_name, names_of_one_object, signals_for_the_ended, who_is_woken_first,
    settings_of_any_length, packets_take_pages, what_is_in_a_stream, broken_off_is_told,
    all_who_listen, options_that_are_too_short, shut_down_before_told, requests_without_a_length,
    raw_sockets_bind_and_receive, what_is_meant_by_halves, modes_of_names_of_sockets,
    what_a_socket_would_have_replaced,
    attributes_without_a_name, entering_the_own_namespaces, how_long_packets_may_be,
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

fn vectors_are_checked_in_order() {
    let memory = sc!(SYS_memfd_create, c"m".as_ptr(), 0).fd();
    let timer = sc!(SYS_timerfd_create, CLOCK_MONOTONIC, TFD_NONBLOCK).fd();
    // Far from the end of user space, which the long part would reach.
    let (both, fixed) = (PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED);
    let page = mmap(0x20_0000_0000, 4096, both, fixed, -1, 0).must();
    // A length that is none is seen before an address that is none.
    let long = [page, i64::MAX as usize, page, usize::MAX];
    sc!(SYS_pwritev, memory, long.as_ptr(), 2, 0, 0).fails(EINVAL);
    assert!(sc!(SYS_pwritev, memory, long.as_ptr(), 1, 0, 0).must() >= 4096);
    // No bytes have an address, too.
    let nowhere = [page, 4, usize::MAX, 0];
    sc!(SYS_readv, memory, nowhere.as_ptr(), 2).fails(EFAULT);
    // What has no bytes of its own is not asked for any.
    sc!(SYS_writev, timer, 8, 1).fails(EINVAL);
}

fn a_failed_connection_is_told_first() {
    let address = |port: u16| {
        let mut bytes = [0u8; 16];
        bytes[..2].copy_from_slice(&(AF_INET as u16).to_ne_bytes());
        bytes[2..4].copy_from_slice(&port.to_be_bytes());
        bytes[4..8].copy_from_slice(&[127, 0, 0, 1]);
        bytes
    };
    // A port that nobody has: it was just given back.
    let other = sc!(SYS_socket, AF_INET, SOCK_STREAM, 0).fd();
    sc!(SYS_bind, other, address(0).as_ptr(), 16).is(0);
    let (mut name, mut length) = ([0u8; 16], 16u32);
    sc!(SYS_getsockname, other, name.as_mut_ptr(), &raw mut length).is(0);
    close(other);
    let socket = sc!(SYS_socket, AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0).fd();
    sc!(SYS_connect, socket, name.as_ptr(), 16).fails(EINPROGRESS);
    sc!(SYS_listen, socket, 1).fails(EINVAL);
    // Where to is not asked again.
    sc!(SYS_connect, socket, [77u16; 8].as_ptr(), 16).fails(ECONNREFUSED);
    sc!(SYS_listen, socket, 1).is(0);
}

fn shutdown_without_a_peer() {
    let mut buffer = [0u8; 8];
    let stream = sc!(SYS_socket, AF_INET, SOCK_STREAM, 0).fd();
    sc!(SYS_read, stream, buffer.as_mut_ptr(), 8).fails(ENOTCONN);
    sc!(SYS_shutdown, stream, SHUT_RD).fails(ENOTCONN);
    sc!(SYS_read, stream, buffer.as_mut_ptr(), 8).is(0);
    let packets = sc!(SYS_socket, AF_UNIX, SOCK_SEQPACKET, 0).fd();
    sc!(SYS_shutdown, packets, SHUT_RD).is(0);
    let mut entry = pollfd { fd: packets, events: POLLIN | POLLRDHUP, revents: 0 };
    sc!(SYS_poll, &raw mut entry, 1, 0).is(1);
    assert_eq!(entry.revents, POLLIN | POLLRDHUP | POLLHUP);
}

fn devices_keep_their_place() {
    let null = open("/dev/null", O_RDWR).fd();
    sc!(SYS_write, null, b"abc".as_ptr(), 3).is(3);
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{null}")).unwrap();
    assert!(info.starts_with("pos:\t0\n"), "{info}");
    let path = format!("{}/fifo", dir());
    sc!(SYS_mknod, c(&path).as_ptr(), S_IFIFO | 0o600, 0).is(0);
    open(&path, O_ACCMODE | O_NONBLOCK).fails(EINVAL);
}

fn what_can_be_moved_where() {
    let mut pipe = [0i32; 2];
    sc!(SYS_pipe2, pipe.as_mut_ptr(), O_NONBLOCK).is(0);
    let socket = sc!(SYS_socket, AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0).fd();
    let null = open("/dev/null", O_RDWR).fd();
    // Into a pipe a socket may be sent, though it has no place to go on from.
    sc!(SYS_sendfile, pipe[1], socket, 0, 10).fails(EAGAIN);
    sc!(SYS_sendfile, null, socket, 0, 10).fails(EINVAL);
    sc!(SYS_sendfile, pipe[1], null, 0, 10).fails(EINVAL);
    // Of nothing, anything.
    let memory = sc!(SYS_memfd_create, c"m".as_ptr(), 0).fd();
    let event = sc!(SYS_eventfd2, 0, EFD_NONBLOCK).fd();
    sc!(SYS_sendfile, event, memory, 0, 0).is(0);
    // From a stream nothing, either, but into a pipe.
    let mut ends = [0i32; 2];
    sc!(SYS_pipe2, ends.as_mut_ptr(), O_NONBLOCK).is(0);
    let mut pair = [0i32; 2];
    sc!(SYS_socketpair, AF_UNIX, SOCK_STREAM, 0, pair.as_mut_ptr()).is(0);
    for stream in [ends[0], pair[0]] {
        sc!(SYS_sendfile, event, stream, 0, 0).fails(EINVAL);
        sc!(SYS_sendfile, memory, stream, 0, 0).fails(EINVAL);
    }
    sc!(SYS_sendfile, ends[1], pair[0], 0, 0).is(0);
    ends.into_iter().chain(pair).for_each(close);
    // Offsets are read before it is asked what the files are.
    sc!(SYS_splice, socket, usize::MAX, socket, 0, 10, 0).fails(EFAULT);
}

fn places_of_copies() {
    let memory = sc!(SYS_memfd_create, c"m".as_ptr(), 0).fd();
    sc!(SYS_write, memory, b"0123456789".as_ptr(), 10).is(10);
    let copy = |from: i64, to: i64, count: usize| {
        sc!(SYS_copy_file_range, memory, &raw const from, memory, &raw const to, count, 0)
    };
    copy(-1, 0, 100).fails(EOVERFLOW);
    copy(-1, 0, 0).fails(EINVAL);
    copy(0, i64::MAX, 5).fails(EFBIG);
    copy(0, 20, 5).is(5);
}

fn locked_before_missing() {
    let at = anon(3 * 4096) as usize;
    sc!(SYS_munmap, at, 4096).is(0);
    sc!(SYS_msync, at, 3 * 4096, MS_INVALIDATE).fails(ENOMEM);
    sc!(SYS_mlock, at + 4096, 4096).is(0);
    sc!(SYS_msync, at, 3 * 4096, MS_INVALIDATE).fails(EBUSY);
    sc!(SYS_msync, at, 3 * 4096, MS_ASYNC).fails(ENOMEM);
}

static HANDLED_BY: AtomicU32 = AtomicU32::new(0);

extern "C" fn note_thread(_signal: i32) {
    HANDLED_BY.store(tid() as u32, SeqCst);
}

fn a_threads_id_names_who_handles() {
    on_signal(SIGUSR1, note_thread as extern "C" fn(i32) as usize, 0, 0);
    let other = AtomicU32::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            other.store(tid() as u32, SeqCst);
            while HANDLED_BY.load(SeqCst) == 0 {
                std::thread::yield_now();
            }
        });
        while other.load(SeqCst) == 0 {
            std::thread::yield_now();
        }
        // The whole process gets it, and that thread is the first that is asked.
        sc!(SYS_kill, other.load(SeqCst), SIGUSR1).is(0);
    });
    assert_eq!(HANDLED_BY.load(SeqCst), other.load(SeqCst));
}

fn a_policy_is_remembered() {
    const PREFERRED: u32 = 1;
    const BIND: u32 = 2;
    const LOCAL: u32 = 4;
    let policy = || {
        let (mut mode, mut nodes) = (99u32, [0u64; 16]);
        let (at, nodes_at) = (&raw mut mode, nodes.as_mut_ptr());
        sc!(SYS_get_mempolicy, at, nodes_at, 1024, 0, 0).is(0);
        (mode, nodes[0])
    };
    assert_eq!(policy(), (0, 0));
    sc!(SYS_set_mempolicy, PREFERRED, 0, 0).is(0);
    assert_eq!(policy(), (LOCAL, 0));
    sc!(SYS_set_mempolicy, BIND, [1u64].as_ptr(), 64).is(0);
    assert_eq!(policy(), (BIND, 1));
    sc!(SYS_set_mempolicy, 0, 0, 0).is(0);
    assert_eq!(policy(), (0, 0));
}

fn limits_without_a_unit() {
    let text = std::fs::read_to_string("/proc/self/limits").unwrap();
    let line = |name: &str| text.lines().find(|line| line.starts_with(name)).unwrap().to_owned();
    assert_eq!(line("Max nice priority").len(), 26 + 21 + 21);
    assert_eq!(line("Max open files").len(), 26 + 21 + 21 + 10);
}

fn texts_before_places() {
    let nowhere = c"/no/such/place".as_ptr();
    sc!(SYS_mount, 8, nowhere, 0, MS_BIND, 0).fails(EFAULT);
    sc!(SYS_mount, 0, nowhere, 8, MS_BIND, 0).fails(EFAULT);
    sc!(SYS_mount, 0, nowhere, 0, MS_BIND, 8).fails(EFAULT);
    sc!(SYS_mount, 0, nowhere, 0, MS_BIND, 0).fails(ENOENT);
    // Where it is taken from is looked for before where it goes is read.
    let missing = format!("{}/missing/x", dir());
    sc!(SYS_rename, c(&missing).as_ptr(), 8).fails(ENOENT);
}

fn what_a_pidfd_is() {
    let pidfd = sc!(SYS_pidfd_open, pid(), 0).fd();
    let mut buffer = [0u8; 8];
    sc!(SYS_pread64, pidfd, buffer.as_mut_ptr(), 8, 0).fails(EINVAL);
    sc!(SYS_read, pidfd, buffer.as_mut_ptr(), 8).fails(EINVAL);
}

/// Personality and slack of timers are a thread's own, which those have that it makes.
fn what_a_thread_sets_for_itself() {
    let persona = || sc!(SYS_personality, u32::MAX).must();
    let slack = || sc!(SYS_prctl, PR_GET_TIMERSLACK).must();
    let on_thread = |body: fn() -> (usize, usize)| std::thread::spawn(body).join().unwrap();
    let (before, slack_before) = (persona(), slack());
    let told = on_thread(|| {
        sc!(SYS_personality, 0x004_0000).must();
        sc!(SYS_prctl, PR_SET_TIMERSLACK, 70_000).is(0);
        let ask =
            || (sc!(SYS_personality, u32::MAX).must(), sc!(SYS_prctl, PR_GET_TIMERSLACK).must());
        assert_eq!(ask(), (0x004_0000, 70_000));
        let below = std::thread::spawn(move || {
            let inherited = ask();
            // None is what the thread began with.
            sc!(SYS_prctl, PR_SET_TIMERSLACK, 80_000).is(0);
            sc!(SYS_prctl, PR_SET_TIMERSLACK, 0).is(0);
            assert_eq!(ask().1, 70_000);
            inherited
        });
        below.join().unwrap()
    });
    assert_eq!(told, (0x004_0000, 70_000));
    assert_eq!((persona(), slack()), (before, slack_before));
}

/// Directories of /proc, and what there is no text made at once, are empty files to lseek(2),
/// and may be written at any place by whoever they let write.
fn where_texts_end() {
    let seek = |path: &str, at: i64, from: i32| sc!(SYS_lseek, open(path, O_RDONLY).fd(), at, from);
    for path in ["/proc/self", "/proc/self/fd", "/proc/self/cmdline", "/proc/sys/kernel/ostype"] {
        seek(path, 93, SEEK_END).is(93);
        seek(path, 0, SEEK_DATA).fails(ENXIO);
        seek(path, 0, SEEK_HOLE).fails(ENXIO);
    }
    seek("/proc/self/status", 93, SEEK_END).fails(EINVAL);
    let write = |path: &str, flags: i32| {
        sc!(SYS_pwrite64, open(path, flags).fd(), b"x".as_ptr(), 1, 1usize << 32)
    };
    write("/proc/self/cmdline", O_RDWR).fails(EINVAL);
    write("/proc/self/status", O_RDWR).fails(ESPIPE);
    write("/proc/sys/kernel/ostype", O_RDONLY).fails(EBADF);
    write("/proc/self/status", O_RDONLY).fails(ESPIPE);
}

/// No byte can always be moved, where lseek(2) succeeds; a pidfd has places, but nothing there.
fn nothing_moved_from_a_counter() {
    let counter = sc!(SYS_eventfd2, 1, 0).fd();
    sc!(SYS_sendfile, counter, counter, 0, 0).is(0);
    sc!(SYS_sendfile, counter, counter, 0, 1).fails(EINVAL);
    let (pidfd, at) = (sc!(SYS_pidfd_open, pid(), 0).fd(), 0x1000u64);
    sc!(SYS_sendfile, -1i32, pidfd, &raw const at, 1).fails(EBADF);
    sc!(SYS_sendfile, counter, pidfd, &raw const at, 1).fails(EINVAL);
}

/// Who may not search a directory is told so before what is wrong with the last name.
fn the_way_to_the_last_name() {
    let d = dir();
    let dot = c(&format!("{d}/."));
    sc!(SYS_chmod, c(&d).as_ptr(), 0o666).is(0);
    in_child(|| {
        sc!(SYS_setresuid, 1234, 1234, 1234).is(0);
        sc!(SYS_unlinkat, AT_FDCWD, dot.as_ptr(), AT_REMOVEDIR).fails(EACCES);
        sc!(SYS_unlinkat, AT_FDCWD, dot.as_ptr(), 0).fails(EACCES);
        sc!(SYS_mkdir, dot.as_ptr(), 0o700).fails(EACCES);
        sc!(SYS_rename, dot.as_ptr(), c"..".as_ptr()).fails(EACCES);
        sc!(SYS_rename, c("/proc/..").as_ptr(), dot.as_ptr()).fails(EACCES);
    });
    sc!(SYS_unlinkat, AT_FDCWD, dot.as_ptr(), AT_REMOVEDIR).fails(EINVAL);
    sc!(SYS_mkdir, dot.as_ptr(), 0o700).fails(EEXIST);
    sc!(SYS_rename, dot.as_ptr(), c"..".as_ptr()).fails(EBUSY);
}

/// Who may not change either may rename one to the other: nothing is done.
fn names_of_one_object() {
    in_child(|| {
        sc!(SYS_setresuid, 1234, 1234, 1234).is(0);
        sc!(SYS_rename, c"/dev/zero".as_ptr(), c"/dev/zero".as_ptr()).is(0);
        sc!(SYS_rename, c"/dev/zero".as_ptr(), c"/dev/null".as_ptr()).fails(EACCES);
    });
}

/// What has ended and was not waited for still gets signals, to no effect.
fn signals_for_the_ended() {
    let child = fork(|| 0);
    let mut info = [0u64; 16];
    sc!(SYS_waitid, P_PID, child, info.as_mut_ptr(), WEXITED | WNOWAIT, 0).is(0);
    sc!(SYS_tkill, child, SIGTERM).is(0);
    sc!(SYS_tkill, child, 65).fails(EINVAL);
    sc!(SYS_tgkill, child, child, 0).is(0);
    sc!(SYS_tgkill, pid(), child, 0).fails(ESRCH);
    wait_code(child, 0);
    sc!(SYS_tkill, child, SIGTERM).fails(ESRCH);
}

/// A process's signal is the first thread's, whoever sends it, unless that one blocks it.
fn who_is_woken_first() {
    static TAKER: AtomicU32 = AtomicU32::new(0);
    extern "C" fn take(_signal: i32) {
        TAKER.store(tid() as u32, SeqCst);
    }
    in_child(|| {
        on_signal(SIGURG, take as *const () as usize, 0, 0);
        let send = || {
            TAKER.store(0, SeqCst);
            std::thread::spawn(|| {
                // Who makes a thread blocks all signals meanwhile.
                nap(50);
                sc!(SYS_kill, pid(), SIGURG).is(0);
                until(|| TAKER.load(SeqCst) != 0);
            })
            .join()
            .unwrap();
            TAKER.load(SeqCst)
        };
        assert_eq!(send(), pid() as u32);
        sigmask(SIG_BLOCK, bit(SIGURG));
        let thread = std::thread::spawn(|| {
            sigmask(SIG_UNBLOCK, bit(SIGURG));
            TAKER.store(0, SeqCst);
            sc!(SYS_kill, pid(), SIGURG).is(0);
            until(|| TAKER.load(SeqCst) != 0);
            assert_eq!(TAKER.load(SeqCst), tid() as u32);
        });
        thread.join().unwrap();
    });
}

/// Nobody writes or reads 4 MiB of a setting at once; devices without data never wait.
fn settings_of_any_length() {
    let large = anon(4 << 20);
    let fd = open("/proc/sys/kernel/ostype", O_RDONLY).fd();
    sc!(SYS_read, fd, large, 4 << 20).fails(ENOMEM);
    assert!(sc!(SYS_read, fd, large, (4 << 20) - 1).must() > 0);
    unmap(large, 4 << 20);
    let vector = [0usize, 0];
    let bad = [8usize, 1];
    let cmdline = open("/proc/self/cmdline", O_RDWR).fd();
    sc!(SYS_pwritev2, cmdline, 8, 1, 0, 0, 0).fails(EINVAL);
    for name in ["/dev/null", "/dev/zero"] {
        let fd = open(name, O_RDWR).fd();
        sc!(SYS_pwritev2, fd, vector.as_ptr(), 1, 0, 0, RWF_NOWAIT).is(0);
        let bytes = [vector.as_ptr() as usize, 8];
        sc!(SYS_pwritev2, fd, bytes.as_ptr(), 1, 0, 0, RWF_NOWAIT).is(8);
        sc!(SYS_preadv2, fd, bad.as_ptr(), 0, 0, 0, RWF_NOWAIT).is(0);
    }
}

/// A packet has pages of its own in a pipe (pipe(2), O_DIRECT).
fn packets_take_pages() {
    let (r, w) = pipe_flags(O_DIRECT | O_NONBLOCK);
    sc!(SYS_fcntl, w, F_SETPIPE_SZ, 8192).is(8192);
    let send = |len: usize| sc!(SYS_write, w, [0u8; 5000].as_ptr(), len);
    send(25).is(25);
    send(30).is(30);
    send(1).fails(EAGAIN);
    let mut unread = 0i32;
    sc!(SYS_ioctl, r, FIONREAD, &raw mut unread).is(0);
    assert_eq!(unread, 55);
    sc!(SYS_fcntl, w, F_SETPIPE_SZ, 4096).fails(EBUSY);
    assert_eq!(read(r, 10).len(), 10);
    send(4096).is(4096);
    send(1).fails(EAGAIN);
    assert_eq!(read(r, 100).len(), 30);
    assert_eq!(read(r, 5000).len(), 4096);
    sc!(SYS_fcntl, w, F_SETPIPE_SZ, 4096).is(4096);
    send(4096).is(4096);
}

fn unix_pair(kind: i32) -> [i32; 2] {
    let mut pair = [0i32; 2];
    sc!(SYS_socketpair, AF_UNIX, kind | SOCK_NONBLOCK, 0, pair.as_mut_ptr()).is(0);
    pair
}

/// The urgent byte of a unix stream counts until it was received.
fn what_is_in_a_stream() {
    let [a, b] = unix_pair(SOCK_STREAM);
    let unread = || {
        let mut bytes = 0i32;
        sc!(SYS_ioctl, a, FIONREAD, &raw mut bytes).is(0);
        bytes
    };
    sc!(SYS_sendto, b, b"e".as_ptr(), 1, MSG_OOB, 0, 0).is(1);
    assert_eq!(unread(), 1);
    let mut byte = 0u8;
    sc!(SYS_recvfrom, a, &raw mut byte, 1, MSG_OOB, 0, 0).is(1);
    assert_eq!(unread(), 0);
}

fn error_of(socket: i32) -> i32 {
    let (mut error, mut len) = (0i32, 4u32);
    sc!(SYS_getsockopt, socket, SOL_SOCKET, SO_ERROR, &raw mut error, &raw mut len).is(0);
    error
}

/// Who sent what the peer never read is told so as an error of the socket, too.
fn broken_off_is_told() {
    for kind in [SOCK_STREAM, SOCK_SEQPACKET] {
        let [a, b] = unix_pair(kind);
        write(a, b"unread");
        close(b);
        assert_eq!((error_of(a), error_of(a)), (ECONNRESET, 0));
    }
}

fn inet(port: u16, ip: [u8; 4]) -> [u8; 16] {
    let [high, low] = port.to_be_bytes();
    let [a, b, c, d] = ip;
    [AF_INET as u8, 0, high, low, a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0]
}

/// Datagrams to all who listen on the loopback need SO_BROADCAST.
fn all_who_listen() {
    let udp = || sc!(SYS_socket, AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0).fd();
    let bind = |s: i32, at: [u8; 16]| sc!(SYS_bind, s, at.as_ptr(), 16);
    let (listener, sender, other) = (udp(), udp(), udp());
    bind(listener, inet(0, [0; 4])).is(0);
    let (mut name, mut len) = ([0u8; 16], 16u32);
    sc!(SYS_getsockname, listener, name.as_mut_ptr(), &raw mut len).is(0);
    let port = u16::from_be_bytes([name[2], name[3]]);
    bind(sender, inet(0, [127, 0, 0, 1])).is(0);
    let send = |s: i32, ip: [u8; 4]| {
        let to = inet(port, ip);
        sc!(SYS_sendto, s, b"all".as_ptr(), 3, 0, to.as_ptr(), 16)
    };
    for ip in [[255; 4], [127, 255, 255, 255]] {
        let on = 1i32;
        send(sender, ip).fails(EACCES);
        sc!(SYS_setsockopt, sender, SOL_SOCKET, SO_BROADCAST, &raw const on, 4).is(0);
        send(sender, ip).is(3);
        let mut got = [0u8; 8];
        sc!(SYS_recvfrom, listener, got.as_mut_ptr(), 8, 0, 0, 0).is(3);
        let off = 0i32;
        sc!(SYS_setsockopt, sender, SOL_SOCKET, SO_BROADCAST, &raw const off, 4).is(0);
    }
    send(other, [127, 255, 255, 255]).fails(EACCES);
    let tcp = sc!(SYS_socket, AF_INET, SOCK_STREAM, 0).fd();
    sc!(SYS_connect, tcp, inet(port, [127, 255, 255, 255]).as_ptr(), 16).fails(ENETUNREACH);
}

/// Of an option that is shorter than a number nothing is read, where all are numbers.
fn options_that_are_too_short() {
    let tcp = sc!(SYS_socket, AF_INET6, SOCK_STREAM, 0).fd();
    let udp = sc!(SYS_socket, AF_INET, SOCK_DGRAM, 0).fd();
    let set = |s: i32, level: i32, name: i32| sc!(SYS_setsockopt, s, level, name, 8, 1);
    set(tcp, IPPROTO_TCP, TCP_NODELAY).fails(EINVAL);
    set(tcp, IPPROTO_IPV6, IPV6_UNICAST_HOPS).fails(EINVAL);
    set(udp, IPPROTO_UDP, 1).fails(EINVAL);
    set(udp, IPPROTO_IP, IP_TTL).fails(EFAULT);
    set(tcp, IPPROTO_TCP, TCP_CONGESTION).fails(EFAULT);
}

/// A connection that failed and was shut down before that was told is never made again.
fn shut_down_before_told() {
    let tcp = sc!(SYS_socket, AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0).fd();
    let nobody = inet(1, [127, 0, 0, 1]);
    sc!(SYS_connect, tcp, nobody.as_ptr(), 16).fails(EINPROGRESS);
    until(|| {
        let mut entry = pollfd { fd: tcp, events: POLLOUT, revents: 0 };
        sc!(SYS_poll, &raw mut entry, 1, 0).must() == 1
    });
    assert_eq!(error_of(tcp), ECONNREFUSED);
    sc!(SYS_shutdown, tcp, SHUT_WR).fails(ENOTCONN);
    for _ in 0..2 {
        sc!(SYS_connect, tcp, nobody.as_ptr(), 16).fails(EINVAL);
    }
    let nobody_at_all = [0u8; 16];
    sc!(SYS_connect, tcp, nobody_at_all.as_ptr(), 16).is(0);
    sc!(SYS_connect, tcp, nobody.as_ptr(), 16).fails(EINPROGRESS);
}

/// What is no request, or gives another length than it has, is not answered (netlink(7)).
fn requests_without_a_length() {
    let netlink = sc!(SYS_socket, AF_NETLINK, SOCK_DGRAM | SOCK_NONBLOCK, 0).fd();
    let answered = |bytes: &[u8]| {
        write(netlink, bytes);
        let mut entry = pollfd { fd: netlink, events: POLLIN, revents: 0 };
        let is_answered = sc!(SYS_poll, &raw mut entry, 1, 0).must() == 1;
        let mut answer = [0u8; 4096];
        while sc!(SYS_recvfrom, netlink, answer.as_mut_ptr(), 4096, 0, 0, 0).is_ok() {}
        is_answered
    };
    let request = |len: u32, flags: u16| {
        let mut bytes = [0u8; 32];
        bytes[..4].copy_from_slice(&len.to_ne_bytes());
        // RTM_GETLINK.
        bytes[4] = 18;
        bytes[6..8].copy_from_slice(&flags.to_ne_bytes());
        bytes
    };
    assert!(answered(&request(32, 0x301)));
    assert!(!answered(&request(33, 0x301)) && !answered(&request(15, 0x301)));
    assert!(!answered(&request(32, 0x300)));
    assert!(!answered(b"abcdefghijklmnopqrstuvwxyz"));
}

/// Raw sockets have no urgent data, and those of IPv4 do not look at the family to be bound.
fn raw_sockets_bind_and_receive() {
    for (domain, protocol) in [(AF_INET, IPPROTO_TCP), (AF_INET6, IPPROTO_UDP)] {
        let raw = sc!(SYS_socket, domain, SOCK_RAW | SOCK_NONBLOCK, protocol).fd();
        let mut byte = 0u8;
        sc!(SYS_recvfrom, raw, &raw mut byte, 1, MSG_OOB, 0, 0).fails(EOPNOTSUPP);
        let mut at = [0u8; 28];
        at[..2].copy_from_slice(&77u16.to_ne_bytes());
        at[4..8].copy_from_slice(&[192, 0, 2, 1]);
        let error = if domain == AF_INET { EADDRNOTAVAIL } else { EINVAL };
        sc!(SYS_bind, raw, at.as_ptr(), 28).fails(error);
        let (mut value, mut len) = (0i32, 4u32);
        let mut get = |level: i32, name: i32| {
            sc!(SYS_getsockopt, raw, level, name, &raw mut value, &raw mut len)
        };
        let error = if domain == AF_INET { EOPNOTSUPP } else { ENOPROTOOPT };
        get(protocol, 9).fails(error);
        get(SOL_SOCKET, SO_REUSEADDR).is(0);
        assert_eq!(value, 1);
    }
    // In the place of a port stands the protocol, or nothing.
    let raw = sc!(SYS_socket, AF_INET6, SOCK_RAW, IPPROTO_UDP).fd();
    let mut to = [0u8; 28];
    to[0] = AF_INET6 as u8;
    to[23] = 1;
    to[3] = 18;
    sc!(SYS_sendto, raw, b"12345678".as_ptr(), 8, 0, to.as_ptr(), 28).fails(EINVAL);
}

/// The bit that is O_SYNC's alone stands for all of it; datagrams that are shut down both ways are
/// hung up.
fn what_is_meant_by_halves() {
    let path = format!("{}/f", dir());
    let half = O_SYNC & !O_DSYNC;
    let fd = sc!(SYS_open, c(&path).as_ptr(), O_RDWR | O_CREAT | half, 0o600).fd();
    assert_eq!(sc!(SYS_fcntl, fd, F_GETFL).must() as i32 & O_SYNC, O_SYNC);
    let udp = sc!(SYS_socket, AF_INET, SOCK_DGRAM, 0).fd();
    let told = || {
        let mut entry = pollfd { fd: udp, events: POLLIN | POLLRDHUP, revents: 0 };
        sc!(SYS_poll, &raw mut entry, 1, 0).must();
        entry.revents
    };
    sc!(SYS_shutdown, udp, SHUT_RD).fails(ENOTCONN);
    assert_eq!(told(), POLLIN | POLLRDHUP);
    sc!(SYS_shutdown, udp, SHUT_WR).fails(ENOTCONN);
    assert_eq!(told(), POLLIN | POLLRDHUP | POLLHUP);
}

/// The name of a unix socket has the permission bits that the socket was given (fchmod(2)).
fn modes_of_names_of_sockets() {
    let socket = sc!(SYS_socket, AF_UNIX, SOCK_STREAM, 0).fd();
    sc!(SYS_fchmod, socket, 0o2750).is(0);
    let path = format!("{}/named", dir());
    let mut at = [0u8; 110];
    at[0] = AF_UNIX as u8;
    at[2..2 + path.len()].copy_from_slice(path.as_bytes());
    sc!(SYS_bind, socket, at.as_ptr(), 3 + path.len()).is(0);
    use std::os::unix::fs::MetadataExt as _;
    let umask = sc!(SYS_umask, 0).must();
    sc!(SYS_umask, umask).is(0);
    let mode = std::fs::metadata(&path).unwrap().mode() as usize;
    assert_eq!(mode & 0o7777, 0o2750 & !umask);
}

/// A socket refuses to be mapped when what the mapping would have replaced is gone.
fn what_a_socket_would_have_replaced() {
    let socket = sc!(SYS_socket, AF_UNIX, SOCK_STREAM, 0).fd();
    let page = anon(4096);
    let fixed = MAP_SHARED | MAP_FIXED;
    mmap(page as usize, 4096, PROT_READ, fixed, socket, 0).fails(ENODEV);
    sc!(SYS_madvise, page, 4096, MADV_NORMAL).fails(ENOMEM);
}

/// A file system in memory of a test's own, in a name space of its own; where it is.
fn own_mount() -> String {
    own_mounts();
    let dir = dir();
    let kind = c"tmpfs".as_ptr();
    sc!(SYS_mount, kind, c(&dir).as_ptr(), kind, 0, 0).is(0);
    dir
}

fn who_writes_keeps_a_mount_writable() {
    in_child(|| {
        let dir = own_mount();
        let (top, path) = (c(&dir), format!("{dir}/f"));
        let remount = |flags: u64| sc!(SYS_mount, 0, top.as_ptr(), 0, MS_REMOUNT | flags, 0);
        let file = open(&path, O_RDWR | O_CREAT).fd();
        sc!(SYS_write, file, [7u8; 4096].as_ptr(), 4096).is(4096);
        remount(MS_RDONLY).fails(EBUSY);
        remount(MS_RDONLY | MS_BIND).fails(EBUSY);
        // A mapping that may be written to counts, too.
        let at = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0).must();
        close(file);
        remount(MS_RDONLY).fails(EBUSY);
        sc!(SYS_munmap, at, 4096).is(0);
        remount(MS_RDONLY).is(0);
        open(&path, O_RDWR).fails(EROFS);
        open(&format!("{dir}/g"), O_RDWR | O_CREAT).fails(EROFS);
        sc!(SYS_unlink, c(&path).as_ptr()).fails(EROFS);
        sc!(SYS_rename, c(&path).as_ptr(), c(&format!("{dir}/g")).as_ptr()).fails(EROFS);
        sc!(SYS_truncate, c(&path).as_ptr(), 0).fails(EROFS);
        let reader = open(&path, O_RDONLY).fd();
        remount(0).is(0);
        let file = open(&path, O_RDWR).fd();
        close(file);
        // Who only reads keeps nothing.
        remount(MS_RDONLY).is(0);
        close(reader);
        sc!(SYS_umount2, top.as_ptr(), 0).is(0);
    });
}

fn words_are_private_or_shared() {
    for flags in [MAP_PRIVATE, MAP_SHARED] {
        let at = mmap(0, 4096, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0).must();
        for mine in [0, FUTEX_PRIVATE_FLAG] {
            let id = AtomicU32::new(0);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    id.store(tid() as u32, SeqCst);
                    sc!(SYS_futex, at, FUTEX_WAIT | mine, 0, 0, 0, 0).is(0);
                });
                let sleeps = || {
                    let stat = format!("/proc/self/task/{}/stat", id.load(SeqCst));
                    std::fs::read_to_string(stat).is_ok_and(|stat| stat.contains(") S "))
                };
                until(|| id.load(SeqCst) != 0 && sleeps());
                // Who says otherwise means another word.
                sc!(SYS_futex, at, FUTEX_WAKE | (mine ^ FUTEX_PRIVATE_FLAG), 1, 0, 0, 0).is(0);
                until(|| sc!(SYS_futex, at, FUTEX_WAKE | mine, 1, 0, 0, 0).must() == 1);
            });
        }
    }
}

/// What recvmsg(2) with MSG_ERRQUEUE gave: data, flags, where it was sent, and the message's words.
type Returned = (Vec<u8>, i32, [u8; 8], i32, Vec<u8>);

fn what_came_back(socket: i32) -> Result<Returned, i32> {
    let (mut data, mut name, mut control) = ([0u8; 16], [0u8; 28], [0u64; 16]);
    let vector = [data.as_mut_ptr() as usize, data.len()];
    let mut header = [
        name.as_mut_ptr() as usize,
        name.len(),
        vector.as_ptr() as usize,
        1,
        control.as_mut_ptr() as usize,
        128,
        0,
    ];
    let len = sc!(SYS_recvmsg, socket, header.as_mut_ptr(), MSG_ERRQUEUE)?;
    let flags = header[6] as i32;
    // SAFETY: the words of the array, as bytes.
    let bytes = unsafe { std::slice::from_raw_parts(control.as_ptr().cast::<u8>(), header[5]) };
    let kind = (control[1] >> 32) as i32;
    let mut place = [0; 8];
    place.copy_from_slice(&name[..8]);
    Ok((data[..len].to_vec(), flags, place, kind, bytes[16..].to_vec()))
}

fn what_nobody_took_comes_back() {
    let other = sc!(SYS_socket, AF_INET, SOCK_DGRAM, 0).fd();
    let mut address = [2u8, 0, 0, 0, 127, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0];
    sc!(SYS_bind, other, address.as_ptr(), 16).is(0);
    let mut length = 16u32;
    sc!(SYS_getsockname, other, address.as_mut_ptr(), &raw mut length).is(0);
    close(other);
    let socket = sc!(SYS_socket, AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0).fd();
    let send = |text: &[u8]| {
        let at = address.as_ptr();
        sc!(SYS_sendto, socket, text.as_ptr(), text.len(), 0, at, 16)
    };
    // Who is not connected and has not asked hears of nothing.
    send(b"lost").is(4);
    send(b"lost").is(4);
    assert_eq!(what_came_back(socket), Err(EAGAIN));
    let set = |on: i32| sc!(SYS_setsockopt, socket, SOL_IP, IP_RECVERR, &raw const on, 4).is(0);
    set(1);
    send(b"first").is(5);
    let mut entry = pollfd { fd: socket, events: 0, revents: 0 };
    until(|| {
        let _ = sc!(SYS_poll, &raw mut entry, 1, 0);
        entry.revents & POLLERR != 0
    });
    let (data, flags, place, kind, told) = what_came_back(socket).unwrap();
    assert_eq!(data, b"first");
    assert_eq!((flags & MSG_ERRQUEUE, place.as_slice()), (MSG_ERRQUEUE, &address[..8]));
    assert_eq!((kind, told.len()), (IP_RECVERR, 32));
    // ECONNREFUSED, by ICMP: destination unreachable, the port; from this machine.
    assert_eq!(told[..7], [ECONNREFUSED as u8, 0, 0, 0, 2, 3, 3]);
    assert_eq!(told[16..24], [2, 0, 0, 0, 127, 0, 0, 1]);
    assert_eq!(what_came_back(socket), Err(EAGAIN));
    // The error itself is told by the next call, if the queue was not read before.
    send(b"second is longer than the room").is(30);
    until(|| send(b"x") == Err(ECONNREFUSED));
    let (data, flags, ..) = what_came_back(socket).unwrap();
    assert_eq!((data.as_slice(), flags & MSG_TRUNC), (&b"second is longer"[..], MSG_TRUNC));
    send(b"third").is(5);
    set(0);
    assert_eq!(what_came_back(socket), Err(EAGAIN));
}

/// Where there are no extended attributes, no name of one is looked at.
fn attributes_without_a_name() {
    let file = dir() + "/file";
    std::fs::write(&file, "x").unwrap();
    for (path, error) in [("/proc/self/timerslack_ns", EOPNOTSUPP), (&file, EINVAL)] {
        let fd = open(path, O_RDONLY).fd();
        for name in [c"user.", c"security."] {
            sc!(SYS_fsetxattr, fd, name.as_ptr(), c"value".as_ptr(), 5, 0).fails(error);
        }
        close(fd);
    }
}

/// A pidfd leads to the namespaces of its process: the own, where there are no others.
fn entering_the_own_namespaces() {
    let fd = sc!(SYS_pidfd_open, pid(), 0).fd();
    for kind in [CLONE_NEWPID, CLONE_NEWNET, CLONE_NEWUTS, CLONE_NEWIPC] {
        sc!(SYS_setns, fd, kind).is(0);
    }
    sc!(SYS_setns, fd, 0).fails(EINVAL);
    sc!(SYS_setns, fd, CLONE_NEWUSER).fails(EINVAL);
    sc!(SYS_setns, fd, CLONE_THREAD).fails(EINVAL);
    let (end, _other) = pipe();
    sc!(SYS_setns, end, CLONE_NEWPID).fails(EINVAL);
    in_child(|| {
        let fd = sc!(SYS_pidfd_open, pid(), 0).fd();
        sc!(SYS_setuid, 12345).is(0);
        sc!(SYS_setns, fd, CLONE_NEWPID).fails(EPERM);
    });
}

/// A packet of IPv4 is at most 64 KiB long, whatever the socket's version.
fn how_long_packets_may_be() {
    let v4 = |version: i32| {
        let mut address = [0u8; 28];
        address[..2].copy_from_slice(&(version as u16).to_ne_bytes());
        address[3] = 9;
        match version {
            AF_INET => address[4..8].copy_from_slice(&[127, 0, 0, 1]),
            _ => address[18..24].copy_from_slice(&[0xff, 0xff, 127, 0, 0, 1]),
        }
        address
    };
    let mut v6 = v4(AF_INET6);
    v6[8..24].copy_from_slice(&std::net::Ipv6Addr::LOCALHOST.octets());
    for (version, address, level, name, wanted) in [
        (AF_INET, v4(AF_INET), IPPROTO_IP, IP_MTU, 65535),
        (AF_INET6, v4(AF_INET6), IPPROTO_IPV6, IPV6_MTU, 65535),
        (AF_INET6, v6, IPPROTO_IPV6, IPV6_MTU, 65536),
    ] {
        let fd = sc!(SYS_socket, version, SOCK_DGRAM, 0).fd();
        let (mut value, mut len) = (0i32, 4u32);
        sc!(SYS_getsockopt, fd, level, name, &raw mut value, &raw mut len).fails(ENOTCONN);
        sc!(SYS_connect, fd, address.as_ptr(), 28).is(0);
        sc!(SYS_getsockopt, fd, level, name, &raw mut value, &raw mut len).is(0);
        assert_eq!(value, wanted);
        close(fd);
    }
}
