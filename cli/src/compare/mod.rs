//! `limen compare`: what kernel parameters, and another kernel, cost one program.
//!
//! The program is packed and run once for each set of parameters, in QEMU with the count of
//! instructions as the machine's clock (`bench/rig.rs`), so that a run gives the same numbers every
//! time, also on a loaded host; nothing goes to random places, for which a set's price would differ
//! by what it draws. What is compared is from the program's first instruction to its
//! end. A set that begins with the word `linux` is Debian's kernel in the same QEMU, with the same
//! packed files (`linux.rs` says what is different there).
//!
//! With `--smp` the CPUs take turns in one thread of the emulator, which is what makes a run of
//! theirs come out the same; the count is of all together, waits for each other included.
//!
//! An instruction is not a cycle: the figures tell what work a mechanism adds, not what a CPU makes
//! of it. `--time` measures nanoseconds, too, without a count: the median of several runs.
//!
//! Reading order: [`command`]; `limen` and `linux` (one run on either kernel); `report` (the table,
//! the JSON) and `page` (the page). Neighbour: `run/plan` makes the machine of `limen run --pack`.

mod limen;
pub(crate) mod linux;
mod page;
mod report;

use std::collections::BTreeMap;
use std::path::Path;

use formats::boot_config::{BootConfig, Stdio, Want};

use crate::args::CompareArgs;
use crate::bench::rig::Clock;
use crate::pack::files::FileSet;
use crate::pack::{self, closure};
use crate::progress::Steps;
use crate::run::lookup::{Found, find_program};
use crate::run::outcome::{Outcome, STATUS_NOT_FOUND};
use crate::tree::Tree;
use crate::{Error, paths, usage};

/// Most sets of parameters of one comparison.
const SETS_MAX: usize = 16;
/// Runs by the clock for `--time`; the middle one counts.
const TIMED_RUNS: usize = 5;
/// 2025-01-01, the date that the rig gives the machine's clock, in nanoseconds.
const REALTIME_NS: u64 = 1_735_689_600_000_000_000;
/// The first word of a set that is another kernel.
const LINUX: &str = "linux";

/// What one run gave.
#[derive(Clone, Debug)]
pub(crate) struct Measured {
    pub(crate) outcome: Outcome,
    /// From the program's start to its end: instructions, or nanoseconds without a count.
    ticks: u64,
    counters: BTreeMap<String, u64>,
    pub(crate) stdout: Vec<u8>,
}

/// What one set of parameters gave.
#[derive(Clone, Debug)]
struct Column {
    /// As it was given.
    set: String,
    /// The kernel's name.
    kernel: String,
    outcome: Outcome,
    instructions: u64,
    /// The median, where time was asked for.
    time_ns: Option<u64>,
    counters: BTreeMap<String, u64>,
    stdout: Vec<u8>,
}

/// What all runs have in common.
struct Setup<'a> {
    args: &'a CompareArgs,
    kernel: std::path::PathBuf,
    /// The packed program, with its configuration.
    image: Vec<u8>,
}

/// Measures and prints. Status 1 if the program did not do the same in every set.
pub(crate) fn command(args: &CompareArgs) -> Result<u8, Error> {
    if !(2..=SETS_MAX).contains(&args.with.len()) {
        let text = format!("--with: two to {SETS_MAX} sets of kernel parameters are compared");
        return Err(usage(text));
    }
    if let Some(file) = &args.html {
        paths::ensure_writable("--html", file)?;
    }
    let here = paths::here()?;
    let mut files = FileSet::default();
    files.add_arguments(&here, &args.file, &args.dir, pack::place)?;
    let (search_path, _) = closure::callers_paths();
    let name = &args.program[0];
    let Found::At(program) = find_program(&Tree::host(), &files, name, &search_path, &here) else {
        say!("limen: {}: not found, or not executable", name.display());
        return Ok(STATUS_NOT_FOUND);
    };
    let image = pack::with_config(&config(args, &program), &program, &files)?;
    let kernel = paths::kernel_image(args.kernel.as_deref())?;
    let setup = Setup { args, kernel, image };
    // What cannot be had is said before minutes of measuring.
    let wants_linux = args.with.iter().any(|set| is_of_linux(set));
    let linux = if wants_linux { Some(linux::Beside::find(args.linux.as_deref())?) } else { None };
    let mut columns = Vec::new();
    let mut steps = Steps::of(args.with.len());
    for set in &args.with {
        steps.begin(&format!("running with {set:?}"));
        columns.push(column(&setup, linux.as_ref(), set)?);
    }
    if args.time {
        time(&setup, linux.as_ref(), &mut columns)?;
    }
    match args.json {
        true => tell!("{:#}", report::as_json(&columns, args.smp)),
        false => crate::out::bytes(report::as_text(&columns).as_bytes()),
    }
    if let Some(file) = &args.html {
        let words: Vec<_> = args.program.iter().map(|word| word.to_string_lossy()).collect();
        std::fs::write(file, page::html(&words.join(" "), &columns))
            .map_err(|error| format!("--html {}: {error}", file.display()))?;
    }
    Ok(verdict(&columns))
}

