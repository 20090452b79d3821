//! Requests to a server behind a virtio device, and its replies (virtio 1.2, 2.7): one request is
//! one chain of buffers, the message and room for the reply.
//!
//! Many threads may call at once. Each sleeps on a mark of its own, which the interrupt handler
//! sets, so a reply wakes exactly its caller ([`Exchange`]).
//!
//! No signal ends a wait, because a killed program's written data must still get out; so the wait
//! is bounded. A server that does not answer within 30 s, or answers nonsense, gives EIO, and the
//! log says so. From then until it answers anything again a wait takes at most 2 s: what a program
//! tries next fails soon, and a host that slept is served again. Late answers are dropped when they
//! come, since the buffers are the device's until then.
//!
//! Neighbours: [`super::ninep_transport`] and [`super::fuse_transport`] are the devices.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};

use abi::{Errno, Result};
use machine::frame::Frame;
use machine::sync::SpinLock;
use machine::virtio::{Buffers, Queue, SubmitError};

use crate::base::sched::Sleep;
use crate::base::sync::WaitQueue;
use crate::base::time::{Deadline, NS_PER_SEC};

/// Largest reply asked for, frames apart.
const MAX_REPLY: usize = 4 << 20;

/// How long a caller waits, nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timeouts {
    /// For a server that has answered so far.
    pub(crate) answering_ns: u64,
    /// For one that let the last wait pass.
    pub(crate) silent_ns: u64,
}

/// What servers on the host are given.
pub(crate) const TIMEOUTS: Timeouts =
    Timeouts { answering_ns: 30 * NS_PER_SEC, silent_ns: 2 * NS_PER_SEC };

/// A request's message, and the buffer for its reply: empty before, what was written after.
#[derive(Debug, Default)]
pub(crate) struct Messages {
    pub(crate) request: Vec<u8>,
    pub(crate) reply: Vec<u8>,
    /// Where what comes after the reply goes.
    pub(crate) frames: Vec<Frame>,
    /// Bytes of reply and frames together, once it is completed.
    pub(crate) written: usize,
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
            incoming_frames: messages.frames,
        };
        match self.submit(buffers) {
            Ok(token) => Ok(token.index()),
            Err((error, buffers)) => Err((error, messages_of(buffers, 0))),
        }
    }

    fn notify(&self) {
        self.notify();
    }

    fn pop_completed(&mut self) -> Option<(usize, Messages)> {
        let completed = self.pop_completed()?;
        Some((completed.token.index(), messages_of(completed.buffers, completed.written)))
    }

    fn is_broken(&self) -> bool {
        self.is_broken()
    }
}

fn messages_of(buffers: Buffers, written: usize) -> Messages {
    let Buffers { outgoing: [request, _], incoming: [reply, _], incoming_frames: frames } = buffers;
    Messages { request, reply, frames, written }
}

/// What a server has said.
pub(crate) struct Answer {
    /// The reply, frames apart.
    pub(crate) reply: Vec<u8>,
    /// Bytes of it and of what came into the frames.
    pub(crate) written: usize,
}

/// One request's wait, shared by its caller and the interrupt handler. A caller that gives up just
/// goes; the reply that comes later is dropped with this.
struct Call {
    done: WaitQueue,
    answer: SpinLock<Option<Result<Answer>>>,
}

/// A request that is on its way, or answered already.
pub struct Sent {
    call: Arc<Call>,
    deadline: Deadline,
}

impl Sent {
    fn new(answer: Option<Result<Answer>>, wait_ns: u64) -> Sent {
        let call = Arc::new(Call { done: WaitQueue::new(), answer: SpinLock::new(answer) });
        Sent { call, deadline: Deadline::after_ns(wait_ns) }
    }

    /// One that is answered already, for a server that answers at once.
    #[cfg(feature = "ktest")]
    pub(crate) fn answered(answer: Answer) -> Sent {
        Self::new(Some(Ok(answer)), 0)
    }

    /// Whether nobody has to wait for the answer.
    pub(crate) fn is_answered(&self) -> bool {
        self.call.answer.lock().is_some()
    }

