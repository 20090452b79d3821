//! Shadow stacks of the kernel, the CPU's part (SDM 1, 17.2): the registers, the instructions, and
//! whether they are used.
//!
//! The CPU pushes every return address twice, the second time at the address in SSP, and a return
//! whose two addresses differ is an exception (#CP). SSP changes only by such pushes and pops, and
//! by instructions that look for a token: a word that names its own address.
//!
//! Neighbours: `memory::stack` has the pages, `memory::shadow_stack` their words,
//! `entry::shadow_stack` switches them on for a CPU, `task` from one to another;
//! `mitigations::shadow_stack` (mechanisms) decides.

use core::arch::asm;
use core::sync::atomic::{AtomicBool, Ordering};

use super::static_key::{StaticKey, id};
use super::{cr, msr, rdmsr, read_cr4, sealed::sealed, write_cr4, wrmsr};

/// Returns are checked. Text says so, from before the first CPU uses its shadow stack on.
pub(crate) enum ShadowStack {}

impl StaticKey for ShadowStack {
    const ID: u32 = id::SHADOW_STACK;
}

/// Of a token that ends a stack: some CPU uses the stack.
pub(crate) const BUSY: u64 = 1;
/// Of a token that a switch takes: it is for 64-bit code.
pub(crate) const LONG_MODE: u64 = 1;

sealed! {
    static ON: AtomicBool = AtomicBool::new(false);
}

/// Whether stacks get shadow stacks.
pub(crate) fn is_on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// Notes what was decided. On the first CPU, before the first stack is made.
pub(crate) fn set_on(on: bool) {
    ON.store(on, Ordering::Relaxed);
}

/// SSP; 0 where there is no shadow stack. RDSSP leaves its register as it is there.
#[inline(always)]
pub(crate) fn ssp() -> u64 {
    let mut ssp = 0_u64;
    // SAFETY: reads a register, or is a hint that does nothing on CPUs without it.
    unsafe { asm!("rdsspq {}", inout(reg) ssp, options(nomem, nostack, preserves_flags)) };
    ssp
}

/// The shadow stack on which entries from programs begin, by the address of its token. Interrupts
/// are masked.
#[inline(always)]
pub(crate) fn set_entry_token(token: u64) {
    // SAFETY: callers are where shadow stacks are on, so the register exists; the value is aligned.
    unsafe { wrmsr(msr::PL0_SSP, token) };
}

/// Tells this CPU where its shadow stacks are: of entries, now of the code that runs, and by
/// `table` those of vectors with a stack of their own. Interrupts are masked.
pub(crate) fn prepare(token: u64, table: u64) {
    set_entry_token(token);
    // SAFETY: the register exists as the one before; the table is a static.
    unsafe { wrmsr(msr::INT_SSP_TAB, table) };
    let cr4 = read_cr4() | cr::CR4_CET;
    // SAFETY: CPUID reports shadow stacks, CR0.WP is set, and `S_CET` says what is enforced: so far
    // nothing.
    unsafe { write_cr4(cr4) };
}

/// From here on this CPU checks returns: of the functions that this code calls. So it is part of
/// one that never returns itself. Behind [`prepare`].
#[inline(always)]
pub(crate) fn begin() {
    let value = rdmsr(msr::S_CET) | cr::S_CET_SHADOW_STACK;
    // SAFETY: `prepare` has named a token that is free, and the table. Between the two instructions
    // nothing is pushed but by NMIs, which have a shadow stack of their own.
    unsafe {
        asm!("wrmsr", "setssbsy", in("ecx") msr::S_CET, in("eax") value as u32,
             in("edx") (value >> 32) as u32, options(nostack));
    }
}

/// What differs on this CPU from what `prepare` and `begin` were to do.
pub(crate) fn difference(token: u64, table: u64) -> Option<&'static str> {
    let ssp = ssp();
    [
        ("CR4.CET", read_cr4() & cr::CR4_CET != 0),
        ("S_CET", rdmsr(msr::S_CET) & cr::S_CET_SHADOW == cr::S_CET_SHADOW_STACK),
        ("PL0_SSP", rdmsr(msr::PL0_SSP) == token),
        ("INTERRUPT_SSP_TABLE_ADDR", rdmsr(msr::INT_SSP_TAB) == table),
        // In the lower part, since this function was called.
        ("SSP", ssp < token && token - ssp < super::PAGE_SIZE as u64),
    ]
    .into_iter()
    .find_map(|(name, is_so)| (!is_so).then_some(name))
}
