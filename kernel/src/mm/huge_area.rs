//! Areas of huge pages of the pool ([`super::hugetlb`]): what of them may be cut, and how their
//! pages come, are copied and go. All is done to whole pages: calls that would cut one are refused
//! ([`MmInner::check_cuts`]), so the page table never meets a part.

use alloc::sync::Arc;
use core::ops::Range;

use abi::{Errno, Result};
use machine::memory::{HUGE_PAGE, PageKind, Prot};

use super::hugetlb::HugePages;
use super::{Backing, MmInner, PAGE, Vma, VmaFlags};
use crate::vfs::File;

/// Where the pages of such an area come from.
#[derive(Clone)]
pub struct HugeArea {
    /// Those of a shared area; of a private one, those that are the address space's own.
    pub pages: Arc<HugePages>,
    /// The place of its first page there.
    pub first: u64,
    /// Of a private area of a file: what that has.
    pub below: Option<Arc<HugePages>>,
    /// The open file, for its name; None for memory without a file.
    pub file: Option<Arc<File>>,
}

impl Vma {
    /// An area of huge pages without a file, of which `len` bytes are wanted. ENOMEM if they are to
    /// be promised (`is_reserved`) and there are not enough.
    pub fn hugetlb(prot: Prot, shared: bool, len: u64, first: u64, reserve: bool) -> Result<Vma> {
        let pages = Arc::new(HugePages::default());
        let end = first.checked_add(len / HUGE_PAGE).ok_or(Errno::EINVAL)?;
        if reserve {
            pages.reserve(first..end)?;
        }
        let mut vma = Vma::anonymous(0, prot);
        vma.shared = shared;
        vma.flags |= VmaFlags::FIXED_SIZE;
        vma.backing = Backing::Hugetlb(HugeArea { pages, first, below: None, file: None });
        Ok(vma)
    }

    /// Whether its pages are the pool's.
    #[must_use]
    pub fn is_hugetlb(&self) -> bool {
        matches!(self.backing, Backing::Hugetlb(_))
    }

    /// Whether a cut at `at` would go through one of them.
    #[must_use]
    pub fn is_cut_by(&self, at: u64) -> bool {
        !at.is_multiple_of(HUGE_PAGE) && self.is_hugetlb()
    }

    /// For the copy of an area in another address space: has what is private, itself.
    pub(super) fn own_huge_pages(&mut self) {
        if let Backing::Hugetlb(area) = &mut self.backing
            && !self.shared
        {
            area.pages = Arc::new(area.pages.duplicate());
        }
    }

    /// The area, which began at `start`, is gone from the page table: gives its own pages back.
    pub(super) fn give_back_huge(&self, start: u64) {
        if let Backing::Hugetlb(area) = &self.backing
            && !self.shared
        {
            area.pages.give_back(area.places(start, start..self.end), true);
        }
    }
}

impl HugeArea {
    /// The places of the pages in `range`, of an area that begins at `start`.
    fn places(&self, start: u64, range: Range<u64>) -> Range<u64> {
        let place = |at: u64| self.first + (at - start) / HUGE_PAGE;
        place(range.start)..place(range.end)
    }
}

impl MmInner {
    /// EINVAL if taking `[start, end)` out would cut a huge page of the pool.
    pub fn check_cuts(&self, start: u64, end: u64) -> Result<()> {
        let cuts = |at: u64| {
            let area = self.find(at).filter(|(start, _)| *start < at);
            area.is_some_and(|(_, vma)| vma.is_cut_by(at))
        };
        if cuts(start) || cuts(end) { Err(Errno::EINVAL) } else { Ok(()) }
    }

    /// As [`MmInner::find_free`], for whole huge pages.
    pub fn find_free_huge(&mut self, hint: u64, len: u64) -> Result<u64> {
        let hint = hint & !(HUGE_PAGE - 1);
        if hint != 0
            && let Ok(found) = self.find_free(hint, len)
            && found == hint
        {
            return Ok(hint);
        }
        let len = len.checked_add(HUGE_PAGE - PAGE).ok_or(Errno::ENOMEM)?;
        Ok(self.find_free(0, len)?.next_multiple_of(HUGE_PAGE))
    }

    /// Brings in the huge page around `page`, or a copy of it that may be written to. ENXIO if the
    /// pool has none.
    pub(super) fn fault_huge(
        &mut self,
        page: u64,
        start: u64,
        vma: &Vma,
        area: &HugeArea,
        write: bool,
    ) -> Result<()> {
        let base = page & !(HUGE_PAGE - 1);
        let at = area.places(start, base..base).start;
        let (memory, is_own) = if vma.shared {
            (area.pages.get_or_make(at)?, true)
        } else {
            let below = area.below.as_ref().and_then(|below| below.get(at));
            area.pages.get_private(at, below, write)?
        };
        let prot = if is_own { vma.page_prot() } else { vma.page_prot() - Prot::WRITE };
        self.table.map_pooled(base, memory.share(), prot).map_err(|_| Errno::ENOMEM)
    }

    /// Takes the pages of `[start, end)`, which lies in an area of huge pages and cuts none at its
    /// start, from the program: of those that it cuts at its end, nothing (madvise(2),
    /// MADV_DONTNEED).
    pub fn drop_huge(&mut self, start: u64, end: u64) -> Result<()> {
        let end = end & !(HUGE_PAGE - 1);
        self.zap(start, end, start..end);
        let (area_start, vma) = self.find(start).ok_or(Errno::ENOMEM)?;
        if let Backing::Hugetlb(area) = &vma.backing
            && !vma.shared
        {
            area.pages.give_back(area.places(area_start, start..end), false);
        }
        Ok(())
    }

    /// The pages of `[start, end)` belong to another area now: none is given back with this one.
    pub fn disown_huge(&mut self, start: u64, end: u64) {
        if self.find(start).is_some_and(|(_, vma)| vma.is_hugetlb()) {
            self.split(start);
            self.split(end);
            self.vmas.edit_each(start..end, |vma| vma.backing = Backing::Anonymous);
        }
    }
}

impl Drop for MmInner {
    fn drop(&mut self) {
        if self.table.mapped(PageKind::Hugetlb) == 0 {
            return;
        }
        // Before the areas, so that the pool has its pages back at once: CPUs may keep the table
        // for a while.
        let Self { vmas, table, .. } = self;
        for (&start, vma) in vmas.iter().filter(|(_, vma)| vma.is_hugetlb()) {
            table.unmap(start, vma.end, start..vma.end);
        }
    }
}
