//! TCP between programs of this machine (tcp(7)).
//!
//! connect(2) finds the listener, makes the other end and puts it into the backlog: the connection
//! stands at once, as it does over a real loopback device once the handshake is done.

use alloc::sync::Arc;
use core::net::SocketAddr;
use core::sync::atomic::{AtomicBool, Ordering};

use abi::{Errno, Result, net as raw};
use machine::sync::{Once, SpinLock};

use super::ports::{Binding, Owner, Ports};
use super::{InertOptions, any_address, destination, read_address, shown, source_for};
use crate::base::io::{Sink, Source};
use crate::base::poll::{PollTable, events};
use crate::net::address::{Address, RawAddress};
use crate::net::channel::{Patience, ReceiveMode, Received};
use crate::net::stream::{Backlog, Conn};
use crate::net::{Common, Outgoing, Socket, hooks};

static PORTS: Ports<TcpSocket> = Ports::new();

struct Link {
    conn: Conn,
    local: SocketAddr,
    peer: SocketAddr,
}

/// A socket.
pub(super) struct TcpSocket {
    common: Common,
    v6_only: AtomicBool,
    binding: SpinLock<Option<Binding<TcpSocket>>>,
    link: Once<Link>,
    is_connecting: AtomicBool,
    backlog: Backlog<TcpSocket>,
    options: InertOptions,
}

impl Owner for TcpSocket {
    fn reuse(&self) -> (bool, bool) {
        let common = &self.common;
        let load = |flag: &AtomicBool| flag.load(Ordering::Relaxed);
        (load(&common.reuse_address), load(&common.reuse_port))
    }

    fn listens(&self) -> bool {
        self.backlog.is_listening()
    }

    fn v6_only(&self) -> bool {
        self.v6_only.load(Ordering::Relaxed)
    }
}

impl TcpSocket {
    pub(super) fn new(common: Common) -> Arc<TcpSocket> {
        Arc::new(TcpSocket {
            common,
            v6_only: AtomicBool::new(false),
            binding: SpinLock::new(None),
            link: Once::new(),
            is_connecting: AtomicBool::new(false),
            backlog: Backlog::default(),
            options: InertOptions::default(),
        })
    }

    fn bound(&self) -> Option<SocketAddr> {
        self.binding.lock().as_ref().map(|binding| binding.address)
    }

    /// The address it is bound to, after binding it to any port if it was not.
    fn bound_or_any(self: &Arc<Self>) -> Result<SocketAddr> {
        if let Some(address) = self.bound() {
            return Ok(address);
        }
        let any = SocketAddr::new(any_address(&self.common), 0);
        let binding = PORTS.bind(self, any, true)?;
        let address = binding.address;
        *self.binding.lock() = Some(binding);
        Ok(address)
    }

    fn connect_to(self: &Arc<Self>, to: SocketAddr) -> Result<()> {
        let to = destination(to)?;
        let own = self.bound_or_any()?;
        let local = SocketAddr::new(source_for(own.ip(), to.ip()), own.port());
        let listener = PORTS.find(to, |socket| socket.listens()).ok_or(Errno::ECONNREFUSED)?;
        hooks::inet_conn_request((&listener.common,))?;
        let served = TcpSocket::new(listener.common.inherit());
        hooks::sk_clone_security((&listener.common, &served.common));
        let (near, far) = Conn::pair(&self.common, &served.common, false);
        served.link.call_once(|| Link { conn: far, local: to, peer: local });
        // A full backlog delays the handshake on a real network; here the limit is only a bound.
        let now = Patience { nonblocking: true, deadline: None };
        listener.backlog.push(&served, &listener.common.readers, now).map_err(refused)?;
        self.link.call_once(|| Link { conn: near, local, peer: to });
        hooks::inet_conn_established((&self.common,));
        self.common.readers.wake_all(0);
        self.common.writers.wake_all(events::WRITABLE);
        Ok(())
    }

    fn link(&self) -> Result<&Link> {
        self.link.get().ok_or(Errno::ENOTCONN)
    }
}

/// A backlog that is full or gone.
fn refused(error: Errno) -> Errno {
    if error == Errno::EAGAIN { Errno::ECONNREFUSED } else { error }
}

impl Socket for TcpSocket {
    fn common(&self) -> &Common {
        &self.common
    }

    fn bind(self: Arc<Self>, address: &RawAddress) -> Result<()> {
        let address = read_address(&self.common, address)?;
        if self.bound().is_some() || self.link.get().is_some() {
            return Err(Errno::EINVAL);
        }
        let binding = PORTS.bind(&self, address, true)?;
        *self.binding.lock() = Some(binding);
        Ok(())
    }

