//! Register file data sampling (CVE-2023-28746): Atoms leave old values of vector and integer
//! registers where a later load can sample them. Met by VERW with the microcode that makes it clear
//! the register file. Option: `reg_file_data_sampling=on|off`.

use core::fmt;

use crate::Facts;
use crate::facts::arch_cap::{RFDS_CLEAR, RFDS_NO};
use crate::mds::Verw;
use crate::model;
use crate::options::Options;
use crate::select::{Input, NOT_AFFECTED, VULNERABLE};
use crate::table::{Row, listed, never_speculates};

/// What was asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are the option's values")]
pub enum Wish {
    #[default]
    Auto,
    Off,
    On,
}

pub(crate) fn parse(options: &mut Options, value: &str) -> Option<()> {
    options.rfds = match value {
        "on" => Wish::On,
        "off" => Wish::Off,
        _ => return None,
    };
    Some(())
}

const LISTED: [Row; 12] = [
    Row::intel(model::ALDERLAKE).atom_core(),
    Row::intel(model::ALDERLAKE_L),
    Row::intel(model::RAPTORLAKE).atom_core(),
    Row::intel(model::RAPTORLAKE_P),
    Row::intel(model::RAPTORLAKE_S),
    Row::intel(model::ATOM_GRACEMONT),
    Row::intel(model::ATOM_TREMONT),
    Row::intel(model::ATOM_TREMONT_D),
    Row::intel(model::ATOM_TREMONT_L),
    Row::intel(model::ATOM_GOLDMONT),
    Row::intel(model::ATOM_GOLDMONT_D),
    Row::intel(model::ATOM_GOLDMONT_PLUS),
];

/// A CPU that can clear has something to clear, listed or not.
fn affects(facts: &Facts) -> bool {
    let listed = facts.arch_cap(RFDS_CLEAR) || listed(facts, &LISTED);
    !never_speculates(facts) && !facts.arch_cap(RFDS_NO) && listed
}

fn is_asked(options: &Options) -> bool {
    match options.rfds {
        Wish::Off => false,
        Wish::On => true,
        Wish::Auto => options.protects_anything(),
    }
}

pub(crate) fn wants_verw(input: &Input<'_>) -> bool {
    affects(input.facts) && is_asked(input.options) && input.facts.arch_cap(RFDS_CLEAR)
}

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are those of the reports")]
pub enum RegFileDataSampling {
    NotAffected,
    Off,
    Clear,
    NoMicrocode,
}

pub(crate) fn select(input: &Input<'_>, verw: Verw) -> RegFileDataSampling {
    match verw.0 || is_asked(input.options) {
        _ if !affects(input.facts) => RegFileDataSampling::NotAffected,
        false => RegFileDataSampling::Off,
        true if input.facts.arch_cap(RFDS_CLEAR) => RegFileDataSampling::Clear,
        true => RegFileDataSampling::NoMicrocode,
    }
}

impl fmt::Display for RegFileDataSampling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotAffected => NOT_AFFECTED,
            Self::Off => VULNERABLE,
            Self::Clear => "Mitigation: Clear Register File",
            Self::NoMicrocode => "Vulnerable: No microcode",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::Vendor;
    use crate::select::{Built, select};

    #[test]
    fn small_cores() {
        let gracemont = Facts {
            vendor: Vendor::Intel,
            family: 6,
            model: model::ATOM_GRACEMONT,
            leaf7_edx: 1 << 29,
            arch_capabilities: RFDS_CLEAR,
            ..Facts::NONE
        };
        let chosen = |facts: &Facts, line: &str| {
            let options = Options::parse(line, |_| ());
            select(facts, &options, &Built::LIMEN).reg_file_data_sampling
        };
        assert_eq!(chosen(&gracemont, ""), RegFileDataSampling::Clear);
        // MDS is not denied by these facts, and is met by the same instruction.
        let line = "reg_file_data_sampling=off mds=off";
        assert_eq!(chosen(&gracemont, line), RegFileDataSampling::Off);
        let old = Facts { arch_capabilities: 0, ..gracemont };
        assert_eq!(chosen(&old, ""), RegFileDataSampling::NoMicrocode);
        let big = Facts { model: model::ALDERLAKE, arch_capabilities: 0, ..gracemont };
        assert_eq!(chosen(&big, ""), RegFileDataSampling::NotAffected);
        let immune = Facts { arch_capabilities: RFDS_NO, ..gracemont };
        assert_eq!(chosen(&immune, ""), RegFileDataSampling::NotAffected);
    }
}
