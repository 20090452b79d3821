//! The layout of the address space, and addresses as types, so that one kind cannot be taken for
//! another. `memory` has the page tables that make it so.

use core::fmt;
use core::ops::Range;

/// Bytes in a frame, and in a page.
pub const PAGE_SIZE: usize = 4096;
/// log2 of [`PAGE_SIZE`].
pub const PAGE_SHIFT: u32 = 12;

/// First address above user space: 2^47 less one guard page, so that no SYSCALL instruction can
/// leave a non-canonical return address behind (`mechanisms/entry`).
pub const USER_END: u64 = (1 << 47) - PAGE_SIZE as u64;

/// Where the kernel's half of the address space begins.
pub(crate) const KERNEL_HALF_START: u64 = 0xffff_8000_0000_0000;
/// Where the image is linked (`link.ld`); boot code moves it.
pub(crate) const IMAGE_LINKED: u64 = 0xffff_ffff_8000_0000;
/// Bytes of mapped memory, from [`vmap_base`] on.
pub(crate) const VMAP_BYTES: u64 = 128 << 30;

/// Where all physical memory appears in the kernel's half. An immediate that boot code has changed
/// (`boot::kaslr`).
#[inline(always)]
pub(crate) fn direct_map_base() -> u64 {
    let base;
    // SAFETY: loads a constant of the text.
    unsafe {
        core::arch::asm!("movabsq $__direct_map_base, {}", out(reg) base,
            options(att_syntax, pure, nomem, nostack, preserves_flags));
    }
    base
}

/// Where kernel memory is mapped page by page: stacks first, devices last. An immediate, as
/// [`direct_map_base`].
#[inline(always)]
pub(crate) fn vmap_base() -> u64 {
    let base;
    // SAFETY: loads a constant of the text.
    unsafe {
        core::arch::asm!("movabsq $__vmap_base, {}", out(reg) base,
            options(att_syntax, pure, nomem, nostack, preserves_flags));
    }
    base
}

unsafe extern "C" {
    static __text_start: u8;
    static __text_phys: u8;
    static __data_end: u8;
}

/// What the addresses of the kernel image are above its physical ones.
#[inline(always)]
pub(crate) fn kernel_base() -> u64 {
    &raw const __text_start as u64 - &raw const __text_phys as u64
}

/// The image's physical addresses.
pub(crate) fn image_phys() -> Range<u64> {
    let base = kernel_base();
    &raw const __text_start as u64 - base..&raw const __data_end as u64 - base
}

/// An address as it was linked, if it is one of the image; else as it is.
pub(crate) fn linked(address: u64) -> u64 {
    let base = kernel_base();
    let image = image_phys();
    if (base + image.start..base + image.end).contains(&address) {
        address - base + IMAGE_LINKED
    } else {
        address
    }
}

/// Kernel address of a physical address.
#[inline(always)]
pub(crate) fn phys_to_virt(phys: u64) -> *mut u8 {
    (direct_map_base() + phys) as *mut u8
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
    #[inline(always)]
    pub(crate) fn in_direct_map(self) -> *mut u8 {
        phys_to_virt(self.0)
    }
}

impl fmt::Debug for PhysAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}
