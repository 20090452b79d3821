//! Shadow stacks of programs: `arch_prctl(ARCH_SHSTK_*)`, map_shadow_stack(2), and what else of the
//! kernel has to know of them (Linux, Documentation/arch/x86/shstk.rst; SDM 1, 17.2).
//!
//! Where the CPU has none, the first tests say what is answered, and there is nothing else to test.
//! A function cannot return to where no shadow stack was: so tests switch one on around a call
//! ([`with`]), and what that calls returns into it.

use std::arch::x86_64::__cpuid_count;
use std::arch::{asm, global_asm};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use crate::core::notes_of;
use crate::memory::fault;
use crate::sys::*;
use crate::{sc, tests};

tests!("shstk":
    features_are_locked, what_a_cpu_without_them_says, locks_are_inherited_and_lost,
    tracers_lock_and_unlock, switched_on_and_off, returns_are_checked, stores_are_refused,
    the_kernel_writes_nothing, written_by_wrss, mapped, mapped_with_a_token, rights_change,
    areas_are_told_and_kept_apart, handlers_return, a_handler_returns_by_its_frame,
    what_leads_back_is_marked, signals_on_another_stack, threads_have_their_own,
    sizes_are_the_stacks, copied_by_fork,
    lent_to_a_vfork_child, dropped_by_exec, tracers_see_and_move, cores_tell_where_they_end,
    nothing_leaks, threads_come_and_go, half_a_word_aside,
);

const ENABLE: i32 = 0x5001;
const DISABLE: i32 = 0x5002;
const LOCK: i32 = 0x5003;
const UNLOCK: i32 = 0x5004;
const STATUS: i32 = 0x5005;
const SHSTK: u64 = 1;
const WRSS: u64 = 2;
const SET_TOKEN: u64 = 1;
const MAP_SHADOW_STACK: i64 = 453;
const NT_X86_SHSTK: u64 = 0x204;
const SEGV_MAPERR: i32 = 1;
const SEGV_ACCERR: i32 = 2;
const SEGV_CPERR: i32 = 10;
const PAGE: usize = 4096;

/// Whether there are any. In Limen there must be where the CPU has them, unless it was told.
fn exist() -> bool {
    let info = std::fs::read_to_string("/proc/cpuinfo").expect("/proc/cpuinfo");
    let flags = info.lines().find(|line| line.starts_with("flags")).expect("flags");
    let are_on = flags.split_whitespace().any(|flag| flag == "user_shstk");
    let of_the_cpu = __cpuid_count(7, 0).ecx >> 7 & 1 == 1;
    let line = std::fs::read_to_string("/proc/cmdline").unwrap_or_default();
    let is_refused = line.split_whitespace().any(|word| word == "nousershstk");
    assert!(are_on || !of_the_cpu || is_refused || !is_limen(), "shadow stacks are not used");
    assert!(of_the_cpu || !are_on, "the CPU has no shadow stacks");
    are_on && !is_refused
}

fn prctl(code: i32, argument: u64) -> Res {
    sc!(SYS_arch_prctl, code, argument)
}

fn status() -> u64 {
    let mut features = u64::MAX;
    prctl(STATUS, &raw mut features as u64).is(0);
    features
}

/// What /proc tells of the features of a process.
pub fn told(pid: &str) -> String {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("status");
    let of = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)).expect(name);
        line.to_owned()
    };
    format!("{}|{}", of("x86_Thread_features:\t"), of("x86_Thread_features_locked:\t"))
}

/// A call of arch_prctl(2) in the middle of a function, which makes none for it.
macro_rules! prctl_here {
    ($code:expr, $argument:expr) => {{
        let result: isize;
        // SAFETY: the call changes what returns of functions are checked by; the callers make it
        // twice in one function.
        unsafe {
            asm!("syscall", inlateout("rax") SYS_arch_prctl => result, in("rdi") $code,
                 in("rsi") $argument, lateout("rcx") _, lateout("r11") _);
        }
        result
    }};
}

/// Calls `f` with a shadow stack.
#[inline(never)]
#[track_caller]
fn with(f: impl FnOnce()) {
    let on = prctl_here!(ENABLE, SHSTK);
    if on == 0 {
        apart(f);
    }
    let off = prctl_here!(DISABLE, SHSTK);
    assert_eq!((on, off), (0, 0), "on and off");
}

/// A function of its own: its address is on the shadow stack.
#[inline(never)]
fn apart(f: impl FnOnce()) {
    f();
}

/// SSP, or 0.
#[inline(always)]
fn ssp() -> u64 {
    let mut ssp = 0u64;
    // SAFETY: reads a register, or does nothing.
    unsafe { asm!("rdsspq {}", inout(reg) ssp, options(nomem, nostack, preserves_flags)) };
    ssp
}

fn word(at: u64) -> u64 {
    // SAFETY: callers name words of a shadow stack, which can be read.
    unsafe { (at as *const u64).read_volatile() }
}

fn drop_word(at: u64) {
    let _ = word(at);
}

fn store(at: u64, value: u64) {
    // SAFETY: callers expect a fault, or name memory of their own.
    unsafe { (at as *mut u64).write_volatile(value) };
}

#[inline(always)]
fn wrss(at: u64, value: u64) {
    // SAFETY: callers expect a fault, or name words of a shadow stack that nobody returns by.
    unsafe { asm!("wrssq [{}], {}", in(reg) at, in(reg) value, options(nostack)) };
}

