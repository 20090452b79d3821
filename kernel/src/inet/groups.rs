//! Multicast groups of a socket (ip(7), ipv6(7), RFC 3678): which it has joined on the one
//! interface, from whom it takes what is sent to them, and by which interface it sends.
//!
//! Why it is hard: the same membership is asked for by three sets of options, and what a socket
//! gets depends on others: what is sent to a group reaches every socket of its port, members or
//! not, once anybody of the machine is a member (IP_MULTICAST_ALL). There is no network: what is
//! sent to a group that nobody joined is lost. IPv6 has no way to a group over `lo`, as on Linux.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use abi::{Errno, Result, net as raw, option_layout::least_bytes};
use machine::sync::SpinLock;

use crate::net::interface;
use crate::net::{Common, SocketKind};

const IP: u32 = raw::IPPROTO_IP as u32;
const IPV6: u32 = raw::IPPROTO_IPV6 as u32;
/// Most groups of a socket (net.ipv4.igmp_max_memberships).
const GROUPS_MAX: usize = 20;
/// Most sources that one of them names (net.ipv4.igmp_max_msf).
const SOURCES_MAX: usize = 10;
/// The group that every machine is in.
const ALL_HOSTS: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 1);

/// How many memberships there are of each group.
static JOINED: SpinLock<BTreeMap<IpAddr, usize>> = SpinLock::new(BTreeMap::new());

/// Whether anybody of this machine is in the group.
pub(super) fn is_joined(group: IpAddr) -> bool {
    group == IpAddr::V4(ALL_HOSTS) || JOINED.lock().contains_key(&group)
}

struct Membership {
    group: IpAddr,
    /// The sources are those that are not wanted; else the only ones that are.
    excludes: bool,
    sources: Vec<IpAddr>,
}

#[derive(Default)]
struct GroupState {
    members: Vec<Membership>,
    /// IP_MULTICAST_IF: an interface was chosen, by this address of it.
    sends_by: Option<Ipv4Addr>,
}

/// See the module.
#[derive(Default)]
pub(super) struct Groups(SpinLock<GroupState>);

impl Drop for Groups {
    fn drop(&mut self) {
        self.0.get_mut().members.iter().for_each(|member| leave_machine(member.group));
    }
}

fn leave_machine(group: IpAddr) {
    let mut joined = JOINED.lock();
    if let Some(count) = joined.get_mut(&group) {
        *count -= 1;
        if *count == 0 {
            joined.remove(&group);
        }
    }
}

/// What an option asks for.
enum Request {
    Join(IpAddr),
    Leave(IpAddr),
    /// The group is joined if it is not, and takes this source.
    JoinSource(IpAddr, IpAddr),
    LeaveSource(IpAddr, IpAddr),
    Block(IpAddr, IpAddr),
    Unblock(IpAddr, IpAddr),
}

fn word(value: &[u8], at: usize) -> Option<[u8; 4]> {
    value.get(at..at + 4)?.try_into().ok()
}

fn v4(value: &[u8], at: usize) -> Result<Ipv4Addr> {
    word(value, at).map(Ipv4Addr::from).ok_or(Errno::EINVAL)
}

fn v6(value: &[u8]) -> Result<Ipv6Addr> {
    let bytes = value.get(..16).and_then(|bytes| <[u8; 16]>::try_from(bytes).ok());
    bytes.map(Ipv6Addr::from).ok_or(Errno::EINVAL)
}

/// ENODEV unless index or address names the interface. "Any" names none: there is no route.
fn check_interface(index: u32, address: Ipv4Addr) -> Result<()> {
    let is_ours = if index == 0 { address.is_loopback() } else { index == interface::LO.index };
    if is_ours { Ok(()) } else { Err(Errno::ENODEV) }
}

/// `struct sockaddr_storage` at an offset of a `group_req`.
fn stored_address(level: u32, value: &[u8], at: usize) -> Result<IpAddr> {
    let family = value.get(at..at + 2).ok_or(Errno::EINVAL)?;
    let family = u32::from(u16::from_ne_bytes([family[0], family[1]]));
    match (level, family) {
        (IP, raw::AF_INET) => v4(value, at + 4).map(IpAddr::V4),
        (IPV6, raw::AF_INET6) => v6(&value[at + 8..]).map(IpAddr::V6),
        (IP, _) => Err(Errno::EINVAL),
        _ => Err(Errno::EADDRNOTAVAIL),
    }
}

/// Bytes of `struct ipv6_mreq`.
const MEMBERSHIP_6: usize = 20;
/// Bytes of `struct group_req` and `struct group_source_req`.
const GROUP_REQUEST: usize = least_bytes(raw::MCAST_JOIN_GROUP);
const SOURCE_REQUEST: usize = least_bytes(raw::MCAST_JOIN_SOURCE_GROUP);

