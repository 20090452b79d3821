//! The kernel's own tables: the direct map, the image, stacks and large blocks, device registers,
//! and the window through which text is patched.
//!
//! Tables that are missing are made, and stay for ever: a CPU may read cached entries of upper
//! levels at any time. So what changes are leaves, and isolated CPUs in user mode may learn of it
//! later (`context`).

use context_tracking::work::Cause;

use super::isolation;
use super::pte::{Pte, PteFlags};
use super::walk::{ENTRIES, Kernel, NewTable, Slot, TOP, Table, Tables, index, span};
use crate::context_tracking::local::flush_page;
use crate::context_tracking::tlb;
use crate::cpu::sealed::sealed;
use crate::cpu::sync::{Once, SpinLock};
use crate::cpu::{
    self, KERNEL_HALF_START, PhysAddr, USER_ROOT_BIT, VMAP_BYTES, direct_map_base, has_pti,
    kernel_base, set_pti, vmap_base,
};
use crate::memory::frame::{Frame, OutOfMemory, PAGE_SIZE};

const PAGE: u64 = PAGE_SIZE as u64;
const LARGE_PAGE: u64 = span(1);
/// Where device registers are mapped, behind all blocks.
fn mmio_base() -> u64 {
    vmap_base() + VMAP_BYTES / 2
}

const READ_ONLY: PteFlags = PteFlags::PRESENT.union(PteFlags::NO_EXECUTE);
const READ_WRITE: PteFlags = READ_ONLY.union(PteFlags::WRITE);
/// What makes a page one of shadow stack is that it is dirty and cannot be written (SDM 3A, 4.6).
/// So no other page of the kernel may be both.
const SHADOW_STACK: PteFlags = READ_ONLY.union(PteFlags::DIRTY);
const DEVICE: PteFlags = READ_WRITE.union(PteFlags::CACHE_DISABLE).union(PteFlags::WRITE_THROUGH);

struct KernelTables {
    root: PhysAddr,
    /// Bytes of addresses for device registers that are in use.
    mmio_used: u64,
}

impl KernelTables {
    fn tables(&self) -> Tables<Kernel> {
        // SAFETY: `init` made the tree, which is never freed; the lock is held.
        unsafe { Tables::at(self.root) }
    }
}

static KERNEL: SpinLock<KernelTables> =
    SpinLock::new(KernelTables { root: PhysAddr::new(0), mmio_used: 0 });
sealed! {
    static KERNEL_ROOT: Once<PhysAddr> = Once::new();
}

/// A frame for a table.
pub(crate) fn new_table() -> Option<PhysAddr> {
    Frame::alloc_zeroed().ok().map(|frame| PhysAddr::of_frame(frame.into_raw()))
}

/// The flag that keeps a kernel translation across changes of CR3; see [`init`].
fn global() -> PteFlags {
    if has_pti() { PteFlags::empty() } else { PteFlags::GLOBAL }
}

/// Maps one page, or with LARGE 2 MiB.
pub(super) fn map(
    tables: &Tables<Kernel>,
    va: u64,
    to: PhysAddr,
    flags: PteFlags,
    new_table: NewTable<'_>,
) -> Result<(), OutOfMemory> {
    let level = u32::from(flags.contains(PteFlags::LARGE));
    tables.make(va, level, new_table)?.set(Pte::new(to, flags));
    Ok(())
}

/// One segment of the kernel image: virtual range and leaf flags.
pub(crate) struct Segment {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) write: bool,
    pub(crate) exec: bool,
}

impl Segment {
    fn flags(&self) -> PteFlags {
        let mut flags = PteFlags::PRESENT | global();
        flags.set(PteFlags::WRITE, self.write);
        flags.set(PteFlags::NO_EXECUTE, !self.exec);
        flags
    }
}

