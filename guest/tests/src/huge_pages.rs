//! Huge pages are not to be noticed: whatever is done to a part of 2 MiB is done to that part
//! alone, and what is shared stays shared or is copied page by page.
//!
//! Manual pages: madvise(2), proc(5); Documentation/admin-guide/mm/transhuge.rst. Where a kernel
//! gives no huge pages the tests still hold. Neighbour: `mappings.rs`.

use std::sync::atomic::Ordering::SeqCst;

use crate::memory::number_of;
use crate::sys::*;
use crate::{sc, tests};

tests!("huge_pages":
    parts_go_their_own_ways, fork_shares_and_copies, moved_as_a_whole_and_not, collapsed,
    told_in_smaps, refused, threads_change_parts,
);

const RW: i32 = PROT_READ | PROT_WRITE;
const PA: i32 = MAP_PRIVATE | MAP_ANONYMOUS;
const PAGE: usize = 4096;
const HUGE: usize = 2 << 20;
pub const ENABLED: &str = "/sys/kernel/mm/transparent_hugepage/enabled";
pub const MADV_COLLAPSE: i32 = 25;

fn word(at: usize) -> &'static std::sync::atomic::AtomicU64 {
    // SAFETY: tests pass addresses of their own mappings, which outlive their use of the word.
    unsafe { &*(at as *const std::sync::atomic::AtomicU64) }
}

/// `count` huge pages' worth of memory at a multiple of their size, that asks for them.
fn area(count: usize) -> usize {
    let all = mmap(0, (count + 1) * HUGE, RW, PA, -1, 0).must();
    let start = all.next_multiple_of(HUGE);
    // EINVAL where the kernel has no huge pages at all.
    let _ = sc!(SYS_madvise, start, count * HUGE, MADV_HUGEPAGE);
    start
}

/// Writes into each page where it is, from `start` on, as if that was `as_if`.
fn fill(start: usize, len: usize, as_if: usize) {
    (0..len).step_by(PAGE).for_each(|at| word(start + at).store((as_if + at) as u64, SeqCst));
}

#[track_caller]
fn check(start: usize, len: usize, as_if: usize) {
    for at in (0..len).step_by(PAGE) {
        assert_eq!(word(start + at).load(SeqCst), (as_if + at) as u64, "{at:#x} of {start:#x}");
    }
}

fn parts_go_their_own_ways() {
    let p = area(6);
    fill(p, 6 * HUGE, p);
    let middle = |n: usize| p + n * HUGE + HUGE / 2;
    // Around the hole in each: before it, and behind it.
    let around = |n: usize| {
        check(p + n * HUGE, HUGE / 2, p + n * HUGE);
        check(middle(n) + PAGE, HUGE / 2 - PAGE, middle(n) + PAGE);
    };
    sc!(SYS_munmap, middle(0), PAGE).is(0);
    sc!(SYS_mprotect, middle(0), PAGE, RW).fails(ENOMEM);
    sc!(SYS_mprotect, middle(1), PAGE, PROT_READ).is(0);
    sc!(SYS_read, pipe().0, middle(1), 0).is(0);
    sc!(SYS_getcwd, middle(1), 64).fails(EFAULT);
    fill(p + HUGE, HUGE / 2, p + HUGE);
    sc!(SYS_madvise, middle(2), PAGE, MADV_DONTNEED).is(0);
    assert_eq!(word(middle(2)).load(SeqCst), 0);
    sc!(SYS_mprotect, middle(3), PAGE, PROT_NONE).is(0);
    sc!(SYS_getcwd, middle(3), 64).fails(EFAULT);
    sc!(SYS_mprotect, middle(3), PAGE, RW).is(0);
    check(p + 3 * HUGE, HUGE, p + 3 * HUGE);
    let new = mmap(0, PAGE, RW, PA, -1, 0).must();
    sc!(SYS_mremap, middle(4), PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, new).is(new);
    assert_eq!(word(new).load(SeqCst), middle(4) as u64);
    (0..5).for_each(around);
    check(p + 5 * HUGE, HUGE, p + 5 * HUGE);
    // All rights go, and come back, with what was there.
    sc!(SYS_mprotect, p + 5 * HUGE, HUGE, PROT_NONE).is(0);
    sc!(SYS_mprotect, p + 5 * HUGE, HUGE, RW).is(0);
    check(p + 5 * HUGE, HUGE, p + 5 * HUGE);
    sc!(SYS_munmap, p, 6 * HUGE).is(0);
}

