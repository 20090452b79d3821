//! The way back into a program, as a table: who made the frame, which code segment, flags and
//! address it has, and what the program then sees. SYSRET and IRET differ in exactly these.
//!
//! Manual pages: sigreturn(2), ptrace(2), execve(2); Intel SDM, SYSRET, IRET. Reading order:
//! frames.rs, then this file. Neighbours: entry.rs, ptrace.rs, segments.rs.

use crate::frames::*;
use crate::regs::*;
use crate::sys::*;
use crate::{sc, tests};
use ::entry::{Exit, IretReason};
use std::arch::global_asm;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};

tests!("returns":
    from_sigreturn, from_a_seccomp_trap, into_a_handler, from_system_calls, from_a_traced_call,
    from_a_traced_exception, from_restarts, of_a_new_process, of_a_new_program, from_interrupts,
    off_the_last_page,
);

// ------------------------------------------------------------------------------------------------
// One signal makes the frame, another tells what came of it

static WANTED: [AtomicU64; GREGS] = [const { AtomicU64::new(0) }; GREGS];
static ORIGINAL: [AtomicU64; GREGS] = [const { AtomicU64::new(0) }; GREGS];
static SEEN: [AtomicU64; GREGS] = [const { AtomicU64::new(0) }; GREGS];
/// Signal, code, address.
static SIGNAL: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];

fn store(to: &[AtomicU64; GREGS], from: &Gregs) {
    to.iter().zip(from).for_each(|(to, &from)| to.store(from, SeqCst));
}

fn load(from: &[AtomicU64; GREGS]) -> Gregs {
    from.each_ref().map(|word| word.load(SeqCst))
}

// Handlers start with the program's AC, NT and ID: compiled code wants none of them.
global_asm!(
    ".macro limen_clean name, to",
    ".globl \\name",
    "\\name:",
    "push 0x202",
    "popfq",
    "jmp \\to",
    ".endm",
    "limen_clean limen_returns_edit, {edit}",
    "limen_clean limen_returns_catch, {catch}",
    "limen_clean limen_returns_catch_in_handler, {catch_in_handler}",
    edit = sym edit, catch = sym catch, catch_in_handler = sym catch_in_handler,
);

unsafe extern "C" {
    fn limen_returns_edit();
    fn limen_returns_catch();
    fn limen_returns_catch_in_handler();
}

fn gregs(context: *mut ucontext_t) -> *mut Gregs {
    // SAFETY: the kernel's frame lives until the handler returns; only the place is named.
    unsafe { (&raw mut (*context).uc_mcontext.gregs).cast() }
}

extern "C" fn edit(_: i32, _: usize, context: *mut ucontext_t) {
    let at = gregs(context);
    // SAFETY: the kernel made the context on this stack, where it stays until the handler returns.
    let mut frame = unsafe { at.read() };
    store(&ORIGINAL, &frame);
    let wanted = load(&WANTED);
    frame[..=G_FLAGS].copy_from_slice(&wanted[..=G_FLAGS]);
    frame[G_SEGMENTS] = wanted[G_SEGMENTS];
    // SAFETY: the kernel made the context on this stack, where it stays until the handler returns.
    unsafe { at.write(frame) };
}

fn note(signal: i32, info: *const Siginfo, context: *mut ucontext_t) -> Gregs {
    // SAFETY: the kernel made the context on this stack, where it stays until the handler returns.
    let frame = unsafe { gregs(context).read() };
    store(&SEEN, &frame);
    // SAFETY: the kernel's siginfo, likewise.
    let info = unsafe { &*info };
    let words = [signal as u64, info.code as u64, info.addr() as u64];
    // int3 and general protection have no address.
    let words = if info.code == OF_KERNEL { [words[0], words[1], 0] } else { words };
    SIGNAL.iter().zip(words).for_each(|(to, from)| to.store(from, SeqCst));
    frame
}

extern "C" fn catch(signal: i32, info: *const Siginfo, context: *mut ucontext_t) {
    note(signal, info, context);
    // SAFETY: the kernel made the context on this stack, where it stays until the handler returns.
    unsafe { gregs(context).write(load(&ORIGINAL)) };
}