/// Builds the kernel's final tables and switches to them.
///
/// With `pti` nothing of the kernel is global: its translations must not outlive the return to a
/// program's tables.
///
/// # Safety
/// Called once, on the first CPU, on the boot tables. `memory_end` bounds physical RAM, `segments`
/// are the linked image's page-aligned segments, and `new_table` gives zeroed 4 KiB frames below
/// 4 GiB that nobody else uses.
pub(crate) unsafe fn init(
    pti: bool,
    memory_end: u64,
    segments: &[Segment],
    new_table: &mut dyn FnMut() -> Option<u64>,
) {
    const NO_MEMORY: &str = "memory for the kernel's page tables";
    set_pti(pti);
    let mut new_table = || new_table().map(PhysAddr::new);
    let mut root = new_table().expect(NO_MEMORY);
    // An NMI that comes while this table is active clears the bit of the program's table in CR3.
    while root.as_u64() & USER_ROOT_BIT != 0 {
        root = new_table().expect(NO_MEMORY);
    }
    // SAFETY: an empty table is a tree; the caller gives its frame.
    let tables = unsafe { Tables::<Kernel>::at(root) };
    let (kernel_base, direct_map) = (kernel_base(), direct_map_base());
    let image_start = segments.iter().map(|s| s.start).min().unwrap_or(0) - kernel_base;
    let image_end = segments.iter().map(|s| s.end).max().unwrap_or(0) - kernel_base;
    let is_read_only = |at: u64| {
        segments.iter().any(|s| !s.write && (s.start..s.end).contains(&(kernel_base + at)))
    };
    let mut must = |va, at, flags| {
        map(&tables, va, PhysAddr::new(at), flags, &mut new_table).expect(NO_MEMORY);
    };
    let mut at = 0;
    while at < memory_end {
        // The alias of kernel text and rodata is read-only too; the rest is mapped in large pages.
        let is_outside = at + LARGE_PAGE <= image_start || at >= image_end;
        if at % LARGE_PAGE == 0 && is_outside {
            must(direct_map + at, at, READ_WRITE | global() | PteFlags::LARGE);
            at += LARGE_PAGE;
        } else {
            let flags = if is_read_only(at) { READ_ONLY } else { READ_WRITE };
            must(direct_map + at, at, flags | global());
            at += PAGE;
        }
    }
    for segment in segments {
        for va in (segment.start..segment.end).step_by(PAGE_SIZE) {
            must(va, va - kernel_base, segment.flags());
        }
    }
    // The slot of stacks and devices exists from the start, so that every later root shares it.
    tables.make(vmap_base(), TOP - 1, &mut new_table).expect(NO_MEMORY);
    // SAFETY: the new tables map this code, this stack (image data) and the direct map as before.
    unsafe { cpu::write_cr3(root.as_u64()) };
    KERNEL.lock().root = root;
    KERNEL_ROOT.call_once(|| root);
}

/// The kernel's own top table (no user half).
pub(crate) fn kernel_root() -> PhysAddr {
    *KERNEL_ROOT.get().expect("memory::init has run")
}

/// The same, for looks without a lock: tables stay, and entries are read whole.
pub(super) fn kernel_tables() -> Tables<Kernel> {
    // SAFETY: the tree is never freed; callers only read.
    unsafe { Tables::at(kernel_root()) }
}

/// Maps one page of kernel memory at `va`, readable and writable. The mapping owns the frame until
/// [`take_retired`] gives it back.
pub(crate) fn map_kernel_memory(va: u64, frame: Frame) -> Result<(), OutOfMemory> {
    map_owned(va, frame, READ_WRITE)
}

/// The same as a page of shadow stack.
pub(crate) fn map_shadow_stack(va: u64, frame: Frame) -> Result<(), OutOfMemory> {
    map_owned(va, frame, SHADOW_STACK)
}

fn map_owned(va: u64, frame: Frame, flags: PteFlags) -> Result<(), OutOfMemory> {
    let kernel = KERNEL.lock();
    let to = PhysAddr::new(frame.phys());
    map(&kernel.tables(), va, to, flags | global(), &mut new_table)?;
    frame.into_raw();
    Ok(())
}

impl KernelTables {
    /// The entry of a page of kernel memory, if there is a table for it.
    fn page_slot(&self, va: u64) -> Option<Slot> {
        Some(self.tables().find(va)).filter(|slot| slot.level == 0)
    }
}

/// Leads `va`, which [`map_kernel_memory`] mapped, to another frame. Nobody owns the old one then.
#[cfg(feature = "ktest")]
pub(crate) fn remap_kernel(va: u64, to: u64) {
    let slot = KERNEL.lock().page_slot(va).expect("the page is mapped");
    slot.set(Pte::new(PhysAddr::new(to), slot.get().flags()));
}

/// Unmaps what [`map_kernel_memory`] mapped at `va`, and keeps the frame there, hidden. CPUs may
/// still have the translation: after `tlb::flush_kernel` the frame can be had by [`take_retired`],
/// and the address be used again.
pub(crate) fn retire_kernel(va: u64) {
    let kernel = KERNEL.lock();
    if let Some(slot) = kernel.page_slot(va)
        && slot.get().is_present()
    {
        slot.set(slot.get().hide());
    }
}

/// The frame that [`retire_kernel`] left at `va`.
pub(crate) fn take_retired(va: u64) -> Option<Frame> {
    let kernel = KERNEL.lock();
    let slot = kernel.page_slot(va).filter(|slot| !slot.get().is_present())?;
    let pfn = slot.get().frame()?;
    slot.set(Pte::EMPTY);
    // SAFETY: `map_kernel_memory` left the entry a reference, and the entry is gone.
    Some(unsafe { Frame::from_raw(pfn) })
}

