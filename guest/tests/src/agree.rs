//! What calls answer where the differential fuzzer (`differ/`) found Limen to answer otherwise:
//! names and ends of sockets, processes that have ended, buffers without bytes, files of /proc.
//!
//! Neighbour: `order.rs`, which of several errors is told.

use crate::sc;
use crate::sys::*;
use crate::tests;

tests! { "agree": names_are_seen_late, peers_that_are_left, refused_connections,
zombies_are_scheduled, priorities_of_input, nothing_at_bad_places, locks_and_direct,
folders_of_proc, resolved_from_memory, signals_by_thread_pidfds,
shrinking_beyond_the_limit, what_is_left_of_a_file, any_address_by_version, pidfds_as_files,
leases_at_descriptors,
limits_of_other_threads, zeros_have_no_places, watches_newest_first }

/// An address that is never mapped.
const BAD: usize = 8;

/// Sockets of the kind in a pair, none of which waits.
fn pair_of(kind: i32) -> (i32, i32) {
    let mut pair = [0i32; 2];
    sc!(SYS_socketpair, AF_UNIX, kind | SOCK_NONBLOCK, 0, pair.as_mut_ptr()).is(0);
    (pair[0], pair[1])
}

/// An abstract name that no other test has.
fn abstract_name(number: u8) -> [u8; 13] {
    let mut name = *b"\x01\0\0agree-peer";
    let pid = std::process::id();
    name[10..13].copy_from_slice(&[b'0' + number, (pid >> 8) as u8, pid as u8]);
    name
}

/// A unix socket holds nothing back, and its name is seen late: by who was sent something before
/// it was bound, and by its peer when it has gone.
fn names_are_seen_late() {
    let (a, b) = pair_of(SOCK_STREAM);
    sc!(SYS_sendto, a, c"m".as_ptr(), 1, MSG_MORE, 0, 0).is(1);
    assert_eq!(read(b, 8), b"m");
    let (a, b) = pair_of(SOCK_DGRAM);
    write(a, b"early");
    let name = abstract_name(1);
    sc!(SYS_bind, a, name.as_ptr(), name.len()).is(0);
    let mut room = [0u8; 32];
    let mut len = 32u32;
    let mut text = [0u8; 8];
    let at = text.as_mut_ptr();
    sc!(SYS_recvfrom, b, at, 8, 0, room.as_mut_ptr(), &raw mut len).is(5);
    assert_eq!(room[..len as usize], name);
    let (a, b) = pair_of(SOCK_SEQPACKET);
    let name = abstract_name(2);
    sc!(SYS_bind, a, name.as_ptr(), name.len()).is(0);
    close(a);
    len = 32;
    sc!(SYS_getpeername, b, room.as_mut_ptr(), &raw mut len).is(0);
    assert_eq!(room[..len as usize], name);
    // An address without bytes is none.
    let (a, _b) = pair_of(SOCK_STREAM);
    sc!(SYS_sendto, a, at, 0, 0, name.as_ptr(), 0).is(0);
}

/// Who sends to a peer that has gone has none from then on, and loses what that one had sent; who
/// turns to another tells the old one so.
fn peers_that_are_left() {
    let (a, b) = pair_of(SOCK_DGRAM);
    write(b, b"lost");
    close(b);
    let mut text = [0u8; 8];
    let at = text.as_mut_ptr();
    sc!(SYS_write, a, at, 1).fails(ECONNREFUSED);
    sc!(SYS_read, a, at, 8).fails(EAGAIN);
    sc!(SYS_write, a, at, 1).fails(ENOTCONN);
    let (a, b) = pair_of(SOCK_DGRAM);
    write(b, b"lost");
    let nobody = [0u8; 16];
    sc!(SYS_connect, a, nobody.as_ptr(), 16).is(0);
    sc!(SYS_read, a, at, 8).fails(EAGAIN);
    sc!(SYS_read, b, at, 8).fails(ECONNRESET);
    // A peer that closed without having read all is told of first.
    let (a, b) = pair_of(SOCK_SEQPACKET);
    write(a, b"unread");
    close(b);
    sc!(SYS_sendto, a, at, 1, MSG_NOSIGNAL, 0, 0).fails(ECONNRESET);
    sc!(SYS_sendto, a, at, 1, MSG_NOSIGNAL, 0, 0).fails(EPIPE);
    // Nothing of a message without bytes is lost.
    let (a, b) = pair_of(SOCK_SEQPACKET);
    write(a, b"");
    close(b);
    sc!(SYS_sendto, a, at, 1, MSG_NOSIGNAL, 0, 0).fails(EPIPE);
}

