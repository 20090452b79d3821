//! What a CPU says of itself, as far as mitigations depend on it: identity, CPUID words, MSRs.
//!
//! Everything is plain data, so that a table on the host, a test and the booted kernel ask the same
//! function. [`Facts::parse`] reads the text form: words `name=value` or `name:value`, separated by
//! blanks, commas or line ends, `#` begins a comment. Bits are named as in SDM volume 2 (CPUID) and
//! volume 4 (MSRs), and in AMD's APM volume 3, appendix E.

use core::fmt;

/// Who made the CPU (CPUID leaf 0).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Vendor {
    /// GenuineIntel.
    Intel,
    /// AuthenticAMD.
    Amd,
    /// HygonGenuine.
    Hygon,
    /// CentaurHauls and Shanghai: Zhaoxin.
    Zhaoxin,
    /// Anybody else.
    #[default]
    Other,
}

const VENDORS: [(&str, Vendor); 5] = [
    ("GenuineIntel", Vendor::Intel),
    ("AuthenticAMD", Vendor::Amd),
    ("HygonGenuine", Vendor::Hygon),
    ("CentaurHauls", Vendor::Zhaoxin),
    ("  Shanghai  ", Vendor::Zhaoxin),
];

impl Vendor {
    /// From the string of CPUID leaf 0.
    #[must_use]
    pub fn from_cpuid(name: &[u8; 12]) -> Self {
        let known = VENDORS.iter().find(|(known, _)| known.as_bytes() == name);
        known.map_or(Self::Other, |&(_, vendor)| vendor)
    }

    /// The string of CPUID leaf 0.
    #[must_use]
    pub fn name(self) -> &'static str {
        VENDORS.iter().find(|&&(_, vendor)| vendor == self).map_or("Other", |&(name, _)| name)
    }
}

/// Whether two CPUs of the machine may be threads of one core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Smt {
    /// The CPU has one thread for each core.
    #[default]
    Unsupported,
    /// Some cores run more than one of this machine's CPUs.
    Active,
    /// The CPU could, and is switched off.
    Disabled,
}

/// The facts. Words that a CPU does not have are 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Who made it.
    pub vendor: Vendor,
    /// Family, the extended one added (SDM 2A, CPUID leaf 1).
    pub family: u16,
    /// Model, the extended one included.
    pub model: u8,
    /// Stepping.
    pub stepping: u8,
    /// Revision of the microcode; 0 if unknown.
    pub microcode: u32,
    /// CPUID.1:ECX.
    pub leaf1_ecx: u32,
    /// CPUID.(7,0):EBX.
    pub leaf7_ebx: u32,
    /// CPUID.(7,0):EDX.
    pub leaf7_edx: u32,
    /// CPUID.(7,2):EDX.
    pub leaf7_2_edx: u32,
    /// CPUID.1AH:EAX, of the CPU that booted.
    pub leaf1a_eax: u32,
    /// CPUID.80000008H:EBX.
    pub leaf8000_0008_ebx: u32,
    /// CPUID.80000021H:EAX.
    pub leaf8000_0021_eax: u32,
    /// CPUID.80000021H:ECX.
    pub leaf8000_0021_ecx: u32,
    /// `IA32_ARCH_CAPABILITIES`, MSR 0x10a; 0 without it.
    pub arch_capabilities: u64,
    /// `IA32_MCU_OPT_CTRL`, MSR 0x123; 0 without it.
    pub mcu_opt_ctrl: u64,
    /// AMD: a write of SBPB to `PRED_CMD` is accepted, which tells the microcode of SRSO where
    /// CPUID does not.
    pub sbpb_works: bool,
    /// CPUID.1:ECX of VMX or SVM, as the kernel may use it.
    pub hypervisor_inside: bool,
    /// Threads of cores.
    pub smt: Smt,
}

