//! The file system in memory (tmpfs(5)): the root of packed runs, /tmp, /dev/shm, memfd.
//!
//! Why it is hard: it is the reference for every operation of [`Inode`], hard links, exchange and
//! seals included, and a program may build directories as deep and files as sparse as it likes;
//! so nothing recurses over the tree, and memory is charged against the file system's limit.
//!
//! File contents are page caches without a backend: a hole is a page that is not there.
//!
//! Locks: a file's `writing` (sleeps), then the file system's `tree` (held by whoever needs more
//! than one directory), then directories, then attributes. A directory's lock is never held over a
//! drop.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use abi::{Errno, Result, general as raw};
use machine::sync::SpinLock;

use crate::base::io::{Sink, Source};
use crate::base::names::{NameMap, Named};
use crate::base::sync::Mutex;
use crate::drivers::chrdev;
use crate::fs::xattrs::Xattrs;
use crate::page_cache::huge::HugeFiles;
use crate::page_cache::{Keeper, PageCache};
use crate::vfs::attributes::{Attributes, now_ns};
use crate::vfs::{
    DirEntry, File, FileOps, FileSystem, FileType, Handles, Inode, InodeState, Metadata, NewObject,
    Renaming, SetAttributes, Statistics,
};

const PAGE: u64 = 4096;
const DAY_NS: i64 = 86_400 * 1_000_000_000;
/// What a directory entry counts for in the size of a directory.
const ENTRY_SIZE: u64 = 20;

/// Limits of one file system.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Pages of file contents.
    pub pages: usize,
    /// Objects.
    pub inodes: usize,
}

impl Limits {
    /// As much as there is memory.
    pub const NONE: Limits = Limits { pages: usize::MAX / 4096, inodes: usize::MAX };
}

impl Default for Limits {
    /// Half of the machine's memory, as tmpfs(5) has it.
    fn default() -> Self {
        let (total, _) = machine::frame::usage();
        Limits { pages: total / 2, inodes: (total / 2).max(1024) }
    }
}

/// A file system in memory.
pub struct TmpFs {
    shared: Arc<Shared>,
    root: Arc<TmpInode>,
    name: &'static str,
}

/// What the objects of one file system share.
struct Shared {
    device: u64,
    /// The most of `pages` and of `inodes`.
    most_pages: AtomicUsize,
    most_inodes: AtomicUsize,
    pages: AtomicUsize,
    inodes: AtomicUsize,
    /// Whether files come by 2 MiB; None: as for files without a mount.
    huge: SpinLock<Option<HugeFiles>>,
    next: AtomicU64,
    handles: Handles,
    /// Held by whoever locks more than one directory.
    tree: SpinLock<()>,
    fs: SpinLock<Weak<TmpFs>>,
}

impl TmpFs {
    /// An empty file system whose top directory has permission bits `mode`.
    #[must_use]
    pub fn new(name: &'static str, mode: u32, limits: Limits) -> Arc<TmpFs> {
        let shared = Arc::new(Shared {
            device: crate::vfs::anonymous_device(),
            most_pages: AtomicUsize::new(limits.pages),
            most_inodes: AtomicUsize::new(limits.inodes),
            pages: AtomicUsize::new(0),
            inodes: AtomicUsize::new(0),
            huge: SpinLock::new(Some(HugeFiles::Never)),
            next: AtomicU64::new(1),
            handles: Handles::default(),
            tree: SpinLock::new(()),
            fs: SpinLock::new(Weak::new()),
        });
        let root = NewObject {
            file_type: FileType::Directory,
            mode,
            uid: 0,
            gid: 0,
            rdev: 0,
            target: b"",
        };
        let root = TmpInode::make(&shared, &root, 2);
        let fs = Arc::new(TmpFs { shared: shared.clone(), root, name });
        *shared.fs.lock() = Arc::downgrade(&fs);
        fs
    }

    /// Changes the limits (remounting).
    pub fn set_limits(&self, limits: Limits) {
        self.shared.most_pages.store(limits.pages, Ordering::Relaxed);
        self.shared.most_inodes.store(limits.inodes, Ordering::Relaxed);
    }

    /// The limits.
    pub fn limits(&self) -> Limits {
        Limits {
            pages: self.shared.most_pages.load(Ordering::Relaxed),
            inodes: self.shared.most_inodes.load(Ordering::Relaxed),
        }
    }

