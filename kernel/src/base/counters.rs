//! What TCP, UDP and UDP-Lite count (RFC 1213; /proc/net/snmp): connections and datagrams since
//! boot.
//!
//! There are no packets, so nothing counts segments. Each CPU counts in a place of its own: senders
//! on several CPUs share no line.

use core::sync::atomic::{AtomicU64, Ordering};

use machine::cpu::MAX_CPUS;
use machine::percpu::PerCpu;

/// What is counted. UDP's and UDP-Lite's are those of IPv4, as there.
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
    /// Of UDP-Lite: received, for nobody, without room, sent.
    LiteInDatagrams,
    /// See there.
    LiteNoPorts,
    /// See there.
    LiteNoRoom,
    /// See there.
    LiteOutDatagrams,
    /// Datagrams of UDP-Lite of which too little was covered.
    LiteUncovered,
}

const KINDS: usize = Counted::LiteUncovered as usize + 1;

impl Counted {
    /// What UDP-Lite counts where UDP counts this.
    #[must_use]
    pub fn of_udplite(self) -> Counted {
        match self {
            Counted::InDatagrams => Counted::LiteInDatagrams,
            Counted::NoPorts => Counted::LiteNoPorts,
            Counted::NoRoom => Counted::LiteNoRoom,
            Counted::OutDatagrams => Counted::LiteOutDatagrams,
            other => other,
        }
    }
}

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
