//! What the workers do, each with things of its own or all with one.

use std::ffi::CString;

use libc::{
    SYS_close, SYS_fork, SYS_futex, SYS_getdents64, SYS_lseek, SYS_mkdir, SYS_pipe2, SYS_pread64,
    SYS_pwrite64, SYS_read, SYS_rt_sigaction, SYS_socketpair, SYS_tgkill, SYS_unlink, SYS_wait4,
    SYS_write,
};
use limen_guest_bench::sys::{at, call, create, good, map, open, path, unmap};

/// Pages that a worker touches in one operation.
const PAGES: usize = 16;
const READ_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;

/// One operation of a worker.
pub type Operation = Box<dyn FnMut()>;

/// An operation, and who does it.
pub struct Row {
    /// As printed.
    pub name: &'static str,
    /// The workers are threads of one process.
    pub threads: bool,
    /// Makes what all workers share; a number that names it.
    pub common: fn() -> usize,
    /// Makes what a worker needs: its number, and what all share.
    pub prepare: fn(usize, usize) -> Operation,
}

const fn own(name: &'static str, prepare: fn(usize, usize) -> Operation) -> Row {
    Row { name, threads: false, common: || 0, prepare }
}

const fn own_of_threads(name: &'static str, prepare: fn(usize, usize) -> Operation) -> Row {
    Row { name, threads: true, common: || 0, prepare }
}

/// All rows: those whose names begin with `one_` have one thing for all.
pub const ROWS: &[Row] = &[
    own("getppid", |_, _| Box::new(|| _ = good(libc::SYS_getppid, &[]))),
    own("fault", fault),
    own_of_threads("fault_of_threads", fault),
    own_of_threads("copy_of_threads", copy_on_write),
    own_of_threads("file_fault_of_threads", file_fault),
    own("mmap", mmap),
    own_of_threads("mmap_of_threads", mmap),
    own("open_close", open_close),
    own_of_threads("open_close_of_threads", open_close),
    Row { name: "one_folder_open_close", threads: false, common: folder, prepare: open_in_one },
    own("create_unlink", create_unlink),
    own("stat", stat),
    own("getdents", getdents),
    own("pipe", pipe),
    own("unix_socket", unix_socket),
    own("futex_wake", futex_wake),
    own("fork_wait", fork_wait),
    own("signal_self", signal_self),
    own("write_read", write_read),
    Row { name: "one_file_read", threads: false, common: one_file, prepare: read_one },
    Row { name: "one_file_write", threads: false, common: one_file, prepare: write_one },
    Row { name: "one_pipe", threads: false, common: one_pipe, prepare: use_one_pipe },
];

fn touch(start: usize) {
    for page in 0..PAGES {
        // SAFETY: a mapped page of this worker.
        unsafe { ((start + page * 4096) as *mut u8).write_volatile(1) };
    }
}

fn fault(_: usize, _: usize) -> Operation {
    let start = map(PAGES, READ_WRITE);
    Box::new(move || {
        touch(start);
        drop_pages(start);
    })
}

fn drop_pages(start: usize) {
    good(libc::SYS_madvise, &[start, PAGES * 4096, libc::MADV_DONTNEED as usize]);
}

/// Writes to pages that were read before, and so are not the worker's own yet.
fn copy_on_write(_: usize, _: usize) -> Operation {
    let start = map(PAGES, READ_WRITE);
    Box::new(move || {
        for page in 0..PAGES {
            // SAFETY: a mapped page of this worker.
            unsafe { ((start + page * 4096) as *const u8).read_volatile() };
        }
        touch(start);
        drop_pages(start);
    })
}

/// Writes to pages of a file.
fn file_fault(number: usize, _: usize) -> Operation {
    let file = create(&path(format!("mapped{number}")));
    let len = PAGES * 4096;
    good(libc::SYS_ftruncate, &[file, len]);
    let shared = libc::MAP_SHARED as usize;
    let start = good(libc::SYS_mmap, &[0, len, READ_WRITE as usize, shared, file, 0]);
    touch(start);
    Box::new(move || {
        drop_pages(start);
        touch(start);
    })
}

fn mmap(_: usize, _: usize) -> Operation {
    Box::new(|| {
        let start = map(PAGES, READ_WRITE);
        unmap(start, PAGES);
    })
}

/// A folder of a worker's own.
fn own_folder(number: usize, what: &str) -> CString {
    let folder = path(format!("{what}{number}"));
    let _ = call(SYS_mkdir, &[at(&folder), 0o755]);
    folder
}

fn inside(folder: &CString, name: &str) -> CString {
    CString::new(format!("{}/{name}", folder.to_string_lossy())).expect("no zero in it")
}

fn open_close(number: usize, _: usize) -> Operation {
    let file = inside(&own_folder(number, "open"), "file");
    good(SYS_close, &[create(&file)]);
    Box::new(move || _ = good(SYS_close, &[open(&file, libc::O_RDONLY)]))
}

fn folder() -> usize {
    own_folder(0, "all");
    0
}

