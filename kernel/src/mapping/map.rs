//! mmap(2) and munmap(2): which kinds of areas a program may ask for, and where they go.
//!
//! Why it is hard: what is refused, with which error and in which order, is what programs and their
//! tests rely on. Neighbours: [`super::protect`] for what an area may become later, [`super::lock`]
//! for locked memory.

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use abi::{Errno, Result, general as raw};
use machine::memory::{HUGE_PAGE, Prot, USER_END};

use super::lock;
use crate::exec::READ_IMPLIES_EXEC;
use crate::fs::pseudo::PseudoInode;
use crate::mm::{Backing, Label, MMAP_MIN, Mm, MmInner, PAGE, Vma, VmaFlags};
use crate::page_cache::{MAX_FILE_SIZE, PageCache};
use crate::process::Process;
use crate::process::{Thread, current, own_open_file};
use crate::security::{Resource, UNLIMITED, subject_hooks};
use crate::vfs::{File, FileType, hooks};

/// Where mappings with MAP_32BIT lie, from the lowest address up.
const MAP_32BIT: core::ops::Range<u64> = 1 << 30..1 << 31;
/// MAP_DROPPABLE, a type like MAP_PRIVATE.
const MAP_DROPPABLE: u32 = 8;
/// Flags from before MAP_SHARED_VALIDATE, under which a file takes any other: MAP_SHARED,
/// MAP_PRIVATE, MAP_FIXED, MAP_ANONYMOUS, MAP_32BIT, MAP_ABOVE4G, MAP_GROWSDOWN, MAP_DENYWRITE,
/// MAP_EXECUTABLE, MAP_LOCKED, MAP_NORESERVE, MAP_POPULATE, MAP_NONBLOCK, MAP_STACK, MAP_HUGETLB,
/// MAP_UNINITIALIZED and the sizes 2 MiB and 1 GiB of huge pages.
const LEGACY_FLAGS: u32 = 0x0407_f9f3 | HUGE_2MB | HUGE_1GB | raw::MAP_SHARED_VALIDATE;
/// MAP_HUGE_2MB, MAP_HUGE_1GB: the logarithm of the size of huge pages, in six bits.
const HUGE_2MB: u32 = 21 << HUGE_SHIFT;
const HUGE_1GB: u32 = 30 << HUGE_SHIFT;
const HUGE_SHIFT: u32 = 26;
const HUGE_MASK: u32 = 0x3f << HUGE_SHIFT;

/// Rights from PROT_ bits; others are ignored, as mmap(2) does.
pub fn prot_from_bits(bits: u64) -> Prot {
    let has = |bit: u32| bits & u64::from(bit) != 0;
    let mut prot = Prot::empty();
    prot.set(Prot::READ, has(raw::PROT_READ));
    prot.set(Prot::WRITE, has(raw::PROT_WRITE));
    prot.set(Prot::EXEC, has(raw::PROT_EXEC));
    prot
}

/// Whether the thread runs an old program that expects to execute what it can read.
pub(super) fn read_implies_exec(thread: &Thread) -> bool {
    thread.settings.personality.load(Ordering::Relaxed) & READ_IMPLIES_EXEC != 0
}

/// PR_SET_MDWE: whether the process is not to get this, in place of what it had.
pub(super) fn denies_exec(process: &Process, old: Prot, new: Prot) -> bool {
    new.contains(Prot::EXEC)
        && process.settings.deny_write_exec.load(Ordering::Relaxed) != 0
        && (new.changes() || !old.contains(Prot::EXEC))
}

/// `len` rounded up to pages of a size; EINVAL for 0, ENOMEM if it does not fit user space.
fn whole_len(len: u64, unit: u64) -> Result<u64> {
    if len == 0 {
        return Err(Errno::EINVAL);
    }
    let len = len.checked_next_multiple_of(unit).ok_or(Errno::ENOMEM)?;
    if len > USER_END { Err(Errno::ENOMEM) } else { Ok(len) }
}

/// A page-aligned range in user space. EINVAL for a bad start, `outside` for a bad end.
pub(super) fn page_range(start: u64, len: u64, outside: Errno) -> Result<(u64, u64)> {
    if !start.is_multiple_of(PAGE) {
        return Err(Errno::EINVAL);
    }
    let len = len.checked_next_multiple_of(PAGE).ok_or(outside)?;
    let end = start.checked_add(len).filter(|&end| end <= USER_END).ok_or(outside)?;
    Ok((start, end))
}

