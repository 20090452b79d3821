//! System calls: from the number in RAX to the function, and its result back.

use core::sync::atomic::Ordering;

use abi::{Errno, Result, general as nr};
use entry::PtRegs;
use machine::sync::is_zero;
use machine::task::Current;

use crate::base::args::Args;
use crate::base::tally;
use crate::ipc;
use crate::process::current;
use crate::process::{self, Thread, timers};

pub mod capabilities;
pub mod clock;
pub mod execve;
pub mod fs;
pub mod groups;
pub mod identity;
pub mod landlock;
pub mod limits;
pub mod lsm;
pub mod mempolicy;
pub mod mm;
pub mod net;
pub mod prctl;
pub mod schedule;
pub mod signals;
pub mod sleep;
pub mod system;
pub mod user_ids;
pub mod vm_transfer;

/// Serves one system call.
#[inline]
pub fn handle(regs: &mut PtRegs, number: u64) {
    // As on Linux, the number is the low half of RAX.
    let number = number as u32;
    let thread = current();
    if !is_zero(&thread.syscall_work) {
        return handle_with_work(regs);
    }
    let result = match number {
        _ if machine::frame::is_short() => serve_in_need(regs, number),
        _ => serve(regs, thread, number),
    };
    regs.rax = to_raw(result);
}

/// The same for a call that is watched ([`machine::entry::watch_calls`]).
pub fn handle_watched(regs: &mut PtRegs, number: u64) {
    tally::watched_syscall(number);
    handle(regs, number);
}

// Not worth the call: it would cost getpid a tenth.
#[inline(always)]
fn to_raw(result: Result<u64>) -> u64 {
    match result {
        Ok(value) => value,
        Err(errno) => errno.to_raw(),
    }
}

/// A call of a thread with `ptrace::syscall_work`: its tracer may change everything about it, and
/// its filters are asked after that.
#[cold]
fn handle_with_work(regs: &mut PtRegs) {
    use process::{ptrace::stop, ptrace::syscall_work, seccomp};
    let word = &current().syscall_work;
    let is_traced = || word.load(Ordering::Relaxed) & syscall_work::TRACING != 0;
    let is_filtered = || word.load(Ordering::Relaxed) & syscall_work::SECCOMP != 0;
    let is_made = (!is_traced() || stop::before_syscall(regs))
        && (!is_filtered() || seccomp::enter::may_call(regs));
    if is_made {
        let number = regs.orig_rax as u32;
        let result = match number {
            _ if machine::frame::is_short() => serve_in_need(regs, number),
            _ => serve(regs, current(), number),
        };
        regs.rax = to_raw(result);
    }
    if is_traced() {
        stop::after_syscall(regs);
    }
}

/// Memory is short: somebody may have to go first.
#[cold]
fn serve_in_need(regs: &mut PtRegs, number: u32) -> Result<u64> {
    process::oom::before_call(number)?;
    serve(regs, current(), number)
}

/// The calls that programs make most come first: each level of the search costs two instructions.
#[inline(always)]
fn serve(a: &mut Args, thread: Current<Thread>, number: u32) -> Result<u64> {
    match number {
        nr::__NR_read => fs::read(a, thread),
        nr::__NR_write => fs::write(a, thread),
        nr::__NR_futex => ipc::futex::futex(a),
        nr::__NR_epoll_wait => ipc::epoll::sys_epoll_wait(a),
        END_OF_NUMBERS.. => unknown(END_OF_NUMBERS),
        _ => dispatch(a, number),
    }
}

/// No call has this number or a larger one.
const END_OF_NUMBERS: u32 = 512;

// All numbers from there on are counted as one, which the compiler can know where it is inlined.
#[inline(always)]
fn unknown(number: u32) -> Result<u64> {
    tally::missing_syscall(u64::from(number));
    Err(Errno::ENOSYS)
}

