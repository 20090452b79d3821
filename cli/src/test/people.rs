//! The people level: what a user was promised, line by line, and the tests that drive each line.
//!
//! It is the list to read, and runs by name alone: each of its tests is in another level as well. A
//! test that drives several lines runs once; tests of the crates on the host run first, together.
//!
//! Neighbours: `run.rs`, `dist.rs` and `pages.rs` have the tests, `SPEC.md` what holds beside
//! these.

use std::collections::BTreeMap;
use std::path::Path;

use super::run::ensure;
use super::watch::{self, Running};
use super::{Context, Summary, dist, host, pages, run};
use crate::Error;

/// What is promised, and the tests that drive it.
type Line = (&'static str, &'static [&'static str]);

/// Before the name of a test of a crate, which runs on the host alone.
const HOST: &str = "host:";
/// The crates that have those.
const CRATES: [&str; 3] = ["limen-cli", "limen-share", "limen-bench-cfi"];

const LINES: &[Line] = &[
    // Nothing wrong, nothing dangerous.
    (
        "the caller's environment stays outside, but for what is named",
        &["run::callers_environment"],
    ),
    (
        "a mistyped option is no program, and a forgotten `=` is named",
        &[
            "run::wrong_usage",
            "host:args::tests::a_mistyped_option_is_not_the_program",
            "host:args::tests::forgotten_equals_are_seen",
        ],
    ),
    (
        "no option is ignored: what has no effect, contradicts or is empty is refused",
        &["run::sentences", "host:unused::tests::"],
    ),
    (
        "--rw, --file and --cwd do what they say or are refused",
        &["run::wrong_usage", "run::copies"],
    ),
    ("a full disk is told with what names another place", &["run::full_disk"]),
    ("output that nobody takes is an error", &["run::output_is_not_lost"]),
    ("what cannot be written is found out before the program runs", &["run::wrong_usage"]),
    (
        "the guest's clock is the host's within 10 ms, its files are never of the future",
        &["run::clock"],
    ),
    (
        "--rw leaves no setuid file, pipe or device on the host",
        &["run::shared_folder_keeps_no_rights"],
    ),
    (
        "secrets are hidden, below --rw too; --help prints the list; --hide and --show",
        &[
            "run::secrets",
            "run::hidden",
            "host:secrets_are_hidden_unless_shown",
            "host:help_prints_what_is_hidden_and_the_statuses",
        ],
    ),
    ("--minimal gives a program what it needs and nothing else", &["run::packed"]),
    ("the live root is never written", &["run::writes_vanish", "run::live_root_refused"]),
    ("power off, halt and reboot are good ends", &["run::ends_of_its_own"]),
    ("out of memory is told, with the option that helps", &["run::memory"]),
    ("a home that cannot be written is no reason to fail", &["run::cache_elsewhere"]),
    ("a bench without its kernel fails before it measures", &["run::sentences"]),
    ("missing system calls are named as they were called", &["run::missing"]),
    (
        "plots have axes with names, and the grid where the labels are",
        &[
            "host:every_row_has_a_panel_with_its_points",
            "host:axes_are_labelled_and_the_grid_is_where_the_labels_are",
            "host:every_median_is_a_point_at_its_height",
        ],
    ),
    (
        "one toolchain for everything, whatever comes first in PATH",
        &[
            "run::launcher",
            "host:helpers_come_from_the_same_folder",
            "host:toolchain::tests::what_is_missing_is_named",
        ],
    ),
    ("what is missing is installed or named", &["run::launcher_lacks"]),
    ("run --gdb stops at kernel::main, Ctrl-C ends it", &["run::debugger"]),
    ("dmesg and /dev/kmsg have the kernel's log", &["run::kernel_log"]),
    ("a missing interpreter is named", &["run::wrong_usage"]),
    ("no KVM and a CPU of 32 bits are told in one line", &["run::kvm", "run::wrong_usage"]),
    (
        "JSON has a version, and null for what was not asked",
        &["run::report", "host:report_is_one_object"],
    ),
    // Waiting.
    ("the first build tells what it builds, how much is left and how long", &["run::launcher"]),
    (
        "what takes longer than two seconds is named: tests, benches, copies",
        &["host:progress::tests::", "run::bench_steps"],
    ),
    ("binaries run wherever they are unpacked", &["dist::archive"]),
    ("the package works on a clean Debian, and goes without a trace", &["dist::clean_tree"]),
    // What users of the neighbours have.
    ("limen run boots what limen pack made", &["run::kept"]),
    (
        "container images run as they say, copy-on-write, without root",
        &["run::container", "host:oci::"],
    ),
    ("limits end a VM and are named", &["run::limits"]),
    ("QEMU is jailed, and what holds it is told", &["run::jail"]),
    ("VMs in the background: --detach, ps, logs, stop", &["run::background"]),
    ("limen exec, with streams, signals and a terminal", &["run::exec"]),
    ("a terminal has its size, raw keys and Ctrl-C", &["run::terminal"]),
    (
        "limen compare counts the same each time, beside Linux too",
        &["run::compare", "run::compare_with_linux", "pages::compare"],
    ),
    (
        "a trace tells who had each CPU, and what leads to what; Perfetto's format",
        &["run::trace_format", "host:run::trace::"],
    ),
    ("the timeline is one page for every width, scheme and keyboard", &["pages::timeline"]),
    (
        "without virtio-fs the root goes by 9P; the end of its server is told",
        &[
            "host:without_virtiofs_the_root_goes_by_9p",
            "host:the_end_of_the_roots_server_is_told",
            "host:alarm::",
        ],
    ),
    // Words.
    ("every option has an example", &["host:every_option_has_an_example"]),
    (
        "every sentence is for who has never read the source",
        &["run::sentences", "host:failure::tests::"],
    ),
    ("whatever ends limen leaves nothing", &["run::children", "run::leaves_nothing"]),
];

pub(super) fn names() -> Vec<String> {
    LINES.iter().map(|(promise, tests)| format!("{promise} ({})", tests.join(", "))).collect()
}

/// Drives the lines whose words or tests contain the filter.
pub(super) fn run(context: &Context) -> Result<Summary, Error> {
    let is_wanted =
        |(promise, tests): &&Line| [&[*promise], *tests].concat().iter().any(|n| context.wants(n));
    let lines: Vec<&Line> = LINES.iter().filter(is_wanted).collect();
    let of_host: Vec<&str> = lines
        .iter()
        .flat_map(|(_, tests)| tests.iter())
        .filter_map(|t| t.strip_prefix(HOST))
        .collect();
    let said = of_crates(context, &of_host)?;
    let mut known = BTreeMap::new();
    let mut summary = Summary::default();
    for (promise, tests) in lines {
        let mut whys = Vec::new();
        for test in *tests {
            let result = known.entry(*test).or_insert_with(|| one(context, test, &said));
            if let Err(why) = result {
                whys.push(format!("{test}: {why}"));
            }
        }
        match whys.is_empty() {
            true => {
                tell!("ok: {promise}");
                summary.passed += 1;
            }
            false => {
                failed!("FAILED: {promise}: {}", whys.join("; "));
                summary.failed += 1;
            }
        }
    }
    Ok(summary)
}

/// Runs a test, or looks how one on the host went.
fn one(context: &Context, name: &str, of_host: &str) -> Result<(), String> {
    if let Some(name) = name.strip_prefix(HOST) {
        return judge(of_host, name);
    }
    let test = run::find(name).or_else(|| dist::find(name)).or_else(|| pages::find(name));
    let test = test.ok_or("there is no such test")?;
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let _running = Running::begin(name);
    test(context, Path::new(folder.path())).map_err(|error| error.to_string())
}

/// What the tests of the crates say whose names contain one of these.
fn of_crates(context: &Context, names: &[&str]) -> Result<String, Error> {
    if names.is_empty() {
        return Ok(String::new());
    }
    let mut cargo = host::cargo_test(context, &CRATES)?;
    cargo.args(["--", "--format=pretty", "--test-threads=2"]).args(names);
    let said = watch::output(&mut cargo, "on the host")?;
    ensure(said.contains("test result: "), || "the tests of the host do not build".to_owned())?;
    Ok(said)
}

/// How tests whose names contain this went: some ran, and none failed.
fn judge(said: &str, name: &str) -> Result<(), String> {
    let lines: Vec<_> = said
        .lines()
        .filter_map(|line| line.strip_prefix("test ")?.split_once(" ... "))
        .filter(|(test, _)| test.contains(name))
        .collect();
    match lines.iter().find(|(_, verdict)| *verdict != "ok") {
        Some((test, verdict)) => Err(format!("{test}: {verdict}")),
        None if lines.is_empty() => Err("no such test has run".to_owned()),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_names_tests_that_are_there() {
        for (promise, tests) in LINES {
            assert!(!tests.is_empty(), "{promise}");
            for test in tests.iter().filter(|test| !test.starts_with(HOST)) {
                let found =
                    run::find(test).or_else(|| dist::find(test)).or_else(|| pages::find(test));
                assert!(found.is_some(), "{promise}: {test}");
            }
        }
    }

    #[test]
    fn what_did_not_run_has_not_passed() {
        let said = "test a::b ... ok\ntest a::c ... FAILED\ntest x ... ok\n";
        assert_eq!(judge(said, "a::b"), Ok(()));
        assert_eq!(judge(said, "x"), Ok(()));
        for name in ["a::", "a::c", "none"] {
            assert!(judge(said, name).is_err(), "{name}");
        }
    }
}
