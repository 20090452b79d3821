//! A program's page table: how pages come, change and go.
//!
//! Entries own a counted reference to their frame. A frame leaves only after the shootdown, so no
//! CPU can reach it through a stale translation when it is used again; a table likewise, since CPUs
//! keep entries of upper levels, too.
//!
//! Memory of a program may be mapped by large pages of 2 MiB. Whoever changes a part of one makes
//! it small pages first ([`PageTable::split`]), which must not fail: so each has a table of its own
//! put aside, on a chain through the tables' first words. Pages of the pool ([`PageKind::Hugetlb`])
//! stay large: whoever changes areas of them changes whole pages, or is refused before.
//!
//! Exclusive access is the caller's (`&mut`); CPUs hold the [`Space`]. What is done with shared
//! access, by several threads at a time, is in `concurrent`.

use alloc::sync::Arc;
use core::convert::Infallible;
use core::ops::{ControlFlow, Range};
use core::sync::atomic::{AtomicU64, Ordering};

use arrayvec::ArrayVec;

use super::USER_END;
use super::isolation::mirror;
use super::kernel_space::new_table;
use super::pte::{CHANGES, KINDS, PageKind, Prot, Pte, PteFlags};
use super::user_space::Space;
use super::walk::{
    ENTRIES, EachLeaf, Slot, TOP, Table, Tables, UpToLeaf, User, Visit, index, span,
};
use crate::context_tracking::local::flush_user_page;
use crate::cpu::PhysAddr;
use crate::memory::frame::{self, Frame, HugeFrame, OutOfMemory, PAGE_SHIFT, PAGE_SIZE};

const PAGE: u64 = PAGE_SIZE as u64;
/// Bytes of a large page.
pub const HUGE_PAGE: u64 = span(HUGE_LEVEL);
/// The level of entries that map large pages.
const HUGE_LEVEL: u32 = 1;
/// Large pages that leave a page table with one shootdown.
const GATHER_HUGE: usize = 64;
/// Frames that leave a page table with one shootdown.
const GATHER_LIMIT: usize = 512;

/// Large pages that all programs have mapped, by kind.
static ALL_HUGE: [AtomicU64; KINDS] = [const { AtomicU64::new(0) }; KINDS];

/// Large pages of a kind that all programs have mapped; one that several share counts for each.
pub fn huge_pages(kind: PageKind) -> u64 {
    ALL_HUGE[kind as usize].load(Ordering::Relaxed)
}

/// See the module.
pub struct PageTable {
    space: Arc<Space>,
    /// Mapped pages, by kind.
    pub(super) mapped: [AtomicU64; KINDS],
    /// Mapped large pages, by kind.
    huge: [u64; KINDS],
    /// Tables for them to become small pages, each with the place of the next in its first word.
    aside: Option<PhysAddr>,
}

/// What a page table says about one page.
pub struct Mapping {
    /// The frame, with a reference of its own.
    pub frame: Frame,
    /// Rights of the program.
    pub prot: Prot,
    /// What is in it.
    pub kind: PageKind,
}

/// One mapped page, as a walk shows it.
#[derive(Clone, Copy, Debug)]
pub struct Page {
    /// Its address.
    pub address: u64,
    /// Rights of the program.
    pub prot: Prot,
    /// What is in it.
    pub kind: PageKind,
    /// References to the frame: 1 if nobody else has it.
    pub refs: u32,
    /// The frame's number.
    pub frame: u32,
    /// Whether it is part of a large page.
    pub is_huge: bool,
    /// Whether it was used since [`PageTable::forget_use`].
    pub is_used: bool,
}

impl Page {
    fn new(address: u64, entry: Pte, pfn: u32) -> Page {
        let is_huge = entry.is_large();
        let refs = match entry.frame() {
            Some(first) if is_huge => frame::references_in_huge(first, pfn),
            _ => frame::references(pfn),
        };
        // What the program can not reach keeps no note of it.
        let is_used = !entry.is_present() || entry.has(PteFlags::ACCESSED);
        let (prot, kind) = (entry.prot(), entry.kind());
        Page { address, prot, kind, refs, frame: pfn, is_huge, is_used }
    }

    /// A large page as one. Which parts of it are shared would take long to find out: those that
    /// may not be written to pass for shared, until a write asks ([`PageTable::own_huge`]).
    fn whole(address: u64, entry: Pte, pfn: u32) -> Page {
        let refs = if entry.has(PteFlags::WRITE) { 1 } else { 2 };
        Page { refs, ..Page::new(address, entry, pfn) }
    }
}