    /// Whether files come by 2 MiB (`huge=`); None: as for files without a mount.
    pub fn set_huge(&self, huge: Option<HugeFiles>) {
        *self.shared.huge.lock() = huge;
    }

    /// A regular file that has no name and cannot be given one (memfd_create(2)).
    pub fn nameless_file(&self, mode: u32, uid: u32, gid: u32) -> Result<Arc<TmpInode>> {
        let file_type = FileType::Regular;
        let new = NewObject { file_type, mode, uid, gid, rdev: 0, target: b"" };
        self.root.new_object(&new, 0)
    }

    /// Owner of the top directory, from the mount options.
    pub fn set_root_owner(&self, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        self.root.set_attributes(&SetAttributes { uid, gid, ..SetAttributes::default() })
    }
}

impl Keeper for Shared {
    fn take_room(&self, pages: usize) -> bool {
        let before = self.pages.fetch_add(pages, Ordering::Relaxed);
        let is_room = before + pages <= self.most_pages.load(Ordering::Relaxed);
        if !is_room {
            self.give_room(pages);
        }
        is_room
    }

    fn give_room(&self, pages: usize) {
        self.pages.fetch_sub(pages, Ordering::Relaxed);
    }

    fn room(&self) -> u64 {
        let most = self.most_pages.load(Ordering::Relaxed);
        most.saturating_sub(self.pages.load(Ordering::Relaxed)) as u64
    }

    fn huge(&self) -> Option<HugeFiles> {
        *self.huge.lock()
    }
}

impl FileSystem for TmpFs {
    fn root(&self) -> Arc<dyn Inode> {
        self.root.clone()
    }

    fn name(&self) -> &'static str {
        self.name
    }

    fn has_inode_flags(&self) -> bool {
        true
    }

    fn handles(&self) -> Option<&Handles> {
        Some(&self.shared.handles)
    }

    fn statistics(&self) -> Statistics {
        let limits = self.limits();
        let used = self.shared.pages.load(Ordering::Relaxed);
        let inodes = self.shared.inodes.load(Ordering::Relaxed);
        Statistics {
            magic: raw::TMPFS_MAGIC.into(),
            block_size: PAGE,
            blocks: limits.pages as u64,
            free: limits.pages.saturating_sub(used) as u64,
            files: limits.inodes as u64,
            free_files: limits.inodes.saturating_sub(inodes) as u64,
        }
    }

    fn options(&self) -> Vec<u8> {
        let kib = self.limits().pages as u64 * PAGE / 1024;
        let mode = self.root.attributes.lock().mode;
        let huge = self.shared.huge.lock().and_then(HugeFiles::as_option);
        let huge = huge.map_or(String::new(), |name| alloc::format!(",huge={name}"));
        alloc::format!(",size={kib}k,mode={mode:o}{huge}").into_bytes()
    }
}

/// An object of a [`TmpFs`].
pub struct TmpInode {
    this: Weak<TmpInode>,
    shared: Arc<Shared>,
    number: u64,
    file_type: FileType,
    rdev: u64,
    attributes: SpinLock<Attributes>,
    xattrs: SpinLock<Xattrs>,
    state: InodeState,
    content: Content,
}

enum Content {
    Directory(SpinLock<Directory>),
    Regular(Regular),
    Symlink(Box<[u8]>),
    Special,
}

/// The position of readdir behind all entries: one for all directories, which programs see as
/// `i32::MAX` behind those of `.` and `..`.
const END_OF_DIRECTORY: u64 = i32::MAX as u64 - 2;

/// An object under a name of a directory.
struct TmpfsEntry {
    name: Arc<[u8]>,
    /// Its position for readdir.
    cookie: u64,
    inode: Arc<TmpInode>,
}

impl Named for TmpfsEntry {
    fn name(&self) -> &[u8] {
        &self.name
    }
}

#[derive(Default)]
struct Directory {
    entries: NameMap<TmpfsEntry>,
    /// The same in the order they were made: positions of readdir stay valid as names come and go.
    order: BTreeMap<u64, (Arc<[u8]>, Arc<TmpInode>)>,
    /// The newest entry's.
    newest: u64,
    /// Removed: nothing can be made in it any more.
    dead: bool,
}

struct Regular {
    cache: Arc<PageCache>,
    /// Held while contents are written or resized.
    writing: Mutex<()>,
    /// fcntl(2)'s F_SEAL bits.
    seals: AtomicU32,
}

