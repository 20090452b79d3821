//! Where the running thread meets its program: what it does on the way back ([`return_work`]), how
//! a signal reaches the program ([`deliver`], [`frame`]), and exceptions of the program's own
//! instructions ([`exception`], [`fault`]), of which some become signals.
//!
//! Who sends, what is pending, what is blocked and what a process does about a signal is
//! `process::signal`, which reads first.

pub mod deliver;
pub mod exception;
pub mod fault;
pub mod frame;
pub mod return_work;