fn map(address: u64, size: usize, flags: u64) -> Res {
    sc!(MAP_SHADOW_STACK, address, size, flags)
}

// limen_returns_elsewhere(rdi: code): to a place that no call came from, which exits.
// limen_early_sigreturn: a handler that ends as one does that has returned, but has not.
// limen_word_as_it_is, limen_word_without_mark: handlers that write the word which leads back.
// limen_to_and_back(rdi: a token's address) -> rax: SSP there. By way of another shadow stack, on
// which a call is made.
global_asm!(
    ".globl limen_returns_elsewhere",
    ".type limen_returns_elsewhere, @function",
    "limen_returns_elsewhere:",
    "lea rax, [rip + 2f]",
    "mov [rsp], rax",
    "ret",
    "2: mov eax, 231",
    "syscall",
    "ud2",
    ".size limen_returns_elsewhere, . - limen_returns_elsewhere",
    ".globl limen_early_sigreturn",
    ".type limen_early_sigreturn, @function",
    "limen_early_sigreturn:",
    "add rsp, 8",
    "mov eax, 15",
    "syscall",
    "ud2",
    ".size limen_early_sigreturn, . - limen_early_sigreturn",
    ".globl limen_word_as_it_is",
    ".type limen_word_as_it_is, @function",
    "limen_word_as_it_is:",
    "rdsspq rax",
    "mov rcx, [rax + 8]",
    "wrssq [rax + 8], rcx",
    "ret",
    ".size limen_word_as_it_is, . - limen_word_as_it_is",
    ".globl limen_word_without_mark",
    ".type limen_word_without_mark, @function",
    "limen_word_without_mark:",
    "rdsspq rax",
    "mov rcx, [rax + 8]",
    "btr rcx, 63",
    "wrssq [rax + 8], rcx",
    "ret",
    ".size limen_word_without_mark, . - limen_word_without_mark",
    ".globl limen_to_and_back",
    ".type limen_to_and_back, @function",
    "limen_to_and_back:",
    "rdsspq rsi",
    "rstorssp [rdi]",
    "saveprevssp",
    "call 3f",
    "rstorssp [rsi - 8]",
    "saveprevssp",
    "ret",
    "3: rdsspq rax",
    "ret",
    ".size limen_to_and_back, . - limen_to_and_back",
);

unsafe extern "C" {
    fn limen_returns_elsewhere(code: i32);
    fn limen_early_sigreturn();
    fn limen_word_as_it_is();
    fn limen_word_without_mark();
    fn limen_to_and_back(token: u64) -> u64;
}

fn returns_elsewhere(code: i32) {
    // SAFETY: it ends the process, one way or the other.
    unsafe { limen_returns_elsewhere(code) };
}

/// Areas that are shadow stacks, as /proc has them: start, end, rights.
fn areas() -> Vec<(usize, usize, String)> {
    let text = std::fs::read_to_string("/proc/self/smaps").expect("smaps");
    let (mut found, mut last) = (Vec::new(), None);
    for line in text.lines() {
        let first = line.split(' ').next().unwrap_or_default();
        if let Some((start, end)) = first.split_once('-') {
            let number = |text| usize::from_str_radix(text, 16).expect("an address");
            let rights = line.split(' ').nth(1).unwrap_or_default().to_owned();
            last = Some((number(start), number(end), rights));
        } else if first == "VmFlags:" && line.split(' ').any(|flag| flag == "ss") {
            found.push(last.take().expect("an area before its flags"));
        }
    }
    found
}

fn features_are_locked() {
    assert_eq!(told("self"), "|");
    prctl(STATUS, 8).fails(EFAULT);
    assert_eq!(status(), 0);
    prctl(DISABLE, 0).fails(EINVAL);
    for features in [0, 3, 4, 5, 1 << 63] {
        prctl(ENABLE, features).fails(EINVAL);
        prctl(DISABLE, features).fails(EINVAL);
    }
    prctl(LOCK, 0).is(0);
    prctl(LOCK, WRSS | 1 << 40).is(0);
    assert_eq!((told("self").as_str(), status()), ("|wrss ", 0));
    for features in [WRSS, 3, 1 << 40, 1 << 40 | 4] {
        prctl(ENABLE, features).fails(EPERM);
        prctl(DISABLE, features).fails(EPERM);
        // Nobody unlocks for himself.
        prctl(UNLOCK, features).fails(EPERM);
    }
    prctl(LOCK, SHSTK).is(0);
    assert_eq!(told("self"), "|shstk wrss ");
    prctl(ENABLE, SHSTK).fails(EPERM);
    prctl(0x5000, SHSTK).fails(EINVAL);
    prctl(0x5006, SHSTK).fails(EINVAL);
}

fn what_a_cpu_without_them_says() {
    if exist() {
        return;
    }
    for code in [ENABLE, DISABLE, UNLOCK] {
        prctl(code, SHSTK).fails(EOPNOTSUPP);
        prctl(code, WRSS).fails(EOPNOTSUPP);
    }
    for (address, size, flags) in [(0, PAGE, 0), (0, PAGE, 1), (5, 0, 8), (1 << 40, 3, 1)] {
        map(address, size, flags).fails(EOPNOTSUPP);
    }
    let pid = fork(|| {
        sc!(SYS_ptrace, PTRACE_TRACEME, 0, 0, 0).is(0);
        sc!(SYS_kill, pid(), SIGSTOP).is(0);
        0
    });
    stopped(pid);
    let mut ssp = 0u64;
    register_set(PTRACE_GETREGSET as i32, pid, &mut ssp, 8).fails(ENODEV);
    register_set(PTRACE_SETREGSET as i32, pid, &mut ssp, 8).fails(ENODEV);
    register_set(PTRACE_GETREGSET as i32, pid, &mut ssp, 4).fails(EINVAL);
    sc!(SYS_ptrace, PTRACE_CONT, pid, 0, 0).is(0);
    wait_code(pid, 0);
}

