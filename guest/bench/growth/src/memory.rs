//! Rows about memory: many areas, many pages, many processes that map one file.

use std::ffi::CStr;

use libc::*;

use crate::cost::Cost;
use crate::sys::{self, Herd, PAGE, fork, good, map, pipe, touch, touch_all, unmap, wait};
use crate::{Row, SOME};

/// Up to about half of what a process may have (vm.max_map_count).
const AREAS: [usize; 4] = [10, 100, 1000, 30_000];
/// 4 MiB to 256 MiB.
const PAGES: [usize; 4] = [1024, 4096, 16_384, 65_536];
const RW: i32 = PROT_READ | PROT_WRITE;

pub const ROWS: &[Row] = &[
    Row { name: "mmap_munmap_among_areas", sizes: AREAS, run: map_among },
    Row { name: "mprotect_among_areas", sizes: AREAS, run: protect_among },
    Row { name: "fault_among_areas", sizes: AREAS, run: fault_among },
    Row { name: "munmap_of_areas", sizes: AREAS, run: unmap_areas },
    Row { name: "getrusage_with_areas", sizes: AREAS, run: getrusage },
    Row { name: "proc_stat_with_areas", sizes: AREAS, run: |c, n| file(c, n, c"/proc/self/stat") },
    Row {
        name: "proc_status_with_areas",
        sizes: AREAS,
        run: |c, n| file(c, n, c"/proc/self/status"),
    },
    Row {
        name: "proc_statm_with_areas",
        sizes: AREAS,
        run: |c, n| file(c, n, c"/proc/self/statm"),
    },
    Row { name: "proc_maps_of_areas", sizes: AREAS, run: |c, n| file(c, n, c"/proc/self/maps") },
    Row { name: "proc_smaps_of_areas", sizes: SOME, run: |c, n| file(c, n, c"/proc/self/smaps") },
    Row { name: "meminfo_with_areas", sizes: SOME, run: |c, n| file(c, n, c"/proc/meminfo") },
    Row { name: "touch_pages", sizes: PAGES, run: touch_pages },
    Row { name: "populate_pages", sizes: PAGES, run: populate },
    Row { name: "munmap_pages", sizes: PAGES, run: unmap_pages },
    Row { name: "dontneed_pages", sizes: PAGES, run: dontneed },
    Row { name: "mprotect_pages", sizes: PAGES, run: protect_pages },
    Row { name: "mremap_grow_pages", sizes: PAGES, run: remap },
    Row { name: "fork_wait_pages", sizes: PAGES, run: fork_pages },
    Row { name: "cow_pages", sizes: PAGES, run: cow },
    Row { name: "exit_pages", sizes: PAGES, run: exit_pages },
    Row { name: "mincore_pages", sizes: PAGES, run: mincore },
    Row { name: "touch_file_pages", sizes: PAGES, run: touch_file },
    Row { name: "munmap_file_pages", sizes: PAGES, run: unmap_file },
    Row { name: "msync_file_pages", sizes: PAGES, run: msync },
    Row { name: "fork_wait_file_pages", sizes: PAGES, run: fork_file },
    Row { name: "mlock_munlock_pages", sizes: PAGES, run: mlock },
    Row { name: "mmap_munmap_among_mappings_of_file", sizes: AREAS, run: map_file_among },
    Row { name: "truncate_mapped_by_processes", sizes: SOME, run: truncate_mapped },
    Row { name: "read_zeros_bytes", sizes: [1 << 10, 1 << 14, 1 << 17, 1 << 20], run: read_zeros },
];

/// `n` areas of a page that do not merge; the first one's address. Each second one may be written.
pub fn areas(n: usize) -> usize {
    let start = map(n, PROT_NONE);
    for i in (0..n).step_by(2) {
        let prot = if i % 4 == 0 { PROT_READ } else { RW };
        good(SYS_mprotect, &[start + i * PAGE, PAGE, prot as usize]);
    }
    start
}

/// The address of the writable area next to the middle.
fn middle(start: usize, n: usize) -> usize {
    start + (n / 2 / 4 * 4 + 2) * PAGE
}

