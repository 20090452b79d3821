//! Objects of the server: what is known of them, and the operations on directories.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use abi::{Errno, Result, general as raw};
use formats::ninep::{Attributes, Qid, SetAttr, entries, set};
use machine::sync::{Once, SpinLock};

use super::file::NinepFile;
use super::{Fid, NinepFs};
use crate::base::sync::Mutex;
use crate::base::time::now_ns;
use crate::drivers::chrdev;
use crate::fs::xattrs::names_of_server;
use crate::fs::{NAME_MAX, is_name};
use crate::page_cache::PageCache;
use crate::vfs::{
    DirEntry, FileOps, FileSystem, FileType, Inode, InodeState, Metadata, NewObject, Renaming,
    SetAttributes,
};

/// How long attributes are believed, nanoseconds.
const FRESH_NS: u64 = 1_000_000_000;
/// Bytes of directory entries asked for at once.
const DIRECTORY_BYTES: usize = 32_768;
/// What an entry takes in a reply at most.
const ENTRY_BYTES: usize = 24 + NAME_MAX;
/// Replies in a row without a name that counts: two would do, for `.` and `..`.
const EMPTY_REPLIES_MAX: usize = 16;

/// An object of the server.
pub struct NinepInode {
    pub(super) fs: Arc<NinepFs>,
    pub(super) me: Weak<NinepInode>,
    pub(super) number: u64,
    kind: FileType,
    fid: SpinLock<Arc<Fid>>,
    state: SpinLock<CachedMetadata>,
    /// Open for reading at the server.
    pub(super) reader: SpinLock<Option<Arc<Fid>>>,
    /// Open for writing at the server.
    pub(super) writer: SpinLock<Option<Arc<Fid>>>,
    pub(super) cache: Once<Arc<PageCache>>,
    /// Held while data changes.
    pub(super) writing: Mutex<()>,
    attached: InodeState,
    /// Bytes written since the last write-back.
    pub(super) dirty_bytes: AtomicUsize,
    /// Open files that can write.
    pub(super) writers: AtomicUsize,
    /// Its last name was removed here: the server can no longer be asked by name.
    orphan: AtomicBool,
}

struct CachedMetadata {
    metadata: Metadata,
    fresh_until_ns: u64,
}

fn to_ns((seconds, nanoseconds): (u64, u64)) -> i64 {
    (seconds as i64).saturating_mul(1_000_000_000).saturating_add(nanoseconds as i64)
}

fn from_ns(ns: i64) -> (u64, u64) {
    (ns.div_euclid(1_000_000_000) as u64, ns.rem_euclid(1_000_000_000) as u64)
}

/// The server's attributes as ours. EIO for a type that does not exist, or that the qid denies.
fn to_metadata(device: u64, a: &Attributes) -> Result<Metadata> {
    let file_type = FileType::from_mode(a.mode).ok_or(Errno::EIO)?;
    if (a.qid.kind & Qid::DIRECTORY != 0) != (file_type == FileType::Directory) {
        return Err(Errno::EIO);
    }
    Ok(Metadata {
        device,
        inode: a.qid.path,
        file_type,
        mode: a.mode & 0o7777,
        links: a.links,
        uid: a.uid,
        gid: a.gid,
        rdev: a.rdev,
        size: a.size.min(crate::page_cache::MAX_FILE_SIZE),
        blocks: a.blocks,
        block_size: a.block_size,
        atime_ns: to_ns(a.atime),
        mtime_ns: to_ns(a.mtime),
        ctime_ns: to_ns(a.ctime),
        btime_ns: None,
    })
}