    fn connect(self: Arc<Self>, address: &RawAddress, _patience: Patience) -> Result<()> {
        if address.family()? == raw::AF_UNSPEC {
            return if self.link.get().is_some() { Err(Errno::EOPNOTSUPP) } else { Ok(()) };
        }
        let to = read_address(&self.common, address)?;
        if self.link.get().is_some() || self.backlog.is_listening() {
            return Err(Errno::EISCONN);
        }
        if self.is_connecting.swap(true, Ordering::SeqCst) {
            return Err(Errno::EALREADY);
        }
        let result = self.connect_to(to);
        self.is_connecting.store(false, Ordering::SeqCst);
        result
    }

    fn listen(self: Arc<Self>, backlog: i32) -> Result<()> {
        if self.link.get().is_some() {
            return Err(Errno::EINVAL);
        }
        self.bound_or_any()?;
        self.backlog.listen(if backlog < 0 { backlog } else { backlog.max(128) });
        Ok(())
    }

    fn accept(&self, patience: Patience) -> Result<Arc<dyn Socket>> {
        let socket = self.backlog.accept(&self.common.readers, patience)?;
        Ok(socket)
    }

    fn is_listening(&self) -> bool {
        self.backlog.is_listening()
    }

    fn send(&self, source: &mut Source<'_>, what: Outgoing) -> Result<usize> {
        if let Some(error) = self.common.take_error() {
            return Err(error);
        }
        let link = self.link.get().ok_or(Errno::EPIPE)?;
        link.conn.tx.send(source, None, what.patience)
    }

    fn receive(&self, sink: &mut Sink<'_>, mode: ReceiveMode, how: Patience) -> Result<Received> {
        if let Some(error) = self.common.take_error() {
            return Err(error);
        }
        self.link()?.conn.rx.receive(sink, mode, how)
    }

    fn shutdown(&self, receive: bool, send: bool) -> Result<()> {
        match self.link.get() {
            Some(link) => link.conn.shutdown(receive, send),
            None if self.backlog.is_listening() && receive => {
                for pending in self.backlog.close() {
                    pending.close();
                }
                self.common.readers.wake_all(0);
            }
            None => return Err(Errno::ENOTCONN),
        }
        Ok(())
    }

    fn close(&self) {
        for pending in self.backlog.close() {
            if let Some(link) = pending.link.get() {
                link.conn.close(true);
            }
        }
        if let Some(link) = self.link.get() {
            let abort = self.common.linger_seconds.load(Ordering::Relaxed) == 0;
            link.conn.close(abort);
        }
        let binding = self.binding.lock().take();
        drop(binding);
    }

    fn local_address(&self) -> Address {
        let address = match self.link.get() {
            Some(link) => link.local,
            None => self.bound().unwrap_or_else(|| SocketAddr::new(any_address(&self.common), 0)),
        };
        Address::Inet(shown(&self.common, address))
    }

    fn peer_address(&self) -> Result<Address> {
        Ok(Address::Inet(shown(&self.common, self.link()?.peer)))
    }

    fn poll(&self, table: &mut PollTable) -> u32 {
        if let Some(link) = self.link.get() {
            return link.conn.poll(&self.common, table);
        }
        self.common.wait_on_both(table);
        match self.link.get() {
            Some(link) => link.conn.poll(&self.common, &mut PollTable::ask()),
            None if self.backlog.is_listening() => {
                if self.backlog.has_pending() {
                    events::READABLE
                } else {
                    0
                }
            }
            None => crate::net::UNCONNECTED,
        }
    }

    fn queued(&self) -> (usize, usize) {
        match self.link.get() {
            Some(link) => (link.conn.rx.next_len(), link.conn.tx.used()),
            None => (0, 0),
        }
    }

    fn limits_changed(&self) {
        if let Some(link) = self.link.get() {
            link.conn.tx.set_limit(self.common.send_limit());
        }
    }

    fn get_option(&self, level: u32, name: u32) -> Result<i32> {
        if level == raw::IPPROTO_IPV6 as u32 && name == super::IPV6_V6ONLY {
            return Ok(i32::from(self.v6_only()));
        }
        self.options.get(&self.common, level, name)
    }

    fn set_option(&self, level: u32, name: u32, value: &[u8]) -> Result<()> {
        if level == raw::IPPROTO_IPV6 as u32 && name == super::IPV6_V6ONLY {
            let is_on = value.iter().any(|&byte| byte != 0);
            self.v6_only.store(is_on, Ordering::Relaxed);
            return Ok(());
        }
        self.options.set(&self.common, level, name, value)
    }
}
