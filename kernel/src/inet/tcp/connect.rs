//! How a connection comes about, or does not.
//!
//! connect(2) finds the listener, makes the other end and puts it into the backlog: over a loopback
//! interface the handshake is done at once, too. Where the backlog is full, a SYN is lost and sent
//! again until there is room: such a socket is an [`Attempt`] that the listener knows of. A
//! program that does not wait learns the outcome by poll, SO_ERROR or another connect, even where
//! it is known already.

use alloc::collections::VecDeque;
use alloc::sync::{Arc, Weak};
use core::net::SocketAddr;
use core::sync::atomic::Ordering;

use abi::{Errno, Result, net as raw};

use super::flows;
use super::link::{self, Link};
use super::{PORTS, Phase, TcpSocket};
use crate::base::counters::{self, Counted};
use crate::base::sync::{Timeout, WaitQueue, Wake};
use crate::base::time::{Deadline, NS_PER_SEC, Timer, wake_at};
use crate::inet::ports::Owner;
use crate::inet::{any_address, destination, source_for};
use crate::net::TcpState;
use crate::net::address::RawAddress;
use crate::net::{Socket, hooks};
use crate::process::Thread;

/// Most sockets that wait for one listener (tcp_max_syn_backlog); the SYNs of others are lost.
const WAITING_MAX: usize = 4096;
/// A peer that does not answer is given up after tcp_syn_retries (6) repetitions: 1 + 2 + 4 … s.
const GIVE_UP_NS: u64 = 127 * NS_PER_SEC;

/// Sockets that want to be connected with a listener.
pub(super) type Waiting = VecDeque<Weak<TcpSocket>>;

/// A socket in SYN_SENT.
pub(super) struct Attempt {
    pub(super) local: SocketAddr,
    to: SocketAddr,
    until: Deadline,
    timer: Timer,
}

impl Attempt {
    /// Nobody waits for it any more.
    pub(super) fn forget(self) {
        self.timer.cancel();
        flows::remove(self.local, self.to);
    }
}

/// Has those who wait look at the clock: called by the timer interrupt, so it does no more.
pub(super) struct TimeIsUp(pub(super) Arc<WaitQueue>);

impl Wake for TimeIsUp {
    fn wake(&self, _events: u32) -> bool {
        self.0.wake_all(0);
        true
    }
}

impl TcpSocket {
    /// connect(2) where a connection is there, being made, or has failed. EISCONN, EALREADY,
    /// ECONNREFUSED, ETIMEDOUT …, EINVAL once it was shut down; none if there is nothing yet.
    pub(super) fn goes_on_connecting(&self, timeout: Timeout) -> Option<Result<()>> {
        self.look_at_clock();
        let mut phase = self.phase.lock();
        match &*phase {
            Phase::Linked(_) => Some(Err(Errno::EISCONN)),
            Phase::Made(link) if link.state() != TcpState::Close => {
                *phase = Phase::Linked(link.clone());
                Some(Ok(()))
            }
            Phase::Made(_) | Phase::Failed => {
                let old = core::mem::replace(&mut *phase, Phase::Idle);
                drop(phase);
                self.forget_attempt();
                drop(old);
                Some(Err(self.common.take_error().unwrap_or(Errno::ECONNABORTED)))
            }
            Phase::Trying(_) if timeout.nonblocking => Some(Err(Errno::EALREADY)),
            Phase::Trying(_) => {
                drop(phase);
                Some(self.wait_for_connection(timeout))
            }
            Phase::Ended => Some(Err(Errno::EINVAL)),
            Phase::Idle => None,
        }
    }

    /// An attempt that failed was told of: its address is shown no more, unless the program chose
    /// it; its port is.
    fn forget_attempt(&self) {
        let own = self.ip.chosen_address().unwrap_or_else(|| any_address(&self.common));
        if let Some(former) = &mut *self.former.lock() {
            former.set_ip(own);
        }
        self.is_deaf.store(false, Ordering::Relaxed);
        self.forget_window_clamp();
    }

    /// connect(2) where there is nothing yet. EINPROGRESS, ECONNREFUSED, ETIMEDOUT …
    pub(super) fn connect_socket(self: &Arc<Self>, to: SocketAddr, timeout: Timeout) -> Result<()> {
        self.begin(to)?;
        if timeout.nonblocking {
            return Err(Errno::EINPROGRESS);
        }
        self.wait_for_connection(timeout)
    }

