//! The file system of pseudo terminals, at /dev/pts (pts(4)): one device node for each master
//! that is open, and `ptmx`.

use alloc::collections::BTreeMap;
use alloc::string::ToString;
use alloc::sync::Arc;
use alloc::vec::Vec;

use abi::{Errno, Result};
use machine::sync::{Once, SpinLock};

use super::{job, pty};
use crate::drivers::chrdev::{self, make_device};
use crate::process::current;
use crate::vfs::{
    DirEntry, FileOps, FileSystem, FileType, Inode, InodeState, Metadata, SetAttributes, Statistics,
};

/// DEVPTS_SUPER_MAGIC.
const MAGIC: u64 = 0x1cd1;
/// Group `tty` on most systems: owns the nodes, so that write(1) can reach them.
const TTY_GROUP: u32 = 5;
/// Inode numbers: the directory, `ptmx`, then slaves from here on.
const ROOT_NUMBER: u64 = 1;
const PTMX_NUMBER: u64 = 2;
const FIRST_SLAVE: u64 = 3;

struct DevPts {
    device: u64,
    made_ns: i64,
    nodes: SpinLock<BTreeMap<u32, Arc<Node>>>,
}

#[derive(Clone, Copy)]
struct Attributes {
    mode: u32,
    uid: u32,
    gid: u32,
    time_ns: i64,
}

struct Node {
    /// The slave's number; None: `ptmx`.
    number: Option<u32>,
    attributes: SpinLock<Attributes>,
    state: InodeState,
}

struct Directory(InodeState);

fn instance() -> &'static Arc<DevPts> {
    static INSTANCE: Once<Arc<DevPts>> = Once::new();
    INSTANCE.call_once(|| {
        Arc::new(DevPts {
            device: crate::vfs::anonymous_device(),
            made_ns: crate::base::time::realtime_ns() as i64,
            nodes: SpinLock::new(BTreeMap::new()),
        })
    })
}

/// The file system, for mounting.
#[must_use]
pub fn file_system() -> Arc<dyn FileSystem> {
    instance().clone()
}

/// A master was opened: its slave appears, owned by the current process's user.
pub(super) fn make(number: u32) {
    let uid = current().credentials().fsuid;
    let time_ns = crate::base::time::realtime_ns() as i64;
    let attributes = Attributes { mode: 0o620, uid, gid: TTY_GROUP, time_ns };
    let node = Node::new(Some(number), attributes);
    let old = instance().nodes.lock().insert(number, node);
    drop(old);
}

/// The master was closed: the slave's name goes.
pub(super) fn forget(number: u32) {
    let old = instance().nodes.lock().remove(&number);
    drop(old);
}

/// The node of a slave.
pub(super) fn node(number: u32) -> Option<Arc<dyn Inode>> {
    let node = instance().nodes.lock().get(&number).cloned()?;
    Some(node)
}

fn ptmx() -> Arc<Node> {
    let time_ns = instance().made_ns;
    let attributes = Attributes { mode: 0o666, uid: 0, gid: 0, time_ns };
    Node::new(None, attributes)
}

impl FileSystem for DevPts {
    fn root(&self) -> Arc<dyn Inode> {
        static ROOT: Once<Arc<Directory>> = Once::new();
        ROOT.call_once(|| Arc::new(Directory(InodeState::default()))).clone()
    }

    fn name(&self) -> &'static str {
        "devpts"
    }

    fn statistics(&self) -> Statistics {
        Statistics { magic: MAGIC, block_size: 4096, ..Statistics::default() }
    }

    fn caches_names(&self) -> bool {
        false
    }
}

impl Inode for Directory {
    fn state(&self) -> &InodeState {
        &self.0
    }

    fn metadata(&self) -> Result<Metadata> {
        let time_ns = instance().made_ns;
        Ok(Metadata {
            device: instance().device,
            inode: ROOT_NUMBER,
            file_type: FileType::Directory,
            mode: 0o755,
            links: 2,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 0,
            blocks: 0,
            block_size: 1024,
            atime_ns: time_ns,
            mtime_ns: time_ns,
            ctime_ns: time_ns,
            btime_ns: None,
        })
    }

