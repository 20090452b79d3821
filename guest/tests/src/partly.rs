//! Transfers that come to an end before their buffers do: buffers that are only partly there, and
//! requests that must not wait.
//!
//! Manual pages: read(2), readv(2) and preadv2(2), getdents(2), send(2), epoll(7), inotify(7).

use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use crate::sys::*;
use crate::{sc, tests};

tests!("partly":
    reads_fill_what_is_there, writes_take_what_is_there, numbers_are_whole,
    vectors_end_at_the_hole, requests_without_waiting, appending_requests, entries_in_small_buffers,
    inotify_order, epoll_sets_are_their_own, statfs_of_what_has_no_name, wrong_ends,
    positions_of_devices, file_size_limit,
);

const PAGE: usize = 4096;

/// Memory whose first page is there and whose second is not: the last `len` bytes before the hole.
fn before_hole(len: usize) -> *mut u8 {
    let pages = anon(2 * PAGE);
    unmap(pages.wrapping_add(PAGE), PAGE);
    pages.wrapping_add(PAGE - len)
}

fn bytes(at: *const u8, len: usize) -> Vec<u8> {
    // SAFETY: the caller names mapped memory that nobody else uses.
    unsafe { std::slice::from_raw_parts(at, len) }.to_vec()
}

fn file_of(content: &[u8], base: &str) -> i32 {
    let path = format!("{}/f", dir_in(base));
    std::fs::write(&path, content).unwrap();
    open(&path, O_RDWR).fd()
}

fn reads_fill_what_is_there() {
    let content: Vec<u8> = (0..3 * PAGE).map(|i| (i % 251) as u8).collect();
    for base in ["/tmp", "/dev/shm"] {
        let fd = file_of(&content, base);
        for len in [1, 100, 1000] {
            let at = before_hole(len);
            sc!(SYS_pread64, fd, at, 2 * len, 10).is(len);
            assert_eq!(bytes(at, len), content[10..10 + len]);
            sc!(SYS_lseek, fd, 0, SEEK_SET).is(0);
            sc!(SYS_read, fd, at, 2 * len).is(len);
            sc!(SYS_lseek, fd, 0, SEEK_CUR).is(len);
            sc!(SYS_read, fd, at.wrapping_add(len), 1).fails(EFAULT);
        }
    }
    let zero = open("/dev/zero", O_RDONLY).fd();
    sc!(SYS_read, zero, before_hole(100), 200).is(100);
    let (out, into) = pipe();
    write(into, &content[..200]);
    // The pipe keeps what did not fit, which may be all of it.
    let got = sc!(SYS_read, out, before_hole(50), 200).unwrap_or(0);
    assert!(got <= 50, "{got}");
    assert_eq!(read(out, 200).len(), 200 - got);
}

fn writes_take_what_is_there() {
    for base in ["/tmp", "/dev/shm"] {
        let fd = file_of(b"", base);
        let at = before_hole(100);
        // SAFETY: a hundred bytes that are there.
        unsafe { std::ptr::write_bytes(at, b'x', 100) };
        sc!(SYS_pwrite64, fd, at, 200, 0).is(100);
        sc!(SYS_write, fd, at, 150).is(100);
        sc!(SYS_lseek, fd, 0, SEEK_CUR).is(100);
        sc!(SYS_write, fd, at.wrapping_add(100), 1).fails(EFAULT);
        let mut all = [0u8; 256];
        sc!(SYS_pread64, fd, all.as_mut_ptr(), 256, 0).is(100);
        assert_eq!(&all[..100], [b'x'; 100]);
    }
}

/// What is one value is not taken or given by halves.
fn numbers_are_whole() {
    let counter = sc!(SYS_eventfd2, 5, EFD_NONBLOCK).fd();
    sc!(SYS_read, counter, before_hole(4), 8).fails(EFAULT);
    sc!(SYS_write, counter, before_hole(4), 8).fails(EFAULT);
    sc!(SYS_write, open("/proc/self/comm", O_WRONLY).fd(), before_hole(4), 8).fails(EFAULT);
}

