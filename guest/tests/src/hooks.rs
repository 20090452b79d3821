//! Which security hooks each system call asks: in a VM of Limen's only, whose parameter `lsm=`
//! names the tally.
//!
//! The table states, for each hook, a call that reaches it. The kernel counts the calls of all
//! hooks meanwhile; what counting costs is counted beforehand and subtracted. A hook that no row
//! names fails the test, as does a row whose call does not reach its hook. Neighbour:
//! /sys/kernel/security/hooks, which is all this knows of the kernel's inside.

use std::collections::{BTreeMap, BTreeSet};

use crate::sc;
use crate::sys::*;

/// Where hooks and their counts are, and the tally's switch.
const HOOKS: &str = "/sys/kernel/security/hooks";

/// Hooks, and what asks them.
pub type Row = (&'static [&'static str], fn());

fn made(path: &str) -> i32 {
    open(path, O_RDWR | O_CREAT).fd()
}

/// Where all of it happens.
pub const FOLDER: &str = "/tmp/hooks";
pub const FILE: &str = "/tmp/hooks/file";
const LINK: &str = "/tmp/hooks/link";
const OTHER: &str = "/tmp/hooks/other";
pub const DIR: &str = "/tmp/hooks/dir";
const NEW: &str = "/tmp/hooks/new";

fn p(path: &str) -> std::ffi::CString {
    c(path)
}

/// A unix address of the abstract kind.
fn abstract_address() -> ([u8; 5], usize) {
    ([AF_UNIX as u8, 0, 0, b'h', b'k'], 5)
}

/// A TCP address at the loopback; port 0 takes any.
fn inet(port: u16) -> [u8; 16] {
    let mut address = [0; 16];
    address[0] = AF_INET as u8;
    address[2..4].copy_from_slice(&port.to_be_bytes());
    address[4] = 127;
    address[7] = 1;
    address
}

fn listener() -> (i32, u16) {
    let fd = sc!(SYS_socket, AF_INET, SOCK_STREAM, 0).fd();
    let address = inet(0);
    sc!(SYS_bind, fd, address.as_ptr(), 16).is(0);
    sc!(SYS_listen, fd, 1).is(0);
    let (mut bound, mut len) = ([0u8; 16], 16u32);
    sc!(SYS_getsockname, fd, bound.as_mut_ptr(), &raw mut len).is(0);
    (fd, u16::from_be_bytes([bound[2], bound[3]]))
}

fn unix_pair() -> [i32; 2] {
    let mut ends = [0i32; 2];
    sc!(SYS_socketpair, AF_UNIX, SOCK_STREAM, 0, ends.as_mut_ptr()).is(0);
    ends
}

fn both(ends: [i32; 2]) {
    ends.into_iter().for_each(close);
}

