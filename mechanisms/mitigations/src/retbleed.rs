//! Retbleed (CVE-2022-29900, CVE-2022-29901): returns are predicted like indirect branches, by what
//! a program has trained: on AMD always, on Intel when the return stack runs empty. Met on Intel by
//! IBRS (at every entry, or enhanced), on AMD by a return thunk that untrains the predictor, or by
//! IBPB at every entry. Option: `retbleed=`, a list.

use core::fmt;

use crate::facts::arch_cap::RSBA;
use crate::indirect_target_selection::IndirectTargetSelection;
use crate::options::{CrossThread, Options};
use crate::select::{Input, NOT_AFFECTED, VULNERABLE};
use crate::spec_rstack_overflow::{self, SpecRstackOverflow};
use crate::spectre_v2::{Mode as V2, SpectreV2};
use crate::spectre_v2_user::SpectreV2User;
use crate::table::{Row, is_amd_like, listed, never_speculates};
use crate::{Facts, Vendor, model};

/// The means that was asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are the option's values")]
pub enum Means {
    #[default]
    Auto,
    Off,
    Unret,
    Ibpb,
    Stuff,
}

/// What was asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wish {
    means: Means,
    nosmt: bool,
    force: bool,
}

pub(crate) fn parse<'a>(options: &mut Options, value: &'a str, mut bad: impl FnMut(&'a str)) {
    let wish = &mut options.retbleed;
    for word in value.split(',') {
        match word {
            "off" => wish.means = Means::Off,
            "auto" => wish.means = Means::Auto,
            "unret" => wish.means = Means::Unret,
            "ibpb" => wish.means = Means::Ibpb,
            "stuff" => wish.means = Means::Stuff,
            "nosmt" => wish.nosmt = true,
            "force" => wish.force = true,
            _ => bad(word),
        }
    }
}

const LISTED: [Row; 15] = [
    Row::intel(model::SKYLAKE_X),
    Row::intel(model::SKYLAKE_L),
    Row::intel(model::SKYLAKE),
    Row::intel(model::KABYLAKE_L),
    Row::intel(model::KABYLAKE),
    Row::intel(model::CANNONLAKE_L),
    Row::intel(model::ICELAKE_L),
    Row::intel(model::COMETLAKE),
    Row::intel(model::COMETLAKE_L),
    Row::intel(model::LAKEFIELD),
    Row::intel(model::ROCKETLAKE),
    Row::amd(0x15),
    Row::amd(0x16),
    Row::amd(0x17),
    Row::hygon(0x18),
];

pub(crate) fn affects(facts: &Facts) -> bool {
    let listed = listed(facts, &LISTED) || facts.arch_cap(RSBA);
    !never_speculates(facts) && !facts.btc_no() && listed
}

/// How it is met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are those of the reports")]
pub enum Mode {
    None,
    Unret,
    Ibpb,
    Ibrs,
    Eibrs,
    Stuff,
}

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retbleed {
    affected: bool,
    /// How it is met.
    pub mode: Mode,
    is_amd: bool,
    smt_active: bool,
    has_stibp: bool,
}

pub(crate) fn select(input: &Input<'_>) -> Retbleed {
    let (facts, wish, built) = (input.facts, input.options.retbleed, input.built);
    let affected = affects(facts) || wish.force;
    let is_intel = facts.vendor == Vendor::Intel;
    let by_option = match wish.means {
        Means::Off => Some(Mode::None),
        Means::Unret if built.untrained_returns => Some(Mode::Unret),
        Means::Ibpb if facts.ibpb() => Some(Mode::Ibpb),
        Means::Stuff if built.call_depth && is_intel => Some(Mode::Stuff),
        _ => None,
    };
    let mode = match by_option {
        _ if !affected => Mode::None,
        Some(mode) => mode,
        None if !input.options.protects_kernel() => Mode::None,
        None if is_amd_like(facts) && built.untrained_returns => Mode::Unret,
        None if is_amd_like(facts) && facts.ibpb() => Mode::Ibpb,
        None if is_intel && facts.enhanced_ibrs() => Mode::Eibrs,
        None if is_intel && facts.ibrs() => Mode::Ibrs,
        None => Mode::None,
    };
    Retbleed {
        affected,
        mode,
        is_amd: is_amd_like(facts),
        smt_active: input.smt_active,
        has_stibp: false,
    }
}

impl Retbleed {
    /// On Intel the way in which the kernel's branches are made decides; and who fills the return
    /// stack or flushes at every entry has met this as well.
    pub(crate) fn update(
        &mut self,
        input: &Input<'_>,
        v2: &SpectreV2,
        srso: &SpecRstackOverflow,
        its: &IndirectTargetSelection,
    ) {
        if !self.affected {
            return;
        }
        if its.stuffs() {
            self.mode = Mode::Stuff;
        }
        if srso.mode == spec_rstack_overflow::Mode::Ibpb {
            self.mode = Mode::Ibpb;
        }
        if self.mode == Mode::Stuff && !(input.built.call_depth && v2.mode.has_retpolines()) {
            self.mode = Mode::None;
        }
        if input.facts.vendor == Vendor::Intel {
            self.mode = match v2.mode {
                V2::Ibrs => Mode::Ibrs,
                mode if mode.is_eibrs() => Mode::Eibrs,
                _ if self.mode == Mode::Stuff => Mode::Stuff,
                _ => Mode::None,
            };
        }
    }

