//! What is said of areas: names that a program gives them (prctl(2), PR_SET_VMA_ANON_NAME), seals
//! that keep them as they are (mseal(2)), and how much of a file is in memory (cachestat(2)).
//! Neighbour: `mappings.rs`.

use crate::sys::*;
use crate::{sc, tests};

tests!("areas":
    names_are_told, names_keep_areas_apart, names_that_are_refused, names_of_shared_memory,
    names_over_holes, private_zeros_are_a_file, seals_refuse_changes, seals_of_contents,
    seals_that_are_refused, seals_are_inherited, cached_pages_are_counted, cachestat_refuses,
);

const RW: i32 = PROT_READ | PROT_WRITE;
const PA: i32 = MAP_PRIVATE | MAP_ANONYMOUS;
const SA: i32 = MAP_SHARED | MAP_ANONYMOUS;
const PAGE: usize = 4096;
const SYS_CACHESTAT: i32 = 451;
const SYS_MSEAL: i32 = 462;
const SET_VMA: i32 = 0x5356_4d41;

#[track_caller]
fn pages(count: usize, flags: i32) -> usize {
    mmap(0, count * PAGE, RW, flags, -1, 0).must()
}

fn name(at: usize, count: usize, name: &std::ffi::CStr) -> Res {
    sc!(SYS_prctl, SET_VMA, 0, at, count * PAGE, name.as_ptr())
}

/// Whether names can be given: a Linux without CONFIG_ANON_VMA_NAME knows none.
fn has_names() -> bool {
    is_limen() || name(alone(1), 1, c"x").is_ok()
}

fn seal(at: usize, count: usize) -> Res {
    sc!(SYS_MSEAL, at, count * PAGE, 0)
}

/// Lines of a file about areas, of those that begin in `count` pages from `at`: the size in pages
/// and the name.
fn told(at: usize, count: usize) -> Vec<(usize, String)> {
    let text = std::fs::read_to_string("/proc/self/maps").unwrap();
    let area = |line: &str| {
        let mut words = line.split_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let number = |text| usize::from_str_radix(text, 16).unwrap();
        let (start, end) = (number(start), number(end));
        let name = words.skip(4).collect::<Vec<_>>().join(" ");
        let is_inside = (at..at + count * PAGE).contains(&start);
        is_inside.then_some(((end - start) / PAGE, name))
    };
    text.lines().filter_map(area).collect()
}

fn is(areas: &[(usize, String)], wanted: &[(usize, &str)]) {
    let areas: Vec<_> = areas.iter().map(|(size, name)| (*size, name.as_str())).collect();
    assert_eq!(areas, wanted);
}

/// `count` pages with room around them, so that no neighbour joins.
fn alone(count: usize) -> usize {
    let all = mmap(0, (count + 2) * PAGE, PROT_NONE, PA, -1, 0).must();
    let at = all + PAGE;
    mmap(at, count * PAGE, RW, PA | MAP_FIXED, -1, 0).is(at);
    at
}

fn names_are_told() {
    if !has_names() {
        return;
    }
    let p = alone(4);
    name(p, 4, c"heap of mine").is(0);
    is(&told(p, 4), &[(4, "[anon:heap of mine]")]);
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    assert!(smaps.contains("[anon:heap of mine]\n"));
    name(p, 4, c"").is(0);
    is(&told(p, 4), &[(4, "[anon:]")]);
    sc!(SYS_prctl, SET_VMA, 0, p, 4 * PAGE, 0).is(0);
    is(&told(p, 4), &[(4, "")]);
    // A length that is no whole pages is rounded up.
    sc!(SYS_prctl, SET_VMA, 0, p, 1, c"x".as_ptr()).is(0);
    is(&told(p, 4), &[(1, "[anon:x]"), (3, "")]);
    // A child has it, what moves keeps it.
    in_child(|| is(&told(p, 4), &[(1, "[anon:x]"), (3, "")]));
    let q = sc!(SYS_mremap, p, PAGE, 2 * PAGE, MREMAP_MAYMOVE).must();
    is(&told(q, 2), &[(2, "[anon:x]")]);
}

fn names_keep_areas_apart() {
    if !has_names() {
        return;
    }
    let p = alone(6);
    name(p, 2, c"a").is(0);
    name(p + 2 * PAGE, 2, c"b").is(0);
    is(&told(p, 6), &[(2, "[anon:a]"), (2, "[anon:b]"), (2, "")]);
    // Equal names that were given one by one are equal.
    name(p + 2 * PAGE, 2, c"a").is(0);
    is(&told(p, 6), &[(4, "[anon:a]"), (2, "")]);
    sc!(SYS_mprotect, p, PAGE, PROT_READ).is(0);
    is(&told(p, 6), &[(1, "[anon:a]"), (3, "[anon:a]"), (2, "")]);
    sc!(SYS_mprotect, p, PAGE, RW).is(0);
    is(&told(p, 6), &[(4, "[anon:a]"), (2, "")]);
    sc!(SYS_prctl, SET_VMA, 0, p, 6 * PAGE, 0).is(0);
    is(&told(p, 6), &[(6, "")]);
}

