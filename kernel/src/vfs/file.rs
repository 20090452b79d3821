//! Open files, and the descriptors that name them.
//!
//! A [`File`] is POSIX's open file description: shared by dup and fork, with one position and one
//! set of status flags. An [`FdTable`] maps small numbers to files; threads of a process share one.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::any::Any;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use abi::{Errno, Result, general as raw};
use arrayvec::ArrayVec;
use machine::speculation::mask_index;
use machine::sync::SpinLock;

use super::anon::AnonInode;
use super::path::Location;
use super::permission::drop_privileges;
use super::{FileOps, FileType, Inode, MovedBy, hooks, inotify, leases, locks};
use crate::base::accounts::{Counted, ObjectKind};
use crate::base::lists::{Lists, Place};
use crate::base::poll::PollTable;
use crate::base::sync::Mutex;
use crate::security::{Credentials, Subject};
use crate::vfs::deny_write::Access;

/// A file descriptor.
pub type Fd = u32;

/// Most descriptors a process may have, whatever its limit says (fs.nr_open).
static NR_OPEN: AtomicUsize = AtomicUsize::new(1 << 20);
/// What it may be set to.
const NR_OPEN_RANGE: core::ops::RangeInclusive<usize> = 64..=(i32::MAX as usize & !63);

/// Most descriptors a process may have, whatever its limit says.
pub fn max_fds() -> usize {
    NR_OPEN.load(Ordering::Relaxed)
}

/// Sets [`max_fds`]. EINVAL.
pub fn set_max_fds(count: usize) -> Result<()> {
    if !NR_OPEN_RANGE.contains(&count) {
        return Err(Errno::EINVAL);
    }
    NR_OPEN.store(count, Ordering::Relaxed);
    Ok(())
}

/// An open file description.
pub struct File {
    ops: Arc<dyn FileOps>,
    /// Where it was found; None for pipes, sockets and the like.
    pub location: Option<Location>,
    /// open(2)'s flags: access mode, and the status flags that fcntl(2) can change.
    flags: AtomicU32,
    /// What the access mode allows, whether there is a position, and what moves it: these never
    /// change.
    can_read: bool,
    can_write: bool,
    is_seekable: bool,
    /// Something that can be executed.
    is_regular: bool,
    moved_by: MovedBy,
    /// Position of seekable files.
    pub position: Mutex<u64>,
    /// Identity, for epoll and record locks.
    pub id: u64,
    /// Who is told when it is closed: its places in epoll sets.
    watchers: SpinLock<Lists<Weak<dyn FileWatcher>, 1>>,
    /// Who opened it; `None` of what was not found under a name.
    pub opener: Option<Arc<Credentials>>,
    /// Who gets signals about it (F_SETOWN, O_ASYNC): `io::io_signals`.
    pub notice: SpinLock<Option<Notice>>,
    _counted: Counted<{ ObjectKind::File as usize }>,
    /// What policies have granted when it was opened.
    granted: u64,
    /// open(2) has made what it stands for.
    pub is_created: bool,
    /// Keeps a regular file that may be written to from being executed, and leases away.
    access: Access,
}

/// By whom a file was opened, and with which rights.
pub struct Opening {
    /// Who opened it, as long as that is to be known.
    pub opener: Option<Arc<Credentials>>,
    /// What it counts as on its object.
    pub access: Access,
    /// What policies have granted.
    pub granted: u64,
    /// It was made by this very call.
    pub is_created: bool,
}

impl Default for Opening {
    /// The kernel's own: nobody restricts it.
    fn default() -> Self {
        Opening { opener: None, access: Access::Uncounted, granted: u64::MAX, is_created: false }
    }
}

/// Who wants to know of a file's end.
pub trait FileWatcher: Send + Sync + Any {
    /// The last reference to the file has gone.
    fn file_closed(&self);
}

/// Whether [`FileOps::descriptor_closed`] is of use to anybody.
static CLOSING_IS_WATCHED: AtomicBool = AtomicBool::new(false);

/// From now on every file hears of its descriptors' ends.
pub fn watch_closing() {
    CLOSING_IS_WATCHED.store(true, Ordering::SeqCst);
}

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// Flags that fcntl(F_SETFL) may change.
pub const SETTABLE_FLAGS: u32 =
    raw::O_APPEND | raw::O_NONBLOCK | raw::O_DIRECT | raw::O_NOATIME | raw::FASYNC;

