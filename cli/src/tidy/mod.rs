//! Rules for the sources that rustfmt and clippy do not know, each with its own small test.
//!
//! | Rule | What |
//! |---|---|
//! | header | a source file begins with `//!` (or takes its README as documentation) |
//! | length | a function has at most 70 lines; `long_functions.txt` lists the ones that have more |
//! | width | a line has at most 100 columns |
//! | unsafe | `unsafe`, assembly and link tricks are in `machine/` and `guest/` alone |
//! | safety | a SAFETY comment is an argument: empty phrases are findings |
//! | pointers | the kernel reaches a program's memory by `UserPtr` and requests alone |
//! | edges | crates depend on each other as the picture in ARCHITECTURE.md shows |
//! | apps | each row of `guest/apps.toml` names the packages of the programs that it starts |
//! | rooms | each mechanism has its places, as ARCHITECTURE.md's table of rooms says |
//! | threats | each row of THREATS.md names a test, and the sources have it |
//! | readme | README's tables: a price has its command, places and options exist |
//! | pages | the pages of `docs/` are what the tables say |
//! | leaks | the kernel leaks nothing that could be a reference to its thread |
//! | output | what a build makes lies in folders called `target`, which git ignores |
//! | floors | inside kernel and machine imports run down; circles and floors have a largest size |
//!
//! Reading order: [`check_repository`], then `rules`, `functions`, `edges`, `floors`; `lex` takes
//! comments and strings out of a source. Neighbour: `check`.

mod edges;
mod floors;
mod functions;
mod imports;
mod lex;
pub(crate) mod pages;
mod readme;
mod rooms;
mod rules;
mod threats;

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use crate::Error;
use crate::test::apps::manifest;

/// Sources of one repository; a bound against walking a wrong folder.
const FILES_MAX: usize = 10_000;

/// What cargo leaves in a folder that it builds into.
const BUILD_MARKS: [&str; 2] = ["CACHEDIR.TAG", ".rustc_info.json"];

/// Where a rule is broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    path: PathBuf,
    /// From 1; 0 if the file as a whole is meant.
    line: usize,
    text: String,
}

impl Finding {
    fn new(path: &Path, line: usize, text: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, text: text.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.path.display(), self.text),
            line => write!(f, "{}:{line}: {}", self.path.display(), self.text),
        }
    }
}

/// A source file: its path in the repository and its text.
#[derive(Clone, Debug)]
struct Source {
    path: PathBuf,
    text: String,
}

impl Source {
    fn has_extension(&self, extension: &str) -> bool {
        self.path.extension().is_some_and(|other| other == extension)
    }
}

/// Everything that breaks a rule.
pub(crate) fn check_repository(repository: &Path) -> Result<Vec<Finding>, Error> {
    let (mut sources, mut findings) = (Vec::new(), Vec::new());
    collect(repository, Path::new(""), &mut sources, &mut findings)?;
    sources.sort_by(|a, b| a.path.cmp(&b.path));
    for source in &sources {
        if source.has_extension("rs") {
            rules::check(source, &mut findings);
        } else if source.has_extension("S") {
            rules::check_assembly(source, &mut findings);
        }
    }
    let rust: Vec<&Source> = sources.iter().filter(|source| source.has_extension("rs")).collect();
    functions::check(&rust, functions::EXCEPTIONS, &mut findings);
    for summary in floors::check(&rust, &mut findings) {
        tell!("{summary}");
    }
    let manifests = sources.iter().filter(|source| source.path.ends_with("Cargo.toml"));
    edges::check(&manifests.collect::<Vec<_>>(), &mut findings);
    pages::check(repository, &mut findings);
    readme::check(repository, &fs::read_to_string(repository.join("README.md"))?, &mut findings);
    threats::check(&fs::read_to_string(repository.join("THREATS.md"))?, &rust, &mut findings);
    let page = fs::read_to_string(repository.join("ARCHITECTURE.md"))?;
    rooms::check(repository, &page, &rust, &mut findings);
    let apps = Path::new(manifest::PATH);
    let faults = manifest::faults(&fs::read_to_string(repository.join(apps))?);
    findings.extend(faults.into_iter().map(|fault| Finding::new(apps, 0, fault)));
    Ok(findings)
}

/// Reads the sources below `dir`, which is relative to the repository. What a build left outside
/// `target` is a finding: git would take it, and once did.
fn collect(
    repository: &Path,
    dir: &Path,
    sources: &mut Vec<Source>,
    findings: &mut Vec<Finding>,
) -> Result<(), Error> {
    let host = repository.join(dir);
    let entries = fs::read_dir(&host).map_err(|error| format!("{}: {error}", host.display()))?;
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        let hidden = name.to_string_lossy().starts_with('.');
        let path = dir.join(&name);
        let kind = entry.file_type()?;
        if BUILD_MARKS.iter().any(|mark| name == *mark) {
            findings.push(Finding::new(&path, 0, "output of a build outside `target`"));
        }
        if hidden || name == "target" || sources.len() >= FILES_MAX {
            continue;
        }
        if kind.is_dir() {
            collect(repository, &path, sources, findings)?;
            continue;
        }
        let source = Source { path, text: String::new() };
        let wanted = source.has_extension("rs") || source.has_extension("S");
        if kind.is_file() && (wanted || name == "Cargo.toml") {
            let text = String::from_utf8_lossy(&fs::read(entry.path())?).into_owned();
            sources.push(Source { text, ..source });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn builds_leave_their_output_in_target() {
        let repository = tempfile::tempdir().expect("a folder");
        for mark in ["target/CACHEDIR.TAG", "odd/CACHEDIR.TAG", "b/c/.rustc_info.json"] {
            let path = repository.path().join(mark);
            fs::create_dir_all(path.parent().expect("its folder")).expect("a folder");
            fs::write(path, "").expect("a mark");
        }
        let (mut sources, mut findings) = (Vec::new(), Vec::new());
        collect(repository.path(), Path::new(""), &mut sources, &mut findings).expect("a walk");
        let mut found: Vec<String> = findings.iter().map(ToString::to_string).collect();
        found.sort();
        assert_eq!(
            found,
            ["b/c/.rustc_info.json", "odd/CACHEDIR.TAG"]
                .map(|path| format!("{path}: output of a build outside `target`"))
        );
    }
}
