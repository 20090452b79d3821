//! One port of the console device: a stream of bytes each way (virtio 1.2, 5.3).
//!
//! Flow control is that of the queues. The device can send only into buffers it has been given, and
//! a buffer is given back to it when its bytes have been read; a writer waits when the device holds
//! all it may. So memory per port is bounded, and no byte is lost.
//!
//! Copies from and to programs may sleep, and queues are behind spin locks. A reader therefore
//! takes a filled buffer out, copies, and puts the rest back; meanwhile other readers wait, so that
//! bytes stay in order.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use abi::{Errno, Result};
use machine::sync::SpinLock;
use machine::virtio::{Buffers, Queue, SubmitError};

use crate::base::io::{Sink, Source};
use crate::base::poll::{PollTable, events};
use crate::base::sched::Sleep;
use crate::base::sync::{WaitError, WaitQueue};
use crate::base::time::{Deadline, NS_PER_SEC};

/// Buffers for the device to fill: the most that is on its way to a reader that lags.
const RX_BUFFERS: usize = 32;
const RX_BYTES: usize = 4096;
/// The most one buffer to the device carries, and how many it may hold.
const TX_BYTES: usize = 32 * 1024;
const TX_BUFFERS: usize = 16;
/// How long the first write waits for the host to open its end.
const OPEN_WAIT_NS: u64 = 10 * NS_PER_SEC;
/// No moment: the end of input is not known.
const NO_END: u64 = u64::MAX;

/// A buffer the device has filled, and how much of it has been read.
struct Chunk {
    bytes: Vec<u8>,
    used: usize,
}

struct Rx {
    queue: Queue,
    /// What the last reader left over.
    chunk: Option<Chunk>,
    /// A reader has taken a chunk and not brought it back.
    busy: bool,
}

struct Tx {
    queue: Queue,
    in_flight: usize,
    /// Buffers that never come back: QEMU keeps the one that a host's end did not take in whole
    /// when that end was closed.
    lost: usize,
}

/// A port.
pub struct Port {
    rx: SpinLock<Rx>,
    tx: SpinLock<Tx>,
    /// Bytes given to readers.
    delivered: AtomicU64,
    /// How many bytes there will have been, once the host has said so.
    end: AtomicU64,
    host_open: AtomicBool,
    /// How often the host has opened its end.
    openings: AtomicU64,
    /// How often the port was started anew: whose bytes these are.
    owner: AtomicU64,
    /// The host has opened its end and closed it again, or the device is gone. For good, but where
    /// the port is started anew.
    closed: AtomicBool,
    /// Nobody reads at the host any more what is written here.
    output_closed: AtomicBool,
    readable: Arc<WaitQueue>,
    writable: Arc<WaitQueue>,
}

/// What a reader gets.
enum Taken {
    Chunk(Chunk),
    End,
    Broken,
}

impl Rx {
    /// Gives a buffer to the device.
    fn give(&mut self, bytes: Vec<u8>) {
        let buffers = Buffers { incoming: [bytes, Vec::new()], ..Buffers::default() };
        // There are as many buffers as descriptors, so only a broken device refuses.
        if self.queue.submit(buffers).is_ok() {
            self.queue.notify();
        }
    }

    fn next_chunk(&mut self) -> Option<Chunk> {
        loop {
            if let Some(chunk) = self.chunk.take() {
                return Some(chunk);
            }
            let [bytes, _] = self.queue.pop_completed()?.buffers.incoming;
            if bytes.is_empty() {
                self.give(bytes);
            } else {
                self.chunk = Some(Chunk { bytes, used: 0 });
            }
        }
    }
}

impl Tx {
    /// Takes back what the device has sent.
    fn reap(&mut self) {
        while self.queue.pop_completed().is_some() {
            // Another device may give back late what was thought lost.
            let count = if self.in_flight > 0 { &mut self.in_flight } else { &mut self.lost };
            *count = count.saturating_sub(1);
        }
    }

    /// Whoever was at the host's end has gone, with what was not sent by then.
    fn give_up(&mut self) {
        self.reap();
        self.lost += core::mem::take(&mut self.in_flight);
    }

