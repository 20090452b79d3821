//! `struct sockaddr` of the families there are (unix(7), ip(7), ipv6(7), netlink(7)): ports, flow
//! and addresses are in network order, family, scope and port ids in the machine's.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// Bytes of `struct sockaddr_storage`: no address is longer.
pub const STORAGE_BYTES: usize = 128;
/// Bytes of an address of AF_INET.
pub const V4_BYTES: usize = 16;
/// Bytes of an address of AF_INET6, with its scope.
pub const V6_BYTES: usize = 28;
/// Bytes of an address of AF_UNIX, at most.
pub const UNIX_BYTES: usize = 110;
/// Bytes of an address of AF_NETLINK.
pub const NETLINK_BYTES: usize = 12;
const AF_UNIX: u16 = 1;
const AF_NETLINK: u16 = 16;
pub(crate) const AF_INET: u16 = 2;
pub(crate) const AF_INET6: u16 = 10;

/// The address in the bytes, whatever family they name.
#[must_use]
pub fn decode(bytes: &[u8; STORAGE_BYTES], is_v6: bool) -> SocketAddr {
    let port = u16::from_be_bytes([bytes[2], bytes[3]]);
    let ip = if is_v6 {
        let mut ip = [0; 16];
        ip.copy_from_slice(&bytes[8..24]);
        IpAddr::V6(Ipv6Addr::from(ip))
    } else {
        IpAddr::V4(Ipv4Addr::new(bytes[4], bytes[5], bytes[6], bytes[7]))
    };
    SocketAddr::new(ip, port)
}

/// Puts an address, and gives its length. What is behind it stays.
pub fn encode(address: &SocketAddr, bytes: &mut [u8; STORAGE_BYTES]) -> usize {
    bytes[2..4].copy_from_slice(&address.port().to_be_bytes());
    match address {
        SocketAddr::V4(address) => {
            bytes[..2].copy_from_slice(&AF_INET.to_ne_bytes());
            bytes[4..8].copy_from_slice(&address.ip().octets());
            V4_BYTES
        }
        SocketAddr::V6(address) => {
            put_v6(bytes, address);
            V6_BYTES
        }
    }
}

fn put_v6(bytes: &mut [u8; STORAGE_BYTES], address: &SocketAddrV6) {
    bytes[..2].copy_from_slice(&AF_INET6.to_ne_bytes());
    bytes[4..8].copy_from_slice(&address.flowinfo().to_be_bytes());
    bytes[8..24].copy_from_slice(&address.ip().octets());
    bytes[24..28].copy_from_slice(&address.scope_id().to_ne_bytes());
}

/// The name in an address of AF_UNIX: a path without NUL, or an abstract name with a leading NUL.
/// None if there is no more than the family.
#[must_use]
pub fn unix_name(bytes: &[u8]) -> Option<&[u8]> {
    let name = bytes.get(2..)?;
    match name.first()? {
        0 => Some(name),
        _ => name.split(|&byte| byte == 0).next(),
    }
}

/// Puts a name, cut if it is too long for any; a path ends in a NUL. Gives the length.
pub fn encode_unix(name: &[u8], bytes: &mut [u8; STORAGE_BYTES]) -> usize {
    bytes[..2].copy_from_slice(&AF_UNIX.to_ne_bytes());
    let fits = name.len().min(UNIX_BYTES - 2);
    bytes[2..2 + fits].copy_from_slice(&name[..fits]);
    let is_path = name.first().is_some_and(|&byte| byte != 0);
    2 + fits + usize::from(is_path)
}

/// Puts a port id of netlink's. Gives the length.
pub fn encode_netlink(port: u32, bytes: &mut [u8; STORAGE_BYTES]) -> usize {
    bytes[..2].copy_from_slice(&AF_NETLINK.to_ne_bytes());
    bytes[4..8].copy_from_slice(&port.to_ne_bytes());
    NETLINK_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_come_back() {
        for text in ["127.0.0.1:80", "255.1.2.3:65535", "[::1]:0", "[fe80::1:2]:8080"] {
            let address: SocketAddr = text.parse().expect("an address");
            let mut bytes = [0; STORAGE_BYTES];
            let len = encode(&address, &mut bytes);
            assert_eq!(len, if address.is_ipv6() { V6_BYTES } else { V4_BYTES });
            assert_eq!(decode(&bytes, address.is_ipv6()), address, "{text}");
            assert!(bytes[len..].iter().all(|byte| *byte == 0));
        }
    }

    #[test]
    fn bytes_are_where_programs_look() {
        let mut bytes = [0; STORAGE_BYTES];
        encode(&SocketAddr::from(([10, 0, 0, 1], 0x1234)), &mut bytes);
        assert_eq!(bytes[..8], [2, 0, 0x12, 0x34, 10, 0, 0, 1]);
        let v6 = SocketAddrV6::new(Ipv6Addr::LOCALHOST, 1, 0x0102_0304, 5);
        encode(&v6.into(), &mut bytes);
        assert_eq!(bytes[..8], [10, 0, 0, 1, 1, 2, 3, 4]);
        assert_eq!(bytes[23..28], [1, 5, 0, 0, 0]);
    }
    #[test]
    fn names_come_back() {
        let names: [&[u8]; 4] = [b"/run/x", b"\0abstract\0x", b"\0", &[b'x'; 108]];
        for name in names {
            let mut bytes = [0; STORAGE_BYTES];
            let len = encode_unix(name, &mut bytes);
            assert_eq!(unix_name(&bytes[..len]), Some(name));
            assert_eq!(len, 2 + name.len() + usize::from(name[0] != 0));
        }
        let mut bytes = [0; STORAGE_BYTES];
        assert_eq!(encode_unix(b"", &mut bytes), 2);
        assert_eq!(unix_name(&bytes[..2]), None);
        assert_eq!(encode_unix(&[b'x'; 300], &mut bytes), UNIX_BYTES + 1);
        assert_eq!(unix_name(b"\x01\0/a\0/b"), Some(&b"/a"[..]));
        assert_eq!(encode_netlink(0x0102, &mut bytes), 12);
        assert_eq!(bytes[4..8], [2, 1, 0, 0]);
    }
}