fn own_program(mode: &str) -> String {
    let output = std::process::Command::new(own_path()).args(["child", mode]).output();
    String::from_utf8(output.expect("it runs").stdout).expect("text")
}

fn locks_are_inherited_and_lost() {
    prctl(LOCK, SHSTK).is(0);
    in_child(|| assert_eq!(told("self"), "|shstk "));
    let thread = std::thread::spawn(|| told("thread-self"));
    assert_eq!(thread.join().expect("it ends"), "|shstk ");
    assert_eq!(own_program("shadow-stack"), "|");
    assert_eq!(told("self"), "|shstk ");
}

#[track_caller]
fn stopped(pid: i32) {
    let mut status = 0;
    sc!(SYS_wait4, pid, &raw mut status, __WALL, 0).is(pid as usize);
    assert_eq!(status, SIGSTOP << 8 | 0x7f, "{status:#x}");
}

fn register_set(request: i32, pid: i32, ssp: &mut u64, len: u64) -> Res {
    let mut vector = [&raw mut *ssp as u64, len];
    let result = sc!(SYS_ptrace, request, pid, NT_X86_SHSTK, vector.as_mut_ptr());
    assert!(result.is_err() || vector[1] == 8, "{} bytes", vector[1]);
    result
}

/// PTRACE_ARCH_PRCTL.
fn prctl_of(pid: i32, code: i32, argument: u64) -> Res {
    sc!(SYS_ptrace, 30, pid, argument, code)
}

fn tracers_lock_and_unlock() {
    let pid = fork(|| {
        prctl(LOCK, SHSTK | WRSS | 8).is(0);
        sc!(SYS_ptrace, PTRACE_TRACEME, 0, 0, 0).is(0);
        sc!(SYS_kill, pid(), SIGSTOP).is(0);
        prctl(ENABLE, 8).fails(EINVAL);
        prctl(ENABLE, WRSS).fails(EPERM);
        0
    });
    stopped(pid);
    let name = pid.to_string();
    assert_eq!(told(&name), "|shstk wrss ");
    prctl_of(pid, UNLOCK, SHSTK | 8).is(0);
    assert_eq!(told(&name), "|wrss ");
    prctl_of(pid, LOCK, SHSTK).is(0);
    assert_eq!(told(&name), "|shstk wrss ");
    let mut features = u64::MAX;
    prctl_of(pid, STATUS, &raw mut features as u64).is(0);
    assert_eq!(features, 0);
    prctl_of(pid, ENABLE, SHSTK).fails(EINVAL);
    prctl_of(pid, DISABLE, 0).fails(EINVAL);
    prctl_of(pid, 0x5006, 0).fails(EINVAL);
    sc!(SYS_ptrace, PTRACE_CONT, pid, 0, 0).is(0);
    wait_code(pid, 0);
}

fn switched_on_and_off() {
    if !exist() {
        return;
    }
    assert_eq!((status(), ssp()), (0, 0));
    prctl(DISABLE, SHSTK).is(0);
    prctl(ENABLE, WRSS).fails(EPERM);
    prctl(DISABLE, WRSS).fails(EPERM);
    for _ in 0..3 {
        with(|| {
            let first = ssp();
            assert_ne!(first, 0);
            assert_eq!((status(), told("self").as_str()), (SHSTK, "shstk |"));
            // Once more changes nothing.
            prctl(ENABLE, SHSTK).is(0);
            assert_eq!((ssp(), areas().len()), (first, 1));
            prctl(ENABLE, WRSS).is(0);
            assert_eq!((status(), told("self").as_str()), (SHSTK | WRSS, "shstk wrss |"));
            prctl(ENABLE, WRSS).is(0);
            prctl(DISABLE, WRSS).is(0);
            prctl(DISABLE, WRSS).is(0);
            prctl(ENABLE, 3).fails(EINVAL);
            assert_eq!(status(), SHSTK);
        });
        assert_eq!((status(), ssp(), areas().len()), (0, 0, 0));
    }
    // What is locked while it is on stays on.
    in_child(|| {
        with(|| {
            prctl(LOCK, SHSTK).is(0);
            prctl(DISABLE, SHSTK).fails(EPERM);
            prctl(ENABLE, WRSS).is(0);
            quit(0);
        });
    });
}

fn returns_are_checked() {
    let child = fork(|| {
        returns_elsewhere(7);
        0
    });
    wait_code(child, 7);
    if !exist() {
        return;
    }
    with(|| {
        assert_eq!(fault(|| returns_elsewhere(7)), (SIGSEGV, SEGV_CPERR, 0));
        let child = fork(|| {
            returns_elsewhere(7);
            0
        });
        wait_signal(child, SIGSEGV);
    });
}

