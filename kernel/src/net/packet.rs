//! What stands beside a datagram in a channel: where it was sent to and how, and what its sender
//! says about it in ancillary data (ip(7), ipv6(7), cmsg(3)).
//!
//! Neighbour: `inet/packet`, which makes of it what the receiver asks for.

use core::net::{IpAddr, SocketAddr};

use abi::net_layout::{PacketInfo, PacketInfo6};
use abi::{Errno, Result, net as raw, udp_option};

use crate::base::user::UserPtr;

const IP: u32 = raw::IPPROTO_IP as u32;
const IPV6: u32 = raw::IPPROTO_IPV6 as u32;
const UDP: u32 = raw::IPPROTO_UDP as u32;

/// Where a datagram was sent to, and how.
#[derive(Clone, Copy, Debug)]
pub struct Packet {
    /// Its destination.
    pub to: SocketAddr,
    /// Time to live, or hop limit.
    pub ttl: u8,
    /// Type of service, or traffic class.
    pub tos: u8,
    /// It holds several datagrams of so many bytes (UDP_GRO); 0: one.
    pub segment: u16,
    /// When it came (CLOCK_REALTIME); 0 if nobody asked.
    pub time_ns: u64,
}

/// What a sender says about one datagram.
#[derive(Clone, Copy, Debug, Default)]
pub struct Said {
    /// IP_TTL, IPV6_HOPLIMIT.
    pub ttl: Option<u8>,
    /// IP_TOS, IPV6_TCLASS.
    pub tos: Option<u8>,
    /// IP_PKTINFO, IPV6_PKTINFO: whom it is from.
    pub source: Option<IpAddr>,
    /// UDP_SEGMENT: it is several datagrams, each of so many bytes.
    pub segment: Option<u16>,
    /// Something that is not known: EINVAL.
    pub is_odd: bool,
}

impl Said {
    /// Reads one message of the levels of IP: `bytes` at `address`. EFAULT, EINVAL.
    pub fn read(&mut self, level: u32, kind: u32, address: u64, bytes: u64) -> Result<()> {
        let number = || -> Result<i32> {
            match bytes {
                1 => UserPtr::<u8>::new(address).read().map(i32::from),
                4 => UserPtr::<i32>::new(address).read(),
                _ => Err(Errno::EINVAL),
            }
        };
        let byte = |least: i32| -> Result<u8> {
            let number = number()?;
            let in_range = (least..=255).contains(&number);
            if in_range { Ok(number as u8) } else { Err(Errno::EINVAL) }
        };
        match (level, kind) {
            (IP, raw::IP_TTL) if bytes == 4 => self.ttl = Some(byte(1)?),
            (IP, raw::IP_TOS) => self.tos = Some(byte(0)?),
            (IPV6, raw::IPV6_HOPLIMIT | raw::IPV6_2292HOPLIMIT) if bytes == 4 => {
                self.ttl = if number()? == -1 { None } else { Some(byte(0)?) };
            }
            (IPV6, raw::IPV6_TCLASS) if bytes == 4 => {
                self.tos = if number()? == -1 { None } else { Some(byte(0)?) };
            }
            (UDP, udp_option::SEGMENT) if bytes == 2 => {
                self.segment = Some(UserPtr::<u16>::new(address).read()?);
            }
            (IP, raw::IP_PKTINFO) if bytes == size_of::<PacketInfo>() as u64 => {
                let info = UserPtr::<PacketInfo>::new(address).read()?;
                let source = IpAddr::from(info.local);
                self.source = (!source.is_unspecified()).then_some(source);
            }
            (IPV6, raw::IPV6_PKTINFO | raw::IPV6_2292PKTINFO)
                if bytes >= size_of::<PacketInfo6>() as u64 =>
            {
                let source = IpAddr::from(UserPtr::<PacketInfo6>::new(address).read()?.to);
                self.source = (!source.is_unspecified()).then_some(source.to_canonical());
            }
            _ => self.is_odd = true,
        }
        Ok(())
    }
}
