//! The connections there are, by their addresses and ports, and those that are over but keep their
//! ports for a while (TIME_WAIT; RFC 9293, 3.3.2).
//!
//! Why it is hard: the ends of a connection outlive their sockets. Who closes first keeps its port
//! for a minute, and bind(2) must see that. Nothing wakes up when the minute is over: whoever looks
//! finds what is due at the front of a queue, for all wait equally long.
//!
//! Lock order: the ports' lock, then this table's, which is held for a few look-ups.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::sync::atomic::{AtomicU16, Ordering};

use abi::{Errno, Result};
use machine::sync::SpinLock;

use super::super::ports::{Owner, covers};
use super::TcpSocket;
use crate::base::time::{NS_PER_SEC, now_ns};

/// How long an end waits that closed first: Linux's TCP_TIMEWAIT_LEN, and tcp_fin_timeout.
const WAIT_NS: u64 = 60 * NS_PER_SEC;
/// After so long a new connection may take the place of an old one on the loopback interface
/// (tcp_tw_reuse: 2).
const REUSE_NS: u64 = NS_PER_SEC;
/// Most ends that wait (tcp_max_tw_buckets); beyond, the oldest waits no more.
const WAITING_MAX: usize = 16_384;

/// One end of a connection: own port and address, and the peer.
type Key = (u16, IpAddr, SocketAddr);

/// Why an end without a socket is still known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// The peer has not ended its side.
    FinWait2,
    /// Both have.
    TimeWait,
}

enum FlowEntry {
    Socket(Weak<TcpSocket>),
    Waiting {
        why: Wait,
        until_ns: u64,
        /// SO_REUSEADDR, SO_REUSEPORT of the socket that was.
        reuse: (bool, bool),
    },
}

struct Table {
    entries: BTreeMap<Key, FlowEntry>,
    /// Ends that wait, the oldest first. One may be gone, or have begun anew: then its time
    /// differs.
    due: VecDeque<(u64, Key)>,
}

static TABLE: SpinLock<Table> =
    SpinLock::new(Table { entries: BTreeMap::new(), due: VecDeque::new() });
/// Where the search for a free port begins.
static NEXT: AtomicU16 = AtomicU16::new(0);

fn key(local: SocketAddr, peer: SocketAddr) -> Key {
    (local.port(), local.ip(), peer)
}

/// The least key of a port.
fn first_of(port: u16) -> Key {
    let any = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    (port, any, SocketAddr::new(any, 0))
}

impl Table {
    fn forget_old(&mut self, now_ns: u64) {
        while let Some((until_ns, key)) = self.due.front().copied()
            && (until_ns <= now_ns || self.due.len() > WAITING_MAX)
        {
            self.due.pop_front();
            if let Some(FlowEntry::Waiting { until_ns: its_ns, .. }) = self.entries.get(&key)
                && *its_ns == until_ns
            {
                self.entries.remove(&key);
            }
        }
    }

    /// Whether a new connection may take the place.
    fn is_free(&self, key: &Key, now_ns: u64) -> bool {
        match self.entries.get(key) {
            None => true,
            Some(FlowEntry::Socket(socket)) => socket.strong_count() == 0,
            Some(FlowEntry::Waiting { why, until_ns, .. }) => {
                *why == Wait::TimeWait && now_ns + WAIT_NS >= until_ns + REUSE_NS
            }
        }
    }
}

/// Takes the place of a connection from `local` to `peer`. EADDRNOTAVAIL if there is such a one.
pub(super) fn reserve(socket: &Arc<TcpSocket>, local: SocketAddr, peer: SocketAddr) -> Result<()> {
    let now = now_ns();
    let mut table = TABLE.lock();
    table.forget_old(now);
    if !table.is_free(&key(local, peer), now) {
        return Err(Errno::EADDRNOTAVAIL);
    }
    table.entries.insert(key(local, peer), FlowEntry::Socket(Arc::downgrade(socket)));
    Ok(())
}

