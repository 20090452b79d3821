//! The Rust toolchain: chosen once, by the launcher, for everything that is built or checked.
//!
//! Why it is hard: a machine may have two, Debian's in `/usr/bin` and one of rustup in front of it in
//! PATH, and cargo looks its helpers up by name: a build by one compiler is then checked by the
//! clippy of another, which refuses the first one's files. So the launcher keeps the folder of the
//! one that it built with in [`CHOICE`], and every cargo is started from there, with that folder
//! first in PATH. Neighbours: the launcher `limen`; `check`, `test` and `bench` start cargo.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{Error, paths};

/// In cargo's target folder: the folder of the toolchain's programs.
const CHOICE: &str = ".limen-toolchain";
/// Where Debian's toolchain is.
const DEBIAN: &str = "/usr/bin";
/// What checks need beside cargo and rustc: the program, Debian's package, rustup's component.
const HELPERS: [(&str, &str, &str); 3] = [
    ("cargo-clippy", "rust-web-clippy", "clippy"),
    ("rustfmt", "rustfmt-web", "rustfmt"),
    ("rustdoc", "rustc-web", "rust-docs"),
];

/// The folder that has cargo, rustc and their helpers.
#[derive(Clone, Debug)]
pub(crate) struct Toolchain {
    bin: PathBuf,
}

impl Toolchain {
    /// The launcher's choice; without one, Debian's.
    pub(crate) fn chosen() -> Result<Self, Error> {
        let choice = paths::target_dir()?.join(CHOICE);
        let text = std::fs::read_to_string(choice).unwrap_or_default();
        let bin = PathBuf::from(if text.trim().is_empty() { DEBIAN } else { text.trim() });
        Ok(Self { bin })
    }

    /// A cargo command in the repository. Everything that it starts comes from the same folder, also
    /// where `path` (the caller's PATH) has another toolchain.
    fn command(&self, repository: &Path, path: &OsStr) -> Command {
        let mut cargo = Command::new(self.bin.join("cargo"));
        let mut search = OsString::from(&self.bin);
        if !path.is_empty() {
            search.push(":");
            search.push(path);
        }
        // Both sides of the build use features that are not stable yet. What a rustup's cargo says
        // about toolchains to those that it starts does not count here.
        cargo.current_dir(repository).env("RUSTC_BOOTSTRAP", "1").env("PATH", search);
        for variable in ["RUSTUP_TOOLCHAIN", "RUSTC", "RUSTDOC", "CARGO", "RUSTC_WRAPPER"] {
            cargo.env_remove(variable);
        }
        cargo
    }

    /// What [`HELPERS`] lack here, in words that say how to get it.
    pub(crate) fn missing(&self) -> Vec<String> {
        let absent = |program: &&(&str, _, _)| !self.bin.join(program.0).is_file();
        let how = |(program, package, component): &(&str, &str, &str)| match self.is_debian() {
            true => format!("{program} of the same compiler: apt-get install {package}"),
            false => format!("{program} of the same compiler: rustup component add {component}"),
        };
        HELPERS.iter().filter(absent).map(how).collect()
    }

    fn is_debian(&self) -> bool {
        self.bin == Path::new(DEBIAN)
    }
}

/// A cargo command of the chosen toolchain, in the repository.
pub(crate) fn cargo(repository: &Path) -> Result<Command, Error> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    Ok(Toolchain::chosen()?.command(repository, &path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    fn program(dir: &Path, name: &str, text: &str) {
        std::fs::create_dir_all(dir).expect("folder");
        std::fs::write(dir.join(name), format!("#!/bin/sh\n{text}\n")).expect("script");
        std::fs::set_permissions(dir.join(name), std::fs::Permissions::from_mode(0o755))
            .expect("mode");
    }

    /// A toolchain of rustup first in PATH, and its variables, change nothing.
    #[test]
    fn helpers_come_from_the_same_folder() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let (own, other) = (dir.path().join("own"), dir.path().join("other"));
        program(&own, "cargo", "cargo-clippy; echo \"$RUSTUP_TOOLCHAIN.\"");
        program(&own, "cargo-clippy", "echo own");
        program(&other, "cargo-clippy", "echo other");
        let toolchain = Toolchain { bin: own };
        let mut path = other.into_os_string();
        path.push(":/usr/bin:/bin");
        let mut command = toolchain.command(dir.path(), &path);
        let output = command.output().expect("runs");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "own\n.\n");
    }

    #[test]
    fn what_is_missing_is_named() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let toolchain = Toolchain { bin: dir.path().to_owned() };
        assert!(toolchain.missing()[0].contains("rustup component add clippy"));
        program(dir.path(), "cargo-clippy", "");
        program(dir.path(), "rustdoc", "");
        assert_eq!(toolchain.missing().len(), 1);
    }
}
