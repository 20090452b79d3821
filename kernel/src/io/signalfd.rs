//! Signals as files (signalfd(2)). Reading takes a pending signal of the reading process; so the
//! file itself keeps nothing but the set it is for.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering};

use abi::{Errno, Result, general as raw};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::base::io::Sink;
use crate::base::poll::{PollTable, events};
use crate::base::user::UserPtr;
use crate::process::current;
use crate::process::signal::{SigInfo, SignalSet};
use crate::vfs::{File, FileOps, FileType, Inode, anon::AnonInode};

const SFD_CLOEXEC: u32 = raw::O_CLOEXEC;
const SFD_NONBLOCK: u32 = raw::O_NONBLOCK;
/// Bytes of `struct signalfd_siginfo`.
const RECORD_BYTES: usize = 128;
/// SIGKILL and SIGSTOP, which no file gets.
const NEVER: SignalSet = 1 << (raw::SIGKILL - 1) | 1 << (raw::SIGSTOP - 1);

/// `struct signalfd_siginfo` (signalfd(2)).
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy, Default)]
#[repr(C)]
struct Record {
    signo: u32,
    errno: i32,
    code: i32,
    pid: u32,
    uid: u32,
    fd: i32,
    tid: u32,
    band: u32,
    overrun: u32,
    trapno: u32,
    status: i32,
    int: i32,
    ptr: u64,
    utime: u64,
    stime: u64,
    addr: u64,
    addr_lsb: u16,
    _pad2: u16,
    syscall: i32,
    call_addr: u64,
    arch: u32,
    _pad: [u32; 7],
}

const _: () = assert!(size_of::<Record>() == RECORD_BYTES);

impl Record {
    /// Which fields mean something depends on the signal and where it came from (sigaction(2)).
    fn new(info: &SigInfo) -> Record {
        let mut record = Record {
            signo: info.number(),
            errno: info.errno,
            code: info.code,
            ..Record::default()
        };
        let (low, high) = (info.fields[0] as u32, (info.fields[0] >> 32) as u32);
        let value = info.fields[1];
        match (info.number(), info.code) {
            (_, raw::SI_TIMER) => {
                (record.tid, record.overrun) = (low, high);
                (record.int, record.ptr) = (value as i32, value);
            }
            (_, code) if code <= 0 => {
                (record.pid, record.uid) = (low, high);
                (record.int, record.ptr) = (value as i32, value);
            }
            (raw::SIGCHLD, _) => {
                (record.pid, record.uid) = (low, high);
                record.status = value as i32;
                (record.utime, record.stime) = (info.fields[2], info.fields[3]);
            }
            (raw::SIGIO, _) => (record.band, record.fd) = (low, value as i32),
            (raw::SIGILL | raw::SIGFPE | raw::SIGSEGV | raw::SIGBUS | raw::SIGTRAP, _) => {
                record.addr = info.fields[0];
            }
            _ => (record.pid, record.uid) = (low, high),
        }
        record
    }
}

/// A set of signals as a file.
struct SignalFd {
    wanted: AtomicU64,
    inode: Arc<AnonInode>,
}

impl FileOps for SignalFd {
    fn has_data(&self) -> (bool, bool) {
        (true, false)
    }

    fn describe(&self, out: &mut dyn core::fmt::Write) {
        // Text in memory has no error to give.
        let _ = writeln!(out, "sigmask:\t{:016x}", self.wanted.load(Ordering::Relaxed));
    }

    fn read_at(&self, file: &File, _offset: u64, sink: &mut Sink<'_>) -> Result<usize> {
        if sink.left() < RECORD_BYTES {
            return Err(Errno::EINVAL);
        }
        let thread = current();
        let queue = thread.process.signal_events.clone();
        let take = || thread.take_signal(self.wanted.load(Ordering::SeqCst));
        let first = match take() {
            Some(info) => info,
            None if file.is_nonblocking() || !sink.may_wait() => return Err(Errno::EAGAIN),
            None => queue.wait(take)?,
        };
        let mut done = sink.put(Record::new(&first).as_bytes())?;
        while sink.left() >= RECORD_BYTES
            && let Some(info) = take()
        {
            done += sink.put(Record::new(&info).as_bytes())?;
        }
        Ok(done)
    }

    fn poll(&self, _file: &File, table: &mut PollTable) -> u32 {
        let thread = current();
        table.wait_on(&thread.process.signal_events);
        let pending = thread.pending_signals() & self.wanted.load(Ordering::SeqCst);
        if pending != 0 { events::IN } else { 0 }
    }

    fn inode(&self) -> Arc<dyn Inode> {
        self.inode.clone()
    }
}

/// signalfd(2), the old call without flags.
pub fn sys_signalfd(fd: i32, mask: u64, set_size: u64) -> Result<u64> {
    make(fd, mask, set_size, 0)
}

/// signalfd4(2): a new file, or another set for an old one.
pub fn sys_signalfd4(fd: i32, mask: u64, set_size: u64, flags: u32) -> Result<u64> {
    make(fd, mask, set_size, flags)
}

fn make(fd: i32, address: u64, size: u64, flags: u32) -> Result<u64> {
    if size != size_of::<SignalSet>() as u64 {
        return Err(Errno::EINVAL);
    }
    let wanted = UserPtr::<SignalSet>::new(address).read()? & !NEVER;
    if flags & !(SFD_CLOEXEC | SFD_NONBLOCK) != 0 {
        return Err(Errno::EINVAL);
    }
    if fd != -1 {
        let file = super::file_at(fd as u32 as u64)?;
        let signals = file.ops_as::<SignalFd>().ok_or(Errno::EINVAL)?;
        signals.wanted.store(wanted, Ordering::SeqCst);
        current().process.signal_events.wake_all(0);
        return Ok(fd as u64);
    }
    let inode = AnonInode::new(FileType::Anonymous, 0o600, "[signalfd]");
    let signals = SignalFd { wanted: AtomicU64::new(wanted), inode };
    let open = raw::O_RDWR | flags & SFD_NONBLOCK;
    super::give_ops(Arc::new(signals), open, flags & SFD_CLOEXEC != 0)
}
