//! Memory: mappings, protections, growth, sharing, and the faults of their edges.
//!
//! Faults are seen by a handler that notes signal, si_code and si_addr in shared words and ends
//! the child. Manual pages: mmap(2), mprotect(2), mremap(2), madvise(2), sigaction(2).

use crate::sys::*;
use crate::{sc, tests};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};

tests!("memory":
    fresh_pages_are_zero, mmap_hints_and_fixed, mmap_fixed_noreplace, mmap_bad_arguments,
    munmap_splits, munmap_of_hole_is_fine, mprotect_splits_and_faults, mprotect_errors,
    write_to_readonly_faults, exec_of_data_faults, read_of_unmapped_faults, null_faults,
    noncanonical_address_faults, kernel_address_faults, mremap_grows_and_moves,
    mremap_shrinks, mremap_fixed, mremap_errors, madvise_dontneed_zeroes, madvise_errors,
    madvise_free_and_hints, brk_grows_and_shrinks, mincore_reports, memfd_sizes_and_seals,
    shared_file_mapping_is_coherent, private_file_mapping_is_not_written, sigbus_beyond_file,
    truncate_under_mapping, shared_anonymous_across_fork, cow_both_ways, cow_in_grandchildren,
    kernel_writes_break_cow, mapping_survives_close_and_unlink, msync_rules, mlock_family,
    stack_grows, stack_limit_faults, many_mappings, thousand_page_pattern, map_32bit,
    map_populate, zero_page_mapping, prot_none_reserve_commit, file_offset_mapping,
    partial_last_page_is_zero, mmap_write_needs_rights, fork_keeps_layout, growsdown_guard,
    handler_can_repair_fault, membarrier_query, membarrier_registrations,
    membarrier_of_code_and_sequences, nothing_becomes_executable, process_vm_reads_child,
    process_vm_moves_pieces, maps_of_many_areas, policies_of_one_node,
    page_tables_are_freed, threads_fault_side_by_side, threads_fault_amid_changes,
    threads_read_a_file_that_shrinks, threads_copy_side_by_side, threads_drop_amid_copies,
    threads_write_to_a_file, writes_behind_a_new_end,
);

const RW: i32 = PROT_READ | PROT_WRITE;
const PA: i32 = MAP_PRIVATE | MAP_ANONYMOUS;
const PAGE: usize = 4096;

fn put(p: *mut u8, v: u8) {
    // SAFETY: tests pass addresses of their own mappings, or want the fault.
    unsafe { p.write_volatile(v) }
}

fn get(p: *const u8) -> u8 {
    // SAFETY: as in `put`: the caller's mapping is its own.
    unsafe { p.read_volatile() }
}

fn touch(p: *const u8) {
    get(p);
}

fn at(p: *mut u8, i: usize) -> *mut u8 {
    p.wrapping_add(i)
}

static NOTED: AtomicU64 = AtomicU64::new(0);

extern "C" fn note_fault(sig: i32, info: *const Siginfo, _: usize) {
    let w = NOTED.load(SeqCst) as *const AtomicU32;
    // SAFETY: four words of the shared page; the kernel's siginfo.
    let (w, info) = unsafe { (std::slice::from_raw_parts(w, 4), &*info) };
    w[0].store(sig as u32, SeqCst);
    w[1].store(info.code as u32, SeqCst);
    w[2].store(info.addr() as u32, SeqCst);
    w[3].store((info.addr() >> 32) as u32, SeqCst);
    quit(42);
}

/// Runs `f` in a child, which must fault; signal, si_code and si_addr.
#[track_caller]
pub fn fault(f: impl FnOnce()) -> (i32, i32, usize) {
    let w = fault_words();
    NOTED.store(w.as_ptr() as u64, SeqCst);
    let child = fork(|| {
        for sig in [SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP] {
            on_signal(sig, note_fault as *const () as usize, SA_SIGINFO, 0);
        }
        f();
        0
    });
    wait_code(child, 42);
    let w = |i: usize| w[i].load(SeqCst);
    (w(0) as i32, w(1) as i32, w(2) as usize | (w(3) as usize) << 32)
}

const SEGV_MAPERR: i32 = 1;
const SEGV_ACCERR: i32 = 2;

fn fresh_pages_are_zero() {
    let p = anon(64 * PAGE);
    for i in 0..64 * PAGE {
        assert_eq!(get(at(p, i)), 0);
        put(at(p, i), 0xff);
    }
    unmap(p, 64 * PAGE);
    let p = anon(64 * PAGE);
    assert!((0..64 * PAGE).all(|i| get(at(p, i)) == 0));
}

fn mmap_hints_and_fixed() {
    let p = anon(4 * PAGE) as usize;
    unmap(p as *mut u8, 4 * PAGE);
    mmap(p, PAGE, RW, PA, -1, 0).is(p);
    let q = mmap(p, PAGE, RW, PA, -1, 0).must();
    assert_ne!(q, p, "a taken hint is not used");
    put(p as *mut u8, 5);
    mmap(p, PAGE, RW, PA | MAP_FIXED, -1, 0).is(p);
    assert_eq!(get(p as *const u8), 0, "MAP_FIXED replaces");
    mmap(p + 1, PAGE, RW, PA | MAP_FIXED, -1, 0).fails(EINVAL);
    // A hint that is not page-aligned is rounded.
    assert_eq!(mmap(0x5000_0123, PAGE, RW, PA, -1, 0).must() % PAGE, 0);
}

fn mmap_fixed_noreplace() {
    let p = anon(PAGE) as usize;
    mmap(p, PAGE, RW, PA | MAP_FIXED_NOREPLACE, -1, 0).fails(EEXIST);
    unmap(p as *mut u8, PAGE);
    mmap(p, PAGE, RW, PA | MAP_FIXED_NOREPLACE, -1, 0).is(p);
}

fn mmap_bad_arguments() {
    mmap(0, 0, RW, PA, -1, 0).fails(EINVAL);
    mmap(0, PAGE, RW, MAP_ANONYMOUS, -1, 0).fails(EINVAL);
    mmap(0, PAGE, RW, MAP_PRIVATE, -1, 0).fails(EBADF);
    mmap(0, PAGE, RW, PA, -1, 1).fails(EINVAL);
    mmap(0, usize::MAX, RW, PA, -1, 0).fails(ENOMEM);
    mmap(0, 1 << 48, RW, PA, -1, 0).fails(ENOMEM);
    mmap(0x7fff_ffff_f000, PAGE, RW, PA | MAP_FIXED, -1, 0).fails(ENOMEM);
    mmap(1 << 63, PAGE, RW, PA | MAP_FIXED, -1, 0).fails(ENOMEM);
    let (r, _w) = pipe();
    mmap(0, PAGE, RW, MAP_PRIVATE, r, 0).fails(ENODEV);
    let fd = open("/tmp", O_RDONLY).fd();
    mmap(0, PAGE, PROT_READ, MAP_PRIVATE, fd, 0).fails(ENODEV);
}

