//! Files of the host, by the 9P2000.L protocol.
//!
//! Why it is hard: each question to the server is an exit from the virtual machine and back, many
//! thousand instructions, so what is known is kept: one [`NinepInode`] for each object of the
//! server, found again by the server's number for it, with its attributes for about a second and
//! its data in a page cache. The host may change its files at any time; attributes that are asked
//! for again and differ make the cached data invalid.
//!
//! A writable share (`--rw`) keeps written pages until 4 MiB are dirty, the file is closed or
//! synced, or the machine is switched off; files that may hold such pages are kept alive by the
//! file system.
//!
//! Reading order: `client` (requests), `inode` (objects), `file` (open files and their data).
//! Neighbours: `formats::ninep` (the messages), `drivers` (the transport), `overlay` (which makes
//! the live root writable without writing to the host).

use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::{Arc, Weak};

use abi::{Errno, Result};
use machine::sync::SpinLock;

use crate::drivers::ninep_transport::Transport;
use crate::vfs::{FileSystem, FileType, Inode, Statistics};

mod client;
mod file;
mod inode;

pub use client::{Client, Fid};
pub use inode::NinepInode;

/// Most files that stay open at the server for later use.
const OPEN_MAX: usize = 512;

/// A tree of the server.
pub struct NinepFs {
    me: Weak<NinepFs>,
    device: u64,
    writable: bool,
    root: machine::sync::Once<Arc<NinepInode>>,
    /// Known objects, by the server's number for them.
    inodes: SpinLock<BTreeMap<u64, Weak<NinepInode>>>,
    /// Objects that are open at the server, oldest first.
    open: SpinLock<VecDeque<Weak<NinepInode>>>,
    /// Objects opened for writing, or with pages to write back.
    written: SpinLock<BTreeMap<u64, Arc<NinepInode>>>,
}

impl NinepFs {
    /// Attaches to the server's tree. `max_message`: largest message the transport carries, bytes.
    /// Without `writable` every change is refused with EROFS.
    pub fn mount(
        transport: Arc<dyn Transport>,
        max_message: u32,
        writable: bool,
    ) -> Result<Arc<NinepFs>> {
        let client = Client::connect(transport, max_message)?;
        let (fid, _) = client.attach()?;
        let attributes = fid.attributes()?;
        let fs = Arc::new_cyclic(|me| NinepFs {
            me: me.clone(),
            device: crate::vfs::anonymous_device(),
            writable,
            root: machine::sync::Once::new(),
            inodes: SpinLock::new(BTreeMap::new()),
            open: SpinLock::new(VecDeque::new()),
            written: SpinLock::new(BTreeMap::new()),
        });
        let root = NinepInode::new(&fs, fid, &attributes)?;
        if root.file_type() != FileType::Directory {
            return Err(Errno::ENOTDIR);
        }
        fs.root.call_once(|| root);
        Ok(fs)
    }

    fn check_writable(&self) -> Result<()> {
        if self.writable { Ok(()) } else { Err(Errno::EROFS) }
    }

    /// Notes that the object now is open at the server; closes the one that was opened longest ago
    /// if there are too many.
    fn note_open(&self, inode: Weak<NinepInode>) {
        let oldest = {
            let mut open = self.open.lock();
            open.push_back(inode);
            if open.len() > OPEN_MAX { open.pop_front() } else { None }
        };
        if let Some(oldest) = oldest.as_ref().and_then(Weak::upgrade) {
            oldest.close_reader();
        }
    }
}

impl FileSystem for NinepFs {
    fn root(&self) -> Arc<dyn Inode> {
        self.root.get().expect("set by `mount`").clone()
    }

    fn name(&self) -> &'static str {
        "9p"
    }

    fn statistics(&self) -> Statistics {
        let known = self.root.get().and_then(|root| root.fid().statistics().ok());
        known.map_or(
            Statistics { magic: 0x0102_1997, block_size: 4096, ..Default::default() },
            |s| Statistics {
                magic: 0x0102_1997,
                block_size: u64::from(s.block_size),
                blocks: s.blocks,
                free: s.available,
                files: s.files,
                free_files: s.free_files,
            },
        )
    }

    fn caches_names(&self) -> bool {
        // A writable share is there to be changed from both sides.
        !self.writable
    }

    fn sync(&self) -> Result<()> {
        let written: alloc::vec::Vec<_> = self.written.lock().values().cloned().collect();
        let mut result = Ok(());
        for inode in written {
            result = result.and(inode.write_back());
        }
        result
    }
}
