//! Raw sockets over loopback (raw(7), ipv6(7)): what is sent goes to every raw socket of its
//! protocol, and echo requests are answered; so ping(8) works. Datagrams and connections of other
//! sockets never are packets, and do not show here, nor does what is sent here reach them.
//! Neighbours: `packets` (their bytes), `held` (those that are not whole yet).

use alloc::boxed::Box;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use abi::{Errno, Result, net as abi_net};
use machine::sync::SpinLock;

use super::held::{Held, Message};
use super::packets::{self, HEADER, Packet};
use crate::base::io::{Sink, Source};
use crate::base::poll::{PollTable, events};
use crate::base::sync::{Timeout, WaitQueue};
use crate::base::time::realtime_ns;
use crate::inet::options::IpOptions;
use crate::inet::{
    any_address, check_broadcast, destination, is_broadcast, read_address, read_to_bind, source_for,
};
use crate::net::address::{Address, RawAddress};
use crate::net::channel::{Channel, Info, ReceiveMode, Received};
use crate::net::control::{Control, Writer};
use crate::net::options::Value;
use crate::net::packet;
use crate::net::{Common, Outgoing, Socket, SocketKind};
use crate::process::{Thread, current};
use crate::security::Capability;

/// Most packets in an inbox.
const PACKETS_MAX: usize = 4096;
/// Largest packet.
const BYTES_MAX: usize = 65535;
/// IPPROTO_RAW: packets are sent with their headers, and none is received.
const RAW: u32 = 255;
const ICMP: u32 = abi_net::IPPROTO_ICMP as u32;
const ICMP_6: u32 = abi_net::IPPROTO_ICMPV6;
/// SOL_RAW, and its one option, ICMP_FILTER; the same of IPv6 is of the level of its protocol.
const SOL_RAW: u32 = 255;
const FILTER: u32 = 1;
const HEADER_INCLUDED: (u32, u32) = (abi_net::IPPROTO_IP as u32, abi_net::IP_HDRINCL);
const HEADER_INCLUDED_6: (u32, u32) = (abi_net::IPPROTO_IPV6 as u32, 36);

/// All that are open: their number is limited by descriptors.
static OPEN: SpinLock<Vec<Weak<RawSocket>>> = SpinLock::new(Vec::new());

struct RawSocket {
    common: Common,
    local: SpinLock<Option<IpAddr>>,
    peer: SpinLock<Option<IpAddr>>,
    inbox: Arc<Channel>,
    ip: IpOptions,
    /// What waits for more.
    held: Held,
    /// What is sent begins with a header.
    has_header: AtomicBool,
    /// Types of messages that are not wanted: a bit for each.
    filter: [AtomicU32; 8],
    is_mute: AtomicBool,
}

/// A new socket; EPROTONOSUPPORT without a protocol, EPERM without CAP_NET_RAW.
pub(super) fn create(domain: u32, protocol: u32) -> Result<Arc<dyn Socket>> {
    if protocol == 0 {
        return Err(Errno::EPROTONOSUPPORT);
    }
    if !current().subject().capable(Capability::NetRaw) {
        return Err(Errno::EPERM);
    }
    let common = Common::new(domain, SocketKind::Raw, protocol);
    // They are alike to whom it matters: as on Linux.
    common.reuse_address.store(true, Ordering::Relaxed);
    let room = Arc::new(WaitQueue::new());
    let inbox = Channel::new(common.receive_limit(), PACKETS_MAX, &common.readers, &room);
    let socket = Arc::new(RawSocket {
        common,
        local: SpinLock::new(None),
        peer: SpinLock::new(None),
        inbox,
        ip: IpOptions::default(),
        held: Held::default(),
        has_header: AtomicBool::new(protocol == RAW),
        filter: Default::default(),
        is_mute: AtomicBool::new(false),
    });
    let mut open = OPEN.lock();
    open.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
    open.push(Arc::downgrade(&socket));
    drop(open);
    Ok(socket)
}

/// Gives a packet to all who want it, and then what the machine answers to it.
fn deliver(packet: &Packet) -> Result<()> {
    let mut next = Some(packet.answer());
    let mut packet = packet;
    let mut answer;
    loop {
        let open: Vec<_> = OPEN.lock().iter().filter_map(Weak::upgrade).collect();
        for socket in open.iter().filter(|socket| socket.takes(packet)) {
            socket.put(packet)?;
        }
        answer = next.take().flatten();
        match &answer {
            Some(reply) => packet = reply,
            None => return Ok(()),
        }
    }
}

