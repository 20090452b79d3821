//! The isolation level: isolated CPUs in user mode are not interrupted, whatever the others do, by
//! /proc/interrupts of the guest. `limen bench ipi` prints the same as a table, and for longer.

use std::time::Duration;

use std::process::{Command, Stdio};

use serde_json::Value;

use super::watch::Running;
use super::{Context, Summary};
use crate::Error;
use crate::bench::ipi::{Figures, ISOLATED, built_program, limen, quiet, sum};

const TIME: Duration = Duration::from_secs(4);

type Judge = fn(&Figures) -> Option<String>;

const TESTS: [(&str, &str, Judge); 3] = [
    ("isolation::no_interrupt_reaches_user_mode", "pending", left_alone),
    ("isolation::none_by_cr3", "cr3", left_alone),
    // Test of the test: the load does send, and it is counted.
    ("isolation::not_deferred_they_come", "off", |figures| {
        let (came, deferred) = (quiet(figures, "total"), sum(figures, "deferred_"));
        (came == 0 || deferred > 0).then(|| format!("{came} came, {deferred} notes: {figures:?}"))
    }),
];

fn left_alone(figures: &Figures) -> Option<String> {
    let (came, deferred) = (quiet(figures, "total"), sum(figures, "deferred_"));
    (came > 0 || deferred == 0).then(|| format!("{came} interrupts, {deferred} notes: {figures:?}"))
}

pub(super) fn run(context: &Context) -> Result<Summary, Error> {
    let mut summary = Summary::default();
    for (name, mode, judge) in TESTS {
        if !context.wants(name) {
            summary.skipped += 1;
            continue;
        }
        let _running = Running::begin(name);
        match judge(&limen(&context.kernel, mode, TIME)?) {
            None => summary.passed += 1,
            Some(why) => {
                failed!("test {name} ... FAILED ({why})");
                summary.failed += 1;
            }
        }
    }
    if context.wants(TRACE) {
        let _running = Running::begin(TRACE);
        match trace(context)? {
            None => summary.passed += 1,
            Some(why) => {
                failed!("test {TRACE} ... FAILED ({why})");
                summary.failed += 1;
            }
        }
    }
    Ok(summary)
}

pub(super) fn names() -> Vec<String> {
    TESTS.iter().map(|(name, ..)| *name).chain([TRACE]).map(str::to_owned).collect()
}

const TRACE: &str = "isolation::trace_shows_what_was_deferred";

/// The same load under `--trace`: notes for the isolated CPUs, and their catch-ups at the end.
fn trace(context: &Context) -> Result<Option<String>, Error> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("trace.json");
    let status = Command::new(&context.limen)
        .args(["run", "--pack", "--smp", "4", "--timeout", "120", "--append", ISOLATED, "--trace"])
        .arg(&file)
        .arg("--")
        .arg(built_program()?)
        .arg("--ipi=1")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status()?;
    let text = std::fs::read(&file).unwrap_or_default();
    let trace: Value = serde_json::from_slice(&text)?;
    let events = trace["traceEvents"].as_array().map_or(&[][..], Vec::as_slice);
    let count = |name: &str, cpus: [u64; 2]| {
        let has = |event: &&Value| {
            let named = event["name"].as_str().is_some_and(|is| is.ends_with(name));
            named && event["tid"].as_u64().is_some_and(|cpu| cpus.contains(&cpu))
        };
        events.iter().filter(has).count()
    };
    let (deferred, caught_up) = (count("-deferred-user", [0, 1]), count("catch-up", [2, 3]));
    let right = status.success() && deferred > 0 && caught_up > 0;
    Ok((!right).then(|| format!("{status}, {deferred} notes, {caught_up} catch-ups")))
}
