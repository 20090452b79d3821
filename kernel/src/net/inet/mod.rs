//! Internet sockets within the machine (ip(7), ipv6(7), tcp(7), udp(7)): loopback addresses only.
//!
//! There are no packets: a TCP connection is a pair of channels, a datagram goes straight into the
//! inbox of the socket that is bound to its port. What programs can tell is kept: ports and their
//! conflicts, backlogs, refused connections, resets, half-closed connections. `ports` decides who
//! owns a port; `tcp` and `udp` are the sockets; a network device would stand beside `ports`.

pub mod interface;
mod ports;
mod tcp;
mod udp;

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use abi::{Errno, Result, net as raw};
use machine::sync::SpinLock;

use super::address::RawAddress;
use super::{Common, Kind, Socket};

/// A new socket.
pub(super) fn create(domain: u32, kind: Kind, protocol: u32) -> Result<Arc<dyn Socket>> {
    let (tcp, udp) = (raw::IPPROTO_TCP as u32, raw::IPPROTO_UDP as u32);
    match (kind, protocol) {
        (Kind::Stream, 0) => Ok(tcp::TcpSocket::new(Common::new(domain, kind, tcp))),
        (Kind::Stream, p) if p == tcp => Ok(tcp::TcpSocket::new(Common::new(domain, kind, tcp))),
        (Kind::Dgram, 0) => Ok(udp::UdpSocket::new(Common::new(domain, kind, udp))),
        (Kind::Dgram, p) if p == udp => Ok(udp::UdpSocket::new(Common::new(domain, kind, udp))),
        (Kind::Stream | Kind::Dgram, _) => Err(Errno::EPROTONOSUPPORT),
        (Kind::Raw, _) => Err(Errno::EPERM),
        (Kind::SeqPacket, _) => Err(Errno::ESOCKTNOSUPPORT),
    }
}

/// Whether a socket is of AF_INET6.
fn is_v6(common: &Common) -> bool {
    common.domain == raw::AF_INET6
}

/// An address argument in its plain form: IPv4 addresses mapped into IPv6 as what they are.
fn read_address(common: &Common, address: &RawAddress) -> Result<SocketAddr> {
    let given = address.to_inet(is_v6(common))?;
    Ok(SocketAddr::new(given.ip().to_canonical(), given.port()))
}

/// An address as a socket of this family shows it.
fn shown(common: &Common, address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) if is_v6(common) => {
            let ip = if ip.is_unspecified() { Ipv6Addr::UNSPECIFIED } else { ip.to_ipv6_mapped() };
            SocketAddr::new(IpAddr::V6(ip), address.port())
        }
        _ => address,
    }
}

/// The address that means "any" to a socket of this family.
fn any_address(common: &Common) -> IpAddr {
    if is_v6(common) {
        IpAddr::V6(Ipv6Addr::UNSPECIFIED)
    } else {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED)
    }
}

/// Where to reach a peer: "any" means the loopback. ENETUNREACH for what is not this machine.
fn destination(address: SocketAddr) -> Result<SocketAddr> {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip if ip.is_loopback() => ip,
        _ => return Err(Errno::ENETUNREACH),
    };
    Ok(SocketAddr::new(ip, address.port()))
}

/// The address a socket speaks from to `to`: its own, or the loopback if it is bound to "any".
fn source_for(own: IpAddr, to: IpAddr) -> IpAddr {
    match to {
        _ if !own.is_unspecified() => own,
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::LOCALHOST),
    }
}

/// Options that are remembered and have no effect here: there is no wire.
#[derive(Default)]
struct InertOptions(SpinLock<BTreeMap<(u32, u32), i32>>);

/// Known names of a level with their first values. EOPNOTSUPP for an unknown level, ENOPROTOOPT
/// for an unknown name.
fn first_value(common: &Common, level: u32, name: u32) -> Result<i32> {
    const IP: u32 = raw::IPPROTO_IP as u32;
    const IPV6: u32 = raw::IPPROTO_IPV6 as u32;
    const TCP: u32 = raw::IPPROTO_TCP as u32;
    match level {
        IP => match name {
            2 => Ok(64),      // IP_TTL
            10 => Ok(1),      // IP_MTU_DISCOVER
            14 => Ok(65535),  // IP_MTU
            33 | 34 => Ok(1), // IP_MULTICAST_TTL, _LOOP
            1 | 6 | 8 | 11 | 12 | 13 | 15 | 19 | 20 | 24 | 50 => Ok(0),
            _ => Err(Errno::ENOPROTOOPT),
        },
        IPV6 if is_v6(common) => match name {
            16 | 18 | 19 => Ok(if name == 16 { 64 } else { 1 }), // hops, multicast
            23 | 25 | 26 | 49 | 51 | 66 | 67 | 70 | 78 => Ok(0),
            24 => Ok(65535), // IPV6_MTU
            _ => Err(Errno::ENOPROTOOPT),
        },
        TCP if common.kind == Kind::Stream => match name {
            2 => Ok(32741), // TCP_MAXSEG
            4 => Ok(7200),  // TCP_KEEPIDLE
            5 => Ok(75),    // TCP_KEEPINTVL
            6 => Ok(9),     // TCP_KEEPCNT
            7 => Ok(6),     // TCP_SYNCNT
            8 => Ok(60),    // TCP_LINGER2
            1 | 3 | 9 | 10 | 12 | 18 | 23 | 25 | 30 => Ok(0),
            _ => Err(Errno::ENOPROTOOPT),
        },
        _ => Err(Errno::ENOPROTOOPT),
    }
}

impl InertOptions {
    fn get(&self, common: &Common, level: u32, name: u32) -> Result<i32> {
        let first = first_value(common, level, name)?;
        Ok(self.0.lock().get(&(level, name)).copied().unwrap_or(first))
    }

    fn set(&self, common: &Common, level: u32, name: u32, value: &[u8]) -> Result<()> {
        first_value(common, level, name)?;
        // Some options take a byte as well as an int.
        let number = match value {
            [a, b, c, d, ..] => i32::from_ne_bytes([*a, *b, *c, *d]),
            [a, ..] => i32::from(*a),
            [] => return Err(Errno::EINVAL),
        };
        self.0.lock().insert((level, name), number);
        Ok(())
    }
}

/// IPV6_V6ONLY.
const IPV6_V6ONLY: u32 = 26;
