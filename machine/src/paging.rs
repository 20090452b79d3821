//! Page tables: the kernel's own, and one [`PageTable`] for each program's address space.
//!
//! Layout of the upper half (48-bit addresses), shared by all address spaces through three slots of
//! the top table that never change after boot:
//!
//! | from | what | rights |
//! |---|---|---|
//! | `0xffff_8000_0000_0000` | physical memory ("direct map") | RW, never X; text and rodata: R |
//! | `0xffff_c000_0000_0000` | stacks with guard pages, device registers | RW, never X |
//! | `0xffff_ffff_8000_0000` | the kernel image | one of X, R, RW for each segment |
//!
//! Entries of a user space own a counted reference to their frame. A frame leaves only after the
//! shootdown, so no CPU can reach it through a stale translation when it is used again.
//!
//! A page with all rights taken away keeps its frame in a non-present entry whose frame number is
//! stored inverted, so that a speculative walk of it (L1TF) points above installed memory.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::arch::asm;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arrayvec::ArrayVec;
use context_tracking::work::Cause;

use crate::cpu::{self, MAX_CPUS};
use crate::frame::{self, Frame, OutOfMemory, PAGE_SHIFT, PAGE_SIZE, PHYS_OFFSET, phys_to_virt};
use crate::pcid;
use crate::percpu::{self, CpuCell, PerCpu};
use crate::sync::{IrqGuard, Once, SpinLock};
use crate::tlb::{self, TlbState};

/// First address above user space: 2^47 less one guard page, so that no SYSCALL instruction can
/// leave a non-canonical return address behind (`mechanisms/entry`).
pub const USER_END: u64 = (1 << 47) - PAGE_SIZE as u64;

const PRESENT: u64 = 1;
const WRITE: u64 = 1 << 1;
const USER: u64 = 1 << 2;
const WRITE_THROUGH: u64 = 1 << 3;
const CACHE_DISABLE: u64 = 1 << 4;
const ACCESSED: u64 = 1 << 5;
const DIRTY: u64 = 1 << 6;
const LARGE: u64 = 1 << 7;
const GLOBAL_BIT: u64 = 1 << 8;
/// Software: a user page without any right; the frame number is inverted, PRESENT is clear.
const HIDDEN: u64 = 1 << 10;
const NO_EXECUTE: u64 = 1 << 63;
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

const ENTRIES: usize = 512;
const LARGE_SIZE: u64 = 2 << 20;
/// Where kernel memory is mapped page by page: stacks first, devices last.
pub(crate) const VMAP_BASE: u64 = 0xffff_c000_0000_0000;
const MMIO_BASE: u64 = VMAP_BASE + (1 << 39) - (64 << 30);
pub(crate) const KERNEL_BASE: u64 = 0xffff_ffff_8000_0000;

/// What a program may do with a page. x86 cannot forbid reading of a writable or executable page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Prot {
    /// May be read; without any right the page is kept but unreachable.
    pub read: bool,
    /// May be written.
    pub write: bool,
    /// May be executed.
    pub exec: bool,
}

impl Prot {
    fn is_none(self) -> bool {
        !(self.read || self.write || self.exec)
    }

    fn leaf(self, pfn: u32) -> u64 {
        let address = u64::from(pfn) << PAGE_SHIFT;
        if self.is_none() {
            return !address & ADDRESS | HIDDEN;
        }
        let mut entry = address | PRESENT | USER | ACCESSED;
        if self.write {
            entry |= WRITE | DIRTY;
        }
        if !self.exec {
            entry |= NO_EXECUTE;
        }
        entry
    }
}

fn leaf_pfn(entry: u64) -> Option<u32> {
    if entry & PRESENT != 0 {
        Some(((entry & ADDRESS) >> PAGE_SHIFT) as u32)
    } else if entry & HIDDEN != 0 {
        Some(((!entry & ADDRESS) >> PAGE_SHIFT) as u32)
    } else {
        None
    }
}

fn leaf_prot(entry: u64) -> Prot {
    let present = entry & PRESENT != 0;
    Prot {
        read: present,
        write: present && entry & WRITE != 0,
        exec: present && entry & NO_EXECUTE == 0,
    }
}

/// One 4 KiB table in the direct map.
#[derive(Clone, Copy)]
struct Table(*mut u64);

impl Table {
    fn at(phys: u64) -> Table {
        Table(phys_to_virt(phys & ADDRESS).cast())
    }

    fn get(self, index: usize) -> u64 {
        assert!(index < ENTRIES);
        // SAFETY: a `Table` is only made of live page tables; volatile since the CPU writes A and
        // D.
        unsafe { self.0.wrapping_add(index).read_volatile() }
    }

    fn set(self, index: usize, entry: u64) {
        assert!(index < ENTRIES);
        // SAFETY: as in `get`; callers hold the table's owner exclusively.
        unsafe { self.0.wrapping_add(index).write_volatile(entry) };
    }

    /// The first index from `index` on whose entry is not zero. Tables are mostly empty: looks at
    /// [`GROUP`] entries at a time.
    fn next_used(self, mut index: usize) -> Option<usize> {
        while index < ENTRIES {
            if index.is_multiple_of(GROUP) {
                let entries = (0..GROUP).map(|i| {
                    // SAFETY: ENTRIES is a multiple of GROUP, so the group lies in the table;
                    // volatile as in `get`.
                    unsafe { self.0.wrapping_add(index + i).read_volatile() }
                });
                if entries.fold(0, |all, entry| all | entry) == 0 {
                    index += GROUP;
                    continue;
                }
            }
            if self.get(index) != 0 {
                return Some(index);
            }
            index += 1;
        }
        None
    }

    /// The next lower table at `index`, made with `flags` if it is missing.
    fn next_or_make(
        self,
        index: usize,
        flags: u64,
        new_table: &mut dyn FnMut() -> Option<u64>,
    ) -> Result<Table, OutOfMemory> {
        let entry = self.get(index);
        if entry & PRESENT != 0 {
            return Ok(Table::at(entry));
        }
        let phys = new_table().ok_or(OutOfMemory)?;
        self.set(index, phys | flags);
        Ok(Table::at(phys))
    }
}

