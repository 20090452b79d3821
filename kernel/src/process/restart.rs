//! Calls that a signal without handler interrupted, and that cannot simply be made again because
//! their timeout was relative: restart_syscall(2) goes on with the moment at which it ends.

use alloc::boxed::Box;

use abi::{Errno, Result};

use crate::process::current;

/// How to go on: the call's own continuation, which knows the moment at which it ends.
pub type Restart = Box<dyn FnOnce() -> Result<u64> + Send>;

/// Leaves `restart` for restart_syscall(2); returns the error to give back.
pub fn later(restart: impl FnOnce() -> Result<u64> + Send + 'static) -> Errno {
    let old = current().restart.lock().replace(Box::new(restart));
    drop(old);
    Errno::ERESTART_RESTARTBLOCK
}

/// restart_syscall(2).
pub fn restart_syscall() -> Result<u64> {
    let restart = current().restart.lock().take();
    restart.map_or(Err(Errno::EINTR), |restart| restart())
}
