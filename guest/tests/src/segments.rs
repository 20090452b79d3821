//! Segments and traps at the border: selectors and bases across every way out of and into a
//! program, the 32-bit code segment (which Limen does not have, and must refuse without harm), and
//! debug exceptions that hit the first instruction of the kernel's entries.
//!
//! Manual pages: arch_prctl(2), ptrace(2); Intel SDM, MOV (to SS), RDGSBASE, 17.3.1. Neighbours:
//! entry.rs, returns.rs.

use crate::memory::fault;
use crate::sys::*;
use crate::{sc, tests};
use std::arch::{asm, global_asm};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};

tests!("segments":
    gs_base_by_instruction, bad_bases_fault, fs_base_by_instruction, bases_and_tracers,
    traps_with_a_kernels_base,
    thirty_two_bit_code, far_returns, stack_selector_beside_interrupts, selectors_stay_private,
    traps_behind_mov_ss, steps_over_calls, traps_in_a_loop, frames_of_no_code_segment,
);

/// AT_HWCAP2 bit 1: the kernel lets programs use RDGSBASE and its relatives.
fn has_fsgsbase() -> bool {
    // SAFETY: reads the auxiliary vector.
    unsafe { getauxval(26) & 2 != 0 }
}

fn get_gs() -> u64 {
    let base;
    // SAFETY: the instruction is there (`has_fsgsbase`), and reads a register.
    unsafe { asm!("rdgsbase {}", out(reg) base) };
    base
}

fn set_gs(base: u64) {
    // SAFETY: nothing of this program uses GS; callers give canonical addresses.
    unsafe { asm!("wrgsbase {}", in(reg) base) };
}

fn gs_of_kernel_view() -> u64 {
    let mut base = 0u64;
    sc!(SYS_arch_prctl, 0x1004, &raw mut base).is(0);
    base
}

/// Bases of all kinds: a program may load any canonical one.
const BASES: [u64; 6] =
    [0, 1, 0x1234_5678_9000, (1 << 47) - 1, 0xffff_8000_0000_0000, 0xffff_ffff_8100_0000];

static IN_HANDLER: AtomicU64 = AtomicU64::new(0);

extern "C" fn note_gs(_: i32) {
    IN_HANDLER.store(get_gs(), SeqCst);
}

fn gs_base_by_instruction() {
    if !has_fsgsbase() {
        return eprintln!("segments::gs_base_by_instruction: this CPU has no RDGSBASE");
    }
    pin(0).is(0);
    on_signal(SIGUSR1, note_gs as *const () as usize, 0, 0);
    let me = pid();
    for base in BASES {
        set_gs(base);
        assert_eq!(get_gs(), base);
        assert_eq!(gs_of_kernel_view(), base, "arch_prctl");
        sc!(SYS_kill, me, SIGUSR1).is(0);
        assert_eq!((IN_HANDLER.load(SeqCst), get_gs()), (base, base), "signals");
        // A child has it too, changes it, and takes turns on this CPU.
        let child = fork(|| {
            let inherited = get_gs();
            set_gs(base ^ 0x7000);
            for _ in 0..20 {
                sc!(SYS_sched_yield).is(0);
                assert_eq!(get_gs(), base ^ 0x7000);
            }
            i32::from(inherited != base)
        });
        for _ in 0..20 {
            sc!(SYS_sched_yield).is(0);
            assert_eq!(get_gs(), base, "switches");
        }
        wait_code(child, 0);
        assert_eq!(get_gs(), base);
    }
    set_gs(0);
}

fn bad_bases_fault() {
    if !has_fsgsbase() {
        return eprintln!("segments::bad_bases_fault: this CPU has no WRGSBASE");
    }
    for base in [1u64 << 47, 1 << 56, 0x7fff << 48] {
        let got = fault(|| {
            set_gs(base);
            // Where the emulator lets it pass, the kernel must still go on.
            assert_eq!(sc!(SYS_arch_prctl, 0x1002, 0x1000), Ok(0));
        });
        assert_eq!((got.0, got.1), (SIGSEGV, 0x80));
    }
}

