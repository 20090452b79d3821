//! One process stops another, looks at it and changes it: ptrace(2).
//!
//! Every test is a small tracer. Stops are taken by wait4(2) and named by their status; nothing
//! depends on time. Manual pages: ptrace(2), wait(2), proc(5).

use crate::regs::*;
use crate::sys::*;
use crate::{sc, tests};
use std::arch::{asm, global_asm};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

tests!("ptrace":
    exec_stops_with_sigtrap, syscalls_stop_twice, syscall_info_tells_all, every_register_is_edited,
    vector_registers_are_edited, bases_are_edited, calls_are_skipped_and_exchanged,
    steps_go_one_instruction, step_over_a_call, step_over_popf, step_into_a_handler,
    step_over_sigreturn, breakpoint_in_read_only_text, signals_stop_before_delivery,
    interrupted_calls_restart, attach_and_detach, seize_interrupt_and_listen, group_stop,
    fork_events, clone_and_exit_events, vfork_events, exec_event, threads_are_waited_for,
    a_tracer_that_ends_lets_go, exitkill, the_tracer_is_told_before_the_parent, memory_file,
    peek_and_poke, regsets, signal_masks, access_is_checked, procfs_tells, debug_registers,
    requests_need_a_stop, death_ends_every_stop, bad_return_addresses, sysemu, syscall_signal,
    ignored_signals_are_seen, stopped_before_attach, a_traced_fork_is_one_call,
    events_are_followed_by_the_end_of_the_call, pending_signals_are_peeked_at,
    registers_at_the_start_of_a_program,
);

const GOOD: u64 = PTRACE_O_TRACESYSGOOD as u64;
const EVENT_STOP: i32 = 128;
const GETREGSET: i32 = 0x4204;
const SETREGSET: i32 = 0x4205;
const GET_SYSCALL_INFO: i32 = 0x420e;

fn pt(request: i32, pid: i32, addr: u64, data: u64) -> Res {
    sc!(SYS_ptrace, request, pid, addr, data)
}

fn cont(pid: i32, sig: i32) {
    pt(PTRACE_CONT as i32, pid, 0, sig as u64).is(0);
}

fn go(request: u32, pid: i32) {
    pt(request as i32, pid, 0, 0).is(0);
}

fn trace_me() {
    pt(PTRACE_TRACEME as i32, 0, 0, 0).is(0);
}

fn options(pid: i32, options: u64) {
    pt(PTRACE_SETOPTIONS as i32, pid, 0, options).is(0);
}

/// Waits for the next event of `pid`, of any kind.
#[track_caller]
fn next(pid: i32) -> i32 {
    let mut status = 0;
    sc!(SYS_wait4, pid, &raw mut status, __WALL, 0).is(pid as usize);
    status
}

/// The next event must be a stop with this number (signal, plus event << 8).
#[track_caller]
fn stopped(pid: i32, number: i32) {
    let status = next(pid);
    assert_eq!(status, number << 8 | 0x7f, "{status:#x}, expected stop {number:#x}");
}

#[track_caller]
fn exited(pid: i32, code: i32) {
    let status = next(pid);
    assert!(WIFEXITED(status) && WEXITSTATUS(status) == code, "{}", describe(status));
}

#[track_caller]
fn killed(pid: i32, signal: i32) {
    let status = next(pid);
    assert!(WIFSIGNALED(status) && WTERMSIG(status) == signal, "{}", describe(status));
}

fn regs(pid: i32) -> user_regs_struct {
    // SAFETY: a structure of plain numbers, of which zero is one.
    let mut r: user_regs_struct = unsafe { std::mem::zeroed() };
    pt(PTRACE_GETREGS as i32, pid, 0, &raw mut r as u64).is(0);
    r
}

fn set_regs(pid: i32, r: &user_regs_struct) {
    pt(PTRACE_SETREGS as i32, pid, 0, r as *const _ as u64).is(0);
}

fn siginfo(pid: i32) -> [i32; 32] {
    let mut info = [0i32; 32];
    pt(PTRACE_GETSIGINFO as i32, pid, 0, info.as_mut_ptr() as u64).is(0);
    info
}

fn message(pid: i32) -> u64 {
    let mut m = 0u64;
    pt(PTRACE_GETEVENTMSG as i32, pid, 0, &raw mut m as u64).is(0);
    m
}

fn peek(pid: i32, addr: u64) -> u64 {
    let mut word = 0u64;
    pt(PTRACE_PEEKDATA as i32, pid, addr, &raw mut word as u64).is(0);
    word
}

/// A traced child, stopped by its own SIGSTOP, that runs `f` next.
#[track_caller]
fn tracee(f: impl FnOnce() -> i32) -> i32 {
    let pid = fork(|| {
        trace_me();
        sc!(SYS_kill, pid(), SIGSTOP).is(0);
        f()
    });
    stopped(pid, SIGSTOP);
    pid
}

/// A child that nobody traces and that waits to be traced or ended.
fn bystander() -> i32 {
    fork(|| {
        loop {
            let _ = sc!(SYS_pause);
        }
    })
}

fn end(pid: i32) {
    sc!(SYS_kill, pid, SIGKILL).is(0);
    killed(pid, SIGKILL);
}

/// A system call without any other around it, wherever the compiler puts it.
fn one_call(nr: i64) -> i64 {
    let ret: i64;
    // SAFETY: the calls take numbers and no pointers.
    unsafe {
        asm!("syscall", inlateout("rax") nr => ret, in("rdi") 1, in("rsi") 2, in("rdx") 3,
             in("r10") 4, in("r8") 5, in("r9") 6, lateout("rcx") _, lateout("r11") _);
    }
    ret
}

fn exec_self(mode: &str, argument: &str) -> i32 {
    let (path, child, mode, argument) = (c(&own_path()), c("child"), c(mode), c(argument));
    let argv = [path.as_ptr(), child.as_ptr(), mode.as_ptr(), argument.as_ptr(), std::ptr::null()];
    let envp = [std::ptr::null::<u8>()];
    let _ = sc!(SYS_execve, path.as_ptr(), argv.as_ptr(), envp.as_ptr());
    99
}

fn exec_stops_with_sigtrap() {
    let pid = fork(|| {
        trace_me();
        exec_self("exit", "7")
    });
    stopped(pid, SIGTRAP);
    let r = regs(pid);
    assert_eq!((r.rax, r.orig_rax, r.cs, r.ss), (0, SYS_execve as u64, 0x33, 0x2b));
    cont(pid, 0);
    exited(pid, 7);
}

fn syscalls_stop_twice() {
    for good in [0, GOOD] {
        let stop = if good != 0 { SIGTRAP | 0x80 } else { SIGTRAP };
        let pid = tracee(|| i32::from(one_call(SYS_getppid) != pid_of_parent()));
        options(pid, good);
        go(PTRACE_SYSCALL, pid);
        stopped(pid, stop);
        let r = regs(pid);
        assert_eq!((r.orig_rax, r.rax as i64), (SYS_getppid as u64, -i64::from(ENOSYS)));
        assert_eq!((r.rdi, r.rsi, r.rdx, r.r10, r.r8, r.r9), (1, 2, 3, 4, 5, 6));
        assert_eq!((r.rcx, r.r11), (r.rip, r.eflags));
        assert_eq!(siginfo(pid)[..3], [SIGTRAP, 0, stop]);
        assert_eq!(message(pid), 1);
        go(PTRACE_SYSCALL, pid);
        stopped(pid, stop);
        let after = regs(pid);
        assert_eq!((after.rax, after.orig_rax), (crate::sys::pid() as u64, SYS_getppid as u64));
        assert_eq!((after.rip, after.rsp, after.rbp), (r.rip, r.rsp, r.rbp));
        assert_eq!(message(pid), 2);
        cont(pid, 0);
        exited(pid, 0);
    }
}

