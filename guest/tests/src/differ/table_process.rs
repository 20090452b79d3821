//! The calls on signals, processes, threads, rights, limits and time.

use super::draft::{Draft, Kind, Row};
use super::program::{Actor, Arg, Norm, Special, Value};
use crate::sys::*;

fn sigaction(d: &mut Draft) {
    d.signal();
    let flags =
        d.rng.of(&[0u64, 4, 4, 4 | 0x4000_0000, 4 | 0x8000_0000, 4 | 0x1000_0000, 2, 1, 4 | 0x800]);
    let mask = d.a_signal_set();
    let which = d.rng.of(&[0u64, 1, 2, 2, 2, 2]);
    if d.chance(8) {
        d.num(0);
    } else {
        // The restorer is the library's in any case: without one there is no return.
        // Without SA_SIGINFO nothing says what the handler finds there.
        let flags = if which == 2 { flags | 4 } else { flags };
        let at = d.words(&[which, flags | 0x0400_0000, 0, mask]);
        if which == 2 {
            d.fix(at, 8, Arg::Handler);
        }
        d.fix(at + 16, 8, Arg::Restorer);
    }
    d.out_or_null(32, Norm::Sigaction);
    d.of(&[8, 8, 8, 8, 8, 8, 4, 16]);
}

/// siginfo_t to send.
fn info(d: &mut Draft) {
    let signal = d.rng.of(&[10u64, 40, 12]);
    let code = d.rng.of(&[-1i64, -1, -2, -3, -6, 0, 1]) as u64 & 0xffff_ffff;
    let mut words = [0u64; 16];
    words[0] = signal;
    words[1] = code;
    words[3] = 0x1234_5678;
    let at = d.words(&words);
    d.fix(at + 16, 4, Arg::Id(Actor::Main));
}

fn wait_how(d: &mut Draft) {
    d.flags_with(WNOHANG, &[WUNTRACED, __WALL, __WNOTHREAD, __WCLONE, 8, 0x20]);
}

fn exit(d: &mut Draft) {
    if d.call.actor == Actor::Main {
        // The main thread stays: it has the record.
        d.call.nr = SYS_getppid as u32;
        d.call.value = Value::Any;
        return;
    }
    if d.call.actor == Actor::Thread {
        d.call.nr = SYS_exit as u32;
    }
    d.call.special = Special::Exit;
    d.of(&[0, 1, 7, 255, 256, -1]);
}

fn ids(d: &mut Draft, count: usize) {
    for _ in 0..count {
        d.of(&[-1, -1, 1000, 1000, 0, 5, -2]);
    }
}

fn sigevent(d: &mut Draft) {
    let signal = d.rng.of(&[40u64, 10, 0, 65, 12]);
    let notify = d.rng.of(&[0u64, 1, 0, 1, 2, 4, 9]);
    let mut words = [0u64; 8];
    words[0] = 0x77;
    words[1] = signal | notify << 32;
    let at = d.words(&words);
    if notify == 4 {
        d.fix(at + 16, 4, Arg::Id(Actor::Main));
    }
}

fn rlimit(d: &mut Draft) {
    // Not those that end a program or what it runs on: memory, time, stack.
    d.of(&[1, 4, 5, 6, 7, 8, 11, 12, 13, 14, 16, -1, 7, 1]);
}

fn new_limit(d: &mut Draft) {
    let soft = d.rng.of(&[64u64, 100, 5000, 1 << 20, u64::MAX, 40]);
    let hard = d.rng.of(&[64u64, 5000, 1 << 20, u64::MAX, u64::MAX]);
    d.words(&[soft, hard]);
}

