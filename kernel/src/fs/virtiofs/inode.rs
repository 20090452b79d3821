//! Objects of the server: what is known of them, and what may be asked instead of the server.

use alloc::boxed::Box;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use abi::{Errno, Result, general as raw};
use formats::fuse::{Attributes, ValidNs};
use machine::frame::{Frame, PAGE_SIZE};
use machine::sync::{Once, SpinLock};

use super::VirtioFs;
use super::ahead::Ahead;
use super::client::{Asked, Handle, Node};
use super::listing::{Builder, Found, Known, Listing};
use crate::base::io::Sink;
use crate::base::sync::Mutex;
use crate::base::time::{now_ns, realtime_ns};
use crate::drivers::chrdev;
use crate::fs::xattrs::names_of_server;
use crate::page_cache::{Coming, MAX_FILE_SIZE, PageBackend, PageCache};
use crate::vfs::{
    DirEntry, File, FileOps, FileSystem, FileType, Inode, InodeState, Metadata, SetAttributes,
};

/// Questions about single names of a directory before all of them are asked for at once.
const SINGLE_QUESTIONS: u32 = 4;

/// Directories whose names are asked for before they are wanted, most at one time.
const AHEAD_MAX: usize = 8;

/// A directory that was changed so shortly before it was asked about may be changed again without a
/// later time of change: that this is the same then proves nothing, nanoseconds.
const RECENT_NS: i64 = 2_000_000_000;

/// An object of the server.
pub struct VirtioInode {
    fs: Arc<VirtioFs>,
    me: Weak<VirtioInode>,
    node: Arc<Node>,
    number: u64,
    kind: FileType,
    /// The directory it was found in.
    parent: Option<Weak<VirtioInode>>,
    known: SpinLock<KnownMetadata>,
    /// Open for reading at the server.
    reader: SpinLock<Option<Arc<Handle>>>,
    /// When it had changed last when the server let it be opened.
    opened: SpinLock<Option<ChangedAt>>,
    cache: Once<Arc<PageCache>>,
    attached: InodeState,
    directory: DirectoryState,
}

struct KnownMetadata {
    metadata: Metadata,
    valid_until_ns: u64,
    valid_ns: ValidNs,
}

/// What only directories have.
#[derive(Default)]
struct DirectoryState {
    names: SpinLock<Names>,
    listing: SpinLock<Option<Arc<Listing>>>,
    /// Held while the names are asked for.
    reading: Mutex<()>,
    /// Questions about single names since they were asked for.
    questions: AtomicU32,
    /// It has more names than are kept.
    is_too_large: AtomicBool,
}

/// When a directory was changed last: its times of modification and of change, nanoseconds since
/// 1970.
pub(super) type ChangedAt = (i64, i64);

/// Since when a directory's names are what they are, as far as is known.
#[derive(Clone, Copy, Default)]
struct Names {
    changed: ChangedAt,
    /// The same time of change means the same names.
    is_proof: bool,
    /// Until when they hold without a question, by `now_ns`.
    valid_until_ns: u64,
    /// Counts how often they may have become others.
    version: u64,
}

fn to_ns((seconds, nanoseconds): (u64, u32)) -> i64 {
    (seconds as i64).saturating_mul(1_000_000_000).saturating_add(i64::from(nanoseconds))
}

/// The server's attributes as ours. EIO for a type that does not exist.
fn to_metadata(device: u64, a: &Attributes) -> Result<Metadata> {
    let (major, minor) = (a.rdev >> 8 & 0xfff, a.rdev & 0xff | a.rdev >> 12 & 0xfff00);
    Ok(Metadata {
        device,
        inode: a.ino,
        file_type: FileType::from_mode(a.mode).ok_or(Errno::EIO)?,
        mode: a.mode & 0o7777,
        links: u64::from(a.links),
        uid: a.uid,
        gid: a.gid,
        rdev: chrdev::make_device(major, minor),
        size: a.size.min(MAX_FILE_SIZE),
        blocks: a.blocks,
        block_size: u64::from(a.block_size),
        atime_ns: to_ns(a.atime),
        mtime_ns: to_ns(a.mtime),
        ctime_ns: to_ns(a.ctime),
        btime_ns: None,
    })
}

