//! Kernel parameters: the words of the command line. A word nobody knows gets a warning that names
//! it, because a misspelt protection is worse than none.

use formats::params::{KNOWN, Param};
pub use formats::params::{find, has_flag};

/// Logs a warning for each word that no part of the kernel reads.
pub fn warn_unknown(line: &str) {
    for word in line.split_ascii_whitespace() {
        let (name, with_value) = match word.split_once('=') {
            Some((name, _)) => (name, true),
            None => (word, false),
        };
        let is_spelt = |param: &Param| param.name == name && param.has_value() == with_value;
        let known = KNOWN.iter().any(is_spelt) || mitigations::options::is_known(name, with_value);
        if !known {
            machine::log!("warning: unknown kernel parameter: {word}");
        }
    }
}