/// Defines functions that test one bit of one word.
macro_rules! bits {
    ($($(#[$doc:meta])* $name:ident: $word:ident[$bit:literal];)*) => {
        impl Facts {
            $(
                $(#[$doc])*
                #[must_use]
                pub const fn $name(&self) -> bool {
                    self.$word >> $bit & 1 != 0
                }
            )*
        }
    };
}

bits! {
    /// AVX.
    avx: leaf1_ecx[28];
    /// RDRAND.
    rdrand: leaf1_ecx[30];
    /// Runs under a hypervisor, which may hide or emulate things.
    hypervisor: leaf1_ecx[31];
    /// RDFSBASE and the like: programs choose their GS base freely.
    fsgsbase: leaf7_ebx[0];
    /// Restricted transactional memory.
    rtm_bit: leaf7_ebx[11];
    /// RDSEED.
    rdseed: leaf7_ebx[18];
    /// SMAP.
    smap: leaf7_ebx[20];
    /// `IA32_MCU_OPT_CTRL` controls SRBDS.
    srbds_ctrl: leaf7_edx[9];
    /// VERW clears buffers.
    md_clear: leaf7_edx[10];
    /// Every transaction aborts.
    rtm_always_abort: leaf7_edx[11];
    /// Cores of two kinds.
    hybrid: leaf7_edx[15];
    /// IBRS and IBPB, in Intel's place.
    intel_spec_ctrl: leaf7_edx[26];
    /// STIBP, in Intel's place.
    intel_stibp: leaf7_edx[27];
    /// `IA32_FLUSH_CMD` flushes the L1 data cache.
    flush_l1d: leaf7_edx[28];
    /// `IA32_ARCH_CAPABILITIES` exists.
    has_arch_capabilities: leaf7_edx[29];
    /// `SPEC_CTRL.SSBD` exists.
    intel_ssbd: leaf7_edx[31];
    /// `SPEC_CTRL.RRSBA_DIS_S` exists.
    rrsba_ctrl: leaf7_2_edx[2];
    /// `SPEC_CTRL.BHI_DIS_S` exists: branch history of Alder Lake and later.
    bhi_ctrl: leaf7_2_edx[4];
    /// IBPB, in AMD's place.
    amd_ibpb: leaf8000_0008_ebx[12];
    /// IBRS, in AMD's place.
    amd_ibrs: leaf8000_0008_ebx[14];
    /// STIBP, in AMD's place.
    amd_stibp: leaf8000_0008_ebx[15];
    /// STIBP may stay on.
    stibp_always_on: leaf8000_0008_ebx[17];
    /// `SPEC_CTRL.SSBD`, in AMD's place.
    amd_ssbd: leaf8000_0008_ebx[24];
    /// `VIRT_SPEC_CTRL` exists (a hypervisor's).
    virt_ssbd_bit: leaf8000_0008_ebx[25];
    /// Not affected by speculative store bypass.
    amd_ssb_no: leaf8000_0008_ebx[26];
    /// Not affected by branch type confusion.
    btc_no: leaf8000_0008_ebx[29];
    /// IBPB clears the predictions of returns too.
    ibpb_ret: leaf8000_0008_ebx[30];
    /// LFENCE waits for all before it, always.
    lfence_always_serializing: leaf8000_0021_eax[2];
    /// VERW clears buffers (AMD).
    verw_clear: leaf8000_0021_eax[5];
    /// `EFER.AIBRSE` exists.
    auto_ibrs: leaf8000_0021_eax[8];
    /// `PRED_CMD.SBPB` exists, by CPUID.
    sbpb_bit: leaf8000_0021_eax[27];
    /// IBPB clears the predictions of branch types, by CPUID.
    ibpb_brtype_bit: leaf8000_0021_eax[28];
    /// Not affected by SRSO.
    srso_no: leaf8000_0021_eax[29];
    /// Not affected by SRSO between programs and the kernel.
    srso_user_kernel_no: leaf8000_0021_eax[30];
    /// `BP_CFG.BpSpecReduce` exists.
    bp_spec_reduce: leaf8000_0021_eax[31];
    /// Not affected by TSA-SQ.
    tsa_sq_no: leaf8000_0021_ecx[1];
    /// Not affected by TSA-L1.
    tsa_l1_no: leaf8000_0021_ecx[2];
}

/// Bits of `IA32_ARCH_CAPABILITIES` (SDM 4, table 2-2).
pub mod arch_cap {
    #![expect(missing_docs, reason = "the names of the manual")]
    pub const RDCL_NO: u64 = 1;
    pub const IBRS_ALL: u64 = 1 << 1;
    pub const RSBA: u64 = 1 << 2;
    pub const SKIP_L1DFL_VMENTRY: u64 = 1 << 3;
    pub const SSB_NO: u64 = 1 << 4;
    pub const MDS_NO: u64 = 1 << 5;
    pub const PSCHANGE_MC_NO: u64 = 1 << 6;
    pub const TSX_CTRL: u64 = 1 << 7;
    pub const TAA_NO: u64 = 1 << 8;
    pub const SBDR_SSDP_NO: u64 = 1 << 13;
    pub const FBSDP_NO: u64 = 1 << 14;
    pub const PSDP_NO: u64 = 1 << 15;
    pub const FB_CLEAR: u64 = 1 << 17;
    pub const RRSBA: u64 = 1 << 19;
    pub const BHI_NO: u64 = 1 << 20;
    pub const PBRSB_NO: u64 = 1 << 24;
    pub const GDS_CTRL: u64 = 1 << 25;
    pub const GDS_NO: u64 = 1 << 26;
    pub const RFDS_NO: u64 = 1 << 27;
    pub const RFDS_CLEAR: u64 = 1 << 28;
    pub const ITS_NO: u64 = 1 << 62;
}

/// Bits of `IA32_MCU_OPT_CTRL` (SDM 4, table 2-2).
pub mod mcu_opt {
    #![expect(missing_docs, reason = "the names of the manual")]
    pub const RNGDS_MITG_DIS: u64 = 1;
    pub const GDS_MITG_DIS: u64 = 1 << 4;
    pub const GDS_MITG_LOCKED: u64 = 1 << 5;
}

const ATOM_CORE: u32 = 0x20;

impl Facts {
    /// A CPU that says nothing.
    pub const NONE: Self = Self {
        vendor: Vendor::Other,
        family: 0,
        model: 0,
        stepping: 0,
        microcode: 0,
        leaf1_ecx: 0,
        leaf7_ebx: 0,
        leaf7_edx: 0,
        leaf7_2_edx: 0,
        leaf1a_eax: 0,
        leaf8000_0008_ebx: 0,
        leaf8000_0021_eax: 0,
        leaf8000_0021_ecx: 0,
        arch_capabilities: 0,
        mcu_opt_ctrl: 0,
        sbpb_works: false,
        hypervisor_inside: false,
        smt: Smt::Unsupported,
    };
}

impl Facts {
    /// Whether a bit of `IA32_ARCH_CAPABILITIES` is set; never where the register does not exist.
    #[must_use]
    pub const fn arch_cap(&self, bit: u64) -> bool {
        self.has_arch_capabilities() && self.arch_capabilities & bit != 0
    }

    /// Whether the CPU that booted is a small core of a hybrid one.
    #[must_use]
    pub const fn is_atom_core(&self) -> bool {
        self.hybrid() && self.leaf1a_eax >> 24 == ATOM_CORE
    }

    /// `SPEC_CTRL` exists (MSR 0x48).
    #[must_use]
    pub const fn has_spec_ctrl(&self) -> bool {
        self.intel_spec_ctrl() || self.amd_ibrs() || self.amd_stibp() || self.amd_ssbd()
    }

    /// `SPEC_CTRL.IBRS` exists.
    #[must_use]
    pub const fn ibrs(&self) -> bool {
        self.intel_spec_ctrl() || self.amd_ibrs()
    }

    /// `PRED_CMD.IBPB` exists (MSR 0x49).
    #[must_use]
    pub const fn ibpb(&self) -> bool {
        self.intel_spec_ctrl() || self.amd_ibpb()
    }

    /// `SPEC_CTRL.STIBP` exists.
    #[must_use]
    pub const fn stibp(&self) -> bool {
        self.intel_stibp() || self.amd_stibp()
    }

    /// IBRS may be set once and stays: eIBRS, or AMD's automatic IBRS.
    #[must_use]
    pub const fn enhanced_ibrs(&self) -> bool {
        self.arch_cap(arch_cap::IBRS_ALL) || self.auto_ibrs()
    }

    /// IBPB takes the predictions of branch types with it, which SRSO asks for: by CPUID, or what
    /// the microcode of that family is known to do outside of a hypervisor.
    #[must_use]
    pub fn ibpb_brtype(&self) -> bool {
        let by_family = match self.family {
            0x17 => self.amd_ibpb(),
            family => family >= 0x19 && self.sbpb_works,
        };
        let is_amd = matches!(self.vendor, Vendor::Amd | Vendor::Hygon);
        is_amd && (self.ibpb_brtype_bit() || !self.hypervisor() && by_family)
    }

    /// `PRED_CMD.SBPB` exists.
    #[must_use]
    pub fn sbpb(&self) -> bool {
        self.sbpb_bit() || !self.hypervisor() && self.family >= 0x19 && self.sbpb_works
    }

    /// How long the branch history is, as counts of the loop that clears it.
    #[must_use]
    pub const fn bhb_loop(&self) -> crate::bhi::BhbLoop {
        if self.bhi_ctrl() { crate::bhi::BhbLoop::LONG } else { crate::bhi::BhbLoop::SHORT }
    }
}

/// A word of the text form that was not understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadFact<'a>(pub &'a str);

impl fmt::Display for BadFact<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is no fact about a CPU", self.0)
    }
}

fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

impl Facts {
    /// Reads the text form. Words that are missing are 0.
    ///
    /// # Errors
    /// The first word that is none, or whose value does not fit.
    pub fn parse(text: &str) -> Result<Self, BadFact<'_>> {
        let mut facts = Self::default();
        for line in text.lines() {
            let line = line.split('#').next().unwrap_or_default();
            let words = line.split(|c: char| c == ',' || c.is_ascii_whitespace());
            for word in words.filter(|word| !word.is_empty()) {
                facts.set(word).ok_or(BadFact(word))?;
            }
        }
        Ok(facts)
    }

    fn set(&mut self, word: &str) -> Option<()> {
        let (name, value) = word.split_once(['=', ':'])?;
        let small = || u32::try_from(number(value)?).ok();
        match name {
            "vendor" => {
                let is = |&&(known, _): &&(&str, Vendor)| known.trim() == value;
                self.vendor = VENDORS.iter().find(is)?.1;
            }
            "family" => self.family = u16::try_from(number(value)?).ok()?,
            "model" => self.model = u8::try_from(number(value)?).ok()?,
            "stepping" => self.stepping = u8::try_from(number(value)?).ok()?,
            "microcode" => self.microcode = small()?,
            "leaf1.ecx" => self.leaf1_ecx = small()?,
            "leaf7.ebx" => self.leaf7_ebx = small()?,
            "leaf7.edx" => self.leaf7_edx = small()?,
            "leaf7.2.edx" => self.leaf7_2_edx = small()?,
            "leaf1a.eax" => self.leaf1a_eax = small()?,
            "leaf80000008.ebx" => self.leaf8000_0008_ebx = small()?,
            "leaf80000021.eax" => self.leaf8000_0021_eax = small()?,
            "leaf80000021.ecx" => self.leaf8000_0021_ecx = small()?,
            "arch_capabilities" => self.arch_capabilities = number(value)?,
            "mcu_opt_ctrl" => self.mcu_opt_ctrl = number(value)?,
            "sbpb_works" => self.sbpb_works = number(value)? != 0,
            "hypervisor_inside" => self.hypervisor_inside = number(value)? != 0,
            "smt" => {
                self.smt = match value {
                    "active" => Smt::Active,
                    "disabled" => Smt::Disabled,
                    "unsupported" => Smt::Unsupported,
                    _ => return None,
                }
            }
            _ => return None,
        }
        Some(())
    }
}

