//! The kernel's own tests, inside the booted kernel: `ktest` on the command line of an image built
//! with the feature runs all, `ktest=FILTER` those whose name contains FILTER, `ktest=?` only names
//! them. The log says `test NAME ... ok` or why not, and `N passed, N failed` at the end; then the
//! machine ends.
//!
//! They run in a thread of the kernel, one after the other. A test that panics ends the run, which
//! the command line reports.

use machine::ktest::Test;

mod defer;
mod hooks;
mod ninep;
mod ninep_server;
mod others;
mod read_ahead;
mod read_mostly;
mod sched;
mod structures;
mod text;
mod virtiofs;
mod window;

const SUITES: &[&[Test]] = &[
    text::TESTS,
    sched::TESTS,
    structures::TESTS,
    defer::TESTS,
    window::TESTS,
    ninep::TESTS,
    virtiofs::TESTS,
    read_ahead::TESTS,
    others::TESTS,
    read_mostly::TESTS,
    hooks::TESTS,
];

/// Tests of this name run only where the filter asks for them.
const LONG: &str = "long::";

/// A filter for which the names are printed, and no test runs.
const LIST: &str = "?";

/// Whether the command line asks for tests.
pub(crate) fn is_wanted() -> bool {
    let line = machine::boot::info().command_line;
    crate::base::params::has_flag(line, "ktest")
        || crate::base::params::find(line, "ktest").is_some()
}

/// Runs the tests and ends the machine.
pub(crate) fn run() -> ! {
    let filter =
        crate::base::params::find(machine::boot::info().command_line, "ktest").unwrap_or("");
    let (mut passed, mut failed) = (0, 0);
    let suites = machine::ktest::TESTS.iter().chain(SUITES);
    for test in suites.flat_map(|suite| suite.iter()) {
        if filter == LIST {
            machine::log::write(format_args!("test {}", test.name));
            continue;
        }
        let asked = filter.starts_with(LONG) || !test.name.starts_with(LONG);
        if !asked || !test.name.contains(filter) {
            continue;
        }
        let verdict = match (test.run)() {
            Ok(()) => "ok",
            Err(why) => {
                machine::log!("{}: {why}", test.name);
                "FAILED"
            }
        };
        if verdict == "ok" {
            passed += 1;
        } else {
            failed += 1;
        }
        machine::log::write(format_args!("test {} ... {verdict}", test.name));
    }
    machine::log::write(format_args!("{passed} passed, {failed} failed"));
    machine::power::off(machine::power::OK)
}
