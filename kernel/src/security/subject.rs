//! Who acts: what every decision about rights is given.
//!
//! A subject is taken once, at the edge of a call (`Process::subject`), and passed down to
//! whatever decides; nothing below asks who is running. It is a picture: changes of credentials by
//! other threads meanwhile do not show, so that no decision is made by half of two identities.
//! Paths are walked for a subject with a root and a working directory
//! (`vfs::path::Context`).

use alloc::sync::Arc;
use core::ops::Deref;

use super::Credentials;
use super::capable::{Capability, capable};
use super::landlock::Domain;

/// See the module.
#[derive(Clone, Debug)]
pub struct Subject {
    /// Its process: 0 for the kernel.
    pub pid: u32,
    /// Ids and capability sets.
    pub credentials: Arc<Credentials>,
    /// How far the thread that acts has restricted itself (landlock(7)).
    pub domain: Option<Arc<Domain>>,
}

/// Ids and sets are read as the subject's own.
impl Deref for Subject {
    type Target = Credentials;

    fn deref(&self) -> &Credentials {
        &self.credentials
    }
}

impl Subject {
    /// The kernel itself.
    #[must_use]
    pub fn kernel() -> Subject {
        Subject { pid: 0, credentials: Arc::new(Credentials::root()), domain: None }
    }

    /// [`capable`].
    #[inline]
    #[must_use]
    pub fn capable(&self, capability: Capability) -> bool {
        capable(self, capability)
    }

    /// The same process with other credentials: access(2), and calls that try a change first.
    #[must_use]
    pub fn with(&self, credentials: Credentials) -> Subject {
        Subject { pid: self.pid, credentials: Arc::new(credentials), domain: self.domain.clone() }
    }
}
