//! A writable view of a file system that is never written: changes stay in memory.
//!
//! Each object is a [`Node`]: it has a `lower` object, or none if it was made here, and carries
//! only what differs from it: attributes once one was changed, pages once they were written,
//! extended attributes, and for directories the names that were added, removed or moved here. So
//! "copying up" copies no data: a file opened for writing gets a page cache of its own that takes
//! pages from the lower one as they are asked for, and truncating takes none. A node keeps its
//! lower object wherever it is moved to, so a directory is renamed in one step, and its number
//! never changes.
//!
//! Why it is hard: nodes without changes must go when nobody uses them (a tree of a million files
//! would fill memory), while those with changes must stay, and with them the directories on the way
//! to them. So an unchanged node holds its parent and the parent only knows it weakly; the first
//! change "pins" it: every directory up to the top then holds its child.
//!
//! Not chosen: an upper tree on tmpfs with whiteout objects, as other systems have it: two lookups
//! for each name, data copied as a whole, and no renaming of lower directories.
//!
//! Hidden objects (`--hide`) and the host's own /proc, /sys and /dev are absent by name, and the
//! hidden ones also by their lower number, so that no other name (a bind mount, a hard link of the
//! object itself) leads to them.
//!
//! Locks: a node's `writing` (sleeps; around data), then the file system's `tree` (a spin lock:
//! what is where), then directories' `entries`, then `place`, then attributes. Nothing is dropped
//! under them. Names of one directory are only changed by one thread at a time: path walking sees
//! to it.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use abi::{Errno, Result};
use machine::sync::{Once, SpinLock};

use crate::vfs::{FileSystem, FileType, Inode, Metadata, Statistics};

mod data;
mod directory;
mod node;

pub use node::Node;

/// OVERLAYFS_SUPER_MAGIC (statfs(2)).
const MAGIC: u64 = 0x794c_7630;
/// Numbers of objects made here start here, above what a host's file systems use.
const FIRST_NUMBER: u64 = 0x7f00_0000_0000_0000;
/// Links followed on the way to a path to hide.
const LINKS_MAX: usize = 40;
/// Part of the machine's memory that writes leave free, so that programs can go on.
const RESERVE: usize = 32;

/// See the module.
pub struct OverlayFs {
    me: Weak<OverlayFs>,
    device: u64,
    next_number: AtomicU64,
    root: Once<Arc<Node>>,
    /// The lower file system's names change by themselves.
    names_expire: bool,
    /// What is where: held while names change and nodes are pinned.
    tree: SpinLock<()>,
    /// Nodes of lower files that have several names, by lower number.
    linked: SpinLock<BTreeMap<u64, Link>>,
    /// Lower numbers of objects that must not be found.
    hidden: SpinLock<BTreeSet<u64>>,
}

/// A node that several lower names lead to.
struct Link {
    node: Weak<Node>,
    /// Set once it differs from the lower object.
    pinned: Option<Arc<Node>>,
}

/// An object with the directory and the name it was found by.
type Found = (Arc<Node>, Vec<u8>, Arc<Node>);

impl OverlayFs {
    /// A writable view of `lower`.
    pub fn new(lower: &Arc<dyn FileSystem>) -> Result<Arc<OverlayFs>> {
        let fs = Arc::new_cyclic(|me| OverlayFs {
            me: me.clone(),
            device: crate::vfs::anonymous_device(),
            next_number: AtomicU64::new(FIRST_NUMBER),
            root: Once::new(),
            names_expire: lower.names_expire(),
            tree: SpinLock::new(()),
            linked: SpinLock::new(BTreeMap::new()),
            hidden: SpinLock::new(BTreeSet::new()),
        });
        let lower_root = lower.root();
        let metadata = lower_root.metadata()?;
        let root = Node::from_lower(&fs, lower_root, &metadata, None);
        root.pin();
        fs.root.call_once(|| root);
        Ok(fs)
    }

    fn top(&self) -> Arc<Node> {
        self.root.get().expect("set by `new`").clone()
    }

    /// Makes the object at the absolute path `path` look as if it did not exist, under this name
    /// and any other. Links on the way, and at the end, are followed. Ok if there is no such
    /// object.
    pub fn hide(&self, path: &[u8]) -> Result<()> {
        let Some((directory, name, node)) = self.find(path)? else { return Ok(()) };
        self.hidden.lock().insert(node.number());
        directory.cover(&name);
        Ok(())
    }

