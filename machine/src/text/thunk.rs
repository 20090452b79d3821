//! The thunks: where indirect branches and returns of the kernel go where the CPU's predictions of
//! them at their own places cannot be trusted.
//!
//! The compiler calls `__x86_indirect_thunk_r11` for every indirect branch
//! (`-Zretpoline-external-thunk`), target in R11: a return whose prediction is a harmless loop,
//! and which is made as all returns are. It jumps to `__x86_return_thunk` for every return
//! (`-Zfunction-return=thunk-extern`), which objtool makes a plain one.
//!
//! Which form the sites get at boot is the choice of `mitigations`; the boot pass (`cfi`) writes
//! it. Branches in the lower half of a cache line are those that indirect_target_selection misleads
//! (Intel, "Indirect Target Selection"), so every branch here is in the upper half, and objtool
//! checks that. The return thunk is entry text, since entries return before they have caught up; in
//! a section of its own, or the assembler would make jumps from nearby too short to be changed.
//! Neighbour: `untrain` has the thunks of Zen 1 to 4.

use core::arch::global_asm;

unsafe extern "C" {
    static __x86_return_thunk: u8;
    static __x86_indirect_its_thunk_r11: u8;
}

/// Where returns go that must not be made at their own place.
pub(crate) fn return_thunk() -> u64 {
    (&raw const __x86_return_thunk) as u64
}

/// Where indirect branches go that may be predicted, but not at their own place.
pub(crate) fn aligned_thunk() -> u64 {
    (&raw const __x86_indirect_its_thunk_r11) as u64
}

global_asm!(
    r#"
    .pushsection .text.__x86_indirect_thunk_r11, "ax", @progbits
    .balign 64, 0xcc
    .fill 32, 1, 0xcc
    .globl __x86_indirect_thunk_r11
    .type __x86_indirect_thunk_r11, @function
    __x86_indirect_thunk_r11:
        call 2f
    1:  pause
        lfence
        jmp 1b
    2:  mov %r11, (%rsp)
        jmp __x86_return_thunk
        int3
    .size __x86_indirect_thunk_r11, . - __x86_indirect_thunk_r11

    .balign 64, 0xcc
    .fill 32, 1, 0xcc
    .globl __x86_indirect_its_thunk_r11
    .type __x86_indirect_its_thunk_r11, @function
    __x86_indirect_its_thunk_r11:
        jmp *%r11
        int3
    .size __x86_indirect_its_thunk_r11, . - __x86_indirect_its_thunk_r11
    .popsection

    .pushsection .entry.text.return_thunk, "ax", @progbits
    .balign 64, 0xcc
    .fill 32, 1, 0xcc
    .globl __x86_return_thunk
    .type __x86_return_thunk, @function
    __x86_return_thunk:
        ret
        int3
    .size __x86_return_thunk, . - __x86_return_thunk
    .popsection
    "#,
    options(att_syntax)
);
