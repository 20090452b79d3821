//! Single steps: the trap flag that a tracer puts into its tracee's flags, and how it is told from
//! the program's own (SDM 3B, 17.3.1.4).
//!
//! The flag is set when the tracee goes on and taken away when it stops, so neither the tracer nor
//! a handler's frame ever sees it. POPF and IRET load the flag from memory: what is there
//! afterwards is the program's, so before these two it is not counted as the tracer's.

use core::sync::atomic::Ordering;

use entry::{PtRegs, flags};

use super::{TraceeState, syscall_work};
use crate::base::user::UserPtr;
use crate::process::current;

/// Causes in DR6 (SDM 3B, 17.2.3).
const SINGLE_STEP: u64 = 1 << 14;
const BREAKPOINTS: u64 = 0xf;
/// Longest instruction (SDM 2A, 2.3.11), and so most prefixes to skip.
const INSTRUCTION_MAX: u64 = 15;

/// Makes the running thread go on as its tracer asked.
pub(super) fn resume(regs: &mut PtRegs, bits: u32) {
    let thread = current();
    set_tracing_work(bits);
    if bits & syscall_work::STEP == 0 {
        return;
    }
    let forced = regs.rflags & flags::TF == 0 && !sets_flags(regs.rip);
    regs.rflags |= flags::TF;
    thread.trace.state().forced_trap_flag = forced;
}

/// Takes the tracer's trap flag away, at a stop.
pub(super) fn disarm(regs: &mut PtRegs, state: &mut TraceeState) {
    if core::mem::take(&mut state.forced_trap_flag) {
        regs.rflags &= !flags::TF;
    }
    set_tracing_work(0);
}

/// Sets the bits of tracing in the running thread's `syscall_work`.
pub(super) fn set_tracing_work(bits: u32) {
    let word = &current().syscall_work;
    word.fetch_and(!syscall_work::TRACING, Ordering::Relaxed);
    word.fetch_or(bits, Ordering::Relaxed);
}

/// A handler's frame is about to be set up: it must not save the tracer's trap flag. Whether the
/// tracer is stepping.
pub fn pause(regs: &mut PtRegs) -> bool {
    let thread = current();
    if !thread.trace.is_traced() {
        return false;
    }
    let stepping = thread.syscall_work.load(Ordering::Relaxed) & syscall_work::STEP != 0;
    if stepping {
        disarm(regs, &mut thread.trace.state());
    }
    stepping
}

/// A fork's child does not step; its parent's flags in `regs` may.
pub fn clear_in_child(regs: &mut PtRegs) {
    let trace = &current().trace;
    if trace.is_traced() && trace.state().forced_trap_flag {
        regs.rflags &= !flags::TF;
    }
}

/// A debug exception: its causes (DR6) are for the tracer. An instruction with a breakpoint is
/// tried again when the thread goes on, so that it must not trap again (RF; SDM 3B, 17.3.1.1).
pub fn note_debug_exception(regs: &mut PtRegs, cause: u64) {
    let thread = current();
    let mut state = thread.trace.state();
    state.debug_status = cause & (SINGLE_STEP | BREAKPOINTS);
    if (0..4).any(|i| cause & 1 << i != 0 && state.debug.is_on_instruction(i)) {
        regs.rflags |= flags::RF;
    }
}

/// Whether the instruction at `rip` loads the flags from memory.
fn sets_flags(rip: u64) -> bool {
    for at in 0..INSTRUCTION_MAX {
        // Memory that cannot be read will trap by itself.
        let Ok(byte) = UserPtr::<u8>::new(rip.wrapping_add(at)).read() else { return false };
        match byte {
            // Prefixes: segments, operand and address size, LOCK, REPs, REX.
            0x26 | 0x2e | 0x36 | 0x3e | 0x64..=0x67 | 0xf0 | 0xf2 | 0xf3 | 0x40..=0x4f => {}
            // POPF, IRET.
            0x9d | 0xcf => return true,
            _ => return false,
        }
    }
    false
}
