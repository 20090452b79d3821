//! Calls that a thread has given to itself (prctl(2), PR_SET_SYSCALL_USER_DISPATCH): outside of one
//! range of its code they become SIGSYS, while a byte of its memory says so. Emulators of other
//! systems live in the range.
//!
//! It is a bit of `syscall_work`, so that threads without pay nothing. What is set is read by the
//! thread at its calls (`calls::user_dispatch`), and changed by itself or by its tracer while it is
//! stopped.

use core::sync::atomic::{AtomicU64, Ordering};

use abi::{Errno, Result, prctl as pr};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::ptrace::syscall_work;
use super::{Thread, current};
use crate::base::user::UserPtr;

/// `struct ptrace_sud_config`, and what prctl(2) is given.
#[derive(FromBytes, IntoBytes, Immutable, Clone, Copy)]
#[repr(C)]
pub struct Config {
    /// PR_SYS_DISPATCH_ON or PR_SYS_DISPATCH_OFF.
    pub mode: u64,
    /// The byte, or 0: then no call outside the range is made.
    pub selector: u64,
    /// Where the range begins.
    pub offset: u64,
    /// Its bytes.
    pub len: u64,
}

/// A thread's part.
#[derive(Default)]
pub struct Dispatch {
    selector: AtomicU64,
    offset: AtomicU64,
    len: AtomicU64,
}

/// Sets it for `thread`, which is the running one or stopped. EINVAL, EFAULT.
pub fn set(thread: &Thread, config: &Config) -> Result<()> {
    let &Config { mode, selector, offset, len } = config;
    let is_on = match u32::try_from(mode) {
        Ok(pr::PR_SYS_DISPATCH_OFF) if offset | len | selector == 0 => false,
        Ok(pr::PR_SYS_DISPATCH_ON) if offset == 0 || offset.wrapping_add(len) > offset => true,
        _ => return Err(Errno::EINVAL),
    };
    if selector != 0 && !UserPtr::<u8>::new(selector).is_user_range(1) {
        return Err(Errno::EFAULT);
    }
    let own = &thread.dispatch;
    own.selector.store(selector, Ordering::Relaxed);
    own.offset.store(offset, Ordering::Relaxed);
    own.len.store(len, Ordering::Relaxed);
    match is_on {
        true => thread.syscall_work.fetch_or(syscall_work::DISPATCH, Ordering::Release),
        false => thread.syscall_work.fetch_and(!syscall_work::DISPATCH, Ordering::Release),
    };
    Ok(())
}

/// What is set for `thread`.
pub fn get(thread: &Thread) -> Config {
    let own = &thread.dispatch;
    let is_on = thread.syscall_work.load(Ordering::Relaxed) & syscall_work::DISPATCH != 0;
    Config {
        mode: if is_on { pr::PR_SYS_DISPATCH_ON } else { pr::PR_SYS_DISPATCH_OFF }.into(),
        selector: own.selector.load(Ordering::Relaxed),
        offset: own.offset.load(Ordering::Relaxed),
        len: own.len.load(Ordering::Relaxed),
    }
}

/// The running thread executes another program.
pub fn forget() {
    current().syscall_work.fetch_and(!syscall_work::DISPATCH, Ordering::Relaxed);
}
