//! Rows of the tables of CPUs that each vulnerability's file has: a vendor, a family, a model and a
//! range of steppings.
//!
//! Source of every row: Intel's "Affected Processors: Transient Execution Attacks" and AMD's
//! security bulletins, in the grouping that Linux publishes (mechanisms/mitigations/README.md).

use crate::facts::{Facts, Vendor};
use crate::model;

/// CPUs that share a property.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    vendor: Vendor,
    family: u16,
    model: Option<u8>,
    first_stepping: u8,
    last_stepping: u8,
    atom_core: bool,
}

impl Row {
    /// A model of Intel's family 6, all steppings.
    #[must_use]
    pub const fn intel(model: u8) -> Self {
        let any = Self::family(Vendor::Intel, 6);
        Self { model: Some(model), ..any }
    }

    /// A family of AMD's.
    #[must_use]
    pub const fn amd(family: u16) -> Self {
        Self::family(Vendor::Amd, family)
    }

    /// A family of Hygon's.
    #[must_use]
    pub const fn hygon(family: u16) -> Self {
        Self::family(Vendor::Hygon, family)
    }

    const fn family(vendor: Vendor, family: u16) -> Self {
        Self {
            vendor,
            family,
            model: None,
            first_stepping: 0,
            last_stepping: u8::MAX,
            atom_core: false,
        }
    }

    /// Only from this stepping on.
    #[must_use]
    pub const fn from(self, first_stepping: u8) -> Self {
        Self { first_stepping, ..self }
    }

    /// Only up to this stepping.
    #[must_use]
    pub const fn to(self, last_stepping: u8) -> Self {
        Self { last_stepping, ..self }
    }

    /// Only the small cores of a hybrid CPU, as CPUID leaf 0x1a tells.
    #[must_use]
    pub const fn atom_core(self) -> Self {
        Self { atom_core: true, ..self }
    }

    fn matches(&self, facts: &Facts) -> bool {
        self.vendor == facts.vendor
            && self.family == facts.family
            && self.model.is_none_or(|model| model == facts.model)
            && (self.first_stepping..=self.last_stepping).contains(&facts.stepping)
            && (!self.atom_core || facts.is_atom_core())
    }
}

/// Whether one of the rows is this CPU.
#[must_use]
pub fn listed(facts: &Facts, rows: &[Row]) -> bool {
    rows.iter().any(|row| row.matches(facts))
}

/// Intel's in-order Atoms, which do not speculate.
const IN_ORDER: [Row; 5] = [
    Row::intel(model::ATOM_BONNELL),
    Row::intel(model::ATOM_BONNELL_MID),
    Row::intel(model::ATOM_SALTWELL),
    Row::intel(model::ATOM_SALTWELL_MID),
    Row::intel(model::ATOM_SALTWELL_TABLET),
];

/// Whether the CPU executes nothing that it would have to take back.
#[must_use]
pub fn never_speculates(facts: &Facts) -> bool {
    listed(facts, &IN_ORDER) || matches!(facts.family, 4 | 5) && facts.vendor != Vendor::Amd
}

/// AMD and Hygon, and Zhaoxin's own cores where `zhaoxin`.
pub(crate) fn is_amd_like(facts: &Facts) -> bool {
    matches!(facts.vendor, Vendor::Amd | Vendor::Hygon)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows() {
        let skylake_x = |stepping| Facts {
            vendor: Vendor::Intel,
            family: 6,
            model: model::SKYLAKE_X,
            stepping,
            ..Facts::default()
        };
        let old = [Row::intel(model::SKYLAKE_X).to(5)];
        let new = [Row::intel(model::SKYLAKE_X).from(6)];
        assert!(listed(&skylake_x(5), &old) && !listed(&skylake_x(5), &new));
        assert!(!listed(&skylake_x(6), &old) && listed(&skylake_x(6), &new));
        let small = [Row::intel(model::SKYLAKE_X).atom_core()];
        assert!(!listed(&skylake_x(6), &small));
        let hybrid = Facts { leaf7_edx: 1 << 15, leaf1a_eax: 0x20 << 24, ..skylake_x(6) };
        assert!(listed(&hybrid, &small));
        assert!(!listed(&Facts { vendor: Vendor::Amd, ..skylake_x(5) }, &old));
    }

    #[test]
    fn only_in_order_cpus_never_speculate() {
        let atom = Facts {
            vendor: Vendor::Intel,
            family: 6,
            model: model::ATOM_BONNELL,
            ..Facts::default()
        };
        assert!(never_speculates(&atom));
        assert!(!never_speculates(&Facts { model: model::ATOM_SILVERMONT, ..atom }));
    }
}
