//! Calls that a thread serves itself: prctl(2), PR_SET_SYSCALL_USER_DISPATCH.
//!
//! Each test sets it in a child, and lets calls be made again before anything of the library could
//! make one.

use crate::sys::*;
use crate::{sc, tests};
use std::sync::atomic::{AtomicI64, AtomicU8, Ordering::SeqCst};

tests!("dispatch":
    blocked_calls_are_signals, calls_of_the_range_are_made, without_a_byte, bad_bytes_end_it,
    what_is_refused, children_and_programs_are_without, a_tracer_sees_and_sets_it,
);

const SET_DISPATCH: i32 = 59;
const ON: usize = 1;
const ARCH: i64 = 0xc000_003e;
const SET_CONFIG: i32 = 0x4210;
const GET_CONFIG: i32 = 0x4211;
/// A call that nobody else makes here.
const NUMBER: i32 = 0xf00;

static BYTE: AtomicU8 = AtomicU8::new(0);
static SEEN: [AtomicI64; 6] = [const { AtomicI64::new(0) }; 6];

fn set(mode: usize, offset: usize, len: usize, byte: usize) -> Res {
    sc!(SYS_prctl, SET_DISPATCH, mode, offset, len, byte)
}

fn byte() -> usize {
    BYTE.as_ptr() as usize
}

extern "C" fn on_sigsys(signal: i32, info: *const i32, context: *const u64) {
    BYTE.store(0, SeqCst);
    // SAFETY: the kernel passes a siginfo_t and a ucontext_t.
    let info = unsafe { std::slice::from_raw_parts(info, 8) };
    // SAFETY: as above; the registers begin 40 bytes into ucontext_t, RAX is the 14th.
    let (rax, rip) = unsafe { (context.add(5 + 13).read(), context.add(5 + 16).read()) };
    let address = u64::from(info[5] as u32) << 32 | u64::from(info[4] as u32);
    let values = [
        signal.into(),
        info[1].into(),
        info[2].into(),
        i64::from(info[6]) | i64::from(address == rip) << 32,
        i64::from(info[7] as u32),
        rax as i64,
    ];
    SEEN.iter().zip(values).for_each(|(slot, value)| slot.store(value, SeqCst));
}

fn handle() {
    on_signal(SIGSYS, on_sigsys as *const () as usize, SA_SIGINFO, 0);
}

fn seen() -> [i64; 6] {
    SEEN.each_ref().map(|slot| slot.swap(0, SeqCst))
}

fn blocked_calls_are_signals() {
    in_child(|| {
        handle();
        set(ON, 0, 0, byte()).is(0);
        sc!(SYS_getppid).must();
        BYTE.store(1, SeqCst);
        // What the handler leaves in RAX is the result: the call's number.
        let result = raw_call(NUMBER as usize, &[]);
        assert_eq!(result, Ok(NUMBER as usize));
        assert_eq!(seen(), [SIGSYS.into(), 0, 2, 1 << 32 | i64::from(NUMBER), ARCH, NUMBER.into()]);
        // Also calls that there are.
        BYTE.store(1, SeqCst);
        let result = raw_call(SYS_getppid as usize, &[]);
        assert_eq!(result, Ok(SYS_getppid as usize));
        set(0, 0, 0, 0).is(0);
        BYTE.store(1, SeqCst);
        sc!(SYS_getppid).must();
    });
}

fn calls_of_the_range_are_made() {
    in_child(|| {
        handle();
        // All addresses but the highest: none is outside.
        set(ON, 1, (1 << 47) - 1, byte()).is(0);
        BYTE.store(1, SeqCst);
        let result = raw_call(SYS_getppid as usize, &[]);
        BYTE.store(0, SeqCst);
        assert_ne!(result, Ok(SYS_getppid as usize));
        // A range elsewhere.
        set(ON, 4096, 4096, byte()).is(0);
        BYTE.store(1, SeqCst);
        assert_eq!(raw_call(SYS_getppid as usize, &[]), Ok(SYS_getppid as usize));
    });
}

/// Where no byte is named, no call outside the range is made, and the return from the handler is
/// one.
fn without_a_byte() {
    let child = fork(|| {
        handle();
        set(ON, 0, 0, 0).is(0);
        let _ = raw_call(NUMBER as usize, &[]);
        5
    });
    wait_signal(child, SIGSYS);
}