fn stores_are_refused() {
    if !exist() {
        return;
    }
    let at = map(0, 2 * PAGE, 0).must();
    // Before there is a page, and behind that.
    for _ in 0..2 {
        assert_eq!(fault(|| store(at as u64, 1)), (SIGSEGV, SEGV_ACCERR, at));
        assert_eq!(word(at as u64), 0);
    }
    with(|| {
        let top = ssp();
        let before = word(top);
        let faulted = fault(|| store(top, before));
        assert_eq!(faulted, (SIGSEGV, SEGV_ACCERR, top as usize));
        assert_eq!(word(top), before);
    });
    // Nor can other memory be one.
    let page = anon(PAGE) as u64;
    for _ in 0..2 {
        with(|| {
            prctl(ENABLE, WRSS).is(0);
            assert_eq!(fault(|| wrss(page, 1)), (SIGSEGV, SEGV_ACCERR, page as usize));
        });
        store(page, 5);
    }
    assert_eq!(word(page), 5);
}

fn the_kernel_writes_nothing() {
    if !exist() {
        return;
    }
    let at = map(0, PAGE, SET_TOKEN).must();
    let token = (at + PAGE - 8) as u64;
    let before = word(token);
    let (reads, writes) = pipe();
    write(writes, b"12345678");
    sc!(SYS_read, reads, token, 8).fails(EFAULT);
    sc!(SYS_getcwd, at, 64).fails(EFAULT);
    let bytes = 8u64;
    let (own, remote) = ([&raw const bytes as u64, 8], [token, 8]);
    let transfer = |nr| sc!(nr, pid(), own.as_ptr(), 1, remote.as_ptr(), 1, 0);
    transfer(SYS_process_vm_writev).fails(EFAULT);
    assert_eq!(word(token), before);
    // It can be read.
    transfer(SYS_process_vm_readv).is(8);
    assert_eq!(bytes, before);
    sc!(SYS_write, writes, token, 8).is(8);
    // And a tracer's words are its own.
    let memory = open("/proc/self/mem", O_RDWR).fd();
    let new = 77u64;
    sc!(SYS_pwrite64, memory, &raw const new, 8, at).is(8);
    assert_eq!(word(at as u64), 77);
    assert_eq!(fault(|| store(at as u64, 1)).1, SEGV_ACCERR);
}

/// INCSSPD moves SSP by half a word: calls that look at it, and switches, take it as it is.
fn half_a_word_aside() {
    if !exist() {
        return;
    }
    with(|| {
        let child = fork(|| {
            // SAFETY: makes system calls, arch_prctl(2), fork(2) and sched_yield(2), and exits; no
            // function returns any more.
            unsafe {
                asm!(
                    "mov eax, 1",
                    "incsspd eax",
                    "mov eax, 158",
                    "mov edi, 0x5001",
                    "mov esi, 2",
                    "syscall",
                    "mov eax, 57",
                    "syscall",
                    "mov eax, 24",
                    "syscall",
                    "mov eax, 231",
                    "mov edi, 7",
                    "syscall",
                    "ud2",
                    options(noreturn)
                );
            }
        });
        wait_code(child, 7);
    });
}

fn written_by_wrss() {
    if !exist() {
        return;
    }
    let at = map(0, PAGE, 0).must() as u64;
    with(|| {
        // Without WRSS the instruction does not exist.
        assert_eq!(fault(|| wrss(at, 1)).0, SIGILL);
        prctl(ENABLE, WRSS).is(0);
        wrss(at, 0x1234);
        assert_eq!(word(at), 0x1234);
        // A return can be changed with its second copy.
        let child = fork(|| {
            let top = ssp();
            wrss(top, word(top));
            5
        });
        wait_code(child, 5);
        prctl(DISABLE, WRSS).is(0);
        assert_eq!(fault(|| wrss(at, 1)).0, SIGILL);
    });
    assert_eq!(word(at), 0x1234);
}

fn mapped() {
    if !exist() {
        return;
    }
    map(0, PAGE, 2).fails(EINVAL);
    map(0, PAGE, 1 << 31).fails(EINVAL);
    map(0, 7, SET_TOKEN).fails(ENOSPC);
    map(0, 0, SET_TOKEN).fails(ENOSPC);
    map(0, 0, 0).fails(EINVAL);
    map(1 << 20, PAGE, 0).fails(ERANGE);
    map((4 << 30) - PAGE as u64, PAGE, 0).fails(ERANGE);
    map(0, usize::MAX, 0).fails(EOVERFLOW);
    map(0, 1 << 62, 0).fails(ENOMEM);
    map(1 << 47, PAGE, 0).fails(ENOMEM);
    map((1 << 40) + 8, PAGE, 0).fails(EINVAL);
    map(0, 12, SET_TOKEN).fails(EINVAL);
    let at = map(4 << 30, 3 * PAGE, 0).must();
    assert_eq!(at, 4 << 30);
    map(at as u64, PAGE, 0).fails(EEXIST);
    map((at + 2 * PAGE) as u64, PAGE, 0).fails(EEXIST);
    map((at - PAGE) as u64, PAGE, 0).fails(ERANGE);
    assert_eq!(areas(), [(at, at + 3 * PAGE, "rw-p".to_owned())]);
    sc!(SYS_munmap, at + PAGE, PAGE).is(0);
    assert_eq!(areas().len(), 2);
    assert_eq!(fault(|| drop_word((at + PAGE) as u64)).1, SEGV_MAPERR);
    let other = map(0, 100, 0).must();
    assert!(other >= 4 << 30);
    assert_eq!(areas().len(), 3);
    // An ordinary mapping in its place is ordinary.
    let fixed = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    mmap(at, PAGE, PROT_READ | PROT_WRITE, fixed, -1, 0).is(at);
    store(at as u64, 5);
    assert_eq!(areas().len(), 2);
    let limit = rlimit { rlim_cur: 0, rlim_max: RLIM_INFINITY };
    sc!(SYS_setrlimit, RLIMIT_AS, &raw const limit).is(0);
    map(0, PAGE, 0).fails(ENOMEM);
}

