//! socket(2): which family makes a socket of its kind.

use alloc::sync::Arc;

use abi::{Errno, Result, net as raw};

use super::{Socket, SocketKind, hooks, inet, netlink, unix};

/// Makes a socket. EAFNOSUPPORT, EPROTONOSUPPORT, ESOCKTNOSUPPORT, EINVAL as socket(2) says.
pub fn create(domain: u32, kind: u32, protocol: u32) -> Result<Arc<dyn Socket>> {
    let kind = match kind {
        1 => SocketKind::Stream,
        2 => SocketKind::Dgram,
        3 => SocketKind::Raw,
        5 => SocketKind::SeqPacket,
        4 | 6 | 10 => return Err(Errno::ESOCKTNOSUPPORT),
        _ => return Err(Errno::EINVAL),
    };
    hooks::sk_alloc_security((domain,))?;
    match domain {
        raw::AF_UNIX => unix::create(kind, protocol),
        raw::AF_INET | raw::AF_INET6 => inet::create(domain, kind, protocol),
        raw::AF_NETLINK => netlink::create(kind, protocol),
        _ => Err(Errno::EAFNOSUPPORT),
    }
}
