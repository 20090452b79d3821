//! Options of the levels IPPROTO_IP and IPPROTO_IPV6 (ip(7), ipv6(7)): which there are, what values
//! they take, what they are at first. The README of this room says of each what it does.
//!
//! An option that concerns only what would be on a wire is kept and shown, as on Linux over the
//! loopback interface, where nothing can be seen of it either.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};
use core::ops::RangeInclusive;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use abi::{Errno, Result, net as raw};
use machine::sync::SpinLock;

use super::groups::Groups;
use super::ports::EPHEMERAL;
use crate::net::interface;
use crate::net::options::Value;
use crate::net::{Common, SocketKind};
use crate::process::Thread;
use crate::security::Capability;

/// What setsockopt(2) takes.
#[derive(Clone, Copy)]
enum Takes {
    /// Zero or not.
    Flag,
    /// The same, from whoever has CAP_NET_ADMIN or CAP_NET_RAW.
    AdminFlag,
    /// A number of a range.
    Range(i32, i32),
    /// The same; -1 is the first value.
    RangeOrFirst(i32, i32),
    /// The low byte of any number.
    Byte,
    /// An interface in network byte order, or 0.
    Unicast,
    /// An interface, or 0.
    Interface,
    /// Two ports, the lower one in the lower half; 0 is none.
    Ports,
    /// Cannot be set.
    Nothing,
}

use Takes::{AdminFlag, Byte, Flag, Interface, Nothing, Ports, Range, RangeOrFirst, Unicast};

/// An option of IP: number, first value, what it takes.
type Rule = (u32, i32, Takes);

const IP_RULES: &[Rule] = &[
    (raw::IP_TOS, 0, Byte),
    (raw::IP_TTL, 64, RangeOrFirst(1, 255)),
    (raw::IP_RECVOPTS, 0, Flag),
    (raw::IP_RETOPTS, 0, Flag),
    (raw::IP_PKTINFO, 0, Flag),
    (raw::IP_MTU_DISCOVER, 1, Range(0, 5)),
    (raw::IP_RECVERR, 0, Flag),
    (raw::IP_RECVTTL, 0, Flag),
    (raw::IP_RECVTOS, 0, Flag),
    (raw::IP_FREEBIND, 0, Flag),
    (raw::IP_PASSSEC, 0, Flag),
    (raw::IP_TRANSPARENT, 0, AdminFlag),
    (raw::IP_RECVORIGDSTADDR, 0, Flag),
    (raw::IP_MINTTL, 0, Range(0, 255)),
    (raw::IP_CHECKSUM, 0, Flag),
    (raw::IP_BIND_ADDRESS_NO_PORT, 0, Flag),
    (raw::IP_RECVFRAGSIZE, 0, Flag),
    (raw::IP_RECVERR_RFC4884, 0, Range(0, 1)),
    (raw::IP_MULTICAST_TTL, 1, RangeOrFirst(0, 255)),
    (raw::IP_MULTICAST_LOOP, 1, Flag),
    (raw::IP_MULTICAST_ALL, 1, Range(0, 1)),
    (raw::IP_UNICAST_IF, 0, Unicast),
    (raw::IP_LOCAL_PORT_RANGE, 0, Ports),
    (IP_PROTOCOL, 0, Nothing),
    (raw::IP_HDRINCL, 0, Nothing),
    (raw::IP_NODEFRAG, 0, Nothing),
];

