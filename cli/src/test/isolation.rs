//! The isolation level: isolated CPUs in user mode are not interrupted, whatever the others do, by
//! /proc/interrupts of the guest. `limen bench ipi` prints the same as a table, and for longer.

use std::time::Duration;

use super::{Context, Summary};
use crate::Error;
use crate::bench::ipi::{Figures, limen, quiet, sum};

const TIME: Duration = Duration::from_secs(4);

type Judge = fn(&Figures) -> Option<String>;

const TESTS: [(&str, &str, Judge); 2] = [
    ("isolation::no_interrupt_reaches_user_mode", "pending", |figures| {
        let came = quiet(figures, "total");
        let deferred = sum(figures, "deferred_");
        (came > 0 || deferred == 0)
            .then(|| format!("{came} interrupts, {deferred} notes: {figures:?}"))
    }),
    // Test of the test: the load does send, and it is counted.
    ("isolation::not_deferred_they_come", "off", |figures| {
        let (came, deferred) = (quiet(figures, "total"), sum(figures, "deferred_"));
        (came == 0 || deferred > 0).then(|| format!("{came} came, {deferred} notes: {figures:?}"))
    }),
];

pub(super) fn run(context: &Context) -> Result<Summary, Error> {
    let mut summary = Summary::default();
    for (name, mode, judge) in TESTS {
        if !context.wants(name) {
            summary.skipped += 1;
            continue;
        }
        match judge(&limen(&context.kernel, mode, TIME)?) {
            None => summary.passed += 1,
            Some(why) => {
                println!("test {name} ... FAILED ({why})");
                summary.failed += 1;
            }
        }
    }
    Ok(summary)
}
