//! Model-specific registers that a guest may have: their numbers, and which of them this
//! hypervisor keeps by itself. The hardware's own ([`crate::Vmrun::msr`]) come first.

#![expect(missing_docs, reason = "the names of the manual")]

pub const TSC: u32 = 0x10;
/// KVM: where the wall clock and the clock are to be written; by old and new numbers.
pub const KVM_WALL_CLOCK: u32 = 0x11;
pub const KVM_SYSTEM_TIME: u32 = 0x12;
pub const KVM_WALL_CLOCK_NEW: u32 = 0x4b56_4d00;
pub const KVM_SYSTEM_TIME_NEW: u32 = 0x4b56_4d01;
pub const PLATFORM_ID: u32 = 0x17;
pub const APIC_BASE: u32 = 0x1b;
pub const FEATURE_CONTROL: u32 = 0x3a;
pub const TSC_ADJUST: u32 = 0x3b;
pub const SPEC_CTRL: u32 = 0x48;
pub const PRED_CMD: u32 = 0x49;
pub const BIOS_SIGN_ID: u32 = 0x8b;
pub const MTRR_CAP: u32 = 0xfe;
pub const ARCH_CAPABILITIES: u32 = 0x10a;
pub const SYSENTER_CS: u32 = 0x174;
pub const SYSENTER_ESP: u32 = 0x175;
pub const SYSENTER_EIP: u32 = 0x176;
pub const MCG_CAP: u32 = 0x179;
pub const MCG_STATUS: u32 = 0x17a;
pub const MCG_CTL: u32 = 0x17b;
pub const MISC_ENABLE: u32 = 0x1a0;
pub const DEBUGCTL: u32 = 0x1d9;
pub const PAT: u32 = 0x277;
pub const MTRR_DEF_TYPE: u32 = 0x2ff;
pub const TSC_DEADLINE: u32 = 0x6e0;
pub const X2APIC_FIRST: u32 = 0x800;
pub const X2APIC_LAST: u32 = 0x8ff;
pub const EFER: u32 = 0xc000_0080;
pub const STAR: u32 = 0xc000_0081;
pub const LSTAR: u32 = 0xc000_0082;
pub const CSTAR: u32 = 0xc000_0083;
pub const SYSCALL_MASK: u32 = 0xc000_0084;
pub const FS_BASE: u32 = 0xc000_0100;
pub const GS_BASE: u32 = 0xc000_0101;
pub const KERNEL_GS_BASE: u32 = 0xc000_0102;
pub const TSC_AUX: u32 = 0xc000_0103;
/// AMD: system configuration.
pub const SYSCFG: u32 = 0xc001_0010;
/// AMD: hardware configuration.
pub const HWCR: u32 = 0xc001_0015;
/// AMD: patch level.
pub const PATCH_LEVEL: u32 = 0xc000_008b;
/// AMD: northbridge configuration.
pub const NB_CFG: u32 = 0xc001_001f;
/// AMD: messages for interrupts that are pending, of which there are none.
pub const INT_PENDING_MSG: u32 = 0xc001_0055;
/// AMD: SVM, switched off and locked.
pub const VM_CR: u32 = 0xc001_0114;
/// AMD: decoder configuration (where LFENCE is said to serialise).
pub const DE_CFG: u32 = 0xc001_1029;

/// MTRRs: variable ranges, then fixed ones.
const MTRRS: [core::ops::RangeInclusive<u32>; 4] =
    [0x200..=0x20f, 0x250..=0x250, 0x258..=0x259, 0x268..=0x26f];
/// Machine-check banks: control, status, address, misc of each.
const BANKS: core::ops::RangeInclusive<u32> = 0x400..=0x400 + 4 * 32 - 1;

/// Registers that only keep what is written: nothing depends on them here.
const PLAIN: [u32; 7] = [MTRR_DEF_TYPE, MISC_ENABLE, MCG_STATUS, MCG_CTL, HWCR, SYSCFG, TSC_ADJUST];

/// How many plain registers there are.
pub const PLAIN_COUNT: usize = PLAIN.len() + 16 + 1 + 2 + 8 + 128;

/// The place of a plain register, below [`PLAIN_COUNT`].
#[must_use]
pub fn plain_index(number: u32) -> Option<usize> {
    if let Some(at) = PLAIN.iter().position(|&plain| plain == number) {
        return Some(at);
    }
    let mut before = PLAIN.len();
    for range in MTRRS.iter().chain([&BANKS]) {
        if range.contains(&number) {
            return Some(before + (number - range.start()) as usize);
        }
        before += (range.end() - range.start() + 1) as usize;
    }
    None
}

/// What registers read that say something about the machine and ignore writes.
#[must_use]
pub fn constant(number: u32) -> Option<u64> {
    match number {
        // Eight variable ranges, fixed ranges, write-combining.
        MTRR_CAP => Some(0x508),
        MCG_CAP | PLATFORM_ID | FEATURE_CONTROL | DEBUGCTL | NB_CFG | PATCH_LEVEL => Some(0),
        BIOS_SIGN_ID | INT_PENDING_MSG => Some(0),
        // SVM is disabled (bit 4), and stays so.
        VM_CR => Some(1 << 4 | 1 << 3),
        // LFENCE serialises.
        DE_CFG => Some(1 << 1),
        ARCH_CAPABILITIES => Some(0),
        _ => None,
    }
}

/// What a VMM saves and restores (KVM_GET_MSR_INDEX_LIST), beside MTRRs.
pub const LIST: [u32; 29] = [
    TSC,
    APIC_BASE,
    TSC_ADJUST,
    SYSENTER_CS,
    SYSENTER_ESP,
    SYSENTER_EIP,
    MCG_CAP,
    MCG_STATUS,
    MISC_ENABLE,
    PAT,
    MTRR_DEF_TYPE,
    TSC_DEADLINE,
    EFER,
    STAR,
    LSTAR,
    CSTAR,
    SYSCALL_MASK,
    FS_BASE,
    GS_BASE,
    KERNEL_GS_BASE,
    TSC_AUX,
    HWCR,
    SYSCFG,
    DE_CFG,
    PATCH_LEVEL,
    KVM_WALL_CLOCK,
    KVM_SYSTEM_TIME,
    KVM_WALL_CLOCK_NEW,
    KVM_SYSTEM_TIME_NEW,
];