impl RawSocket {
    fn takes(&self, packet: &Packet) -> bool {
        let is_kind = self.common.is_v6() == packet.to.is_ipv6()
            && self.common.protocol == packet.protocol.into()
            && self.common.protocol != RAW;
        let is_local = self.local.lock().is_none_or(|own| own.is_unspecified() || own == packet.to);
        is_kind && is_local && self.peer.lock().is_none_or(|peer| peer == packet.from) && {
            let kind = packet.message().first().copied().unwrap_or(0);
            let is_filtered = matches!(self.common.protocol, ICMP | ICMP_6);
            // ICMP's filter has a bit for each of 32 types; types beyond pass.
            let is_beyond = !self.common.is_v6() && kind >= 32;
            let word = self.filter[usize::from(kind / 32)].load(Ordering::Relaxed);
            !is_filtered || is_beyond || word >> (kind % 32) & 1 == 0
        }
    }

    /// Puts a packet into the inbox. What finds no room is lost.
    fn put(&self, packet: &Packet) -> Result<()> {
        let time_ns = if self.common.stamps() == 0 { 0 } else { realtime_ns() };
        let to = SocketAddr::new(packet.to, 0);
        let (ttl, tos) = (packet.ttl, packet.tos);
        let told = Some(packet::Packet { to, ttl, tos, segment: 0, time_ns });
        let from = Some(Address::Inet(SocketAddr::new(packet.from, 0)));
        let info =
            Some(Box::new(Info { control: Control::default(), from, packet: told, sender: None }));
        let now = Timeout { nonblocking: true, deadline: None };
        match self.inbox.send_message(&mut Source::kernel(&packet.bytes), info, now) {
            Err(Errno::EAGAIN | Errno::EPIPE | Errno::EMSGSIZE) => {
                self.common.lost.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
            result => result.map(|_| ()),
        }
    }

    /// Whom a packet goes to. What stands in the place of a port is looked at where one is sent.
    /// EDESTADDRREQ, ENETUNREACH.
    fn target(&self, named: Option<&RawAddress>, sends: bool) -> Result<IpAddr> {
        let named = match named {
            // A family that is none is taken for the socket's, as on Linux.
            Some(address) => {
                let is_unknown = address.family()? == abi_net::AF_UNSPEC;
                let address =
                    if is_unknown { &address.with_family(self.common.domain) } else { address };
                let named = read_address(&self.common, address)?;
                if sends {
                    self.check_protocol(named.port())?;
                }
                Some(named.ip())
            }
            None => None,
        };
        let to = named.or(*self.peer.lock()).ok_or(Errno::EDESTADDRREQ)?;
        // One of IPv4 may be a peer's, but there is no way to it.
        if to.is_ipv4() == self.common.is_v6() && (sends || self.ip.v6_only()) {
            return Err(Errno::ENETUNREACH);
        }
        if is_broadcast(to) {
            return check_broadcast(&self.common, *self.local.lock(), to).map(|()| to);
        }
        Ok(destination(SocketAddr::new(to, 0), to.is_ipv4())?.ip())
    }

    /// EFAULT for a message of ICMP without the bytes that say of what kind it is: a way is looked
    /// for by them.
    fn check_kind(&self, source: &mut Source<'_>) -> Result<()> {
        const KIND_BYTES: usize = 2;
        let is_icmp = !self.common.is_v6() && self.common.protocol == ICMP;
        match is_icmp && !self.has_header.load(Ordering::Relaxed) {
            true if source.left() < KIND_BYTES => Err(Errno::EFAULT),
            true => source.probe(),
            false => Ok(()),
        }
    }

    /// EINVAL where IPv6 names another protocol in the place of a port (raw(7)).
    fn check_protocol(&self, named: u16) -> Result<()> {
        let own = [0, self.common.protocol];
        let is_good = own.contains(&named.into()) || self.common.protocol == RAW;
        if is_good || !self.common.is_v6() { Ok(()) } else { Err(Errno::EINVAL) }
    }

    fn packet(&self, message: Message) -> Result<Packet> {
        let Message { said, to, mut bytes } = message;
        let own = self.local.lock().unwrap_or_else(|| any_address(&self.common));
        let from = said.source.unwrap_or_else(|| source_for(own, to));
        let (ttl, tos) = said.lifetime_and_service(&self.ip, to);
        let protocol = self.common.protocol as u8;
        match (from, to) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                if self.has_header.load(Ordering::Relaxed) {
                    packets::complete(&mut bytes, from).ok_or(Errno::EINVAL)?;
                } else {
                    let is_whole = self.stays_whole();
                    bytes =
                        packets::with_header(&bytes, (from, to), protocol, (ttl, tos), is_whole);
                }
                Packet::of_bytes(bytes).ok_or(Errno::EINVAL)
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                if self.common.protocol == ICMP_6 {
                    packets::set_icmp6_checksum(&mut bytes, from, to, protocol);
                }
                let (from, to) = (from.into(), to.into());
                Ok(Packet { from, to, protocol, ttl, tos, bytes })
            }
            _ => Err(Errno::EINVAL),
        }
    }

    /// Whether its packets are not to be cut on their way (IP_MTU_DISCOVER, ip(7)).
    fn stays_whole(&self) -> bool {
        let choice = self.ip.number(abi_net::IPPROTO_IP as u32, abi_net::IP_MTU_DISCOVER);
        [abi_net::IP_PMTUDISC_WANT, abi_net::IP_PMTUDISC_DO, abi_net::IP_PMTUDISC_PROBE]
            .contains(&(choice as u32))
    }

    /// An address as the socket's family shows it.
    fn shown(&self, ip: IpAddr) -> IpAddr {
        match ip {
            IpAddr::V4(ip) if self.common.is_v6() => IpAddr::V6(ip.to_ipv6_mapped()),
            ip => ip,
        }
    }

    /// Whether it is the option that keeps messages of ICMP away.
    fn is_filter(&self, level: u32, name: u32) -> bool {
        let own = if self.common.is_v6() { ICMP_6 } else { SOL_RAW };
        level == own && name == FILTER
    }

    /// Bytes of that option. EOPNOTSUPP for another protocol.
    fn filter_bytes(&self) -> Result<usize> {
        match (self.common.is_v6(), self.common.protocol) {
            (false, ICMP) => Ok(4),
            (true, ICMP_6) => Ok(32),
            _ => Err(Errno::EOPNOTSUPP),
        }
    }
}

