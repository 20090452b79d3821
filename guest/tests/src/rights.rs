//! Who may do what to whose process: kill(2), ptrace(2), prlimit(2), setpriority(2), the calls of
//! sched(7) and others between processes of different users, as tables; and who may claim to be
//! somebody else on a unix socket.
//!
//! Each cell of a table is a process with one set of ids that makes one call on a process with
//! another set. Nothing here needs a user database: ids are numbers. Manual pages: credentials(7),
//! ptrace(2) ("Ptrace access mode checking"), unix(7).

use crate::sys::*;
use crate::{sc, tests};

tests!("rights":
    between_processes, of_groups, claimed_credentials, thread_ids_name_processes,
    a_thread_signals_as_itself,
);

/// Real, effective and saved user id; the group ids are the same numbers.
#[derive(Clone, Copy, Debug)]
struct Ids(u32, u32, u32);

const ROOT: Ids = Ids(0, 0, 0);
const USER: Ids = Ids(1000, 1000, 1000);
const OTHER: Ids = Ids(1001, 1001, 1001);
/// Another's program with USER's rights for now.
const ACTING: Ids = Ids(1001, 1000, 1001);
/// USER's program with another's rights.
const RAISED: Ids = Ids(1000, 1001, 1001);

fn become_(ids: Ids) {
    sc!(SYS_setgroups, 0, 0).is(0);
    sc!(SYS_setresgid, ids.0, ids.1, ids.2).is(0);
    sc!(SYS_setresuid, ids.0, ids.1, ids.2).is(0);
    // A change of ids hides a process even from its own user (prctl(2)).
    sc!(SYS_prctl, PR_SET_DUMPABLE, 1, 0, 0, 0).is(0);
}

/// A process with these ids that waits to be killed.
fn target(ids: Ids) -> i32 {
    let (r, w) = pipe();
    let child = fork(|| {
        become_(ids);
        let _ = sc!(SYS_prctl, PR_SET_PTRACER, -1isize, 0, 0, 0);
        write(w, b"x");
        loop {
            let _ = sc!(SYS_pause);
        }
    });
    read(r, 1);
    close(r);
    close(w);
    child
}

type Call = fn(i32) -> Res;

const KCMP: i64 = 312;

/// Name, number of the capability that lets the superuser, call, and what it gives, zero or an
/// errno: USER on USER, USER on OTHER, USER on ROOT, ROOT on USER, ACTING on USER, ACTING on OTHER,
/// USER on ACTING, USER on RAISED, RAISED on USER.
const CALLS: &[(&str, u32, Call, [i32; 9])] = &[
    ("kill", 5, |p| sc!(SYS_kill, p, 0), [0, EPERM, EPERM, 0, 0, 0, EPERM, 0, 0]),
    ("tkill", 5, |p| sc!(SYS_tkill, p, 0), [0, EPERM, EPERM, 0, 0, 0, EPERM, 0, 0]),
    ("kill with SIGCONT", 5, |p| sc!(SYS_kill, p, SIGCONT), [0; 9]),
    (
        "pidfd_send_signal",
        5,
        |p| {
            let fd = sc!(SYS_pidfd_open, p, 0).fd();
            sc!(SYS_pidfd_send_signal, fd, 0, 0, 0)
        },
        [0, EPERM, EPERM, 0, 0, 0, EPERM, 0, 0],
    ),
    (
        "ptrace",
        19,
        |p| sc!(SYS_ptrace, PTRACE_SEIZE, p, 0, 0),
        [0, EPERM, EPERM, 0, EPERM, 0, EPERM, EPERM, 0],
    ),
    (
        "process_vm_readv",
        19,
        |p| {
            let (mut word, from) = (0i32, &raw const ZERO);
            let (into, of) = ([&raw mut word as usize, 4], [from as usize, 4]);
            sc!(SYS_process_vm_readv, p, into.as_ptr(), 1, of.as_ptr(), 1, 0)
        },
        [0, EPERM, EPERM, 0, EPERM, 0, EPERM, EPERM, 0],
    ),
    ("kcmp", 19, |p| sc!(KCMP, p, p, 1, 0, 0), [0, EPERM, EPERM, 0, EPERM, 0, EPERM, EPERM, 0]),
    (
        "get_robust_list",
        19,
        |p| {
            let (mut head, mut len) = (0u64, 0u64);
            sc!(SYS_get_robust_list, p, &raw mut head, &raw mut len)
        },
        [0, EPERM, EPERM, 0, EPERM, 0, EPERM, EPERM, 0],
    ),
    (
        "/proc/PID/environ",
        19,
        |p| open(&format!("/proc/{p}/environ"), O_RDONLY).map(|_| 0),
        [0, EACCES, EACCES, 0, 0, EACCES, EACCES, EACCES, EACCES],
    ),
    (
        "prlimit",
        24,
        |p| {
            let mut l = [0u64; 2];
            sc!(SYS_prlimit64, p, RLIMIT_CORE, 0, &raw mut l)
        },
        [0, EPERM, EPERM, 0, EPERM, 0, EPERM, EPERM, 0],
    ),
    (
        "setpriority",
        23,
        |p| sc!(SYS_setpriority, PRIO_PROCESS, p, 5),
        [0, EPERM, EPERM, 0, 0, EPERM, 0, 0, EPERM],
    ),
    (
        "sched_setscheduler",
        23,
        |p| sc!(SYS_sched_setscheduler, p, SCHED_BATCH, &raw const ZERO),
        [0, EPERM, EPERM, 0, 0, EPERM, 0, 0, EPERM],
    ),
    (
        "sched_setaffinity",
        23,
        |p| {
            let all = [u64::MAX; 16];
            sc!(SYS_sched_setaffinity, p, 128, &raw const all)
        },
        [0, EPERM, EPERM, 0, 0, EPERM, 0, 0, EPERM],
    ),
    ("sched_getscheduler", 0, |p| sc!(SYS_sched_getscheduler, p), [0; 9]),
    ("getpgid", 0, |p| sc!(SYS_getpgid, p).map(|_| 0), [0; 9]),
    ("setpgid", 0, |p| sc!(SYS_setpgid, p, 0), [ESRCH; 9]),
    (
        "capget",
        0,
        |p| {
            let (header, mut data) = ([0x2008_0522u32, p as u32], [0u32; 6]);
            sc!(SYS_capget, &raw const header, &raw mut data)
        },
        [0; 9],
    ),
];

