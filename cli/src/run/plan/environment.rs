//! The program's environment: what of the caller's it gets, what the image says, what `--env` says.
//!
//! Neighbour: `mod.rs`. A variable given twice keeps its last value.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};

use crate::args::RunArgs;

/// Variables that a program gets from the caller; all others may be keys and tokens.
const VARIABLES: [&str; 7] = ["PATH", "HOME", "USER", "SHELL", "TERM", "LANG", "TZ"];
/// And those that begin so.
const LOCALE_PREFIX: &[u8] = b"LC_";
/// Those that mean the host's files, which a program with another root does not see.
const OF_THE_HOST: [&str; 6] = ["PATH", "HOME", "USER", "SHELL", "PWD", "OLDPWD"];
/// Of those, what a program with another root but the caller's name keeps.
const OF_THE_CALLER: [&str; 3] = ["HOME", "USER", "SHELL"];

/// Variables in the order in which they were set.
#[derive(Clone, Debug, Default)]
pub(super) struct Environment(Vec<(OsString, OsString)>);

/// What the guest sees of the host, and so which variables mean something to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sees {
    /// The caller's own root.
    All,
    /// Another tree, as the same user.
    SameUser,
    /// Nothing.
    Nothing,
}

/// The entries that `--env` sets.
pub(crate) fn given(words: &[OsString]) -> Vec<Vec<u8>> {
    let mut environment = Environment::default();
    environment.set_given(words);
    environment.encode()
}

impl Environment {
    /// What a program gets of the caller's.
    pub(super) fn of_caller(args: &RunArgs, sees: Sees) -> Self {
        let is_wanted = |name: &OsStr| {
            let is_known = VARIABLES.iter().any(|variable| name == *variable)
                || name.as_bytes().starts_with(LOCALE_PREFIX);
            let is_of = |list: &[&str]| list.iter().any(|variable| name == *variable);
            (args.env_all || is_known)
                && match sees {
                    Sees::All => true,
                    Sees::SameUser => !is_of(&OF_THE_HOST) || is_of(&OF_THE_CALLER),
                    Sees::Nothing => !is_of(&OF_THE_HOST),
                }
        };
        Self(std::env::vars_os().filter(|(name, _)| is_wanted(name)).collect())
    }

    pub(super) fn set(&mut self, name: impl Into<OsString>, value: impl Into<OsString>) {
        let name = name.into();
        self.0.retain(|(other, _)| *other != name);
        self.0.push((name, value.into()));
    }

    /// Sets what `NAME=VALUE` says.
    pub(super) fn set_entry(&mut self, entry: &[u8]) {
        if let Some(at) = entry.iter().position(|&byte| byte == b'=') {
            let part = |bytes: &[u8]| OsStr::from_bytes(bytes).to_owned();
            self.set(part(&entry[..at]), part(&entry[at + 1..]));
        }
    }

    /// What `--env` says: `NAME=VALUE`, or `NAME` for the caller's, if there is one.
    pub(super) fn set_given(&mut self, given: &[OsString]) {
        for word in given {
            if word.as_bytes().contains(&b'=') {
                self.set_entry(word.as_bytes());
                continue;
            }
            self.0.retain(|(other, _)| other != word);
            if let Some(value) = std::env::var_os(word) {
                self.set(word, value);
            }
        }
    }

    pub(super) fn get(&self, name: &str) -> Option<&OsStr> {
        self.0.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_os_str())
    }

    /// `NAME=VALUE` each.
    pub(super) fn encode(self) -> Vec<Vec<u8>> {
        let join = |(mut entry, value): (OsString, OsString)| {
            entry.push("=");
            entry.push(value);
            entry.into_vec()
        };
        self.0.into_iter().map(join).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_value_counts() {
        let mut env = Environment::default();
        env.set_entry(b"A=1");
        env.set_given(&["B=x=y".into(), "A=3".into(), "NO_SUCH_VARIABLE_HERE".into()]);
        assert_eq!(env.get("B"), Some(OsStr::new("x=y")));
        assert_eq!(env.encode(), [b"B=x=y".to_vec(), b"A=3".to_vec()]);
    }
}
