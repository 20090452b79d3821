//! Restartable sequences (rseq(2)): registration, the CPU that the area tells, and that a sequence
//! begins again when its thread was preempted or got a signal in its midst.
//!
//! The C library has registered an area for each of its threads; the tests use that one.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};

use crate::sc;
use crate::sys::*;
use crate::tests;

tests!("rseq":
    registration, the_area_tells_the_cpu, a_signal_gives_a_sequence_up, so_does_preemption,
    outside_nothing_is_given_up, a_bad_sequence_is_fatal, a_child_has_the_area,
);

/// What the library signs its sequences with.
const SIGNATURE: u32 = 0x5305_3053;
const UNREGISTER: u32 = 1;

unsafe extern "C" {
    static __rseq_offset: isize;
    static __rseq_size: u32;
}

/// `struct rseq`.
#[repr(C, align(32))]
struct Area {
    cpu_start: AtomicU32,
    cpu: AtomicU32,
    sequence: AtomicU64,
    flags: AtomicU32,
    node: AtomicU32,
    concurrency: AtomicU32,
    _rest: u32,
}

/// The area of this thread, which the library registered.
fn area() -> &'static Area {
    // SAFETY: the library sets both before any code of the program runs.
    let (offset, size) = unsafe { (__rseq_offset, __rseq_size) };
    assert!(size > 0, "the library has not registered");
    let thread: usize;
    // SAFETY: the first word that FS points to is its own address (x86-64's ABI for threads).
    unsafe { std::arch::asm!("mov {}, fs:0", out(reg) thread) };
    // SAFETY: the area lives as long as the thread, which does not leave the test.
    unsafe { &*((thread as isize + offset) as *const Area) }
}

fn call(area: &Area, length: u32, flags: u32, signature: u32) -> Res {
    sc!(SYS_rseq, std::ptr::from_ref(area), length, flags, signature)
}

/// The length that the library registered with.
fn length(area: &Area) -> u32 {
    let fits = |length: &u32| call(area, *length, 0, SIGNATURE) == Err(EBUSY);
    (32..256).step_by(4).find(fits).expect("the length of the library's area")
}

/// Ends the registration of this thread's area.
pub fn unregister() {
    let area = area();
    call(area, length(area), UNREGISTER, SIGNATURE).is(0);
}

fn registration() {
    let (own, other) = (area(), Box::leak(Box::new([0u64; 16])));
    let other = (other.as_ptr() as usize).next_multiple_of(32);
    let length = length(own);
    call(own, length, 0, SIGNATURE + 1).fails(EPERM);
    call(own, length + 32, 0, SIGNATURE).fails(EINVAL);
    sc!(SYS_rseq, other, length, 0, SIGNATURE).fails(EINVAL);
    call(own, length, UNREGISTER, SIGNATURE + 1).fails(EPERM);
    call(own, length, UNREGISTER | 4, SIGNATURE).fails(EINVAL);
    sc!(SYS_rseq, other, length, UNREGISTER, SIGNATURE).fails(EINVAL);
    call(own, length, UNREGISTER, SIGNATURE).is(0);
    assert_eq!((own.cpu_start.load(SeqCst), own.cpu.load(SeqCst)), (0, u32::MAX));
    call(own, length, UNREGISTER, SIGNATURE).fails(EINVAL);
    sc!(SYS_rseq, other + 4, 32, 0, SIGNATURE).fails(EINVAL);
    sc!(SYS_rseq, other, 16, 0, SIGNATURE).fails(EINVAL);
    sc!(SYS_rseq, usize::MAX & !31, 32, 0, SIGNATURE).fails(EFAULT);
    call(own, length, 2, SIGNATURE).fails(EINVAL);
    call(own, length, 0, SIGNATURE).is(0);
    assert!(own.cpu.load(SeqCst) < 1024);
}

fn the_area_tells_the_cpu() {
    let own = area();
    let mut mask = [0u64; 16];
    sc!(SYS_sched_getaffinity, 0, 128, mask.as_mut_ptr()).must();
    let cpus: Vec<usize> = (0..1024).filter(|cpu| mask[cpu / 64] >> (cpu % 64) & 1 == 1).collect();
    for round in 0..20 {
        let cpu = cpus[round % cpus.len()];
        pin(cpu).is(0);
        let told = [own.cpu.load(SeqCst), own.cpu_start.load(SeqCst)];
        assert_eq!(told, [cpu as u32; 2]);
        nap(1);
        assert_eq!(own.cpu.load(SeqCst), cpu as u32);
        std::thread::spawn(move || assert_eq!(area().cpu.load(SeqCst), cpu as u32)).join().unwrap();
    }
}

