//! Bad pointers: every call that takes one answers EFAULT, or another errno, and nothing dies.
//!
//! The first tests know what must come; the sweep tries every pointer position of a table of
//! calls with every kind of bad address, in a child, and only asks that the child survives.

use crate::sys::*;
use crate::{sc, tests};

tests!("pointers":
    reads_fault, writes_fault, strings_fault, straddling_page_ends, partial_reads_and_writes,
    overflowing_ranges, sweep_all_calls, readonly_destination,
);

/// NULL page, unmapped, the border of user space, the hole, kernel text, kernel direct map, end.
const BAD: [usize; 9] = [
    0,
    0x1000,
    0x7fff_ffff_f000,
    0x7fff_ffff_ffff,
    0x8000_0000_0000,
    0xffff_8000_0000_0000,
    0xffff_8880_0000_0000,
    0xffff_ffff_8100_0000,
    usize::MAX - 7,
];

fn reads_fault() {
    let (_, w) = pipe();
    let ev = sc!(SYS_eventfd2, 0, EFD_NONBLOCK).fd();
    for p in BAD {
        sc!(SYS_write, w, p, 8).fails(EFAULT);
        sc!(SYS_write, ev, p, 8).fails(EFAULT);
        sc!(SYS_nanosleep, p, 0).fails(EFAULT);
        sc!(SYS_writev, w, p, 1).fails(EFAULT);
        sc!(SYS_rt_sigprocmask, SIG_BLOCK, if p == 0 { 8 } else { p }, 0, 8).fails(EFAULT);
        sc!(SYS_bind, sc!(SYS_socket, AF_UNIX, SOCK_STREAM, 0).fd(), p, 16).fails(EFAULT);
    }
}

fn writes_fault() {
    let zero = open("/dev/zero", O_RDONLY).fd();
    for p in BAD {
        sc!(SYS_read, zero, p, 8).fails(EFAULT);
        sc!(SYS_uname, p).fails(EFAULT);
        sc!(SYS_pipe2, p, 0).fails(EFAULT);
        sc!(SYS_fstat, zero, p).fails(EFAULT);
        sc!(SYS_getcwd, p, 4096).fails(EFAULT);
        sc!(SYS_getrusage, 0, p).fails(EFAULT);
        sc!(SYS_sysinfo, p).fails(EFAULT);
        sc!(SYS_clock_gettime, CLOCK_MONOTONIC, p).fails(EFAULT);
        sc!(SYS_getrandom, p, 16, 0).fails(EFAULT);
        sc!(SYS_getrlimit, 0, p).fails(EFAULT);
        sc!(SYS_sched_getaffinity, 0, 128, p).fails(EFAULT);
    }
}

fn strings_fault() {
    for p in BAD {
        sc!(SYS_open, p, 0).fails(EFAULT);
        sc!(SYS_openat, AT_FDCWD, p, 0).fails(EFAULT);
        sc!(SYS_stat, p, 0).fails(EFAULT);
        sc!(SYS_chdir, p).fails(EFAULT);
        sc!(SYS_unlink, p).fails(EFAULT);
        sc!(SYS_rename, p, c"/tmp/x".as_ptr()).fails(EFAULT);
        sc!(SYS_symlink, p, c"/tmp/x".as_ptr()).fails(EFAULT);
        sc!(SYS_execve, p, 0, 0).fails(EFAULT);
        sc!(SYS_memfd_create, p, 0).fails(EFAULT);
    }
}

/// The address of the last `n` bytes before an unmapped page.
fn before_hole(n: usize) -> usize {
    let p = anon(8192);
    unmap(p.wrapping_add(4096), 4096);
    p as usize + 4096 - n
}

