//! `limen bench calls`: the boundary's price with equal protection, in guest instructions.
//!
//! What is timed are calls that take the general way and do next to nothing: what they cost is the
//! way in and out. Both kernels choose for themselves what they do about the vulnerabilities of
//! three CPU models, and say so in the files of `/sys/devices/system/cpu/vulnerabilities`, which
//! the program prints: where they differ, the table names it, since then the prices are of
//! different things.
//!
//! An instruction is not a cycle: a write to a register that takes hundreds counts as one.
//!
//! Neighbours: `machine.rs` runs both kernels, `rig.rs` counts.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::{Value, json};

use super::kernel::{LIMIT, MEMORY_MIB, PACKAGE};
use super::machine::{Machine, Ran, Work};
use super::rig::Clock;
use crate::Error;
use crate::args::BenchArgs;
use crate::linux::{self, Linux};
use crate::paths;
use crate::progress::Steps;

/// QEMU's models of CPUs with different holes: all of them, those that Meltdown has no part in, and
/// AMD's.
const CPUS: [&str; 3] = ["Skylake-Client", "Cascadelake-Server", "EPYC"];
/// The calls, as the program names them.
const ROWS: [&str; 5] = ["gettid", "getuid", "getppid", "umask", "close_bad_descriptor"];
/// Most that a call may cost, as a ratio to Linux.
const REACH: f64 = 0.55;
/// Before what the program says about itself and the kernel.
const VULNERABILITY: &str = "vulnerability ";
const VERSION: &str = "version ";

/// One kernel on one CPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Column {
    /// What uname(2) says.
    version: String,
    /// In the order of [`ROWS`].
    values: [u64; ROWS.len()],
    /// What it says about each vulnerability.
    vulnerabilities: BTreeMap<String, String>,
}

/// Both on one CPU.
#[derive(Clone, Debug)]
struct Pair {
    cpu: &'static str,
    limen: Column,
    linux: Option<Column>,
}

/// Measures and prints. Status 1 if a call costs more than it may.
pub(super) fn command(args: &BenchArgs) -> Result<u8, Error> {
    let program = std::fs::read(super::build(PACKAGE)?)?;
    let words: &[&str] = if args.tiny { &["--calls", "--tiny"] } else { &["--calls"] };
    let work = Work { program: &program, words, extra: super::machine::Extra::default() };
    let linux = if args.no_linux { None } else { Some(linux::find(args.linux.as_deref())?) };
    let mut steps = Steps::of(CPUS.len() * (1 + usize::from(linux.is_some())));
    let pairs = CPUS
        .into_iter()
        .map(|cpu| measure(args, cpu, &work, linux.as_ref(), &mut steps))
        .collect::<Result<Vec<_>, _>>()?;
    let worst = worst(&pairs);
    match args.json {
        true => tell!("{:#}", object(&pairs)),
        false => crate::out::bytes(text(&pairs).as_bytes()),
    }
    Ok(u8::from(worst.is_some_and(|ratio| ratio > REACH)))
}

fn measure(
    args: &BenchArgs,
    cpu: &'static str,
    work: &Work<'_>,
    linux: Option<&Linux>,
    steps: &mut Steps,
) -> Result<Pair, Error> {
    steps.begin(&format!("Limen, {cpu}"));
    let kernel = paths::kernel_image(args.kernel.as_deref())?;
    let machine = Machine::of(&kernel, cpu, MEMORY_MIB, LIMIT)?;
    let limen = column(&machine.limen(work, Clock::Counted)?)?;
    let run = |linux: &Linux| {
        steps.begin(&format!("Linux {}, {cpu}", linux.name));
        column(&machine.linux(linux, "", work, Clock::Counted)?)
    };
    Ok(Pair { cpu, limen, linux: linux.map(run).transpose()? })
}

/// What a run says.
fn column(ran: &Ran) -> Result<Column, Error> {
    let figures = ran.figures();
    let mut column = Column::default();
    for (value, row) in column.values.iter_mut().zip(ROWS) {
        *value = *figures.get(row).ok_or_else(|| format!("no figure of {row}: {}", ran.output))?;
    }
    for line in ran.output.lines().map(str::trim_end) {
        if let Some(version) = line.strip_prefix(VERSION) {
            version.clone_into(&mut column.version);
        }
        let said = line.strip_prefix(VULNERABILITY).and_then(|rest| rest.split_once(": "));
        if let Some((name, text)) = said {
            column.vulnerabilities.insert(name.to_owned(), text.to_owned());
        }
    }
    match column.vulnerabilities.is_empty() {
        true => Err(format!("no word about vulnerabilities: {}", ran.output).into()),
        false => Ok(column),
    }
}

