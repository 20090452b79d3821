//! Rows about processes: many children, many processes, much that a fork or an exec carries.

use std::ffi::CString;

use libc::*;

use crate::cost::Cost;
use crate::sys::{self, Herd, call, close, exit, fork, good, wait};
use crate::{MANY, Row, SOME};

pub const ROWS: &[Row] = &[
    Row { name: "wait_pid_among_zombies", sizes: MANY, run: wait_among_zombies },
    Row { name: "wait_any_among_children", sizes: MANY, run: wait_any },
    Row { name: "wait_pid_among_children", sizes: MANY, run: wait_pid },
    Row { name: "fork_wait_among_children", sizes: MANY, run: fork_among_children },
    Row { name: "wait_no_hang_among_children", sizes: MANY, run: wait_no_hang },
    Row { name: "setpriority_of_group", sizes: MANY, run: setpriority },
    Row { name: "kill_among_processes", sizes: MANY, run: kill_one },
    Row { name: "kill_group_among_processes", sizes: MANY, run: kill_small_group },
    Row { name: "kill_group_of", sizes: MANY, run: kill_group },
    Row { name: "setpgid_among_groups", sizes: MANY, run: setpgid },
    Row { name: "fork_setsid_wait_among_sessions", sizes: MANY, run: setsid },
    Row { name: "ps_of_processes", sizes: SOME, run: ps },
    Row { name: "fork_wait_with_areas", sizes: MANY, run: fork_areas },
    Row { name: "fork_wait_with_descriptors", sizes: MANY, run: fork_descriptors },
    Row { name: "exec_with_env_bytes", sizes: [1000, 10_000, 100_000, 1_000_000], run: exec_env },
];

fn zombie() -> usize {
    let pid = fork(|| ());
    // Its end is seen, and left to be waited for.
    let mut info = [0u64; 16];
    let options = (WEXITED | WNOWAIT) as usize;
    good(SYS_waitid, &[P_PID as usize, pid, info.as_mut_ptr() as usize, options, 0]);
    pid
}

fn wait_among_zombies(cost: &mut Cost, n: usize) {
    let pids: Vec<usize> = (0..n).map(|_| fork(|| ())).collect();
    sys::quiet();
    let step = (n / cost.samples()).max(1);
    for &pid in pids.iter().step_by(step) {
        cost.time(|| wait(pid));
    }
}

fn wait_any(cost: &mut Cost, n: usize) {
    let _herd = Herd::new(n, |_| ());
    for _ in 0..cost.samples() {
        let pid = zombie();
        let got = cost.time(|| good(SYS_wait4, &[usize::MAX, 0, 0, 0]));
        assert_eq!(got, pid);
    }
}

fn wait_pid(cost: &mut Cost, n: usize) {
    let _herd = Herd::new(n, |_| ());
    for _ in 0..cost.samples() {
        let pid = zombie();
        cost.time(|| wait(pid));
    }
}

fn wait_no_hang(cost: &mut Cost, n: usize) {
    let _herd = Herd::new(n, |_| ());
    let ask = [usize::MAX, 0, WNOHANG as usize, 0];
    cost.repeat(|| assert_eq!(good(SYS_wait4, &ask), 0));
}

fn setpriority(cost: &mut Cost, n: usize) {
    let herd = Herd::new(n, |_| ());
    let group = herd.pids[0];
    for pid in &herd.pids {
        good(SYS_setpgid, &[*pid, group]);
    }
    cost.repeat(|| good(SYS_setpriority, &[PRIO_PGRP as usize, group, 5]));
}

fn fork_among_children(cost: &mut Cost, n: usize) {
    let _herd = Herd::new(n, |_| ());
    cost.repeat(|| wait(fork(|| ())));
}

fn kill_one(cost: &mut Cost, n: usize) {
    let herd = Herd::new(n, |_| ());
    let pid = herd.middle();
    cost.repeat(|| good(SYS_kill, &[pid, 0]));
}

/// The negative of a group's number, as kill(2) takes it.
fn all_of(group: usize) -> usize {
    group.wrapping_neg()
}