    pub(crate) fn with_stibp(self, user: &SpectreV2User) -> Self {
        Self { has_stibp: user.stibp.is_everybody(), ..self }
    }

    /// Whether IBRS at every entry is worth it for this.
    pub(crate) fn wants_ibrs(&self) -> bool {
        !matches!(self.mode, Mode::None | Mode::Stuff)
    }

    /// Whether the predictor is cleaned at every entry.
    pub(crate) fn untrains(&self) -> bool {
        matches!(self.mode, Mode::Unret | Mode::Ibpb)
    }
}

pub(crate) fn wants_one_thread(input: &Input<'_>, chosen: &Retbleed) -> bool {
    let asked = input.options.retbleed.nosmt || input.options.cross_thread == CrossThread::On;
    chosen.untrains() && !input.facts.stibp() && asked
}

impl fmt::Display for Retbleed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.mode {
            _ if !self.affected => return f.write_str(NOT_AFFECTED),
            Mode::None => return f.write_str(VULNERABLE),
            Mode::Ibrs => return f.write_str("Mitigation: IBRS"),
            Mode::Eibrs => return f.write_str("Mitigation: Enhanced IBRS"),
            Mode::Stuff => return f.write_str("Mitigation: Stuffing"),
            Mode::Unret | Mode::Ibpb if !self.is_amd => {
                return f
                    .write_str("Vulnerable: untrained return thunk / IBPB on non-AMD based uarch");
            }
            Mode::Unret => "Mitigation: untrained return thunk",
            Mode::Ibpb => "Mitigation: IBPB",
        };
        let threads = match (self.smt_active, self.has_stibp) {
            (false, _) => "disabled",
            (true, true) => "enabled with STIBP protection",
            (true, false) => "vulnerable",
        };
        write!(f, "{state}; SMT {threads}")
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::facts::Smt;
    use crate::select::{Built, select};
    use std::string::ToString as _;

    fn report(facts: &Facts, line: &str, built: &Built) -> std::string::String {
        select(facts, &Options::parse(line, |_| ()), built).retbleed.to_string()
    }

    #[test]
    fn amd_and_intel() {
        let zen2 = Facts {
            vendor: Vendor::Amd,
            family: 0x17,
            model: 0x31,
            leaf8000_0008_ebx: 1 << 12 | 1 << 15,
            smt: Smt::Active,
            ..Facts::NONE
        };
        let skylake = Facts {
            vendor: Vendor::Intel,
            family: 6,
            model: model::SKYLAKE,
            leaf7_edx: 1 << 26 | 1 << 27,
            ..Facts::NONE
        };
        let (limen, linux) = (&Built::LIMEN, &Built::LINUX);
        let without = Built { untrained_returns: false, ..Built::LIMEN };
        let uncounted = Built { call_depth: false, ..Built::LIMEN };
        let unret = "Mitigation: untrained return thunk; SMT enabled with STIBP protection";
        let ibpb = "Mitigation: IBPB; SMT enabled with STIBP protection";
        for (facts, line, built, wanted) in [
            (&zen2, "", linux, unret),
            (&zen2, "", limen, unret),
            (&zen2, "", &without, ibpb),
            (&zen2, "retbleed=unret spec_rstack_overflow=off", limen, unret),
            (&zen2, "retbleed=stuff", limen, unret),
            (&zen2, "spec_rstack_overflow=ibpb", limen, ibpb),
            (&zen2, "retbleed=ibpb", linux, ibpb),
            (&zen2, "retbleed=off spec_rstack_overflow=off", limen, "Vulnerable"),
            (&zen2, "retbleed=off", linux, "Vulnerable"),
            (&skylake, "", limen, "Mitigation: IBRS"),
            (&skylake, "retbleed=off", limen, "Vulnerable"),
            (&skylake, "spectre_v2=retpoline", limen, "Vulnerable"),
            (&skylake, "retbleed=stuff", linux, "Mitigation: Stuffing"),
            (&skylake, "retbleed=stuff spectre_v2=retpoline", limen, "Mitigation: Stuffing"),
            (&skylake, "retbleed=stuff spectre_v2=retpoline", &uncounted, "Vulnerable"),
            (&skylake, "retbleed=stuff", &uncounted, "Mitigation: IBRS"),
            (&skylake, "retbleed=stuff spectre_v2=ibrs", limen, "Mitigation: IBRS"),
            (&skylake, "retbleed=stuff spectre_v2=off", limen, "Vulnerable"),
            (&skylake, "mitigations=auto;no_user_kernel,no_guest_host", limen, "Vulnerable"),
        ] {
            assert_eq!(report(facts, line, built), wanted, "{line}");
        }
        let told = Facts { leaf8000_0008_ebx: 1 << 29, ..zen2 };
        assert_eq!(report(&told, "", linux), NOT_AFFECTED);
    }

    #[test]
    fn a_list_names_its_bad_words() {
        let mut bad = std::vec::Vec::new();
        let options = Options::parse("retbleed=ibpb,nosmd,nosmt", |word| bad.push(word.value));
        assert_eq!(bad, ["nosmd"]);
        assert_eq!(options.retbleed, Wish { means: Means::Ibpb, nosmt: true, force: false });
    }
}
