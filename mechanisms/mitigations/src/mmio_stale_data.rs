//! Processor MMIO stale data (CVE-2022-21123, 21125, 21166): buffers between core and uncore keep
//! what programs may then sample. Met by VERW: before programs where they could sample it, which is
//! where MDS or TAA is; else before guests only. Option: `mmio_stale_data=`.

use core::fmt;

use crate::Facts;
use crate::facts::arch_cap::{FB_CLEAR, FBSDP_NO, MDS_NO, PSDP_NO, SBDR_SSDP_NO};
use crate::mds::{self, ThreadNote, Verw, Wish};
use crate::model;
use crate::options::Options;
use crate::select::{Input, NOT_AFFECTED, VULNERABLE};
use crate::table::{Row, listed};
use crate::tsx_async_abort;

pub(crate) fn parse(options: &mut Options, value: &str) -> Option<()> {
    options.mmio = Wish::parse(value)?;
    Some(())
}

const LISTED: [Row; 18] = [
    Row::intel(model::HASWELL_X),
    Row::intel(model::BROADWELL_D),
    Row::intel(model::BROADWELL_X),
    Row::intel(model::SKYLAKE_X),
    Row::intel(model::SKYLAKE_L),
    Row::intel(model::SKYLAKE),
    Row::intel(model::KABYLAKE_L),
    Row::intel(model::KABYLAKE),
    Row::intel(model::ICELAKE_L),
    Row::intel(model::ICELAKE_D),
    Row::intel(model::ICELAKE_X),
    Row::intel(model::COMETLAKE),
    Row::intel(model::COMETLAKE_L),
    Row::intel(model::LAKEFIELD),
    Row::intel(model::ROCKETLAKE),
    Row::intel(model::ATOM_TREMONT),
    Row::intel(model::ATOM_TREMONT_D),
    Row::intel(model::ATOM_TREMONT_L),
];

/// Those of them whose shared buffers can be sampled as well (SRBDS).
pub(crate) const SHARED_BUFFERS: [Row; 6] = [
    Row::intel(model::ICELAKE_L),
    Row::intel(model::COMETLAKE),
    Row::intel(model::COMETLAKE_L).from(1),
    Row::intel(model::LAKEFIELD),
    Row::intel(model::ATOM_TREMONT),
    Row::intel(model::ATOM_TREMONT_L),
];

pub(crate) fn affects(facts: &Facts) -> bool {
    let immune =
        facts.arch_cap(FBSDP_NO) && facts.arch_cap(PSDP_NO) && facts.arch_cap(SBDR_SSDP_NO);
    listed(facts, &LISTED) && !immune
}

pub(crate) fn wants_verw(input: &Input<'_>) -> bool {
    let facts = input.facts;
    let can_sample =
        mds::affects(facts) || tsx_async_abort::affects(facts) && tsx_async_abort::has_rtm(input);
    affects(facts) && can_sample && input.options.mmio.is_asked(input.options)
}

/// How it is met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are those of the reports")]
pub enum Mode {
    NotAffected,
    Off,
    Clear,
    NoMicrocode,
}

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MmioStaleData {
    /// How it is met.
    pub mode: Mode,
    /// VERW runs in the idle loop: fill buffers may go to the uncore at any time.
    pub clears_when_idle: bool,
    threads: ThreadNote,
}

pub(crate) fn select(input: &Input<'_>, verw: Verw) -> MmioStaleData {
    let facts = input.facts;
    let by_mds = facts.md_clear() && facts.flush_l1d() && !facts.arch_cap(MDS_NO);
    let has_microcode = facts.arch_cap(FB_CLEAR) || by_mds;
    let mode = match verw.0 || input.options.mmio.is_asked(input.options) {
        _ if !affects(facts) => Mode::NotAffected,
        false => Mode::Off,
        true if has_microcode => Mode::Clear,
        true => Mode::NoMicrocode,
    };
    let clears = matches!(mode, Mode::Clear | Mode::NoMicrocode);
    MmioStaleData {
        mode,
        clears_when_idle: clears && !facts.arch_cap(FBSDP_NO),
        threads: ThreadNote::new(input),
    }
}

pub(crate) fn wants_one_thread(input: &Input<'_>, chosen: &MmioStaleData) -> bool {
    let clears = matches!(chosen.mode, Mode::Clear | Mode::NoMicrocode);
    clears && input.options.mmio.wants_one_thread(input.options)
}

impl fmt::Display for MmioStaleData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.mode {
            Mode::NotAffected => return f.write_str(NOT_AFFECTED),
            Mode::Off => return f.write_str(VULNERABLE),
            Mode::Clear => "Mitigation: Clear CPU buffers",
            Mode::NoMicrocode => "Vulnerable: Clear CPU buffers attempted, no microcode",
        };
        write!(f, "{state}{}", self.threads)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::Vendor;
    use crate::select::{Built, select};

    #[test]
    fn programs_pay_only_where_they_can_sample() {
        let ice_lake = Facts {
            vendor: Vendor::Intel,
            family: 6,
            model: model::ICELAKE_X,
            leaf7_edx: 1 << 10 | 1 << 29,
            arch_capabilities: 1 | MDS_NO | FB_CLEAR,
            ..Facts::NONE
        };
        let chosen = |facts: &Facts, line: &str| {
            let options = Options::parse(line, |_| ());
            let chosen = select(facts, &options, &Built::LIMEN);
            let plan = crate::Plan::new(&chosen, facts, &options);
            (chosen.mmio_stale_data.mode, plan.verw_on_exit)
        };
        assert_eq!(chosen(&ice_lake, ""), (Mode::Clear, false));
        assert_eq!(chosen(&ice_lake, "mmio_stale_data=off"), (Mode::Off, false));
        let haswell = Facts { model: model::HASWELL_X, arch_capabilities: 0, ..ice_lake };
        assert_eq!(chosen(&haswell, ""), (Mode::NoMicrocode, true));
        // MDS is met by the same instruction.
        assert_eq!(chosen(&haswell, "mmio_stale_data=off"), (Mode::NoMicrocode, true));
        assert_eq!(chosen(&haswell, "mmio_stale_data=off mds=off"), (Mode::Off, false));
        let immune = FBSDP_NO | PSDP_NO | SBDR_SSDP_NO;
        let immune = Facts { arch_capabilities: immune, ..ice_lake };
        assert_eq!(chosen(&immune, "mds=off").0, Mode::NotAffected);
    }
}
