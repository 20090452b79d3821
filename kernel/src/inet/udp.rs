//! UDP and UDP-Lite between programs of this machine (udp(7), udplite(7)). What finds no socket or
//! room is lost, as on a network; of the former a connected sender hears by ECONNREFUSED.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, Ordering};

use abi::{Errno, Result, net as raw, udp_option};
use machine::sync::SpinLock;

use super::cork::Cork;
use super::errors::{self, ErrorQueue, Undelivered};
use super::groups;
use super::options::{IpOptions, wants};
use super::ports::{Binding, Owner, Ports, check_address};
use super::udplite::Coverage;
use super::{
    any_address, check_broadcast, destination, is_broadcast, read_address, read_to_bind, shown,
    source_for,
};
use crate::base::counters::{self, Counted};
use crate::base::io::{Sink, Source};
use crate::base::poll::{PollTable, events};
use crate::base::sync::{Timeout, WaitQueue};
use crate::base::time::realtime_ns;
use crate::net::address::{Address, RawAddress};
use crate::net::channel::{Channel, Info, ReceiveMode, Received};
use crate::net::control::{Control, Writer};
use crate::net::options::Value;
use crate::net::packet::Packet;
use crate::net::{Common, Outgoing, Socket};
use crate::process::Thread;

/// Most datagrams of one send (UDP_SEGMENT).
const SEGMENTS_MAX: usize = 128;
/// Largest payload: 65535 less both headers.
pub(super) const PAYLOAD_MAX: usize = 65507;
/// Most datagrams in an inbox.
const DGRAMS_MAX: usize = 4096;

static PORTS: Ports<UdpSocket> = Ports::new();
static LITE_PORTS: Ports<UdpSocket> = Ports::new();

/// A socket.
pub(super) struct UdpSocket {
    common: Common,
    binding: SpinLock<Option<Binding<UdpSocket>>>,
    peer: SpinLock<Option<SocketAddr>>,
    inbox: Arc<Channel>,
    ip: IpOptions,
    /// Nothing more is sent (SHUT_WR).
    is_mute: AtomicBool,
    /// What could not be delivered (IP_RECVERR).
    errors: ErrorQueue,
    /// UDP_SEGMENT; 0: one send, one datagram.
    segment: AtomicU16,
    /// UDP_GRO.
    takes_many: AtomicBool,
    /// UDP_NO_CHECK6_TX and _RX, which are kept.
    no_checks: AtomicU8,
    /// UDP_CORK.
    is_corked: AtomicBool,
    cork: Cork,
    coverage: Coverage,
}

/// A datagram, or several of one send, on its way.
#[derive(Clone, Copy)]
pub(super) struct Sending {
    from: SocketAddr,
    pub(super) to: SocketAddr,
    ttl: u8,
    tos: u8,
    segment: u16,
    /// How much of it is covered, if not all (UDP-Lite).
    covered: Option<u16>,
}

impl Owner for UdpSocket {
    fn options(&self) -> (&Common, &IpOptions) {
        (&self.common, &self.ip)
    }

    fn listens(&self) -> bool {
        false
    }
}

impl UdpSocket {
    pub(super) fn new(common: Common) -> Arc<UdpSocket> {
        let room = Arc::new(WaitQueue::new());
        let inbox = Channel::new(common.receive_limit(), DGRAMS_MAX, &common.readers, &room);
        Arc::new(UdpSocket {
            common,
            binding: SpinLock::new(None),
            peer: SpinLock::new(None),
            inbox,
            ip: IpOptions::default(),
            is_mute: AtomicBool::new(false),
            errors: ErrorQueue::default(),
            segment: AtomicU16::new(0),
            takes_many: AtomicBool::new(false),
            no_checks: AtomicU8::new(0),
            is_corked: AtomicBool::new(false),
            cork: Cork::default(),
            coverage: Coverage::new(),
        })
    }

    fn is_lite(&self) -> bool {
        self.common.protocol == raw::IPPROTO_UDPLITE as u32
    }

