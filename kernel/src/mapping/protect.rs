//! mprotect(2): other rights for areas that are there. What an area may become was decided when it
//! was mapped ([`VmaFlags::MAY_WRITE`], [`VmaFlags::MAY_EXEC`]).

use abi::{Errno, Result, general as raw};
use machine::memory::Prot;
use machine::pkey::Pkru;

use super::map::{denies_exec, page_range, prot_from_bits, read_implies_exec};
use crate::mm::{Backing, MmInner, PAGE, Vma, VmaFlags};
use crate::process::{Process, current};
use crate::vfs::hooks;

/// No key: each area keeps its own.
const KEEP: i32 = -1;

/// pkey_alloc(2): a key, of which the thread has these rights.
pub fn pkey_alloc(flags: u64, denied: u64) -> Result<u64> {
    /// PKEY_DISABLE_ACCESS and PKEY_DISABLE_WRITE.
    const RIGHTS: u64 = 3;
    if flags != 0 || denied & !RIGHTS != 0 {
        return Err(Errno::EINVAL);
    }
    let key = current().process.mm()?.with(|inner| inner.keys.allocate())?;
    Pkru::read().with(key, denied as u32).load();
    Ok(key.into())
}

/// pkey_mprotect(2): mprotect(2) with another key; with -1 it is that.
pub fn pkey_mprotect(start: u64, len: u64, bits: u64, key: i32) -> Result<u64> {
    protect(start, len, bits, key)
}

/// mprotect(2).
pub fn mprotect(start: u64, len: u64, bits: u64) -> Result<u64> {
    protect(start, len, bits, KEEP)
}

/// What an area is to become.
#[derive(Clone, Copy)]
struct Wanted {
    /// The rights asked for.
    prot: Prot,
    /// The program executes what it can read.
    reads_exec: bool,
    /// The key asked for.
    key: Option<u8>,
    /// That of what can be executed and nothing else.
    execute_only: u8,
}

impl Wanted {
    fn of(&self, vma: &Vma) -> Prot {
        let mut prot = self.prot;
        if self.reads_exec && prot.contains(Prot::READ) && vma.flags.contains(VmaFlags::MAY_EXEC) {
            prot |= Prot::EXEC;
        }
        let prot = vma.asked(prot);
        let was_execute_only = vma.prot == Prot::EXEC.with_key(self.execute_only);
        let key = match self.key {
            Some(key) => key,
            None if prot == Prot::EXEC && self.execute_only != 0 => self.execute_only,
            None if was_execute_only => 0,
            None => vma.prot.key(),
        };
        prot.with_key(key)
    }
}

fn protect(start: u64, len: u64, bits: u64, key: i32) -> Result<u64> {
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
    let thread = current();
    let process = &thread.process;
    let mm = process.mm()?;
    if bits & !u64::from(KNOWN) != 0
        || key != KEEP && !mm.with(|inner| inner.keys.is_allocated(key))
    {
        return Err(Errno::EINVAL);
    }
    let (mut start, end) = page_range(start, len, Errno::ENOMEM)?;
    let (prot, reads_exec) = (prot_from_bits(bits), read_implies_exec(&thread));
    mm.with(|inner| {
        let execute_only = if prot == Prot::EXEC {
            inner.keys.deny_execute_only()
        } else {
            inner.keys.known_execute_only()
        };
        let key = u8::try_from(key).ok();
        let wanted = Wanted { prot, reads_exec, key, execute_only };
        if grows != 0 {
            start = inner.stack_start(start, end, grows)?;
        }
        inner.protect(process, start, end, wanted).map(|()| 0)
    })
}

/// Whether an area may be `prot` (mprotect(2)); EACCES, EPERM, or what a policy says.
fn may_become(process: &Process, vma: &Vma, prot: Prot) -> Result<()> {
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
    hooks::file_mprotect((file, (prot.rights() - Prot::SHADOW).bits().into()))?;
    if vma.is_sealed() { Err(Errno::EPERM) } else { Ok(()) }
}

impl MmInner {
    /// As on Linux, what lies before a hole or a refusal is changed.
    fn protect(&mut self, process: &Process, start: u64, end: u64, wanted: Wanted) -> Result<()> {
        let mut good_end = start;
        // Where they begin and end, and whether they change.
        let (mut first, mut last) = (None, (start, false));
        let (below, result) = self.walk_mapped(start, end, |at, vma| {
            let prot = wanted.of(vma);
            may_become(process, vma, prot)?;
            // As on Linux only what changes is cut.
            let is_cut = |edge| at < edge && edge < vma.end && vma.is_cut_by(edge);
            let changes = prot != vma.prot;
            if changes && (is_cut(start) || is_cut(end)) {
                return Err(Errno::EINVAL);
            }
            first.get_or_insert((at, vma.end, changes));
            (good_end, last) = (vma.end.min(end), (vma.end, changes));
            Ok(())
        });
        let Some((first_start, first_end, first_changes)) = first else { return result };
        // Nothing is looked up again that is known: among many areas that is most of the work.
        if first_changes && first_start < start {
            self.split(start);
        }
        if let (last_end, true) = last
            && last_end > good_end
        {
            self.split(good_end);
        }
        let below = if first_start < start { Some(first_start) } else { below };
        // What has these rights already stays whole, and is passed over.
        let mut next = match first_changes {
            true => Some((below.unwrap_or(start), start)),
            false => Some((first_start, first_end)).filter(|&(_, end)| end < good_end),
        };
        while let Some((below, at)) = next {
            let done = self.protect_area(below, at, wanted);
            next = done.filter(|&(_, end)| end < good_end);
        }
        result
    }

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
    fn protect_area(&mut self, below: u64, at: u64, wanted: Wanted) -> Option<(u64, u64)> {
        let changed = self.vmas.edit_and_join(below, at, |vma| {
            let prot = wanted.of(vma);
            let changes = core::mem::replace(&mut vma.prot, prot) != prot;
            (vma.end, vma.page_prot(), vma.is_private_anonymous(), changes)
        });
        let ((end, wanted, anonymous_private, changes), joined) = changed?;
        if !changes {
            return Some(joined);
        }
        self.table.protect(at, end, |page| {
            // Pages that are ours alone get the right to write at once; others by a fault.
            let is_own = anonymous_private && page.refs == 1 && !page.prot.is_none();
            if page.prot.changes() || is_own { wanted } else { wanted.read_only() }
        });
        // A neighbour that joined had these rights already.
        Some(joined)
    }
}

/// pkey_free(2). What has the key keeps it.
pub fn pkey_free(key: i32) -> Result<u64> {
    current().process.mm()?.with(|inner| inner.keys.free(key))?;
    Ok(0)
}
