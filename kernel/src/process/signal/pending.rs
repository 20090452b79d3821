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
    /// Real-time ones, by number.
    real_time: BTreeMap<u32, RealTime>,
    /// How many of those there are.
    real_time_len: usize,
    /// When the real-time signals of timers came that wait: by the timers' ids. One that has been
    /// taken may stand here still.
    timers: BTreeMap<u32, u64>,
    /// How many have come.
    came: u64,
}

/// Real-time signals of one number, in the order in which they came, with when that was. One that
/// was taken back from the middle leaves a gap, so that nobody behind it moves.
#[derive(Default)]
struct RealTime {
    entries: VecDeque<(u64, Option<SigInfo>)>,
    gaps: usize,
}

impl RealTime {
    /// Room that is kept although no signal waits.
    const KEPT: usize = 32;

    /// False if there is no memory.
    fn push(&mut self, came: u64, info: SigInfo) -> bool {
        let has_room = self.entries.try_reserve(1).is_ok();
        if has_room {
            self.entries.push_back((came, Some(info)));
        }
        has_room
    }

    /// Takes the first, and whether it was the last one.
    fn pop(&mut self) -> (Option<SigInfo>, bool) {
        let first = self.entries.pop_front().and_then(|(_, info)| info);
        self.trim();
        (first, self.entries.is_empty())
    }

    /// Takes the one that came then back, if it waits still.
    fn remove(&mut self, came: u64) -> Option<SigInfo> {
        let at = self.place(came)?;
        let info = self.entries[at].1.take()?;
        self.gaps += 1;
        self.trim();
        if self.gaps > self.entries.len() / 2 {
            self.entries.retain(|(_, info)| info.is_some());
            self.gaps = 0;
        }
        Some(info)
    }

    fn get_mut(&mut self, came: u64) -> Option<&mut SigInfo> {
        let at = self.place(came)?;
        self.entries[at].1.as_mut()
    }

    fn place(&self, came: u64) -> Option<usize> {
        self.entries.binary_search_by_key(&came, |&(came, _)| came).ok()
    }

    /// Neither the first nor the last is a gap.
    fn trim(&mut self) {
        while self.entries.front().is_some_and(|(_, info)| info.is_none()) {
            self.entries.pop_front();
            self.gaps -= 1;
        }
        while self.entries.back().is_some_and(|(_, info)| info.is_none()) {
            self.entries.pop_back();
            self.gaps -= 1;
        }
        if self.entries.is_empty() && self.entries.capacity() > Self::KEPT {
            self.entries = VecDeque::new();
        }
    }

    fn iter(&self) -> impl Iterator<Item = (u64, SigInfo)> {
        self.entries.iter().filter_map(|&(came, info)| Some((came, info?)))
    }
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
        let has_room = self.queue.len() + self.real_time_len < limit;
        if has_room
            && real_time
            && !machine::frame::is_short()
            && self.real_time.entry(number).or_default().push(self.came, info)
        {
            self.real_time_len += 1;
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
        let pending = match info.code {
            raw::SI_TIMER => self.of_timer(info.number(), id),
            _ => None,
        };
        if let Some(pending) = pending {
            pending.add_overruns(missed.saturating_add(1));
            return;
        }
        let came = self.came;
        // Timers are bounded, and each has one entry at most.
        let _ = self.add(info, usize::MAX);
        let is_real_time = info.number() >= raw::SIGRTMIN;
        if info.code == raw::SI_TIMER && is_real_time && self.came > came {
            self.timers.insert(id, came);
        }
    }

    /// The signal of this number that this timer has sent, if it waits.
    fn of_timer(&mut self, number: u32, id: u32) -> Option<&mut SigInfo> {
        if number >= raw::SIGRTMIN {
            let &came = self.timers.get(&id)?;
            return self.real_time.get_mut(&number)?.get_mut(came);
        }
        let mut standard = self.queue.iter_mut().map(|(_, info)| info);
        standard.find(|info| info.number() == number && info.is_of_timer(id))
    }

    /// Takes the signal of a timer back, if it waits.
    pub fn recall_timer(&mut self, number: u32, id: u32) {
        if number < raw::SIGRTMIN {
            let before = self.queue.len();
            self.queue.retain(|(_, info)| info.number() != number || !info.is_of_timer(id));
            if self.queue.len() < before {
                self.set &= !bit(number);
            }
            return;
        }
        let Some(came) = self.timers.remove(&id) else { return };
        let Some(all) = self.real_time.get_mut(&number) else { return };
        if all.remove(came).is_some() {
            self.real_time_len -= 1;
            if all.entries.is_empty() {
                self.set &= !bit(number);
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
        let Some(all) = self.real_time.get_mut(&number) else { return (None, true) };
        let (first, is_last) = all.pop();
        if let Some(info) = first {
            self.real_time_len -= 1;
            if info.code == raw::SI_TIMER {
                self.forget_timer(info.timer_fields().0);
            }
        }
        (first, is_last)
    }

    /// A signal with this id of a timer was taken. A program may have sent it: then the timer's own
    /// waits still.
    #[inline(never)]
    fn forget_timer(&mut self, id: u32) {
        let Some(&came) = self.timers.get(&id) else { return };
        if !self.real_time.values().any(|all| all.place(came).is_some()) {
            self.timers.remove(&id);
        }
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
        let real_time = self.real_time.values().flat_map(RealTime::iter);
        let mut all: Vec<(u64, SigInfo)> = standard.chain(real_time).collect();
        all.sort_unstable_by_key(|&(came, _)| came);
        all.get(at).map(|&(_, info)| info)
    }

    /// Forgets the signals of `gone`.
    pub fn remove(&mut self, gone: SignalSet) {
        if self.set & gone != 0 {
            self.set &= !gone;
            self.queue.retain(|(_, info)| gone & bit(info.number()) == 0);
            self.real_time.retain(|&number, _| gone & bit(number) == 0);
            let all = self.real_time.values();
            self.real_time_len = all.map(|all| all.entries.len() - all.gaps).sum();
        }
    }

    /// Those of `set` that timers sent.
    pub fn of_timers(&self, set: SignalSet) -> impl Iterator<Item = SigInfo> {
        let real_time = self.real_time.values().flat_map(RealTime::iter);
        let all = self.queue.iter().copied().chain(real_time).map(|(_, info)| info);
        all.filter(move |info| info.code == raw::SI_TIMER && set & bit(info.number()) != 0)
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        *self = Pending::default();
    }
}
