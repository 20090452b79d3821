//! Gather data sampling (CVE-2022-40982, "Downfall"): GATHER forwards stale vector data, of the
//! other thread too. Met by microcode, which the kernel leaves on or switches off
//! (`MCU_OPT_CTRL.GDS_MITG_DIS`), or by taking AVX away. Option: `gather_data_sampling=off|force`.

use core::fmt;

use crate::facts::arch_cap::{GDS_CTRL, GDS_NO};
use crate::facts::mcu_opt::GDS_MITG_LOCKED;
use crate::options::{CrossThread, Options};
use crate::select::{Input, NOT_AFFECTED, VULNERABLE};
use crate::table::{Row, listed};
use crate::{Facts, model};

/// What was asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are the option's values")]
pub enum Wish {
    #[default]
    Auto,
    Off,
    Force,
}

pub(crate) fn parse(options: &mut Options, value: &str) -> Option<()> {
    options.gds = match value {
        "off" => Wish::Off,
        "force" => Wish::Force,
        _ => return None,
    };
    Some(())
}

const LISTED: [Row; 13] = [
    Row::intel(model::SKYLAKE_X),
    Row::intel(model::SKYLAKE_L),
    Row::intel(model::SKYLAKE),
    Row::intel(model::KABYLAKE_L),
    Row::intel(model::KABYLAKE),
    Row::intel(model::ICELAKE_L),
    Row::intel(model::ICELAKE_D),
    Row::intel(model::ICELAKE_X),
    Row::intel(model::COMETLAKE),
    Row::intel(model::COMETLAKE_L).from(1),
    Row::intel(model::TIGERLAKE_L),
    Row::intel(model::TIGERLAKE),
    Row::intel(model::ROCKETLAKE),
];

fn affects(facts: &Facts) -> bool {
    listed(facts, &LISTED) && !facts.arch_cap(GDS_NO) && facts.avx()
}

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are those of the reports")]
pub enum GatherDataSampling {
    NotAffected,
    Off,
    NoMicrocode,
    AvxDisabled,
    Microcode,
    MicrocodeLocked,
    Unknown,
}

pub(crate) fn select(input: &Input<'_>) -> GatherDataSampling {
    let (facts, options) = (input.facts, input.options);
    let across_threads = options.cross_thread != CrossThread::Off;
    let asked = options.protects_anything() || across_threads;
    let wish = match options.gds {
        Wish::Auto if !asked => Wish::Off,
        wish => wish,
    };
    if !affects(facts) {
        GatherDataSampling::NotAffected
    } else if facts.hypervisor() {
        GatherDataSampling::Unknown
    } else if !facts.arch_cap(GDS_CTRL) {
        match wish {
            Wish::Force if input.built.avx_off => GatherDataSampling::AvxDisabled,
            _ => GatherDataSampling::NoMicrocode,
        }
    } else if facts.mcu_opt_ctrl & GDS_MITG_LOCKED != 0 {
        GatherDataSampling::MicrocodeLocked
    } else if wish == Wish::Off {
        GatherDataSampling::Off
    } else {
        GatherDataSampling::Microcode
    }
}

impl fmt::Display for GatherDataSampling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotAffected => NOT_AFFECTED,
            Self::Off => VULNERABLE,
            Self::NoMicrocode => "Vulnerable: No microcode",
            Self::AvxDisabled => "Mitigation: AVX disabled, no microcode",
            Self::Microcode => "Mitigation: Microcode",
            Self::MicrocodeLocked => "Mitigation: Microcode (locked)",
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
        use GatherDataSampling as Gds;
        let skylake = Facts {
            vendor: Vendor::Intel,
            family: 6,
            model: model::SKYLAKE,
            leaf1_ecx: 1 << 28,
            leaf7_edx: 1 << 29,
            arch_capabilities: GDS_CTRL,
            ..Facts::NONE
        };
        let on = |facts: &Facts, line: &str, built: &Built| {
            select(facts, &Options::parse(line, |_| ()), built).gather_data_sampling
        };
        let chosen = |facts: &Facts, line: &str| on(facts, line, &Built::LIMEN);
        assert_eq!(chosen(&skylake, ""), Gds::Microcode);
        assert_eq!(chosen(&skylake, "gather_data_sampling=off"), Gds::Off);
        assert_eq!(chosen(&skylake, "mitigations=off"), Gds::Off);
        let locked = Facts { mcu_opt_ctrl: GDS_MITG_LOCKED, ..skylake };
        assert_eq!(chosen(&locked, "gather_data_sampling=off"), Gds::MicrocodeLocked);
        let old = Facts { arch_capabilities: 0, ..skylake };
        assert_eq!(chosen(&old, ""), Gds::NoMicrocode);
        let force = "gather_data_sampling=force";
        assert_eq!(chosen(&old, force), Gds::NoMicrocode);
        assert_eq!(on(&old, force, &Built::LINUX), Gds::AvxDisabled);
        assert_eq!(chosen(&Facts { leaf1_ecx: 9 << 28, ..skylake }, ""), Gds::Unknown);
        assert_eq!(chosen(&Facts { leaf1_ecx: 0, ..skylake }, ""), Gds::NotAffected);
    }
}
