//! Sockets within the machine (unix(7)). `names`: how sockets are found; this file: the sockets.
//!
//! Locks: a socket's `state` is a spin lock held for a few loads and stores; nothing is called with
//! it held. Channels have their own.

mod names;

use alloc::boxed::Box;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use abi::{Errno, Result, net as raw};
use machine::sync::{Once, SpinLock};

use super::address::{Address, RawAddress};
use super::channel::{Channel, Info, ReceiveMode, Received, SendMode};
use super::control::Ucred;
use super::stream::{Backlog, Conn};
use super::{Common, Outgoing, Socket, SocketKind, boxed, hooks};
use crate::base::io::{Sink, Source};
use crate::base::poll::{PollTable, events};
use crate::base::sync::{Timeout, WaitQueue};
use crate::process::{Process, Thread};

/// Most datagrams in a socket's inbox (net.unix.max_dgram_qlen on most systems).
const DGRAMS_MAX: usize = 512;

/// Who made or answered a conversation, as it was then (SO_PEERCRED, SO_PEERGROUPS).
#[derive(Clone)]
struct Peer {
    who: Ucred,
    groups: Arc<[u32]>,
    /// For SO_PEERPIDFD: another process may have the same id later.
    process: Weak<Process>,
}

impl Peer {
    fn of(who: &Thread) -> Peer {
        let groups = who.credentials().groups.as_slice().into();
        Peer { who: Ucred::of(&who.process), groups, process: Arc::downgrade(&who.process) }
    }

    fn unknown() -> Peer {
        Peer { who: Ucred::UNKNOWN, groups: Arc::new([]), process: Weak::new() }
    }
}

/// The name of a socket, which it gets once. Others see it as it is when they ask, also when the
/// socket has gone: it may be bound after it was connected, and after it sent something.
pub type Name = Arc<Once<Arc<[u8]>>>;

/// Where a socket sends datagrams that name no one.
#[derive(Clone)]
struct DefaultPeer {
    socket: Weak<UnixSocket>,
    name: Name,
}

impl DefaultPeer {
    fn new(socket: &Arc<UnixSocket>) -> DefaultPeer {
        DefaultPeer { socket: Arc::downgrade(socket), name: socket.name.clone() }
    }

    fn is(&self, socket: &UnixSocket) -> bool {
        core::ptr::eq(self.socket.as_ptr(), socket)
    }

    /// The socket, as long as it is open.
    fn open(&self) -> Option<Arc<UnixSocket>> {
        self.socket.upgrade().filter(|socket| !socket.is_closed.load(Ordering::SeqCst))
    }
}

/// The conversation of a connected socket.
struct Link {
    conn: Conn,
    peer: Peer,
    /// The peer's name, also when it has gone.
    peer_name: Name,
    peer_socket: Weak<UnixSocket>,
    /// Whether the peer wants to know who sends (its SO_PASSCRED).
    peer_asks: Arc<AtomicU32>,
}

#[derive(Default)]
struct UnixState {
    /// What keeps the name alive.
    binding: Option<names::Binding>,
    /// Where datagrams go that name no one.
    default_peer: Option<DefaultPeer>,
    /// Who called listen(2).
    listener: Option<Peer>,
}

/// A socket.
pub struct UnixSocket {
    common: Common,
    name: Name,
    state: SpinLock<UnixState>,
    link: Once<Link>,
    is_connecting: AtomicBool,
    backlog: Backlog<UnixSocket>,
    /// Where datagrams arrive; streams have a link instead.
    inbox: Arc<Channel>,
    /// Both sockets of a pair know each other's process.
    pair_peer: Once<Peer>,
    is_closed: AtomicBool,
    /// A socket for datagrams sends no more (shutdown(2)).
    is_mute: AtomicBool,
    /// What it sent as datagrams and nobody has received, bytes.
    sent: Arc<AtomicUsize>,
}

/// PF_UNIX has no protocols but 0 and itself.
pub fn check_protocol(protocol: u32) -> Result<()> {
    if matches!(protocol, 0 | raw::AF_UNIX) { Ok(()) } else { Err(Errno::EPROTONOSUPPORT) }
}

/// A new socket.
pub fn create(kind: SocketKind, protocol: u32) -> Result<Arc<dyn Socket>> {
    check_protocol(protocol)?;
    // SOCK_RAW is an old name of SOCK_DGRAM here.
    let kind = if kind == SocketKind::Raw { SocketKind::Dgram } else { kind };
    Ok(UnixSocket::new(Common::new(raw::AF_UNIX, kind, 0)))
}