/// A connection that was refused shows its name, and a SYN on the way, until that was told.
fn refused_connections() {
    let mut name = [0u8; 16];
    name[0] = AF_INET as u8;
    name[4..8].copy_from_slice(&[127, 0, 0, 1]);
    let closed = sc!(SYS_socket, AF_INET, SOCK_STREAM, 0).fd();
    sc!(SYS_bind, closed, name.as_ptr(), 16).is(0);
    let mut len = 16u32;
    sc!(SYS_getsockname, closed, name.as_mut_ptr(), &raw mut len).is(0);
    let fd = sc!(SYS_socket, AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0).fd();
    sc!(SYS_connect, fd, name.as_ptr(), 16).fails(EINPROGRESS);
    let mut own = [0u8; 16];
    sc!(SYS_getsockname, fd, own.as_mut_ptr(), &raw mut len).is(0);
    assert_eq!(own[4..8], [127, 0, 0, 1]);
    assert_ne!(own[2..4], [0, 0]);
    let mut left = -1i32;
    sc!(SYS_ioctl, fd, TIOCOUTQ, &raw mut left).is(0);
    assert_eq!(left, 1);
    sc!(SYS_connect, fd, name.as_ptr(), 16).fails(ECONNREFUSED);
    sc!(SYS_getsockname, fd, own.as_mut_ptr(), &raw mut len).is(0);
    assert_eq!(own[4..8], [0; 4]);
}

