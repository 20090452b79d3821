//! `limen bench scale`: what CPUs share that do the same at the same time.
//!
//! Time says nothing here: an emulator on few cores runs CPUs in turns. So a kernel that counts its
//! locks (`lockstat`) is asked how often an operation takes a lock that another CPU takes, too,
//! since that is where CPUs meet, however they are run; how often one had to wait; and how many
//! interrupts CPUs send each other, which Linux is asked for as well. With a thing for each CPU
//! nothing should be shared. Counted like the other benches: the same numbers every time, but where
//! somebody waits and tries again.
//!
//! Threads of one process have not all things of their own: they have one address space and one
//! table of descriptors, and who changes these meets the others there. Linux has one lock for each,
//! too, so these rows are shown beside what Linux takes, and are no part of the reach; faults and
//! reads of the same space and table are.
//!
//! Neighbours: `guest/bench/scale` is the program, `machine/src/cpu/lockstat.rs` counts.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use super::machine::{Extra, Figures, Machine, Work};
use super::rig::Clock;
use crate::args::BenchArgs;
use crate::image::WITH_PROBES;
use crate::progress::Steps;
use crate::{Error, linux, paths};

const PACKAGE: &str = "limen-guest-scale";
const MEMORY_MIB: u64 = 1024;
/// As many as the most workers of a row.
const CPUS: u8 = 8;
const LIMIT: Duration = Duration::from_secs(900);
/// Rows with one thing for all CPUs: they share it.
const ONE: &str = "one_";
/// Rows in which threads change the one thing that their process has; how often Linux (6.12) takes
/// its one lock for that in an operation if nobody waits; and that lock.
const ONE_OF_PROCESS: [(&str, u32, &str); 2] = [
    ("mmap_of_threads", 2, "the address space; Linux's mmap_lock, by mmap and by munmap"),
    ("open_close_of_threads", 2, "the table of descriptors; Linux's file_lock, by open and close"),
];
/// Locks that an operation may share with other CPUs where each has a thing of its own.
const SHARED_MAX: f64 = 0.05;

/// Counts of one row with so many workers, for one operation.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    taken: f64,
    shared: f64,
    waited: f64,
    interrupts: f64,
}

/// By name, then by the number of workers.
type Rows = BTreeMap<String, BTreeMap<u64, Counts>>;

/// Measures and prints. Status 1 if CPUs that have things of their own share a lock.
pub(super) fn command(args: &BenchArgs) -> Result<u8, Error> {
    let linux = if args.no_linux { None } else { Some(linux::find(args.linux.as_deref())?) };
    let is_built = usize::from(args.kernel.is_none());
    let mut steps = Steps::of(1 + is_built + usize::from(linux.is_some()));
    let kernel = match &args.kernel {
        Some(kernel) => kernel.clone(),
        None => {
            steps.begin("building the kernel that counts its locks");
            WITH_PROBES.build(&paths::repository()?, &paths::target_dir()?)?
        }
    };
    let program = std::fs::read(super::build(PACKAGE)?)?;
    let only = args.rows.as_ref().map(|rows| format!("--only={rows}"));
    let words: Vec<&str> =
        args.tiny.then_some("--tiny").into_iter().chain(only.as_deref()).collect();
    let mut machine = Machine::of(&kernel, &args.cpu, MEMORY_MIB, LIMIT)?;
    machine.smp = CPUS;
    let work = Work { program: &program, words: &words, extra: Extra::default() };
    steps.begin("Limen");
    let limen = machine.limen(&work, Clock::Counted)?;
    let rows = rows(&limen.figures());
    if rows.is_empty() {
        let word = args.rows.as_deref().unwrap_or_default();
        return Err(crate::usage(format!("--rows {word}: no row of bench scale has this word")));
    }
    let linux_rows = match &linux {
        Some(linux) => {
            steps.begin(&format!("Linux {}", linux.name));
            Some(self::rows(&machine.linux(linux, "", &work, Clock::Counted)?.figures()))
        }
        None => None,
    };
    let missed = missed(&rows);
    match args.json {
        true => tell!("{:#}", object(&rows, linux_rows.as_ref(), &missed)),
        false => {
            let linux_name = linux.as_ref().map(|linux| linux.name.as_str());
            let mut out = text(&rows, linux_rows.as_ref(), linux_name);
            out += &of_processes(&rows);
            out += &places(&limen.output, &missed);
            crate::out::bytes(out.as_bytes());
        }
    }
    Ok(u8::from(!missed.is_empty()))
}

/// The smallest run, on Limen alone and without counts of locks: rows that gave none.
pub(crate) fn tiny(kernel: &Path, cpu: &str) -> Result<Vec<String>, Error> {
    let program = std::fs::read(super::build(PACKAGE)?)?;
    let mut machine = Machine::of(kernel, cpu, MEMORY_MIB, LIMIT)?;
    machine.smp = 2;
    let work = Work { program: &program, words: &["--tiny"], extra: Extra::default() };
    let output = machine.limen(&work, Clock::Counted)?.output;
    let failed = output.lines().filter_map(|line| line.trim_end().strip_prefix("failed: "));
    let mut failed: Vec<String> = failed.map(str::to_owned).collect();
    if !output.lines().any(|line| line.trim_end() == "done 1") {
        failed.push("it did not come to its end".to_owned());
    }
    Ok(failed)
}

