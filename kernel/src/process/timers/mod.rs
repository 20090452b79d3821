//! Timers that send signals: alarm(2), setitimer(2), timer_create(2).
//!
//! Timers on the wall or monotonic clock are timers of the kernel (`time::wake_at`): their expiry runs
//! in an interrupt and sends the signal there. Timers on CPU clocks are looked at by the tick of the
//! threads that run on that clock's time.

use alloc::sync::Arc;

use super::Process;

/// The timers of a process.
#[derive(Default)]
pub struct Timers {}

/// The process ends or executes a program: its timers go.
pub fn release(_process: &Arc<Process>) {}
