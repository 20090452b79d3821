//! Objects of the overlay: a lower object and what differs from it.

use alloc::boxed::Box;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};

use abi::{Errno, Result};
use machine::sync::SpinLock;

use super::OverlayFs;
use super::data::{Data, OverlayFile};
use super::directory::{Entries, OverlayEntry};
use crate::base::sync::Mutex;
use crate::drivers::chrdev;
use crate::fs::xattrs::Xattrs;
use crate::page_cache::PageCache;
use crate::vfs::{
    DirEntry, FileOps, FileSystem, FileType, Inode, InodeState, Metadata, NewObject, Renaming,
    SetAttributes,
};

/// A directory and a name in it.
pub(super) type Place = (Arc<Node>, Arc<[u8]>);

/// See the module above.
pub struct Node {
    pub(super) fs: Arc<OverlayFs>,
    me: Weak<Node>,
    number: u64,
    kind: FileType,
    /// The object it shows; None if it was made here.
    pub(super) lower: Option<Arc<dyn Inode>>,
    /// Whether several lower names may lead here.
    shared_link: bool,
    /// Whether everything up to the top holds it.
    pinned: AtomicBool,
    /// Where it is; None for the top, and once it is removed. Of several names, the first.
    pub(super) place: SpinLock<Option<Place>>,
    /// Attributes, once they differ from the lower object's.
    pub(super) attributes: SpinLock<Option<Metadata>>,
    /// Extended attributes, likewise.
    xattrs: SpinLock<Option<Xattrs>>,
    /// For regular files: contents, likewise.
    pub(super) data: SpinLock<Option<Arc<Data>>>,
    /// Held while contents change.
    pub(super) writing: Mutex<()>,
    state: InodeState,
    /// For directories.
    pub(super) entries: SpinLock<Entries>,
    /// For symbolic links made here.
    target: Box<[u8]>,
}

impl Node {
    fn build(
        fs: &Arc<OverlayFs>,
        number: u64,
        kind: FileType,
        place: Option<Place>,
        finish: impl FnOnce(&mut Node),
    ) -> Arc<Node> {
        Arc::new_cyclic(|me| {
            let mut node = Node {
                fs: fs.clone(),
                me: me.clone(),
                number,
                kind,
                lower: None,
                shared_link: false,
                pinned: AtomicBool::new(false),
                place: SpinLock::new(place),
                attributes: SpinLock::new(None),
                xattrs: SpinLock::new(None),
                data: SpinLock::new(None),
                writing: Mutex::new(()),
                state: InodeState::default(),
                entries: SpinLock::new(Entries::default()),
                target: Box::default(),
            };
            finish(&mut node);
            node
        })
    }

    /// A node that shows a lower object.
    pub(super) fn from_lower(
        fs: &Arc<OverlayFs>,
        lower: Arc<dyn Inode>,
        metadata: &Metadata,
        place: Option<Place>,
    ) -> Arc<Node> {
        let kind = metadata.file_type;
        Node::build(fs, metadata.inode, kind, place, |node| {
            node.lower = Some(lower);
            node.shared_link = kind != FileType::Directory && metadata.links > 1;
        })
    }

    /// A new object.
    pub(super) fn make(
        fs: &Arc<OverlayFs>,
        new: &NewObject<'_>,
        links: u64,
        place: Option<Place>,
    ) -> Arc<Node> {
        let number = fs.new_number();
        let now_ns = crate::base::time::realtime_ns() as i64;
        let metadata = Metadata {
            device: fs.device,
            inode: number,
            file_type: new.file_type,
            mode: new.mode & 0o7777,
            links,
            uid: new.uid,
            gid: new.gid,
            rdev: new.rdev,
            size: if new.file_type == FileType::Directory { 4096 } else { new.target.len() as u64 },
            blocks: 0,
            block_size: 4096,
            atime_ns: now_ns,
            mtime_ns: now_ns,
            ctime_ns: now_ns,
            btime_ns: Some(now_ns),
        };
        Node::build(fs, number, new.file_type, place, |node| {
            node.pinned = AtomicBool::new(true);
            node.attributes = SpinLock::new(Some(metadata));
            node.xattrs = SpinLock::new(Some(Xattrs::default()));
            if new.file_type == FileType::Regular {
                node.data = SpinLock::new(Some(Data::empty()));
            }
            node.target = new.target.into();
        })
    }

