//! Shared memory segments in an address space: where shmat(2) maps one and what shmdt(2) unmaps.
//! The segments themselves are in `ipc::sysv::shm`.

use alloc::sync::Arc;
use alloc::vec::Vec;

use abi::{Errno, Result};
use machine::memory::{HUGE_PAGE, Prot, USER_END};

use super::huge_area::HugeArea;
use super::hugetlb::HugePages;
use super::{Attached, Backing, MMAP_MIN, Mm, MmInner, PAGE, Vma, VmaFlags};
use crate::security::UNLIMITED;
use crate::vfs::File;

/// A mapping that is wanted.
pub struct Attachment {
    /// What to map, from its start on.
    pub file: Arc<File>,
    /// The contents, if they are huge pages of the pool.
    pub huge: Option<Arc<HugePages>>,
    /// Who is told of the areas that it becomes.
    pub noted: Option<Arc<dyn Attached>>,
    /// Bytes, whole pages.
    pub len: u64,
    /// Rights; what is not there cannot be had by mprotect(2) later.
    pub prot: Prot,
    /// Where, or 0 for a free place.
    pub address: u64,
    /// Replace what is at `address`.
    pub replace: bool,
    /// Most bytes of the whole address space (RLIMIT_AS).
    pub space_bytes: u64,
}

/// Maps it into an address space. Returns the address. EINVAL if the place is not
/// free, ENOMEM.
pub fn attach(mm: &Arc<Mm>, wanted: Attachment) -> Result<u64> {
    crate::base::reserve::check_reserve()?;
    let mut vma = Vma::anonymous(0, wanted.prot);
    vma.shared = true;
    vma.attached = wanted.noted;
    vma.flags.set(VmaFlags::MAY_WRITE, wanted.prot.contains(Prot::WRITE));
    let is_huge = wanted.huge.is_some();
    let file = Some(wanted.file.clone());
    if let Some(pages) = wanted.huge {
        vma.flags |= VmaFlags::FIXED_SIZE;
        vma.backing = Backing::Hugetlb(HugeArea { pages, first: 0, below: None, file });
    } else {
        let cache = wanted.file.inode().page_cache().ok_or(Errno::EINVAL)?;
        cache.add_mapper(mm.clone());
        vma.backing = Backing::File { cache, page_offset: 0, file };
    }
    let mut replaced = None;
    let result = mm.with(|inner| {
        let limit = wanted.space_bytes;
        if limit != UNLIMITED && inner.total_bytes().saturating_add(wanted.len) > limit {
            return Err(Errno::ENOMEM);
        }
        let start = if wanted.address == 0 && is_huge {
            inner.find_free_huge(0, wanted.len)?
        } else if wanted.address == 0 {
            inner.find_free(0, wanted.len)?
        } else {
            let start = wanted.address;
            let end = start.checked_add(wanted.len).filter(|&end| end <= USER_END);
            let end = end.ok_or(Errno::ENOMEM)?;
            if start < MMAP_MIN {
                return Err(Errno::EPERM);
            }
            if is_huge && !start.is_multiple_of(HUGE_PAGE) {
                return Err(Errno::EINVAL);
            }
            if wanted.replace {
                inner.check_unmap(start, end)?;
                replaced = Some(inner.unmap(start, end));
            } else if !inner.is_free(start, end) {
                return Err(Errno::EINVAL);
            }
            start
        };
        vma.end = start + wanted.len;
        if !is_huge {
            vma.flags |= inner.lock_future;
        }
        inner.insert(start, vma)?;
        Ok(start)
    });
    // Files that were mapped may be closed here, without the lock.
    drop(replaced);
    result
}

/// Unmaps the segment that is attached at `address`, even if parts of it
/// have been unmapped or changed since. `segment_len` tells the length of a file that is a segment.
/// Returns the file. EINVAL if there is none.
pub fn detach(
    mm: &Mm,
    address: u64,
    segment_len: impl Fn(&Arc<File>) -> Option<u64>,
) -> Result<Arc<File>> {
    if !address.is_multiple_of(PAGE) || address >= USER_END {
        return Err(Errno::EINVAL);
    }
    let mut removed = Vec::new();
    let file = mm.with(|inner| {
        let first = inner
            .parts_from(address, USER_END)
            .find_map(|(_, file)| segment_len(file).map(|len| (file.clone(), len)));
        let (file, len) = first.ok_or(Errno::EINVAL)?;
        let end = address.saturating_add(len).min(USER_END);
        let same = |(range, of): ((u64, u64), &Arc<File>)| Arc::ptr_eq(of, &file).then_some(range);
        let parts: Vec<(u64, u64)> = inner.parts_from(address, end).filter_map(same).collect();
        // What is sealed stays, and nobody is told.
        let parts = parts.into_iter().filter(|&(start, end)| inner.check_unmap(start, end).is_ok());
        let parts: Vec<(u64, u64)> = parts.collect();
        removed.extend(parts.into_iter().map(|(start, end)| inner.unmap(start, end)));
        Ok(file)
    });
    drop(removed);
    file
}

impl MmInner {
    /// Areas between two addresses that lie where a file mapped at `address` would have them.
    fn parts_from(&self, address: u64, end: u64) -> impl Iterator<Item = ((u64, u64), &Arc<File>)> {
        self.vmas.range(address..end).filter_map(move |(&start, vma)| match &vma.backing {
            Backing::File { page_offset, file: Some(file), .. }
                if vma.shared && (start - address) / PAGE == *page_offset =>
            {
                Some(((start, vma.end), file))
            }
            Backing::Hugetlb(HugeArea { first, file: Some(file), .. })
                if vma.shared && (start - address) / HUGE_PAGE == *first =>
            {
                Some(((start, vma.end), file))
            }
            _ => None,
        })
    }
}