fn vectors_end_at_the_hole() {
    let content: Vec<u8> = (0..PAGE).map(|i| (i % 251) as u8).collect();
    let fd = file_of(&content, "/tmp");
    let (one, two) = (before_hole(64), before_hole(64));
    let vector = [one as usize, 64, two as usize, 200, one as usize, 64];
    sc!(SYS_preadv, fd, vector.as_ptr(), 3, 0, 0).is(128);
    assert_eq!(bytes(two, 64), content[64..128]);
    let vector = [two as usize, 65, one as usize, 64];
    sc!(SYS_pwritev, fd, vector.as_ptr(), 2, 0, 0).is(64);
}

fn requests_without_waiting() {
    let mut byte = 0u8;
    let vector = [&raw mut byte as usize, 1];
    let (out, into) = pipe();
    let (nowait, here) = (RWF_NOWAIT, -1i64);
    let get = |fd: i32| sc!(SYS_preadv2, fd, vector.as_ptr(), 1, here, 0, nowait);
    let put = |fd: i32| sc!(SYS_pwritev2, fd, vector.as_ptr(), 1, here, 0, nowait);
    get(out).fails(EAGAIN);
    put(into).is(1);
    get(out).is(1);
    // The open file goes on to wait.
    let pid = fork(|| {
        nap(30);
        write(into, b"x");
        0
    });
    sc!(SYS_read, out, &raw mut byte, 1).is(1);
    wait_code(pid, 0);
    while put(into).is_ok() {}
    put(into).fails(EAGAIN);
    let counter = sc!(SYS_eventfd2, 0, 0).fd();
    let mut word = 0u64;
    let words = [&raw mut word as usize, 8];
    sc!(SYS_preadv2, counter, words.as_ptr(), 1, here, 0, nowait).fails(EAGAIN);
    let (one, two) = {
        let mut pair = [0i32; 2];
        sc!(SYS_socketpair, AF_UNIX, SOCK_STREAM, 0, pair.as_mut_ptr()).is(0);
        (pair[0], pair[1])
    };
    get(one).fails(EAGAIN);
    write(two, b"x");
    get(one).is(1);
    sc!(SYS_preadv2, one, vector.as_ptr(), 1, here, 0, 0x8000).fails(EOPNOTSUPP);
}

fn appending_requests() {
    let fd = file_of(b"0123456789", "/dev/shm");
    let vector = [b"ab".as_ptr() as usize, 2];
    sc!(SYS_pwritev2, fd, vector.as_ptr(), 1, 3, 0, RWF_APPEND).is(2);
    sc!(SYS_lseek, fd, 0, SEEK_CUR).is(0);
    let mut all = [0u8; 16];
    sc!(SYS_pread64, fd, all.as_mut_ptr(), 16, 0).is(12);
    assert_eq!(&all[..12], b"0123456789ab");
    // At the position, which goes with it.
    sc!(SYS_pwritev2, fd, vector.as_ptr(), 1, -1i64, 0, RWF_APPEND).is(2);
    sc!(SYS_lseek, fd, 0, SEEK_CUR).is(14);
    // Appenders of two open files do not write over each other.
    let path = std::fs::read_link(format!("/proc/self/fd/{fd}")).unwrap();
    let pids = [(); 2].map(|()| {
        fork(|| {
            let fd = open(path.to_str().unwrap(), O_WRONLY).fd();
            for _ in 0..500 {
                sc!(SYS_pwritev2, fd, vector.as_ptr(), 1, 0, 0, RWF_APPEND).is(2);
            }
            0
        })
    });
    pids.into_iter().for_each(|pid| wait_code(pid, 0));
    assert_eq!(sc!(SYS_lseek, fd, 0, SEEK_END).must(), 14 + 2 * 500 * 2);
}

