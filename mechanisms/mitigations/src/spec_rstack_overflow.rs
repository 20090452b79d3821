//! Speculative return stack overflow (CVE-2023-20569, "Inception"): on Zen 1 to 5 a program trains
//! calls that are none, and fills the return stack with targets of its own. Met by a return thunk
//! that is safe, or by IBPB at every entry, both with microcode that makes IBPB reach that far.
//! Option: `spec_rstack_overflow=`.

use core::fmt;

use crate::options::{Options, Vector};
use crate::retbleed::{self, Retbleed};
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
    Microcode,
    SafeRet,
    Ibpb,
    IbpbVmexit,
}

pub(crate) fn parse(options: &mut Options, value: &str) -> Option<()> {
    options.srso = match value {
        "off" => Wish::Off,
        "microcode" => Wish::Microcode,
        "safe-ret" => Wish::SafeRet,
        "ibpb" => Wish::Ibpb,
        "ibpb-vmexit" => Wish::IbpbVmexit,
        _ => return None,
    };
    Some(())
}

const LISTED: [Row; 4] = [Row::amd(0x17), Row::hygon(0x18), Row::amd(0x19), Row::amd(0x1a)];

fn affects(facts: &Facts) -> bool {
    listed(facts, &LISTED) && !facts.srso_no()
}

/// How it is met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are those of the reports")]
pub enum Mode {
    None,
    NoMicrocode,
    SafeRetNoMicrocode,
    Microcode,
    NoSmt,
    SafeRet,
    Ibpb,
    IbpbOnVmexit,
    BpSpecReduce,
}

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpecRstackOverflow {
    affected: bool,
    /// How it is met.
    pub mode: Mode,
}

pub(crate) fn select(input: &Input<'_>) -> SpecRstackOverflow {
    let affected = affects(input.facts);
    SpecRstackOverflow { affected, mode: if affected { mode(input) } else { Mode::None } }
}

fn mode(input: &Input<'_>) -> Mode {
    let (facts, options) = (input.facts, input.options);
    let guests = options.meets(&[Vector::GuestHost]);
    let programs = options.meets(&[Vector::UserKernel]) && !facts.srso_user_kernel_no();
    let wish = match options.srso {
        Wish::Off => return Mode::None,
        Wish::Auto if guests || programs => Wish::SafeRet,
        Wish::Auto if options.protects_programs() => Wish::Microcode,
        Wish::Auto => return Mode::None,
        asked => asked,
    };
    if facts.family < 0x19 && !input.smt_possible {
        return Mode::NoSmt;
    }
    // Without safe returns the barrier at every entry is what remains.
    let wish = match wish {
        Wish::SafeRet if !input.built.safe_returns && !facts.srso_user_kernel_no() => Wish::Ibpb,
        other => other,
    };
    let behind_guests =
        if facts.bp_spec_reduce() { Mode::BpSpecReduce } else { Mode::IbpbOnVmexit };
    match (wish, facts.ibpb_brtype()) {
        (Wish::SafeRet, _) if facts.srso_user_kernel_no() => behind_guests,
        (Wish::SafeRet, false) => Mode::SafeRetNoMicrocode,
        (_, false) => Mode::NoMicrocode,
        (Wish::SafeRet, true) => Mode::SafeRet,
        (Wish::IbpbVmexit, true) => behind_guests,
        (Wish::Ibpb, true) => Mode::Ibpb,
        (Wish::Microcode | Wish::Auto | Wish::Off, true) => Mode::Microcode,
    }
}

/// Whether this CPU's predictor is untrained by an address that it takes for the same: that of Zen
/// 3 and 4 is, those before by an instruction that the return is a part of.
#[must_use]
pub const fn untrains_by_alias(facts: &Facts) -> bool {
    matches!(facts.vendor, Vendor::Amd) && facts.family == 0x19
}

impl SpecRstackOverflow {
    /// Whether returns are safe ones.
    #[must_use]
    pub const fn returns_safely(&self) -> bool {
        matches!(self.mode, Mode::SafeRet | Mode::SafeRetNoMicrocode)
    }

    pub(crate) fn update(&mut self, input: &Input<'_>, retbleed: &Retbleed) {
        if self.affected && retbleed.mode == retbleed::Mode::Ibpb && input.facts.ibpb_brtype() {
            self.mode = Mode::Ibpb;
        }
    }
}

