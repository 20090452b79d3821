//! Errors that no wrong argument provokes: full tables and limits, objects in a state, rights about
//! what is somebody else's, mounts.
//!
//! A row is a call, how it is provoked, the errno, and the call itself.

use super::fixture::USER;
use crate::sc;
use crate::sys::*;

/// A call and its provocation, what Linux answers, and how.
type Case = (&'static str, i32, fn() -> Res);

/// Success, among errnos.
const OK: i32 = 0;

/// Runs each row in a process of its own that `prepare` has prepared.
fn all(cases: &[Case], prepare: fn()) {
    let word = &new_shared()[0];
    let mut differing = Vec::new();
    for (name, errno, run) in cases {
        word.store(u32::MAX, std::sync::atomic::Ordering::SeqCst);
        let child = fork(|| {
            prepare();
            let answer = run().err().unwrap_or(OK);
            word.store(answer as u32, std::sync::atomic::Ordering::SeqCst);
            0
        });
        let status = wait(child);
        let answer = word.load(std::sync::atomic::Ordering::SeqCst) as i32;
        if answer != *errno || status != 0 {
            let (wanted, got) = (errno_name(*errno), errno_name(answer));
            differing.push(format!("{name}: {got}, Linux {wanted}; {}", describe(status)));
        }
    }
    assert!(differing.is_empty(), "{}", differing.join("\n"));
}

fn limit(which: u32, value: u64) {
    sc!(SYS_setrlimit, which, [value, value].as_ptr()).is(0);
}

fn become_user() {
    sc!(SYS_setgroups, 0, 0).is(0);
    sc!(SYS_setresgid, USER, USER, USER).is(0);
    sc!(SYS_setresuid, USER, USER, USER).is(0);
}

/// Limits (getrlimit(2)) and full tables.
pub fn limits() {
    all(NO_DESCRIPTORS, || {
        let lowest = open("/dev/null", O_RDONLY).fd();
        limit(RLIMIT_NOFILE, lowest as u64 + 1);
    });
    all(ONE_DESCRIPTOR, || {
        let lowest = open("/dev/null", O_RDONLY).fd();
        limit(RLIMIT_NOFILE, lowest as u64 + 2);
    });
    all(OTHER_LIMITS, || {
        on_signal(SIGXFSZ, SIG_IGN, 0, 0);
    });
}

const NO_DESCRIPTORS: &[Case] = &[
    ("open, table full", EMFILE, || open("/dev/null", O_RDONLY)),
    ("open, table full, name missing", EMFILE, || open("/none", O_RDONLY)),
    ("openat2, table full", EMFILE, || {
        sc!(SYS_openat2, AT_FDCWD, c"/".as_ptr(), [0u64; 3].as_ptr(), 24)
    }),
    ("creat, table full", EMFILE, || sc!(SYS_creat, c"/dev/null".as_ptr(), 0o644)),
    ("dup, table full", EMFILE, || sc!(SYS_dup, 0)),
    ("dup2, number at the limit", EBADF, || sc!(SYS_dup2, 0, 100)),
    ("dup3, number at the limit", EBADF, || sc!(SYS_dup3, 0, 100, 0)),
    ("dup2, number below the limit", OK, || sc!(SYS_dup2, 0, 1)),
    ("fcntl F_DUPFD, table full", EMFILE, || sc!(SYS_fcntl, 0, F_DUPFD, 0)),
    ("fcntl F_DUPFD, number at the limit", EINVAL, || sc!(SYS_fcntl, 0, F_DUPFD, 100)),
    ("fcntl F_DUPFD_CLOEXEC, table full", EMFILE, || sc!(SYS_fcntl, 0, F_DUPFD_CLOEXEC, 0)),
    ("pipe, table full", EMFILE, || sc!(SYS_pipe, [0i32; 2].as_mut_ptr())),
    ("pipe2, table full", EMFILE, || sc!(SYS_pipe2, [0i32; 2].as_mut_ptr(), 0)),
    ("socket, table full", EMFILE, || sc!(SYS_socket, AF_UNIX, SOCK_STREAM, 0)),
    ("socket INET, table full", EMFILE, || sc!(SYS_socket, AF_INET, SOCK_STREAM, 0)),
    ("socketpair, table full", EMFILE, || {
        sc!(SYS_socketpair, AF_UNIX, SOCK_STREAM, 0, [0i32; 2].as_mut_ptr())
    }),
    ("eventfd2, table full", EMFILE, || sc!(SYS_eventfd2, 0, 0)),
    ("epoll_create1, table full", EMFILE, || sc!(SYS_epoll_create1, 0)),
    ("epoll_create, table full", EMFILE, || sc!(SYS_epoll_create, 1)),
    ("timerfd_create, table full", EMFILE, || sc!(SYS_timerfd_create, 0, 0)),
    ("signalfd4, table full", EMFILE, || sc!(SYS_signalfd4, -1i32, [0u64].as_ptr(), 8, 0)),
    ("inotify_init1, table full", EMFILE, || sc!(SYS_inotify_init1, 0)),
    ("memfd_create, table full", EMFILE, || sc!(SYS_memfd_create, c"m".as_ptr(), 0)),
    ("pidfd_open, table full", EMFILE, || sc!(SYS_pidfd_open, pid(), 0)),
    ("landlock_create_ruleset, table full", EMFILE, || {
        sc!(SYS_landlock_create_ruleset, [1u64].as_ptr(), 8, 0)
    }),
    ("clone CLONE_PIDFD, table full", EMFILE, || {
        sc!(SYS_clone, CLONE_PIDFD | SIGCHLD, 0, [0u32].as_mut_ptr(), 0, 0)
    }),
    ("poll, more than the limit", EINVAL, || {
        let room = [pollfd { fd: -1, events: 0, revents: 0 }; 100];
        sc!(SYS_poll, room.as_ptr(), 100, 0)
    }),
];

const ONE_DESCRIPTOR: &[Case] = &[
    ("pipe, one place left", EMFILE, || sc!(SYS_pipe2, [0i32; 2].as_mut_ptr(), 0)),
    ("socketpair, one place left", EMFILE, || {
        sc!(SYS_socketpair, AF_UNIX, SOCK_STREAM, 0, [0i32; 2].as_mut_ptr())
    }),
    ("accept, nobody there, table full", EMFILE, || {
        let fd = sc!(SYS_socket, AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0).fd();
        sc!(SYS_listen, fd, 1).is(0);
        sc!(SYS_accept, fd, 0, 0)
    }),
];

fn file_in_memory() -> i32 {
    sc!(SYS_memfd_create, c"m".as_ptr(), 0).fd()
}

const OTHER_LIMITS: &[Case] = &[
    ("write, at RLIMIT_FSIZE", EFBIG, || {
        limit(RLIMIT_FSIZE, 0);
        sc!(SYS_write, file_in_memory(), b"x".as_ptr(), 1)
    }),
    ("pwrite64, beyond RLIMIT_FSIZE", EFBIG, || {
        limit(RLIMIT_FSIZE, 10);
        sc!(SYS_pwrite64, file_in_memory(), b"x".as_ptr(), 1, 10)
    }),
    ("ftruncate, beyond RLIMIT_FSIZE", EFBIG, || {
        limit(RLIMIT_FSIZE, 10);
        sc!(SYS_ftruncate, file_in_memory(), 11)
    }),
    ("fallocate, beyond RLIMIT_FSIZE", EFBIG, || {
        limit(RLIMIT_FSIZE, 10);
        sc!(SYS_fallocate, file_in_memory(), 0, 0, 11)
    }),
    ("mmap, beyond RLIMIT_AS", ENOMEM, || {
        limit(RLIMIT_AS, 1 << 20);
        mmap(0, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
    }),
    ("mmap MAP_LOCKED, beyond RLIMIT_MEMLOCK as a user", EAGAIN, || {
        limit(RLIMIT_MEMLOCK, 4096);
        become_user();
        mmap(0, 8192, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_LOCKED, -1, 0)
    }),
    ("mmap MAP_LOCKED, RLIMIT_MEMLOCK 0 as a user", EPERM, || {
        limit(RLIMIT_MEMLOCK, 0);
        become_user();
        mmap(0, 8192, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_LOCKED, -1, 0)
    }),
    ("mlock, beyond RLIMIT_MEMLOCK as a user", ENOMEM, || {
        limit(RLIMIT_MEMLOCK, 4096);
        become_user();
        sc!(SYS_mlock, anon(8192), 8192)
    }),
    ("mlock, RLIMIT_MEMLOCK 0 as a user", EPERM, || {
        limit(RLIMIT_MEMLOCK, 0);
        become_user();
        sc!(SYS_mlock, anon(8192), 8192)
    }),
    ("mlockall, beyond RLIMIT_MEMLOCK as a user", ENOMEM, || {
        limit(RLIMIT_MEMLOCK, 4096);
        become_user();
        sc!(SYS_mlockall, MCL_CURRENT)
    }),
    ("shmctl SHM_LOCK, RLIMIT_MEMLOCK 0 as a user", EPERM, || {
        limit(RLIMIT_MEMLOCK, 0);
        become_user();
        let id = sc!(SYS_shmget, 0, 4096, IPC_CREAT | 0o600).must();
        let answer = sc!(SYS_shmctl, id, 11, 0);
        sc!(SYS_shmctl, id, IPC_RMID, 0).is(0);
        answer
    }),
    ("fork, RLIMIT_NPROC as a user", EAGAIN, || {
        limit(RLIMIT_NPROC, 0);
        become_user();
        sc!(SYS_clone, SIGCHLD, 0, 0, 0, 0)
    }),
    ("timer_create, RLIMIT_SIGPENDING", EAGAIN, || {
        limit(RLIMIT_SIGPENDING, 0);
        sc!(SYS_timer_create, 0, 0, [0u64].as_mut_ptr())
    }),
    ("rt_sigqueueinfo, RLIMIT_SIGPENDING", EAGAIN, || {
        limit(RLIMIT_SIGPENDING, 0);
        sigmask(SIG_BLOCK, !0);
        let info = Siginfo { code: -1, ..Siginfo::default() };
        sc!(SYS_rt_sigqueueinfo, pid(), SIGRTMIN(), &raw const info)
    }),
    ("kill, RLIMIT_SIGPENDING", OK, || {
        limit(RLIMIT_SIGPENDING, 0);
        sigmask(SIG_BLOCK, !0);
        sc!(SYS_kill, pid(), SIGRTMIN())
    }),
    ("setpriority, below RLIMIT_NICE as a user", EACCES, || {
        become_user();
        sc!(SYS_setpriority, 0, 0, -1i32)
    }),
    ("sched_setscheduler, RLIMIT_RTPRIO 0 as a user", EPERM, || {
        limit(RLIMIT_RTPRIO, 0);
        become_user();
        sc!(SYS_sched_setscheduler, 0, 1, [1u32].as_ptr())
    }),
    ("setrlimit, hard limit raised as a user", EPERM, || {
        limit(RLIMIT_CORE, 0);
        become_user();
        sc!(SYS_setrlimit, RLIMIT_CORE, [1u64, 1].as_ptr())
    }),
    ("execve, arguments beyond a quarter of RLIMIT_STACK", E2BIG, || {
        limit(RLIMIT_STACK, 1 << 20);
        let long = c(&"x".repeat(100_000));
        let vector = [long.as_ptr(); 5];
        let mut vector = vector.map(|at| at as usize).to_vec();
        vector.push(0);
        sc!(SYS_execve, c("/proc/self/exe").as_ptr(), vector.as_ptr(), 0)
    }),
    ("execve, one argument of 32 pages", E2BIG, || {
        let long = c(&"x".repeat(131_072));
        let vector = [long.as_ptr() as usize, 0];
        sc!(SYS_execve, c("/proc/self/exe").as_ptr(), vector.as_ptr(), 0)
    }),
    ("fcntl F_SETPIPE_SZ, above pipe-max-size as a user", EPERM, || {
        become_user();
        sc!(SYS_fcntl, pipe().0, F_SETPIPE_SZ, 1 << 21)
    }),
    ("fcntl F_SETPIPE_SZ, less than is in it", EBUSY, || {
        let (out, into) = pipe_flags(O_NONBLOCK);
        write(into, &[0; 65536]);
        sc!(SYS_fcntl, out, F_SETPIPE_SZ, 4096)
    }),
    ("write, pipe full", EAGAIN, || {
        let (_, into) = pipe_flags(O_NONBLOCK);
        write(into, &[0; 65536]);
        sc!(SYS_write, into, b"x".as_ptr(), 1)
    }),
    ("write, eventfd full", EAGAIN, || {
        let fd = sc!(SYS_eventfd2, 0, EFD_NONBLOCK).fd();
        write(fd, &(u64::MAX - 1).to_ne_bytes());
        sc!(SYS_write, fd, 1u64.to_ne_bytes().as_ptr(), 8)
    }),
    ("write, eventfd by its largest value", EINVAL, || {
        let fd = sc!(SYS_eventfd2, 0, EFD_NONBLOCK).fd();
        sc!(SYS_write, fd, u64::MAX.to_ne_bytes().as_ptr(), 8)
    }),
    ("send, unix datagrams full", EAGAIN, || {
        let mut pair = [0i32; 2];
        sc!(SYS_socketpair, AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0, pair.as_mut_ptr()).is(0);
        let mut answer = Ok(0);
        for _ in 0..10_000 {
            answer = sc!(SYS_sendto, pair[0], b"x".as_ptr(), 1, 0, 0, 0);
            if answer.is_err() {
                break;
            }
        }
        answer
    }),
    ("send, unix datagram longer than the buffer", EMSGSIZE, || {
        let mut pair = [0i32; 2];
        sc!(SYS_socketpair, AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0, pair.as_mut_ptr()).is(0);
        sc!(SYS_sendto, pair[0], anon(1 << 22), 1 << 22, 0, 0, 0)
    }),
    ("sendmsg, 254 descriptors", EINVAL, || {
        let mut pair = [0i32; 2];
        sc!(SYS_socketpair, AF_UNIX, SOCK_STREAM, 0, pair.as_mut_ptr()).is(0);
        let mut control = vec![0u32; 4 + 254];
        control[0] = 16 + 254 * 4;
        control[2] = SOL_SOCKET as u32;
        control[3] = SCM_RIGHTS as u32;
        let vector = [b"x".as_ptr() as usize, 1];
        let header = [0, 0, vector.as_ptr() as usize, 1, control.as_ptr() as usize, 1032, 0];
        sc!(SYS_sendmsg, pair[0], header.as_ptr(), 0)
    }),
    ("epoll_ctl, a circle of sets", ELOOP, || {
        let sets = [0; 2].map(|_: i32| sc!(SYS_epoll_create1, 0).fd());
        let event = [1u32, 0, 0];
        sc!(SYS_epoll_ctl, sets[0], EPOLL_CTL_ADD, sets[1], event.as_ptr()).is(0);
        sc!(SYS_epoll_ctl, sets[1], EPOLL_CTL_ADD, sets[0], event.as_ptr())
    }),
    ("epoll_ctl, five sets in each other", EINVAL, || {
        let event = [1u32, 0, 0];
        let mut inner = sc!(SYS_epoll_create1, 0).fd();
        let mut answer = Ok(0);
        for _ in 0..6 {
            let outer = sc!(SYS_epoll_create1, 0).fd();
            answer = sc!(SYS_epoll_ctl, outer, EPOLL_CTL_ADD, inner, event.as_ptr());
            if answer.is_err() {
                break;
            }
            inner = outer;
        }
        answer.map_err(|errno| if errno == ELOOP { EINVAL } else { errno })
    }),
    ("epoll_ctl EPOLL_CTL_ADD, there already", EEXIST, || {
        let (set, fd) = (sc!(SYS_epoll_create1, 0).fd(), pipe().0);
        let event = [1u32, 0, 0];
        sc!(SYS_epoll_ctl, set, EPOLL_CTL_ADD, fd, event.as_ptr()).is(0);
        sc!(SYS_epoll_ctl, set, EPOLL_CTL_ADD, fd, event.as_ptr())
    }),
    ("open, forty links", ELOOP, || {
        let d = dir();
        std::fs::write(format!("{d}/0"), "").expect("a file");
        for number in 1..=41 {
            let target = format!("{d}/{}", number - 1);
            std::os::unix::fs::symlink(target, format!("{d}/{number}")).expect("a link");
        }
        open(&format!("{d}/40"), O_RDONLY).must();
        open(&format!("{d}/41"), O_RDONLY)
    }),
    ("symlink, a target of a page", ENAMETOOLONG, || {
        let d = dir();
        sc!(SYS_symlink, c(&"x".repeat(4096)).as_ptr(), c(&format!("{d}/l")).as_ptr())
    }),
    ("getcwd, a path longer than the buffer", ERANGE, || {
        sc!(SYS_chdir, c"/proc".as_ptr()).is(0);
        sc!(SYS_getcwd, [0u8; 5].as_mut_ptr(), 5)
    }),
    ("setxattr, a name of 256 bytes", ERANGE, || {
        let name = c(&format!("user.{}", "x".repeat(251)));
        sc!(SYS_fsetxattr, file_in_memory(), name.as_ptr(), b"".as_ptr(), 0, 0)
    }),
    ("getxattr, a value longer than the buffer", ERANGE, || {
        let fd = open(&format!("{}/f", dir_in("/dev/shm")), O_RDWR | O_CREAT).fd();
        sc!(SYS_fsetxattr, fd, c"trusted.a".as_ptr(), b"abc".as_ptr(), 3, 0).is(0);
        sc!(SYS_fgetxattr, fd, c"trusted.a".as_ptr(), [0u8; 2].as_mut_ptr(), 2)
    }),
];

/// System V's objects, timers, locks, sockets in a state.
pub fn objects() {
    all(QUEUES, || {});
    all(STATES, || {
        on_signal(SIGPIPE, SIG_IGN, 0, 0);
    });
}

/// What Linux says about an object of System V's; the object is removed.
fn with(make: fn() -> Res, remove: fn(usize) -> Res, ask: impl FnOnce(usize) -> Res) -> Res {
    let id = make().must();
    let answer = ask(id);
    let _ = remove(id);
    answer
}

fn segment(ask: impl FnOnce(usize) -> Res) -> Res {
    let make = || sc!(SYS_shmget, 0, 4096, IPC_CREAT | 0o600);
    with(make, |id| sc!(SYS_shmctl, id, IPC_RMID, 0), ask)
}

fn semaphores(ask: impl FnOnce(usize) -> Res) -> Res {
    let make = || sc!(SYS_semget, 0, 2, IPC_CREAT | 0o600);
    with(make, |id| sc!(SYS_semctl, id, 0, IPC_RMID, 0), ask)
}

fn queue(ask: impl FnOnce(usize) -> Res) -> Res {
    let make = || sc!(SYS_msgget, 0, IPC_CREAT | 0o600);
    with(make, |id| sc!(SYS_msgctl, id, IPC_RMID, 0), ask)
}

/// The same by a user to whom it does not belong.
fn as_user(ask: impl FnOnce() -> Res) -> Res {
    let word = &new_shared()[0];
    let child = fork(|| {
        become_user();
        word.store(ask().err().unwrap_or(0) as u32, std::sync::atomic::Ordering::SeqCst);
        0
    });
    wait_code(child, 0);
    match word.load(std::sync::atomic::Ordering::SeqCst) as i32 {
        0 => Ok(0),
        errno => Err(errno),
    }
}

fn operation(id: usize, number: u16, by: i16, flags: i16) -> Res {
    let operation = [number, by as u16, flags as u16];
    sc!(SYS_semop, id, operation.as_ptr(), 1)
}

const NOWAIT: i16 = IPC_NOWAIT as i16;

const QUEUES: &[Case] = &[
    ("semop, decrease of 0 with IPC_NOWAIT", EAGAIN, || {
        semaphores(|id| operation(id, 0, -1, NOWAIT))
    }),
    ("semop, wait for 0 with IPC_NOWAIT", EAGAIN, || {
        semaphores(|id| {
            operation(id, 0, 1, 0).is(0);
            operation(id, 0, 0, NOWAIT)
        })
    }),
    ("semop, number beyond the set", EFBIG, || semaphores(|id| operation(id, 2, 1, 0))),
    ("semop, value beyond 32767", ERANGE, || {
        semaphores(|id| {
            operation(id, 0, 32767, 0).is(0);
            operation(id, 0, 1, 0)
        })
    }),
    ("semop, by somebody else", EACCES, || semaphores(|id| as_user(|| operation(id, 0, 1, 0)))),
    ("semctl SETVAL, 32768", ERANGE, || semaphores(|id| sc!(SYS_semctl, id, 0, SETVAL, 32768))),
    ("semctl SETVAL, -1", ERANGE, || semaphores(|id| sc!(SYS_semctl, id, 0, SETVAL, -1i32))),
    ("semctl GETVAL, number beyond the set", EINVAL, || {
        semaphores(|id| sc!(SYS_semctl, id, 2, GETVAL, 0))
    }),
    ("semctl SETALL, bad pointer", EFAULT, || semaphores(|id| sc!(SYS_semctl, id, 0, SETALL, 8))),
    ("semctl SETALL, a value of 40000", ERANGE, || {
        semaphores(|id| sc!(SYS_semctl, id, 0, SETALL, [40000u16, 0].as_ptr()))
    }),
    ("semctl IPC_STAT, by somebody else", EACCES, || {
        semaphores(|id| as_user(|| sc!(SYS_semctl, id, 0, IPC_STAT, [0u64; 20].as_mut_ptr())))
    }),
    ("semctl IPC_RMID, by somebody else", EPERM, || {
        semaphores(|id| as_user(|| sc!(SYS_semctl, id, 0, IPC_RMID, 0)))
    }),
    ("semctl IPC_RMID, twice", EINVAL, || {
        semaphores(|id| {
            sc!(SYS_semctl, id, 0, IPC_RMID, 0).is(0);
            sc!(SYS_semctl, id, 0, IPC_RMID, 0)
        })
    }),
    ("msgsnd, queue full with IPC_NOWAIT", EAGAIN, || {
        queue(|id| {
            let text = vec![1u64; 1025];
            for _ in 0..2 {
                sc!(SYS_msgsnd, id, text.as_ptr(), 8192, IPC_NOWAIT).is(0);
            }
            sc!(SYS_msgsnd, id, text.as_ptr(), 1, IPC_NOWAIT)
        })
    }),
    ("msgsnd, type 0", EINVAL, || {
        queue(|id| sc!(SYS_msgsnd, id, [0u64; 2].as_ptr(), 8, IPC_NOWAIT))
    }),
    ("msgsnd, bad pointer", EFAULT, || queue(|id| sc!(SYS_msgsnd, id, 8, 8, IPC_NOWAIT))),
    ("msgsnd, by somebody else", EACCES, || {
        queue(|id| as_user(|| sc!(SYS_msgsnd, id, [1u64; 2].as_ptr(), 8, IPC_NOWAIT)))
    }),
    ("msgrcv, nothing there with IPC_NOWAIT", ENOMSG, || {
        queue(|id| sc!(SYS_msgrcv, id, [0u64; 2].as_mut_ptr(), 8, 0, IPC_NOWAIT))
    }),
    ("msgrcv, text longer than the buffer", E2BIG, || {
        queue(|id| {
            sc!(SYS_msgsnd, id, [1u64; 2].as_ptr(), 8, 0).is(0);
            sc!(SYS_msgrcv, id, [0u64; 2].as_mut_ptr(), 4, 0, IPC_NOWAIT)
        })
    }),
    ("msgrcv MSG_COPY without IPC_NOWAIT", EINVAL, || {
        queue(|id| sc!(SYS_msgrcv, id, [0u64; 2].as_mut_ptr(), 8, 0, 0o40000))
    }),
    ("msgrcv MSG_COPY and MSG_EXCEPT", EINVAL, || {
        queue(|id| {
            let flags = 0o60000 | IPC_NOWAIT;
            sc!(SYS_msgrcv, id, [0u64; 2].as_mut_ptr(), 8, 0, flags)
        })
    }),
    ("msgrcv, by somebody else", EACCES, || {
        queue(|id| as_user(|| sc!(SYS_msgrcv, id, [0u64; 2].as_mut_ptr(), 8, 0, IPC_NOWAIT)))
    }),
    ("msgctl IPC_SET, by somebody else", EPERM, || {
        queue(|id| as_user(|| sc!(SYS_msgctl, id, IPC_SET, [0u64; 15].as_ptr())))
    }),
    ("msgctl IPC_RMID, by somebody else", EPERM, || {
        queue(|id| as_user(|| sc!(SYS_msgctl, id, IPC_RMID, 0)))
    }),
    ("shmat, by somebody else", EACCES, || segment(|id| as_user(|| sc!(SYS_shmat, id, 0, 0)))),
    ("shmat, address not aligned", EINVAL, || segment(|id| sc!(SYS_shmat, id, 0x10_0001, 0))),
    ("shmat SHM_REMAP without an address", EINVAL, || segment(|id| sc!(SYS_shmat, id, 0, 0o40000))),
    ("shmat, where something is mapped", EINVAL, || {
        segment(|id| sc!(SYS_shmat, id, anon(4096), 0))
    }),
    ("shmdt, no segment there", EINVAL, || sc!(SYS_shmdt, anon(4096))),
    ("shmget, larger than the segment", EINVAL, || {
        let key = 0x4c69_6d66;
        let id = sc!(SYS_shmget, key, 4096, IPC_CREAT | 0o600).must();
        let answer = sc!(SYS_shmget, key, 8192, 0);
        sc!(SYS_shmctl, id, IPC_RMID, 0).is(0);
        answer
    }),
    ("shmget IPC_EXCL, there already", EEXIST, || {
        let key = 0x4c69_6d67;
        let id = sc!(SYS_shmget, key, 4096, IPC_CREAT | 0o600).must();
        let answer = sc!(SYS_shmget, key, 4096, IPC_CREAT | IPC_EXCL);
        sc!(SYS_shmctl, id, IPC_RMID, 0).is(0);
        answer
    }),
    ("shmctl IPC_STAT, by somebody else", EACCES, || {
        segment(|id| as_user(|| sc!(SYS_shmctl, id, IPC_STAT, [0u64; 20].as_mut_ptr())))
    }),
    ("shmctl IPC_RMID, by somebody else", EPERM, || {
        segment(|id| as_user(|| sc!(SYS_shmctl, id, IPC_RMID, 0)))
    }),
    ("shmctl SHM_LOCK, by somebody else", EPERM, || {
        segment(|id| as_user(|| sc!(SYS_shmctl, id, 11, 0)))
    }),
];

fn tcp() -> i32 {
    sc!(SYS_socket, AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0).fd()
}

fn pair(kind: i32) -> [i32; 2] {
    let mut pair = [0i32; 2];
    sc!(SYS_socketpair, AF_UNIX, kind | SOCK_NONBLOCK, 0, pair.as_mut_ptr()).is(0);
    pair
}

const STATES: &[Case] = &[
    ("write, pipe without a reader", EPIPE, || {
        let (out, into) = pipe();
        close(out);
        sc!(SYS_write, into, b"x".as_ptr(), 1)
    }),
    ("read, pipe empty", EAGAIN, || sc!(SYS_read, pipe_flags(O_NONBLOCK).0, [0u8].as_mut_ptr(), 1)),
    ("sendto, peer has closed", EPIPE, || {
        let pair = pair(SOCK_STREAM);
        close(pair[1]);
        sc!(SYS_sendto, pair[0], b"x".as_ptr(), 1, 0, 0, 0)
    }),
    ("sendto, datagram peer has closed", ECONNREFUSED, || {
        let pair = pair(SOCK_DGRAM);
        close(pair[1]);
        sc!(SYS_sendto, pair[0], b"x".as_ptr(), 1, 0, 0, 0)
    }),
    ("sendto, shut down", EPIPE, || {
        let pair = pair(SOCK_STREAM);
        sc!(SYS_shutdown, pair[0], SHUT_WR).is(0);
        sc!(SYS_sendto, pair[0], b"x".as_ptr(), 1, 0, 0, 0)
    }),
    ("sendto with an address, stream connected", EISCONN, || {
        let name = [AF_UNIX as u16, 0x61, 0];
        sc!(SYS_sendto, pair(SOCK_STREAM)[0], b"x".as_ptr(), 1, 0, name.as_ptr(), 6)
    }),
    ("sendto with an address, SEQPACKET connected", OK, || {
        let name = [AF_UNIX as u16, 0x61, 0];
        sc!(SYS_sendto, pair(SOCK_SEQPACKET)[0], b"x".as_ptr(), 1, 0, name.as_ptr(), 6)
    }),
    ("bind, twice", EINVAL, || {
        let (fd, here) = (tcp(), [2u16, 0, 0x7f, 0x100, 0, 0, 0, 0]);
        sc!(SYS_bind, fd, here.as_ptr(), 16).is(0);
        sc!(SYS_bind, fd, here.as_ptr(), 16)
    }),
    ("connect, listening", EISCONN, || {
        let (fd, here) = (tcp(), [2u16, 0x100, 0x7f, 0x100, 0, 0, 0, 0]);
        sc!(SYS_listen, fd, 1).is(0);
        sc!(SYS_connect, fd, here.as_ptr(), 16)
    }),
    ("listen, unix socket connected", EINVAL, || sc!(SYS_listen, pair(SOCK_STREAM)[0], 1)),
    ("connect, unix stream connected", EISCONN, || {
        let fd = sc!(SYS_socket, AF_UNIX, SOCK_STREAM, 0).fd();
        let peer = sc!(SYS_socket, AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0).fd();
        let mut name = [0u8; 110];
        let mut length = 110u32;
        sc!(SYS_bind, fd, [AF_UNIX as u16].as_ptr(), 2).is(0);
        sc!(SYS_listen, fd, 1).is(0);
        sc!(SYS_getsockname, fd, name.as_mut_ptr(), &raw mut length).is(0);
        sc!(SYS_connect, peer, name.as_ptr(), length).is(0);
        sc!(SYS_connect, peer, name.as_ptr(), length)
    }),
    ("connect, unix backlog full", EAGAIN, || {
        let fd = sc!(SYS_socket, AF_UNIX, SOCK_STREAM, 0).fd();
        let mut name = [0u8; 110];
        let mut length = 110u32;
        sc!(SYS_bind, fd, [AF_UNIX as u16].as_ptr(), 2).is(0);
        sc!(SYS_listen, fd, 0).is(0);
        sc!(SYS_getsockname, fd, name.as_mut_ptr(), &raw mut length).is(0);
        let mut answer = Ok(0);
        for _ in 0..3 {
            let peer = sc!(SYS_socket, AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0).fd();
            answer = sc!(SYS_connect, peer, name.as_ptr(), length);
        }
        answer
    }),
    ("connect, an abstract name of another type", ECONNREFUSED, || {
        let fd = sc!(SYS_socket, AF_UNIX, SOCK_STREAM, 0).fd();
        let peer = sc!(SYS_socket, AF_UNIX, SOCK_DGRAM, 0).fd();
        let mut name = [0u8; 110];
        let mut length = 110u32;
        sc!(SYS_bind, fd, [AF_UNIX as u16].as_ptr(), 2).is(0);
        sc!(SYS_getsockname, fd, name.as_mut_ptr(), &raw mut length).is(0);
        sc!(SYS_connect, peer, name.as_ptr(), length)
    }),
    ("recvfrom MSG_OOB, nothing urgent", EINVAL, || {
        sc!(SYS_recvfrom, pair(SOCK_STREAM)[0], [0u8].as_mut_ptr(), 1, MSG_OOB, 0, 0)
    }),
    ("recvfrom MSG_OOB, datagrams", EOPNOTSUPP, || {
        sc!(SYS_recvfrom, pair(SOCK_DGRAM)[0], [0u8].as_mut_ptr(), 1, MSG_OOB, 0, 0)
    }),
    ("write, timerfd", EINVAL, || {
        sc!(SYS_write, sc!(SYS_timerfd_create, 0, 0).fd(), [0u64].as_ptr(), 8)
    }),
    ("fcntl F_SETLK, a write lock is held", EAGAIN, || {
        let path = format!("{}/f", dir_in("/dev/shm"));
        let fd = open(&path, O_RDWR | O_CREAT).fd();
        let write_lock = [1u64, 0, 0, 0];
        sc!(SYS_fcntl, fd, F_SETLK, write_lock.as_ptr()).is(0);
        in_child_answer(|| sc!(SYS_fcntl, fd, F_SETLK, write_lock.as_ptr()))
    }),
    ("flock LOCK_NB, held", EAGAIN, || {
        let path = format!("{}/f", dir_in("/dev/shm"));
        let held = open(&path, O_RDWR | O_CREAT).fd();
        sc!(SYS_flock, held, LOCK_EX).is(0);
        sc!(SYS_flock, open(&path, O_RDWR).fd(), LOCK_SH | LOCK_NB)
    }),
    ("open O_WRONLY, being executed", ETXTBSY, || open("/proc/self/exe", O_WRONLY)),
    ("execve, open for writing", ETXTBSY, || {
        let path = format!("{}/f", dir_in("/tmp"));
        std::fs::copy("/proc/self/exe", &path).expect("a copy");
        let _writer = open(&path, O_WRONLY).fd();
        sc!(SYS_execve, c(&path).as_ptr(), 0, 0)
    }),
    ("wait4, no child", ECHILD, || sc!(SYS_wait4, -1i32, 0, 0, 0)),
    ("setsid, a group's leader", EPERM, || {
        sc!(SYS_setpgid, 0, 0).is(0);
        sc!(SYS_setsid)
    }),
    ("setpgid, a session's leader", EPERM, || {
        sc!(SYS_setsid).must();
        sc!(SYS_setpgid, 0, 0)
    }),
    ("seccomp, strict after strict", EINVAL, || sc!(SYS_prctl, 22, 3, 0, 0, 0)),
    ("get_robust_list, nobody", ESRCH, || {
        sc!(SYS_get_robust_list, 1 << 23, [0u64].as_mut_ptr(), [0u64].as_mut_ptr())
    }),
    ("futex FUTEX_LOCK_PI, held by oneself", EDEADLK, || {
        let word = [tid() as u32];
        sc!(SYS_futex, word.as_ptr(), FUTEX_LOCK_PI, 0, 0, 0, 0)
    }),
    ("futex FUTEX_LOCK_PI, owner is nobody", ESRCH, || {
        let word = [1u32 << 23];
        sc!(SYS_futex, word.as_ptr(), FUTEX_LOCK_PI, 0, 0, 0, 0)
    }),
    ("futex FUTEX_UNLOCK_PI, held by another", EPERM, || {
        sc!(SYS_futex, [1u32].as_ptr(), FUTEX_UNLOCK_PI, 0, 0, 0, 0)
    }),
    ("inotify_rm_watch, twice", EINVAL, || {
        let fd = sc!(SYS_inotify_init1, 0).fd();
        let watch = sc!(SYS_inotify_add_watch, fd, c"/".as_ptr(), 1).must();
        sc!(SYS_inotify_rm_watch, fd, watch).is(0);
        sc!(SYS_inotify_rm_watch, fd, watch)
    }),
    ("inotify_add_watch IN_MASK_CREATE, there already", EEXIST, || {
        let fd = sc!(SYS_inotify_init1, 0).fd();
        sc!(SYS_inotify_add_watch, fd, c"/".as_ptr(), 1).must();
        sc!(SYS_inotify_add_watch, fd, c"/".as_ptr(), 1 | 1 << 28)
    }),
    ("timerfd_settime TFD_TIMER_CANCEL_ON_SET alone", OK, || {
        let fd = sc!(SYS_timerfd_create, 1, 0).fd();
        sc!(SYS_timerfd_settime, fd, 2, [0u64; 4].as_ptr(), 0)
    }),
];

fn in_child_answer(ask: impl FnOnce() -> Res) -> Res {
    let word = &new_shared()[0];
    let child = fork(|| {
        word.store(ask().err().unwrap_or(0) as u32, std::sync::atomic::Ordering::SeqCst);
        0
    });
    wait_code(child, 0);
    match word.load(std::sync::atomic::Ordering::SeqCst) as i32 {
        0 => Ok(0),
        errno => Err(errno),
    }
}

/// What a user may not do to what is somebody else's; process 1 is root's.
pub fn rights() {
    all(RIGHTS, become_user);
}

const RIGHTS: &[Case] = &[
    ("kill, somebody else's process", EPERM, || sc!(SYS_kill, 1, 0)),
    ("tgkill, somebody else's thread", EPERM, || sc!(SYS_tgkill, 1, 1, 0)),
    ("tkill, somebody else's thread", EPERM, || sc!(SYS_tkill, 1, 0)),
    ("rt_sigqueueinfo, somebody else's process", EPERM, || {
        let info = Siginfo { code: -1, ..Siginfo::default() };
        sc!(SYS_rt_sigqueueinfo, 1, 0, &raw const info)
    }),
    ("pidfd_send_signal, somebody else's process", EPERM, || {
        let fd = sc!(SYS_pidfd_open, 1, 0).fd();
        sc!(SYS_pidfd_send_signal, fd, 0, 0, 0)
    }),
    ("pidfd_getfd, somebody else's process", EPERM, || {
        let fd = sc!(SYS_pidfd_open, 1, 0).fd();
        sc!(SYS_pidfd_getfd, fd, 0, 0)
    }),
    ("ptrace PTRACE_ATTACH, somebody else's process", EPERM, || sc!(SYS_ptrace, 16, 1, 0, 0)),
    ("ptrace PTRACE_SEIZE, somebody else's process", EPERM, || sc!(SYS_ptrace, 0x4206, 1, 0, 0)),
    ("process_vm_readv, somebody else's process", EPERM, || {
        let vector = [[0u8; 8].as_mut_ptr() as usize, 8];
        sc!(SYS_process_vm_readv, 1, vector.as_ptr(), 1, vector.as_ptr(), 1, 0)
    }),
    ("kcmp, somebody else's process", EPERM, || sc!(SYS_kcmp, 1, pid(), 1, 0, 0)),
    ("setpriority, somebody else's process", EPERM, || sc!(SYS_setpriority, 0, 1, 5)),
    ("sched_setaffinity, somebody else's process", EPERM, || {
        sc!(SYS_sched_setaffinity, 1, 8, [1u64].as_ptr())
    }),
    ("sched_setscheduler, somebody else's process", EPERM, || {
        sc!(SYS_sched_setscheduler, 1, 0, [0u32].as_ptr())
    }),
    ("sched_setparam, somebody else's process", EPERM, || {
        sc!(SYS_sched_setparam, 1, [0u32].as_ptr())
    }),
    ("ioprio_set, somebody else's process", EPERM, || sc!(SYS_ioprio_set, 1, 1, 2 << 13 | 4)),
    ("prlimit64, somebody else's process", EPERM, || {
        sc!(SYS_prlimit64, 1, 7, 0, [0u64; 2].as_mut_ptr())
    }),
    ("get_robust_list, somebody else's process", EPERM, || {
        sc!(SYS_get_robust_list, 1, [0u64].as_mut_ptr(), [0u64].as_mut_ptr())
    }),
    ("capset, somebody else's process", EPERM, || {
        sc!(SYS_capset, [0x2008_0522u32, 1].as_ptr(), [0u32; 6].as_ptr())
    }),
    ("setpgid, somebody else's process", ESRCH, || sc!(SYS_setpgid, 1, 0)),
    ("open, another's memory", EACCES, || open("/proc/1/mem", O_RDONLY)),
    ("open, another's environment", EACCES, || open("/proc/1/environ", O_RDONLY)),
    ("open, another's map", EACCES, || open("/proc/1/maps", O_RDONLY)),
    ("readlink, another's program", EACCES, || {
        sc!(SYS_readlink, c"/proc/1/exe".as_ptr(), [0u8; 64].as_mut_ptr(), 64)
    }),
    ("open, another's descriptors", EACCES, || open("/proc/1/fd", O_RDONLY)),
    ("fchown, somebody else's file", EPERM, || {
        sc!(SYS_fchown, open("/proc/self/exe", O_RDONLY).fd(), USER, USER)
    }),
    ("fchmod, somebody else's file", EPERM, || {
        sc!(SYS_fchmod, open("/proc/self/exe", O_RDONLY).fd(), 0o777)
    }),
    ("utimensat, somebody else's file", EPERM, || {
        sc!(SYS_utimensat, AT_FDCWD, c"/proc/self/exe".as_ptr(), [0u64; 4].as_ptr(), 0)
    }),
    ("utimensat to now, a file one may not write", EACCES, || {
        sc!(SYS_utimensat, AT_FDCWD, c"/proc/self/exe".as_ptr(), 0, 0)
    }),
    ("setsockopt SO_SNDBUFFORCE", EPERM, || {
        sc!(SYS_setsockopt, tcp(), SOL_SOCKET, SO_SNDBUFFORCE, [4096u32].as_ptr(), 4)
    }),
    ("setsockopt SO_DEBUG", EACCES, || {
        sc!(SYS_setsockopt, tcp(), SOL_SOCKET, SO_DEBUG, [1u32].as_ptr(), 4)
    }),
    ("setsockopt IP_TRANSPARENT", EPERM, || {
        sc!(SYS_setsockopt, tcp(), IPPROTO_IP, IP_TRANSPARENT, [1u32].as_ptr(), 4)
    }),
    ("sendmsg, credentials of another", EPERM, || {
        let pair = pair(SOCK_STREAM);
        let control = [28u32, 0, SOL_SOCKET as u32, SCM_CREDENTIALS as u32, pid() as u32, 0, 0, 0];
        let vector = [b"x".as_ptr() as usize, 1];
        let header = [0, 0, vector.as_ptr() as usize, 1, control.as_ptr() as usize, 32, 0];
        sc!(SYS_sendmsg, pair[0], header.as_ptr(), 0)
    }),
    ("personality, any", OK, || sc!(SYS_personality, 0xffff_ffffu32)),
    ("prctl PR_SET_MM", EPERM, || sc!(SYS_prctl, 35, 8, 0x1_0000, 0, 0)),
    ("mlockall, a user's limit", OK, || sc!(SYS_mlockall, MCL_FUTURE)),
];

/// File systems that may only be read, that are busy, that are another.
pub fn mounts() {
    if sc!(SYS_unshare, CLONE_NEWNS).is_ok() {
        sc!(SYS_mount, 0, c"/".as_ptr(), 0, MS_REC | MS_PRIVATE, 0).is(0);
    }
    let d = dir_in("/dev/shm");
    sc!(SYS_chdir, c(&d).as_ptr()).is(0);
    sc!(SYS_mkdir, c"m".as_ptr(), 0o777).is(0);
    std::fs::write("other", "").expect("a file");
    let tmpfs = c"tmpfs".as_ptr();
    sc!(SYS_mount, tmpfs, c"m".as_ptr(), tmpfs, 0, 0).is(0);
    std::fs::write("m/file", "").expect("a file");
    sc!(SYS_mkdir, c"m/dir".as_ptr(), 0o777).is(0);
    all(BUSY, || {});
    sc!(SYS_mount, 0, c"m".as_ptr(), 0, MS_REMOUNT | MS_RDONLY, 0).is(0);
    all(READ_ONLY, || {});
    sc!(SYS_mount, 0, c"m".as_ptr(), 0, MS_REMOUNT | MS_NOEXEC | MS_NODEV | MS_NOSUID, 0).is(0);
    all(NOTHING_RUNS, || {});
    sc!(SYS_chdir, c"/".as_ptr()).is(0);
    sc!(SYS_umount2, c(&format!("{d}/m")).as_ptr(), 0).is(0);
}

const BUSY: &[Case] = &[
    ("rmdir, a mount", EBUSY, || sc!(SYS_rmdir, c"m".as_ptr())),
    ("rename, a mount", EBUSY, || sc!(SYS_rename, c"m".as_ptr(), c"n".as_ptr())),
    ("rename, onto a mount", EBUSY, || {
        sc!(SYS_mkdir, c"another".as_ptr(), 0o755).is(0);
        let answer = sc!(SYS_rename, c"another".as_ptr(), c"m".as_ptr());
        sc!(SYS_rmdir, c"another".as_ptr()).is(0);
        answer
    }),
    ("umount2, a file open on it", EBUSY, || {
        let _open = open("m/file", O_RDONLY).fd();
        sc!(SYS_umount2, c"m".as_ptr(), 0)
    }),
    ("umount2, somebody's working folder", EBUSY, || {
        sc!(SYS_chdir, c"m/dir".as_ptr()).is(0);
        sc!(SYS_umount2, c"..".as_ptr(), 0)
    }),
    ("umount2, no mount", EINVAL, || sc!(SYS_umount2, c"m/dir".as_ptr(), 0)),
    ("umount2 MNT_EXPIRE, the first time and the second", EAGAIN, || {
        sc!(SYS_umount2, c"m".as_ptr(), MNT_EXPIRE)
    }),
    ("umount2 MNT_EXPIRE with MNT_FORCE", EINVAL, || {
        sc!(SYS_umount2, c"m".as_ptr(), MNT_EXPIRE | MNT_FORCE)
    }),
    ("mount MS_REMOUNT, no mount", EINVAL, || {
        sc!(SYS_mount, 0, c"m/dir".as_ptr(), 0, MS_REMOUNT, 0)
    }),
    ("mount MS_MOVE, no mount", EINVAL, || {
        sc!(SYS_mount, c"m/dir".as_ptr(), c"m".as_ptr(), 0, MS_MOVE, 0)
    }),
    ("mount MS_BIND, nothing there", ENOENT, || {
        sc!(SYS_mount, c"none".as_ptr(), c"m".as_ptr(), 0, MS_BIND, 0)
    }),
    ("mount MS_BIND, a folder onto a file", ENOTDIR, || {
        sc!(SYS_mount, c"m/dir".as_ptr(), c"m/file".as_ptr(), 0, MS_BIND, 0)
    }),
    ("mount, type unknown", ENODEV, || {
        sc!(SYS_mount, 0, c"m/dir".as_ptr(), c"nothing".as_ptr(), 0, 0)
    }),
    ("mount tmpfs, option unknown", EINVAL, || {
        sc!(SYS_mount, 0, c"m/dir".as_ptr(), c"tmpfs".as_ptr(), 0, c"nothing=1".as_ptr())
    }),
    ("rename, another file system", EXDEV, || {
        sc!(SYS_rename, c"other".as_ptr(), c"m/new".as_ptr())
    }),
    ("link, another file system", EXDEV, || sc!(SYS_link, c"other".as_ptr(), c"m/new".as_ptr())),
    ("openat2 RESOLVE_NO_XDEV, a mount", EXDEV, || {
        sc!(SYS_openat2, AT_FDCWD, c"m/file".as_ptr(), [0u64, 0, 1].as_ptr(), 24)
    }),
];

const READ_ONLY: &[Case] = &[
    ("open O_RDWR, read-only", EROFS, || open("m/file", O_RDWR)),
    ("open O_WRONLY, read-only", EROFS, || open("m/file", O_WRONLY)),
    ("open O_TRUNC, read-only", EROFS, || open("m/file", O_RDONLY | O_TRUNC)),
    ("open O_CREAT, read-only", EROFS, || open("m/new", O_RDWR | O_CREAT)),
    ("open O_CREAT of what is there, read-only", OK, || open("m/file", O_RDONLY | O_CREAT)),
    ("open O_CREAT and O_EXCL of what is there, read-only", EEXIST, || {
        open("m/file", O_RDONLY | O_CREAT | O_EXCL)
    }),
    ("open O_TMPFILE, read-only", EROFS, || open("m", O_RDWR | O_TMPFILE)),
    ("creat, read-only", EROFS, || sc!(SYS_creat, c"m/new".as_ptr(), 0o644)),
    ("mkdir, read-only", EROFS, || sc!(SYS_mkdir, c"m/new".as_ptr(), 0o755)),
    ("mkdir, what is there, read-only", EEXIST, || sc!(SYS_mkdir, c"m/dir".as_ptr(), 0o755)),
    ("mknod, read-only", EROFS, || sc!(SYS_mknod, c"m/new".as_ptr(), S_IFIFO | 0o644, 0)),
    ("symlink, read-only", EROFS, || sc!(SYS_symlink, c"x".as_ptr(), c"m/new".as_ptr())),
    ("link, read-only", EROFS, || sc!(SYS_link, c"m/file".as_ptr(), c"m/new".as_ptr())),
    ("unlink, read-only", EROFS, || sc!(SYS_unlink, c"m/file".as_ptr())),
    ("rmdir, read-only", EROFS, || sc!(SYS_rmdir, c"m/dir".as_ptr())),
    ("rename, read-only", EROFS, || sc!(SYS_rename, c"m/file".as_ptr(), c"m/new".as_ptr())),
    ("chmod, read-only", EROFS, || sc!(SYS_chmod, c"m/file".as_ptr(), 0o600)),
    ("chown, read-only", EROFS, || sc!(SYS_chown, c"m/file".as_ptr(), 0, 0)),
    ("truncate, read-only", EROFS, || sc!(SYS_truncate, c"m/file".as_ptr(), 0)),
    ("utimensat, read-only", EROFS, || sc!(SYS_utimensat, AT_FDCWD, c"m/file".as_ptr(), 0, 0)),
    ("setxattr, read-only", EROFS, || {
        let (file, name) = (c"m/file".as_ptr(), c"trusted.a".as_ptr());
        sc!(SYS_setxattr, file, name, b"".as_ptr(), 0, 0)
    }),
    ("removexattr, read-only", EROFS, || {
        sc!(SYS_removexattr, c"m/file".as_ptr(), c"trusted.a".as_ptr())
    }),
    ("access W_OK, read-only", EROFS, || sc!(SYS_access, c"m/file".as_ptr(), W_OK)),
    ("fchmod, read-only", EROFS, || sc!(SYS_fchmod, open("m/file", O_RDONLY).fd(), 0o600)),
    ("fchown, read-only", EROFS, || sc!(SYS_fchown, open("m/file", O_RDONLY).fd(), 0, 0)),
    ("bind unix, read-only", EROFS, || {
        let fd = sc!(SYS_socket, AF_UNIX, SOCK_STREAM, 0).fd();
        let name = *b"\x01\x00m/new\0";
        sc!(SYS_bind, fd, name.as_ptr(), name.len())
    }),
];

const NOTHING_RUNS: &[Case] = &[
    ("execve, mounted noexec", EACCES, || {
        std::fs::copy("/proc/self/exe", "m/program").expect("a copy");
        sc!(SYS_execve, c"m/program".as_ptr(), 0, 0)
    }),
    ("access X_OK, mounted noexec", EACCES, || sc!(SYS_access, c"m/program".as_ptr(), X_OK)),
    ("mmap PROT_EXEC, mounted noexec", EPERM, || {
        let fd = open("m/program", O_RDONLY).fd();
        mmap(0, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0)
    }),
    ("mprotect PROT_EXEC, mounted noexec", EACCES, || {
        let fd = open("m/program", O_RDONLY).fd();
        let at = mmap(0, 4096, PROT_READ, MAP_PRIVATE, fd, 0).must();
        sc!(SYS_mprotect, at, 4096, PROT_READ | PROT_EXEC)
    }),
    ("open, a device on a mount without devices", EACCES, || {
        sc!(SYS_mknod, c"m/null".as_ptr(), S_IFCHR | 0o666, 0x103).is(0);
        open("m/null", O_RDONLY)
    }),
];
