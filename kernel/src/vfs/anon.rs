//! Objects without a name: what pipes, sockets, event counters and other descriptors show to
//! fstat(2) and /proc/PID/fd.
//!
//! Event counters and their like are one object to all that goes by the object, as locks do: they
//! show the same inode number, and a lock on one is in the way of a lock on another. Pidfds are one
//! object for each process, or thread.
//!
//! Neighbours: `io` and `net` make them with [`AnonInode::new`]; a kind that can be opened again
//! through /proc/PID/fd (pipes) says how with [`AnonInode::set_opener`].

use alloc::format;
use alloc::string::String;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use abi::{Errno, Result};
use machine::sync::{Once, SpinLock};

use super::dentry::Dentry;
use super::mount::{self, Mount};
use super::path::Location;
use super::{
    FileOps, FileSystem, FileType, Inode, InodeState, Metadata, SetAttributes, Statistics,
};
use crate::page_cache::PageCache;

/// How an object is opened once more (open(2) of /proc/PID/fd/N).
pub trait Reopen: Send + Sync {
    /// Opens it with open(2)'s flags.
    fn reopen(self: Arc<Self>, flags: u32) -> Result<Arc<dyn FileOps>>;
}

/// See the module.
pub struct AnonInode {
    file_type: FileType,
    label: &'static str,
    number: u64,
    /// The object that it is one with.
    one_with: Option<Arc<AnonInode>>,
    attributes: SpinLock<Attributes>,
    opener: SpinLock<Option<Weak<dyn Reopen>>>,
    state: InodeState,
    /// What mmap(2) maps.
    contents: Option<Arc<PageCache>>,
    /// What a socket's protocol is called.
    protocol: Option<&'static [u8]>,
}

/// The attribute by which sockets tell their protocol, with a NUL behind it (linux/xattr.h).
pub const PROTOCOL_NAME: &[u8] = b"system.sockprotoname";

#[derive(Clone, Copy)]
struct Attributes {
    mode: u32,
    uid: u32,
    gid: u32,
    /// All three times of a new object.
    time_ns: i64,
}

/// The inode number of all that have none of their own.
const SHARED_NUMBER: u64 = 1;

static NEXT: AtomicU64 = AtomicU64::new(SHARED_NUMBER + 1);

impl AnonInode {
    /// A new object of the kernel's with permission bits `mode`. `label` is what /proc shows:
    /// `[eventfd]`, `inotify` and so on.
    #[must_use]
    pub fn new(file_type: FileType, mode: u32, label: &'static str) -> Arc<AnonInode> {
        let mut new = Self::make(file_type, mode, label);
        new.one_with = new.is_shared().then(|| common().clone());
        Arc::new(new)
    }

    /// The same, which belongs to a user and a group: a `pipe`, a `socket`.
    #[must_use]
    pub fn owned(
        file_type: FileType,
        mode: u32,
        label: &'static str,
        (uid, gid): (u32, u32),
    ) -> Arc<AnonInode> {
        let mut new = Self::make(file_type, mode, label);
        let attributes = new.attributes.get_mut();
        (attributes.uid, attributes.gid) = (uid, gid);
        Arc::new(new)
    }

    /// The same of a socket whose protocol has this name.
    pub fn of_socket(mode: u32, protocol: &'static [u8], (uid, gid): (u32, u32)) -> Arc<AnonInode> {
        let mut new = Self::make(FileType::Socket, mode, "socket");
        let attributes = new.attributes.get_mut();
        (attributes.uid, attributes.gid) = (uid, gid);
        Arc::new(AnonInode { protocol: Some(protocol), ..new })
    }

    /// The same with pages that programs may map.
    #[must_use]
    pub fn mapped(
        file_type: FileType,
        mode: u32,
        label: &'static str,
        contents: Arc<PageCache>,
    ) -> Arc<AnonInode> {
        Arc::new(AnonInode { contents: Some(contents), ..Self::make(file_type, mode, label) })
    }

    fn make(file_type: FileType, mode: u32, label: &'static str) -> AnonInode {
        let time_ns = crate::base::time::realtime_ns() as i64;
        AnonInode {
            file_type,
            label,
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            one_with: None,
            attributes: SpinLock::new(Attributes { mode, uid: 0, gid: 0, time_ns }),
            opener: SpinLock::new(None),
            state: InodeState::default(),
            contents: None,
            protocol: None,
        }
    }

    /// Says how it is opened again.
    pub fn set_opener(&self, opener: Weak<dyn Reopen>) {
        *self.opener.lock() = Some(opener);
    }

    /// Its inode number.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Whether it has no number of its own: eventfd(2) and the like.
    #[must_use]
    pub fn is_unnumbered(&self) -> bool {
        self.label.starts_with('[') || self.label == "inotify"
    }

    /// Whether fstat(2) cannot tell it from others; pidfds can be told apart.
    fn is_shared(&self) -> bool {
        self.is_unnumbered() && !self.is_pidfd()
    }

    /// Whether it stands for a process (pidfd_open(2)).
    #[must_use]
    pub fn is_pidfd(&self) -> bool {
        self.label == PIDFD
    }

    /// The target of the link in /proc/PID/fd: `pipe:[7]`, `anon_inode:[eventfd]`.
    #[must_use]
    pub fn link_text(&self) -> String {
        if self.is_unnumbered() {
            format!("anon_inode:{}", self.label)
        } else {
            format!("{}:[{}]", self.label, self.number)
        }
    }
}

