//! Socket addresses: from the bytes of a program's `struct sockaddr` and back (unix(7), ip(7),
//! ipv6(7)).

use alloc::sync::Arc;
use core::net::SocketAddr;

use abi::{Errno, Result, net as raw};
use formats::sockaddr::{self, STORAGE_BYTES};

use crate::base::user::UserPtr;

/// A socket's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A path without NUL, or an abstract name with a leading NUL; None: a socket without a name.
    Unix(Option<Arc<[u8]>>),
    /// Address and port.
    Inet(SocketAddr),
    /// The port id of netlink(7); 0 is the kernel.
    Netlink(u32),
}

/// The bytes of an address, as a program gave or gets them.
pub struct RawAddress {
    bytes: [u8; STORAGE_BYTES],
    len: usize,
}

impl RawAddress {
    /// Copies an address argument in. EINVAL if it is longer than any.
    pub fn read(address: u64, len: u64) -> Result<RawAddress> {
        let len = usize::try_from(len as u32 as i32).map_err(|_| Errno::EINVAL)?;
        if len > STORAGE_BYTES {
            return Err(Errno::EINVAL);
        }
        let mut bytes = [0; STORAGE_BYTES];
        // Of no bytes nobody looks where they are.
        if len > 0 {
            UserPtr::<u8>::new(address).read_bytes(&mut bytes[..len])?;
        }
        Ok(RawAddress { bytes, len })
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// The address family, which the first two bytes name. EINVAL if there are fewer.
    pub fn family(&self) -> Result<u32> {
        match self.bytes() {
            [a, b, ..] => Ok(u32::from(u16::from_ne_bytes([*a, *b]))),
            _ => Err(Errno::EINVAL),
        }
    }

    /// As an address of AF_UNIX; `Unix(None)` if only the family is given.
    pub fn to_unix(&self) -> Result<Option<Arc<[u8]>>> {
        if self.family()? != raw::AF_UNIX || self.len > sockaddr::UNIX_BYTES {
            return Err(Errno::EINVAL);
        }
        Ok(sockaddr::unix_name(self.bytes()).map(Arc::from))
    }

    /// The port of an address of AF_INET or AF_INET6. EINVAL if it is too short to have one.
    pub fn inet_port(&self) -> Result<u16> {
        match self.bytes() {
            [_, _, a, b, ..] => Ok(u16::from_be_bytes([*a, *b])),
            _ => Err(Errno::EINVAL),
        }
    }

    /// As [`RawAddress::to_inet`], for bind(2): a socket of AF_INET takes the family AF_UNSPEC as
    /// an old way to say "any address".
    pub fn to_bind(&self, v6: bool) -> Result<SocketAddr> {
        let is_old = !v6 && self.len >= 16 && self.family()? == raw::AF_UNSPEC;
        if !is_old {
            return self.to_inet(v6);
        }
        let address = self.with_family(raw::AF_INET).to_inet(v6)?;
        if address.ip().is_unspecified() { Ok(address) } else { Err(Errno::EAFNOSUPPORT) }
    }

    /// The same bytes as an address of another family.
    #[must_use]
    pub fn with_family(&self, family: u32) -> RawAddress {
        let mut bytes = self.bytes;
        bytes[..2].copy_from_slice(&(family as u16).to_ne_bytes());
        RawAddress { bytes, ..*self }
    }

    /// As an address of AF_INET or AF_INET6, whichever `v6` says. EAFNOSUPPORT for another family.
    pub fn to_inet(&self, v6: bool) -> Result<SocketAddr> {
        let wanted = if v6 { raw::AF_INET6 } else { raw::AF_INET };
        if self.len < if v6 { 24 } else { 16 } {
            return Err(Errno::EINVAL);
        }
        if self.family()? != wanted {
            return Err(Errno::EAFNOSUPPORT);
        }
        Ok(sockaddr::decode(&self.bytes, v6))
    }
}

impl Address {
    /// The bytes a program sees.
    #[must_use]
    pub fn to_raw(&self) -> RawAddress {
        let mut bytes = [0; STORAGE_BYTES];
        let len = match self {
            Address::Unix(name) => {
                sockaddr::encode_unix(name.as_deref().unwrap_or_default(), &mut bytes)
            }
            Address::Netlink(port) => sockaddr::encode_netlink(*port, &mut bytes),
            Address::Inet(address) => sockaddr::encode(address, &mut bytes),
        };
        RawAddress { bytes, len }
    }

    /// Copies the address out to a buffer of `capacity` bytes, cut if it does not fit. Returns its
    /// full length.
    pub fn write(&self, to: u64, capacity: usize) -> Result<usize> {
        let raw = self.to_raw();
        let fits = raw.len.min(capacity);
        if fits > 0 {
            UserPtr::<u8>::new(to).write_bytes(&raw.bytes()[..fits])?;
        }
        Ok(raw.len)
    }

    /// Copies the address out as accept(2) and its like do: `len_at` holds the capacity before and
    /// the full length after.
    pub fn write_with_len(&self, to: u64, len_at: u64) -> Result<()> {
        let len_at = UserPtr::<i32>::new(len_at);
        let capacity = usize::try_from(len_at.read()?).map_err(|_| Errno::EINVAL)?;
        let len = self.write(to, capacity)?;
        len_at.write(&(len as i32))
    }
}
