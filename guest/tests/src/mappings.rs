//! What may be mapped, and what mappings become: flags, hints, rights, advice, locked memory.
//!
//! Each test states rules that programs or their test suites rely on, with the errors. Manual
//! pages: mmap(2), mprotect(2), mremap(2), madvise(2), mlock(2), personality(2), proc(5).
//! Neighbour: `memory.rs`, about contents and faults.

use crate::exec::{elf_with, output_of, result};
use crate::memory::number_of;
use crate::sys::*;
use crate::{sc, tests};

tests!("mappings":
    hint_below_2_gib, hint_below_the_lowest_address, wrong_types, unknown_flags,
    huge_pages_not_set_aside, droppable_memory, mprotect_order_of_checks, mprotect_of_stacks,
    mprotect_keeps_to_how_a_file_was_opened, nothing_executable_on_noexec, write_only_is_told,
    mremap_shrinks_over_areas, mremap_refuses_to_grow_over_areas, mremap_keeps_an_empty_area,
    locked_memory_is_limited, locking_needs_a_limit, locked_future, locking_holes,
    locked_memory_is_not_inherited, wipe_on_fork, advice_over_holes, free_is_for_anonymous_memory,
    merging_is_there_or_refused, populate_read_and_write, remove_needs_a_shared_file,
    advice_is_told, segments_are_aligned, areas_without_randomness, areas_never_overlap,
    sizes_tell_what_is_resident, smaps_divides_pages, pagemap_tells_pages, map_files_lead_to_files,
    moved_tables_keep_their_pages, advice_for_another_process,
);

const RW: i32 = PROT_READ | PROT_WRITE;
const PA: i32 = MAP_PRIVATE | MAP_ANONYMOUS;
const SA: i32 = MAP_SHARED | MAP_ANONYMOUS;
const PAGE: usize = 4096;
const MADV_POPULATE_READ: i32 = 22;
const MADV_POPULATE_WRITE: i32 = 23;
const MLOCK_ONFAULT: i32 = 1;
const MCL_ONFAULT: i32 = 4;

pub fn put(at: usize, value: u8) {
    // SAFETY: tests pass addresses of their own mappings, or want the fault.
    unsafe { (at as *mut u8).write_volatile(value) }
}

pub fn get(at: usize) -> u8 {
    // SAFETY: as in `put`: the mapping is the test's own.
    unsafe { (at as *const u8).read_volatile() }
}

#[track_caller]
fn pages(count: usize) -> usize {
    mmap(0, count * PAGE, RW, PA, -1, 0).must()
}

/// The lines of smaps for the area that contains `address`, from its header on.
fn smaps_of(address: usize) -> Vec<String> {
    let text = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut found = Vec::new();
    let mut inside = false;
    for line in text.lines() {
        if let Some((range, _)) = line.split_once(' ')
            && let Some((start, end)) = range.split_once('-')
            && let (Ok(start), Ok(end)) =
                (usize::from_str_radix(start, 16), usize::from_str_radix(end, 16))
        {
            inside = (start..end).contains(&address);
        }
        if inside {
            found.push(line.to_string());
        }
    }
    assert!(!found.is_empty(), "no area at {address:#x}");
    found
}

fn has_flag(address: usize, flag: &str) -> bool {
    let lines = smaps_of(address);
    let flags = lines.iter().find(|line| line.starts_with("VmFlags:")).unwrap();
    flags.split_whitespace().any(|word| word == flag)
}

/// A file of `count` pages, open for reading and writing.
fn file_of(count: usize) -> i32 {
    let fd = open(&format!("{}/f", dir()), O_RDWR | O_CREAT).fd();
    sc!(SYS_ftruncate, fd, count * PAGE).is(0);
    fd
}

fn hint_below_2_gib() {
    const HINT: usize = 0x5000_0000;
    mmap(HINT, PAGE, RW, PA | MAP_32BIT, -1, 0).is(HINT);
    let other = mmap(HINT, PAGE, RW, PA | MAP_32BIT, -1, 0).must();
    assert_ne!(other, HINT);
    for hint in [0, 1 << 31, (1 << 31) - PAGE, 1 << 40] {
        let len = 2 * PAGE;
        let p = mmap(hint, len, RW, PA | MAP_32BIT, -1, 0).must();
        assert!(p >= 1 << 30 && p + len <= 1 << 31, "{p:#x} for the hint {hint:#x}");
    }
    mmap(0, 2 << 30, RW, PA | MAP_32BIT | MAP_NORESERVE, -1, 0).fails(ENOMEM);
}

fn hint_below_the_lowest_address() {
    let lowest = std::fs::read_to_string("/proc/sys/vm/mmap_min_addr");
    let lowest = lowest.map_or(65536, |text| text.trim().parse().unwrap());
    let p = mmap(1, PAGE, RW, PA, -1, 0).must();
    assert!(p >= lowest && p.is_multiple_of(PAGE), "{p:#x}");
}

