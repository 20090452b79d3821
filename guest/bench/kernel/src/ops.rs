//! The operations, each the way a program would do it.
//!
//! Every operation checks what it got: an error ends the bench, since a failed call is cheap and
//! would be taken for a fast one. Pointers given to the kernel live until the call returns.

use crate::Bench;
use libc::*;
use limen_guest_bench::raw::{count_signal, rdtsc, signals_seen, syscall};

const PAGE: usize = 4096;
const FORK_PAGES: usize = 500;
const FAULT_PAGES: usize = 256;

#[inline(always)]
fn sys(nr: c_long, a: &[usize]) -> isize {
    let mut six = [0; 6];
    six[..a.len()].copy_from_slice(a);
    syscall(nr, six)
}

/// The result, which must not be an error.
#[inline(always)]
#[track_caller]
fn good(ret: isize) -> usize {
    assert!(ret >= 0, "system call failed: errno {}", -ret);
    ret as usize
}

/// All operations, in the order of the table.
pub fn all(b: &mut Bench) {
    calls(b);
    files(b);
    channels(b);
    memory(b);
    processes(b);
    switches(b);
    signals(b);
}

/// Calls that take the general way and do next to nothing: `bench calls`.
pub fn plain(b: &mut Bench) {
    const NO_FILE: usize = 999;
    const MASK: usize = 0o22;
    let n = b.light();
    sys(SYS_umask, &[MASK]);
    b.measure("gettid", n, || (good(sys(SYS_gettid, &[])) > 0) as u64);
    b.measure("getuid", n, || good(sys(SYS_getuid, &[])) as u64);
    b.measure("getppid", n, || (sys(SYS_getppid, &[]) >= 0) as u64);
    b.measure("umask", n, || good(sys(SYS_umask, &[MASK])) as u64);
    b.measure("close_bad_descriptor", n, || sys(SYS_close, &[NO_FILE]) as u64);
}

/// What is about the border itself.
pub fn border(b: &mut Bench) {
    getpid(b, "getpid");
    signals(b);
    forks(b);
}

/// A call with a filter of four instructions that allows everything.
pub fn filtered(b: &mut Bench) {
    const ALLOW: u32 = 0x7fff_0000;
    let insn = |code, k, jf| sock_filter { code, jt: 0, jf, k };
    let mut insns = [insn(0x20, 0, 0), insn(0x15, 1999, 1), insn(0x06, 0, 0), insn(0x06, ALLOW, 0)];
    let program = sock_fprog { len: insns.len() as u16, filter: insns.as_mut_ptr() };
    good(sys(SYS_prctl, &[PR_SET_NO_NEW_PRIVS as usize, 1, 0, 0, 0]));
    good(sys(SYS_seccomp, &[1, 0, &raw const program as usize]));
    getpid(b, "getpid_filtered");
}

fn getpid(b: &mut Bench, name: &'static str) {
    let n = b.light();
    b.measure(name, n, || (good(sys(SYS_getpid, &[])) > 0) as u64);
}

fn calls(b: &mut Bench) {
    let n = b.light();
    getpid(b, "getpid");
    b.measure("unknown_syscall", n, || sys(1999, &[]) as u64);
}

fn files(b: &mut Bench) {
    let n = b.light();
    let mut byte = 0u8;
    let buf = &raw mut byte as usize;
    let zero = open(c"/dev/zero".as_ptr() as usize, O_RDONLY);
    let null = open(c"/dev/null".as_ptr() as usize, O_WRONLY);
    b.measure("read_zero_1", n, || good(sys(SYS_read, &[zero, buf, 1])) as u64);
    b.measure("write_null_1", n, || good(sys(SYS_write, &[null, buf, 1])) as u64);

    let path = c"/tmp/limen-bench-file".as_ptr() as usize;
    let file = open(path, O_RDWR | O_CREAT | O_TRUNC);
    good(sys(SYS_write, &[file, b"x".as_ptr() as usize, 1]));
    b.measure("read_file_1", n, || good(sys(SYS_pread64, &[file, buf, 1, 0])) as u64);
    b.measure("write_file_1", n, || good(sys(SYS_pwrite64, &[file, buf, 1, 0])) as u64);

    // SAFETY: a structure of integers.
    let mut st: stat = unsafe { std::mem::zeroed() };
    let st_ptr = &raw mut st as usize;
    b.measure("stat", n, || good(sys(SYS_stat, &[path, st_ptr])) as u64);
    b.measure("open_close", n, || {
        let fd = good(sys(SYS_open, &[path, O_RDONLY as usize, 0]));
        good(sys(SYS_close, &[fd])) as u64
    });
    b.mix(st.st_size as u64);
    good(sys(SYS_unlink, &[path]));
    for fd in [zero, null, file] {
        good(sys(SYS_close, &[fd]));
    }
}

