//! A queue: its messages in order of priority, who waits for one or for room, and who is to be told
//! that it is no longer empty.
//!
//! Why it is hard: a message goes to who has waited longest, not to who comes first after the
//! wake-up, and only a message that nobody waited for is told to the registered process
//! (mq_notify(3)). So each sleeper has a place for its one message, and who hands a message over
//! does so under the queue's lock; the sleeper finds out from its place how its wait ended.
//!
//! Locks: the queue's, then a sleeper's place; wake-ups and signals come after both.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::cmp::Reverse;

use abi::{Errno, Result, general as raw};
use machine::sync::SpinLock;

use super::limits::Charge;
use crate::base::poll::events;
use crate::base::sched::Sleep;
use crate::base::sync::{Timeout, WaitQueue};
use crate::base::time::Deadline;
use crate::process::signal::SigInfo;
use crate::process::signal::send::send_to_process;
use crate::process::{Process, current};

/// A message on its way.
pub(super) struct Message {
    /// 0 to [`super::PRIORITY_MAX`], exclusive.
    pub(super) priority: u32,
    /// What it says.
    pub(super) text: Vec<u8>,
}

/// A thread that waits: a receiver's place is empty until a message comes, a sender's has its
/// message until there is room.
struct Sleeper {
    place: SpinLock<Option<Message>>,
    wake: WaitQueue,
}

/// What a registered program hears by, beside signals: a socket that gets a few bytes
/// (SIGEV_THREAD, which the C library makes a thread of).
pub trait CookieSink: Send + Sync {
    /// Takes the bytes, or loses them: never waits.
    fn put(&self, cookie: &[u8]);
}

/// How a registration is told.
#[derive(Clone)]
pub(super) enum Telling {
    /// Not at all: it only keeps others from registering.
    Nothing,
    /// By this signal, with this value; 0: none.
    Signal(u32, u64),
    /// By a socket.
    Cookie(Arc<dyn CookieSink>, [u8; COOKIE_BYTES]),
}

/// Bytes of what a socket is told by.
pub(super) const COOKIE_BYTES: usize = 32;
/// Its last byte: a message came.
const COOKIE_WOKEN: u8 = 1;
/// Its last byte: the registration is gone.
const COOKIE_REMOVED: u8 = 2;

/// Who is told of the next message that comes to the empty queue.
struct Registration {
    process: Weak<Process>,
    /// Its id, for the file's text.
    pid: u32,
    /// Its table of descriptors: where it closes one of the queue, the registration goes.
    table: usize,
    telling: Telling,
}

#[derive(Default)]
struct QueueState {
    /// By falling priority, then in the order they came.
    messages: BTreeMap<(Reverse<u32>, u64), Vec<u8>>,
    next: u64,
    bytes: u64,
    receivers: VecDeque<Arc<Sleeper>>,
    senders: VecDeque<Arc<Sleeper>>,
    registration: Option<Registration>,
}

/// A queue.
pub(super) struct Queue {
    /// Most messages.
    pub(super) max_messages: u64,
    /// Most bytes of one.
    pub(super) max_bytes: u64,
    state: SpinLock<QueueState>,
    /// For poll.
    pub(super) changed: Arc<WaitQueue>,
    /// What it counts for its maker's user.
    _charge: Charge,
}

impl QueueState {
    fn insert(&mut self, message: Message) {
        self.bytes += message.text.len() as u64;
        self.messages.insert((Reverse(message.priority), self.next), message.text);
        self.next += 1;
    }

    fn take(&mut self) -> Option<Message> {
        let ((Reverse(priority), _), text) = self.messages.pop_first()?;
        self.bytes -= text.len() as u64;
        Some(Message { priority, text })
    }
}

impl Sleeper {
    fn new(message: Option<Message>) -> Arc<Sleeper> {
        Arc::new(Sleeper { place: SpinLock::new(message), wake: WaitQueue::new() })
    }

    /// Waits until the place holds a message, or holds none any more.
    fn sleep(&self, until_full: bool, deadline: Option<Deadline>) -> Result<()> {
        let ready = || (self.place.lock().is_some() == until_full).then_some(());
        Ok(self.wake.wait_deadline(Sleep::Interruptible, deadline, ready)?)
    }
}

impl Queue {
    pub(super) fn new(max_messages: u64, max_bytes: u64, charge: Charge) -> Queue {
        Queue {
            max_messages,
            max_bytes,
            state: SpinLock::default(),
            changed: Arc::new(WaitQueue::new()),
            _charge: charge,
        }
    }

    /// Messages, and their bytes.
    pub(super) fn contents(&self) -> (u64, u64) {
        let state = self.state.lock();
        (state.messages.len() as u64, state.bytes)
    }

