//! Calls by their numbers, and what several rows need: children, herds, numbers in paths.
//!
//! Pointers given to the kernel are of objects that live until the call returns.

use std::ffi::{CStr, CString};

use crate::raw::syscall;

/// Where files are made.
pub const SCRATCH: &CStr = c"/tmp/growth";
pub const PAGE: usize = 4096;

/// The raw result, negative for an errno.
#[inline(always)]
pub fn call(nr: libc::c_long, args: &[usize]) -> isize {
    let mut six = [0; 6];
    six[..args.len()].copy_from_slice(args);
    syscall(nr, six)
}

/// The result, which must not be an error: a failed call is cheap, and would pass for a fast one.
#[inline(always)]
#[track_caller]
pub fn good(nr: libc::c_long, args: &[usize]) -> usize {
    let ret = call(nr, args);
    assert!(ret >= 0, "system call {nr}: errno {}", -ret);
    ret as usize
}

/// A path below [`SCRATCH`].
pub fn path(name: impl std::fmt::Display) -> CString {
    CString::new(format!("{}/{name}", SCRATCH.to_string_lossy())).expect("no zero in it")
}

/// The address of a path.
pub fn at(path: &CStr) -> usize {
    path.as_ptr() as usize
}

/// An open file.
pub fn open(path: &CStr, flags: i32) -> usize {
    good(libc::SYS_open, &[at(path), flags as usize, 0o600])
}

/// An empty new file.
pub fn create(path: &CStr) -> usize {
    open(path, libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC)
}

/// Closes a descriptor.
pub fn close(fd: usize) {
    good(libc::SYS_close, &[fd]);
}

/// A pipe's ends.
pub fn pipe() -> (usize, usize) {
    let mut ends = [0i32; 2];
    good(libc::SYS_pipe2, &[ends.as_mut_ptr() as usize, 0]);
    (ends[0] as usize, ends[1] as usize)
}

/// Ends this process.
pub fn exit(status: usize) -> ! {
    call(libc::SYS_exit_group, &[status]);
    unreachable!("exit_group came back");
}

/// A child that runs `body` and ends.
#[inline(always)]
pub fn fork(body: impl FnOnce()) -> usize {
    let pid = good(libc::SYS_clone, &[libc::SIGCHLD as usize, 0, 0, 0, 0]);
    if pid == 0 {
        body();
        exit(0);
    }
    pid
}

/// Waits for a child's end; its status.
#[inline(always)]
pub fn wait(pid: usize) -> i32 {
    let mut status = 0i32;
    let got = good(libc::SYS_wait4, &[pid, &raw mut status as usize, 0, 0]);
    assert_eq!(got, pid, "wait4");
    status
}

/// Runs it in a child; whether that ended well.
pub fn in_child(body: impl FnOnce()) -> bool {
    let pid = fork(|| {
        // Output of this child alone: what it prints is out when it ends.
        body();
        let _ = std::io::Write::flush(&mut std::io::stdout());
    });
    wait(pid) == 0
}

/// Lets others run until nobody has anything to do.
pub fn quiet() {
    std::thread::sleep(std::time::Duration::from_millis(20));
}

/// Children that wait until they are dropped.
pub struct Herd {
    gate: usize,
    /// In the order they were made.
    pub pids: Vec<usize>,
}

impl Herd {
    /// `n` children; each runs `first` and waits.
    pub fn new(n: usize, first: impl Fn(usize)) -> Self {
        let (outside, gate) = pipe();
        let child = |i| {
            fork(|| {
                close(gate);
                first(i);
                let mut byte = 0u8;
                call(libc::SYS_read, &[outside, &raw mut byte as usize, 1]);
            })
        };
        let pids = (0..n).map(child).collect();
        close(outside);
        quiet();
        Herd { gate, pids }
    }

    /// One from the middle.
    pub fn middle(&self) -> usize {
        self.pids[self.pids.len() / 2]
    }
}

impl Drop for Herd {
    fn drop(&mut self) {
        close(self.gate);
        for _ in &self.pids {
            good(libc::SYS_wait4, &[usize::MAX, 0, 0, 0]);
        }
    }
}

/// Raises a limit as far as it goes (setrlimit(2)); a row that needs more fails.
pub fn raise_limit(resource: usize, value: u64) {
    let limit = [value, value];
    let _ = call(libc::SYS_setrlimit, &[resource, limit.as_ptr() as usize]);
}

/// Stays on the first CPU, where there are several.
pub fn one_cpu() {
    let mask = 1u64;
    let _ = call(libc::SYS_sched_setaffinity, &[0, 8, &raw const mask as usize]);
}

/// A private anonymous mapping.
pub fn map(pages: usize, prot: i32) -> usize {
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as usize;
    good(libc::SYS_mmap, &[0, pages * PAGE, prot as usize, flags, usize::MAX, 0])
}

/// Removes a mapping.
pub fn unmap(at: usize, pages: usize) {
    good(libc::SYS_munmap, &[at, pages * PAGE]);
}

/// Writes to a page of a mapping that may be written.
#[inline(always)]
pub fn touch(address: usize) {
    // SAFETY: callers pass addresses inside live mappings that only they use.
    unsafe { (address as *mut u8).write_volatile(1) };
}

/// Writes to each page.
pub fn touch_all(address: usize, pages: usize) {
    (0..pages).for_each(|i| touch(address + i * PAGE));
}

/// Reads a file from its start to its end; how many bytes.
pub fn read_all(path: &CStr, buf: &mut [u8]) -> usize {
    let fd = open(path, libc::O_RDONLY);
    let mut total = 0;
    loop {
        let got = good(libc::SYS_read, &[fd, buf.as_mut_ptr() as usize, buf.len()]);
        if got == 0 {
            break;
        }
        total += got;
    }
    close(fd);
    total
}
