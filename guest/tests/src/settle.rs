//! What a test takes for granted, made so before the first one runs: a test states what Linux does,
//! and whoever starts the tests may have limits, a personality, a mask of their own.
//!
//! Why it is hard: a setting shows in unlikely places. Where the kernel promises any amount of
//! memory (`vm.overcommit_memory=1`, proc_sys_vm(5)), a program with a terabyte of zeros starts and
//! runs them, and the core file of one that crashes takes minutes to write; so tests of such
//! programs limit their address space. What cannot be set for oneself is for the judge of the
//! command line: [`as_init`] is how the tests run as the only program of another Linux kernel.

use std::os::unix::process::CommandExt;

use crate::sc;
use crate::sys::*;

/// Soft limits of the tests (getrlimit(2)); a hard limit below is raised if that is allowed.
const LIMITS: [(u32, u64); 13] = [
    (RLIMIT_AS, RLIM_INFINITY),
    // Below a page no core file is written, nor is one piped to a program.
    (RLIMIT_CORE, 1),
    (RLIMIT_CPU, RLIM_INFINITY),
    (RLIMIT_DATA, RLIM_INFINITY),
    (RLIMIT_FSIZE, RLIM_INFINITY),
    (RLIMIT_MEMLOCK, 8 << 20),
    (RLIMIT_MSGQUEUE, 819_200),
    (RLIMIT_NOFILE, 4096),
    (RLIMIT_NPROC, RLIM_INFINITY),
    (RLIMIT_RSS, RLIM_INFINITY),
    (RLIMIT_RTTIME, RLIM_INFINITY),
    (RLIMIT_SIGPENDING, 4096),
    (RLIMIT_STACK, 8 << 20),
];

/// Gives this process, and so all tests, limits, personality, signals, mask and descriptors that do
/// not depend on who has started it.
pub fn settle() {
    for (which, wanted) in LIMITS {
        let mut old = [0u64; 2];
        if sc!(SYS_getrlimit, which, old.as_mut_ptr()).is_err() {
            continue;
        }
        let raised = [wanted, wanted.max(old[1])];
        if sc!(SYS_setrlimit, which, raised.as_ptr()).is_err() {
            let _ = sc!(SYS_setrlimit, which, [wanted.min(old[1]), old[1]].as_ptr());
        }
    }
    for sig in (1..=64).filter(|sig| ![SIGKILL, SIGSTOP].contains(sig)) {
        on_signal(sig, SIG_DFL, 0, 0);
    }
    sigmask(SIG_SETMASK, 0);
    let _ = sc!(SYS_umask, 0o022);
    // It holds from the next exec on, which is what the tests look at.
    let _ = sc!(SYS_personality, 0);
    // Descriptors of a shell or a build tool.
    let _ = sc!(SYS_close_range, 3, u32::MAX, 0);
    // No core file has any memory in it, whatever a test does with its limit.
    let _ = std::fs::write("/proc/self/coredump_filter", "0");
    have_an_environment();
}

/// Starts the program again if it was started without any environment: what /proc/PID/environ shows
/// is what the process was started with.
fn have_an_environment() {
    if std::env::vars_os().next().is_some() {
        return;
    }
    let itself = std::env::current_exe().expect("a program has a path");
    let mut again = std::process::Command::new(itself);
    let error = again.args(std::env::args_os().skip(1)).env("LANG", "C").exec();
    panic!("starting again with an environment: {error}");
}

/// File systems that a first process mounts: type, place, options.
const FILE_SYSTEMS: [(&std::ffi::CStr, &std::ffi::CStr, &std::ffi::CStr); 7] = [
    (c"proc", c"/proc", c""),
    (c"sysfs", c"/sys", c""),
    (c"devtmpfs", c"/dev", c""),
    (c"devpts", c"/dev/pts", c"ptmxmode=666"),
    (c"tmpfs", c"/dev/shm", c"mode=1777"),
    (c"tmpfs", c"/run", c"mode=755"),
    (c"tmpfs", c"/tmp", c"mode=1777"),
];

/// Makes a bare Linux kernel, of which this program is the first process, a place to test in.
pub fn as_init() {
    for (kind, place, options) in FILE_SYSTEMS {
        let _ = sc!(SYS_mkdir, place.as_ptr(), 0o755);
        sc!(SYS_mount, kind.as_ptr(), place.as_ptr(), kind.as_ptr(), 0, options.as_ptr()).is(0);
    }
    for (link, target) in [("fd", "self/fd"), ("stdin", "self/fd/0"), ("stdout", "self/fd/1")] {
        let _ = std::os::unix::fs::symlink(format!("/proc/{target}"), format!("/dev/{link}"));
    }
    let _ = std::os::unix::fs::symlink("/proc/self/fd/2", "/dev/stderr");
    sc!(SYS_sethostname, c"limen".as_ptr(), 5).is(0);
    // The loopback device is there and down (netdevice(7)).
    let socket = sc!(SYS_socket, AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0).fd();
    let mut request = [0u8; 40];
    request[..2].copy_from_slice(b"lo");
    request[16..18].copy_from_slice(&(IFF_UP as u16).to_ne_bytes());
    sc!(SYS_ioctl, socket, SIOCSIFFLAGS, request.as_ptr()).is(0);
    close(socket);
    let null = open("/dev/null", O_RDONLY).fd();
    let _ = sc!(SYS_dup2, null, 0);
    close(null);
}