fn mapped_with_a_token() {
    if !exist() {
        return;
    }
    let at = map(0, 2 * PAGE, SET_TOKEN).must() as u64;
    let top = at + 2 * PAGE as u64;
    assert_eq!(word(top - 8), top | 1);
    let small = map(0, 16, SET_TOKEN).must() as u64;
    assert_eq!((word(small + 8), word(small)), (small + 17, 0));
    // Without a shadow stack there is nothing to come from.
    assert_eq!(word(map(0, 16, 0).must() as u64 + 8), 0);
    with(|| {
        for _ in 0..3 {
            let before = ssp();
            // SAFETY: to a shadow stack that nobody uses, and back.
            let there = unsafe { limen_to_and_back(top - 8) };
            // In the call, whose address lies below.
            assert_eq!((there, ssp()), (top - 8, before));
            // Leaving it has put the token back.
            assert_eq!(word(top - 8), top | 1);
        }
        // A word that is no token.
        let bad = fault(|| {
            // SAFETY: the CPU refuses the word, and the child ends in its handler.
            unsafe { limen_to_and_back(at + 8) };
        });
        assert_eq!(bad, (SIGSEGV, SEGV_CPERR, 0));
    });
}

fn rights_change() {
    if !exist() {
        return;
    }
    let at = map(0, PAGE, 0).must() as u64;
    let protect = |rights| sc!(SYS_mprotect, at, PAGE, rights);
    with(|| {
        prctl(ENABLE, WRSS).is(0);
        for round in 1..3 {
            wrss(at, round);
            protect(PROT_READ).is(0);
            assert_eq!(fault(|| wrss(at, 9)), (SIGSEGV, SEGV_ACCERR, at as usize));
            assert_eq!(word(at), round);
            protect(PROT_NONE).is(0);
            assert_eq!(fault(|| drop_word(at)).1, SEGV_ACCERR);
            protect(PROT_READ | PROT_WRITE).is(0);
            assert_eq!(word(at), round);
            // It stays what it is.
            assert_eq!(fault(|| store(at, 9)), (SIGSEGV, SEGV_ACCERR, at as usize));
        }
        wrss(at, 10);
        assert_eq!(word(at), 10);
    });
    let new = sc!(SYS_mremap, at, PAGE, 2 * PAGE, MREMAP_MAYMOVE).must() as u64;
    assert_eq!(word(new), 10);
    assert_eq!(fault(|| store(new, 9)).1, SEGV_ACCERR);
    assert_eq!(areas().len(), 1);
    sc!(SYS_madvise, new, PAGE, MADV_DONTNEED).is(0);
    assert_eq!(word(new), 0);
}

/// First address and end of every area.
fn all_areas() -> Vec<(usize, usize)> {
    let text = std::fs::read_to_string("/proc/self/maps").expect("maps");
    let number = |text| usize::from_str_radix(text, 16).expect("an address");
    let bounds = text.lines().filter_map(|line| line.split(' ').next()?.split_once('-'));
    bounds.map(|(start, end)| (number(start), number(end))).collect()
}

fn areas_are_told_and_kept_apart() {
    if !exist() {
        return;
    }
    let stacks = || {
        let status = std::fs::read_to_string("/proc/self/status").expect("status");
        let line = status.lines().find_map(|line| line.strip_prefix("VmStk:")).expect("VmStk");
        line.trim().trim_end_matches(" kB").parse::<usize>().expect("kB")
    };
    let before = stacks();
    for n in 0..8 {
        map(0, (n % 3 + 1) * PAGE, 0).must();
        anon(PAGE);
    }
    assert_eq!(stacks() - before, 4 * (1 + 2 + 3 + 1 + 2 + 3 + 1 + 2), "they count as stacks");
    let found = areas();
    assert_eq!(found.len(), 8);
    assert!(found.iter().all(|(.., rights)| rights == "rw-p"));
    // Nothing lies right below one.
    let all = all_areas();
    for (start, ..) in &found {
        assert!(all.iter().all(|(_, end)| end != start), "{start:#x}: {all:x?}");
    }
}

static SEEN: [AtomicU64; 4] = [const { AtomicU64::new(0) }; 4];

/// Notes SSP and what is there; once, it interrupts itself.
extern "C" fn look(signal: i32) {
    let top = ssp();
    let at = if signal == SIGUSR1 { 0 } else { 2 };
    SEEN[at].store(top, SeqCst);
    if signal == SIGUSR1 {
        sc!(SYS_tgkill, pid(), tid(), SIGUSR2).is(0);
    }
    SEEN[at + 1].store(ssp(), SeqCst);
}

