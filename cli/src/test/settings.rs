//! The settings level: the tests of `guest/tests` pass whatever the host's settings are.
//!
//! They state what Linux does, so they may not depend on who starts them. They are started with
//! limits, personality, signals, mask, priority and CPUs that nobody expects, each alone or, among
//! all levels, several together; and on Debian's kernel with settings that may not be changed on a
//! host (`vm.overcommit_memory`, address space randomisation). Neighbours: `guest.rs` has what is
//! tried, `judge.rs` boots the other kernel.

use std::process::{Command, Stdio};

use super::guest::{self, Results};
use super::watch::Running;
use super::{Context, Summary, judge};
use crate::Error;

/// Settings of the host, and the command that starts another one under them (util-linux).
type Row = (&'static str, &'static [&'static [&'static str]]);

const RANDOMISATION: &[&str] = &["setarch", "-R"];
const ENVIRONMENT: &[&str] = &["env", "-i"];
const PRIORITY: &[&str] = &["nice", "-n", "19"];
const ONE_CPU: &[&str] = &["taskset", "-c", "0"];
const LIMITS: &[&str] = &[
    "prlimit",
    "--stack=262144:",
    "--nofile=32:",
    "--memlock=0:",
    "--data=67108864:",
    "--fsize=1048576:",
    "--sigpending=16:",
    "--msgqueue=0:",
    "--core=unlimited:",
    "--",
];
const SIGNALS: &[&str] =
    &["sh", "-c", "trap '' HUP PIPE USR1 CHLD TERM; umask 077; cd /; exec \"$0\" \"$@\" 7<&0 9>&1"];

/// Where the level is named: each alone.
const EACH: [Row; 6] = [
    ("settings::without_randomisation", &[RANDOMISATION]),
    ("settings::small_limits", &[LIMITS]),
    ("settings::no_environment", &[ENVIRONMENT]),
    ("settings::low_priority", &[PRIORITY]),
    ("settings::one_cpu", &[ONE_CPU]),
    ("settings::signals_mask_and_descriptors", &[SIGNALS]),
];
/// Among all levels: the same, together where one does not hide what another does.
const TOGETHER: [Row; 2] = [
    ("settings::other_surroundings", &[RANDOMISATION, ENVIRONMENT, SIGNALS]),
    ("settings::little_of_all", &[PRIORITY, ONE_CPU, LIMITS]),
];

/// Parameters of Debian's kernel, and the tests whose answers they could change.
const LINUX: [(&str, &str, &str); 3] = [
    ("settings::overcommit_always", "sysctl.vm.overcommit_memory=1", "exec::"),
    ("settings::overcommit_never", "sysctl.vm.overcommit_memory=2", "exec::"),
    ("settings::no_randomisation_at_all", "norandmaps", "exec::"),
];

/// What of the host's settings is tried.
fn rows(context: &Context) -> &'static [Row] {
    if context.is_named { &EACH } else { &TOGETHER }
}

pub(super) fn names(context: &Context) -> Vec<String> {
    let host = rows(context).iter().map(|(name, _)| *name);
    host.chain(LINUX.iter().map(|(name, ..)| *name)).map(str::to_owned).collect()
}

pub(super) fn run(context: &Context) -> Result<Summary, Error> {
    let program = guest::build(context)?;
    let mut summary = Summary::default();
    for (name, commands) in rows(context).iter().filter(|(name, _)| context.wants(name)) {
        let _running = Running::begin(name);
        let words = commands.concat();
        let mut command = Command::new(words[0]);
        command
            .args(&words[1..])
            .arg(&program)
            .args(["run-all", "--bound", "180"])
            .args(guest::places()?);
        let output = command.stdin(Stdio::null()).output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        let results = guest::parse(&text);
        let results = guest::with_judge(&program, results)?;
        summary += verdict(name, &results, &errors);
    }
    for (name, parameters, filter) in LINUX.iter().filter(|(name, ..)| context.wants(name)) {
        let _running = Running::begin(name);
        let (results, text) = judge::ask(&program, parameters, filter, 1)?;
        summary += verdict(name, &results, &text);
    }
    Ok(summary)
}

/// One setting is one test: all that ran have passed.
fn verdict(name: &str, results: &Results, said: &str) -> Summary {
    let failed: Vec<&str> =
        results.iter().filter(|(_, passed)| !**passed).map(|(name, _)| name.as_str()).collect();
    if failed.is_empty() && !results.is_empty() {
        tell!("test {name} ... ok ({} tests)", results.len());
        return Summary { passed: 1, ..Summary::default() };
    }
    failed!("test {name} ... FAILED: {}\n{said}", failed.join(", "));
    Summary { failed: 1, ..Summary::default() }
}
