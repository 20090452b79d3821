//! The sequences that mitigations are made of, one function each: branch history cleared, the
//! return stack filled, buffers cleared, barriers; and masks for what a program names.
//!
//! What runs when is not decided here (`mitigations`). Neighbours: `entry.S` has those that must
//! run before the first stack frame of Rust, or behind the last.

use core::arch::{asm, global_asm};

use crate::memory::USER_END;

// clear_bhb_NAME() fills the branch history with branches of its own: `outer` calls, each inside
// the one before, and in each `inner` jumps forward, and back to all but the first of them.
// Clobbers RAX and RCX. The calls keep loop detectors from taking it for a loop. Returns lie in
// the upper half of a cache line, where indirect_target_selection has no hold on them.
//
// fill_return_stack() makes 32 calls whose returns are never taken, and a fence behind them.
// Clobbers RCX.
global_asm!(
    r#"
    .macro clear_bhb name, outer, inner
    .balign 64
    .globl clear_bhb_\name
    .type clear_bhb_\name, @function
    clear_bhb_\name:
        push %rbp
        mov %rsp, %rbp
        mov $\outer, %ecx
        call 1f
        jmp 5f
        int3
    .balign 64
    1:  mov $\inner, %eax
    2:  jmp 3f
        int3
    3:  dec %eax
        jnz 2b
        jmp 4f
        int3
    4:  dec %ecx
        jz 6f
        call 1b
        // Eight bytes, so that the return is in the upper half of its line.
        .byte 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0
    6:  ret
        int3
    5:  pop %rbp
        ret
        int3
    .size clear_bhb_\name, . - clear_bhb_\name
    .endm

    .pushsection .entry.text, "ax", @progbits
    clear_bhb short, {SHORT_OUTER}, {SHORT_INNER}
    clear_bhb long, {LONG_OUTER}, {LONG_INNER}
    .popsection

    .pushsection .text.fill_return_stack, "ax", @progbits
    .balign 64
    .globl fill_return_stack
    .type fill_return_stack, @function
    fill_return_stack:
        mov $16, %ecx
    1:  call 2f
        int3
    2:  call 3f
        int3
    3:  add $16, %rsp
        dec %ecx
        jnz 1b
        // A misprediction of the branch above must not reach the return.
        lfence
        ret
        int3
    .size fill_return_stack, . - fill_return_stack
    .popsection
    "#,
    SHORT_OUTER = const mitigations::bhi::BhbLoop::SHORT.outer,
    SHORT_INNER = const mitigations::bhi::BhbLoop::SHORT.inner,
    LONG_OUTER = const mitigations::bhi::BhbLoop::LONG.outer,
    LONG_INNER = const mitigations::bhi::BhbLoop::LONG.inner,
    options(att_syntax)
);

unsafe extern "C" {
    /// For histories up to Ice Lake's. No fence: only for what a change of privilege follows.
    pub(crate) safe fn clear_bhb_short();
    /// For those of Alder Lake and later.
    pub(crate) safe fn clear_bhb_long();
    /// Leaves no entry of others in the return stack.
    pub(crate) safe fn fill_return_stack();
}

/// Clears the buffers that MDS and its like sample: VERW of a selector that may be written (SDM
/// 2B).
#[inline(always)]
pub(crate) fn clear_buffers() {
    let selector = entry::selector::KERNEL_DS;
    // SAFETY: VERW of the kernel's own data segment changes flags only.
    unsafe { asm!("verw word ptr [{}]", in(reg) &selector, options(readonly, nostack)) };
}

/// `at` if it is an address of user space, else the first one that is none; without a branch, so
/// that code which runs ahead of a check has no other either (spectre_v1). Costs three
/// instructions.
#[inline(always)]
#[must_use]
pub fn mask_user(at: u64) -> u64 {
    let mut masked = at;
    // SAFETY: compares and moves between registers; no memory, no stack, and flags are clobbers.
    unsafe {
        asm!("cmp {at}, {end}", "cmova {at}, {end}", at = inout(reg) masked, end = in(reg) USER_END,
             options(pure, nomem, nostack));
    }
    masked
}

/// `index` if it is below `len`, else 0; without a branch, as [`mask_user`]. For an index that a
/// program gave, behind the check that it is in range.
#[inline(always)]
#[must_use]
pub fn mask_index(index: usize, len: usize) -> usize {
    let mut mask: usize;
    // SAFETY: registers only. The borrow of `index - len` becomes all ones.
    unsafe {
        asm!("cmp {index}, {len}", "sbb {mask}, {mask}", index = in(reg) index, len = in(reg) len,
             mask = out(reg) mask, options(pure, nomem, nostack));
    }
    mask &= index;
    mask
}
