//! The pool of huge pages (Documentation/admin-guide/mm/hugetlbpage.rst): 2 MiB each, set aside
//! before anybody asks for them, so that who has mapped them (MAP_HUGETLB) finds them there.
//!
//! Why it is hard: a page is promised when it is mapped and taken when it is touched, and each must
//! come back as a whole. So the pool is one account ([`Pool`]): pages that wait, and how many of
//! them are promised. Who has pages holds them in a [`HugePages`]: a shared mapping's, or what one
//! address space has of a private one, by their place in the file. A page table only has shares of
//! them (`machine::memory::PageTable::map_pooled`); a page that somebody still reads or writes by
//! its frames when it comes back waits apart until nobody does.
//!
//! Lock order: the address space's, a [`HugePages`]' (both sleep), the pool's.
//! Neighbours: `huge_area` (areas of them), `huge` (huge pages that come by themselves).

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;

use abi::{Errno, Result};
use machine::frame::{HUGE_FRAMES, HugeFrame};
use machine::sync::SpinLock;

use crate::base::sched::yield_if_needed;
use crate::base::sync::Mutex;

/// The pool's account, in pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// All: HugePages_Total.
    pub total: u64,
    /// Those that wait: HugePages_Free.
    pub free: u64,
    /// Of those, promised: HugePages_Rsvd.
    pub reserved: u64,
    /// Those that go when nobody has them: HugePages_Surp.
    pub surplus: u64,
    /// Most of those that may come by themselves: nr_overcommit_hugepages.
    pub overcommit: u64,
}

struct Pool {
    waiting: Vec<HugeFrame>,
    /// Came back while somebody had a frame of it.
    leaving: Vec<HugeFrame>,
    /// `free` is not kept here: it is how many wait.
    counts: Counts,
}

static POOL: SpinLock<Pool> =
    SpinLock::new(Pool { waiting: Vec::new(), leaving: Vec::new(), counts: Counts::NONE });

impl Counts {
    const NONE: Counts = Counts { total: 0, free: 0, reserved: 0, surplus: 0, overcommit: 0 };

    /// Those that stay.
    fn persistent(&self) -> u64 {
        self.total - self.surplus
    }
}

/// What is in the pool.
#[must_use]
pub fn counts() -> Counts {
    settle();
    let pool = POOL.lock();
    Counts { free: pool.free(), ..pool.counts }
}

/// How many pages there may be at most, those that come by themselves included.
fn most() -> u64 {
    let counts = counts();
    let memory = (machine::frame::total() / HUGE_FRAMES) as u64;
    counts.persistent().saturating_add(counts.overcommit.max(counts.surplus)).min(memory)
}

/// Sets how many pages may come by themselves.
pub fn set_overcommit(count: u64) {
    POOL.lock().counts.overcommit = count;
}

/// Makes the pool `count` pages, or as many as there is memory for in one piece. Those that are in
/// use or promised stay beyond that, as surplus.
pub fn set_total(count: u64) {
    settle();
    loop {
        {
            let mut pool = POOL.lock();
            let kept = count.saturating_sub(pool.counts.persistent()).min(pool.counts.surplus);
            pool.counts.surplus -= kept;
            if pool.counts.persistent() >= count {
                break;
            }
        }
        let Some(page) = HugeFrame::alloc_zeroed() else { break };
        if add(page, 0).is_err() {
            break;
        }
        yield_if_needed();
    }
    loop {
        let page = POOL.lock().shrink_to(count);
        if page.is_none() {
            break;
        }
        drop(page);
        yield_if_needed();
    }
    let mut pool = POOL.lock();
    let counts = &mut pool.counts;
    counts.surplus += counts.persistent().saturating_sub(count);
}

/// Enters a new page, which waits. `surplus`: 1 if it is not to stay.
fn add(page: HugeFrame, surplus: u64) -> Result<()> {
    let mut pool = POOL.lock();
    let most = if surplus > 0 { pool.counts.overcommit } else { u64::MAX };
    if pool.counts.surplus + surplus > most || !pool.make_places() {
        drop(pool);
        drop(page);
        return Err(Errno::ENOMEM);
    }
    pool.counts.total += 1;
    pool.counts.surplus += surplus;
    pool.waiting.push(page);
    Ok(())
}

