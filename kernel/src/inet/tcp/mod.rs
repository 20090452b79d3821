//! TCP between programs of this machine (tcp(7)). Reading order: `link` (a connection), `connect`
//! (how it comes about), `flows` (which there are), this file (the socket), `options`.
//!
//! There are no packets and so no losses; what programs can tell of TCP's states is kept.
//!
//! Locks: a socket's `phase` is a spin lock held for a few loads and stores.

mod connect;
mod flows;
mod link;
mod options;

use alloc::sync::{Arc, Weak};
use core::net::{IpAddr, SocketAddr};
use core::sync::atomic::{AtomicBool, Ordering};

use abi::{Errno, Result, net as raw};
use machine::sync::SpinLock;

pub use flows::{WaitingEnd, waiting};

use super::options::IpOptions;
use super::ports::{Binding, Owner, Ports, check_address};
use super::{any_address, read_address, read_to_bind, shown};
use crate::base::io::{Sink, Source};
use crate::base::poll::{PollTable, events};
use crate::base::sync::Timeout;
use crate::net::address::{Address, RawAddress};
use crate::net::channel::{ReceiveMode, Received, SendMode};
use crate::net::control::Writer;
use crate::net::options::Value;
use crate::net::stream::Backlog;
use crate::net::{Common, Outgoing, Socket, TcpState};
use crate::process::Thread;
use connect::{Attempt, Waiting};
use link::Link;
use options::TcpOptions;

static PORTS: Ports<TcpSocket> = Ports::new();

/// What a socket is doing.
enum Phase {
    /// Neither connected nor trying.
    Idle,
    /// Waits for the listener to have room.
    Trying(Attempt),
    /// Connected, which connect(2) has not told yet.
    Made(Arc<Link>),
    /// Could not be connected, which connect(2) has not told yet.
    Failed,
    /// The same, and shut down before it was told: it is never connected again.
    Ended,
    /// Connected.
    Linked(Arc<Link>),
}

/// A socket.
pub struct TcpSocket {
    pub(super) common: Common,
    binding: SpinLock<Option<Binding<TcpSocket>>>,
    phase: SpinLock<Phase>,
    backlog: Backlog<TcpSocket>,
    /// Who wants to be connected with this listener, and finds no room.
    waiting: SpinLock<Waiting>,
    ip: IpOptions,
    tcp: TcpOptions,
    me: Weak<TcpSocket>,
    /// Was told to receive no more while it had no connection.
    is_deaf: AtomicBool,
    /// Its port is one that the program named, and is kept when it is connected no more.
    has_chosen_port: AtomicBool,
    /// The name it had before it gave its port up: as on Linux it shows that on.
    former: SpinLock<Option<SocketAddr>>,
}

impl Owner for TcpSocket {
    fn options(&self) -> (&Common, &IpOptions) {
        (&self.common, &self.ip)
    }

    fn listens(&self) -> bool {
        self.backlog.is_listening()
    }
}

impl TcpSocket {
    pub(super) fn new(common: Common) -> Arc<TcpSocket> {
        Self::with_options(common, IpOptions::default(), TcpOptions::default())
    }

    fn with_options(common: Common, ip: IpOptions, tcp: TcpOptions) -> Arc<TcpSocket> {
        Arc::new_cyclic(|me| TcpSocket {
            me: me.clone(),
            common,
            binding: SpinLock::new(None),
            phase: SpinLock::new(Phase::Idle),
            backlog: Backlog::default(),
            waiting: SpinLock::new(Waiting::default()),
            ip,
            tcp,
            is_deaf: AtomicBool::new(false),
            has_chosen_port: AtomicBool::new(false),
            former: SpinLock::new(None),
        })
    }

    fn bound(&self) -> Option<SocketAddr> {
        self.binding.lock().as_ref().map(|binding| binding.address)
    }

