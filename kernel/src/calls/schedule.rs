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
    Process, Thread, all_processes, find_process, find_thread, group_members, hooks,
};
use crate::security::{Capability, Credentials, Resource, Subject, check_io_priority};

/// What sched_rr_get_interval(2) tells of threads without real-time policy.
const INTERVAL_NS: u64 = scheduler::queue::SLICE_NS;

/// Whom a call is about.
enum Target {
    Thread(Arc<Thread>),
    /// A process that has ended and was not waited for: it can be asked and changed.
    Zombie(Arc<Process>),
}

impl Target {
    /// The one with this id, or the caller for 0; ESRCH, EINVAL for negative ids.
    fn of(argument: u64) -> Result<Target> {
        let id = match argument as i32 {
            0 => return Ok(Target::Thread(current().to_arc())),
            id @ 1.. => id as u32,
            _ => return Err(Errno::EINVAL),
        };
        let zombie = || find_process(id).map(Target::Zombie).ok_or(Errno::ESRCH);
        // One that has left its process may still be there: what it had is the process's now.
        let is_there = |thread: &Arc<Thread>| thread.process.threads.lock().has(thread);
        find_thread(id).filter(is_there).map(Target::Thread).map_or_else(zombie, Ok)
    }

    fn process(&self) -> &Arc<Process> {
        match self {
            Target::Thread(thread) => &thread.process,
            Target::Zombie(process) => process,
        }
    }

    /// Its own: threads of a process may have different ones.
    #[inline]
    fn credentials(&self) -> Arc<Credentials> {
        match self {
            Target::Thread(thread) => thread.credentials(),
            Target::Zombie(process) => process.credentials(),
        }
    }

    /// What `ask` finds out of a thread, or of what a zombie has left.
    fn ask<T>(&self, ask: impl FnOnce(&sched::SchedEntity) -> T) -> T {
        match self {
            Target::Thread(thread) => ask(&thread.base.sched.lock()),
            Target::Zombie(process) => {
                ask(&sched::SchedEntity::of_ended(*process.past_scheduling.lock()))
            }
        }
    }

    fn change(&self, change: impl FnOnce(&mut sched::SchedEntity)) {
        match self {
            Target::Thread(thread) => sched::change(&thread.base, change),
            Target::Zombie(process) => {
                let mut left = process.past_scheduling.lock();
                let mut entity = sched::SchedEntity::of_ended(*left);
                change(&mut entity);
                *left = entity.left();
            }
        }
    }
}

/// Whether the caller may change how `target` is scheduled.
fn check_permission(target: &Target) -> Result<Subject> {
    let own = current().subject();
    check_user(&own, &target.credentials())?;
    Ok(own)
}

/// EPERM for a thread of another user, who may not be told how it is scheduled.
fn check_user(own: &Subject, other: &Credentials) -> Result<()> {
    let same_user = own.euid == other.euid || own.euid == other.uid;
    if same_user || own.capable(Capability::SysNice) { Ok(()) } else { Err(Errno::EPERM) }
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
    let target = Target::of(pid).map_err(|_| Errno::ESRCH)?;
    hooks::task_getscheduler((target.process(),))?;
    let online = (1u64 << cpu_count()) - 1;
    let mask = match &target {
        Target::Thread(thread) => u64::from(thread.base.sched.lock().affinity) & online,
        Target::Zombie(_) => online,
    };
    UserPtr::new(mask_at).write(&mask)?;
    Ok(8)
}

