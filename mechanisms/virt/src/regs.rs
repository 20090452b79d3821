//! The registers of a virtual CPU, in the form that software works with. Hardware keeps them in
//! forms of its own, and converts.

/// Positions in [`Gprs`], as instructions encode them (AMD APM 3, 1.4).
#[expect(missing_docs, reason = "the names of the registers")]
pub mod gpr {
    pub const RAX: usize = 0;
    pub const RCX: usize = 1;
    pub const RDX: usize = 2;
    pub const RBX: usize = 3;
    pub const RSP: usize = 4;
    pub const RBP: usize = 5;
    pub const RSI: usize = 6;
    pub const RDI: usize = 7;
}

/// The sixteen general registers, in the order of their encoding.
pub type Gprs = [u64; 16];

/// RFLAGS bits by name (AMD APM 2, 3.1.6).
#[expect(missing_docs, reason = "the names of the manual")]
pub mod flags {
    pub const CF: u64 = 1;
    /// Always set.
    pub const FIXED: u64 = 1 << 1;
    pub const PF: u64 = 1 << 2;
    pub const AF: u64 = 1 << 4;
    pub const ZF: u64 = 1 << 6;
    pub const SF: u64 = 1 << 7;
    pub const TF: u64 = 1 << 8;
    pub const IF: u64 = 1 << 9;
    pub const DF: u64 = 1 << 10;
    pub const OF: u64 = 1 << 11;
    pub const RF: u64 = 1 << 16;
    pub const VM: u64 = 1 << 17;
    pub const AC: u64 = 1 << 18;
    /// What arithmetic sets.
    pub const STATUS: u64 = CF | PF | AF | ZF | SF | OF;
}

/// Bits of CR0, CR4 and EFER (AMD APM 2, 3.1).
#[expect(missing_docs, reason = "the names of the manual")]
pub mod cr {
    pub const CR0_PE: u64 = 1;
    pub const CR0_MP: u64 = 1 << 1;
    pub const CR0_EM: u64 = 1 << 2;
    pub const CR0_TS: u64 = 1 << 3;
    pub const CR0_ET: u64 = 1 << 4;
    pub const CR0_NE: u64 = 1 << 5;
    pub const CR0_WP: u64 = 1 << 16;
    pub const CR0_AM: u64 = 1 << 18;
    pub const CR0_NW: u64 = 1 << 29;
    pub const CR0_CD: u64 = 1 << 30;
    pub const CR0_PG: u64 = 1 << 31;
    /// Those that software can change.
    pub const CR0_WRITABLE: u64 =
        CR0_PE | CR0_MP | CR0_EM | CR0_TS | CR0_NE | CR0_WP | CR0_AM | CR0_NW | CR0_CD | CR0_PG;
    /// Those that LMSW writes.
    pub const CR0_STATUS_WORD: u64 = CR0_PE | CR0_MP | CR0_EM | CR0_TS;
    pub const CR4_PSE: u64 = 1 << 4;
    pub const CR4_PAE: u64 = 1 << 5;
    pub const CR4_LA57: u64 = 1 << 12;
    pub const CR4_PCIDE: u64 = 1 << 17;
    pub const CR4_OSXSAVE: u64 = 1 << 18;
    pub const CR4_SMEP: u64 = 1 << 20;
    pub const CR4_SMAP: u64 = 1 << 21;
    pub const EFER_SCE: u64 = 1;
    pub const EFER_LME: u64 = 1 << 8;
    pub const EFER_LMA: u64 = 1 << 10;
    pub const EFER_NXE: u64 = 1 << 11;
    pub const EFER_SVME: u64 = 1 << 12;
    pub const EFER_LMSLE: u64 = 1 << 13;
    pub const EFER_FFXSR: u64 = 1 << 14;
    pub const EFER_TCE: u64 = 1 << 15;
}

/// A segment register with what the CPU caches of its descriptor (AMD APM 2, 4.7 and 4.8).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// Address of its first byte.
    pub base: u64,
    /// Highest offset, in bytes.
    pub limit: u32,
    /// What the program loaded.
    pub selector: u16,
    /// Type, S, DPL and P (bits 0 to 7), AVL, L, D/B and G (bits 8 to 11).
    pub attributes: u16,
}

/// Bits of [`Segment::attributes`].
pub mod attribute {
    /// The four bits of the type.
    pub const TYPE: u16 = 0xf;
    /// Code or data, not a system segment.
    pub const CODE_OR_DATA: u16 = 1 << 4;
    /// Bit 0 of the two of the privilege level.
    pub const DPL_SHIFT: u32 = 5;
    /// There is a descriptor.
    pub const PRESENT: u16 = 1 << 7;
    /// Free for software.
    pub const AVAILABLE: u16 = 1 << 8;
    /// 64-bit code.
    pub const LONG: u16 = 1 << 9;
    /// 32-bit operands, or a 32-bit stack.
    pub const BIG: u16 = 1 << 10;
    /// The limit counts pages.
    pub const GRANULAR: u16 = 1 << 11;
}

