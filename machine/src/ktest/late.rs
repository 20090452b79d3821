//! Late text: runs, goes without a trace, is refused where it is not as it says.

use alloc::format;
use alloc::string::String;
use core::hint::black_box;
use core::sync::atomic::{AtomicU64, Ordering};

use super::text::READ_ONLY;
use super::text::{Right, add_one, call_last, fits, forged, wrong};
use super::{Test, expect_cfi_failure, probe_write};
use crate::ensure;
use crate::memory::KernelRights;
use crate::text::late_text::{self, LateText, Piece, Refused};

pub(super) const TESTS: &[Test] = &[
    Test { name: "late_text::loads_and_runs", run: late_text_runs },
    Test { name: "late_text::is_called_through_pointers", run: late_text_through_pointers },
    Test { name: "late_text::goes_without_a_trace", run: late_text_goes },
    Test { name: "late_text::is_a_chain_of_direct_calls", run: late_text_chain },
    Test { name: "late_text::refuses_what_is_malformed", run: late_text_refuses },
];

// A piece of late text: a function that calls its argument, checked, as the compiler makes them.
// The hashes are filled in by the test.
//   +0  preamble: b8 hash, 11 nops
//   +16 push rbp; mov rdi -> r11; mov $41, %edi
//   +25 check; call thunk
//   +45 pop rbp; ret
const LATE: [u8; 51] = [
    0xb8, 0, 0, 0, 0, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90,
    0x90, // preamble
    0x55, 0x49, 0x89, 0xfb, // push %rbp; mov %rdi, %r11
    0xbf, 41, 0, 0, 0, // mov $41, %edi
    0x41, 0xba, 0, 0, 0, 0, 0x45, 0x03, 0x53, 0xf1, 0x74, 0x02, 0x0f, 0x0b, // check
    0x2e, 0xe8, 0, 0, 0, 0, // cs call thunk
    0x5d, 0xc3, 0xcc, 0xcc, 0xcc, 0xcc, // pop %rbp; ret
];
const NONE: Piece<'static> =
    Piece { code: &[], checks: &[], functions: &[], calls: &[], returns: &[] };
const INT3: u8 = 0xcc;
const LATE_FUNCTION: usize = 16;
const LATE_CHECK: usize = 25;
const LATE_RETURN: usize = 46;

fn late_code(function_hash: u32, hash: u32) -> [u8; 51] {
    let mut code = LATE;
    code[1..5].copy_from_slice(&function_hash.to_le_bytes());
    code[LATE_CHECK + 2..][..4].copy_from_slice(&hash.wrapping_neg().to_le_bytes());
    code
}

/// The type of the piece's function.
extern "C" fn call_it(_: Right) -> u64 {
    0
}

/// The hash of what the piece calls.
fn late_hash() -> Result<u32, String> {
    late_text::hash_of(add_one as *const () as u64).ok_or("no hash for the function".into())
}

/// Loads the piece above, with a function of this hash.
fn load_late(function_hash: u32) -> Result<LateText, String> {
    let hash = late_hash()?;
    let code = late_code(function_hash, hash);
    let piece = Piece {
        code: &code,
        checks: &[(LATE_CHECK, hash)],
        functions: &[(LATE_FUNCTION, function_hash)],
        returns: &[LATE_RETURN],
        ..NONE
    };
    late_text::load(&piece).map_err(|refused| format!("{refused:?}"))
}

