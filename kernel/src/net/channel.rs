//! One direction of a conversation, or a datagram socket's inbox: bytes in order, with message
//! boundaries and ancillary data where there are any.
//!
//! Plain stream data is only bytes in a ring. A [`Segment`] is recorded for each message, and for
//! each piece of a stream that carries something; then segments cover the whole ring. The lock
//! sleeps, because copies to programs may fault; lengths are mirrored in atomics for poll.
//!
//! Much data of a plain stream is copied without the lock, so that both sides copy at once on two
//! CPUs: a sender fills pages of its own and then appends them, a receiver takes pages out and then
//! copies them. Meanwhile a mark in [`Data`] keeps other senders, or receivers, waiting for
//! `sending` or `receiving`, which come before the data's lock.
//!
//! The receiving socket owns the queue of readers; the queue of writers belongs to the sending
//! socket, or to an inbox itself, which has many senders.

mod peek;

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use abi::{Errno, Result};
use machine::frame::PAGE_SIZE;
use machine::sync::Once;

use super::address::Address;
use super::control::Control;
use super::packet::Packet;
use crate::base::io::{Sink, Source};
use crate::base::poll::events;
use crate::base::sync::{Mutex, Timeout, WaitQueue, Wake};
use crate::io::ring::{Bulk, PageRing};

/// Bytes that a message costs beside its data, so that empty ones are bounded too.
const MESSAGE_COST: usize = 256;
/// Least stream data that is copied without the lock, bytes.
const BULK_MIN: usize = 2 * PAGE_SIZE;
/// Most at a time.
const BULK_MAX: usize = 64 * PAGE_SIZE;
/// A corked stream is passed on in pieces of this size: what TCP puts into a packet of the loopback
/// interface, less its headers and time stamps.
pub const SEGMENT_BYTES: usize = 65_483;

/// What comes with a message.
#[derive(Clone, Default)]
pub struct Info {
    /// Descriptors and credentials.
    pub control: Control,
    /// The sender of a datagram.
    pub from: Option<Address>,
    /// The sender of a datagram of a unix socket: its name is what it is at the receipt.
    pub sender: Option<super::unix::Name>,
    /// What would stand in its headers.
    pub packet: Option<Packet>,
}

/// A run of bytes in the ring.
struct Segment {
    len: usize,
    /// A message of its own: one receive takes it, and what does not fit is lost.
    is_message: bool,
    /// Somebody has looked at it, and left it there.
    was_seen: bool,
    info: Option<Box<Info>>,
    _sent: Option<OnTheWay>,
}

impl Segment {
    fn new(len: usize, is_message: bool, info: Option<Box<Info>>) -> Segment {
        Segment { len, is_message, was_seen: false, info, _sent: None }
    }
}

/// Counts a message among those of its sender that nobody has received (SIOCOUTQ).
struct OnTheWay {
    total: Arc<AtomicUsize>,
    bytes: usize,
}

impl OnTheWay {
    fn new(total: &Arc<AtomicUsize>, len: usize) -> OnTheWay {
        let bytes = len + MESSAGE_COST;
        total.fetch_add(bytes, Ordering::Relaxed);
        OnTheWay { total: total.clone(), bytes }
    }
}

