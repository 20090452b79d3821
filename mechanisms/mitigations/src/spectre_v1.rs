//! Spectre variant 1 (CVE-2017-5753, CVE-2019-1125): code behind a mispredicted check runs with
//! the value that was refused. A program's pointers and indices are masked always, at no choice
//! (`machine::speculation`); what is chosen here are the fences around SWAPGS, on both ways of the
//! branch that asks where an interrupt came from. Option: `nospectre_v1`.

use core::fmt;

use crate::Facts;
use crate::meltdown;
use crate::options::Vector;
use crate::select::{Input, NOT_AFFECTED};
use crate::table::{Row, is_amd_like, listed, never_speculates};
use crate::{Vendor, model};

/// What was asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wish {
    /// Fences where they are needed.
    #[default]
    Auto,
    /// None.
    Off,
}

pub(crate) fn affects(facts: &Facts) -> bool {
    !never_speculates(facts)
}

/// CPUs on which nothing runs ahead past SWAPGS itself.
const SWAPGS_WAITS: [Row; 11] = [
    Row::intel(model::ATOM_SILVERMONT),
    Row::intel(model::ATOM_SILVERMONT_D),
    Row::intel(model::ATOM_SILVERMONT_MID),
    Row::intel(model::ATOM_AIRMONT),
    Row::intel(model::ATOM_AIRMONT_MID),
    Row::intel(model::ATOM_AIRMONT_NP),
    Row::intel(model::ATOM_GOLDMONT),
    Row::intel(model::ATOM_GOLDMONT_D),
    Row::intel(model::ATOM_GOLDMONT_PLUS),
    Row::intel(model::XEON_PHI_KNL),
    Row::intel(model::XEON_PHI_KNM),
];

fn swapgs_waits(facts: &Facts) -> bool {
    is_amd_like(facts) || facts.vendor == Vendor::Zhaoxin || listed(facts, &SWAPGS_WAITS)
}

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpectreV1 {
    affected: bool,
    mitigated: bool,
    /// A fence behind SWAPGS, where an interrupt of a program goes.
    pub fence_user: bool,
    /// A fence where SWAPGS was passed by, where an interrupt of the kernel goes.
    pub fence_kernel: bool,
}

pub(crate) fn select(input: &Input<'_>) -> SpectreV1 {
    let facts = input.facts;
    let affected = affects(facts);
    let asked = input.options.spectre_v1 == Wish::Auto;
    let mitigated = affected && asked && input.options.meets(&[Vector::UserKernel]);
    // Without FSGSBASE programs can put only their own addresses into GS, which SMAP keeps from
    // speculation too, but where Meltdown passes it by.
    let smap_holds = facts.smap() && !meltdown::affects(facts);
    let dangerous = mitigated && (facts.fsgsbase() || !smap_holds);
    let pti = meltdown::select(input).pti;
    SpectreV1 {
        affected,
        mitigated,
        // The write of CR3 behind it is a fence as well.
        fence_user: dangerous && !swapgs_waits(facts) && !pti,
        fence_kernel: dangerous,
    }
}

impl fmt::Display for SpectreV1 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match (self.affected, self.mitigated) {
            (false, _) => NOT_AFFECTED,
            (true, true) => "Mitigation: usercopy/swapgs barriers and __user pointer sanitization",
            (true, false) => {
                "Vulnerable: __user pointer sanitization and usercopy barriers only; no swapgs \
                 barriers"
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Options;
    use crate::select::{Built, select};

    #[test]
    fn fences_stand_where_a_program_can_choose_gs() {
        let fences = |facts: &Facts, line: &str| {
            let options = Options::parse(line, |_| ());
            let chosen = select(facts, &options, &Built::LIMEN).spectre_v1;
            (chosen.fence_user, chosen.fence_kernel)
        };
        let safe = Facts {
            vendor: Vendor::Intel,
            family: 6,
            model: model::SAPPHIRERAPIDS_X,
            leaf7_ebx: 1 << 20,
            leaf7_edx: 1 << 29,
            arch_capabilities: 1,
            ..Facts::default()
        };
        assert_eq!(fences(&safe, ""), (false, false));
        let fsgsbase = Facts { leaf7_ebx: 1 << 20 | 1, ..safe };
        assert_eq!(fences(&fsgsbase, ""), (true, true));
        assert_eq!(fences(&fsgsbase, "pti=on"), (false, true));
        assert_eq!(fences(&fsgsbase, "nospectre_v1"), (false, false));
        assert_eq!(fences(&fsgsbase, "mitigations=auto;no_user_kernel"), (false, false));
        let amd = Facts { vendor: Vendor::Amd, family: 0x1a, leaf7_ebx: 1, ..Facts::default() };
        assert_eq!(fences(&amd, ""), (false, true));
    }
}