fn handlers_return() {
    if !exist() {
        return;
    }
    on_signal(SIGUSR1, look as *const () as usize, 0, 0);
    on_signal(SIGUSR2, look as *const () as usize, 0, 0);
    // Without one nothing is there, and handlers return as ever.
    sc!(SYS_tgkill, pid(), tid(), SIGUSR1).is(0);
    assert!(SEEN.iter().all(|seen| seen.load(SeqCst) == 0));
    with(|| {
        for _ in 0..3 {
            let before = ssp();
            sc!(SYS_tgkill, pid(), tid(), SIGUSR1).is(0);
            let [first, first_end, second, second_end] =
                [0, 1, 2, 3].map(|at| SEEN[at].load(SeqCst));
            assert_eq!((first, second), (first_end, second_end));
            assert_eq!(ssp(), before);
            // Each has begun at its restorer's address, below a word that leads back.
            for top in [first, second] {
                assert_eq!(word(top), restorer() as u64);
                let saved = word(top + 8);
                assert_eq!(saved >> 63, 1);
                assert!(top + 16 <= saved & !(1 << 63) && saved & !(1 << 63) <= top + 256);
            }
            assert!(second < first && first < before);
        }
    });
}

fn a_handler_returns_by_its_frame() {
    let run = || {
        on_signal(SIGUSR1, limen_early_sigreturn as *const () as usize, 0, 0);
        sc!(SYS_tgkill, pid(), tid(), SIGUSR1).is(0);
        6
    };
    // Without a shadow stack the frame alone counts.
    wait_code(fork(run), 6);
    if !exist() {
        return;
    }
    with(|| wait_signal(fork(run), SIGSEGV));
    // Nor is there a handler where no shadow stack is that its frame could go to.
    let at = map(0, PAGE, SET_TOKEN).must() as u64;
    with(|| {
        let lost = || {
            on_signal(SIGUSR1, nothing as *const () as usize, 0, 0);
            // SAFETY: the child does not return.
            unsafe {
                asm!("rstorssp [{token}]", "saveprevssp", "mov rdi, {at}", "mov esi, 4096",
                     "mov eax, 11", "syscall", "mov eax, 39", "syscall", "mov edi, eax",
                     "mov esi, 10", "mov eax, 62", "syscall", "mov edi, 3", "mov eax, 231",
                     "syscall", token = in(reg) at + PAGE as u64 - 8, at = in(reg) at,
                     options(noreturn));
            }
        };
        wait_signal(fork(lost), SIGSEGV);
    });
}

/// An address of the shadow stack leads a handler back only where a signal has put it.
fn what_leads_back_is_marked() {
    if !exist() {
        return;
    }
    let run = |handler: unsafe extern "C" fn()| {
        fork(move || {
            prctl(ENABLE, WRSS).is(0);
            on_signal(SIGUSR1, handler as *const () as usize, 0, 0);
            sc!(SYS_tgkill, pid(), tid(), SIGUSR1).is(0);
            6
        })
    };
    with(|| {
        wait_code(run(limen_word_as_it_is), 6);
        wait_signal(run(limen_word_without_mark), SIGSEGV);
    });
}

fn signals_on_another_stack() {
    if !exist() {
        return;
    }
    let base = anon(16 * PAGE);
    let stack = stack_t { ss_sp: base.cast(), ss_flags: 0, ss_size: 16 * PAGE };
    sc!(SYS_sigaltstack, &raw const stack, 0).is(0);
    on_signal(SIGUSR1, look as *const () as usize, SA_ONSTACK, 0);
    on_signal(SIGUSR2, look as *const () as usize, SA_ONSTACK, 0);
    with(|| {
        let before = ssp();
        sc!(SYS_tgkill, pid(), tid(), SIGUSR1).is(0);
        // The shadow stack is the one of before.
        let first = SEEN[0].load(SeqCst);
        assert!(first < before && before - first < 512);
        assert_eq!((ssp(), areas().len()), (before, 1));
    });
}

/// The first thread of a process has its library look for a function, by jumps out of functions
/// that a library without knowledge of shadow stacks does not mend.
fn meets_threads() {
    std::thread::spawn(|| ()).join().expect("it ends");
}

fn threads_have_their_own() {
    if !exist() {
        return;
    }
    meets_threads();
    with(|| {
        let own = ssp();
        let count = areas().len();
        let threads = [(); 3].map(|()| {
            std::thread::spawn(|| {
                let top = ssp();
                let here = areas()
                    .into_iter()
                    .filter(|(start, end, _)| (*start as u64..=*end as u64).contains(&top));
                let feature = told("thread-self");
                (top, here.count(), feature, returns_deeply(200))
            })
        });
        let mut tops: Vec<u64> = threads
            .into_iter()
            .map(|thread| {
                let (top, areas, feature, depth) = thread.join().expect("it ends");
                assert_eq!((areas, feature.as_str(), depth), (1, "shstk |", 200));
                top
            })
            .collect();
        tops.push(own);
        tops.sort_unstable();
        tops.dedup();
        assert_eq!(tops.len(), 4);
        until(|| areas().len() == count);
    });
    // A thread that is made without one has none.
    let top = std::thread::spawn(|| (ssp(), status())).join().expect("it ends");
    assert_eq!(top, (0, 0));
}

/// Calls itself `depth` times, and gives way at each.
#[inline(never)]
fn returns_deeply(depth: u64) -> u64 {
    if depth == 0 {
        return 0;
    }
    let _ = sc!(SYS_sched_yield);
    returns_deeply(depth - 1) + 1
}

