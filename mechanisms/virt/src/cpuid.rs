//! CPUID as the guest sees it: a table that the VMM has made, out of what this hypervisor says it
//! can show.

use alloc::vec::Vec;

use crate::regs::cr;

/// One leaf.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuidLeaf {
    /// EAX of the question.
    pub leaf: u32,
    /// ECX of the question, where it counts.
    pub subleaf: u32,
    /// Whether it counts.
    pub has_subleaf: bool,
    /// EAX, EBX, ECX, EDX.
    pub registers: [u32; 4],
}

/// Most entries a VMM may give (KVM_MAX_CPUID_ENTRIES).
pub const MAX_ENTRIES: usize = 256;

/// What a VMM has given.
#[derive(Clone, Debug, Default)]
pub struct Table {
    /// In any order.
    pub entries: Vec<CpuidLeaf>,
}

impl Table {
    /// The leaf, as it stands in the table.
    #[must_use]
    pub fn find(&self, leaf: u32, subleaf: u32) -> Option<[u32; 4]> {
        let is_meant = |e: &&CpuidLeaf| e.leaf == leaf && (!e.has_subleaf || e.subleaf == subleaf);
        self.entries.iter().find(is_meant).map(|e| e.registers)
    }

    /// What the instruction gives: with the bits that follow registers. Leaves beyond the highest
    /// are zero, as on AMD's CPUs.
    #[must_use]
    pub fn execute(&self, leaf: u32, subleaf: u32, cr4: u64, xcr0: u64) -> [u32; 4] {
        let mut found = self.find(leaf, subleaf).unwrap_or([0; 4]);
        match (leaf, subleaf) {
            (1, _) => {
                const OSXSAVE: u32 = 1 << 27;
                let on = cr4 & cr::CR4_OSXSAVE != 0;
                found[2] = found[2] & !OSXSAVE | if on { OSXSAVE } else { 0 };
            }
            (7, 0) => {
                // OSPKE follows CR4.PKE.
                let on = cr4 & 1 << 22 != 0;
                found[2] = found[2] & !(1 << 4) | u32::from(on) << 4;
            }
            // The size of what XCR0 enables now.
            (0xd, 0) => found[1] = self.xsave_bytes(xcr0),
            _ => {}
        }
        found
    }

    /// Bytes of the XSAVE area for the components `xcr0` (AMD APM 2, 11.5.4).
    fn xsave_bytes(&self, xcr0: u64) -> u32 {
        let mut end = 576;
        for component in (2..63u32).filter(|component| xcr0 & 1 << component != 0) {
            if let Some([size, offset, ..]) = self.find(0xd, component) {
                end = end.max(offset.saturating_add(size));
            }
        }
        end
    }
}

/// Features of leaf 1 that a guest may have (ECX, EDX).
const LEAF_1: [u32; 2] = [
    // SSE3, PCLMULQDQ, SSSE3, FMA, CX16, PCID, SSE4.1, SSE4.2, x2APIC, MOVBE, POPCNT, TSC deadline,
    // AES, XSAVE, AVX, F16C, RDRAND.
    1 | 1 << 1
        | 1 << 9
        | 1 << 12
        | 1 << 13
        | 1 << 17
        | 1 << 19
        | 1 << 20
        | 1 << 21
        | 1 << 22
        | 1 << 23
        | 1 << 24
        | 1 << 25
        | 1 << 26
        | 1 << 28
        | 1 << 29
        | 1 << 30,
    // FPU to CMOV without the serial number, PAT, PSE36, CLFLUSH, MMX, FXSR, SSE, SSE2, HT.
    0x0003_fbff & !(1 << 18 | 1 << 10) | 1 << 19 | 1 << 23 | 1 << 24 | 1 << 25 | 1 << 26 | 1 << 28,
];
/// Features of leaf 7.0 (EBX, ECX).
const LEAF_7: [u32; 2] = [
    // FSGSBASE, BMI1, AVX2, SMEP, BMI2, ERMS, INVPCID, AVX-512, RDSEED, ADX, SMAP, CLFLUSHOPT,
    // CLWB, SHA.
    1 | 1 << 3
        | 1 << 5
        | 1 << 7
        | 1 << 8
        | 1 << 9
        | 1 << 10
        | 1 << 16
        | 1 << 17
        | 1 << 18
        | 1 << 19
        | 1 << 20
        | 1 << 23
        | 1 << 24
        | 1 << 28
        | 1 << 29
        | 1 << 30
        | 1 << 31,
    // UMIP, PKU, VAES, VPCLMULQDQ and the like.
    1 << 1 | 1 << 2 | 1 << 3 | 1 << 6 | 1 << 8 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 12 | 1 << 14,
];
/// Features of leaf 0x8000_0001 (ECX, EDX): LAHF, CR8, ABM, SSE4A, misaligned SSE, prefetch;
/// SYSCALL, NX, MMX extensions, FXSR, 1-GiB pages, long mode and what repeats leaf 1.
const LEAF_80000001: [u32; 2] = [
    1 | 1 << 4 | 1 << 5 | 1 << 6 | 1 << 7 | 1 << 8,
    0x0183_fbff & !(1 << 10 | 1 << 18 | 1 << 19)
        | 1 << 11
        | 1 << 20
        | 1 << 22
        | 1 << 23
        | 1 << 24
        | 1 << 25
        | 1 << 26
        | 1 << 29,
];

