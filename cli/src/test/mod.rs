//! `limen test`: the levels, each runnable alone, and their closing lines.
//!
//! | Level | What runs | Where |
//! |---|---|---|
//! | host | `cargo test` of the crates that need no machine | this host |
//! | audit | objtool on the kernel image | this host |
//! | kernel | the kernel's own tests | QEMU |
//! | guest | `guest/tests`, first on this host, then in Limen | both |
//! | isolation | a load that interrupts every CPU but the isolated ones | QEMU |
//! | run | `limen run` and `limen pack` as a user meets them | both |
//! | bochs | some of `kernel` and `guest`, started by GRUB | Bochs |
//! | settings | `guest/tests` under other settings of the host, and of Debian's kernel | both |
//! | dist | what `limen dist` makes, unpacked; if named, installed on a clean Debian | both |
//! | pages | the pages of `limen trace` and `limen compare`, in Chromium | both |
//! | people | what users were promised, line by line, each by its tests | both |
//! | sabotage | the sources, broken one way at a time: tests must notice | host; `--all`: QEMU |
//! | hostile | programs that take all they can, a short fuzz run, bad archives | QEMU |
//! | differ | random programs whose calls must answer as on Linux | both |
//! | fuzz | the system call fuzzer for ten minutes | QEMU |
//! | bench | the benches of what grows, scales and guests cost, tiny, Limen alone | both |
//! | apps | `guest/apps.toml` | QEMU |
//! | soak | the same again and again in one machine, for as long as `--time` says | QEMU |
//!
//! A test that takes longer than two seconds is named on stderr while it runs (`watch.rs`).
//! Each level prints `LEVEL: N passed, N failed`; what failed is said once more behind all of them
//! (`failures.rs`), and makes the exit status 1. Three levels run beside the others (`beside.rs`).

#[macro_use]
mod failures;

pub(crate) mod apps;
mod audit;
mod bench;
mod beside;
mod beside_linux;
mod bochs;
mod browser;
mod detached;
mod differ;
mod dist;
mod ended;
mod exec;
mod faults;
mod full_disk;
mod guest;
mod host;
mod hostile;
mod images;
mod isolation;
mod judge;
mod kernel;
mod launcher;
mod live_root;
mod nested;
mod packages;
mod pages;
mod people;
mod profile;
mod promises;
mod run;
mod sabotage;
mod sandboxers;
mod sentences;
mod settings;
mod soak;
mod traces;
pub(crate) mod vmscape;
mod waiting;
mod watch;

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use self::beside::Beside;
use crate::args::TestArgs;
use crate::{Error, paths, toolchain};

/// What a level works with.
#[derive(Clone, Debug)]
pub(crate) struct Context {
    /// The kernel image that `limen run` boots.
    pub(crate) kernel: PathBuf,
    /// The repository.
    pub(crate) repository: PathBuf,
    /// Cargo's target folder.
    pub(crate) target: PathBuf,
    /// This program: `limen run` is started as a user would.
    pub(crate) limen: PathBuf,
    /// Only tests whose name contains this; empty: all.
    pub(crate) filter: String,
    /// CPU counts to run VMs with.
    pub(crate) smp: Vec<u8>,
    /// VMs at the same time.
    pub(crate) jobs: usize,
    /// The level was asked for by name.
    pub(crate) is_named: bool,
    /// Every combination.
    pub(crate) all: bool,
    /// Seed of the fuzzer; 0: a new one.
    pub(crate) seed: u64,
    /// How long the level differ makes programs, and a soak lasts.
    pub(crate) time: Duration,
    /// Show the output of tests that pass, too.
    pub(crate) verbose: bool,
}

/// How a level went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Summary {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    pub(crate) skipped: usize,
}

impl Context {
    /// True if the test `name` was asked for.
    pub(crate) fn wants(&self, name: &str) -> bool {
        name.contains(&self.filter)
    }

    /// A cargo command in the repository.
    pub(crate) fn cargo(&self) -> Result<Command, Error> {
        toolchain::cargo(&self.repository)
    }
}

