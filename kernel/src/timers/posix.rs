//! timer_create(2), timer_settime(2), timer_gettime(2), timer_getoverrun(2), timer_delete(2).

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use abi::{Errno, Result, general as raw};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::base::time::TimeSpec;
use crate::base::user::UserPtr;
use crate::process::clock::Clock;
use crate::process::current;
use crate::process::find_thread;
use crate::process::signal::LAST;
use crate::process::timers::{AlarmTimer, Identity, Notify, Setting, update_watch};
use crate::process::{Pid, Process};
use crate::security::Resource;

/// `struct sigevent`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy)]
#[repr(C)]
pub struct SigEvent {
    /// What the signal brings.
    pub value: u64,
    /// Its number.
    pub signal: u32,
    /// SIGEV_SIGNAL and its kin.
    pub notify: u32,
    thread: u32,
    rest: [u32; 11],
}

const _: () = assert!(size_of::<SigEvent>() == 64);

/// Most timers of one process, whatever RLIMIT_SIGPENDING says.
const MOST_TIMERS: u64 = 32_768;

/// A clock that refers weakly to the process or thread it belongs to, since that owns the timer.
fn timer_clock(id: i32) -> Result<Clock> {
    if matches!(id, 4..=6) {
        // Raw and coarse clocks have no timers (timer_create(2)).
        return Err(Errno::EOPNOTSUPP);
    }
    let weak = Clock::from_id(id)?.downgrade();
    Ok(weak)
}

fn notify_of(event: &SigEvent) -> Result<Notify> {
    let process = &current().process;
    if event.notify == raw::SIGEV_NONE {
        return Ok(Notify::Nobody);
    }
    if event.signal == 0 || event.signal > LAST {
        return Err(Errno::EINVAL);
    }
    match event.notify {
        raw::SIGEV_SIGNAL | raw::SIGEV_THREAD => Ok(Notify::Process(Arc::downgrade(process))),
        raw::SIGEV_THREAD_ID => {
            let thread = find_thread(event.thread).ok_or(Errno::EINVAL)?;
            if Arc::ptr_eq(&thread.process, process) {
                Ok(Notify::Thread(Arc::downgrade(&thread)))
            } else {
                Err(Errno::EINVAL)
            }
        }
        _ => Err(Errno::EINVAL),
    }
}

/// timer_create(2).
pub fn timer_create(clock: i32, event: UserPtr<SigEvent>, id_at: UserPtr<u32>) -> Result<u64> {
    let event = event.non_null().map(UserPtr::read).transpose()?;
    let clock_id = clock;
    let clock = timer_clock(clock)?;
    let process = &current().process;
    let notify = match &event {
        Some(event) => notify_of(event)?,
        None => Notify::Process(Arc::downgrade(process)),
    };
    let limit = process.limit(Resource::PendingSignals).min(MOST_TIMERS);
    let id = {
        let mut timers = process.timers.lock();
        if timers.posix.len() as u64 >= limit {
            return Err(Errno::EAGAIN);
        }
        while timers.posix.get(timers.next_id).is_some() {
            timers.next_id = (timers.next_id + 1) & i32::MAX as u32;
        }
        let id = timers.next_id;
        timers.next_id = (id + 1) & i32::MAX as u32;
        let signal = event.map_or(raw::SIGALRM, |event| event.signal);
        let value = event.map_or(u64::from(id), |event| event.value);
        let notify_by = event.map_or(raw::SIGEV_SIGNAL, |event| event.notify);
        let identity = Identity { id, value, clock: clock_id, notify: notify_by };
        let timer = AlarmTimer::new(clock, notify, signal, Some(identity));
        timers.posix.insert(id, timer);
        id
    };
    if let Err(error) = id_at.write(&id) {
        let removed = process.timers.lock().posix.remove(id);
        drop(removed);
        return Err(error);
    }
    Ok(0)
}

fn find(id: u64) -> Result<Arc<AlarmTimer>> {
    let thread = current();
    let timers = thread.process.timers.lock();
    timers.posix.get(id as u32).cloned().ok_or(Errno::EINVAL)
}

/// The timers of a process, newest first: each with its signal and the thread that is told, if it
/// is one; 0 if that has ended.
pub fn shown(process: &Process) -> Vec<(Identity, u32, Option<Pid>)> {
    let told = |timer: &AlarmTimer| match &timer.notify {
        Notify::Thread(thread) => Some(thread.upgrade().map_or(0, |thread| thread.tid())),
        _ => None,
    };
    let timers = process.timers.lock();
    let each = timers.posix.values();
    let mut shown: Vec<_> =
        each.filter_map(|timer| Some((timer.identity?, timer.signal, told(timer)))).collect();
    shown.reverse();
    shown
}

/// timer_settime(2).
pub fn timer_settime(id: u64, flags: u32, value_at: u64, old_at: u64) -> Result<u64> {
    if value_at == 0 {
        return Err(Errno::EINVAL);
    }
    let [interval, value] = UserPtr::<[TimeSpec; 2]>::new(value_at).read()?;
    let setting = Setting { value_ns: value.to_ns()?, interval_ns: interval.to_ns()? };
    let timer = find(id)?;
    let old = timer.get();
    timer.set(setting, flags & raw::TIMER_ABSTIME != 0, &current().process);
    if timer.is_on_cpu_clock() {
        update_watch(&current().process);
    }
    UserPtr::new(old_at).write_if_some(&old.to_user())?;
    Ok(0)
}

/// timer_gettime(2).
pub fn timer_gettime(id: u64, value: u64) -> Result<u64> {
    let setting = find(id)?.get();
    UserPtr::new(value).write(&setting.to_user())?;
    Ok(0)
}

/// timer_getoverrun(2).
pub fn timer_getoverrun(id: u64) -> Result<u64> {
    Ok(find(id)?.overruns.load(Ordering::Relaxed).into())
}

/// timer_delete(2).
pub fn timer_delete(id: u32) -> Result<u64> {
    let process = &current().process;
    let removed = process.timers.lock().posix.remove(id);
    let timer = removed.ok_or(Errno::EINVAL)?;
    timer.disarm(process);
    if timer.is_on_cpu_clock() {
        update_watch(process);
    }
    Ok(0)
}
