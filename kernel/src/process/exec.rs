//! execve(2): from a file to a running program.

use alloc::vec::Vec;

/// What /proc tells about the running program.
#[derive(Clone, Default)]
pub struct Program {
    /// Absolute path of the executable.
    pub path: Vec<u8>,
    /// Addresses of the argument strings on the stack: start, end.
    pub arguments: (u64, u64),
    /// Addresses of the environment strings on the stack: start, end.
    pub environment: (u64, u64),
}
