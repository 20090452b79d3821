//! Timers as files (timerfd_create(2)).
//!
//! A timer that expires marks itself once and is not armed again until somebody reads it: the
//! number of missed periods is computed then. So an unread periodic timer costs nothing, whatever
//! its period. Whoever looks at a timer goes by its clock, not by whether the interrupt has come:
//! one set to a time that has passed has expired at once.
//!
//! All deadlines are kept on the clock they were given in; the monotonic moment is derived when the
//! timer is armed. When the wall clock is set, [`clock_was_set`] re-arms what depends on it.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;

use abi::{Errno, Result, general as raw};
use machine::sync::SpinLock;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::base::io::Sink;
use crate::base::poll::{PollTable, events};
use crate::base::sync::{WaitQueue, Wake};
use crate::base::time::{self, Deadline, TimeSpec, Timer};
use crate::base::user::UserPtr;
use crate::process::current;
use crate::security::Capability;
use crate::vfs::{File, FileOps, FileType, Inode, anon::AnonInode};

/// `struct itimerspec` (timerfd_settime(2)).
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct ITimerSpec {
    interval: TimeSpec,
    value: TimeSpec,
}

#[derive(Default)]
struct TimerState {
    /// When it expires next, on its own clock; 0: disarmed.
    due_ns: u64,
    interval_ns: u64,
    /// It has expired since `due_ns` was set; periods after that are not counted yet.
    is_expired: bool,
    /// Expirations that were counted and not read.
    ticks: u64,
    /// The wall clock was set under a timer that wanted to know.
    is_cancelled: bool,
    cancel_on_set: bool,
    /// Flags of the last timerfd_settime(2), for /proc.
    flags: u32,
    timer: Option<Timer>,
}

/// The part that the timer queue holds.
struct Core {
    /// As timerfd_create(2) got it, for /proc.
    clock: u32,
    is_realtime: bool,
    state: SpinLock<TimerState>,
    queue: Arc<WaitQueue>,
}

impl Core {
    fn now_ns(&self) -> u64 {
        if self.is_realtime { time::realtime_ns() } else { time::now_ns() }
    }

    /// Arms the timer for `due_ns`. The state's lock is held; no timer is armed.
    fn arm(self: &Arc<Self>, state: &mut TimerState) {
        let offset_ns = if self.is_realtime { time::realtime_offset_ns() } else { 0 };
        let at = Deadline(state.due_ns.saturating_sub(offset_ns));
        state.timer = Some(time::wake_at(at, self.clone()));
    }

    fn disarm(state: &mut TimerState) {
        if let Some(timer) = state.timer.take() {
            timer.cancel();
        }
    }

    /// Marks it expired if its time has come. The state's lock is held.
    fn note_expiry(&self, state: &mut TimerState) {
        if !state.is_expired && state.due_ns != 0 && self.now_ns() >= state.due_ns {
            state.ticks += 1;
            state.is_expired = true;
        }
    }

    /// Counts the periods since it expired, if it has any, and arms the next one.
    fn go_on(self: &Arc<Self>, state: &mut TimerState) {
        self.note_expiry(state);
        if !state.is_expired || state.interval_ns == 0 {
            return;
        }
        state.is_expired = false;
        Core::disarm(state);
        let periods = self.now_ns().saturating_sub(state.due_ns) / state.interval_ns;
        state.ticks = state.ticks.saturating_add(periods);
        let next = (periods + 1).saturating_mul(state.interval_ns);
        state.due_ns = state.due_ns.saturating_add(next);
        self.arm(state);
    }

    /// Takes the number of expirations; None if there are none.
    fn take_ticks(self: &Arc<Self>, state: &mut TimerState) -> Option<u64> {
        self.go_on(state);
        if state.is_expired {
            state.is_expired = false;
            Core::disarm(state);
            state.due_ns = 0;
        }
        Some(core::mem::take(&mut state.ticks)).filter(|ticks| *ticks > 0)
    }