impl PageTable {
    /// An empty user half beside the kernel's.
    pub fn new() -> Result<PageTable, OutOfMemory> {
        let mapped = [const { AtomicU64::new(0) }; KINDS];
        Ok(PageTable { space: Arc::new(Space::new()?), mapped, huge: [0; KINDS], aside: None })
    }

    /// The handle for [`crate::task::Task`]s that run in this space.
    pub fn space(&self) -> &Arc<Space> {
        &self.space
    }

    /// Frames that the tables below the root take.
    pub fn tables(&self) -> u64 {
        self.space.tables()
    }

    /// Mapped pages of a kind.
    pub fn mapped(&self, kind: PageKind) -> u64 {
        self.mapped[kind as usize].load(Ordering::Relaxed)
    }

    /// Notes that there are more pages of a kind, or fewer.
    fn count_pages(&mut self, kind: PageKind, change: i64) {
        let mapped = self.mapped[kind as usize].get_mut();
        *mapped = mapped.wrapping_add_signed(change);
    }

    pub(super) fn tree(&self) -> Tables<User> {
        // SAFETY: the space owns a tree, and lives as long as `self`, which guards it.
        unsafe { Tables::at(self.space.root()) }
    }

    /// The entry of the page at `va`, if there is a table for it.
    pub(super) fn slot(&self, va: u64) -> Option<Slot> {
        assert!(va < USER_END, "not a user address");
        Some(self.tree().find(va)).filter(|slot| slot.level == 0)
    }

    /// What the page at `va` would have as an entry of its own.
    fn entry(&self, va: u64) -> Option<Pte> {
        assert!(va < USER_END, "not a user address");
        let slot = self.tree().find(va);
        match slot.level {
            0 => Some(slot.get()),
            HUGE_LEVEL if slot.get().is_page() => Some(slot.get().part(index(va, 0))),
            _ => None,
        }
    }

    /// The entry of the large page that maps `va`.
    fn huge_slot(&self, va: u64) -> Option<Slot> {
        assert!(va < USER_END, "not a user address");
        let slot = self.tree().find(va);
        Some(slot).filter(|slot| slot.level == HUGE_LEVEL && slot.get().is_page())
    }

    fn slot_or_make(&mut self, va: u64) -> Result<Slot, OutOfMemory> {
        self.split(va);
        self.make_slot(va, 0)
    }

    fn make_slot(&mut self, va: u64, level: u32) -> Result<Slot, OutOfMemory> {
        assert!(va < USER_END, "not a user address");
        let before = self.space.tables();
        let mut make = || new_table().inspect(|_| self.space.count_tables(1));
        let slot = self.tree().make(va, level, &mut make);
        if self.space.tables() != before {
            mirror(self.space.root(), va);
        }
        slot
    }

    /// Puts a table aside.
    fn put_aside(&mut self) -> Result<(), OutOfMemory> {
        let table = new_table().ok_or(OutOfMemory)?;
        self.space.count_tables(1);
        let next = self.aside.map_or(0, PhysAddr::as_u64);
        // SAFETY: the table is new, and nobody else's.
        unsafe { Table::at(table) }.set(0, Pte::from_raw(next));
        self.aside = Some(table);
        Ok(())
    }

    /// Takes a table that was put aside; its first word is not empty.
    fn take_aside(&mut self) -> PhysAddr {
        let table = self.aside.expect("each large page has a table aside");
        // SAFETY: what was put aside is this value's alone.
        let next = unsafe { Table::at(table) }.get(0).raw();
        self.aside = (next != 0).then(|| PhysAddr::new(next));
        table
    }

    /// Frees a table that was put aside: its large page has gone.
    fn free_aside(&mut self) {
        let table = self.take_aside();
        self.space.count_tables(-1);
        // SAFETY: it was given away when it was made, and leads nowhere.
        drop(unsafe { Frame::from_raw(table.frame()) });
    }

    /// Where the page ends that maps `va`, large or not, or would.
    pub fn page_end(&self, va: u64) -> u64 {
        let size = if self.has_huge() && self.huge_slot(va).is_some() { HUGE_PAGE } else { PAGE };
        (va & !(size - 1)) + size
    }

    /// Sees to it that `va` lies in no large page.
    pub fn make_small(&mut self, va: u64) {
        self.split(va);
    }

