//! System calls by number (syscalls(2), x86-64): their names, and the arguments of those that Limen
//! serves.
//!
//! The one table: the kernel's match (`kernel/src/calls`) does not compile where it serves another
//! set or takes more arguments; the list of calls in the manual, names in summaries and traces, and
//! the fuzzers' choice of arguments are made from it.

/// The call of this number, if Linux has one.
#[must_use]
pub fn call(number: u32) -> Option<&'static Call> {
    let at = CALLS.binary_search_by_key(&number, |call| call.number).ok()?;
    Some(&CALLS[at])
}

/// The name of system call `number`, if Linux has one.
#[must_use]
pub fn name(number: u32) -> Option<&'static str> {
    call(number).map(|call| call.name)
}

/// How many arguments the call has that Limen serves by this number; `None` if it serves none.
#[must_use]
pub const fn arity(number: u32) -> Option<usize> {
    let mut i = 0;
    while i < CALLS.len() {
        if CALLS[i].number == number {
            return match CALLS[i].arguments {
                Some(arguments) => Some(arguments.len()),
                None => None,
            };
        }
        i += 1;
    }
    None
}

/// How many calls Limen serves.
pub const SERVED: usize = {
    let (mut i, mut served) = (0, 0);
    while i < CALLS.len() {
        served += CALLS[i].arguments.is_some() as usize;
        i += 1;
    }
    served
};

/// One more than the largest number in use.
pub const END: usize = 470;

/// What an argument is, as the manual has it (section 2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArgumentKind {
    /// A descriptor, or a number in its place (`AT_FDCWD`).
    Fd,
    /// A NUL-terminated string.
    Path,
    /// Another place in the program's memory.
    Pointer,
    /// A number of bytes or of elements.
    Size,
    /// A number of 32 bits.
    Int,
    /// A number of 64 bits, or what a command makes of it.
    Long,
    /// Bits.
    Flags,
    /// Permission bits.
    Mode,
    /// A process, thread or group.
    Pid,
}

/// A system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// Its number.
    pub number: u32,
    /// Its name in the manual.
    pub name: &'static str,
    /// The names and kinds of its arguments; `None` for a call that Limen does not serve.
    pub arguments: Option<&'static [(&'static str, ArgumentKind)]>,
}

macro_rules! names {
    (@arguments) => { None };
    (@arguments ($($argument:ident: $kind:ident),*)) => {
        Some(&[$((stringify!($argument), ArgumentKind::$kind)),*])
    };
    ($($name:ident $number:ident $(($($argument:ident: $kind:ident),*))?)*) => {
        /// All calls, in the order of their numbers.
        pub const CALLS: &[Call] = &[$(Call {
            number: linux_raw_sys::general::$number,
            name: stringify!($name),
            arguments: names!(@arguments $(($($argument: $kind),*))?),
        }),*];

        /// The numbers by name.
        #[expect(non_upper_case_globals, missing_docs, reason = "the manual's names")]
        pub mod number {
            $(pub const $name: u32 = linux_raw_sys::general::$number;)*
        }
    };
}

