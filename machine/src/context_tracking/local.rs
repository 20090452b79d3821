//! The ways to drop what this CPU has of translations.

use core::arch::asm;

use context_tracking::flush::Method;

use crate::context_tracking::pcid;
use crate::cpu::sync::IrqGuard;
use crate::cpu::{self, Cr3, percpu};

/// The context that CR3 names.
#[cfg(feature = "ktest")]
pub(crate) fn context_here() -> u64 {
    Cr3::read().context()
}

/// Drops what this CPU has for `va` in the context in use, and a global translation.
pub(crate) fn flush_page(va: u64) {
    // SAFETY: dropping a translation never makes an access unsound.
    unsafe { asm!("invlpg [{}]", in(reg) va, options(nostack, preserves_flags)) };
}

/// Drops what this CPU has for `va`, a program's page of the active space.
pub(crate) fn flush_user_page(va: u64) {
    flush_page(va);
    pcid::dropped_page(va);
}

/// Drops what this CPU has of the active space.
pub(crate) fn flush_user() {
    // SAFETY: the root stays the same, and with PCIDs the context; bit 63 reads as 0, so nothing is
    // kept.
    unsafe { Cr3::read().load() };
    pcid::dropped_all();
}

/// Drops every translation of this CPU, of every space, as `context` has chosen for it.
pub(crate) fn flush_all() {
    let _irq = IrqGuard::new();
    let method = percpu::local().context.method.get();
    drop_everything(method);
    if method == Method::Cr3Reload {
        // Of the other context of the pair nothing was dropped.
        pcid::dropped_all();
    }
}

/// Drops every translation of this CPU. Interrupts are masked. Part of entries, so everything is
/// inlined.
#[inline(always)]
pub(crate) fn drop_everything(method: Method) {
    match method {
        Method::InvpcidAll => {
            let descriptor = [0u64; 2];
            // SAFETY: CPUID reports INVPCID (`word::init_cpu`); dropping translations is sound.
            unsafe {
                asm!("invpcid {}, [{}]", in(reg) 2u64, in(reg) &descriptor,
                     options(readonly, nostack));
            }
        }
        Method::PgeToggle => {
            const PGE: u64 = cpu::cr::CR4_PGE;
            // SAFETY: the bit goes and comes back, which flushes everything (SDM 3A, 4.10.4.1);
            // interrupts are masked, and an NMI in between toggles it from where it is to where it
            // is.
            unsafe {
                asm!("mov {old}, cr4", "mov {new}, {old}", "xor {new}, {pge}",
                     "mov cr4, {new}", "mov cr4, {old}",
                     old = out(reg) _, new = out(reg) _, pge = const PGE,
                     options(nostack));
            }
        }
        Method::Cr3Reload => {
            // SAFETY: the root stays the same; bit 63 reads as 0, so everything is dropped.
            unsafe {
                asm!("mov {root}, cr3", "mov cr3, {root}", root = out(reg) _,
                     options(nostack, preserves_flags));
            }
        }
    }
}
