//! Rights that files give, and how they go: set-user-ID and its kin, capabilities of files, names
//! for open files, scripts.
//!
//! Manual pages: write(2), truncate(2), chown(2), inode(7), capabilities(7), linkat(2),
//! execveat(2), memfd_create(2), fcntl(2) (file sealing).

use std::os::unix::fs::{MetadataExt, PermissionsExt};

use crate::sys::*;
use crate::{sc, tests};

tests!("file_rights":
    changing_contents_drops_mode_bits, changing_contents_drops_capabilities,
    who_may_keep_mode_bits, chown_drops_capabilities, set_group_id_by_the_directory,
    sealed_modes, linking_an_open_file, scripts_by_descriptor, scripts_are_not_raised,
    script_names, locks_wake_their_own_file, lock_ranges, lock_and_close_in_threads,
);

/// A way to change a file's contents.
type Change = fn(&str, i32);

fn other_file() -> i32 {
    let fd = sc!(SYS_memfd_create, c"other".as_ptr(), 0).fd();
    write(fd, b"some contents of another file");
    sc!(SYS_lseek, fd, 0, SEEK_SET).is(0);
    fd
}

/// The ways, each with a path to the file and a descriptor that may be written to.
const CHANGES: &[(&str, Change)] = &[
    ("write", |_, fd| write(fd, b"x")),
    ("pwrite", |_, fd| sc!(SYS_pwrite64, fd, b"x".as_ptr(), 1, 3).is(1)),
    ("writev", |_, fd| {
        let part = [b"xy".as_ptr() as usize, 2];
        sc!(SYS_writev, fd, part.as_ptr(), 1).is(2);
    }),
    ("ftruncate", |_, fd| sc!(SYS_ftruncate, fd, 5).is(0)),
    ("truncate", |path, _| sc!(SYS_truncate, c(path).as_ptr(), 5).is(0)),
    ("open with O_TRUNC", |path, _| close(open(path, O_WRONLY | O_TRUNC).fd())),
    ("sendfile", |_, fd| {
        let from = other_file();
        sc!(SYS_sendfile, fd, from, 0, 5).is(5);
        close(from);
    }),
    ("splice", |_, fd| {
        let (out, into) = pipe();
        write(into, b"12345");
        sc!(SYS_splice, out, 0, fd, 0, 5, 0).is(5);
        close(out);
        close(into);
    }),
    ("splice at an offset", |_, fd| {
        let (out, into) = pipe();
        write(into, b"12345");
        let mut at = 1i64;
        sc!(SYS_splice, out, 0, fd, &raw mut at, 5, 0).is(5);
        close(out);
        close(into);
    }),
];

fn mode(path: &str) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

/// A file of the caller's with these mode bits, and a descriptor to write to it.
fn program(name: &str, bits: u32) -> (String, i32) {
    let path = format!("{}/{name}", dir_in("/dev/shm"));
    std::fs::write(&path, "#! a program\n").unwrap();
    sc!(SYS_chmod, c(&path).as_ptr(), bits).is(0);
    let fd = open(&path, O_RDWR).fd();
    (path, fd)
}

fn changing_contents_drops_mode_bits() {
    as_user(|| {
        for (what, change) in CHANGES {
            for (before, after) in [(0o4755, 0o755), (0o6755, 0o755), (0o2745, 0o2745)] {
                let (path, fd) = program("f", before);
                assert_eq!(mode(&path), before);
                change(&path, fd);
                assert_eq!(mode(&path), after, "{what} on {before:o}");
                // And once more: what is known of the file must not outlive the next chmod.
                sc!(SYS_chmod, c(&path).as_ptr(), before).is(0);
                change(&path, fd);
                assert_eq!(mode(&path), after, "{what} again on {before:o}");
                close(fd);
            }
        }
    });
}

/// VFS_CAP_REVISION_2 with CAP_NET_RAW permitted and effective.
const CAPABILITIES: [u32; 5] = [0x0200_0001, 1 << 13, 0, 0, 0];
const NAME: &std::ffi::CStr = c"security.capability";

fn give_capabilities(path: &str) {
    let len = size_of_val(&CAPABILITIES);
    sc!(SYS_setxattr, c(path).as_ptr(), NAME.as_ptr(), CAPABILITIES.as_ptr(), len, 0).is(0);
}

fn has_capabilities(path: &str) -> bool {
    match sc!(SYS_getxattr, c(path).as_ptr(), NAME.as_ptr(), 0, 0) {
        Ok(len) => len == size_of_val(&CAPABILITIES),
        Err(error) => {
            assert_eq!(error, ENODATA);
            false
        }
    }
}

