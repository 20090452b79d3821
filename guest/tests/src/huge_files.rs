//! Files in memory that come by 2 MiB, or are made so: every part of one can still be read,
//! written, freed and cut off by itself, whoever has mapped it.
//!
//! Manual pages: tmpfs(5), madvise(2), memfd_create(2);
//! Documentation/admin-guide/mm/transhuge.rst. Where a kernel makes no huge pages of files the
//! tests still hold. Neighbour: `huge_pages.rs`, about memory without a file.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use crate::huge_pages::{ENABLED, MADV_COLLAPSE, of_smaps};
use crate::memory::{fault, number_of};
use crate::sys::*;
use crate::{sc, tests};

tests!("huge_files":
    made_of_small_pages, freed_in_parts, cut_off_in_the_midst, private_copies_stay,
    no_write_is_lost, come_as_a_mount_says, come_as_the_machine_says, room_counts_for_mappings,
    rights_and_forks, made_in_the_background,
);

const RW: i32 = PROT_READ | PROT_WRITE;
const PAGE: usize = 4096;
const HUGE: usize = 2 << 20;
const BUS_ADRERR: i32 = 2;
const SHMEM_ENABLED: &str = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";

fn word(at: usize) -> &'static AtomicU64 {
    // SAFETY: tests pass addresses of their own mappings, which outlive their use of the word.
    unsafe { &*(at as *const AtomicU64) }
}

/// Reads a word for the sake of its page.
fn read(at: usize) {
    std::hint::black_box(word(at).load(SeqCst));
}

fn memfd(len: usize) -> i32 {
    let fd = sc!(SYS_memfd_create, c"huge".as_ptr(), 0).fd();
    sc!(SYS_ftruncate, fd, len).is(0);
    fd
}

/// Maps a file at a multiple of 2 MiB.
fn map(fd: i32, len: usize, prot: i32, how: i32) -> usize {
    let none = MAP_PRIVATE | MAP_ANONYMOUS;
    let at = mmap(0, len + HUGE, PROT_NONE, none, -1, 0).must().next_multiple_of(HUGE);
    mmap(at, len, prot, how | MAP_FIXED, fd, 0).is(at);
    at
}

/// A number that tells the page at `offset`.
fn mark(fd: i32, offset: usize) -> u64 {
    (fd as u64) << 40 | offset as u64 | 1
}

/// Marks the pages of a file by write(2).
fn fill(fd: i32, from: usize, to: usize) {
    for at in (from..to).step_by(PAGE) {
        let value = mark(fd, at).to_ne_bytes();
        sc!(SYS_pwrite64, fd, value.as_ptr(), 8, at).is(8);
    }
}

fn read_word(fd: i32, at: usize) -> u64 {
    let mut bytes = [0u8; 8];
    sc!(SYS_pread64, fd, bytes.as_mut_ptr(), 8, at).is(8);
    u64::from_ne_bytes(bytes)
}

fn read_byte(fd: i32, at: usize) -> u8 {
    let mut byte = 0u8;
    sc!(SYS_pread64, fd, &raw mut byte, 1, at).is(1);
    byte
}

/// The pages of `[from, to)` are marked, by read(2) and where the file is mapped.
#[track_caller]
fn check(fd: i32, mapped: usize, from: usize, to: usize) {
    for at in (from..to).step_by(PAGE) {
        assert_eq!(read_word(fd, at), mark(fd, at), "{at:#x}, read");
        assert_eq!(word(mapped + at).load(SeqCst), mark(fd, at), "{at:#x}, mapped");
    }
}

#[track_caller]
fn check_zero(fd: i32, mapped: usize, from: usize, to: usize) {
    for at in (from..to).step_by(PAGE) {
        assert_eq!(read_word(fd, at), 0, "{at:#x}, read");
        assert_eq!(word(mapped + at).load(SeqCst), 0, "{at:#x}, mapped");
    }
}

/// Blocks of 512 bytes that a file takes.
fn blocks(fd: i32) -> i64 {
    // SAFETY: all zeros is a valid stat.
    let mut stat: stat = unsafe { std::mem::zeroed() };
    sc!(SYS_fstat, fd, &raw mut stat).is(0);
    stat.st_blocks
}