/// Whether a set means Linux.
pub(crate) fn is_of_linux(set: &str) -> bool {
    of_linux(set).is_some()
}

/// The rest of a set that means Linux.
fn of_linux(set: &str) -> Option<&str> {
    let rest = set.trim().strip_prefix(LINUX)?;
    (rest.is_empty() || rest.starts_with(' ')).then(|| rest.trim())
}

fn measure(
    setup: &Setup<'_>,
    linux: Option<&linux::Beside>,
    set: &str,
    clock: Clock,
) -> Result<Measured, Error> {
    match (of_linux(set), linux) {
        (Some(parameters), Some(linux)) => linux.run(setup, parameters, clock),
        _ => limen::run(setup, set, clock),
    }
}

fn column(setup: &Setup<'_>, linux: Option<&linux::Beside>, set: &str) -> Result<Column, Error> {
    let Measured { outcome, ticks, counters, stdout } = measure(setup, linux, set, Clock::Counted)?;
    let kernel = match (of_linux(set), linux) {
        (Some(_), Some(linux)) => format!("Linux {}", linux.name()),
        _ => "Limen".to_owned(),
    };
    let (set, instructions) = (set.to_owned(), ticks);
    Ok(Column { set, kernel, outcome, instructions, time_ns: None, counters, stdout })
}

/// Times all sets, in turns, so that what else the host does meets all alike.
fn time(
    setup: &Setup<'_>,
    linux: Option<&linux::Beside>,
    columns: &mut [Column],
) -> Result<(), Error> {
    let mut times = vec![Vec::new(); columns.len()];
    let mut steps = Steps::of(TIMED_RUNS);
    for _ in 0..TIMED_RUNS {
        steps.begin("timing");
        for (column, times) in columns.iter().zip(&mut times) {
            times.push(measure(setup, linux, &column.set, Clock::Wall)?.ticks);
        }
    }
    for (column, mut times) in columns.iter_mut().zip(times) {
        times.sort_unstable();
        column.time_ns = times.get(TIMED_RUNS / 2).copied();
    }
    Ok(())
}

fn verdict(columns: &[Column]) -> u8 {
    let first = &columns[0];
    let differs =
        |column: &&Column| column.outcome != first.outcome || column.stdout != first.stdout;
    let Some(other) = columns.iter().find(differs) else { return 0 };
    say!(
        "limen: the program did not do the same with {:?} ({}) as with {:?} ({})",
        other.set,
        other.outcome.word(),
        first.set,
        first.outcome.word()
    );
    1
}

fn config(args: &CompareArgs, program: &Path) -> BootConfig {
    BootConfig {
        stdio: [Stdio::Null, Stdio::Pipe, Stdio::Pipe],
        want: Want { counters: true, ..Want::default() },
        realtime_ns: REALTIME_NS,
        ..pack::packed_config(program, &args.program)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_word_linux_is_a_kernel() {
        assert_eq!(of_linux("linux"), Some(""));
        assert_eq!(of_linux("linux mitigations=off"), Some("mitigations=off"));
        assert_eq!(of_linux("linuxish"), None);
        assert_eq!(of_linux("pti=on"), None);
    }
}