fn open_in_one(number: usize, _: usize) -> Operation {
    let file = path(format!("all0/file{number}"));
    good(SYS_close, &[create(&file)]);
    Box::new(move || _ = good(SYS_close, &[open(&file, libc::O_RDONLY)]))
}

fn create_unlink(number: usize, _: usize) -> Operation {
    let file = inside(&own_folder(number, "create"), "file");
    Box::new(move || {
        good(SYS_close, &[create(&file)]);
        good(SYS_unlink, &[at(&file)]);
    })
}

fn stat(number: usize, _: usize) -> Operation {
    let file = inside(&own_folder(number, "stat"), "file");
    good(SYS_close, &[create(&file)]);
    let mut buffer = [0u8; 256];
    Box::new(move || _ = good(libc::SYS_stat, &[at(&file), buffer.as_mut_ptr() as usize]))
}

fn getdents(number: usize, _: usize) -> Operation {
    let folder = own_folder(number, "list");
    for name in 0..10 {
        good(SYS_close, &[create(&inside(&folder, &format!("name{name}")))]);
    }
    let open = open(&folder, libc::O_RDONLY | libc::O_DIRECTORY);
    let mut buffer = [0u8; 2048];
    Box::new(move || {
        good(SYS_lseek, &[open, 0, 0]);
        good(SYS_getdents64, &[open, buffer.as_mut_ptr() as usize, buffer.len()]);
    })
}

fn pair(nr: libc::c_long, before: &[usize], after: &[usize]) -> [usize; 2] {
    let mut ends = [0i32; 2];
    let address = [ends.as_mut_ptr() as usize];
    good(nr, &[before, &address, after].concat());
    ends.map(|end| end as usize)
}

/// Passes a byte from one end to the other.
fn pass([from, to]: [usize; 2]) -> Operation {
    let mut byte = [1u8; 1];
    Box::new(move || {
        good(SYS_write, &[to, byte.as_ptr() as usize, 1]);
        good(SYS_read, &[from, byte.as_mut_ptr() as usize, 1]);
    })
}

fn pipe(_: usize, _: usize) -> Operation {
    pass(pair(SYS_pipe2, &[], &[0]))
}

fn unix_socket(_: usize, _: usize) -> Operation {
    let [one, other] =
        pair(SYS_socketpair, &[libc::AF_UNIX as usize, libc::SOCK_STREAM as usize, 0], &[]);
    pass([one, other])
}

fn futex_wake(_: usize, _: usize) -> Operation {
    let word = Box::new(0u32);
    let wake = (libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG) as usize;
    Box::new(move || _ = good(SYS_futex, &[&raw const *word as usize, wake, 1]))
}

fn fork_wait(_: usize, _: usize) -> Operation {
    // A process group of its own, whose members are one list.
    good(libc::SYS_setpgid, &[0, 0]);
    Box::new(|| {
        let child = good(SYS_fork, &[]);
        if child == 0 {
            let _ = call(libc::SYS_exit_group, &[0]);
        }
        good(SYS_wait4, &[child, 0, 0, 0]);
    })
}

fn signal_self(_: usize, _: usize) -> Operation {
    // Ignored: the sender's part alone.
    let action = [1usize, 0, 0, 0];
    good(SYS_rt_sigaction, &[libc::SIGUSR1 as usize, action.as_ptr() as usize, 0, 8]);
    let (pid, tid) = (good(libc::SYS_getpid, &[]), good(libc::SYS_gettid, &[]));
    Box::new(move || _ = good(SYS_tgkill, &[pid, tid, libc::SIGUSR1 as usize]))
}

/// Writes 512 bytes to a file at a place, and reads them.
fn write_and_read(file: usize, offset: usize) -> Operation {
    let mut buffer = [7u8; 512];
    Box::new(move || {
        good(SYS_pwrite64, &[file, buffer.as_ptr() as usize, buffer.len(), offset]);
        good(SYS_pread64, &[file, buffer.as_mut_ptr() as usize, buffer.len(), offset]);
    })
}

fn write_read(number: usize, _: usize) -> Operation {
    write_and_read(create(&inside(&own_folder(number, "data"), "file")), 0)
}

fn one_file() -> usize {
    let file = create(&path("one"));
    let bytes = [3u8; 4096];
    good(SYS_pwrite64, &[file, bytes.as_ptr() as usize, bytes.len(), 0]);
    good(SYS_close, &[file]);
    0
}

fn read_one(_: usize, _: usize) -> Operation {
    let file = open(&path("one"), libc::O_RDONLY);
    let mut buffer = [0u8; 512];
    Box::new(move || {
        good(SYS_pread64, &[file, buffer.as_mut_ptr() as usize, buffer.len(), 0]);
    })
}

fn write_one(number: usize, _: usize) -> Operation {
    write_and_read(open(&path("one"), libc::O_RDWR), number * 4096)
}

fn one_pipe() -> usize {
    let [from, to] = pair(SYS_pipe2, &[], &[0]);
    from << 32 | to
}

fn use_one_pipe(_: usize, both: usize) -> Operation {
    pass([both >> 32, both & 0xffff_ffff])
}
