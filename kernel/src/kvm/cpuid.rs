//! CPUID for VMMs: what can be shown (KVM_GET_SUPPORTED_CPUID), and their tables.

use alloc::vec::Vec;

use abi::kvm::{self, Cpuid2, CpuidEntry2};
use abi::{Errno, Result};
use virt::cpuid::{CpuidLeaf, MAX_ENTRIES, Table, cr4_bits, supported};

use super::read_entries;
use crate::base::user::UserPtr;

/// Leaf at which a hypervisor names itself.
const SIGNATURE: u32 = 0x4000_0000;

/// Components of XSAVE that guests may use.
pub(super) fn xcr0_allowed() -> u64 {
    machine::fpu::components()
}

/// Bits of CR4 that guests may set.
pub(super) fn cr4_allowed() -> u64 {
    let shown = |leaf| shown(leaf, 0, xcr0_allowed()).unwrap_or_default();
    cr4_bits(shown(1), shown(7))
}

/// What a guest may be shown of a leaf. CMPXCHG16B (leaf 1, ECX, bit 13) not under QEMU's
/// emulation, which computes flags with what was computed before the last instruction there (seen
/// with 7.2): an exit right behind it leaves RFLAGS with bits that no CPU sets, and the next entry
/// takes them.
fn shown(leaf: u32, subleaf: u32, xcr0: u64) -> Option<[u32; 4]> {
    const CMPXCHG16B: u32 = 1 << 13;
    let host = machine::cpu::cpuid(leaf, subleaf);
    let mut registers = supported(leaf, subleaf, host, xcr0)?;
    if leaf == 1 && machine::cpu::is_emulated() {
        registers[2] &= !CMPXCHG16B;
    }
    Some(registers)
}

fn entry(leaf: u32, subleaf: Option<u32>, registers: [u32; 4]) -> CpuidEntry2 {
    let [eax, ebx, ecx, edx] = registers;
    let flags = if subleaf.is_some() { kvm::CPUID_FLAG_SIGNIFCANT_INDEX } else { 0 };
    let index = subleaf.unwrap_or(0);
    CpuidEntry2 { function: leaf, index, flags, eax, ebx, ecx, edx, ..CpuidEntry2::default() }
}

fn supported_entries() -> Vec<CpuidEntry2> {
    let host = machine::cpu::cpuid;
    let xcr0 = xcr0_allowed();
    let mut entries = Vec::new();
    let highest = [host(0, 0)[0].min(0xd), host(0x8000_0000, 0)[0].min(0x8000_0008)];
    for leaf in (0..=highest[0]).chain(0x8000_0000..=highest[1]) {
        let subleaves = match leaf {
            7 => 0..=0,
            0xd => 0..=62,
            _ => {
                let shown = shown(leaf, 0, xcr0);
                entries.extend(shown.map(|registers| entry(leaf, None, registers)));
                continue;
            }
        };
        for subleaf in subleaves {
            let shown = shown(leaf, subleaf, xcr0);
            entries.extend(shown.map(|registers| entry(leaf, Some(subleaf), registers)));
        }
    }
    let word = |four: &[u8; 4]| u32::from_le_bytes(*four);
    let name = [SIGNATURE + 1, word(b"KVMK"), word(b"VMKV"), word(b"M\0\0\0")];
    entries.push(entry(SIGNATURE, None, name));
    let features = kvm::FEATURE_CLOCKSOURCE
        | kvm::FEATURE_NOP_IO_DELAY
        | kvm::FEATURE_CLOCKSOURCE2
        | kvm::FEATURE_CLOCKSOURCE_STABLE;
    entries.push(entry(SIGNATURE + 1, None, [features, 0, 0, 0]));
    entries
}

pub(super) fn write_supported(at: u64) -> Result<u64> {
    write_entries(at, &supported_entries())
}

/// Writes a list; E2BIG if the program's has no room.
pub(super) fn write_entries(at: u64, entries: &[CpuidEntry2]) -> Result<u64> {
    let head = UserPtr::<Cpuid2>::new(at);
    let room = head.read()?.nent as usize;
    head.write(&Cpuid2 { nent: entries.len() as u32, padding: 0 })?;
    if room < entries.len() {
        return Err(Errno::E2BIG);
    }
    head.nth(1).cast::<CpuidEntry2>().write_many(entries)?;
    Ok(0)
}

/// Reads a VMM's table.
pub(super) fn read_table(at: u64) -> Result<Table> {
    let count = UserPtr::<Cpuid2>::new(at).read()?.nent;
    let entries: Vec<CpuidEntry2> = read_entries::<Cpuid2, _>(at, count, MAX_ENTRIES)?;
    let convert = |e: &CpuidEntry2| CpuidLeaf {
        leaf: e.function,
        subleaf: e.index,
        has_subleaf: e.flags & kvm::CPUID_FLAG_SIGNIFCANT_INDEX != 0,
        registers: [e.eax, e.ebx, e.ecx, e.edx],
    };
    Ok(Table { entries: entries.iter().map(convert).collect() })
}

/// Writes it back.
pub(super) fn write_table(at: u64, table: &Table) -> Result<u64> {
    let convert = |e: &CpuidLeaf| entry(e.leaf, e.has_subleaf.then_some(e.subleaf), e.registers);
    let entries: Vec<CpuidEntry2> = table.entries.iter().map(convert).collect();
    write_entries(at, &entries)
}
