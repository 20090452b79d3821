//! The memory calls that are neither about one kind of change nor have a file of their own: brk(2),
//! mincore(2), msync(2). The others are in [`map`], [`protect`], [`remap`], [`advice`]
//! and [`lock`].
//!
//! Areas that leave an address space may hold the last reference to a file, whose closing can sleep
//! and take any lock; they are always dropped after the address space's lock is free.

mod advice;
pub mod cached;
mod lock;
pub mod map;
pub mod name;
pub mod policy;
mod protect;
mod remap;
mod seal;
pub mod shadow_stack;

use alloc::vec::Vec;

use abi::{Errno, Result, general as raw};
use machine::frame::PAGE_SIZE;
use machine::memory::{Prot, USER_END};

use crate::base::user::UserPtr;
use crate::mm::{Backing, MmInner, PAGE, Vma, VmaFlags};
use crate::process::current;
use crate::security::{Resource, UNLIMITED};
pub use advice::{madvise, process_madvise};
pub use lock::{mlock, mlock2, mlockall, munlock, munlockall};
use map::page_range;
pub use map::{mmap, munmap};
pub use protect::{mprotect, pkey_alloc, pkey_free, pkey_mprotect};
pub use remap::{mremap, remap_file_pages};
pub use seal::mseal;

/// brk(2): returns the new end of the heap, or the old one if it cannot be moved.
pub fn brk(wanted: u64) -> Result<u64> {
    let process = &current().process;
    let (limit, total_limit) =
        (process.limit(Resource::Data), process.limit(Resource::AddressSpace));
    let mut removed = None;
    let result = process.mm()?.with(|inner| {
        let (start, old) = (inner.layout.brk_start, inner.layout.brk);
        if wanted < start || wanted > USER_END || wanted - start > limit {
            return Ok(old);
        }
        let (old_end, new_end) = (old.next_multiple_of(PAGE), wanted.next_multiple_of(PAGE));
        if new_end > old_end {
            let grown = || inner.total_bytes().saturating_add(new_end - old_end);
            if total_limit != UNLIMITED && grown() > total_limit
                || !inner.is_free(old_end, new_end + PAGE)
            {
                return Ok(old);
            }
            let mut vma = Vma::anonymous(new_end, Prot::READ | Prot::WRITE);
            vma.name = Some("[heap]");
            vma.flags |= inner.lock_future;
            if vma.flags.contains(VmaFlags::LOCKED)
                && !inner.may_lock_more(process.lock_limit(), new_end - old_end)
            {
                return Ok(old);
            }
            if inner.insert(old_end, vma).is_err() {
                return Ok(old);
            }
            inner.populate_locked(old_end);
        } else if new_end < old_end {
            // Of what a program has put there itself.
            if inner.check_unmap(new_end, old_end).is_err() {
                return Ok(old);
            }
            removed = Some(inner.unmap(new_end, old_end));
        }
        inner.layout.brk = wanted;
        Ok(wanted)
    });
    drop(removed);
    result
}

/// Pages that mincore(2) answers for with one turn at the address space's lock.
const MINCORE_PAGES: u64 = 4096;

/// mincore(2).
pub fn mincore(address: u64, length: u64, pages: UserPtr<u8>) -> Result<u64> {
    let (start, end) = page_range(address, length, Errno::ENOMEM)?;
    if !pages.is_user_range(((end - start) / PAGE) as usize) {
        return Err(Errno::EFAULT);
    }
    let mm = current().process.mm()?;
    let target = pages;
    let most = ((end - start) / PAGE).min(MINCORE_PAGES) as usize;
    let mut answer = Vec::new();
    answer.try_reserve_exact(most).map_err(|_| Errno::EAGAIN)?;
    answer.resize(most, 0);
    let mut at = start;
    while at < end {
        let pages = ((end - at) / PAGE).min(answer.len() as u64) as usize;
        let known = mm.with(|inner| inner.resident(at, &mut answer[..pages]));
        // What lies before a hole is told.
        target.nth(((at - start) / PAGE) as usize).write_many(&answer[..known])?;
        if known < pages {
            return Err(Errno::ENOMEM);
        }
        at += (pages * PAGE_SIZE) as u64;
    }
    Ok(0)
}

impl MmInner {
    /// Says of each page from `start` on whether it is in memory: 1, or 0. Returns how many pages
    /// there are before a hole.
    fn resident(&self, start: u64, answer: &mut [u8]) -> usize {
        let end = start + answer.len() as u64 * PAGE;
        let number = |address: u64| ((address - start) / PAGE) as usize;
        let mut at = start;
        while at < end {
            let Some((vma_start, vma)) = self.find(at) else { return number(at) };
            let stop = vma.end.min(end);
            let unmapped = |from: u64, to: u64, answer: &mut [u8]| match &vma.backing {
                Backing::File { cache, page_offset, .. } => {
                    for (page, told) in (from..to).step_by(PAGE_SIZE).zip(answer) {
                        let index = page_offset + (page - vma_start) / PAGE;
                        *told = u8::from(cache.has_data(index));
                    }
                }
                _ => answer.fill(0),
            };
            // Pages that are mapped one after the other: told at once.
            let mut run = at..at;
            self.table.for_each_part(at, stop, |part| {
                if part.start != run.end {
                    answer[number(run.start)..number(run.end)].fill(1);
                    let gap = &mut answer[number(run.end)..number(part.start)];
                    unmapped(run.end, part.start, gap);
                    run.start = part.start;
                }
                run.end = part.end;
            });
            answer[number(run.start)..number(run.end)].fill(1);
            unmapped(run.end, stop, &mut answer[number(run.end)..number(stop)]);
            at = stop;
        }
        answer.len()
    }
}

/// msync(2).
pub fn msync(address: u64, length: u64, flags: u32) -> Result<u64> {
    // A length that has no whole pages in 64 bits is none, as on Linux.
    let length = length.checked_next_multiple_of(PAGE).unwrap_or(0);
    let (asynchronous, synchronous) = (flags & raw::MS_ASYNC != 0, flags & raw::MS_SYNC != 0);
    let known = raw::MS_ASYNC | raw::MS_SYNC | raw::MS_INVALIDATE;
    if flags & !known != 0 || asynchronous && synchronous {
        return Err(Errno::EINVAL);
    }
    if length == 0 && address.is_multiple_of(PAGE) {
        return Ok(0);
    }
    let (start, end) = page_range(address, length, Errno::ENOMEM)?;
    let caches = current().process.mm()?.with(|inner| {
        let mut caches = alloc::vec::Vec::new();
        // What is locked is told before what is not there.
        let mut areas = inner.vmas.range(..end).rev().take_while(|(_, vma)| vma.end > start);
        let is_locked = |vma: &Vma| vma.flags.contains(VmaFlags::LOCKED);
        if flags & raw::MS_INVALIDATE != 0 && areas.any(|(_, vma)| is_locked(vma)) {
            return Err(Errno::EBUSY);
        }
        inner.check_mapped(start, end, |_, vma| {
            if let Backing::File { cache, .. } = &vma.backing
                && vma.shared
                && synchronous
                && !cache.is_only_memory()
            {
                caches.push(cache.clone());
            }
            Ok(())
        })?;
        Ok::<_, Errno>(caches)
    })?;
    for cache in caches {
        cache.write_back()?;
    }
    Ok(0)
}