    fn ports(&self) -> &'static Ports<UdpSocket> {
        if self.is_lite() { &LITE_PORTS } else { &PORTS }
    }

    /// Counts something of a datagram to this address. What is of IPv6 has another table.
    fn count(&self, to: SocketAddr, what: Counted) {
        if to.is_ipv4() {
            counters::count(if self.is_lite() { what.of_udplite() } else { what });
        }
    }

    fn bound(&self) -> Option<SocketAddr> {
        self.binding.lock().as_ref().map(|binding| binding.address)
    }

    /// Whether a datagram from `from` is for this socket.
    fn takes_from(&self, from: SocketAddr) -> bool {
        self.is_peer(from).is_some()
    }

    /// The same: whether it is connected to that address, or to none.
    fn is_peer(&self, from: SocketAddr) -> Option<bool> {
        let is_port = |port| [0, from.port()].contains(&port);
        match *self.peer.lock() {
            None => Some(false),
            Some(peer) => (peer.ip() == from.ip() && is_port(peer.port())).then_some(true),
        }
    }

    /// Whom an address of a send or connect names; None if that is nobody in particular. A socket
    /// of either version takes addresses of version 4, and sends take no family for that.
    fn whom(&self, address: &RawAddress, sends: bool) -> Result<Option<SocketAddr>> {
        let family = address.family()?;
        match (self.common.is_v6(), family) {
            (true, raw::AF_INET) => address.to_inet(false).map(Some),
            (true, raw::AF_UNSPEC) if sends => Ok(None),
            (true, other) if sends && other != raw::AF_INET6 => Err(Errno::EINVAL),
            (false, raw::AF_UNSPEC) if sends => {
                address.with_family(raw::AF_INET).to_inet(false).map(Some)
            }
            _ => read_address(&self.common, address).map(Some),
        }
    }

    /// Whom a datagram of `len` bytes names. What IPv6 passes on to IPv4 by its family is asked
    /// there before the address is read.
    fn named(&self, len: usize, what: &Outgoing) -> Result<Option<Option<SocketAddr>>> {
        let Some(address) = &what.to else { return Ok(None) };
        if self.common.is_v6() && address.family()? == raw::AF_INET {
            if self.ip.v6_only() {
                return Err(Errno::ENETUNREACH);
            }
            check_v4(len, what.mode.urgent)?;
        }
        self.whom(address, true).map(Some)
    }

    /// Where to reach a peer, a group by the interface that was chosen, or all who listen: EACCES
    /// without SO_BROADCAST. ENETUNREACH.
    fn reachable(&self, to: SocketAddr) -> Result<SocketAddr> {
        if is_broadcast(to.ip()) {
            let own = self.bound().map(|own| own.ip());
            // Who is connected speaks from one address.
            let own = match *self.peer.lock() {
                Some(peer) if peer.is_ipv4() => own.map(|own| source_for(own, peer.ip())),
                _ => own,
            };
            return check_broadcast(&self.common, own, to.ip()).map(|()| to);
        }
        let has_way = || self.ip.groups.interface().1 || self.common.is_bound_to_device();
        if to.ip().is_ipv4() && to.ip().is_multicast() && has_way() {
            return Ok(to);
        }
        destination(to, self.is_of_v4())
    }

    /// Whether its own address is one of IPv4, or the peer's.
    fn is_of_v4(&self) -> bool {
        self.is_connected_by_v4() || self.bound().is_some_and(|own| own.is_ipv4())
    }

    fn is_connected_by_v4(&self) -> bool {
        self.peer.lock().is_some_and(|peer| peer.is_ipv4())
    }

    /// EAFNOSUPPORT for IPv6 from a socket that is connected by IPv4.
    fn check_version(&self, to: SocketAddr) -> Result<()> {
        if self.is_connected_by_v4() && to.is_ipv6() { Err(Errno::EAFNOSUPPORT) } else { Ok(()) }
    }

    /// Nobody takes what was sent. Who is connected with just that address hears of it, and who
    /// wants to hear of all errors (IP_RECVERR) gets it back, too.
    fn refused(&self, source: &mut Source<'_>, to: SocketAddr, is_peer: bool) -> Result<()> {
        let wants_all = self.ip.wants() & (wants::ERRORS | wants::ERRORS_6) != 0;
        let most = if wants_all { errors::quoted_bytes(to) } else { 0 };
        let mut quoted = Vec::new();
        // What nobody takes must be there all the same.
        let mut piece = [0; 256];
        while source.left() > 0 {
            let taken = source.take(&mut piece)?;
            let kept = taken.min(most - quoted.len());
            quoted.try_reserve(kept).map_err(|_| Errno::ENOMEM)?;
            quoted.extend_from_slice(&piece[..kept]);
        }
        if wants_all {
            self.errors.add(Undelivered { quoted, to });
        }
        if wants_all || is_peer {
            self.common.set_error(Errno::ECONNREFUSED);
        }
        Ok(())
    }

    /// getsockopt(2) at the levels IPPROTO_UDP and IPPROTO_UDPLITE, which are one. ENOPROTOOPT.
    fn get_own_option(&self, name: u32) -> Result<i32> {
        let check = |bit: u8| i32::from(self.no_checks.load(Ordering::Relaxed) & bit != 0);
        match name {
            udp_option::CORK => Ok(self.is_corked.load(Ordering::Relaxed).into()),
            udp_option::ENCAP => Ok(0),
            udp_option::NO_CHECK6_TX => Ok(check(1)),
            udp_option::NO_CHECK6_RX => Ok(check(2)),
            udp_option::SEGMENT => Ok(self.segment.load(Ordering::Relaxed).into()),
            udp_option::GRO => Ok(self.takes_many.load(Ordering::Relaxed).into()),
            udp_option::LITE_SEND | udp_option::LITE_RECEIVE => Ok(self.coverage.get(name)),
            _ => Err(Errno::ENOPROTOOPT),
        }
    }

    /// setsockopt(2) at the same levels. ENOPROTOOPT, EINVAL.
    fn set_own_option(&self, name: u32, value: &[u8]) -> Result<()> {
        let [a, b, c, d, ..] = *value else { return Err(Errno::EINVAL) };
        let number = i32::from_ne_bytes([a, b, c, d]);
        let check = |bit: u8| match number {
            0 => self.no_checks.fetch_and(!bit, Ordering::Relaxed),
            _ => self.no_checks.fetch_or(bit, Ordering::Relaxed),
        };
        match name {
            udp_option::CORK => {
                self.is_corked.store(number != 0, Ordering::Relaxed);
                if number == 0 {
                    self.uncork()?;
                }
            }
            udp_option::NO_CHECK6_TX => _ = check(1),
            udp_option::NO_CHECK6_RX => _ = check(2),
            udp_option::SEGMENT => {
                let segment = u16::try_from(number).map_err(|_| Errno::EINVAL)?;
                self.segment.store(segment, Ordering::Relaxed);
            }
            udp_option::GRO => self.takes_many.store(number != 0, Ordering::Relaxed),
            udp_option::LITE_SEND | udp_option::LITE_RECEIVE if self.is_lite() => {
                self.coverage.set(name, number);
            }
            _ => return Err(Errno::ENOPROTOOPT),
        }
        Ok(())
    }

    /// Whom a datagram of `len` bytes goes to, and how, as Linux's order of checks has it.
    fn address(&self, len: usize, what: &Outgoing) -> Result<Sending> {
        let named = self.named(len, what)?;
        let named_nobody = named.is_some_and(|whom| whom.is_none());
        let mut to = named.flatten().or(*self.peer.lock()).ok_or(Errno::EDESTADDRREQ)?;
        if self.common.is_v6() && to.ip() == Ipv6Addr::UNSPECIFIED && self.is_of_v4() {
            to.set_ip(Ipv4Addr::LOCALHOST.into());
        }
        // An address without a family leads by IPv6 to the peer, which may be one of IPv4.
        let is_lost = named_nobody && to.is_ipv4();
        if to.is_ipv4() && self.common.is_v6() && !is_lost {
            if self.ip.v6_only() {
                return Err(Errno::ENETUNREACH);
            }
            check_v4(len, what.mode.urgent)?;
        }
        // Who is connected to none is not told before nobody takes it; a socket of IPv6 passes
        // on to IPv4 whom it is connected to as if it had been named.
        let is_passed_on = to.is_ipv4() && self.common.is_v6() && !is_lost;
        if to.port() == 0 && (named.flatten().is_some() || is_passed_on) {
            return Err(Errno::EINVAL);
        }
        let said = what.control.said;
        if let Some(error) = what.control.error.or(said.is_odd.then_some(Errno::EINVAL)) {
            return Err(error);
        }
        let own = self.bound().ok_or(Errno::EDESTADDRREQ)?;
        if said.source.is_some_and(|ip| !ip.is_loopback() || ip.is_ipv4() != to.is_ipv4()) {
            return Err(Errno::EINVAL);
        }
        if is_lost {
            return Err(Errno::ENETUNREACH);
        }
        let to = self.reachable(to)?;
        self.check_version(to)?;
        if len > PAYLOAD_MAX {
            return Err(Errno::EMSGSIZE);
        }
        let from_ip = said.source.unwrap_or_else(|| source_for(own.ip(), to.ip()));
        let (ttl, tos) = said.lifetime_and_service(&self.ip, to.ip());
        let segment = said.segment.unwrap_or_else(|| self.segment.load(Ordering::Relaxed));
        let from = SocketAddr::new(from_ip, own.port());
        Ok(Sending { from, to, ttl, tos, segment, covered: None })
    }

    /// The pending error, or EPIPE after shutdown(2).
    fn check_open(&self) -> Result<()> {
        match self.common.take_error() {
            Some(error) => Err(error),
            None if self.is_mute.load(Ordering::Relaxed) => Err(Errno::EPIPE),
            None => Ok(()),
        }
    }

    /// Passes a datagram on to whoever takes it. EIO where one of UDP-Lite would be cut.
    fn pass(&self, source: &mut Source<'_>, sending: Sending, is_to_peer: bool) -> Result<usize> {
        if self.is_lite() && sending.segment != 0 {
            return Err(Errno::EIO);
        }
        let (len, to) = (source.left(), sending.to);
        let sending = Sending { covered: self.coverage.of_sent(len), ..sending };
        let sent = if to.ip().is_multicast() {
            sending.send_to_group(source, self.ports())
        } else if is_broadcast(to.ip()) {
            sending.send_to_all(source, self.ports())
        } else if let Some(target) =
            self.ports().find(sending.from, to, |socket| socket.is_peer(sending.from))
        {
            match usize::from(sending.segment) {
                segment if segment != 0 && len > segment => sending.in_segments(source, &target),
                _ => sending.put(source, &target, 0),
            }
        } else {
            self.refused(source, to, is_to_peer).map(|()| {
                self.count(to, Counted::NoPorts);
                len
            })
        };
        if sent.is_ok() {
            self.count(to, Counted::OutDatagrams);
        }
        sent
    }

    /// EINVAL where a datagram that was begun by IPv6 is gone on with by IPv4; and for an address
    /// that is none, which a socket of IPv4 does not even look at. What IPv4 refuses is told first.
    fn check_goes_on(&self, begun_to: SocketAddr, len: usize, what: &Outgoing) -> Result<()> {
        if !self.common.is_v6() {
            return Ok(());
        }
        let named = self.named(len, what)?;
        let is_other = named.flatten().is_some_and(|to| to.is_ipv4());
        if is_other || begun_to.is_ipv4() {
            check_v4(len, what.mode.urgent)?;
        }
        if is_other && begun_to.is_ipv6() { Err(Errno::EINVAL) } else { Ok(()) }
    }

    fn add_to_cork(&self, source: &mut Source<'_>, corks: bool) -> Result<usize> {
        if let Err(error) = self.check_open() {
            drop(self.cork.take());
            return Err(error);
        }
        let len = self.cork.add(source)?;
        if !corks {
            self.uncork()?;
        }
        Ok(len)
    }

    /// Sends what was held back.
    fn uncork(&self) -> Result<()> {
        let Some((sending, is_to_peer, bytes)) = self.cork.take() else { return Ok(()) };
        self.pass(&mut Source::kernel(&bytes), sending, is_to_peer).map(|_| ())
    }

    fn bind_if_needed(self: &Arc<Self>, who: &Thread) -> Result<()> {
        if self.bound().is_none() {
            self.bind_at(who, SocketAddr::new(self.own_ip(), 0))?;
        }
        Ok(())
    }

    /// The address it speaks from, or is to once it has a port.
    fn own_ip(&self) -> IpAddr {
        let bound = self.bound().map(|bound| bound.ip()).or_else(|| self.ip.chosen_address());
        bound.unwrap_or_else(|| any_address(&self.common))
    }

    fn bind_at(self: &Arc<Self>, who: &Thread, address: SocketAddr) -> Result<SocketAddr> {
        let binding = self.ports().bind(who, self, address, false, &|_| false)?;
        let address = binding.address;
        *self.binding.lock() = Some(binding);
        Ok(address)
    }
}