fn wrong_types() {
    // The descriptor comes before the type, the offset before both.
    mmap(0, PAGE, RW, 0, -1, 0).fails(EBADF);
    mmap(0, 0, RW, MAP_PRIVATE, -1, 0).fails(EBADF);
    mmap(0, PAGE, RW, MAP_PRIVATE, -1, 1).fails(EINVAL);
    let fd = file_of(1);
    mmap(0, PAGE, RW, 0, fd, 0).fails(EINVAL);
    mmap(0, PAGE, RW, MAP_PRIVATE | MAP_GROWSDOWN, fd, 0).fails(EINVAL);
    mmap(0, PAGE, RW, SA | MAP_GROWSDOWN, -1, 0).fails(EINVAL);
    mmap(0, PAGE, RW, MAP_SHARED_VALIDATE | MAP_ANONYMOUS, -1, 0).fails(EINVAL);
    // Rights that mean nothing are no mistake here, other than for mprotect(2).
    let p = mmap(0, PAGE, RW | 0x1000, PA, -1, 0).must();
    sc!(SYS_mprotect, p, PAGE, RW | 0x1000).fails(EINVAL);
}

fn unknown_flags() {
    const UNKNOWN: i32 = 0x0020_0000;
    let fd = file_of(1);
    for flags in [UNKNOWN, MAP_SYNC] {
        mmap(0, PAGE, RW, MAP_SHARED_VALIDATE | flags, fd, 0).fails(EOPNOTSUPP);
    }
    // The older types take what nobody knows.
    mmap(0, PAGE, RW, MAP_SHARED | UNKNOWN, fd, 0).must();
    mmap(0, PAGE, RW, MAP_PRIVATE | UNKNOWN, fd, 0).must();
    mmap(0, PAGE, RW, MAP_SHARED_VALIDATE | MAP_POPULATE | MAP_NORESERVE, fd, 0).must();
}

fn huge_pages_not_set_aside() {
    let fd = file_of(512);
    mmap(0, 2 << 20, RW, MAP_PRIVATE | MAP_HUGETLB, fd, 0).fails(EINVAL);
    // 2^17 bytes is no size of huge pages.
    mmap(0, 2 << 20, RW, PA | MAP_HUGETLB | 17 << 26, -1, 0).fails(EINVAL);
    let pool = std::fs::read_to_string("/proc/sys/vm/nr_hugepages");
    let pool = pool.ok().and_then(|text| text.trim().parse().ok());
    if pool.unwrap_or_else(|| number_of("/proc/meminfo", "HugePages_Total")) == 0 {
        mmap(0, 2 << 20, RW, PA | MAP_HUGETLB, -1, 0).fails(ENOMEM);
    }
}

fn droppable_memory() {
    const MAP_DROPPABLE: i32 = 8;
    let p = match mmap(0, PAGE, RW, MAP_DROPPABLE | MAP_ANONYMOUS, -1, 0) {
        // A Linux before 6.11.
        Err(EINVAL) => return,
        p => p.must(),
    };
    put(p, 1);
    in_child(|| assert_eq!(get(p), 0));
    sc!(SYS_madvise, p, PAGE, MADV_KEEPONFORK).fails(EINVAL);
    sc!(SYS_madvise, p, PAGE, MADV_DODUMP).fails(EINVAL);
    mmap(0, PAGE, RW, MAP_DROPPABLE | MAP_ANONYMOUS | MAP_LOCKED, -1, 0).fails(EINVAL);
    mmap(0, PAGE, RW, MAP_DROPPABLE | MAP_ANONYMOUS | MAP_GROWSDOWN, -1, 0).fails(EINVAL);
}

fn mprotect_order_of_checks() {
    let p = pages(3);
    sc!(SYS_mprotect, p, 0, 0x1000).is(0);
    sc!(SYS_mprotect, p + 1, 0, RW).fails(EINVAL);
    sc!(SYS_mprotect, p, usize::MAX, 0x1000).fails(ENOMEM);
    sc!(SYS_mprotect, p, PAGE, RW | PROT_GROWSDOWN | PROT_GROWSUP).fails(EINVAL);
    sc!(SYS_mprotect, p, PAGE, RW | PROT_GROWSDOWN).fails(EINVAL);
    sc!(SYS_mprotect, p, PAGE, RW | PROT_GROWSUP).fails(EINVAL);
    unmap((p + PAGE) as *mut u8, PAGE);
    sc!(SYS_mprotect, p, 3 * PAGE, PROT_READ).fails(ENOMEM);
    assert!(has_flag(p, "rd") && !has_flag(p, "wr"), "what lies before a hole is changed");
    assert!(has_flag(p + 2 * PAGE, "wr"), "what lies behind is not");
}

fn mprotect_of_stacks() {
    let base = pages(1024);
    unmap(base as *mut u8, 1024 * PAGE);
    let start = base + 900 * PAGE;
    mmap(start, 4 * PAGE, RW, PA | MAP_FIXED | MAP_GROWSDOWN, -1, 0).is(start);
    // From the middle, down to where the stack begins.
    sc!(SYS_mprotect, start + 2 * PAGE, PAGE, PROT_READ | PROT_GROWSDOWN).is(0);
    assert!(!has_flag(start, "wr") && !has_flag(start + 2 * PAGE, "wr"));
    assert!(has_flag(start + 3 * PAGE, "wr"));
}