fn fork_shares_and_copies() {
    let p = area(3);
    fill(p, 3 * HUGE, p);
    let words = new_shared();
    let child = fork(|| {
        check(p, 3 * HUGE, p);
        word(p + 5 * PAGE).store(1, SeqCst);
        words[0].store(1, SeqCst);
        until_at_least(&words[1], 1);
        // The parent has written, and shared what it has with another child.
        check(p + 6 * PAGE, HUGE - 6 * PAGE, p + 6 * PAGE);
        check(p + HUGE, 2 * HUGE, p + HUGE);
        assert_eq!(word(p + 5 * PAGE).load(SeqCst), 1);
        0
    });
    until_at_least(&words[0], 1);
    check(p, 3 * HUGE, p);
    word(p + HUGE + PAGE).store(2, SeqCst);
    let other = fork(|| {
        assert_eq!(word(p + HUGE + PAGE).load(SeqCst), 2);
        word(p + 2 * HUGE).store(3, SeqCst);
        check(p + 2 * HUGE + PAGE, HUGE - PAGE, p + 2 * HUGE + PAGE);
        0
    });
    wait_code(other, 0);
    words[1].store(1, SeqCst);
    wait_code(child, 0);
    assert_eq!(word(p + HUGE + PAGE).load(SeqCst), 2);
    word(p + HUGE + PAGE).store((p + HUGE + PAGE) as u64, SeqCst);
    check(p, 3 * HUGE, p);
    // Alone again.
    fill(p, 3 * HUGE, p + 1);
    check(p, 3 * HUGE, p + 1);
    sc!(SYS_munmap, p, 3 * HUGE).is(0);
}

fn moved_as_a_whole_and_not() {
    let flags = MREMAP_MAYMOVE | MREMAP_FIXED;
    let p = area(2);
    fill(p, 2 * HUGE, p);
    let aligned = mmap(0, 4 * HUGE, RW, PA, -1, 0).must().next_multiple_of(HUGE);
    sc!(SYS_mremap, p, 2 * HUGE, 2 * HUGE, flags, aligned).is(aligned);
    check(aligned, 2 * HUGE, p);
    let odd = mmap(0, 4 * HUGE, RW, PA, -1, 0).must().next_multiple_of(HUGE) + 3 * PAGE;
    sc!(SYS_mremap, aligned, 2 * HUGE, 2 * HUGE, flags, odd).is(odd);
    check(odd, 2 * HUGE, p);
    // A part of one, to the middle of another.
    let q = area(2);
    fill(q, 2 * HUGE, q);
    let (from, to) = (odd + PAGE, q + HUGE / 2);
    sc!(SYS_mremap, from, HUGE, HUGE, flags, to).is(to);
    check(to, HUGE, p + PAGE);
    check(q, HUGE / 2, q);
    check(q + 3 * HUGE / 2, HUGE / 2, q + 3 * HUGE / 2);
}

fn collapsed() {
    let p = area(2);
    let _ = sc!(SYS_madvise, p, 2 * HUGE, MADV_NOHUGEPAGE);
    fill(p, 2 * HUGE, p);
    sc!(SYS_madvise, p, 2 * HUGE, MADV_COLLAPSE).fails(EINVAL);
    let _ = sc!(SYS_madvise, p, 2 * HUGE, MADV_HUGEPAGE);
    // A hole in the first; it becomes zeros.
    sc!(SYS_madvise, p + 7 * PAGE, PAGE, MADV_DONTNEED).is(0);
    let result = sc!(SYS_madvise, p, 2 * HUGE, MADV_COLLAPSE);
    if std::path::Path::new(ENABLED).exists() {
        result.is(0);
        assert_eq!(of_smaps(p, "AnonHugePages"), 2 * HUGE / 1024);
    }
    check(p, 7 * PAGE, p);
    assert_eq!(word(p + 7 * PAGE).load(SeqCst), 0);
    check(p + 8 * PAGE, 2 * HUGE - 8 * PAGE, p + 8 * PAGE);
    // Nothing is there.
    sc!(SYS_madvise, p, HUGE, MADV_DONTNEED).is(0);
    sc!(SYS_madvise, p, HUGE, MADV_COLLAPSE).fails(EINVAL);
}

