//! What CPUID says of this CPU, read once, on the first one (SDM 2A, CPUID; APM 3, appendix D).

use super::cpuid;
use super::sealed::sealed;

/// What this CPU has. Filled on the first CPU; the others must have the same (checked by `smp`).
#[derive(Clone, Copy, Debug, Default)]
#[expect(missing_docs, reason = "each field is the CPUID name of a feature")]
pub struct Features {
    pub pge: bool,
    pub smep: bool,
    pub smap: bool,
    /// Indirect branch tracking.
    pub ibt: bool,
    /// Shadow stacks, and that a supervisor's tokens stay as they are.
    pub shstk: bool,
    pub sss: bool,
    pub umip: bool,
    /// Protection keys, in CR4 and PKRU.
    pub pku: bool,
    pub fsgsbase: bool,
    pub xsave: bool,
    pub xsaveopt: bool,
    pub x2apic: bool,
    pub tsc_deadline: bool,
    pub invariant_tsc: bool,
    pub pcid: bool,
    pub invpcid: bool,
    pub gib_pages: bool,
    pub rdrand: bool,
    pub rdseed: bool,
    pub hypervisor: bool,
    pub rdtscp: bool,
    pub rdpid: bool,
    pub erms: bool,
    pub monitor: bool,
    pub arch_capabilities: bool,
    pub mce: bool,
    /// SYSRET leaves the attributes of SS as they are (`entry::sysret_keeps_ss`).
    pub sysret_keeps_ss: bool,
    pub physical_bits: u8,
    /// XCR0 to use: the supported components up to AVX-512 and PKRU.
    pub xcr0: u64,
    /// Size of the XSAVE area for `xcr0`, bytes (standard form).
    pub xsave_bytes: u32,
    /// Where PKRU is in such an area, bytes.
    pub pkru_offset: u32,
}

sealed! {
    static FEATURES: spin::Once<Features> = spin::Once::new();
}

/// This machine's CPU features.
#[inline(always)]
pub fn features() -> &'static Features {
    FEATURES.get().unwrap_or(&NO_FEATURES)
}

static NO_FEATURES: Features = Features {
    pge: false,
    smep: false,
    smap: false,
    ibt: false,
    shstk: false,
    sss: false,
    umip: false,
    pku: false,
    fsgsbase: false,
    xsave: false,
    xsaveopt: false,
    x2apic: false,
    tsc_deadline: false,
    invariant_tsc: false,
    pcid: false,
    invpcid: false,
    gib_pages: false,
    rdrand: false,
    rdseed: false,
    hypervisor: false,
    rdtscp: false,
    rdpid: false,
    erms: false,
    monitor: false,
    arch_capabilities: false,
    mce: false,
    sysret_keeps_ss: false,
    physical_bits: 36,
    xcr0: 0,
    xsave_bytes: 0,
    pkru_offset: 0,
};

/// XSAVE components Limen manages: x87, SSE, AVX, the three of AVX-512, PKRU (SDM 1, 13.1).
const XCR0_WANTED: u64 = 0b10_1110_0111;
pub(crate) const XCR0_PKRU: u64 = 1 << 9;

/// The CPU vendor's name (SDM 2A, CPUID leaf 0).
fn vendor() -> [u8; 12] {
    let [_, b, c, d] = cpuid(0, 0);
    let mut vendor = [0; 12];
    for (i, word) in [b, d, c].into_iter().enumerate() {
        vendor[i * 4..][..4].copy_from_slice(&word.to_le_bytes());
    }
    vendor
}

/// The same, found out by the first CPU that asks.
pub(super) fn detected() -> &'static Features {
    FEATURES.call_once(detect)
}

