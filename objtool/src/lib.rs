//! Placeholder header, replaced with the first content.