/// Entries that [`Table::next_used`] looks at together: those of a cache line.
const GROUP: usize = 8;

fn index(address: u64, level: u32) -> usize {
    (address >> (PAGE_SHIFT + 9 * level)) as usize % ENTRIES
}

// ------------------------------------------------------------------------------------------------
// The kernel's tables

struct KernelTables {
    root: u64,
    mmio_next: u64,
}

static KERNEL: SpinLock<KernelTables> =
    SpinLock::new(KernelTables { root: 0, mmio_next: MMIO_BASE });
static KERNEL_ROOT: Once<u64> = Once::new();

fn new_table_frame() -> Option<u64> {
    Frame::alloc_zeroed().ok().map(|frame| u64::from(frame.into_raw()) << PAGE_SHIFT)
}

/// The flag that keeps a kernel translation across changes of CR3; see [`init`].
fn global() -> u64 {
    if has_pti() { 0 } else { GLOBAL_BIT }
}

fn map_kernel(
    root: u64,
    va: u64,
    phys: u64,
    flags: u64,
    new_table: &mut dyn FnMut() -> Option<u64>,
) -> Result<(), OutOfMemory> {
    let mut table = Table::at(root);
    let lowest = if flags & LARGE != 0 { 1 } else { 0 };
    for level in (lowest + 1..=3).rev() {
        table = table.next_or_make(index(va, level), PRESENT | WRITE, new_table)?;
    }
    table.set(index(va, lowest), phys | flags | PRESENT);
    Ok(())
}

/// One segment of the kernel image: virtual range and leaf flags.
pub(crate) struct Segment {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) write: bool,
    pub(crate) exec: bool,
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
    PTI.store(pti, Ordering::Relaxed);
    let mut root = new_table().expect("memory for the kernel's page tables");
    // An NMI that comes while this table is active clears the bit of the program's table in CR3.
    while root & USER_ROOT_BIT != 0 {
        root = new_table().expect("memory for the kernel's page tables");
    }
    let image_start = segments.iter().map(|s| s.start).min().unwrap_or(0) - KERNEL_BASE;
    let image_end = segments.iter().map(|s| s.end).max().unwrap_or(0) - KERNEL_BASE;
    let read_only = |phys: u64| {
        segments.iter().any(|s| !s.write && (s.start..s.end).contains(&(KERNEL_BASE + phys)))
    };
    let mut must = |va, phys, flags| {
        map_kernel(root, va, phys, flags, new_table).expect("memory for the kernel's page tables");
    };
    let mut phys = 0;
    while phys < memory_end {
        // The alias of kernel text and rodata is read-only too; the rest is mapped in large pages.
        let outside = phys + LARGE_SIZE <= image_start || phys >= image_end;
        if phys % LARGE_SIZE == 0 && outside {
            must(PHYS_OFFSET + phys, phys, WRITE | NO_EXECUTE | global() | LARGE);
            phys += LARGE_SIZE;
        } else {
            let write = if read_only(phys) { 0 } else { WRITE };
            must(PHYS_OFFSET + phys, phys, write | NO_EXECUTE | global());
            phys += PAGE_SIZE as u64;
        }
    }
    for segment in segments {
        let mut flags = global();
        flags |= if segment.write { WRITE } else { 0 };
        flags |= if segment.exec { 0 } else { NO_EXECUTE };
        for va in (segment.start..segment.end).step_by(PAGE_SIZE) {
            must(va, va - KERNEL_BASE, flags);
        }
    }
    // The slot of stacks and devices exists from the start, so that every later root shares it.
    Table::at(root)
        .next_or_make(index(VMAP_BASE, 3), PRESENT | WRITE, new_table)
        .expect("memory for the kernel's page tables");
    // SAFETY: the new tables map this code, this stack (image data) and the direct map as before.
    unsafe { cpu::write_cr3(root) };
    KERNEL.lock().root = root;
    KERNEL_ROOT.call_once(|| root);
}

/// Physical address of the kernel's own top table (no user half).
pub(crate) fn kernel_root() -> u64 {
    *KERNEL_ROOT.get().expect("paging::init has run")
}

/// Maps one page of kernel memory at `va`, readable and writable. The mapping owns the frame until
/// [`take_retired`] gives it back. Tables that are missing are made, and stay for ever: a walker
/// may read cached entries of upper levels at any time, on any CPU.
pub(crate) fn map_kernel_memory(va: u64, frame: Frame) -> Result<(), OutOfMemory> {
    let kernel = KERNEL.lock();
    let phys = frame.phys();
    map_kernel(kernel.root, va, phys, WRITE | NO_EXECUTE | global(), &mut new_table_frame)?;
    frame.into_raw();
    Ok(())
}

/// Leads `va`, which [`map_kernel_memory`] mapped, to another frame. Nobody owns the old one then.
#[cfg(feature = "ktest")]
pub(crate) fn remap_kernel(va: u64, phys: u64) {
    let kernel = KERNEL.lock();
    let table = kernel_leaf_table(kernel.root, va).expect("the page is mapped");
    let flags = table.get(index(va, 0)) & !ADDRESS;
    table.set(index(va, 0), flags | phys);
}

/// Unmaps what [`map_kernel_memory`] mapped at `va`, and keeps the frame there, hidden. CPUs may
/// still have the translation: after `tlb::flush_kernel` the frame can be had by [`take_retired`],
/// and the address be used again.
pub(crate) fn retire_kernel(va: u64) {
    let kernel = KERNEL.lock();
    let Some(table) = kernel_leaf_table(kernel.root, va) else { return };
    let entry = table.get(index(va, 0));
    if entry & PRESENT != 0 {
        table.set(index(va, 0), !entry & ADDRESS | HIDDEN);
    }
}

