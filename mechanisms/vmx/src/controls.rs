//! What the CPU lets be controlled, and what is controlled: from the capability MSRs (SDM 3D,
//! appendix A) to the words of controls. A CPU without one of those that are needed runs no guests.

/// Capability MSRs by name.
#[expect(missing_docs, reason = "the names of the manual")]
pub mod msr {
    pub const FEATURE_CONTROL: u32 = 0x3a;
    pub const BASIC: u32 = 0x480;
    pub const MISC: u32 = 0x485;
    pub const CR0_FIXED0: u32 = 0x486;
    pub const CR4_FIXED0: u32 = 0x488;
    pub const CR4_FIXED1: u32 = 0x489;
    pub const SECONDARY: u32 = 0x48b;
    pub const EPT_VPID: u32 = 0x48c;
    pub const TRUE_PIN: u32 = 0x48d;
    pub const TRUE_PRIMARY: u32 = 0x48e;
    pub const TRUE_EXIT: u32 = 0x48f;
    pub const TRUE_ENTRY: u32 = 0x490;
}

/// Bits of [`msr::FEATURE_CONTROL`]: nothing can be changed any more; VMXON works.
pub const LOCKED: u64 = 1;
/// See [`LOCKED`].
pub const ENABLED: u64 = 1 << 2;

/// Bits of the pin-based controls.
#[expect(missing_docs, reason = "the names of the manual")]
pub mod pin {
    pub const INTERRUPTS: u32 = 1;
    pub const NMI: u32 = 1 << 3;
    pub const VIRTUAL_NMI: u32 = 1 << 5;
    pub const TIMER: u32 = 1 << 6;
}

/// Bits of the primary processor-based controls.
#[expect(missing_docs, reason = "the names of the manual")]
pub mod primary {
    pub const INTERRUPT_WINDOW: u32 = 1 << 2;
    pub const TSC_OFFSET: u32 = 1 << 3;
    pub const HLT: u32 = 1 << 7;
    pub const MWAIT: u32 = 1 << 10;
    pub const RDPMC: u32 = 1 << 11;
    pub const CR8_LOAD: u32 = 1 << 19;
    pub const CR8_STORE: u32 = 1 << 20;
    pub const NMI_WINDOW: u32 = 1 << 22;
    pub const DEBUG_REGISTERS: u32 = 1 << 23;
    pub const PORTS: u32 = 1 << 24;
    pub const MSR_BITMAP: u32 = 1 << 28;
    pub const MONITOR: u32 = 1 << 29;
    pub const SECONDARY: u32 = 1 << 31;
}

/// Bits of the secondary processor-based controls.
#[expect(missing_docs, reason = "the names of the manual")]
pub mod secondary {
    pub const EPT: u32 = 1 << 1;
    pub const VPID: u32 = 1 << 5;
    pub const WBINVD: u32 = 1 << 6;
    pub const UNRESTRICTED: u32 = 1 << 7;
    pub const INVPCID: u32 = 1 << 12;
    pub const ENCLS: u32 = 1 << 15;
    pub const PCONFIG: u32 = 1 << 27;
}

/// Bits of the exit controls.
#[expect(missing_docs, reason = "the names of the manual")]
pub mod exit {
    pub const SAVE_DEBUG: u32 = 1 << 2;
    pub const HOST_64_BIT: u32 = 1 << 9;
    pub const SAVE_PAT: u32 = 1 << 18;
    pub const LOAD_PAT: u32 = 1 << 19;
    pub const SAVE_EFER: u32 = 1 << 20;
    pub const LOAD_EFER: u32 = 1 << 21;
}

/// Bits of the entry controls.
#[expect(missing_docs, reason = "the names of the manual")]
pub mod entry {
    pub const LOAD_DEBUG: u32 = 1 << 2;
    pub const LONG_MODE: u32 = 1 << 9;
    pub const LOAD_PAT: u32 = 1 << 14;
    pub const LOAD_EFER: u32 = 1 << 15;
}

/// Bits of [`msr::EPT_VPID`]: tables of four levels, walked as write-back memory; INVEPT of one
/// guest's and of all; INVVPID, of one identifier's and of all.
const EPT_NEEDED: u64 = 1 << 6 | 1 << 14 | 1 << 20 | 1 << 25 | 1 << 26;
const VPID_NEEDED: u64 = 1 << 32 | 1 << 41 | 1 << 42;

/// CR4 bits that a guest may have: VME to OSXMMEXCPT, UMIP, LA57, FSGSBASE, PCIDE, OSXSAVE, SMEP,
/// SMAP, PKE. Not what leads to state that is not switched: VMX and SMX, CET, protection keys of
/// the kernel's, user interrupts.
const CR4_ALLOWED: u64 = 0x7ff | 1 << 11 | 1 << 12 | 1 << 16 | 1 << 17 | 1 << 18 | 7 << 20;

/// What guests are run with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Controls {
    /// The first word of the control structure, and of what VMXON gets.
    pub revision: u32,
    /// Pin-based.
    pub pin: u32,
    /// Processor-based.
    pub primary: u32,
    /// More of them.
    pub secondary: u32,
    /// Of exits.
    pub exit: u32,
    /// Of entries; of 64-bit mode as the guest is.
    pub entry: u32,
    /// How many bits of the TSC the timer that ends a guest's run does not see, if there is one.
    pub timer_shift: Option<u32>,
    /// Guests' translations have identifiers.
    pub has_vpid: bool,
    /// CR0 bits that must be set while VMX is on; of a guest's not PE and PG.
    pub cr0_fixed: u64,
    /// CR4 bits that must be set while VMX is on.
    pub cr4_fixed: u64,
    /// CR4 bits a guest may set.
    pub cr4_allowed: u64,
}