    fn bind_at(self: &Arc<Self>, who: &Thread, address: SocketAddr) -> Result<()> {
        let others = |address| flows::keep_from_binding(self, address);
        let binding = PORTS.bind(who, self, address, true, &others)?;
        *self.binding.lock() = Some(binding);
        Ok(())
    }

    fn link(&self) -> Option<Arc<Link>> {
        match &*self.phase.lock() {
            Phase::Made(link) | Phase::Linked(link) => Some(link.clone()),
            _ => None,
        }
    }

    /// The state, as TCP_INFO and /proc/net/tcp tell it.
    pub fn state(&self) -> TcpState {
        match &*self.phase.lock() {
            Phase::Made(link) | Phase::Linked(link) => link.state(),
            Phase::Trying(_) => TcpState::SynSent,
            Phase::Idle if self.backlog.is_listening() => TcpState::Listen,
            Phase::Idle | Phase::Failed | Phase::Ended => TcpState::Close,
        }
    }

    /// The connection to send on, once there is one. EPIPE if none is being made.
    fn link_to_send(&self, timeout: Timeout) -> Result<Arc<Link>> {
        timeout.wait(&self.common.writers, || match &*self.phase.lock() {
            Phase::Made(link) | Phase::Linked(link) => Some(Ok(link.clone())),
            Phase::Trying(_) => None,
            Phase::Idle | Phase::Failed | Phase::Ended => {
                Some(Err(self.common.take_error().unwrap_or(Errno::EPIPE)))
            }
        })
    }

    /// The connection to receive from, once there is one; none if receiving gives the end.
    fn link_to_receive(&self, timeout: Timeout) -> Result<Option<Arc<Link>>> {
        timeout.wait(&self.common.readers, || match &*self.phase.lock() {
            Phase::Made(link) | Phase::Linked(link) => Some(Ok(Some(link.clone()))),
            Phase::Trying(_) => None,
            Phase::Failed | Phase::Ended => Some(self.common.take_error().map_or(Ok(None), Err)),
            Phase::Idle if self.is_listening() => Some(Err(Errno::ENOTCONN)),
            Phase::Idle if self.is_deaf.load(Ordering::Relaxed) => Some(Ok(None)),
            Phase::Idle => Some(Err(self.common.take_error().unwrap_or(Errno::ENOTCONN))),
        })
    }

    /// Breaks off what nobody has accepted.
    fn abandon(&self) {
        if let Some(link) = self.link() {
            link.close(true, self.reuse());
        }
    }

    /// Takes no more connections.
    fn stop_listening(&self) {
        let deferred = self.tcp.take_deferred();
        for pending in self.backlog.close().iter().chain(&deferred) {
            pending.abandon();
        }
        self.refuse_waiting();
        self.give_up_port();
        self.common.wake_both();
    }

    /// What is connected no more, and does not listen, keeps a port only that was chosen for it.
    fn give_up_port(&self) {
        if !self.has_chosen_port.load(Ordering::Relaxed) {
            let binding = self.binding.lock().take();
            if let Some(binding) = binding {
                *self.former.lock() = Some(binding.address);
            }
        }
    }

    /// The address it is bound to, or was before it gave its port up, or any.
    fn own_ip(&self) -> IpAddr {
        let known = self.bound().map(|bound| bound.ip()).or_else(|| self.ip.chosen_address());
        let former = || self.former.lock().map(|former| former.ip());
        known.or_else(former).unwrap_or_else(|| any_address(&self.common))
    }

    /// What receiving nothing means.
    fn end_of(&self, link: &Link) -> Result<Received> {
        if link.peer_has_ended() {
            return Ok(Received::default());
        }
        self.common.take_error().map_or(Ok(Received::default()), Err)
    }

    fn receive_urgent(&self, sink: &mut Sink<'_>, mode: ReceiveMode) -> Result<Received> {
        if self.is_listening() {
            return Err(Errno::ENOTCONN);
        }
        let link = self.link().ok_or(Errno::EINVAL)?;
        let byte = link.rx.take_urgent(mode.peek)?;
        let len = if mode.discard { sink.skip(1) } else { sink.put(&[byte])? };
        Ok(Received { len, full_len: 1, is_urgent: true, ..Received::default() })
    }

