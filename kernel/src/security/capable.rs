//! Capabilities (capabilities(7)): their names, and the one question about them.
//!
//! A capability is asked for with [`capable`], and nowhere else: it is a hook, which the policy
//! `capability` answers. Whoever asks gives the [`Subject`] that acts, which is
//! taken once, at the edge of a call.

use abi::{Errno, Result, general as raw};

use super::{Subject, subject_hooks};

/// A set of capabilities: bit n is the one with number n.
pub type CapabilitySet = u64;

/// All capabilities that Linux 6.12 knows.
pub const ALL_CAPABILITIES: CapabilitySet = (1 << (raw::CAP_LAST_CAP + 1)) - 1;

macro_rules! capabilities {
    ($($name:ident = $number:ident,)*) => {
        /// A right that was once the superuser's (capabilities(7) describes each).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[expect(missing_docs, reason = "capabilities(7) describes each")]
        #[repr(u32)]
        pub enum Capability {
            $($name = raw::$number,)*
        }

        impl Capability {
            /// Linux's name for it.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Capability::$name => stringify!($number),)*
                }
            }

            /// The one with this number; None from CAP_LAST_CAP on.
            #[must_use]
            pub const fn from_number(number: u32) -> Option<Capability> {
                match number {
                    $(raw::$number => Some(Capability::$name),)*
                    _ => None,
                }
            }
        }
    };
}

capabilities! {
    Chown = CAP_CHOWN,
    DacOverride = CAP_DAC_OVERRIDE,
    DacReadSearch = CAP_DAC_READ_SEARCH,
    Fowner = CAP_FOWNER,
    Fsetid = CAP_FSETID,
    Kill = CAP_KILL,
    Setgid = CAP_SETGID,
    Setuid = CAP_SETUID,
    Setpcap = CAP_SETPCAP,
    LinuxImmutable = CAP_LINUX_IMMUTABLE,
    NetBindService = CAP_NET_BIND_SERVICE,
    NetBroadcast = CAP_NET_BROADCAST,
    NetAdmin = CAP_NET_ADMIN,
    NetRaw = CAP_NET_RAW,
    IpcLock = CAP_IPC_LOCK,
    IpcOwner = CAP_IPC_OWNER,
    SysModule = CAP_SYS_MODULE,
    SysRawio = CAP_SYS_RAWIO,
    SysChroot = CAP_SYS_CHROOT,
    SysPtrace = CAP_SYS_PTRACE,
    SysPacct = CAP_SYS_PACCT,
    SysAdmin = CAP_SYS_ADMIN,
    SysBoot = CAP_SYS_BOOT,
    SysNice = CAP_SYS_NICE,
    SysResource = CAP_SYS_RESOURCE,
    SysTime = CAP_SYS_TIME,
    SysTtyConfig = CAP_SYS_TTY_CONFIG,
    Mknod = CAP_MKNOD,
    Lease = CAP_LEASE,
    AuditWrite = CAP_AUDIT_WRITE,
    AuditControl = CAP_AUDIT_CONTROL,
    Setfcap = CAP_SETFCAP,
    MacOverride = CAP_MAC_OVERRIDE,
    MacAdmin = CAP_MAC_ADMIN,
    Syslog = CAP_SYSLOG,
    WakeAlarm = CAP_WAKE_ALARM,
    BlockSuspend = CAP_BLOCK_SUSPEND,
    AuditRead = CAP_AUDIT_READ,
    Perfmon = CAP_PERFMON,
    Bpf = CAP_BPF,
    CheckpointRestore = CAP_CHECKPOINT_RESTORE,
}

impl Capability {
    /// The set with just this one.
    #[must_use]
    pub const fn bit(self) -> CapabilitySet {
        1 << self as u32
    }
}

/// Whether the subject may use a capability.
#[inline]
#[must_use]
pub fn capable(who: &Subject, capability: Capability) -> bool {
    subject_hooks::capable((who, capability)).is_ok()
}

/// Whether `who` may have requests of that class and level served (ioprio_set(2)). EINVAL if it is
/// none, EPERM: real time takes a right.
pub fn check_io_priority(who: &Subject, priority: u32) -> Result<()> {
    let (class, level) = (priority >> 13, priority & 7);
    match class {
        1 if !who.capable(Capability::SysAdmin) => Err(Errno::EPERM),
        0 if level != 0 => Err(Errno::EINVAL),
        0..=3 => Ok(()),
        _ => Err(Errno::EINVAL),
    }
}
