//! Hogs: programs that take all they can get of one thing. Run in a small VM only (`hogs`), since
//! they would do the same to the host.
//!
//! Each hog runs in a process group of its own. It must come to its end: killed, or refused with
//! an errno, after which it exits. Then the machine must be as before: this process lives, it can
//! start another program, and the memory has come back. What is claimed is what Linux does, too,
//! where its own limits are reached before memory runs out.

use crate::harness::{Test, supervise_group};
use crate::sys::*;
use crate::{sc, tests};

tests!("hogs":
    memory_in_one_process, memory_in_many_processes, memory_shared, memory_populated, fork_bomb,
    page_tables, areas, threads, descriptors, files_in_memory, memfds, names_in_memory,
    pipes, stream_sockets, datagrams, epolls, inotify_watches, queued_signals, timers, locks,
    rights_in_cycles, dirty_private_copies,
);

/// Memory that may stay in use after a hog has ended, KiB: names and tables that are kept.
const KEPT_KIB: u64 = 12 << 10;
/// What a hog answers when the kernel refused to give it more.
const REFUSED: i32 = 33;
/// Longest life of a hog, seconds.
const BOUND_S: u64 = 120;

/// Free memory, and what can be had by dropping caches, KiB.
fn available_kib() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").expect("/proc/meminfo");
    let line = text.lines().find_map(|l| l.strip_prefix("MemAvailable:"));
    let number = line.map(|l| l.trim().trim_end_matches(" kB").trim());
    number.and_then(|n| n.parse().ok()).expect("MemAvailable")
}

/// All descriptors the kernel grants.
fn raise_limits() {
    for most in [1usize << 20, 65_536] {
        if sc!(SYS_setrlimit, RLIMIT_NOFILE, [most, most].as_ptr()).is_ok() {
            return;
        }
    }
}

/// Runs the hog to its end and checks that the machine is as before; its wait status.
#[track_caller]
fn hog(f: impl FnOnce() -> i32) -> i32 {
    let before = available_kib();
    let pid = fork(|| {
        let _ = sc!(SYS_setpgid, 0, 0);
        raise_limits();
        f()
    });
    let status = supervise_group(pid, BOUND_S);
    let status = status.unwrap_or_else(|| panic!("the hog does not end"));
    // Another program still runs.
    let me = c(&own_path());
    let words = [c("x"), c("child"), c("true")];
    let argv: Vec<_> = words.iter().map(|w| w.as_ptr()).chain([std::ptr::null()]).collect();
    let child = fork(|| sc!(SYS_execve, me.as_ptr(), argv.as_ptr(), 0).err().unwrap_or(0));
    wait_code(child, 0);
    // What ended gives back at its own pace.
    let mut after = available_kib();
    for _ in 0..200 {
        if after + KEPT_KIB >= before {
            break;
        }
        nap(10);
        after = available_kib();
    }
    assert!(after + KEPT_KIB >= before, "{} KiB did not come back", before - after);
    status
}

/// The hog was killed.
#[track_caller]
fn is_killed(status: i32) {
    assert!(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "{}", describe(status));
}

/// The hog was killed, or refused and ended.
#[track_caller]
fn has_ended(status: i32) {
    let refused = WIFEXITED(status) && WEXITSTATUS(status) == REFUSED;
    let killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    assert!(refused || killed, "{}", describe(status));
}

/// Repeats until the kernel refuses.
fn until_refused(mut f: impl FnMut(usize) -> Res) -> i32 {
    for n in 0.. {
        if f(n).is_err() {
            break;
        }
    }
    REFUSED
}

const CHUNK: usize = 1 << 20;

/// Maps another chunk and writes to each page of it.
fn grow(flags: i32) -> Res {
    let p = mmap(0, CHUNK, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0)?;
    for page in (p..p + CHUNK).step_by(4096) {
        // SAFETY: inside the mapping just made.
        unsafe { (page as *mut usize).write_volatile(page) };
    }
    Ok(p)
}

fn memory_in_one_process() {
    let status = hog(|| {
        while grow(MAP_PRIVATE).is_ok() {}
        REFUSED
    });
    has_ended(status);
}

fn memory_in_many_processes() {
    let status = hog(|| {
        let kids = |n: usize| {
            if n >= 64 {
                return Err(EAGAIN);
            }
            // SAFETY: the child only maps memory and ends.
            match unsafe { fork_raw() } {
                Ok(0) => {
                    for _ in 0..16 {
                        if grow(MAP_PRIVATE).is_err() {
                            quit(REFUSED);
                        }
                    }
                    loop {
                        let _ = sc!(SYS_pause);
                    }
                }
                other => other,
            }
        };
        until_refused(kids)
    });
    has_ended(status);
}

/// fork(2) that may fail.
unsafe fn fork_raw() -> Res {
    sc!(SYS_fork)
}

fn memory_shared() {
    let status = hog(|| {
        while grow(MAP_SHARED).is_ok() {}
        REFUSED
    });
    // Limen keeps shared memory as files in memory, which end with SIGBUS before memory runs out.
    let is_full = WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS;
    assert!(is_full || WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "{}", describe(status));
}