    /// What a send with MSG_FASTOPEN does first: it connects. There are no cookies, so no data goes
    /// along with the SYN. EOPNOTSUPP for AF_UNSPEC, EINVAL without an address, else as connect(2).
    pub(super) fn connect_to_send(
        &self,
        who: &Thread,
        to: Option<&RawAddress>,
        timeout: Timeout,
    ) -> Result<()> {
        match to {
            Some(address) if address.family() == Ok(raw::AF_UNSPEC) => Err(Errno::EOPNOTSUPP),
            Some(address) => {
                hooks::socket_connect((&who.subject(), &self.common, address))?;
                self.me.upgrade().ok_or(Errno::EPIPE)?.connect(who, address, timeout)
            }
            None if self.listens() => Err(Errno::EISCONN),
            None => self.goes_on_connecting(timeout).unwrap_or(Err(Errno::EINVAL)),
        }
    }

    fn wait_for_connection(&self, timeout: Timeout) -> Result<()> {
        let result = timeout.wait(&self.common.writers, || {
            self.look_at_clock();
            let mut phase = self.phase.lock();
            match &*phase {
                Phase::Trying(_) => None,
                Phase::Made(link) => {
                    *phase = Phase::Linked(link.clone());
                    Some(Ok(()))
                }
                Phase::Linked(_) => Some(Ok(())),
                Phase::Idle | Phase::Failed | Phase::Ended => {
                    *phase = Phase::Idle;
                    drop(phase);
                    self.forget_attempt();
                    Some(Err(self.common.take_error().unwrap_or(Errno::ECONNABORTED)))
                }
            }
        });
        result.map_err(|error| if error == Errno::EAGAIN { Errno::EINPROGRESS } else { error })
    }

    /// Chooses the addresses and tries. What comes out is in the phase; an error only if there
    /// could be no attempt.
    fn begin(self: &Arc<Self>, to: SocketAddr) -> Result<()> {
        let to = destination(to, self.own_ip().is_ipv4())?;
        if to.is_ipv4() && self.common.is_v6() && self.v6_only() {
            return Err(Errno::ENETUNREACH);
        }
        let own = self.bound();
        let ip = source_for(self.own_ip(), to.ip());
        if ip.is_ipv4() != to.is_ipv4() {
            return Err(Errno::ENETUNREACH);
        }
        let port = match own {
            Some(own) => {
                flows::reserve(self, SocketAddr::new(ip, own.port()), to)?;
                own.port()
            }
            None => flows::reserve_any(self, ip, to, |port| PORTS.is_bound(port))?,
        };
        let local = SocketAddr::new(ip, port);
        counters::count(Counted::ActiveOpens);
        let wanted =
            |listener: &Arc<TcpSocket>| hooks::inet_conn_request((&listener.common,)).is_ok();
        let listens = |socket: &TcpSocket| socket.listens().then_some(false);
        let listener = PORTS.find(local, to, listens).filter(wanted);
        match listener {
            Some(listener) => {
                if self.join(&listener, local, to).is_err() {
                    self.try_later(&listener, local, to);
                }
            }
            None if local == to => {
                let (end, _) = link::connect((self, local), (self, to));
                self.set_phase(Phase::Made(Arc::new(end)));
            }
            None => {
                flows::remove(local, to);
                // The name that it had for the attempt is shown until the next one.
                *self.former.lock() = Some(local);
                counters::count(Counted::AttemptFails);
                counters::count(Counted::OutRsts);
                self.set_phase(Phase::Failed);
                self.common.set_error(Errno::ECONNREFUSED);
            }
        }
        Ok(())
    }

    fn set_phase(&self, phase: Phase) {
        let old = core::mem::replace(&mut *self.phase.lock(), phase);
        drop(old);
        self.common.wake_both();
    }

    /// Makes both ends. EAGAIN if the listener has no room, ECONNREFUSED if it listens no more.
    fn join(
        self: &Arc<Self>,
        listener: &TcpSocket,
        local: SocketAddr,
        to: SocketAddr,
    ) -> Result<()> {
        let served = TcpSocket::with_options(
            listener.common.inherit(),
            listener.ip.inherit(),
            listener.tcp.inherit(),
        );
        hooks::sk_clone_security((&listener.common, &served.common));
        let (near, far) = link::connect((self, local), (&served, to));
        let far = Arc::new(far);
        *served.phase.lock() = Phase::Linked(far.clone());
        if listener.tcp.defers_accept() {
            listener.defer(&served, &far)?;
        } else {
            let now = Timeout { nonblocking: true, deadline: None };
            listener.backlog.push(&served, &listener.common.readers, now)?;
        }
        counters::count(Counted::PassiveOpens);
        flows::put(&served, to, local);
        hooks::inet_conn_established((&self.common,));
        self.set_phase(Phase::Made(Arc::new(near)));
        Ok(())
    }

    /// Gives an attempt up whose time is over.
    pub(super) fn look_at_clock(&self) {
        let is_over = match &*self.phase.lock() {
            Phase::Trying(attempt) => attempt.until.has_passed(),
            _ => false,
        };
        if is_over {
            self.give_up(Errno::ETIMEDOUT);
        }
    }

