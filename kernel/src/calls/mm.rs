//! The memory calls: mmap(2) and its family.
//!
//! Areas that leave an address space may hold the last reference to a file, whose closing can sleep
//! and take any lock; they are always dropped after the address space's lock is free.

use alloc::sync::Arc;

use abi::{Errno, Result, general as raw};
use machine::frame::PAGE_SIZE;
use machine::paging::{Prot, USER_END};

use crate::base::args::Args;
use crate::base::sched::current;
use crate::base::user::UserPtr;
use crate::mm::{Backing, MMAP_MIN, Mm, MmInner, PAGE, Vma};
use crate::security::{Capability, Resource, UNLIMITED};
use crate::vfs::page_cache::{MAX_FILE_SIZE, PageCache};

/// Mappings with MAP_32BIT end below this.
const MAP_32BIT_END: u64 = 1 << 31;

/// Rights from PROT_ bits. As on x86 hardware, writable and executable pages are readable.
pub fn prot_from_bits(bits: u64) -> Result<Prot> {
    let known = raw::PROT_READ | raw::PROT_WRITE | raw::PROT_EXEC | raw::PROT_SEM;
    let growth = raw::PROT_GROWSDOWN | raw::PROT_GROWSUP;
    if bits & !u64::from(known | growth) != 0 {
        return Err(Errno::EINVAL);
    }
    let (write, exec) =
        (bits & u64::from(raw::PROT_WRITE) != 0, bits & u64::from(raw::PROT_EXEC) != 0);
    let read = bits & u64::from(raw::PROT_READ) != 0 || write || exec;
    Ok(Prot { read, write, exec })
}

/// `len` rounded up to pages; EINVAL for 0, ENOMEM if it does not fit user space.
fn page_len(len: u64) -> Result<u64> {
    if len == 0 {
        return Err(Errno::EINVAL);
    }
    let len = len.checked_next_multiple_of(PAGE).ok_or(Errno::ENOMEM)?;
    if len > USER_END { Err(Errno::ENOMEM) } else { Ok(len) }
}

/// A page-aligned range in user space; `misaligned` for a bad start, `outside` for a bad end.
fn page_range(start: u64, len: u64, outside: Errno) -> Result<(u64, u64)> {
    if !start.is_multiple_of(PAGE) {
        return Err(Errno::EINVAL);
    }
    let len = len.checked_next_multiple_of(PAGE).ok_or(outside)?;
    let end = start.checked_add(len).filter(|&end| end <= USER_END).ok_or(outside)?;
    Ok((start, end))
}

fn current_mm() -> Result<Arc<Mm>> {
    current().process.mm()
}

/// mmap(2).
pub fn mmap(a: &Args) -> Result<u64> {
    let (hint, flags, fd, offset) = (a.a0(), a.a3() as u32, a.a4() as u32, a.a5());
    let len = page_len(a.a1())?;
    let prot = prot_from_bits(a.a2())?;
    let kind = flags & raw::MAP_TYPE;
    let shared = match kind {
        raw::MAP_PRIVATE => false,
        raw::MAP_SHARED | raw::MAP_SHARED_VALIDATE => true,
        _ => return Err(Errno::EINVAL),
    };
    if offset % PAGE != 0 {
        return Err(Errno::EINVAL);
    }
    let mm = current_mm()?;
    let mut vma = Vma::anonymous(0, prot);
    vma.shared = shared;
    vma.grows_down = flags & raw::MAP_GROWSDOWN != 0;
    if flags & raw::MAP_ANONYMOUS == 0 {
        file_backing(&mut vma, fd, offset, len)?;
    } else if shared {
        let cache = PageCache::new(None, len);
        vma.backing = Backing::File { cache, page_offset: 0, file: None };
    }
    if let Backing::File { cache, .. } = &vma.backing {
        cache.add_mapper(&mm);
    }
    vma.locked = flags & raw::MAP_LOCKED != 0;
    let populate = vma.locked || flags & raw::MAP_POPULATE != 0;
    map_area(&mm, hint, len, flags, vma, populate)
}