/// Two connected sockets (socketpair(2)).
pub fn pair(who: &Thread, kind: SocketKind, protocol: u32) -> Result<[Arc<dyn Socket>; 2]> {
    check_protocol(protocol)?;
    let kind = if kind == SocketKind::Raw { SocketKind::Dgram } else { kind };
    let a = UnixSocket::new(Common::new(raw::AF_UNIX, kind, 0));
    let b = UnixSocket::new(Common::new(raw::AF_UNIX, kind, 0));
    let me = Peer::of(who);
    if kind == SocketKind::Dgram {
        a.state.lock().default_peer = Some(DefaultPeer::new(&b));
        b.state.lock().default_peer = Some(DefaultPeer::new(&a));
        a.pair_peer.call_once(|| me.clone());
        b.pair_peer.call_once(|| me);
    } else {
        let (to_b, to_a) = Conn::pair(&a.common, &b.common, kind == SocketKind::SeqPacket);
        let link = |conn, other: &Arc<UnixSocket>| Link {
            conn,
            peer: me.clone(),
            peer_name: other.name.clone(),
            peer_socket: Arc::downgrade(other),
            peer_asks: other.common.passes_sender.clone(),
        };
        a.link.call_once(|| link(to_b, &b));
        b.link.call_once(|| link(to_a, &a));
    }
    Ok([a, b])
}

impl UnixSocket {
    fn new(common: Common) -> Arc<UnixSocket> {
        let room = Arc::new(WaitQueue::new());
        let inbox = Channel::new(common.receive_limit(), DGRAMS_MAX, &common.readers, &room);
        Arc::new(UnixSocket {
            common,
            name: Name::default(),
            state: SpinLock::new(UnixState::default()),
            link: Once::new(),
            is_connecting: AtomicBool::new(false),
            backlog: Backlog::default(),
            inbox,
            pair_peer: Once::new(),
            is_closed: AtomicBool::new(false),
            is_mute: AtomicBool::new(false),
            sent: Arc::new(AtomicUsize::new(0)),
        })
    }

    fn name(&self) -> Option<Arc<[u8]>> {
        self.name.get().cloned()
    }

    /// Whether it has a name that is in no file system (unix(7), "abstract").
    pub(super) fn has_abstract_name(&self) -> bool {
        self.name.get().is_some_and(|name| name.first() == Some(&0))
    }

    /// Whether it is connected to this one, for datagrams.
    pub(super) fn sends_to(&self, peer: &UnixSocket) -> bool {
        let state = self.state.lock();
        state.default_peer.as_ref().is_some_and(|own| own.is(peer))
    }

    fn is_dgram(&self) -> bool {
        self.common.kind == SocketKind::Dgram
    }

    fn peer(&self) -> Option<Peer> {
        let linked = self.link.get().map(|link| link.peer.clone());
        let listener = || self.state.lock().listener.clone();
        linked.or_else(|| self.pair_peer.get().cloned()).or_else(listener)
    }

    fn wants_credentials(&self) -> bool {
        self.common.passes_sender.load(Ordering::Relaxed) != 0
    }

    /// Gives a socket without a name an abstract one, if credentials are to travel (unix(7),
    /// "Autobind feature").
    fn autobind_if_wanted(self: &Arc<Self>) -> Result<()> {
        if self.wants_credentials() && self.name().is_none() {
            self.bind_to(names::bind_any(self)?);
        }
        Ok(())
    }

    fn bind_to(&self, (name, binding): (Arc<[u8]>, names::Binding)) {
        self.state.lock().binding = Some(binding);
        self.name.call_once(|| name);
    }

    fn connect_dgram(self: &Arc<Self>, who: &Thread, address: &RawAddress) -> Result<()> {
        if address.family()? == raw::AF_UNSPEC {
            self.set_default_peer(None);
            return Ok(());
        }
        address.to_unix()?.ok_or(Errno::EINVAL)?;
        self.autobind_if_wanted()?;
        let peer = self.find_dgram(who, address)?;
        hooks::unix_may_send((who, self, &peer))?;
        self.set_default_peer(Some(DefaultPeer::new(&peer)));
        self.common.writers.wake_all(events::WRITABLE);
        Ok(())
    }

