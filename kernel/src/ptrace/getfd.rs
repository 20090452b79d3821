//! pidfd_getfd(2): a descriptor of another process, for who may trace it.

use core::sync::atomic::Ordering;

use abi::{Errno, Result};

use crate::process::pidfd::{process_of, thread_of};
use crate::process::ptrace::access::{self, Ids};
use crate::process::{current, give_file};

/// pidfd_getfd(2).
pub fn pidfd_getfd(pidfd: u32, fd: u32, flags: u64) -> Result<u64> {
    if flags != 0 {
        return Err(Errno::EINVAL);
    }
    let pidfd = current().files().get(pidfd)?;
    let process = process_of(&pidfd)?;
    let thread = thread_of(&pidfd)?;
    let file = access::inspect(&process, Ids::RealToAttach, Errno::EPERM, || {
        if process.is_zombie.load(Ordering::Acquire) {
            return Err(Errno::ESRCH);
        }
        thread.map_or_else(|| process.files(), |thread| thread.files()).get(fd)
    })?;
    crate::vfs::hooks::file_receive((&file,))?;
    give_file(file, true)
}
