//! A program's page table: how pages come, change and go.
//!
//! Entries own a counted reference to their frame. A frame leaves only after the shootdown, so no
//! CPU can reach it through a stale translation when it is used again; a table likewise, since CPUs
//! keep entries of upper levels, too.
//!
//! Exclusive access is the caller's (`&mut`); CPUs hold the [`Space`].

use alloc::sync::Arc;
use core::ops::{ControlFlow, Range};

use arrayvec::ArrayVec;

use super::USER_END;
use super::isolation::mirror;
use super::kernel_space::new_table;
use super::local::flush_user_page;
use super::pte::{KINDS, PageKind, Prot, Pte, PteFlags};
use super::user_space::Space;
use super::walk::{EachLeaf, Slot, TOP, Table, Tables, User, Visit, span};
use crate::frame::{self, Frame, OutOfMemory, PAGE_SHIFT, PAGE_SIZE};

const PAGE: u64 = PAGE_SIZE as u64;
/// Frames that leave a page table with one shootdown.
const GATHER_LIMIT: usize = 512;

/// See the module.
pub struct PageTable {
    space: Arc<Space>,
    /// Mapped pages, by kind.
    mapped: [u64; KINDS],
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
}

impl Page {
    fn new(address: u64, entry: Pte, pfn: u32) -> Page {
        let refs = frame::references(pfn);
        Page { address, prot: entry.prot(), kind: entry.kind(), refs, frame: pfn }
    }
}

impl PageTable {
    /// An empty user half beside the kernel's.
    pub fn new() -> Result<PageTable, OutOfMemory> {
        Ok(PageTable { space: Arc::new(Space::new()?), mapped: [0; KINDS] })
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
        self.mapped[kind as usize]
    }

    fn tree(&self) -> Tables<User> {
        // SAFETY: the space owns a tree, and lives as long as `self`, which guards it.
        unsafe { Tables::at(self.space.root()) }
    }

    /// The entry of the page at `va`, if there is a table for it.
    fn slot(&self, va: u64) -> Option<Slot> {
        assert!(va < USER_END, "not a user address");
        Some(self.tree().find(va)).filter(|slot| slot.level == 0)
    }

    fn slot_or_make(&mut self, va: u64) -> Result<Slot, OutOfMemory> {
        assert!(va < USER_END, "not a user address");
        let before = self.space.tables();
        let mut make = || new_table().inspect(|_| self.space.count_tables(1));
        let slot = self.tree().make(va, 0, &mut make);
        if self.space.tables() != before {
            mirror(self.space.root(), va);
        }
        slot
    }

    /// Enters a page where none is.
    fn enter(&mut self, slot: Slot, frame: Frame, prot: Prot, kind: PageKind) {
        self.mapped[kind as usize] += 1;
        slot.set(Pte::page(frame.into_raw(), prot, kind));
    }

