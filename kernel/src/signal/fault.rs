//! Page faults of the running program, and the kernel's on its behalf: they go to its address space
//! (`mm::fault`), and to whoever frees memory if there is none.

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use abi::{Errno, Result};
use machine::entry::PageFault;

use crate::base::reserve::relieve;
use crate::mm::Mm;
use crate::mm::fault::StackLimits;
use crate::mm::shadow_stack::Owner;
use crate::process::{Process, current, has_current, work};
use crate::security::{Resource, subject_hooks};

impl StackLimits for Process {
    fn stack_bytes(&self) -> u64 {
        self.limit(Resource::Stack)
    }

    fn locked_bytes(&self) -> u64 {
        self.lock_limit()
    }
}

impl Owner for Process {
    fn check_memory(&self, bytes: u64) -> Result<()> {
        subject_hooks::vm_enough_memory((&self.subject(), bytes))
    }

    fn total_limit(&self) -> u64 {
        self.limit(Resource::AddressSpace)
    }

    fn locked_limit(&self) -> u64 {
        self.lock_limit()
    }

    fn stack_limit(&self) -> u64 {
        self.limit(Resource::Stack)
    }

    fn memory(&self) -> Result<Arc<Mm>> {
        self.mm()
    }
}

/// A fault of the running program. EFAULT: nothing mapped, EACCES: no right, EKEYREJECTED: its
/// protection key denies it (all SIGSEGV); ENXIO:
/// past the end of the file, EIO: it cannot be read (both SIGBUS); ENOMEM.
pub fn user_page_fault(fault: PageFault) -> Result<()> {
    let thread = current();
    let mm = thread.process.mm()?;
    thread.base.was_switched.store(false, Ordering::Relaxed);
    let mut result = mm.handle_fault(fault, &*thread.process);
    if thread.base.watches_cpu.load(Ordering::Relaxed)
        && thread.base.was_switched.load(Ordering::Relaxed)
    {
        // A sequence that faulted has lost its CPU in its midst.
        thread.task().set_work(work::RSEQ);
    }
    // Memory may not be short at all, and what is lacking of another kind: others run meanwhile,
    // and who is killed ends here.
    while result == Err(Errno::ENOMEM) && thread.task().work() & work::EXIT == 0 && relieve() {
        crate::base::sched::yield_if_needed();
        result = mm.handle_fault(fault, &*thread.process);
    }
    result
}

/// A fault of the kernel on behalf of the running program. Whether to try again.
pub fn kernel_page_fault(fault: PageFault) -> bool {
    has_current() && user_page_fault(fault).is_ok()
}
