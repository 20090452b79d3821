//! Files and directories, on /tmp (in the VM: the overlay) and on /dev/shm (tmpfs).
//!
//! Manual pages: open(2), rename(2), link(2), getdents(2), statx(2), fcntl(2), flock(2),
//! inotify(7), xattr(7), copy_file_range(2), fallocate(2), sendfile(2).

use crate::sys::*;
use crate::{sc, tests};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

tests!("files":
    open_flags, open_errors, o_path, openat_relative, append_mode, truncate_and_sparse,
    seek_data_and_hole, pread_pwrite_vectors, unlink_while_open, rename_replaces,
    renameat2_flags, rename_errors, hard_links, symlinks, symlink_loops, mkdir_rmdir,
    getdents_lists_all, directory_changes_while_reading, seekdir_works, stat_fields,
    statx_fields, when_a_file_was_made, chmod_chown, utimensat_forms, access_checks,
    umask_applies, xattrs_on_tmpfs,
    sendfile_copies, copy_file_range_copies, splice_file_to_pipe, fallocate_modes,
    flock_excludes, posix_locks, posix_lock_waits, given_back_is_no_deadlock, ofd_locks,
    ofd_locks_of_many,
    created_by_this_open, inotify_reports,
    inotify_rules,
    dup_shares_offset, fcntl_flags, descriptors_run_out, chdir_getcwd, deleted_cwd,
    tmpfile_and_linkat, path_limits, trailing_slashes, dot_dot_at_root, mknod_fifo_device,
    statfs_answers, readlink_rules, close_range_closes, fsync_family, big_offsets, dev_files,
    many_files, overlay_of_existing_files, ftruncate_errors, read_write_of_directory,
);

fn at(fd: i32, path: &str) -> (i32, std::ffi::CString) {
    (fd, c(path))
}

fn mkfile(path: &str, content: &[u8]) {
    std::fs::write(path, content).unwrap();
}

fn open_flags() {
    let f = format!("{}/f", dir());
    open(&f, O_RDONLY).fails(ENOENT);
    let fd = open(&f, O_WRONLY | O_CREAT | O_EXCL).fd();
    open(&f, O_WRONLY | O_CREAT | O_EXCL).fails(EEXIST);
    write(fd, b"hello");
    let mut b = [0u8; 8];
    sc!(SYS_read, fd, b.as_mut_ptr(), 8).fails(EBADF);
    let ro = open(&f, O_RDONLY).fd();
    sc!(SYS_write, ro, b.as_ptr(), 1).fails(EBADF);
    assert_eq!(read(ro, 8), b"hello");
    assert_eq!(read(ro, 8), b"");
    close(open(&f, O_WRONLY | O_TRUNC).fd());
    assert_eq!(std::fs::metadata(&f).unwrap().len(), 0);
    let fl = sc!(SYS_fcntl, open(&f, O_RDWR | O_APPEND | O_NONBLOCK).fd(), F_GETFL).must() as i32;
    assert_eq!(fl & (O_ACCMODE | O_APPEND | O_NONBLOCK), O_RDWR | O_APPEND | O_NONBLOCK);
}

fn open_errors() {
    let d = dir();
    mkfile(&format!("{d}/f"), b"");
    open(&d, O_WRONLY).fails(EISDIR);
    open(&d, O_RDWR | O_CREAT).fails(EISDIR);
    open(&format!("{d}/f"), O_DIRECTORY).fails(ENOTDIR);
    open(&format!("{d}/f/x"), O_RDONLY).fails(ENOTDIR);
    open(&format!("{d}/no/x"), O_CREAT | O_RDWR).fails(ENOENT);
    open("", O_RDONLY).fails(ENOENT);
    symlink("f", format!("{d}/l")).unwrap();
    open(&format!("{d}/l"), O_NOFOLLOW).fails(ELOOP);
    close(open(&format!("{d}/l"), O_RDONLY).fd());
    symlink("dangling", format!("{d}/m")).unwrap();
    open(&format!("{d}/m"), O_CREAT | O_EXCL | O_RDWR).fails(EEXIST);
    close(open(&format!("{d}/m"), O_CREAT | O_RDWR).fd());
    assert!(std::fs::metadata(format!("{d}/dangling")).is_ok(), "made through the link");
    open("/dev/shm/x", O_RDWR | O_TMPFILE & !O_DIRECTORY).fails(EINVAL);
}

fn o_path() {
    let d = dir();
    mkfile(&format!("{d}/f"), b"abc");
    let fd = open(&format!("{d}/f"), O_PATH).fd();
    let mut b = [0u8; 4];
    sc!(SYS_read, fd, b.as_mut_ptr(), 4).fails(EBADF);
    sc!(SYS_fchmod, fd, 0o600).fails(EBADF);
    assert_eq!(std::fs::read(format!("/proc/self/fd/{fd}")).unwrap(), b"abc");
    symlink("f", format!("{d}/l")).unwrap();
    let l = open(&format!("{d}/l"), O_PATH | O_NOFOLLOW).fd();
    sc!(SYS_readlinkat, l, c"".as_ptr(), b.as_mut_ptr(), 4).is(1);
    assert_eq!(b[0], b'f');
}

fn openat_relative() {
    let d = dir();
    let dfd = open(&d, O_RDONLY | O_DIRECTORY).fd();
    let (fd, name) = at(dfd, "f");
    close(sc!(SYS_openat, fd, name.as_ptr(), O_CREAT | O_RDWR, 0o600).fd());
    assert_eq!(std::fs::metadata(format!("{d}/f")).unwrap().mode() & 0o777, 0o600);
    sc!(SYS_openat, 9999, name.as_ptr(), 0).fails(EBADF);
    let file = open(&format!("{d}/f"), O_RDONLY).fd();
    sc!(SYS_openat, file, name.as_ptr(), 0).fails(ENOTDIR);
    sc!(SYS_mkdirat, dfd, c"sub".as_ptr(), 0o700).is(0);
    sc!(SYS_unlinkat, dfd, c"sub".as_ptr(), 0).fails(EISDIR);
    sc!(SYS_unlinkat, dfd, c"f".as_ptr(), AT_REMOVEDIR).fails(ENOTDIR);
    sc!(SYS_unlinkat, dfd, c"sub".as_ptr(), AT_REMOVEDIR).is(0);
    // An absolute path does not look at the descriptor.
    close(sc!(SYS_openat, 9999, c"/".as_ptr(), 0).fd());
    // The folder may be renamed meanwhile.
    std::fs::rename(&d, format!("{d}-moved")).unwrap();
    sc!(SYS_unlinkat, dfd, c"f".as_ptr(), 0).is(0);
    std::fs::remove_dir(format!("{d}-moved")).unwrap();
}

fn append_mode() {
    let f = format!("{}/f", dir());
    let (a, b) = (open(&f, O_WRONLY | O_CREAT | O_APPEND).fd(), open(&f, O_WRONLY | O_APPEND).fd());
    for i in 0..10 {
        write(if i % 2 == 0 { a } else { b }, &[b'0' + i]);
    }
    sc!(SYS_lseek, a, 0, SEEK_SET).is(0);
    write(a, b"!");
    assert_eq!(std::fs::read(&f).unwrap(), b"0123456789!");
    sc!(SYS_lseek, a, 0, SEEK_CUR).is(11);
    // Several processes append without losing a byte.
    let children: Vec<i32> = (0..4)
        .map(|i| {
            fork(|| {
                (0..200).for_each(|_| write(a, &[b'a' + i; 10]));
                0
            })
        })
        .collect();
    children.into_iter().for_each(|p| wait_code(p, 0));
    let all = std::fs::read(&f).unwrap();
    assert_eq!(all.len(), 11 + 4 * 200 * 10);
    assert!(all[11..].chunks(10).all(|ch| ch.iter().all(|b| b == &ch[0])), "writes are whole");
}

