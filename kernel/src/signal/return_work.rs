//! What a thread does on its way back to its program.

use super::deliver;
use crate::process::{current, exit, fork, ptrace, rseq, work};

/// Exit work of the current thread: everything that must happen before it runs its program again.
pub fn exit_work(regs: &mut entry::PtRegs, pending: u32) {
    let thread = current();
    if pending & work::EXIT != 0 {
        exit::exit_thread(regs, 0);
    }
    if pending & work::CHILD_TID != 0 {
        fork::first_run();
    }
    if pending & work::SYSCALL_EXIT != 0 {
        thread.task().take_work(work::SYSCALL_EXIT);
        ptrace::stop::after_syscall(regs);
    }
    if pending & work::RESCHEDULE != 0 {
        crate::base::sched::schedule();
    }
    if pending & (work::RESCHEDULE | work::RSEQ) != 0 {
        // Before signals: a handler's frame has the place where the sequence was given up.
        thread.task().take_work(work::RSEQ);
        rseq::before_return(regs);
    }
    if pending & (work::SIGNAL | work::RESTORE_MASK) != 0 {
        let taken = thread.task().take_work(work::SIGNAL | work::RESTORE_MASK);
        deliver::deliver(regs, taken & work::RESTORE_MASK != 0);
    }
}