/// Makes `[at, at + len)` huge, where the kernel can.
#[track_caller]
fn collapse(at: usize, len: usize) -> bool {
    if !std::path::Path::new(ENABLED).exists() {
        return false;
    }
    sc!(SYS_madvise, at, len, MADV_COLLAPSE).is(0);
    true
}

fn made_of_small_pages() {
    let fd = memfd(2 * HUGE);
    // A hole in the midst of the first.
    fill(fd, 0, 9 * PAGE);
    fill(fd, 10 * PAGE, 2 * HUGE);
    let (p, q) = (map(fd, 2 * HUGE, RW, MAP_SHARED), map(fd, 2 * HUGE, PROT_READ, MAP_SHARED));
    read(p);
    read(q + PAGE);
    let before = blocks(fd);
    if collapse(p, 2 * HUGE) {
        assert_eq!(of_smaps(p, "ShmemPmdMapped"), 2 * HUGE / 1024);
        assert_eq!(of_smaps(p, "Rss"), 2 * HUGE / 1024);
        assert_eq!(blocks(fd), before + 8);
        assert!(number_of("/proc/meminfo", "ShmemHugePages") >= 2 * HUGE / 1024);
        assert!(number_of("/proc/meminfo", "ShmemPmdMapped") >= 2 * HUGE / 1024);
        // Again: it is so already.
        sc!(SYS_madvise, p, 2 * HUGE, MADV_COLLAPSE).is(0);
    }
    for mapped in [p, q] {
        check(fd, mapped, 0, 9 * PAGE);
        check_zero(fd, mapped, 9 * PAGE, 10 * PAGE);
        check(fd, mapped, 10 * PAGE, 2 * HUGE);
    }
    // What one writes all see.
    word(p + 5 * PAGE + 8).store(77, SeqCst);
    assert_eq!(word(q + 5 * PAGE + 8).load(SeqCst), 77);
    assert_eq!(read_word(fd, 5 * PAGE + 8), 77);
    let value = 78u64.to_ne_bytes();
    sc!(SYS_pwrite64, fd, value.as_ptr(), 8, HUGE + 8).is(8);
    assert_eq!([word(p + HUGE + 8).load(SeqCst), word(q + HUGE + 8).load(SeqCst)], [78, 78]);
    // A file without anything, and what lies behind its end.
    let empty = memfd(HUGE);
    let r = map(empty, HUGE, RW, MAP_SHARED);
    if std::path::Path::new(ENABLED).exists() {
        sc!(SYS_madvise, r, HUGE, MADV_COLLAPSE).fails(EINVAL);
    }
    check_zero(empty, r, 0, HUGE);
}

fn freed_in_parts() {
    let fd = memfd(3 * HUGE);
    fill(fd, 0, 3 * HUGE);
    let p = map(fd, 3 * HUGE, RW, MAP_SHARED);
    collapse(p, 3 * HUGE);
    let full = blocks(fd);
    let punch = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
    let (from, to) = (HUGE / 2, 2 * HUGE + 3 * PAGE);
    sc!(SYS_fallocate, fd, punch, from, to - from).is(0);
    assert_eq!(blocks(fd), full - ((to - from) / 512) as i64);
    sc!(SYS_lseek, fd, 0, SEEK_HOLE).is(from);
    sc!(SYS_lseek, fd, from, SEEK_DATA).is(to);
    sc!(SYS_lseek, fd, to, SEEK_HOLE).is(3 * HUGE);
    check(fd, p, 0, from);
    check_zero(fd, p, from, to);
    check(fd, p, to, 3 * HUGE);
    // By the mapping, a page of what is small now.
    sc!(SYS_madvise, p + PAGE, PAGE, MADV_REMOVE).is(0);
    check_zero(fd, p, PAGE, 2 * PAGE);
    fill(fd, 0, 3 * HUGE);
    check(fd, p, 0, 3 * HUGE);
    collapse(p, 3 * HUGE);
    check(fd, p, 0, 3 * HUGE);
    // A mapping goes in parts, the file stays.
    sc!(SYS_munmap, p + PAGE, PAGE).is(0);
    sc!(SYS_madvise, p + HUGE, HUGE, MADV_DONTNEED).is(0);
    check(fd, p, 2 * PAGE, 3 * HUGE);
    assert_eq!(read_word(fd, PAGE), mark(fd, PAGE));
}