/// Names in buffers that hold few of them: each exactly once.
fn entries_in_small_buffers() {
    for base in ["/tmp", "/dev/shm"] {
        let d = dir_in(base);
        for i in 0..300 {
            std::fs::write(format!("{d}/{}", "n".repeat(1 + i % 50) + &i.to_string()), "").unwrap();
        }
        for room in [96, 512, 2000, 32768] {
            let fd = open(&d, O_RDONLY).fd();
            let mut buffer = vec![0u8; room];
            let mut names = std::collections::BTreeSet::new();
            loop {
                let len = sc!(SYS_getdents64, fd, buffer.as_mut_ptr(), room).must();
                if len == 0 {
                    break;
                }
                let mut at = 0;
                while at < len {
                    let size = u16::from_le_bytes([buffer[at + 16], buffer[at + 17]]) as usize;
                    let name = buffer[at + 19..at + size].split(|b| *b == 0).next().unwrap();
                    assert!(names.insert(name.to_vec()), "{name:?} twice");
                    at += size;
                }
            }
            assert_eq!(names.len(), 302, "{base} by {room}");
            close(fd);
        }
    }
}

/// The events of a watch on a directory (d) and on a file in it (f), as `WHO MASK NAME`.
fn events(fd: i32, file: i32) -> Vec<String> {
    let mut buffer = [0u8; 4096];
    let len = sc!(SYS_read, fd, buffer.as_mut_ptr(), buffer.len()).unwrap_or(0);
    let word = |at: usize| u32::from_le_bytes(buffer[at..at + 4].try_into().unwrap());
    let mut found = Vec::new();
    let mut at = 0;
    while at < len {
        let (wd, mask, size) = (word(at) as i32, word(at + 4), word(at + 12) as usize);
        let name = buffer[at + 16..at + 16 + size].split(|b| *b == 0).next().unwrap_or(b"");
        let who = if wd == file { "f" } else { "d" };
        found.push(format!("{who} {mask:x} {}", String::from_utf8_lossy(name)).trim_end().into());
        at += 16 + size;
    }
    found
}

fn inotify_order() {
    let d = dir_in("/dev/shm");
    let fd = sc!(SYS_inotify_init1, IN_NONBLOCK).fd();
    let path = |name: &str| format!("{d}/{name}");
    std::fs::write(path("f"), "text").unwrap();
    let watch = |path: &str| sc!(SYS_inotify_add_watch, fd, c(path).as_ptr(), IN_ALL_EVENTS).must();
    watch(&d);
    let file = watch(&path("f")) as i32;
    let check = |what: &str, wanted: &[&str]| {
        let got = events(fd, file);
        assert_eq!(got, wanted, "{what}");
    };
    let opened = open(&path("f"), O_WRONLY | O_TRUNC).fd();
    check("open with O_TRUNC", &["d 20 f", "f 20", "d 2 f", "f 2"]);
    let from = other_file();
    sc!(SYS_sendfile, opened, from, 0, 3).is(3);
    check("sendfile into it", &["d 2 f", "f 2"]);
    close(opened);
    check("close", &["d 8 f", "f 8"]);
    let opened = open(&path("f"), O_RDONLY).fd();
    let null = open("/dev/null", O_WRONLY).fd();
    sc!(SYS_sendfile, null, opened, 0, 2).is(2);
    close(opened);
    check("sendfile from it", &["d 20 f", "f 20", "d 1 f", "f 1", "d 10 f", "f 10"]);
    sc!(SYS_chmod, c(&path("f")).as_ptr(), 0o600).is(0);
    check("chmod", &["d 4 f", "f 4"]);
    std::fs::rename(path("f"), path("g")).unwrap();
    check("rename", &["d 40 f", "d 80 g", "f 800"]);
    std::fs::create_dir(path("sub")).unwrap();
    check("mkdir", &["d 40000100 sub"]);
    std::fs::remove_dir(path("sub")).unwrap();
    check("rmdir", &["d 40000200 sub"]);
    std::fs::remove_file(path("g")).unwrap();
    // Whether the name or the object goes first is the kernel's version's matter.
    let mut gone = events(fd, file);
    gone.sort();
    assert_eq!(gone, ["d 200 g", "f 4", "f 400", "f 8000"]);
    std::fs::remove_dir(&d).unwrap();
    check("rmdir of the watched one", &["d 400", "d 8000"]);
}