/// mmap(2).
pub fn mmap(
    hint: u64,
    length: u64,
    protection: u64,
    flags: u32,
    fd: u32,
    offset: u64,
) -> Result<u64> {
    if !offset.is_multiple_of(PAGE) {
        return Err(Errno::EINVAL);
    }
    let thread = current();
    let process = &thread.process;
    let is_anonymous = flags & raw::MAP_ANONYMOUS != 0;
    let file = if is_anonymous { None } else { Some(own_open_file(fd)?) };
    let is_huge = flags & raw::MAP_HUGETLB != 0;
    if is_huge && !(is_anonymous && is_huge_size(flags)) {
        return Err(Errno::EINVAL);
    }
    let unit = if is_huge { HUGE_PAGE } else { PAGE };
    let len = whole_len(length, unit)?;
    let mut prot = prot_from_bits(protection);
    let asked = prot.bits();
    let no_exec = file.as_ref().is_some_and(|file| is_no_exec(file));
    if prot.contains(Prot::READ) && read_implies_exec(&thread) && !no_exec {
        prot |= Prot::EXEC;
    }
    hooks::mmap_file((file.as_deref(), asked.into(), prot.bits().into()))?;
    if prot.contains(Prot::WRITE) && flags & raw::MAP_TYPE == raw::MAP_PRIVATE && !is_huge {
        subject_hooks::vm_enough_memory((&process.subject(), len))?;
    }
    let is_denied = denies_exec(process, prot, prot);
    let mm = process.mm()?;
    if prot == Prot::EXEC {
        prot = prot.with_key(mm.with(|inner| inner.keys.deny_execute_only()));
    }
    let vma = match &file {
        Some(file) => file_area(file, prot, flags, offset, len, no_exec),
        None if is_huge => huge_area(prot, flags, offset, len),
        None => anonymous_area(prot, flags, len),
    };
    // What is wrong with the rest is told first.
    let vma = vma.and_then(|vma| if is_denied { Err(Errno::EACCES) } else { Ok(vma) });
    let vma = match vma {
        Ok(vma) => vma,
        Err(error) => {
            // What refuses by itself does so when the place is free.
            let clears = matches!(error, Errno::ENODEV | Errno::EPERM)
                && file.is_some_and(|file| {
                    file.inode().file_type() == FileType::Socket || file.inode().is_write_sealed()
                });
            return refuse(&mm, (hint, len, flags), clears).and(Err(error));
        }
    };
    if let Backing::File { cache, .. } = &vma.backing {
        cache.add_mapper(mm.clone());
    }
    map_area(process, &mm, hint, len, flags, vma)
}

/// For an area that cannot be made: that there is no place for it comes first. Where `clears`, what
/// it would have replaced is gone, as on Linux.
fn refuse(mm: &Mm, (hint, len, flags): (u64, u64, u32), clears: bool) -> Result<()> {
    let any = Vma::anonymous(0, Prot::empty());
    let replaced = mm.with(|inner| match inner.place(hint, len, flags, &any)? {
        Place::Replace(start) if clears => {
            inner.check_unmap(start, start + len)?;
            Ok::<_, Errno>(Some(inner.unmap(start, start + len)))
        }
        _ => Ok(None),
    });
    // Files that were mapped may be closed here, without the lock.
    replaced.map(drop)
}

/// Whether it is the size of the huge pages that there are: 2 MiB, which nobody need say.
fn is_huge_size(flags: u32) -> bool {
    matches!(flags & HUGE_MASK, 0 | HUGE_2MB)
}

fn huge_area(prot: Prot, flags: u32, offset: u64, len: u64) -> Result<Vma> {
    let shared = match flags & raw::MAP_TYPE {
        raw::MAP_SHARED | raw::MAP_SHARED_VALIDATE => true,
        raw::MAP_PRIVATE => false,
        _ => return Err(Errno::EINVAL),
    };
    if flags & raw::MAP_GROWSDOWN != 0 || !offset.is_multiple_of(HUGE_PAGE) {
        return Err(Errno::EINVAL);
    }
    let is_reserved = flags & raw::MAP_NORESERVE == 0;
    Vma::hugetlb(prot, shared, len, offset / HUGE_PAGE, is_reserved)
}

