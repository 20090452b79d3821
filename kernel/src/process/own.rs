//! What each thread has for itself, or shares with threads that it named when it was made: open
//! files (CLONE_FILES), directories (CLONE_FS), and credentials, which are never shared: setuid(2)
//! changes the calling thread's, and it is C libraries that make every thread call it.
//!
//! A thread changes its own alone, and so reads them without a lock; others look at them under one.
//! Of a process as others see it (kill(2), /proc) the first thread's count; its credentials
//! outlive it, until it is waited for.

use alloc::sync::Arc;

use abi::{Errno, Result, general as raw};
use machine::task::{Current, OwnedCell};

use super::{Pid, Process, Thread, current, find_process, find_thread};
use crate::security::{Credentials, Subject};
use crate::vfs::file::Fd;
use crate::vfs::path::FsContext;
use crate::vfs::{FdTable, File};

/// See the module. Files and directories are None once the thread ends, and of kernel threads
/// directories.
pub struct Own {
    files: OwnedCell<Option<Arc<FdTable>>>,
    fs: OwnedCell<Option<Arc<FsContext>>>,
    credentials: OwnedCell<Arc<Credentials>>,
}

impl Own {
    /// Of a thread to be made.
    #[must_use]
    pub fn new(
        files: Arc<FdTable>,
        fs: Option<Arc<FsContext>>,
        credentials: Arc<Credentials>,
    ) -> Own {
        Own {
            files: OwnedCell::new(Some(files)),
            fs: OwnedCell::new(fs),
            credentials: OwnedCell::new(credentials),
        }
    }

    /// Of a kernel thread: no files, no directories, every right.
    #[must_use]
    pub fn of_kernel() -> Own {
        Own::new(Arc::new(FdTable::new()), None, Arc::new(Credentials::root()))
    }

    /// Calls `f` with the ids of the thread that runs.
    #[inline]
    pub fn with_credentials<R>(thread: Current<Thread>, f: impl FnOnce(&Credentials) -> R) -> R {
        thread.own.credentials.read(thread, |own| f(own))
    }

    /// Calls `f` with the directories of the thread that runs. Every thread of a program has them.
    #[inline]
    pub fn with_fs<R>(thread: Current<Thread>, f: impl FnOnce(&FsContext) -> R) -> R {
        thread.own.fs.read(thread, |own| f(own.as_ref().expect(NO_DIRECTORIES)))
    }

    /// Calls `f` with the descriptors of the thread that runs. EBADF once it ends.
    #[inline]
    pub fn with_files<R>(
        thread: Current<Thread>,
        f: impl FnOnce(&FdTable) -> Result<R>,
    ) -> Result<R> {
        thread.own.files.read(thread, |own| match own {
            Some(files) => f(files),
            None => no_files(),
        })
    }
}

/// Out of the way of calls by threads that have descriptors.
#[cold]
#[inline(never)]
fn no_files<R>() -> Result<R> {
    Err(Errno::EBADF)
}

const NO_DIRECTORIES: &str = "only kernel threads have no directories";

impl Thread {
    /// Its descriptors; none once it ends.
    #[inline]
    pub fn files(&self) -> Arc<FdTable> {
        let own = self.own.files.read(current(), Option::clone);
        own.unwrap_or_else(|| Arc::new(FdTable::new()))
    }

    /// Its directories and umask; None once it ends.
    #[inline]
    pub fn try_fs(&self) -> Option<Arc<FsContext>> {
        self.own.fs.read(current(), Option::clone)
    }

    /// The same of a thread of a program that runs.
    #[inline]
    pub fn fs(&self) -> Arc<FsContext> {
        self.try_fs().expect(NO_DIRECTORIES)
    }

    /// Its credentials.
    #[inline]
    pub fn credentials(&self) -> Arc<Credentials> {
        self.own.credentials.read(current(), Arc::clone)
    }

