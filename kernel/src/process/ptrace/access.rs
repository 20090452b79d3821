//! Who may look into a process (ptrace(2), "Ptrace access mode checking").

use core::sync::atomic::Ordering;

use crate::process::Process;
use crate::security::{Capability, Subject};

/// By which of its ids the caller asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ids {
    /// Those for files: procfs, kcmp(2).
    File,
    /// The real ones: ptrace(2), process_vm_readv(2).
    Real,
}

/// Whether `own` may look into `target`.
#[must_use]
pub fn may_access(own: &Subject, target: &Process, ids: Ids) -> bool {
    if target.pid == own.pid {
        return true;
    }
    let other = target.credentials();
    if own.capable(Capability::SysPtrace) {
        return true;
    }
    let (uid, gid, capabilities) = match ids {
        Ids::File => (own.fsuid, own.fsgid, own.effective),
        Ids::Real => (own.uid, own.gid, own.permitted),
    };
    let same_user = [other.uid, other.euid, other.suid].iter().all(|&id| id == uid)
        && [other.gid, other.egid, other.sgid].iter().all(|&id| id == gid);
    let dumpable = !target.settings.not_dumpable.load(Ordering::Relaxed);
    same_user && dumpable && other.permitted & !capabilities == 0
}