const IPV6_RULES: &[Rule] = &[
    (raw::IPV6_2292PKTINFO, 0, Flag),
    (raw::IPV6_2292HOPOPTS, 0, Flag),
    (raw::IPV6_2292DSTOPTS, 0, Flag),
    (raw::IPV6_2292RTHDR, 0, Flag),
    (raw::IPV6_2292HOPLIMIT, 0, Flag),
    (raw::IPV6_FLOWINFO, 0, Flag),
    (raw::IPV6_UNICAST_HOPS, 64, RangeOrFirst(0, 255)),
    (raw::IPV6_MULTICAST_IF, 0, Interface),
    (raw::IPV6_MULTICAST_HOPS, 1, RangeOrFirst(0, 255)),
    (raw::IPV6_MULTICAST_LOOP, 1, Range(0, 1)),
    (raw::IPV6_MTU_DISCOVER, 1, Range(0, 5)),
    (raw::IPV6_RECVERR, 0, Flag),
    (raw::IPV6_V6ONLY, 0, Flag),
    (raw::IPV6_MULTICAST_ALL, 1, Flag),
    (raw::IPV6_ROUTER_ALERT_ISOLATE, 0, Flag),
    (raw::IPV6_RECVERR_RFC4884, 0, Range(0, 1)),
    (raw::IPV6_FLOWINFO_SEND, 0, Flag),
    (raw::IPV6_RECVPKTINFO, 0, Flag),
    (raw::IPV6_RECVHOPLIMIT, 0, Flag),
    (raw::IPV6_RECVHOPOPTS, 0, Flag),
    (raw::IPV6_RECVRTHDR, 0, Flag),
    (raw::IPV6_RECVDSTOPTS, 0, Flag),
    (raw::IPV6_RECVPATHMTU, 0, Flag),
    (raw::IPV6_DONTFRAG, 0, Flag),
    (raw::IPV6_RECVTCLASS, 0, Flag),
    (raw::IPV6_TCLASS, 0, RangeOrFirst(0, 255)),
    (raw::IPV6_AUTOFLOWLABEL, 1, Flag),
    (raw::IPV6_MINHOPCOUNT, 0, Range(0, 255)),
    (raw::IPV6_ORIGDSTADDR, 0, Flag),
    (raw::IPV6_TRANSPARENT, 0, AdminFlag),
    (raw::IPV6_UNICAST_IF, 0, Unicast),
    (raw::IPV6_RECVFRAGSIZE, 0, Flag),
    (raw::IPV6_FREEBIND, 0, Flag),
];

/// IP_PROTOCOL: the protocol of a raw socket.
const IP_PROTOCOL: u32 = 52;

/// What a receiver wants to be told with each datagram: bits of [`IpOptions::wants`].
pub(super) mod wants {
    /// Where it was sent to, and by which interface.
    pub(crate) const PACKET_INFO: u32 = 1;
    /// Time to live.
    pub(crate) const TTL: u32 = 1 << 1;
    /// Type of service.
    pub(crate) const TOS: u32 = 1 << 2;
    /// Where it was sent to, as an address.
    pub(crate) const ORIGINAL_ADDRESS: u32 = 1 << 3;
    /// IPv6: where it was sent to, and by which interface.
    pub(crate) const PACKET_INFO_6: u32 = 1 << 4;
    /// IPv6: hop limit.
    pub(crate) const HOP_LIMIT: u32 = 1 << 5;
    /// IPv6: traffic class.
    pub(crate) const TRAFFIC_CLASS: u32 = 1 << 6;
    /// IPv6: address, with the old option.
    pub(crate) const PACKET_INFO_2292: u32 = 1 << 7;
    /// IPv6: hop limit, with the old option.
    pub(crate) const HOP_LIMIT_2292: u32 = 1 << 8;
    /// IPv6: where it was sent to, as an address.
    pub(crate) const ORIGINAL_ADDRESS_6: u32 = 1 << 9;
    /// Errors come by the error queue.
    pub(crate) const ERRORS: u32 = 1 << 10;
    /// IPv6: errors come by the error queue.
    pub(crate) const ERRORS_6: u32 = 1 << 11;
}

