//! Tests of the machine that need the machine: they run inside the booted kernel, in an image that
//! is built for them and used for nothing else (feature `ktest`).
//!
//! What makes them possible is here: stores that may fault ([`probe_write`]), and failed kCFI
//! checks that are caught instead of continued ([`expect_cfi_failure`]). Tests: `text`, `late`,
//! `memory`.
//!
//! Neighbours: `kernel::ktest` runs them, with its own.

use alloc::string::String;
use core::arch::global_asm;
use core::sync::atomic::{AtomicBool, Ordering};

use entry::PtRegs;
use text_patching::Text;
use text_patching::tail::{self, BranchKind, Tail};

use crate::cpu::sync::SpinLock;
use crate::text::cfi::{self, CfiReport, Failed};
use crate::text::text_poke::{self, LiveText};

pub mod defer;
pub mod handler;
mod late;
mod memory;
pub(crate) mod mitigations;
mod poke;
mod seccomp;
mod shadow_stack;
pub mod stale;
mod text;
pub mod vmrun;
pub mod window;

/// A test: its name, and what it does.
pub struct Test {
    /// As the log and the filter have it.
    pub name: &'static str,
    /// The test; an error says what was wrong.
    pub run: fn() -> Result<(), String>,
}

/// A debug exception in the kernel: one of a test's steps?
pub(crate) fn step(regs: &mut entry::PtRegs) -> bool {
    window::step(regs) || mitigations::step(regs) || poke::step(regs)
}

/// The machine's tests.
pub const TESTS: &[&[Test]] = &[
    text::TESTS,
    late::TESTS,
    memory::TESTS,
    window::TESTS,
    seccomp::TESTS,
    mitigations::TESTS,
    poke::TESTS,
    handler::TESTS,
    vmrun::TESTS,
    shadow_stack::TESTS,
];

pub use late::{FailingPiece, load_and_unload};
pub(crate) use text::between;
pub use text::{flip_call, flip_key, provoke, read_call, read_key, read_likely_key};

/// Fails the test with a message unless the condition holds.
#[macro_export]
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err(alloc::format!($($message)+));
        }
    };
}

// ktest_probe(rdi: at, esi: byte) -> eax: 0, or 1 after a fault. Writes the byte.
global_asm!(
    r#"
    .pushsection .text.ktest_probe, "ax", @progbits
    .globl ktest_probe, ktest_probe_store
    .type ktest_probe, @function
    ktest_probe:
        xor %eax, %eax
    ktest_probe_store:
        movb %sil, (%rdi)
        jmp __x86_return_thunk
    1:  mov $1, %eax
        jmp __x86_return_thunk
        int3
    .size ktest_probe, . - ktest_probe
    .popsection
    .pushsection .extable, "a", @progbits
    .balign 4
    .long ktest_probe_store - ., 1b - .
    .popsection
    "#,
    options(att_syntax)
);

unsafe extern "C" {
    fn ktest_probe(at: u64, byte: u32) -> u32;
    static ktest_probe_store: u8;
}

/// Whether a fault at `rip` is the probe's, at whatever address.
pub(crate) fn is_probe(rip: u64) -> bool {
    rip == (&raw const ktest_probe_store) as u64
}

/// Tries to write the byte that is at `at` already, or 0. True: the write was done.
pub(crate) fn probe_write(at: u64) -> bool {
    let byte = crate::memory::peek(at).unwrap_or(0);
    // SAFETY: the store faults, or stores what was there; the fault is in the exception table.
    unsafe { ktest_probe(at, u32::from(byte)) == 0 }
}

static EXPECTING: AtomicBool = AtomicBool::new(false);
/// The report, and how far behind the site's start the trap was.
static CAUGHT: SpinLock<Option<Caught>> = SpinLock::new(None);
type Caught = (CfiReport, u64);

/// Where [`CAUGHT`] lies.
fn caught_range() -> core::ops::Range<u64> {
    let start = (&raw const CAUGHT) as u64;
    start..start + size_of_val(&CAUGHT) as u64
}
/// Whether the next report fails a check itself.
static FAIL_WITHIN: AtomicBool = AtomicBool::new(false);

