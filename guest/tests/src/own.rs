//! What each thread has for itself: ids and capabilities always, files and directories if it was
//! made without CLONE_FILES and CLONE_FS, or unshared them. C libraries hide all of it: here the
//! calls are made by one thread alone. Manual pages: clone(2), unshare(2), nptl(7), credentials(7).

use crate::sys::*;
use crate::{sc, tests};
use std::sync::atomic::{AtomicI32, Ordering::SeqCst};

tests!("own":
    ids_are_a_threads, capabilities_are_a_threads, a_threads_ids_become_the_programs,
    directories_unshared, files_unshared, files_end_with_the_thread, thread_with_copies,
    identities_compared,
);

/// Runs `f` in another thread.
fn in_thread<T: Send>(f: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| scope.spawn(f).join().expect("the thread panicked"))
}

/// A line of a status file.
fn status(path: &str, key: &str) -> String {
    let text = std::fs::read_to_string(path).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(key));
    line.unwrap_or_else(|| panic!("no {key} in {path}")).trim().to_string()
}

fn task(file: &str) -> String {
    format!("/proc/self/task/{}/{file}", tid())
}

fn ids_are_a_threads() {
    in_child(|| {
        let path = std::ffi::CString::new(format!("/tmp/own-{}", pid())).unwrap();
        let fd = sc!(SYS_open, path.as_ptr(), O_CREAT | O_RDWR, 0o600).must();
        let open = || sc!(SYS_open, path.as_ptr(), O_RDONLY, 0);
        in_thread(|| {
            sc!(SYS_setgroups, 0, 0).is(0);
            sc!(SYS_setresgid, 77, 77, 77).is(0);
            sc!(SYS_setresuid, 1234, 1234, 1234).is(0);
            sc!(SYS_getuid).is(1234);
            sc!(SYS_getegid).is(77);
            assert_eq!(status(&task("status"), "Uid:"), "1234\t1234\t1234\t1234");
            assert_eq!(status("/proc/self/status", "Uid:"), "0\t0\t0\t0");
            open().fails(EACCES);
            // Its children are as it is.
            in_child(|| sc!(SYS_getuid).is(1234));
            // Others of the process are not of its user any more, but of its process.
            sc!(SYS_tgkill, pid(), pid(), 0).is(0);
        });
        sc!(SYS_getuid).is(0);
        sc!(SYS_getgid).is(0);
        open().must();
        in_thread(|| sc!(SYS_getuid).is(0));
        sc!(SYS_unlink, path.as_ptr()).is(0);
        sc!(SYS_close, fd).is(0);
    });
}

/// capget(2) of a thread, by its id: the low halves of effective, permitted and inheritable.
fn capabilities_of(tid: i32) -> Result<[u32; 3], i32> {
    let header = [0x2008_0522u32, tid as u32];
    let mut data = [0u32; 6];
    sc!(SYS_capget, header.as_ptr(), data.as_mut_ptr()).map(|_| [data[0], data[1], data[2]])
}

fn capabilities_are_a_threads() {
    in_child(|| {
        let all = capabilities_of(0).unwrap();
        assert_ne!(all[0], 0, "the test needs capabilities");
        in_thread(|| {
            let other = [0x2008_0522u32, pid() as u32];
            let none = [0u32; 6];
            sc!(SYS_capset, other.as_ptr(), none.as_ptr()).fails(EPERM);
            let own = [0x2008_0522u32, tid() as u32];
            sc!(SYS_capset, own.as_ptr(), none.as_ptr()).is(0);
            assert_eq!(capabilities_of(0).unwrap(), [0; 3]);
            assert_eq!(capabilities_of(tid()).unwrap(), [0; 3]);
            assert_eq!(capabilities_of(pid()).unwrap(), all);
            assert_eq!(status(&task("status"), "CapEff:"), "0000000000000000");
        });
        assert_eq!(capabilities_of(0).unwrap(), all);
    });
}

/// A thread that is not the first executes a program: with its own ids.
fn a_threads_ids_become_the_programs() {
    let child = fork(|| {
        in_thread(|| {
            sc!(SYS_setresuid, 1234, 1234, 1234).is(0);
            // By this name, whoever may not walk there.
            let (path, mode, id) = (c("/proc/self/exe"), c("uid-is"), c("1234"));
            let words =
                [path.as_ptr(), c"child".as_ptr(), mode.as_ptr(), id.as_ptr(), std::ptr::null()];
            let _ = sc!(SYS_execve, path.as_ptr(), words.as_ptr(), [0usize].as_ptr());
        });
        99
    });
    wait_code(child, 0);
}

fn cwd() -> String {
    std::fs::read_link("/proc/thread-self/cwd").unwrap().display().to_string()
}

fn umask() -> usize {
    let old = sc!(SYS_umask, 0).must();
    sc!(SYS_umask, old).is(0);
    old
}

