//! Orders that no emulator violates, and that the image must hold all the same: proved of the bytes
//! that were emitted, wherever the compiler has put them.
//!
//! Each place, what the manual says, and what must be there:
//!
//! - WRMSR to the x2APIC's interrupt command register: not serialising: earlier stores may become
//!   visible behind the interrupt; MFENCE, then LFENCE, keeps them before it (SDM 3A, 11.12.3).
//!   There must be: `mfence`, `lfence`, and nothing behind them that stores to memory
//!   ([`Place::Command`]).
//! - WRMSR to `TSC_DEADLINE`: not ordered with the store that put the APIC's timer into that mode;
//!   MFENCE is (SDM 3A, 11.5.4.1). There must be: `mfence` right before it ([`Place::Deadline`]).
//! - WRMSR to `GS_BASE`: need not wait, nor be waited for, on AMD (APM 2, 7.6.4). There must be:
//!   `lfence` right behind it in a paranoid entry, which uses GS next ([`Place::GsBase`]).
//! - SWAPGS behind a branch that may be mispredicted: what follows may use the old base in
//!   speculation (Intel's guidance on CVE-2019-1125). There must be: `lfence` right behind it, or
//!   where it is a choice of boot a key and then `lfence`; SYSCALL's entries come by no branch
//!   ([`Place::Swapgs`]).
//! - New code in memory, executed by another CPU: that CPU executes a serialising instruction first
//!   (SDM 3A, 9.1.3). There must be: the function that CPUs are asked to run has one: CPUID
//!   ([`Place::Serialize`]).
//! - INVLPG, MOV to CR3, MOV to CR4: serialising (SDM 3A, 9.3): stores to tables before it are seen
//!   by walks behind it. There must be: nothing more.
//! - INVPCID: ordered as INVLPG with earlier stores to tables (SDM 3A, 4.10.4.1); not in the list
//!   of serialising ones. There must be: `context`'s catch-up serialises by itself where text has
//!   changed.
//! - MOV to CR3 as the catch-up of an entry (`defer=cr3`): serialising, which says that earlier
//!   stores are seen before the next instruction, and not that they are before translations are
//!   dropped. There must be: a locked instruction, then the load of what goes to CR3
//!   ([`Place::Cr3`]).
//! - RDTSC behind which a time is taken: not ordered with what is before it; LFENCE is (SDM 2B,
//!   RDTSC). There must be: nothing: a time that is a little early is a time.
//! - WRPKRU: what it denies or allows is waited for by the accesses behind it, also where they run
//!   ahead (SDM 2D, WRPKRU). There must be: nothing more.
//! - CLFLUSH: ordered with stores by MFENCE; with accesses by nothing else. There must be: the
//!   kernel has none ([`Place::Absent`]).
//!
//! Elsewhere the order is seen by stepping (`window::` of the kernel's tests): VERW before the
//! return, LFENCE behind the branch history loop.

use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic, OpKind, Register};

use crate::elf::Image;

/// The x2APIC's interrupt command register (SDM 3A, table 11-6).
const X2APIC_ICR: u64 = 0x830;
/// The deadline of the APIC's timer.
const TSC_DEADLINE: u64 = 0x6e0;
/// The base of GS.
const GS_BASE: u64 = 0xc000_0101;
/// How far behind its fences, or the load of ECX, a WRMSR may stand, in instructions.
const REACH: usize = 12;
/// The function that CPUs execute before they execute new code.
const SERIALIZE: &str = "7machine3cpu9serialize";
/// Where SWAPGS stands on a way that branches lead to; on the others it is the first instruction,
/// or the last before the return.
const BRANCHED: [&str; 2] = ["common_vector", "paranoid_entry"];
/// Entries whose write of CR3 may be the catch-up.
const BY_CR3: [&str; 3] =
    ["common_vector", "syscall_entry_pti_cr3", "syscall_entry_pti_instrumented"];