fn pid_of_parent() -> i64 {
    sc!(SYS_getppid).must() as i64
}

fn syscall_info_tells_all() {
    let pid = tracee(|| i32::from(one_call(SYS_close) != -i64::from(EBADF)));
    options(pid, GOOD);
    let mut info = [0u64; 11];
    let get = |info: &mut [u64; 11], size: u64| {
        pt(GET_SYSCALL_INFO, pid, size, info.as_mut_ptr() as u64).must()
    };
    assert_eq!(get(&mut info, 88), 24, "not at a system call");
    assert_eq!(info[0] & 0xff, 0);
    go(PTRACE_SYSCALL, pid);
    stopped(pid, SIGTRAP | 0x80);
    assert_eq!(get(&mut info, 88), 80);
    let r = regs(pid);
    assert_eq!(info[0], 0xc000_003e << 32 | 1);
    assert_eq!(info[1..10], [r.rip, r.rsp, SYS_close as u64, 1, 2, 3, 4, 5, 6]);
    info = [u64::MAX; 11];
    assert_eq!(get(&mut info, 16), 80, "the size is that of the whole");
    assert_eq!((info[1], info[2]), (r.rip, u64::MAX), "but no more than asked for is written");
    // The descriptor is 1 there: make it one that is not open.
    set_regs(pid, &user_regs_struct { rdi: 1000, ..r });
    go(PTRACE_SYSCALL, pid);
    stopped(pid, SIGTRAP | 0x80);
    info = [0; 11];
    assert_eq!(get(&mut info, 88), 33);
    assert_eq!((info[0] & 0xff, info[3] as i64, info[4] & 0xff), (2, -i64::from(EBADF), 1));
    cont(pid, 0);
    exited(pid, 0);
}

fn every_register_is_edited() {
    // 0 to 15 in the order of regs.rs, without RSP.
    let wanted = |i: usize| 0x7700_0000_0000_0000 + i as u64 * 0x0123_4567;
    for stop_at in [1, 2] {
        let pid = tracee(|| {
            let after = Regs::distinct(SYS_getpid, [0; 4]).syscall();
            let bad = (0..16).filter(|&i| i != 7).find(|&i| {
                // What is set before the call is overwritten by the call in these three.
                let overwritten = stop_at == 1 && i == AX;
                !overwritten && after.gp[i] != wanted(i)
            });
            let flags = after.flags & 0x0024_0cd5;
            match bad {
                Some(i) => 100 + i as i32,
                None => i32::from(flags != 0x0004_0455),
            }
        });
        options(pid, GOOD);
        for _ in 0..stop_at {
            go(PTRACE_SYSCALL, pid);
            stopped(pid, SIGTRAP | 0x80);
        }
        let r = regs(pid);
        set_regs(
            pid,
            &user_regs_struct {
                rax: wanted(0),
                rbx: wanted(1),
                rcx: wanted(2),
                rdx: wanted(3),
                rsi: wanted(4),
                rdi: wanted(5),
                rbp: wanted(6),
                r8: wanted(8),
                r9: wanted(9),
                r10: wanted(10),
                r11: wanted(11),
                r12: wanted(12),
                r13: wanted(13),
                r14: wanted(14),
                r15: wanted(15),
                // CF PF ZF DF AC; IOPL, VIF and IF are not the tracer's to change.
                eflags: 0x4_0445 | 0x10 | 0x3000 | 1 << 19,
                ..r
            },
        );
        assert_eq!(regs(pid).eflags, 0x4_0455 | 0x202, "privileged flags stay");
        cont(pid, 0);
        exited(pid, 0);
    }
}

fn vector_registers_are_edited() {
    let wanted = |i: usize| (0x1234_u128 << 100) | (i as u128) << 50 | 0x77;
    let pid = tracee(|| {
        let after = Regs::distinct(SYS_getpid, [0; 4]).syscall();
        (0..16).find(|&i| after.xmm[i] != wanted(i)).map_or(0, |i| 100 + i as i32)
    });
    options(pid, GOOD);
    go(PTRACE_SYSCALL, pid);
    stopped(pid, SIGTRAP | 0x80);
    let mut image = [0u8; 512];
    pt(PTRACE_GETFPREGS as i32, pid, 0, image.as_mut_ptr() as u64).is(0);
    let before = Regs::distinct(SYS_getpid, [0; 4]);
    for i in 0..16 {
        let at = 160 + 16 * i..176 + 16 * i;
        assert_eq!(image[at.clone()], before.xmm[i].to_le_bytes(), "xmm{i}");
        image[at].copy_from_slice(&wanted(i).to_le_bytes());
    }
    pt(PTRACE_SETFPREGS as i32, pid, 0, image.as_ptr() as u64).is(0);
    // A bit of MXCSR that does not exist.
    image[26] = 1;
    pt(PTRACE_SETFPREGS as i32, pid, 0, image.as_ptr() as u64).fails(EINVAL);
    cont(pid, 0);
    exited(pid, 0);
}

fn bases_are_edited() {
    let place = Box::leak(Box::new([0x5151u64; 2]));
    let pid = tracee(|| {
        let mut gs = 0u64;
        one_call(SYS_getpid);
        sc!(SYS_arch_prctl, 0x1004, &raw mut gs).is(0);
        let seen: u64;
        // SAFETY: the tracer made GS point to `place`.
        unsafe { asm!("mov {}, gs:8", out(reg) seen) };
        i32::from(gs != place.as_ptr() as u64 || seen != 0x5151)
    });
    let r = regs(pid);
    assert_ne!(r.fs_base, 0);
    set_regs(pid, &user_regs_struct { gs_base: place.as_ptr() as u64, ..r });
    let user = |i: u64| i * 8;
    pt(PTRACE_POKEUSER as i32, pid, user(22), 1 << 47).fails(EIO);
    pt(PTRACE_POKEUSER as i32, pid, user(21), u64::MAX << 47).fails(EIO);
    for (place, bad) in [(17, 0u64), (17, 0x30), (20, 0x28)] {
        pt(PTRACE_POKEUSER as i32, pid, user(place), bad).fails(EIO);
    }
    cont(pid, 0);
    exited(pid, 0);
}

fn calls_are_skipped_and_exchanged() {
    let pid = tracee(|| {
        let skipped = one_call(SYS_getpid);
        let plain = one_call(SYS_getpid);
        let other = one_call(SYS_getpid);
        let unknown = one_call(SYS_getpid);
        i32::from(
            skipped != 12345
                || plain != -i64::from(ENOSYS)
                || other != pid_of_parent()
                || unknown != -i64::from(ENOSYS),
        )
    });
    options(pid, GOOD);
    // The number -1 makes no call; RAX is what the tracer put there, or ENOSYS.
    for (number, result) in
        [(u64::MAX, Some(12345)), (u64::MAX, None), (SYS_getppid as u64, None), (0x7fff_0000, None)]
    {
        go(PTRACE_SYSCALL, pid);
        stopped(pid, SIGTRAP | 0x80);
        let mut r = regs(pid);
        assert_eq!(r.orig_rax, SYS_getpid as u64);
        r.orig_rax = number;
        r.rax = result.unwrap_or(r.rax);
        set_regs(pid, &r);
        go(PTRACE_SYSCALL, pid);
        stopped(pid, SIGTRAP | 0x80);
    }
    cont(pid, 0);
    exited(pid, 0);
}

