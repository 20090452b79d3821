//! The walker: the one place that descends page tables, whatever their level and format.
//!
//! Long mode, nested tables of AMD and extended tables of Intel all are radix trees of 512 entries
//! with the address and the bit for large pages at the same place (APM 2, 15.25.5; SDM 3C, 29.3).
//! What differs is in a [`Format`]. Three ways to walk: [`Tables::find`] looks for the entry that
//! decides about one address, [`Tables::make`] also makes the tables down to it, and
//! [`Tables::visit`] shows every leaf of a range to a [`Visit`], and the tables that it empties.
//!
//! Nothing here locks: who owns a tree guards it, and who shares one changes entries by
//! [`Slot::exchange`]. Entries are read and written whole, since CPUs
//! write their bits A and D meanwhile.

use core::marker::PhantomData;
use core::ops::{ControlFlow, Range};
use core::sync::atomic::{AtomicU64, Ordering};

use super::pte::{Pte, PteFlags};
use crate::cpu::PhysAddr;
use crate::memory::frame::{OutOfMemory, PAGE_SHIFT, virt_to_phys};

/// Entries of a table.
pub(crate) const ENTRIES: usize = 512;
/// The level of the top table; the lowest is 0.
pub(crate) const TOP: u32 = 3;
/// Entries that are looked at together: those of two cache lines.
const GROUP: usize = 16;

/// Bytes that an entry of `level` maps.
#[inline]
pub(crate) const fn span(level: u32) -> u64 {
    1 << (PAGE_SHIFT + 9 * level)
}

/// Which entry of a table of `level` decides about `va`.
#[inline]
pub(crate) const fn index(va: u64, level: u32) -> usize {
    (va >> (PAGE_SHIFT + 9 * level)) as usize % ENTRIES
}

/// Gives frames for tables, filled with zeros.
pub(crate) type NewTable<'a> = &'a mut dyn FnMut() -> Option<PhysAddr>;

/// What differs between the trees of CPUs.
pub(crate) trait Format {
    /// An entry is in use by the CPU if one of these bits is set.
    const PRESENT: u64;
    /// What an entry that leads to a table says beside where it is.
    const TABLE: PteFlags;

    /// Whether an entry of `level` leads to a table.
    #[inline]
    fn is_table(entry: Pte, level: u32) -> bool {
        level > 0 && entry.raw() & Self::PRESENT != 0 && !entry.is_large()
    }
}

/// The kernel's half of an address space.
pub(crate) struct Kernel;

impl Format for Kernel {
    const PRESENT: u64 = PteFlags::PRESENT.bits();
    const TABLE: PteFlags = PteFlags::PRESENT.union(PteFlags::WRITE);
}

/// The half of a program. Nested tables of AMD look the same, since the CPU walks them as a user,
/// and so do extended ones of Intel but for their leaves.
pub(crate) struct User;

impl Format for User {
    const PRESENT: u64 = PteFlags::PRESENT.bits();
    const TABLE: PteFlags = PteFlags::PRESENT.union(PteFlags::WRITE).union(PteFlags::USER);
}

/// One table, through the direct map.
#[derive(Clone, Copy)]
pub(crate) struct Table(*mut u64);

impl Table {
    /// # Safety
    /// A live table lies at `at`, and stays while the value is used; who writes holds its owner
    /// exclusively.
    #[inline]
    pub(crate) unsafe fn at(at: PhysAddr) -> Table {
        Table(at.in_direct_map().cast())
    }

    /// Where it lies.
    pub(super) fn phys(self) -> PhysAddr {
        PhysAddr::new(virt_to_phys(self.0.cast()))
    }

    #[inline]
    pub(crate) fn get(self, index: usize) -> Pte {
        assert!(index < ENTRIES);
        // SAFETY: the contract of `at`; volatile since the CPU writes A and D.
        Pte::from_raw(unsafe { self.0.wrapping_add(index).read_volatile() })
    }

    #[inline]
    pub(crate) fn set(self, index: usize, entry: Pte) {
        assert!(index < ENTRIES);
        // SAFETY: the contract of `at`.
        unsafe { self.0.wrapping_add(index).write_volatile(entry.raw()) };
    }

    /// The place of one of its entries, if it is of the lowest level.
    #[inline]
    pub(crate) fn slot(self, index: usize) -> Slot {
        Slot { table: self, index, level: 0 }
    }