impl fmt::Display for SpecRstackOverflow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.mode {
            _ if !self.affected => NOT_AFFECTED,
            Mode::None => VULNERABLE,
            Mode::NoMicrocode => "Vulnerable: No microcode",
            Mode::SafeRetNoMicrocode => "Vulnerable: Safe RET, no microcode",
            Mode::Microcode => "Vulnerable: Microcode, no safe RET",
            Mode::NoSmt => "Mitigation: SMT disabled",
            Mode::SafeRet => "Mitigation: Safe RET",
            Mode::Ibpb => "Mitigation: IBPB",
            Mode::IbpbOnVmexit => "Mitigation: IBPB on VMEXIT only",
            Mode::BpSpecReduce => "Mitigation: Reduced Speculation",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Plan;
    use crate::facts::Smt;
    use crate::plan::Returns;
    use crate::select::{Built, select};

    fn chosen(facts: &Facts, line: &str, built: &Built) -> Mode {
        select(facts, &Options::parse(line, |_| ()), built).spec_rstack_overflow.mode
    }

    #[test]
    fn zen3_and_later() {
        let zen3 = Facts {
            vendor: Vendor::Amd,
            family: 0x19,
            leaf8000_0008_ebx: 1 << 12,
            sbpb_works: true,
            smt: Smt::Active,
            ..Facts::NONE
        };
        let without = Built { safe_returns: false, ..Built::LIMEN };
        for (line, wanted) in [
            ("", Mode::SafeRet),
            ("spec_rstack_overflow=off", Mode::None),
            ("spec_rstack_overflow=microcode", Mode::Microcode),
            ("spec_rstack_overflow=safe-ret", Mode::SafeRet),
            ("spec_rstack_overflow=ibpb", Mode::Ibpb),
            ("spec_rstack_overflow=ibpb-vmexit", Mode::IbpbOnVmexit),
            ("mitigations=auto;no_user_kernel,no_guest_host", Mode::Microcode),
        ] {
            for built in [&Built::LIMEN, &Built::LINUX] {
                assert_eq!(chosen(&zen3, line, built), wanted, "{line}");
            }
        }
        assert_eq!(chosen(&zen3, "", &without), Mode::Ibpb);
        let old = Facts { sbpb_works: false, ..zen3 };
        assert_eq!(chosen(&old, "", &Built::LIMEN), Mode::SafeRetNoMicrocode);
        assert_eq!(chosen(&old, "", &without), Mode::NoMicrocode);
        let guests_only = Facts { leaf8000_0021_eax: 1 << 30, ..zen3 };
        assert_eq!(chosen(&guests_only, "", &Built::LIMEN), Mode::IbpbOnVmexit);
        let reduced = Facts { leaf8000_0021_eax: 3 << 30, ..zen3 };
        assert_eq!(chosen(&reduced, "", &Built::LIMEN), Mode::BpSpecReduce);
    }

    /// By what returns are made, and that each choice that names them in a report makes them so.
    #[test]
    fn who_returns_how() {
        let facts = |family| Facts {
            vendor: Vendor::Amd,
            family,
            leaf8000_0008_ebx: 1 << 12,
            sbpb_works: true,
            smt: Smt::Active,
            ..Facts::NONE
        };
        let off = "spec_rstack_overflow=off";
        for (family, line, wanted) in [
            (0x17, "", Returns::Safe),
            (0x17, off, Returns::Overlaid),
            (0x17, "nosmt=force", Returns::Overlaid),
            (0x17, "retbleed=off", Returns::Safe),
            (0x17, "retbleed=ibpb", Returns::Plain),
            (0x17, "spec_rstack_overflow=ibpb", Returns::Plain),
            (0x17, "retbleed=off spec_rstack_overflow=off", Returns::Plain),
            (0x17, "mitigations=off", Returns::Plain),
            (0x19, "", Returns::SafeAlias),
            (0x19, off, Returns::Plain),
            (0x19, "spec_rstack_overflow=ibpb", Returns::Plain),
            (0x19, "spec_rstack_overflow=microcode", Returns::Plain),
            (0x1a, "", Returns::Safe),
        ] {
            let facts = facts(family);
            let options = Options::parse(line, |_| ());
            let selection = select(&facts, &options, &Built::LIMEN);
            let plan = Plan::new(&selection, &facts, &options);
            assert_eq!(plan.returns, wanted, "{family:#x} {line}");
            // A barrier at every entry, or returns that are untrained: never both.
            assert!(!(plan.ibpb_on_entry && plan.returns.untrains()), "{family:#x} {line}");
        }
    }

    #[test]
    fn zen2_without_threads() {
        let zen2 = Facts { vendor: Vendor::Amd, family: 0x17, ..Facts::NONE };
        assert_eq!(chosen(&zen2, "", &Built::LINUX), Mode::NoSmt);
    }
}