/// Bits of CR4 that stand for what leaf 1 and leaf 7 show (SDM 2.5). Shadow stacks are never
/// shown.
#[must_use]
pub fn cr4_bits(leaf_1: [u32; 4], leaf_7: [u32; 4]) -> u64 {
    /// VME, PVI, TSD, DE, PSE, PAE, MCE, PGE, PCE, OSFXSR, OSXMMEXCPT: in every 64-bit CPU.
    const ALWAYS: u64 = 0x7ff;
    let [_, _, c1, _] = leaf_1;
    let [_, b7, c7, _] = leaf_7;
    // Register, bit there, bit of CR4.
    let bits = [
        (c1, 17, 17),
        (c1, 26, 18),
        (b7, 0, 16),
        (b7, 7, 20),
        (b7, 20, 21),
        (c7, 2, 11),
        (c7, 3, 22),
        (c7, 16, 12),
    ];
    bits.iter()
        .fold(ALWAYS, |all, &(register, from, to)| all | u64::from(register >> from & 1) << to)
}

/// What may be shown of the host's leaf `leaf`: the host's answer without what guests cannot have.
/// None: nothing of it. `xcr0`: components guests may use; `has_deadline`: the kernel has the
/// interrupt controller, and with it the TSC-deadline timer and x2APIC.
#[must_use]
pub fn supported(leaf: u32, subleaf: u32, host: [u32; 4], xcr0: u64) -> Option<[u32; 4]> {
    let [a, b, c, d] = host;
    match leaf {
        0 => Some([a.min(0xd), b, c, d]),
        // No local APIC id, no OSXSAVE: they follow the guest.
        1 => Some([
            a,
            b & 0x0000_ff00,
            // x2APIC and the deadline timer are emulated, whatever the host has.
            c & LEAF_1[0] | 1 << 21 | 1 << 24 | 1 << 31,
            d & LEAF_1[1] | 1 << 9,
        ]),
        2 | 4 | 6 => Some([if leaf == 6 { 0 } else { a }, 0, 0, 0]).filter(|_| leaf == 6),
        7 if subleaf == 0 => {
            let mut ebx = b & LEAF_7[0];
            let mut ecx = c & LEAF_7[1];
            if xcr0 & 0xe0 == 0 {
                ebx &= !(1 << 16 | 1 << 17 | 1 << 28 | 1 << 30 | 1 << 31);
                ecx &= !(1 << 1 | 1 << 6 | 1 << 11 | 1 << 12 | 1 << 14);
            }
            if xcr0 & 4 == 0 {
                ebx &= !(1 << 5);
            }
            if xcr0 & 1 << 9 == 0 {
                ecx &= !(1 << 3);
            }
            Some([0, ebx, ecx, 0])
        }
        0xd => supported_xsave(subleaf, host, xcr0),
        0x8000_0000 => Some([a.min(0x8000_0008), b, c, d]),
        0x8000_0001 => Some([a, 0, c & LEAF_80000001[0], d & LEAF_80000001[1]]),
        0x8000_0002..=0x8000_0006 => Some(host),
        // Invariant TSC is the VMM's promise to make.
        0x8000_0007 => Some([0, 0, 0, 0]),
        0x8000_0008 => Some([a & 0xffff, 0, 0, 0]),
        _ => None,
    }
}

/// Leaf 0xd: only the standard form, only these components.
fn supported_xsave(subleaf: u32, host: [u32; 4], xcr0: u64) -> Option<[u32; 4]> {
    let [a, b, c, _] = host;
    match subleaf {
        0 => Some([xcr0 as u32, b, c, (xcr0 >> 32) as u32]),
        // XSAVEOPT.
        1 => Some([a & 1, 0, 0, 0]),
        2..=62 if xcr0 & 1 << subleaf != 0 => Some([a, b, 0, 0]),
        _ => None,
    }
}
