//! Who may look into a process (ptrace(2), "Ptrace access mode checking").
//!
//! Credentials and what they guard change together, at execve(2). So what is let in by the
//! credentials is taken under the lock of the image: else the new program's memory, which may be
//! that of a set-user-ID program, could be had by the old one's credentials.

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use abi::{Errno, Result};

use crate::mm::Mm;
use crate::process::current;
use crate::process::{Process, hooks};
use crate::security::{Capability, Subject};

/// By which of its ids the caller asks, and for what: to read, or to take over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ids {
    /// Those for files: procfs.
    File,
    /// The same, for /proc/PID/mem and its like, by which the process can be taken over.
    FileToAttach,
    /// The real ones: kcmp(2).
    Real,
    /// The same, for ptrace(2), process_vm_readv(2), pidfd_getfd(2).
    RealToAttach,
}

impl Ids {
    /// Whether the process could be taken over.
    #[must_use]
    pub fn attaches(self) -> bool {
        matches!(self, Ids::FileToAttach | Ids::RealToAttach)
    }
}

/// Runs `f` if the current process may look into `target`, on the same image of it; else `denied`.
pub fn inspect<T>(
    target: &Process,
    ids: Ids,
    denied: Errno,
    f: impl FnOnce() -> Result<T>,
) -> Result<T> {
    let _image = target.image.lock();
    if may_access(target, ids) { f() } else { Err(denied) }
}

/// The address space of `target`, if the current process may look into it; else `denied`. None once
/// the process has ended.
pub fn memory(target: &Process, ids: Ids, denied: Errno) -> Result<Option<Arc<Mm>>> {
    inspect(target, ids, denied, || Ok(target.mm().ok()))
}

/// Whether the current process may look into `target`.
#[must_use]
pub fn may_access(target: &Process, ids: Ids) -> bool {
    may_look(&current().subject(), target, ids)
}

/// Whether `own` may look into `target`.
#[must_use]
pub fn may_look(own: &Subject, target: &Process, ids: Ids) -> bool {
    if target.pid == own.pid {
        return true;
    }
    let other = target.credentials();
    let (uid, gid) = match ids {
        Ids::File | Ids::FileToAttach => (own.fsuid, own.fsgid),
        Ids::Real | Ids::RealToAttach => (own.uid, own.gid),
    };
    let same_user = [other.uid, other.euid, other.suid].iter().all(|&id| id == uid)
        && [other.gid, other.egid, other.sgid].iter().all(|&id| id == gid);
    let dumpable = !target.settings.not_dumpable.load(Ordering::Relaxed);
    (same_user && dumpable || own.capable(Capability::SysPtrace))
        && hooks::ptrace_access_check((own, target, ids)).is_ok()
}
