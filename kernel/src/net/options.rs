//! getsockopt(2) and setsockopt(2) at the level SOL_SOCKET (socket(7)).

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};

use abi::{Errno, Result, net as raw};
use zerocopy::{FromBytes, IntoBytes};

use super::{Common, RECEIVE_BUFFER_MIN, SEND_BUFFER_MIN, Socket, SocketKind, hooks, interface};
use crate::base::time::NS_PER_SEC;
use crate::base::user::UserPtr;
use crate::process::{Thread, find_process, pidfd};
use crate::security::Capability;

/// Largest buffer a program may ask for, bytes (net.core.wmem_max of 4 MiB, doubled).
const BUFFER_MAX: usize = 8 << 20;
/// Longest option value that is looked at.
const VALUE_MAX: usize = 264;
/// Largest SO_RCVLOWAT of TCP: half of what a receive buffer may grow to.
const LOW_WATER_MAX: i32 = 16 << 20;
/// Largest buffer that CAP_NET_ADMIN may ask for, bytes.
const FORCED_MAX: usize = 64 << 20;
/// Room for the name of an interface (IFNAMSIZ).
const DEVICE_NAME_BYTES: usize = 16;
/// Number of additional loads that filters know (SO_BPF_EXTENSIONS).
const BPF_EXTENSIONS: i32 = 64;
/// The levels of IPv4 and IPv6.
const IP: u32 = raw::IPPROTO_IP as u32;
const IPV6: u32 = raw::IPPROTO_IPV6 as u32;
/// The level of netlink(7).
const SOL_NETLINK: u32 = 270;

/// The value of an option, as getsockopt(2) gives it.
pub enum Value {
    /// A number.
    Int(i32),
    /// Anything else.
    Bytes(Vec<u8>),
}

/// What comes with each message: bits of a socket's `stamps`.
pub mod stamps {
    /// Its time, in microseconds, as `struct timeval`.
    pub const MICROSECONDS: u32 = 1;
    /// Its time, in nanoseconds, as `struct timespec`.
    pub const NANOSECONDS: u32 = 1 << 1;
    /// By the numbers of the options for 64-bit times (SO_TIMESTAMP_NEW).
    pub const NEW: u32 = 1 << 2;
    /// How many messages were lost (SO_RXQ_OVFL).
    pub const LOST: u32 = 1 << 3;
}

/// What of its sender comes with a message: bits of a socket's `passes_sender`.
pub mod sender {
    /// Its process id, user and group (SO_PASSCRED).
    pub const CREDENTIALS: u32 = 1;
    /// A descriptor of its process (SO_PASSPIDFD).
    pub const PROCESS: u32 = 1 << 1;
}

/// Whether an option of so few bytes is read at all: of IPv4 one byte may be a number, but groups
/// have their lengths; elsewhere only texts of TCP are shorter than a number.
fn reads(level: u32, name: u32, len: usize) -> bool {
    const NUMBERS_ONLY: [u32; 4] = [
        raw::IPPROTO_IPV6 as u32,
        raw::IPPROTO_UDP as u32,
        raw::IPPROTO_UDPLITE as u32,
        SOL_NETLINK,
    ];
    match level {
        IP => len >= abi::option_layout::least_bytes(name),
        _ if len >= size_of::<i32>() => true,
        _ if NUMBERS_ONLY.contains(&level) => false,
        _ if level == raw::IPPROTO_TCP as u32 => {
            matches!(name, raw::TCP_CONGESTION | raw::TCP_ULP | raw::TCP_FASTOPEN_KEY)
        }
        _ => true,
    }
}

/// Flags that are kept and shown, with their bits. README.md says which of them do anything.
const INERT: [(u32, u32); 14] = [
    (raw::SO_DEBUG, 1),
    (raw::SO_DONTROUTE, 1 << 1),
    (raw::SO_BROADCAST, 1 << 2),
    (raw::SO_KEEPALIVE, 1 << 3),
    (raw::SO_OOBINLINE, 1 << 4),
    (raw::SO_NOFCS, 1 << 5),
    (raw::SO_LOCK_FILTER, 1 << 6),
    (raw::SO_ZEROCOPY, 1 << 7),
    (raw::SO_NO_CHECK, 1 << 8),
    (raw::SO_WIFI_STATUS, 1 << 9),
    (raw::SO_SELECT_ERR_QUEUE, 1 << 10),
    (raw::SO_PREFER_BUSY_POLL, 1 << 11),
    (raw::SO_RCVMARK, 1 << 12),
    (raw::SO_PASSSEC, 1 << 13),
];

