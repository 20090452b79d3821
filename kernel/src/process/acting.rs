//! The running process, as paths begin with it: its root, its directory and its descriptors.

use crate::vfs::path::{Context, register_files};

use super::{Thread, current, own_file};

/// Tells the walk of paths about descriptors. Once, before there are programs.
pub fn init() {
    register_files(own_file);
}

impl Context {
    /// The current process's.
    #[inline]
    pub fn current() -> Context {
        Context::of(&current())
    }

    /// A thread's.
    #[inline]
    pub fn of(thread: &Thread) -> Context {
        Context { fs: thread.fs(), subject: thread.subject() }
    }
}
