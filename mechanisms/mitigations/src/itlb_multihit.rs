//! iTLB multihit (CVE-2018-12207): a page whose size changes under the instruction TLB ends the
//! machine with a machine check, which a guest can bring about where it may execute large pages.
//! Met by a hypervisor for VMX, which gives none.

use core::fmt;

use crate::facts::arch_cap::PSCHANGE_MC_NO;
use crate::select::{Input, NOT_AFFECTED};
use crate::table::{Row, is_amd_like, listed, never_speculates};
use crate::{Facts, Vendor, model};

const NOT_LISTED: [Row; 12] = [
    Row::intel(model::ATOM_SILVERMONT),
    Row::intel(model::ATOM_SILVERMONT_D),
    Row::intel(model::ATOM_SILVERMONT_MID),
    Row::intel(model::ATOM_AIRMONT),
    Row::intel(model::ATOM_AIRMONT_MID),
    Row::intel(model::ATOM_AIRMONT_NP),
    Row::intel(model::ATOM_GOLDMONT),
    Row::intel(model::ATOM_GOLDMONT_D),
    Row::intel(model::ATOM_GOLDMONT_PLUS),
    Row::intel(model::ATOM_TREMONT_D),
    Row::intel(model::XEON_PHI_KNL),
    Row::intel(model::XEON_PHI_KNM),
];

fn affects(facts: &Facts) -> bool {
    let is_listed = is_amd_like(facts) || never_speculates(facts) || listed(facts, &NOT_LISTED);
    facts.vendor != Vendor::Zhaoxin && !is_listed && !facts.arch_cap(PSCHANGE_MC_NO)
}

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ItlbMultihit {
    /// The CPU does not do it.
    NotAffected,
    /// No guest runs on VMX here.
    NoVmx,
    /// Large pages of guests are not executable.
    SplitHugePages,
}

pub(crate) fn select(input: &Input<'_>) -> ItlbMultihit {
    match affects(input.facts) {
        false => ItlbMultihit::NotAffected,
        true if input.built.vmx && input.facts.hypervisor_inside => ItlbMultihit::SplitHugePages,
        true => ItlbMultihit::NoVmx,
    }
}

impl fmt::Display for ItlbMultihit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotAffected => NOT_AFFECTED,
            Self::NoVmx => "KVM: Mitigation: VMX unsupported",
            Self::SplitHugePages => "KVM: Mitigation: Split huge pages",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::select::{Built, select};

    #[test]
    fn states() {
        let skylake =
            Facts { vendor: Vendor::Intel, family: 6, model: model::SKYLAKE, ..Facts::NONE };
        let chosen = |facts: &Facts, built: &Built| {
            select(facts, &crate::Options::default(), built).itlb_multihit
        };
        assert_eq!(chosen(&skylake, &Built::LIMEN), ItlbMultihit::NoVmx);
        let host = Facts { hypervisor_inside: true, ..skylake };
        assert_eq!(chosen(&host, &Built::LINUX), ItlbMultihit::SplitHugePages);
        assert_eq!(chosen(&host, &Built::LIMEN), ItlbMultihit::NoVmx);
        let new = Facts { leaf7_edx: 1 << 29, arch_capabilities: PSCHANGE_MC_NO, ..skylake };
        assert_eq!(chosen(&new, &Built::LINUX), ItlbMultihit::NotAffected);
        let atom = Facts { model: model::ATOM_GOLDMONT, ..skylake };
        assert_eq!(chosen(&atom, &Built::LINUX), ItlbMultihit::NotAffected);
    }
}