fn changing_contents_drops_capabilities() {
    for (what, change) in CHANGES {
        let (path, fd) = program("f", 0o755);
        for round in 0..2 {
            give_capabilities(&path);
            assert!(has_capabilities(&path));
            change(&path, fd);
            assert!(!has_capabilities(&path), "{what}, round {round}");
        }
        close(fd);
    }
}

fn who_may_keep_mode_bits() {
    // With CAP_FSETID.
    for (what, change) in CHANGES {
        let (path, fd) = program("f", 0o6755);
        change(&path, fd);
        assert_eq!(mode(&path), 0o6755, "{what}");
        close(fd);
    }
}

fn chown_drops_capabilities() {
    let (path, fd) = program("f", 0o6755);
    give_capabilities(&path);
    sc!(SYS_fchown, fd, 0, 0).is(0);
    assert!(!has_capabilities(&path));
    assert_eq!(mode(&path), 0o755);
}

/// CVE-2018-13405 and CVE-2021-4037: a program of a group that its maker is not in.
fn set_group_id_by_the_directory() {
    let d = dir_in("/dev/shm");
    sc!(SYS_chown, c(&d).as_ptr(), 1234, 5678).is(0);
    sc!(SYS_chmod, c(&d).as_ptr(), 0o2777).is(0);
    as_user(|| {
        for umask in [0, 0o022, 0o077, 0o010, 0o777] {
            sc!(SYS_umask, umask).must();
            for (asked, kept) in
                [(0o2777, 0), (0o2755, 0), (0o2710, 0), (0o2767, 0o2000), (0o2700, 0o2000)]
            {
                let path = format!("{d}/{umask:o}-{asked:o}");
                close(sc!(SYS_open, c(&path).as_ptr(), O_CREAT | O_EXCL | O_RDWR, asked).fd());
                let of = std::fs::metadata(&path).unwrap();
                let wanted = asked & 0o777 & !umask | kept;
                assert_eq!((mode(&path), of.gid()), (wanted, 5678), "{asked:o} by {umask:o}");
                let unnamed = O_TMPFILE | O_RDWR;
                let fd = sc!(SYS_open, c(&d).as_ptr(), unnamed, asked).fd();
                assert_eq!(mode(&format!("/proc/self/fd/{fd}")), wanted, "unnamed {asked:o}");
                close(fd);
                let node = format!("{path}-node");
                sc!(SYS_mknod, c(&node).as_ptr(), S_IFREG | asked, 0).is(0);
                assert_eq!(mode(&node), wanted, "mknod {asked:o} by {umask:o}");
            }
        }
    });
}

fn sealed_modes() {
    let no_exec = 8;
    let seal_exec = 0x20;
    let fd = sc!(SYS_memfd_create, c"sealed".as_ptr(), no_exec).fd();
    assert_eq!(sc!(SYS_fcntl, fd, F_GET_SEALS).must() & seal_exec, seal_exec);
    sc!(SYS_fchmod, fd, 0o777).fails(EPERM);
    sc!(SYS_fchmod, fd, 0o611).fails(EPERM);
    sc!(SYS_fchmod, fd, 0o600).is(0);
    let path = c(&format!("/proc/self/fd/{fd}"));
    sc!(SYS_chmod, path.as_ptr(), 0o700).fails(EPERM);
    let fd = sc!(SYS_memfd_create, c"later".as_ptr(), MFD_ALLOW_SEALING).fd();
    sc!(SYS_fchmod, fd, 0o600).is(0);
    sc!(SYS_fcntl, fd, F_ADD_SEALS, seal_exec).is(0);
    sc!(SYS_fchmod, fd, 0o700).fails(EPERM);
    assert_eq!(sc!(SYS_fcntl, fd, F_GET_SEALS).must(), seal_exec, "no bit, no other seal");
    // What stays executable stays as it is.
    let fd = sc!(SYS_memfd_create, c"runs".as_ptr(), MFD_ALLOW_SEALING).fd();
    write(fd, b"text");
    let at = sc!(SYS_mmap, 0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0).must();
    sc!(SYS_fcntl, fd, F_ADD_SEALS, seal_exec).fails(EBUSY);
    assert_eq!(sc!(SYS_fcntl, fd, F_GET_SEALS).must(), 0, "a refused seal");
    sc!(SYS_munmap, at, 4096).is(0);
    sc!(SYS_fcntl, fd, F_ADD_SEALS, seal_exec).is(0);
    assert_eq!(sc!(SYS_fcntl, fd, F_GET_SEALS).must(), 0x3e, "all that keeps the contents");
    sc!(SYS_write, fd, c"x".as_ptr(), 1).fails(EPERM);
    sc!(SYS_ftruncate, fd, 0).fails(EPERM);
}

