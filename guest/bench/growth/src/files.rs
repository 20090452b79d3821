//! Rows about descriptors, locks, page cache, mounts and pipes.

use libc::*;

use crate::cost::Cost;
use crate::sys::{PAGE, at, close, create, good, open, path, pipe};
use crate::{MANY, Row, SOME};

pub const ROWS: &[Row] = &[
    Row { name: "open_close_among_descriptors", sizes: MANY, run: open_close },
    Row { name: "dup_close_among_descriptors", sizes: MANY, run: dup },
    Row { name: "close_range_of_descriptors", sizes: MANY, run: close_range },
    Row { name: "pipe_close_among_pipes", sizes: SOME, run: pipes },
    Row { name: "fcntl_lock_among_ranges", sizes: SOME, run: lock },
    Row { name: "fcntl_getlk_among_ranges", sizes: SOME, run: getlk },
    Row { name: "fcntl_lock_among_owners", sizes: SOME, run: lock_owners },
    Row { name: "flock_among_files", sizes: SOME, run: flock },
    Row { name: "mount_umount_among_mounts", sizes: [10, 100, 1000, 2000], run: mount },
    Row { name: "stat_among_mounts", sizes: [10, 100, 1000, 2000], run: stat_mounts },
    Row { name: "pread_of_file_pages", sizes: SOME, run: pread },
    Row { name: "pread_sparse_file", sizes: [10, 1000, 100_000, 10_000_000], run: sparse },
    Row { name: "write_file_pages", sizes: SOME, run: write },
    Row { name: "truncate_file_pages", sizes: SOME, run: truncate },
];

fn descriptors(n: usize) {
    let fd = open(c"/dev/null", O_RDONLY);
    (0..n).for_each(|_| _ = good(SYS_dup, &[fd]));
}

fn open_close(cost: &mut Cost, n: usize) {
    descriptors(n);
    cost.repeat(|| close(open(c"/dev/null", O_RDONLY)));
}

fn dup(cost: &mut Cost, n: usize) {
    descriptors(n);
    cost.repeat(|| close(good(SYS_dup, &[0])));
}

fn close_range(cost: &mut Cost, n: usize) {
    for _ in 0..cost.few() {
        descriptors(n);
        cost.time(|| good(SYS_close_range, &[3, usize::from(u16::MAX), 0]));
    }
}

fn pipes(cost: &mut Cost, n: usize) {
    (0..n).for_each(|_| _ = pipe());
    cost.repeat(|| {
        let (read, write) = pipe();
        close(read);
        close(write);
    });
}

fn range(kind: i32, start: usize) -> flock {
    // SAFETY: a structure of integers.
    let mut range: flock = unsafe { std::mem::zeroed() };
    (range.l_type, range.l_start, range.l_len) = (kind as i16, start as i64, 1);
    range
}

fn fcntl(fd: usize, op: i32, mut range: flock) -> usize {
    good(SYS_fcntl, &[fd, op as usize, &raw mut range as usize])
}

/// A file with `n` locks on each second byte.
fn locked(n: usize) -> usize {
    let fd = create(&path("locked"));
    (0..n).for_each(|i| _ = fcntl(fd, F_SETLK, range(F_WRLCK, i * 2)));
    fd
}

fn lock(cost: &mut Cost, n: usize) {
    let fd = locked(n);
    // Apart from its neighbours: nothing merges.
    let free = 2 * n + 10;
    let middle = n / 2 * 2;
    cost.repeat(|| {
        fcntl(fd, F_SETLK, range(F_WRLCK, free));
        fcntl(fd, F_SETLK, range(F_UNLCK, free));
        fcntl(fd, F_SETLK, range(F_UNLCK, middle));
        fcntl(fd, F_SETLK, range(F_WRLCK, middle))
    });
}

fn getlk(cost: &mut Cost, n: usize) {
    let fd = locked(n);
    cost.repeat(|| fcntl(fd, F_GETLK, range(F_WRLCK, n / 2 * 2 + 1)));
}

