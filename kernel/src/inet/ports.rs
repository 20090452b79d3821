//! Who owns which port. One table for each protocol; a [`Binding`] is an entry that goes away with
//! its owner.
//!
//! Two sockets may share a port if their addresses differ, or if both allow it: SO_REUSEADDR for
//! UDP and for TCP sockets that do not listen, SO_REUSEPORT for all (socket(7)). Of several that
//! would get what is sent to a port, one does: who is connected to the sender, else who is bound to
//! the very address, and of equal ones the last. Those that share it by SO_REUSEPORT are a group:
//! one flow always comes to the same of them, and different flows spread over all, so that who
//! serves a peer hears all of it.
//!
//! Why it is hard: a group may be large, and then no datagram may cost a look at each member. So a
//! port knows whether all who have it are one group, none of them connected.

use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::ops::RangeInclusive;
use core::sync::atomic::{AtomicU16, Ordering};

use abi::{Errno, Result};
use machine::sync::SpinLock;

use super::options::IpOptions;
use crate::net::Common;
use crate::process::Thread;
use crate::security::Capability;

/// Ports given to sockets that ask for none (ip_local_port_range).
pub(super) const EPHEMERAL: RangeInclusive<u16> = 32768..=60999;
/// Ports below need CAP_NET_BIND_SERVICE.
const PRIVILEGED_END: u16 = 1024;

/// What the table asks of a socket.
pub(super) trait Owner: Send + Sync {
    /// Its options.
    fn options(&self) -> (&Common, &IpOptions);
    /// Whether it listens for connections.
    fn listens(&self) -> bool;

    /// SO_REUSEADDR and SO_REUSEPORT.
    fn reuse(&self) -> (bool, bool) {
        self.options().0.reuse()
    }

    /// Whether an IPv6 socket takes no IPv4.
    fn v6_only(&self) -> bool {
        self.options().1.v6_only()
    }

    /// IP_FREEBIND and its kin: whether it may have an address that is not this machine's.
    fn binds_freely(&self) -> bool {
        self.options().1.binds_freely()
    }

    /// The ports that may be chosen for it.
    fn port_range(&self) -> RangeInclusive<u16> {
        self.options().1.port_range()
    }
}

struct PortEntry<S> {
    address: IpAddr,
    owner: Weak<S>,
    /// It had SO_REUSEPORT when it was bound.
    is_member: bool,
}

/// Who is bound to a port, in the order in which they came.
struct PortList<S> {
    list: Vec<PortEntry<S>>,
    /// They may not be one group, or one of them may be connected.
    is_mixed: bool,
}

impl<S> Default for PortList<S> {
    fn default() -> Self {
        PortList { list: Vec::new(), is_mixed: false }
    }
}

impl<S: Owner> PortList<S> {
    fn push(&mut self, address: IpAddr, owner: &Arc<S>) {
        let entry = PortEntry { address, owner: Arc::downgrade(owner), is_member: owner.reuse().1 };
        let last = self.list.last();
        self.is_mixed |= !entry.is_member || last.is_some_and(|last| last.address != address);
        self.list.push(entry);
    }
}

/// Who may be meant by what is sent to a port.
struct Candidate<S> {
    /// Connected to the sender, bound to the very address: who has more of it gets it.
    rank: (bool, bool),
    address: IpAddr,
    is_member: bool,
    owner: Arc<S>,
}

/// The ports of one protocol.
pub(super) struct Ports<S> {
    entries: SpinLock<BTreeMap<u16, PortList<S>>>,
    next: AtomicU16,
}

/// A port in use, until dropped.
pub(super) struct Binding<S: 'static> {
    ports: &'static Ports<S>,
    owner: Weak<S>,
    /// Address and port.
    pub(super) address: SocketAddr,
    /// The port was named, not chosen.
    pub(super) is_asked: bool,
}

impl<S> Drop for Binding<S> {
    fn drop(&mut self) {
        let mut entries = self.ports.entries.lock();
        let port = self.address.port();
        if let Some(list) = entries.get_mut(&port) {
            list.list.retain(|entry| !entry.owner.ptr_eq(&self.owner));
            if list.list.is_empty() {
                entries.remove(&port);
            }
        }
    }
}

/// Whether a socket bound to `bound` gets what is sent to `to`.
pub(super) fn covers(bound: IpAddr, v6_only: bool, to: IpAddr) -> bool {
    match bound {
        IpAddr::V6(ip) if ip.is_unspecified() => to.is_ipv6() || !v6_only,
        IpAddr::V4(ip) if ip.is_unspecified() => to.is_ipv4(),
        _ => bound == to,
    }
}

