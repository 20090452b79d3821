//! Letting a tracee go on: PTRACE_CONT, PTRACE_SYSCALL, PTRACE_SINGLESTEP and PTRACE_SYSEMU.

use abi::{Errno, Result, ptrace as nr};

use super::with_stopped;
use crate::process::Thread;
use crate::process::ptrace::{Resume, syscall_work};
use crate::process::signal::LAST;

/// The signal to go on with, or 0. EIO if there is no such signal.
pub(super) fn valid_signal(data: u64) -> Result<u32> {
    if data <= u64::from(LAST) { Ok(data as u32) } else { Err(Errno::EIO) }
}

/// Lets a stopped tracee go on as `request` says. EIO if it is no such request.
pub(super) fn resume(thread: &Thread, request: u32, data: u64) -> Result<u64> {
    let work = match request {
        nr::PTRACE_CONT => 0,
        nr::PTRACE_SYSCALL => syscall_work::TRACE,
        nr::PTRACE_SINGLESTEP => syscall_work::STEP,
        nr::PTRACE_SYSEMU => syscall_work::EMULATE,
        nr::PTRACE_SYSEMU_SINGLESTEP => syscall_work::EMULATE | syscall_work::STEP,
        _ => return Err(Errno::EIO),
    };
    let signal = valid_signal(data)?;
    with_stopped(thread, |_, stop| {
        stop.unreported = false;
        stop.resumed = Some(Resume { signal, work });
        Ok(())
    })?;
    thread.trace.resumed.wake_all(0);
    Ok(0)
}
