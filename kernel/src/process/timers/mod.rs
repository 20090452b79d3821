//! Timers that send signals: alarm(2), setitimer(2), timer_create(2).
//!
//! One kind of timer serves all of them. On the wall or monotonic clock it is a timer of the kernel
//! (`time::wake_at`): it expires in an interrupt and sends its signal there. On a CPU clock it is
//! looked at by the tick of the threads that run on that clock's time.
//!
//! A timer that expires again before its signal was taken sends no second one; it counts an overrun
//! in the first. While the signal is ignored overruns count for the one after that. A timer that is
//! set anew or deleted takes its signal back.
//!
//! Locks: a process's `timers`, a timer's `state`; signals are sent with neither held.
//! Neighbour: `crate::timers` has the system calls.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};

use abi::general as raw;
use machine::sync::SpinLock;

use super::signal::{SigInfo, send};
use super::{Process, Thread, current};
use crate::base::sync::Wake;
use crate::base::time::{Deadline, NS_PER_SEC, TimeSpec, now_ns, wake_at};
use crate::process::clock::Clock;
use crate::security::{Resource, UNLIMITED};

mod alarm;

use alarm::TimerState;
pub(crate) use alarm::{AlarmTimer, Notify};
pub use alarm::{Identity, Setting, Timers};

/// A periodic timer fires no more often than this, whatever its interval; what it misses are
/// overruns.
const MIN_PERIOD_NS: u64 = 100_000;

impl AlarmTimer {
    pub(crate) fn new(
        clock: Clock,
        notify: Notify,
        signal: u32,
        identity: Option<Identity>,
    ) -> Arc<AlarmTimer> {
        Arc::new_cyclic(|own| AlarmTimer {
            own: own.clone(),
            clock,
            notify,
            signal,
            identity,
            state: SpinLock::default(),
            overruns: AtomicU32::new(0),
            settings: AtomicU32::new(0),
        })
    }

    pub(crate) fn is_on_cpu_clock(&self) -> bool {
        self.clock.monotonic_offset_ns().is_none()
    }

    /// Now, on the clock on which it expires.
    fn now_ns(&self) -> u64 {
        if self.is_on_cpu_clock() { self.clock.now_ns() } else { now_ns() }
    }

    /// What is left, and the interval.
    pub(crate) fn get(&self) -> Setting {
        let now_ns = self.now_ns();
        let state = self.state.lock();
        let left = |next: u64| next.saturating_sub(now_ns).max(1);
        Setting { value_ns: state.next_ns.map_or(0, left), interval_ns: state.interval_ns }
    }

    /// Arms or disarms it. `absolute`: the value is a time of its clock.
    pub(crate) fn set(&self, setting: Setting, absolute: bool, process: &Process) {
        let mut early_ns = 0;
        let next_ns = if setting.value_ns == 0 {
            None
        } else if absolute {
            let offset_ns = self.clock.monotonic_offset_ns().unwrap_or(0);
            early_ns = offset_ns.saturating_sub(setting.value_ns);
            Some(setting.value_ns.saturating_sub(offset_ns))
        } else {
            Some(self.now_ns().saturating_add(setting.value_ns))
        };
        self.disarm(process);
        let mut state = self.state.lock();
        if let Some(timer) = state.armed.take() {
            timer.cancel();
        }
        state.next_ns = next_ns;
        state.early_ns = early_ns;
        state.interval_ns = setting.interval_ns;
        // A time that has passed is due in this call, not when an interrupt gets through.
        let has_passed = |next: u64| next <= self.now_ns();
        let is_due = absolute && !self.is_on_cpu_clock() && next_ns.is_some_and(has_passed);
        if !is_due {
            self.arm(&mut state);
        }
        drop(state);
        if is_due && let Some(expiry) = self.expire() {
            self.fire(expiry);
        }
    }

