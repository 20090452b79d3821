//! Nested page tables: from guest-physical addresses to the frames of the VMM's address space.
//!
//! An entry has no reference of its own to its frame. It is made only from an entry of the VMM's
//! page table, while that table's owner holds it still, and goes before the frame can: whatever
//! takes a right from an address space tells its [`MmuNotifier`]s first (`tlb`), and they drop the
//! nested entries and wait until no CPU in the guest can use them.
//!
//! A CPU in the guest is there by a number in `inside`: the count of changes up to which its
//! translations are good. Whoever drops entries increments the count, interrupts the CPUs that are
//! inside with an older one, and waits for them to leave; they come back with the new count, and
//! with no translations.
//!
//! Intel's tables differ from AMD's in leaves alone: those name their memory type.
//!
//! Lock order: the address space's own lock, then `tables`.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use context_tracking::work::Cause;
use svm::npt;

use crate::cpu::sync::SpinLock;
use crate::cpu::{MAX_CPUS, percpu};
use crate::memory::frame::{Frame, OutOfMemory, PAGE_SHIFT, PAGE_SIZE};
use crate::memory::{MmuNotifier, PageTable, Prot, Space, USER_END};

const PAGE: u64 = PAGE_SIZE as u64;
const ENTRIES: usize = 512;
/// Most ranges of memory one guest may have.
pub const MAX_SLOTS: usize = 512;

/// A range of the guest's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// First guest-physical address.
    pub guest: u64,
    /// First address in the VMM's space.
    pub user: u64,
    /// Bytes, whole pages.
    pub bytes: u64,
}

impl Slot {
    fn end(&self) -> u64 {
        self.guest + self.bytes
    }
}

/// Why nothing was mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapError {
    /// The VMM's page table has nothing there, or not with that right.
    NotMapped,
    /// No memory for a table.
    NoMemory,
}

struct Tables {
    /// The top table; the others hang below it.
    root: Frame,
    slots: Vec<Slot>,
}

/// The nested tables of one guest.
pub struct NestedSpace {
    tables: SpinLock<Tables>,
    root: u64,
    /// Whose memory it is.
    space: Arc<Space>,
    /// How often entries were dropped; from 1.
    changes: AtomicU64,
    /// By CPU: 0, or the value of `changes` with which it is in the guest.
    inside: [AtomicU64; MAX_CPUS],
}

impl NestedSpace {
    /// Tables without memory, for a guest of the program whose page table this is.
    pub fn new(of: &PageTable) -> Result<Arc<NestedSpace>, OutOfMemory> {
        let root = Frame::alloc_zeroed()?;
        let nested = Arc::new(NestedSpace {
            root: root.phys(),
            tables: SpinLock::new(Tables { root, slots: Vec::new() }),
            space: of.space().clone(),
            changes: AtomicU64::new(1),
            inside: [const { AtomicU64::new(0) }; MAX_CPUS],
        });
        let notifier: Arc<dyn MmuNotifier> = nested.clone();
        of.space().notifiers.add(&notifier)?;
        Ok(nested)
    }

    pub(super) fn root(&self) -> u64 {
        self.root
    }

    /// Replaces the ranges of memory; what was mapped goes. Panics if ranges overlap, are not of
    /// whole pages, or lie beyond what tables translate: the caller has checked.
    pub fn set_slots(&self, slots: Vec<Slot>) -> Result<(), OutOfMemory> {
        for (n, slot) in slots.iter().enumerate() {
            assert!((slot.guest | slot.user | slot.bytes).is_multiple_of(PAGE), "whole pages");
            assert!(slot.bytes <= npt::END && slot.guest <= npt::END - slot.bytes, "too far");
            assert!(slot.bytes <= USER_END && slot.user <= USER_END - slot.bytes, "not the user's");
            let overlaps = |o: &Slot| slot.guest < o.end() && o.guest < slot.end();
            assert!(slots.len() <= MAX_SLOTS && !slots[..n].iter().any(overlaps), "overlap");
        }
        let detached = Frame::alloc_zeroed()?;
        let old_slots = {
            let mut tables = self.tables.lock();
            // SAFETY: the lock is held.
            let top = unsafe { entries(tables.root.phys()) };
            // SAFETY: the frame is new, and another one.
            let old_top = unsafe { entries(detached.phys()) };
            core::mem::swap(top, old_top);
            core::mem::replace(&mut tables.slots, slots)
        };
        self.flush();
        free_below(&detached);
        drop(old_slots);
        Ok(())
    }