impl Drop for OnTheWay {
    fn drop(&mut self) {
        self.total.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[derive(Default)]
struct Data {
    ring: PageRing,
    /// Covers the ring, oldest first; empty if all of it is plain stream.
    segments: VecDeque<Segment>,
    /// A sender fills pages that come next.
    is_staging: bool,
    /// A receiver copies so many bytes that came before.
    detached: usize,
    /// The newest bytes, which are held back (MSG_MORE, TCP_CORK).
    held: usize,
    /// Bytes that were ever taken out.
    taken: u64,
    urgent: Option<Urgent>,
    /// Urgent data stays in the stream (SO_OOBINLINE).
    urgent_inline: bool,
}

/// The newest urgent byte (tcp(7)): a mark in the stream.
#[derive(Clone, Copy)]
struct Urgent {
    /// Its position, from the beginning of the conversation.
    at: u64,
    byte: u8,
    is_read: bool,
}

impl Data {
    /// Bytes of a stream that a receive can give at once: up to the urgent mark, or to what is held
    /// back. A mark at the front is passed over here.
    fn pass_mark(&mut self) -> usize {
        let visible = self.ring.len() - self.held;
        match self.urgent {
            None => visible,
            Some(urgent) if urgent.at > self.taken => {
                visible.min((urgent.at - self.taken) as usize)
            }
            Some(_) if self.urgent_inline => visible,
            Some(_) if visible > 0 => {
                self.ring.discard(1);
                if let Some(first) = self.segments.front_mut() {
                    first.len -= 1;
                    if first.len == 0 {
                        self.segments.pop_front();
                    }
                }
                self.count_taken(1);
                visible - 1
            }
            Some(_) => 0,
        }
    }

    /// Counts bytes that were taken out of a stream, past the urgent mark perhaps.
    fn count_taken(&mut self, len: usize) {
        self.taken += len as u64;
        if self.urgent.is_some_and(|urgent| urgent.at < self.taken) {
            self.urgent = None;
        }
    }

    /// Bytes of a stream that poll tells of.
    fn readable(&self) -> usize {
        let skipped = !self.urgent_inline
            && self.urgent.is_some_and(|urgent| urgent.at == self.taken)
            && self.ring.len() > self.held;
        self.ring.len() - self.held - usize::from(skipped)
    }
}

/// The holding back of data, which a timer ends.
struct Hold {
    queue: Arc<WaitQueue>,
    is_timed: AtomicBool,
    is_over: AtomicBool,
}

impl Wake for Hold {
    fn wake(&self, _events: u32) -> bool {
        self.is_over.store(true, Ordering::SeqCst);
        self.is_timed.store(false, Ordering::SeqCst);
        self.queue.wake_all(events::READABLE);
        true
    }
}

/// How to send (send(2)).
#[derive(Clone, Copy, Debug, Default)]
pub struct SendMode {
    /// MSG_MORE, or the socket is corked: more follows at once.
    pub more: bool,
    /// MSG_OOB: the last byte is urgent.
    pub urgent: bool,
    /// What comes before the urgent byte is sent by itself: it has gone out where that byte is not
    /// there.
    pub parts_urgent: bool,
    /// MSG_FASTOPEN: connects first.
    pub connects: bool,
}

/// How to receive (recv(2)).
#[derive(Clone, Copy, Debug, Default)]
pub struct ReceiveMode {
    /// MSG_PEEK: leave it there.
    pub peek: bool,
    /// Where a look begins (SO_PEEK_OFF), if the socket keeps count.
    pub offset: Option<usize>,
    /// A stream waits until there is so much, or the buffer is full: MSG_WAITALL, SO_RCVLOWAT.
    pub least: usize,
    /// MSG_TRUNC of TCP: what would be copied is thrown away.
    pub discard: bool,
    /// MSG_OOB: the urgent byte instead of the stream.
    pub urgent: bool,
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
    /// It was the urgent byte (MSG_OOB).
    pub is_urgent: bool,
}

/// See the module.
pub struct Channel {
    data: Mutex<Data>,
    /// Held while a sender copies without the data's lock.
    sending: Mutex<()>,
    /// Held while a receiver does.
    receiving: Mutex<()>,
    /// Bytes held, with the cost of messages; written under the lock.
    used: AtomicUsize,
    /// Messages held, or bytes of a stream.
    available: AtomicUsize,
    limit: AtomicUsize,
    /// There is urgent data that was not received.
    has_urgent: AtomicBool,
    /// Most messages.
    messages_max: usize,
    ended: AtomicBool,
    refused: AtomicBool,
    reset: AtomicBool,
    hushed: AtomicBool,
    hold: Once<Arc<Hold>>,
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
            sending: Mutex::new(()),
            receiving: Mutex::new(()),
            used: AtomicUsize::new(0),
            available: AtomicUsize::new(0),
            limit: AtomicUsize::new(limit),
            has_urgent: AtomicBool::new(false),
            messages_max,
            ended: AtomicBool::new(false),
            refused: AtomicBool::new(false),
            reset: AtomicBool::new(false),
            hushed: AtomicBool::new(false),
            hold: Once::new(),
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
            _ => data.readable(),
        }
    }

