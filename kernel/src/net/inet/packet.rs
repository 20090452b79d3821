//! What would stand in a datagram's headers, as ancillary data (ip(7), ipv6(7), cmsg(3)): from the
//! sender's options and messages, and to the receiver as it asks for.

use core::net::{IpAddr, Ipv4Addr, SocketAddr};

use abi::net_layout::{PacketInfo, PacketInfo6};
use abi::{Errno, Result, net as raw, udp_option};
use zerocopy::IntoBytes;

use super::interface;
use super::options::{IpOptions, wants};
use crate::base::user::UserPtr;
use crate::net::address::Address;
use crate::net::control::Writer;

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

    /// Time to live and type of service of a datagram to `to`.
    pub fn lifetime_and_service(&self, options: &IpOptions, to: IpAddr) -> (u8, u8) {
        let (ttl, tos) = match to {
            IpAddr::V4(ip) if ip.is_multicast() => {
                (options.number(IP, raw::IP_MULTICAST_TTL), options.number(IP, raw::IP_TOS))
            }
            IpAddr::V4(_) => (options.number(IP, raw::IP_TTL), options.number(IP, raw::IP_TOS)),
            IpAddr::V6(_) => {
                let hops = options.number(IPV6, raw::IPV6_UNICAST_HOPS);
                (hops, options.number(IPV6, raw::IPV6_TCLASS))
            }
        };
        (self.ttl.unwrap_or(ttl as u8), self.tos.unwrap_or(tos as u8))
    }
}

impl Packet {
    /// Tells the receiver what it wants to know, in Linux's order.
    pub fn tell(&self, options: &IpOptions, writer: &mut Writer) -> Result<()> {
        if self.segment != 0 {
            writer.put(UDP, udp_option::GRO, &i32::from(self.segment).to_ne_bytes())?;
        }
        let asked = options.wants();
        if asked == 0 {
            return Ok(());
        }
        let to6 = match self.to.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        let info = PacketInfo6 { to: to6.octets(), index: interface::LO.index };
        let is_v6 = self.to.is_ipv6();
        let number = |byte: u8| i32::from(byte).to_ne_bytes();
        let mut put = |bit: u32, level: u32, kind: u32, payload: &[u8]| {
            if asked & bit != 0 { writer.put(level, kind, payload) } else { Ok(()) }
        };
        put(wants::PACKET_INFO_6, IPV6, raw::IPV6_PKTINFO, info.as_bytes())?;
        put(wants::PACKET_INFO_2292, IPV6, raw::IPV6_2292PKTINFO, info.as_bytes())?;
        if is_v6 {
            put(wants::HOP_LIMIT, IPV6, raw::IPV6_HOPLIMIT, &number(self.ttl))?;
            put(wants::TRAFFIC_CLASS, IPV6, raw::IPV6_TCLASS, &number(self.tos))?;
            put(wants::HOP_LIMIT_2292, IPV6, raw::IPV6_2292HOPLIMIT, &number(self.ttl))?;
        }
        if let IpAddr::V4(ip) = self.to.ip() {
            // Who answers what came to a group does so from an address of his own.
            let local = if ip.is_multicast() { Ipv4Addr::LOCALHOST } else { ip };
            let info =
                PacketInfo { index: interface::LO.index, local: local.octets(), to: ip.octets() };
            put(wants::PACKET_INFO, IP, raw::IP_PKTINFO, info.as_bytes())?;
            put(wants::TTL, IP, raw::IP_TTL, &number(self.ttl))?;
            put(wants::TOS, IP, raw::IP_TOS, &[self.tos])?;
            let address = Address::Inet(self.to).to_raw();
            put(wants::ORIGINAL_ADDRESS, IP, raw::IP_RECVORIGDSTADDR, address.bytes())?;
        }
        if is_v6 {
            let address = Address::Inet(self.to).to_raw();
            put(wants::ORIGINAL_ADDRESS_6, IPV6, raw::IPV6_ORIGDSTADDR, address.bytes())?;
        }
        Ok(())
    }
}
