//! The policy `capability`: POSIX capabilities (capabilities(7)), as answers to hooks about who
//! acts. What sets become is decided by `lsm::capabilities`; answers about files are in
//! `vfs/capability`, about programs and processes in `process/capability`.

use abi::{Errno, Result};
use lsm::capabilities::{self, Ids, Sets};

use super::{Capability, CapabilitySet, Credentials, subject_hooks as asked};

/// Capabilities that go with the file system's user id (setfsuid(2)).
const OF_FILES: CapabilitySet = Capability::Chown.bit()
    | Capability::DacOverride.bit()
    | Capability::DacReadSearch.bit()
    | Capability::Fowner.bit()
    | Capability::Fsetid.bit()
    | Capability::LinuxImmutable.bit()
    | Capability::Mknod.bit()
    | Capability::MacOverride.bit();

impl Credentials {
    /// The sets.
    #[must_use]
    pub fn sets(&self) -> Sets {
        Sets {
            permitted: self.permitted,
            effective: self.effective,
            inheritable: self.inheritable,
            bounding: self.bounding,
            ambient: self.ambient,
            securebits: self.securebits,
        }
    }

    /// Replaces the sets.
    pub fn set_sets(&mut self, sets: &Sets) {
        let Sets { permitted, effective, inheritable, bounding, ambient, securebits } = *sets;
        (self.permitted, self.effective) = (permitted, effective);
        (self.inheritable, self.bounding) = (inheritable, bounding);
        (self.ambient, self.securebits) = (ambient, securebits);
    }

    /// The ids that count for the sets.
    #[must_use]
    pub fn ids(&self) -> Ids {
        Ids {
            uid: self.uid,
            euid: self.euid,
            suid: self.suid,
            fsuid: self.fsuid,
            gid: self.gid,
            egid: self.egid,
        }
    }
}

pub(super) fn capable((who, capability): asked::capable::Given<'_>) -> Result<()> {
    if who.credentials.has(capability) { Ok(()) } else { Err(Errno::EPERM) }
}

pub(super) fn settime((who,): asked::settime::Given<'_>) -> Result<()> {
    capable((who, Capability::SysTime))
}

pub(super) fn capset((old, new): asked::capset::Given<'_>) -> Result<()> {
    let setpcap = old.has(Capability::Setpcap);
    if capabilities::may_set(&old.sets(), &new.sets(), setpcap) {
        Ok(())
    } else {
        Err(Errno::EPERM)
    }
}

pub(super) fn task_fix_setuid((old, new, change): asked::task_fix_setuid::Given<'_>) -> Result<()> {
    let mut new = new.borrow_mut();
    let mut sets = new.sets();
    capabilities::after_uid_change(&old.ids(), &new.ids(), change, OF_FILES, &mut sets);
    new.set_sets(&sets);
    Ok(())
}