impl Pair {
    /// Limen's price as a ratio to Linux's, for each row.
    fn ratios(&self) -> Option<[f64; ROWS.len()]> {
        let linux = self.linux.as_ref()?;
        Some(std::array::from_fn(|i| self.limen.values[i] as f64 / linux.values[i].max(1) as f64))
    }

    /// Vulnerabilities about which the kernels say different things: name, Limen, Linux.
    fn differences(&self) -> Vec<(&str, &str, &str)> {
        let Some(linux) = &self.linux else { return vec![] };
        let of = |column: &BTreeMap<String, String>, name: &str| column.get(name).cloned();
        let mut all: Vec<&String> =
            self.limen.vulnerabilities.keys().chain(linux.vulnerabilities.keys()).collect();
        all.sort_unstable();
        all.dedup();
        all.retain(|name| {
            of(&self.limen.vulnerabilities, name) != of(&linux.vulnerabilities, name)
        });
        fn said<'a>(column: &'a Column, name: &str) -> &'a str {
            column.vulnerabilities.get(name).map_or("(no file)", String::as_str)
        }
        all.into_iter()
            .map(|name| (name.as_str(), said(&self.limen, name), said(linux, name)))
            .collect()
    }
}

fn worst(pairs: &[Pair]) -> Option<f64> {
    pairs.iter().filter_map(Pair::ratios).flatten().reduce(f64::max)
}

fn text(pairs: &[Pair]) -> String {
    let mut out = String::new();
    if let Some(linux) = pairs.first().and_then(|pair| pair.linux.as_ref()) {
        _ = writeln!(out, "Linux: {}", linux.version);
    }
    _ = write!(out, "{:<46}", "guest instructions");
    ROWS.iter().for_each(|row| _ = write!(out, "{row:>22}"));
    out.push('\n');
    for pair in pairs {
        let mut line = |name: &str, cells: [String; ROWS.len()]| {
            _ = write!(out, "{:<46}", format!("{}, {name}", pair.cpu));
            cells.iter().for_each(|cell| _ = write!(out, "{cell:>22}"));
            out.push('\n');
        };
        line("Limen", pair.limen.values.map(|value| value.to_string()));
        if let (Some(linux), Some(ratios)) = (&pair.linux, pair.ratios()) {
            line("Linux", linux.values.map(|value| value.to_string()));
            line("ratio", ratios.map(|ratio| format!("{ratio:.3}")));
        }
    }
    for pair in pairs {
        for (name, limen, linux) in pair.differences() {
            _ = writeln!(out, "{}, {name}: Limen {limen:?}, Linux {linux:?}", pair.cpu);
        }
    }
    if let Some(worst) = worst(pairs) {
        let met = if worst <= REACH { "met" } else { "NOT MET" };
        _ = writeln!(
            out,
            "reach: at most {REACH} of Linux in each; the worst is {worst:.3}: {met}"
        );
    }
    out
}

fn object(pairs: &[Pair]) -> Value {
    let column = |column: &Column| {
        json!({
            "version": column.version,
            "instructions": column.values,
            "vulnerabilities": column.vulnerabilities,
        })
    };
    let pair = |pair: &Pair| {
        json!({
            "cpu": pair.cpu,
            "limen": column(&pair.limen),
            "linux": pair.linux.as_ref().map(column),
            "ratios": pair.ratios(),
        })
    };
    json!({
        "bench": "calls",
        "operations": ROWS,
        "cpus": pairs.iter().map(pair).collect::<Vec<_>>(),
        "met": worst(pairs).map(|worst| worst <= REACH),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ran(scale: u64, meltdown: &str) -> Column {
        let figures = ROWS.iter().map(|row| format!("{row} {}\n", 100 * scale));
        let output = figures.collect::<String>()
            + &format!("version 6.12 #1 Debian\r\nvulnerability meltdown: {meltdown}\r\n");
        column(&Ran { output, wall_us: 0 }).expect("all is there")
    }

    #[test]
    fn prices_and_protections_are_compared() {
        let linux = ran(2, "Mitigation: PTI");
        assert_eq!(linux.version, "6.12 #1 Debian");
        let equal =
            Pair { cpu: "EPYC", limen: ran(1, "Mitigation: PTI"), linux: Some(linux.clone()) };
        assert_eq!(equal.ratios(), Some([0.5; ROWS.len()]));
        assert!(equal.differences().is_empty() && text(&[equal]).ends_with("0.500: met\n"));
        let other = Pair { cpu: "EPYC", limen: ran(3, "Vulnerable"), linux: Some(linux) };
        assert_eq!(other.differences(), [("meltdown", "Vulnerable", "Mitigation: PTI")]);
        assert!(text(&[other]).ends_with("1.500: NOT MET\n"));
    }

    #[test]
    fn a_run_that_says_too_little_is_none() {
        assert!(column(&Ran { output: "gettid 7\n".to_owned(), wall_us: 0 }).is_err());
    }
}
