//! Page-table isolation: each space has two top tables, and the one that a program runs on maps of
//! the kernel only what entry code needs.

use super::kernel_space::{self, KERNEL_HALF, copy_half, kernel_root, new_table, rights_in};
use super::pte::{Pte, PteFlags};
use super::walk::{EachLeaf, Kernel, Slot, TOP, Table, Tables, index, span};
use crate::cpu::sealed::sealed;
use crate::cpu::sync::Once;
use crate::cpu::{PhysAddr, has_pti, kernel_base, user_root, vmap_base};
use crate::memory::frame::{self, Frame, OutOfMemory, PAGE_SIZE};

sealed! {
    /// The top table that all programs' tables take their kernel half from: only what entry code
    /// needs.
    static SHARED_ROOT: Once<PhysAddr> = Once::new();
}

unsafe extern "C" {
    static __entry_text_start: u8;
    static __entry_text_end: u8;
    static __cpu_entry_start: u8;
    static __cpu_entry_end: u8;
}

/// The tables that all programs share, if there are any.
fn shared_tables() -> Option<Tables<Kernel>> {
    // SAFETY: the tree is never freed. It changes during boot alone.
    SHARED_ROOT.get().map(|&root| unsafe { Tables::at(root) })
}

/// The entry of a page of kernel memory in what programs' tables share, if it is there.
pub(super) fn shared_slot(va: u64) -> Option<Slot> {
    Some(shared_tables()?.find(va)).filter(|slot| slot.level == 0)
}

/// Builds what programs' tables share, if isolation is on. Before the first address space and the
/// first interrupt stack are made.
pub(crate) fn init_pti() -> Result<(), OutOfMemory> {
    if !has_pti() {
        return Ok(());
    }
    let root = new_table().ok_or(OutOfMemory)?;
    SHARED_ROOT.call_once(|| root);
    if let Some(tables) = shared_tables() {
        // Both slots in use exist from the start: later additions reach every program's table.
        for slot in [vmap_base(), kernel_base()] {
            tables.make(slot, TOP - 1, &mut new_table)?;
        }
    }
    for range in entry_image() {
        share_with_programs(range.start, (range.end - range.start) as usize)?;
    }
    Ok(())
}

/// Maps kernel pages into the programs' tables too, with the rights they have. Does nothing without
/// isolation.
pub(crate) fn share_with_programs(start: u64, len: usize) -> Result<(), OutOfMemory> {
    let Some(tables) = shared_tables() else { return Ok(()) };
    for page in (start..start + len as u64).step_by(PAGE_SIZE) {
        let entry = kernels_page(page).ok_or(OutOfMemory)?;
        kernel_space::map(&tables, page, entry.to(), entry.flags(), &mut new_table)?;
    }
    Ok(())
}

/// The 4 KiB leaf that maps `va` in the kernel's own tables.
fn kernels_page(va: u64) -> Option<Pte> {
    let slot = kernel_space::kernel_tables().find(va);
    Some(slot.get()).filter(|entry| slot.level == 0 && entry.is_present())
}

/// A new top table with the kernel half in place; with isolation a pair of them.
pub(super) fn new_root() -> Option<PhysAddr> {
    if !has_pti() {
        let root = new_table()?;
        copy_half(kernel_root(), root);
        return Some(root);
    }
    let root = PhysAddr::of_frame(frame::alloc_block(1)?);
    // SAFETY: the pair of frames is new.
    unsafe { core::ptr::write_bytes(root.in_direct_map(), 0, 2 * PAGE_SIZE) };
    copy_half(kernel_root(), root);
    copy_half(*SHARED_ROOT.get()?, user_root(root));
    Some(root)
}

/// Frames of a root.
pub(super) fn root_frames() -> u64 {
    if has_pti() { 2 } else { 1 }
}

/// Frees a top table made by [`new_root`].
///
/// # Safety
/// No CPU has it loaded, and nothing refers to it.
pub(super) unsafe fn free_root(root: PhysAddr) {
    if has_pti() {
        // SAFETY: made as a block of this order; the caller's contract.
        unsafe { frame::free_block(root.frame(), 1) };
    } else {
        // SAFETY: the frame was given to the root by `into_raw`; the caller's contract.
        drop(unsafe { Frame::from_raw(root.frame()) });
    }
}

/// Makes the program's top table of `root` say for `va` what the kernel's one says. They share
/// everything below in the program's half.
pub(super) fn mirror(root: PhysAddr, va: u64) {
    if has_pti() {
        let slot = index(va, TOP);
        // SAFETY: the caller owns the space, whose root is a table that stays.
        let from = unsafe { Table::at(root) };
        // SAFETY: with isolation each root has a second table beside it, which stays as long.
        let to = unsafe { Table::at(user_root(root)) };
        to.set(slot, from.get(slot));
    }
}

/// A leaf that the program's tables map in the kernel half.
pub(crate) struct Shared {
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    pub(crate) write: bool,
    pub(crate) exec: bool,
    /// Programs may use it.
    pub(crate) user: bool,
    /// The kernel's own tables say the same, frame and rights.
    pub(crate) is_kernels: bool,
}

/// Visits all of them. For the self-test.
pub(crate) fn for_each_shared(mut f: impl FnMut(Shared)) {
    const NOTED: PteFlags = PteFlags::ACCESSED.union(PteFlags::DIRTY);
    let Some(tables) = shared_tables() else { return };
    let mut each = EachLeaf(|address, slot: Slot| {
        let rights = rights_in(&tables, address);
        let entry = slot.get().without(NOTED);
        if rights.present {
            f(Shared {
                address,
                bytes: span(slot.level),
                write: rights.write,
                exec: rights.exec,
                user: rights.user,
                is_kernels: kernels_page(address).is_some_and(|own| own.without(NOTED) == entry),
            });
        }
    });
    tables.visit(KERNEL_HALF, &mut each);
}

/// Entry code and entry data, the parts of the image that programs' tables map.
pub(crate) fn entry_image() -> [core::ops::Range<u64>; 2] {
    [
        (&raw const __entry_text_start) as u64..(&raw const __entry_text_end) as u64,
        (&raw const __cpu_entry_start) as u64..(&raw const __cpu_entry_end) as u64,
    ]
}

/// The first slot of a program's own top table that is not what it must be: in its half that of the
/// kernel's table for the program, in the kernel's half the one that all programs share.
#[cfg(feature = "ktest")]
pub(crate) fn odd_slot(space: &super::Space) -> Option<usize> {
    use super::walk::ENTRIES;
    let shared = *SHARED_ROOT.get()?;
    let root = space.root();
    // SAFETY: the caller holds the space, and the shared tables stay; entries are only read.
    let [own, kernels, shared] = [user_root(root), root, shared].map(|at| unsafe { Table::at(at) });
    let is_odd = |&slot: &usize| {
        let expected = if slot < ENTRIES / 2 { kernels } else { shared };
        let entry = own.get(slot).without(PteFlags::ACCESSED);
        entry != expected.get(slot).without(PteFlags::ACCESSED)
            || slot < ENTRIES / 2 && entry.is_present() && !entry.has(PteFlags::USER)
    };
    (0..ENTRIES).find(is_odd)
}
