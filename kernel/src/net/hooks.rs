//! What the policies are asked about sockets (`security::hooks`), and Landlock's answers.

use lsm::fold::{All, First};

use super::Common;
use super::address::RawAddress;
use crate::security::Subject;
use crate::security::hooks::define_hooks;

/// The policies that implement hooks of this part.
mod policies {
    /// Rights to TCP ports (landlock(7)).
    pub(super) mod landlock {
        use abi::{Errno, Result, net as raw};
        use lsm::landlock::net;

        use super::super::{Common, socket_bind as bind, socket_connect as connect};
        use crate::net::SocketKind;
        use crate::net::address::RawAddress;
        use crate::security::Subject;

        fn check(who: &Subject, socket: &Common, address: &RawAddress, right: u64) -> Result<()> {
            let Some(domain) = &who.domain else { return Ok(()) };
            let is_inet = matches!(socket.domain, raw::AF_INET | raw::AF_INET6);
            if !is_inet || socket.kind != SocketKind::Stream || !domain.handles_ports(right) {
                return Ok(());
            }
            let family = address.family()?;
            match family {
                // Takes the address away again: nothing to protect.
                raw::AF_UNSPEC if right == net::CONNECT_TCP => return Ok(()),
                // An old way to say "any address".
                raw::AF_UNSPEC if socket.domain == raw::AF_INET => {}
                raw::AF_INET | raw::AF_INET6 if family == socket.domain => {}
                // The call itself has its answer to these.
                _ => return Ok(()),
            }
            let port = address.inet_port()?;
            if domain.allows_port(port, right) { Ok(()) } else { Err(Errno::EACCES) }
        }

        pub(in super::super) fn socket_bind((who, socket, address): bind::Given<'_>) -> Result<()> {
            check(who, socket, address, net::BIND_TCP)
        }

        pub(in super::super) fn socket_connect(
            (who, socket, address): connect::Given<'_>,
        ) -> Result<()> {
            check(who, socket, address, net::CONNECT_TCP)
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