    fn set_attributes(&self, _changes: &SetAttributes) -> Result<()> {
        Err(Errno::EPERM)
    }

    fn file_type(&self) -> FileType {
        FileType::Directory
    }

    fn file_system(&self) -> Arc<dyn FileSystem> {
        instance().clone()
    }

    fn open(self: Arc<Self>, _flags: u32) -> Result<Arc<dyn FileOps>> {
        Ok(Arc::new(OpenDirectory(self)))
    }

    fn lookup(&self, name: &[u8]) -> Result<Arc<dyn Inode>> {
        if name == b"ptmx" {
            return Ok(ptmx());
        }
        let text = core::str::from_utf8(name).map_err(|_| Errno::ENOENT)?;
        let number: u32 = text.parse().map_err(|_| Errno::ENOENT)?;
        // "01" is not a name of slave 1.
        if number.to_string() != text {
            return Err(Errno::ENOENT);
        }
        node(number).ok_or(Errno::ENOENT)
    }

    fn read_dir(&self, from: u64, max: usize) -> Result<Vec<DirEntry>> {
        let ptmx = (b"ptmx".to_vec(), PTMX_NUMBER);
        let slaves = pty::numbers()
            .into_iter()
            .map(|number| (number.to_string().into_bytes(), FIRST_SLAVE + u64::from(number)));
        let entries = core::iter::once(ptmx).chain(slaves).enumerate();
        Ok(entries
            .skip(usize::try_from(from).unwrap_or(usize::MAX))
            .take(max)
            .map(|(index, (name, inode))| DirEntry {
                name: name.into(),
                inode,
                file_type: FileType::CharDevice,
                next: index as u64 + 1,
            })
            .collect())
    }
}

/// An open directory: all of it is in the inode.
struct OpenDirectory(Arc<Directory>);

impl FileOps for OpenDirectory {
    fn is_seekable(&self) -> bool {
        true
    }

    fn inode(&self) -> Arc<dyn Inode> {
        self.0.clone()
    }
}

impl Node {
    fn new(number: Option<u32>, attributes: Attributes) -> Arc<Node> {
        let attributes = SpinLock::new(attributes);
        Arc::new(Node { number, attributes, state: InodeState::default() })
    }

    fn device(&self) -> u64 {
        match self.number {
            Some(number) => make_device(pty::SLAVE_MAJOR, number),
            None => make_device(job::TTY_MAJOR, 2),
        }
    }
}

impl Inode for Node {
    fn state(&self) -> &InodeState {
        &self.state
    }

    fn metadata(&self) -> Result<Metadata> {
        let attributes = *self.attributes.lock();
        Ok(Metadata {
            device: instance().device,
            inode: self.number.map_or(PTMX_NUMBER, |number| FIRST_SLAVE + u64::from(number)),
            file_type: FileType::CharDevice,
            mode: attributes.mode,
            links: 1,
            uid: attributes.uid,
            gid: attributes.gid,
            rdev: self.device(),
            size: 0,
            blocks: 0,
            block_size: 1024,
            atime_ns: attributes.time_ns,
            mtime_ns: attributes.time_ns,
            ctime_ns: attributes.time_ns,
            btime_ns: None,
        })
    }

    fn set_attributes(&self, changes: &SetAttributes) -> Result<()> {
        // A size comes with O_TRUNC, which devices ignore.
        let mut attributes = self.attributes.lock();
        attributes.mode = changes.mode.unwrap_or(attributes.mode);
        attributes.uid = changes.uid.unwrap_or(attributes.uid);
        attributes.gid = changes.gid.unwrap_or(attributes.gid);
        attributes.time_ns = changes.mtime_ns.unwrap_or(attributes.time_ns);
        Ok(())
    }

    fn file_type(&self) -> FileType {
        FileType::CharDevice
    }

    fn file_system(&self) -> Arc<dyn FileSystem> {
        instance().clone()
    }

    fn open(self: Arc<Self>, flags: u32) -> Result<Arc<dyn FileOps>> {
        let device = self.device();
        chrdev::open(self, device, flags)
    }
}