global_asm!(
    ".globl limen_step_code",
    "limen_step_code:",
    "nop",
    "nop",
    "mov eax, 39",
    ".globl limen_step_call",
    "limen_step_call:",
    "syscall",
    ".globl limen_step_after",
    "limen_step_after:",
    "nop",
    "push 0x202",
    ".globl limen_step_popf",
    "limen_step_popf:",
    "popfq",
    "nop",
    "ret",
);

unsafe extern "C" {
    fn limen_step_code();
    static limen_step_call: u8;
    static limen_step_after: u8;
    static limen_step_popf: u8;
}

/// A tracee that runs `limen_step_code`, stopped at its begin by a breakpoint that is gone again.
fn at_step_code() -> i32 {
    let pid = tracee(|| {
        // SAFETY: clobbers what a call may.
        unsafe { limen_step_code() };
        0
    });
    run_to(pid, limen_step_code as *const () as u64);
    pid
}

/// Lets the tracee run to an address, by a breakpoint.
#[track_caller]
fn run_to(pid: i32, address: u64) {
    let old = peek(pid, address);
    pt(PTRACE_POKETEXT as i32, pid, address, old & !0xff | 0xcc).is(0);
    cont(pid, 0);
    stopped(pid, SIGTRAP);
    assert_eq!(siginfo(pid)[2], 0x80, "SI_KERNEL");
    pt(PTRACE_POKETEXT as i32, pid, address, old).is(0);
    let r = regs(pid);
    assert_eq!(r.rip, address + 1);
    set_regs(pid, &user_regs_struct { rip: address, ..r });
}

#[track_caller]
fn step(pid: i32) -> user_regs_struct {
    go(PTRACE_SINGLESTEP, pid);
    stopped(pid, SIGTRAP);
    regs(pid)
}

fn steps_go_one_instruction() {
    let pid = at_step_code();
    let start = limen_step_code as *const () as u64;
    for at in [1, 2, 7] {
        let r = step(pid);
        assert_eq!(r.rip, start + at);
        assert_eq!(r.eflags & 0x100, 0, "the tracer's trap flag is not shown");
        assert_eq!(siginfo(pid)[2], 2, "TRAP_TRACE");
    }
    cont(pid, 0);
    exited(pid, 0);
}

fn step_over_a_call() {
    let pid = at_step_code();
    // SAFETY: only the addresses are taken, nothing is read.
    let (call, after) = (&raw const limen_step_call as u64, &raw const limen_step_after as u64);
    run_to(pid, call);
    let r = step(pid);
    assert_eq!((r.rip, r.rax), (after, pid as u64), "the call is one instruction");
    assert_eq!(step(pid).rip, after + 1);
    cont(pid, 0);
    exited(pid, 0);
}

fn step_over_popf() {
    let pid = at_step_code();
    // SAFETY: only the address is taken, nothing is read.
    let popf = &raw const limen_step_popf as u64;
    run_to(pid, popf);
    let r = step(pid);
    assert_eq!((r.rip, r.eflags), (popf + 1, 0x202));
    // Had the flag stayed, the tracee would die of SIGTRAP.
    cont(pid, 0);
    exited(pid, 0);
}

static HANDLED: AtomicU32 = AtomicU32::new(0);

extern "C" fn count_handler(sig: i32) {
    HANDLED.fetch_add(sig as u32, SeqCst);
}

fn step_into_a_handler() {
    let pid = tracee(|| {
        on_signal(SIGUSR1, count_handler as *const () as usize, 0, 0);
        sc!(SYS_kill, pid(), SIGUSR1).is(0);
        i32::from(HANDLED.load(SeqCst) != SIGUSR1 as u32)
    });
    cont(pid, 0);
    stopped(pid, SIGUSR1);
    pt(PTRACE_SINGLESTEP as i32, pid, 0, SIGUSR1 as u64).is(0);
    stopped(pid, SIGTRAP);
    let r = regs(pid);
    assert_eq!((r.rip, r.rdi), (count_handler as *const () as u64, SIGUSR1 as u64));
    // The frame must not hold the tracer's trap flag: context at RDX, flags after 40 + 17 words.
    assert_eq!(peek(pid, r.rdx + 40 + 17 * 8) & 0x100, 0);
    cont(pid, 0);
    exited(pid, 0);
}

fn step_over_sigreturn() {
    let pid = tracee(|| {
        on_signal(SIGUSR1, count_handler as *const () as usize, 0, 0);
        sc!(SYS_kill, pid(), SIGUSR1).is(0);
        i32::from(HANDLED.load(SeqCst) != SIGUSR1 as u32)
    });
    cont(pid, 0);
    stopped(pid, SIGUSR1);
    let interrupted = regs(pid);
    pt(PTRACE_SINGLESTEP as i32, pid, 0, SIGUSR1 as u64).is(0);
    stopped(pid, SIGTRAP);
    for _ in 0..200 {
        let before = regs(pid);
        let is_sigreturn = peek(pid, before.rip) as u16 == 0x050f && before.rax == 15;
        let after = step(pid);
        if is_sigreturn {
            assert_eq!((after.rip, after.rsp), (interrupted.rip, interrupted.rsp));
            cont(pid, 0);
            return exited(pid, 0);
        }
    }
    panic!("no rt_sigreturn in 200 steps");
}

fn breakpoint_in_read_only_text() {
    // The tracee's page becomes its own: the tracer's is as it was.
    let start = limen_step_code as *const () as u64;
    let pid = at_step_code();
    // SAFETY: the bytes are those of this program's own text.
    let own = unsafe { (start as *const u64).read_volatile() };
    assert_eq!(own & 0xff, 0x90);
    pt(PTRACE_POKETEXT as i32, pid, start, 0xcc).is(0);
    // SAFETY: as for the block above, whose objects live on.
    assert_eq!(unsafe { (start as *const u64).read_volatile() }, own);
    assert_eq!(peek(pid, start), 0xcc);
    // A fork of the tracee sees its page; a write by the tracee faults still.
    end(pid);
}

fn signals_stop_before_delivery() {
    let pid = tracee(|| {
        for sig in [SIGUSR1, SIGUSR2] {
            on_signal(sig, count_handler as *const () as usize, 0, 0);
        }
        let me = pid();
        for _ in 0..4 {
            sc!(SYS_kill, me, SIGUSR1).is(0);
        }
        HANDLED.load(SeqCst) as i32
    });
    cont(pid, 0);
    // Taken away; as it is; exchanged; with another siginfo.
    for give in [0, SIGUSR1, SIGUSR2, SIGUSR1] {
        stopped(pid, SIGUSR1);
        let mut info = siginfo(pid);
        assert_eq!((info[0], info[2], info[4]), (SIGUSR1, 0, pid));
        info[4] = 4711;
        pt(PTRACE_SETSIGINFO as i32, pid, 0, info.as_ptr() as u64).is(0);
        assert_eq!(siginfo(pid)[4], 4711);
        pt(PTRACE_CONT as i32, pid, 0, 65).fails(EIO);
        cont(pid, give);
    }
    exited(pid, 2 * SIGUSR1 + SIGUSR2);
}