/// The frame was a handler's: back to what that handler's signal interrupted.
extern "C" fn catch_in_handler(signal: i32, info: *const Siginfo, context: *mut ucontext_t) {
    const RDX: usize = 12;
    let inner = note(signal, info, context)[RDX] as *mut ucontext_t;
    // SAFETY: the third argument of a handler is its frame's context, below on the same stack.
    unsafe { gregs(context).write(gregs(inner).read()) };
    // SAFETY: likewise; the vector registers are where that frame has them.
    unsafe { (*context).uc_mcontext.fpregs = (*inner).uc_mcontext.fpregs };
}

/// Whoever catches the signals that end a frame, on a stack of its own.
fn catch_with(handler: unsafe extern "C" fn()) {
    let stack = [anon(65536) as usize, 0, 65536];
    sc!(SYS_sigaltstack, stack.as_ptr(), 0).is(0);
    for signal in [SIGTRAP, SIGSEGV, SIGBUS, SIGILL] {
        on_signal(signal, handler as *const () as usize, SA_SIGINFO | SA_ONSTACK, 0);
    }
}

fn take_seen() -> Seen {
    let [signal, code, address] = SIGNAL.each_ref().map(|word| word.swap(0, SeqCst));
    Seen { signal: signal as i32, code: code as i32, address, regs: load(&SEEN) }
}

/// Every frame of the table, left by sigreturn from a handler that `trigger` starts.
fn sigreturns(exits: &Exits, trigger: impl Fn()) {
    let go = |wanted: &Gregs| {
        store(&WANTED, wanted);
        exits.expect(Row::Syscall, model(wanted), &trigger);
        let seen = take_seen();
        if wanted[G_SEGMENTS] & 0xffff == CS32 && exits.0.is_none() {
            // Linux goes to 32-bit mode, where `nop; int3` means the same.
            assert!(seen.signal == SIGTRAP || seen.signal == SIGSEGV, "{seen:x?}");
        } else {
            judge(wanted, &seen);
        }
    };
    for flags in FLAGS {
        let flags = 0x202 | flags & SIGRETURN_SETS;
        for as_sysret in [true, false] {
            for rip in FAR.into_iter().chain([landing()]) {
                go(&frame(rip, flags, CS64, DATA, as_sysret));
            }
            // 32-bit code, data, null, the kernel's, a task's, of an empty LDT, beyond the table.
            for cs in [CS32, DATA, 3, 0x13, 0x43, 0x0f, 0xfff3] {
                go(&frame(landing(), flags, cs, DATA, as_sysret));
            }
            // Null, code, the kernel's, of an empty LDT.
            for ss in [3, CS64, 0x1b, 0x0f] {
                go(&frame(landing(), flags, CS64, ss, as_sysret));
            }
        }
    }
}

fn from_sigreturn() {
    catch_with(limen_returns_catch);
    on_signal(SIGUSR1, limen_returns_edit as *const () as usize, SA_SIGINFO, 0);
    let me = pid();
    sigreturns(&Exits::new(), || sc!(SYS_kill, me, SIGUSR1).is(0));
}

fn from_a_seccomp_trap() {
    // getppid is answered by SIGSYS, whose handler edits the frame.
    sc!(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0).is(0);
    let filter: [(u16, u8, u8, u32); 4] = [
        (0x20, 0, 0, 0),
        (0x15, 0, 1, SYS_getppid as u32),
        (6, 0, 0, 0x3_0000),
        (6, 0, 0, 0x7fff_0000),
    ];
    let program = (4u64, filter.as_ptr());
    catch_with(limen_returns_catch);
    on_signal(SIGSYS, limen_returns_edit as *const () as usize, SA_SIGINFO, 0);
    sc!(SYS_seccomp, 1, 0, &raw const program).is(0);
    sigreturns(&Exits::new(), || {
        let _ = sc!(SYS_getppid);
    });
}

/// Calls through `Regs` with each of the flags that POPF can set without a trap.
fn flags_of_popf() -> impl Iterator<Item = u64> {
    FLAGS.into_iter().filter(|flags| flags & (TF | RF | IOPL) == 0).chain([NT | AC | ID | DF])
}

