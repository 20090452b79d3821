//! Protection keys (pkeys(7), pkey_alloc(2), pkey_mprotect(2)), and memory that can be executed and
//! nothing else, which is made of one. Where the CPU has none there is nothing to test.

use std::arch::asm;
use std::arch::x86_64::__cpuid_count;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};

use crate::addresses::is_limen;
use crate::mappings::{get, put};
use crate::rseq;
use crate::sys::*;
use crate::{sc, tests};

tests!("pkeys":
    allocated_and_freed, denied_by_a_key, denied_before_it_is_there, denied_to_the_kernel,
    areas_have_keys, inherited, each_thread_has_its_own, executed_only, signal_while_all_is_denied,
    signal_on_a_denied_stack, frame_has_the_rights, populated_by_who_may, tracers_may,
);

const RW: i32 = PROT_READ | PROT_WRITE;
const SEGV_ACCERR: i32 = 2;
const SEGV_PKUERR: i32 = 4;
const NO_ACCESS: u32 = 1;
const NO_WRITE: u32 = 2;
/// What a program begins with: key 0 alone.
const INITIAL: u32 = 0x5555_5554;

/// Whether there are keys. Where the CPU has them the kernel has to use them; Linux may have been
/// told otherwise.
fn exist() -> bool {
    let leaf = __cpuid_count(7, 0);
    let (of_the_cpu, are_on) = (leaf.ecx >> 3 & 1 == 1, leaf.ecx >> 4 & 1 == 1);
    assert!(are_on || !of_the_cpu || !is_limen(), "the CPU has keys that are not switched on");
    are_on
}

fn rights() -> u32 {
    let value: u32;
    // SAFETY: only where keys exist; it reads a register.
    unsafe { asm!("rdpkru", in("ecx") 0, out("eax") value, out("edx") _) };
    value
}

fn set_rights(value: u32) {
    // SAFETY: only where keys exist; tests deny what is theirs.
    unsafe { asm!("wrpkru", in("eax") value, in("ecx") 0, in("edx") 0) };
}

fn allocate(denied: u32) -> i32 {
    sc!(SYS_pkey_alloc, 0, denied).must() as i32
}

fn deny(key: i32, denied: u32) {
    set_rights(rights() & !(3 << (2 * key)) | denied << (2 * key));
}

fn anon() -> usize {
    mmap(0, 4096, RW, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0).must()
}

fn with_key(key: i32) -> usize {
    let at = anon();
    sc!(SYS_pkey_mprotect, at, 4096, RW, key).is(0);
    at
}

fn touch(at: usize) {
    get(at);
}

static NOTED: AtomicU64 = AtomicU64::new(0);

extern "C" fn note(signal: i32, info: *const u8, _: usize) {
    // SAFETY: the kernel's siginfo: si_code, si_addr, and si_pkey behind a gap; the shared words.
    unsafe {
        let words = NOTED.load(SeqCst) as *const AtomicU32;
        let word = |at: usize| info.add(at).cast::<u32>().read_unaligned();
        (*words).store(signal as u32, SeqCst);
        (*words.add(1)).store(word(8), SeqCst);
        (*words.add(2)).store(word(32), SeqCst);
        (*words.add(3)).store(word(16), SeqCst);
        (*words.add(4)).store(rights(), SeqCst);
    }
    quit(42);
}

/// Signal, si_code and si_pkey of the fault of `f` at `at`. A handler begins with the rights that a
/// program begins with.
#[track_caller]
fn fault(at: usize, f: impl FnOnce()) -> (i32, i32, i32) {
    let words = new_shared();
    NOTED.store(words.as_ptr() as u64, SeqCst);
    let child = fork(|| {
        on_signal(SIGSEGV, note as *const () as usize, SA_SIGINFO, 0);
        f();
        0
    });
    wait_code(child, 42);
    let word = |i: usize| words[i].load(SeqCst);
    assert_eq!((word(3), word(4)), (at as u32, INITIAL));
    (word(0) as i32, word(1) as i32, word(2) as i32)
}