fn map_among(cost: &mut Cost, n: usize) {
    areas(n);
    cost.repeat(|| unmap(map(1, PROT_READ | PROT_EXEC), 1));
}

fn protect_among(cost: &mut Cost, n: usize) {
    let at = middle(areas(n), n);
    cost.repeat(|| {
        good(SYS_mprotect, &[at, PAGE, (PROT_READ | PROT_EXEC) as usize]);
        good(SYS_mprotect, &[at, PAGE, RW as usize])
    });
}

fn fault_among(cost: &mut Cost, n: usize) {
    let at = middle(areas(n), n);
    touch(at);
    for _ in 0..cost.samples() {
        good(SYS_madvise, &[at, PAGE, MADV_DONTNEED as usize]);
        cost.time(|| touch(at));
    }
}

fn unmap_areas(cost: &mut Cost, n: usize) {
    for _ in 0..cost.few() {
        let start = areas(n);
        cost.time(|| unmap(start, n));
    }
}

fn touched_areas(n: usize) {
    let start = areas(n);
    (2..n).step_by(4).for_each(|i| touch(start + i * PAGE));
}

fn getrusage(cost: &mut Cost, n: usize) {
    touched_areas(n);
    let mut usage = [0u64; 32];
    cost.repeat(|| good(SYS_getrusage, &[0, usage.as_mut_ptr() as usize]));
}

fn file(cost: &mut Cost, n: usize, path: &CStr) {
    touched_areas(n);
    let mut buf = vec![0u8; 16 << 10];
    cost.repeat(|| assert!(sys::read_all(path, &mut buf) > 0));
}

fn touch_pages(cost: &mut Cost, n: usize) {
    for _ in 0..cost.few() {
        let start = map(n, RW);
        cost.time(|| touch_all(start, n));
        unmap(start, n);
    }
}

fn populate(cost: &mut Cost, n: usize) {
    let flags = (MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE) as usize;
    for _ in 0..cost.few() {
        let args = [0, n * PAGE, RW as usize, flags, usize::MAX, 0];
        let start = cost.time(|| good(SYS_mmap, &args));
        unmap(start, n);
    }
}

/// A mapping whose pages are all there.
fn touched(n: usize) -> usize {
    let start = map(n, RW);
    touch_all(start, n);
    start
}

fn unmap_pages(cost: &mut Cost, n: usize) {
    for _ in 0..cost.few() {
        let start = touched(n);
        cost.time(|| unmap(start, n));
    }
}

fn dontneed(cost: &mut Cost, n: usize) {
    let start = map(n, RW);
    for _ in 0..cost.few() {
        touch_all(start, n);
        cost.time(|| good(SYS_madvise, &[start, n * PAGE, MADV_DONTNEED as usize]));
    }
}

fn protect_pages(cost: &mut Cost, n: usize) {
    let start = touched(n);
    for _ in 0..cost.few() {
        cost.time(|| {
            good(SYS_mprotect, &[start, n * PAGE, PROT_READ as usize]);
            good(SYS_mprotect, &[start, n * PAGE, RW as usize])
        });
    }
}

/// A neighbour above is in the way, so the area moves.
fn remap(cost: &mut Cost, n: usize) {
    for _ in 0..cost.few() {
        let both = map(n + 1, RW);
        good(SYS_mprotect, &[both + n * PAGE, PAGE, PROT_NONE as usize]);
        touch_all(both, n);
        let (old, new) = (n * PAGE, (n + 1) * PAGE);
        let moved = cost.time(|| good(SYS_mremap, &[both, old, new, MREMAP_MAYMOVE as usize]));
        unmap(moved, n + 1);
        unmap(both + n * PAGE, 1);
    }
}

fn fork_pages(cost: &mut Cost, n: usize) {
    touched(n);
    for _ in 0..cost.few() {
        cost.time(|| wait(fork(|| ())));
    }
}

fn cow(cost: &mut Cost, n: usize) {
    let start = touched(n);
    for _ in 0..cost.few() {
        let herd = Herd::new(1, |_| ());
        cost.time(|| touch_all(start, n));
        drop(herd);
    }
}

