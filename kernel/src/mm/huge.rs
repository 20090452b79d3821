//! Huge pages: memory of programs that is mapped by 2 MiB at once
//! (Documentation/admin-guide/mm/transhuge.rst).
//!
//! Private anonymous memory gets them by itself: a first write in 2 MiB that lie in one area, and
//! of which nothing is there yet, brings in all of it, if there is memory in one piece and enough
//! of it. Whoever changes a part makes it small pages again (`machine::memory::PageTable`), so
//! nothing else in the kernel knows of them. Files in memory come by 2 MiB where their mount, or
//! the machine, says so (`page_cache::huge`). What is small becomes huge when madvise(2) asks
//! (MADV_COLLAPSE), or when `khugepaged` comes by ([`Mm::look_for_huge`]).

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU8, Ordering};

use abi::{Errno, Result};
use machine::entry::PageFault;
use machine::frame::HugeFrame;
use machine::memory::{HUGE_PAGE, PageKind, Prot};

use super::vma::VmaFlags;
use super::{Backing, Mm, MmInner, PAGE, Vma};
use crate::page_cache::PageCache;

/// Which areas get huge pages by themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Policy {
    /// All that do not object.
    Always = 0,
    /// Those that ask (MADV_HUGEPAGE).
    Madvise = 1,
    /// None.
    Never = 2,
}

/// How often what somebody has for a moment is tried again.
const COLLAPSE_AGAIN: usize = 3;

/// In the order of their numbers, with what names them.
const POLICIES: [(Policy, &str); 3] =
    [(Policy::Always, "always"), (Policy::Madvise, "madvise"), (Policy::Never, "never")];

static POLICY: AtomicU8 = AtomicU8::new(Policy::Always as u8);

/// What holds now.
#[must_use]
pub fn policy() -> Policy {
    POLICIES[usize::from(POLICY.load(Ordering::Relaxed)) % POLICIES.len()].0
}

/// Sets it by its name. False if nothing has that name.
pub fn set_policy(name: &str) -> bool {
    let found = POLICIES.iter().find(|(_, own)| *own == name);
    if let Some((policy, _)) = found {
        POLICY.store(*policy as u8, Ordering::Relaxed);
    }
    found.is_some()
}

/// All names, the one that holds in brackets: /sys/kernel/mm/transparent_hugepage/enabled.
pub fn describe(out: &mut dyn core::fmt::Write) -> core::fmt::Result {
    for (at, (policy, name)) in POLICIES.into_iter().enumerate() {
        let space = if at == 0 { "" } else { " " };
        match policy == self::policy() {
            true => write!(out, "{space}[{name}]")?,
            false => write!(out, "{space}{name}")?,
        }
    }
    Ok(())
}

/// Does what the kernel's command line says: `transparent_hugepage=`.
pub fn init(command_line: &str) {
    if let Some(name) = crate::base::params::find(command_line, "transparent_hugepage")
        && !set_policy(name)
    {
        machine::log!("warning: transparent_hugepage={name}: always, madvise or never");
    }
}

impl Vma {
    /// Whether there may be huge pages in it, if somebody asks for them.
    fn may_be_huge(&self) -> bool {
        let never = VmaFlags::NO_HUGE | VmaFlags::GROWS_DOWN | VmaFlags::SHADOW_STACK;
        self.is_private_anonymous() && !self.flags.intersects(never)
    }
}

impl MmInner {
    /// Whether an area of it gets huge pages by itself.
    pub fn wants_huge(&self, vma: &Vma) -> bool {
        let asks = match policy() {
            Policy::Always => true,
            Policy::Madvise => vma.flags.contains(VmaFlags::HUGE),
            Policy::Never => false,
        };
        asks && vma.may_be_huge() && !self.no_huge_pages
    }

    /// As [`MmInner::find_free`] without a hint, for an area that may have huge pages: on a
    /// multiple of their size, if its length is one.
    pub fn find_free_for(&mut self, vma: &Vma, len: u64) -> Result<u64> {
        let may_be_huge = match &vma.backing {
            Backing::File { cache, page_offset, .. } => {
                page_offset.is_multiple_of(HUGE_PAGE / PAGE) && cache.wants_run(*page_offset, true)
            }
            _ => vma.is_private_anonymous(),
        };
        if len.is_multiple_of(HUGE_PAGE)
            && may_be_huge
            && let Ok(start) = self.find_free(0, len + HUGE_PAGE - PAGE)
        {
            return Ok(start.next_multiple_of(HUGE_PAGE));
        }
        self.find_free(0, len)
    }

