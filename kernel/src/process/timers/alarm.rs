//! What a timer that sends signals is made of, and a process's set of them. What they do:
//! [`super`].

use alloc::sync::{Arc, Weak};
use core::sync::atomic::AtomicU32;

use machine::sync::SpinLock;

use crate::base::id_map::IdMap;
use crate::base::time::Timer;
use crate::process::clock::Clock;
use crate::process::{Process, Thread};

/// Whom an expiry is told.
pub(crate) enum Notify {
    /// Nobody: the program asks (SIGEV_NONE).
    Nobody,
    Process(Weak<Process>),
    Thread(Weak<Thread>),
}

/// A timer.
pub(crate) struct AlarmTimer {
    pub(crate) own: Weak<AlarmTimer>,
    pub(crate) clock: Clock,
    pub(crate) notify: Notify,
    pub(crate) signal: u32,
    /// What makes it a POSIX timer. None: an interval timer, whose signal tells nothing.
    pub(crate) identity: Option<Identity>,
    pub(crate) state: SpinLock<TimerState>,
    /// Overruns of the signal that was delivered last (timer_getoverrun(2)).
    pub(crate) overruns: AtomicU32,
    /// How often it was set: no signal of an earlier setting is sent.
    pub(crate) settings: AtomicU32,
}

/// What a POSIX timer is to its program.
#[derive(Clone, Copy)]
pub struct Identity {
    /// Its id.
    pub id: u32,
    /// What its signal brings.
    pub value: u64,
    /// The number of its clock.
    pub clock: i32,
    /// How it tells of expiries (SIGEV_SIGNAL and its kin).
    pub notify: u32,
}

#[derive(Default)]
pub(crate) struct TimerState {
    /// When it expires next, on its clock or (not a CPU clock) the monotonic one; None: disarmed.
    pub(crate) next_ns: Option<u64>,
    /// How long before the begin of that clock the expiry was due, if it was: times of the wall
    /// clock can be older than the machine.
    pub(crate) early_ns: u64,
    /// 0: it expires once.
    pub(crate) interval_ns: u64,
    pub(crate) armed: Option<Timer>,
    /// Expiries whose signal was ignored, or forgotten with others, and those that the next one
    /// comes too late for: overruns of the next one.
    pub(crate) untold: u64,
    /// Since it was set: a signal may wait.
    pub(crate) has_expired: bool,
}

/// Value and interval of a timer, nanoseconds; value 0: disarmed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Setting {
    /// Until the next expiry.
    pub value_ns: u64,
    /// Between further ones; 0: none.
    pub interval_ns: u64,
}

/// The timers of a process.
#[derive(Default)]
pub struct Timers {
    /// ITIMER_REAL, ITIMER_VIRTUAL, ITIMER_PROF.
    pub(crate) interval: [Option<Arc<AlarmTimer>>; 3],
    /// timer_create(2)'s.
    pub(crate) posix: IdMap<Arc<AlarmTimer>>,
    pub(crate) next_id: u32,
    /// Second of CPU time at which SIGXCPU comes next (RLIMIT_CPU).
    pub(crate) cpu_limit_s: Option<u64>,
}
