//! The socket calls (socket(2) and its relatives).

use alloc::sync::Arc;

use abi::{Errno, Result, general, net as raw};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::base::io::{IOV_MAX, MAX_TRANSFER, Sink, Source, read_iovec};
use crate::base::time::{Deadline, TimeSpec, now_ns, realtime_ns};
use crate::base::user::UserPtr;
use crate::io::{file_at, give_pair};
use crate::net::address::{Address, RawAddress};
use crate::net::channel::{ReceiveMode, Received, SendMode};
use crate::net::control::{self, Control, Passes, Ucred, Writer};
use crate::net::options::{sender, stamps};
use crate::net::{
    self, Common, Outgoing, Socket, SocketFile, SocketKind, file_for, hooks, options, unix,
};
use crate::process::{Thread, current, give_file};
use crate::security::Subject;
use crate::vfs::File;

const SOCK_CLOEXEC: u32 = general::O_CLOEXEC;
const SOCK_NONBLOCK: u32 = general::O_NONBLOCK;
/// Messages of one sendmmsg(2) or recvmmsg(2).
const MESSAGES_MAX: usize = IOV_MAX;

/// `struct msghdr` (sendmsg(2)).
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy)]
#[repr(C)]
pub struct MsgHdr {
    name: u64,
    name_len: u32,
    _pad: u32,
    vector: u64,
    vector_len: u64,
    control: u64,
    control_len: u64,
    flags: u32,
    _pad2: u32,
}

/// `struct mmsghdr` (sendmmsg(2)).
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy)]
#[repr(C)]
pub struct MMsgHdr {
    header: MsgHdr,
    len: u32,
    _pad: u32,
}

/// The socket behind a descriptor, while its file is held. EBADF, ENOTSOCK.
fn socket_of(file: &Arc<File>) -> Result<&Arc<dyn Socket>> {
    if file.flags() & general::O_PATH != 0 {
        return Err(Errno::EBADF);
    }
    Ok(file.ops_as::<SocketFile>().ok_or(Errno::ENOTSOCK)?.socket())
}

fn split_kind(kind: u32) -> Result<(u32, bool, bool)> {
    let flags = kind & !0xf;
    if flags & !(SOCK_CLOEXEC | SOCK_NONBLOCK) != 0 {
        return Err(Errno::EINVAL);
    }
    Ok((kind & 0xf, flags & SOCK_CLOEXEC != 0, flags & SOCK_NONBLOCK != 0))
}

/// Whom a socket belongs to that the caller makes.
fn owner(who: &Subject) -> (u32, u32) {
    (who.fsuid, who.fsgid)
}

/// socket(2).
pub fn socket(domain: u32, kind_at: u32, protocol: u32) -> Result<u64> {
    let (kind, close_on_exec, nonblocking) = split_kind(kind_at)?;
    let who = current().subject();
    hooks::socket_create((&who, domain, kind, protocol))?;
    let socket = crate::sockets::create(domain, kind, protocol)?;
    hooks::socket_post_create((&who, socket.common()))?;
    give_file(file_for(socket, owner(&who), nonblocking), close_on_exec)
}

/// socketpair(2).
pub fn socketpair(family: u32, kind_at: u32, protocol: u32, fds: UserPtr<[i32; 2]>) -> Result<u64> {
    let (kind, close_on_exec, nonblocking) = split_kind(kind_at)?;
    // The descriptors are told first, as they would be: then nothing has to be undone.
    let thread = current();
    let process = &thread.process;
    fds.write(&process.files().next_two(process.fd_limit())?.map(|fd| fd as i32))?;
    let who = thread.subject();
    hooks::socket_create((&who, family, kind, protocol))?;
    if family != raw::AF_UNIX {
        drop(crate::sockets::create(family, kind, protocol)?);
        return Err(Errno::EOPNOTSUPP);
    }
    hooks::sk_alloc_security((raw::AF_UNIX,))?;
    hooks::sk_alloc_security((raw::AF_UNIX,))?;
    let [first, second] = unix::pair(&thread, crate::sockets::kind_of(kind)?, protocol)?;
    hooks::socket_post_create((&who, first.common()))?;
    hooks::socket_post_create((&who, second.common()))?;
    hooks::socket_socketpair((first.common(), second.common()))?;
    let [first, second] = [first, second].map(|end| file_for(end, owner(&who), nonblocking));
    give_pair(first, second, close_on_exec, |pair| fds.write(pair))
}