/// EADDRNOTAVAIL for an address that is not this machine's, EACCES for a port of the superuser's:
/// what comes before all that is wrong with the socket.
pub(super) fn check_address<S: Owner>(who: &Thread, owner: &S, address: SocketAddr) -> Result<()> {
    let (ip, port) = (address.ip(), address.port());
    let is_ours = ip.is_unspecified()
        || ip.is_loopback()
        || ip == Ipv4Addr::BROADCAST
        || ip.is_ipv4() && ip.is_multicast();
    if !is_ours && !owner.binds_freely() {
        return Err(Errno::EADDRNOTAVAIL);
    }
    let is_privileged = (1..PRIVILEGED_END).contains(&port);
    let may = !is_privileged || who.subject().capable(Capability::NetBindService);
    if may { Ok(()) } else { Err(Errno::EACCES) }
}

impl<S: Owner> Ports<S> {
    pub(super) const fn new() -> Self {
        Ports { entries: SpinLock::new(BTreeMap::new()), next: AtomicU16::new(0) }
    }

    /// Binds `owner`: port 0 takes a free one. What else uses an address, `others` says.
    /// EADDRNOTAVAIL for an address that is not this machine's, EADDRINUSE, EACCES.
    pub(super) fn bind(
        &'static self,
        who: &Thread,
        owner: &Arc<S>,
        address: SocketAddr,
        is_stream: bool,
        others: &dyn Fn(SocketAddr) -> bool,
    ) -> Result<Binding<S>> {
        let (ip, port) = (address.ip(), address.port());
        check_address(who, &**owner, address)?;
        if port == 0 {
            return self.bind_ephemeral(owner, ip, others);
        }
        // Dropped when the lock is free: the last reference to a socket takes it.
        let mut seen = Vec::new();
        let mut entries = self.entries.lock();
        let list = entries.entry(port).or_default();
        let conflict = list.list.iter().any(|entry| {
            let Some(other) = entry.owner.upgrade() else { return false };
            let conflict = conflicts((&**owner, ip), (&*other, entry.address), is_stream);
            seen.push(other);
            conflict
        });
        if conflict || others(address) {
            if list.list.is_empty() {
                entries.remove(&port);
            }
            return Err(Errno::EADDRINUSE);
        }
        list.push(ip, owner);
        Ok(Binding { ports: self, owner: Arc::downgrade(owner), address, is_asked: true })
    }

    /// Whether an owner may begin to listen at the address it is bound to: EADDRINUSE.
    pub(super) fn check_listening(&self, owner: &Arc<S>, address: SocketAddr) -> Result<()> {
        let is_taken = self.alive(address.port()).iter().any(|(entry_address, _, other)| {
            let theirs = (&**other, *entry_address);
            !Arc::ptr_eq(other, owner) && conflicts((&**owner, address.ip()), theirs, true)
        });
        if is_taken { Err(Errno::EADDRINUSE) } else { Ok(()) }
    }

    /// Whether somebody is bound to the port.
    pub(super) fn is_bound(&self, port: u16) -> bool {
        self.entries.lock().contains_key(&port)
    }

