//! The floors of `kernel/src` and `machine/src`: a folder imports from itself and from what stands
//! below it.
//!
//! `upward_imports.txt` lists the imports that run up all the same. The list can only shrink: an
//! entry that no import needs any more is a finding itself. Neighbour: `imports.rs`.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use super::imports::{Graph, Import, Module};
use super::{Finding, Source};

/// A crate whose folders are floors, the lowest first. Why this order: ARCHITECTURE.md.
struct House {
    root: &'static str,
    floors: &'static [&'static str],
    /// Folders of tests, which may use everything.
    tests: &'static [&'static str],
    /// Most files that lead to each other in a circle.
    circle_files_max: usize,
}

const HOUSES: &[House] = &[
    House {
        root: "kernel/src",
        floors: &[
            "base",
            "security",
            "page_cache",
            "vfs",
            "mm",
            "block",
            "drivers",
            "fs",
            "process",
            "timers",
            "wait",
            "signal",
            "exec",
            "oom",
            "khugepaged",
            "init",
            "futex",
            "ipc",
            "io",
            "aio",
            "net",
            "inet",
            "sockets",
            "ptrace",
            "seccomp",
            "kvm",
            "tty",
            "procfs",
            "mapping",
            "files",
            "calls",
            "boot",
        ],
        tests: &["ktest"],
        circle_files_max: 15,
    },
    House {
        root: "machine/src",
        floors: &[
            "cpu",
            "context_tracking",
            "memory",
            "panic",
            "text",
            "device",
            "mitigations",
            "entry",
            "task",
            "vmrun",
            "boot",
        ],
        tests: &["ktest"],
        circle_files_max: 15,
    },
];

/// Most lines of a floor.
const FLOOR_LINES_MAX: usize = 8000;
/// `FROM TO NAME` per line, modules from the crate's root; `#` begins a comment.
const EXCEPTIONS: &str = include_str!("upward_imports.txt");

/// What a house looks like, for people.
pub(super) struct Summary {
    root: &'static str,
    files: usize,
    imports: usize,
    upward: usize,
    largest_circle: usize,
    largest_floor: (String, usize),
    floors: Vec<FloorSummary>,
}

/// A floor, and what it takes from others.
struct FloorSummary {
    name: &'static str,
    lines: usize,
    largest_circle: usize,
    /// The other floors, and how many imports lead there.
    imports: BTreeMap<String, usize>,
}

impl fmt::Display for FloorSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let edges: Vec<String> =
            self.imports.iter().map(|(floor, count)| format!("{floor} {count}")).collect();
        let edges = if edges.is_empty() { String::from("nothing") } else { edges.join(", ") };
        let (name, lines, circle) = (self.name, self.lines, self.largest_circle);
        write!(f, "  {name}: {lines} lines, circle {circle}; takes from {edges}")
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (floor, lines) = &self.largest_floor;
        write!(
            f,
            "{}: {} files, {} imports, {} of them upward; largest circle {} files, largest \
             floor {floor} with {lines} lines",
            self.root, self.files, self.imports, self.upward, self.largest_circle
        )?;
        self.floors.iter().rev().try_for_each(|floor| write!(f, "\n{floor}"))
    }
}

pub(super) fn check(sources: &[&Source], findings: &mut Vec<Finding>) -> Vec<Summary> {
    HOUSES.iter().map(|house| check_house(house, EXCEPTIONS, sources, findings)).collect()
}

fn check_house(
    house: &House,
    exceptions: &str,
    sources: &[&Source],
    findings: &mut Vec<Finding>,
) -> Summary {
    let graph = Graph::of(Path::new(house.root), sources);
    let is_test =
        |module: &Module| module.first().is_some_and(|first| house.tests.contains(&first.as_str()));
    let counts = |import: &Import| !import.from.is_empty() && !is_test(&import.from);
    let upward = check_imports(house, exceptions, &graph, counts, findings);
    let circles = graph.circles(counts);
    for circle in circles.iter().filter(|circle| circle.len() > house.circle_files_max) {
        let names: Vec<String> = circle.iter().map(|module| module.join("::")).collect();
        let text = format!(
            "{} files import each other in a circle, at most {}: {}",
            circle.len(),
            house.circle_files_max,
            names.join(" ")
        );
        findings.push(Finding::new(Path::new(house.root), 0, text));
    }
    let mut lines: BTreeMap<String, usize> = BTreeMap::new();
    for (module, (path, length)) in &graph.files {
        match module.first() {
            Some(floor) if is_test(module) || house.floors.contains(&floor.as_str()) => {
                *lines.entry(floor.clone()).or_default() += length;
            }
            Some(_) => findings.push(Finding::new(path, 0, "stands on no floor: see `floors.rs`")),
            None => {}
        }
    }
    for (floor, length) in lines.iter().filter(|(_, length)| **length > FLOOR_LINES_MAX) {
        let text = format!("{length} lines, at most {FLOOR_LINES_MAX}");
        findings.push(Finding::new(&PathBuf::from(house.root).join(floor), 0, text));
    }
    let floors = house.floors.iter().map(|&name| {
        let of_floor = |module: &Module| module.first().is_some_and(|first| first == name);
        let mut taken: BTreeMap<String, usize> = BTreeMap::new();
        for import in graph.imports.iter().filter(|i| of_floor(&i.from) && !of_floor(&i.to)) {
            *taken.entry(import.to[0].clone()).or_default() += 1;
        }
        let circle = circles.iter().find(|circle| circle.iter().any(|module| of_floor(module)));
        FloorSummary {
            name,
            lines: lines.get(name).copied().unwrap_or(0),
            largest_circle: circle.map_or(0, Vec::len),
            imports: taken,
        }
    });
    let floors = floors.filter(|floor| floor.lines > 0).collect();
    Summary {
        floors,
        root: house.root,
        files: graph.files.len(),
        imports: graph.imports.len(),
        upward,
        largest_circle: circles.first().map_or(0, Vec::len),
        largest_floor: lines.into_iter().max_by_key(|(_, lines)| *lines).unwrap_or_default(),
    }
}