/// Whether the file lies where nothing may be executed, as in /proc.
fn is_no_exec(file: &File) -> bool {
    if file.location.is_some() && file.inode().is::<PseudoInode>() {
        return true;
    }
    file.location.as_ref().is_some_and(|l| l.mount.flags() & raw::MS_NOEXEC != 0)
}

fn anonymous_area(prot: Prot, flags: u32, len: u64) -> Result<Vma> {
    let mut vma = Vma::anonymous(0, prot);
    let grows_down = flags & raw::MAP_GROWSDOWN != 0;
    match flags & raw::MAP_TYPE {
        raw::MAP_PRIVATE => vma.flags.set(VmaFlags::GROWS_DOWN, grows_down),
        raw::MAP_SHARED if !grows_down => share_zeros(&mut vma, len, 0),
        MAP_DROPPABLE if flags & raw::MAP_LOCKED == 0 && !grows_down => {
            vma.flags |= VmaFlags::DROPPABLE | VmaFlags::WIPE_ON_FORK | VmaFlags::DONT_DUMP;
        }
        _ => return Err(Errno::EINVAL),
    }
    Ok(vma)
}

/// Makes it shared memory of so many bytes that has no name, from a page of it on.
fn share_zeros(vma: &mut Vma, len: u64, page_offset: u64) {
    let cache = PageCache::new(None, len);
    vma.shared = true;
    vma.backing = Backing::File { cache, page_offset, file: None };
}

fn file_area(
    file: &Arc<File>,
    prot: Prot,
    flags: u32,
    offset: u64,
    len: u64,
    no_exec: bool,
) -> Result<Vma> {
    if offset.checked_add(len).is_none_or(|end| end > MAX_FILE_SIZE) {
        return Err(Errno::EOVERFLOW);
    }
    let shared = match flags & raw::MAP_TYPE {
        raw::MAP_SHARED_VALIDATE if flags & !LEGACY_FLAGS != 0 => return Err(Errno::EOPNOTSUPP),
        raw::MAP_SHARED | raw::MAP_SHARED_VALIDATE => true,
        raw::MAP_PRIVATE => false,
        _ => return Err(Errno::EINVAL),
    };
    let is_writable = file.check_writable().is_ok();
    if shared && prot.contains(Prot::WRITE) && !is_writable || file.check_readable().is_err() {
        return Err(Errno::EACCES);
    }
    if shared && is_writable && file.inode().state().is_append_only() {
        return Err(Errno::EACCES);
    }
    if no_exec && prot.contains(Prot::EXEC) {
        return Err(Errno::EPERM);
    }
    let mut vma = Vma::anonymous(0, prot);
    vma.shared = shared;
    vma.flags.set(VmaFlags::MAY_WRITE, !shared || is_writable);
    vma.flags.set(VmaFlags::MAY_EXEC, !no_exec);
    let grows_down = flags & raw::MAP_GROWSDOWN != 0;
    if crate::fs::devfs::is_zero(file) && !grows_down {
        match shared {
            true => share_zeros(&mut vma, len, offset / PAGE),
            false => vma.label = Some(Label::Zeros(file.clone(), offset / PAGE)),
        }
        return Ok(vma);
    }
    let inode = file.inode();
    let cache = inode.page_cache();
    if grows_down && (cache.is_some() || inode.file_type() == FileType::Socket) {
        return Err(Errno::EINVAL);
    }
    if shared && inode.is_write_sealed() {
        if prot.contains(Prot::WRITE) {
            return Err(Errno::EPERM);
        }
        vma.flags.remove(VmaFlags::MAY_WRITE);
    }
    let cache = cache.ok_or(Errno::ENODEV)?;
    vma.backing = Backing::File { cache, page_offset: offset / PAGE, file: Some(file.clone()) };
    Ok(vma)
}

