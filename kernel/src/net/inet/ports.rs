//! Who owns which port. One table for each protocol; a [`Binding`] is an entry that goes away with
//! its owner.
//!
//! Two sockets may share a port if their addresses differ, or if both allow it: SO_REUSEADDR for
//! UDP and for TCP sockets that do not listen, SO_REUSEPORT for all (socket(7)).

use crate::process::Thread;
use crate::security::Capability;
use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::ops::RangeInclusive;
use core::sync::atomic::{AtomicU16, AtomicUsize, Ordering};

use abi::{Errno, Result};
use machine::sync::SpinLock;

/// Ports given to sockets that ask for none (ip_local_port_range).
pub(super) const EPHEMERAL: RangeInclusive<u16> = 32768..=60999;
/// Ports below need CAP_NET_BIND_SERVICE.
const PRIVILEGED_END: u16 = 1024;

/// What the table asks of a socket.
pub(super) trait Owner: Send + Sync {
    /// SO_REUSEADDR and SO_REUSEPORT.
    fn reuse(&self) -> (bool, bool);
    /// Whether it listens for connections.
    fn listens(&self) -> bool;
    /// Whether an IPv6 socket takes no IPv4.
    fn v6_only(&self) -> bool;
    /// IP_FREEBIND and its kin: whether it may have an address that is not this machine's.
    fn binds_freely(&self) -> bool;
    /// The ports that may be chosen for it.
    fn port_range(&self) -> RangeInclusive<u16>;
}

struct PortEntry<S> {
    address: IpAddr,
    owner: Weak<S>,
}

/// The ports of one protocol.
pub(super) struct Ports<S> {
    entries: SpinLock<BTreeMap<u16, Vec<PortEntry<S>>>>,
    next: AtomicU16,
    turn: AtomicUsize,
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
            list.retain(|entry| !entry.owner.ptr_eq(&self.owner));
            if list.is_empty() {
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
        Ports {
            entries: SpinLock::new(BTreeMap::new()),
            next: AtomicU16::new(0),
            turn: AtomicUsize::new(0),
        }
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
        let mut entries = self.entries.lock();
        let list = entries.entry(port).or_default();
        let conflict = list.iter().any(|entry| {
            let Some(other) = entry.owner.upgrade() else { return false };
            conflicts((&**owner, ip), (&*other, entry.address), is_stream)
        });
        if conflict || others(address) {
            if list.is_empty() {
                entries.remove(&port);
            }
            return Err(Errno::EADDRINUSE);
        }
        list.push(PortEntry { address: ip, owner: Arc::downgrade(owner) });
        Ok(Binding { ports: self, owner: Arc::downgrade(owner), address, is_asked: true })
    }

    /// Whether an owner may begin to listen at the address it is bound to: EADDRINUSE.
    pub(super) fn check_listening(&self, owner: &Arc<S>, address: SocketAddr) -> Result<()> {
        let entries = self.entries.lock();
        let mut others = entries.get(&address.port()).into_iter().flatten().filter_map(|entry| {
            let other = entry.owner.upgrade().filter(|other| !Arc::ptr_eq(other, owner))?;
            Some((other, entry.address))
        });
        let is_taken = others.any(|(other, its_address)| {
            conflicts((&**owner, address.ip()), (&*other, its_address), true)
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
                vacant.insert(alloc::vec![PortEntry { address: ip, owner: Arc::downgrade(owner) }]);
                let address = SocketAddr::new(ip, port);
                let owner = Arc::downgrade(owner);
                return Ok(Binding { ports: self, owner, address, is_asked: false });
            }
        }
        Err(Errno::EADDRINUSE)
    }

    /// All sockets that are bound to where `to` leads: to the group, or to "any".
    pub(super) fn all_of(&self, to: SocketAddr) -> Vec<Arc<S>> {
        let entries = self.entries.lock();
        let list = entries.get(&to.port()).map_or(&[][..], Vec::as_slice);
        let alive = list.iter().filter_map(|e| Some((e.address, e.owner.upgrade()?)));
        let covering = alive.filter(|(address, owner)| covers(*address, owner.v6_only(), to.ip()));
        covering.map(|(_, owner)| owner).collect()
    }

    /// The socket that gets what is sent to `to`, of those that `wanted` accepts: one bound to the
    /// very address before one bound to "any"; several (SO_REUSEPORT) take turns.
    pub(super) fn find(&self, to: SocketAddr, wanted: impl Fn(&S) -> bool) -> Option<Arc<S>> {
        let owners: Vec<(bool, Arc<S>)> = {
            let entries = self.entries.lock();
            let list = entries.get(&to.port())?;
            let alive = list.iter().filter_map(|e| Some((e.address, e.owner.upgrade()?)));
            alive
                .map(|(address, owner)| (address == to.ip(), address, owner))
                .filter(|(_, address, owner)| covers(*address, owner.v6_only(), to.ip()))
                .map(|(exact, _, owner)| (exact, owner))
                .collect()
        };
        let any_exact = owners.iter().any(|(exact, owner)| *exact && wanted(owner));
        let mut best: Vec<Arc<S>> = owners
            .into_iter()
            .filter(|(exact, owner)| *exact == any_exact && wanted(owner))
            .map(|(_, owner)| owner)
            .collect();
        if best.is_empty() {
            return None;
        }
        let turn = self.turn.fetch_add(1, Ordering::Relaxed) % best.len();
        Some(best.swap_remove(turn))
    }
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