impl Inode for AnonInode {
    fn state(&self) -> &InodeState {
        self.one_with.as_ref().map_or(&self.state, |one| &one.state)
    }

    fn metadata(&self) -> Result<Metadata> {
        let attributes = *self.attributes.lock();
        Ok(Metadata {
            device: device_of(self.label),
            inode: if self.is_shared() { SHARED_NUMBER } else { self.number },
            file_type: self.file_type,
            mode: attributes.mode,
            links: 1,
            uid: attributes.uid,
            gid: attributes.gid,
            rdev: 0,
            size: 0,
            blocks: 0,
            block_size: 4096,
            atime_ns: attributes.time_ns,
            mtime_ns: attributes.time_ns,
            ctime_ns: attributes.time_ns,
            btime_ns: None,
        })
    }

    fn set_attributes(&self, changes: &SetAttributes) -> Result<()> {
        if changes.size.is_some() {
            return Err(Errno::EINVAL);
        }
        if self.file_type == FileType::Anonymous {
            return Err(Errno::EOPNOTSUPP);
        }
        let mut attributes = self.attributes.lock();
        attributes.mode = changes.mode.unwrap_or(attributes.mode);
        attributes.uid = changes.uid.unwrap_or(attributes.uid);
        attributes.gid = changes.gid.unwrap_or(attributes.gid);
        attributes.time_ns = changes.mtime_ns.unwrap_or(attributes.time_ns);
        Ok(())
    }

    fn file_type(&self) -> FileType {
        self.file_type
    }

    fn file_system(&self) -> Arc<dyn FileSystem> {
        file_system().clone()
    }

    fn page_cache(&self) -> Option<Arc<PageCache>> {
        self.contents.clone()
    }

    fn get_xattr(&self, name: &[u8]) -> Result<Vec<u8>> {
        match self.protocol {
            Some(protocol) if name == PROTOCOL_NAME => Ok([protocol, b"\0"].concat()),
            _ => Err(Errno::EOPNOTSUPP),
        }
    }

    fn list_xattr(&self) -> Result<Vec<u8>> {
        Ok(self.protocol.map_or_else(Vec::new, |_| [PROTOCOL_NAME, b"\0"].concat()))
    }

    fn open(self: Arc<Self>, flags: u32) -> Result<Arc<dyn FileOps>> {
        let opener = self.opener.lock().as_ref().and_then(Weak::upgrade);
        opener.ok_or(Errno::ENXIO)?.reopen(flags)
    }
}

/// The object that event counters and their like are. There from the boot on, so that no program is
/// the one that makes it.
pub fn common() -> &'static Arc<AnonInode> {
    static COMMON: Once<Arc<AnonInode>> = Once::new();
    COMMON.call_once(|| Arc::new(AnonInode::make(FileType::Anonymous, 0o600, "[common]")))
}

/// What a pidfd is called.
const PIDFD: &str = "[pidfd]";

/// What all pidfds of a process are, or all of a thread: there while one of them is open, and of
/// the same number when one is opened again.
#[derive(Default)]
pub struct PidObject(SpinLock<(u64, Weak<AnonInode>)>);

impl PidObject {
    /// The object.
    pub fn get(&self) -> Arc<AnonInode> {
        let (number, known) = &mut *self.0.lock();
        known.upgrade().unwrap_or_else(|| {
            let mut new = AnonInode::make(FileType::Anonymous, 0o700, PIDFD);
            if *number != 0 {
                new.number = *number;
            }
            *number = new.number;
            let new = Arc::new(new);
            *known = Arc::downgrade(&new);
            new
        })
    }
}

/// The object by which locks are remembered: one that is one with others may go before them.
pub fn lasting(inode: &Arc<dyn Inode>) -> Arc<dyn Inode> {
    match inode.downcast_ref::<AnonInode>().and_then(|anon| anon.one_with.clone()) {
        Some(one) => one,
        None => inode.clone(),
    }
}

/// The file system of all such objects.
struct AnonFs {
    device: u64,
}

impl FileSystem for AnonFs {
    fn root(&self) -> Arc<dyn Inode> {
        AnonInode::new(FileType::Directory, 0, "[root]")
    }

    fn name(&self) -> &'static str {
        "anon_inodefs"
    }

    fn statistics(&self) -> Statistics {
        Statistics { magic: 0x0904_1934, block_size: 4096, ..Statistics::default() }
    }
}

fn file_system() -> &'static Arc<AnonFs> {
    static FILE_SYSTEM: Once<Arc<AnonFs>> = Once::new();
    FILE_SYSTEM.call_once(|| Arc::new(AnonFs { device: super::anonymous_device() }))
}

/// The number of the file system that a kind of object is of: pipes and sockets have their own.
fn device_of(label: &str) -> u64 {
    static OTHERS: Once<[u64; 2]> = Once::new();
    let others = || [super::anonymous_device(), super::anonymous_device()];
    let [pipes, sockets] = *OTHERS.call_once(others);
    match label {
        "pipe" => pipes,
        "socket" => sockets,
        _ => file_system().device,
    }
}

/// A place for an object that has none, so that links of procfs and `*at` calls can lead to it.
pub fn location(inode: Arc<dyn Inode>) -> Location {
    static MOUNT: Once<Arc<Mount>> = Once::new();
    let mount = MOUNT.call_once(|| mount::detached(file_system().clone()));
    let name = match inode.downcast_ref::<AnonInode>() {
        Some(anon) => anon.link_text(),
        None => String::from("anon_inode:[unknown]"),
    };
    Location::new(mount.clone(), Dentry::detached(inode, name.as_bytes()))
}