fn truncate_and_sparse() {
    let f = format!("{}/f", dir());
    let fd = open(&f, O_RDWR | O_CREAT).fd();
    sc!(SYS_pwrite64, fd, c"end".as_ptr(), 3, 1 << 20).is(3);
    let m = std::fs::metadata(&f).unwrap();
    assert_eq!(m.len(), (1 << 20) + 3);
    assert!(m.blocks() * 512 < 1 << 20, "sparse: {} blocks", m.blocks());
    let mut b = [9u8; 16];
    sc!(SYS_pread64, fd, b.as_mut_ptr(), 16, 5000).is(16);
    assert_eq!(b, [0; 16]);
    sc!(SYS_ftruncate, fd, 10).is(0);
    sc!(SYS_ftruncate, fd, 1 << 20).is(0);
    sc!(SYS_pread64, fd, b.as_mut_ptr(), 3, (1 << 20) - 3).is(3);
    assert_eq!(&b[..3], &[0; 3], "what was cut off does not come back");
    sc!(SYS_pread64, fd, b.as_mut_ptr(), 3, 1 << 20).is(0);
}

fn seek_data_and_hole() {
    let fd = open(&format!("{}/f", dir_in("/dev/shm")), O_RDWR | O_CREAT).fd();
    sc!(SYS_pwrite64, fd, c"x".as_ptr(), 1, 65536).is(1);
    sc!(SYS_ftruncate, fd, 1 << 20).is(0);
    sc!(SYS_lseek, fd, 0, SEEK_DATA).is(65536);
    sc!(SYS_lseek, fd, 0, SEEK_HOLE).is(0);
    let hole = sc!(SYS_lseek, fd, 65536, SEEK_HOLE).must();
    assert!((65537..=1 << 20).contains(&hole));
    sc!(SYS_lseek, fd, 2 << 20, SEEK_DATA).fails(ENXIO);
    sc!(SYS_lseek, fd, -1i32, SEEK_SET).fails(EINVAL);
    sc!(SYS_lseek, fd, 0, 99).fails(EINVAL);
    sc!(SYS_lseek, pipe().0, 0, SEEK_SET).fails(ESPIPE);
}

fn pread_pwrite_vectors() {
    let fd = open(&format!("{}/f", dir()), O_RDWR | O_CREAT).fd();
    let iov = [c"abc".as_ptr() as usize, 3, 0, 0, c"defg".as_ptr() as usize, 4];
    sc!(SYS_writev, fd, iov.as_ptr(), 3).is(7);
    sc!(SYS_pwritev, fd, iov.as_ptr(), 3, 100, 0).is(7);
    sc!(SYS_lseek, fd, 0, SEEK_CUR).is(7);
    let (mut a, mut b) = ([0u8; 2], [0u8; 10]);
    let out = [a.as_mut_ptr() as usize, 2, b.as_mut_ptr() as usize, 10];
    sc!(SYS_preadv, fd, out.as_ptr(), 2, 101, 0).is(6);
    // SAFETY: written by the kernel.
    let (a, b) = unsafe { ((&raw const a).read_volatile(), (&raw const b).read_volatile()) };
    assert_eq!((&a[..], &b[..4]), (&b"bc"[..], &b"defg"[..]));
    sc!(SYS_readv, fd, out.as_ptr(), 1025).fails(EINVAL);
    sc!(SYS_readv, fd, out.as_ptr(), -1i32).fails(EINVAL);
    sc!(SYS_readv, fd, out.as_ptr(), 0).is(0);
    let neg = [a.as_ptr() as usize, usize::MAX];
    sc!(SYS_readv, fd, neg.as_ptr(), 1).fails(EINVAL);
    sc!(SYS_pread64, fd, a.as_ptr(), 1, -1i32).fails(EINVAL);
    sc!(SYS_preadv2, fd, out.as_ptr(), 2, -1i32, -1i32, 0).must();
    sc!(SYS_preadv2, fd, out.as_ptr(), 2, 0, 0, 0x4000_0000).fails(EOPNOTSUPP);
}

fn unlink_while_open() {
    let f = format!("{}/f", dir());
    let fd = open(&f, O_RDWR | O_CREAT).fd();
    write(fd, b"still here");
    std::fs::remove_file(&f).unwrap();
    open(&f, O_RDONLY).fails(ENOENT);
    sc!(SYS_lseek, fd, 0, SEEK_SET).is(0);
    assert_eq!(read(fd, 100), b"still here");
    let mut st = [0u64; 18];
    sc!(SYS_fstat, fd, st.as_mut_ptr()).is(0);
    assert_eq!(st[2], 0, "st_nlink");
    let other = open(&f, O_RDWR | O_CREAT | O_EXCL).fd();
    assert_eq!(read(other, 9), b"");
    let link = std::fs::read_link(format!("/proc/self/fd/{fd}")).unwrap();
    assert!(link.to_string_lossy().ends_with("/f (deleted)"), "{link:?}");
}

fn rename_replaces() {
    let d = dir();
    let p = |n: &str| format!("{d}/{n}");
    mkfile(&p("a"), b"A");
    mkfile(&p("b"), b"B");
    let held = open(&p("b"), O_RDONLY).fd();
    std::fs::rename(p("a"), p("b")).unwrap();
    assert_eq!(std::fs::read(p("b")).unwrap(), b"A");
    assert_eq!(read(held, 5), b"B");
    assert!(!std::path::Path::new(&p("a")).exists());
    std::fs::create_dir(p("d1")).unwrap();
    std::fs::create_dir(p("d2")).unwrap();
    mkfile(&p("d1/x"), b"");
    std::fs::rename(p("d1"), p("d2")).unwrap();
    assert!(std::path::Path::new(&p("d2/x")).exists());
    std::fs::rename(p("d2"), p("d3")).unwrap();
    assert!(std::path::Path::new(&p("d3/x")).exists());
    std::fs::rename(p("b"), p("b")).unwrap();
}

fn renameat2_flags() {
    let d = dir();
    let p = |n: &str| c(&format!("{d}/{n}"));
    let (a, b, no) = (p("a"), p("b"), p("none"));
    mkfile(a.to_str().unwrap(), b"A");
    mkfile(b.to_str().unwrap(), b"B");
    let r2 = |x: &std::ffi::CString, y: &std::ffi::CString, fl: u32| {
        sc!(SYS_renameat2, AT_FDCWD, x.as_ptr(), AT_FDCWD, y.as_ptr(), fl)
    };
    r2(&a, &b, RENAME_NOREPLACE).fails(EEXIST);
    r2(&a, &b, RENAME_EXCHANGE).is(0);
    assert_eq!(std::fs::read(a.to_str().unwrap()).unwrap(), b"B");
    r2(&a, &no, RENAME_EXCHANGE).fails(ENOENT);
    r2(&a, &no, RENAME_NOREPLACE).is(0);
    r2(&no, &a, RENAME_NOREPLACE | RENAME_EXCHANGE).fails(EINVAL);
    r2(&no, &a, 0x80).fails(EINVAL);
}

fn rename_errors() {
    let d = dir();
    let p = |n: &str| c(&format!("{d}/{n}"));
    let rn = |x: &str, y: &str| sc!(SYS_rename, p(x).as_ptr(), p(y).as_ptr());
    std::fs::create_dir_all(format!("{d}/dir/sub")).unwrap();
    std::fs::create_dir_all(format!("{d}/full/x")).unwrap();
    mkfile(&format!("{d}/f"), b"");
    rn("nope", "x").fails(ENOENT);
    rn("dir", "dir/sub/in").fails(EINVAL);
    rn("dir", "full").fails(ENOTEMPTY);
    rn("dir", "f").fails(ENOTDIR);
    rn("f", "dir").fails(EISDIR);
    rn("f", "nope/x").fails(ENOENT);
    rn("f", "f/x").fails(ENOTDIR);
    rn("dir/.", "y").fails(EBUSY);
}

fn hard_links() {
    let d = dir();
    let (a, b) = (format!("{d}/a"), format!("{d}/b"));
    mkfile(&a, b"one");
    std::fs::hard_link(&a, &b).unwrap();
    let (ma, mb) = (std::fs::metadata(&a).unwrap(), std::fs::metadata(&b).unwrap());
    assert_eq!((ma.ino(), ma.nlink()), (mb.ino(), 2));
    mkfile(&b, b"two");
    assert_eq!(std::fs::read(&a).unwrap(), b"two");
    std::fs::remove_file(&a).unwrap();
    assert_eq!(std::fs::metadata(&b).unwrap().nlink(), 1);
    let e = std::fs::hard_link(&d, format!("{d}/c")).unwrap_err();
    assert_eq!(e.raw_os_error(), Some(EPERM));
    let e = std::fs::hard_link(&b, &b).unwrap_err();
    assert_eq!(e.raw_os_error(), Some(EEXIST));
    symlink("b", format!("{d}/l")).unwrap();
    std::fs::hard_link(format!("{d}/l"), format!("{d}/l2")).unwrap();
    assert!(std::fs::symlink_metadata(format!("{d}/l2")).unwrap().is_symlink());
}

