//! `limen bench growth`: what an operation costs among few and among many of something.
//!
//! Single operations may be cheap while a list is searched behind them; so each row is measured at
//! four sizes, and its slope (least squares, of the logarithms) is a figure of its own: 0 is a cost
//! that does not grow, 1 one that grows with the number. A slope tells little where the number is
//! what there is to do (pages, names): of two costs that grow by the same for each one more, the
//! one that has less besides is steeper. So what each one more costs, between the two largest
//! sizes, stands beside it, and steeper rows are told apart by whether they also add more from
//! size to size. One static program measures Limen and Linux in the same QEMU, by counted
//! instructions; Linux's figures are kept in the cache.
//! Why it is hard: what is compared must be the same, so a row that fails at a size on either side
//! is shown as failed, and a row that only one side has at all ends the bench.
//!
//! Neighbours: `rig.rs` runs, `kernel.rs` has the rigs of both kernels, `plot.rs` draws, and
//! `guest/bench/growth` measures.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use super::machine::{Extra, Figures, Machine, Work};
use super::plot;
use super::rig::Clock;
use crate::Error;
use crate::args::BenchArgs;
use crate::cache::{self, Folder};
use crate::linux::{self, Linux};
use crate::progress::Steps;

const PACKAGE: &str = "limen-guest-growth";
/// Memory of the VMs: ten thousand processes, or 256 MiB twice.
const MEMORY_MIB: u64 = 3072;
/// Sizes of memory whose boot is measured, in MiB. With 64 Linux does not boot.
const MEMORIES_MIB: [u64; 4] = [128, 512, 2048, 8192];
/// Longest run of one kernel.
const LIMIT: Duration = Duration::from_secs(1800);
/// Most that a cost may be of Linux's, at any size.
const GOAL: f64 = 1.0;
/// Differences of slopes below this are noise of a logarithm over four points.
const SLOPE_MARGIN: f64 = 0.05;
/// Part of Linux's cost by which what a size adds may differ, for noise.
const ADDS_MARGIN: f64 = 0.01;

/// Instructions by size.
type Costs = BTreeMap<u64, u64>;
/// By the rows' names.
type Rows = BTreeMap<String, Costs>;

/// A row of both kernels.
struct Row {
    name: String,
    limen: Costs,
    linux: Option<Costs>,
}

impl Row {
    fn ratio(&self, size: u64) -> Option<f64> {
        let (limen, linux) = (self.limen.get(&size)?, self.linux.as_ref()?.get(&size)?);
        Some(*limen as f64 / (*linux).max(1) as f64)
    }

    /// Whether it costs at most what Linux's does at each size.
    fn is_cheap(&self) -> bool {
        self.limen.keys().all(|&size| self.ratio(size).is_none_or(|r| r <= GOAL))
    }

    /// Whether its slope is no steeper than Linux's.
    fn is_flat(&self) -> bool {
        let slopes = slope(&self.limen).zip(self.linux.as_ref().and_then(slope));
        slopes.is_none_or(|(limen, linux)| limen <= linux.max(0.0) + SLOPE_MARGIN)
    }

    /// Whether no size adds more to the cost of the one before it than on Linux.
    fn adds_no_more(&self) -> bool {
        let Some(linux) = &self.linux else { return true };
        let pairs = self.limen.iter().zip(self.limen.iter().skip(1));
        let mut pairs = pairs.filter_map(|((small, less), (large, more))| {
            let (linux_less, linux_more) = (*linux.get(small)?, *linux.get(large)?);
            let added = |less: u64, more: u64| more as f64 - less as f64;
            Some((added(*less, *more), added(linux_less, linux_more), linux_more as f64))
        });
        pairs.all(|(limen, linux, of)| limen <= linux.max(0.0) + ADDS_MARGIN * of)
    }

    fn met(&self) -> bool {
        self.is_cheap() && self.is_flat()
    }

    /// As printed; of a row that is cheap and steeper, whether that is the number's cost.
    fn verdict(&self) -> &'static str {
        match (self.is_cheap(), self.is_flat(), self.adds_no_more()) {
            (true, true, _) => "",
            (true, false, true) => "  steeper, adds no more",
            (true, false, false) => "  steeper, adds more",
            (false, ..) => "  over",
        }
    }
}