fn fs_base_by_instruction() {
    // FS leads to the thread's own data: nothing compiled may run before it is back.
    if !has_fsgsbase() {
        return eprintln!("segments::fs_base_by_instruction: this CPU has no RDFSBASE");
    }
    pin(0).is(0);
    let child = fork(|| {
        for _ in 0..300 {
            sc!(SYS_sched_yield).is(0);
        }
        0
    });
    for base in BASES {
        let seen: u64;
        // SAFETY: sched_yield changes rax, rcx, r11; FS has its old base at the end.
        unsafe {
            asm!("rdfsbase {old}", "wrfsbase {new}", "2:", "mov eax, 24", "syscall", "dec {n:e}",
                 "jnz 2b", "rdfsbase {new}", "wrfsbase {old}",
                 old = out(reg) _, new = inout(reg) base => seen, n = inout(reg) 20 => _,
                 out("rax") _, out("rcx") _, out("r11") _);
        }
        assert_eq!(seen, base);
    }
    wait_code(child, 0);
}

fn pt(request: u32, pid: i32, addr: u64, data: u64) -> Res {
    sc!(SYS_ptrace, request, pid, addr, data)
}

/// A child that waits to be told to go on by its tracer, and then runs `f`.
fn tracee(f: impl FnOnce() -> i32) -> i32 {
    let pid = fork(|| {
        pt(PTRACE_TRACEME, 0, 0, 0).is(0);
        sc!(SYS_kill, pid(), SIGSTOP).is(0);
        f()
    });
    let mut status = 0;
    sc!(SYS_wait4, pid, &raw mut status, __WALL, 0).is(pid as usize);
    pid
}

fn get_regs(pid: i32) -> user_regs_struct {
    // SAFETY: a structure of plain numbers, of which zero is one.
    let mut r: user_regs_struct = unsafe { std::mem::zeroed() };
    pt(PTRACE_GETREGS, pid, 0, &raw mut r as u64).is(0);
    r
}

/// Lets the tracee run to its end, through at most `most` stops by SIGTRAP; how many there were.
#[track_caller]
fn run_through_traps(pid: i32, most: u32) -> u32 {
    for stops in 0..=most {
        pt(PTRACE_CONT, pid, 0, 0).is(0);
        let mut status = 0;
        sc!(SYS_wait4, pid, &raw mut status, __WALL, 0).is(pid as usize);
        if WIFEXITED(status) && WEXITSTATUS(status) == 0 {
            return stops;
        }
        assert_eq!(status, SIGTRAP << 8 | 0x7f, "{}", describe(status));
    }
    panic!("more than {most} traps");
}

fn bases_and_tracers() {
    if !has_fsgsbase() {
        return eprintln!("segments::bases_and_tracers: this CPU has no RDGSBASE");
    }
    for base in BASES {
        let pid = tracee(|| {
            set_gs(base);
            sc!(SYS_kill, pid(), SIGTRAP).is(0);
            i32::from(get_gs() != 0x5000)
        });
        pt(PTRACE_CONT, pid, 0, 0).is(0);
        let mut status = 0;
        sc!(SYS_wait4, pid, &raw mut status, __WALL, 0).is(pid as usize);
        let r = get_regs(pid);
        assert_eq!(r.gs_base, base, "the tracer sees what the program loaded");
        // Registers that come from such a stop can be put back but for a kernel's address.
        let back = user_regs_struct { gs_base: 0x5000, ..r };
        pt(PTRACE_SETREGS, pid, 0, &raw const back as u64).is(0);
        assert_eq!(get_regs(pid).gs_base, 0x5000);
        assert_eq!(run_through_traps(pid, 0), 0);
    }
}

fn traps_with_a_kernels_base() {
    // Entries that cannot know whose GS it is must not guess by its value.
    if !has_fsgsbase() {
        return eprintln!("segments::traps_with_a_kernels_base: this CPU has no RDGSBASE");
    }
    on_signal(SIGTRAP, nothing as *const () as usize, 0, 0);
    for base in BASES {
        set_gs(base);
        for _ in 0..20 {
            // SAFETY: int3, and a step over a system call; the handler does nothing.
            unsafe {
                asm!("int3", "pushfq", "or dword ptr [rsp], 0x100", "mov eax, 24", "popfq",
                     "syscall", "nop", "pushfq", "and dword ptr [rsp], ~0x100", "popfq",
                     out("rax") _, out("rcx") _, out("r11") _);
            }
        }
        assert_eq!(get_gs(), base);
    }
    set_gs(0);
}