fn prctl(d: &mut Draft) {
    match d.rng.below(12) {
        0 => {
            d.num(1);
            d.of(&[0, 10, 40, 65, -1])
        }
        1 => {
            d.num(2);
            d.out(4);
        }
        2 => {
            d.of(&[3, 7, 21, 27, 30, 39, 42]);
            d.num(0)
        }
        3 => {
            d.num(4);
            d.of(&[0, 1, 2, 3])
        }
        4 => {
            d.num(8);
            d.of(&[0, 1, 2])
        }
        5 => {
            d.num(15);
            d.input(b"a name that is longer\0");
        }
        6 => {
            d.num(16);
            d.out(16);
        }
        7 => {
            d.of(&[23, 24]);
            d.of(&[0, 5, 21, 40, 41, 63, 64])
        }
        8 => {
            d.of(&[28, 38, 36]);
            d.of(&[0, 1, 2, 0x2f])
        }
        9 => {
            d.num(29);
            d.of(&[0, 1, 50_000, -1])
        }
        10 => {
            d.of(&[37, 41, 65, 66]);
            d.of(&[0, 1, 2])
        }
        _ => {
            d.num(47);
            d.of(&[1, 2, 3, 4, 5]);
            d.of(&[0, 5, 21, 41])
        }
    }
    while d.call.args.len() < 5 {
        d.of(&[0, 0, 0, 0, 0, 0, 1]);
    }
}

fn futex(d: &mut Draft) {
    // As owners of PI futexes these are nobody.
    let word = d.rng.of(&[0u64, 1 << 22 | 1, 1 << 22 | 5, 0x8000_0000]);
    let at = d.words(&[word, 7]);
    let private = d.rng.of(&[0, 128, 128, 256]);
    let op = d.rng.of(&[1, 1, 0, 9, 3, 4, 5, 10, 6, 7, 8, 13, 11, 12, 99]);
    d.num(op | private);
    d.of(&[0, 1, 1 << 22 | 5, 7, i64::from(i32::MAX), -1]);
    let time = d.put(&[0u8; 16]);
    match op {
        // A wait is over at once.
        0 | 9 | 6 | 13 | 11 => d.num(super::program::INPUT as i64 + i64::from(time)),
        _ => d.of(&[0, 1, 5, -1]),
    }
    d.num(super::program::INPUT as i64 + i64::from(at) + 4);
    d.of(&[0, 1, 7, -1, 0x0100_2003]);
}

fn sched(d: &mut Draft) {
    d.id();
    d.of(&[0, 0, 1, 2, 3, 5, 6, 7, -1]);
    let priority = d.rng.of(&[0u64, 0, 1, 50, 99, 100]);
    d.words(&[priority]);
}