    /// Makes the large page that maps `va` small ones, if there is one. They have its rights.
    fn split(&mut self, va: u64) {
        let Some(slot) = self.huge_slot(va) else { return };
        let whole = slot.get();
        assert!(whole.kind() != PageKind::Hugetlb, "a page of the pool would be cut");
        let below = self.take_aside();
        // SAFETY: the table was aside: nobody else has it.
        let table = unsafe { Table::at(below) };
        (0..ENTRIES).for_each(|i| table.set(i, whole.part(i)));
        if let Some(first) = whole.frame() {
            // SAFETY: the large entry's share; the references are the small ones'.
            unsafe { frame::split_huge(first) };
        }
        slot.set(Pte::new(below, <User as super::walk::Format>::TABLE));
        self.count_huge(whole.kind(), -1);
        // No CPU may have the page in two sizes (SDM 3A, 4.10.2.3; erratum "ITLB multihit").
        self.space.flush(va & !(HUGE_PAGE - 1), ENTRIES as u64);
    }

    /// Splits the large pages that `start` and `end` cut.
    fn split_ends(&mut self, start: u64, end: u64) {
        for va in [start, end] {
            if self.has_huge() && !va.is_multiple_of(HUGE_PAGE) && va < USER_END {
                self.split(va);
            }
        }
    }

    /// Mapped large pages.
    pub fn huge_pages(&self) -> u64 {
        self.huge.iter().sum()
    }

    fn has_huge(&self) -> bool {
        // Not compared as arrays, which is a call of memcmp: every change of a range asks.
        self.huge.iter().fold(0, |all, pages| all | pages) != 0
    }

    /// Whether a large page maps `va`.
    pub fn is_huge(&self, va: u64) -> bool {
        self.huge_slot(va).is_some()
    }

    /// Whether nothing is mapped, nor was, in the 2 MiB around `va`.
    pub fn is_huge_free(&self, va: u64) -> bool {
        assert!(va < USER_END, "not a user address");
        let slot = self.tree().find(va);
        slot.level >= HUGE_LEVEL && slot.get().is_empty()
    }

    /// Maps 2 MiB from `va`, a multiple of it, on, where [`PageTable::is_huge_free`].
    pub fn map_huge(
        &mut self,
        va: u64,
        memory: HugeFrame,
        prot: Prot,
        kind: PageKind,
    ) -> Result<(), OutOfMemory> {
        assert!(va.is_multiple_of(HUGE_PAGE) && self.is_huge_free(va), "not free for 2 MiB");
        let slot = self.make_slot(va, HUGE_LEVEL)?;
        self.put_aside()?;
        self.enter_huge(slot, Pte::huge_page(memory.into_raw(), prot, kind));
        Ok(())
    }

    /// Maps 2 MiB of the pool from `va`, a multiple of it, on, in the place of those that are
    /// there. No small page is.
    pub fn map_pooled(
        &mut self,
        va: u64,
        memory: HugeFrame,
        prot: Prot,
    ) -> Result<(), OutOfMemory> {
        assert!(va.is_multiple_of(HUGE_PAGE), "not the start of 2 MiB");
        let entry = Pte::huge_page(memory.first(), prot, PageKind::Hugetlb);
        if let Some(slot) = self.huge_slot(va) {
            let old = slot.get();
            assert!(old.kind() == PageKind::Hugetlb, "a page that is not of the pool");
            if old.frame() == Some(memory.first()) && prot.keeps(old.prot()) {
                // It is there: `memory` is a share too many.
                slot.set(entry);
                flush_user_page(va);
                return Ok(());
            }
            slot.set(Pte::EMPTY);
            // As in `map`: nobody reads the old page after another has written to the new one.
            self.space.flush(va, ENTRIES as u64);
            slot.set(entry);
            memory.into_raw();
            if let Some(first) = old.frame() {
                // SAFETY: the old entry's share, and no CPU has its translation any more.
                unsafe { frame::release_huge(first) };
            }
            return Ok(());
        }
        match self.slot(va) {
            Some(slot) => self.put_aside_empty(va, slot.place().0),
            None => self.put_aside()?,
        }
        let slot = self.make_slot(va, HUGE_LEVEL).inspect_err(|_| self.free_aside())?;
        memory.into_raw();
        self.enter_huge(slot, entry);
        Ok(())
    }

    /// Takes the lowest table for `va`, in which nothing is any more, out and puts it aside.
    fn put_aside_empty(&mut self, va: u64, table: Table) {
        assert!(table.next_used(0, ENTRIES).is_none(), "small pages in an area of the pool");
        let upper = self.make_upper(va);
        let below = upper.get().to();
        upper.set(Pte::EMPTY);
        self.space.flush_tables(va, ENTRIES as u64);
        table.set(0, Pte::from_raw(self.aside.map_or(0, PhysAddr::as_u64)));
        self.aside = Some(below);
    }

