//! Levels beside the others. Among all levels, and where more than one virtual machine may run at
//! a time, those that keep a single CPU busy run one behind the other in other processes of this
//! program while the others go on; what each has said is told at its turn.
//!
//! Why other processes: what is told and what has failed belongs to the one level that runs.
//! Neighbours: `failures.rs` takes over what failed there.

use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use super::{Context, LAST_LINE, Summary, failures};
use crate::Error;

/// Those levels, as they run: in the order of their turns.
const BESIDE: [&str; 3] = ["bochs", "hostile", "differ"];
/// The level with which they begin: those before it compile, with all CPUs, and the last of them
/// boots the kernel that Bochs boots, which must not be built again meanwhile.
const BEGIN: &str = "guest";

/// How it went.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Outcome {
    pub(super) summary: Summary,
    /// What failed, as it is said once more behind all levels.
    pub(super) failures: String,
}

/// The levels that run beside the others, once they have begun.
#[derive(Default)]
pub(super) struct Beside(Option<Receiver<Result<String, Error>>>);

impl Beside {
    /// A level's turn: if it has run beside the others, how it went, once it has ended.
    pub(super) fn turn(&mut self, level: &str, context: &Context) -> Option<Outcome> {
        let all_run = !context.is_named && context.filter.is_empty();
        if level == BEGIN && all_run && context.jobs > 1 {
            self.0 = Some(begin(context));
        }
        let said = self.0.as_ref().filter(|_| BESIDE.contains(&level))?.recv();
        let text = said.unwrap_or_else(|_| Err("its thread has panicked".into()));
        Some(text.map_or_else(|error| lost(level, &error.to_string()), |t| outcome(level, &t)))
    }
}

/// Runs them; what each has said, in their order.
fn begin(context: &Context) -> Receiver<Result<String, Error>> {
    let (limen, is_verbose) = (context.limen.clone(), context.verbose);
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for level in BESIDE {
            let mut command = Command::new(&limen);
            // No other word of this run is one for it.
            command.args(["test", level, "--among-all"]).args(is_verbose.then_some("--verbose"));
            let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output();
            let said = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
            if sender.send(said.map_err(Error::from)).is_err() {
                // Nobody asks any more.
                return;
            }
        }
    });
    receiver
}

/// Tells what it has said, but for what is said again behind all levels.
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
    let (said, failures) = failures::split(said);
    Some((said.trim_end(), Outcome { summary, failures }))
}

fn lost(level: &str, why: &str) -> Outcome {
    let failures = format!("{level}: it did not come to its end");
    tell!("{why}\n{failures}");
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
    fn they_begin_behind_the_kernel_and_are_told_in_their_order() {
        let at = |name: &&str| super::super::LEVELS.iter().position(|level| level.name == *name);
        let places: Vec<_> = ["kernel", BEGIN].iter().chain(&BESIDE).map(at).collect();
        assert!(places.is_sorted() && places.iter().all(Option::is_some), "{places:?}");
    }
}