/// bind(2).
pub fn bind(fd: u64, address: u64, length: u64) -> Result<u64> {
    let file = file_at(fd)?;
    let socket = socket_of(&file)?;
    let address = RawAddress::read(address, length)?;
    let who = current();
    hooks::socket_bind((&who.subject(), socket.common(), &address))?;
    socket.clone().bind(&who, &address)?;
    Ok(0)
}

/// connect(2).
pub fn connect(fd: u64, address: u64, length: u64) -> Result<u64> {
    let file = file_at(fd)?;
    let address = RawAddress::read(address, length)?;
    let socket = socket_of(&file)?;
    let who = current();
    hooks::socket_connect((&who.subject(), socket.common(), &address))?;
    let timeout = socket.common().send_timeout(file.is_nonblocking());
    socket.clone().connect(&who, &address, timeout)?;
    Ok(0)
}

/// listen(2).
pub fn listen(fd: u64, backlog: i32) -> Result<u64> {
    let file = file_at(fd)?;
    let socket = socket_of(&file)?;
    hooks::socket_listen((socket.common(), backlog))?;
    socket.clone().listen(&current(), backlog)?;
    Ok(0)
}

/// accept(2).
pub fn accept(fd: u64, address: u64, len: u64) -> Result<u64> {
    accept4(fd, address, len, 0)
}

/// accept4(2).
pub fn accept4(fd: u64, address: u64, len: u64, flags: u32) -> Result<u64> {
    let file = file_at(fd)?;
    if flags & !(SOCK_CLOEXEC | SOCK_NONBLOCK) != 0 {
        return Err(Errno::EINVAL);
    }
    // Without room for its descriptor no connection is taken, nor waited for.
    let process = &current().process;
    if process.files().is_full(process.fd_limit()) {
        return Err(Errno::EMFILE);
    }
    let socket = socket_of(&file)?;
    hooks::socket_accept((socket.common(),))?;
    let timeout = socket.common().receive_timeout(file.is_nonblocking());
    let new = socket.accept(timeout)?;
    let peer = (address != 0).then(|| new.peer_address());
    let new = file_for(new, owner(&current().subject()), flags & SOCK_NONBLOCK != 0);
    if let Some(peer) = peer {
        // A peer that is gone already has no address; the connection is still given.
        peer.unwrap_or(Address::Unix(None)).write_with_len(address, len)?;
    }
    give_file(new, flags & SOCK_CLOEXEC != 0)
}

/// getsockname(2).
pub fn getsockname(fd: u64, address: u64, length: u64) -> Result<u64> {
    let file = file_at(fd)?;
    let socket = socket_of(&file)?;
    hooks::socket_getsockname((socket.common(),))?;
    socket.local_address().write_with_len(address, length)?;
    Ok(0)
}

/// getpeername(2).
pub fn getpeername(fd: u64, address: u64, length: u64) -> Result<u64> {
    let file = file_at(fd)?;
    let socket = socket_of(&file)?;
    hooks::socket_getpeername((socket.common(),))?;
    socket.peer_address()?.write_with_len(address, length)?;
    Ok(0)
}

/// shutdown(2).
pub fn shutdown(fd: u64, how: u32) -> Result<u64> {
    let file = file_at(fd)?;
    let socket = socket_of(&file)?;
    let (receive, send) = match how {
        0 => (true, false),
        1 => (false, true),
        2 => (true, true),
        // That there is nothing to shut down is said first.
        _ if socket.common().domain == raw::AF_NETLINK => return Err(Errno::EOPNOTSUPP),
        _ => return Err(Errno::EINVAL),
    };
    hooks::socket_shutdown((socket.common(),))?;
    socket.shutdown(receive, send)?;
    Ok(0)
}

/// setsockopt(2).
pub fn setsockopt(fd: u64, level: u32, name: u32, value: u64, length: i32) -> Result<u64> {
    let file = file_at(fd)?;
    let socket = socket_of(&file)?;
    hooks::socket_setsockopt((socket.common(), level, name))?;
    options::set(&current(), socket, level, name, value, length)?;
    Ok(0)
}

