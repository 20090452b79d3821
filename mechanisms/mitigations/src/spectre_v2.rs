//! Spectre variant 2 (CVE-2017-5715): indirect branches of the kernel go where a program has
//! trained the predictor. Met by a CPU that keeps the predictions of levels apart (enhanced or
//! automatic IBRS), by retpolines, or by IBRS written at every entry; with what belongs to each:
//! the return stack is filled at a switch, predictors that retpolines do not reach are switched
//! off. Programs among themselves are `spectre_v2_user`, branch history is `bhi`; the report has
//! all. Options: `spectre_v2=`, `nospectre_v2`.

use core::fmt;

use crate::bhi::Bhi;
use crate::facts::arch_cap::{PBRSB_NO, RRSBA};
use crate::options::Options;
use crate::retbleed::{self, Retbleed};
use crate::select::{Input, NOT_AFFECTED};
use crate::spectre_v2_user::SpectreV2User;
use crate::table::{Row, is_amd_like, listed, never_speculates};
use crate::{Facts, Vendor, model};

/// What was asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are the option's values")]
pub enum Wish {
    #[default]
    Auto,
    Off,
    /// As auto, and also between programs, always.
    On,
    Retpoline,
    RetpolineLfence,
    Eibrs,
    EibrsLfence,
    EibrsRetpoline,
    Ibrs,
}

pub(crate) fn parse(options: &mut Options, value: &str) -> Option<()> {
    options.spectre_v2 = match value {
        "auto" => Wish::Auto,
        "off" => Wish::Off,
        "on" => Wish::On,
        "retpoline" | "retpoline,generic" => Wish::Retpoline,
        "retpoline,lfence" | "retpoline,amd" => Wish::RetpolineLfence,
        "eibrs" => Wish::Eibrs,
        "eibrs,lfence" => Wish::EibrsLfence,
        "eibrs,retpoline" => Wish::EibrsRetpoline,
        "ibrs" => Wish::Ibrs,
        _ => return None,
    };
    Some(())
}

pub(crate) fn affects(facts: &Facts) -> bool {
    !never_speculates(facts) && facts.vendor != Vendor::Zhaoxin
}

/// CPUs with enhanced IBRS that do not use a stale return prediction behind a barrier.
const NO_PBRSB: [Row; 4] = [
    Row::intel(model::ATOM_GOLDMONT_PLUS),
    Row::intel(model::ATOM_TREMONT),
    Row::intel(model::ATOM_TREMONT_L),
    Row::intel(model::ATOM_TREMONT_D),
];

/// Post-barrier return predictions (CVE-2022-26373).
fn has_pbrsb(facts: &Facts) -> bool {
    let is_listed = is_amd_like(facts) || listed(facts, &NO_PBRSB);
    facts.enhanced_ibrs() && !is_listed && !facts.arch_cap(PBRSB_NO)
}

/// How indirect branches of the kernel are kept from a program's training.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are those of the reports")]
pub enum Mode {
    None,
    Retpoline,
    Lfence,
    Eibrs,
    EibrsLfence,
    EibrsRetpoline,
    Ibrs,
}

impl Mode {
    /// The CPU does it, always.
    #[must_use]
    pub fn is_eibrs(self) -> bool {
        matches!(self, Self::Eibrs | Self::EibrsLfence | Self::EibrsRetpoline)
    }

    /// Indirect branches go through the thunk.
    #[must_use]
    pub fn has_retpolines(self) -> bool {
        matches!(self, Self::Retpoline | Self::EibrsRetpoline)
    }

    /// An LFENCE stands before each indirect branch.
    #[must_use]
    pub fn has_lfences(self) -> bool {
        matches!(self, Self::Lfence | Self::EibrsLfence)
    }
}

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpectreV2 {
    affected: bool,
    /// How the kernel's branches are made.
    pub mode: Mode,
    /// `SPEC_CTRL.RRSBA_DIS_S`: no predictor but the return stack predicts the kernel's returns.
    pub disables_rrsba: bool,
    /// What is between programs.
    pub user: SpectreV2User,
    /// What is done about branch history.
    pub bhi: Bhi,
    has_ibpb: bool,
    /// Indirect branches of firmware are restricted, where firmware is called.
    ibrs_firmware: bool,
    auto_ibrs: bool,
    pbrsb: bool,
}

