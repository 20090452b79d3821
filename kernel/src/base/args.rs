//! The arguments of a system call, as the program's registers hold them.

/// The program's registers, seen as a call's six arguments `a0()` to `a5()` (syscall(2)).
pub use entry::PtRegs as Args;