fn late_text_runs() -> Result<(), String> {
    let pointer = call_it as *const () as u64;
    let late = load_late(late_text::hash_of(pointer).ok_or("no hash for the function")?)?;
    let base = late.base();
    ensure!(!probe_write(base), "late text can be written");
    let rights = crate::memory::kernel_rights(base);
    ensure!(rights == KernelRights { exec: true, ..READ_ONLY }, "late text has rights {rights:?}");
    // SAFETY: the bytes are a function of that type, and nobody calls it behind this test's end.
    let function: extern "C" fn(Right) -> u64 = unsafe { late.function(LATE_FUNCTION) };
    ensure!(black_box(function)(add_one) == 42, "late text does not call");
    // A failed check of late text is found in its own table.
    let target = wrong as *const () as u64;
    let report = expect_cfi_failure(|| _ = black_box(function)(forged(target)));
    let report = report.ok_or("no failed check in late text")?;
    ensure!(report.site == base + LATE_CHECK as u64, "{report}: wrong site");
    ensure!(report.target == target, "{report}: wrong target");
    Ok(())
}

/// The kernel calls late text through a pointer, and the check knows its type and no other.
fn late_text_through_pointers() -> Result<(), String> {
    let late = load_late(late_hash()?)?;
    // SAFETY: the type is not that of the code, but the hash is, and the code only uses its first
    // argument, which it checks and calls.
    let function: Right = unsafe { late.function(LATE_FUNCTION) };
    let target = wrong as *const () as u64;
    let report = expect_cfi_failure(|| _ = call_last(black_box(function), target));
    let report = report.ok_or("the call did not arrive in late text")?;
    ensure!(report.site == late.base() + LATE_CHECK as u64, "{report}: stopped before late text");
    // One byte further on there is no preamble.
    // SAFETY: unsound on purpose, as `forged`.
    let function: Right = unsafe { late.function(LATE_FUNCTION + 1) };
    let report = expect_cfi_failure(|| _ = call_last(black_box(function), 1));
    fits(report, function as usize as u64, true)
}

fn late_text_goes() -> Result<(), String> {
    let before = late_text::pages_in_use();
    let mut places = alloc::collections::BTreeSet::new();
    for _ in 0..100 {
        let late = load_late(late_hash()?)?;
        let base = late.base();
        places.insert(base);
        ensure!(late_text::pages_in_use() == before + 1, "a piece has other than one page");
        drop(late);
        let rights = crate::memory::kernel_rights(base);
        ensure!(rights == READ_ONLY, "unloaded text has rights {rights:?}");
        ensure!(!probe_write(base), "unloaded text can be written");
        ensure!(crate::memory::peek(base + 16) == Some(0xcc), "unloaded text is still there");
        let site = base + LATE_CHECK as u64;
        let found: Option<()> =
            late_text::find(site + 13, |_| panic!("a table of text that is gone"));
        ensure!(found.is_none(), "text that is gone has a table");
    }
    ensure!(places.len() == 1, "the room moves: {places:x?}");
    ensure!(late_text::pages_in_use() == before, "pages were lost");
    Ok(())
}

// A chain: calls one function, then jumps to another, with the same argument.
//   +16 push %rbx; mov %rdi, %rbx; call; mov %rbx, %rdi; pop %rbx; jmp
const CHAIN: [u8; 34] = [
    0xb8, 0, 0, 0, 0, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90,
    0x90, // preamble
    0x53, 0x48, 0x89, 0xfb, 0xe8, 0, 0, 0, 0, 0x48, 0x89, 0xdf, 0x5b, 0xe9, 0, 0, 0, 0,
];
const CHAIN_CALLS: [usize; 2] = [20, 29];

extern "C" fn hook_ten(sum: &AtomicU64) {
    sum.fetch_add(10, Ordering::Relaxed);
}
extern "C" fn hook_one(sum: &AtomicU64) {
    sum.fetch_add(1, Ordering::Relaxed);
}