impl Socket for RawSocket {
    fn common(&self) -> &Common {
        &self.common
    }

    fn bind(self: Arc<Self>, _who: &Thread, address: &RawAddress) -> Result<()> {
        // The family is not looked at where there is but one length.
        let ip = if !self.common.is_v6() {
            read_to_bind(&self.common, &address.with_family(abi_net::AF_INET))?.ip()
        } else if address.family()? == abi_net::AF_INET6 {
            // IPv4 by IPv6 is for other sockets.
            let ip = read_to_bind(&self.common, address)?.ip();
            if ip.is_ipv4() {
                return Err(Errno::EADDRNOTAVAIL);
            }
            ip
        } else {
            return Err(Errno::EINVAL);
        };
        if self.peer.lock().is_some() {
            return Err(Errno::EINVAL);
        }
        let is_of_many = ip.is_multicast() || is_broadcast(ip);
        if !ip.is_unspecified() && !ip.is_loopback() && !is_of_many {
            return Err(Errno::EADDRNOTAVAIL);
        }
        *self.local.lock() = Some(ip);
        Ok(())
    }

    fn connect(self: Arc<Self>, _who: &Thread, address: &RawAddress, _how: Timeout) -> Result<()> {
        let family = address.family()?;
        let is_nobody = family == abi_net::AF_UNSPEC;
        // Sockets of IPv6 look at the family before the length.
        if self.common.is_v6() && !is_nobody && family != abi_net::AF_INET6 {
            return Err(Errno::EAFNOSUPPORT);
        }
        let peer = if is_nobody { None } else { Some(self.target(Some(address), false)?) };
        *self.peer.lock() = peer;
        Ok(())
    }

