//! L1 terminal fault (CVE-2018-3620, CVE-2018-3646): an entry of a page table that is not present
//! still gives its frame number to the L1 cache. Met for programs by entries that, when not
//! present, name no frame (`machine/src/memory/pte.rs` keeps no frame number in them); for guests
//! by a flush of the cache before they run, which needs VMX. Option: `l1tf=`.

use core::fmt;

use crate::Facts;
use crate::facts::arch_cap::SKIP_L1DFL_VMENTRY;
use crate::meltdown;
use crate::options::{CrossThread, Options};
use crate::select::{Input, NOT_AFFECTED};
use crate::table::{Row, listed};
use crate::{Vendor, model};

/// What was asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are the option's values")]
pub enum Wish {
    #[default]
    Auto,
    Off,
    Flush,
    FlushNoWarn,
    FlushNoSmt,
    Full,
    FullForce,
}

pub(crate) fn parse(options: &mut Options, value: &str) -> Option<()> {
    options.l1tf = match value {
        "off" => Wish::Off,
        "flush" => Wish::Flush,
        "flush,nowarn" => Wish::FlushNoWarn,
        "flush,nosmt" => Wish::FlushNoSmt,
        "full" => Wish::Full,
        "full,force" => Wish::FullForce,
        _ => return None,
    };
    Some(())
}

/// Intel CPUs that have Meltdown but check the present bit.
const NOT_LISTED: [Row; 11] = [
    Row::intel(model::ATOM_SILVERMONT),
    Row::intel(model::ATOM_SILVERMONT_D),
    Row::intel(model::ATOM_SILVERMONT_MID),
    Row::intel(model::ATOM_AIRMONT),
    Row::intel(model::ATOM_AIRMONT_MID),
    Row::intel(model::ATOM_AIRMONT_NP),
    Row::intel(model::ATOM_GOLDMONT),
    Row::intel(model::ATOM_GOLDMONT_D),
    Row::intel(model::ATOM_GOLDMONT_PLUS),
    Row::intel(model::XEON_PHI_KNL),
    Row::intel(model::XEON_PHI_KNM),
];

fn affects(facts: &Facts) -> bool {
    let is_intel = matches!(facts.vendor, Vendor::Intel | Vendor::Other);
    is_intel && meltdown::affects(facts) && !listed(facts, &NOT_LISTED)
}

/// What a hypervisor does before a guest runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Guest {
    /// There is no hypervisor for VMX.
    None,
    Never,
    Conditional,
    Always,
    NotRequired,
}

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct L1tf {
    affected: bool,
    guest: Guest,
    smt_active: bool,
}

pub(crate) fn select(input: &Input<'_>) -> L1tf {
    let facts = input.facts;
    let asked = input.options.protects_kernel();
    let guest = match input.options.l1tf {
        _ if !input.built.vmx || !facts.hypervisor_inside => Guest::None,
        _ if facts.arch_cap(SKIP_L1DFL_VMENTRY) => Guest::NotRequired,
        Wish::Off => Guest::Never,
        Wish::Auto if !asked => Guest::Never,
        Wish::Full | Wish::FullForce => Guest::Always,
        _ => Guest::Conditional,
    };
    L1tf { affected: affects(facts), guest, smt_active: input.smt_active }
}

pub(crate) fn wants_one_thread(input: &Input<'_>) -> bool {
    let options = input.options;
    affects(input.facts)
        && match options.l1tf {
            Wish::Auto => options.protects_kernel() && options.cross_thread == CrossThread::On,
            Wish::FlushNoSmt | Wish::Full | Wish::FullForce => true,
            Wish::Off | Wish::Flush | Wish::FlushNoWarn => false,
        }
}

impl fmt::Display for L1tf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.affected {
            return f.write_str(NOT_AFFECTED);
        }
        f.write_str("Mitigation: PTE Inversion")?;
        let threads = if self.smt_active { "vulnerable" } else { "disabled" };
        match self.guest {
            Guest::None => Ok(()),
            Guest::Never if self.smt_active => f.write_str("; VMX: vulnerable"),
            Guest::Never => write!(f, "; VMX: vulnerable, SMT {threads}"),
            Guest::Conditional => write!(f, "; VMX: conditional cache flushes, SMT {threads}"),
            Guest::Always => write!(f, "; VMX: cache flushes, SMT {threads}"),
            Guest::NotRequired => write!(f, "; VMX: flush not necessary, SMT {threads}"),
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::facts::Smt;
    use crate::select::{Built, select};
    use std::string::ToString as _;

    #[test]
    fn programs_and_guests() {
        let skylake = Facts {
            vendor: Vendor::Intel,
            family: 6,
            model: model::SKYLAKE,
            hypervisor_inside: true,
            smt: Smt::Active,
            ..Facts::NONE
        };
        let report = |facts: &Facts, line: &str, built: &Built| {
            select(facts, &Options::parse(line, |_| ()), built).l1tf.to_string()
        };
        let start = "Mitigation: PTE Inversion";
        assert_eq!(report(&skylake, "", &Built::LIMEN), start);
        for (line, wanted) in [
            ("", "; VMX: conditional cache flushes, SMT vulnerable"),
            ("l1tf=full", "; VMX: cache flushes, SMT disabled"),
            ("l1tf=off", "; VMX: vulnerable"),
            ("l1tf=flush,nosmt", "; VMX: conditional cache flushes, SMT disabled"),
        ] {
            assert_eq!(report(&skylake, line, &Built::LINUX), [start, wanted].concat(), "{line}");
        }
        let goldmont = Facts { model: model::ATOM_GOLDMONT, ..skylake };
        assert_eq!(report(&goldmont, "", &Built::LINUX), NOT_AFFECTED);
    }
}
