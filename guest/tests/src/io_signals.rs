//! Signals about files: O_ASYNC, F_SETOWN, F_SETOWN_EX, F_SETSIG (fcntl(2)), SIGIO and SIGURG.

use crate::sys::*;
use crate::{sc, tests};

tests! { "io_signals":
    each_kind_signals, without_a_number, nobody_is_signalled, owners_are_given_back,
    urgent_data_signals, users_signal_their_own, directories_signal,
}

const F_SETSIG: i32 = 10;
const F_GETSIG: i32 = 11;
const F_SETOWN_EX: i32 = 15;
const F_GETOWN_EX: i32 = 16;
const POLL_IN: i32 = 1;
/// si_band of POLL_IN: POLLIN and POLLRDNORM.
const READABLE: u64 = 0x41;
const NUMBER: i32 = 40;

/// One of these signals that is there already.
fn pending(set: u64) -> Option<i32> {
    sc!(SYS_rt_sigtimedwait, &raw const set, 0, [0i64, 0].as_ptr(), 8).ok().map(|sig| sig as i32)
}

fn own(fd: i32) {
    sc!(SYS_fcntl, fd, F_SETOWN, pid()).is(0);
    let flags = sc!(SYS_fcntl, fd, F_GETFL).must();
    sc!(SYS_fcntl, fd, F_SETFL, flags | O_ASYNC as usize).is(0);
    sc!(SYS_fcntl, fd, F_GETFL).is(flags | O_ASYNC as usize);
}