/// What each one more costs, between the two largest sizes.
fn one_more(costs: &Costs) -> Option<f64> {
    let mut largest = costs.iter().rev();
    let ((large, more), (small, less)) = (largest.next()?, largest.next()?);
    Some((*more as f64 - *less as f64) / (large - small) as f64)
}

/// Measures and prints.
pub(super) fn command(args: &BenchArgs) -> Result<u8, Error> {
    let only = args.rows.as_ref().map(|rows| format!("--only={rows}"));
    let words: Vec<&str> =
        args.tiny.then_some("--tiny").into_iter().chain(only.as_deref()).collect();
    let program = std::fs::read(super::build(PACKAGE)?)?;
    let mut bench = Growth {
        machine: Machine::new(args, MEMORY_MIB, LIMIT)?,
        program: &program,
        words: &words,
        boots: args.rows.as_ref().is_none_or(|rows| rows.split(',').any(|it| BOOT.contains(it))),
    };
    let linux = if args.no_linux { None } else { Some(linux::find(args.linux.as_deref())?) };
    let mut steps = Steps::of(bench.runs() * (1 + usize::from(linux.is_some())));
    let limen = bench.limen(&mut steps)?;
    if limen.is_empty() {
        let word = args.rows.as_deref().unwrap_or_default();
        return Err(crate::usage(format!("--rows {word}: no row of bench growth has this word")));
    }
    let linux_name = linux.as_ref().map(|linux| linux.name.clone());
    let linux = linux.map(|linux| bench.linux(&linux, &mut steps)).transpose()?;
    let table = join(limen, linux)?;
    if let Some(svg) = &args.svg {
        plot::growth(svg, &panels(&table), "Limen", linux_name.as_deref().unwrap_or("Linux"))?;
    }
    match args.json {
        true => tell!("{:#}", object(&table, linux_name.as_deref(), &args.cpu)),
        false => crate::out::bytes(text(&table, linux_name.as_deref(), &args.cpu).as_bytes()),
    }
    Ok(0)
}

/// The smallest run, on Limen alone: rows that did not give a figure at each of their sizes.
pub(crate) fn tiny(kernel: &Path, cpu: &str) -> Result<Vec<String>, Error> {
    let program = std::fs::read(super::build(PACKAGE)?)?;
    let machine = Machine::of(kernel, cpu, MEMORY_MIB, LIMIT)?;
    let work = Work { program: &program, words: &["--tiny"], extra: Extra::default() };
    let output = machine.limen(&work, Clock::Counted)?.output;
    let mut failed = failures(&output);
    let measured = rows(&super::rig::numbers(&output));
    if !output.lines().any(|line| line.trim_end() == "done 1") {
        failed.push(format!("it ended after {} rows", measured.len()));
    }
    Ok(failed)
}

/// What the program could not measure, in its words.
fn failures(output: &str) -> Vec<String> {
    let failed = output.lines().filter_map(|line| line.trim_end().strip_prefix("failed: "));
    failed.map(str::to_owned).collect()
}

/// `ROW_SIZE` and a cost, by rows.
fn rows(figures: &Figures) -> Rows {
    let mut rows = Rows::new();
    for (name, cost) in figures {
        let Some((name, size)) = name.rsplit_once('_') else { continue };
        let Ok(size) = size.parse() else { continue };
        rows.entry(name.to_owned()).or_default().insert(size, *cost);
    }
    rows
}

/// The row that needs several machines.
const BOOT: &str = "boot_with_mib";

/// What all runs share.
struct Growth<'a> {
    machine: Machine,
    program: &'a [u8],
    words: &'a [&'a str],
    /// Whether boots are measured, too.
    boots: bool,
}