/// A child that has ended can be asked and changed until it is waited for.
fn zombies_are_scheduled() {
    let pid = fork(|| 0);
    let mut info = [0u8; 128];
    sc!(SYS_waitid, P_PID, pid, info.as_mut_ptr(), WEXITED | WNOWAIT, 0).is(0);
    let (mut words, none) = ([1u64; 8], [0u32; 1]);
    let at = words.as_mut_ptr();
    sc!(SYS_sched_rr_get_interval, pid, at).is(0);
    sc!(SYS_sched_getparam, pid, at).is(0);
    sc!(SYS_sched_setparam, pid, none.as_ptr()).is(0);
    sc!(SYS_sched_getscheduler, pid).is(0);
    sc!(SYS_sched_getattr, pid, at, 48, 0).is(0);
    sc!(SYS_setpriority, PRIO_PROCESS, pid, 3).is(0);
    let bad = [48u32, 99, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    sc!(SYS_sched_setattr, pid, bad.as_ptr(), 0).fails(EINVAL);
    wait_code(pid, 0);
    sc!(SYS_sched_getparam, pid, at).fails(ESRCH);
}

/// What ioprio_set(2) sets is told, also to a child; of several threads the highest.
fn priorities_of_input() {
    const IDLE: usize = 3 << 13;
    const BEST_EFFORT: usize = 2 << 13;
    in_child(|| {
        sc!(SYS_ioprio_get, 1, 0).is(0);
        sc!(SYS_ioprio_set, 1, 0, BEST_EFFORT | 6).is(0);
        sc!(SYS_ioprio_get, 1, 0).is(BEST_EFFORT | 6);
        sc!(SYS_setpgid, 0, 0).is(0);
        in_child(|| {
            sc!(SYS_ioprio_get, 1, 0).is(BEST_EFFORT | 6);
            sc!(SYS_ioprio_set, 1, 0, IDLE).is(0);
            sc!(SYS_ioprio_get, 2, 0).is(BEST_EFFORT | 6);
        });
        sc!(SYS_ioprio_set, 1, 0, 0).is(0);
        sc!(SYS_ioprio_get, 2, 0).is(BEST_EFFORT | 4);
    });
}

/// What has no bytes is not looked at, wherever it would be.
fn nothing_at_bad_places() {
    let far = usize::MAX & !4095;
    sc!(SYS_select, 0, 0, 0, usize::MAX, [0u64; 2].as_ptr()).is(0);
    sc!(SYS_msync, far, usize::MAX, MS_SYNC).is(0);
    let byte = 0u8;
    let (local, remote) = ([&raw const byte as usize, 1], [BAD, 0]);
    sc!(SYS_process_vm_readv, 1 << 22, local.as_ptr(), 1, remote.as_ptr(), 1, 0).is(0);
    sc!(SYS_faccessat2, AT_FDCWD, 0, 4, AT_EMPTY_PATH).fails(EFAULT);
    let (_reader, writer) = pipe_flags(O_NONBLOCK);
    let text = *b"0123456789";
    let parts = [text.as_ptr() as usize, 10, BAD, 10];
    sc!(SYS_vmsplice, writer, parts.as_ptr(), 2, SPLICE_F_NONBLOCK).is(10);
    let (a, b) = pair_of(SOCK_DGRAM);
    write(a, &text);
    let parts = [text.as_ptr() as usize, 5, BAD, 5];
    let mut message = [0usize; 7];
    (message[2], message[3]) = (parts.as_ptr() as usize, 2);
    sc!(SYS_recvmsg, b, message.as_mut_ptr(), MSG_PEEK).fails(EFAULT);
}

/// A lock is shown at the descriptor by which it was taken; O_DIRECT is for files that can.
fn locks_and_direct() {
    let (reader, writer) = pipe();
    let lock = libc::flock { l_type: F_WRLCK as i16, l_whence: 0, l_start: 0, l_len: 9, l_pid: 0 };
    sc!(SYS_fcntl, writer, F_SETLK, &raw const lock).is(0);
    let shown = |fd: i32| {
        std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).unwrap().contains("lock:")
    };
    assert!(shown(writer) && !shown(reader));
    open("/dev/null", O_RDWR | O_DIRECT).fails(EINVAL);
    open("/proc/version", O_RDONLY | O_DIRECT).fails(EINVAL);
    let memory = sc!(SYS_memfd_create, c"agree".as_ptr(), 0).fd();
    sc!(SYS_fcntl, memory, F_SETFL, O_DIRECT).fails(EINVAL);
}

/// Links of /proc's folders count what is in them; what a file of /proc takes no write of, it says
/// before it looks at what it should take, and only some can be sent.
fn folders_of_proc() {
    let links = |path: &str| {
        use std::os::unix::fs::MetadataExt as _;
        std::fs::metadata(path).unwrap().nlink()
    };
    let folders = |path: &str| {
        let entries = std::fs::read_dir(path).unwrap().flatten();
        entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).count() as u64
    };
    assert_eq!(links("/proc/self"), 2 + folders("/proc/self"));
    assert_eq!(links("/proc/self/fd"), 2);
    let command = open("/proc/self/cmdline", O_RDWR);
    // Only root's programs may open it so.
    if let Ok(fd) = command {
        sc!(SYS_write, fd, BAD, 10).fails(EINVAL);
    }
    let version = open("/proc/self/limits", O_RDONLY).fd();
    let (_reader, writer) = pipe();
    sc!(SYS_sendfile, writer, version, 0, 10).fails(EINVAL);
    let all = open("/proc/version", O_RDONLY).fd();
    sc!(SYS_sendfile, writer, all, 0, 5).is(5);
}

