//! The virtual machine control block (AMD APM 2, appendix B): one page that VMRUN takes the guest
//! from, and where an exit leaves it.

use core::mem::{offset_of, size_of};

use zerocopy::FromZeros;

/// What is intercepted, and under which conditions the guest runs.
#[repr(C)]
#[derive(Clone, Debug, FromZeros)]
#[expect(missing_docs, reason = "the names of the manual; rows of table B-1")]
pub struct Control {
    /// Reads (low half) and writes of control registers.
    pub intercept_cr: u32,
    /// Reads (low half) and writes of debug registers.
    pub intercept_dr: u32,
    pub intercept_exceptions: u32,
    pub intercept_3: u32,
    pub intercept_4: u32,
    pub intercept_5: u32,
    reserved_018: [u8; 0x24],
    pub pause_filter_threshold: u16,
    pub pause_filter_count: u16,
    pub iopm_base: u64,
    pub msrpm_base: u64,
    pub tsc_offset: u64,
    pub asid: u32,
    pub tlb_control: u32,
    /// V_TPR, V_IRQ and what goes with them.
    pub interrupt_control: u64,
    /// Bit 0: interrupts wait for one more instruction.
    pub interrupt_shadow: u64,
    pub exit_code: u64,
    pub exit_info_1: u64,
    pub exit_info_2: u64,
    pub exit_interrupt_info: u64,
    pub nested_control: u64,
    pub avic_bar: u64,
    pub ghcb: u64,
    pub event_injection: u64,
    pub nested_cr3: u64,
    pub lbr_control: u64,
    pub clean: u32,
    reserved_0c4: u32,
    pub next_rip: u64,
    pub fetched_count: u8,
    pub fetched: [u8; 15],
    reserved_0e0: [u8; 0x320],
}

/// A segment register in the block; attributes as [`virt::regs::Segment`] has them.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromZeros)]
#[expect(missing_docs, reason = "the names of the manual")]
pub struct Segment {
    pub selector: u16,
    pub attributes: u16,
    pub limit: u32,
    pub base: u64,
}

/// The guest's registers, as far as VMRUN and VMLOAD switch them. Whatever stands here is the
/// guest's own business.
#[repr(C)]
#[derive(Clone, Debug, FromZeros)]
#[expect(missing_docs, reason = "the names of the manual; rows of table B-2")]
pub struct Save {
    pub es: Segment,
    pub cs: Segment,
    pub ss: Segment,
    pub ds: Segment,
    pub fs: Segment,
    pub gs: Segment,
    pub gdtr: Segment,
    pub ldtr: Segment,
    pub idtr: Segment,
    pub tr: Segment,
    reserved_0a0: [u8; 0x2b],
    pub cpl: u8,
    reserved_0cc: u32,
    pub efer: u64,
    reserved_0d8: [u8; 0x70],
    pub cr4: u64,
    pub cr3: u64,
    pub cr0: u64,
    pub dr7: u64,
    pub dr6: u64,
    pub rflags: u64,
    pub rip: u64,
    reserved_180: [u8; 0x58],
    pub rsp: u64,
    pub s_cet: u64,
    pub ssp: u64,
    pub isst_address: u64,
    pub rax: u64,
    pub star: u64,
    pub lstar: u64,
    pub cstar: u64,
    pub syscall_mask: u64,
    pub kernel_gs_base: u64,
    pub sysenter_cs: u64,
    pub sysenter_esp: u64,
    pub sysenter_eip: u64,
    pub cr2: u64,
    reserved_248: [u8; 0x20],
    pub pat: u64,
    pub debug_control: u64,
    reserved_278: [u8; 0x988],
}

impl Save {
    /// Makes every word zero, which no CPU enters.
    pub fn clear(&mut self) {
        self.zero();
    }
}

/// The block.
#[repr(C, align(4096))]
#[derive(Clone, Debug, FromZeros)]
#[expect(missing_docs, reason = "its two halves")]
pub struct Vmcb {
    pub control: Control,
    pub save: Save,
}

const _: () = {
    assert!(size_of::<Vmcb>() == 4096);
    assert!(size_of::<Control>() == 0x400);
    assert!(offset_of!(Control, pause_filter_threshold) == 0x3c);
    assert!(offset_of!(Control, iopm_base) == 0x40);
    assert!(offset_of!(Control, asid) == 0x58);
    assert!(offset_of!(Control, exit_code) == 0x70);
    assert!(offset_of!(Control, nested_control) == 0x90);
    assert!(offset_of!(Control, event_injection) == 0xa8);
    assert!(offset_of!(Control, lbr_control) == 0xb8);
    assert!(offset_of!(Control, next_rip) == 0xc8);
    assert!(offset_of!(Control, fetched) == 0xd1);
    assert!(offset_of!(Save, tr) == 0x90);
    assert!(offset_of!(Save, cpl) == 0xcb);
    assert!(offset_of!(Save, efer) == 0xd0);
    assert!(offset_of!(Save, cr4) == 0x148);
    assert!(offset_of!(Save, rflags) == 0x170);
    assert!(offset_of!(Save, rsp) == 0x1d8);
    assert!(offset_of!(Save, rax) == 0x1f8);
    assert!(offset_of!(Save, star) == 0x200);
    assert!(offset_of!(Save, cr2) == 0x240);
    assert!(offset_of!(Save, pat) == 0x268);
};