/// Direct calls out of late text, each to a function that is told when the piece is loaded.
fn late_text_chain() -> Result<(), String> {
    let pointers = [hook_ten as extern "C" fn(&AtomicU64), hook_one].map(black_box);
    let targets = pointers.map(|function| function as usize as u64);
    let hash = late_text::hash_of(targets[0]).ok_or("no hash for the hook")?;
    let mut code = CHAIN;
    code[1..5].copy_from_slice(&hash.to_le_bytes());
    let functions = &[(LATE_FUNCTION, hash)];
    let calls = [(CHAIN_CALLS[0], targets[0]), (CHAIN_CALLS[1], targets[1])];
    let piece = Piece { code: &code, functions, calls: &calls, ..NONE };
    let late = late_text::load(&piece).map_err(|refused| format!("{refused:?}"))?;
    // SAFETY: the bytes are a function of that type, and nobody calls it behind this test's end.
    let chain: extern "C" fn(&AtomicU64) = unsafe { late.function(LATE_FUNCTION) };
    let sum = AtomicU64::new(0);
    black_box(chain)(&sum);
    ensure!(sum.load(Ordering::Relaxed) == 11, "the chain does not call both");
    // No call where none is, to no function, and beyond the end.
    let target = targets[0];
    let wrong = [(19, target), (20, target + 1), (30, target), (usize::MAX, target)];
    for calls in wrong.map(|call| [call]) {
        let refused = late_text::load(&Piece { calls: &calls, ..piece }).err();
        ensure!(refused == Some(Refused::Malformed), "{calls:x?}: {refused:?}");
    }
    Ok(())
}

fn late_text_refuses() -> Result<(), String> {
    let before = late_text::pages_in_use();
    let hash = late_hash()?;
    let refuse = |piece: Piece<'_>, why: Refused| match late_text::load(&piece) {
        Err(refused) if refused == why => Ok(()),
        other => Err(format!("not refused as {why:?}: {other:?}")),
    };
    let good = late_code(hash, hash);
    // Every byte of a check but the hash, and the hash itself against the list's.
    for position in (0..14).filter(|at| !(2..6).contains(at)) {
        let mut code = good;
        code[LATE_CHECK + position] ^= 0x10;
        refuse(Piece { code: &code, checks: &[(LATE_CHECK, hash)], ..NONE }, Refused::Malformed)?;
    }
    let checks = &[(LATE_CHECK, hash ^ 1)];
    refuse(Piece { code: &good, checks, ..NONE }, Refused::Malformed)?;
    for check in [good.len() - 10, 0x1000, usize::MAX] {
        let checks = &[(check, hash)];
        refuse(Piece { code: &good, checks, ..NONE }, Refused::Malformed)?;
    }
    for function in [0, 15, 17, 47, 0x2000, usize::MAX] {
        let functions = &[(function, hash)];
        refuse(Piece { code: &good, functions, ..NONE }, Refused::Malformed)?;
    }
    // A landing pad of its own, at any offset.
    for at in [0, 1, good.len() - 4] {
        let mut code = good;
        code[at..at + 4].copy_from_slice(&text_patching::preamble::endbr64().to_le_bytes());
        refuse(Piece { code: &code, ..NONE }, Refused::Malformed)?;
    }
    for code in [&[][..], &[INT3; 0x40001]] {
        refuse(Piece { code, ..NONE }, Refused::NoRoom)?;
    }
    ensure!(late_text::pages_in_use() == before, "a refused piece keeps its pages");
    Ok(())
}

/// A piece that stays loaded, for tests of the kernel that fail its check on several CPUs.
pub struct FailingPiece(LateText);

impl FailingPiece {
    /// Loads it.
    pub fn load() -> Result<Self, String> {
        load_late(late_hash()?).map(FailingPiece)
    }

    /// Fails its check once; only within [`super::survive_failures`].
    pub fn fail_once(&self) {
        // SAFETY: as in `late_text_through_pointers`; `self` keeps the piece.
        let function: Right = unsafe { self.0.function(LATE_FUNCTION) };
        _ = call_last(black_box(function), wrong as *const () as u64);
    }
}

/// Loads a piece and unloads it again.
pub fn load_and_unload() -> Result<(), String> {
    load_late(late_hash()?).map(drop)
}
