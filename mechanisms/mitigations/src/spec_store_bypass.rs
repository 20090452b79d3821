//! Speculative store bypass (CVE-2018-3639): a load runs ahead of an older store to the same place
//! and uses the old value. Met by SSBD, which is dear, so by default only for programs that ask by
//! prctl(2). Options: `spec_store_bypass_disable=`, `nospec_store_bypass_disable`.

use core::fmt;

use crate::facts::arch_cap::SSB_NO;
use crate::options::{Options, Vector};
use crate::select::{Input, NOT_AFFECTED, VULNERABLE};
use crate::table::{Row, listed, never_speculates};
use crate::{Facts, model};

/// What was asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are the option's values")]
pub enum Wish {
    #[default]
    Auto,
    Off,
    On,
    Prctl,
    Seccomp,
}

pub(crate) fn parse(options: &mut Options, value: &str) -> Option<()> {
    options.ssb = match value {
        "auto" => Wish::Auto,
        "on" => Wish::On,
        "off" => Wish::Off,
        "prctl" => Wish::Prctl,
        "seccomp" => Wish::Seccomp,
        _ => return None,
    };
    Some(())
}

const NOT_LISTED: [Row; 12] = [
    Row::intel(model::CORE_YONAH),
    Row::intel(model::ATOM_SILVERMONT),
    Row::intel(model::ATOM_SILVERMONT_D),
    Row::intel(model::ATOM_SILVERMONT_MID),
    Row::intel(model::ATOM_AIRMONT),
    Row::intel(model::ATOM_AIRMONT_MID),
    Row::intel(model::XEON_PHI_KNL),
    Row::intel(model::XEON_PHI_KNM),
    Row::amd(0x0f),
    Row::amd(0x10),
    Row::amd(0x11),
    Row::amd(0x12),
];

fn affects(facts: &Facts) -> bool {
    let says_no = facts.arch_cap(SSB_NO) || facts.amd_ssb_no();
    !never_speculates(facts) && !listed(facts, &NOT_LISTED) && !says_no
}

/// Where SSBD is switched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// `SPEC_CTRL.SSBD`.
    SpecCtrl,
    /// `VIRT_SPEC_CTRL`, which a hypervisor makes.
    VirtSpecCtrl,
    /// This bit of AMD's `LS_CFG`.
    LsCfg(u8),
}

/// The way in which this CPU switches it off, if it has one.
fn control(facts: &Facts) -> Option<Control> {
    if facts.intel_ssbd() || facts.amd_ssbd() {
        return Some(Control::SpecCtrl);
    }
    if facts.virt_ssbd_bit() {
        return Some(Control::VirtSpecCtrl);
    }
    // Bulletin of AMD "Speculative Store Bypass Disable", 2018.
    let bit = match facts.family {
        0x15 => 54,
        0x16 => 33,
        0x17 | 0x18 => 10,
        _ => return None,
    };
    let is_bare = crate::table::is_amd_like(facts) && !facts.hypervisor();
    is_bare.then_some(Control::LsCfg(bit))
}

/// For whom it is switched off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are the option's values")]
pub enum Mode {
    None,
    Everybody,
    Prctl,
    Seccomp,
}

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpecStoreBypass {
    /// The CPU does it.
    pub affected: bool,
    /// For whom it is switched off.
    pub mode: Mode,
    /// Where.
    pub control: Option<Control>,
}

pub(crate) fn select(input: &Input<'_>) -> SpecStoreBypass {
    let facts = input.facts;
    let affected = affects(facts);
    let control = control(facts);
    let mode = match input.options.ssb {
        _ if !affected || control.is_none() => Mode::None,
        Wish::Off => Mode::None,
        Wish::On => Mode::Everybody,
        Wish::Seccomp => Mode::Seccomp,
        Wish::Prctl => Mode::Prctl,
        Wish::Auto if input.options.meets(&[Vector::UserUser]) => Mode::Prctl,
        Wish::Auto => Mode::None,
    };
    SpecStoreBypass { affected, mode, control }
}

impl fmt::Display for SpecStoreBypass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.mode {
            _ if !self.affected => NOT_AFFECTED,
            Mode::None => VULNERABLE,
            Mode::Everybody => "Mitigation: Speculative Store Bypass disabled",
            Mode::Prctl => "Mitigation: Speculative Store Bypass disabled via prctl",
            Mode::Seccomp => "Mitigation: Speculative Store Bypass disabled via prctl and seccomp",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Vendor;
    use crate::select::{Built, select};

    #[test]
    fn modes_and_controls() {
        let zen1 = Facts { vendor: Vendor::Amd, family: 0x17, model: 1, ..Facts::NONE };
        let chosen = |facts: &Facts, line: &str| {
            let options = Options::parse(line, |_| ());
            let chosen = select(facts, &options, &Built::LIMEN).spec_store_bypass;
            (chosen.mode, chosen.control)
        };
        assert_eq!(chosen(&zen1, ""), (Mode::Prctl, Some(Control::LsCfg(10))));
        assert_eq!(chosen(&zen1, "spec_store_bypass_disable=on").0, Mode::Everybody);
        assert_eq!(chosen(&zen1, "spec_store_bypass_disable=seccomp").0, Mode::Seccomp);
        assert_eq!(chosen(&zen1, "nospec_store_bypass_disable").0, Mode::None);
        assert_eq!(chosen(&zen1, "mitigations=auto;no_user_user").0, Mode::None);
        let guest = Facts { leaf1_ecx: 1 << 31, ..zen1 };
        assert_eq!(chosen(&guest, ""), (Mode::None, None));
        let helped = Facts { leaf8000_0008_ebx: 1 << 25, ..guest };
        assert_eq!(chosen(&helped, ""), (Mode::Prctl, Some(Control::VirtSpecCtrl)));
        assert!(!affects(&Facts { family: 0x10, ..zen1 }));
        assert!(!affects(&Facts { leaf8000_0008_ebx: 1 << 26, ..zen1 }));
    }
}
