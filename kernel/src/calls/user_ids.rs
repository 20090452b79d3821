//! User and group ids (credentials(7)): the get and set calls.
//!
//! Every call makes a changed copy of the credentials and puts it in place as a whole, so that
//! nobody ever sees half a change. Threads of a process share their credentials here; C libraries
//! make them equal in all threads anyway (nptl(7)).

use alloc::vec::Vec;
use core::cell::RefCell;
use core::sync::atomic::Ordering;

use abi::{Errno, Result};
use lsm::capabilities::Change;
use machine::task::Current;

use crate::base::args::Word;
use crate::base::user::UserPtr;
use crate::process::{Own, Thread, current, fork, own};
use crate::security::{Capability, Credentials, Subject, subject_hooks};

/// "Leave it as it is", in the calls that set several ids.
const KEEP: u32 = u32::MAX;
/// Most supplementary groups (NGROUPS_MAX).
const GROUPS_MAX: usize = 65_536;

fn own() -> Subject {
    current().subject()
}

/// Which ids a call changes: policies are asked about each kind by a hook of its own.
#[derive(Clone, Copy)]
enum Of {
    User(Change),
    Group,
    Groups,
}

/// Applies a change to a copy of the caller's credentials; in place only if it succeeds.
fn change(of: Of, edit: impl FnOnce(&Subject, &mut Credentials) -> Result<()>) -> Result<u64> {
    let thread = current();
    let old = thread.subject();
    subject_hooks::cred_prepare((&old,))?;
    let mut new = Credentials::clone(&old);
    edit(&old, &mut new)?;
    let new = RefCell::new(new);
    match of {
        Of::User(change) => subject_hooks::task_fix_setuid((&old, &new, change))?,
        Of::Group => subject_hooks::task_fix_setgid((&old, &new.borrow()))?,
        Of::Groups => subject_hooks::task_fix_setgroups((&old, &new.borrow()))?,
    }
    let new = new.into_inner();
    if let Of::User(Change::Ids) = of {
        fork::note_exceeded(&thread, new.uid);
    }
    let ids = |c: &Credentials| (c.euid, c.egid, c.fsuid, c.fsgid);
    if ids(&old) != ids(&new) {
        // What ran under the old ids may be in memory: others must not look at it (prctl(2)).
        thread.process.settings.not_dumpable.store(true, Ordering::Relaxed);
        thread.settings.parent_death_signal.store(0, Ordering::Relaxed);
    }
    own::set_credentials(thread, new);
    Ok(0)
}

/// getuid(2).
pub fn getuid(thread: Current<Thread>) -> Word {
    Own::with_credentials(thread, |own| own.uid).into()
}

/// geteuid(2).
pub fn geteuid(thread: Current<Thread>) -> Word {
    Own::with_credentials(thread, |own| own.euid).into()
}

/// getgid(2).
pub fn getgid(thread: Current<Thread>) -> Word {
    Own::with_credentials(thread, |own| own.gid).into()
}

/// getegid(2).
pub fn getegid(thread: Current<Thread>) -> Word {
    Own::with_credentials(thread, |own| own.egid).into()
}

/// An id argument that must not be "keep".
fn id(argument: u64) -> Result<u32> {
    let id = argument as u32;
    if id == KEEP { Err(Errno::EINVAL) } else { Ok(id) }
}

/// setuid(2).
pub fn setuid(uid: u64) -> Result<u64> {
    let uid = id(uid)?;
    change(Of::User(Change::Ids), |who, new| {
        if who.capable(Capability::Setuid) {
            (new.uid, new.suid) = (uid, uid);
        } else if uid != new.uid && uid != new.suid {
            return Err(Errno::EPERM);
        }
        (new.euid, new.fsuid) = (uid, uid);
        Ok(())
    })
}

/// setgid(2).
pub fn setgid(gid: u64) -> Result<u64> {
    let gid = id(gid)?;
    change(Of::Group, |who, new| {
        if who.capable(Capability::Setgid) {
            (new.gid, new.sgid) = (gid, gid);
        } else if gid != new.gid && gid != new.sgid {
            return Err(Errno::EPERM);
        }
        (new.egid, new.fsgid) = (gid, gid);
        Ok(())
    })
}

/// setreuid(2).
pub fn setreuid(real: u32, effective: u32) -> Result<u64> {
    change(Of::User(Change::Ids), |who, new| {
        let privileged = who.capable(Capability::Setuid);
        let old = (new.uid, new.euid, new.suid);
        if real != KEEP {
            if !privileged && real != old.0 && real != old.1 {
                return Err(Errno::EPERM);
            }
            new.uid = real;
        }
        if effective != KEEP {
            if !privileged && ![old.0, old.1, old.2].contains(&effective) {
                return Err(Errno::EPERM);
            }
            new.euid = effective;
        }
        if real != KEEP || effective != KEEP && effective != old.0 {
            new.suid = new.euid;
        }
        new.fsuid = new.euid;
        Ok(())
    })
}