/// What a word of controls becomes: `needed`, those of `wanted` that there are, and those that the
/// CPU wants set. The word is the low half (must be 1) and the high half (may be 1) of an MSR.
fn choose(capability: u64, needed: u32, wanted: u32) -> Option<u32> {
    let (must, may) = (capability as u32, (capability >> 32) as u32);
    (needed & !may == 0).then_some((needed | wanted & may) | must)
}

impl Controls {
    /// From the MSRs. None: something that is needed is missing, or the firmware has switched VMX
    /// off.
    pub fn choose(mut rdmsr: impl FnMut(u32) -> u64) -> Option<Controls> {
        const WRITE_BACK: u64 = 6;
        let basic = rdmsr(msr::BASIC);
        // The structure is a page, kept as write-back memory; controls that once had to be set
        // need not be (those of CR3 above all).
        let is_fit = basic >> 32 & 0x1fff <= 4096
            && basic >> 50 & 15 == WRITE_BACK
            && basic & 1 << 55 != 0
            && rdmsr(msr::FEATURE_CONTROL) & (LOCKED | ENABLED) != LOCKED;
        if !is_fit {
            return None;
        }
        let pin = pin::INTERRUPTS | pin::NMI | pin::VIRTUAL_NMI;
        let primary = primary::TSC_OFFSET
            | primary::HLT
            | primary::MWAIT
            | primary::RDPMC
            | primary::CR8_LOAD
            | primary::CR8_STORE
            | primary::NMI_WINDOW
            | primary::INTERRUPT_WINDOW
            | primary::DEBUG_REGISTERS
            | primary::PORTS
            | primary::MSR_BITMAP
            | primary::MONITOR
            | primary::SECONDARY;
        let windows = primary::NMI_WINDOW | primary::INTERRUPT_WINDOW;
        let primary = choose(rdmsr(msr::TRUE_PRIMARY), primary, 0)? & !windows;
        let needed = secondary::EPT | secondary::UNRESTRICTED | secondary::WBINVD;
        let wanted = secondary::VPID | secondary::INVPCID | secondary::ENCLS | secondary::PCONFIG;
        let mut secondary = choose(rdmsr(msr::SECONDARY), needed, wanted)?;
        let tables = rdmsr(msr::EPT_VPID);
        if tables & EPT_NEEDED != EPT_NEEDED {
            return None;
        }
        let has_vpid = secondary & secondary::VPID != 0 && tables & VPID_NEEDED == VPID_NEEDED;
        if !has_vpid {
            secondary &= !secondary::VPID;
        }
        let pin = choose(rdmsr(msr::TRUE_PIN), pin, pin::TIMER)?;
        let timer_shift = (pin & pin::TIMER != 0).then(|| rdmsr(msr::MISC) as u32 & 0x1f);
        let exit = exit::SAVE_DEBUG
            | exit::HOST_64_BIT
            | exit::SAVE_PAT
            | exit::LOAD_PAT
            | exit::SAVE_EFER
            | exit::LOAD_EFER;
        let entry = entry::LOAD_DEBUG | entry::LOAD_PAT | entry::LOAD_EFER | entry::LONG_MODE;
        Some(Controls {
            revision: basic as u32 & 0x7fff_ffff,
            pin: pin & !pin::TIMER,
            timer_shift,
            primary,
            secondary,
            exit: choose(rdmsr(msr::TRUE_EXIT), exit, 0)?,
            entry: choose(rdmsr(msr::TRUE_ENTRY), entry, 0)? & !entry::LONG_MODE,
            has_vpid,
            cr0_fixed: rdmsr(msr::CR0_FIXED0),
            cr4_fixed: rdmsr(msr::CR4_FIXED0),
            cr4_allowed: CR4_ALLOWED & rdmsr(msr::CR4_FIXED1),
        })
    }
}

/// Bytes of the bitmap of MSRs.
pub const MSR_BITMAP_BYTES: usize = 4096;

/// MSRs that guests use without an exit: the structure has them, but for KERNEL_GS_BASE, which the
/// world switches since SWAPGS changes it.
pub const PASSED_MSRS: [u32; 6] = [
    virt::msr::SYSENTER_CS,
    virt::msr::SYSENTER_ESP,
    virt::msr::SYSENTER_EIP,
    virt::msr::FS_BASE,
    virt::msr::GS_BASE,
    virt::msr::KERNEL_GS_BASE,
];

/// Where an MSR's bit of reads is: byte and bit; that of writes is 2048 bytes behind it (SDM 3C,
/// 25.6.9).
#[must_use]
pub const fn msr_bit(number: u32) -> Option<(usize, u32)> {
    let base = match number {
        0..=0x1fff => 0,
        0xc000_0000..=0xc000_1fff => 0x400,
        _ => return None,
    };
    let low = number & 0x1fff;
    Some((base + low as usize / 8, low % 8))
}