/// setsockopt(2): `len` bytes at `address`.
pub fn set(
    who: &Thread,
    socket: &Arc<dyn Socket>,
    level: u32,
    name: u32,
    address: u64,
    len: i32,
) -> Result<()> {
    let len = usize::try_from(len).map_err(|_| Errno::EINVAL)?;
    if level != raw::SOL_SOCKET && socket.common().domain == raw::AF_UNIX {
        return Err(Errno::EOPNOTSUPP);
    }
    let has_number = level == raw::SOL_SOCKET && name != raw::SO_BINDTODEVICE;
    if has_number && len < size_of::<i32>() {
        return Err(Errno::EINVAL);
    }
    let domain = socket.common().domain;
    if domain != raw::AF_UNIX && check_level(socket.common(), level).is_err() {
        return Err(Errno::ENOPROTOOPT);
    }
    if !socket.knows_option(level, name) {
        return Err(Errno::ENOPROTOOPT);
    }
    let mut value = [0; VALUE_MAX];
    let value = &mut value[..len.min(VALUE_MAX)];
    if len > 0 && reads(level, name, len) && !is_nothing(socket.common(), level, name, address) {
        UserPtr::<u8>::new(address).read_bytes(value)?;
    }
    if level != raw::SOL_SOCKET {
        return socket.set_option(who, level, name, value);
    }
    if name == raw::SO_BINDTODEVICE {
        return bind_to_device(who, socket.common(), value);
    }
    let number = match *value {
        [a, b, c, d, ..] => i32::from_ne_bytes([a, b, c, d]),
        _ => return Err(Errno::EINVAL),
    };
    if name == raw::SO_RESERVE_MEM && number < 0 {
        return Err(Errno::EINVAL);
    }
    if is_for_others(socket.common(), name) {
        return Err(Errno::EOPNOTSUPP);
    }
    set_common(who, socket, name, number, value)
}

/// Whether it is a number of IPv6 that is nowhere: it counts as 0, as on Linux.
fn is_nothing(common: &Common, level: u32, name: u32, address: u64) -> bool {
    const CHECKSUM: u32 = 7;
    const HEADER_INCLUDED: u32 = 36;
    let is_structure = matches!(name, raw::IPV6_2292PKTOPTIONS | raw::IPV6_PKTINFO)
        // TCP has no groups, and does not look for the name of one.
        || matches!(name, raw::IPV6_ADD_MEMBERSHIP | raw::IPV6_DROP_MEMBERSHIP)
            && common.kind != SocketKind::Stream
        || matches!(name, raw::IPV6_JOIN_ANYCAST | raw::IPV6_LEAVE_ANYCAST)
        || matches!(name, raw::IPV6_FLOWLABEL_MGR | CHECKSUM | HEADER_INCLUDED)
        || matches!(name, raw::IPV6_IPSEC_POLICY | raw::IPV6_XFRM_POLICY)
        || matches!(name, raw::IPV6_HOPOPTS | raw::IPV6_RTHDRDSTOPTS)
        || matches!(name, raw::IPV6_RTHDR | raw::IPV6_DSTOPTS)
        || (raw::MCAST_JOIN_GROUP..=raw::MCAST_MSFILTER).contains(&name);
    address == 0 && level == raw::IPPROTO_IPV6 as u32 && !is_structure
}

/// Options of some families only.
fn is_for_others(common: &Common, name: u32) -> bool {
    let is_unix = common.domain == raw::AF_UNIX;
    match name {
        raw::SO_PASSCRED | raw::SO_PASSPIDFD | raw::SO_PASSSEC => {
            !is_unix && common.domain != raw::AF_NETLINK
        }
        raw::SO_ZEROCOPY => is_unix,
        raw::SO_PEEK_OFF => common.domain == raw::AF_NETLINK || common.kind == SocketKind::Raw,
        raw::SO_TXREHASH => common.protocol != raw::IPPROTO_TCP as u32,
        raw::SO_RESERVE_MEM => true,
        _ => false,
    }
}