fn munmap_splits() {
    let p = anon(5 * PAGE);
    (0..5).for_each(|i| put(at(p, i * PAGE), i as u8 + 1));
    unmap(at(p, 2 * PAGE), PAGE);
    assert_eq!(get(at(p, PAGE)), 2);
    assert_eq!(get(at(p, 3 * PAGE)), 4);
    let hole = at(p, 2 * PAGE);
    let got = fault(|| put(at(hole, 7), 1));
    assert_eq!(got, (SIGSEGV, SEGV_MAPERR, hole as usize + 7));
    sc!(SYS_munmap, at(p, 1), PAGE).fails(EINVAL);
    sc!(SYS_munmap, p, 0).fails(EINVAL);
    sc!(SYS_munmap, p, usize::MAX - 4095).fails(EINVAL);
}

fn munmap_of_hole_is_fine() {
    let p = anon(8 * PAGE);
    unmap(at(p, PAGE), 2 * PAGE);
    unmap(at(p, 4 * PAGE), PAGE);
    unmap(p, 8 * PAGE);
    unmap(p, 8 * PAGE);
}

fn mprotect_splits_and_faults() {
    let p = anon(3 * PAGE);
    put(at(p, PAGE), 1);
    sc!(SYS_mprotect, at(p, PAGE), PAGE, PROT_NONE).is(0);
    put(p, 1);
    put(at(p, 2 * PAGE), 1);
    let mid = at(p, PAGE);
    assert_eq!(fault(|| touch(mid)), (SIGSEGV, SEGV_ACCERR, mid as usize));
    sc!(SYS_mprotect, mid, PAGE, PROT_READ).is(0);
    assert_eq!(get(mid), 1);
    assert_eq!(fault(|| put(mid, 2)), (SIGSEGV, SEGV_ACCERR, mid as usize));
    sc!(SYS_mprotect, mid, PAGE, RW).is(0);
    put(mid, 3);
}

fn mprotect_errors() {
    let p = anon(3 * PAGE);
    sc!(SYS_mprotect, at(p, 1), PAGE, RW).fails(EINVAL);
    sc!(SYS_mprotect, p, 0, RW).is(0);
    sc!(SYS_mprotect, p, PAGE, 0x100).fails(EINVAL);
    unmap(at(p, PAGE), PAGE);
    sc!(SYS_mprotect, p, 3 * PAGE, PROT_READ).fails(ENOMEM);
    // What comes before the hole has been changed.
    assert_eq!(fault(|| put(p, 1)).1, SEGV_ACCERR);
}

fn write_to_readonly_faults() {
    let p = mmap(0, PAGE, PROT_READ, PA, -1, 0).must() as *mut u8;
    assert_eq!(get(at(p, 99)), 0);
    assert_eq!(fault(|| put(at(p, 99), 1)), (SIGSEGV, SEGV_ACCERR, p as usize + 99));
}

fn exec_of_data_faults() {
    let p = anon(PAGE);
    put(p, 0xc3);
    let call = || {
        // SAFETY: one `ret`, if the page may be executed.
        let f: extern "C" fn() = unsafe { std::mem::transmute(p) };
        f();
    };
    assert_eq!(fault(call), (SIGSEGV, SEGV_ACCERR, p as usize));
    sc!(SYS_mprotect, p, PAGE, PROT_READ | PROT_EXEC).is(0);
    call();
}

fn read_of_unmapped_faults() {
    let p = anon(PAGE);
    unmap(p, PAGE);
    assert_eq!(fault(|| touch(p)), (SIGSEGV, SEGV_MAPERR, p as usize));
}

fn null_faults() {
    for a in [0usize, 8, 4095] {
        let got = fault(|| touch(std::hint::black_box(a) as *const u8));
        assert_eq!(got, (SIGSEGV, SEGV_MAPERR, a));
    }
}

fn noncanonical_address_faults() {
    // A general protection fault has no address: SI_KERNEL (0x80) and si_addr 0.
    let got = fault(|| touch(0x8000_0000_0000_0000usize as *const u8));
    assert_eq!(got, (SIGSEGV, 0x80, 0));
}

fn kernel_address_faults() {
    for a in [0xffff_ffff_8000_0000usize, 0xffff_8880_0000_0000, 0xffff_ffff_ff00_0000] {
        assert_eq!(fault(|| touch(a as *const u8)), (SIGSEGV, SEGV_MAPERR, a));
        assert_eq!(fault(|| put(a as *mut u8, 1)), (SIGSEGV, SEGV_MAPERR, a));
    }
}

fn mremap_grows_and_moves() {
    let p = anon(2 * PAGE);
    put(p, 1);
    put(at(p, PAGE), 2);
    let big = sc!(SYS_mremap, p, 2 * PAGE, 600 * PAGE, MREMAP_MAYMOVE).must() as *mut u8;
    assert_eq!((get(big), get(at(big, PAGE)), get(at(big, 599 * PAGE))), (1, 2, 0));
    // In place, when a neighbour is in the way and moving is not allowed: ENOMEM.
    let q = anon(2 * PAGE);
    sc!(SYS_mremap, q, PAGE, 2 * PAGE, 0).fails(ENOMEM);
    unmap(at(q, PAGE), PAGE);
    sc!(SYS_mremap, q, PAGE, 2 * PAGE, 0).is(q as usize);
    put(at(q, PAGE), 3);
}

fn mremap_shrinks() {
    let p = anon(4 * PAGE);
    put(p, 1);
    sc!(SYS_mremap, p, 4 * PAGE, PAGE, 0).is(p as usize);
    assert_eq!(get(p), 1);
    assert_eq!(fault(|| put(at(p, PAGE), 1)).1, SEGV_MAPERR);
}

fn mremap_fixed() {
    let p = anon(2 * PAGE);
    let q = anon(2 * PAGE);
    put(at(p, PAGE), 7);
    put(at(q, PAGE), 9);
    let flags = MREMAP_MAYMOVE | MREMAP_FIXED;
    sc!(SYS_mremap, p, 2 * PAGE, 2 * PAGE, flags, q).is(q as usize);
    assert_eq!(get(at(q, PAGE)), 7);
    assert_eq!(fault(|| touch(p)).1, SEGV_MAPERR);
    sc!(SYS_mremap, q, 2 * PAGE, 2 * PAGE, flags, at(q, PAGE)).fails(EINVAL);
}

fn mremap_errors() {
    let p = anon(2 * PAGE);
    sc!(SYS_mremap, at(p, 1), PAGE, PAGE, 0).fails(EINVAL);
    sc!(SYS_mremap, p, PAGE, 0, 0).fails(EINVAL);
    sc!(SYS_mremap, p, PAGE, PAGE, 0x80).fails(EINVAL);
    sc!(SYS_mremap, p, PAGE, PAGE, MREMAP_FIXED, p).fails(EINVAL);
    unmap(p, 2 * PAGE);
    sc!(SYS_mremap, p, PAGE, 2 * PAGE, MREMAP_MAYMOVE).fails(EFAULT);
}

