//! RLIMIT_NPROC: how many threads a real user may have (getrlimit(2)), what counts as one, for how
//! long, and when it is found that there are too many (setuid(2), execve(2)).
//!
//! Each test has a user of its own, whom nobody else is, and counts by trying: with a limit one
//! higher than what is there a clone(2) comes through, with that limit it does not.

use crate::sys::*;
use crate::{sc, tests};

tests!("nproc": threads_count, zombies_count_until_waited_for, another_user_takes_the_count,
too_many_after_setuid, who_is_exempt, exec_by_another_thread_gives_back);

/// Users of these tests; each takes one.
const USERS: u32 = 61_300;

fn limit(threads: u64) {
    sc!(SYS_setrlimit, RLIMIT_NPROC, [threads, threads.max(100)].as_ptr()).is(0);
}

fn become_user(number: u32) {
    let user = USERS + number;
    sc!(SYS_setresuid, user, user, user).is(0);
}

/// Whether one more process may be made.
fn may_fork() -> bool {
    match sc!(SYS_clone, SIGCHLD, 0, 0, 0, 0) {
        Ok(0) => quit(0),
        Ok(child) => {
            wait_code(child as i32, 0);
            true
        }
        Err(EAGAIN) => false,
        Err(error) => panic!("clone: {}", errno_name(error)),
    }
}

/// The user has this many threads, neither more nor less.
#[track_caller]
fn has(threads: u64) {
    limit(threads);
    assert!(!may_fork(), "fewer than {threads}");
    limit(threads + 1);
    assert!(may_fork(), "more than {threads}");
}

extern "C" fn pauses() {
    loop {
        let _ = sc!(SYS_pause);
    }
}

extern "C" fn ends() {
    let _ = sc!(SYS_exit, 0);
}

/// Threads count as processes do, and no longer than they live.
fn threads_count() {
    in_child(|| {
        become_user(1);
        has(1);
        limit(100);
        raw_thread(THREAD_FLAGS, pauses);
        raw_thread(THREAD_FLAGS, pauses);
        has(3);
        limit(3);
        let stack = anon(4096) as usize + 4096;
        sc!(SYS_clone, THREAD_FLAGS, stack, 0, 0, 0).fails(EAGAIN);
        limit(10);
        let short = raw_thread(THREAD_FLAGS, ends);
        until(|| sc!(SYS_tgkill, pid(), short, 0).is_err());
        has(3);
    });
}

/// A process counts until it has been waited for; nothing is charged for one that was not made.
fn zombies_count_until_waited_for() {
    in_child(|| {
        become_user(2);
        let child = fork(|| 7);
        let mut info = Siginfo::default();
        sc!(SYS_waitid, P_PID, child, &raw mut info, WEXITED | WNOWAIT, 0).is(0);
        has(2);
        wait_code(child, 7);
        has(1);
        limit(1);
        (0..100).for_each(|_| assert!(!may_fork()));
        has(1);
        // A flag that does not exist, and an address that cannot be written.
        sc!(SYS_clone, CLONE_SIGHAND | SIGCHLD, 0, 0, 0, 0).fails(EINVAL);
        sc!(SYS_clone, CLONE_PIDFD | SIGCHLD, 0, 8, 0, 0).fails(EFAULT);
        has(1);
    });
}

/// Whoever becomes another user is charged to that one: the thread, not its process.
fn another_user_takes_the_count() {
    in_child(|| {
        sc!(SYS_prctl, PR_SET_KEEPCAPS, 1, 0, 0, 0).is(0);
        let user = USERS + 3;
        let (out, into) = pipe();
        let children = [(); 3].map(|()| {
            fork(|| {
                become_user(3);
                write(into, b"r");
                pauses();
                0
            })
        });
        assert_eq!([(); 3].map(|()| read(out, 1)).concat(), b"rrr");
        // Only the real user counts.
        let other = fork(|| {
            sc!(SYS_setresuid, USERS + 30, user, user).is(0);
            has(1);
            0
        });
        wait_code(other, 0);
        let counter = fork(|| {
            become_user(3);
            has(4);
            0
        });
        wait_code(counter, 0);
        for child in children {
            sc!(SYS_kill, child, SIGKILL).is(0);
            wait_signal(child, SIGKILL);
        }
        become_user(3);
        has(1);
    });
}