fn memory_populated() {
    let status = hog(|| {
        let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE;
        until_refused(|_| mmap(0, 64 * CHUNK, PROT_READ | PROT_WRITE, flags, -1, 0))
    });
    has_ended(status);
}

/// Children of children of children; nobody waits, nobody stops.
fn fork_bomb() {
    let status = hog(|| {
        for _ in 0..100_000 {
            let _ = sc!(SYS_fork);
        }
        REFUSED
    });
    has_ended(status);
}

/// Two pages in each 2 MiB of a large space: a page of tables for each.
fn page_tables() {
    let status = hog(|| {
        let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
        let size = 1usize << 44;
        let Ok(p) = mmap(0, size, PROT_READ | PROT_WRITE, flags, -1, 0) else { return REFUSED };
        for at in (p..p + size).step_by(1 << 21) {
            // SAFETY: inside the mapping. Reading maps the page of zeros, so only tables grow.
            unsafe { (at as *const u8).read_volatile() };
        }
        0
    });
    is_killed(status);
}

/// Every other page of another protection: as many areas as there may be (vm.max_map_count).
fn areas() {
    let status = hog(|| {
        let size = 1usize << 30;
        let p = anon(size) as usize;
        until_refused(|n| match n * 8192 {
            at if at >= size => Err(ENOMEM),
            at => sc!(SYS_mprotect, p + at, 4096, PROT_READ),
        });
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
        assert!(maps.lines().count() <= 65_540, "{} areas", maps.lines().count());
        REFUSED
    });
    has_ended(status);
}

extern "C" fn sleeper(_: *mut c_void) -> *mut c_void {
    loop {
        let _ = sc!(SYS_pause);
    }
}

fn threads() {
    let status = hog(|| {
        until_refused(|_| {
            let mut id = 0;
            // SAFETY: the library's own threads, which never end and are never joined.
            let result = unsafe {
                let mut attributes: pthread_attr_t = std::mem::zeroed();
                pthread_attr_init(&raw mut attributes);
                pthread_attr_setstacksize(&raw mut attributes, 16384);
                let null = std::ptr::null_mut();
                pthread_create(&raw mut id, &raw const attributes, sleeper, null)
            };
            if result == 0 { Ok(0) } else { Err(result) }
        })
    });
    has_ended(status);
}

fn descriptors() {
    let status = hog(|| until_refused(|_| open("/dev/null", O_RDONLY)));
    has_ended(status);
}

fn fill(fd: i32) -> Res {
    let block = vec![0x5au8; CHUNK];
    sc!(SYS_write, fd, block.as_ptr(), CHUNK)
}

/// Every file system in memory at once.
fn files_in_memory() {
    let status = hog(|| {
        let places = ["/tmp", "/dev/shm", "/run", "/"];
        let fds: Vec<(i32, String)> = places
            .iter()
            .filter_map(|place| {
                let path = format!("{place}/limen-hog");
                open(&path, O_CREAT | O_RDWR).ok().map(|fd| (fd as i32, path))
            })
            .collect();
        for (fd, _) in &fds {
            while fill(*fd).is_ok() {}
            sc!(SYS_write, *fd, [0u8; 8192].as_ptr(), 8192).fails(ENOSPC);
        }
        for (_, path) in &fds {
            let _ = std::fs::remove_file(path);
        }
        REFUSED
    });
    assert!(WIFEXITED(status) && WEXITSTATUS(status) == REFUSED, "{}", describe(status));
}

fn memfds() {
    let status = hog(|| {
        until_refused(|_| {
            let fd = sc!(SYS_memfd_create, c"hog".as_ptr(), 0)?;
            fill(fd as i32)
        })
    });
    has_ended(status);
}

/// Directories and long names: objects of a file system rather than pages.
fn names_in_memory() {
    let status = hog(|| {
        let base = dir();
        let long = "n".repeat(200);
        let code =
            until_refused(|n| sc!(SYS_mkdir, c(&format!("{base}/{long}{n}")).as_ptr(), 0o755));
        let _ = std::fs::remove_dir_all(&base);
        code
    });
    // A killed one leaves its folders behind, for its parent to remove.
    has_ended(status);
}

fn pipes() {
    let status = hog(|| {
        until_refused(|_| {
            let mut ends = [0i32; 2];
            sc!(SYS_pipe2, ends.as_mut_ptr(), O_NONBLOCK)?;
            let _ = sc!(SYS_fcntl, ends[1], F_SETPIPE_SZ, 1 << 20);
            fill(ends[1])
        })
    });
    has_ended(status);
}

fn sockets(kind: i32, size: usize) -> i32 {
    until_refused(|_| {
        let mut ends = [0i32; 2];
        sc!(SYS_socketpair, AF_UNIX, kind | SOCK_NONBLOCK, 0, ends.as_mut_ptr())?;
        let block = vec![1u8; size];
        for _ in 0..100 {
            match sc!(SYS_write, ends[0], block.as_ptr(), size) {
                Err(EAGAIN) => break,
                other => other?,
            };
        }
        Ok(0)
    })
}