    /// After data has gone out: wakes whom it concerns.
    fn after_sending(&self, link: &Link, mode: SendMode) {
        if link.connection.is_deferred.load(Ordering::Relaxed) {
            self.pass_on(link);
        }
        if mode.more {
            self.tcp.uncork_later(&link.tx);
        }
        if mode.urgent
            && let Some(peer) = link.peer_socket()
        {
            peer.common.tell_urgent();
        }
    }
}

impl Socket for TcpSocket {
    fn common(&self) -> &Common {
        &self.common
    }

    fn bind(self: Arc<Self>, who: &Thread, address: &RawAddress) -> Result<()> {
        let address = read_to_bind(&self.common, address)?;
        if address.is_ipv4() && self.common.is_v6() && self.v6_only() {
            return Err(Errno::EINVAL);
        }
        check_address(who, &*self, address)?;
        if self.bound().is_some() || self.state() != TcpState::Close {
            return Err(Errno::EINVAL);
        }
        if self.ip.takes_no_port(address) {
            self.ip.note_bound(address.ip());
            return Ok(());
        }
        self.bind_at(who, address)?;
        self.has_chosen_port.store(address.port() != 0, Ordering::Relaxed);
        self.ip.note_bound(address.ip());
        Ok(())
    }

    fn connect(
        self: Arc<Self>,
        _who: &Thread,
        address: &RawAddress,
        timeout: Timeout,
    ) -> Result<()> {
        if address.family()? == raw::AF_UNSPEC {
            self.disconnect();
            return Ok(());
        }
        if self.is_listening() {
            return Err(Errno::EISCONN);
        }
        // While a connection is being made, or has failed, where to is not asked again.
        match self.goes_on_connecting(timeout) {
            Some(result) => result,
            None => self.connect_socket(read_address(&self.common, address)?, timeout),
        }
    }

    fn listen(self: Arc<Self>, who: &Thread, backlog: i32) -> Result<()> {
        // A connection that failed must have been told of before.
        let is_tried =
            matches!(*self.phase.lock(), Phase::Failed | Phase::Ended) || self.link().is_some();
        if !matches!(self.state(), TcpState::Close | TcpState::Listen) || is_tried {
            return Err(Errno::EINVAL);
        }
        match self.bound() {
            Some(address) => PORTS.check_listening(&self, address)?,
            None => self.bind_at(who, SocketAddr::new(self.own_ip(), 0))?,
        }
        *self.phase.lock() = Phase::Idle;
        self.backlog.listen(backlog);
        Ok(())
    }

    fn accept(&self, timeout: Timeout) -> Result<Arc<dyn Socket>> {
        let socket = timeout.wait(&self.common.readers, || {
            self.pass_on_late();
            let now = Timeout { nonblocking: true, deadline: None };
            let result = self.backlog.accept(&self.common.readers, now);
            (result.as_ref().err() != Some(&Errno::EAGAIN)).then_some(result)
        })?;
        self.admit_waiting();
        Ok(socket)
    }

    fn is_listening(&self) -> bool {
        self.backlog.is_listening()
    }

    fn send(&self, who: &Thread, source: &mut Source<'_>, what: Outgoing) -> Result<usize> {
        if what.mode.connects {
            self.connect_to_send(who, what.to.as_ref(), what.timeout)?;
        }
        let link = self.link_to_send(what.timeout)?;
        let check = || match self.common.take_error() {
            Some(error) => Err(error),
            None if !link.may_send() => Err(Errno::EPIPE),
            None => Ok(()),
        };
        check()?;
        if let Some(error) = what.control.error {
            return Err(error);
        }
        let mode = SendMode { more: what.mode.more || self.tcp.is_corked(), ..what.mode };
        match link.tx.send(source, None, mode, what.timeout) {
            Err(Errno::EPIPE) => {
                check()?;
                // Nobody receives any more, which this end learns from the answer only: what its
                // buffer holds has gone by then.
                source.truncate(self.common.send_limit());
                let len = source.left();
                source.read_through()?;
                link.reset_by_peer();
                Ok(len)
            }
            Ok(len) => {
                self.after_sending(&link, mode);
                Ok(len)
            }
            result => result,
        }
    }

