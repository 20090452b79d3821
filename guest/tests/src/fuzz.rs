//! A system call fuzzer: every call, random and boundary arguments, from a printed seed.
//!
//! Each job forks child after child; a child makes a few hundred calls from its own seed, two
//! threads of it at once, and ends in whatever way. The kernel must live, each child must end or be
//! killable, and memory must come back: what is free at the end is compared with what was free
//! after the first children. A child that SIGKILL does not end is a failure. Natively the children
//! give up their rights and live in an empty folder, and calls that would stop the machine or
//! change it for others are left out; `--in-vm` allows them all. What is passed is in
//! `fuzz_args.rs`.

use crate::fuzz_args::{Rng, World};
use crate::sc;
use crate::sys::*;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

/// Calls left out natively: they end, stop or change the machine that others use, too.
const HOST: &[i64] = &[
    SYS_reboot,
    SYS_kexec_load,
    SYS_kexec_file_load,
    SYS_init_module,
    SYS_finit_module,
    SYS_delete_module,
    SYS_mount,
    SYS_umount2,
    SYS_pivot_root,
    SYS_chroot,
    SYS_swapon,
    SYS_swapoff,
    SYS_settimeofday,
    SYS_clock_settime,
    SYS_adjtimex,
    SYS_clock_adjtime,
    SYS_sethostname,
    SYS_setdomainname,
    SYS_iopl,
    SYS_ioperm,
    SYS_ptrace,
    SYS_kill,
    SYS_tkill,
    SYS_tgkill,
    SYS_rt_sigqueueinfo,
    SYS_rt_tgsigqueueinfo,
    SYS_pidfd_send_signal,
    SYS_syslog,
    SYS_acct,
    SYS_quotactl,
    SYS_vhangup,
    SYS_sync,
    SYS_syncfs,
    SYS_bpf,
    SYS_perf_event_open,
    SYS_keyctl,
    SYS_add_key,
    SYS_request_key,
    SYS_process_vm_writev,
    SYS_sched_setscheduler,
    SYS_sched_setattr,
    SYS_sched_setparam,
    SYS_setpriority,
    SYS_move_mount,
    SYS_fsopen,
    SYS_fsmount,
    SYS_open_tree,
    SYS_mount_setattr,
    SYS_userfaultfd,
    SYS_io_uring_setup,
    SYS_process_madvise,
    SYS_migrate_pages,
    SYS_move_pages,
    SYS_mlockall,
    SYS_setns,
    SYS_unshare,
    SYS_prlimit64,
    SYS_shmget,
    SYS_semget,
    SYS_msgget,
    SYS_shmctl,
    SYS_semctl,
    SYS_msgctl,
    SYS_mq_open,
];

/// Linux's largest limit of objects of one kind, SEMMNI and MSGMNI (semget(2), msgget(2)).
const IPC_OBJECTS_MAX: i32 = 32_000;
const SHM_STAT: i32 = 13;
const SEM_STAT: i32 = 18;
const MSG_STAT: i32 = 11;

/// Calls that would only end, stop, clone or replace the child itself.
const SELF: &[i64] = &[
    SYS_exit,
    SYS_exit_group,
    SYS_fork,
    SYS_vfork,
    SYS_clone,
    SYS_clone3,
    SYS_rt_sigreturn,
    SYS_pause,
    SYS_rt_sigsuspend,
    SYS_execve,
    SYS_execveat,
    SYS_select,
    SYS_poll,
    SYS_seccomp,
    SYS_restart_syscall,
    SYS_alarm,
    SYS_setitimer,
    URETPROBE,
    UPROBE,
];

/// Numbers of probes (x86-64): a call from anywhere but a probe is SIGSEGV or SIGILL.
const URETPROBE: i64 = 335;
const UPROBE: i64 = 336;

/// Calls whose first argument is a process: only the child itself or nobody may be meant.
const BY_PID: &[i64] = &[
    SYS_kill,
    SYS_tkill,
    SYS_tgkill,
    SYS_rt_sigqueueinfo,
    SYS_rt_tgsigqueueinfo,
    SYS_prlimit64,
    SYS_sched_setscheduler,
    SYS_sched_setparam,
    SYS_sched_setattr,
    SYS_sched_setaffinity,
    SYS_process_vm_readv,
    SYS_process_vm_writev,
    SYS_setpgid,
    SYS_pidfd_open,
];

/// Calls of one child.
pub const CALLS: u32 = 300;
/// Numbers that are tried: all that Linux has, and a few behind them.
const END: u64 = abi::syscalls::END as u64 + 4;

/// True for calls that a sweep in a child must not make natively.
pub fn unsafe_to_sweep(nr: usize) -> bool {
    let nr = nr as i64;
    HOST.contains(&nr) || SELF.contains(&nr)
}