    /// Sets an entry that is `from`; false if it is not. For those who share a tree.
    #[inline]
    pub(super) fn exchange(self, index: usize, from: Pte, to: Pte) -> bool {
        assert!(index < ENTRIES);
        // SAFETY: the contract of `at`; entries are aligned, and who else has one writes it whole.
        let at = unsafe { AtomicU64::from_ptr(self.0.wrapping_add(index)) };
        at.compare_exchange(from.raw(), to.raw(), Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// The first entry from `index` on, before `end`, that is not empty. Tables are mostly empty:
    /// looks at [`GROUP`] entries at a time.
    #[inline]
    pub(super) fn next_used(self, mut index: usize, end: usize) -> Option<usize> {
        assert!(end <= ENTRIES);
        while index < end {
            if index.is_multiple_of(GROUP) && self.is_group_empty(index) {
                index += GROUP;
                continue;
            }
            if !self.get(index).is_empty() {
                return Some(index);
            }
            index += 1;
        }
        None
    }

    /// Shows the entries of `range` that are not empty to `f`, in order; Break ends it. What is
    /// done to every page of a program goes this way: no group is looked at twice.
    #[inline(always)]
    pub(super) fn each_used<B>(
        self,
        range: Range<usize>,
        mut f: impl FnMut(usize, Pte) -> ControlFlow<B>,
    ) -> ControlFlow<B> {
        assert!(range.end <= ENTRIES);
        let mut index = range.start;
        while index < range.end {
            let group = index - index % GROUP;
            let stop = range.end.min(group + GROUP);
            if !self.is_group_empty(group) {
                for i in index..stop {
                    let entry = self.get(i);
                    if !entry.is_empty() {
                        f(i, entry)?;
                    }
                }
            }
            index = stop;
        }
        ControlFlow::Continue(())
    }

    /// Whether the [`GROUP`] entries from `group` on, a multiple of it, are empty.
    #[inline(always)]
    fn is_group_empty(self, group: usize) -> bool {
        assert!(group < ENTRIES && group.is_multiple_of(GROUP));
        let entries = (0..GROUP).map(|i| {
            // SAFETY: the contract of `at`; ENTRIES is a multiple of GROUP, so the group lies in
            // the table.
            unsafe { self.0.wrapping_add(group + i).read_volatile() }
        });
        entries.fold(0, |all, entry| all | entry) == 0
    }
}

/// The place of an entry.
#[derive(Clone, Copy)]
pub(crate) struct Slot {
    table: Table,
    index: usize,
    /// Of the table it is in.
    pub(crate) level: u32,
}

impl Slot {
    #[inline]
    pub(crate) fn get(self) -> Pte {
        self.table.get(self.index)
    }

    #[inline]
    pub(crate) fn set(self, entry: Pte) {
        self.table.set(self.index, entry);
    }

    /// See [`Table::exchange`].
    #[inline]
    pub(super) fn exchange(self, from: Pte, to: Pte) -> bool {
        self.table.exchange(self.index, from, to)
    }

    /// The table and the place in it, for who goes on to its neighbours.
    #[inline]
    pub(crate) fn place(self) -> (Table, usize) {
        (self.table, self.index)
    }
}

/// What a walk over a range does.
pub(crate) trait Visit {
    /// An entry that is not empty and leads to no table; it maps from `va` on as many bytes as the
    /// slot's level has, also outside the range. Break ends the walk before it.
    fn leaf(&mut self, va: u64, slot: Slot) -> ControlFlow<()>;

    /// The entries `range` of a table of the lowest level, which maps from `base` on: all at once,
    /// for what is done to many pages. Breaks with the address of the first that was not done.
    #[inline]
    fn pages(&mut self, base: u64, table: Table, range: Range<usize>) -> ControlFlow<u64> {
        table.each_used(range, |index, _| {
            let va = base + index as u64 * span(0);
            match self.leaf(va, Slot { table, index, level: 0 }) {
                ControlFlow::Break(()) => ControlFlow::Break(va),
                ControlFlow::Continue(()) => ControlFlow::Continue(()),
            }
        })
    }

    /// Whether the table for `part` goes with its contents. If so, tables below it are visited even
    /// outside the range, since some may hold nothing.
    fn takes_table(&self, _part: &Range<u64>) -> bool {
        false
    }

    /// Such a table, whose entries were all visited; the slot leads to it. Break ends the walk
    /// before it.
    fn table(&mut self, _va: u64, _slot: Slot) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}

/// A tree of tables of one format.
pub(crate) struct Tables<F> {
    root: Table,
    _format: PhantomData<F>,
}

impl<F: Format> Tables<F> {
    /// # Safety
    /// As [`Table::at`], for the whole tree: a top table lies at `root`, and its entries lead to
    /// tables as the format says.
    #[inline]
    pub(crate) unsafe fn at(root: PhysAddr) -> Tables<F> {
        // SAFETY: the caller promises a live top table at `root`.
        Tables { root: unsafe { Table::at(root) }, _format: PhantomData }
    }

    #[inline]
    fn below(entry: Pte) -> Table {
        // SAFETY: by the contract of `Tables::at` the entry leads to a live table of the tree.
        unsafe { Table::at(entry.to()) }
    }

    /// The entry that decides about `va`: a leaf, or the first on the way that is empty.
    #[inline]
    pub(crate) fn find(&self, va: u64) -> Slot {
        self.find_with(va, |_| ())
    }

    /// The same; `passed` sees the entries above it.
    #[inline]
    pub(crate) fn find_with(&self, va: u64, mut passed: impl FnMut(Pte)) -> Slot {
        let mut slot = Slot { table: self.root, index: index(va, TOP), level: TOP };
        loop {
            let entry = slot.get();
            if !F::is_table(entry, slot.level) {
                return slot;
            }
            passed(entry);
            let level = slot.level - 1;
            slot = Slot { table: Self::below(entry), index: index(va, level), level };
        }
    }

    /// The entry of `level` for `va`. Tables that are missing on the way are made. A large leaf on
    /// the way is where it ends.
    #[inline]
    pub(crate) fn make(
        &self,
        va: u64,
        level: u32,
        new_table: NewTable<'_>,
    ) -> Result<Slot, OutOfMemory> {
        let mut slot = Slot { table: self.root, index: index(va, TOP), level: TOP };
        while slot.level > level {
            let mut entry = slot.get();
            if entry.is_empty() {
                entry = Pte::new(new_table().ok_or(OutOfMemory)?, F::TABLE);
                slot.set(entry);
            } else if !F::is_table(entry, slot.level) {
                break;
            }
            let level = slot.level - 1;
            slot = Slot { table: Self::below(entry), index: index(va, level), level };
        }
        Ok(slot)
    }

    /// Shows what `range` maps to `visitor`, in order. Returns where to go on if that ended it.
    pub(crate) fn visit(&self, range: Range<u64>, visitor: &mut impl Visit) -> Option<u64> {
        if range.is_empty() {
            return None;
        }
        visit_table::<F>(self.root, TOP, range, visitor).break_value()
    }
}

fn visit_table<F: Format>(
    table: Table,
    level: u32,
    range: Range<u64>,
    visitor: &mut impl Visit,
) -> ControlFlow<u64> {
    let first = index(range.start, level);
    let base = range.start - range.start % span(level) - first as u64 * span(level);
    let end = ((range.end - base - 1) / span(level)).min(ENTRIES as u64 - 1) as usize + 1;
    if level == 0 {
        return visitor.pages(base, table, first..end);
    }
    let mut next = table.next_used(first, end);
    while let Some(i) = next {
        let va = base + i as u64 * span(level);
        let slot = Slot { table, index: i, level };
        let entry = slot.get();
        if F::is_table(entry, level) {
            let part = va..va.saturating_add(span(level));
            let taken = visitor.takes_table(&part);
            // At the lowest level nothing lies outside.
            let inside = if taken && level > 1 {
                part
            } else {
                range.start.max(part.start)..range.end.min(part.end)
            };
            let resume = range.start.max(va);
            let below = Tables::<F>::below(entry);
            let is_whole = inside == (va..va.saturating_add(span(level)));
            if let ControlFlow::Break(at) = visit_table::<F>(below, level - 1, inside, visitor) {
                return ControlFlow::Break(if taken { resume } else { at });
            }
            // What the caller says of the range around is looked at: a table that still maps
            // something stays.
            let is_left = taken && (is_whole || below.next_used(0, ENTRIES).is_none());
            if is_left && visitor.table(va, slot).is_break() {
                return ControlFlow::Break(resume);
            }
        } else if visitor.leaf(va, slot).is_break() {
            return ControlFlow::Break(range.start.max(va));
        }
        next = table.next_used(i + 1, end);
    }
    ControlFlow::Continue(())
}

/// A visitor of leaves up to the first that is looked for.
pub(crate) struct UpToLeaf<T>(pub(crate) T);

impl<T: FnMut(u64, Slot) -> bool> Visit for UpToLeaf<T> {
    fn leaf(&mut self, va: u64, slot: Slot) -> ControlFlow<()> {
        if (self.0)(va, slot) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

/// A visitor of leaves alone.
pub(crate) struct EachLeaf<T>(pub(crate) T);

impl<T: FnMut(u64, Slot)> Visit for EachLeaf<T> {
    #[inline]
    fn leaf(&mut self, va: u64, slot: Slot) -> ControlFlow<()> {
        (self.0)(va, slot);
        ControlFlow::Continue(())
    }
}