fn madvise_dontneed_zeroes() {
    let p = anon(4 * PAGE);
    (0..4).for_each(|i| put(at(p, i * PAGE), 9));
    sc!(SYS_madvise, at(p, PAGE), 2 * PAGE, MADV_DONTNEED).is(0);
    let seen: Vec<u8> = (0..4).map(|i| get(at(p, i * PAGE))).collect();
    assert_eq!(seen, [9, 0, 0, 9]);
    // A shared mapping keeps its contents: they belong to the object.
    let s = new_shared();
    s[0].store(5, SeqCst);
    sc!(SYS_madvise, s.as_ptr(), PAGE, MADV_DONTNEED).is(0);
    assert_eq!(s[0].load(SeqCst), 5);
}

fn madvise_errors() {
    let p = anon(2 * PAGE);
    sc!(SYS_madvise, at(p, 1), PAGE, MADV_DONTNEED).fails(EINVAL);
    sc!(SYS_madvise, p, PAGE, 9999).fails(EINVAL);
    sc!(SYS_madvise, p, 0, MADV_DONTNEED).is(0);
    unmap(at(p, PAGE), PAGE);
    sc!(SYS_madvise, p, 2 * PAGE, MADV_DONTNEED).fails(ENOMEM);
}

fn madvise_free_and_hints() {
    let p = anon(8 * PAGE);
    (0..8).for_each(|i| put(at(p, i * PAGE), 3));
    for advice in [MADV_NORMAL, MADV_RANDOM, MADV_SEQUENTIAL, MADV_WILLNEED, MADV_FREE] {
        sc!(SYS_madvise, p, 8 * PAGE, advice).is(0);
    }
    // After MADV_FREE a page is its old contents or zero, and a write keeps it.
    put(p, 4);
    assert_eq!(get(p), 4);
    assert!((1..8).all(|i| matches!(get(at(p, i * PAGE)), 0 | 3)));
    sc!(SYS_madvise, p, 8 * PAGE, MADV_DONTFORK).is(0);
    assert_eq!(fault(|| touch(p)).1, SEGV_MAPERR, "MADV_DONTFORK");
    sc!(SYS_madvise, p, 8 * PAGE, MADV_DOFORK).is(0);
    sc!(SYS_madvise, p, 8 * PAGE, MADV_WIPEONFORK).is(0);
    in_child(|| assert_eq!(get(p), 0, "MADV_WIPEONFORK"));
}

fn brk_grows_and_shrinks() {
    in_child(|| {
        let start = sc!(SYS_brk, 0).must();
        sc!(SYS_brk, start + 10 * PAGE).is(start + 10 * PAGE);
        put((start + 9 * PAGE) as *mut u8, 1);
        sc!(SYS_brk, start + 4 * PAGE).is(start + 4 * PAGE);
        // A request that cannot be met leaves the break and gives its present value.
        sc!(SYS_brk, 1).is(start + 4 * PAGE);
        sc!(SYS_brk, usize::MAX - 1).is(start + 4 * PAGE);
        sc!(SYS_brk, start + 10 * PAGE).is(start + 10 * PAGE);
        assert_eq!(get((start + 9 * PAGE) as *const u8), 0, "given back, then fresh");
        sc!(SYS_brk, start + 12345).is(start + 12345);
    });
}

fn mincore_reports() {
    let p = anon(4 * PAGE);
    put(p, 1);
    put(at(p, 2 * PAGE), 1);
    let mut v = [9u8; 4];
    sc!(SYS_mincore, p, 4 * PAGE, v.as_mut_ptr()).is(0);
    assert_eq!(v.map(|b| b & 1), [1, 0, 1, 0]);
    sc!(SYS_mincore, at(p, 1), PAGE, v.as_mut_ptr()).fails(EINVAL);
    unmap(at(p, PAGE), PAGE);
    sc!(SYS_mincore, p, 2 * PAGE, v.as_mut_ptr()).fails(ENOMEM);
}

fn memfd_sizes_and_seals() {
    let fd = sc!(SYS_memfd_create, c"limen".as_ptr(), MFD_ALLOW_SEALING).fd();
    sc!(SYS_ftruncate, fd, 3 * PAGE).is(0);
    let p = mmap(0, 3 * PAGE, RW, MAP_SHARED, fd, 0).must() as *mut u8;
    put(at(p, 2 * PAGE), 8);
    let mut b = 0u8;
    sc!(SYS_pread64, fd, &raw mut b, 1, 2 * PAGE).is(1);
    assert_eq!(b, 8);
    sc!(SYS_fcntl, fd, F_ADD_SEALS, F_SEAL_WRITE).fails(EBUSY);
    unmap(p, 3 * PAGE);
    sc!(SYS_fcntl, fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE).is(0);
    sc!(SYS_fcntl, fd, F_GET_SEALS).is((F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) as usize);
    sc!(SYS_ftruncate, fd, PAGE).fails(EPERM);
    sc!(SYS_ftruncate, fd, 9 * PAGE).fails(EPERM);
    sc!(SYS_write, fd, &raw const b, 1).fails(EPERM);
    mmap(0, PAGE, RW, MAP_SHARED, fd, 0).fails(EPERM);
    let plain = sc!(SYS_memfd_create, c"plain".as_ptr(), 0).fd();
    sc!(SYS_fcntl, plain, F_ADD_SEALS, F_SEAL_GROW).fails(EPERM);
}

fn file_of(pages: usize) -> (String, i32) {
    let path = format!("{}/f", dir());
    let fd = open(&path, O_RDWR | O_CREAT).fd();
    for i in 0..pages {
        write(fd, &[i as u8 + 1; PAGE]);
    }
    (path, fd)
}

fn shared_file_mapping_is_coherent() {
    let (path, fd) = file_of(3);
    let p = mmap(0, 3 * PAGE, RW, MAP_SHARED, fd, 0).must() as *mut u8;
    assert_eq!(get(at(p, PAGE)), 2);
    sc!(SYS_pwrite64, fd, c"W".as_ptr(), 1, PAGE).is(1);
    assert_eq!(get(at(p, PAGE)), b'W', "write(2) is seen in the mapping");
    put(at(p, 2 * PAGE), b'M');
    let mut b = 0u8;
    sc!(SYS_pread64, fd, &raw mut b, 1, 2 * PAGE).is(1);
    assert_eq!(b, b'M', "the mapping is seen by read(2)");
    in_child(|| put(p, b'C'));
    assert_eq!(get(p), b'C');
    sc!(SYS_msync, p, 3 * PAGE, MS_SYNC).is(0);
    assert_eq!(std::fs::read(path).unwrap()[0], b'C');
}

fn private_file_mapping_is_not_written() {
    let (path, fd) = file_of(2);
    let p = mmap(0, 2 * PAGE, RW, MAP_PRIVATE, fd, 0).must() as *mut u8;
    put(p, b'P');
    assert_eq!(std::fs::read(path).unwrap()[0], 1);
    assert_eq!((get(p), get(at(p, 1))), (b'P', 1));
}

fn sigbus_beyond_file() {
    let (_, fd) = file_of(1);
    let p = mmap(0, 3 * PAGE, RW, MAP_SHARED, fd, 0).must() as *mut u8;
    let beyond = at(p, PAGE + 5);
    // BUS_ADRERR is 2.
    assert_eq!(fault(|| touch(beyond)), (SIGBUS, 2, beyond as usize));
    assert_eq!(fault(|| put(beyond, 1)), (SIGBUS, 2, beyond as usize));
}