    /// Expires no more, and no signal of what it was set to is sent from now on. One that waits is
    /// taken back: before the timer is set anew, for that may be due at once. No lock is held.
    pub(crate) fn disarm(&self, process: &Process) {
        let old = {
            let mut state = self.state.lock();
            self.settings.fetch_add(1, Ordering::SeqCst);
            core::mem::take(&mut *state)
        };
        if let Some(timer) = old.armed {
            timer.cancel();
        }
        if let Some(Identity { id, .. }) = self.identity
            && old.has_expired
        {
            let target = match &self.notify {
                Notify::Thread(thread) => match thread.upgrade() {
                    None => return,
                    thread => thread,
                },
                _ => None,
            };
            send::recall_timer(process, target.as_deref(), self.signal, id);
        }
    }

    fn arm(&self, state: &mut TimerState) {
        let (Some(next_ns), Some(own)) = (state.next_ns, self.own.upgrade()) else { return };
        if !self.is_on_cpu_clock() {
            state.armed = Some(wake_at(Deadline(next_ns), own));
        }
    }

    /// Takes an expiry if one is due.
    fn expire(&self) -> Option<Expiry> {
        let now_ns = self.now_ns();
        let mut state = self.state.lock();
        let next_ns = state.next_ns.filter(|&next_ns| next_ns <= now_ns)?;
        state.armed = None;
        state.has_expired = true;
        let setting = self.settings.load(Ordering::SeqCst);
        let late_ns = (now_ns - next_ns).saturating_add(core::mem::take(&mut state.early_ns));
        let Some(missed) = late_ns.checked_div(state.interval_ns) else {
            // It expires once.
            state.next_ns = None;
            return Some(Expiry { missed: 0, setting });
        };
        let on_time = now_ns + (state.interval_ns - late_ns % state.interval_ns);
        let missed = missed.saturating_add(core::mem::take(&mut state.untold));
        let next_ns = on_time.max(now_ns + MIN_PERIOD_NS.min(state.interval_ns.saturating_mul(4)));
        state.untold = (next_ns - on_time) / state.interval_ns;
        state.next_ns = Some(next_ns);
        self.arm(&mut state);
        Some(Expiry { missed, setting })
    }

    /// Sends the signal of an expiry. No lock is held.
    fn fire(&self, expiry: Expiry) {
        let missed = expiry.missed.min(i32::MAX as u64) as u32;
        let info = match self.identity {
            None => SigInfo::kernel(self.signal),
            Some(Identity { id, value, .. }) => SigInfo::timer(self.signal, id, missed, value),
        };
        match &self.notify {
            Notify::Nobody => {}
            Notify::Process(process) => {
                if let Some(process) = process.upgrade() {
                    self.send(&process, None, info, expiry);
                }
            }
            Notify::Thread(thread) => {
                if let Some(thread) = thread.upgrade() {
                    self.send(&thread.process, Some(&thread), info, expiry);
                }
            }
        }
    }

    fn send(
        &self,
        process: &Arc<Process>,
        thread: Option<&Arc<Thread>>,
        info: SigInfo,
        expiry: Expiry,
    ) {
        let is_current = || self.settings.load(Ordering::SeqCst) == expiry.setting;
        if !send::send_timer(process, thread, info, &is_current) && self.identity.is_some() {
            self.note_untold(expiry.setting, expiry.missed);
        }
    }

    /// Expiries of a setting, one and `more`, were told to nobody. Of one that expires once they
    /// never are.
    fn note_untold(&self, setting: u32, more: u64) {
        let mut state = self.state.lock();
        if self.settings.load(Ordering::SeqCst) == setting && state.interval_ns > 0 {
            state.untold = state.untold.saturating_add(more).saturating_add(1);
        }
    }
}

/// A timer has expired.
#[derive(Clone, Copy)]
struct Expiry {
    /// Intervals that have passed beyond the first.
    missed: u64,
    /// The setting it was of.
    setting: u32,
}

impl Wake for AlarmTimer {
    /// The kernel's timer has come to its deadline.
    fn wake(&self, _events: u32) -> bool {
        if let Some(expiry) = self.expire() {
            self.fire(expiry);
        }
        true
    }
}

/// The process ends: all its timers go.
pub fn release(process: &Arc<Process>) {
    let timers = core::mem::take(&mut *process.timers.lock());
    process.settings.measures_cpu_time.store(false, Ordering::Relaxed);
    for timer in timers.interval.iter().flatten().chain(timers.posix.values()) {
        timer.disarm(process);
    }
}