    /// The same of a stream of AF_UNIX, where the urgent byte counts until it was received.
    pub fn next_len_with_urgent(&self) -> usize {
        let data = self.data.lock();
        let is_ahead = |urgent: Urgent| urgent.is_read && urgent.at >= data.taken;
        data.ring.len() - data.held - usize::from(data.urgent.is_some_and(is_ahead))
    }

    /// Bytes of all messages.
    pub fn messages_len(&self) -> usize {
        self.data.lock().ring.len()
    }

    /// Bytes of a stream that were sent and received up to now.
    pub fn totals(&self) -> (u64, u64) {
        let data = self.data.lock();
        (data.taken + (data.detached + data.ring.len()) as u64, data.taken)
    }

    /// Bytes of a stream that can be received.
    #[inline]
    pub fn readable(&self) -> usize {
        if self.hold_is_over() { self.used() } else { self.available.load(Ordering::SeqCst) }
    }

    /// SO_OOBINLINE.
    pub fn set_urgent_inline(&self, is_inline: bool) {
        let mut data = self.data.lock();
        data.urgent_inline = is_inline;
        self.note(&data);
    }

    /// Whether the next byte is the urgent one (sockatmark(3)).
    pub fn is_at_mark(&self) -> bool {
        let data = self.data.lock();
        data.urgent.is_some_and(|urgent| urgent.at == data.taken)
    }

    /// Whether there is urgent data (POLLPRI).
    pub fn has_urgent(&self) -> bool {
        self.has_urgent.load(Ordering::Relaxed)
    }

    /// Receives the urgent byte beside the stream. EINVAL if there is none, or it was received, or
    /// it stays in the stream.
    pub fn take_urgent(&self, peek: bool) -> Result<u8> {
        let mut data = self.data.lock();
        let inline = data.urgent_inline;
        let urgent = data.urgent.as_mut().filter(|urgent| !urgent.is_read && !inline);
        let urgent = urgent.ok_or(Errno::EINVAL)?;
        urgent.is_read |= !peek;
        let byte = urgent.byte;
        self.note(&data);
        Ok(byte)
    }

    /// What ends the holding back after a while, if it has just begun.
    pub fn begin_holding(&self) -> Option<Arc<dyn Wake>> {
        let new = || {
            let queue = self.readers.clone();
            Arc::new(Hold {
                queue,
                is_timed: AtomicBool::new(false),
                is_over: AtomicBool::new(false),
            })
        };
        if self.data.lock().held == 0 {
            return None;
        }
        let hold = self.hold.call_once(new);
        if hold.is_timed.swap(true, Ordering::SeqCst) {
            return None;
        }
        Some(hold.clone())
    }

    fn hold_is_over(&self) -> bool {
        self.hold.get().is_some_and(|hold| hold.is_over.load(Ordering::SeqCst))
    }

    /// Forgets what is held back, if it was so for long enough.
    fn end_hold(&self, data: &mut Data) {
        if let Some(hold) = self.hold.get()
            && hold.is_over.swap(false, Ordering::SeqCst)
        {
            data.held = 0;
        }
    }

    /// Passes on what is held back.
    pub fn uncork(&self) {
        let mut data = self.data.lock();
        if let Some(hold) = self.hold.get() {
            hold.is_timed.store(false, Ordering::SeqCst);
        }
        if core::mem::take(&mut data.held) > 0 {
            self.note(&data);
            drop(data);
            self.readers.wake_one(events::READABLE);
        }
    }

    /// Whether there is something to receive.
    #[inline]
    pub fn has_data(&self) -> bool {
        self.available.load(Ordering::SeqCst) > 0 || self.hold_is_over() && self.used() > 0
    }