fn interrupted_calls_restart() {
    let (r, w) = pipe();
    let pid = tracee(|| {
        let mut byte = 0u8;
        let n = sc!(SYS_read, r, &raw mut byte, 1).must();
        i32::from(n != 1 || byte != b'x')
    });
    options(pid, GOOD);
    go(PTRACE_SYSCALL, pid);
    stopped(pid, SIGTRAP | 0x80);
    let begin = regs(pid);
    go(PTRACE_SYSCALL, pid);
    sc!(SYS_kill, pid, SIGUSR1).is(0);
    stopped(pid, SIGTRAP | 0x80);
    let aborted = regs(pid);
    assert_eq!((aborted.orig_rax, aborted.rax as i64), (SYS_read as u64, -512), "ERESTARTSYS");
    go(PTRACE_SYSCALL, pid);
    stopped(pid, SIGUSR1);
    go(PTRACE_SYSCALL, pid);
    stopped(pid, SIGTRAP | 0x80);
    let again = regs(pid);
    assert_eq!((again.orig_rax, again.rax as i64), (SYS_read as u64, -i64::from(ENOSYS)));
    assert_eq!((again.rip, again.rdi, again.rsi), (begin.rip, begin.rdi, begin.rsi));
    write(w, b"x");
    cont(pid, 0);
    exited(pid, 0);
}

fn attach_and_detach() {
    let words = new_shared();
    let pid = fork(|| {
        loop {
            words[0].fetch_add(1, SeqCst);
            let _ = sc!(SYS_sched_yield);
        }
    });
    for sig in [0, 0, SIGKILL] {
        pt(PTRACE_ATTACH as i32, pid, 0, 0).is(0);
        pt(PTRACE_ATTACH as i32, pid, 0, 0).fails(EPERM);
        stopped(pid, SIGSTOP);
        let seen = words[0].load(SeqCst);
        assert_eq!(siginfo(pid)[0], SIGSTOP);
        assert_eq!(words[0].load(SeqCst), seen);
        pt(PTRACE_DETACH as i32, pid, 0, sig as u64).is(0);
        if sig == 0 {
            until(|| words[0].load(SeqCst) > seen);
        }
        pt(PTRACE_CONT as i32, pid, 0, 0).fails(ESRCH);
    }
    wait_signal(pid, SIGKILL);
    pt(PTRACE_ATTACH as i32, pid, 0, 0).fails(ESRCH);
    pt(PTRACE_ATTACH as i32, crate::sys::pid(), 0, 0).fails(EPERM);
}

fn seize_interrupt_and_listen() {
    let pid = bystander();
    pt(PTRACE_SEIZE as i32, pid, 1, 0).fails(EIO);
    pt(PTRACE_SEIZE as i32, pid, 0, 1 << 30).fails(EIO);
    pt(PTRACE_SEIZE as i32, pid, 0, GOOD).is(0);
    pt(PTRACE_INTERRUPT as i32, pid, 0, 0).is(0);
    stopped(pid, SIGTRAP | EVENT_STOP << 8);
    assert_eq!(siginfo(pid)[2], SIGTRAP | EVENT_STOP << 8);
    cont(pid, 0);
    // Job control: the stop is told as such, and the end of it too.
    sc!(SYS_kill, pid, SIGSTOP).is(0);
    stopped(pid, SIGSTOP);
    pt(PTRACE_LISTEN as i32, pid, 0, 0).fails(EIO);
    cont(pid, SIGSTOP);
    stopped(pid, SIGSTOP | EVENT_STOP << 8);
    pt(PTRACE_LISTEN as i32, pid, 0, 0).is(0);
    pt(PTRACE_GETREGS as i32, pid, 0, 0).fails(ESRCH);
    let mut status = 0;
    sc!(SYS_wait4, pid, &raw mut status, __WALL | WNOHANG, 0).is(0);
    sc!(SYS_kill, pid, SIGCONT).is(0);
    stopped(pid, SIGTRAP | EVENT_STOP << 8);
    cont(pid, 0);
    stopped(pid, SIGCONT);
    pt(PTRACE_INTERRUPT as i32, pid, 0, 0).is(0);
    cont(pid, 0);
    stopped(pid, SIGTRAP | EVENT_STOP << 8);
    pt(PTRACE_DETACH as i32, pid, 0, 0).is(0);
    sc!(SYS_kill, pid, SIGKILL).is(0);
    wait_signal(pid, SIGKILL);
}

fn group_stop() {
    let pid = tracee(|| 5);
    cont(pid, SIGSTOP);
    stopped(pid, SIGSTOP);
    pt(PTRACE_GETSIGINFO as i32, pid, 0, [0i32; 32].as_mut_ptr() as u64).fails(EINVAL);
    pt(PTRACE_INTERRUPT as i32, pid, 0, 0).fails(EIO);
    cont(pid, 0);
    exited(pid, 5);
}

#[track_caller]
fn new_child(pid: i32, event: i32) -> i32 {
    stopped(pid, SIGTRAP | event << 8);
    message(pid) as i32
}

fn fork_events() {
    let pid = tracee(|| {
        let child = fork(|| 3);
        let status = wait(child);
        i32::from(!WIFEXITED(status) || WEXITSTATUS(status) != 3)
    });
    options(pid, PTRACE_O_TRACEFORK as u64);
    cont(pid, 0);
    let child = new_child(pid, PTRACE_EVENT_FORK);
    stopped(child, SIGSTOP);
    assert_eq!(regs(child).rax, 0);
    cont(child, 0);
    cont(pid, 0);
    exited(child, 3);
    stopped(pid, SIGCHLD);
    cont(pid, 0);
    exited(pid, 0);
    sc!(SYS_wait4, -1i32, 0, __WALL | WNOHANG, 0).fails(ECHILD);
}

extern "C" fn thread_exits() {
    let _ = sc!(SYS_exit, 9);
}

extern "C" fn thread_pauses() {
    loop {
        let _ = sc!(SYS_pause);
    }
}

extern "C" fn thread_execs() {
    exec_self("exit", "8");
    quit(98);
}

fn clone_and_exit_events() {
    let pid = tracee(|| {
        raw_thread(THREAD_FLAGS, thread_exits);
        // Until the thread has gone.
        until(|| std::fs::read_dir("/proc/self/task").is_ok_and(|d| d.count() == 1));
        4
    });
    options(pid, (PTRACE_O_TRACECLONE | PTRACE_O_TRACEEXIT) as u64);
    cont(pid, 0);
    let thread = new_child(pid, PTRACE_EVENT_CLONE);
    stopped(thread, SIGSTOP);
    cont(thread, 0);
    cont(pid, 0);
    stopped(thread, SIGTRAP | PTRACE_EVENT_EXIT << 8);
    assert_eq!(message(thread), 9 << 8);
    assert_eq!(regs(thread).orig_rax, SYS_exit as u64);
    cont(thread, 0);
    exited(thread, 9);
    stopped(pid, SIGTRAP | PTRACE_EVENT_EXIT << 8);
    assert_eq!(message(pid), 4 << 8);
    cont(pid, 0);
    exited(pid, 4);
}

