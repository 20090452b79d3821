//! 9P messages over virtio (virtio 1.2, 5.11 and QEMU's virtio-9p): one request is one chain of
//! buffers, the message and room for the reply.
//!
//! Many threads may call at once. Each sleeps on a mark of its own, which the interrupt handler
//! sets, so a reply wakes exactly its caller ([`Exchange`]).
//!
//! No signal ends a wait, because a killed program's written data must still get out; so the wait
//! is bounded. A server that does not answer within 30 s, or answers nonsense, gives EIO, and the
//! log says so. From then until it answers anything again a wait takes at most 2 s: what a program
//! tries next fails soon, and a host that slept is served again. Late answers are dropped when they
//! come, since the buffers are the device's until then.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};

use abi::{Errno, Result};
use formats::ninep::HEADER_BYTES;
use machine::sync::{Once, SpinLock};
use machine::virtio::{self, Buffers, Device, DeviceError, DeviceKind, Queue, SubmitError};

use crate::base::sched::Sleep;
use crate::base::sync::{WaitQueue, Waiter, Wake};
use crate::base::time::{Deadline, NS_PER_SEC};

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
/// Largest reply asked for.
const MAX_REPLY: usize = 4 << 20;

/// How long a caller waits, nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timeouts {
    /// For a server that has answered so far.
    pub(crate) answering_ns: u64,
    /// For one that let the last wait pass.
    pub(crate) silent_ns: u64,
}

const TIMEOUTS: Timeouts = Timeouts { answering_ns: 30 * NS_PER_SEC, silent_ns: 2 * NS_PER_SEC };

/// A request's message, and the buffer for its reply: empty before, what was written after.
#[derive(Debug, Default)]
pub(crate) struct Messages {
    pub(crate) request: Vec<u8>,
    pub(crate) reply: Vec<u8>,
}

/// The number of a request, or why there is none, and its buffers.
pub(crate) type Submitted = core::result::Result<usize, (SubmitError, Messages)>;

/// The side of the device: a virtio queue, or a test.
pub(crate) trait Ring: Send {
    /// Most requests it holds; their numbers are below it.
    fn size(&self) -> usize;
    /// Hands a request over; its number until it is completed. On an error the buffers come back.
    fn submit(&mut self, messages: Messages) -> Submitted;
    /// Tells the device that there is a request.
    fn notify(&self);
    /// Takes back a request that the device is done with, and its number.
    fn pop_completed(&mut self) -> Option<(usize, Messages)>;
    /// Whether the device broke the protocol: nothing will come any more.
    fn is_broken(&self) -> bool;
}

impl Ring for Queue {
    fn size(&self) -> usize {
        self.size()
    }

    fn submit(&mut self, messages: Messages) -> Submitted {
        let buffers = Buffers {
            outgoing: [messages.request, Vec::new()],
            incoming: [messages.reply, Vec::new()],
        };
        match self.submit(buffers) {
            Ok(token) => Ok(token.index()),
            Err((error, buffers)) => Err((error, buffers.into())),
        }
    }

    fn notify(&self) {
        self.notify();
    }

    fn pop_completed(&mut self) -> Option<(usize, Messages)> {
        let completed = self.pop_completed()?;
        Some((completed.token.index(), completed.buffers.into()))
    }

    fn is_broken(&self) -> bool {
        self.is_broken()
    }
}

impl From<Buffers> for Messages {
    fn from(buffers: Buffers) -> Messages {
        let ([request, _], [reply, _]) = (buffers.outgoing, buffers.incoming);
        Messages { request, reply }
    }
}

/// One request's wait, shared by its caller and the interrupt handler. A caller that gives up just
/// goes; the reply that comes later is dropped with this.
struct Call {
    waiter: Arc<Waiter>,
    reply: SpinLock<Option<Vec<u8>>>,
}

struct ExchangeState<R> {
    ring: R,
    /// The request in flight with each number.
    calls: Vec<Option<Arc<Call>>>,
}