impl NinepInode {
    /// The object that `fid` names: the known one, if it is known.
    pub(super) fn new(fs: &Arc<NinepFs>, fid: Fid, a: &Attributes) -> Result<Arc<NinepInode>> {
        let metadata = to_metadata(fs.device, a)?;
        let fid = Arc::new(fid);
        let known = fs.inodes.lock().get(&a.qid.path).and_then(Weak::upgrade);
        if let Some(known) = known.filter(|known| known.kind == metadata.file_type) {
            // The newer name is the one that is sure to exist.
            let old = core::mem::replace(&mut *known.fid.lock(), fid);
            drop(old);
            known.update(metadata)?;
            return Ok(known);
        }
        let inode = Arc::new_cyclic(|me| NinepInode {
            fs: fs.clone(),
            me: me.clone(),
            number: a.qid.path,
            kind: metadata.file_type,
            fid: SpinLock::new(fid),
            state: SpinLock::new(CachedMetadata { metadata, fresh_until_ns: now_ns() + FRESH_NS }),
            reader: SpinLock::new(None),
            writer: SpinLock::new(None),
            cache: Once::new(),
            writing: Mutex::new(()),
            attached: InodeState::default(),
            dirty_bytes: AtomicUsize::new(0),
            writers: AtomicUsize::new(0),
            orphan: AtomicBool::new(false),
        });
        // Somebody else may have found the same object meanwhile; there must be one of it.
        let first = {
            let mut inodes = fs.inodes.lock();
            let first = inodes.get(&a.qid.path).and_then(Weak::upgrade);
            let first = first.filter(|first| first.kind == inode.kind);
            if first.is_none() {
                inodes.insert(a.qid.path, Arc::downgrade(&inode));
            }
            first
        };
        Ok(first.unwrap_or(inode))
    }

    /// The size as last heard of, bytes.
    pub(super) fn known_size(&self) -> u64 {
        self.state.lock().metadata.size
    }

    /// The fid that names it.
    pub fn fid(&self) -> Arc<Fid> {
        self.fid.lock().clone()
    }

    /// Whether the page cache knows better than the server.
    pub(super) fn is_dirty(&self) -> bool {
        self.dirty_bytes.load(Ordering::Relaxed) > 0
    }

    /// Takes new attributes; forgets data if they show that it changed.
    fn update(&self, new: Metadata) -> Result<()> {
        let changed = {
            let mut state = self.state.lock();
            let old = &state.metadata;
            let changed =
                (old.size, old.mtime_ns, old.inode) != (new.size, new.mtime_ns, new.inode);
            // The number stays what it was when the object was found: programs compare it.
            state.metadata = Metadata { inode: self.number, ..new };
            state.fresh_until_ns = now_ns() + FRESH_NS;
            changed
        };
        if changed
            && !self.is_dirty()
            && let Some(cache) = self.cache.get()
        {
            self.close_reader();
            cache.set_size(new.size)?;
            cache.invalidate();
        }
        Ok(())
    }

    /// Takes the attributes that our own change has led to: cached data stays valid.
    pub(super) fn refresh_after_own_change(&self) -> Result<()> {
        if self.orphan.load(Ordering::Relaxed) {
            return Ok(());
        }
        let metadata = self.ask_attributes()?;
        let mut state = self.state.lock();
        state.metadata = Metadata { inode: self.number, ..metadata };
        state.fresh_until_ns = now_ns() + FRESH_NS;
        Ok(())
    }

    #[cold]
    fn ask_again(&self) -> Result<Metadata> {
        self.update(self.ask_attributes()?)?;
        Ok(self.state.lock().metadata)
    }

    /// The server's attributes of it. ESTALE if they are those of another kind of object.
    fn ask_attributes(&self) -> Result<Metadata> {
        let metadata = to_metadata(self.fs.device, &self.fid().attributes()?)?;
        if metadata.file_type == self.kind { Ok(metadata) } else { Err(Errno::ESTALE) }
    }

    /// Directory: forgets the attributes, which a change of an entry has made old.
    fn touch(&self) {
        self.state.lock().fresh_until_ns = 0;
    }

    /// The fid that is open for reading; opens one if there is none.
    pub(super) fn reader(&self) -> Result<Arc<Fid>> {
        if let Some(fid) = &*self.reader.lock() {
            return Ok(fid.clone());
        }
        let fid = Arc::new(self.fid().duplicate()?);
        let flags = if self.kind == FileType::Directory { raw::O_DIRECTORY } else { 0 };
        fid.open(raw::O_RDONLY | flags)?;
        let old = self.reader.lock().replace(fid.clone());
        drop(old);
        self.fs.note_open(self.me.clone());
        Ok(fid)
    }