fn truncate_under_mapping() {
    let (_, fd) = file_of(2);
    let p = mmap(0, 2 * PAGE, RW, MAP_SHARED, fd, 0).must() as *mut u8;
    assert_eq!(get(at(p, PAGE)), 2);
    sc!(SYS_ftruncate, fd, 100).is(0);
    assert_eq!((get(p), get(at(p, 99)), get(at(p, 100))), (1, 1, 0));
    assert_eq!(fault(|| touch(at(p, PAGE))).0, SIGBUS);
    sc!(SYS_ftruncate, fd, 2 * PAGE).is(0);
    assert_eq!(get(at(p, PAGE)), 0, "a file that grows again reads zero");
}

fn shared_anonymous_across_fork() {
    let w = new_shared();
    let child = fork(|| {
        until_at_least(&w[0], 1);
        w[1].store(2, SeqCst);
        0
    });
    w[0].store(1, SeqCst);
    until_at_least(&w[1], 2);
    wait_code(child, 0);
}

fn cow_both_ways() {
    let p = anon(32 * PAGE);
    (0..32).for_each(|i| put(at(p, i * PAGE), 1));
    let w = new_shared();
    let child = fork(|| {
        until_at_least(&w[0], 1);
        let clean = (0..32).all(|i| get(at(p, i * PAGE)) == 1);
        (0..32).for_each(|i| put(at(p, i * PAGE), 3));
        w[1].store(1, SeqCst);
        until_at_least(&w[0], 2);
        i32::from(!clean || (0..32).any(|i| get(at(p, i * PAGE)) != 3))
    });
    (0..32).for_each(|i| put(at(p, i * PAGE), 2));
    w[0].store(1, SeqCst);
    until_at_least(&w[1], 1);
    assert!((0..32).all(|i| get(at(p, i * PAGE)) == 2));
    w[0].store(2, SeqCst);
    wait_code(child, 0);
}

fn cow_in_grandchildren() {
    let p = anon(PAGE);
    put(p, 10);
    in_child(|| {
        in_child(|| {
            put(p, 30);
            in_child(|| assert_eq!(get(p), 30));
        });
        assert_eq!(get(p), 10);
        put(p, 20);
    });
    assert_eq!(get(p), 10);
}

fn kernel_writes_break_cow() {
    let p = anon(2 * PAGE);
    put(p, 1);
    let (r, w) = pipe();
    write(w, &[9; 100]);
    let child = fork(|| {
        // The kernel, not the program, writes into the shared page, across a page end.
        let to = at(p, PAGE - 50);
        i32::from(sc!(SYS_read, r, to, 100) != Ok(100) || get(at(p, PAGE + 49)) != 9)
    });
    wait_code(child, 0);
    assert_eq!((get(at(p, PAGE - 1)), get(at(p, PAGE))), (0, 0));
}

fn mapping_survives_close_and_unlink() {
    let (path, fd) = file_of(2);
    let p = mmap(0, 2 * PAGE, PROT_READ, MAP_SHARED, fd, 0).must() as *mut u8;
    close(fd);
    std::fs::remove_file(path).unwrap();
    assert_eq!((get(p), get(at(p, PAGE))), (1, 2));
}

fn msync_rules() {
    let p = anon(2 * PAGE);
    sc!(SYS_msync, p, PAGE, MS_ASYNC | MS_SYNC).fails(EINVAL);
    sc!(SYS_msync, at(p, 1), PAGE, MS_SYNC).fails(EINVAL);
    sc!(SYS_msync, p, PAGE, 0x100).fails(EINVAL);
    unmap(at(p, PAGE), PAGE);
    sc!(SYS_msync, p, 2 * PAGE, MS_ASYNC).fails(ENOMEM);
}

fn mlock_family() {
    let p = anon(4 * PAGE);
    sc!(SYS_mlock, p, 2 * PAGE).is(0);
    let mut v = [0u8; 2];
    sc!(SYS_mincore, p, 2 * PAGE, v.as_mut_ptr()).is(0);
    assert_eq!(v.map(|b| b & 1), [1, 1]);
    sc!(SYS_munlock, p, 2 * PAGE).is(0);
    sc!(SYS_mlock2, p, PAGE, 2).fails(EINVAL);
    sc!(SYS_mlockall, 0x80).fails(EINVAL);
    sc!(SYS_munlockall).is(0);
    unmap(p, 4 * PAGE);
    sc!(SYS_mlock, p, PAGE).fails(ENOMEM);
}

#[inline(never)]
fn eat_stack(depth: usize) -> u64 {
    let mut block = [depth as u64; 512];
    std::hint::black_box(&mut block);
    if depth == 0 { block[3] } else { eat_stack(depth - 1) + block[7] }
}

fn stack_grows() {
    // 1000 frames of 4 KiB, half of the customary 8 MiB.
    assert_eq!(eat_stack(1000), 1000 * 1001 / 2);
}

fn stack_limit_faults() {
    // The handler cannot run without a stack, so the process dies from the signal itself.
    let child = fork(|| {
        let lim = rlimit { rlim_cur: 1 << 20, rlim_max: 1 << 20 };
        let _ = sc!(SYS_setrlimit, RLIMIT_STACK, &raw const lim);
        on_signal(SIGSEGV, note_fault as *const () as usize, SA_SIGINFO, 0);
        eat_stack(100_000) as i32
    });
    wait_signal(child, SIGSEGV);
}

fn many_mappings() {
    let mut held = Vec::new();
    for i in 0..1000u32 {
        let prot = if i % 2 == 0 { RW } else { PROT_READ };
        held.push(mmap(0, PAGE, prot, PA, -1, 0).must());
    }
    for (i, &p) in held.iter().enumerate().step_by(2) {
        put(p as *mut u8, i as u8);
    }
    for (i, &p) in held.iter().enumerate().step_by(2) {
        assert_eq!(get(p as *const u8), i as u8);
    }
    for p in held.iter().rev() {
        unmap(*p as *mut u8, PAGE);
    }
}

fn thousand_page_pattern() {
    // Protections in stripes over one mapping, then taken back: the pieces join or at least work.
    let p = anon(1000 * PAGE);
    for i in (0..1000).step_by(2) {
        sc!(SYS_mprotect, at(p, i * PAGE), PAGE, PROT_READ).is(0);
    }
    (1..1000).step_by(2).for_each(|i| put(at(p, i * PAGE), i as u8));
    assert_eq!(fault(|| put(at(p, 500 * PAGE), 1)).1, SEGV_ACCERR);
    sc!(SYS_mprotect, p, 1000 * PAGE, RW).is(0);
    (0..1000).for_each(|i| put(at(p, i * PAGE + 1), 1));
    assert!((1..1000).step_by(2).all(|i| get(at(p, i * PAGE)) == i as u8));
}

fn map_32bit() {
    let p = mmap(0, PAGE, RW, PA | MAP_32BIT, -1, 0).must();
    assert!(p < 1 << 31, "{p:#x}");
}