    fn has_room(&mut self) -> bool {
        self.reap();
        self.in_flight < TX_BUFFERS.min(self.queue.size().saturating_sub(self.lost))
    }
}

impl Port {
    /// A port on these queues. The device may use the buffers from its start on.
    pub(super) fn new(rx: Queue, tx: Queue) -> Port {
        let mut rx = Rx { queue: rx, chunk: None, busy: false };
        for _ in 0..RX_BUFFERS.min(rx.queue.size()) {
            rx.give(Vec::with_capacity(RX_BYTES));
        }
        Port {
            rx: SpinLock::new(rx),
            tx: SpinLock::new(Tx { queue: tx, in_flight: 0, lost: 0 }),
            delivered: AtomicU64::new(0),
            end: AtomicU64::new(NO_END),
            host_open: AtomicBool::new(false),
            openings: AtomicU64::new(0),
            owner: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            output_closed: AtomicBool::new(false),
            readable: Arc::new(WaitQueue::new()),
            writable: Arc::new(WaitQueue::new()),
        }
    }

    /// Reads what there is, at least one byte unless it is the end (0). Sleeps until there is
    /// something; EAGAIN instead if `nonblocking`. EIO if the device is broken.
    pub fn read(&self, sink: &mut Sink<'_>, nonblocking: bool) -> Result<usize> {
        self.read_as(self.owner(), sink, nonblocking)
    }

    /// The same for whom the port has belonged to since [`Self::owner`] was this: the end once it
    /// is another's.
    pub fn read_as(&self, owner: u64, sink: &mut Sink<'_>, nonblocking: bool) -> Result<usize> {
        let mut done = 0;
        while sink.left() > 0 {
            let taken = if done > 0 || nonblocking {
                self.take(owner)
            } else {
                Some(self.readable.wait(|| self.take(owner))?)
            };
            let mut chunk = match taken {
                Some(Taken::Chunk(chunk)) => chunk,
                Some(Taken::Broken) if done == 0 => return Err(Errno::EIO),
                None if done == 0 => return Err(Errno::EAGAIN),
                _ => break,
            };
            let result = sink.put(&chunk.bytes[chunk.used..]);
            let copied = *result.as_ref().unwrap_or(&0);
            chunk.used += copied;
            self.put_back(owner, chunk, copied);
            done += copied;
            if let Err(error) = result {
                return if done > 0 { Ok(done) } else { Err(error) };
            }
        }
        Ok(done)
    }

    fn take(&self, owner: u64) -> Option<Taken> {
        let mut rx = self.rx.lock();
        if self.owner() != owner {
            return Some(Taken::End);
        }
        if rx.busy {
            return None;
        }
        if let Some(chunk) = rx.next_chunk() {
            rx.busy = true;
            return Some(Taken::Chunk(chunk));
        }
        if rx.queue.is_broken() {
            return Some(Taken::Broken);
        }
        self.is_at_end().then_some(Taken::End)
    }

    /// A reader brings back what it took, `copied` bytes of which were delivered.
    fn put_back(&self, owner: u64, chunk: Chunk, copied: usize) {
        let mut rx = self.rx.lock();
        rx.busy = false;
        let is_owners = self.owner() == owner;
        if is_owners {
            self.delivered.fetch_add(copied as u64, Ordering::SeqCst);
        }
        if is_owners && chunk.used < chunk.bytes.len() {
            rx.chunk = Some(chunk);
        } else {
            rx.give(chunk.bytes);
        }
        drop(rx);
        self.readable.wake_one(events::READABLE);
    }

    fn is_at_end(&self) -> bool {
        self.delivered.load(Ordering::SeqCst) >= self.end.load(Ordering::SeqCst)
            || self.closed.load(Ordering::SeqCst)
    }