/// What an option about one source of a group asks for.
fn of_source(name: u32) -> fn(IpAddr, IpAddr) -> Request {
    match name {
        raw::IP_ADD_SOURCE_MEMBERSHIP | raw::MCAST_JOIN_SOURCE_GROUP => Request::JoinSource,
        raw::IP_DROP_SOURCE_MEMBERSHIP | raw::MCAST_LEAVE_SOURCE_GROUP => Request::LeaveSource,
        raw::IP_BLOCK_SOURCE | raw::MCAST_BLOCK_SOURCE => Request::Block,
        _ => Request::Unblock,
    }
}

/// The request that an option makes; None if it is none of these. The interface has been checked,
/// after the group.
fn read_request(level: u32, name: u32, value: &[u8]) -> Result<Option<Request>> {
    let index = |at: usize| word(value, at).map(u32::from_ne_bytes).ok_or(Errno::EINVAL);
    let (request, group, interface) = match (level, name) {
        (IP, raw::IP_ADD_MEMBERSHIP | raw::IP_DROP_MEMBERSHIP) => {
            let (group, address) = (v4(value, 0)?, v4(value, 4)?);
            let index = if value.len() >= 12 { index(8)? } else { 0 };
            let make = if name == raw::IP_ADD_MEMBERSHIP { Request::Join } else { Request::Leave };
            let group = IpAddr::V4(group);
            (make(group), group, (index, address))
        }
        (IPV6, raw::IPV6_ADD_MEMBERSHIP | raw::IPV6_DROP_MEMBERSHIP) => {
            let group = IpAddr::V6(v6(value)?);
            let joins = name == raw::IPV6_ADD_MEMBERSHIP;
            let make = if joins { Request::Join } else { Request::Leave };
            // Any interface: the first that has groups.
            let index = if index(16)? == 0 { interface::LO.index } else { index(16)? };
            (make(group), group, (index, Ipv4Addr::UNSPECIFIED))
        }
        (
            IP,
            raw::IP_ADD_SOURCE_MEMBERSHIP
            | raw::IP_DROP_SOURCE_MEMBERSHIP
            | raw::IP_BLOCK_SOURCE
            | raw::IP_UNBLOCK_SOURCE,
        ) => {
            if value.len() != 12 {
                return Err(Errno::EINVAL);
            }
            let make = of_source(name);
            let (group, source) = (IpAddr::V4(v4(value, 0)?), IpAddr::V4(v4(value, 8)?));
            (make(group, source), group, (0, v4(value, 4)?))
        }
        (IP | IPV6, raw::MCAST_JOIN_GROUP | raw::MCAST_LEAVE_GROUP) => {
            if value.len() < GROUP_REQUEST {
                return Err(Errno::EINVAL);
            }
            let group = stored_address(level, value, 8)?;
            let joins = name == raw::MCAST_JOIN_GROUP;
            let make = if joins { Request::Join } else { Request::Leave };
            (make(group), group, (index(0)?, Ipv4Addr::UNSPECIFIED))
        }
        (
            IP | IPV6,
            raw::MCAST_JOIN_SOURCE_GROUP
            | raw::MCAST_LEAVE_SOURCE_GROUP
            | raw::MCAST_BLOCK_SOURCE
            | raw::MCAST_UNBLOCK_SOURCE,
        ) => {
            if value.len() < SOURCE_REQUEST {
                return Err(Errno::EINVAL);
            }
            let make = of_source(name);
            let group = stored_address(level, value, 8)?;
            let source = stored_address(level, value, GROUP_REQUEST)?;
            (make(group, source), group, (index(0)?, Ipv4Addr::UNSPECIFIED))
        }
        _ => return Ok(None),
    };
    if !group.is_multicast() {
        return Err(Errno::EINVAL);
    }
    check_interface(interface.0, interface.1)?;
    Ok(Some(request))
}

impl Groups {
    /// setsockopt(2), if the option is about groups. EINVAL, ENODEV, EADDRINUSE, EADDRNOTAVAIL,
    /// ENOBUFS, EPROTO for TCP.
    pub(super) fn set(
        &self,
        common: &Common,
        level: u32,
        name: u32,
        value: &[u8],
    ) -> Option<Result<()>> {
        if (level, name) == (IP, raw::IP_MULTICAST_IF) {
            return Some(self.set_interface(common, value));
        }
        // What TCP has no use for is said before what is wrong with it, but for IPv6's lengths.
        let is_odd_to_tcp = match (level, name) {
            (IP, raw::IP_ADD_MEMBERSHIP | raw::IP_DROP_MEMBERSHIP) => true,
            (IPV6, raw::IPV6_ADD_MEMBERSHIP | raw::IPV6_DROP_MEMBERSHIP) => {
                value.len() >= MEMBERSHIP_6
            }
            _ => false,
        };
        if is_odd_to_tcp && common.kind == SocketKind::Stream {
            return Some(Err(Errno::EPROTO));
        }
        match read_request(level, name, value) {
            Ok(None) => None,
            Ok(Some(request)) => Some(self.apply(request)),
            Err(error) => Some(Err(error)),
        }
    }

