//! The bootable image: the one place where the machine learns which kernel it runs.
//!
//! The machine declares the functions it calls as `extern "Rust"`; here each name is bound to the
//! kernel's function of that purpose. Direct calls, no table of pointers, and the kernel crate
//! stays free of `no_mangle`, which counts as unsafe. Part of `machine/` for that reason.

#![no_std]
#![no_main]

use entry::PtRegs;
use machine::entry::{Exception, PageFault};

#[unsafe(no_mangle)]
fn limen_main() -> ! {
    kernel::main()
}

#[unsafe(no_mangle)]
fn limen_secondary() -> ! {
    kernel::secondary()
}

#[unsafe(no_mangle)]
extern "C" fn syscall_from_user(regs: &mut PtRegs, number: u64) -> u64 {
    // SAFETY: the entry code calls this for the program that made the call.
    let call = unsafe { machine::entry::begin_call(regs) };
    kernel::calls::handle(call, number)
}

#[unsafe(no_mangle)]
extern "C" fn instrumented_syscall_from_user(regs: &mut PtRegs, number: u64) -> bool {
    // SAFETY: as above: the entry code calls it, by its other way in.
    unsafe {
        let call = machine::entry::begin_instrumented_call(regs, number);
        let result = kernel::calls::handle_instrumented(call, number);
        machine::entry::end_instrumented_call(regs, result)
    }
}

#[unsafe(no_mangle)]
fn limen_exit_work(regs: &mut PtRegs, work: u32) {
    kernel::signal::return_work::exit_work(regs, work);
}

#[unsafe(no_mangle)]
fn limen_user_exception(regs: &mut PtRegs, exception: Exception) {
    kernel::signal::exception::user_exception(regs, exception);
}

#[unsafe(no_mangle)]
fn limen_bad_return(regs: &mut PtRegs) {
    kernel::signal::exception::bad_return(regs);
}

#[unsafe(no_mangle)]
fn limen_kernel_page_fault(fault: PageFault) -> bool {
    kernel::signal::fault::kernel_page_fault(fault)
}

#[unsafe(no_mangle)]
fn limen_timer_tick(from_user: bool) {
    kernel::base::sched::timer_tick(from_user);
}

#[unsafe(no_mangle)]
fn limen_reschedule() {
    kernel::base::sched::reschedule_interrupt();
}

#[unsafe(no_mangle)]
fn limen_task_started() {
    kernel::base::sched::task_started();
}
