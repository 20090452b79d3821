//! The areas of an address space, by start address, with their sums: what /proc and limits ask for
//! must not walk over all areas.
//!
//! Everybody may look at the map; whoever changes an area does it through [`Areas`], which keeps
//! the sums. Neighbours: `vma` (an area), `mod` (what changes areas).

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::ops::{Deref, Range};
use core::sync::atomic::{AtomicU64, Ordering};

use machine::memory::Prot;

use super::{Backing, PAGE, Vma, VmaFlags};

/// Pages of areas, by what they are to /proc (proc(5): status, statm).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// All.
    pub total: u64,
    /// Locked ones.
    pub locked: u64,
    /// Of files, and executable.
    pub code: u64,
    /// Writable and private, but not stack.
    pub data: u64,
    /// Stack.
    pub stack: u64,
}

impl Sums {
    /// What one area adds.
    #[must_use]
    pub fn of(start: u64, vma: &Vma) -> Sums {
        let pages = (vma.end - start) / PAGE;
        let if_so = |condition: bool| if condition { pages } else { 0 };
        let is_file = matches!(vma.backing, Backing::File { .. });
        let is_stack = vma.flags.intersects(VmaFlags::GROWS_DOWN | VmaFlags::SHADOW_STACK);
        Sums {
            total: pages,
            locked: if_so(vma.flags.contains(VmaFlags::LOCKED)),
            code: if_so(is_file && vma.prot.contains(Prot::EXEC)),
            data: if_so(!is_stack && !vma.shared && vma.prot.contains(Prot::WRITE)),
            stack: if_so(is_stack),
        }
    }

    fn change(&mut self, other: Sums, by: impl Fn(&mut u64, u64)) {
        by(&mut self.total, other.total);
        by(&mut self.locked, other.locked);
        by(&mut self.code, other.code);
        by(&mut self.data, other.data);
        by(&mut self.stack, other.stack);
    }

    fn add(&mut self, start: u64, vma: &Vma) {
        self.change(Sums::of(start, vma), |sum, pages| *sum += pages);
    }

    fn subtract(&mut self, start: u64, vma: &Vma) {
        self.change(Sums::of(start, vma), |sum, pages| *sum -= pages);
    }
}

/// Areas that were taken out, with their starts: to be dropped without the lock, since files may be
/// closed then.
pub type Removed = Vec<(u64, Vma)>;

/// See the module.
#[derive(Default)]
pub struct Areas {
    map: BTreeMap<u64, Vma>,
    sums: Sums,
    /// Where the area starts that was looked for last, if it is there still: faults mostly come in
    /// rows, and to find an area by its start takes half the steps.
    last: AtomicU64,
}

impl Deref for Areas {
    type Target = BTreeMap<u64, Vma>;

    fn deref(&self) -> &BTreeMap<u64, Vma> {
        &self.map
    }
}

impl Drop for Areas {
    fn drop(&mut self) {
        self.map.values().for_each(Vma::note_closed);
    }
}

impl Areas {
    /// The area that contains `address`, with its start.
    pub fn containing(&self, address: u64) -> Option<(u64, &Vma)> {
        let last = self.last.load(Ordering::Relaxed);
        if last <= address
            && let Some(vma) = self.map.get(&last)
            && address < vma.end
        {
            return Some((last, vma));
        }
        let (&start, vma) = self.map.range(..=address).next_back()?;
        self.last.store(start, Ordering::Relaxed);
        (address < vma.end).then_some((start, vma))
    }

    /// The sums of all areas.
    #[must_use]
    pub fn sums(&self) -> &Sums {
        &self.sums
    }

    /// Enters an area where none starts.
    pub fn insert(&mut self, start: u64, vma: Vma) {
        self.sums.add(start, &vma);
        let old = self.map.insert(start, vma);
        debug_assert!(old.is_none(), "areas overlap");
    }

    /// Takes an area out.
    pub fn remove(&mut self, start: u64) -> Option<Vma> {
        let vma = self.map.remove(&start)?;
        self.sums.subtract(start, &vma);
        Some(vma)
    }

    /// Changes the area that starts at `start`; None if none does.
    pub fn edit<R>(&mut self, start: u64, change: impl FnOnce(&mut Vma) -> R) -> Option<R> {
        let vma = self.map.get_mut(&start)?;
        self.sums.subtract(start, vma);
        let result = change(vma);
        self.sums.add(start, vma);
        Some(result)
    }

