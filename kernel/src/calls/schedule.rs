//! The calls on scheduling: priorities, policies, affinity (sched(7)).
//!
//! What a policy means is decided in `mechanisms/scheduler`. SCHED_DEADLINE is refused: its
//! promises of run time are none that this scheduler could keep.

use alloc::sync::Arc;
use alloc::vec::Vec;

use abi::{Errno, Result, general as raw};
use machine::cpu::cpu_count;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::base::sched;
use crate::base::time::TimeSpec;
use crate::base::user::UserPtr;
use crate::process::current;
use crate::process::{
    Process, Thread, all_processes, find_by_tid, find_process, find_thread, group_members, hooks,
};
use crate::security::{Capability, Resource, Subject, check_io_priority};

/// What sched_rr_get_interval(2) tells of threads without real-time policy.
const INTERVAL_NS: u64 = scheduler::queue::SLICE_NS;

/// The thread with this id, or the caller for 0; ESRCH, EINVAL for negative ids.
fn thread_or_self(argument: u64) -> Result<Arc<Thread>> {
    match argument as i32 {
        0 => Ok(current().to_arc()),
        tid @ 1.. => find_thread(tid as u32).ok_or(Errno::ESRCH),
        _ => Err(Errno::EINVAL),
    }
}

/// Whether the caller may change how `target` is scheduled.
fn check_permission(target: &Process) -> Result<Subject> {
    let own = current().subject();
    let other = target.credentials();
    let same_user = own.euid == other.euid || own.euid == other.uid;
    if same_user || own.capable(Capability::SysNice) { Ok(own) } else { Err(Errno::EPERM) }
}

/// sched_yield(2).
pub fn sched_yield() -> Result<u64> {
    if sched::has_queued() {
        sched::yield_now();
    }
    Ok(0)
}

/// sched_getaffinity(2): gives the number of bytes written.
pub fn sched_getaffinity(pid: u64, size: u32, mask_at: u64) -> Result<u64> {
    if !size.is_multiple_of(8) || (size as usize) * 8 < cpu_count() {
        return Err(Errno::EINVAL);
    }
    let thread = thread_or_self(pid).map_err(|_| Errno::ESRCH)?;
    hooks::task_getscheduler((&thread.process,))?;
    let online = (1u64 << cpu_count()) - 1;
    let mask = u64::from(thread.base.sched.lock().affinity) & online;
    UserPtr::new(mask_at).write(&mask)?;
    Ok(8)
}

/// sched_setaffinity(2).
pub fn sched_setaffinity(pid: u64, size: usize, mask: u64) -> Result<u64> {
    let mut bytes = [0u8; 8];
    let size = size.min(bytes.len());
    UserPtr::<u8>::new(mask).read_bytes(&mut bytes[..size])?;
    let thread = thread_or_self(pid).map_err(|_| Errno::ESRCH)?;
    let own = check_permission(&thread.process)?;
    hooks::task_setscheduler((&own, &thread.process))?;
    let online = (1u64 << cpu_count()) - 1;
    let mask = u64::from_le_bytes(bytes) & online;
    if mask == 0 {
        return Err(Errno::EINVAL);
    }
    thread.base.sched.lock().affinity = mask as u32;
    sched::affinity_changed(&thread.base);
    Ok(0)
}

/// The policy of a scheduler that a program brings, which linux-raw-sys does not have.
const SCHED_EXT: u32 = 7;

/// Range of priorities of a policy; EINVAL for one that does not exist.
fn priorities(policy: u32) -> Result<(i32, i32)> {
    match policy {
        raw::SCHED_FIFO | raw::SCHED_RR => Ok((1, 99)),
        raw::SCHED_NORMAL | raw::SCHED_BATCH | raw::SCHED_IDLE => Ok((0, 0)),
        // SCHED_EXT has a range where it can be chosen and where it cannot.
        raw::SCHED_DEADLINE | SCHED_EXT => Ok((0, 0)),
        _ => Err(Errno::EINVAL),
    }
}