    /// Makes the directory at the absolute path `path` look empty. Ok if there is none.
    pub fn empty_directory(&self, path: &[u8]) -> Result<()> {
        let Some((_, _, node)) = self.find(path)? else { return Ok(()) };
        if node.file_type() == FileType::Directory {
            node.make_opaque()?;
        }
        Ok(())
    }

    /// The object at a path, with the directory and the name it is found by.
    fn find(&self, path: &[u8]) -> Result<Option<Found>> {
        let mut todo: Vec<Vec<u8>> = components(path);
        let mut at: Vec<Arc<Node>> = Vec::from([self.top()]);
        let mut links = 0;
        while let Some(name) = todo.pop() {
            let Some(directory) = at.last().cloned() else { return Ok(None) };
            if name == b".." {
                if at.len() > 1 {
                    at.pop();
                }
                continue;
            }
            let node = match directory.child(&name) {
                Ok(node) => node,
                Err(Errno::ENOENT | Errno::ENOTDIR) => return Ok(None),
                Err(error) => return Err(error),
            };
            if node.file_type() == FileType::Symlink {
                links += 1;
                if links > LINKS_MAX {
                    return Err(Errno::ELOOP);
                }
                let target = node.read_link()?;
                if target.first() == Some(&b'/') {
                    at.truncate(1);
                }
                todo.extend(components(&target));
            } else if todo.is_empty() {
                return Ok(Some((directory, name, node)));
            } else {
                at.push(node);
            }
        }
        Ok(None)
    }

    fn new_number(&self) -> u64 {
        self.next_number.fetch_add(1, Ordering::Relaxed)
    }

    /// The node for a lower object found as `name` in `parent`. ENOENT if it is hidden.
    fn node_for(
        self: &Arc<Self>,
        lower: Arc<dyn Inode>,
        metadata: &Metadata,
        place: (Arc<Node>, Arc<[u8]>),
    ) -> Result<Arc<Node>> {
        if self.hidden.lock().contains(&metadata.inode) {
            return Err(Errno::ENOENT);
        }
        if metadata.file_type == FileType::Directory || metadata.links < 2 {
            return Ok(Node::from_lower(self, lower, metadata, Some(place)));
        }
        // One lower file, one node, whichever name it is found by.
        let known = self.linked.lock().get(&metadata.inode).and_then(|link| link.node.upgrade());
        if let Some(known) = known {
            return Ok(known);
        }
        let node = Node::from_lower(self, lower, metadata, Some(place));
        let link = Link { node: Arc::downgrade(&node), pinned: None };
        let old = self.linked.lock().insert(metadata.inode, link);
        drop(old);
        Ok(node)
    }

    /// ENOSPC when memory for what programs write runs out.
    fn check_room(&self) -> Result<()> {
        let (all, free) = machine::frame::usage();
        if free >= all / RESERVE {
            return Ok(());
        }
        crate::page_cache::reclaim_all();
        let (_, free) = machine::frame::usage();
        if free >= all / RESERVE { Ok(()) } else { Err(Errno::ENOSPC) }
    }
}

/// The components of a path, last first, without `.` and empty ones.
fn components(path: &[u8]) -> Vec<Vec<u8>> {
    let parts = path.split(|&byte| byte == b'/').filter(|part| !part.is_empty() && *part != b".");
    parts.rev().map(<[u8]>::to_vec).collect()
}

impl FileSystem for OverlayFs {
    fn root(&self) -> Arc<dyn Inode> {
        self.top()
    }

    fn name(&self) -> &'static str {
        "overlay"
    }

    fn has_inode_flags(&self) -> bool {
        true
    }

    fn names_expire(&self) -> bool {
        self.names_expire
    }

    fn statistics(&self) -> Statistics {
        let (all, free) = machine::frame::usage();
        Statistics {
            magic: MAGIC,
            block_size: 4096,
            blocks: all as u64,
            free: free.saturating_sub(all / RESERVE) as u64,
            files: all as u64,
            free_files: free as u64,
        }
    }
}
