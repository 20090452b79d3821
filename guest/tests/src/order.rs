//! Which of several errors a call gives: as Linux checks its arguments, in that order.
//!
//! Each row was found by the differential fuzzer (`differ/`). Programs that probe for what a kernel
//! can do rely on it: EINVAL says that a flag is not known, EBADF that a descriptor is not open.

use crate::sc;
use crate::sys::*;
use crate::tests;

tests! { "order": descriptors_and_flags, transfers, positions, places, waits_say_nothing,
what_descriptors_are_called }

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
