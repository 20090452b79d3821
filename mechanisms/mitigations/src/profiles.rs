//! CPUs by name, for tables and tests: no kernel asks here. Facts are stated as bits by name, the
//! way their makers enumerate them; where microcode matters, that of the release named.
//!
//! Sources, by the mark of each row:
//!
//! - `A`: Intel's "Affected Processors: Transient Execution Attacks" (the columns that name
//!   enumeration bits), family, model and stepping from its table; microcode release of May 2025.
//! - `B`: the same before the release that brought the bit in question.
//! - `C`: AMD's processor programming references and revision guides of that family, and bulletins
//!   AMD-SB-1036, 7005 and 7029 for bits that microcode adds.
//! - `D`: CPUID of a virtual machine on that CPU, as clouds show it.

use crate::facts::{Facts, Smt, Vendor, arch_cap as cap};
use crate::model;

/// A CPU.
#[derive(Clone, Copy, Debug)]
pub struct Profile {
    /// The name to ask for it by.
    pub name: &'static str,
    /// A CPU as it is sold.
    pub sold_as: &'static str,
    /// What it says of itself.
    pub facts: Facts,
    /// Where that is from: see the file's header.
    pub source: char,
}

/// The profile with this name, in any case.
#[must_use]
pub fn find(name: &str) -> Option<&'static Profile> {
    PROFILES.iter().find(|profile| profile.name.eq_ignore_ascii_case(name))
}

const AVX_RDRAND: u32 = 1 << 28 | 1 << 30;
const GUEST: u32 = 1 << 31;
const FSGSBASE: u32 = 1;
const RTM: u32 = 1 << 11;
const RDSEED_SMAP: u32 = 1 << 18 | 1 << 20;
/// SPEC_CTRL, STIBP, SSBD.
const CONTROLS: u32 = 1 << 26 | 1 << 27 | 1 << 31;
const MD_CLEAR: u32 = 1 << 10;
const L1D_FLUSH: u32 = 1 << 28;
const SRBDS_CTRL: u32 = 1 << 9;
const CAPS: u32 = 1 << 29;
const HYBRID: u32 = 1 << 15;
const RRSBA_BHI_CTRL: u32 = 1 << 2 | 1 << 4;

const AMD_IBPB: u32 = 1 << 12;
const AMD_IBRS: u32 = 1 << 14;
const AMD_STIBP: u32 = 1 << 15;
const AMD_STIBP_ALWAYS: u32 = 1 << 17;
const AMD_SSBD: u32 = 1 << 24;
const AMD_VIRT_SSBD: u32 = 1 << 25;
const AMD_BTC_NO: u32 = 1 << 29;
const AMD_IBPB_RET: u32 = 1 << 30;
const LFENCE_WAITS: u32 = 1 << 2;
const VERW_CLEAR: u32 = 1 << 5;
const AUTO_IBRS: u32 = 1 << 8;
const SBPB_BRTYPE: u32 = 1 << 27 | 1 << 28;
const SRSO_USER_KERNEL_NO: u32 = 1 << 30;
const BP_SPEC_REDUCE: u32 = 1 << 31;
const TSA_NO: u32 = 1 << 1 | 1 << 2;

/// An Intel CPU with two threads for each core.
const fn intel(model: u8, stepping: u8, microcode: u32) -> Facts {
    Facts {
        vendor: Vendor::Intel,
        family: 6,
        model,
        stepping,
        microcode,
        leaf1_ecx: AVX_RDRAND,
        leaf7_ebx: FSGSBASE,
        hypervisor_inside: true,
        smt: Smt::Active,
        ..Facts::NONE
    }
}

const fn amd(family: u16, model: u8, stepping: u8, microcode: u32) -> Facts {
    Facts {
        vendor: Vendor::Amd,
        family,
        model,
        stepping,
        microcode,
        leaf1_ecx: AVX_RDRAND,
        leaf7_ebx: FSGSBASE | RDSEED_SMAP,
        leaf8000_0021_eax: LFENCE_WAITS,
        hypervisor_inside: true,
        smt: Smt::Active,
        ..Facts::NONE
    }
}

/// The controls of the microcode of 2018 and 2019.
const fn controls(facts: Facts) -> Facts {
    Facts { leaf7_edx: facts.leaf7_edx | CONTROLS | MD_CLEAR | L1D_FLUSH, ..facts }
}