fn names_that_are_refused() {
    if !has_names() {
        return;
    }
    let p = alone(2);
    for bad in [c"a[b", c"a]", c"`", c"$x", c"\\", c"\n", c"\x7f", c"\xc3\xa4"] {
        name(p, 1, bad).fails(EINVAL);
    }
    let long = c(&"x".repeat(79));
    name(p, 1, &long).is(0);
    name(p, 1, &c(&"x".repeat(80))).fails(EINVAL);
    sc!(SYS_prctl, SET_VMA, 0, p, PAGE, 1).fails(EFAULT);
    sc!(SYS_prctl, SET_VMA, 1, p, PAGE, 0).fails(EINVAL);
    name(p + 1, 1, c"x").fails(EINVAL);
    sc!(SYS_prctl, SET_VMA, 0, p, usize::MAX, c"x".as_ptr()).fails(EINVAL);
    sc!(SYS_prctl, SET_VMA, 0, p, 0, c"x".as_ptr()).is(0);
    // A file has its name already.
    let fd = open(&format!("{}/f", dir()), O_RDWR | O_CREAT).fd();
    sc!(SYS_ftruncate, fd, PAGE).is(0);
    let q = mmap(0, PAGE, RW, MAP_PRIVATE, fd, 0).must();
    name(q, 1, c"x").fails(EBADF);
    let zero = open("/dev/zero", O_RDWR).fd();
    let q = mmap(0, PAGE, RW, MAP_PRIVATE, zero, 0).must();
    name(q, 1, c"x").fails(EBADF);
}

fn names_of_shared_memory() {
    if !has_names() {
        return;
    }
    let p = pages(2, SA);
    name(p, 2, c"ours").is(0);
    is(&told(p, 2), &[(2, "[anon_shmem:ours]")]);
    sc!(SYS_prctl, SET_VMA, 0, p, 2 * PAGE, 0).is(0);
    is(&told(p, 2), &[(2, "/dev/zero (deleted)")]);
}

fn names_over_holes() {
    if !has_names() {
        return;
    }
    let p = alone(4);
    unmap((p + PAGE) as *mut u8, PAGE);
    name(p, 4, c"x").fails(ENOMEM);
    is(&told(p, 4), &[(1, "[anon:x]"), (2, "[anon:x]")]);
}

/// A private mapping of /dev/zero is memory as any other, but tells of the file.
fn private_zeros_are_a_file() {
    let zero = open("/dev/zero", O_RDWR).fd();
    let p = mmap(0, 4 * PAGE, RW, MAP_PRIVATE, zero, 3 * PAGE).must();
    is(&told(p, 4), &[(4, "/dev/zero")]);
    sc!(SYS_mprotect, p + PAGE, PAGE, PROT_READ).is(0);
    let text = std::fs::read_to_string("/proc/self/maps").unwrap();
    let line = text.lines().find(|line| line.starts_with(&format!("{:x}-", p + PAGE))).unwrap();
    assert_eq!(line.split_whitespace().nth(2), Some("00004000"), "{line}");
    let link = format!("/proc/self/map_files/{:x}-{:x}", p, p + PAGE);
    assert_eq!(std::fs::read_link(link).unwrap().to_str(), Some("/dev/zero"));
    sc!(SYS_madvise, p, PAGE, MADV_WIPEONFORK).fails(EINVAL);
    sc!(SYS_madvise, p, PAGE, MADV_FREE).is(0);
}

fn seals_refuse_changes() {
    let p = alone(4);
    seal(p + PAGE, 2).is(0);
    let inside = p + PAGE;
    sc!(SYS_munmap, inside, PAGE).fails(EPERM);
    sc!(SYS_munmap, p, 4 * PAGE).fails(EPERM);
    assert_eq!(told(p, 4).iter().map(|(size, _)| size).sum::<usize>(), 4, "nothing is unmapped");
    sc!(SYS_mprotect, inside, PAGE, PROT_READ).fails(EPERM);
    sc!(SYS_mprotect, inside, PAGE, RW).fails(EPERM);
    sc!(SYS_mremap, inside, 2 * PAGE, PAGE, 0).fails(EPERM);
    sc!(SYS_mremap, inside, 2 * PAGE, 4 * PAGE, MREMAP_MAYMOVE).fails(EPERM);
    mmap(inside, PAGE, RW, PA | MAP_FIXED, -1, 0).fails(EPERM);
    let q = pages(1, PA);
    sc!(SYS_mremap, q, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, inside).fails(EPERM);
    // What is not taken away may be: locked, told about, written to.
    sc!(SYS_mlock, inside, PAGE).is(0);
    sc!(SYS_munlock, inside, PAGE).is(0);
    if has_names() {
        name(inside, 2, c"sealed").is(0);
    }
    seal(inside, 2).is(0);
    sc!(SYS_munmap, p, PAGE).is(0);
    sc!(SYS_munmap, p + 3 * PAGE, PAGE).is(0);
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let area = smaps.split(&format!("{inside:x}-")).nth(1).unwrap();
    let flags = area.lines().find(|line| line.starts_with("VmFlags:")).unwrap();
    assert!(flags.contains(" sl"), "{flags}");
}

