//! Flags of files and directories: ioctl_iflags(2), chattr(1), FS_IOC_FSGETXATTR, statx(2).

use crate::sys::*;
use crate::{sc, tests};

tests!("inode_flags":
    what_there_is, nothing_of_an_immutable_file_changes, an_append_only_file_grows,
    names_of_guarded_directories, who_may_set_what, other_files_have_none, flags_are_inherited,
    what_cannot_be, flags_stay, the_other_form,
);

const GETFLAGS: u64 = 0x8008_6601;
const SETFLAGS: u64 = 0x4008_6602;
const GETXATTR: u64 = 0x801c_581f;
const SETXATTR: u64 = 0x401c_5820;
const IMMUTABLE: u32 = 0x10;
const APPEND: u32 = 0x20;
const NODUMP: u32 = 0x40;
const NOATIME: u32 = 0x80;

fn get(path: &str) -> u32 {
    let fd = open(path, O_RDONLY).fd();
    let mut flags = 0u32;
    sc!(SYS_ioctl, fd, GETFLAGS, &raw mut flags).is(0);
    close(fd);
    flags
}

fn set(path: &str, flags: u32) -> Res {
    let fd = open(path, O_RDONLY).fd();
    let answer = sc!(SYS_ioctl, fd, SETFLAGS, &raw const flags);
    close(fd);
    answer
}

/// Runs a test in a child on a directory of its own, and takes the guards off whatever is left
/// there: nobody could remove it.
fn guarded(test: impl FnOnce(&str)) {
    let dir = dir_in("/dev/shm");
    let child = fork(|| {
        test(&dir);
        0
    });
    let status = wait(child);
    let mut all = vec![dir];
    while let Some(path) = all.pop() {
        let _ = set(&path, 0);
        for entry in std::fs::read_dir(&path).into_iter().flatten().flatten() {
            let path = entry.path().to_str().unwrap().to_owned();
            let kind = entry.file_type().unwrap();
            if kind.is_dir() {
                all.push(path);
            } else if kind.is_file() {
                let _ = set(&path, 0);
            }
        }
    }
    assert_eq!(describe(status), "exit 0");
}

fn file(dir: &str, name: &str) -> (String, std::ffi::CString) {
    let path = format!("{dir}/{name}");
    std::fs::write(&path, "text").unwrap();
    let name = c(&path);
    (path, name)
}

fn attributes(path: &std::ffi::CStr) -> (u64, u64) {
    // SAFETY: a structure of integers.
    let mut sx: statx = unsafe { std::mem::zeroed() };
    sc!(SYS_statx, AT_FDCWD, path.as_ptr(), 0, STATX_BASIC_STATS, &raw mut sx).is(0);
    (sx.stx_attributes, sx.stx_attributes_mask)
}

fn what_there_is() {
    guarded(|dir| {
        let (path, name) = file(dir, "f");
        assert_eq!(get(&path), 0);
        assert_eq!(attributes(&name).0 & 0x70, 0);
        for flags in [IMMUTABLE, APPEND, NODUMP, NOATIME, NODUMP | APPEND, IMMUTABLE | NOATIME, 0] {
            set(&path, flags).is(0);
            assert_eq!(get(&path), flags);
            let (told, known) = attributes(&name);
            assert_eq!(told & 0x70, u64::from(flags & 0x70));
            assert_eq!(known & 0x70, 0x70);
        }
        set(dir, NODUMP).is(0);
        assert_eq!(get(dir), NODUMP);
    });
}