/// Base and limit of a descriptor table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// Linear address.
    pub base: u64,
    /// Highest offset, in bytes.
    pub limit: u16,
}

/// Positions in [`System::segments`]; the first six as instructions encode them.
#[expect(missing_docs, reason = "the names of the registers")]
pub mod seg {
    pub const ES: usize = 0;
    pub const CS: usize = 1;
    pub const SS: usize = 2;
    pub const DS: usize = 3;
    pub const FS: usize = 4;
    pub const GS: usize = 5;
    pub const LDTR: usize = 6;
    pub const TR: usize = 7;
}

/// System registers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct System {
    /// By [`seg`].
    pub segments: [Segment; 8],
    /// Global descriptor table.
    pub gdt: Table,
    /// Interrupt descriptor table.
    pub idt: Table,
    /// Control register 0.
    pub cr0: u64,
    /// Address of the last page fault.
    pub cr2: u64,
    /// Root of the page tables.
    pub cr3: u64,
    /// Control register 4.
    pub cr4: u64,
    /// Extended features, as the guest sees them.
    pub efer: u64,
}

/// What code the guest executes: decides sizes of operands and addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodeSize {
    /// Real mode, virtual-8086 mode, 16-bit segments.
    Bits16,
    /// 32-bit segments.
    Bits32,
    /// 64-bit mode.
    Bits64,
}

impl System {
    /// What a CPU has after INIT or power-on (AMD APM 2, 14.1.3).
    #[must_use]
    pub fn reset() -> System {
        let data = Segment { base: 0, limit: 0xffff, selector: 0, attributes: 0x93 };
        let code = Segment { base: 0xffff_0000, limit: 0xffff, selector: 0xf000, attributes: 0x9b };
        let mut segments = [data; 8];
        segments[seg::CS] = code;
        segments[seg::LDTR].attributes = 0x82;
        segments[seg::TR].attributes = 0x8b;
        let table = Table { base: 0, limit: 0xffff };
        let cr0 = cr::CR0_CD | cr::CR0_NW | cr::CR0_ET;
        System { segments, gdt: table, idt: table, cr0, cr2: 0, cr3: 0, cr4: 0, efer: 0 }
    }

    /// Real mode, or not.
    #[must_use]
    pub fn is_protected(&self) -> bool {
        self.cr0 & cr::CR0_PE != 0
    }

    /// What a write of CR0 makes of it (AMD APM 2, 3.1.1 and 14.6; Intel SDM 3A, 4.1.2). None: #GP.
    #[must_use]
    pub fn with_cr0(&self, value: u64) -> Option<System> {
        let has = |bit: u64| value & bit != 0;
        let is_bad = value >> 32 != 0
            || has(cr::CR0_PG) && !has(cr::CR0_PE)
            || has(cr::CR0_NW) && !has(cr::CR0_CD);
        if is_bad {
            return None;
        }
        let mut new = *self;
        new.cr0 = value & cr::CR0_WRITABLE | cr::CR0_ET;
        let is_64_bit_code = self.segments[seg::CS].attributes & attribute::LONG != 0;
        match (self.cr0 & cr::CR0_PG != 0, has(cr::CR0_PG)) {
            (false, true) if self.efer & cr::EFER_LME != 0 => {
                if self.cr4 & cr::CR4_PAE == 0 || is_64_bit_code {
                    return None;
                }
                new.efer |= cr::EFER_LMA;
            }
            (true, false) => {
                let is_long = self.efer & cr::EFER_LMA != 0;
                if is_long && is_64_bit_code || self.cr4 & cr::CR4_PCIDE != 0 {
                    return None;
                }
                new.efer &= !cr::EFER_LMA;
            }
            _ => {}
        }
        Some(new)
    }

    /// What a write of CR4 makes of it (SDM 3A, 2.5 and 4.1.2). None: #GP.
    #[must_use]
    pub fn with_cr4(&self, value: u64, allowed: u64) -> Option<System> {
        let is_long = self.efer & cr::EFER_LMA != 0;
        let has = |bit: u64| value & bit != 0;
        let changes = |bit: u64| (value ^ self.cr4) & bit != 0;
        let begins_pcids = has(cr::CR4_PCIDE) && changes(cr::CR4_PCIDE);
        let is_bad = value & !allowed != 0
            || is_long && (!has(cr::CR4_PAE) || changes(cr::CR4_LA57))
            || begins_pcids && (!is_long || self.cr3 & 0xfff != 0);
        if is_bad { None } else { Some(System { cr4: value, ..*self }) }
    }

    /// Whether addresses are 64 bits wide in the code that runs, and if not, whether 32.
    #[must_use]
    pub fn code_size(&self, rflags: u64) -> CodeSize {
        let code = self.segments[seg::CS].attributes;
        if !self.is_protected() || rflags & flags::VM != 0 {
            CodeSize::Bits16
        } else if self.efer & cr::EFER_LMA != 0 && code & attribute::LONG != 0 {
            CodeSize::Bits64
        } else if code & attribute::BIG != 0 {
            CodeSize::Bits32
        } else {
            CodeSize::Bits16
        }
    }
}
