//! Page faults: bringing in, or copying, the page a program wants.
//!
//! The rights in the page table may be less than the area's: a page shared copy-on-write, or one of
//! a file whose first write must be seen. So a fault first asks the area, then the page table.

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use abi::{Errno, Result};
use machine::entry::PageFault;
use machine::frame::{Frame, is_short};
use machine::memory::{PageKind, Prot};
use machine::pkey::Pkru;
use machine::sync::Once;

use super::vma::VmaFlags;
use super::{Backing, Mm, MmInner, PAGE, STACK_GUARD, Vma};
use crate::base::reserve::alloc_zeroed;
use crate::page_cache::PageCache;

/// Pages of a file that are mapped together with the one that faulted, if they are in memory.
const FAULT_AROUND: u64 = 16;

/// How far a stack may grow, for whoever makes it grow.
pub trait StackLimits {
    /// Most bytes of a stack (RLIMIT_STACK).
    fn stack_bytes(&self) -> u64;
    /// Most bytes of memory that may be locked, whole pages (mlock(2)).
    fn locked_bytes(&self) -> u64;
}

static ZERO_PAGE: Once<Frame> = Once::new();

/// The page of zeros that untouched anonymous memory shows to readers.
fn zero_page() -> Result<Frame> {
    if let Some(frame) = ZERO_PAGE.get() {
        return Ok(frame.clone());
    }
    let frame = alloc_zeroed()?;
    Ok(ZERO_PAGE.call_once(|| frame).clone())
}

impl Mm {
    /// Makes the page at `fault.address` accessible as asked, if the program has the right to it.
    /// Its stack grows down to it, within these limits.
    pub fn handle_fault(&self, fault: PageFault, limits: &impl StackLimits) -> Result<()> {
        self.faults.0.fetch_add(1, Ordering::Relaxed);
        if self.try_read(|inner| inner.try_fault(fault)) == Some(true) {
            return Ok(());
        }
        let mut inner = self.inner.lock();
        match inner.fault(fault) {
            Err(Errno::EFAULT) => {
                inner.grow_to(fault.address, limits)?;
                inner.fault(fault)
            }
            result => result,
        }
    }
}

impl MmInner {
    /// What most faults ask for, beside those of other threads: a page where there is a table but
    /// no page yet, or the right to write to one that is there; of memory without a file, or of a
    /// file's that is in memory. False, and nothing done, for all else.
    fn try_fault(&self, fault: PageFault) -> bool {
        let page = fault.address & !(PAGE - 1);
        if is_short() {
            return false;
        }
        let is_good = |vma: &Vma| is_allowed(vma, fault) && has_key(vma, fault);
        let Some((start, vma)) = self.find(page).filter(|(_, vma)| is_good(vma)) else {
            return false;
        };
        match fault.present {
            false => self.try_fill(page, start, vma, fault.write),
            true => fault.write && self.try_write(page, start, vma, fault),
        }
    }

    fn try_fill(&self, page: u64, start: u64, vma: &Vma, write: bool) -> bool {
        let Some(vacant) = self.table.vacant(page) else { return false };
        match &vma.backing {
            Backing::Anonymous if write => Frame::alloc_zeroed()
                .map(|frame| vacant.fill(frame, vma.page_prot(), PageKind::Anonymous))
                .is_ok(),
            Backing::Anonymous => zero_page()
                .map(|frame| vacant.fill(frame, vma.page_prot().read_only(), PageKind::Special))
                .is_ok(),
            Backing::File { cache, page_offset, .. } if write => {
                let index = page_offset + (page - start) / PAGE;
                if vma.shared {
                    let Some(frame) = cache.try_page_for_mapping(index) else { return false };
                    vacant.fill(frame, vma.page_prot(), kind_of(cache));
                    return true;
                }
                let mut frames = [None];
                cache.resident_run(index, &mut frames);
                let [Some(frame)] = frames else { return false };
                let copy = frame.duplicate();
                copy.map(|copy| vacant.fill(copy, vma.page_prot(), PageKind::Anonymous)).is_ok()
            }
            Backing::File { cache, page_offset, .. } => {
                let around = Around::new(page, start, vma, *page_offset);
                let mut frames = around.resident(cache);
                let Some(frame) = frames[around.of(page)].take() else { return false };
                let (prot, kind) = (vma.page_prot().read_only(), kind_of(cache));
                // Whoever was first has brought in no less: the access tells.
                vacant.fill(frame, prot, kind);
                self.table.fill_absent(around.first, frames.into_iter(), prot, kind);
                true
            }
            Backing::Hugetlb(_) | Backing::Special { .. } => false,
        }
    }