#[rustfmt::skip]
pub const ROWS: &[Row] = &[
    // Who acts.
    (&["capable", "path_chroot"], || sc!(SYS_chroot, c"/".as_ptr()).is(0)),
    (&["capget"], || {
        let (header, mut data) = ([0x2008_0522u32, 0], [0u32; 6]);
        sc!(SYS_capget, header.as_ptr(), data.as_mut_ptr()).is(0);
    }),
    (&["capset"], || {
        let (header, mut data) = ([0x2008_0522u32, 0], [0u32; 6]);
        sc!(SYS_capget, header.as_ptr(), data.as_mut_ptr()).is(0);
        sc!(SYS_capset, header.as_ptr(), data.as_ptr()).is(0);
    }),
    (&["settime"], || {
        let mut time = [0i64; 2];
        sc!(SYS_clock_gettime, CLOCK_REALTIME, time.as_mut_ptr()).is(0);
        sc!(SYS_clock_settime, CLOCK_REALTIME, time.as_ptr()).is(0);
    }),
    (&["syslog"], || {
        sc!(SYS_syslog, 10, 0, 0).must();
    }),
    (&["vm_enough_memory", "mmap_file"], || unmap(anon(4096), 4096)),
    (&["mmap_addr"], || {
        let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
        mmap(0x1000_0000, 4096, PROT_READ, flags, -1, 0).must();
        unmap(0x1000_0000 as *mut u8, 4096);
    }),
    (&["file_mprotect"], || {
        let at = anon(4096);
        sc!(SYS_mprotect, at, 4096, PROT_READ).is(0);
        unmap(at, 4096);
    }),
    (&["cred_prepare", "task_fix_setuid", "cred_free"], || sc!(SYS_setuid, 0).is(0)),
    (&["task_fix_setgid"], || sc!(SYS_setgid, 0).is(0)),
    (&["task_fix_setgroups"], || sc!(SYS_setgroups, 0, 0).is(0)),
    // Files.
    (&["file_open", "file_post_open", "file_release", "inode_permission"],
        || close(open(FILE, O_RDONLY).fd())),
    (&["file_permission"], || { read(0, 0); }),
    (&["path_truncate", "inode_setattr", "inode_post_setattr"],
        || sc!(SYS_truncate, p(FILE).as_ptr(), 10).is(0)),
    (&["file_truncate"], || {
        let fd = open(FILE, O_RDWR).fd();
        sc!(SYS_ftruncate, fd, 9).is(0);
        close(fd);
    }),
    (&["file_ioctl", "file_fcntl", "file_lock", "file_set_fowner"], || {
        let fd = open(FILE, O_RDWR).fd();
        sc!(SYS_ioctl, fd, FIOCLEX, 0).is(0);
        sc!(SYS_fcntl, fd, F_GETFD, 0).must();
        sc!(SYS_flock, fd, LOCK_EX).is(0);
        sc!(SYS_fcntl, fd, F_SETOWN, pid()).is(0);
        close(fd);
    }),
    (&["file_send_sigiotask"], || {
        on_signal(SIGIO, SIG_IGN, 0, 0);
        let ends = pipe();
        sc!(SYS_fcntl, ends.0, F_SETOWN, pid()).is(0);
        sc!(SYS_fcntl, ends.0, F_SETFL, O_ASYNC).is(0);
        sc!(SYS_write, ends.1, c"x".as_ptr(), 1).is(1);
        close(ends.0);
        close(ends.1);
    }),
    (&["file_receive"], || {
        let ends = unix_pair();
        let control = [20u64, SOL_SOCKET as u64 | (SCM_RIGHTS as u64) << 32, 0];
        let iov = [c"x".as_ptr() as usize, 1];
        let header = [0, 0, iov.as_ptr() as usize, 1, control.as_ptr() as usize, 20, 0];
        sc!(SYS_sendmsg, ends[0], header.as_ptr(), 0).is(1);
        let (mut room, mut byte) = ([0u64; 3], [0u8; 1]);
        let iov = [byte.as_mut_ptr() as usize, 1];
        let mut header = [0, 0, iov.as_ptr() as usize, 1, room.as_mut_ptr() as usize, 24, 0];
        sc!(SYS_recvmsg, ends[1], header.as_mut_ptr(), 0).is(1);
        close((room[2] & 0xffff_ffff) as i32);
        both(ends);
    }),
    (&["path_mknod", "path_post_mknod", "inode_create", "inode_init_security"],
        || { close(made(NEW)); sc!(SYS_unlink, p(NEW).as_ptr()).is(0) }),
    (&["inode_mknod"], || {
        sc!(SYS_mknod, p(NEW).as_ptr(), S_IFIFO | 0o600, 0).is(0);
        sc!(SYS_unlink, p(NEW).as_ptr()).is(0);
    }),
    (&["path_mkdir", "inode_mkdir"], || sc!(SYS_mkdir, p(DIR).as_ptr(), 0o755).is(0)),
    (&["path_rmdir", "inode_rmdir"], || sc!(SYS_rmdir, p(DIR).as_ptr()).is(0)),
    (&["path_symlink", "inode_symlink"],
        || sc!(SYS_symlink, p("file").as_ptr(), p(LINK).as_ptr()).is(0)),
    (&["inode_follow_link", "inode_getattr"], || {
        let mut room = [0u64; 18];
        sc!(SYS_stat, p(LINK).as_ptr(), room.as_mut_ptr()).is(0);
    }),
    (&["inode_readlink"], || {
        let mut room = [0u8; 8];
        sc!(SYS_readlink, p(LINK).as_ptr(), room.as_mut_ptr(), 8).is(4);
    }),
    (&["path_unlink", "inode_unlink"], || sc!(SYS_unlink, p(LINK).as_ptr()).is(0)),
    (&["path_link", "inode_link"],
        || sc!(SYS_link, p(FILE).as_ptr(), p(LINK).as_ptr()).is(0)),
    (&["path_rename", "inode_rename"],
        || sc!(SYS_rename, p(LINK).as_ptr(), p(OTHER).as_ptr()).is(0)),
    (&["path_chmod"], || sc!(SYS_chmod, p(FILE).as_ptr(), 0o644).is(0)),
    (&["path_chown"], || sc!(SYS_chown, p(FILE).as_ptr(), 0, 0).is(0)),
    (&["path_notify"], || {
        let fd = sc!(SYS_inotify_init1, 0).fd();
        sc!(SYS_inotify_add_watch, fd, p(FILE).as_ptr(), IN_MODIFY).must();
        close(fd);
    }),
    (&["inode_post_create_tmpfile"], || close(open("/tmp/hooks", O_TMPFILE | O_RDWR).fd())),
    (&["inode_init_security_anon"], || close(sc!(SYS_memfd_create, c"m".as_ptr(), 0).fd())),
    (&["inode_setxattr", "inode_post_setxattr"], || {
        let name = c"user.hook".as_ptr();
        sc!(SYS_setxattr, p(FILE).as_ptr(), name, c"v".as_ptr(), 1, 0).is(0);
    }),
    (&["inode_getxattr"], || {
        let mut value = [0u8; 8];
        let name = c"user.hook".as_ptr();
        sc!(SYS_getxattr, p(FILE).as_ptr(), name, value.as_mut_ptr(), 8).is(1);
    }),
    (&["inode_listxattr"], || { sc!(SYS_listxattr, p(FILE).as_ptr(), 0, 0).must(); }),
    (&["inode_removexattr", "inode_post_removexattr"],
        || sc!(SYS_removexattr, p(FILE).as_ptr(), c"user.hook".as_ptr()).is(0)),
    (&["inode_need_killpriv", "inode_killpriv"], || {
        let value = [0x0200_0000u32, 1 << 10, 0, 0, 0];
        let name = c"security.capability".as_ptr();
        sc!(SYS_setxattr, p(FILE).as_ptr(), name, value.as_ptr(), 20, 0).is(0);
        sc!(SYS_chown, p(FILE).as_ptr(), 0, 0).is(0);
    }),
    // Mounts.
    (&["sb_mount", "sb_alloc_security", "sb_kern_mount", "sb_remount", "sb_umount"], || {
        sc!(SYS_mkdir, p(DIR).as_ptr(), 0o755).is(0);
        let (at, kind) = (p(DIR), c"tmpfs".as_ptr());
        sc!(SYS_mount, kind, at.as_ptr(), kind, 0, 0).is(0);
        sc!(SYS_mount, 0, at.as_ptr(), 0, MS_REMOUNT | MS_RDONLY, 0).is(0);
        sc!(SYS_umount2, at.as_ptr(), 0).is(0);
        sc!(SYS_rmdir, p(DIR).as_ptr()).is(0);
    }),
    // Refused after the question: the new root is no mount.
    (&["sb_pivotroot"], || {
        let at = p("/tmp/hooks");
        sc!(SYS_pivot_root, at.as_ptr(), at.as_ptr()).fails(EINVAL);
    }),
    (&["sb_statfs"], || {
        let mut room = [0u64; 16];
        sc!(SYS_statfs, p(FILE).as_ptr(), room.as_mut_ptr()).is(0);
    }),
    (&["sb_show_options"], || {
        let fd = open("/proc/self/mountinfo", O_RDONLY).fd();
        read(fd, 100);
        close(fd);
    }),
    // Processes.
    (&["ptrace_access_check"], || {
        let child = fork(|| { sc!(SYS_pause).fails(EINTR); 0 });
        close(open(&format!("/proc/{child}/maps"), O_RDONLY).fd());
        sc!(SYS_kill, child, SIGKILL).is(0);
        wait_signal(child, SIGKILL);
    }),
    (&["ptrace_traceme", "task_alloc", "task_free"],
        || in_child(|| sc!(SYS_ptrace, PTRACE_TRACEME, 0, 0, 0).is(0))),
    (&["bprm_creds_for_exec", "bprm_creds_from_file", "bprm_check_security",
        "bprm_committing_creds", "bprm_committed_creds"], || {
        let child = fork(|| {
            let (path, word) = (p(&own_path()), c"list");
            let words = [path.as_ptr() as usize, word.as_ptr() as usize, 0];
            close(1);
            sc!(SYS_execve, path.as_ptr(), words.as_ptr(), 0).must() as i32
        });
        wait(child);
    }),
    (&["task_setpgid", "task_getpgid", "task_getsid"], || in_child(|| {
        sc!(SYS_setpgid, 0, 0).is(0);
        sc!(SYS_getpgid, 0).must();
        sc!(SYS_getsid, 0).must();
    })),
    (&["task_setnice"], || sc!(SYS_setpriority, PRIO_PROCESS, 0, 0).is(0)),
    (&["task_setioprio", "task_getioprio"], || {
        sc!(SYS_ioprio_get, 1, 0).must();
        sc!(SYS_ioprio_set, 1, 0, 2 << 13 | 4).is(0);
    }),
    (&["task_setscheduler", "task_getscheduler"], || {
        let priority = 0;
        sc!(SYS_sched_setscheduler, 0, 0, &raw const priority).is(0);
        sc!(SYS_sched_getscheduler, 0).is(0);
    }),
    (&["task_prlimit", "task_setrlimit"], || {
        let mut limit = [0u64; 2];
        let child = fork(|| { sc!(SYS_pause).fails(EINTR); 0 });
        sc!(SYS_prlimit64, child, RLIMIT_CORE, 0, limit.as_mut_ptr()).is(0);
        sc!(SYS_prlimit64, child, RLIMIT_CORE, limit.as_ptr(), 0).is(0);
        sc!(SYS_kill, child, SIGKILL).is(0);
        wait(child);
    }),
    (&["task_kill"], || sc!(SYS_kill, pid(), 0).is(0)),
    (&["task_prctl"], || { sc!(SYS_prctl, PR_GET_DUMPABLE, 0, 0, 0, 0).must(); }),
    (&["task_to_inode", "getprocattr"],
        || {
            let (fd, mut room) = (open("/proc/self/attr/current", O_RDONLY).fd(), [0u8; 8]);
            sc!(SYS_read, fd, room.as_mut_ptr(), 8).fails(EINVAL);
            close(fd);
        }),
    (&["setprocattr"], || {
        let fd = open("/proc/self/attr/current", O_WRONLY).fd();
        sc!(SYS_write, fd, c"label".as_ptr(), 5).fails(EINVAL);
        close(fd);
    }),
    (&["getselfattr"], || {
        let mut size = 0u32;
        sc!(459, 100, 0, &raw mut size, 0).fails(EOPNOTSUPP);
    }),
    (&["setselfattr"], || {
        let header = [101u64, 0, 32, 0];
        sc!(460, 100, header.as_ptr(), 32, 0).fails(EOPNOTSUPP);
    }),
    // System V IPC.
    (&["msg_queue_alloc_security", "msg_queue_msgsnd", "msg_msg_alloc_security", "ipc_permission",
        "msg_queue_msgrcv", "msg_msg_free_security", "msg_queue_associate", "msg_queue_msgctl",
        "msg_queue_free_security"], || {
        let queue = sc!(SYS_msgget, 7, IPC_CREAT | 0o600).must();
        sc!(SYS_msgget, 7, 0).is(queue);
        let mut message = [1u64, 2];
        sc!(SYS_msgsnd, queue, message.as_ptr(), 8, 0).is(0);
        sc!(SYS_msgrcv, queue, message.as_mut_ptr(), 8, 0, 0).is(8);
        sc!(SYS_msgctl, queue, IPC_RMID, 0).is(0);
    }),
    (&["shm_alloc_security", "shm_associate", "shm_shmat", "shm_shmctl", "shm_free_security"], || {
        let segment = sc!(SYS_shmget, 7, 4096, IPC_CREAT | 0o600).must();
        sc!(SYS_shmget, 7, 0, 0).is(segment);
        let at = sc!(SYS_shmat, segment, 0, 0).must();
        sc!(SYS_shmdt, at).is(0);
        sc!(SYS_shmctl, segment, IPC_RMID, 0).is(0);
    }),
    (&["sem_alloc_security", "sem_associate", "sem_semop", "sem_semctl", "sem_free_security"], || {
        let set = sc!(SYS_semget, 7, 1, IPC_CREAT | 0o600).must();
        sc!(SYS_semget, 7, 0, 0).is(set);
        let operation = [0u16, 1, 0];
        sc!(SYS_semop, set, operation.as_ptr(), 1).is(0);
        sc!(SYS_semctl, set, 0, IPC_RMID, 0).is(0);
    }),
    // Sockets.
    (&["socket_create", "socket_post_create", "sk_alloc_security", "sk_free_security"],
        || close(sc!(SYS_socket, AF_UNIX, SOCK_STREAM, 0).fd())),
    (&["socket_socketpair"], || both(unix_pair())),
    (&["socket_sendmsg", "socket_recvmsg", "socket_shutdown"], || {
        let ends = unix_pair();
        write(ends[0], b"x");
        read(ends[1], 1);
        sc!(SYS_shutdown, ends[0], 2).is(0);
        both(ends);
    }),
    (&["socket_getsockopt", "socket_getpeersec_stream", "socket_setsockopt"], || {
        let ends = unix_pair();
        let (mut value, mut len) = ([0u32; 16], 64u32);
        let (into, room) = (value.as_mut_ptr(), &raw mut len);
        sc!(SYS_getsockopt, ends[0], SOL_SOCKET, SO_PEERSEC, into, room).fails(ENOPROTOOPT);
        sc!(SYS_setsockopt, ends[0], SOL_SOCKET, SO_KEEPALIVE, value.as_ptr(), 4).is(0);
        both(ends);
    }),
    (&["socket_bind", "socket_listen", "unix_stream_connect"], || {
        let (address, len) = abstract_address();
        let listening = sc!(SYS_socket, AF_UNIX, SOCK_STREAM, 0).fd();
        sc!(SYS_bind, listening, address.as_ptr(), len).is(0);
        sc!(SYS_listen, listening, 1).is(0);
        let fd = sc!(SYS_socket, AF_UNIX, SOCK_STREAM, 0).fd();
        sc!(SYS_connect, fd, address.as_ptr(), len).is(0);
        both([fd, listening]);
    }),
    (&["unix_may_send"], || {
        let (address, len) = abstract_address();
        let to = sc!(SYS_socket, AF_UNIX, SOCK_DGRAM, 0).fd();
        sc!(SYS_bind, to, address.as_ptr(), len).is(0);
        let from = sc!(SYS_socket, AF_UNIX, SOCK_DGRAM, 0).fd();
        sc!(SYS_sendto, from, c"x".as_ptr(), 1, 0, address.as_ptr(), len).is(1);
        both([from, to]);
    }),
    (&["socket_connect", "inet_conn_request", "sk_clone_security", "inet_conn_established",
        "socket_accept", "socket_getsockname", "socket_getpeername"], || {
        let (listening, port) = listener();
        let fd = sc!(SYS_socket, AF_INET, SOCK_STREAM, 0).fd();
        let address = inet(port);
        sc!(SYS_connect, fd, address.as_ptr(), 16).is(0);
        let served = sc!(SYS_accept, listening, 0, 0).fd();
        let (mut name, mut len) = ([0u8; 16], 16u32);
        sc!(SYS_getpeername, fd, name.as_mut_ptr(), &raw mut len).is(0);
        [fd, served, listening].into_iter().for_each(close);
    }),
    (&["netlink_send"], || {
        let fd = sc!(SYS_socket, AF_NETLINK, SOCK_RAW, 0).fd();
        let request = [20u32, 18 | 0x301 << 16, 1, 0, 0];
        sc!(SYS_sendto, fd, request.as_ptr(), 20, 0, 0, 0).is(20);
        close(fd);
    }),
];