/// Requests and replies over a ring.
pub(crate) struct Exchange<R> {
    state: SpinLock<ExchangeState<R>>,
    /// Callers that found the ring full.
    room: WaitQueue,
    timeouts: Timeouts,
    /// The last wait passed without an answer.
    is_silent: AtomicBool,
}

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
        self.exchange.call(request, max_reply)
    }
}

impl<R: Ring> Exchange<R> {
    pub(crate) fn new(ring: R, timeouts: Timeouts) -> Exchange<R> {
        let calls = (0..ring.size()).map(|_| None).collect();
        Exchange {
            state: SpinLock::new(ExchangeState { ring, calls }),
            room: WaitQueue::new(),
            timeouts,
            is_silent: AtomicBool::new(false),
        }
    }

    /// Gives what the device has completed to those who wait for it.
    pub(crate) fn on_interrupt(&self) {
        let mut state = self.state.lock();
        let mut any = false;
        while let Some((number, messages)) = state.ring.pop_completed() {
            any = true;
            if let Some(call) = state.calls.get_mut(number).and_then(Option::take) {
                *call.reply.lock() = Some(messages.reply);
                call.waiter.wake(0);
            }
        }
        if state.ring.is_broken() {
            state.calls.iter().flatten().for_each(|call| {
                call.waiter.wake(0);
            });
        }
        drop(state);
        if any {
            self.is_silent.store(false, Ordering::Relaxed);
            self.room.wake_all(0);
        }
    }

    /// See [`Transport::call`].
    pub(crate) fn call(&self, request: Vec<u8>, max_reply: usize) -> Result<Vec<u8>> {
        if !(HEADER_BYTES..=MAX_REPLY).contains(&max_reply) {
            return Err(Errno::EINVAL);
        }
        let is_silent = self.is_silent.load(Ordering::Relaxed);
        let Timeouts { answering_ns, silent_ns } = self.timeouts;
        let deadline = Deadline::after_ns(if is_silent { silent_ns } else { answering_ns });
        let call = Arc::new(Call { waiter: Waiter::new(), reply: SpinLock::new(None) });
        self.submit(request, max_reply, &call, deadline)?;
        loop {
            if let Some(reply) = call.reply.lock().take() {
                return check_reply(reply);
            }
            if self.state.lock().ring.is_broken() {
                return Err(Errno::EIO);
            }
            if deadline.has_passed() {
                return Err(self.give_up());
            }
            call.waiter.sleep(Sleep::Uninterruptible, Some(deadline));
            call.waiter.clear();
        }
    }

    /// Hands the request to the device; sleeps while its ring is full.
    fn submit(
        &self,
        request: Vec<u8>,
        max_reply: usize,
        call: &Arc<Call>,
        deadline: Deadline,
    ) -> Result<()> {
        let mut reply = Vec::new();
        reply.try_reserve_exact(max_reply).map_err(|_| Errno::ENOMEM)?;
        let mut messages = Some(Messages { request, reply });
        let submitted = self.room.wait_deadline(Sleep::Uninterruptible, Some(deadline), || {
            let mut state = self.state.lock();
            match state.ring.submit(messages.take().unwrap_or_default()) {
                Ok(number) => {
                    // Before the device can answer: it does not know of the request yet.
                    state.calls[number] = Some(call.clone());
                    state.ring.notify();
                    Some(Ok(()))
                }
                Err((SubmitError::Full, back)) => {
                    messages = Some(back);
                    None
                }
                Err((SubmitError::Broken, _)) => Some(Err(Errno::EIO)),
            }
        });
        submitted.unwrap_or_else(|_| Err(self.give_up()))
    }

    #[cold]
    fn give_up(&self) -> Errno {
        if !self.is_silent.swap(true, Ordering::Relaxed) {
            let seconds = self.timeouts.answering_ns / NS_PER_SEC;
            machine::log!("9p: the host's file server has not answered for {seconds} s");
        }
        Errno::EIO
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
