//! Numbers of the fields of the virtual-machine control structure (SDM 3D, appendix B). Bits 14:13
//! of a number are the field's width: 16, 64, 32 bits, or natural.

#![expect(missing_docs, reason = "the names of the manual")]

pub const VPID: u32 = 0x0000;
pub const GUEST_ES_SELECTOR: u32 = 0x0800;
pub const HOST_ES_SELECTOR: u32 = 0x0c00;
pub const HOST_CS_SELECTOR: u32 = 0x0c02;
pub const HOST_SS_SELECTOR: u32 = 0x0c04;
pub const HOST_DS_SELECTOR: u32 = 0x0c06;
pub const HOST_FS_SELECTOR: u32 = 0x0c08;
pub const HOST_GS_SELECTOR: u32 = 0x0c0a;
pub const HOST_TR_SELECTOR: u32 = 0x0c0c;
pub const MSR_BITMAP: u32 = 0x2004;
pub const TSC_OFFSET: u32 = 0x2010;
pub const EPT_POINTER: u32 = 0x201a;
pub const ENCLS_BITMAP: u32 = 0x202e;
pub const PCONFIG_BITMAP: u32 = 0x203e;
pub const GUEST_PHYSICAL_ADDRESS: u32 = 0x2400;
pub const LINK_POINTER: u32 = 0x2800;
pub const GUEST_DEBUGCTL: u32 = 0x2802;
pub const GUEST_PAT: u32 = 0x2804;
pub const GUEST_EFER: u32 = 0x2806;
/// The first of four.
pub const GUEST_PDPTE: u32 = 0x280a;
pub const HOST_PAT: u32 = 0x2c00;
pub const HOST_EFER: u32 = 0x2c02;
pub const PIN_CONTROLS: u32 = 0x4000;
pub const PRIMARY_CONTROLS: u32 = 0x4002;
pub const EXCEPTION_BITMAP: u32 = 0x4004;
pub const PAGE_FAULT_MASK: u32 = 0x4006;
pub const PAGE_FAULT_MATCH: u32 = 0x4008;
pub const CR3_TARGET_COUNT: u32 = 0x400a;
pub const EXIT_CONTROLS: u32 = 0x400c;
pub const EXIT_MSR_STORE_COUNT: u32 = 0x400e;
pub const EXIT_MSR_LOAD_COUNT: u32 = 0x4010;
pub const ENTRY_CONTROLS: u32 = 0x4012;
pub const ENTRY_MSR_LOAD_COUNT: u32 = 0x4014;
pub const ENTRY_EVENT: u32 = 0x4016;
pub const ENTRY_EVENT_ERROR: u32 = 0x4018;
pub const ENTRY_INSTRUCTION_LENGTH: u32 = 0x401a;
pub const SECONDARY_CONTROLS: u32 = 0x401e;
pub const INSTRUCTION_ERROR: u32 = 0x4400;
pub const EXIT_REASON: u32 = 0x4402;
pub const EXIT_EVENT: u32 = 0x4404;
pub const EXIT_EVENT_ERROR: u32 = 0x4406;
pub const VECTORING_EVENT: u32 = 0x4408;
pub const VECTORING_EVENT_ERROR: u32 = 0x440a;
pub const EXIT_INSTRUCTION_LENGTH: u32 = 0x440c;
pub const GUEST_ES_LIMIT: u32 = 0x4800;
pub const GUEST_GDTR_LIMIT: u32 = 0x4810;
pub const GUEST_IDTR_LIMIT: u32 = 0x4812;
pub const GUEST_ES_RIGHTS: u32 = 0x4814;
pub const GUEST_INTERRUPTIBILITY: u32 = 0x4824;
pub const GUEST_ACTIVITY: u32 = 0x4826;
pub const GUEST_SYSENTER_CS: u32 = 0x482a;
pub const TIMER: u32 = 0x482e;
pub const HOST_SYSENTER_CS: u32 = 0x4c00;
pub const CR0_MASK: u32 = 0x6000;
pub const CR4_MASK: u32 = 0x6002;
pub const CR0_SHADOW: u32 = 0x6004;
pub const CR4_SHADOW: u32 = 0x6006;
pub const EXIT_QUALIFICATION: u32 = 0x6400;
pub const GUEST_CR0: u32 = 0x6800;
pub const GUEST_CR3: u32 = 0x6802;
pub const GUEST_CR4: u32 = 0x6804;
pub const GUEST_ES_BASE: u32 = 0x6806;
pub const GUEST_GDTR_BASE: u32 = 0x6816;
pub const GUEST_IDTR_BASE: u32 = 0x6818;
pub const GUEST_DR7: u32 = 0x681a;
pub const GUEST_RSP: u32 = 0x681c;
pub const GUEST_RIP: u32 = 0x681e;
pub const GUEST_RFLAGS: u32 = 0x6820;
pub const GUEST_PENDING_DEBUG: u32 = 0x6822;
pub const GUEST_SYSENTER_ESP: u32 = 0x6824;
pub const GUEST_SYSENTER_EIP: u32 = 0x6826;
pub const HOST_CR0: u32 = 0x6c00;
pub const HOST_CR3: u32 = 0x6c02;
pub const HOST_CR4: u32 = 0x6c04;
pub const HOST_FS_BASE: u32 = 0x6c06;
pub const HOST_GS_BASE: u32 = 0x6c08;
pub const HOST_TR_BASE: u32 = 0x6c0a;
pub const HOST_GDTR_BASE: u32 = 0x6c0c;
pub const HOST_IDTR_BASE: u32 = 0x6c0e;
pub const HOST_SYSENTER_ESP: u32 = 0x6c10;
pub const HOST_SYSENTER_EIP: u32 = 0x6c12;
pub const HOST_RSP: u32 = 0x6c14;
pub const HOST_RIP: u32 = 0x6c16;

/// Bits that a field holds.
#[must_use]
pub const fn width(number: u32) -> u32 {
    match number >> 13 & 3 {
        0 => 16,
        2 => 32,
        _ => 64,
    }
}
