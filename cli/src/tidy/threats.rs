//! THREATS.md names the test in which each answer is seen to fire, and the test is in the sources.
//!
//! A name has a subject and a test, as `limen test` prints it: `cfi::wrong_type`. It exists where a
//! source has it as a word in quotes, or where a file (or a folder) of the subject's name has a
//! function of the test's. Whether the commands beside the names select anything, `check/spec.rs`
//! asks.

use std::path::Path;

use super::{Finding, Source};

const PAGE: &str = "THREATS.md";

/// A row without the name of a test, or with one that no source has, is a finding.
pub(super) fn check(text: &str, sources: &[&Source], findings: &mut Vec<Finding>) {
    for (index, line) in text.lines().enumerate().filter(|(_, line)| is_row(line)) {
        let mut note = |what: String| findings.push(Finding::new(Path::new(PAGE), index + 1, what));
        let cell =
            line.trim_end_matches(['|', ' ']).rsplit_once(" | ").map_or("", |(_, cell)| cell);
        let names: Vec<&str> = cell.split('`').skip(1).step_by(2).filter(|s| is_name(s)).collect();
        if names.is_empty() {
            note("names no test".to_owned());
        }
        for name in names.iter().filter(|name| !exists(name, sources)) {
            note(format!("no source has the test {name}"));
        }
    }
}

/// A row of a table that is not its head.
fn is_row(line: &str) -> bool {
    let is_head = line.starts_with("| Attack |") || line.starts_with("| Wish |");
    line.starts_with("| ") && !is_head
}

/// `subject::test`, and not the beginning of one.
fn is_name(piece: &str) -> bool {
    let is_word = |word: &str| {
        !word.is_empty() && word.chars().all(|c| c == '_' || c.is_ascii_alphanumeric())
    };
    piece.split_once("::").is_some_and(|(subject, test)| is_word(subject) && is_word(test))
}

/// Whether a source has this test.
pub(super) fn exists(name: &str, sources: &[&Source]) -> bool {
    let quoted = format!("\"{name}\"");
    let Some((subject, test)) = name.split_once("::") else { return false };
    let function = format!("fn {test}(");
    let is_of = |source: &Source| {
        let mut parts = source.path.iter().map(|part| part.to_string_lossy());
        parts.any(|part| part.strip_suffix(".rs").unwrap_or(&part) == subject)
    };
    // This file's own examples are no tests.
    let others = sources.iter().filter(|source| !source.path.ends_with("tidy/threats.rs"));
    let mut texts = others.map(|source| (source, source.text.as_str()));
    texts.any(|(source, text)| text.contains(&quoted) || is_of(source) && text.contains(&function))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn found(text: &str) -> Vec<String> {
        let source =
            |path: &str, text: &str| Source { path: PathBuf::from(path), text: text.to_owned() };
        let quoted = source("k/ktest.rs", r#"Test { name: "cfi::wrong_type", run }"#);
        let function = source("guest/exec.rs", "fn small() {}\nfn smaller() {}");
        let mut findings = vec![];
        check(text, &[&quoted, &function], &mut findings);
        findings.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn rows_name_tests_that_exist() {
        let head = "# `a::b`\n| Attack | Answer | Test |\n|---|---|---|\n";
        let row = |cell: &str| found(&format!("{head}| an attack | an answer | {cell} |\n"));
        assert!(row("`cfi::wrong_type`: `./limen test x --filter cfi::`").is_empty());
        assert!(row("`exec::small`, `exec::smaller`").is_empty());
        assert_eq!(row("`./limen test x --filter cfi::`"), ["THREATS.md:4: names no test"]);
        let none = "THREATS.md:4: no source has the test";
        assert_eq!(row("`cfi::wrong`"), [format!("{none} cfi::wrong")]);
        assert_eq!(row("`exec::small` `files::small`"), [format!("{none} files::small")]);
    }
}