impl Growth<'_> {
    /// How many each kernel takes.
    fn runs(&self) -> usize {
        if self.boots { 1 + MEMORIES_MIB.len() } else { 1 }
    }

    fn limen(&mut self, steps: &mut Steps) -> Result<Rows, Error> {
        self.all("Limen", steps, |machine, work| {
            let ran = machine.limen(work, Clock::Counted)?;
            failures(&ran.output).iter().for_each(|row| say!("limen: not on Limen: {row}"));
            Ok(ran.figures())
        })
    }

    /// From the cache if nothing that matters has changed.
    fn linux(&mut self, linux: &Linux, steps: &mut Steps) -> Result<Rows, Error> {
        self.all(&linux.name, steps, |machine, work| {
            let name = machine.name_kept(linux, "", work)?;
            let kept = Folder::of(cache::LINUX_FIGURES)?;
            if let Some(figures) =
                kept.read(&name).and_then(|bytes| serde_json::from_slice(&bytes).ok())
            {
                return Ok(figures);
            }
            let ran = machine.linux(linux, "", work, Clock::Counted)?;
            failures(&ran.output).iter().for_each(|row| say!("limen: not on Linux: {row}"));
            let figures = ran.figures();
            kept.keep(&name, &serde_json::to_vec(&figures)?);
            Ok(figures)
        })
    }

    /// The program's rows, and the boot with different memories.
    fn all(
        &mut self,
        kernel: &str,
        steps: &mut Steps,
        run: impl Fn(&Machine, &Work<'_>) -> Result<Figures, Error>,
    ) -> Result<Rows, Error> {
        self.machine.memory_mib = MEMORY_MIB;
        steps.begin(&format!("{kernel}: operations"));
        let mut rows = rows(&run(
            &self.machine,
            &Work { program: self.program, words: self.words, extra: Extra::default() },
        )?);
        let boot = Work { program: self.program, words: &["--boot"], extra: Extra::default() };
        for mib in MEMORIES_MIB.into_iter().filter(|_| self.boots) {
            self.machine.memory_mib = mib;
            steps.begin(&format!("{kernel}: boot with {mib} MiB"));
            let figures = run(&self.machine, &boot)?;
            let ticks = figures.get("boot_ticks").ok_or("no figure of the boot")?;
            rows.entry(BOOT.to_owned()).or_default().insert(mib, *ticks);
        }
        Ok(rows)
    }
}

fn join(limen: Rows, linux: Option<Rows>) -> Result<Vec<Row>, Error> {
    let Some(mut linux) = linux else {
        return Ok(limen
            .into_iter()
            .map(|(name, limen)| Row { name, limen, linux: None })
            .collect());
    };
    let mut table = Vec::new();
    for (name, limen) in limen {
        let linux = linux.remove(&name).ok_or_else(|| format!("{name}: not on Linux"))?;
        table.push(Row { name, limen, linux: Some(linux) });
    }
    match linux.keys().next() {
        None => Ok(table),
        Some(name) => Err(format!("{name}: not on Limen").into()),
    }
}

/// By least squares, how fast the logarithm of the cost grows with that of the size.
fn slope(costs: &Costs) -> Option<f64> {
    let points = costs.iter().map(|(&size, &cost)| {
        let log = |value: u64| (value.max(1) as f64).ln();
        (log(size), log(cost))
    });
    let count = costs.len() as f64;
    let (sum_x, sum_y) = points.clone().fold((0.0, 0.0), |(x, y), (px, py)| (x + px, y + py));
    let (mean_x, mean_y) = (sum_x / count, sum_y / count);
    let (over, under) = points.fold((0.0, 0.0), |(over, under), (x, y)| {
        (over + (x - mean_x) * (y - mean_y), under + (x - mean_x) * (x - mean_x))
    });
    (costs.len() > 1 && under > 0.0).then(|| over / under)
}

fn text(table: &[Row], linux: Option<&str>, cpu: &str) -> String {
    let mut out = String::new();
    for row in table {
        let both = |of: fn(&Costs) -> Option<f64>, digits: usize| {
            [of(&row.limen), row.linux.as_ref().and_then(of)]
                .map(|value| value.map_or("-".to_owned(), |value| format!("{value:.digits$}")))
                .join(" / ")
        };
        let (slopes, more) = (both(slope, 2), both(one_more, 1));
        let verdict = row.verdict();
        _ = writeln!(out, "{:<40} slope {slopes}  one more {more}{verdict}", row.name);
        let sizes = row.limen.keys().chain(row.linux.iter().flat_map(Costs::keys));
        let sizes: std::collections::BTreeSet<u64> = sizes.copied().collect();
        for size in sizes {
            let cell = |value: Option<&u64>| value.map_or("-".to_owned(), u64::to_string);
            let linux = cell(row.linux.as_ref().and_then(|costs| costs.get(&size)));
            let ratio = row.ratio(size).map_or("-".to_owned(), |ratio| format!("{ratio:.3}"));
            let limen = cell(row.limen.get(&size));
            _ = writeln!(out, "{size:>12}{limen:>16}{linux:>16}{ratio:>10}");
        }
    }
    _ = writeln!(
        out,
        "Size; guest instructions (medians) of Limen and of Linux in QEMU, -cpu {cpu}; their ratio."
    );
    out += &linux.map_or("Linux was not measured.\n".to_owned(), |linux| summary(table, linux));
    out
}