fn cut_off_in_the_midst() {
    let fd = memfd(2 * HUGE);
    fill(fd, 0, 2 * HUGE);
    let p = map(fd, 2 * HUGE, RW, MAP_SHARED);
    collapse(p, 2 * HUGE);
    let len = HUGE + 5 * PAGE + 100;
    word(p + HUGE + 5 * PAGE + 104).store(5, SeqCst);
    sc!(SYS_ftruncate, fd, len).is(0);
    check(fd, p, 0, len);
    assert_eq!(word(p + HUGE + 5 * PAGE + 104).load(SeqCst), 0);
    let at = p + HUGE + 6 * PAGE;
    assert_eq!(fault(|| read(at)), (SIGBUS, BUS_ADRERR, at));
    assert_eq!(blocks(fd), ((HUGE + 6 * PAGE) / 512) as i64);
    sc!(SYS_ftruncate, fd, 2 * HUGE).is(0);
    check_zero(fd, p, HUGE + 6 * PAGE, 2 * HUGE);
    check(fd, p, 0, HUGE + 6 * PAGE);
    sc!(SYS_ftruncate, fd, 0).is(0);
    assert_eq!(blocks(fd), 0);
}

/// What a private mapping has of its own is not the file's.
fn private_copies_stay() {
    let fd = memfd(HUGE);
    fill(fd, 0, HUGE);
    let (shared, own) = (map(fd, HUGE, RW, MAP_SHARED), map(fd, HUGE, RW, MAP_PRIVATE));
    word(own + 3 * PAGE).store(3, SeqCst);
    if std::path::Path::new(ENABLED).exists() {
        // Refused or done.
        let _ = sc!(SYS_madvise, shared, HUGE, MADV_COLLAPSE);
    }
    assert_eq!(word(own + 3 * PAGE).load(SeqCst), 3);
    check(fd, shared, 0, HUGE);
    let late = map(fd, HUGE, RW, MAP_PRIVATE);
    assert_eq!(word(late + PAGE).load(SeqCst), mark(fd, PAGE));
    word(late + 4 * PAGE).store(4, SeqCst);
    word(late + PAGE).store(5, SeqCst);
    check(fd, shared, 0, HUGE);
    check(fd, late, 5 * PAGE, HUGE);
    assert_eq!([4, 1].map(|n| word(late + n * PAGE).load(SeqCst)), [4, 5]);
    assert_eq!(word(own + 3 * PAGE).load(SeqCst), 3);
}

/// Every page has one writer, who counts in it, through a mapping or by calls; meanwhile the file
/// is made huge, and made small again beside them.
fn no_write_is_lost() {
    const WRITERS: usize = 3;
    const ROUNDS: usize = 400;
    let fd = memfd(2 * HUGE);
    let p = map(fd, 2 * HUGE, RW, MAP_SHARED);
    let q = map(fd, 2 * HUGE, RW, MAP_SHARED);
    fill(fd, 0, HUGE);
    let is_over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|threads| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| threads.spawn(move || count(fd, [p, q], writer, WRITERS, ROUNDS)))
            .collect();
        threads.spawn(|| {
            while !is_over.load(SeqCst) {
                for at in [p, q + HUGE, q, p + HUGE] {
                    let _ = sc!(SYS_madvise, at, HUGE, MADV_COLLAPSE);
                }
                // The last page of each is nobody's.
                let punch = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
                for at in [HUGE - PAGE, 2 * HUGE - PAGE] {
                    sc!(SYS_fallocate, fd, punch, at, PAGE).is(0);
                }
            }
        });
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        is_over.store(true, SeqCst);
    });
}

