//! socket(2): which family makes a socket of its kind; netlink; and raw sockets, which are of a
//! family and yet need nothing of its ports and connections.

mod held;
pub mod netlink;
mod packets;
mod raw;

use alloc::sync::Arc;

use abi::{Errno, Result, net as abi_net};

use crate::inet;
use crate::net::{Socket, SocketKind, hooks, unix};

/// Numbers of kinds, families and protocols end here (socket(2)).
const KINDS: u32 = 11;
const FAMILIES: u32 = 46;
const PROTOCOLS: u32 = 263;

/// Makes a socket. EAFNOSUPPORT, EPROTONOSUPPORT, ESOCKTNOSUPPORT, EINVAL as socket(2) says.
pub fn create(domain: u32, kind: u32, protocol: u32) -> Result<Arc<dyn Socket>> {
    if kind >= KINDS {
        let is_family = domain < FAMILIES;
        return Err(if is_family { Errno::EINVAL } else { Errno::EAFNOSUPPORT });
    }
    let is_inet = matches!(domain, abi_net::AF_INET | abi_net::AF_INET6);
    if is_inet && protocol >= PROTOCOLS {
        return Err(Errno::EINVAL);
    }
    if domain == abi_net::AF_UNIX {
        unix::check_protocol(protocol)?;
    } else if !is_inet && domain != abi_net::AF_NETLINK {
        return Err(Errno::EAFNOSUPPORT);
    }
    let kind = kind_of(kind)?;
    hooks::sk_alloc_security((domain,))?;
    match domain {
        abi_net::AF_UNIX => unix::create(kind, protocol),
        abi_net::AF_NETLINK => netlink::create(kind, protocol),
        _ if kind == SocketKind::Raw => raw::create(domain, protocol),
        _ => inet::create(domain, kind, protocol),
    }
}

/// A kind by its number. ESOCKTNOSUPPORT.
pub fn kind_of(number: u32) -> Result<SocketKind> {
    Ok(match number {
        1 => SocketKind::Stream,
        2 => SocketKind::Dgram,
        3 => SocketKind::Raw,
        5 => SocketKind::SeqPacket,
        _ => return Err(Errno::ESOCKTNOSUPPORT),
    })
}