fn changed_at(metadata: &Metadata) -> ChangedAt {
    (metadata.mtime_ns, metadata.ctime_ns)
}

impl VirtioInode {
    /// The object that the server calls `node`: the known one, if it is known.
    pub(super) fn new(
        fs: &Arc<VirtioFs>,
        node: Arc<Node>,
        attributes: &Attributes,
        valid_ns: ValidNs,
        parent: Option<&VirtioInode>,
    ) -> Result<Arc<VirtioInode>> {
        let valid_until_ns = now_ns().saturating_add(valid_ns);
        let found = Found { node, attributes: *attributes, valid_until_ns };
        Self::of(fs, &found, valid_ns, parent)
    }

    fn of(
        fs: &Arc<VirtioFs>,
        found: &Found,
        valid_ns: ValidNs,
        parent: Option<&VirtioInode>,
    ) -> Result<Arc<VirtioInode>> {
        let metadata = to_metadata(fs.device, &found.attributes)?;
        let id = found.node.id();
        let is_same = |known: &Arc<VirtioInode>| known.kind == metadata.file_type;
        let known = fs.inodes.lock().get(&id).and_then(Weak::upgrade).filter(is_same);
        if let Some(known) = known {
            known.update(metadata, found.valid_until_ns, valid_ns)?;
            return Ok(known);
        }
        let valid_until_ns = found.valid_until_ns;
        let inode = Arc::new_cyclic(|me| VirtioInode {
            fs: fs.clone(),
            me: me.clone(),
            node: found.node.clone(),
            number: metadata.inode,
            kind: metadata.file_type,
            parent: parent.map(|parent| parent.me.clone()),
            known: SpinLock::new(KnownMetadata { metadata, valid_until_ns, valid_ns }),
            reader: SpinLock::new(None),
            opened: SpinLock::new(None),
            cache: Once::new(),
            attached: InodeState::default(),
            directory: DirectoryState::default(),
        });
        // Somebody else may have found the same object meanwhile; there must be one of it.
        let first = {
            let mut inodes = fs.inodes.lock();
            let first = inodes.get(&id).and_then(Weak::upgrade).filter(is_same);
            if first.is_none() {
                inodes.insert(id, Arc::downgrade(&inode));
            }
            first
        };
        Ok(first.unwrap_or(inode))
    }

    /// Takes new attributes, unless those that are known hold longer; forgets data if they show
    /// that it changed.
    fn update(&self, new: Metadata, valid_until_ns: u64, valid_ns: ValidNs) -> Result<()> {
        let changed = {
            let mut known = self.known.lock();
            if valid_until_ns < known.valid_until_ns {
                return Ok(());
            }
            let old = &known.metadata;
            let changed = (old.size, changed_at(old)) != (new.size, changed_at(&new));
            // The number stays what it was when the object was found: programs compare it.
            let metadata = Metadata { inode: self.number, ..new };
            *known = KnownMetadata { metadata, valid_until_ns, valid_ns };
            changed
        };
        if changed && let Some(cache) = self.cache.get() {
            self.close_reader();
            cache.set_size(new.size)?;
            cache.invalidate();
        }
        Ok(())
    }

    /// Asks the server for the attributes. ESTALE if they are those of another kind of object.
    fn ask(&self) -> Result<Metadata> {
        let begun_ns = now_ns();
        let (valid_ns, attributes) = self.node.attributes()?;
        let metadata = to_metadata(self.fs.device, &attributes)?;
        if metadata.file_type != self.kind {
            return Err(Errno::ESTALE);
        }
        self.update(metadata, begun_ns.saturating_add(valid_ns), valid_ns)?;
        Ok(Metadata { inode: self.number, ..metadata })
    }