    fn send(&self, _who: &Thread, source: &mut Source<'_>, what: Outgoing) -> Result<usize> {
        let len = source.left();
        // IPv6 asks first whom it is for, and each of them what it adds to.
        if len > BYTES_MAX && !self.common.is_v6() {
            return Err(Errno::EMSGSIZE);
        }
        if what.mode.urgent {
            return Err(Errno::EOPNOTSUPP);
        }
        let to = self.target(what.to.as_ref(), true);
        if matches!(to, Ok(_) | Err(Errno::ENETUNREACH | Errno::EACCES)) {
            self.check_kind(source)?;
        }
        let to = to?;
        let said = what.control.said;
        if let Some(error) = what.control.error.or(said.is_odd.then_some(Errno::EINVAL)) {
            return Err(error);
        }
        if said.source.is_some_and(|ip| !ip.is_loopback() || ip.is_ipv4() != to.is_ipv4()) {
            return Err(Errno::EINVAL);
        }
        let whole = if self.has_header.load(Ordering::Relaxed) {
            // Such packets wait for nothing, and leave what waits alone.
            if len > BYTES_MAX {
                return Err(Errno::EMSGSIZE);
            }
            if len > 0 && self.is_mute.load(Ordering::Relaxed) {
                return Err(Errno::EPIPE);
            }
            Held::default().add(source, (said, to), BYTES_MAX, false)?
        } else {
            let most = BYTES_MAX - if self.common.is_v6() { 0 } else { HEADER };
            self.held.add(source, (said, to), most, what.mode.more)?
        };
        if let Some(message) = whole {
            deliver(&self.packet(message)?)?;
        }
        Ok(len)
    }

    fn receive(&self, sink: &mut Sink<'_>, mode: ReceiveMode, how: Timeout) -> Result<Received> {
        if let Some(error) = self.common.take_error() {
            return Err(error);
        }
        if how.nonblocking && self.inbox.is_ended() && !self.inbox.has_data() {
            return Err(Errno::EAGAIN);
        }
        self.inbox.receive(sink, mode, how)
    }

    fn tell(&self, received: &Received, writer: &mut Writer) -> Result<()> {
        let packet = received.info.as_ref().and_then(|info| info.packet);
        packet.map_or(Ok(()), |packet| packet.tell(&self.ip, writer))
    }

    fn shutdown(&self, receive: bool, send: bool) -> Result<()> {
        if receive {
            self.inbox.end();
        }
        if send {
            self.is_mute.store(true, Ordering::Relaxed);
        }
        if self.peer.lock().is_some() { Ok(()) } else { Err(Errno::ENOTCONN) }
    }

    fn close(&self) {
        let is_other = |socket: &Weak<RawSocket>| !core::ptr::eq(socket.as_ptr(), self);
        OPEN.lock().retain(is_other);
        self.inbox.refuse();
        self.inbox.clear();
        self.held.clear();
    }

    fn local_address(&self) -> Address {
        let own = self.local.lock().unwrap_or_else(|| any_address(&self.common));
        let peer = self.peer.lock().filter(|_| own.is_unspecified());
        let ip = peer.map_or(own, |peer| source_for(own, peer));
        // The protocol stands where others have a port.
        Address::Inet(SocketAddr::new(self.shown(ip), self.common.protocol as u16))
    }

    fn peer_address(&self) -> Result<Address> {
        let peer = self.peer.lock().ok_or(Errno::ENOTCONN)?;
        Ok(Address::Inet(SocketAddr::new(self.shown(peer), 0)))
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
        if self.common.has_error() {
            mask |= self.common.error_events();
        }
        mask
    }

    fn queued(&self) -> (usize, usize) {
        (self.inbox.next_len(), self.held.memory())
    }

    fn limits_changed(&self) {
        self.inbox.set_limit(self.common.receive_limit());
    }

    fn get_option(&self, level: u32, name: u32) -> Result<Value> {
        if self.is_filter(level, name) {
            let words =
                self.filter.iter().flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes());
            return Ok(Value::Bytes(words.take(self.filter_bytes()?).collect()));
        }
        if matches!((level, name), HEADER_INCLUDED | HEADER_INCLUDED_6) {
            return Ok(Value::Int(self.has_header.load(Ordering::Relaxed).into()));
        }
        let peer_is_v4 = self.peer.lock().map(|peer| peer.is_ipv4());
        self.ip.get(&self.common, level, name, peer_is_v4)
    }

    fn knows_option(&self, level: u32, name: u32) -> bool {
        IpOptions::knows(level, name)
    }

    fn set_option(&self, who: &Thread, level: u32, name: u32, value: &[u8]) -> Result<()> {
        if self.is_filter(level, name) {
            let most = self.filter_bytes()?;
            for (word, bytes) in
                self.filter.iter().zip(value[..value.len().min(most)].as_chunks().0)
            {
                word.store(u32::from_ne_bytes(*bytes), Ordering::Relaxed);
            }
            return Ok(());
        }
        if (level, name) == HEADER_INCLUDED && !self.common.is_v6() {
            let is_on = value.iter().take(4).any(|&byte| byte != 0);
            self.has_header.store(is_on, Ordering::Relaxed);
            return Ok(());
        }
        self.ip.set(who, &self.common, level, name, value, self.local.lock().is_some())
    }
}
