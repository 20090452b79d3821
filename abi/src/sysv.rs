//! Numbers and layouts of System V IPC (sysvipc(7), shmctl(2), semctl(2), msgctl(2)).

#![expect(missing_docs, reason = "the manual pages describe each name")]

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

pub const IPC_PRIVATE: i32 = 0;
pub const IPC_CREAT: u32 = 0o1000;
pub const IPC_EXCL: u32 = 0o2000;
pub const IPC_NOWAIT: u32 = 0o4000;

pub const IPC_RMID: u32 = 0;
pub const IPC_SET: u32 = 1;
pub const IPC_STAT: u32 = 2;
pub const IPC_INFO: u32 = 3;

pub const SHM_DEST: u32 = 0o1000;
pub const SHM_LOCKED: u32 = 0o2000;
pub const SHM_HUGETLB: u32 = 0o4000;
/// Promise no memory.
pub const SHM_NORESERVE: u32 = 0o10000;
/// Where the flags say the size of huge pages.
pub const SHM_HUGE_SHIFT: u32 = 26;
pub const SHM_RDONLY: u32 = 0o10000;
pub const SHM_RND: u32 = 0o20000;
pub const SHM_REMAP: u32 = 0o40000;
pub const SHM_EXEC: u32 = 0o100_000;
pub const SHM_LOCK: u32 = 11;
pub const SHM_UNLOCK: u32 = 12;
pub const SHM_STAT: u32 = 13;
pub const SHM_INFO: u32 = 14;
pub const SHM_STAT_ANY: u32 = 15;

pub const SEM_UNDO: u16 = 0x1000;
pub const GETPID: u32 = 11;
pub const GETVAL: u32 = 12;
pub const GETALL: u32 = 13;
pub const GETNCNT: u32 = 14;
pub const GETZCNT: u32 = 15;
pub const SETVAL: u32 = 16;
pub const SETALL: u32 = 17;
pub const SEM_STAT: u32 = 18;
pub const SEM_INFO: u32 = 19;
pub const SEM_STAT_ANY: u32 = 20;

pub const MSG_NOERROR: u32 = 0o10000;
pub const MSG_EXCEPT: u32 = 0o20000;
pub const MSG_COPY: u32 = 0o40000;
pub const MSG_STAT: u32 = 11;
pub const MSG_INFO: u32 = 12;
pub const MSG_STAT_ANY: u32 = 13;

/// `struct ipc64_perm`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Perm {
    pub key: i32,
    pub uid: u32,
    pub gid: u32,
    pub cuid: u32,
    pub cgid: u32,
    pub mode: u32,
    pub seq: u16,
    pub pad: [u16; 3],
    pub unused: [u64; 2],
}

/// `struct shmid64_ds`. Times in seconds since 1970, 0 for never.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct ShmidDs {
    pub perm: Perm,
    pub segsz: u64,
    pub atime: i64,
    pub dtime: i64,
    pub ctime: i64,
    pub cpid: u32,
    pub lpid: u32,
    pub nattch: u64,
    pub unused: [u64; 2],
}

/// `struct shminfo64`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct ShmLimits {
    pub shmmax: u64,
    pub shmmin: u64,
    pub shmmni: u64,
    pub shmseg: u64,
    pub shmall: u64,
    pub unused: [u64; 4],
}

/// `struct shm_info`. Sizes in pages.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct ShmUse {
    pub used_ids: u32,
    pub pad: u32,
    pub total: u64,
    pub resident: u64,
    pub swapped: u64,
    pub swap_attempts: u64,
    pub swap_successes: u64,
}

/// `struct semid64_ds`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct SemidDs {
    pub perm: Perm,
    pub otime: i64,
    pub unused1: u64,
    pub ctime: i64,
    pub unused2: u64,
    pub nsems: u64,
    pub unused: [u64; 2],
}

/// `struct seminfo`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct SemInfo {
    pub semmap: u32,
    pub semmni: u32,
    pub semmns: u32,
    pub semmnu: u32,
    pub semmsl: u32,
    pub semopm: u32,
    pub semume: u32,
    pub semusz: u32,
    pub semvmx: u32,
    pub semaem: u32,
}

/// `struct sembuf`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct SemOp {
    pub number: u16,
    pub op: i16,
    pub flags: u16,
}

/// `struct msqid64_ds`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct MsqidDs {
    pub perm: Perm,
    pub stime: i64,
    pub rtime: i64,
    pub ctime: i64,
    pub cbytes: u64,
    pub qnum: u64,
    pub qbytes: u64,
    pub lspid: u32,
    pub lrpid: u32,
    pub unused: [u64; 2],
}

/// `struct msginfo`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct MsgInfo {
    pub msgpool: u32,
    pub msgmap: u32,
    pub msgmax: u32,
    pub msgmnb: u32,
    pub msgmni: u32,
    pub msgssz: u32,
    pub msgtql: u32,
    pub msgseg: u16,
    pub pad: u16,
}

const _: () = assert!(size_of::<Perm>() == 48 && size_of::<ShmidDs>() == 112);
const _: () = assert!(size_of::<SemidDs>() == 104 && size_of::<MsqidDs>() == 120);
const _: () = assert!(size_of::<SemInfo>() == 40 && size_of::<MsgInfo>() == 32);
const _: () = assert!(size_of::<ShmUse>() == 48 && size_of::<SemOp>() == 6);