/// getsockopt(2).
pub fn getsockopt(fd: u64, level: u32, name: u32, value: u64, length: u64) -> Result<u64> {
    let file = file_at(fd)?;
    let socket = socket_of(&file)?;
    hooks::socket_getsockopt((socket.common(), level, name))?;
    options::get(socket, level, name, value, length)?;
    Ok(0)
}

// ------------------------------------------------------------------------------------------------
// Sending

/// A stream connects before it sends (sendto(2), tcp(7)).
const MSG_FASTOPEN: u32 = 0x2000_0000;

fn send_one(
    who: &Thread,
    file: &Arc<File>,
    source: &mut Source<'_>,
    to: Option<RawAddress>,
    control: Control,
    flags: u32,
) -> Result<u64> {
    let socket = socket_of(file)?;
    let (more, urgent) = (flags & raw::MSG_MORE != 0, flags & raw::MSG_OOB != 0);
    let connects = flags & MSG_FASTOPEN != 0;
    let mode = SendMode { more, urgent, connects, ..SendMode::default() };
    let nonblocking = file.is_nonblocking() || flags & raw::MSG_DONTWAIT != 0;
    let timeout = socket.common().send_timeout(nonblocking);
    let what = Outgoing { to, control, timeout, mode };
    let signals = flags & raw::MSG_NOSIGNAL == 0;
    net::send(who, socket, source, what, signals).map(|len| len as u64)
}

/// Bytes of a buffer that one call moves. EFAULT, before all else, if it is no program's memory.
fn check_buffer(buffer: u64, count: u64) -> Result<usize> {
    let count = count.min(MAX_TRANSFER as u64) as usize;
    let is_good = UserPtr::<u8>::new(buffer).is_user_range(count);
    if is_good { Ok(count) } else { Err(Errno::EFAULT) }
}

/// sendto(2), which is also send(2).
pub fn sendto(
    fd: u64,
    buffer: u64,
    count: u64,
    flags: u32,
    address: u64,
    length: u64,
) -> Result<u64> {
    let count = check_buffer(buffer, count)?;
    let file = file_at(fd)?;
    // An address without bytes is none, but to IP.
    let domain = socket_of(&file)?.common().domain;
    let is_inet = matches!(domain, raw::AF_INET | raw::AF_INET6);
    let has_one = address != 0 && (length as i32 != 0 || is_inet);
    let to = if has_one { Some(RawAddress::read(address, length)?) } else { None };
    let mut source = Source::user(buffer, count);
    send_one(&current(), &file, &mut source, to, Control::default(), flags)
}

fn send_header(who: &Thread, file: &Arc<File>, header: &MsgHdr, flags: u32) -> Result<u64> {
    socket_of(file)?;
    let to = match name_len(header)? {
        len if header.name == 0 || len == 0 => None,
        len => Some(RawAddress::read(header.name, u64::from(len))?),
    };
    let control = if header.control == 0 || header.control_len == 0 {
        Control::default()
    } else {
        let common = socket_of(file)?.common();
        let passes = Passes::of(common.domain);
        let is_unix = passes == Passes::All;
        match control::read(who, header.control, header.control_len, passes) {
            // What cannot be read at all is told at once.
            Err(error @ (Errno::EFAULT | Errno::ENOBUFS)) => return Err(error),
            Err(error) if !is_unix || common.kind == SocketKind::SeqPacket => {
                Control { error: Some(error), ..Control::default() }
            }
            control => control?,
        }
    };
    let vector = read_message_vector(header)?;
    send_one(who, file, &mut Source::user_vector(&vector), to, control, flags)
}

fn read_message_vector(header: &MsgHdr) -> Result<alloc::vec::Vec<crate::base::io::IoVec>> {
    if header.vector_len > IOV_MAX as u64 {
        return Err(Errno::EMSGSIZE);
    }
    read_iovec(header.vector, header.vector_len)
}

/// The flag that says a header is one of 32 bits, which only the kernel itself sets.
const MSG_CMSG_COMPAT: u32 = 1 << 31;

/// EINVAL for flags that no program may set.
fn check_message_flags(flags: u32) -> Result<()> {
    if flags & MSG_CMSG_COMPAT != 0 { Err(Errno::EINVAL) } else { Ok(()) }
}

/// Longest address of a header: what is said beyond it is cut off (`struct sockaddr_storage`).
const NAME_LEN_MAX: u32 = 128;