/// Finds the place for an area of `len` bytes and enters it. Returns its start.
fn map_area(
    process: &Process,
    mm: &Arc<Mm>,
    hint: u64,
    len: u64,
    flags: u32,
    mut vma: Vma,
) -> Result<u64> {
    crate::base::reserve::check_reserve()?;
    let wants_lock = flags & raw::MAP_LOCKED != 0;
    if wants_lock && !lock::may_lock(process) {
        return Err(Errno::EPERM);
    }
    let limit = process.limit(Resource::AddressSpace);
    vma.flags.set(VmaFlags::NO_RESERVE, flags & raw::MAP_NORESERVE != 0);
    // A thread's stack grows page by page: huge ones would be memory that few threads use.
    vma.flags.set(VmaFlags::NO_HUGE, flags & raw::MAP_STACK != 0);
    let mut replaced = None;
    let result = mm.with(|inner| {
        let place = inner.place(hint, len, flags, &vma)?;
        if let Place::Replace(start) = place {
            inner.check_unmap(start, start + len)?;
        }
        if wants_lock {
            vma.flags |= VmaFlags::LOCKED;
        } else if !vma.flags.contains(VmaFlags::DROPPABLE) {
            vma.flags |= inner.lock_future;
        }
        if vma.flags.contains(VmaFlags::LOCKED) && !inner.may_lock_more(process.lock_limit(), len) {
            return Err(Errno::EAGAIN);
        }
        let start = match place {
            Place::Free(start) => start,
            Place::Replace(start) => {
                replaced = Some(inner.unmap(start, start + len));
                start
            }
        };
        if limit != UNLIMITED && inner.total_bytes().saturating_add(len) > limit {
            return Err(Errno::ENOMEM);
        }
        vma.end = start + len;
        let is_locked =
            (vma.flags & (VmaFlags::LOCKED | VmaFlags::LOCK_ON_FAULT)) == VmaFlags::LOCKED;
        if vma.is_hugetlb() {
            // They stay in memory without being locked.
            vma.flags -= VmaFlags::LOCKED | VmaFlags::LOCK_ON_FAULT;
        }
        inner.insert(start, vma)?;
        if is_locked || flags & raw::MAP_POPULATE != 0 && flags & raw::MAP_NONBLOCK == 0 {
            // As on Linux, the mapping stays if its pages cannot be brought in.
            let _ = inner.populate(start, start + len);
        }
        Ok(start)
    });
    drop(replaced);
    result
}

/// Where a new area goes.
enum Place {
    Free(u64),
    /// What is there is unmapped.
    Replace(u64),
}

impl MmInner {
    fn place(&mut self, hint: u64, len: u64, flags: u32, vma: &Vma) -> Result<Place> {
        let is_huge = vma.is_hugetlb();
        if flags & (raw::MAP_FIXED | raw::MAP_FIXED_NOREPLACE) != 0 {
            let (start, end) = page_range(hint, len, Errno::ENOMEM)?;
            hooks::mmap_addr((start,))?;
            if start < MMAP_MIN {
                return Err(Errno::EPERM);
            }
            if is_huge && !start.is_multiple_of(HUGE_PAGE) {
                return Err(Errno::EINVAL);
            }
            if flags & raw::MAP_FIXED_NOREPLACE != 0 && !self.is_free(start, end) {
                return Err(Errno::EEXIST);
            }
            return Ok(Place::Replace(start));
        }
        // A hint too low for any mapping stands for the lowest.
        let hint = match hint & !(PAGE - 1) {
            0 => 0,
            low => low.max(MMAP_MIN),
        };
        if is_huge {
            return self.find_free_huge(hint, len).map(Place::Free);
        }
        if flags & raw::MAP_32BIT == 0 && hint == 0 {
            return self.find_free_for(vma, len).map(Place::Free);
        }
        if flags & raw::MAP_32BIT == 0 {
            return self.find_free(hint, len).map(Place::Free);
        }
        let fits = hint != 0 && hint.checked_add(len).is_some_and(|end| end <= MAP_32BIT.end);
        if fits && self.is_free_for_hint(hint, hint + len) {
            return Ok(Place::Free(hint));
        }
        self.find_free_above(MAP_32BIT, len).map(Place::Free)
    }
}

/// munmap(2).
pub fn munmap(address: u64, length: u64) -> Result<u64> {
    let len = if length == 0 { return Err(Errno::EINVAL) } else { length };
    let (start, end) = page_range(address, len, Errno::EINVAL)?;
    let removed = current().process.mm()?.with(|inner| {
        inner.check_unmap(start, end)?;
        Ok::<_, Errno>(inner.unmap(start, end))
    });
    removed.map(|_| 0)
}