/// What RESOLVE_CACHED does not know on its way is EAGAIN, and what it finds at the end is told.
fn resolved_from_memory() {
    const CACHED: u64 = 0x20;
    let open_cached = |path: &core::ffi::CStr, flags: i32| {
        let how = [flags as u64, 0, CACHED];
        sc!(SYS_openat2, AT_FDCWD, path.as_ptr(), how.as_ptr(), 24)
    };
    open("/dev/null", O_RDONLY).fd();
    open_cached(c"/dev/null", O_DIRECTORY).fails(ENOTDIR);
    open_cached(c"/dev/null/x", O_RDONLY).fails(EAGAIN);
}

/// A signal to a thread by a pidfd is one of tgkill(2).
fn signals_by_thread_pidfds() {
    const THREAD: i32 = O_EXCL;
    let pidfd = sc!(SYS_pidfd_open, std::process::id(), THREAD).fd();
    block_signal(SIGUSR1);
    sc!(SYS_pidfd_send_signal, pidfd, SIGUSR1, 0, 0).is(0);
    let info = taken_signal(bit(SIGUSR1), 5).unwrap();
    assert_eq!(info.code, SI_TKILL);
}

/// RLIMIT_FSIZE is about files that get longer: one that is longer may be cut to what is too long.
fn shrinking_beyond_the_limit() {
    let path = format!("{}/long", dir());
    std::fs::write(&path, vec![b'x'; 6000]).unwrap();
    let fd = open(&path, O_RDWR).fd();
    sc!(SYS_setrlimit, RLIMIT_FSIZE, [40, RLIM_INFINITY].as_ptr()).is(0);
    on_signal(SIGXFSZ, SIG_IGN, 0, 0);
    sc!(SYS_truncate, c(&path).as_ptr(), 5000).is(0);
    sc!(SYS_ftruncate, fd, 4000).is(0);
    sc!(SYS_ftruncate, fd, 4000).is(0);
    sc!(SYS_ftruncate, fd, 4001).fails(EFBIG);
    sc!(SYS_truncate, c(&path).as_ptr(), 4001).fails(EFBIG);
    sc!(SYS_ftruncate, fd, 10).is(0);
    sc!(SYS_ftruncate, fd, 40).is(0);
    sc!(SYS_ftruncate, fd, 41).fails(EFBIG);
}

/// FIONREAD of a file: what lies between position and end, less than nothing behind it, and of a
/// long one the lower half of the number.
fn what_is_left_of_a_file() {
    let fd = sc!(SYS_memfd_create, c"left".as_ptr(), 0).fd();
    let left = |position: usize| {
        sc!(SYS_lseek, fd, position, SEEK_SET).is(position);
        let mut left = 0i32;
        sc!(SYS_ioctl, fd, FIONREAD, &raw mut left).is(0);
        left
    };
    assert_eq!(left(85), -85);
    sc!(SYS_ftruncate, fd, 5usize << 30).is(0);
    assert_eq!(left(0), 1 << 30);
    assert_eq!(left(1 << 30), 0);
    assert_eq!(left((5 << 30) - 7), 7);
}

/// `struct sockaddr_in6` of this address and port.
fn v6(address: [u16; 8], port: u16) -> [u8; 28] {
    let mut bytes = [0u8; 28];
    bytes[..2].copy_from_slice(&(AF_INET6 as u16).to_ne_bytes());
    bytes[2..4].copy_from_slice(&port.to_be_bytes());
    for (to, part) in bytes[8..24].chunks_mut(2).zip(address) {
        to.copy_from_slice(&part.to_be_bytes());
    }
    bytes
}