/// What is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// A write to the x2APIC's interrupt command register.
    Command,
    /// A write to the deadline of the APIC's timer.
    Deadline,
    /// A write to the base of GS in a paranoid entry.
    GsBase,
    /// SWAPGS behind a branch.
    Swapgs,
    /// A write of CR3 by which an entry catches up.
    Cr3,
    /// What serialises a CPU before it executes new code.
    Serialize,
    /// An instruction that the kernel does not have.
    Absent,
}

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ordering {
    /// Places that are as they must be.
    pub good: Vec<(Place, u64)>,
    /// Those that are not.
    pub bad: Vec<(Place, u64)>,
}

impl Ordering {
    /// How many places of a kind are as they must be.
    #[must_use]
    pub fn count(&self, place: Place) -> usize {
        self.good.iter().filter(|(of, _)| *of == place).count()
    }

    fn note(&mut self, place: Place, at: u64, is_good: bool) {
        let list = if is_good { &mut self.good } else { &mut self.bad };
        list.push((place, at));
    }
}

/// Looks at every function of the image.
#[must_use]
pub fn prove(image: &Image<'_>) -> Ordering {
    let mut found = Ordering::default();
    // The preamble of a function has a name and a size of its own.
    let is_code = |name: &str| !name.starts_with("__cfi_");
    let functions = image.symbols.iter().filter(|symbol| symbol.function && symbol.size > 0);
    for symbol in functions.filter(|symbol| is_code(symbol.name)) {
        let Some(piece) = image.piece_at(symbol.address).filter(|piece| piece.executable) else {
            continue;
        };
        let Some(bytes) = piece.from(symbol.address) else { continue };
        let size = usize::try_from(symbol.size).unwrap_or(usize::MAX);
        look(symbol.name, symbol.address, &bytes[..size.min(bytes.len())], &mut found);
    }
    found
}

fn look(name: &str, address: u64, code: &[u8], found: &mut Ordering) {
    let all: Vec<Instruction> =
        Decoder::with_ip(64, code, address, DecoderOptions::NONE).iter().collect();
    if name.contains(SERIALIZE) {
        let serialises = |one: &Instruction| one.mnemonic() == Mnemonic::Cpuid;
        found.note(Place::Serialize, address, all.iter().any(serialises));
    }
    for (n, one) in all.iter().enumerate() {
        let (before, behind) = (&all[..n], &all[n + 1..]);
        let at = one.ip();
        match one.mnemonic() {
            Mnemonic::Wrmsr => match register(before) {
                Some(X2APIC_ICR) => found.note(Place::Command, at, is_fenced(before)),
                Some(TSC_DEADLINE) => {
                    found.note(Place::Deadline, at, follows(before, Mnemonic::Mfence));
                }
                // The way back uses GS no more.
                Some(GS_BASE) if BRANCHED.contains(&name) && !restores(behind) => {
                    found.note(Place::GsBase, at, is_next(behind, Mnemonic::Lfence));
                }
                _ => {}
            },
            Mnemonic::Swapgs if BRANCHED.contains(&name) => {
                // A key is five bytes of nop in the image.
                let key = usize::from(is_next(behind, Mnemonic::Nop));
                found.note(Place::Swapgs, at, is_next(&behind[key..], Mnemonic::Lfence));
            }
            Mnemonic::Mov if one.op0_register() == Register::CR3 && BY_CR3.contains(&name) => {
                found.note(Place::Cr3, at, is_said(before));
            }
            Mnemonic::Clflush | Mnemonic::Clflushopt | Mnemonic::Clwb => {
                found.note(Place::Absent, at, false);
            }
            _ => {}
        }
    }
}

/// A locked instruction, then one that loads a register.
fn is_said(before: &[Instruction]) -> bool {
    let mut rest = before.iter().rev();
    let loads =
        |one: &Instruction| one.mnemonic() == Mnemonic::Mov && one.op0_kind() == OpKind::Register;
    rest.next().is_some_and(loads) && rest.next().is_some_and(Instruction::has_lock_prefix)
}

