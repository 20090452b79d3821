//! Landlock's domains, as credentials carry them: `lsm::landlock` decides, the system calls are in
//! `calls/landlock`, what is asked about files in `vfs/landlock`, about sockets in `net/hooks`.

use alloc::sync::Arc;
use core::any::Any;

/// Keeps an object that a rule names.
pub type Pin = Arc<dyn Any + Send + Sync>;
/// A set of rules.
pub type Ruleset = lsm::landlock::Ruleset<Pin>;
/// Sets of rules on top of each other.
pub type Domain = lsm::landlock::Domain<Pin>;