fn map_populate() {
    let p = mmap(0, 8 * PAGE, RW, PA | MAP_POPULATE, -1, 0).must();
    let mut v = [0u8; 8];
    sc!(SYS_mincore, p, 8 * PAGE, v.as_mut_ptr()).is(0);
    assert!(v.iter().all(|b| b & 1 == 1));
}

fn zero_page_mapping() {
    let fd = open("/dev/zero", O_RDWR).fd();
    let p = mmap(0, 2 * PAGE, RW, MAP_PRIVATE, fd, 0).must() as *mut u8;
    assert_eq!(get(p), 0);
    put(p, 1);
    let s = mmap(0, PAGE, RW, MAP_SHARED, fd, 0).must() as *mut u8;
    in_child(|| put(s, 4));
    assert_eq!(get(s), 4);
}

fn prot_none_reserve_commit() {
    // What Go and jemalloc do: reserve much without access, then open parts of it.
    let flags = PA | MAP_NORESERVE;
    let p = mmap(0, 64 << 30, PROT_NONE, flags, -1, 0).must() as *mut u8;
    let q = at(p, 7 << 30);
    sc!(SYS_mprotect, q, 16 * PAGE, RW).is(0);
    put(at(q, 15 * PAGE), 1);
    mmap(q as usize + (1 << 20), PAGE, RW, PA | MAP_FIXED, -1, 0).must();
    put(at(q, 1 << 20), 1);
    unmap(p, 64 << 30);
}

fn file_offset_mapping() {
    let (_, fd) = file_of(5);
    let p = mmap(0, 2 * PAGE, PROT_READ, MAP_PRIVATE, fd, 3 * PAGE).must() as *mut u8;
    assert_eq!((get(p), get(at(p, PAGE))), (4, 5));
    mmap(0, PAGE, PROT_READ, MAP_PRIVATE, fd, 100).fails(EINVAL);
    mmap(0, PAGE, PROT_READ, MAP_PRIVATE, fd, usize::MAX - 4095).fails(EOVERFLOW);
}

fn partial_last_page_is_zero() {
    let (_, fd) = file_of(1);
    write(fd, b"abc");
    let p = mmap(0, 2 * PAGE, PROT_READ, MAP_PRIVATE, fd, 0).must() as *mut u8;
    assert_eq!(get(at(p, PAGE + 2)), b'c');
    assert!((3..PAGE).all(|i| get(at(p, PAGE + i)) == 0));
}

fn mmap_write_needs_rights() {
    let (path, _) = file_of(1);
    let ro = open(&path, O_RDONLY).fd();
    mmap(0, PAGE, RW, MAP_SHARED, ro, 0).fails(EACCES);
    let p = mmap(0, PAGE, PROT_READ, MAP_SHARED, ro, 0).must();
    sc!(SYS_mprotect, p, PAGE, RW).fails(EACCES);
    mmap(0, PAGE, RW, MAP_PRIVATE, ro, 0).must();
    let wo = open(&path, O_WRONLY).fd();
    mmap(0, PAGE, PROT_READ, MAP_PRIVATE, wo, 0).fails(EACCES);
}

fn fork_keeps_layout() {
    let p = anon(3 * PAGE);
    sc!(SYS_mprotect, at(p, PAGE), PAGE, PROT_NONE).is(0);
    in_child(|| {
        put(p, 1);
        put(at(p, 2 * PAGE), 1);
        assert_eq!(fault(|| touch(at(p, PAGE))).1, SEGV_ACCERR);
    });
}

fn growsdown_guard() {
    // Linux keeps 256 pages free below such a mapping: make room for them.
    let base = anon(1024 * PAGE);
    unmap(base, 1024 * PAGE);
    let top = base as usize + 900 * PAGE;
    let flags = PA | MAP_FIXED | MAP_GROWSDOWN;
    mmap(top, PAGE, RW, flags, -1, 0).is(top);
    // Just below is grown into by touching it.
    put((top - 8) as *mut u8, 5);
    assert_eq!(get((top - 8) as *const u8), 5);
}

static REPAIR: AtomicU64 = AtomicU64::new(0);

extern "C" fn repair(_: i32, info: *const Siginfo, _: usize) {
    // SAFETY: the kernel's siginfo stays on this stack until the handler returns.
    let page = unsafe { (*info).addr() } & !(PAGE - 1);
    sc!(SYS_mprotect, page, PAGE, RW).is(0);
    REPAIR.fetch_add(1, SeqCst);
}

fn handler_can_repair_fault() {
    on_signal(SIGSEGV, repair as *const () as usize, SA_SIGINFO, 0);
    let p = mmap(0, 50 * PAGE, PROT_NONE, PA, -1, 0).must() as *mut u8;
    for i in 0..50 {
        put(at(p, i * PAGE), i as u8);
        assert_eq!(get(at(p, i * PAGE)), i as u8);
    }
    assert_eq!(REPAIR.load(SeqCst), 50);
}

fn membarrier_registrations() {
    const REGISTERED: usize = 1 << 9;
    let call = |command: usize| sc!(SYS_membarrier, command, 0, 0);
    in_child(|| {
        call(REGISTERED).is(0);
        call(8).fails(EPERM);
        call(16).is(0);
        call(REGISTERED).is(16);
        call(4).is(0);
        call(REGISTERED).is(20);
        call(8).is(0);
        sc!(SYS_membarrier, REGISTERED, 1, 0).fails(EINVAL);
        // A child goes on in a copy of the memory.
        in_child(|| {
            call(REGISTERED).is(20);
            call(8).is(0);
        });
    });
}

/// PR_SET_MDWE (prctl(2)): what could be written is never executed.
fn nothing_becomes_executable() {
    const PR_SET_MDWE: i32 = 65;
    const PR_GET_MDWE: i32 = 66;
    let set = |bits: usize| sc!(SYS_prctl, PR_SET_MDWE, bits, 0, 0, 0);
    let get = || sc!(SYS_prctl, PR_GET_MDWE, 0, 0, 0, 0);
    let map = |prot: i32| mmap(0, PAGE, prot, PA, -1, 0);
    let readable = map(PROT_READ).must();
    let code = map(PROT_READ | PROT_EXEC).must();
    get().is(0);
    set(2).fails(EINVAL);
    set(4).fails(EINVAL);
    sc!(SYS_prctl, PR_SET_MDWE, 1, 1, 0, 0).fails(EINVAL);
    sc!(SYS_prctl, PR_GET_MDWE, 1, 0, 0, 0).fails(EINVAL);
    in_child(|| {
        set(3).is(0);
        get().is(3);
        map(PROT_WRITE | PROT_EXEC).fails(EACCES);
        // Neither a child nor a new program begins with it.
        in_child(|| get().is(0));
    });
    set(1).is(0);
    set(0).fails(EPERM);
    set(3).fails(EPERM);
    set(1).is(0);
    map(PROT_READ | PROT_WRITE | PROT_EXEC).fails(EACCES);
    map(PROT_READ | PROT_EXEC).must();
    sc!(SYS_mprotect, readable, PAGE, PROT_READ | PROT_EXEC).fails(EACCES);
    sc!(SYS_mprotect, code, PAGE, PROT_READ | PROT_WRITE | PROT_EXEC).fails(EACCES);
    sc!(SYS_mprotect, code, PAGE, PROT_EXEC).is(0);
    sc!(SYS_mprotect, readable, PAGE, PROT_READ | PROT_WRITE).is(0);
    // What is no longer executable stays so.
    sc!(SYS_mprotect, code, PAGE, PROT_READ).is(0);
    sc!(SYS_mprotect, code, PAGE, PROT_READ | PROT_EXEC).fails(EACCES);
    in_child(|| get().is(1));
}