fn file_backing(vma: &mut Vma, fd: u32, offset: u64, len: u64) -> Result<()> {
    let file = current().process.files().get(fd)?;
    file.check_readable().map_err(|_| Errno::EACCES)?;
    let writable = file.check_writable().is_ok();
    if vma.shared && vma.prot.write && !writable {
        return Err(Errno::EACCES);
    }
    if crate::fs::devfs::is_zero(&file) {
        if vma.shared {
            let cache = PageCache::new(None, len);
            vma.backing = Backing::File { cache, page_offset: 0, file: None };
        }
        return Ok(());
    }
    let inode = file.inode();
    let sealed = vma.shared && inode.is_write_sealed();
    if sealed && vma.prot.write {
        return Err(Errno::EPERM);
    }
    vma.may_write = !vma.shared || writable && !sealed;
    let cache = inode.page_cache().ok_or(Errno::ENODEV)?;
    if offset.checked_add(len).is_none_or(|end| end > MAX_FILE_SIZE) {
        return Err(Errno::EOVERFLOW);
    }
    vma.backing = Backing::File { cache, page_offset: offset / PAGE, file: Some(file) };
    Ok(())
}

/// Finds the place for an area of `len` bytes and enters it. Returns its start.
fn map_area(
    mm: &Arc<Mm>,
    hint: u64,
    len: u64,
    flags: u32,
    mut vma: Vma,
    populate: bool,
) -> Result<u64> {
    crate::mm::check_reserve()?;
    let fixed = flags & (raw::MAP_FIXED | raw::MAP_FIXED_NOREPLACE) != 0;
    let limit = current().process.limit(Resource::AddressSpace);
    let mut replaced = None;
    let result = mm.with(|inner| {
        if limit != UNLIMITED && inner.total_bytes().saturating_add(len) > limit {
            return Err(Errno::ENOMEM);
        }
        let start = if fixed {
            let (start, end) = page_range(hint, len, Errno::ENOMEM)?;
            if start < MMAP_MIN {
                return Err(Errno::EPERM);
            }
            if flags & raw::MAP_FIXED_NOREPLACE != 0 && !inner.is_free(start, end) {
                return Err(Errno::EEXIST);
            }
            replaced = Some(inner.unmap(start, end));
            start
        } else {
            match flags & raw::MAP_32BIT {
                0 => inner.find_free(hint, len)?,
                _ => inner.find_free_below(MAP_32BIT_END, len)?,
            }
        };
        vma.end = start + len;
        vma.locked |= inner.lock_future;
        inner.insert(start, vma)?;
        if populate {
            // As on Linux, the mapping stays if its pages cannot be brought in.
            let _ = inner.populate(start, start + len);
        }
        Ok(start)
    });
    drop(replaced);
    result
}

/// munmap(2).
pub fn munmap(a: &Args) -> Result<u64> {
    let len = if a.a1() == 0 { return Err(Errno::EINVAL) } else { a.a1() };
    let (start, end) = page_range(a.a0(), len, Errno::EINVAL)?;
    let removed = current_mm()?.with(|inner| inner.unmap(start, end));
    drop(removed);
    Ok(0)
}

/// pkey_alloc(2): there are no keys. ENOSPC.
pub fn pkey_alloc(a: &Args) -> Result<u64> {
    /// PKEY_DISABLE_ACCESS and PKEY_DISABLE_WRITE.
    const RIGHTS: u64 = 3;
    if a.a0() != 0 || a.a1() & !RIGHTS != 0 { Err(Errno::EINVAL) } else { Err(Errno::ENOSPC) }
}

/// pkey_mprotect(2): mprotect(2) if the key is -1, the only one there can be.
pub fn pkey_mprotect(a: &Args) -> Result<u64> {
    if a.a3() as i32 == -1 { mprotect(a) } else { Err(Errno::EINVAL) }
}

