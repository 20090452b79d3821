//! getsockopt(2) and setsockopt(2) at the level SOL_SOCKET (socket(7)).

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use abi::{Errno, Result, net as raw};
use machine::uaccess;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{BUFFER_DEFAULT, Common, RECEIVE_BUFFER_MIN, SEND_BUFFER_MIN, Socket, hooks};
use crate::base::time::NS_PER_SEC;
use crate::base::user::{UserPtr, efault};

/// Largest buffer a program may ask for, bytes (net.core.wmem_max, doubled).
const BUFFER_MAX: usize = 2 * BUFFER_DEFAULT;
/// Longest option value that is looked at.
const VALUE_MAX: usize = 128;

/// `struct timeval` (gettimeofday(2)).
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy)]
#[repr(C)]
struct Timeval {
    sec: i64,
    usec: i64,
}

/// Options that are kept and shown, and change nothing here, with their bits.
const INERT: [(u32, u32); 9] = [
    (raw::SO_DEBUG, 1),
    (raw::SO_DONTROUTE, 1 << 1),
    (raw::SO_BROADCAST, 1 << 2),
    (raw::SO_KEEPALIVE, 1 << 3),
    (raw::SO_OOBINLINE, 1 << 4),
    (raw::SO_TIMESTAMP_OLD, 1 << 5),
    (raw::SO_TIMESTAMPNS_OLD, 1 << 6),
    (raw::SO_ZEROCOPY, 1 << 7),
    (raw::SO_NO_CHECK, 1 << 8),
];

/// setsockopt(2): `len` bytes at `address`.
pub fn set(socket: &Arc<dyn Socket>, level: u32, name: u32, address: u64, len: i32) -> Result<()> {
    let len = usize::try_from(len).map_err(|_| Errno::EINVAL)?;
    let mut value = [0; VALUE_MAX];
    let value = &mut value[..len.min(VALUE_MAX)];
    uaccess::read_bytes(address, value).map_err(efault)?;
    if level != raw::SOL_SOCKET {
        return socket.set_option(level, name, value);
    }
    let number = match *value {
        [a, b, c, d, ..] => i32::from_ne_bytes([a, b, c, d]),
        _ => return Err(Errno::EINVAL),
    };
    set_common(socket, name, number, value)
}

fn set_common(socket: &Arc<dyn Socket>, name: u32, number: i32, value: &[u8]) -> Result<()> {
    let common = socket.common();
    let is_on = number != 0;
    match name {
        raw::SO_SNDBUF | raw::SO_SNDBUFFORCE => {
            common.send_buffer.store(buffer(number, SEND_BUFFER_MIN), Ordering::Relaxed);
            socket.limits_changed();
        }
        raw::SO_RCVBUF | raw::SO_RCVBUFFORCE => {
            common.receive_buffer.store(buffer(number, RECEIVE_BUFFER_MIN), Ordering::Relaxed);
            socket.limits_changed();
        }
        raw::SO_RCVTIMEO_OLD | raw::SO_RCVTIMEO_NEW => {
            common.receive_timeout_ns.store(timeout_ns(value)?, Ordering::Relaxed);
        }
        raw::SO_SNDTIMEO_OLD | raw::SO_SNDTIMEO_NEW => {
            common.send_timeout_ns.store(timeout_ns(value)?, Ordering::Relaxed);
        }
        raw::SO_REUSEADDR => common.reuse_address.store(is_on, Ordering::Relaxed),
        raw::SO_REUSEPORT => common.reuse_port.store(is_on, Ordering::Relaxed),
        raw::SO_PASSCRED if common.domain == raw::AF_UNIX => {
            common.passes_credentials.store(is_on, Ordering::Relaxed);
        }
        raw::SO_PASSCRED => return Err(Errno::EOPNOTSUPP),
        raw::SO_LINGER => {
            let Ok((linger, _)) = <[i32; 2]>::read_from_prefix(value) else {
                return Err(Errno::EINVAL);
            };
            let seconds = if linger[0] == 0 { -1 } else { linger[1].max(0) };
            common.linger_seconds.store(seconds, Ordering::Relaxed);
        }
        raw::SO_PRIORITY | raw::SO_MARK | raw::SO_RCVLOWAT | raw::SO_BUSY_POLL => {}
        raw::SO_TYPE | raw::SO_ERROR | raw::SO_ACCEPTCONN | raw::SO_DOMAIN | raw::SO_PROTOCOL => {
            return Err(Errno::ENOPROTOOPT);
        }
        _ => {
            let (_, bit) = inert(name).ok_or(Errno::ENOPROTOOPT)?;
            if is_on {
                common.inert_options.fetch_or(bit, Ordering::Relaxed);
            } else {
                common.inert_options.fetch_and(!bit, Ordering::Relaxed);
            }
        }
    }
    Ok(())
}