    /// The fid that is open for writing; opens one if there is none.
    pub(super) fn writer(&self) -> Result<Arc<Fid>> {
        self.fs.check_writable()?;
        if let Some(fid) = &*self.writer.lock() {
            return Ok(fid.clone());
        }
        let fid = Arc::new(self.fid().duplicate()?);
        if fid.open(raw::O_RDWR).is_err() {
            fid.open(raw::O_WRONLY)?;
        }
        let old = self.writer.lock().replace(fid.clone());
        drop(old);
        Ok(fid)
    }

    /// Lets go of the fid that is open for reading.
    pub(super) fn close_reader(&self) {
        let old = self.reader.lock().take();
        drop(old);
    }

    fn child(&self, name: &[u8]) -> Result<Arc<NinepInode>> {
        let (fid, _) = self.fid().walk(name)?;
        let attributes = fid.attributes()?;
        NinepInode::new(&self.fs, fid, &attributes)
    }

    /// Makes an entry on the host.
    fn make(&self, name: &[u8], new: &NewObject<'_>) -> Result<Arc<NinepInode>> {
        self.fs.check_writable()?;
        let fid = self.fid();
        let mode = host_mode(new.file_type, new.mode & 0o7777);
        let mut opened = None;
        match new.file_type {
            FileType::Regular => {
                let file = fid.duplicate()?;
                let flags = raw::O_RDWR | raw::O_CREAT | raw::O_EXCL;
                file.create(name, flags, mode, new.gid)?;
                opened = Some(Arc::new(file));
            }
            FileType::Directory => fid.make_directory(name, mode, new.gid).map(drop)?,
            FileType::Symlink => fid.symlink(name, new.target, new.gid).map(drop)?,
            // The host's server cannot hand out what these stand for (mknod(2): EPERM).
            FileType::Fifo | FileType::CharDevice | FileType::BlockDevice => {
                return Err(Errno::EPERM);
            }
            kind => {
                let device = (chrdev::major(new.rdev), chrdev::minor(new.rdev));
                fid.make_node(name, kind.mode_bits() | mode, device, new.gid)?;
            }
        }
        self.touch();
        let child = self.child(name)?;
        if opened.is_some() {
            *child.writer.lock() = opened;
        }
        Ok(child)
    }

    fn remove(&self, name: &[u8], flags: u32) -> Result<()> {
        self.fs.check_writable()?;
        let child = self.child(name)?;
        // Who has it open goes on through fids that are open; prepare the one for reading while
        // the name exists.
        if Arc::strong_count(&child) > 1 && child.kind == FileType::Regular {
            let _ = child.reader();
        }
        self.fid().unlink(name, flags)?;
        let mut state = child.state.lock();
        state.metadata.links = state.metadata.links.saturating_sub(1);
        if state.metadata.links == 0 || flags != 0 {
            child.orphan.store(true, Ordering::Relaxed);
        }
        drop(state);
        self.touch();
        Ok(())
    }
}

/// Our object type for another; EXDEV if it belongs to something else.
fn as_ours(inode: &Arc<dyn Inode>) -> Result<&NinepInode> {
    inode.downcast_ref().ok_or(Errno::EXDEV)
}

/// Mode bits with which a program of the host's would run as the file's owner.
const SET_IDS: u32 = 0o6000;
/// That they are dropped has been said.
static SAID: AtomicBool = AtomicBool::new(false);

/// The mode that a file gets on the host: without the bits by which what a guest wrote would run
/// there with its owner's rights, root's perhaps.
fn host_mode(kind: FileType, mode: u32) -> u32 {
    if kind == FileType::Directory || mode & SET_IDS == 0 {
        return mode;
    }
    if !SAID.swap(true, Ordering::Relaxed) {
        machine::log!("warning: set-user-ID and set-group-ID bits are not kept on shared folders");
    }
    mode & !SET_IDS
}

impl Inode for NinepInode {
    #[inline]
    fn metadata(&self) -> Result<Metadata> {
        let (mut metadata, fresh_until_ns) = {
            let state = self.state.lock();
            (state.metadata, state.fresh_until_ns)
        };
        if now_ns() >= fresh_until_ns && !self.orphan.load(Ordering::Relaxed) {
            metadata = self.ask_again()?;
        }
        if self.is_dirty()
            && let Some(cache) = self.cache.get()
        {
            metadata.size = cache.size();
        }
        Ok(metadata)
    }