impl Directory {
    fn insert(&mut self, name: &[u8], inode: Arc<TmpInode>) {
        let name: Arc<[u8]> = name.into();
        self.newest += 1;
        let cookie = self.newest;
        self.order.insert(cookie, (name.clone(), inode.clone()));
        self.entries.insert(TmpfsEntry { name, cookie, inode });
    }

    fn remove(&mut self, name: &[u8]) -> Option<Arc<TmpInode>> {
        let entry = self.entries.remove(name)?;
        self.order.remove(&entry.cookie);
        Some(entry.inode)
    }

    fn get(&self, name: &[u8]) -> Option<&Arc<TmpInode>> {
        self.entries.get(name).map(|entry| &entry.inode)
    }
}

impl TmpInode {
    fn make(shared: &Arc<Shared>, new: &NewObject<'_>, links: u64) -> Arc<TmpInode> {
        shared.inodes.fetch_add(1, Ordering::Relaxed);
        let content = match new.file_type {
            FileType::Directory => Content::Directory(SpinLock::default()),
            FileType::Regular => Content::Regular(Regular {
                cache: PageCache::kept_by(shared.clone()),
                writing: Mutex::new(()),
                seals: AtomicU32::new(raw::F_SEAL_SEAL),
            }),
            FileType::Symlink => Content::Symlink(new.target.into()),
            _ => Content::Special,
        };
        Arc::new_cyclic(|this| TmpInode {
            this: this.clone(),
            shared: shared.clone(),
            number: shared.next.fetch_add(1, Ordering::Relaxed),
            file_type: new.file_type,
            rdev: new.rdev,
            attributes: SpinLock::new(Attributes::new(new.mode, (new.uid, new.gid), links)),
            xattrs: SpinLock::new(Xattrs::default()),
            state: InodeState::default(),
            content,
        })
    }

    fn new_object(&self, new: &NewObject<'_>, links: u64) -> Result<Arc<TmpInode>> {
        let most = self.shared.most_inodes.load(Ordering::Relaxed);
        if self.shared.inodes.load(Ordering::Relaxed) >= most {
            return Err(Errno::ENOSPC);
        }
        Ok(Self::make(&self.shared, new, links))
    }

    fn directory(&self) -> Result<&SpinLock<Directory>> {
        match &self.content {
            Content::Directory(directory) => Ok(directory),
            _ => Err(Errno::ENOTDIR),
        }
    }

    fn regular(&self) -> Result<&Regular> {
        match &self.content {
            Content::Regular(regular) => Ok(regular),
            Content::Directory(_) => Err(Errno::EISDIR),
            _ => Err(Errno::EINVAL),
        }
    }

    /// Both content-change times of a directory or file.
    fn touch(&self) {
        let now_ns = now_ns();
        let mut attributes = self.attributes.lock();
        attributes.mtime_ns = now_ns;
        attributes.ctime_ns = now_ns;
    }

    fn change_links(&self, change: i64) {
        let mut attributes = self.attributes.lock();
        attributes.links = attributes.links.saturating_add_signed(change);
        attributes.ctime_ns = now_ns();
    }

    fn is_directory(&self) -> bool {
        matches!(self.content, Content::Directory(_))
    }

    /// Marks an empty directory removed; ENOTEMPTY. Its parent is locked.
    fn kill(&self) -> Result<()> {
        if let Content::Directory(directory) = &self.content {
            let mut directory = directory.lock();
            if !directory.entries.is_empty() {
                return Err(Errno::ENOTEMPTY);
            }
            directory.dead = true;
        }
        Ok(())
    }

    /// Seals of a memfd; `None` for what cannot be sealed at all.
    pub fn seals(&self) -> Option<u32> {
        match &self.content {
            Content::Regular(regular) => Some(regular.seals.load(Ordering::Acquire)),
            _ => None,
        }
    }

    /// Replaces all seals: for a new memfd.
    pub fn set_seals(&self, seals: u32) {
        if let Content::Regular(regular) = &self.content {
            regular.seals.store(seals, Ordering::Release);
        }
    }