/// sched_get_priority_max(2).
pub fn sched_get_priority_max(policy: u32) -> Result<u64> {
    Ok(priorities(policy)?.1 as u64)
}

/// sched_get_priority_min(2).
pub fn sched_get_priority_min(policy: u32) -> Result<u64> {
    Ok(priorities(policy)?.0 as u64)
}

/// Sets policy and priority. `policy` may hold SCHED_RESET_ON_FORK.
fn set_policy(thread: &Thread, policy: u32, priority: i32, nice: Option<i32>) -> Result<u64> {
    let kind = policy & !raw::SCHED_RESET_ON_FORK;
    if matches!(kind, raw::SCHED_DEADLINE | SCHED_EXT) {
        // Promises of run time are none that this scheduler can keep.
        return Err(Errno::EINVAL);
    }
    let (least, most) = priorities(kind)?;
    if !(least..=most).contains(&priority) {
        return Err(Errno::EINVAL);
    }
    let own = check_permission(&thread.process)?;
    let limit = thread.process.limit(Resource::RealTimePriority);
    if priority as u64 > limit && !own.capable(Capability::SysNice) {
        return Err(Errno::EPERM);
    }
    hooks::task_setscheduler((&own, &thread.process))?;
    if let Some(nice) = nice {
        set_nice(thread, nice)?;
    }
    sched::change(&thread.base, |entity| {
        entity.policy = policy;
        entity.priority = priority;
    });
    Ok(0)
}

/// sched_setscheduler(2).
pub fn sched_setscheduler(pid: u64, policy: i32, parameter: UserPtr<i32>) -> Result<u64> {
    if policy < 0 || (pid as i32) < 0 {
        return Err(Errno::EINVAL);
    }
    let priority = parameter.non_null().ok_or(Errno::EINVAL)?.read()?;
    set_policy(&*thread_or_self(pid)?, policy as u32, priority, None)
}

/// sched_getscheduler(2).
pub fn sched_getscheduler(pid: u64) -> Result<u64> {
    let thread = thread_or_self(pid)?;
    hooks::task_getscheduler((&thread.process,))?;
    let policy = thread.base.sched.lock().policy;
    Ok(policy.into())
}

/// sched_setparam(2).
pub fn sched_setparam(pid: u64, parameter: UserPtr<i32>) -> Result<u64> {
    let parameter = parameter.non_null().filter(|_| pid as i32 >= 0).ok_or(Errno::EINVAL)?;
    let priority = parameter.read()?;
    let thread = thread_or_self(pid)?;
    let policy = thread.base.sched.lock().policy;
    set_policy(&thread, policy, priority, None)
}

/// sched_getparam(2).
pub fn sched_getparam(pid: u64, parameter: UserPtr<i32>) -> Result<u64> {
    let pointer = parameter.non_null().ok_or(Errno::EINVAL)?;
    let thread = thread_or_self(pid)?;
    hooks::task_getscheduler((&thread.process,))?;
    let priority = thread.base.sched.lock().priority;
    pointer.write(&priority)?;
    Ok(0)
}

/// `struct sched_attr`, first version and utilisation hints.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy, Default)]
#[repr(C)]
struct SchedAttr {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
    util_min: u32,
    util_max: u32,
}

/// Size of the first version.
const ATTR_SIZE_VER0: u32 = 48;

