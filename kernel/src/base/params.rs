//! Kernel parameters: the words of the command line. A word nobody knows gets a warning that names
//! it, because a misspelt protection is worse than none.

use formats::params::KNOWN;
pub use formats::params::{find, has_flag};

/// Logs a warning for each word that no part of the kernel reads, and for values that are none.
pub fn warn_unknown(line: &str) {
    for word in line.split_ascii_whitespace() {
        let (name, given) = match word.split_once('=') {
            Some((name, given)) => (name, Some(given)),
            None => (word, None),
        };
        let mut named = KNOWN.iter().filter(|param| param.name == name);
        let param = named.find(|param| param.has_value() == given.is_some());
        if param.is_none() && !mitigations::options::is_known(name, given.is_some()) {
            machine::log!("warning: unknown kernel parameter: {word}");
        }
        let values = param.map_or("", |param| param.values);
        if values.contains('|') && !values.split('|').any(|value| Some(value) == given) {
            machine::log!("warning: ignoring {word}: the values are {values}");
        }
    }
}