/// vfork(2), whose child exits with `code`; the child's id.
fn vfork_and_exit(code: i32) -> i32 {
    let ret: i64;
    // SAFETY: the child, which shares this memory, does nothing but leave.
    unsafe {
        asm!("syscall", "test rax, rax", "jnz 2f", "mov eax, 60", "syscall", "ud2", "2:",
             inlateout("rax") SYS_vfork => ret, in("rdi") code, lateout("rcx") _, lateout("r11") _);
    }
    assert!(ret > 0, "vfork: {ret}");
    ret as i32
}

fn vfork_events() {
    let pid = tracee(|| {
        let child = vfork_and_exit(6);
        wait_code(child, 6);
        0
    });
    options(pid, (PTRACE_O_TRACEVFORK | PTRACE_O_TRACEVFORKDONE) as u64);
    cont(pid, 0);
    let child = new_child(pid, PTRACE_EVENT_VFORK);
    stopped(child, SIGSTOP);
    cont(pid, 0);
    cont(child, 0);
    exited(child, 6);
    let mut status = next(pid);
    if status == SIGCHLD << 8 | 0x7f {
        cont(pid, 0);
        status = next(pid);
    }
    assert_eq!(status >> 8, SIGTRAP | PTRACE_EVENT_VFORK_DONE << 8);
    assert_eq!(message(pid), child as u64);
    cont(pid, 0);
    loop {
        let status = next(pid);
        if WIFEXITED(status) {
            return assert_eq!(WEXITSTATUS(status), 0);
        }
        assert_eq!(status, SIGCHLD << 8 | 0x7f);
        cont(pid, 0);
    }
}

fn events_are_followed_by_the_end_of_the_call() {
    // The tracer did not ask for system calls when the call began, but in the middle of it.
    let pid = tracee(|| {
        let child = vfork_and_exit(6);
        wait_code(child, 6);
        exec_self("exit", "5")
    });
    let all = PTRACE_O_TRACEVFORK | PTRACE_O_TRACEVFORKDONE | PTRACE_O_TRACEEXEC;
    options(pid, GOOD | all as u64);
    cont(pid, 0);
    let child = new_child(pid, PTRACE_EVENT_VFORK);
    stopped(child, SIGSTOP);
    go(PTRACE_DETACH, child);
    cont(pid, 0);
    let mut status = next(pid);
    if status == SIGCHLD << 8 | 0x7f {
        cont(pid, 0);
        status = next(pid);
    }
    assert_eq!(status >> 8, SIGTRAP | PTRACE_EVENT_VFORK_DONE << 8);
    go(PTRACE_SYSCALL, pid);
    stopped(pid, SIGTRAP | 0x80);
    assert_eq!((regs(pid).orig_rax, regs(pid).rax), (SYS_vfork as u64, child as u64));
    cont(pid, 0);
    loop {
        let status = next(pid);
        if status >> 8 == SIGTRAP | PTRACE_EVENT_EXEC << 8 {
            break;
        }
        assert_eq!(status, SIGCHLD << 8 | 0x7f);
        cont(pid, 0);
    }
    go(PTRACE_SYSCALL, pid);
    stopped(pid, SIGTRAP | 0x80);
    assert_eq!((regs(pid).orig_rax, regs(pid).rax), (SYS_execve as u64, 0));
    cont(pid, 0);
    exited(pid, 5);
}

fn pending_signals_are_peeked_at() {
    let pid = tracee(|| {
        sigmask(SIG_BLOCK, !0);
        sc!(SYS_kill, pid(), SIGUSR2).is(0);
        sc!(SYS_kill, pid(), SIGUSR1).is(0);
        sc!(SYS_kill, pid(), SIGUSR1).is(0);
        sc!(SYS_tgkill, pid(), tid(), SIGHUP).is(0);
        one_call(SYS_getppid);
        0
    });
    let peek = |offset: u64, flags: u32, count: i32, infos: &mut [[i32; 32]; 4]| {
        let request = (offset, flags, count);
        let to = infos.as_mut_ptr() as u64;
        pt(0x4209, pid, &raw const request as u64, to)
    };
    let mut infos = [[0; 32]; 4];
    peek(0, 0, 1, &mut infos).is(0);
    while regs(pid).orig_rax != SYS_getppid as u64 {
        go(PTRACE_SYSCALL, pid);
        stopped(pid, SIGTRAP);
    }
    peek(0, 1, 4, &mut infos).is(2);
    assert_eq!([infos[0][0], infos[1][0]], [SIGUSR2, SIGUSR1]);
    assert_eq!((infos[0][2], infos[0][4]), (SI_USER, pid));
    peek(0, 0, 4, &mut infos).is(1);
    assert_eq!((infos[0][0], infos[0][2]), (SIGHUP, SI_TKILL));
    peek(1, 1, 4, &mut infos).is(1);
    assert_eq!(infos[0][0], SIGUSR1);
    peek(2, 1, 4, &mut infos).is(0);
    peek(u64::MAX, 1, 4, &mut infos).is(0);
    peek(0, 1, 0, &mut infos).is(0);
    peek(0, 2, 1, &mut infos).fails(EINVAL);
    peek(0, 1, -1, &mut infos).fails(EINVAL);
    pt(0x4209, pid, 8, infos.as_mut_ptr() as u64).fails(EFAULT);
    let request = (0u64, 1u32, 1i32);
    pt(0x4209, pid, &raw const request as u64, 8).fails(EFAULT);
    end(pid);
}

fn registers_at_the_start_of_a_program() {
    // A program starts with empty registers: nothing of the old one, nothing of the kernel.
    let pid = tracee(|| exec_self("exit", "5"));
    options(pid, PTRACE_O_TRACEEXEC as u64);
    cont(pid, 0);
    stopped(pid, SIGTRAP | PTRACE_EVENT_EXEC << 8);
    go(PTRACE_SINGLESTEP, pid);
    stopped(pid, SIGTRAP);
    let r = regs(pid);
    let first = [r.rax, r.rbx, r.rcx, r.rdx, r.rsi, r.rdi, r.rbp];
    let second = [r.r8, r.r9, r.r10, r.r11, r.r12, r.r13, r.r14, r.r15];
    assert_eq!((first, second), ([0; 7], [0; 8]));
    assert_eq!(r.rsp % 16, 0);
    cont(pid, 0);
    exited(pid, 5);
}

fn exec_event() {
    // The thread that executes takes the first thread's id over; the tracer is told its old one.
    let pid = tracee(|| {
        raw_thread(THREAD_FLAGS, thread_execs);
        thread_pauses();
        0
    });
    options(pid, (PTRACE_O_TRACECLONE | PTRACE_O_TRACEEXEC) as u64);
    cont(pid, 0);
    let thread = new_child(pid, PTRACE_EVENT_CLONE);
    stopped(thread, SIGSTOP);
    cont(pid, 0);
    cont(thread, 0);
    stopped(pid, SIGTRAP | PTRACE_EVENT_EXEC << 8);
    assert_eq!(message(pid), thread as u64);
    pt(PTRACE_CONT as i32, thread, 0, 0).fails(ESRCH);
    cont(pid, 0);
    exited(pid, 8);
    sc!(SYS_wait4, -1i32, 0, __WALL | WNOHANG, 0).fails(ECHILD);
}

