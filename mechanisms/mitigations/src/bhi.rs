//! Branch history injection (CVE-2022-0001, CVE-2024-2201): enhanced IBRS keeps targets apart, but
//! a program's branch history still steers which of the kernel's own targets is predicted. Met by
//! the CPU (`SPEC_CTRL.BHI_DIS_S`), by retpolines that no other predictor undercuts, or by a loop
//! of branches at every system call and exit of a guest that fills the history with its own.
//! Option: `spectre_bhi=on|off|vmexit`; part of the report of `spectre_v2`.

use core::fmt;

use crate::facts::arch_cap::BHI_NO;
use crate::options::{Options, Vector};
use crate::select::Input;
use crate::spectre_v2::{self, SpectreV2, rrsba_is_off};
use crate::table::{is_amd_like, never_speculates};
use crate::{Facts, Vendor};

/// Counts of the loop: `outer` calls, each with `inner` taken jumps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BhbLoop {
    /// Calls, each inside the one before.
    pub outer: u32,
    /// Taken jumps in each.
    pub inner: u32,
}

impl BhbLoop {
    /// Histories up to those of Ice Lake.
    pub const SHORT: Self = Self { outer: 5, inner: 5 };
    /// Histories of Alder Lake, Sapphire Rapids and later.
    pub const LONG: Self = Self { outer: 12, inner: 7 };

    /// Taken branches that the loop makes: in each of the calls the call, `inner` jumps forward,
    /// one less back, its return, and the jump to the next call, which the last does not make;
    /// around them the first call, its return, and the jump out.
    #[must_use]
    pub const fn taken_branches(self) -> u32 {
        2 * self.outer * (self.inner + 1) + 2
    }
}

/// What was asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are the option's values")]
pub enum Wish {
    #[default]
    Auto,
    Off,
    On,
    Vmexit,
}

pub(crate) fn parse(options: &mut Options, value: &str) -> Option<()> {
    options.bhi = match value {
        "on" => Wish::On,
        "off" => Wish::Off,
        "vmexit" => Wish::Vmexit,
        _ => return None,
    };
    Some(())
}

/// A guest cannot know whether its CPU has enhanced IBRS: the hypervisor may hide it.
pub(crate) fn affects(facts: &Facts) -> bool {
    let immune = is_amd_like(facts) || facts.vendor == Vendor::Zhaoxin || never_speculates(facts);
    !immune && !facts.arch_cap(BHI_NO) && (facts.enhanced_ibrs() || facts.hypervisor())
}

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bhi {
    /// The CPU is not affected.
    NotAffected,
    /// Nothing.
    Vulnerable,
    /// The CPU leaves the history of programs out of the kernel's predictions.
    Hardware,
    /// Retpolines use no history.
    Retpoline,
    /// The loop, at every system call and behind guests.
    Loop(BhbLoop),
    /// The loop, behind guests only.
    LoopAfterGuest(BhbLoop),
}

impl Bhi {
    pub(crate) const NONE: Self = Self::NotAffected;
}

pub(crate) fn select(input: &Input<'_>, v2: &SpectreV2) -> Bhi {
    let (facts, options) = (input.facts, input.options);
    if !affects(facts) {
        return Bhi::NotAffected;
    }
    let guests = options.meets(&[Vector::GuestHost]);
    let programs = options.meets(&[Vector::UserKernel]);
    let after_guest_only = match options.bhi {
        _ if options.spectre_v2 == spectre_v2::Wish::Off => return Bhi::Vulnerable,
        Wish::Off => return Bhi::Vulnerable,
        Wish::On => false,
        Wish::Vmexit => true,
        Wish::Auto if !guests => return Bhi::Vulnerable,
        Wish::Auto => !programs,
    };
    if v2.mode.has_retpolines() && rrsba_is_off(facts, v2.mode) {
        Bhi::Retpoline
    } else if facts.bhi_ctrl() {
        Bhi::Hardware
    } else if after_guest_only {
        Bhi::LoopAfterGuest(facts.bhb_loop())
    } else {
        Bhi::Loop(facts.bhb_loop())
    }
}

impl fmt::Display for Bhi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotAffected => "Not affected",
            Self::Vulnerable => "Vulnerable",
            Self::Hardware => "BHI_DIS_S",
            Self::Retpoline => "Retpoline",
            Self::Loop(_) => "SW loop, KVM: SW loop",
            Self::LoopAfterGuest(_) => "Vulnerable, KVM: SW loop",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model;
    use crate::select::{Built, select};

    const ICE_LAKE: Facts = {
        let mut facts =
            Facts { vendor: Vendor::Intel, family: 6, model: model::ICELAKE_X, ..Facts::NONE };
        facts.leaf7_edx = 1 << 26 | 1 << 29;
        facts.arch_capabilities = 0b11;
        facts
    };
    fn chosen(facts: &Facts, line: &str) -> Bhi {
        select(facts, &Options::parse(line, |_| ()), &Built::LIMEN).spectre_v2.bhi
    }

    #[test]
    fn counts_are_those_of_the_histories() {
        assert_eq!((BhbLoop::SHORT.taken_branches(), BhbLoop::LONG.taken_branches()), (62, 194));
    }

    #[test]
    fn which_means() {
        assert_eq!(chosen(&ICE_LAKE, ""), Bhi::Loop(BhbLoop::SHORT));
        assert_eq!(chosen(&ICE_LAKE, "spectre_bhi=vmexit"), Bhi::LoopAfterGuest(BhbLoop::SHORT));
        assert_eq!(chosen(&ICE_LAKE, "spectre_bhi=off"), Bhi::Vulnerable);
        assert_eq!(chosen(&ICE_LAKE, "spectre_v2=retpoline"), Bhi::Retpoline);
        assert_eq!(chosen(&ICE_LAKE, "spectre_v2=off spectre_bhi=on"), Bhi::Vulnerable);
        let open = "mitigations=auto;no_user_kernel";
        assert_eq!(chosen(&ICE_LAKE, open), Bhi::LoopAfterGuest(BhbLoop::SHORT));
        let has_control = Facts { leaf7_2_edx: 1 << 4, ..ICE_LAKE };
        assert_eq!(chosen(&has_control, ""), Bhi::Hardware);
        // The other predictor cannot be switched off: retpolines do not help.
        let rrsba = Facts { arch_capabilities: 0b11 | 1 << 19, ..ICE_LAKE };
        assert_eq!(chosen(&rrsba, "spectre_v2=retpoline"), Bhi::Loop(BhbLoop::SHORT));
        let immune = Facts { arch_capabilities: 0b11 | BHI_NO, ..ICE_LAKE };
        assert_eq!(chosen(&immune, ""), Bhi::NotAffected);
        let guest = Facts { arch_capabilities: 1, leaf1_ecx: 1 << 31, ..ICE_LAKE };
        assert!(affects(&guest) && !affects(&Facts { leaf1_ecx: 0, ..guest }));
    }
}