    /// Sends to another from now on, or to none. What the old one sent and nobody received is lost,
    /// and an old one that is connected to this socket hears of it.
    fn set_default_peer(&self, peer: Option<DefaultPeer>) {
        let new = peer.as_ref().map(|peer| peer.socket.as_ptr());
        let old = core::mem::replace(&mut self.state.lock().default_peer, peer);
        let Some(old) = old.filter(|old| new != Some(old.socket.as_ptr())) else { return };
        if !self.inbox.has_data() {
            return;
        }
        self.inbox.clear();
        if let Some(old) = old.open().filter(|old| old.sends_to(self)) {
            old.common.set_error(Errno::ECONNRESET);
            old.common.wake_both();
        }
    }

    fn find_dgram(&self, who: &Thread, address: &RawAddress) -> Result<Arc<UnixSocket>> {
        let name = address.to_unix()?.ok_or(Errno::EINVAL)?;
        let peer = names::find(who, &name, self.common.kind)?;
        // A socket that is connected elsewhere takes messages from there only.
        let its_peer = peer.state.lock().default_peer.clone();
        if its_peer.is_some_and(|its| !its.is(self)) {
            return Err(Errno::EPERM);
        }
        Ok(peer)
    }

    fn connect_stream(
        self: &Arc<Self>,
        who: &Thread,
        address: &RawAddress,
        timeout: Timeout,
    ) -> Result<()> {
        let name = address.to_unix()?.ok_or(Errno::EINVAL)?;
        self.autobind_if_wanted()?;
        let listener = names::find(who, &name, self.common.kind)?;
        if !listener.backlog.is_listening() {
            return Err(Errno::ECONNREFUSED);
        }
        if self.link.get().is_some() {
            return Err(Errno::EISCONN);
        }
        if self.backlog.is_listening() {
            return Err(Errno::EINVAL);
        }
        if self.is_connecting.swap(true, Ordering::SeqCst) {
            return Err(Errno::EALREADY);
        }
        let result = self.connect_to(who, &listener, timeout);
        self.is_connecting.store(false, Ordering::SeqCst);
        result
    }

    fn connect_to(
        self: &Arc<Self>,
        who: &Thread,
        listener: &Arc<UnixSocket>,
        timeout: Timeout,
    ) -> Result<()> {
        hooks::sk_alloc_security((self.common.domain,))?;
        let served = UnixSocket::new(listener.common.inherit());
        hooks::unix_stream_connect((who, self, listener))?;
        let messages = self.common.kind == SocketKind::SeqPacket;
        let (near, far) = Conn::pair(&self.common, &served.common, messages);
        let credentials = listener.state.lock().listener.clone().unwrap_or_else(Peer::unknown);
        if let Some(name) = listener.name() {
            served.name.call_once(|| name);
        }
        served.link.call_once(|| Link {
            conn: far,
            peer: Peer::of(who),
            peer_name: self.name.clone(),
            peer_socket: Arc::downgrade(self),
            peer_asks: self.common.passes_sender.clone(),
        });
        let peer_asks = served.common.passes_sender.clone();
        listener.backlog.push(&served, &listener.common.readers, timeout)?;
        let peer_socket = Arc::downgrade(&served);
        let (conn, peer, peer_name) = (near, credentials, served.name.clone());
        self.link.call_once(|| Link { conn, peer, peer_name, peer_socket, peer_asks });
        self.common.readers.wake_all(0);
        self.common.writers.wake_all(events::WRITABLE);
        Ok(())
    }

    fn send_dgram(&self, who: &Thread, source: &mut Source<'_>, what: Outgoing) -> Result<usize> {
        if let Some(error) = what.control.error {
            return Err(error);
        }
        if what.mode.urgent {
            return Err(Errno::EOPNOTSUPP);
        }
        let default_peer = self.state.lock().default_peer.clone();
        match &what.to {
            Some(address) => drop(address.to_unix()?.ok_or(Errno::EINVAL)?),
            None if default_peer.is_none() => return Err(Errno::ENOTCONN),
            None => {}
        }
        if source.left() > self.common.send_limit() {
            return Err(Errno::EMSGSIZE);
        }
        if self.is_mute.load(Ordering::SeqCst) {
            return Err(Errno::EPIPE);
        }
        let found = match &what.to {
            Some(address) => self.find_dgram(who, address),
            None => default_peer.and_then(|peer| peer.open()).ok_or(Errno::ECONNREFUSED),
        };
        if found.is_err() && what.to.is_none() {
            // The next one hears that there is no peer at all.
            self.set_default_peer(None);
        }
        let peer = match found {
            Ok(peer) => peer,
            // That there is nothing to send is told before that there is nobody to send it to.
            Err(error) => return source.read_through().and(Err(error)),
        };
        hooks::unix_may_send((who, self, &peer))?;
        let mut control = what.control;
        if control.credentials.is_none() && (self.wants_credentials() || peer.wants_credentials()) {
            control.credentials = Some(Ucred::of(&who.process));
        }
        let sender = Some(self.name.clone());
        let info = Some(Box::new(Info { control, sender, ..Info::default() }));
        let may_send = || !self.is_mute.load(Ordering::SeqCst);
        match peer.inbox.send_message_while(source, info, what.timeout, Some(&self.sent), may_send)
        {
            // The receiver closed: to a datagram that is "nobody there".
            Err(Errno::EPIPE) if peer.is_closed.load(Ordering::SeqCst) => Err(Errno::ECONNREFUSED),
            // Nor that it is not taken.
            Err(Errno::EPIPE) => source.read_through().and(Err(Errno::EPIPE)),
            result => result,
        }
    }

