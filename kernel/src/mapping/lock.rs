//! mlock(2) and its family. Nothing is ever paged out, so locking is bringing in; what is locked
//! is counted against RLIMIT_MEMLOCK.

use abi::{Errno, Result, general as raw};

use super::map::page_range;
use crate::mm::{MmInner, PAGE, Vma, VmaFlags};
use crate::process::Process;
use crate::process::current;
use crate::security::Resource;

const MLOCK_ONFAULT: u64 = 1;
const BOTH: VmaFlags = VmaFlags::LOCKED.union(VmaFlags::LOCK_ON_FAULT);

/// Whether the process may lock memory at all: a limit of less than a page is one, too.
pub(super) fn may_lock(process: &Process) -> bool {
    process.limit(Resource::LockedMemory) != 0 || process.lock_limit() != 0
}

impl MmInner {
    /// Brings in what was added to the area that contains `at`, if it is locked.
    pub(super) fn populate_locked(&mut self, at: u64) {
        if let Some((_, vma)) = self.find(at)
            && vma.flags & BOTH == VmaFlags::LOCKED
        {
            let end = vma.end;
            // The area stays if pages cannot be brought in (mremap(2)).
            let _ = self.populate(at, end);
        }
    }

    /// Sets the flags of `[start, end)`; ENOMEM at the first hole, what lies before is set.
    fn set_locked(&mut self, start: u64, end: u64, flags: VmaFlags) -> Result<()> {
        let mut good_end = start;
        let result = self.check_mapped(start, end, |_, vma| {
            good_end = vma.end.min(end);
            Ok(())
        });
        self.split(start);
        self.split(good_end);
        self.vmas.edit_each(start..good_end, |vma| set(vma, flags));
        self.merge_within(start, good_end);
        result
    }
}

fn set(vma: &mut Vma, locked: VmaFlags) {
    // Huge pages of the pool stay in memory anyway.
    if !vma.flags.contains(VmaFlags::DROPPABLE) && !vma.is_hugetlb() {
        vma.flags = (vma.flags - BOTH) | locked;
    }
}

/// The pages that `len` bytes from `start` on lie in. As on Linux, a length past the end of all
/// numbers begins again at 0.
fn pages_around(start: u64, len: u64) -> Result<(u64, u64)> {
    let first = start & !(PAGE - 1);
    let len = len.wrapping_add(start - first).wrapping_add(PAGE - 1) & !(PAGE - 1);
    first.checked_add(len).ok_or(Errno::EINVAL)?;
    if len == 0 { Ok((first, first)) } else { page_range(first, len, Errno::ENOMEM) }
}

fn lock_range(start: u64, len: u64, flags: VmaFlags) -> Result<u64> {
    let process = &current().process;
    if !may_lock(process) {
        return Err(Errno::EPERM);
    }
    let (first, end) = pages_around(start, len).map_err(|error| match error {
        // More than there are addresses is more than the limit.
        Errno::EINVAL if len > process.lock_limit() => Errno::ENOMEM,
        error => error,
    })?;
    process.mm()?.with(|inner| {
        if first == end {
            return Ok(0);
        }
        let again = inner.locked_bytes(first, end);
        if !inner.may_lock_more(process.lock_limit(), (end - first) - again) {
            return Err(Errno::ENOMEM);
        }
        inner.set_locked(first, end, flags)?;
        if flags == VmaFlags::LOCKED {
            inner.populate(first, end).map_err(|error| match error {
                Errno::ENOMEM => Errno::EAGAIN,
                _ => Errno::ENOMEM,
            })?;
        }
        Ok(0)
    })
}

/// mlock(2).
pub fn mlock(address: u64, length: u64) -> Result<u64> {
    lock_range(address, length, VmaFlags::LOCKED)
}

/// mlock2(2).
pub fn mlock2(address: u64, length: u64, flags: u64) -> Result<u64> {
    match flags {
        0 => lock_range(address, length, VmaFlags::LOCKED),
        MLOCK_ONFAULT => lock_range(address, length, BOTH),
        _ => Err(Errno::EINVAL),
    }
}

/// munlock(2).
pub fn munlock(address: u64, length: u64) -> Result<u64> {
    let (first, end) = pages_around(address, length)?;
    let mm = current().process.mm()?;
    mm.with(|inner| inner.set_locked(first, end, VmaFlags::empty())).map(|()| 0)
}

/// mlockall(2).
pub fn mlockall(flags: u32) -> Result<u64> {
    const KNOWN: u32 = raw::MCL_CURRENT | raw::MCL_FUTURE | raw::MCL_ONFAULT;
    let has = |flag: u32| flags & flag != 0;
    let (now, future) = (has(raw::MCL_CURRENT), has(raw::MCL_FUTURE));
    if flags & !KNOWN != 0 || !(now || future) {
        return Err(Errno::EINVAL);
    }
    let process = &current().process;
    if !may_lock(process) {
        return Err(Errno::EPERM);
    }
    let locked = if has(raw::MCL_ONFAULT) { BOTH } else { VmaFlags::LOCKED };
    process.mm()?.with(|inner| {
        if now && inner.total_bytes() > process.lock_limit() {
            return Err(Errno::ENOMEM);
        }
        inner.lock_future = if future { locked } else { VmaFlags::empty() };
        if now {
            let mut ranges = alloc::vec::Vec::new();
            ranges.try_reserve(inner.vmas.len()).map_err(|_| Errno::ENOMEM)?;
            inner.vmas.edit_each(0..u64::MAX, |vma| set(vma, locked));
            ranges.extend(inner.vmas.iter().map(|(&start, vma)| (start, vma.end)));
            if locked == VmaFlags::LOCKED {
                for (start, end) in ranges {
                    // What cannot be brought in is locked all the same (mlockall(2)).
                    let _ = inner.populate(start, end);
                }
            }
        }
        Ok(0)
    })
}

/// munlockall(2).
pub fn munlockall() -> Result<u64> {
    current().process.mm()?.with(|inner| {
        inner.lock_future = VmaFlags::empty();
        inner.vmas.edit_each(0..u64::MAX, |vma| vma.flags.remove(BOTH));
        inner.merge_within(0, u64::MAX);
    });
    Ok(0)
}