    /// Maps the page of guest-physical `address` as the VMM's page table, held still by the caller,
    /// maps its address. Without `write` the guest cannot write there.
    pub fn map(&self, table: &PageTable, address: u64, write: bool) -> Result<(), MapError> {
        assert!(Arc::ptr_eq(table.space(), &self.space), "another program's memory");
        let mut tables = self.tables.lock();
        let slot = tables.slots.iter().find(|s| (s.guest..s.end()).contains(&address));
        let slot = *slot.ok_or(MapError::NotMapped)?;
        let user = address - slot.guest + slot.user;
        let (pfn, prot) = table.leaf(user).ok_or(MapError::NotMapped)?;
        if prot.is_empty() || write && !prot.contains(Prot::WRITE) {
            return Err(MapError::NotMapped);
        }
        let entry = match super::ability() {
            Some(super::Ability::Vmx(_)) => vmx::ept::leaf(u64::from(pfn) << PAGE_SHIFT, write),
            _ => npt::leaf(u64::from(pfn) << PAGE_SHIFT, write),
        };
        let mut old = 0;
        let found = leaf_table(&mut tables, address, true, |leaves, index| {
            old = core::mem::replace(&mut leaves[index], entry);
        });
        drop(tables);
        found.ok_or(MapError::NoMemory)?;
        // Another frame cannot be there: it would have been dropped. A right may be gone.
        if npt::target(old).is_some() && npt::is_writable(old) && !write {
            self.flush();
        }
        Ok(())
    }

    /// Takes from the guest the right to write in a range, so that its next write is an exit.
    pub fn write_protect(&self, start: u64, end: u64) {
        let mut changed = false;
        let mut tables = self.tables.lock();
        for_leaves(&mut tables, start, end, |entry| {
            changed |= npt::is_writable(*entry);
            *entry = npt::read_only(*entry);
        });
        drop(tables);
        if changed {
            self.flush();
        }
    }

    /// The VMM's space loses rights in `[start, end)`: so does the guest.
    fn invalidate_user(&self, start: u64, end: u64) {
        let mut changed = false;
        let mut tables = self.tables.lock();
        for n in 0..tables.slots.len() {
            let slot = tables.slots[n];
            let from = start.max(slot.user);
            let to = end.min(slot.user + slot.bytes);
            if from < to {
                let guest = |user| user - slot.user + slot.guest;
                for_leaves(&mut tables, guest(from), guest(to), |entry| {
                    changed |= npt::target(*entry).is_some();
                    *entry = 0;
                });
            }
        }
        drop(tables);
        if changed {
            self.flush();
        }
    }

    /// Waits until no CPU in the guest uses what has left the tables.
    fn flush(&self) {
        let target = self.changes.fetch_add(1, Ordering::SeqCst) + 1;
        let me = percpu::cpu_id();
        let is_behind = |cpu: usize| {
            let inside = self.inside[cpu].load(Ordering::SeqCst);
            inside != 0 && inside < target
        };
        for cpu in (0..crate::cpu::cpu_count()).filter(|&cpu| cpu != me && is_behind(cpu)) {
            crate::context_tracking::ipi::send_reschedule(cpu, Cause::UserTlb);
            while is_behind(cpu) {
                crate::cpu::sync::spin_wait();
            }
        }
    }

    /// This CPU goes into the guest; up to which change its translations may be good. Interrupts
    /// are masked.
    pub(super) fn enter(&self) -> u64 {
        let inside = &self.inside[percpu::cpu_id()];
        loop {
            let changes = self.changes.load(Ordering::SeqCst);
            inside.store(changes, Ordering::SeqCst);
            // A change after this load sees the store, and interrupts.
            if self.changes.load(Ordering::SeqCst) == changes {
                return changes;
            }
        }
    }