/// A place to live: on the host no rights, no folder of others, no space to fill.
fn settle(in_vm: bool) -> World {
    begin_test();
    let d = dir();
    let _ = sc!(SYS_chmod, c(&d).as_ptr(), 0o777);
    let limit = |what: u32, n: usize| sc!(SYS_setrlimit, what, [n, n].as_ptr());
    if !in_vm {
        let _ = sc!(SYS_chroot, c(&d).as_ptr());
        let _ = limit(RLIMIT_AS, 1 << 30);
        let _ = limit(RLIMIT_NPROC, 200);
        let _ = sc!(SYS_setgroups, 0, 0);
        let _ = sc!(SYS_setresgid, 64321, 64321, 64321);
        sc!(SYS_setresuid, 64321, 64321, 64321).is(0);
        let _ = sc!(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    }
    let _ = limit(RLIMIT_CORE, 0);
    // Enough to show what goes wrong, little enough that children do not starve each other.
    let _ = limit(RLIMIT_FSIZE, 4 << 20);
    let _ = sc!(SYS_chdir, if in_vm { c(&d) } else { c("/") }.as_ptr());
    World::new()
}

extern "C" fn cut_short(_: i32) {}

/// A call that sleeps is cut short by a timer; calls may have changed that.
fn set_alarm() {
    on_signal(SIGALRM, cut_short as *const () as usize, 0, 0);
    sigmask(SIG_UNBLOCK, bit(SIGALRM));
    let it = [0usize, 10_000, 0, 10_000];
    let _ = sc!(SYS_setitimer, ITIMER_REAL, it.as_ptr(), 0);
}

/// rt_sigreturn(2) with the stack pointer somewhere in the page.
fn return_from_nothing(w: &World, r: &mut Rng) {
    let at = w.page + (r.below(480) * 8) as usize;
    // SAFETY: nothing is on the new stack but what the kernel is to take for a signal frame. If it
    // does, the process goes on anywhere, and ends.
    unsafe {
        std::arch::asm!(
            "xchg rsp, {at}", "syscall", "xchg rsp, {at}",
            at = inout(reg) at => _, inout("rax") SYS_rt_sigreturn => _,
            out("rcx") _, out("r11") _,
        );
    }
}

/// How often each call was made: shared between who makes them and who asks.
struct Tally(&'static [AtomicU32; 1024]);

impl Tally {
    /// The most that one child can have made of one call; its descendants count, too.
    const MOST: u32 = CALLS * 2 * 32;

    /// Adds what a child has made, and gives its memory back. The child's calls may have written
    /// anything there: what cannot be is left out.
    fn take(&self, child: Tally) {
        for (all, made) in self.0.iter().zip(child.0) {
            let made = made.load(SeqCst);
            if made <= Self::MOST {
                all.fetch_add(made, SeqCst);
            }
        }
        unmap(child.0.as_ptr() as *mut u8, 4096);
    }
}

/// Keeps memory from the children that are made from now on, who would write anything there.
fn hide(words: &[AtomicU32; 1024]) {
    sc!(SYS_madvise, words.as_ptr(), 4096, MADV_DONTFORK).is(0);
}

/// A fuzzing thread's part in a child.
struct Life<'a> {
    in_vm: bool,
    /// Descendants do not fork again.
    is_child: bool,
    world: &'a World,
    tally: &'a Tally,
}

impl Life<'_> {
    fn spend(&self, r: &mut Rng) {
        for n in 0..CALLS {
            if n % 16 == 0 {
                set_alarm();
                self.world.refill(r);
            }
            let nr = match r.below(100) {
                0 => r.next(),
                _ => r.below(END),
            };
            self.one(nr as usize, r);
        }
    }

    #[expect(non_upper_case_globals, reason = "the library's names of calls, as patterns")]
    fn one(&self, nr: usize, r: &mut Rng) {
        let known = i64::from(nr as u32);
        let mut a = self.world.arguments(nr, r);
        if !self.in_vm && unsafe_to_sweep(nr) {
            return;
        }
        if nr < self.tally.0.len() {
            self.tally.0[nr].fetch_add(1, SeqCst);
        }
        let own = pid();
        if BY_PID.contains(&known) {
            a[0] = r.of(&[0, 0, own as usize, 1 << 22, i32::MIN as usize, tid() as usize]);
        }
        match known {
            // Ends are rare, or there would be little else.
            SYS_exit | SYS_exit_group if r.below(8) != 0 => return,
            SYS_rt_sigreturn => return return_from_nothing(self.world, r),
            SYS_fork | SYS_vfork | SYS_clone | SYS_clone3 => return self.forking(nr, &a, r),
            SYS_reboot => a[0] = 0,
            SYS_ptrace => a[1] = r.of(&[own as usize, 0, 1 << 22]),
            // F_SETOWN leads signals to others.
            SYS_fcntl if a[1] as i32 == F_SETOWN || a[1] == 15 => a[2] = own as usize,
            _ => {}
        }
        let _ = call(nr, &a);
        if [SYS_alarm, SYS_setitimer, SYS_rt_sigaction, SYS_rt_sigprocmask].contains(&known) {
            set_alarm();
        }
    }

    /// A descendant makes a few calls of its own. One that shares memory runs on its parent's stack
    /// and both come to grief, which is fine.
    fn forking(&self, nr: usize, a: &[usize], r: &mut Rng) {
        if self.is_child {
            return;
        }
        let me = tid();
        let _ = call(nr, a);
        if tid() != me {
            let life = Life { is_child: true, ..*self };
            let mut r = Rng::new(r.next() ^ 0x5555);
            for _ in 0..20 {
                life.one(r.below(END) as usize, &mut r);
            }
            quit(0);
        }
    }
}