/// SO_BINDTODEVICE: the one interface, or none. ENODEV, EPERM.
fn bind_to_device(who: &Thread, common: &Common, value: &[u8]) -> Result<()> {
    let name = value.split(|&byte| byte == 0).next().unwrap_or_default();
    let index = match name {
        b"" => 0,
        name if name == interface::LO.name => i64::from(interface::LO.index),
        _ => return Err(Errno::ENODEV),
    };
    bind_to_index(who, common, index)
}

fn bind_to_index(who: &Thread, common: &Common, index: i64) -> Result<()> {
    let bound = common.number(raw::SO_BINDTOIFINDEX, 0);
    if bound != 0 && !may_administrate(who) {
        return Err(Errno::EPERM);
    }
    common.keep(raw::SO_BINDTOIFINDEX, index);
    Ok(())
}

fn may_administrate(who: &Thread) -> bool {
    let who = who.subject();
    who.capable(Capability::NetAdmin) || who.capable(Capability::NetRaw)
}

fn set_common(
    who: &Thread,
    socket: &Arc<dyn Socket>,
    name: u32,
    number: i32,
    value: &[u8],
) -> Result<()> {
    let common = socket.common();
    let is_on = number != 0;
    match name {
        raw::SO_DEBUG if is_on && !who.subject().capable(Capability::NetAdmin) => {
            return Err(Errno::EACCES);
        }
        raw::SO_SNDBUF | raw::SO_SNDBUFFORCE => {
            let forced = name == raw::SO_SNDBUFFORCE;
            let bytes = buffer(who, number, SEND_BUFFER_MIN, forced)?;
            common.send_buffer.store(bytes, Ordering::Relaxed);
            common.chosen_buffers.fetch_or(1, Ordering::Relaxed);
            socket.limits_changed();
        }
        raw::SO_RCVBUF | raw::SO_RCVBUFFORCE => {
            let forced = name == raw::SO_RCVBUFFORCE;
            let bytes = buffer(who, number, RECEIVE_BUFFER_MIN, forced)?;
            common.receive_buffer.store(bytes, Ordering::Relaxed);
            common.chosen_buffers.fetch_or(2, Ordering::Relaxed);
            socket.limits_changed();
        }
        raw::SO_RCVTIMEO_OLD | raw::SO_RCVTIMEO_NEW => {
            common.receive_timeout_ns.store(timeout_ns(value)?, Ordering::Relaxed);
        }
        raw::SO_SNDTIMEO_OLD | raw::SO_SNDTIMEO_NEW => {
            common.send_timeout_ns.store(timeout_ns(value)?, Ordering::Relaxed);
        }
        raw::SO_REUSEADDR => common.reuse_address.store(is_on, Ordering::Relaxed),
        raw::SO_REUSEPORT if is_on && common.domain == raw::AF_UNIX => {
            return Err(Errno::EOPNOTSUPP);
        }
        raw::SO_REUSEPORT => common.reuse_port.store(is_on, Ordering::Relaxed),
        raw::SO_PASSCRED => set_bit(&common.passes_sender, sender::CREDENTIALS, is_on),
        raw::SO_PASSPIDFD => set_bit(&common.passes_sender, sender::PROCESS, is_on),
        raw::SO_LINGER => {
            let Ok((linger, _)) = <[i32; 2]>::read_from_prefix(value) else {
                return Err(Errno::EINVAL);
            };
            let seconds = if linger[0] == 0 { -1 } else { linger[1].max(0) };
            common.linger_seconds.store(seconds, Ordering::Relaxed);
        }
        raw::SO_RCVLOWAT => {
            let most =
                if common.protocol == raw::IPPROTO_TCP as u32 { LOW_WATER_MAX } else { i32::MAX };
            let number = if number < 0 { most } else { number.clamp(1, most) };
            common.low_water.store(number as usize, Ordering::Relaxed);
            socket.limits_changed();
        }
        raw::SO_PEEK_OFF => common.peek_offset.store(number, Ordering::Relaxed),
        raw::SO_TIMESTAMP_OLD => stamp(common, is_on, stamps::MICROSECONDS),
        raw::SO_TIMESTAMP_NEW => stamp(common, is_on, stamps::MICROSECONDS | stamps::NEW),
        raw::SO_TIMESTAMPNS_OLD => stamp(common, is_on, stamps::NANOSECONDS),
        raw::SO_TIMESTAMPNS_NEW => stamp(common, is_on, stamps::NANOSECONDS | stamps::NEW),
        raw::SO_RXQ_OVFL => set_bit(&common.stamps, stamps::LOST, is_on),
        raw::SO_BSDCOMPAT => {}
        raw::SO_BINDTOIFINDEX if number < 0 => return Err(Errno::EINVAL),
        raw::SO_BINDTOIFINDEX => return bind_to_index(who, common, i64::from(number)),
        raw::SO_DETACH_FILTER => return Err(Errno::ENOENT),
        raw::SO_ZEROCOPY if !matches!(number, 0 | 1) => return Err(Errno::EINVAL),
        _ => set_number(who, common, name, number, value)?,
    }
    limits_of(socket, name);
    Ok(())
}