fn is_own_level(level: u32) -> bool {
    level == raw::IPPROTO_UDP as u32 || level == raw::IPPROTO_UDPLITE as u32
}

/// What IPv4 does not send, whoever it is for. EMSGSIZE, EOPNOTSUPP.
fn check_v4(len: usize, is_urgent: bool) -> Result<()> {
    match () {
        () if len > usize::from(u16::MAX) => Err(Errno::EMSGSIZE),
        () if is_urgent => Err(Errno::EOPNOTSUPP),
        () => Ok(()),
    }
}

impl Sending {
    /// Puts what is left of `source` into a socket's inbox. What finds no room is lost.
    fn put(&self, source: &mut Source<'_>, target: &UdpSocket, segment: u16) -> Result<usize> {
        let len = source.left();
        if !target.coverage.takes(self.covered) {
            target.common.lost.fetch_add(1, Ordering::Relaxed);
            target.count(self.to, Counted::LiteUncovered);
            // What is lost must be there all the same.
            drop(read_all(source)?);
            return Ok(len);
        }
        let shown_from = Address::Inet(shown(&target.common, self.from));
        let time_ns = if target.common.stamps() == 0 { 0 } else { realtime_ns() };
        let Sending { to, ttl, tos, .. } = *self;
        let packet = Some(Packet { to, ttl, tos, segment, time_ns });
        let control = Control::default();
        let info = Some(Box::new(Info { control, from: Some(shown_from), packet, sender: None }));
        let now = Timeout { nonblocking: true, deadline: None };
        match target.inbox.send_message(source, info, now) {
            // No room, or gone meanwhile: lost.
            Err(Errno::EAGAIN | Errno::EPIPE | Errno::EMSGSIZE) => {
                target.common.lost.fetch_add(1, Ordering::Relaxed);
                target.count(to, Counted::NoRoom);
                Ok(len)
            }
            result => result,
        }
    }