/// Barriers of executed code and of restartable sequences, with a thread that runs meanwhile.
fn membarrier_of_code_and_sequences() {
    in_child(|| {
        let call = |command: usize, flags: usize| sc!(SYS_membarrier, command, flags, 0);
        let known = call(0, 0).must();
        for (command, registration) in [(32, 64), (128, 256)] {
            assert_eq!(known & (command | registration), command | registration);
            call(command, 0).fails(EPERM);
            call(registration, 0).is(0);
            call(registration, 1).fails(EINVAL);
            call(command, 0).is(0);
        }
        assert_eq!(call(512, 0).must() & 320, 320);
        // One CPU, which need not be there, for sequences only.
        call(128, 1).is(0);
        sc!(SYS_membarrier, 128, 1, 9999).is(0);
        call(32, 1).fails(EINVAL);
        let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let seen = stop.clone();
        let spinner = std::thread::spawn(move || while !seen.load(SeqCst) {});
        for _ in 0..100 {
            call(32, 0).is(0);
            call(128, 0).is(0);
        }
        stop.store(true, SeqCst);
        spinner.join().unwrap();
    });
}

fn membarrier_query() {
    let known = sc!(SYS_membarrier, 0, 0, 0).must();
    assert_ne!(known & 8, 0, "PRIVATE_EXPEDITED is known: {known:#x}");
    sc!(SYS_membarrier, 8, 0, 0).fails(EPERM);
    sc!(SYS_membarrier, 16, 0, 0).is(0);
    sc!(SYS_membarrier, 8, 0, 0).is(0);
    sc!(SYS_membarrier, 3, 0, 0).fails(EINVAL);
}

/// /proc/self/maps is long and read in pieces: every area is there once, at any position.
fn maps_of_many_areas() {
    const AREAS: usize = 1000;
    let p = anon(2 * AREAS * PAGE) as usize;
    for i in 0..AREAS {
        sc!(SYS_mprotect, p + 2 * i * PAGE, PAGE, PROT_READ).is(0);
    }
    let fd = open("/proc/self/maps", O_RDONLY).fd();
    let mut text = Vec::with_capacity(1 << 20);
    loop {
        let part = read(fd, 1000);
        if part.is_empty() {
            break;
        }
        text.extend(part);
    }
    // Nothing is allocated between the readings: it could be mapped, and change the text.
    for at in [50_000, 70, 0, 90_001] {
        let mut b = [0u8; 100];
        let n = sc!(SYS_pread64, fd, b.as_mut_ptr(), 100, at).must();
        assert!(n > 0);
        assert_eq!(&b[..n], &text[at..at + n]);
    }
    let lines = String::from_utf8(text).unwrap();
    let starts: Vec<usize> = lines
        .lines()
        .map(|line| usize::from_str_radix(line.split('-').next().unwrap(), 16).unwrap())
        .filter(|start| (p..p + 2 * AREAS * PAGE).contains(start))
        .collect();
    let expected: Vec<usize> = (0..2 * AREAS).map(|i| p + i * PAGE).collect();
    assert_eq!(starts, expected);
}

fn process_vm_moves_pieces() {
    // Two pages on the other side, of which the second may not be touched.
    let p = anon(2 * PAGE);
    sc!(SYS_mprotect, p as usize + PAGE, PAGE, PROT_NONE).is(0);
    let child = fork(|| {
        loop {
            let _ = sc!(SYS_pause);
        }
    });
    let text = *b"abcdef";
    let local = [[text.as_ptr() as usize, 2], [text.as_ptr() as usize + 2, 4]];
    let remote = [[p as usize + 10, 3], [p as usize + PAGE - 2, 3]];
    let arrays = (local.as_ptr(), remote.as_ptr());
    // Five bytes fit before the page that may not be written.
    sc!(SYS_process_vm_writev, child, arrays.0, 2, arrays.1, 2, 0).is(5);
    let mut back = [0u8; 6];
    let into = [[back.as_mut_ptr() as usize, 6]];
    sc!(SYS_process_vm_readv, child, into.as_ptr(), 1, remote.as_ptr(), 2, 0).is(5);
    assert_eq!(&back, b"abcde\0");
    let none = [[p as usize + PAGE, 1]];
    sc!(SYS_process_vm_readv, child, into.as_ptr(), 1, none.as_ptr(), 1, 0).fails(EFAULT);
    sc!(SYS_process_vm_writev, child, arrays.0, 1, none.as_ptr(), 1, 0).fails(EFAULT);
    sc!(SYS_kill, child, SIGKILL).is(0);
    wait_signal(child, SIGKILL);
}

fn process_vm_reads_child() {
    let p = anon(PAGE);
    let w = new_shared();
    let child = fork(|| {
        put(p, 77);
        w[0].store(1, SeqCst);
        loop {
            let _ = sc!(SYS_pause);
        }
    });
    until_at_least(&w[0], 1);
    let mut b = 0u8;
    let local = [&raw mut b as usize, 1];
    let remote = [p as usize, 1];
    sc!(SYS_process_vm_readv, child, local.as_ptr(), 1, remote.as_ptr(), 1, 0).is(1);
    assert_eq!(b, 77);
    let bad = [0usize, 1];
    sc!(SYS_process_vm_readv, child, local.as_ptr(), 1, bad.as_ptr(), 1, 0).fails(EFAULT);
    sc!(SYS_process_vm_readv, child, local.as_ptr(), 1, remote.as_ptr(), 1, 1).fails(EINVAL);
    sc!(SYS_process_vm_readv, i32::MAX, local.as_ptr(), 1, remote.as_ptr(), 1, 0).fails(ESRCH);
    sc!(SYS_kill, child, SIGKILL).is(0);
    wait_signal(child, SIGKILL);
}