    /// Changes the area that starts at `start`, and joins it with its neighbours where they
    /// continue each other then; with where it begins and ends after that. `below`: where the area
    /// before it begins, or `start`.
    pub fn edit_and_join<R>(
        &mut self,
        below: u64,
        start: u64,
        change: impl FnOnce(&mut Vma) -> R,
    ) -> Option<(R, (u64, u64))> {
        self.join_after(below, start, |sums, vma| {
            sums.subtract(start, vma);
            let result = change(vma);
            sums.add(start, vma);
            result
        })
    }

    /// Joins the area that starts at `start` with its neighbours where they continue each other.
    /// Where it ends then.
    pub fn join(&mut self, start: u64) -> u64 {
        let below = self.map.range(..start).next_back().map_or(start, |(&below, _)| below);
        let joined = self.join_after(below, start, |_, _| ());
        joined.map_or(start, |(_, (_, end))| end)
    }

    fn join_after<R>(
        &mut self,
        below: u64,
        start: u64,
        change: impl FnOnce(&mut Sums, &mut Vma) -> R,
    ) -> Option<(R, (u64, u64))> {
        // All three by one search: among many areas that is most of the work.
        let mut upwards = self.map.range_mut(below..);
        let (mut previous, mut own) = (None, upwards.next()?);
        if *own.0 != start {
            (previous, own) = (Some(own), upwards.next()?);
        }
        let (&found, vma) = own;
        if found != start {
            return None;
        }
        let result = change(&mut self.sums, vma);
        let continued = |(at, previous): &(&u64, &mut Vma)| {
            previous.end == start && previous.is_continued_by(**at, vma)
        };
        let before = previous.filter(continued).map(|(&at, _)| at);
        let continues =
            |(at, next): &(&u64, &mut Vma)| **at == vma.end && vma.is_continued_by(start, next);
        let after = upwards.next().filter(continues).map(|(&at, next)| (at, next.end));
        let end = after.map_or(vma.end, |(_, end)| end);
        if let Some((at, _)) = after {
            self.remove(at);
            self.edit(start, |vma| vma.end = end);
        }
        if let Some(before) = before {
            self.remove(start);
            self.edit(before, |previous| previous.end = end);
        }
        Some((result, (before.unwrap_or(start), end)))
    }

    /// Changes each area that starts in `range`.
    pub fn edit_each(&mut self, range: Range<u64>, mut change: impl FnMut(&mut Vma)) {
        for (&start, vma) in self.map.range_mut(range) {
            self.sums.subtract(start, vma);
            change(vma);
            self.sums.add(start, vma);
        }
    }

    /// Cuts the area that contains `at`, and does not start there, in two; but no huge page.
    pub fn split(&mut self, at: u64) {
        let Some((&start, vma)) = self.map.range_mut(..at).next_back() else { return };
        // Who would cut a huge page was refused before, or changes nothing.
        if at >= vma.end || vma.is_cut_by(at) {
            return;
        }
        let mut upper = vma.clone();
        upper.advance(at - start);
        // The sums stay: both parts are what the whole was.
        vma.end = at;
        upper.note_opened();
        self.map.insert(at, upper);
    }

    /// Takes out what lies in `range`; areas that its ends cut are split.
    pub fn cut_out(&mut self, range: Range<u64>) -> Removed {
        // As a rule it is one area.
        if self.map.get(&range.start).is_some_and(|vma| vma.end == range.end) {
            let vma = self.remove(range.start);
            vma.iter().for_each(Vma::note_closed);
            return vma.map(|vma| (range.start, vma)).into_iter().collect();
        }
        self.split(range.start);
        self.split(range.end);
        // Not by splitting and appending the rest: that would touch every area above.
        let inside = range.start..range.end.max(range.start);
        let removed: Removed = self.map.extract_if(inside, |_, _| true).collect();
        for (start, vma) in &removed {
            self.sums.subtract(*start, vma);
            vma.note_closed();
        }
        removed
    }

    /// Where the areas in `range` start.
    #[must_use]
    pub fn starts(&self, range: Range<u64>) -> Vec<u64> {
        self.map.range(range).map(|(&start, _)| start).collect()
    }
}