fn exit_pages(cost: &mut Cost, n: usize) {
    for _ in 0..cost.few() {
        let (ready, tell) = pipe();
        let mut byte = 0u8;
        let herd = Herd::new(1, |_| {
            touched(n);
            good(SYS_write, &[tell, &raw const byte as usize, 1]);
        });
        good(SYS_read, &[ready, &raw mut byte as usize, 1]);
        sys::quiet();
        cost.time(|| drop(herd));
        [ready, tell].into_iter().for_each(sys::close);
    }
}

fn mincore(cost: &mut Cost, n: usize) {
    let start = touched(n);
    let mut there = vec![0u8; n];
    for _ in 0..cost.few() {
        cost.time(|| good(SYS_mincore, &[start, n * PAGE, there.as_mut_ptr() as usize]));
    }
}

/// A file of `n` pages, mapped shared.
fn file_mapping(n: usize) -> (usize, usize) {
    let fd = sys::create(&sys::path("mapped"));
    good(SYS_ftruncate, &[fd, n * PAGE]);
    (fd, map_file(fd, n))
}

/// Its first pages, shared.
fn map_file(fd: usize, pages: usize) -> usize {
    good(SYS_mmap, &[0, pages * PAGE, RW as usize, MAP_SHARED as usize, fd, 0])
}

fn touch_file(cost: &mut Cost, n: usize) {
    for _ in 0..cost.few() {
        let (fd, start) = file_mapping(n);
        cost.time(|| touch_all(start, n));
        unmap(start, n);
        sys::close(fd);
        good(SYS_unlink, &[sys::at(&sys::path("mapped"))]);
    }
}

fn unmap_file(cost: &mut Cost, n: usize) {
    let fd = sys::create(&sys::path("mapped"));
    good(SYS_ftruncate, &[fd, n * PAGE]);
    for _ in 0..cost.few() {
        let start = map_file(fd, n);
        touch_all(start, n);
        cost.time(|| unmap(start, n));
    }
    good(SYS_unlink, &[sys::at(&sys::path("mapped"))]);
}

fn msync(cost: &mut Cost, n: usize) {
    let (_, start) = file_mapping(n);
    for _ in 0..cost.few() {
        touch_all(start, n);
        cost.time(|| good(SYS_msync, &[start, n * PAGE, MS_SYNC as usize]));
    }
    good(SYS_unlink, &[sys::at(&sys::path("mapped"))]);
}

fn fork_file(cost: &mut Cost, n: usize) {
    let (_, start) = file_mapping(n);
    touch_all(start, n);
    for _ in 0..cost.few() {
        cost.time(|| wait(fork(|| ())));
    }
    good(SYS_unlink, &[sys::at(&sys::path("mapped"))]);
}

fn mlock(cost: &mut Cost, n: usize) {
    let start = touched(n);
    for _ in 0..cost.few() {
        cost.time(|| {
            good(SYS_mlock, &[start, n * PAGE]);
            good(SYS_munlock, &[start, n * PAGE])
        });
    }
}

/// One page of a file, mapped at many places.
fn map_file_among(cost: &mut Cost, n: usize) {
    let (fd, _) = file_mapping(1);
    (0..n).for_each(|_| touch(map_file(fd, 1)));
    cost.repeat(|| unmap(map_file(fd, 1), 1));
    good(SYS_unlink, &[sys::at(&sys::path("mapped"))]);
}

fn truncate_mapped(cost: &mut Cost, n: usize) {
    let (fd, start) = file_mapping(4);
    let _herd = Herd::new(n, |_| touch(start));
    for _ in 0..cost.samples() {
        touch(start);
        cost.time(|| {
            good(SYS_ftruncate, &[fd, 0]);
            good(SYS_ftruncate, &[fd, 4 * PAGE])
        });
    }
}

fn read_zeros(cost: &mut Cost, n: usize) {
    let zero = sys::open(c"/dev/zero", O_RDONLY);
    let at = touched(n.div_ceil(PAGE));
    cost.repeat(|| assert_eq!(good(SYS_read, &[zero, at, n]), n));
}
