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
    /// `cfi=auto`.
    pub const AUTO: Self = Self { form: Form::Opt, rand: true, warn: false, debug: false };

    /// The line that the boot log and the report of mitigations show.
    #[must_use]
    pub const fn describe(&self) -> &'static str {
        match (self.form, self.rand) {
            (Form::Off, _) => "CFI: disabled",
            (Form::Kcfi, true) => "CFI: Using rehashed retpoline kCFI",
            (Form::Kcfi, false) => "CFI: Using retpoline kCFI",
            (Form::Opt, true) => "CFI: Using rehashed optimised kCFI",
            (Form::Opt, false) => "CFI: Using optimised kCFI",
        }
    }
}

impl Default for CfiOptions {
    fn default() -> Self {
        Self::AUTO
    }
}

/// Why a word of the list was ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ignored {
    /// Nobody knows it.
    Unknown,
    /// `fineibt`, `paranoid`, `bhi`: known, and not built.
    NotBuilt,
}

/// Parses the value of `cfi=`; `ignored` is called for every word that has no effect.
///
/// ```
/// use text_patching::options::{parse, CfiOptions};
/// let options = parse("kcfi,norand,fast", |word, _| assert_eq!(word, "fast"));
/// assert_eq!(options.describe(), "CFI: Using retpoline kCFI");
/// ```
pub fn parse(value: &str, mut ignored: impl FnMut(&str, Ignored)) -> CfiOptions {
    let mut options = CfiOptions::AUTO;
    for (index, word) in value.split(',').filter(|word| !word.is_empty()).enumerate() {
        match word {
            _ if index >= WORDS_MAX => ignored(word, Ignored::Unknown),
            "auto" => options.form = CfiOptions::AUTO.form,
            "off" => options.form = Form::Off,
            "kcfi" => options.form = Form::Kcfi,
            "opt" => options.form = Form::Opt,
            "norand" => options.rand = false,
            "warn" => options.warn = true,
            "debug" => options.debug = true,
            "fineibt" | "paranoid" | "bhi" => ignored(word, Ignored::NotBuilt),
            _ => ignored(word, Ignored::Unknown),
        }
    }
    options
}
