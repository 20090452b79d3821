//! 9P messages over virtio (virtio 1.2, 5.11 and QEMU's virtio-9p). How requests and replies pass
//! is [`super::exchange`]'s; here is the device, and its tag.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use abi::{Errno, Result};
use formats::ninep::HEADER_BYTES;
use machine::sync::Once;
use machine::virtio::{self, Device, DeviceError, DeviceKind, Queue};

use super::exchange::{Exchange, TIMEOUTS};

/// What carries messages to the server and back: virtio.
pub trait Transport: Send + Sync {
    /// Sends one message and sleeps until its reply has come, of at most `max_reply` bytes. Several
    /// calls may be under way at once. EIO if the device fails or does not answer in good time: no
    /// signal ends the wait (a killed program's data must still get out), so it must be bounded.
    fn call(&self, request: Vec<u8>, max_reply: usize) -> Result<Vec<u8>>;
}

const FEATURE_MOUNT_TAG: u64 = 1;
const CONFIG_TAG_LEN: usize = 0;
const CONFIG_TAG: usize = 2;
const MAX_TAG: usize = 64;
/// 64 requests of two buffers each.
const QUEUE_SIZE: u16 = 128;
/// A 9P device.
pub struct NinePDevice {
    tag: Vec<u8>,
    exchange: Exchange<Queue>,
}

static DEVICES: Once<Vec<Arc<NinePDevice>>> = Once::new();

/// All 9P devices that work, started at the first call.
pub fn devices() -> &'static [Arc<NinePDevice>] {
    DEVICES.call_once(|| {
        let mut all = Vec::new();
        while let Some(device) = virtio::take(DeviceKind::NineP) {
            match NinePDevice::start(device) {
                Ok(device) => all.push(device),
                Err(error) => machine::log!("9P device does not work: {error:?}"),
            }
        }
        all
    })
}

/// The device with this mount tag (`formats::ports::ROOT_TAG`, …).
pub fn find(tag: &[u8]) -> Option<Arc<NinePDevice>> {
    devices().iter().find(|device| device.tag == tag).cloned()
}

impl NinePDevice {
    fn start(mut device: Device) -> core::result::Result<Arc<NinePDevice>, DeviceError> {
        device.negotiate(FEATURE_MOUNT_TAG)?;
        let len = usize::from(device.config_u16(CONFIG_TAG_LEN)).min(MAX_TAG);
        let tag = (0..len).map(|i| device.config_u8(CONFIG_TAG + i)).collect();
        let exchange = Exchange::new(device.queue(0, QUEUE_SIZE)?, TIMEOUTS);
        let transport = Arc::new(NinePDevice { tag, exchange });
        let handler = transport.clone();
        device.start(Box::new(move || handler.exchange.on_interrupt()))?;
        Ok(transport)
    }

    /// Its mount tag.
    pub fn tag(&self) -> &[u8] {
        &self.tag
    }
}

impl Transport for NinePDevice {
    fn call(&self, request: Vec<u8>, max_reply: usize) -> Result<Vec<u8>> {
        if max_reply < HEADER_BYTES {
            return Err(Errno::EINVAL);
        }
        check_reply(self.exchange.call(request, max_reply, Vec::new())?.reply)
    }
}

/// A reply whose own size is not what the device wrote is none.
pub(crate) fn check_reply(mut reply: Vec<u8>) -> Result<Vec<u8>> {
    let size = reply.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes) as usize);
    if !(HEADER_BYTES..=reply.len()).contains(&size) {
        return Err(Errno::EIO);
    }
    reply.truncate(size);
    Ok(reply)
}
