//! What TCP and UDP count (RFC 1213; /proc/net/snmp): connections and datagrams since boot.
//!
//! There are no packets, so nothing counts segments. Each CPU counts in a place of its own: senders
//! on several CPUs share no line.

use core::sync::atomic::{AtomicU64, Ordering};

use machine::cpu::MAX_CPUS;
use machine::percpu::PerCpu;

/// What is counted. UDP's are those of IPv4, as there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// Connections that connect(2) began.
    ActiveOpens,
    /// Connections that a listener was given.
    PassiveOpens,
    /// Attempts that failed.
    AttemptFails,
    /// Connections that were broken off.
    EstabResets,
    /// RSTs sent.
    OutRsts,
    /// Datagrams that a program received.
    InDatagrams,
    /// Datagrams that nobody was there for.
    NoPorts,
    /// Datagrams that found no room.
    NoRoom,
    /// Datagrams sent.
    OutDatagrams,
}

const KINDS: usize = Counted::OutDatagrams as usize + 1;

type Counters = [AtomicU64; KINDS];

static COUNTERS: PerCpu<Counters> =
    PerCpu::from_array([const { [const { AtomicU64::new(0) }; KINDS] }; MAX_CPUS]);

/// Counts one.
pub fn count(what: Counted) {
    COUNTERS.get()[what as usize].fetch_add(1, Ordering::Relaxed);
}

/// How many there were, on all CPUs.
#[must_use]
pub fn total(what: Counted) -> u64 {
    COUNTERS.iter().map(|own| own[what as usize].load(Ordering::Relaxed)).sum()
}