// A match compiles to compares, not to a table: there is no indirect branch here whose target a
// program's number could steer in speculation.
fn dispatch(a: &mut Args, number: u32) -> Result<u64> {
    match number {
        // --- the system
        nr::__NR_uname => identity::uname(a),
        nr::__NR_sethostname => identity::sethostname(a),
        nr::__NR_setdomainname => identity::setdomainname(a),
        nr::__NR_sysinfo => identity::sysinfo(a),
        // --- memory
        nr::__NR_mmap => mm::mmap(a),
        nr::__NR_munmap => mm::munmap(a),
        nr::__NR_mprotect => mm::mprotect(a),
        nr::__NR_pkey_alloc => mm::pkey_alloc(a),
        nr::__NR_pkey_free => Err(Errno::EINVAL),
        nr::__NR_pkey_mprotect => mm::pkey_mprotect(a),
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
        // One node of memory, whatever policy there is for it.
        nr::__NR_get_mempolicy => mempolicy::get_mempolicy(a),
        nr::__NR_set_mempolicy => mempolicy::set_mempolicy(a),
        nr::__NR_mbind => mempolicy::mbind(a),
        // --- files
        nr::__NR_readv => fs::readv(a),
        nr::__NR_writev => fs::writev(a),
        nr::__NR_pread64 => fs::pread64(a),
        nr::__NR_pwrite64 => fs::pwrite64(a),
        nr::__NR_preadv => fs::preadv(a),
        nr::__NR_pwritev => fs::pwritev(a),
        nr::__NR_preadv2 => fs::preadv2(a),
        nr::__NR_pwritev2 => fs::pwritev2(a),
        nr::__NR_lseek => fs::lseek(a),
        nr::__NR_open => fs::open(a),
        nr::__NR_openat => fs::openat(a),
        nr::__NR_openat2 => fs::openat2(a),
        nr::__NR_creat => fs::creat(a),
        nr::__NR_close => fs::close(a),
        nr::__NR_close_range => fs::close_range(a),
        nr::__NR_dup => fs::dup(a),
        nr::__NR_dup2 => fs::dup2(a),
        nr::__NR_dup3 => fs::dup3(a),
        nr::__NR_umask => fs::umask(a),
        nr::__NR_memfd_create => fs::memfd_create(a),
        nr::__NR_stat => fs::stat(a),
        nr::__NR_lstat => fs::lstat(a),
        nr::__NR_fstat => fs::fstat(a),
        nr::__NR_newfstatat => fs::newfstatat(a),
        nr::__NR_statx => fs::statx(a),
        nr::__NR_access => fs::access(a),
        nr::__NR_faccessat => fs::faccessat(a),
        nr::__NR_faccessat2 => fs::faccessat2(a),
        nr::__NR_statfs => fs::statfs(a),
        nr::__NR_fstatfs => fs::fstatfs(a),
        nr::__NR_getdents => fs::getdents(a),
        nr::__NR_getdents64 => fs::getdents64(a),
        nr::__NR_getcwd => fs::getcwd(a),
        nr::__NR_chdir => fs::chdir(a),
        nr::__NR_fchdir => fs::fchdir(a),
        nr::__NR_chroot => fs::chroot(a),
        nr::__NR_mkdir => fs::mkdir(a),
        nr::__NR_mkdirat => fs::mkdirat(a),
        nr::__NR_mknod => fs::mknod(a),
        nr::__NR_mknodat => fs::mknodat(a),
        nr::__NR_symlink => fs::symlink(a),
        nr::__NR_symlinkat => fs::symlinkat(a),
        nr::__NR_link => fs::link(a),
        nr::__NR_linkat => fs::linkat(a),
        nr::__NR_unlink => fs::unlink(a),
        nr::__NR_rmdir => fs::rmdir(a),
        nr::__NR_unlinkat => fs::unlinkat(a),
        nr::__NR_rename => fs::rename(a),
        nr::__NR_renameat => fs::renameat(a),
        nr::__NR_renameat2 => fs::renameat2(a),
        nr::__NR_readlink => fs::readlink(a),
        nr::__NR_readlinkat => fs::readlinkat(a),
        nr::__NR_chmod => fs::chmod(a),
        nr::__NR_fchmod => fs::fchmod(a),
        nr::__NR_fchmodat => fs::fchmodat(a),
        nr::__NR_fchmodat2 => fs::fchmodat2(a),
        nr::__NR_chown => fs::chown(a),
        nr::__NR_lchown => fs::lchown(a),
        nr::__NR_fchown => fs::fchown(a),
        nr::__NR_fchownat => fs::fchownat(a),
        nr::__NR_utimensat => fs::utimensat(a),
        nr::__NR_utime => fs::utime(a),
        nr::__NR_utimes => fs::utimes(a),
        nr::__NR_futimesat => fs::futimesat(a),
        nr::__NR_truncate => fs::truncate(a),
        nr::__NR_ftruncate => fs::ftruncate(a),
        nr::__NR_fallocate => fs::fallocate(a),
        nr::__NR_fsync => fs::fsync(a),
        nr::__NR_sync_file_range => fs::sync_file_range(a),
        nr::__NR_sync => fs::sync(a),
        nr::__NR_syncfs => fs::syncfs(a),
        nr::__NR_fadvise64 => fs::fadvise64(a),
        nr::__NR_readahead => fs::readahead(a),
        nr::__NR_sendfile => fs::sendfile(a),
        nr::__NR_copy_file_range => fs::copy_file_range(a),
        nr::__NR_splice => fs::splice(a),
        nr::__NR_tee => fs::tee(a),
        nr::__NR_vmsplice => fs::vmsplice(a),
        nr::__NR_setxattr => fs::setxattr(a),
        nr::__NR_lsetxattr => fs::lsetxattr(a),
        nr::__NR_fsetxattr => fs::fsetxattr(a),
        nr::__NR_getxattr => fs::getxattr(a),
        nr::__NR_lgetxattr => fs::lgetxattr(a),
        nr::__NR_fgetxattr => fs::fgetxattr(a),
        nr::__NR_listxattr => fs::listxattr(a),
        nr::__NR_llistxattr => fs::llistxattr(a),
        nr::__NR_flistxattr => fs::flistxattr(a),
        nr::__NR_removexattr => fs::removexattr(a),
        nr::__NR_lremovexattr => fs::lremovexattr(a),
        nr::__NR_fremovexattr => fs::fremovexattr(a),
        nr::__NR_inotify_init => fs::inotify_init(a),
        nr::__NR_inotify_init1 => fs::inotify_init1(a),
        nr::__NR_inotify_add_watch => fs::inotify_add_watch(a),
        nr::__NR_inotify_rm_watch => fs::inotify_rm_watch(a),
        nr::__NR_mount => fs::mount(a),
        nr::__NR_umount2 => fs::umount2(a),
        nr::__NR_pivot_root => fs::pivot_root(a),
        nr::__NR_fcntl => fs::fcntl(a),
        nr::__NR_flock => fs::flock(a),
        nr::__NR_ioctl => fs::ioctl(a),
        nr::__NR_fdatasync => fs::fsync(a),
        nr::__NR_name_to_handle_at | nr::__NR_open_by_handle_at => Err(Errno::EOPNOTSUPP),
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
        nr::__NR_epoll_pwait => ipc::epoll::sys_epoll_pwait(a),
        nr::__NR_epoll_pwait2 => ipc::epoll::sys_epoll_pwait2(a),
        nr::__NR_shmget => ipc::sysv::shm::shmget(a),
        nr::__NR_shmat => ipc::sysv::shm::shmat(a),
        nr::__NR_shmdt => ipc::sysv::shm::shmdt(a),
        nr::__NR_shmctl => ipc::sysv::shm::shmctl(a),
        nr::__NR_semget => ipc::sysv::sem::semget(a),
        nr::__NR_semop => ipc::sysv::sem::semop(a),
        nr::__NR_semtimedop => ipc::sysv::sem::semtimedop(a),
        nr::__NR_semctl => ipc::sysv::sem::semctl(a),
        nr::__NR_msgget => ipc::sysv::msg::msgget(a),
        nr::__NR_msgsnd => ipc::sysv::msg::msgsnd(a),
        nr::__NR_msgrcv => ipc::sysv::msg::msgrcv(a),
        nr::__NR_msgctl => ipc::sysv::msg::msgctl(a),
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
        nr::__NR_recvfrom => net::recvfrom(a),
        nr::__NR_sendto => net::sendto(a),
        nr::__NR_sendmsg => net::sendmsg(a),
        nr::__NR_sendmmsg => net::sendmmsg(a),
        nr::__NR_recvmsg => net::recvmsg(a),
        nr::__NR_recvmmsg => net::recvmmsg(a),
        // --- processes
        nr::__NR_landlock_create_ruleset => landlock::create_ruleset(a),
        nr::__NR_landlock_add_rule => landlock::add_rule(a),
        nr::__NR_landlock_restrict_self => landlock::restrict_self(a),
        nr::__NR_lsm_get_self_attr => lsm::get_self_attr(a),
        nr::__NR_lsm_set_self_attr => lsm::set_self_attr(a),
        nr::__NR_lsm_list_modules => lsm::list_modules(a),
        nr::__NR_seccomp => process::seccomp::attach::seccomp(a),
        nr::__NR_ptrace => crate::ptrace::ptrace(a),
        nr::__NR_getpid => Ok(u64::from(current().process.pid)),
        nr::__NR_gettid => Ok(u64::from(current().tid())),
        nr::__NR_getppid => Ok(u64::from(current().process.parent_pid())),
        nr::__NR_fork => process::fork::fork(a),
        nr::__NR_vfork => process::fork::vfork(a),
        nr::__NR_clone => process::fork::clone(a),
        nr::__NR_clone3 => process::fork::clone3(a),
        nr::__NR_unshare => process::fork::unshare(a),
        nr::__NR_execve => execve::execve(a),
        nr::__NR_execveat => execve::execveat(a),
        nr::__NR_exit => process::exit::exit(a),
        nr::__NR_exit_group => process::exit::exit_group_call(a),
        nr::__NR_wait4 => process::wait::wait4(a),
        nr::__NR_waitid => process::wait::waitid(a),
        nr::__NR_futex_waitv => ipc::futex::waitv::futex_waitv(a),
        nr::__NR_set_robust_list => ipc::futex::robust::set_robust_list(a),
        nr::__NR_get_robust_list => ipc::futex::robust::get_robust_list(a),
        nr::__NR_pidfd_open => process::pidfd::pidfd_open(a),
        nr::__NR_pidfd_send_signal => signals::pidfd_send_signal(a),
        nr::__NR_pidfd_getfd => process::pidfd::pidfd_getfd(a),
        nr::__NR_process_vm_readv => vm_transfer::process_vm_readv(a),
        nr::__NR_process_vm_writev => vm_transfer::process_vm_writev(a),
        nr::__NR_getrlimit => limits::getrlimit(a),
        nr::__NR_setrlimit => limits::setrlimit(a),
        nr::__NR_prlimit64 => limits::prlimit64(a),
        nr::__NR_getrusage => process::usage::getrusage(a),
        nr::__NR_times => process::usage::times(a),
        nr::__NR_set_tid_address => prctl::set_tid_address(a),
        nr::__NR_prctl => prctl::prctl(a),
        nr::__NR_arch_prctl => prctl::arch_prctl(a),
        nr::__NR_personality => prctl::personality(a),
        nr::__NR_setpgid => groups::setpgid(a),
        nr::__NR_getpgid => groups::getpgid(a),
        nr::__NR_getpgrp => groups::getpgrp(),
        nr::__NR_setsid => groups::setsid(),
        nr::__NR_getsid => groups::getsid(a),
        // --- identity
        nr::__NR_getuid => user_ids::getuid(),
        nr::__NR_geteuid => user_ids::geteuid(),
        nr::__NR_getgid => user_ids::getgid(),
        nr::__NR_getegid => user_ids::getegid(),
        nr::__NR_setuid => user_ids::setuid(a),
        nr::__NR_setgid => user_ids::setgid(a),
        nr::__NR_setreuid => user_ids::setreuid(a),
        nr::__NR_setregid => user_ids::setregid(a),
        nr::__NR_setresuid => user_ids::setresuid(a),
        nr::__NR_setresgid => user_ids::setresgid(a),
        nr::__NR_getresuid => user_ids::getresuid(a),
        nr::__NR_getresgid => user_ids::getresgid(a),
        nr::__NR_setfsuid => user_ids::setfsuid(a),
        nr::__NR_setfsgid => user_ids::setfsgid(a),
        nr::__NR_getgroups => user_ids::getgroups(a),
        nr::__NR_setgroups => user_ids::setgroups(a),
        nr::__NR_capget => capabilities::capget(a),
        nr::__NR_capset => capabilities::capset(a),
        // --- the machine
        nr::__NR_reboot => system::reboot(a),
        nr::__NR_syslog => system::syslog(a),
        nr::__NR_getrandom => system::getrandom(a),
        nr::__NR_getcpu => system::getcpu(a),
        nr::__NR_membarrier => system::membarrier(a),
        nr::__NR_kcmp => system::kcmp(a),
        // As a Linux that was built without it; libraries do without.
        nr::__NR_rseq => Err(Errno::ENOSYS),
        // One namespace of each kind: there is no other to enter.
        nr::__NR_setns => Err(Errno::EINVAL),
        // --- signals
        nr::__NR_rt_sigaction => signals::rt_sigaction(a),
        nr::__NR_rt_sigprocmask => signals::rt_sigprocmask(a),
        nr::__NR_rt_sigpending => signals::rt_sigpending(a),
        nr::__NR_rt_sigsuspend => signals::rt_sigsuspend(a),
        nr::__NR_rt_sigtimedwait => signals::rt_sigtimedwait(a),
        nr::__NR_rt_sigqueueinfo => signals::rt_sigqueueinfo(a),
        nr::__NR_rt_tgsigqueueinfo => signals::rt_tgsigqueueinfo(a),
        nr::__NR_rt_sigreturn => Ok(process::signal::frame::sigreturn(a)),
        nr::__NR_sigaltstack => process::signal::altstack::sigaltstack(a),
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
        nr::__NR_alarm => timers::interval::alarm(a),
        nr::__NR_getitimer => timers::interval::getitimer(a),
        nr::__NR_setitimer => timers::interval::setitimer(a),
        nr::__NR_timer_create => timers::posix::timer_create(a),
        nr::__NR_timer_settime => timers::posix::timer_settime(a),
        nr::__NR_timer_gettime => timers::posix::timer_gettime(a),
        nr::__NR_timer_getoverrun => timers::posix::timer_getoverrun(a),
        nr::__NR_timer_delete => timers::posix::timer_delete(a),
        nr::__NR_sched_yield => schedule::sched_yield(),
        nr::__NR_sched_getaffinity => schedule::sched_getaffinity(a),
        nr::__NR_sched_setaffinity => schedule::sched_setaffinity(a),
        nr::__NR_sched_get_priority_max => schedule::sched_get_priority_max(a),
        nr::__NR_sched_get_priority_min => schedule::sched_get_priority_min(a),
        nr::__NR_sched_setscheduler => schedule::sched_setscheduler(a),
        nr::__NR_sched_getscheduler => schedule::sched_getscheduler(a),
        nr::__NR_sched_setparam => schedule::sched_setparam(a),
        nr::__NR_sched_getparam => schedule::sched_getparam(a),
        nr::__NR_sched_setattr => schedule::sched_setattr(a),
        nr::__NR_sched_getattr => schedule::sched_getattr(a),
        nr::__NR_sched_rr_get_interval => schedule::sched_rr_get_interval(a),
        nr::__NR_getpriority => schedule::getpriority(a),
        nr::__NR_setpriority => schedule::setpriority(a),
        nr::__NR_ioprio_get => schedule::ioprio_get(a),
        nr::__NR_ioprio_set => schedule::ioprio_set(a),
        nr::__NR_nanosleep => sleep::nanosleep(a),
        nr::__NR_clock_nanosleep => sleep::clock_nanosleep(a),
        _ => unknown(number),
    }
}