/// sched_setattr(2).
pub fn sched_setattr(pid: u64, attribute: u64, flags: u64) -> Result<u64> {
    if flags != 0 || (pid as i32) < 0 {
        return Err(Errno::EINVAL);
    }
    let size = match UserPtr::<u32>::new(attribute).non_null().ok_or(Errno::EINVAL)?.read()? {
        0 => ATTR_SIZE_VER0,
        size => size,
    };
    if size < ATTR_SIZE_VER0 {
        return Err(Errno::E2BIG);
    }
    let attr: SchedAttr = crate::base::user::read_extensible(attribute, size.into())?;
    if attr.policy as i32 <= -1 {
        return Err(Errno::EINVAL);
    }
    let thread = thread_or_self(pid)?;
    let has = |flag: u32| attr.flags & u64::from(flag) != 0;
    let known =
        raw::SCHED_FLAG_RESET_ON_FORK | raw::SCHED_FLAG_KEEP_POLICY | raw::SCHED_FLAG_KEEP_PARAMS;
    let keeps_policy = has(raw::SCHED_FLAG_KEEP_POLICY);
    let is_unknown = !keeps_policy && attr.policy & raw::SCHED_RESET_ON_FORK != 0;
    if is_unknown || attr.flags & !u64::from(known) != 0 {
        return Err(Errno::EINVAL);
    }
    let now = {
        let entity = thread.base.sched.lock();
        (entity.policy & !raw::SCHED_RESET_ON_FORK, entity.nice, entity.priority as u32)
    };
    let policy = if keeps_policy { now.0 } else { attr.policy };
    let (nice, priority) = match has(raw::SCHED_FLAG_KEEP_PARAMS) {
        // A priority is kept only where it means something: else the one given is looked at.
        true if matches!(now.0, raw::SCHED_FIFO | raw::SCHED_RR) => (attr.nice, now.2),
        true => (now.1, attr.priority),
        false => (attr.nice, attr.priority),
    };
    let reset = if has(raw::SCHED_FLAG_RESET_ON_FORK) { raw::SCHED_RESET_ON_FORK } else { 0 };
    let fair = matches!(policy, raw::SCHED_NORMAL | raw::SCHED_BATCH);
    let nice = fair.then(|| nice.clamp(-20, 19));
    let priority = i32::try_from(priority).map_err(|_| Errno::EINVAL)?;
    set_policy(&thread, policy | reset, priority, nice)
}

/// sched_getattr(2).
pub fn sched_getattr(pid: u64, attribute: u64, size_at: u32, flags: u64) -> Result<u64> {
    let size = size_at;
    if !(ATTR_SIZE_VER0..=4096).contains(&size) || flags != 0 || attribute == 0 {
        return Err(Errno::EINVAL);
    }
    let thread = thread_or_self(pid)?;
    hooks::task_getscheduler((&thread.process,))?;
    let size = size.min(size_of::<SchedAttr>() as u32);
    let attr = {
        let entity = thread.base.sched.lock();
        SchedAttr {
            size,
            policy: entity.policy & !raw::SCHED_RESET_ON_FORK,
            flags: u64::from(entity.policy & raw::SCHED_RESET_ON_FORK != 0),
            nice: entity.nice,
            priority: entity.priority as u32,
            util_max: 1024,
            ..SchedAttr::default()
        }
    };
    UserPtr::<u8>::new(attribute).write_bytes(&attr.as_bytes()[..size as usize])?;
    Ok(0)
}

/// sched_rr_get_interval(2).
pub fn sched_rr_get_interval(pid: u64, interval: u64) -> Result<u64> {
    let thread = thread_or_self(pid)?;
    hooks::task_getscheduler((&thread.process,))?;
    let policy = thread.base.sched.lock().policy;
    let interval_ns = match policy & !raw::SCHED_RESET_ON_FORK {
        raw::SCHED_FIFO => 0,
        raw::SCHED_RR => scheduler::queue::RR_SLICE_NS,
        _ => INTERVAL_NS,
    };
    UserPtr::new(interval).write(&TimeSpec::from_ns(interval_ns))?;
    Ok(0)
}