fn allocated_and_freed() {
    sc!(SYS_pkey_alloc, 1, 0).fails(EINVAL);
    sc!(SYS_pkey_alloc, 0, 4).fails(EINVAL);
    sc!(SYS_pkey_free, 16).fails(EINVAL);
    sc!(SYS_pkey_free, -1i32).fails(EINVAL);
    let at = anon();
    sc!(SYS_pkey_mprotect, at, 4096, RW, 16).fails(EINVAL);
    sc!(SYS_pkey_mprotect, at, 4096, RW, -2i32).fails(EINVAL);
    sc!(SYS_pkey_mprotect, at, 4096, RW, -1i32).is(0);
    if !exist() {
        sc!(SYS_pkey_alloc, 0, 0).fails(EINVAL);
        sc!(SYS_pkey_mprotect, at, 4096, RW, 0).fails(EINVAL);
        return;
    }
    sc!(SYS_pkey_mprotect, at, 4096, RW, 0).is(0);
    sc!(SYS_pkey_mprotect, at, 4096, RW, 1).fails(EINVAL);
    let keys: Vec<i32> = (1..16).map(|_| allocate(NO_WRITE)).collect();
    assert_eq!(keys, (1..16).collect::<Vec<_>>());
    assert_eq!(rights(), 0xaaaa_aaa8);
    sc!(SYS_pkey_alloc, 0, 0).fails(ENOSPC);
    sc!(SYS_pkey_free, 7).is(0);
    sc!(SYS_pkey_free, 7).fails(EINVAL);
    sc!(SYS_pkey_mprotect, at, 4096, RW, 7).fails(EINVAL);
    assert_eq!((allocate(NO_ACCESS), rights() >> 14 & 3), (7, NO_ACCESS));
    // Key 0 is one like the others.
    sc!(SYS_pkey_free, 0).is(0);
    assert_eq!(allocate(0), 0);
}

fn denied_by_a_key() {
    if !exist() {
        return;
    }
    let key = allocate(0);
    let at = with_key(key);
    put(at, 5);
    deny(key, NO_WRITE);
    assert_eq!(get(at), 5);
    assert_eq!(fault(at, || put(at, 6)), (SIGSEGV, SEGV_PKUERR, key));
    deny(key, NO_ACCESS);
    assert_eq!(fault(at + 9, || touch(at + 9)), (SIGSEGV, SEGV_PKUERR, key));
    assert_eq!(fault(at, || put(at, 6)), (SIGSEGV, SEGV_PKUERR, key));
    // A page that was in use under another key, and is there still.
    let other = anon();
    put(other, 7);
    sc!(SYS_pkey_mprotect, other, 4096, RW, key).is(0);
    assert_eq!(fault(other, || touch(other)), (SIGSEGV, SEGV_PKUERR, key));
    // The area's own rights are asked behind the key's.
    sc!(SYS_mprotect, other, 4096, PROT_READ).is(0);
    assert_eq!(fault(other, || put(other, 1)), (SIGSEGV, SEGV_PKUERR, key));
    deny(key, 0);
    assert_eq!(fault(other, || put(other, 1)), (SIGSEGV, SEGV_ACCERR, 0));
    sc!(SYS_pkey_mprotect, other, 4096, RW, 0).is(0);
    deny(key, NO_ACCESS);
    assert_eq!((get(other), fault(at, || touch(at))), (7, (SIGSEGV, SEGV_PKUERR, key)));
}

/// No page is there yet that the CPU could look at.
fn denied_before_it_is_there() {
    if !exist() {
        return;
    }
    let key = allocate(NO_ACCESS);
    let at = with_key(key);
    assert_eq!(fault(at, || touch(at)), (SIGSEGV, SEGV_PKUERR, key));
    deny(key, NO_WRITE);
    assert_eq!(fault(at, || put(at, 1)), (SIGSEGV, SEGV_PKUERR, key));
    assert_eq!(get(at), 0);
    // With the page of zeros there.
    assert_eq!(fault(at, || put(at, 1)), (SIGSEGV, SEGV_PKUERR, key));
    deny(key, 0);
    put(at, 1);
    assert_eq!(get(at), 1);
}

fn denied_to_the_kernel() {
    if !exist() {
        return;
    }
    let key = allocate(0);
    let (there, absent) = (with_key(key), with_key(key));
    put(there, b'x');
    let (from, to) = pipe();
    deny(key, NO_WRITE);
    sc!(SYS_write, to, there, 1).is(1);
    sc!(SYS_read, from, there, 1).fails(EFAULT);
    sc!(SYS_read, from, absent, 1).fails(EFAULT);
    deny(key, NO_ACCESS);
    sc!(SYS_write, to, there, 1).fails(EFAULT);
    sc!(SYS_write, to, absent, 1).fails(EFAULT);
    sc!(SYS_futex, there, FUTEX_WAIT, 0, 0, 0, 0).fails(EFAULT);
    deny(key, 0);
    sc!(SYS_read, from, absent, 1).is(1);
    assert_eq!(get(absent), b'x');
    close(from);
    close(to);
}

/// The key of the area at `at`, as smaps has it, and where the area ends.
fn of_smaps(at: usize) -> (i32, usize) {
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let area = smaps.split(&format!("{at:x}-")).nth(1).expect("an area begins there");
    let end = usize::from_str_radix(area.split(' ').next().unwrap(), 16).unwrap();
    let line = area.lines().find(|line| line.starts_with("ProtectionKey:")).expect("a line");
    (line.split_whitespace().nth(1).unwrap().parse().unwrap(), end)
}