/// Whatever shares a file that was opened for reading only never becomes writable.
fn mprotect_keeps_to_how_a_file_was_opened() {
    let path = format!("{}/f", dir());
    let fd = open(&path, O_RDWR | O_CREAT).fd();
    sc!(SYS_ftruncate, fd, 2 * PAGE).is(0);
    let read_only = open(&path, O_RDONLY).fd();
    let zero = open("/dev/zero", O_RDONLY).fd();
    for fd in [read_only, zero] {
        mmap(0, PAGE, RW, MAP_SHARED, fd, 0).fails(EACCES);
        let p = mmap(0, 2 * PAGE, PROT_READ, MAP_SHARED, fd, 0).must();
        sc!(SYS_mprotect, p, PAGE, RW).fails(EACCES);
        sc!(SYS_mprotect, p, PAGE, PROT_WRITE).fails(EACCES);
        sc!(SYS_mprotect, p, PAGE, PROT_READ | PROT_EXEC).is(0);
        assert!(!has_flag(p, "mw"));
        // Not by moving either.
        let q = sc!(SYS_mremap, p, PAGE, 2 * PAGE, MREMAP_MAYMOVE).must();
        sc!(SYS_mprotect, q, PAGE, RW).fails(EACCES);
        let p = mmap(0, PAGE, PROT_READ, MAP_PRIVATE, fd, 0).must();
        sc!(SYS_mprotect, p, PAGE, RW).is(0);
        put(p, 1);
    }
    // A sealed file likewise, however it was opened.
    let name = c("sealed");
    let sealed = sc!(SYS_memfd_create, name.as_ptr(), MFD_ALLOW_SEALING).fd();
    sc!(SYS_ftruncate, sealed, PAGE).is(0);
    sc!(SYS_fcntl, sealed, F_ADD_SEALS, F_SEAL_FUTURE_WRITE).is(0);
    mmap(0, PAGE, RW, MAP_SHARED, sealed, 0).fails(EPERM);
    let p = mmap(0, PAGE, PROT_READ, MAP_SHARED, sealed, 0).must();
    sc!(SYS_mprotect, p, PAGE, RW).fails(EACCES);
}

fn nothing_executable_on_noexec() {
    const RX: i32 = PROT_READ | PROT_EXEC;
    // A file of a mount with MS_NOEXEC that can be mapped, if there is one.
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    for line in mounts.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let is_noexec = words[3].split(',').any(|option| option == "noexec");
        if words[2] != "tmpfs" || !is_noexec {
            continue;
        }
        let path = format!("{}/limen-noexec-{}", words[1], pid());
        let Ok(fd) = open(&path, O_RDWR | O_CREAT | O_EXCL) else { continue };
        let fd = fd as i32;
        sc!(SYS_unlink, c(&path).as_ptr()).is(0);
        write(fd, b"x");
        mmap(0, PAGE, RX, MAP_PRIVATE, fd, 0).fails(EPERM);
        mmap(0, PAGE, RX, MAP_SHARED, fd, 0).fails(EPERM);
        let p = mmap(0, PAGE, PROT_READ, MAP_PRIVATE, fd, 0).must();
        sc!(SYS_mprotect, p, PAGE, RX).fails(EACCES);
        assert!(!has_flag(p, "me"));
    }
}

fn write_only_is_told() {
    let p = mmap(0, PAGE, PROT_WRITE, PA, -1, 0).must();
    put(p, 7);
    assert_eq!(get(p), 7, "the CPU cannot forbid it");
    assert!(smaps_of(p)[0].contains(" -w-p "), "{:?}", smaps_of(p)[0]);
    assert!(!has_flag(p, "rd") && has_flag(p, "wr"));
    let q = mmap(0, PAGE, PROT_EXEC, PA, -1, 0).must();
    assert!(smaps_of(q)[0].contains(" --xp "), "{:?}", smaps_of(q)[0]);
    // Another process is not let.
    let child = fork(|| {
        loop {
            let _ = sc!(SYS_pause);
        }
    });
    let mut byte = 0u8;
    let (local, remote) = ([&raw mut byte as usize, 1], [p, 1]);
    let vectors = (local.as_ptr(), remote.as_ptr());
    sc!(SYS_process_vm_readv, child, vectors.0, 1, vectors.1, 1, 0).fails(EFAULT);
    sc!(SYS_process_vm_writev, child, vectors.0, 1, vectors.1, 1, 0).is(1);
    sc!(SYS_kill, child, SIGKILL).is(0);
    wait_signal(child, SIGKILL);
}

fn mremap_shrinks_over_areas() {
    let p = pages(8);
    (0..8).for_each(|n| put(p + n * PAGE, n as u8 + 1));
    sc!(SYS_mprotect, p + 3 * PAGE, PAGE, PROT_READ).is(0);
    unmap((p + 5 * PAGE) as *mut u8, PAGE);
    sc!(SYS_mremap, p, 8 * PAGE, 2 * PAGE, 0).is(p);
    assert_eq!((get(p), get(p + PAGE)), (1, 2));
    // All behind is gone: it can be mapped without replacing anything.
    let flags = PA | MAP_FIXED_NOREPLACE;
    mmap(p + 2 * PAGE, 6 * PAGE, RW, flags, -1, 0).is(p + 2 * PAGE);
}