fn directories_unshared() {
    in_child(|| {
        sc!(SYS_chdir, c("/").as_ptr()).is(0);
        let _ = sc!(SYS_umask, 0o22);
        in_thread(|| {
            sc!(SYS_chdir, c("/proc").as_ptr()).is(0);
            sc!(SYS_umask, 0o27).is(0o22);
        });
        assert_eq!((cwd().as_str(), umask()), ("/proc", 0o27), "shared until then");
        in_thread(|| {
            sc!(SYS_unshare, CLONE_FS).is(0);
            sc!(SYS_chdir, c("/dev").as_ptr()).is(0);
            sc!(SYS_umask, 0o77).is(0o27);
            assert_eq!((cwd().as_str(), umask()), ("/dev", 0o77));
            assert_eq!(status(&task("status"), "Umask:"), "0077");
            let first = std::fs::read_link("/proc/self/cwd").unwrap();
            assert_eq!(first.to_str(), Some("/proc"));
            sc!(SYS_unshare, CLONE_VM).fails(EINVAL);
        });
        assert_eq!((cwd().as_str(), umask()), ("/proc", 0o27));
    });
}

fn files_unshared() {
    in_child(|| {
        let fd = sc!(SYS_dup, 2).must();
        in_thread(|| {
            sc!(SYS_unshare, CLONE_FILES).is(0);
            sc!(SYS_close, fd).is(0);
            sc!(SYS_fcntl, fd, F_GETFD).fails(EBADF);
            let has = |of: String| std::fs::symlink_metadata(format!("{of}/{fd}")).is_ok();
            assert!(!has(task("fd")) && has("/proc/self/fd".to_string()));
        });
        sc!(SYS_fcntl, fd, F_GETFD).must();
        in_thread(|| {
            sc!(SYS_close_range, fd, fd, CLOSE_RANGE_UNSHARE).is(0);
            sc!(SYS_fcntl, fd, F_GETFD).fails(EBADF);
        });
        sc!(SYS_fcntl, fd, F_GETFD).must();
        in_thread(|| sc!(SYS_close, fd).is(0));
        sc!(SYS_fcntl, fd, F_GETFD).fails(EBADF);
    });
}

/// A pipe whose writing end one thread alone has hangs up when that thread ends.
fn files_end_with_the_thread() {
    in_child(|| {
        let mut ends = [0i32; 2];
        sc!(SYS_pipe2, ends.as_mut_ptr(), 0).is(0);
        in_thread(|| {
            sc!(SYS_unshare, CLONE_FILES).is(0);
            sc!(SYS_close, ends[0]).is(0);
            sc!(SYS_write, ends[1], b"x".as_ptr(), 1).is(1);
            let mut byte = 0u8;
            in_thread(|| sc!(SYS_close, ends[1]).is(0));
            sc!(SYS_read, ends[0], &raw mut byte, 1).fails(EBADF);
        });
        let mut byte = 0u8;
        sc!(SYS_read, ends[0], &raw mut byte, 1).is(1);
        sc!(SYS_close, ends[1]).is(0);
        sc!(SYS_read, ends[0], &raw mut byte, 1).is(0);
    });
}

static FD: AtomicI32 = AtomicI32::new(-1);
static TID: AtomicI32 = AtomicI32::new(0);
static STEP: AtomicI32 = AtomicI32::new(0);

fn wait_for(step: i32) {
    while STEP.load(SeqCst) != step {
        let _ = sc!(SYS_sched_yield);
    }
}

/// Runs without a C library's thread: no allocation, no panic.
extern "C" fn with_copies() {
    let _ = sc!(SYS_chdir, c"/dev".as_ptr());
    let opened = sc!(SYS_open, c"null".as_ptr(), O_RDONLY, 0);
    FD.store(opened.map_or(-1, |fd| fd as i32), SeqCst);
    TID.store(tid(), SeqCst);
    STEP.store(1, SeqCst);
    wait_for(2);
    // What the others opened since is not there.
    let other = sc!(SYS_fcntl, FD.load(SeqCst) + 1, F_GETFD);
    STEP.store(if other == Err(EBADF) { 3 } else { 4 }, SeqCst);
    let _ = sc!(SYS_exit, 0);
}

fn thread_with_copies() {
    in_child(|| {
        sc!(SYS_chdir, c("/").as_ptr()).is(0);
        raw_thread(THREAD_FLAGS & !(CLONE_FILES | CLONE_FS), with_copies);
        wait_for(1);
        let fd = FD.load(SeqCst);
        assert!(fd >= 0);
        sc!(SYS_fcntl, fd, F_GETFD).fails(EBADF);
        assert_eq!(cwd(), "/");
        let theirs = format!("/proc/self/task/{}", TID.load(SeqCst));
        assert_eq!(std::fs::read_link(format!("{theirs}/cwd")).unwrap().to_str(), Some("/dev"));
        let target = std::fs::read_link(format!("{theirs}/fd/{fd}")).unwrap();
        assert_eq!(target.to_str(), Some("/dev/null"));
        sc!(SYS_dup2, 2, fd + 1).is(fd as usize + 1);
        STEP.store(2, SeqCst);
        while STEP.load(SeqCst) == 2 {
            let _ = sc!(SYS_sched_yield);
        }
        assert_eq!(STEP.load(SeqCst), 3, "the thread saw a descriptor that is not its own");
    });
}

fn identities_compared() {
    const KCMP_FILES: i32 = 2;
    const KCMP_FS: i32 = 3;
    in_child(|| {
        let same = |kind| sc!(SYS_kcmp, pid(), tid(), kind, 0, 0).must() == 0;
        in_thread(|| {
            assert!(same(KCMP_FILES) && same(KCMP_FS));
            sc!(SYS_unshare, CLONE_FILES).is(0);
            assert!(!same(KCMP_FILES) && same(KCMP_FS));
            sc!(SYS_unshare, CLONE_FS).is(0);
            assert!(!same(KCMP_FS));
        });
    });
}
