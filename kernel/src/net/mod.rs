//! Sockets. Reading order: this file (what a socket is), `calls::net` (the calls), `channel` (how
//! data waits), `stream` (connections), then the family `unix`. The family `inet` stands above,
//! netlink in `sockets`.
//!
//! A family implements [`Socket`]; [`SocketFile`] is the open file around one. There is no device
//! and no packet here: TCP and UDP connect programs of this machine only, over the loopback
//! addresses, by the same channels as unix sockets. README.md lists the options.

pub mod address;
pub mod channel;
pub mod control;
pub mod garbage;
pub mod hooks;
pub mod interface;
pub mod options;
pub mod packet;
pub mod stream;
mod tcp_state;
pub mod unix;

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::any::Any;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use abi::{Errno, Result, ioctl, net as raw};
use machine::sync::{Once, SpinLock};

use crate::base::accounts::{self, Counted};
use crate::base::io::{Sink, Source};
use crate::base::poll::{PollTable, events};
use crate::base::sync::{Timeout, WaitQueue};
use crate::base::time::Deadline;
use crate::base::user::UserPtr;
use crate::io::io_signals;
use crate::process::{Process, Thread, current};
use crate::security::landlock::Confinement;
use crate::vfs::{File, FileOps, Inode, anon::AnonInode};

use address::{Address, RawAddress};
use channel::{Info, ReceiveMode, Received, SendMode};
use control::{Control, Ucred, Writer};
pub use tcp_state::TcpState;

/// Default SO_SNDBUF and SO_RCVBUF (net.core.wmem_default).
const BUFFER_DEFAULT: usize = 212_992;
/// What TCP's sockets show before anybody chose (the middle numbers of tcp_wmem and tcp_rmem).
const TCP_SEND_BUFFER: usize = 16_384;
const TCP_RECEIVE_BUFFER: usize = 131_072;
/// Least SO_SNDBUF.
const SEND_BUFFER_MIN: usize = 4608;
/// Least SO_RCVBUF.
const RECEIVE_BUFFER_MIN: usize = 2304;

/// Kinds of sockets (socket(2)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "socket(2)")]
pub enum SocketKind {
    Stream = 1,
    Dgram = 2,
    Raw = 3,
    SeqPacket = 5,
}

/// What all sockets have: identity, options, queues, a pending error.
pub struct Common {
    /// Address family.
    pub domain: u32,
    /// See [`SocketKind`].
    pub kind: SocketKind,
    /// Protocol number, as SO_PROTOCOL shows it.
    pub protocol: u32,
    /// Woken when there is something to receive or accept.
    pub readers: Arc<WaitQueue>,
    /// Woken when there is room to send.
    pub writers: Arc<WaitQueue>,
    send_buffer: AtomicUsize,
    receive_buffer: AtomicUsize,
    /// SO_BUF_LOCK: bit 0 if the program chose the send buffer, bit 1 for the receive buffer.
    chosen_buffers: AtomicU32,
    /// SO_RCVLOWAT.
    low_water: AtomicUsize,
    /// SO_PEEK_OFF: where the next look begins; negative: at the beginning, always.
    peek_offset: AtomicI32,
    /// What comes with each message: see [`options::stamps`].
    stamps: AtomicU32,
    /// Messages that found no room (SO_RXQ_OVFL).
    pub lost: AtomicU32,
    /// Options that are numbers, kept and shown.
    numbers: SpinLock<BTreeMap<u32, i64>>,
    receive_timeout_ns: AtomicU64,
    send_timeout_ns: AtomicU64,
    /// What of its sender comes with each message ([`options::sender`]). The other side of a
    /// conversation looks at it too.
    pub passes_sender: Arc<AtomicU32>,
    /// SO_REUSEADDR.
    pub reuse_address: AtomicBool,
    /// SO_REUSEPORT.
    pub reuse_port: AtomicBool,
    /// SO_LINGER: -1 off, else seconds.
    pub linger_seconds: AtomicI32,
    /// Flags that are kept and shown but change nothing: one bit for each option.
    inert_options: AtomicU32,
    error: AtomicI32,
    /// SO_COOKIE, once somebody asked: a number that no other socket has.
    cookie: AtomicU64,
    /// How far its maker had restricted itself then.
    pub confinement: Confinement,
    /// The object of its open file, once there is one.
    inode: Once<Weak<AnonInode>>,
}