/// Has the socket look at an option that its connection keeps, too.
fn limits_of(socket: &Arc<dyn Socket>, name: u32) {
    if name == raw::SO_OOBINLINE {
        socket.limits_changed();
    }
}

/// One of the ways to tell times, which exclude each other.
fn stamp(common: &Common, is_on: bool, how: u32) {
    let ways = stamps::MICROSECONDS | stamps::NANOSECONDS | stamps::NEW;
    let change = |old: u32| Some(old & !ways | if is_on { how } else { 0 });
    let _ = common.stamps.fetch_update(Ordering::Relaxed, Ordering::Relaxed, change);
}

fn set_bit(word: &AtomicU32, bit: u32, is_on: bool) {
    if is_on {
        word.fetch_or(bit, Ordering::Relaxed);
    } else {
        word.fetch_and(!bit, Ordering::Relaxed);
    }
}

/// Options that are only kept. ENOPROTOOPT for those that cannot be set, or are not there.
fn set_number(who: &Thread, common: &Common, name: u32, number: i32, value: &[u8]) -> Result<()> {
    /// Priorities that everybody may choose.
    const PRIORITIES: core::ops::RangeInclusive<i32> = 0..=6;
    match name {
        raw::SO_PRIORITY if !PRIORITIES.contains(&number) && !may_administrate(who) => {
            Err(Errno::EPERM)
        }
        raw::SO_MARK if !may_administrate(who) => Err(Errno::EPERM),
        raw::SO_BUSY_POLL if number < 0 => Err(Errno::EINVAL),
        raw::SO_PREFER_BUSY_POLL if number != 0 && !may_administrate(who) => Err(Errno::EPERM),
        raw::SO_BUSY_POLL_BUDGET => set_poll_budget(who, common, number),
        raw::SO_TXREHASH if !(-1..=1).contains(&number) => Err(Errno::EINVAL),
        raw::SO_BUF_LOCK if !(0..=3).contains(&number) => Err(Errno::EINVAL),
        raw::SO_BUF_LOCK => {
            common.chosen_buffers.store(number as u32, Ordering::Relaxed);
            Ok(())
        }
        raw::SO_TXREHASH => {
            common.keep(name, if number == -1 { 1 } else { i64::from(number) });
            Ok(())
        }
        raw::SO_PRIORITY | raw::SO_MARK | raw::SO_BUSY_POLL | raw::SO_INCOMING_CPU => {
            common.keep(name, i64::from(number));
            Ok(())
        }
        raw::SO_MAX_PACING_RATE => {
            let rate = match i64::read_from_prefix(value) {
                Ok((rate, _)) => rate,
                Err(_) if number == -1 => -1,
                Err(_) => i64::from(number as u32),
            };
            common.keep(name, rate);
            Ok(())
        }
        _ => {
            let (_, bit) = inert(name).ok_or(Errno::ENOPROTOOPT)?;
            set_bit(&common.inert_options, bit, number != 0);
            Ok(())
        }
    }
}

