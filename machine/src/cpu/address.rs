//! The layout of the address space, and addresses as types, so that one kind cannot be taken for
//! another. `memory` has the page tables that make it so.

use core::fmt;

/// Bytes in a frame, and in a page.
pub const PAGE_SIZE: usize = 4096;
/// log2 of [`PAGE_SIZE`].
pub const PAGE_SHIFT: u32 = 12;

/// First address above user space: 2^47 less one guard page, so that no SYSCALL instruction can
/// leave a non-canonical return address behind (`mechanisms/entry`).
pub const USER_END: u64 = (1 << 47) - PAGE_SIZE as u64;
/// Where all physical memory appears in the kernel's half.
pub(crate) const PHYS_OFFSET: u64 = 0xffff_8000_0000_0000;
/// Where kernel memory is mapped page by page: stacks first, devices last.
pub(crate) const VMAP_BASE: u64 = 0xffff_c000_0000_0000;
/// Where the kernel image is linked.
pub(crate) const KERNEL_BASE: u64 = 0xffff_ffff_8000_0000;

/// Kernel address of a physical address.
#[inline(always)]
pub(crate) fn phys_to_virt(phys: u64) -> *mut u8 {
    (PHYS_OFFSET + phys) as *mut u8
}

/// An address on the memory bus.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(transparent)]
pub struct PhysAddr(u64);

impl PhysAddr {
    /// The address `address`.
    pub const fn new(address: u64) -> PhysAddr {
        PhysAddr(address)
    }

    /// Where frame number `pfn` begins.
    pub const fn of_frame(pfn: u32) -> PhysAddr {
        PhysAddr((pfn as u64) << PAGE_SHIFT)
    }

    /// The number.
    pub const fn as_u64(self) -> u64 {
        self.0
    }

    /// The number of the frame it lies in. Frames are counted up to 16 TiB.
    pub const fn frame(self) -> u32 {
        (self.0 >> PAGE_SHIFT) as u32
    }

    /// Where the kernel sees it, if it is memory.
    pub(crate) fn in_direct_map(self) -> *mut u8 {
        phys_to_virt(self.0)
    }
}

impl fmt::Debug for PhysAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}
