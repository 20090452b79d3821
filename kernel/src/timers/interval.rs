//! alarm(2), getitimer(2), setitimer(2).

use alloc::sync::Arc;

use abi::{Errno, Result, general as raw};

use crate::base::time::{NS_PER_SEC, TimeVal};
use crate::base::user::UserPtr;
use crate::process::Process;
use crate::process::clock::{Clock, Part};
use crate::process::current;
use crate::process::timers::{AlarmTimer, Notify, Setting, update_watch};

/// `struct itimerval`: interval, value.
type ITimerVal = [TimeVal; 2];

fn which(argument: u64) -> Result<usize> {
    let which = argument as u32;
    if which <= raw::ITIMER_PROF { Ok(which as usize) } else { Err(Errno::EINVAL) }
}

fn get(process: &Process, which: usize) -> Setting {
    let timer = process.timers.lock().interval[which].clone();
    timer.map_or_else(Setting::default, |timer| timer.get())
}

/// Sets one of the three; returns what it was.
fn set(process: &Arc<Process>, which: usize, setting: Setting) -> Setting {
    let timer = {
        let mut timers = process.timers.lock();
        let make = || {
            let (clock, signal) = match which as u32 {
                raw::ITIMER_REAL => (Clock::Monotonic, raw::SIGALRM),
                raw::ITIMER_VIRTUAL => {
                    (Clock::OwnProcess(Arc::downgrade(process), Part::User), raw::SIGVTALRM)
                }
                _ => (Clock::OwnProcess(Arc::downgrade(process), Part::All), raw::SIGPROF),
            };
            AlarmTimer::new(clock, Notify::Process(Arc::downgrade(process)), signal, None)
        };
        timers.interval[which].get_or_insert_with(make).clone()
    };
    let old = timer.get();
    timer.set(setting, false, process);
    if timer.is_on_cpu_clock() {
        update_watch(process);
    }
    old
}

fn to_user(setting: Setting) -> ITimerVal {
    // An armed timer never shows as disarmed.
    let value_us = setting.value_ns.div_ceil(1000);
    [TimeVal::from_ns(setting.interval_ns), TimeVal::from_ns(value_us * 1000)]
}

/// getitimer(2).
pub fn getitimer(which_word: u64, value: u64) -> Result<u64> {
    let which = which(which_word)?;
    let setting = get(&current().process, which);
    UserPtr::new(value).write(&to_user(setting))?;
    Ok(0)
}

/// setitimer(2).
pub fn setitimer(which_word: u64, value_at: UserPtr<ITimerVal>, old_at: u64) -> Result<u64> {
    let setting = match value_at.non_null() {
        None => Setting::default(),
        Some(new) => {
            let [interval, value] = new.read()?;
            Setting { value_ns: value.to_ns()?, interval_ns: interval.to_ns()? }
        }
    };
    let which = which(which_word)?;
    let old = set(&current().process, which, setting);
    UserPtr::new(old_at).write_if_some(&to_user(old))?;
    Ok(0)
}

/// alarm(2): the seconds that were left, rounded to the nearest but never to 0.
pub fn alarm(seconds: u32) -> Result<u64> {
    let seconds = u64::from(seconds);
    let setting = Setting { value_ns: seconds * NS_PER_SEC, interval_ns: 0 };
    let old_ns = set(&current().process, raw::ITIMER_REAL as usize, setting).value_ns;
    let rounded = (old_ns + NS_PER_SEC / 2) / NS_PER_SEC;
    Ok(if old_ns > 0 { rounded.max(1) } else { 0 })
}
