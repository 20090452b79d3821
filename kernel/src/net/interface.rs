//! What programs can ask about the one network interface, `lo` (netdevice(7)).

use abi::{Errno, Result, ioctl as raw};
use formats::{rtnetlink::Interface, sockaddr};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::base::user::UserPtr;
use crate::vfs::File;

/// Up, running, for loopback (IFF_*, ARPHRD_LOOPBACK).
pub const LO: Interface =
    Interface { name: b"lo", index: 1, flags: 0x1 | 0x8 | 0x40, mtu: 65536, hardware: 772 };

/// `struct ifreq` (netdevice(7)).
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy)]
#[repr(C)]
struct IfReq {
    name: [u8; 16],
    value: [u8; 24],
}

/// `struct ifconf` (netdevice(7)).
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy)]
#[repr(C)]
struct IfConf {
    len: i32,
    _pad: u32,
    at: u64,
}

/// The ioctls of sockets that are about interfaces; ENOTTY for others.
pub fn ioctl(_file: &File, command: u32, argument: u64) -> Result<u64> {
    match command {
        raw::SIOCGIFCONF => list(argument),
        raw::SIOCGIFNAME => {
            let at = UserPtr::<IfReq>::new(argument);
            let mut request = at.read()?;
            if request.value[..4] != LO.index.to_ne_bytes() {
                return Err(Errno::ENODEV);
            }
            request.name = padded_name();
            at.write(&request)?;
            Ok(0)
        }
        raw::SIOCGIFFLAGS
        | raw::SIOCGIFADDR
        | raw::SIOCGIFNETMASK
        | raw::SIOCGIFBRDADDR
        | raw::SIOCGIFHWADDR
        | raw::SIOCGIFMTU
        | raw::SIOCGIFINDEX
        | raw::SIOCGIFTXQLEN => ask(command, argument),
        // What could be about an interface is read before it is known that it is not.
        _ if command >> 8 & 0xff == SOCKET_TYPE && !is_of_no_interface(command) => {
            UserPtr::<IfReq>::new(argument).read()?;
            Err(Errno::ENOTTY)
        }
        _ => Err(Errno::ENOTTY),
    }
}

/// The type of the ioctls of sockets.
const SOCKET_TYPE: u32 = 0x89;

/// Those that Linux answers before: SIOCGSTAMP, SIOCGSTAMPNS, SIOCGSKNS.
fn is_of_no_interface(command: u32) -> bool {
    matches!(command, 0x8906 | 0x8907 | 0x894c)
}

fn padded_name() -> [u8; 16] {
    core::array::from_fn(|at| LO.name.get(at).copied().unwrap_or(0))
}

fn inet(address: [u8; 4]) -> [u8; 24] {
    let mut bytes = [0; sockaddr::STORAGE_BYTES];
    sockaddr::encode(&(address, 0).into(), &mut bytes);
    core::array::from_fn(|at| bytes[at])
}

fn ask(command: u32, argument: u64) -> Result<u64> {
    let at = UserPtr::<IfReq>::new(argument);
    let mut request = at.read()?;
    let end = request.name.iter().position(|&byte| byte == 0).unwrap_or(16);
    if &request.name[..end] != LO.name {
        return Err(Errno::ENODEV);
    }
    let mut value = [0; 24];
    match command {
        raw::SIOCGIFFLAGS => value[..2].copy_from_slice(&LO.flags.to_ne_bytes()),
        raw::SIOCGIFADDR => value = inet([127, 0, 0, 1]),
        raw::SIOCGIFNETMASK => value = inet([255, 0, 0, 0]),
        raw::SIOCGIFBRDADDR => value = inet([0, 0, 0, 0]),
        raw::SIOCGIFHWADDR => value[..2].copy_from_slice(&LO.hardware.to_ne_bytes()),
        raw::SIOCGIFMTU => value[..4].copy_from_slice(&LO.mtu.to_ne_bytes()),
        raw::SIOCGIFINDEX => value[..4].copy_from_slice(&LO.index.to_ne_bytes()),
        _ => value[..4].copy_from_slice(&1000u32.to_ne_bytes()),
    }
    request.value = value;
    at.write(&request)?;
    Ok(0)
}

fn list(argument: u64) -> Result<u64> {
    let at = UserPtr::<IfConf>::new(argument);
    let mut conf = at.read()?;
    let room = conf.at == 0 || conf.len as usize >= size_of::<IfReq>();
    if conf.at != 0 && room {
        let request = IfReq { name: padded_name(), value: inet([127, 0, 0, 1]) };
        UserPtr::<IfReq>::new(conf.at).write(&request)?;
    }
    conf.len = if room { size_of::<IfReq>() as i32 } else { 0 };
    at.write(&conf)?;
    Ok(0)
}
