//! Orders that no emulator violates, and that the image must hold all the same: proved of the bytes
//! that were emitted, wherever the compiler has put them.
//!
//! | Place | What the manual says | What must be there |
//! |---|---|---|
//! | WRMSR to the x2APIC's interrupt command register | not serialising: earlier stores may become visible behind the interrupt; MFENCE, then LFENCE, keeps them before it (SDM 3A, 11.12.3) | `mfence`, `lfence`, and nothing behind them that stores to memory |
//! | RDTSC behind which a time is taken | not ordered with what is before it; LFENCE is (SDM 2B, RDTSC) | nothing: a time that is a little early is a time |
//!
//! Elsewhere the order is seen by stepping (`window::` of the kernel's tests): fences behind
//! SWAPGS, VERW before the return, LFENCE behind the branch history loop.

use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic, OpKind, Register};

use crate::elf::Image;

/// The x2APIC's interrupt command register (SDM 3A, table 11-6).
const X2APIC_ICR: u64 = 0x830;
/// How far behind its fences, or the load of ECX, a WRMSR may stand, in instructions.
const REACH: usize = 12;

/// Writes to the interrupt command register.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ordering {
    /// Those that have their fences.
    pub fenced: usize,
    /// Addresses of the others.
    pub bare: Vec<u64>,
}

/// Looks at every WRMSR of the image's functions.
#[must_use]
pub fn interrupt_commands(image: &Image<'_>) -> Ordering {
    let mut found = Ordering::default();
    for symbol in image.symbols.iter().filter(|symbol| symbol.function && symbol.size > 0) {
        let Some(bytes) = image.piece_at(symbol.address).and_then(|p| p.from(symbol.address))
        else {
            continue;
        };
        let size = usize::try_from(symbol.size).unwrap_or(usize::MAX);
        look(symbol.address, &bytes[..size.min(bytes.len())], &mut found);
    }
    found
}

fn look(address: u64, code: &[u8], found: &mut Ordering) {
    let decoder = Decoder::with_ip(64, code, address, DecoderOptions::NONE);
    let mut before: Vec<Instruction> = Vec::new();
    for instruction in decoder {
        if instruction.mnemonic() == Mnemonic::Wrmsr && writes_command(&before) {
            match is_fenced(&before) {
                true => found.fenced += 1,
                false => found.bare.push(instruction.ip()),
            }
        }
        before.push(instruction);
    }
}

/// Whether ECX names the register: the last instruction that sets it loads that number.
fn writes_command(before: &[Instruction]) -> bool {
    let sets_ecx = |one: &&Instruction| {
        one.op_count() > 0
            && one.op0_kind() == OpKind::Register
            && one.op0_register().full_register() == Register::RCX
            && !matches!(one.mnemonic(), Mnemonic::Cmp | Mnemonic::Test)
    };
    let last = before.iter().rev().take(REACH).find(sets_ecx);
    last.is_some_and(|one| one.mnemonic() == Mnemonic::Mov && one.immediate(1) == X2APIC_ICR)
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

    const MFENCE: [u8; 3] = [0x0f, 0xae, 0xf0];
    const LFENCE: [u8; 3] = [0x0f, 0xae, 0xe8];
    const LOAD: [u8; 5] = [0xb9, 0x30, 0x08, 0, 0]; // mov $0x830, %ecx
    const WRMSR: [u8; 2] = [0x0f, 0x30];
    const STORE: [u8; 2] = [0x89, 0x07]; // mov %eax, (%rdi)

    fn of(parts: &[&[u8]]) -> Ordering {
        let mut found = Ordering::default();
        look(0x1000, &parts.concat(), &mut found);
        found
    }

    #[test]
    fn both_fences_and_no_store_behind_them() {
        assert_eq!(of(&[&MFENCE, &LFENCE, &LOAD, &WRMSR]).fenced, 1);
        assert_eq!(of(&[&LOAD, &MFENCE, &LFENCE, &WRMSR]).fenced, 1);
        assert_eq!(of(&[&MFENCE, &LOAD, &WRMSR]).bare.len(), 1);
        assert_eq!(of(&[&LFENCE, &LOAD, &WRMSR]).bare.len(), 1);
        assert_eq!(of(&[&LFENCE, &MFENCE, &LOAD, &WRMSR]).bare.len(), 1);
        assert_eq!(of(&[&MFENCE, &LFENCE, &STORE, &LOAD, &WRMSR]).bare.len(), 1);
    }

    #[test]
    fn other_registers_need_none() {
        // mov $0x48, %ecx
        assert_eq!(of(&[&[0xb9, 0x48, 0, 0, 0], &WRMSR]), Ordering::default());
        assert_eq!(of(&[&LOAD, &[0x31, 0xc9], &WRMSR]), Ordering::default()); // xor %ecx, %ecx
    }
}