/// NUMA calls where there is one node, as on the machines these tests run on.
fn policies_of_one_node() {
    const NODES: i64 = 1 << 1;
    let (mut mode, mut mask) = (9u32, [7u64; 16]);
    let (at_mode, at_mask) = (&raw mut mode as usize, mask.as_mut_ptr() as usize);
    if sc!(SYS_get_mempolicy, at_mode, at_mask, 1024, 0, 0) == Err(ENOSYS) {
        return; // A Linux without NUMA.
    }
    assert_eq!((mode, mask[0], mask[15]), (0, 0, 0));
    // MPOL_F_MEMS_ALLOWED
    sc!(SYS_get_mempolicy, 0, at_mask, 1024, 0, 4).is(0);
    if mask[0] != 1 {
        return; // More than one node.
    }
    sc!(SYS_get_mempolicy, 0, 0, 0, 0, 8).fails(EINVAL);
    sc!(SYS_get_mempolicy, 0, 0, 0, 4096, 0).fails(EINVAL);
    sc!(SYS_get_mempolicy, at_mode, 0, 0, 4096, 2).fails(EFAULT);
    sc!(SYS_set_mempolicy, 99, 0, 0).fails(EINVAL);
    let (one, two) = ([1u64], [2u64]);
    sc!(SYS_set_mempolicy, MPOL_BIND, one.as_ptr(), 64).is(0);
    sc!(SYS_set_mempolicy, MPOL_BIND, two.as_ptr(), 64).fails(EINVAL);
    sc!(SYS_set_mempolicy, MPOL_BIND, 8, 64).fails(EFAULT);
    sc!(SYS_set_mempolicy, MPOL_BIND, 0, 0).fails(EINVAL);
    sc!(SYS_set_mempolicy, MPOL_DEFAULT, one.as_ptr(), 64).fails(EINVAL);
    sc!(SYS_set_mempolicy, MPOL_DEFAULT, 0, 0).is(0);
    let p = anon(3 * PAGE);
    sc!(SYS_mbind, p, 3 * PAGE, MPOL_BIND, one.as_ptr(), NODES, 0).is(0);
    sc!(SYS_mbind, p as usize + 1, PAGE, MPOL_BIND, one.as_ptr(), NODES, 0).fails(EINVAL);
    sc!(SYS_munmap, p as usize + PAGE, PAGE).is(0);
    sc!(SYS_mbind, p, 3 * PAGE, MPOL_BIND, one.as_ptr(), NODES, 0).fails(EFAULT);
    sc!(SYS_mbind, p, 3 * PAGE, MPOL_DEFAULT, 0, 0, 0).is(0);
    sc!(SYS_munmap, p, 3 * PAGE).is(0);
    sc!(SYS_mbind, p, 3 * PAGE, MPOL_DEFAULT, 0, 0, 0).fails(EFAULT);
}