const fn caps(facts: Facts, arch_capabilities: u64) -> Facts {
    Facts { leaf7_edx: facts.leaf7_edx | CAPS, arch_capabilities, ..facts }
}

const fn srbds(facts: Facts) -> Facts {
    Facts { leaf7_edx: facts.leaf7_edx | SRBDS_CTRL, ..facts }
}

const fn new_bits(facts: Facts) -> Facts {
    Facts { leaf7_ebx: facts.leaf7_ebx | RDSEED_SMAP, ..facts }
}

const fn tsx(facts: Facts) -> Facts {
    Facts { leaf7_ebx: facts.leaf7_ebx | RTM, ..facts }
}

const fn one_thread(facts: Facts) -> Facts {
    Facts { smt: Smt::Unsupported, ..facts }
}

const fn guest(facts: Facts) -> Facts {
    Facts { leaf1_ecx: facts.leaf1_ecx | GUEST, hypervisor_inside: false, ..facts }
}

const fn bhi_ctrl(facts: Facts) -> Facts {
    Facts { leaf7_2_edx: RRSBA_BHI_CTRL, ..facts }
}

const fn hybrid(facts: Facts, core: u32) -> Facts {
    Facts { leaf7_edx: facts.leaf7_edx | HYBRID, leaf1a_eax: core << 24, ..facts }
}

const fn ebx(facts: Facts, leaf8000_0008_ebx: u32) -> Facts {
    Facts { leaf8000_0008_ebx, ..facts }
}

const fn leaf21(facts: Facts, eax: u32, ecx: u32) -> Facts {
    let eax = facts.leaf8000_0021_eax | eax;
    Facts { leaf8000_0021_eax: eax, leaf8000_0021_ecx: ecx, ..facts }
}

const fn sbpb(facts: Facts) -> Facts {
    Facts { sbpb_works: true, ..facts }
}

const SKYLAKE_CAPS: u64 = cap::RSBA | cap::GDS_CTRL;
const CASCADE_CAPS: u64 = cap::RDCL_NO
    | cap::IBRS_ALL
    | cap::SKIP_L1DFL_VMENTRY
    | cap::MDS_NO
    | cap::TSX_CTRL
    | cap::FB_CLEAR
    | cap::RRSBA
    | cap::GDS_CTRL;
const COMET_CAPS: u64 = CASCADE_CAPS & !cap::TSX_CTRL | cap::TAA_NO;
const ICE_CAPS: u64 = CASCADE_CAPS & !cap::TSX_CTRL | cap::TAA_NO | cap::PSCHANGE_MC_NO;
const TIGER_CAPS: u64 =
    ICE_CAPS & !cap::FB_CLEAR | cap::FBSDP_NO | cap::PSDP_NO | cap::SBDR_SSDP_NO;
/// Alder Lake and Sapphire Rapids.
const GOLDEN_CAPS: u64 = cap::RDCL_NO
    | cap::IBRS_ALL
    | cap::SKIP_L1DFL_VMENTRY
    | cap::MDS_NO
    | cap::PSCHANGE_MC_NO
    | cap::TAA_NO
    | cap::SBDR_SSDP_NO
    | cap::FBSDP_NO
    | cap::PSDP_NO
    | cap::RRSBA
    | cap::GDS_NO;
const ALDER_CAPS: u64 = GOLDEN_CAPS | cap::RFDS_CLEAR;
const LATEST_CAPS: u64 = GOLDEN_CAPS | cap::PBRSB_NO | cap::RFDS_NO;
const TREMONT_CAPS: u64 = cap::RDCL_NO
    | cap::IBRS_ALL
    | cap::SKIP_L1DFL_VMENTRY
    | cap::MDS_NO
    | cap::TAA_NO
    | cap::FB_CLEAR
    | cap::RFDS_CLEAR;
const ZEN_BITS: u32 = AMD_IBPB | AMD_STIBP | AMD_SSBD;
const ZEN3_BITS: u32 =
    AMD_IBPB | AMD_IBRS | AMD_STIBP | AMD_STIBP_ALWAYS | AMD_SSBD | AMD_BTC_NO | AMD_IBPB_RET;

macro_rules! profiles {
    ($($source:literal $name:literal $sold_as:literal $facts:expr;)*) => {
        /// All of them, Intel's big cores by age, its Atoms, AMD's by age, then virtual machines.
        pub const PROFILES: &[Profile] = &[$(Profile {
            name: $name,
            sold_as: $sold_as,
            facts: $facts,
            source: $source,
        }),*];
    };
}

