//! nanosleep(2) and clock_nanosleep(2).

use abi::{Errno, Result, general as raw};

use crate::base::sched::Sleep;
use crate::base::sync::{WaitError, WaitQueue};
use crate::base::time::{Deadline, TimeSpec, now_ns, realtime_offset_ns};
use crate::base::user::UserPtr;
use crate::process::clock::Clock;
use crate::process::restart;

/// A relative sleep that a signal has interrupted.
#[derive(Clone, Copy, Debug)]
pub struct Pending {
    deadline_ns: u64,
    /// Where the program wants to know how much was left, or 0.
    rest: u64,
}

/// nanosleep(2).
pub fn nanosleep(request: UserPtr<TimeSpec>, remaining: u64) -> Result<u64> {
    let ns = request.read()?.to_ns()?;
    resume(Pending { deadline_ns: Deadline::after_ns(ns).0, rest: remaining })
}

/// clock_nanosleep(2).
pub fn clock_nanosleep(
    id: u32,
    flags: u32,
    request: UserPtr<TimeSpec>,
    remaining: u64,
) -> Result<u64> {
    /// Nobody can sleep until its own running time has passed, and raw and coarse clocks have no
    /// timers (clock_nanosleep(2)).
    const WITHOUT_SLEEP: [u32; 4] = [
        raw::CLOCK_THREAD_CPUTIME_ID,
        raw::CLOCK_MONOTONIC_RAW,
        raw::CLOCK_REALTIME_COARSE,
        raw::CLOCK_MONOTONIC_COARSE,
    ];
    if WITHOUT_SLEEP.contains(&id) {
        return Err(Errno::EOPNOTSUPP);
    }
    if (id as i32) < 0 {
        // Which CPU clock an id names is found out when the time has been read.
        request.read()?.to_ns()?;
    }
    let clock = Clock::from_id(id as i32)?;
    let is_absolute = flags & raw::TIMER_ABSTIME != 0;
    let offset_ns = match clock.monotonic_offset_ns() {
        Some(offset_ns) => offset_ns,
        None => return super::clock::sleep_on_cpu_clock(&clock, is_absolute, request, remaining),
    };
    let ns = request.read()?.to_ns()?;
    if !is_absolute {
        return resume(Pending { deadline_ns: Deadline::after_ns(ns).0, rest: remaining });
    }
    loop {
        let offset_ns = clock.monotonic_offset_ns().unwrap_or(offset_ns);
        let deadline = Deadline(ns.saturating_sub(offset_ns));
        match sleep_until(deadline) {
            // The wall clock may have been set back meanwhile.
            Ok(()) if now_ns().saturating_add(realtime_offset_ns()) < ns && offset_ns != 0 => {}
            Ok(()) => return Ok(0),
            // The same call again sleeps until the same moment.
            Err(_) => return Err(Errno::ERESTARTNOHAND),
        }
    }
}

fn sleep_until(deadline: Deadline) -> core::result::Result<(), WaitError> {
    let nobody = WaitQueue::new();
    match nobody.wait_deadline(Sleep::Interruptible, Some(deadline), || None::<()>) {
        Ok(()) | Err(WaitError::TimedOut) => Ok(()),
        Err(WaitError::Interrupted) => Err(WaitError::Interrupted),
    }
}

/// Sleeps, or goes on to after an interruption.
pub fn resume(pending: Pending) -> Result<u64> {
    if sleep_until(Deadline(pending.deadline_ns)).is_ok() {
        return Ok(0);
    }
    let left_ns = pending.deadline_ns.saturating_sub(now_ns());
    if left_ns == 0 {
        return Ok(0);
    }
    UserPtr::new(pending.rest).write_if_some(&TimeSpec::from_ns(left_ns))?;
    Err(restart::later(move || resume(pending)))
}
