//! What stays within a domain: signals, and sockets with an abstract name (landlock(7), scopes).
//!
//! Neighbour: `landlock.rs` has rights to files and ports, and what all of these tests use.

use crate::landlock::{restrict, version};
use crate::sys::*;
use crate::{sc, tests};

tests!("landlock":
    versions_and_flags, signals_stay_within, every_call_that_signals, threads_signal_each_other,
    signals_of_files_stay_within, abstract_sockets_stay_within, datagrams_stay_within,
    scopes_of_layers,
);

const ABSTRACT: u64 = 1;
const SIGNAL: u64 = 2;
const LOG_SUBDOMAINS_OFF: u32 = 4;

/// Whether the interface knows scopes.
fn is_there() -> bool {
    version().is_some_and(|version| version >= 6)
}

/// A ruleset of scopes alone.
fn scoped(scopes: u64) -> i32 {
    let attributes = [0, 0, scopes];
    sc!(SYS_landlock_create_ruleset, attributes.as_ptr(), 24, 0).fd()
}

fn scope(scopes: u64) {
    restrict(scoped(scopes)).is(0);
}

fn versions_and_flags() {
    if !is_there() {
        return;
    }
    let create = |attributes: [u64; 3]| {
        sc!(SYS_landlock_create_ruleset, attributes.as_ptr(), 24, 0).map(|fd| close(fd as i32))
    };
    assert_eq!(create([0, 0, 0]), Err(ENOMSG));
    assert_eq!(create([0, 0, 4]), Err(EINVAL));
    assert_eq!(create([0, 0, 3]), Ok(()));
    if version().is_none_or(|version| version < 7) {
        return;
    }
    // What was mended: TCP's sockets alone are meant, and threads signal each other.
    let errata = sc!(SYS_landlock_create_ruleset, 0, 0, 2).must();
    assert_eq!(errata & 3, 3, "{errata:#x}");
    sc!(SYS_landlock_create_ruleset, 0, 0, 3).fails(EINVAL);
    sc!(SYS_landlock_create_ruleset, 8, 0, 2).fails(EINVAL);
    let rules = scoped(SIGNAL);
    in_child(|| {
        sc!(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0).is(0);
        let restrict = |fd: i32, flags: u32| sc!(SYS_landlock_restrict_self, fd, flags);
        restrict(rules, 8).fails(EINVAL);
        restrict(-1, 8).fails(EINVAL);
        restrict(-1, 0).fails(EBADF);
        restrict(-1, 3).fails(EBADF);
        restrict(-1, LOG_SUBDOMAINS_OFF | 1).fails(EBADF);
        // About the log alone: nothing is restricted.
        restrict(-1, LOG_SUBDOMAINS_OFF).is(0);
        sc!(SYS_kill, getppid(), 0).is(0);
        restrict(rules, 7).is(0);
        sc!(SYS_kill, getppid(), 0).fails(EPERM);
    });
}

fn getppid() -> usize {
    sc!(SYS_getppid).must()
}

/// A child that waits until it is killed; it has ended what it does first.
fn waiting(f: impl FnOnce()) -> i32 {
    let ready = pipe();
    let pid = fork(|| {
        f();
        write(ready.1, b"x");
        loop {
            let _ = sc!(SYS_pause);
        }
    });
    read(ready.0, 1);
    pid
}

fn end(pid: i32) {
    sc!(SYS_kill, pid, SIGKILL).is(0);
    wait_signal(pid, SIGKILL);
}

fn signals_stay_within() {
    if !is_there() {
        return;
    }
    let free = waiting(|| {});
    let apart = waiting(|| scope(SIGNAL));
    in_child(|| {
        let before = waiting(|| {});
        scope(SIGNAL);
        let equal = waiting(|| {});
        let inner = waiting(|| scope(SIGNAL));
        for signal in [0, SIGTERM, SIGKILL, SIGCONT, SIGURG] {
            for outside in [getppid() as i32, free, apart, before] {
                sc!(SYS_kill, outside, signal).fails(EPERM);
            }
        }
        for inside in [equal, inner, pid()] {
            sc!(SYS_kill, inside, 0).is(0);
        }
        end(equal);
        end(inner);
        // What was sent by nobody has not come.
        sc!(SYS_wait4, before, 0, WNOHANG, 0).is(0);
        sc!(SYS_kill, 1, 0).fails(EPERM);
        sc!(SYS_kill, 0x3fff_ffff, 0).fails(ESRCH);
    });
    // Who is restricted is signalled by whoever is not.
    end(free);
    end(apart);
}

