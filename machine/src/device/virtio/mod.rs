//! Virtio devices (Virtual I/O Device 1.2) for drivers that are safe code.
//!
//! A driver takes a [`Device`], negotiates features, makes its [`Queue`]s, and starts it with a
//! function to call on interrupts. Buffers are heap memory that belongs to the queue while the
//! device may use it, so nothing a driver or a device does breaks memory safety. What a device
//! writes is checked; one that breaks the protocol is left alone from then on.
//!
//! The rings and transports are our own, against the rule to prefer a crate: the crate of the field
//! borrows buffers instead of owning them (its `add` and `pop` are unsafe, the pairing is the
//! caller's proof), which a kernel crate without `unsafe` cannot use.
//!
//! Neighbours: `queue` (the ring), `mmio` and `pci` (the two transports).

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::cpu::sync::{Once, SpinLock};
use crate::device::platform;

mod mmio;
mod pci;
mod queue;

pub use queue::{Buffers, Completed, Queue, SubmitError, Token};

use mmio::MmioTransport;
use pci::PciTransport;

/// What a device is (5: device types).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// Network card.
    Net,
    /// Disk.
    Block,
    /// Console and serial ports.
    Console,
    /// Source of randomness.
    Entropy,
    /// 9P file server.
    NineP,
    /// Sockets to the host.
    Vsock,
    /// File server that speaks FUSE.
    FileSystem,
    /// Another type, by number.
    Other(u32),
}

impl DeviceKind {
    fn from_number(number: u32) -> DeviceKind {
        match number {
            1 => DeviceKind::Net,
            2 => DeviceKind::Block,
            3 => DeviceKind::Console,
            4 => DeviceKind::Entropy,
            9 => DeviceKind::NineP,
            19 => DeviceKind::Vsock,
            26 => DeviceKind::FileSystem,
            other => DeviceKind::Other(other),
        }
    }
}

/// Why a device cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceError {
    /// It does not accept the features this kernel needs.
    Features,
    /// It has no such queue.
    NoQueue,
    /// It has no interrupt that this kernel can use.
    NoInterrupt,
    /// It did not answer as the specification says.
    Broken,
    /// Out of memory.
    OutOfMemory,
}

/// The feature every modern device has.
const VERSION_1: u64 = 1 << 32;

mod status {
    pub(super) const ACKNOWLEDGE: u8 = 1;
    pub(super) const DRIVER: u8 = 2;
    pub(super) const DRIVER_OK: u8 = 4;
    pub(super) const FEATURES_OK: u8 = 8;
    pub(super) const FAILED: u8 = 128;
}

/// The parts of a queue, by physical address.
struct QueueAddresses {
    descriptors: u64,
    driver: u64,
    device: u64,
}

enum Transport {
    Mmio(MmioTransport),
    Pci(PciTransport),
}

/// Calls a method that both transports have.
macro_rules! both {
    ($transport:expr, $t:ident => $call:expr) => {
        match $transport {
            Transport::Mmio($t) => $call,
            Transport::Pci($t) => $call,
        }
    };
}

/// A device that no driver runs yet, or whose driver holds it for its configuration.
pub struct Device {
    kind: DeviceKind,
    transport: Transport,
}

static DEVICES: Once<SpinLock<Vec<Device>>> = Once::new();

/// All devices, found at the first call.
fn devices() -> &'static SpinLock<Vec<Device>> {
    DEVICES.call_once(|| {
        let mut found: Vec<Transport> = pci::find().into_iter().map(Transport::Pci).collect();
        found.extend(mmio::find(platform::command_line()).into_iter().map(Transport::Mmio));
        let devices = found.into_iter().map(|transport| {
            let kind = DeviceKind::from_number(both!(&transport, t => t.device_type()));
            Device { kind, transport }
        });
        SpinLock::new(devices.collect())
    })
}