    /// Enters a large page, whose references become the entry's, where none is.
    fn enter_huge(&mut self, slot: Slot, entry: Pte) {
        self.count_pages(entry.kind(), ENTRIES as i64);
        self.count_huge(entry.kind(), 1);
        slot.set(entry);
    }

    /// Notes that there are more large pages, or fewer.
    fn count_huge(&mut self, kind: PageKind, change: i64) {
        let mapped = &mut self.huge[kind as usize];
        *mapped = mapped.wrapping_add_signed(change);
        ALL_HUGE[kind as usize].fetch_add(change as u64, Ordering::Relaxed);
    }

    /// If `va` lies in a large page of which nobody else has a part, gives it these rights.
    /// Otherwise false, and `va` lies in a small page now.
    pub fn own_huge(&mut self, va: u64, prot: Prot) -> bool {
        let sole = |slot: &Slot| slot.get().frame().is_some_and(frame::is_sole_huge);
        let Some(slot) = self.huge_slot(va).filter(sole) else {
            self.split(va);
            return false;
        };
        assert!(prot.keeps(slot.get().prot()), "a right would go without a shootdown");
        slot.set(slot.get().with_prot(prot));
        flush_user_page(va);
        true
    }

    /// If `va` lies in a large page, gives it these rights, which are no less than before: what
    /// others have of it is meant to be shared. Otherwise false.
    pub fn allow_huge(&mut self, va: u64, prot: Prot) -> bool {
        let Some(slot) = self.huge_slot(va) else { return false };
        assert!(prot.keeps(slot.get().prot()), "a right would go without a shootdown");
        slot.set(slot.get().with_prot(prot));
        flush_user_page(va);
        true
    }

    /// Makes the small pages of the 2 MiB from `va` on one large page: if all are there, of this
    /// kind and with equal rights, and nobody else has any of them. Otherwise false.
    pub fn collapse(&mut self, va: u64, kind: PageKind) -> Result<bool, OutOfMemory> {
        assert!(va.is_multiple_of(HUGE_PAGE), "not the start of 2 MiB");
        let Some(slot) = self.slot(va) else { return Ok(self.huge_slot(va).is_some()) };
        let (table, _) = slot.place();
        let prot = slot.get().prot();
        let fits = |i| {
            let entry = table.get(i);
            let is_sole = entry.frame().is_some_and(|pfn| frame::references(pfn) == 1);
            is_sole && entry.kind() == kind && entry.prot() == prot
        };
        if prot.is_none() || !(0..ENTRIES).all(fits) {
            return Ok(false);
        }
        let memory = HugeFrame::alloc_undefined().ok_or(OutOfMemory)?;
        let upper = self.make_upper(va);
        // Without its table no CPU reaches the pages: none is written to while it is copied.
        let below = upper.get().to();
        upper.set(Pte::EMPTY);
        self.space.flush_tables(va, ENTRIES as u64);
        for i in 0..ENTRIES {
            let pfn = table.get(i).frame().expect("it was there a moment ago");
            // SAFETY: the entry's reference, which is dropped at the end of the round.
            let from = unsafe { Frame::from_raw(pfn) };
            // SAFETY: a second reference to a frame of the new page.
            let to = unsafe { Frame::clone_raw(memory.first() + i as u32) };
            to.copy_from(&from, PAGE_SIZE);
            table.set(i, Pte::EMPTY);
        }
        // The table is the one that goes aside.
        let next = self.aside.map_or(0, PhysAddr::as_u64);
        table.set(0, Pte::from_raw(next));
        self.aside = Some(below);
        self.count_pages(kind, -(ENTRIES as i64));
        self.enter_huge(upper, Pte::huge_page(memory.into_raw(), prot, kind));
        Ok(true)
    }

    /// The entry that leads to the lowest table for `va`, which there is.
    fn make_upper(&self, va: u64) -> Slot {
        let slot = self.tree().make(va, HUGE_LEVEL, &mut || None);
        slot.expect("the tables are there")
    }

    /// Enters a page where none is.
    fn enter(&mut self, slot: Slot, frame: Frame, prot: Prot, kind: PageKind) {
        self.count_pages(kind, 1);
        slot.set(Pte::page(frame.into_raw(), prot, kind));
    }