const WANTS: [(u32, u32, u32); 12] = {
    const IP: u32 = raw::IPPROTO_IP as u32;
    const IPV6: u32 = raw::IPPROTO_IPV6 as u32;
    [
        (IP, raw::IP_PKTINFO, wants::PACKET_INFO),
        (IP, raw::IP_RECVTTL, wants::TTL),
        (IP, raw::IP_RECVTOS, wants::TOS),
        (IP, raw::IP_RECVORIGDSTADDR, wants::ORIGINAL_ADDRESS),
        (IP, raw::IP_RECVERR, wants::ERRORS),
        (IPV6, raw::IPV6_RECVPKTINFO, wants::PACKET_INFO_6),
        (IPV6, raw::IPV6_RECVHOPLIMIT, wants::HOP_LIMIT),
        (IPV6, raw::IPV6_RECVTCLASS, wants::TRAFFIC_CLASS),
        (IPV6, raw::IPV6_2292PKTINFO, wants::PACKET_INFO_2292),
        (IPV6, raw::IPV6_2292HOPLIMIT, wants::HOP_LIMIT_2292),
        (IPV6, raw::IPV6_ORIGDSTADDR, wants::ORIGINAL_ADDRESS_6),
        (IPV6, raw::IPV6_RECVERR, wants::ERRORS_6),
    ]
};

/// A socket's options of IP.
#[derive(Default)]
pub struct IpOptions {
    /// What was set, by level and number.
    values: SpinLock<BTreeMap<(u32, u32), i32>>,
    v6_only: AtomicBool,
    wants: AtomicU32,
    /// What bind(2) has named, of a socket without a port.
    chosen: SpinLock<Option<IpAddr>>,
    /// Multicast groups.
    pub(super) groups: Groups,
    /// Something differs from the first values, which a sender has to look up.
    is_special: AtomicBool,
}

fn rule(level: u32, name: u32) -> Result<Rule> {
    let rules = if level == raw::IPPROTO_IP as u32 { IP_RULES } else { IPV6_RULES };
    rules.iter().copied().find(|rule| rule.0 == name).ok_or(Errno::ENOPROTOOPT)
}

/// Options of TCP's sockets that differ from others'.
fn is_refused_by_tcp(level: u32, name: u32) -> bool {
    level == raw::IPPROTO_IP as u32 && matches!(name, raw::IP_MULTICAST_TTL | raw::IP_RECVFRAGSIZE)
}

/// A number as the levels take it: IPv4 from a byte, or from nothing, too, with exceptions. EINVAL.
fn number(level: u32, name: u32, value: &[u8]) -> Result<i32> {
    let is_v4 = level == raw::IPPROTO_IP as u32;
    match *value {
        [a, b, c, d, ..] => Ok(i32::from_ne_bytes([a, b, c, d])),
        _ if is_v4 && matches!(name, raw::IP_UNICAST_IF | raw::IP_LOCAL_PORT_RANGE) => {
            Err(Errno::EINVAL)
        }
        [first, ..] if is_v4 => Ok(i32::from(first)),
        [] if is_v4 => match name {
            raw::IP_FREEBIND
            | raw::IP_TRANSPARENT
            | raw::IP_MINTTL
            | raw::IP_MULTICAST_TTL
            | raw::IP_MULTICAST_LOOP
            | raw::IP_MULTICAST_ALL => Err(Errno::EINVAL),
            _ => Ok(0),
        },
        _ => match name {
            raw::IPV6_DONTFRAG | raw::IPV6_AUTOFLOWLABEL | raw::IPV6_RECVFRAGSIZE => Ok(0),
            _ => Err(Errno::EINVAL),
        },
    }
}