fn symlinks() {
    let d = dir();
    std::fs::create_dir(format!("{d}/real")).unwrap();
    mkfile(&format!("{d}/real/f"), b"x");
    symlink("real", format!("{d}/rel")).unwrap();
    symlink(format!("{d}/real"), format!("{d}/abs")).unwrap();
    for via in ["rel/f", "abs/f", "rel/../real/f", "abs/./f"] {
        assert_eq!(std::fs::read(format!("{d}/{via}")).unwrap(), b"x");
    }
    let m = std::fs::symlink_metadata(format!("{d}/rel")).unwrap();
    assert_eq!((m.len(), m.mode() & 0o170000), (4, S_IFLNK));
    std::fs::remove_file(format!("{d}/rel")).unwrap();
    assert!(std::fs::metadata(format!("{d}/real")).is_ok());
    let e = sc!(SYS_symlink, c"".as_ptr(), c("/tmp/limen-never").as_ptr());
    e.fails(ENOENT);
}

fn symlink_loops() {
    let d = dir();
    symlink("b", format!("{d}/a")).unwrap();
    symlink("a", format!("{d}/b")).unwrap();
    open(&format!("{d}/a"), O_RDONLY).fails(ELOOP);
    // A chain of 40 is followed, one of 41 is not.
    mkfile(&format!("{d}/0"), b"end");
    for i in 1..=41 {
        symlink(format!("{}", i - 1), format!("{d}/{i}")).unwrap();
    }
    close(open(&format!("{d}/40"), O_RDONLY).fd());
    open(&format!("{d}/41"), O_RDONLY).fails(ELOOP);
}

fn mkdir_rmdir() {
    let d = dir();
    let p = |n: &str| c(&format!("{d}/{n}"));
    sc!(SYS_mkdir, p("a").as_ptr(), 0o755).is(0);
    sc!(SYS_mkdir, p("a").as_ptr(), 0o755).fails(EEXIST);
    sc!(SYS_mkdir, p("x/y").as_ptr(), 0o755).fails(ENOENT);
    assert_eq!(std::fs::metadata(&d).unwrap().nlink(), 3);
    mkfile(&format!("{d}/a/f"), b"");
    sc!(SYS_rmdir, p("a").as_ptr()).fails(ENOTEMPTY);
    sc!(SYS_rmdir, p("a/f").as_ptr()).fails(ENOTDIR);
    sc!(SYS_unlink, p("a").as_ptr()).fails(EISDIR);
    sc!(SYS_unlink, p("a/f").as_ptr()).is(0);
    sc!(SYS_rmdir, p("a/.").as_ptr()).fails(EINVAL);
    sc!(SYS_rmdir, p("a").as_ptr()).is(0);
    sc!(SYS_rmdir, c"/".as_ptr()).fails(EBUSY);
}

/// Names by raw getdents64, with a small buffer so that many calls are needed.
fn names(fd: i32, size: usize) -> Vec<String> {
    let mut out = Vec::new();
    let mut buf = vec![0u8; size];
    loop {
        let n = sc!(SYS_getdents64, fd, buf.as_mut_ptr(), size).must();
        if n == 0 {
            return out;
        }
        let mut i = 0;
        while i < n {
            let len = u16::from_le_bytes([buf[i + 16], buf[i + 17]]) as usize;
            assert!(len >= 20 && len.is_multiple_of(8) && i + len <= n, "d_reclen {len}");
            let name = buf[i + 19..i + len].split(|&b| b == 0).next().unwrap();
            out.push(String::from_utf8_lossy(name).into_owned());
            i += len;
        }
    }
}

fn getdents_lists_all() {
    for d in [dir(), dir_in("/dev/shm")] {
        (0..300).for_each(|i| mkfile(&format!("{d}/file-{i}"), b""));
        for size in [64, 512, 32768] {
            let fd = open(&d, O_RDONLY | O_DIRECTORY).fd();
            let mut got = names(fd, size);
            got.sort();
            got.dedup();
            assert_eq!(got.len(), 302, "buffer {size}");
            assert_eq!(&got[..2], [".", ".."]);
            close(fd);
        }
        let fd = open(&d, O_RDONLY).fd();
        let mut b = [0u8; 8];
        sc!(SYS_getdents64, fd, b.as_mut_ptr(), 8).fails(EINVAL);
    }
    let f = open("/dev/null", O_RDONLY).fd();
    sc!(SYS_getdents64, f, 0, 100).fails(ENOTDIR);
}

fn directory_changes_while_reading() {
    for d in [dir(), dir_in("/dev/shm")] {
        (0..200).for_each(|i| mkfile(&format!("{d}/{i:03}"), b""));
        let fd = open(&d, O_RDONLY | O_DIRECTORY).fd();
        let mut buf = [0u8; 1024];
        let mut seen = 0;
        // Remove every file as soon as it is listed, as `rm -r` does: none may be missed.
        loop {
            let n = sc!(SYS_getdents64, fd, buf.as_mut_ptr(), 1024).must();
            if n == 0 {
                break;
            }
            let mut i = 0;
            while i < n {
                let len = u16::from_le_bytes([buf[i + 16], buf[i + 17]]) as usize;
                let name = buf[i + 19..i + len].split(|&b| b == 0).next().unwrap();
                let name = String::from_utf8_lossy(name).into_owned();
                if !name.starts_with('.') {
                    std::fs::remove_file(format!("{d}/{name}")).unwrap();
                    seen += 1;
                }
                i += len;
            }
        }
        assert_eq!(seen, 200);
        std::fs::remove_dir(&d).unwrap();
    }
}

fn seekdir_works() {
    let d = dir();
    (0..50).for_each(|i| mkfile(&format!("{d}/{i}"), b""));
    let fd = open(&d, O_RDONLY | O_DIRECTORY).fd();
    let first = names(fd, 4096);
    assert!(names(fd, 4096).is_empty());
    sc!(SYS_lseek, fd, 0, SEEK_SET).is(0);
    assert_eq!(names(fd, 256), first);
}

fn stat_fields() {
    let f = format!("{}/f", dir());
    mkfile(&f, &[1; 5000]);
    let m = std::fs::metadata(&f).unwrap();
    assert_eq!((m.len(), m.nlink(), m.mode() & 0o170000), (5000, 1, S_IFREG));
    assert!(m.blocks() >= 8 && m.blksize() >= 512 && m.ino() != 0);
    assert_eq!(m.uid() as usize, sc!(SYS_getuid).must());
    let z = std::fs::metadata("/dev/zero").unwrap();
    assert_eq!((z.mode() & 0o170000, z.rdev()), (S_IFCHR, makedev(1, 5)));
    let now = std::time::SystemTime::now();
    let age = now.duration_since(m.modified().unwrap()).map_or(0, |d| d.as_secs());
    assert!(age < 3600, "mtime is now");
    let mut st = [0u64; 18];
    sc!(SYS_newfstatat, 0, c"".as_ptr(), st.as_mut_ptr(), 0).fails(ENOENT);
    let fd = open(&f, O_RDONLY).fd();
    sc!(SYS_newfstatat, fd, c"".as_ptr(), st.as_mut_ptr(), AT_EMPTY_PATH).is(0);
    assert_eq!(st[6], 5000);
    sc!(SYS_newfstatat, fd, c"".as_ptr(), st.as_mut_ptr(), 0x8000_0000u32).fails(EINVAL);
}

fn statx_fields() {
    let f = format!("{}/f", dir());
    mkfile(&f, b"12345");
    let p = c(&f);
    // SAFETY: a structure of integers.
    let mut sx: statx = unsafe { std::mem::zeroed() };
    sc!(SYS_statx, AT_FDCWD, p.as_ptr(), 0, STATX_BASIC_STATS, &raw mut sx).is(0);
    assert_eq!((sx.stx_size, sx.stx_nlink), (5, 1));
    assert_eq!(sx.stx_mask & STATX_BASIC_STATS, STATX_BASIC_STATS);
    assert_eq!(sx.stx_ino, std::fs::metadata(&f).unwrap().ino());
    sc!(SYS_statx, AT_FDCWD, p.as_ptr(), 0, 0x8000_0000u32, &raw mut sx).fails(EINVAL);
    sc!(SYS_statx, AT_FDCWD, p.as_ptr(), 0x6000, 0, &raw mut sx).fails(EINVAL);
}