    /// Brings in the 2 MiB around `page`, which lies in the area `vma` from `start` on, to be
    /// written. False: one page has to do.
    pub(super) fn bring_in_huge(&mut self, page: u64, start: u64, vma: &Vma) -> bool {
        let base = page & !(HUGE_PAGE - 1);
        if base < start || base + HUGE_PAGE > vma.end {
            return false;
        }
        // First what needs no walk.
        if !self.wants_huge(vma) || !self.table.is_huge_free(base) {
            return false;
        }
        let Some(memory) = HugeFrame::alloc_zeroed() else { return false };
        self.table.map_huge(base, memory, vma.page_prot(), PageKind::Anonymous).is_ok()
    }

    /// The same of a file in memory, if that comes by 2 MiB: brings them in, and maps them.
    pub(super) fn bring_in_run(&mut self, page: u64, start: u64, vma: &Vma, write: bool) -> bool {
        let Backing::File { cache, page_offset, .. } = &vma.backing else { return false };
        let base = page & !(HUGE_PAGE - 1);
        if !cache.is_only_memory() || base < start || base + HUGE_PAGE > vma.end {
            return false;
        }
        let index = page_offset + (base - start) / PAGE;
        let is_refused = self.no_huge_pages || vma.flags.contains(VmaFlags::NO_HUGE);
        // A write to what is private makes a copy of one page.
        if is_refused || write && !vma.shared || !index.is_multiple_of(HUGE_PAGE / PAGE) {
            return false;
        }
        if !self.table.is_huge_free(base) {
            return false;
        }
        cache.make_run(index, vma.flags.contains(VmaFlags::HUGE));
        let Some(memory) = cache.run(index) else { return false };
        // Nobody asks what of it is dirty: the file is nowhere else.
        let prot = if vma.shared { vma.page_prot() } else { vma.page_prot() - Prot::WRITE };
        self.table.map_huge(base, memory, prot, PageKind::Shmem).is_ok()
    }

    /// Whether the 2 MiB from `base` on should become one page: what there is of it, within
    /// `limits`. Pages that only may be read do not count as a reason.
    fn is_worth_it(&self, base: u64, limits: &Limits) -> bool {
        let Some((_, vma)) = self.find(base) else { return false };
        let (mut present, mut shared, mut is_written) = (0, 0, false);
        self.table.for_each(base, base + HUGE_PAGE, |page| {
            // The page of zeros is as good as none.
            if page.kind != PageKind::Special {
                present += 1;
                shared += u64::from(page.kind == PageKind::Anonymous && page.refs > 1);
                is_written |= page.prot.contains(Prot::WRITE);
            }
        });
        let none = HUGE_PAGE / PAGE - present;
        let is_allowed = vma.shared || vma.prot.contains(Prot::WRITE) && is_written;
        present > 0 && none <= limits.none && shared <= limits.shared && is_allowed
    }

    /// The first place from `from` on where 2 MiB could become one page, and are not yet.
    fn next_candidate(&self, from: u64) -> Option<u64> {
        let first = self.find(from).map_or(from, |(start, _)| start);
        for (&start, vma) in self.vmas.range(first..) {
            let wants = match &vma.backing {
                Backing::File { cache, page_offset, .. } => {
                    let asks = vma.flags.contains(VmaFlags::HUGE);
                    vma.shared && !self.no_huge_pages && cache.wants_run(*page_offset, asks)
                }
                _ => self.wants_huge(vma),
            };
            let mut base = start.max(from).next_multiple_of(HUGE_PAGE);
            while wants && base + HUGE_PAGE <= vma.end {
                if !self.table.is_huge(base) && !self.table.is_huge_free(base) {
                    return Some(base);
                }
                base += HUGE_PAGE;
            }
        }
        None
    }

    /// What is to become one huge page at `base`.
    fn candidate(&self, base: u64) -> Result<Candidate> {
        let (start, vma) = self.find(base).ok_or(Errno::ENOMEM)?;
        if base < start || base + HUGE_PAGE > vma.end {
            return Err(Errno::EINVAL);
        }
        match &vma.backing {
            Backing::File { cache, page_offset, .. }
                if vma.shared
                    && cache.is_only_memory()
                    && !vma.flags.contains(VmaFlags::NO_HUGE) =>
            {
                let index = page_offset + (base - start) / PAGE;
                match index.is_multiple_of(HUGE_PAGE / PAGE) {
                    true => Ok(Candidate::OfFile(cache.clone(), index)),
                    false => Err(Errno::EINVAL),
                }
            }
            _ if vma.may_be_huge() => Ok(Candidate::Anonymous),
            _ => Err(Errno::EINVAL),
        }
    }

    /// Maps the 2 MiB of a file from `base` on, which are one run now, by one page.
    fn map_run(&mut self, base: u64) -> Result<()> {
        let (start, vma) = self.find(base).ok_or(Errno::ENOMEM)?;
        let vma = vma.clone();
        if base < start || base + HUGE_PAGE > vma.end || self.table.is_huge(base) {
            return Ok(());
        }
        // Single pages that came meanwhile are parts of it: they go with their table.
        self.zap(base, base + HUGE_PAGE, base..base + HUGE_PAGE);
        self.bring_in_run(base, start, &vma, false);
        Ok(())
    }