/// Options that Linux has and that are refused here with ENOPROTOOPT: their lengths are checked,
/// and extension headers may be said to be none. EINVAL.
fn refused(level: u32, name: u32, len: usize) -> Option<Result<()>> {
    const IP: u32 = raw::IPPROTO_IP as u32;
    const IPV6: u32 = raw::IPPROTO_IPV6 as u32;
    let is_short = match (level, name) {
        (IP, raw::IP_MSFILTER | raw::MCAST_MSFILTER) => len < abi::option_layout::least_bytes(name),
        (
            IPV6,
            raw::IPV6_HOPOPTS | raw::IPV6_RTHDRDSTOPTS | raw::IPV6_RTHDR | raw::IPV6_DSTOPTS,
        ) => {
            if len == 0 {
                return Some(Ok(()));
            }
            len < size_of::<i32>()
        }
        (IPV6, raw::IPV6_ADDRFORM | raw::IPV6_PKTINFO | raw::IPV6_ADDR_PREFERENCES)
        | (IPV6, raw::IPV6_ROUTER_ALERT | raw::IPV6_FLOWLABEL_MGR | raw::MCAST_MSFILTER)
        | (IPV6, raw::IPV6_JOIN_ANYCAST | raw::IPV6_LEAVE_ANYCAST) => len < size_of::<i32>(),
        _ => return None,
    };
    Some(Err(if is_short { Errno::EINVAL } else { Errno::ENOPROTOOPT }))
}

impl IpOptions {
    /// Whether there is such an option of IPv4; of other levels that is found out later.
    pub fn knows(level: u32, name: u32) -> bool {
        const NETFILTER: core::ops::Range<u32> = 64..84;
        if level != raw::IPPROTO_IP as u32 {
            return true;
        }
        let is_other = matches!(name, raw::IP_OPTIONS | raw::IP_MTU | raw::IP_MULTICAST_IF)
            || matches!(name, raw::IP_IPSEC_POLICY | raw::IP_XFRM_POLICY | raw::IP_MSFILTER)
            || matches!(name, raw::IP_ADD_MEMBERSHIP | raw::IP_DROP_MEMBERSHIP)
            || matches!(name, raw::IP_UNBLOCK_SOURCE | raw::IP_BLOCK_SOURCE)
            || matches!(name, raw::IP_ADD_SOURCE_MEMBERSHIP | raw::IP_DROP_SOURCE_MEMBERSHIP)
            || (raw::MCAST_JOIN_GROUP..=raw::MCAST_MSFILTER).contains(&name)
            || NETFILTER.contains(&name);
        is_other || IP_RULES.iter().any(|rule| rule.0 == name)
    }

    /// Those of a socket made by accept(2).
    pub(super) fn inherit(&self) -> IpOptions {
        IpOptions {
            values: SpinLock::new(self.values.lock().clone()),
            v6_only: AtomicBool::new(self.v6_only()),
            wants: AtomicU32::new(self.wants()),
            chosen: SpinLock::new(None),
            groups: Groups::default(),
            is_special: AtomicBool::new(self.is_special.load(Ordering::Relaxed)),
        }
    }

    /// IPV6_V6ONLY.
    pub fn v6_only(&self) -> bool {
        self.v6_only.load(Ordering::Relaxed)
    }

    /// A socket that was bound to an address of IPv6 has nothing to do with IPv4 from then on.
    pub(super) fn note_bound(&self, ip: IpAddr) {
        if ip.is_ipv6() && !ip.is_unspecified() {
            self.v6_only.store(true, Ordering::Relaxed);
            self.keep(raw::IPPROTO_IPV6 as u32, raw::IPV6_V6ONLY, 1);
        }
    }

    /// Whether bind(2) is to leave the port open (IP_BIND_ADDRESS_NO_PORT): then it has only the
    /// address from now on.
    pub(super) fn takes_no_port(&self, address: SocketAddr) -> bool {
        let no_port = (raw::IPPROTO_IP as u32, raw::IP_BIND_ADDRESS_NO_PORT);
        let is_open = address.port() == 0 && self.number(no_port.0, no_port.1) != 0;
        if is_open {
            self.keep_address(address.ip());
        }
        is_open
    }

    /// The ports that may be chosen for a socket, of those that there are (IP_LOCAL_PORT_RANGE).
    pub(super) fn port_range(&self) -> RangeInclusive<u16> {
        let asked = self.number(raw::IPPROTO_IP as u32, raw::IP_LOCAL_PORT_RANGE);
        let within = |port: u16, end: &u16| if EPHEMERAL.contains(&port) { port } else { *end };
        let lowest = within(asked as u16, EPHEMERAL.start());
        lowest..=within((asked >> 16) as u16, EPHEMERAL.end())
    }