    /// Maps one page. What was there before is unmapped first, on all CPUs: otherwise a thread
    /// could read the old page after another has written to the new one.
    pub fn map(
        &mut self,
        va: u64,
        frame: Frame,
        prot: Prot,
        kind: PageKind,
    ) -> Result<(), OutOfMemory> {
        let slot = self.slot_or_make(va)?;
        let old = slot.get();
        if let Some(pfn) = old.frame() {
            slot.set(Pte::EMPTY);
            self.count_pages(old.kind(), -1);
            self.space.flush(va, 1);
            // SAFETY: the old entry owned a reference, and no CPU has its translation any more.
            unsafe { frame::release(&[pfn]) };
        }
        self.enter(slot, frame, prot, kind);
        Ok(())
    }

    /// As [`PageTable::fill_absent`], where there may be no table yet.
    pub fn map_absent(
        &mut self,
        va: u64,
        frames: impl Iterator<Item = Option<Frame>>,
        prot: Prot,
        kind: PageKind,
    ) -> Result<(), OutOfMemory> {
        self.slot_or_make(va)?;
        self.fill_absent(va, frames, prot, kind);
        Ok(())
    }

    /// The frame and rights of the page at `va`. Exclusive: who shares the table may take a frame
    /// out of an entry that has just been read (`concurrent.rs`).
    pub fn lookup(&mut self, va: u64) -> Option<Mapping> {
        let entry = self.entry(va)?;
        // SAFETY: the entry holds a reference, and `&mut self` keeps it from being removed.
        let frame = unsafe { Frame::clone_raw(entry.frame()?) };
        Some(Mapping { frame, prot: entry.prot(), kind: entry.kind() })
    }

    /// Frame number and rights of the page at `va`, a moment ago. In a space that has notifiers
    /// they are good while `&self` is held: nobody who shares the table takes anything then.
    pub(crate) fn leaf(&self, va: u64) -> Option<(u32, Prot)> {
        let entry = self.entry(va)?;
        Some((entry.frame()?, entry.prot()))
    }

    /// Changes the rights of one mapped page. False if nothing is mapped there.
    pub fn set_prot(&mut self, va: u64, prot: Prot) -> bool {
        self.split(va);
        let Some(slot) = self.slot(va).filter(|slot| slot.get().is_page()) else { return false };
        let old = slot.get().prot();
        slot.set(slot.get().with_prot(prot));
        // Taking a right away needs the shootdown; for a new right a stale entry only faults again.
        if prot.keeps(old) {
            flush_user_page(va);
        } else {
            self.space.flush(va, 1);
        }
        true
    }

    /// Changes the rights of every mapped page in `[start, end)` to what `f` makes of them.
    pub fn protect(&mut self, start: u64, end: u64, mut f: impl FnMut(Page) -> Prot) {
        self.split_ends(start, end);
        let mut lost: Option<(u64, u64)> = None;
        let mut each = EachLeaf(|va, slot: Slot| {
            let entry = slot.get();
            let Some(pfn) = entry.frame() else { return };
            let is_huge = slot.level == HUGE_LEVEL;
            let page = if is_huge { Page::whole } else { Page::new }(va, entry, pfn);
            let (old, new) = (entry.prot(), f(page));
            if new != old {
                slot.set(entry.with_prot(new));
            }
            if !new.keeps(old) {
                let last = if is_huge { va + HUGE_PAGE - PAGE } else { va };
                lost = Some((lost.map_or(va, |(first, _)| first), last));
            }
        });
        self.tree().visit(user_range(start, end), &mut each);
        // For a new right a stale translation only faults again.
        if let Some((first, last)) = lost {
            self.space.flush(first, (last - first) / PAGE + 1);
        }
    }

