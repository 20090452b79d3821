//! Ids of threads that do not lead their process, where calls take ids of processes.
//!
//! Why it is hard: some calls mean the thread by it, some its process, and some refuse it; so do
//! the files of /proc/TID, of which each is the thread's or its process's. The table of calls has
//! what Linux says for each.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt as _;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};
use std::sync::mpsc::channel;

use abi::general::{F_GETOWN_EX, F_SETOWN_EX};

use crate::sys::*;
use crate::{sc, tests};

tests!("tids":
    calls_about_a_thread_of_ones_own, calls_about_a_thread_of_another, files_of_a_thread,
    sums_of_its_process, folders_of_a_thread, nothing_is_left_of_a_thread,
    settings_of_a_thread, first_threads_that_have_ended, zombies_keep_their_name,
    folders_take_signals, signals_by_the_id_of_a_thread,
);

/// A call about a thread, by its id and its process's.
type Row = (&'static str, fn(i32, i32) -> Res, Expected, Expected);

/// What a call says.
enum Expected {
    Value(usize),
    /// Something that is no error.
    Done,
    Error(i32),
}

use Expected::{Done, Error, Value};

/// What is said of a thread of the caller's process, and of one of its child.
#[rustfmt::skip]
static CALLS: &[Row] = &[
    ("kill", |t, _| sc!(SYS_kill, t, 0), Value(0), Value(0)),
    ("kill of a group", |t, _| sc!(SYS_kill, -t, 0), Error(ESRCH), Error(ESRCH)),
    ("tkill", |t, _| sc!(SYS_tkill, t, 0), Value(0), Value(0)),
    ("tgkill", |t, p| sc!(SYS_tgkill, p, t, 0), Value(0), Value(0)),
    ("tgkill as a group", |t, p| sc!(SYS_tgkill, t, p, 0), Error(ESRCH), Error(ESRCH)),
    ("tgkill twice", |t, _| sc!(SYS_tgkill, t, t, 0), Error(ESRCH), Error(ESRCH)),
    ("rt_sigqueueinfo", |t, _| {
        let info = Siginfo { code: -1, ..Siginfo::default() };
        sc!(SYS_rt_sigqueueinfo, t, 0, &raw const info)
    }, Value(0), Value(0)),
    ("rt_tgsigqueueinfo", |t, _| {
        let info = Siginfo { code: -1, ..Siginfo::default() };
        sc!(SYS_rt_tgsigqueueinfo, t, t, 0, &raw const info)
    }, Error(ESRCH), Error(ESRCH)),
    ("getpgid", |t, _| sc!(SYS_getpgid, t).map(|id| usize::from(id as i32 == group())),
        Value(1), Value(1)),
    ("getsid", |t, _| sc!(SYS_getsid, t).map(|id| usize::from(Ok(id) == sc!(SYS_getsid, 0))),
        Value(1), Value(1)),
    ("setpgid", |t, _| sc!(SYS_setpgid, t, 0), Error(EINVAL), Error(EINVAL)),
    ("setpgid into it", |t, p| sc!(SYS_setpgid, p, t), Error(EPERM), Error(EPERM)),
    ("getpriority", |t, _| sc!(SYS_getpriority, PRIO_PROCESS, t), Done, Done),
    ("getpriority of a group", |t, _| sc!(SYS_getpriority, PRIO_PGRP, t),
        Error(ESRCH), Error(ESRCH)),
    ("setpriority", |t, _| sc!(SYS_setpriority, PRIO_PROCESS, t, 19), Value(0), Value(0)),
    ("ioprio_get", |t, _| sc!(SYS_ioprio_get, 1, t), Done, Done),
    ("ioprio_get of a group", |t, _| sc!(SYS_ioprio_get, 2, t), Error(ESRCH), Error(ESRCH)),
    ("ioprio_set", |t, _| sc!(SYS_ioprio_set, 1, t, 0), Value(0), Value(0)),
    ("sched_getscheduler", |t, _| sc!(SYS_sched_getscheduler, t), Value(0), Value(0)),
    ("sched_setscheduler", |t, _| sc!(SYS_sched_setscheduler, t, SCHED_OTHER, &raw const ZERO),
        Value(0), Value(0)),
    ("sched_getparam", |t, _| sc!(SYS_sched_getparam, t, space().as_ptr()), Value(0), Value(0)),
    ("sched_setparam", |t, _| sc!(SYS_sched_setparam, t, &raw const ZERO), Value(0), Value(0)),
    ("sched_getattr", |t, _| sc!(SYS_sched_getattr, t, space().as_ptr(), 56, 0),
        Value(0), Value(0)),
    ("sched_rr_get_interval", |t, _| sc!(SYS_sched_rr_get_interval, t, space().as_ptr()),
        Value(0), Value(0)),
    ("sched_getaffinity", |t, _| sc!(SYS_sched_getaffinity, t, 128, space().as_ptr()), Done, Done),
    ("prlimit64", |t, _| sc!(SYS_prlimit64, t, RLIMIT_NOFILE, 0, space().as_ptr()),
        Value(0), Value(0)),
    // ENOENT since Linux 6.15.
    ("pidfd_open", |t, _| {
        opened(sc!(SYS_pidfd_open, t, 0)).map_err(|e| if e == ENOENT { EINVAL } else { e })
    }, Error(EINVAL), Error(EINVAL)),
    ("pidfd_open of a thread", |t, _| opened(sc!(SYS_pidfd_open, t, O_EXCL)), Value(0), Value(0)),
    ("wait4", |t, _| sc!(SYS_wait4, t, 0, WNOHANG, 0), Error(ECHILD), Error(ECHILD)),
    ("wait4 for a group", |t, _| sc!(SYS_wait4, -t, 0, WNOHANG, 0), Error(ECHILD), Error(ECHILD)),
    ("waitid", |t, _| sc!(SYS_waitid, P_PID, t, 0, WNOHANG | WEXITED, 0),
        Error(ECHILD), Error(ECHILD)),
    ("kcmp", |t, p| sc!(SYS_kcmp, t, p, 1, 0, 0), Value(0), Value(0)),
    ("kcmp of descriptors", |t, p| sc!(SYS_kcmp, t, p, 2, 0, 0), Value(0), Value(0)),
    ("process_vm_readv", |t, _| {
        let (from, to) = (bytes(), bytes());
        sc!(SYS_process_vm_readv, t, &raw const to, 1, &raw const from, 1, 0)
    }, Value(8), Value(8)),
    ("process_vm_writev", |t, _| {
        let (from, to) = (bytes(), bytes());
        sc!(SYS_process_vm_writev, t, &raw const from, 1, &raw const to, 1, 0)
    }, Value(8), Value(8)),
    ("get_robust_list", |t, _| {
        let words = space();
        sc!(SYS_get_robust_list, t, words.as_ptr(), words[2..].as_ptr())
    }, Value(0), Value(0)),
    ("capget", |t, _| {
        let header = [0x2008_0522, t as u32];
        sc!(SYS_capget, header.as_ptr(), space().as_ptr())
    }, Value(0), Value(0)),
    ("capset", |t, _| {
        let header = [0x2008_0522, t as u32];
        let data = space();
        sc!(SYS_capget, header.as_ptr(), data.as_ptr()).is(0);
        sc!(SYS_capset, header.as_ptr(), data.as_ptr())
    }, Error(EPERM), Error(EPERM)),
    ("clock of a process", |t, _| sc!(SYS_clock_gettime, !t << 3 | 2, space().as_ptr()),
        Error(EINVAL), Error(EINVAL)),
    ("clock of a thread", |t, _| sc!(SYS_clock_gettime, !t << 3 | 6, space().as_ptr()),
        Value(0), Error(EINVAL)),
    ("clock_getres of a process", |t, _| sc!(SYS_clock_getres, !t << 3 | 2, space().as_ptr()),
        Error(EINVAL), Error(EINVAL)),
    ("timer_create", |t, _| {
        let mut event = [0u64; 8];
        event[1] = SIGUSR1 as u64 | (SIGEV_THREAD_ID as u64) << 32;
        event[2] = t as u64;
        sc!(SYS_timer_create, CLOCK_MONOTONIC, event.as_ptr(), space().as_ptr())
    }, Value(0), Error(EINVAL)),
    ("F_SETOWN", |t, _| owned(t, |fd| sc!(SYS_fcntl, fd, F_SETOWN, t)), Value(1), Value(1)),
    ("F_SETOWN of a group", |t, _| owned(t, |fd| sc!(SYS_fcntl, fd, F_SETOWN, -t)),
        Value(2), Value(2)),
    ("F_SETOWN_EX of a thread", |t, _| owned(t, |fd| {
        sc!(SYS_fcntl, fd, F_SETOWN_EX, [0, t].as_ptr())
    }), Value(10), Value(10)),
    ("F_SETOWN_EX of a process", |t, _| owned(t, |fd| {
        sc!(SYS_fcntl, fd, F_SETOWN_EX, [1, t].as_ptr())
    }), Value(1), Value(1)),
    ("F_SETOWN_EX of a group", |t, _| owned(t, |fd| {
        sc!(SYS_fcntl, fd, F_SETOWN_EX, [2, t].as_ptr())
    }), Value(2), Value(2)),
    ("FIOSETOWN", |t, _| owned(t, |fd| sc!(SYS_ioctl, fd, 0x8901, [t].as_ptr())),
        Value(1), Value(1)),
    ("SCM_CREDENTIALS", |t, _| claimed(t), Done, Done),
    ("FUTEX_LOCK_PI", |t, _| {
        let word = space();
        word[0].store(t as u32, SeqCst);
        let soon = [1i64, 0];
        sc!(SYS_futex, word.as_ptr(), FUTEX_LOCK_PI, 0, soon.as_ptr())
    }, Error(ETIMEDOUT), Error(ETIMEDOUT)),
    ("ptrace", |t, _| sc!(SYS_ptrace, PTRACE_ATTACH, t, 0, 0), Error(EPERM), Value(0)),
    ("wait4 for a tracee", |t, _| sc!(SYS_wait4, t, 0, __WALL, 0).map(|id| id - t as usize),
        Error(ECHILD), Value(0)),
    ("ptrace's detaching", |t, _| sc!(SYS_ptrace, PTRACE_DETACH, t, 0, 0), Error(ESRCH), Value(0)),
];

static ZERO: u64 = 0;

fn group() -> i32 {
    sc!(SYS_getpgid, 0).must() as i32
}

/// Memory that is nobody else's.
fn space() -> &'static [AtomicU32; 1024] {
    new_shared()
}

