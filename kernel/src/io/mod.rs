//! How open files are read, written, copied and spliced, and what is a file only to be waited for:
//! pipes, event counters, timers and signals as files, and the calls that wait for many files at
//! once. One request is `base::io`.
//!
//! Reading order: `pipe` (the pattern of all: state, two queues, poll), `eventfd`, `timerfd`,
//! `signalfd`, then `select` and `epoll`, which use them all through `FileOps::poll`; `transfer`,
//! `splice`, `copying`; `stdio` is what a program's standard streams are, where they are the
//! host's.

pub mod copying;
pub mod epoll;
pub mod epoll_items;
pub mod eventfd;
pub mod io_signals;
pub mod pipe;
pub mod ring;
pub mod select;
pub mod signalfd;
pub mod signals;
pub mod splice;
pub mod stdio;
pub mod timerfd;
pub mod transfer;

use alloc::sync::Arc;

use abi::{Errno, Result};
use arrayvec::ArrayVec;

use crate::base::time::TimeSpec;
use crate::base::user::UserPtr;
use crate::process::current;
use crate::process::{Own, give_file};
use crate::vfs::{File, FileOps};

/// Enters a file without a name, with open(2)'s `flags`.
pub fn give_ops(ops: Arc<dyn FileOps>, flags: u32, close_on_exec: bool) -> Result<u64> {
    give_file(File::new(ops, flags, None), close_on_exec)
}

/// Enters two files and tells the program their numbers; all or nothing. Returns 0.
pub fn give_pair(
    first: Arc<File>,
    second: Arc<File>,
    close_on_exec: bool,
    tell: impl FnOnce(&[i32; 2]) -> Result<()>,
) -> Result<u64> {
    let process = &current().process;
    let files = process.files();
    let limit = process.fd_limit();
    let a = files.insert(first, close_on_exec, 0, limit)?;
    let result = files.insert(second, close_on_exec, 0, limit).and_then(|b| {
        let told = tell(&[a as i32, b as i32]);
        if told.is_err() {
            drop(files.remove(b));
        }
        told
    });
    if result.is_err() {
        drop(files.remove(a));
    }
    result.map(|()| 0)
}

/// The file behind a descriptor argument of the current process; EBADF if it only names a place.
#[inline]
pub fn file_at(fd: u64) -> Result<Arc<File>> {
    let file = crate::process::own_file(fd as u32)?;
    if file.flags() & abi::general::O_PATH != 0 { Err(Errno::EBADF) } else { Ok(file) }
}

/// As [`file_at`], for two descriptors at once.
#[inline]
pub fn files_at(fds: [u64; 2]) -> Result<[Arc<File>; 2]> {
    let mut found: ArrayVec<_, 2> = ArrayVec::new();
    Own::with_files(current(), |files| {
        files.get_each(fds.into_iter().map(|fd| fd as u32), &mut found);
        Ok(())
    })?;
    match found.into_inner() {
        Ok([Some(one), Some(other)])
            if (one.flags() | other.flags()) & abi::general::O_PATH == 0 =>
        {
            Ok([one, other])
        }
        _ => Err(Errno::EBADF),
    }
}

/// Reads an optional relative timeout: nanoseconds, or None for the null pointer (for ever).
pub fn read_timeout(address: u64) -> Result<Option<u64>> {
    match UserPtr::<TimeSpec>::new(address).non_null() {
        None => Ok(None),
        Some(timespec) => timespec.read()?.to_ns().map(Some),
    }
}
