//! A connection: who has ended what, and what that means to either end (RFC 9293, 3.3.2).
//!
//! There are no packets: an end's FIN, and the acknowledgement of it, are there at once. So of
//! TCP's states only those are seen in which an end waits for its peer's program: ESTABLISHED,
//! FIN_WAIT2, CLOSE_WAIT, and TIME_WAIT, which has no socket any more (`flows`).
//!
//! All of it is one word of marks, so that both ends can change it at the same time and everybody
//! sees who was first.

use alloc::sync::{Arc, Weak};
use core::net::SocketAddr;
use core::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use abi::Errno;

use super::super::ports::Owner;
use super::TcpSocket;
use super::flows::{self, Wait};
use crate::base::counters::{self, Counted};
use crate::net::Common;
use crate::net::TcpState;
use crate::net::channel::Channel;

/// Marks of an end, shifted by its side.
const ENDED: u8 = 1;
const DEAF: u8 = 1 << 2;
const GONE: u8 = 1 << 4;
/// Marks of the connection.
const RESET: u8 = 1 << 6;
const SECOND_ENDED_FIRST: u8 = 1 << 7;

/// What both ends share.
pub(super) struct Connection {
    marks: AtomicU8,
    sockets: [Weak<TcpSocket>; 2],
    addresses: [SocketAddr; 2],
    /// The listener passes the connection on when data comes (TCP_DEFER_ACCEPT).
    pub(super) is_deferred: AtomicBool,
}

/// One end.
pub(super) struct Link {
    pub(super) connection: Arc<Connection>,
    side: u8,
    peer_side: u8,
    pub(super) rx: Arc<Channel>,
    pub(super) tx: Arc<Channel>,
}

/// Most bytes on the way in one direction while neither end has said how much: what Linux's
/// buffers of the loopback interface grow to.
pub(super) const AUTO_BYTES: usize = 2_626_560;

/// Bytes that may be on the way from one socket to another.
pub(super) fn limit(from: &Common, to: &Common) -> usize {
    let chosen = from.send_chosen().or(to.receive_chosen());
    chosen.map_or(AUTO_BYTES, |_| from.send_limit() + to.receive_limit())
}

/// Connects two sockets, or one with itself: the ends of both.
pub(super) fn connect(
    a: (&Arc<TcpSocket>, SocketAddr),
    b: (&Arc<TcpSocket>, SocketAddr),
) -> (Link, Link) {
    let direction = |from: &Common, to: &Common| {
        let channel = Channel::new(limit(from, to), usize::MAX, &to.readers, &from.writers);
        channel.set_urgent_inline(to.is_inert_on(abi::net::SO_OOBINLINE));
        channel
    };
    let is_self = Arc::ptr_eq(a.0, b.0);
    let to_b = direction(&a.0.common, &b.0.common);
    let to_a = if is_self { to_b.clone() } else { direction(&b.0.common, &a.0.common) };
    let connection = Arc::new(Connection {
        marks: AtomicU8::new(0),
        sockets: [Arc::downgrade(a.0), Arc::downgrade(b.0)],
        addresses: [a.1, b.1],
        is_deferred: AtomicBool::new(false),
    });
    let last = u8::from(!is_self);
    let end = |side, peer_side, rx: &Arc<Channel>, tx: &Arc<Channel>| Link {
        connection: connection.clone(),
        side,
        peer_side,
        rx: rx.clone(),
        tx: tx.clone(),
    };
    (end(0, last, &to_a, &to_b), end(last, 0, &to_b, &to_a))
}

impl Link {
    pub(super) fn local(&self) -> SocketAddr {
        self.connection.addresses[usize::from(self.side)]
    }

    pub(super) fn peer(&self) -> SocketAddr {
        // A socket that is connected with itself has its own address on both sides.
        self.connection.addresses[usize::from(self.peer_side)]
    }

    /// The socket at the other end, if there still is one.
    pub(super) fn peer_socket(&self) -> Option<Arc<TcpSocket>> {
        self.connection.sockets[usize::from(self.peer_side)].upgrade()
    }

    fn marks(&self) -> u8 {
        self.connection.marks.load(Ordering::SeqCst)
    }

    fn has(&self, mark: u8) -> bool {
        self.marks() & mark << self.side != 0
    }

    fn peer_has(&self, mark: u8) -> bool {
        self.marks() & mark << self.peer_side != 0
    }

    /// The state of this end, which has a socket.
    pub(super) fn state(&self) -> TcpState {
        match (self.has(ENDED), self.peer_has(ENDED)) {
            _ if self.is_reset() => TcpState::Close,
            (false, false) => TcpState::Established,
            (true, false) => TcpState::FinWait2,
            (false, true) => TcpState::CloseWait,
            (true, true) => TcpState::Close,
        }
    }