/// Waits within a sequence until it is given up or `stop` is set. True if it was given up.
fn wait_within(area: &Area, stop: &AtomicU32) -> bool {
    let given_up: u32;
    // SAFETY: the sequence reads one word; it is given up at the label behind its signature.
    unsafe {
        std::arch::asm!(
            ".pushsection .data.rel.limen_rseq, \"aw\"",
            ".balign 32",
            "2: .long 0, 0",
            ".quad 3f, 4f - 3f, 5f",
            ".popsection",
            "xor {up:e}, {up:e}",
            "lea {tmp}, [rip + 2b]",
            "mov [{area} + 8], {tmp}",
            "3:",
            "pause",
            "cmp dword ptr [{stop}], 0",
            "je 3b",
            "4:",
            "jmp 6f",
            // A trap, whose last four bytes are the signature.
            ".byte 0x0f, 0xb9, 0x3d",
            ".long {signature}",
            "5:",
            "mov {up:e}, 1",
            "6:",
            up = out(reg) given_up,
            tmp = out(reg) _,
            area = in(reg) std::ptr::from_ref(area),
            stop = in(reg) stop.as_ptr(),
            signature = const SIGNATURE,
        );
    }
    given_up == 1
}

static HANDLED: AtomicU32 = AtomicU32::new(0);

extern "C" fn count(_signal: i32) {
    HANDLED.fetch_add(1, SeqCst);
}

fn a_signal_gives_a_sequence_up() {
    on_signal(SIGALRM, count as extern "C" fn(i32) as usize, SA_RESTART, 0);
    let own = area();
    for round in 1..=5 {
        let soon = [0u64, 0, 0, 20_000];
        sc!(SYS_setitimer, ITIMER_REAL, soon.as_ptr(), 0).is(0);
        assert!(wait_within(own, &AtomicU32::new(0)));
        // Preemption may have come first.
        until_at_least(&HANDLED, round);
        assert_eq!(own.sequence.load(SeqCst), 0);
    }
}

fn so_does_preemption() {
    let own = area();
    pin(0).is(0);
    let stop = new_shared();
    let spinner = fork(|| {
        while stop[0].load(SeqCst) == 0 {
            std::hint::spin_loop();
        }
        0
    });
    for _ in 0..5 {
        assert!(wait_within(own, &AtomicU32::new(0)));
        assert_eq!(own.sequence.load(SeqCst), 0);
    }
    stop[0].store(1, SeqCst);
    wait_code(spinner, 0);
}

fn outside_nothing_is_given_up() {
    let (own, stop) = (area(), AtomicU32::new(1));
    for _ in 0..1000 {
        // The end of the sequence is reached; what it was stays in the area until somebody looks.
        let given_up = wait_within(own, &stop);
        if !given_up {
            pin(0).is(0);
            let _ = sc!(SYS_sched_yield);
        }
    }
    own.sequence.store(0, SeqCst);
}

fn a_bad_sequence_is_fatal() {
    let descriptors: [[u64; 4]; 4] = [
        // A version that is none, a place outside of user space, one within the sequence itself.
        [1, 0x1000, 0x10, 0x2000],
        [0, 1 << 63, 0x10, 0x2000],
        [0, 0x1000, 0x10, 0x1008],
        // Without the signature.
        [0, 0x1000, 0x10, 0x8_0000_0000],
    ];
    for descriptor in descriptors {
        let child = fork(|| {
            #[repr(align(32))]
            struct Aligned([u64; 4]);
            let aligned = Aligned(descriptor);
            area().sequence.store(aligned.0.as_ptr() as u64, SeqCst);
            on_signal(SIGUSR1, count as extern "C" fn(i32) as usize, 0, 0);
            // A signal makes the kernel look.
            let _ = sc!(SYS_kill, pid(), SIGUSR1);
            0
        });
        wait_signal(child, SIGSEGV);
    }
}

fn a_child_has_the_area() {
    let own = area();
    let length = length(own);
    in_child(|| {
        call(area(), length, 0, SIGNATURE).fails(EBUSY);
        pin(0).is(0);
        assert_eq!(area().cpu.load(SeqCst), 0);
    });
    // A new program's area is its own: the library registers again, or would end.
    let at_exec = std::process::Command::new(own_path()).arg("no-such-word").output();
    assert!(at_exec.unwrap().status.code().is_some());
}