    /// The thread as the subject of decisions, with what it may do now.
    #[inline]
    #[must_use]
    pub fn subject(&self) -> Subject {
        let (credentials, domain) = (self.credentials(), self.confinement.get());
        Subject { pid: self.process.pid, credentials, domain }
    }
}

/// The credentials of the thread with this id, or of the process whose first thread has ended.
#[must_use]
pub fn credentials_of(tid: Pid) -> Option<Arc<Credentials>> {
    match find_thread(tid) {
        Some(thread) => Some(thread.credentials()),
        None => find_process(tid).map(|process| process.credentials()),
    }
}

/// Gives the running thread other descriptors. The old ones are returned, to be dropped by the
/// caller.
pub fn replace_files(thread: Current<Thread>, files: Arc<FdTable>) -> Option<Arc<FdTable>> {
    thread.own.files.replace(thread, Some(files))
}

/// Gives the running thread descriptors of its own, if it shares them (CLONE_FILES). Those that
/// nobody else has stay what they are: locks of fcntl(2) belong to them.
pub fn unshare_files(thread: Current<Thread>) -> Result<()> {
    /// Who holds a table that is not shared: the thread, and the look at it here.
    const ALONE: usize = 2;
    let files = thread.files();
    if Arc::strong_count(&files) > ALONE {
        drop(replace_files(thread, Arc::new(files.duplicate()?)));
    }
    Ok(())
}

/// Gives the running thread other directories.
pub fn replace_fs(thread: Current<Thread>, fs: Arc<FsContext>) {
    drop(thread.own.fs.replace(thread, Some(fs)));
}

/// Gives the running thread other credentials.
pub fn set_credentials(thread: Current<Thread>, credentials: Credentials) {
    let new = Arc::new(credentials);
    if thread.tid() == thread.process.pid {
        let old = core::mem::replace(&mut *thread.process.credentials.lock(), new.clone());
        drop(old);
    }
    let uid = new.uid;
    let old = thread.own.credentials.replace(thread, new);
    if old.uid != uid {
        super::charge_thread(thread.tid(), uid);
    }
}

/// The running thread ends: its files are closed if nobody else has them, and it is nowhere.
pub fn leave(thread: Current<Thread>) {
    drop(thread.own.files.replace(thread, None));
    drop(thread.own.fs.replace(thread, None));
}

/// The open file behind a descriptor of the running thread; EBADF.
#[inline]
pub fn own_file(fd: Fd) -> Result<Arc<File>> {
    file_of(current(), fd)
}

/// The same of a descriptor that does not only name a place (O_PATH); EBADF.
#[inline]
pub fn own_open_file(fd: Fd) -> Result<Arc<File>> {
    let file = own_file(fd)?;
    if file.flags() & raw::O_PATH != 0 { Err(Errno::EBADF) } else { Ok(file) }
}

/// As [`own_file`] for those who know the thread that runs, and need not ask again.
#[inline]
pub fn file_of(thread: Current<Thread>, fd: Fd) -> Result<Arc<File>> {
    Own::with_files(thread, |files| files.get(fd))
}

/// Asked of the process that runs, it is the running thread's; of another, its first thread's.
impl Process {
    fn with_thread<R>(&self, f: impl FnOnce(&Thread) -> R) -> Option<R> {
        if self.is_current() {
            return Some(f(&current()));
        }
        let first = self.threads.lock().first().cloned();
        first.map(|thread| f(&thread))
    }

    /// Descriptors; none once it has exited.
    pub fn files(&self) -> Arc<FdTable> {
        self.with_thread(Thread::files).unwrap_or_else(|| Arc::new(FdTable::new()))
    }

    /// Credentials.
    pub fn credentials(&self) -> Arc<Credentials> {
        if self.is_current() { current().credentials() } else { self.credentials.lock().clone() }
    }

    /// The process as the subject of decisions, with what it may do now.
    #[must_use]
    pub fn subject(&self) -> Subject {
        if self.is_current() {
            return current().subject();
        }
        Subject { pid: self.pid, credentials: self.credentials(), domain: None }
    }
}