static ZERO: i32 = 0;

const PAIRS: [(Ids, Ids); 9] = [
    (USER, USER),
    (USER, OTHER),
    (USER, ROOT),
    (ROOT, USER),
    (ACTING, USER),
    (ACTING, OTHER),
    (USER, ACTING),
    (USER, RAISED),
    (RAISED, USER),
];

fn between_processes() {
    let mut wrong = 0;
    for (name, capability, call, row) in CALLS {
        for ((caller, whose), expected) in PAIRS.iter().zip(row) {
            // A container's superuser may lack it.
            let lacks = caller.0 == 0 && !has(*capability);
            let expected = if lacks { &row[1] } else { expected };
            let target = target(*whose);
            let child = fork(|| {
                become_(*caller);
                match call(target) {
                    Ok(_) => 0,
                    Err(errno) => errno,
                }
            });
            let status = wait(child);
            let _ = sc!(SYS_kill, target, SIGKILL);
            wait(target);
            if WEXITSTATUS(status) != *expected || !WIFEXITED(status) {
                eprintln!("{name}: {caller:?} on {whose:?}: {}, not {expected}", describe(status));
                wrong += 1;
            }
        }
    }
    assert_eq!(wrong, 0);
}

fn has(capability: u32) -> bool {
    let (header, mut data) = ([0x2008_0522u32, 0], [0u32; 6]);
    sc!(SYS_capget, &raw const header, &raw mut data).is(0);
    data[0] >> capability & 1 == 1
}

fn of_groups() {
    // A group of which some members may be sent to.
    let (mine, other) = (target(USER), target(OTHER));
    sc!(SYS_setpgid, mine, mine).is(0);
    sc!(SYS_setpgid, other, mine).is(0);
    in_child(|| {
        become_(USER);
        sc!(SYS_kill, -mine, 0).is(0);
    });
    sc!(SYS_kill, mine, SIGKILL).is(0);
    wait(mine);
    in_child(|| {
        become_(USER);
        sc!(SYS_kill, -mine, 0).fails(EPERM);
        sc!(SYS_kill, -mine, SIGCONT).is(0);
    });
    sc!(SYS_kill, other, SIGKILL).is(0);
    wait(other);
    sc!(SYS_kill, -mine, 0).fails(ESRCH);
}

fn claim(socket: i32, ids: [i32; 3]) -> Res {
    #[repr(C)]
    struct Message {
        len: usize,
        level: i32,
        kind: i32,
        ids: [i32; 3],
        pad: i32,
    }
    let control = Message { len: 28, level: SOL_SOCKET, kind: SCM_CREDENTIALS, ids, pad: 0 };
    let byte = [c"x".as_ptr() as usize, 1];
    let message = [0, 0, byte.as_ptr() as usize, 1, &raw const control as usize, 32, 0];
    sc!(SYS_sendmsg, socket, message.as_ptr(), 0)
}