    /// What a read gives: Some(Err(ECANCELED)) after the clock was set.
    fn try_read(self: &Arc<Self>) -> Option<Result<u64>> {
        let mut state = self.state.lock();
        if core::mem::take(&mut state.is_cancelled) {
            return Some(Err(Errno::ECANCELED));
        }
        self.take_ticks(&mut state).map(Ok)
    }

    /// Time to the next expiry and the period. Its expiry has been noted.
    fn remaining(&self, state: &TimerState) -> ITimerSpec {
        let now_ns = self.now_ns();
        let rest_ns = match state.due_ns.saturating_sub(now_ns) {
            0 if state.due_ns != 0 && state.interval_ns > 0 => {
                let late_ns = (now_ns - state.due_ns) % state.interval_ns;
                state.interval_ns - late_ns
            }
            rest_ns => rest_ns,
        };
        ITimerSpec {
            interval: TimeSpec::from_ns(state.interval_ns),
            value: TimeSpec::from_ns(rest_ns),
        }
    }
}

impl Wake for Core {
    fn wake(&self, _events: u32) -> bool {
        {
            let mut state = self.state.lock();
            self.note_expiry(&mut state);
            if !state.is_expired {
                // Disarmed or re-armed while this expiry was on its way. A clock that was set back
                // re-arms by itself.
                return false;
            }
        }
        self.queue.wake_all(events::READABLE);
        true
    }
}

/// Timers on the wall clock, to be told when it is set.
static REALTIME: SpinLock<Vec<Weak<Core>>> = SpinLock::new(Vec::new());

/// The wall clock was set: timers on it are armed anew or cancelled.
pub fn clock_was_set() {
    let mut cores: Vec<Arc<Core>> = Vec::new();
    {
        let mut known = REALTIME.lock();
        known.retain(|core| core.strong_count() > 0);
        cores.extend(known.iter().filter_map(Weak::upgrade));
    }
    for core in cores {
        let mut state = core.state.lock();
        if state.due_ns == 0 {
            continue;
        }
        if state.cancel_on_set {
            state.is_cancelled = true;
        }
        if !state.is_expired {
            Core::disarm(&mut state);
            core.arm(&mut state);
        }
        let is_cancelled = state.is_cancelled;
        drop(state);
        if is_cancelled {
            core.queue.wake_all(events::READABLE);
        }
    }
}

/// A timer as a file.
struct TimerFd {
    core: Arc<Core>,
    inode: Arc<AnonInode>,
}

impl FileOps for TimerFd {
    fn has_data(&self) -> (bool, bool) {
        (true, false)
    }

    fn read_at(&self, file: &File, _offset: u64, sink: &mut Sink<'_>) -> Result<usize> {
        if sink.left() < 8 {
            return Err(Errno::EINVAL);
        }
        let ticks = match self.core.try_read() {
            Some(ticks) => ticks?,
            None if file.is_nonblocking() || !sink.may_wait() => return Err(Errno::EAGAIN),
            None => self.core.queue.wait(|| self.core.try_read())??,
        };
        sink.put(&ticks.to_ne_bytes())
    }

    fn poll(&self, _file: &File, table: &mut PollTable) -> u32 {
        table.wait_on(&self.core.queue);
        let mut state = self.core.state.lock();
        self.core.note_expiry(&mut state);
        if state.ticks > 0 || state.is_cancelled { events::IN } else { 0 }
    }

    /// proc_pid_fdinfo(5).
    fn describe(&self, out: &mut dyn core::fmt::Write) {
        let core = &self.core;
        let mut state = core.state.lock();
        core.note_expiry(&mut state);
        let ITimerSpec { interval, mut value } = core.remaining(&state);
        // What has expired goes on when it is read, or asked for by timerfd_gettime(2).
        if state.is_expired && state.due_ns <= core.now_ns() {
            value = TimeSpec::from_ns(0);
        }
        let pair = |time: TimeSpec| (time.sec, time.nsec);
        // Text in memory has no error to give.
        let _ = writeln!(out, "clockid: {}", core.clock);
        let _ = writeln!(out, "ticks: {}", state.ticks);
        let _ = writeln!(out, "settime flags: 0{:o}", state.flags);
        let _ = writeln!(out, "it_value: {:?}", pair(value));
        let _ = writeln!(out, "it_interval: {:?}", pair(interval));
    }

