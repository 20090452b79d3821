//! CR3, and whether programs run on tables of their own.

use core::sync::atomic::{AtomicBool, Ordering};

use context_tracking::pcid;

use crate::cpu::sealed::sealed;
use crate::cpu::{self, PAGE_SIZE, PhysAddr};

/// The two top tables of a space lie in one naturally aligned pair of frames: the kernel's at the
/// even one, the program's at the odd one. This bit of CR3 tells them apart.
pub(crate) const USER_ROOT_BIT: u64 = PAGE_SIZE as u64;

sealed! {
    static PTI: AtomicBool = AtomicBool::new(false);
}

/// Whether programs run on tables without the kernel.
#[inline(always)]
pub fn has_pti() -> bool {
    PTI.load(Ordering::Relaxed)
}

pub(crate) fn set_pti(pti: bool) {
    PTI.store(pti, Ordering::Relaxed);
}

/// The program's top table of the space whose kernel's one is `root`.
pub(crate) fn user_root(root: PhysAddr) -> PhysAddr {
    PhysAddr::new(root.as_u64() | USER_ROOT_BIT)
}

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
