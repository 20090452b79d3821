//! Who may do what: the subject of a decision, and what decides.
//!
//! `subject`: who acts. `credentials`: its ids and capability sets. `capable`: the one question
//! about a capability. `limits`: what a process may use. `hooks`: how policies are asked, and
//! `subject_hooks` what they are asked about who acts.

pub mod capability;
pub mod capable;
pub mod credentials;
pub mod hooks;
pub mod landlock;
pub mod limits;
pub mod login;
#[cfg(feature = "hooks-probe")]
pub mod probe;
pub mod profile;
pub mod subject;
pub mod subject_hooks;

pub use capable::{ALL_CAPABILITIES, Capability, CapabilitySet, capable, check_io_priority};
pub use credentials::Credentials;
pub use limits::{Limit, Limits, Resource, UNLIMITED};
pub use login::Login;
pub use subject::Subject;