/// How much is received in one turn of polling, which nobody tells and nothing does here: more than
/// before is for CAP_NET_ADMIN.
fn set_poll_budget(who: &Thread, common: &Common, number: i32) -> Result<()> {
    let name = raw::SO_BUSY_POLL_BUDGET;
    let before = common.numbers.lock().get(&name).copied().unwrap_or(0);
    if i64::from(number) > before && !may_administrate(who) {
        return Err(Errno::EPERM);
    }
    if !(0..=i32::from(u16::MAX)).contains(&number) {
        return Err(Errno::EINVAL);
    }
    common.keep(name, number.into());
    Ok(())
}

impl Common {
    /// Whether a flag is set that is only kept here.
    pub fn is_inert_on(&self, name: u32) -> bool {
        inert(name).is_some_and(|(_, bit)| self.inert_options.load(Ordering::Relaxed) & bit != 0)
    }

    fn keep(&self, name: u32, number: i64) {
        self.numbers.lock().insert(name, number);
    }

    /// Whether it was bound to the interface (SO_BINDTODEVICE).
    pub fn is_bound_to_device(&self) -> bool {
        self.number(raw::SO_BINDTOIFINDEX, 0) != 0
    }

    fn number(&self, name: u32, first: i64) -> i64 {
        self.numbers.lock().get(&name).copied().unwrap_or(first)
    }

    /// What comes with each message: see [`stamps`].
    pub fn stamps(&self) -> u32 {
        self.stamps.load(Ordering::Relaxed)
    }
}

fn inert(name: u32) -> Option<(u32, u32)> {
    INERT.iter().copied().find(|(option, _)| *option == name)
}

/// A buffer size as the kernel keeps it: twice what was asked for, within bounds, which
/// CAP_NET_ADMIN may exceed by force. EPERM.
fn buffer(who: &Thread, asked: i32, least: usize, forced: bool) -> Result<usize> {
    if !forced {
        let asked = (asked as u32 as usize).min(BUFFER_MAX / 2);
        return Ok((asked * 2).max(least));
    }
    if !who.subject().capable(Capability::NetAdmin) {
        return Err(Errno::EPERM);
    }
    let asked = (asked.max(0) as usize).min(FORCED_MAX / 2);
    Ok((asked * 2).max(least))
}

fn timeout_ns(value: &[u8]) -> Result<u64> {
    let ([sec, usec], _) = <[i64; 2]>::read_from_prefix(value).map_err(|_| Errno::EINVAL)?;
    if !(0..1_000_000).contains(&usec) {
        return Err(Errno::EDOM);
    }
    // A time in the past: calls give up at once, where zero would mean for ever.
    let Ok(sec) = u64::try_from(sec) else { return Ok(super::NO_PATIENCE) };
    Ok(sec.saturating_mul(NS_PER_SEC).saturating_add(usec as u64 * 1000))
}

/// Whether a socket has options of this level at all, which is said before anything else.
fn check_level(common: &Common, level: u32) -> Result<()> {
    const OF_UDP: [u32; 2] = [raw::IPPROTO_UDP as u32, raw::IPPROTO_UDPLITE as u32];
    // The levels of UDP and UDP-Lite are one.
    let is_dgram = common.kind == SocketKind::Dgram;
    let is_raw = common.kind == SocketKind::Raw;
    let is_own = level == common.protocol && !is_raw
        || is_dgram && OF_UDP.contains(&level)
        || is_raw && matches!(level, raw::SOL_RAW | raw::SOL_ICMPV6);
    let is_known = level == raw::SOL_SOCKET
        || match common.domain {
            raw::AF_UNIX => false,
            raw::AF_INET => level == IP || is_own,
            raw::AF_INET6 => level == IP && !is_raw || level == IPV6 || is_own,
            raw::AF_NETLINK => level == SOL_NETLINK,
            _ => true,
        };
    match common.domain {
        _ if is_known => Ok(()),
        raw::AF_INET6 | raw::AF_NETLINK => Err(Errno::ENOPROTOOPT),
        _ => Err(Errno::EOPNOTSUPP),
    }
}

/// Levels differ in what they tell first, which shows where only one of both can be told.
fn put_value(level: u32, (address, len_at): (u64, UserPtr<i32>), value: &[u8]) -> Result<()> {
    let put_len = || len_at.write(&(value.len() as i32));
    let put_value = || match value {
        [] => Ok(()),
        value => UserPtr::<u8>::new(address).write_bytes(value),
    };
    match level {
        raw::SOL_SOCKET => put_value().and_then(|()| put_len()),
        _ => put_len().and_then(|()| put_value()),
    }
}