extern "C" fn says_its_area() {
    let top = ssp();
    let area =
        areas().into_iter().find(|(start, end, _)| (*start as u64..=*end as u64).contains(&top));
    SEEN[0].store(area.map_or(0, |(start, end, _)| (end - start) as u64), SeqCst);
    SEEN[1].store(1, SeqCst);
    let _ = sc!(SYS_exit, 0);
}

fn sizes_are_the_stacks() {
    if !exist() {
        return;
    }
    for (limit, bytes) in [(10 * PAGE + 1, 11 * PAGE), (8 << 20, 8 << 20)] {
        let new = rlimit { rlim_cur: limit as u64, rlim_max: RLIM_INFINITY };
        in_child(|| {
            sc!(SYS_setrlimit, RLIMIT_STACK, &raw const new).is(0);
            with(|| {
                let [(start, end, _)] = &areas()[..] else { panic!("one") };
                assert_eq!(end - start, bytes);
                raw_thread(THREAD_FLAGS, says_its_area);
                until(|| SEEN[1].load(SeqCst) == 1);
                assert_eq!(SEEN[0].load(SeqCst), bytes as u64);
            });
        });
    }
    // clone3(2) says how large the stack is.
    with(|| {
        SEEN[1].store(0, SeqCst);
        let stack = anon(5 * PAGE) as u64;
        let arguments = [THREAD_FLAGS as u64, 0, 0, 0, 0, stack, 5 * PAGE as u64, 0];
        let ret: i64;
        // SAFETY: the new thread has its own stack, and calls only what does not return.
        unsafe {
            asm!("syscall", "test rax, rax", "jnz 2f", "call {f}", "ud2", "2:",
                 inlateout("rax") SYS_clone3 => ret, in("rdi") arguments.as_ptr(), in("rsi") 64,
                 f = sym says_its_area, lateout("rcx") _, lateout("r11") _);
        }
        assert!(ret > 0, "clone3: {ret}");
        until(|| SEEN[1].load(SeqCst) == 1);
        assert_eq!(SEEN[0].load(SeqCst), 5 * PAGE as u64);
        until(|| areas().len() == 1);
    });
}

fn copied_by_fork() {
    if !exist() {
        return;
    }
    let at = map(0, PAGE, 0).must() as u64;
    with(|| {
        prctl(ENABLE, WRSS).is(0);
        wrss(at, 1);
        let top = ssp();
        let child = fork(|| {
            assert_eq!((word(at), told("self").as_str()), (1, "shstk wrss |"));
            assert!(ssp() <= top && top - ssp() < 256);
            wrss(at, 2);
            assert_eq!((word(at), returns_deeply(50)), (2, 50));
            // A child of the child, and its own is switched off by itself.
            let child = fork(|| {
                wrss(at, 3);
                returns_deeply(10) as i32
            });
            wait_code(child, 10);
            assert_eq!(word(at), 2);
            9
        });
        assert_eq!(returns_deeply(50), 50);
        wait_code(child, 9);
        assert_eq!(word(at), 1);
        wrss(at, 4);
        // Its own is a copy, which it can give back.
        wait_code(
            fork(|| {
                let off = prctl_here!(DISABLE, SHSTK);
                let left = areas().len() as i32;
                quit(off as i32 * 100 + left)
            }),
            1,
        );
    });
    assert_eq!(word(at), 4);
}

fn lent_to_a_vfork_child() {
    if !exist() {
        return;
    }
    with(|| {
        let before = (ssp(), areas());
        for _ in 0..3 {
            // SAFETY: the child calls functions that end it, on a stack of its own.
            let ret = unsafe {
                let ret: i64;
                asm!("syscall", "test rax, rax", "jnz 2f", "mov rsp, {stack}", "call {f}", "ud2",
                     "2:", inlateout("rax") SYS_clone => ret,
                     in("rdi") CLONE_VM | CLONE_VFORK | SIGCHLD, in("rsi") 0, in("rdx") 0,
                     in("r10") 0, in("r8") 0, stack = in(reg) anon(4 * PAGE) as u64 + 16368,
                     f = sym leaves_at_once, out("rcx") _, out("r11") _);
                ret
            };
            wait_code(ret as i32, 4);
            // The child has used this thread's.
            assert_eq!((ssp(), areas()), before);
            assert!(SEEN[2].load(SeqCst) < before.0);
            assert!(before.0 - SEEN[2].load(SeqCst) < 512);
        }
    });
}

extern "C" fn leaves_at_once() {
    SEEN[2].store(ssp(), SeqCst);
    quit(4);
}

fn dropped_by_exec() {
    if !exist() {
        return;
    }
    with(|| {
        prctl(ENABLE, WRSS).is(0);
        prctl(LOCK, SHSTK).is(0);
        assert_eq!(told("self"), "shstk wrss |shstk ");
        assert_eq!(own_program("shadow-stack"), "|");
        assert_eq!(told("self"), "shstk wrss |shstk ");
        quit(0);
    });
}

