//! Filters of system calls as machine code: what `seccomp::compile` made, loaded as late text.
//!
//! This is the safe door from that compiler to late text: it takes that compiler's output and
//! nothing else, gives it the preamble of its type, and calls it through a pointer, checked like
//! every other.
//!
//! Neighbours: `late_text` loads and unloads, `mechanisms/seccomp` says why the code does no harm.

use alloc::vec::Vec;
use core::hint::black_box;

use seccomp::{Code, Data};

use crate::text::late_text::{self, LateText, Piece};

type Run = extern "C" fn(&Data) -> u32;

/// `b8 hash` and eleven nops, before the function.
const PREAMBLE: [u8; 16] = [0xb8, 0, 0, 0, 0, N, N, N, N, N, N, N, N, N, N, N];
const N: u8 = 0x90;

/// A loaded filter. Dropping it waits for all CPUs: never do that under a spin lock.
#[derive(Debug)]
pub struct Filter {
    run: Run,
    _text: LateText,
}

/// Has the type of a filter, and so its hash.
extern "C" fn kill(_: &Data) -> u32 {
    seccomp::action::KILL_THREAD
}

impl Filter {
    /// Loads a filter, and waits for all CPUs. None if there is no room, or the image has no tables
    /// of checks: then interpret.
    #[must_use]
    pub fn load(code: &Code) -> Option<Filter> {
        // Kept from the optimiser: only functions whose address is taken have a hash.
        let same_type: Run = black_box(kill);
        let hash = late_text::hash_of(same_type as usize as u64)?;
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(PREAMBLE.len() + code.bytes().len()).ok()?;
        bytes.extend_from_slice(&PREAMBLE);
        bytes[1..5].copy_from_slice(&hash.to_le_bytes());
        bytes.extend_from_slice(code.bytes());
        let functions = &[(PREAMBLE.len(), hash)];
        let mut returns = Vec::new();
        returns.try_reserve_exact(code.returns().len()).ok()?;
        returns.extend(code.returns().iter().map(|at| PREAMBLE.len() + at));
        let piece = Piece { code: &bytes, checks: &[], functions, calls: &[], returns: &returns };
        let text = late_text::load(&piece).ok()?;
        // SAFETY: a `Code` is a function of this type that reads its argument, writes its own stack
        // frame, and returns (`mechanisms/seccomp`, invariant 2); `run` borrows `self`, so nobody
        // is in it when `self` is dropped.
        let run = unsafe { text.function(PREAMBLE.len()) };
        Some(Filter { run, _text: text })
    }

    /// What the filter answers for a call.
    #[inline]
    #[must_use]
    pub fn run(&self, data: &Data) -> u32 {
        (self.run)(data)
    }
}
