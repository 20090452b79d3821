//! Who may look into a process (ptrace(2), "Ptrace access mode checking").

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use abi::general as raw;

use crate::base::sched::current;
use crate::process::{Process, hooks};
use crate::security::credentials::Credentials;

/// By which of its ids the caller asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ids {
    /// Those for files: procfs, kcmp(2).
    File,
    /// The real ones: ptrace(2), process_vm_readv(2).
    Real,
}

/// Whether the current process may look into `target`.
#[must_use]
pub fn may_access(target: &Process, ids: Ids) -> bool {
    if target.is_current() {
        return true;
    }
    let own: Arc<Credentials> = current().process.credentials();
    let other = target.credentials();
    if hooks::ptrace_access_check((&own, &other)).is_err() {
        return false;
    }
    if own.has(raw::CAP_SYS_PTRACE) {
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