/// Told to whoever asks, and never changed: neither by other times nor by another name.
fn when_a_file_was_made() {
    let f = format!("{}/f", dir_in("/dev/shm"));
    mkfile(&f, b"");
    let born = |name: &str, mask: u32| {
        // SAFETY: a structure of integers.
        let mut sx: statx = unsafe { std::mem::zeroed() };
        let name = c(name);
        sc!(SYS_statx, AT_FDCWD, name.as_ptr(), 0, mask, &raw mut sx).is(0);
        let at = (sx.stx_btime.tv_sec, sx.stx_btime.tv_nsec);
        (sx.stx_mask & STATX_BTIME != 0, at, (sx.stx_mtime.tv_sec, sx.stx_mtime.tv_nsec))
    };
    assert!(!born(&f, STATX_BASIC_STATS).0);
    let (is_known, at, changed) = born(&f, STATX_BTIME);
    assert!(is_known && at == changed, "{at:?}, changed {changed:?}");
    let p = c(&f);
    sc!(SYS_utimensat, AT_FDCWD, p.as_ptr(), [5u64, 0, 6, 0].as_ptr(), 0).is(0);
    let other = format!("{f}2");
    sc!(SYS_rename, p.as_ptr(), c(&other).as_ptr()).is(0);
    assert_eq!(born(&other, STATX_BTIME | STATX_BASIC_STATS), (true, at, (6, 0)));
}

fn chmod_chown() {
    let f = format!("{}/f", dir());
    mkfile(&f, b"");
    for mode in [0o000, 0o644, 0o7777, 0o4755] {
        std::fs::set_permissions(&f, std::fs::Permissions::from_mode(mode)).unwrap();
        assert_eq!(std::fs::metadata(&f).unwrap().mode() & 0o7777, mode);
    }
    let (uid, gid) = (sc!(SYS_getuid).must(), sc!(SYS_getgid).must());
    let p = c(&f);
    sc!(SYS_fchownat, AT_FDCWD, p.as_ptr(), uid, gid, 0).is(0);
    sc!(SYS_chown, p.as_ptr(), -1i32, -1i32).is(0);
    if uid == 0 {
        sc!(SYS_chown, p.as_ptr(), 1234, 5678).is(0);
        let m = std::fs::metadata(&f).unwrap();
        assert_eq!((m.uid(), m.gid()), (1234, 5678));
    }
    sc!(SYS_chmod, c"/nonexistent".as_ptr(), 0).fails(ENOENT);
}

fn utimensat_forms() {
    let f = format!("{}/f", dir());
    mkfile(&f, b"");
    let p = c(&f);
    let times = [1_000_000_000i64, 123_456_789, 1_100_000_000, 987_654_321];
    sc!(SYS_utimensat, AT_FDCWD, p.as_ptr(), times.as_ptr(), 0).is(0);
    let m = std::fs::metadata(&f).unwrap();
    assert_eq!((m.atime(), m.mtime()), (1_000_000_000, 1_100_000_000));
    assert_eq!((m.atime_nsec(), m.mtime_nsec()), (123_456_789, 987_654_321));
    let omit = [0, UTIME_OMIT, 0, UTIME_NOW];
    sc!(SYS_utimensat, AT_FDCWD, p.as_ptr(), omit.as_ptr(), 0).is(0);
    let m = std::fs::metadata(&f).unwrap();
    assert!(m.atime() == 1_000_000_000 && m.mtime() > 1_100_000_000);
    let bad = [0, 1_000_000_000, 0, 0i64];
    sc!(SYS_utimensat, AT_FDCWD, p.as_ptr(), bad.as_ptr(), 0).fails(EINVAL);
}

fn access_checks() {
    let d = dir();
    std::fs::set_permissions(&d, std::fs::Permissions::from_mode(0o755)).unwrap();
    let f = c(&format!("{d}/f"));
    mkfile(f.to_str().unwrap(), b"");
    std::fs::set_permissions(f.to_str().unwrap(), std::fs::Permissions::from_mode(0o600)).unwrap();
    sc!(SYS_access, f.as_ptr(), F_OK).is(0);
    sc!(SYS_access, f.as_ptr(), R_OK | W_OK).is(0);
    sc!(SYS_access, f.as_ptr(), X_OK).fails(EACCES);
    sc!(SYS_access, f.as_ptr(), 8).fails(EINVAL);
    sc!(SYS_access, c"/nonexistent".as_ptr(), F_OK).fails(ENOENT);
    if sc!(SYS_getuid) == Ok(0) {
        in_child(|| {
            sc!(SYS_setresuid, 1234, 1234, 1234).is(0);
            sc!(SYS_access, f.as_ptr(), R_OK).fails(EACCES);
            open(f.to_str().unwrap(), O_RDONLY).fails(EACCES);
            open(&format!("{d}/new"), O_CREAT | O_RDWR).fails(EACCES);
            sc!(SYS_unlink, f.as_ptr()).fails(EACCES);
            sc!(SYS_chmod, f.as_ptr(), 0o777).fails(EPERM);
        });
    }
}

fn umask_applies() {
    let d = dir();
    sc!(SYS_umask, 0o027).must();
    let p = c(&format!("{d}/f"));
    close(sc!(SYS_open, p.as_ptr(), O_CREAT | O_RDWR, 0o777).fd());
    assert_eq!(std::fs::metadata(format!("{d}/f")).unwrap().mode() & 0o777, 0o750);
    sc!(SYS_umask, 0o777).is(0o027);
    std::fs::create_dir(format!("{d}/d")).unwrap();
    assert_eq!(std::fs::metadata(format!("{d}/d")).unwrap().mode() & 0o777, 0);
    sc!(SYS_umask, 0o022).is(0o777);
}

fn xattrs_on_tmpfs() {
    let f = format!("{}/f", dir_in("/dev/shm"));
    mkfile(&f, b"");
    let p = c(&f);
    let (name, value) = (c"trusted.limen", b"value");
    sc!(SYS_getxattr, p.as_ptr(), name.as_ptr(), 0, 0).fails(ENODATA);
    sc!(SYS_setxattr, p.as_ptr(), name.as_ptr(), value.as_ptr(), 5, XATTR_REPLACE).fails(ENODATA);
    sc!(SYS_setxattr, p.as_ptr(), name.as_ptr(), value.as_ptr(), 5, XATTR_CREATE).is(0);
    sc!(SYS_setxattr, p.as_ptr(), name.as_ptr(), value.as_ptr(), 5, XATTR_CREATE).fails(EEXIST);
    sc!(SYS_getxattr, p.as_ptr(), name.as_ptr(), 0, 0).is(5);
    let mut b = [0u8; 64];
    sc!(SYS_getxattr, p.as_ptr(), name.as_ptr(), b.as_mut_ptr(), 3).fails(ERANGE);
    sc!(SYS_getxattr, p.as_ptr(), name.as_ptr(), b.as_mut_ptr(), 64).is(5);
    assert_eq!(&b[..5], value);
    let n = sc!(SYS_listxattr, p.as_ptr(), b.as_mut_ptr(), 64).must();
    assert!(b[..n].windows(14).any(|w| w == b"trusted.limen\0"));
    sc!(SYS_removexattr, p.as_ptr(), name.as_ptr()).is(0);
    sc!(SYS_removexattr, p.as_ptr(), name.as_ptr()).fails(ENODATA);
    sc!(SYS_setxattr, p.as_ptr(), c"nonsense".as_ptr(), value.as_ptr(), 5, 0).fails(EOPNOTSUPP);
}

fn pattern(n: usize) -> Vec<u8> {
    (0..n).map(|i| (i * 7 + i / 251) as u8).collect()
}