fn summary(table: &[Row], linux: &str) -> String {
    let count = |of: fn(&Row) -> bool| table.iter().filter(|row| of(row)).count();
    let steeper = count(|row| row.is_cheap() && !row.is_flat());
    let adding = count(|row| row.is_cheap() && !row.is_flat() && !row.adds_no_more());
    format!(
        "Linux: {linux} by PVH, four seconds after its boot. {} of {} rows: at most {GOAL} of \
         Linux at each size, and no steeper.\n{steeper} rows are steeper at less cost; of these \
         {adding} also add more from one size to the next.\n",
        count(Row::met),
        table.len()
    )
}

fn object(table: &[Row], linux: Option<&str>, cpu: &str) -> Value {
    let row = |row: &Row| {
        json!({
            "name": row.name, "limen": row.limen, "linux": row.linux,
            "slope_limen": slope(&row.limen),
            "slope_linux": row.linux.as_ref().and_then(slope),
            "one_more_limen": one_more(&row.limen),
            "one_more_linux": row.linux.as_ref().and_then(one_more),
            "met": row.linux.is_some().then(|| row.met()),
            "adds_no_more": row.linux.is_some().then(|| row.adds_no_more()),
        })
    };
    let rows = table.iter().map(row).collect::<Vec<_>>();
    json!({ "bench": "growth", "unit": "instructions", "cpu": cpu, "linux": linux, "rows": rows })
}

fn panels(table: &[Row]) -> Vec<plot::Panel> {
    let points = |costs: &Costs| costs.iter().map(|(&n, &cost)| (n as f64, cost as f64)).collect();
    let panel = |row: &Row| plot::Panel {
        title: row.name.clone(),
        lines: [Some(&row.limen), row.linux.as_ref()].map(|costs| costs.map_or(vec![], points)),
    };
    table.iter().map(panel).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn costs(of: impl Fn(u64) -> u64) -> Costs {
        [10, 100, 1000, 10_000].map(|n| (n, of(n))).into()
    }

    #[test]
    fn slopes_are_exponents() {
        let near = |costs: &Costs, expected: f64| {
            slope(costs).is_some_and(|slope| (slope - expected).abs() < 0.01)
        };
        assert!(near(&costs(|_| 500), 0.0));
        assert!(near(&costs(|n| 7 * n), 1.0));
        assert!(near(&costs(|n| n * n), 2.0));
        assert_eq!(slope(&[(10, 5)].into()), None);
    }

    #[test]
    fn a_row_is_over_when_dear_at_one_size_or_steeper() {
        let row = |limen: Costs| Row { name: "x".to_owned(), limen, linux: Some(costs(|_| 1000)) };
        assert!(row(costs(|_| 900)).met());
        assert!(!row(costs(|n| if n == 100 { 1001 } else { 900 })).met());
        assert!(!row(costs(|n| 10 + n / 20)).met());
    }

    #[test]
    fn less_besides_what_grows_is_steeper_and_adds_no_more() {
        let row = |of: fn(u64) -> u64| Row {
            name: "x".to_owned(),
            limen: costs(of),
            linux: Some(costs(|n| 5000 + 10 * n)),
        };
        let less_besides = row(|n| 100 + 10 * n);
        assert!(!less_besides.met() && less_besides.adds_no_more());
        assert_eq!(less_besides.verdict(), "  steeper, adds no more");
        assert_eq!(one_more(&less_besides.limen), Some(10.0));
        let more_each = row(|n| 100 + 10 * n + 2 * n * u64::from(n == 100));
        assert!(!more_each.adds_no_more());
        assert_eq!(row(|_| 1_000_000).verdict(), "  over");
    }

    #[test]
    fn names_and_sizes_are_told_apart() {
        let figures = [("kill_among_10".to_owned(), 5), ("done".to_owned(), 1)].into();
        let rows = rows(&figures);
        assert_eq!(rows.len(), 1);
        assert_eq!(rows["kill_among"], Costs::from([(10, 5)]));
        assert_eq!(failures("failed: kill among 10\r\nx\n"), ["kill among 10"]);
    }
}
