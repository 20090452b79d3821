//! Runs tests, each in its own process and within a bound.
//!
//! The runner trusts as little of the kernel as it can: fork, wait4 with WNOHANG, nanosleep and
//! kill. A test that hangs is killed with its process group and counted as failed; what it left
//! behind (orphans, folders) is collected, so that one failure does not become ten.

use crate::accounts::{self, Accounts};
use crate::sc;
use crate::sys::*;

/// One test: a claim about the kernel, as a function that panics if it does not hold.
pub struct Test {
    /// `subject::claim`.
    pub name: &'static str,
    /// The test itself.
    pub run: fn(),
}

/// The table of a subject's tests.
#[macro_export]
macro_rules! tests {
    ($room:literal: $($f:ident),* $(,)?) => {
        /// The tests of this subject.
        pub const TESTS: &[$crate::harness::Test] = &[$($crate::harness::Test {
            name: concat!($room, "::", stringify!($f)),
            run: $f,
        }),*];
    };
}

/// How a test ended.
#[derive(PartialEq, Eq)]
pub enum Outcome {
    /// Exit status 0.
    Passed,
    /// Anything else, in words.
    Failed(String),
}

/// Runs one test in a child of its own for at most `bound_s` seconds.
pub fn run(test: &Test, bound_s: u64) -> Outcome {
    let pid = fork(|| {
        let _ = sc!(SYS_setpgid, 0, 0);
        begin_test();
        fault_words();
        (test.run)();
        0
    });
    let outcome = supervise(pid, bound_s);
    let _ = sc!(SYS_kill, -pid, SIGKILL);
    reap_strays();
    for base in ["/tmp", "/dev/shm"] {
        // A program that has taken the test's place does not know what stands for it.
        sweep(base, pid);
        sweep(place(base), pid);
    }
    outcome
}

fn supervise(pid: i32, bound_s: u64) -> Outcome {
    let start = std::time::Instant::now();
    let mut status = 0;
    let mut tries = 0;
    loop {
        match sc!(SYS_wait4, pid, &raw mut status, WNOHANG, 0) {
            Ok(0) => {}
            Ok(_) if WIFEXITED(status) && WEXITSTATUS(status) == 0 => return Outcome::Passed,
            Ok(_) => return Outcome::Failed(describe(status)),
            Err(e) => return Outcome::Failed(format!("wait4: {}", errno_name(e))),
        }
        if start.elapsed().as_secs() >= bound_s {
            let _ = sc!(SYS_kill, -pid, SIGKILL);
            let _ = sc!(SYS_kill, pid, SIGKILL);
            // A process that even SIGKILL does not end is given up after a few more seconds.
            for _ in 0..500 {
                if !matches!(sc!(SYS_wait4, pid, &raw mut status, WNOHANG, 0), Ok(0)) {
                    return Outcome::Failed(format!("no end after {bound_s} s"));
                }
                nap(10);
            }
            return Outcome::Failed(format!("no end after {bound_s} s, and SIGKILL is ignored"));
        }
        tries += 1;
        if tries < 20 {
            let _ = sc!(SYS_sched_yield);
        } else {
            nap(if tries < 200 { 1 } else { 10 });
        }
    }
}

/// Waits for a process that leads a group, ends the whole group after `bound_s` seconds or when the
/// process has ended, and collects who is left. The wait status; None if it did not end by itself.
pub fn supervise_group(pid: i32, bound_s: u64) -> Option<i32> {
    let start = std::time::Instant::now();
    let _ = sc!(SYS_prctl, PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    let mut status = 0;
    let mut ended = false;
    while !ended && start.elapsed().as_secs() < bound_s {
        match sc!(SYS_wait4, pid, &raw mut status, WNOHANG, 0) {
            Ok(0) => nap(2),
            _ => ended = true,
        }
    }
    // A group that forks while it is killed needs more than one stroke.
    while sc!(SYS_kill, -pid, SIGKILL).is_ok() && start.elapsed().as_secs() < 2 * bound_s {
        while let Ok(1..) = sc!(SYS_wait4, -1i32, 0, WNOHANG, 0) {}
        nap(2);
    }
    reap_strays();
    ended.then_some(status)
}

/// Orphans come to the runner (subreaper, or PID 1 in the VM): end and collect them.
fn reap_strays() {
    for _ in 0..2000 {
        match sc!(SYS_wait4, -1i32, 0, WNOHANG, 0) {
            Ok(0) => nap(1),
            Ok(_) => {}
            Err(_) => return,
        }
    }
}

fn sweep(base: &str, pid: i32) {
    // In a VM nobody else tests.
    let is_alone = std::fs::exists("/proc/limen").unwrap_or(false);
    let prefix = if is_alone { "limen-".to_owned() } else { format!("limen-{pid}-") };
    let Ok(entries) = std::fs::read_dir(base) else { return };
    for e in entries.flatten() {
        if e.file_name().to_string_lossy().starts_with(&prefix) {
            let _ = std::fs::remove_dir_all(e.path());
        }
    }
}

/// A test that does nothing: what remains of it is the runner's own.
const NOTHING: Test = Test { name: "nothing", run: || {} };

/// Runs all tests whose name contains `filter`; true if all passed.
pub fn run_all<'a>(tests: impl Iterator<Item = &'a Test>, filter: &str, bound_s: u64) -> bool {
    let _ = sc!(SYS_prctl, PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    let (mut passed, mut failed) = (0, 0);
    // What is made once and kept must not count as left behind by the first test.
    fault_words();
    drop(run(&NOTHING, bound_s));
    let mut accounts = Accounts::now();
    for t in tests.filter(|t| t.name.contains(filter)) {
        // The name goes out first: if the machine stops, the last line says in which test.
        print_now(&format!("test {} ... ", t.name));
        let mut outcome = run(t, bound_s);
        let left;
        (accounts, left) = accounts::settle(accounts);
        if let (Outcome::Passed, Some(left)) = (&outcome, left) {
            outcome = Outcome::Failed(format!("left behind: {left}"));
        }
        match outcome {
            Outcome::Passed => {
                passed += 1;
                print_now("ok\n");
            }
            Outcome::Failed(why) => {
                failed += 1;
                eprintln!("{}: {why}", t.name);
                print_now("FAILED\n");
            }
        }
    }
    print_now(&format!("{passed} passed, {failed} failed\n"));
    failed == 0 && passed > 0
}

fn print_now(s: &str) {
    write(1, s.as_bytes());
}
