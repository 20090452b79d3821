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
//! Intel's tables differ from AMD's in leaves alone: those name their memory type. Both are walked
//! as a program's tables are (`memory/walk.rs`).
//!
//! Lock order: the address space's own lock, then `tables`.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::{ControlFlow, Range};
use core::sync::atomic::{AtomicU64, Ordering};

use context_tracking::work::Cause;
use svm::npt;

use crate::cpu::sync::SpinLock;
use crate::cpu::{MAX_CPUS, PhysAddr, percpu};
use crate::memory::frame::{Frame, OutOfMemory, PAGE_SIZE};
use crate::memory::walk::{self, EachLeaf, Table, Visit};
use crate::memory::{MmuNotifier, PageTable, Prot, Pte, Space, USER_END, new_table};

const PAGE: u64 = PAGE_SIZE as u64;

/// What leads to a table is the same in all three formats, so one [`walk::Format`] serves.
const _: () = assert!(<walk::User as walk::Format>::TABLE.bits() == vmx::ept::TABLE);
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

impl Tables {
    fn tree(&mut self) -> walk::Tables<walk::User> {
        // SAFETY: `new` made the top table, `map` all below it, and they go only when they were
        // detached; who has this value alone, by its lock or because it dies, owns the tree.
        unsafe { walk::Tables::at(PhysAddr::new(self.root.phys())) }
    }

    /// Calls `f` with each leaf there is in a guest-physical range; what it returns takes its
    /// place. CPUs read entries at any time, each as a whole.
    fn change_leaves(&mut self, range: Range<u64>, mut f: impl FnMut(u64) -> u64) {
        let change = |_, slot: walk::Slot| slot.set(Pte::from_raw(f(slot.get().raw())));
        self.tree().visit(range, &mut EachLeaf(change));
    }
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
    /// Tables without memory, for a guest of the program whose page table this is. Exclusive: who
    /// shares the table has looked for notifiers before.
    pub fn new(of: &mut PageTable) -> Result<Arc<NestedSpace>, OutOfMemory> {
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
            // SAFETY: the lock is held, and the top table lives as long as `tables`.
            let top = unsafe { Table::at(PhysAddr::new(tables.root.phys())) };
            // SAFETY: the frame is new, and another one.
            let aside = unsafe { Table::at(PhysAddr::new(detached.phys())) };
            for index in 0..walk::ENTRIES {
                aside.set(index, top.get(index));
                top.set(index, Pte::EMPTY);
            }
            core::mem::replace(&mut tables.slots, slots)
        };
        self.flush();
        drop(Tables { root: detached, slots: old_slots });
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
        if prot.is_none() || write && !prot.contains(Prot::WRITE) {
            return Err(MapError::NotMapped);
        }
        let to = PhysAddr::of_frame(pfn).as_u64();
        let entry = match super::ability() {
            Some(super::Ability::Vmx(_)) => vmx::ept::leaf(to, write),
            _ => npt::leaf(to, write),
        };
        let leaf = tables.tree().make(address, 0, &mut new_table);
        let leaf = leaf.map_err(|OutOfMemory| MapError::NoMemory)?;
        let old = leaf.get().raw();
        leaf.set(Pte::from_raw(entry));
        drop(tables);
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
        tables.change_leaves(start..end, |entry| {
            changed |= npt::is_writable(entry);
            npt::read_only(entry)
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
                tables.change_leaves(guest(from)..guest(to), |entry| {
                    changed |= npt::target(entry).is_some();
                    0
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

impl Drop for Tables {
    fn drop(&mut self) {
        self.tree().visit(0..npt::END, &mut Free);
    }
}

/// Frees all tables below the top one. CPUs have forgotten them.
struct Free;

impl Visit for Free {
    /// Nothing of a leaf is the table's.
    fn leaf(&mut self, _: u64, _: walk::Slot) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    fn pages(&mut self, _: u64, _: Table, _: Range<usize>) -> ControlFlow<u64> {
        ControlFlow::Continue(())
    }

    fn takes_table(&self, _: &Range<u64>) -> bool {
        true
    }

    fn table(&mut self, _: u64, slot: walk::Slot) -> ControlFlow<()> {
        let table = slot.get().to().frame();
        slot.set(Pte::EMPTY);
        // SAFETY: `map` gave the frame to the entry that led here, which is gone.
        drop(unsafe { Frame::from_raw(table) });
        ControlFlow::Continue(())
    }
}

impl Drop for NestedSpace {
    fn drop(&mut self) {
        self.space.notifiers.one_less();
    }
}

impl MmuNotifier for NestedSpace {
    fn invalidate(&self, start: u64, end: u64) {
        self.invalidate_user(start, end);
    }
}
