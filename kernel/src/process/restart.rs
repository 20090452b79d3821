//! Calls that a signal without handler interrupted, and that cannot simply be made again because
//! their timeout was relative: restart_syscall(2) goes on with the moment at which it ends.

use abi::{Errno, Result};

use crate::base::args::Args;
use crate::base::sched::current;

/// How to go on.
#[derive(Clone, Copy, Debug)]
pub enum Restart {
    /// nanosleep(2) and relative clock_nanosleep(2).
    Sleep(crate::calls::sleep::Pending),
    /// FUTEX_WAIT with a timeout.
    Futex(crate::ipc::futex::PendingWait),
    /// poll(2): descriptors, their number, and the deadline in nanoseconds since boot.
    Poll {
        /// Address of the `struct pollfd` array.
        fds: u64,
        /// Its length.
        count: u64,
        /// When the call ends.
        deadline_ns: u64,
    },
}

/// Leaves `restart` for restart_syscall(2); returns the error to give back.
pub fn later(restart: Restart) -> Errno {
    *current().restart.lock() = Some(restart);
    Errno::ERESTART_RESTARTBLOCK
}

/// restart_syscall(2).
pub fn restart_syscall(_args: &Args) -> Result<u64> {
    let restart = current().restart.lock().take();
    match restart {
        None => Err(Errno::EINTR),
        Some(Restart::Sleep(pending)) => crate::calls::sleep::resume(pending),
        Some(Restart::Futex(pending)) => crate::ipc::futex::resume(pending),
        Some(Restart::Poll { fds, count, deadline_ns }) => {
            crate::ipc::select::resume_poll(fds, count, deadline_ns)
        }
    }
}
