//! The border itself: what a system call, an exception and their returns leave behind.
//!
//! A kernel that returns by SYSRET must not do so where SYSRET would differ from IRET, and may
//! leak nothing through the registers it does not restore. Manual pages: syscall(2),
//! sigaction(2); Intel SDM, SYSCALL, SYSRET, RFLAGS.

use crate::memory::fault;
use crate::regs::*;
use crate::sys::*;
use crate::{sc, tests};
use std::arch::{asm, global_asm};

tests!("entry":
    registers_survive_calls, registers_survive_blocking_calls, rcx_and_r11_are_defined,
    direction_flag_survives, alignment_flag_survives, nested_task_flag_survives,
    id_flag_survives, unknown_numbers, high_half_of_rax_counts, x32_numbers,
    upper_argument_bits_are_used, vectors_survive, avx_survives_switches, mxcsr_and_x87_survive,
    breakpoint, invalid_opcode, divide_error, general_protection, privileged_instructions,
    stack_fault_address, int_80_of_64_bit, icebp_and_single_step, syscall_at_page_end,
    iret_to_bad_rip_faults, port_io_faults, segment_loads, umip_or_emulated, simd_exception,
    interrupt_vectors_are_closed, sysenter_is_survivable,
);

fn registers_survive_calls() {
    let mut ts = [0u64; 2];
    let t = &raw mut ts as u64;
    let calls: [(i64, [u64; 4]); 6] = [
        (SYS_getpid, [1, 2, 3, 4]),
        (SYS_sched_yield, [5, 6, 7, 8]),
        (SYS_clock_gettime, [1, t, 7, 8]),
        (SYS_read, [u64::MAX, t, 8, 9]),
        (SYS_write, [u64::MAX, t, 8, 9]),
        (SYS_close, [u64::MAX, 3, 8, 9]),
    ];
    for (nr, args) in calls {
        let before = Regs::distinct(nr, args);
        before.syscall().assert_kept(&before);
    }
}

fn registers_survive_blocking_calls() {
    // The slow way out: the call sleeps, another process runs, and the return may be by IRET.
    let (r, w) = pipe();
    let (back_r, back_w) = pipe();
    let child = fork(|| {
        for i in 0..50 {
            read(back_r, 1);
            write(w, &[i]);
        }
        0
    });
    let mut byte = 0u8;
    for i in 0..50 {
        write(back_w, b"x");
        let before = Regs::distinct(SYS_read, [r as u64, &raw mut byte as u64, 1, 0]);
        let after = before.syscall();
        after.assert_kept(&before);
        // SAFETY: written by the kernel.
        assert_eq!((after.gp[AX], unsafe { (&raw const byte).read_volatile() }), (1, i));
    }
    wait_code(child, 0);
}

fn rcx_and_r11_are_defined() {
    let before = Regs::distinct(SYS_getpid, [0; 4]);
    let after = before.syscall();
    assert_eq!(after.gp[AX], pid() as u64);
    // SAFETY: only the address is taken.
    assert_eq!(after.gp[CX], &raw const limen_regs_after as u64, "rcx is the return address");
    assert_eq!(after.gp[X11] & !2, after.flags & !2, "r11 is the flags");
}

#[track_caller]
fn flag_survives(bits: u64) {
    for nr in [SYS_getpid, SYS_sched_yield, 1999] {
        let mut before = Regs::distinct(nr, [0; 4]);
        before.flags |= bits;
        let after = before.syscall();
        after.assert_kept(&before);
        assert_eq!(after.flags & bits, bits, "call {nr}");
    }
}

fn direction_flag_survives() {
    flag_survives(1 << 10);
}

fn alignment_flag_survives() {
    flag_survives(1 << 18);
}

fn nested_task_flag_survives() {
    flag_survives(1 << 14);
}

fn id_flag_survives() {
    flag_survives(1 << 21);
}