impl Common {
    /// A new socket's.
    #[must_use]
    pub fn new(domain: u32, kind: SocketKind, protocol: u32) -> Common {
        let is_tcp = protocol == raw::IPPROTO_TCP as u32;
        let (send, receive) = match is_tcp {
            true => (TCP_SEND_BUFFER, TCP_RECEIVE_BUFFER),
            false => (BUFFER_DEFAULT, BUFFER_DEFAULT),
        };
        Common {
            domain,
            kind,
            protocol,
            readers: Arc::new(WaitQueue::new()),
            writers: Arc::new(WaitQueue::new()),
            send_buffer: AtomicUsize::new(send),
            receive_buffer: AtomicUsize::new(receive),
            chosen_buffers: AtomicU32::new(0),
            low_water: AtomicUsize::new(1),
            peek_offset: AtomicI32::new(-1),
            stamps: AtomicU32::new(0),
            lost: AtomicU32::new(0),
            numbers: SpinLock::new(BTreeMap::new()),
            receive_timeout_ns: AtomicU64::new(0),
            send_timeout_ns: AtomicU64::new(0),
            passes_sender: Arc::new(AtomicU32::new(0)),
            reuse_address: AtomicBool::new(false),
            reuse_port: AtomicBool::new(false),
            linger_seconds: AtomicI32::new(-1),
            inert_options: AtomicU32::new(0),
            error: AtomicI32::new(0),
            cookie: AtomicU64::new(0),
            confinement: Confinement::default(),
            inode: Once::new(),
        }
    }

    /// Permission bits of the open socket (fchmod(2)).
    fn mode(&self) -> u32 {
        let metadata = self.inode.get().and_then(Weak::upgrade).map(|inode| inode.metadata());
        metadata.and_then(Result::ok).map_or(PERMISSIONS, |metadata| metadata.mode & 0o7777)
    }

