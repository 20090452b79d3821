//! Reading and setting clocks (clock_gettime(2)); which one an id names: `process::clock`.

use abi::{Errno, Result, general as raw};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::base::sync::{WaitError, WaitQueue};
use crate::base::time::{
    Deadline, NS_PER_SEC, TimeSpec, TimeVal, now_ns, realtime_ns, set_realtime_ns,
};
use crate::base::user::UserPtr;
use crate::process::clock::Clock;
use crate::process::current;
use crate::security::subject_hooks;

/// The coarse clocks advance in ticks of a real kernel; here they are exact, and say so.
const RESOLUTION_NS: u64 = 1;

/// clock_gettime(2).
pub fn clock_gettime(clock: i32, time: u64) -> Result<u64> {
    // The two common clocks without a look at anything else.
    let ns = match clock {
        0 => realtime_ns(),
        1 => now_ns(),
        id => Clock::from_id(id)?.now_ns(),
    };
    UserPtr::new(time).write(&TimeSpec::from_ns(ns))?;
    Ok(0)
}

/// clock_getres(2).
pub fn clock_getres(clock: i32, time: u64) -> Result<u64> {
    Clock::from_id(clock)?;
    UserPtr::new(time).write_if_some(&TimeSpec::from_ns(RESOLUTION_NS))?;
    Ok(0)
}

fn may_set_time() -> Result<()> {
    subject_hooks::settime((&current().subject(),))
}

/// clock_settime(2): only the wall clock can be set. Which CPU clock an id names is found out when
/// the time has been read; nobody may set one.
pub fn clock_settime(clock: i32, time: UserPtr<TimeSpec>) -> Result<u64> {
    if clock > raw::CLOCK_REALTIME as i32 {
        return Err(Errno::EINVAL);
    }
    let time = time.read()?;
    if clock < 0 {
        Clock::from_id(clock)?;
        return Err(Errno::EPERM);
    }
    let ns = time.to_ns()?;
    may_set_time()?;
    set_wall_clock(ns)
}

/// Times must stay above the time since boot: Linux, too, refuses to set the clock before it.
fn set_wall_clock(ns: u64) -> Result<u64> {
    if ns < now_ns() || ns > i64::MAX as u64 {
        return Err(Errno::EINVAL);
    }
    set_realtime_ns(ns);
    Ok(0)
}

/// `struct timezone`: always zero; programs keep their own.
type TimeZone = [i32; 2];

/// gettimeofday(2).
pub fn gettimeofday(time: u64, zone: UserPtr<TimeZone>) -> Result<u64> {
    UserPtr::new(time).write_if_some(&TimeVal::from_ns(realtime_ns()))?;
    zone.write_if_some(&[0; 2])?;
    Ok(0)
}

/// settimeofday(2).
pub fn settimeofday(time: UserPtr<TimeVal>, zone: UserPtr<TimeZone>) -> Result<u64> {
    let time = time.non_null().map(UserPtr::read).transpose()?;
    let zone = zone.non_null().map(UserPtr::read).transpose()?;
    let ns = time.map(TimeVal::to_ns).transpose()?;
    may_set_time()?;
    if zone.is_some_and(|zone| !(-15 * 60..=15 * 60).contains(&zone[0])) {
        return Err(Errno::EINVAL);
    }
    match ns {
        Some(ns) => set_wall_clock(ns),
        None => Ok(0),
    }
}

/// time(2).
pub fn time(at: u64) -> Result<u64> {
    let seconds = realtime_ns() / NS_PER_SEC;
    UserPtr::new(at).write_if_some(&seconds)?;
    Ok(seconds)
}

/// `struct timex` (adjtimex(2)).
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy, Default)]
#[repr(C)]
struct Timex {
    modes: u32,
    pad0: u32,
    offset: i64,
    frequency: i64,
    max_error: i64,
    est_error: i64,
    status: i32,
    pad1: u32,
    constant: i64,
    precision: i64,
    tolerance: i64,
    time: TimeVal,
    tick: i64,
    pps: [i64; 2],
    shift: i32,
    pad2: u32,
    counters: [i64; 5],
    tai: i32,
    reserved: [i32; 11],
}

const _: () = assert!(size_of::<Timex>() == 208);

/// The clock is not synchronised by the kernel (STA_UNSYNC, TIME_ERROR).
const STA_UNSYNC: i32 = 0x40;
const TIME_ERROR: u64 = 5;
const MAX_ERROR_US: i64 = 16_000_000;