fn call(number: i64, args: [u64; 4], flags: u64) -> (Regs, Regs) {
    let mut before = Regs::distinct(number, args);
    before.flags = 0x202 | flags;
    (before, before.syscall())
}

#[track_caller]
fn assert_same(before: &Regs, after: &Regs) {
    after.assert_kept(before);
    assert_eq!(after.flags & !0x8d5, before.flags & !0x8d5, "flags");
    // SAFETY: only the address is taken.
    assert_eq!(after.gp[CX], &raw const limen_regs_after as u64, "rcx");
    assert_eq!(after.gp[X11], after.flags, "r11");
}

fn into_a_handler() {
    // The handler's address and the flags it starts with are the program's choice.
    catch_with(limen_returns_catch_in_handler);
    let exits = Exits::new();
    let me = pid() as u64;
    for rip in FAR.into_iter().chain([landing()]) {
        on_signal(SIGUSR2, rip as usize, SA_SIGINFO | SA_NODEFER, 0);
        for flags in flags_of_popf() {
            let wanted = frame(rip, 0x202 | flags & !DF, CS64, DATA, true);
            let args = [me, SIGUSR2 as u64, 0, 0];
            // sigreturn restores neither NT nor ID, so that R11 does not fit the flags.
            let is_lost = flags & (NT | ID) != 0;
            let back = if is_lost { Exit::Iret(IretReason::R11Differs) } else { Exit::Sysret };
            let ways = [model(&wanted), back];
            let (mut before, after) =
                exits.expect_all(Row::Syscall, &ways, || call(SYS_kill, args, flags));
            before.flags &= !(NT | ID);
            after.assert_kept(&before);
            let seen = take_seen();
            // What the handler is given, and RCX and R11, which mean nothing to it.
            let mut wanted = seen.regs;
            (wanted[G_RIP], wanted[G_FLAGS], wanted[G_SEGMENTS]) =
                (rip, 0x202 | flags & !DF, CS64 | DATA << 48);
            judge(&wanted, &seen);
            assert_eq!((seen.regs[G_RAX], seen.regs[G_RDI]), (0, SIGUSR2 as u64));
            assert_eq!(seen.regs[G_RSP] % 16, 8, "the stack of a function's first instruction");
        }
    }
}

fn from_system_calls() {
    let exits = Exits::new();
    for flags in flags_of_popf() {
        for number in [SYS_getpid, SYS_sched_yield, SYS_close, 1999] {
            let (before, after) = exits
                .expect(Row::Syscall, Exit::Sysret, || call(number, [u64::MAX, 2, 3, 4], flags));
            assert_same(&before, &after);
        }
    }
}

fn of_a_new_process() {
    let exits = Exits::new();
    for flags in flags_of_popf() {
        exits.expect(Row::NewThread, Exit::Sysret, || {
            let (before, after) = call(SYS_fork, [0; 4], flags);
            assert_same(&before, &after);
            if after.gp[AX] == 0 {
                quit(33);
            }
            wait_code(after.gp[AX] as i32, 33);
        });
    }
}

fn from_restarts() {
    // A call that a stop or a handler interrupts is made again, at once or from a handler's frame.
    let exits = Exits::new();
    for (flags, signal) in flags_of_popf().flat_map(|f| [(f, SIGSTOP), (f, SIGUSR1)]) {
        let (r, w) = pipe();
        let child = fork(|| {
            on_signal(SIGUSR1, nothing as *const () as usize, SA_RESTART, 0);
            let mut byte = 0u8;
            let (before, after) = call(SYS_read, [r as u64, &raw mut byte as u64, 1, 0], flags);
            after.assert_kept(&before);
            // A handler leaves the program with ID and NT of its own end.
            let kept = if signal == SIGSTOP { NT | ID | AC } else { AC };
            i32::from(after.gp[AX] != 1 || after.flags & kept != before.flags & kept)
        });
        until_asleep(child);
        exits.expect(Row::Syscall, Exit::Sysret, || {
            sc!(SYS_kill, child, signal).is(0);
            if signal == SIGSTOP {
                let mut status = 0;
                sc!(SYS_wait4, child, &raw mut status, WUNTRACED, 0).is(child as usize);
                sc!(SYS_kill, child, SIGCONT).is(0);
            }
            write(w, b"x");
            wait_code(child, 0);
        });
        close(r);
        close(w);
    }
}