fn threads_are_waited_for() {
    let pid = tracee(|| {
        raw_thread(THREAD_FLAGS, thread_pauses);
        raw_thread(THREAD_FLAGS, thread_pauses);
        11
    });
    options(pid, PTRACE_O_TRACECLONE as u64);
    cont(pid, 0);
    let mut threads = Vec::new();
    for _ in 0..2 {
        let thread = new_child(pid, PTRACE_EVENT_CLONE);
        stopped(thread, SIGSTOP);
        cont(thread, 0);
        cont(pid, 0);
        threads.push(thread);
    }
    // exit_group ends all; the first thread's end comes last.
    let mut order = Vec::new();
    let mut status = 0;
    while let Ok(tid) = sc!(SYS_wait4, -1i32, &raw mut status, __WALL, 0) {
        assert!(WIFEXITED(status) && WEXITSTATUS(status) == 11, "{tid}: {}", describe(status));
        order.push(tid as i32);
    }
    assert_eq!(order.pop(), Some(pid));
    order.sort_unstable();
    threads.sort_unstable();
    assert_eq!(order, threads);
}

fn a_tracer_that_ends_lets_go() {
    let words = new_shared();
    let pid = fork(|| {
        loop {
            words[0].fetch_add(1, SeqCst);
            let _ = sc!(SYS_sched_yield);
        }
    });
    let tracer = fork(|| {
        pt(PTRACE_SEIZE as i32, pid, 0, 0).is(0);
        pt(PTRACE_INTERRUPT as i32, pid, 0, 0).is(0);
        stopped(pid, SIGTRAP | EVENT_STOP << 8);
        words[1].store(words[0].load(SeqCst), SeqCst);
        0
    });
    wait_code(tracer, 0);
    until(|| words[0].load(SeqCst) > words[1].load(SeqCst));
    sc!(SYS_kill, pid, SIGKILL).is(0);
    wait_signal(pid, SIGKILL);
}

fn exitkill() {
    let pid = bystander();
    let tracer = fork(|| {
        pt(PTRACE_SEIZE as i32, pid, 0, PTRACE_O_EXITKILL as u64).is(0);
        0
    });
    wait_code(tracer, 0);
    wait_signal(pid, SIGKILL);
}

fn the_tracer_is_told_before_the_parent() {
    let words = new_shared();
    let pid = bystander();
    let tracer = fork(|| {
        pt(PTRACE_SEIZE as i32, pid, 0, 0).is(0);
        words[0].store(1, SeqCst);
        let mut info = [0i32; 32];
        sc!(SYS_waitid, P_PID, pid, info.as_mut_ptr(), WEXITED | WNOWAIT | __WALL, 0).is(0);
        assert_eq!((info[0], info[2], info[4]), (SIGCHLD, CLD_KILLED, pid));
        words[0].store(2, SeqCst);
        until_at_least(&words[1], 1);
        killed(pid, SIGKILL);
        0
    });
    until_at_least(&words[0], 1);
    sc!(SYS_kill, pid, SIGKILL).is(0);
    until_at_least(&words[0], 2);
    let mut status = 0;
    sc!(SYS_wait4, pid, &raw mut status, WNOHANG, 0).is(0);
    words[1].store(1, SeqCst);
    wait_code(tracer, 0);
    wait_signal(pid, SIGKILL);
}

fn memory_file() {
    let value = Box::leak(Box::new([1u64, 2, 3]));
    let pid = tracee(|| i32::from(value[1] != 77));
    let file = open(&format!("/proc/{pid}/mem"), O_RDWR).fd();
    let mut got = [0u64; 3];
    let new = 77u64;
    let at = value.as_ptr() as usize;
    sc!(SYS_pread64, file, got.as_mut_ptr(), 24, at).is(24);
    assert_eq!(got, [1, 2, 3]);
    sc!(SYS_pwrite64, file, &raw const new, 8, at + 8).is(8);
    // Text, too.
    let code = limen_step_code as *const () as usize;
    sc!(SYS_pwrite64, file, b"\xcc".as_ptr(), 1, code).is(1);
    assert_eq!(peek(pid, code as u64) & 0xff, 0xcc);
    sc!(SYS_pread64, file, got.as_mut_ptr(), 8, 8).fails(EIO);
    let hole = anon(3 * 4096) as usize;
    // SAFETY: the memory was mapped just now and is the test's own.
    sc!(SYS_munmap, hole + 4096, 4096).is(0);
    close(file);
    cont(pid, 0);
    exited(pid, 0);
    // One's own memory needs no tracing.
    let file = open("/proc/self/mem", O_RDONLY).fd();
    let mut page = [0u8; 8192];
    sc!(SYS_pread64, file, page.as_mut_ptr(), 8192, hole).is(4096);
    sc!(SYS_pread64, file, got.as_mut_ptr(), 8, value.as_ptr()).is(8);
    assert_eq!(got[0], 1);
}

fn peek_and_poke() {
    let value = Box::leak(Box::new([0x1122_3344_5566_7788u64, 0]));
    let guarded = mmap(0, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0).must() as u64;
    let pid = tracee(|| i32::from(value[1] != 0xabcd));
    let at = value.as_ptr() as u64;
    assert_eq!(peek(pid, at), value[0]);
    assert_eq!(peek(pid, at + 3), value[0] >> 24);
    pt(PTRACE_POKEDATA as i32, pid, at + 8, 0xabcd).is(0);
    // Rights of the program do not matter, but there has to be something.
    assert_eq!(peek(pid, guarded), 0);
    let mut word = 0u64;
    pt(PTRACE_PEEKDATA as i32, pid, 0, &raw mut word as u64).fails(EIO);
    pt(PTRACE_POKEDATA as i32, pid, 8, 0).fails(EIO);
    pt(PTRACE_PEEKDATA as i32, pid, at, 8).fails(EFAULT);
    // `struct user`.
    pt(PTRACE_PEEKUSER as i32, pid, 16 * 8, &raw mut word as u64).is(0);
    assert_eq!(word, regs(pid).rip);
    pt(PTRACE_PEEKUSER as i32, pid, 3, &raw mut word as u64).fails(EIO);
    pt(PTRACE_PEEKUSER as i32, pid, 928, &raw mut word as u64).fails(EIO);
    pt(PTRACE_POKEUSER as i32, pid, 300 * 8, 0).fails(EIO);
    cont(pid, 0);
    exited(pid, 0);
}

fn regset(request: i32, pid: i32, kind: u64, buffer: &mut [u8]) -> Result<usize, i32> {
    let mut vector = [buffer.as_mut_ptr() as u64, buffer.len() as u64];
    pt(request, pid, kind, vector.as_mut_ptr() as u64).map(|_| vector[1] as usize)
}