fn thirty_two_bit_code() {
    // Linux lets a program go to 32-bit code by itself. Limen has no such segment: the jump is a
    // protection fault, and the program's.
    let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT;
    let page = mmap(0, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, flags, -1, 0).must();
    // mov $20, %eax (getpid of 32-bit programs); int $0x80; int3
    let code = [0xb8u8, 20, 0, 0, 0, 0xcd, 0x80, 0xcc];
    // SAFETY: the page is this test's own.
    unsafe { std::ptr::copy_nonoverlapping(code.as_ptr(), page as *mut u8, code.len()) };
    for (at, selector) in [(page, 0x23u64), (page + 7, 0x23)] {
        if is_limen() {
            let got = fault(|| far_jump(at as u64, selector));
            assert_eq!((got.0, got.1), (SIGSEGV, 0x80), "{selector:#x}");
        } else {
            // The stack is out of reach of 32-bit code, so it is left to no handler.
            let status = wait(fork(|| {
                far_jump(at as u64, selector);
                0
            }));
            assert!([SIGSEGV, SIGTRAP].contains(&WTERMSIG(status)), "{}", describe(status));
        }
    }
    for selector in [0, 3, 0x10, 0x13, 0x18, 0x2b, 0x40, 0x0f, 0xfff3] {
        let got = fault(|| far_jump(page as u64, selector));
        assert_eq!((got.0, got.1), (SIGSEGV, 0x80), "{selector:#x}");
    }
    // To 64-bit code it is a jump as any other; the trap is the int3.
    assert_eq!(fault(|| far_jump(page as u64 + 7, 0x33)), (SIGTRAP, 0x80, 0));
}

fn far_jump(to: u64, selector: u64) {
    // The form with a 32-bit address, which all CPUs have: pages of such tests are low.
    let place = to & 0xffff_ffff | selector << 32;
    // SAFETY: ends in a fault or a trap, in a child.
    unsafe { asm!("jmp fword ptr [{}]", in(reg) &raw const place) };
}

fn far_returns() {
    // IRET and RETF of the program itself: to its own segment they work, with every flag it may
    // have; to another they are its fault. (Emulators that fault for ever are stopped.)
    sc!(SYS_alarm, 2).is(0);
    for flags in [0x202u64, 0x4202, 0x40202, 0x20_0202, 0x602, 0x1_0202] {
        let (cs, seen): (u64, u64);
        // SAFETY: goes to the next instruction, with these flags and the same stack.
        unsafe {
            asm!("mov {rsp}, rsp", "mov {cs:e}, 0x2b", "push {cs}", "push {rsp}", "push {flags}",
                 "push 0x33", "lea {cs}, [rip + 2f]", "push {cs}", "iretq", "2:", "pushfq",
                 "pop {flags}", "push 0x202", "popfq", "mov {cs:e}, cs",
                 rsp = out(reg) _, cs = out(reg) cs, flags = inout(reg) flags => seen);
        }
        assert_eq!((cs, seen | 1 << 16), (0x33, flags | 1 << 16));
    }
    for selector in [0u64, 0x10, 0x2b, 0x0f] {
        let got = fault(|| {
            // SAFETY: ends in a fault, in a child.
            unsafe { asm!("push {}", "push 0", "retfq", in(reg) selector) };
        });
        assert_eq!((got.0, got.1), (SIGSEGV, 0x80), "{selector:#x}");
    }
}

fn stack_selector_beside_interrupts() {
    // An interrupt leaves SS null in the kernel; a thread that then goes back by SYSRET must have
    // its own. The sibling does nothing but be interrupted.
    pin(0).is(0);
    let word = &new_shared()[0];
    let child = fork(|| {
        while word.load(SeqCst) == 0 {
            std::hint::spin_loop();
        }
        0
    });
    for _ in 0..50 {
        sc!(SYS_sched_yield).is(0);
        let (ss, cs, is_usable): (u32, u32, u8);
        // SAFETY: reads selectors, asks about them, and uses the stack.
        unsafe {
            asm!("mov {0:e}, ss", "mov {1:e}, cs", "verw {0:x}", "setz {2}",
                 "push {0:r}", "pop {0:r}",
                 out(reg) ss, out(reg) cs, out(reg_byte) is_usable);
        }
        assert_eq!((ss, cs, is_usable), (0x2b, 0x33, 1));
    }
    word.store(1, SeqCst);
    wait_code(child, 0);
}