fn stream_sockets() {
    has_ended(hog(|| sockets(SOCK_STREAM, 65_536)));
}

fn datagrams() {
    has_ended(hog(|| sockets(SOCK_DGRAM, 3000)));
}

fn epolls() {
    let status = hog(|| {
        let targets: Vec<usize> = (0..200).filter_map(|_| sc!(SYS_eventfd2, 0, 0).ok()).collect();
        until_refused(|_| {
            let epoll = sc!(SYS_epoll_create1, 0)?;
            for fd in &targets {
                sc!(SYS_epoll_ctl, epoll, EPOLL_CTL_ADD, *fd, [1u32, 0, 0].as_ptr())?;
            }
            Ok(0)
        })
    });
    has_ended(status);
}

fn inotify_watches() {
    let status = hog(|| {
        let base = dir();
        let fd = sc!(SYS_inotify_init1, 0).fd();
        let code = until_refused(|n| {
            let path = c(&format!("{base}/{n}"));
            sc!(SYS_mkdir, path.as_ptr(), 0o755)?;
            sc!(SYS_inotify_add_watch, fd, path.as_ptr(), IN_ALL_EVENTS)
        });
        let _ = std::fs::remove_dir_all(&base);
        code
    });
    has_ended(status);
}

fn queued_signals() {
    let status = hog(|| {
        sigmask(SIG_BLOCK, bit(40));
        let mut info = Siginfo { signo: 40, code: -1, ..Siginfo::default() };
        until_refused(|_| sc!(SYS_rt_sigqueueinfo, pid(), 40, &raw mut info))
    });
    assert!(WIFEXITED(status) && WEXITSTATUS(status) == REFUSED, "{}", describe(status));
}

fn timers() {
    let status = hog(|| {
        until_refused(|n| {
            let mut id = 0i32;
            match n {
                1_000_000 => Err(EAGAIN),
                _ => sc!(SYS_timer_create, CLOCK_MONOTONIC, 0, &raw mut id),
            }
        })
    });
    has_ended(status);
}

/// Record locks on every other byte.
fn locks() {
    let status = hog(|| {
        let fd = open(&format!("{}/f", dir()), O_CREAT | O_RDWR).fd();
        until_refused(|n| {
            let lock = flock {
                l_type: F_WRLCK as i16,
                l_whence: 0,
                l_start: n as i64 * 2,
                l_len: 1,
                l_pid: 0,
            };
            match n {
                300_000 => Err(ENOLCK),
                _ => sc!(SYS_fcntl, fd, F_SETLK, &raw const lock),
            }
        })
    });
    has_ended(status);
}

/// Sends descriptors over a Unix socket.
fn send_rights(over: i32, fds: &[i32]) -> Res {
    let mut control = vec![0u64; 2 + fds.len().div_ceil(2)];
    let len = 16 + 4 * fds.len();
    control[0] = len as u64;
    control[1] = SOL_SOCKET as u64 | (SCM_RIGHTS as u64) << 32;
    for (i, fd) in fds.iter().enumerate() {
        control[2 + i / 2] |= u64::from(*fd as u32) << (32 * (i % 2));
    }
    let iov = [c"x".as_ptr() as usize, 1];
    let header = [0, 0, iov.as_ptr() as usize, 1, control.as_ptr() as usize, len, 0];
    sc!(SYS_sendmsg, over, header.as_ptr(), 0)
}

/// Pairs of sockets that hold each other in their queues, with data, and that nobody else holds.
fn rights_in_cycles() {
    let status = hog(|| {
        until_refused(|n| {
            if n == 5_000 {
                return Err(ENOSPC);
            }
            let mut ends = [0i32; 2];
            sc!(SYS_socketpair, AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends.as_mut_ptr())?;
            let block = [1u8; 16384];
            let _ = sc!(SYS_write, ends[0], block.as_ptr(), block.len());
            let sent = send_rights(ends[0], &ends);
            let also = send_rights(ends[1], &ends);
            close(ends[0]);
            close(ends[1]);
            sent.and(also)
        })
    });
    has_ended(status);
}

/// A child writes to all pages that it shares with its parent.
fn dirty_private_copies() {
    let status = hog(|| {
        let size = (available_kib() as usize * 1024 / 4 * 3) & !4095;
        let p = anon(size) as usize;
        let touch = || {
            for page in (p..p + size).step_by(4096) {
                // SAFETY: inside the mapping just made.
                unsafe { (page as *mut usize).write_volatile(page ^ pid() as usize) };
            }
        };
        touch();
        let child = fork(|| {
            touch();
            0
        });
        wait(child);
        REFUSED
    });
    has_ended(status);
}

/// Runs all, or those whose name contains the filter; true if all passed.
pub fn main(filter: &str) -> bool {
    let tests: &[Test] = TESTS;
    crate::harness::run_all(tests.iter(), filter, BOUND_S + 60)
}