    /// As [`Self::ask`]; but if it is one of several of its directory, all of them are asked for.
    #[cold]
    fn ask_again(&self) -> Result<Metadata> {
        if let Some(parent) = self.parent.as_ref().and_then(Weak::upgrade)
            && parent.wants_all()
            && parent.read_names().is_ok()
            && let Some(known) = self.valid_metadata()
        {
            return Ok(known);
        }
        self.ask()
    }

    fn valid_metadata(&self) -> Option<Metadata> {
        let known = self.known.lock();
        (now_ns() < known.valid_until_ns).then_some(known.metadata)
    }

    /// The handle that is open for reading; opens one if there is none.
    fn reader(&self) -> Result<Arc<Handle>> {
        if let Some(handle) = &*self.reader.lock() {
            return Ok(handle.clone());
        }
        let handle = Arc::new(self.node.open()?);
        let old = self.reader.lock().replace(handle.clone());
        drop(old);
        self.fs.note_open(self.me.clone());
        Ok(handle)
    }

    /// Fails if the server does not let it be read. One that it did let, and that has not changed
    /// since, with its mode and owner, is not opened again before there is something to read.
    fn check_opens(&self) -> Result<()> {
        let changed = changed_at(&self.metadata()?);
        if *self.opened.lock() != Some(changed) {
            // A handle of before the change would tell nothing about whom it lets in now.
            self.close_reader();
            self.reader()?;
            *self.opened.lock() = Some(changed);
        }
        Ok(())
    }

    /// Lets go of the handle that is open for reading.
    pub(super) fn close_reader(&self) {
        let old = self.reader.lock().take();
        drop(old);
    }

    /// The page cache; made at the first use.
    fn cached_data(&self) -> &Arc<PageCache> {
        self.cache.call_once(|| {
            let size = self.known.lock().metadata.size;
            PageCache::new(Some(Arc::new(Backend(self.me.clone()))), size)
        })
    }
}

/// Directories.
impl VirtioInode {
    fn check_directory(&self) -> Result<()> {
        if self.kind == FileType::Directory { Ok(()) } else { Err(Errno::ENOTDIR) }
    }

    /// Whether so many single questions were asked that one for all names is better. It counts as
    /// one.
    fn wants_all(&self) -> bool {
        let state = &self.directory;
        let asked = state.questions.fetch_add(1, Ordering::Relaxed);
        let valid_ns = self.known.lock().valid_ns;
        asked >= SINGLE_QUESTIONS && valid_ns > 0 && !state.is_too_large.load(Ordering::Relaxed)
    }

    /// The version of the names: forgets those that are known if they may be others. Asks for the
    /// directory's attributes once they have expired.
    fn check_names(&self) -> Result<u64> {
        let names = *self.directory.names.lock();
        if now_ns() < names.valid_until_ns {
            return Ok(names.version);
        }
        let metadata = self.metadata()?;
        let changed = changed_at(&metadata);
        let is_same = names.is_proof && names.changed == changed;
        if !is_same {
            self.forget_names();
        }
        let age_ns = (realtime_ns() as i64).saturating_sub(changed.0.max(changed.1));
        let valid_until_ns = self.known.lock().valid_until_ns;
        let is_proof = is_same || age_ns > RECENT_NS;
        let mut names = self.directory.names.lock();
        let version = names.version + u64::from(!is_same);
        *names = Names { changed, is_proof, version, valid_until_ns };
        Ok(version)
    }

    /// The names, if they are known and hold.
    fn listing(&self) -> Result<Option<Arc<Listing>>> {
        self.check_names()?;
        Ok(self.directory.listing.lock().clone())
    }

    /// Forgets the names.
    pub(super) fn forget_names(&self) {
        let old = self.directory.listing.lock().take();
        if let Some(old) = &old {
            self.fs.note_forgotten(self.node.id(), old.entries.len());
        }
        drop(old);
    }

