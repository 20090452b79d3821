//! What a process has read and written: /proc/PID/io (proc(5)).

use crate::sys::*;
use crate::{sc, tests};

tests! { "transfers": calls_count, refused_calls, threads_and_children }

/// Bytes read, bytes written, calls that read, calls that write.
type Totals = [i64; 4];

/// The first four lines, which one read takes; and how long all were.
fn totals(path: &str) -> (Totals, i64) {
    let fd = open(path, O_RDONLY).fd();
    let text = String::from_utf8(read(fd, 1024)).expect("text");
    close(fd);
    let names: Vec<&str> = text.lines().filter_map(|line| Some(line.split_once(':')?.0)).collect();
    let all = ["rchar", "wchar", "syscr", "syscw", "read_bytes", "write_bytes"];
    assert_eq!(names[..6], all);
    assert_eq!(names[6..], ["cancelled_write_bytes"]);
    let number = |line: &str| line.rsplit(' ').next()?.parse().ok();
    let numbers: Vec<i64> = text.lines().filter_map(number).collect();
    (std::array::from_fn(|i| numbers[i]), text.len() as i64)
}

/// What `work` adds, without what looking costs.
fn added(path: &str, work: impl FnOnce()) -> Totals {
    let (before, len) = totals(path);
    work();
    let (after, _) = totals(path);
    let looked = [len, 0, 1, 0];
    std::array::from_fn(|i| after[i] - before[i] - looked[i])
}

const OWN: &str = "/proc/thread-self/io";

fn calls_count() {
    const LONG: usize = 5000;
    let file = dir() + "/file";
    std::fs::write(&file, [b'x'; LONG]).unwrap();
    let fd = open(&file, O_RDWR).fd() as usize;
    let zero = open("/dev/zero", O_RDWR).fd() as usize;
    let mut buffer = [0u8; LONG];
    let at = buffer.as_mut_ptr() as usize;
    let vector = [[at, 1000], [at + 1000, 500]];
    let v = vector.as_ptr() as usize;
    let (mut from, mut to) = (0u64, 1000u64);
    let (from, to) = (&raw mut from as usize, &raw mut to as usize);
    // The call, its result, and what is added: bytes read and written, calls that read and write.
    let rows: [(i64, &[usize], usize, Totals); 15] = [
        (SYS_read, &[zero, at, LONG], LONG, [5000, 0, 1, 0]),
        (SYS_write, &[zero, at, LONG], LONG, [0, 5000, 0, 1]),
        (SYS_pread64, &[fd, at, LONG, 100], LONG - 100, [4900, 0, 1, 0]),
        (SYS_pwrite64, &[fd, at, LONG, 0], LONG, [0, 5000, 0, 1]),
        (SYS_readv, &[zero, v, 2], 1500, [1500, 0, 1, 0]),
        (SYS_writev, &[zero, v, 2], 1500, [0, 1500, 0, 1]),
        (SYS_preadv, &[fd, v, 2, 0], 1500, [1500, 0, 1, 0]),
        (SYS_pwritev, &[fd, v, 2, 0], 1500, [0, 1500, 0, 1]),
        (SYS_preadv2, &[fd, v, 2, 0, 0, 0], 1500, [1500, 0, 1, 0]),
        (SYS_pwritev2, &[fd, v, 2, 0, 0, 0], 1500, [0, 1500, 0, 1]),
        // At the end, and of a vector without parts.
        (SYS_pread64, &[fd, at, 9, LONG], 0, [0, 0, 1, 0]),
        (SYS_readv, &[zero, v, 0], 0, [0, 0, 1, 0]),
        (SYS_sendfile, &[zero, fd, from, 100], 100, [100, 100, 1, 1]),
        (SYS_copy_file_range, &[fd, from, fd, to, 100, 0], 100, [100, 100, 1, 1]),
        (SYS_lseek, &[fd, 0, SEEK_SET as usize], 0, [0; 4]),
    ];
    for (number, arguments, result, wanted) in rows {
        let work = || call(number as usize, arguments).is(result);
        assert_eq!(added(OWN, work), wanted, "call {number}");
    }
}

fn refused_calls() {
    let (out, _input) = pipe_flags(O_NONBLOCK);
    let vector = [[8usize, 1]];
    let v = vector.as_ptr();
    let work = || {
        sc!(SYS_read, out, 8, 1).fails(EAGAIN);
        sc!(SYS_readv, 999, v, 1).fails(EBADF);
        sc!(SYS_writev, 999, v, 1).fails(EBADF);
    };
    assert_eq!(added(OWN, work), [0, 0, 2, 1], "those that were tried");
    let work = || {
        sc!(SYS_read, 999, 8, 1).fails(EBADF);
        sc!(SYS_write, out, 8, 1).fails(EBADF);
        sc!(SYS_pread64, out, 8, 1, 0).fails(ESPIPE);
        sc!(SYS_preadv, out, v, 1, u64::MAX).fails(EINVAL);
    };
    assert_eq!(added(OWN, work), [0; 4], "those that were not");
}

fn threads_and_children() {
    let zero = open("/dev/zero", O_RDWR).fd();
    let move_some = || {
        let mut buffer = [0u8; 300];
        sc!(SYS_read, zero, buffer.as_mut_ptr(), 300).is(300);
        sc!(SYS_write, zero, buffer.as_ptr(), 200).is(200);
    };
    let in_thread = || std::thread::scope(|scope| drop(scope.spawn(move_some).join()));
    let alike = |all: Totals, what: &str| {
        // Threads of a library may look around by read(2), too.
        assert!((300..600).contains(&all[0]) && all[1] == 200 && all[3] == 1, "{what}: {all:?}");
    };
    alike(added("/proc/self/io", in_thread), "a thread that ended");
    assert_eq!(added(OWN, in_thread), [0; 4], "not another thread's");
    let child = || {
        let child = fork(|| {
            move_some();
            0
        });
        wait_code(child, 0);
    };
    alike(added("/proc/self/io", child), "a child that was waited for");
    assert_eq!(added(OWN, child), [0; 4], "not a child's");
}