    fn bind_ephemeral(
        &'static self,
        owner: &Arc<S>,
        ip: IpAddr,
        others: &dyn Fn(SocketAddr) -> bool,
    ) -> Result<Binding<S>> {
        let ports = owner.port_range();
        let count = ports.end() - ports.start() + 1;
        let mut entries = self.entries.lock();
        for _ in 0..count {
            let port = ports.start() + self.next.fetch_add(1, Ordering::Relaxed) % count;
            // Not even with another address: who asks for any port gets one that nobody uses.
            if others(SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port)) {
                continue;
            }
            if let alloc::collections::btree_map::Entry::Vacant(vacant) = entries.entry(port) {
                vacant.insert(PortList::default()).push(ip, owner);
                let address = SocketAddr::new(ip, port);
                let owner = Arc::downgrade(owner);
                return Ok(Binding { ports: self, owner, address, is_asked: false });
            }
        }
        Err(Errno::EADDRINUSE)
    }

    /// Who is bound to a port, with their addresses and whether they are of its group. They are
    /// dropped when the lock is free.
    fn alive(&self, port: u16) -> Vec<(IpAddr, bool, Arc<S>)> {
        let entries = self.entries.lock();
        let list = entries.get(&port).map_or(&[][..], |list| &list.list);
        let alive = list.iter().filter_map(|e| Some((e.address, e.is_member, e.owner.upgrade()?)));
        alive.collect()
    }

    /// All sockets that are bound to where `to` leads: to the group, or to "any".
    pub(super) fn all_of(&self, to: SocketAddr) -> Vec<Arc<S>> {
        let alive = self.alive(to.port()).into_iter();
        let covering = alive.filter(|(ip, _, owner)| covers(*ip, owner.v6_only(), to.ip()));
        covering.map(|(.., owner)| owner).collect()
    }

    /// A socket that is bound to the port has a peer from now on.
    pub(super) fn note_connected(&self, port: u16) {
        if let Some(list) = self.entries.lock().get_mut(&port) {
            list.is_mixed = true;
        }
    }

    /// The socket that gets what `from` sends to `to`, of those that `wanted` accepts; it says of
    /// each whether it is connected to the sender. Of a group who has the flow.
    pub(super) fn find(
        &self,
        from: SocketAddr,
        to: SocketAddr,
        wanted: impl Fn(&S) -> Option<bool>,
    ) -> Option<Arc<S>> {
        if let Some((address, owner, is_only)) = self.member(from, to) {
            let is_meant = wanted(&owner).filter(|_| covers(address, owner.v6_only(), to.ip()));
            match is_meant {
                Some(is_connected) if is_only || !is_connected => return Some(owner),
                None if is_only => return None,
                _ => {}
            }
        }
        let mut candidates: Vec<Candidate<S>> = Vec::new();
        for (address, is_member, owner) in self.alive(to.port()) {
            let covers = covers(address, owner.v6_only(), to.ip());
            let Some(is_connected) = wanted(&owner).filter(|_| covers) else { continue };
            let rank = (is_connected, address == to.ip());
            candidates.push(Candidate { rank, address, is_member, owner });
        }
        // The last of the highest.
        let best = candidates.iter().max_by_key(|candidate| candidate.rank)?;
        let (rank, address) = (best.rank, best.address);
        if !best.is_member || rank.0 {
            return Some(best.owner.clone());
        }
        candidates.retain(|one| one.is_member && (one.rank, one.address) == (rank, address));
        let at = part_of(from, to, candidates.len());
        Some(candidates.swap_remove(at).owner)
    }

    /// Who has the port alone, or of its only group has the flow: with its address, and whether it
    /// is alone.
    fn member(&self, from: SocketAddr, to: SocketAddr) -> Option<(IpAddr, Arc<S>, bool)> {
        let entries = self.entries.lock();
        let list = entries.get(&to.port())?;
        let entry = match &list.list[..] {
            [only] => only,
            all if !list.is_mixed => all.get(part_of(from, to, all.len()))?,
            _ => return None,
        };
        Some((entry.address, entry.owner.upgrade()?, list.list.len() == 1))
    }
}

/// Which of `parts` a flow belongs to: the same each time, and others spread.
fn part_of(from: SocketAddr, to: SocketAddr, parts: usize) -> usize {
    /// 2^64 over the golden ratio.
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let bits = |address: SocketAddr| match address.ip() {
        IpAddr::V4(ip) => [u64::from(ip.to_bits()), address.port().into()],
        IpAddr::V6(ip) => {
            let bits = ip.to_bits();
            [(bits >> 64) as u64 ^ bits as u64, address.port().into()]
        }
    };
    let mix = |hash: u64, word: u64| (hash ^ word).wrapping_mul(FACTOR).rotate_left(29);
    let hash = bits(from).into_iter().chain(bits(to)).fold(FACTOR, mix).wrapping_mul(FACTOR);
    (((hash >> 32) * parts as u64) >> 32) as usize
}

/// Whether a new binding may not stand beside another one of the same port.
fn conflicts<S: Owner>(new: (&S, IpAddr), old: (&S, IpAddr), is_stream: bool) -> bool {
    let overlap = covers(new.1, new.0.v6_only(), old.1) || covers(old.1, old.0.v6_only(), new.1);
    let both_any = new.1.is_unspecified()
        && old.1.is_unspecified()
        && (new.1.is_ipv4() == old.1.is_ipv4() || !new.0.v6_only() && !old.0.v6_only());
    if !overlap && !both_any {
        return false;
    }
    let ((new_address, new_port), (old_address, old_port)) = (new.0.reuse(), old.0.reuse());
    let by_address = new_address && old_address && !(is_stream && old.0.listens());
    !(by_address || new_port && old_port)
}
