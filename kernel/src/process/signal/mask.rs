//! Replacing the signal mask, for good or for the length of one call.

use entry::PtRegs;

use super::{SignalSet, UNBLOCKABLE};
use crate::process::current;
use crate::process::work;

/// Replaces the running thread's mask; returns the old one.
pub fn set_blocked(mask: SignalSet) -> SignalSet {
    let thread = current();
    let old = core::mem::replace(&mut thread.signals.lock().blocked, mask & !UNBLOCKABLE);
    thread.recheck_signals();
    old
}

/// Replaces the running thread's mask until its system call returns (ppoll(2), pselect(2),
/// epoll_pwait(2), sigsuspend(2)). If a signal interrupts the call, the mask stays until that
/// signal has been delivered, and the handler's return restores the old one.
pub fn set_temporary_mask(mask: SignalSet) {
    let thread = current();
    let old = set_blocked(mask);
    thread.signals.lock().saved_mask.get_or_insert(old);
    thread.task().set_work(work::RESTORE_MASK);
}

/// Ends what [`set_temporary_mask`] began.
pub fn restore() {
    let saved = current().signals.lock().saved_mask.take();
    if let Some(mask) = saved {
        set_blocked(mask);
    }
}

/// Whether the result in `regs` says that a signal ended the call.
pub fn was_interrupted(regs: &PtRegs) -> bool {
    let error = (regs.rax as i64).wrapping_neg();
    error == i64::from(abi::Errno::EINTR.number()) || (512..=516).contains(&error)
}
