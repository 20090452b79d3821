//! Faults that a program provokes in the kernel of the tests, one boot each: the kernel must end
//! with a report that names site and target, or, with `cfi=warn`, go on. And loops, which the
//! watchdog must end.
//!
//! The program writes the fault's name to `/proc/sys/kernel/provoke`, which only that kernel has
//! (`machine::ktest::provoke`). Neighbour: `kernel.rs` builds it.

use std::path::Path;
use std::process::Command;

use super::watch::Running;
use super::{Context, Summary};
use crate::Error;

/// The fault, kernel parameters, and whether the machine ends.
type Fault = (&'static str, &'static str, bool);
const FAULTS: [Fault; 14] = [
    ("wrong-type", "", true),
    ("tail-call", "", true),
    ("data", "", true),
    ("user-code", "", true),
    ("null", "", true),
    ("non-canonical", "", true),
    ("unmapped-preamble", "", true),
    ("vtable", "", true),
    ("in-nmi", "", true),
    ("in-interrupt", "", true),
    ("in-report", "", true),
    ("wrong-type", "cfi=kcfi", true),
    ("wrong-type", "cfi=warn", false),
    (NOT_COVERED, "", false),
];
/// Loops that the watchdog must end, and how it tells of each.
const LOOPS: [(&str, &str); 2] =
    [("loop", "has looped in the kernel"), ("masked-loop", "has not ticked")];
/// What `limen run` ends with after a panic.
const STATUS_PANIC: i32 = 125;
const WRITTEN: &str = "written";
/// The backward edge: the kernel follows the changed address, and says that it does.
const NOT_COVERED: &str = "return-address";

pub(super) fn run(context: &Context, kernel: &Path) -> Result<Summary, Error> {
    let mut summary = Summary::default();
    for fault in FAULTS {
        judge(context, &mut summary, &name_of(&fault), || provoke(context, kernel, fault))?;
    }
    for (name, words) in LOOPS {
        judge(context, &mut summary, &loop_name(name), || run_loop(context, kernel, name, words))?;
    }
    Ok(summary)
}

/// Runs a test, which gives what was said if that was wrong.
fn judge(
    context: &Context,
    summary: &mut Summary,
    name: &str,
    test: impl FnOnce() -> Result<Option<String>, Error>,
) -> Result<(), Error> {
    if !context.wants(name) {
        summary.skipped += 1;
        return Ok(());
    }
    let _running = Running::begin(name);
    match test()? {
        None => summary.passed += 1,
        Some(output) => {
            tell!("kernel test {name} failed\n{output}");
            summary.failed += 1;
        }
    }
    Ok(())
}

fn name_of(fault: &Fault) -> String {
    format!("fault::{} {}", fault.0, fault.1)
}

fn loop_name(name: &str) -> String {
    format!("watchdog::{name}")
}

pub(super) fn names() -> Vec<String> {
    FAULTS.iter().map(name_of).chain(LOOPS.iter().map(|(name, _)| loop_name(name))).collect()
}

/// Has a CPU of two loop in the kernel.
fn run_loop(
    context: &Context,
    kernel: &Path,
    name: &str,
    words: &str,
) -> Result<Option<String>, Error> {
    let (status, said) = write_fault(context, kernel, name, &["--smp", "2"])?;
    let is_told =
        |line: &str| line.contains("limen: panic: watchdog: cpu ") && line.contains(words);
    let good = status == Some(STATUS_PANIC) && said.lines().any(is_told);
    Ok((!good).then_some(said))
}

/// Runs a program that provokes the fault: its status, and all that was said.
fn write_fault(
    context: &Context,
    kernel: &Path,
    fault: &str,
    options: &[&str],
) -> Result<(Option<i32>, String), Error> {
    let script = format!("echo {fault} > /proc/sys/kernel/provoke && echo {WRITTEN}");
    let output = Command::new(&context.limen)
        .args(["run", "--pack", "--timeout", "100", "-v"])
        .args(options)
        .arg("--kernel")
        .arg(kernel)
        .args(["--", "/bin/sh", "-c", &script])
        .output()?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok((output.status.code(), text(&output.stdout) + &text(&output.stderr)))
}

/// What was said, if it was not what must be said.
fn provoke(
    context: &Context,
    kernel: &Path,
    (fault, append, fatal): Fault,
) -> Result<Option<String>, Error> {
    let (status, said) = write_fault(context, kernel, fault, &["--append", append])?;
    if fault == NOT_COVERED {
        let good = said.contains("not covered by kCFI") && said.contains(WRITTEN);
        return Ok((!good).then_some(said));
    }
    // The last one, for that has the names; with `-v` the log shows the bare line as it comes.
    let report = said.lines().rev().find(|line| line.contains("CFI failure at "));
    let good = match (fatal, report) {
        (true, Some(report)) => {
            report.contains("limen: panic: ")
                && status == Some(STATUS_PANIC)
                && !said.contains(WRITTEN)
                // The command line knows the name of the function that called.
                && report.contains("site machine::ktest::text::")
        }
        (false, Some(report)) => report.contains("limen: warning: ") && said.contains(WRITTEN),
        (_, None) => false,
    };
    Ok((!good).then_some(said))
}
