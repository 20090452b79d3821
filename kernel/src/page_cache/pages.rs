//! The pages of one file that are in memory: single ones, and runs of 2 MiB in one piece. A place
//! is in one of the two, or in none.

use alloc::collections::BTreeMap;
use alloc::collections::btree_map::Entry;
use alloc::vec::Vec;
use core::ops::Range;

use machine::frame::{Frame, HUGE_FRAMES, HugeFrame};

use super::huge::note_runs;

/// Pages of a run.
pub(super) const RUN: u64 = HUGE_FRAMES as u64;

/// What is going on with a page.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum PageState {
    /// The backend is asked for it: its contents mean nothing yet.
    Reading,
    /// As the backend has it.
    UpToDate,
    /// Reserved (fallocate(2)): its place is taken, but nobody has had it yet, and to who looks for
    /// data it is a hole.
    Blank,
    /// Differs from the backend.
    Dirty,
    /// Is on its way to the backend, and has not been changed since it set out.
    Writeback,
    /// Is on its way, and has been changed since: has to go again, but not before it has arrived.
    WritebackDirty,
}

pub(super) struct Page {
    pub(super) frame: Frame,
    pub(super) state: PageState,
    /// A program may write to it through a mapping at any moment: dirty after every write-back.
    pub(super) mapped_writable: bool,
}

impl Page {
    /// It is about to be used; `for_write` makes it dirty, and so does the first use.
    pub(super) fn touch(&mut self, for_write: bool) {
        if for_write || self.state == PageState::Blank {
            self.state =
                if self.is_in_writeback() { PageState::WritebackDirty } else { PageState::Dirty };
        }
    }

    pub(super) fn is_in_writeback(&self) -> bool {
        matches!(self.state, PageState::Writeback | PageState::WritebackDirty)
    }

    pub(super) fn is_clean(&self) -> bool {
        self.state == PageState::UpToDate
    }
}

/// What there is of a page.
pub(super) enum Look<'a> {
    Single(&'a mut Page),
    /// Its part of a run.
    Huge(Frame),
    /// It is being read, or its run is being made: who wants it waits.
    Busy,
    Missing,
}

/// See the module.
#[derive(Default)]
pub(super) struct Pages {
    pub(super) single: BTreeMap<u64, Page>,
    /// By their number: the place of their first page in runs.
    huge: BTreeMap<u64, HugeFrame>,
    /// The run that is being made of single pages.
    moving: Option<u64>,
}

/// Pages that have been taken out.
#[derive(Default)]
pub(super) struct Taken {
    single: Vec<Page>,
    /// Single ones that were all there was from a place on: the tree's own nodes.
    tail: BTreeMap<u64, Page>,
    huge: Vec<HugeFrame>,
}

impl Taken {
    pub(super) fn count(&self) -> usize {
        self.single.len() + self.tail.len() + self.huge.len() * HUGE_FRAMES
    }
}

