//! System calls: from the number in RAX to the function, and its result back.

use abi::{Errno, Result, general as nr};
use entry::PtRegs;

use crate::ipc;
use crate::mm::syscalls as mm;
use crate::net::syscalls as net;
use crate::process::signal::calls as signals;
use crate::process::{self, clock};
use crate::sched::current;

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

fn dispatch(regs: &mut PtRegs, number: u64, a: &Args) -> Result<u64> {
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
        nr::__NR_signalfd => ipc::signalfd::sys_signalfd(a),
        nr::__NR_signalfd4 => ipc::signalfd::sys_signalfd4(a),
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
        // --- sockets
        nr::__NR_socket => net::socket(a),
        nr::__NR_socketpair => net::socketpair(a),
        nr::__NR_bind => net::bind(a),
        nr::__NR_connect => net::connect(a),
        nr::__NR_listen => net::listen(a),
        nr::__NR_accept => net::accept(a),
        nr::__NR_accept4 => net::accept4(a),
        nr::__NR_getsockname => net::getsockname(a),
        nr::__NR_getpeername => net::getpeername(a),
        nr::__NR_shutdown => net::shutdown(a),
        nr::__NR_setsockopt => net::setsockopt(a),
        nr::__NR_getsockopt => net::getsockopt(a),
        nr::__NR_sendto => net::sendto(a),
        nr::__NR_sendmsg => net::sendmsg(a),
        nr::__NR_sendmmsg => net::sendmmsg(a),
        nr::__NR_recvfrom => net::recvfrom(a),
        nr::__NR_recvmsg => net::recvmsg(a),
        nr::__NR_recvmmsg => net::recvmmsg(a),
        // --- processes
        nr::__NR_getpid => Ok(u64::from(current().process.pid)),
        nr::__NR_gettid => Ok(u64::from(current().tid())),
        nr::__NR_getppid => Ok(u64::from(current().process.parent_pid())),
        nr::__NR_fork => process::fork::fork(regs, a),
        nr::__NR_vfork => process::fork::vfork(regs, a),
        nr::__NR_clone => process::fork::clone(regs, a),
        nr::__NR_clone3 => process::fork::clone3(regs, a),
        nr::__NR_unshare => process::fork::unshare(a),
        nr::__NR_exit => process::exit::exit(a),
        nr::__NR_exit_group => process::exit::exit_group_call(a),
        nr::__NR_wait4 => process::wait::wait4(a),
        nr::__NR_waitid => process::wait::waitid(a),
        nr::__NR_futex => process::futex::futex(a),
        nr::__NR_futex_waitv => process::futex::waitv::futex_waitv(a),
        nr::__NR_set_robust_list => process::futex::robust::set_robust_list(a),
        nr::__NR_get_robust_list => process::futex::robust::get_robust_list(a),
        nr::__NR_pidfd_open => process::pidfd::pidfd_open(a),
        nr::__NR_pidfd_send_signal => process::pidfd::pidfd_send_signal(a),
        nr::__NR_pidfd_getfd => process::pidfd::pidfd_getfd(a),
        nr::__NR_getrlimit => process::limits::getrlimit(a),
        nr::__NR_setrlimit => process::limits::setrlimit(a),
        nr::__NR_prlimit64 => process::limits::prlimit64(a),
        nr::__NR_getrusage => process::usage::getrusage(a),
        nr::__NR_times => process::usage::times(a),
        // --- signals
        nr::__NR_rt_sigaction => signals::rt_sigaction(a),
        nr::__NR_rt_sigprocmask => signals::rt_sigprocmask(a),
        nr::__NR_rt_sigpending => signals::rt_sigpending(a),
        nr::__NR_rt_sigsuspend => signals::rt_sigsuspend(a),
        nr::__NR_rt_sigtimedwait => signals::rt_sigtimedwait(a),
        nr::__NR_rt_sigqueueinfo => signals::rt_sigqueueinfo(a),
        nr::__NR_rt_tgsigqueueinfo => signals::rt_tgsigqueueinfo(a),
        nr::__NR_rt_sigreturn => Ok(process::signal::frame::sigreturn(regs)),
        nr::__NR_sigaltstack => process::signal::altstack::sigaltstack(regs, a),
        nr::__NR_kill => signals::kill(a),
        nr::__NR_tkill => signals::tkill(a),
        nr::__NR_tgkill => signals::tgkill(a),
        nr::__NR_pause => signals::pause(a),
        nr::__NR_restart_syscall => process::restart::restart_syscall(a),
        // --- time and scheduling
        nr::__NR_clock_gettime => clock::clock_gettime(a),
        nr::__NR_clock_getres => clock::clock_getres(a),
        nr::__NR_clock_settime => clock::clock_settime(a),
        nr::__NR_clock_adjtime => clock::clock_adjtime(a),
        nr::__NR_adjtimex => clock::adjtimex(a),
        nr::__NR_gettimeofday => clock::gettimeofday(a),
        nr::__NR_settimeofday => clock::settimeofday(a),
        nr::__NR_time => clock::time(a),
        nr::__NR_nanosleep => process::sleep::nanosleep(a),
        nr::__NR_clock_nanosleep => process::sleep::clock_nanosleep(a),
        _ => Err(Errno::ENOSYS),
    }
}