fn detect() -> Features {
    let max = cpuid(0, 0)[0];
    let max_extended = cpuid(0x8000_0000, 0)[0];
    let [_, _, c1, d1] = cpuid(1, 0);
    let [a7, b7, c7, d7] = if max >= 7 { cpuid(7, 0) } else { [0; 4] };
    let d81 = if max_extended >= 0x8000_0001 { cpuid(0x8000_0001, 0)[3] } else { 0 };
    let d87 = if max_extended >= 0x8000_0007 { cpuid(0x8000_0007, 0)[3] } else { 0 };
    let a88 = if max_extended >= 0x8000_0008 { cpuid(0x8000_0008, 0)[0] } else { 36 };
    let xsave = c1 & 1 << 26 != 0 && max >= 0xd;
    let [xa, _, _, xd] = if xsave { cpuid(0xd, 0) } else { [0; 4] };
    let xcr0 = (u64::from(xd) << 32 | u64::from(xa)) & XCR0_WANTED;
    let xcr0 = if xcr0 & 0xe0 == 0xe0 && xcr0 & 4 != 0 { xcr0 } else { xcr0 & !0xe0 };
    // Bochs 2.7 names PKRU as a component, and does not say where it is: XSAVE would write behind
    // the area.
    let [pkru_bytes, pkru_offset, _, _] = cpuid(0xd, XCR0_PKRU.trailing_zeros());
    let has_pkru = xsave && pkru_bytes >= 4 && pkru_offset >= 576;
    let xcr0 = if has_pkru { xcr0 } else { xcr0 & !XCR0_PKRU };
    Features {
        pge: d1 & 1 << 13 != 0,
        smep: b7 & 1 << 7 != 0,
        smap: b7 & 1 << 20 != 0,
        umip: c7 & 1 << 2 != 0,
        // Without XSAVE a switch of programs would not change the register.
        pku: c7 & 1 << 3 != 0 && xcr0 & XCR0_PKRU != 0,
        ibt: d7 & 1 << 20 != 0,
        shstk: c7 & 1 << 7 != 0,
        sss: a7 >= 1 && cpuid(7, 1)[3] & 1 << 18 != 0,
        fsgsbase: b7 & 1 != 0,
        xsave,
        xsaveopt: xsave && cpuid(0xd, 1)[0] & 1 != 0,
        x2apic: c1 & 1 << 21 != 0,
        tsc_deadline: c1 & 1 << 24 != 0,
        invariant_tsc: d87 & 1 << 8 != 0,
        pcid: c1 & 1 << 17 != 0,
        invpcid: b7 & 1 << 10 != 0,
        gib_pages: d81 & 1 << 26 != 0,
        rdrand: c1 & 1 << 30 != 0,
        rdseed: b7 & 1 << 18 != 0,
        hypervisor: c1 & 1 << 31 != 0,
        rdtscp: d81 & 1 << 27 != 0,
        rdpid: c7 & 1 << 22 != 0,
        erms: b7 & 1 << 9 != 0,
        monitor: c1 & 1 << 3 != 0,
        arch_capabilities: d7 & 1 << 29 != 0,
        mce: d1 & 1 << 7 != 0,
        sysret_keeps_ss: entry::sysret_keeps_ss(&vendor()),
        physical_bits: (a88 & 0xff) as u8,
        xcr0,
        xsave_bytes: xsave_bytes(xcr0),
        pkru_offset,
    }
}

/// Size of the standard-form XSAVE area for `xcr0` (SDM 1, 13.4.3), or of FXSAVE without XSAVE.
fn xsave_bytes(xcr0: u64) -> u32 {
    let mut end = 576;
    for component in 2..32u32 {
        if xcr0 & 1 << component != 0 {
            let [size, offset, _, _] = cpuid(0xd, component);
            end = end.max(offset + size);
        }
    }
    end
}

/// Whether this CPU is QEMU's emulation (TCG), which says so.
pub fn is_emulated() -> bool {
    let name = cpuid(0x4000_0000, 0);
    features().hypervisor
        && name[1..]
            == [
                u32::from_le_bytes(*b"TCGT"),
                u32::from_le_bytes(*b"CGTC"),
                u32::from_le_bytes(*b"GTCG"),
            ]
}
