//! TSX asynchronous abort (CVE-2019-11135): an aborting transaction forwards from buffers as MDS
//! does. Met by switching transactions off where the CPU can (`tsx=off`, the default), else by
//! VERW. Options: `tsx_async_abort=`, `tsx=`.

use core::fmt;

use crate::Facts;
use crate::facts::arch_cap::{MDS_NO, TAA_NO, TSX_CTRL};
use crate::mds::{ThreadNote, Verw, Wish};
use crate::options::Options;
use crate::select::{Input, NOT_AFFECTED, VULNERABLE};
use crate::table::never_speculates;

/// What `tsx=` says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are the option's values")]
pub enum Tsx {
    #[default]
    Off,
    On,
    /// On, but where the CPU has this vulnerability.
    Auto,
}

pub(crate) fn parse(options: &mut Options, value: &str) -> Option<()> {
    options.taa = Wish::parse(value)?;
    Some(())
}

pub(crate) fn parse_tsx(options: &mut Options, value: &str) -> Option<()> {
    options.tsx = match value {
        "off" => Tsx::Off,
        "on" => Tsx::On,
        "auto" => Tsx::Auto,
        _ => return None,
    };
    Some(())
}

pub(crate) fn affects(facts: &Facts) -> bool {
    let has_tsx = facts.rtm_bit() || facts.arch_cap(TSX_CTRL);
    !never_speculates(facts) && !facts.arch_cap(TAA_NO) && has_tsx
}

/// Whether the kernel switches transactions off: `TSX_CTRL` (MSR 0x122).
pub(crate) fn switches_tsx_off(input: &Input<'_>) -> bool {
    let off = match input.options.tsx {
        Tsx::Off => true,
        Tsx::On => false,
        Tsx::Auto => affects(input.facts),
    };
    off && input.facts.arch_cap(TSX_CTRL)
}

/// Whether programs can use transactions.
pub(crate) fn has_rtm(input: &Input<'_>) -> bool {
    let facts = input.facts;
    facts.rtm_bit() && !facts.rtm_always_abort() && !switches_tsx_off(input)
}

pub(crate) fn wants_verw(input: &Input<'_>) -> bool {
    affects(input.facts) && has_rtm(input) && input.options.taa.is_asked(input.options)
}

/// How it is met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are those of the reports")]
pub enum Mode {
    NotAffected,
    Off,
    TsxDisabled,
    Clear,
    NoMicrocode,
}

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TsxAsyncAbort {
    /// How it is met.
    pub mode: Mode,
    /// Transactions are switched off by the kernel.
    pub disables_tsx: bool,
    threads: ThreadNote,
}

pub(crate) fn select(input: &Input<'_>, verw: Verw) -> TsxAsyncAbort {
    let facts = input.facts;
    // VERW of a CPU without MDS clears buffers only with the microcode that brought `TSX_CTRL`.
    let has_microcode = facts.md_clear() && (!facts.arch_cap(MDS_NO) || facts.arch_cap(TSX_CTRL));
    let mode = match verw.0 {
        _ if !affects(facts) => Mode::NotAffected,
        _ if !has_rtm(input) => Mode::TsxDisabled,
        false => Mode::Off,
        true if has_microcode => Mode::Clear,
        true => Mode::NoMicrocode,
    };
    TsxAsyncAbort { mode, disables_tsx: switches_tsx_off(input), threads: ThreadNote::new(input) }
}

pub(crate) fn wants_one_thread(input: &Input<'_>, chosen: &TsxAsyncAbort) -> bool {
    let clears = matches!(chosen.mode, Mode::Clear | Mode::NoMicrocode);
    clears && input.options.taa.wants_one_thread(input.options)
}

impl fmt::Display for TsxAsyncAbort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.mode {
            Mode::NotAffected => return f.write_str(NOT_AFFECTED),
            Mode::Off => return f.write_str(VULNERABLE),
            Mode::TsxDisabled => return f.write_str("Mitigation: TSX disabled"),
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
    use crate::model;
    use crate::select::{Built, select};

    #[test]
    fn transactions_go_first() {
        let cascade_lake = Facts {
            vendor: Vendor::Intel,
            family: 6,
            model: model::SKYLAKE_X,
            stepping: 7,
            leaf7_ebx: 1 << 11,
            leaf7_edx: 1 << 10 | 1 << 29,
            arch_capabilities: 1 | MDS_NO | TSX_CTRL,
            ..Facts::NONE
        };
        let chosen = |facts: &Facts, line: &str| {
            let chosen = select(facts, &Options::parse(line, |_| ()), &Built::LIMEN);
            (chosen.tsx_async_abort.mode, chosen.tsx_async_abort.disables_tsx)
        };
        assert_eq!(chosen(&cascade_lake, ""), (Mode::TsxDisabled, true));
        assert_eq!(chosen(&cascade_lake, "tsx=auto"), (Mode::TsxDisabled, true));
        assert_eq!(chosen(&cascade_lake, "tsx=on"), (Mode::Clear, false));
        assert_eq!(
            chosen(&cascade_lake, "tsx=on tsx_async_abort=off mmio_stale_data=off").0,
            Mode::Off
        );
        let old = Facts { arch_capabilities: 1 | MDS_NO, ..cascade_lake };
        assert_eq!(chosen(&old, ""), (Mode::NoMicrocode, false));
        let immune = Facts { arch_capabilities: TAA_NO, ..cascade_lake };
        assert_eq!(chosen(&immune, ""), (Mode::NotAffected, false));
    }
}