    /// Adds seals (F_ADD_SEALS); EPERM once sealed against it. What is to stay executable is not
    /// to be written either.
    pub fn add_seals(&self, seals: u32) -> Result<()> {
        const CONTENTS: u32 =
            raw::F_SEAL_SHRINK | raw::F_SEAL_GROW | raw::F_SEAL_WRITE | raw::F_SEAL_FUTURE_WRITE;
        let regular = self.regular().map_err(|_| Errno::EINVAL)?;
        let _writing = regular.writing.lock();
        let old = regular.seals.load(Ordering::Acquire);
        if old & raw::F_SEAL_SEAL != 0 {
            return Err(Errno::EPERM);
        }
        // Modes change their execute bits under `writing` only.
        let stays_executable =
            seals & raw::F_SEAL_EXEC != 0 && self.attributes.lock().mode & 0o111 != 0;
        let seals = if stays_executable { seals | CONTENTS } else { seals };
        if seals & raw::F_SEAL_WRITE != 0 && regular.cache.is_mapped_writable() {
            return Err(Errno::EBUSY);
        }
        regular.seals.store(old | seals, Ordering::Release);
        Ok(())
    }
}

impl Drop for TmpInode {
    /// A directory's children go one by one: a tree is as deep as a program likes.
    fn drop(&mut self) {
        self.shared.inodes.fetch_sub(1, Ordering::Relaxed);
        if let Content::Directory(directory) = &mut self.content {
            let mut left: Vec<Arc<TmpInode>> = Vec::new();
            let take = |directory: &mut SpinLock<Directory>, left: &mut Vec<_>| {
                let Directory { entries, order, .. } = core::mem::take(directory.get_mut());
                left.extend(entries.into_values().map(|entry| entry.inode));
                // No child's last reference: `left` has them all.
                drop(order);
            };
            take(directory, &mut left);
            while let Some(inode) = left.pop() {
                if let Some(mut inode) = Arc::into_inner(inode)
                    && let Content::Directory(directory) = &mut inode.content
                {
                    take(directory, &mut left);
                }
            }
        }
    }
}

impl Regular {
    fn resize(&self, size: u64) -> Result<()> {
        let _writing = self.writing.lock();
        self.resize_locked(size)
    }

    fn resize_locked(&self, size: u64) -> Result<()> {
        let (old, seals) = (self.cache.size(), self.seals.load(Ordering::Acquire));
        if size < old && seals & raw::F_SEAL_SHRINK != 0
            || size > old && seals & raw::F_SEAL_GROW != 0
        {
            return Err(Errno::EPERM);
        }
        self.cache.set_size(size)
    }

    fn write(&self, file: &File, at: u64, from: &mut Source<'_>) -> Result<usize> {
        let _writing = self.writing.lock();
        let len = from.left() as u64;
        if len == 0 {
            return Ok(0);
        }
        let size = self.cache.size();
        let append = from.appends(file.flags());
        let at = if append { size } else { at };
        let seals = self.seals.load(Ordering::Acquire);
        if seals & (raw::F_SEAL_WRITE | raw::F_SEAL_FUTURE_WRITE) != 0
            || seals & raw::F_SEAL_GROW != 0 && at.saturating_add(len) > size
        {
            // That there is nothing to write is told first.
            return from.probe().and(Err(Errno::EPERM));
        }
        // What there is room for is written, as write(2) has it.
        let result = self.cache.write(at, from);
        if result.is_err() {
            self.cache.forget_behind_end(at / PAGE);
        }
        result
    }
}

/// A symbolic link whose text with its end is no longer than this takes no page.
const SHORT_LINK_BYTES: usize = 128;

impl Inode for TmpInode {
    fn metadata(&self) -> Result<Metadata> {
        let (size, pages) = match &self.content {
            Content::Directory(directory) => {
                (ENTRY_SIZE * (directory.lock().entries.len() as u64 + 2), 0)
            }
            Content::Regular(regular) => {
                (regular.cache.size(), regular.cache.resident_pages() as u64)
            }
            // A long one takes a page, as on Linux.
            Content::Symlink(target) => {
                (target.len() as u64, u64::from(target.len() >= SHORT_LINK_BYTES))
            }
            Content::Special => (0, 0),
        };
        let attributes = self.attributes.lock();
        Ok(Metadata {
            device: self.shared.device,
            inode: self.number,
            file_type: self.file_type,
            mode: attributes.mode,
            links: attributes.links,
            uid: attributes.uid,
            gid: attributes.gid,
            rdev: self.rdev,
            size,
            blocks: pages * (PAGE / 512),
            block_size: PAGE,
            atime_ns: attributes.atime_ns,
            mtime_ns: attributes.mtime_ns,
            ctime_ns: attributes.ctime_ns,
            btime_ns: Some(attributes.btime_ns),
        })
    }