    fn receive(&self, sink: &mut Sink<'_>, mode: ReceiveMode, how: Timeout) -> Result<Received> {
        if mode.urgent {
            return self.receive_urgent(sink, mode);
        }
        let Some(link) = self.link_to_receive(how)? else { return Ok(Received::default()) };
        let room = sink.left();
        let received = link.rx.receive(sink, mode, how)?;
        if received.len == 0 && room > 0 { self.end_of(&link) } else { Ok(received) }
    }

    fn tell(&self, _received: &Received, writer: &mut Writer) -> Result<()> {
        /// The type of the message (TCP_CM_INQ).
        const LEFT: u32 = 36;
        if !self.tcp.wants_inq() {
            return Ok(());
        }
        let left = self.link().map_or(0, |link| link.rx.readable()) as i32;
        writer.put(raw::IPPROTO_TCP as u32, LEFT, &left.to_ne_bytes())
    }

    fn shutdown(&self, receive: bool, send: bool) -> Result<()> {
        if self.backlog.is_listening() {
            if receive {
                self.stop_listening();
            }
            return Ok(());
        }
        if matches!(&*self.phase.lock(), Phase::Trying(_)) {
            self.give_up_trying();
            return Ok(());
        }
        let Some(link) = self.link().filter(|link| link.state() != TcpState::Close) else {
            // Who is not connected is told so, and yet receives the end from then on.
            self.is_deaf.fetch_or(receive, Ordering::Relaxed);
            let mut phase = self.phase.lock();
            if matches!(&*phase, Phase::Failed) {
                *phase = Phase::Ended;
            }
            return Err(Errno::ENOTCONN);
        };
        if receive {
            link.hush();
        }
        if send {
            self.pass_on(&link);
            link.end();
        }
        Ok(())
    }

    fn close(&self) {
        if self.backlog.is_listening() {
            self.stop_listening();
        }
        let phase = core::mem::replace(&mut *self.phase.lock(), Phase::Idle);
        match phase {
            Phase::Made(link) | Phase::Linked(link) => {
                self.pass_on(&link);
                let abort = self.common.linger_seconds.load(Ordering::Relaxed) == 0;
                link.close(abort, self.reuse());
            }
            Phase::Trying(attempt) => attempt.forget(),
            Phase::Idle | Phase::Failed | Phase::Ended => {}
        }
        let binding = self.binding.lock().take();
        drop(binding);
    }

    fn local_address(&self) -> Address {
        let trying = match &*self.phase.lock() {
            Phase::Trying(attempt) => Some(attempt.local),
            _ => None,
        };
        let linked = || self.link().map(|link| link.local());
        let former = || *self.former.lock();
        let address = trying.or_else(linked).or_else(|| self.bound()).or_else(former);
        let address = address.unwrap_or_else(|| SocketAddr::new(self.own_ip(), 0));
        Address::Inet(shown(&self.common, address))
    }

    fn peer_address(&self) -> Result<Address> {
        let link = self.link().filter(|link| link.state() != TcpState::Close);
        let peer = link.ok_or(Errno::ENOTCONN)?.peer();
        Ok(Address::Inet(shown(&self.common, peer)))
    }

