//! Process groups and sessions: setpgid(2), setsid(2) and the calls that ask.

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use abi::{Errno, Result};
use machine::task::Current;

use crate::base::args::Word;
use crate::process::current;
use crate::process::{Pid, Process, Thread, find_by_tid, hooks, join_group, session_of_group};

/// The process with this id, a thread's one included, or the caller for 0; ESRCH.
fn process_or_self(argument: u64) -> Result<Arc<Process>> {
    match argument as i32 {
        0 => Ok(current().process.clone()),
        pid @ 1.. => find_by_tid(pid as Pid).ok_or(Errno::ESRCH),
        _ => Err(Errno::ESRCH),
    }
}

/// setpgid(2).
pub fn setpgid(pid_word: u64, group: i32) -> Result<u64> {
    let own = &current().process;
    let pid = pid_word as i32;
    // Without a group it is the process's own number.
    if group < 0 || group == 0 && pid < 0 {
        return Err(Errno::EINVAL);
    }
    if pid < 0 {
        return Err(Errno::ESRCH);
    }
    let target = process_or_self(pid_word)?;
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
    hooks::task_setpgid((&target, group))?;
    join_group(&target, group, session).map(|()| 0)
}

/// getpgid(2).
pub fn getpgid(pid: u64) -> Result<u64> {
    let process = process_or_self(pid)?;
    hooks::task_getpgid((&process,))?;
    Ok(process.group().into())
}

/// getpgrp(2).
pub fn getpgrp() -> Result<u64> {
    Ok(current().process.group().into())
}

/// getsid(2).
pub fn getsid(pid: u64) -> Result<u64> {
    let process = process_or_self(pid)?;
    hooks::task_getsid((&process,))?;
    Ok(process.session.load(Ordering::Relaxed).into())
}

/// setsid(2).
pub fn setsid() -> Result<u64> {
    let process = &current().process;
    if session_of_group(process.pid).is_some() {
        return Err(Errno::EPERM);
    }
    process.session.store(process.pid, Ordering::Relaxed);
    join_group(process, process.pid, process.pid)?;
    Ok(process.pid.into())
}

/// getpid(2).
#[inline]
pub fn getpid(thread: Current<Thread>) -> Word {
    thread.process.pid.into()
}

/// gettid(2).
#[inline]
pub fn gettid(thread: Current<Thread>) -> Word {
    thread.tid().into()
}

/// getppid(2).
#[inline]
pub fn getppid(thread: Current<Thread>) -> Word {
    thread.process.parent_pid().into()
}
