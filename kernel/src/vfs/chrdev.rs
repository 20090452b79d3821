//! Device nodes and FIFOs: from a node of any file system to what it stands for.
//!
//! Drivers register the device numbers they serve; file systems call [`open`] from [`Inode::open`]
//! for nodes. The pipe code registers how FIFOs are opened.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;

use abi::{Errno, Result};
use machine::sync::{Once, SpinLock};

use super::{FileOps, FileType, Inode};

/// What serves a range of character devices.
pub trait CharDriver: Send + Sync {
    /// Opens the device `rdev` (makedev(3)) through its node. `flags` are open(2)'s.
    fn open(&self, node: Arc<dyn Inode>, rdev: u64, flags: u32) -> Result<Arc<dyn FileOps>>;
}

/// How a FIFO is opened: waits for the other end as fifo(7) says.
pub type FifoOpener = fn(Arc<dyn Inode>, u32) -> Result<Arc<dyn FileOps>>;

/// First device number of a range -> (last, driver).
type Ranges = BTreeMap<u64, (u64, Arc<dyn CharDriver>)>;

static DRIVERS: SpinLock<Ranges> = SpinLock::new(BTreeMap::new());
static FIFO: Once<FifoOpener> = Once::new();

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

/// Says how FIFOs are opened.
pub fn register_fifo(opener: FifoOpener) {
    FIFO.call_once(|| opener);
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
        FileType::Fifo => FIFO.get().ok_or(Errno::ENXIO)?(node, flags),
        _ => Err(Errno::ENXIO),
    }
}