fn from_interrupts() {
    // Another process of the same CPU ends the loop: an interrupt has let it run.
    catch_with(limen_returns_catch);
    on_signal(SIGUSR1, limen_returns_edit as *const () as usize, SA_SIGINFO, 0);
    let word = &new_shared()[0];
    pin(0).is(0);
    // 1: mov (%rbx), %ecx; jrcxz 1b; nop; int3
    let spin = landing() + 64;
    sc!(SYS_mprotect, landing(), 4096, PROT_READ | PROT_WRITE).is(0);
    put_code(spin, &[0x8b, 0x0b, 0x67, 0xe3, 0xfb, 0x90, 0xcc]);
    let me = pid();
    for flags in FLAGS.into_iter().filter(|flags| flags & TF == 0) {
        let mut wanted = frame(spin, 0x202 | flags & SIGRETURN_SETS, CS64, DATA, true);
        wanted[G_RBX] = word as *const AtomicU32 as u64;
        word.store(0, SeqCst);
        let child = fork(|| {
            word.store(1, SeqCst);
            0
        });
        store(&WANTED, &wanted);
        sc!(SYS_kill, me, SIGUSR1).is(0);
        let mut seen = take_seen();
        wait_code(child, 0);
        assert_eq!((seen.regs[G_RIP], seen.regs[G_RCX]), (spin + 7, 1));
        (seen.regs[G_RIP], seen.regs[G_RCX]) = (landing() + 2, landing());
        (wanted[G_RIP], wanted[G_RCX]) = (landing(), landing());
        judge(&wanted, &seen);
    }
}

/// The highest page that a program can have, with these last bytes; none if something is there.
fn last_page(code: &[u8]) -> Option<u64> {
    let at = LIMIT - 4096;
    let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
    mmap(at as usize, 4096, PROT_READ | PROT_WRITE, flags, -1, 0).ok()?;
    put_code(LIMIT - code.len() as u64, code);
    Some(LIMIT - code.len() as u64)
}

fn off_the_last_page() {
    for beyond in [LIMIT, 1 << 47, !0 << 47, !0 << 12] {
        let fixed = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
        mmap(beyond as usize, 4096, PROT_READ, fixed, -1, 0).fails(ENOMEM);
    }
    // getpid; then nothing. RCX is the first address that no program has, but a canonical one: the
    // call's own frame goes back by SYSRET.
    let Some(at) = last_page(&[0xb8, 39, 0, 0, 0, 0x0f, 0x05]) else {
        return eprintln!("returns::off_the_last_page: the stack is there");
    };
    catch_with(limen_returns_catch);
    on_signal(SIGUSR1, limen_returns_edit as *const () as usize, SA_SIGINFO, 0);
    let (exits, me) = (Exits::new(), pid());
    store(&WANTED, &frame(at, 0x202, CS64, DATA, true));
    exits.expect(Row::Syscall, Exit::Sysret, || {
        sc!(SYS_kill, me, SIGUSR1).is(0);
    });
    let seen = take_seen();
    assert_eq!((seen.signal, seen.code, seen.address), (SIGSEGV, MAPERR, LIMIT));
    assert_eq!((seen.regs[G_RIP], seen.regs[G_RCX], seen.regs[G_RAX]), (LIMIT, LIMIT, me as u64));
    // A system call there with a frame whose bytes lie across the end of user space.
    let mut wanted = frame(at, 0x202, CS64, DATA, true);
    wanted[G_RSP] = LIMIT - 8;
    store(&WANTED, &wanted);
    sc!(SYS_kill, me, SIGUSR1).is(0);
    assert_eq!(take_seen().regs[G_RSP], LIMIT - 8);
}

// ------------------------------------------------------------------------------------------------
// The frame of a stopped process is its tracer's

fn pt(request: u32, pid: i32, addr: u64, data: u64) -> Res {
    sc!(SYS_ptrace, request, pid, addr, data)
}

