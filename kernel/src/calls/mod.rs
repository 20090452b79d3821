//! System calls: from the number in RAX to the function, and its result back. Families of calls
//! that are more than thin have floors of their own: `files`, `mapping`, `ptrace`, `timers`.

use core::sync::atomic::Ordering;

use abi::Errno;
use abi::syscalls::number as nr;
use machine::sync::is_zero;
use machine::task::Current;

use crate::aio;
use crate::base::args::{Args, Handler, arity_of};
use crate::base::tally;
use crate::files;
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
    read => files::read,
    write => files::write,
    readv => files::readv,
    writev => files::writev,
    pread64 => files::pread64,
    pwrite64 => files::pwrite64,
    preadv => files::preadv,
    pwritev => files::pwritev,
    preadv2 => files::preadv2,
    pwritev2 => files::pwritev2,
    lseek => files::lseek,
    open => files::open,
    openat => files::openat,
    openat2 => files::openat2,
    creat => files::creat,
    close => files::close,
    close_range => files::close_range,
    dup => files::dup,
    dup2 => files::dup2,
    dup3 => files::dup3,
    umask => files::umask,
    memfd_create => files::memfd_create,
    stat => files::stat,
    lstat => files::lstat,
    fstat => files::fstat,
    newfstatat => files::newfstatat,
    statx => files::statx,
    access => files::access,
    faccessat => files::faccessat,
    faccessat2 => files::faccessat2,
    statfs => files::statfs,
    fstatfs => files::fstatfs,
    getdents => files::getdents,
    getdents64 => files::getdents64,
    getcwd => files::getcwd,
    chdir => files::chdir,
    fchdir => files::fchdir,
    chroot => files::chroot,
    mkdir => files::mkdir,
    mkdirat => files::mkdirat,
    mknod => files::mknod,
    mknodat => files::mknodat,
    symlink => files::symlink,
    symlinkat => files::symlinkat,
    link => files::link,
    linkat => files::linkat,
    unlink => files::unlink,
    rmdir => files::rmdir,
    unlinkat => files::unlinkat,
    rename => files::rename,
    renameat => files::renameat,
    renameat2 => files::renameat2,
    readlink => files::readlink,
    readlinkat => files::readlinkat,
    chmod => files::chmod,
    fchmod => files::fchmod,
    fchmodat => files::fchmodat,
    fchmodat2 => files::fchmodat2,
    chown => files::chown,
    lchown => files::lchown,
    fchown => files::fchown,
    fchownat => files::fchownat,
    utimensat => files::utimensat,
    utime => files::utime,
    utimes => files::utimes,
    futimesat => files::futimesat,
    truncate => files::truncate,
    ftruncate => files::ftruncate,
    fallocate => files::fallocate,
    fsync => files::fsync,
    sync_file_range => files::sync_file_range,
    sync => files::sync,
    syncfs => files::syncfs,
    fadvise64 => files::fadvise64,
    readahead => files::readahead,
    cachestat => mapping::cached::cachestat,
    map_shadow_stack => mapping::shadow_stack::map_shadow_stack,
    sendfile => io::copying::sendfile,
    copy_file_range => io::copying::copy_file_range,
    splice => io::copying::splice,
    tee => io::copying::tee,
    vmsplice => io::copying::vmsplice,
    setxattr => files::setxattr,
    lsetxattr => files::lsetxattr,
    fsetxattr => files::fsetxattr,
    getxattr => files::getxattr,
    lgetxattr => files::lgetxattr,
    fgetxattr => files::fgetxattr,
    listxattr => files::listxattr,
    llistxattr => files::llistxattr,
    flistxattr => files::flistxattr,
    removexattr => files::removexattr,
    lremovexattr => files::lremovexattr,
    fremovexattr => files::fremovexattr,
    inotify_init => files::inotify_init,
    inotify_init1 => files::inotify_init1,
    inotify_add_watch => files::inotify_add_watch,
    inotify_rm_watch => files::inotify_rm_watch,
    mount => files::mount,
    umount2 => files::umount2,
    pivot_root => files::pivot_root,
    mount_setattr => files::mount_setattr,
    fsopen => files::fsopen,
    fsconfig => files::fsconfig,
    fsmount => files::fsmount,
    fspick => files::fspick,
    open_tree => files::open_tree,
    move_mount => files::move_mount,
    statmount => files::statmount,
    listmount => files::listmount,
    fcntl => files::fcntl,
    flock => files::flock,
    ioctl => files::ioctl,
    fdatasync => files::fsync,
    io_setup => aio::io_setup,
    io_destroy => aio::io_destroy,
    io_submit => aio::io_submit,
    io_cancel => aio::io_cancel,
    io_getevents => aio::io_getevents,
    io_pgetevents => aio::io_pgetevents,
    name_to_handle_at => files::name_to_handle_at,
    open_by_handle_at => files::open_by_handle_at,
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
