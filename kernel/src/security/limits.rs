//! Resource limits (getrlimit(2)): their names, and a process's table of them. The calls are in
//! `calls::limits`.

use core::sync::atomic::{AtomicU64, Ordering};

use abi::general as raw;
use machine::sync::SpinLock;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

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
/// Number of resources.
const RESOURCES: usize = raw::RLIM_NLIMITS as usize;

macro_rules! resources {
    ($($name:ident = $number:ident,)*) => {
        /// What is limited.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[expect(missing_docs, reason = "getrlimit(2) describes each")]
        #[repr(u32)]
        pub enum Resource {
            $($name = raw::$number,)*
        }

        impl Resource {
            /// The one with this number (RLIMIT_…).
            #[must_use]
            pub const fn from_number(number: u32) -> Option<Resource> {
                match number {
                    $(raw::$number => Some(Resource::$name),)*
                    _ => None,
                }
            }
        }
    };
}

resources! {
    Cpu = RLIMIT_CPU,
    FileSize = RLIMIT_FSIZE,
    Data = RLIMIT_DATA,
    Stack = RLIMIT_STACK,
    Core = RLIMIT_CORE,
    ResidentSet = RLIMIT_RSS,
    Processes = RLIMIT_NPROC,
    OpenFiles = RLIMIT_NOFILE,
    LockedMemory = RLIMIT_MEMLOCK,
    AddressSpace = RLIMIT_AS,
    FileLocks = RLIMIT_LOCKS,
    PendingSignals = RLIMIT_SIGPENDING,
    MessageQueues = RLIMIT_MSGQUEUE,
    Nice = RLIMIT_NICE,
    RealTimePriority = RLIMIT_RTPRIO,
    RealTimeTime = RLIMIT_RTTIME,
}

/// A process's limits.
pub struct Limits {
    both: SpinLock<[Limit; RESOURCES]>,
    /// The soft ones again: what holds is asked often, and by many threads. Written under the lock.
    soft: [AtomicU64; RESOURCES],
}

impl Default for Limits {
    /// A new system's, as Linux has them.
    fn default() -> Self {
        use Resource::{
            Core, LockedMemory, MessageQueues, Nice, OpenFiles, PendingSignals, Processes,
            RealTimePriority, Stack,
        };
        let mut table = [Limit { soft: UNLIMITED, hard: UNLIMITED }; RESOURCES];
        let both = |limit| Limit { soft: limit, hard: limit };
        table[Stack as usize].soft = 8 << 20;
        table[Core as usize].soft = 0;
        table[Processes as usize] = both(32768);
        table[OpenFiles as usize] = Limit { soft: 1024, hard: 1 << 20 };
        table[LockedMemory as usize] = both(8 << 20);
        table[PendingSignals as usize] = both(32768);
        table[MessageQueues as usize] = both(819_200);
        table[Nice as usize] = both(0);
        table[RealTimePriority as usize] = both(0);
        Limits::new(table)
    }
}

impl Clone for Limits {
    /// What a child inherits.
    fn clone(&self) -> Self {
        Limits::new(*self.both.lock())
    }
}

impl Limits {
    fn new(both: [Limit; RESOURCES]) -> Limits {
        Limits { soft: both.map(|limit| AtomicU64::new(limit.soft)), both: SpinLock::new(both) }
    }

    /// Both limits.
    #[must_use]
    pub fn get(&self, resource: Resource) -> Limit {
        self.both.lock()[resource as usize]
    }

    /// The limit that holds.
    #[inline]
    #[must_use]
    pub fn soft(&self, resource: Resource) -> u64 {
        self.soft[resource as usize].load(Ordering::Relaxed)
    }

    /// Changes one as `edit` says, under the lock; what that returns.
    pub fn change<T>(&self, resource: Resource, edit: impl FnOnce(&mut Limit) -> T) -> T {
        let mut both = self.both.lock();
        let limit = &mut both[resource as usize];
        let result = edit(limit);
        self.soft[resource as usize].store(limit.soft, Ordering::Relaxed);
        result
    }
}