    /// The same as several datagrams, unless the receiver takes them at once. EINVAL.
    fn in_segments(&self, source: &mut Source<'_>, target: &UdpSocket) -> Result<usize> {
        let len = source.left();
        if len > usize::from(self.segment) * SEGMENTS_MAX {
            return Err(Errno::EINVAL);
        }
        if target.takes_many.load(Ordering::Relaxed) {
            return self.put(source, target, self.segment);
        }
        let all = read_all(source)?;
        for piece in all.chunks(self.segment.into()) {
            self.put(&mut Source::kernel(piece), target, 0)?;
        }
        Ok(len)
    }

    /// To every socket of the port that is bound to no other address.
    fn send_to_all(&self, source: &mut Source<'_>, ports: &Ports<UdpSocket>) -> Result<usize> {
        let all = read_all(source)?;
        for target in ports.all_of(self.to).iter().filter(|target| target.takes_from(self.from)) {
            self.put(&mut Source::kernel(&all), target, 0)?;
        }
        Ok(all.len())
    }

    /// To every socket that listens to the group, if there is any member.
    fn send_to_group(&self, source: &mut Source<'_>, ports: &Ports<UdpSocket>) -> Result<usize> {
        let all = read_all(source)?;
        let group = self.to.ip();
        if !groups::is_joined(group) {
            return Ok(all.len());
        }
        let (level, name) = match group {
            IpAddr::V4(_) => (raw::IPPROTO_IP as u32, raw::IP_MULTICAST_ALL),
            IpAddr::V6(_) => (raw::IPPROTO_IPV6 as u32, raw::IPV6_MULTICAST_ALL),
        };
        for target in ports.all_of(self.to) {
            let takes_all = target.ip.number(level, name) != 0;
            let is_wanted = target.ip.groups.takes(group, self.from.ip(), takes_all);
            if target.takes_from(self.from) && is_wanted {
                self.put(&mut Source::kernel(&all), &target, 0)?;
            }
        }
        Ok(all.len())
    }
}

