//! Huge pages: memory of programs that is mapped by 2 MiB at once
//! (Documentation/admin-guide/mm/transhuge.rst).
//!
//! Private anonymous memory gets them by itself: a first write in 2 MiB that lie in one area, and
//! of which nothing is there yet, brings in all of it, if there is memory in one piece and enough
//! of it. Whoever changes a part makes it small pages again (`machine::memory::PageTable`), so
//! nothing else in the kernel knows of them. What has become small stays so until madvise(2) asks:
//! MADV_COLLAPSE. No thread looks for what could become huge in the background.

use core::sync::atomic::{AtomicU8, Ordering};

use abi::{Errno, Result};
use machine::entry::PageFault;
use machine::frame::HugeFrame;
use machine::memory::{HUGE_PAGE, PageKind, Prot};

use super::vma::VmaFlags;
use super::{MmInner, PAGE, Vma};

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
        let never = VmaFlags::NO_HUGE | VmaFlags::GROWS_DOWN;
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
        if len.is_multiple_of(HUGE_PAGE)
            && vma.is_private_anonymous()
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

    /// MADV_COLLAPSE: makes what lies in whole 2 MiB of `[start, end)` huge pages, holes included.
    /// EINVAL where there may be none, or there is nothing; ENOMEM without memory in one piece.
    pub fn collapse(&mut self, start: u64, end: u64) -> Result<()> {
        // A hole is told only where all that is there fits.
        let next = || self.vmas.range(start..end).next().map(|(&at, vma)| (at, vma));
        let (area, vma) = self.find(start).or_else(next).ok_or(Errno::ENOMEM)?;
        let fits = area.next_multiple_of(HUGE_PAGE) + HUGE_PAGE <= vma.end;
        if !vma.may_be_huge() || !fits {
            return Err(Errno::EINVAL);
        }
        let mut result = self.find(start).map(|_| ()).ok_or(Errno::ENOMEM);
        let first = start.next_multiple_of(HUGE_PAGE);
        for base in (first..end.saturating_sub(HUGE_PAGE - 1)).step_by(HUGE_PAGE as usize) {
            result = result.and(self.collapse_one(base));
        }
        result
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
                self.fault(PageFault { address: page, write: true, exec: false, present: false })?;
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
