//! Asynchronous I/O (io_submit(2), `linux/aio_abi.h`), which linux-raw-sys does not have.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// What a request is to do: [`IoControl::opcode`].
pub mod opcode {
    /// IOCB_CMD_PREAD.
    pub const READ: u16 = 0;
    /// IOCB_CMD_PWRITE.
    pub const WRITE: u16 = 1;
    /// IOCB_CMD_FSYNC.
    pub const SYNC: u16 = 2;
    /// IOCB_CMD_FDSYNC.
    pub const SYNC_DATA: u16 = 3;
    /// IOCB_CMD_POLL.
    pub const POLL: u16 = 5;
    /// IOCB_CMD_PREADV.
    pub const READ_VECTOR: u16 = 7;
    /// IOCB_CMD_PWRITEV.
    pub const WRITE_VECTOR: u16 = 8;
}

/// IOCB_FLAG_RESFD: [`IoControl::event_fd`] counts the completion.
pub const HAS_EVENT_FD: u32 = 1;
/// IOCB_FLAG_IOPRIO: [`IoControl::priority`] means something.
pub const HAS_PRIORITY: u32 = 2;

/// `struct iocb`: a request.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy, Debug)]
#[repr(C)]
pub struct IoControl {
    /// For the program: given back in [`IoEvent::data`].
    pub data: u64,
    /// Written by the kernel, and asked back by io_cancel(2).
    pub key: u32,
    /// RWF_* of preadv2(2).
    pub rw_flags: u32,
    /// One of [`opcode`].
    pub opcode: u16,
    /// As ioprio_set(2) takes it.
    pub priority: i16,
    /// The file.
    pub fd: u32,
    /// The buffer, the I/O vector, or the events of a poll.
    pub buffer: u64,
    /// Bytes, or elements of the vector.
    pub count: u64,
    /// Where in the file.
    pub offset: i64,
    /// 0.
    pub reserved: u64,
    /// [`HAS_EVENT_FD`], [`HAS_PRIORITY`].
    pub flags: u32,
    /// An eventfd(2).
    pub event_fd: u32,
}

/// `struct io_event`: a completion.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct IoEvent {
    /// [`IoControl::data`].
    pub data: u64,
    /// Where the program's [`IoControl`] is.
    pub request: u64,
    /// What the call would have given, an error as its negative number.
    pub result: i64,
    /// 0.
    pub second: i64,
}

/// `struct aio_ring`: the head of the memory that a context shares with its program, before the
/// completions.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy, Debug)]
#[repr(C)]
pub struct RingHead {
    /// Number in the kernel's table; programs make nothing of it.
    pub id: u32,
    /// Places for completions.
    pub places: u32,
    /// The next completion to take, which the program may move itself.
    pub head: u32,
    /// Where the next one will be put.
    pub tail: u32,
    /// [`RING_MAGIC`].
    pub magic: u32,
    /// 1: completions are in their order.
    pub compatible: u32,
    /// 0.
    pub incompatible: u32,
    /// Bytes of this head.
    pub bytes: u32,
}

/// AIO_RING_MAGIC.
pub const RING_MAGIC: u32 = 0xa10a_10a1;

/// `struct __aio_sigset`: the last argument of io_pgetevents(2).
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy, Debug)]
#[repr(C)]
pub struct SignalMask {
    /// Where the set is, or 0.
    pub set: u64,
    /// Its bytes.
    pub bytes: u64,
}
