//! System calls: from the number in RAX to the function, and its result back.

use abi::{Errno, Result, general as nr};
use entry::PtRegs;

use crate::ipc;
use crate::mm::syscalls as mm;

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

fn dispatch(_regs: &mut PtRegs, number: u64, a: &Args) -> Result<u64> {
    let Ok(number) = u32::try_from(number) else { return Err(Errno::ENOSYS) };
    match number {
        // --- memory
        nr::__NR_mmap => mm::mmap(a),
        nr::__NR_munmap => mm::munmap(a),
        nr::__NR_mprotect => mm::mprotect(a),
        nr::__NR_brk => mm::brk(a),
        nr::__NR_mremap => mm::mremap(a),
        nr::__NR_madvise => mm::madvise(a),
        nr::__NR_mlock => mm::mlock(a),
        nr::__NR_mlock2 => mm::mlock2(a),
        nr::__NR_munlock => mm::munlock(a),
        nr::__NR_mlockall => mm::mlockall(a),
        nr::__NR_munlockall => mm::munlockall(a),
        nr::__NR_mincore => mm::mincore(a),
        nr::__NR_msync => mm::msync(a),
        // --- files
        // --- waiting and ipc
        nr::__NR_pipe => ipc::pipe::sys_pipe(a),
        nr::__NR_pipe2 => ipc::pipe::sys_pipe2(a),
        nr::__NR_eventfd => ipc::eventfd::sys_eventfd(a),
        nr::__NR_eventfd2 => ipc::eventfd::sys_eventfd2(a),
        nr::__NR_timerfd_create => ipc::timerfd::sys_timerfd_create(a),
        nr::__NR_timerfd_settime => ipc::timerfd::sys_timerfd_settime(a),
        nr::__NR_timerfd_gettime => ipc::timerfd::sys_timerfd_gettime(a),
        nr::__NR_poll => ipc::select::sys_poll(a),
        nr::__NR_ppoll => ipc::select::sys_ppoll(a),
        nr::__NR_select => ipc::select::sys_select(a),
        nr::__NR_pselect6 => ipc::select::sys_pselect6(a),
        nr::__NR_epoll_create => ipc::epoll::sys_epoll_create(a),
        nr::__NR_epoll_create1 => ipc::epoll::sys_epoll_create1(a),
        nr::__NR_epoll_ctl => ipc::epoll::sys_epoll_ctl(a),
        nr::__NR_epoll_wait => ipc::epoll::sys_epoll_wait(a),
        nr::__NR_epoll_pwait => ipc::epoll::sys_epoll_pwait(a),
        nr::__NR_epoll_pwait2 => ipc::epoll::sys_epoll_pwait2(a),
        // --- processes
        // --- signals
        // --- time and scheduling
        _ => Err(Errno::ENOSYS),
    }
}