    /// Unmaps `[start, end)` and drops the frames, after the shootdown. Tables go too that lie with
    /// all they map in `unused`: the range around, in which nothing else is mapped.
    pub fn unmap(&mut self, start: u64, end: u64, unused: Range<u64>) {
        self.split_ends(start, end);
        let mut next = Some(start);
        while let Some(from) = next {
            let mut gather = Gather::new(unused.clone(), self.space.root());
            next = self.tree().visit(user_range(from, end), &mut gather);
            for (left, taken) in self.mapped.iter_mut().zip(gather.taken) {
                *left.get_mut() -= taken;
            }
            if !gather.huge.is_empty() {
                for (kind, taken) in PageKind::ALL.into_iter().zip(gather.taken_huge) {
                    self.count_huge(kind, -(taken as i64));
                }
            }
            gather.finish(&self.space);
            gather.huge.iter().for_each(|_| self.free_aside());
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
        self.split_ends(start, end);
        let mut visitor = Share { child, copy_on_write, failed: false };
        self.tree().visit(user_range(start, end), &mut visitor);
        if visitor.failed { Err(OutOfMemory) } else { Ok(()) }
    }

    /// Moves every mapped page of `[from, from + len)` to `to`. The target range must be unmapped.
    /// Where both lie alike in their 2 MiB, whole tables move.
    pub fn move_range(&mut self, from: u64, to: u64, len: u64) -> Result<(), OutOfMemory> {
        self.split_ends(from, from + len);
        self.make_targets(from, to, len)?;
        let mut at = from;
        // The program reaches its pages at both places for a moment, as it could a moment ago.
        while at < from + len {
            let stop = (from + len).min((at | (span(1) - 1)) + 1);
            let target = at - from + to;
            if stop - at < span(1) || !self.move_table(at, target) {
                self.move_pages(at, target, stop - at);
            }
            at = stop;
        }
        self.flush();
        Ok(())
    }

    /// Makes the tables that [`PageTable::move_range`] needs, so that nothing fails half way.
    fn make_targets(&mut self, from: u64, to: u64, len: u64) -> Result<(), OutOfMemory> {
        let mut at = from;
        while at < from + len {
            let stop = (from + len).min((at | (span(1) - 1)) + 1);
            let target = at - from + to;
            if self.huge_slot(at).is_some() && target.is_multiple_of(HUGE_PAGE) {
                self.make_slot(target, HUGE_LEVEL)?;
            } else {
                self.split(at);
            }
            if self.tree().find(at).level == 0 {
                self.slot_or_make(target)?;
                self.slot_or_make(stop - 1 - from + to)?;
            }
            at = stop;
        }
        Ok(())
    }

    /// Moves the lowest table for `from`, or the large page, as a whole. False if they lie
    /// differently.
    fn move_table(&self, from: u64, to: u64) -> bool {
        if !from.is_multiple_of(span(1)) || !to.is_multiple_of(span(1)) {
            return false;
        }
        let upper = |va| {
            let mut no_table = || None;
            self.tree().make(va, HUGE_LEVEL, &mut no_table).ok()
        };
        // Without a table there is nothing to move.
        let Some(source) = upper(from).filter(|slot| !slot.get().is_empty()) else { return true };
        let Some(target) = upper(to) else { return false };
        if target.get().is_empty() && !source.get().is_large() {
            return false;
        }
        // The empty table takes the old place.
        let (moved, empty) = (source.get(), target.get());
        target.set(moved);
        source.set(empty);
        true
    }

    fn move_pages(&self, from: u64, to: u64, len: u64) {
        self.tree().visit(from..from + len, &mut Move { table: self, from, to });
    }

    /// Makes every CPU forget all translations of this space.
    pub fn flush(&self) {
        self.space.flush(0, u64::MAX >> PAGE_SHIFT);
    }

    /// Pages in `[start, end)` count as not used from now on, after [`PageTable::flush`]: the CPU
    /// notes the use of those alone of which it has no translation. A page whose rights change
    /// counts as used.
    pub fn forget_use(&mut self, start: u64, end: u64) {
        let mut each = EachLeaf(|_, slot: Slot| {
            let entry = slot.get();
            // A note that the CPU makes between these two is lost; nothing else of it is.
            if entry.is_present() && entry.has(PteFlags::ACCESSED) {
                slot.set(entry.without(PteFlags::ACCESSED));
            }
        });
        self.tree().visit(user_range(start, end), &mut each);
    }

    /// Calls `f` with the parts of `[start, end)` that are mapped, page by page or by large ones.
    pub fn for_each_part(&self, start: u64, end: u64, mut f: impl FnMut(Range<u64>)) {
        let mut each = EachLeaf(|va: u64, slot: Slot| {
            if slot.get().is_page() {
                f(va.max(start)..(va + span(slot.level)).min(end));
            }
        });
        self.tree().visit(user_range(start, end), &mut each);
    }

    /// Whether a page of this kind is mapped in `[start, end)`.
    #[must_use]
    pub fn has_any(&self, start: u64, end: u64, kind: PageKind) -> bool {
        let is_one = |va, slot: Slot| {
            let entry = slot.get();
            entry.frame().is_some_and(|pfn| Page::new(va, entry, pfn).kind == kind)
        };
        self.tree().visit(user_range(start, end), &mut UpToLeaf(is_one)).is_some()
    }

    /// Calls `f` with each mapped page in `[start, end)`.
    pub fn for_each(&self, start: u64, end: u64, mut f: impl FnMut(Page)) {
        let mut each = EachLeaf(|va, slot: Slot| {
            let entry = slot.get();
            let Some(pfn) = entry.frame() else { return };
            if slot.level == 0 {
                return f(Page::new(va, entry, pfn));
            }
            // A large page may reach beyond the range.
            let inside = (0..ENTRIES).map(|i| (va + i as u64 * PAGE, pfn + i as u32));
            for (va, pfn) in inside.filter(|(va, _)| (start..end).contains(va)) {
                f(Page::new(va, entry, pfn));
            }
        });
        self.tree().visit(user_range(start, end), &mut each);
    }
}

impl Drop for PageTable {
    fn drop(&mut self) {
        for (kind, mapped) in PageKind::ALL.into_iter().zip(self.huge) {
            self.count_huge(kind, -(mapped as i64));
        }
        while self.aside.is_some() {
            self.free_aside();
        }
    }
}

pub(super) fn user_range(start: u64, end: u64) -> Range<u64> {
    assert!(start <= end && end <= USER_END, "not a user range");
    start..end
}

/// What leaves a page table and waits for the shootdown: no CPU may use it again before, neither a
/// page by a stale translation nor a table by a cached entry of the level above.
pub(super) struct Gather {
    frames: ArrayVec<u32, GATHER_LIMIT>,
    /// First frames of large pages.
    huge: ArrayVec<u32, GATHER_HUGE>,
    /// First and last page unmapped.
    pages: Option<(u64, u64)>,
    pub(super) taken: [u64; KINDS],
    /// Large pages among them.
    taken_huge: [u64; KINDS],
    tables: u64,
    unused: Range<u64>,
    /// The top table, with exclusive access.
    root: Option<PhysAddr>,
    /// Without: something was large or claimed, or changed meanwhile, and is left.
    pub(super) has_missed: bool,
}

impl Gather {
    fn new(unused: Range<u64>, root: PhysAddr) -> Gather {
        Gather { root: Some(root), unused, ..Gather::without_tables() }
    }

