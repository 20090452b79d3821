//! Process groups and sessions: setpgid(2), setsid(2) and the calls that ask.

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use abi::{Errno, Result};

use crate::base::args::Args;
use crate::process::current;
use crate::process::signal::send::group_members;
use crate::process::{Pid, Process, find_by_tid};

/// The process with this id, a thread's one included, or the caller for 0; ESRCH.
fn process_or_self(argument: u64) -> Result<Arc<Process>> {
    match argument as i32 {
        0 => Ok(current().process.clone()),
        pid @ 1.. => find_by_tid(pid as Pid).ok_or(Errno::ESRCH),
        _ => Err(Errno::ESRCH),
    }
}

/// setpgid(2).
pub fn setpgid(args: &Args) -> Result<u64> {
    let own = &current().process;
    let (pid, group) = (args.a0() as i32, args.a1() as i32);
    if group < 0 {
        return Err(Errno::EINVAL);
    }
    if pid < 0 {
        return Err(Errno::ESRCH);
    }
    let target = process_or_self(args.a0())?;
    if pid != 0 && target.pid != pid as Pid {
        return Err(Errno::EINVAL);
    }
    if !target.is_current() {
        if target.parent_pid() != own.pid {
            return Err(Errno::ESRCH);
        }
        if target.session.load(Ordering::Relaxed) != own.session.load(Ordering::Relaxed) {
            return Err(Errno::EPERM);
        }
        if target.settings.has_executed.load(Ordering::Relaxed) {
            return Err(Errno::EACCES);
        }
    }
    let session = target.session.load(Ordering::Relaxed);
    if session == target.pid {
        return Err(Errno::EPERM);
    }
    let group = if group == 0 { target.pid } else { group as Pid };
    if group != target.pid {
        let same_session = |p: &Arc<Process>| p.session.load(Ordering::Relaxed) == session;
        if !group_members(group).iter().any(same_session) {
            return Err(Errno::EPERM);
        }
    }
    target.group.store(group, Ordering::Relaxed);
    Ok(0)
}

/// getpgid(2).
pub fn getpgid(args: &Args) -> Result<u64> {
    Ok(process_or_self(args.a0())?.group.load(Ordering::Relaxed).into())
}

/// getpgrp(2).
pub fn getpgrp() -> Result<u64> {
    Ok(current().process.group.load(Ordering::Relaxed).into())
}

/// getsid(2).
pub fn getsid(args: &Args) -> Result<u64> {
    Ok(process_or_self(args.a0())?.session.load(Ordering::Relaxed).into())
}

/// setsid(2).
pub fn setsid() -> Result<u64> {
    let process = &current().process;
    if !group_members(process.pid).is_empty() {
        return Err(Errno::EPERM);
    }
    process.session.store(process.pid, Ordering::Relaxed);
    process.group.store(process.pid, Ordering::Relaxed);
    Ok(process.pid.into())
}
