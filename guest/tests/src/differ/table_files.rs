//! The calls on files, directories, pipes and what else has a descriptor but is no socket.

use super::draft::{DIRS, Draft, FILES, Flags, IO, Kind, PIPES, Row};
use super::program::Norm;
use crate::sys::*;

const OPEN: Flags = &[
    O_RDONLY,
    O_RDWR,
    O_RDWR,
    O_WRONLY,
    O_CREAT,
    O_CREAT,
    O_EXCL,
    O_TRUNC,
    O_APPEND,
    O_NONBLOCK,
    O_DIRECTORY,
    O_NOFOLLOW,
    O_CLOEXEC,
    O_PATH,
    O_NOATIME,
    O_SYNC,
    O_ASYNC,
    O_TMPFILE,
];
const AT: Flags =
    &[AT_SYMLINK_NOFOLLOW, AT_EMPTY_PATH, AT_NO_AUTOMOUNT, AT_SYMLINK_FOLLOW, AT_EACCESS];
const NAMES: &[&[u8]] = &[
    b"user.a\0",
    b"user.b\0",
    b"user.\0",
    b"trusted.t\0",
    b"security.x\0",
    b"bad\0",
    b"system.posix_acl_access\0",
    b"\0",
];

/// What gives a program its first descriptors.
pub const OPENERS: &[Row] = &[
    (SYS_openat, 12, |d| {
        d.num(i64::from(AT_FDCWD));
        let name = d.rng.of(&[
            &b"f\0"[..],
            b"f\0",
            b"h\0",
            b"e\0",
            b"x\0",
            b"sp\0",
            b"new\0",
            b"d/g\0",
            b"ro\0",
        ]);
        d.input(name);
        let access = d.rng.of(&[O_RDWR, O_RDWR, O_RDONLY, O_WRONLY]);
        let more =
            d.rng.of(&[0, 0, 0, O_APPEND, O_CREAT, O_TRUNC, O_NONBLOCK, O_CREAT | O_CLOEXEC]);
        d.num(i64::from(access | more));
        d.num(0o644);
        d.makes(Kind::File);
    }),
    (SYS_openat, 4, |d| {
        d.num(i64::from(AT_FDCWD));
        let name = d.rng.of(&[&b".\0"[..], b"d\0", b"d/s\0", b"ld\0", b"sticky\0"]);
        d.input(name);
        d.of(&[i64::from(O_RDONLY), i64::from(O_DIRECTORY), i64::from(O_PATH)]);
        d.num(0);
        d.makes(Kind::Dir);
    }),
    (SYS_openat, 2, |d| {
        d.num(i64::from(AT_FDCWD));
        let name = d.rng.of(&[&b"f\0"[..], b"l\0", b"p\0", b"none\0", b"d\0"]);
        d.input(name);
        d.of(&[i64::from(O_PATH), i64::from(O_PATH | O_NOFOLLOW), i64::from(O_PATH | O_CLOEXEC)]);
        d.num(0);
        d.makes(Kind::Path);
    }),
    (SYS_openat, 2, |d| {
        d.num(i64::from(AT_FDCWD));
        d.input(b"p\0");
        d.of(&[i64::from(O_RDWR | O_NONBLOCK), i64::from(O_RDONLY | O_NONBLOCK)]);
        d.num(0);
        d.makes(Kind::PipeRead);
    }),
    (SYS_openat, 2, |d| {
        d.num(i64::from(AT_FDCWD));
        let name = d.rng.of(&[
            &b"/proc/self/comm\0"[..],
            b"/proc/self/oom_score_adj\0",
            b"/proc/self/limits\0",
            b"/dev/null\0",
            b"/dev/zero\0",
            b"/dev/full\0",
            b"/proc/self\0",
            b"/proc/self/fd\0",
            b"/proc/self/coredump_filter\0",
            b"/proc/self/timerslack_ns\0",
            b"/proc/self/personality\0",
            b"/proc/self/cmdline\0",
            b"/proc/sys/kernel/ostype\0",
            b"/proc/sys/fs/nr_open\0",
            b"/proc/self/uid_map\0",
            b"/proc/self/uid_map\0",
        ]);
        d.input(name);
        d.of(&[i64::from(O_RDWR), i64::from(O_RDONLY)]);
        d.num(0);
        d.makes(Kind::Proc);
    }),
    (SYS_pipe2, 8, pipe2),
    (SYS_eventfd2, 4, |d| {
        d.of(&[0, 1, 5, 0xffff_ffff]);
        d.of(&[i64::from(EFD_NONBLOCK), i64::from(EFD_NONBLOCK | EFD_SEMAPHORE)]);
        d.makes(Kind::Event)
    }),
    (SYS_timerfd_create, 3, |d| {
        d.of(&[0, 1, 7]);
        d.num(i64::from(TFD_NONBLOCK));
        d.makes(Kind::Timer)
    }),
    (SYS_signalfd4, 3, signalfd),
    (SYS_memfd_create, 5, memfd),
    (SYS_epoll_create1, 4, |d| {
        d.of(&[0, i64::from(EPOLL_CLOEXEC)]);
        d.makes(Kind::Epoll)
    }),
    (SYS_inotify_init1, 3, |d| {
        d.num(i64::from(IN_NONBLOCK));
        d.makes(Kind::Inotify)
    }),
    (SYS_pidfd_open, 2, |d| {
        d.id();
        d.of(&[0, 0, i64::from(O_NONBLOCK), 1 << 7]);
        d.makes(Kind::Pid)
    }),
];