fn mremap_refuses_to_grow_over_areas() {
    let p = pages(4);
    sc!(SYS_mprotect, p + PAGE, PAGE, PROT_READ).is(0);
    sc!(SYS_mremap, p, 3 * PAGE, 5 * PAGE, MREMAP_MAYMOVE).fails(EFAULT);
    sc!(SYS_mremap, p, 3 * PAGE, 3 * PAGE, MREMAP_MAYMOVE).is(p);
    sc!(SYS_mremap, p, PAGE, 2 * PAGE, 0).fails(ENOMEM);
    sc!(SYS_mremap, p, 0, PAGE, MREMAP_MAYMOVE).fails(EINVAL);
    sc!(SYS_mremap, p, PAGE, 0, 0).fails(EINVAL);
}

fn mremap_keeps_an_empty_area() {
    const MREMAP_DONTUNMAP: i32 = 4;
    let p = pages(2);
    put(p, 5);
    let flags = MREMAP_MAYMOVE | MREMAP_DONTUNMAP;
    sc!(SYS_mremap, p, 2 * PAGE, PAGE, flags).fails(EINVAL);
    sc!(SYS_mremap, p, 2 * PAGE, 2 * PAGE, MREMAP_DONTUNMAP).fails(EINVAL);
    let q = sc!(SYS_mremap, p, 2 * PAGE, 2 * PAGE, flags).must();
    assert_ne!(p, q);
    assert_eq!((get(p), get(q)), (0, 5));
}

/// Runs `f` in a child without privileges that may lock this many pages.
#[track_caller]
fn with_lock_limit(limit: usize, f: impl FnOnce()) {
    in_child(|| {
        let limit = rlimit { rlim_cur: (limit * PAGE) as u64, rlim_max: (limit * PAGE) as u64 };
        sc!(SYS_setrlimit, RLIMIT_MEMLOCK, &raw const limit).is(0);
        if sc!(SYS_geteuid) == Ok(0) {
            sc!(SYS_setresuid, 65534, 65534, 65534).is(0);
        }
        f();
    });
}

fn locked_memory_is_limited() {
    with_lock_limit(8, || {
        let p = pages(16);
        sc!(SYS_mlock, p, 9 * PAGE).fails(ENOMEM);
        sc!(SYS_mlock, p, 8 * PAGE).is(0);
        // What is locked already does not count twice.
        sc!(SYS_mlock, p + PAGE, 7 * PAGE).is(0);
        sc!(SYS_mlock, p + PAGE, 8 * PAGE).fails(ENOMEM);
        mmap(0, PAGE, RW, PA | MAP_LOCKED, -1, 0).fails(EAGAIN);
        sc!(SYS_mlockall, MCL_CURRENT).fails(ENOMEM);
        sc!(SYS_munlock, p, PAGE).is(0);
        mmap(0, PAGE, RW, PA | MAP_LOCKED, -1, 0).must();
        assert_eq!(number_of("/proc/self/status", "VmLck"), 32);
        // The area cannot grow, in place or elsewhere.
        sc!(SYS_mremap, p + 7 * PAGE, PAGE, 3 * PAGE, MREMAP_MAYMOVE).fails(EAGAIN);
        sc!(SYS_madvise, p + PAGE, PAGE, MADV_DONTNEED).fails(EINVAL);
        sc!(SYS_madvise, p + PAGE, PAGE, MADV_FREE).fails(EINVAL);
        sc!(SYS_munlockall).is(0);
        assert_eq!(number_of("/proc/self/status", "VmLck"), 0);
    });
}

fn locking_needs_a_limit() {
    with_lock_limit(0, || {
        let p = pages(1);
        sc!(SYS_mlock, p, PAGE).fails(EPERM);
        sc!(SYS_mlock2, p, PAGE, MLOCK_ONFAULT).fails(EPERM);
        sc!(SYS_mlockall, MCL_FUTURE).fails(EPERM);
        mmap(0, PAGE, RW, PA | MAP_LOCKED, -1, 0).fails(EPERM);
        sc!(SYS_munlock, p, PAGE).is(0);
        sc!(SYS_munlockall).is(0);
    });
    sc!(SYS_mlockall, 0).fails(EINVAL);
    sc!(SYS_mlockall, MCL_ONFAULT).fails(EINVAL);
    sc!(SYS_mlockall, 8).fails(EINVAL);
}

fn locked_future() {
    with_lock_limit(64, || {
        sc!(SYS_mlockall, MCL_FUTURE).is(0);
        let p = pages(2);
        let mut resident = [0u8; 2];
        sc!(SYS_mincore, p, 2 * PAGE, resident.as_mut_ptr()).is(0);
        assert_eq!(resident.map(|byte| byte & 1), [1, 1]);
        assert!(has_flag(p, "lo"));
        mmap(0, 65 * PAGE, RW, PA, -1, 0).fails(EAGAIN);
        sc!(SYS_mlockall, MCL_FUTURE | MCL_ONFAULT).is(0);
        let q = pages(2);
        assert!(has_flag(q, "lf"));
        sc!(SYS_munlockall).is(0);
        pages(65);
    });
}

