//! NETLINK_ROUTE, as much as getifaddrs(3) and getaddrinfo(3) ask: lists of links and addresses,
//! which is `lo` with 127.0.0.1 and ::1; and empty lists of routes (netlink(7), rtnetlink(7)).
//!
//! A request is answered when it is sent: the answer waits in the socket's own inbox. What is in
//! both, `formats::rtnetlink` knows.

use alloc::sync::Arc;
use core::any::Any;

use abi::{Errno, Result, net as raw};
use formats::rtnetlink::{NETLINK_ROUTE, Request};
use formats::sockaddr::NETLINK_BYTES;
use machine::sync::SpinLock;

use crate::base::io::{Sink, Source};
use crate::base::poll::{PollTable, events};
use crate::base::sync::{Timeout, WaitQueue};
use crate::ipc::mqueue::CookieSink;
use crate::net::address::{Address, RawAddress};
use crate::net::channel::{Channel, ReceiveMode, Received};
use crate::net::interface;
use crate::net::{Common, Outgoing, Socket, SocketFile, SocketKind, hooks};
use crate::process::Thread;
use crate::security::Capability;
use crate::vfs::File;

/// Bytes of the send buffer that are kept for a request's own.
const SEND_COST: usize = 32;

/// A socket.
struct NetlinkSocket {
    common: Common,
    /// Its address: the port id, 0 before bind(2).
    port: SpinLock<u32>,
    /// The port that connect(2) named; 0: the kernel's.
    peer: SpinLock<u32>,
    inbox: Arc<Channel>,
}

/// A new socket. EPROTONOSUPPORT for every protocol but NETLINK_ROUTE.
pub fn create(kind: SocketKind, protocol: u32) -> Result<Arc<dyn Socket>> {
    if !matches!(kind, SocketKind::Raw | SocketKind::Dgram) {
        return Err(Errno::ESOCKTNOSUPPORT);
    }
    if protocol != NETLINK_ROUTE {
        return Err(Errno::EPROTONOSUPPORT);
    }
    let common = Common::new(raw::AF_NETLINK, kind, protocol);
    let room = Arc::new(WaitQueue::new());
    let inbox = Channel::new(common.receive_limit(), 64, &common.readers, &room);
    Ok(Arc::new(NetlinkSocket { common, port: SpinLock::new(0), peer: SpinLock::new(0), inbox }))
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

impl NetlinkSocket {
    fn reply(&self, bytes: &[u8]) -> Result<()> {
        let now = Timeout { nonblocking: true, deadline: None };
        self.inbox.send_message(&mut Source::kernel(bytes), None, now)?;
        Ok(())
    }

    fn serve(&self, request: &[u8]) -> Result<()> {
        let Some(request) = Request::decode(request) else { return Ok(()) };
        let unsupported = -Errno::EOPNOTSUPP.number();
        let answer = request.answer(*self.port.lock(), &interface::LO, unsupported);
        answer.iter().try_for_each(|messages| self.reply(messages))
    }

    /// Takes a port; 0: the process's id.
    fn bind_to(&self, who: &Thread, port: u32) {
        *self.port.lock() = if port == 0 { who.process.pid } else { port };
    }
}

/// The port that an address names. EINVAL.
fn read_port(address: &RawAddress) -> Result<u32> {
    let bytes = address.bytes();
    if address.family()? != raw::AF_NETLINK || bytes.len() < NETLINK_BYTES {
        return Err(Errno::EINVAL);
    }
    Ok(u32::from_ne_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]))
}

impl Socket for NetlinkSocket {
    fn common(&self) -> &Common {
        &self.common
    }

    fn bind(self: Arc<Self>, who: &Thread, address: &RawAddress) -> Result<()> {
        self.bind_to(who, read_port(address)?);
        Ok(())
    }

    fn connect(
        self: Arc<Self>,
        who: &Thread,
        address: &RawAddress,
        _timeout: Timeout,
    ) -> Result<()> {
        if address.family()? == raw::AF_UNSPEC {
            *self.peer.lock() = 0;
            return Ok(());
        }
        let peer = read_port(address)?;
        if peer != 0 && !who.subject().capable(Capability::NetAdmin) {
            return Err(Errno::EPERM);
        }
        if *self.port.lock() == 0 {
            self.bind_to(who, 0);
        }
        *self.peer.lock() = peer;
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
            && (to.bytes().len() < NETLINK_BYTES || to.family()? != raw::AF_NETLINK)
        {
            return Err(Errno::EINVAL);
        }
        if len + SEND_COST > self.common.send_limit() {
            return Err(Errno::EMSGSIZE);
        }
        hooks::netlink_send((&self.common,))?;
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
        Ok(Address::Netlink(*self.peer.lock()))
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
