//! Shared memory segments (shmget(2), shmat(2), shmctl(2)).
//!
//! A segment is a nameless file of the memory file system; attaching it is a shared mapping of that
//! file. So page faults, fork and the end of a process need no code of their own. A segment that is
//! removed lives on while somebody has it mapped: the table then holds the file weakly, and forgets
//! the entry when it meets one whose file has gone. Each area knows its segment, and tells it of
//! copies of the area and of its end, however it comes (shmdt(2), munmap(2), execve(2), _exit(2)).

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use abi::sysv::{
    IPC_INFO, IPC_RMID, IPC_SET, IPC_STAT, Perm, SHM_DEST, SHM_EXEC, SHM_HUGE_SHIFT, SHM_HUGETLB,
    SHM_INFO, SHM_LOCK, SHM_LOCKED, SHM_NORESERVE, SHM_RDONLY, SHM_REMAP, SHM_RND, SHM_STAT,
    SHM_STAT_ANY, SHM_UNLOCK, ShmLimits, ShmUse, ShmidDs,
};
use abi::{Errno, Result};
use machine::memory::{HUGE_PAGE, Prot};
use machine::sync::SpinLock;

use super::{Object, READ, Table, WRITE, now, own_pid};
use crate::base::user::UserPtr;
use crate::fs::memfd;
use crate::fs::pseudo::Text;
use crate::ipc::hooks;
use crate::mm::Attached;
use crate::mm::attach::Attachment;
use crate::mm::hugetlb::HugePages;
use crate::mm::{MMAP_MIN, PAGE};
use crate::page_cache::PageCache;
use crate::process::current;
use crate::security::{Capability, Resource};
use crate::vfs::File;

/// Most segments (kernel.shmmni).
const SEGMENTS_MAX: usize = 4096;
/// Largest segment, and all together in pages (kernel.shmmax, kernel.shmall).
const BYTES_MAX: u64 = u64::MAX - (1 << 24);

/// The size of huge pages as the flags say it: its logarithm.
const HUGE_2MB: u32 = HUGE_PAGE.ilog2();

/// The file, held as long as the segment is to exist.
enum Hold {
    Kept(Arc<File>, Option<Arc<HugePages>>),
    /// Removed, but perhaps attached.
    Removed(Weak<File>, Weak<HugePages>),
}

#[derive(Clone, Copy, Default)]
struct Trace {
    atime: i64,
    dtime: i64,
    ctime: i64,
    creator: u32,
    last: u32,
}

/// A segment.
struct Segment {
    size: u64,
    /// The contents are huge pages of the pool, and the file is empty.
    is_huge: bool,
    /// Areas of these: who maps a file's contents, that knows.
    huge_areas: AtomicU64,
    hold: SpinLock<Hold>,
    trace: SpinLock<Trace>,
}

static SEGMENTS: Table<Segment> = Table::new(SEGMENTS_MAX);

impl Segment {
    /// Who has attached it last, and when.
    fn note_attached(&self) {
        let mut trace = self.trace.lock();
        (trace.atime, trace.last) = (now(), own_pid());
    }

    /// The file; None once the segment has been removed and nobody has it any more.
    fn file(&self) -> Option<Arc<File>> {
        match &*self.hold.lock() {
            Hold::Kept(file, _) => Some(file.clone()),
            Hold::Removed(file, _) => file.upgrade(),
        }
    }

    fn contents(&self) -> Option<Arc<PageCache>> {
        self.file()?.inode().page_cache()
    }

    /// The contents, if they are huge pages of the pool.
    fn huge(&self) -> Option<Arc<HugePages>> {
        match &*self.hold.lock() {
            Hold::Kept(_, huge) => huge.clone(),
            Hold::Removed(_, huge) => huge.upgrade(),
        }
    }

    /// How many bytes one of its pages has.
    fn page_bytes(&self) -> u64 {
        if self.is_huge { HUGE_PAGE } else { PAGE }
    }

    /// Pages in memory.
    fn resident_pages(&self) -> u64 {
        match self.huge() {
            Some(pages) => pages.count() * (HUGE_PAGE / PAGE),
            None => self.contents().map_or(0, |contents| contents.resident_pages() as u64),
        }
    }

