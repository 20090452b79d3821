//! Who may do what: the subject of a decision, and what decides.

pub mod credentials;