fn pipe2(d: &mut Draft) {
    d.makes_pair(Kind::PipeRead, Kind::PipeWrite);
    d.of(&[
        i64::from(O_NONBLOCK),
        i64::from(O_NONBLOCK | O_CLOEXEC),
        i64::from(O_NONBLOCK),
        i64::from(O_NONBLOCK | O_DIRECT),
        0,
    ]);
}

fn signalfd(d: &mut Draft) {
    match d.chance(4) {
        true => d.fd(&[Kind::Signal]),
        false => d.num(-1),
    }
    let set = d.a_signal_set();
    d.words(&[set]);
    d.of(&[8, 8, 8, 8, 8, 4, 16]);
    d.num(i64::from(SFD_NONBLOCK));
    d.makes(Kind::Signal);
}

fn memfd(d: &mut Draft) {
    d.input(b"memory\0");
    d.of(&[0, 1, 2, 2, 3, 2, 8, 10, 0x18, 0x100]);
    d.makes(Kind::Memory);
}

/// What reading from a descriptor gives depends on what it is.
fn buffer_of(d: &mut Draft, kinds: &[Kind]) {
    d.fd(kinds);
    let at = d.buffer();
    match d.kind_of_first() {
        Some(Kind::Inotify) => d.call.norms.push((at, Norm::Inotify)),
        Some(Kind::Signal) => d.call.norms.push((at, Norm::SignalfdInfo)),
        _ => {}
    }
}

fn flock_struct(d: &mut Draft) {
    let kind = d.rng.of(&[F_RDLCK, F_WRLCK, F_UNLCK, F_RDLCK, F_WRLCK, 7]) as u64 & 0xffff;
    let whence = d.rng.of(&[0u64, 0, 1, 2, 9]);
    let start = d.rng.of(&[0u64, 10, 100, 4096, u64::MAX - 4, 50]);
    let length = d.rng.of(&[0u64, 1, 10, 100, u64::MAX - 4]);
    d.words(&[kind | whence << 16, start, length, 0]);
}

fn fcntl(d: &mut Draft) {
    d.fd(IO);
    match d.rng.below(14) {
        0..2 => {
            d.of(&[0, 1030]);
            d.of(&[0, 3, 10, 20, 100_000, -1]);
            d.makes(Kind::File)
        }
        2 => {
            d.of(&[1, 3, 9, 11, 1025, 1032, 1034]);
            d.num(0)
        }
        3 => {
            d.num(2);
            d.of(&[0, 1, 2, 3])
        }
        4 => {
            d.num(4);
            d.flags(&[O_NONBLOCK, O_NONBLOCK, O_NONBLOCK, O_APPEND, O_NOATIME, O_DIRECT]);
        }
        5..8 => {
            d.of(&[6, 37, 37, 6]);
            flock_struct(d)
        }
        8..10 => {
            d.of(&[5, 36]);
            let words = [
                u64::from(d.rng.of(&[F_RDLCK, F_WRLCK, F_WRLCK]) as u16),
                d.rng.of(&[0, 10, 100]),
                d.rng.of(&[0, 1, 50]),
                0,
            ];
            let at = d.words(&words);
            // The answer comes where the question stood, with the owner's id behind it.
            d.shows(at, 24);
        }
        10 => {
            d.num(1024);
            d.of(&[F_RDLCK.into(), F_WRLCK.into(), F_UNLCK.into()])
        }
        11 => {
            d.num(1031);
            d.of(&[4096, 65536, 8192, 5000, 0, 1 << 20, 1 << 30, -1])
        }
        12 => {
            d.of(&[1033]);
            d.of(&[1, 2, 4, 8, 16, 0x20, 3, 64])
        }
        _ => {
            let command = d.rng.of(&[8, 10, 15, 16]);
            d.num(command);
            // Small ids are those of others.
            if command == 8 { d.id() } else { d.of(&[0, 10, 12, 40, 70]) }
        }
    }
}