fn regsets() {
    let wanted = (0x4242_u128 << 112) | 0x17;
    let pid = tracee(|| {
        let after = Regs::distinct(SYS_getpid, [0; 4]).syscall();
        i32::from(after.xmm[3] != wanted)
    });
    options(pid, GOOD);
    go(PTRACE_SYSCALL, pid);
    stopped(pid, SIGTRAP | 0x80);
    let r = regs(pid);
    let mut general = [0u8; 400];
    assert_eq!(regset(GETREGSET, pid, 1, &mut general), Ok(27 * 8));
    assert_eq!(general[128..136], r.rip.to_le_bytes());
    assert_eq!(regset(GETREGSET, pid, 1, &mut general[..16]), Ok(16));
    assert_eq!(regset(GETREGSET, pid, 1, &mut general[..15]), Err(EINVAL));
    assert_eq!(regset(GETREGSET, pid, 99, &mut general), Err(EINVAL));
    assert_eq!(regset(GETREGSET, pid, 2, &mut [0; 512]), Ok(512));
    let mut image = vec![0u8; 16384];
    let size = regset(GETREGSET, pid, 0x202, &mut image).expect("XSAVE image");
    assert!(size >= 576, "{size}");
    image.truncate(size);
    let mask = u64::from_le_bytes(image[464..472].try_into().unwrap());
    assert_eq!(mask & 3, 3, "enabled components");
    assert_ne!(image[512] & 2, 0, "SSE is in use");
    let before = Regs::distinct(SYS_getpid, [0; 4]);
    assert_eq!(image[160 + 48..176 + 48], before.xmm[3].to_le_bytes());
    image[160 + 48..176 + 48].copy_from_slice(&wanted.to_le_bytes());
    assert_eq!(regset(SETREGSET, pid, 0x202, &mut image), Ok(size));
    assert!(regset(SETREGSET, pid, 0x202, &mut image[..512]).is_err());
    image[512 + 8] = 1;
    assert!(regset(SETREGSET, pid, 0x202, &mut image).is_err(), "not the standard form");
    cont(pid, 0);
    exited(pid, 0);
}

fn signal_masks() {
    let pid = tracee(|| {
        let mask = sigmask(SIG_BLOCK, 0);
        i32::from(mask != bit(SIGUSR2))
    });
    let mut mask = u64::MAX;
    pt(PTRACE_GETSIGMASK as i32, pid, 8, &raw mut mask as u64).is(0);
    assert_eq!(mask & bit(SIGUSR2), 0);
    pt(PTRACE_GETSIGMASK as i32, pid, 4, &raw mut mask as u64).fails(EINVAL);
    let wanted = bit(SIGUSR2) | bit(SIGKILL);
    pt(PTRACE_SETSIGMASK as i32, pid, 8, &raw const wanted as u64).is(0);
    cont(pid, 0);
    exited(pid, 0);
}

fn access_is_checked() {
    let pid = bystander();
    in_child(|| {
        sc!(SYS_setgid, 65534).is(0);
        sc!(SYS_setuid, 65534).is(0);
        pt(PTRACE_ATTACH as i32, pid, 0, 0).fails(EPERM);
        open(&format!("/proc/{pid}/mem"), O_RDONLY).fails(EACCES);
        // Of the same user: but one that has said that it is nobody's business.
        let words = new_shared();
        let other = fork(|| {
            sc!(SYS_prctl, PR_SET_DUMPABLE, 1).is(0);
            words[0].store(1, SeqCst);
            until_at_least(&words[1], 1);
            sc!(SYS_prctl, PR_SET_DUMPABLE, 0).is(0);
            words[0].store(2, SeqCst);
            thread_pauses();
            0
        });
        until_at_least(&words[0], 1);
        pt(PTRACE_SEIZE as i32, other, 0, 0).is(0);
        pt(PTRACE_INTERRUPT as i32, other, 0, 0).is(0);
        stopped(other, SIGTRAP | EVENT_STOP << 8);
        pt(PTRACE_DETACH as i32, other, 0, 0).is(0);
        words[1].store(1, SeqCst);
        until_at_least(&words[0], 2);
        pt(PTRACE_SEIZE as i32, other, 0, 0).fails(EPERM);
        sc!(SYS_kill, other, SIGKILL).is(0);
        wait_signal(other, SIGKILL);
    });
    pt(PTRACE_ATTACH as i32, 1 << 22, 0, 0).fails(ESRCH);
    sc!(SYS_kill, pid, SIGKILL).is(0);
    wait_signal(pid, SIGKILL);
}

fn procfs_tells() {
    let pid = tracee(|| 0);
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("status");
    assert!(status.contains("State:\tt (tracing stop)\n"), "{status}");
    assert!(status.contains(&format!("TracerPid:\t{}\n", crate::sys::pid())), "{status}");
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("stat");
    assert_eq!(stat.rsplit(')').next().and_then(|s| s.split(' ').nth(1)), Some("t"));
    pt(PTRACE_DETACH as i32, pid, 0, 0).is(0);
    wait_code(pid, 0);
}

fn debug_registers() {
    let watched = Box::leak(Box::new([0u64; 2]));
    let debug = |i: u64| 848 + 8 * i;
    let pid = tracee(|| {
        // SAFETY: the memory is the test's own and lives on.
        unsafe { (&raw mut watched[1]).write_volatile(1) };
        // SAFETY: as for the block above, whose objects live on.
        unsafe { (&raw mut watched[0]).write_volatile(1) };
        // SAFETY: clobbers what a call may.
        unsafe { limen_step_code() };
        0
    });
    let poke = |i: u64, value: u64| pt(PTRACE_POKEUSER as i32, pid, debug(i), value);
    let read = |i: u64| {
        let mut word = 0u64;
        pt(PTRACE_PEEKUSER as i32, pid, debug(i), &raw mut word as u64).is(0);
        word
    };
    poke(0, u64::MAX << 47).fails(EINVAL);
    poke(4, 0).fails(EIO);
    // Eight bytes, written to.
    poke(0, watched.as_ptr() as u64).is(0);
    poke(7, 1 | 0b1001 << 16).is(0);
    cont(pid, 0);
    stopped(pid, SIGTRAP);
    assert_eq!(siginfo(pid)[2], 4, "TRAP_HWBKPT");
    assert_eq!(read(6) & 0xf, 1);
    assert_eq!(peek(pid, watched.as_ptr() as u64), 1, "a trap after the write");
    // An instruction.
    let start = limen_step_code as *const () as u64;
    poke(7, 0).is(0);
    poke(1, start).is(0);
    poke(7, 0b100).is(0);
    cont(pid, 0);
    stopped(pid, SIGTRAP);
    assert_eq!((regs(pid).rip, read(6) & 0xf), (start, 2));
    // It is executed when the tracee goes on, and does not trap again.
    cont(pid, 0);
    exited(pid, 0);
}

fn requests_need_a_stop() {
    let pid = bystander();
    pt(PTRACE_CONT as i32, pid, 0, 0).fails(ESRCH);
    pt(PTRACE_SEIZE as i32, pid, 0, 0).is(0);
    for request in [PTRACE_CONT, PTRACE_DETACH, PTRACE_GETREGS, PTRACE_PEEKDATA, PTRACE_SYSCALL] {
        pt(request as i32, pid, 0, 0).fails(ESRCH);
    }
    pt(PTRACE_INTERRUPT as i32, pid, 0, 0).is(0);
    stopped(pid, SIGTRAP | EVENT_STOP << 8);
    pt(PTRACE_SETOPTIONS as i32, pid, 0, 1 << 31).fails(EINVAL);
    pt(9999, pid, 0, 0).fails(EIO);
    // Only the thread that traces may ask.
    in_child(|| {
        pt(PTRACE_CONT as i32, pid, 0, 0).fails(ESRCH);
    });
    std::thread::scope(|s| {
        s.spawn(|| pt(PTRACE_CONT as i32, pid, 0, 0).fails(ESRCH));
    });
    // But every thread may wait, unless it says __WNOTHREAD.
    pt(PTRACE_CONT as i32, pid, 0, 0).is(0);
    pt(PTRACE_INTERRUPT as i32, pid, 0, 0).is(0);
    std::thread::scope(|s| {
        s.spawn(|| {
            sc!(SYS_wait4, -1i32, 0, __WALL | __WNOTHREAD, 0).fails(ECHILD);
            stopped(pid, SIGTRAP | EVENT_STOP << 8);
        });
    });
    end(pid);
}

