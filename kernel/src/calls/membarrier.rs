//! Barriers on the CPUs where others run, asked for by one thread (membarrier(2)): of memory, of
//! the code they execute, of the restartable sequences they are in (rseq(2)).
//!
//! Why it is hard: when the call returns, each of those CPUs must have been interrupted, or must
//! have been in the kernel, since the call began. A shootdown of translations waits for each CPU
//! that runs the process, which is a full barrier there; and the way back from the interrupt
//! (IRET) fetches instructions anew. A sequence is given up by what a thread finds to do before it
//! returns to its program, which is left there before the interrupt is sent.

use core::sync::atomic::Ordering;

use abi::{Errno, Result};

use crate::base::sched;
use crate::process::{Process, current, work};

/// The commands (membarrier(2)).
mod command {
    pub(super) const QUERY: u32 = 0;
    pub(super) const GLOBAL: u32 = 1;
    pub(super) const GLOBAL_EXPEDITED: u32 = 1 << 1;
    pub(super) const REGISTER_GLOBAL_EXPEDITED: u32 = 1 << 2;
    pub(super) const PRIVATE_EXPEDITED: u32 = 1 << 3;
    pub(super) const REGISTER_PRIVATE_EXPEDITED: u32 = 1 << 4;
    pub(super) const PRIVATE_EXPEDITED_SYNC_CORE: u32 = 1 << 5;
    pub(super) const REGISTER_PRIVATE_EXPEDITED_SYNC_CORE: u32 = 1 << 6;
    pub(super) const PRIVATE_EXPEDITED_RSEQ: u32 = 1 << 7;
    pub(super) const REGISTER_PRIVATE_EXPEDITED_RSEQ: u32 = 1 << 8;
    pub(super) const GET_REGISTRATIONS: u32 = 1 << 9;
    /// All but QUERY.
    pub(super) const ALL: u32 = (1 << 10) - 1;
}

/// MEMBARRIER_CMD_FLAG_CPU: one CPU is enough. Here all of the process's are interrupted.
const FLAG_CPU: u32 = 1;

/// membarrier(2). EINVAL, EPERM without the registration that the command asks for.
pub fn membarrier(command: u32, flags: u32) -> Result<u64> {
    let known_flags = if command == command::PRIVATE_EXPEDITED_RSEQ { FLAG_CPU } else { 0 };
    if flags & !known_flags != 0 {
        return Err(Errno::EINVAL);
    }
    let process = &current().process;
    let registered = &process.settings.membarrier;
    let check = |registration: u32| {
        let is_registered = registered.load(Ordering::Relaxed) & registration != 0;
        if is_registered { Ok(()) } else { Err(Errno::EPERM) }
    };
    match command {
        command::QUERY => return Ok(command::ALL.into()),
        command::GET_REGISTRATIONS => return Ok(registered.load(Ordering::Relaxed).into()),
        command::GLOBAL | command::GLOBAL_EXPEDITED => machine::tlb::barrier_on_all_cpus(),
        command::REGISTER_GLOBAL_EXPEDITED
        | command::REGISTER_PRIVATE_EXPEDITED
        | command::REGISTER_PRIVATE_EXPEDITED_SYNC_CORE
        | command::REGISTER_PRIVATE_EXPEDITED_RSEQ => {
            registered.fetch_or(command, Ordering::Relaxed);
        }
        command::PRIVATE_EXPEDITED => {
            check(command::REGISTER_PRIVATE_EXPEDITED)?;
            interrupt(process)?;
        }
        command::PRIVATE_EXPEDITED_SYNC_CORE => {
            check(command::REGISTER_PRIVATE_EXPEDITED_SYNC_CORE)?;
            interrupt(process)?;
        }
        command::PRIVATE_EXPEDITED_RSEQ => {
            check(command::REGISTER_PRIVATE_EXPEDITED_RSEQ)?;
            give_up_sequences(process);
            interrupt(process)?;
        }
        _ => return Err(Errno::EINVAL),
    }
    Ok(0)
}

/// Interrupts each CPU that runs the process, and waits for it.
fn interrupt(process: &Process) -> Result<()> {
    process.mm()?.with(|inner| inner.table.flush());
    Ok(())
}

/// Every other thread finds its sequence to be given up before it goes on in its program.
fn give_up_sequences(process: &Process) {
    let own = current().tid();
    let threads = process.threads.lock().to_vec();
    for thread in threads.iter().filter(|thread| thread.tid() != own) {
        thread.task().set_work(work::RSEQ);
        sched::notify(&thread.base);
    }
}