fn open(path: usize, flags: i32) -> usize {
    good(sys(SYS_open, &[path, flags as usize, 0o600]))
}

fn pipe_pair() -> (usize, usize) {
    let mut p = [0i32; 2];
    good(sys(SYS_pipe2, &[p.as_mut_ptr() as usize, 0]));
    (p[0] as usize, p[1] as usize)
}

fn channels(b: &mut Bench) {
    let n = b.light();
    let mut buf = [0u8; 512];
    let p = buf.as_mut_ptr() as usize;
    let (r, w) = pipe_pair();
    for (name, len) in [("pipe_write_read_1", 1), ("pipe_write_read_512", 512)] {
        b.measure(name, n, || {
            let wrote = good(sys(SYS_write, &[w, p, len]));
            (wrote + good(sys(SYS_read, &[r, p, len]))) as u64
        });
    }
    good(sys(SYS_close, &[r]));
    good(sys(SYS_close, &[w]));

    let ev = good(sys(SYS_eventfd2, &[0, 0]));
    let mut count = 3u64;
    let cp = &raw mut count as usize;
    b.measure("eventfd_write_read", n, || {
        good(sys(SYS_write, &[ev, cp, 8]));
        good(sys(SYS_read, &[ev, cp, 8])) as u64
    });
    b.mix(count);
    good(sys(SYS_close, &[ev]));

    b.measure("eventfd_close", n, || {
        let ev = good(sys(SYS_eventfd2, &[0, 0]));
        good(sys(SYS_close, &[ev])) as u64
    });
    let mut ends = [0i32; 2];
    let pair = [AF_UNIX as usize, SOCK_STREAM as usize, 0, ends.as_mut_ptr() as usize];
    b.measure("socketpair_close", n, || {
        good(sys(SYS_socketpair, &pair));
        // The kernel has written both since.
        let [one, other] = std::hint::black_box(&ends).map(|end| end as usize);
        (good(sys(SYS_close, &[one])) + good(sys(SYS_close, &[other]))) as u64
    });
}

fn map(len: usize) -> *mut u8 {
    let prot = (PROT_READ | PROT_WRITE) as usize;
    let flags = (MAP_PRIVATE | MAP_ANONYMOUS) as usize;
    good(sys(SYS_mmap, &[0, len, prot, flags, usize::MAX, 0])) as *mut u8
}

fn unmap(p: *mut u8, len: usize) {
    good(sys(SYS_munmap, &[p as usize, len]));
}

fn memory(b: &mut Bench) {
    let n = b.light();
    // A neighbour keeps the page tables of this range alive, as in any program of some size.
    b.measure("mmap_touch_munmap", n, || {
        let p = map(PAGE);
        // SAFETY: a fresh mapping of one page.
        let seen = unsafe {
            p.write_volatile(1);
            p.read_volatile()
        };
        unmap(p, PAGE);
        u64::from(seen)
    });

    // The cost of one fault is taken over the middle of many pages, with huge pages refused.
    let mut at = FAULT_PAGES;
    let mut area = std::ptr::null_mut::<u8>();
    b.measured("page_fault", n, || {
        if at == FAULT_PAGES {
            if !area.is_null() {
                unmap(area, FAULT_PAGES * PAGE);
            }
            area = map(FAULT_PAGES * PAGE);
            let _ =
                sys(SYS_madvise, &[area as usize, FAULT_PAGES * PAGE, MADV_NOHUGEPAGE as usize]);
            at = 0;
        }
        // SAFETY: inside the mapping, since at < FAULT_PAGES.
        let page = unsafe { area.add(at * PAGE) };
        at += 1;
        let start = rdtsc();
        // SAFETY: as for the block above, whose objects live on.
        unsafe { page.write_volatile(1) };
        rdtsc() - start
    });
    unmap(area, FAULT_PAGES * PAGE);
}

fn fork_raw() -> usize {
    good(sys(SYS_clone, &[SIGCHLD as usize, 0, 0, 0, 0]))
}

fn wait_exit(pid: usize) -> u64 {
    let mut status = 0i32;
    let got = good(sys(SYS_wait4, &[pid, &raw mut status as usize, 0, 0]));
    assert_eq!(got, pid, "wait4");
    status as u64
}

fn forks(b: &mut Bench) {
    let n = b.heavy();
    let area = map(FORK_PAGES * PAGE);
    let _ = sys(SYS_madvise, &[area as usize, FORK_PAGES * PAGE, MADV_NOHUGEPAGE as usize]);
    for i in 0..FORK_PAGES {
        // SAFETY: the address lies inside the mapping made above.
        unsafe { area.add(i * PAGE).write_volatile(1) };
    }
    b.measure("fork_exit_wait_500_pages", n, || {
        let pid = fork_raw();
        if pid == 0 {
            sys(SYS_exit_group, &[7]);
        }
        wait_exit(pid)
    });
    unmap(area, FORK_PAGES * PAGE);
}