    /// How many areas show it.
    fn areas(&self) -> u64 {
        match self.is_huge {
            true => self.huge_areas.load(Ordering::Relaxed),
            false => self.contents().map_or(0, |contents| contents.count_areas()),
        }
    }
}

impl Attached for Object<Segment> {
    fn opened(&self) {
        self.content.huge_areas.fetch_add(1, Ordering::Relaxed);
        self.content.note_attached();
    }

    fn closed(&self) {
        self.content.huge_areas.fetch_sub(1, Ordering::Relaxed);
        let mut trace = self.content.trace.lock();
        (trace.dtime, trace.last) = (now(), own_pid());
    }
}

/// The segment, unless it has gone. EINVAL.
fn alive(segment: Arc<Object<Segment>>) -> Result<(Arc<Object<Segment>>, Arc<File>)> {
    match segment.content.file() {
        Some(file) => Ok((segment, file)),
        None => {
            SEGMENTS.remove(&segment);
            Err(Errno::EINVAL)
        }
    }
}

fn find(id: u64) -> Result<(Arc<Object<Segment>>, Arc<File>)> {
    alive(SEGMENTS.find(id)?)
}

/// All segments that have not gone.
fn all() -> Vec<(Arc<Object<Segment>>, Arc<File>)> {
    SEGMENTS.all().into_iter().filter_map(|segment| alive(segment).ok()).collect()
}

/// shmget(2).
pub fn shmget(key: i32, size: u64, flags: u32) -> Result<u64> {
    let suits = |segment: &Segment| {
        if segment.size < size { Err(Errno::EINVAL) } else { Ok(()) }
    };
    if SEGMENTS.count() >= SEGMENTS_MAX {
        // Those that have gone make room.
        drop(all());
    }
    SEGMENTS.get(key, flags, suits, hooks::shm_associate, || make(key, size, flags))
}

fn make(key: i32, size: u64, flags: u32) -> Result<Segment> {
    if size == 0 || size > BYTES_MAX {
        return Err(Errno::EINVAL);
    }
    super::check_room()?;
    hooks::shm_alloc_security((key,))?;
    let huge = if flags & SHM_HUGETLB != 0 { Some(huge_pages(size, flags)?) } else { None };
    let name = alloc::format!("/SYSV{:08x} (deleted)", key as u32);
    let pages_end = match &huge {
        Some(_) => 0,
        None => size.checked_next_multiple_of(PAGE).ok_or(Errno::ENOMEM)?,
    };
    let owner = current().credentials();
    let file = memfd::of_size(name.as_bytes(), pages_end, owner.fsuid, owner.fsgid);
    // However it is that it cannot be.
    let file = file.map_err(|_| Errno::ENOMEM)?;
    let trace = Trace { ctime: now(), creator: own_pid(), ..Trace::default() };
    Ok(Segment {
        size,
        is_huge: huge.is_some(),
        huge_areas: AtomicU64::new(0),
        hold: SpinLock::new(Hold::Kept(file, huge)),
        trace: SpinLock::new(trace),
    })
}

/// The pages of a segment of huge ones, promised to it unless SHM_NORESERVE says otherwise. EINVAL
/// for sizes that there are not; EPERM; ENOMEM.
fn huge_pages(size: u64, flags: u32) -> Result<Arc<HugePages>> {
    if !matches!(flags >> SHM_HUGE_SHIFT, 0 | HUGE_2MB) {
        return Err(Errno::EINVAL);
    }
    let len = size.checked_next_multiple_of(HUGE_PAGE).ok_or(Errno::ENOMEM)?;
    let (who, thread) = (current().subject(), current());
    // vm.hugetlb_shm_group is 0.
    if !who.capable(Capability::IpcLock) && !thread.credentials().in_group(0) {
        return Err(Errno::EPERM);
    }
    let pages = Arc::new(HugePages::default());
    if flags & SHM_NORESERVE == 0 {
        pages.reserve(0..len / HUGE_PAGE)?;
    }
    Ok(pages)
}