    /// The answer, if it has come and was not taken.
    pub(crate) fn take(&self) -> Option<Result<Answer>> {
        self.call.answer.lock().take()
    }
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
                let Messages { reply, written, .. } = messages;
                *call.answer.lock() = Some(Ok(Answer { reply, written }));
                call.done.wake_all(0);
            }
        }
        if state.ring.is_broken() {
            for call in state.calls.iter_mut().filter_map(Option::take) {
                *call.answer.lock() = Some(Err(Errno::EIO));
                call.done.wake_all(0);
            }
        }
        drop(state);
        if any {
            self.is_silent.store(false, Ordering::Relaxed);
            self.room.wake_all(0);
        }
    }

    /// Sends one message and sleeps until its reply has come, of at most `max_reply` bytes, and
    /// what follows it in `frames`. EIO as the module says; EINVAL if there is no room for a reply,
    /// or too much.
    pub(crate) fn call(
        &self,
        request: Vec<u8>,
        max_reply: usize,
        frames: Vec<Frame>,
    ) -> Result<Answer> {
        let (messages, sent) = self.prepare(request, max_reply, frames)?;
        self.submit(messages, Some(&sent.call), sent.deadline)?;
        self.finish(&sent)
    }

    /// As [`Self::call`] without the wait: [`Self::finish`] gets the reply. EAGAIN if the ring is
    /// full, or the server has become silent.
    pub(crate) fn begin(
        &self,
        request: Vec<u8>,
        max_reply: usize,
        frames: Vec<Frame>,
    ) -> Result<Sent> {
        if self.is_silent.load(Ordering::Relaxed) {
            return Err(Errno::EAGAIN);
        }
        let (messages, sent) = self.prepare(request, max_reply, frames)?;
        match self.try_submit(messages, Some(&sent.call)) {
            Ok(()) => Ok(sent),
            Err((SubmitError::Full, _)) => Err(Errno::EAGAIN),
            Err((SubmitError::Broken, _)) => Err(Errno::EIO),
        }
    }

    /// Sleeps until the reply to a request has come. EIO as the module says, and where it was taken
    /// before.
    pub(crate) fn finish(&self, sent: &Sent) -> Result<Answer> {
        let deadline = Some(sent.deadline);
        let answer = sent.call.done.wait_deadline(Sleep::Uninterruptible, deadline, || sent.take());
        answer.unwrap_or_else(|_| Err(self.give_up()))
    }

    fn prepare(
        &self,
        request: Vec<u8>,
        max_reply: usize,
        frames: Vec<Frame>,
    ) -> Result<(Messages, Sent)> {
        if !(1..=MAX_REPLY).contains(&max_reply) {
            return Err(Errno::EINVAL);
        }
        let is_silent = self.is_silent.load(Ordering::Relaxed);
        let Timeouts { answering_ns, silent_ns } = self.timeouts;
        let sent = Sent::new(None, if is_silent { silent_ns } else { answering_ns });
        let mut reply = Vec::new();
        reply.try_reserve_exact(max_reply).map_err(|_| Errno::ENOMEM)?;
        Ok((Messages { request, reply, frames, written: 0 }, sent))
    }

    /// Sends one message whose reply, of at most `room` bytes, nobody waits for; sleeps while the
    /// ring is full. EIO as [`Self::call`].
    pub(crate) fn send(&self, request: Vec<u8>, room: usize) -> Result<()> {
        let mut reply = Vec::new();
        reply.try_reserve_exact(room).map_err(|_| Errno::ENOMEM)?;
        let deadline = Deadline::after_ns(self.timeouts.silent_ns);
        let messages = Messages { request, reply, ..Messages::default() };
        self.submit(messages, None, deadline)
    }

    /// Hands the request to the device; sleeps while its ring is full.
    fn submit(
        &self,
        messages: Messages,
        call: Option<&Arc<Call>>,
        deadline: Deadline,
    ) -> Result<()> {
        let mut messages = Some(messages);
        let submitted = self.room.wait_deadline(Sleep::Uninterruptible, Some(deadline), || {
            match self.try_submit(messages.take().unwrap_or_default(), call) {
                Ok(()) => Some(Ok(())),
                Err((SubmitError::Full, back)) => {
                    messages = Some(back);
                    None
                }
                Err((SubmitError::Broken, _)) => Some(Err(Errno::EIO)),
            }
        });
        submitted.unwrap_or_else(|_| Err(self.give_up()))
    }

    fn try_submit(
        &self,
        messages: Messages,
        call: Option<&Arc<Call>>,
    ) -> core::result::Result<(), (SubmitError, Messages)> {
        let mut state = self.state.lock();
        let number = state.ring.submit(messages)?;
        // Before the device can answer: it does not know of the request yet.
        state.calls[number] = call.cloned();
        state.ring.notify();
        Ok(())
    }

    #[cold]
    fn give_up(&self) -> Errno {
        if !self.is_silent.swap(true, Ordering::Relaxed) {
            let seconds = self.timeouts.answering_ns / NS_PER_SEC;
            machine::log!("the host's file server has not answered for {seconds} s");
        }
        Errno::EIO
    }
}