/// Room for a value. EINVAL for a negative length, which the level of IPv6 takes for a long one.
fn capacity(level: u32, length: i32) -> Result<usize> {
    match level {
        IPV6 => Ok(length as u32 as usize),
        _ => usize::try_from(length).map_err(|_| Errno::EINVAL),
    }
}

/// getsockopt(2): the value, cut to the capacity that `len_at` holds; `len_at` then its length.
pub fn get(
    socket: &Arc<dyn Socket>,
    level: u32,
    name: u32,
    address: u64,
    len_at: u64,
) -> Result<()> {
    check_level(socket.common(), level)?;
    let len_at = UserPtr::<i32>::new(len_at);
    let capacity = capacity(level, len_at.read()?)?;
    let put = |value: &[u8]| {
        let fits = value.len().min(capacity);
        put_value(level, (address, len_at), &value[..fits])
    };
    if level != raw::SOL_SOCKET {
        return match socket.get_option(level, name)? {
            // As on Linux a small number goes into a byte where there is no room for more.
            Value::Int(number @ 0..=255) if (1..4).contains(&capacity) && level == IP => {
                put(&[number as u8])
            }
            Value::Int(number) => put(&number.to_ne_bytes()),
            Value::Bytes(bytes) => put(&bytes),
        };
    }
    let common = socket.common();
    if is_for_others(common, name) && !matches!(name, raw::SO_ZEROCOPY | raw::SO_RESERVE_MEM) {
        return Err(Errno::EOPNOTSUPP);
    }
    match name {
        raw::SO_LINGER => put(linger(common).as_bytes()),
        raw::SO_RCVTIMEO_OLD | raw::SO_RCVTIMEO_NEW => put(&timeval(&common.receive_timeout_ns)),
        raw::SO_SNDTIMEO_OLD | raw::SO_SNDTIMEO_NEW => put(&timeval(&common.send_timeout_ns)),
        raw::SO_PEERCRED => {
            let unknown = super::Ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
            put(socket.peer_credentials().unwrap_or(unknown).as_bytes())
        }
        raw::SO_PEERNAME => put(socket.peer_address()?.to_raw().bytes()),
        raw::SO_PEERPIDFD => put(peer_descriptor(socket)?.as_bytes()),
        raw::SO_PEERGROUPS => {
            let groups = socket.peer_groups().ok_or(Errno::ENODATA)?;
            let bytes = groups.as_bytes();
            if bytes.len() > capacity {
                len_at.write(&(bytes.len() as i32))?;
                return Err(Errno::ERANGE);
            }
            put(bytes)
        }
        raw::SO_BINDTODEVICE => match common.number(raw::SO_BINDTOIFINDEX, 0) {
            0 => len_at.write(&0),
            _ if capacity < DEVICE_NAME_BYTES => Err(Errno::EINVAL),
            _ => put(&[interface::LO.name, b"\0"].concat()),
        },
        raw::SO_MAX_PACING_RATE if capacity >= 8 => put(&common.number(name, -1).to_ne_bytes()),
        raw::SO_COOKIE if capacity < 8 => Err(Errno::EINVAL),
        raw::SO_COOKIE => put(&common.cookie().to_ne_bytes()),
        raw::SO_MEMINFO => put(meminfo(socket).as_bytes()),
        raw::SO_PEERSEC => {
            hooks::socket_getpeersec_stream((common,))?;
            Err(Errno::ENOPROTOOPT)
        }
        _ => put(&get_int(socket, common, name)?.to_ne_bytes()),
    }
}

/// Whether closing waits, and for how many seconds.
fn linger(common: &Common) -> [i32; 2] {
    let seconds = common.linger_seconds.load(Ordering::Relaxed);
    [i32::from(seconds >= 0), seconds.max(0)]
}

fn timeval(ns: &core::sync::atomic::AtomicU64) -> Vec<u8> {
    let ns = Some(ns.load(Ordering::Relaxed)).filter(|&ns| ns != super::NO_PATIENCE).unwrap_or(0);
    let usec = (ns % NS_PER_SEC).div_ceil(1000) as i64;
    [(ns / NS_PER_SEC) as i64, usec].map(i64::to_ne_bytes).concat()
}

