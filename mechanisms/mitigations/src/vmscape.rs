//! VMSCAPE (CVE-2025-40300): a guest trains the branches of the program that runs it. What keeps
//! guests from the hypervisor does not keep them from that program. Met behind a guest, before the
//! first return to any program on that CPU: by IBPB, or where only branch history is shared
//! (Alder Lake and later) by the loop that clears it. Option: `vmscape=off|ibpb|force|auto|on`.

use core::fmt;

use crate::bhi::BhbLoop;
use crate::facts::Smt;
use crate::options::{Options, Vector};
use crate::retbleed::{self, Retbleed};
use crate::select::{Input, NOT_AFFECTED, Selection, VULNERABLE};
use crate::spec_rstack_overflow::{self, SpecRstackOverflow};
use crate::spectre_v2_user::For;
use crate::table::{Row, listed};
use crate::{Facts, model};

/// What was asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are the option's values")]
pub enum Wish {
    #[default]
    Auto,
    Off,
    On,
    Force,
    Ibpb,
}

pub(crate) fn parse(options: &mut Options, value: &str) -> Option<()> {
    options.vmscape = match value {
        "auto" => Wish::Auto,
        "off" => Wish::Off,
        "on" => Wish::On,
        "force" => Wish::Force,
        "ibpb" => Wish::Ibpb,
        _ => return None,
    };
    Some(())
}

const LISTED: [Row; 39] = [
    Row::intel(model::SANDYBRIDGE_X),
    Row::intel(model::SANDYBRIDGE),
    Row::intel(model::IVYBRIDGE_X),
    Row::intel(model::IVYBRIDGE),
    Row::intel(model::HASWELL),
    Row::intel(model::HASWELL_L),
    Row::intel(model::HASWELL_G),
    Row::intel(model::HASWELL_X),
    Row::intel(model::BROADWELL_D),
    Row::intel(model::BROADWELL_X),
    Row::intel(model::BROADWELL_G),
    Row::intel(model::BROADWELL),
    Row::intel(model::SKYLAKE_X),
    Row::intel(model::SKYLAKE_L),
    Row::intel(model::SKYLAKE),
    Row::intel(model::KABYLAKE_L),
    Row::intel(model::KABYLAKE),
    Row::intel(model::CANNONLAKE_L),
    Row::intel(model::COMETLAKE),
    Row::intel(model::COMETLAKE_L),
    Row::intel(model::ALDERLAKE),
    Row::intel(model::ALDERLAKE_L),
    Row::intel(model::RAPTORLAKE),
    Row::intel(model::RAPTORLAKE_P),
    Row::intel(model::RAPTORLAKE_S),
    Row::intel(model::METEORLAKE_L),
    Row::intel(model::ARROWLAKE_H),
    Row::intel(model::ARROWLAKE),
    Row::intel(model::ARROWLAKE_U),
    Row::intel(model::LUNARLAKE_M),
    Row::intel(model::SAPPHIRERAPIDS_X),
    Row::intel(model::GRANITERAPIDS_X),
    Row::intel(model::EMERALDRAPIDS_X),
    Row::intel(model::ATOM_GRACEMONT),
    Row::intel(model::ATOM_CRESTMONT_X),
    Row::amd(0x17),
    Row::amd(0x19),
    Row::amd(0x1a),
    Row::hygon(0x18),
];

/// Under a hypervisor it is that one's task to keep guests of guests apart.
fn affects(facts: &Facts) -> bool {
    listed(facts, &LISTED) && !facts.hypervisor()
}

/// How it is met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Not at all.
    None,
    /// By IBPB before the return to a program.
    IbpbExitToUser,
    /// By IBPB behind every exit of a guest, for another reason.
    IbpbOnVmexit,
    /// By the loop before the return to a program.
    ClearBhbExitToUser(BhbLoop),
}

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vmscape {
    affected: bool,
    /// How it is met.
    pub mode: Mode,
}

pub(crate) fn select(input: &Input<'_>, retbleed: &Retbleed, srso: &SpecRstackOverflow) -> Vmscape {
    let (facts, options) = (input.facts, input.options);
    let affected = affects(facts) || options.vmscape == Wish::Force;
    let can_clear = facts.bhi_ctrl() && input.built.bhb_clear_exit_to_user;
    let ibpb = if facts.ibpb() { Mode::IbpbExitToUser } else { Mode::None };
    let on_exit = retbleed.mode == retbleed::Mode::Ibpb
        || srso.mode == spec_rstack_overflow::Mode::IbpbOnVmexit;
    let mode = match options.vmscape {
        _ if !affected => Mode::None,
        _ if on_exit => Mode::IbpbOnVmexit,
        Wish::Off => Mode::None,
        Wish::Auto if !options.meets(&[Vector::GuestHost]) => Mode::None,
        Wish::Ibpb => ibpb,
        Wish::Auto | Wish::On | Wish::Force if can_clear => {
            Mode::ClearBhbExitToUser(facts.bhb_loop())
        }
        Wish::Auto | Wish::On | Wish::Force => ibpb,
    };
    Vmscape { affected, mode }
}

/// Said once at boot where [`misses_neighbours`].
pub const SMT_WARNING: &str = "VMSCAPE: SMT on, STIBP is required for full protection. See \
    https://www.kernel.org/doc/html/latest/admin-guide/hw-vuln/vmscape.html for more details.";

/// Whether a flush before the VMM leaves it open to a guest on the same core at the same time: its
/// other hardware thread runs, and nothing keeps their predictions apart. Enhanced IBRS does on
/// Intel's; AMD's automatic IBRS does not.
#[must_use]
pub fn misses_neighbours(selection: &Selection, facts: &Facts) -> bool {
    let is_met = !matches!(selection.vmscape.mode, Mode::None | Mode::IbpbOnVmexit);
    let smt = facts.smt == Smt::Active && !selection.one_thread_per_core;
    let stibp = matches!(selection.spectre_v2.user.stibp, For::Everybody | For::EverybodyPreferred);
    let by_ibrs = selection.spectre_v2.mode.is_eibrs() && !facts.auto_ibrs();
    is_met && smt && !stibp && !by_ibrs
}

