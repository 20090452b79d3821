//! The instructions the bench is made of: `syscall`, `rdtsc`, a signal restorer.
//!
//! Kept apart so that everything measured can be read in one place. Neighbour: ops.rs.

use std::arch::{asm, global_asm};

/// A system call with six arguments; the raw result, negative for an errno.
#[inline(always)]
pub fn syscall(nr: libc::c_long, a: [usize; 6]) -> isize {
    let ret: isize;
    // SAFETY: the System V system call convention; ops.rs passes pointers to live objects.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") nr as isize => ret,
            in("rdi") a[0], in("rsi") a[1], in("rdx") a[2],
            in("r10") a[3], in("r8") a[4], in("r9") a[5],
            lateout("rcx") _, lateout("r11") _,
        );
    }
    ret
}

/// The time-stamp counter, after everything before it has completed (Intel SDM, RDTSC).
#[inline(always)]
pub fn rdtsc() -> u64 {
    // SAFETY: both instructions exist on every x86-64 CPU and change registers only.
    unsafe {
        core::arch::x86_64::_mm_lfence();
        core::arch::x86_64::_rdtsc()
    }
}

global_asm!(
    ".globl limen_bench_restorer",
    "limen_bench_restorer:",
    "mov eax, 15", // rt_sigreturn
    "syscall",
    "ud2",
    ".globl limen_bench_handler",
    "limen_bench_handler:",
    "inc dword ptr [rip + limen_bench_signals]",
    "ret",
    ".pushsection .bss",
    ".balign 8",
    ".globl limen_bench_signals",
    "limen_bench_signals: .zero 8",
    ".popsection",
);

unsafe extern "C" {
    fn limen_bench_restorer();
    fn limen_bench_handler();
    static limen_bench_signals: u64;
}

/// Installs the counting handler for a signal (rt_sigaction(2)); SA_RESTORER is 0x04000000.
pub fn count_signal(sig: i32) {
    let action = [
        limen_bench_handler as *const () as usize,
        0x0400_0000,
        limen_bench_restorer as *const () as usize,
        0,
    ];
    let ret = syscall(libc::SYS_rt_sigaction, [sig as usize, action.as_ptr() as usize, 0, 8, 0, 0]);
    assert_eq!(ret, 0, "rt_sigaction");
}

/// How often the handler has run.
#[inline(always)]
pub fn signals_seen() -> u64 {
    // SAFETY: one word that only the handler, on this thread, writes.
    unsafe { (&raw const limen_bench_signals).read_volatile() }
}