fn unknown_numbers() {
    for nr in [340usize, 420, 500, 511, 548, 999, 4096, 65535, 65536, 0x3fff_ffff, 0x7fff_ffff] {
        sc!(nr, 0, 0, 0).fails(ENOSYS);
    }
    for nr in [-1i32, -2, -38, i32::MIN, i32::MIN + 1] {
        sc!(nr, 0, 0, 0).fails(ENOSYS);
    }
}

fn high_half_of_rax_counts() {
    // Linux takes the number as a signed 32-bit value: the high half is not looked at.
    for high in [1u64 << 32, 0xffff_ffff_0000_0000, 1 << 63] {
        let before = Regs::distinct((high | SYS_getpid as u64) as i64, [0; 4]);
        assert_eq!(before.syscall().gp[AX], pid() as u64, "{high:#x}");
    }
}

fn x32_numbers() {
    // Bit 30 asks for the x32 table, which this kernel is built without.
    sc!(0x4000_0000usize | SYS_getpid as usize).fails(ENOSYS);
    sc!(0x4000_0000usize + 520).fails(ENOSYS);
}

fn upper_argument_bits_are_used() {
    // A descriptor is 32 bits wide: 1 << 32 is descriptor 0, a length is 64 bits wide.
    let (r, w) = pipe();
    write(w, b"ab");
    let mut b = [0u8; 2];
    sc!(SYS_read, r as usize | 7 << 32, b.as_mut_ptr(), 2).is(2);
    assert_eq!(&b, b"ab");
    sc!(SYS_write, w, b.as_ptr(), usize::MAX).fails(EFAULT);
}

fn vectors_survive() {
    for nr in [SYS_getpid, SYS_sched_yield, SYS_fork] {
        let before = Regs::distinct(nr, [0; 4]);
        let after = before.syscall();
        after.assert_kept(&before);
        if nr == SYS_fork {
            if after.gp[AX] == 0 {
                quit(33);
            }
            wait_code(after.gp[AX] as i32, 33);
        }
    }
}

/// Loads a pattern into ymm0..15, spins through `yields` system calls, and compares.
fn avx_round(seed: u8, yields: u32) -> bool {
    let mut bufs = [[0u8; 512]; 2];
    for (i, b) in bufs[0].iter_mut().enumerate() {
        *b = seed.wrapping_mul(31).wrapping_add(i as u8);
    }
    let [from, to] = &mut bufs;
    // SAFETY: AVX was checked; both buffers are 512 bytes; sched_yield takes no arguments.
    unsafe {
        asm!(
            ".irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15",
            "vmovdqu ymm\\n, [{from} + 32 * \\n]",
            ".endr",
            "2:",
            "mov eax, 24",
            "syscall",
            "dec {n:e}",
            "jnz 2b",
            ".irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15",
            "vmovdqu [{to} + 32 * \\n], ymm\\n",
            ".endr",
            "vzeroupper",
            from = in(reg) from.as_ptr(), to = in(reg) to.as_mut_ptr(),
            n = inout(reg) yields => _,
            out("rax") _, out("rcx") _, out("r11") _,
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
            out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
            out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
            out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
        );
    }
    bufs[0] == bufs[1]
}

fn avx_survives_switches() {
    if !std::is_x86_feature_detected!("avx") {
        eprintln!("entry::avx_survives_switches: this CPU has no AVX; xmm is tested elsewhere");
        return;
    }
    let children: Vec<i32> = (0..6u8)
        .map(|seed| fork(move || i32::from(!(0..40).all(|i| avx_round(seed * 40 + i, 25)))))
        .collect();
    children.into_iter().for_each(|p| wait_code(p, 0));
}