impl File {
    /// A new description with open(2)'s `flags`.
    #[must_use]
    pub fn new(ops: Arc<dyn FileOps>, flags: u32, location: Option<Location>) -> Arc<File> {
        Self::make(ops, flags, location, Opening::default())
    }

    /// As [`File::new`], of what somebody found at a place.
    #[must_use]
    pub fn opened(
        ops: Arc<dyn FileOps>,
        flags: u32,
        location: Location,
        opening: Opening,
    ) -> Arc<File> {
        Self::make(ops, flags, Some(location), opening)
    }

    /// As [`File::new`], of what counts on its object and has no name.
    #[must_use]
    pub fn counted(ops: Arc<dyn FileOps>, flags: u32, access: Access) -> Arc<File> {
        Self::make(ops, flags, None, Opening { access, ..Opening::default() })
    }

    fn make(
        ops: Arc<dyn FileOps>,
        flags: u32,
        location: Option<Location>,
        opening: Opening,
    ) -> Arc<File> {
        let Opening { opener, access, granted, is_created } = opening;
        let mode = flags & raw::O_ACCMODE;
        let is_path = flags & raw::O_PATH != 0;
        let inode = location.as_ref().map(Location::inode);
        let is_regular = inode.is_some_and(|inode| inode.file_type() == FileType::Regular);
        Arc::new(File {
            can_read: !is_path && (mode == raw::O_RDONLY || mode == raw::O_RDWR),
            can_write: !is_path && (mode == raw::O_WRONLY || mode == raw::O_RDWR),
            is_seekable: ops.is_seekable(),
            is_regular,
            moved_by: ops.moved_by(),
            ops,
            location,
            flags: AtomicU32::new(flags & !(raw::O_CREAT | raw::O_EXCL | raw::O_CLOEXEC)),
            position: Mutex::new(0),
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            watchers: SpinLock::new(Lists::new()),
            opener,
            notice: SpinLock::new(None),
            _counted: Counted::new(),
            granted,
            is_created,
            access,
        })
    }

    /// What policies have granted when it was opened, in the bits of `lsm::landlock::fs`.
    pub fn granted(&self) -> u64 {
        self.granted
    }

    /// Tells `watcher` when the file is closed. ENOMEM.
    pub fn watch(&self, watcher: Weak<dyn FileWatcher>) -> Result<Place> {
        let mut watchers = self.watchers.lock();
        watchers.try_reserve_one().map_err(|_| Errno::ENOMEM)?;
        Ok(watchers.push_back(0, watcher))
    }

    /// Forgets the watcher that got this place.
    pub fn unwatch(&self, place: Place) {
        let mut watchers = self.watchers.lock();
        let watcher = watchers.remove(0, place);
        watchers.shrink_if_empty();
        drop(watchers);
        drop(watcher);
    }

    /// Who watches it.
    pub fn watchers(&self) -> Vec<Arc<dyn FileWatcher>> {
        self.watchers.lock().iter(0).filter_map(Weak::upgrade).collect()
    }

    /// What it does.
    #[inline(always)]
    pub fn ops(&self) -> &Arc<dyn FileOps> {
        &self.ops
    }

    /// Its operations, if they are of type `T`.
    pub fn ops_as<T: FileOps>(&self) -> Option<&T> {
        let any: &dyn Any = &*self.ops;
        any.downcast_ref()
    }

    /// The object: the one it was found as, else what its operations stand for.
    #[inline]
    pub fn inode(&self) -> Arc<dyn Inode> {
        match &self.location {
            Some(location) => location.inode().clone(),
            None => self.ops.inode(),
        }
    }

    /// open(2)'s flags as they are now.
    #[inline(always)]
    pub fn flags(&self) -> u32 {
        self.flags.load(Ordering::Relaxed)
    }

    /// Replaces the settable status flags.
    pub fn set_flags(&self, flags: u32) {
        let kept = self.flags() & !SETTABLE_FLAGS;
        self.flags.store(kept | flags & SETTABLE_FLAGS, Ordering::Relaxed);
    }

    /// Whether it only reads an object, and does not count there ([`Access::Read`]).
    pub fn is_uncounted_reader(&self) -> bool {
        self.can_read && !self.can_write && matches!(self.access, Access::Uncounted)
    }

    /// Shows a flag that means something to its own kind of file only (F_GETFL).
    pub fn keep_flag(&self, flag: u32) {
        self.flags.fetch_or(flag, Ordering::Relaxed);
    }