fn is_next(behind: &[Instruction], mnemonic: Mnemonic) -> bool {
    behind.first().is_some_and(|one| one.mnemonic() == mnemonic)
}

/// Whether the registers are restored next.
fn restores(behind: &[Instruction]) -> bool {
    is_next(behind, Mnemonic::Pop)
}

/// Whether `mnemonic` stands before, with nothing but loads of registers in between.
fn follows(before: &[Instruction], mnemonic: Mnemonic) -> bool {
    let is_load =
        |one: &&Instruction| one.mnemonic() == Mnemonic::Mov && one.op0_kind() == OpKind::Register;
    before.iter().rev().find(|one| !is_load(one)).is_some_and(|one| one.mnemonic() == mnemonic)
}

/// The number in ECX: that of the last instruction that sets it, if it loads one.
fn register(before: &[Instruction]) -> Option<u64> {
    let sets_ecx = |one: &&Instruction| {
        one.op_count() > 0
            && one.op0_kind() == OpKind::Register
            && one.op0_register().full_register() == Register::RCX
            && !matches!(one.mnemonic(), Mnemonic::Cmp | Mnemonic::Test)
    };
    let last = before.iter().rev().take(REACH).find(sets_ecx)?;
    let is_number = last.mnemonic() == Mnemonic::Mov && last.op1_kind() != OpKind::Register;
    (is_number && last.op1_kind() != OpKind::Memory).then(|| last.immediate(1))
}