    pub(super) fn me(&self) -> Arc<Node> {
        self.me.upgrade().expect("a node that is used is held")
    }

    /// Its inode number.
    #[inline(always)]
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    pub(super) fn is_shared_link(&self) -> bool {
        self.shared_link
    }

    pub(super) fn pinned(&self) -> bool {
        self.pinned.load(Ordering::Acquire)
    }

    /// Notes that it is pinned; returns whether it was.
    pub(super) fn set_pinned(&self) -> bool {
        self.pinned.swap(true, Ordering::AcqRel)
    }

    fn lower_metadata(&self) -> Result<Metadata> {
        let lower = self.lower.as_ref().ok_or(Errno::EIO)?;
        Ok(Metadata { device: self.fs.device, inode: self.number, ..lower.metadata()? })
    }

    /// Changes attributes, taking them over from the lower object the first time.
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut Metadata) -> T) -> Result<T> {
        if self.attributes.lock().is_none() {
            let metadata = self.lower_metadata()?;
            self.attributes.lock().get_or_insert(metadata);
            self.pin();
        }
        let mut attributes = self.attributes.lock();
        attributes.as_mut().map(change).ok_or(Errno::EIO)
    }

    /// Runs `change` on the extended attributes, taken over from the lower object the first time.
    fn change_xattrs<T>(&self, change: impl FnOnce(&mut Xattrs) -> Result<T>) -> Result<T> {
        if self.xattrs.lock().is_none() {
            let mut copy = Xattrs::default();
            if let Some(lower) = &self.lower {
                let names = lower.list_xattr()?;
                for name in names.split(|&byte| byte == 0).filter(|name| !name.is_empty()) {
                    copy.set(name, &lower.get_xattr(name)?, 0)?;
                }
            }
            self.change(|_| ())?;
            self.xattrs.lock().get_or_insert(copy);
        }
        let mut xattrs = self.xattrs.lock();
        change(xattrs.as_mut().ok_or(Errno::EIO)?)
    }

    fn ours(other: &Arc<dyn Inode>) -> Result<&Node> {
        other.downcast_ref().ok_or(Errno::EXDEV)
    }
}

impl Inode for Node {
    #[inline]
    fn metadata(&self) -> Result<Metadata> {
        let known = *self.attributes.lock();
        let Some(mut metadata) = known else { return self.lower_metadata() };
        if self.kind == FileType::Regular
            && let Some(data) = &*self.data.lock()
        {
            metadata.size = data.cache.size();
            metadata.blocks = data.cache.blocks();
        }
        Ok(metadata)
    }

    fn set_attributes(&self, changes: &SetAttributes) -> Result<()> {
        if let Some(size) = changes.size {
            self.truncate(size)?;
        }
        let now_ns = crate::base::time::realtime_ns() as i64;
        self.change(|m| {
            m.mode = changes.mode.unwrap_or(m.mode);
            m.uid = changes.uid.unwrap_or(m.uid);
            m.gid = changes.gid.unwrap_or(m.gid);
            m.atime_ns = changes.atime_ns.unwrap_or(m.atime_ns);
            if changes.size.is_some() {
                m.mtime_ns = now_ns;
            }
            m.mtime_ns = changes.mtime_ns.unwrap_or(m.mtime_ns);
            m.ctime_ns = now_ns;
        })
    }

    #[inline]
    fn file_type(&self) -> FileType {
        self.kind
    }

    fn file_system(&self) -> Arc<dyn FileSystem> {
        self.fs.me.upgrade().expect("a node holds its file system")
    }

    fn open(self: Arc<Self>, flags: u32) -> Result<Arc<dyn FileOps>> {
        match self.kind {
            FileType::Regular => Ok(OverlayFile::open(self, flags)?),
            FileType::Directory => Ok(OverlayFile::directory(self)),
            FileType::Symlink => Err(Errno::ELOOP),
            _ => {
                let rdev = self.metadata()?.rdev;
                chrdev::open(self, rdev, flags)
            }
        }
    }

    fn lookup(&self, name: &[u8]) -> Result<Arc<dyn Inode>> {
        Ok(self.child(name)?)
    }