fn get_int(socket: &Arc<dyn Socket>, common: &Common, name: u32) -> Result<i32> {
    let flag = |flag: &core::sync::atomic::AtomicBool| i32::from(flag.load(Ordering::Relaxed));
    Ok(match name {
        raw::SO_TYPE => common.kind as i32,
        raw::SO_DOMAIN => common.domain as i32,
        raw::SO_PROTOCOL => common.protocol as i32,
        raw::SO_ERROR => socket.take_error().map_or(0, abi::Errno::number),
        raw::SO_ACCEPTCONN => i32::from(socket.is_listening()),
        raw::SO_SNDBUF => socket.shown_send_buffer() as i32,
        raw::SO_RCVBUF => common.receive_limit() as i32,
        raw::SO_REUSEADDR => flag(&common.reuse_address),
        raw::SO_REUSEPORT => flag(&common.reuse_port),
        raw::SO_PASSCRED => passes(common, sender::CREDENTIALS),
        raw::SO_PASSPIDFD => passes(common, sender::PROCESS),
        raw::SO_RCVLOWAT => common.low_water() as i32,
        raw::SO_SNDLOWAT => 1,
        raw::SO_PRIORITY | raw::SO_MARK | raw::SO_BUSY_POLL | raw::SO_BINDTOIFINDEX => {
            common.number(name, 0) as i32
        }
        raw::SO_INCOMING_CPU | raw::SO_MAX_PACING_RATE => common.number(name, -1) as i32,
        raw::SO_TXREHASH => common.number(name, 1) as i32,
        raw::SO_PEEK_OFF => common.peek_offset.load(Ordering::Relaxed),
        raw::SO_BUF_LOCK => common.chosen_buffers.load(Ordering::Relaxed) as i32,
        raw::SO_BSDCOMPAT | raw::SO_INCOMING_NAPI_ID | raw::SO_RESERVE_MEM => 0,
        raw::SO_BPF_EXTENSIONS => BPF_EXTENSIONS,
        raw::SO_TIMESTAMP_OLD => shows(common, stamps::MICROSECONDS),
        raw::SO_TIMESTAMP_NEW => shows(common, stamps::MICROSECONDS | stamps::NEW),
        raw::SO_TIMESTAMPNS_OLD => shows(common, stamps::NANOSECONDS),
        raw::SO_TIMESTAMPNS_NEW => shows(common, stamps::NANOSECONDS | stamps::NEW),
        raw::SO_RXQ_OVFL => i32::from(common.stamps() & stamps::LOST != 0),
        _ => {
            let (_, bit) = inert(name).ok_or(Errno::ENOPROTOOPT)?;
            i32::from(common.inert_options.load(Ordering::Relaxed) & bit != 0)
        }
    })
}

fn passes(common: &Common, bit: u32) -> i32 {
    i32::from(common.passes_sender.load(Ordering::Relaxed) & bit != 0)
}

/// SO_PEERPIDFD: a new descriptor of the peer's process. ENODATA, EINVAL if it is gone.
fn peer_descriptor(socket: &Arc<dyn Socket>) -> Result<u32> {
    let process = socket.peer_process()?;
    if process.is_zombie.load(Ordering::Acquire) && find_process(process.pid).is_none() {
        return Err(Errno::EINVAL);
    }
    pidfd::open_fd(&process, 0)
}

/// Whether times are told in this way.
fn shows(common: &Common, how: u32) -> i32 {
    let ways = stamps::MICROSECONDS | stamps::NANOSECONDS | stamps::NEW;
    i32::from(common.stamps() & ways == how)
}

/// SO_MEMINFO: what waits to be received, its bound, what waits to be sent, its bound, and five
/// numbers that are always 0 here.
fn meminfo(socket: &Arc<dyn Socket>) -> [u32; 9] {
    let (to_receive, to_send) = socket.queued();
    let common = socket.common();
    let numbers = [to_receive, common.receive_limit(), to_send, common.send_limit()];
    let [a, b, c, d] = numbers.map(|number| number as u32);
    [a, b, c, d, 0, 0, 0, 0, 0]
}
