//! Addresses as types, so that one kind cannot be taken for another.

use core::fmt;

use crate::frame::{PAGE_SHIFT, phys_to_virt};

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