const A_SKYLAKE: Facts =
    srbds(caps(controls(new_bits(intel(model::SKYLAKE, 3, 0xf0))), SKYLAKE_CAPS));
const A_CASCADE: Facts =
    caps(controls(tsx(new_bits(intel(model::SKYLAKE_X, 7, 0x0500_3901)))), CASCADE_CAPS);
const A_ICE_X: Facts = caps(controls(new_bits(intel(model::ICELAKE_X, 6, 0x0d00_0404))), ICE_CAPS);
const A_ALDER: Facts =
    bhi_ctrl(caps(controls(new_bits(intel(model::ALDERLAKE, 2, 0x3a))), ALDER_CAPS));
const A_SAPPHIRE: Facts = bhi_ctrl(caps(
    controls(new_bits(intel(model::SAPPHIRERAPIDS_X, 8, 0x2b00_0639))),
    GOLDEN_CAPS | cap::RFDS_NO | cap::TSX_CTRL,
));
const C_MILAN: Facts = ebx(sbpb(amd(0x19, 0x01, 1, 0x0a00_11d7)), ZEN3_BITS);
const C_GENOA: Facts = leaf21(ebx(sbpb(amd(0x19, 0x11, 1, 0x0a10_114c)), ZEN3_BITS), AUTO_IBRS, 0);
const C_TURIN: Facts = leaf21(
    ebx(sbpb(amd(0x1a, 0x02, 1, 0x0b00_2147)), ZEN3_BITS),
    AUTO_IBRS | SBPB_BRTYPE | SRSO_USER_KERNEL_NO | BP_SPEC_REDUCE,
    TSA_NO,
);

