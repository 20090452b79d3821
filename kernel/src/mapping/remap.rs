//! mremap(2) and remap_file_pages(2): areas that grow, shrink, move and show other pages.

use alloc::vec::Vec;

use abi::{Errno, Result, general as raw};
use machine::memory::{HUGE_PAGE, PageKind, USER_END};

use super::map::page_range;
use crate::mm::{Backing, MAX_MAP_COUNT, MMAP_MIN, MmInner, PAGE, Removed, Vma, VmaFlags};
use crate::page_cache::MAX_FILE_SIZE;
use crate::process::Process;
use crate::process::current;
use crate::security::{Resource, UNLIMITED};
use crate::vfs::hooks;

/// What is asked for; lengths are whole pages.
struct Request {
    old: u64,
    old_len: u64,
    new_len: u64,
    /// MREMAP_MAYMOVE.
    may_move: bool,
    /// MREMAP_DONTUNMAP: the old area stays, empty.
    keep: bool,
    /// MREMAP_FIXED: where to.
    target: Option<u64>,
    /// MREMAP_DONTUNMAP without MREMAP_FIXED: where to, if there is room.
    hint: u64,
    /// As it was given.
    new_address: u64,
}

/// mremap(2).
pub fn mremap(
    old: u64,
    old_length: u64,
    new_length: u64,
    flags: u32,
    new_address: u64,
) -> Result<u64> {
    let has = |flag: u32| flags & flag != 0;
    let known = raw::MREMAP_MAYMOVE | raw::MREMAP_FIXED | raw::MREMAP_DONTUNMAP;
    let (may_move, fixed) = (has(raw::MREMAP_MAYMOVE), has(raw::MREMAP_FIXED));
    let keep = has(raw::MREMAP_DONTUNMAP);
    if flags & !known != 0 || !old.is_multiple_of(PAGE) || (fixed || keep) && !may_move {
        return Err(Errno::EINVAL);
    }
    if keep && old_length != new_length {
        return Err(Errno::EINVAL);
    }
    let old_len = old_length.checked_next_multiple_of(PAGE).unwrap_or(0);
    let new_len = match new_length.checked_next_multiple_of(PAGE) {
        None | Some(0) => return Err(Errno::EINVAL),
        Some(len) if len > USER_END && fixed => return Err(Errno::EINVAL),
        Some(len) => len,
    };
    let target = fixed.then_some(new_address);
    let hint = if keep { new_address } else { 0 };
    let request = Request { old, old_len, new_len, may_move, keep, target, hint, new_address };
    let process = &current().process;
    let mut dropped = Vec::new();
    let result = process.mm()?.with(|inner| inner.remap(process, &request, &mut dropped));
    drop(dropped);
    result
}

impl Request {
    /// The same of huge pages of the pool, whose lengths are rounded up to them. EINVAL where one
    /// would be cut, or more asked for: what is promised does not grow.
    fn in_huge(&self) -> Result<Request> {
        let round = |len: u64| len.checked_next_multiple_of(HUGE_PAGE).ok_or(Errno::EINVAL);
        let (old_len, new_len) = (round(self.old_len)?, round(self.new_len)?);
        let target = self.target.unwrap_or(self.new_address);
        let fits = self.old.is_multiple_of(HUGE_PAGE) && target.is_multiple_of(HUGE_PAGE);
        // MREMAP_DONTUNMAP would leave a promise behind.
        if !fits || new_len > old_len || self.keep {
            return Err(Errno::EINVAL);
        }
        Ok(Request { old_len, new_len, ..*self })
    }
}

