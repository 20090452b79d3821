//! Device nodes and FIFOs: from a node of any file system to what it stands for.
//!
//! `boot` names, once, the tables of device numbers that drivers serve, and how FIFOs are opened;
//! file systems call [`open`] from [`Inode::open`] for nodes. What a node leads to is sealed then.

use alloc::sync::Arc;

use abi::{Errno, Result};
use machine::sync::Once;

pub use crate::base::device_number::{major, make_device, minor};
use crate::vfs::{FileOps, FileType, Inode};

/// What serves a range of character devices.
pub trait CharDriver: Send + Sync {
    /// Opens the device `rdev` (makedev(3)) through its node. `flags` are open(2)'s.
    fn open(&self, node: Arc<dyn Inode>, rdev: u64, flags: u32) -> Result<Arc<dyn FileOps>>;
}

/// How a FIFO is opened: waits for the other end as fifo(7) says.
pub type FifoOpener = fn(Arc<dyn Inode>, u32) -> Result<Arc<dyn FileOps>>;

/// The minors `[first, first + count)` of a major number, and who serves them.
pub struct CharDevices {
    /// Major number.
    pub major: u32,
    /// First minor.
    pub first: u32,
    /// How many.
    pub count: u32,
    /// Whom their nodes are opened by.
    pub driver: &'static dyn CharDriver,
}

impl CharDevices {
    fn serve(&self, device: u64) -> bool {
        major(device) == self.major
            && minor(device).checked_sub(self.first).is_some_and(|nth| nth < self.count)
    }
}

/// What nodes stand for.
pub struct Nodes {
    /// The devices of each floor that has some; no number is in two of them.
    pub devices: &'static [&'static [CharDevices]],
    /// See [`FifoOpener`].
    pub fifo: FifoOpener,
}

impl Nodes {
    fn serving(&self, device: u64) -> Option<&'static CharDevices> {
        self.devices.iter().copied().flatten().find(|devices| devices.serve(device))
    }
}

machine::ro_after_init! {
    static NODES: Once<Nodes> = Once::new();
}

/// Says what nodes stand for, once.
pub fn register(nodes: Nodes) {
    NODES.call_once(|| nodes);
}

/// Whether a driver serves this character device.
#[must_use]
pub fn is_served(device: u64) -> bool {
    NODES.get().is_some_and(|nodes| nodes.serving(device).is_some())
}

/// Opens what a node stands for. ENXIO if nothing serves it.
pub fn open(node: Arc<dyn Inode>, rdev: u64, flags: u32) -> Result<Arc<dyn FileOps>> {
    let nodes = NODES.get().ok_or(Errno::ENXIO)?;
    match node.file_type() {
        FileType::CharDevice => {
            nodes.serving(rdev).ok_or(Errno::ENXIO)?.driver.open(node, rdev, flags)
        }
        FileType::Fifo => (nodes.fifo)(node, flags),
        _ => Err(Errno::ENXIO),
    }
}