    /// Whether operations must not wait.
    #[inline(always)]
    pub fn is_nonblocking(&self) -> bool {
        self.flags() & raw::O_NONBLOCK != 0
    }

    /// Whether it has a position (lseek(2)), and no stream.
    #[inline(always)]
    pub fn is_seekable(&self) -> bool {
        self.is_seekable
    }

    /// Whether it is a stream that lseek(2) succeeds on and leaves where it is: eventfd(2) and the
    /// like, but no pidfd.
    pub fn stays(&self) -> bool {
        self.has_anon_inode(|anon| anon.is_unnumbered() && !anon.is_pidfd())
    }

    /// Whether an offset may be named: not in a stream. A pidfd has places where nothing is.
    pub fn has_places(&self) -> bool {
        self.is_seekable() || self.has_anon_inode(AnonInode::is_pidfd)
    }

    fn has_anon_inode(&self, is_such: impl FnOnce(&AnonInode) -> bool) -> bool {
        self.inode().downcast_ref::<AnonInode>().is_some_and(is_such)
    }

    /// Whether that position ever moves.
    #[inline(always)]
    pub fn has_positions(&self) -> bool {
        self.moved_by != MovedBy::Nothing
    }

    /// Whether writing moves it, too.
    #[inline(always)]
    pub fn moves_when_written(&self) -> bool {
        self.moved_by == MovedBy::ReadsAndWrites
    }

    /// EBADF unless it was opened for reading.
    #[inline(always)]
    pub fn check_readable(&self) -> Result<()> {
        if self.can_read { Ok(()) } else { Err(Errno::EBADF) }
    }

    /// What it stands for has been read by it: for the access time, if it leaves one (O_NOATIME).
    pub fn note_read(&self) {
        if self.flags() & raw::O_NOATIME == 0 {
            self.inode().note_read();
        }
    }

    /// EBADF unless it was opened for writing.
    #[inline(always)]
    pub fn check_writable(&self) -> Result<()> {
        if self.can_write { Ok(()) } else { Err(Errno::EBADF) }
    }
}

impl File {
    /// Its contents are about to change: it no longer gives rights to who executes it. Who changes
    /// them is asked for only where it matters.
    #[inline]
    pub fn drop_privileges(&self, who: impl FnOnce() -> Subject) -> Result<()> {
        match &self.location {
            Some(location) if self.is_regular && !location.inode().state().is_plain() => {
                drop_privileges(&**location.inode(), &who())
            }
            _ => Ok(()),
        }
    }

    #[cold]
    fn report_close(&self) {
        if let Some(location) = &self.location
            && self.flags() & raw::O_PATH == 0
        {
            let wrote = self.check_writable().is_ok();
            let mask = if wrote { raw::IN_CLOSE_WRITE } else { raw::IN_CLOSE_NOWRITE };
            inotify::event(&location.dentry, mask);
        }
    }
}

impl Drop for File {
    fn drop(&mut self) {
        hooks::file_release((self,));
        let ops = self.ops.clone();
        // Its own end is nothing to be signalled about.
        if self.notice.get_mut().take().is_some() {
            inotify::end_signals(self);
        }
        for watcher in self.watchers.get_mut().iter(0).filter_map(Weak::upgrade) {
            watcher.file_closed();
        }
        ops.release(self);
        locks::file_closed(self.id, || self.inode());
        leases::file_closed(self);
        if inotify::is_active() {
            self.report_close();
        }
    }
}

/// Who is signalled about a file, and the places in its queues by which that is known.
pub struct Notice {
    /// What a higher floor has put there.
    pub settings: Arc<dyn Any + Send + Sync>,
    /// Leaves the queues with the file.
    pub registration: Option<PollTable>,
}

#[derive(Clone)]
struct Slot {
    file: Arc<File>,
    close_on_exec: bool,
}

/// The descriptors of a process (or of several that share them by CLONE_FILES).
pub struct FdTable {
    slots: SpinLock<Slots>,
    _counted: Counted<{ ObjectKind::Descriptors as usize }>,
}

#[derive(Default)]
struct Slots {
    list: Vec<Option<Slot>>,
    /// No descriptor below it is free: a search for one need not begin at 0.
    all_used_below: usize,
}

impl Slots {
    /// The lowest free descriptor from `from` on.
    fn lowest_free(&self, from: usize) -> usize {
        let start = from.max(self.all_used_below);
        let len = self.list.len();
        (start..len).find(|&fd| self.list[fd].is_none()).unwrap_or(len.max(start))
    }