pub(crate) fn select(input: &Input<'_>) -> SpectreV2 {
    let facts = input.facts;
    let affected = affects(facts) || input.options.spectre_v2 == Wish::On;
    let mode = match possible(input) {
        _ if !affected => Mode::None,
        Wish::Off => Mode::None,
        Wish::Auto if !input.options.protects_kernel() => Mode::None,
        Wish::Auto | Wish::On if facts.enhanced_ibrs() => Mode::Eibrs,
        Wish::Auto | Wish::On | Wish::Retpoline => Mode::Retpoline,
        Wish::RetpolineLfence => Mode::Lfence,
        Wish::Eibrs => Mode::Eibrs,
        Wish::EibrsLfence => Mode::EibrsLfence,
        Wish::EibrsRetpoline => Mode::EibrsRetpoline,
        Wish::Ibrs => Mode::Ibrs,
    };
    SpectreV2 {
        affected,
        mode,
        disables_rrsba: false,
        user: SpectreV2User::NONE,
        bhi: Bhi::NONE,
        has_ibpb: facts.ibpb(),
        ibrs_firmware: false,
        auto_ibrs: facts.auto_ibrs(),
        pbrsb: has_pbrsb(facts),
    }
}

/// The wish, or auto where the CPU cannot do it.
fn possible(input: &Input<'_>) -> Wish {
    let facts = input.facts;
    let lfence_waits = facts.vendor == Vendor::Intel || is_amd_like(facts);
    let wish = input.options.spectre_v2;
    let can = match wish {
        Wish::Eibrs | Wish::EibrsRetpoline => facts.enhanced_ibrs(),
        Wish::EibrsLfence => facts.enhanced_ibrs() && lfence_waits,
        Wish::RetpolineLfence => lfence_waits,
        Wish::Ibrs => facts.vendor == Vendor::Intel && facts.ibrs(),
        Wish::Auto | Wish::Off | Wish::On | Wish::Retpoline => true,
    };
    if can { wish } else { Wish::Auto }
}

impl SpectreV2 {
    /// Retbleed on Intel wants IBRS at every entry, which then does this as well.
    pub(crate) fn update(&mut self, input: &Input<'_>, retbleed: &Retbleed) {
        let facts = input.facts;
        if possible(input) == Wish::Auto
            && !self.mode.is_eibrs()
            && retbleed::affects(facts)
            && retbleed.wants_ibrs()
            && facts.ibrs()
            && facts.vendor == Vendor::Intel
        {
            self.mode = Mode::Ibrs;
        }
    }

    /// With what depends on it.
    pub(crate) fn with(self, input: &Input<'_>, user: SpectreV2User, bhi: Bhi) -> Self {
        let facts = input.facts;
        let ibrs_mode = self.mode.is_eibrs() || self.mode == Mode::Ibrs;
        let retbleed_on_amd = retbleed::affects(facts) && facts.ibpb() && is_amd_like(facts);
        let active = self.mode != Mode::None;
        Self {
            disables_rrsba: disables_rrsba(facts, self.mode),
            ibrs_firmware: active && facts.ibrs() && !ibrs_mode && !retbleed_on_amd,
            user,
            bhi,
            ..self
        }
    }

    /// The return stack is filled at every switch between threads.
    #[must_use]
    pub fn fills_return_stack(&self) -> bool {
        matches!(self.mode, Mode::Retpoline | Mode::Lfence | Mode::Ibrs)
    }

    /// One call is made behind every exit of a guest, before the first return.
    #[must_use]
    pub fn calls_once_after_guest(&self) -> bool {
        self.mode.is_eibrs() && self.pbrsb
    }

    fn pbrsb_state(&self) -> &'static str {
        match (self.pbrsb, self.mode) {
            (false, _) => "; PBRSB-eIBRS: Not affected",
            (true, Mode::None) => "; PBRSB-eIBRS: Vulnerable",
            (true, _) => "; PBRSB-eIBRS: SW sequence",
        }
    }
}

/// Whether returns of the kernel can be, and are, kept from other predictors than the return stack.
fn disables_rrsba(facts: &Facts, mode: Mode) -> bool {
    let asks = matches!(mode, Mode::Retpoline | Mode::EibrsRetpoline | Mode::EibrsLfence);
    asks && facts.arch_cap(RRSBA) && facts.rrsba_ctrl()
}

/// Whether no predictor but the return stack predicts returns of the kernel with this mode.
pub(crate) fn rrsba_is_off(facts: &Facts, mode: Mode) -> bool {
    !facts.arch_cap(RRSBA) || disables_rrsba(facts, mode)
}

