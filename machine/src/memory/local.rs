//! What this CPU has of translations: the value of CR3, and the ways to drop.

use core::arch::asm;

use context_tracking::flush::Method;
use context_tracking::pcid;

use super::address::PhysAddr;
use super::isolation::{USER_ROOT_BIT, user_root};
use crate::cpu;
use crate::percpu;
use crate::sync::IrqGuard;

/// A value for CR3, the one home of its bits (SDM 3A, 4.5.2, 4.10.1): the top table; bits 0 to 11,
/// the context (PCID), of which bit 11 tells the program's of a pair; bit 12, the program's top
/// table of a pair; bit 63, keep what the context has.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Cr3(u64);

impl Cr3 {
    /// The bits that lead from the kernel's value of a pair to the program's.
    pub(crate) const USER_BITS: u64 = USER_ROOT_BIT | pcid::USER;

    /// Nothing yet.
    pub(crate) const NONE: Cr3 = Cr3(0);

    /// The top table at `root`, in context 0, of which nothing is kept.
    pub(crate) const fn plain(root: PhysAddr) -> Cr3 {
        Cr3(root.as_u64())
    }

    /// The kernel's tables of a space, in the kernel's context of `slot`.
    pub(crate) const fn kernel(root: PhysAddr, slot: usize, flush: bool) -> Cr3 {
        Cr3(pcid::cr3(root.as_u64(), pcid::kernel_pcid(slot), flush))
    }

    /// The program's tables of the same space, in the program's context.
    pub(crate) fn user(root: PhysAddr, slot: usize, flush: bool) -> Cr3 {
        Cr3(pcid::cr3(user_root(root).as_u64(), pcid::user_pcid(slot), flush))
    }

    /// The context it names.
    pub(crate) const fn context(self) -> u64 {
        self.0 & pcid::PCID_MASK
    }

    /// Loading it drops what the context has.
    pub(crate) const fn is_stale(self) -> bool {
        self.0 & pcid::NOFLUSH == 0
    }

    /// The same, dropping what the context has.
    pub(crate) const fn stale(self) -> Cr3 {
        Cr3(self.0 & !pcid::NOFLUSH)
    }

    /// The same, keeping what the context has. Only where contexts are in use.
    pub(crate) const fn kept(self) -> Cr3 {
        Cr3(self.0 | pcid::NOFLUSH)
    }

    /// What the CPU runs on.
    pub(crate) fn read() -> Cr3 {
        Cr3(cpu::read_cr3())
    }

    /// Whether it names a program's top table of a pair.
    #[cfg(feature = "ktest")]
    pub(crate) const fn is_user_root(self) -> bool {
        self.0 & USER_ROOT_BIT != 0
    }

    /// # Safety
    /// The top table has the kernel's half, and stays while it is loaded.
    pub(crate) unsafe fn load(self) {
        // SAFETY: the caller promises that the kernel's half is mapped by this table and that the
        // table outlives its use, which is what `write_cr3` asks for.
        unsafe { cpu::write_cr3(self.0) };
    }
}

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
    crate::pcid::dropped_page(va);
}

/// Drops what this CPU has of the active space.
pub(crate) fn flush_user() {
    // SAFETY: the root stays the same, and with PCIDs the context; bit 63 reads as 0, so nothing is
    // kept.
    unsafe { Cr3::read().load() };
    crate::pcid::dropped_all();
}

/// Drops every translation of this CPU, of every space, as `context` has chosen for it.
pub(crate) fn flush_all() {
    let _irq = IrqGuard::new();
    let method = percpu::local().context.method();
    drop_everything(method);
    if method == Method::Cr3Reload {
        // Of the other context of the pair nothing was dropped.
        crate::pcid::dropped_all();
    }
}

/// Drops every translation of this CPU. Interrupts are masked. Part of entries, so everything is
/// inlined.
#[inline(always)]
pub(crate) fn drop_everything(method: Method) {
    match method {
        Method::InvpcidAll => {
            let descriptor = [0u64; 2];
            // SAFETY: CPUID reports INVPCID (`context::init_cpu`); dropping translations is sound.
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