/// MFENCE, then LFENCE, and no store behind.
fn is_fenced(before: &[Instruction]) -> bool {
    let mut rest = before.iter().rev().take(REACH);
    let stores = |one: &Instruction| one.op_count() > 0 && one.op0_kind() == OpKind::Memory;
    let fence = rest.find(|one| one.mnemonic() == Mnemonic::Lfence || stores(one));
    fence.is_some_and(|one| one.mnemonic() == Mnemonic::Lfence)
        && rest.next().is_some_and(|one| one.mnemonic() == Mnemonic::Mfence)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MFENCE: &[u8] = &[0x0f, 0xae, 0xf0];
    const LFENCE: &[u8] = &[0x0f, 0xae, 0xe8];
    const COMMAND: &[u8] = &[0xb9, 0x30, 0x08, 0, 0]; // mov $0x830, %ecx
    const DEADLINE: &[u8] = &[0xb9, 0xe0, 0x06, 0, 0]; // mov $0x6e0, %ecx
    const GS: &[u8] = &[0xb9, 0x01, 0x01, 0, 0xc0]; // mov $0xc0000101, %ecx
    const WRMSR: &[u8] = &[0x0f, 0x30];
    const STORE: &[u8] = &[0x89, 0x07]; // mov %eax, (%rdi)
    const ADD: &[u8] = &[0x01, 0xd8]; // add %ebx, %eax
    const SWAPGS: &[u8] = &[0x0f, 0x01, 0xf8];
    const KEY: &[u8] = &[0x0f, 0x1f, 0x44, 0, 0];
    const POP: &[u8] = &[0x58];
    const CPUID: &[u8] = &[0x0f, 0xa2];

    /// Good and bad places of these bytes in a function of this name.
    fn of(name: &str, parts: &[&[u8]]) -> (usize, usize) {
        let mut found = Ordering::default();
        look(name, 0x1000, &parts.concat(), &mut found);
        (found.good.len(), found.bad.len())
    }

    const GOOD: (usize, usize) = (1, 0);
    const BAD: (usize, usize) = (0, 1);
    const NONE: (usize, usize) = (0, 0);

    #[test]
    fn both_fences_and_no_store_behind_them() {
        assert_eq!(of("f", &[MFENCE, LFENCE, COMMAND, WRMSR]), GOOD);
        assert_eq!(of("f", &[COMMAND, MFENCE, LFENCE, WRMSR]), GOOD);
        assert_eq!(of("f", &[MFENCE, COMMAND, WRMSR]), BAD);
        assert_eq!(of("f", &[LFENCE, COMMAND, WRMSR]), BAD);
        assert_eq!(of("f", &[LFENCE, MFENCE, COMMAND, WRMSR]), BAD);
        assert_eq!(of("f", &[MFENCE, LFENCE, STORE, COMMAND, WRMSR]), BAD);
    }

    #[test]
    fn a_deadline_right_behind_its_fence() {
        assert_eq!(of("f", &[MFENCE, DEADLINE, WRMSR]), GOOD);
        assert_eq!(of("f", &[MFENCE, ADD, DEADLINE, WRMSR]), BAD);
        assert_eq!(of("f", &[DEADLINE, WRMSR]), BAD);
    }

    #[test]
    fn other_registers_need_none() {
        // mov $0x48, %ecx
        assert_eq!(of("f", &[&[0xb9, 0x48, 0, 0, 0], WRMSR]), NONE);
        assert_eq!(of("f", &[COMMAND, &[0x31, 0xc9], WRMSR]), NONE); // xor %ecx, %ecx
    }

    #[test]
    fn gs_is_waited_for_where_a_branch_led_there() {
        assert_eq!(of("paranoid_entry", &[GS, WRMSR, LFENCE]), GOOD);
        assert_eq!(of("paranoid_entry", &[GS, WRMSR, STORE]), BAD);
        assert_eq!(of("paranoid_entry", &[GS, WRMSR, POP]), NONE);
        assert_eq!(of("common_vector", &[SWAPGS, LFENCE]), GOOD);
        assert_eq!(of("common_vector", &[SWAPGS, KEY, LFENCE]), GOOD);
        assert_eq!(of("common_vector", &[SWAPGS, KEY, STORE]), BAD);
        assert_eq!(of("syscall_entry", &[SWAPGS, STORE]), NONE);
    }

    #[test]
    fn the_word_is_said_before_cr3_is_written() {
        const LOCKED: &[u8] = &[0xf0, 0x0f, 0xba, 0x2b, 0]; // lock btsl $0, (%rbx)
        const PLAIN: &[u8] = &[0x0f, 0xba, 0x2b, 0]; // btsl $0, (%rbx)
        const LOAD: &[u8] = &[0x48, 0x8b, 0x07]; // mov (%rdi), %rax
        const CR3: &[u8] = &[0x0f, 0x22, 0xd8]; // mov %rax, %cr3
        assert_eq!(of("syscall_entry_pti_cr3", &[LOCKED, LOAD, CR3]), GOOD);
        assert_eq!(of("common_vector", &[LOCKED, LOAD, CR3]), GOOD);
        assert_eq!(of("common_vector", &[PLAIN, LOAD, CR3]), BAD);
        assert_eq!(of("common_vector", &[LOAD, CR3, LOCKED]), BAD);
        assert_eq!(of("common_vector", &[LOAD, LOCKED, CR3]), BAD);
        // Not an entry by that way.
        assert_eq!(of("syscall_entry_pti", &[LOAD, CR3]), NONE);
    }

    #[test]
    fn new_code_needs_a_serialising_instruction() {
        let name = format!("_RNvNtCsx_{SERIALIZE}");
        assert_eq!(of(&name, &[CPUID]), GOOD);
        assert_eq!(of(&name, &[LFENCE]), BAD);
    }

    #[test]
    fn what_the_kernel_does_not_have() {
        assert_eq!(of("f", &[&[0x0f, 0xae, 0x38]]), BAD); // clflush (%rax)
        assert_eq!(of("f", &[&[0x0f, 0x01, 0xef]]), NONE); // wrpkru: it has, and may
    }
}