/// The length of a header's name. EINVAL if it is negative.
fn name_len(header: &MsgHdr) -> Result<u32> {
    if header.name != 0 && header.name_len as i32 <= -1 {
        return Err(Errno::EINVAL);
    }
    Ok(header.name_len.min(NAME_LEN_MAX))
}

/// sendmsg(2).
pub fn sendmsg(fd: u64, message: UserPtr<MsgHdr>, flags: u32) -> Result<u64> {
    check_message_flags(flags)?;
    let file = file_at(fd)?;
    socket_of(&file)?;
    let header = message.read()?;
    send_header(&current(), &file, &header, flags)
}

/// sendmmsg(2).
pub fn sendmmsg(fd: u64, messages: UserPtr<MMsgHdr>, count: u32, flags: u32) -> Result<u64> {
    check_message_flags(flags)?;
    let file = file_at(fd)?;
    // Whether or not there is anything to send.
    socket_of(&file)?;
    let count = (count as usize).min(MESSAGES_MAX);
    let who = current();
    for index in 0..count {
        let at = messages.nth(index);
        let sent = at
            .read()
            .and_then(|message| send_header(&who, &file, &message.header, flags))
            .and_then(|len| len_of(at).write(&(len as u32)));
        if let Err(error) = sent {
            return if index > 0 { Ok(index as u64) } else { Err(error) };
        }
    }
    Ok(count as u64)
}

/// Where a message's length is told.
fn len_of(message: UserPtr<MMsgHdr>) -> UserPtr<u32> {
    UserPtr::new(message.address() + core::mem::offset_of!(MMsgHdr, len) as u64)
}

// ------------------------------------------------------------------------------------------------
// Receiving

fn receive_one(file: &Arc<File>, sink: &mut Sink<'_>, flags: u32) -> Result<Received> {
    let socket = socket_of(file)?;
    let common = socket.common();
    let is_tcp = common.kind == SocketKind::Stream && common.protocol == raw::IPPROTO_TCP as u32;
    let wants_urgent = flags & raw::MSG_OOB != 0;
    let is_unix = common.domain == raw::AF_UNIX;
    if wants_urgent && common.domain == raw::AF_NETLINK {
        return Err(Errno::EOPNOTSUPP);
    }
    if wants_urgent && common.kind == SocketKind::Raw {
        return Err(Errno::EOPNOTSUPP);
    }
    if wants_urgent && is_unix && common.kind != SocketKind::Stream {
        if common.kind == SocketKind::SeqPacket {
            socket.peer_address()?;
        }
        return Err(Errno::EOPNOTSUPP);
    }
    let wants_all = flags & raw::MSG_WAITALL != 0;
    let mode = ReceiveMode {
        peek: flags & raw::MSG_PEEK != 0,
        offset: common.peek_offset(),
        least: if wants_all { sink.left() } else { common.low_water().min(sink.left()) },
        discard: is_tcp && flags & raw::MSG_TRUNC != 0,
        urgent: wants_urgent && (is_tcp || is_unix),
    };
    hooks::socket_recvmsg((common, flags))?;
    let nonblocking = file.is_nonblocking() || flags & raw::MSG_DONTWAIT != 0;
    let received = socket.receive(sink, mode, common.receive_timeout(nonblocking))?;
    common.move_peek_offset(&received, mode.peek);
    Ok(received)
}

/// Whether the queue of errors is asked for: unix and netlink sockets have none, and the flag means
/// nothing to them.
fn wants_errors(file: &Arc<File>, flags: u32) -> Result<bool> {
    let has_errors = ![raw::AF_UNIX, raw::AF_NETLINK].contains(&socket_of(file)?.common().domain);
    Ok(flags & raw::MSG_ERRQUEUE != 0 && has_errors)
}

/// What the call returns: with MSG_TRUNC the whole length of a message.
fn result_len(received: &Received, flags: u32) -> u64 {
    let wants_full = flags & raw::MSG_TRUNC != 0 && received.is_message;
    (if wants_full { received.full_len } else { received.len }) as u64
}

/// Whom something is from: a datagram's sender, or the peer, if it has a name.
fn sender_of(file: &Arc<File>, received: &Received) -> Result<Option<Address>> {
    let known = received.info.as_ref().and_then(|info| info.from.clone());
    let socket = socket_of(file)?;
    // Who asked for nothing is told whose bytes are waiting.
    let is_end = || received.len == 0 && !received.is_message && socket.queued().0 == 0;
    if known.is_some() || is_end() {
        return Ok(known);
    }
    Ok(socket.sender())
}

