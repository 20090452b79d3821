//! Return thunks for Zen 1 to 4, and what entries run so that a program has not trained them.
//!
//! What the bytes are and why: `text_patching::untrain`. Here they stand in the image, each
//! sequence laid over its thunk, and the third pair at two addresses that differ in the bits in
//! which they must (`link.ld` puts the second; `kaslr` moves the image so that they keep that). All
//! of it is entry text: entries untrain before they have caught up, and before their first return.
//!
//! An interrupt in the middle of a safe return would use up the prediction that its call has made:
//! [`finish_return`] makes the rest of it in the frame, and on the shadow stack where there is one.
//!
//! Neighbours: `entry.S` (`guard_untrain`) and `vmrun/behind.S` run the sequences, `mitigations`
//! chooses the thunk, `thunk` has those of other CPUs.

use core::arch::global_asm;

use entry::PtRegs;
use mitigations::plan::Returns;
use text_patching::untrain::{self, Places, Rest};

use crate::cpu::shadow_stack::{self, ShadowStack};
use crate::cpu::static_key::{StaticKey, id, static_branch_unlikely};
use crate::memory::shadow_stack::Frame;
use crate::text::text_poke::LiveText;

unsafe extern "C" {
    static untrain_overlaid_thunk: u8;
    static untrain_safe_return: u8;
    static untrain_safe_thunk: u8;
    static untrain_alias: u8;
    static untrain_alias_return: u8;
    static untrain_alias_thunk: u8;
    static untrain_alias_shadow_thunk: u8;
}

/// Where all returns go on Zen 1 and 2 for retbleed.
pub(crate) fn overlaid_thunk() -> u64 {
    (&raw const untrain_overlaid_thunk) as u64
}

/// Where they go on Zen 1 and 2 for SRSO, which is as good for retbleed.
pub(crate) fn safe_thunk() -> u64 {
    (&raw const untrain_safe_thunk) as u64
}

/// Where they go on Zen 3 and 4 for SRSO. With shadow stacks only on CPUs that use theirs: the
/// thunk is an invalid opcode elsewhere.
pub(crate) fn alias_thunk() -> u64 {
    if shadow_stack::is_on() {
        (&raw const untrain_alias_shadow_thunk) as u64
    } else {
        (&raw const untrain_alias_thunk) as u64
    }
}

/// Where what untrains by an alias is.
pub(crate) fn alias() -> u64 {
    (&raw const untrain_alias) as u64
}

fn places() -> Places {
    Places {
        overlaid: overlaid_thunk(),
        safe_return: (&raw const untrain_safe_return) as u64,
        alias: alias(),
        alias_return: (&raw const untrain_alias_return) as u64,
    }
}

/// Stops unless bytes and places in memory are what untrains: also where the image was moved to,
/// which keeps the alias only for a CPU that untrains by it (`boot::kaslr`).
pub(crate) fn verify(returns: Returns) {
    let check = if returns == Returns::SafeAlias { untrain::check_alias } else { untrain::check };
    if let Err((at, what)) = check(&LiveText, &places()) {
        panic!("mitigations: {:#x} {what}", crate::cpu::linked(at));
    }
}

/// Returns are safe ones.
pub(crate) struct SafeReturns;
impl StaticKey for SafeReturns {
    const ID: u32 = id::SAFE_RETURNS;
}

/// Behind an interrupt of the kernel: if it came in the middle of a safe return, what is left of
/// that is done, so that no return follows whose prediction the interrupt has used up.
#[inline(always)]
pub(crate) fn finish_return(regs: &mut PtRegs) {
    if static_branch_unlikely::<SafeReturns>() {
        finish(regs);
    }
}

fn rest_of_return(rip: u64) -> Option<Rest> {
    let Places { safe_return, alias_return, .. } = places();
    let at_alias = match static_branch_unlikely::<ShadowStack>() {
        true => untrain::rest_of_shadowed_return(alias_return, rip),
        false => untrain::rest_of_return(alias_return, rip),
    };
    at_alias.or_else(|| untrain::rest_of_return(safe_return, rip))
}

/// Whether the CPU is between the call of a safe return and that return.
#[cfg(feature = "ktest")]
pub(crate) fn is_safe_return(rip: u64) -> bool {
    rest_of_return(rip).is_some()
}

/// Where safe returns are.
#[cfg(feature = "ktest")]
pub(crate) fn safe_returns() -> [u64; 2] {
    [places().safe_return, places().alias_return]
}

/// Where they begin, as thunks call them.
#[cfg(feature = "ktest")]
pub(crate) fn starts() -> [u64; 2] {
    let front = if shadow_stack::is_on() { untrain::SHADOW_FRONT.len() as u64 } else { 0 };
    [places().safe_return, places().alias_return - front]
}