    fn poll_listener(&self) -> u32 {
        let mut mask = if self.backlog.has_pending() { events::READABLE } else { 0 };
        if self.inbox.is_ended() {
            mask |= events::READABLE | events::RDHUP;
            if self.is_mute.load(Ordering::SeqCst) {
                mask |= events::HUP;
            }
        }
        mask
    }

    fn poll_dgram(&self, table: &mut PollTable) -> u32 {
        self.common.wait_on_both(table);
        let mut mask = 0;
        if self.inbox.has_data() || self.inbox.is_ended() {
            mask |= events::READABLE;
        }
        if self.inbox.is_ended() {
            mask |= events::RDHUP;
            if self.is_mute.load(Ordering::SeqCst) {
                mask |= events::HUP;
            }
        }
        let peer = self.state.lock().default_peer.clone().and_then(|peer| peer.open());
        let is_writable = peer.is_none_or(|peer| {
            table.wait_on(&peer.inbox.writers);
            peer.inbox.has_room() || peer.inbox.is_refused()
        });
        if is_writable {
            mask |= events::WRITABLE | events::WRBAND;
        }
        if self.common.has_error() {
            mask |= events::ERR;
        }
        mask
    }
}

impl Socket for UnixSocket {
    fn common(&self) -> &Common {
        &self.common
    }

    fn bind(self: Arc<Self>, who: &Thread, address: &RawAddress) -> Result<()> {
        let name = address.to_unix()?;
        let is_bound = self.name().is_some();
        let bound = match name {
            None if is_bound => return Ok(()),
            None => names::bind_any(&self)?,
            // That the name is in use is said first.
            Some(name) if is_bound => {
                names::check_free(who, &name)?;
                return Err(Errno::EINVAL);
            }
            Some(name) => {
                let binding = names::bind(who, &self, &name)?;
                (name, binding)
            }
        };
        self.bind_to(bound);
        Ok(())
    }

    fn connect(
        self: Arc<Self>,
        who: &Thread,
        address: &RawAddress,
        timeout: Timeout,
    ) -> Result<()> {
        if self.is_dgram() {
            self.connect_dgram(who, address)
        } else {
            self.connect_stream(who, address, timeout)
        }
    }

    fn listen(self: Arc<Self>, who: &Thread, backlog: i32) -> Result<()> {
        if self.is_dgram() {
            return Err(Errno::EOPNOTSUPP);
        }
        if self.link.get().is_some() {
            return Err(Errno::EINVAL);
        }
        let me = Peer::of(who);
        {
            let mut state = self.state.lock();
            if self.name.get().is_none() {
                return Err(Errno::EINVAL);
            }
            state.listener = Some(me);
        }
        self.backlog.listen(backlog);
        Ok(())
    }

    fn accept(&self, timeout: Timeout) -> Result<Arc<dyn Socket>> {
        if self.is_dgram() {
            return Err(Errno::EOPNOTSUPP);
        }
        let socket = self.backlog.accept(&self.common.readers, timeout)?;
        Ok(socket)
    }

    fn is_listening(&self) -> bool {
        self.backlog.is_listening()
    }

    fn is_prepared(&self) -> bool {
        self.common.kind == SocketKind::Stream || !self.wants_credentials()
    }

    fn prepare_to_send(self: Arc<Self>, _who: &Thread, what: &Outgoing) -> Result<()> {
        // What cannot be sent at all gives no name.
        let is_good = match &what.to {
            Some(address) if self.is_dgram() => address.to_unix()?.is_some(),
            _ if self.is_dgram() => true,
            _ => self.link.get().is_some_and(|link| !link.conn.rx.is_reset()),
        };
        if is_good && !what.mode.urgent && what.control.error.is_none() {
            self.autobind_if_wanted()?;
        }
        Ok(())
    }