fn open_how(d: &mut Draft) {
    let flags = d.rng.of(&[
        O_RDONLY,
        O_RDWR,
        O_RDWR | O_CREAT,
        O_PATH,
        O_DIRECTORY,
        O_RDONLY | O_CLOEXEC,
        O_CREAT,
    ]) as u64;
    let mode = if flags & O_CREAT as u64 != 0 || d.chance(20) { 0o640 } else { 0 };
    // RESOLVE_CACHED without links: of those the time may have to be written first, or not.
    let resolve = d.rng.of(&[0u64, 0, 1, 2, 4, 8, 16, 0x24, 0x40, 12]);
    d.words(&[flags, mode, resolve]);
    d.of(&[24, 24, 24, 24, 16, 32, 0, 5000]);
}

fn epoll_event(d: &mut Draft) {
    let events =
        d.rng.of(&[1u32, 4, 5, 1 | 1 << 31, 1 | 1 << 30, 0x2000, 1 | 1 << 28, 5 | 1 << 31, 0]);
    let mut bytes = events.to_ne_bytes().to_vec();
    bytes.extend(d.rng.below(100).to_ne_bytes());
    d.input(&bytes);
}

fn pollfds(d: &mut Draft) {
    let count = d.rng.below(5);
    let mut words = Vec::new();
    let mut fixes = Vec::new();
    for number in 0..count {
        let events = d.rng.of(&[1u64, 4, 5, 0x2000, 0, 0x41, 2, 0xffff]);
        words.push(events << 32);
        let fd = d.pick(IO);
        fixes.push((number as u16 * 8, fd));
    }
    // Where the answers are is read back: so it lies in the output area's neighbour, by a copy.
    let at = d.words(&words);
    for (offset, fd) in fixes {
        d.fix(at + offset, 4, fd);
    }
    d.num(count as i64);
    d.shows(at, count as u16 * 8);
}

fn xattr(d: &mut Draft) {
    let name = d.rng.of(NAMES);
    d.input(name);
}

fn times(d: &mut Draft) {
    let choices = [
        [1000u64, 5, 2000, 6],
        [0, (1 << 30) - 1, 0, (1 << 30) - 2],
        [0, (1 << 30) - 2, 77, 0],
        [5, 1_000_000_000, 5, 0],
        [u64::MAX, 0, u64::MAX, 0],
        [0, 0, 0, 0],
        [1 << 33, 9, 1 << 31, 9],
    ];
    let words = d.rng.of(&choices);
    d.words_or_null(&words);
}

fn offset_pointer(d: &mut Draft) {
    match d.chance(2) {
        true => d.num(0),
        false => {
            let value = d.rng.of(&[0u64, 10, 4096, 5000, u64::MAX, i64::MAX as u64]);
            let at = d.words(&[value]);
            d.shows(at, 8);
        }
    }
}