fn opened(result: Res) -> Res {
    result.map(|fd| {
        close(fd as i32);
        0
    })
}

/// Eight bytes that every process has at the same place.
fn bytes() -> iovec {
    static BYTES: AtomicU64 = AtomicU64::new(8);
    iovec { iov_base: BYTES.as_ptr().cast(), iov_len: 8 }
}

/// Whose a descriptor then is: the kind of owner, and 10 if it is the one named.
fn owned(t: i32, own: impl FnOnce(i32) -> Res) -> Res {
    let mut pair = [0i32; 2];
    sc!(SYS_socketpair, AF_UNIX, SOCK_DGRAM, 0, pair.as_mut_ptr()).is(0);
    let [r, w] = pair;
    let result = own(r).map(|_| {
        let owner = space();
        sc!(SYS_fcntl, r, F_GETOWN_EX, owner.as_ptr()).is(0);
        let [kind, id] = [&owner[0], &owner[1]].map(|word| word.load(SeqCst) as usize);
        kind + if id == t as usize { 10 } else { 0 }
    });
    close(r);
    close(w);
    result
}

fn claimed(t: i32) -> Res {
    let mut pair = [0i32; 2];
    sc!(SYS_socketpair, AF_UNIX, SOCK_DGRAM, 0, pair.as_mut_ptr()).is(0);
    let mut byte = 1u8;
    let iov = iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let control = [28u64, (SCM_CREDENTIALS as u64) << 32 | SOL_SOCKET as u64, t as u64, 0];
    // SAFETY: a structure of integers and pointers.
    let mut message: msghdr = unsafe { std::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = ((&raw const iov).cast_mut(), 1);
    (message.msg_control, message.msg_controllen) = (control.as_ptr().cast_mut().cast(), 32);
    let sent = sc!(SYS_sendmsg, pair[0], &raw const message, 0);
    pair.into_iter().for_each(close);
    sent
}

fn check(t: i32, p: i32, of_another: bool) {
    let mut wrong = Vec::new();
    for (name, call, own, other) in CALLS {
        let (result, expected) = (call(t, p), if of_another { other } else { own });
        let is_right = match (expected, &result) {
            (Value(value), Ok(got)) => value == got,
            (Done, Ok(_)) => true,
            (Error(error), Err(got)) => error == got,
            _ => false,
        };
        if !is_right {
            wrong.push(format!("{name}: {result:?}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Runs `f` with the id of a second thread, which sleeps behind `prepare`.
fn with_prepared_thread(prepare: fn(), f: impl FnOnce(i32)) {
    let (ready, started) = channel();
    let (end, ended) = channel::<()>();
    let thread = std::thread::spawn(move || {
        prepare();
        ready.send(tid()).unwrap();
        let _ = ended.recv();
    });
    let id = started.recv().unwrap();
    until_asleep(id);
    f(id);
    drop(end);
    thread.join().unwrap();
}

fn with_thread(f: impl FnOnce(i32)) {
    with_prepared_thread(|| (), f);
}

fn calls_about_a_thread_of_ones_own() {
    with_thread(|t| check(t, pid(), false));
}

fn calls_about_a_thread_of_another() {
    let words = new_shared();
    let child = fork(|| {
        with_thread(|t| {
            words[0].store(t as u32, SeqCst);
            until_at_least(&words[1], 1);
        });
        0
    });
    until_at_least(&words[0], 1);
    let names: BTreeSet<_> = CALLS.iter().map(|row| row.0).collect();
    assert_eq!(names.len(), CALLS.len());
    check(words[0].load(SeqCst) as i32, child, true);
    words[1].store(1, SeqCst);
    wait_code(child, 0);
}

fn text(path: &str) -> String {
    let bytes = std::fs::read(path).unwrap_or_else(|error| panic!("{path}: {error}"));
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Without the sizes of memory, which grow meanwhile.
fn without_sizes(path: &str) -> Vec<String> {
    let text = text(path);
    let lines = text.lines().filter(|line| !line.starts_with("Vm") && !line.starts_with("Rss"));
    lines.map(str::to_owned).collect()
}

/// The value in a line `NAME:` of a file.
fn value(text: &str, name: &str) -> String {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or("nothing").trim().to_owned()
}

/// Fields of `stat`, by their numbers in proc_pid_stat(5).
fn fields(id: &str) -> Vec<String> {
    let text = text(&format!("/proc/{id}/stat"));
    let (head, tail) = text.trim_end().rsplit_once(") ").unwrap();
    let (id, name) = head.split_once(" (").unwrap();
    let mut all = vec![String::new(), id.to_owned(), name.to_owned()];
    all.extend(tail.split(' ').map(str::to_owned));
    all
}

/// Runs `f` with the id of a thread with a name and a blocked signal, that sleeps.
fn with_named_thread(f: impl FnOnce(i32)) {
    let prepare = || {
        sc!(SYS_prctl, PR_SET_NAME, c"second".as_ptr(), 0, 0, 0).is(0);
        block_signal(SIGUSR2);
    };
    with_prepared_thread(prepare, f);
}

/// What a thread has of its own is the same in /proc/TID and in /proc/PID/task/TID.
fn files_of_a_thread() {
    with_named_thread(|t| {
        let (by_id, in_task) = (t.to_string(), format!("self/task/{t}"));
        for name in ["comm", "status", "schedstat", "syscall", "wchan", "limits", "cmdline"] {
            let (one, other) = (format!("/proc/{by_id}/{name}"), format!("/proc/{in_task}/{name}"));
            assert_eq!(without_sizes(&one), without_sizes(&other), "{name}");
        }
        let status = text(&format!("/proc/{t}/status"));
        let id = t.to_string();
        for (name, expected) in [
            ("Name", "second"),
            ("State", "S (sleeping)"),
            ("Tgid", &pid().to_string()),
            ("Pid", &id),
            ("PPid", &sc!(SYS_getppid).must().to_string()),
            ("NStgid", &pid().to_string()),
            ("NSpid", &id),
            ("Threads", "2"),
            ("ShdPnd", "0000000000000000"),
            ("SigBlk", "0000000000000800"),
        ] {
            assert_eq!(value(&status, name), expected, "{name}");
        }
        assert_eq!(value(&text("/proc/self/status"), "State"), "R (running)");
        assert!(
            text(&format!("/proc/{t}/sched")).starts_with(&format!("second ({t}, #threads: 2)"))
        );
        assert_ne!(text(&format!("/proc/{t}/syscall")), text("/proc/self/syscall"));
        let (one, other) = (fields(&by_id), fields(&in_task));
        // Its id, name, state, parent, group, session, flags; signals; how it is scheduled.
        for at in (1..=9).chain([18, 19, 20, 22, 31, 32, 33, 34, 38, 40, 41]) {
            assert_eq!(one[at], other[at], "field {at}");
        }
        assert_eq!([&one[1], &one[2], &one[3]], [id.as_str(), "second", "S"]);
        assert_eq!(one[38], "-1", "whom its end tells");
        assert_eq!((one[35].as_str(), other[35].as_str()), ("0", "1"), "whether it waits");
        let own = fields("self");
        assert!(own[22].parse::<u64>().unwrap() <= one[22].parse().unwrap(), "when it was made");
        assert_eq!(own[38], "17");
        assert_eq!(one[9].parse::<u32>().unwrap() & 0x40, 0x40, "it has executed nothing");
    });
}

/// What is told of a process as a whole is told in /proc/TID, too.
fn sums_of_its_process() {
    with_named_thread(|t| {
        let ticks = |id: &str| {
            let fields = fields(id);
            fields[14].parse::<u64>().unwrap() + fields[15].parse::<u64>().unwrap()
        };
        let own = format!("self/task/{t}");
        // The thread itself may run between two looks.
        until(|| ticks("self") >= ticks(&own) + 20);
        assert!(ticks(&t.to_string()) >= ticks(&own) + 10);
        let reads = |id: &str| value(&text(&format!("/proc/{id}/io")), "syscr").parse::<u64>();
        let (_, before) = (pipe(), reads(&t.to_string()).unwrap());
        assert!(reads(&t.to_string()).unwrap() > before);
        assert_eq!(reads(&own).unwrap(), reads(&own).unwrap());
        for name in ["timers", "timens_offsets", "coredump_filter", "mountstats"] {
            assert_eq!(text(&format!("/proc/{t}/{name}")), text(&format!("/proc/self/{name}")));
        }
        let error = std::fs::metadata(format!("/proc/{t}/children")).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(ENOENT));
    });
}

fn names(path: &str) -> Vec<String> {
    let names = std::fs::read_dir(path).unwrap();
    let mut names: Vec<_> =
        names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn folders_of_a_thread() {
    with_named_thread(|t| {
        assert_eq!(names(&format!("/proc/{t}")), names("/proc/self"));
        let mut ids = [t.to_string(), pid().to_string()];
        ids.sort();
        assert_eq!(names(&format!("/proc/{t}/task")), ids);
        assert_eq!(text(&format!("/proc/{t}/task/{t}/comm")), "second\n");
        assert_eq!(text(&format!("/proc/{t}/task/{}/comm", pid())), text("/proc/self/comm"));
        let links = |path: String| std::fs::metadata(path).unwrap().nlink();
        assert_eq!(links(format!("/proc/{t}/task")), 4);
        assert_eq!(links(format!("/proc/{t}")), links("/proc/self".to_owned()));
        assert!(!names("/proc").contains(&t.to_string()));
        for name in ["exe", "cwd", "root", "ns/pid"] {
            let at = |id: String| std::fs::read_link(format!("/proc/{id}/{name}")).unwrap();
            assert_eq!(at(t.to_string()), at(pid().to_string()), "{name}");
        }
    });
}

fn nothing_is_left_of_a_thread() {
    const NAMES: [&str; 12] = [
        "status",
        "stat",
        "comm",
        "io",
        "sched",
        "syscall",
        "limits",
        "oom_score",
        "statm",
        "schedstat",
        "cmdline",
        "loginuid",
    ];
    let mut left = Vec::new();
    let mut folders = [0; 2];
    with_named_thread(|t| {
        for id in [t.to_string(), format!("self/task/{t}")] {
            let file = |name: &&str| open(&format!("/proc/{id}/{name}"), O_RDONLY).fd();
            left.extend(NAMES.iter().map(|name| (file(name), format!("{id}/{name}"))));
        }
        folders = [t.to_string(), format!("self/task/{t}")]
            .map(|id| open(&format!("/proc/{id}"), O_RDONLY | O_DIRECTORY).fd());
    });
    // It has been joined, which is before the kernel is through with it.
    let id = left[0].1.split('/').next().unwrap().to_owned();
    until(|| std::fs::metadata(format!("/proc/{id}")).is_err());
    let mut bytes = [0u8; 64];
    for (fd, name) in &left {
        let result = sc!(SYS_read, *fd, bytes.as_mut_ptr(), 64);
        assert_eq!(result, Err(ESRCH), "{name}");
    }
    let [by_id, in_task] = folders;
    sc!(SYS_openat, by_id, c"stat".as_ptr(), O_RDONLY).fails(ESRCH);
    sc!(SYS_openat, in_task, c"stat".as_ptr(), O_RDONLY).fails(ENOENT);
    folders.iter().for_each(|&fd| sc!(SYS_getdents64, fd, bytes.as_mut_ptr(), 64).fails(ENOENT));
}

fn settings_of_a_thread() {
    with_named_thread(|t| {
        let write_to = |name: &str, value: &str| {
            let fd = open(&format!("/proc/{t}/{name}"), O_WRONLY).fd();
            let written = sc!(SYS_write, fd, value.as_ptr(), value.len());
            close(fd);
            written
        };
        let before = text("/proc/self/comm");
        write_to("comm", "other").is(5);
        assert_eq!(text(&format!("/proc/{t}/comm")), "other\n");
        assert_eq!(text("/proc/self/comm"), before);
        write_to("timerslack_ns", "77777").is(5);
        assert_eq!(text(&format!("/proc/{t}/timerslack_ns")), "77777\n");
        assert_ne!(text("/proc/self/timerslack_ns"), "77777\n");
        write_to("oom_score_adj", "500").is(3);
        assert_eq!(text("/proc/self/oom_score_adj"), "500\n");
        // Only a thread itself says what is to be said of it.
        write_to("attr/current", "x").fails(EACCES);
        write_to("loginuid", "1").fails(EPERM);
    });
}

extern "C" fn sleep_long() {
    sc!(SYS_prctl, PR_SET_NAME, c"second".as_ptr(), 0, 0, 0).must();
    nap(100_000);
    quit(0);
}

/// A first thread that has ended is a zombie, whatever the others do.
fn first_threads_that_have_ended() {
    let child = fork(|| {
        sc!(SYS_prctl, PR_SET_NAME, c"first".as_ptr(), 0, 0, 0).must();
        raw_thread(THREAD_FLAGS, sleep_long);
        let _ = sc!(SYS_exit, 0);
        0
    });
    until(|| fields(&child.to_string())[3] == "Z");
    let status = text(&format!("/proc/{child}/status"));
    for (name, expected) in [
        ("Name", "first"),
        ("State", "Z (zombie)"),
        ("Threads", "2"),
        ("Umask", "nothing"),
        ("VmSize", "nothing"),
        ("CoreDumping", "nothing"),
        ("THP_enabled", "nothing"),
        ("FDSize", "0"),
    ] {
        assert_eq!(value(&status, name), expected, "{name}");
    }
    let ids = names(&format!("/proc/{child}/task"));
    assert_eq!(ids.len(), 2, "{ids:?}");
    let other = ids.iter().find(|id| **id != child.to_string()).unwrap();
    assert_eq!(text(&format!("/proc/{child}/task/{child}/comm")), "first\n");
    until(|| text(&format!("/proc/{other}/comm")) == "second\n");
    until_asleep(other.parse().unwrap());
    assert_eq!(value(&text(&format!("/proc/{other}/status")), "State"), "S (sleeping)");
    for (name, there) in [("cmdline", true), ("maps", true), ("coredump_filter", true)] {
        assert_eq!(text(&format!("/proc/{child}/{name}")).is_empty(), there, "{name}");
        assert!(!text(&format!("/proc/{other}/{name}")).is_empty(), "{name}");
    }
    for name in ["exe", "cwd", "root"] {
        let link = |id: &str| std::fs::read_link(format!("/proc/{id}/{name}"));
        assert_eq!(link(&child.to_string()).unwrap_err().raw_os_error(), Some(ENOENT), "{name}");
        assert!(link(other).is_ok(), "{name}");
    }
    assert!(names(&format!("/proc/{child}/fd")).is_empty());
    assert!(!names(&format!("/proc/{other}/fd")).is_empty());
    sc!(SYS_kill, child, SIGKILL).is(0);
    wait_signal(child, SIGKILL);
}

fn zombies_keep_their_name() {
    let child = fork(|| {
        sc!(SYS_prctl, PR_SET_NAME, c"own name".as_ptr(), 0, 0, 0).must();
        0
    });
    let mut info = [0u8; 128];
    sc!(SYS_waitid, P_PID, child, info.as_mut_ptr(), WEXITED | WNOWAIT, 0).is(0);
    assert_eq!(text(&format!("/proc/{child}/comm")), "own name\n");
    assert_eq!(fields(&child.to_string())[2], "own name");
    let status = text(&format!("/proc/{child}/status"));
    assert_eq!(value(&status, "Name"), "own name");
    assert_eq!(value(&status, "Umask"), "nothing");
    assert_eq!(value(&status, "FDSize"), "0");
    wait_code(child, 0);
    let own = text("/proc/self/status");
    assert_eq!(value(&own, "untag_mask"), "0xffffffffffffffff");
    let groups = own.lines().find(|line| line.starts_with("Groups:"));
    assert!(groups.unwrap().ends_with(' '));
}

/// An open /proc/TID is taken for a descriptor of the thread's process, or of the thread.
fn folders_take_signals() {
    let mask = block_signal(SIGUSR1);
    let mut gone = 0;
    with_named_thread(|t| {
        let folder = open(&format!("/proc/{t}"), O_RDONLY).fd();
        let in_task = open(&format!("/proc/self/task/{t}"), O_RDONLY).fd();
        sc!(SYS_pidfd_send_signal, in_task, 0, 0, 0).fails(EBADF);
        sc!(SYS_pidfd_send_signal, folder, 0, 0, 0).is(0);
        sc!(SYS_pidfd_send_signal, folder, 0, 0, 1).is(0);
        sc!(SYS_pidfd_send_signal, folder, 0, 0, 2).is(0);
        sc!(SYS_pidfd_send_signal, folder, 0, 0, 4).fails(ESRCH);
        let pending = |name: &str| value(&text(&format!("/proc/{t}/status")), name);
        // The thread blocks it.
        sc!(SYS_pidfd_send_signal, folder, SIGUSR2, 0, 1).is(0);
        assert_eq!(pending("SigPnd"), "0000000000000800");
        gone = folder;
    });
    until(|| sc!(SYS_pidfd_send_signal, gone, 0, 0, 0) == Err(ESRCH));
    sc!(SYS_pidfd_send_signal, gone, 0, 0, 1).fails(ESRCH);
    sigmask(SIG_SETMASK, mask);
}

/// A process's signal that comes by a thread's id is for that thread if it takes it.
fn signals_by_the_id_of_a_thread() {
    static TAKEN_BY: AtomicU32 = AtomicU32::new(0);
    extern "C" fn take(_: i32) {
        TAKEN_BY.store(tid() as u32, SeqCst);
    }
    on_signal(SIGUSR1, take as *const () as usize, SA_RESTART, 0);
    with_named_thread(|t| {
        let folder = open(&format!("/proc/{t}"), O_RDONLY).fd();
        let info = Siginfo { signo: SIGUSR1, code: -1, ..Siginfo::default() };
        let calls: [&dyn Fn() -> Res; 4] = [
            &|| sc!(SYS_kill, t, SIGUSR1),
            &|| sc!(SYS_rt_sigqueueinfo, t, SIGUSR1, &raw const info),
            &|| sc!(SYS_pidfd_send_signal, folder, SIGUSR1, 0, 0),
            &|| sc!(SYS_pidfd_send_signal, folder, SIGUSR1, &raw const info, 2),
        ];
        for (number, call) in calls.iter().enumerate() {
            until_asleep(t);
            TAKEN_BY.store(0, SeqCst);
            call().is(0);
            until(|| TAKEN_BY.load(SeqCst) != 0);
            assert_eq!(TAKEN_BY.load(SeqCst), t as u32, "call {number}");
        }
    });
}