/// The table.
pub const ROWS: &[Row] = &[
    (SYS_rt_sigaction, 20, sigaction),
    (SYS_rt_sigprocmask, 12, |d| {
        d.of(&[0, 1, 2, 3]);
        let s = d.a_signal_set();
        d.words_or_null(&[s]);
        d.out_or_null(8, Norm::Text);
        d.of(&[8, 8, 8, 8, 4])
    }),
    (SYS_rt_sigpending, 5, |d| {
        d.out(8);
        d.of(&[8, 8, 8, 4, 16, 0])
    }),
    (SYS_rt_sigtimedwait, 8, |d| {
        let s = d.a_signal_set();
        d.words(&[s]);
        d.out_or_null(128, Norm::Siginfo);
        d.short_zero();
        d.of(&[8, 8, 8, 8, 4])
    }),
    (SYS_rt_sigqueueinfo, 6, |d| {
        d.id();
        d.signal();
        info(d)
    }),
    (SYS_rt_tgsigqueueinfo, 5, |d| {
        d.id();
        d.id();
        d.signal();
        info(d)
    }),
    (SYS_sigaltstack, 3, |d| {
        let w = d.rng.of(&[
            [0x7_0020_0000u64, 0, 65536],
            [0x7_0020_0000, 2, 0],
            [0x7_0020_0000, 0, 100],
            [0x7_0020_0000, 1, 65536],
            [0, 8, 4096],
        ]);
        d.words_or_null(&w);
        d.out_or_null(24, Norm::Text)
    }),
    (SYS_kill, 14, |d| {
        d.id();
        d.signal()
    }),
    (SYS_tkill, 5, |d| {
        d.id();
        d.signal()
    }),
    (SYS_tgkill, 6, |d| {
        d.id();
        d.id();
        d.signal()
    }),
    (SYS_kill, 4, |d| {
        d.call.args.push(Arg::Id(Actor::Child));
        d.of(&[
            i64::from(SIGSTOP),
            i64::from(SIGCONT),
            i64::from(SIGKILL),
            i64::from(SIGTERM),
            i64::from(SIGTSTP),
            i64::from(SIGCONT),
        ])
    }),
    (SYS_pidfd_send_signal, 4, |d| {
        d.fd(&[Kind::Pid]);
        d.signal();
        if d.chance(2) {
            d.num(0)
        } else {
            info(d)
        };
        d.of(&[0, 0, 1, 2, 4, 8])
    }),
    (SYS_alarm, 2, |d| {
        d.of(&[0, 100_000, 200_000]);
        d.call.value = Value::Any
    }),
    (SYS_setitimer, 3, |d| {
        d.of(&[0, 1, 2, 3, -1]);
        let w = d.rng.of(FAR);
        d.words_or_null(&w);
        d.out_or_null(32, Norm::Time(32))
    }),
    (SYS_getitimer, 2, |d| {
        d.of(&[0, 1, 2, 3]);
        d.out_as(32, Norm::Time(32))
    }),
    (SYS_timer_create, 4, |d| {
        d.of(&[0, 1, 7, 2, 3, 11, 4, 12, 99]);
        if d.chance(3) {
            d.num(0)
        } else {
            sigevent(d)
        };
        d.makes_timer()
    }),
    (SYS_timer_settime, 4, |d| {
        d.fd(&[Kind::PosixTimer]);
        d.of(&[0, 1, 2]);
        let w = d.rng.of(FAR);
        d.words(&w);
        d.out_or_null(32, Norm::Time(32))
    }),
    (SYS_timer_gettime, 2, |d| {
        d.fd(&[Kind::PosixTimer]);
        d.out_as(32, Norm::Time(32))
    }),
    (SYS_timer_getoverrun, 2, |d| d.fd(&[Kind::PosixTimer])),
    (SYS_timer_delete, 2, |d| d.fd(&[Kind::PosixTimer])),
    (SYS_exit_group, 5, exit),
    (SYS_wait4, 10, |d| {
        d.id_or(&[-1, -1, 0, i64::MIN]);
        d.out(4);
        wait_how(d);
        d.out_or_null(144, Norm::Time(144));
        d.call.value = Value::Id
    }),
    (SYS_waitid, 12, |d| {
        d.of(&[0, 1, 1, 2, 3, 4]);
        if d.chance(4) {
            d.fd(&[Kind::Pid])
        } else {
            d.id()
        };
        d.out_as(128, Norm::Siginfo);
        d.flags_with(
            WNOHANG | WEXITED,
            &[WSTOPPED, WCONTINUED, WNOWAIT, __WALL, __WCLONE, 1 << 20],
        );
        d.num(0)
    }),
    (SYS_getpid, 1, |d| d.call.value = Value::Id),
    (SYS_gettid, 2, |d| d.call.value = Value::Id),
    (SYS_getppid, 2, |d| d.call.value = Value::Id),
    (SYS_getpgid, 4, |d| {
        d.id();
        d.call.value = Value::Id
    }),
    (SYS_getsid, 4, |d| {
        d.id();
        d.call.value = Value::Id
    }),
    (SYS_getpgrp, 1, |d| d.call.value = Value::Id),
    (SYS_setpgid, 6, |d| {
        d.id();
        d.id();
    }),
    (SYS_setsid, 2, |d| d.call.value = Value::Id),
    (SYS_setuid, 2, |d| ids(d, 1)),
    (SYS_setgid, 2, |d| ids(d, 1)),
    (SYS_setreuid, 2, |d| ids(d, 2)),
    (SYS_setregid, 2, |d| ids(d, 2)),
    (SYS_setresuid, 3, |d| ids(d, 3)),
    (SYS_setresgid, 3, |d| ids(d, 3)),
    (SYS_setfsuid, 2, |d| ids(d, 1)),
    (SYS_setfsgid, 2, |d| ids(d, 1)),
    (SYS_getresuid, 2, |d| {
        d.out(4);
        d.out(4);
        d.out(4);
    }),
    (SYS_getresgid, 2, |d| {
        d.out(4);
        d.out(4);
        d.out(4);
    }),
    (SYS_setgroups, 2, |d| {
        d.of(&[0, 1, 3, -1, 65537]);
        d.input(&[5, 0, 0, 0, 3, 0, 0, 0, 9, 0, 0, 0]);
    }),
    (SYS_getgroups, 2, |d| {
        d.of(&[0, 1, 10, -1]);
        d.out(40);
    }),
    (SYS_prctl, 16, prctl),
    (SYS_prlimit64, 8, |d| {
        d.id();
        rlimit(d);
        if d.chance(2) {
            d.num(0)
        } else {
            new_limit(d)
        };
        d.out_or_null(16, Norm::Text)
    }),
    (SYS_getrlimit, 3, |d| {
        rlimit(d);
        d.out(16);
    }),
    (SYS_setrlimit, 4, |d| {
        rlimit(d);
        new_limit(d)
    }),
    (SYS_getpriority, 3, |d| {
        let which = d.rng.of(&[0, 0, 1, 2, 3]);
        d.num(which);
        // Root's processes are the kernel's own, too.
        if which == 2 {
            d.only_for_user();
        }
        d.id()
    }),
    (SYS_setpriority, 3, |d| {
        d.of(&[0, 0, 1, 3]);
        d.id();
        d.of(&[0, 5, 19, 20, 100])
    }),
    (SYS_sched_getscheduler, 2, |d| d.id()),
    (SYS_sched_setscheduler, 3, |d| sched(d)),
    (SYS_sched_getparam, 2, |d| {
        d.id();
        d.out(4);
    }),
    (SYS_sched_setparam, 1, |d| {
        d.id();
        d.words(&[0]);
    }),
    (SYS_sched_get_priority_max, 1, |d| d.of(&[0, 1, 2, 3, 4, 5, 6, 7, -1])),
    (SYS_sched_get_priority_min, 1, |d| d.of(&[0, 1, 2, 3, 4, 5, 6, 7, -1])),
    (SYS_sched_rr_get_interval, 1, |d| {
        d.id();
        d.out_as(16, Norm::Time(16))
    }),
    (SYS_sched_getattr, 2, |d| {
        d.id();
        d.out_as(56, Norm::Time(56));
        d.of(&[48, 56, 47, 0, 5000]);
        d.of(&[0, 0, 1])
    }),
    (SYS_sched_yield, 1, |_| {}),
    (SYS_personality, 2, |d| d.of(&[0xffff_ffff, 0xffff_ffff, 0, 0x4_0000])),
    (SYS_capget, 3, |d| {
        let v = d.rng.of(&[0x2008_0522u64, 0x1998_0330, 0x2007_1026, 5]);
        let at = d.words(&[v]);
        d.fix(at + 4, 4, Arg::Id(Actor::Main));
        if d.chance(4) {
            d.num(0)
        } else {
            d.out(24);
            d.only_for_user()
        }
    }),
    (SYS_capset, 2, |d| {
        let at = d.words(&[0x2008_0522]);
        d.fix(at + 4, 4, Arg::Number(0));
        let w = d.rng.of(&[[0u64, 0, 0], [1, 0, 0], [u64::MAX, 0, 0]]);
        d.words(&w);
    }),
    (SYS_unshare, 2, |d| {
        d.of(&[i64::from(CLONE_FILES), i64::from(CLONE_FS), 0, i64::from(CLONE_SIGHAND), 1]);
    }),
    (SYS_set_tid_address, 1, |d| {
        d.num(0);
        d.call.value = Value::Id
    }),
    (SYS_set_robust_list, 1, |d| {
        d.num(0);
        d.of(&[24, 24, 16])
    }),
    (SYS_futex, 14, futex),
    (SYS_clock_gettime, 2, |d| {
        d.of(&[0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12, -1]);
        d.out_as(16, Norm::Time(16))
    }),
    (SYS_clock_getres, 2, |d| {
        d.of(&[0, 1, 2, 3, 4, 5, 6, 7, 11, 12, -1]);
        d.out_or_null(16, Norm::Text)
    }),
    (SYS_clock_settime, 1, |d| {
        d.of(&[1, 2, 4, 7, 99]);
        d.words(&[5, 5]);
    }),
    (SYS_clock_nanosleep, 4, |d| {
        d.of(&[0, 1, 7, 2, 3, 4, 99]);
        d.of(&[0, 1, 2]);
        d.short_zero();
        d.num(0)
    }),
    (SYS_nanosleep, 2, |d| {
        d.short_zero();
        d.num(0)
    }),
    (SYS_gettimeofday, 1, |d| {
        d.out_or_null(16, Norm::Time(16));
        d.out_or_null(8, Norm::Text)
    }),
    (SYS_times, 1, |d| {
        d.out_as(32, Norm::Time(32));
        d.call.value = Value::Any
    }),
    (SYS_getrusage, 2, |d| {
        d.of(&[0, -1, 1, 2, -2]);
        d.out_as(144, Norm::Time(144))
    }),
    (SYS_uname, 1, |d| d.num(0)),
    (SYS_sysinfo, 1, |d| d.num(0)),
    (SYS_kcmp, 2, |d| {
        d.id();
        d.id();
        d.of(&[0, 1, 2, 3, 4, 5, 6, 8]);
        d.of(&[3, 4, 99]);
        d.of(&[3, 4]);
        d.call.value = Value::Any
    }),
    (SYS_ioprio_get, 1, |d| {
        let which = d.rng.of(&[1, 2, 3, 4]);
        d.num(which);
        // As with getpriority(2).
        if which == 3 {
            d.only_for_user();
        }
        d.id()
    }),
    (SYS_ioprio_set, 1, |d| {
        d.of(&[1, 9]);
        d.id();
        d.of(&[0, 0x4004, 0x6000, 0x8000])
    }),
    (SYS_pause, 1, |_| {}),
    (SYS_rt_sigsuspend, 2, |d| {
        let s = d.a_signal_set();
        d.words(&[s]);
        d.of(&[8, 8, 4])
    }),
    (SYS_getcpu, 1, |d| {
        d.num(0);
        d.num(0);
        d.num(0)
    }),
    (SYS_setns, 1, |d| {
        d.any_fd();
        d.of(&[0, 0x2000_0000])
    }),
    (SYS_vhangup, 1, |d| d.only_for_user()),
    (SYS_acct, 1, |d| {
        d.only_for_user();
        d.num(0)
    }),
    (SYS_iopl, 1, |d| {
        d.only_for_user();
        d.of(&[0, 3, 4, 1])
    }),
    (SYS_chroot, 2, |d| {
        d.only_for_user();
        d.path()
    }),
    (SYS_sethostname, 1, |d| {
        d.only_for_user();
        d.input(b"n");
        d.of(&[1, 65, -1])
    }),
    (SYS_mount, 1, |d| {
        d.only_for_user();
        d.path();
        d.path();
        d.num(0);
        d.of(&[0x1000]);
        d.num(0)
    }),
    (SYS_umount2, 1, |d| {
        d.only_for_user();
        d.path();
        d.of(&[0, 2, 8, 16])
    }),
    (SYS_settimeofday, 1, |d| {
        d.only_for_user();
        d.words(&[5, 5]);
        d.num(0)
    }),
    (SYS_ptrace, 1, |d| {
        d.of(&[5, 7, 8, 0x4200, 0x4206, 99]);
        d.id();
        d.num(0);
        d.num(0)
    }),
    (SYS_sched_setattr, 3, |d| {
        d.id();
        let policy = d.rng.of(&[0u64, 0, 1, 2, 3, 5, 6, 9]);
        let size = d.rng.of(&[48u64, 48, 56, 47, 0, 60, 5000]);
        let flags = d.rng.of(&[0u64, 0, 1, 8, 16, 0x18, 1 << 40]);
        let nice = d.rng.of(&[0u64, 5, 19, 20]);
        let priority = d.rng.of(&[0u64, 0, 1, 50]);
        d.words(&[size | policy << 32, flags, nice | priority << 32, 0, 0, 0, 0]);
        d.of(&[0, 0, 1])
    }),
    (SYS_mq_open, 1, |d| {
        d.input(b"q\0");
        d.of(&[0, 2]);
        d.num(0);
        d.num(0)
    }),
];

/// Times that do not come while a program runs.
const FAR: &[[u64; 4]] = &[
    [0, 0, 0, 0],
    [0, 0, 5_000_000_000, 0],
    [50_000, 0, 5_000_000_000, 0],
    [0, 0, 5, 1_000_000_000],
    [u64::MAX, 0, 5, 0],
];
