//! The policy `yama`: a process is traced by those above it in the tree, and by whom it names
//! itself (PR_SET_PTRACER), unless /proc/sys/kernel/yama/ptrace_scope says otherwise. Without it
//! any program of a user could read the secrets of all others of the same user.
//!
//! Neighbour: `lsm::yama`, which has the rules.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU32, Ordering};

use abi::{Errno, Result};
use lsm::yama::{DEFAULT, Scope};

use super::settings::NamedTracer;
use super::{Process, THREADS_MAX, find_by_tid, hooks};
use crate::process::current;
use crate::security::Capability;

/// PR_SET_PTRACER (prctl(2)).
const PR_SET_PTRACER: u32 = 0x5961_6d61;

static SCOPE: AtomicU32 = AtomicU32::new(DEFAULT as u32);

/// What holds now.
#[must_use]
pub fn scope() -> Scope {
    Scope::from_number(SCOPE.load(Ordering::Relaxed)).unwrap_or(DEFAULT)
}

/// Writes ptrace_scope: EPERM without CAP_SYS_PTRACE, EINVAL for a number that is none, or down
/// from the last one.
pub fn set_scope(number: u32) -> Result<()> {
    if !current().subject().capable(Capability::SysPtrace) {
        return Err(Errno::EPERM);
    }
    let new = Scope::from_number(number).ok_or(Errno::EINVAL)?;
    let change = |old| {
        let old = Scope::from_number(old).unwrap_or(DEFAULT);
        old.may_become(new).then_some(number)
    };
    let result = SCOPE.fetch_update(Ordering::Relaxed, Ordering::Relaxed, change);
    result.map(|_| ()).map_err(|_| Errno::EINVAL)
}

/// Whether a process is `ancestor`, or below it.
fn is_below(process: &Process, ancestor: &Process) -> bool {
    if process.pid == ancestor.pid {
        return true;
    }
    let mut above = process.parent();
    // Parents change while this walks, but never into a circle.
    for _ in 0..THREADS_MAX {
        let Some(parent) = above else { return false };
        if parent.pid == ancestor.pid {
            return true;
        }
        above = parent.parent();
    }
    false
}

/// Whether `target` is below the tracer, has named it or one above it, or is traced by it already.
fn is_related(tracer: &Process, target: &Process) -> bool {
    let named = target.settings.named_tracer.lock().clone();
    let is_named = match named {
        NamedTracer::Nobody => false,
        NamedTracer::Anybody => true,
        NamedTracer::Process(process) => {
            process.upgrade().is_some_and(|named| is_below(tracer, &named))
        }
    };
    let traces = || target.threads.lock().iter().any(|thread| thread.trace.is_traced_by(tracer));
    is_named || is_below(target, tracer) || traces()
}

pub(super) fn ptrace_access_check(
    (who, target, ids): hooks::ptrace_access_check::Given<'_>,
) -> Result<()> {
    if !ids.attaches() {
        return Ok(());
    }
    let related = || find_by_tid(who.pid).is_some_and(|tracer| is_related(&tracer, target));
    if scope().may_attach(related, || who.capable(Capability::SysPtrace)) {
        Ok(())
    } else {
        Err(Errno::EPERM)
    }
}

pub(super) fn ptrace_traceme((_, tracer): hooks::ptrace_traceme::Given<'_>) -> Result<()> {
    let capable = || tracer.process.credentials().has(Capability::SysPtrace);
    if scope().may_trace_child(capable) { Ok(()) } else { Err(Errno::EPERM) }
}

pub(super) fn task_prctl((thread, option, args): hooks::task_prctl::Given<'_>) -> Result<u32> {
    if option != PR_SET_PTRACER {
        return Err(Errno::ENOSYS);
    }
    let named = match args[0] as i32 {
        0 => NamedTracer::Nobody,
        -1 => NamedTracer::Anybody,
        id => {
            let id = u32::try_from(id).map_err(|_| Errno::EINVAL)?;
            NamedTracer::Process(Arc::downgrade(&find_by_tid(id).ok_or(Errno::EINVAL)?))
        }
    };
    let old = core::mem::replace(&mut *thread.process.settings.named_tracer.lock(), named);
    drop(old);
    Ok(0)
}