fn mxcsr_and_x87_survive() {
    let (mx, cw) = (0x7f80u32, 0x0a7fu16); // round to zero; single precision, round up
    let (mut mx2, mut cw2) = (0u32, 0u16);
    // SAFETY: loads and stores of own variables; the default state is set again at the end.
    unsafe { asm!("ldmxcsr [{}]", "fldcw [{}]", in(reg) &mx, in(reg) &cw) };
    for _ in 0..20 {
        in_child(|| {
            let mut seen = 0u32;
            // SAFETY: as for the block above, whose objects live on.
            unsafe { asm!("stmxcsr [{}]", in(reg) &mut seen) };
            assert_eq!(seen & 0xffc0, mx, "inherited by fork");
        });
    }
    // SAFETY: as for the block above, whose objects live on.
    unsafe { asm!("stmxcsr [{}]", "fnstcw [{}]", in(reg) &mut mx2, in(reg) &mut cw2) };
    let (mx0, cw0) = (0x1f80u32, 0x037fu16);
    // SAFETY: as for the block above, whose objects live on.
    unsafe { asm!("ldmxcsr [{}]", "fldcw [{}]", in(reg) &mx0, in(reg) &cw0) };
    assert_eq!((mx2 & 0xffc0, cw2), (mx, cw));
}

global_asm!(
    ".globl limen_at_ud2",
    "limen_at_ud2:",
    "ud2",
    "ret",
    ".globl limen_at_div",
    "limen_at_div:",
    "xor ecx, ecx",
    "mov eax, 1",
    "cdq",
    ".globl limen_at_div_insn",
    "limen_at_div_insn:",
    "idiv ecx",
    "ret",
    ".globl limen_at_int3",
    "limen_at_int3:",
    "int3",
    "ret",
);

unsafe extern "C" {
    fn limen_at_ud2();
    fn limen_at_div();
    fn limen_at_div_insn();
    fn limen_at_int3();
}

fn breakpoint() {
    // SI_KERNEL and no address: Linux reports int3 so. (SIGTRAP's code from #BP is 0x80.)
    // SAFETY: the trap is the point, here and below.
    assert_eq!(fault(|| unsafe { limen_at_int3() }), (SIGTRAP, 0x80, 0));
}

fn invalid_opcode() {
    // ILL_ILLOPN is 2.
    let at = limen_at_ud2 as *const () as usize;
    // SAFETY: as for the block above, whose objects live on.
    assert_eq!(fault(|| unsafe { limen_at_ud2() }), (SIGILL, 2, at));
}

fn divide_error() {
    // FPE_INTDIV is 1.
    let at = limen_at_div_insn as *const () as usize;
    // SAFETY: as for the block above, whose objects live on.
    assert_eq!(fault(|| unsafe { limen_at_div() }), (SIGFPE, 1, at));
}

fn general_protection() {
    // SAFETY: as for the block above, whose objects live on.
    let got = fault(|| unsafe { asm!("mov ds, {0:x}", in(reg) 0x1234u32) });
    assert_eq!((got.0, got.1, got.2), (SIGSEGV, 0x80, 0));
}

fn privileged_instructions() {
    let runs: [(&str, fn()); 8] = [
        // SAFETY: each is refused by the CPU in user mode.
        ("cli", || unsafe { asm!("cli") }),
        ("hlt", || unsafe { asm!("hlt") }),
        ("rdmsr", || unsafe { asm!("rdmsr", in("ecx") 0x10, out("eax") _, out("edx") _) }),
        ("wrmsr", || unsafe { asm!("wrmsr", in("ecx") 0x10, in("eax") 0, in("edx") 0) }),
        ("mov cr0", || unsafe { asm!("mov {}, cr0", out(reg) _) }),
        ("lgdt", || unsafe { asm!("lgdt [{}]", in(reg) &[0u64; 2]) }),
        ("swapgs", || unsafe { asm!("swapgs") }),
        ("invlpg", || unsafe { asm!("invlpg [{}]", in(reg) 0usize) }),
    ];
    for (name, run) in runs {
        let got = fault(run);
        assert_eq!((got.0, got.1), (SIGSEGV, 0x80), "{name}");
    }
}