/// shmat(2): returns the address.
pub fn shmat(id: u64, address_at: u64, flags: u32) -> Result<u64> {
    let mut address = address_at;
    if !address.is_multiple_of(PAGE) {
        if flags & SHM_RND == 0 {
            return Err(Errno::EINVAL);
        }
        address -= address % PAGE;
    }
    let replace = flags & SHM_REMAP != 0;
    if address == 0 && (replace || address_at != 0 && address_at < MMAP_MIN) {
        return Err(Errno::EINVAL);
    }
    let (segment, file) = find(id)?;
    let write = flags & SHM_RDONLY == 0;
    let exec = flags & SHM_EXEC != 0;
    let rights = READ | if write { WRITE } else { 0 } | if exec { 0o111 } else { 0 };
    segment.check(rights)?;
    hooks::shm_shmat((&segment.perm(), flags))?;
    // By its bytes, not its pages. Who replaces what is there does not look at all.
    if !replace && address.checked_add(segment.content.size).is_none() {
        return Err(Errno::EINVAL);
    }
    let mut prot = Prot::READ;
    prot.set(Prot::WRITE, write);
    prot.set(Prot::EXEC, exec);
    let bits = u64::from(prot.bits());
    crate::vfs::hooks::mmap_file((Some(&file), bits, bits))?;
    let thread = current();
    let attachment = Attachment {
        file,
        huge: segment.content.huge(),
        noted: Some(segment.clone()),
        len: segment.content.size.next_multiple_of(segment.content.page_bytes()),
        prot,
        address,
        replace,
        space_bytes: thread.process.limit(Resource::AddressSpace),
    };
    // Before anybody may unmap it.
    segment.content.huge_areas.fetch_add(1, Ordering::Relaxed);
    let at = crate::mm::attach::attach(&thread.process.mm()?, attachment).inspect_err(|_| {
        segment.content.huge_areas.fetch_sub(1, Ordering::Relaxed);
    })?;
    segment.content.note_attached();
    Ok(at)
}

/// shmdt(2).
pub fn shmdt(address: u64) -> Result<u64> {
    if !address.is_multiple_of(PAGE) {
        return Err(Errno::EINVAL);
    }
    let all = all();
    let find = |file: &Arc<File>| {
        let found = all.iter().find(|(_, of)| Arc::ptr_eq(of, file));
        let len = |content: &Segment| content.size.next_multiple_of(content.page_bytes());
        found.map(|(segment, _)| len(&segment.content))
    };
    let mm = current().process.mm()?;
    crate::mm::attach::detach(&mm, address, find)?;
    Ok(0)
}

fn describe(segment: &Object<Segment>) -> ShmidDs {
    let trace = *segment.content.trace.lock();
    let attached = segment.content.areas();
    ShmidDs {
        perm: segment.perm(),
        segsz: segment.content.size,
        atime: trace.atime,
        dtime: trace.dtime,
        ctime: trace.ctime,
        cpid: trace.creator,
        lpid: trace.last,
        nattch: attached,
        unused: [0; 2],
    }
}