/// setregid(2).
pub fn setregid(real: u32, effective: u32) -> Result<u64> {
    change(Of::Group, |who, new| {
        let privileged = who.capable(Capability::Setgid);
        let old = (new.gid, new.egid, new.sgid);
        if real != KEEP {
            if !privileged && real != old.0 && real != old.1 {
                return Err(Errno::EPERM);
            }
            new.gid = real;
        }
        if effective != KEEP {
            if !privileged && ![old.0, old.1, old.2].contains(&effective) {
                return Err(Errno::EPERM);
            }
            new.egid = effective;
        }
        if real != KEEP || effective != KEEP && effective != old.0 {
            new.sgid = new.egid;
        }
        new.fsgid = new.egid;
        Ok(())
    })
}

/// Three ids to set, of which some may be "keep", against the three a process has.
fn set_three(asked: [u32; 3], has: [u32; 3], privileged: bool) -> Result<[u32; 3]> {
    let allowed = |id: &u32| *id == KEEP || privileged || has.contains(id);
    if !asked.iter().all(allowed) {
        return Err(Errno::EPERM);
    }
    Ok(core::array::from_fn(|i| if asked[i] == KEEP { has[i] } else { asked[i] }))
}

/// setresuid(2). Who asks for what is there keeps the file system's id, too.
pub fn setresuid(real: u32, effective: u32, saved: u32) -> Result<u64> {
    change(Of::User(Change::Ids), |who, new| {
        let has = [new.uid, new.euid, new.suid];
        let privileged = who.capable(Capability::Setuid);
        let set = set_three([real, effective, saved], has, privileged)?;
        if set != has || ![KEEP, new.fsuid].contains(&effective) {
            [new.uid, new.euid, new.suid] = set;
            new.fsuid = new.euid;
        }
        Ok(())
    })
}

/// setresgid(2).
pub fn setresgid(real: u32, effective: u32, saved: u32) -> Result<u64> {
    change(Of::Group, |who, new| {
        let has = [new.gid, new.egid, new.sgid];
        let privileged = who.capable(Capability::Setgid);
        let set = set_three([real, effective, saved], has, privileged)?;
        if set != has || ![KEEP, new.fsgid].contains(&effective) {
            [new.gid, new.egid, new.sgid] = set;
            new.fsgid = new.egid;
        }
        Ok(())
    })
}

fn write_three(to: [UserPtr<u32>; 3], ids: [u32; 3]) -> Result<u64> {
    for (address, id) in to.into_iter().zip(ids) {
        address.write(&id)?;
    }
    Ok(0)
}

/// getresuid(2).
pub fn getresuid(real: UserPtr<u32>, effective: UserPtr<u32>, saved: UserPtr<u32>) -> Result<u64> {
    let own = own();
    write_three([real, effective, saved], [own.uid, own.euid, own.suid])
}

/// getresgid(2).
pub fn getresgid(real: UserPtr<u32>, effective: UserPtr<u32>, saved: UserPtr<u32>) -> Result<u64> {
    let own = own();
    write_three([real, effective, saved], [own.gid, own.egid, own.sgid])
}

/// setfsuid(2): gives the old id, and no error ever.
pub fn setfsuid(uid: u32) -> Result<u64> {
    let old = own();
    let has = [old.uid, old.euid, old.suid, old.fsuid];
    let allowed = old.capable(Capability::Setuid) || has.contains(&uid);
    if uid != KEEP && allowed {
        change(Of::User(Change::FileSystem), |_, new| {
            new.fsuid = uid;
            Ok(())
        })?;
    }
    Ok(old.fsuid.into())
}

/// setfsgid(2).
pub fn setfsgid(gid: u32) -> Result<u64> {
    let old = own();
    let has = [old.gid, old.egid, old.sgid, old.fsgid];
    let allowed = old.capable(Capability::Setgid) || has.contains(&gid);
    if gid != KEEP && allowed {
        change(Of::Group, |_, new| {
            new.fsgid = gid;
            Ok(())
        })?;
    }
    Ok(old.fsgid.into())
}

/// getgroups(2).
pub fn getgroups(count_word: i32, groups: UserPtr<u32>) -> Result<u64> {
    let own = own();
    let count = own.groups.len();
    let room = usize::try_from(count_word).map_err(|_| Errno::EINVAL)?;
    if room != 0 {
        if room < count {
            return Err(Errno::EINVAL);
        }
        if count > 0 {
            groups.write_many(&own.groups)?;
        }
    }
    Ok(count as u64)
}

/// setgroups(2).
pub fn setgroups(count: u32, groups: UserPtr<u32>) -> Result<u64> {
    if !own().capable(Capability::Setgid) {
        return Err(Errno::EPERM);
    }
    let count = count as usize;
    if count > GROUPS_MAX {
        return Err(Errno::EINVAL);
    }
    let mut groups: Vec<u32> = groups.read_many(count)?;
    groups.sort_unstable();
    change(Of::Groups, |_, new| {
        new.groups = groups;
        Ok(())
    })
}