    fn poll(&self, table: &mut PollTable) -> u32 {
        self.common.wait_on_both(table);
        self.look_at_clock();
        self.pass_on_late();
        let mask = match &*self.phase.lock() {
            Phase::Idle if self.backlog.is_listening() => {
                if self.backlog.has_pending() {
                    events::READABLE
                } else {
                    0
                }
            }
            Phase::Idle if self.is_deaf.load(Ordering::Relaxed) => {
                crate::net::UNCONNECTED | events::READABLE | events::RDHUP
            }
            Phase::Idle => crate::net::UNCONNECTED,
            Phase::Trying(_) => 0,
            Phase::Failed | Phase::Ended => {
                crate::net::UNCONNECTED | events::READABLE | events::RDHUP
            }
            Phase::Made(link) | Phase::Linked(link) => poll_link(link, self.common.low_water()),
        };
        if self.common.has_error() { mask | events::ERR } else { mask }
    }

    fn tcp_state(&self) -> Option<TcpState> {
        Some(self.state())
    }

    fn backlog_len(&self) -> usize {
        self.backlog.lengths().0 as usize
    }

    fn queued(&self) -> (usize, usize) {
        // A SYN that was refused is never acknowledged.
        let unacknowledged = usize::from(matches!(*self.phase.lock(), Phase::Failed));
        self.link().map_or((0, unacknowledged), |link| (link.rx.next_len(), link.tx.used()))
    }

    fn is_at_mark(&self) -> bool {
        self.link().is_some_and(|link| link.rx.is_at_mark())
    }

    fn shown_send_buffer(&self) -> usize {
        match self.link() {
            Some(_) if self.common.send_chosen().is_none() => link::AUTO_BYTES,
            _ => self.common.send_limit(),
        }
    }

    fn limits_changed(&self) {
        let Some(link) = self.link() else { return };
        link.rx.set_urgent_inline(self.common.is_inert_on(raw::SO_OOBINLINE));
        if let Some(peer) = link.peer_socket() {
            link.tx.set_limit(link::limit(&self.common, &peer.common));
            link.rx.set_limit(link::limit(&peer.common, &self.common));
        }
        self.common.readers.wake_all(0);
    }

    fn get_option(&self, level: u32, name: u32) -> Result<Value> {
        if level == raw::IPPROTO_TCP as u32 {
            return self.get_tcp_option(name);
        }
        // A listener has no way to anybody whose MTU could be told; who was refused still has it.
        let is_connected = !matches!(self.state(), TcpState::Close | TcpState::Listen);
        let was_refused = matches!(*self.phase.lock(), Phase::Failed | Phase::Ended);
        let has_way = is_connected || was_refused && self.bound().is_none();
        let is_v4 = |peer| matches!(peer, Address::Inet(at) if at.ip().to_canonical().is_ipv4());
        let former_is_v4 =
            || self.former.lock().map_or(!self.common.is_v6(), |former| former.is_ipv4());
        let peer_is_v4 = || self.peer_address().map_or_else(|_| former_is_v4(), is_v4);
        self.ip.get(&self.common, level, name, has_way.then(peer_is_v4))
    }

    fn knows_option(&self, level: u32, name: u32) -> bool {
        IpOptions::knows(level, name)
    }

    fn set_option(&self, who: &Thread, level: u32, name: u32, value: &[u8]) -> Result<()> {
        if level == raw::IPPROTO_TCP as u32 {
            return self.set_tcp_option(name, value);
        }
        let is_bound = self.bound().is_some() || self.state() != TcpState::Close;
        self.ip.set(who, &self.common, level, name, value, is_bound)
    }
}

/// Readiness of a connected socket.
fn poll_link(link: &Link, low_water: usize) -> u32 {
    let mut mask = 0;
    let (ended, may_send) = (link.receives_no_more(), link.may_send());
    if ended {
        mask |= events::READABLE | events::RDHUP;
    }
    if link.state() == TcpState::Close || ended && !may_send {
        mask |= events::HUP;
    }
    if link.rx.readable() >= low_water {
        mask |= events::READABLE;
    }
    if link.rx.has_urgent() {
        mask |= events::PRI;
    }
    if !may_send || link.tx.has_room() || link.tx.is_refused() {
        mask |= events::WRITABLE;
    }
    mask
}
