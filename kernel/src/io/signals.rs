//! What this part of the kernel asks of signals, in one place.

use abi::{Errno, Result, general as raw};

use crate::base::user::UserPtr;
use crate::process::signal::{self, SignalSet};

/// SIGPIPE for the current thread, which wrote to something that nobody reads.
pub fn broken_pipe() {
    signal::send_to_current(raw::SIGPIPE);
}

/// The optional signal mask of ppoll(2) and its like: replaces the current thread's mask until the
/// call returns to the program. EINVAL if `size` is not that of a signal set.
pub fn replace_mask(address: u64, size: u64) -> Result<()> {
    let Some(set) = UserPtr::<SignalSet>::new(address).non_null() else { return Ok(()) };
    if size != size_of::<SignalSet>() as u64 {
        return Err(Errno::EINVAL);
    }
    signal::set_temporary_mask(set.read()?);
    Ok(())
}
