//! Landlock's domains, as threads carry them: `lsm::landlock` decides, the system calls are in
//! `calls/landlock`, what is asked about files in `vfs/landlock`, about sockets in `net/hooks`.

use alloc::sync::Arc;
use core::any::Any;
use core::sync::atomic::{AtomicBool, Ordering};

use machine::sync::SpinLock;

/// Keeps an object that a rule names.
pub type Pin = Arc<dyn Any + Send + Sync>;
/// A set of rules.
pub type Ruleset = lsm::landlock::Ruleset<Pin>;
/// Sets of rules on top of each other.
pub type Domain = lsm::landlock::Domain<Pin>;

/// How far a thread has restricted itself. Threads that have not, which are nearly all, pay a look
/// at one byte.
#[derive(Default)]
pub struct Confinement {
    is_set: AtomicBool,
    domain: SpinLock<Option<Arc<Domain>>>,
}

impl Confinement {
    /// Its domain.
    #[inline]
    pub fn get(&self) -> Option<Arc<Domain>> {
        if self.is_set.load(Ordering::Acquire) { self.domain.lock().clone() } else { None }
    }

    /// Puts a domain in place, for good.
    pub fn set(&self, domain: Arc<Domain>) {
        let old = self.domain.lock().replace(domain);
        self.is_set.store(true, Ordering::Release);
        drop(old);
    }

    /// What a new thread has from the one that makes it.
    pub fn inherit(&self, from: &Confinement) {
        if let Some(domain) = from.get() {
            self.set(domain);
        }
    }
}