    /// A write to a page that was there without the right to it, beside other threads.
    fn try_write(&self, page: u64, start: u64, vma: &Vma, fault: PageFault) -> bool {
        let Some(read_only) = self.table.read_only(page) else {
            // Another thread may have been first.
            return self.table.allows(page, right_to_write(fault));
        };
        let prot = vma.page_prot();
        if vma.shared {
            let Backing::File { cache, page_offset, .. } = &vma.backing else { return false };
            let index = page_offset + (page - start) / PAGE;
            return cache.try_page_for_mapping(index).is_some() && read_only.allow(prot);
        }
        if read_only.is_sole() {
            return read_only.allow(prot);
        }
        read_only.replace_by_copy(prot) == Ok(true)
    }

    /// As [`Mm::handle_fault`], the lock held. No stack grows: that is for the program itself.
    /// EFAULT if nothing is mapped there; EKEYREJECTED if the area's protection key denies it,
    /// EACCES if the area's rights do.
    pub fn fault(&mut self, fault: PageFault) -> Result<()> {
        let page = fault.address & !(PAGE - 1);
        let (start, vma) = self.find(page).ok_or(Errno::EFAULT)?;
        if !has_key(vma, fault) {
            return Err(Errno::EKEYREJECTED);
        }
        if !is_allowed(vma, fault) {
            return Err(Errno::EACCES);
        }
        let vma = vma.clone();
        if let Backing::Hugetlb(area) = &vma.backing {
            return self.fault_huge(page, start, &vma, area, fault.write);
        }
        match self.table.lookup(page) {
            Some(mapping) if fault.write && !mapping.prot.contains(right_to_write(fault)) => {
                self.write_to_shared(page, start, &vma, mapping.frame)
            }
            Some(mapping) if is_within(mapping.prot, fault) => Ok(()),
            Some(mapping) => {
                self.map(page, mapping.frame, vma.page_prot().read_only(), mapping.kind)
            }
            None => self.bring_in(page, start, &vma, fault.write),
        }
    }

    /// The page is there without the right to write: copy it, or own it, or mark the file dirty.
    fn write_to_shared(&mut self, page: u64, start: u64, vma: &Vma, frame: Frame) -> Result<()> {
        if vma.shared {
            if let Backing::File { cache, page_offset, .. } = &vma.backing {
                cache.page_for_mapping(page_offset + (page - start) / PAGE)?;
            }
            if self.table.allow_huge(page, vma.page_prot()) {
                return Ok(());
            }
            self.table.set_prot(page, vma.page_prot());
            return Ok(());
        }
        if self.table.own_huge(page, vma.page_prot()) {
            return Ok(());
        }
        // Two references: the page table's, and the one in hand.
        if frame.refs() == 2 {
            self.table.set_prot(page, vma.page_prot());
            return Ok(());
        }
        let copy = duplicate(&frame)?;
        self.map(page, copy, vma.page_prot(), PageKind::Anonymous)
    }

