//! System calls: from the number in RAX to the function, and its result back.

use core::sync::atomic::Ordering;

use abi::Errno;
use abi::syscalls::number as nr;
use machine::sync::is_zero;
use machine::task::Current;

use crate::aio;
use crate::base::args::{Args, Handler, arity_of};
use crate::base::tally;
use crate::futex;
use crate::io;
use crate::ipc;
use crate::mapping;
use crate::process::current;
use crate::process::{self, Thread};
use crate::timers;
use crate::wait;

pub mod capabilities;
pub mod clock;
pub mod fs;
pub mod groups;
pub mod identity;
pub mod landlock;
pub mod limits;
pub mod lsm;
pub mod membarrier;
pub mod net;
pub mod prctl;
pub mod processes;
pub mod schedule;
pub mod signals;
pub mod sleep;
pub mod system;
mod user_dispatch;
pub mod user_ids;

/// Serves one system call, and says what the program finds in RAX.
#[inline(always)]
pub fn handle(regs: &mut Args, number: u64) -> u64 {
    // As on Linux, the number is the low half of RAX.
    let number = number as u32;
    let thread = current();
    if machine::frame::is_short_or(thread.syscall_work.load(Ordering::Relaxed)) {
        return handle_slowly(regs, number);
    }
    dispatch(regs, thread, number)
}

/// The same for a call that is instrumented ([`machine::entry::instrument_calls`]).
pub fn handle_instrumented(regs: &mut Args, number: u64) -> u64 {
    tally::instrumented_syscall(number);
    handle_slowly(regs, number as u32)
}

/// A call that may have more to it than its function: work of its thread, or memory that is short.
#[inline(never)]
fn handle_slowly(regs: &mut Args, number: u32) -> u64 {
    let thread = current();
    if !is_zero(&thread.syscall_work) {
        return handle_with_work(regs, thread);
    }
    serve(regs, thread, number)
}

/// A call of a thread with `ptrace::syscall_work`: its tracer may change everything about it, and
/// its filters are asked after that.
fn handle_with_work(regs: &mut Args, thread: Current<Thread>) -> u64 {
    use process::{ptrace::stop, ptrace::syscall_work};
    let has_work = |kind| thread.syscall_work.load(Ordering::Relaxed) & kind != 0;
    if has_work(syscall_work::DISPATCH) && !user_dispatch::may_call(regs.all()) {
        return regs.rax;
    }
    let is_made = (!has_work(syscall_work::TRACING) || stop::before_syscall(regs.all()))
        && (!has_work(syscall_work::SECCOMP) || crate::seccomp::enter::may_call(regs));
    let result = match is_made {
        true => serve(regs, thread, regs.orig_rax as u32),
        false => regs.rax,
    };
    if has_work(syscall_work::TRACING) {
        let regs = regs.all();
        regs.rax = result;
        stop::after_syscall(regs);
        return regs.rax;
    }
    result
}

/// If memory is short, somebody may have to go first.
fn serve(regs: &mut Args, thread: Current<Thread>, number: u32) -> u64 {
    if machine::frame::is_short()
        && let Err(errno) = crate::oom::before_call(number)
    {
        return errno.to_raw();
    }
    dispatch(regs, thread, number)
}

fn unknown(number: u32) -> u64 {
    tally::missing_syscall(number);
    Errno::ENOSYS.to_raw()
}

/// Makes [`dispatch`] of `NAME => FUNCTION` rows. Names and arguments are `abi::syscalls`'s: a
/// function that takes more arguments than the call has does not compile, nor does a table that
/// serves another number of calls.
macro_rules! table {
    ($($name:ident => $function:path,)*) => {
        // A match compiles to compares, not to a table: there is no indirect branch here whose
        // target a program's number could steer in speculation.
        #[inline(always)]
        fn dispatch(regs: &mut Args, thread: Current<Thread>, number: u32) -> u64 {
            match number {
                $(nr::$name => {
                    const {
                        let takes = arity_of::<_, Current<Thread>, _>(&$function);
                        assert!(takes <= arguments(nr::$name));
                    };
                    $function.serve(regs, thread)
                })*
                _ => unknown(number),
            }
        }

        const _: () = {
            let served = [$(nr::$name),*].len();
            assert!(served == abi::syscalls::SERVED, "abi::syscalls has arguments for others");
        };
    };
}

/// Arguments of the call, which the table of all calls must say.
const fn arguments(number: u32) -> usize {
    match abi::syscalls::arity(number) {
        Some(arity) => arity,
        None => panic!("abi::syscalls has no arguments for this call"),
    }
}