impl Summary {
    /// What its text says; None where it is not one.
    fn parse(text: &str) -> Option<Self> {
        let count = |word: &str| number_before(text, word);
        let (passed, failed) = (count("passed")?, count("failed")?);
        Some(Self { passed, failed, skipped: count("skipped").unwrap_or(0) })
    }
}

fn number_before(text: &str, word: &str) -> Option<usize> {
    let (before, _) = text.split_once(word)?;
    before.trim().rsplit([' ', ';']).next()?.parse().ok()
}

impl std::ops::AddAssign for Summary {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

impl std::fmt::Display for Summary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} passed, {} failed", self.passed, self.failed)?;
        match self.skipped {
            0 => Ok(()),
            skipped => write!(f, ", {skipped} skipped"),
        }
    }
}

/// A level: its name, what runs it, and the names of its tests.
struct Level {
    name: &'static str,
    run: fn(&Context) -> Result<Summary, Error>,
    names: fn(&Context) -> Result<Vec<String>, Error>,
}

/// In order: the quick ones first.
const LEVELS: [Level; 18] = [
    Level { name: "host", run: host::run, names: host::names },
    Level {
        name: "audit",
        run: audit::run,
        names: |_| {
            Ok(vec!["audit".to_owned(), "audit::ways".to_owned(), "audit::order".to_owned()])
        },
    },
    Level { name: "sabotage", run: sabotage::run, names: sabotage::names },
    Level { name: "kernel", run: kernel::run, names: kernel::names },
    Level { name: "guest", run: guest::run, names: guest::names },
    Level { name: "isolation", run: isolation::run, names: |_| Ok(isolation::names()) },
    Level { name: "run", run: run::run, names: |_| Ok(run::names()) },
    Level { name: "bochs", run: bochs::run, names: bochs::names },
    Level { name: "settings", run: settings::run, names: |c| Ok(settings::names(c)) },
    Level { name: "dist", run: dist::run, names: |_| Ok(dist::names()) },
    Level { name: "pages", run: pages::run, names: |_| Ok(pages::names()) },
    Level { name: "people", run: people::run, names: |_| Ok(people::names()) },
    Level { name: "hostile", run: hostile::run, names: hostile::names },
    Level { name: "differ", run: differ::run, names: |_| Ok(vec!["differ::programs".to_owned()]) },
    Level { name: "fuzz", run: hostile::run_fuzz, names: |_| Ok(vec!["fuzz::long".to_owned()]) },
    Level { name: "bench", run: bench::run, names: |_| Ok(bench::names()) },
    Level { name: "apps", run: apps::run, names: apps::names },
    Level { name: "soak", run: soak::run, names: apps::names },
];

/// What the last line begins with.
const LAST_LINE: &str = "all levels: ";

/// Levels that run only when named: the long fuzz run takes ten minutes (a short one is in
/// `hostile`), a soak as long as one likes; the tests of `people` are in other levels, too.
const ONLY_BY_NAME: [&str; 3] = ["fuzz", "people", "soak"];

/// Whether a word names a level.
pub(crate) fn is_level(what: &str) -> bool {
    LEVELS.iter().any(|level| level.name == what)
}

/// CPU counts to run VMs with: where all levels run, the ends of the list, unless every combination
/// is asked for.
fn cpu_counts(args: &TestArgs) -> Vec<u8> {
    let is_all = (args.what.is_none() || args.among_all) && args.filter.is_none();
    match args.smp.as_slice() {
        [first, .., last] if is_all && !args.all => vec![*first, *last],
        all => all.to_vec(),
    }
}

