//! Who may trace whom beyond the ids: Yama (Documentation/admin-guide/LSM/Yama.rst of Linux).
//!
//! The setting is the machine's, so only a machine of the tests' own has it changed: Limen. Where
//! it cannot be, what holds is asked for, and must be kept to.

use std::path::Path;

use crate::sys::*;
use crate::{sc, tests};

tests!("yama": scopes, named_tracers, the_last_scope_stays);

const SCOPE: &str = "/proc/sys/kernel/yama/ptrace_scope";
const PR_SET_PTRACER: u32 = 0x5961_6d61;

/// Whether this machine is the tests' own.
fn is_own() -> bool {
    std::fs::read_to_string("/proc/version").unwrap_or_default().contains("limen")
}

fn scope() -> u32 {
    std::fs::read_to_string(SCOPE).map_or(0, |text| text.trim().parse().unwrap())
}

fn set_scope(scope: &str) -> Result<(), i32> {
    std::fs::write(SCOPE, scope).map_err(|error| error.raw_os_error().unwrap_or(0))
}

fn become_user() {
    sc!(SYS_setresuid, 1234, 1234, 1234).is(0);
    sc!(SYS_prctl, PR_SET_DUMPABLE, 1, 0, 0, 0).is(0);
}

/// A process of the user's that waits to be ended; `first` runs in it before.
fn sleeper(first: impl FnOnce()) -> i32 {
    let (out, into) = pipe();
    let child = fork(|| {
        become_user();
        first();
        write(into, b"r");
        loop {
            let _ = sc!(SYS_pause);
        }
    });
    assert_eq!(read(out, 1), b"r");
    close(out);
    close(into);
    child
}

fn end(child: i32) {
    sc!(SYS_kill, child, SIGKILL).is(0);
    wait_signal(child, SIGKILL);
}

/// Attaching to a process, and to read its memory otherwise: all give the same answer.
fn attach(target: i32) -> Res {
    let attached = sc!(SYS_ptrace, PTRACE_SEIZE, target, 0, 0);
    let memory = Path::new("/proc").join(target.to_string()).join("mem");
    let opened = open(memory.to_str().unwrap(), O_RDONLY).map(|fd| close(fd as i32));
    assert_eq!(attached.is_ok(), opened.is_ok(), "ptrace and /proc/PID/mem");
    // What looks only is not concerned.
    close(open(&format!("/proc/{target}/maps"), O_RDONLY).fd());
    attached
}

/// A user's process attaches to its child, and to a sibling, under each scope but the last.
fn scopes() {
    let before = scope();
    let own = is_own();
    for (number, child_ok, sibling_ok) in [(0, true, true), (1, true, false), (2, false, false)] {
        if own {
            set_scope(&number.to_string()).unwrap();
        }
        if scope() != number {
            continue;
        }
        let sibling = sleeper(|| ());
        in_child(|| {
            become_user();
            let own = sleeper(|| ());
            let answer = |ok: bool| if ok { Ok(0) } else { Err(EPERM) };
            assert_eq!(attach(own), answer(child_ok), "child, scope {number}");
            assert_eq!(attach(sibling), answer(sibling_ok), "sibling, scope {number}");
            end(own);
        });
        // Who has CAP_SYS_PTRACE attaches to both.
        attach(sibling).is(0);
        end(sibling);
        in_child(|| {
            become_user();
            let result = fork(|| i32::from(sc!(SYS_ptrace, PTRACE_TRACEME, 0, 0, 0).is_err()));
            wait_code(result, i32::from(number == 2));
        });
    }
    if own {
        set_scope(&before.to_string()).unwrap();
    }
}

/// PR_SET_PTRACER names a process, or anybody, and nobody again.
fn named_tracers() {
    if !is_own() && scope() != 1 {
        return;
    }
    let before = scope();
    if is_own() {
        set_scope("1").unwrap();
    }
    let name = |id: i32| sc!(SYS_prctl, PR_SET_PTRACER, id, 0, 0, 0);
    in_child(|| {
        name(0x3fff_fff0).fails(EINVAL);
        name(0).is(0);
    });
    let cases: [(i32, bool); 3] = [(-1, true), (1, false), (0, false)];
    for (id, allowed) in cases {
        let target = sleeper(|| {
            name(-1).is(0);
            name(id).is(0);
        });
        in_child(|| {
            become_user();
            // Process 1 is above the tracer: what it names, those below it may trace.
            let wanted = if allowed || id == 1 { Ok(0) } else { Err(EPERM) };
            assert_eq!(sc!(SYS_ptrace, PTRACE_SEIZE, target, 0, 0), wanted, "named {id}");
        });
        end(target);
    }
    if is_own() {
        set_scope(&before.to_string()).unwrap();
    }
}

/// Numbers that are none, rights, and no way back from 3: tried in a machine of its own only by
/// errors, since 3 would stay.
fn the_last_scope_stays() {
    if !is_own() {
        return;
    }
    assert_eq!(set_scope("4"), Err(EINVAL));
    assert_eq!(set_scope("x"), Err(EINVAL));
    in_child(|| {
        let header = [0x2008_0522u32, 0];
        let none = [0u32; 6];
        sc!(SYS_capset, header.as_ptr(), none.as_ptr()).is(0);
        assert_eq!(set_scope("1"), Err(EPERM));
    });
}