fn locking_holes() {
    let p = pages(4);
    unmap((p + 2 * PAGE) as *mut u8, PAGE);
    sc!(SYS_mlock, p, 4 * PAGE).fails(ENOMEM);
    assert!(has_flag(p, "lo") && !has_flag(p + 3 * PAGE, "lo"));
    sc!(SYS_munlock, p, 4 * PAGE).fails(ENOMEM);
    assert!(!has_flag(p, "lo"));
    // What cannot be brought in is locked all the same.
    let none = mmap(0, PAGE, PROT_NONE, PA, -1, 0).must();
    sc!(SYS_mlock, none, PAGE).fails(ENOMEM);
    assert!(has_flag(none, "lo"));
    sc!(SYS_mlock, p, 0).is(0);
    sc!(SYS_mlock, p + 5, 1).is(0);
    assert!(has_flag(p, "lo"));
}

fn locked_memory_is_not_inherited() {
    let p = pages(2);
    sc!(SYS_mlock, p, 2 * PAGE).is(0);
    sc!(SYS_mlock2, p, PAGE, MLOCK_ONFAULT).is(0);
    assert!(has_flag(p, "lf") && !has_flag(p + PAGE, "lf"));
    in_child(|| {
        assert_eq!(number_of("/proc/self/status", "VmLck"), 0);
        assert!(!has_flag(p, "lo") && !has_flag(p, "lf"));
    });
}

fn wipe_on_fork() {
    let p = pages(2);
    put(p, 1);
    put(p + PAGE, 2);
    sc!(SYS_madvise, p, PAGE, MADV_WIPEONFORK).is(0);
    in_child(|| {
        assert_eq!((get(p), get(p + PAGE)), (0, 2));
        put(p, 3);
        // It is inherited.
        in_child(|| assert_eq!(get(p), 0));
    });
    assert_eq!(get(p), 1);
    sc!(SYS_madvise, p, PAGE, MADV_KEEPONFORK).is(0);
    in_child(|| assert_eq!(get(p), 1));
    let shared = mmap(0, PAGE, RW, SA, -1, 0).must();
    let file = mmap(0, PAGE, RW, MAP_PRIVATE, file_of(1), 0).must();
    for p in [shared, file] {
        sc!(SYS_madvise, p, PAGE, MADV_WIPEONFORK).fails(EINVAL);
        sc!(SYS_madvise, p, PAGE, MADV_KEEPONFORK).is(0);
    }
}

/// Advice is taken for what there is, and the hole is told afterwards.
fn advice_over_holes() {
    let p = pages(3);
    put(p, 1);
    put(p + 2 * PAGE, 3);
    unmap((p + PAGE) as *mut u8, PAGE);
    sc!(SYS_madvise, p, 3 * PAGE, MADV_DONTNEED).fails(ENOMEM);
    assert_eq!((get(p), get(p + 2 * PAGE)), (0, 0));
    sc!(SYS_madvise, p, 3 * PAGE, MADV_DONTFORK).fails(ENOMEM);
    assert!(has_flag(p, "dc") && has_flag(p + 2 * PAGE, "dc"));
    sc!(SYS_madvise, p, usize::MAX - PAGE, MADV_NORMAL).fails(EINVAL);
    sc!(SYS_madvise, p + PAGE, PAGE, MADV_NORMAL).fails(ENOMEM);
    sc!(SYS_madvise, p + PAGE, 0, MADV_NORMAL).is(0);
    sc!(SYS_madvise, p, 0, 9999).fails(EINVAL);
}

fn advice_for_another_process() {
    if sc!(SYS_geteuid) != Ok(0) {
        return;
    }
    let p = pages(4);
    put(p, 1);
    unmap((p + 2 * PAGE) as *mut u8, PAGE);
    let (read, write) = pipe();
    let child = fork(|| {
        close(write);
        let mut byte = 0u8;
        let _ = sc!(SYS_read, read, &raw mut byte, 1);
        i32::from(get(p) != 1)
    });
    close(read);
    let fd = sc!(SYS_pidfd_open, child, 0).fd();
    let advise = |parts: &[[usize; 2]], advice: i32| {
        sc!(SYS_process_madvise, fd, parts.as_ptr(), parts.len(), advice, 0)
    };
    let (page, hole, two) = ([p, PAGE], [p + 2 * PAGE, PAGE], [p, 2 * PAGE]);
    for advice in [MADV_COLD, MADV_PAGEOUT, MADV_WILLNEED] {
        advise(&[page], advice).is(PAGE);
        advise(&[two, page], advice).is(3 * PAGE);
        // What was done before an error counts.
        advise(&[page, hole, page], advice).is(PAGE);
        advise(&[hole, page], advice).fails(ENOMEM);
        advise(&[[p + 1, PAGE]], advice).fails(EINVAL);
        advise(&[[p, 0]], advice).is(0);
        advise(&[], advice).is(0);
    }
    // Nothing by which another process would lose contents.
    for advice in [MADV_DONTNEED, MADV_FREE, MADV_REMOVE, MADV_DONTFORK, 9999] {
        advise(&[page], advice).fails(EINVAL);
    }
    let one = [page];
    let with = |fd: i32, at: usize, count: usize, flags: u32| {
        sc!(SYS_process_madvise, fd, at, count, MADV_COLD, flags)
    };
    let at = one.as_ptr() as usize;
    with(fd, at, 1, 1).fails(EINVAL);
    with(fd, at, 1025, 0).fails(EINVAL);
    with(fd, 16, 1, 0).fails(EFAULT);
    with(-1, at, 1, 0).fails(EBADF);
    with(write, at, 1, 0).fails(EBADF);
    close(write);
    // Its memory is gone when it is a zombie.
    let mut info = [0u8; 128];
    sc!(SYS_waitid, P_PID, child, info.as_mut_ptr(), WEXITED | WNOWAIT, 0).is(0);
    with(fd, at, 1, 0).fails(ESRCH);
    assert_eq!(wait(child), 0, "the child's page has lost what it held");
}