    fn send(&self, who: &Thread, source: &mut Source<'_>, what: Outgoing) -> Result<usize> {
        if self.is_dgram() {
            return self.send_dgram(who, source, what);
        }
        let is_stream = self.common.kind == SocketKind::Stream;
        if let Some(link) = self.link.get().filter(|_| !is_stream)
            && link.conn.rx.take_reset()
        {
            return Err(Errno::ECONNRESET);
        }
        if let Some(error) = what.control.error.filter(|_| is_stream || self.link.get().is_some()) {
            return Err(error);
        }
        // Urgent is a byte of a stream, so there must be one.
        if what.mode.urgent && is_stream && source.left() == 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let Some(link) = self.link.get() else {
            let names_one = what.to.is_some() && is_stream;
            return Err(if names_one { Errno::EOPNOTSUPP } else { Errno::ENOTCONN });
        };
        if what.mode.urgent && !is_stream {
            return Err(Errno::EOPNOTSUPP);
        }
        if what.to.is_some() && self.common.kind == SocketKind::Stream {
            return Err(Errno::EISCONN);
        }
        let mut control = what.control;
        let is_asked = self.wants_credentials() || link.peer_asks.load(Ordering::Relaxed) != 0;
        if control.credentials.is_none() && is_asked {
            control.credentials = Some(Ucred::of(&who.process));
        }
        let info = boxed(control, None);
        let (tx, rx) = (&link.conn.tx, &link.conn.rx);
        let was_closed = tx.is_refused() || tx.is_ended();
        let sent = match self.common.kind {
            SocketKind::SeqPacket => tx.send_message(source, info, what.timeout),
            _ => {
                // Nothing is held back here: there are no packets that could be filled (MSG_MORE).
                let parts_urgent = what.mode.urgent;
                let mode = SendMode { parts_urgent, more: false, ..what.mode };
                tx.send(source, info, mode, what.timeout)
            }
        };
        match sent {
            // A sender that waited is told what it would be told at a receive: the peer closed
            // without having read all. Later ones only hear that nobody reads.
            Err(Errno::EPIPE) if !was_closed && rx.take_reset() => Err(Errno::ECONNRESET),
            Ok(len) if what.mode.urgent && len > 0 => {
                if let Some(peer) = link.peer_socket.upgrade() {
                    peer.common.tell_urgent();
                }
                Ok(len)
            }
            sent => sent,
        }
    }

    fn receive(&self, sink: &mut Sink<'_>, mode: ReceiveMode, how: Timeout) -> Result<Received> {
        if mode.urgent {
            let link = self.link.get().ok_or(Errno::EINVAL)?;
            let byte = link.conn.rx.take_urgent(mode.peek)?;
            // It counts even where there is no room for it.
            sink.put(&[byte])?;
            return Ok(Received { len: 1, full_len: 1, is_urgent: true, ..Received::default() });
        }
        let channel = if self.is_dgram() {
            if let Some(error) = self.common.take_error() {
                return Err(error);
            }
            // Even after shutdown(2): who does not wait does not see the end.
            if how.nonblocking && !self.inbox.has_data() {
                return Err(Errno::EAGAIN);
            }
            &self.inbox
        } else {
            match self.link.get() {
                // Messages come after an error, where bytes come before it.
                Some(link) if self.common.kind != SocketKind::Stream => {
                    if link.conn.rx.take_reset() {
                        return Err(Errno::ECONNRESET);
                    }
                    &link.conn.rx
                }
                Some(link) => &link.conn.rx,
                None if self.common.kind == SocketKind::Stream => return Err(Errno::EINVAL),
                None => return Err(Errno::ENOTCONN),
            }
        };
        let mut received = channel.receive(sink, mode, how)?;
        if let Some(info) = &mut received.info
            && let Some(name) = info.sender.as_ref().and_then(|name| name.get())
        {
            info.from = Some(Address::Unix(Some(name.clone())));
        }
        Ok(received)
    }