/// The child: two threads, each from its own seed.
fn live(seed: u64, in_vm: bool, tally: &Tally) -> i32 {
    let _ = sc!(SYS_setsid);
    for fd in 0..3 {
        let null = open("/dev/null", O_RDWR).unwrap_or(0);
        let _ = sc!(SYS_dup2, null, fd);
        if null > 2 {
            let _ = sc!(SYS_close, null);
        }
    }
    let world = settle(in_vm);
    let life = Life { in_vm, is_child: false, world: &world, tally };
    std::thread::scope(|s| {
        if seed.is_multiple_of(2) {
            s.spawn(|| life.spend(&mut Rng::new(seed ^ 1 << 63)));
        }
        life.spend(&mut Rng::new(seed));
    });
    0
}

/// Waits for a child, kills it when it takes long. A killed child may have made this process the
/// tracer of one of its threads: then it is held back until that thread has been waited for, too
/// (ptrace(2)), so whatever has ended is taken then.
fn collect(pid: i32) -> Result<(), String> {
    let mut tries = 0;
    loop {
        let which = if tries < 2_000 { pid } else { -1 };
        match sc!(SYS_wait4, which, 0, WNOHANG | __WALL, 0) {
            Ok(0) => {}
            Ok(ended) if ended as i32 != pid => continue,
            _ => return Ok(()),
        }
        tries += 1;
        if tries == 2_000 {
            let _ = sc!(SYS_kill, pid, SIGKILL);
        }
        if tries == 60_000 {
            return Err(format!("process {pid} does not end"));
        }
        nap(1);
    }
}

/// One job: children until there were enough or the time is over; how many, or an error.
fn job(seed: u64, plan: &Plan, tally: &Tally) -> Result<u32, String> {
    let start = std::time::Instant::now();
    let mut n = 0;
    while n < plan.children && start.elapsed().as_secs() < plan.seconds {
        let child_seed = seed.wrapping_add(u64::from(n));
        let own = Tally(new_shared());
        let pid = fork(|| live(child_seed, plan.in_vm, &own));
        collect(pid).map_err(|why| format!("seed {child_seed}: {why}"))?;
        tally.take(own);
        // What it left behind: descendants, mounts, files.
        let _ = sc!(SYS_kill, -pid, SIGKILL);
        while let Ok(1..) = sc!(SYS_wait4, -1i32, 0, WNOHANG | __WALL, 0) {}
        let folder = format!("/tmp/limen-{pid}-{pid}-0");
        if plan.in_vm {
            while sc!(SYS_umount2, c(&folder).as_ptr(), MNT_DETACH).is_ok() {}
        }
        let _ = std::fs::remove_dir_all(folder);
        n += 1;
    }
    Ok(n)
}

/// What to do, from the command line.
struct Plan {
    seconds: u64,
    children: u32,
    jobs: u64,
    in_vm: bool,
}

/// Free memory of the machine, KiB. The file is opened once, before the first child: in a VM one
/// may mount anything over its name, such as a terminal that nobody writes to.
fn free_kib(meminfo: i32) -> u64 {
    let mut text = [0u8; 4096];
    let length = sc!(SYS_pread64, meminfo, text.as_mut_ptr(), text.len(), 0).expect("it is open");
    let text = String::from_utf8_lossy(&text[..length]);
    let line = text.lines().find_map(|l| l.strip_prefix("MemAvailable:"));
    line.and_then(|l| l.trim().trim_end_matches(" kB").parse().ok()).expect("a number of KiB")
}

