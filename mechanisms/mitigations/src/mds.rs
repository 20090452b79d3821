//! Microarchitectural data sampling (CVE-2018-12126, 12127, 12130, CVE-2019-11091): a faulting load
//! forwards what lies in store, fill or load buffers. Met by VERW, which clears them, as the last
//! thing before a program runs. TAA, MMIO stale data and register file data sampling are met by the
//! same instruction, so where one of them wants it ([`Verw`]) all are met. Option: `mds=`.

use core::fmt;

use crate::facts::arch_cap::MDS_NO;
use crate::options::{CrossThread, Options};
use crate::select::{Input, NOT_AFFECTED, VULNERABLE};
use crate::table::{Row, is_amd_like, listed, never_speculates};
use crate::{Facts, Vendor, mmio_stale_data, model, reg_file_data_sampling, tsx_async_abort};

/// What was asked for: also of `tsx_async_abort=` and `mmio_stale_data=`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are the option's values")]
pub enum Wish {
    #[default]
    Auto,
    Off,
    Full,
    FullNoSmt,
}

impl Wish {
    pub(crate) fn parse(value: &str) -> Option<Self> {
        Some(match value {
            "off" => Self::Off,
            "full" => Self::Full,
            "full,nosmt" => Self::FullNoSmt,
            _ => return None,
        })
    }

    /// Whether buffers are to be cleared, as far as this option goes.
    pub(crate) fn is_asked(self, options: &Options) -> bool {
        match self {
            Self::Off => false,
            Self::Auto => options.protects_anything(),
            Self::Full | Self::FullNoSmt => true,
        }
    }

    /// Whether threads of a core are to be switched off.
    pub(crate) fn wants_one_thread(self, options: &Options) -> bool {
        self == Self::FullNoSmt || options.cross_thread == CrossThread::On
    }
}

pub(crate) fn parse(options: &mut Options, value: &str) -> Option<()> {
    options.mds = Wish::parse(value)?;
    Some(())
}

/// Atoms that forward from the store buffer only.
const STORE_BUFFER_ONLY: [Row; 7] = [
    Row::intel(model::ATOM_SILVERMONT),
    Row::intel(model::ATOM_SILVERMONT_D),
    Row::intel(model::ATOM_SILVERMONT_MID),
    Row::intel(model::ATOM_AIRMONT),
    Row::intel(model::ATOM_AIRMONT_MID),
    Row::intel(model::XEON_PHI_KNL),
    Row::intel(model::XEON_PHI_KNM),
];
const NOT_LISTED: [Row; 3] = [
    Row::intel(model::ATOM_GOLDMONT),
    Row::intel(model::ATOM_GOLDMONT_D),
    Row::intel(model::ATOM_GOLDMONT_PLUS),
];

pub(crate) fn affects(facts: &Facts) -> bool {
    let listed = listed(facts, &NOT_LISTED) || facts.vendor == Vendor::Zhaoxin;
    !never_speculates(facts) && !is_amd_like(facts) && !listed && !facts.arch_cap(MDS_NO)
}

/// Whether VERW runs before programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Verw(pub(crate) bool);

impl Verw {
    pub(crate) fn wanted(input: &Input<'_>) -> Self {
        let (facts, options) = (input.facts, input.options);
        let mds = affects(facts) && options.mds.is_asked(options);
        Self(
            mds || tsx_async_abort::wants_verw(input)
                || mmio_stale_data::wants_verw(input)
                || reg_file_data_sampling::wants_verw(input),
        )
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Threads {
    Unknown,
    Vulnerable,
    Mitigated,
    Disabled,
}

/// What a report says of the other thread of the core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ThreadNote(Threads);

impl ThreadNote {
    pub(crate) fn new(input: &Input<'_>) -> Self {
        Self(match (input.facts.hypervisor(), input.smt_active) {
            (true, _) => Threads::Unknown,
            (false, true) => Threads::Vulnerable,
            (false, false) => Threads::Disabled,
        })
    }
}

impl fmt::Display for ThreadNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Threads::Unknown => "; SMT Host state unknown",
            Threads::Vulnerable => "; SMT vulnerable",
            Threads::Mitigated => "; SMT mitigated",
            Threads::Disabled => "; SMT disabled",
        })
    }
}

