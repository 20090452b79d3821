//! pit
