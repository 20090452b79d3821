//! The file system of the queues' names, which can be mounted (mq_overview(7)): one directory,
//! whose files are the queues. Reading one tells how full it is and who is to be told.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use abi::{Errno, Result, general as raw};
use machine::sync::{Once, ReadMostly, SpinLock};

use super::limits::{BYTES, BYTES_DEFAULT, Charge, MESSAGES, MESSAGES_DEFAULT};
use super::queue::Queue;
use crate::base::io::Sink;
use crate::base::poll::{PollTable, events};
use crate::base::user::UserPtr;
use crate::vfs::attributes::{Attributes, now_ns};
use crate::vfs::dentry::Dentry;
use crate::vfs::mount::{self, Mount};
use crate::vfs::path::{Context, FsContext, Location};
use crate::vfs::{
    DirEntry, File, FileOps, FileSystem, FileType, Inode, InodeState, Metadata, NewObject,
    Renaming, SetAttributes, Statistics,
};

/// MQUEUE_MAGIC.
const MAGIC: u64 = 0x1980_0202;
/// Sizes that the directory shows for each entry, and a queue.
const ENTRY_BYTES: u64 = 20;
const QUEUE_BYTES: u64 = 80;
const ROOT_NUMBER: u64 = 1;

/// What is asked of a new queue: messages, and bytes of one.
pub(super) type Asked = (i64, i64);

/// What stat(2) shows.
struct Shown {
    attributes: Attributes,
    size: u64,
}

/// By name: the place in the order they were made, and the queue.
type Names = BTreeMap<Arc<[u8]>, (u64, Arc<QueueFile>)>;

struct MqueueFs {
    device: u64,
    next: AtomicU64,
    shown: SpinLock<Shown>,
    names: SpinLock<Names>,
    state: InodeState,
}

/// The directory, as one who makes queues sees it: with what that one asks of them.
struct Directory {
    asked: Option<Asked>,
}

/// A queue as an object.
pub(super) struct QueueFile {
    me: Weak<QueueFile>,
    number: u64,
    shown: SpinLock<Shown>,
    state: InodeState,
    /// What it is.
    pub(super) queue: Queue,
}

impl Shown {
    fn new(mode: u32, owner: (u32, u32), links: u64, size: u64) -> Shown {
        Shown { attributes: Attributes::new(mode, owner, links), size }
    }

    fn change(&mut self, changes: &SetAttributes) {
        self.attributes.change(changes);
        self.size = changes.size.unwrap_or(self.size);
    }

    /// All times are now.
    fn touch(&mut self) {
        let (of, now_ns) = (&mut self.attributes, now_ns());
        (of.atime_ns, of.mtime_ns, of.ctime_ns) = (now_ns, now_ns, now_ns);
    }

    fn metadata(&self, inode: u64, file_type: FileType) -> Metadata {
        let Attributes { mode, uid, gid, links, atime_ns, mtime_ns, ctime_ns, .. } =
            self.attributes;
        Metadata {
            device: instance().device,
            inode,
            file_type,
            mode,
            links,
            uid,
            gid,
            rdev: 0,
            size: self.size,
            blocks: 0,
            block_size: 4096,
            atime_ns,
            mtime_ns,
            ctime_ns,
            btime_ns: None,
        }
    }
}

fn instance() -> &'static Arc<MqueueFs> {
    static INSTANCE: Once<Arc<MqueueFs>> = Once::new();
    INSTANCE.call_once(|| {
        Arc::new(MqueueFs {
            device: crate::vfs::anonymous_device(),
            next: AtomicU64::new(ROOT_NUMBER + 1),
            shown: SpinLock::new(Shown::new(0o1777, (0, 0), 2, 2 * ENTRY_BYTES)),
            names: SpinLock::new(BTreeMap::new()),
            state: InodeState::default(),
        })
    })
}

/// The file system, for mounting.
#[must_use]
pub fn file_system() -> Arc<dyn FileSystem> {
    instance().clone()
}

/// Where names of queues are looked up and made, on behalf of the running thread, as paths of one
/// component. A queue that is made has what is `asked`.
pub(super) fn context(asked: Option<Asked>) -> Context {
    static MOUNT: Once<Arc<Mount>> = Once::new();
    let mount = MOUNT.call_once(|| mount::detached(file_system()));
    let top = Dentry::detached(Arc::new(Directory { asked }), b"/");
    let top = Location::new(mount.clone(), top);
    let own = Context::current();
    let fs = FsContext {
        cwd: ReadMostly::new(top.clone()),
        root: ReadMostly::new(top),
        umask: AtomicU32::new(own.fs.umask.load(Ordering::Relaxed)),
    };
    Context { fs: Arc::new(fs), subject: own.subject }
}