/// Each lock by a description of its own.
fn lock_owners(cost: &mut Cost, n: usize) {
    let name = path("locked");
    let fd = create(&name);
    for i in 0..n {
        fcntl(open(&name, O_RDWR), F_OFD_SETLK, range(F_WRLCK, i * 2));
    }
    let middle = n / 2 * 2 + 1;
    cost.repeat(|| {
        fcntl(fd, F_OFD_SETLK, range(F_WRLCK, middle));
        fcntl(fd, F_OFD_SETLK, range(F_UNLCK, middle))
    });
}

fn flock(cost: &mut Cost, n: usize) {
    for i in 0..n {
        let fd = create(&path(format_args!("flock-{i}")));
        good(SYS_flock, &[fd, LOCK_EX as usize]);
    }
    let fd = create(&path("flock"));
    cost.repeat(|| {
        good(SYS_flock, &[fd, LOCK_EX as usize]);
        good(SYS_flock, &[fd, LOCK_UN as usize])
    });
    for i in 0..n {
        good(SYS_unlink, &[at(&path(format_args!("flock-{i}")))]);
    }
}

fn mount_at(name: &std::ffi::CStr) {
    let tmpfs = at(c"tmpfs");
    good(SYS_mount, &[tmpfs, at(name), tmpfs, 0, 0]);
}

/// Runs it among `n` mounts.
fn among_mounts(n: usize, body: impl FnOnce()) {
    let place = |i: usize| path(format_args!("mount-{i}"));
    for i in 0..n {
        good(SYS_mkdir, &[at(&place(i)), 0o755]);
        mount_at(&place(i));
    }
    body();
    for i in 0..n {
        good(SYS_umount2, &[at(&place(i)), 0]);
        good(SYS_rmdir, &[at(&place(i))]);
    }
}

fn mount(cost: &mut Cost, n: usize) {
    let place = path("place");
    good(SYS_mkdir, &[at(&place), 0o755]);
    among_mounts(n, || {
        cost.repeat(|| {
            mount_at(&place);
            good(SYS_umount2, &[at(&place), 0])
        });
    });
    good(SYS_rmdir, &[at(&place)]);
}

fn stat_mounts(cost: &mut Cost, n: usize) {
    let place = path(format_args!("mount-{}/.", n / 2));
    among_mounts(n, || {
        let mut stat = [0u64; 32];
        cost.repeat(|| good(SYS_stat, &[at(&place), stat.as_mut_ptr() as usize]));
    });
}

/// A file of `n` pages.
fn file_of(n: usize) -> usize {
    let fd = create(&path("pages"));
    let page = [1u8; PAGE];
    (0..n).for_each(|_| _ = good(SYS_write, &[fd, page.as_ptr() as usize, PAGE]));
    fd
}

fn pread(cost: &mut Cost, n: usize) {
    let fd = file_of(n);
    let mut page = [0u8; PAGE];
    cost.repeat(|| good(SYS_pread64, &[fd, page.as_mut_ptr() as usize, PAGE, n / 2 * PAGE]));
}

/// `n` is the page of the only byte.
fn sparse(cost: &mut Cost, n: usize) {
    let fd = create(&path("sparse"));
    let mut byte = 1u8;
    let byte = &raw mut byte as usize;
    cost.repeat(|| {
        good(SYS_pwrite64, &[fd, byte, 1, n * PAGE]);
        good(SYS_pread64, &[fd, byte, 1, n * PAGE]);
        good(SYS_ftruncate, &[fd, 0])
    });
}

fn write(cost: &mut Cost, n: usize) {
    let buf = vec![1u8; n * PAGE];
    let fd = create(&path("written"));
    for _ in 0..cost.few() {
        good(SYS_ftruncate, &[fd, 0]);
        cost.time(|| good(SYS_pwrite64, &[fd, buf.as_ptr() as usize, buf.len(), 0]));
    }
}

fn truncate(cost: &mut Cost, n: usize) {
    for _ in 0..cost.few() {
        let fd = file_of(n);
        cost.time(|| good(SYS_ftruncate, &[fd, 0]));
        close(fd);
    }
}
