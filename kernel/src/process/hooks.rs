//! What the policies are asked about processes (`security::hooks`), and Landlock's answers.

use alloc::sync::Arc;
use core::cell::RefCell;

use lsm::fold::{All, Collect, First, Offer, Select};

use super::ptrace::access::Ids;
use super::{Process, Thread};
use crate::security::hooks::define_hooks;
use crate::security::landlock::Fence;
use crate::security::{Credentials, Resource, Subject};
use crate::vfs::File;

/// What execve(2) makes of who calls it.
pub struct NextProgram {
    /// Who runs the program.
    pub credentials: Credentials,
    /// Whether it must not trust its environment (AT_SECURE).
    pub secure: bool,
    /// Whether rights that the file gives count: not on a nosuid mount, and not after
    /// PR_SET_NO_NEW_PRIVS.
    pub may_gain: bool,
}

/// The policies that implement hooks of this part.
mod policies {
    pub(super) use super::super::{capability, yama};

    /// Whoever is restricted looks into nobody who is restricted less (landlock(7)).
    pub(super) mod landlock {
        use abi::{Errno, Result};
        use alloc::sync::Arc;

        use super::super::{Process, Thread};
        use super::super::{file_send_sigiotask as sigiotask, task_kill as kill};
        use super::super::{ptrace_access_check as access_check, ptrace_traceme as traceme};
        use crate::security::landlock::{Domain, Fence, signal_fence};

        fn may_look(who: Option<&Arc<Domain>>, target: Option<&Arc<Domain>>) -> Result<()> {
            match who {
                Some(domain) if !domain.is_ancestor_of(target.map(|target| &**target)) => {
                    Err(Errno::EPERM)
                }
                _ => Ok(()),
            }
        }

        pub(in super::super) fn ptrace_access_check(
            (who, target, _): access_check::Given<'_>,
        ) -> Result<()> {
            if who.domain.is_none() {
                return Ok(());
            }
            let first = target.threads.lock().first().cloned();
            let domain = first.and_then(|thread| thread.confinement.get());
            may_look(who.domain.as_ref(), domain.as_ref())
        }

        pub(in super::super) fn ptrace_traceme((target, tracer): traceme::Given<'_>) -> Result<()> {
            let (tracer, target) = (tracer.confinement.get(), target.confinement.get());
            may_look(tracer.as_ref(), target.as_ref())
        }

        /// EPERM for whoever is to be signalled and is not within the fence: this thread, or the
        /// first of the process.
        fn may_signal(fence: &Fence, target: &Process, thread: Option<&Thread>) -> Result<()> {
            if fence.is_open() {
                return Ok(());
            }
            let is_inside = match thread {
                Some(thread) => thread.confinement.is_within(fence),
                None => match target.threads.lock().first() {
                    Some(first) => first.confinement.is_within(fence),
                    None => false,
                },
            };
            if is_inside { Ok(()) } else { Err(Errno::EPERM) }
        }

        pub(in super::super) fn task_kill((who, target, thread, _): kill::Given<'_>) -> Result<()> {
            if who.process.pid == target.pid {
                return Ok(());
            }
            may_signal(&signal_fence(who.confinement.get().as_deref()), target, thread)
        }

        pub(in super::super) fn file_send_sigiotask(
            (fence, target, _): sigiotask::Given<'_>,
        ) -> Result<()> {
            may_signal(fence, target, None)
        }
    }
}

lsm::process_hooks!(define_hooks);