/// recvfrom(2), which is also recv(2).
pub fn recvfrom(
    fd: u64,
    buffer: u64,
    count: u64,
    flags: u32,
    address: u64,
    length: u64,
) -> Result<u64> {
    let count = check_buffer(buffer, count)?;
    let file = file_at(fd)?;
    let mut sink = Sink::user(buffer, count);
    if wants_errors(&file, flags)? {
        let (received, to) = socket_of(&file)?.receive_undelivered(&mut sink, None)?;
        if address != 0 {
            to.write_with_len(address, length)?;
        }
        return Ok(received.len as u64);
    }
    let received = receive_one(&file, &mut sink, flags)?;
    if address != 0 {
        match sender_of(&file, &received)? {
            Some(from) => from.write_with_len(address, length)?,
            None => {
                let at = UserPtr::<i32>::new(length);
                if at.read()? < 0 {
                    return Err(Errno::EINVAL);
                }
                at.write(&0)?;
            }
        }
    }
    Ok(result_len(&received, flags))
}

fn receive_header(file: &Arc<File>, at: UserPtr<MsgHdr>, flags: u32) -> Result<u64> {
    let header = at.read()?;
    name_len(&header)?;
    let vector = read_message_vector(&header)?;
    let mut sink = Sink::user_vector(&vector);
    let mut writer = Writer::new(header.control, header.control_len);
    let mut flags_out = flags & raw::MSG_CMSG_CLOEXEC;
    let (received, from) = if wants_errors(file, flags)? {
        flags_out |= raw::MSG_ERRQUEUE;
        let socket = socket_of(file)?;
        let (received, to) = socket.receive_undelivered(&mut sink, Some(&mut writer))?;
        (received, Some(to))
    } else {
        let received = receive_one(file, &mut sink, flags);
        if matches!(received, Err(Errno::EAGAIN | Errno::ECONNRESET)) {
            // What came along with nothing is told all the same.
            put_control(file, &Received::default(), flags, &mut writer)?;
        }
        let received = received?;
        put_control(file, &received, flags, &mut writer)?;
        let from = sender_of(file, &received)?;
        (received, from)
    };
    let name_len = match from {
        Some(from) if header.name != 0 => from.write(header.name, header.name_len as usize)?,
        _ => 0,
    };
    if received.full_len > received.len {
        flags_out |= raw::MSG_TRUNC;
    }
    if writer.truncated {
        flags_out |= raw::MSG_CTRUNC;
    }
    if received.is_urgent {
        flags_out |= raw::MSG_OOB;
    }
    let field = |offset: usize| at.address() + offset as u64;
    if header.name != 0 {
        UserPtr::<u32>::new(field(core::mem::offset_of!(MsgHdr, name_len)))
            .write(&(name_len as u32))?;
    }
    UserPtr::<u64>::new(field(core::mem::offset_of!(MsgHdr, control_len))).write(&writer.used)?;
    UserPtr::<u32>::new(field(core::mem::offset_of!(MsgHdr, flags))).write(&flags_out)?;
    Ok(result_len(&received, flags))
}

fn put_control(
    file: &Arc<File>,
    received: &Received,
    flags: u32,
    writer: &mut Writer,
) -> Result<()> {
    let common = socket_of(file)?.common();
    let wants = common.passes_sender.load(core::sync::atomic::Ordering::Relaxed);
    let info = received.info.as_ref();
    let is_stream = common.domain == raw::AF_UNIX && common.kind == SocketKind::Stream;
    let is_nothing = received.len == 0 && !received.is_message;
    // A stream without bytes, or with an error, names a sender of zeros.
    let unknown = if is_nothing { Ucred { pid: 0, uid: 0, gid: 0 } } else { Ucred::UNKNOWN };
    let from = info.and_then(|info| info.control.credentials).unwrap_or(unknown);
    let has_sender = !is_nothing || is_stream && flags & raw::MSG_OOB == 0;
    if has_sender && wants & sender::CREDENTIALS != 0 {
        writer.put(raw::SOL_SOCKET, raw::SCM_CREDENTIALS, from.as_bytes())?;
    }
    if let Some(info) = info {
        writer.put_files(
            &current().process,
            &info.control.files,
            flags & raw::MSG_CMSG_CLOEXEC != 0,
        )?;
    }
    if has_sender && wants & sender::PROCESS != 0 {
        writer.put_process(from.pid)?;
    }
    if received.is_message {
        put_stamps(common, received, writer)?;
    }
    socket_of(file)?.tell(received, writer)
}