    fn set_interface(&self, common: &Common, value: &[u8]) -> Result<()> {
        if common.kind == SocketKind::Stream {
            return Err(Errno::EINVAL);
        }
        let (address, index) = match value.len() {
            0..4 => return Err(Errno::EINVAL),
            4..8 => (v4(value, 0)?, 0),
            8..12 => (v4(value, 4)?, 0),
            _ => (v4(value, 4)?, word(value, 8).map_or(0, u32::from_ne_bytes)),
        };
        let is_none = index == 0 && address.is_unspecified();
        if !is_none {
            check_interface(index, address).map_err(|_| Errno::EADDRNOTAVAIL)?;
        }
        self.0.lock().sends_by = (!is_none).then_some(address);
        Ok(())
    }

    /// IP_MULTICAST_IF, as getsockopt(2) tells it: the address; and whether an interface is chosen.
    pub(super) fn interface(&self) -> (Ipv4Addr, bool) {
        let chosen = self.0.lock().sends_by;
        (chosen.unwrap_or(Ipv4Addr::UNSPECIFIED), chosen.is_some())
    }

    fn apply(&self, request: Request) -> Result<()> {
        match request {
            Request::Join(group) => self.join(group, true),
            Request::Leave(group) => self.leave(group),
            Request::JoinSource(group, source) => {
                match self.join(group, false) {
                    Ok(()) | Err(Errno::EADDRINUSE) => {}
                    Err(error) => return Err(error),
                }
                self.change_source(group, source, false, true)
            }
            Request::LeaveSource(group, source) => self.change_source(group, source, false, false),
            Request::Block(group, source) => self.change_source(group, source, true, true),
            Request::Unblock(group, source) => self.change_source(group, source, true, false),
        }
    }

    fn join(&self, group: IpAddr, excludes: bool) -> Result<()> {
        let mut state = self.0.lock();
        if state.members.iter().any(|member| member.group == group) {
            return Err(Errno::EADDRINUSE);
        }
        if state.members.len() >= GROUPS_MAX && group.is_ipv4() {
            return Err(Errno::ENOBUFS);
        }
        state.members.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        state.members.push(Membership { group, excludes, sources: Vec::new() });
        *JOINED.lock().entry(group).or_insert(0) += 1;
        Ok(())
    }

    fn leave(&self, group: IpAddr) -> Result<()> {
        let mut state = self.0.lock();
        let at = state.members.iter().position(|member| member.group == group);
        state.members.swap_remove(at.ok_or(Errno::EADDRNOTAVAIL)?);
        drop(state);
        leave_machine(group);
        Ok(())
    }

    /// Adds a source to those that are excluded, or to those that alone are not; or takes it away.
    fn change_source(
        &self,
        group: IpAddr,
        source: IpAddr,
        excludes: bool,
        adds: bool,
    ) -> Result<()> {
        let mut state = self.0.lock();
        let member = state.members.iter_mut().find(|member| member.group == group);
        let member = member.ok_or(Errno::EINVAL)?;
        if member.excludes != excludes {
            if !member.sources.is_empty() {
                return Err(Errno::EINVAL);
            }
            member.excludes = excludes;
        }
        let at = member.sources.iter().position(|known| *known == source);
        match (adds, at) {
            (true, None) if member.sources.len() >= SOURCES_MAX => return Err(Errno::ENOBUFS),
            (true, None) => {
                member.sources.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
                member.sources.push(source);
            }
            (true, Some(_)) | (false, None) => return Err(Errno::EADDRNOTAVAIL),
            (false, Some(at)) => {
                member.sources.swap_remove(at);
                // Nobody is wanted any more.
                if member.sources.is_empty() && !excludes {
                    drop(state);
                    return self.leave(group);
                }
            }
        }
        Ok(())
    }

    /// Whether what `from` sends to the group is for this socket. `takes_all`: IP_MULTICAST_ALL.
    pub(super) fn takes(&self, group: IpAddr, from: IpAddr, takes_all: bool) -> bool {
        let state = self.0.lock();
        match state.members.iter().find(|member| member.group == group) {
            None => takes_all,
            Some(member) => member.sources.contains(&from) != member.excludes,
        }
    }
}
