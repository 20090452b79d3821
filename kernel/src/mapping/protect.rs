//! mprotect(2): other rights for areas that are there. What an area may become was decided when it
//! was mapped ([`VmaFlags::MAY_WRITE`], [`VmaFlags::MAY_EXEC`]).

use abi::{Errno, Result, general as raw};
use machine::memory::Prot;

use super::map::{denies_exec, page_range, prot_from_bits, read_implies_exec};
use crate::mm::{Backing, MmInner, PAGE, Vma, VmaFlags};
use crate::process::current;
use crate::vfs::hooks;

/// pkey_alloc(2): there are no keys. ENOSPC.
pub fn pkey_alloc(flags: u64, rights: u64) -> Result<u64> {
    /// PKEY_DISABLE_ACCESS and PKEY_DISABLE_WRITE.
    const RIGHTS: u64 = 3;
    if flags != 0 || rights & !RIGHTS != 0 { Err(Errno::EINVAL) } else { Err(Errno::ENOSPC) }
}

/// pkey_mprotect(2): mprotect(2) if the key is -1, the only one there can be.
pub fn pkey_mprotect(start: u64, len: u64, bits: u64, key: i32) -> Result<u64> {
    protect(start, len, bits, key == -1)
}

/// mprotect(2).
pub fn mprotect(start: u64, len: u64, bits: u64) -> Result<u64> {
    protect(start, len, bits, true)
}

/// `has_key`: the key is one that there is.
fn protect(start: u64, len: u64, bits: u64, has_key: bool) -> Result<u64> {
    const KNOWN: u32 = raw::PROT_READ | raw::PROT_WRITE | raw::PROT_EXEC | raw::PROT_SEM;
    let grows = bits & u64::from(raw::PROT_GROWSDOWN | raw::PROT_GROWSUP);
    let bits = bits & !grows;
    if grows == u64::from(raw::PROT_GROWSDOWN | raw::PROT_GROWSUP) || !start.is_multiple_of(PAGE) {
        return Err(Errno::EINVAL);
    }
    if len == 0 {
        return Ok(0);
    }
    let whole = len.checked_next_multiple_of(PAGE);
    if whole.and_then(|whole| start.checked_add(whole)).is_none() {
        return Err(Errno::ENOMEM);
    }
    // What is asked for is looked at before the place is.
    if bits & !u64::from(KNOWN) != 0 || !has_key {
        return Err(Errno::EINVAL);
    }
    let (mut start, end) = page_range(start, len, Errno::ENOMEM)?;
    let process = &current().process;
    let reads_exec = read_implies_exec(process);
    let prot = prot_from_bits(bits);
    process.mm()?.with(|inner| {
        if grows != 0 {
            start = inner.stack_start(start, end, grows)?;
        }
        // As on Linux, what lies before a hole or a refusal is changed.
        let mut good_end = start;
        let (mut first_start, mut last_end) = (None, start);
        let (below, result) = inner.walk_mapped(start, end, |at, vma| {
            let prot = with_exec(prot, reads_exec, vma);
            let refused = prot.contains(Prot::WRITE) && !vma.flags.contains(VmaFlags::MAY_WRITE)
                || prot.contains(Prot::EXEC) && !vma.flags.contains(VmaFlags::MAY_EXEC)
                || denies_exec(process, vma.prot, prot);
            if refused {
                return Err(Errno::EACCES);
            }
            let file = match &vma.backing {
                Backing::File { file, .. } => file.as_deref(),
                _ => None,
            };
            hooks::file_mprotect((file, prot.bits().into()))?;
            if vma.is_sealed() {
                return Err(Errno::EPERM);
            }
            // As on Linux only what changes is cut.
            if prot != vma.prot {
                inner.check_cuts(at.max(start), vma.end.min(end))?;
            }
            first_start.get_or_insert(at);
            (good_end, last_end) = (vma.end.min(end), vma.end);
            Ok(())
        });
        // Nothing is looked up again that is known: among many areas that is most of the work.
        if first_start.is_some_and(|first| first < start) {
            inner.split(start);
        }
        if last_end > good_end {
            inner.split(good_end);
        }
        let below = first_start.filter(|&first| first < start).or(below);
        let mut next = first_start.map(|_| (below.unwrap_or(start), start));
        while let Some((below, at)) = next {
            let done = inner.protect_area(below, at, prot, reads_exec);
            next = done.filter(|&(_, end)| end < good_end);
        }
        result.map(|()| 0)
    })
}