/// mprotect(2).
pub fn mprotect(a: &Args) -> Result<u64> {
    let (start, end) = page_range(a.a0(), a.a1(), Errno::ENOMEM)?;
    let prot = prot_from_bits(a.a2())?;
    if start == end {
        return Ok(0);
    }
    current_mm()?.with(|inner| {
        // As on Linux, what lies before a hole or a refusal is changed.
        let mut good_end = start;
        let result = inner.check_mapped(start, end, |vma| {
            if prot.write && !vma.may_write {
                return Err(Errno::EACCES);
            }
            good_end = vma.end.min(end);
            Ok(())
        });
        inner.split(start);
        inner.split(good_end);
        let areas = inner.vmas.range(start..good_end);
        let starts: alloc::vec::Vec<u64> = areas.map(|(&start, _)| start).collect();
        for at in starts {
            inner.protect_area(at, prot);
        }
        result.map(|()| 0)
    })
}

impl MmInner {
    /// ENOMEM unless every page of `[start, end)` is mapped; `check` looks at each area.
    fn check_mapped(
        &self,
        start: u64,
        end: u64,
        mut check: impl FnMut(&Vma) -> Result<()>,
    ) -> Result<()> {
        let mut at = start;
        while at < end {
            let (_, vma) = self.find(at).ok_or(Errno::ENOMEM)?;
            check(vma)?;
            at = vma.end;
        }
        Ok(())
    }

    /// Gives the area at `at` new rights.
    fn protect_area(&mut self, at: u64, prot: Prot) {
        let Some(vma) = self.vmas.get_mut(&at) else { return };
        vma.prot = prot;
        let (end, anonymous_private) =
            (vma.end, !vma.shared && matches!(vma.backing, Backing::Anonymous));
        self.table.protect(at, end, |_, old, refs| {
            // Pages that are ours alone get the right to write at once; others by a fault.
            let write = prot.write && (old.write || anonymous_private && refs == 1 && old.read);
            Prot { write, ..prot }
        });
        self.merge_around(at);
    }
}

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
            let grown = inner.total_bytes().saturating_add(new_end - old_end);
            if grown > total_limit || !inner.is_free(old_end, new_end + PAGE) {
                return Ok(old);
            }
            let mut vma = Vma::anonymous(new_end, Prot { read: true, write: true, exec: false });
            vma.name = Some("[heap]");
            if inner.insert(old_end, vma).is_err() {
                return Ok(old);
            }
        } else if new_end < old_end {
            removed = Some(inner.unmap(new_end, old_end));
        }
        inner.layout.brk = wanted;
        Ok(wanted)
    });
    drop(removed);
    result
}

/// mremap(2).
pub fn mremap(a: &Args) -> Result<u64> {
    let (old, flags, target) = (a.a0(), a.a3() as u32, a.a4());
    let known = raw::MREMAP_MAYMOVE | raw::MREMAP_FIXED | raw::MREMAP_DONTUNMAP;
    let may_move = flags & raw::MREMAP_MAYMOVE != 0;
    let fixed = flags & raw::MREMAP_FIXED != 0;
    let keep = flags & raw::MREMAP_DONTUNMAP != 0;
    if flags & !known != 0 || old % PAGE != 0 || (fixed || keep) && !may_move {
        return Err(Errno::EINVAL);
    }
    let new_len = page_len(a.a2())?;
    let old_len = a.a1().checked_next_multiple_of(PAGE).ok_or(Errno::EINVAL)?;
    if keep && old_len != new_len {
        return Err(Errno::EINVAL);
    }
    let mm = current_mm()?;
    let mut dropped = alloc::vec::Vec::new();
    let result = mm.with(|inner| {
        let (_, vma) = inner.find(old).ok_or(Errno::EFAULT)?;
        if old_len == 0 && !vma.shared {
            return Err(Errno::EINVAL);
        }
        if vma.end - old < old_len {
            return Err(Errno::EFAULT);
        }
        if fixed {
            let (start, end) = page_range(target, new_len, Errno::EINVAL)?;
            if start < MMAP_MIN || start < old + old_len && old < end {
                return Err(Errno::EINVAL);
            }
            dropped.push(inner.unmap(start, end));
        } else if !keep && old_len > 0 {
            if new_len <= old_len {
                dropped.push(inner.unmap(old + new_len, old + old_len));
                return Ok(old);
            }
            if inner.grow_in_place(old, old_len, new_len) {
                return Ok(old);
            }
            if !may_move {
                return Err(Errno::ENOMEM);
            }
        }
        if new_len < old_len {
            dropped.push(inner.unmap(old + new_len, old + old_len));
        }
        let start = if fixed { target } else { inner.find_free(0, new_len)? };
        dropped.push(inner.move_area(old, old_len.min(new_len), start, new_len, keep)?);
        Ok(start)
    });
    drop(dropped);
    result
}

