//! Messages of NETLINK_ROUTE (netlink(7), rtnetlink(7)): what is asked, and lists of links and
//! addresses as answers.
//!
//! A message is a header of 16 bytes (length, type, flags, sequence, port) and a body; attributes
//! follow the body's structure. Everything is padded to four bytes, and in the machine's order.

use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::sockaddr;

/// The protocol's number (socket(2)).
pub const NETLINK_ROUTE: u32 = 0;
/// Bytes of `struct nlmsghdr`.
pub const HEADER_BYTES: usize = 16;
const NLM_F_REQUEST: u8 = 1;
const NLM_F_MULTI: u16 = 2;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const RTM_NEWADDR: u16 = 20;
const RTM_GETADDR: u16 = 22;
const RTM_GETROUTE: u16 = 26;
/// Families are one byte here.
const AF_INET: u8 = sockaddr::AF_INET as u8;
const AF_INET6: u8 = sockaddr::AF_INET6 as u8;
/// IFA_F_PERMANENT and RT_SCOPE_HOST.
const PERMANENT: u8 = 0x80;
const SCOPE_HOST: u8 = 254;
/// IFF_LOWER_UP, which only this interface shows.
const LOWER_UP: u32 = 0x10000;

/// The one interface there is.
#[derive(Clone, Copy, Debug)]
pub struct Interface {
    /// Its name, without NUL.
    pub name: &'static [u8],
    /// Its number.
    pub index: u32,
    /// IFF_*.
    pub flags: u16,
    /// Largest packet, bytes.
    pub mtu: u32,
    /// ARPHRD_*.
    pub hardware: u16,
}

/// A request; what its structure says behind the address family is not looked at.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    header: &'a [u8; HEADER_BYTES],
    family: u8,
}

/// Who asked what: the sequence number of the request, and the port that is answered.
type Ids = (u32, u32);

impl<'a> Request<'a> {
    /// None if the bytes are no more than a header, if it gives them another length than they have
    /// at least, or if they do not say that they ask for something (NLM_F_REQUEST).
    #[must_use]
    pub fn decode(bytes: &'a [u8]) -> Option<Self> {
        let (header, rest) = bytes.split_first_chunk()?;
        let [a, b, c, d, _, _, flags, ..]: [u8; HEADER_BYTES] = *header;
        let len = u32::from_ne_bytes([a, b, c, d]) as usize;
        let is_whole = (HEADER_BYTES + 1..=bytes.len()).contains(&len);
        let asks = flags & NLM_F_REQUEST != 0;
        (is_whole && asks).then_some(Request { header, family: *rest.first()? })
    }

    /// The messages that answer it, in the order in which they are sent: a list, if it has members,
    /// and its end; or the error `unsupported`, negative.
    #[must_use]
    pub fn answer(&self, port: u32, interface: &Interface, unsupported: i32) -> Vec<Vec<u8>> {
        let [_, _, _, _, a, b, _, _, c, d, e, f, ..] = *self.header;
        let ids = (u32::from_ne_bytes([c, d, e, f]), port);
        let Some(list) = self.list(u16::from_ne_bytes([a, b]), ids, interface) else {
            let body = [&unsupported.to_ne_bytes()[..], self.header].concat();
            return Vec::from([message(NLMSG_ERROR, 0, ids, &body)]);
        };
        let done = message(NLMSG_DONE, NLM_F_MULTI, ids, &0i32.to_ne_bytes());
        [list, done].into_iter().filter(|messages| !messages.is_empty()).collect()
    }

    fn list(&self, kind: u16, ids: Ids, interface: &Interface) -> Option<Vec<u8>> {
        let of_address = |family: u8, prefix: u8, address: IpAddr| {
            if self.family == family || ![AF_INET, AF_INET6].contains(&self.family) {
                message(RTM_NEWADDR, NLM_F_MULTI, ids, &interface.address(prefix, address))
            } else {
                Vec::new()
            }
        };
        Some(match kind {
            RTM_GETLINK => message(RTM_NEWLINK, NLM_F_MULTI, ids, &interface.link()),
            RTM_GETADDR => [
                of_address(AF_INET, 8, Ipv4Addr::LOCALHOST.into()),
                of_address(AF_INET6, 128, Ipv6Addr::LOCALHOST.into()),
            ]
            .concat(),
            RTM_GETROUTE => Vec::new(),
            _ => return None,
        })
    }
}

impl Interface {
    /// `struct ifinfomsg`, with address, broadcast address, name and MTU.
    fn link(&self) -> Vec<u8> {
        let mut body = Vec::from([0, 0]);
        body.extend_from_slice(&self.hardware.to_ne_bytes());
        body.extend_from_slice(&self.index.to_ne_bytes());
        body.extend_from_slice(&(u32::from(self.flags) | LOWER_UP).to_ne_bytes());
        body.extend_from_slice(&0u32.to_ne_bytes());
        attribute(&mut body, 3, &[self.name, &[0]].concat());
        attribute(&mut body, 4, &self.mtu.to_ne_bytes());
        attribute(&mut body, 1, &[0; 6]);
        attribute(&mut body, 2, &[0; 6]);
        body
    }