    fn bring_in(&mut self, page: u64, start: u64, vma: &Vma, write: bool) -> Result<()> {
        match &vma.backing {
            Backing::Anonymous if write && self.bring_in_huge(page, start, vma) => Ok(()),
            Backing::Anonymous if write => {
                let frame = alloc_zeroed()?;
                self.map(page, frame, vma.page_prot(), PageKind::Anonymous)
            }
            Backing::Anonymous => {
                let frame = zero_page()?;
                self.map(page, frame, vma.page_prot().read_only(), PageKind::Special)
            }
            Backing::File { .. } if self.bring_in_run(page, start, vma, write) => Ok(()),
            Backing::File { cache, page_offset, .. } => {
                let index = page_offset + (page - start) / PAGE;
                if write && vma.shared {
                    let frame = cache.page_for_mapping(index)?;
                    return self.map(page, frame, vma.page_prot(), kind_of(cache));
                }
                let frame = cache.page(index, false)?;
                if write {
                    let copy = duplicate(&frame)?;
                    return self.map(page, copy, vma.page_prot(), PageKind::Anonymous);
                }
                self.map(page, frame, vma.page_prot().read_only(), kind_of(cache))?;
                self.map_around(page, start, vma, cache, *page_offset);
                Ok(())
            }
            Backing::Hugetlb(area) => self.fault_huge(page, start, vma, area, write),
            Backing::Special { frames, .. } => {
                let index = ((page - start) / PAGE) as usize;
                let frame = frames.get(index).ok_or(Errno::ENXIO)?.clone();
                self.map(page, frame, vma.page_prot().read_only(), PageKind::Special)
            }
        }
    }

    /// The page at `page`, whatever the area's rights: for tracers, whose breakpoints lie in text.
    /// A page to be written is first made the program's own; EIO for a shared one it may not write.
    pub fn force_in(&mut self, page: u64, write: bool) -> Result<Frame> {
        let (start, vma) = self.find(page).ok_or(Errno::EFAULT)?;
        let vma = vma.clone();
        if write && vma.prot.contains(Prot::WRITE) {
            self.fault(PageFault::by_kernel(page, write))?;
        } else if write && (vma.shared || vma.is_hugetlb()) {
            return Err(Errno::EIO);
        } else if self.table.lookup(page).is_none() {
            self.bring_in(page, start, &vma, false)?;
        }
        if write && !vma.is_hugetlb() {
            self.table.make_small(page);
        }
        let frame = self.table.lookup(page).ok_or(Errno::EFAULT)?.frame;
        // Two references: the page table's, and the one in hand.
        if !write || vma.prot.contains(Prot::WRITE) || frame.refs() == 2 {
            return Ok(frame);
        }
        let copy = duplicate(&frame)?;
        self.map(page, copy.clone(), vma.page_prot(), PageKind::Anonymous)?;
        Ok(copy)
    }

    /// Maps the neighbours of a file page that are in memory already; spares their faults.
    fn map_around(
        &mut self,
        page: u64,
        start: u64,
        vma: &Vma,
        cache: &Arc<PageCache>,
        page_offset: u64,
    ) {
        let around = Around::new(page, start, vma, page_offset);
        let frames = around.resident(cache).into_iter();
        let prot = vma.page_prot().read_only();
        // Without memory for a table the neighbours fault by themselves.
        let _ = self.table.map_absent(around.first, frames, prot, kind_of(cache));
    }

    fn map(&mut self, page: u64, frame: Frame, prot: Prot, kind: PageKind) -> Result<()> {
        self.table.map(page, frame, prot, kind).map_err(|_| Errno::ENOMEM)
    }

    /// If nothing is at `address`, extends the stack above down to it. EFAULT if there is none, or
    /// the limits do not allow it.
    #[inline]
    pub fn grow_to(&mut self, address: u64, limits: &impl StackLimits) -> Result<()> {
        if self.find(address).is_some() { Ok(()) } else { self.grow_stack(address, limits) }
    }