/// What is to be sent later, or to several. EFAULT, ENOMEM.
pub(super) fn read_all(source: &mut Source<'_>) -> Result<Vec<u8>> {
    let len = source.left();
    let mut all = Vec::new();
    all.try_reserve_exact(len).map_err(|_| Errno::ENOMEM)?;
    all.resize(len, 0);
    if source.take(&mut all)? < len { Err(Errno::EFAULT) } else { Ok(all) }
}

impl Socket for UdpSocket {
    fn common(&self) -> &Common {
        &self.common
    }

    fn bind(self: Arc<Self>, who: &Thread, address: &RawAddress) -> Result<()> {
        let address = read_to_bind(&self.common, address)?;
        check_address(who, &*self, address)?;
        if self.bound().is_some() {
            return Err(Errno::EINVAL);
        }
        if !self.ip.takes_no_port(address) {
            self.bind_at(who, address)?;
        }
        self.ip.note_bound(address.ip());
        Ok(())
    }

    fn connect(
        self: Arc<Self>,
        who: &Thread,
        address: &RawAddress,
        _timeout: Timeout,
    ) -> Result<()> {
        if address.family()? == raw::AF_UNSPEC {
            *self.peer.lock() = None;
            // A port that nobody asked for goes, too; an address stays.
            let binding = self.binding.lock().take_if(|own| !own.is_asked);
            if let Some(binding) = binding {
                self.ip.keep_address(binding.address.ip());
            }
            return Ok(());
        }
        self.clone().bind_if_needed(who)?;
        let to = self.whom(address, false)?.ok_or(Errno::EINVAL)?;
        if to.is_ipv4() && self.common.is_v6() && self.ip.v6_only() {
            let is_named_so = address.family()? == raw::AF_INET;
            return Err(if is_named_so { Errno::EAFNOSUPPORT } else { Errno::ENETUNREACH });
        }
        let to = self.reachable(to)?;
        self.check_version(to)?;
        *self.peer.lock() = Some(to);
        if let Some(own) = self.bound() {
            self.ports().note_connected(own.port());
        }
        Ok(())
    }

