//! Each mechanism is a room: its README and decisions in `mechanisms/`, and under the same name
//! where it acts, the test that fires it in the kernel, what programs see of it, and its price.
//! ARCHITECTURE.md's table of rooms names these places, and they exist.
//!
//! Neighbours: `threats` knows the names of tests, `limen check spec` runs what SPEC.md names.

use std::path::Path;

use clap::ValueEnum;

use super::{Finding, Source, threats};
use crate::args::Bench;

const PAGE: &str = "ARCHITECTURE.md";
const MECHANISMS: &str = "mechanisms";
/// First words of the table's head.
const HEAD: &str = "| Room | Acts in |";
/// Cells of a row: the room, and four places.
const CELLS: usize = 5;

/// A room without a row or README, a row without a room, and a place that does not exist are
/// findings.
pub(super) fn check(
    repository: &Path,
    page: &str,
    sources: &[&Source],
    findings: &mut Vec<Finding>,
) {
    let mut rooms = rooms_of(sources);
    let rows = page.lines().enumerate().skip_while(|(_, line)| !line.starts_with(HEAD)).skip(2);
    for (index, line) in rows.take_while(|(_, line)| line.starts_with('|')) {
        let mut note = |what: String| findings.push(Finding::new(Path::new(PAGE), index + 1, what));
        let cells: Vec<&str> = line.trim_matches(['|', ' ']).split(" | ").collect();
        if cells.len() != CELLS {
            note(format!("{} cells, not {CELLS}", cells.len()));
            continue;
        }
        let names: Vec<&str> = quoted(cells[0]).collect();
        for name in names {
            match rooms.iter().position(|room| room == name) {
                Some(at) => drop(rooms.swap_remove(at)),
                None => note(format!("no room {name} without a row is in {MECHANISMS}/")),
            }
            if !repository.join(MECHANISMS).join(name).join("README.md").is_file() {
                note(format!("{MECHANISMS}/{name} has no README.md"));
            }
        }
        for cell in &cells[1..] {
            let mut places = quoted(cell).peekable();
            if places.peek().is_none() {
                note(format!("\"{cell}\" names no place"));
            }
            for place in places.filter(|place| !exists(repository, place, sources)) {
                note(format!("there is no {place}"));
            }
        }
    }
    rooms.sort();
    for room in rooms {
        findings.push(Finding::new(Path::new(PAGE), 0, format!("no row for {MECHANISMS}/{room}")));
    }
}

/// The folders of mechanisms that have sources.
fn rooms_of(sources: &[&Source]) -> Vec<String> {
    let folder = |source: &&Source| {
        let mut parts = source.path.iter();
        let is_one = parts.next().is_some_and(|first| first == MECHANISMS);
        parts.next().filter(|_| is_one).map(|name| name.to_string_lossy().into_owned())
    };
    let mut rooms: Vec<String> = sources.iter().filter_map(folder).collect();
    rooms.sort();
    rooms.dedup();
    rooms
}

fn quoted(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

/// A path of the repository, a test (`subject::` or `subject::test`), or a bench (`bench NAME`).
fn exists(repository: &Path, place: &str, sources: &[&Source]) -> bool {
    if let Some(name) = place.strip_prefix("bench ") {
        return Bench::from_str(name, false).is_ok();
    }
    match place.split_once("::") {
        Some((subject, "")) => has_tests(subject, sources),
        Some(_) => threats::exists(place, sources),
        None => repository.join(place).exists(),
    }
}

/// Whether a list of tests has some of this subject, or a file of guest programs is of it.
fn has_tests(subject: &str, sources: &[&Source]) -> bool {
    let beginning = format!("\"{subject}::");
    let is_of = |source: &Source| {
        source.path.starts_with("guest") && source.path.file_stem().is_some_and(|s| s == subject)
    };
    let others = sources.iter().filter(|source| !source.path.ends_with("tidy/rooms.rs"));
    others.into_iter().any(|source| is_of(source) || source.text.contains(&beginning))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn found(rows: &str) -> Vec<String> {
        let repository = tempfile::tempdir().expect("a folder");
        let room = repository.path().join("mechanisms/entry");
        std::fs::create_dir_all(&room).expect("its room");
        std::fs::write(room.join("README.md"), "what and why").expect("its page");
        let source =
            |path: &str, text: &str| Source { path: PathBuf::from(path), text: text.to_owned() };
        let decision = source("mechanisms/entry/src/lib.rs", "");
        let test = source("machine/ktest.rs", r#"Test { name: "window::every", run }"#);
        let page = format!("{HEAD} … |\n|---|\n{rows}\n\n| `other` |\n");
        let mut findings = vec![];
        check(repository.path(), &page, &[&decision, &test], &mut findings);
        findings.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn rooms_have_their_places() {
        let places = "`mechanisms/entry` | `window::` | `window::every` | `bench entry`";
        assert!(found(&format!("| `entry` | {places} |")).is_empty());
        assert_eq!(found(""), ["ARCHITECTURE.md: no row for mechanisms/entry"]);
        let wrong = "`mechanisms/exit` | `doors::` | `window::some` | `bench price`";
        assert_eq!(
            found(&format!("| `entry` | {wrong} |")),
            ["mechanisms/exit", "doors::", "window::some", "bench price"]
                .map(|place| format!("ARCHITECTURE.md:3: there is no {place}"))
        );
        let none = found(&format!("| `entry` | {places} |\n| `exit` | {places} |"));
        assert_eq!(none.len(), 2, "no such room, and no README: {none:?}");
        let short = found("| `entry` | `mechanisms/entry` | none | `bench entry` |");
        assert_eq!(short[0], "ARCHITECTURE.md:3: 4 cells, not 5");
        let empty = found("| `entry` | `mechanisms/entry` | none | `window::` | `bench entry` |");
        assert_eq!(empty, ["ARCHITECTURE.md:3: \"none\" names no place"]);
    }
}
