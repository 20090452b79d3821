//! madvise(2) and process_madvise(2). As on Linux, advice for a range with holes is taken for what
//! is mapped, and then ENOMEM says that there was a hole; an area that refuses ends it there.
//!
//! MADV_MERGEABLE is a hint that is kept and not followed: equal pages are never merged.

use alloc::sync::Arc;
use alloc::vec::Vec;

use abi::{Errno, Result, general as raw};
use machine::entry::PageFault;
use machine::memory::Prot;
use machine::pkey::Pkru;

use crate::base::io::read_iovec;
use crate::mm::{Backing, Mm, MmInner, PAGE, Vma, VmaFlags};
use crate::process::ptrace::access::{self, Ids};
use crate::process::{current, own_open_file};
use crate::process::{pidfd, work};
use crate::security::Capability;

/// Pages brought in under one hold of the lock.
const POPULATE_AT_ONCE: u64 = 64 * PAGE;

/// madvise(2).
pub fn madvise(start: u64, length: u64, advice: u32) -> Result<u64> {
    let action = Action::of(advice).ok_or(Errno::EINVAL)?;
    advise(&current().process.mm()?, start, length, action)?;
    Ok(0)
}

/// process_madvise(2): madvise(2) for another process's memory; what loses no contents.
pub fn process_madvise(fd: u32, vector: u64, count: u64, advice: u32, flags: u32) -> Result<u64> {
    if flags != 0 {
        return Err(Errno::EINVAL);
    }
    let parts = read_iovec(vector, count)?;
    let process = pidfd::process_of(&*own_open_file(fd)?)?;
    let is_harmless = matches!(
        advice,
        raw::MADV_COLD | raw::MADV_PAGEOUT | raw::MADV_WILLNEED | raw::MADV_COLLAPSE
    );
    let action = Action::of(advice).filter(|_| is_harmless).ok_or(Errno::EINVAL)?;
    let mm = access::memory(&process, Ids::File, Errno::EACCES)?.ok_or(Errno::ESRCH)?;
    if !current().subject().capable(Capability::SysNice) {
        return Err(Errno::EPERM);
    }
    let mut done = 0;
    for part in parts {
        match advise(&mm, part.base, part.len, action) {
            Ok(()) => done += part.len,
            Err(error) if done == 0 => return Err(error),
            Err(_) => break,
        }
    }
    Ok(done)
}

fn advise(mm: &Arc<Mm>, start: u64, length: u64, action: Action) -> Result<()> {
    if !start.is_multiple_of(PAGE) {
        return Err(Errno::EINVAL);
    }
    let len = length.checked_next_multiple_of(PAGE).ok_or(Errno::EINVAL)?;
    let end = start.checked_add(len).ok_or(Errno::EINVAL)?;
    if start == end {
        return Ok(());
    }
    match action {
        Action::Flags(edit) => mm.with(|inner| inner.edit_flags(start, end, edit))?,
        Action::Nothing => mm.with(|inner| inner.each_part(start, end, |_, _, _| Ok(())))?,
        Action::Drop(drop) => {
            if mm.try_read(|inner| inner.try_drop_pages(start, end, drop)) != Some(true) {
                mm.with(|inner| inner.drop_pages(start, end, drop))?;
            }
        }
        Action::Populate { write } => populate(mm, start, end, write)?,
        Action::Remove => remove_from_files(mm, start, end)?,
        Action::Collapse => mm.collapse(start, end)?,
    }
    Ok(())
}

/// How the flags of an area change; EINVAL where that has no meaning.
pub(super) type EditFlags = fn(&Vma) -> Result<VmaFlags>;

/// What an advice asks for.
#[derive(Clone, Copy)]
enum Action {
    Flags(EditFlags),
    /// Only a look whether there are holes.
    Nothing,
    Drop(Drop),
    Populate {
        write: bool,
    },
    Remove,
    Collapse,
}

/// Which pages may be dropped.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Drop {
    /// MADV_DONTNEED.
    Unlocked,
    /// MADV_DONTNEED_LOCKED.
    All,
    /// MADV_FREE: of private anonymous memory.
    Anonymous,
}

impl Drop {
    fn is_refused(self, vma: &Vma) -> bool {
        if vma.keeps_contents() {
            return true;
        }
        if vma.is_hugetlb() {
            return self == Drop::Anonymous;
        }
        self != Drop::All && vma.flags.contains(VmaFlags::LOCKED)
            || self == Drop::Anonymous && !vma.is_private_anonymous()
    }
}