    /// `struct ifaddrmsg`, with the address; that of AF_INET as the local one and with the name,
    /// too.
    fn address(&self, prefix: u8, address: IpAddr) -> Vec<u8> {
        let family = if address.is_ipv4() { AF_INET } else { AF_INET6 };
        let mut body = Vec::from([family, prefix, PERMANENT, SCOPE_HOST]);
        body.extend_from_slice(&self.index.to_ne_bytes());
        match address {
            IpAddr::V4(ip) => {
                attribute(&mut body, 1, &ip.octets());
                attribute(&mut body, 2, &ip.octets());
                attribute(&mut body, 3, &[self.name, &[0]].concat());
            }
            IpAddr::V6(ip) => attribute(&mut body, 1, &ip.octets()),
        }
        body
    }
}

fn message(kind: u16, flags: u16, (sequence, port): Ids, body: &[u8]) -> Vec<u8> {
    let mut to = Vec::new();
    to.extend_from_slice(&((HEADER_BYTES + body.len()) as u32).to_ne_bytes());
    to.extend_from_slice(&kind.to_ne_bytes());
    to.extend_from_slice(&flags.to_ne_bytes());
    to.extend_from_slice(&sequence.to_ne_bytes());
    to.extend_from_slice(&port.to_ne_bytes());
    to.extend_from_slice(body);
    to.resize(to.len().next_multiple_of(4), 0);
    to
}

/// `struct rtattr`.
fn attribute(to: &mut Vec<u8>, kind: u16, value: &[u8]) {
    to.extend_from_slice(&(4 + value.len() as u16).to_ne_bytes());
    to.extend_from_slice(&kind.to_ne_bytes());
    to.extend_from_slice(value);
    to.resize(to.len().next_multiple_of(4), 0);
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    const LO: Interface =
        Interface { name: b"lo", index: 1, flags: 0x49, mtu: 65536, hardware: 772 };

    fn request(kind: u16, family: u8) -> Vec<u8> {
        message(kind, 0x301, (7, 0), &[family, 0, 0, 0])
    }

    fn kinds(bytes: &[u8]) -> Vec<u16> {
        let mut kinds = Vec::new();
        let mut rest = bytes;
        while let Some(header) = rest.first_chunk::<HEADER_BYTES>() {
            let len = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]) as usize;
            assert_eq!(header[8..], [7, 0, 0, 0, 9, 0, 0, 0], "sequence and port");
            kinds.push(u16::from_ne_bytes([header[4], header[5]]));
            rest = &rest[len.next_multiple_of(4)..];
        }
        assert!(rest.is_empty());
        kinds
    }

    fn answered(kind: u16, family: u8) -> Vec<Vec<u16>> {
        let bytes = request(kind, family);
        let answer = Request::decode(&bytes).expect("a request").answer(9, &LO, -95);
        answer.iter().map(|messages| kinds(messages)).collect()
    }

    #[test]
    fn lists_and_their_ends() {
        assert_eq!(answered(RTM_GETLINK, 0), [[RTM_NEWLINK], [NLMSG_DONE]]);
        assert_eq!(answered(RTM_GETADDR, 0), [vec![RTM_NEWADDR; 2], vec![NLMSG_DONE]]);
        assert_eq!(answered(RTM_GETADDR, AF_INET), [[RTM_NEWADDR], [NLMSG_DONE]]);
        assert_eq!(answered(RTM_GETADDR, AF_INET6), [[RTM_NEWADDR], [NLMSG_DONE]]);
        assert_eq!(answered(RTM_GETROUTE, 0), [[NLMSG_DONE]]);
        assert_eq!(answered(99, 0), [[NLMSG_ERROR]]);
    }

    #[test]
    fn what_is_in_a_link_and_an_address() {
        let link = LO.link();
        assert_eq!(link[..4], [0, 0, 4, 3]);
        assert_eq!(link[16..24], [7, 0, 3, 0, b'l', b'o', 0, 0]);
        let address = LO.address(8, Ipv4Addr::LOCALHOST.into());
        assert_eq!(address[..16], [2, 8, 0x80, 254, 1, 0, 0, 0, 8, 0, 1, 0, 127, 0, 0, 1]);
        assert_eq!(LO.address(128, Ipv6Addr::LOCALHOST.into()).len(), 8 + 20);
    }

    #[test]
    fn an_error_has_the_header_of_what_was_asked() {
        let bytes = request(99, 0);
        let answer = Request::decode(&bytes).expect("a request").answer(9, &LO, -95);
        assert_eq!(answer[0][16..20], (-95i32).to_ne_bytes());
        assert_eq!(answer[0][20..], bytes[..HEADER_BYTES]);
    }

    #[test]
    fn bytes_that_are_no_request() {
        let whole = request(RTM_GETLINK, 0);
        for len in 0..=HEADER_BYTES {
            assert!(Request::decode(&whole[..len]).is_none());
        }
        let changed = |at: usize, byte: u8| {
            let mut bytes = whole.clone();
            bytes[at] = byte;
            Request::decode(&bytes).is_some()
        };
        let len = whole.len() as u8;
        assert!(changed(0, len) && changed(0, len - 3));
        // A length that is not there, or none; and what asks for nothing.
        assert!(!changed(0, len + 1) && !changed(1, 1) && !changed(0, HEADER_BYTES as u8));
        assert!(!changed(6, 0));
    }
}
