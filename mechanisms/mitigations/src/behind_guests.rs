//! When predictors are flushed behind guests (VMSCAPE): one word for each CPU, which belongs to the
//! CPU and to no thread.
//!
//! A guest has trained the predictors of the CPU it ran on, whoever runs there next. So the word is
//! set where the guest exits, before the thread could be moved; and whichever thread next returns
//! to user mode on that CPU, by whatever way, flushes first. A guest that is entered again before
//! that costs the one store.
//!
//! Neighbours: `vmscape` chooses what a flush is; the machine keeps the word where it looks for
//! other work of the way back.

/// The bit of a CPU's word: a guest has run here since the last flush.
pub const FLUSH: u32 = 1;

/// One CPU, by its own view. Interrupts are masked in all functions.
pub trait Cpu {
    /// This CPU's word.
    fn word(&self) -> u32;
    /// Sets it.
    fn set_word(&self, word: u32);
    /// Flushes what was chosen.
    fn flush(&self);
}

/// A guest has exited on this CPU; the thread is still bound to it.
#[inline(always)]
pub fn guest_ran(cpu: &impl Cpu) {
    cpu.set_word(FLUSH);
}

/// The next instruction but for the return itself is a program's. The word goes behind the flush:
/// if the flush is cut short for good, it is made again.
#[inline(always)]
pub fn before_user_mode(cpu: &impl Cpu) {
    if cpu.word() & FLUSH != 0 {
        cpu.flush();
        cpu.set_word(cpu.word() & !FLUSH);
    }
}

/// Exits of guests that no return to user mode had to pay for: every flush answers one exit, and
/// one more may be waiting for its flush.
#[must_use]
pub const fn spared(exits: u64, flushes: u64, word: u32) -> u64 {
    exits.saturating_sub(flushes).saturating_sub((word & FLUSH) as u64)
}
