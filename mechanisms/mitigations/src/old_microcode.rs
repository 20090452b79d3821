//! Old microcode: a CPU whose microcode is older than the one that its maker has published is
//! affected by what was mended since. Nothing in the kernel can meet that; the file tells it.

use core::fmt;

use crate::select::{Input, NOT_AFFECTED, VULNERABLE};
use crate::{Facts, Vendor, model};

/// What the file says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OldMicrocode {
    /// Not older than the list, or not in it.
    NotAffected,
    /// Older.
    Old,
    /// Older by its number, which a hypervisor made up.
    Unknown,
}

/// Revisions in Intel's release of May 2025, by model and stepping.
const PUBLISHED: [(u8, u8, u32); 24] = [
    (model::HASWELL_X, 2, 0x49),
    (model::BROADWELL_X, 1, 0x0b00_0040),
    (model::SKYLAKE_X, 4, 0x0200_7006),
    (model::SKYLAKE_X, 7, 0x0500_3901),
    (model::SKYLAKE_X, 11, 0x0700_2b01),
    (model::SKYLAKE_L, 3, 0xf0),
    (model::SKYLAKE, 3, 0xf0),
    (model::KABYLAKE_L, 9, 0xf6),
    (model::KABYLAKE_L, 10, 0xf6),
    (model::KABYLAKE_L, 12, 0xfc),
    (model::KABYLAKE, 9, 0xf8),
    (model::KABYLAKE, 10, 0xfa),
    (model::KABYLAKE, 13, 0x104),
    (model::ICELAKE_X, 6, 0x0d00_0404),
    (model::ICELAKE_L, 5, 0xca),
    (model::TIGERLAKE_L, 1, 0xbc),
    (model::TIGERLAKE, 1, 0x56),
    (model::ROCKETLAKE, 1, 0x64),
    (model::SAPPHIRERAPIDS_X, 8, 0x2b00_0639),
    (model::EMERALDRAPIDS_X, 2, 0x2100_02a9),
    (model::ALDERLAKE, 2, 0x3a),
    (model::ALDERLAKE_L, 3, 0x437),
    (model::RAPTORLAKE, 1, 0x12f),
    (model::LUNARLAKE_M, 1, 0x11b),
];

fn is_old(facts: &Facts) -> bool {
    let is_listed = |&&(model, stepping, _): &&(u8, u8, u32)| {
        facts.vendor == Vendor::Intel
            && (facts.family, facts.model, facts.stepping) == (6, model, stepping)
    };
    let published = PUBLISHED.iter().find(is_listed);
    published.is_some_and(|&(_, _, revision)| facts.microcode != 0 && facts.microcode < revision)
}

pub(crate) fn select(input: &Input<'_>) -> OldMicrocode {
    match is_old(input.facts) {
        false => OldMicrocode::NotAffected,
        true if input.facts.hypervisor() => OldMicrocode::Unknown,
        true => OldMicrocode::Old,
    }
}

impl fmt::Display for OldMicrocode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotAffected => NOT_AFFECTED,
            Self::Old => VULNERABLE,
            Self::Unknown => "Unknown: running under hypervisor",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::select::{Built, select};

    #[test]
    fn older_newer_and_unknown() {
        let chosen = |microcode, leaf1_ecx| {
            let facts = Facts {
                vendor: Vendor::Intel,
                family: 6,
                model: model::SAPPHIRERAPIDS_X,
                stepping: 8,
                microcode,
                leaf1_ecx,
                ..Facts::NONE
            };
            select(&facts, &crate::Options::default(), &Built::LIMEN).old_microcode
        };
        assert_eq!(chosen(0x2b00_0639, 0), OldMicrocode::NotAffected);
        assert_eq!(chosen(0x2b00_0638, 0), OldMicrocode::Old);
        assert_eq!(chosen(1, 1 << 31), OldMicrocode::Unknown);
        assert_eq!(chosen(0, 0), OldMicrocode::NotAffected);
    }
}
