//! A system call fuzzer: every number, random and boundary arguments, from a printed seed.
//!
//! Each job forks child after child; a child makes a thousand calls from its own seed and ends,
//! in whatever way. The kernel must live, and each child must end or be killable: a child that
//! SIGKILL does not end is a failure. Natively the children give up their rights and live in an
//! empty folder, and calls that would stop the machine or change it for others are left out;
//! `--in-vm` allows them all.

use crate::sys::*;
use crate::sc;

/// Calls left out natively: they end, stop or change the machine that others use, too.
const HOST: &[i64] = &[
    SYS_reboot, SYS_kexec_load, SYS_kexec_file_load, SYS_init_module, SYS_finit_module,
    SYS_delete_module, SYS_mount, SYS_umount2, SYS_pivot_root, SYS_chroot, SYS_swapon, SYS_swapoff,
    SYS_settimeofday, SYS_clock_settime, SYS_adjtimex, SYS_clock_adjtime, SYS_sethostname,
    SYS_setdomainname, SYS_iopl, SYS_ioperm, SYS_ptrace, SYS_kill, SYS_tkill, SYS_tgkill,
    SYS_rt_sigqueueinfo, SYS_rt_tgsigqueueinfo, SYS_pidfd_send_signal, SYS_syslog, SYS_acct,
    SYS_quotactl, SYS_vhangup, SYS_sync, SYS_syncfs, SYS_bpf, SYS_perf_event_open, SYS_keyctl,
    SYS_add_key, SYS_request_key, SYS_process_vm_writev, SYS_sched_setscheduler, SYS_sched_setattr,
    SYS_sched_setparam, SYS_setpriority, SYS_move_mount, SYS_fsopen, SYS_fsmount, SYS_open_tree,
    SYS_mount_setattr, SYS_userfaultfd, SYS_io_uring_setup, SYS_process_madvise, SYS_migrate_pages,
    SYS_move_pages, SYS_mlockall, SYS_setns, SYS_unshare, SYS_prlimit64,
    SYS_shmget, SYS_semget, SYS_msgget, SYS_shmctl, SYS_semctl, SYS_msgctl, SYS_mq_open,
];

/// Calls that would only end, stop, clone or replace the child itself.
const SELF: &[i64] = &[
    SYS_exit, SYS_exit_group, SYS_fork, SYS_vfork, SYS_clone, SYS_clone3, SYS_rt_sigreturn,
    SYS_pause, SYS_rt_sigsuspend, SYS_execve, SYS_execveat, SYS_select, SYS_poll, SYS_seccomp,
    SYS_restart_syscall, SYS_uretprobe_or_none, SYS_alarm, SYS_setitimer,
];

#[expect(non_upper_case_globals, reason = "named as its neighbours")]
const SYS_uretprobe_or_none: i64 = 335;

/// True for calls that a sweep in a child must not make natively.
pub fn unsafe_to_sweep(nr: usize) -> bool {
    let nr = nr as i64;
    HOST.contains(&nr) || SELF.contains(&nr) || nr == 336
}

/// xorshift64*: small, and the same everywhere.
pub struct Rng(u64);

