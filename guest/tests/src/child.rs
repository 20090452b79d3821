//! What this program does when a test executes it as another program: `child MODE ARGS…`.
//!
//! exec(2) tests need a program whose environment they can ask about, and the only one that is
//! surely there (also in a packed image) is this one. Each mode answers by its exit status.

use crate::sc;
use crate::sys::*;

/// Runs a mode; true is exit status 0.
pub fn main(args: &[String]) -> bool {
    let word = |i: usize| args.get(i).map_or("", String::as_str);
    match word(0) {
        "true" => true,
        "exit" => quit(word(1).parse().unwrap_or(98)),
        "uid-is" => word(1) == sc!(SYS_getuid).must().to_string(),
        "threads-are" => crate::nproc::counted(word(1).parse().unwrap()),
        "pid-is" => word(1) == pid().to_string(),
        // Writes its arguments and environment, zero-terminated, to descriptor 1.
        path if ["echo", "/script", "/itself"].iter().any(|end| path.ends_with(end)) => {
            for a in std::env::args() {
                write(1, a.as_bytes());
                write(1, b"\0");
            }
            write(1, b"--\0");
            for (k, v) in std::env::vars() {
                write(1, format!("{k}={v}\0").as_bytes());
            }
            if path.ends_with("/itself") {
                write(1, itself().as_bytes());
            }
            true
        }
        "count" => quit(((args.len() - 1) % 251) as i32),
        "maps" => {
            write(1, &std::fs::read("/proc/self/maps").unwrap_or_default());
            true
        }
        "random" => {
            // SAFETY: sixteen bytes that the kernel put on the stack.
            let r = unsafe { std::slice::from_raw_parts(getauxval(AT_RANDOM) as *const u8, 16) };
            write(1, r);
            true
        }
        // The descriptors that are open, as a bit set.
        "fds" => quit((0..7).filter(|fd| sc!(SYS_fcntl, *fd, F_GETFD).is_ok()).sum()),
        // Blocked signals, and whether SIGUSR1 is ignored and SIGUSR2 default.
        "signals" => {
            let mask = sigmask(SIG_BLOCK, 0);
            let one = on_signal(SIGUSR1, SIG_DFL, 0, 0).handler;
            let two = on_signal(SIGUSR2, SIG_DFL, 0, 0).handler;
            word(1) == format!("{mask} {one} {two}")
        }
        // Says by a descriptor that it is there.
        "say-and-pause" => {
            write(word(1).parse().unwrap(), b"2");
            loop {
                let _ = sc!(SYS_pause);
            }
        }
        "capabilities" => {
            write(1, crate::capabilities::told().as_bytes());
            true
        }
        "shadow-stack" => {
            write(1, crate::shstk::told("self").as_bytes());
            true
        }
        "pause" => loop {
            let _ = sc!(SYS_pause);
        },
        other => {
            eprintln!("no child mode {other}");
            false
        }
    }
}

/// What the kernel told this program about itself.
fn itself() -> String {
    // SAFETY: reading the auxiliary vector, which the kernel put on the stack with its strings.
    let (secure, name) = unsafe {
        let name = getauxval(AT_EXECFN) as *const c_char;
        (getauxval(AT_SECURE), std::ffi::CStr::from_ptr(name).to_string_lossy())
    };
    let (uid, euid) = (sc!(SYS_getuid).must(), sc!(SYS_geteuid).must());
    let comm = std::fs::read_to_string("/proc/self/comm").unwrap();
    let comm = comm.trim_end();
    format!("LIMEN_SECURE={secure} UID={uid} EUID={euid}\0LIMEN_EXECFN={name} COMM={comm}\0")
}
