//! A guest's registers, and the fields of the control structure they stand in.

use virt::regs::{Segment, Table, attribute, cr, flags, seg};

use crate::{Controls, field};

/// CR0 bits of which the guest sees its own while the CPU has the host's: NE must be set, and
/// caches are the host's business. A write that changes them is an exit.
const CR0_OWNED: u64 = cr::CR0_NE | cr::CR0_CD | cr::CR0_NW;
/// EFER bits that Intel's CPUs have.
const EFER_KNOWN: u64 = cr::EFER_SCE | cr::EFER_LME | cr::EFER_LMA | cr::EFER_NXE;
/// RFLAGS bits that are not reserved.
const FLAGS_KNOWN: u64 = 0x3f_7fd5;
/// CR4.MCE: a machine check with it clear would stop the host.
const CR4_MCE: u64 = 1 << 6;

/// Interruptibility: the instruction behind STI, that behind MOV SS, an NMI in service.
pub(crate) mod blocked {
    pub(crate) const BY_STI: u32 = 1;
    pub(crate) const BY_MOV_SS: u32 = 1 << 1;
    pub(crate) const BY_NMI: u32 = 1 << 3;
}

/// Of the pending debug exceptions: a single step.
const PENDING_STEP: u64 = 1 << 14;
/// In the rights of a segment: there is none.
const UNUSABLE: u64 = 1 << 16;

/// What the control structure switches, and the MSRs that the world does. Whatever stands here is
/// the guest's own business: the CPU refuses what it cannot run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names of the manual")]
pub struct Guest {
    pub segments: [Segment; 8],
    pub gdt: Table,
    pub idt: Table,
    pub cr0: u64,
    pub cr3: u64,
    pub cr4: u64,
    pub efer: u64,
    pub rip: u64,
    pub rsp: u64,
    pub rflags: u64,
    pub dr7: u64,
    pub pat: u64,
    pub sysenter_cs: u64,
    pub sysenter_esp: u64,
    pub sysenter_eip: u64,
    /// The four entries of PAE paging that the CPU keeps.
    pub pdptes: [u64; 4],
    pub interruptibility: u32,
    pub pending_debug: u64,
    // Not in the structure.
    pub star: u64,
    pub lstar: u64,
    pub cstar: u64,
    pub syscall_mask: u64,
    pub kernel_gs_base: u64,
}

/// Type, S, DPL, P in bits 7:0; AVL, L, D/B, G in 15:12; unusable.
fn rights(s: &Segment) -> u64 {
    let bits = u64::from(s.attributes);
    let mut rights = bits & 0xff | (bits & 0xf00) << 4;
    if s.attributes & attribute::PRESENT == 0 {
        rights |= UNUSABLE;
    } else if s.attributes & attribute::CODE_OR_DATA != 0 {
        // Accessed, as a loaded one is.
        rights |= 1;
    }
    rights
}

fn attributes(rights: u64) -> u16 {
    let bits = (rights & 0xff | rights >> 4 & 0xf00) as u16;
    if rights & UNUSABLE != 0 { bits & !attribute::PRESENT } else { bits }
}

/// The fields of the segment register at a place of [`seg`]: selector, limit, rights, base.
fn fields(place: usize) -> [u32; 4] {
    let offset = 2 * place as u32;
    [
        field::GUEST_ES_SELECTOR + offset,
        field::GUEST_ES_LIMIT + offset,
        field::GUEST_ES_RIGHTS + offset,
        field::GUEST_ES_BASE + offset,
    ]
}

impl Guest {
    /// CR4 bits whose writes are exits.
    fn cr4_owned(controls: &Controls) -> u64 {
        !controls.cr4_allowed | CR4_MCE
    }

    /// Whether 64-bit or compatibility mode is on.
    #[must_use]
    pub fn is_long(&self) -> bool {
        self.efer & cr::EFER_LMA != 0
    }

    /// Whether the CPU keeps four entries of the page tables for it.
    #[must_use]
    pub fn has_pdptes(&self) -> bool {
        self.cr0 & cr::CR0_PG != 0 && self.cr4 & cr::CR4_PAE != 0 && !self.is_long()
    }

