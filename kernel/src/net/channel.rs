//! One direction of a conversation, or a datagram socket's inbox: bytes in order, with message
//! boundaries and ancillary data where there are any.
//!
//! Plain stream data is only bytes in a ring. A [`Segment`] is recorded for each message, and for
//! each piece of a stream that carries something; then segments cover the whole ring. The lock
//! sleeps, because copies to programs may fault; lengths are mirrored in atomics for poll.
//!
//! The receiving socket owns the queue of readers; the queue of writers belongs to the sending
//! socket, or to an inbox itself, which has many senders.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use abi::{Errno, Result};

use super::address::Address;
use super::control::Control;
use crate::base::io::{Sink, Source};
use crate::base::poll::events;
use crate::base::sched::Sleep;
use crate::base::sync::{Mutex, WaitError, WaitQueue};
use crate::base::time::Deadline;
use crate::ipc::ring::PageRing;

/// Bytes that a message costs beside its data, so that empty ones are bounded too.
const MESSAGE_COST: usize = 256;

/// How long a call may wait.
#[derive(Clone, Copy, Debug, Default)]
pub struct Patience {
    /// Not at all.
    pub nonblocking: bool,
    /// Until then: SO_RCVTIMEO, SO_SNDTIMEO.
    pub deadline: Option<Deadline>,
}

impl Patience {
    /// Waits until `ready` gives something. EAGAIN when patience is over; an interrupted wait is
    /// only restarted if it has no deadline (signal(7)).
    #[inline]
    pub fn wait<T>(
        self,
        queue: &WaitQueue,
        mut ready: impl FnMut() -> Option<Result<T>>,
    ) -> Result<T> {
        if let Some(result) = ready() {
            return result;
        }
        if self.nonblocking {
            return Err(Errno::EAGAIN);
        }
        match queue.wait_deadline(Sleep::Interruptible, self.deadline, ready) {
            Ok(result) => result,
            Err(WaitError::TimedOut) => Err(Errno::EAGAIN),
            Err(WaitError::Interrupted) if self.deadline.is_some() => Err(Errno::EINTR),
            Err(WaitError::Interrupted) => Err(Errno::ERESTARTSYS),
        }
    }
}

/// What comes with a message.
#[derive(Clone, Default)]
pub struct Info {
    /// Descriptors and credentials.
    pub control: Control,
    /// The sender of a datagram.
    pub from: Option<Address>,
}

/// A run of bytes in the ring.
struct Segment {
    len: usize,
    /// A message of its own: one receive takes it, and what does not fit is lost.
    is_message: bool,
    info: Option<Box<Info>>,
}

#[derive(Default)]
struct Data {
    ring: PageRing,
    /// Covers the ring, oldest first; empty if all of it is plain stream.
    segments: VecDeque<Segment>,
}

/// How to receive (recv(2)).
#[derive(Clone, Copy, Debug, Default)]
pub struct ReceiveMode {
    /// MSG_PEEK: leave it there.
    pub peek: bool,
    /// MSG_WAITALL: a stream waits until the buffer is full.
    pub wait_all: bool,
}

/// What was received.
#[derive(Default)]
pub struct Received {
    /// Bytes copied.
    pub len: usize,
    /// Length of the whole message, more than `len` if it was cut.
    pub full_len: usize,
    /// What came with it.
    pub info: Option<Box<Info>>,
    /// It was a message, not a piece of a stream, and not the end.
    pub is_message: bool,
}

/// See the module.
pub struct Channel {
    data: Mutex<Data>,
    /// Bytes held, with the cost of messages; written under the lock.
    used: AtomicUsize,
    /// Messages held, or 1 if there is stream data.
    available: AtomicUsize,
    limit: AtomicUsize,
    /// Most messages.
    messages_max: usize,
    ended: AtomicBool,
    refused: AtomicBool,
    reset: AtomicBool,
    /// Woken when there is something to receive.
    pub readers: Arc<WaitQueue>,
    /// Woken when there is room.
    pub writers: Arc<WaitQueue>,
}

impl Channel {
    /// An empty one that holds `limit` bytes.
    #[must_use]
    pub fn new(
        limit: usize,
        messages_max: usize,
        readers: &Arc<WaitQueue>,
        writers: &Arc<WaitQueue>,
    ) -> Arc<Channel> {
        Arc::new(Channel {
            data: Mutex::new(Data::default()),
            used: AtomicUsize::new(0),
            available: AtomicUsize::new(0),
            limit: AtomicUsize::new(limit),
            messages_max,
            ended: AtomicBool::new(false),
            refused: AtomicBool::new(false),
            reset: AtomicBool::new(false),
            readers: readers.clone(),
            writers: writers.clone(),
        })
    }

    /// Changes how much it holds.
    pub fn set_limit(&self, limit: usize) {
        self.limit.store(limit, Ordering::Relaxed);
        self.writers.wake_all(events::WRITABLE);
    }