    /// Asks for all names and what they stand for. None if there are too many to keep.
    fn read_names(&self) -> Result<Option<Arc<Listing>>> {
        let state = &self.directory;
        let before = state.questions.load(Ordering::Relaxed);
        let _reading = state.reading.lock();
        // Somebody else has read them while this one waited.
        if state.questions.load(Ordering::Relaxed) < before
            && let Some(listing) = self.listing()?
        {
            return Ok(Some(listing));
        }
        // What changes from here on shows when the names are checked again.
        self.check_names()?;
        let ahead = self.foreseen();
        let is_foreseen = ahead.is_some();
        let mut builder = ahead.as_ref().map_or_else(Builder::new, |(_, ns)| Builder::since(*ns));
        let mut fits = true;
        self.node.names(0, ahead.map(|(ahead, _)| ahead), |named| {
            fits = builder.add(named)?;
            Ok(fits)
        })?;
        state.questions.store(0, Ordering::Relaxed);
        state.is_too_large.store(!fits, Ordering::Relaxed);
        if !fits {
            return Ok(None);
        }
        let listing = Arc::new(builder.finish());
        self.refresh_known(&listing)?;
        self.forget_names();
        *state.listing.lock() = Some(listing.clone());
        self.fs.note_names(self.node.id(), self.me.clone(), listing.entries.len());
        self.look_ahead(&listing, is_foreseen);
        Ok(Some(listing))
    }

    /// What was asked for ahead about this directory, if it still holds, and when.
    fn foreseen(&self) -> Option<(Ahead, u64)> {
        let ahead = self.fs.ahead.take(self.node.id())?;
        let changed = self.directory.names.lock().changed;
        let valid_ns = self.known.lock().valid_ns;
        let since_ns = ahead.valid_since_ns(changed, valid_ns)?;
        Some((ahead, since_ns))
    }

    /// Asks for the names of the directories that come next, if somebody walks through the tree.
    fn look_ahead(&self, listing: &Listing, is_foreseen: bool) {
        let mut place = self.place();
        let is_next = place.as_ref().is_some_and(|(around, place)| around.walks_to(*place));
        if !(is_next || is_foreseen) || self.known.lock().valid_ns == 0 {
            return;
        }
        let mut wanted = Vec::new();
        self.add_unknown(listing, 0, &mut wanted);
        let mut inner = self.me.upgrade();
        while let Some((around, at)) = place
            && wanted.len() < AHEAD_MAX
        {
            self.add_unknown(&around, at + 1, &mut wanted);
            inner = inner.and_then(|inner| inner.parent.as_ref()?.upgrade());
            place = inner.as_ref().and_then(|inner| inner.place());
        }
        self.fs.ahead.begin(&wanted);
    }

    /// The names of the directory that this one is in, and its place among the directories there.
    fn place(&self) -> Option<(Arc<Listing>, usize)> {
        let parent = self.parent.as_ref()?.upgrade()?;
        let around = parent.directory.listing.lock().clone()?;
        let place = around.directory_place(self.node.id())?;
        Some((around, place))
    }

    /// Adds the directories from a place on whose names are not known.
    fn add_unknown(
        &self,
        listing: &Listing,
        place: usize,
        wanted: &mut Vec<(Arc<Node>, ChangedAt)>,
    ) {
        let room = AHEAD_MAX.saturating_sub(wanted.len());
        let listed = self.fs.listed.lock();
        let directories = listing.directories_from(place).take(AHEAD_MAX);
        let unknown = directories.filter(|found| !listed.contains_key(&found.node.id()));
        let changed = |a: &Attributes| (to_ns(a.mtime), to_ns(a.ctime));
        wanted.extend(unknown.map(|f| (f.node.clone(), changed(&f.attributes))).take(room));
    }

