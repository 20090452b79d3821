//! The memory calls that are neither about one kind of change nor have a file of their own: brk(2),
//! mincore(2), msync(2). The others are in [`map`], [`protect`], [`remap`], [`advice`]
//! and [`lock`].
//!
//! Areas that leave an address space may hold the last reference to a file, whose closing can sleep
//! and take any lock; they are always dropped after the address space's lock is free.

mod advice;
mod lock;
pub mod map;
mod protect;
mod remap;

use abi::{Errno, Result, general as raw};
use machine::frame::PAGE_SIZE;
use machine::memory::{Prot, USER_END};

use crate::base::args::Args;
use crate::base::user::UserPtr;
use crate::mm::{Backing, PAGE, Vma, VmaFlags};
use crate::process::current;
use crate::security::{Resource, UNLIMITED};
pub use advice::madvise;
pub use lock::{mlock, mlock2, mlockall, munlock, munlockall};
use map::page_range;
pub use map::{mmap, munmap};
pub use protect::{mprotect, pkey_alloc, pkey_mprotect};
pub use remap::mremap;

/// brk(2): returns the new end of the heap, or the old one if it cannot be moved.
pub fn brk(a: &Args) -> Result<u64> {
    let wanted = a.a0();
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
            removed = Some(inner.unmap(new_end, old_end));
        }
        inner.layout.brk = wanted;
        Ok(wanted)
    });
    drop(removed);
    result
}

/// mincore(2).
pub fn mincore(a: &Args) -> Result<u64> {
    let (start, end) = page_range(a.a0(), a.a1(), Errno::ENOMEM)?;
    let mm = current().process.mm()?;
    let target = UserPtr::<u8>::new(a.a2());
    let mut answer = [0u8; 256];
    let mut at = start;
    while at < end {
        let pages = ((end - at) / PAGE).min(answer.len() as u64) as usize;
        mm.with(|inner| {
            for (i, slot) in answer[..pages].iter_mut().enumerate() {
                let page = at + (i * PAGE_SIZE) as u64;
                let (vma_start, vma) = inner.find(page).ok_or(Errno::ENOMEM)?;
                let in_file = match &vma.backing {
                    Backing::File { cache, page_offset, .. } => {
                        cache.resident(page_offset + (page - vma_start) / PAGE).is_some()
                    }
                    _ => false,
                };
                *slot = u8::from(in_file || inner.table.lookup(page).is_some());
            }
            Ok::<(), Errno>(())
        })?;
        target.nth(((at - start) / PAGE) as usize).write_many(&answer[..pages])?;
        at += (pages * PAGE_SIZE) as u64;
    }
    Ok(0)
}

/// msync(2).
pub fn msync(a: &Args) -> Result<u64> {
    let (start, end) = page_range(a.a0(), a.a1(), Errno::ENOMEM)?;
    let flags = a.a2() as u32;
    let (asynchronous, synchronous) = (flags & raw::MS_ASYNC != 0, flags & raw::MS_SYNC != 0);
    let known = raw::MS_ASYNC | raw::MS_SYNC | raw::MS_INVALIDATE;
    if flags & !known != 0 || asynchronous && synchronous {
        return Err(Errno::EINVAL);
    }
    let caches = current().process.mm()?.with(|inner| {
        let mut caches = alloc::vec::Vec::new();
        inner.check_mapped(start, end, |vma| {
            if let Backing::File { cache, .. } = &vma.backing
                && vma.shared
            {
                caches.push(cache.clone());
            }
            Ok(())
        })?;
        Ok::<_, Errno>(caches)
    })?;
    if synchronous {
        for cache in caches {
            cache.write_back()?;
        }
    }
    Ok(0)
}