/// The table.
pub const ROWS: &[Row] = &[
    (SYS_openat, 30, |d| {
        d.dirfd();
        d.path();
        d.flags_nonblocking(OPEN);
        d.mode();
        d.makes(Kind::File)
    }),
    (SYS_open, 6, |d| {
        d.path();
        d.flags_nonblocking(OPEN);
        d.mode();
        d.makes(Kind::File)
    }),
    (SYS_creat, 3, |d| {
        d.path();
        d.mode();
        d.makes(Kind::File)
    }),
    (SYS_openat2, 12, |d| {
        d.dirfd();
        d.path_without_fifo();
        open_how(d);
        d.makes(Kind::File)
    }),
    (SYS_close, 8, |d| d.any_fd()),
    (SYS_close_range, 2, |d| {
        d.of(&[5, 8, 10, 30]);
        d.of(&[6, 9, 40, 2]);
        d.of(&[0, 2, 4, 1])
    }),
    (SYS_read, 24, |d| buffer_of(d, IO)),
    (SYS_write, 26, |d| {
        d.fd(IO);
        d.data()
    }),
    (SYS_pread64, 10, |d| {
        d.fd(FILES);
        d.buffer();
        d.offset()
    }),
    (SYS_pwrite64, 10, |d| {
        d.fd(FILES);
        d.data();
        d.offset()
    }),
    (SYS_readv, 6, |d| {
        d.fd(FILES_PIPES);
        d.iovecs(true)
    }),
    (SYS_writev, 6, |d| {
        d.fd(FILES_PIPES);
        d.iovecs(false)
    }),
    (SYS_preadv, 3, |d| {
        d.fd(FILES);
        d.iovecs(true);
        d.offset();
        d.num(0)
    }),
    (SYS_pwritev, 3, |d| {
        d.fd(FILES);
        d.iovecs(false);
        d.offset();
        d.num(0)
    }),
    (SYS_preadv2, 4, |d| {
        d.fd(FILES_PIPES);
        d.iovecs(true);
        d.offset();
        d.num(0);
        d.flags(&[1, 2, 4, 8, 16])
    }),
    (SYS_pwritev2, 4, |d| {
        d.fd(FILES_PIPES);
        d.iovecs(false);
        d.offset();
        d.num(0);
        d.flags(&[1, 2, 4, 8, 16, 32])
    }),
    (SYS_lseek, 14, |d| {
        d.fd(FILES);
        d.offset();
        d.of(&[0, 1, 2, 3, 4, 3, 4, 5, -1])
    }),
    (SYS_dup, 4, |d| {
        d.any_fd();
        d.makes(Kind::File)
    }),
    (SYS_dup2, 4, |d| {
        d.any_fd();
        d.of(&[10, 11, 20, -1, 100_000, 5, 3]);
        d.makes(Kind::File)
    }),
    (SYS_dup3, 4, |d| {
        d.any_fd();
        d.of(&[10, 11, 20, -1, 100_000, 3]);
        d.of(&[0, i64::from(O_CLOEXEC), 1]);
        d.makes(Kind::File)
    }),
    (SYS_fcntl, 30, fcntl),
    (SYS_flock, 6, |d| {
        d.fd(FILES);
        d.of(&[5, 6, 8, 4, 6, 5, 0, 9, 32])
    }),
    (SYS_fsync, 2, |d| d.any_fd()),
    (SYS_fdatasync, 2, |d| d.any_fd()),
    (SYS_truncate, 6, |d| {
        d.path();
        d.offset()
    }),
    (SYS_ftruncate, 8, |d| {
        d.fd(FILES);
        d.offset()
    }),
    (SYS_fallocate, 10, |d| {
        d.fd(FILES);
        d.of(&[0, 1, 3, 3, 2, 16, 17, 8, 32, 64, 9, 0]);
        d.offset();
        d.offset()
    }),
    (SYS_fadvise64, 3, |d| {
        d.any_fd();
        d.offset();
        d.offset();
        d.of(&[0, 1, 2, 3, 4, 5, 6, -1])
    }),
    (SYS_readahead, 2, |d| {
        d.any_fd();
        d.offset();
        d.length()
    }),
    (SYS_sync_file_range, 2, |d| {
        d.any_fd();
        d.offset();
        d.offset();
        d.of(&[0, 1, 2, 4, 7, 8])
    }),
    (SYS_copy_file_range, 8, |d| {
        d.fd(FILES);
        offset_pointer(d);
        d.fd(FILES);
        offset_pointer(d);
        d.length();
        d.of(&[0, 0, 0, 0, 0, 1])
    }),
    (SYS_sendfile, 8, |d| {
        d.fd(IO);
        d.fd(FILES);
        offset_pointer(d);
        d.length()
    }),
    (SYS_splice, 10, |d| {
        d.fd(FILES_PIPES);
        offset_pointer(d);
        d.fd(FILES_PIPES);
        offset_pointer(d);
        d.length();
        d.of(&[2, 2, 2, 3, 6, 16])
    }),
    (SYS_tee, 5, |d| {
        d.fd(&[Kind::PipeRead]);
        d.fd(&[Kind::PipeWrite]);
        d.length();
        d.of(&[2, 2, 2, 16])
    }),
    (SYS_vmsplice, 4, |d| {
        d.fd(PIPES);
        d.iovecs(false);
        d.of(&[2, 2, 2, 16])
    }),
    (SYS_getdents64, 8, |d| {
        d.fd(DIRS);
        let at = d.buffer();
        d.call.norms.push((at, Norm::Dents))
    }),
    (SYS_getcwd, 3, |d| {
        d.out(200);
        d.of(&[200, 4096, 1, 5, 0, 10, 13, 14, 15])
    }),
    (SYS_chdir, 4, |d| d.path()),
    (SYS_fchdir, 3, |d| d.fd(DIRS)),
    (SYS_rename, 8, |d| {
        d.path();
        d.path()
    }),
    (SYS_renameat, 3, |d| {
        d.dirfd();
        d.path();
        d.dirfd();
        d.path()
    }),
    (SYS_renameat2, 8, |d| {
        d.dirfd();
        d.path();
        d.dirfd();
        d.path();
        d.of(&[0, 1, 2, 4, 3, 5, 8])
    }),
    (SYS_mkdir, 5, |d| {
        d.path();
        d.mode()
    }),
    (SYS_mkdirat, 4, |d| {
        d.dirfd();
        d.path();
        d.mode()
    }),
    (SYS_rmdir, 6, |d| d.path()),
    (SYS_link, 5, |d| {
        d.path();
        d.path()
    }),
    (SYS_linkat, 6, |d| {
        d.dirfd();
        d.path();
        d.dirfd();
        d.path();
        d.flags(AT)
    }),
    (SYS_unlink, 8, |d| d.path()),
    (SYS_unlinkat, 6, |d| {
        d.dirfd();
        d.path();
        d.of(&[0, 0, 0x200, 0x200, 1, 0x100])
    }),
    (SYS_symlink, 4, |d| {
        d.path();
        d.path()
    }),
    (SYS_symlinkat, 3, |d| {
        d.path();
        d.dirfd();
        d.path()
    }),
    (SYS_readlink, 4, |d| {
        d.path();
        d.out(100);
        d.of(&[100, 1, 0, -1, 3])
    }),
    (SYS_readlinkat, 5, |d| {
        d.dirfd();
        if d.chance(4) {
            d.input(b"\0");
        } else {
            d.path()
        };
        d.out(100);
        d.of(&[100, 1, 0, -1, 3])
    }),
    (SYS_chmod, 4, |d| {
        d.path();
        d.mode()
    }),
    (SYS_fchmod, 4, |d| {
        d.any_fd();
        d.mode()
    }),
    (SYS_fchmodat, 3, |d| {
        d.dirfd();
        d.path();
        d.mode()
    }),
    (452, 3, |d| {
        d.dirfd();
        d.path_flags_swapped(|d| d.mode(), &[0x100, 0x1000, 0x800])
    }),
    (SYS_chown, 3, |d| {
        d.path();
        owner(d)
    }),
    (SYS_lchown, 3, |d| {
        d.path();
        owner(d)
    }),
    (SYS_fchown, 3, |d| {
        d.any_fd();
        owner(d)
    }),
    (SYS_fchownat, 4, |d| {
        d.dirfd();
        d.path_flags_swapped(owner, &[0x100, 0x1000])
    }),
    (SYS_access, 4, |d| {
        d.path();
        d.of(&[0, 1, 2, 4, 7, 6, 8, -1])
    }),
    (SYS_faccessat, 3, |d| {
        d.dirfd();
        d.path();
        d.of(&[0, 1, 2, 4, 7, 8])
    }),
    (439, 4, |d| {
        d.dirfd();
        d.path_flags_swapped(|d| d.of(&[0, 1, 2, 4, 7, 8]), AT)
    }),
    (SYS_stat, 8, |d| {
        d.path();
        d.out_as(144, Norm::Stat)
    }),
    (SYS_lstat, 5, |d| {
        d.path();
        d.out_as(144, Norm::Stat)
    }),
    (SYS_fstat, 10, |d| {
        d.any_fd();
        d.out_as(144, Norm::Stat)
    }),
    (SYS_newfstatat, 6, |d| {
        d.dirfd();
        d.path_flags_swapped(|d| d.out_as(144, Norm::Stat), AT)
    }),
    (SYS_statx, 8, |d| {
        d.dirfd();
        d.path_flags(&[0x100, 0x800, 0x2000, 0x4000, 0x6000]);
        d.of(&[0x7ff, 0xfff, 0x1000, 0, 1 << 31, 0x20]);
        d.out_as(256, Norm::Statx)
    }),
    (SYS_statfs, 3, |d| {
        d.path();
        d.out_as(120, Norm::Statfs)
    }),
    (SYS_fstatfs, 4, |d| {
        d.any_fd();
        d.out_as(120, Norm::Statfs)
    }),
    (SYS_utimensat, 8, |d| {
        d.dirfd();
        if d.chance(5) {
            d.num(0)
        } else {
            d.path()
        };
        times(d);
        d.of(&[0, 0, 0x100, 0x1000, 1])
    }),
    (SYS_utimes, 2, |d| {
        d.path();
        times(d)
    }),
    (SYS_futimesat, 2, |d| {
        d.dirfd();
        d.path();
        times(d)
    }),
    (SYS_utime, 2, |d| {
        d.path();
        d.words_or_null(&[500, 600])
    }),
    (SYS_umask, 3, |d| d.of(&[0, 0o22, 0o77, 0o777, 0o7777, -1])),
    (SYS_mknod, 3, |d| {
        d.path();
        d.of(&[0o100_644, 0o10_644, 0o140_644, 0o20_644, 0o40_755, 0o644, 0o120_777, 0o170_000]);
        d.of(&[0, 0x103, 0x105])
    }),
    (SYS_mknodat, 3, |d| {
        d.dirfd();
        d.path();
        d.of(&[0o100_644, 0o10_644, 0o140_644, 0o20_644, 0o644]);
        d.of(&[0, 0x103])
    }),
    (SYS_setxattr, 5, |d| {
        d.path();
        xattr(d);
        d.data();
        d.of(&[0, 0, 1, 2, 3, 4])
    }),
    (SYS_lsetxattr, 3, |d| {
        d.path();
        xattr(d);
        d.data();
        d.of(&[0, 1, 2])
    }),
    (SYS_fsetxattr, 5, |d| {
        d.any_fd();
        xattr(d);
        d.data();
        d.of(&[0, 0, 1, 2])
    }),
    (SYS_getxattr, 4, |d| {
        d.path();
        xattr(d);
        d.buffer();
    }),
    (SYS_lgetxattr, 2, |d| {
        d.path();
        xattr(d);
        d.buffer();
    }),
    (SYS_fgetxattr, 4, |d| {
        d.any_fd();
        xattr(d);
        d.buffer();
    }),
    (SYS_removexattr, 3, |d| {
        d.path();
        xattr(d)
    }),
    (SYS_lremovexattr, 2, |d| {
        d.path();
        xattr(d)
    }),
    (SYS_fremovexattr, 3, |d| {
        d.any_fd();
        xattr(d)
    }),
    (SYS_ioctl, 10, |d| {
        d.any_fd();
        d.of(&[0x541b, 0x5401, 0x5413, 0x8008_6601, 0x541b, 0x5452_0000]);
        d.out(64);
    }),
    (SYS_ioctl, 6, |d| {
        d.any_fd();
        d.of(&[0x5451, 0x5450]);
        d.num(0)
    }),
    (SYS_ioctl, 4, |d| {
        d.any_fd();
        d.of(&[0x5421, 0x5421, 0x5452]);
        let on = d.rng.of(&[1u64, 1, 1, 0]);
        d.words(&[on]);
    }),
    (SYS_inotify_add_watch, 10, |d| {
        d.fd(&[Kind::Inotify]);
        d.path();
        d.of(&[
            0xfff,
            0xfff,
            0x100,
            0x300,
            0xc0,
            0x2000_0002,
            0x8000_0fff,
            0x0100_0fff,
            0x0200_0002,
            0x1000_0100,
            0,
            0x0400_0fff,
        ]);
        d.makes(Kind::Watch)
    }),
    (SYS_inotify_rm_watch, 3, |d| {
        d.fd(&[Kind::Inotify]);
        d.fd(&[Kind::Watch])
    }),
    (SYS_pipe2, 6, pipe2),
    (SYS_eventfd2, 2, |d| {
        d.of(&[0, 1, -2]);
        d.flags(&[1, EFD_NONBLOCK, EFD_NONBLOCK, EFD_CLOEXEC]);
        d.makes(Kind::Event)
    }),
    (SYS_timerfd_create, 2, |d| {
        d.of(&[0, 1, 7, 3, -1, 11]);
        d.of(&[i64::from(TFD_NONBLOCK), 1, i64::from(TFD_CLOEXEC)]);
        d.makes(Kind::Timer)
    }),
    (SYS_timerfd_settime, 5, |d| {
        d.fd(&[Kind::Timer]);
        d.of(&[0, 1, 3, 4]);
        let w = d.rng.of(FAR);
        d.words(&w);
        d.out_or_null(32, Norm::Time(32))
    }),
    (SYS_timerfd_gettime, 3, |d| {
        d.fd(&[Kind::Timer]);
        d.out_as(32, Norm::Time(32))
    }),
    (SYS_signalfd4, 3, signalfd),
    (SYS_memfd_create, 3, memfd),
    (SYS_epoll_create1, 1, |d| {
        d.of(&[0, 1, i64::from(EPOLL_CLOEXEC)]);
        d.makes(Kind::Epoll)
    }),
    (SYS_epoll_create, 1, |d| {
        d.of(&[0, 1, -1]);
        d.makes(Kind::Epoll)
    }),
    (SYS_epoll_ctl, 16, |d| {
        d.fd(&[Kind::Epoll]);
        d.of(&[1, 1, 1, 2, 3, 0, 4]);
        d.fd(IO);
        epoll_event(d)
    }),
    (SYS_epoll_wait, 10, |d| {
        d.fd(&[Kind::Epoll]);
        d.out(12 * 8);
        d.of(&[8, 8, 8, 1, 0, -1]);
        d.of(&[0, 0, 0, 1])
    }),
    (SYS_epoll_pwait, 3, |d| {
        d.fd(&[Kind::Epoll]);
        d.out(12 * 8);
        d.of(&[8, 1]);
        d.num(0);
        let s = d.a_signal_set();
        d.words_or_null(&[s]);
        d.of(&[8, 8, 8, 4])
    }),
    (SYS_poll, 10, |d| {
        pollfds(d);
        d.of(&[0, 0, 0, 1])
    }),
    (SYS_ppoll, 5, |d| {
        pollfds(d);
        d.words(&[0, 0]);
        let s = d.a_signal_set();
        d.words_or_null(&[s]);
        d.of(&[8, 8, 8, 4])
    }),
    (SYS_select, 5, |d| {
        d.of(&[16, 24, 0, -1, 7]);
        for _ in 0..3 {
            let mask = d.rng.of(&[0xff00u64, 0xf8, 0, 0x18, 1 << 40]);
            match d.chance(3) {
                true => d.num(0),
                false => {
                    let at = d.words(&[mask]);
                    d.shows(at, 8)
                }
            }
        }
        d.words(&[0, 0]);
    }),
    (SYS_pidfd_open, 2, |d| {
        d.id();
        d.of(&[0, 0, i64::from(O_NONBLOCK), 1]);
        d.makes(Kind::Pid)
    }),
    (SYS_pidfd_getfd, 2, |d| {
        d.fd(&[Kind::Pid]);
        d.of(&[3, 4, 5, 99, -1]);
        d.of(&[0, 0, 1]);
        d.makes(Kind::File)
    }),
    (SYS_name_to_handle_at, 2, |d| {
        d.dirfd();
        d.path();
        d.words(&[0, 0]);
        d.out_as(4, Norm::Time(4));
        d.of(&[0, 0x400, 0x1000, 1])
    }),
    (SYS_getrandom, 1, |d| {
        d.num(0);
        d.of(&[0, 0]);
        d.of(&[0, 1, 2, 4, 8, 6])
    }),
];

/// Times that do not come while a program runs.
const FAR: &[[u64; 4]] = &[
    [0, 0, 0, 0],
    [0, 0, 100_000, 0],
    [50_000, 0, 100_000, 0],
    [0, 0, 1 << 40, 0],
    [0, 0, 5, 1_000_000_000],
    [u64::MAX, 0, 5, 0],
    [0, u64::MAX, 100_000, 0],
];
const FILES_PIPES: &[Kind] =
    &[Kind::File, Kind::Memory, Kind::PipeRead, Kind::PipeWrite, Kind::Unix, Kind::File];

fn owner(d: &mut Draft) {
    d.of(&[0, 1000, -1, -1, 5, 1 << 32]);
    d.of(&[0, 1000, -1, -1, 5]);
}