/// The frame that [`retire_kernel`] left at `va`.
pub(crate) fn take_retired(va: u64) -> Option<Frame> {
    let kernel = KERNEL.lock();
    let table = kernel_leaf_table(kernel.root, va)?;
    let entry = table.get(index(va, 0));
    if entry & PRESENT != 0 {
        return None;
    }
    let pfn = leaf_pfn(entry)?;
    table.set(index(va, 0), 0);
    // SAFETY: `map_kernel_memory` left the entry a reference, and the entry is gone.
    Some(unsafe { Frame::from_raw(pfn) })
}

/// The table with the entry of a page of kernel memory, if there is one.
fn kernel_leaf_table(root: u64, va: u64) -> Option<Table> {
    let mut table = Table::at(root);
    for level in (1..=3).rev() {
        let entry = table.get(index(va, level));
        if entry & PRESENT == 0 {
            return None;
        }
        table = Table::at(entry);
    }
    Some(table)
}

/// Maps device registers, uncached. The mapping stays.
pub(crate) fn map_mmio(phys: u64, len: usize) -> Result<*mut u8, OutOfMemory> {
    let mut kernel = KERNEL.lock();
    let offset = phys % PAGE_SIZE as u64;
    let pages = (offset + len as u64).div_ceil(PAGE_SIZE as u64);
    let va = kernel.mmio_next;
    for page in 0..pages {
        map_kernel(
            kernel.root,
            va + page * PAGE_SIZE as u64,
            (phys - offset) + page * PAGE_SIZE as u64,
            WRITE | NO_EXECUTE | global() | CACHE_DISABLE | WRITE_THROUGH,
            &mut new_table_frame,
        )?;
    }
    kernel.mmio_next += (pages + 1) * PAGE_SIZE as u64;
    Ok((va + offset) as *mut u8)
}

/// Where text that is being patched appears writable: two pages below the devices, not executable,
/// and unmapped at all other times. `text_poke` is the only user and holds its lock.
pub(crate) const TEXT_ALIAS: u64 = MMIO_BASE - 4 * PAGE_SIZE as u64;
/// Pages at [`TEXT_ALIAS`].
pub(crate) const TEXT_ALIAS_PAGES: u64 = 2;

/// The lowest table of [`TEXT_ALIAS`], made at the first call. Only during boot is one missing.
fn text_alias_table() -> Option<Table> {
    static TABLE: Once<u64> = Once::new();
    let make = || {
        let root = kernel_root();
        map_kernel(root, TEXT_ALIAS, 0, NO_EXECUTE, &mut new_table_frame).map_err(|_| ())?;
        let mut table = Table::at(root);
        for level in (1..=3).rev() {
            table = Table::at(table.get(index(TEXT_ALIAS, level)));
        }
        // Making the way there has mapped frame 0, read-only: it goes at once.
        table.set(index(TEXT_ALIAS, 0), 0);
        flush_page(TEXT_ALIAS);
        Ok::<u64, ()>(table.0 as u64 - PHYS_OFFSET)
    };
    TABLE.try_call_once(make).ok().map(|&phys| Table::at(phys))
}

/// Maps the image's page at `page`, and the next one if `two`, writable at [`TEXT_ALIAS`], for this
/// CPU.
///
/// # Safety
/// The caller holds the patcher's lock, and only writes what the text is allowed to become.
pub(crate) unsafe fn map_text_alias(page: u64, two: bool) -> bool {
    let Some(table) = text_alias_table() else { return false };
    for n in 0..TEXT_ALIAS_PAGES {
        let phys = page - KERNEL_BASE + n * PAGE_SIZE as u64;
        let va = TEXT_ALIAS + n * PAGE_SIZE as u64;
        // Not global, so that every flush of any kind drops it.
        let entry = phys | PRESENT | WRITE | NO_EXECUTE;
        table.set(index(va, 0), if n == 0 || two { entry } else { 0 });
        flush_page(va);
    }
    true
}

/// Takes the alias away. Other CPUs may have walked to it on their own initiative: the caller makes
/// them forget it (`tlb::flush_kernel`), unless they have not started yet.
pub(crate) fn unmap_text_alias() {
    let Some(table) = text_alias_table() else { return };
    for n in 0..TEXT_ALIAS_PAGES {
        let va = TEXT_ALIAS + n * PAGE_SIZE as u64;
        table.set(index(va, 0), 0);
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
        let va = start + n * PAGE_SIZE as u64;
        let mut table = Table::at(kernel.root);
        for level in (1..=3).rev() {
            table = Table::at(table.get(index(va, level)));
        }
        let entry = table.get(index(va, 0)) & !(WRITE | NO_EXECUTE);
        table.set(index(va, 0), if exec { entry } else { entry | NO_EXECUTE });
    }
    drop(kernel);
    tlb::flush_kernel(Cause::KernelRights);
}

/// A root that also maps the first MiB at its physical address, executable: for starting CPUs.
/// Never active once they run.
pub(crate) fn trampoline_root() -> Result<u64, OutOfMemory> {
    let root = new_table_frame().ok_or(OutOfMemory)?;
    copy_half(kernel_root(), root);
    for page in (0..0x10_0000).step_by(PAGE_SIZE) {
        map_kernel(root, page, page, WRITE, &mut new_table_frame)?;
    }
    Ok(root)
}

fn copy_half(from: u64, to: u64) {
    let (from, to) = (Table::at(from), Table::at(to));
    for slot in ENTRIES / 2..ENTRIES {
        to.set(slot, from.get(slot));
    }
}

/// The byte at a kernel address that may be anything, if it is mapped memory. Cannot fault, and
/// takes no lock. Device registers count as not mapped, since reading them may have effects.
pub(crate) fn peek(va: u64) -> Option<u8> {
    const DEVICES_END: u64 = VMAP_BASE + (1 << 39);
    let upper_half = va >= 0xffff_8000_0000_0000;
    if !upper_half || (MMIO_BASE..DEVICES_END).contains(&va) || !kernel_rights(va).0 {
        return None;
    }
    // Through the direct map, which stays: the page of a stack may be unmapped at any time.
    let at = phys_to_virt(kernel_phys(va)?);
    // SAFETY: the walk has led to memory, which the direct map has readable.
    Some(unsafe { at.read_volatile() })
}

