//! Packets of raw sockets: the header of IPv4, checksums (RFC 1071), and what the machine itself
//! answers to one (echo requests, RFC 792 and RFC 4443).

use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Bytes of a header of IPv4 without options.
pub(super) const HEADER: usize = 20;
/// Places in it.
const TOTAL_LENGTH: usize = 2;
const IDENTIFICATION: usize = 4;
const FRAGMENTS: usize = 6;
const CHECKSUM: usize = 10;
const FROM: usize = 12;
const TO: usize = 16;
/// A flag among what is said of fragments: there are to be none.
const DO_NOT_FRAGMENT: u8 = 0x40;
/// Place of the checksum in a message of ICMP, of either version.
const ICMP_CHECKSUM: usize = 2;

/// Types of messages: an echo's request and reply, of both versions.
const ECHO: (u8, u8) = (8, 0);
const ECHO_6: (u8, u8) = (128, 129);

/// What is on its way.
pub(super) struct Packet {
    pub(super) from: IpAddr,
    pub(super) to: IpAddr,
    pub(super) protocol: u8,
    pub(super) ttl: u8,
    pub(super) tos: u8,
    /// Of IPv4 with its header, of IPv6 without.
    pub(super) bytes: Vec<u8>,
}

/// The sum that a checksum is the complement of: over words of 16 bits, carries added again.
fn sum(bytes: &[u8], first: u32) -> u32 {
    let (words, rest) = bytes.as_chunks();
    let words = words.iter().map(|word| u32::from(u16::from_be_bytes(*word)));
    let last = rest.first().map_or(0, |&byte| u32::from(byte) << 8);
    let mut sum = words.fold(first, |sum, word| (sum + word) % 0xffff_0000) + last;
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum
}

fn set_checksum(bytes: &mut [u8], at: usize, first: u32) {
    let Some(place) = bytes.get_mut(at..at + 2) else { return };
    place.fill(0);
    let checksum = !(sum(bytes, first) as u16);
    bytes[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
}

/// The sum over what a checksum of IPv6 covers before the message.
fn pseudo_header(from: Ipv6Addr, to: Ipv6Addr, protocol: u8, len: usize) -> u32 {
    let addresses = sum(&to.octets(), sum(&from.octets(), 0));
    sum(&(len as u32).to_be_bytes(), addresses) + u32::from(protocol)
}

/// Puts the checksum of ICMP in its place.
pub(super) fn set_icmp6_checksum(message: &mut [u8], from: Ipv6Addr, to: Ipv6Addr, protocol: u8) {
    let first = pseudo_header(from, to, protocol, message.len());
    set_checksum(message, ICMP_CHECKSUM, first);
}

/// `data` behind a header of IPv4. `is_whole`: it is to stay in one piece.
pub(super) fn with_header(
    data: &[u8],
    (from, to): (Ipv4Addr, Ipv4Addr),
    protocol: u8,
    (ttl, tos): (u8, u8),
    is_whole: bool,
) -> Vec<u8> {
    /// Version 4, five words.
    const FIRST: u8 = 0x45;
    let mut bytes = [&[0; HEADER][..], data].concat();
    bytes[0] = FIRST;
    bytes[1] = tos;
    bytes[FRAGMENTS] = if is_whole { DO_NOT_FRAGMENT } else { 0 };
    bytes[8] = ttl;
    bytes[9] = protocol;
    bytes[FROM..FROM + 4].copy_from_slice(&from.octets());
    bytes[TO..TO + 4].copy_from_slice(&to.octets());
    complete(&mut bytes, from);
    bytes
}

/// Fills in what a sender leaves open in a header of its own: length, identification, where it is
/// from, checksum. None where it is no header of IPv4.
pub(super) fn complete(bytes: &mut [u8], from: Ipv4Addr) -> Option<()> {
    let header = header_len(bytes)?;
    let len = bytes.len() as u16;
    bytes[TOTAL_LENGTH..TOTAL_LENGTH + 2].copy_from_slice(&len.to_be_bytes());
    let identification = &mut bytes[IDENTIFICATION..IDENTIFICATION + 2];
    if *identification == [0, 0] {
        identification.copy_from_slice(&next_identification().to_be_bytes());
    }
    if bytes[FROM..FROM + 4] == [0; 4] {
        bytes[FROM..FROM + 4].copy_from_slice(&from.octets());
    }
    set_checksum(&mut bytes[..header], CHECKSUM, 0);
    Some(())
}

fn next_identification() -> u16 {
    use core::sync::atomic::{AtomicU16, Ordering};
    static NEXT: AtomicU16 = AtomicU16::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Bytes of the header of IPv4 at the start of `bytes`, if there is a whole one.
fn header_len(bytes: &[u8]) -> Option<usize> {
    let len = usize::from(*bytes.first()? & 0xf) * 4;
    (len >= HEADER && len <= bytes.len()).then_some(len)
}

impl Packet {
    /// A packet of IPv4 from its bytes, with a whole header.
    pub(super) fn of_bytes(bytes: Vec<u8>) -> Option<Packet> {
        header_len(&bytes)?;
        let address = |at: usize| {
            let octets: [u8; 4] = bytes[at..at + 4].try_into().unwrap_or_default();
            IpAddr::V4(octets.into())
        };
        let (from, to) = (address(FROM), address(TO));
        let (tos, ttl, protocol) = (bytes[1], bytes[8], bytes[9]);
        Some(Packet { from, to, protocol, ttl, tos, bytes })
    }

    /// What the protocol's own header begins at.
    pub(super) fn message(&self) -> &[u8] {
        match self.to {
            IpAddr::V4(_) => &self.bytes[header_len(&self.bytes).unwrap_or(self.bytes.len())..],
            IpAddr::V6(_) => &self.bytes,
        }
    }

    /// What the machine answers: the reply to an echo request whose checksum is right.
    pub(super) fn answer(&self) -> Option<Packet> {
        const ICMP: u8 = 1;
        const ICMP_6: u8 = 58;
        /// Time to live of what the machine sends.
        const TTL: u8 = 64;
        let mut message = self.message().to_vec();
        let (from, to) = (self.to, self.from);
        let (protocol, (request, reply)) = match self.to {
            IpAddr::V4(_) => (ICMP, ECHO),
            IpAddr::V6(_) => (ICMP_6, ECHO_6),
        };
        // A header of an echo is eight bytes.
        if self.protocol != protocol || message.len() < 8 || message[0] != request {
            return None;
        }
        let first = match (self.from, self.to) {
            (IpAddr::V6(from), IpAddr::V6(to)) => pseudo_header(from, to, protocol, message.len()),
            _ => 0,
        };
        if sum(&message, first) != 0xffff {
            return None;
        }
        message[0] = reply;
        let bytes = match (from, to) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                set_checksum(&mut message, ICMP_CHECKSUM, 0);
                with_header(&message, (from, to), protocol, (TTL, self.tos), false)
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                set_icmp6_checksum(&mut message, from, to, protocol);
                message
            }
            _ => return None,
        };
        Some(Packet { from, to, protocol, ttl: TTL, tos: self.tos, bytes })
    }
}