fn free_is_for_anonymous_memory() {
    let shared = mmap(0, PAGE, RW, SA, -1, 0).must();
    let file = mmap(0, PAGE, RW, MAP_PRIVATE, file_of(1), 0).must();
    put(file, 1);
    for p in [shared, file] {
        sc!(SYS_madvise, p, PAGE, MADV_FREE).fails(EINVAL);
    }
    assert_eq!(get(file), 1);
}

fn merging_is_there_or_refused() {
    let p = pages(1);
    let is_there = std::path::Path::new("/sys/kernel/mm/ksm").exists();
    for advice in [MADV_MERGEABLE, MADV_UNMERGEABLE] {
        let answer = sc!(SYS_madvise, p, PAGE, advice);
        if is_there { answer.is(0) } else { answer.fails(EINVAL) }
    }
}

fn populate_read_and_write() {
    let p = pages(3);
    let resident = |p: usize| {
        let mut byte = [0u8];
        sc!(SYS_mincore, p, PAGE, byte.as_mut_ptr()).is(0);
        byte[0] & 1 == 1
    };
    assert!(!resident(p));
    sc!(SYS_madvise, p, PAGE, MADV_POPULATE_READ).is(0);
    sc!(SYS_madvise, p + PAGE, PAGE, MADV_POPULATE_WRITE).is(0);
    assert!(resident(p) && resident(p + PAGE));
    sc!(SYS_mprotect, p, PAGE, PROT_READ).is(0);
    sc!(SYS_madvise, p, PAGE, MADV_POPULATE_WRITE).fails(EINVAL);
    sc!(SYS_madvise, p, PAGE, MADV_POPULATE_READ).is(0);
    sc!(SYS_mprotect, p, PAGE, PROT_NONE).is(0);
    sc!(SYS_madvise, p, PAGE, MADV_POPULATE_READ).fails(EINVAL);
    unmap((p + 2 * PAGE) as *mut u8, PAGE);
    sc!(SYS_madvise, p + PAGE, 2 * PAGE, MADV_POPULATE_WRITE).fails(ENOMEM);
    // Behind the end of a file there is nothing to bring in.
    let fd = file_of(1);
    let file = mmap(0, 2 * PAGE, RW, MAP_SHARED, fd, 0).must();
    sc!(SYS_madvise, file, PAGE, MADV_POPULATE_WRITE).is(0);
    sc!(SYS_madvise, file, 2 * PAGE, MADV_POPULATE_READ).fails(EFAULT);
}

fn remove_needs_a_shared_file() {
    let anonymous = pages(1);
    let path = format!("{}/f", dir());
    let fd = open(&path, O_RDWR | O_CREAT).fd();
    sc!(SYS_ftruncate, fd, 2 * PAGE).is(0);
    let private = mmap(0, PAGE, RW, MAP_PRIVATE, fd, 0).must();
    let read_only = open(&path, O_RDONLY).fd();
    let read_only = mmap(0, PAGE, PROT_READ, MAP_SHARED, read_only, 0).must();
    // What counts is whether it may become writable.
    let readable = mmap(0, PAGE, PROT_READ, MAP_SHARED, fd, 0).must();
    sc!(SYS_madvise, readable, PAGE, MADV_REMOVE).is(0);
    let shared = mmap(0, 2 * PAGE, RW, SA, -1, 0).must();
    sc!(SYS_madvise, anonymous, PAGE, MADV_REMOVE).fails(EINVAL);
    sc!(SYS_madvise, private, PAGE, MADV_REMOVE).fails(EACCES);
    sc!(SYS_madvise, read_only, PAGE, MADV_REMOVE).fails(EACCES);
    put(shared, 1);
    put(shared + PAGE, 2);
    sc!(SYS_madvise, shared, PAGE, MADV_REMOVE).is(0);
    assert_eq!((get(shared), get(shared + PAGE)), (0, 2));
}

/// smaps tells what was advised.
fn advice_is_told() {
    let p = pages(1);
    for (on, off, flag) in [
        (MADV_SEQUENTIAL, MADV_NORMAL, "sr"),
        (MADV_RANDOM, MADV_NORMAL, "rr"),
        (MADV_DONTFORK, MADV_DOFORK, "dc"),
        (MADV_WIPEONFORK, MADV_KEEPONFORK, "wf"),
        (MADV_DONTDUMP, MADV_DODUMP, "dd"),
        (MADV_MERGEABLE, MADV_UNMERGEABLE, "mg"),
        (MADV_HUGEPAGE, MADV_NOHUGEPAGE, "hg"),
    ] {
        assert!(!has_flag(p, flag), "{flag} from the start");
        sc!(SYS_madvise, p, PAGE, on).is(0);
        assert!(has_flag(p, flag), "no {flag}");
        sc!(SYS_madvise, p, PAGE, off).is(0);
        assert!(!has_flag(p, flag), "{flag} stays");
    }
    assert!(has_flag(p, "nh"));
}