/// Adds one to words of its own, and finds what it wrote before.
fn count(fd: i32, mapped: [usize; 2], writer: usize, writers: usize, rounds: usize) {
    let pages = 2 * HUGE / PAGE;
    let mut written = vec![None; pages];
    let mut state = writer as u64;
    for round in 0..rounds {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let page = (state >> 33) as usize % (pages / writers) * writers + writer;
        if page % (HUGE / PAGE) == HUGE / PAGE - 1 || page >= pages {
            continue;
        }
        let at = page * PAGE + 16;
        let old = match round % 3 {
            0 => read_word(fd, at),
            way => word(mapped[way - 1] + at).load(SeqCst),
        };
        assert_eq!(old, written[page].unwrap_or(0), "page {page}, round {round}");
        let new = (round as u64 + 1) << 8 | writer as u64;
        match round % 5 {
            0 | 3 => sc!(SYS_pwrite64, fd, new.to_ne_bytes().as_ptr(), 8, at).is(8),
            way => word(mapped[way % 2] + at).store(new, SeqCst),
        }
        written[page] = Some(new);
    }
    for (page, value) in written.into_iter().enumerate() {
        if let Some(value) = value {
            assert_eq!(read_word(fd, page * PAGE + 16), value, "page {page}, at the end");
        }
    }
}

/// A file system in memory of a test's own; where it is. None where there is no such option.
fn own_mount(options: &std::ffi::CStr) -> Option<String> {
    own_mounts();
    let dir = dir();
    let kind = c"tmpfs".as_ptr();
    let result = sc!(SYS_mount, kind, c(&dir).as_ptr(), kind, 0, options.as_ptr());
    if !std::path::Path::new(ENABLED).exists() && result == Err(EINVAL) {
        return None;
    }
    result.is(0);
    Some(dir)
}

fn unmount(dir: &str) {
    sc!(SYS_umount2, c(dir).as_ptr(), MNT_DETACH).is(0);
}

fn new_file(dir: &str, name: &str) -> i32 {
    open(&format!("{dir}/{name}"), O_RDWR | O_CREAT | O_EXCL).fd()
}

fn come_as_a_mount_says() {
    in_child(|| {
        let Some(dir) = own_mount(c"size=5m,huge=always") else { return };
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
        let line = mounts.lines().find(|line| line.contains(&dir)).unwrap();
        assert!(line.contains("huge=always"), "{line}");
        let one = new_file(&dir, "one");
        sc!(SYS_write, one, c"x".as_ptr(), 1).is(1);
        assert_eq!(blocks(one), (HUGE / 512) as i64);
        // A mapping of all of it gets one page.
        sc!(SYS_ftruncate, one, HUGE).is(0);
        let p = map(one, HUGE, RW, MAP_SHARED);
        word(p + HUGE / 2).store(1, SeqCst);
        assert_eq!(of_smaps(p, "ShmemPmdMapped"), HUGE / 1024);
        assert_eq!(word(p).load(SeqCst), u64::from(b'x'));
        // What lies behind the ends of small files is room for others.
        let [two, three, rest] = ["two", "three", "rest"].map(|name| new_file(&dir, name));
        sc!(SYS_write, two, c"y".as_ptr(), 1).is(1);
        sc!(SYS_write, three, c"z".as_ptr(), 1).is(1);
        let bytes = vec![7u8; (5 << 20) - HUGE - 2 * PAGE];
        sc!(SYS_write, rest, bytes.as_ptr(), bytes.len()).is(bytes.len());
        sc!(SYS_pwrite64, two, c"y".as_ptr(), 1, PAGE).fails(ENOSPC);
        assert_eq!([two, three].map(|file| read_byte(file, 0)), [b'y', b'z']);
        assert_eq!([rest, one].map(|file| read_byte(file, HUGE - 1)), [7, 0]);
        // Given back with what is cut off.
        sc!(SYS_ftruncate, rest, 0).is(0);
        let last = new_file(&dir, "last");
        sc!(SYS_write, last, c"x".as_ptr(), 1).is(1);
        assert_eq!(blocks(last), (HUGE / 512) as i64);
        unmount(&dir);
    });
    in_child(|| {
        let Some(dir) = own_mount(c"size=8m,huge=within_size") else { return };
        let file = new_file(&dir, "f");
        sc!(SYS_write, file, c"x".as_ptr(), 1).is(1);
        assert_eq!(blocks(file), (PAGE / 512) as i64);
        sc!(SYS_ftruncate, file, 3 * HUGE - PAGE).is(0);
        let p = map(file, 3 * HUGE, RW, MAP_SHARED);
        for at in [PAGE, HUGE, 2 * HUGE] {
            word(p + at).store(1, SeqCst);
        }
        // Something of the first was there, and the last reaches beyond the end.
        assert_eq!(blocks(file), ((HUGE + 3 * PAGE) / 512) as i64);
        assert_eq!(of_smaps(p, "ShmemPmdMapped"), HUGE / 1024);
        unmount(&dir);
    });
    in_child(|| {
        own_mounts();
        let (dir, kind) = (dir(), c"tmpfs".as_ptr());
        let top = c(&dir);
        sc!(SYS_mount, kind, top.as_ptr(), kind, 0, c"huge=often".as_ptr()).fails(EINVAL);
    });
}