    fn create_if(
        &self,
        name: &[u8],
        new: &NewObject<'_>,
        admit: &dyn Fn(&dyn Inode) -> Result<()>,
    ) -> Result<Arc<dyn Inode>> {
        Ok(self.create_entry(name, new, admit)?)
    }

    fn create_unnamed(&self, new: &NewObject<'_>) -> Result<Arc<dyn Inode>> {
        self.fs.check_room()?;
        Ok(Node::make(&self.fs, new, 0, None))
    }

    fn link(&self, name: &[u8], target: &Arc<dyn Inode>) -> Result<()> {
        self.link_entry(name, &Node::ours(target)?.me())
    }

    fn unlink(&self, name: &[u8]) -> Result<()> {
        self.remove_entry(name, false)
    }

    fn rmdir(&self, name: &[u8]) -> Result<()> {
        self.remove_entry(name, true)
    }

    fn rename(&self, name: &[u8], to: &Arc<dyn Inode>, new: &[u8], how: &Renaming) -> Result<()> {
        self.rename_entry(name, Node::ours(to)?, new, how.flags)
    }

    fn read_dir(&self, from: u64, max: usize) -> Result<Vec<DirEntry>> {
        self.list(from, max)
    }

    fn names_version(&self) -> Result<u64> {
        self.lower_directory().map_or(Ok(0), |lower| lower.names_version())
    }

    fn read_link(&self) -> Result<Vec<u8>> {
        if self.kind != FileType::Symlink {
            return Err(Errno::EINVAL);
        }
        match &self.lower {
            Some(lower) => lower.read_link(),
            None => Ok(self.target.to_vec()),
        }
    }

    fn state(&self) -> &InodeState {
        &self.state
    }

    fn page_cache(&self) -> Option<Arc<PageCache>> {
        if self.kind != FileType::Regular {
            return None;
        }
        if let Some(data) = &*self.data.lock() {
            return Some(data.cache.clone());
        }
        self.lower.as_ref()?.page_cache()
    }

    fn allocate(&self, mode: u32, offset: u64, len: u64) -> Result<()> {
        self.allocate_data(mode, offset, len)
    }

    fn get_xattr(&self, name: &[u8]) -> Result<Vec<u8>> {
        if let Some(xattrs) = &*self.xattrs.lock() {
            return xattrs.get(name);
        }
        match &self.lower {
            Some(lower) => lower.get_xattr(name),
            None => Err(Errno::ENODATA),
        }
    }

    fn set_xattr(&self, name: &[u8], value: &[u8], flags: u32) -> Result<()> {
        let old = self.change_xattrs(|xattrs| xattrs.set(name, value, flags))?;
        drop(old);
        let now_ns = crate::base::time::realtime_ns() as i64;
        self.change(|m| m.ctime_ns = now_ns)
    }

    fn list_xattr(&self) -> Result<Vec<u8>> {
        if let Some(xattrs) = &*self.xattrs.lock() {
            return Ok(xattrs.names());
        }
        match &self.lower {
            Some(lower) => lower.list_xattr(),
            None => Ok(Vec::new()),
        }
    }

    fn remove_xattr(&self, name: &[u8]) -> Result<()> {
        let old = self.change_xattrs(|xattrs| xattrs.remove(name))?;
        drop(old);
        let now_ns = crate::base::time::realtime_ns() as i64;
        self.change(|m| m.ctime_ns = now_ns)
    }
}

impl Drop for Node {
    /// Takes what its parent knows of it away. Parents that go with the last of their children go
    /// one by one: a chain of directories is as long as a program likes, and the stack is not.
    fn drop(&mut self) {
        if self.shared_link {
            let mut linked = self.fs.linked.lock();
            if linked.get(&self.number).is_some_and(|link| link.node.strong_count() == 0) {
                linked.remove(&self.number);
            }
        }
        let mut place = self.place.get_mut().take();
        while let Some((parent, name)) = place {
            {
                let mut entries = parent.entries.lock();
                if let Some(OverlayEntry::Clean(known)) = entries.by_name.get(&name)
                    && known.strong_count() == 0
                {
                    entries.by_name.remove(&name);
                }
            }
            place = match Arc::into_inner(parent) {
                Some(mut parent) => parent.place.get_mut().take(),
                None => None,
            };
        }
    }
}