    /// Maps one page. What was there before is unmapped first.
    pub fn map(
        &mut self,
        va: u64,
        frame: Frame,
        prot: Prot,
        kind: PageKind,
    ) -> Result<(), OutOfMemory> {
        let slot = self.slot_or_make(va)?;
        let old = slot.get();
        self.enter(slot, frame, prot, kind);
        if let Some(pfn) = old.frame() {
            self.mapped[old.kind() as usize] -= 1;
            self.space.tlb.flush(va, 1);
            // SAFETY: the old entry owned a reference, and no CPU has its translation any more.
            unsafe { frame::release(&[pfn]) };
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
        kind: PageKind,
    ) -> Result<(), OutOfMemory> {
        let (table, first) = self.slot_or_make(va)?.place();
        for (i, frame) in (first..).zip(frames) {
            if let Some(frame) = frame
                && table.get(i).is_empty()
            {
                self.mapped[kind as usize] += 1;
                table.set(i, Pte::page(frame.into_raw(), prot, kind));
            }
        }
        Ok(())
    }

    /// The frame and rights of the page at `va`.
    pub fn lookup(&self, va: u64) -> Option<Mapping> {
        let entry = self.slot(va)?.get();
        // SAFETY: the entry holds a reference, and `&self` keeps it from being removed.
        let frame = unsafe { Frame::clone_raw(entry.frame()?) };
        Some(Mapping { frame, prot: entry.prot(), kind: entry.kind() })
    }

    /// Frame number and rights of the page at `va`, good while `&self` is held.
    pub(crate) fn leaf(&self, va: u64) -> Option<(u32, Prot)> {
        let entry = self.slot(va)?.get();
        Some((entry.frame()?, entry.prot()))
    }

    /// Changes the rights of one mapped page. False if nothing is mapped there.
    pub fn set_prot(&mut self, va: u64, prot: Prot) -> bool {
        let Some(slot) = self.slot(va).filter(|slot| slot.get().is_page()) else { return false };
        let old = slot.get().prot();
        slot.set(slot.get().with_prot(prot));
        // Taking a right away needs the shootdown; for a new right a stale entry only faults again.
        if prot.contains(old) {
            flush_user_page(va);
        } else {
            self.space.tlb.flush(va, 1);
        }
        true
    }

    /// Changes the rights of every mapped page in `[start, end)` to what `f` makes of them.
    pub fn protect(&mut self, start: u64, end: u64, mut f: impl FnMut(Page) -> Prot) {
        let mut lost: Option<(u64, u64)> = None;
        let mut each = EachLeaf(|va, slot: Slot| {
            let entry = slot.get();
            let Some(pfn) = entry.frame() else { return };
            let (old, new) = (entry.prot(), f(Page::new(va, entry, pfn)));
            if new != old {
                slot.set(entry.with_prot(new));
            }
            if !new.contains(old) {
                lost = Some((lost.map_or(va, |(first, _)| first), va));
            }
        });
        self.tree().visit(user_range(start, end), &mut each);
        // For a new right a stale translation only faults again.
        if let Some((first, last)) = lost {
            self.space.tlb.flush(first, (last - first) / PAGE + 1);
        }
    }

    /// Unmaps `[start, end)` and drops the frames, after the shootdown. Tables go too that lie with
    /// all they map in `unused`: the range around, in which nothing else is mapped.
    pub fn unmap(&mut self, start: u64, end: u64, unused: Range<u64>) {
        let mut next = Some(start);
        while let Some(from) = next {
            let mut gather = Gather::new(unused.clone(), self.space.root());
            next = self.tree().visit(user_range(from, end), &mut gather);
            for (left, taken) in self.mapped.iter_mut().zip(gather.taken) {
                *left -= taken;
            }
            gather.finish(&self.space);
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
        let mut visitor = Share { child, copy_on_write, failed: false };
        self.tree().visit(user_range(start, end), &mut visitor);
        if visitor.failed { Err(OutOfMemory) } else { Ok(()) }
    }

    /// Moves every mapped page of `[from, from + len)` to `to`. The target range must be unmapped.
    /// Where both lie alike in their 2 MiB, whole tables move.
    pub fn move_range(&mut self, from: u64, to: u64, len: u64) -> Result<(), OutOfMemory> {
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
            if self.tree().find(at).level == 0 {
                self.slot_or_make(at - from + to)?;
                self.slot_or_make(stop - 1 - from + to)?;
            }
            at = stop;
        }
        Ok(())
    }

    /// Moves the lowest table for `from` as a whole. False if they lie differently.
    fn move_table(&self, from: u64, to: u64) -> bool {
        if !from.is_multiple_of(span(1)) || !to.is_multiple_of(span(1)) {
            return false;
        }
        let upper = |va| {
            let mut no_table = || None;
            self.tree().make(va, 1, &mut no_table).ok().filter(|slot| !slot.get().is_empty())
        };
        // Without a table there is nothing to move.
        let Some(source) = upper(from) else { return true };
        let Some(target) = upper(to) else { return false };
        // The empty table takes the old place.
        let (moved, empty) = (source.get(), target.get());
        target.set(moved);
        source.set(empty);
        true
    }

    fn move_pages(&self, from: u64, to: u64, len: u64) {
        let mut each = EachLeaf(|va, slot: Slot| {
            if let Some(target) = self.slot(va - from + to) {
                target.set(slot.get());
                slot.set(Pte::EMPTY);
            }
        });
        self.tree().visit(from..from + len, &mut each);
    }

    /// Makes every CPU forget all translations of this space.
    pub fn flush(&self) {
        self.space.tlb.flush(0, u64::MAX >> PAGE_SHIFT);
    }

    /// Calls `f` with each mapped page in `[start, end)`.
    pub fn for_each(&self, start: u64, end: u64, mut f: impl FnMut(Page)) {
        let mut each = EachLeaf(|va, slot: Slot| {
            let entry = slot.get();
            if let Some(pfn) = entry.frame() {
                f(Page::new(va, entry, pfn));
            }
        });
        self.tree().visit(user_range(start, end), &mut each);
    }
}

fn user_range(start: u64, end: u64) -> Range<u64> {
    assert!(start <= end && end <= USER_END, "not a user range");
    start..end
}

/// What leaves a page table and waits for the shootdown: no CPU may use it again before, neither a
/// page by a stale translation nor a table by a cached entry of the level above.
struct Gather {
    frames: ArrayVec<u32, GATHER_LIMIT>,
    /// First and last page unmapped.
    pages: Option<(u64, u64)>,
    taken: [u64; KINDS],
    tables: u64,
    unused: Range<u64>,
    root: super::PhysAddr,
}

impl Gather {
    fn new(unused: Range<u64>, root: super::PhysAddr) -> Gather {
        let frames = ArrayVec::new();
        Gather { frames, pages: None, taken: [0; KINDS], tables: 0, unused, root }
    }

