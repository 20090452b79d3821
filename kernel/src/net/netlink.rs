//! NETLINK_ROUTE, as much as getifaddrs(3) and getaddrinfo(3) ask: lists of links and addresses,
//! which is `lo` with 127.0.0.1 and ::1; and empty lists of routes (netlink(7), rtnetlink(7)).
//!
//! A request is answered when it is sent: the answer waits in the socket's own inbox.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;

use abi::{Errno, Result, net as raw};
use machine::sync::SpinLock;

use super::address::{Address, RawAddress};
use super::channel::{Channel, ReceiveMode, Received};
use super::inet::interface;
use super::{Common, Outgoing, Socket, SocketFile, SocketKind};
use crate::base::io::{Sink, Source};
use crate::base::poll::{PollTable, events};
use crate::base::sync::{Timeout, WaitQueue};
use crate::ipc::mqueue::CookieSink;
use crate::process::Thread;
use crate::vfs::File;

const NETLINK_ROUTE: u32 = 0;
/// Longest request that is looked at.
const REQUEST_MAX: usize = 4096;
const NLM_F_MULTI: u16 = 2;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const RTM_NEWADDR: u16 = 20;
const RTM_GETADDR: u16 = 22;
const RTM_GETROUTE: u16 = 26;
/// Bytes of `struct nlmsghdr`.
const HEADER_BYTES: usize = 16;

/// Bytes of `struct sockaddr_nl`.
const ADDRESS_BYTES: usize = 12;

/// A socket.
struct NetlinkSocket {
    common: Common,
    /// Its address: the port id, 0 before bind(2).
    port: SpinLock<u32>,
    inbox: Arc<Channel>,
}

/// A new socket. EPROTONOSUPPORT for every protocol but NETLINK_ROUTE.
pub(super) fn create(kind: SocketKind, protocol: u32) -> Result<Arc<dyn Socket>> {
    if !matches!(kind, SocketKind::Raw | SocketKind::Dgram) {
        return Err(Errno::ESOCKTNOSUPPORT);
    }
    if protocol != NETLINK_ROUTE {
        return Err(Errno::EPROTONOSUPPORT);
    }
    let common = Common::new(raw::AF_NETLINK, kind, protocol);
    let room = Arc::new(WaitQueue::new());
    let inbox = Channel::new(common.receive_limit(), 64, &common.readers, &room);
    Ok(Arc::new(NetlinkSocket { common, port: SpinLock::new(0), inbox }))
}

/// A socket that hears of a message queue (mq_notify(2)).
struct Listener(Arc<dyn Socket>);

impl CookieSink for Listener {
    fn put(&self, cookie: &[u8]) {
        let socket: &dyn Any = &*self.0;
        if let Some(socket) = socket.downcast_ref::<NetlinkSocket>() {
            // What a full or closed socket does not take is lost.
            let _ = socket.reply(cookie);
        }
    }
}

/// The socket behind a file, for mq_notify(2). ENOTSOCK, EINVAL.
pub fn cookie_sink(file: &File) -> Result<Arc<dyn CookieSink>> {
    let file = file.ops_as::<SocketFile>().ok_or(Errno::ENOTSOCK)?;
    if file.socket().common().domain != raw::AF_NETLINK {
        return Err(Errno::EINVAL);
    }
    Ok(Arc::new(Listener(file.socket().clone())))
}

/// Appends one message: header, then `body`.
fn message(to: &mut Vec<u8>, kind: u16, flags: u16, request: (u32, u32), body: &[u8]) {
    let len = HEADER_BYTES + body.len();
    to.extend_from_slice(&(len as u32).to_ne_bytes());
    to.extend_from_slice(&kind.to_ne_bytes());
    to.extend_from_slice(&flags.to_ne_bytes());
    to.extend_from_slice(&request.0.to_ne_bytes());
    to.extend_from_slice(&request.1.to_ne_bytes());
    to.extend_from_slice(body);
    to.resize(to.len().next_multiple_of(4), 0);
}

/// Appends an attribute (`struct rtattr`).
fn attribute(to: &mut Vec<u8>, kind: u16, value: &[u8]) {
    to.extend_from_slice(&(4 + value.len() as u16).to_ne_bytes());
    to.extend_from_slice(&kind.to_ne_bytes());
    to.extend_from_slice(value);
    to.resize(to.len().next_multiple_of(4), 0);
}

/// `struct ifinfomsg` of `lo`, with name, MTU and hardware address.
fn link_body() -> Vec<u8> {
    let mut body = Vec::new();
    body.extend_from_slice(&[0, 0]);
    body.extend_from_slice(&interface::HARDWARE.to_ne_bytes());
    body.extend_from_slice(&interface::INDEX.to_ne_bytes());
    // IFF_LOWER_UP too, which only this interface shows.
    body.extend_from_slice(&(u32::from(interface::FLAGS) | 0x10000).to_ne_bytes());
    body.extend_from_slice(&0u32.to_ne_bytes());
    attribute(&mut body, 3, b"lo\0");
    attribute(&mut body, 4, &interface::MTU.to_ne_bytes());
    attribute(&mut body, 1, &[0; 6]);
    attribute(&mut body, 2, &[0; 6]);
    body
}

/// `struct ifaddrmsg` of one address of `lo`.
fn address_body(family: u32, prefix: u8, address: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    // Flags: permanent; scope: host.
    body.extend_from_slice(&[family as u8, prefix, 0x80, 254]);
    body.extend_from_slice(&interface::INDEX.to_ne_bytes());
    attribute(&mut body, 1, address);
    if family == raw::AF_INET {
        attribute(&mut body, 2, address);
        attribute(&mut body, 3, b"lo\0");
    }
    body
}

