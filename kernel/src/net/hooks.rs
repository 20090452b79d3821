//! What the policies are asked about sockets (`security::hooks`), and Landlock's answers.

use lsm::fold::{All, First};

use super::Common;
use super::address::RawAddress;
use super::unix::UnixSocket;
use crate::process::Thread;
use crate::security::Subject;
use crate::security::hooks::define_hooks;

/// The policies that implement hooks of this part.
mod policies {
    /// Rights to TCP ports, and sockets with an abstract name (landlock(7)).
    pub(super) mod landlock {
        use abi::{Errno, Result, net as raw};
        use lsm::landlock::{net, scope};

        use super::super::{Common, Thread, UnixSocket};
        use super::super::{socket_bind as bind, socket_connect as connect};
        use super::super::{
            socket_post_create as post_create, unix_may_send as may_send,
            unix_stream_connect as stream_connect,
        };
        use crate::net::address::RawAddress;
        use crate::net::{Socket, SocketKind};
        use crate::security::Subject;

        fn check(who: &Subject, socket: &Common, address: &RawAddress, right: u64) -> Result<()> {
            let Some(domain) = &who.domain else { return Ok(()) };
            let is_inet = matches!(socket.domain, raw::AF_INET | raw::AF_INET6);
            // What an address must be holds for both rights, whichever is handled.
            let is_tcp = is_inet && socket.kind == SocketKind::Stream;
            if !is_tcp || !domain.handles_ports(net::ALL) {
                return Ok(());
            }
            let address = match address.family()? {
                // Takes the address away again: nothing to protect.
                raw::AF_UNSPEC if right == net::CONNECT_TCP => return Ok(()),
                raw::AF_UNSPEC => address.to_bind(socket.is_v6())?,
                family @ (raw::AF_INET | raw::AF_INET6) => {
                    let address = address.to_inet(family == raw::AF_INET6)?;
                    if family != socket.domain {
                        return Err(Errno::EINVAL);
                    }
                    address
                }
                // The call itself has its answer to these.
                _ => return Ok(()),
            };
            if domain.allows_port(address.port(), right) { Ok(()) } else { Err(Errno::EACCES) }
        }

        pub(in super::super) fn socket_bind((who, socket, address): bind::Given<'_>) -> Result<()> {
            check(who, socket, address, net::BIND_TCP)
        }

        pub(in super::super) fn socket_connect(
            (who, socket, address): connect::Given<'_>,
        ) -> Result<()> {
            check(who, socket, address, net::CONNECT_TCP)
        }

        /// What is made belongs to its maker's domain.
        pub(in super::super) fn socket_post_create(
            (who, socket): post_create::Given<'_>,
        ) -> Result<()> {
            if let Some(domain) = &who.domain {
                socket.confinement.set(domain.clone());
            }
            Ok(())
        }

        /// EPERM for whoever would reach a socket by its abstract name that was made outside.
        fn may_reach(who: &Thread, target: &UnixSocket) -> Result<()> {
            let socket = scope::ABSTRACT_UNIX_SOCKET;
            let fence = who.confinement.with(|domain| domain.map(|domain| domain.fence(socket)));
            match fence {
                Some(fence) if target.has_abstract_name() => {
                    let is_inside = target.common().confinement.is_within(&fence);
                    if is_inside { Ok(()) } else { Err(Errno::EPERM) }
                }
                _ => Ok(()),
            }
        }

        pub(in super::super) fn unix_stream_connect(
            (who, _, listener): stream_connect::Given<'_>,
        ) -> Result<()> {
            may_reach(who, listener)
        }

        pub(in super::super) fn unix_may_send(
            (who, socket, peer): may_send::Given<'_>,
        ) -> Result<()> {
            if socket.sends_to(peer) { Ok(()) } else { may_reach(who, peer) }
        }
    }

    /// Addresses, as a profile has them: `tcp:443`, `udp:53`, `unix:/run/x`, `unix:@x`.
    pub(super) mod profile {
        use abi::{Result, net as raw};
        use alloc::vec::Vec;
        use lsm::profile::Access;

        use super::super::{
            Common, socket_bind as bind, socket_connect as connect, socket_sendmsg as sendmsg,
        };
        use crate::net::SocketKind;
        use crate::net::address::RawAddress;
        use crate::security::profile;

        fn object(socket: &Common, address: &RawAddress) -> Option<Vec<u8>> {
            match address.family().ok()? {
                raw::AF_INET | raw::AF_INET6 => {
                    let kind = if socket.kind == SocketKind::Stream { "tcp" } else { "udp" };
                    Some(alloc::format!("{kind}:{}", address.inet_port().ok()?).into_bytes())
                }
                raw::AF_UNIX => {
                    // Without a name it takes one that nobody knows.
                    let name = address.to_unix().ok()??;
                    Some(match name.strip_prefix(b"\0") {
                        Some(name) => [b"unix:@", name].concat(),
                        None => [b"unix:", &*name].concat(),
                    })
                }
                _ => None,
            }
        }

        fn check(socket: &Common, address: &RawAddress, access: Access) -> Result<()> {
            match object(socket, address) {
                Some(object) => profile::check(access, &object),
                // The call itself has its answer to these.
                None => Ok(()),
            }
        }

        pub(in super::super) fn socket_bind((_, socket, address): bind::Given<'_>) -> Result<()> {
            check(socket, address, Access::Bind)
        }

        pub(in super::super) fn socket_connect(
            (_, socket, address): connect::Given<'_>,
        ) -> Result<()> {
            check(socket, address, Access::Connect)
        }

        pub(in super::super) fn socket_sendmsg((socket, to): sendmsg::Given<'_>) -> Result<()> {
            to.map_or(Ok(()), |address| check(socket, address, Access::Connect))
        }
    }
}

lsm::net_hooks!(define_hooks);