impl MmInner {
    /// Extends the area that ends at `old + old_len` if there is room behind it.
    fn grow_in_place(&mut self, old: u64, old_len: u64, new_len: u64) -> bool {
        let (from, to) = (old + old_len, old + new_len);
        let Some((start, vma)) = self.find(old) else { return false };
        if vma.end != from || to > USER_END || !self.is_free(from, to) {
            return false;
        }
        let shared_anonymous = matches!(&vma.backing, Backing::File { file: None, .. });
        if shared_anonymous {
            return false;
        }
        if let Some(vma) = self.vmas.get_mut(&start) {
            vma.end = to;
        }
        self.merge_around(start);
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
    ) -> Result<alloc::collections::BTreeMap<u64, Vma>> {
        let (start, vma) = self.find(old).ok_or(Errno::EFAULT)?;
        let mut moved = vma.clone();
        moved.end = new + new_len;
        if let Backing::File { page_offset, .. } = &mut moved.backing {
            *page_offset += (old - start) / PAGE;
        }
        self.table.move_range(old, new, len).map_err(|_| Errno::ENOMEM)?;
        self.insert(new, moved)?;
        Ok(if keep { alloc::collections::BTreeMap::new() } else { self.unmap(old, old + len) })
    }
}

/// madvise(2).
pub fn madvise(a: &Args) -> Result<u64> {
    let (start, end) = page_range(a.a0(), a.a1(), Errno::EINVAL)?;
    let advice = a.a2() as u32;
    let mm = current_mm()?;
    match advice {
        raw::MADV_NORMAL
        | raw::MADV_RANDOM
        | raw::MADV_SEQUENTIAL
        | raw::MADV_HUGEPAGE
        | raw::MADV_NOHUGEPAGE
        | raw::MADV_DONTDUMP
        | raw::MADV_DODUMP
        | raw::MADV_COLD
        | raw::MADV_PAGEOUT
        | raw::MADV_MERGEABLE
        | raw::MADV_UNMERGEABLE => {
            mm.with(|inner| inner.check_mapped(start, end, |_| Ok(())))?;
        }
        raw::MADV_WILLNEED | raw::MADV_POPULATE_READ | raw::MADV_POPULATE_WRITE => {
            mm.with(|inner| {
                inner.check_mapped(start, end, |_| Ok(()))?;
                if advice == raw::MADV_WILLNEED { Ok(()) } else { inner.populate(start, end) }
            })?;
        }
        raw::MADV_DONTNEED | raw::MADV_FREE | raw::MADV_DONTNEED_LOCKED => {
            mm.with(|inner| {
                inner.check_mapped(start, end, |vma| {
                    let refused = advice != raw::MADV_DONTNEED_LOCKED && vma.locked
                        || advice == raw::MADV_FREE && vma.shared;
                    if refused { Err(Errno::EINVAL) } else { Ok(()) }
                })?;
                inner.table.unmap(start, end);
                Ok::<(), Errno>(())
            })?;
        }
        raw::MADV_REMOVE => remove_from_files(&mm, start, end)?,
        raw::MADV_DONTFORK | raw::MADV_DOFORK | raw::MADV_WIPEONFORK | raw::MADV_KEEPONFORK => {
            mm.with(|inner| {
                inner.check_mapped(start, end, |_| Ok(()))?;
                inner.split(start);
                inner.split(end);
                for (_, vma) in inner.vmas.range_mut(start..end) {
                    match advice {
                        raw::MADV_DONTFORK => vma.dont_fork = true,
                        raw::MADV_DOFORK => vma.dont_fork = false,
                        raw::MADV_WIPEONFORK => vma.wipe_on_fork = true,
                        _ => vma.wipe_on_fork = false,
                    }
                }
                Ok::<(), Errno>(())
            })?;
        }
        _ => return Err(Errno::EINVAL),
    }
    Ok(0)
}