    /// This CPU has left the guest.
    pub(super) fn leave(&self) {
        self.inside[percpu::cpu_id()].store(0, Ordering::Release);
    }
}

impl Drop for NestedSpace {
    fn drop(&mut self) {
        free_below(&self.tables.get_mut().root);
    }
}

/// The entries of a table. The frame is one that the tables own.
///
/// # Safety
/// No other reference to the entries lives: the lock of the tables is held, or nobody else has
/// them. CPUs read them at any time, each as a whole.
unsafe fn entries(phys: u64) -> &'static mut [u64; ENTRIES] {
    // SAFETY: the caller's contract; the frame is mapped, aligned, and large enough.
    unsafe { &mut *crate::memory::frame::phys_to_virt(phys).cast() }
}

/// Frees what a top table leads to that no CPU walks any more.
fn free_below(top: &Frame) {
    // SAFETY: nobody else has it: it was detached, or dies with the caller.
    for entry in unsafe { entries(top.phys()) } {
        if let Some(table) = npt::target(*entry) {
            free_table(table, npt::LEVELS - 2);
        }
    }
}

/// Frees a table of `level` (0: of leaves) and those below it.
fn free_table(phys: u64, level: u32) {
    if level > 0 {
        // SAFETY: it was detached, and CPUs have forgotten it: nobody else has it.
        for &mut entry in unsafe { entries(phys) } {
            if let Some(below) = npt::target(entry) {
                free_table(below, level - 1);
            }
        }
    }
    // SAFETY: `leaf_table` gave the frame to the entry that led here, which is gone.
    drop(unsafe { Frame::from_raw((phys >> PAGE_SHIFT) as u32) });
}

/// Calls `f` with the table of leaves for `address`, and the place in it. `make`: tables that are
/// missing are made. None: one is missing.
fn leaf_table(
    tables: &mut Tables,
    address: u64,
    make: bool,
    f: impl FnOnce(&mut [u64; ENTRIES], usize),
) -> Option<()> {
    let mut at = tables.root.phys();
    for level in (1..npt::LEVELS).rev() {
        // SAFETY: `tables` is the lock's, and no other reference lives.
        let entry = &mut unsafe { entries(at) }[npt::index(address, level)];
        at = match npt::target(*entry) {
            Some(below) => below,
            None if make => {
                let frame = Frame::alloc_zeroed().ok()?;
                let phys = frame.phys();
                frame.into_raw();
                *entry = npt::table(phys);
                phys
            }
            None => return None,
        };
    }
    // SAFETY: `at` is a table of these `tables`, which the caller has for itself.
    f(unsafe { entries(at) }, npt::index(address, 0));
    Some(())
}

/// Calls `f` with each leaf there is in a guest-physical range.
fn for_leaves(tables: &mut Tables, start: u64, end: u64, mut f: impl FnMut(&mut u64)) {
    const SPAN: u64 = PAGE * ENTRIES as u64;
    let mut address = start;
    while address < end {
        let next = ((address / SPAN + 1) * SPAN).min(end);
        let count = (next - address).div_ceil(PAGE) as usize;
        let found = leaf_table(tables, address, false, |leaves, first| {
            leaves[first..].iter_mut().take(count).for_each(&mut f);
        });
        // Where a higher table is missing there is nothing up to its end.
        address = if found.is_some() { next } else { next.max(first_table(tables, address)) };
    }
}

/// The end of what the highest missing table on the way to `address` would translate.
fn first_table(tables: &Tables, address: u64) -> u64 {
    let mut at = tables.root.phys();
    for level in (1..npt::LEVELS).rev() {
        // SAFETY: `tables` is the lock's, and no other reference lives.
        match npt::target(unsafe { entries(at) }[npt::index(address, level)]) {
            Some(below) => at = below,
            None => {
                let span = PAGE << (9 * level);
                return (address / span + 1) * span;
            }
        }
    }
    address
}

impl MmuNotifier for NestedSpace {
    fn invalidate(&self, start: u64, end: u64) {
        self.invalidate_user(start, end);
    }
}