impl fmt::Display for Vmscape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.mode {
            _ if !self.affected => NOT_AFFECTED,
            Mode::None => VULNERABLE,
            Mode::IbpbExitToUser => "Mitigation: IBPB before exit to userspace",
            Mode::IbpbOnVmexit => "Mitigation: IBPB on VMEXIT",
            Mode::ClearBhbExitToUser(_) => "Mitigation: Clear BHB before exit to userspace",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::Vendor;
    use crate::select::{Built, select};

    const fn intel(model: u8, bhi_ctrl: bool) -> Facts {
        let mut facts = Facts { vendor: Vendor::Intel, family: 6, model, ..Facts::NONE };
        facts.leaf7_edx = 1 << 26;
        facts.leaf7_2_edx = if bhi_ctrl { 1 << 4 } else { 0 };
        facts
    }

    const fn amd(family: u16) -> Facts {
        let mut facts = Facts { vendor: Vendor::Amd, family, ..Facts::NONE };
        facts.leaf8000_0008_ebx = 1 << 12;
        facts.leaf8000_0021_eax = 1 << 29;
        facts
    }

    /// Twelve CPUs times six options.
    #[test]
    fn table() {
        let loops = Mode::ClearBhbExitToUser(BhbLoop::LONG);
        let ibpb = Mode::IbpbExitToUser;
        let none = Mode::None;
        let options = [
            "",
            "vmscape=off",
            "vmscape=ibpb",
            "vmscape=on",
            "vmscape=force",
            "mitigations=auto;no_guest_host",
        ];
        let big = [loops, none, ibpb, loops, loops, none];
        let old = [ibpb, none, ibpb, ibpb, ibpb, none];
        let not = [none, none, none, none, ibpb, none];
        for (facts, wanted) in [
            (intel(model::SANDYBRIDGE, false), old),
            (intel(model::HASWELL_X, false), old),
            (intel(model::COMETLAKE, false), old),
            (intel(model::ICELAKE_X, false), not),
            (intel(model::ATOM_TREMONT, false), not),
            (intel(model::ALDERLAKE, true), big),
            (intel(model::EMERALDRAPIDS_X, true), big),
            (intel(model::ATOM_CRESTMONT_X, true), big),
            (intel(model::LUNARLAKE_M, true), big),
            (amd(0x17), old),
            (amd(0x19), old),
            (amd(0x1a), old),
        ] {
            for (line, wanted) in options.into_iter().zip(wanted) {
                let options = Options::parse(line, |_| ());
                let mode = select(&facts, &options, &Built::LIMEN).vmscape.mode;
                assert_eq!(mode, wanted, "{facts} {line}");
            }
        }
        // Who flushes at every exit has met this as well.
        for line in ["retbleed=ibpb", "retbleed=ibpb vmscape=off"] {
            let options = Options::parse(line, |_| ());
            let mode = select(&amd(0x17), &options, &Built::LIMEN).vmscape.mode;
            assert_eq!(mode, Mode::IbpbOnVmexit, "{line}");
        }
    }

    #[test]
    fn warning_about_neighbours() {
        let warns = |facts: &Facts, line: &str| {
            let selection = select(facts, &Options::parse(line, |_| ()), &Built::LIMEN);
            misses_neighbours(&selection, facts)
        };
        let stibp = 1 << 15;
        let zen4 = Facts { smt: Smt::Active, ..amd(0x19) };
        let zen4 = Facts { leaf8000_0008_ebx: zen4.leaf8000_0008_ebx | stibp, ..zen4 };
        assert!(warns(&zen4, ""));
        assert!(!warns(&zen4, "spectre_v2_user=on"), "strict STIBP");
        assert!(!warns(&zen4, "nosmt"), "one thread");
        assert!(!warns(&zen4, "vmscape=off"), "not met at all");
        // Automatic IBRS (bit 8) is no answer, Intel's enhanced IBRS is.
        let automatic = Facts { leaf8000_0021_eax: zen4.leaf8000_0021_eax | 1 << 8, ..zen4 };
        assert!(warns(&automatic, ""));
        let enhanced = Facts { smt: Smt::Active, ..intel(model::ALDERLAKE, true) };
        let plain = enhanced;
        let enhanced = Facts { leaf7_edx: enhanced.leaf7_edx | 1 << 29, ..enhanced };
        let enhanced = Facts { arch_capabilities: 1 << 1, ..enhanced };
        assert!(warns(&plain, "") && !warns(&enhanced, ""));
    }

    #[test]
    fn guests_and_cpus_without_barriers() {
        let chosen = |facts: &Facts, line: &str| {
            select(facts, &Options::parse(line, |_| ()), &Built::LIMEN).vmscape
        };
        let guest = Facts { leaf1_ecx: 1 << 31, ..amd(0x19) };
        assert_eq!(chosen(&guest, ""), Vmscape { affected: false, mode: Mode::None });
        assert_eq!(chosen(&guest, "vmscape=force").mode, Mode::IbpbExitToUser);
        let bare = Facts { leaf8000_0008_ebx: 0, ..amd(0x19) };
        assert_eq!(chosen(&bare, "vmscape=ibpb"), Vmscape { affected: true, mode: Mode::None });
        let open = "mitigations=auto;no_guest_host vmscape=force";
        assert_eq!(chosen(&guest, open).mode, Mode::IbpbExitToUser);
    }
}