impl fmt::Display for Facts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let vendor = self.vendor.name().trim();
        write!(f, "vendor:{vendor},family:{},model:{:#x}", self.family, self.model)?;
        write!(f, ",stepping:{}", self.stepping)?;
        for (name, value) in [
            ("microcode", u64::from(self.microcode)),
            ("leaf1.ecx", self.leaf1_ecx.into()),
            ("leaf7.ebx", self.leaf7_ebx.into()),
            ("leaf7.edx", self.leaf7_edx.into()),
            ("leaf7.2.edx", self.leaf7_2_edx.into()),
            ("leaf1a.eax", self.leaf1a_eax.into()),
            ("leaf80000008.ebx", self.leaf8000_0008_ebx.into()),
            ("leaf80000021.eax", self.leaf8000_0021_eax.into()),
            ("leaf80000021.ecx", self.leaf8000_0021_ecx.into()),
            ("arch_capabilities", self.arch_capabilities),
            ("mcu_opt_ctrl", self.mcu_opt_ctrl),
            ("sbpb_works", self.sbpb_works.into()),
            ("hypervisor_inside", self.hypervisor_inside.into()),
        ] {
            if value != 0 {
                write!(f, ",{name}:{value:#x}")?;
            }
        }
        f.write_str(match self.smt {
            Smt::Unsupported => "",
            Smt::Active => ",smt:active",
            Smt::Disabled => ",smt:disabled",
        })
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::string::ToString as _;

    #[test]
    fn text_and_back() {
        let text = "vendor:GenuineIntel,family:6,model:0x8f,stepping:8,leaf7.edx:0x20000000,\
                    arch_capabilities:0x2,smt:active";
        let facts = Facts::parse(text).expect("good");
        assert_eq!((facts.vendor, facts.family, facts.model), (Vendor::Intel, 6, 0x8f));
        assert!(facts.arch_cap(arch_cap::IBRS_ALL) && facts.enhanced_ibrs());
        assert_eq!(facts.to_string(), text);
        let lines = "vendor=GenuineIntel # who\nfamily=6 model=0x8f\n stepping=8, smt=active\n";
        let facts = Facts::parse(lines).expect("good");
        assert_eq!(Facts::parse(&facts.to_string()), Ok(facts));
    }

    #[test]
    fn bad_words_are_named() {
        for bad in ["vendor:Genuine", "model:256", "model", "smt:yes", "leaf9.eax:1", "family:-1"] {
            assert_eq!(Facts::parse(bad), Err(BadFact(bad)));
        }
    }

    #[test]
    fn capabilities_count_only_where_the_register_exists() {
        let facts = Facts { arch_capabilities: u64::MAX, ..Facts::default() };
        assert!(!facts.arch_cap(arch_cap::RDCL_NO));
        let facts = Facts { leaf7_edx: 1 << 29, ..facts };
        assert!(facts.arch_cap(arch_cap::ITS_NO));
    }

    #[test]
    fn vendors_of_leaf_0() {
        assert_eq!(Vendor::from_cpuid(b"GenuineIntel"), Vendor::Intel);
        assert_eq!(Vendor::from_cpuid(b"  Shanghai  "), Vendor::Zhaoxin);
        assert_eq!(Vendor::from_cpuid(b"TransmetaCPU"), Vendor::Other);
    }
}