    fn collapse_one(&mut self, base: u64) -> Result<()> {
        let (start, vma) = self.find(base).ok_or(Errno::ENOMEM)?;
        if base < start || base + HUGE_PAGE > vma.end || !vma.prot.contains(Prot::WRITE) {
            return Err(Errno::EINVAL);
        }
        let mut is_empty = true;
        self.table.for_each(base, base + HUGE_PAGE, |_| is_empty = false);
        if is_empty {
            return Err(Errno::EINVAL);
        }
        for page in (base..base + HUGE_PAGE).step_by(PAGE as usize) {
            let is_own = self.table.lookup(page).is_some_and(|m| m.prot.contains(Prot::WRITE));
            if !is_own {
                self.fault(PageFault::by_kernel(page, true))?;
            }
        }
        match self.table.collapse(base, PageKind::Anonymous) {
            Ok(true) => Ok(()),
            // A page of it is held for a moment, or for input and output.
            Ok(false) => Err(Errno::EAGAIN),
            Err(_) => Err(Errno::ENOMEM),
        }
    }
}

/// What of 2 MiB there may be that they become one page by themselves: see
/// /sys/kernel/mm/transparent_hugepage/khugepaged.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Most pages that are not there yet (max_ptes_none).
    pub none: u64,
    /// Most pages that others have, too (max_ptes_shared).
    pub shared: u64,
}

/// What [`Mm::look_for_huge`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Looked {
    /// At 2 MiB; where it goes on, and whether they are one page now.
    At(u64, bool),
    /// There is no memory in one piece.
    NoMemory,
    /// Nothing is left in this space.
    End,
}

/// What becomes a huge page.
enum Candidate {
    Anonymous,
    /// Of a file in memory, from this page on.
    OfFile(Arc<PageCache>, u64),
}

impl Mm {
    /// MADV_COLLAPSE: makes what lies in whole 2 MiB of `[start, end)` huge pages, holes included.
    /// EINVAL where there may be none, or there is nothing; ENOMEM without memory in one piece;
    /// EAGAIN while somebody has a page for a moment.
    pub fn collapse(&self, start: u64, end: u64) -> Result<()> {
        let mut result = self.with(|inner| {
            // A hole is told only where all that is there fits.
            let next = || inner.vmas.range(start..end).next().map(|(&at, vma)| (at, vma));
            let (area, vma) = inner.find(start).or_else(next).ok_or(Errno::ENOMEM)?;
            let first = area.next_multiple_of(HUGE_PAGE);
            if first + HUGE_PAGE > vma.end {
                return Err(Errno::EINVAL);
            }
            inner.candidate(first)?;
            inner.find(start).map(|_| ()).ok_or(Errno::ENOMEM)
        });
        if result == Err(Errno::EINVAL) {
            return result;
        }
        let first = start.next_multiple_of(HUGE_PAGE);
        for base in (first..end.saturating_sub(HUGE_PAGE - 1)).step_by(HUGE_PAGE as usize) {
            result = result.and(self.collapse_at(base));
            crate::base::sched::yield_if_needed();
        }
        result
    }

    /// Looks at the next 2 MiB from `from` on that could be one page, and makes them so if `limits`
    /// allow it. Sleeps.
    pub fn look_for_huge(&self, from: u64, limits: &Limits) -> Looked {
        let found = self.with(|inner| {
            let base = inner.next_candidate(from)?;
            Some((base, inner.is_worth_it(base, limits)))
        });
        let Some((base, is_worth_it)) = found else { return Looked::End };
        match is_worth_it.then(|| self.collapse_at(base)) {
            Some(Err(Errno::ENOMEM)) => Looked::NoMemory,
            Some(Ok(())) => Looked::At(base + HUGE_PAGE, true),
            _ => Looked::At(base + HUGE_PAGE, false),
        }
    }

    /// Makes the 2 MiB from `base` on one page, as [`Mm::collapse`] does.
    fn collapse_at(&self, base: u64) -> Result<()> {
        let found = self.with(|inner| {
            let candidate = inner.candidate(base)?;
            if matches!(candidate, Candidate::Anonymous) {
                inner.collapse_one(base)?;
            }
            Ok::<_, Errno>(candidate)
        })?;
        if let Candidate::OfFile(cache, index) = found {
            // Without the lock: it takes that of each who maps the file.
            let mut result = cache.collapse(index);
            for _ in 0..COLLAPSE_AGAIN {
                if result != Err(Errno::EAGAIN) {
                    break;
                }
                result = cache.collapse(index);
            }
            result?;
            self.with(|inner| inner.map_run(base))?;
        }
        Ok(())
    }
}