fn nothing_of_an_immutable_file_changes() {
    guarded(|dir| {
        let (path, name) = file(dir, "f");
        let elsewhere = c(&format!("{dir}/g"));
        let (other, _) = file(dir, "other");
        let before = open(&path, O_RDWR).fd();
        let from = open(&other, O_RDONLY).fd();
        set(&path, IMMUTABLE).is(0);
        for flags in [O_WRONLY, O_RDWR, O_WRONLY | O_APPEND, O_RDONLY | O_TRUNC] {
            open(&path, flags).fails(EPERM);
        }
        sc!(SYS_access, name.as_ptr(), W_OK).fails(EPERM);
        sc!(SYS_access, name.as_ptr(), R_OK).is(0);
        sc!(SYS_unlink, name.as_ptr()).fails(EPERM);
        sc!(SYS_rename, name.as_ptr(), elsewhere.as_ptr()).fails(EPERM);
        sc!(SYS_rename, c(&other).as_ptr(), name.as_ptr()).fails(EPERM);
        sc!(SYS_link, name.as_ptr(), elsewhere.as_ptr()).fails(EPERM);
        sc!(SYS_chmod, name.as_ptr(), 0o600).fails(EPERM);
        sc!(SYS_chown, name.as_ptr(), 0, 0).fails(EPERM);
        sc!(SYS_chown, name.as_ptr(), u32::MAX, u32::MAX).is(0);
        sc!(SYS_utimensat, AT_FDCWD, name.as_ptr(), 0, 0).fails(EPERM);
        sc!(SYS_utimensat, AT_FDCWD, name.as_ptr(), [1u64, 0, 1, 0].as_ptr(), 0).fails(EPERM);
        sc!(SYS_truncate, name.as_ptr(), 0).fails(EPERM);
        sc!(SYS_setxattr, name.as_ptr(), c"trusted.a".as_ptr(), c"v".as_ptr(), 1, 0).fails(EPERM);
        sc!(SYS_removexattr, name.as_ptr(), c"trusted.a".as_ptr()).fails(EPERM);
        sc!(SYS_fallocate, before, 0, 0, 10).fails(EPERM);
        sc!(SYS_copy_file_range, from, 0, before, 0, 4, 0).fails(EPERM);
        // Who had it open for writing goes on.
        sc!(SYS_pwrite64, before, c"x".as_ptr(), 1, 0).is(1);
        sc!(SYS_ftruncate, before, 2).is(0);
        assert_eq!(std::fs::read(&path).unwrap(), b"xe");
        set(&path, 0).is(0);
        sc!(SYS_unlink, name.as_ptr()).is(0);
    });
}

fn an_append_only_file_grows() {
    guarded(|dir| {
        let (path, name) = file(dir, "f");
        let before = open(&path, O_RDWR).fd();
        set(&path, APPEND).is(0);
        open(&path, O_WRONLY).fails(EPERM);
        open(&path, O_RDWR).fails(EPERM);
        open(&path, O_WRONLY | O_APPEND | O_TRUNC).fails(EPERM);
        open(&path, O_RDONLY | O_TRUNC).fails(EPERM);
        let fd = open(&path, O_RDWR | O_APPEND).fd();
        sc!(SYS_write, fd, c"more".as_ptr(), 4).is(4);
        sc!(SYS_pwrite64, fd, c"end".as_ptr(), 3, 0).is(3);
        assert_eq!(std::fs::read(&path).unwrap(), b"textmoreend");
        let vector = [c"x".as_ptr() as usize, 1];
        sc!(SYS_pwritev2, fd, vector.as_ptr(), 1, 0, 0, 0x20).fails(EPERM);
        sc!(SYS_fcntl, fd, F_SETFL, 0).fails(EPERM);
        sc!(SYS_fcntl, before, F_SETFL, O_APPEND).fails(EPERM);
        sc!(SYS_fcntl, fd, F_SETFL, O_APPEND | O_NONBLOCK).is(0);
        sc!(SYS_ftruncate, fd, 0).fails(EPERM);
        sc!(SYS_ftruncate, before, 0).fails(EPERM);
        sc!(SYS_truncate, name.as_ptr(), 0).fails(EPERM);
        sc!(SYS_fallocate, fd, 0, 0, 20).is(0);
        sc!(SYS_fallocate, fd, FALLOC_FL_KEEP_SIZE, 0, 20).is(0);
        let punch = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
        sc!(SYS_fallocate, fd, punch, 0, 20).fails(EPERM);
        let map = |fd: i32, prot: i32, flags: i32| sc!(SYS_mmap, 0, 4096, prot, flags, fd, 0);
        map(fd, PROT_READ, MAP_SHARED).fails(EACCES);
        map(fd, PROT_READ | PROT_WRITE, MAP_SHARED).fails(EACCES);
        map(fd, PROT_READ | PROT_WRITE, MAP_PRIVATE).must();
        let reader = open(&path, O_RDONLY).fd();
        map(reader, PROT_READ, MAP_SHARED).must();
        sc!(SYS_unlink, name.as_ptr()).fails(EPERM);
        sc!(SYS_link, name.as_ptr(), c(&format!("{dir}/g")).as_ptr()).fails(EPERM);
        sc!(SYS_chmod, name.as_ptr(), 0o600).fails(EPERM);
        sc!(SYS_utimensat, AT_FDCWD, name.as_ptr(), 0, 0).is(0);
        sc!(SYS_utimensat, AT_FDCWD, name.as_ptr(), [1u64, 0, 1, 0].as_ptr(), 0).fails(EPERM);
        sc!(SYS_setxattr, name.as_ptr(), c"trusted.a".as_ptr(), c"v".as_ptr(), 1, 0).fails(EPERM);
    });
}