    #[cold]
    fn grow_stack(&mut self, address: u64, limits: &impl StackLimits) -> Result<()> {
        let page = address & !(PAGE - 1);
        let (&start, vma) = self.vmas.range(page..).next().ok_or(Errno::EFAULT)?;
        if !vma.flags.contains(VmaFlags::GROWS_DOWN) {
            return Err(Errno::EFAULT);
        }
        if vma.end - page > limits.stack_bytes() {
            return Err(Errno::EFAULT);
        }
        let is_locked = vma.flags.contains(VmaFlags::LOCKED);
        if is_locked && !self.may_lock_more(limits.locked_bytes(), start - page) {
            return Err(Errno::EFAULT);
        }
        // Another stack below, and what nobody can access, is no place that a stack could run into.
        let below =
            self.vmas.range(..page).next_back().filter(|(_, vma)| {
                !vma.flags.contains(VmaFlags::GROWS_DOWN) && vma.is_accessible()
            });
        if below.is_some_and(|(_, vma)| page < vma.end.saturating_add(STACK_GUARD)) {
            return Err(Errno::EFAULT);
        }
        if let Some(vma) = self.vmas.remove(start) {
            self.vmas.insert(page, vma);
        }
        Ok(())
    }

    /// Brings in every page of `[start, end)` (MAP_POPULATE, mlock): ENOMEM at a hole, EACCES where
    /// the program may access nothing, EKEYREJECTED where its protection key denies it.
    pub fn populate(&mut self, start: u64, end: u64) -> Result<()> {
        let (mut page, keys) = (start, Pkru::read());
        while page < end {
            let Some((_, vma)) = self.find(page) else { return Err(Errno::ENOMEM) };
            let write = vma.prot.changes() && !vma.shared;
            let shadow = vma.prot.contains(Prot::SHADOW);
            let exec = vma.prot.contains(Prot::EXEC) && !vma.prot.contains(Prot::READ);
            let exec = exec && !write;
            self.fault(PageFault { address: page, write, shadow, exec, present: false, keys })?;
            page = self.table.page_end(page);
        }
        Ok(())
    }
}

/// The pages of an area around one of them.
struct Around {
    /// The address of the first.
    first: u64,
    /// Where that is in the file, pages.
    index: u64,
    count: usize,
}

impl Around {
    fn new(page: u64, start: u64, vma: &Vma, page_offset: u64) -> Around {
        let first = (page & !(FAULT_AROUND * PAGE - 1)).max(start);
        let last = (page | (FAULT_AROUND * PAGE - 1)).min(vma.end - 1);
        let index = page_offset + (first - start) / PAGE;
        Around { first, index, count: ((last - first) / PAGE + 1) as usize }
    }

    /// Which of them `page` is.
    fn of(&self, page: u64) -> usize {
        ((page - self.first) / PAGE % FAULT_AROUND) as usize
    }

    /// Those of the file that are in memory.
    fn resident(&self, cache: &PageCache) -> [Option<Frame>; FAULT_AROUND as usize] {
        let mut frames = [const { None }; FAULT_AROUND as usize];
        cache.resident_run(self.index, &mut frames[..self.count]);
        frames
    }
}

/// Whether the area gives the right to it.
fn is_allowed(vma: &Vma, fault: PageFault) -> bool {
    if fault.write {
        vma.prot.contains(right_to_write(fault))
    } else if fault.exec {
        vma.prot.contains(Prot::EXEC)
    } else {
        vma.is_accessible()
    }
}

/// What a fault that is a write asks for.
fn right_to_write(fault: PageFault) -> Prot {
    if fault.shadow { Prot::SHADOW } else { Prot::WRITE }
}

/// Whether the area's protection key lets the program. Nothing keeps it from executing.
fn has_key(vma: &Vma, fault: PageFault) -> bool {
    fault.exec || fault.keys.allows(vma.prot.key(), fault.write)
}

/// What pages of a file count as.
fn kind_of(cache: &PageCache) -> PageKind {
    if cache.is_only_memory() { PageKind::Shmem } else { PageKind::File }
}

fn duplicate(frame: &Frame) -> Result<Frame> {
    crate::base::reserve::check_reserve()?;
    frame.duplicate().map_err(|_| Errno::ENOMEM)
}

fn is_within(prot: Prot, fault: PageFault) -> bool {
    if fault.exec { prot.contains(Prot::EXEC) } else { prot.contains(Prot::READ) }
}
