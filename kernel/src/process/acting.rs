//! The running process, as floors below ask for it: `security::acting`, and where paths start.

use crate::security::acting::{Acting, register};
use crate::vfs::path::{Context, register_files};

use super::{current, has_current, own_file};

/// Registers the running process with the floors below. Once, before there are programs.
pub fn init() {
    let subject = || has_current().then(|| current().subject());
    let limit = |resource| current().process.limit(resource);
    register(Acting { subject, limit });
    register_files(own_file);
}

impl Context {
    /// The current process's.
    #[inline]
    pub fn current() -> Context {
        let thread = current();
        Context { fs: thread.fs(), subject: thread.subject() }
    }
}