impl Action {
    fn of(advice: u32) -> Option<Action> {
        use VmaFlags as F;
        Some(match advice {
            raw::MADV_NORMAL => Action::Flags(|vma| Ok(vma.flags - (F::RANDOM | F::SEQUENTIAL))),
            raw::MADV_RANDOM => Action::Flags(|vma| Ok((vma.flags - F::SEQUENTIAL) | F::RANDOM)),
            raw::MADV_SEQUENTIAL => {
                Action::Flags(|vma| Ok((vma.flags - F::RANDOM) | F::SEQUENTIAL))
            }
            raw::MADV_HUGEPAGE => Action::Flags(|vma| Ok((vma.flags - F::NO_HUGE) | F::HUGE)),
            raw::MADV_NOHUGEPAGE => Action::Flags(|vma| Ok((vma.flags - F::HUGE) | F::NO_HUGE)),
            raw::MADV_DONTDUMP => Action::Flags(|vma| Ok(vma.flags | F::DONT_DUMP)),
            raw::MADV_DODUMP => Action::Flags(|vma| match &vma.backing {
                Backing::Special { .. } => Err(Errno::EINVAL),
                _ if vma.flags.contains(F::DROPPABLE) => Err(Errno::EINVAL),
                _ => Ok(vma.flags - F::DONT_DUMP),
            }),
            raw::MADV_DONTFORK => Action::Flags(|vma| match vma.keeps_contents() {
                true => Err(Errno::EPERM),
                false => Ok(vma.flags | F::DONT_FORK),
            }),
            raw::MADV_DOFORK => Action::Flags(|vma| Ok(vma.flags - F::DONT_FORK)),
            raw::MADV_WIPEONFORK => Action::Flags(|vma| match vma.is_private_anonymous() {
                true if vma.keeps_contents() => Err(Errno::EPERM),
                true if vma.is_without_file() => Ok(vma.flags | F::WIPE_ON_FORK),
                _ => Err(Errno::EINVAL),
            }),
            raw::MADV_KEEPONFORK => Action::Flags(|vma| match vma.flags.contains(F::DROPPABLE) {
                true => Err(Errno::EINVAL),
                false => Ok(vma.flags - F::WIPE_ON_FORK),
            }),
            raw::MADV_COLD | raw::MADV_PAGEOUT => {
                Action::Flags(|vma| match vma.flags.contains(F::LOCKED) || vma.is_hugetlb() {
                    true => Err(Errno::EINVAL),
                    false => Ok(vma.flags),
                })
            }
            raw::MADV_MERGEABLE => Action::Flags(|vma| match may_merge(vma) {
                true => Ok(vma.flags | F::MERGEABLE),
                false => Ok(vma.flags),
            }),
            raw::MADV_UNMERGEABLE => Action::Flags(|vma| Ok(vma.flags - F::MERGEABLE)),
            raw::MADV_WILLNEED => Action::Nothing,
            raw::MADV_DONTNEED => Action::Drop(Drop::Unlocked),
            raw::MADV_DONTNEED_LOCKED => Action::Drop(Drop::All),
            raw::MADV_FREE => Action::Drop(Drop::Anonymous),
            raw::MADV_POPULATE_READ => Action::Populate { write: false },
            raw::MADV_POPULATE_WRITE => Action::Populate { write: true },
            raw::MADV_REMOVE => Action::Remove,
            raw::MADV_COLLAPSE => Action::Collapse,
            _ => return None,
        })
    }
}

/// Whether its pages could be one with equal ones: only memory of a program's own.
fn may_merge(vma: &Vma) -> bool {
    let is_kernels = matches!(vma.backing, Backing::Special { .. });
    let never = VmaFlags::FIXED_SIZE | VmaFlags::DROPPABLE;
    !vma.shared && !vma.is_hugetlb() && !is_kernels && !vma.flags.intersects(never)
}

impl MmInner {
    /// Calls `f` with each part of an area in `[start, end)`: from, to, area. ENOMEM if there were
    /// holes between them.
    pub(super) fn each_part(
        &self,
        start: u64,
        end: u64,
        mut f: impl FnMut(u64, u64, &Vma) -> Result<()>,
    ) -> Result<()> {
        let mut at = start;
        let mut result = Ok(());
        while at < end {
            let found = self.find(at).or_else(|| {
                result = Err(Errno::ENOMEM);
                self.vmas.range(at..end).next().map(|(&start, vma)| (start, vma))
            });
            let Some((area_start, vma)) = found else { break };
            let to = vma.end.min(end);
            f(at.max(area_start), to, vma)?;
            at = to;
        }
        result
    }