/// The answer to one request: messages, without the end.
fn answer(kind: u16, family: u32, request: (u32, u32)) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    match kind {
        RTM_GETLINK => message(&mut out, RTM_NEWLINK, NLM_F_MULTI, request, &link_body()),
        RTM_GETADDR => {
            if family != raw::AF_INET6 {
                let body = address_body(raw::AF_INET, 8, &[127, 0, 0, 1]);
                message(&mut out, RTM_NEWADDR, NLM_F_MULTI, request, &body);
            }
            if family != raw::AF_INET {
                let localhost = core::net::Ipv6Addr::LOCALHOST.octets();
                let body = address_body(raw::AF_INET6, 128, &localhost);
                message(&mut out, RTM_NEWADDR, NLM_F_MULTI, request, &body);
            }
        }
        RTM_GETROUTE => {}
        _ => return None,
    }
    Some(out)
}

impl NetlinkSocket {
    fn reply(&self, bytes: &[u8]) -> Result<()> {
        let now = Timeout { nonblocking: true, deadline: None };
        self.inbox.send_message(&mut Source::kernel(bytes), None, now)?;
        Ok(())
    }

    fn serve(&self, request: &[u8]) -> Result<()> {
        let (Some(header), rest) = (request.get(..HEADER_BYTES), request.get(HEADER_BYTES)) else {
            return Ok(());
        };
        let kind = u16::from_ne_bytes([header[4], header[5]]);
        let sequence = u32::from_ne_bytes([header[8], header[9], header[10], header[11]]);
        let family = u32::from(rest.copied().unwrap_or(0));
        let ids = (sequence, *self.port.lock());
        match answer(kind, family, ids) {
            Some(list) => {
                if !list.is_empty() {
                    self.reply(&list)?;
                }
                let mut done = Vec::new();
                message(&mut done, NLMSG_DONE, NLM_F_MULTI, ids, &0i32.to_ne_bytes());
                self.reply(&done)
            }
            None => {
                let mut body = Vec::from((-Errno::EOPNOTSUPP.number()).to_ne_bytes());
                body.extend_from_slice(header);
                let mut error = Vec::new();
                message(&mut error, NLMSG_ERROR, 0, ids, &body);
                self.reply(&error)
            }
        }
    }

    /// Takes a port; 0: the process's id.
    fn bind_to(&self, who: &Thread, port: u32) {
        *self.port.lock() = if port == 0 { who.process.pid } else { port };
    }
}

impl Socket for NetlinkSocket {
    fn common(&self) -> &Common {
        &self.common
    }

    fn bind(self: Arc<Self>, who: &Thread, address: &RawAddress) -> Result<()> {
        let bytes = address.bytes();
        if address.family()? != raw::AF_NETLINK || bytes.len() < ADDRESS_BYTES {
            return Err(Errno::EINVAL);
        }
        self.bind_to(who, u32::from_ne_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]));
        Ok(())
    }

    fn connect(
        self: Arc<Self>,
        who: &Thread,
        address: &RawAddress,
        _timeout: Timeout,
    ) -> Result<()> {
        if address.family()? != raw::AF_NETLINK {
            return Err(Errno::EINVAL);
        }
        self.bind_to(who, 0);
        Ok(())
    }

    fn send(&self, who: &Thread, source: &mut Source<'_>, what: Outgoing) -> Result<usize> {
        if what.mode.urgent {
            return Err(Errno::EOPNOTSUPP);
        }
        let len = source.left();
        if len == 0 {
            return Err(Errno::ENODATA);
        }
        if let Some(error) = what.control.error {
            return Err(error);
        }
        if let Some(to) = &what.to
            && (to.bytes().len() < ADDRESS_BYTES || to.family()? != raw::AF_NETLINK)
        {
            return Err(Errno::EINVAL);
        }
        if len > REQUEST_MAX {
            return Err(Errno::EMSGSIZE);
        }
        super::hooks::netlink_send((&self.common,))?;
        let mut request = alloc::vec![0; len];
        if source.take(&mut request)? < len {
            return Err(Errno::EFAULT);
        }
        if *self.port.lock() == 0 {
            self.bind_to(who, 0);
        }
        self.serve(&request)?;
        Ok(len)
    }

    fn receive(&self, sink: &mut Sink<'_>, mode: ReceiveMode, how: Timeout) -> Result<Received> {
        let mut received = self.inbox.receive(sink, mode, how)?;
        let mut info = received.info.take().unwrap_or_default();
        info.from = Some(Address::Netlink(0));
        received.info = Some(info);
        Ok(received)
    }

    fn shutdown(&self, _receive: bool, _send: bool) -> Result<()> {
        Err(Errno::EOPNOTSUPP)
    }

    fn close(&self) {
        self.inbox.refuse();
        self.inbox.clear();
    }

    fn local_address(&self) -> Address {
        Address::Netlink(*self.port.lock())
    }

    fn peer_address(&self) -> Result<Address> {
        Ok(Address::Netlink(0))
    }

    fn poll(&self, table: &mut PollTable) -> u32 {
        self.common.wait_on_both(table);
        let readable = if self.inbox.has_data() { events::READABLE } else { 0 };
        readable | events::WRITABLE
    }

    fn queued(&self) -> (usize, usize) {
        (self.inbox.next_len(), 0)
    }
}
