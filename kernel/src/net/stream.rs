//! What connection-oriented sockets share: two channels that make a conversation (unix sockets; TCP
//! has its own, `inet::tcp::link`), and the queue of conversations that wait to be accepted.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use abi::{Errno, Result};
use machine::sync::SpinLock;

use super::Common;
use super::channel::Channel;
use crate::base::poll::{PollTable, events};
use crate::base::sync::{Timeout, WaitQueue};

/// Largest backlog (net.core.somaxconn).
pub const BACKLOG_MAX: usize = 4096;
/// Most messages in one direction of a SOCK_SEQPACKET conversation.
const MESSAGES_MAX: usize = 4096;

/// One side of a conversation.
pub struct Conn {
    /// What this side receives.
    pub rx: Arc<Channel>,
    /// What this side sends.
    pub tx: Arc<Channel>,
}

impl Conn {
    /// Two sides that talk to each other, for two sockets. `messages`: SOCK_SEQPACKET.
    #[must_use]
    pub fn pair(a: &Common, b: &Common, messages: bool) -> (Conn, Conn) {
        let most = if messages { MESSAGES_MAX } else { usize::MAX };
        let to_b = Channel::new(a.send_limit(), most, &b.readers, &a.writers);
        let to_a = Channel::new(b.send_limit(), most, &a.readers, &b.writers);
        (Conn { rx: to_a.clone(), tx: to_b.clone() }, Conn { rx: to_b, tx: to_a })
    }

    /// shutdown(2), `receive` and `send` being the sides to close.
    pub fn shutdown(&self, receive: bool, send: bool) {
        if send {
            self.tx.end();
            self.tx.writers.wake_all(0);
        }
        if receive {
            self.rx.refuse();
            self.rx.end();
        }
    }

    /// The socket is gone. The other side gets the end, or ECONNRESET if it sent what was never
    /// received, or if `abort` (SO_LINGER with 0). One message without bytes is no loss.
    pub fn close(&self, abort: bool) {
        if self.rx.has_bytes() || self.rx.readable() > 1 || abort {
            self.tx.reset();
        }
        self.shutdown(true, true);
        self.rx.clear();
    }

    /// Readiness of a connected socket.
    pub fn poll(&self, common: &Common, table: &mut PollTable) -> u32 {
        common.wait_on_both(table);
        let mut mask = 0;
        let receive_ended = self.rx.is_ended();
        if self.rx.has_data() || receive_ended {
            mask |= events::READABLE;
        }
        if receive_ended {
            mask |= events::RDHUP;
        }
        if self.rx.has_urgent() {
            mask |= events::PRI;
        }
        let send_ended = self.tx.is_ended() || self.tx.is_refused();
        if receive_ended && send_ended {
            mask |= events::HUP;
        }
        if self.rx.is_reset() || common.has_error() {
            mask |= events::ERR;
        }
        if send_ended || self.tx.has_room() {
            mask |= events::WRITABLE | events::WRBAND;
        }
        mask
    }
}

/// Connections to a listening socket that were not accepted yet.
pub struct Backlog<S> {
    queue: SpinLock<VecDeque<Arc<S>>>,
    max: AtomicUsize,
    is_listening: AtomicBool,
    /// shutdown(2): nothing new is taken.
    is_shut: AtomicBool,
    /// Woken when there is room for another one.
    room: WaitQueue,
}

impl<S> Default for Backlog<S> {
    fn default() -> Self {
        Backlog {
            queue: SpinLock::new(VecDeque::new()),
            max: AtomicUsize::new(0),
            is_listening: AtomicBool::new(false),
            is_shut: AtomicBool::new(false),
            room: WaitQueue::new(),
        }
    }
}

impl<S> Backlog<S> {
    /// listen(2): from now on, up to `max` may wait.
    pub fn listen(&self, max: i32) {
        // As on Linux a negative number is a large one, and one more than asked for may wait.
        let max = (max as u32 as usize).min(BACKLOG_MAX) + 1;
        self.max.store(max, Ordering::Relaxed);
        self.is_listening.store(true, Ordering::SeqCst);
        self.room.wake_all(0);
    }

    /// Whether listen(2) was called.
    pub fn is_listening(&self) -> bool {
        self.is_listening.load(Ordering::SeqCst)
    }

    /// Whether accept(2) has something to give.
    pub fn has_pending(&self) -> bool {
        !self.queue.lock().is_empty()
    }

    /// How many wait, and how many may.
    pub fn lengths(&self) -> (u32, u32) {
        let max = self.max.load(Ordering::Relaxed).saturating_sub(1);
        (self.queue.lock().len() as u32, max as u32)
    }

    /// Adds a connection, waiting for room. ECONNREFUSED if the listener goes away.
    pub fn push(&self, socket: &Arc<S>, readers: &WaitQueue, timeout: Timeout) -> Result<()> {
        timeout.wait(&self.room, || {
            if !self.is_listening() || self.is_shut.load(Ordering::SeqCst) {
                return Some(Err(Errno::ECONNREFUSED));
            }
            let mut queue = self.queue.lock();
            if queue.len() >= self.max.load(Ordering::Relaxed) {
                return None;
            }
            if queue.try_reserve(1).is_err() {
                return Some(Err(Errno::ENOMEM));
            }
            queue.push_back(socket.clone());
            drop(queue);
            readers.wake_one(events::READABLE);
            Some(Ok(()))
        })
    }

    /// Takes the oldest connection. EINVAL if the socket does not listen, or does no more, which
    /// only they are told who would wait.
    pub fn accept(&self, readers: &WaitQueue, timeout: Timeout) -> Result<Arc<S>> {
        let socket = timeout.wait(readers, || {
            if !self.is_listening() {
                return Some(Err(Errno::EINVAL));
            }
            match self.queue.lock().pop_front() {
                None if self.is_shut.load(Ordering::SeqCst) && !timeout.nonblocking => {
                    Some(Err(Errno::EINVAL))
                }
                next => next.map(Ok),
            }
        })?;
        self.room.wake_one(0);
        if self.has_pending() {
            readers.wake_one(events::READABLE);
        }
        Ok(socket)
    }

    /// shutdown(2) of the receiving side: who waits to be accepted still is, and then accept(2)
    /// gives EINVAL.
    pub fn shut(&self, readers: &WaitQueue) {
        self.is_shut.store(true, Ordering::SeqCst);
        self.room.wake_all(0);
        readers.wake_all(events::READABLE);
    }

    /// Stops listening; the connections that nobody accepted are the caller's to close.
    pub fn close(&self) -> Vec<Arc<S>> {
        self.is_listening.store(false, Ordering::SeqCst);
        let left: Vec<Arc<S>> = self.queue.lock().drain(..).collect();
        self.room.wake_all(0);
        left
    }
}