/// The rights asked for, for an area of a program that executes what it can read.
fn with_exec(mut prot: Prot, reads_exec: bool, vma: &Vma) -> Prot {
    if reads_exec && prot.contains(Prot::READ) && vma.flags.contains(VmaFlags::MAY_EXEC) {
        prot |= Prot::EXEC;
    }
    prot
}

impl MmInner {
    /// ENOMEM unless every page of `[start, end)` is mapped; `check` looks at each area, with its
    /// start.
    pub(super) fn check_mapped(
        &self,
        start: u64,
        end: u64,
        check: impl FnMut(u64, &Vma) -> Result<()>,
    ) -> Result<()> {
        self.walk_mapped(start, end, check).1
    }

    /// The same, and where the area begins that lies before the first one.
    fn walk_mapped(
        &self,
        start: u64,
        end: u64,
        mut check: impl FnMut(u64, &Vma) -> Result<()>,
    ) -> (Option<u64>, Result<()>) {
        let mut downwards = self.vmas.range(..=start).rev();
        let mut found = downwards.next().map(|(&at, vma)| (at, vma));
        let below = downwards.next().map(|(&at, _)| at);
        let mut at = start;
        let mut step = || {
            let area = found.take().or_else(|| self.find(at));
            let (area_start, vma) = area.filter(|(_, vma)| at < vma.end).ok_or(Errno::ENOMEM)?;
            check(area_start, vma)?;
            at = vma.end;
            Ok(at < end)
        };
        // An empty range is mapped wherever it is.
        let mut result = Ok(start < end);
        while result == Ok(true) {
            result = step();
        }
        (below, result.map(|_| ()))
    }

    /// For PROT_GROWSDOWN: the start of the stack in which `[start, end)` begins.
    fn stack_start(&self, start: u64, end: u64, grows: u64) -> Result<u64> {
        let first = self
            .find(start)
            .or_else(|| self.vmas.range(start..end).next().map(|(&start, vma)| (start, vma)));
        let (first_start, vma) = first.ok_or(Errno::ENOMEM)?;
        let is_stack = vma.flags.contains(VmaFlags::GROWS_DOWN);
        if grows == u64::from(raw::PROT_GROWSUP) && first_start > start {
            return Err(Errno::ENOMEM);
        }
        if grows == u64::from(raw::PROT_GROWSUP) || !is_stack {
            return Err(Errno::EINVAL);
        }
        Ok(first_start)
    }

    /// Gives the area at `at` new rights, and tells where it begins and ends then: it may have
    /// joined its neighbours. `below`: where the area before it begins, or `at`.
    fn protect_area(
        &mut self,
        below: u64,
        at: u64,
        prot: Prot,
        reads_exec: bool,
    ) -> Option<(u64, u64)> {
        let changed = self.vmas.edit_and_join(below, at, |vma| {
            vma.prot = with_exec(prot, reads_exec, vma);
            (vma.end, vma.page_prot(), vma.is_private_anonymous())
        });
        // No area begins where a huge page would be cut for what it has already.
        let Some(((end, wanted, anonymous_private), joined)) = changed else {
            return self.find(at).map(|(start, vma)| (start, vma.end));
        };
        self.table.protect(at, end, |page| {
            // Pages that are ours alone get the right to write at once; others by a fault.
            let is_own = anonymous_private && page.refs == 1 && !page.prot.is_empty();
            let may_write = page.prot.contains(Prot::WRITE) || is_own;
            if may_write { wanted } else { wanted - Prot::WRITE }
        });
        // A neighbour that joined had these rights already.
        Some(joined)
    }
}

/// pkey_free(2): nobody has a key.
pub fn pkey_free() -> Result<u64> {
    Err(Errno::EINVAL)
}