/// Only where the machine is this test's own.
fn come_as_the_machine_says() {
    let Ok(before) = std::fs::read_to_string(SHMEM_ENABLED) else { return };
    let names: Vec<&str> =
        before.split_whitespace().map(|name| name.trim_matches(['[', ']'])).collect();
    assert_eq!(names, ["always", "within_size", "advise", "never", "deny", "force"]);
    if !has_the_machine() || sc!(SYS_geteuid) != Ok(0) {
        return;
    }
    let held = before.split_once('[').unwrap().1.split_once(']').unwrap().0.to_owned();
    let set = |name: &str| std::fs::write(SHMEM_ENABLED, format!("{name}\n"));
    let huge_of = |advise: bool| {
        let fd = memfd(HUGE);
        let p = map(fd, HUGE, RW, MAP_SHARED);
        if advise {
            sc!(SYS_madvise, p, HUGE, MADV_HUGEPAGE).is(0);
        }
        word(p + PAGE).store(1, SeqCst);
        assert_eq!(word(p + 2 * PAGE).load(SeqCst), 0);
        let mapped = of_smaps(p, "ShmemPmdMapped");
        assert_eq!(blocks(fd) as usize * 512, if mapped > 0 { HUGE } else { 2 * PAGE });
        sc!(SYS_munmap, p, HUGE).is(0);
        close(fd);
        mapped == HUGE / 1024
    };
    let rules = [
        ("always", [true, true]),
        ("within_size", [true, true]),
        ("advise", [false, true]),
        ("never", [false, false]),
        ("deny", [false, false]),
        ("force", [true, true]),
    ];
    for (name, [by_itself, advised]) in rules {
        set(name).unwrap();
        assert_eq!([huge_of(false), huge_of(true)], [by_itself, advised], "{name}");
        // Shared memory without a file is one, too.
        let anonymous = MAP_SHARED | MAP_ANONYMOUS;
        let p = mmap(0, 2 * HUGE, RW, anonymous, -1, 0).must().next_multiple_of(HUGE);
        word(p).store(1, SeqCst);
        let child = fork(|| {
            word(p + PAGE).store(word(p).load(SeqCst) + 1, SeqCst);
            0
        });
        wait_code(child, 0);
        assert_eq!(word(p + PAGE).load(SeqCst), 2);
    }
    assert_eq!(set("often").unwrap_err().raw_os_error(), Some(EINVAL));
    set(&held).unwrap();
    assert_eq!(std::fs::read_to_string(SHMEM_ENABLED).unwrap(), before);
}