fn inert(name: u32) -> Option<(u32, u32)> {
    INERT.iter().copied().find(|(option, _)| *option == name)
}

/// A buffer size as the kernel keeps it: twice what was asked for, within bounds.
fn buffer(asked: i32, least: usize) -> usize {
    let asked = (asked as u32 as usize).min(BUFFER_MAX / 2);
    (asked * 2).max(least)
}

fn timeout_ns(value: &[u8]) -> Result<u64> {
    let (timeval, _) = Timeval::read_from_prefix(value).map_err(|_| Errno::EINVAL)?;
    if !(0..1_000_000).contains(&timeval.usec) {
        return Err(Errno::EDOM);
    }
    // A time in the past: calls give up at once, where zero would mean for ever.
    let Ok(sec) = u64::try_from(timeval.sec) else { return Ok(super::NO_PATIENCE) };
    Ok(sec.saturating_mul(NS_PER_SEC).saturating_add(timeval.usec as u64 * 1000))
}

/// getsockopt(2): the value, cut to the capacity that `len_at` holds; `len_at` then its length.
pub fn get(
    socket: &Arc<dyn Socket>,
    level: u32,
    name: u32,
    address: u64,
    len_at: u64,
) -> Result<()> {
    let len_at = UserPtr::<i32>::new(len_at);
    let capacity = usize::try_from(len_at.read()?).map_err(|_| Errno::EINVAL)?;
    let put = |value: &[u8]| {
        let fits = value.len().min(capacity);
        uaccess::write_bytes(address, &value[..fits]).map_err(efault)?;
        len_at.write(&(fits as i32))
    };
    if level != raw::SOL_SOCKET {
        return put(&socket.get_option(level, name)?.to_ne_bytes());
    }
    let common = socket.common();
    match name {
        raw::SO_LINGER => {
            let seconds = common.linger_seconds.load(Ordering::Relaxed);
            put([i32::from(seconds >= 0), seconds.max(0)].as_bytes())
        }
        raw::SO_RCVTIMEO_OLD | raw::SO_RCVTIMEO_NEW => {
            put(timeval(common.receive_timeout_ns.load(Ordering::Relaxed)).as_bytes())
        }
        raw::SO_SNDTIMEO_OLD | raw::SO_SNDTIMEO_NEW => {
            put(timeval(common.send_timeout_ns.load(Ordering::Relaxed)).as_bytes())
        }
        raw::SO_PEERCRED if common.domain == raw::AF_UNIX => {
            let unknown = super::Ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
            put(socket.peer_credentials().unwrap_or(unknown).as_bytes())
        }
        raw::SO_PEERNAME => {
            let peer = socket.peer_address()?.to_raw();
            put(peer.bytes())
        }
        raw::SO_PEERSEC => {
            hooks::socket_getpeersec_stream((common,))?;
            Err(Errno::ENOPROTOOPT)
        }
        _ => put(&get_int(socket, common, name)?.to_ne_bytes()),
    }
}

fn timeval(ns: u64) -> Timeval {
    let ns = if ns == super::NO_PATIENCE { 0 } else { ns };
    let usec = (ns % NS_PER_SEC).div_ceil(1000) as i64;
    Timeval { sec: (ns / NS_PER_SEC) as i64, usec }
}

fn get_int(socket: &Arc<dyn Socket>, common: &Common, name: u32) -> Result<i32> {
    let flag = |flag: &core::sync::atomic::AtomicBool| i32::from(flag.load(Ordering::Relaxed));
    Ok(match name {
        raw::SO_TYPE => common.kind as i32,
        raw::SO_DOMAIN => common.domain as i32,
        raw::SO_PROTOCOL => common.protocol as i32,
        raw::SO_ERROR => common.take_error().map_or(0, abi::Errno::number),
        raw::SO_ACCEPTCONN => i32::from(socket.is_listening()),
        raw::SO_SNDBUF => common.send_limit() as i32,
        raw::SO_RCVBUF => common.receive_limit() as i32,
        raw::SO_REUSEADDR => flag(&common.reuse_address),
        raw::SO_REUSEPORT => flag(&common.reuse_port),
        raw::SO_PASSCRED => flag(&common.passes_credentials),
        raw::SO_RCVLOWAT | raw::SO_SNDLOWAT => 1,
        raw::SO_PRIORITY | raw::SO_MARK | raw::SO_BUSY_POLL => 0,
        raw::SO_INCOMING_CPU => machine::percpu::cpu_id() as i32,
        _ => {
            let (_, bit) = inert(name).ok_or(Errno::ENOPROTOOPT)?;
            i32::from(common.inert_options.load(Ordering::Relaxed) & bit != 0)
        }
    })
}