impl MmInner {
    fn remap(
        &mut self,
        process: &Process,
        request: &Request,
        dropped: &mut Vec<Removed>,
    ) -> Result<u64> {
        let (_, vma) = self.find(request.old).ok_or(Errno::EFAULT)?;
        if vma.is_sealed() {
            return Err(Errno::EPERM);
        }
        let in_huge = vma.is_hugetlb().then(|| request.in_huge()).transpose()?;
        let request = in_huge.as_ref().unwrap_or(request);
        let &Request { old, mut old_len, new_len, .. } = request;
        if let Some(target) = request.target {
            let (start, end) = page_range(target, new_len, Errno::EINVAL)?;
            let overlaps = start < old.saturating_add(old_len) && old < end;
            if overlaps {
                return Err(Errno::EINVAL);
            }
            if start < MMAP_MIN {
                return Err(Errno::EPERM);
            }
            self.check_unmap(start, end)?;
            dropped.push(self.unmap(start, end));
        } else if request.keep {
            let (start, end) = page_range(request.hint, new_len, Errno::EINVAL)?;
            if start < old.saturating_add(old_len) && old < end {
                return Err(Errno::EINVAL);
            }
        }
        // Shrinking just unmaps, whatever is there.
        if old_len > new_len {
            let (_, end) = page_range(old, old_len, Errno::EINVAL)?;
            self.check_unmap(old + new_len, end)?;
            dropped.push(self.unmap(old + new_len, end));
            old_len = new_len;
        }
        let moves = request.target.is_some() || request.keep;
        if !moves && old_len == new_len {
            return Ok(old);
        }
        self.check_resize(process, old, old_len, new_len)?;
        if new_len > USER_END {
            return Err(Errno::ENOMEM);
        }
        if !moves && old_len > 0 && self.grow_in_place(old, old_len, new_len) {
            return Ok(old);
        }
        if !request.may_move {
            return Err(Errno::ENOMEM);
        }
        let start = match request.target {
            Some(target) => target,
            None => self.find_free(request.hint, new_len)?,
        };
        // As on Linux: moving may split areas at three places.
        if self.vmas.len() >= MAX_MAP_COUNT - 3 {
            return Err(Errno::ENOMEM);
        }
        let removed = self.move_area(old, old_len, start, new_len, request.keep)?;
        dropped.push(removed);
        self.populate_locked(start);
        Ok(start)
    }

    /// Whether the area at `old` may be resized: EINVAL, EFAULT, EAGAIN (locked memory), ENOMEM.
    fn check_resize(&self, process: &Process, old: u64, old_len: u64, new_len: u64) -> Result<()> {
        let (_, vma) = self.find(old).ok_or(Errno::EFAULT)?;
        if old_len == 0 && !vma.shared {
            return Err(Errno::EINVAL);
        }
        if vma.end - old < old_len {
            return Err(Errno::EFAULT);
        }
        if old_len == new_len {
            return Ok(());
        }
        if vma.flags.contains(VmaFlags::FIXED_SIZE) {
            return Err(Errno::EFAULT);
        }
        let more = new_len - old_len;
        if vma.flags.contains(VmaFlags::LOCKED) && !self.may_lock_more(process.lock_limit(), more) {
            return Err(Errno::EAGAIN);
        }
        let limit = process.limit(Resource::AddressSpace);
        if limit != UNLIMITED && self.total_bytes().saturating_add(more) > limit {
            return Err(Errno::ENOMEM);
        }
        Ok(())
    }

    /// Extends the area that ends at `old + old_len` if there is room behind it.
    fn grow_in_place(&mut self, old: u64, old_len: u64, new_len: u64) -> bool {
        let (from, to) = (old + old_len, old + new_len);
        let Some((start, vma)) = self.find(old) else { return false };
        if vma.end != from || to > USER_END || !self.is_free_for_hint(from, to) {
            return false;
        }
        self.vmas.edit(start, |vma| vma.end = to);
        self.vmas.join(start);
        self.populate_locked(from);
        true
    }

