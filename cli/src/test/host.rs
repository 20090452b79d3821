//! The host level: `cargo test` of every crate that needs no machine.
//!
//! The output is cargo's own; its `test result:` lines are added up. A test's name begins with its
//! crate's, so that `--filter context_tracking` means that crate. Neighbour: `mod.rs`.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use super::{Context, Summary, number_before};
use crate::Error;

/// One `cargo test`: the packages, and a part of the tests' names.
#[derive(Debug, PartialEq, Eq)]
struct Part<'a> {
    packages: Vec<&'a str>,
    filter: &'a str,
}

pub(super) fn run(context: &Context) -> Result<Summary, Error> {
    let packages = packages(context)?;
    let mut summary = Summary::default();
    for part in parts(&packages, &context.filter) {
        summary += count(command(context, &part, &[])?)?;
    }
    Ok(summary)
}

/// The tests' names, each with its crate's before it.
pub(super) fn names(context: &Context) -> Result<Vec<String>, Error> {
    let packages = packages(context)?;
    let mut names = Vec::new();
    for part in parts(&packages, &context.filter) {
        for package in &part.packages {
            let part = Part { packages: vec![package], filter: part.filter };
            let output = command(context, &part, &["--list", "--format", "terse"])?.output()?;
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let tests = text.lines().filter_map(|line| line.strip_suffix(": test"));
            names.extend(tests.map(|name| format!("{}::{name}", crate_name(package))));
        }
    }
    Ok(names)
}

/// The workspace's default members, which are the crates of the host side. The guest's test
/// programs have a level of their own.
fn packages(context: &Context) -> Result<Vec<String>, Error> {
    let mut cargo = context.cargo()?;
    let output = cargo.args(["metadata", "--no-deps", "--format-version", "1"]).output()?;
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let of = |what: &str| metadata[what].as_array().cloned().unwrap_or_default();
    let members = of("workspace_default_members");
    let named = of("packages").into_iter().filter(|package| members.contains(&package["id"]));
    Ok(named.filter_map(|package| package["name"].as_str().map(str::to_owned)).collect())
}

/// What a package's tests are called by.
fn crate_name(package: &str) -> String {
    package.trim_start_matches("limen-").replace('-', "_")
}

/// What to run for a filter: all tests of the crates that it names (the rest of it, behind a `::`,
/// is a part of their tests' names), and in the others the tests that have it in their names.
fn parts<'a>(packages: &'a [String], filter: &'a str) -> Vec<Part<'a>> {
    let all = || packages.iter().map(String::as_str);
    if filter.is_empty() {
        return vec![Part { packages: all().collect(), filter }];
    }
    let (room, rest) = filter.split_once("::").unwrap_or((filter, ""));
    let is_named = |package: &&str| match filter.contains("::") {
        true => crate_name(package) == room,
        false => crate_name(package).contains(&room.replace('-', "_")),
    };
    let (named, others): (Vec<&str>, Vec<&str>) = all().partition(is_named);
    let parts = [Part { packages: named, filter: rest }, Part { packages: others, filter }];
    parts.into_iter().filter(|part| !part.packages.is_empty()).collect()
}

/// The tests of these packages, in the profile that shares its crates with this program.
pub(super) fn cargo_test(context: &Context, packages: &[&str]) -> Result<Command, Error> {
    let mut cargo = context.cargo()?;
    cargo.args(["test", "--profile", "tool", "--quiet", "--no-fail-fast"]);
    packages.iter().for_each(|package| {
        cargo.args(["--package", package]);
    });
    Ok(cargo)
}

fn command(context: &Context, part: &Part<'_>, options: &[&str]) -> Result<Command, Error> {
    let mut cargo = cargo_test(context, &part.packages)?;
    cargo.arg("--").args(options);
    if !part.filter.is_empty() {
        cargo.arg(part.filter);
    }
    Ok(cargo)
}

fn count(mut cargo: Command) -> Result<Summary, Error> {
    let mut child = cargo.stdout(Stdio::piped()).spawn()?;
    let mut summary = Summary::default();
    if let Some(output) = child.stdout.take() {
        for line in BufReader::new(output).lines() {
            let line = line?;
            match parse_result(&line) {
                Some(result) => summary += result,
                None if line.trim().is_empty() || line.starts_with("running ") => {}
                None if line.starts_with("---- ") || line.starts_with("error") => {
                    failed!("{line}");
                }
                None => tell!("{line}"),
            }
        }
    }
    // Cargo also fails where nothing could be counted: a crate that does not build.
    if !child.wait()?.success() && summary.failed == 0 {
        summary.failed = 1;
    }
    Ok(summary)
}

/// `test result: ok. 5 passed; 0 failed; 1 ignored; ...`
fn parse_result(line: &str) -> Option<Summary> {
    let counts = line.trim().strip_prefix("test result:")?;
    let count = |word: &str| number_before(counts, word);
    Some(Summary { passed: count("passed")?, failed: count("failed")?, skipped: count("ignored")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crates_name_is_a_filter() {
        let packages = ["limen-cli", "limen-context-tracking", "limen-entry"].map(str::to_owned);
        let of = |filter| parts(&packages, filter);
        let part = |packages: &[&'static str], filter| Part { packages: packages.into(), filter };
        let rest = ["limen-cli", "limen-entry"];
        assert_eq!(
            of("context_tracking"),
            [part(&["limen-context-tracking"], ""), part(&rest, "context_tracking")]
        );
        assert_eq!(
            of("context_tracking::pcid"),
            [part(&["limen-context-tracking"], "pcid"), part(&rest, "context_tracking::pcid")]
        );
        assert_eq!(of("")[0].packages.len(), 3);
        assert_eq!(of("nothing").len(), 1);
    }

    #[test]
    fn result_lines() {
        let line = "test result: FAILED. 12 passed; 3 failed; 1 ignored; 0 measured; 0 filtered";
        assert_eq!(parse_result(line), Some(Summary { passed: 12, failed: 3, skipped: 1 }));
        assert_eq!(parse_result("test x ... ok"), None);
        assert_eq!(parse_result("test result: ok."), None);
    }
}