/// MADV_REMOVE: punches holes into the files behind shared areas.
fn remove_from_files(mm: &Arc<Mm>, start: u64, end: u64) -> Result<()> {
    let parts = mm.with(|inner| {
        let mut parts = alloc::vec::Vec::new();
        inner.check_mapped(start, end, |vma| match &vma.backing {
            Backing::File { .. } if vma.shared && vma.prot.write => Ok(()),
            _ => Err(Errno::EINVAL),
        })?;
        let mut at = start;
        while at < end {
            let (vma_start, vma) = inner.find(at).ok_or(Errno::ENOMEM)?;
            let stop = vma.end.min(end);
            if let Backing::File { cache, page_offset, .. } = &vma.backing {
                parts.push((cache.clone(), page_offset * PAGE + (at - vma_start), stop - at));
            }
            at = stop;
        }
        Ok::<_, Errno>(parts)
    })?;
    for (cache, offset, len) in parts {
        cache.punch(offset, len);
    }
    Ok(())
}

fn lock_range(start: u64, len: u64, lock: bool, populate: bool) -> Result<u64> {
    let first = start & !(PAGE - 1);
    let len = len.checked_add(start - first).ok_or(Errno::EINVAL)?;
    let (first, end) = page_range(first, len, Errno::ENOMEM)?;
    let process = &current().process;
    if lock
        && end - first > process.limit(Resource::LockedMemory)
        && !process.subject().capable(Capability::IpcLock)
    {
        return Err(Errno::ENOMEM);
    }
    process.mm()?.with(|inner| {
        inner.check_mapped(first, end, |_| Ok(()))?;
        inner.split(first);
        inner.split(end);
        for (_, vma) in inner.vmas.range_mut(first..end) {
            vma.locked = lock;
        }
        // Nothing is ever paged out, so locking is bringing in.
        if lock && populate { inner.populate(first, end).map(|()| 0) } else { Ok(0) }
    })
}

/// mlock(2).
pub fn mlock(a: &Args) -> Result<u64> {
    lock_range(a.a0(), a.a1(), true, true)
}

/// mlock2(2).
pub fn mlock2(a: &Args) -> Result<u64> {
    match a.a2() {
        0 => lock_range(a.a0(), a.a1(), true, true),
        1 => lock_range(a.a0(), a.a1(), true, false),
        _ => Err(Errno::EINVAL),
    }
}

/// munlock(2).
pub fn munlock(a: &Args) -> Result<u64> {
    lock_range(a.a0(), a.a1(), false, false)
}

/// mlockall(2).
pub fn mlockall(a: &Args) -> Result<u64> {
    let flags = a.a0() as u32;
    let (now, future) = (flags & raw::MCL_CURRENT != 0, flags & raw::MCL_FUTURE != 0);
    let known = raw::MCL_CURRENT | raw::MCL_FUTURE | raw::MCL_ONFAULT;
    if flags & !known != 0 || !(now || future) {
        return Err(Errno::EINVAL);
    }
    current_mm()?.with(|inner| {
        inner.lock_future = future;
        if now {
            for vma in inner.vmas.values_mut() {
                vma.locked = true;
            }
        }
    });
    Ok(0)
}

/// munlockall(2).
pub fn munlockall(_: &Args) -> Result<u64> {
    current_mm()?.with(|inner| {
        inner.lock_future = false;
        for vma in inner.vmas.values_mut() {
            vma.locked = false;
        }
    });
    Ok(0)
}

/// mincore(2).
pub fn mincore(a: &Args) -> Result<u64> {
    let (start, end) = page_range(a.a0(), a.a1(), Errno::ENOMEM)?;
    let mm = current_mm()?;
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
    let caches = current_mm()?.with(|inner| {
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