/// The time of a message, and how many were lost, as the receiver asked for (socket(7)).
fn put_stamps(common: &Common, received: &Received, writer: &mut Writer) -> Result<()> {
    let wanted = common.stamps();
    if wanted & (stamps::MICROSECONDS | stamps::NANOSECONDS) != 0 {
        let known =
            received.info.as_ref().and_then(|info| info.packet).map(|packet| packet.time_ns);
        // Who asked only after it came gets the time of asking, as on Linux.
        let time = TimeSpec::from_ns(known.filter(|ns| *ns != 0).unwrap_or_else(realtime_ns));
        let is_new = wanted & stamps::NEW != 0;
        let (kind, fraction) = match (wanted & stamps::MICROSECONDS != 0, is_new) {
            (true, false) => (raw::SO_TIMESTAMP_OLD, time.nsec / 1000),
            (true, true) => (raw::SO_TIMESTAMP_NEW, time.nsec / 1000),
            (false, false) => (raw::SO_TIMESTAMPNS_OLD, time.nsec),
            (false, true) => (raw::SO_TIMESTAMPNS_NEW, time.nsec),
        };
        writer.put(raw::SOL_SOCKET, kind, [time.sec, fraction].as_bytes())?;
    }
    let lost = common.lost.load(core::sync::atomic::Ordering::Relaxed);
    if wanted & stamps::LOST != 0 && lost > 0 {
        writer.put(raw::SOL_SOCKET, raw::SO_RXQ_OVFL, &lost.to_ne_bytes())?;
    }
    Ok(())
}

/// recvmsg(2).
pub fn recvmsg(fd: u64, message: u64, flags: u32) -> Result<u64> {
    check_message_flags(flags)?;
    let file = file_at(fd)?;
    socket_of(&file)?;
    receive_header(&file, UserPtr::new(message), flags)
}

/// MSG_WAITFORONE (recvmmsg(2)).
const MSG_WAITFORONE: u32 = 0x10000;

/// recvmmsg(2). As on Linux the timeout is only looked at after each message.
pub fn recvmmsg(
    fd: u64,
    messages: UserPtr<MMsgHdr>,
    count: u32,
    flags: u32,
    timeout: UserPtr<TimeSpec>,
) -> Result<u64> {
    let timeout = timeout.non_null();
    let deadline = match timeout {
        Some(timespec) => Some(Deadline::after_ns(timespec.read()?.to_ns()?)),
        None => None,
    };
    check_message_flags(flags)?;
    let file = file_at(fd)?;
    let common = socket_of(&file)?.common();
    if flags & raw::MSG_ERRQUEUE == 0
        && let Some(error) = common.take_error()
    {
        return Err(error);
    }
    let count = (count as usize).min(MESSAGES_MAX);
    let mut flags = flags;
    let mut done = 0;
    while done < count {
        let at = messages.nth(done);
        let received = receive_header(&file, at.cast(), flags & !MSG_WAITFORONE)
            .and_then(|len| len_of(at).write(&(len as u32)));
        match received {
            Ok(()) => done += 1,
            Err(error) if done > 0 => {
                // What ended it is told next time, if it was more than that there is nothing.
                if error != Errno::EAGAIN {
                    common.set_error(error);
                }
                break;
            }
            Err(error) => return Err(error),
        }
        // One urgent byte is all there is.
        if flags & raw::MSG_OOB != 0 && common.kind == SocketKind::Stream {
            break;
        }
        if flags & MSG_WAITFORONE != 0 {
            flags |= raw::MSG_DONTWAIT;
        }
        if deadline.is_some_and(Deadline::has_passed) {
            break;
        }
    }
    if let (Some(timespec), Some(deadline)) = (timeout, deadline) {
        timespec.write(&TimeSpec::from_ns(deadline.0.saturating_sub(now_ns())))?;
    }
    Ok(done as u64)
}
