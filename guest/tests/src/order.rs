//! Which of several errors a call gives: as Linux checks its arguments, in that order.
//!
//! Each row was found by the differential fuzzer (`differ/`). Programs that probe for what a kernel
//! can do rely on it: EINVAL says that a flag is not known, EBADF that a descriptor is not open.

use crate::sc;
use crate::sys::*;
use crate::tests;

tests! { "order": descriptors_and_flags, transfers, positions, places, waits_say_nothing,
what_descriptors_are_called, files_of_proc, memory_and_scheduling, system_v, renames,
a_write_that_fails, pages_of_a_file_elsewhere, a_stack_above_a_stack, listeners_and_options }

/// An address that is never mapped.
const BAD: usize = 8;

/// A file of ten bytes, open for both.
fn file() -> i32 {
    let fd = sc!(SYS_memfd_create, c"order".as_ptr(), 0).fd();
    write(fd, b"0123456789");
    fd
}

fn path_only() -> i32 {
    open("/", O_PATH).fd()
}

/// O_PATH descriptors are no files (open(2)); unknown operations come before the descriptor.
fn descriptors_and_flags() {
    let (path, file) = (path_only(), file());
    let event = [0u32; 4];
    let epoll = sc!(SYS_epoll_create1, 0).fd();
    sc!(SYS_epoll_wait, path, event.as_ptr(), 1, 0).fails(EBADF);
    sc!(SYS_epoll_ctl, path, EPOLL_CTL_ADD, file, event.as_ptr()).fails(EBADF);
    sc!(SYS_epoll_ctl, epoll, EPOLL_CTL_ADD, path, event.as_ptr()).fails(EBADF);
    mmap(0, 4096, PROT_READ, MAP_PRIVATE, path, 0).fails(EBADF);
    sc!(SYS_flock, -1i32, 0).fails(EINVAL);
    sc!(SYS_flock, -1i32, LOCK_SH).fails(EBADF);
    sc!(SYS_setns, -1i32, 0).fails(EBADF);
    sc!(SYS_sync_file_range, -1i32, 0, 0, 1 << 30).fails(EBADF);
    sc!(SYS_prlimit64, 1 << 30, 99, 0, 0).fails(ESRCH);
    let time = [0u64; 2];
    for clock in [CLOCK_MONOTONIC_RAW, CLOCK_REALTIME_COARSE, CLOCK_MONOTONIC_COARSE] {
        sc!(SYS_clock_nanosleep, clock, 0, time.as_ptr(), 0).fails(EOPNOTSUPP);
    }
}

/// splice(2), sendfile(2), vmsplice(2), copy_file_range(2).
fn transfers() {
    let (file, (reader, writer)) = (file(), pipe_flags(O_NONBLOCK));
    let offset = [0u64];
    let at = offset.as_ptr();
    // An offset into a pipe comes before the direction, no bytes before the flags.
    sc!(SYS_splice, writer, at, file, 0, 5, 0).fails(ESPIPE);
    sc!(SYS_splice, -1i32, 0, -1i32, 0, 0, 1 << 20).is(0);
    sc!(SYS_sendfile, file, reader, at, 5).fails(ESPIPE);
    sc!(SYS_vmsplice, file, BAD, 1, 0).fails(EFAULT);
    let read_only = open("/proc/self/exe", O_RDONLY).fd();
    sc!(SYS_copy_file_range, read_only, 0, read_only, 0, 3, 1).fails(EINVAL);
    sc!(SYS_copy_file_range, reader, 0, read_only, 0, 3, 0).fails(EINVAL);
    // Nothing to read is no reason to wait.
    let mut pair = [0i32; 2];
    let kind = SOCK_DGRAM | SOCK_NONBLOCK;
    sc!(SYS_socketpair, AF_UNIX, kind, 0, pair.as_mut_ptr()).is(0);
    sc!(SYS_read, pair[0], pair.as_ptr(), 0).is(0);
}