/// Calls `f` with address and rights (write, execute, user) of every leaf of the kernel's half.
#[cfg(feature = "ktest")]
pub(crate) fn for_each_kernel_leaf(mut f: impl FnMut(u64, bool, bool, bool)) {
    fn walk(
        table: Table,
        level: u32,
        base: u64,
        rights: (bool, bool, bool),
        f: &mut dyn FnMut(u64, bool, bool, bool),
    ) {
        let first = if level == 3 { ENTRIES / 2 } else { 0 };
        for slot in first..ENTRIES {
            let entry = table.get(slot);
            if entry & PRESENT == 0 {
                continue;
            }
            let va = base | (slot as u64) << (PAGE_SHIFT as u32 + 9 * level);
            let write = rights.0 && entry & WRITE != 0;
            let exec = rights.1 && entry & NO_EXECUTE == 0;
            let user = rights.2 && entry & USER != 0;
            if level == 0 || entry & LARGE != 0 {
                f(va, write, exec, user);
            } else {
                walk(Table::at(entry), level - 1, va, (write, exec, user), f);
            }
        }
    }
    let root = Table::at(kernel_root());
    walk(root, 3, 0xffff_0000_0000_0000, (true, true, true), &mut f);
}

/// The physical address behind a kernel address, by walking the tables.
pub(crate) fn kernel_phys(va: u64) -> Option<u64> {
    let mut table = Table::at(kernel_root());
    for level in (0..=3).rev() {
        let entry = table.get(index(va, level));
        if entry & PRESENT == 0 {
            return None;
        }
        if level == 0 || entry & LARGE != 0 {
            let span = 1u64 << (PAGE_SHIFT + 9 * level);
            return Some((entry & ADDRESS & !(span - 1)) + va % span);
        }
        table = Table::at(entry);
    }
    None
}

/// How a kernel address is mapped: `(present, writable, executable, user)`, by walking the tables.
/// For the self-test.
pub(crate) fn kernel_rights(va: u64) -> (bool, bool, bool, bool) {
    let mut table = Table::at(kernel_root());
    let (mut write, mut exec, mut user) = (true, true, true);
    for level in (0..=3).rev() {
        let entry = table.get(index(va, level));
        if entry & PRESENT == 0 {
            return (false, false, false, false);
        }
        write &= entry & WRITE != 0;
        exec &= entry & NO_EXECUTE == 0;
        user &= entry & USER != 0;
        if level == 0 || entry & LARGE != 0 {
            break;
        }
        table = Table::at(entry);
    }
    (true, write, exec, user)
}

// ------------------------------------------------------------------------------------------------
// Page-table isolation

/// With isolation each space has two top tables in one naturally aligned pair of frames: the
/// kernel's at the even one, the program's at the odd one. This bit of CR3 tells them apart.
pub(crate) const USER_ROOT_BIT: u64 = PAGE_SIZE as u64;

static PTI: AtomicBool = AtomicBool::new(false);
/// The top table that all programs' tables take their kernel half from: only what entry code needs.
static SHARED_ROOT: Once<u64> = Once::new();

unsafe extern "C" {
    static __entry_text_start: u8;
    static __entry_text_end: u8;
    static __cpu_entry_start: u8;
    static __cpu_entry_end: u8;
}

/// Whether programs run on tables without the kernel.
#[inline(always)]
pub fn has_pti() -> bool {
    PTI.load(Ordering::Relaxed)
}

/// Builds what programs' tables share, if isolation is on. Before the first address space and the
/// first interrupt stack are made.
pub(crate) fn init_pti() -> Result<(), OutOfMemory> {
    if !has_pti() {
        return Ok(());
    }
    let root = new_table_frame().ok_or(OutOfMemory)?;
    // Both slots in use exist from the start, so that later additions reach every program's table.
    for slot in [VMAP_BASE, KERNEL_BASE] {
        Table::at(root).next_or_make(index(slot, 3), PRESENT | WRITE, &mut new_table_frame)?;
    }
    SHARED_ROOT.call_once(|| root);
    for (start, end) in [
        (&raw const __entry_text_start, &raw const __entry_text_end),
        (&raw const __cpu_entry_start, &raw const __cpu_entry_end),
    ] {
        share_with_programs(start as u64, end as usize - start as usize)?;
    }
    Ok(())
}

/// Maps kernel pages into the programs' tables too, with the rights they have. Does nothing without
/// isolation.
pub(crate) fn share_with_programs(start: u64, len: usize) -> Result<(), OutOfMemory> {
    let Some(&root) = SHARED_ROOT.get() else { return Ok(()) };
    for page in (start..start + len as u64).step_by(PAGE_SIZE) {
        let entry = leaf_entry(kernel_root(), page).ok_or(OutOfMemory)?;
        let (phys, flags) = (entry & ADDRESS, entry & !ADDRESS & !PRESENT);
        map_kernel(root, page, phys, flags, &mut new_table_frame)?;
    }
    Ok(())
}

/// The 4 KiB leaf that maps `va` in the tables of `root`.
fn leaf_entry(root: u64, va: u64) -> Option<u64> {
    let mut table = Table::at(root);
    for level in (1..=3).rev() {
        let entry = table.get(index(va, level));
        if entry & PRESENT == 0 || entry & LARGE != 0 {
            return None;
        }
        table = Table::at(entry);
    }
    Some(table.get(index(va, 0))).filter(|entry| entry & PRESENT != 0)
}

