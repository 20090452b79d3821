//! Who acts, where nobody says so.
//!
//! A call passes its subject down. Where something is made or changed on behalf of whoever runs,
//! far below the call (an inode's owner, a file's opener, the limit of a stack that grows), it is
//! asked for here. Processes say so in `boot`: this floor does not know them.

use machine::sync::Once;

use super::{Resource, Subject};

/// The running process's.
pub struct Acting {
    /// Itself; None while the kernel starts.
    pub subject: fn() -> Option<Subject>,
    /// Its soft limit.
    pub limit: fn(Resource) -> u64,
}

machine::ro_after_init! {
    static ACTING: Once<Acting> = Once::new();
}

/// Registers the running process, once.
pub fn register(acting: Acting) {
    ACTING.call_once(|| acting);
}

/// Who acts: the kernel, before there are processes.
#[must_use]
pub fn subject() -> Subject {
    ACTING.get().and_then(|acting| (acting.subject)()).unwrap_or_else(Subject::kernel)
}

/// The soft limit of whoever acts; the kernel has none.
#[must_use]
pub fn limit(resource: Resource) -> u64 {
    ACTING.get().map_or(u64::MAX, |acting| (acting.limit)(resource))
}