fn areas_have_keys() {
    if !exist() {
        return;
    }
    let key = allocate(0);
    let at = mmap(0, 4 * 4096, RW, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0).must();
    sc!(SYS_pkey_mprotect, at + 4096, 4096, RW, key).is(0);
    assert_eq!(of_smaps(at + 4096), (key, at + 2 * 4096));
    assert_eq!(of_smaps(at + 2 * 4096).0, 0);
    // mprotect(2) keeps it, also where there is no right left.
    sc!(SYS_mprotect, at, 3 * 4096, PROT_NONE).is(0);
    sc!(SYS_mprotect, at, 3 * 4096, RW).is(0);
    assert_eq!(of_smaps(at + 4096), (key, at + 2 * 4096));
    // With equal keys they are one again.
    sc!(SYS_pkey_mprotect, at, 4 * 4096, RW, key).is(0);
    assert!(of_smaps(at).0 == key && of_smaps(at).1 >= at + 4 * 4096);
    // It moves along.
    let moved = sc!(SYS_mremap, at, 4 * 4096, 8 * 4096, 1, 0).must();
    assert_eq!(of_smaps(moved).0, key);
    // A key that was freed is still that of what had it.
    sc!(SYS_pkey_free, key).is(0);
    assert_eq!(of_smaps(moved).0, key);
    deny(key, NO_ACCESS);
    assert_eq!(fault(moved, || touch(moved)), (SIGSEGV, SEGV_PKUERR, key));
}

fn inherited() {
    if !exist() {
        return;
    }
    let key = allocate(NO_ACCESS);
    let at = with_key(key);
    let before = rights();
    in_child(|| {
        assert_eq!(rights(), before);
        sc!(SYS_pkey_free, key).is(0);
        sc!(SYS_pkey_free, key).fails(EINVAL);
        deny(key, 0);
        put(at, 1);
    });
    assert_eq!(rights(), before);
    sc!(SYS_pkey_free, key).is(0);
    // Switches of programs keep each one's.
    let children: Vec<i32> = (0..4u32)
        .map(|i| {
            fork(|| {
                set_rights(INITIAL & !0xff00 | i << 8);
                let is_kept = (0..200).all(|_| {
                    sc!(SYS_sched_yield).is(0);
                    rights() == INITIAL & !0xff00 | i << 8
                });
                i32::from(!is_kept)
            })
        })
        .collect();
    children.into_iter().for_each(|child| wait_code(child, 0));
}

fn each_thread_has_its_own() {
    if !exist() {
        return;
    }
    let key = allocate(0);
    let at = with_key(key);
    deny(key, NO_WRITE);
    let before = rights();
    let other = std::thread::spawn(move || {
        let inherited = rights();
        deny(key, 0);
        put(at, 9);
        (inherited, rights())
    });
    let (inherited, changed) = other.join().unwrap();
    assert_eq!((inherited, rights(), get(at)), (before, before, 9));
    assert_ne!(changed, before);
}

fn executed_only() {
    if !exist() {
        return;
    }
    let at = anon();
    // mov eax, 7; ret
    for (i, byte) in [0xb8, 7, 0, 0, 0, 0xc3].into_iter().enumerate() {
        put(at + i, byte);
    }
    // SAFETY: the page at `at` is mapped, executable, and holds a function of this type.
    let run = || unsafe { std::mem::transmute::<usize, extern "C" fn() -> i32>(at)() };
    sc!(SYS_mprotect, at, 4096, PROT_EXEC).is(0);
    assert_eq!(run(), 7);
    let key = of_smaps(at).0;
    assert!(key > 0);
    assert_eq!(fault(at, || touch(at)), (SIGSEGV, SEGV_PKUERR, key));
    // No call may name that key.
    sc!(SYS_pkey_free, key).fails(EINVAL);
    sc!(SYS_pkey_mprotect, at, 4096, PROT_EXEC, key).fails(EINVAL);
    sc!(SYS_mprotect, at, 4096, PROT_READ | PROT_EXEC).is(0);
    assert_eq!((run(), get(at), of_smaps(at).0), (7, 0xb8, 0));
    let other = mmap(0, 4096, PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0).must();
    assert_eq!(fault(other, || touch(other)), (SIGSEGV, SEGV_PKUERR, key));
    // Who opens the key for itself is denied again by the next one.
    deny(key, 0);
    assert_eq!(get(other), 0);
    sc!(SYS_mprotect, at, 4096, PROT_EXEC).is(0);
    assert_eq!(fault(at, || touch(at)), (SIGSEGV, SEGV_PKUERR, key));
}

static SEEN: AtomicU32 = AtomicU32::new(0);

