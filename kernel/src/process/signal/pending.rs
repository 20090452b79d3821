//! Sets of signals, and the signals that wait to be delivered.

use alloc::collections::VecDeque;

use abi::general as raw;

use super::info::SigInfo;

/// A set of signals: bit n-1 is signal n.
pub type SignalSet = u64;

/// Number of the last signal.
pub const LAST: u32 = 64;

/// The set with just this signal (1 to 64).
#[must_use]
#[inline(always)]
pub const fn bit(signal: u32) -> SignalSet {
    1 << (signal - 1)
}

/// Signals that can neither be caught nor blocked nor ignored.
pub const UNBLOCKABLE: SignalSet = bit(raw::SIGKILL) | bit(raw::SIGSTOP);
/// Signals that stop a process by default.
pub const STOPS: SignalSet =
    bit(raw::SIGSTOP) | bit(raw::SIGTSTP) | bit(raw::SIGTTIN) | bit(raw::SIGTTOU);
/// Signals that do nothing by default.
pub const HARMLESS: SignalSet =
    bit(raw::SIGCHLD) | bit(raw::SIGURG) | bit(raw::SIGWINCH) | bit(raw::SIGCONT);
/// Signals whose default action dumps core (signal(7)).
pub const DUMPS_CORE: SignalSet = bit(raw::SIGQUIT)
    | bit(raw::SIGILL)
    | bit(raw::SIGTRAP)
    | bit(raw::SIGABRT)
    | bit(raw::SIGBUS)
    | bit(raw::SIGFPE)
    | bit(raw::SIGSEGV)
    | bit(raw::SIGXCPU)
    | bit(raw::SIGXFSZ)
    | bit(raw::SIGSYS);
/// Signals that a program's own instructions cause: delivered before all others.
const SYNCHRONOUS: SignalSet = bit(raw::SIGSEGV)
    | bit(raw::SIGBUS)
    | bit(raw::SIGILL)
    | bit(raw::SIGTRAP)
    | bit(raw::SIGFPE)
    | bit(raw::SIGSYS);

/// Signals sent and not yet delivered. Standard signals collapse; real-time ones queue.
#[derive(Default)]
pub struct Pending {
    set: SignalSet,
    queue: VecDeque<SigInfo>,
}

/// The queue of real-time signals is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueFull;

impl Pending {
    /// Signals that are pending.
    #[inline(always)]
    #[must_use]
    pub fn set(&self) -> SignalSet {
        self.set
    }

    /// Adds a signal. `limit`: most queue entries (RLIMIT_SIGPENDING). Beyond it a signal is
    /// pending still, but nothing is known about it; a real-time signal with a value is refused
    /// instead.
    pub fn add(&mut self, info: SigInfo, limit: usize) -> Result<(), QueueFull> {
        let number = info.number();
        let real_time = number >= raw::SIGRTMIN;
        if !real_time && self.set & bit(number) != 0 {
            return Ok(());
        }
        if self.queue.len() < limit && self.queue.try_reserve(1).is_ok() {
            self.queue.push_back(info);
        } else if real_time && info.code < 0 {
            return Err(QueueFull);
        }
        self.set |= bit(number);
        Ok(())
    }

    /// Adds the signal of a timer, or an overrun to the one that is pending still. `info` says how
    /// many expiries it stands for beyond the first.
    pub fn add_timer(&mut self, info: SigInfo) {
        let (id, missed) = info.timer_fields();
        let same = |other: &&mut SigInfo| {
            info.code == raw::SI_TIMER
                && other.code == raw::SI_TIMER
                && other.signo == info.signo
                && other.timer_fields().0 == id
        };
        match self.queue.iter_mut().find(same) {
            Some(pending) => pending.add_overruns(missed.saturating_add(1)),
            // Timers are bounded, and each has one entry at most.
            None => {
                let _ = self.add(info, usize::MAX);
            }
        }
    }

    /// Takes the next signal of `wanted`: synchronous ones first, then by number.
    pub fn take(&mut self, wanted: SignalSet) -> Option<SigInfo> {
        let candidates = self.set & wanted;
        if candidates == 0 {
            return None;
        }
        let urgent = candidates & SYNCHRONOUS;
        let number = (if urgent != 0 { urgent } else { candidates }).trailing_zeros() + 1;
        let at = self.queue.iter().position(|info| info.number() == number);
        let info = at.and_then(|at| self.queue.remove(at));
        if !self.queue.iter().any(|info| info.number() == number) {
            self.set &= !bit(number);
        }
        // One that found the queue full: as if a process without id had sent it.
        Some(info.unwrap_or(SigInfo::unknown(number)))
    }

    /// What is known about the signal that came as number `at` of those that wait.
    #[must_use]
    pub fn get(&self, at: usize) -> Option<SigInfo> {
        self.queue.get(at).copied()
    }

    /// Forgets the signals of `gone`.
    pub fn remove(&mut self, gone: SignalSet) {
        if self.set & gone != 0 {
            self.set &= !gone;
            self.queue.retain(|info| gone & bit(info.number()) == 0);
        }
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        *self = Pending::default();
    }
}
