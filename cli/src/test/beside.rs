//! Levels beside the others. Among all levels, and where more than one virtual machine may run at
//! a time, those that keep a single CPU busy run in another process of this program while the
//! others go on; what each has said is told at its turn.
//!
//! Why another process: what is told and what has failed belongs to the one level that runs.
//! Neighbours: `failures.rs` takes over what failed there.

use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use super::{Context, Summary};
use crate::Error;

/// Those levels, in the order of their turns.
const BESIDE: [&str; 1] = ["bochs"];
/// The level with which they begin: those before it compile, with all CPUs, and the last of them
/// boots the kernel that Bochs boots, which must not be built again meanwhile.
const BEGIN: &str = "guest";
/// What a process that runs such a level prints before its last line, where something has failed.
const FAILURES: &str = "\nfailures:\n";
const LAST_LINE: &str = "all levels: ";

/// How one of them went.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Outcome {
    pub(super) summary: Summary,
    /// What failed, as it is said once more behind all levels.
    pub(super) failures: String,
}

/// The levels that run beside the others.
pub(super) struct Beside {
    is_wanted: bool,
    texts: Option<Receiver<Result<String, Error>>>,
}

impl Beside {
    pub(super) fn new(context: &Context) -> Self {
        let is_wanted = !context.is_named && context.filter.is_empty() && context.jobs > 1;
        Self { is_wanted, texts: None }
    }

    /// A level's turn: if it has run beside the others, how it went, once it has ended.
    pub(super) fn turn(&mut self, level: &str, context: &Context) -> Option<Outcome> {
        if self.is_wanted && level == BEGIN {
            self.texts = Some(begin(context));
        }
        let texts = self.texts.as_ref().filter(|_| BESIDE.contains(&level))?;
        let text = texts.recv().map_err(Error::from).flatten();
        Some(
            text.map_or_else(|error| lost(level, &error.to_string()), |text| outcome(level, &text)),
        )
    }
}

/// Starts them, one after the other; what each has said, in order.
fn begin(context: &Context) -> Receiver<Result<String, Error>> {
    let (to, texts) = channel();
    let limen = context.limen.clone();
    // No other word of this run is one for them.
    let verbose = context.verbose.then_some("--verbose");
    std::thread::spawn(move || {
        for level in BESIDE {
            let mut command = Command::new(&limen);
            command.args(["test", level, "--among-all"]).args(verbose).stdin(Stdio::null());
            let output = command.stderr(Stdio::inherit()).output();
            let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
            if to.send(text.map_err(Error::from)).is_err() {
                return;
            }
        }
    });
    texts
}

/// Tells what a level has said, but for what is said again behind all levels.
fn outcome(level: &str, text: &str) -> Outcome {
    let Some((said, outcome)) = parsed(text) else {
        return lost(level, text);
    };
    tell!("{said}\n");
    outcome
}

/// What was said, and how it went; None where it did not come to its last line.
fn parsed(text: &str) -> Option<(&str, Outcome)> {
    let (said, last) = text.trim_end().rsplit_once('\n')?;
    let summary = Summary::parse(last.strip_prefix(LAST_LINE)?)?;
    let (said, failures) = said.split_once(FAILURES).unwrap_or((said, ""));
    let failures = failures.lines().map(|line| line.strip_prefix("  ").unwrap_or(line));
    let failures = failures.collect::<Vec<_>>().join("\n").trim_end().to_owned();
    Some((said.trim_end(), Outcome { summary, failures }))
}

fn lost(level: &str, why: &str) -> Outcome {
    tell!("{why}\n{level}: it did not come to its end");
    let failures = format!("{level}: it did not come to its end");
    Outcome { summary: Summary { failed: 1, ..Summary::default() }, failures }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_that_ran_elsewhere_counts_as_if_it_had_run_here() {
        let text = "== bochs\nbochs: 3 passed, 0 failed, 2 skipped (1.0 s)\n\n\
                    all levels: 3 passed, 0 failed, 2 skipped\n";
        let (said, outcome) = parsed(text).expect("it has a last line");
        assert_eq!(said, "== bochs\nbochs: 3 passed, 0 failed, 2 skipped (1.0 s)");
        let summary = Summary { passed: 3, failed: 0, skipped: 2 };
        assert_eq!(outcome, Outcome { summary, failures: String::new() });
    }

    #[test]
    fn what_failed_elsewhere_is_said_again() {
        let text = "== a\ntest b FAILED\na: 0 passed, 1 failed (1.0 s)\n\n\
                    failures:\n  a: test b FAILED\n  why\n\nall levels: 0 passed, 1 failed\n";
        let (said, outcome) = parsed(text).expect("it has a last line");
        assert_eq!(said, "== a\ntest b FAILED\na: 0 passed, 1 failed (1.0 s)");
        assert_eq!(outcome.failures, "a: test b FAILED\nwhy");
        assert_eq!(outcome.summary.failed, 1);
    }

    #[test]
    fn a_level_without_its_last_line_has_failed() {
        for text in ["", "== a\n", "== a\nall levels: many\n", "error: no kernel\n"] {
            assert_eq!(parsed(text), None, "{text:?}");
        }
    }

    #[test]
    fn they_are_levels_in_the_order_of_their_turns() {
        let at = |name: &str| super::super::LEVELS.iter().position(|level| level.name == name);
        let places: Vec<_> = ["kernel", BEGIN].iter().chain(&BESIDE).map(|name| at(name)).collect();
        assert!(places.is_sorted() && places.iter().all(Option::is_some), "{places:?}");
    }
}