fn selectors() -> [u32; 4] {
    let (ds, es, fs, gs);
    // SAFETY: reading a selector changes nothing and touches no memory.
    unsafe {
        asm!("mov {:e}, ds", "mov {:e}, es", "mov {:e}, fs", "mov {:e}, gs",
             out(reg) ds, out(reg) es, out(reg) fs, out(reg) gs);
    }
    [ds, es, fs, gs]
}

fn selectors_stay_private() {
    // What one process loads into DS, ES and GS is not seen by another, and it keeps it.
    pin(0).is(0);
    assert_eq!(selectors(), [0; 4], "a new program's");
    let (r, w) = pipe();
    let child = fork(|| {
        // SAFETY: 64-bit code uses none of them.
        unsafe { asm!("mov ds, {0:e}", "mov es, {0:e}", "mov gs, {0:e}", in(reg) 0x2b) };
        write(w, b"x");
        for _ in 0..20 {
            sc!(SYS_sched_yield).is(0);
            assert_eq!(selectors(), [0x2b, 0x2b, 0, 0x2b], "its own");
        }
        in_child(|| assert_eq!(selectors(), [0x2b, 0x2b, 0, 0x2b], "inherited"));
        0
    });
    read(r, 1);
    for _ in 0..20 {
        sc!(SYS_sched_yield).is(0);
        assert_eq!(selectors(), [0; 4], "another's");
    }
    wait_code(child, 0);
}

// Each loads SS from watched memory, so that the trap of the watch comes after the next
// instruction: in the kernel, before its first one.
global_asm!(
    ".macro limen_behind name, insns:vararg",
    ".globl limen_behind_\\name",
    "limen_behind_\\name:",
    "mov eax, 39",
    "mov ss, [rdi]",
    "\\insns",
    "ret",
    ".endm",
    "limen_behind syscall, syscall",
    "limen_behind int3, int3",
    "limen_behind ud2, ud2",
    "limen_behind int80, int 0x80",
    "limen_behind cli, cli",
    "limen_behind nop, nop",
    "limen_behind load, mov rax, [0x10]",
);

unsafe extern "C" {
    fn limen_behind_syscall(ss: *const u16);
    fn limen_behind_int3(ss: *const u16);
    fn limen_behind_ud2(ss: *const u16);
    fn limen_behind_int80(ss: *const u16);
    fn limen_behind_cli(ss: *const u16);
    fn limen_behind_nop(ss: *const u16);
    fn limen_behind_load(ss: *const u16);
}

fn traps_behind_mov_ss() {
    let runs: [unsafe extern "C" fn(*const u16); 7] = [
        limen_behind_syscall,
        limen_behind_int3,
        limen_behind_ud2,
        limen_behind_int80,
        limen_behind_cli,
        limen_behind_nop,
        limen_behind_load,
    ];
    let watched: &'static u64 = Box::leak(Box::new(0x2b));
    for run in runs {
        let pid = tracee(|| {
            // An exception ends it; a system call or a trap does not.
            for signal in [SIGILL, SIGSEGV] {
                on_signal(signal, quit_well as *const () as usize, 0, 0);
            }
            // SAFETY: one of the above, with a stack selector for programs.
            unsafe { run(std::ptr::from_ref(watched).cast()) };
            0
        });
        let debug = |i: u64| 848 + 8 * i;
        pt(PTRACE_POKEUSER, pid, debug(0), std::ptr::from_ref(watched) as u64).is(0);
        // Reads and writes, two bytes.
        pt(PTRACE_POKEUSER, pid, debug(7), 1 | 0b0111 << 16).is(0);
        let mut stops = 0;
        loop {
            pt(PTRACE_CONT, pid, 0, 0).is(0);
            let mut status = 0;
            sc!(SYS_wait4, pid, &raw mut status, __WALL, 0).is(pid as usize);
            if WIFEXITED(status) {
                assert_eq!(WEXITSTATUS(status), 0);
                break;
            }
            assert!(WIFSTOPPED(status), "{}", describe(status));
            if WSTOPSIG(status) != SIGTRAP {
                // Its handler ends it.
                pt(PTRACE_CONT, pid, 0, WSTOPSIG(status) as u64).is(0);
                wait_code(pid, 0);
                break;
            }
            stops += 1;
            assert!(stops <= 4, "{stops} traps");
        }
    }
}