    /// Moves `[old, old + len)` to `[new, new + new_len)`.
    fn move_area(
        &mut self,
        old: u64,
        len: u64,
        new: u64,
        new_len: u64,
        keep: bool,
    ) -> Result<Removed> {
        let (start, vma) = self.find(old).ok_or(Errno::EFAULT)?;
        let mut moved = vma.clone();
        moved.end = new + new_len;
        moved.advance(old - start);
        // Without pages there is nothing that has been moved.
        moved.moved_pages = match self.table.has_any(start, vma.end, PageKind::Anonymous) {
            true => vma.moved_pages + (new as i64 - old as i64) / PAGE as i64,
            false => 0,
        };
        self.table.move_range(old, new, len).map_err(|_| Errno::ENOMEM)?;
        let noted = moved.attached.clone();
        let locked = VmaFlags::LOCKED | VmaFlags::LOCK_ON_FAULT;
        if keep && moved.flags.intersects(locked) {
            // What stays is not locked any more (mremap(2)); where nothing is, it is one as before.
            self.split(old);
            self.split(old + len);
            self.vmas.edit_each(old..old + len, |vma| vma.flags.remove(locked));
            self.merge_within(old, old + len);
        }
        self.insert(new, moved)?;
        noted.iter().for_each(|attached| attached.opened());
        if len == 0 || keep {
            return Ok(Removed::new());
        }
        // The pages are in the new place.
        self.disown_huge(old, old + len);
        Ok(self.unmap(old, old + len))
    }
}

/// remap_file_pages(2): shows other pages of the file in a part of a shared mapping. As on Linux
/// since 4.0 that is a mapping of its own in the place of what was there.
pub fn remap_file_pages(
    start: u64,
    size: u64,
    protection: u64,
    page_offset: u64,
    flags: u32,
) -> Result<u64> {
    let (start, size) = (start & !(PAGE - 1), size & !(PAGE - 1));
    let end = start.checked_add(size).filter(|&end| end > start).ok_or(Errno::EINVAL)?;
    let pages_end = page_offset.checked_add(size / PAGE).ok_or(Errno::EINVAL)?;
    if protection != 0 {
        return Err(Errno::EINVAL);
    }
    let mm = current().process.mm()?;
    let mut vma = mm.with(|inner| inner.shared_file(start, end).cloned()).ok_or(Errno::EINVAL)?;
    if pages_end > MAX_FILE_SIZE / PAGE {
        return Err(Errno::EOVERFLOW);
    }
    let Backing::File { page_offset: shown, file, .. } = &mut vma.backing else {
        return Err(Errno::EINVAL);
    };
    *shown = page_offset;
    let bits = u64::from(vma.prot.rights().bits());
    hooks::mmap_file((file.as_deref(), bits, bits))?;
    crate::base::reserve::check_reserve()?;
    let mut replaced = None;
    let result = mm.with(|inner| {
        // Others may have changed it meanwhile: what is mapped was looked at before.
        inner.check_unmap(start, end)?;
        replaced = Some(inner.unmap(start, end));
        vma.end = end;
        inner.insert(start, vma)?;
        if flags & raw::MAP_NONBLOCK == 0 {
            // The mapping stays if its pages cannot be brought in.
            let _ = inner.populate(start, end);
        }
        Ok(0)
    });
    drop(replaced);
    result
}

impl MmInner {
    /// The area at `start`, if it is shared memory of a file, and up to `end` there is no hole and
    /// nothing that differs from it in more than what it shows.
    fn shared_file(&self, start: u64, end: u64) -> Option<&Vma> {
        let file_of = |vma: &Vma| match &vma.backing {
            Backing::File { cache, .. } if vma.shared => Some(alloc::sync::Arc::as_ptr(cache)),
            _ => None,
        };
        let (_, first) = self.find(start)?;
        let wanted = (file_of(first)?, first.prot, first.flags);
        let mut reached = first.end;
        while reached < end {
            let (_, next) = self.find(reached)?;
            if (file_of(next)?, next.prot, next.flags) != wanted {
                return None;
            }
            reached = next.end;
        }
        Some(first)
    }
}