fn linking_an_open_file() {
    let d = dir();
    sc!(SYS_chmod, c(&d).as_ptr(), 0o777).is(0);
    let link = |fd: i32, name: &str| {
        let name = c(&format!("{d}/{name}"));
        sc!(SYS_linkat, fd, c"".as_ptr(), AT_FDCWD, name.as_ptr(), AT_EMPTY_PATH)
    };
    let unnamed = || {
        let fd = sc!(SYS_open, c(&d).as_ptr(), O_TMPFILE | O_RDWR, 0o666).fd();
        sc!(SYS_fchown, fd, 1234, 1234).is(0);
        fd
    };
    let fd = unnamed();
    link(fd, "mine").is(0);
    let fd = unnamed();
    as_user(|| {
        // Opened by others: the descriptor is not enough.
        link(fd, "theirs").fails(ENOENT);
        let own = sc!(SYS_open, c(&d).as_ptr(), O_TMPFILE | O_RDWR, 0o666).fd();
        link(own, "own").is(0);
    });
}

fn execveat(fd: i32, path: &str, flags: i32) -> Res {
    let words = [c("word").into_raw(), std::ptr::null_mut()];
    sc!(SYS_execveat, fd, c(path).as_ptr(), words.as_ptr(), words[1..].as_ptr(), flags)
}

fn script(text: &str) -> String {
    let path = format!("{}/itself", dir());
    std::fs::write(&path, text).unwrap();
    sc!(SYS_chmod, c(&path).as_ptr(), 0o755).is(0);
    path
}

fn scripts_by_descriptor() {
    let path = script(&format!("#!{} child\n", own_path()));
    let closing = open(&path, O_RDONLY | O_CLOEXEC).fd();
    in_child(|| execveat(closing, "", AT_EMPTY_PATH).fails(ENOENT));
    let directory = path.strip_suffix("/itself").unwrap();
    let closing = open(directory, O_RDONLY | O_CLOEXEC).fd();
    in_child(|| execveat(closing, "itself", 0).fails(ENOENT));
    // A program, and a script whose descriptor stays, run.
    let program = open(&own_path(), O_RDONLY | O_CLOEXEC).fd();
    wait_code(fork(|| execveat(program, "", AT_EMPTY_PATH).err().unwrap_or(0)), 2);
    let stays = open(directory, O_RDONLY).fd();
    let quiet = || {
        sc!(SYS_dup2, open("/dev/null", O_WRONLY).fd(), 1).is(1);
        execveat(stays, "itself", 0).err().unwrap_or(99)
    };
    wait_code(fork(quiet), 0);
}

/// The interpreter's mode bits count, not the script's.
fn scripts_are_not_raised() {
    let path = script(&format!("#!{} child\n", own_path()));
    sc!(SYS_chmod, c(path.strip_suffix("/itself").unwrap()).as_ptr(), 0o755).is(0);
    let told = run_script(&path, true);
    assert!(told.contains("\0LIMEN_SECURE=0 UID=1234 EUID=1234\0"), "{told:?}");
    sc!(SYS_chmod, c(&path).as_ptr(), 0o6755).is(0);
    let told = run_script(&path, true);
    assert!(told.contains("\0LIMEN_SECURE=0 UID=1234 EUID=1234\0"), "{told:?}");
}

/// What the script (`child PATH`) says of itself.
fn run_script(path: &str, as_other: bool) -> String {
    let (out, into) = pipe();
    let pid = fork(|| {
        sc!(SYS_dup2, into, 1).is(1);
        if as_other {
            sc!(SYS_setresgid, 1234, 1234, 1234).is(0);
            sc!(SYS_setresuid, 1234, 1234, 1234).is(0);
        }
        let words = [c("word").into_raw(), std::ptr::null_mut()];
        sc!(SYS_execve, c(path).as_ptr(), words.as_ptr(), words[1..].as_ptr()).err().unwrap_or(99)
    });
    close(into);
    let mut told = Vec::new();
    loop {
        match read(out, 4096) {
            part if part.is_empty() => break,
            part => told.extend(part),
        }
    }
    close(out);
    wait_code(pid, 0);
    String::from_utf8(told).unwrap()
}

fn script_names() {
    let path = script(&format!("#!{} child\n", own_path()));
    let told = run_script(&path, false);
    assert!(told.contains(&format!("\0LIMEN_EXECFN={path} COMM=itself\0")), "{told:?}");
}