#[track_caller]
fn stop(pid: i32, request: u32, number: i32) {
    pt(request, pid, 0, 0).is(0);
    let mut status = 0;
    sc!(SYS_wait4, pid, &raw mut status, __WALL, 0).is(pid as usize);
    assert_eq!(status, number << 8 | 0x7f, "{status:#x}, expected stop {number:#x}");
}

/// `user_regs_struct` in the order of a signal frame.
fn to_gregs(r: &user_regs_struct) -> Gregs {
    let mut g: Gregs = [0; GREGS];
    g[..=G_FLAGS].copy_from_slice(&[
        r.r8, r.r9, r.r10, r.r11, r.r12, r.r13, r.r14, r.r15, r.rdi, r.rsi, r.rbp, r.rbx, r.rdx,
        r.rax, r.rcx, r.rsp, r.rip, r.eflags,
    ]);
    g[G_SEGMENTS] = r.cs | r.ss << 48;
    g
}

fn get_regs(pid: i32) -> user_regs_struct {
    // SAFETY: a structure of plain numbers, of which zero is one.
    let mut r: user_regs_struct = unsafe { std::mem::zeroed() };
    pt(PTRACE_GETREGS, pid, 0, &raw mut r as u64).is(0);
    r
}

/// As the tracer of `old` would set them. Not in a system call, so that none is restarted.
fn from_gregs(g: &Gregs, old: &user_regs_struct) -> user_regs_struct {
    user_regs_struct {
        r8: g[0],
        r9: g[1],
        r10: g[2],
        r11: g[3],
        r12: g[4],
        r13: g[5],
        r14: g[6],
        r15: g[7],
        rdi: g[8],
        rsi: g[9],
        rbp: g[10],
        rbx: g[11],
        rdx: g[12],
        rax: g[13],
        rcx: g[14],
        rsp: g[15],
        rip: g[16],
        eflags: g[17],
        cs: g[18] & 0xffff,
        ss: g[18] >> 48,
        orig_rax: u64::MAX,
        ..*old
    }
}

/// Sets the frame, lets the tracee go on, and judges the signal that stops it.
fn send_there(exits: &Exits, row: Row, pid: i32, wanted: &Gregs, old: &user_regs_struct) {
    let regs = from_gregs(wanted, old);
    let exit = model(wanted);
    if let Err(error) = pt(PTRACE_SETREGS, pid, 0, &raw const regs as u64) {
        // Limen refuses addresses that are not canonical at once.
        assert!(error == EIO && exits.0.is_some() && exit == Exit::Refuse, "{wanted:x?}");
        return;
    }
    let rip = wanted[G_RIP];
    let cs = wanted[G_SEGMENTS] & 0xffff;
    let lands = cs == CS32 || rip == landing() && exit != Exit::Refuse;
    let mut status = 0;
    exits.expect(row, exit, || {
        pt(PTRACE_CONT, pid, 0, 0).is(0);
        sc!(SYS_wait4, pid, &raw mut status, __WALL, 0).is(pid as usize);
    });
    let signal = status >> 8;
    assert!(lands && signal == SIGTRAP || signal == SIGSEGV, "{status:#x} of {wanted:x?}");
    let mut info = Siginfo::default();
    pt(PTRACE_GETSIGINFO, pid, 0, &raw mut info as u64).is(0);
    if cs == CS32 && exits.0.is_none() {
        return;
    }
    let mut regs = to_gregs(&get_regs(pid));
    let address = if info.code == OF_KERNEL { 0 } else { info.addr() as u64 };
    regs[G_VECTOR] = if info.code == MAPERR { 14 } else { 13 };
    judge(wanted, &Seen { signal, code: info.code, address, regs });
}