    fn set_attributes(&self, changes: &SetAttributes) -> Result<()> {
        self.fs.check_writable()?;
        if self.is_dirty() {
            self.write_back()?;
        }
        let mut wire = SetAttr::default();
        let mut field = |bit: u32, present: bool| wire.valid |= if present { bit } else { 0 };
        field(set::MODE, changes.mode.is_some());
        field(set::UID, changes.uid.is_some());
        field(set::GID, changes.gid.is_some());
        field(set::SIZE, changes.size.is_some());
        field(set::ATIME | set::ATIME_SET, changes.atime_ns.is_some());
        field(set::MTIME | set::MTIME_SET, changes.mtime_ns.is_some());
        wire.mode = host_mode(self.kind, changes.mode.unwrap_or(0));
        wire.uid = changes.uid.unwrap_or(0);
        wire.gid = changes.gid.unwrap_or(0);
        wire.size = changes.size.unwrap_or(0);
        wire.atime = from_ns(changes.atime_ns.unwrap_or(0));
        wire.mtime = from_ns(changes.mtime_ns.unwrap_or(0));
        self.fid().set_attributes(wire)?;
        if let (Some(size), Some(cache)) = (changes.size, self.cache.get()) {
            cache.set_size(size)?;
        }
        self.refresh_after_own_change()
    }

    fn file_type(&self) -> FileType {
        self.kind
    }

    fn file_system(&self) -> Arc<dyn FileSystem> {
        self.fs.me.upgrade().expect("an inode holds its file system")
    }

    fn open(self: Arc<Self>, flags: u32) -> Result<Arc<dyn FileOps>> {
        match self.kind {
            FileType::Regular | FileType::Directory => {
                let file = NinepFile::open(self, flags)?;
                Ok(file)
            }
            _ => {
                let rdev = self.state.lock().metadata.rdev;
                chrdev::open(self, rdev, flags)
            }
        }
    }

    fn lookup(&self, name: &[u8]) -> Result<Arc<dyn Inode>> {
        if self.kind != FileType::Directory {
            return Err(Errno::ENOTDIR);
        }
        let child: Arc<dyn Inode> = self.child(name)?;
        Ok(child)
    }

    fn create_if(
        &self,
        name: &[u8],
        new: &NewObject<'_>,
        admit: &dyn Fn(&dyn Inode) -> Result<()>,
    ) -> Result<Arc<dyn Inode>> {
        let child = self.make(name, new)?;
        admit(child.as_ref()).or_else(|refused| {
            let is_directory = new.file_type == FileType::Directory;
            if is_directory { self.rmdir(name) } else { self.unlink(name) }?;
            Err(refused)
        })?;
        Ok(child)
    }

    fn link(&self, name: &[u8], target: &Arc<dyn Inode>) -> Result<()> {
        self.fs.check_writable()?;
        let target = as_ours(target)?;
        self.fid().link(name, &target.fid())?;
        self.touch();
        target.refresh_after_own_change()
    }

    fn unlink(&self, name: &[u8]) -> Result<()> {
        self.remove(name, 0)
    }

    fn rmdir(&self, name: &[u8]) -> Result<()> {
        self.remove(name, raw::AT_REMOVEDIR)
    }

    fn rename(&self, name: &[u8], to: &Arc<dyn Inode>, new: &[u8], how: &Renaming) -> Result<()> {
        let flags = how.flags;
        self.fs.check_writable()?;
        let to = as_ours(to)?;
        if flags & !raw::RENAME_NOREPLACE != 0 {
            return Err(Errno::EINVAL);
        }
        let replaced = match to.child(new) {
            Ok(_) if flags & raw::RENAME_NOREPLACE != 0 => return Err(Errno::EEXIST),
            Ok(replaced) => Some(replaced),
            Err(Errno::ENOENT) => None,
            Err(error) => return Err(error),
        };
        let moved = self.child(name)?;
        if let Some(replaced) = &replaced
            && replaced.number != moved.number
            && Arc::strong_count(replaced) > 1
            && replaced.kind == FileType::Regular
        {
            let _ = replaced.reader();
        }
        self.fid().rename(name, &to.fid(), new)?;
        if let Some(replaced) = replaced.filter(|replaced| replaced.number != moved.number) {
            let mut state = replaced.state.lock();
            state.metadata.links = state.metadata.links.saturating_sub(1);
            replaced.orphan.store(state.metadata.links == 0, Ordering::Relaxed);
        }
        self.touch();
        to.touch();
        Ok(())
    }