fn execute() -> Res {
    let (path, mode, word) = (c(&own_path()), c("child"), c("true"));
    let arguments = [path.as_ptr(), mode.as_ptr(), word.as_ptr(), std::ptr::null()];
    sc!(SYS_execve, path.as_ptr(), arguments.as_ptr(), [0usize].as_ptr())
}

/// To become a user who has too many threads is refused at the next execve(2), unless there are few
/// enough by then.
fn too_many_after_setuid() {
    in_child(|| {
        let (out, into) = pipe();
        let first = fork(|| {
            become_user(4);
            write(into, b"r");
            pauses();
            0
        });
        assert_eq!(read(out, 1), b"r");
        let second = fork(|| {
            become_user(4);
            write(into, b"r");
            pauses();
            0
        });
        assert_eq!(read(out, 1), b"r");
        limit(1);
        let refused = fork(|| {
            become_user(4);
            // The path comes first.
            sc!(SYS_execve, 8, 0, 0).fails(EFAULT);
            sc!(SYS_execve, c"/missing".as_ptr(), 0, 0).fails(EAGAIN);
            execute().fails(EAGAIN);
            limit(3);
            sc!(SYS_execve, c"/missing".as_ptr(), 0, 0).fails(ENOENT);
            // What was forgotten does not come back.
            limit(1);
            sc!(SYS_execve, c"/missing".as_ptr(), 0, 0).fails(ENOENT);
            let _ = execute();
            1
        });
        wait_code(refused, 0);
        // With as many as may be there before it: one too many only by itself, which is borne.
        limit(2);
        let borne = fork(|| {
            become_user(4);
            let _ = execute();
            1
        });
        wait_code(borne, 0);
        for child in [first, second] {
            sc!(SYS_kill, child, SIGKILL).is(0);
            wait_signal(child, SIGKILL);
        }
    });
}

/// The superuser, by the real id, and who has one of two capabilities.
fn who_is_exempt() {
    in_child(|| {
        limit(0);
        assert!(may_fork());
        sc!(SYS_setresuid, 0, USERS + 5, 0).is(0);
        assert!(may_fork(), "the real id is the superuser's");
        sc!(SYS_setresuid, 0, 0, 0).is(0);
        sc!(SYS_prctl, PR_SET_KEEPCAPS, 1, 0, 0, 0).is(0);
        become_user(5);
        assert!(!may_fork(), "capabilities that are not effective");
        const HEADER: [u32; 2] = [0x2008_0522, 0];
        const RESOURCE: u32 = 1 << 24;
        const ADMIN: u32 = 1 << 21;
        const KILL: u32 = 1 << 5;
        let mut has = [0u32; 6];
        sc!(SYS_capget, HEADER.as_ptr(), has.as_mut_ptr()).is(0);
        for (effective, exempt) in [(RESOURCE, true), (ADMIN, true), (KILL, false)] {
            // A container may keep some from its superuser.
            if has[1] & effective != 0 {
                let data = [effective, has[1], 0, 0, 0, 0];
                sc!(SYS_capset, HEADER.as_ptr(), data.as_ptr()).is(0);
                assert_eq!(may_fork(), exempt, "capabilities {effective:#x}");
            }
        }
    });
}

extern "C" fn executes_counter() {
    let (path, mode) = (c(&own_path()), c("child"));
    let (word, user) = (c("threads-are"), c("1"));
    let arguments = [path.as_ptr(), mode.as_ptr(), word.as_ptr(), user.as_ptr(), std::ptr::null()];
    let _ = sc!(SYS_execve, path.as_ptr(), arguments.as_ptr(), [0usize].as_ptr());
    quit(3);
}

/// A thread that is not the first executes a program, as another user than the first thread was:
/// one thread of its own user remains.
fn exec_by_another_thread_gives_back() {
    in_child(|| {
        sc!(SYS_prctl, PR_SET_KEEPCAPS, 1, 0, 0, 0).is(0);
        extern "C" fn other() {
            become_user(6);
            executes_counter();
        }
        limit(100);
        let child = fork(|| {
            become_user(7);
            raw_thread(THREAD_FLAGS, pauses);
            raw_thread(THREAD_FLAGS, executes_counter);
            pauses();
            0
        });
        wait_code(child, 0);
        let child = fork(|| {
            raw_thread(THREAD_FLAGS, other);
            pauses();
            0
        });
        wait_code(child, 0);
    });
}

/// What a program that these tests execute does: counts.
pub fn counted(threads: u64) -> bool {
    has(threads);
    true
}
