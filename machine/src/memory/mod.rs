//! Page tables: the kernel's own, and one [`PageTable`] for each program's address space.
//!
//! Layout of the upper half (48-bit addresses), shared by all address spaces through three slots of
//! the top table that never change after boot:
//!
//! | somewhere from | what | rights |
//! |---|---|---|
//! | `0xffff_8000_0000_0000` | physical memory ("direct map") | RW, never X; text and rodata: R |
//! | `0xffff_c000_0000_0000` | stacks with guard pages, device registers | RW, never X |
//! | `0xffff_ffff_8000_0000` | the kernel image | one of X, R, RW for each segment |
//!
//! Where exactly each begins is chosen at boot (`kaslr`).
//!
//! Start reading at `walk`, the one descent that all others use, with `pte` (entries) and
//! `address`. `kernel_space` is the kernel's half, `user_space` what CPUs hold of a program's,
//! `page_table` how it changes; `isolation` is the second top table of each program, `local` what
//! one CPU drops. Neighbours: `tlb` (shootdown), `pcid` (contexts), `frame` (what is mapped).

mod address;
mod isolation;
mod kernel_space;
mod local;
mod page_table;
mod pte;
mod user_space;
mod walk;

pub use address::PhysAddr;
#[cfg(feature = "ktest")]
pub(crate) use isolation::Shared;
pub use isolation::has_pti;
#[cfg(feature = "ktest")]
pub(crate) use isolation::{entry_image, odd_slot};
pub(crate) use isolation::{for_each_shared, init_pti, share_with_programs, user_root};
pub(crate) use kernel_space::{
    KernelRights, Segment, TEXT_ALIAS_PAGES, init, kernel_phys, kernel_rights,
    kernel_root, map_kernel_memory, map_mmio, map_text_alias, peek, retire_kernel, seal,
    set_image_exec, take_retired, text_alias, trampoline_root, unmap_text_alias,
};
#[cfg(feature = "ktest")]
pub(crate) use kernel_space::{for_each_kernel_leaf, remap_kernel};
#[cfg(feature = "ktest")]
pub(crate) use local::context_here;
pub(crate) use walk::{index, span};
pub(crate) use local::{Cr3, drop_everything, flush_all, flush_user, flush_user_page};
pub use page_table::{HUGE_PAGE, Mapping, Page, PageTable, huge_pages};
pub use pte::{PageKind, Prot};
pub use user_space::{Space, deactivate, user_tables};
pub(crate) use user_space::{activate, with_active};

use crate::frame::PAGE_SIZE;

/// First address above user space: 2^47 less one guard page, so that no SYSCALL instruction can
/// leave a non-canonical return address behind (`mechanisms/entry`).
pub const USER_END: u64 = (1 << 47) - PAGE_SIZE as u64;

/// Where the kernel's half of the address space begins.
pub(crate) const KERNEL_HALF_START: u64 = 0xffff_8000_0000_0000;

/// Bytes of mapped memory, from [`vmap_base`] on.
pub(crate) const VMAP_BYTES: u64 = 128 << 30;

/// Where kernel memory is mapped page by page: stacks first, devices last. As
/// [`crate::frame::direct_map_base`], an immediate that boot code has changed.
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

/// What the addresses of the kernel image are above its physical ones.
#[inline(always)]
pub(crate) fn kernel_base() -> u64 {
    unsafe extern "C" {
        static __text_start: u8;
        static __text_phys: u8;
    }
    &raw const __text_start as u64 - &raw const __text_phys as u64
}