    fn read_dir(&self, from: u64, max: usize) -> Result<Vec<DirEntry>> {
        if self.kind != FileType::Directory {
            return Err(Errno::ENOTDIR);
        }
        let fid = self.reader()?;
        let bytes = max.saturating_add(2).saturating_mul(ENTRY_BYTES).min(DIRECTORY_BYTES);
        let mut from = from;
        let mut found = Vec::new();
        // A reply may hold nothing but `.` and `..`; only an empty one is the end.
        let mut replies = 0;
        while found.is_empty() {
            replies += 1;
            if replies > EMPTY_REPLIES_MAX {
                return Err(Errno::EIO);
            }
            let is_end = fid.read_dir(from, bytes, |data| {
                for entry in entries(data) {
                    let entry = entry.map_err(|_| Errno::EIO)?;
                    if from == entry.next {
                        return Err(Errno::EIO);
                    }
                    from = entry.next;
                    if entry.name == b"." || entry.name == b".." || found.len() >= max {
                        continue;
                    }
                    if !is_name(entry.name) {
                        return Err(Errno::EIO);
                    }
                    found.push(DirEntry {
                        name: entry.name.into(),
                        inode: entry.qid.path,
                        file_type: entry_type(entry.kind, entry.qid),
                        next: entry.next,
                    });
                }
                Ok(data.is_empty())
            })?;
            if is_end {
                break;
            }
        }
        Ok(found)
    }

    fn read_link(&self) -> Result<Vec<u8>> {
        if self.kind != FileType::Symlink {
            return Err(Errno::EINVAL);
        }
        self.fid().read_link()
    }

    fn state(&self) -> &InodeState {
        &self.attached
    }

    fn page_cache(&self) -> Option<Arc<PageCache>> {
        (self.kind == FileType::Regular).then(|| self.cached_data().clone())
    }

    fn sync(&self) -> Result<()> {
        if self.kind != FileType::Regular || !self.fs.writable {
            return Ok(());
        }
        self.write_back()?;
        let writer = self.writer.lock().clone();
        writer.map_or(Ok(()), |writer| writer.sync())
    }

    fn get_xattr(&self, name: &[u8]) -> Result<Vec<u8>> {
        if name.is_empty() {
            return Err(Errno::ERANGE);
        }
        self.fid().xattr(name)
    }

    fn set_xattr(&self, name: &[u8], value: &[u8], flags: u32) -> Result<()> {
        self.fs.check_writable()?;
        self.fid().set_xattr(name, value, flags)
    }

    fn list_xattr(&self) -> Result<Vec<u8>> {
        match self.fid().xattr(b"") {
            Err(Errno::EOPNOTSUPP | Errno::ENODATA) => Ok(Vec::new()),
            names => names.map(|said| names_of_server(&said)),
        }
    }

    fn remove_xattr(&self, name: &[u8]) -> Result<()> {
        self.fs.check_writable()?;
        self.fid().xattr(name)?;
        self.fid().set_xattr(name, b"", raw::XATTR_REPLACE)
    }
}

fn entry_type(kind: u8, qid: Qid) -> FileType {
    match FileType::from_mode(u32::from(kind) << 12) {
        Some(known) if kind != 0 => known,
        _ if qid.kind & Qid::DIRECTORY != 0 => FileType::Directory,
        _ if qid.kind & Qid::SYMLINK != 0 => FileType::Symlink,
        _ => FileType::Regular,
    }
}

impl Drop for NinepInode {
    fn drop(&mut self) {
        let mut inodes = self.fs.inodes.lock();
        // Another object with this number may have come in between.
        if inodes.get(&self.number).is_some_and(|known| known.strong_count() == 0) {
            inodes.remove(&self.number);
        }
    }
}