fn names_of_guarded_directories() {
    guarded(|dir| {
        let inner = format!("{dir}/d");
        sc!(SYS_mkdir, c(&inner).as_ptr(), 0o755).is(0);
        let (_, name) = file(&inner, "f");
        let (_, outside) = file(dir, "outside");
        let made = c(&format!("{inner}/new"));
        set(&inner, IMMUTABLE).is(0);
        sc!(SYS_mkdir, made.as_ptr(), 0o755).fails(EPERM);
        sc!(SYS_symlink, c"x".as_ptr(), made.as_ptr()).fails(EPERM);
        sc!(SYS_mknod, made.as_ptr(), S_IFIFO | 0o644, 0).fails(EPERM);
        sc!(SYS_link, outside.as_ptr(), made.as_ptr()).fails(EPERM);
        open(made.to_str().unwrap(), O_CREAT | O_WRONLY).fails(EPERM);
        open(&inner, O_TMPFILE | O_WRONLY).fails(EPERM);
        sc!(SYS_unlink, name.as_ptr()).fails(EPERM);
        sc!(SYS_rename, outside.as_ptr(), made.as_ptr()).fails(EPERM);
        sc!(SYS_rename, name.as_ptr(), outside.as_ptr()).fails(EPERM);
        sc!(SYS_rmdir, c(&inner).as_ptr()).fails(EPERM);
        // What is in it may change.
        std::fs::write(name.to_str().unwrap(), "other").unwrap();
        set(&inner, APPEND).is(0);
        sc!(SYS_mkdir, made.as_ptr(), 0o755).is(0);
        sc!(SYS_rmdir, made.as_ptr()).fails(EPERM);
        sc!(SYS_unlink, name.as_ptr()).fails(EPERM);
        sc!(SYS_rename, name.as_ptr(), c(&format!("{inner}/g")).as_ptr()).fails(EPERM);
        sc!(SYS_link, outside.as_ptr(), c(&format!("{inner}/h")).as_ptr()).is(0);
        // It may not be moved, since that changes its `..` and it has a name to lose.
        sc!(SYS_rename, c(&inner).as_ptr(), c(&format!("{dir}/e")).as_ptr()).fails(EPERM);
    });
}

/// As another user, who has CAP_LINUX_IMMUTABLE alone.
fn as_guard(f: impl FnOnce()) {
    in_child(|| {
        sc!(SYS_prctl, PR_SET_KEEPCAPS, 1, 0, 0, 0).is(0);
        become_user();
        let header = [0x2008_0522u32, 0];
        let linux_immutable = 1u32 << 9;
        let sets = [linux_immutable, linux_immutable, 0, 0, 0, 0];
        sc!(SYS_capset, header.as_ptr(), sets.as_ptr()).is(0);
        f();
    });
}

fn who_may_set_what() {
    guarded(|dir| {
        let (roots, _) = file(dir, "roots");
        let (own, name) = file(dir, "own");
        sc!(SYS_chown, name.as_ptr(), 1234, 1234).is(0);
        as_user(|| {
            set(&roots, NODUMP).fails(EPERM);
            assert_eq!(get(&roots), 0);
            set(&own, NODUMP).is(0);
            set(&own, NODUMP | APPEND).fails(EPERM);
            set(&own, IMMUTABLE).fails(EPERM);
            assert_eq!(get(&own), NODUMP);
        });
        as_guard(|| {
            set(&roots, IMMUTABLE).fails(EPERM);
            set(&own, IMMUTABLE).is(0);
            set(&own, 0).is(0);
            set(&own, APPEND).is(0);
        });
        as_user(|| {
            // What does not touch the guard is the owner's still.
            set(&own, APPEND | NODUMP).is(0);
            set(&own, NODUMP).fails(EPERM);
        });
    });
}