    /// Makes sure that there is a place for `fd`. ENOMEM.
    fn reach(&mut self, fd: usize) -> Result<()> {
        if let Some(missing) = (fd + 1).checked_sub(self.list.len()) {
            self.list.try_reserve(missing).map_err(|_| Errno::ENOMEM)?;
            self.list.resize(self.list.len() + missing, None);
        }
        Ok(())
    }

    #[inline(always)]
    fn take(&mut self, fd: Fd) -> Option<Slot> {
        let index = self.index(fd).ok()?;
        let slot = self.list.get_mut(index)?.take()?;
        self.all_used_below = self.all_used_below.min(index);
        Some(slot)
    }

    /// The place of `fd`, which a program gave: none beyond the end is used in speculation either.
    #[inline(always)]
    fn index(&self, fd: Fd) -> Result<usize> {
        match fd as usize {
            index if index < self.list.len() => Ok(mask_index(index, self.list.len())),
            _ => Err(Errno::EBADF),
        }
    }
}

impl Default for FdTable {
    fn default() -> Self {
        Self::new()
    }
}

impl FdTable {
    /// No descriptors.
    #[must_use]
    pub fn new() -> Self {
        FdTable { slots: SpinLock::default(), _counted: Counted::new() }
    }

    /// Whether all descriptors below `limit` are in use.
    pub fn is_full(&self, limit: usize) -> bool {
        self.slots.lock().lowest_free(0) >= limit
    }

    /// The descriptors that two files would get now. EMFILE.
    pub fn next_two(&self, limit: usize) -> Result<[Fd; 2]> {
        let slots = self.slots.lock();
        let first = slots.lowest_free(0);
        let second = slots.lowest_free(first + 1);
        if second >= limit.min(max_fds()) {
            return Err(Errno::EMFILE);
        }
        Ok([first as Fd, second as Fd])
    }

    /// The file behind `fd`; EBADF.
    #[inline]
    pub fn get(&self, fd: Fd) -> Result<Arc<File>> {
        let slots = self.slots.lock();
        match slots.list.get(slots.index(fd)?) {
            Some(Some(slot)) => Ok(slot.file.clone()),
            _ => Err(Errno::EBADF),
        }
    }

    /// The files behind some descriptors, None where there is none: for who asks many, in the order
    /// of `fds`, with one turn at the lock.
    #[inline]
    pub fn get_each<const N: usize>(
        &self,
        fds: impl Iterator<Item = Fd>,
        files: &mut ArrayVec<Option<Arc<File>>, N>,
    ) {
        let slots = self.slots.lock();
        files.extend(fds.take(files.remaining_capacity()).map(|fd| {
            let slot = slots.list.get(slots.index(fd).ok()?)?.as_ref()?;
            Some(slot.file.clone())
        }));
    }

    /// Gives the file the lowest free descriptor from `from` on. `limit` is RLIMIT_NOFILE; EMFILE.
    pub fn insert(
        &self,
        file: Arc<File>,
        close_on_exec: bool,
        from: Fd,
        limit: usize,
    ) -> Result<Fd> {
        crate::base::reserve::check_reserve().map_err(|_| Errno::ENFILE)?;
        let limit = limit.min(max_fds());
        let mut slots = self.slots.lock();
        let from = from as usize;
        let fd = slots.lowest_free(from);
        if fd >= limit {
            return Err(Errno::EMFILE);
        }
        slots.reach(fd)?;
        slots.list[fd] = Some(Slot { file, close_on_exec });
        if from <= slots.all_used_below {
            slots.all_used_below = fd + 1;
        }
        Ok(fd as Fd)
    }

    /// Puts the file at exactly `fd`; what was there is returned, to be dropped by the caller.
    pub fn replace(
        &self,
        fd: Fd,
        file: Arc<File>,
        close_on_exec: bool,
        limit: usize,
    ) -> Result<Option<Arc<File>>> {
        if fd as usize >= limit.min(max_fds()) {
            return Err(Errno::EBADF);
        }
        let mut slots = self.slots.lock();
        slots.reach(fd as usize)?;
        let old = slots.list[fd as usize].replace(Slot { file, close_on_exec });
        drop(slots);
        let old = old.map(|slot| slot.file);
        if let Some(old) = &old {
            self.closed(old);
        }
        Ok(old)
    }

