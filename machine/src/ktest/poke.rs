//! Stores to text are whole: while each instruction of a write is stepped over, the bytes are what
//! they were or what they shall be, and never a mixture, which an NMI could execute.

use alloc::format;
use alloc::string::String;
use core::arch::asm;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use entry::{PtRegs, flags};
use text_patching::{Text, TextPoke};

use super::Test;
use crate::cpu::{self, PAGE_SIZE};
use crate::ensure;
use crate::text::text_poke::{LiveText, Window, late_range, open_for_test};

pub(super) const TESTS: &[Test] = &[Test { name: "text::stores_are_whole", run: stores_are_whole }];

/// Eight bytes that are looked at after each step; 0: none are.
static WATCHED: AtomicU64 = AtomicU64::new(0);
static OLD: AtomicU64 = AtomicU64::new(0);
static NEW: AtomicU64 = AtomicU64::new(0);
/// Steps, and those with a mixture.
static STEPS: AtomicU32 = AtomicU32::new(0);
static MIXED: AtomicU32 = AtomicU32::new(0);

/// A debug exception in the kernel: one of a write that is watched?
pub(super) fn step(regs: &mut PtRegs) -> bool {
    let at = WATCHED.load(Ordering::SeqCst);
    if at == 0 {
        return false;
    }
    cpu::take_dr6();
    STEPS.fetch_add(1, Ordering::SeqCst);
    let is_whole = [&OLD, &NEW].map(|word| word.load(Ordering::SeqCst)).contains(&word(at));
    MIXED.fetch_add(u32::from(!is_whole), Ordering::SeqCst);
    regs.rflags |= flags::TF;
    true
}

fn word(at: u64) -> u64 {
    let mut bytes = [0; 8];
    // Of text: it can be read.
    let _ = LiveText.read(at, &mut bytes);
    u64::from_le_bytes(bytes)
}

/// Steps through `write`, which shall make of the word at `at` the word `new`.
fn stepped(at: u64, new: u64, write: impl FnOnce()) -> Result<(), String> {
    let old = word(at);
    OLD.store(old, Ordering::SeqCst);
    NEW.store(new, Ordering::SeqCst);
    STEPS.store(0, Ordering::SeqCst);
    MIXED.store(0, Ordering::SeqCst);
    WATCHED.store(at, Ordering::SeqCst);
    // SAFETY: TF makes each instruction a step, up to the second POPF; `step` changes nothing else.
    unsafe { asm!("pushfq", "or dword ptr [rsp], 0x100", "popfq") };
    write();
    // SAFETY: the flags are as they were, without TF; the stack is used within the block alone.
    unsafe { asm!("pushfq", "and dword ptr [rsp], ~0x100", "popfq") };
    WATCHED.store(0, Ordering::SeqCst);
    let (steps, mixed) = (STEPS.load(Ordering::SeqCst), MIXED.load(Ordering::SeqCst));
    let after = word(at);
    ensure!(old != new && after == new, "{old:#x} became {after:#x} and not {new:#x}");
    ensure!(steps > 4 && mixed == 0, "a mixture behind {mixed} of {steps} instructions");
    Ok(())
}

/// As the passes write: the number of bytes is known when they are compiled.
fn one<const N: usize>(window: &mut Window<'_>, at: u64, byte: u8) -> Result<(), String> {
    let mut bytes = word(at).to_le_bytes();
    bytes[..N].fill(byte);
    stepped(at, u64::from_le_bytes(bytes), || window.poke(at, &[byte; N]))
        .map_err(|error| format!("{N} bytes at {at:#x}: {error}"))
}

fn stores_are_whole() -> Result<(), String> {
    let page = late_range().end - PAGE_SIZE as u64;
    let mut window = open_for_test(page);
    // Aligned, not aligned, and over the end of a cache line.
    for at in [page + 0x80, page + 0x93, page + 0xbd] {
        one::<1>(&mut window, at, 0x11)?;
        one::<2>(&mut window, at, 0x12)?;
        one::<4>(&mut window, at, 0x14)?;
        one::<5>(&mut window, at, 0x15)?;
        one::<6>(&mut window, at, 0x16)?;
        one::<8>(&mut window, at, 0x18)?;
        let jump = 0x1a_1a1a_1a1a;
        let new = word(at) & !0xff_ffff_ffff | jump;
        stepped(at, new, || window.poke_word::<5>(at, jump))?;
    }
    Ok(())
}