/// lseek(2), preadv2(2).
fn positions() {
    let (file, (reader, _)) = (file(), pipe());
    sc!(SYS_lseek, reader, 0, 9).fails(EINVAL);
    sc!(SYS_lseek, reader, 0, SEEK_SET).fails(ESPIPE);
    sc!(SYS_lseek, sc!(SYS_eventfd2, 0, 0).fd(), 46, SEEK_END).is(0);
    let mut byte = [0u8];
    let vector = [byte.as_mut_ptr() as usize, 1];
    sc!(SYS_preadv2, reader, vector.as_ptr(), 1, 5, 0, 1 << 20).fails(ESPIPE);
    sc!(SYS_preadv, reader, BAD, 1, 5, 0).fails(ESPIPE);
    sc!(SYS_preadv2, file, vector.as_ptr(), 1, 5, 0, 1 << 20).fails(EOPNOTSUPP);
    sc!(SYS_preadv2, file, vector.as_ptr(), 1, 5, 0, RWF_APPEND).is(1);
    let pages = sc!(SYS_socket, AF_UNIX, SOCK_STREAM, 0).fd();
    sc!(SYS_fadvise64, pages, 0, 0, POSIX_FADV_NORMAL).is(0);
}

/// What is there comes before what one may do.
fn places() {
    let d = dir();
    let path = |name: &str| c(&format!("{d}/{name}"));
    sc!(SYS_mkdir, path("here").as_ptr(), 0o777).is(0);
    sc!(SYS_chmod, c(&d).as_ptr(), 0o777).is(0);
    sc!(SYS_renameat2, AT_FDCWD, BAD, AT_FDCWD, BAD, 3).fails(EINVAL);
    let mapped = anon(4096) as usize;
    mmap(mapped, 4096, PROT_READ, MAP_FIXED_NOREPLACE | MAP_ANONYMOUS, -1, 0).fails(EEXIST);
    in_child(|| {
        if sc!(SYS_setresuid, 64321, 64321, 64321).is_err() {
            return;
        }
        sc!(SYS_mknod, path("here").as_ptr(), S_IFCHR | 0o644, 0x103).fails(EEXIST);
        sc!(SYS_mknod, path("new").as_ptr(), S_IFCHR | 0o644, 0x103).fails(EPERM);
        let none = path("none");
        sc!(SYS_mount, c"x".as_ptr(), none.as_ptr(), 0, MS_BIND, 0).fails(ENOENT);
        sc!(SYS_umount2, none.as_ptr(), 0).fails(ENOENT);
    });
}

/// waitid(2) writes zeros where it has nothing to say, also when it fails.
fn waits_say_nothing() {
    let mut info =
        Siginfo { signo: 7, errno: 7, code: 7, pad: 7, pid: 7, uid: 7, ..Siginfo::default() };
    sc!(SYS_waitid, P_PID, 1 << 22 | 9, &raw mut info, WEXITED, 0).fails(ECHILD);
    assert_eq!((info.signo, info.errno, info.code, info.pad), (0, 0, 0, 7));
    assert_eq!((info.pid, info.uid, info.status), (0, 0, 0));
    info.signo = 7;
    sc!(SYS_waitid, P_ALL, 0, &raw mut info, 0, 0).fails(EINVAL);
    assert_eq!(info.signo, 0);
}

/// The links of /proc/self/fd, and the flags in fdinfo (proc_pid_fdinfo(5)).
fn what_descriptors_are_called() {
    let watcher = sc!(SYS_inotify_init1, O_NONBLOCK).fd();
    let link = std::fs::read_link(format!("/proc/self/fd/{watcher}")).expect("a link");
    assert_eq!(link.to_string_lossy(), "anon_inode:inotify");
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{watcher}")).expect("fdinfo");
    assert!(info.contains("flags:\t04000\n"), "{info}");
}

