//! Every command of SPEC.md, run as it stands: a promise whose command selects no test is none. And
//! the commands of other documents that run tests: a filter that names no test is a stale word.
//!
//! Tests are only selected (`--list` is added), for running them all is what `limen test` is for;
//! benches and runs must be a command line that this program takes. Neighbour: `mod.rs`.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};

use clap::Parser as _;

use crate::args::{Cli, Command as Word};
use crate::failure::{Doing, Failure};
use crate::{Error, toolchain};

const SPEC: &str = "SPEC.md";

/// Says what is wrong with each command that is.
pub(super) fn check(repository: &Path) -> Result<Vec<String>, Error> {
    let text = read(&repository.join(SPEC))?;
    let mut all: Vec<(String, usize, String)> = Vec::new();
    all.extend(commands(&text).into_iter().map(|(line, command)| (SPEC.to_owned(), line, command)));
    for document in documents(repository)? {
        let text = read(&repository.join(&document))?;
        let own = tests_named(&text).into_iter();
        all.extend(own.map(|(line, command)| (document.clone(), line, command)));
    }
    let mut findings = Vec::new();
    let mut seen = BTreeSet::new();
    for (document, line, command) in all {
        if seen.insert(command.clone())
            && let Some(wrong) = run(repository, &command)?
        {
            findings.push(format!("{document}:{line}: `{command}`: {wrong}"));
        }
    }
    Ok(findings)
}

fn read(path: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(path).map_err(Failure::at(Doing::Read, path))
}

/// The documents that git knows, but for SPEC.md.
fn documents(repository: &Path) -> Result<Vec<String>, Error> {
    let mut git = Command::new("git");
    let output = git.args(["ls-files", "*.md"]).current_dir(repository).output();
    let output = output.map_err(Failure::at(Doing::Start, Path::new("git")))?;
    let list = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(list.lines().filter(|path| *path != SPEC).map(str::to_owned).collect())
}

/// Commands of a text that run a choice of tests, as they stand between backquotes.
fn tests_named(text: &str) -> Vec<(usize, String)> {
    let quoted = |(index, line): (usize, &str)| {
        let pieces: Vec<_> = line.split('`').skip(1).step_by(2).map(str::to_owned).collect();
        pieces.into_iter().map(move |piece| (index + 1, piece))
    };
    let is_choice = |(_, piece): &(usize, String)| {
        piece.starts_with("./limen test ") && piece.contains("--filter")
    };
    text.lines().enumerate().flat_map(quoted).filter(is_choice).collect()
}

/// The commands in the table's second column, with their lines' numbers.
fn commands(text: &str) -> Vec<(usize, String)> {
    let rows = text.lines().enumerate().filter(|(_, line)| line.starts_with('|'));
    let cells = rows.filter_map(|(index, line)| {
        let cell = line.trim_end_matches(['|', ' ']).rsplit_once(" | ")?.1;
        Some((index + 1, cell))
    });
    let quoted = |(line, cell): (usize, &str)| {
        let pieces = cell.split('`').skip(1).step_by(2);
        pieces.map(|piece| (line, piece.to_owned())).collect::<Vec<_>>()
    };
    cells.flat_map(quoted).collect()
}

/// What is wrong with a command; `None` if nothing is.
fn run(repository: &Path, command: &str) -> Result<Option<String>, Error> {
    let words: Vec<&str> = command.split_whitespace().collect();
    match words[..] {
        ["./limen" | "limen", ..] => of_limen(&words),
        ["cargo", "test", ref rest @ ..] => {
            let mut cargo = toolchain::cargo(repository)?;
            cargo.args(["test", "--quiet"]).args(rest).args(["--", "--list", "--format", "terse"]);
            let output = cargo.stderr(Stdio::null()).output();
            let output = output.map_err(Failure::at(Doing::Start, Path::new("cargo")))?;
            let names = String::from_utf8_lossy(&output.stdout).into_owned();
            let selects = output.status.success() && names.contains(": test");
            Ok((!selects).then(|| "selects no test".to_owned()))
        }
        ["fuzz/run.sh", target] => {
            let source = repository.join("fuzz/fuzz_targets").join(target).with_extension("rs");
            let exists = target == "all" || source.is_file();
            Ok((!exists).then(|| "no such target".to_owned()))
        }
        _ => Ok(Some("no command of this project".to_owned())),
    }
}

fn of_limen(words: &[&str]) -> Result<Option<String>, Error> {
    match Cli::try_parse_from(words) {
        Err(error) => Ok(Some(error.to_string().lines().next().unwrap_or_default().to_owned())),
        Ok(Cli { command: Word::Test(_) }) => {
            let mut limen = Command::new("/proc/self/exe");
            let status = limen.args(&words[1..]).arg("--list").stdout(Stdio::null()).status();
            let status = status.map_err(Failure::at(Doing::Start, Path::new("limen")))?;
            Ok((!status.success()).then(|| "selects no test".to_owned()))
        }
        Ok(_) => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_those_of_the_second_column() {
        let text = "# `x`\n| Promise | Test |\n|---|---|\n| `a|b=c` holds | `one x`; `two` |\n";
        assert_eq!(commands(text), [(4, "one x".to_owned()), (4, "two".to_owned())]);
    }

    #[test]
    fn chosen_tests_are_looked_for_in_any_text() {
        let text = "see `./limen test x --filter y` and `./limen test x`\n`cargo test`\n";
        assert_eq!(tests_named(text), [(1, "./limen test x --filter y".to_owned())]);
    }

    #[test]
    fn wrong_commands_are_found() {
        let run = |command: &str| run(Path::new("/"), command).expect("is looked at");
        assert!(run("./limen test --no-such-option").is_some());
        assert!(run("./limen bench kernel").is_none());
        assert!(run("make world").is_some());
        assert!(run("fuzz/run.sh none").is_some());
    }
}