    /// Gives the objects in use the attributes that have come with the names.
    fn refresh_known(&self, listing: &Listing) -> Result<()> {
        let valid_ns = self.known.lock().valid_ns;
        for known in &listing.entries {
            let Some(found) = &known.found else { continue };
            let inode = self.fs.inodes.lock().get(&found.node.id()).and_then(Weak::upgrade);
            if let Some(inode) = inode.filter(|inode| inode.kind == known.kind) {
                let metadata = to_metadata(self.fs.device, &found.attributes)?;
                inode.update(metadata, found.valid_until_ns, valid_ns)?;
            }
        }
        Ok(())
    }

    fn child(&self, name: &[u8]) -> Result<Arc<VirtioInode>> {
        let listing = match self.listing()? {
            None if self.wants_all() => self.read_names()?,
            known => known,
        };
        let valid_ns = self.known.lock().valid_ns;
        let found = match &listing {
            Some(listing) => listing.find(name).ok_or(Errno::ENOENT)?.found.as_ref(),
            None => None,
        };
        match found {
            Some(found) => Self::of(&self.fs, found, valid_ns, Some(self)),
            None => {
                let (node, entry) = self.node.lookup(name)?;
                let (attributes, valid_ns) = (&entry.attributes, entry.attributes_valid_ns);
                Self::new(&self.fs, Arc::new(node), attributes, valid_ns, Some(self))
            }
        }
    }

    /// Names from a position on, of a directory that is not kept.
    fn names_from(&self, from: u64, max: usize) -> Result<Vec<DirEntry>> {
        let mut builder = Builder::new();
        self.node.names(from, None, |named| Ok(builder.add(named)? && builder.len() < max))?;
        Ok(builder.into_entries().iter().map(dir_entry).collect())
    }
}

fn dir_entry(known: &Known) -> DirEntry {
    DirEntry {
        name: known.name.clone(),
        inode: known.number,
        file_type: known.kind,
        next: known.next,
    }
}

impl Inode for VirtioInode {
    #[inline]
    fn metadata(&self) -> Result<Metadata> {
        match self.valid_metadata() {
            Some(metadata) => Ok(metadata),
            None => self.ask_again(),
        }
    }

    fn set_attributes(&self, _changes: &SetAttributes) -> Result<()> {
        Err(Errno::EROFS)
    }

    fn file_type(&self) -> FileType {
        self.kind
    }

    fn file_system(&self) -> Arc<dyn FileSystem> {
        self.fs.me.upgrade().expect("an inode holds its file system")
    }

    fn open(self: Arc<Self>, flags: u32) -> Result<Arc<dyn FileOps>> {
        if flags & raw::O_ACCMODE != raw::O_RDONLY
            && matches!(self.kind, FileType::Regular | FileType::Directory)
        {
            return Err(Errno::EROFS);
        }
        match self.kind {
            FileType::Regular => {
                self.check_opens()?;
                Ok(Arc::new(VirtioFile(self)))
            }
            FileType::Directory => {
                // The server may refuse to read it: better now than at the first name.
                const ALL_READ: u32 = 0o444;
                if self.metadata()?.mode & ALL_READ != ALL_READ && self.listing()?.is_none() {
                    self.read_names()?;
                }
                Ok(Arc::new(VirtioFile(self)))
            }
            _ => {
                let rdev = self.known.lock().metadata.rdev;
                chrdev::open(self, rdev, flags)
            }
        }
    }

    fn lookup(&self, name: &[u8]) -> Result<Arc<dyn Inode>> {
        self.check_directory()?;
        let child: Arc<dyn Inode> = self.child(name)?;
        Ok(child)
    }

    fn read_dir(&self, from: u64, max: usize) -> Result<Vec<DirEntry>> {
        self.check_directory()?;
        let listing = match self.listing()? {
            Some(listing) => Some(listing),
            None if self.directory.is_too_large.load(Ordering::Relaxed) => None,
            None => self.read_names()?,
        };
        let rest =
            listing.as_ref().and_then(|listing| Some((listing, listing.after_position(from)?)));
        // A position of before the names changed is the server's to understand.
        let Some((listing, rest)) = rest else { return self.names_from(from, max.max(1)) };
        let given = &rest[..rest.len().min(max)];
        listing.note_left(rest.len() - given.len());
        Ok(given.iter().map(dir_entry).collect())
    }