/// Runs what was asked for. The exit status is 1 if anything failed.
pub(crate) fn command(args: &TestArgs) -> Result<u8, Error> {
    let what = args.what.as_deref();
    // A room's name is a filter for all levels.
    let room = what.filter(|what| !is_level(what));
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let context = Context {
        kernel: paths::kernel_image(None)?,
        repository: paths::repository()?,
        target: paths::target_dir()?,
        limen: std::env::current_exe()?,
        filter: args.filter.clone().or(room.map(str::to_owned)).unwrap_or_default(),
        smp: cpu_counts(args),
        jobs: args.jobs.map_or(cpus, usize::from),
        is_named: what.is_some() && !args.among_all,
        all: args.all,
        seed: args.seed,
        time: args.time,
        verbose: args.verbose,
    };
    let wanted = |name: &str| match what {
        Some(what) if is_level(what) => what == name,
        _ => !ONLY_BY_NAME.contains(&name),
    };
    let levels = LEVELS.iter().filter(|level| wanted(level.name));
    if args.list {
        return list(levels, &context);
    }
    if levels.clone().any(|level| level.name != "host") {
        packages::install_programs()?;
    }
    let (mut total, mut failures) = (Summary::default(), failures::Failures::default());
    let mut beside = Beside::default();
    for level in levels {
        let summary = if let Some(outcome) = beside.turn(level.name, &context) {
            failures.take_over(outcome.failures);
            outcome.summary
        } else {
            let summary = run_level(level, &context);
            failures.take(level.name, summary.failed);
            summary
        };
        total += summary;
    }
    if total.passed + total.failed == 0 {
        return Err(nothing_selected(args).into());
    }
    if let Some(failures) = failures.text() {
        tell!("{failures}");
    }
    tell!("{LAST_LINE}{total}");
    Ok(u8::from(total.failed > 0))
}

/// A filter that selects nothing is a mistake, not a success.
fn nothing_selected(args: &TestArgs) -> String {
    let level = args.what.as_deref().map_or(String::new(), |what| format!(" of {what}"));
    let filter = args.filter.as_deref().unwrap_or_default();
    format!("no test{level} has {filter:?} in its name (--list shows the names)")
}

/// Prints the names of what would run.
fn list<'a>(levels: impl Iterator<Item = &'a Level>, context: &Context) -> Result<u8, Error> {
    let mut found = false;
    for level in levels {
        for name in (level.names)(context)? {
            // What a crate's name selects is selected by it, not by its tests' names.
            if level.name == "host" || context.wants(&name) {
                tell!("{} {name}", level.name);
                found = true;
            }
        }
    }
    match found {
        true => Ok(0),
        false => Err("no test has such a name".into()),
    }
}

/// Runs one level and prints its closing line. A level that cannot run has failed.
fn run_level(level: &Level, context: &Context) -> Summary {
    let name = level.name;
    tell!("== {name}");
    let started = Instant::now();
    let summary = (level.run)(context).unwrap_or_else(|error| {
        failed!("{name}: {error}");
        Summary { failed: 1, ..Summary::default() }
    });
    tell!("{name}: {summary} ({:.1} s)\n", started.elapsed().as_secs_f64());
    summary
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::args::{Cli, Command};

    #[test]
    fn all_levels_run_at_the_ends() {
        let of = |words: &str| {
            let cli = Cli::try_parse_from(words.split(' ')).expect(words);
            let Command::Test(args) = cli.command else { panic!("{words}") };
            cpu_counts(&args)
        };
        assert_eq!(of("limen test"), [1, 4]);
        assert_eq!(of("limen test --smp 2"), [2]);
        assert_eq!(of("limen test --all"), [1, 2, 4]);
        assert_eq!(of("limen test guest"), [1, 2, 4]);
        assert_eq!(of("limen test --filter futex"), [1, 2, 4]);
    }

    #[test]
    fn closing_line() {
        let mut total = Summary { passed: 1, ..Summary::default() };
        assert_eq!(total.to_string(), "1 passed, 0 failed");
        assert_eq!(Summary::parse(&total.to_string()), Some(total));
        total += Summary { passed: 1, failed: 2, skipped: 3 };
        assert_eq!(total.to_string(), "2 passed, 2 failed, 3 skipped");
        assert_eq!(Summary::parse(&total.to_string()), Some(total));
    }
}