    /// For who shares the page table: no table goes.
    pub(super) fn without_tables() -> Gather {
        Gather {
            frames: ArrayVec::new(),
            huge: ArrayVec::new(),
            pages: None,
            taken: [0; KINDS],
            taken_huge: [0; KINDS],
            tables: 0,
            unused: 0..0,
            root: None,
            has_missed: false,
        }
    }

    /// Takes a page out. False if somebody else has it.
    #[inline]
    fn take(&mut self, table: Table, index: usize, entry: Pte) -> bool {
        if self.root.is_some() {
            table.set(index, Pte::EMPTY);
            return true;
        }
        let is_taken = !entry.has(PteFlags::CLAIMED) && table.exchange(index, entry, Pte::EMPTY);
        self.has_missed |= !is_taken;
        is_taken
    }

    /// Frees it all, once no CPU can reach it.
    pub(super) fn finish(&self, space: &Space) {
        if self.frames.is_empty() && self.huge.is_empty() {
            return;
        }
        let (first, pages) = match self.pages {
            Some((first, last)) => (first, (last - first) / PAGE + 1),
            None => (0, 0),
        };
        if self.tables > 0 {
            space.flush_tables(first, pages);
        } else {
            space.flush(first, pages);
        }
        space.count_tables(-(self.tables as i64));
        // SAFETY: the entries that owned these references are gone, and no CPU has them any more.
        unsafe { frame::release(&self.frames) };
        for &first in &self.huge {
            // SAFETY: its entry is gone as well, and the flush was before this.
            unsafe { frame::release_huge(first) };
        }
    }
}

impl Visit for Gather {
    /// A large page: those that the range cuts were split. With shared access it is left.
    fn leaf(&mut self, va: u64, slot: Slot) -> ControlFlow<()> {
        let entry = slot.get();
        let Some(pfn) = entry.frame() else { return ControlFlow::Continue(()) };
        if self.root.is_none() {
            self.has_missed = true;
            return ControlFlow::Continue(());
        }
        if self.huge.try_push(pfn).is_err() {
            return ControlFlow::Break(());
        }
        self.taken[entry.kind() as usize] += ENTRIES as u64;
        self.taken_huge[entry.kind() as usize] += 1;
        slot.set(Pte::EMPTY);
        let (from, _) = self.pages.unwrap_or((va, 0));
        self.pages = Some((from, va + HUGE_PAGE - PAGE));
        ControlFlow::Continue(())
    }

