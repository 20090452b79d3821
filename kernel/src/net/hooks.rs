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
        use crate::net::Kind;
        use crate::net::address::RawAddress;
        use crate::security::Subject;

        fn check(
            who: &Subject,
            socket: &Common,
            address: &RawAddress,
            right: u64,
        ) -> Result<()> {
            let Some(domain) = &who.domain else { return Ok(()) };
            let is_inet = matches!(socket.domain, raw::AF_INET | raw::AF_INET6);
            if !is_inet || socket.kind != Kind::Stream || !domain.handles_ports(right) {
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
}

lsm::net_hooks!(define_hooks);