fn claimed_credentials() {
    let mut p = [0i32; 2];
    sc!(SYS_socketpair, AF_UNIX, SOCK_DGRAM, 0, p.as_mut_ptr()).is(0);
    let (socket, parent) = (p[0], pid());
    // The superuser may be anybody who is somebody.
    claim(socket, [pid(), 0, 0]).is(1);
    claim(socket, [1, 7, 8]).is(1);
    let gone = fork(|| 0);
    wait_code(gone, 0);
    claim(socket, [gone, 0, 0]).fails(ESRCH);
    claim(socket, [0, 0, 0]).fails(ESRCH);
    claim(socket, [-1, 0, 0]).fails(ESRCH);
    in_child(|| {
        become_(RAISED);
        for (ids, errno) in [
            ([pid(), 1000, 1000], 0),
            ([pid(), 1001, 1000], 0),
            ([pid(), 1002, 1000], EPERM),
            ([pid(), 1000, 1002], EPERM),
            ([pid(), 0, 1000], EPERM),
            ([parent, 1000, 1000], EPERM),
            ([gone, 1000, 1000], EPERM),
            ([0, 1000, 1000], EPERM),
        ] {
            if errno == 0 {
                claim(socket, ids).is(1);
            } else {
                claim(socket, ids).fails(errno);
            }
        }
    });
}

fn thread_ids_name_processes() {
    // kill(2) and others take a thread's id for its process; setpgid(2) does not.
    sigmask(SIG_BLOCK, bit(SIGUSR1) | bit(SIGUSR2));
    let (r, w) = pipe();
    let (stop, go) = pipe();
    let thread = std::thread::spawn(move || {
        write(w, &tid().to_ne_bytes());
        read(stop, 1);
    });
    let id = i32::from_ne_bytes(read(r, 4).try_into().unwrap());
    sc!(SYS_kill, id, SIGUSR1).is(0);
    let queued = |code: i32, to: i32| {
        let info = Siginfo { signo: SIGUSR2, code, ..Default::default() };
        sc!(SYS_rt_sigqueueinfo, to, SIGUSR2, &raw const info)
    };
    queued(SI_QUEUE, id).is(0);
    // Only a thread may lie to itself.
    queued(SI_USER, id).fails(EPERM);
    queued(SI_TKILL, id).fails(EPERM);
    queued(SI_USER, 4_194_303).fails(EPERM);
    queued(SI_QUEUE, 4_194_303).fails(ESRCH);
    queued(SI_USER, tid()).is(0);
    // For the process: the first thread finds both.
    let set = bit(SIGUSR1) | bit(SIGUSR2);
    let mut info = Siginfo::default();
    sc!(SYS_rt_sigtimedwait, &raw const set, &raw mut info, 0, 8).is(SIGUSR1 as usize);
    sc!(SYS_rt_sigtimedwait, &raw const set, &raw mut info, 0, 8).is(SIGUSR2 as usize);
    assert_eq!(info.code, SI_QUEUE);
    sc!(SYS_getpgid, id).is(sc!(SYS_getpgrp).must());
    sc!(SYS_getsid, id).is(sc!(SYS_getsid, 0).must());
    sc!(SYS_setpgid, id, 0).fails(EINVAL);
    let mut limit = [0u64; 2];
    sc!(SYS_prlimit64, id, RLIMIT_CORE, 0, &raw mut limit).is(0);
    sc!(KCMP, id, pid(), 1, 0, 0).is(0);
    write(go, b"x");
    thread.join().unwrap();
    // A join returns when the thread lets go of its memory; the id goes a moment later.
    let tries = (0..1000).map(|_| {
        std::thread::sleep(std::time::Duration::from_millis(1));
        sc!(SYS_kill, id, 0)
    });
    tries.take_while(|answer| answer.is_ok()).for_each(drop);
    sc!(SYS_kill, id, SIGUSR1).fails(ESRCH);
}

/// Credentials are a thread's own: one that has given up its rights cannot signal by those of the
/// others (credentials(7)).
fn a_thread_signals_as_itself() {
    let parent = pid();
    in_child(|| {
        let lesser = std::thread::spawn(move || {
            sc!(SYS_setresuid, 1000, 1000, 1000).is(0);
            (sc!(SYS_kill, parent, 0), sc!(SYS_tgkill, parent, parent, 0))
        });
        assert_eq!(lesser.join().unwrap(), (Err(EPERM), Err(EPERM)));
        sc!(SYS_kill, parent, 0).is(0);
    });
}