    /// Bytes held (SIOCOUTQ).
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Bytes the next receive can give (FIONREAD): of the first message, or all of a stream.
    pub fn next_len(&self) -> usize {
        let data = self.data.lock();
        match data.segments.front() {
            Some(segment) if segment.is_message => segment.len,
            _ => data.ring.len(),
        }
    }

    /// Whether there is something to receive.
    #[inline]
    pub fn has_data(&self) -> bool {
        self.available.load(Ordering::SeqCst) > 0
    }

    /// Whether no more will come.
    pub fn is_ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }

    /// Whether nobody will receive what is sent.
    pub fn is_refused(&self) -> bool {
        self.refused.load(Ordering::SeqCst)
    }

    /// Whether the conversation was broken off and that was not told yet.
    pub fn is_reset(&self) -> bool {
        self.reset.load(Ordering::SeqCst)
    }

    /// Takes the mark that [`Channel::is_reset`] tells of.
    pub fn take_reset(&self) -> bool {
        self.reset.swap(false, Ordering::SeqCst)
    }

    /// Whether a sender gets something in: poll's opinion, a quarter of the limit.
    #[inline]
    pub fn has_room(&self) -> bool {
        let limit = self.limit.load(Ordering::Relaxed);
        self.used() + limit / 4 <= limit
            && self.available.load(Ordering::Relaxed) < self.messages_max
    }

    /// The sender will send no more: receivers see the end after the data.
    pub fn end(&self) {
        self.ended.store(true, Ordering::SeqCst);
        self.readers.wake_all(0);
    }

    /// The receiver will receive no more: senders get EPIPE.
    pub fn refuse(&self) {
        self.refused.store(true, Ordering::SeqCst);
        self.writers.wake_all(0);
    }

    /// The conversation is broken off: the receiver gets ECONNRESET once.
    pub fn reset(&self) {
        self.reset.store(true, Ordering::SeqCst);
        self.end();
    }

    /// Forgets what was not received: the last receiver is gone.
    pub fn clear(&self) {
        let data = core::mem::take(&mut *self.data.lock());
        self.used.store(0, Ordering::Relaxed);
        self.available.store(0, Ordering::SeqCst);
        drop(data);
        self.writers.wake_all(events::WRITABLE);
    }

    /// Calls `f` with each descriptor in the messages held; false if somebody is just at them.
    pub fn each_file(&self, f: &mut dyn FnMut(&Arc<crate::vfs::File>)) -> bool {
        let Some(data) = self.data.try_lock() else { return false };
        let infos = data.segments.iter().filter_map(|segment| segment.info.as_ref());
        infos.for_each(|info| info.control.files.each(f));
        true
    }

    fn note(&self, data: &Data) {
        let messages = data.segments.len();
        let used = data.ring.len() + messages * MESSAGE_COST;
        self.used.store(used, Ordering::Relaxed);
        let available = messages.max(usize::from(!data.ring.is_empty()));
        self.available.store(available, Ordering::SeqCst);
    }

    /// Sends stream data, all of it unless patience ends. `info` goes with the first byte.
    #[inline]
    pub fn send(
        &self,
        source: &mut Source<'_>,
        mut info: Option<Box<Info>>,
        patience: Patience,
    ) -> Result<usize> {
        let mut done = 0;
        while source.left() > 0 {
            let step = patience.wait(&self.writers, || self.try_send(source, &mut info));
            match step {
                Ok(len) => done += len,
                Err(_) if done > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    #[inline]
    fn try_send(
        &self,
        source: &mut Source<'_>,
        info: &mut Option<Box<Info>>,
    ) -> Option<Result<usize>> {
        let mut data = self.data.lock();
        if self.is_refused() || self.is_ended() {
            return Some(Err(Errno::EPIPE));
        }
        let free = self.limit.load(Ordering::Relaxed).saturating_sub(self.used());
        if free == 0 {
            return None;
        }
        let result = append_stream(&mut data, source, info, free);
        self.note(&data);
        drop(data);
        self.readers.wake_one(events::READABLE);
        Some(result)
    }

    /// Sends one message, whole. EMSGSIZE if it can never fit.
    pub fn send_message(
        &self,
        source: &mut Source<'_>,
        info: Option<Box<Info>>,
        patience: Patience,
    ) -> Result<usize> {
        let len = source.left();
        if len + MESSAGE_COST > self.limit.load(Ordering::Relaxed) {
            return Err(Errno::EMSGSIZE);
        }
        let mut info = Some(info);
        patience.wait(&self.writers, || {
            let mut data = self.data.lock();
            if self.is_refused() || self.is_ended() {
                return Some(Err(Errno::EPIPE));
            }
            let limit = self.limit.load(Ordering::Relaxed);
            let fits = self.used() + len + MESSAGE_COST <= limit;
            if !fits || data.segments.len() >= self.messages_max {
                return None;
            }
            let info = info.take().flatten();
            let result = append_message(&mut data, source, info, len);
            self.note(&data);
            drop(data);
            if result.is_ok() {
                self.readers.wake_one(events::READABLE);
            }
            Some(result)
        })
    }

    /// Receives: a message, or a piece of the stream. Nothing at the end; ECONNRESET once after a
    /// reset.
    #[inline]
    pub fn receive(
        &self,
        sink: &mut Sink<'_>,
        mode: ReceiveMode,
        patience: Patience,
    ) -> Result<Received> {
        let mut total = Received::default();
        loop {
            let step = patience.wait(&self.readers, || self.try_receive(sink, mode, total.len));
            let piece = match step {
                Ok(piece) => piece,
                Err(_) if total.len > 0 => return Ok(total),
                Err(error) => return Err(error),
            };
            let is_end = piece.len == 0;
            total.len += piece.len;
            total.full_len += piece.full_len;
            total.is_message = piece.is_message;
            if total.info.is_none() {
                total.info = piece.info;
            }
            let goes_on = mode.wait_all && !mode.peek && !total.is_message && total.info.is_none();
            if !goes_on || is_end || sink.left() == 0 {
                return Ok(total);
            }
        }
    }

    #[inline]
    fn try_receive(
        &self,
        sink: &mut Sink<'_>,
        mode: ReceiveMode,
        already: usize,
    ) -> Option<Result<Received>> {
        let mut data = self.data.lock();
        if data.ring.is_empty() && data.segments.is_empty() {
            if already == 0 && self.is_reset() && self.take_reset() {
                return Some(Err(Errno::ECONNRESET));
            }
            return self.is_ended().then(|| Ok(Received::default()));
        }
        let had_room = self.has_room();
        let result = if mode.peek { peek(&data, sink) } else { take(&mut data, sink, already) };
        self.note(&data);
        let is_message = self.messages_max != usize::MAX;
        let has_more = self.has_data();
        drop(data);
        if !mode.peek {
            // A sender of a message may need more room than poll's opinion asks for.
            if is_message || (!had_room && self.has_room()) {
                self.writers.wake_one(events::WRITABLE);
            }
            if has_more {
                self.readers.wake_one(events::READABLE);
            }
        }
        Some(result)
    }
}

fn append_stream(
    data: &mut Data,
    source: &mut Source<'_>,
    info: &mut Option<Box<Info>>,
    max: usize,
) -> Result<usize> {
    if info.is_none() && data.segments.is_empty() {
        return data.ring.append(source, max);
    }
    data.segments.try_reserve(2).map_err(|_| Errno::ENOMEM)?;
    if data.segments.is_empty() && !data.ring.is_empty() {
        let len = data.ring.len();
        data.segments.push_back(Segment { len, is_message: false, info: None });
    }
    let len = data.ring.append(source, max)?;
    let info = info.take();
    match data.segments.back_mut() {
        Some(last) if info.is_none() && last.info.is_none() => last.len += len,
        _ => data.segments.push_back(Segment { len, is_message: false, info }),
    }
    Ok(len)
}

fn append_message(
    data: &mut Data,
    source: &mut Source<'_>,
    info: Option<Box<Info>>,
    len: usize,
) -> Result<usize> {
    data.segments.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
    // A part that was copied before a fault is taken back: a message is sent whole or not at all.
    let before = data.ring.len();
    let copied = if len == 0 { 0 } else { data.ring.append(source, len)? };
    if copied < len {
        data.ring.truncate(before);
        return Err(Errno::EFAULT);
    }
    data.segments.push_back(Segment { len, is_message: true, info });
    Ok(len)
}

fn peek(data: &Data, sink: &mut Sink<'_>) -> Result<Received> {
    let Some(first) = data.segments.front() else {
        let len = data.ring.peek(0, usize::MAX, sink)?;
        return Ok(Received { len, full_len: len, ..Received::default() });
    };
    let len = if first.len == 0 { 0 } else { data.ring.peek(0, first.len, sink)? };
    let full_len = if first.is_message { first.len } else { len };
    Ok(Received { len, full_len, info: first.info.clone(), is_message: first.is_message })
}

fn take(data: &mut Data, sink: &mut Sink<'_>, already: usize) -> Result<Received> {
    let Some(first) = data.segments.front_mut() else {
        let len = data.ring.take(usize::MAX, sink)?;
        return Ok(Received { len, full_len: len, ..Received::default() });
    };
    // Data that carries descriptors is not glued to data that was received before it.
    if first.is_message && already > 0 {
        return Ok(Received::default());
    }
    let len = if first.len == 0 { 0 } else { data.ring.take(first.len, sink)? };
    if first.is_message {
        let rest = first.len - len;
        data.ring.discard(rest);
        let segment = data.segments.pop_front();
        let (full_len, info) = segment.map_or((len, None), |s| (s.len, s.info));
        return Ok(Received { len, full_len, info, is_message: true });
    }
    first.len -= len;
    let info = first.info.take();
    if first.len == 0 {
        data.segments.pop_front();
    }
    Ok(Received { len, full_len: len, info, is_message: false })
}