impl Pages {
    pub(super) fn look(&mut self, index: u64) -> Look<'_> {
        if self.moving == Some(index / RUN) {
            return Look::Busy;
        }
        if let Some(page) = self.single.get_mut(&index) {
            return if page.state == PageState::Reading { Look::Busy } else { Look::Single(page) };
        }
        part(&self.huge, index).map_or(Look::Missing, Look::Huge)
    }

    /// Whether somebody has had the page, which counts as data then.
    pub(super) fn has_data(&self, index: u64) -> bool {
        let is_used = self.single.get(&index).is_some_and(|page| page.state != PageState::Blank);
        is_used || self.huge.contains_key(&(index / RUN))
    }

    /// Whether there is a page, or will be in a moment.
    pub(super) fn contains(&self, index: u64) -> bool {
        self.single.contains_key(&index) || self.huge.contains_key(&(index / RUN))
    }

    /// Whether there is any page in `range`.
    pub(super) fn has_any(&self, range: Range<u64>) -> bool {
        let runs = range.start / RUN..range.end.div_ceil(RUN);
        self.huge.range(runs).next().is_some() || self.single.range(range).next().is_some()
    }

    pub(super) fn count(&self) -> usize {
        self.single.len() + self.huge.len() * HUGE_FRAMES
    }

    /// How many places of `range` have a page.
    pub(super) fn count_in(&self, range: Range<u64>) -> u64 {
        let single = self.single.range(range.clone()).count() as u64;
        let runs = self.huge.range(range.start / RUN..range.end.div_ceil(RUN));
        let inside = runs.map(|(run, _)| {
            let (from, to) = (run * RUN, (run + 1) * RUN);
            to.min(range.end) - from.max(range.start)
        });
        single + inside.sum::<u64>()
    }

    /// Puts those of the pages from `index` on that are there in their places.
    pub(super) fn copy_run(&self, index: u64, run: &mut [Option<Frame>]) {
        let end = index + run.len() as u64;
        for (&at, page) in self.single.range(index..end) {
            let is_there = !matches!(page.state, PageState::Reading | PageState::Blank);
            if is_there && self.moving != Some(at / RUN) {
                run[(at - index) as usize] = Some(page.frame.clone());
            }
        }
        if !self.huge.is_empty() {
            for (at, place) in (index..).zip(run) {
                if let Some(frame) = part(&self.huge, at) {
                    *place = Some(frame);
                }
            }
        }
    }

    /// Enters a page where none is, or one that is being read. What is there then, whether that is
    /// new, and what was replaced; None while a run is being made there.
    pub(super) fn enter(&mut self, index: u64, page: Page) -> Option<(Frame, bool, Option<Page>)> {
        if self.moving == Some(index / RUN) {
            return None;
        }
        if let Some(frame) = part(&self.huge, index) {
            return Some((frame, false, None));
        }
        let frame = page.frame.clone();
        match self.single.entry(index) {
            Entry::Occupied(mut at) if at.get().state != PageState::Reading => {
                let there = at.get_mut();
                there.touch(page.state == PageState::Dirty);
                there.mapped_writable |= page.mapped_writable;
                Some((there.frame.clone(), false, None))
            }
            Entry::Occupied(mut at) => Some((frame, false, Some(at.insert(page)))),
            Entry::Vacant(at) => {
                at.insert(page);
                Some((frame, true, None))
            }
        }
    }

    /// The run that `index` lies in, another share of it.
    pub(super) fn run(&self, index: u64) -> Option<HugeFrame> {
        self.huge.get(&(index / RUN)).map(HugeFrame::share)
    }

    /// Enters a run that begins with `first`, where nothing is.
    pub(super) fn enter_run(&mut self, first: u64, memory: HugeFrame) {
        assert!(!self.has_any(first..first + RUN), "there are pages in the place of a run");
        self.huge.insert(first / RUN, memory);
        note_runs(1);
    }

    /// Makes everybody wait who wants a page of the run that begins with `first`, and nobody has a
    /// page of it until [`Pages::end_move`]: then these pages are returned, with their places.
    /// None, and nothing done, if somebody has.
    pub(super) fn begin_move(&mut self, first: u64, into: &mut Vec<(u64, Frame)>) -> Option<()> {
        let mut all = self.single.range(first..first + RUN);
        if !all.clone().all(|(_, page)| page.frame.refs() == 1) {
            return None;
        }
        into.extend(all.by_ref().map(|(&at, page)| (at, page.frame.clone())));
        self.moving = Some(first / RUN);
        Some(())
    }

    /// The run is made: it takes the place of the single pages.
    pub(super) fn end_move(&mut self, first: u64, memory: HugeFrame) -> Vec<Page> {
        self.moving = None;
        let old = self.single.extract_if(first..first + RUN, |_, _| true);
        let old = old.map(|(_, page)| page).collect();
        self.enter_run(first, memory);
        old
    }

    /// Takes the pages of `[first, end)` out. What is left of a run are single pages.
    pub(super) fn take(&mut self, first: u64, end: u64) -> Taken {
        let end = end.max(first);
        for cut in [first, end] {
            if !cut.is_multiple_of(RUN) {
                self.split(cut / RUN);
            }
        }
        let (single, tail) = self.take_single(first..end);
        let runs = first.div_ceil(RUN)..(end / RUN).max(first.div_ceil(RUN));
        let huge: Vec<_> = self.huge.extract_if(runs, |_, _| true).map(|(_, run)| run).collect();
        note_runs(-(huge.len() as i64));
        Taken { single, tail, huge }
    }

    /// Takes the single pages of a range out. What reaches to the last one (ftruncate(2), the end
    /// of a file) is cut off in a few steps: the spin lock is not held for as long as there are
    /// pages.
    #[inline(never)]
    fn take_single(&mut self, range: Range<u64>) -> (Vec<Page>, BTreeMap<u64, Page>) {
        let all = self.single.first_key_value().is_none_or(|(&at, _)| at >= range.start);
        let to_last = self.single.last_key_value().is_none_or(|(&at, _)| at < range.end);
        match (all, to_last) {
            (true, true) => (Vec::new(), core::mem::take(&mut self.single)),
            (false, true) => (Vec::new(), self.single.split_off(&range.start)),
            _ => {
                let taken = self.single.extract_if(range, |_, _| true);
                (taken.map(|(_, page)| page).collect(), BTreeMap::new())
            }
        }
    }

    /// Makes a run single pages.
    fn split(&mut self, run: u64) {
        let Some(memory) = self.huge.remove(&run) else { return };
        note_runs(-1);
        for (part, at) in (run * RUN..(run + 1) * RUN).enumerate() {
            let frame = memory.part(part);
            self.single.insert(at, Page { frame, state: PageState::Dirty, mapped_writable: false });
        }
    }

    /// Takes the pages from `first` on out that nobody has.
    pub(super) fn take_unused(&mut self, first: u64) -> Taken {
        while let Some((&run, _)) = self.huge.range(first / RUN..).next() {
            self.split(run);
        }
        let is_unused = |_: &u64, page: &mut Page| page.frame.refs() == 1;
        let single = self.single.extract_if(first.., is_unused).map(|(_, page)| page).collect();
        Taken { single, ..Taken::default() }
    }

    /// The first place from `index` on that has data.
    pub(super) fn next_page(&self, index: u64) -> Option<u64> {
        if self.huge.contains_key(&(index / RUN)) {
            return Some(index);
        }
        let mut single = self.single.range(index..);
        let single = single.find(|(_, page)| page.state != PageState::Blank).map(|(&at, _)| at);
        let huge = self.huge.range(index / RUN..).next().map(|(run, _)| run * RUN);
        single.into_iter().chain(huge).min()
    }

    /// The first place from `index` on that has no data.
    pub(super) fn next_missing(&self, mut index: u64) -> u64 {
        loop {
            let before = index;
            if self.huge.contains_key(&(index / RUN)) {
                index = (index / RUN + 1) * RUN;
                continue;
            }
            for (&present, page) in self.single.range(index..) {
                if present != index || page.state == PageState::Blank {
                    break;
                }
                index += 1;
            }
            if index == before {
                return index;
            }
        }
    }
}

/// The page at `index`, if a run has it.
fn part(runs: &BTreeMap<u64, HugeFrame>, index: u64) -> Option<Frame> {
    let run = runs.get(&(index / RUN))?;
    Some(run.part((index % RUN) as usize))
}

impl Drop for Pages {
    fn drop(&mut self) {
        note_runs(-(self.huge.len() as i64));
    }
}