    pub(super) fn edit_flags(
        &mut self,
        start: u64,
        end: u64,
        edit: impl Fn(&Vma) -> Result<VmaFlags>,
    ) -> Result<()> {
        let mut changes = Vec::new();
        let result = self.each_part(start, end, |from, to, vma| {
            let flags = edit(vma)?;
            if flags != vma.flags {
                self.check_cuts(from, to)?;
                changes.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
                changes.push((from, to, flags));
            }
            Ok(())
        });
        for (from, to, flags) in changes {
            self.split(from);
            self.split(to);
            self.vmas.edit(from, |vma| vma.flags = flags);
            self.vmas.join(from);
        }
        result
    }

    /// What most ask for: pages of one area, beside other threads. False if there is more to it.
    fn try_drop_pages(&self, start: u64, end: u64, drop: Drop) -> bool {
        let area = self.find(start).filter(|(_, vma)| end <= vma.end && !drop.is_refused(vma));
        area.is_some_and(|(_, vma)| !vma.is_hugetlb()) && self.try_zap(start, end)
    }

    fn drop_pages(&mut self, start: u64, end: u64, drop: Drop) -> Result<()> {
        let mut parts = Vec::new();
        let result = self.each_part(start, end, |from, to, vma| {
            if vma.keeps_contents() {
                return Err(Errno::EPERM);
            }
            if drop.is_refused(vma) || vma.is_cut_by(from) {
                return Err(Errno::EINVAL);
            }
            parts.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
            parts.push((from, to, vma.is_hugetlb()));
            Ok(())
        });
        for (from, to, is_huge) in parts {
            match is_huge {
                true => self.drop_huge(from, to)?,
                false => self.zap(from, to, from..to),
            }
        }
        result
    }

    /// Brings in pages from `at` on, up to `end` or the end of the area. Returns where it stopped.
    /// EINVAL where the program has no such right, or its protection key denies it; EFAULT where an
    /// access would be SIGBUS.
    fn populate_part(&mut self, at: u64, end: u64, write: bool) -> Result<u64> {
        let (_, vma) = self.find(at).ok_or(Errno::ENOMEM)?;
        let allowed =
            if write { vma.prot.contains(Prot::WRITE) } else { vma.prot.contains(Prot::READ) };
        if !allowed || matches!(vma.backing, Backing::Special { .. }) {
            return Err(Errno::EINVAL);
        }
        let end = end.min(vma.end).min(at.saturating_add(POPULATE_AT_ONCE));
        let mut address = at;
        let keys = Pkru::read();
        while address < end {
            let fault = PageFault { keys, ..PageFault::by_kernel(address, write) };
            self.fault(fault).map_err(|error| match error {
                Errno::ENOMEM => Errno::ENOMEM,
                Errno::EKEYREJECTED => Errno::EINVAL,
                _ => Errno::EFAULT,
            })?;
            address = self.table.page_end(address);
        }
        Ok(address.min(end))
    }
}

/// MADV_POPULATE_READ, MADV_POPULATE_WRITE.
fn populate(mm: &Mm, start: u64, end: u64, write: bool) -> Result<()> {
    let mut at = start;
    while at < end {
        if current().task().work() & work::EXIT != 0 {
            return Err(Errno::EINTR);
        }
        at = mm.with(|inner| inner.populate_part(at, end, write))?;
        crate::base::sched::yield_if_needed();
    }
    Ok(())
}

/// MADV_REMOVE: punches holes into the files behind shared areas.
fn remove_from_files(mm: &Arc<Mm>, start: u64, end: u64) -> Result<()> {
    let mut parts = Vec::new();
    let result = mm.with(|inner| {
        inner.each_part(start, end, |from, to, vma| {
            if vma.is_hugetlb() {
                // A private one has a file, too; holes in a shared one there are none.
                return Err(if vma.shared { Errno::EOPNOTSUPP } else { Errno::EACCES });
            }
            let Backing::File { cache, page_offset, .. } = &vma.backing else {
                return Err(if vma.keeps_contents() { Errno::EPERM } else { Errno::EINVAL });
            };
            if vma.flags.contains(VmaFlags::LOCKED) {
                return Err(Errno::EINVAL);
            }
            if !vma.shared || !vma.flags.contains(VmaFlags::MAY_WRITE) {
                return Err(Errno::EACCES);
            }
            let area_start = inner.find(from).map_or(from, |(start, _)| start);
            parts.push((cache.clone(), page_offset * PAGE + (from - area_start), to - from));
            Ok(())
        })
    });
    for (cache, offset, len) in parts {
        cache.punch(offset, len);
    }
    result
}