    fn is_prepared(&self) -> bool {
        self.bound().is_some()
    }

    fn prepare_to_send(self: Arc<Self>, who: &Thread, _what: &Outgoing) -> Result<()> {
        self.bind_if_needed(who)
    }

    fn send(&self, _who: &Thread, source: &mut Source<'_>, what: Outgoing) -> Result<usize> {
        let is_v6 = self.common.is_v6();
        if !is_v6 {
            check_v4(source.left(), what.mode.urgent)?;
        }
        let corks = what.mode.more || self.is_corked.load(Ordering::Relaxed);
        if let Some(to) = self.cork.begun_to() {
            self.check_goes_on(to, source.left(), &what)?;
            return self.add_to_cork(source, corks);
        }
        let sending = self.address(source.left(), &what)?;
        self.check_open()?;
        let is_to_peer = *self.peer.lock() == Some(sending.to);
        match corks {
            true => self.cork.begin(source, sending, is_to_peer),
            false => self.pass(source, sending, is_to_peer),
        }
    }

    fn receive(&self, sink: &mut Sink<'_>, mode: ReceiveMode, how: Timeout) -> Result<Received> {
        if let Some(error) = self.common.take_error() {
            return Err(error);
        }
        // The end is told only to those who wait for something.
        if how.nonblocking && self.inbox.is_ended() && !self.inbox.has_data() {
            return Err(Errno::EAGAIN);
        }
        let received = self.inbox.receive(sink, mode, how)?;
        let packet = received.info.as_ref().and_then(|info| info.packet);
        if let Some(packet) = packet.filter(|_| !mode.peek) {
            self.count(packet.to, Counted::InDatagrams);
        }
        Ok(received)
    }