    fn names_version(&self) -> Result<u64> {
        self.check_names()
    }

    fn read_link(&self) -> Result<Vec<u8>> {
        if self.kind != FileType::Symlink {
            return Err(Errno::EINVAL);
        }
        self.node.read_link()
    }

    fn state(&self) -> &InodeState {
        &self.attached
    }

    fn page_cache(&self) -> Option<Arc<PageCache>> {
        (self.kind == FileType::Regular).then(|| self.cached_data().clone())
    }

    fn get_xattr(&self, name: &[u8]) -> Result<Vec<u8>> {
        if name.is_empty() {
            return Err(Errno::ERANGE);
        }
        self.node.xattr(name)
    }

    fn set_xattr(&self, _name: &[u8], _value: &[u8], _flags: u32) -> Result<()> {
        Err(Errno::EROFS)
    }

    fn list_xattr(&self) -> Result<Vec<u8>> {
        match self.node.xattrs() {
            Err(Errno::EOPNOTSUPP | Errno::ENODATA | Errno::ENOSYS) => Ok(Vec::new()),
            names => names.map(|said| names_of_server(&said)),
        }
    }

    fn remove_xattr(&self, _name: &[u8]) -> Result<()> {
        Err(Errno::EROFS)
    }
}

impl Drop for VirtioInode {
    fn drop(&mut self) {
        self.forget_names();
        let mut inodes = self.fs.inodes.lock();
        // Another object with this number may have come in between.
        if inodes.get(&self.node.id()).is_some_and(|known| known.strong_count() == 0) {
            inodes.remove(&self.node.id());
        }
    }
}

/// A regular file or directory, open.
struct VirtioFile(Arc<VirtioInode>);

impl FileOps for VirtioFile {
    fn read_at(&self, _file: &File, offset: u64, sink: &mut Sink<'_>) -> Result<usize> {
        if self.0.kind == FileType::Directory {
            return Err(Errno::EISDIR);
        }
        // Asking for the attributes notices changes of the host.
        self.0.metadata()?;
        self.0.cached_data().read(offset, sink)
    }

    fn is_seekable(&self) -> bool {
        true
    }

    fn inode(&self) -> Arc<dyn Inode> {
        self.0.clone()
    }
}

struct Backend(Weak<VirtioInode>);

impl PageBackend for Backend {
    fn read_pages(&self, first: u64, frames: &[Frame]) -> Result<usize> {
        let inode = self.0.upgrade().ok_or(Errno::EIO)?;
        let handle = inode.reader()?;
        let mut filled = 0;
        for some in frames.chunks(inode.fs.client.read_pages()) {
            let got = handle.read(first * PAGE_SIZE as u64 + filled as u64, some)?;
            filled += got;
            // The end of the file.
            if got < some.len() * PAGE_SIZE {
                break;
            }
        }
        Ok(filled)
    }

    fn begin_pages(&self, first: u64, frames: &[Frame]) -> Option<Box<dyn Coming>> {
        let inode = self.0.upgrade()?;
        let handle = inode.reader.lock().clone()?;
        if frames.len() > inode.fs.client.read_pages() {
            return None;
        }
        let asked = handle.begin_read(first * PAGE_SIZE as u64, frames).ok()?;
        Some(Box::new(Reading { handle, asked }))
    }

    fn write_pages(&self, _first: u64, _frames: &[Frame], _len: usize) -> Result<()> {
        Err(Errno::EROFS)
    }
}

/// Pages on their way; the file stays open for them.
struct Reading {
    handle: Arc<Handle>,
    asked: Asked,
}

impl Coming for Reading {
    fn is_here(&self) -> bool {
        self.asked.is_answered()
    }

    fn finish(&self) -> Result<usize> {
        self.handle.finish_read(&self.asked)
    }
}