    /// A socket made by accept(2): the listener's options.
    #[must_use]
    pub fn inherit(&self) -> Common {
        let new = Common::new(self.domain, self.kind, self.protocol);
        let copy = |from: &AtomicUsize, to: &AtomicUsize| {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        };
        copy(&self.send_buffer, &new.send_buffer);
        copy(&self.receive_buffer, &new.receive_buffer);
        copy(&self.low_water, &new.low_water);
        let words = [
            (&self.chosen_buffers, &new.chosen_buffers),
            (&self.stamps, &new.stamps),
            (&self.inert_options, &new.inert_options),
            (&*self.passes_sender, &*new.passes_sender),
        ];
        for (from, to) in words {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        *new.numbers.lock() = self.numbers.lock().clone();
        let flags =
            [(&self.reuse_address, &new.reuse_address), (&self.reuse_port, &new.reuse_port)];
        for (from, to) in flags {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        new.linger_seconds.store(self.linger_seconds.load(Ordering::Relaxed), Ordering::Relaxed);
        new
    }

    /// Bytes that may wait on the way to the other side.
    pub fn send_limit(&self) -> usize {
        self.send_buffer.load(Ordering::Relaxed)
    }

    /// Bytes that may wait in the socket's own inbox.
    pub fn receive_limit(&self) -> usize {
        self.receive_buffer.load(Ordering::Relaxed)
    }

    /// SO_SNDBUF, if the program chose it.
    pub fn send_chosen(&self) -> Option<usize> {
        (self.chosen_buffers.load(Ordering::Relaxed) & 1 != 0).then(|| self.send_limit())
    }

    /// What Linux calls the protocol (socket(7), /proc/net/protocols).
    fn protocol_name(&self) -> &'static [u8] {
        match (self.domain, self.kind) {
            (raw::AF_UNIX, SocketKind::Stream) => b"UNIX-STREAM",
            (raw::AF_UNIX, _) => b"UNIX",
            (raw::AF_NETLINK, _) => b"NETLINK",
            (raw::AF_INET6, SocketKind::Stream) => b"TCPv6",
            (raw::AF_INET6, SocketKind::Raw) => b"RAWv6",
            (raw::AF_INET6, _) if self.protocol == raw::IPPROTO_UDPLITE as u32 => b"UDPLITEv6",
            (raw::AF_INET6, _) => b"UDPv6",
            (_, SocketKind::Stream) => b"TCP",
            (_, SocketKind::Raw) => b"RAW",
            (_, _) if self.protocol == raw::IPPROTO_UDPLITE as u32 => b"UDP-Lite",
            _ => b"UDP",
        }
    }

    /// SO_RCVBUF, if the program chose it.
    pub fn receive_chosen(&self) -> Option<usize> {
        (self.chosen_buffers.load(Ordering::Relaxed) & 2 != 0).then(|| self.receive_limit())
    }

    /// SO_RCVLOWAT.
    pub fn low_water(&self) -> usize {
        self.low_water.load(Ordering::Relaxed)
    }

    /// Where a look begins (MSG_PEEK), if the socket keeps count (SO_PEEK_OFF).
    pub fn peek_offset(&self) -> Option<usize> {
        usize::try_from(self.peek_offset.load(Ordering::Relaxed)).ok()
    }

    /// Moves that place: forwards by what was looked at, back by what was taken.
    pub fn move_peek_offset(&self, received: &Received, is_peek: bool) {
        if self.peek_offset.load(Ordering::Relaxed) < 0 || received.is_urgent {
            return;
        }
        let moved = |old: i32| {
            let new = match is_peek {
                true => old.saturating_add(received.len as i32),
                false => old.saturating_sub(received.full_len as i32).max(0),
            };
            (old >= 0).then_some(new)
        };
        let _ = self.peek_offset.fetch_update(Ordering::Relaxed, Ordering::Relaxed, moved);
    }

    /// SO_REUSEADDR and SO_REUSEPORT.
    pub fn reuse(&self) -> (bool, bool) {
        (self.reuse_address.load(Ordering::Relaxed), self.reuse_port.load(Ordering::Relaxed))
    }

    /// Whether the socket is of AF_INET6.
    pub fn is_v6(&self) -> bool {
        self.domain == raw::AF_INET6
    }

    /// SO_COOKIE.
    pub fn cookie(&self) -> u64 {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        if self.cookie.load(Ordering::Relaxed) == 0 {
            let new = NEXT.fetch_add(1, Ordering::Relaxed);
            let _ = self.cookie.compare_exchange(0, new, Ordering::Relaxed, Ordering::Relaxed);
        }
        self.cookie.load(Ordering::Relaxed)
    }

    /// Wakes all who wait for anything.
    pub fn wake_both(&self) {
        self.readers.wake_all(0);
        self.writers.wake_all(0);
    }

    /// Urgent data has come.
    pub fn tell_urgent(&self) {
        self.readers.wake_all(events::PRI | events::READABLE);
    }

    /// How long a receive may wait.
    #[inline]
    pub fn receive_timeout(&self, nonblocking: bool) -> Timeout {
        timeout(nonblocking, self.receive_timeout_ns.load(Ordering::Relaxed))
    }

    /// How long a send, connect or accept may wait.
    #[inline]
    pub fn send_timeout(&self, nonblocking: bool) -> Timeout {
        timeout(nonblocking, self.send_timeout_ns.load(Ordering::Relaxed))
    }

    /// Leaves an error for the next call, or for SO_ERROR.
    pub fn set_error(&self, error: Errno) {
        self.error.store(error.number(), Ordering::SeqCst);
        self.readers.wake_all(0);
        self.writers.wake_all(0);
    }

    /// Whether an error is pending.
    pub fn has_error(&self) -> bool {
        self.error.load(Ordering::SeqCst) != 0
    }

    /// What poll(2) tells of a socket for datagrams that has an error to give.
    pub fn error_events(&self) -> u32 {
        let is_also_urgent = self.is_inert_on(raw::SO_SELECT_ERR_QUEUE);
        events::ERR | if is_also_urgent { events::PRI } else { 0 }
    }

    /// Takes the pending error.
    pub fn take_error(&self) -> Option<Errno> {
        if !self.has_error() {
            return None;
        }
        let error = self.error.swap(0, Ordering::SeqCst);
        (error != 0).then_some(Errno::new(error as u32))
    }

    /// Registers with both queues.
    pub fn wait_on_both(&self, table: &mut PollTable) {
        table.wait_on(&self.readers);
        table.wait_on(&self.writers);
    }
}

/// SO_RCVTIMEO and SO_SNDTIMEO with a negative time: as if each call were not to block.
const NO_PATIENCE: u64 = u64::MAX;

#[inline]
fn timeout(nonblocking: bool, timeout_ns: u64) -> Timeout {
    let nonblocking = nonblocking || timeout_ns == NO_PATIENCE;
    let deadline = (timeout_ns > 0 && !nonblocking).then(|| Deadline::after_ns(timeout_ns));
    Timeout { nonblocking, deadline }
}

/// Something to send.
pub struct Outgoing {
    /// Where to, if the call said so.
    pub to: Option<RawAddress>,
    /// What goes along.
    pub control: Control,
    /// How long to wait.
    pub timeout: Timeout,
    /// Flags of the call.
    pub mode: SendMode,
}

/// A socket of some family. Addresses come as the program gave them. The defaults are right for
/// sockets that do not have the operation.
pub trait Socket: Send + Sync + Any {
    /// What all sockets have.
    fn common(&self) -> &Common;
    /// bind(2).
    fn bind(self: Arc<Self>, who: &Thread, address: &RawAddress) -> Result<()>;
    /// connect(2).
    fn connect(self: Arc<Self>, who: &Thread, address: &RawAddress, timeout: Timeout)
    -> Result<()>;
    /// listen(2).
    fn listen(self: Arc<Self>, _who: &Thread, _backlog: i32) -> Result<()> {
        Err(Errno::EOPNOTSUPP)
    }
    /// accept(2): the new socket.
    fn accept(&self, _timeout: Timeout) -> Result<Arc<dyn Socket>> {
        Err(Errno::EOPNOTSUPP)
    }
    /// Whether it listens (SO_ACCEPTCONN).
    fn is_listening(&self) -> bool {
        false
    }
    /// Gives the socket what sending needs and it may lack: a local address.
    fn prepare_to_send(self: Arc<Self>, _who: &Thread, _what: &Outgoing) -> Result<()> {
        Ok(())
    }
    /// Whether [`Socket::prepare_to_send`] has nothing to do.
    fn is_prepared(&self) -> bool {
        true
    }
    /// Sends a message or stream data. EPIPE means a broken conversation.
    fn send(&self, who: &Thread, source: &mut Source<'_>, what: Outgoing) -> Result<usize>;
    /// Receives.
    fn receive(&self, sink: &mut Sink<'_>, mode: ReceiveMode, how: Timeout) -> Result<Received>;
    /// Takes what came back because nobody took it (MSG_ERRQUEUE), where it was sent, and with
    /// `writer` why. EAGAIN if there is nothing.
    fn receive_undelivered(
        &self,
        _sink: &mut Sink<'_>,
        _writer: Option<&mut Writer>,
    ) -> Result<(Received, Address)> {
        Err(Errno::EAGAIN)
    }

    /// Adds what the family tells of a message that was received, beside what all do.
    fn tell(&self, _received: &Received, _writer: &mut control::Writer) -> Result<()> {
        Ok(())
    }
    /// shutdown(2).
    fn shutdown(&self, receive: bool, send: bool) -> Result<()>;
    /// The last descriptor is gone.
    fn close(&self);
    /// getsockname(2).
    fn local_address(&self) -> Address;
    /// getpeername(2); ENOTCONN.
    fn peer_address(&self) -> Result<Address>;
    /// The name of the peer, whom all that is received is from.
    fn sender(&self) -> Option<Address> {
        None
    }
    /// SO_PEERCRED.
    fn peer_credentials(&self) -> Option<Ucred> {
        None
    }
    /// The state of a TCP socket.
    fn tcp_state(&self) -> Option<TcpState> {
        None
    }
    /// Connections that wait to be accepted.
    fn backlog_len(&self) -> usize {
        0
    }
    /// SO_PEERPIDFD: the process of the peer. ENODATA, EINVAL if it is gone.
    fn peer_process(&self) -> Result<Arc<Process>> {
        Err(Errno::ENODATA)
    }
    /// SO_PEERGROUPS: the peer's supplementary groups.
    fn peer_groups(&self) -> Option<Vec<u32>> {
        None
    }
    /// SO_SNDBUF, as it is shown.
    fn shown_send_buffer(&self) -> usize {
        self.common().send_limit()
    }
    /// The pending error (SO_ERROR), which is told once.
    fn take_error(&self) -> Option<Errno> {
        self.common().take_error()
    }
    /// See [`FileOps::poll`].
    fn poll(&self, table: &mut PollTable) -> u32;
    /// Bytes the next receive can give, bytes sent but not received (FIONREAD, SIOCOUTQ).
    fn queued(&self) -> (usize, usize);
    /// Bytes of memory that what is to be received takes, as far as can be said without waiting.
    fn held_bytes(&self) -> usize {
        0
    }
    /// Calls the function with each descriptor in the messages to be received; false if that cannot
    /// be said at the moment.
    fn each_queued_file(&self, _f: &mut dyn FnMut(&Arc<File>)) -> bool {
        true
    }
    /// Drops the messages to be received: nobody ever will.
    fn forget_queue(&self) {}
    /// SO_SNDBUF or SO_RCVBUF changed.
    fn limits_changed(&self) {}
    /// Whether the next byte is urgent (sockatmark(3)).
    fn is_at_mark(&self) -> bool {
        false
    }
    /// getsockopt(2) below SOL_SOCKET: the value.
    fn get_option(&self, _level: u32, _name: u32) -> Result<options::Value> {
        let has_some = self.common().domain == raw::AF_NETLINK;
        Err(if has_some { Errno::ENOPROTOOPT } else { Errno::EOPNOTSUPP })
    }
    /// Whether the family knows an option below SOL_SOCKET by its number alone: the value of one
    /// that it does not know is not read.
    fn knows_option(&self, _level: u32, _name: u32) -> bool {
        true
    }
    /// setsockopt(2) below SOL_SOCKET.
    fn set_option(&self, _who: &Thread, _level: u32, _name: u32, _value: &[u8]) -> Result<()> {
        let has_none = self.common().domain == raw::AF_UNIX;
        Err(if has_none { Errno::EOPNOTSUPP } else { Errno::ENOPROTOOPT })
    }
}

/// Whether the next byte is urgent (tcp(7)).
const SIOCATMARK: u32 = 0x8905;
/// Who gets signals about it, as F_GETOWN tells (socket(7)).
const FIOGETOWN: u32 = 0x8903;
const SIOCGPGRP: u32 = 0x8904;

/// An open socket.
pub struct SocketFile {
    socket: Arc<dyn Socket>,
    inode: Arc<AnonInode>,
    _counted: Counted<{ accounts::ObjectKind::Socket as usize }>,
}

impl SocketFile {
    /// The socket.
    #[inline]
    pub fn socket(&self) -> &Arc<dyn Socket> {
        &self.socket
    }
}

impl FileOps for SocketFile {
    fn has_io_signals(&self) -> bool {
        true
    }

    fn read_at(&self, file: &File, _offset: u64, sink: &mut Sink<'_>) -> Result<usize> {
        hooks::socket_recvmsg((self.socket.common(), 0))?;
        if sink.left() == 0 {
            return Ok(0);
        }
        let timeout =
            self.socket.common().receive_timeout(file.is_nonblocking() || !sink.may_wait());
        let least = self.socket.common().low_water().min(sink.left());
        let mode = ReceiveMode { least, ..ReceiveMode::default() };
        let received = self.socket.receive(sink, mode, timeout)?;
        self.socket.common().move_peek_offset(&received, false);
        Ok(received.len)
    }

    fn write_at(&self, file: &File, _offset: u64, source: &mut Source<'_>) -> Result<usize> {
        let timeout =
            self.socket.common().send_timeout(file.is_nonblocking() || !source.may_wait());
        let (control, mode) = (Control::default(), SendMode::default());
        send(&current(), &self.socket, source, Outgoing { to: None, control, timeout, mode }, true)
    }

    fn poll(&self, _file: &File, table: &mut PollTable) -> u32 {
        self.socket.poll(table)
    }

    fn ioctl(&self, file: &File, command: u32, argument: u64) -> Result<u64> {
        let (to_receive, to_send) = self.socket.queued();
        let common = self.socket.common();
        let is_unix = common.domain == raw::AF_UNIX;
        let is_netlink = common.domain == raw::AF_NETLINK;
        let value = match command {
            ioctl::FIONREAD | ioctl::TIOCOUTQ if is_netlink => return Err(Errno::ENOTTY),
            ioctl::FIONREAD | ioctl::TIOCOUTQ
                if self.socket.tcp_state().is_some() && self.socket.is_listening() =>
            {
                return Err(Errno::EINVAL);
            }
            ioctl::FIONREAD if is_unix && self.socket.is_listening() => return Err(Errno::EINVAL),
            ioctl::FIONREAD => to_receive,
            ioctl::TIOCOUTQ => to_send,
            SIOCATMARK if common.kind == SocketKind::Stream => {
                usize::from(self.socket.is_at_mark())
            }
            SIOCATMARK if is_unix => return Err(Errno::EOPNOTSUPP),
            FIOGETOWN | SIOCGPGRP => {
                let owner = io_signals::owner_number(file);
                return UserPtr::<i32>::new(argument).write(&owner).map(|()| 0);
            }
            _ => return interface::ioctl(file, command, argument),
        };
        UserPtr::<i32>::new(argument).write(&(value.min(i32::MAX as usize) as i32))?;
        Ok(0)
    }

    fn inode(&self) -> Arc<dyn Inode> {
        self.inode.clone()
    }

    fn held_bytes(&self) -> usize {
        self.socket.held_bytes()
    }

    fn release(&self, _file: &File) {
        self.socket.close();
        hooks::sk_free_security((self.socket.common(),));
    }
}

/// What every call does that sends: asks the policies, prepares the socket, and tells a thread that
/// sends into a broken conversation by SIGPIPE, if `signals` (MSG_NOSIGNAL).
#[inline]
pub fn send(
    who: &Thread,
    socket: &Arc<dyn Socket>,
    source: &mut Source<'_>,
    what: Outgoing,
    signals: bool,
) -> Result<usize> {
    hooks::socket_sendmsg((socket.common(), what.to.as_ref()))?;
    if !socket.is_prepared() {
        socket.clone().prepare_to_send(who, &what)?;
    }
    let result = socket.send(who, source, what);
    if result == Err(Errno::EPIPE) && signals && socket.common().kind != SocketKind::Dgram {
        crate::io::signals::broken_pipe();
    }
    result
}

/// Permission bits of a new socket.
const PERMISSIONS: u32 = 0o777;

/// A file around a socket, which belongs to a user and a group.
#[must_use]
pub fn file_for(socket: Arc<dyn Socket>, owner: (u32, u32), nonblocking: bool) -> Arc<File> {
    let inode = AnonInode::of_socket(PERMISSIONS, socket.common().protocol_name(), owner);
    socket.common().inode.call_once(|| Arc::downgrade(&inode));
    let flags = abi::general::O_RDWR | if nonblocking { abi::general::O_NONBLOCK } else { 0 };
    File::new(Arc::new(SocketFile { socket, inode, _counted: Counted::new() }), flags, None)
}

/// Boxes what goes along with data, if there is anything.
fn boxed(control: Control, from: Option<Address>) -> Option<Box<Info>> {
    let is_empty = control.files.is_empty() && control.credentials.is_none() && from.is_none();
    (!is_empty).then(|| Box::new(Info { control, from, ..Info::default() }))
}

/// The mask of a socket that is neither connected nor listening.
pub const UNCONNECTED: u32 = events::WRITABLE | events::HUP;