/// Kilobytes that smaps tells of the area that begins at `start`.
pub fn of_smaps(start: usize, name: &str) -> usize {
    let text = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let header = format!("{start:08x}-");
    let mut lines = text.lines().skip_while(|line| !line.starts_with(&header));
    let line = lines.find(|line| line.starts_with(&format!("{name}:"))).expect(name);
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Whether areas that ask get huge pages.
fn are_given() -> bool {
    std::fs::read_to_string(ENABLED).is_ok_and(|text| !text.contains("[never]"))
}

/// An area of two, with a huge page if the kernel gives it one within a while: memory in one piece
/// may be short behind other tests. That there are any is tested where it is not (the kernel's
/// `memory::large_pages_split_share_and_come_back`).
fn area_with_huge_page() -> usize {
    for n in 0.. {
        let p = area(2);
        word(p).store(1, SeqCst);
        if n == 20 || !are_given() || of_smaps(p, "AnonHugePages") > 0 {
            return p;
        }
        sc!(SYS_munmap, p, 2 * HUGE).is(0);
        nap(50);
    }
    unreachable!("the loop ends by its count");
}

fn told_in_smaps() {
    let p = area_with_huge_page();
    let huge = of_smaps(p, "AnonHugePages");
    assert_eq!(of_smaps(p, "Rss"), if huge == 0 { 4 } else { huge });
    if huge > 0 {
        assert_eq!(huge, HUGE / 1024);
        assert_eq!(of_smaps(p, "THPeligible"), 1);
        assert!(number_of("/proc/meminfo", "AnonHugePages") >= huge);
    }
    // A part of it.
    sc!(SYS_madvise, p, PAGE, MADV_DONTNEED).is(0);
    assert_eq!(of_smaps(p, "AnonHugePages"), 0);
    assert_eq!(of_smaps(p, "Rss"), huge.saturating_sub(4));
    policy_can_be_set();
}

fn refused() {
    let p = area(2);
    let _ = sc!(SYS_madvise, p, HUGE, MADV_NOHUGEPAGE);
    word(p).store(1, SeqCst);
    assert_eq!(of_smaps(p, "Rss"), 4);
    assert_eq!(of_smaps(p, "AnonHugePages"), 0);
    in_child(|| {
        sc!(SYS_prctl, PR_SET_THP_DISABLE, 1, 0, 0, 0).is(0);
        assert_eq!(number_of("/proc/self/status", "THP_enabled"), 0);
        word(p + HUGE).store(1, SeqCst);
        assert_eq!(of_smaps(p + HUGE, "AnonHugePages"), 0);
    });
}

fn threads_change_parts() {
    const COUNT: usize = 4;
    const ROUNDS: usize = 300;
    let p = area(COUNT);
    let change = move |seed: usize| {
        let mut state = seed as u64;
        for round in 0..ROUNDS {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let page = p + (state >> 33) as usize % (COUNT * HUGE / PAGE) * PAGE;
            match round % 4 {
                0 => sc!(SYS_madvise, page, PAGE, MADV_DONTNEED).is(0),
                1 if round % 16 == 1 => {
                    let whole = page & !(HUGE - 1);
                    sc!(SYS_madvise, whole, HUGE, MADV_DONTNEED).is(0);
                }
                _ => {
                    word(page).store(page as u64, SeqCst);
                    let seen = word(page).load(SeqCst);
                    assert!(seen == page as u64 || seen == 0, "{seen:#x} at {page:#x}");
                }
            }
        }
    };
    let threads: Vec<_> = (1..4).map(|seed| std::thread::spawn(move || change(seed))).collect();
    for _ in 0..4 {
        in_child(|| {
            for page in (p..p + COUNT * HUGE).step_by(PAGE) {
                let seen = word(page).load(SeqCst);
                assert!(seen == page as u64 || seen == 0, "{seen:#x} at {page:#x}");
            }
            fill(p, COUNT * HUGE, p);
        });
    }
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

/// Only where the machine is this test's own.
fn policy_can_be_set() {
    let Ok(before) = std::fs::read_to_string(ENABLED) else { return };
    let names: Vec<&str> =
        before.split_whitespace().map(|name| name.trim_matches(['[', ']'])).collect();
    assert_eq!(names, ["always", "madvise", "never"]);
    let held = before.split_once('[').unwrap().1.split_once(']').unwrap().0.to_owned();
    if std::fs::metadata("/proc/limen").is_err() {
        return;
    }
    std::fs::write(ENABLED, "never\n").unwrap();
    assert_eq!(std::fs::read_to_string(ENABLED).unwrap(), "always madvise [never]\n");
    let p = area(1);
    word(p).store(1, SeqCst);
    assert_eq!(of_smaps(p, "AnonHugePages"), 0);
    assert_eq!(std::fs::write(ENABLED, "often").unwrap_err().raw_os_error(), Some(EINVAL));
    std::fs::write(ENABLED, held).unwrap();
    assert_eq!(std::fs::read_to_string(ENABLED).unwrap(), before);
}