    /// Whether the connection was broken off.
    pub(super) fn is_reset(&self) -> bool {
        self.marks() & RESET != 0
    }

    /// Whether this end may send.
    pub(super) fn may_send(&self) -> bool {
        !self.is_reset() && !self.has(ENDED)
    }

    /// Whether receiving ends where it would wait.
    pub(super) fn receives_no_more(&self) -> bool {
        self.is_reset() || self.peer_has(ENDED) || self.has(DEAF)
    }

    /// Whether the peer said that it sends no more.
    pub(super) fn peer_has_ended(&self) -> bool {
        self.peer_has(ENDED)
    }

    /// shutdown(2) for receiving: what still comes can be received, but nobody waits for it.
    pub(super) fn hush(&self) {
        self.connection.marks.fetch_or(DEAF << self.side, Ordering::SeqCst);
        self.rx.hush();
        if self.has(ENDED) {
            self.rx.refuse();
        }
    }

    /// This end sends no more: a FIN.
    pub(super) fn end(&self) {
        let mark = ENDED << self.side;
        let peers = ENDED << self.peer_side;
        let change = |marks: u8| match marks {
            _ if marks & mark != 0 => None,
            _ if marks & peers == 0 && self.side == 1 => Some(marks | mark | SECOND_ENDED_FIRST),
            _ => Some(marks | mark),
        };
        let before = self.connection.marks.fetch_update(Ordering::SeqCst, Ordering::SeqCst, change);
        let Ok(before) = before else { return };
        self.tx.uncork();
        self.tx.end();
        self.tx.writers.wake_all(0);
        if self.has(DEAF) {
            self.rx.refuse();
        }
        if before & RESET == 0 && (before & peers != 0 || self.side == self.peer_side) {
            self.finish();
        }
    }

    /// Both have ended: who was first waits, the other is done.
    fn finish(&self) {
        let first = usize::from(self.marks() & SECOND_ENDED_FIRST != 0);
        let [one, other] = self.connection.addresses;
        let (waits, is_done) = if first == 0 { (one, other) } else { (other, one) };
        let reuse = self.connection.sockets[first].upgrade().map(|socket| socket.reuse());
        flows::wait(waits, is_done, Wait::TimeWait, reuse);
        if self.side != self.peer_side {
            flows::remove(is_done, waits);
        }
        for socket in self.connection.sockets.iter().filter_map(Weak::upgrade) {
            socket.common.wake_both();
        }
    }

    /// The socket goes away. `abort`: breaks the connection off (SO_LINGER of 0); so does data that
    /// was not received.
    pub(super) fn close(&self, abort: bool, reuse: (bool, bool)) {
        let is_open = self.state() != TcpState::Close;
        if is_open && (abort || self.rx.has_data()) {
            self.reset_peer();
        } else {
            self.end();
        }
        let before = self.connection.marks.fetch_or(GONE << self.side, Ordering::SeqCst);
        if before & RESET == 0 && !self.peer_has(ENDED) {
            flows::wait(self.local(), self.peer(), Wait::FinWait2, Some(reuse));
        }
        self.rx.refuse();
        self.rx.end();
        self.rx.clear();
    }

    /// Sends an RST: the connection is no more.
    pub(super) fn reset_peer(&self) {
        if self.break_off() && self.side != self.peer_side {
            self.tell_of_reset(self.peer_side);
        }
    }

    /// An RST came: the answer to data that nobody can receive.
    pub(super) fn reset_by_peer(&self) {
        let is_peer_alive = !self.peer_has(GONE);
        if self.break_off() {
            self.tell_of_reset(self.side);
            if is_peer_alive {
                self.tell_of_reset(self.peer_side);
            }
        }
    }

    /// False if it is over anyway.
    fn break_off(&self) -> bool {
        let before = self.connection.marks.fetch_or(RESET, Ordering::SeqCst);
        if before & RESET != 0 || before & 3 == 3 {
            return false;
        }
        counters::count(Counted::OutRsts);
        for side in [self.side, self.peer_side] {
            if before & ENDED << side == 0 {
                counters::count(Counted::EstabResets);
            }
        }
        flows::remove(self.local(), self.peer());
        flows::remove(self.peer(), self.local());
        self.rx.end();
        self.tx.end();
        true
    }

    /// What an end is told depends on whether the other had ended properly.
    fn tell_of_reset(&self, side: u8) {
        let other = if side == self.side { self.peer_side } else { self.side };
        let had_ended = self.marks() & (ENDED << other) != 0;
        let has_ended = self.marks() & (ENDED << side) != 0;
        let error = if had_ended && !has_ended { Errno::EPIPE } else { Errno::ECONNRESET };
        if let Some(socket) = self.connection.sockets[usize::from(side)].upgrade() {
            socket.common.set_error(error);
        }
    }
}