/// How buffers are cleared.
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
pub struct Mds {
    /// How buffers are cleared.
    pub mode: Mode,
    store_buffer_only: bool,
    threads: ThreadNote,
}

impl Mds {
    /// VERW runs in the idle loop: the store buffer is shared out anew when a thread sleeps.
    pub(crate) fn clears_when_idle(&self, smt_active: bool) -> bool {
        let clears = matches!(self.mode, Mode::Clear | Mode::NoMicrocode);
        clears && self.store_buffer_only && smt_active
    }
}

pub(crate) fn select(input: &Input<'_>, verw: Verw) -> Mds {
    let facts = input.facts;
    let store_buffer_only = listed(facts, &STORE_BUFFER_ONLY);
    let mode = match verw.0 {
        _ if !affects(facts) => Mode::NotAffected,
        false => Mode::Off,
        true if facts.md_clear() => Mode::Clear,
        true => Mode::NoMicrocode,
    };
    let mut threads = ThreadNote::new(input);
    if store_buffer_only && threads.0 != Threads::Unknown {
        threads.0 = match (mode, input.smt_active) {
            (Mode::Off, _) => Threads::Vulnerable,
            (_, true) => Threads::Mitigated,
            (_, false) => Threads::Disabled,
        };
    }
    Mds { mode, store_buffer_only, threads }
}

pub(crate) fn wants_one_thread(input: &Input<'_>, chosen: &Mds) -> bool {
    let clears = matches!(chosen.mode, Mode::Clear | Mode::NoMicrocode);
    clears && !chosen.store_buffer_only && input.options.mds.wants_one_thread(input.options)
}

impl fmt::Display for Mds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.mode {
            Mode::NotAffected => return f.write_str(NOT_AFFECTED),
            Mode::Off => VULNERABLE,
            Mode::Clear => "Mitigation: Clear CPU buffers",
            Mode::NoMicrocode => "Vulnerable: Clear CPU buffers attempted, no microcode",
        };
        write!(f, "{state}{}", self.threads)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::facts::Smt;
    use crate::select::{Built, select};
    use std::string::ToString as _;

    fn report(facts: &Facts, line: &str) -> std::string::String {
        select(facts, &Options::parse(line, |_| ()), &Built::LIMEN).mds.to_string()
    }

    #[test]
    fn states() {
        let broadwell = Facts {
            vendor: Vendor::Intel,
            family: 6,
            model: model::BROADWELL,
            leaf7_edx: 1 << 10,
            smt: Smt::Active,
            ..Facts::NONE
        };
        let clear = "Mitigation: Clear CPU buffers";
        for (line, wanted) in [
            ("", [clear, "; SMT vulnerable"].concat()),
            ("mds=off", "Vulnerable; SMT vulnerable".into()),
            ("mds=full,nosmt", [clear, "; SMT disabled"].concat()),
            ("mitigations=auto,nosmt", [clear, "; SMT disabled"].concat()),
            ("mitigations=off", "Vulnerable; SMT vulnerable".into()),
            ("mitigations=off mds=full", [clear, "; SMT vulnerable"].concat()),
        ] {
            assert_eq!(report(&broadwell, line), wanted, "{line}");
        }
        let guest = Facts { leaf7_edx: 0, leaf1_ecx: 1 << 31, ..broadwell };
        let wanted =
            "Vulnerable: Clear CPU buffers attempted, no microcode; SMT Host state unknown";
        assert_eq!(report(&guest, ""), wanted);
        let phi = Facts { model: model::XEON_PHI_KNL, ..broadwell };
        assert_eq!(report(&phi, ""), [clear, "; SMT mitigated"].concat());
        assert_eq!(report(&Facts { model: model::ATOM_GOLDMONT, ..broadwell }, ""), NOT_AFFECTED);
    }
}