fn sendfile_copies() {
    let d = dir();
    let data = pattern(300_000);
    mkfile(&format!("{d}/a"), &data);
    let from = open(&format!("{d}/a"), O_RDONLY).fd();
    let to = open(&format!("{d}/b"), O_WRONLY | O_CREAT).fd();
    let mut left = data.len();
    while left > 0 {
        left -= sc!(SYS_sendfile, to, from, 0, left).must();
    }
    assert!(std::fs::read(format!("{d}/b")).unwrap() == data);
    let mut off = 100u64;
    let (r, w) = pipe();
    sc!(SYS_sendfile, w, from, &raw mut off, 50).is(50);
    assert_eq!(off, 150);
    assert_eq!(read(r, 100), data[100..150]);
    sc!(SYS_sendfile, to, from, 0, 10).is(0);
    sc!(SYS_sendfile, to, 999, 0, 10).fails(EBADF);
    sc!(SYS_sendfile, from, from, 0, 10).fails(EBADF);
}

fn copy_file_range_copies() {
    let d = dir();
    let data = pattern(100_000);
    mkfile(&format!("{d}/a"), &data);
    let from = open(&format!("{d}/a"), O_RDONLY).fd();
    let to = open(&format!("{d}/b"), O_RDWR | O_CREAT).fd();
    let mut left = data.len();
    while left > 0 {
        left -= sc!(SYS_copy_file_range, from, 0, to, 0, left, 0).must();
    }
    assert!(std::fs::read(format!("{d}/b")).unwrap() == data);
    sc!(SYS_copy_file_range, from, 0, to, 0, 10, 0).is(0);
    let (mut a, mut b) = (1000u64, 0u64);
    sc!(SYS_copy_file_range, from, &raw mut a, to, &raw mut b, 10, 0).is(10);
    assert_eq!((a, b), (1010, 10));
    sc!(SYS_copy_file_range, from, 0, to, 0, 10, 1).fails(EINVAL);
    sc!(SYS_copy_file_range, to, 0, from, 0, 10, 0).fails(EBADF);
}

fn splice_file_to_pipe() {
    let d = dir();
    let data = pattern(20_000);
    mkfile(&format!("{d}/a"), &data);
    let from = open(&format!("{d}/a"), O_RDONLY).fd();
    let to = open(&format!("{d}/b"), O_WRONLY | O_CREAT).fd();
    let (r, w) = pipe();
    let mut moved = 0;
    while moved < data.len() {
        let n = sc!(SYS_splice, from, 0, w, 0, 4096, 0).must();
        let mut m = 0;
        while m < n {
            m += sc!(SYS_splice, r, 0, to, 0, n - m, 0).must();
        }
        moved += n;
    }
    assert!(std::fs::read(format!("{d}/b")).unwrap() == data);
    sc!(SYS_splice, from, 0, to, 0, 10, 0).fails(EINVAL);
    let mut off = 0u64;
    sc!(SYS_splice, r, &raw mut off, to, 0, 10, 0).fails(ESPIPE);
}

fn fallocate_modes() {
    let f = format!("{}/f", dir_in("/dev/shm"));
    let fd = open(&f, O_RDWR | O_CREAT).fd();
    sc!(SYS_fallocate, fd, 0, 0, 100_000).is(0);
    assert_eq!(std::fs::metadata(&f).unwrap().len(), 100_000);
    sc!(SYS_fallocate, fd, FALLOC_FL_KEEP_SIZE, 0, 200_000).is(0);
    assert_eq!(std::fs::metadata(&f).unwrap().len(), 100_000);
    sc!(SYS_pwrite64, fd, pattern(20_000).as_ptr(), 20_000, 0).is(20_000);
    sc!(SYS_fallocate, fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 5000, 6000).is(0);
    let got = std::fs::read(&f).unwrap();
    assert!(got[5000..11_000].iter().all(|&b| b == 0));
    assert_eq!(got[..5000], pattern(20_000)[..5000]);
    assert_eq!(got[11_000..20_000], pattern(20_000)[11_000..]);
    sc!(SYS_fallocate, fd, FALLOC_FL_PUNCH_HOLE, 0, 10).fails(EOPNOTSUPP);
    sc!(SYS_fallocate, fd, 0, 0, 0).fails(EINVAL);
    sc!(SYS_fallocate, fd, 0, -1i32, 5).fails(EINVAL);
    let (_, w) = pipe();
    sc!(SYS_fallocate, w, 0, 0, 10).fails(ESPIPE);
}

fn flock_excludes() {
    let f = format!("{}/f", dir());
    let (a, b) = (open(&f, O_RDWR | O_CREAT).fd(), open(&f, O_RDWR).fd());
    sc!(SYS_flock, a, LOCK_SH).is(0);
    sc!(SYS_flock, b, LOCK_SH | LOCK_NB).is(0);
    sc!(SYS_flock, a, LOCK_EX | LOCK_NB).fails(EWOULDBLOCK);
    sc!(SYS_flock, b, LOCK_UN).is(0);
    sc!(SYS_flock, a, LOCK_EX | LOCK_NB).is(0);
    let child = fork(|| i32::from(sc!(SYS_flock, b, LOCK_EX) != Ok(0)));
    // The lock belongs to the open file: closing the last descriptor frees it.
    nap(1);
    sc!(SYS_wait4, child, 0, WNOHANG, 0).is(0);
    close(a);
    // The child holds a copy of `a`, so unlock by it is not possible; end it by a new lock.
    sc!(SYS_kill, child, SIGKILL).is(0);
    wait_signal(child, SIGKILL);
    sc!(SYS_flock, b, LOCK_EX | LOCK_NB).is(0);
    sc!(SYS_flock, b, 16).fails(EINVAL);
}

#[repr(C)]
struct Flock {
    kind: i16,
    whence: i16,
    start: i64,
    len: i64,
    pid: i32,
}

fn lock(fd: i32, cmd: i32, kind: i32, start: i64, len: i64) -> (Res, Flock) {
    let mut l = Flock { kind: kind as i16, whence: 0, start, len, pid: 0 };
    let r = sc!(SYS_fcntl, fd, cmd, &raw mut l);
    (r, l)
}

fn posix_locks() {
    let f = format!("{}/f", dir());
    let fd = open(&f, O_RDWR | O_CREAT).fd();
    let me = pid();
    lock(fd, F_SETLK, F_WRLCK, 10, 10).0.is(0);
    in_child(|| {
        lock(fd, F_SETLK, F_RDLCK, 15, 1).0.fails(EAGAIN);
        lock(fd, F_SETLK, F_WRLCK, 0, 10).0.is(0);
        lock(fd, F_SETLK, F_WRLCK, 20, 0).0.is(0);
        let (r, l) = lock(fd, F_GETLK, F_WRLCK, 0, 0);
        r.is(0);
        assert_eq!((l.kind, l.start, l.len, l.pid), (F_WRLCK as i16, 10, 10, me));
    });
    // The child's locks went with it. Unlocking the middle splits.
    lock(fd, F_SETLK, F_UNLCK, 12, 2).0.is(0);
    in_child(|| {
        lock(fd, F_SETLK, F_WRLCK, 12, 2).0.is(0);
        lock(fd, F_SETLK, F_WRLCK, 11, 1).0.fails(EAGAIN);
        lock(fd, F_SETLK, F_WRLCK, 14, 1).0.fails(EAGAIN);
    });
    // Closing any descriptor of the file drops all of the process's locks.
    close(open(&f, O_RDONLY).fd());
    in_child(|| lock(fd, F_SETLK, F_WRLCK, 0, 0).0.is(0));
    lock(fd, F_SETLK, 9, 0, 0).0.fails(EINVAL);
    lock(open(&f, O_RDONLY).fd(), F_SETLK, F_WRLCK, 0, 0).0.fails(EBADF);
}

fn posix_lock_waits() {
    let fd = open(&format!("{}/f", dir()), O_RDWR | O_CREAT).fd();
    let s = new_shared();
    use std::sync::atomic::Ordering::SeqCst;
    lock(fd, F_SETLK, F_WRLCK, 0, 1).0.is(0);
    let child = fork(|| {
        lock(fd, F_SETLK, F_WRLCK, 1, 1).0.is(0);
        s[0].store(1, SeqCst);
        lock(fd, F_SETLKW, F_WRLCK, 0, 1).0.is(0);
        i32::from(s[1].load(SeqCst) != 1)
    });
    until_at_least(&s[0], 1);
    // Each waits for the other: whoever comes second is told.
    let deadlock = || {
        let r = lock(fd, F_SETLKW, F_WRLCK, 1, 1).0;
        r == Err(EDEADLK)
    };
    // The child may not be waiting yet; then this call waits and the child gets EDEADLK, which
    // fails it. So wait until it sleeps, by asking the kernel.
    until(|| {
        let stat = std::fs::read_to_string(format!("/proc/{child}/stat")).unwrap();
        stat.rsplit(") ").next().is_some_and(|s| s.starts_with('S'))
    });
    assert!(deadlock());
    s[1].store(1, SeqCst);
    lock(fd, F_SETLK, F_UNLCK, 0, 1).0.is(0);
    wait_code(child, 0);
}