    /// Frees it all, once no CPU can reach it.
    fn finish(&self, space: &Space) {
        if self.frames.is_empty() {
            return;
        }
        let (first, pages) = match self.pages {
            Some((first, last)) => (first, (last - first) / PAGE + 1),
            None => (0, 0),
        };
        if self.tables > 0 {
            space.tlb.flush_tables(first, pages);
        } else {
            space.tlb.flush(first, pages);
        }
        space.count_tables(-(self.tables as i64));
        // SAFETY: the entries that owned these references are gone, and no CPU has them any more.
        unsafe { frame::release(&self.frames) };
    }
}

impl Visit for Gather {
    fn leaf(&mut self, _va: u64, _slot: Slot) -> ControlFlow<()> {
        unreachable!("programs have no large pages")
    }

    fn pages(&mut self, base: u64, table: Table, range: Range<usize>) -> ControlFlow<u64> {
        let at = |index: usize| base + index as u64 * PAGE;
        let Some(first) = table.next_used(range.start, range.end) else {
            return ControlFlow::Continue(());
        };
        let (mut next, mut last) = (Some(first), first);
        let mut result = ControlFlow::Continue(());
        while let Some(i) = next {
            let entry = table.get(i);
            if let Some(pfn) = entry.frame() {
                if self.frames.try_push(pfn).is_err() {
                    result = ControlFlow::Break(at(i));
                    break;
                }
                self.taken[entry.kind() as usize] += 1;
                table.set(i, Pte::EMPTY);
                last = i;
            }
            next = table.next_used(i + 1, range.end);
        }
        let (from, _) = self.pages.unwrap_or((at(first), 0));
        self.pages = Some((from, at(last)));
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
        if slot.level == TOP {
            mirror(self.root, va);
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
    fn leaf(&mut self, _va: u64, _slot: Slot) -> ControlFlow<()> {
        unreachable!("programs have no large pages")
    }

    fn pages(&mut self, base: u64, table: Table, range: Range<usize>) -> ControlFlow<u64> {
        let mut next = table.next_used(range.start, range.end);
        if next.is_none() {
            return ControlFlow::Continue(());
        }
        let Ok(target) = self.child.slot_or_make(base) else {
            self.failed = true;
            return ControlFlow::Break(base);
        };
        let (target, _) = target.place();
        let mut shared = [0; KINDS];
        while let Some(i) = next {
            let mut entry = table.get(i);
            if let Some(pfn) = entry.frame() {
                if self.copy_on_write && entry.has(PteFlags::WRITE) {
                    entry = entry.without(PteFlags::WRITE.union(PteFlags::DIRTY));
                    table.set(i, entry);
                }
                // SAFETY: the parent's entry holds a reference; the new one goes to the child's
                // entry, where nothing is: its areas do not overlap.
                unsafe { Frame::clone_raw(pfn) }.into_raw();
                shared[entry.kind() as usize] += 1;
                target.set(i, entry);
            }
            next = table.next_used(i + 1, range.end);
        }
        for (mapped, shared) in self.child.mapped.iter_mut().zip(shared) {
            *mapped += shared;
        }
        ControlFlow::Continue(())
    }
}