profiles! {
    'A' "sandybridge" "Core i7-2600" controls(early(intel(model::SANDYBRIDGE, 7, 0x2f)));
    'A' "sandybridge-ep" "Xeon E5-2670" controls(early(intel(model::SANDYBRIDGE_X, 7, 0x71a)));
    'A' "ivybridge" "Core i7-3770" srbds(controls(intel(model::IVYBRIDGE, 9, 0x21)));
    'A' "ivybridge-ep" "Xeon E5-2697 v2" controls(intel(model::IVYBRIDGE_X, 4, 0x42e));
    'A' "haswell" "Core i7-4770" srbds(controls(tsx(intel(model::HASWELL, 3, 0x28))));
    'A' "haswell-ep" "Xeon E5-2699 v3" controls(intel(model::HASWELL_X, 2, 0x49));
    'A' "broadwell" "Core i7-5775C"
        srbds(controls(tsx(new_bits(intel(model::BROADWELL_G, 1, 0x22)))));
    'A' "broadwell-ep" "Xeon E5-2699 v4"
        controls(tsx(new_bits(intel(model::BROADWELL_X, 1, 0x0b00_0040))));
    'A' "skylake" "Core i7-6700" A_SKYLAKE;
    'B' "skylake-2017" "Core i7-6700, microcode of 2017" Facts {
        leaf7_edx: 0, arch_capabilities: 0, microcode: 0xba, ..tsx(A_SKYLAKE)
    };
    'A' "skylake-sp" "Xeon Platinum 8180" caps(
        controls(tsx(new_bits(intel(model::SKYLAKE_X, 4, 0x0200_7006)))), SKYLAKE_CAPS);
    'A' "kabylake" "Core i7-7700T"
        srbds(caps(controls(new_bits(intel(model::KABYLAKE, 9, 0xf8))), SKYLAKE_CAPS));
    'A' "coffeelake-r" "Core i9-9900K" srbds(caps(
        controls(tsx(new_bits(intel(model::KABYLAKE, 13, 0x104)))), CASCADE_CAPS));
    'A' "cascadelake" "Xeon Platinum 8280" A_CASCADE;
    'A' "cascadelake-tsx" "Xeon Platinum 8280, as it came, without TSX_CTRL" Facts {
        arch_capabilities: CASCADE_CAPS & !cap::TSX_CTRL, ..A_CASCADE
    };
    'A' "cooperlake" "Xeon Platinum 8380H" caps(
        controls(tsx(new_bits(intel(model::SKYLAKE_X, 11, 0x0700_2b01)))),
        CASCADE_CAPS & !cap::TSX_CTRL | cap::TAA_NO);
    'A' "cometlake" "Core i9-10900K"
        srbds(caps(controls(new_bits(intel(model::COMETLAKE, 5, 0xfe))), COMET_CAPS));
    'A' "icelake" "Core i7-1065G7"
        srbds(caps(controls(new_bits(intel(model::ICELAKE_L, 5, 0xca))), ICE_CAPS));
    'A' "icelake-sp" "Xeon Platinum 8380" A_ICE_X;
    'A' "tigerlake" "Core i7-1185G7"
        caps(controls(new_bits(intel(model::TIGERLAKE_L, 1, 0xbc))), TIGER_CAPS);
    'A' "rocketlake" "Core i9-11900K"
        caps(controls(new_bits(intel(model::ROCKETLAKE, 1, 0x64))), ICE_CAPS);
    'A' "alderlake-p-core" "Core i9-12900K" hybrid(A_ALDER, 0x40);
    'A' "alderlake-e-core" "Core i9-12900K, booted on a small core" hybrid(A_ALDER, 0x20);
    'A' "alderlake-mobile" "Core i7-1260P"
        hybrid(Facts { model: model::ALDERLAKE_L, stepping: 3, microcode: 0x437, ..A_ALDER }, 0x40);
    'A' "raptorlake" "Core i9-13900K"
        hybrid(Facts { model: model::RAPTORLAKE, stepping: 1, microcode: 0x12f, ..A_ALDER }, 0x40);
    'A' "meteorlake" "Core Ultra 7 155H" hybrid(bhi_ctrl(caps(
        controls(new_bits(intel(model::METEORLAKE_L, 4, 0x24))), LATEST_CAPS)), 0x40);
    'A' "arrowlake" "Core Ultra 9 285K" one_thread(hybrid(bhi_ctrl(caps(
        controls(new_bits(intel(model::ARROWLAKE, 2, 0x118))), LATEST_CAPS)), 0x40));
    'A' "lunarlake" "Core Ultra 7 258V" one_thread(hybrid(bhi_ctrl(caps(
        controls(new_bits(intel(model::LUNARLAKE_M, 1, 0x11b))), LATEST_CAPS)), 0x40));
    'A' "sapphirerapids" "Xeon Platinum 8480+" A_SAPPHIRE;
    'A' "emeraldrapids" "Xeon Platinum 8592+"
        Facts { model: model::EMERALDRAPIDS_X, stepping: 2, microcode: 0x2100_02a9, ..A_SAPPHIRE };
    'A' "graniterapids" "Xeon 6980P" bhi_ctrl(caps(
        controls(new_bits(intel(model::GRANITERAPIDS_X, 1, 0x0a00_0100))), LATEST_CAPS));
    'A' "sierraforest" "Xeon 6780E" one_thread(bhi_ctrl(caps(
        controls(new_bits(intel(model::ATOM_CRESTMONT_X, 3, 0x0300_0341))), LATEST_CAPS)));
    'A' "bonnell" "Atom N270" Facts { leaf1_ecx: 0, ..intel(model::ATOM_BONNELL, 2, 0x218) };
    'A' "silvermont" "Atom C2750"
        one_thread(Facts {
            leaf1_ecx: 1 << 30, ..controls(intel(model::ATOM_SILVERMONT_D, 8, 0x12d))
        });
    'A' "goldmont" "Atom C3955" one_thread(caps(Facts {
        leaf1_ecx: 1 << 30, ..controls(new_bits(intel(model::ATOM_GOLDMONT_D, 1, 0x3e)))
    }, cap::SKIP_L1DFL_VMENTRY | cap::RFDS_CLEAR));
    'A' "tremont" "Pentium Silver N6005" one_thread(caps(Facts {
        leaf1_ecx: 1 << 30, ..controls(new_bits(intel(model::ATOM_TREMONT_L, 0, 0x2400_0026)))
    }, TREMONT_CAPS));
    'A' "gracemont" "N100" one_thread(bhi_ctrl(caps(
        controls(new_bits(intel(model::ATOM_GRACEMONT, 0, 0x1d))), ALDER_CAPS)));
    'A' "knightslanding" "Xeon Phi 7290"
        Facts { leaf7_edx: CONTROLS | MD_CLEAR, ..intel(model::XEON_PHI_KNL, 1, 0x1b8) };
    'C' "bulldozer" "FX-8150"
        one_thread(ebx(Facts { leaf7_ebx: 0, ..amd(0x15, 0x01, 2, 0x0600_063e) }, AMD_IBPB));
    'C' "k10" "Phenom II X6 1090T" one_thread(Facts {
        leaf1_ecx: 0, leaf7_ebx: 0, ..amd(0x10, 0x0a, 0, 0x0100_00dc)
    });
    'C' "zen1" "EPYC 7601" ebx(amd(0x17, 0x01, 2, 0x0800_126e), AMD_IBPB);
    'C' "zen2" "EPYC 7742" ebx(amd(0x17, 0x31, 0, 0x0830_107c), ZEN_BITS | AMD_STIBP_ALWAYS);
    'C' "zen2-mobile" "Ryzen 3 5300U"
        ebx(amd(0x17, 0x68, 1, 0x0860_8103), ZEN_BITS | AMD_STIBP_ALWAYS);
    'C' "zen3" "EPYC 7763" C_MILAN;
    'C' "zen3-2021" "EPYC 7763, microcode of 2021" Facts {
        microcode: 0x0a00_1119, sbpb_works: false, ..C_MILAN
    };
    'C' "zen4" "EPYC 9654" C_GENOA;
    'C' "zen4-desktop" "Ryzen 9 7950X"
        Facts { model: 0x61, stepping: 2, microcode: 0x0a60_120a, ..C_GENOA };
    'C' "zen5" "EPYC 9755" C_TURIN;
    'C' "zen5-desktop" "Ryzen 9 9950X"
        Facts { model: 0x44, stepping: 0, microcode: 0x0b40_4023, ..C_TURIN };
    'C' "hygon" "C86 7185" Facts {
        vendor: Vendor::Hygon, family: 0x18, model: 0, ..ebx(amd(0x17, 0, 2, 0), AMD_IBPB)
    };
    'D' "skylake-guest" "a guest on Xeon Platinum 8171M" guest(Facts {
        leaf7_edx: 0, arch_capabilities: 0, microcode: u32::MAX,
        ..tsx(new_bits(intel(model::SKYLAKE_X, 4, 0)))
    });
    'D' "cascadelake-guest" "a guest on Xeon Platinum 8272CL" guest(Facts {
        microcode: u32::MAX, arch_capabilities: CASCADE_CAPS & !cap::GDS_CTRL, ..A_CASCADE
    });
    'D' "sapphirerapids-guest" "a guest on Xeon Platinum 8481C"
        guest(Facts { microcode: u32::MAX, ..A_SAPPHIRE });
    'D' "zen2-guest" "a guest on EPYC 7452" guest(ebx(
        amd(0x17, 0x31, 0, 0x0830_1055), ZEN_BITS | AMD_STIBP_ALWAYS | AMD_VIRT_SSBD));
    'D' "zen3-guest" "a guest on EPYC 7763, no speculation controls"
        one_thread(guest(ebx(amd(0x19, 0x01, 1, u32::MAX), 0)));
    'D' "zen4-guest" "a guest on EPYC 9R14" guest(leaf21(C_GENOA, VERW_CLEAR | SBPB_BRTYPE, 0));
    'D' "zen5-guest" "a guest on an EPYC of Zen 5, no speculation controls"
        one_thread(guest(leaf21(amd(0x1a, 0x02, 1, 0x0100_0065), 0, TSA_NO)));
}

/// Neither FSGSBASE nor RDRAND, which came with Ivy Bridge.
const fn early(facts: Facts) -> Facts {
    Facts { leaf1_ecx: 1 << 28, leaf7_ebx: 0, ..facts }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_found() {
        for (index, profile) in PROFILES.iter().enumerate() {
            let first = PROFILES.iter().position(|other| other.name == profile.name);
            assert_eq!(first, Some(index), "{}", profile.name);
            assert!(matches!(profile.source, 'A'..='D'));
        }
        assert!(PROFILES.len() >= 40);
        assert_eq!(find("Zen4").map(|found| found.sold_as), Some("EPYC 9654"));
        assert!(find("8086").is_none());
    }

    #[test]
    fn facts_survive_their_text_form() {
        extern crate std;
        use std::string::ToString as _;
        for profile in PROFILES {
            assert_eq!(Facts::parse(&profile.facts.to_string()), Ok(profile.facts));
        }
    }
}