fn other_file() -> i32 {
    let fd = sc!(SYS_memfd_create, c"other".as_ptr(), 0).fd();
    write(fd, b"other");
    sc!(SYS_lseek, fd, 0, SEEK_SET).is(0);
    fd
}

/// Sets that share files, filled and emptied at once: each has what was put into it.
fn epoll_sets_are_their_own() {
    let stop = &new_shared()[5] as &AtomicU32;
    stop.store(0, SeqCst);
    let (out, into) = pipe();
    write(into, b"x");
    let pids: Vec<i32> = (0..3)
        .map(|_| {
            fork(|| {
                let set = sc!(SYS_epoll_create1, 0).fd();
                let event = epoll_event { events: EPOLLIN as u32, u64: 7 };
                for _ in 0..2000 {
                    let own = sc!(SYS_dup, out).fd();
                    for fd in [own, out] {
                        sc!(SYS_epoll_ctl, set, EPOLL_CTL_ADD, fd, &raw const event).is(0);
                    }
                    let mut found = [epoll_event { events: 0, u64: 0 }; 4];
                    sc!(SYS_epoll_wait, set, found.as_mut_ptr(), 4, 0).is(2);
                    for fd in [own, out] {
                        sc!(SYS_epoll_ctl, set, EPOLL_CTL_DEL, fd, 0).is(0);
                    }
                    sc!(SYS_epoll_wait, set, found.as_mut_ptr(), 4, 0).is(0);
                    close(own);
                }
                0
            })
        })
        .collect();
    pids.into_iter().for_each(|pid| wait_code(pid, 0));
    // Closing takes a file out of every set.
    let sets = [(); 3].map(|()| sc!(SYS_epoll_create1, 0).fd());
    let counter = sc!(SYS_eventfd2, 1, 0).fd();
    let event = epoll_event { events: EPOLLIN as u32, u64: 7 };
    let mut found = [event; 4];
    for set in sets {
        sc!(SYS_epoll_ctl, set, EPOLL_CTL_ADD, counter, &raw const event).is(0);
        sc!(SYS_epoll_wait, set, found.as_mut_ptr(), 4, 0).is(1);
    }
    close(counter);
    for set in sets {
        sc!(SYS_epoll_wait, set, found.as_mut_ptr(), 4, 0).is(0);
    }
}

fn statfs_of_what_has_no_name() {
    let magic = |fd: i32| {
        let mut of = [0u64; 16];
        sc!(SYS_fstatfs, fd, of.as_mut_ptr()).is(0);
        of[0]
    };
    let (out, _) = pipe();
    assert_eq!(magic(out), 0x5049_5045);
    assert_eq!(magic(sc!(SYS_socket, AF_UNIX, SOCK_STREAM, 0).fd()), 0x534f_434b);
    assert_eq!(magic(sc!(SYS_eventfd2, 0, 0).fd()), 0x0904_1934);
    assert_eq!(magic(sc!(SYS_memfd_create, c"m".as_ptr(), 0).fd()), 0x0102_1994);
}