// ------------------------------------------------------------------------------------------------
// Locks: what one program holds of a file.

#[repr(C)]
#[derive(Clone, Copy)]
struct Flock {
    kind: i16,
    whence: i16,
    start: i64,
    len: i64,
    pid: i32,
}

fn lock(fd: i32, command: i32, kind: i32, start: i64, len: i64) -> Res {
    let flock = Flock { kind: kind as i16, whence: 0, start, len, pid: 0 };
    sc!(SYS_fcntl, fd, command, &raw const flock)
}

/// Waiters of two files: each is woken by its own file, whatever happens to the other.
fn locks_wake_their_own_file() {
    let d = dir();
    let [one, two] = ["one", "two"].map(|name| open(&format!("{d}/{name}"), O_RDWR | O_CREAT).fd());
    let woken = &new_shared()[1..3];
    for fd in [one, two] {
        lock(fd, F_SETLK, F_WRLCK, 0, 0).is(0);
    }
    let waiters = [(one, 0), (two, 1)].map(|(fd, at)| {
        fork(|| {
            lock(fd, F_SETLKW, F_WRLCK, 10, 5).is(0);
            woken[at].store(1, std::sync::atomic::Ordering::SeqCst);
            0
        })
    });
    let of = |at: usize| woken[at].load(std::sync::atomic::Ordering::SeqCst);
    nap(50);
    assert_eq!((of(0), of(1)), (0, 0));
    lock(one, F_SETLK, F_UNLCK, 10, 5).is(0);
    until(|| of(0) == 1);
    wait_code(waiters[0], 0);
    nap(20);
    assert_eq!(of(1), 0);
    lock(two, F_SETLK, F_RDLCK, 0, 0).is(0);
    nap(20);
    assert_eq!(of(1), 0, "a shared lock excludes the waiter, too");
    close(two);
    wait_code(waiters[1], 0);
}

/// Random locks of one owner against a plain list of bytes, seen by another process.
fn lock_ranges() {
    const BYTES: usize = 64;
    let fd = open(&format!("{}/f", dir()), O_RDWR | O_CREAT).fd();
    let mut model = [F_UNLCK; BYTES];
    let mut seed = 12345u32;
    let mut random = |below: usize| {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (seed >> 16) as usize % below
    };
    for round in 0..300 {
        let start = random(BYTES);
        let len = 1 + random(BYTES - start);
        let kind = [F_UNLCK, F_RDLCK, F_WRLCK][random(3)];
        lock(fd, F_SETLK, kind, start as i64, len as i64).is(0);
        model[start..start + len].fill(kind);
        if round % 10 != 0 {
            continue;
        }
        in_child(|| {
            let mut at = 0;
            while at < BYTES {
                let kind = model[at];
                let end = (at..BYTES).find(|&byte| model[byte] != kind).unwrap_or(BYTES);
                let (start, len) = (at as i64, (BYTES - at) as i64);
                let mut flock = Flock { kind: F_WRLCK as i16, whence: 0, start, len, pid: 0 };
                sc!(SYS_fcntl, fd, F_GETLK, &raw mut flock).is(0);
                if kind == F_UNLCK {
                    let next =
                        if end == BYTES { (F_UNLCK, start) } else { (model[end], end as i64) };
                    assert_eq!((i32::from(flock.kind), flock.start), next, "round {round} at {at}");
                } else {
                    let found = (i32::from(flock.kind), flock.start, flock.start + flock.len);
                    // Neighbours of one kind are one lock; what lies before `at` is the same one.
                    let begin = (0..=at).rev().take_while(|&b| model[b] == kind).last().unwrap();
                    assert_eq!(found, (kind, begin as i64, end as i64), "round {round} at {at}");
                }
                at = end;
            }
        });
    }
}

/// A lock that is taken while another thread closes the descriptor must not stay.
fn lock_and_close_in_threads() {
    let path = format!("{}/f", dir());
    let fd = open(&path, O_RDWR | O_CREAT).fd();
    for _ in 0..300 {
        let own = sc!(SYS_dup, fd).fd();
        let locker = std::thread::spawn(move || {
            let _ = lock(own, F_SETLK, F_WRLCK, 0, 0);
        });
        sc!(SYS_close, own).is(0);
        locker.join().unwrap();
        let mut flock = Flock { kind: F_WRLCK as i16, whence: 0, start: 0, len: 0, pid: 0 };
        in_child(|| {
            sc!(SYS_fcntl, fd, F_GETLK, &raw mut flock).is(0);
            assert_eq!(i32::from(flock.kind), F_UNLCK);
        });
    }
}
