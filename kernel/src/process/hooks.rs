//! What the policies are asked about processes (`security::hooks`), and Landlock's answers.

use lsm::fold::First;

use crate::security::credentials::Credentials;
use crate::security::hooks::define_hooks;

/// The policies that implement hooks of this part.
mod policies {
    /// Whoever is restricted looks into nobody who is restricted less (landlock(7)).
    pub(super) mod landlock {
        use abi::{Errno, Result};

        use super::super::{ptrace_access_check as access_check, ptrace_traceme as traceme};
        use crate::security::credentials::Credentials;

        fn may_look(who: &Credentials, target: &Credentials) -> Result<()> {
            match &who.landlock {
                Some(domain) if !domain.is_ancestor_of(target.landlock.as_ref()) => {
                    Err(Errno::EPERM)
                }
                _ => Ok(()),
            }
        }

        pub(in super::super) fn ptrace_access_check(
            (who, target): access_check::Given<'_>,
        ) -> Result<()> {
            may_look(who, target)
        }

        pub(in super::super) fn ptrace_traceme((target, tracer): traceme::Given<'_>) -> Result<()> {
            may_look(tracer, target)
        }
    }
}

lsm::process_hooks!(define_hooks);
