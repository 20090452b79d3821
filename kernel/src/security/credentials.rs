//! Who a process is: user and group ids, and capabilities. The calls that read and change them are
//! in `user_ids` and `capabilities`.

use alloc::vec::Vec;

use super::capable::{ALL_CAPABILITIES, Capability, CapabilitySet};
use crate::base::accounts::{Counted, ObjectKind};

/// User and group ids, and capabilities (credentials(7), capabilities(7)).
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "credentials(7) describes each")]
pub struct Credentials {
    pub uid: u32,
    pub euid: u32,
    pub suid: u32,
    pub fsuid: u32,
    pub gid: u32,
    pub egid: u32,
    pub sgid: u32,
    pub fsgid: u32,
    pub groups: Vec<u32>,
    /// Capability sets, one bit each.
    pub permitted: CapabilitySet,
    pub effective: CapabilitySet,
    pub inheritable: CapabilitySet,
    pub bounding: CapabilitySet,
    pub ambient: CapabilitySet,
    /// PR_SET_SECUREBITS.
    pub securebits: u32,
    /// For the accounts.
    pub counted: Counted<{ ObjectKind::Credentials as usize }>,
}

impl Credentials {
    /// The superuser.
    #[must_use]
    pub fn root() -> Self {
        Self::for_user(0, 0, Vec::new())
    }

    /// A user; all capabilities if it is the superuser.
    #[must_use]
    pub fn for_user(uid: u32, gid: u32, groups: Vec<u32>) -> Self {
        let capabilities = if uid == 0 { ALL_CAPABILITIES } else { 0 };
        Credentials {
            uid,
            euid: uid,
            suid: uid,
            fsuid: uid,
            gid,
            egid: gid,
            sgid: gid,
            fsgid: gid,
            groups,
            permitted: capabilities,
            effective: capabilities,
            inheritable: 0,
            bounding: ALL_CAPABILITIES,
            ambient: 0,
            securebits: 0,
            counted: Counted::new(),
        }
    }

    /// Whether the effective set has a capability. Decisions ask
    /// [`capable`](super::capable::capable).
    #[inline]
    #[must_use]
    pub fn has(&self, capability: Capability) -> bool {
        self.effective & capability.bit() != 0
    }

    /// Whether `gid` is the file system group or a supplementary one.
    #[must_use]
    pub fn in_group(&self, gid: u32) -> bool {
        self.fsgid == gid || self.groups.contains(&gid)
    }
}

impl Drop for Credentials {
    fn drop(&mut self) {
        super::subject_hooks::cred_free((self,));
    }
}
