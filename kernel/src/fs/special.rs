//! Device nodes and FIFOs: from a node of any file system to what it stands for.
//!
//! Drivers register the device numbers they serve; file systems call [`open`] from [`Inode::open`]
//! for nodes. A FIFO's pipe lives while an end of it is open, and is found by the node's address,
//! which stays as long, because ends hold their node.

use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};

use abi::{Errno, Result};
use machine::sync::SpinLock;

use super::{FileOps, FileType, Inode};
use crate::ipc::pipe::{Pipe, open_fifo};

/// What serves a range of character devices.
pub trait CharDriver: Send + Sync {
    /// Opens the device `rdev` (makedev(3)) through its node. `flags` are open(2)'s.
    fn open(&self, node: Arc<dyn Inode>, rdev: u64, flags: u32) -> Result<Arc<dyn FileOps>>;
}

/// First device number of a range -> (last, driver).
static DRIVERS: SpinLock<BTreeMap<u64, (u64, Arc<dyn CharDriver>)>> =
    SpinLock::new(BTreeMap::new());
/// Pipes of FIFOs that are open, by the node's address.
static FIFOS: SpinLock<BTreeMap<usize, Weak<Pipe>>> = SpinLock::new(BTreeMap::new());

/// Packs a device number as makedev(3) does.
#[must_use]
pub const fn make_device(major: u32, minor: u32) -> u64 {
    let (major, minor) = (major as u64, minor as u64);
    minor & 0xff | (major & 0xfff) << 8 | (minor & !0xff) << 12 | (major & !0xfff) << 32
}

/// The major number of a packed device number.
#[must_use]
pub const fn major(device: u64) -> u32 {
    ((device >> 8 & 0xfff) | (device >> 32 & !0xfff)) as u32
}

/// The minor number of a packed device number.
#[must_use]
pub const fn minor(device: u64) -> u32 {
    ((device & 0xff) | (device >> 12 & !0xff)) as u32
}

/// Serves the minors `[first, first + count)` of a major number from now on. A later registration
/// of the same first number replaces an earlier one.
pub fn register_char(major: u32, first: u32, count: u32, driver: Arc<dyn CharDriver>) {
    let range = make_device(major, first);
    let last = make_device(major, first + count.saturating_sub(1));
    let old = DRIVERS.lock().insert(range, (last, driver));
    drop(old);
}

/// The pipe behind a FIFO: the one that is open, or a new one.
fn pipe_of(node: &Arc<dyn Inode>) -> Arc<Pipe> {
    let key = Arc::as_ptr(node).addr();
    let mut fifos = FIFOS.lock();
    if let Some(pipe) = fifos.get(&key).and_then(Weak::upgrade) {
        return pipe;
    }
    fifos.retain(|_, pipe| pipe.strong_count() > 0);
    let pipe = Pipe::new();
    fifos.insert(key, Arc::downgrade(&pipe));
    pipe
}

/// Opens what a node stands for. ENXIO if nothing serves it.
pub fn open(node: Arc<dyn Inode>, rdev: u64, flags: u32) -> Result<Arc<dyn FileOps>> {
    match node.file_type() {
        FileType::CharDevice => {
            let driver = {
                let drivers = DRIVERS.lock();
                let found = drivers.range(..=rdev).next_back();
                found.filter(|(_, (last, _))| rdev <= *last).map(|(_, (_, driver))| driver.clone())
            };
            driver.ok_or(Errno::ENXIO)?.open(node, rdev, flags)
        }
        FileType::Fifo => open_fifo(&pipe_of(&node), node, flags),
        _ => Err(Errno::ENXIO),
    }
}