    /// Keeps an address that was chosen, for when there is a port.
    pub(super) fn keep_address(&self, ip: IpAddr) {
        *self.chosen.lock() = Some(ip).filter(|ip| !ip.is_unspecified());
    }

    /// The address that was chosen while there was no port.
    pub(super) fn chosen_address(&self) -> Option<IpAddr> {
        *self.chosen.lock()
    }

    /// Whether a socket may be bound to any address.
    pub(super) fn binds_freely(&self) -> bool {
        const IP: u32 = raw::IPPROTO_IP as u32;
        const IPV6: u32 = raw::IPPROTO_IPV6 as u32;
        let names = [
            (IP, raw::IP_FREEBIND),
            (IP, raw::IP_TRANSPARENT),
            (IPV6, raw::IPV6_FREEBIND),
            (IPV6, raw::IPV6_TRANSPARENT),
        ];
        names.iter().any(|(level, name)| self.number(*level, *name) != 0)
    }

    /// What comes with each datagram.
    pub(super) fn wants(&self) -> u32 {
        self.wants.load(Ordering::Relaxed)
    }

    fn was_set(&self, level: u32, name: u32) -> bool {
        self.values.lock().contains_key(&(level, name))
    }

    /// The number an option has.
    pub fn number(&self, level: u32, name: u32) -> i32 {
        let first = rule(level, name).map_or(0, |rule| rule.1);
        if !self.is_special.load(Ordering::Relaxed) {
            return first;
        }
        self.values.lock().get(&(level, name)).copied().unwrap_or(first)
    }

    /// getsockopt(2). ENOPROTOOPT, ENOTCONN for what belongs to a connection.
    pub fn get(
        &self,
        common: &Common,
        level: u32,
        name: u32,
        peer_is_v4: Option<bool>,
    ) -> Result<Value> {
        const IP: u32 = raw::IPPROTO_IP as u32;
        const IPV6: u32 = raw::IPPROTO_IPV6 as u32;
        match (level, name) {
            (IPV6, _) if !common.is_v6() => Err(Errno::ENOPROTOOPT),
            (IP, raw::IP_MTU) | (IPV6, raw::IPV6_MTU) => {
                // A packet of IPv4 is no longer than its field for that says.
                let most = if peer_is_v4.ok_or(Errno::ENOTCONN)? { 0xffff } else { u32::MAX };
                Ok(Value::Int(interface::LO.mtu.min(most) as i32))
            }
            // Sockets of IPv6 begin without, which is seen where the value is asked for only.
            (IP, raw::IP_MULTICAST_ALL) if common.is_v6() && !self.was_set(level, name) => {
                Ok(Value::Int(0))
            }
            (IP, raw::IP_MULTICAST_IF) => {
                Ok(Value::Bytes(self.groups.interface().0.octets().to_vec()))
            }
            (IP, raw::IP_OPTIONS) => Ok(Value::Bytes(Vec::new())),
            (IPV6, raw::IPV6_HOPOPTS | raw::IPV6_RTHDR | raw::IPV6_DSTOPTS) => {
                Ok(Value::Bytes(Vec::new()))
            }
            (IP | IPV6, _) => rule(level, name).map(|_| Value::Int(self.number(level, name))),
            _ => Err(Errno::ENOPROTOOPT),
        }
    }

