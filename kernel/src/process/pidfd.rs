//! Descriptors that stand for processes, or for single threads (PIDFD_THREAD): pidfd_open(2).

use alloc::sync::{Arc, Weak};
use core::sync::atomic::Ordering;

use abi::{Errno, Result, general as raw};

use super::{Pid, Process, Thread, find_process, find_thread, give_file};
use crate::base::poll::{PollTable, events};
use crate::fs::pseudo::PseudoInode;
use crate::process::current;
use crate::vfs::anon::{AnonInode, PidObject};
use crate::vfs::deny_write::{Access, WriteAccess};
use crate::vfs::{File, FileOps, Inode, leases};

/// The open file behind a pidfd.
pub struct PidFile {
    process: Arc<Process>,
    /// The thread, if it stands for one only: its id, and itself as long as it lives.
    thread: Option<(Pid, Weak<Thread>)>,
    inode: Arc<AnonInode>,
}

/// Flag of pidfd_open(2): a single thread.
const PIDFD_THREAD: u32 = raw::O_EXCL;

impl PidFile {
    /// The thread that it stands for. ESRCH once it has ended.
    fn living_thread(&self) -> Option<Result<Arc<Thread>>> {
        let (tid, thread) = self.thread.as_ref()?;
        let found = find_thread(*tid).filter(|found| Arc::as_ptr(found) == thread.as_ptr());
        Some(found.ok_or(Errno::ESRCH))
    }

    /// It has been waited for, or was a thread that nobody waits for.
    fn is_reaped(&self) -> bool {
        let is_leader = self.thread.as_ref().is_none_or(|(tid, _)| *tid == self.process.pid);
        !is_leader || find_process(self.process.pid).is_none()
    }
}

impl FileOps for PidFile {
    fn has_data(&self) -> (bool, bool) {
        (false, false)
    }

    fn describe(&self, out: &mut dyn core::fmt::Write) {
        let tid = self.thread.as_ref().map_or(self.process.pid, |(tid, _)| *tid);
        let is_known = match self.living_thread() {
            Some(thread) => thread.is_ok() || !self.is_reaped(),
            None => find_process(self.process.pid).is_some(),
        };
        let pid = if is_known { i64::from(tid) } else { -1 };
        // Text in memory has no error to give.
        let _ = writeln!(out, "Pid:\t{pid}\nNSpid:\t{pid}");
    }

    /// Readable once the process, or the thread, has ended; hung up once it was waited for.
    fn poll(&self, _file: &File, table: &mut PollTable) -> u32 {
        table.wait_on(&self.process.exit_events);
        let has_ended = match self.living_thread() {
            Some(thread) => thread.is_err(),
            None => self.process.is_zombie.load(Ordering::Acquire),
        };
        match has_ended {
            true if self.is_reaped() => events::READABLE | events::HUP,
            true => events::READABLE,
            false => 0,
        }
    }

    fn inode(&self) -> Arc<dyn Inode> {
        self.inode.clone()
    }
}

/// Whether it stands for a single thread (PIDFD_THREAD).
pub fn stands_for_thread(file: &File) -> bool {
    file.ops_as::<PidFile>().is_some_and(|pidfd| pidfd.thread.is_some())
}

/// The process a pidfd stands for; EBADF if the file is something else.
pub fn process_of(file: &File) -> Result<Arc<Process>> {
    file.ops_as::<PidFile>().map(|pidfd| pidfd.process.clone()).ok_or(Errno::EBADF)
}

/// The id that waitid(2) waits for; EBADF.
pub fn id_of(file: &File) -> Result<Pid> {
    let pidfd = file.ops_as::<PidFile>().ok_or(Errno::EBADF)?;
    Ok(pidfd.thread.as_ref().map_or(pidfd.process.pid, |(tid, _)| *tid))
}

/// The thread, if the descriptor stands for one only. ESRCH if it has ended.
pub fn thread_of(file: &File) -> Result<Option<Arc<Thread>>> {
    file.ops_as::<PidFile>().and_then(PidFile::living_thread).transpose()
}

/// Whom a signal through the descriptor reaches, and the id by which it is named, which may be a
/// thread's: EBADF, ESRCH if the process is gone, or the thread of a folder.
pub fn target(file: &File) -> Result<(Arc<Process>, Pid)> {
    let (process, id) = match process_of(file) {
        Ok(process) => (process, id_of(file)?),
        Err(_) => of_folder(file)?,
    };
    let is_gone = process.is_zombie.load(Ordering::Acquire) && find_process(process.pid).is_none();
    if is_gone { Err(Errno::ESRCH) } else { Ok((process, id)) }
}

/// The process of an open /proc/PID, which pidfd_send_signal(2) takes as well, and the id in the
/// folder's name; EBADF for others, ESRCH where the thread with that id has ended.
fn of_folder(file: &File) -> Result<(Arc<Process>, Pid)> {
    let inode = file.inode();
    let folder = inode.downcast_ref::<PseudoInode>();
    let (process, id) = folder.and_then(PseudoInode::stands_for).ok_or(Errno::EBADF)?;
    let is_of_it = |thread: Arc<Thread>| Arc::ptr_eq(&thread.process, &process);
    let is_there = id == process.pid || find_thread(id).is_some_and(is_of_it);
    if is_there { Ok((process, id)) } else { Err(Errno::ESRCH) }
}

/// Gives the current process a descriptor for `process`. `flags`: O_NONBLOCK or 0.
pub fn open_fd(process: &Arc<Process>, flags: u32) -> Result<u32> {
    give(process.clone(), None, &process.pid_object, flags)
}

/// The same for a thread.
pub fn open_thread_fd(thread: &Arc<Thread>, flags: u32) -> Result<u32> {
    let one = Some((thread.tid(), Arc::downgrade(thread)));
    let is_first = thread.tid() == thread.process.pid;
    let object = if is_first { &thread.process.pid_object } else { &thread.pid_object };
    let fd = give(thread.process.clone(), one, object, flags)?;
    // Opening takes the flag for another one, which files do not keep.
    current().files().get(fd)?.keep_flag(PIDFD_THREAD);
    Ok(fd)
}

/// All pidfds of a process, or of a thread, are one object, which each of them writes to.
fn give(
    process: Arc<Process>,
    thread: Option<(Pid, Weak<Thread>)>,
    object: &PidObject,
    flags: u32,
) -> Result<u32> {
    let (inode, flags) = (object.get(), flags | raw::O_RDWR);
    let access = WriteAccess::unnamed(inode.clone())?;
    leases::break_for(&*inode, flags)?;
    let ops = Arc::new(PidFile { process, thread, inode });
    let file = File::counted(ops, flags, Access::Write(access));
    give_file(file, true).map(|fd| fd as u32)
}

/// pidfd_open(2).
pub fn pidfd_open(pid_word: i32, flags: u32) -> Result<u64> {
    let pid = pid_word;
    if flags & !(raw::O_NONBLOCK | PIDFD_THREAD) != 0 || pid <= 0 {
        return Err(Errno::EINVAL);
    }
    let pid = pid as u32;
    if flags & PIDFD_THREAD != 0 {
        let thread = find_thread(pid).ok_or(Errno::ESRCH)?;
        return open_thread_fd(&thread, flags & raw::O_NONBLOCK).map(u64::from);
    }
    let Some(process) = find_process(pid) else {
        // A thread that is not the first of its process cannot be named this way.
        return Err(if find_thread(pid).is_some() { Errno::EINVAL } else { Errno::ESRCH });
    };
    open_fd(&process, flags).map(u64::from)
}