/// Bits of the intercept words.
#[expect(missing_docs, reason = "the names of the manual")]
pub mod intercept {
    /// Of `intercept_3`.
    pub const INTR: u32 = 1;
    pub const NMI: u32 = 1 << 1;
    pub const SMI: u32 = 1 << 2;
    pub const INIT: u32 = 1 << 3;
    pub const VINTR: u32 = 1 << 4;
    /// Writes of CR0 that change more than TS and MP.
    pub const CR0_SELECTIVE: u32 = 1 << 5;
    pub const RDPMC: u32 = 1 << 15;
    pub const CPUID: u32 = 1 << 18;
    pub const RSM: u32 = 1 << 19;
    pub const IRET: u32 = 1 << 20;
    pub const INVD: u32 = 1 << 22;
    pub const PAUSE: u32 = 1 << 23;
    pub const HLT: u32 = 1 << 24;
    pub const INVLPGA: u32 = 1 << 26;
    pub const IO: u32 = 1 << 27;
    pub const MSR: u32 = 1 << 28;
    pub const TASK_SWITCH: u32 = 1 << 29;
    pub const FERR_FREEZE: u32 = 1 << 30;
    pub const SHUTDOWN: u32 = 1 << 31;
    /// Of `intercept_4`: VMRUN, VMMCALL, VMLOAD, VMSAVE, STGI, CLGI, SKINIT, RDTSCP, not ICEBP,
    /// WBINVD, MONITOR, MWAIT (armed or not), XSETBV, RDPRU.
    pub const ALWAYS_4: u32 = 0xff | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 12 | 1 << 13 | 1 << 14;
    /// Of `intercept_5`: INVLPGB, the illegal form too, INVPCID not, MCOMMIT, TLBSYNC.
    pub const ALWAYS_5: u32 = 1 | 1 << 1 | 1 << 3 | 1 << 4;
    /// Of `intercept_3`: whatever would let a guest act on the host, or stop it.
    pub const ALWAYS: u32 = INTR
        | NMI
        | SMI
        | INIT
        | RDPMC
        | CPUID
        | RSM
        | INVD
        | HLT
        | INVLPGA
        | IO
        | MSR
        | TASK_SWITCH
        | FERR_FREEZE
        | SHUTDOWN;
    /// What a [`crate::Request`] may add to them.
    pub const OPTIONAL: u32 = VINTR | CR0_SELECTIVE | IRET | PAUSE;
    /// Of `intercept_exceptions`: #DB and #AC, whose delivery can fault by the same cause for ever
    /// without an interrupt's getting in (CVE-2015-8104, CVE-2015-5307), and #MC.
    pub const ALWAYS_EXCEPTIONS: u32 = 1 << 1 | 1 << 17 | 1 << 18;
    /// Of `intercept_dr`: all of them; they are switched by software.
    pub const ALWAYS_DR: u32 = 0xffff_ffff;
    /// Of `intercept_cr`: writes of CR8.
    pub const CR8_WRITE: u32 = 1 << 24;
}

/// Bits of `interrupt_control`.
#[expect(missing_docs, reason = "the names of the manual")]
pub mod interrupt_control {
    pub const TPR: u64 = 0xf;
    pub const IRQ: u64 = 1 << 8;
    pub const PRIORITY: u64 = 0xf << 16;
    pub const IGNORE_TPR: u64 = 1 << 20;
    pub const MASKING: u64 = 1 << 24;
}

/// Values of `tlb_control`.
pub mod tlb_control {
    /// Nothing.
    pub const KEEP: u32 = 0;
    /// Drops everything of every guest, and of the host.
    pub const DROP_ALL: u32 = 1;
}

/// MSRs that guests use without an exit, since VMLOAD and VMSAVE switch them.
pub const PASSED_MSRS: [u32; 10] = [
    virt::msr::SYSENTER_CS,
    virt::msr::SYSENTER_ESP,
    virt::msr::SYSENTER_EIP,
    virt::msr::STAR,
    virt::msr::LSTAR,
    virt::msr::CSTAR,
    virt::msr::SYSCALL_MASK,
    virt::msr::FS_BASE,
    virt::msr::GS_BASE,
    virt::msr::KERNEL_GS_BASE,
];

/// Bytes of the bitmap of MSRs, and of ports.
pub const MSR_BITMAP_BYTES: usize = 2 * 4096;
/// Bytes of the bitmap of ports: one bit each, and three more for accesses across the end.
pub const PORT_BITMAP_BYTES: usize = 3 * 4096;

/// Where an MSR's two bits are: byte, and the shift of the read bit (AMD APM 2, 15.11).
#[must_use]
pub const fn msr_bits(number: u32) -> Option<(usize, u32)> {
    let base = match number {
        0..=0x1fff => 0,
        0xc000_0000..=0xc000_1fff => 0x800,
        0xc001_0000..=0xc001_1fff => 0x1000,
        _ => return None,
    };
    let low = number & 0x1fff;
    Some((base + low as usize / 4, low % 4 * 2))
}