    fn number(&self) -> Result<u64> {
        Ok(self.number)
    }

    fn note_read(&self) {
        self.accessed();
    }

    fn note_written(&self) {
        self.touch();
    }

    fn set_attributes(&self, changes: &SetAttributes) -> Result<()> {
        if let Some(size) = changes.size {
            self.regular()?.resize(size)?;
        }
        let turns_exec = |old: u32| changes.mode.is_some_and(|mode| (mode ^ old) & 0o111 != 0);
        // Not while seals are added.
        let regular = self.regular().ok().filter(|_| turns_exec(self.attributes.lock().mode));
        let _writing = regular.map(|regular| regular.writing.lock());
        let exec_sealed = self.seals().is_some_and(|seals| seals & raw::F_SEAL_EXEC != 0);
        let mut attributes = self.attributes.lock();
        if exec_sealed && turns_exec(attributes.mode) {
            return Err(Errno::EPERM);
        }
        attributes.change(changes);
        Ok(())
    }

    fn file_type(&self) -> FileType {
        self.file_type
    }

    fn file_system(&self) -> Arc<dyn FileSystem> {
        if let Some(fs) = self.shared.fs.lock().upgrade() {
            return fs;
        }
        // Unmounted, but the object is still in use: a view of what is left.
        let shared = self.shared.clone();
        Arc::new(TmpFs {
            root: self.this.upgrade().unwrap_or_else(|| self.orphan()),
            shared,
            name: "tmpfs",
        })
    }

    fn open(self: Arc<Self>, flags: u32) -> Result<Arc<dyn FileOps>> {
        match &self.content {
            Content::Directory(_) | Content::Regular(_) => Ok(self),
            Content::Symlink(_) => Err(Errno::ELOOP),
            Content::Special => {
                let rdev = self.rdev;
                chrdev::open(self, rdev, flags)
            }
        }
    }

    fn lookup(&self, name: &[u8]) -> Result<Arc<dyn Inode>> {
        let found = self.directory()?.lock().get(name).cloned();
        Ok(found.ok_or(Errno::ENOENT)?)
    }

    fn create_if(
        &self,
        name: &[u8],
        new: &NewObject<'_>,
        admit: &dyn Fn(&dyn Inode) -> Result<()>,
    ) -> Result<Arc<dyn Inode>> {
        let directory = self.directory()?;
        let is_directory = new.file_type == FileType::Directory;
        let inode = self.new_object(new, if is_directory { 2 } else { 1 })?;
        admit(inode.as_ref())?;
        {
            let mut entries = directory.lock();
            if entries.dead {
                return Err(Errno::ENOENT);
            }
            if entries.get(name).is_some() {
                return Err(Errno::EEXIST);
            }
            entries.insert(name, inode.clone());
        }
        if is_directory {
            self.change_links(1);
        }
        self.touch();
        Ok(inode)
    }

    fn create_unnamed(&self, new: &NewObject<'_>) -> Result<Arc<dyn Inode>> {
        self.directory()?;
        Ok(self.new_object(new, 0)?)
    }

    fn link(&self, name: &[u8], target: &Arc<dyn Inode>) -> Result<()> {
        let inode = self.same_fs(target)?;
        if inode.is_directory() {
            return Err(Errno::EPERM);
        }
        {
            let mut entries = self.directory()?.lock();
            if entries.dead {
                return Err(Errno::ENOENT);
            }
            if entries.get(name).is_some() {
                return Err(Errno::EEXIST);
            }
            entries.insert(name, inode.clone());
        }
        inode.change_links(1);
        self.touch();
        Ok(())
    }

    fn unlink(&self, name: &[u8]) -> Result<()> {
        let removed = {
            let mut entries = self.directory()?.lock();
            if entries.get(name).ok_or(Errno::ENOENT)?.is_directory() {
                return Err(Errno::EISDIR);
            }
            entries.remove(name)
        };
        if let Some(inode) = removed {
            inode.change_links(-1);
        }
        self.touch();
        Ok(())
    }

    fn rmdir(&self, name: &[u8]) -> Result<()> {
        let removed = {
            let _tree = self.shared.tree.lock();
            let mut entries = self.directory()?.lock();
            let victim = entries.get(name).ok_or(Errno::ENOENT)?;
            if !victim.is_directory() {
                return Err(Errno::ENOTDIR);
            }
            victim.kill()?;
            entries.remove(name)
        };
        if let Some(inode) = removed {
            inode.change_links(-2);
        }
        self.change_links(-1);
        self.touch();
        Ok(())
    }

