//! The `cfi=` kernel parameter.
//!
//! A comma-separated list. What is not known is ignored and named, as every kernel parameter is:
//! a typing error in a boot line must not make a machine unbootable, and must not go unseen.

use crate::kcfi::Form;

/// Words of the list that are looked at; the rest is named as ignored.
const WORDS_MAX: usize = 16;

/// What `cfi=` asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CfiOptions {
    /// Form of the checks.
    pub form: Form,
    /// Whether hashes are re-seeded at boot.
    pub rand: bool,
    /// Whether a mismatch is only reported.
    pub warn: bool,
    /// Whether the rewrite prints what it does.
    pub debug: bool,
}

impl CfiOptions {
    /// `cfi=auto`, on a CPU that tracks indirect branches (IBT) or does not.
    #[must_use]
    pub const fn auto(has_ibt: bool) -> Self {
        let form = if has_ibt { Form::FineIbt } else { Form::Opt };
        Self { form, rand: true, warn: false, debug: false }
    }

    /// The line that the boot log and the report of mitigations show.
    #[must_use]
    pub const fn describe(&self) -> &'static str {
        match (self.form, self.rand) {
            (Form::Off, _) => "CFI: disabled",
            (Form::Kcfi, true) => "CFI: Using rehashed retpoline kCFI",
            (Form::Kcfi, false) => "CFI: Using retpoline kCFI",
            (Form::Opt, true) => "CFI: Using rehashed optimised kCFI",
            (Form::Opt, false) => "CFI: Using optimised kCFI",
            (Form::FineIbt, true) => "CFI: Using rehashed FineIBT",
            (Form::FineIbt, false) => "CFI: Using FineIBT",
        }
    }
}

/// Why a word of the list was ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ignored {
    /// Nobody knows it.
    Unknown,
    /// `paranoid`, `bhi`: known, and not built.
    NotBuilt,
    /// `fineibt`, on a CPU that does not track indirect branches.
    NoIbt,
}

/// Parses the value of `cfi=` on a CPU with or without IBT; `ignored` is called for every word that
/// has no effect.
///
/// ```
/// use text_patching::options::{parse, CfiOptions};
/// let options = parse("kcfi,norand,fast", true, |word, _| assert_eq!(word, "fast"));
/// assert_eq!(options.describe(), "CFI: Using retpoline kCFI");
/// ```
pub fn parse(value: &str, has_ibt: bool, mut ignored: impl FnMut(&str, Ignored)) -> CfiOptions {
    let mut options = CfiOptions::auto(has_ibt);
    for (index, word) in value.split(',').filter(|word| !word.is_empty()).enumerate() {
        match word {
            _ if index >= WORDS_MAX => ignored(word, Ignored::Unknown),
            "auto" => options.form = CfiOptions::auto(has_ibt).form,
            "fineibt" if has_ibt => options.form = Form::FineIbt,
            "fineibt" => ignored(word, Ignored::NoIbt),
            "off" => options.form = Form::Off,
            "kcfi" => options.form = Form::Kcfi,
            "opt" => options.form = Form::Opt,
            "norand" => options.rand = false,
            "warn" => options.warn = true,
            "debug" => options.debug = true,
            "paranoid" | "bhi" => ignored(word, Ignored::NotBuilt),
            _ => ignored(word, Ignored::Unknown),
        }
    }
    options
}
