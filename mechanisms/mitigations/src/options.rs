//! The words of the command line: `mitigations=` with its attack vectors, `nosmt`, and one option
//! for each vulnerability, with Linux's names and values (kernel-parameters.txt, and
//! hw-vuln/attack_vector_controls.rst).
//!
//! A value that is not known changes nothing and is handed to the caller by name: a misspelt
//! protection must not go unseen. The last word of a name counts. Each option's values are in the
//! file of its vulnerability.

use crate::{
    bhi, gather_data_sampling, indirect_target_selection, l1tf, mds, meltdown, mmio_stale_data,
    reg_file_data_sampling, retbleed, spec_rstack_overflow, spec_store_bypass, spectre_v1,
    spectre_v2, spectre_v2_user, srbds, tsa, tsx_async_abort, vmscape,
};

/// Who attacks whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vector {
    /// Programs the kernel.
    UserKernel,
    /// Programs each other.
    UserUser,
    /// Guests the hypervisor.
    GuestHost,
    /// Guests each other.
    GuestGuest,
}

const VECTORS: usize = 4;

/// How far mitigations go to protect threads of a core from each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CrossThread {
    /// Not at all: `no_cross_thread`.
    Off,
    /// As far as it costs no threads.
    #[default]
    Auto,
    /// Threads are switched off where that is needed: `auto,nosmt`.
    On,
}

/// Whether the second thread of each core is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NoSmt {
    /// It is.
    #[default]
    No,
    /// `nosmt`.
    Yes,
    /// `nosmt=force`: for good.
    Force,
}

/// What was asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "each field is one option, described in the file of its name")]
pub struct Options {
    /// Vectors that are left open, by number.
    open: [bool; VECTORS],
    pub cross_thread: CrossThread,
    pub nosmt: NoSmt,
    pub pti: meltdown::Wish,
    pub spectre_v1: spectre_v1::Wish,
    pub spectre_v2: spectre_v2::Wish,
    pub spectre_v2_user: spectre_v2_user::Wish,
    pub bhi: bhi::Wish,
    pub ssb: spec_store_bypass::Wish,
    pub l1tf: l1tf::Wish,
    pub mds: mds::Wish,
    pub taa: mds::Wish,
    pub tsx: tsx_async_abort::Tsx,
    pub mmio: mds::Wish,
    pub rfds: reg_file_data_sampling::Wish,
    pub srbds_off: bool,
    pub gds: gather_data_sampling::Wish,
    pub retbleed: retbleed::Wish,
    pub srso: spec_rstack_overflow::Wish,
    pub its: indirect_target_selection::Wish,
    pub tsa: tsa::Wish,
    pub vmscape: vmscape::Wish,
}

/// An option that has no effect: its name and its value, or the part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ignored<'a> {
    /// The name.
    pub name: &'a str,
    /// What nobody knows.
    pub value: &'a str,
}

/// Sets one option; `None` for a value that is not known.
type Set = fn(&mut Options, &str) -> Option<()>;

/// `name=value`, each once.
const VALUES: [(&str, Set); 19] = [
    ("pti", meltdown::parse),
    ("nosmt", |o, v| (v == "force").then(|| o.nosmt = NoSmt::Force)),
    ("spectre_v2", spectre_v2::parse),
    ("spectre_v2_user", spectre_v2_user::parse),
    ("spectre_bhi", bhi::parse),
    ("spec_store_bypass_disable", spec_store_bypass::parse),
    ("l1tf", l1tf::parse),
    ("mds", mds::parse),
    ("tsx_async_abort", tsx_async_abort::parse),
    ("tsx", tsx_async_abort::parse_tsx),
    ("mmio_stale_data", mmio_stale_data::parse),
    ("reg_file_data_sampling", reg_file_data_sampling::parse),
    ("srbds", srbds::parse),
    ("gather_data_sampling", gather_data_sampling::parse),
    ("retbleed", |_, _| None),
    ("spec_rstack_overflow", spec_rstack_overflow::parse),
    ("indirect_target_selection", indirect_target_selection::parse),
    ("tsa", tsa::parse),
    ("vmscape", vmscape::parse),
];

/// Sets the option that a word without a value is.
type Put = fn(&mut Options);

/// Words without a value.
const FLAGS: [(&str, Put); 5] = [
    ("nopti", |o| o.pti = meltdown::Wish::Off),
    ("nosmt", |o| o.nosmt = NoSmt::Yes),
    ("nospectre_v1", |o| o.spectre_v1 = spectre_v1::Wish::Off),
    ("nospectre_v2", |o| o.spectre_v2 = spectre_v2::Wish::Off),
    ("nospec_store_bypass_disable", |o| o.ssb = spec_store_bypass::Wish::Off),
];

/// The names of all options, and whether they have a value.
pub fn names() -> impl Iterator<Item = (&'static str, bool)> {
    let with_values = VALUES.iter().map(|(name, _)| (*name, true)).chain([("mitigations", true)]);
    with_values.chain(FLAGS.iter().map(|(name, _)| (*name, false)))
}

/// Whether some option of this room has that name: `name` for flags, `name=` with a value.
#[must_use]
pub fn is_known(name: &str, has_value: bool) -> bool {
    names().any(|known| known == (name, has_value))
}

