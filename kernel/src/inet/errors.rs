//! Datagrams that nobody took, given back to who sent them (ip(7), IP_RECVERR; ipv6(7)).
//!
//! On a network an ICMP message quotes the beginning of the datagram; here there is no such
//! message, but what is told is the same: the data up to where a quotation would end, where it was
//! sent, and that the port is unreachable. Neighbour: `udp`, whose sockets have the queues.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use abi::{Errno, Result, net as raw, net_layout::ExtendedError};
use machine::sync::SpinLock;
use zerocopy::IntoBytes;

use crate::net::address::Address;
use crate::net::control::Writer;

/// Most messages that wait; others are lost.
const ERRORS_MAX: usize = 64;
/// Longest quotations: an ICMP message has 576 bytes at most (RFC 1812, 4.3.2.3), one of ICMPv6
/// 1280 (RFC 4443, 2.4), less the headers of both packets.
const QUOTED_MAX: usize = 576 - 20 - 8 - 20 - 8;
const QUOTED_6_MAX: usize = 1280 - 40 - 8 - 40 - 8;

/// Where an error came from (`struct sock_extended_err`): ICMP, ICMPv6.
const ORIGIN_ICMP: u8 = 2;
const ORIGIN_ICMP6: u8 = 3;
/// Destination unreachable, port unreachable: ICMP's numbers and ICMPv6's.
const PORT_UNREACHABLE: (u8, u8) = (3, 3);
const PORT_UNREACHABLE_6: (u8, u8) = (1, 4);

/// How much of a datagram is given back.
pub(super) fn quoted_bytes(to: SocketAddr) -> usize {
    if to.is_ipv4() { QUOTED_MAX } else { QUOTED_6_MAX }
}

/// A datagram that nobody took.
pub(super) struct Undelivered {
    /// Its beginning.
    pub(super) quoted: Vec<u8>,
    /// Where it was sent.
    pub(super) to: SocketAddr,
}

impl Undelivered {
    /// Writes the message that says what went wrong, and who says so: this machine.
    pub(super) fn tell(&self, is_v6: bool, writer: &mut Writer) -> Result<()> {
        let is_ipv4 = self.to.is_ipv4();
        let origin = if is_ipv4 { ORIGIN_ICMP } else { ORIGIN_ICMP6 };
        let (kind, code) = if is_ipv4 { PORT_UNREACHABLE } else { PORT_UNREACHABLE_6 };
        let errno = Errno::ECONNREFUSED.number() as u32;
        let error = ExtendedError { errno, origin, kind, code, pad: 0, info: 0, data: 0 };
        let from: IpAddr = match (is_ipv4, is_v6) {
            (true, false) => Ipv4Addr::LOCALHOST.into(),
            (true, true) => Ipv4Addr::LOCALHOST.to_ipv6_mapped().into(),
            (false, _) => Ipv6Addr::LOCALHOST.into(),
        };
        let mut bytes = Vec::new();
        bytes.extend_from_slice(error.as_bytes());
        bytes.extend_from_slice(Address::Inet(SocketAddr::new(from, 0)).to_raw().bytes());
        match is_v6 {
            true => writer.put(raw::IPPROTO_IPV6 as u32, raw::IPV6_RECVERR, &bytes),
            false => writer.put(raw::IPPROTO_IP as u32, raw::IP_RECVERR, &bytes),
        }
    }
}

/// What waits to be given back.
#[derive(Default)]
pub(super) struct ErrorQueue(SpinLock<VecDeque<Undelivered>>);

impl ErrorQueue {
    /// Adds one, while there is room.
    pub(super) fn add(&self, undelivered: Undelivered) {
        let mut queue = self.0.lock();
        if queue.len() < ERRORS_MAX && queue.try_reserve(1).is_ok() {
            queue.push_back(undelivered);
        }
    }

    pub(super) fn take(&self) -> Option<Undelivered> {
        self.0.lock().pop_front()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    pub(super) fn clear(&self) {
        let old = core::mem::take(&mut *self.0.lock());
        drop(old);
    }
}