    /// Writes all fields.
    pub fn store(&self, controls: &Controls, mut write: impl FnMut(u32, u64)) {
        for (place, segment) in self.segments.iter().enumerate() {
            let [selector, limit, access, base] = fields(place);
            write(selector, segment.selector.into());
            write(limit, segment.limit.into());
            write(access, rights(segment));
            write(base, segment.base);
        }
        let paging = cr::CR0_PE | cr::CR0_PG;
        let cr0 = self.cr0 & !CR0_OWNED | controls.cr0_fixed & !paging;
        let cr4 = self.cr4 & controls.cr4_allowed | controls.cr4_fixed | CR4_MCE;
        let step = self.interruptibility & (blocked::BY_STI | blocked::BY_MOV_SS) != 0
            && self.rflags & flags::TF != 0;
        let pending = self.pending_debug | if step { PENDING_STEP } else { 0 };
        for (number, value) in [
            (field::GUEST_GDTR_BASE, self.gdt.base),
            (field::GUEST_GDTR_LIMIT, self.gdt.limit.into()),
            (field::GUEST_IDTR_BASE, self.idt.base),
            (field::GUEST_IDTR_LIMIT, self.idt.limit.into()),
            (field::GUEST_CR0, cr0),
            (field::CR0_MASK, CR0_OWNED),
            (field::CR0_SHADOW, self.cr0),
            (field::GUEST_CR3, self.cr3),
            (field::GUEST_CR4, cr4),
            (field::CR4_MASK, Guest::cr4_owned(controls)),
            (field::CR4_SHADOW, self.cr4),
            (field::GUEST_EFER, self.efer & EFER_KNOWN),
            (field::GUEST_RIP, self.rip),
            (field::GUEST_RSP, self.rsp),
            (field::GUEST_RFLAGS, self.rflags & FLAGS_KNOWN | flags::FIXED),
            (field::GUEST_DR7, self.dr7),
            (field::GUEST_PAT, self.pat),
            (field::GUEST_SYSENTER_CS, self.sysenter_cs),
            (field::GUEST_SYSENTER_ESP, self.sysenter_esp),
            (field::GUEST_SYSENTER_EIP, self.sysenter_eip),
            (field::GUEST_INTERRUPTIBILITY, self.interruptibility.into()),
            (field::GUEST_PENDING_DEBUG, pending),
        ] {
            write(number, value);
        }
        for (number, &value) in (field::GUEST_PDPTE..).step_by(2).zip(&self.pdptes) {
            write(number, value);
        }
    }

    /// Reads all fields back behind an exit.
    pub fn load(&mut self, controls: &Controls, mut read: impl FnMut(u32) -> u64) {
        for (place, segment) in self.segments.iter_mut().enumerate() {
            let [selector, limit, access, base] = fields(place);
            *segment = Segment {
                selector: read(selector) as u16,
                limit: read(limit) as u32,
                attributes: attributes(read(access)),
                base: read(base),
            };
        }
        for (table, base, limit) in [
            (&mut self.gdt, field::GUEST_GDTR_BASE, field::GUEST_GDTR_LIMIT),
            (&mut self.idt, field::GUEST_IDTR_BASE, field::GUEST_IDTR_LIMIT),
        ] {
            *table = Table { base: read(base), limit: read(limit) as u16 };
        }
        let cr4_owned = Guest::cr4_owned(controls);
        self.cr0 = read(field::GUEST_CR0) & !CR0_OWNED | self.cr0 & CR0_OWNED;
        self.cr4 = read(field::GUEST_CR4) & !cr4_owned | self.cr4 & cr4_owned;
        self.interruptibility = read(field::GUEST_INTERRUPTIBILITY) as u32;
        for (register, number) in [
            (&mut self.cr3, field::GUEST_CR3),
            (&mut self.efer, field::GUEST_EFER),
            (&mut self.rip, field::GUEST_RIP),
            (&mut self.rsp, field::GUEST_RSP),
            (&mut self.rflags, field::GUEST_RFLAGS),
            (&mut self.dr7, field::GUEST_DR7),
            (&mut self.pat, field::GUEST_PAT),
            (&mut self.sysenter_cs, field::GUEST_SYSENTER_CS),
            (&mut self.sysenter_esp, field::GUEST_SYSENTER_ESP),
            (&mut self.sysenter_eip, field::GUEST_SYSENTER_EIP),
            (&mut self.pending_debug, field::GUEST_PENDING_DEBUG),
        ] {
            *register = read(number);
        }
        if self.has_pdptes() {
            for (number, value) in (field::GUEST_PDPTE..).step_by(2).zip(&mut self.pdptes) {
                *value = read(number);
            }
        }
    }

    /// Current privilege level.
    #[must_use]
    pub fn cpl(&self) -> u8 {
        (self.segments[seg::SS].attributes >> attribute::DPL_SHIFT & 3) as u8
    }
}