impl FileSystem for MqueueFs {
    fn root(&self) -> Arc<dyn Inode> {
        static ROOT: Once<Arc<Directory>> = Once::new();
        ROOT.call_once(|| Arc::new(Directory { asked: None })).clone()
    }

    fn name(&self) -> &'static str {
        "mqueue"
    }

    fn statistics(&self) -> Statistics {
        Statistics { magic: MAGIC, block_size: 4096, ..Statistics::default() }
    }

    fn caches_names(&self) -> bool {
        false
    }
}

impl MqueueFs {
    /// A name has come (1) or gone (-1).
    fn touch(&self, change: i64) {
        let mut shown = self.shown.lock();
        shown.size = shown.size.saturating_add_signed(change * ENTRY_BYTES as i64);
        shown.touch();
    }
}

impl Inode for Directory {
    fn state(&self) -> &InodeState {
        &instance().state
    }

    fn metadata(&self) -> Result<Metadata> {
        Ok(instance().shown.lock().metadata(ROOT_NUMBER, FileType::Directory))
    }

    fn set_attributes(&self, changes: &SetAttributes) -> Result<()> {
        instance().shown.lock().change(changes);
        Ok(())
    }

    fn file_type(&self) -> FileType {
        FileType::Directory
    }

    fn file_system(&self) -> Arc<dyn FileSystem> {
        instance().clone()
    }

    fn open(self: Arc<Self>, _flags: u32) -> Result<Arc<dyn FileOps>> {
        Ok(self)
    }

    fn lookup(&self, name: &[u8]) -> Result<Arc<dyn Inode>> {
        let found = instance().names.lock().get(name).map(|(_, queue)| queue.clone());
        Ok(found.ok_or(Errno::ENOENT)?)
    }

    fn create_if(
        &self,
        name: &[u8],
        new: &NewObject<'_>,
        admit: &dyn Fn(&dyn Inode) -> Result<()>,
    ) -> Result<Arc<dyn Inode>> {
        if new.file_type != FileType::Regular {
            return Err(Errno::EPERM);
        }
        let queue = QueueFile::new(new, self.asked)?;
        admit(&*queue)?;
        let fs = instance();
        {
            let mut names = fs.names.lock();
            if names.contains_key(name) {
                return Err(Errno::EEXIST);
            }
            names.insert(name.into(), (queue.number, queue.clone()));
        }
        fs.touch(1);
        Ok(queue)
    }

    fn link(&self, _name: &[u8], _target: &Arc<dyn Inode>) -> Result<()> {
        Err(Errno::EPERM)
    }

    fn unlink(&self, name: &[u8]) -> Result<()> {
        let removed = instance().names.lock().remove(name);
        let (_, queue) = removed.ok_or(Errno::ENOENT)?;
        {
            let mut shown = queue.shown.lock();
            shown.attributes.links = 0;
            shown.attributes.ctime_ns = now_ns();
        }
        instance().touch(-1);
        Ok(())
    }

    fn rename(&self, _: &[u8], _: &Arc<dyn Inode>, _: &[u8], _: &Renaming) -> Result<()> {
        Err(Errno::EPERM)
    }

    fn read_dir(&self, from: u64, max: usize) -> Result<Vec<DirEntry>> {
        let names = instance().names.lock();
        let mut found = Vec::new();
        found.try_reserve(names.len()).map_err(|_| Errno::ENOMEM)?;
        let later = names.iter().filter(|(_, (number, _))| *number >= from);
        found.extend(later.map(|(name, &(number, _))| DirEntry {
            name: name.clone(),
            inode: number,
            file_type: FileType::Regular,
            next: number + 1,
        }));
        drop(names);
        found.sort_unstable_by_key(|entry| entry.next);
        found.truncate(max);
        Ok(found)
    }
}

impl FileOps for Directory {
    fn is_seekable(&self) -> bool {
        true
    }

    fn inode(&self) -> Arc<dyn Inode> {
        instance().root()
    }
}

