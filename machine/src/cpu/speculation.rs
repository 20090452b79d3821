//! The sequences that mitigations are made of, one function each: branch history cleared, the
//! return stack filled, buffers cleared, barriers; and masks for what a program names.
//!
//! What runs when is not decided here (`mitigations`). Neighbours: `entry.S` has those that must
//! run before the first stack frame of Rust, or behind the last.

use core::arch::{asm, global_asm};

use mitigations::bhi::BhbLoop;

use crate::cpu::USER_END;
use crate::cpu::percpu::CpuLocal;

// clear_bhb_NAME_unfenced() fills the branch history with branches of its own: `outer` calls, each
// inside the one before, and in each `inner` jumps forward, and back to all but the first of them.
// Clobbers RAX and RCX. The calls keep loop detectors from taking it for a loop. Returns lie in
// the upper half of a cache line, where indirect_target_selection has no hold on them: they are
// part of the history, and go by no thunk. objtool checks where they lie. The counts
// are 32-bit immediates: counters in AL and AH cost a merge of registers in every turn.
//
// clear_bhb_NAME_fenced() waits until that is done, and is the only one for code that goes on in
// the kernel. `cli` checks in the built image that no other code of entries leads to the loop.
//
// fill_return_stack() makes 32 calls whose returns are never taken, and a fence behind them
// (`fill.S`). Clobbers RCX.
global_asm!(
    include_str!("fill.S"),
    r#"
    .macro clear_bhb name, outer, inner
    .balign 64
    .globl clear_bhb_\name\()_unfenced
    .type clear_bhb_\name\()_unfenced, @function
    clear_bhb_\name\()_unfenced:
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
    .size clear_bhb_\name\()_unfenced, . - clear_bhb_\name\()_unfenced

    .globl clear_bhb_\name\()_fenced
    .type clear_bhb_\name\()_fenced, @function
    clear_bhb_\name\()_fenced:
        call clear_bhb_\name\()_unfenced
        lfence
        ret
        int3
    .size clear_bhb_\name\()_fenced, . - clear_bhb_\name\()_fenced
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
        fill_the_return_stack
        // As many calls as can be counted, where they are.
        movq $-1, %gs:{CALL_DEPTH}
        jmp __x86_return_thunk
        int3
    .size fill_return_stack, . - fill_return_stack
    .popsection
    .purgem fill_the_return_stack
    .purgem drop_shadow
    .purgem clear_bhb
    "#,
    SHORT_OUTER = const BhbLoop::SHORT.outer,
    SHORT_INNER = const BhbLoop::SHORT.inner,
    LONG_OUTER = const BhbLoop::LONG.outer,
    LONG_INNER = const BhbLoop::LONG.inner,
    CALL_DEPTH = const core::mem::offset_of!(CpuLocal, call_depth),
    options(att_syntax)
);

unsafe extern "C" {
    safe fn clear_bhb_short_unfenced();
    safe fn clear_bhb_long_unfenced();
    safe fn clear_bhb_short_fenced();
    safe fn clear_bhb_long_fenced();
    /// Leaves no entry of others in the return stack.
    pub(crate) safe fn fill_return_stack();
}

/// The claim that nothing but the return to user mode follows: a change of privilege, which waits
/// for the branches before it as the fence would. Only the way back makes one.
pub(crate) struct BeforeUserMode(());

impl BeforeUserMode {
    /// Interrupts are masked, and the caller goes on to the return itself.
    #[inline(always)]
    pub(crate) const fn claim() -> Self {
        BeforeUserMode(())
    }
}

/// Clears branch history, for the kernel's own next branches.
pub(crate) fn clear_bhb(counts: BhbLoop) {
    match counts {
        BhbLoop::LONG => clear_bhb_long_fenced(),
        _ => clear_bhb_short_fenced(),
    }
}

/// Clears histories up to Ice Lake's, for a program's branches.
pub(crate) extern "C" fn clear_bhb_short_before(_: &BeforeUserMode) {
    clear_bhb_short_unfenced();
}

/// Clears those of Alder Lake and later, for a program's branches.
pub(crate) extern "C" fn clear_bhb_long_before(_: &BeforeUserMode) {
    clear_bhb_long_unfenced();
}

/// The loops, for the tests that step through them.
#[cfg(feature = "ktest")]
pub(crate) const LOOPS: [extern "C" fn(); 2] = [clear_bhb_short_unfenced, clear_bhb_long_unfenced];

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
