//! What several threads do to one page table at a time: pages come where none are, are copied
//! before they are written to, get the right to be written to, and go.
//!
//! All have shared access (`&PageTable`), so nobody has exclusive access meanwhile: no table comes
//! or goes, no page becomes large or small, and no right is taken away. An entry changes by
//! compare-exchange from what was seen.
//!
//! A page that others have, too, is copied in this order: claim the entry, shoot down, copy, enter
//! the copy, release the old frame. A claimed entry is hidden from CPUs, and changes by who claimed
//! it alone. The shootdown comes before the copy is entered: otherwise a thread could read the old
//! page after another has written to the new one. It waits for nobody that waits for a claim.
//!
//! Who has translations of their own (`notifiers`) is told with exclusive access: nothing is taken
//! or copied here in a space that has any. What meets a large page, a claimed entry, or one that
//! has changed, is done again with exclusive access, which begins when all who share have ended.
//!
//! `mechanisms/context_tracking/tests/shared_faults.rs` goes through all interleavings of a small
//! world, and of wrong ones.

use core::sync::atomic::Ordering;

use super::page_table::{Gather, PageTable, user_range};
use super::pte::{PageKind, Prot, Pte};
use super::walk::Slot;
use crate::context_tracking::local::flush_user_page;
use crate::memory::frame::{self, Frame, OutOfMemory, PAGE_SIZE};

/// The place of a page that is not mapped, or was not a moment ago.
pub struct Vacant<'a> {
    table: &'a PageTable,
    slot: Slot,
}

impl Vacant<'_> {
    /// Maps the page. False, and nothing done, if somebody else has meanwhile.
    #[inline]
    pub fn fill(self, frame: Frame, prot: Prot, kind: PageKind) -> bool {
        let pfn = frame.into_raw();
        if self.slot.exchange(Pte::EMPTY, Pte::page(pfn, prot, kind)) {
            self.table.count_shared(kind, 1);
            return true;
        }
        // SAFETY: the reference that was to be the entry's.
        drop(unsafe { Frame::from_raw(pfn) });
        false
    }
}

/// A small page that may be read and not written to, or was so a moment ago.
pub struct ReadOnly<'a> {
    table: &'a PageTable,
    va: u64,
    slot: Slot,
    seen: Pte,
}

impl ReadOnly<'_> {
    /// Whether nobody else has the frame. It stays so: only who finds it in this entry could add a
    /// reference, and needs exclusive access.
    #[must_use]
    pub fn is_sole(&self) -> bool {
        self.seen.frame().is_some_and(|pfn| frame::references(pfn) == 1)
    }

    /// Gives the program these rights to the page, which are no less than before. False, and
    /// nothing done, if the page has changed meanwhile.
    pub fn allow(self, prot: Prot) -> bool {
        assert!(prot.keeps(self.seen.prot()), "a right would go without a shootdown");
        let is_done = self.slot.exchange(self.seen, self.seen.with_prot(prot));
        // For a new right a stale translation of another CPU only faults again.
        flush_user_page(self.va);
        is_done
    }

    /// Puts a copy of the page in its place, which is the program's own. False, and nothing done,
    /// if the page has changed meanwhile.
    pub fn replace_by_copy(self, prot: Prot) -> Result<bool, OutOfMemory> {
        let copy = Frame::alloc_undefined()?;
        let Some(pfn) = self.seen.frame() else { return Ok(false) };
        if !self.slot.exchange(self.seen, self.seen.claimed()) {
            return Ok(false);
        }
        // SAFETY: the reference of the entry that was claimed: nobody else can take it.
        let old = unsafe { Frame::from_raw(pfn) };
        self.table.space().flush(self.va, 1);
        copy.copy_from(&old, PAGE_SIZE);
        self.slot.set(Pte::page(copy.into_raw(), prot, PageKind::Anonymous));
        self.table.count_shared(PageKind::Anonymous, 1);
        self.table.count_shared(self.seen.kind(), -1);
        Ok(true)
    }
}

impl PageTable {
    /// The place of the page at `va`, if there is a table for it and nothing in its entry.
    pub fn vacant(&self, va: u64) -> Option<Vacant<'_>> {
        let slot = self.slot(va).filter(|slot| slot.get().is_empty())?;
        Some(Vacant { table: self, slot })
    }

    /// The page at `va`, if it is small and may be read, but not written to.
    pub fn read_only(&self, va: u64) -> Option<ReadOnly<'_>> {
        if self.space().notifiers.any() {
            return None;
        }
        let slot = self.slot(va)?;
        let seen = slot.get();
        let is_read_only = seen.is_present() && !seen.prot().changes();
        is_read_only.then_some(ReadOnly { table: self, va, slot, seen })
    }

    /// Whether the program has this right to the page at `va`, now or a moment ago.
    pub fn allows(&self, va: u64, right: Prot) -> bool {
        self.leaf(va).is_some_and(|(_, prot)| prot.contains(right))
    }

    /// Maps those of the frames where nothing is mapped, the first at `va` and each following one a
    /// page further, if there is a table for them. All must lie below the next multiple of 2 MiB.
    pub fn fill_absent(
        &self,
        va: u64,
        frames: impl Iterator<Item = Option<Frame>>,
        prot: Prot,
        kind: PageKind,
    ) {
        let Some((table, first)) = self.slot(va).map(Slot::place) else { return };
        for (i, frame) in (first..).zip(frames) {
            if let Some(frame) = frame
                && table.get(i).is_empty()
            {
                Vacant { table: self, slot: table.slot(i) }.fill(frame, prot, kind);
            }
        }
    }

    /// Unmaps `[start, end)`, as [`PageTable::unmap`] does, but for tables. False if something may
    /// be left: then it is to be done with exclusive access.
    pub fn try_unmap(&self, start: u64, end: u64) -> bool {
        if self.space().notifiers.any() {
            return false;
        }
        let mut is_all = true;
        let mut next = Some(start);
        while let Some(from) = next {
            let mut gather = Gather::without_tables();
            next = self.tree().visit(user_range(from, end), &mut gather);
            for (kind, taken) in PageKind::ALL.into_iter().zip(gather.taken) {
                self.count_shared(kind, -(taken as i64));
            }
            gather.finish(self.space());
            is_all &= !gather.has_missed;
        }
        is_all
    }

    /// Notes that there are more pages of a kind, or fewer.
    fn count_shared(&self, kind: PageKind, change: i64) {
        self.mapped[kind as usize].fetch_add(change as u64, Ordering::Relaxed);
    }
}