/// Takes a device of this kind; each is given out once, in the order of their addresses.
pub fn take(kind: DeviceKind) -> Option<Device> {
    let mut devices = devices().lock();
    let at = devices.iter().position(|device| device.kind == kind)?;
    Some(devices.remove(at))
}

/// The kinds of the devices nobody has taken.
pub fn kinds() -> Vec<DeviceKind> {
    devices().lock().iter().map(|device| device.kind).collect()
}

impl Device {
    /// What it is.
    pub fn kind(&self) -> DeviceKind {
        self.kind
    }

    /// Resets the device and agrees on features: those of `wanted` (bits below 32 are the device
    /// type's) that it offers. Returns them.
    pub fn negotiate(&mut self, wanted: u64) -> Result<u64, DeviceError> {
        const MAX_POLLS: u32 = 100_000;
        both!(&self.transport, t => t.set_status(0));
        let mut polls = 0;
        while both!(&self.transport, t => t.status()) != 0 {
            polls += 1;
            if polls == MAX_POLLS {
                return Err(DeviceError::Broken);
            }
        }
        let mut status = status::ACKNOWLEDGE | status::DRIVER;
        both!(&self.transport, t => t.set_status(status));
        let offered = both!(&self.transport, t => t.features());
        let features = offered & (wanted | VERSION_1);
        both!(&self.transport, t => t.set_features(features));
        status |= status::FEATURES_OK;
        both!(&self.transport, t => t.set_status(status));
        let accepted = both!(&self.transport, t => t.status()) & status::FEATURES_OK != 0;
        if !accepted || features & VERSION_1 == 0 {
            both!(&self.transport, t => t.set_status(status::FAILED));
            return Err(DeviceError::Features);
        }
        Ok(features & wanted)
    }

    /// Makes queue number `index`, of at most `max_size` descriptors. Between `negotiate` and
    /// `start`.
    pub fn queue(&mut self, index: u16, max_size: u16) -> Result<Queue, DeviceError> {
        let limit = both!(&self.transport, t => t.queue_limit(index));
        let size = limit.min(max_size).min(Queue::MAX_SIZE);
        if size == 0 {
            return Err(DeviceError::NoQueue);
        }
        let size = 1 << size.ilog2();
        let (mut queue, addresses) = Queue::new(size).map_err(|_| DeviceError::OutOfMemory)?;
        let doorbell = both!(&mut self.transport, t => t.set_queue(index, size, &addresses))?;
        queue.set_doorbell(doorbell);
        Ok(queue)
    }

    /// Starts the device. `on_interrupt` is called, interrupts masked, whenever it has used buffers
    /// or changed its configuration; it must not sleep.
    pub fn start(&mut self, on_interrupt: Box<dyn Fn() + Send + Sync>) -> Result<(), DeviceError> {
        let routed = both!(&mut self.transport, t => t.route_interrupt(Arc::from(on_interrupt)));
        if !routed {
            both!(&self.transport, t => t.set_status(status::FAILED));
            return Err(DeviceError::NoInterrupt);
        }
        let status = both!(&self.transport, t => t.status());
        both!(&self.transport, t => t.set_status(status | status::DRIVER_OK));
        Ok(())
    }

    /// A byte of the device's configuration; 0xff beyond its end.
    pub fn config_u8(&self, offset: usize) -> u8 {
        both!(&self.transport, t => t.config().read8(offset))
    }

    /// Two bytes of the device's configuration, little-endian; `offset` is even.
    pub fn config_u16(&self, offset: usize) -> u16 {
        both!(&self.transport, t => t.config().read16(offset))
    }

    /// Four bytes of the device's configuration; `offset` is a multiple of 4.
    pub fn config_u32(&self, offset: usize) -> u32 {
        both!(&self.transport, t => t.config().read32(offset))
    }
}

/// What a driver's interrupt function is inside.
type OnInterrupt = Arc<dyn Fn() + Send + Sync>;
