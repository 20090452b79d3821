//! What each right of landlock(7) decides, call by call: a table of answers, which must be the same
//! on Linux and on Limen (`limen test run --filter run::landlock_matrix`).
//!
//! Every call that names a file, or does something to an open one, is made in a folder of its own
//! by a process that is not restricted, then by one that is: for each right once with that right
//! alone handled and nowhere granted, and once with all rights handled and all others granted. A
//! cell is the answer and how many names the folder has then; nobody states what it should be, for
//! Linux does. Neighbour: `landlock.rs` states what is known.

use crate::landlock::{ALL_FS, furnish, grant, restrict, ruleset};
use crate::sc;
use crate::sys::*;

/// A call: its name, what it takes from before the restriction, and the call in the folder.
struct Call(&'static str, fn(&str) -> i32, fn(&str, i32) -> Res);

fn nothing(_: &str) -> i32 {
    -1
}

fn at(d: &str, name: &str) -> std::ffi::CString {
    c(&format!("{d}/{name}"))
}

/// Opens with flags and closes again.
fn opens(d: &str, name: &str, flags: i32) -> Res {
    let fd = sc!(SYS_openat, AT_FDCWD, at(d, name).as_ptr(), flags, 0o600)?;
    close(fd as i32);
    Ok(0)
}

/// Opens one of these ways, as far as one is allowed.
fn opened(d: &str, name: &str, ways: &[i32]) -> Result<i32, i32> {
    let mut last = EBADF;
    for flags in ways {
        match sc!(SYS_openat, AT_FDCWD, at(d, name).as_ptr(), *flags, 0) {
            Ok(fd) => return Ok(fd as i32),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn makes(d: &str, name: &str, kind: u32) -> Res {
    let device = if kind == S_IFBLK { makedev(1, 0) } else { makedev(1, 3) };
    sc!(SYS_mknod, at(d, name).as_ptr(), kind | 0o600, device)
}

fn renames(d: &str, from: &str, to: &str, flags: u32) -> Res {
    let (from, to) = (at(d, from), at(d, to));
    sc!(SYS_renameat2, AT_FDCWD, from.as_ptr(), AT_FDCWD, to.as_ptr(), flags)
}

/// Executes what does nothing, in a child.
fn executes(path: &std::ffi::CStr, fd: i32, flags: i32) -> Res {
    let pid = fork(|| {
        let argv = [path.as_ptr(), std::ptr::null()];
        let nothing = [std::ptr::null::<u8>()];
        let (argv, envp) = (argv.as_ptr(), nothing.as_ptr());
        sc!(SYS_execveat, fd, path.as_ptr(), argv, envp, flags).unwrap_err()
    });
    match WEXITSTATUS(wait(pid)) {
        0 => Ok(0),
        error => Err(error),
    }
}

fn binds(d: &str) -> Res {
    let socket = sc!(SYS_socket, AF_UNIX, SOCK_STREAM, 0)? as i32;
    let mut name = (AF_UNIX as u16).to_ne_bytes().to_vec();
    name.extend_from_slice(at(d, "bound").as_bytes_with_nul());
    sc!(SYS_bind, socket, name.as_ptr(), name.len())
}

fn tells(d: &str, name: &str, request: usize) -> Res {
    let fd = opened(d, name, &[O_RDONLY, O_WRONLY])?;
    let mut out = [0_u64; 16];
    sc!(SYS_ioctl, fd, request, out.as_mut_ptr())
}

fn lists(fd: i32) -> Res {
    let mut out = [0_u64; 128];
    sc!(SYS_getdents64, fd, out.as_mut_ptr(), 1024).map(|_| 0)
}

const FIOCLEX: usize = 0x5451;
const FIONBIO: usize = 0x5421;
const FIGETBSZ: usize = 2;
const FIONREAD: usize = 0x541b;
const BLKGETSIZE: usize = 0x1260;

/// Every call, by what it does.
const CALLS: &[Call] = &[
    Call("open to read", nothing, |d, _| opens(d, "file", O_RDONLY)),
    Call("open to write", nothing, |d, _| opens(d, "file", O_WRONLY)),
    Call("open to append", nothing, |d, _| opens(d, "file", O_WRONLY | O_APPEND)),
    Call("open for both", nothing, |d, _| opens(d, "file", O_RDWR)),
    Call("open O_PATH", nothing, |d, _| opens(d, "file", O_PATH)),
    Call("open to write, cut", nothing, |d, _| opens(d, "file", O_WRONLY | O_TRUNC)),
    Call("open to read, cut", nothing, |d, _| opens(d, "file", O_RDONLY | O_TRUNC)),
    Call("open and make", nothing, |d, _| opens(d, "new", O_WRONLY | O_CREAT)),
    Call("open and make, to read", nothing, |d, _| opens(d, "new", O_RDONLY | O_CREAT)),
    Call("open and make, exclusive", nothing, |d, _| opens(d, "new", O_RDWR | O_CREAT | O_EXCL)),
    Call("open and make what is there", nothing, |d, _| opens(d, "file", O_WRONLY | O_CREAT)),
    Call("open exclusive what is there", nothing, |d, _| {
        opens(d, "file", O_RDWR | O_CREAT | O_EXCL)
    }),
    Call("open what is not there", nothing, |d, _| opens(d, "none", O_RDWR)),
    Call("open without a name", nothing, |d, _| opens(d, ".", O_TMPFILE | O_RDWR)),
    Call("open a folder", nothing, |d, _| opens(d, "into", O_RDONLY | O_DIRECTORY)),
    Call("open a folder O_PATH", nothing, |d, _| opens(d, "into", O_PATH | O_DIRECTORY)),
    Call("open a device", nothing, |d, _| opens(d, "null", O_RDWR)),
    Call("open a FIFO", nothing, |d, _| opens(d, "fifo", O_RDWR | O_NONBLOCK)),
    Call("open by a link", nothing, |d, _| opens(d, "symlink", O_RDONLY)),
    Call("creat, new", nothing, |d, _| sc!(SYS_creat, at(d, "new").as_ptr(), 0o600).map(|_| 0)),
    Call("creat, there", nothing, |d, _| sc!(SYS_creat, at(d, "file").as_ptr(), 0o600).map(|_| 0)),
    Call(
        "openat",
        |d| open(d, O_PATH).fd(),
        |_, fd| sc!(SYS_openat, fd, c("file").as_ptr(), O_RDWR, 0).map(|_| 0),
    ),
    Call("openat2", nothing, |d, _| {
        let how = [(O_RDWR | O_CREAT) as u64, 0o600, 0];
        sc!(SYS_openat2, AT_FDCWD, at(d, "new").as_ptr(), how.as_ptr(), 24).map(|_| 0)
    }),
    Call(
        "open again by /proc",
        |d| open(&format!("{d}/file"), O_PATH).fd(),
        |_, fd| {
            let path = c(&format!("/proc/self/fd/{fd}"));
            sc!(SYS_openat, AT_FDCWD, path.as_ptr(), O_WRONLY, 0).map(|_| 0)
        },
    ),
    Call("execve", nothing, |d, _| executes(&at(d, "program"), AT_FDCWD, 0)),
    Call("execveat, of a folder", |d| open(d, O_PATH).fd(), |_, fd| executes(&c("program"), fd, 0)),
    Call(
        "execveat, of a descriptor",
        |d| open(&format!("{d}/program"), O_PATH).fd(),
        |_, fd| executes(&c(""), fd, AT_EMPTY_PATH),
    ),
    Call("truncate", nothing, |d, _| sc!(SYS_truncate, at(d, "grow").as_ptr(), 1)),
    Call(
        "ftruncate, opened before",
        |d| open(&format!("{d}/grow"), O_RDWR).fd(),
        |_, fd| sc!(SYS_ftruncate, fd, 1),
    ),
    Call("ftruncate, opened after", nothing, |d, _| {
        sc!(SYS_ftruncate, opened(d, "grow", &[O_RDWR, O_WRONLY])?, 1)
    }),
    Call("fallocate, opened after", nothing, |d, _| {
        sc!(SYS_fallocate, opened(d, "grow", &[O_RDWR, O_WRONLY])?, 0, 0, 100)
    }),
    Call(
        "write, opened before",
        |d| open(&format!("{d}/grow"), O_RDWR).fd(),
        |_, fd| sc!(SYS_write, fd, c"x".as_ptr(), 1).map(|_| 0),
    ),
    Call("list, opened before", |d| open(d, O_RDONLY).fd(), |_, fd| lists(fd)),
    Call("list, opened after", nothing, |d, _| lists(opened(d, ".", &[O_RDONLY])?)),
    Call("unlink", nothing, |d, _| sc!(SYS_unlink, at(d, "remove").as_ptr())),
    Call("unlink a link", nothing, |d, _| sc!(SYS_unlink, at(d, "symlink").as_ptr())),
    Call("unlink a FIFO", nothing, |d, _| sc!(SYS_unlink, at(d, "fifo").as_ptr())),
    Call("unlink a device", nothing, |d, _| sc!(SYS_unlink, at(d, "null").as_ptr())),
    Call("unlink a folder", nothing, |d, _| sc!(SYS_unlink, at(d, "empty").as_ptr())),
    Call("unlink what is not there", nothing, |d, _| sc!(SYS_unlink, at(d, "none").as_ptr())),
    Call("unlinkat", nothing, |d, _| sc!(SYS_unlinkat, AT_FDCWD, at(d, "remove").as_ptr(), 0)),
    Call("unlinkat, a folder", nothing, |d, _| {
        sc!(SYS_unlinkat, AT_FDCWD, at(d, "empty").as_ptr(), AT_REMOVEDIR)
    }),
    Call("rmdir", nothing, |d, _| sc!(SYS_rmdir, at(d, "empty").as_ptr())),
    Call("rmdir, not empty", nothing, |d, _| sc!(SYS_rmdir, at(d, "into").as_ptr())),
    Call("mkdir", nothing, |d, _| sc!(SYS_mkdir, at(d, "new").as_ptr(), 0o700)),
    Call("mkdir, there", nothing, |d, _| sc!(SYS_mkdir, at(d, "empty").as_ptr(), 0o700)),
    Call("mkdirat", nothing, |d, _| sc!(SYS_mkdirat, AT_FDCWD, at(d, "new").as_ptr(), 0o700)),
    Call("mknod, a file", nothing, |d, _| makes(d, "new", S_IFREG)),
    Call("mknod, of no kind", nothing, |d, _| makes(d, "new", 0)),
    Call("mknod, a character device", nothing, |d, _| makes(d, "new", S_IFCHR)),
    Call("mknod, a block device", nothing, |d, _| makes(d, "new", S_IFBLK)),
    Call("mknod, a FIFO", nothing, |d, _| makes(d, "new", S_IFIFO)),
    Call("mknod, a socket", nothing, |d, _| makes(d, "new", S_IFSOCK)),
    Call("mknod, there", nothing, |d, _| makes(d, "file", S_IFREG)),
    Call("mknodat, a FIFO", nothing, |d, _| {
        sc!(SYS_mknodat, AT_FDCWD, at(d, "new").as_ptr(), S_IFIFO | 0o600, 0)
    }),
    Call("bind", nothing, |d, _| binds(d)),
    Call("symlink", nothing, |d, _| sc!(SYS_symlink, c"file".as_ptr(), at(d, "new").as_ptr())),
    Call("symlinkat", nothing, |d, _| {
        sc!(SYS_symlinkat, c"file".as_ptr(), AT_FDCWD, at(d, "new").as_ptr())
    }),
    Call("link, the same folder", nothing, |d, _| {
        sc!(SYS_link, at(d, "file").as_ptr(), at(d, "new").as_ptr())
    }),
    Call("link, another folder", nothing, |d, _| {
        sc!(SYS_link, at(d, "file").as_ptr(), at(d, "into/new").as_ptr())
    }),
    Call("link, there", nothing, |d, _| {
        sc!(SYS_link, at(d, "file").as_ptr(), at(d, "remove").as_ptr())
    }),
    Call(
        "linkat, a descriptor",
        |d| open(&format!("{d}/file"), O_RDONLY).fd(),
        |d, fd| sc!(SYS_linkat, fd, c"".as_ptr(), AT_FDCWD, at(d, "new").as_ptr(), AT_EMPTY_PATH),
    ),
    Call(
        "linkat, without a name",
        |d| open(d, O_TMPFILE | O_RDWR).fd(),
        |d, fd| sc!(SYS_linkat, fd, c"".as_ptr(), AT_FDCWD, at(d, "new").as_ptr(), AT_EMPTY_PATH),
    ),
    Call("rename, the same folder", nothing, |d, _| {
        sc!(SYS_rename, at(d, "file").as_ptr(), at(d, "new").as_ptr())
    }),
    Call("rename, onto a file", nothing, |d, _| {
        sc!(SYS_rename, at(d, "file").as_ptr(), at(d, "remove").as_ptr())
    }),
    Call("rename, another folder", nothing, |d, _| {
        sc!(SYS_rename, at(d, "file").as_ptr(), at(d, "into/new").as_ptr())
    }),
    Call("rename, a folder", nothing, |d, _| renames(d, "empty", "new", 0)),
    Call("rename, a folder into another", nothing, |d, _| renames(d, "empty", "into/new", 0)),
    Call("rename, a folder onto a folder", nothing, |d, _| renames(d, "empty", "into/deep", 0)),
    Call("rename, a link into another", nothing, |d, _| renames(d, "symlink", "into/new", 0)),
    Call("rename, a FIFO", nothing, |d, _| renames(d, "fifo", "new", 0)),
    Call("rename, a device", nothing, |d, _| renames(d, "null", "new", 0)),
    Call("rename, to itself", nothing, |d, _| renames(d, "file", "file", 0)),
    Call("rename, not there", nothing, |d, _| renames(d, "none", "into/new", 0)),
    Call("renameat", nothing, |d, _| {
        sc!(SYS_renameat, AT_FDCWD, at(d, "file").as_ptr(), AT_FDCWD, at(d, "new").as_ptr())
    }),
    Call("rename, not onto", nothing, |d, _| renames(d, "file", "remove", RENAME_NOREPLACE)),
    Call("exchange", nothing, |d, _| renames(d, "file", "remove", RENAME_EXCHANGE)),
    Call("exchange, file and folder", nothing, |d, _| renames(d, "file", "empty", RENAME_EXCHANGE)),
    Call("exchange, another folder", nothing, |d, _| {
        renames(d, "file", "into/file", RENAME_EXCHANGE)
    }),
    Call("exchange, not there", nothing, |d, _| renames(d, "file", "none", RENAME_EXCHANGE)),
    Call(
        "ioctl, a device, opened before",
        |d| open(&format!("{d}/null"), O_RDWR).fd(),
        |_, fd| sc!(SYS_ioctl, fd, TCGETS, 8),
    ),
    Call("ioctl, a device", nothing, |d, _| tells(d, "null", TCGETS as usize)),
    Call("ioctl FIOCLEX, a device", nothing, |d, _| tells(d, "null", FIOCLEX)),
    Call("ioctl FIONBIO, a device", nothing, |d, _| tells(d, "null", FIONBIO)),
    Call("ioctl FIGETBSZ, a device", nothing, |d, _| tells(d, "null", FIGETBSZ)),
    Call("ioctl FIONREAD, a device", nothing, |d, _| tells(d, "null", FIONREAD)),
    Call("ioctl BLKGETSIZE, a device", nothing, |d, _| tells(d, "null", BLKGETSIZE)),
    Call("ioctl, a file", nothing, |d, _| tells(d, "file", FIONREAD)),
    Call("ioctl, a FIFO", nothing, |d, _| {
        let fd = opened(d, "fifo", &[O_RDWR | O_NONBLOCK, O_RDONLY | O_NONBLOCK])?;
        let mut out = 0_u64;
        sc!(SYS_ioctl, fd, FIONREAD, &raw mut out)
    }),
    Call("stat", nothing, |d, _| {
        let mut out = [0_u64; 32];
        sc!(SYS_stat, at(d, "file").as_ptr(), out.as_mut_ptr())
    }),
    Call("access", nothing, |d, _| sc!(SYS_access, at(d, "file").as_ptr(), 4)),
    Call("readlink", nothing, |d, _| {
        let mut out = [0_u8; 64];
        sc!(SYS_readlink, at(d, "symlink").as_ptr(), out.as_mut_ptr(), 64).map(|_| 0)
    }),
    Call("chdir", nothing, |d, _| sc!(SYS_chdir, at(d, "into").as_ptr())),
    Call("chmod", nothing, |d, _| sc!(SYS_chmod, at(d, "file").as_ptr(), 0o640)),
    Call("chown", nothing, |d, _| sc!(SYS_chown, at(d, "file").as_ptr(), 1, 1)),
    Call("utimensat", nothing, |d, _| sc!(SYS_utimensat, AT_FDCWD, at(d, "file").as_ptr(), 0, 0)),
    Call("statfs", nothing, |d, _| {
        let mut out = [0_u64; 32];
        sc!(SYS_statfs, at(d, "file").as_ptr(), out.as_mut_ptr())
    }),
    Call("chroot", nothing, |d, _| sc!(SYS_chroot, c(d).as_ptr())),
];

/// How a process is restricted before the call.
#[derive(Clone, Copy)]
enum Restriction {
    Free,
    /// This right is handled, and nowhere granted.
    Alone(u64),
    /// All are handled, and all but this one granted everywhere.
    AllBut(u64),
}

/// The answer, and the names that the folder has then.
fn cell(call: &Call, restriction: Restriction) -> String {
    let d = dir();
    furnish(&d);
    std::fs::write(format!("{d}/into/file"), b"inner").expect("a file");
    std::fs::create_dir(format!("{d}/into/deep")).expect("a folder");
    std::os::unix::fs::symlink("file", format!("{d}/symlink")).expect("a link");
    makes(&d, "fifo", S_IFIFO).is(0);
    let pid = fork(|| {
        let before = call.1(&d);
        let rules = match restriction {
            Restriction::Free => None,
            Restriction::Alone(right) => Some(ruleset(right, 0)),
            Restriction::AllBut(right) => {
                let rules = ruleset(ALL_FS, 0);
                grant(rules, ALL_FS & !right, "/");
                Some(rules)
            }
        };
        if let Some(rules) = rules {
            restrict(rules).is(0);
        }
        call.2(&d, before).map_or_else(|error| error, |_| 0)
    });
    let answer = WEXITSTATUS(wait(pid));
    let names = |d: &str| std::fs::read_dir(d).map_or(0, Iterator::count);
    let (outer, inner) = (names(&d), names(&format!("{d}/into")));
    let file = std::fs::metadata(format!("{d}/file")).map_or(99, |meta| meta.len());
    let _ = std::fs::remove_dir_all(&d);
    format!("{answer}/{outer}+{inner}+{file}")
}

/// Prints a line for each call: its name, and a cell for each restriction.
pub fn main() -> bool {
    for call in CALLS {
        let rights = || (0..16).map(|bit| 1_u64 << bit);
        let restrictions = std::iter::once(Restriction::Free)
            .chain(rights().map(Restriction::Alone))
            .chain(rights().map(Restriction::AllBut));
        let cells: Vec<String> = restrictions.map(|how| cell(call, how)).collect();
        println!("row {}: {}", call.0, cells.join(" "));
    }
    println!("rows {}", CALLS.len());
    true
}