/// Calls that signal, each at a process outside, and at one inside.
fn every_call_that_signals() {
    if !is_there() {
        return;
    }
    type Way = (&'static str, fn(i32) -> Res);
    let ways: [Way; 7] = [
        ("kill", |pid| sc!(SYS_kill, pid, SIGUSR1)),
        ("tkill", |pid| sc!(SYS_tkill, pid, SIGUSR1)),
        ("tgkill", |pid| sc!(SYS_tgkill, pid, pid, SIGUSR1)),
        ("rt_sigqueueinfo", |pid| {
            let mut info = [0_u32; 32];
            (info[0], info[2]) = (SIGUSR1 as u32, SI_QUEUE as u32);
            sc!(SYS_rt_sigqueueinfo, pid, SIGUSR1, info.as_ptr())
        }),
        ("rt_tgsigqueueinfo", |pid| {
            let mut info = [0_u32; 32];
            (info[0], info[2]) = (SIGUSR1 as u32, SI_QUEUE as u32);
            sc!(SYS_rt_tgsigqueueinfo, pid, pid, SIGUSR1, info.as_ptr())
        }),
        ("pidfd_send_signal", |pid| {
            let fd = sc!(SYS_pidfd_open, pid, 0)?;
            sc!(SYS_pidfd_send_signal, fd, SIGUSR1, 0, 0)
        }),
        ("kill of a group", |pid| {
            let group = sc!(SYS_getpgid, pid)? as i32;
            sc!(SYS_kill, -group, SIGUSR1)
        }),
    ];
    let alone = || {
        sc!(SYS_setpgid, 0, 0).is(0);
    };
    for (name, way) in ways {
        let free = waiting(alone);
        in_child(|| {
            scope(SIGNAL);
            let inside = waiting(alone);
            assert_eq!(way(free), Err(EPERM), "{name}, outside");
            assert_eq!(way(inside), Ok(0), "{name}, inside");
            wait_signal(inside, SIGUSR1);
        });
        end(free);
    }
}

/// A thread that has restricted itself alone still signals the others of its process.
fn threads_signal_each_other() {
    if !is_there() {
        return;
    }
    in_child(|| {
        on_signal(SIGUSR1, SIG_IGN, 0, 0);
        let first = tid();
        let restricted = std::thread::spawn(move || {
            scope(SIGNAL);
            let own = pid();
            let alone = sc!(SYS_tgkill, own, first, SIGUSR1);
            (alone, sc!(SYS_kill, own, SIGUSR1), sc!(SYS_kill, getppid(), 0))
        });
        assert_eq!(restricted.join().unwrap(), (Ok(0), Ok(0), Err(EPERM)));
        sc!(SYS_kill, getppid(), 0).is(0);
    });
}

/// F_SETOWN by who may not signal the owner brings no signal; by who may, one.
fn signals_of_files_stay_within() {
    if !is_there() {
        return;
    }
    for restricts in [false, true] {
        let seen = pipe();
        let watcher = fork(|| {
            sigmask(SIG_BLOCK, bit(SIGIO) | bit(SIGPWR));
            write(seen.1, b"x");
            // If SIGIO comes, it does before the other, and its number is lower.
            let (set, mut got) = (bit(SIGIO) | bit(SIGPWR), [0_u32; 32]);
            let signal = sc!(SYS_rt_sigtimedwait, &raw const set, got.as_mut_ptr(), 0, 8).must();
            i32::from(signal == SIGIO as usize)
        });
        read(seen.0, 1);
        in_child(|| {
            if restricts {
                scope(SIGNAL);
            }
            let ends = pipe();
            sc!(SYS_fcntl, ends.0, F_SETOWN, watcher).is(0);
            sc!(SYS_fcntl, ends.0, F_SETFL, O_ASYNC).is(0);
            write(ends.1, b"x");
        });
        sc!(SYS_kill, watcher, SIGPWR).is(0);
        wait_code(watcher, i32::from(!restricts));
    }
    // One's own is one's own, whichever thread is restricted, and whoever else is in the group.
    in_child(|| {
        sc!(SYS_setpgid, 0, 0).is(0);
        sigmask(SIG_BLOCK, bit(SIGIO));
        let ends = pipe();
        std::thread::spawn(move || {
            scope(SIGNAL);
            sc!(SYS_fcntl, ends.0, F_SETOWN, -pid()).is(0);
            sc!(SYS_fcntl, ends.0, F_SETFL, O_ASYNC).is(0);
        })
        .join()
        .expect("a thread");
        write(ends.1, b"x");
        let (set, time) = (bit(SIGIO), [1_u64, 0]);
        let signal = sc!(SYS_rt_sigtimedwait, &raw const set, 0, time.as_ptr(), 8);
        assert_eq!(signal, Ok(SIGIO as usize), "a group");
    });
    in_child(|| {
        scope(SIGNAL);
        sigmask(SIG_BLOCK, bit(SIGIO));
        let ends = pipe();
        sc!(SYS_fcntl, ends.0, F_SETOWN, pid()).is(0);
        sc!(SYS_fcntl, ends.0, F_SETFL, O_ASYNC).is(0);
        write(ends.1, b"x");
        let set = bit(SIGIO);
        sc!(SYS_rt_sigtimedwait, &raw const set, 0, 0, 8).is(SIGIO as usize);
    });
}

/// An abstract name, or a path, that nobody else has.
fn name(place: &str) -> Vec<u8> {
    let mut address = (AF_UNIX as u16).to_ne_bytes().to_vec();
    if place == "path" {
        address.extend_from_slice(c(&format!("{}/socket", dir())).as_bytes_with_nul());
    } else {
        address
            .extend_from_slice(format!("\0limen {place} {} {}", pid(), test_number()).as_bytes());
    }
    address
}

fn socket(kind: i32) -> i32 {
    sc!(SYS_socket, AF_UNIX, kind, 0).fd()
}

fn connect(socket: i32, name: &[u8]) -> Res {
    sc!(SYS_connect, socket, name.as_ptr(), name.len())
}

fn listen(kind: i32, name: &[u8]) -> i32 {
    let socket = socket(kind);
    sc!(SYS_bind, socket, name.as_ptr(), name.len()).is(0);
    sc!(SYS_listen, socket, 8).is(0);
    socket
}

fn abstract_sockets_stay_within() {
    if !is_there() {
        return;
    }
    for kind in [SOCK_STREAM, SOCK_SEQPACKET] {
        let (outside, path) = (name("outside"), name("path"));
        let _listeners = (listen(kind, &outside), listen(kind, &path));
        in_child(|| {
            let before = socket(kind);
            connect(socket(kind), &outside).is(0);
            scope(ABSTRACT);
            // A socket is what its user may do with it, whenever it was made; a path is a file.
            connect(before, &outside).fails(EPERM);
            connect(socket(kind), &outside).fails(EPERM);
            connect(socket(kind), &path).is(0);
            connect(socket(kind), &name("nobody")).fails(ECONNREFUSED);
            sc!(SYS_kill, getppid(), 0).is(0);
            let inside = name("inside");
            let _listener = listen(kind, &inside);
            connect(socket(kind), &inside).is(0);
            in_child(|| {
                connect(socket(kind), &inside).is(0);
                scope(ABSTRACT);
                connect(socket(kind), &inside).fails(EPERM);
            });
        });
        // Who made the socket counts, whoever names it and waits at it.
        let (late, named) = (name("late"), pipe());
        let made = socket(kind);
        let server = fork(|| {
            scope(ABSTRACT);
            sc!(SYS_bind, made, late.as_ptr(), late.len()).is(0);
            sc!(SYS_listen, made, 8).is(0);
            write(named.1, b"x");
            connect(socket(kind), &late).unwrap_err()
        });
        read(named.0, 1);
        wait_code(server, EPERM);
        connect(socket(kind), &late).is(0);
    }
}

fn datagrams_stay_within() {
    if !is_there() {
        return;
    }
    let (outside, path) = (name("outside"), name("path"));
    let bound = |name: &[u8]| {
        let socket = socket(SOCK_DGRAM);
        sc!(SYS_bind, socket, name.as_ptr(), name.len()).is(0);
        socket
    };
    let _bound = (bound(&outside), bound(&path));
    let send = |socket: i32, to: &[u8]| {
        sc!(SYS_sendto, socket, c"x".as_ptr(), 1, 0, to.as_ptr(), to.len())
    };
    in_child(|| {
        let before = socket(SOCK_DGRAM);
        connect(before, &outside).is(0);
        scope(ABSTRACT);
        let fresh = socket(SOCK_DGRAM);
        send(fresh, &outside).fails(EPERM);
        connect(fresh, &outside).fails(EPERM);
        send(fresh, &path).is(1);
        connect(fresh, &path).is(0);
        send(fresh, &outside).fails(EPERM);
        // Who is connected stays so.
        sc!(SYS_write, before, c"x".as_ptr(), 1).is(1);
        send(before, &outside).is(1);
        let inside = name("inside");
        bound(&inside);
        send(socket(SOCK_DGRAM), &inside).is(1);
        in_child(|| send(socket(SOCK_DGRAM), &inside).is(1));
        // The pair of socketpair(2) has no names.
        let mut pair = [0_i32; 2];
        sc!(SYS_socketpair, AF_UNIX, SOCK_DGRAM, 0, pair.as_mut_ptr()).is(0);
        sc!(SYS_write, pair[0], c"x".as_ptr(), 1).is(1);
    });
}

/// Each layer has its own say: scopes of one do not bind the layers below or above.
fn scopes_of_layers() {
    if !is_there() {
        return;
    }
    let outside = name("outside");
    let _listener = listen(SOCK_STREAM, &outside);
    let reach = || connect(socket(SOCK_STREAM), &outside);
    let all = 0_u64..64;
    for choice in all {
        let layers = [choice & 3, choice >> 2 & 3, choice >> 4 & 3];
        in_child(|| {
            for scopes in layers {
                // A layer without a scope is one of rights that nobody uses here.
                let attributes = [0, u64::from(scopes == 0), scopes];
                restrict(sc!(SYS_landlock_create_ruleset, attributes.as_ptr(), 24, 0).fd()).is(0);
            }
            let expected = |bit: u64| match layers.iter().any(|scopes| scopes & bit != 0) {
                true => Err(EPERM),
                false => Ok(0),
            };
            assert_eq!(sc!(SYS_kill, getppid(), 0), expected(SIGNAL), "{layers:?}");
            assert_eq!(reach(), expected(ABSTRACT), "{layers:?}");
        });
    }
}