impl Rng {
    /// A generator; seed 0 is replaced.
    pub fn new(seed: u64) -> Self {
        Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// The next value.
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

const EDGES: [u64; 20] = [
    0, 1, 2, 7, 8, 15, 4095, 4096, 4097, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff, 1 << 32,
    0x7fff_ffff_f000, 1 << 47, 0xffff_8000_0000_0000, 0xffff_ffff_8100_0000, 1 << 63,
    u64::MAX - 4095, u64::MAX,
];

struct World {
    page: usize,
    paths: Vec<std::ffi::CString>,
}

fn argument(r: &mut Rng, w: &World) -> usize {
    (match r.below(12) {
        0..=2 => r.below(20),
        3 => EDGES[r.below(20) as usize],
        4 | 5 => w.page as u64 + r.below(4096),
        6 => w.page as u64 + 4096 - r.below(16),
        7 => w.paths[r.below(w.paths.len() as u64) as usize].as_ptr() as u64,
        8 => 1 << r.below(64),
        9 => r.next() & 0xffff,
        10 => (r.below(40) as i64 - 20) as u64,
        _ => r.next(),
    }) as usize
}

/// A place to live: on the host no rights, no folder of others, no space to fill.
fn settle(in_vm: bool) -> World {
    let d = dir();
    let _ = sc!(SYS_chmod, c(&d).as_ptr(), 0o777);
    if !in_vm {
        let _ = sc!(SYS_chroot, c(&d).as_ptr());
        let lim = |what: u32, n: usize| sc!(SYS_setrlimit, what, [n, n].as_ptr());
        let _ = lim(RLIMIT_AS, 1 << 30);
        let _ = lim(RLIMIT_FSIZE, 1 << 20);
        let _ = lim(RLIMIT_NPROC, 200);
        let _ = lim(RLIMIT_CORE, 0);
        let _ = sc!(SYS_setgroups, 0, 0);
        let _ = sc!(SYS_setresgid, 64321, 64321, 64321);
        sc!(SYS_setresuid, 64321, 64321, 64321).is(0);
        let _ = sc!(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    }
    let _ = sc!(SYS_chdir, if in_vm { c(&d) } else { c("/") }.as_ptr());
    for i in 0..6 {
        let _ = open(&format!("f{i}"), O_CREAT | O_RDWR);
    }
    let _ = sc!(SYS_socketpair, AF_UNIX, SOCK_STREAM, 0, [0i32; 2].as_mut_ptr());
    let _ = sc!(SYS_pipe2, [0i32; 2].as_mut_ptr(), O_NONBLOCK);
    let _ = sc!(SYS_eventfd2, 0, EFD_NONBLOCK);
    let _ = sc!(SYS_epoll_create1, 0);
    let paths = ["f0", "f1", "sub", ".", "..", "/proc/self/maps", "/dev/null", "sub/x", ""];
    let page = anon(8192);
    unmap(page.wrapping_add(4096), 4096);
    World { page: page as usize, paths: paths.iter().map(|p| c(p)).collect() }
}

extern "C" fn cut_short(_: i32) {}

/// The child's life: a thousand calls.
fn live(seed: u64, in_vm: bool) -> i32 {
    for fd in 0..3 {
        let null = open("/dev/null", O_RDWR).unwrap_or(0);
        let _ = sc!(SYS_dup2, null, fd);
    }
    let _ = sc!(SYS_setpgid, 0, 0);
    let mut r = Rng::new(seed);
    let w = settle(in_vm);
    // A call that sleeps is cut short by a timer.
    on_signal(SIGALRM, cut_short as *const () as usize, 0, 0);
    let it = [0usize, 50_000, 0, 50_000];
    let _ = sc!(SYS_setitimer, ITIMER_REAL, it.as_ptr(), 0);
    for _ in 0..1000 {
        let nr = match r.below(50) {
            0 => r.next() as usize,
            1 => r.below(1024) as usize,
            _ => r.below(462) as usize,
        };
        let known = nr as u32 as i64;
        let ends = [SYS_exit, SYS_exit_group, SYS_rt_sigreturn, SYS_alarm, SYS_setitimer].contains(&known);
        let forks = [SYS_fork, SYS_vfork, SYS_clone, SYS_clone3].contains(&known);
        if ends || (!in_vm && (forks || HOST.contains(&known) || known == 335 || known == 336)) {
            continue;
        }
        // In the VM a child may signal itself or its own, not the fuzzer: that proves nothing.
        let a: Vec<usize> = (0..6).map(|_| argument(&mut r, &w)).collect();
        let by_pid = [
            SYS_kill, SYS_tkill, SYS_tgkill, SYS_rt_sigqueueinfo, SYS_rt_tgsigqueueinfo,
            SYS_pidfd_send_signal, SYS_prlimit64, SYS_ptrace, SYS_fcntl,
        ];
        if by_pid.contains(&known) && (a[0] as i32) < 2000 {
            continue;
        }
        if in_vm && known == SYS_reboot {
            let _ = sc!(nr, 0, a[1], a[2], a[3]);
            continue;
        }
        let _ = call(nr, &a);
    }
    0
}

/// One job: children until the time is over; how many, or an error.
fn job(seed: u64, until_s: u64, in_vm: bool) -> Result<u64, String> {
    let start = std::time::Instant::now();
    let mut n = 0;
    while start.elapsed().as_secs() < until_s {
        let child_seed = seed.wrapping_add(n);
        let pid = fork(|| live(child_seed, in_vm));
        let mut tries = 0;
        while let Ok(0) = sc!(SYS_wait4, pid, 0, WNOHANG, 0) {
            tries += 1;
            if tries == 3_000 {
                let _ = sc!(SYS_kill, pid, SIGKILL);
            }
            if tries == 60_000 {
                return Err(format!("seed {child_seed}: process {pid} does not end"));
            }
            nap(1);
        }
        let _ = sc!(SYS_kill, -pid, SIGKILL);
        while let Ok(1..) = sc!(SYS_wait4, -1i32, 0, WNOHANG | __WALL, 0) {}
        let path = c(&format!("/tmp/limen-{pid}-0"));
        let _ = std::fs::remove_dir_all(path.to_str().unwrap_or("/nonexistent"));
        n += 1;
    }
    Ok(n)
}

/// The command; true if nothing went wrong.
pub fn main(args: &[String]) -> bool {
    let seconds = crate::option(args, "--seconds", 10);
    let jobs = crate::option(args, "--jobs", 2);
    let in_vm = args.iter().any(|a| a == "--in-vm");
    let mut seed = crate::option(args, "--seed", 0);
    if seed == 0 {
        let _ = sc!(SYS_getrandom, &raw mut seed, 4, 0);
    }
    println!("fuzz: seed {seed}, {seconds} s, {jobs} jobs");
    let _ = sc!(SYS_prctl, PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    // A child may hang up a terminal or signal its group: the fuzzer itself must stay.
    for sig in [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGPIPE, SIGALRM] {
        on_signal(sig, SIG_IGN, 0, 0);
    }
    let counts = shared();
    let kids: Vec<i32> = (0..jobs as usize)
        .map(|j| {
            fork(|| {
                let _ = sc!(SYS_prctl, PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
                match job(seed + ((j as u64) << 40), seconds, in_vm) {
                    Ok(n) => {
                        counts[j].store(n as u32, std::sync::atomic::Ordering::SeqCst);
                        0
                    }
                    Err(why) => {
                        eprintln!("fuzz: {why}");
                        1
                    }
                }
            })
        })
        .collect();
    let bad = kids.into_iter().filter(|&p| wait(p) != 0).count();
    let total: u32 = counts.iter().map(|c| c.load(std::sync::atomic::Ordering::SeqCst)).sum();
    println!("fuzz: {total} children, {} calls, {bad} jobs failed", u64::from(total) * 1000);
    bad == 0
}