fn tracers_see_and_move() {
    if !exist() {
        return;
    }
    let words = new_shared();
    let pid = fork(|| {
        with(|| {
            let top = ssp();
            words[0].store(top as u32, SeqCst);
            words[1].store((top >> 32) as u32, SeqCst);
            sc!(SYS_ptrace, PTRACE_TRACEME, 0, 0, 0).is(0);
            sc!(SYS_kill, pid(), SIGSTOP).is(0);
            sc!(SYS_kill, pid(), SIGSTOP).is(0);
            quit(8);
        });
        0
    });
    stopped(pid);
    let top = u64::from(words[0].load(SeqCst)) | u64::from(words[1].load(SeqCst)) << 32;
    let mut found = 0u64;
    register_set(PTRACE_GETREGSET as i32, pid, &mut found, 16).is(0);
    assert!(found <= top && top - found < 256, "{found:#x} {top:#x}");
    // The word there is the address of a call.
    let mut called_from = 0u64;
    sc!(SYS_ptrace, PTRACE_PEEKDATA, pid, found, &raw mut called_from).is(0);
    assert!(called_from >> 47 == 0 && called_from > 4096, "{called_from:#x}");
    sc!(SYS_ptrace, PTRACE_POKEDATA, pid, found, called_from).is(0);
    for bad in [found + 4, 1 << 47, u64::MAX] {
        register_set(PTRACE_SETREGSET as i32, pid, &mut { bad }, 8).fails(EINVAL);
    }
    let mut none = [0u64; 2];
    sc!(SYS_ptrace, PTRACE_SETREGSET, pid, NT_X86_SHSTK, none.as_mut_ptr()).fails(EINVAL);
    register_set(PTRACE_SETREGSET as i32, pid, &mut { found - 64 }, 8).is(0);
    let mut moved = 0;
    register_set(PTRACE_GETREGSET as i32, pid, &mut moved, 8).is(0);
    assert_eq!(moved, found - 64);
    register_set(PTRACE_SETREGSET as i32, pid, &mut { found }, 8).is(0);
    let mut features = 0u64;
    prctl_of(pid, STATUS, &raw mut features as u64).is(0);
    assert_eq!(features, SHSTK);
    sc!(SYS_ptrace, PTRACE_CONT, pid, 0, 0).is(0);
    stopped(pid);
    // The end moves where the tracer puts it: returns from there fail.
    let mut again = 0;
    register_set(PTRACE_GETREGSET as i32, pid, &mut again, 8).is(0);
    register_set(PTRACE_SETREGSET as i32, pid, &mut { again - 8 }, 8).is(0);
    sc!(SYS_ptrace, PTRACE_CONT, pid, 0, 0).is(0);
    let mut status = 0;
    sc!(SYS_wait4, pid, &raw mut status, __WALL, 0).is(pid as usize);
    assert_eq!(status, SIGSEGV << 8 | 0x7f, "{status:#x}");
    sc!(SYS_ptrace, PTRACE_KILL, pid, 0, 0).is(0);
    wait_signal(pid, SIGKILL);
}

fn cores_tell_where_they_end() {
    let kind = NT_X86_SHSTK as u32;
    let kill = || {
        let _ = sc!(SYS_kill, pid(), SIGABRT);
    };
    assert!(notes_of(kind, kill).is_none_or(|notes| notes.is_empty()));
    if !exist() {
        return;
    }
    // Of a shadow stack of some pages, which the core has whole.
    let new = rlimit { rlim_cur: 65536, rlim_max: RLIM_INFINITY };
    sc!(SYS_setrlimit, RLIMIT_STACK, &raw const new).is(0);
    let words = new_shared();
    let notes = notes_of(kind, || {
        with(|| {
            let top = ssp();
            words[0].store(top as u32, SeqCst);
            words[1].store((top >> 32) as u32, SeqCst);
            kill();
        });
    });
    let Some(notes) = notes else { return };
    let top = u64::from(words[0].load(SeqCst)) | u64::from(words[1].load(SeqCst)) << 32;
    let [note] = &notes[..] else { panic!("{} notes", notes.len()) };
    let found = u64::from_ne_bytes(note[..].try_into().expect("a word"));
    assert!(found <= top && top - found < 256, "{found:#x} {top:#x}");
}

/// Processes with and without take turns on one CPU.
fn nothing_leaks() {
    if !exist() {
        return;
    }
    let turns = 300;
    pin(0).is(0);
    let checks_none = || {
        for _ in 0..turns {
            assert_eq!(ssp(), 0);
            let _ = sc!(SYS_sched_yield);
        }
        // Nor is anything checked.
        returns_elsewhere(3);
        0
    };
    let without = fork(checks_none);
    let with_one = fork(|| {
        with(|| {
            for n in 0..turns {
                let top = ssp();
                assert_eq!((returns_deeply(n % 20), ssp()), (n % 20, top));
            }
        });
        0
    });
    let with_both = fork(|| {
        with(|| {
            prctl(ENABLE, WRSS).is(0);
            for _ in 0..turns {
                wrss(ssp() - 64, 1);
                assert_eq!(returns_deeply(3), 3);
            }
        });
        0
    });
    for (pid, code) in [(without, 3), (with_one, 0), (with_both, 0)] {
        wait_code(pid, code);
    }
    assert_eq!((ssp(), status()), (0, 0));
}

/// On all CPUs, with handlers that come in between.
fn threads_come_and_go() {
    if !exist() {
        return;
    }
    on_signal(SIGUSR1, nothing as *const () as usize, SA_RESTART, 0);
    meets_threads();
    with(|| {
        for _ in 0..4 {
            let threads = [(); 4].map(|()| {
                std::thread::spawn(|| {
                    for n in 0..20 {
                        assert_eq!(returns_deeply(n), n);
                        sc!(SYS_tgkill, pid(), tid(), SIGUSR1).is(0);
                    }
                })
            });
            threads.into_iter().for_each(|thread| thread.join().expect("it ends"));
        }
        until(|| areas().len() == 1);
    });
}
