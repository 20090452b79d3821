//! The host level: `cargo test` of every crate that needs no machine.
//!
//! The output is cargo's own; its `test result:` lines are added up. Neighbour: `mod.rs`.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use super::{Context, Summary};
use crate::Error;

pub(super) fn run(context: &Context) -> Result<Summary, Error> {
    let mut cargo = context.cargo();
    // The workspace's default members are the crates of the host side. The guest's test programs
    // have a level of their own.
    cargo.args(["test", "--quiet", "--no-fail-fast"]);
    if !context.filter.is_empty() {
        cargo.args(["--", &context.filter]);
    }
    let mut child = cargo.stdout(Stdio::piped()).spawn()?;
    let mut summary = Summary::default();
    if let Some(output) = child.stdout.take() {
        for line in BufReader::new(output).lines() {
            let line = line?;
            match parse_result(&line) {
                Some(result) => summary += result,
                None if line.trim().is_empty() || line.starts_with("running ") => {}
                None => println!("{line}"),
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
    let count = |what: &str| {
        let before = counts.split(what).next().filter(|before| before.len() < counts.len())?;
        before.trim().rsplit([' ', ';']).next()?.parse().ok()
    };
    Some(Summary { passed: count("passed")?, failed: count("failed")?, skipped: count("ignored")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn result_lines() {
        let line = "test result: FAILED. 12 passed; 3 failed; 1 ignored; 0 measured; 0 filtered";
        assert_eq!(parse_result(line), Some(Summary { passed: 12, failed: 3, skipped: 1 }));
        assert_eq!(parse_result("test x ... ok"), None);
        assert_eq!(parse_result("test result: ok."), None);
    }
}