/// Maps device registers, uncached. The mapping stays.
pub(crate) fn map_mmio(at: u64, len: usize) -> Result<*mut u8, OutOfMemory> {
    let mut kernel = KERNEL.lock();
    let offset = at % PAGE;
    let pages = (offset + len as u64).div_ceil(PAGE);
    let va = mmio_base() + kernel.mmio_used;
    for page in 0..pages {
        let to = PhysAddr::new(at - offset + page * PAGE);
        map(&kernel.tables(), va + page * PAGE, to, DEVICE | global(), &mut new_table)?;
    }
    kernel.mmio_used += (pages + 1) * PAGE;
    Ok((va + offset) as *mut u8)
}

// ------------------------------------------------------------------------------------------------
// Text

/// Where text that is being patched appears writable: two pages below the devices, not executable,
/// and unmapped at all other times. `text_poke` is the only user and holds its lock.
pub(crate) fn text_alias() -> u64 {
    mmio_base() - 4 * PAGE
}
/// Pages at [`text_alias`].
pub(crate) const TEXT_ALIAS_PAGES: u64 = 2;

/// The lowest table of [`text_alias`], made at the first call. Only during boot is one missing.
fn text_alias_table() -> Option<Table> {
    sealed! {
        /// Where it is: a walk each time would be most of what moving the alias costs.
        static MADE: Once<PhysAddr> = Once::new();
    }
    let make = || {
        let kernel = KERNEL.lock();
        let slot = kernel.tables().make(text_alias(), 0, &mut new_table)?;
        Ok::<_, OutOfMemory>(slot.place().0.phys())
    };
    let at = *MADE.try_call_once(make).ok()?;
    // SAFETY: the table is the kernel's, and its kind are never freed; only the holder of the
    // patcher's lock writes the two entries of the alias.
    Some(unsafe { Table::at(at) })
}

/// Maps the image's page at `page`, and the next one if `two`, writable at [`text_alias`], for this
/// CPU.
///
/// # Safety
/// The caller holds the patcher's lock, and only writes what the text is allowed to become.
pub(crate) unsafe fn map_text_alias(page: u64, two: bool) -> bool {
    let Some(table) = text_alias_table() else { return false };
    for n in 0..TEXT_ALIAS_PAGES {
        let va = text_alias() + n * PAGE;
        // Not global, so that every flush of any kind drops it.
        let entry = Pte::new(PhysAddr::new(page - kernel_base() + n * PAGE), READ_WRITE);
        table.set(index(va, 0), if n == 0 || two { entry } else { Pte::EMPTY });
        flush_page(va);
    }
    true
}

/// Takes the alias away. Other CPUs may have walked to it on their own initiative: the caller makes
/// them forget it (`tlb::flush_kernel`), unless they have not started yet.
pub(crate) fn unmap_text_alias() {
    let Some(table) = text_alias_table() else { return };
    for n in 0..TEXT_ALIAS_PAGES {
        let va = text_alias() + n * PAGE;
        table.set(index(va, 0), Pte::EMPTY);
        flush_page(va);
    }
}

/// Makes read-only pages of the image executable (`exec`), or plain read-only again.
///
/// # Safety
/// The pages are late text, and their content is code that was checked.
pub(crate) unsafe fn set_image_exec(start: u64, pages: u64, exec: bool) {
    let kernel = KERNEL.lock();
    for n in 0..pages {
        let slot = kernel.page_slot(start + n * PAGE).expect("the image is mapped");
        let gone = PteFlags::WRITE | PteFlags::DIRTY | PteFlags::NO_EXECUTE;
        let entry = slot.get().without(gone);
        slot.set(if exec { entry } else { entry.with(PteFlags::NO_EXECUTE) });
    }
    drop(kernel);
    tlb::flush_kernel(Cause::KernelRights);
}

/// Takes the right to write from pages of the image, in every mapping there is: their own, that in
/// the direct map, and with isolation that in programs' tables. For good.
pub(crate) fn seal(pages: core::ops::Range<u64>) {
    let kernel = KERNEL.lock();
    for va in pages.step_by(PAGE_SIZE) {
        let alias = va - kernel_base() + direct_map_base();
        for slot in [kernel.page_slot(va), kernel.page_slot(alias), isolation::shared_slot(va)] {
            let Some(slot) = slot else { continue };
            slot.set(slot.get().without(PteFlags::WRITE | PteFlags::DIRTY));
        }
    }
    drop(kernel);
    tlb::flush_kernel(Cause::KernelRights);
}