    /// Takes the descriptor away; the caller drops the file, outside the lock.
    #[inline(always)]
    pub fn remove(&self, fd: Fd) -> Option<Arc<File>> {
        let slot = self.slots.lock().take(fd)?;
        Some(self.taken(slot.file))
    }

    /// Not inlined: a descriptor that is none pays for no register of it.
    #[inline(never)]
    fn taken(&self, file: Arc<File>) -> Arc<File> {
        self.closed(&file);
        file
    }

    /// The close-on-exec flag of `fd`.
    pub fn close_on_exec(&self, fd: Fd) -> Result<bool> {
        let slots = self.slots.lock();
        match slots.list.get(slots.index(fd)?) {
            Some(Some(slot)) => Ok(slot.close_on_exec),
            _ => Err(Errno::EBADF),
        }
    }

    /// Sets the close-on-exec flag of `fd`.
    pub fn set_close_on_exec(&self, fd: Fd, on: bool) -> Result<()> {
        let mut slots = self.slots.lock();
        let index = slots.index(fd)?;
        match slots.list.get_mut(index) {
            Some(Some(slot)) => {
                slot.close_on_exec = on;
                Ok(())
            }
            _ => Err(Errno::EBADF),
        }
    }

    /// A copy for fork: same files, same numbers.
    pub fn duplicate(&self) -> Result<FdTable> {
        let slots = self.slots.lock();
        let mut list = Vec::new();
        list.try_reserve_exact(slots.list.len()).map_err(|_| Errno::ENOMEM)?;
        list.extend(slots.list.iter().cloned());
        let copy = Slots { list, all_used_below: slots.all_used_below };
        Ok(FdTable { slots: SpinLock::new(copy), _counted: Counted::new() })
    }

    /// Takes away every descriptor for which `wanted(fd, close_on_exec)` holds; the caller drops
    /// the files. For exec, exit and close_range(2).
    pub fn remove_where(&self, mut wanted: impl FnMut(Fd, bool) -> bool) -> Vec<Arc<File>> {
        let mut slots = self.slots.lock();
        let mut removed = Vec::new();
        for fd in 0..slots.list.len() {
            let is_wanted = |slot: &Slot| wanted(fd as Fd, slot.close_on_exec);
            if slots.list[fd].as_ref().is_some_and(is_wanted) {
                removed.extend(slots.take(fd as Fd).map(|slot| slot.file));
            }
        }
        drop(slots);
        for file in &removed {
            self.closed(file);
        }
        removed
    }

    /// What this table is to record locks: the address is its own while it exists.
    pub fn identity(&self) -> usize {
        let this: *const FdTable = self;
        this.addr()
    }

    /// A descriptor of the file is gone: so are the process's record locks on it (fcntl(2)).
    #[inline(always)]
    fn closed(&self, file: &File) {
        if locks::any_exist() {
            self.release_locks(file);
        }
        if CLOSING_IS_WATCHED.load(Ordering::Relaxed) {
            file.ops().descriptor_closed(self.identity());
        }
    }

    /// Out of the way of a close(2) while nobody holds a lock.
    #[cold]
    fn release_locks(&self, file: &File) {
        locks::descriptor_closed(self.identity(), &*file.inode());
    }

    /// Bytes queued behind the descriptors.
    pub fn held_bytes(&self) -> usize {
        self.slots.lock().list.iter().flatten().map(|slot| slot.file.ops().held_bytes()).sum()
    }

    /// How many descriptors are in use.
    pub fn count(&self) -> usize {
        self.slots.lock().list.iter().flatten().count()
    }

    /// All descriptors in use, for /proc/PID/fd.
    pub fn list(&self) -> Vec<Fd> {
        let slots = self.slots.lock();
        (0..slots.list.len()).filter(|&fd| slots.list[fd].is_some()).map(|fd| fd as Fd).collect()
    }

    /// The first `max` of those from `from` on.
    pub fn list_from(&self, from: Fd, max: usize) -> Vec<Fd> {
        let slots = self.slots.lock();
        let rest = (from..).zip(slots.list.iter().skip(from as usize));
        rest.filter(|(_, slot)| slot.is_some()).map(|(fd, _)| fd).take(max).collect()
    }
}

impl Drop for FdTable {
    fn drop(&mut self) {
        let slots = core::mem::take(self.slots.get_mut());
        for slot in slots.list.into_iter().flatten() {
            self.closed(&slot.file);
        }
    }
}