/// A new top table with the kernel half in place; with isolation a pair of them.
fn new_root() -> Option<u64> {
    if !has_pti() {
        let root = new_table_frame()?;
        copy_half(kernel_root(), root);
        return Some(root);
    }
    let root = u64::from(frame::alloc_block(1)?) << PAGE_SHIFT;
    // SAFETY: the pair of frames is new.
    unsafe { core::ptr::write_bytes(phys_to_virt(root), 0, 2 * PAGE_SIZE) };
    copy_half(kernel_root(), root);
    copy_half(*SHARED_ROOT.get()?, root | USER_ROOT_BIT);
    Some(root)
}

/// Frees a top table made by [`new_root`].
///
/// # Safety
/// No CPU has it loaded, and nothing refers to it.
unsafe fn free_root(root: u64) {
    let pfn = (root >> PAGE_SHIFT) as u32;
    if has_pti() {
        // SAFETY: made as a block of this order; the caller's contract.
        unsafe { frame::free_block(pfn, 1) };
    } else {
        // SAFETY: the frame was given to the root by `into_raw`; the caller's contract.
        drop(unsafe { Frame::from_raw(pfn) });
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
    fn walk(table: u64, level: u32, base: u64, rights: u64, f: &mut dyn FnMut(Shared)) {
        const NOTED: u64 = ACCESSED | DIRTY;
        for i in 0..ENTRIES {
            let entry = Table::at(table).get(i);
            let address = base + ((i as u64) << (PAGE_SHIFT + 9 * level));
            // A right needs all levels; NO_EXECUTE of one is enough.
            let rights = rights & entry & (WRITE | USER) | (rights | entry) & NO_EXECUTE;
            if entry & PRESENT != 0 && (level == 0 || entry & LARGE != 0) {
                let own = leaf_entry(kernel_root(), address);
                f(Shared {
                    address,
                    bytes: 1 << (PAGE_SHIFT + 9 * level),
                    write: rights & WRITE != 0,
                    exec: rights & NO_EXECUTE == 0,
                    user: rights & USER != 0,
                    is_kernels: own.is_some_and(|own| own & !NOTED == entry & !NOTED),
                });
            } else if entry & PRESENT != 0 {
                walk(entry & ADDRESS, level - 1, address, rights, f);
            }
        }
    }
    let Some(&root) = SHARED_ROOT.get() else { return };
    for slot in ENTRIES / 2..ENTRIES {
        let entry = Table::at(root).get(slot);
        if entry & PRESENT != 0 {
            let base = 0xffff_0000_0000_0000 | (slot as u64) << 39;
            walk(entry & ADDRESS, 2, base, entry, &mut f);
        }
    }
}

/// Entry code and entry data, the parts of the image that programs' tables map.
#[cfg(feature = "ktest")]
pub(crate) fn entry_image() -> [core::ops::Range<u64>; 2] {
    [
        (&raw const __entry_text_start) as u64..(&raw const __entry_text_end) as u64,
        (&raw const __cpu_entry_start) as u64..(&raw const __cpu_entry_end) as u64,
    ]
}

/// The first slot of a program's own top table that is not what it must be: in its half that of the
/// kernel's table for the program, in the kernel's half the one that all programs share.
#[cfg(feature = "ktest")]
pub(crate) fn odd_slot(space: &Space) -> Option<usize> {
    let shared = *SHARED_ROOT.get()?;
    let own = Table::at(space.root | USER_ROOT_BIT);
    let is_odd = |&slot: &usize| {
        let expected = if slot < ENTRIES / 2 { space.root } else { shared };
        let entry = own.get(slot) & !ACCESSED;
        entry != Table::at(expected).get(slot) & !ACCESSED
            || slot < ENTRIES / 2 && entry & PRESENT != 0 && entry & USER == 0
    };
    (0..ENTRIES).find(is_odd)
}

// ------------------------------------------------------------------------------------------------
// TLB of this CPU

/// The context that CR3 names.
#[cfg(feature = "ktest")]
pub(crate) fn context_here() -> u64 {
    cpu::read_cr3() & context_tracking::pcid::PCID_MASK
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
    unsafe { cpu::write_cr3(cpu::read_cr3()) };
    pcid::dropped_all();
}

/// Drops every translation of this CPU, of every space.
pub(crate) fn flush_all() {
    if pcid::drop_everything() {
        return;
    }
    let cr4 = cpu::read_cr4();
    if cr4 & cpu::cr::CR4_PGE == 0 {
        return flush_user();
    }
    let _irq = IrqGuard::new();
    // SAFETY: clearing PGE flushes everything (SDM 3A, 4.10.4.1), interrupts are masked meanwhile.
    unsafe { cpu::write_cr4(cr4 & !cpu::cr::CR4_PGE) };
    // SAFETY: the value that was there before.
    unsafe { cpu::write_cr4(cr4) };
}

// ------------------------------------------------------------------------------------------------
// User address spaces

/// The part of an address space that CPUs refer to: its root and its TLB state. Frees the tables,
/// and the frames they still hold, with the last reference.
pub struct Space {
    root: u64,
    /// Never 0, and never another space's.
    id: u64,
    /// Tables below the root.
    tables: AtomicU64,
    pub(crate) tlb: TlbState,
}

/// Frames that the tables of all programs take.
static USER_TABLES: AtomicU64 = AtomicU64::new(0);

/// Frames that the tables of all programs take, roots included.
pub fn user_tables() -> u64 {
    USER_TABLES.load(Ordering::Relaxed)
}

fn root_frames() -> u64 {
    if has_pti() { 2 } else { 1 }
}

impl Space {
    fn count_tables(&self, change: i64) {
        // Only who holds the `PageTable` exclusively changes the count.
        self.tables.fetch_add(change as u64, Ordering::Relaxed);
        USER_TABLES.fetch_add(change as u64, Ordering::Relaxed);
    }
}

static NEXT_SPACE: AtomicU64 = AtomicU64::new(1);

static ACTIVE: PerCpu<CpuCell<Option<Arc<Space>>>> =
    PerCpu::from_array([const { CpuCell::new(None) }; MAX_CPUS]);

/// Calls `f` with the space in this CPU's CR3, if it is a program's. Interrupts are masked.
pub(crate) fn with_active(f: impl FnOnce(&Space)) {
    // SAFETY: interrupts are masked by the callers in `tlb`, and `f` (catching up) does not switch.
    unsafe {
        ACTIVE.get().with(|active| {
            if let Some(space) = active {
                f(space);
            }
        });
    }
}

/// Loads `space` into CR3 unless it is there already. Kernel threads have no space of their own:
/// they run on whichever is active.
pub(crate) fn activate(space: &Arc<Space>) {
    let _irq = IrqGuard::new();
    let cpu = percpu::cpu_id();
    let switch = |active: &mut Option<Arc<Space>>| {
        if active.as_ref().is_some_and(|old| Arc::ptr_eq(old, space)) {
            return None;
        }
        let is_current = space.tlb.join(cpu);
        // `ACTIVE` keeps the root alive.
        pcid::load(space.id, space.root, is_current);
        let old = active.replace(space.clone());
        if let Some(old) = &old {
            old.tlb.leave(cpu);
        }
        old
    };
    // SAFETY: interrupts are masked; the closure does not reach ACTIVE again.
    let old = unsafe { ACTIVE.get().with(switch) };
    drop(old);
}

/// Leaves the active space for the kernel's own root. Used by a CPU that goes idle, so that the
/// tables of programs that ended do not linger.
pub fn deactivate() {
    let _irq = IrqGuard::new();
    let cpu = percpu::cpu_id();
    let leave = |active: &mut Option<Arc<Space>>| {
        let old = active.take()?;
        pcid::load_kernel_root();
        old.tlb.leave(cpu);
        Some(old)
    };
    // SAFETY: interrupts are masked; the closure does not reach ACTIVE again.
    let old = unsafe { ACTIVE.get().with(leave) };
    drop(old);
}

impl Drop for Space {
    fn drop(&mut self) {
        let top = Table::at(self.root);
        for slot in 0..ENTRIES / 2 {
            let entry = top.get(slot);
            if entry & PRESENT != 0 {
                free_tables(entry & ADDRESS, 2);
            }
        }
        let frames = root_frames() + self.tables.load(Ordering::Relaxed);
        USER_TABLES.fetch_sub(frames, Ordering::Relaxed);
        // SAFETY: each CPU that has the root loaded holds an `Arc<Space>`: there is none.
        unsafe { free_root(self.root) };
    }
}

/// Frees a table below the top, what it points to, and at the leaves the frames.
fn free_tables(phys: u64, level: u32) {
    let table = Table::at(phys);
    let mut next = table.next_used(0);
    while let Some(i) = next {
        let entry = table.get(i);
        if level > 0 {
            if entry & PRESENT != 0 {
                free_tables(entry & ADDRESS, level - 1);
            }
        } else if let Some(pfn) = leaf_pfn(entry) {
            // SAFETY: the leaf owned a reference, and the table dies with this walk.
            drop(unsafe { Frame::from_raw(pfn) });
        }
        next = table.next_used(i + 1);
    }
    // SAFETY: the table's frame was given to the tree by `into_raw`, and the tree is dead: no CPU
    // has it active (each holds an `Arc<Space>`).
    drop(unsafe { Frame::from_raw((phys >> PAGE_SHIFT) as u32) });
}

/// Frames that leave a page table with one shootdown.
const GATHER_LIMIT: usize = 512;

/// What left a page table and waits for the shootdown: no CPU may use it again before, neither a
/// page by a stale translation nor a table by a cached entry of the level above.
#[derive(Default)]
struct Gather {
    frames: ArrayVec<u32, GATHER_LIMIT>,
    /// First and last page unmapped.
    pages: Option<(u64, u64)>,
    tables: u64,
}

impl Gather {
    fn put_page(&mut self, va: u64, pfn: u32) {
        self.pages = Some((self.pages.map_or(va, |(first, _)| first), va));
        self.frames.push(pfn);
    }

    fn put_table(&mut self, entry: u64) {
        self.tables += 1;
        self.frames.push(((entry & ADDRESS) >> PAGE_SHIFT) as u32);
    }

    /// Frees it all, once no CPU can reach it.
    fn finish(self, space: &Space) {
        match self.pages {
            // Dropping single pages promises nothing about cached entries of upper levels in the
            // program's context (SDM 3A, 4.10.4.1, INVPCID).
            _ if self.tables > 0 => space.tlb.flush(0, u64::MAX >> PAGE_SHIFT),
            Some((first, last)) => space.tlb.flush(first, (last - first) / PAGE_SIZE as u64 + 1),
            None => return,
        }
        space.count_tables(-(self.tables as i64));
        for pfn in self.frames {
            // SAFETY: the entry that owned this reference is gone, and no CPU has it any more.
            drop(unsafe { Frame::from_raw(pfn) });
        }
    }
}

/// A program's page table. Exclusive access is the caller's (`&mut`); CPUs hold the [`Space`].
pub struct PageTable {
    space: Arc<Space>,
}

/// What a page table says about one page.
pub struct Mapping {
    /// The frame, with a reference of its own.
    pub frame: Frame,
    /// Rights of the program.
    pub prot: Prot,
}

/// As [`PageTable::detach`], in a table of the lowest level.
fn detach_pages(table: Table, range: Range<u64>, gather: &mut Gather) -> Option<u64> {
    let base = range.start & !(LARGE_SIZE - 1);
    let mut next = table.next_used(index(range.start, 0));
    while let Some(i) = next {
        let va = base + ((i as u64) << PAGE_SHIFT);
        if va >= range.end {
            break;
        }
        if let Some(pfn) = leaf_pfn(table.get(i)) {
            if gather.frames.is_full() {
                return Some(va);
            }
            table.set(i, 0);
            gather.put_page(va, pfn);
        }
        next = table.next_used(i + 1);
    }
    None
}

impl PageTable {
    /// An empty user half beside the kernel's.
    pub fn new() -> Result<PageTable, OutOfMemory> {
        let root = new_root().ok_or(OutOfMemory)?;
        let id = NEXT_SPACE.fetch_add(1, Ordering::Relaxed);
        USER_TABLES.fetch_add(root_frames(), Ordering::Relaxed);
        let tables = AtomicU64::new(0);
        Ok(PageTable { space: Arc::new(Space { root, id, tables, tlb: TlbState::new() }) })
    }

    /// The handle for [`crate::task::Task`]s that run in this space.
    pub fn space(&self) -> &Arc<Space> {
        &self.space
    }

    fn leaf_table(&self, va: u64) -> Option<Table> {
        assert!(va < USER_END, "not a user address");
        let mut table = Table::at(self.space.root);
        for level in (1..=3).rev() {
            let entry = table.get(index(va, level));
            if entry & PRESENT == 0 {
                return None;
            }
            table = Table::at(entry);
        }
        Some(table)
    }

    fn leaf_table_or_make(&mut self, va: u64) -> Result<Table, OutOfMemory> {
        assert!(va < USER_END, "not a user address");
        let mut table = Table::at(self.space.root);
        for level in (1..=3).rev() {
            let flags = PRESENT | WRITE | USER;
            let upper = table;
            let mut new_table = || new_table_frame().inspect(|_| self.space.count_tables(1));
            table = table.next_or_make(index(va, level), flags, &mut new_table)?;
            if level == 3 && has_pti() {
                // Both top tables share everything below for the user half.
                let entry = upper.get(index(va, 3));
                Table::at(self.space.root | USER_ROOT_BIT).set(index(va, 3), entry);
            }
        }
        Ok(table)
    }

    /// Maps one page. What was there before is unmapped first.
    pub fn map(&mut self, va: u64, frame: Frame, prot: Prot) -> Result<(), OutOfMemory> {
        let table = self.leaf_table_or_make(va)?;
        let i = index(va, 0);
        let old = table.get(i);
        table.set(i, prot.leaf(frame.into_raw()));
        if let Some(pfn) = leaf_pfn(old) {
            self.space.tlb.flush(va, 1);
            // SAFETY: the old entry owned a reference, and no CPU has its translation any more.
            drop(unsafe { Frame::from_raw(pfn) });
        }
        Ok(())
    }

    /// Maps those of the frames where nothing is mapped, the first at `va` and each following one a
    /// page further. All must lie below the next multiple of 2 MiB.
    pub fn map_absent(
        &mut self,
        va: u64,
        frames: impl Iterator<Item = Option<Frame>>,
        prot: Prot,
    ) -> Result<(), OutOfMemory> {
        let table = self.leaf_table_or_make(va)?;
        for (i, frame) in (index(va, 0)..).zip(frames) {
            if let Some(frame) = frame
                && leaf_pfn(table.get(i)).is_none()
            {
                table.set(i, prot.leaf(frame.into_raw()));
            }
        }
        Ok(())
    }

    /// The frame and rights of the page at `va`.
    pub fn lookup(&self, va: u64) -> Option<Mapping> {
        let entry = self.leaf_table(va)?.get(index(va, 0));
        let pfn = leaf_pfn(entry)?;
        // SAFETY: the entry holds a reference, and `&self` keeps it from being removed.
        Some(Mapping { frame: unsafe { Frame::clone_raw(pfn) }, prot: leaf_prot(entry) })
    }

    /// Frame number and rights of the page at `va`, good while `&self` is held.
    pub(crate) fn leaf(&self, va: u64) -> Option<(u32, Prot)> {
        let entry = self.leaf_table(va)?.get(index(va, 0));
        Some((leaf_pfn(entry)?, leaf_prot(entry)))
    }

    /// Changes the rights of one mapped page. False if nothing is mapped there.
    pub fn set_prot(&mut self, va: u64, prot: Prot) -> bool {
        let Some(table) = self.leaf_table(va) else { return false };
        let i = index(va, 0);
        let old = table.get(i);
        let Some(pfn) = leaf_pfn(old) else { return false };
        let new = prot.leaf(pfn);
        table.set(i, new);
        let was = leaf_prot(old);
        // Taking a right away needs the shootdown; for a new right a stale entry only faults again.
        if (was.write && !prot.write) || (was.exec && !prot.exec) || (was.read && !prot.read) {
            self.space.tlb.flush(va, 1);
        } else {
            flush_user_page(va);
        }
        true
    }

    /// Calls `f` with each mapped leaf of `[start, end)` and stores what it returns.
    fn for_each_leaf(&self, start: u64, end: u64, mut f: impl FnMut(u64, u64) -> u64) {
        assert!(start <= end && end <= USER_END, "not a user range");
        let mut va = start;
        while va < end {
            let Some(table) = self.leaf_table(va) else {
                va = self.next_table_boundary(va);
                continue;
            };
            let base = va & !(LARGE_SIZE - 1);
            let stop = (base + LARGE_SIZE).min(end);
            let mut next = table.next_used(index(va, 0));
            while let Some(i) = next {
                let va = base + ((i as u64) << PAGE_SHIFT);
                if va >= stop {
                    break;
                }
                let entry = table.get(i);
                if leaf_pfn(entry).is_some() {
                    let new = f(va, entry);
                    if new != entry {
                        table.set(i, new);
                    }
                }
                next = table.next_used(i + 1);
            }
            va = stop;
        }
    }

    /// The first address after `va` for which another table of the lowest missing level counts.
    fn next_table_boundary(&self, va: u64) -> u64 {
        let mut table = Table::at(self.space.root);
        for level in (1..=3).rev() {
            let entry = table.get(index(va, level));
            if entry & PRESENT == 0 {
                let span = 1u64 << (PAGE_SHIFT + 9 * level);
                return (va & !(span - 1)) + span;
            }
            table = Table::at(entry);
        }
        va
    }

    /// Unmaps `[start, end)` and drops the frames, after the shootdown. Tables go too that lie with
    /// all they map in `unused`: the range around, in which nothing else is mapped.
    pub fn unmap(&mut self, start: u64, end: u64, unused: Range<u64>) {
        assert!(start <= end && end <= USER_END, "not a user range");
        let mut next = Some(start);
        while let Some(from) = next {
            let mut gather = Gather::default();
            next = self.detach(Table::at(self.space.root), 3, from..end, &unused, &mut gather);
            gather.finish(&self.space);
        }
    }

    /// Takes out of `table` what it maps in `range`, as far as `gather` has room. Returns where to
    /// go on.
    fn detach(
        &self,
        table: Table,
        level: u32,
        range: Range<u64>,
        unused: &Range<u64>,
        gather: &mut Gather,
    ) -> Option<u64> {
        if level == 0 {
            return detach_pages(table, range, gather);
        }
        let span = 1u64 << (PAGE_SHIFT + 9 * level);
        let mut va = range.start;
        while va < range.end {
            let start = va & !(span - 1);
            let entry = table.get(index(va, level));
            if entry & PRESENT != 0 {
                let is_unused = unused.start <= start && start + span <= unused.end;
                // A table may have others below it in which nothing was ever mapped.
                let part = if is_unused && level > 1 {
                    start..start + span
                } else {
                    va..range.end.min(start + span)
                };
                let resume = self.detach(Table::at(entry), level - 1, part, unused, gather);
                if let Some(at) = resume {
                    return Some(if is_unused { va } else { at });
                }
                if is_unused {
                    if gather.frames.is_full() {
                        return Some(va);
                    }
                    table.set(index(va, level), 0);
                    if level == 3 && has_pti() {
                        Table::at(self.space.root | USER_ROOT_BIT).set(index(va, 3), 0);
                    }
                    gather.put_table(entry);
                }
            }
            va = start + span;
        }
        None
    }

    /// Changes the rights of every mapped page in `[start, end)` to what `f` makes of them.
    /// `f(address, rights, references to the frame)`.
    pub fn protect(&mut self, start: u64, end: u64, mut f: impl FnMut(u64, Prot, u32) -> Prot) {
        let mut changed = false;
        self.for_each_leaf(start, end, |va, entry| {
            let Some(pfn) = leaf_pfn(entry) else { return entry };
            // SAFETY: the entry holds a reference; the temporary one is dropped at once.
            let refs = unsafe { Frame::clone_raw(pfn) }.refs() - 1;
            let (old, new) = (leaf_prot(entry), f(va, leaf_prot(entry), refs));
            if new == old {
                return entry;
            }
            changed = true;
            new.leaf(pfn)
        });
        if changed {
            self.space.tlb.flush(start, (end - start) / PAGE_SIZE as u64);
        }
    }

    /// Shares every mapped page of `[start, end)` with `child`, at the same addresses. With
    /// `copy_on_write` both lose the right to write; the caller then calls [`PageTable::flush`]
    /// once for the parent.
    pub fn share_with(
        &mut self,
        child: &mut PageTable,
        start: u64,
        end: u64,
        copy_on_write: bool,
    ) -> Result<(), OutOfMemory> {
        let mut result = Ok(());
        let mut table: Option<(u64, Table)> = None;
        self.for_each_leaf(start, end, |va, entry| {
            let Some(pfn) = leaf_pfn(entry) else { return entry };
            let region = va / LARGE_SIZE;
            let target = match table {
                Some((at, target)) if at == region => target,
                _ => match child.leaf_table_or_make(va) {
                    Ok(target) => target,
                    Err(error) => {
                        result = Err(error);
                        return entry;
                    }
                },
            };
            table = Some((region, target));
            let entry = if copy_on_write && entry & PRESENT != 0 {
                entry & !(WRITE | DIRTY)
            } else {
                entry
            };
            // SAFETY: the parent's entry holds a reference; the new one goes to the child's entry.
            let raw = unsafe { Frame::clone_raw(pfn) }.into_raw();
            debug_assert_eq!(raw, pfn);
            if let Some(old) = leaf_pfn(target.get(index(va, 0))) {
                // SAFETY: the replaced entry owned a reference; the child has never run.
                drop(unsafe { Frame::from_raw(old) });
            }
            target.set(index(va, 0), entry);
            entry
        });
        result
    }

    /// Moves every mapped page of `[from, from + len)` to `to`. The target range must be unmapped.
    pub fn move_range(&mut self, from: u64, to: u64, len: u64) -> Result<(), OutOfMemory> {
        // Make the target's tables first, so that nothing fails half way.
        let mut va = to;
        while va < to + len {
            self.leaf_table_or_make(va)?;
            va = (va | (LARGE_SIZE - 1)) + 1;
        }
        let mut moved: Vec<(u64, u64)> = Vec::new();
        moved.try_reserve((len / PAGE_SIZE as u64) as usize).map_err(|_| OutOfMemory)?;
        self.for_each_leaf(from, from + len, |va, entry| {
            moved.push((va, entry));
            0
        });
        if moved.is_empty() {
            return Ok(());
        }
        self.space.tlb.flush(from, len / PAGE_SIZE as u64);
        for (va, entry) in moved {
            let target = va - from + to;
            let table = self.leaf_table_or_make(target)?;
            table.set(index(target, 0), entry);
        }
        Ok(())
    }

    /// Makes every CPU forget all translations of this space.
    pub fn flush(&self) {
        self.space.tlb.flush(0, u64::MAX >> PAGE_SHIFT);
    }

    /// Frames that the tables below the root take.
    pub fn tables(&self) -> u64 {
        self.space.tables.load(Ordering::Relaxed)
    }

    /// Number of mapped pages in `[start, end)`.
    pub fn count_mapped(&self, start: u64, end: u64) -> u64 {
        let mut count = 0;
        self.for_each_leaf(start, end, |_, entry| {
            count += 1;
            entry
        });
        count
    }
}