    fn try_later(self: &Arc<Self>, listener: &TcpSocket, local: SocketAddr, to: SocketAddr) {
        let until = Deadline::after_ns(self.tcp.give_up_ns(GIVE_UP_NS));
        let timer = wake_at(until, Arc::new(TimeIsUp(self.common.writers.clone())));
        self.set_phase(Phase::Trying(Attempt { local, to, until, timer }));
        let mut waiting = listener.waiting.lock();
        waiting.retain(|socket| socket.strong_count() > 0);
        if waiting.len() < WAITING_MAX && waiting.try_reserve(1).is_ok() {
            waiting.push_back(Arc::downgrade(self));
        }
        drop(waiting);
        // Room may have come in between, or the listener may have gone.
        listener.admit_waiting();
        if !listener.backlog.is_listening() {
            listener.refuse_waiting();
        }
    }

    /// Connects those who wait, as long as there is room.
    pub(super) fn admit_waiting(&self) {
        loop {
            let next = self.waiting.lock().pop_front();
            let Some(next) = next else { return };
            let Some(socket) = next.upgrade() else { continue };
            let addresses = match &*socket.phase.lock() {
                Phase::Trying(attempt) => (attempt.local, attempt.to),
                _ => continue,
            };
            match socket.take_attempt() {
                Some(attempt) if socket.join(self, addresses.0, addresses.1).is_err() => {
                    *socket.phase.lock() = Phase::Trying(attempt);
                    self.waiting.lock().push_front(next);
                    return;
                }
                Some(attempt) => {
                    attempt.timer.cancel();
                }
                None => {}
            }
        }
    }

    fn take_attempt(&self) -> Option<Attempt> {
        let mut phase = self.phase.lock();
        match core::mem::replace(&mut *phase, Phase::Idle) {
            Phase::Trying(attempt) => Some(attempt),
            other => {
                *phase = other;
                None
            }
        }
    }

    /// The listener is gone: an RST answers.
    pub(super) fn refuse_waiting(&self) {
        let waiting = core::mem::take(&mut *self.waiting.lock());
        for socket in waiting.iter().filter_map(Weak::upgrade) {
            socket.give_up(Errno::ECONNREFUSED);
        }
    }

    fn give_up(&self, error: Errno) {
        let Some(attempt) = self.take_attempt() else { return };
        *self.phase.lock() = Phase::Failed;
        counters::count(Counted::AttemptFails);
        attempt.forget();
        self.common.set_error(error);
    }

    /// shutdown(2) of a socket that is not connected yet.
    pub(super) fn give_up_trying(&self) {
        if let Some(attempt) = self.take_attempt() {
            attempt.forget();
            self.common.set_error(Errno::ECONNRESET);
        }
    }

    /// connect(2) with AF_UNSPEC: the socket is as after bind(2), or as new.
    pub(super) fn disconnect(&self) {
        self.is_deaf.store(false, Ordering::Relaxed);
        if self.backlog.is_listening() {
            self.stop_listening();
            return;
        }
        self.forget_window_clamp();
        self.give_up_trying();
        let phase = core::mem::replace(&mut *self.phase.lock(), Phase::Idle);
        if let Phase::Made(link) | Phase::Linked(link) = phase {
            let was_open = link.state() != TcpState::Close;
            link.close(true, self.reuse());
            if was_open {
                self.common.set_error(Errno::ECONNRESET);
            }
        }
        self.give_up_port();
        self.common.wake_both();
    }

    /// TCP_DEFER_ACCEPT: the connection stands, but the listener is not told before data comes.
    fn defer(&self, served: &Arc<TcpSocket>, far: &Link) -> Result<()> {
        if !self.backlog.is_listening() {
            return Err(Errno::ECONNREFUSED);
        }
        far.connection.is_deferred.store(true, Ordering::SeqCst);
        self.tcp.keep_deferred(served, self)
    }

    /// Passes on what was held back for as long as the listener asked for.
    pub(super) fn pass_on_late(&self) {
        if !self.tcp.defers_accept() {
            return;
        }
        for served in self.tcp.overdue() {
            if let Some(link) = served.link()
                && let Some(client) = link.peer_socket()
                && let Some(near) = client.link()
            {
                client.pass_on(&near);
            }
        }
    }

    /// Data or the end has come on a connection that was held back from its listener.
    pub(super) fn pass_on(&self, link: &Link) {
        if !link.connection.is_deferred.swap(false, Ordering::SeqCst) {
            return;
        }
        let Some(served) = link.peer_socket() else { return };
        let Some(listener) = served.tcp.listener() else { return served.abandon() };
        let now = Timeout { nonblocking: true, deadline: None };
        if listener.backlog.push(&served, &listener.common.readers, now).is_err() {
            served.abandon();
        }
        listener.tcp.forget_deferred(&served);
    }
}
