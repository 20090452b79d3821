//! 9P messages over virtio (virtio 1.2, 5.11 and QEMU's virtio-9p): one request is one chain of
//! buffers, the message and room for the reply.
//!
//! Many threads may call at once. Each sleeps on a mark of its own, which the interrupt handler
//! sets, so a reply wakes exactly its caller. A server that does not answer within 30 s, or answers
//! nonsense, gives EIO; its late answer is dropped when it comes, since the buffers are the device's
//! until then.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use abi::{Errno, Result};
use machine::sync::{Once, SpinLock};
use machine::virtio::{self, Buffers, Completed, Device, DeviceError, Kind, Queue, SubmitError};

use crate::fs::ninep::Transport;
use crate::sched::Sleep;
use crate::sync::{Token, WaitQueue, Wake};
use crate::time::{Deadline, NS_PER_SEC};

const FEATURE_MOUNT_TAG: u64 = 1;
const CONFIG_TAG_LEN: usize = 0;
const CONFIG_TAG: usize = 2;
const MAX_TAG: usize = 64;
/// 64 requests of two buffers each.
const QUEUE_SIZE: u16 = 128;
const TIMEOUT_NS: u64 = 30 * NS_PER_SEC;
/// size[4] type[1] tag[2].
const HEADER_BYTES: usize = 7;
/// Largest reply asked for.
const MAX_REPLY: usize = 4 << 20;

/// One request's wait, shared by its caller and the interrupt handler. A caller that gives up just
/// goes; the reply that comes later is dropped with this.
struct Call {
    token: Arc<Token>,
    completed: SpinLock<Option<Completed>>,
}

struct State {
    queue: Queue,
    /// The request in flight with each chain head.
    calls: Vec<Option<Arc<Call>>>,
}

/// A 9P device.
pub struct NinePDevice {
    tag: Vec<u8>,
    state: SpinLock<State>,
    /// Callers that found the queue full.
    room: WaitQueue,
}

static DEVICES: Once<Vec<Arc<NinePDevice>>> = Once::new();

/// All 9P devices that work, started at the first call.
pub fn devices() -> &'static [Arc<NinePDevice>] {
    DEVICES.call_once(|| {
        let mut all = Vec::new();
        while let Some(device) = virtio::take(Kind::NineP) {
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
        let queue = device.queue(0, QUEUE_SIZE)?;
        let calls = (0..queue.size()).map(|_| None).collect();
        let state = SpinLock::new(State { queue, calls });
        let transport = Arc::new(NinePDevice { tag, state, room: WaitQueue::new() });
        let handler = transport.clone();
        device.start(Box::new(move || handler.on_interrupt()))?;
        Ok(transport)
    }

    /// Its mount tag.
    pub fn tag(&self) -> &[u8] {
        &self.tag
    }

    fn on_interrupt(&self) {
        let mut state = self.state.lock();
        let mut any = false;
        while let Some(completed) = state.queue.pop_completed() {
            any = true;
            let slot = state.calls.get_mut(completed.token.index());
            if let Some(call) = slot.and_then(Option::take) {
                *call.completed.lock() = Some(completed);
                call.token.wake(0);
            }
        }
        if state.queue.is_broken() {
            state.calls.iter().flatten().for_each(|call| {
                call.token.wake(0);
            });
        }
        drop(state);
        if any {
            self.room.wake_all(0);
        }
    }

    /// Hands the request to the device; sleeps while its queue is full.
    fn submit(
        &self,
        request: Vec<u8>,
        max_reply: usize,
        call: &Arc<Call>,
        deadline: Deadline,
    ) -> Result<()> {
        let mut reply = Vec::new();
        reply.try_reserve_exact(max_reply).map_err(|_| Errno::ENOMEM)?;
        let mut buffers = Some(Buffers {
            outgoing: [request, Vec::new()],
            incoming: [reply, Vec::new()],
        });
        let submitted = self.room.wait_deadline(Sleep::Uninterruptible, Some(deadline), || {
            let mut state = self.state.lock();
            match state.queue.submit(buffers.take().unwrap_or_default()) {
                Ok(request) => {
                    // Before the device can answer: it does not know of the request yet.
                    state.calls[request.index()] = Some(call.clone());
                    state.queue.notify();
                    Some(Ok(()))
                }
                Err((SubmitError::Full, back)) => {
                    buffers = Some(back);
                    None
                }
                Err((SubmitError::Broken, _)) => Some(Err(Errno::EIO)),
            }
        });
        submitted.unwrap_or(Err(Errno::EIO))
    }
}

impl Transport for NinePDevice {
    fn call(&self, request: Vec<u8>, max_reply: usize) -> Result<Vec<u8>> {
        if !(HEADER_BYTES..=MAX_REPLY).contains(&max_reply) {
            return Err(Errno::EINVAL);
        }
        let deadline = Deadline::after_ns(TIMEOUT_NS);
        let call = Arc::new(Call { token: Token::new(), completed: SpinLock::new(None) });
        self.submit(request, max_reply, &call, deadline)?;
        let completed = loop {
            if let Some(completed) = call.completed.lock().take() {
                break completed;
            }
            if deadline.has_passed() || self.state.lock().queue.is_broken() {
                return Err(Errno::EIO);
            }
            call.token.sleep(Sleep::Uninterruptible, Some(deadline));
            call.token.clear();
        };
        let [reply, _] = completed.buffers.incoming;
        check_reply(reply)
    }
}

/// A reply whose own size is not what the device wrote is none.
fn check_reply(mut reply: Vec<u8>) -> Result<Vec<u8>> {
    let size = reply.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes) as usize);
    if !(HEADER_BYTES..=reply.len()).contains(&size) {
        return Err(Errno::EIO);
    }
    reply.truncate(size);
    Ok(reply)
}