impl Pool {
    fn free(&self) -> u64 {
        self.waiting.len() as u64
    }

    /// Pages that wait and are promised to nobody.
    fn available(&self) -> u64 {
        self.free() - self.counts.reserved
    }

    /// Sees to it that one page more than there are finds a place, wherever it is: what comes back
    /// is never refused.
    fn make_places(&mut self) -> bool {
        let all = self.counts.total as usize + 1;
        let lists = [&mut self.waiting, &mut self.leaving];
        lists.into_iter().all(|list| list.try_reserve(all - list.len()).is_ok())
    }

    /// Takes a page out that is too many for `count`, if one waits that is promised to nobody.
    fn shrink_to(&mut self, count: u64) -> Option<HugeFrame> {
        if self.counts.persistent() <= count || self.available() == 0 {
            return None;
        }
        let page = self.waiting.pop()?;
        self.counts.total -= 1;
        Some(page)
    }

    /// Takes a page out that was not to stay, if one waits that is promised to nobody.
    fn trim(&mut self) -> Option<HugeFrame> {
        if self.counts.surplus == 0 || self.available() == 0 {
            return None;
        }
        let page = self.waiting.pop()?;
        self.counts.total -= 1;
        self.counts.surplus -= 1;
        Some(page)
    }

    /// A page comes back. The caller drops what is returned, without the lock.
    fn admit(&mut self, page: HugeFrame) -> Option<HugeFrame> {
        if !page.is_sole() {
            self.leaving.push(page);
            return None;
        }
        if self.counts.surplus > 0 {
            self.counts.total -= 1;
            self.counts.surplus -= 1;
            return Some(page);
        }
        self.waiting.push(page);
        None
    }
}

/// Takes back the pages of which nobody has a frame any more.
fn settle() {
    loop {
        let mut pool = POOL.lock();
        let Some(at) = pool.leaving.iter().position(HugeFrame::is_sole) else { return };
        let page = pool.leaving.swap_remove(at);
        let gone = pool.admit(page);
        drop(pool);
        drop(gone);
    }
}

/// Promises `count` pages. ENOMEM, and nothing done, if there are not as many.
fn reserve(count: u64) -> Result<()> {
    settle();
    let mut added = 0;
    loop {
        {
            let mut pool = POOL.lock();
            let available = pool.available();
            if available >= count {
                pool.counts.reserved += count;
                return Ok(());
            }
            let wanted = pool.counts.surplus.saturating_add(count - available);
            if wanted > pool.counts.overcommit {
                break;
            }
        }
        let page = HugeFrame::alloc_zeroed().ok_or(Errno::ENOMEM);
        if page.and_then(|page| add(page, 1)).is_err() {
            break;
        }
        added += 1;
        yield_if_needed();
    }
    trim(added);
    Err(Errno::ENOMEM)
}

/// Takes back the promise of `count` pages.
fn unreserve(count: u64) {
    POOL.lock().counts.reserved -= count;
    trim(count);
}

/// Gives back at most `count` pages that were not to stay.
fn trim(count: u64) {
    for _ in 0..count {
        let page = POOL.lock().trim();
        if page.is_none() {
            return;
        }
    }
}

/// A page of the pool in use; it comes back with the last who has it.
pub struct HugePage(Option<HugeFrame>);

impl HugePage {
    /// Takes one out, one that was promised or another, its contents left from before. ENXIO (which
    /// is SIGBUS to who faults) if there is none.
    fn take(was_promised: bool) -> Result<HugePage> {
        settle();
        let mut pool = POOL.lock();
        if !was_promised && pool.available() == 0 {
            drop(pool);
            let page = HugeFrame::alloc_zeroed().ok_or(Errno::ENXIO)?;
            add(page, 1).map_err(|_| Errno::ENXIO)?;
            pool = POOL.lock();
            if pool.available() == 0 {
                return Err(Errno::ENXIO);
            }
        }
        let page = pool.waiting.pop().ok_or(Errno::ENXIO)?;
        pool.counts.reserved -= u64::from(was_promised);
        Ok(HugePage(Some(page)))
    }

    fn frame(&self) -> &HugeFrame {
        self.0.as_ref().expect("only the end takes it")
    }