fn kill_small_group(cost: &mut Cost, n: usize) {
    let herd = Herd::new(n, |_| ());
    let group = herd.middle();
    for pid in &herd.pids[n / 2..n / 2 + 4] {
        good(SYS_setpgid, &[*pid, group]);
    }
    cost.repeat(|| good(SYS_kill, &[all_of(group), SIGURG as usize]));
}

fn kill_group(cost: &mut Cost, n: usize) {
    let herd = Herd::new(n, |_| ());
    let group = herd.pids[0];
    for pid in &herd.pids {
        good(SYS_setpgid, &[*pid, group]);
    }
    // Ignored by its default: nobody wakes.
    cost.repeat(|| good(SYS_kill, &[all_of(group), SIGURG as usize]));
}

fn setpgid(cost: &mut Cost, n: usize) {
    let herd = Herd::new(n, |_| ());
    for pid in &herd.pids {
        good(SYS_setpgid, &[*pid, *pid]);
    }
    let (pid, other) = (herd.middle(), herd.pids[0]);
    cost.repeat(|| {
        good(SYS_setpgid, &[pid, other]);
        good(SYS_setpgid, &[pid, pid])
    });
}

fn setsid(cost: &mut Cost, n: usize) {
    let _herd = Herd::new(n, |_| {
        good(SYS_setsid, &[]);
    });
    cost.repeat(|| {
        wait(fork(|| {
            call(SYS_setsid, &[]);
        }))
    });
}

fn ps(cost: &mut Cost, n: usize) {
    let _herd = Herd::new(n, |_| ());
    let mut buf = vec![0u8; 32 << 10];
    let list = |buf: &mut [u8]| {
        let fd = sys::open(c"/proc", O_RDONLY | O_DIRECTORY);
        let mut read = 0;
        loop {
            let got = good(SYS_getdents64, &[fd, buf.as_mut_ptr() as usize, buf.len()]);
            if got == 0 {
                break;
            }
            for name in crate::dirs::names(&buf[..got]).filter(|name| name[0].is_ascii_digit()) {
                let path = [b"/proc/", name, b"/stat"].concat();
                read += stat_line(&CString::new(path).expect("a name"));
            }
        }
        close(fd);
        read
    };
    list(&mut buf);
    for _ in 0..cost.few() {
        assert!(cost.time(|| list(&mut buf)) > n);
    }
}

fn stat_line(path: &CString) -> usize {
    let mut line = [0u8; 512];
    let fd = sys::open(path, O_RDONLY);
    let got = good(SYS_read, &[fd, line.as_mut_ptr() as usize, line.len()]);
    close(fd);
    got
}

fn fork_areas(cost: &mut Cost, n: usize) {
    crate::memory::areas(n);
    cost.repeat(|| wait(fork(|| ())));
}

fn fork_descriptors(cost: &mut Cost, n: usize) {
    let fd = sys::open(c"/dev/null", O_RDONLY);
    (0..n).for_each(|_| _ = good(SYS_dup, &[fd]));
    cost.repeat(|| wait(fork(|| ())));
}

fn exec_env(cost: &mut Cost, n: usize) {
    /// A string may have 128 KiB (execve(2)).
    const STRING: usize = 100_000;
    let sizes = (0..n).step_by(STRING).map(|done| STRING.min(n - done));
    // NAME=value: a C library looks for the end of each name, byte by byte, and no further.
    let string = |size| [b"e=".as_slice(), &vec![b'e'; size - 3]].concat();
    let strings: Vec<CString> =
        sizes.map(|size| CString::new(string(size)).expect("no zero")).collect();
    let envp: Vec<usize> = strings.iter().map(|s| sys::at(s)).chain([0]).collect();
    // The path this program was started by: there may be no /proc.
    // SAFETY: no arguments but a number.
    let own = unsafe { getauxval(AT_EXECFN) } as usize;
    let argv = [c"growth".as_ptr() as usize, c"noop".as_ptr() as usize, 0];
    let (argv, envp) = (argv.as_ptr() as usize, envp.as_ptr() as usize);
    cost.repeat(|| {
        wait(fork(|| {
            call(SYS_execve, &[own, argv, envp]);
            exit(1);
        }))
    });
}