/// sched_setaffinity(2).
pub fn sched_setaffinity(pid: u64, size: usize, mask: u64) -> Result<u64> {
    let mut bytes = [0u8; 8];
    let size = size.min(bytes.len());
    UserPtr::<u8>::new(mask).read_bytes(&mut bytes[..size])?;
    let target = Target::of(pid).map_err(|_| Errno::ESRCH)?;
    let own = check_permission(&target)?;
    hooks::task_setscheduler((&own, target.process(), &target.credentials()))?;
    let online = (1u64 << cpu_count()) - 1;
    let mask = u64::from_le_bytes(bytes) & online;
    if mask == 0 {
        return Err(Errno::EINVAL);
    }
    if let Target::Thread(thread) = &target {
        thread.base.sched.lock().affinity = mask as u32;
        sched::affinity_changed(&thread.base);
    }
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
fn set_policy(target: &Target, policy: u32, priority: i32, nice: Option<i32>) -> Result<u64> {
    let kind = policy & !raw::SCHED_RESET_ON_FORK;
    if matches!(kind, raw::SCHED_DEADLINE | SCHED_EXT) {
        // Promises of run time are none that this scheduler can keep.
        return Err(Errno::EINVAL);
    }
    let (least, most) = priorities(kind)?;
    if !(least..=most).contains(&priority) {
        return Err(Errno::EINVAL);
    }
    let own = check_permission(target)?;
    if !own.capable(Capability::SysNice) {
        check_limits(target, policy, priority, nice)?;
    }
    hooks::task_setscheduler((&own, target.process(), &target.credentials()))?;
    if let Some(nice) = nice {
        set_nice(&own, target, nice)?;
    }
    target.change(|entity| {
        entity.policy = policy;
        entity.priority = priority;
    });
    Ok(0)
}

/// EPERM for a policy that is better than what the target has and its limits allow (sched(7)).
fn check_limits(target: &Target, policy: u32, priority: i32, nice: Option<i32>) -> Result<()> {
    let limit = |which| target.process().limit(which);
    let (old_policy, old_priority, old_nice) =
        target.ask(|entity| (entity.policy, entity.priority, entity.nice));
    let kind = |policy: u32| policy & !raw::SCHED_RESET_ON_FORK;
    let may_have = |nice: i32| nice_limit(nice) <= limit(Resource::Nice);
    let is_nicer = nice.is_none_or(|nice| nice >= old_nice || may_have(nice));
    let is_real_time = matches!(kind(policy), raw::SCHED_FIFO | raw::SCHED_RR);
    let real_time = limit(Resource::RealTimePriority);
    let may_be_real_time = (kind(policy) == kind(old_policy) || real_time != 0)
        && (priority <= old_priority || priority as u64 <= real_time);
    // What is idle counts as nicer than any nice value.
    let leaves_idle = kind(old_policy) == raw::SCHED_IDLE && kind(policy) != raw::SCHED_IDLE;
    let forgets_reset = old_policy & !policy & raw::SCHED_RESET_ON_FORK != 0;
    let may = is_nicer
        && (!is_real_time || may_be_real_time)
        && (!leaves_idle || may_have(old_nice))
        && !forgets_reset;
    if may { Ok(()) } else { Err(Errno::EPERM) }
}

/// What RLIMIT_NICE must be for this value: it counts the other way, 1 for 19 and 40 for -20.
fn nice_limit(nice: i32) -> u64 {
    (20 - nice) as u64
}

/// sched_setscheduler(2).
pub fn sched_setscheduler(pid: u64, policy: i32, parameter: UserPtr<i32>) -> Result<u64> {
    if policy < 0 || (pid as i32) < 0 {
        return Err(Errno::EINVAL);
    }
    let priority = parameter.non_null().ok_or(Errno::EINVAL)?.read()?;
    set_policy(&Target::of(pid)?, policy as u32, priority, None)
}

/// sched_getscheduler(2).
pub fn sched_getscheduler(pid: u64) -> Result<u64> {
    let target = Target::of(pid)?;
    hooks::task_getscheduler((target.process(),))?;
    Ok(target.ask(|entity| entity.policy).into())
}

/// sched_setparam(2).
pub fn sched_setparam(pid: u64, parameter: UserPtr<i32>) -> Result<u64> {
    let parameter = parameter.non_null().filter(|_| pid as i32 >= 0).ok_or(Errno::EINVAL)?;
    let priority = parameter.read()?;
    let target = Target::of(pid)?;
    let policy = target.ask(|entity| entity.policy);
    set_policy(&target, policy, priority, None)
}

/// sched_getparam(2).
pub fn sched_getparam(pid: u64, parameter: UserPtr<i32>) -> Result<u64> {
    let pointer = parameter.non_null().ok_or(Errno::EINVAL)?;
    let target = Target::of(pid)?;
    hooks::task_getscheduler((target.process(),))?;
    let priority = target.ask(|entity| entity.priority);
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
    let target = Target::of(pid)?;
    let has = |flag: u32| attr.flags & u64::from(flag) != 0;
    let known =
        raw::SCHED_FLAG_RESET_ON_FORK | raw::SCHED_FLAG_KEEP_POLICY | raw::SCHED_FLAG_KEEP_PARAMS;
    let keeps_policy = has(raw::SCHED_FLAG_KEEP_POLICY);
    let is_unknown = !keeps_policy && attr.policy & raw::SCHED_RESET_ON_FORK != 0;
    if is_unknown || attr.flags & !u64::from(known) != 0 {
        return Err(Errno::EINVAL);
    }
    let now = target.ask(|entity| {
        (entity.policy & !raw::SCHED_RESET_ON_FORK, entity.nice, entity.priority as u32)
    });
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
    set_policy(&target, policy | reset, priority, nice)
}

/// sched_getattr(2).
pub fn sched_getattr(pid: u64, attribute: u64, size: u32, flags: u64) -> Result<u64> {
    if !(ATTR_SIZE_VER0..=4096).contains(&size) || flags != 0 || attribute == 0 {
        return Err(Errno::EINVAL);
    }
    // A program may know of more than this kernel: what it is told ends where `size` says.
    let size = size.min(size_of::<SchedAttr>() as u32);
    let target = Target::of(pid)?;
    hooks::task_getscheduler((target.process(),))?;
    let (policy, nice, priority) =
        target.ask(|entity| (entity.policy, entity.nice, entity.priority as u32));
    let attr = SchedAttr {
        size,
        policy: policy & !raw::SCHED_RESET_ON_FORK,
        flags: u64::from(policy & raw::SCHED_RESET_ON_FORK != 0),
        nice,
        priority,
        util_max: 1024,
        ..SchedAttr::default()
    };
    UserPtr::<u8>::new(attribute).write_bytes(&attr.as_bytes()[..size as usize])?;
    Ok(0)
}

/// sched_rr_get_interval(2).
pub fn sched_rr_get_interval(pid: u64, interval: u64) -> Result<u64> {
    let target = Target::of(pid)?;
    hooks::task_getscheduler((target.process(),))?;
    let policy = target.ask(|entity| entity.policy);
    let interval_ns = match policy & !raw::SCHED_RESET_ON_FORK {
        _ if matches!(target, Target::Zombie(_)) => 0,
        raw::SCHED_FIFO => 0,
        raw::SCHED_RR => scheduler::queue::RR_SLICE_NS,
        _ => INTERVAL_NS,
    };
    UserPtr::new(interval).write(&TimeSpec::from_ns(interval_ns))?;
    Ok(0)
}

/// Shows `act` the threads that getpriority(2) and its like mean, up to the first refusal. ESRCH if
/// there are none.
fn each_target(which: u32, who: u32, mut act: impl FnMut(&Target) -> Result<()>) -> Result<()> {
    let own = &current().process;
    let processes = match which {
        raw::PRIO_PROCESS if who as i32 >= 0 => {
            return act(&Target::of(who.into())?);
        }
        raw::PRIO_PROCESS => Vec::new(),
        raw::PRIO_PGRP => group_members(if who == 0 { own.group() } else { who }),
        raw::PRIO_USER => {
            let uid = if who == 0 { own.credentials().uid } else { who };
            of_user(uid)
        }
        _ => return Err(Errno::EINVAL),
    };
    each_thread_of(processes, act)
}

fn of_user(uid: u32) -> Vec<Arc<Process>> {
    let mut processes = all_processes();
    processes.retain(|process| process.credentials().uid == uid);
    processes
}

/// ESRCH if there are no processes.
fn each_thread_of(
    processes: Vec<Arc<Process>>,
    mut act: impl FnMut(&Target) -> Result<()>,
) -> Result<()> {
    if processes.is_empty() {
        return Err(Errno::ESRCH);
    }
    processes.into_iter().try_for_each(|process| each_thread(process, &mut act))
}

/// Shows `act` the threads of a process, or what it has left.
fn each_thread(process: Arc<Process>, act: &mut impl FnMut(&Target) -> Result<()>) -> Result<()> {
    let only = match &process.threads.lock()[..] {
        [only] => Some(only.clone()),
        _ => None,
    };
    match only {
        Some(only) => act(&Target::Thread(only)),
        None => each_of_several(process, act),
    }
}

#[inline(never)]
fn each_of_several(
    process: Arc<Process>,
    act: &mut impl FnMut(&Target) -> Result<()>,
) -> Result<()> {
    let threads = process.threads.lock().to_vec();
    if threads.is_empty() {
        return act(&Target::Zombie(process));
    }
    threads.into_iter().try_for_each(|thread| act(&Target::Thread(thread)))
}

/// getpriority(2): 20 minus the nice value, since a system call cannot return negative numbers.
pub fn getpriority(which: u32, who: u32) -> Result<u64> {
    let mut best = i32::MAX;
    each_target(which, who, |target| {
        best = best.min(target.ask(|entity| entity.nice));
        Ok(())
    })?;
    Ok((20 - best) as u64)
}

fn set_nice(own: &Subject, target: &Target, nice: i32) -> Result<()> {
    let other = target.credentials();
    check_user(own, &other)?;
    let old = target.ask(|entity| entity.nice);
    let may_rise = || {
        let limit = target.process().limit(Resource::Nice);
        nice_limit(nice) <= limit || own.capable(Capability::SysNice)
    };
    if nice < old && !may_rise() {
        return Err(Errno::EACCES);
    }
    hooks::task_setnice((own, target.process(), &other, nice))?;
    if nice != old {
        target.change(|entity| entity.nice = nice);
    }
    Ok(())
}

/// setpriority(2): of several threads each that may be changed is, and the last refusal is told.
pub fn setpriority(which: u32, who: u32, priority: i32) -> Result<u64> {
    let nice = priority.clamp(-20, 19);
    let own = current().subject();
    let mut told = Ok(0);
    each_target(which, who, |target| {
        if let Err(refusal) = set_nice(&own, target, nice) {
            told = Err(refusal);
        }
        Ok(())
    })?;
    told
}

/// Classes of I/O priorities (ioprio_set(2)), as they stand in one.
const IO_CLASS_SHIFT: u32 = 13;
const IO_REAL_TIME: u32 = 1;
const IO_BEST_EFFORT: u32 = 2;
const IO_IDLE: u32 = 3;

/// The I/O priority of a thread: what was set, else what nice value and policy say.
fn io_priority(entity: &sched::SchedEntity) -> u32 {
    let class = match entity.policy & !raw::SCHED_RESET_ON_FORK {
        _ if entity.io_priority >> IO_CLASS_SHIFT != 0 => return entity.io_priority,
        raw::SCHED_IDLE => IO_IDLE,
        raw::SCHED_FIFO | raw::SCHED_RR => IO_REAL_TIME,
        _ => IO_BEST_EFFORT,
    };
    (class << IO_CLASS_SHIFT) | ((entity.nice + 20) as u32 / 5)
}

/// ioprio_get(2): of one thread what was set, of several the highest that any of them has.
pub fn ioprio_get(kind: u32, who: u32) -> Result<u64> {
    if kind == IO_WHO_PROCESS {
        let mut own = 0;
        each_io_target(kind, who, |target| {
            hooks::task_getioprio((target.process(),))?;
            own = target.ask(|entity| entity.io_priority);
            Ok(())
        })?;
        return Ok(own.into());
    }
    let mut best = u32::MAX;
    each_io_target(kind, who, |target| {
        best = best.min(target.ask(io_priority));
        Ok(())
    })?;
    Ok(best.into())
}

/// ioprio_set(2): kept and shown; requests are served in order.
pub fn ioprio_set(kind: u32, who: u32, priority: u32) -> Result<u64> {
    let subject = current().subject();
    check_io_priority(&subject, priority)?;
    each_io_target(kind, who, |target| {
        // Not the rule of `check_permission`: the real ids are asked.
        let other = target.credentials();
        let uid = other.uid;
        if uid != subject.euid && uid != subject.uid && !subject.capable(Capability::SysNice) {
            return Err(Errno::EPERM);
        }
        hooks::task_setioprio((&subject, target.process(), &other, priority))?;
        target.change(|entity| entity.io_priority = priority & 0xffff);
        Ok(())
    })?;
    Ok(0)
}

/// Whom an ioprio call is about, as getpriority(2) and its like say it.
const IO_WHO_PROCESS: u32 = 1;
const IO_WHO_PGRP: u32 = 2;
const IO_WHO_USER: u32 = 3;

/// As [`each_target`], of the threads that an ioprio call is about. ESRCH, EINVAL.
fn each_io_target(kind: u32, who: u32, act: impl FnMut(&Target) -> Result<()>) -> Result<()> {
    match kind {
        IO_WHO_PROCESS => each_target(raw::PRIO_PROCESS, who, act),
        IO_WHO_PGRP => each_target(raw::PRIO_PGRP, who, act),
        // Here 0 is a user as any other.
        IO_WHO_USER if who == 0 => each_thread_of(of_user(0), act),
        IO_WHO_USER => each_target(raw::PRIO_USER, who, act),
        _ => Err(Errno::EINVAL),
    }
}
