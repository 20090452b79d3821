//! Rows about descriptors, locks, page cache, mounts and pipes.

use libc::*;

use crate::cost::Cost;
use crate::sys::{PAGE, at, close, create, good, open, path, pipe, read_all};
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
    Row { name: "seek_data_past_pages_of_hole", sizes: [10, 1000, 100_000, 10_000_000], run: seek },
    Row { name: "writev_of_buffers", sizes: [10, 100, 500, 1000], run: writev },
    Row { name: "proc_fd_list_of_descriptors", sizes: MANY, run: proc_fd },
    Row { name: "close_with_locks", sizes: SOME, run: close_locked },
    Row { name: "mountinfo_of_mounts", sizes: [10, 100, 1000, 2000], run: mountinfo },
    Row { name: "umount_detach_of_mounts", sizes: [10, 100, 1000, 2000], run: detach },
    Row { name: "bind_recursive_of_mounts", sizes: [10, 100, 1000, 2000], run: bind },
    Row { name: "setxattr_remove_among_attributes", sizes: [10, 100, 1000, 4000], run: xattr },
    Row { name: "getxattr_among_attributes", sizes: [10, 100, 1000, 4000], run: getxattr },
    Row { name: "listxattr_of_attributes", sizes: [10, 100, 1000, 4000], run: listxattr },
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

fn seek(cost: &mut Cost, n: usize) {
    let fd = create(&path("hole"));
    let byte = 1u8;
    good(SYS_pwrite64, &[fd, &raw const byte as usize, 1, n * PAGE]);
    cost.repeat(|| assert_eq!(good(SYS_lseek, &[fd, 0, SEEK_DATA as usize]), n * PAGE));
    good(SYS_unlink, &[at(&path("hole"))]);
}

fn writev(cost: &mut Cost, n: usize) {
    let fd = create(&path("written"));
    let bytes = [1u8; 64];
    let vectors = vec![[bytes.as_ptr() as usize, bytes.len()]; n];
    let vectors = vectors.as_ptr() as usize;
    cost.repeat(|| assert_eq!(good(SYS_pwritev, &[fd, vectors, n, 0, 0]), 64 * n));
}

fn proc_fd(cost: &mut Cost, n: usize) {
    descriptors(n);
    let mut buf = vec![0u8; 32 << 10];
    let (address, size) = (buf.as_mut_ptr() as usize, buf.len());
    cost.repeat(|| {
        let fd = open(c"/proc/self/fd", O_RDONLY | O_DIRECTORY);
        while good(SYS_getdents64, &[fd, address, size]) > 0 {}
        close(fd);
    });
}

/// Locks of the process go when it closes the file by any descriptor (fcntl_locking(2)).
fn close_locked(cost: &mut Cost, n: usize) {
    for _ in 0..cost.few() {
        let fd = locked(n);
        cost.time(|| close(fd));
    }
}

fn mountinfo(cost: &mut Cost, n: usize) {
    let mut buf = vec![0u8; 16 << 10];
    among_mounts(n, || {
        cost.repeat(|| assert!(read_all(c"/proc/self/mountinfo", &mut buf) > n));
    });
}

/// Runs it `turns` times with a mount at `top` that has `n - 1` mounts in it; takes what is left.
fn with_tree(turns: usize, n: usize, mut body: impl FnMut(&std::ffi::CStr)) {
    let top = path("top");
    good(SYS_mkdir, &[at(&top), 0o755]);
    for _ in 0..turns {
        mount_at(&top);
        for i in 1..n {
            let place = path(format_args!("top/{i}"));
            good(SYS_mkdir, &[at(&place), 0o755]);
            mount_at(&place);
        }
        body(&top);
    }
    good(SYS_rmdir, &[at(&top)]);
}

fn umount_all(top: &std::ffi::CStr) -> usize {
    good(SYS_umount2, &[at(top), MNT_DETACH as usize])
}

fn detach(cost: &mut Cost, n: usize) {
    with_tree(cost.few(), n, |top| _ = cost.time(|| umount_all(top)));
}

fn bind(cost: &mut Cost, n: usize) {
    let copy = path("copy");
    good(SYS_mkdir, &[at(&copy), 0o755]);
    with_tree(cost.few(), n, |top| {
        let flags = (MS_BIND | MS_REC) as usize;
        cost.time(|| good(SYS_mount, &[at(top), at(&copy), 0, flags, 0]));
        umount_all(&copy);
        umount_all(top);
    });
    good(SYS_rmdir, &[at(&copy)]);
}

fn attribute(i: usize) -> std::ffi::CString {
    std::ffi::CString::new(format!("trusted.{i}")).expect("no zero")
}

fn set(fd: usize, name: &std::ffi::CStr) -> usize {
    good(SYS_fsetxattr, &[fd, at(name), at(c"value"), 5, 0])
}

/// A file with `n` extended attributes.
fn attributed(n: usize) -> usize {
    let fd = create(&path("attributed"));
    (0..n).for_each(|i| _ = set(fd, &attribute(i)));
    good(SYS_unlink, &[at(&path("attributed"))]);
    fd
}

fn xattr(cost: &mut Cost, n: usize) {
    let (fd, name) = (attributed(n), attribute(n));
    cost.repeat(|| {
        set(fd, &name);
        good(SYS_fremovexattr, &[fd, at(&name)])
    });
}

fn getxattr(cost: &mut Cost, n: usize) {
    let (fd, name) = (attributed(n), attribute(n / 2));
    let mut value = [0u8; 8];
    let value = value.as_mut_ptr() as usize;
    cost.repeat(|| assert_eq!(good(SYS_fgetxattr, &[fd, at(&name), value, 8]), 5));
}

fn listxattr(cost: &mut Cost, n: usize) {
    let fd = attributed(n);
    let mut names = vec![0u8; 64 << 10];
    let (address, size) = (names.as_mut_ptr() as usize, names.len());
    cost.repeat(|| assert!(good(SYS_flistxattr, &[fd, address, size]) > 8 * n));
}