    /// Whether there are bytes that nobody has received.
    pub fn has_bytes(&self) -> bool {
        !self.data.lock().ring.is_empty()
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

    /// The receiver waits no more: it gets the end where it would wait, but still what comes.
    pub fn hush(&self) {
        self.hushed.store(true, Ordering::SeqCst);
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
        let mut data = self.data.lock();
        // Who is copying still finds its mark.
        let (is_staging, detached) = (data.is_staging, data.detached);
        let taken = data.taken + data.ring.len() as u64;
        let fresh = Data { is_staging, detached, taken, ..Data::default() };
        let data = { core::mem::replace(&mut *data, fresh) };
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
        let used = data.ring.len() + data.detached + messages * MESSAGE_COST;
        self.used.store(used, Ordering::Relaxed);
        let available = if self.is_stream() { data.readable() } else { messages };
        self.available.store(available, Ordering::SeqCst);
        let has_urgent = data.urgent.is_some_and(|urgent| !urgent.is_read);
        self.has_urgent.store(has_urgent, Ordering::Relaxed);
    }

    fn is_stream(&self) -> bool {
        self.messages_max == usize::MAX
    }

    /// Sends stream data, all of it unless timeout ends. `info` goes with the first byte.
    #[inline]
    pub fn send(
        &self,
        source: &mut Source<'_>,
        mut info: Option<Box<Info>>,
        mode: SendMode,
        timeout: Timeout,
    ) -> Result<usize> {
        let mut done = 0;
        if source.left() == 0 {
            self.room()?;
        }
        while source.left() > 0 {
            let step = timeout.wait(&self.writers, || self.try_send(source, &mut info, mode));
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
        mode: SendMode,
    ) -> Option<Result<usize>> {
        if source.left() >= BULK_MIN && info.is_none() && self.is_stream() && !mode.parts_urgent {
            return self.try_send_bulk(source, mode);
        }
        let before_urgent = (mode.parts_urgent && source.left() > 1).then(|| source.left() - 1);
        let mut data = self.data.lock();
        while data.is_staging {
            drop(data);
            drop(self.sending.lock());
            data = self.data.lock();
        }
        self.end_hold(&mut data);
        let free = match self.room() {
            Ok(0) => return None,
            Ok(free) => free,
            Err(error) => return Some(Err(error)),
        };
        let most = free.min(before_urgent.unwrap_or(free));
        let result = append_stream(&mut data, source, info, most);
        if let Ok(len) = result {
            hold_back(&mut data, len, mode, source.left());
        }
        self.note(&data);
        drop(data);
        self.readers.wake_one(events::READABLE);
        Some(result)
    }

    /// Bytes that may still come, EPIPE if none may any more.
    #[inline]
    fn room(&self) -> Result<usize> {
        if self.is_refused() || self.is_ended() {
            return Err(Errno::EPIPE);
        }
        Ok(self.limit.load(Ordering::Relaxed).saturating_sub(self.used()))
    }

    /// The same for much data: fills what the newest page has left, then pages of its own.
    fn try_send_bulk(&self, source: &mut Source<'_>, mode: SendMode) -> Option<Result<usize>> {
        let _order = self.sending.lock();
        let mut data = self.data.lock();
        let free = match self.room() {
            Ok(0) => return None,
            Ok(free) => free.min(BULK_MAX),
            Err(error) => return Some(Err(error)),
        };
        let is_plain = data.segments.is_empty();
        let first = if is_plain { data.ring.tail_room().min(free) } else { free };
        let mut done = 0;
        if first > 0 {
            match append_stream(&mut data, source, &mut None, first) {
                Ok(len) => done = len,
                Err(error) => return Some(Err(error)),
            }
        }
        if done == first && done < free && source.left() > 0 {
            data.is_staging = true;
            self.note(&data);
            let (wanted, taken) = (source.left().min(free - done), data.taken);
            drop(data);
            let bulk = Bulk::fill(source, wanted);
            data = self.data.lock();
            data.is_staging = false;
            let is_cut = bulk.as_ref().map_or(true, |bulk| bulk.len() < wanted);
            if is_cut && done > 0 && data.taken == taken && data.detached == 0 {
                let before = data.ring.len() - done;
                data.ring.truncate(before);
                done = 0;
            }
            let len = match bulk {
                Ok(_) if self.is_refused() => Err(Errno::EPIPE),
                Ok(_) if is_cut => Err(Errno::EFAULT),
                Ok(bulk) => append_bulk(&mut data, bulk),
                Err(error) => Err(error),
            };
            match len {
                Ok(len) => done += len,
                Err(error) if done == 0 => return Some(Err(error)),
                Err(_) => {}
            }
        }
        hold_back(&mut data, done, mode, source.left());
        self.note(&data);
        drop(data);
        self.readers.wake_one(events::READABLE);
        Some(Ok(done))
    }

    /// Sends one message, whole. EMSGSIZE if it can never fit.
    pub fn send_message(
        &self,
        source: &mut Source<'_>,
        info: Option<Box<Info>>,
        timeout: Timeout,
    ) -> Result<usize> {
        self.send_message_while(source, info, timeout, None, || true)
    }

    /// The same for a channel with several senders: EPIPE once this one may not send any more
    /// (`may_send`), which wakes [`Channel::writers`]. Until it is received it counts in `sent`.
    pub fn send_message_while(
        &self,
        source: &mut Source<'_>,
        info: Option<Box<Info>>,
        timeout: Timeout,
        sent: Option<&Arc<AtomicUsize>>,
        may_send: impl Fn() -> bool,
    ) -> Result<usize> {
        let len = source.left();
        if len + MESSAGE_COST > self.limit.load(Ordering::Relaxed) {
            return Err(Errno::EMSGSIZE);
        }
        let mut info = Some(info);
        timeout.wait(&self.writers, || {
            let mut data = self.data.lock();
            if self.is_refused() || self.is_ended() || !may_send() {
                return Some(Err(Errno::EPIPE));
            }
            let limit = self.limit.load(Ordering::Relaxed);
            let fits = self.used() + len + MESSAGE_COST <= limit;
            if !fits || data.segments.len() >= self.messages_max {
                return None;
            }
            let info = info.take().flatten();
            let result = append_message(&mut data, source, info, sent);
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
        timeout: Timeout,
    ) -> Result<Received> {
        let mut total = Received::default();
        loop {
            let step = timeout.wait(&self.readers, || self.try_receive(sink, mode, total.len));
            let piece = match step {
                Ok(piece) => piece,
                Err(_) if total.len > 0 => return Ok(total),
                // Timeout is over before there was enough: what there is.
                Err(error) if mode.peek && mode.least > 1 => {
                    let mode = ReceiveMode { least: 0, ..mode };
                    return self.try_receive(sink, mode, 0).unwrap_or(Err(error));
                }
                Err(error) => return Err(error),
            };
            let is_end = piece.len == 0;
            total.len += piece.len;
            total.full_len += piece.full_len;
            total.is_message = piece.is_message;
            if total.info.is_none() {
                total.info = piece.info;
            }
            let goes_on = total.len < mode.least && !mode.peek;
            let is_plain = !total.is_message && total.info.is_none();
            if !goes_on || !is_plain || is_end || sink.left() == 0 {
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
        while data.detached > 0 {
            drop(data);
            drop(self.receiving.lock());
            data = self.data.lock();
        }
        self.end_hold(&mut data);
        let is_stream = self.is_stream();
        let readable = if is_stream { data.pass_mark() } else { data.segments.len() };
        let visible = match mode.peek {
            true => peek::visible(&data, is_stream, readable, mode.offset),
            false => readable,
        };
        let is_over = self.is_ended() || self.hushed.load(Ordering::SeqCst);
        if visible == 0 {
            // A mark that was passed over holds nothing any more.
            self.freeing(&mut data, |_| ());
            if already == 0 && self.is_reset() && self.take_reset() {
                return Some(Err(Errno::ECONNRESET));
            }
            return is_over.then(|| Ok(Received::default()));
        }
        if mode.peek && visible < mode.least.min(sink.left()) && is_stream && !is_over {
            return None;
        }
        let had_room = self.has_room();
        let result = if mode.discard {
            let len = visible.min(sink.left());
            data.ring.discard(len);
            data.count_taken(len);
            sink.skip(len);
            Ok(Received { len, full_len: len, ..Received::default() })
        } else if mode.peek {
            peek::peek(&mut data, visible, mode.offset, sink)
        } else if is_stream && data.segments.is_empty() && visible.min(sink.left()) >= BULK_MIN {
            drop(data);
            let result = self.take_bulk(sink);
            // Another receiver was faster: as if this one came now.
            if result == Ok(0) {
                return self.try_receive(sink, mode, already);
            }
            data = self.data.lock();
            result.map(|len| Received { len, full_len: len, ..Received::default() })
        } else {
            take(&mut data, visible, sink, already)
        };
        self.note(&data);
        let has_more = self.has_data();
        drop(data);
        if !mode.peek {
            // A sender of a message may need more room than poll's opinion asks for.
            if !is_stream || (!had_room && self.has_room()) {
                self.writers.wake_one(events::WRITABLE);
            }
            if has_more {
                self.readers.wake_one(events::READABLE);
            }
        }
        Some(result)
    }

    /// Changes what is held, and wakes a sender if that made room. Whether there was room is looked
    /// at here, under the lock: senders go on while a receiver copies without it.
    fn freeing<T>(&self, data: &mut Data, change: impl FnOnce(&mut Data) -> T) -> T {
        let had_room = self.has_room();
        let result = change(data);
        self.note(data);
        if !had_room && self.has_room() {
            self.writers.wake_one(events::WRITABLE);
        }
        result
    }

    /// Takes whole pages out and copies them without the lock, as long as there are any; then the
    /// rest. Returns how much went, nothing if another receiver was faster.
    fn take_bulk(&self, sink: &mut Sink<'_>) -> Result<usize> {
        let _order = self.receiving.lock();
        let mut done = 0;
        loop {
            let mut data = self.data.lock();
            let wanted = data.pass_mark().min(sink.left());
            if wanted < BULK_MIN {
                if wanted == 0 || !data.segments.is_empty() {
                    return Ok(done);
                }
                let last = self.freeing(&mut data, |data| take(data, wanted, sink, done));
                return match last {
                    Err(error) if done == 0 => Err(error),
                    last => Ok(done + last.map_or(0, |last| last.len)),
                };
            }
            let mut bulk = data.ring.detach(wanted.min(BULK_MAX));
            data.detached = bulk.len();
            self.note(&data);
            drop(data);
            let result = if bulk.is_empty() { Err(Errno::ENOMEM) } else { bulk.copy_to(sink) };
            let mut data = self.data.lock();
            let len = *result.as_ref().unwrap_or(&0);
            bulk.skip(len);
            let is_whole = bulk.is_empty();
            self.freeing(&mut data, |data| {
                data.detached = 0;
                data.count_taken(len);
                if !is_whole {
                    data.ring.attach(bulk);
                }
            });
            done += len;
            match result {
                Err(error) if done == 0 => return Err(error),
                Ok(_) if is_whole => {}
                _ => return Ok(done),
            }
        }
    }
}

/// Holds back what was sent last, if more is to follow at once: less than a packet's worth.
fn hold_back(data: &mut Data, len: usize, mode: SendMode, left: usize) {
    data.held = if mode.more { (data.held + len) % SEGMENT_BYTES } else { 0 };
    if mode.urgent && left == 0 && len > 0 {
        let mut byte = [0];
        let last = data.ring.len() - 1;
        let _ = data.ring.peek(last, 1, &mut Sink::kernel(&mut byte));
        let at = data.taken + (data.detached + last) as u64;
        data.urgent = Some(Urgent { at, byte: byte[0], is_read: false });
    }
}

fn append_bulk(data: &mut Data, bulk: Bulk) -> Result<usize> {
    let len = bulk.len();
    data.ring.append_bulk(bulk)?;
    if let Some(last) = data.segments.back_mut() {
        last.len += len;
    }
    Ok(len)
}

fn append_stream(
    data: &mut Data,
    source: &mut Source<'_>,
    info: &mut Option<Box<Info>>,
    max: usize,
) -> Result<usize> {
    if info.is_none() && data.segments.is_empty() {
        return append_piece(data, source, max);
    }
    data.segments.try_reserve(2).map_err(|_| Errno::ENOMEM)?;
    if data.segments.is_empty() && !data.ring.is_empty() {
        let len = data.ring.len();
        data.segments.push_back(Segment::new(len, false, None));
    }
    let len = append_piece(data, source, max)?;
    let info = info.take();
    match data.segments.back_mut() {
        Some(last) if info.is_none() && last.info.is_none() => last.len += len,
        _ => data.segments.push_back(Segment::new(len, false, info)),
    }
    Ok(len)
}

/// Appends up to `max` bytes. As on Linux a piece that is not all there is not sent: EFAULT.
fn append_piece(data: &mut Data, source: &mut Source<'_>, max: usize) -> Result<usize> {
    let (before, wanted) = (data.ring.len(), source.left().min(max));
    let len = data.ring.append(source, max)?;
    if len < wanted {
        data.ring.truncate(before);
        return Err(Errno::EFAULT);
    }
    Ok(len)
}

fn append_message(
    data: &mut Data,
    source: &mut Source<'_>,
    info: Option<Box<Info>>,
    sent: Option<&Arc<AtomicUsize>>,
) -> Result<usize> {
    let len = source.left();
    data.segments.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
    // A part that was copied before a fault is taken back: a message is sent whole or not at all.
    let before = data.ring.len();
    let copied = if len == 0 { 0 } else { data.ring.append(source, len)? };
    if copied < len {
        data.ring.truncate(before);
        return Err(Errno::EFAULT);
    }
    let sent = sent.map(|total| OnTheWay::new(total, len));
    data.segments.push_back(Segment { _sent: sent, ..Segment::new(len, true, info) });
    Ok(len)
}

/// Takes a message, or what a stream gives at once: up to the first descriptors, and as long as the
/// same process sent it.
fn take(data: &mut Data, visible: usize, sink: &mut Sink<'_>, already: usize) -> Result<Received> {
    let mut total = take_segment(data, visible, sink, already)?;
    while total.len > 0
        && !total.is_message
        && sink.left() > 0
        && let Some(next) = data.segments.front()
        && goes_with(total.info.as_deref(), next.info.as_deref())
    {
        let Ok(piece) = take_segment(data, visible, sink, total.len) else { break };
        total.len += piece.len;
        total.full_len += piece.len;
        if piece.info.is_some() {
            total.info = piece.info;
        }
        if piece.len == 0 {
            break;
        }
    }
    Ok(total)
}

/// Whether what comes next may be given together with what was taken.
fn goes_with(taken: Option<&Info>, next: Option<&Info>) -> bool {
    let sender = |info: Option<&Info>| info.and_then(|info| info.control.credentials);
    let has_files = taken.is_some_and(|info| !info.control.files.is_empty());
    !has_files && sender(taken) == sender(next)
}

fn take_segment(
    data: &mut Data,
    visible: usize,
    sink: &mut Sink<'_>,
    already: usize,
) -> Result<Received> {
    let Some(first) = data.segments.front_mut() else {
        let len = data.ring.take(visible, sink)?;
        data.count_taken(len);
        return Ok(Received { len, full_len: len, ..Received::default() });
    };
    // Data that carries descriptors is not glued to data that was received before it.
    if first.is_message && already > 0 {
        return Ok(Received::default());
    }
    let most = if first.is_message { first.len } else { first.len.min(visible) };
    let taken = if most == 0 { Ok(0) } else { data.ring.take(most, sink) };
    if first.is_message {
        let rest = first.len - *taken.as_ref().unwrap_or(&0);
        data.ring.discard(rest);
        let segment = data.segments.pop_front();
        // A message that does not get to its receiver whole, as far as it has room, is lost.
        let len = taken?;
        if rest > 0 && sink.left() > 0 {
            return Err(Errno::EFAULT);
        }
        let (full_len, info) = segment.map_or((len, None), |s| (s.len, s.info));
        return Ok(Received { len, full_len, info, is_message: true, is_urgent: false });
    }
    let len = taken?;
    first.len -= len;
    let info = first.info.take();
    if first.len == 0 {
        data.segments.pop_front();
    } else if let Some(credentials) = info.as_ref().and_then(|info| info.control.credentials) {
        // Descriptors go with the first byte, the sender with every one.
        let control = Control { credentials: Some(credentials), ..Control::default() };
        first.info = Some(Box::new(Info { control, ..Info::default() }));
    }
    data.count_taken(len);
    Ok(Received { len, full_len: len, info, ..Received::default() })
}