/// Finds imports that run up and are not excepted, and exceptions that are not needed. Returns how
/// many run up.
fn check_imports(
    house: &House,
    exceptions: &str,
    graph: &Graph,
    counts: impl Fn(&Import) -> bool,
    findings: &mut Vec<Finding>,
) -> usize {
    let rank = |module: &Module| house.floors.iter().position(|floor| *floor == module[0]);
    let runs_up = |import: &&Import| match (rank(&import.from), rank(&import.to)) {
        (Some(from), Some(to)) => to > from,
        // Tests are above everything.
        _ => true,
    };
    let mut unused: Vec<&str> =
        exceptions.lines().filter(|line| line.starts_with(&format!("{} ", house.root))).collect();
    let mut upward = 0;
    for import in graph.imports.iter().filter(|import| counts(import)).filter(runs_up) {
        upward += 1;
        let (from, to) = (import.from.join("::"), import.to.join("::"));
        let name = if import.name.is_empty() { "self" } else { &import.name };
        let entry = format!("{} {from} {to} {name}", house.root);
        let before = unused.len();
        unused.retain(|line| *line != entry);
        if unused.len() == before {
            let path =
                graph.files.get(&import.from).map_or(Path::new(house.root), |(path, _)| path);
            let text = format!("takes `{name}` from {to}, which stands above it");
            findings.push(Finding::new(path, 0, text));
        }
    }
    for line in unused {
        let text = format!("upward_imports.txt: `{line}` is not needed any more");
        findings.push(Finding::new(Path::new(house.root), 0, text));
    }
    upward
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: House =
        House { root: "k/src", floors: &["low", "high"], tests: &["trial"], circle_files_max: 15 };

    fn findings(exceptions: &str, files: &[(&str, &str)]) -> Vec<String> {
        let sources: Vec<Source> = files
            .iter()
            .map(|(path, text)| Source {
                path: Path::new("k/src").join(path),
                text: (*text).to_owned(),
            })
            .collect();
        let mut findings = Vec::new();
        check_house(&SMALL, exceptions, &sources.iter().collect::<Vec<_>>(), &mut findings);
        findings.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn imports_run_down() {
        let files = [("low/a.rs", "use crate::high::b::X;"), ("high/b.rs", "use crate::low::a;")];
        assert_eq!(
            findings("", &files),
            ["k/src/low/a.rs: takes `X` from high::b, which stands above it"]
        );
        assert_eq!(findings("k/src low::a high::b X\n", &files), [""; 0]);
    }

    #[test]
    fn the_list_only_shrinks() {
        let files = [("low/a.rs", ""), ("high/b.rs", "use crate::low::a;")];
        let found = findings("# why\nk/src low::a high::b X\n", &files);
        assert_eq!(found.len(), 1);
        assert!(found[0].contains("not needed any more"), "{found:?}");
    }

    #[test]
    fn tests_and_the_root_may_use_everything() {
        let files = [
            ("trial/t.rs", "use crate::high::b;"),
            ("lib.rs", "use crate::low;"),
            ("low/mod.rs", ""),
        ];
        assert_eq!(findings("", &files), [""; 0]);
        assert_eq!(findings("", &[("cellar/a.rs", "")]).len(), 1);
    }

    #[test]
    fn circles_and_floors_have_a_size() {
        let file =
            |n: usize| (format!("low/f{n}.rs"), format!("use crate::low::f{}::X;", (n + 1) % 16));
        let files: Vec<(String, String)> = (0..16).map(file).collect();
        let files: Vec<(&str, &str)> =
            files.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
        assert_eq!(findings("", &files).len(), 1);
        assert_eq!(findings("", &files[..15]), [""; 0]);
        let long = "\n".repeat(FLOOR_LINES_MAX + 1);
        assert_eq!(findings("", &[("low/a.rs", &long)]).len(), 1);
    }
}