fn other_files_have_none() {
    let (r, w) = pipe();
    let event = sc!(SYS_eventfd2, 0, 0).fd();
    let null = open("/dev/null", O_RDWR).fd();
    let proc = open("/proc/self/stat", O_RDONLY).fd();
    let socket = sc!(SYS_socket, AF_UNIX, SOCK_STREAM, 0).fd();
    let mut flags = 0u32;
    for fd in [r, w, event, null, proc, socket] {
        sc!(SYS_ioctl, fd, GETFLAGS, &raw mut flags).fails(ENOTTY);
        sc!(SYS_ioctl, fd, GETFLAGS, 8).fails(ENOTTY);
        let answer = sc!(SYS_ioctl, fd, SETFLAGS, &raw mut flags);
        assert!(answer == Err(ENOTTY) || fd == proc && answer == Err(EROFS), "{answer:?}");
        sc!(SYS_ioctl, fd, SETFLAGS, 8).fails(EFAULT);
    }
    let memory = sc!(SYS_memfd_create, c"m".as_ptr(), 0).fd();
    sc!(SYS_ioctl, memory, GETFLAGS, &raw mut flags).is(0);
    sc!(SYS_ioctl, memory, GETFLAGS, 8).fails(EFAULT);
    sc!(SYS_ioctl, memory, SETFLAGS, 8).fails(EFAULT);
    assert_eq!(flags, 0);
    let path = open("/dev/shm", O_PATH).fd();
    sc!(SYS_ioctl, path, GETFLAGS, &raw mut flags).fails(EBADF);
}

fn flags_are_inherited() {
    guarded(|dir| {
        set(dir, NODUMP | NOATIME | APPEND).is(0);
        let (path, _) = file(dir, "f");
        assert_eq!(get(&path), NODUMP | NOATIME);
        let inner = format!("{dir}/d");
        sc!(SYS_mkdir, c(&inner).as_ptr(), 0o755).is(0);
        assert_eq!(get(&inner), NODUMP | NOATIME);
        let unnamed = open(dir, O_TMPFILE | O_RDWR).fd();
        let mut flags = 0u32;
        sc!(SYS_ioctl, unnamed, GETFLAGS, &raw mut flags).is(0);
        assert_eq!(flags, NODUMP | NOATIME);
    });
}

fn what_cannot_be() {
    guarded(|dir| {
        let (path, _) = file(dir, "f");
        for flags in [1, 2, 4, 8, 0x100, 0x800, 0x4000, 0x8_0000, 0x80_0000, !0x30] {
            set(&path, flags).fails(EOPNOTSUPP);
        }
        assert_eq!(get(&path), 0);
    });
}

/// An open file and another name show the same, whatever was forgotten meanwhile.
fn flags_stay() {
    guarded(|dir| {
        let (path, name) = file(dir, "f");
        let other = format!("{dir}/g");
        sc!(SYS_link, name.as_ptr(), c(&other).as_ptr()).is(0);
        set(&path, NODUMP).is(0);
        let _ = std::fs::write("/proc/sys/vm/drop_caches", "3");
        assert_eq!(get(&other), NODUMP);
        sc!(SYS_unlink, name.as_ptr()).is(0);
        assert_eq!(get(&other), NODUMP);
    });
}

fn the_other_form() {
    guarded(|dir| {
        let (path, _) = file(dir, "f");
        let fd = open(&path, O_RDWR).fd();
        let mut words = [u32::MAX; 7];
        sc!(SYS_ioctl, fd, GETXATTR, words.as_mut_ptr()).is(0);
        assert_eq!(words, [0; 7]);
        for (flags, form) in [(IMMUTABLE, 8), (APPEND, 0x10), (NOATIME, 0x40), (NODUMP, 0x80)] {
            sc!(SYS_ioctl, fd, SETXATTR, [form, 0, 0, 0, 0, 0, 0].as_ptr()).is(0);
            assert_eq!(get(&path), flags);
            sc!(SYS_ioctl, fd, GETXATTR, words.as_mut_ptr()).is(0);
            assert_eq!(words, [form, 0, 0, 0, 0, 0, 0]);
        }
        for wrong in [[2, 0], [0x20, 0], [0x200, 0], [1 << 31, 0], [0, 7]] {
            let words = [wrong[0], 0, 0, wrong[1], 0, 0, 0];
            sc!(SYS_ioctl, fd, SETXATTR, words.as_ptr()).fails(EOPNOTSUPP);
        }
        sc!(SYS_ioctl, fd, SETXATTR, 8).fails(EFAULT);
        assert_eq!(get(&path), NODUMP);
    });
}