table! {
    // --- the system
    uname => identity::uname,
    sethostname => identity::sethostname,
    setdomainname => identity::setdomainname,
    sysinfo => identity::sysinfo,
    // --- memory
    mmap => mapping::mmap,
    munmap => mapping::munmap,
    mprotect => mapping::mprotect,
    pkey_alloc => mapping::pkey_alloc,
    pkey_free => mapping::pkey_free,
    pkey_mprotect => mapping::pkey_mprotect,
    brk => mapping::brk,
    mremap => mapping::mremap,
    remap_file_pages => mapping::remap_file_pages,
    madvise => mapping::madvise,
    process_madvise => mapping::process_madvise,
    mlock => mapping::mlock,
    mlock2 => mapping::mlock2,
    munlock => mapping::munlock,
    mlockall => mapping::mlockall,
    munlockall => mapping::munlockall,
    mincore => mapping::mincore,
    msync => mapping::msync,
    mseal => mapping::mseal,
    // One node of memory, whatever policy there is for it.
    get_mempolicy => mapping::policy::get_mempolicy,
    set_mempolicy => mapping::policy::set_mempolicy,
    mbind => mapping::policy::mbind,
    // --- files
    read => fs::read,
    write => fs::write,
    readv => fs::readv,
    writev => fs::writev,
    pread64 => fs::pread64,
    pwrite64 => fs::pwrite64,
    preadv => fs::preadv,
    pwritev => fs::pwritev,
    preadv2 => fs::preadv2,
    pwritev2 => fs::pwritev2,
    lseek => fs::lseek,
    open => fs::open,
    openat => fs::openat,
    openat2 => fs::openat2,
    creat => fs::creat,
    close => fs::close,
    close_range => fs::close_range,
    dup => fs::dup,
    dup2 => fs::dup2,
    dup3 => fs::dup3,
    umask => fs::umask,
    memfd_create => fs::memfd_create,
    stat => fs::stat,
    lstat => fs::lstat,
    fstat => fs::fstat,
    newfstatat => fs::newfstatat,
    statx => fs::statx,
    access => fs::access,
    faccessat => fs::faccessat,
    faccessat2 => fs::faccessat2,
    statfs => fs::statfs,
    fstatfs => fs::fstatfs,
    getdents => fs::getdents,
    getdents64 => fs::getdents64,
    getcwd => fs::getcwd,
    chdir => fs::chdir,
    fchdir => fs::fchdir,
    chroot => fs::chroot,
    mkdir => fs::mkdir,
    mkdirat => fs::mkdirat,
    mknod => fs::mknod,
    mknodat => fs::mknodat,
    symlink => fs::symlink,
    symlinkat => fs::symlinkat,
    link => fs::link,
    linkat => fs::linkat,
    unlink => fs::unlink,
    rmdir => fs::rmdir,
    unlinkat => fs::unlinkat,
    rename => fs::rename,
    renameat => fs::renameat,
    renameat2 => fs::renameat2,
    readlink => fs::readlink,
    readlinkat => fs::readlinkat,
    chmod => fs::chmod,
    fchmod => fs::fchmod,
    fchmodat => fs::fchmodat,
    fchmodat2 => fs::fchmodat2,
    chown => fs::chown,
    lchown => fs::lchown,
    fchown => fs::fchown,
    fchownat => fs::fchownat,
    utimensat => fs::utimensat,
    utime => fs::utime,
    utimes => fs::utimes,
    futimesat => fs::futimesat,
    truncate => fs::truncate,
    ftruncate => fs::ftruncate,
    fallocate => fs::fallocate,
    fsync => fs::fsync,
    sync_file_range => fs::sync_file_range,
    sync => fs::sync,
    syncfs => fs::syncfs,
    fadvise64 => fs::fadvise64,
    readahead => fs::readahead,
    cachestat => mapping::cached::cachestat,
    map_shadow_stack => mapping::shadow_stack::map_shadow_stack,
    sendfile => io::copying::sendfile,
    copy_file_range => io::copying::copy_file_range,
    splice => io::copying::splice,
    tee => io::copying::tee,
    vmsplice => io::copying::vmsplice,
    setxattr => fs::setxattr,
    lsetxattr => fs::lsetxattr,
    fsetxattr => fs::fsetxattr,
    getxattr => fs::getxattr,
    lgetxattr => fs::lgetxattr,
    fgetxattr => fs::fgetxattr,
    listxattr => fs::listxattr,
    llistxattr => fs::llistxattr,
    flistxattr => fs::flistxattr,
    removexattr => fs::removexattr,
    lremovexattr => fs::lremovexattr,
    fremovexattr => fs::fremovexattr,
    inotify_init => fs::inotify_init,
    inotify_init1 => fs::inotify_init1,
    inotify_add_watch => fs::inotify_add_watch,
    inotify_rm_watch => fs::inotify_rm_watch,
    mount => fs::mount,
    umount2 => fs::umount2,
    pivot_root => fs::pivot_root,
    mount_setattr => fs::mount_setattr,
    fsopen => fs::fsopen,
    fsconfig => fs::fsconfig,
    fsmount => fs::fsmount,
    fspick => fs::fspick,
    open_tree => fs::open_tree,
    move_mount => fs::move_mount,
    statmount => fs::statmount,
    listmount => fs::listmount,
    fcntl => fs::fcntl,
    flock => fs::flock,
    ioctl => fs::ioctl,
    fdatasync => fs::fsync,
    io_setup => aio::io_setup,
    io_destroy => aio::io_destroy,
    io_submit => aio::io_submit,
    io_cancel => aio::io_cancel,
    io_getevents => aio::io_getevents,
    io_pgetevents => aio::io_pgetevents,
    name_to_handle_at => fs::name_to_handle_at,
    open_by_handle_at => fs::open_by_handle_at,
    // --- waiting and ipc
    pipe => io::pipe::sys_pipe,
    pipe2 => io::pipe::sys_pipe2,
    eventfd => io::eventfd::sys_eventfd,
    eventfd2 => io::eventfd::sys_eventfd2,
    signalfd => io::signalfd::sys_signalfd,
    signalfd4 => io::signalfd::sys_signalfd4,
    timerfd_create => io::timerfd::sys_timerfd_create,
    timerfd_settime => io::timerfd::sys_timerfd_settime,
    timerfd_gettime => io::timerfd::sys_timerfd_gettime,
    poll => io::select::sys_poll,
    ppoll => io::select::sys_ppoll,
    select => io::select::sys_select,
    pselect6 => io::select::sys_pselect6,
    epoll_wait => io::epoll::sys_epoll_wait,
    epoll_create => io::epoll::sys_epoll_create,
    epoll_create1 => io::epoll::sys_epoll_create1,
    epoll_ctl => io::epoll::sys_epoll_ctl,
    epoll_pwait => io::epoll::sys_epoll_pwait,
    epoll_pwait2 => io::epoll::sys_epoll_pwait2,
    shmget => ipc::sysv::shm::shmget,
    shmat => ipc::sysv::shm::shmat,
    shmdt => ipc::sysv::shm::shmdt,
    shmctl => ipc::sysv::shm::shmctl,
    semget => ipc::sysv::sem::semget,
    semop => ipc::sysv::sem::semop,
    semtimedop => ipc::sysv::sem::semtimedop,
    semctl => ipc::sysv::sem::semctl,
    msgget => ipc::sysv::msg::msgget,
    msgsnd => ipc::sysv::msg::msgsnd,
    msgrcv => ipc::sysv::msg::msgrcv,
    msgctl => ipc::sysv::msg::msgctl,
    mq_open => ipc::mqueue::mq_open,
    mq_unlink => ipc::mqueue::mq_unlink,
    mq_timedsend => ipc::mqueue::mq_timedsend,
    mq_timedreceive => ipc::mqueue::mq_timedreceive,
    mq_notify => ipc::mqueue::mq_notify,
    mq_getsetattr => ipc::mqueue::mq_getsetattr,
    // --- sockets
    socket => net::socket,
    socketpair => net::socketpair,
    bind => net::bind,
    connect => net::connect,
    listen => net::listen,
    accept => net::accept,
    accept4 => net::accept4,
    getsockname => net::getsockname,
    getpeername => net::getpeername,
    shutdown => net::shutdown,
    setsockopt => net::setsockopt,
    getsockopt => net::getsockopt,
    recvfrom => net::recvfrom,
    sendto => net::sendto,
    sendmsg => net::sendmsg,
    sendmmsg => net::sendmmsg,
    recvmsg => net::recvmsg,
    recvmmsg => net::recvmmsg,
    // --- processes
    landlock_create_ruleset => landlock::create_ruleset,
    landlock_add_rule => landlock::add_rule,
    landlock_restrict_self => landlock::restrict_self,
    lsm_get_self_attr => lsm::get_self_attr,
    lsm_set_self_attr => lsm::set_self_attr,
    lsm_list_modules => lsm::list_modules,
    seccomp => crate::seccomp::seccomp,
    ptrace => crate::ptrace::ptrace,
    getpid => groups::getpid,
    gettid => groups::gettid,
    getppid => groups::getppid,
    fork => processes::fork,
    vfork => processes::vfork,
    clone => processes::clone,
    clone3 => processes::clone3,
    unshare => process::fork::unshare,
    execve => crate::exec::call::execve,
    execveat => crate::exec::call::execveat,
    exit => processes::exit,
    exit_group => processes::exit_group,
    wait4 => wait::wait4,
    waitid => wait::waitid,
    futex => futex::futex,
    futex_waitv => futex::futex2::futex_waitv,
    futex_wake => futex::futex2::futex_wake,
    futex_wait => futex::futex2::futex_wait,
    futex_requeue => futex::futex2::futex_requeue,
    set_robust_list => futex::robust::set_robust_list,
    get_robust_list => futex::robust::get_robust_list,
    pidfd_open => process::pidfd::pidfd_open,
    pidfd_send_signal => signals::pidfd_send_signal,
    pidfd_getfd => crate::ptrace::getfd::pidfd_getfd,
    process_vm_readv => crate::ptrace::vm_transfer::process_vm_readv,
    process_vm_writev => crate::ptrace::vm_transfer::process_vm_writev,
    getrlimit => limits::getrlimit,
    setrlimit => limits::setrlimit,
    prlimit64 => limits::prlimit64,
    getrusage => process::usage::getrusage,
    times => process::usage::times,
    set_tid_address => prctl::set_tid_address,
    prctl => prctl::prctl,
    arch_prctl => prctl::arch_prctl,
    personality => prctl::personality,
    setpgid => groups::setpgid,
    getpgid => groups::getpgid,
    getpgrp => groups::getpgrp,
    setsid => groups::setsid,
    getsid => groups::getsid,
    // --- identity
    getuid => user_ids::getuid,
    geteuid => user_ids::geteuid,
    getgid => user_ids::getgid,
    getegid => user_ids::getegid,
    setuid => user_ids::setuid,
    setgid => user_ids::setgid,
    setreuid => user_ids::setreuid,
    setregid => user_ids::setregid,
    setresuid => user_ids::setresuid,
    setresgid => user_ids::setresgid,
    getresuid => user_ids::getresuid,
    getresgid => user_ids::getresgid,
    setfsuid => user_ids::setfsuid,
    setfsgid => user_ids::setfsgid,
    getgroups => user_ids::getgroups,
    setgroups => user_ids::setgroups,
    capget => capabilities::capget,
    capset => capabilities::capset,
    // --- the machine
    reboot => system::reboot,
    syslog => system::syslog,
    getrandom => system::getrandom,
    getcpu => system::getcpu,
    membarrier => membarrier::membarrier,
    acct => system::acct,
    vhangup => crate::tty::job::vhangup,
    kcmp => crate::ptrace::kcmp::kcmp,
    rseq => process::rseq::rseq,
    setns => system::setns,
    // --- signals
    rt_sigaction => signals::rt_sigaction,
    rt_sigprocmask => signals::rt_sigprocmask,
    rt_sigpending => signals::rt_sigpending,
    rt_sigsuspend => signals::rt_sigsuspend,
    rt_sigtimedwait => signals::rt_sigtimedwait,
    rt_sigqueueinfo => signals::rt_sigqueueinfo,
    rt_tgsigqueueinfo => signals::rt_tgsigqueueinfo,
    rt_sigreturn => signals::rt_sigreturn,
    sigaltstack => process::signal::altstack::sigaltstack,
    kill => signals::kill,
    tkill => signals::tkill,
    tgkill => signals::tgkill,
    pause => signals::pause,
    restart_syscall => process::restart::restart_syscall,
    // --- time and scheduling
    clock_gettime => clock::clock_gettime,
    clock_getres => clock::clock_getres,
    clock_settime => clock::clock_settime,
    clock_adjtime => clock::clock_adjtime,
    adjtimex => clock::adjtimex,
    gettimeofday => clock::gettimeofday,
    settimeofday => clock::settimeofday,
    time => clock::time,
    alarm => timers::interval::alarm,
    getitimer => timers::interval::getitimer,
    setitimer => timers::interval::setitimer,
    timer_create => timers::posix::timer_create,
    timer_settime => timers::posix::timer_settime,
    timer_gettime => timers::posix::timer_gettime,
    timer_getoverrun => timers::posix::timer_getoverrun,
    timer_delete => timers::posix::timer_delete,
    sched_yield => schedule::sched_yield,
    sched_getaffinity => schedule::sched_getaffinity,
    sched_setaffinity => schedule::sched_setaffinity,
    sched_get_priority_max => schedule::sched_get_priority_max,
    sched_get_priority_min => schedule::sched_get_priority_min,
    sched_setscheduler => schedule::sched_setscheduler,
    sched_getscheduler => schedule::sched_getscheduler,
    sched_setparam => schedule::sched_setparam,
    sched_getparam => schedule::sched_getparam,
    sched_setattr => schedule::sched_setattr,
    sched_getattr => schedule::sched_getattr,
    sched_rr_get_interval => schedule::sched_rr_get_interval,
    getpriority => schedule::getpriority,
    setpriority => schedule::setpriority,
    ioprio_get => schedule::ioprio_get,
    ioprio_set => schedule::ioprio_set,
    nanosleep => sleep::nanosleep,
    clock_nanosleep => sleep::clock_nanosleep,
}