/// The address and the port of a socket, or of its peer.
fn name_of(call: i64, fd: i32) -> ([u8; 16], u16) {
    let (mut room, mut len) = ([0u8; 28], 28u32);
    sc!(call, fd, room.as_mut_ptr(), &raw mut len).is(0);
    assert_eq!(len, 28);
    (room[8..24].try_into().unwrap(), u16::from_be_bytes([room[2], room[3]]))
}

/// To send or connect to "any" is to the loopback: that of version 4 from a socket that has an
/// address of that version.
fn any_address_by_version() {
    const MAPPED: [u16; 8] = [0, 0, 0, 0, 0, 0xffff, 0x7f00, 1];
    let mapped = std::net::Ipv4Addr::LOCALHOST.to_ipv6_mapped().octets();
    let socket = |kind: i32| sc!(SYS_socket, AF_INET6, kind, 0).fd();
    let (fd, port) = (socket(SOCK_DGRAM), 9);
    let mut v4 = [0u8; 16];
    v4[..2].copy_from_slice(&(AF_INET as u16).to_ne_bytes());
    v4[2..8].copy_from_slice(&[0, 9, 127, 0, 0, 1]);
    sc!(SYS_connect, fd, v4.as_ptr(), 16).is(0);
    sc!(SYS_connect, fd, v6([0; 8], port).as_ptr(), 28).is(0);
    assert_eq!(name_of(SYS_getpeername, fd), (mapped, port));
    sc!(SYS_connect, fd, v6([0, 0, 0, 0, 0, 0, 0, 1], port).as_ptr(), 28).fails(EAFNOSUPPORT);
    // Bound to an address of version 4: sent to there, and connected there.
    let taker = socket(SOCK_DGRAM);
    sc!(SYS_bind, taker, v6(MAPPED, 0).as_ptr(), 28).is(0);
    let (_, port) = name_of(SYS_getsockname, taker);
    let sender = socket(SOCK_DGRAM);
    sc!(SYS_bind, sender, v6(MAPPED, 0).as_ptr(), 28).is(0);
    sc!(SYS_sendto, sender, c"any".as_ptr(), 3, 0, v6([0; 8], port).as_ptr(), 28).is(3);
    assert_eq!(read(taker, 8), b"any");
    let listener = socket(SOCK_STREAM);
    sc!(SYS_bind, listener, v6(MAPPED, 0).as_ptr(), 28).is(0);
    sc!(SYS_listen, listener, 1).is(0);
    let (_, port) = name_of(SYS_getsockname, listener);
    let client = socket(SOCK_STREAM);
    sc!(SYS_bind, client, v6(MAPPED, 0).as_ptr(), 28).is(0);
    sc!(SYS_connect, client, v6([0; 8], port).as_ptr(), 28).is(0);
    assert_eq!(name_of(SYS_getpeername, client), (mapped, port));
}

/// A pidfd is a regular file to its file system, without attributes and without data.
fn pidfds_as_files() {
    let pidfd = sc!(SYS_pidfd_open, pid(), 0).fd();
    for name in [c"user.", c"user.name"] {
        sc!(SYS_fgetxattr, pidfd, name.as_ptr(), 0, 0).fails(EOPNOTSUPP);
        // To change one is EPERM or EOPNOTSUPP, by the version.
        assert!(sc!(SYS_fsetxattr, pidfd, name.as_ptr(), c"v".as_ptr(), 1, 0).is_err());
    }
    let (mut at, (_reader, writer)) = (4096u64, pipe());
    sc!(SYS_sendfile, writer, pidfd, &raw mut at, 10).fails(EINVAL);
    sc!(SYS_sendfile, writer, pidfd, 0, 10).fails(EINVAL);
    sc!(SYS_splice, pidfd, &raw mut at, writer, 0, 10, 0).fails(EINVAL);
    assert_eq!(at, 4096);
    let events = sc!(SYS_eventfd2, 0, 0).fd();
    sc!(SYS_sendfile, writer, events, &raw mut at, 10).fails(ESPIPE);
}

