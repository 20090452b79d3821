//! System calls: from the number in RAX to the function, and its result back.

use abi::{Errno, Result};
use entry::PtRegs;

/// The six arguments (syscall(2), x86-64).
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "argument n")]
pub struct Args {
    pub a0: u64,
    pub a1: u64,
    pub a2: u64,
    pub a3: u64,
    pub a4: u64,
    pub a5: u64,
}

/// Serves one system call.
pub fn handle(regs: &mut PtRegs, number: u64) {
    let args =
        Args { a0: regs.rdi, a1: regs.rsi, a2: regs.rdx, a3: regs.r10, a4: regs.r8, a5: regs.r9 };
    regs.rax = match dispatch(regs, number, &args) {
        Ok(value) => value,
        Err(errno) => errno.to_raw(),
    };
}

#[expect(clippy::too_many_lines, reason = "one line for each system call")]
fn dispatch(_regs: &mut PtRegs, _number: u64, _args: &Args) -> Result<u64> {
    Err(Errno::ENOSYS)
}
