//! Descriptors that stand for processes: pidfd_open(2), pidfd_getfd(2).

use alloc::sync::Arc;
use core::any::Any;
use core::sync::atomic::Ordering;

use abi::{Errno, Result, general as raw};

use super::ptrace::access::{self, Ids};
use super::{Process, find_process, find_thread, give_file};
use crate::base::poll::{PollTable, events};
use crate::fs::pseudo::PseudoInode;
use crate::process::current;
use crate::vfs::anon::AnonInode;
use crate::vfs::{File, FileOps, FileType, Inode};

/// What a pidfd is called.
const PIDFD: &str = "[pidfd]";

/// The open file behind a pidfd.
pub struct PidFile {
    process: Arc<Process>,
    inode: Arc<AnonInode>,
}

impl FileOps for PidFile {
    fn has_data(&self) -> (bool, bool) {
        (false, false)
    }

    fn describe(&self, out: &mut dyn core::fmt::Write) {
        let is_known = find_process(self.process.pid).is_some();
        let pid = if is_known { i64::from(self.process.pid) } else { -1 };
        // Text in memory has no error to give.
        let _ = writeln!(out, "Pid:\t{pid}\nNSpid:\t{pid}");
    }

    /// Readable once the process has ended.
    fn poll(&self, _file: &File, table: &mut PollTable) -> u32 {
        table.wait_on(&self.process.exit_events);
        if self.process.is_zombie.load(Ordering::Acquire) { events::READABLE } else { 0 }
    }

    fn inode(&self) -> Arc<dyn Inode> {
        self.inode.clone()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// The process a pidfd stands for; EBADF if the file is something else.
pub fn process_of(file: &File) -> Result<Arc<Process>> {
    file.ops_as::<PidFile>().map(|pidfd| pidfd.process.clone()).ok_or(Errno::EBADF)
}

/// Whom a signal through the descriptor reaches: EBADF, ESRCH if the process is gone.
pub fn target(file: &File) -> Result<Arc<Process>> {
    let process = process_of(file).or_else(|_| process_of_folder(file))?;
    let is_gone = process.is_zombie.load(Ordering::Acquire) && find_process(process.pid).is_none();
    if is_gone { Err(Errno::ESRCH) } else { Ok(process) }
}

/// The process of an open /proc/PID, which pidfd_send_signal(2) takes as well; EBADF for others.
fn process_of_folder(file: &File) -> Result<Arc<Process>> {
    let inode = file.inode();
    let folder = inode.as_any().downcast_ref::<PseudoInode>();
    folder.and_then(PseudoInode::process).cloned().ok_or(Errno::EBADF)
}

/// Gives the current process a descriptor for `process`. `flags`: O_NONBLOCK or 0.
pub fn open_fd(process: &Arc<Process>, flags: u32) -> Result<u32> {
    let inode = AnonInode::new(FileType::Anonymous, 0o700, PIDFD);
    let ops = Arc::new(PidFile { process: process.clone(), inode });
    let file = File::new(ops, flags | raw::O_RDWR, None);
    give_file(file, true).map(|fd| fd as u32)
}

/// pidfd_open(2).
pub fn pidfd_open(pid_word: i32, flags: u32) -> Result<u64> {
    let pid = pid_word;
    if flags & !raw::O_NONBLOCK != 0 || pid <= 0 {
        return Err(Errno::EINVAL);
    }
    let pid = pid as u32;
    let Some(process) = find_process(pid) else {
        // A thread that is not the first of its process cannot be named this way.
        return Err(if find_thread(pid).is_some() { Errno::EINVAL } else { Errno::ESRCH });
    };
    open_fd(&process, flags).map(u64::from)
}

/// pidfd_getfd(2).
pub fn pidfd_getfd(pidfd: u32, fd: u32, flags: u64) -> Result<u64> {
    if flags != 0 {
        return Err(Errno::EINVAL);
    }
    let own = &current().process;
    let pidfd = own.files().get(pidfd)?;
    let process = process_of(&pidfd)?;
    let file = access::inspect(&process, Ids::RealToAttach, Errno::EPERM, || {
        if process.is_zombie.load(Ordering::Acquire) {
            return Err(Errno::ESRCH);
        }
        process.files().get(fd)
    })?;
    crate::vfs::hooks::file_receive((&file,))?;
    give_file(file, true)
}