/// Text of /proc is made at once: nobody writes to it at a place (proc(5)).
fn files_of_proc() {
    let list = open("/proc/filesystems", O_RDONLY).fd();
    assert!(read(list, 64).starts_with(b"nodev\tsysfs\nnodev\ttmpfs\n"));
    let slack = open("/proc/self/timerslack_ns", O_RDWR).fd();
    sc!(SYS_pwrite64, slack, b"1".as_ptr(), 1, 17).fails(ESPIPE);
    sc!(SYS_pwrite64, slack, b"1".as_ptr(), 1, 0).fails(ESPIPE);
    sc!(SYS_pwrite64, list, b"1".as_ptr(), 1, 0).fails(ESPIPE);
    let map = open("/proc/self/uid_map", O_RDONLY).fd();
    sc!(SYS_pwrite64, map, b"1".as_ptr(), 1, 3).fails(ESPIPE);
    let environment = open("/proc/self/environ", O_RDONLY).fd();
    sc!(SYS_pwrite64, environment, b"1".as_ptr(), 1, 3).fails(EBADF);
    let mut text = [0u8; 4];
    let part = [text.as_mut_ptr() as usize, 4];
    sc!(SYS_pwritev2, list, part.as_ptr(), 1, 3, 0, 0).fails(ESPIPE);
    sc!(SYS_pwritev2, list, part.as_ptr(), 1, -1i64, 0, 0).fails(EBADF);
    let here = open("/", O_RDONLY).fd();
    sc!(SYS_preadv2, here, part.as_ptr(), 1, 0, 0, 8).fails(EOPNOTSUPP);
    let limits = open("/proc/self/limits", O_RDONLY).fd();
    sc!(SYS_copy_file_range, limits, 0, limits, 0, 12, 0).fails(EBADF);
    // A file of the system can be waited for, one of a process cannot.
    let (epoll, event) = (sc!(SYS_epoll_create1, 0).fd(), [0u32; 4]);
    sc!(SYS_epoll_ctl, epoll, EPOLL_CTL_ADD, list, event.as_ptr()).is(0);
    sc!(SYS_epoll_ctl, epoll, EPOLL_CTL_ADD, limits, event.as_ptr()).fails(EPERM);
    let process = sc!(SYS_pidfd_open, std::process::id(), 0).fd();
    let error = sc!(SYS_ftruncate, process, 0).expect_err("nothing to cut");
    assert!([EOPNOTSUPP, EINVAL].contains(&error), "{error}");
}

fn memory_and_scheduling() {
    sc!(SYS_pkey_mprotect, 1usize << 47, 4096, PROT_READ, 16).fails(EINVAL);
    sc!(SYS_mprotect, 1usize << 47, 4096, PROT_READ).fails(ENOMEM);
    // SCHED_FLAG_KEEP_PARAMS keeps a priority only where there is one.
    let attributes = |policy: u32, priority: u32| {
        let words: [u32; 12] = [48, policy, 0x10, 0, 0, priority, 0, 0, 0, 0, 0, 0];
        words
    };
    sc!(SYS_sched_setattr, 0, attributes(5, 50).as_ptr(), 0).fails(EINVAL);
    sc!(SYS_sched_setattr, 0, attributes(0, 50).as_ptr(), 0).fails(EINVAL);
    sc!(SYS_sched_setattr, 0, attributes(0, 0).as_ptr(), 0).is(0);
}

fn system_v() {
    let set = sc!(SYS_semget, IPC_PRIVATE, 3, 0o200).fd();
    let is_root = sc!(SYS_getuid).expect("an id") == 0;
    sc!(SYS_semctl, set, 9, SETVAL, 1).fails(EINVAL);
    sc!(SYS_semctl, set, 9, GETVAL, 0).fails(if is_root { EINVAL } else { EACCES });
    sc!(SYS_semctl, set, 0, IPC_RMID, 0).is(0);
    let segment = sc!(SYS_shmget, IPC_PRIVATE, 4096, 0o600).fd();
    let last_page = 4096usize.wrapping_neg();
    sc!(SYS_shmat, segment, last_page, SHM_REMAP).fails(ENOMEM);
    sc!(SYS_shmat, segment, last_page, 0).fails(EINVAL);
    sc!(SYS_shmctl, segment, IPC_RMID, 0).is(0);
    // MSG_COPY reads as much as it may write, from the beginning of the buffer on.
    let queue = sc!(SYS_msgget, IPC_PRIVATE, 0o600).fd();
    let buffer = anon(8192) as usize;
    sc!(SYS_munmap, buffer + 4096, 4096).is(0);
    let flags = 0o40000 | IPC_NOWAIT;
    sc!(SYS_msgrcv, queue, buffer, 4096, 2, flags).fails(ENOMSG);
    sc!(SYS_msgrcv, queue, buffer + 8, 4096, 2, flags).fails(EFAULT);
    sc!(SYS_msgctl, queue, IPC_RMID, 0).is(0);
}