/// A number of a line of /proc/self/status or the like, such as VmPTE's.
pub fn number_of(file: &str, name: &str) -> usize {
    let text = std::fs::read_to_string(file).expect(file);
    let line = text.lines().find(|line| line.starts_with(&format!("{name}:")));
    let line = line.unwrap_or_else(|| panic!("no {name} in {file}"));
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// A page in each 2 MiB needs a table of its own, for as long as it is mapped.
fn page_tables_are_freed() {
    const LARGE: usize = 2 << 20;
    const PAGES: usize = 200;
    let tables = || number_of("/proc/self/status", "VmPTE");
    let room = (PAGES + 1) * LARGE;
    let p = mmap(0, room, PROT_NONE, PA | MAP_NORESERVE, -1, 0).must();
    unmap(p as *mut u8, room);
    let base = p.next_multiple_of(LARGE);
    let touch_all = || {
        for page in (base..).step_by(LARGE).take(PAGES) {
            mmap(page, PAGE, RW, PA | MAP_FIXED, -1, 0).is(page);
            put(page as *mut u8, 1);
        }
    };
    let before = tables();
    assert!(before > 0);
    touch_all();
    let during = tables();
    assert!(during >= before + PAGES * 4, "{during} kB of tables for {PAGES}, {before} before");
    (0..PAGES).for_each(|n| unmap((base + n * LARGE) as *mut u8, PAGE));
    let after = tables();
    assert!(after <= before + 16, "{after} kB of tables are left of {during}, {before} before");
    // All at once, from before the first to behind the last.
    touch_all();
    unmap(base as *mut u8, PAGES * LARGE);
    let after = tables();
    assert!(after <= before + 16, "{after} kB of tables are left of {during}, {before} before");
    // One that moves leaves its table behind.
    mmap(base, PAGE, RW, PA | MAP_FIXED, -1, 0).is(base);
    for page in (base..).step_by(LARGE).take(PAGES) {
        put(page as *mut u8, 1);
        let flags = MREMAP_MAYMOVE | MREMAP_FIXED;
        sc!(SYS_mremap, page, PAGE, PAGE, flags, page + LARGE).is(page + LARGE);
    }
    let after = tables();
    assert!(after <= before + 24, "{after} kB of tables after one page moved, {before} before");
}

const FAULTERS: usize = 4;
const FAULT_ROUNDS: usize = 40;
const FAULT_PAGES: usize = 64;

/// Calls `f` in threads, with their numbers, all from one moment on.
fn at_once(f: impl Fn(usize) + Sync) {
    let start = std::sync::Barrier::new(FAULTERS);
    std::thread::scope(|scope| {
        for number in 0..FAULTERS {
            let (f, start) = (&f, &start);
            scope.spawn(move || {
                start.wait();
                f(number);
            });
        }
    });
}

/// Threads that bring in the same pages at the same time get the same pages, whoever was first, and
/// each is counted once.
fn threads_fault_side_by_side() {
    let len = FAULT_PAGES * PAGE;
    for round in 0..FAULT_ROUNDS {
        let p = anon(len) as usize;
        sc!(SYS_madvise, p, len, MADV_NOHUGEPAGE).is(0);
        at_once(|number| {
            for page in 0..FAULT_PAGES {
                let at = (p + page * PAGE + number) as *mut u8;
                // Some see the page of zeros first.
                if round % 2 == 1 {
                    assert_eq!(get(at), 0);
                }
                put(at, number as u8 + 1);
            }
        });
        for page in 0..FAULT_PAGES {
            let bytes: Vec<u8> = (0..8).map(|i| get((p + page * PAGE + i) as *const u8)).collect();
            assert_eq!(bytes, [1, 2, 3, 4, 0, 0, 0, 0], "page {page} in round {round}");
        }
        unmap(p as *mut u8, len);
    }
}

/// Faults beside calls that change other areas of the same tables: no page is lost, or comes back.
fn threads_fault_amid_changes() {
    let len = FAULT_PAGES * PAGE;
    let p = anon(FAULTERS * len) as usize;
    at_once(|number| {
        let own = p + number * len;
        for round in 1..=FAULT_ROUNDS {
            for page in 0..FAULT_PAGES {
                let at = (own + page * PAGE) as *mut u8;
                assert_eq!(get(at), 0, "round {round}: what was dropped came back");
                put(at, round as u8);
            }
            let kept =
                (0..FAULT_PAGES).all(|page| get((own + page * PAGE) as *const u8) == round as u8);
            assert!(kept, "round {round}: a page was lost");
            match number % 2 {
                0 => sc!(SYS_madvise, own, len, MADV_DONTNEED).is(0),
                _ => mmap(own, len, RW, PA | MAP_FIXED, -1, 0).is(own),
            }
        }
    });
    unmap(p as *mut u8, FAULTERS * len);
}

/// A page that is gone from a file is gone from its mappings, whoever was about to map it.
fn threads_read_a_file_that_shrinks() {
    let fd = sc!(SYS_memfd_create, c("shrinks").as_ptr(), 0).must();
    let len = FAULT_PAGES * PAGE;
    sc!(SYS_ftruncate, fd, len).is(0);
    let p = mmap(0, len, PROT_READ, MAP_SHARED, fd as i32, 0).must();
    at_once(|number| {
        for round in 1..=FAULT_ROUNDS as u32 {
            if number == 0 {
                // All but the first page go and come, with other contents.
                sc!(SYS_ftruncate, fd, PAGE).is(0);
                sc!(SYS_ftruncate, fd, len).is(0);
                let text = [round as u8; PAGE];
                for page in 1..FAULT_PAGES {
                    sc!(SYS_pwrite64, fd, text.as_ptr(), PAGE, page * PAGE).is(PAGE);
                }
                let is_new = |page: usize| get((p + page * PAGE) as *const u8) == round as u8;
                assert!((1..FAULT_PAGES).all(is_new), "round {round}: an old page is mapped");
            } else {
                // The first page is always there: its neighbours come with it.
                sc!(SYS_madvise, p, PAGE, MADV_DONTNEED).is(0);
                touch(p as *const u8);
            }
        }
    });
    unmap(p as *mut u8, len);
    sc!(SYS_close, fd).is(0);
}

/// Calls `f` with the address of pages that a child shares, so that the first write to each copies
/// it; the child's stay what they were.
fn beside_child(f: impl FnOnce(usize)) {
    let len = FAULT_PAGES * PAGE;
    let p = anon(len);
    sc!(SYS_madvise, p, len, MADV_NOHUGEPAGE).is(0);
    (0..FAULT_PAGES).for_each(|page| put(at(p, page * PAGE), 7));
    let w = new_shared();
    let child = fork(|| {
        until_at_least(&w[0], 1);
        i32::from(!(0..FAULT_PAGES).all(|page| get(at(p, page * PAGE)) == 7))
    });
    f(p as usize);
    w[0].store(1, SeqCst);
    wait_code(child, 0);
    unmap(p, len);
}

/// While pages are copied beneath them no write of a thread is lost, and each is seen by all.
fn threads_copy_side_by_side() {
    const WRITERS: u32 = FAULTERS as u32 - 1;
    for _ in 0..FAULT_ROUNDS / 4 {
        beside_child(|p| {
            let told = [const { AtomicU32::new(0) }; FAULT_PAGES];
            // SAFETY: a word of each page, which nobody uses otherwise.
            let word = |page| unsafe { AtomicU32::from_ptr((p + page * PAGE + 64) as *mut u32) };
            at_once(|number| {
                for (page, told) in told.iter().enumerate() {
                    if number > 0 {
                        let done = word(page).fetch_add(1, SeqCst) + 1;
                        told.fetch_max(done, SeqCst);
                        continue;
                    }
                    let mut done = 0;
                    while done < WRITERS {
                        done = told.load(SeqCst);
                        let seen = word(page).load(SeqCst);
                        assert!(seen >= done, "page {page}: {seen} where {done} was written");
                        sc!(SYS_sched_yield).is(0);
                    }
                }
            });
            assert!((0..FAULT_PAGES).all(|page| word(page).load(SeqCst) == WRITERS));
        });
    }
}

/// A page that is dropped while it is copied is empty, or what was written to it since.
fn threads_drop_amid_copies() {
    for _ in 0..FAULT_ROUNDS / 4 {
        beside_child(|p| {
            at_once(|number| {
                for page in (0..FAULT_PAGES).map(|page| p + page * PAGE) {
                    if number == 0 {
                        sc!(SYS_madvise, page, PAGE, MADV_DONTNEED).is(0);
                        continue;
                    }
                    let own = (page + number) as *mut u8;
                    put(own, number as u8);
                    let seen = get(own);
                    assert!([0, number as u8].contains(&seen), "{seen} where {number} was written");
                }
            });
            sc!(SYS_madvise, p, FAULT_PAGES * PAGE, MADV_DONTNEED).is(0);
            assert!((0..FAULT_PAGES * PAGE).all(|i| get((p + i) as *const u8) == 0));
        });
    }
}

/// What is written behind the end of a file that has just got shorter stays, whoever touches that
/// page through a mapping meanwhile.
fn writes_behind_a_new_end() {
    const ROUNDS: usize = 5000;
    const AT: usize = PAGE + 64;
    let fd = sc!(SYS_memfd_create, c("shorter").as_ptr(), 0).fd();
    let p = mmap(0, 2 * PAGE, RW, MAP_SHARED, fd, 0).must();
    let zeros = open("/dev/zero", O_RDONLY).fd();
    let is_over = AtomicU32::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while is_over.load(SeqCst) == 0 {
                let got = sc!(SYS_read, zeros, p + PAGE, 1);
                assert!([Ok(1), Err(EFAULT)].contains(&got), "{got:?}");
            }
        });
        for round in 1..=ROUNDS {
            sc!(SYS_ftruncate, fd, 2 * PAGE).is(0);
            sc!(SYS_ftruncate, fd, 0).is(0);
            sc!(SYS_pwrite64, fd, &raw const round, 8, AT).is(8);
            let mut read = 0usize;
            sc!(SYS_pread64, fd, &raw mut read, 8, AT).is(8);
            if read != round {
                is_over.store(1, SeqCst);
            }
            assert_eq!(read, round, "what was written");
        }
        is_over.store(1, SeqCst);
    });
    unmap(p as *mut u8, 2 * PAGE);
    close(zeros);
    close(fd);
}

/// Threads write to the same pages of a file through a mapping: all is in the file if that is
/// shared, and nothing if it is private.
fn threads_write_to_a_file() {
    let fd = sc!(SYS_memfd_create, c("written").as_ptr(), 0).must();
    let len = FAULT_PAGES * PAGE;
    sc!(SYS_ftruncate, fd, len).is(0);
    for flags in [MAP_SHARED, MAP_PRIVATE] {
        let p = mmap(0, len, RW, flags, fd as i32, 0).must();
        for round in 1..=FAULT_ROUNDS as u8 {
            at_once(|number| {
                for page in 0..FAULT_PAGES {
                    let at = (p + page * PAGE + number) as *mut u8;
                    // Some are there already, to be read.
                    if round % 2 == 1 {
                        touch(at);
                    }
                    put(at, round);
                }
            });
            let in_file = if flags == MAP_SHARED { round } else { FAULT_ROUNDS as u8 };
            for page in 0..FAULT_PAGES {
                let mut bytes = [0u8; FAULTERS];
                sc!(SYS_pread64, fd, bytes.as_mut_ptr(), FAULTERS, page * PAGE).is(FAULTERS);
                assert_eq!(bytes, [in_file; FAULTERS], "page {page} of the file, round {round}");
                let mapped =
                    (0..FAULTERS).all(|i| get((p + page * PAGE + i) as *const u8) == round);
                assert!(mapped, "page {page}, round {round}");
            }
            sc!(SYS_madvise, p, len, MADV_DONTNEED).is(0);
        }
        unmap(p as *mut u8, len);
    }
    sc!(SYS_close, fd).is(0);
}
