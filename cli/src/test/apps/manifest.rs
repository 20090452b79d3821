//! `guest/apps.toml`: its form, and what must hold of it.
//!
//! Why it is checked: a row whose script starts a program that no package of the row brings runs
//! on its author's machine and waits for ever on a fresh one. So each package's programs are
//! listed once, and a program that a row names must be of a package that the row names, too.
//!
//! Neighbours: `mod.rs` runs the rows, `tidy` reports [`faults`], `../packages.rs` installs.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde::Deserialize;

/// Where the list is in the repository.
pub(crate) const PATH: &str = "guest/apps.toml";
/// Where Debian's packages put programs: what else a caller's PATH leads to is not what is tested.
pub(in crate::test) const SEARCH: &str = "/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/games";
/// Programs whose arguments are scripts, with names of other programs in them.
const SHELLS: [&str; 3] = ["sh", "bash", "dash"];

/// The whole list.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Manifest {
    pub(in crate::test) app: Vec<App>,
    /// Packages that every Debian system has.
    always: BTreeSet<String>,
    /// What each package brings: programs by name, or paths.
    provides: BTreeMap<String, Vec<String>>,
}

/// One entry.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct App {
    pub(in crate::test) name: String,
    pub(super) packages: Vec<String>,
    pub(in crate::test) run: Vec<String>,
    pub(in crate::test) stdin: Option<String>,
    pub(super) stdout: Option<String>,
    pub(super) regex: Option<String>,
    #[serde(default)]
    pub(super) same_as_host: bool,
    #[serde(default)]
    pub(super) status: i32,
    #[serde(default)]
    pub(super) pack: bool,
    pub(super) memory: Option<String>,
    /// What else is packed: programs by name, and folders; a `*` at the end stands for any rest.
    #[serde(default)]
    pub(super) programs: Vec<String>,
    #[serde(default)]
    pub(super) folders: Vec<String>,
    /// The least share of returns from system calls that are by SYSRET, where the program cannot
    /// reach `LEAST_SYSRET`; the reason stands beside it.
    pub(super) least_sysret: Option<f64>,
}

impl Manifest {
    pub(in crate::test) fn parse(text: &str) -> Result<Self, toml::de::Error> {
        toml::from_str(text)
    }

    /// True if all that the package brings is on this machine.
    pub(super) fn is_installed(&self, package: &str) -> bool {
        self.provides.get(package).is_some_and(|items| items.iter().all(|item| is_there(item)))
    }

    /// The packages of these rows that are not installed, each once.
    pub(super) fn missing<'a>(&self, apps: &'a [App]) -> Vec<&'a str> {
        let packages: BTreeSet<&str> =
            apps.iter().flat_map(|app| app.packages.iter().map(String::as_str)).collect();
        packages.into_iter().filter(|package| !self.is_installed(package)).collect()
    }

    /// The packages that bring this program.
    fn bringers(&self, program: &str) -> Vec<&str> {
        let brings = |items: &Vec<String>| items.iter().any(|item| item == program);
        let found = self.provides.iter().filter(|(_, items)| brings(items));
        found.map(|(package, _)| package.as_str()).collect()
    }

    fn faults_of(&self, app: &App) -> Vec<String> {
        let mut faults = Vec::new();
        if app.packages.is_empty() {
            faults.push("names no package".to_owned());
        }
        for package in app.packages.iter().filter(|package| !self.provides.contains_key(*package)) {
            faults.push(format!("package {package} has no line in [provides]"));
        }
        let has = |package: &&str| {
            self.always.contains(*package) || app.packages.iter().any(|own| own == package)
        };
        let named = app.programs.iter().chain(app.run.first()).filter(|name| !name.contains('/'));
        for program in named {
            let bringers = self.bringers(program);
            if !bringers.iter().any(has) {
                faults.push(format!("no package of it brings {program} (of {bringers:?})"));
            }
        }
        let is_script = app.run.first().is_some_and(|name| SHELLS.contains(&name.as_str()));
        for word in app.run.iter().filter(|_| is_script).flat_map(|text| commands(text)) {
            let bringers = self.bringers(word);
            if !bringers.is_empty() && !bringers.iter().any(has) {
                faults.push(format!("its script starts {word}, of {bringers:?}"));
            }
        }
        faults
    }
}