/// Goes on behind the `ud2`.
extern "C" fn step_over(_: i32, _: usize, context: *mut ucontext_t) {
    SEEN.store(rights(), SeqCst);
    // SAFETY: the kernel's frame stays until the handler returns.
    unsafe { (*context).uc_mcontext.gregs[REG_RIP as usize] += 2 };
}

/// Without the area in which the kernel tells the CPU: it is memory, too, and a kernel that may not
/// write to it when it enters a handler ends the program.
fn without_rseq(f: impl FnOnce()) {
    in_child(|| {
        rseq::unregister();
        f();
    });
}

/// Runs `ud2` with these rights, and gives what they are behind it.
fn illegal_with(denied: u32) -> u32 {
    let (before, mut after) = (rights(), 0u32);
    // SAFETY: between the two WRPKRU nothing touches memory.
    unsafe {
        asm!("wrpkru", "ud2", "rdpkru", "mov {after:e}, eax", "mov eax, {before:e}", "wrpkru",
             after = inout(reg) after, before = in(reg) before,
             inout("eax") denied => _, in("ecx") 0, inout("edx") 0 => _);
    }
    after
}

fn signal_while_all_is_denied() {
    if !exist() {
        return;
    }
    on_signal(SIGILL, step_over as *const () as usize, SA_SIGINFO, 0);
    without_rseq(|| {
        for denied in [0x5555_5555, 0xffff_ffff, 0x5555_5556, INITIAL, 0] {
            assert_eq!(illegal_with(denied), denied);
            assert_eq!(SEEN.load(SeqCst), INITIAL);
        }
    });
}

/// The frame is pushed to, and loaded from, a stack that the program's rights deny; the handler's
/// own rights allow it.
fn signal_on_a_denied_stack() {
    if !exist() {
        return;
    }
    let stack = mmap(0, 65536, RW, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0).must();
    let alt = [stack as u64, 0, 65536];
    sc!(SYS_sigaltstack, alt.as_ptr(), 0).is(0);
    on_signal(SIGILL, step_over as *const () as usize, SA_SIGINFO | SA_ONSTACK, 0);
    without_rseq(|| {
        for denied in [0x5555_5555, 0x5555_5556] {
            assert_eq!(illegal_with(denied), denied);
        }
    });
}

static IN_FRAME: AtomicU32 = AtomicU32::new(0);

extern "C" fn note_frame(_: i32, _: usize, context: *mut ucontext_t) {
    let at = __cpuid_count(0xd, 9).ebx as usize;
    // SAFETY: the frame has a whole XSAVE image.
    unsafe {
        let image = (*context).uc_mcontext.fpregs as *mut u8;
        assert_eq!(image.add(513).read() & 2, 2, "the image has the register");
        let word = image.add(at).cast::<u32>();
        IN_FRAME.store(word.read_unaligned(), SeqCst);
        word.write_unaligned(0x5555_5550);
    }
}

/// What the frame says is what was, and becomes what is.
fn frame_has_the_rights() {
    if !exist() {
        return;
    }
    on_signal(SIGUSR1, note_frame as *const () as usize, SA_SIGINFO, 0);
    for value in [INITIAL, 0, 0x5555_5558] {
        set_rights(value);
        sc!(SYS_tkill, tid(), SIGUSR1).is(0);
        assert_eq!((IN_FRAME.load(SeqCst), rights()), (value, 0x5555_5550));
    }
    set_rights(INITIAL);
}

fn populated_by_who_may() {
    const POPULATE_READ: i32 = 22;
    const POPULATE_WRITE: i32 = 23;
    if !exist() {
        return;
    }
    let key = allocate(0);
    let at = with_key(key);
    deny(key, NO_WRITE);
    sc!(SYS_madvise, at, 4096, POPULATE_READ).is(0);
    sc!(SYS_madvise, at, 4096, POPULATE_WRITE).fails(EINVAL);
    deny(key, NO_ACCESS);
    sc!(SYS_madvise, at, 4096, POPULATE_READ).fails(EINVAL);
    sc!(SYS_mlock, at, 4096).fails(ENOMEM);
    deny(key, 0);
    sc!(SYS_mlock, at, 4096).is(0);
}

/// What reaches memory by another way than the thread's own accesses asks no key.
fn tracers_may() {
    if !exist() {
        return;
    }
    let key = allocate(0);
    let at = with_key(key);
    put(at, 3);
    deny(key, NO_ACCESS);
    let memory = open("/proc/self/mem", O_RDWR).must() as i32;
    let mut byte = 0u8;
    sc!(SYS_pread64, memory, &raw mut byte, 1, at).is(1);
    assert_eq!(byte, 3);
    byte = 4;
    sc!(SYS_pwrite64, memory, &raw const byte, 1, at).is(1);
    close(memory);
    deny(key, 0);
    assert_eq!(get(at), 4);
}