    /// Writes everything, unless a signal or an error comes in between: then what was written so
    /// far. Sleeps while the device holds all it may; EAGAIN instead if `nonblocking`. EPIPE if the
    /// host said that nobody reads, EIO if the device is broken or the host never opened its end.
    /// Bytes after the host has closed its end are thrown away, as by the device.
    pub fn write(&self, source: &mut Source<'_>, nonblocking: bool) -> Result<usize> {
        self.write_as(self.owner(), source, nonblocking)
    }

    /// The same for whom the port has belonged to since [`Self::owner`] was this: EPIPE once it is
    /// another's.
    pub fn write_as(
        &self,
        owner: u64,
        source: &mut Source<'_>,
        nonblocking: bool,
    ) -> Result<usize> {
        let mut done = 0;
        while source.left() > 0 {
            let result = self.write_some(owner, source, nonblocking);
            match result {
                Ok(0) => break,
                Ok(written) => done += written,
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    fn write_some(&self, owner: u64, source: &mut Source<'_>, nonblocking: bool) -> Result<usize> {
        // Room first: bytes taken from the source must not be lost to a signal.
        self.wait_for_room(owner, nonblocking)?;
        let mut bytes = alloc::vec![0; source.left().min(TX_BYTES)];
        let taken = source.take(&mut bytes)?;
        bytes.truncate(taken);
        // What is written behind the end of one connection must not be the next one's.
        if taken == 0 || self.is_closed() {
            return Ok(taken);
        }
        let mut outgoing = Some(bytes);
        // Another writer may have used the room, so wait again, but for the device only.
        self.writable.wait_uninterruptible(|| {
            let mut tx = self.tx.lock();
            if self.owner() != owner {
                return Some(Err(Errno::EPIPE));
            }
            if !tx.has_room() && !tx.queue.is_broken() {
                return None;
            }
            let buffers = Buffers {
                outgoing: [outgoing.take().unwrap_or_default(), Vec::new()],
                ..Buffers::default()
            };
            match tx.queue.submit(buffers) {
                Ok(_) => {
                    tx.in_flight += 1;
                    tx.queue.notify();
                    Some(Ok(taken))
                }
                Err((SubmitError::Full, mut buffers)) => {
                    outgoing = Some(core::mem::take(&mut buffers.outgoing[0]));
                    None
                }
                Err((SubmitError::Broken, _)) => Some(Err(Errno::EIO)),
            }
        })
    }

    fn wait_for_room(&self, owner: u64, nonblocking: bool) -> Result<()> {
        let is_open = || {
            if self.output_closed.load(Ordering::SeqCst) || self.owner() != owner {
                return Some(Err(Errno::EPIPE));
            }
            let open = self.host_open.load(Ordering::SeqCst) || self.closed.load(Ordering::SeqCst);
            open.then_some(Ok(()))
        };
        let has_room = || {
            let mut tx = self.tx.lock();
            (tx.has_room() || tx.queue.is_broken() || self.owner() != owner).then_some(())
        };
        if nonblocking {
            is_open().ok_or(Errno::EAGAIN)??;
            return has_room().ok_or(Errno::EAGAIN);
        }
        let deadline = Deadline::after_ns(OPEN_WAIT_NS);
        match self.writable.wait_deadline(Sleep::Interruptible, Some(deadline), is_open) {
            Ok(open) => open?,
            Err(WaitError::TimedOut) => return Err(Errno::EIO),
            Err(interrupted) => return Err(interrupted.into()),
        }
        Ok(self.writable.wait(has_room)?)
    }

    /// Waits until the device has sent everything written so far; EIO after `timeout_ns`.
    pub fn flush(&self, timeout_ns: u64) -> Result<()> {
        let deadline = Some(Deadline::after_ns(timeout_ns));
        let result = self.writable.wait_deadline(Sleep::Uninterruptible, deadline, || {
            let mut tx = self.tx.lock();
            tx.reap();
            (tx.in_flight == 0 || tx.queue.is_broken()).then_some(tx.in_flight)
        });
        if result == Ok(0) { Ok(()) } else { Err(Errno::EIO) }
    }

    /// Registers with `table` and tells what can be done now: a poll mask.
    pub fn poll(&self, table: &mut PollTable) -> u32 {
        table.wait_on(&self.readable);
        table.wait_on(&self.writable);
        let mut mask = 0;
        if self.is_readable() {
            mask |= events::READABLE;
        }
        if self.host_open.load(Ordering::SeqCst) && self.tx.lock().has_room() {
            mask |= events::WRITABLE;
        }
        if self.is_at_end() {
            mask |= events::HUP;
        }
        if self.output_closed.load(Ordering::SeqCst) {
            mask |= events::ERR;
        }
        mask
    }

    fn is_readable(&self) -> bool {
        let rx = self.rx.lock();
        let has_data = rx.chunk.is_some() || rx.queue.has_completed();
        has_data || rx.queue.is_broken() || !rx.busy && self.is_at_end()
    }

    /// The host says that its input has `total_bytes` from the start; the end comes after them.
    pub fn set_end(&self, total_bytes: u64) {
        self.end.store(total_bytes, Ordering::SeqCst);
        self.readable.wake_all(events::READABLE | events::HUP);
    }

    /// The host says that nobody reads what is written here: EPIPE from now on.
    pub fn set_output_closed(&self) {
        self.output_closed.store(true, Ordering::SeqCst);
        self.writable.wake_all(events::WRITABLE | events::ERR);
    }

    /// Bytes that can be read without waiting; there may be more.
    pub fn available(&self) -> usize {
        let mut rx = self.rx.lock();
        let chunk = rx.next_chunk();
        let available = chunk.as_ref().map_or(0, |chunk| chunk.bytes.len() - chunk.used);
        rx.chunk = chunk;
        available
    }

    /// Whose bytes these are: another number after [`Self::start_anew`].
    pub fn owner(&self) -> u64 {
        self.owner.load(Ordering::SeqCst)
    }

    /// Waits until the host has its end open and has opened it more often than `before`; how often
    /// it has. The error is EIO after `timeout_ns`, if there is one.
    pub fn wait_opened(&self, before: u64, timeout_ns: Option<u64>) -> Result<u64> {
        let opened = || {
            let openings = self.openings.load(Ordering::SeqCst);
            (openings > before && self.host_open.load(Ordering::SeqCst)).then_some(openings)
        };
        let deadline = timeout_ns.map(Deadline::after_ns);
        let waited = self.readable.wait_deadline(Sleep::Uninterruptible, deadline, opened);
        waited.map_err(|_| Errno::EIO)
    }

    /// Somebody else is at the host's end: what has come and was not read is thrown away, whoever
    /// still reads or writes here finds the end, and the counting begins anew.
    pub fn start_anew(&self) {
        let mut rx = self.rx.lock();
        self.owner.fetch_add(1, Ordering::SeqCst);
        while let Some(chunk) = rx.next_chunk() {
            rx.give(chunk.bytes);
        }
        self.delivered.store(0, Ordering::SeqCst);
        self.end.store(NO_END, Ordering::SeqCst);
        self.output_closed.store(false, Ordering::SeqCst);
        self.closed.store(!self.host_open.load(Ordering::SeqCst), Ordering::SeqCst);
        drop(rx);
        self.tx.lock().give_up();
        self.readable.wake_all(0);
        self.writable.wake_all(0);
    }

    /// True once the host has closed its end.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// The host opened or closed its end. Called in interrupts.
    pub(super) fn set_host_open(&self, open: bool) {
        let was_open = self.host_open.swap(open, Ordering::SeqCst);
        if was_open && !open {
            self.closed.store(true, Ordering::SeqCst);
        } else if open {
            self.openings.fetch_add(1, Ordering::SeqCst);
        }
        self.readable.wake_all(0);
        self.writable.wake_all(0);
    }

    /// The device has used buffers of some queue. Called in interrupts.
    pub(super) fn on_interrupt(&self) {
        if self.rx.lock().queue.has_completed() {
            self.readable.wake_all(events::READABLE);
        }
        if self.tx.lock().queue.has_completed() {
            self.writable.wake_all(events::WRITABLE);
        }
    }
}
