//! The policy `capability` on programs and processes: what execve(2) makes of the sets, prctl(2)'s
//! options about them, and who may change a process that has more (capabilities(7)).

use abi::{Errno, Result, prctl as pr};
use lsm::capabilities::{self, FileSets, Unsafe, securebits};

use super::ptrace::access::Ids;
use super::{hooks, own};
use crate::process::current;
use crate::security::{ALL_CAPABILITIES, Capability, Credentials, Subject};
use crate::vfs::capability::ATTRIBUTE;

/// Last capability that exists.
const LAST: u64 = ALL_CAPABILITIES.ilog2() as u64;

pub(super) fn bprm_creds_from_file(
    (file, who, next): hooks::bprm_creds_from_file::Given<'_>,
) -> Result<()> {
    let thread = current();
    let mut next = next.borrow_mut();
    let value = if next.may_gain { file.ops().inode().get_xattr(ATTRIBUTE).ok() } else { None };
    let sets = match value.map(|value| FileSets::decode(&value, ALL_CAPABILITIES)) {
        None => None,
        Some(decoded) => decoded.map_err(|_| Errno::EINVAL)?,
    };
    let dangers = Unsafe {
        no_new_privs: thread.seccomp.no_new_privs(),
        traced: thread.trace.has_weak_tracer(),
        has_setuid: who.has(Capability::Setuid),
    };
    let old = (&who.ids(), &who.sets());
    let after = capabilities::after_exec(old, &next.credentials.ids(), sets.as_ref(), dangers)
        .map_err(|_| Errno::EPERM)?;
    let new = &mut next.credentials;
    if after.keeps_ids {
        (new.euid, new.egid) = (new.uid, new.gid);
    }
    (new.suid, new.fsuid) = (new.euid, new.euid);
    (new.sgid, new.fsgid) = (new.egid, new.egid);
    new.set_sets(&after.sets);
    next.secure |= after.secure;
    Ok(())
}

pub(super) fn ptrace_access_check(
    (who, target, ids): hooks::ptrace_access_check::Given<'_>,
) -> Result<()> {
    let own = match ids {
        Ids::File | Ids::FileToAttach => who.effective,
        Ids::Real | Ids::RealToAttach => who.permitted,
    };
    let less = target.credentials().permitted & !own == 0;
    if less || who.capable(Capability::SysPtrace) { Ok(()) } else { Err(Errno::EPERM) }
}

pub(super) fn ptrace_traceme((tracee, tracer): hooks::ptrace_traceme::Given<'_>) -> Result<()> {
    let (own, of) = (tracee.process.credentials(), tracer.process.credentials());
    let less = own.permitted & !of.permitted == 0;
    if less || of.has(Capability::SysPtrace) { Ok(()) } else { Err(Errno::EPERM) }
}

/// EPERM for a thread with more capabilities, unless the caller may set anybody's priority.
fn check_nice(who: &Subject, target: &Credentials) -> Result<()> {
    if target.permitted & !who.permitted == 0 { Ok(()) } else { check_may_set_any(who) }
}

#[cold]
fn check_may_set_any(who: &Subject) -> Result<()> {
    if who.capable(Capability::SysNice) { Ok(()) } else { Err(Errno::EPERM) }
}

pub(super) fn task_setnice((who, _, target, _): hooks::task_setnice::Given<'_>) -> Result<()> {
    check_nice(who, target)
}

pub(super) fn task_setioprio((who, _, target, _): hooks::task_setioprio::Given<'_>) -> Result<()> {
    check_nice(who, target)
}

pub(super) fn task_setscheduler(
    (who, _, target): hooks::task_setscheduler::Given<'_>,
) -> Result<()> {
    check_nice(who, target)
}

/// Changes a copy of the caller's credentials; in place only if that succeeds.
fn edit(edit: impl FnOnce(&mut Credentials) -> Result<()>) -> Result<u32> {
    let thread = current();
    let mut new = Credentials::clone(&thread.credentials());
    edit(&mut new)?;
    own::set_credentials(thread, new);
    Ok(0)
}

fn must_be_zero(arguments: &[u64]) -> Result<()> {
    if arguments.iter().all(|&argument| argument == 0) { Ok(()) } else { Err(Errno::EINVAL) }
}

pub(super) fn task_prctl((thread, option, args): hooks::task_prctl::Given<'_>) -> Result<u32> {
    let who = thread.subject();
    let value = args[0];
    match option {
        pr::PR_CAPBSET_READ if value > LAST => Err(Errno::EINVAL),
        pr::PR_CAPBSET_READ => Ok((who.bounding >> value & 1) as u32),
        pr::PR_CAPBSET_DROP => {
            if !who.capable(Capability::Setpcap) {
                return Err(Errno::EPERM);
            }
            must_be_zero(&[u64::from(value > LAST)])?;
            edit(|new| {
                new.bounding &= !(1 << value);
                Ok(())
            })
        }
        pr::PR_GET_SECUREBITS => Ok(who.securebits),
        pr::PR_SET_SECUREBITS => {
            let allowed = securebits::may_become(who.securebits, value);
            if !allowed || !who.capable(Capability::Setpcap) {
                return Err(Errno::EPERM);
            }
            edit(|new| {
                new.securebits = value as u32;
                Ok(())
            })
        }
        pr::PR_GET_KEEPCAPS => Ok(u32::from(who.securebits & securebits::KEEP_CAPS != 0)),
        pr::PR_SET_KEEPCAPS => set_keep_caps(value),
        pr::PR_CAP_AMBIENT => ambient(args, &who),
        _ => Err(Errno::ENOSYS),
    }
}

fn set_keep_caps(value: u64) -> Result<u32> {
    must_be_zero(&[value & !1])?;
    edit(|new| {
        if new.securebits & securebits::KEEP_CAPS << 1 != 0 {
            return Err(Errno::EPERM);
        }
        new.securebits &= !securebits::KEEP_CAPS;
        new.securebits |= if value == 1 { securebits::KEEP_CAPS } else { 0 };
        Ok(())
    })
}

fn ambient(args: &[u64; 4], who: &Subject) -> Result<u32> {
    let (command, capability) = (args[0] as u32, args[1]);
    if command == pr::PR_CAP_AMBIENT_CLEAR_ALL {
        must_be_zero(&args[1..])?;
        return edit(|new| {
            new.ambient = 0;
            Ok(())
        });
    }
    must_be_zero(&[args[2], args[3], u64::from(capability > LAST)])?;
    let bit = 1u64 << capability;
    match command {
        pr::PR_CAP_AMBIENT_IS_SET => Ok(u32::from(who.ambient & bit != 0)),
        pr::PR_CAP_AMBIENT_RAISE => edit(|new| {
            let has = new.permitted & new.inheritable & bit != 0;
            if !has || new.securebits & securebits::NO_CAP_AMBIENT_RAISE != 0 {
                return Err(Errno::EPERM);
            }
            new.ambient |= bit;
            Ok(())
        }),
        pr::PR_CAP_AMBIENT_LOWER => edit(|new| {
            new.ambient &= !bit;
            Ok(())
        }),
        _ => Err(Errno::EINVAL),
    }
}