/// The threads that getpriority(2) and its like mean.
fn targets(which: u32, who: u32) -> Result<Vec<Arc<Thread>>> {
    let own = &current().process;
    let of = |processes: Vec<Arc<Process>>| -> Vec<Arc<Thread>> {
        processes.iter().flat_map(|process| process.threads.lock().to_vec()).collect()
    };
    let threads = match which {
        raw::PRIO_PROCESS if who == 0 => alloc::vec![current().to_arc()],
        raw::PRIO_PROCESS => find_thread(who).into_iter().collect(),
        raw::PRIO_PGRP => {
            let own_group = own.group();
            of(group_members(if who == 0 { own_group } else { who }))
        }
        raw::PRIO_USER => {
            let uid = if who == 0 { own.credentials().uid } else { who };
            let mut processes = all_processes();
            processes.retain(|process| process.credentials().uid == uid);
            of(processes)
        }
        _ => return Err(Errno::EINVAL),
    };
    if threads.is_empty() { Err(Errno::ESRCH) } else { Ok(threads) }
}

/// getpriority(2): 20 minus the nice value, since a system call cannot return negative numbers.
pub fn getpriority(which: u32, who: u32) -> Result<u64> {
    let threads = targets(which, who)?;
    let best = threads.iter().map(|thread| thread.base.sched.lock().nice).min().unwrap_or(0);
    Ok((20 - best) as u64)
}

fn set_nice(thread: &Thread, nice: i32) -> Result<()> {
    let own = check_permission(&thread.process)?;
    let old = thread.base.sched.lock().nice;
    // RLIMIT_NICE counts the other way: 1 allows 19, 40 allows -20.
    let limit = thread.process.limit(Resource::Nice);
    if nice < old && (20 - nice) as u64 > limit && !own.capable(Capability::SysNice) {
        return Err(Errno::EACCES);
    }
    hooks::task_setnice((&own, &thread.process, nice))?;
    sched::change(&thread.base, |entity| entity.nice = nice);
    Ok(())
}

/// setpriority(2).
pub fn setpriority(which: u32, who: u32, priority: i32) -> Result<u64> {
    let nice = priority.clamp(-20, 19);
    for thread in targets(which, who)? {
        set_nice(&thread, nice)?;
    }
    Ok(0)
}

/// ioprio_get(2): what the nice value means for input and output; nothing else exists.
pub fn ioprio_get(kind: u32, who: u32) -> Result<u64> {
    const BEST_EFFORT: u64 = 2 << 13;
    check_io_target(kind, who)?;
    if let Some(process) = io_target(kind, who) {
        hooks::task_getioprio((&process,))?;
    }
    // Of one process the answer is what was set, which is nothing; of several, what follows.
    Ok(if kind == 1 { 0 } else { BEST_EFFORT | 4 })
}

/// ioprio_set(2): checked, without effect: requests are served in order.
pub fn ioprio_set(kind: u32, who: u32, priority: u32) -> Result<u64> {
    let subject = current().subject();
    check_io_priority(&subject, priority)?;
    check_io_target(kind, who)?;
    if let Some(process) = io_target(kind, who) {
        hooks::task_setioprio((&subject, &process, priority))?;
    }
    Ok(0)
}

/// The process that an ioprio call is about, if it is about one (IOPRIO_WHO_PROCESS).
fn io_target(kind: u32, who: u32) -> Option<Arc<Process>> {
    match (kind, who) {
        (1, 0) => Some(current().process.clone()),
        (1, id) => find_by_tid(id),
        _ => None,
    }
}

fn check_io_target(kind: u32, who: u32) -> Result<()> {
    match kind {
        1 if who == 0 || find_thread(who).is_some() || find_process(who).is_some() => Ok(()),
        2 if who == 0 || !group_members(who).is_empty() => Ok(()),
        3 if who == current().process.credentials().uid => Ok(()),
        3 if all_processes().iter().any(|process| process.credentials().uid == who) => Ok(()),
        1..=3 => Err(Errno::ESRCH),
        _ => Err(Errno::EINVAL),
    }
}
