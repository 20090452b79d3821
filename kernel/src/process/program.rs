//! What is known of the program that a process runs: `crate::exec` starts programs.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, AtomicU64};

use crate::vfs::File;
use crate::vfs::deny_write::WriteDenial;

/// What /proc tells about the running program.
#[derive(Clone, Default)]
pub struct Program {
    /// The executable; for /proc/PID/exe.
    pub file: Option<Arc<File>>,
    /// Nobody may write to it; shared with the children that run the same program.
    pub denial: Option<Arc<WriteDenial>>,
    /// Path it was started by.
    pub path: Vec<u8>,
    /// Addresses of the argument strings on the stack: start, end.
    pub arguments: (u64, u64),
    /// Addresses of the environment strings on the stack: start, end.
    pub environment: (u64, u64),
    /// The auxiliary vector, for /proc/PID/auxv.
    pub auxv: Vec<u64>,
}

/// Where a thread of the program is told its CPU ([`super::rseq`]). Only the thread itself looks at
/// it, and whoever makes it.
#[derive(Default)]
pub struct RseqArea {
    /// Where the area is; 0: nowhere.
    pub(super) area: AtomicU64,
    /// Its bytes.
    pub(super) length: AtomicU32,
    /// What stands before each place where a sequence is given up.
    pub(super) signature: AtomicU32,
    /// The CPU that it says.
    pub(super) told_cpu: AtomicU32,
}