/// shmctl(2).
pub fn shmctl(id: u64, command: u32, buffer: u64) -> Result<u64> {
    if (id as i32) < 0 {
        return Err(Errno::EINVAL);
    }
    let ask = |segment: &Object<Segment>| hooks::shm_shmctl((Some(&segment.perm()), command));
    match command {
        IPC_INFO => {
            hooks::shm_shmctl((None, command))?;
            let limits = ShmLimits {
                shmmax: BYTES_MAX,
                shmmin: 1,
                shmmni: SEGMENTS_MAX as u64,
                shmseg: SEGMENTS_MAX as u64,
                shmall: BYTES_MAX,
                unused: [0; 4],
            };
            UserPtr::new(buffer).write(&limits)?;
            Ok(SEGMENTS.last_index())
        }
        SHM_INFO => {
            hooks::shm_shmctl((None, command))?;
            usage(buffer)
        }
        IPC_STAT | SHM_STAT | SHM_STAT_ANY => {
            let by_id = command == IPC_STAT;
            let found = if by_id { SEGMENTS.find(id)? } else { SEGMENTS.at(id)? };
            let (segment, _file) = alive(found)?;
            if command != SHM_STAT_ANY {
                segment.check(READ)?;
            }
            ask(&segment)?;
            UserPtr::new(buffer).write(&describe(&segment))?;
            Ok(if by_id { 0 } else { u64::from(segment.id) })
        }
        IPC_SET => {
            let new = UserPtr::<ShmidDs>::new(buffer).read()?;
            let (segment, _file) = find(id)?;
            segment.check_owner()?;
            ask(&segment)?;
            segment.set_perm(&new.perm)?;
            segment.content.trace.lock().ctime = now();
            Ok(0)
        }
        IPC_RMID => {
            let (segment, file) = find(id)?;
            segment.check_owner()?;
            ask(&segment)?;
            remove(&segment, &file);
            drop(file);
            drop(alive(segment));
            Ok(0)
        }
        SHM_LOCK | SHM_UNLOCK => {
            let (segment, _file) = find(id)?;
            lock(&segment, command == SHM_LOCK)
        }
        _ => Err(Errno::EINVAL),
    }
}

fn remove(segment: &Object<Segment>, file: &Arc<File>) {
    segment.mark(SHM_DEST, true);
    SEGMENTS.remove_key(segment);
    let huge = segment.content.huge().as_ref().map_or_else(Weak::new, Arc::downgrade);
    let removed = Hold::Removed(Arc::downgrade(file), huge);
    let old = core::mem::replace(&mut *segment.content.hold.lock(), removed);
    drop(old);
    hooks::shm_free_security((&segment.perm(),));
}

/// There is no swap, so every segment is locked anyway; the mark is kept for ipcs(1).
fn lock(segment: &Object<Segment>, on: bool) -> Result<u64> {
    let who = current().subject();
    let Perm { uid, cuid, .. } = segment.perm();
    if !who.capable(Capability::IpcLock) {
        if who.euid != uid && who.euid != cuid {
            return Err(Errno::EPERM);
        }
        if on && current().process.limit(Resource::LockedMemory) == 0 {
            return Err(Errno::EPERM);
        }
    }
    let command = if on { SHM_LOCK } else { SHM_UNLOCK };
    hooks::shm_shmctl((Some(&segment.perm()), command))?;
    segment.mark(SHM_LOCKED, on);
    Ok(0)
}

fn usage(buffer: u64) -> Result<u64> {
    let all = all();
    let pages = |segment: &Segment| segment.size.div_ceil(PAGE);
    let usage = ShmUse {
        used_ids: all.len() as u32,
        total: all.iter().map(|(segment, _)| pages(&segment.content)).sum(),
        resident: all.iter().map(|(segment, _)| segment.content.resident_pages()).sum(),
        ..ShmUse::default()
    };
    UserPtr::new(buffer).write(&usage)?;
    Ok(SEGMENTS.last_index())
}

/// /proc/sysvipc/shm.
pub fn list(out: &mut Text) -> Result<()> {
    writeln!(
        out,
        "       key      shmid perms                  size  cpid  lpid nattch   uid   gid  cuid  \
         cgid      atime      dtime      ctime                   rss                  swap"
    );
    for (segment, _file) in all() {
        let ShmidDs { perm, segsz, atime, dtime, ctime, cpid, lpid, nattch, .. } =
            describe(&segment);
        let pages = segment.content.resident_pages();
        let (key, id, resident) = (perm.key, segment.id, pages * PAGE);
        write!(out, "{key:>10} {id:>10}  {:>4o} {segsz:>21} {cpid:>5} {lpid:>5} ", perm.mode);
        write!(out, " {nattch:>5} {:>5} {:>5} {:>5} ", perm.uid, perm.gid, perm.cuid);
        write!(out, "{:>5} {atime:>10} {dtime:>10} {ctime:>10} ", perm.cgid);
        writeln!(out, "{resident:>21} {:>21}", 0);
    }
    Ok(())
}
