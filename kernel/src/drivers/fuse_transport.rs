//! FUSE messages over virtio (virtio 1.2, 5.11: file system device): queue 0 for what has no reply,
//! queue 1 for requests. How they pass is [`super::exchange`]'s; here is the device, and its tag.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use abi::{Errno, Result};
use machine::frame::Frame;
use machine::sync::Once;
use machine::virtio::{self, Device, DeviceError, DeviceKind, Queue};

use super::exchange::{Exchange, Sent, TIMEOUTS};

/// What carries messages to the server and back: virtio.
pub trait Transport: Send + Sync {
    /// Sends one message and sleeps until its reply has come, of at most `max_reply` bytes; what
    /// follows those goes into `frames`. The reply, and the bytes that came in all. EIO if the
    /// device fails or does not answer in good time: no signal ends the wait.
    fn call(
        &self,
        request: Vec<u8>,
        max_reply: usize,
        frames: Vec<Frame>,
    ) -> Result<(Vec<u8>, usize)>;

    /// As [`Self::call`] without the wait: [`Self::finish`] gets the reply. EAGAIN if there is no
    /// room for one more.
    fn begin(&self, request: Vec<u8>, max_reply: usize, frames: Vec<Frame>) -> Result<Sent>;

    /// Sleeps until the reply to a request has come, as [`Self::call`] does.
    fn finish(&self, sent: &Sent) -> Result<(Vec<u8>, usize)>;

    /// Sends one message whose reply, of at most `room` bytes, nobody waits for; one without room
    /// for a reply goes by the queue that is for such. EIO.
    fn send(&self, request: Vec<u8>, room: usize) -> Result<()>;
}

/// The tag: so many bytes at the beginning of the configuration, NUL after the last.
const TAG_BYTES: usize = 36;
/// 64 requests of two buffers each, or one whose frames are scattered.
const QUEUE_SIZE: u16 = 128;

/// A file system device.
pub struct FuseDevice {
    tag: Vec<u8>,
    urgent: Exchange<Queue>,
    requests: Exchange<Queue>,
}

static DEVICES: Once<Vec<Arc<FuseDevice>>> = Once::new();

/// The device with this mount tag (`formats::ports::ROOT_TAG`, …). All that work are started at the
/// first call.
pub fn find(tag: &[u8]) -> Option<Arc<FuseDevice>> {
    let devices = DEVICES.call_once(|| {
        let mut all = Vec::new();
        while let Some(device) = virtio::take(DeviceKind::FileSystem) {
            match FuseDevice::start(device) {
                Ok(device) => all.push(device),
                Err(error) => machine::log!("file system device does not work: {error:?}"),
            }
        }
        all
    });
    devices.iter().find(|device| device.tag == tag).cloned()
}

impl FuseDevice {
    fn start(mut device: Device) -> core::result::Result<Arc<FuseDevice>, DeviceError> {
        device.negotiate(0)?;
        let tag = (0..TAG_BYTES).map(|at| device.config_u8(at)).take_while(|&byte| byte != 0);
        let tag = tag.collect();
        let urgent = Exchange::new(device.queue(0, QUEUE_SIZE)?, TIMEOUTS);
        let requests = Exchange::new(device.queue(1, QUEUE_SIZE)?, TIMEOUTS);
        let transport = Arc::new(FuseDevice { tag, urgent, requests });
        let handler = transport.clone();
        device.start(Box::new(move || {
            handler.urgent.on_interrupt();
            handler.requests.on_interrupt();
        }))?;
        Ok(transport)
    }
}

impl Transport for FuseDevice {
    fn call(
        &self,
        request: Vec<u8>,
        max_reply: usize,
        frames: Vec<Frame>,
    ) -> Result<(Vec<u8>, usize)> {
        let answer = self.requests.call(request, max_reply, frames)?;
        if answer.reply.capacity() != max_reply {
            // What follows would not begin in the first frame.
            return Err(Errno::EIO);
        }
        Ok((answer.reply, answer.written))
    }

    fn begin(&self, request: Vec<u8>, max_reply: usize, frames: Vec<Frame>) -> Result<Sent> {
        self.requests.begin(request, max_reply, frames)
    }

    fn finish(&self, sent: &Sent) -> Result<(Vec<u8>, usize)> {
        let answer = self.requests.finish(sent)?;
        Ok((answer.reply, answer.written))
    }

    fn send(&self, request: Vec<u8>, room: usize) -> Result<()> {
        if room == 0 { &self.urgent } else { &self.requests }.send(request, room)
    }
}
