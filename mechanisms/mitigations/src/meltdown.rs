//! Meltdown (CVE-2017-5754): a program's load of a kernel address forwards the data before the
//! fault. Met by page-table isolation: programs run on tables that lack the kernel.
//! Options: `pti=on|off|auto`, `nopti`.

use core::fmt;

use crate::Facts;
use crate::facts::arch_cap::RDCL_NO;
use crate::options::{Options, Vector};
use crate::select::{Input, NOT_AFFECTED, VULNERABLE};
use crate::table::{is_amd_like, never_speculates};

/// What was asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wish {
    /// Where the CPU is vulnerable.
    #[default]
    Auto,
    /// Always.
    On,
    /// Never.
    Off,
}

pub(crate) fn parse(options: &mut Options, value: &str) -> Option<()> {
    options.pti = match value {
        "auto" => Wish::Auto,
        "on" => Wish::On,
        "off" => Wish::Off,
        _ => return None,
    };
    Some(())
}

/// AMD and Hygon check the right before they forward; newer Intel CPUs say that they do.
pub(crate) fn affects(facts: &Facts) -> bool {
    !never_speculates(facts) && !is_amd_like(facts) && !facts.arch_cap(RDCL_NO)
}

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meltdown {
    affected: bool,
    /// Programs run on page tables of their own.
    pub pti: bool,
}

pub(crate) fn select(input: &Input<'_>) -> Meltdown {
    let affected = affects(input.facts);
    let pti = match input.options.pti {
        Wish::On => true,
        Wish::Off => false,
        Wish::Auto => affected && input.options.meets(&[Vector::UserKernel]),
    };
    Meltdown { affected, pti }
}

impl fmt::Display for Meltdown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match (self.affected, self.pti) {
            (false, _) => NOT_AFFECTED,
            (true, true) => "Mitigation: PTI",
            (true, false) => VULNERABLE,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Vendor;
    use crate::select::{Built, select};

    fn pti(line: &str, facts: &Facts) -> bool {
        select(facts, &Options::parse(line, |_| ()), &Built::LIMEN).meltdown.pti
    }

    #[test]
    fn who_needs_it_and_what_options_do() {
        let old = Facts { vendor: Vendor::Intel, family: 6, model: 0x5e, ..Facts::default() };
        let new = Facts { leaf7_edx: 1 << 29, arch_capabilities: RDCL_NO, ..old };
        let amd = Facts { vendor: Vendor::Amd, family: 0x19, ..Facts::default() };
        for (line, facts, wanted) in [
            ("", old, true),
            ("", new, false),
            ("", amd, false),
            ("", Facts::default(), true),
            ("pti=on", amd, true),
            ("pti=off", old, false),
            ("pti=off pti=auto", old, true),
            ("nopti", old, false),
            ("mitigations=off", old, false),
            ("mitigations=off pti=on", old, true),
            ("mitigations=auto;no_user_kernel", old, false),
        ] {
            assert_eq!(pti(line, &facts), wanted, "{line} {facts}");
        }
    }
}