/// How often each hook was called.
fn counts() -> BTreeMap<String, u64> {
    let text = std::fs::read_to_string(HOOKS).expect("the list of hooks");
    let line = |line: &str| {
        let mut words = line.split(' ');
        let name = words.next()?.to_owned();
        Some((name, words.next()?.parse().ok()?))
    };
    text.lines().filter_map(line).collect()
}

/// How often each hook is called by `f`, and by counting.
fn during(f: impl FnOnce()) -> BTreeMap<String, u64> {
    let before = counts();
    f();
    let mut after = counts();
    for (name, count) in &mut after {
        *count -= before.get(name).copied().unwrap_or(0);
    }
    after
}

fn switch(word: &str) {
    std::fs::write(HOOKS, word).expect("the kernel's parameter lsm= names the tally");
}

/// The tally comes and goes while others call hooks on all CPUs: no call of theirs fails, and none
/// is lost while it is attached for good.
fn under_fire() -> bool {
    let rounds = 3000;
    let callers: Vec<i32> = (0..3)
        .map(|_| {
            fork(|| {
                let bad = (0..rounds).any(|_| match open(FILE, O_RDONLY) {
                    Ok(fd) => sc!(SYS_close, fd).is_err(),
                    Err(_) => true,
                });
                i32::from(bad)
            })
        })
        .collect();
    for _ in 0..100 {
        switch("1");
        switch("0");
    }
    let mut good = true;
    for caller in callers {
        if wait(caller) != 0 {
            good = false;
            println!("a call failed while the tally came and went");
        }
    }
    switch("1");
    let before = counts()["file_open"];
    let callers: Vec<i32> = (0..3)
        .map(|_| {
            fork(|| {
                (0..rounds).for_each(|_| close(open(FILE, O_RDONLY).fd()));
                0
            })
        })
        .collect();
    callers.into_iter().for_each(|caller| wait_code(caller, 0));
    // The second look at the counts opens a file, too.
    let seen = counts()["file_open"] - before;
    switch("0");
    if seen != 3 * rounds + 1 {
        good = false;
        println!("{seen} calls of file_open counted, of {}", 3 * rounds + 1);
    }
    good
}

/// Prints what is wrong; whether nothing is.
pub fn main() -> bool {
    std::fs::create_dir_all("/tmp/hooks").expect("a folder");
    close(made(FILE));
    let silent = counts();
    let mut good = silent.values().all(|&count| count == 0);
    switch("1");
    let cost = during(|| ());
    let mut named = BTreeSet::new();
    for (hooks, call) in ROWS {
        let seen = during(call);
        for &hook in *hooks {
            named.insert(hook.to_owned());
            let (seen, cost) = (seen.get(hook), cost.get(hook).copied().unwrap_or(0));
            if seen.is_none_or(|&seen| seen <= cost) {
                good = false;
                println!("{hook} is not asked by its call");
            }
        }
    }
    for hook in silent.keys().filter(|&hook| !named.contains(hook)) {
        good = false;
        println!("no row names {hook}");
    }
    switch("0");
    let end = counts();
    close(open(FILE, O_RDONLY).fd());
    if counts() != end {
        good = false;
        println!("hooks are counted while the tally is detached");
    }
    good &= under_fire();
    let verdict = if good { "ok" } else { "FAILED" };
    println!("hooks: {} of {} named, {verdict}", named.len(), silent.len());
    good
}