    fn inode(&self) -> Arc<dyn Inode> {
        self.inode.clone()
    }

    fn release(&self, _file: &File) {
        let mut state = self.core.state.lock();
        state.due_ns = 0;
        Core::disarm(&mut state);
    }
}

/// timerfd_create(2).
pub fn sys_timerfd_create(clock: u32, flags: u32) -> Result<u64> {
    if flags & !(raw::TFD_CLOEXEC | raw::TFD_NONBLOCK) != 0 {
        return Err(Errno::EINVAL);
    }
    // The machine never sleeps, so the alarm clocks are the plain ones, but for the right.
    let is_alarm = matches!(clock, raw::CLOCK_REALTIME_ALARM | raw::CLOCK_BOOTTIME_ALARM);
    if is_alarm && !current().subject().capable(Capability::WakeAlarm) {
        return Err(Errno::EPERM);
    }
    let is_realtime = match clock {
        raw::CLOCK_REALTIME | raw::CLOCK_REALTIME_ALARM => true,
        raw::CLOCK_MONOTONIC | raw::CLOCK_BOOTTIME | raw::CLOCK_BOOTTIME_ALARM => false,
        _ => return Err(Errno::EINVAL),
    };
    let core = Arc::new(Core {
        clock,
        is_realtime,
        state: SpinLock::new(TimerState::default()),
        queue: Arc::new(WaitQueue::new()),
    });
    if is_realtime {
        let mut known = REALTIME.lock();
        known.retain(|core| core.strong_count() > 0);
        known.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        known.push(Arc::downgrade(&core));
    }
    let inode = AnonInode::new(FileType::Anonymous, 0o600, "[timerfd]");
    let open = raw::O_RDWR | flags & raw::TFD_NONBLOCK;
    super::give_ops(Arc::new(TimerFd { core, inode }), open, flags & raw::TFD_CLOEXEC != 0)
}

/// timerfd_settime(2).
pub fn sys_timerfd_settime(
    fd: u64,
    flags: u32,
    value: UserPtr<ITimerSpec>,
    old_at: UserPtr<ITimerSpec>,
) -> Result<u64> {
    let new = value.read()?;
    let (value_ns, interval_ns) = (new.value.to_ns()?, new.interval.to_ns()?);
    if flags & !(raw::TFD_TIMER_ABSTIME | raw::TFD_TIMER_CANCEL_ON_SET) != 0 {
        return Err(Errno::EINVAL);
    }
    let file = super::file_at(fd)?;
    let core = &file.ops_as::<TimerFd>().ok_or(Errno::EINVAL)?.core;
    let is_absolute = flags & raw::TFD_TIMER_ABSTIME != 0;
    let old = {
        let mut state = core.state.lock();
        core.note_expiry(&mut state);
        let old = core.remaining(&state);
        Core::disarm(&mut state);
        state.is_expired = false;
        state.ticks = 0;
        state.is_cancelled = false;
        state.cancel_on_set =
            core.is_realtime && is_absolute && flags & raw::TFD_TIMER_CANCEL_ON_SET != 0;
        state.flags = flags;
        state.interval_ns = interval_ns;
        state.due_ns = match value_ns {
            0 => 0,
            at if is_absolute => at,
            after => core.now_ns().saturating_add(after),
        };
        if state.due_ns != 0 {
            core.arm(&mut state);
        }
        old
    };
    old_at.write_if_some(&old)?;
    Ok(0)
}

/// timerfd_gettime(2).
pub fn sys_timerfd_gettime(fd: u64, value: UserPtr<ITimerSpec>) -> Result<u64> {
    let file = super::file_at(fd)?;
    let core = &file.ops_as::<TimerFd>().ok_or(Errno::EINVAL)?.core;
    let now = {
        let mut state = core.state.lock();
        core.go_on(&mut state);
        core.remaining(&state)
    };
    value.write(&now)?;
    Ok(0)
}