fn death_ends_every_stop() {
    for kind in 0..3 {
        let pid = tracee(|| {
            one_call(SYS_getpid);
            0
        });
        match kind {
            0 => {}
            1 => {
                go(PTRACE_SYSCALL, pid);
                stopped(pid, SIGTRAP);
            }
            _ => {
                cont(pid, SIGSTOP);
                stopped(pid, SIGSTOP);
            }
        }
        pt(PTRACE_KILL as i32, pid, 0, 0).is(0);
        killed(pid, SIGKILL);
    }
}

fn bad_return_addresses() {
    // A kernel refuses such an address when it is set, or the tracee dies of it: what must not
    // happen is that anything runs there.
    for bad in [1u64 << 47, 0x0000_8000_0000_0000 | 0x1000, 1 << 56, u64::MAX << 47, u64::MAX] {
        let pid = tracee(|| {
            one_call(SYS_getpid);
            0
        });
        options(pid, GOOD);
        go(PTRACE_SYSCALL, pid);
        stopped(pid, SIGTRAP | 0x80);
        go(PTRACE_SYSCALL, pid);
        stopped(pid, SIGTRAP | 0x80);
        let r = regs(pid);
        let r = user_regs_struct { rip: bad, rcx: bad, ..r };
        match pt(PTRACE_SETREGS as i32, pid, 0, &raw const r as u64) {
            Ok(_) => {
                cont(pid, 0);
                stopped(pid, SIGSEGV);
            }
            Err(e) => assert_eq!(e, EIO),
        }
        end(pid);
    }
}

fn sysemu() {
    let pid = tracee(|| {
        let answer = one_call(SYS_getpid);
        i32::from(answer != 4242)
    });
    const SYSEMU: u32 = 31;
    options(pid, GOOD);
    go(SYSEMU, pid);
    stopped(pid, SIGTRAP | 0x80);
    let r = regs(pid);
    assert_eq!(r.orig_rax, SYS_getpid as u64);
    set_regs(pid, &user_regs_struct { rax: 4242, ..r });
    // The call is not made, and has no second stop.
    go(SYSEMU, pid);
    stopped(pid, SIGTRAP | 0x80);
    assert_eq!(regs(pid).orig_rax, SYS_exit_group as u64);
    end(pid);
}

fn syscall_signal() {
    // A signal given at a system call's stop is sent to the tracee: it stops for it again.
    let pid = tracee(|| {
        one_call(SYS_getpid);
        0
    });
    go(PTRACE_SYSCALL, pid);
    stopped(pid, SIGTRAP);
    pt(PTRACE_SYSCALL as i32, pid, 0, SIGTERM as u64).is(0);
    stopped(pid, SIGTRAP);
    cont(pid, 0);
    stopped(pid, SIGTERM);
    cont(pid, SIGTERM);
    killed(pid, SIGTERM);
}

fn ignored_signals_are_seen() {
    let pid = tracee(|| {
        sc!(SYS_kill, pid(), SIGWINCH).is(0);
        0
    });
    cont(pid, 0);
    stopped(pid, SIGWINCH);
    cont(pid, SIGWINCH);
    exited(pid, 0);
}

fn stopped_before_attach() {
    let pid = bystander();
    sc!(SYS_kill, pid, SIGSTOP).is(0);
    let mut status = 0;
    sc!(SYS_wait4, pid, &raw mut status, WUNTRACED, 0).is(pid as usize);
    pt(PTRACE_SEIZE as i32, pid, 0, 0).is(0);
    pt(PTRACE_INTERRUPT as i32, pid, 0, 0).is(0);
    stopped(pid, SIGSTOP | EVENT_STOP << 8);
    // Let go, it is stopped as before, until SIGCONT.
    pt(PTRACE_DETACH as i32, pid, 0, 0).is(0);
    let stat = || std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("stat");
    until(|| stat().contains(") T "));
    sc!(SYS_kill, pid, SIGCONT).is(0);
    until(|| stat().contains(") S "));
    sc!(SYS_kill, pid, SIGKILL).is(0);
    wait_signal(pid, SIGKILL);
}

fn a_traced_fork_is_one_call() {
    let pid = tracee(|| {
        let child = fork(|| 5);
        wait_code(child, 5);
        0
    });
    options(pid, GOOD);
    let mut forks = Vec::new();
    for _ in 0..20 {
        go(PTRACE_SYSCALL, pid);
        let status = next(pid);
        if WIFEXITED(status) {
            break;
        }
        if WSTOPSIG(status) == SIGTRAP | 0x80 {
            let r = regs(pid);
            if [SYS_fork, SYS_clone, SYS_clone3].contains(&(r.orig_rax as i64)) {
                forks.push(r.rax as i64);
            }
        }
    }
    assert!(forks.len() == 2 && forks[0] == -i64::from(ENOSYS) && forks[1] > 0, "{forks:?}");
}

/// Several tracers, each with a tracee that forks, execs and makes threads, all of it followed.
pub fn storm(jobs: u32, count: u32) {
    let tracers: Vec<i32> = (0..jobs)
        .map(|_| {
            fork(|| {
                (0..count).for_each(|_| follow_family());
                0
            })
        })
        .collect();
    tracers.into_iter().for_each(|p| wait_code(p, 0));
}

fn family() -> i32 {
    let children: Vec<i32> = (0..3)
        .map(|i| {
            fork(|| {
                raw_thread(THREAD_FLAGS, thread_exits);
                one_call(SYS_getpid);
                let grandchild = fork(|| 0);
                wait_code(grandchild, 0);
                if i == 0 { exec_self("exit", "0") } else { 0 }
            })
        })
        .collect();
    children.into_iter().for_each(|p| wait_code(p, 0));
    0
}

/// Follows a family until nobody is left; every system call stops.
fn follow_family() {
    let first = tracee(family);
    let all = PTRACE_O_TRACEFORK
        | PTRACE_O_TRACECLONE
        | PTRACE_O_TRACEVFORK
        | PTRACE_O_TRACEEXEC
        | PTRACE_O_TRACEEXIT
        | PTRACE_O_EXITKILL;
    options(first, GOOD | all as u64);
    go(PTRACE_SYSCALL, first);
    let mut status = 0;
    let mut ends = 0;
    while let Ok(pid) = sc!(SYS_wait4, -1i32, &raw mut status, __WALL, 0) {
        if WIFEXITED(status) || WIFSIGNALED(status) {
            assert!(status == 0 || status == 9 << 8, "{pid}: {}", describe(status));
            ends += 1;
            continue;
        }
        let signal = status >> 8;
        let pass = if signal == SIGCHLD { SIGCHLD } else { 0 };
        // It may have been killed in the meantime by the exec of another thread.
        match pt(PTRACE_SYSCALL as i32, pid as i32, 0, pass as u64) {
            Ok(_) | Err(ESRCH) => {}
            Err(e) => panic!("{}", errno_name(e)),
        }
    }
    // Seven processes, and of the threads all but the one that an exec may have ended unseen.
    assert!((7..=10).contains(&ends), "{ends} ends");
}