/// A position-independent program whose segment asks for 2 MiB is loaded at a multiple of it.
fn segments_are_aligned() {
    // lea rdi, [rip - 127]: the start of the file; its bits 12 to 20 are the exit status.
    let code = [
        0x48, 0x8d, 0x3d, 0x81, 0xff, 0xff, 0xff, 0xc1, 0xef, 12, 0x81, 0xe7, 0xff, 0x01, 0, 0,
        // or edi, edi; setne dil; movzx edi, dil; exit(edi)
        0x09, 0xff, 0x40, 0x0f, 0x95, 0xc7, 0x40, 0x0f, 0xb6, 0xff, 0xb8, 60, 0, 0, 0, 0x0f, 0x05,
    ];
    let mut elf = elf_with(&code);
    elf[16..18].copy_from_slice(&3u16.to_le_bytes());
    elf[24..32].copy_from_slice(&120u64.to_le_bytes());
    elf[80..96].fill(0);
    elf[112..120].copy_from_slice(&(2u64 << 20).to_le_bytes());
    for _ in 0..8 {
        assert_eq!(result(&elf), 0);
    }
}

/// With ADDR_NO_RANDOMIZE every start has its areas at the same places.
fn areas_without_randomness() {
    const ADDR_NO_RANDOMIZE: usize = 0x004_0000;
    let maps = || {
        let text = String::from_utf8(output_of(&["child", "maps"], &[])).unwrap();
        // Not how far the heap has grown by then.
        let areas = text.lines().filter(|line| !line.contains("[heap]"));
        areas.map(|line| line.split(' ').next().unwrap().to_string()).collect::<Vec<_>>()
    };
    assert_ne!(maps(), maps());
    let old = sc!(SYS_personality, u32::MAX).must();
    sc!(SYS_personality, old | ADDR_NO_RANDOMIZE).is(old);
    let first = maps();
    assert_eq!(first, maps());
    // The stack ends where user space does.
    assert!(first.iter().any(|area| area.ends_with("-7ffffffff000")), "{first:?}");
    sc!(SYS_personality, old).is(old | ADDR_NO_RANDOMIZE);
    assert_ne!(maps(), maps());
}

/// Thousands of areas come and go at random places and sizes; none is given out twice.
fn areas_never_overlap() {
    let mut areas: Vec<(usize, usize)> = Vec::new();
    let mut seed = 0x1234_5678_9abc_def0u64;
    let mut random = |below: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) as usize % below
    };
    for round in 0..4000 {
        if areas.len() > 200 || round % 3 == 2 && !areas.is_empty() {
            let (at, len) = areas.swap_remove(random(areas.len()));
            unmap(at as *mut u8, len);
            continue;
        }
        let most = 1 << random(8);
        let len = (1 + random(most)) * PAGE;
        // Different rights keep neighbours apart.
        let prot = if round % 2 == 0 { RW } else { PROT_READ };
        let at = mmap(0, len, prot, PA, -1, 0).must();
        let other = areas.iter().find(|(start, size)| at < start + size && *start < at + len);
        assert_eq!(other, None, "{at:#x} and {len:#x} bytes");
        areas.push((at, len));
    }
}

fn status(name: &str) -> usize {
    number_of("/proc/self/status", name)
}

/// The lines RssAnon, RssFile and RssShmem, and the peak.
fn sizes_tell_what_is_resident() {
    const MIB: usize = 1 << 20;
    const PAGES: usize = 4 * MIB / PAGE;
    const KB: usize = 4 * MIB / 1024;
    // Small counts may wait in a CPU's hands on Linux.
    let near = |value: usize, expected: usize| value.abs_diff(expected) < 512;
    let base = ["RssAnon", "RssShmem"].map(status);
    let private = pages(PAGES);
    let shared = mmap(0, PAGES * PAGE, RW, SA, -1, 0).must();
    for p in [private, shared] {
        (0..PAGES).for_each(|n| put(p + n * PAGE, 1));
    }
    let now = ["RssAnon", "RssShmem"].map(status);
    assert!(near(now[0], base[0] + KB) && near(now[1], base[1] + KB), "{base:?}, then {now:?}");
    let peak = status("VmHWM");
    assert!(peak + 512 >= status("VmRSS"));
    for p in [private, shared] {
        unmap(p as *mut u8, PAGES * PAGE);
    }
    let now = ["RssAnon", "RssShmem"].map(status);
    assert!(near(now[0], base[0]) && near(now[1], base[1]), "{base:?}, in the end {now:?}");
    assert!(status("VmHWM") + 512 >= peak, "the peak stays");
    // The page of zeros is nobody's.
    let before = status("VmRSS");
    let p = mmap(0, PAGES * PAGE, PROT_READ, PA, -1, 0).must();
    (0..PAGES).for_each(|n| assert_eq!(get(p + n * PAGE), 0));
    assert!(near(status("VmRSS"), before));
}

