//! Indirect target selection (CVE-2024-28956): enhanced IBRS fails for indirect branches and
//! returns that end in the lower half of a cache line. Met by thunks in the upper half, for both;
//! returns need return thunks. Option: `indirect_target_selection=`.

use core::fmt;

use crate::facts::arch_cap::ITS_NO;
use crate::options::Options;
use crate::retbleed::{self, Retbleed};
use crate::select::{Input, NOT_AFFECTED, VULNERABLE};
use crate::spectre_v2::{Mode as V2, SpectreV2};
use crate::table::{Row, listed, never_speculates};
use crate::{Facts, Vendor, model};

/// What was asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are the option's values")]
pub enum Wish {
    #[default]
    Auto,
    Off,
    On,
    Force,
    Vmexit,
    Stuff,
}

pub(crate) fn parse(options: &mut Options, value: &str) -> Option<()> {
    options.its = match value {
        "off" => Wish::Off,
        "on" => Wish::On,
        "force" => Wish::Force,
        "vmexit" => Wish::Vmexit,
        "stuff" => Wish::Stuff,
        _ => return None,
    };
    Some(())
}

/// Those on which guests cannot do it to a hypervisor.
const GUESTS_CANNOT: [Row; 6] = [
    Row::intel(model::ICELAKE_L),
    Row::intel(model::ICELAKE_D),
    Row::intel(model::ICELAKE_X),
    Row::intel(model::TIGERLAKE_L),
    Row::intel(model::TIGERLAKE),
    Row::intel(model::ROCKETLAKE),
];
const GUESTS_CAN: [Row; 5] = [
    Row::intel(model::SKYLAKE_X).from(6),
    Row::intel(model::KABYLAKE_L).from(0xc),
    Row::intel(model::KABYLAKE).from(0xd),
    Row::intel(model::COMETLAKE),
    Row::intel(model::COMETLAKE_L),
];

/// A guest may move to any CPU, so it counts as affected unless its CPU denies it.
fn affects(facts: &Facts) -> bool {
    let denied = facts.arch_cap(ITS_NO) || facts.bhi_ctrl() || facts.vendor != Vendor::Intel;
    let listed = listed(facts, &GUESTS_CAN) || listed(facts, &GUESTS_CANNOT);
    !never_speculates(facts) && !denied && (facts.hypervisor() || listed)
}

/// How it is met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are those of the reports")]
pub enum Mode {
    Off,
    VmexitOnly,
    AlignedThunks,
    Stuff,
}

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndirectTargetSelection {
    affected: bool,
    /// How it is met.
    pub mode: Mode,
}

pub(crate) fn select(input: &Input<'_>) -> IndirectTargetSelection {
    let (facts, options, built) = (input.facts, input.options, input.built);
    let affected = affects(facts) || options.its == Wish::Force;
    let mode = match options.its {
        _ if !affected || !built.return_thunks => Mode::Off,
        Wish::Off => Mode::Off,
        Wish::Auto if !options.protects_kernel() => Mode::Off,
        Wish::Stuff if built.call_depth => Mode::Stuff,
        Wish::Vmexit if listed(facts, &GUESTS_CANNOT) => Mode::VmexitOnly,
        _ => Mode::AlignedThunks,
    };
    IndirectTargetSelection { affected, mode }
}

impl IndirectTargetSelection {
    pub(crate) fn stuffs(&self) -> bool {
        self.mode == Mode::Stuff
    }

    pub(crate) fn update(self, input: &Input<'_>, v2: &SpectreV2, retbleed: &Retbleed) -> Self {
        if !self.affected {
            return self;
        }
        let mode = match v2.mode {
            V2::None | V2::Lfence | V2::EibrsLfence => Mode::Off,
            mode if mode.has_retpolines() && retbleed.mode == retbleed::Mode::Stuff => Mode::Stuff,
            mode if self.stuffs() && !(mode.has_retpolines() && input.built.call_depth) => {
                Mode::AlignedThunks
            }
            _ => self.mode,
        };
        Self { mode, ..self }
    }
}

impl fmt::Display for IndirectTargetSelection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.mode {
            _ if !self.affected => NOT_AFFECTED,
            Mode::Off => VULNERABLE,
            Mode::VmexitOnly => "Mitigation: Vulnerable, KVM: Not affected",
            Mode::AlignedThunks => "Mitigation: Aligned branch/return thunks",
            Mode::Stuff => "Mitigation: Retpolines, Stuffing RSB",
        })
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::select::{Built, select};
    use std::string::ToString as _;

    #[test]
    fn states() {
        let ice_lake = Facts {
            vendor: Vendor::Intel,
            family: 6,
            model: model::ICELAKE_X,
            leaf7_edx: 1 << 26 | 1 << 29,
            arch_capabilities: 3,
            ..Facts::NONE
        };
        let report = |facts: &Facts, line: &str, built: &Built| {
            let options = Options::parse(line, |_| ());
            select(facts, &options, built).indirect_target_selection.to_string()
        };
        let aligned = "Mitigation: Aligned branch/return thunks";
        for (line, wanted) in [
            ("", aligned),
            ("indirect_target_selection=off", "Vulnerable"),
            ("indirect_target_selection=vmexit", "Mitigation: Vulnerable, KVM: Not affected"),
            ("indirect_target_selection=stuff", aligned),
            (
                "indirect_target_selection=stuff spectre_v2=eibrs,retpoline",
                "Mitigation: Retpolines, Stuffing RSB",
            ),
            ("spectre_v2=off", "Vulnerable"),
            ("spectre_v2=retpoline,lfence", "Vulnerable"),
        ] {
            assert_eq!(report(&ice_lake, line, &Built::LINUX), wanted, "{line}");
        }
        assert_eq!(report(&ice_lake, "", &Built::LIMEN), aligned);
        let without = Built { return_thunks: false, ..Built::LINUX };
        assert_eq!(report(&ice_lake, "", &without), "Vulnerable");
        let skylake_x = Facts { model: model::SKYLAKE_X, stepping: 5, ..ice_lake };
        assert_eq!(report(&skylake_x, "", &Built::LINUX), NOT_AFFECTED);
        let guest = Facts { leaf1_ecx: 1 << 31, ..skylake_x };
        assert_eq!(report(&guest, "", &Built::LINUX), aligned);
        assert_eq!(
            report(&Facts { leaf7_2_edx: 1 << 4, ..guest }, "", &Built::LINUX),
            NOT_AFFECTED
        );
        let cascade = Facts { stepping: 7, ..skylake_x };
        assert_eq!(report(&cascade, "indirect_target_selection=vmexit", &Built::LINUX), aligned);
    }
}
