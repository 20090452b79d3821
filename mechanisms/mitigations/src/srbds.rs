//! Special register buffer data sampling (CVE-2020-0543): what RDRAND and the like have read lies
//! in a buffer that all cores share. Met by microcode, which the kernel leaves on or switches off
//! (`MCU_OPT_CTRL.RNGDS_MITG_DIS`). Option: `srbds=off`.

use core::fmt;

use crate::Facts;
use crate::facts::arch_cap::MDS_NO;
use crate::mmio_stale_data::{self, SHARED_BUFFERS};
use crate::model;
use crate::options::Options;
use crate::select::{Input, NOT_AFFECTED, VULNERABLE};
use crate::table::{Row, listed};
use crate::tsx_async_abort::has_rtm;

pub(crate) fn parse(options: &mut Options, value: &str) -> Option<()> {
    if value != "off" {
        return None;
    }
    options.srbds_off = true;
    Some(())
}

const LISTED: [Row; 10] = [
    Row::intel(model::IVYBRIDGE),
    Row::intel(model::HASWELL),
    Row::intel(model::HASWELL_L),
    Row::intel(model::HASWELL_G),
    Row::intel(model::BROADWELL_G),
    Row::intel(model::BROADWELL),
    Row::intel(model::SKYLAKE_L),
    Row::intel(model::SKYLAKE),
    Row::intel(model::KABYLAKE_L),
    Row::intel(model::KABYLAKE),
];

fn affects(facts: &Facts) -> bool {
    let draws = facts.rdrand() || facts.rdseed();
    draws && (listed(facts, &LISTED) || listed(facts, &SHARED_BUFFERS))
}

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are those of the reports")]
pub enum Srbds {
    NotAffected,
    Off,
    NoMicrocode,
    Microcode,
    TsxDisabled,
    Unknown,
}

pub(crate) fn select(input: &Input<'_>) -> Srbds {
    let facts = input.facts;
    // Some CPUs without MDS are exposed by transactions alone.
    let by_tsx_only = facts.arch_cap(MDS_NO) && !mmio_stale_data::affects(facts);
    if !affects(facts) {
        Srbds::NotAffected
    } else if !input.options.protects_anything() {
        Srbds::Off
    } else if by_tsx_only && !has_rtm(input) {
        Srbds::TsxDisabled
    } else if facts.hypervisor() {
        Srbds::Unknown
    } else if !facts.srbds_ctrl() {
        Srbds::NoMicrocode
    } else if input.options.srbds_off {
        Srbds::Off
    } else {
        Srbds::Microcode
    }
}

impl fmt::Display for Srbds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotAffected => NOT_AFFECTED,
            Self::Off => VULNERABLE,
            Self::NoMicrocode => "Vulnerable: No microcode",
            Self::Microcode => "Mitigation: Microcode",
            Self::TsxDisabled => "Mitigation: TSX disabled",
            Self::Unknown => "Unknown: Dependent on hypervisor status",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::Vendor;
    use crate::select::{Built, select};

    #[test]
    fn states() {
        let skylake = Facts {
            vendor: Vendor::Intel,
            family: 6,
            model: model::SKYLAKE,
            leaf1_ecx: 1 << 30,
            leaf7_edx: 1 << 9,
            ..Facts::NONE
        };
        let chosen = |facts: &Facts, line: &str| {
            select(facts, &Options::parse(line, |_| ()), &Built::LIMEN).srbds
        };
        assert_eq!(chosen(&skylake, ""), Srbds::Microcode);
        assert_eq!(chosen(&skylake, "srbds=off"), Srbds::Off);
        assert_eq!(chosen(&skylake, "mitigations=off"), Srbds::Off);
        assert_eq!(chosen(&Facts { leaf7_edx: 0, ..skylake }, ""), Srbds::NoMicrocode);
        assert_eq!(chosen(&Facts { leaf1_ecx: 3 << 30, ..skylake }, ""), Srbds::Unknown);
        assert_eq!(chosen(&Facts { leaf1_ecx: 0, ..skylake }, ""), Srbds::NotAffected);
        let kaby = Facts { model: model::KABYLAKE, leaf7_edx: 1 << 29, ..skylake };
        let immune = 1 << 13 | 1 << 14 | 1 << 15;
        let kaby = Facts { arch_capabilities: MDS_NO | immune, ..kaby };
        assert_eq!(chosen(&kaby, ""), Srbds::TsxDisabled);
    }
}
