//! The hooks: one line each. Everything else about a hook comes from its line: its type, its
//! static call, the chain of its policies, its place in [`HOOKS`], its count, its tests.
//!
//! A line is `name(what it is given) -> rule [];`. Names and meanings
//! are Linux's. Types are the kernel's and are resolved where the kernel expands the table, in
//! five parts, since what a hook is given must be known where the hook is. There is a line for
//! every decision that a supported system call reaches, and none for others: what Linux asks about
//! keys, BPF, io_uring, quotas, user namespaces and labelled networks has no line.

use crate::fold::{All, Collect, First, Fold, Offer, Select};
use crate::order::{POLICIES, POLICIES_MAX};

/// The default of hooks that nobody supports unless asked (EOPNOTSUPP).
pub const NOT_SUPPORTED: i32 = -95;
/// The default of `task_prctl` (ENOSYS).
pub const NOT_KNOWN: i32 = -38;
/// The default of `getprocattr` and `setprocattr` (EINVAL).
pub const NO_ATTRIBUTE: i32 = -22;
/// The default of `socket_getpeersec_stream` (ENOPROTOOPT).
pub const NO_OPTION: i32 = -92;

/// Hooks about who acts: capabilities, credentials, the clock, the log, memory.
#[macro_export]
macro_rules! security_hooks {
    ($define:ident) => {
        $define! {
            /// Whether a subject may use a capability.
            capable(&'a Subject, Capability) -> First<0> [capability];
            /// capget(2) of these credentials.
            capget(&'a Credentials) -> First<0> [];
            /// capset(2): from the first to the second.
            capset(&'a Credentials, &'a Credentials) -> First<0> [capability];
            /// clock_settime(2), settimeofday(2), clock_adjtime(2) with a change.
            settime(&'a Subject) -> First<0> [capability];
            /// syslog(2) with this action.
            syslog(&'a Subject, u32) -> First<0> [];
            /// Private memory of so many bytes is promised to a process.
            vm_enough_memory(&'a Subject, u64) -> First<0> [];
            /// A child begins with a copy of these.
            cred_prepare(&'a Credentials) -> First<0> [];
            /// The last user of these is gone.
            cred_free(&'a Credentials) -> All [];
            /// setuid(2) and its like: from the first to the second, which policies complete.
            task_fix_setuid(&'a Credentials, &'a RefCell<Credentials>, Change)
                -> First<0> [capability];
            /// setgid(2) and its like: from the first to the second.
            task_fix_setgid(&'a Credentials, &'a Credentials) -> First<0> [];
            /// setgroups(2): from the first to the second.
            task_fix_setgroups(&'a Credentials, &'a Credentials) -> First<0> [];
        }
    };
}

/// Hooks about files, names and mounts.
#[macro_export]
macro_rules! vfs_hooks {
    ($define:ident) => {
        $define! {
            /// A file is opened with open(2)'s flags, to be executed if [`EXEC`] is among them;
            /// policies take from `granted` what may be done with it later.
            file_open(&'a Context, &'a Location, u32, &'a Cell<u64>) -> First<0> [landlock profile];
            /// The file is open, and not yet anybody's.
            file_post_open(&'a File, u32) -> First<0> [];
            /// An open file is read from (`permission::READ`) or written to.
            file_permission(&'a File, u32) -> First<0> [];
            /// The last descriptor of an open file is gone.
            file_release(&'a File) -> All [];
            /// An open file is resized.
            file_truncate(&'a File) -> First<0> [landlock];
            /// ioctl(2) with this command.
            file_ioctl(&'a File, u32) -> First<0> [landlock];
            /// fcntl(2) with this command.
            file_fcntl(&'a File, u32, u64) -> First<0> [];
            /// flock(2), or a record lock by fcntl(2), of this kind (F_RDLCK, F_WRLCK, F_UNLCK).
            file_lock(&'a File, u32) -> First<0> [];
            /// fcntl(2) with F_SETOWN: signals about the file go to the caller's choice.
            file_set_fowner(&'a File) -> First<0> [];
            /// A message brings an open file (unix(7), SCM_RIGHTS), or pidfd_getfd(2) fetches one.
            file_receive(&'a File) -> First<0> [];
            /// A mapping is made at this very address (MAP_FIXED).
            mmap_addr(u64) -> First<0> [];
            /// A file, or nothing, is mapped with these PROT_ bits, and with more than was asked
            /// for.
            mmap_file(Option<&'a File>, u64, u64) -> First<0> [];
            /// An area of a file, or of none, gets these PROT_ bits.
            file_mprotect(Option<&'a File>, u64) -> First<0> [];
            /// An object of this kind, a device of this number, is made in a directory: mknod(2),
            /// open(2), bind(2).
            path_mknod(&'a Context, &'a Location, &'a [u8], FileType, u64)
                -> First<0> [landlock profile];
            /// The same object is there.
            path_post_mknod(&'a Location) -> All [];
            /// mkdir(2) in a directory.
            path_mkdir(&'a Context, &'a Location, &'a [u8]) -> First<0> [landlock profile];
            /// symlink(2) in a directory.
            path_symlink(&'a Context, &'a Location, &'a [u8]) -> First<0> [landlock profile];
            /// unlink(2) in a directory.
            path_unlink(&'a Context, &'a Location, &'a [u8]) -> First<0> [landlock profile];
            /// rmdir(2) in a directory.
            path_rmdir(&'a Context, &'a Location, &'a [u8]) -> First<0> [landlock profile];
            /// An object gets another name, in the second place: link(2).
            path_link(&'a Context, &'a Location, &'a Location, &'a [u8])
                -> First<0> [landlock profile];
            /// What moves where: rename(2).
            path_rename(&'a Context, &'a Rename<'a>) -> First<0> [landlock profile];
            /// truncate(2).
            path_truncate(&'a Context, &'a Location) -> First<0> [landlock profile];
            /// chmod(2) to this mode.
            path_chmod(&'a Subject, &'a Location, u32) -> First<0> [profile];
            /// chown(2) to these ids.
            path_chown(&'a Subject, &'a Location, u32, u32) -> First<0> [profile];
            /// chroot(2).
            path_chroot(&'a Context, &'a Location) -> First<0> [];
            /// inotify_add_watch(2) with this mask.
            path_notify(&'a Location, u32) -> First<0> [];
            /// A regular file is made under a name.
            inode_create(&'a Subject, &'a Location, &'a [u8], u32) -> First<0> [];
            /// A file without a name is made (O_TMPFILE).
            inode_post_create_tmpfile(&'a dyn Inode) -> All [];
            /// A directory is made under a name.
            inode_mkdir(&'a Subject, &'a Location, &'a [u8], u32) -> First<0> [];
            /// A symbolic link is made under a name.
            inode_symlink(&'a Subject, &'a Location, &'a [u8], &'a [u8]) -> First<0> [];
            /// A FIFO, socket or device node is made under a name.
            inode_mknod(&'a Subject, &'a Location, &'a [u8], FileType) -> First<0> [];
            /// A new object gets what policies hang on it: xattrs of their own.
            inode_init_security(&'a dyn Inode, &'a dyn Inode)
                -> First<{ $crate::table::NOT_SUPPORTED }> [];
            /// The same, of an object that no directory has: memfd_create(2).
            inode_init_security_anon(&'a dyn Inode) -> First<0> [];
            /// The second object gets a name in a directory.
            inode_link(&'a Location, &'a dyn Inode) -> First<0> [];
            /// An object's name is taken away.
            inode_unlink(&'a Location, &'a dyn Inode) -> First<0> [];
            /// A directory's name is taken away.
            inode_rmdir(&'a Location, &'a dyn Inode) -> First<0> [];
            /// The second object moves from the first directory to the third.
            inode_rename(&'a Location, &'a dyn Inode, &'a Location) -> First<0> [];
            /// readlink(2).
            inode_readlink(&'a dyn Inode) -> First<0> [];
            /// A path goes through a symbolic link.
            inode_follow_link(&'a Subject, &'a dyn Inode) -> First<0> [];
            /// A right of access(2) to an object is wanted, and the mode bits give it.
            inode_permission(&'a Subject, &'a dyn Inode, u32) -> First<0> [];
            /// Attributes change: chmod(2), chown(2), utime(2), truncate(2).
            inode_setattr(&'a dyn Inode, &'a SetAttributes) -> First<0> [];
            /// Attributes have changed.
            inode_post_setattr(&'a dyn Inode) -> All [];
            /// stat(2) and its like.
            inode_getattr(&'a dyn Inode) -> First<0> [];
            /// An extended attribute is set.
            inode_setxattr(&'a Subject, &'a dyn Inode, &'a [u8], &'a [u8]) -> First<0> [capability];
            /// An extended attribute has been set.
            inode_post_setxattr(&'a dyn Inode, &'a [u8]) -> All [];
            /// An extended attribute is read.
            inode_getxattr(&'a dyn Inode, &'a [u8]) -> First<0> [];
            /// The names of the extended attributes are read.
            inode_listxattr(&'a dyn Inode) -> First<0> [];
            /// An extended attribute is removed.
            inode_removexattr(&'a Subject, &'a dyn Inode, &'a [u8]) -> First<0> [capability];
            /// An extended attribute has been removed.
            inode_post_removexattr(&'a dyn Inode, &'a [u8]) -> All [];
            /// Whether contents that change must cost the object its privileges: 1 if so.
            inode_need_killpriv(&'a dyn Inode) -> Collect<0> [capability];
            /// The object is about to lose its privileges.
            inode_killpriv(&'a dyn Inode) -> First<0> [];
            /// A file system is made, to be mounted.
            sb_alloc_security(&'a [u8]) -> First<0> [];
            /// Something is mounted, bound, moved or remounted.
            sb_mount(&'a Subject) -> First<0> [landlock profile];
            /// A new file system is about to be mounted, by mount(2).
            sb_kern_mount(&'a Location) -> First<0> [];
            /// A mount gets other flags.
            sb_remount(&'a Location, u32) -> First<0> [];
            /// umount2(2).
            sb_umount(&'a Subject) -> First<0> [landlock profile];
            /// pivot_root(2).
            sb_pivotroot(&'a Subject) -> First<0> [landlock profile];
            /// statfs(2).
            sb_statfs(&'a dyn Inode) -> First<0> [];
            /// A mount's options are told, by /proc/PID/mountinfo and its like.
            sb_show_options(&'a Location) -> First<0> [];
        }
    };
}

/// Hooks about processes.
#[macro_export]
macro_rules! process_hooks {
    ($define:ident) => {
        $define! {
            /// The first looks into the second, to read or to attach: ptrace(2), procfs.
            ptrace_access_check(&'a Subject, &'a Process, Ids)
                -> First<0> [capability landlock yama];
            /// The first asks to be traced by the second: PTRACE_TRACEME.
            ptrace_traceme(&'a Thread, &'a Thread) -> First<0> [capability landlock yama];
            /// A thread makes another one, with clone(2)'s flags.
            task_alloc(&'a Thread, u64) -> First<0> [];
            /// A thread ends.
            task_free(&'a Thread) -> All [];
            /// execve(2) of a file: what the program begins with.
            bprm_creds_for_exec(&'a Arc<File>) -> First<0> [];
            /// execve(2) of a file, by whom, and who it runs as, which policies complete.
            bprm_creds_from_file(&'a Arc<File>, &'a Subject, &'a RefCell<NextProgram>)
                -> First<0> [capability];
            /// A file is about to be executed: the program, a script's interpreter.
            bprm_check_security(&'a Arc<File>) -> First<0> [];
            /// The new program's credentials are about to be put in place.
            bprm_committing_creds(&'a Credentials) -> All [];
            /// They are in place.
            bprm_committed_creds(&'a Credentials) -> All [];
            /// setpgid(2) of a process.
            task_setpgid(&'a Process, u32) -> First<0> [];
            /// getpgid(2).
            task_getpgid(&'a Process) -> First<0> [];
            /// getsid(2).
            task_getsid(&'a Process) -> First<0> [];
            /// A nice value is set.
            task_setnice(&'a Subject, &'a Process, &'a Credentials, i32) -> First<0> [capability];
            /// ioprio_set(2).
            task_setioprio(&'a Subject, &'a Process, &'a Credentials, u32) -> First<0> [capability];
            /// ioprio_get(2).
            task_getioprio(&'a Process) -> First<0> [];
            /// A scheduling policy, its parameters or an affinity are set.
            task_setscheduler(&'a Subject, &'a Process, &'a Credentials) -> First<0> [capability];
            /// They are asked for.
            task_getscheduler(&'a Process) -> First<0> [];
            /// prlimit(2) of another process.
            task_prlimit(&'a Subject, &'a Process) -> First<0> [];
            /// A limit changes.
            task_setrlimit(&'a Process, Resource) -> First<0> [];
            /// A signal is sent to a process, or to one thread of it; 0 only asks.
            task_kill(&'a Thread, &'a Process, Option<&'a Thread>, u32) -> First<0> [landlock];
            /// A file signals whoever has been chosen for that (fcntl(2), F_SETOWN), who is outside
            /// of this or not. Interrupts ask, too.
            file_send_sigiotask(&'a Fence, &'a Process, u32) -> First<0> [landlock];
            /// prctl(2) with its arguments, before the kernel's own options.
            task_prctl(&'a Thread, u32, &'a [u64; 4])
                -> Offer<{ $crate::table::NOT_KNOWN }> [capability yama];
            /// A file of /proc/PID is looked up.
            task_to_inode(&'a Process) -> All [];
            /// A file of /proc/PID/attr is read, of this policy (0: any).
            getprocattr(u64, &'a Process, &'a [u8]) -> Select<{ $crate::table::NO_ATTRIBUTE }> [];
            /// A file of /proc/self/attr is written.
            setprocattr(u64, &'a [u8], &'a [u8]) -> Select<{ $crate::table::NO_ATTRIBUTE }> [];
            /// lsm_get_self_attr(2) of this attribute.
            getselfattr(u32) -> Collect<{ $crate::table::NOT_SUPPORTED }> [];
            /// lsm_set_self_attr(2) of this attribute, of the policy with this id.
            setselfattr(u64, u32, &'a [u8]) -> Select<{ $crate::table::NOT_SUPPORTED }> [];
        }
    };
}

/// Hooks about System V IPC.
#[macro_export]
macro_rules! ipc_hooks {
    ($define:ident) => {
        $define! {
            /// An object is used with these rights, and its mode gives them.
            ipc_permission(&'a Perm, u32) -> First<0> [];
            /// A message queue is made.
            msg_queue_alloc_security(i32) -> First<0> [];
            /// A message queue is gone.
            msg_queue_free_security(&'a Perm) -> All [];
            /// A message queue that is there is found by its key: msgget(2).
            msg_queue_associate(&'a Perm, u32) -> First<0> [];
            /// msgctl(2) with this command; without an object for those about all.
            msg_queue_msgctl(Option<&'a Perm>, u32) -> First<0> [];
            /// A shared memory segment is made.
            shm_alloc_security(i32) -> First<0> [];
            /// A shared memory segment is gone.
            shm_free_security(&'a Perm) -> All [];
            /// A shared memory segment that is there is found by its key: shmget(2).
            shm_associate(&'a Perm, u32) -> First<0> [];
            /// shmctl(2) with this command; without an object for those about all.
            shm_shmctl(Option<&'a Perm>, u32) -> First<0> [];
            /// A semaphore set is made.
            sem_alloc_security(i32) -> First<0> [];
            /// A semaphore set is gone.
            sem_free_security(&'a Perm) -> All [];
            /// A semaphore set that is there is found by its key: semget(2).
            sem_associate(&'a Perm, u32) -> First<0> [];
            /// semctl(2) with this command; without an object for those about all.
            sem_semctl(Option<&'a Perm>, u32) -> First<0> [];
            /// A message is made, of so many bytes.
            msg_msg_alloc_security(usize) -> First<0> [];
            /// A message is gone.
            msg_msg_free_security(usize) -> All [];
            /// msgsnd(2) of so many bytes.
            msg_queue_msgsnd(&'a Perm, usize) -> First<0> [];
            /// msgrcv(2) of this type.
            msg_queue_msgrcv(&'a Perm, i64) -> First<0> [];
            /// shmat(2) with these flags.
            shm_shmat(&'a Perm, u32) -> First<0> [];
            /// semop(2), which alters the set or only looks at it.
            sem_semop(&'a Perm, bool) -> First<0> [];
        }
    };
}

/// Hooks about sockets.
#[macro_export]
macro_rules! net_hooks {
    ($define:ident) => {
        $define! {
            /// A stream socket connects to a listening one, by unix(7).
            unix_stream_connect(&'a Thread, &'a UnixSocket, &'a UnixSocket)
                -> First<0> [landlock];
            /// A datagram goes to another socket, by unix(7).
            unix_may_send(&'a Thread, &'a UnixSocket, &'a UnixSocket) -> First<0> [landlock];
            /// socket(2) of this domain, kind and protocol.
            socket_create(&'a Subject, u32, u32, u32) -> First<0> [];
            /// The socket is made.
            socket_post_create(&'a Subject, &'a Common) -> First<0> [landlock];
            /// What policies hang on a socket is made.
            sk_alloc_security(u32) -> First<0> [];
            /// It is gone.
            sk_free_security(&'a Common) -> All [];
            /// A socket of accept(2) gets what policies hang on it from its listener.
            sk_clone_security(&'a Common, &'a Common) -> All [];
            /// The two ends of socketpair(2).
            socket_socketpair(&'a Common, &'a Common) -> First<0> [];
            /// bind(2).
            socket_bind(&'a Subject, &'a Common, &'a RawAddress) -> First<0> [landlock profile];
            /// connect(2).
            socket_connect(&'a Subject, &'a Common, &'a RawAddress) -> First<0> [landlock profile];
            /// listen(2).
            socket_listen(&'a Common, i32) -> First<0> [];
            /// accept(2).
            socket_accept(&'a Common) -> First<0> [];
            /// A message is sent, to this address if one was given.
            socket_sendmsg(&'a Common, Option<&'a RawAddress>) -> First<0> [profile];
            /// A message is received.
            socket_recvmsg(&'a Common, u32) -> First<0> [];
            /// getsockname(2).
            socket_getsockname(&'a Common) -> First<0> [];
            /// getpeername(2).
            socket_getpeername(&'a Common) -> First<0> [];
            /// getsockopt(2).
            socket_getsockopt(&'a Common, u32, u32) -> First<0> [];
            /// setsockopt(2).
            socket_setsockopt(&'a Common, u32, u32) -> First<0> [];
            /// shutdown(2).
            socket_shutdown(&'a Common) -> First<0> [];
            /// getsockopt(2) with SO_PEERSEC.
            socket_getpeersec_stream(&'a Common) -> First<{ $crate::table::NO_OPTION }> [];
            /// A TCP connection reaches a listening socket.
            inet_conn_request(&'a Common) -> First<0> [];
            /// A TCP connection is there, at the side that asked for it.
            inet_conn_established(&'a Common) -> All [];
            /// A message for the kernel is sent (netlink(7)).
            netlink_send(&'a Common) -> First<0> [];
        }
    };
}

/// A line of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Info {
    /// Linux's name.
    pub name: &'static str,
    /// Its rule, as the table has it.
    pub rule: &'static str,
    /// What it answers when nobody is asked; `None`: it answers nothing.
    pub default: Option<i32>,
    /// The policies that implement it.
    pub policies: &'static [&'static str],
}

impl Info {
    /// The name of its rule (`fold`).
    #[must_use]
    pub fn rule(&self) -> &'static str {
        self.rule.split(['<', ' ']).next().unwrap_or(self.rule)
    }
}

const fn default_of<F: Fold>() -> Option<i32> {
    F::DEFAULT
}

macro_rules! list {
    ($( $(#[$doc:meta])* $hook:ident($($type:ty),*) -> $rule:ty [$($policy:ident)*]; )*) => {
        &[$(Info {
            name: stringify!($hook),
            rule: stringify!($rule),
            default: default_of::<$rule>(),
            policies: &[$(stringify!($policy)),*],
        }),*]
    };
}

const PARTS: [&[Info]; 5] = [
    crate::security_hooks!(list),
    crate::vfs_hooks!(list),
    crate::process_hooks!(list),
    crate::ipc_hooks!(list),
    crate::net_hooks!(list),
];

/// Number of hooks.
pub const HOOKS_COUNT: usize =
    PARTS[0].len() + PARTS[1].len() + PARTS[2].len() + PARTS[3].len() + PARTS[4].len();

/// All hooks.
pub const HOOKS: [Info; HOOKS_COUNT] = {
    let mut all = [PARTS[0][0]; HOOKS_COUNT];
    let (mut part, mut count) = (0, 0);
    while part < PARTS.len() {
        let mut at = 0;
        while at < PARTS[part].len() {
            all[count] = PARTS[part][at];
            (at, count) = (at + 1, count + 1);
        }
        part += 1;
    }
    all
};

/// The place of a hook in [`HOOKS`].
///
/// # Panics
/// At build time, if there is none with this name.
#[must_use]
pub const fn hook(name: &str) -> usize {
    let mut index = 0;
    while index < HOOKS_COUNT {
        if is_equal(HOOKS[index].name.as_bytes(), name.as_bytes()) {
            return index;
        }
        index += 1;
    }
    panic!("no such hook");
}

/// The policy with this name.
///
/// # Panics
/// At build time, if there is none.
#[must_use]
pub const fn policy(name: &str) -> usize {
    let mut index = 0;
    while index < POLICIES_MAX {
        if is_equal(POLICIES[index].name.as_bytes(), name.as_bytes()) {
            return index;
        }
        index += 1;
    }
    panic!("the table names a policy that does not exist");
}

const fn is_equal(one: &[u8], other: &[u8]) -> bool {
    let mut at = 0;
    while at < one.len() && at < other.len() {
        if one[at] != other[at] {
            return false;
        }
        at += 1;
    }
    one.len() == other.len()
}