fn processes(b: &mut Bench) {
    forks(b);
    let n = b.heavy();
    // The path this program was started by (getauxval(3)): there may be no /proc.
    // SAFETY: no arguments but a number.
    let own = unsafe { getauxval(AT_EXECFN) } as usize;
    let argv = [c"limen-guest-bench".as_ptr() as usize, c"noop".as_ptr() as usize, 0];
    let envp = [0usize];
    b.measure("fork_exec_wait", n, || {
        let pid = fork_raw();
        if pid == 0 {
            sys(SYS_execve, &[own, argv.as_ptr() as usize, envp.as_ptr() as usize]);
            sys(SYS_exit_group, &[99]);
        }
        wait_exit(pid)
    });
}

fn switches(b: &mut Bench) {
    let n = b.light();
    let (ping_r, ping_w) = pipe_pair();
    let (pong_r, pong_w) = pipe_pair();
    let mut byte = 1u8;
    let p = &raw mut byte as usize;
    let pid = fork_raw();
    if pid == 0 {
        sys(SYS_close, &[ping_w]);
        while sys(SYS_read, &[ping_r, p, 1]) == 1 {
            sys(SYS_write, &[pong_w, p, 1]);
        }
        sys(SYS_exit_group, &[5]);
    }
    b.measure("pipe_round_trip_2_processes", n, || {
        good(sys(SYS_write, &[ping_w, p, 1]));
        good(sys(SYS_read, &[pong_r, p, 1])) as u64
    });
    good(sys(SYS_close, &[ping_w]));
    let status = wait_exit(pid);
    b.mix(status);
    for fd in [ping_r, pong_r, pong_w] {
        good(sys(SYS_close, &[fd]));
    }
    b.measure("sched_yield", n, || good(sys(SYS_sched_yield, &[])) as u64);
    let word = 0u32;
    let op = (FUTEX_WAKE | FUTEX_PRIVATE_FLAG) as usize;
    b.measure("futex_wake_none", n, || {
        good(sys(SYS_futex, &[&raw const word as usize, op, 1])) as u64
    });
    // Who goes on after the wake is the scheduler's choice, and the cost is not the same: so both
    // orders are forced, and have rows of their own.
    futex_wake_sleeper(b, "futex_wake_sleeper", SCHED_IDLE);
    futex_wake_sleeper(b, "futex_wake_sleeper_runs", SCHED_FIFO);
}

/// A wake that finds a sleeper, in another process, over a shared word. Under SCHED_IDLE the
/// sleeper waits until the waker sleeps; under SCHED_FIFO it runs at once, sleeps again, and the
/// wake returns after that.
fn futex_wake_sleeper(b: &mut Bench, name: &'static str, policy: i32) {
    let n = b.light();
    let prot = (PROT_READ | PROT_WRITE) as usize;
    let flags = (MAP_SHARED | MAP_ANONYMOUS) as usize;
    let words = good(sys(SYS_mmap, &[0, PAGE, prot, flags, usize::MAX, 0]));
    let pid = fork_raw();
    if pid == 0 {
        let priority = i32::from(policy == SCHED_FIFO);
        good(sys(SYS_sched_setscheduler, &[0, policy as usize, &raw const priority as usize]));
        // The sleeper: each sleep is ended by exactly one wake; word 0 becoming 1 ends it all.
        while sys(SYS_futex, &[words, FUTEX_WAIT as usize, 0, 0]) == 0 {}
        sys(SYS_exit_group, &[6]);
    }
    b.measured(name, n, || {
        loop {
            let start = rdtsc();
            let woken = good(sys(SYS_futex, &[words, FUTEX_WAKE as usize, 1]));
            let ticks = rdtsc() - start;
            if woken == 1 {
                return ticks;
            }
            // Not asleep yet: let it run.
            nap();
        }
    });
    // SAFETY: the shared word, alive until the end of this function.
    unsafe { (words as *mut u32).write_volatile(1) };
    while sys(SYS_wait4, &[pid, 0, WNOHANG as usize, 0]) == 0 {
        sys(SYS_futex, &[words, FUTEX_WAKE as usize, 1]);
        nap();
    }
    unmap(words as *mut u8, PAGE);
}

/// Leaves the CPU to others for 100 us (nanosleep(2)).
fn nap() {
    let time = [0u64, 100_000];
    sys(SYS_nanosleep, &[time.as_ptr() as usize, 0]);
}

fn signals(b: &mut Bench) {
    let n = b.light();
    count_signal(SIGUSR1);
    let pid = good(sys(SYS_getpid, &[]));
    let tid = good(sys(SYS_gettid, &[]));
    let before = signals_seen();
    b.measure("signal_delivery_return", n, || {
        good(sys(SYS_tgkill, &[pid, tid, SIGUSR1 as usize])) as u64
    });
    let seen = signals_seen() - before;
    b.mix(seen);
}
