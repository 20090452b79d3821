//! Spectre variant 2 between programs: one trains branches of another, across a switch (met by
//! IBPB) or from the other thread of its core (met by STIBP). By default only programs that ask for
//! it by prctl(2) pay for it. Option: `spectre_v2_user=`; part of the report of `spectre_v2`.

use crate::options::{CrossThread, Options};
use crate::retbleed::Retbleed;
use crate::select::Input;
use crate::spectre_v2::{self, SpectreV2};

/// What was asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are the option's values")]
pub enum Wish {
    #[default]
    Auto,
    Off,
    On,
    Prctl,
    PrctlIbpb,
    Seccomp,
    SeccompIbpb,
}

pub(crate) fn parse(options: &mut Options, value: &str) -> Option<()> {
    options.spectre_v2_user = match value {
        "auto" => Wish::Auto,
        "off" => Wish::Off,
        "on" => Wish::On,
        "prctl" => Wish::Prctl,
        "prctl,ibpb" => Wish::PrctlIbpb,
        "seccomp" => Wish::Seccomp,
        "seccomp,ibpb" => Wish::SeccompIbpb,
        _ => return None,
    };
    Some(())
}

/// For whom a barrier or a bit is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum For {
    /// Nobody.
    Nobody,
    /// Programs that asked by prctl(2).
    Prctl,
    /// Those, and programs under seccomp(2).
    Seccomp,
    /// Everybody, since it was asked for.
    Everybody,
    /// Everybody, since that is no dearer.
    EverybodyPreferred,
}

impl For {
    /// Whether single programs choose.
    #[must_use]
    pub fn is_by_program(self) -> bool {
        matches!(self, Self::Prctl | Self::Seccomp)
    }

    /// Whether nobody chooses.
    #[must_use]
    pub fn is_everybody(self) -> bool {
        matches!(self, Self::Everybody | Self::EverybodyPreferred)
    }
}

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpectreV2User {
    /// A barrier when the CPU goes to another program.
    pub ibpb: For,
    /// Predictions of the other thread do not count.
    pub stibp: For,
    smt_active: bool,
}

impl SpectreV2User {
    pub(crate) const NONE: Self = Self { ibpb: For::Nobody, stibp: For::Nobody, smt_active: false };

    /// Whether programs may choose (PR_SET_SPECULATION_CTRL, prctl(2)).
    #[must_use]
    pub fn is_by_program(&self) -> bool {
        self.ibpb.is_by_program() || self.stibp.is_by_program()
    }

    pub(crate) fn ibpb_state(&self) -> &'static str {
        match self.ibpb {
            For::Nobody => "; IBPB: disabled",
            For::Prctl | For::Seccomp => "; IBPB: conditional",
            For::Everybody | For::EverybodyPreferred => "; IBPB: always-on",
        }
    }

    pub(crate) fn stibp_state(&self) -> &'static str {
        match self.stibp {
            For::Nobody => "; STIBP: disabled",
            For::Everybody => "; STIBP: forced",
            For::EverybodyPreferred => "; STIBP: always-on",
            For::Prctl | For::Seccomp if self.smt_active => "; STIBP: conditional",
            For::Prctl | For::Seccomp => "",
        }
    }
}

pub(crate) fn select(input: &Input<'_>, v2: &SpectreV2, retbleed: &Retbleed) -> SpectreV2User {
    let (facts, options) = (input.facts, input.options);
    let (ibpb, stibp) = match (options.spectre_v2, options.spectre_v2_user) {
        // The one for the kernel wins, both ways.
        (spectre_v2::Wish::Off, _) => (For::Nobody, For::Nobody),
        (spectre_v2::Wish::On, _) => (For::Everybody, For::Everybody),
        (_, Wish::Off) => (For::Nobody, For::Nobody),
        (_, Wish::On) => (For::Everybody, For::Everybody),
        (_, Wish::Auto) if !options.protects_programs() => (For::Nobody, For::Nobody),
        (_, Wish::Auto) if options.cross_thread == CrossThread::Off => (For::Prctl, For::Nobody),
        (_, Wish::Auto | Wish::Prctl) => (For::Prctl, For::Prctl),
        (_, Wish::PrctlIbpb) => (For::Everybody, For::Prctl),
        (_, Wish::Seccomp) => (For::Seccomp, For::Seccomp),
        (_, Wish::SeccompIbpb) => (For::Everybody, For::Seccomp),
    };
    let stibp = if stibp.is_by_program() && facts.stibp_always_on() {
        For::EverybodyPreferred
    } else {
        stibp
    };
    // Intel's enhanced IBRS does it for programs as well; AMD's does not.
    let implied = v2.mode.is_eibrs() && !facts.auto_ibrs();
    let stibp = match stibp {
        _ if !facts.stibp() || !input.smt_possible || implied => For::Nobody,
        For::Nobody => For::Nobody,
        _ if retbleed.untrains() => For::EverybodyPreferred,
        other => other,
    };
    let affected = spectre_v2::affects(facts) || options.spectre_v2 == spectre_v2::Wish::On;
    SpectreV2User {
        ibpb: if facts.ibpb() && affected { ibpb } else { For::Nobody },
        stibp: if affected { stibp } else { For::Nobody },
        smt_active: input.smt_active,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::{Facts, Smt, Vendor};
    use crate::select::{Built, select};

    fn chosen(facts: &Facts, line: &str) -> (For, For) {
        let options = Options::parse(line, |_| ());
        let user = select(facts, &options, &Built::LINUX).spectre_v2.user;
        (user.ibpb, user.stibp)
    }

    #[test]
    fn options() {
        let zen3 = Facts {
            vendor: Vendor::Amd,
            family: 0x19,
            model: 1,
            leaf8000_0008_ebx: 1 << 12 | 1 << 14 | 1 << 15,
            smt: Smt::Active,
            ..Facts::default()
        };
        for (line, ibpb, stibp) in [
            ("", For::Prctl, For::Prctl),
            ("spectre_v2_user=off", For::Nobody, For::Nobody),
            ("spectre_v2_user=on", For::Everybody, For::Everybody),
            ("spectre_v2_user=prctl,ibpb", For::Everybody, For::Prctl),
            ("spectre_v2_user=seccomp", For::Seccomp, For::Seccomp),
            ("spectre_v2_user=seccomp,ibpb", For::Everybody, For::Seccomp),
            ("spectre_v2=on spectre_v2_user=off", For::Everybody, For::Everybody),
            ("spectre_v2=off spectre_v2_user=on", For::Nobody, For::Nobody),
            ("mitigations=auto;no_cross_thread", For::Prctl, For::Nobody),
            ("mitigations=auto;no_user_user,no_guest_guest", For::Nobody, For::Nobody),
            ("nosmt=force", For::Prctl, For::Nobody),
        ] {
            assert_eq!(chosen(&zen3, line), (ibpb, stibp), "{line}");
        }
        let prefers = Facts { leaf8000_0008_ebx: zen3.leaf8000_0008_ebx | 1 << 17, ..zen3 };
        assert_eq!(chosen(&prefers, ""), (For::Prctl, For::EverybodyPreferred));
        let zen2 = Facts { family: 0x17, ..zen3 };
        assert_eq!(chosen(&zen2, ""), (For::Prctl, For::EverybodyPreferred));
    }
}