/// A root that also maps the first MiB at its physical address, executable: for starting CPUs.
/// Never active once they run.
pub(crate) fn trampoline_root() -> Result<u64, OutOfMemory> {
    let root = new_table().ok_or(OutOfMemory)?;
    copy_half(kernel_root(), root);
    // SAFETY: the table is new, and its upper half the kernel's.
    let tables = unsafe { Tables::<Kernel>::at(root) };
    for page in (0..0x10_0000).step_by(PAGE_SIZE) {
        let flags = PteFlags::PRESENT | PteFlags::WRITE;
        map(&tables, page, PhysAddr::new(page), flags, &mut new_table)?;
    }
    Ok(root.as_u64())
}

/// Makes the kernel's half of one top table that of another.
pub(super) fn copy_half(from: PhysAddr, to: PhysAddr) {
    // SAFETY: callers give a top table that stays.
    let from = unsafe { Table::at(from) };
    // SAFETY: callers give a new table that is nobody else's.
    let to = unsafe { Table::at(to) };
    for slot in ENTRIES / 2..ENTRIES {
        to.set(slot, from.get(slot));
    }
}

// ------------------------------------------------------------------------------------------------
// Looks

/// The byte at a kernel address that may be anything, if it is mapped memory. Cannot fault, and
/// takes no lock. Device registers count as not mapped, since reading them may have effects.
pub(crate) fn peek(va: u64) -> Option<u8> {
    let devices = mmio_base()..vmap_base() + VMAP_BYTES;
    if va < KERNEL_HALF_START || devices.contains(&va) {
        return None;
    }
    // Through the direct map, which stays: the page of a stack may be unmapped at any time.
    let at = kernel_phys(va)?.in_direct_map();
    // SAFETY: the walk has led to memory, which the direct map has readable.
    Some(unsafe { at.read_volatile() })
}

/// The physical address behind a kernel address, by walking the tables.
pub(crate) fn kernel_phys(va: u64) -> Option<PhysAddr> {
    let slot = kernel_tables().find(va);
    let entry = slot.get();
    // The address bits of a large entry below its span are not address.
    let span = span(slot.level);
    let start = entry.to().as_u64() & !(span - 1);
    entry.is_present().then(|| PhysAddr::new(start + va % span))
}

/// What the tables say about a kernel address: a right needs all levels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct KernelRights {
    pub(crate) present: bool,
    pub(crate) write: bool,
    pub(crate) exec: bool,
    pub(crate) user: bool,
}

/// How a kernel address is mapped.
pub(crate) fn kernel_rights(va: u64) -> KernelRights {
    rights_in(&kernel_tables(), va)
}

pub(super) fn rights_in(tables: &Tables<Kernel>, va: u64) -> KernelRights {
    let (mut all, mut any) = (PteFlags::all(), PteFlags::empty());
    let mut note = |entry: Pte| {
        all &= entry.flags();
        any |= entry.flags();
    };
    let slot = tables.find_with(va, &mut note);
    note(slot.get());
    if !slot.get().is_present() {
        return KernelRights::default();
    }
    KernelRights {
        present: true,
        write: all.contains(PteFlags::WRITE),
        exec: !any.contains(PteFlags::NO_EXECUTE),
        user: all.contains(PteFlags::USER),
    }
}

/// The kernel's half of the address space.
pub(super) const KERNEL_HALF: core::ops::Range<u64> = KERNEL_HALF_START..u64::MAX;

/// Calls `f` with address and rights of every leaf of the kernel's half.
#[cfg(feature = "ktest")]
pub(crate) fn for_each_kernel_leaf(mut f: impl FnMut(u64, KernelRights)) {
    let mut each = super::walk::EachLeaf(|va, slot: Slot| {
        if slot.get().is_present() {
            f(va, kernel_rights(va));
        }
    });
    kernel_tables().visit(KERNEL_HALF, &mut each);
}

/// Calls `f` with the address of every page of the kernel's half that the CPU takes for one of
/// shadow stack.
#[cfg(feature = "ktest")]
pub(crate) fn for_each_shadow_page(mut f: impl FnMut(u64)) {
    let mut each = super::walk::EachLeaf(|va, slot: Slot| {
        let flags = slot.get().flags();
        let is_one = flags & (SHADOW_STACK | PteFlags::WRITE) & !PteFlags::NO_EXECUTE;
        if slot.get().is_present() && is_one == SHADOW_STACK & !PteFlags::NO_EXECUTE {
            f(va);
        }
    });
    kernel_tables().visit(KERNEL_HALF, &mut each);
}
