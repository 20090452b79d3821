//! Resource limits (getrlimit(2)): the table of a process, and the calls on it.

use alloc::sync::Arc;

use abi::{Errno, Result, general as raw};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{Process, all_processes, find_process};
use crate::base::args::Args;
use crate::base::sched::current;
use crate::base::user::UserPtr;

/// One soft and one hard limit (getrlimit(2)).
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy, Debug)]
#[expect(missing_docs, reason = "getrlimit(2)")]
#[repr(C)]
pub struct Limit {
    pub soft: u64,
    pub hard: u64,
}

/// No limit.
pub const UNLIMITED: u64 = u64::MAX;
/// RLIMIT_NOFILE's index.
pub const LIMIT_NOFILE: usize = 7;
/// RLIMIT_STACK's index.
pub const LIMIT_STACK: usize = 3;

/// A new system's limits, as Linux has them.
#[must_use]
pub fn default_limits() -> [Limit; 16] {
    let unlimited = Limit { soft: UNLIMITED, hard: UNLIMITED };
    let mut limits = [unlimited; 16];
    limits[LIMIT_STACK] = Limit { soft: 8 << 20, hard: UNLIMITED };
    limits[4].soft = 0; // core
    limits[6] = Limit { soft: 32768, hard: 32768 }; // processes
    limits[LIMIT_NOFILE] = Limit { soft: 1024, hard: 1 << 20 };
    limits[8] = Limit { soft: 8 << 20, hard: 8 << 20 }; // locked memory
    limits[11] = Limit { soft: 32768, hard: 32768 }; // pending signals
    limits[12] = Limit { soft: 819_200, hard: 819_200 }; // message queues
    limits[13] = Limit { soft: 0, hard: 0 }; // nice
    limits[14] = Limit { soft: 0, hard: 0 }; // real-time priority
    limits
}

/// EAGAIN if the current user may have no more processes (RLIMIT_NPROC). The superuser may always.
pub fn check_processes() -> Result<()> {
    let process = &current().process;
    let credentials = process.credentials();
    if credentials.uid == 0
        || credentials.has(raw::CAP_SYS_RESOURCE)
        || credentials.has(raw::CAP_SYS_ADMIN)
    {
        return Ok(());
    }
    let limit = process.limit(raw::RLIMIT_NPROC as usize);
    let count = all_processes().iter().filter(|p| p.credentials().uid == credentials.uid).count();
    if count as u64 >= limit { Err(Errno::EAGAIN) } else { Ok(()) }
}

fn resource(argument: u64) -> Result<usize> {
    let number = argument as u32;
    if number < raw::RLIM_NLIMITS { Ok(number as usize) } else { Err(Errno::EINVAL) }
}

/// Replaces a limit: the hard one may only go down, unless the caller has CAP_SYS_RESOURCE.
fn set(process: &Process, number: usize, new: Limit) -> Result<()> {
    if new.soft > new.hard {
        return Err(Errno::EINVAL);
    }
    // Descriptor tables have a bound of their own (fs.nr_open).
    if number == LIMIT_NOFILE && new.hard > crate::vfs::file::MAX_FDS as u64 {
        return Err(Errno::EPERM);
    }
    let privileged = current().process.credentials().has(raw::CAP_SYS_RESOURCE);
    let mut limits = process.limits.lock();
    if new.hard > limits[number].hard && !privileged {
        return Err(Errno::EPERM);
    }
    limits[number] = new;
    drop(limits);
    if number == raw::RLIMIT_CPU as usize {
        super::timers::cpu_limit_changed(process);
    }
    Ok(())
}

/// getrlimit(2).
pub fn getrlimit(args: &Args) -> Result<u64> {
    let number = resource(args.a0())?;
    let limit = current().process.limits.lock()[number];
    UserPtr::new(args.a1()).write(&limit)?;
    Ok(0)
}

/// setrlimit(2).
pub fn setrlimit(args: &Args) -> Result<u64> {
    let number = resource(args.a0())?;
    let limit = UserPtr::<Limit>::new(args.a1()).read()?;
    set(&current().process, number, limit)?;
    Ok(0)
}

/// prlimit64(2).
pub fn prlimit64(args: &Args) -> Result<u64> {
    let number = resource(args.a1())?;
    let new = UserPtr::<Limit>::new(args.a2()).non_null().map(UserPtr::read).transpose()?;
    let process = prlimit_target(args.a0() as u32)?;
    let old = process.limits.lock()[number];
    if let Some(new) = new {
        set(&process, number, new)?;
    }
    UserPtr::new(args.a3()).write_if_some(&old)?;
    Ok(0)
}

fn prlimit_target(pid: u32) -> Result<Arc<Process>> {
    let own = current().process.clone();
    if pid == 0 || pid == own.pid {
        return Ok(own);
    }
    let process = find_process(pid).ok_or(Errno::ESRCH)?;
    let (mine, other) = (own.credentials(), process.credentials());
    let same = [other.uid, other.euid, other.suid].iter().all(|&uid| uid == mine.uid)
        && [other.gid, other.egid, other.sgid].iter().all(|&gid| gid == mine.gid);
    if same || mine.has(raw::CAP_SYS_RESOURCE) { Ok(process) } else { Err(Errno::EPERM) }
}