/// The same from any port that `is_bound` does not know.
pub(super) fn reserve_any(
    socket: &Arc<TcpSocket>,
    local: IpAddr,
    peer: SocketAddr,
    is_bound: impl Fn(u16) -> bool,
) -> Result<u16> {
    let ports = socket.port_range();
    let count = ports.end() - ports.start() + 1;
    for _ in 0..count {
        let port = ports.start() + NEXT.fetch_add(1, Ordering::Relaxed) % count;
        // A connection with itself is for those who ask for it.
        let is_self = (local, port) == (peer.ip(), peer.port());
        if !is_self
            && !is_bound(port)
            && reserve(socket, SocketAddr::new(local, port), peer).is_ok()
        {
            return Ok(port);
        }
    }
    Err(Errno::EADDRNOTAVAIL)
}

/// The listener's end of a new connection. Whatever was there of old is over.
pub(super) fn put(socket: &Arc<TcpSocket>, local: SocketAddr, peer: SocketAddr) {
    TABLE.lock().entries.insert(key(local, peer), FlowEntry::Socket(Arc::downgrade(socket)));
}

/// The end is no more.
pub(super) fn remove(local: SocketAddr, peer: SocketAddr) {
    TABLE.lock().entries.remove(&key(local, peer));
}

/// The end waits from now on, if it is known at all.
pub(super) fn wait(local: SocketAddr, peer: SocketAddr, why: Wait, reuse: Option<(bool, bool)>) {
    let now = now_ns();
    let key = key(local, peer);
    let mut table = TABLE.lock();
    table.forget_old(now);
    let reuse = match (table.entries.get(&key), reuse) {
        (None, _) => return,
        (Some(FlowEntry::Waiting { reuse, .. }), None) => *reuse,
        (_, reuse) => reuse.unwrap_or_default(),
    };
    let until_ns = now + WAIT_NS;
    if table.due.try_reserve(1).is_err() {
        table.entries.remove(&key);
        return;
    }
    table.entries.insert(key, FlowEntry::Waiting { why, until_ns, reuse });
    table.due.push_back((until_ns, key));
}

/// Whether some connection keeps a socket from being bound to `address`.
pub(super) fn keep_from_binding(new: &TcpSocket, address: SocketAddr) -> bool {
    let mut table = TABLE.lock();
    table.forget_old(now_ns());
    let port = address.port();
    let ends = table.entries.range(first_of(port)..);
    let mut ends = ends.take_while(|(key, _)| key.0 == port);
    let (by_address, by_port) = new.reuse();
    ends.any(|(key, entry)| {
        let reuse = match entry {
            FlowEntry::Waiting { reuse, .. } => *reuse,
            FlowEntry::Socket(socket) => match socket.upgrade() {
                Some(socket) => socket.reuse(),
                None => return false,
            },
        };
        covers(address.ip(), new.v6_only(), key.1) && !(by_address && reuse.0 || by_port && reuse.1)
    })
}

/// An end without a socket, as /proc/net/tcp shows it.
pub struct WaitingEnd {
    /// Its own address.
    pub local: SocketAddr,
    /// Its peer's.
    pub peer: SocketAddr,
    /// Whether the peer has ended its side, too.
    pub is_time_wait: bool,
    /// How long it still waits.
    pub left_ns: u64,
}

/// All ends without sockets.
pub fn waiting() -> Vec<WaitingEnd> {
    let now = now_ns();
    let mut table = TABLE.lock();
    table.forget_old(now);
    let waiting = table.entries.iter().filter_map(|(key, entry)| match entry {
        FlowEntry::Socket(_) => None,
        FlowEntry::Waiting { why, until_ns, .. } => Some(WaitingEnd {
            local: SocketAddr::new(key.1, key.0),
            peer: key.2,
            is_time_wait: *why == Wait::TimeWait,
            left_ns: until_ns - now,
        }),
    });
    waiting.collect()
}