    fn receive_undelivered(
        &self,
        sink: &mut Sink<'_>,
        writer: Option<&mut Writer>,
    ) -> Result<(Received, Address)> {
        let undelivered = self.errors.take().ok_or(Errno::EAGAIN)?;
        // The next one, if there is one, is told as this was.
        match self.errors.is_empty() {
            true => drop(self.common.take_error()),
            false => self.common.set_error(Errno::ECONNREFUSED),
        }
        let len = sink.put(&undelivered.quoted)?;
        if let Some(writer) = writer {
            undelivered.tell(self.common.is_v6(), writer)?;
        }
        let received = Received { len, full_len: undelivered.quoted.len(), ..Received::default() };
        Ok((received, Address::Inet(shown(&self.common, undelivered.to))))
    }

    fn tell(&self, received: &Received, writer: &mut Writer) -> Result<()> {
        let packet = received.info.as_ref().and_then(|info| info.packet);
        packet.map_or(Ok(()), |packet| packet.tell(&self.ip, writer))
    }

    fn shutdown(&self, receive: bool, send: bool) -> Result<()> {
        // Who is not connected is told so, and yet it is done.
        if receive {
            self.inbox.end();
        }
        if send {
            self.is_mute.store(true, Ordering::Relaxed);
        }
        if self.peer.lock().is_some() { Ok(()) } else { Err(Errno::ENOTCONN) }
    }

    fn close(&self) {
        let binding = self.binding.lock().take();
        drop(binding);
        drop(self.cork.take());
        self.inbox.refuse();
        self.inbox.clear();
    }

    fn local_address(&self) -> Address {
        let mut address = self.bound().unwrap_or_else(|| SocketAddr::new(self.own_ip(), 0));
        if let Some(peer) = self.peer.lock().filter(|_| address.ip().is_unspecified()) {
            address.set_ip(source_for(address.ip(), peer.ip()));
        }
        Address::Inet(shown(&self.common, address))
    }

    fn peer_address(&self) -> Result<Address> {
        // Port 0 is nobody's.
        let peer = self.peer.lock().filter(|peer| peer.port() != 0).ok_or(Errno::ENOTCONN)?;
        Ok(Address::Inet(shown(&self.common, peer)))
    }

    fn poll(&self, table: &mut PollTable) -> u32 {
        self.common.wait_on_both(table);
        let mut mask = events::WRITABLE | events::WRBAND;
        if self.inbox.has_data() || self.inbox.is_ended() {
            mask |= events::READABLE;
        }
        if self.inbox.is_ended() {
            let is_mute = self.is_mute.load(Ordering::Relaxed);
            mask |= events::RDHUP | if is_mute { events::HUP } else { 0 };
        }
        if self.common.has_error() || !self.errors.is_empty() {
            mask |= self.common.error_events();
        }
        mask
    }

    fn queued(&self) -> (usize, usize) {
        (self.inbox.next_len(), self.cork.held_bytes())
    }

    fn limits_changed(&self) {
        self.inbox.set_limit(self.common.receive_limit());
    }

    fn get_option(&self, level: u32, name: u32) -> Result<Value> {
        if is_own_level(level) {
            return self.get_own_option(name).map(Value::Int);
        }
        let peer_is_v4 = self.peer.lock().map(|peer| peer.ip().to_canonical().is_ipv4());
        self.ip.get(&self.common, level, name, peer_is_v4)
    }

    fn knows_option(&self, level: u32, name: u32) -> bool {
        IpOptions::knows(level, name)
    }

    fn set_option(&self, who: &Thread, level: u32, name: u32, value: &[u8]) -> Result<()> {
        if is_own_level(level) {
            return self.set_own_option(name, value);
        }
        self.ip.set(who, &self.common, level, name, value, self.bound().is_some())?;
        if self.ip.wants() & (wants::ERRORS | wants::ERRORS_6) == 0 {
            self.errors.clear();
        }
        Ok(())
    }
}