/// Parts of `modes` (adjtimex(2)).
const ADJ_SETOFFSET: u32 = 0x100;
const ADJ_NANO: u32 = 0x2000;
const ADJ_OFFSET_SINGLESHOT: u32 = 0x8001;
const ADJ_OFFSET_SS_READ: u32 = 0xa001;

/// A span with its sign in the seconds and parts of a second of `unit_ns` each. None if it does not
/// fit, or is not normalised.
fn span_ns(time: TimeVal, unit_ns: i64) -> Option<i64> {
    let parts_ns = time.usec.checked_mul(unit_ns).filter(|ns| (0..1_000_000_000).contains(ns))?;
    time.sec.checked_mul(1_000_000_000)?.checked_add(parts_ns)
}

/// Moves the wall clock. None: further than a number of nanoseconds can tell.
fn step_clock(by_ns: Option<i64>) -> Result<()> {
    may_set_time()?;
    let ns = by_ns.and_then(|by| realtime_ns().checked_add_signed(by)).ok_or(Errno::EINVAL)?;
    set_wall_clock(ns).map(|_| ())
}

fn adjust(address: u64) -> Result<u64> {
    let asked = UserPtr::<Timex>::new(address).read()?;
    match asked.modes {
        // What is left of an earlier correction: nothing, since corrections are made at once.
        0 | ADJ_OFFSET_SS_READ => {}
        ADJ_OFFSET_SINGLESHOT => step_clock(asked.offset.checked_mul(1000))?,
        ADJ_SETOFFSET => step_clock(span_ns(asked.time, 1000))?,
        modes if modes == ADJ_SETOFFSET | ADJ_NANO => step_clock(span_ns(asked.time, 1))?,
        _ => {
            may_set_time()?;
            // Limen does not steer its clock: a host does that for its guests.
            return Err(Errno::EINVAL);
        }
    }
    let answer = Timex {
        max_error: MAX_ERROR_US,
        est_error: MAX_ERROR_US,
        status: STA_UNSYNC,
        constant: 2,
        precision: 1,
        tolerance: 32_768_000,
        time: TimeVal::from_ns(realtime_ns()),
        tick: 10_000,
        ..Timex::default()
    };
    UserPtr::new(address).write(&answer)?;
    Ok(TIME_ERROR)
}

/// adjtimex(2).
pub fn adjtimex(buffer: u64) -> Result<u64> {
    adjust(buffer)
}

/// clock_adjtime(2).
pub fn clock_adjtime(clock: i32, buffer: u64) -> Result<u64> {
    if clock as u32 == raw::CLOCK_REALTIME {
        return adjust(buffer);
    }
    UserPtr::<Timex>::new(buffer).read()?;
    // No CPU clock can be steered, whoever's it is.
    if clock >= 0 {
        Clock::from_id(clock)?;
    }
    Err(Errno::EOPNOTSUPP)
}

/// clock_nanosleep(2) on a CPU clock: looks again whenever the clock could have got there, which is
/// no sooner than if all CPUs worked for it.
pub fn sleep_on_cpu_clock(
    clock: &Clock,
    is_absolute: bool,
    request: UserPtr<TimeSpec>,
    remaining: u64,
) -> Result<u64> {
    let ns = request.read()?.to_ns()?;
    match clock {
        // A thread cannot wait for its own CPU time to pass.
        Clock::Thread(thread, _) if thread.tid() == current().tid() => return Err(Errno::EINVAL),
        _ => {}
    }
    let target_ns = if is_absolute { ns } else { clock.now_ns().saturating_add(ns) };
    let cpus = machine::cpu::cpu_count() as u64;
    let nobody = WaitQueue::new();
    loop {
        let left_ns = target_ns.saturating_sub(clock.now_ns());
        if left_ns == 0 {
            return Ok(0);
        }
        let deadline = Deadline::after_ns((left_ns / cpus).max(1_000_000));
        let slept =
            nobody.wait_deadline(crate::base::sched::Sleep::Interruptible, Some(deadline), || {
                None::<()>
            });
        if slept == Err(WaitError::Interrupted) {
            let left_ns = target_ns.saturating_sub(clock.now_ns());
            if is_absolute {
                return Err(Errno::ERESTARTNOHAND);
            }
            UserPtr::new(remaining).write_if_some(&TimeSpec::from_ns(left_ns))?;
            return Err(Errno::EINTR);
        }
    }
}