fn seals_of_contents() {
    let p = alone(2);
    seal(p, 2).is(0);
    // Who may write to it may as well drop it.
    sc!(SYS_madvise, p, PAGE, MADV_DONTNEED).is(0);
    let q = alone(2);
    sc!(SYS_mprotect, q, 2 * PAGE, PROT_READ).is(0);
    seal(q, 2).is(0);
    for advice in [MADV_DONTNEED, MADV_FREE, MADV_DONTFORK, MADV_WIPEONFORK, MADV_REMOVE] {
        sc!(SYS_madvise, q, PAGE, advice).fails(EPERM);
    }
    for advice in [MADV_WILLNEED, MADV_DONTDUMP, MADV_RANDOM] {
        sc!(SYS_madvise, q, PAGE, advice).is(0);
    }
}

fn seals_that_are_refused() {
    let p = alone(4);
    sc!(SYS_MSEAL, p, PAGE, 1).fails(EINVAL);
    sc!(SYS_MSEAL, p + 1, PAGE, 0).fails(EINVAL);
    sc!(SYS_MSEAL, p, usize::MAX, 0).fails(EINVAL);
    sc!(SYS_MSEAL, p, 0, 0).is(0);
    unmap((p + PAGE) as *mut u8, PAGE);
    sc!(SYS_MSEAL, p + PAGE, 0, 0).is(0);
    seal(p, 4).fails(ENOMEM);
    sc!(SYS_munmap, p, 4 * PAGE).is(0);
}

fn seals_are_inherited() {
    let p = alone(2);
    seal(p, 2).is(0);
    in_child(|| sc!(SYS_munmap, p, 2 * PAGE).fails(EPERM));
    // The heap cannot shrink below what is sealed in it.
    in_child(|| {
        let end = sc!(SYS_brk, 0).must().next_multiple_of(PAGE);
        sc!(SYS_brk, end + 4 * PAGE).is(end + 4 * PAGE);
        seal(end, 4).is(0);
        sc!(SYS_brk, end).is(end + 4 * PAGE);
        sc!(SYS_brk, end + 6 * PAGE).is(end + 6 * PAGE);
        sc!(SYS_brk, end + 4 * PAGE).is(end + 4 * PAGE);
    });
}

fn cached(fd: i32, offset: usize, len: usize) -> [u64; 5] {
    let mut numbers = [7u64; 5];
    let range = [offset, len];
    sc!(SYS_CACHESTAT, fd, range.as_ptr(), numbers.as_mut_ptr(), 0).is(0);
    numbers
}

fn cached_pages_are_counted() {
    let fd = sc!(SYS_memfd_create, c"m".as_ptr(), 0).fd();
    write(fd, &[1; 4 * PAGE]);
    assert_eq!(cached(fd, 0, 0), [4, 0, 0, 0, 0]);
    assert_eq!(cached(fd, PAGE, 2 * PAGE), [2, 0, 0, 0, 0]);
    assert_eq!(cached(fd, PAGE + 1, PAGE), [2, 0, 0, 0, 0]);
    assert_eq!(cached(fd, 8 * PAGE, 0), [0; 5]);
    sc!(SYS_fallocate, fd, 3, PAGE, PAGE).is(0);
    assert_eq!(cached(fd, 0, 0), [3, 0, 0, 0, 0]);
    let (reader, _writer) = pipe();
    assert_eq!(cached(reader, 0, 0), [0; 5]);
}

fn cachestat_refuses() {
    let fd = sc!(SYS_memfd_create, c"m".as_ptr(), 0).fd();
    let (range, mut numbers) = ([0u64; 2], [0u64; 5]);
    let to = numbers.as_mut_ptr();
    sc!(SYS_CACHESTAT, -1i32, range.as_ptr(), to, 0).fails(EBADF);
    sc!(SYS_CACHESTAT, fd, range.as_ptr(), to, 1).fails(EINVAL);
    sc!(SYS_CACHESTAT, fd, 1, to, 1).fails(EFAULT);
    sc!(SYS_CACHESTAT, fd, range.as_ptr(), 1, 0).fails(EFAULT);
    let path = open("/", O_PATH).fd();
    sc!(SYS_CACHESTAT, path, range.as_ptr(), to, 0).fails(EBADF);
    // Others' files tell nothing to those who may not write to them.
    let other = open("/proc/self/exe", O_RDONLY).fd();
    in_child(|| {
        sc!(SYS_setresuid, 65534, 65534, 65534).is(0);
        sc!(SYS_CACHESTAT, other, range.as_ptr(), to, 0).fails(EPERM);
    });
}
