//! Files of the host, by FUSE over virtio-fs: the live root, which is only read.
//!
//! Why it is hard: each question to the server is an exit from the virtual machine, a thread on the
//! host, and an interrupt, so what is known is kept, and no longer than the server says: names,
//! attributes and contents may change on the host at any time. A directory that is read is known as
//! a whole ([`listing`]): its names come with their objects and attributes, so that what is looked
//! up in it afterwards, or is not there, takes no question. When that has expired, one question
//! about the directory's own attributes shows whether its names still hold.
//!
//! Contents come straight into the frames of the page cache.
//!
//! Reading order: `client` (requests), `listing` (what is known of a directory), `ahead` (what is
//! asked before it is wanted), `inode` (objects).
//! Neighbours: `formats::fuse` (the messages), `drivers::fuse_transport` (the device), `overlay`
//! (which makes the live root writable), `ninep` (the other way to the host's files, which also
//! writes).

use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::{Arc, Weak};
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use abi::{Errno, Result};
use machine::frame::PAGE_SIZE;
use machine::sync::{Once, SpinLock};

use crate::drivers::fuse_transport::Transport;
use crate::vfs::{FileSystem, FileType, Inode, Statistics};

mod ahead;
mod client;
mod inode;
mod listing;

pub use inode::VirtioInode;

use ahead::AllAhead;
use client::Client;

/// Most files that stay open at the server for later use.
const OPEN_MAX: usize = 512;
/// Part of the machine's memory that names of directories may take.
const LISTINGS_SHARE: usize = 32;
/// What a name takes with its object's attributes, bytes, about.
const NAME_BYTES: usize = 256;
/// FUSE_SUPER_MAGIC (statfs(2)).
const MAGIC: u64 = 0x6573_5546;

/// A tree of the server.
pub struct VirtioFs {
    me: Weak<VirtioFs>,
    device: u64,
    client: Arc<Client>,
    root: Once<Arc<VirtioInode>>,
    /// Known objects, by the server's number for them.
    inodes: SpinLock<BTreeMap<u64, Weak<VirtioInode>>>,
    /// Objects that are open at the server, oldest first.
    open: SpinLock<VecDeque<Weak<VirtioInode>>>,
    /// Directories that are known, by the server's number for them.
    listed: SpinLock<BTreeMap<u64, Weak<VirtioInode>>>,
    /// Names in them.
    names: AtomicUsize,
    names_max: usize,
    /// Where the next of them is looked for that goes.
    hand: AtomicU64,
    /// Directories whose names are asked for before a program wants them.
    ahead: AllAhead,
}

impl VirtioFs {
    /// Attaches to the server's tree. EIO if it is no such server, ENOTDIR if its top is none.
    pub fn mount(transport: Arc<dyn Transport>) -> Result<Arc<VirtioFs>> {
        let client = Client::connect(transport)?;
        let node = client.root();
        let (valid_ns, attributes) = node.attributes()?;
        let names_max = machine::frame::total() * PAGE_SIZE / LISTINGS_SHARE / NAME_BYTES;
        let fs = Arc::new_cyclic(|me| VirtioFs {
            me: me.clone(),
            device: crate::vfs::anonymous_device(),
            client,
            root: Once::new(),
            inodes: SpinLock::new(BTreeMap::new()),
            open: SpinLock::new(VecDeque::new()),
            listed: SpinLock::new(BTreeMap::new()),
            names: AtomicUsize::new(0),
            names_max,
            hand: AtomicU64::new(0),
            ahead: AllAhead::default(),
        });
        let root = VirtioInode::new(&fs, node, &attributes, valid_ns, None)?;
        if root.file_type() != FileType::Directory {
            return Err(Errno::ENOTDIR);
        }
        fs.root.call_once(|| root);
        Ok(fs)
    }

    /// Notes that the object now is open at the server; closes the one that was opened longest ago
    /// if there are too many.
    fn note_open(&self, inode: Weak<VirtioInode>) {
        let oldest = {
            let mut open = self.open.lock();
            open.push_back(inode);
            if open.len() > OPEN_MAX { open.pop_front() } else { None }
        };
        if let Some(oldest) = oldest.as_ref().and_then(Weak::upgrade) {
            oldest.close_reader();
        }
    }

    /// Notes that so many names of a directory are kept; forgets other directories' if those are
    /// too many: any, so that a walk over more than fits finds a part of it known the next time.
    fn note_names(&self, id: u64, inode: Weak<VirtioInode>, names: usize) {
        let mut kept = self.names.fetch_add(names, Ordering::Relaxed) + names;
        self.listed.lock().insert(id, inode);
        while kept > self.names_max {
            let Some(old) = self.any_listed_but(id) else { break };
            old.forget_names();
            kept = self.names.load(Ordering::Relaxed);
        }
    }

    fn any_listed_but(&self, id: u64) -> Option<Arc<VirtioInode>> {
        /// Steps of the golden ratio reach all parts evenly.
        const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
        let listed = self.listed.lock();
        let (&last, _) = listed.last_key_value()?;
        let from = self.hand.fetch_add(STEP, Ordering::Relaxed) % last.saturating_add(1).max(1);
        let mut others = listed.range(from..).chain(listed.range(..from));
        others.find_map(|(&at, inode)| if at == id { None } else { inode.upgrade() })
    }

    /// Notes that so many names of a directory are kept no longer.
    fn note_forgotten(&self, id: u64, names: usize) {
        self.names.fetch_sub(names, Ordering::Relaxed);
        let old = self.listed.lock().remove(&id);
        drop(old);
    }
}

impl FileSystem for VirtioFs {
    fn root(&self) -> Arc<dyn Inode> {
        self.root.get().expect("set by `mount`").clone()
    }

    fn name(&self) -> &'static str {
        "virtiofs"
    }

    fn statistics(&self) -> Statistics {
        let known = self.client.statistics();
        known.map_or(Statistics { magic: MAGIC, block_size: 4096, ..Default::default() }, |s| {
            Statistics {
                magic: MAGIC,
                block_size: u64::from(s.block_size),
                blocks: s.blocks,
                free: s.available,
                files: s.files,
                free_files: s.free_files,
            }
        })
    }

    fn names_expire(&self) -> bool {
        true
    }
}