/// Removes all System V IPC objects, which outlive the children that made them.
fn remove_ipc() {
    let at = new_shared().as_ptr();
    for index in 0..IPC_OBJECTS_MAX {
        // *_STAT takes a place in the table and returns the object's id (shmctl(2)).
        if let Ok(id) = sc!(SYS_shmctl, index, SHM_STAT, at) {
            let _ = sc!(SYS_shmctl, id, IPC_RMID, 0);
        }
        if let Ok(id) = sc!(SYS_semctl, index, 0, SEM_STAT, at) {
            let _ = sc!(SYS_semctl, id, 0, IPC_RMID, 0);
        }
        if let Ok(id) = sc!(SYS_msgctl, index, MSG_STAT, at) {
            let _ = sc!(SYS_msgctl, id, IPC_RMID, 0);
        }
    }
    unmap(at as *mut u8, 4096);
}

/// All jobs at once; how many children there were, and how many jobs failed.
fn round(seed: u64, plan: &Plan, tally: &Tally) -> (u32, usize) {
    let counts = new_shared();
    let jobs: Vec<i32> = (0..plan.jobs)
        .map(|j| {
            fork(|| {
                let _ = sc!(SYS_prctl, PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
                hide(counts);
                hide(tally.0);
                match job(seed + (j << 40), plan, tally) {
                    Ok(n) => {
                        counts[j as usize].store(n, SeqCst);
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
    let is_bad = |&pid: &i32| {
        let status = wait(pid);
        if status != 0 {
            println!("fuzz: job {pid}: {}", describe(status));
        }
        status != 0
    };
    let bad = jobs.iter().filter(|&pid| is_bad(pid)).count();
    while let Ok(1..) = sc!(SYS_wait4, -1i32, 0, WNOHANG | __WALL, 0) {}
    if plan.in_vm {
        remove_ipc();
    }
    let done = counts.iter().map(|c| c.load(SeqCst)).sum();
    unmap(counts.as_ptr() as *mut u8, 4096);
    (done, bad)
}

/// Memory that may be in use after a round that was not before it, KiB: caches, and entries of
/// tables that grow.
const LEAK_KIB: u64 = 16 << 10;

/// The command; true if nothing went wrong.
pub fn main(args: &[String]) -> bool {
    let plan = Plan {
        seconds: crate::option(args, "--seconds", 10),
        children: crate::option(args, "--children", u64::from(u32::MAX)) as u32,
        jobs: crate::option(args, "--jobs", 2).min(64),
        in_vm: args.iter().any(|a| a == "--in-vm"),
    };
    let mut seed = crate::option(args, "--seed", 0);
    if seed == 0 {
        let _ = sc!(SYS_getrandom, &raw mut seed, 4, 0);
    }
    println!("fuzz: seed {seed}, at most {} s, {} jobs", plan.seconds, plan.jobs);
    let _ = sc!(SYS_prctl, PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    // A child may hang up a terminal or signal its group: the fuzzer itself must stay.
    for sig in [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGPIPE, SIGALRM] {
        on_signal(sig, SIG_IGN, 0, 0);
    }
    let tally = Tally(new_shared());
    // Out of the way of the children's descriptors, whose numbers are known.
    let low = open("/proc/meminfo", O_RDONLY).expect("/proc is there");
    let meminfo = sc!(SYS_fcntl, low, F_DUPFD_CLOEXEC, 500).fd();
    sc!(SYS_close, low).is(0);
    // What grows only once (caches, tables) grows in the first round.
    let warm = Plan { children: plan.children.min(10), ..plan };
    let (first, mut bad) = round(seed, &warm, &tally);
    let before = free_kib(meminfo);
    let (second, bad_too) = round(seed.wrapping_add(1 << 20), &plan, &tally);
    bad += bad_too;
    let after = free_kib(meminfo);
    let total = first + second;
    let made: u64 = tally.0.iter().map(|c| u64::from(c.load(SeqCst))).sum();
    println!("fuzz: {total} children, {made} calls, {bad} jobs failed");
    println!("fuzz: {before} KiB available before the main round, {after} KiB after it");
    let missed: Vec<&str> = (0..abi::syscalls::END as u32)
        .filter(|&nr| tally.0[nr as usize].load(SeqCst) == 0)
        .filter_map(abi::syscalls::name)
        .collect();
    let is_covered = made > 0 && (!plan.in_vm || missed.is_empty() || made < 50 * END);
    if !missed.is_empty() {
        println!("fuzz: never made: {}", missed.join(" "));
    }
    let leaks = plan.in_vm && after + LEAK_KIB < before;
    if leaks {
        println!("fuzz: {} KiB did not come back", before - after);
    }
    println!("fuzz: {}", if bad == 0 && is_covered && !leaks { "ok" } else { "FAILED" });
    bad == 0 && is_covered && !leaks
}
