//! Sets of signals, and the signals that wait to be delivered.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

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

/// Signals sent and not yet delivered. Standard signals collapse; real-time ones queue, as many as
/// the limit says, so they have an order of their own.
#[derive(Default)]
pub struct Pending {
    set: SignalSet,
    /// Standard ones, with when they came.
    queue: VecDeque<(u64, SigInfo)>,
    /// Real-time ones, by number and when they came.
    real_time: BTreeMap<(u32, u64), SigInfo>,
    /// How many have come.
    came: u64,
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
        let has_room = self.queue.len() + self.real_time.len() < limit;
        let place = (number, self.came);
        if has_room && real_time && !machine::frame::is_short() {
            self.real_time.insert(place, info);
            self.came += 1;
        } else if has_room && !real_time && self.queue.try_reserve(1).is_ok() {
            self.queue.push_back((self.came, info));
            self.came += 1;
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
        let standard = self.queue.iter_mut().map(|(_, info)| info);
        let of_number = (info.number(), 0)..=(info.number(), u64::MAX);
        let real_time = self.real_time.range_mut(of_number).map(|(_, info)| info);
        match standard.chain(real_time).find(same) {
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
        let (info, is_last) = self.take_first(number);
        if is_last {
            self.set &= !bit(number);
        }
        // One that found the queue full: as if a process without id had sent it.
        Some(info.unwrap_or(SigInfo::unknown(number)))
    }

    /// Takes the first signal with this number, and whether it was the last one.
    fn take_first(&mut self, number: u32) -> (Option<SigInfo>, bool) {
        if number < raw::SIGRTMIN {
            // A standard signal is in the queue once at most.
            let is_first = self.queue.front().is_some_and(|(_, info)| info.number() == number);
            let info = match is_first {
                true => self.queue.pop_front(),
                false => self.take_later(number),
            };
            return (info.map(|(_, info)| info), true);
        }
        let mut of_number = self.real_time.range((number, 0)..=(number, u64::MAX));
        let first = of_number.next().map(|(&place, _)| place);
        let is_last = of_number.next().is_none();
        (first.and_then(|place| self.real_time.remove(&place)), is_last)
    }

    /// Takes a standard signal with this number that is not the first of the queue.
    #[inline(never)]
    fn take_later(&mut self, number: u32) -> Option<(u64, SigInfo)> {
        let at = self.queue.iter().position(|(_, info)| info.number() == number)?;
        self.queue.remove(at)
    }

    /// What is known about the signal that came as number `at` of those that wait.
    #[must_use]
    pub fn get(&self, at: usize) -> Option<SigInfo> {
        let standard = self.queue.iter().copied();
        let real_time = self.real_time.iter().map(|(&(_, came), &info)| (came, info));
        let mut all: Vec<(u64, SigInfo)> = standard.chain(real_time).collect();
        all.sort_unstable_by_key(|&(came, _)| came);
        all.get(at).map(|&(_, info)| info)
    }

    /// Forgets the signals of `gone`.
    pub fn remove(&mut self, gone: SignalSet) {
        if self.set & gone != 0 {
            self.set &= !gone;
            self.queue.retain(|(_, info)| gone & bit(info.number()) == 0);
            self.real_time.retain(|(number, _), _| gone & bit(*number) == 0);
        }
    }

    /// Those of `set` that timers sent.
    pub fn of_timers(&self, set: SignalSet) -> impl Iterator<Item = SigInfo> {
        let all = self.queue.iter().map(|(_, info)| info).chain(self.real_time.values());
        all.filter(move |info| info.code == raw::SI_TIMER && set & bit(info.number()) != 0).copied()
    }

    /// Forgets the signals that are `gone`.
    pub fn remove_if(&mut self, gone: impl Fn(&SigInfo) -> bool) {
        let mut numbers = 0;
        let mut stays = |info: &SigInfo| {
            let is_gone = gone(info);
            numbers |= if is_gone { bit(info.number()) } else { 0 };
            !is_gone
        };
        self.queue.retain(|(_, info)| stays(info));
        self.real_time.retain(|_, info| stays(info));
        for number in (1..=LAST).filter(|&number| numbers & bit(number) != 0) {
            let mut others = self.real_time.range((number, 0)..=(number, u64::MAX));
            if others.next().is_none() {
                self.set &= !bit(number);
            }
        }
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        *self = Pending::default();
    }
}
