//! Internet sockets within the machine (ip(7), ipv6(7), tcp(7), udp(7)): loopback addresses only.
//!
//! There are no packets: a TCP connection is a pair of channels, a datagram goes straight into the
//! inbox of the socket that is bound to its port. What programs can tell is kept: ports and their
//! conflicts, backlogs, refused connections, resets, half-closed connections. `ports` decides who
//! owns a port; `tcp` and `udp` are the sockets, `options`, `groups` and `packet` what they share;
//! a network device would stand beside `ports`. What a socket is, how its data waits and what
//! stands beside it is `net`'s. Raw sockets: `sockets`.

mod cork;
mod errors;
mod groups;
pub mod options;
mod packet;
mod ports;
pub mod tcp;
mod udp;
mod udplite;

use alloc::sync::Arc;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use abi::{Errno, Result, net as raw};

use crate::net::address::RawAddress;
use crate::net::{Common, Socket, SocketKind};

/// A new socket.
pub fn create(domain: u32, kind: SocketKind, protocol: u32) -> Result<Arc<dyn Socket>> {
    let (tcp, udp) = (raw::IPPROTO_TCP as u32, raw::IPPROTO_UDP as u32);
    let udplite = raw::IPPROTO_UDPLITE as u32;
    match (kind, protocol) {
        (SocketKind::Stream, 0) => Ok(tcp::TcpSocket::new(Common::new(domain, kind, tcp))),
        (SocketKind::Stream, p) if p == tcp => {
            Ok(tcp::TcpSocket::new(Common::new(domain, kind, tcp)))
        }
        (SocketKind::Dgram, 0) => Ok(udp::UdpSocket::new(Common::new(domain, kind, udp))),
        (SocketKind::Dgram, p) if p == udp || p == udplite => {
            Ok(udp::UdpSocket::new(Common::new(domain, kind, p)))
        }
        // Sockets for echo requests are nobody's, as Linux's ping_group_range is at first.
        (SocketKind::Dgram, p) if p == echo(domain) => Err(Errno::EACCES),
        (SocketKind::Stream | SocketKind::Dgram | SocketKind::Raw, _) => {
            Err(Errno::EPROTONOSUPPORT)
        }
        (SocketKind::SeqPacket, _) => Err(Errno::ESOCKTNOSUPPORT),
    }
}

/// The protocol of echo requests.
fn echo(domain: u32) -> u32 {
    let (v4, v6) = (raw::IPPROTO_ICMP as u32, raw::IPPROTO_ICMPV6);
    if domain == raw::AF_INET { v4 } else { v6 }
}

/// An address argument in its plain form: IPv4 addresses mapped into IPv6 as what they are.
pub fn read_address(common: &Common, address: &RawAddress) -> Result<SocketAddr> {
    Ok(plain(address.to_inet(common.is_v6())?))
}

/// As [`read_address`], for bind(2).
pub fn read_to_bind(common: &Common, address: &RawAddress) -> Result<SocketAddr> {
    Ok(plain(address.to_bind(common.is_v6())?))
}

fn plain(given: SocketAddr) -> SocketAddr {
    SocketAddr::new(given.ip().to_canonical(), given.port())
}

/// An address as a socket of this family shows it.
fn shown(common: &Common, address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) if common.is_v6() => {
            let ip = if ip.is_unspecified() { Ipv6Addr::UNSPECIFIED } else { ip.to_ipv6_mapped() };
            SocketAddr::new(IpAddr::V6(ip), address.port())
        }
        _ => address,
    }
}

/// The address that means "any" to a socket of this family.
pub fn any_address(common: &Common) -> IpAddr {
    if common.is_v6() {
        IpAddr::V6(Ipv6Addr::UNSPECIFIED)
    } else {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED)
    }
}

/// Whether an address stands for all who are on the link, of which there is one: the loopback.
pub fn is_broadcast(ip: IpAddr) -> bool {
    ip == Ipv4Addr::BROADCAST || ip == Ipv4Addr::new(127, 255, 255, 255)
}

/// Whether all who are on the link can be reached, from the address `own`: that of all links needs
/// one that is chosen, by an address of this machine's or SO_BINDTODEVICE. ENETUNREACH, and EACCES
/// without SO_BROADCAST.
pub fn check_broadcast(common: &Common, own: Option<IpAddr>, to: IpAddr) -> Result<()> {
    let is_any = |ip: IpAddr| ip.is_unspecified() || ip.is_multicast() || is_broadcast(ip);
    let is_chosen = own.is_some_and(|own| own.is_ipv4() && !is_any(own));
    if to == Ipv4Addr::BROADCAST && !is_chosen && !common.is_bound_to_device() {
        return Err(Errno::ENETUNREACH);
    }
    if common.is_inert_on(raw::SO_BROADCAST) { Ok(()) } else { Err(Errno::EACCES) }
}

/// Where to reach a peer: "any" means the loopback, that of version 4 to a socket that has an
/// address of that version (`own_is_v4`). ENETUNREACH for what is not this machine.
pub fn destination(address: SocketAddr, own_is_v4: bool) -> Result<SocketAddr> {
    let ip = match address.ip() {
        IpAddr::V6(ip) if ip.is_unspecified() && own_is_v4 => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip if ip.is_loopback() && !is_broadcast(ip) => ip,
        _ => return Err(Errno::ENETUNREACH),
    };
    Ok(SocketAddr::new(ip, address.port()))
}

/// The address a socket speaks from to `to`: its own, or the loopback if it is bound to "any" or to
/// an address that is nobody's own.
pub fn source_for(own: IpAddr, to: IpAddr) -> IpAddr {
    match to {
        _ if !own.is_unspecified() && !own.is_multicast() && !is_broadcast(own) => own,
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::LOCALHOST),
    }
}