/// Which error comes first: that a stream has no positions, or that its end is the wrong one.
fn wrong_ends() {
    let (out, into) = pipe();
    let mut byte = 0u8;
    let at = &raw mut byte;
    for fd in [out, into] {
        sc!(SYS_pread64, fd, at, 1, 0).fails(ESPIPE);
        sc!(SYS_pwrite64, fd, at, 1, 0).fails(ESPIPE);
        sc!(SYS_lseek, fd, 0, SEEK_CUR).fails(ESPIPE);
    }
    sc!(SYS_read, into, at, 1).fails(EBADF);
    sc!(SYS_write, out, at, 1).fails(EBADF);
    let path = format!("{}/f", dir());
    let write_only = open(&path, O_WRONLY | O_CREAT).fd();
    sc!(SYS_pread64, write_only, at, 1, 0).fails(EBADF);
    let read_only = open(&path, O_RDONLY).fd();
    sc!(SYS_pwrite64, read_only, at, 1, 0).fails(EBADF);
    sc!(SYS_pread64, read_only, at, 1, -1i64).fails(EINVAL);
}

fn positions_of_devices() {
    for name in ["/dev/null", "/dev/zero", "/dev/full"] {
        let fd = open(name, O_RDWR).fd();
        sc!(SYS_lseek, fd, 100, SEEK_SET).is(0);
        sc!(SYS_lseek, fd, 0, SEEK_END).is(0);
        let mut byte = 0u8;
        assert!(sc!(SYS_pread64, fd, &raw mut byte, 1, 5).is_ok(), "{name}");
    }
    let random = open("/dev/urandom", O_RDONLY).fd();
    sc!(SYS_lseek, random, 100, SEEK_SET).is(0);
    let d = open(&dir_in("/dev/shm"), O_RDONLY).fd();
    sc!(SYS_lseek, d, 0, SEEK_CUR).is(0);
    sc!(SYS_lseek, d, -1i64, SEEK_SET).fails(EINVAL);
    sc!(SYS_lseek, d, 0, 99).fails(EINVAL);
}

/// RLIMIT_FSIZE holds for every way to make a file longer.
fn file_size_limit() {
    let fd = file_of(b"0123456789", "/dev/shm");
    in_child(|| {
        on_signal(SIGXFSZ, SIG_IGN, 0, 0);
        sc!(SYS_setrlimit, RLIMIT_FSIZE, [12usize, 12].as_ptr()).is(0);
        let text = b"abcdef";
        sc!(SYS_pwrite64, fd, text.as_ptr(), 6, 10).is(2);
        sc!(SYS_pwrite64, fd, text.as_ptr(), 6, 12).fails(EFBIG);
        sc!(SYS_ftruncate, fd, 13).fails(EFBIG);
        sc!(SYS_fallocate, fd, 0, 0, 13).fails(EFBIG);
        // What is allocated behind the end takes memory, too.
        sc!(SYS_fallocate, fd, FALLOC_FL_KEEP_SIZE, 0, 13).fails(EFBIG);
        let memory = sc!(SYS_memfd_create, c"m".as_ptr(), 0).fd();
        for mode in [0, FALLOC_FL_KEEP_SIZE] {
            sc!(SYS_fallocate, memory, mode, 0, 1u64 << 40).fails(EFBIG);
        }
        close(memory);
        // Copies stay in one file system.
        let (mut zero, mut end) = (0i64, 11i64);
        let elsewhere = file_of(b"other", "/tmp");
        sc!(SYS_copy_file_range, elsewhere, &raw mut zero, fd, &raw mut end, 5, 0).fails(EXDEV);
        let path = format!("/proc/self/fd/{fd}");
        let beside = std::fs::read_link(path).unwrap().with_file_name("beside");
        std::fs::write(&beside, "beside").unwrap();
        let from = open(beside.to_str().unwrap(), O_RDONLY).fd();
        sc!(SYS_copy_file_range, from, &raw mut zero, fd, &raw mut end, 5, 0).is(1);
        sc!(SYS_copy_file_range, from, &raw mut zero, fd, &raw mut end, 4, 0).fails(EFBIG);
        sc!(SYS_lseek, fd, 12, SEEK_SET).is(12);
        sc!(SYS_sendfile, fd, from, 0, 5).fails(EFBIG);
    });
}