/// The process executes a program: its POSIX timers go, its interval timers stay.
pub fn on_exec(process: &Arc<Process>) {
    let posix = core::mem::take(&mut process.timers.lock().posix);
    for timer in posix.values() {
        timer.disarm(process);
    }
}

/// A signal of a POSIX timer is delivered: its overruns are what timer_getoverrun(2) tells now. A
/// CPU clock is looked at by the tick alone: what has passed since then counts, too. Of a timer
/// that expires once nothing can have, and its own signal is not lost to one that a program made
/// up. No lock is held.
pub fn note_delivery(process: &Process, info: &mut SigInfo) {
    let timer = process.timers.lock().posix.get(info.timer_fields().0).cloned();
    let Some(timer) = timer else { return };
    if timer.is_on_cpu_clock()
        && timer.state.lock().interval_ns > 0
        && let Some(expiry) = timer.expire()
    {
        info.add_overruns(expiry.missed.saturating_add(1).min(i32::MAX as u64) as u32);
    }
    timer.overruns.store(info.timer_fields().1, Ordering::Relaxed);
}

/// Signals were forgotten because they are ignored now: those of timers count as overruns.
pub fn note_forgotten(process: &Process, forgotten: &[SigInfo]) {
    for info in forgotten.iter().filter(|info| info.code == raw::SI_TIMER) {
        let (id, overruns) = info.timer_fields();
        let timer = process.timers.lock().posix.get(id).cloned();
        if let Some(timer) = timer {
            timer.note_untold(timer.settings.load(Ordering::SeqCst), overruns.into());
        }
    }
}

/// Notes whether the tick has anything to look at.
pub(crate) fn update_watch(process: &Process) {
    let timers = process.timers.lock();
    let mut all = timers.interval.iter().flatten().chain(timers.posix.values());
    let armed = all.any(|timer| timer.is_on_cpu_clock() && timer.state.lock().next_ns.is_some());
    let limited = process.limit(Resource::Cpu) != UNLIMITED;
    process.settings.measures_cpu_time.store(armed || limited, Ordering::Relaxed);
    if armed {
        // On a CPU without tick this brings it back.
        current().task().set_work(super::work::RESCHEDULE);
    }
}

/// RLIMIT_CPU has changed.
pub fn cpu_limit_changed(process: &Process) {
    process.timers.lock().cpu_limit_s = None;
    update_watch(process);
}

/// The tick of a thread of a process that watches its CPU time. In an interrupt.
#[cold]
pub fn cpu_tick() {
    let process = &current().process;
    let due: Vec<(Arc<AlarmTimer>, Expiry)> = {
        let timers = process.timers.lock();
        let all = timers.interval.iter().flatten().chain(timers.posix.values());
        all.filter(|timer| timer.is_on_cpu_clock())
            .filter_map(|timer| Some((timer.clone(), timer.expire()?)))
            .collect()
    };
    for (timer, expiry) in due {
        timer.fire(expiry);
    }
    check_cpu_limit(process);
}

/// SIGXCPU every second beyond the soft limit, SIGKILL at the hard one (setrlimit(2)).
fn check_cpu_limit(process: &Arc<Process>) {
    let limit = process.limits.get(Resource::Cpu);
    if limit.soft == UNLIMITED {
        return;
    }
    let [user_ns, kernel_ns] = process.times_ns();
    let used_s = (user_ns + kernel_ns) / NS_PER_SEC;
    let signal = {
        let mut timers = process.timers.lock();
        let next_s = timers.cpu_limit_s.unwrap_or(limit.soft);
        if used_s >= limit.hard {
            raw::SIGKILL
        } else if used_s >= next_s {
            timers.cpu_limit_s = Some(used_s + 1);
            raw::SIGXCPU
        } else {
            return;
        }
    };
    let _ = send::send_to_process(process, SigInfo::kernel(signal));
}

impl Setting {
    /// As `struct itimerspec`: interval first.
    pub(crate) fn to_user(self) -> [TimeSpec; 2] {
        [TimeSpec::from_ns(self.interval_ns), TimeSpec::from_ns(self.value_ns)]
    }
}
