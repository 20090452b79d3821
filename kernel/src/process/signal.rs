//! Signals: dispositions, masks, pending sets, delivery and return.

use entry::PtRegs;
use machine::entry::Exception;

/// A set of signals: bit n-1 is signal n.
pub type SignalSet = u64;

/// A thread's part.
#[derive(Default)]
pub struct ThreadSignals {
    /// Blocked signals.
    pub blocked: SignalSet,
}

/// A process's part.
#[derive(Default)]
pub struct ProcessSignals {
    /// Pending for any thread.
    pub pending: SignalSet,
}

/// Dispositions.
#[derive(Default)]
pub struct Handlers {}

/// Delivers pending signals: sets up handler frames in `regs`, or ends the process.
pub fn deliver(_regs: &mut PtRegs) {}

/// An exception of the current program: demand paging, or a signal.
pub fn user_exception(regs: &mut PtRegs, exception: Exception) {
    use machine::entry::{PageFault, fault_code, vector};
    if exception.vector == vector::PAGE_FAULT {
        let fault = PageFault {
            address: exception.address,
            write: exception.error & fault_code::WRITE != 0,
            exec: exception.error & fault_code::FETCH != 0,
        };
        if crate::mm::user_page_fault(fault).is_ok() {
            return;
        }
    }
    machine::log!("exception {exception:x?} at {:#x}", regs.rip);
    super::exit::exit_group(139);
}

/// The registers of the current program cannot be loaded (a non-canonical RIP, say): SIGSEGV.
pub fn bad_return(_regs: &mut PtRegs) {
    super::exit::exit_group(139);
}
