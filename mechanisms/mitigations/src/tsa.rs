//! Transient scheduler attacks (CVE-2024-36350, CVE-2024-36357): on Zen 3 and 4 a load completes
//! with stale data of the L1 cache's tag or of a store, which its timing tells. Met by VERW, before
//! programs and before guests. Option: `tsa=`.

use core::fmt;

use crate::options::{Options, Vector};
use crate::select::{Input, NOT_AFFECTED, VULNERABLE};
use crate::table::{Row, listed};
use crate::{Facts, Vendor};

/// What was asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are the option's values")]
pub enum Wish {
    #[default]
    Auto,
    Off,
    On,
    User,
    Vm,
}

pub(crate) fn parse(options: &mut Options, value: &str) -> Option<()> {
    options.tsa = match value {
        "off" => Wish::Off,
        "on" => Wish::On,
        "user" => Wish::User,
        "vm" => Wish::Vm,
        _ => return None,
    };
    Some(())
}

const LISTED: [Row; 1] = [Row::amd(0x19)];

/// The first revision of the microcode that makes VERW clear, by family 0x19's model and stepping
/// (AMD-SB-7029). CPUID tells it only where a hypervisor passes it on.
const MICROCODE: [(u8, u8, u32); 16] = [
    (0x01, 1, 0x0a00_11d7),
    (0x01, 2, 0x0a00_123b),
    (0x08, 2, 0x0a00_820d),
    (0x11, 1, 0x0a10_114c),
    (0x11, 2, 0x0a10_124c),
    (0x18, 1, 0x0a10_8109),
    (0x21, 0, 0x0a20_102e),
    (0x21, 2, 0x0a20_1211),
    (0x44, 1, 0x0a40_4108),
    (0x50, 0, 0x0a50_0012),
    (0x61, 2, 0x0a60_120a),
    (0x74, 1, 0x0a70_4108),
    (0x75, 2, 0x0a70_5208),
    (0x78, 0, 0x0a70_8008),
    (0x7c, 0, 0x0a70_c008),
    (0xa0, 2, 0x0aa0_0216),
];

fn verw_clears(facts: &Facts) -> bool {
    let by_revision = MICROCODE.iter().any(|&(model, stepping, revision)| {
        (facts.family, facts.model, facts.stepping) == (0x19, model, stepping)
            && facts.microcode >= revision
    });
    facts.verw_clear() || !facts.hypervisor() && by_revision
}

/// A guest of a Zen may move to one that has it.
fn affects(facts: &Facts) -> bool {
    let denied = facts.tsa_sq_no() && facts.tsa_l1_no();
    let is_zen = matches!(facts.family, 0x17 | 0x19 | 0x1a);
    let is_amd = facts.vendor == Vendor::Amd;
    is_amd && !denied && (listed(facts, &LISTED) || facts.hypervisor() && is_zen)
}

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are those of the reports")]
pub enum Tsa {
    NotAffected,
    Off,
    NoMicrocode,
    UserKernel,
    Vm,
    Full,
}

impl Tsa {
    pub(crate) fn clears_before_programs(self) -> bool {
        matches!(self, Self::UserKernel | Self::Full)
    }

    pub(crate) fn clears_before_guests(self) -> bool {
        matches!(self, Self::Vm | Self::Full)
    }
}

pub(crate) fn select(input: &Input<'_>) -> Tsa {
    let (facts, options) = (input.facts, input.options);
    let programs = options.meets(&[Vector::UserKernel, Vector::UserUser]);
    let guests = options.meets(&[Vector::GuestHost, Vector::GuestGuest]);
    let wanted = match (options.tsa, programs, guests) {
        _ if !affects(facts) => return Tsa::NotAffected,
        (Wish::Off, ..) | (Wish::Auto, false, false) => return Tsa::Off,
        (Wish::On, ..) | (Wish::Auto, true, true) => Tsa::Full,
        (Wish::User, ..) | (Wish::Auto, true, false) => Tsa::UserKernel,
        (Wish::Vm, ..) | (Wish::Auto, false, true) => Tsa::Vm,
    };
    if verw_clears(facts) { wanted } else { Tsa::NoMicrocode }
}

impl fmt::Display for Tsa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotAffected => NOT_AFFECTED,
            Self::Off => VULNERABLE,
            Self::NoMicrocode => "Vulnerable: No microcode",
            Self::UserKernel => "Mitigation: Clear CPU buffers: user/kernel boundary",
            Self::Vm => "Mitigation: Clear CPU buffers: VM",
            Self::Full => "Mitigation: Clear CPU buffers",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::select::{Built, select};

    #[test]
    fn microcode_and_vectors() {
        let milan = Facts {
            vendor: Vendor::Amd,
            family: 0x19,
            model: 1,
            stepping: 1,
            microcode: 0x0a00_11d7,
            ..Facts::NONE
        };
        let chosen = |facts: &Facts, line: &str| {
            select(facts, &Options::parse(line, |_| ()), &Built::LIMEN).tsa
        };
        assert_eq!(chosen(&milan, ""), Tsa::Full);
        assert_eq!(chosen(&milan, "tsa=user"), Tsa::UserKernel);
        assert_eq!(chosen(&milan, "tsa=vm"), Tsa::Vm);
        assert_eq!(chosen(&milan, "tsa=off"), Tsa::Off);
        assert_eq!(
            chosen(&milan, "mitigations=auto;no_guest_host,no_guest_guest"),
            Tsa::UserKernel
        );
        assert_eq!(chosen(&Facts { microcode: 0x0a00_11d6, ..milan }, ""), Tsa::NoMicrocode);
        let guest = Facts { leaf1_ecx: 1 << 31, ..milan };
        assert_eq!(chosen(&guest, ""), Tsa::NoMicrocode);
        assert_eq!(chosen(&Facts { leaf8000_0021_eax: 1 << 5, ..guest }, ""), Tsa::Full);
        assert_eq!(chosen(&Facts { leaf8000_0021_ecx: 6, ..guest }, ""), Tsa::NotAffected);
        assert_eq!(chosen(&Facts { family: 0x1a, ..milan }, ""), Tsa::NotAffected);
        assert_eq!(chosen(&Facts { family: 0x1a, ..guest }, ""), Tsa::NoMicrocode);
    }
}