    fn pages(&mut self, base: u64, table: Table, range: Range<usize>) -> ControlFlow<u64> {
        let at = |index: usize| base + index as u64 * PAGE;
        let mut bounds: Option<(usize, usize)> = None;
        let result = table.each_used(range, |i, entry| {
            let (first, _) = bounds.unwrap_or((i, i));
            if let Some(pfn) = entry.frame() {
                if self.frames.is_full() {
                    return ControlFlow::Break(at(i));
                }
                if !self.take(table, i, entry) {
                    return ControlFlow::Continue(());
                }
                self.frames.push(pfn);
                self.taken[entry.kind() as usize] += 1;
            }
            bounds = Some((first, i));
            ControlFlow::Continue(())
        });
        if let Some((first, last)) = bounds {
            let (from, _) = self.pages.unwrap_or((at(first), 0));
            self.pages = Some((from, at(last)));
        }
        result
    }

    fn takes_table(&self, part: &Range<u64>) -> bool {
        self.unused.start <= part.start && part.end <= self.unused.end
    }

    fn table(&mut self, va: u64, slot: Slot) -> ControlFlow<()> {
        if self.frames.try_push(slot.get().to().frame()).is_err() {
            return ControlFlow::Break(());
        }
        self.tables += 1;
        slot.set(Pte::EMPTY);
        if let Some(root) = self.root
            && slot.level == TOP
        {
            mirror(root, va);
        }
        ControlFlow::Continue(())
    }
}

/// Moves small pages from one address to another, where tables for them are.
struct Move<'a> {
    table: &'a PageTable,
    from: u64,
    to: u64,
}

impl Visit for Move<'_> {
    /// Large pages are split before, or move by [`PageTable::move_table`].
    fn leaf(&mut self, _va: u64, _slot: Slot) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    /// They have two tables at most at the other address.
    fn pages(&mut self, base: u64, table: Table, range: Range<usize>) -> ControlFlow<u64> {
        let mut start = range.start;
        while start < range.end {
            let va = base + start as u64 * PAGE - self.from + self.to;
            let stop = range.end.min(start + ENTRIES - index(va, 0));
            if let Some((target, first)) = self.table.slot(va).map(Slot::place) {
                let moved = table.each_used(start..stop, |i, entry| {
                    target.set(first + i - start, entry);
                    table.set(i, Pte::EMPTY);
                    ControlFlow::<Infallible>::Continue(())
                });
                let ControlFlow::Continue(()) = moved;
            }
            start = stop;
        }
        ControlFlow::Continue(())
    }
}

/// Shares pages with a child's table.
struct Share<'a> {
    child: &'a mut PageTable,
    copy_on_write: bool,
    failed: bool,
}

impl Visit for Share<'_> {
    /// A large page, which both have as such.
    fn leaf(&mut self, va: u64, slot: Slot) -> ControlFlow<()> {
        let mut entry = slot.get();
        let Some(pfn) = entry.frame() else { return ControlFlow::Continue(()) };
        let target = self.child.make_slot(va, HUGE_LEVEL);
        let (Ok(target), Ok(())) = (target, self.child.put_aside()) else {
            self.failed = true;
            return ControlFlow::Break(());
        };
        if self.copy_on_write && entry.has(PteFlags::WRITE) {
            entry = entry.without(CHANGES);
            slot.set(entry);
        }
        // SAFETY: the parent's entry holds the references, and the parent is held exclusively; the
        // new ones go to the child's entry, where nothing is.
        unsafe { frame::share_huge(pfn) };
        self.child.enter_huge(target, entry);
        ControlFlow::Continue(())
    }

    fn pages(&mut self, base: u64, table: Table, range: Range<usize>) -> ControlFlow<u64> {
        if table.next_used(range.start, range.end).is_none() {
            return ControlFlow::Continue(());
        }
        let Ok(target) = self.child.slot_or_make(base) else {
            self.failed = true;
            return ControlFlow::Break(base);
        };
        let (target, _) = target.place();
        let mut shared = [0; KINDS];
        let copy_on_write = self.copy_on_write;
        let done = table.each_used(range, |i, mut entry| {
            if let Some(pfn) = entry.frame() {
                // A shadow stack has one of the two.
                if copy_on_write && entry.flags().intersects(CHANGES) {
                    entry = entry.without(CHANGES);
                    table.set(i, entry);
                }
                // SAFETY: the parent's entry holds a reference; the new one goes to the child's
                // entry, where nothing is: its areas do not overlap.
                unsafe { Frame::clone_raw(pfn) }.into_raw();
                shared[entry.kind() as usize] += 1;
                target.set(i, entry);
            }
            ControlFlow::Continue(())
        });
        for (mapped, shared) in self.child.mapped.iter_mut().zip(shared) {
            *mapped.get_mut() += shared;
        }
        done
    }
}
