//! The calls on resource limits (getrlimit(2)); the table is `security::limits`.

use alloc::sync::Arc;

use abi::{Errno, Result};

use crate::base::user::UserPtr;
use crate::process::current;
use crate::process::{Process, find_by_tid, hooks, own, timers};
use crate::security::{Capability, Limit, Resource, Subject};

fn resource(argument: u64) -> Result<Resource> {
    Resource::from_number(argument as u32).ok_or(Errno::EINVAL)
}

/// Replaces a limit: the hard one may only go down, unless the caller has CAP_SYS_RESOURCE.
fn set(who: &Subject, process: &Process, resource: Resource, new: Limit) -> Result<()> {
    if new.soft > new.hard {
        return Err(Errno::EINVAL);
    }
    // Descriptor tables have a bound of their own (fs.nr_open).
    if resource == Resource::OpenFiles && new.hard > crate::vfs::file::max_fds() as u64 {
        return Err(Errno::EPERM);
    }
    let may_raise = who.capable(Capability::SysResource);
    hooks::task_setrlimit((process, resource))?;
    process.limits.change(resource, |limit| {
        if new.hard > limit.hard && !may_raise {
            return Err(Errno::EPERM);
        }
        *limit = new;
        Ok(())
    })?;
    if resource == Resource::Cpu {
        timers::cpu_limit_changed(process);
    }
    Ok(())
}

/// getrlimit(2).
pub fn getrlimit(resource_word: u64, limit_at: u64) -> Result<u64> {
    let resource = resource(resource_word)?;
    let limit = current().process.limits.get(resource);
    UserPtr::new(limit_at).write(&limit)?;
    Ok(0)
}

/// setrlimit(2).
pub fn setrlimit(resource_word: u64, limit: UserPtr<Limit>) -> Result<u64> {
    let limit = limit.read()?;
    let resource = resource(resource_word)?;
    let process = &current().process;
    set(&process.subject(), process, resource, limit)?;
    Ok(0)
}

/// prlimit64(2).
pub fn prlimit64(pid: u32, resource_word: u64, new: UserPtr<Limit>, old_at: u64) -> Result<u64> {
    let new = new.non_null().map(UserPtr::read).transpose()?;
    let own = &current().process;
    let who = own.subject();
    let process = prlimit_target(&who, own, pid)?;
    let resource = resource(resource_word)?;
    let old = process.limits.get(resource);
    if let Some(new) = new {
        set(&who, &process, resource, new)?;
    }
    UserPtr::new(old_at).write_if_some(&old)?;
    Ok(0)
}

fn prlimit_target(who: &Subject, own: &Arc<Process>, pid: u32) -> Result<Arc<Process>> {
    if pid == 0 {
        return Ok(own.clone());
    }
    let process = find_by_tid(pid).ok_or(Errno::ESRCH)?;
    // Threads of one process may have different ids: only oneself is asked nothing.
    let is_self = pid == current().tid();
    let other = own::credentials_of(pid).ok_or(Errno::ESRCH)?;
    let same = [other.uid, other.euid, other.suid].iter().all(|&uid| uid == who.uid)
        && [other.gid, other.egid, other.sgid].iter().all(|&gid| gid == who.gid);
    let may = is_self || same || who.capable(Capability::SysResource);
    if !may {
        return Err(Errno::EPERM);
    }
    hooks::task_prlimit((who, &process))?;
    Ok(process)
}