names! {
    read __NR_read (fd: Fd, buffer: Pointer, count: Size)
    write __NR_write (fd: Fd, buffer: Pointer, count: Size)
    open __NR_open (path: Path, flags: Flags, mode: Mode)
    close __NR_close (fd: Fd)
    stat __NR_stat (path: Path, stat: Pointer)
    fstat __NR_fstat (fd: Fd, stat: Pointer)
    lstat __NR_lstat (path: Path, stat: Pointer)
    poll __NR_poll (fds: Pointer, count: Size, timeout_ms: Int)
    lseek __NR_lseek (fd: Fd, offset: Long, whence: Int)
    mmap __NR_mmap (
        address: Pointer, length: Size, protection: Flags, flags: Flags, fd: Fd, offset: Long
    )
    mprotect __NR_mprotect (address: Pointer, length: Size, protection: Flags)
    munmap __NR_munmap (address: Pointer, length: Size)
    brk __NR_brk (address: Pointer)
    rt_sigaction __NR_rt_sigaction (signal: Int, action: Pointer, old: Pointer, set_size: Size)
    rt_sigprocmask __NR_rt_sigprocmask (how: Int, set: Pointer, old: Pointer, set_size: Size)
    rt_sigreturn __NR_rt_sigreturn ()
    ioctl __NR_ioctl (fd: Fd, request: Flags, argument: Long)
    pread64 __NR_pread64 (fd: Fd, buffer: Pointer, count: Size, offset: Long)
    pwrite64 __NR_pwrite64 (fd: Fd, buffer: Pointer, count: Size, offset: Long)
    readv __NR_readv (fd: Fd, vector: Pointer, count: Size)
    writev __NR_writev (fd: Fd, vector: Pointer, count: Size)
    access __NR_access (path: Path, mode: Mode)
    pipe __NR_pipe (fds: Pointer)
    select __NR_select (
        count: Int, read: Pointer, write: Pointer, except: Pointer, timeout: Pointer
    )
    sched_yield __NR_sched_yield ()
    mremap __NR_mremap (
        old_address: Pointer, old_length: Size, new_length: Size, flags: Flags, new_address: Pointer
    )
    msync __NR_msync (address: Pointer, length: Size, flags: Flags)
    mincore __NR_mincore (address: Pointer, length: Size, pages: Pointer)
    madvise __NR_madvise (address: Pointer, length: Size, advice: Int)
    shmget __NR_shmget (key: Int, length: Size, flags: Flags)
    shmat __NR_shmat (id: Int, address: Pointer, flags: Flags)
    shmctl __NR_shmctl (id: Int, command: Int, buffer: Pointer)
    dup __NR_dup (fd: Fd)
    dup2 __NR_dup2 (old: Fd, new: Fd)
    pause __NR_pause ()
    nanosleep __NR_nanosleep (request: Pointer, remaining: Pointer)
    getitimer __NR_getitimer (which: Int, value: Pointer)
    alarm __NR_alarm (seconds: Int)
    setitimer __NR_setitimer (which: Int, value: Pointer, old: Pointer)
    getpid __NR_getpid ()
    sendfile __NR_sendfile (to: Fd, from: Fd, offset: Pointer, count: Size)
    socket __NR_socket (family: Int, kind: Int, protocol: Int)
    connect __NR_connect (fd: Fd, address: Pointer, length: Size)
    accept __NR_accept (fd: Fd, address: Pointer, length: Pointer)
    sendto __NR_sendto (
        fd: Fd, buffer: Pointer, count: Size, flags: Flags, address: Pointer, length: Size
    )
    recvfrom __NR_recvfrom (
        fd: Fd, buffer: Pointer, count: Size, flags: Flags, address: Pointer, length: Pointer
    )
    sendmsg __NR_sendmsg (fd: Fd, message: Pointer, flags: Flags)
    recvmsg __NR_recvmsg (fd: Fd, message: Pointer, flags: Flags)
    shutdown __NR_shutdown (fd: Fd, how: Int)
    bind __NR_bind (fd: Fd, address: Pointer, length: Size)
    listen __NR_listen (fd: Fd, backlog: Int)
    getsockname __NR_getsockname (fd: Fd, address: Pointer, length: Pointer)
    getpeername __NR_getpeername (fd: Fd, address: Pointer, length: Pointer)
    socketpair __NR_socketpair (family: Int, kind: Int, protocol: Int, fds: Pointer)
    setsockopt __NR_setsockopt (fd: Fd, level: Int, option: Int, value: Pointer, length: Size)
    getsockopt __NR_getsockopt (fd: Fd, level: Int, option: Int, value: Pointer, length: Pointer)
    clone __NR_clone (
        flags: Flags, stack: Pointer, parent_tid: Pointer, child_tid: Pointer, tls: Pointer
    )
    fork __NR_fork ()
    vfork __NR_vfork ()
    execve __NR_execve (path: Path, arguments: Pointer, environment: Pointer)
    exit __NR_exit (status: Int)
    wait4 __NR_wait4 (pid: Pid, status: Pointer, options: Flags, usage: Pointer)
    kill __NR_kill (pid: Pid, signal: Int)
    uname __NR_uname (name: Pointer)
    semget __NR_semget (key: Int, count: Int, flags: Flags)
    semop __NR_semop (id: Int, operations: Pointer, count: Size)
    semctl __NR_semctl (id: Int, number: Int, command: Int, argument: Long)
    shmdt __NR_shmdt (address: Pointer)
    msgget __NR_msgget (key: Int, flags: Flags)
    msgsnd __NR_msgsnd (id: Int, message: Pointer, size: Size, flags: Flags)
    msgrcv __NR_msgrcv (id: Int, message: Pointer, size: Size, kind: Long, flags: Flags)
    msgctl __NR_msgctl (id: Int, command: Int, buffer: Pointer)
    fcntl __NR_fcntl (fd: Fd, command: Int, argument: Long)
    flock __NR_flock (fd: Fd, operation: Flags)
    fsync __NR_fsync (fd: Fd)
    fdatasync __NR_fdatasync (fd: Fd)
    truncate __NR_truncate (path: Path, length: Long)
    ftruncate __NR_ftruncate (fd: Fd, length: Long)
    getdents __NR_getdents (fd: Fd, buffer: Pointer, count: Size)
    getcwd __NR_getcwd (buffer: Pointer, size: Size)
    chdir __NR_chdir (path: Path)
    fchdir __NR_fchdir (fd: Fd)
    rename __NR_rename (old: Path, new: Path)
    mkdir __NR_mkdir (path: Path, mode: Mode)
    rmdir __NR_rmdir (path: Path)
    creat __NR_creat (path: Path, mode: Mode)
    link __NR_link (old: Path, new: Path)
    unlink __NR_unlink (path: Path)
    symlink __NR_symlink (target: Path, path: Path)
    readlink __NR_readlink (path: Path, buffer: Pointer, size: Size)
    chmod __NR_chmod (path: Path, mode: Mode)
    fchmod __NR_fchmod (fd: Fd, mode: Mode)
    chown __NR_chown (path: Path, owner: Int, group: Int)
    fchown __NR_fchown (fd: Fd, owner: Int, group: Int)
    lchown __NR_lchown (path: Path, owner: Int, group: Int)
    umask __NR_umask (mask: Mode)
    gettimeofday __NR_gettimeofday (time: Pointer, zone: Pointer)
    getrlimit __NR_getrlimit (resource: Int, limit: Pointer)
    getrusage __NR_getrusage (who: Int, usage: Pointer)
    sysinfo __NR_sysinfo (info: Pointer)
    times __NR_times (buffer: Pointer)
    ptrace __NR_ptrace (request: Int, pid: Pid, address: Pointer, data: Pointer)
    getuid __NR_getuid ()
    syslog __NR_syslog (action: Int, buffer: Pointer, length: Size)
    getgid __NR_getgid ()
    setuid __NR_setuid (uid: Int)
    setgid __NR_setgid (gid: Int)
    geteuid __NR_geteuid ()
    getegid __NR_getegid ()
    setpgid __NR_setpgid (pid: Pid, group: Pid)
    getppid __NR_getppid ()
    getpgrp __NR_getpgrp ()
    setsid __NR_setsid ()
    setreuid __NR_setreuid (real: Int, effective: Int)
    setregid __NR_setregid (real: Int, effective: Int)
    getgroups __NR_getgroups (count: Int, groups: Pointer)
    setgroups __NR_setgroups (count: Int, groups: Pointer)
    setresuid __NR_setresuid (real: Int, effective: Int, saved: Int)
    getresuid __NR_getresuid (real: Pointer, effective: Pointer, saved: Pointer)
    setresgid __NR_setresgid (real: Int, effective: Int, saved: Int)
    getresgid __NR_getresgid (real: Pointer, effective: Pointer, saved: Pointer)
    getpgid __NR_getpgid (pid: Pid)
    setfsuid __NR_setfsuid (uid: Int)
    setfsgid __NR_setfsgid (gid: Int)
    getsid __NR_getsid (pid: Pid)
    capget __NR_capget (header: Pointer, data: Pointer)
    capset __NR_capset (header: Pointer, data: Pointer)
    rt_sigpending __NR_rt_sigpending (set: Pointer, set_size: Size)
    rt_sigtimedwait __NR_rt_sigtimedwait (
        set: Pointer, info: Pointer, timeout: Pointer, set_size: Size
    )
    rt_sigqueueinfo __NR_rt_sigqueueinfo (pid: Pid, signal: Int, info: Pointer)
    rt_sigsuspend __NR_rt_sigsuspend (set: Pointer, set_size: Size)
    sigaltstack __NR_sigaltstack (new: Pointer, old: Pointer)
    utime __NR_utime (path: Path, times: Pointer)
    mknod __NR_mknod (path: Path, mode: Mode, device: Long)
    uselib __NR_uselib
    personality __NR_personality (persona: Flags)
    ustat __NR_ustat
    statfs __NR_statfs (path: Path, buffer: Pointer)
    fstatfs __NR_fstatfs (fd: Fd, buffer: Pointer)
    sysfs __NR_sysfs
    getpriority __NR_getpriority (which: Int, who: Int)
    setpriority __NR_setpriority (which: Int, who: Int, priority: Int)
    sched_setparam __NR_sched_setparam (pid: Pid, parameter: Pointer)
    sched_getparam __NR_sched_getparam (pid: Pid, parameter: Pointer)
    sched_setscheduler __NR_sched_setscheduler (pid: Pid, policy: Int, parameter: Pointer)
    sched_getscheduler __NR_sched_getscheduler (pid: Pid)
    sched_get_priority_max __NR_sched_get_priority_max (policy: Int)
    sched_get_priority_min __NR_sched_get_priority_min (policy: Int)
    sched_rr_get_interval __NR_sched_rr_get_interval (pid: Pid, interval: Pointer)
    mlock __NR_mlock (address: Pointer, length: Size)
    munlock __NR_munlock (address: Pointer, length: Size)
    mlockall __NR_mlockall (flags: Flags)
    munlockall __NR_munlockall ()
    vhangup __NR_vhangup ()
    modify_ldt __NR_modify_ldt
    pivot_root __NR_pivot_root (new: Path, old: Path)
    _sysctl __NR__sysctl
    prctl __NR_prctl (
        option: Int, argument2: Long, argument3: Long, argument4: Long, argument5: Long
    )
    arch_prctl __NR_arch_prctl (code: Int, address: Pointer)
    adjtimex __NR_adjtimex (buffer: Pointer)
    setrlimit __NR_setrlimit (resource: Int, limit: Pointer)
    chroot __NR_chroot (path: Path)
    sync __NR_sync ()
    acct __NR_acct (path: Path)
    settimeofday __NR_settimeofday (time: Pointer, zone: Pointer)
    mount __NR_mount (source: Path, target: Path, kind: Path, flags: Flags, data: Pointer)
    umount2 __NR_umount2 (target: Path, flags: Flags)
    swapon __NR_swapon
    swapoff __NR_swapoff
    reboot __NR_reboot (magic: Int, magic2: Int, command: Int, argument: Pointer)
    sethostname __NR_sethostname (name: Pointer, length: Size)
    setdomainname __NR_setdomainname (name: Pointer, length: Size)
    iopl __NR_iopl
    ioperm __NR_ioperm
    create_module __NR_create_module
    init_module __NR_init_module
    delete_module __NR_delete_module
    get_kernel_syms __NR_get_kernel_syms
    query_module __NR_query_module
    quotactl __NR_quotactl
    nfsservctl __NR_nfsservctl
    getpmsg __NR_getpmsg
    putpmsg __NR_putpmsg
    afs_syscall __NR_afs_syscall
    tuxcall __NR_tuxcall
    security __NR_security
    gettid __NR_gettid ()
    readahead __NR_readahead (fd: Fd, offset: Long, count: Size)
    setxattr __NR_setxattr (path: Path, name: Path, value: Pointer, size: Size, flags: Flags)
    lsetxattr __NR_lsetxattr (path: Path, name: Path, value: Pointer, size: Size, flags: Flags)
    fsetxattr __NR_fsetxattr (fd: Fd, name: Path, value: Pointer, size: Size, flags: Flags)
    getxattr __NR_getxattr (path: Path, name: Path, value: Pointer, size: Size)
    lgetxattr __NR_lgetxattr (path: Path, name: Path, value: Pointer, size: Size)
    fgetxattr __NR_fgetxattr (fd: Fd, name: Path, value: Pointer, size: Size)
    listxattr __NR_listxattr (path: Path, list: Pointer, size: Size)
    llistxattr __NR_llistxattr (path: Path, list: Pointer, size: Size)
    flistxattr __NR_flistxattr (fd: Fd, list: Pointer, size: Size)
    removexattr __NR_removexattr (path: Path, name: Path)
    lremovexattr __NR_lremovexattr (path: Path, name: Path)
    fremovexattr __NR_fremovexattr (fd: Fd, name: Path)
    tkill __NR_tkill (tid: Pid, signal: Int)
    time __NR_time (at: Pointer)
    futex __NR_futex (
        word: Pointer, operation: Flags, value: Int, timeout: Pointer, word2: Pointer, value3: Int
    )
    sched_setaffinity __NR_sched_setaffinity (pid: Pid, size: Size, mask: Pointer)
    sched_getaffinity __NR_sched_getaffinity (pid: Pid, size: Size, mask: Pointer)
    set_thread_area __NR_set_thread_area
    io_setup __NR_io_setup (count: Int, context: Pointer)
    io_destroy __NR_io_destroy (context: Pointer)
    io_getevents __NR_io_getevents (
        context: Pointer, least: Long, most: Long, events: Pointer, timeout: Pointer
    )
    io_submit __NR_io_submit (context: Pointer, count: Long, requests: Pointer)
    io_cancel __NR_io_cancel (context: Pointer, request: Pointer, event: Pointer)
    get_thread_area __NR_get_thread_area
    lookup_dcookie __NR_lookup_dcookie
    epoll_create __NR_epoll_create (size: Int)
    epoll_ctl_old __NR_epoll_ctl_old
    epoll_wait_old __NR_epoll_wait_old
    remap_file_pages __NR_remap_file_pages (
        start: Pointer, length: Size, protection: Flags, page_offset: Size, flags: Flags
    )
    getdents64 __NR_getdents64 (fd: Fd, buffer: Pointer, count: Size)
    set_tid_address __NR_set_tid_address (at: Pointer)
    restart_syscall __NR_restart_syscall ()
    semtimedop __NR_semtimedop (id: Int, operations: Pointer, count: Size, timeout: Pointer)
    fadvise64 __NR_fadvise64 (fd: Fd, offset: Long, length: Long, advice: Int)
    timer_create __NR_timer_create (clock: Int, event: Pointer, id: Pointer)
    timer_settime __NR_timer_settime (id: Int, flags: Flags, value: Pointer, old: Pointer)
    timer_gettime __NR_timer_gettime (id: Int, value: Pointer)
    timer_getoverrun __NR_timer_getoverrun (id: Int)
    timer_delete __NR_timer_delete (id: Int)
    clock_settime __NR_clock_settime (clock: Int, time: Pointer)
    clock_gettime __NR_clock_gettime (clock: Int, time: Pointer)
    clock_getres __NR_clock_getres (clock: Int, time: Pointer)
    clock_nanosleep __NR_clock_nanosleep (
        clock: Int, flags: Flags, request: Pointer, remaining: Pointer
    )
    exit_group __NR_exit_group (status: Int)
    epoll_wait __NR_epoll_wait (epoll: Fd, events: Pointer, count: Int, timeout_ms: Int)
    epoll_ctl __NR_epoll_ctl (epoll: Fd, operation: Int, fd: Fd, event: Pointer)
    tgkill __NR_tgkill (group: Pid, tid: Pid, signal: Int)
    utimes __NR_utimes (path: Path, times: Pointer)
    vserver __NR_vserver
    mbind __NR_mbind (
        address: Pointer, length: Size, mode: Int, nodes: Pointer, node_max: Size, flags: Flags
    )
    set_mempolicy __NR_set_mempolicy (mode: Int, nodes: Pointer, node_max: Size)
    get_mempolicy __NR_get_mempolicy (
        mode: Pointer, nodes: Pointer, node_max: Size, address: Pointer, flags: Flags
    )
    mq_open __NR_mq_open (name: Path, flags: Flags, mode: Mode, attributes: Pointer)
    mq_unlink __NR_mq_unlink (name: Path)
    mq_timedsend __NR_mq_timedsend (
        fd: Fd, message: Pointer, size: Size, priority: Int, timeout: Pointer
    )
    mq_timedreceive __NR_mq_timedreceive (
        fd: Fd, message: Pointer, size: Size, priority: Pointer, timeout: Pointer
    )
    mq_notify __NR_mq_notify (fd: Fd, event: Pointer)
    mq_getsetattr __NR_mq_getsetattr (fd: Fd, new: Pointer, old: Pointer)
    kexec_load __NR_kexec_load
    waitid __NR_waitid (kind: Int, id: Pid, info: Pointer, options: Flags, usage: Pointer)
    add_key __NR_add_key
    request_key __NR_request_key
    keyctl __NR_keyctl
    ioprio_set __NR_ioprio_set (which: Int, who: Int, priority: Int)
    ioprio_get __NR_ioprio_get (which: Int, who: Int)
    inotify_init __NR_inotify_init ()
    inotify_add_watch __NR_inotify_add_watch (fd: Fd, path: Path, mask: Flags)
    inotify_rm_watch __NR_inotify_rm_watch (fd: Fd, watch: Int)
    migrate_pages __NR_migrate_pages
    openat __NR_openat (directory: Fd, path: Path, flags: Flags, mode: Mode)
    mkdirat __NR_mkdirat (directory: Fd, path: Path, mode: Mode)
    mknodat __NR_mknodat (directory: Fd, path: Path, mode: Mode, device: Long)
    fchownat __NR_fchownat (directory: Fd, path: Path, owner: Int, group: Int, flags: Flags)
    futimesat __NR_futimesat (directory: Fd, path: Path, times: Pointer)
    newfstatat __NR_newfstatat (directory: Fd, path: Path, stat: Pointer, flags: Flags)
    unlinkat __NR_unlinkat (directory: Fd, path: Path, flags: Flags)
    renameat __NR_renameat (old_directory: Fd, old: Path, new_directory: Fd, new: Path)
    linkat __NR_linkat (old_directory: Fd, old: Path, new_directory: Fd, new: Path, flags: Flags)
    symlinkat __NR_symlinkat (target: Path, directory: Fd, path: Path)
    readlinkat __NR_readlinkat (directory: Fd, path: Path, buffer: Pointer, size: Size)
    fchmodat __NR_fchmodat (directory: Fd, path: Path, mode: Mode)
    faccessat __NR_faccessat (directory: Fd, path: Path, mode: Mode)
    pselect6 __NR_pselect6 (
        count: Int, read: Pointer, write: Pointer, except: Pointer, timeout: Pointer, mask: Pointer
    )
    ppoll __NR_ppoll (fds: Pointer, count: Size, timeout: Pointer, mask: Pointer, set_size: Size)
    unshare __NR_unshare (flags: Flags)
    set_robust_list __NR_set_robust_list (head: Pointer, length: Size)
    get_robust_list __NR_get_robust_list (pid: Pid, head: Pointer, length: Pointer)
    splice __NR_splice (
        from: Fd, from_offset: Pointer, to: Fd, to_offset: Pointer, count: Size, flags: Flags
    )
    tee __NR_tee (from: Fd, to: Fd, count: Size, flags: Flags)
    sync_file_range __NR_sync_file_range (fd: Fd, offset: Long, length: Long, flags: Flags)
    vmsplice __NR_vmsplice (fd: Fd, vector: Pointer, count: Size, flags: Flags)
    move_pages __NR_move_pages
    utimensat __NR_utimensat (directory: Fd, path: Path, times: Pointer, flags: Flags)
    epoll_pwait __NR_epoll_pwait (
        epoll: Fd, events: Pointer, count: Int, timeout_ms: Int, mask: Pointer, set_size: Size
    )
    signalfd __NR_signalfd (fd: Fd, mask: Pointer, set_size: Size)
    timerfd_create __NR_timerfd_create (clock: Int, flags: Flags)
    eventfd __NR_eventfd (value: Int)
    fallocate __NR_fallocate (fd: Fd, mode: Flags, offset: Long, length: Long)
    timerfd_settime __NR_timerfd_settime (fd: Fd, flags: Flags, value: Pointer, old: Pointer)
    timerfd_gettime __NR_timerfd_gettime (fd: Fd, value: Pointer)
    accept4 __NR_accept4 (fd: Fd, address: Pointer, length: Pointer, flags: Flags)
    signalfd4 __NR_signalfd4 (fd: Fd, mask: Pointer, set_size: Size, flags: Flags)
    eventfd2 __NR_eventfd2 (value: Int, flags: Flags)
    epoll_create1 __NR_epoll_create1 (flags: Flags)
    dup3 __NR_dup3 (old: Fd, new: Fd, flags: Flags)
    pipe2 __NR_pipe2 (fds: Pointer, flags: Flags)
    inotify_init1 __NR_inotify_init1 (flags: Flags)
    preadv __NR_preadv (fd: Fd, vector: Pointer, count: Size, offset: Long, offset_high: Long)
    pwritev __NR_pwritev (fd: Fd, vector: Pointer, count: Size, offset: Long, offset_high: Long)
    rt_tgsigqueueinfo __NR_rt_tgsigqueueinfo (group: Pid, tid: Pid, signal: Int, info: Pointer)
    perf_event_open __NR_perf_event_open
    recvmmsg __NR_recvmmsg (fd: Fd, messages: Pointer, count: Size, flags: Flags, timeout: Pointer)
    fanotify_init __NR_fanotify_init
    fanotify_mark __NR_fanotify_mark
    prlimit64 __NR_prlimit64 (pid: Pid, resource: Int, new: Pointer, old: Pointer)
    name_to_handle_at __NR_name_to_handle_at (
        directory: Fd, path: Path, handle: Pointer, mount: Pointer, flags: Flags
    )
    open_by_handle_at __NR_open_by_handle_at (mount: Fd, handle: Pointer, flags: Flags)
    clock_adjtime __NR_clock_adjtime (clock: Int, buffer: Pointer)
    syncfs __NR_syncfs (fd: Fd)
    sendmmsg __NR_sendmmsg (fd: Fd, messages: Pointer, count: Size, flags: Flags)
    setns __NR_setns (fd: Fd, kind: Flags)
    getcpu __NR_getcpu (cpu: Pointer, node: Pointer, cache: Pointer)
    process_vm_readv __NR_process_vm_readv (
        pid: Pid, local: Pointer, local_count: Size, remote: Pointer, remote_count: Size,
        flags: Flags
    )
    process_vm_writev __NR_process_vm_writev (
        pid: Pid, local: Pointer, local_count: Size, remote: Pointer, remote_count: Size,
        flags: Flags
    )
    kcmp __NR_kcmp (pid1: Pid, pid2: Pid, kind: Int, index1: Long, index2: Long)
    finit_module __NR_finit_module
    sched_setattr __NR_sched_setattr (pid: Pid, attribute: Pointer, flags: Flags)
    sched_getattr __NR_sched_getattr (pid: Pid, attribute: Pointer, size: Size, flags: Flags)
    renameat2 __NR_renameat2 (
        old_directory: Fd, old: Path, new_directory: Fd, new: Path, flags: Flags
    )
    seccomp __NR_seccomp (operation: Int, flags: Flags, argument: Pointer)
    getrandom __NR_getrandom (buffer: Pointer, count: Size, flags: Flags)
    memfd_create __NR_memfd_create (name: Path, flags: Flags)
    kexec_file_load __NR_kexec_file_load
    bpf __NR_bpf
    execveat __NR_execveat (
        directory: Fd, path: Path, arguments: Pointer, environment: Pointer, flags: Flags
    )
    userfaultfd __NR_userfaultfd
    membarrier __NR_membarrier (command: Int, flags: Flags, cpu: Int)
    mlock2 __NR_mlock2 (address: Pointer, length: Size, flags: Flags)
    copy_file_range __NR_copy_file_range (
        from: Fd, from_offset: Pointer, to: Fd, to_offset: Pointer, count: Size, flags: Flags
    )
    preadv2 __NR_preadv2 (
        fd: Fd, vector: Pointer, count: Size, offset: Long, offset_high: Long, flags: Flags
    )
    pwritev2 __NR_pwritev2 (
        fd: Fd, vector: Pointer, count: Size, offset: Long, offset_high: Long, flags: Flags
    )
    pkey_mprotect __NR_pkey_mprotect (address: Pointer, length: Size, protection: Flags, key: Int)
    pkey_alloc __NR_pkey_alloc (flags: Flags, rights: Flags)
    pkey_free __NR_pkey_free (key: Int)
    statx __NR_statx (directory: Fd, path: Path, flags: Flags, mask: Flags, buffer: Pointer)
    io_pgetevents __NR_io_pgetevents (
        context: Pointer, least: Long, most: Long, events: Pointer, timeout: Pointer, mask: Pointer
    )
    rseq __NR_rseq (area: Pointer, length: Size, flags: Flags, signature: Int)
    uretprobe __NR_uretprobe
    pidfd_send_signal __NR_pidfd_send_signal (fd: Fd, signal: Int, info: Pointer, flags: Flags)
    io_uring_setup __NR_io_uring_setup
    io_uring_enter __NR_io_uring_enter
    io_uring_register __NR_io_uring_register
    open_tree __NR_open_tree (directory: Fd, path: Path, flags: Flags)
    move_mount __NR_move_mount (
        from_directory: Fd, from: Path, to_directory: Fd, to: Path, flags: Flags
    )
    fsopen __NR_fsopen (kind: Path, flags: Flags)
    fsconfig __NR_fsconfig (fd: Fd, command: Int, key: Pointer, value: Pointer, aux: Int)
    fsmount __NR_fsmount (fd: Fd, flags: Flags, attributes: Flags)
    fspick __NR_fspick (directory: Fd, path: Path, flags: Flags)
    pidfd_open __NR_pidfd_open (pid: Pid, flags: Flags)
    clone3 __NR_clone3 (arguments: Pointer, size: Size)
    close_range __NR_close_range (first: Fd, last: Fd, flags: Flags)
    openat2 __NR_openat2 (directory: Fd, path: Path, how: Pointer, size: Size)
    pidfd_getfd __NR_pidfd_getfd (pidfd: Fd, fd: Fd, flags: Flags)
    faccessat2 __NR_faccessat2 (directory: Fd, path: Path, mode: Mode, flags: Flags)
    process_madvise __NR_process_madvise (
        pidfd: Fd, vector: Pointer, count: Size, advice: Int, flags: Flags
    )
    epoll_pwait2 __NR_epoll_pwait2 (
        epoll: Fd, events: Pointer, count: Int, timeout: Pointer, mask: Pointer, set_size: Size
    )
    mount_setattr __NR_mount_setattr (
        directory: Fd, path: Path, flags: Flags, attributes: Pointer, size: Size
    )
    quotactl_fd __NR_quotactl_fd
    landlock_create_ruleset __NR_landlock_create_ruleset (
        attribute: Pointer, size: Size, flags: Flags
    )
    landlock_add_rule __NR_landlock_add_rule (ruleset: Fd, kind: Int, rule: Pointer, flags: Flags)
    landlock_restrict_self __NR_landlock_restrict_self (ruleset: Fd, flags: Flags)
    memfd_secret __NR_memfd_secret
    process_mrelease __NR_process_mrelease
    futex_waitv __NR_futex_waitv (
        waiters: Pointer, count: Size, flags: Flags, timeout: Pointer, clock: Int
    )
    set_mempolicy_home_node __NR_set_mempolicy_home_node
    cachestat __NR_cachestat (fd: Fd, range: Pointer, numbers: Pointer, flags: Flags)
    fchmodat2 __NR_fchmodat2 (directory: Fd, path: Path, mode: Mode, flags: Flags)
    map_shadow_stack __NR_map_shadow_stack (address: Pointer, size: Size, flags: Flags)
    futex_wake __NR_futex_wake (word: Pointer, mask: Size, count: Int, flags: Flags)
    futex_wait __NR_futex_wait (
        word: Pointer, value: Size, mask: Size, flags: Flags, timeout: Pointer, clock: Int
    )
    futex_requeue __NR_futex_requeue (waiters: Pointer, flags: Flags, wakes: Int, moves: Int)
    statmount __NR_statmount (request: Pointer, buffer: Pointer, size: Size, flags: Flags)
    listmount __NR_listmount (request: Pointer, ids: Pointer, count: Size, flags: Flags)
    lsm_get_self_attr __NR_lsm_get_self_attr (
        attribute: Int, buffer: Pointer, size: Pointer, flags: Flags
    )
    lsm_set_self_attr __NR_lsm_set_self_attr (
        attribute: Int, buffer: Pointer, size: Size, flags: Flags
    )
    lsm_list_modules __NR_lsm_list_modules (ids: Pointer, size: Pointer, flags: Flags)
    mseal __NR_mseal (address: Pointer, length: Size, flags: Flags)
    setxattrat __NR_setxattrat
    getxattrat __NR_getxattrat
    listxattrat __NR_listxattrat
    removexattrat __NR_removexattrat
    open_tree_attr __NR_open_tree_attr
    file_getattr __NR_file_getattr
    file_setattr __NR_file_setattr
}

const _: () = {
    let mut i = 1;
    while i < CALLS.len() {
        assert!(CALLS[i - 1].number < CALLS[i].number, "the table is sorted");
        i += 1;
    }
    assert!(CALLS[CALLS.len() - 1].number as usize + 1 == END);
};