fn bad_bytes_end_it() {
    for (value, signal) in [(2, SIGSYS), (255, SIGSYS)] {
        let child = fork(|| {
            handle();
            set(ON, 0, 0, byte()).is(0);
            BYTE.store(value, SeqCst);
            let _ = raw_call(NUMBER as usize, &[]);
            5
        });
        wait_signal(child, signal);
    }
    let child = fork(|| {
        on_signal(SIGSEGV, SIG_IGN, 0, 0);
        let page = anon(4096);
        set(ON, 0, 0, page as usize).is(0);
        unmap_last(page);
        let _ = raw_call(NUMBER as usize, &[]);
        5
    });
    wait_signal(child, SIGSEGV);
}

/// The call itself is made: the byte is there, and says so, until it is done.
fn unmap_last(page: *mut u8) {
    let _ = raw_call(SYS_munmap as usize, &[page as usize, 4096]);
}

fn what_is_refused() {
    in_child(|| {
        set(0, 1, 0, 0).fails(EINVAL);
        set(0, 0, 1, 0).fails(EINVAL);
        set(0, 0, 0, byte()).fails(EINVAL);
        set(3, 0, 0, 0).fails(EINVAL);
        set(ON, 4096, 0, byte()).fails(EINVAL);
        set(ON, 4096, usize::MAX - 4095, byte()).fails(EINVAL);
        set(ON, 0, 0, usize::MAX).fails(EFAULT);
        set(0, 0, 0, 0).is(0);
    });
}

fn children_and_programs_are_without() {
    in_child(|| {
        handle();
        BYTE.store(0, SeqCst);
        set(ON, 0, 0, byte()).is(0);
        let child = fork(|| {
            BYTE.store(1, SeqCst);
            let result = raw_call(NUMBER as usize, &[]);
            i32::from(result != Err(ENOSYS))
        });
        wait_code(child, 0);
        let child = fork(|| {
            set(ON, 0, 0, byte()).is(0);
            let (path, mode) = (c(&own_path()), c("child"));
            let argv = [path.as_ptr(), mode.as_ptr(), c"exit".as_ptr(), c"7".as_ptr()];
            let argv = [&argv[..], &[std::ptr::null()]].concat();
            let envp = [std::ptr::null::<u8>()];
            let _ = sc!(SYS_execve, path.as_ptr(), argv.as_ptr(), envp.as_ptr());
            0
        });
        wait_code(child, 7);
    });
}

fn a_tracer_sees_and_sets_it() {
    let child = fork(|| {
        handle();
        set(ON, 16, 32, byte()).is(0);
        sc!(SYS_ptrace, PTRACE_TRACEME, 0, 0, 0).is(0);
        sc!(SYS_kill, pid(), SIGSTOP).is(0);
        // The tracer has switched it off.
        BYTE.store(1, SeqCst);
        let result = raw_call(NUMBER as usize, &[]);
        BYTE.store(0, SeqCst);
        i32::from(result != Err(ENOSYS))
    });
    let mut status = 0;
    sc!(SYS_wait4, child, &raw mut status, 0, 0).is(child as usize);
    let mut config = [9u64; 4];
    let to = config.as_mut_ptr();
    sc!(SYS_ptrace, GET_CONFIG, child, 31, to).fails(EINVAL);
    sc!(SYS_ptrace, GET_CONFIG, child, 32, 1).fails(EFAULT);
    sc!(SYS_ptrace, GET_CONFIG, child, 32, to).is(0);
    assert_eq!(config, [1, byte() as u64, 16, 32]);
    let wrong = [7u64, 0, 0, 0];
    sc!(SYS_ptrace, SET_CONFIG, child, 32, wrong.as_ptr()).fails(EINVAL);
    let off = [0u64; 4];
    sc!(SYS_ptrace, SET_CONFIG, child, 32, off.as_ptr()).is(0);
    sc!(SYS_ptrace, GET_CONFIG, child, 32, to).is(0);
    assert_eq!(config, [0; 4]);
    sc!(SYS_ptrace, PTRACE_CONT, child, 0, 0).is(0);
    wait_code(child, 0);
}
