//! Where an address space has room: without a walk over all areas.
//!
//! Most programs map downwards, and what they give back is the next thing they take. So a search
//! goes on where the last one ended, and looks first at the few ranges that were given back above
//! that place; how large gaps above it can be otherwise is known, so that no other search begins at
//! the top but one that may find something there.
//!
//! Neighbours: `areas` (what is mapped), `mod` (who takes and gives back).

use core::ops::Range;

use abi::{Errno, Result};
use machine::memory::USER_END;

use super::vma::VmaFlags;
use super::{MMAP_MIN, MmInner, PAGE, Vma};

/// Ranges given back that are remembered.
const GIVEN_BACK_MAX: usize = 4;
/// Areas looked at in one of them.
const LOOK_MAX: usize = 8;

/// No gap above `from` (and below where searching starts) is larger than `largest_above`, but in
/// the ranges that were given back.
pub(super) struct Search {
    from: u64,
    largest_above: u64,
    /// First address and end of ranges that were free at some moment; empty places are (0, 0).
    given_back: [(u64, u64); GIVEN_BACK_MAX],
}

impl Search {
    /// Nothing is known.
    pub(super) const fn new() -> Search {
        Search { from: u64::MAX, largest_above: 0, given_back: [(0, 0); GIVEN_BACK_MAX] }
    }
}

impl MmInner {
    /// Free space of `len` bytes: at `hint` if that is free, else as high as possible below the
    /// stack. ENOMEM if there is none.
    pub fn find_free(&mut self, hint: u64, len: u64) -> Result<u64> {
        let hint = hint & !(PAGE - 1);
        if hint >= MMAP_MIN
            && hint.checked_add(len).is_some_and(|end| end <= USER_END)
            && self.is_free_for_hint(hint, hint + len)
        {
            return Ok(hint);
        }
        self.find_free_below_stack(len)
    }

    /// Whether `[start, end)` is free, and leaves the room below a stack that it keeps free.
    pub fn is_free_for_hint(&self, start: u64, end: u64) -> bool {
        let next = self.vmas.range(end..).next();
        self.is_free(start, end) && next.is_none_or(|(&next, vma)| end <= guarded_start(next, vma))
    }

    /// Free space of `len` bytes as low as possible in `range`. ENOMEM if there is none.
    pub fn find_free_above(&self, range: Range<u64>, len: u64) -> Result<u64> {
        let below = self.vmas.range(..range.start).next_back();
        let mut from = below.map_or(range.start, |(_, vma)| vma.end.max(range.start));
        for (&start, vma) in self.vmas.range(range.start..range.end) {
            let gap_end = guarded_start(start, vma);
            if gap_end >= from && gap_end - from >= len {
                return Ok(from);
            }
            from = vma.end;
        }
        if range.end.saturating_sub(from) >= len { Ok(from) } else { Err(Errno::ENOMEM) }
    }

    /// Free space of `len` bytes below the stack: in what was given back last, or as high as
    /// possible. ENOMEM if there is none.
    fn find_free_below_stack(&mut self, len: u64) -> Result<u64> {
        if let Some(found) = self.find_given_back(len) {
            return Ok(found);
        }
        let Search { from, largest_above, .. } = self.search;
        let is_whole = len <= largest_above;
        let mut top = if is_whole { self.layout.mmap_top } else { from.min(self.layout.mmap_top) };
        let mut skipped = 0;
        let mut found = None;
        for (&start, vma) in self.vmas.range(..top).rev() {
            let room = top.saturating_sub(vma.end);
            if room >= len {
                found = Some(top - len);
                break;
            }
            skipped = skipped.max(room);
            top = top.min(guarded_start(start, vma));
        }
        let lowest = || (top >= MMAP_MIN && top - MMAP_MIN >= len).then(|| top - len);
        let found = found.or_else(lowest).ok_or(Errno::ENOMEM)?;
        // A search from the top that ends above the note leaves it: all above is known already. The
        // place itself counts as free: nobody says that it is taken.
        if found + len <= from {
            let largest_above = if is_whole { skipped } else { largest_above.max(skipped) };
            self.search.from = found + len;
            self.search.largest_above = largest_above;
        }
        Ok(found)
    }

    /// The highest free space of `len` bytes in what was given back.
    fn find_given_back(&mut self, len: u64) -> Option<u64> {
        let mut best = None;
        for place in 0..GIVEN_BACK_MAX {
            let (below, above) = self.search.given_back[place];
            if above - below < len {
                continue;
            }
            // What lies below the note is met by the search from there.
            let looked =
                if above > self.search.from { self.look(below, above, len) } else { Err(0) };
            match looked {
                Ok(found) => best = best.max(Some(found)),
                Err(largest) => {
                    self.search.given_back[place] = (0, 0);
                    self.search.largest_above = self.search.largest_above.max(largest);
                }
            }
        }
        best
    }

    /// The highest free space of `len` bytes in `[below, above)`, of which some may have been taken
    /// meanwhile. Err: there is none that is found in a few steps; no gap in it is larger than
    /// this.
    fn look(&self, below: u64, above: u64, len: u64) -> core::result::Result<u64, u64> {
        let next = self.vmas.range(above..).next();
        let mut top = next.map_or(above, |(&start, vma)| above.min(guarded_start(start, vma)));
        let mut largest = 0;
        let mut steps = 0;
        for (&start, vma) in self.vmas.range(..top).rev() {
            let room = top.saturating_sub(vma.end.max(below));
            if room >= len {
                return Ok(top - len);
            }
            largest = largest.max(room);
            top = top.min(guarded_start(start, vma));
            if top <= below {
                return Err(largest);
            }
            steps += 1;
            if steps == LOOK_MAX {
                return Err(above - below);
            }
        }
        let lowest = below.max(MMAP_MIN);
        if top >= lowest && top - lowest >= len { Ok(top - len) } else { Err(above - below) }
    }

    /// Notes that `[below, above)` is free: that some of it has become so.
    pub(super) fn note_free(&mut self, below: u64, above: u64) {
        let above = above.min(self.layout.mmap_top);
        let search = &mut self.search;
        if below <= search.from && search.from <= above {
            search.from = above;
        } else if above > search.from {
            // In the place of what is part of it, else in an empty one.
            let is_part = |(from, to): &&mut (u64, u64)| below <= *from && *to <= above;
            let is_empty = |(from, to): &&mut (u64, u64)| from == to;
            let places = &mut search.given_back;
            if let Some(place) = places.iter_mut().find(is_part) {
                *place = (below, above);
            } else if let Some(place) = places.iter_mut().find(is_empty) {
                *place = (below, above);
            } else {
                search.largest_above = search.largest_above.max(above.saturating_sub(below));
            }
        }
    }
}

/// Where the room begins that an area at `start` keeps free below itself.
fn guarded_start(start: u64, vma: &Vma) -> u64 {
    let guard = if vma.flags.contains(VmaFlags::GROWS_DOWN) {
        STACK_GUARD
    } else if vma.is_shadow_stack() {
        // Returns and INCSSP read one page beyond the end at most.
        PAGE
    } else {
        0
    };
    start.saturating_sub(guard)
}

/// Free space kept below a stack that may still grow.
pub const STACK_GUARD: u64 = 256 * PAGE;