/// Who was waited for gives the lock back, and asks for one of its waiter's before that has run: it
/// waits, and is not told of a deadlock.
fn given_back_is_no_deadlock() {
    let fd = open(&format!("{}/f", dir()), O_RDWR | O_CREAT).fd();
    let run = || {
        let cpu = cpus()[0];
        pin(cpu).is(0);
        lock(fd, F_SETLK, F_WRLCK, 0, 1).0.is(0);
        let waiter = fork(|| {
            lock(fd, F_SETLK, F_WRLCK, 1, 1).0.is(0);
            lock(fd, F_SETLKW, F_WRLCK, 0, 1).0.is(0);
            0
        });
        until_asleep(waiter);
        // So the waiter does not run in between, where that can be had.
        let one = 1;
        let _ = sc!(SYS_sched_setscheduler, 0, SCHED_FIFO, &raw const one);
        lock(fd, F_SETLK, F_UNLCK, 0, 1).0.is(0);
        lock(fd, F_SETLKW, F_WRLCK, 1, 1).0.is(0);
        wait_code(waiter, 0);
        0
    };
    for _ in 0..3 {
        wait_code(fork(run), 0);
    }
}

fn ofd_locks() {
    let f = format!("{}/f", dir());
    let (a, b) = (open(&f, O_RDWR | O_CREAT).fd(), open(&f, O_RDWR).fd());
    lock(a, F_OFD_SETLK, F_WRLCK, 0, 10).0.is(0);
    lock(b, F_OFD_SETLK, F_WRLCK, 5, 10).0.fails(EAGAIN);
    let (r, l) = lock(b, F_OFD_GETLK, F_WRLCK, 0, 0);
    r.is(0);
    assert_eq!((l.start, l.len, l.pid), (0, 10, -1));
    let dup = sc!(SYS_dup, a).fd();
    close(a);
    lock(b, F_OFD_SETLK, F_WRLCK, 5, 1).0.fails(EAGAIN);
    close(dup);
    lock(b, F_OFD_SETLK, F_WRLCK, 5, 1).0.is(0);
}

/// F_CREATED_QUERY tells whether it was this very open(2) that made the file.
fn created_by_this_open() {
    const F_CREATED_QUERY: i32 = 1028;
    let created = |fd: i32| sc!(SYS_fcntl, fd, F_CREATED_QUERY);
    let f = format!("{}/f", dir());
    let first = open(&f, O_RDWR | O_CREAT).fd();
    if created(first) == Err(EINVAL) {
        // Linux has it from 6.12 on.
        return;
    }
    let others = [
        open(&f, O_RDWR | O_CREAT).fd(),
        open(&f, O_RDONLY).fd(),
        open(&f, O_PATH).fd(),
        open(&dir(), O_RDWR | O_TMPFILE).fd(),
        sc!(SYS_memfd_create, c"x".as_ptr(), 0).fd(),
        pipe().0,
    ];
    assert_eq!(created(first), Ok(1));
    assert_eq!(created(sc!(SYS_dup, first).fd()), Ok(1), "the same open file");
    assert_eq!(others.map(created), others.map(|_| Ok(0)));
    sc!(SYS_unlink, c(&f).as_ptr()).is(0);
    assert_eq!(created(open(&f, O_WRONLY | O_CREAT | O_EXCL).fd()), Ok(1));
}

/// Several owners lock, change and unlock at random; what each holds of each byte is known.
fn ofd_locks_of_many() {
    const BYTES: usize = 24;
    const OWNERS: usize = 5;
    let f = format!("{}/f", dir());
    let mut fds: Vec<i32> = (0..OWNERS).map(|_| open(&f, O_RDWR | O_CREAT).fd()).collect();
    // By owner and byte: F_RDLCK, F_WRLCK or F_UNLCK.
    let mut held = [[F_UNLCK; BYTES]; OWNERS];
    let mut random = 0x1234_5678_u64;
    let mut next = |below: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random >> 20) as usize % below
    };
    for step in 0..3000 {
        let (owner, start) = (next(OWNERS), next(BYTES));
        let len = 1 + next(BYTES - start);
        let kind = [F_RDLCK, F_WRLCK, F_UNLCK][next(3)];
        let excludes = |theirs: i32| {
            theirs == F_WRLCK && kind != F_UNLCK || theirs == F_RDLCK && kind == F_WRLCK
        };
        let others = held.iter().enumerate().filter(|(other, _)| *other != owner);
        let is_refused = others
            .clone()
            .any(|(_, bytes)| bytes[start..start + len].iter().any(|&theirs| excludes(theirs)));
        if kind != F_UNLCK {
            let found = lock(fds[owner], F_OFD_GETLK, kind, start as i64, len as i64).1;
            let none = found.kind == F_UNLCK as i16;
            assert_eq!(none, !is_refused, "step {step}: is a lock in the way?");
            let (from, to) = (found.start as usize, (found.start + found.len) as usize);
            let is_one = |bytes: &[i32; BYTES]| {
                bytes[from..to].iter().all(|&kind| kind == i32::from(found.kind))
            };
            let overlaps = from < start + len && start < to;
            let is_true = overlaps && others.clone().any(|(_, bytes)| is_one(bytes));
            assert!(none || is_true, "step {step}: {from}..{to} is nobody's");
        }
        let own = lock(fds[owner], F_OFD_GETLK, F_UNLCK, start as i64, len as i64);
        own.0.is(0);
        let first = (start..start + len).find(|&byte| held[owner][byte] != F_UNLCK);
        let expected = first.map_or((F_UNLCK, start, len), |byte| {
            let kind = held[owner][byte];
            let is_other = |at: &usize| held[owner][*at] != kind;
            let from = (0..byte).rfind(is_other).map_or(0, |other| other + 1);
            let to = (byte..BYTES).find(is_other).unwrap_or(BYTES);
            (kind, from, to - from)
        });
        let found = (i32::from(own.1.kind), own.1.start as usize, own.1.len as usize);
        assert_eq!(found, expected, "step {step}: its own");
        let result = lock(fds[owner], F_OFD_SETLK, kind, start as i64, len as i64).0;
        if is_refused {
            result.fails(EAGAIN);
        } else {
            result.is(0);
            held[owner][start..start + len].fill(kind);
        }
    }
    // What is left goes with the files.
    let left = fds.split_off(1);
    left.into_iter().for_each(close);
    lock(fds[0], F_OFD_SETLK, F_WRLCK, 0, 0).0.is(0);
}

/// Events as (mask, name).
fn events(fd: i32) -> Vec<(u32, String)> {
    let mut out = Vec::new();
    let mut buf = vec![0u8; 4096];
    while let Ok(n) = sc!(SYS_read, fd, buf.as_mut_ptr(), 4096) {
        let mut i = 0;
        while i < n {
            let word = |at: usize| u32::from_le_bytes(buf[i + at..i + at + 4].try_into().unwrap());
            let (mask, len) = (word(4), word(12) as usize);
            let name = buf[i + 16..i + 16 + len].split(|&b| b == 0).next().unwrap_or(&[]);
            out.push((mask, String::from_utf8_lossy(name).into_owned()));
            i += 16 + len;
        }
    }
    out
}