/// A number of kilobytes that smaps tells of an area.
fn smaps_number(address: usize, name: &str) -> usize {
    let lines = smaps_of(address);
    let line = lines.iter().find(|line| line.starts_with(&format!("{name}:"))).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

fn smaps_divides_pages() {
    let p = pages(4);
    (0..3).for_each(|n| put(p + n * PAGE, 1));
    // Its neighbours are other areas.
    sc!(SYS_madvise, p, 4 * PAGE, MADV_NOHUGEPAGE).is(0);
    assert_eq!(["Rss", "Pss", "Private_Dirty", "Anonymous"].map(|n| smaps_number(p, n)), [12; 4]);
    let words = new_shared();
    let child = fork(|| {
        put(p, 2);
        words[0].store(1, std::sync::atomic::Ordering::SeqCst);
        loop {
            let _ = sc!(SYS_pause);
        }
    });
    until_at_least(&words[0], 1);
    assert_eq!(smaps_number(p, "Rss"), 12);
    assert_eq!(smaps_number(p, "Pss"), 8, "one page alone, two shared with the child");
    assert_eq!(["Private_Dirty", "Shared_Dirty"].map(|n| smaps_number(p, n)), [4, 8]);
    sc!(SYS_kill, child, SIGKILL).is(0);
    wait_signal(child, SIGKILL);
}

fn pagemap_tells_pages() {
    const PRESENT: u64 = 1 << 63;
    const OF_FILE: u64 = 1 << 61;
    const EXCLUSIVE: u64 = 1 << 56;
    let p = pages(3);
    put(p + PAGE, 1);
    let s = mmap(0, PAGE, RW, SA, -1, 0).must();
    put(s, 1);
    let fd = open("/proc/self/pagemap", O_RDONLY).fd();
    let word = |address: usize| {
        let mut word = 0u64;
        sc!(SYS_pread64, fd, &raw mut word, 8, address / PAGE * 8).is(8);
        word & (PRESENT | OF_FILE | EXCLUSIVE)
    };
    assert_eq!([0, 1, 2].map(|n| word(p + n * PAGE)), [0, PRESENT | EXCLUSIVE, 0]);
    assert_eq!(word(s), PRESENT | OF_FILE | EXCLUSIVE);
    let mut words = [7u64; 3];
    sc!(SYS_pread64, fd, words.as_mut_ptr(), 24, p / PAGE * 8).is(24);
    assert_eq!(words.map(|word| word >> 63), [0, 1, 0]);
    sc!(SYS_pread64, fd, words.as_mut_ptr(), 7, p / PAGE * 8).fails(EINVAL);
    sc!(SYS_pread64, fd, words.as_mut_ptr(), 8, p / PAGE * 8 + 1).fails(EINVAL);
    sc!(SYS_pread64, fd, words.as_mut_ptr(), 8, (1usize << 47) / PAGE * 8).is(0);
}

fn map_files_lead_to_files() {
    let path = format!("{}/f", dir());
    let fd = open(&path, O_RDWR | O_CREAT).fd();
    write(fd, b"mapped");
    let p = mmap(0, PAGE, RW, MAP_SHARED, fd, 0).must();
    close(fd);
    let name = format!("{p:x}-{:x}", p + PAGE);
    let directory = "/proc/self/map_files";
    let link = format!("{directory}/{name}");
    assert_eq!(std::fs::read_link(&link).unwrap().to_str(), Some(path.as_str()));
    let listed = std::fs::read_dir(directory).unwrap();
    assert!(listed.filter_map(Result::ok).any(|entry| entry.file_name() == *name));
    // As if it were the descriptor that was closed, for who may.
    if let Ok(fd) = open(&link, O_RDONLY) {
        assert_eq!(read(fd as i32, 10), b"mapped");
    }
    for missing in [format!("{directory}/0{name}"), format!("{directory}/{p:x}-{:x}", p + 2 * PAGE)]
    {
        open(&missing, O_RDONLY).fails(ENOENT);
    }
}

/// Areas of many MiB move as whole tables, and smaller parts page by page.
fn moved_tables_keep_their_pages() {
    const LARGE: usize = 2 << 20;
    for (offset, shift) in [(0, 0), (PAGE, 0), (0, PAGE), (5 * PAGE, 9 * PAGE)] {
        let room = mmap(0, 20 * LARGE, PROT_NONE, PA | MAP_NORESERVE, -1, 0).must();
        let base = room.next_multiple_of(LARGE);
        let (from, len) = (base + offset, 6 * LARGE + 3 * PAGE);
        let to = base + 10 * LARGE + offset + shift;
        mmap(from, len, RW, PA | MAP_FIXED, -1, 0).is(from);
        let touched = |at: usize| (at..at + len).step_by(37 * PAGE);
        touched(from).for_each(|at| put(at, ((at - from) >> 12) as u8 | 1));
        sc!(SYS_mremap, from, len, len, MREMAP_MAYMOVE | MREMAP_FIXED, to).is(to);
        for at in touched(to) {
            assert_eq!(get(at), ((at - to) >> 12) as u8 | 1, "{offset:#x} {shift:#x}");
        }
        assert_eq!(get(to + PAGE), 0);
        // The old place is free, and fresh.
        mmap(from, len, RW, PA | MAP_FIXED_NOREPLACE, -1, 0).is(from);
        assert!(touched(from).all(|at| get(at) == 0));
        unmap(room as *mut u8, 20 * LARGE);
    }
}
