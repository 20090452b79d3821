//! Whether a CPU is stuck, or only was not run: the decisions of the watchdog.
//!
//! The host of a virtual CPU may not run it for seconds, while it runs the others: it is
//! overloaded, or reads memory back that it had swapped out. Such a CPU does not tick either, and
//! the time does pass. So a CPU's own time is counted from tick to tick, with no more than
//! [`GAP_MAX_NS`] between two; and one that does not tick is asked by an interrupt that cannot be
//! masked: only if it answers that, and still does not tick, it is stuck.

/// Nanoseconds per second.
const SECOND_NS: u64 = 1_000_000_000;
/// How long no progress is still taken for slowness: 10 s.
pub const LIMIT_NS: u64 = 10 * SECOND_NS;
/// So much of the time between two ticks counts as the CPU's own.
pub const GAP_MAX_NS: u64 = SECOND_NS / 4;
/// How long a CPU that has answered may still be without a tick: 1 s.
pub const GRACE_NS: u64 = SECOND_NS;
/// How long a CPU may answer nothing at all: no host leaves one alone for a minute.
pub const DEAF_NS: u64 = 60 * SECOND_NS;

/// What a CPU has run since it was asked to let others run; 0: it is not asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Asked(u64);

impl Asked {
    /// As a word, for who keeps it.
    #[must_use]
    pub fn from_word(word: u64) -> Asked {
        Asked(word)
    }

    /// See [`Asked::from_word`].
    #[must_use]
    pub fn word(self) -> u64 {
        self.0
    }

    /// The CPU ticks, `gap_ns` behind its last tick, and is asked or not.
    #[must_use]
    pub fn tick(self, asked: bool, gap_ns: u64) -> Asked {
        match self.0 {
            0 => Asked(asked.into()),
            ran_ns => Asked(ran_ns + gap_ns.min(GAP_MAX_NS)),
        }
    }

    /// Whether it has looped for too long.
    #[must_use]
    pub fn is_stuck(self) -> bool {
        self.0 > LIMIT_NS
    }
}

/// What is known of the interrupt that a silent CPU was sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Probe {
    /// None was sent.
    None,
    /// It was sent, and not answered.
    Sent,
    /// It was answered so long ago, nanoseconds.
    Answered(u64),
}

/// What is to be done about a CPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Nothing.
    Fine,
    /// Send it the interrupt that cannot be masked.
    Ask,
    /// It is stuck.
    Stuck,
    /// It answers nothing.
    Deaf,
}

/// Of a CPU that has not ticked for `silent_ns`.
#[must_use]
pub fn of_silent(silent_ns: u64, probe: Probe) -> Verdict {
    match probe {
        _ if silent_ns <= LIMIT_NS => Verdict::Fine,
        Probe::None => Verdict::Ask,
        Probe::Answered(ago_ns) if ago_ns > GRACE_NS => Verdict::Stuck,
        Probe::Sent if silent_ns > DEAF_NS => Verdict::Deaf,
        Probe::Sent | Probe::Answered(_) => Verdict::Fine,
    }
}