impl Options {
    /// Reads a command line. `ignored` is called for every value that has no effect.
    ///
    /// ```
    /// use mitigations::Options;
    /// let options = Options::parse("mds=full mds=ful", |bad| assert_eq!(bad.value, "ful"));
    /// assert_eq!(options.mds, mitigations::mds::Wish::Full);
    /// ```
    pub fn parse<'a>(line: &'a str, mut ignored: impl FnMut(Ignored<'a>)) -> Self {
        let mut options = Self::default();
        for word in line.split_ascii_whitespace() {
            match word.split_once('=') {
                None => {
                    if let Some((_, set)) = FLAGS.iter().find(|(name, _)| *name == word) {
                        set(&mut options);
                    }
                }
                Some(("mitigations", value)) => options.set_all(value, &mut ignored),
                Some((name @ "retbleed", value)) => {
                    let bad = |value| ignored(Ignored { name, value });
                    retbleed::parse(&mut options, value, bad);
                }
                Some((name, value)) => {
                    let known = VALUES.iter().find(|(known, _)| *known == name);
                    if known.is_some_and(|(_, set)| set(&mut options, value).is_none()) {
                        ignored(Ignored { name, value });
                    }
                }
            }
        }
        // These two win against what comes after them.
        for (flag, set) in [FLAGS[3], FLAGS[4]] {
            if line.split_ascii_whitespace().any(|word| word == flag) {
                set(&mut options);
            }
        }
        options
    }

    /// `mitigations=`: `off`, `auto` or `auto,nosmt`, then vectors that stay open.
    fn set_all<'a>(&mut self, value: &'a str, ignored: &mut impl FnMut(Ignored<'a>)) {
        for (index, word) in value.split([',', ';']).enumerate() {
            match (index, word) {
                (0, "off") => {
                    self.open = [true; VECTORS];
                    self.cross_thread = CrossThread::Off;
                }
                (0, "auto") => {
                    self.open = [false; VECTORS];
                    self.cross_thread = CrossThread::Auto;
                }
                (1.., "nosmt") => self.cross_thread = CrossThread::On,
                (_, "no_user_kernel") => self.open[Vector::UserKernel as usize] = true,
                (_, "no_user_user") => self.open[Vector::UserUser as usize] = true,
                (_, "no_guest_host") => self.open[Vector::GuestHost as usize] = true,
                (_, "no_guest_guest") => self.open[Vector::GuestGuest as usize] = true,
                (_, "no_cross_thread") => self.cross_thread = CrossThread::Off,
                _ => ignored(Ignored { name: "mitigations", value: word }),
            }
        }
    }

    /// Whether attacks of one of these kinds are to be met.
    #[must_use]
    pub fn meets(&self, vectors: &[Vector]) -> bool {
        vectors.iter().any(|&vector| !self.open[vector as usize])
    }

    /// Programs or guests against the kernel.
    #[must_use]
    pub fn protects_kernel(&self) -> bool {
        self.meets(&[Vector::UserKernel, Vector::GuestHost])
    }

    /// Programs against programs, or guests against guests.
    #[must_use]
    pub fn protects_programs(&self) -> bool {
        self.meets(&[Vector::UserUser, Vector::GuestGuest])
    }

    /// Any of the four.
    #[must_use]
    pub fn protects_anything(&self) -> bool {
        self.protects_kernel() || self.protects_programs()
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec::Vec;

    fn parse(line: &str) -> (Options, Vec<(&str, &str)>) {
        let mut bad = Vec::new();
        let options = Options::parse(line, |ignored| bad.push((ignored.name, ignored.value)));
        (options, bad)
    }

    #[test]
    fn vectors() {
        let (options, bad) = parse("mitigations=auto;no_user_kernel,no_guest_host");
        assert_eq!(bad, []);
        assert!(!options.protects_kernel() && options.protects_programs());
        assert_eq!(options.cross_thread, CrossThread::Auto);
        let (options, bad) = parse("mitigations=auto,nosmt;no_user_user");
        assert_eq!((options.cross_thread, bad.len()), (CrossThread::On, 0));
        assert!(options.meets(&[Vector::UserKernel]) && !options.meets(&[Vector::UserUser]));
        let (options, _) = parse("mitigations=off");
        assert!(!options.protects_anything());
        assert_eq!(options.cross_thread, CrossThread::Off);
        let (options, bad) = parse("mitigations=auto;no_user_guest,no_cross_thread");
        assert_eq!(bad, [("mitigations", "no_user_guest")]);
        assert!(options.protects_anything());
        assert_eq!(options.cross_thread, CrossThread::Off);
    }

    #[test]
    fn unknown_values_change_nothing_and_are_named() {
        for (name, _) in VALUES {
            let line = std::format!("{name}=nonsense");
            let (options, bad) = parse(&line);
            assert_eq!(options, Options::default(), "{line}");
            assert_eq!(bad, [(name, "nonsense")]);
        }
        assert_eq!(parse("mitigations=most").0, Options::default());
        assert_eq!(parse("mitigations=most").1, [("mitigations", "most")]);
        assert_eq!(parse("foo=bar quiet").1, []);
    }

    #[test]
    fn the_last_word_counts_but_against_nospectre_v2() {
        assert_eq!(parse("mds=off mds=full").0.mds, mds::Wish::Full);
        let (options, _) = parse("nospectre_v2 spectre_v2=retpoline");
        assert_eq!(options.spectre_v2, spectre_v2::Wish::Off);
        assert_eq!(parse("pti=on nopti").0.pti, meltdown::Wish::Off);
        assert_eq!(parse("nosmt").0.nosmt, NoSmt::Yes);
        assert_eq!(parse("nosmt=force").0.nosmt, NoSmt::Force);
    }

    #[test]
    fn names_are_known() {
        assert!(is_known("nopti", false) && !is_known("nopti", true));
        assert!(is_known("mitigations", true) && is_known("vmscape", true));
        assert!(!is_known("vmscape", false));
    }
}