    /// setsockopt(2). ENOPROTOOPT, EINVAL, EPERM, EADDRNOTAVAIL.
    pub fn set(
        &self,
        who: &Thread,
        common: &Common,
        level: u32,
        name: u32,
        value: &[u8],
        is_bound: bool,
    ) -> Result<()> {
        const IP: u32 = raw::IPPROTO_IP as u32;
        const IPV6: u32 = raw::IPPROTO_IPV6 as u32;
        if level != IP && !(level == IPV6 && common.is_v6()) {
            return Err(Errno::ENOPROTOOPT);
        }
        if let Some(result) = self.groups.set(common, level, name, value) {
            return result;
        }
        if let Some(result) = refused(level, name, value.len()) {
            return result;
        }
        let is_of_datagrams = matches!(name, raw::IPV6_MULTICAST_HOPS | raw::IPV6_MULTICAST_IF);
        if level == IPV6 && common.kind == SocketKind::Stream && is_of_datagrams {
            return Err(Errno::ENOPROTOOPT);
        }
        if level == IP && name == raw::IP_OPTIONS {
            return if value.is_empty() { Ok(()) } else { Err(Errno::EINVAL) };
        }
        if (level, name) == (IPV6, raw::IPV6_MTU) {
            return check_mtu(number(level, name, value)?);
        }
        let (_, first, takes) = rule(level, name)?;
        if matches!(takes, Nothing) {
            return Err(Errno::ENOPROTOOPT);
        }
        let number = number(level, name, value)?;
        if common.kind == SocketKind::Stream && is_refused_by_tcp(level, name) {
            return Err(Errno::EINVAL);
        }
        let number = accept(who, takes, first, number)?;
        if (level, name) == (IPV6, raw::IPV6_V6ONLY) {
            if is_bound {
                return Err(Errno::EINVAL);
            }
            self.v6_only.store(number != 0, Ordering::Relaxed);
        }
        // Bits of congestion are TCP's own.
        let is_own = common.kind == SocketKind::Stream && (level, name) == (IP, raw::IP_TOS);
        self.keep(level, name, if is_own { number & !3 } else { number });
        Ok(())
    }

    fn keep(&self, level: u32, name: u32, number: i32) {
        self.values.lock().insert((level, name), number);
        self.is_special.store(true, Ordering::Relaxed);
        let wanted = WANTS.iter().find(|want| (want.0, want.1) == (level, name));
        if let Some((.., bit)) = wanted {
            if number == 0 {
                self.wants.fetch_and(!bit, Ordering::Relaxed);
            } else {
                self.wants.fetch_or(*bit, Ordering::Relaxed);
            }
        }
    }
}

/// IPV6_MTU: how long packets may be, which nothing is made of here. EINVAL for less than each way
/// of IPv6 takes.
fn check_mtu(bytes: i32) -> Result<()> {
    const LEAST: i32 = 1280;
    if bytes != 0 && bytes < LEAST { Err(Errno::EINVAL) } else { Ok(()) }
}

/// The number that is kept for one that was given.
fn accept(who: &Thread, takes: Takes, first: i32, number: i32) -> Result<i32> {
    match takes {
        Flag => Ok(i32::from(number != 0)),
        AdminFlag => {
            let who = who.subject();
            let may = who.capable(Capability::NetAdmin) || who.capable(Capability::NetRaw);
            if number == 0 || may { Ok(i32::from(number != 0)) } else { Err(Errno::EPERM) }
        }
        RangeOrFirst(..) if number == -1 => Ok(first),
        Range(least, most) | RangeOrFirst(least, most) if (least..=most).contains(&number) => {
            Ok(number)
        }
        Byte => Ok(number & 0xff),
        Ports => match (number as u16, (number >> 16) as u16) {
            (lowest @ 1.., highest @ 1..) if lowest > highest => Err(Errno::EINVAL),
            _ => Ok(number),
        },
        Unicast if number == 0 || number == (interface::LO.index.to_be() as i32) => Ok(number),
        Unicast => Err(Errno::EADDRNOTAVAIL),
        Interface if number == 0 || number == interface::LO.index as i32 => Ok(number),
        Interface => Err(Errno::ENODEV),
        Range(..) | RangeOrFirst(..) | Nothing => Err(Errno::EINVAL),
    }
}