/// What is no directory is said before what would be a circle; the way before where it ends.
fn renames() {
    let d = dir();
    let path = |name: &str| c(&format!("{d}/{name}"));
    for name in ["top", "top/closed"] {
        sc!(SYS_mkdir, path(name).as_ptr(), 0o777).is(0);
    }
    close(open(&format!("{d}/top/file"), O_CREAT | O_WRONLY).fd());
    let rename = |from: &str, to: &str| sc!(SYS_rename, path(from).as_ptr(), path(to).as_ptr());
    rename("top/file", "top/").fails(ENOTDIR);
    rename("top/file", "top").fails(ENOTEMPTY);
    rename("top", "top/closed/x").fails(EINVAL);
    rename("top/closed/..", "none").fails(EBUSY);
    sc!(SYS_chmod, path("top/closed").as_ptr(), 0o600).is(0);
    sc!(SYS_chmod, c(&d).as_ptr(), 0o777).is(0);
    in_child(|| {
        if sc!(SYS_setresuid, 64321, 64321, 64321).is_ok() {
            rename("top/closed/..", "none").fails(EACCES);
        }
    });
}

/// A write that takes nothing leaves nothing behind.
fn a_write_that_fails() {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("a release");
    let mut numbers = release.split('.').map_while(|number| number.parse::<u32>().ok());
    if (numbers.next(), numbers.next()) > (Some(6), Some(12)) {
        // Later Linuxes copy before they look whether anything is there, and keep the page.
        return;
    }
    let fd = sc!(SYS_memfd_create, c"short".as_ptr(), 0).fd();
    let hole = anon(8192) as usize;
    sc!(SYS_munmap, hole, 4096).is(0);
    sc!(SYS_write, fd, hole, 8192).fails(EFAULT);
    sc!(SYS_pwrite64, fd, hole, 10, 8192).fails(EFAULT);
    // SAFETY: a structure of numbers, which the call fills.
    let mut status: stat = unsafe { std::mem::zeroed() };
    sc!(SYS_fstat, fd, &raw mut status).is(0);
    assert_eq!((status.st_size.min(1), status.st_blocks), (0, 0));
    write(fd, b"x");
    assert_eq!(sc!(SYS_lseek, fd, 0, SEEK_END), Ok(1));
    // Nor in a hole before the end.
    let fd = sc!(SYS_memfd_create, c"hole".as_ptr(), 0).fd();
    sc!(SYS_ftruncate, fd, 10).is(0);
    sc!(SYS_pwrite64, fd, hole, 10, 5).fails(EFAULT);
    sc!(SYS_writev, fd, [[hole, 10], [hole, 0]].as_ptr(), 2).fails(EFAULT);
    sc!(SYS_fstat, fd, &raw mut status).is(0);
    assert_eq!((status.st_size, status.st_blocks), (10, 0));
}

