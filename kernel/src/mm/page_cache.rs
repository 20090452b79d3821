//! The contents of files in memory.

/// Pages of one file.
pub struct PageCache {}