    /// How the registered process is told (its `sigev_notify` and signal), and its id.
    pub(super) fn registered(&self) -> (u32, u32, u32) {
        match &self.state.lock().registration {
            None => (0, 0, 0),
            Some(Registration { pid, telling, .. }) => match telling {
                Telling::Nothing => (raw::SIGEV_NONE, 0, *pid),
                Telling::Signal(signal, _) => (raw::SIGEV_SIGNAL, *signal, *pid),
                Telling::Cookie(..) => (raw::SIGEV_THREAD, 0, *pid),
            },
        }
    }

    /// Sends. EAGAIN, ETIMEDOUT, ERESTARTSYS.
    pub(super) fn send(&self, message: Message, timeout: Timeout) -> Result<()> {
        let mut state = self.state.lock();
        if (state.messages.len() as u64) < self.max_messages {
            match state.receivers.pop_front() {
                Some(receiver) => {
                    *receiver.place.lock() = Some(message);
                    drop(state);
                    receiver.wake.wake_all(0);
                }
                None => {
                    state.insert(message);
                    let is_first = state.messages.len() == 1;
                    let told = if is_first { state.registration.take() } else { None };
                    drop(state);
                    told.into_iter().for_each(Registration::tell);
                    self.changed.wake_all(events::READABLE);
                }
            }
            return Ok(());
        }
        if timeout.nonblocking {
            return Err(Errno::EAGAIN);
        }
        state.senders.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        let sleeper = Sleeper::new(Some(message));
        state.senders.push_back(sleeper.clone());
        drop(state);
        let result = sleeper.sleep(false, timeout.deadline);
        let mut state = self.state.lock();
        if sleeper.place.lock().is_none() {
            return Ok(());
        }
        state.senders.retain(|other| !Arc::ptr_eq(other, &sleeper));
        result
    }

    /// Takes the oldest message of the highest priority. EAGAIN, ETIMEDOUT, ERESTARTSYS.
    pub(super) fn receive(&self, timeout: Timeout) -> Result<Message> {
        let mut state = self.state.lock();
        if let Some(message) = state.take() {
            // Who has waited for room puts its message where this one was.
            let sender = state.senders.pop_front();
            if let Some(waiting) = sender.as_ref().and_then(|sender| sender.place.lock().take()) {
                state.insert(waiting);
            }
            drop(state);
            match sender {
                Some(sender) => sender.wake.wake_all(0),
                None => self.changed.wake_all(events::WRITABLE),
            }
            return Ok(message);
        }
        if timeout.nonblocking {
            return Err(Errno::EAGAIN);
        }
        state.receivers.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        let sleeper = Sleeper::new(None);
        state.receivers.push_back(sleeper.clone());
        drop(state);
        let result = sleeper.sleep(true, timeout.deadline);
        let mut state = self.state.lock();
        if let Some(message) = sleeper.place.lock().take() {
            return Ok(message);
        }
        state.receivers.retain(|other| !Arc::ptr_eq(other, &sleeper));
        Err(result.err().unwrap_or(Errno::EAGAIN))
    }

    /// Registers the current process. EBUSY if one is.
    pub(super) fn register(&self, telling: Telling) -> Result<()> {
        let process = &current().process;
        let table = process.files().identity();
        let new =
            Registration { process: Arc::downgrade(process), pid: process.pid, table, telling };
        let mut state = self.state.lock();
        if state.registration.is_some() {
            drop(state);
            // Behind the lock: it may have the last reference to a socket.
            drop(new);
            return Err(Errno::EBUSY);
        }
        state.registration = Some(new);
        Ok(())
    }

    /// Takes the registration away if it was made by this table of descriptors.
    pub(super) fn unregister(&self, table: usize) {
        let mut state = self.state.lock();
        let is_own = state.registration.as_ref().is_some_and(|known| known.table == table);
        let removed = if is_own { state.registration.take() } else { None };
        drop(state);
        if let Some(Registration { telling: Telling::Cookie(sink, cookie), .. }) = removed {
            put_cookie(&*sink, cookie, COOKIE_REMOVED);
        }
    }
}

impl Registration {
    /// A message has come, sent by the current process.
    fn tell(self) {
        match self.telling {
            Telling::Nothing | Telling::Signal(0, _) => {}
            Telling::Signal(signal, value) => {
                let thread = current();
                let uid = thread.credentials().uid;
                let info = SigInfo::of_queue(signal, thread.process.pid, uid, value);
                if let Some(process) = self.process.upgrade() {
                    // A full queue of signals loses it, as on Linux.
                    let _ = send_to_process(&process, info);
                }
            }
            Telling::Cookie(sink, cookie) => put_cookie(&*sink, cookie, COOKIE_WOKEN),
        }
    }
}

fn put_cookie(sink: &dyn CookieSink, mut cookie: [u8; COOKIE_BYTES], reason: u8) {
    cookie[COOKIE_BYTES - 1] = reason;
    sink.put(&cookie);
}