impl fmt::Display for SpectreV2 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.affected {
            return f.write_str(NOT_AFFECTED);
        }
        f.write_str(match self.mode {
            Mode::None => "Vulnerable",
            Mode::Retpoline => "Mitigation: Retpolines",
            Mode::Lfence => "Vulnerable: LFENCE",
            Mode::Eibrs => "Mitigation: Enhanced / Automatic IBRS",
            Mode::EibrsLfence => "Mitigation: Enhanced / Automatic IBRS + LFENCE",
            Mode::EibrsRetpoline => "Mitigation: Enhanced / Automatic IBRS + Retpolines",
            Mode::Ibrs => "Mitigation: IBRS",
        })?;
        if self.has_ibpb {
            f.write_str(self.user.ibpb_state())?;
        }
        if self.ibrs_firmware {
            f.write_str("; IBRS_FW")?;
        }
        // Intel's enhanced IBRS is STIBP as well.
        if !self.mode.is_eibrs() || self.auto_ibrs {
            f.write_str(self.user.stibp_state())?;
        }
        if self.fills_return_stack() {
            f.write_str("; RSB filling")?;
        }
        f.write_str(self.pbrsb_state())?;
        write!(f, "; BHI: {}", self.bhi)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::select::{Built, select};
    use std::string::ToString as _;

    fn report(facts: &Facts, line: &str) -> std::string::String {
        let options = Options::parse(line, |_| ());
        select(facts, &options, &Built::LIMEN).spectre_v2.to_string()
    }

    const NEW: Facts = Facts {
        vendor: Vendor::Intel,
        family: 6,
        model: model::SAPPHIRERAPIDS_X,
        stepping: 8,
        leaf7_edx: 1 << 26 | 1 << 27 | 1 << 29 | 1 << 31,
        leaf7_2_edx: 1 << 2 | 1 << 4,
        arch_capabilities: 0b11 | RRSBA,
        smt: crate::facts::Smt::Active,
        ..Facts::NONE
    };

    #[test]
    fn modes_that_the_cpu_has() {
        for (line, wanted) in [
            (
                "",
                "Mitigation: Enhanced / Automatic IBRS; IBPB: conditional; PBRSB-eIBRS: SW \
                  sequence; BHI: BHI_DIS_S",
            ),
            (
                "spectre_v2=eibrs,retpoline",
                "Mitigation: Enhanced / Automatic IBRS + Retpolines; \
              IBPB: conditional; PBRSB-eIBRS: SW sequence; BHI: Retpoline",
            ),
            (
                "spectre_v2=retpoline",
                "Mitigation: Retpolines; IBPB: conditional; IBRS_FW; STIBP: \
              conditional; RSB filling; PBRSB-eIBRS: SW sequence; BHI: Retpoline",
            ),
            (
                "spectre_v2=retpoline,lfence",
                "Vulnerable: LFENCE; IBPB: conditional; IBRS_FW; \
              STIBP: conditional; RSB filling; PBRSB-eIBRS: SW sequence; BHI: BHI_DIS_S",
            ),
            (
                "spectre_v2=off",
                "Vulnerable; IBPB: disabled; STIBP: disabled; PBRSB-eIBRS: \
              Vulnerable; BHI: Vulnerable",
            ),
            (
                "spectre_v2=ibrs spectre_bhi=off",
                "Mitigation: IBRS; IBPB: conditional; STIBP: \
              conditional; RSB filling; PBRSB-eIBRS: SW sequence; BHI: Vulnerable",
            ),
        ] {
            assert_eq!(report(&NEW, line), wanted, "{line}");
        }
    }

    #[test]
    fn modes_that_the_cpu_lacks_become_auto() {
        let old = Facts { arch_capabilities: 1, leaf7_2_edx: 0, ..NEW };
        for line in ["", "spectre_v2=eibrs", "spectre_v2=eibrs,lfence", "spectre_v2=on"] {
            assert!(report(&old, line).starts_with("Mitigation: Retpolines;"), "{line}");
        }
        let amd = Facts { vendor: Vendor::Amd, family: 0x19, ..old };
        assert!(report(&amd, "spectre_v2=ibrs").starts_with("Mitigation: Retpolines;"));
        let none = Facts { vendor: Vendor::Zhaoxin, family: 7, ..Facts::default() };
        assert_eq!(report(&none, ""), "Not affected");
    }
}