/// What a mapping writes takes room as a call does, and gives it back.
fn room_counts_for_mappings() {
    in_child(|| {
        let dir = own_mount(c"size=64k").unwrap();
        let file = new_file(&dir, "f");
        let len = 32 * PAGE;
        sc!(SYS_ftruncate, file, len).is(0);
        let p = mmap(0, len, RW, MAP_SHARED, file, 0).must();
        let touch = |from: usize, to: usize| {
            (from..to).for_each(|page| word(p + page * PAGE).store(1, SeqCst));
        };
        touch(0, 16);
        let over = p + 16 * PAGE;
        assert_eq!(fault(|| touch(16, 17)), (SIGBUS, BUS_ADRERR, over));
        assert_eq!(fault(|| read(over)), (SIGBUS, BUS_ADRERR, over));
        sc!(SYS_pwrite64, file, c"x".as_ptr(), 1, 16 * PAGE).fails(ENOSPC);
        sc!(SYS_fallocate, file, 0, 0, len).fails(ENOSPC);
        assert_eq!(blocks(file), 16 * 8);
        sc!(SYS_pwrite64, file, c"y".as_ptr(), 1, 15 * PAGE).is(1);
        let punch = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
        sc!(SYS_fallocate, file, punch, 0, PAGE).is(0);
        touch(16, 17);
        sc!(SYS_munmap, p, len).is(0);
        close(file);
        sc!(SYS_unlink, c(&format!("{dir}/f")).as_ptr()).is(0);
        // All of it is there again: what fits is written.
        let file = new_file(&dir, "g");
        let bytes = vec![7u8; 17 * PAGE];
        sc!(SYS_write, file, bytes.as_ptr(), bytes.len()).is(16 * PAGE);
        sc!(SYS_write, file, bytes.as_ptr(), 1).fails(ENOSPC);
        unmount(&dir);
    });
}

fn rights_and_forks() {
    let fd = memfd(HUGE);
    fill(fd, 0, HUGE);
    let p = map(fd, HUGE, RW, MAP_SHARED);
    let is_huge = collapse(p, HUGE);
    sc!(SYS_mprotect, p, HUGE, PROT_READ).is(0);
    assert_eq!(fault(|| word(p + PAGE).store(1, SeqCst)).0, SIGSEGV);
    check(fd, p, 0, HUGE);
    sc!(SYS_mprotect, p, HUGE, RW).is(0);
    word(p + PAGE + 8).store(9, SeqCst);
    if is_huge {
        assert_eq!(of_smaps(p, "ShmemPmdMapped"), HUGE / 1024);
    }
    let child = fork(|| {
        assert_eq!(word(p + PAGE + 8).load(SeqCst), 9);
        word(p + 2 * PAGE + 8).store(10, SeqCst);
        sc!(SYS_mprotect, p + 5 * PAGE, PAGE, PROT_NONE).is(0);
        sc!(SYS_munmap, p + 7 * PAGE, PAGE).is(0);
        0
    });
    wait_code(child, 0);
    assert_eq!(word(p + 2 * PAGE + 8).load(SeqCst), 10);
    check(fd, p, 0, HUGE);
    // Moved as a whole, and to a place where it cannot be one page.
    let room = mmap(0, 3 * HUGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0).must();
    let odd = room.next_multiple_of(HUGE) + PAGE;
    sc!(SYS_mremap, p, HUGE, HUGE, MREMAP_MAYMOVE | MREMAP_FIXED, odd).is(odd);
    check(fd, odd, 0, HUGE);
    // System calls reach every part of it.
    let (from, to) = pipe();
    sc!(SYS_write, to, odd + HUGE - PAGE, 8).is(8);
    let mut bytes = [0u8; 8];
    sc!(SYS_read, from, bytes.as_mut_ptr(), 8).is(8);
    assert_eq!(u64::from_ne_bytes(bytes), mark(fd, HUGE - PAGE));
}

const KHUGEPAGED: &str = "/sys/kernel/mm/transparent_hugepage/khugepaged";