    fn rename(&self, name: &[u8], to: &Arc<dyn Inode>, new: &[u8], how: &Renaming) -> Result<()> {
        let to = self.same_fs(to)?;
        let flags = how.flags;
        let whiteout = if flags & raw::RENAME_WHITEOUT != 0 {
            let file_type = FileType::CharDevice;
            let (uid, gid) = how.owner;
            let new = NewObject { file_type, mode: 0, uid, gid, rdev: 0, target: b"" };
            Some(self.new_object(&new, 1)?)
        } else {
            None
        };
        if flags & raw::RENAME_EXCHANGE != 0 {
            return self.exchange(name, &to, new);
        }
        self.replace(name, &to, new, flags & raw::RENAME_NOREPLACE != 0, whiteout)
    }

    fn read_dir(&self, from: u64, max: usize) -> Result<Vec<DirEntry>> {
        let directory = self.directory()?.lock();
        let mut found = Vec::new();
        let most = max.min(directory.order.len());
        found.try_reserve_exact(most).map_err(|_| Errno::ENOMEM)?;
        // The newest come first: who reads on does not see what was made meanwhile. Each position
        // is its entry's, and one without an entry is the next older one's.
        let first = match from {
            0 => u64::MAX,
            END_OF_DIRECTORY => 0,
            from => from,
        };
        let mut entries = directory.order.range(..=first).rev().peekable();
        while let Some((_, (name, inode))) = entries.next().filter(|_| found.len() < most) {
            found.push(DirEntry {
                name: name.clone(),
                inode: inode.number,
                file_type: inode.file_type,
                next: entries.peek().map_or(END_OF_DIRECTORY, |(cookie, _)| **cookie),
            });
        }
        Ok(found)
    }

    fn directory_end(&self) -> Option<u64> {
        Some(END_OF_DIRECTORY)
    }

    fn read_link(&self) -> Result<Vec<u8>> {
        match &self.content {
            Content::Symlink(target) => Ok(target.to_vec()),
            _ => Err(Errno::EINVAL),
        }
    }

    fn state(&self) -> &InodeState {
        &self.state
    }

    fn page_cache(&self) -> Option<Arc<PageCache>> {
        self.regular().ok().map(|regular| regular.cache.clone())
    }

    fn is_write_sealed(&self) -> bool {
        let sealed = raw::F_SEAL_WRITE | raw::F_SEAL_FUTURE_WRITE;
        self.seals().is_some_and(|seals| seals & sealed != 0)
    }

    fn allocate(&self, mode: u32, offset: u64, len: u64) -> Result<()> {
        let regular = self.regular().map_err(|_| Errno::ENODEV)?;
        let end = offset.checked_add(len).ok_or(Errno::EFBIG)?;
        let _writing = regular.writing.lock();
        let seals = regular.seals.load(Ordering::Acquire);
        let size = regular.cache.size();
        let keep_size = mode & raw::FALLOC_FL_KEEP_SIZE != 0;
        let punch = raw::FALLOC_FL_PUNCH_HOLE | raw::FALLOC_FL_KEEP_SIZE;
        let changes = mode & (raw::FALLOC_FL_PUNCH_HOLE | raw::FALLOC_FL_ZERO_RANGE) != 0;
        if changes && seals & (raw::F_SEAL_WRITE | raw::F_SEAL_FUTURE_WRITE) != 0
            || !keep_size && end > size && seals & raw::F_SEAL_GROW != 0
        {
            return Err(Errno::EPERM);
        }
        match mode & !raw::FALLOC_FL_KEEP_SIZE {
            _ if mode == punch => regular.cache.punch(offset, len),
            0 => regular.cache.reserve(offset, len)?,
            raw::FALLOC_FL_ZERO_RANGE => {
                // Where there is no room nothing is lost.
                regular.cache.reserve(offset, len)?;
                regular.cache.punch(offset, len);
                regular.cache.reserve(offset, len)?;
            }
            _ => return Err(Errno::EOPNOTSUPP),
        }
        if !keep_size && end > size {
            regular.cache.set_size(end)?;
        }
        self.touch();
        Ok(())
    }