fn inotify_reports() {
    let d = dir();
    let fd = sc!(SYS_inotify_init1, IN_NONBLOCK).fd();
    let p = c(&d);
    let wd =
        sc!(SYS_inotify_add_watch, fd, p.as_ptr(), IN_ALL_EVENTS & !(IN_ACCESS | IN_OPEN)).must();
    mkfile(&format!("{d}/a"), b"x");
    std::fs::rename(format!("{d}/a"), format!("{d}/b")).unwrap();
    std::fs::set_permissions(format!("{d}/b"), std::fs::Permissions::from_mode(0o600)).unwrap();
    std::fs::remove_file(format!("{d}/b")).unwrap();
    std::fs::create_dir(format!("{d}/s")).unwrap();
    let got = events(fd);
    let want = [
        (IN_CREATE, "a"),
        (IN_MODIFY, "a"),
        (IN_CLOSE_WRITE, "a"),
        (IN_MOVED_FROM, "a"),
        (IN_MOVED_TO, "b"),
        (IN_ATTRIB, "b"),
        (IN_DELETE, "b"),
        (IN_CREATE | IN_ISDIR, "s"),
    ];
    let want: Vec<_> = want.iter().map(|(m, n)| (*m, n.to_string())).collect();
    assert_eq!(got, want);
    sc!(SYS_inotify_rm_watch, fd, wd).is(0);
    assert_eq!(events(fd), [(IN_IGNORED, String::new())]);
    sc!(SYS_inotify_rm_watch, fd, wd).fails(EINVAL);
}

fn inotify_rules() {
    let d = dir();
    let fd = sc!(SYS_inotify_init1, IN_NONBLOCK).fd();
    let mut b = [0u8; 64];
    sc!(SYS_read, fd, b.as_mut_ptr(), 64).fails(EAGAIN);
    let f = c(&format!("{d}/f"));
    sc!(SYS_inotify_add_watch, fd, f.as_ptr(), IN_MODIFY).fails(ENOENT);
    mkfile(f.to_str().unwrap(), b"");
    sc!(SYS_inotify_add_watch, fd, f.as_ptr(), IN_MODIFY | IN_DELETE_SELF).must();
    sc!(SYS_inotify_add_watch, fd, f.as_ptr(), IN_MODIFY | IN_ONLYDIR).fails(ENOTDIR);
    sc!(SYS_inotify_add_watch, 0, f.as_ptr(), IN_MODIFY).fails(EINVAL);
    mkfile(f.to_str().unwrap(), b"12");
    let mut p = pollfd { fd, events: POLLIN, revents: 0 };
    sc!(SYS_poll, &raw mut p, 1, 0).is(1);
    sc!(SYS_read, fd, b.as_mut_ptr(), 10).fails(EINVAL);
    std::fs::remove_file(f.to_str().unwrap()).unwrap();
    let masks: Vec<u32> = events(fd).into_iter().map(|e| e.0).collect();
    assert_eq!(masks.first(), Some(&IN_MODIFY));
    assert_eq!(masks[masks.len() - 2..], [IN_DELETE_SELF, IN_IGNORED]);
}

fn dup_shares_offset() {
    let fd = open(&format!("{}/f", dir()), O_RDWR | O_CREAT).fd();
    let other = sc!(SYS_dup, fd).fd();
    write(fd, b"abc");
    sc!(SYS_lseek, other, 0, SEEK_CUR).is(3);
    sc!(SYS_dup2, fd, 500).is(500);
    write(500, b"d");
    sc!(SYS_lseek, fd, 0, SEEK_CUR).is(4);
    sc!(SYS_dup3, fd, fd, 0).fails(EINVAL);
    sc!(SYS_dup2, fd, fd).is(fd as usize);
    sc!(SYS_dup2, 9999, 3).fails(EBADF);
    sc!(SYS_dup2, fd, 1 << 30).fails(EBADF);
    sc!(SYS_fcntl, fd, F_DUPFD, 300).is(300);
    let cl = sc!(SYS_fcntl, fd, F_DUPFD_CLOEXEC, 300).must();
    assert_eq!((cl, sc!(SYS_fcntl, cl, F_GETFD).must()), (301, 1));
}

fn fcntl_flags() {
    let fd = open("/dev/null", O_RDWR).fd();
    sc!(SYS_fcntl, fd, F_SETFL, O_NONBLOCK | O_APPEND).is(0);
    let fl = sc!(SYS_fcntl, fd, F_GETFL).must() as i32;
    assert_eq!(fl & (O_NONBLOCK | O_APPEND | O_ACCMODE), O_NONBLOCK | O_APPEND | O_RDWR);
    sc!(SYS_fcntl, fd, 9999).fails(EINVAL);
    sc!(SYS_fcntl, 9999, F_GETFD).fails(EBADF);
    let (mut on, mut avail) = (1i32, 0i32);
    let (r, w) = pipe();
    sc!(SYS_ioctl, r, FIONBIO, &raw mut on).is(0);
    sc!(SYS_read, r, &raw mut on, 1).fails(EAGAIN);
    write(w, b"12345");
    sc!(SYS_ioctl, r, FIONREAD, &raw mut avail).is(0);
    assert_eq!(avail, 5);
    sc!(SYS_ioctl, fd, 0x5401, 0).fails(ENOTTY);
}

fn descriptors_run_out() {
    let lim = [64usize, 64];
    sc!(SYS_setrlimit, RLIMIT_NOFILE, lim.as_ptr()).is(0);
    let mut n = 0;
    while sc!(SYS_dup, 0).is_ok() {
        n += 1;
    }
    assert!((50..64).contains(&n));
    open("/dev/null", O_RDONLY).fails(EMFILE);
    let mut p = [0i32; 2];
    sc!(SYS_pipe2, p.as_mut_ptr(), 0).fails(EMFILE);
    sc!(SYS_dup2, 0, 64).fails(EBADF);
    close(63);
    assert_eq!(open("/dev/null", O_RDONLY).fd(), 63, "the lowest free number");
}

fn chdir_getcwd() {
    let d = dir();
    sc!(SYS_chdir, c(&d).as_ptr()).is(0);
    let mut b = [0u8; 4096];
    sc!(SYS_getcwd, b.as_mut_ptr(), 4096).is(d.len() + 1);
    assert_eq!(&b[..d.len()], d.as_bytes());
    sc!(SYS_getcwd, b.as_mut_ptr(), d.len()).fails(ERANGE);
    mkfile("f", b"");
    sc!(SYS_chdir, c"f".as_ptr()).fails(ENOTDIR);
    let root = open("/", O_RDONLY).fd();
    sc!(SYS_fchdir, root).is(0);
    sc!(SYS_getcwd, b.as_mut_ptr(), 4096).is(2);
    sc!(SYS_fchdir, 9999).fails(EBADF);
}

fn deleted_cwd() {
    let d = dir();
    sc!(SYS_chdir, c(&d).as_ptr()).is(0);
    std::fs::remove_dir(&d).unwrap();
    let mut b = [0u8; 4096];
    sc!(SYS_getcwd, b.as_mut_ptr(), 4096).fails(ENOENT);
    open("f", O_CREAT | O_RDWR).fails(ENOENT);
    sc!(SYS_chdir, c"..".as_ptr()).is(0);
}

fn tmpfile_and_linkat() {
    let d = dir_in("/dev/shm");
    let fd = open(&d, O_TMPFILE | O_RDWR).fd();
    write(fd, b"secret");
    assert_eq!(std::fs::read_dir(&d).unwrap().count(), 0);
    let (from, to) = (c(&format!("/proc/self/fd/{fd}")), c(&format!("{d}/named")));
    sc!(SYS_linkat, AT_FDCWD, from.as_ptr(), AT_FDCWD, to.as_ptr(), AT_SYMLINK_FOLLOW).is(0);
    assert_eq!(std::fs::read(format!("{d}/named")).unwrap(), b"secret");
}

fn path_limits() {
    let d = dir();
    let ok = "n".repeat(255);
    close(open(&format!("{d}/{ok}"), O_CREAT | O_RDWR).fd());
    open(&format!("{d}/{ok}n"), O_CREAT | O_RDWR).fails(ENAMETOOLONG);
    open(&"/".repeat(4096), O_RDONLY).fails(ENAMETOOLONG);
    close(open(&"/".repeat(4095), O_RDONLY).fd());
    // Deeper than one path can name, step by step.
    sc!(SYS_chdir, c(&d).as_ptr()).is(0);
    let part = c(&"d".repeat(200));
    for _ in 0..30 {
        sc!(SYS_mkdir, part.as_ptr(), 0o755).is(0);
        sc!(SYS_chdir, part.as_ptr()).is(0);
    }
    mkfile("deep", b"1");
    assert_eq!(std::fs::read("deep").unwrap(), b"1");
    std::fs::remove_file("deep").unwrap();
    for _ in 0..30 {
        sc!(SYS_chdir, c"..".as_ptr()).is(0);
        sc!(SYS_rmdir, part.as_ptr()).is(0);
    }
}