fn stack_fault_address() {
    // A non-canonical stack pointer faults in the push, not in the kernel.
    let got = fault(|| {
        let alt = anon(65536);
        let stack = [alt as usize, 0, 65536];
        sc!(SYS_sigaltstack, stack.as_ptr(), 0).is(0);
        // The handler must be installed for the alternate stack.
        let act = on_signal(SIGBUS, SIG_DFL, 0, 0);
        on_signal(SIGBUS, act.handler, SA_SIGINFO | SA_ONSTACK, 0);
        on_signal(SIGSEGV, act.handler, SA_SIGINFO | SA_ONSTACK, 0);
        // SAFETY: the fault is the point; nothing returns.
        unsafe { asm!("mov rsp, {}", "push rax", in(reg) 0x8000_0000_0000_0000u64) };
    });
    assert_eq!((got.0, got.1), (SIGBUS, 0x80), "#SS is SIGBUS");
}

fn int_80_of_64_bit() {
    // A kernel with 32-bit emulation answers (getpid is 20 there); one without it faults.
    let w = fault_words();
    let child = fork(|| {
        let ret: u32;
        // SAFETY: getpid of the 32-bit table takes nothing.
        unsafe {
            asm!("int 0x80", inout("eax") 20u32 => ret,
                 out("r8") _, out("r9") _, out("r10") _, out("r11") _);
        }
        w[8].store(ret, std::sync::atomic::Ordering::SeqCst);
        0
    });
    let s = wait(child);
    let ret = w[8].load(std::sync::atomic::Ordering::SeqCst) as i32;
    let answered = WIFEXITED(s) && (ret == child || ret == -ENOSYS);
    assert!(answered || (WIFSIGNALED(s) && WTERMSIG(s) == SIGSEGV), "{} {ret}", describe(s));
}

fn icebp_and_single_step() {
    // TRAP_BRKPT is 1 for the debug exception of icebp, TRAP_TRACE 2 for a single step.
    // SAFETY: the trap is the point.
    let got = fault(|| unsafe { asm!(".byte 0xf1") });
    assert_eq!((got.0, got.1), (SIGTRAP, 1));
    let step = || {
        // SAFETY: sets TF; the trap comes after the next instruction.
        unsafe { asm!("pushfq", "or dword ptr [rsp], 0x100", "popfq", "nop", "nop") }
    };
    let got = fault(step);
    assert_eq!((got.0, got.1), (SIGTRAP, 2));
    // A single step over a system call: the trap comes, the call is done, nothing hangs.
    let got = fault(|| {
        // SAFETY: as for the block above, whose objects live on.
        unsafe {
            asm!("pushfq", "or dword ptr [rsp], 0x100", "mov eax, 39", "popfq", "syscall", "nop",
                 out("rax") _, out("rcx") _, out("r11") _);
        }
    });
    assert_eq!(got.0, SIGTRAP);
}

fn syscall_at_page_end() {
    // The instruction is the last of its page, and the next page is not mapped: the call is made
    // and the return faults at the address after it.
    let p = anon(8192);
    let code = [0xb8, 39, 0, 0, 0, 0x0f, 0x05];
    // SAFETY: the mapping is this test's own and lives on.
    unsafe { std::ptr::copy_nonoverlapping(code.as_ptr(), p.add(4096 - 7), 7) };
    sc!(SYS_mprotect, p, 4096, PROT_READ | PROT_EXEC).is(0);
    unmap(p.wrapping_add(4096), 4096);
    let end = p as usize + 4096;
    let got = fault(|| {
        // SAFETY: seven bytes of code, then the fault that is wanted.
        let f: extern "C" fn() = unsafe { std::mem::transmute(end - 7) };
        f();
    });
    assert_eq!(got, (SIGSEGV, 1, end));
    // At an odd address in the middle of a page it simply works.
    let q = anon(4096);
    // SAFETY: as above; 0xc3 returns.
    unsafe {
        std::ptr::copy_nonoverlapping([0xb8u8, 39, 0, 0, 0, 0x0f, 5, 0xc3].as_ptr(), q.add(33), 8)
    };
    sc!(SYS_mprotect, q, 4096, PROT_READ | PROT_EXEC).is(0);
    let f: extern "C" fn() -> i32 = unsafe { std::mem::transmute(q as usize + 33) };
    assert_eq!(f(), pid());
}