    /// A share for a page table.
    #[must_use]
    pub fn share(&self) -> HugeFrame {
        self.frame().share()
    }
}

impl Drop for HugePage {
    fn drop(&mut self) {
        let gone = self.0.take().and_then(|page| POOL.lock().admit(page));
        drop(gone);
    }
}

/// The pages of one mapping, or of what several share, by their place: see the module.
#[derive(Default)]
pub struct HugePages(Mutex<Places>);

#[derive(Default)]
struct Places {
    pages: BTreeMap<u64, Arc<HugePage>>,
    /// Places without a page to which one is promised.
    promised: BTreeSet<u64>,
    /// What goes by madvise(2) is promised again.
    keeps_promises: bool,
}

impl HugePages {
    /// Has a page promised to each of these places that has none. ENOMEM, and nothing done, if the
    /// pool has not as many.
    pub fn reserve(&self, places: Range<u64>) -> Result<()> {
        if places.end - places.start > most() {
            return Err(Errno::ENOMEM);
        }
        let mut all = self.0.lock();
        let all = &mut *all;
        let is_missing = |at: &u64| !all.pages.contains_key(at) && !all.promised.contains(at);
        let missing: Vec<u64> = places.filter(is_missing).collect();
        reserve(missing.len() as u64)?;
        all.promised.extend(missing);
        all.keeps_promises = true;
        Ok(())
    }

    /// The page at a place, if there is one.
    pub fn get(&self, at: u64) -> Option<Arc<HugePage>> {
        self.0.lock().pages.get(&at).cloned()
    }

    /// How many pages there are.
    pub fn count(&self) -> u64 {
        self.0.lock().pages.len() as u64
    }

    /// The page at a place, new and filled with zeros if there is none.
    pub fn get_or_make(&self, at: u64) -> Result<Arc<HugePage>> {
        let mut all = self.0.lock();
        match all.pages.get(&at) {
            Some(page) => Ok(page.clone()),
            None => all.make(at, HugeFrame::zero),
        }
    }

    /// The page at a place for who has a private mapping, and whether it is nobody else's. To be
    /// written to it must be: then it is a copy of what others have, too. `below`: what the file
    /// has there.
    pub fn get_private(
        &self,
        at: u64,
        below: Option<Arc<HugePage>>,
        write: bool,
    ) -> Result<(Arc<HugePage>, bool)> {
        let mut all = self.0.lock();
        let from = match all.pages.get(&at) {
            Some(page) if Arc::strong_count(page) == 1 => return Ok((page.clone(), true)),
            Some(page) => Some(page.clone()),
            None => below,
        };
        Ok(match from {
            Some(from) if !write => (from, false),
            Some(from) => (all.make(at, |frame| frame.copy_from(from.frame()))?, true),
            None => (all.make(at, HugeFrame::zero)?, true),
        })
    }

    /// Gives back the pages at these places. `is_end`: the places go, too, and nothing is promised
    /// to them any more.
    pub fn give_back(&self, places: Range<u64>, is_end: bool) {
        let mut all = self.0.lock();
        let gone: Vec<_> = all.pages.extract_if(places.clone(), |_, _| true).collect();
        for (at, page) in gone {
            drop(page);
            // Another may have been first: then nothing is promised.
            if all.keeps_promises && !is_end && reserve(1).is_ok() {
                all.promised.insert(at);
            }
        }
        if is_end {
            let promised = all.promised.extract_if(places, |_| true).count();
            unreserve(promised as u64);
        }
    }

    /// The same pages for a child, to which nothing is promised.
    #[must_use]
    pub fn duplicate(&self) -> HugePages {
        let mut copy = Places::default();
        copy.pages.clone_from(&self.0.lock().pages);
        HugePages(Mutex::new(copy))
    }
}

impl Places {
    /// Enters a new page at a place, with what `fill` writes to it.
    fn make(&mut self, at: u64, fill: impl FnOnce(&HugeFrame)) -> Result<Arc<HugePage>> {
        let page = HugePage::take(self.promised.contains(&at))?;
        self.promised.remove(&at);
        fill(page.frame());
        let page = Arc::new(page);
        self.pages.insert(at, page.clone());
        Ok(page)
    }
}

impl Drop for Places {
    fn drop(&mut self) {
        unreserve(self.promised.len() as u64);
    }
}
