//! What would stand in a datagram's headers, as ancillary data (ip(7), ipv6(7), cmsg(3)): from the
//! sender's options and messages, and to the receiver as it asks for.

use core::net::{IpAddr, Ipv4Addr};

use abi::net_layout::{PacketInfo, PacketInfo6};
use abi::{Result, net as raw, udp_option};
use zerocopy::IntoBytes;

use super::options::{IpOptions, wants};
use crate::net::address::Address;
use crate::net::control::Writer;
use crate::net::interface;
use crate::net::packet::{Packet, Said};

const IP: u32 = raw::IPPROTO_IP as u32;
const IPV6: u32 = raw::IPPROTO_IPV6 as u32;
const UDP: u32 = raw::IPPROTO_UDP as u32;

impl Said {
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