fn iret_to_bad_rip_faults() {
    // A handler that changes the saved rip to a non-canonical one: the return must end in a
    // signal for the process, never in a fault of the kernel (the SYSRET hazard).
    extern "C" fn bend(_: i32, _: usize, ctx: *mut ucontext_t) {
        // SAFETY: the kernel's signal frame stays on this stack until the handler returns.
        unsafe { (*ctx).uc_mcontext.gregs[REG_RIP as usize] = (0x8000_0000_0000u64) as i64 };
    }
    for _ in 0..3 {
        let child = fork(|| {
            on_signal(SIGUSR1, bend as *const () as usize, SA_SIGINFO, 0);
            let _ = sc!(SYS_kill, pid(), SIGUSR1);
            0
        });
        wait_signal(child, SIGSEGV);
    }
}

fn port_io_faults() {
    // SAFETY: refused in user mode.
    let got = fault(|| unsafe { asm!("in al, 0x60", out("al") _) });
    assert_eq!((got.0, got.1), (SIGSEGV, 0x80));
    let got = fault(|| unsafe { asm!("out dx, al", in("dx") 0x3f8u16, in("al") 0u8) });
    assert_eq!((got.0, got.1), (SIGSEGV, 0x80));
}

fn segment_loads() {
    // Null selectors are allowed in ds and es, and survive calls and switches.
    // SAFETY: 64-bit code does not use ds and es.
    unsafe { asm!("mov ds, {0:x}", "mov es, {0:x}", in(reg) 0u32) };
    in_child(|| sc!(SYS_sched_yield).is(0));
    let cs: u32;
    // SAFETY: reads a selector register and touches no memory.
    unsafe { asm!("mov {0:e}, cs", out(reg) cs) };
    assert_eq!(cs & 3, 3, "ring 3");
}

fn umip_or_emulated() {
    // With UMIP Linux emulates sgdt (a fixed, false value) or faults; without it the CPU answers.
    let mut out = [0u8; 16];
    let p = out.as_mut_ptr();
    let child = fork(|| {
        // SAFETY: ten bytes are written.
        unsafe { asm!("sgdt [{}]", in(reg) p) };
        0
    });
    let s = wait(child);
    assert!(WIFEXITED(s) || WTERMSIG(s) == SIGSEGV, "{}", describe(s));
}

fn simd_exception() {
    // FPE_FLTDIV is 3: an unmasked division by zero in SSE.
    let got = fault(|| {
        let mx = 0x1d80u32;
        // SAFETY: the exception is the point.
        unsafe {
            asm!("ldmxcsr [{}]", "xorps xmm1, xmm1", "pcmpeqd xmm0, xmm0", "psrld xmm0, 25",
                 "pslld xmm0, 23", "divps xmm0, xmm1", in(reg) &mx, out("xmm0") _, out("xmm1") _);
        }
    });
    assert_eq!((got.0, got.1), (SIGFPE, 3));
}

fn interrupt_vectors_are_closed() {
    // int N for hardware and exception vectors is a protection fault from user mode.
    // SAFETY: each is refused before it touches any memory.
    let runs: [fn(); 5] = [
        || unsafe { asm!("int 2") },
        || unsafe { asm!("int 8") },
        || unsafe { asm!("int 14") },
        || unsafe { asm!("int 0x20") },
        || unsafe { asm!("int 0xff") },
    ];
    for run in runs {
        let got = fault(run);
        assert_eq!((got.0, got.1), (SIGSEGV, 0x80));
    }
}

fn sysenter_is_survivable() {
    // On AMD in 64-bit mode #UD; on Intel it enters the 32-bit path. Either way the process ends
    // or goes on; the kernel does.
    let child = fork(|| {
        // SAFETY: registers are lost; the child ends in any case.
        unsafe { asm!("mov rbp, rsp", "mov eax, 20", "sysenter", options(noreturn)) }
    });
    let s = wait(child);
    assert!(WIFSIGNALED(s), "{}", describe(s));
}
