//! Landlock's domains, as threads carry them: `lsm::landlock` decides, the system calls are in
//! `calls/landlock`, what is asked about files in `vfs/landlock`, about sockets in `net/hooks`.

use alloc::sync::Arc;
use core::any::Any;
use core::sync::atomic::{AtomicBool, Ordering};

pub use lsm::landlock::Fence;
use lsm::landlock::scope;
use machine::sync::SpinLock;

/// Keeps an object that a rule names.
pub type Pin = Arc<dyn Any + Send + Sync>;
/// A set of rules.
pub type Ruleset = lsm::landlock::Ruleset<Pin>;
/// Sets of rules on top of each other.
pub type Domain = lsm::landlock::Domain<Pin>;

/// How far signals reach of who is in this domain, or in none.
#[must_use]
pub fn signal_fence(domain: Option<&Domain>) -> Fence {
    domain.map_or_else(Fence::open, |domain| domain.fence(scope::SIGNAL))
}

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

    /// Calls `f` with its domain, under the lock.
    pub fn with<T>(&self, f: impl FnOnce(Option<&Domain>) -> T) -> T {
        if self.is_set.load(Ordering::Acquire) { f(self.domain.lock().as_deref()) } else { f(None) }
    }

    /// Whether its domain is within a fence. Callable from interrupts.
    pub fn is_within(&self, fence: &Fence) -> bool {
        fence.is_open() || self.with(|domain| fence.holds(domain))
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
