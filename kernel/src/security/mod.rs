//! Who may do what: the subject of a decision, and what decides.
//!
//! `subject`: who acts. `credentials`: its ids and capability sets. `capable`: the one question
//! about a capability. `limits`: what a process may use.

pub mod acting;
pub mod capable;
pub mod credentials;
pub mod hooks;
pub mod landlock;
pub mod limits;
pub mod subject;

pub use capable::{ALL_CAPABILITIES, Capability, CapabilitySet, capable};
pub use credentials::Credentials;
pub use limits::{Limit, Limits, Resource, UNLIMITED};
pub use subject::Subject;