fn straddling_page_ends() {
    let st = before_hole(20);
    sc!(SYS_stat, c"/".as_ptr(), st).fails(EFAULT);
    sc!(SYS_uname, before_hole(100)).fails(EFAULT);
    sc!(SYS_nanosleep, before_hole(8), 0).fails(EFAULT);
    // A string that ends exactly with its page is fine; one without its zero is not.
    let s = before_hole(2);
    // SAFETY: the two bytes lie in the test's own mapping.
    unsafe { std::ptr::copy_nonoverlapping(c"/".as_ptr().cast(), s as *mut u8, 2) };
    close(sc!(SYS_open, s, O_RDONLY).fd());
    // SAFETY: as for the block above, whose objects live on.
    unsafe { *(s as *mut u8).add(1) = b'/' };
    sc!(SYS_open, s, O_RDONLY).fails(EFAULT);
}

fn partial_reads_and_writes() {
    let (r, w) = pipe();
    let p = before_hole(10);
    let got = sc!(SYS_write, w, p, 100);
    // What could be copied may be written, else EFAULT; never more than there is.
    assert!(got == Err(EFAULT) || matches!(got, Ok(n) if n <= 10), "{got:?}");
    let (r2, w2) = (r, w);
    write(w2, &[7; 100]);
    let q = before_hole(10);
    let got = sc!(SYS_read, r2, q, 100);
    assert!(got == Err(EFAULT) || matches!(got, Ok(n) if n <= 10), "{got:?}");
}

fn overflowing_ranges() {
    let zero = open("/dev/zero", O_RDONLY).fd();
    let p = anon(4096);
    sc!(SYS_read, zero, p, usize::MAX).fails(EFAULT);
    sc!(SYS_read, zero, p, 1usize << 63).fails(EFAULT);
    sc!(SYS_read, zero, 0x7fff_ffff_0000usize, 0x20_0000).fails(EFAULT);
    sc!(SYS_getrandom, usize::MAX - 4, 16, 0).fails(EFAULT);
    let iov = [p as usize, 1usize << 62, p as usize, 1 << 62];
    sc!(SYS_readv, zero, iov.as_ptr(), 2).must_end();
}

trait MustEnd {
    fn must_end(self);
}

impl MustEnd for Res {
    /// Any answer will do.
    fn must_end(self) {}
}

fn readonly_destination() {
    let p = mmap(0, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0).must();
    sc!(SYS_uname, p).fails(EFAULT);
    sc!(SYS_read, open("/dev/zero", O_RDONLY).fd(), p, 10).fails(EFAULT);
    let none = mmap(0, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0).must();
    sc!(SYS_write, pipe().1, none, 10).fails(EFAULT);
    sc!(SYS_open, none, 0).fails(EFAULT);
}

fn sweep_all_calls() {
    // All numbers but those that end, stop or replace the child; every argument bad at once, and
    // a descriptor and a length in the customary places.
    let (r, w) = pipe_flags(O_NONBLOCK);
    let fds = [r as usize, w as usize, open("/tmp", O_RDONLY).must(), usize::MAX];
    for bad in BAD {
        let child = fork(|| {
            // A call that sleeps is cut short by a timer, so that the sweep comes to its end.
            on_signal(SIGALRM, cut_short as *const () as usize, 0, 0);
            let it = [0usize, 20_000, 0, 20_000];
            sc!(SYS_setitimer, ITIMER_REAL, it.as_ptr(), 0).is(0);
            for nr in (0..abi::syscalls::END).filter(|nr| !crate::fuzz::unsafe_to_sweep(*nr)) {
                for fd in fds {
                    let _ = sc!(nr, fd, bad, 16, bad, 8, bad);
                    let _ = sc!(nr, bad, 16, bad, 0, bad, 0);
                }
                let _ = sc!(nr, bad, bad, bad, bad, bad, bad);
            }
            0
        });
        let s = wait(child);
        // A call may end the child by a signal (a limit, a lost mapping); it must end.
        assert!(WIFEXITED(s) || WIFSIGNALED(s), "{}", describe(s));
    }
}

extern "C" fn cut_short(_: i32) {}