    fn shutdown(&self, receive: bool, send: bool) -> Result<()> {
        match self.link.get() {
            Some(link) => link.conn.shutdown(receive, send),
            None if self.is_dgram() => {
                if receive {
                    self.inbox.refuse();
                    self.inbox.end();
                }
                if send {
                    self.is_mute.store(true, Ordering::SeqCst);
                    let peer = self.state.lock().default_peer.clone();
                    if let Some(peer) = peer.and_then(|peer| peer.open()) {
                        peer.inbox.writers.wake_all(0);
                    }
                    self.common.writers.wake_all(0);
                }
            }
            // A stream without a peer may be told, too; a listener minds, and poll shows it.
            None => {
                if send {
                    self.is_mute.store(true, Ordering::SeqCst);
                }
                if receive {
                    self.backlog.shut(&self.common.readers);
                    self.inbox.end();
                }
            }
        }
        Ok(())
    }

    fn close(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
        let binding = self.state.lock().binding.take();
        drop(binding);
        for pending in self.backlog.close() {
            if let Some(link) = pending.link.get() {
                link.conn.close(true);
            }
        }
        if let Some(link) = self.link.get() {
            link.conn.close(false);
        }
        self.inbox.refuse();
        self.inbox.clear();
    }

    fn local_address(&self) -> Address {
        Address::Unix(self.name())
    }

    fn peer_address(&self) -> Result<Address> {
        if let Some(link) = self.link.get() {
            return Ok(Address::Unix(link.peer_name.get().cloned()));
        }
        let peer = self.state.lock().default_peer.clone().ok_or(Errno::ENOTCONN)?;
        Ok(Address::Unix(peer.name.get().cloned()))
    }

    fn sender(&self) -> Option<Address> {
        let name = self.link.get()?.peer_name.get().cloned()?;
        Some(Address::Unix(Some(name)))
    }

    fn peer_credentials(&self) -> Option<Ucred> {
        self.peer().map(|peer| peer.who)
    }

    fn peer_process(&self) -> Result<Arc<Process>> {
        let peer = self.peer().ok_or(Errno::ENODATA)?;
        peer.process.upgrade().ok_or(Errno::EINVAL)
    }

    fn peer_groups(&self) -> Option<Vec<u32>> {
        self.peer().map(|peer| peer.groups.to_vec())
    }

    fn poll(&self, table: &mut PollTable) -> u32 {
        if self.is_dgram() {
            return self.poll_dgram(table);
        }
        if let Some(link) = self.link.get() {
            return link.conn.poll(&self.common, table);
        }
        self.common.wait_on_both(table);
        // Between the look above and the registration a connection may have been made.
        match self.link.get() {
            Some(link) => link.conn.poll(&self.common, &mut PollTable::ask()),
            None if self.backlog.is_listening() => self.poll_listener(),
            None if self.inbox.is_ended() => {
                super::UNCONNECTED | events::WRBAND | events::READABLE | events::RDHUP
            }
            None => super::UNCONNECTED | events::WRBAND,
        }
    }

    fn held_bytes(&self) -> usize {
        self.link.get().map_or(0, |link| link.conn.rx.used()) + self.inbox.used()
    }

    fn each_queued_file(&self, f: &mut dyn FnMut(&Arc<crate::vfs::File>)) -> bool {
        self.link.get().is_none_or(|link| link.conn.rx.each_file(f)) && self.inbox.each_file(f)
    }

    fn forget_queue(&self) {
        if let Some(link) = self.link.get() {
            link.conn.rx.clear();
        }
        self.inbox.clear();
    }

    fn take_error(&self) -> Option<Errno> {
        // A peer that closed without having read all left a mark where the next receive finds it.
        let is_reset = || self.link.get().is_some_and(|link| link.conn.rx.take_reset());
        self.common.take_error().or_else(|| is_reset().then_some(Errno::ECONNRESET))
    }

    fn queued(&self) -> (usize, usize) {
        match self.link.get() {
            Some(link) if self.common.kind == SocketKind::Stream => {
                (link.conn.rx.next_len_with_urgent(), link.conn.tx.used())
            }
            Some(link) => (link.conn.rx.messages_len(), link.conn.tx.used()),
            None => (self.inbox.next_len(), self.sent.load(Ordering::Relaxed)),
        }
    }

    fn is_at_mark(&self) -> bool {
        self.link.get().is_some_and(|link| link.conn.rx.is_at_mark())
    }

    fn limits_changed(&self) {
        if let Some(link) = self.link.get() {
            let is_inline = self.common.is_inert_on(raw::SO_OOBINLINE);
            link.conn.rx.set_urgent_inline(is_inline);
            link.conn.tx.set_limit(self.common.send_limit());
        }
        self.inbox.set_limit(self.common.receive_limit());
    }
}
