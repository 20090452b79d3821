//! Hardware breakpoints and watchpoints of programs: DR0 to DR3 and DR7 (SDM 3B, 17.2).
//!
//! They belong to a thread, so the switch between threads loads them; a thread without any costs it
//! one comparison. They are armed while the kernel runs too: a watchpoint that the kernel hits on
//! the program's behalf is not reported. What a program may put here is checked when it is set: an
//! address of the kernel, an I/O breakpoint or the general-detect bit would trap the kernel itself.

use core::arch::asm;

use crate::cpu::percpu;
use crate::memory::USER_END;

/// Four addresses, and what to watch there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DebugRegisters {
    addresses: [u64; 4],
    control: u64,
}

/// Bits of DR7 that enable a breakpoint: local and global, two for each.
const ENABLES: u64 = 0xff;
/// LE, GE: without effect on present CPUs, and kept.
const EXACT: u64 = 3 << 8;
/// The bit of DR7 that always reads 1.
const FIXED: u64 = 1 << 10;
/// Kind and length of all four.
const KINDS: u64 = 0xffff << 16;
const KIND_EXECUTE: u64 = 0;
const KIND_IO: u64 = 2;

impl DebugRegisters {
    /// Address `index` (0 to 3).
    #[must_use]
    pub fn address(&self, index: usize) -> u64 {
        self.addresses[index]
    }

    /// DR7 as it was set.
    #[must_use]
    pub fn control(&self) -> u64 {
        self.control
    }

    /// Sets an address; false, and nothing changes, if it is not in user space.
    pub fn set_address(&mut self, index: usize, address: u64) -> bool {
        let is_user = address < USER_END;
        if is_user {
            self.addresses[index] = address;
        }
        is_user
    }

    /// Sets DR7; false, and nothing changes, if it enables what no program may have: I/O
    /// breakpoints, or instruction breakpoints longer than a byte.
    pub fn set_control(&mut self, control: u64) -> bool {
        let is_enabled = |i: u64| control >> (i * 2) & 3 != 0;
        let is_allowed = |i: u64| {
            let kind = control >> (16 + i * 4) & 3;
            let len = control >> (18 + i * 4) & 3;
            kind != KIND_IO && (kind != KIND_EXECUTE || len == 0)
        };
        let allowed = (0..4).all(|i| !is_enabled(i) || is_allowed(i));
        if allowed {
            self.control = control & (ENABLES | EXACT | KINDS);
        }
        allowed
    }

    /// Whether breakpoint `index` (0 to 3) is one on an instruction.
    #[must_use]
    pub fn is_on_instruction(&self, index: usize) -> bool {
        self.control >> (16 + index * 4) & 3 == KIND_EXECUTE
    }

    /// Makes the CPU's registers these, when the thread that has them comes.
    pub(crate) fn load(&self) {
        let local = percpu::local();
        let wanted = if self.control & ENABLES == 0 { 0 } else { self.control };
        if wanted == 0 && local.debug_control.get() == 0 {
            return;
        }
        local.debug_control.set(wanted);
        // SAFETY: disabled first, so that no half of the new set is ever armed. The addresses are
        // in user space and DR7 has passed `set_control`.
        unsafe {
            asm!("mov dr7, {}", in(reg) FIXED, options(nomem, nostack, preserves_flags));
        }
        if wanted == 0 {
            return;
        }
        let [a0, a1, a2, a3] = self.addresses;
        // SAFETY: as above; a program's breakpoints lie in user space (checked).
        unsafe {
            asm!("mov dr0, {}", "mov dr1, {}", "mov dr2, {}", "mov dr3, {}", "mov dr7, {}",
                 in(reg) a0, in(reg) a1, in(reg) a2, in(reg) a3, in(reg) wanted | FIXED,
                 options(nomem, nostack, preserves_flags));
        }
    }
}

/// Loads a guest's four addresses, which its own DR7 arms when VMRUN loads that. Interrupts are
/// masked.
pub(crate) fn load_guest([a0, a1, a2, a3]: [u64; 4]) {
    // SAFETY: while the host runs DR7 arms none of them: it is disarmed first, and an exit leaves
    // it disarmed (AMD APM 2, 15.6).
    unsafe {
        asm!("mov dr7, {}", "mov dr0, {}", "mov dr1, {}", "mov dr2, {}", "mov dr3, {}",
             in(reg) FIXED, in(reg) a0, in(reg) a1, in(reg) a2, in(reg) a3,
             options(nomem, nostack, preserves_flags));
    }
}

/// After a guest, which left DR7 disarmed and `dr6` as it is: what the running thread has is armed
/// again. Interrupts are masked.
pub(crate) fn after_guest(dr6: u64) {
    const CAUSES: u64 = 0xe00f;
    if dr6 & CAUSES != 0 {
        crate::cpu::take_dr6();
    }
    if percpu::local().debug_control.get() != 0 {
        crate::task::reload_debug_registers();
    }
}