/// `ROW_WORKERS_WHAT` and a count, as counts of one operation.
fn rows(figures: &Figures) -> Rows {
    let mut rows = Rows::new();
    for (name, &operations) in figures {
        let Some(row) = name.strip_suffix("_operations") else { continue };
        let Some((of, workers)) = row.rsplit_once('_') else { continue };
        let Ok(workers) = workers.parse() else { continue };
        let each = |what: &str| {
            let count = figures.get(&format!("{row}_{what}")).copied().unwrap_or_default();
            count as f64 / operations.max(1) as f64
        };
        let counts = Counts {
            taken: each("taken"),
            shared: each("shared"),
            waited: each("waited"),
            interrupts: each("interrupts"),
        };
        rows.entry(of.to_owned()).or_default().insert(workers, counts);
    }
    rows
}

/// Rows whose workers have things of their own and share a lock all the same.
fn missed(rows: &Rows) -> Vec<String> {
    let is_missed =
        |counts: &BTreeMap<u64, Counts>| counts.values().any(|of| of.shared > SHARED_MAX);
    let is_one = |name: &str| ONE_OF_PROCESS.iter().any(|(row, ..)| *row == name);
    let own = rows.iter().filter(|(name, _)| !name.starts_with(ONE) && !is_one(name));
    own.filter(|(_, counts)| is_missed(counts)).map(|(name, _)| name.clone()).collect()
}

fn text(rows: &Rows, linux: Option<&Rows>, linux_name: Option<&str>) -> String {
    let mut out = format!("{:<26}{:>8}", "for one operation", "workers");
    _ = writeln!(
        out,
        "{:>9}{:>9}{:>9}{:>12}{:>9}",
        "locks", "shared", "waited", "interrupts", "Linux"
    );
    for (name, counts) in rows {
        for (workers, of) in counts {
            _ = write!(out, "{name:<26}{workers:>8}{:>9.2}{:>9.2}", of.taken, of.shared);
            _ = write!(out, "{:>9.2}{:>12.2}", of.waited, of.interrupts);
            let linux = linux.and_then(|rows| rows.get(name)?.get(workers));
            match linux {
                Some(of) => _ = writeln!(out, "{:>9.2}", of.interrupts),
                None => _ = writeln!(out, "{:>9}", "-"),
            }
        }
    }
    if let Some(name) = linux_name {
        _ = writeln!(out, "Linux is {name}: its interrupts between CPUs");
    }
    out
}

/// What the threads of a process share because it has one, beside Linux.
fn of_processes(rows: &Rows) -> String {
    let mut out = String::new();
    for (name, linux, what) in ONE_OF_PROCESS {
        let Some(counts) = rows.get(name).and_then(|counts| counts.values().next_back()) else {
            continue;
        };
        _ = writeln!(
            out,
            "{name}: threads share {what}: {:.2} of {:.2} locks here, {linux} on Linux",
            counts.shared, counts.taken
        );
    }
    out
}

/// Where the locks are made that rows share and should not.
fn places(output: &str, missed: &[String]) -> String {
    if missed.is_empty() {
        return "reach: CPUs with things of their own share no lock: met\n".to_owned();
    }
    let mut out = format!(
        "reach: CPUs with things of their own share no lock: NOT MET by {}\n",
        missed.join(", ")
    );
    let lines = output.lines().filter_map(|line| line.trim_end().strip_prefix("place: "));
    for line in lines {
        let of = line.split(' ').next().and_then(|row| row.rsplit_once('_'));
        if of.is_some_and(|(row, _)| missed.iter().any(|name| name == row)) {
            _ = writeln!(out, "  {line}");
        }
    }
    out
}

fn object(rows: &Rows, linux: Option<&Rows>, missed: &[String]) -> Value {
    let of_rows = |rows: &Rows| -> Value {
        let row = |counts: &BTreeMap<u64, Counts>| -> Value {
            let of = |of: &Counts| {
                json!({ "taken": of.taken, "shared": of.shared, "waited": of.waited,
                        "interrupts": of.interrupts })
            };
            counts.iter().map(|(workers, counts)| (workers.to_string(), of(counts))).collect()
        };
        rows.iter().map(|(name, counts)| (name.clone(), row(counts))).collect()
    };
    let one_of_process: Value = ONE_OF_PROCESS
        .iter()
        .map(|&(name, linux, what)| {
            (name.to_owned(), json!({ "linux_locks": linux, "what": what }))
        })
        .collect();
    json!({ "schema": 1, "limen": of_rows(rows), "linux": linux.map(of_rows), "missed": missed,
            "one_of_process": one_of_process })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shared_without_need_is_missed() {
        let figures: Figures = [
            ("stat_2_operations", 100),
            ("stat_2_shared", 100),
            ("stat_2_taken", 300),
            ("pipe_2_operations", 100),
            ("pipe_2_shared", 1),
            ("mmap_of_threads_2_operations", 10),
            ("mmap_of_threads_2_shared", 20),
            ("one_pipe_2_operations", 10),
            ("one_pipe_2_shared", 50),
        ]
        .map(|(name, count)| (name.to_owned(), count))
        .into();
        let rows = rows(&figures);
        assert_eq!(rows.len(), 4);
        assert!((rows["stat"][&2].taken - 3.0).abs() < 1e-9);
        assert_eq!(missed(&rows), ["stat"]);
        assert!(of_processes(&rows).starts_with("mmap_of_threads: threads share"));
        let said = places("place: stat_2 100 a.rs:1\nplace: one_pipe_2 5 b.rs:2\n", &missed(&rows));
        assert!(said.contains("stat_2 100 a.rs:1") && !said.contains("b.rs"));
    }
}