/// A kind's name, a descriptor of it, and what makes it readable.
type Readable = (&'static str, i32, Box<dyn Fn()>);

/// One of each kind.
fn kinds() -> Vec<Readable> {
    let mut list: Vec<Readable> = Vec::new();
    let (out, into) = pipe();
    list.push(("pipe", out, Box::new(move || write(into, b"x"))));
    for kind in [SOCK_STREAM, SOCK_DGRAM, SOCK_SEQPACKET] {
        let mut pair = [0i32; 2];
        sc!(SYS_socketpair, AF_UNIX, kind, 0, pair.as_mut_ptr()).is(0);
        list.push(("unix socket", pair[0], Box::new(move || write(pair[1], b"x"))));
    }
    let address = |fd: i32| {
        let mut name =
            [2u16, 0, u16::from_ne_bytes([127, 0]), u16::from_ne_bytes([0, 1]), 0, 0, 0, 0];
        sc!(SYS_bind, fd, name.as_ptr(), 16).is(0);
        sc!(SYS_getsockname, fd, name.as_mut_ptr(), [16u32].as_mut_ptr()).is(0);
        name
    };
    let datagrams = sc!(SYS_socket, AF_INET, SOCK_DGRAM, 0).fd();
    let name = address(datagrams);
    list.push((
        "udp",
        datagrams,
        Box::new(move || {
            let sender = sc!(SYS_socket, AF_INET, SOCK_DGRAM, 0).fd();
            sc!(SYS_sendto, sender, b"x".as_ptr(), 1, 0, name.as_ptr(), 16).is(1);
        }),
    ));
    let listener = sc!(SYS_socket, AF_INET, SOCK_STREAM, 0).fd();
    let name = address(listener);
    sc!(SYS_listen, listener, 1).is(0);
    list.push((
        "tcp listener",
        listener,
        Box::new(move || {
            let peer = sc!(SYS_socket, AF_INET, SOCK_STREAM, 0).fd();
            sc!(SYS_connect, peer, name.as_ptr(), 16).is(0);
        }),
    ));
    let d = dir();
    let watcher = sc!(SYS_inotify_init1, 0).fd();
    sc!(SYS_inotify_add_watch, watcher, c(&d).as_ptr(), IN_CREATE).must();
    list.push((
        "inotify",
        watcher,
        Box::new(move || {
            std::fs::write(format!("{d}/f"), "").expect("a file");
        }),
    ));
    let master = open("/dev/ptmx", O_RDWR | O_NOCTTY).fd();
    sc!(SYS_ioctl, master, TIOCSPTLCK, [0u32].as_ptr()).is(0);
    let terminal = sc!(SYS_ioctl, master, TIOCGPTPEER, O_RDWR | O_NOCTTY).fd();
    list.push(("terminal", terminal, Box::new(move || write(master, b"x\n"))));
    list
}

/// The signal comes with the descriptor and what can be done, and is there when the call returns.
fn each_kind_signals() {
    sigmask(SIG_BLOCK, bit(NUMBER) | bit(SIGIO));
    for (name, fd, make_readable) in kinds() {
        sc!(SYS_fcntl, fd, F_SETSIG, NUMBER).is(0);
        sc!(SYS_fcntl, fd, F_GETSIG).is(NUMBER as usize);
        own(fd);
        assert_eq!(pending(bit(NUMBER) | bit(SIGIO)), None, "{name}: before anything happened");
        make_readable();
        let info = taken_signal(bit(NUMBER), 1).unwrap_or_else(|| panic!("{name}: no signal"));
        let band = info.pid as u32 as u64 | (info.uid as u64) << 32;
        assert_eq!((info.code, band, info.status), (POLL_IN, READABLE, fd), "{name}");
        while pending(bit(NUMBER) | bit(SIGIO)).is_some() {}
        // Once it is cleared, nothing comes.
        let flags = sc!(SYS_fcntl, fd, F_GETFL).must();
        sc!(SYS_fcntl, fd, F_SETFL, flags & !(O_ASYNC as usize)).is(0);
        if name == "pipe" || name == "unix socket" {
            make_readable();
            assert_eq!(pending(bit(NUMBER) | bit(SIGIO)), None, "{name}: cleared");
        }
    }
}

/// Without F_SETSIG it is SIGIO, from the kernel.
fn without_a_number() {
    sigmask(SIG_BLOCK, bit(SIGIO));
    let (out, into) = pipe();
    own(out);
    write(into, b"x");
    let info = taken_signal(bit(SIGIO), 1).expect("SIGIO");
    assert_eq!((info.signo, info.code), (SIGIO, 0x80));
    // The ioctl is the same as the flag.
    sc!(SYS_ioctl, out, FIOASYNC, [0i32].as_ptr()).is(0);
    sc!(SYS_fcntl, out, F_GETFL).is(0);
    // Who writes is not told of data, but that the reader has gone.
    let (out, into) = pipe();
    own(into);
    write(into, b"x");
    assert_eq!(pending(bit(SIGIO)), None);
    close(out);
    assert_eq!(pending(bit(SIGIO)), Some(SIGIO));
}

/// What counts and what is a file on a disk takes the settings and never signals.
fn nobody_is_signalled() {
    sigmask(SIG_BLOCK, bit(SIGIO));
    let counter = sc!(SYS_eventfd2, 0, 0).fd();
    sc!(SYS_fcntl, counter, F_SETOWN, pid()).is(0);
    sc!(SYS_fcntl, counter, F_SETFL, O_ASYNC).is(0);
    assert_eq!(sc!(SYS_fcntl, counter, F_GETFL).must() as i32 & O_ASYNC, 0);
    sc!(SYS_ioctl, counter, FIOASYNC, [1i32].as_ptr()).fails(ENOTTY);
    write(counter, &1u64.to_ne_bytes());
    assert_eq!(pending(bit(SIGIO)), None);
    // Nor is there a signal without an owner.
    let (out, into) = pipe();
    sc!(SYS_fcntl, out, F_SETFL, O_ASYNC).is(0);
    write(into, b"x");
    assert_eq!(pending(bit(SIGIO)), None);
}

fn owners_are_given_back() {
    let (out, into) = pipe();
    let mut owner = [9i32; 2];
    sc!(SYS_fcntl, out, F_GETOWN_EX, owner.as_mut_ptr()).is(0);
    assert_eq!(owner[1], 0);
    for (kind, id) in [(0, tid()), (1, pid()), (2, sc!(SYS_getpgid, 0).must() as i32)] {
        sc!(SYS_fcntl, out, F_SETOWN_EX, [kind, id].as_ptr()).is(0);
        sc!(SYS_fcntl, out, F_GETOWN_EX, owner.as_mut_ptr()).is(0);
        assert_eq!(owner, [kind, id]);
    }
    sigmask(SIG_BLOCK, bit(SIGIO));
    // The group is this process's own.
    sc!(SYS_fcntl, out, F_SETFL, O_ASYNC).is(0);
    write(into, b"x");
    assert_eq!(taken_signal(bit(SIGIO), 1).map(|info| info.signo), Some(SIGIO));
    sc!(SYS_fcntl, out, F_SETOWN_EX, [3, 1].as_ptr()).fails(EINVAL);
    sc!(SYS_fcntl, out, F_SETOWN_EX, [1, 1 << 23].as_ptr()).fails(ESRCH);
    sc!(SYS_fcntl, out, F_SETOWN, i32::MIN).fails(EINVAL);
    sc!(SYS_fcntl, out, F_SETSIG, 65).fails(EINVAL);
    // A thread alone: the signal is its own, and not the process's.
    sc!(SYS_fcntl, out, F_SETOWN_EX, [0, tid()].as_ptr()).is(0);
    write(into, b"x");
    let status = std::fs::read_to_string("/proc/thread-self/status").expect("status");
    let line = status.lines().find(|line| line.starts_with("SigPnd:")).expect("SigPnd");
    assert!(line.ends_with("10000000"), "{line}");
}

/// tcp(7): SIGURG, whether or not O_ASYNC is set.
fn urgent_data_signals() {
    sigmask(SIG_BLOCK, bit(SIGURG) | bit(SIGIO));
    let listener = sc!(SYS_socket, AF_INET, SOCK_STREAM, 0).fd();
    let mut name = [2u16, 0, u16::from_ne_bytes([127, 0]), u16::from_ne_bytes([0, 1]), 0, 0, 0, 0];
    sc!(SYS_bind, listener, name.as_ptr(), 16).is(0);
    sc!(SYS_listen, listener, 1).is(0);
    sc!(SYS_getsockname, listener, name.as_mut_ptr(), [16u32].as_mut_ptr()).is(0);
    let peer = sc!(SYS_socket, AF_INET, SOCK_STREAM, 0).fd();
    sc!(SYS_connect, peer, name.as_ptr(), 16).is(0);
    let accepted = sc!(SYS_accept, listener, 0, 0).fd();
    sc!(SYS_fcntl, accepted, F_SETOWN, pid()).is(0);
    sc!(SYS_sendto, peer, b"x".as_ptr(), 1, MSG_OOB, 0, 0).is(1);
    assert_eq!(taken_signal(bit(SIGURG) | bit(SIGIO), 1).map(|info| info.signo), Some(SIGURG));
}

/// Who is no longer root's reaches only their own (as kill(2)).
fn users_signal_their_own() {
    sigmask(SIG_BLOCK, bit(SIGIO));
    let (out, into) = pipe();
    let owner = pid();
    in_child(|| {
        if sc!(SYS_setresuid, 65534, 65534, 65534).is_err() {
            return;
        }
        sc!(SYS_fcntl, out, F_SETOWN, owner).is(0);
        sc!(SYS_fcntl, out, F_SETFL, O_ASYNC).is(0);
        write(into, b"x");
    });
    if sc!(SYS_geteuid) == Ok(0) {
        assert_eq!(pending(bit(SIGIO)), None);
    }
}

const DN_CREATE: u32 = 4;
const DN_DELETE: u32 = 8;
const DN_MULTISHOT: u32 = 1 << 31;
const POLL_MSG: i32 = 3;

/// F_NOTIFY: what happens in a directory is signalled with its descriptor, once or each time, until
/// it is closed.
fn directories_signal() {
    let path = dir();
    let file = format!("{path}/f");
    let make = || close(open(&file, O_RDWR | O_CREAT).fd());
    let remove = || sc!(SYS_unlink, c(&file).as_ptr()).is(0);
    let fd = open(&path, O_RDONLY).fd();
    let set = bit(NUMBER);
    sigmask(SIG_BLOCK, set);
    // Its number, descriptor and reason, of one that is there.
    let told = || {
        let mut info = [0i32; 32];
        let got =
            sc!(SYS_rt_sigtimedwait, &raw const set, info.as_mut_ptr(), [0i64, 0].as_ptr(), 8);
        got.ok().map(|sig| (sig as i32, info[2], info[6]))
    };
    let one = Some((NUMBER, POLL_MSG, fd));
    sc!(SYS_fcntl, fd, F_SETSIG, NUMBER).is(0);
    sc!(SYS_fcntl, fd, F_NOTIFY, DN_CREATE).is(0);
    sc!(SYS_fcntl, fd, F_GETOWN).is(pid() as usize);
    make();
    assert_eq!(told(), one);
    remove();
    make();
    assert_eq!(told(), None, "only once");
    sc!(SYS_fcntl, fd, F_NOTIFY, DN_CREATE | DN_MULTISHOT).is(0);
    for _ in 0..3 {
        remove();
        assert_eq!(told(), None, "nobody asked for removals");
        make();
        assert_eq!(told(), one);
    }
    sc!(SYS_fcntl, fd, F_NOTIFY, DN_DELETE).is(0);
    remove();
    assert_eq!(told(), one, "beside what was asked before");
    make();
    assert_eq!(told(), one);
    sc!(SYS_fcntl, fd, F_NOTIFY, 0).is(0);
    remove();
    assert_eq!(told(), None, "ended");
    sc!(SYS_fcntl, fd, F_NOTIFY, DN_CREATE | DN_MULTISHOT).is(0);
    close(fd);
    make();
    assert_eq!(told(), None, "ends with the descriptor");
    let file = open(&file, O_RDONLY).fd();
    sc!(SYS_fcntl, file, F_NOTIFY, DN_CREATE).fails(ENOTDIR);
    sc!(SYS_fcntl, file, F_NOTIFY, 0).is(0);
    sc!(SYS_fcntl, -1i32, F_NOTIFY, DN_CREATE).fails(EBADF);
}
