//! What a thread that waits is in the middle of: syscall and stack of /proc/PID.
//!
//! The registers with which a program entered the kernel lie on its thread's kernel stack. They are
//! copied from there while the thread cannot begin to run: nobody wakes it without its lock.

use abi::{Errno, Result};
use entry::PtRegs;

use super::process_dir::Subject;
use crate::base::sched::RunState;
use crate::fs::pseudo::Text;
use crate::process::{Thread, current};
use crate::security::Capability;

/// The call, its arguments, stack pointer and instruction pointer (proc_pid_syscall(5)).
pub(super) fn syscall(subject: &Subject, out: &mut Text) -> Result<()> {
    let Some(thread) = subject.thread() else {
        // It has ended, and is in no call.
        out.bytes(b"-1 0x0 0x0\n");
        return Ok(());
    };
    let Some(regs) = registers(&thread) else {
        out.bytes(b"running\n");
        return Ok(());
    };
    let number = regs.orig_rax as i32;
    write!(out, "{number}");
    if number >= 0 {
        let arguments = [regs.rdi, regs.rsi, regs.rdx, regs.r10, regs.r8, regs.r9];
        arguments.iter().for_each(|argument| write!(out, " {argument:#x}"));
    }
    writeln!(out, " {:#x} {:#x}", regs.rsp, regs.rip);
    Ok(())
}

/// The program's registers; None while it runs.
fn registers(thread: &Thread) -> Option<PtRegs> {
    {
        // A tracer changes the copy.
        let state = thread.trace.state();
        if state.stop.is_some() {
            return Some(state.registers.general);
        }
    }
    let entity = thread.base.sched.lock();
    let is_own = thread.is_current();
    match entity.state {
        RunState::Sleeping(_) => thread.task().entry_registers(),
        _ if is_own => thread.task().entry_registers(),
        _ => None,
    }
}

/// Functions that wait for each other, for CAP_SYS_ADMIN. Their names are not in the kernel, and
/// their addresses are told to nobody: there is no line.
pub(super) fn stack(_: &Subject, _: &mut Text) -> Result<()> {
    if current().subject().capable(Capability::SysAdmin) { Ok(()) } else { Err(Errno::EACCES) }
}