fn trailing_slashes() {
    let d = dir();
    mkfile(&format!("{d}/f"), b"");
    open(&format!("{d}/f/"), O_RDONLY).fails(ENOTDIR);
    open(&format!("{d}/new/"), O_CREAT | O_RDWR).fails(EISDIR);
    sc!(SYS_mkdir, c(&format!("{d}/dir/")).as_ptr(), 0o755).is(0);
    close(open(&format!("{d}//dir//."), O_RDONLY).fd());
    sc!(SYS_rmdir, c(&format!("{d}/dir///")).as_ptr()).is(0);
    sc!(SYS_unlink, c(&format!("{d}/f/")).as_ptr()).fails(ENOTDIR);
}

fn dot_dot_at_root() {
    let (a, b) = (std::fs::metadata("/").unwrap(), std::fs::metadata("/../../..").unwrap());
    assert_eq!((a.dev(), a.ino()), (b.dev(), b.ino()));
}

fn mknod_fifo_device() {
    let d = dir();
    let f = c(&format!("{d}/fifo"));
    sc!(SYS_mknod, f.as_ptr(), S_IFIFO | 0o600, 0).is(0);
    open(f.to_str().unwrap(), O_WRONLY | O_NONBLOCK).fails(ENXIO);
    let r = open(f.to_str().unwrap(), O_RDONLY | O_NONBLOCK).fd();
    let child = fork(|| {
        let w = open(f.to_str().unwrap(), O_WRONLY).fd();
        write(w, b"through a name");
        0
    });
    sc!(SYS_fcntl, r, F_SETFL, 0).is(0);
    let mut got = Vec::new();
    while got.len() < 14 {
        got.extend(read(r, 14));
    }
    assert_eq!(got, b"through a name");
    wait_code(child, 0);
    let s = c(&format!("{d}/plain"));
    sc!(SYS_mknod, s.as_ptr(), S_IFREG | 0o600, 0).is(0);
    sc!(SYS_mknod, s.as_ptr(), S_IFREG | 0o600, 0).fails(EEXIST);
}

fn statfs_answers() {
    let mut b = [0u64; 15];
    sc!(SYS_statfs, c"/dev/shm".as_ptr(), b.as_mut_ptr()).is(0);
    assert_eq!(b[0], TMPFS_MAGIC as u64);
    assert_eq!(b[1], 4096);
    sc!(SYS_statfs, c"/proc".as_ptr(), b.as_mut_ptr()).is(0);
    assert_eq!(b[0], 0x9fa0);
    sc!(SYS_fstatfs, open("/tmp", O_RDONLY).fd(), b.as_mut_ptr()).is(0);
    sc!(SYS_statfs, c"/nonexistent".as_ptr(), b.as_mut_ptr()).fails(ENOENT);
}

fn readlink_rules() {
    let l = c(&format!("{}/l", dir()));
    symlink("0123456789", l.to_str().unwrap()).unwrap();
    let mut b = [b'#'; 20];
    sc!(SYS_readlink, l.as_ptr(), b.as_mut_ptr(), 4).is(4);
    assert_eq!(&b[..5], b"0123#", "cut off, no zero added");
    sc!(SYS_readlink, l.as_ptr(), b.as_mut_ptr(), 0).fails(EINVAL);
    sc!(SYS_readlink, c"/tmp".as_ptr(), b.as_mut_ptr(), 20).fails(EINVAL);
}

fn close_range_closes() {
    (100..110).for_each(|fd| sc!(SYS_dup2, 0, fd).is(fd));
    sc!(SYS_close_range, 102, 105, 0).is(0);
    let open_now: Vec<i32> = (100..110).filter(|fd| sc!(SYS_fcntl, *fd, F_GETFD).is_ok()).collect();
    assert_eq!(open_now, [100, 101, 106, 107, 108, 109]);
    sc!(SYS_close_range, 100, !0u32, CLOSE_RANGE_CLOEXEC).is(0);
    sc!(SYS_fcntl, 108, F_GETFD).is(1);
    sc!(SYS_close_range, 5, 4, 0).fails(EINVAL);
    sc!(SYS_close_range, 200, 300, 64).fails(EINVAL);
}

fn fsync_family() {
    let fd = open(&format!("{}/f", dir()), O_RDWR | O_CREAT).fd();
    write(fd, b"x");
    sc!(SYS_fsync, fd).is(0);
    sc!(SYS_fdatasync, fd).is(0);
    sc!(SYS_sync_file_range, fd, 0, 0, 7).is(0);
    sc!(SYS_fsync, pipe().0).fails(EINVAL);
    sc!(SYS_fsync, 9999).fails(EBADF);
    sc!(SYS_fadvise64, fd, 0, 0, 4).is(0);
    sc!(SYS_readahead, fd, 0, 4096).is(0);
}

fn big_offsets() {
    let f = format!("{}/f", dir_in("/dev/shm"));
    let fd = open(&f, O_RDWR | O_CREAT).fd();
    sc!(SYS_pwrite64, fd, c"far".as_ptr(), 3, 5usize << 32).is(3);
    assert_eq!(std::fs::metadata(&f).unwrap().len(), (5 << 32) + 3);
    let mut b = [0u8; 3];
    sc!(SYS_pread64, fd, b.as_mut_ptr(), 3, 5usize << 32).is(3);
    assert_eq!(&b, b"far");
    sc!(SYS_pwrite64, fd, b.as_ptr(), 1, i64::MAX).fails(EINVAL);
}

fn dev_files() {
    let null = open("/dev/null", O_RDWR).fd();
    write(null, &[1; 100]);
    assert_eq!(read(null, 10), b"");
    let zero = open("/dev/zero", O_RDWR).fd();
    assert_eq!(read(zero, 100), [0; 100]);
    let full = open("/dev/full", O_RDWR).fd();
    sc!(SYS_write, full, c"x".as_ptr(), 1).fails(ENOSPC);
    let rnd = open("/dev/urandom", O_RDONLY).fd();
    assert_ne!(read(rnd, 32), read(rnd, 32));
    assert!(std::fs::read_dir("/dev/shm").is_ok());
    assert_eq!(std::fs::read_link("/dev/fd").unwrap().to_str(), Some("/proc/self/fd"));
}

fn many_files() {
    let d = dir();
    for i in 0..2000 {
        mkfile(&format!("{d}/{i}"), format!("{i}").as_bytes());
    }
    for i in (0..2000).rev() {
        let p = format!("{d}/{i}");
        assert_eq!(std::fs::read_to_string(&p).unwrap(), i.to_string());
        std::fs::remove_file(p).unwrap();
    }
    std::fs::remove_dir(d).unwrap();
}

fn overlay_of_existing_files() {
    // Names that exist below already: reading, linking away and back in a copy of the tree.
    let m = std::fs::metadata("/proc/self/exe").unwrap();
    assert!(m.is_file() && m.len() > 100_000);
    let bytes = std::fs::read("/proc/self/exe").unwrap();
    let d = dir();
    std::fs::copy(own_path(), format!("{d}/copy")).unwrap();
    assert!(std::fs::read(format!("{d}/copy")).unwrap() == bytes);
}

fn ftruncate_errors() {
    let f = format!("{}/f", dir());
    mkfile(&f, b"x");
    sc!(SYS_ftruncate, open(&f, O_RDONLY).fd(), 0).fails(EINVAL);
    sc!(SYS_ftruncate, open(&f, O_RDWR).fd(), -1i32).fails(EINVAL);
    sc!(SYS_truncate, c"/tmp".as_ptr(), 0).fails(EISDIR);
    sc!(SYS_truncate, c(&f).as_ptr(), 3).is(0);
    assert_eq!(std::fs::read(&f).unwrap(), b"x\0\0");
}

fn read_write_of_directory() {
    let fd = open("/tmp", O_RDONLY).fd();
    let mut b = [0u8; 4];
    sc!(SYS_read, fd, b.as_mut_ptr(), 4).fails(EISDIR);
    sc!(SYS_write, fd, b.as_ptr(), 4).fails(EBADF);
    sc!(SYS_pread64, fd, b.as_mut_ptr(), 4, 0).fails(EISDIR);
}