/// Settings of khugepaged, as they were once dropped.
struct Settings(Vec<(&'static str, String)>);

impl Settings {
    fn set(values: &[(&'static str, &str)]) -> Settings {
        let set = |&(name, value): &(&'static str, &str)| {
            let path = format!("{KHUGEPAGED}/{name}");
            let before = std::fs::read_to_string(&path).unwrap();
            std::fs::write(&path, value).unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap().trim_end(), value);
            (name, before)
        };
        Settings(values.iter().map(set).collect())
    }
}

impl Drop for Settings {
    fn drop(&mut self) {
        for (name, before) in &self.0 {
            std::fs::write(format!("{KHUGEPAGED}/{name}"), before).unwrap();
        }
    }
}

fn number(name: &str) -> u64 {
    let text = std::fs::read_to_string(format!("{KHUGEPAGED}/{name}")).unwrap();
    text.trim_end().parse().unwrap()
}

/// Waits until khugepaged has seen everything twice from now on: it may be in the midst now.
fn scanned() {
    let from = number("full_scans");
    let begun = std::time::Instant::now();
    while number("full_scans") < from + 2 {
        assert!(begun.elapsed().as_secs() < 60, "khugepaged does not get round");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

/// Only where the machine is this test's own.
fn made_in_the_background() {
    if !has_the_machine() || sc!(SYS_geteuid) != Ok(0) {
        return;
    }
    let enabled = std::fs::read_to_string(ENABLED).unwrap();
    if enabled.contains("[never]") {
        return;
    }
    let path = format!("{KHUGEPAGED}/max_ptes_none");
    for refused in ["512", "-1", "x"] {
        assert_eq!(std::fs::write(&path, refused).unwrap_err().raw_os_error(), Some(EINVAL));
    }
    let _settings = Settings::set(&[
        ("max_ptes_none", "256"),
        ("pages_to_scan", "100000"),
        ("alloc_sleep_millisecs", "10"),
        ("scan_sleep_millisecs", "10"),
    ]);
    // Small pages that nobody forbids to be one: half of each 2 MiB is there, or a page less.
    let made = number("pages_collapsed");
    let none = MAP_PRIVATE | MAP_ANONYMOUS;
    let p = mmap(0, 4 * HUGE, RW, none, -1, 0).must().next_multiple_of(HUGE);
    sc!(SYS_madvise, p, 3 * HUGE, MADV_NOHUGEPAGE).is(0);
    let [enough, little, refused] = [p, p + HUGE, p + 2 * HUGE];
    for (at, pages) in [(enough, 256), (little, 255), (refused, 512)] {
        (0..pages).for_each(|page| word(at + page * PAGE).store(page as u64 + 1, SeqCst));
    }
    assert_eq!(of_smaps(p, "AnonHugePages"), 0);
    sc!(SYS_madvise, p, 2 * HUGE, MADV_HUGEPAGE).is(0);
    scanned();
    assert_eq!(of_smaps(enough, "AnonHugePages"), HUGE / 1024);
    assert_eq!(of_smaps(enough, "Rss"), (HUGE + 255 * PAGE) / 1024);
    assert_eq!(of_smaps(refused, "AnonHugePages"), 0);
    assert!(number("pages_collapsed") > made);
    for (at, pages) in [(enough, 256), (little, 255), (refused, 512)] {
        let value = |page: usize| if page < pages { page as u64 + 1 } else { 0 };
        (0..512).for_each(|page| assert_eq!(word(at + page * PAGE).load(SeqCst), value(page)));
    }
    // A thread that writes all the while sees each of its writes.
    let stop = AtomicU64::new(0);
    sc!(SYS_munmap, p, 3 * HUGE).is(0);
    let racing = mmap(0, 2 * HUGE, RW, none, -1, 0).must().next_multiple_of(HUGE);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            for round in 1u64.. {
                if stop.load(SeqCst) != 0 {
                    return;
                }
                sc!(SYS_madvise, racing + 7 * PAGE, PAGE, MADV_DONTNEED).is(0);
                for page in 0..512 {
                    word(racing + page * PAGE).store(round, SeqCst);
                }
                for page in 0..512 {
                    assert_eq!(word(racing + page * PAGE).load(SeqCst), round, "page {page}");
                }
            }
        });
        (0..8).for_each(|_| scanned());
        stop.store(1, SeqCst);
    });
}