    fn get_xattr(&self, name: &[u8]) -> Result<Vec<u8>> {
        self.xattrs.lock().get(name)
    }

    fn set_xattr(&self, name: &[u8], value: &[u8], flags: u32) -> Result<()> {
        let old = self.xattrs.lock().set(name, value, flags)?;
        drop(old);
        self.attributes.lock().ctime_ns = now_ns();
        Ok(())
    }

    fn list_xattr(&self) -> Result<Vec<u8>> {
        Ok(self.xattrs.lock().names())
    }

    fn remove_xattr(&self, name: &[u8]) -> Result<()> {
        let old = self.xattrs.lock().remove(name)?;
        drop(old);
        self.attributes.lock().ctime_ns = now_ns();
        Ok(())
    }
}

impl TmpInode {
    fn same_fs(&self, other: &Arc<dyn Inode>) -> Result<Arc<TmpInode>> {
        let other = other.downcast_ref::<TmpInode>().ok_or(Errno::EXDEV)?;
        if !Arc::ptr_eq(&self.shared, &other.shared) {
            return Err(Errno::EXDEV);
        }
        other.this.upgrade().ok_or(Errno::ENOENT)
    }

    /// A stand-in for the top directory of a file system that is gone.
    fn orphan(&self) -> Arc<TmpInode> {
        let file_type = FileType::Directory;
        let new = NewObject { file_type, mode: 0, uid: 0, gid: 0, rdev: 0, target: b"" };
        TmpInode::make(&self.shared, &new, 0)
    }

    /// Runs `change` with one or two directories locked; the second is None if both are one.
    fn with_both<T>(
        &self,
        other: &TmpInode,
        change: impl FnOnce(&mut Directory, Option<&mut Directory>) -> Result<T>,
    ) -> Result<T> {
        let (mine, others) = (self.directory()?, other.directory()?);
        // Only holders of `tree` lock two directories, so their order does not matter.
        let _tree = self.shared.tree.lock();
        let mut mine = mine.lock();
        if core::ptr::eq(self, other) {
            change(&mut mine, None)
        } else {
            change(&mut mine, Some(&mut others.lock()))
        }
    }

    fn replace(
        &self,
        name: &[u8],
        to: &Arc<TmpInode>,
        new: &[u8],
        keep: bool,
        whiteout: Option<Arc<TmpInode>>,
    ) -> Result<()> {
        let outcome = self.with_both(to, |mine, other| {
            let source = mine.get(name).cloned().ok_or(Errno::ENOENT)?;
            let target = match &other {
                Some(other) if other.dead => return Err(Errno::ENOENT),
                Some(other) => other.get(new).cloned(),
                None => mine.get(new).cloned(),
            };
            if let Some(target) = &target {
                if keep {
                    return Err(Errno::EEXIST);
                }
                if Arc::ptr_eq(target, &source) {
                    return Ok(None);
                }
                match (source.is_directory(), target.is_directory()) {
                    (false, true) => return Err(Errno::EISDIR),
                    (true, false) => return Err(Errno::ENOTDIR),
                    _ => target.kill()?,
                }
            }
            mine.remove(name);
            let into = match other {
                Some(other) => {
                    if let Some(whiteout) = whiteout {
                        mine.insert(name, whiteout);
                    }
                    other
                }
                None => {
                    if let Some(whiteout) = whiteout {
                        mine.insert(name, whiteout);
                    }
                    mine
                }
            };
            into.remove(new);
            into.insert(new, source.clone());
            Ok(Some((source, target)))
        })?;
        let Some((source, target)) = outcome else { return Ok(()) };
        if source.is_directory() {
            self.change_links(-1);
            to.change_links(1);
        }
        if let Some(target) = target {
            if target.is_directory() {
                to.change_links(-1);
                target.change_links(-2);
            } else {
                target.change_links(-1);
            }
        }
        source.attributes.lock().ctime_ns = now_ns();
        self.touch();
        to.touch();
        Ok(())
    }

