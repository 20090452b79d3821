//! Who a process is: user and group ids, and capabilities. The calls that read and change them are
//! in `user_ids` and `capabilities`.

use alloc::vec::Vec;

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
    pub permitted: u64,
    pub effective: u64,
    pub inheritable: u64,
    pub bounding: u64,
    pub ambient: u64,
    /// PR_SET_SECUREBITS.
    pub securebits: u32,
}

/// All capabilities that Linux 6.12 knows: 0 to CAP_CHECKPOINT_RESTORE (40).
pub const ALL_CAPABILITIES: u64 = (1 << 41) - 1;

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
        }
    }

    /// Whether the effective set has the capability with this number.
    #[must_use]
    pub fn has(&self, capability: u32) -> bool {
        self.effective & 1 << capability != 0
    }

    /// Whether `gid` is the file system group or a supplementary one.
    #[must_use]
    pub fn in_group(&self, gid: u32) -> bool {
        self.fsgid == gid || self.groups.contains(&gid)
    }
}