/// A lease is shown where locks are, at the open file that has it, which has O_ASYNC as long.
fn leases_at_descriptors() {
    let path = format!("{}/leased", dir());
    let fd = open(&path, O_RDWR | O_CREAT).fd();
    let flags = || sc!(SYS_fcntl, fd, F_GETFL).must() as i32 & O_ASYNC;
    let shown = || {
        let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).unwrap();
        let lines = text.lines().filter_map(|line| line.strip_prefix("lock:\t"));
        lines.map(|line| line.split_whitespace().take(4).collect::<Vec<_>>().join(" ")).collect()
    };
    let none: [String; 0] = [];
    let lines: Vec<String> = shown();
    assert_eq!((flags(), &lines[..]), (0, &none[..]));
    sc!(SYS_fcntl, fd, F_SETLEASE, F_WRLCK).is(0);
    sc!(SYS_flock, fd, LOCK_SH).is(0);
    let lines: Vec<String> = shown();
    assert_eq!(lines, ["1: FLOCK ADVISORY READ", "2: LEASE ACTIVE WRITE"]);
    assert_eq!(flags(), O_ASYNC);
    // Other flags come and go beside it.
    sc!(SYS_fcntl, fd, F_SETFL, O_APPEND).is(0);
    assert_eq!(flags(), O_ASYNC);
    sc!(SYS_fcntl, fd, F_SETLEASE, F_UNLCK).is(0);
    let lines: Vec<String> = shown();
    assert_eq!((flags(), lines), (0, vec!["1: FLOCK ADVISORY READ".to_owned()]));
}

/// Limits of another thread take its ids, also within one process.
fn limits_of_other_threads() {
    static ANSWER: std::sync::atomic::AtomicI32 = std::sync::atomic::AtomicI32::new(-1);
    extern "C" fn asks() {
        let mut old = [0u64; 2];
        sc!(SYS_setresuid, 64_001, 64_001, 64_001).is(0);
        let own = sc!(SYS_prlimit64, tid(), RLIMIT_NOFILE, 0, old.as_mut_ptr()).is_ok();
        let of_first = sc!(SYS_prlimit64, pid(), RLIMIT_NOFILE, 0, old.as_mut_ptr());
        let answer = if own { of_first.err().unwrap_or(0) } else { -2 };
        ANSWER.store(answer, std::sync::atomic::Ordering::SeqCst);
        let _ = sc!(SYS_exit, 0);
    }
    raw_thread(THREAD_FLAGS, asks);
    until(|| ANSWER.load(std::sync::atomic::Ordering::SeqCst) != -1);
    assert_eq!(ANSWER.load(std::sync::atomic::Ordering::SeqCst), EPERM);
}

/// What is taken from /dev/zero moves no position.
fn zeros_have_no_places() {
    let (zeros, (reader, writer)) = (open("/dev/zero", O_RDONLY).fd(), pipe());
    sc!(SYS_sendfile, writer, zeros, 0, 22).is(22);
    sc!(SYS_splice, zeros, 0, writer, 0, 10, 0).is(10);
    assert_eq!(read(reader, 64), [0; 32]);
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{zeros}")).unwrap();
    assert!(info.starts_with("pos:\t0\n"), "{info}");
}

/// fdinfo lists watches from the newest on; one that is changed stays where it is.
fn watches_newest_first() {
    let fd = sc!(SYS_inotify_init1, 0).fd();
    for (path, mask, wd) in [(c"/", IN_CREATE, 1), (c"/proc", IN_OPEN, 2), (c"/", IN_MODIFY, 1)] {
        sc!(SYS_inotify_add_watch, fd, path.as_ptr(), mask).is(wd);
    }
    let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).expect("fdinfo");
    let lines = text.lines().filter_map(|line| line.strip_prefix("inotify wd:"));
    let order: Vec<&str> = lines.filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(order, ["2", "1"], "{text}");
}