extern "C" fn quit_well(_: i32) {
    quit(0);
}

static STEPS: [AtomicU64; 8] = [const { AtomicU64::new(0) }; 8];
static TAKEN: AtomicU32 = AtomicU32::new(0);

extern "C" fn note_step(_: i32, _: usize, context: *mut ucontext_t) {
    let n = TAKEN.fetch_add(1, SeqCst) as usize;
    // SAFETY: the kernel's frame lives until the handler returns.
    let rip = unsafe { (*context).uc_mcontext.gregs[REG_RIP as usize] };
    STEPS[n.min(7)].store(rip as u64, SeqCst);
}

global_asm!(
    ".globl limen_steps",
    "limen_steps:",
    "pushfq",
    "or dword ptr [rsp], 0x100",
    "mov eax, 39",
    "popfq",
    "syscall",
    ".globl limen_steps_after",
    "limen_steps_after:",
    "nop",
    "pushfq",
    "and dword ptr [rsp], ~0x100",
    "popfq",
    "ret",
);

unsafe extern "C" {
    fn limen_steps();
    static limen_steps_after: u8;
}

fn steps_over_calls() {
    // SYSCALL masks the trap flag, and SYSRET would trap before the next instruction: the first
    // trap comes after it.
    on_signal(SIGTRAP, note_step as *const () as usize, SA_SIGINFO, 0);
    // SAFETY: leaves flags and scratch registers changed, as a call may.
    unsafe { limen_steps() };
    // SAFETY: only the address is taken.
    let after = &raw const limen_steps_after as u64;
    let taken = TAKEN.load(SeqCst) as usize;
    let steps: Vec<u64> = STEPS[..taken.min(8)].iter().map(|s| s.load(SeqCst) - after).collect();
    assert_eq!(steps, [1, 2, 9, 10], "offsets of the traps");
}

fn traps_in_a_loop() {
    // A trap flag that the handler's return sets again and again: the program goes on.
    extern "C" fn again(_: i32, _: usize, context: *mut ucontext_t) {
        let n = TAKEN.fetch_add(1, SeqCst);
        // SAFETY: the kernel's frame lives until the handler returns.
        let flags = unsafe { &mut (*context).uc_mcontext.gregs[REG_EFL as usize] };
        *flags = if n < 200 { *flags | 0x100 } else { *flags & !0x100 };
    }
    on_signal(SIGTRAP, again as *const () as usize, SA_SIGINFO, 0);
    let mut turns = 0u64;
    // SAFETY: counts; the trap flag comes and goes by the handler.
    unsafe {
        asm!("int3", "2:", "inc {0}", "cmp {0}, 500", "jb 2b", inout(reg) turns);
    }
    assert_eq!((turns, TAKEN.load(SeqCst)), (500, 201));
}

/// Bit of `uc_flags`: SS is to be restored as it stands.
const STRICT_SS: u64 = 4;

/// A frame that leads to no code segment faults on the way out; the next frame tells of it, and
/// does not promise for its SS.
fn frames_of_no_code_segment() {
    extern "C" fn bend(_: i32, _: usize, context: *mut ucontext_t) {
        // SAFETY: the frame of this handler.
        let context = unsafe { &mut *context };
        assert_eq!(context.uc_flags & STRICT_SS, STRICT_SS, "of 64-bit code");
        context.uc_mcontext.gregs[REG_CSGSFS as usize] &= !0xffff;
    }
    extern "C" fn look(_: i32, _: usize, context: *mut ucontext_t) {
        // SAFETY: the kernel hands the frame of this handler, which nobody else holds.
        let context = unsafe { &*context };
        let segment = context.uc_mcontext.gregs[REG_CSGSFS as usize] & 0xffff;
        let is_right = segment == 3 && context.uc_flags & STRICT_SS == 0;
        sc!(SYS_exit_group, if is_right { 7 } else { 1 }).must();
    }
    let child = fork(|| {
        on_signal(SIGUSR1, bend as *const () as usize, SA_SIGINFO, 0);
        on_signal(SIGSEGV, look as *const () as usize, SA_SIGINFO, 0);
        sc!(SYS_kill, pid(), SIGUSR1).is(0);
        2
    });
    wait_code(child, 7);
}