    fn exchange(&self, name: &[u8], to: &Arc<TmpInode>, new: &[u8]) -> Result<()> {
        let (one, two) = self.with_both(to, |mine, other| {
            let one = mine.get(name).cloned().ok_or(Errno::ENOENT)?;
            let found = match &other {
                Some(other) => other.get(new),
                None => mine.get(new),
            };
            let two = found.cloned().ok_or(Errno::ENOENT)?;
            mine.remove(name);
            mine.insert(name, two.clone());
            let into = other.unwrap_or(mine);
            into.remove(new);
            into.insert(new, one.clone());
            Ok((one, two))
        })?;
        if one.is_directory() != two.is_directory() {
            let change = if one.is_directory() { 1 } else { -1 };
            to.change_links(change);
            self.change_links(-change);
        }
        for inode in [&one, &two] {
            inode.attributes.lock().ctime_ns = now_ns();
        }
        self.touch();
        to.touch();
        Ok(())
    }

    /// Access time, as with relatime: only if it would otherwise look unread, or once a day.
    fn accessed(&self) {
        if self.state.flags() & raw::FS_NOATIME_FL != 0 {
            return;
        }
        let mut attributes = self.attributes.lock();
        let changed_ns = attributes.mtime_ns.max(attributes.ctime_ns);
        if attributes.atime_ns <= changed_ns {
            attributes.atime_ns = now_ns();
        } else {
            let now_ns = now_ns();
            if now_ns - attributes.atime_ns > DAY_NS {
                attributes.atime_ns = now_ns;
            }
        }
    }
}

impl FileOps for TmpInode {
    fn read_at(&self, file: &File, offset: u64, sink: &mut Sink<'_>) -> Result<usize> {
        let regular = self.regular()?;
        let read = regular.cache.read(offset, sink);
        if file.flags() & raw::O_NOATIME == 0 {
            self.accessed();
        }
        read
    }

    fn write_at(&self, file: &File, offset: u64, source: &mut Source<'_>) -> Result<usize> {
        let regular = self.regular()?;
        let written = regular.write(file, offset, source)?;
        if written > 0 {
            self.touch();
        }
        Ok(written)
    }

    fn is_seekable(&self) -> bool {
        true
    }

    fn inode(&self) -> Arc<dyn Inode> {
        match self.this.upgrade() {
            Some(inode) => inode,
            None => self.orphan(),
        }
    }
}

/// A file system with tmpfs(5)'s mount options; EINVAL for what they do not name.
pub fn mount_with(name: &'static str, options: &[u8]) -> Result<Arc<dyn FileSystem>> {
    let mut limits = Limits::default();
    let (mut mode, mut uid, mut gid) = (0o1777, None, None);
    let mut huge = HugeFiles::Never;
    for option in options.split(|&byte| byte == b',').filter(|option| !option.is_empty()) {
        let option = core::str::from_utf8(option).map_err(|_| Errno::EINVAL)?;
        let (key, value) = option.split_once('=').unwrap_or((option, ""));
        let number = || value.parse::<u32>().map_err(|_| Errno::EINVAL);
        match key {
            "size" => limits.pages = parse_size(value)?.div_ceil(PAGE) as usize,
            "nr_blocks" => limits.pages = parse_size(value)? as usize,
            "nr_inodes" => limits.inodes = parse_size(value)? as usize,
            "mode" => mode = u32::from_str_radix(value, 8).map_err(|_| Errno::EINVAL)? & 0o7777,
            "uid" => uid = Some(number()?),
            "gid" => gid = Some(number()?),
            "huge" => huge = HugeFiles::of_mount(value).ok_or(Errno::EINVAL)?,
            "mpol" | "inode32" | "inode64" | "noswap" => {}
            _ => return Err(Errno::EINVAL),
        }
    }
    if limits.pages == 0 {
        // tmpfs(5): no limit.
        limits.pages = Limits::NONE.pages;
    }
    if limits.inodes == 0 {
        limits.inodes = Limits::NONE.inodes;
    }
    let fs = TmpFs::new(name, mode, limits);
    fs.set_huge(Some(huge));
    if uid.is_some() || gid.is_some() {
        fs.set_root_owner(uid, gid)?;
    }
    Ok(fs)
}

/// A number with `k`, `m` or `g`, or a percentage of memory.
fn parse_size(text: &str) -> Result<u64> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let number: u64 = digits.parse().map_err(|_| Errno::EINVAL)?;
    let unit = match &text[digits.len()..] {
        "" => 1,
        "k" | "K" => 1 << 10,
        "m" | "M" => 1 << 20,
        "g" | "G" => 1 << 30,
        "%" => machine::frame::usage().0 as u64 * PAGE / 100,
        _ => return Err(Errno::EINVAL),
    };
    number.checked_mul(unit).ok_or(Errno::EINVAL)
}
