//! lapic