/// Every frame of the table, set by a tracer; `prepare` brings the tracee to a stop again.
fn traced(row: Row, prepare: impl Fn(i32)) {
    landing();
    let pid = fork(|| {
        pt(PTRACE_TRACEME, 0, 0, 0).is(0);
        sc!(SYS_kill, pid(), SIGSTOP).is(0);
        loop {
            let _ = sc!(SYS_getppid);
        }
    });
    let mut status = 0;
    sc!(SYS_wait4, pid, &raw mut status, __WALL, 0).is(pid as usize);
    let good = get_regs(pid);
    // Selectors that no program can have: null, and of another privilege.
    for (place, bad) in [(17, 0), (17, 0x30), (17, 0x10), (20, 0), (20, 0x28), (20, 0x1a)] {
        pt(PTRACE_POKEUSER, pid, place * 8, bad).fails(EIO);
    }
    let exits = Exits::new();
    let go = |rip, flags: u64, cs, ss, as_sysret| {
        pt(PTRACE_SETREGS, pid, 0, &raw const good as u64).is(0);
        prepare(pid);
        let wanted = frame(rip, 0x202 | flags & TRACER_SETS, cs, ss, as_sysret);
        send_there(&exits, row, pid, &wanted, &good);
    };
    for flags in FLAGS {
        for as_sysret in [true, false] {
            for rip in FAR.into_iter().chain([landing()]) {
                go(rip, flags, CS64, DATA, as_sysret);
            }
            for cs in [CS32, DATA, 0x43, 0x0f, 0xfff3] {
                go(landing(), flags, cs, DATA, as_sysret);
            }
            for ss in [3, CS64, 0x0f] {
                go(landing(), flags, CS64, ss, as_sysret);
            }
        }
    }
    sc!(SYS_kill, pid, SIGKILL).is(0);
    wait_signal(pid, SIGKILL);
}

fn from_a_traced_call() {
    // From the stop at the entry of a call to the one at its end.
    traced(Row::Syscall, |pid| {
        pt(PTRACE_SETOPTIONS, pid, 0, PTRACE_O_TRACESYSGOOD as u64).is(0);
        stop(pid, PTRACE_SYSCALL, SIGTRAP | 0x80);
        stop(pid, PTRACE_SYSCALL, SIGTRAP | 0x80);
    });
}

fn from_a_traced_exception() {
    traced(Row::Vector, |pid| {
        let old = get_regs(pid);
        let there = user_regs_struct { rip: landing() + 1, orig_rax: u64::MAX, ..old };
        pt(PTRACE_SETREGS, pid, 0, &raw const there as u64).is(0);
        stop(pid, PTRACE_CONT, SIGTRAP);
    });
}

fn of_a_new_program() {
    // Nothing of the old program is in the registers, and its frame may be edited as any other.
    let path = c(&own_path());
    for flags in flags_of_popf() {
        let pid = fork(|| {
            pt(PTRACE_TRACEME, 0, 0, 0).is(0);
            let argv = [path.as_ptr(), std::ptr::null()];
            call(SYS_execve, [path.as_ptr() as u64, argv.as_ptr() as u64, 0, 0], flags);
            1
        });
        let mut status = 0;
        sc!(SYS_wait4, pid, &raw mut status, __WALL, 0).is(pid as usize);
        assert_eq!(status, SIGTRAP << 8 | 0x7f);
        let r = get_regs(pid);
        let g = to_gregs(&r);
        assert_eq!((r.eflags, r.cs, r.ss), (0x202, CS64, DATA));
        // RCX and R11 may be what SYSRET makes of them.
        for i in (0..=G_RCX).filter(|i| ![G_R11, G_RCX].contains(i)) {
            assert_eq!(g[i], 0, "word {i}");
        }
        assert!([0, r.rip].contains(&r.rcx) && [0, 0x202].contains(&r.r11), "{g:x?}");
        assert_eq!((r.fs_base, r.gs_base), (0, 0));
        pt(PTRACE_POKEDATA, pid, r.rip, 0xcc90).is(0);
        let wanted = frame(r.rip, 0x202 | flags & TRACER_SETS, CS64, DATA, true);
        let regs = from_gregs(&wanted, &r);
        pt(PTRACE_SETREGS, pid, 0, &raw const regs as u64).is(0);
        Exits::new().expect(Row::Syscall, model(&wanted), || stop(pid, PTRACE_CONT, SIGTRAP));
        let after = to_gregs(&get_regs(pid));
        assert_eq!(after[G_RIP], r.rip + 2);
        assert_eq!((after[G_FLAGS], &after[..G_RIP]), (wanted[G_FLAGS], &wanted[..G_RIP]));
        sc!(SYS_kill, pid, SIGKILL).is(0);
        wait_signal(pid, SIGKILL);
    }
}