/// The words of a script that stand where a command does: at its start, behind an operator or a
/// keyword. An opening quote counts as a start: scripts have scripts in them.
fn commands(script: &str) -> Vec<&str> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || "-_.+/".contains(c);
    let (mut found, mut at_start) = (Vec::new(), true);
    let mut rest = script;
    while let Some(first) = rest.chars().next() {
        let len = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
        if len == 0 {
            at_start = ";|&({`'\"\n".contains(first) || (at_start && first.is_whitespace());
            rest = &rest[first.len_utf8()..];
            continue;
        }
        let (word, behind) = rest.split_at(len);
        if at_start {
            found.push(word);
            at_start = ["do", "then", "else", "until", "while", "if", "exec"].contains(&word);
        }
        rest = behind;
    }
    found
}

/// What breaks a rule, one line each; empty if nothing does.
pub(crate) fn faults(text: &str) -> Vec<String> {
    let manifest = match Manifest::parse(text) {
        Ok(manifest) => manifest,
        Err(error) => return vec![error.to_string()],
    };
    let mut faults = Vec::new();
    let mut names = BTreeSet::new();
    for app in &manifest.app {
        let mut own = manifest.faults_of(app);
        if !names.insert(&app.name) {
            own.push("another row has this name".to_owned());
        }
        let expectations = usize::from(app.stdout.is_some())
            + usize::from(app.regex.is_some())
            + usize::from(app.same_as_host);
        if expectations != 1 {
            own.push(format!("has {expectations} expectations, not one"));
        }
        faults.extend(own.into_iter().map(|fault| format!("row {}: {fault}", app.name)));
    }
    faults
}

/// Where a program is that a package has brought.
pub(super) fn find(program: &str) -> Option<PathBuf> {
    std::env::split_paths(SEARCH).map(|dir| dir.join(program)).find(|path| path.exists())
}

fn is_there(item: &str) -> bool {
    match item.starts_with('/') {
        true => !expand(item).is_empty(),
        false => find(item).is_some(),
    }
}

/// What a path with or without `*` at its end stands for, as far as it exists.
pub(super) fn expand(path: &str) -> Vec<PathBuf> {
    let Some(start) = path.strip_suffix('*') else {
        return Some(PathBuf::from(path)).filter(|path| path.exists()).into_iter().collect();
    };
    let parent = match start.ends_with('/') {
        true => Path::new(start),
        false => Path::new(start).parent().unwrap_or(Path::new("/")),
    };
    let entries = std::fs::read_dir(parent).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path()).filter(|path| path.exists());
    paths.filter(|path| path.to_string_lossy().starts_with(start)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: &str = r#"
        always = ["dash"]
        provides = { dash = ["sh"], redis-server = ["redis-server"], absent = ["no-such-program"] }
        app = [{ name = "x", packages = ["PACKAGE"], run = ["sh", "-c", "SCRIPT"], stdout = "" }]
    "#;

    fn sample(package: &str, script: &str) -> String {
        SAMPLE.replace("PACKAGE", package).replace("SCRIPT", script)
    }

    #[test]
    fn the_list_itself_has_no_fault() {
        let faults = faults(include_str!("../../../../guest/apps.toml"));
        assert!(faults.is_empty(), "{faults:#?}");
    }

    #[test]
    fn a_script_starts_only_what_its_packages_bring() {
        let starts = "true; until redis-server --version; do :; done";
        assert_eq!(faults(&sample("dash", starts)).len(), 1);
        assert!(faults(&sample("redis-server", starts)).is_empty());
        assert!(faults(&sample("dash", "echo redis-server")).is_empty());
        assert_eq!(faults(&sample("unknown", "true")).len(), 1);
    }

    #[test]
    fn a_package_is_installed_when_its_programs_are_there() {
        let manifest = Manifest::parse(&sample("absent", "true")).expect("well formed");
        assert_eq!(manifest.missing(&manifest.app), ["absent"]);
        assert!(manifest.is_installed("dash"));
    }
}