/// remap_file_pages(2): another page of the file in a part of a shared mapping.
fn pages_of_a_file_elsewhere() {
    const PAGE: usize = 4096;
    let fd = sc!(SYS_memfd_create, c"pages".as_ptr(), 0).fd();
    sc!(SYS_ftruncate, fd, 4 * PAGE).is(0);
    for page in 0..4u8 {
        sc!(SYS_pwrite64, fd, [b'a' + page].as_ptr(), 1, usize::from(page) * PAGE).is(1);
    }
    let at = mmap(0, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0).must();
    // SAFETY: the pages are mapped for as long as the test runs.
    let letter = |page: usize| unsafe { ((at + page * PAGE) as *const u8).read_volatile() };
    let letters = || [letter(0), letter(1), letter(2), letter(3)];
    let remap = |page: usize, size: usize, prot: i32, offset: usize| {
        sc!(SYS_remap_file_pages, at + page * PAGE, size, prot, offset, 0)
    };
    remap(0, 2 * PAGE, 0, 2).is(0);
    assert_eq!(&letters(), b"cdcd");
    remap(3, PAGE + 1, 0, 0).is(0);
    assert_eq!(&letters(), b"cdca");
    // SAFETY: the pages are mapped for as long as the test runs, and writable.
    unsafe { ((at + 3 * PAGE) as *mut u8).write_volatile(b'x') };
    let mut first = [0u8];
    sc!(SYS_pread64, fd, first.as_mut_ptr(), 1, 0).is(1);
    assert_eq!(&first, b"x");
    remap(0, PAGE, PROT_READ, 0).fails(EINVAL);
    remap(0, 0, 0, 0).fails(EINVAL);
    remap(0, 8 * PAGE, 0, 0).fails(EINVAL);
    remap(0, PAGE, 0, usize::MAX).fails(EINVAL);
    let own = anon(PAGE) as usize;
    sc!(SYS_remap_file_pages, own, PAGE, 0, 0, 0).fails(EINVAL);
}

/// A stack grows right down to another one, and to what nobody can access; elsewhere a gap is kept.
fn a_stack_above_a_stack() {
    const PAGE: usize = 4096;
    let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    let place = anon(64 * PAGE) as usize;
    let map = |page: usize, prot: i32, more: i32| {
        mmap(place + page * PAGE, PAGE, prot, flags | more, -1, 0).is(place + page * PAGE);
    };
    // Whether a page right above the lower area can be had by growing down to it.
    let grows = |prot: i32, more: i32| {
        sc!(SYS_munmap, place, 64 * PAGE).is(0);
        map(10, prot, more);
        map(14, PROT_READ | PROT_WRITE, MAP_GROWSDOWN);
        let at = place + 11 * PAGE;
        let pid = fork(|| {
            // SAFETY: the page is a stack's, or the child ends by a signal.
            unsafe { (at as *mut u8).write_volatile(1) };
            0
        });
        let mut status = 0i32;
        sc!(SYS_wait4, pid, &raw mut status, 0, 0).is(pid as usize);
        status == 0
    };
    assert!(grows(PROT_READ, MAP_GROWSDOWN));
    assert!(grows(PROT_NONE, 0));
    assert!(!grows(PROT_READ, 0));
}

/// A listener that was shut down has no port any more, unless it chose one; and a socket that is
/// shut down shows the end.
fn listeners_and_options() {
    let mut name = [0u8; 16];
    name[0] = AF_INET as u8;
    name[4..8].copy_from_slice(&[127, 0, 0, 1]);
    let fd = sc!(SYS_socket, AF_INET, SOCK_STREAM, 0).fd();
    sc!(SYS_listen, fd, 1).is(0);
    sc!(SYS_bind, fd, name.as_ptr(), 16).fails(EINVAL);
    sc!(SYS_shutdown, fd, SHUT_RDWR).is(0);
    sc!(SYS_bind, fd, name.as_ptr(), 16).is(0);
    let idle = sc!(SYS_socket, AF_INET, SOCK_STREAM, 0).fd();
    sc!(SYS_shutdown, idle, SHUT_RD).fails(ENOTCONN);
    let mut ask = pollfd { fd: idle, events: POLLIN | POLLOUT | POLLRDHUP, revents: 0 };
    sc!(SYS_poll, &raw mut ask, 1, 0).is(1);
    assert_eq!(ask.revents, POLLIN | POLLOUT | POLLHUP | POLLRDHUP);
    // A level that the family does not have comes before the value; IPV6_MTU has a least one.
    sc!(SYS_setsockopt, idle, IPPROTO_IPV6, 23, BAD, 1).fails(ENOPROTOOPT);
    let six = sc!(SYS_socket, AF_INET6, SOCK_DGRAM, 0).fd();
    let mtu = |bytes: i32, len: usize| {
        sc!(SYS_setsockopt, six, IPPROTO_IPV6, IPV6_MTU, &raw const bytes, len)
    };
    mtu(4096, 4).is(0);
    mtu(0, 4).is(0);
    mtu(1279, 4).fails(EINVAL);
    mtu(4096, 1).fails(EINVAL);
}