impl QueueFile {
    fn new(new: &NewObject<'_>, asked: Option<Asked>) -> Result<Arc<QueueFile>> {
        let default = || {
            let messages = MESSAGES.get().min(MESSAGES_DEFAULT.get());
            (messages as i64, BYTES.get().min(BYTES_DEFAULT.get()) as i64)
        };
        let (messages, bytes) = asked.unwrap_or_else(default);
        crate::base::reserve::check_room_for_files().map_err(|_| Errno::ENOMEM)?;
        let charge = Charge::new(messages, bytes)?;
        Ok(Arc::new_cyclic(|me| QueueFile {
            me: me.clone(),
            number: instance().next.fetch_add(1, Ordering::Relaxed),
            shown: SpinLock::new(Shown::new(new.mode, (new.uid, new.gid), 1, QUEUE_BYTES)),
            state: InodeState::default(),
            queue: Queue::new(messages as u64, bytes as u64, charge),
        }))
    }

    /// It was used: all its times are now, as on Linux.
    pub(super) fn touch(&self) {
        self.shown.lock().touch();
    }
}

impl Inode for QueueFile {
    fn state(&self) -> &InodeState {
        &self.state
    }

    fn metadata(&self) -> Result<Metadata> {
        Ok(self.shown.lock().metadata(self.number, FileType::Regular))
    }

    fn set_attributes(&self, changes: &SetAttributes) -> Result<()> {
        self.shown.lock().change(changes);
        Ok(())
    }

    fn file_type(&self) -> FileType {
        FileType::Regular
    }

    fn file_system(&self) -> Arc<dyn FileSystem> {
        instance().clone()
    }

    fn open(self: Arc<Self>, _flags: u32) -> Result<Arc<dyn FileOps>> {
        Ok(self)
    }
}

impl FileOps for QueueFile {
    fn read_at(&self, _file: &File, offset: u64, sink: &mut Sink<'_>) -> Result<usize> {
        let (notify, signal, pid) = self.queue.registered();
        let bytes = self.queue.contents().1;
        let text =
            format!("QSIZE:{bytes:<10} NOTIFY:{notify:<5} SIGNO:{signal:<5} NOTIFY_PID:{pid:<6}\n");
        let rest = text.as_bytes().get(offset as usize..).unwrap_or_default();
        let read = sink.put(rest)?;
        let now_ns = now_ns();
        let of = &mut self.shown.lock().attributes;
        (of.atime_ns, of.ctime_ns) = (now_ns, now_ns);
        Ok(read)
    }

    fn has_data(&self) -> (bool, bool) {
        (true, false)
    }

    fn is_seekable(&self) -> bool {
        true
    }

    fn is_pollable(&self) -> bool {
        true
    }

    fn poll(&self, _file: &File, table: &mut PollTable) -> u32 {
        table.wait_on(&self.queue.changed);
        let messages = self.queue.contents().0;
        let mut mask = 0;
        if messages > 0 {
            mask |= events::READABLE;
        }
        if messages < self.queue.max_messages {
            mask |= events::WRITABLE;
        }
        mask
    }

    fn descriptor_closed(&self, table: usize) {
        self.queue.unregister(table);
    }

    fn held_bytes(&self) -> usize {
        self.queue.contents().1 as usize
    }

    fn inode(&self) -> Arc<dyn Inode> {
        match self.me.upgrade() {
            Some(me) => me,
            None => instance().root(),
        }
    }
}

/// `struct mq_attr` (mq_getattr(3)).
#[derive(
    zerocopy::FromBytes,
    zerocopy::IntoBytes,
    zerocopy::Immutable,
    zerocopy::KnownLayout,
    Clone,
    Copy,
    Debug,
    Default,
)]
#[repr(C)]
pub struct Attr {
    /// O_NONBLOCK, or 0.
    pub(super) flags: i64,
    /// Most messages.
    pub(super) max_messages: i64,
    /// Most bytes of one.
    pub(super) max_bytes: i64,
    /// Messages in it.
    pub(super) messages: i64,
    reserved: [i64; 4],
}

impl Attr {
    /// That of an open queue.
    pub(super) fn of(file: &File, queue: &Queue) -> Attr {
        Attr {
            flags: i64::from(file.flags() & raw::O_NONBLOCK),
            max_messages: queue.max_messages as i64,
            max_bytes: queue.max_bytes as i64,
            messages: queue.contents().0 as i64,
            reserved: [0; 4],
        }
    }

    /// What a program asks of a new queue, if it asks.
    pub(super) fn read_asked(at: UserPtr<Attr>) -> Result<Option<Asked>> {
        let attr = at.non_null().map(UserPtr::read).transpose()?;
        Ok(attr.map(|attr| (attr.max_messages, attr.max_bytes)))
    }
}
