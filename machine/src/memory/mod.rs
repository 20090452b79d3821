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
//! Where exactly each begins is chosen at boot (`boot::kaslr`).
//!
//! Start reading at `walk`, the one descent that all others use, with `pte` (entries).
//! `kernel_space` is the kernel's half, `user_space` what CPUs hold of a program's, `page_table`
//! how it changes, and `notifiers` who else is told; `isolation` is the second top table of each
//! program. What is mapped are `frame`s; `heap`, `vmap` and `stack` are the kernel's own uses of
//! them, and `uaccess` is the door to a program's memory. Neighbour: `context_tracking` (shootdown,
//! contexts).

mod concurrent;
pub mod frame;
pub(crate) mod heap;
mod isolation;
mod kernel_space;
mod notifiers;
mod page_table;
mod pte;
pub(crate) mod shadow_stack;
pub mod stack;
pub mod uaccess;
mod user_space;
pub(crate) mod vmap;
pub(crate) mod walk;

#[cfg(feature = "ktest")]
pub(crate) use isolation::Shared;
#[cfg(feature = "ktest")]
pub(crate) use isolation::{entry_image, odd_slot};
pub(crate) use isolation::{for_each_shared, init_pti, share_with_programs};
pub(crate) use kernel_space::{
    KernelRights, Segment, TEXT_ALIAS_PAGES, init, kernel_phys, kernel_rights, kernel_root,
    map_kernel_memory, map_mmio, map_shadow_stack, map_text_alias, new_table, peek, retire_kernel,
    seal, set_image_exec, take_retired, text_alias, trampoline_root, unmap_text_alias,
};
#[cfg(feature = "ktest")]
pub(crate) use kernel_space::{for_each_kernel_leaf, for_each_shadow_page, remap_kernel};
pub(crate) use notifiers::MmuNotifier;
pub use page_table::{HUGE_PAGE, Mapping, Page, PageTable, huge_pages};
pub(crate) use pte::Pte;
pub use pte::{PageKind, Prot};
pub(crate) use user_space::activate;
pub use user_space::{Space, deactivate, user_tables};
pub(crate) use walk::{index, span};

pub use crate::cpu::{PhysAddr, USER_END, has_pti};