/// Runs `f` and returns the failed check in it. Calls behind failed checks are not made. Without
/// checks (`cfi=off`, an unfinished image) `f` would make them, so it does not run.
pub(crate) fn expect_cfi_failure(f: impl FnOnce()) -> Option<CfiReport> {
    caught_in(f).map(|(report, _)| report)
}

/// As [`expect_cfi_failure`], with the trap's distance from the site's start.
pub(crate) fn caught_in(f: impl FnOnce()) -> Option<Caught> {
    if !cfi::is_on() {
        return None;
    }
    let warned = cfi::set_warn(true);
    EXPECTING.store(true, Ordering::SeqCst);
    *CAUGHT.lock() = None;
    f();
    EXPECTING.store(false, Ordering::SeqCst);
    cfi::set_warn(warned);
    CAUGHT.lock().take()
}

/// Runs `f` while failed checks on any CPU are caught and counted, as [`expect_cfi_failure`] does;
/// returns how many there were. Without checks `f` does not run: `None`.
pub fn survive_failures(f: impl FnOnce()) -> Option<u64> {
    let before = cfi::failures();
    expect_cfi_failure(f);
    cfi::is_on().then(|| cfi::failures() - before)
}

/// Makes a call through a pointer of the wrong type, which ends the machine unless `cfi=warn`.
pub fn fail_check() {
    text::fail_once();
}

/// Fails a check, and another one in the report of the first: that ends the machine even where
/// failures are survived.
fn fail_within_report() {
    cfi::set_warn(true);
    FAIL_WITHIN.store(true, Ordering::SeqCst);
    text::fail_once();
}

/// Takes a failed check that a test expects: notes it, and goes on behind the call.
pub(crate) fn claim(regs: &mut PtRegs, failed: &Failed) -> bool {
    if FAIL_WITHIN.swap(false, Ordering::SeqCst) {
        text::fail_once();
    }
    if !EXPECTING.load(Ordering::SeqCst) {
        return false;
    }
    let Some(call) = failed.call else {
        *CAUGHT.lock() = Some((failed.report, failed.offset));
        regs.rax = 0;
        text_poke::pop_rip(regs);
        return true;
    };
    let mut bytes = [0; tail::TAIL_MAX];
    let Ok(()) = LiveText.read(call, &mut bytes) else { return false };
    let (kind, len) = match tail::decode(call, &bytes) {
        Some(Tail::Known { shape, .. }) => (shape.kind, shape.len),
        Some(Tail::Bare { kind, len, .. }) => (kind, len),
        None => return false,
    };
    *CAUGHT.lock() = Some((failed.report, failed.offset));
    regs.rax = 0;
    match kind {
        BranchKind::Call => regs.rip = call + u64::from(len),
        BranchKind::Jump => text_poke::pop_rip(regs),
    }
    true
}

/// A program has made a system call.
#[inline]
pub(crate) fn entered(regs: &PtRegs) {
    handler::called(regs);
    defer::look(defer::Look::Syscall);
    window::follow();
}

/// Asks all other CPUs at once to forget translations, and to serialise.
pub fn ask_all_cpus() {
    crate::context_tracking::tlb::flush_kernel(context_tracking::work::Cause::Vunmap);
    crate::context_tracking::tlb::sync_cores();
}

static IN_NMI: SpinLock<Option<fn()>> = SpinLock::new(None);
static NMI_DONE: AtomicBool = AtomicBool::new(false);

/// Runs `f` in an NMI of this CPU.
pub(crate) fn run_in_nmi(f: fn()) -> bool {
    *IN_NMI.lock() = Some(f);
    NMI_DONE.store(false, Ordering::SeqCst);
    crate::context_tracking::ipi::send_nmi(crate::cpu::percpu::cpu_id());
    for _ in 0..100_000_000_u64 {
        if NMI_DONE.load(Ordering::SeqCst) {
            return true;
        }
        core::hint::spin_loop();
    }
    false
}

/// An NMI came.
pub(crate) fn on_nmi() {
    window::nmi_came();
    if let Some(f) = IN_NMI.try_lock().and_then(|mut slot| slot.take()) {
        f();
        NMI_DONE.store(true, Ordering::SeqCst);
    }
}