/// What a test has to do with the rest of interrupted returns.
#[cfg(feature = "ktest")]
pub(crate) mod observed {
    use core::sync::atomic::{AtomicU64, Ordering};

    /// The only place at which one is finished; 0: any. Without that all that is lost is what the
    /// return was predicted by.
    pub(crate) static ONLY_AT: AtomicU64 = AtomicU64::new(0);
    /// How many were.
    pub(crate) static FINISHED: AtomicU64 = AtomicU64::new(0);

    pub(super) fn is_let_go_on(rip: u64) -> bool {
        let only = ONLY_AT.load(Ordering::SeqCst);
        let is_other = only != 0 && only != rip;
        FINISHED.fetch_add(u64::from(!is_other), Ordering::SeqCst);
        is_other
    }
}

#[inline(never)]
pub(crate) fn finish(regs: &mut PtRegs) {
    let Some(Rest { words, shadow_words }) = rest_of_return(regs.rip) else { return };
    #[cfg(feature = "ktest")]
    if observed::is_let_go_on(regs.rip) {
        return;
    }
    let at = regs.rsp + 8 * words;
    // SAFETY: the CPU was between the thunk's call and its return, so the thunk's return address,
    // if it is there still, and the function's are the next words of the interrupted stack.
    regs.rip = unsafe { (at as *const u64).read() };
    regs.rsp = at + 8;
    if static_branch_unlikely::<ShadowStack>() {
        let frame = Frame::innermost();
        frame.set_ssp(frame.ssp() + 8 * (shadow_words + 1));
        // At once: the way back from a vector with a stack of its own compares nothing.
        frame.set(0, regs.rip);
    }
}

global_asm!(
    r#"
    // At an address whose four bits are clear: the first of entry text.
    .pushsection .entry.text.alias, "ax", @progbits
    .balign 512, 0xcc
    .globl untrain_alias
    .type untrain_alias, @function
    untrain_alias:
        .byte 0x66, 0x90
        lfence
        jmp __x86_return_thunk
        int3
    .size untrain_alias, . - untrain_alias
    .popsection

    // At the other address: a section of its own, and nothing behind it.
    .pushsection .text.untrain_alias_return, "ax", @progbits
    // Where there are shadow stacks; before the return, which is the same then.
    .globl untrain_alias_shadow_return
    .type untrain_alias_shadow_return, @function
    untrain_alias_shadow_return:
        mov $1, %r11d
        incsspq %r11
    .size untrain_alias_shadow_return, . - untrain_alias_shadow_return
    .globl untrain_alias_return
    .type untrain_alias_return, @function
    untrain_alias_return:
        lea 8(%rsp), %rsp
        ret
        int3
    .size untrain_alias_return, . - untrain_alias_return
    .popsection

    .pushsection .entry.text.untrain, "ax", @progbits
    .balign 64, 0xcc
    .fill 63, 1, 0xcc
    .globl untrain_overlaid
    .type untrain_overlaid, @function
    untrain_overlaid:
        .byte 0xf6                      // test $0xcc, %bl, with ret and int3
    .globl untrain_overlaid_thunk
    .type untrain_overlaid_thunk, @function
    untrain_overlaid_thunk:
        ret
        int3
        lfence
        jmp untrain_overlaid_thunk
        int3
    .size untrain_overlaid_thunk, . - untrain_overlaid_thunk

    .balign 64, 0xcc
    .fill 62, 1, 0xcc
    .globl untrain_safe
    .type untrain_safe, @function
    untrain_safe:
        .byte 0x48, 0xb8                // movabs, with the eight bytes up to lfence
    .globl untrain_safe_return
    .type untrain_safe_return, @function
    untrain_safe_return:
        lea 8(%rsp), %rsp
        ret
        int3
        int3
        lfence
        call untrain_safe_return
        ud2
    .size untrain_safe_return, . - untrain_safe_return
    .globl untrain_safe_thunk
    .type untrain_safe_thunk, @function
    untrain_safe_thunk:
        call untrain_safe_return
        ud2
    .size untrain_safe_thunk, . - untrain_safe_thunk
    .globl untrain_alias_thunk
    .type untrain_alias_thunk, @function
    untrain_alias_thunk:
        call untrain_alias_return
        ud2
    .size untrain_alias_thunk, . - untrain_alias_thunk
    .globl untrain_alias_shadow_thunk
    .type untrain_alias_shadow_thunk, @function
    untrain_alias_shadow_thunk:
        call untrain_alias_shadow_return
        ud2
    .size untrain_alias_shadow_thunk, . - untrain_alias_shadow_thunk
    .popsection
    "#,
    options(att_syntax)
);
