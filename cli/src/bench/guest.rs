//! `limen bench guest`: what leaving a guest costs, beside Linux's KVM in the same QEMU, and what
//! is flushed behind guests (VMSCAPE) adds.
//!
//! The machine that is emulated is AMD's, whose predictors are met by IBPB alone; so the flush is
//! chosen from facts of other CPUs (`cpu-facts=`), each with it and without. What the facts also
//! choose is in both columns of a pair. An instruction is not a cycle: IBPB is one WRMSR here, and
//! hundreds to thousands of cycles on hardware; the loop's instructions are its branches, and what
//! it costs natively is measured where that needs no privilege, in ring 3 of the host.
//!
//! Neighbours: `machine.rs` runs both kernels, `rig.rs` counts; `guest/vmm/src/bench` measures.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use mitigations::profiles;
use serde_json::{Value, json};

use super::machine::{Extra, Figures, Machine, Ran, Work};
use super::rig::{Clock, SAME_PLACES};
use crate::args::BenchArgs;
use crate::linux::{self, Linux};
use crate::progress::Steps;
use crate::test::vmscape::of_loops;
use crate::{Error, paths};

const PACKAGE: &str = "limen-vmm";
const MEMORY_MIB: u64 = 512;
const LIMIT: Duration = Duration::from_secs(600);
/// As [`SAME_PLACES`], of a Linux that lies where it was linked: `nokaslr`, which it does not know,
/// it would hand to the program.
const LINUX_PLACES: &str = "norandmaps";
const MITIGATIONS_OFF: &str = "mitigations=off";
/// Linux's modules, in `kernel/` of its own.
const MODULES: [&str; 3] = ["virt/lib/irqbypass", "arch/x86/kvm/kvm", "arch/x86/kvm/kvm-amd"];

/// What a row is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// An exit that the kernel handles.
    Kernel,
    /// An exit to the VMM and the way back.
    Vmm,
    /// A segment of a transfer.
    Transfer,
}

const ROWS: [(&str, Kind); 17] = [
    ("kernel_cpuid", Kind::Kernel),
    ("kernel_rdmsr", Kind::Kernel),
    ("kernel_wrmsr", Kind::Kernel),
    ("kernel_port", Kind::Kernel),
    ("kernel_doorbell", Kind::Kernel),
    ("kernel_lapic", Kind::Kernel),
    ("kernel_first_touch", Kind::Kernel),
    ("vmm_out", Kind::Vmm),
    ("vmm_in", Kind::Vmm),
    ("vmm_mmio_write", Kind::Vmm),
    ("vmm_mmio_read", Kind::Vmm),
    ("vmm_halt", Kind::Vmm),
    ("transfer_tcp_1_out", Kind::Transfer),
    ("transfer_tcp_4_out", Kind::Transfer),
    ("transfer_tcp_1_in", Kind::Transfer),
    ("transfer_udp_1_out", Kind::Transfer),
    ("transfer_udp_4_out", Kind::Transfer),
];
/// Exits per second, by the host's clock.
const RATES: [&str; 2] = ["second_kernel_cpuid", "second_vmm_out"];

/// A flush, and the CPU from whose facts it is chosen.
const FLUSHES: [(&str, &str); 2] = [("ibpb", "zen4"), ("bhb", "alderlake-e-core")];
const BHB: usize = 1;
/// Most instructions that an exit may cost more that the kernel handles.
const KERNEL_MORE: i64 = 2;
/// Most that a transfer may cost with branch history cleared.
const TRANSFER_MAX: f64 = 1.02;
/// Most that an exit to the VMM may cost of Linux's.
const VMM_MAX: f64 = 1.0;

/// One kernel with one set of parameters.
#[derive(Clone, Debug, Default)]
struct Column {
    /// What uname(2) says.
    version: String,
    /// What it says that it does about VMSCAPE.
    vmscape: String,
    figures: Figures,
}

/// All that was measured.
struct Results {
    limen: Column,
    linux: Option<Column>,
    /// The same without any mitigations: as it comes it has return thunks, which Limen has not.
    linux_off: Option<Column>,
    /// By [`FLUSHES`]: without the flush, and with it.
    flushes: Vec<[Column; 2]>,
    rates: [Option<Figures>; 2],
    /// What the loops cost in ring 3 of this host, in ticks of its TSC.
    loops: Vec<String>,
}

/// Measures and prints. Status 1 if something costs more than it may.
pub(super) fn command(args: &BenchArgs) -> Result<u8, Error> {
    let mut bench = Bench::new(&paths::kernel_image(args.kernel.as_deref())?, args)?;
    let linux = if args.no_linux { None } else { Some(linux::find(args.linux.as_deref())?) };
    // Each kernel's rates are a run of their own; Linux runs twice beside.
    let mut steps = Steps::of(2 + 2 * FLUSHES.len() + linux.as_ref().map_or(0, |_| 3));
    steps.begin("Limen");
    let limen = bench.limen("")?;
    let mut flushes = Vec::new();
    for (flush, cpu) in FLUSHES {
        steps.begin(&format!("Limen with facts of {cpu}, without {flush}"));
        let off = bench.limen(&facts(cpu, "off")?)?;
        steps.begin(&format!("Limen with facts of {cpu}, with {flush}"));
        flushes.push([off, bench.limen(&facts(cpu, "force")?)?]);
    }
    let mut of_linux = |append: &'static str| {
        let run = |linux: &Linux| {
            steps.begin(&format!("Linux {} {append}", linux.name));
            bench.linux(linux, append)
        };
        linux.as_ref().map(run).transpose()
    };
    let (linux_column, linux_off) = (of_linux("")?, of_linux(MITIGATIONS_OFF)?);
    let kernel = std::fs::read(paths::kernel_image(args.kernel.as_deref())?)?;
    let loops = of_loops(&kernel, &super::build(PACKAGE)?, "ticks")?;
    let mut results =
        Results { limen, linux: linux_column, linux_off, flushes, rates: [None, None], loops };
    steps.begin("Limen, by this host's clock");
    results.rates[0] = Some(bench.rates(None)?);
    // By the host's clock Linux may hang at its boot, where the host is loaded (see `kernel.rs`).
    results.rates[1] = linux.as_ref().and_then(|linux| {
        steps.begin("Linux, by this host's clock");
        bench.rates(Some(linux)).ok()
    });
    let reach = results.judge();
    match args.json {
        true => tell!("{:#}", results.object(&reach)),
        false => crate::out::bytes(results.text(&reach).as_bytes()),
    }
    Ok(u8::from(reach.iter().any(|(_, met)| !met)))
}

/// The smallest run, on Limen alone: rows that gave no figure, and what else went wrong.
pub(crate) fn tiny(kernel: &Path, cpu: &str) -> Result<Vec<String>, Error> {
    let mut bench = Bench::of(kernel, cpu, true)?;
    let (_, bhb) = FLUSHES[BHB];
    bench.limen(&facts(bhb, "force")?)?;
    let rates = bench.rates(None)?;
    Ok(RATES.iter().filter(|name| !rates.contains_key(**name)).map(ToString::to_string).collect())
}

/// Kernel parameters: another CPU's facts, and what is done behind guests.
fn facts(cpu: &str, vmscape: &str) -> Result<String, Error> {
    let profile = profiles::find(cpu).ok_or_else(|| format!("no CPU {cpu}"))?;
    Ok(format!("vmscape={vmscape} cpu-facts={}", profile.facts))
}

struct Bench {
    program: Vec<u8>,
    machine: Machine,
    tiny: bool,
}

impl Bench {
    fn new(kernel: &Path, args: &BenchArgs) -> Result<Bench, Error> {
        Bench::of(kernel, &args.cpu, args.tiny)
    }

    fn of(kernel: &Path, cpu: &str, tiny: bool) -> Result<Bench, Error> {
        let program = std::fs::read(super::build(PACKAGE)?)?;
        Ok(Bench { program, machine: Machine::of(kernel, cpu, MEMORY_MIB, LIMIT)?, tiny })
    }

    fn words(&self, wall: bool) -> Vec<&'static str> {
        let mut words = vec!["bench"];
        words.extend(self.tiny.then_some("--tiny"));
        words.extend(wall.then_some("--wall"));
        words
    }

    fn limen(&mut self, append: &str) -> Result<Column, Error> {
        self.machine.append = format!("{SAME_PLACES} {append}");
        let words = self.words(false);
        let work = Work { program: &self.program, words: &words, extra: Extra::default() };
        column(&self.machine.limen(&work, Clock::Counted)?)
    }

    fn linux(&self, linux: &Linux, append: &str) -> Result<Column, Error> {
        let files = linux.archive_of(&MODULES)?;
        let words = self.words(false);
        let extra = Extra { linux_files: &files, ..Extra::default() };
        let work = Work { program: &self.program, words: &words, extra };
        let append = format!("{LINUX_PLACES} {append}");
        column(&self.machine.linux(linux, &append, &work, Clock::Counted)?)
    }

    /// Exits per second.
    fn rates(&mut self, linux: Option<&Linux>) -> Result<Figures, Error> {
        let words = self.words(true);
        let files = linux.map(|linux| linux.archive_of(&MODULES)).transpose()?.unwrap_or_default();
        let extra = Extra { linux_files: &files, ..Extra::default() };
        let work = Work { program: &self.program, words: &words, extra };
        SAME_PLACES.clone_into(&mut self.machine.append);
        let ran = match linux {
            Some(linux) => self.machine.linux(linux, LINUX_PLACES, &work, Clock::Wall)?,
            None => self.machine.limen(&work, Clock::Wall)?,
        };
        Ok(ran.figures())
    }
}

/// What a run says, if it says all.
fn column(ran: &Ran) -> Result<Column, Error> {
    let figures = ran.figures();
    let missing = ROWS.iter().find(|(name, _)| !figures.contains_key(*name));
    if let Some((name, _)) = missing {
        return Err(format!("no figure of {name}: {}", ran.output).into());
    }
    let after = |start: &str| {
        let mut lines = ran.output.lines().map(str::trim_end);
        lines.find_map(|line| line.strip_prefix(start)).unwrap_or_default().to_owned()
    };
    let (version, vmscape) = (after("version "), after("vulnerability vmscape: "));
    Ok(Column { version, vmscape, figures })
}

impl Column {
    fn value(&self, row: &str) -> u64 {
        self.figures.get(row).copied().unwrap_or_default()
    }
}

impl Results {
    /// Of Linux.
    fn ratio(&self, row: &str) -> Option<f64> {
        let linux = self.linux.as_ref()?.value(row);
        Some(self.limen.value(row) as f64 / linux.max(1) as f64)
    }

    /// What flush `n` adds to a row, instructions, and as a ratio.
    fn more(&self, n: usize, row: &str) -> (i64, f64) {
        let [off, on] = self.flushes[n].each_ref().map(|column| column.value(row));
        (on as i64 - off as i64, on as f64 / off.max(1) as f64)
    }

    /// What must hold, and whether it does.
    fn judge(&self) -> Vec<(String, bool)> {
        let of = |kind| ROWS.iter().filter(move |row| row.1 == kind).map(|row| row.0);
        let mut reach = Vec::new();
        for (n, (flush, _)) in FLUSHES.iter().enumerate() {
            let most = of(Kind::Kernel).map(|row| self.more(n, row).0).max().unwrap_or_default();
            reach.push((
                format!(
                    "an exit that the kernel handles costs {most} more with {flush}, at most \
                     {KERNEL_MORE}"
                ),
                most <= KERNEL_MORE,
            ));
        }
        for protocol in ["tcp", "udp"] {
            let rows = of(Kind::Transfer).filter(|row| row.contains(protocol));
            let most = rows.map(|row| self.more(BHB, row).1).fold(0.0, f64::max);
            reach.push((
                format!(
                    "a transfer by {protocol} costs {most:.4} with branch history cleared, at \
                     most {TRANSFER_MAX}"
                ),
                most <= TRANSFER_MAX,
            ));
        }
        if let Some(most) = of(Kind::Vmm).filter_map(|row| self.ratio(row)).reduce(f64::max) {
            reach.push((
                format!("an exit to the VMM costs {most:.3} of Linux's, at most {VMM_MAX}"),
                most <= VMM_MAX,
            ));
        }
        reach
    }

    fn text(&self, reach: &[(String, bool)]) -> String {
        let mut out = String::new();
        _ = write!(out, "{:<22}{:>9}{:>9}{:>7}", "guest instructions", "Limen", "Linux", "ratio");
        _ = write!(out, "{:>11}", "Linux off");
        for (flush, cpu) in FLUSHES {
            let short = cpu.split('-').next().unwrap_or_default();
            _ = write!(out, "{:>14}{flush:>9}{:>7}", format!("{short} off"), "more");
        }
        out.push('\n');
        for (row, _) in ROWS {
            let cell = |of: &Option<Column>| {
                of.as_ref().map_or("-".to_owned(), |of| of.value(row).to_string())
            };
            let (linux, off) = (cell(&self.linux), cell(&self.linux_off));
            let ratio = self.ratio(row).map_or("-".to_owned(), |ratio| format!("{ratio:.3}"));
            _ = write!(out, "{row:<22}{:>9}{linux:>9}{ratio:>7}{off:>11}", self.limen.value(row));
            for (n, [off, on]) in self.flushes.iter().enumerate() {
                let (off, on) = (off.value(row), on.value(row));
                _ = write!(out, "{off:>14}{on:>9}{:>7}", self.more(n, row).0);
            }
            out.push('\n');
        }
        for name in RATES {
            let [limen, linux] = self.rates.each_ref().map(|rates| {
                let value = rates.as_ref().and_then(|rates| rates.get(name));
                value.map_or("-".to_owned(), |value| value.to_string())
            });
            _ = writeln!(out, "{name:<22}{limen:>9}{linux:>9}   exits, by this host's clock");
        }
        for of_loop in &self.loops {
            _ = writeln!(out, "loop in ring 3 of this host, {of_loop}");
        }
        if let Some(linux) = &self.linux {
            let Column { version, vmscape, .. } = linux;
            _ = writeln!(
                out,
                "Linux: {version}, kvm_amd; vmscape: {vmscape}; off: {MITIGATIONS_OFF}"
            );
        }
        for ((flush, cpu), [_, on]) in FLUSHES.iter().zip(&self.flushes) {
            _ = writeln!(out, "{flush}: facts of {cpu}; vmscape: {}", on.vmscape);
        }
        for (claim, met) in reach {
            _ = writeln!(out, "reach: {claim} ... {}", if *met { "met" } else { "NOT MET" });
        }
        out
    }

    fn object(&self, reach: &[(String, bool)]) -> Value {
        let column = |column: &Column| {
            json!({
                "version": column.version, "vmscape": column.vmscape,
                "instructions": column.figures,
            })
        };
        let flush = |(of, [off, on]): (&(&str, &str), &[Column; 2])| {
            let (off, on) = (column(off), column(on));
            json!({ "flush": of.0, "facts": of.1, "off": off, "on": on })
        };
        let claim = |(claim, met): &(String, bool)| json!({ "claim": claim, "met": met });
        json!({
            "bench": "guest",
            "limen": column(&self.limen),
            "linux": self.linux.as_ref().map(column),
            "linux_off": self.linux_off.as_ref().map(column),
            "flushes": FLUSHES.iter().zip(&self.flushes).map(flush).collect::<Vec<_>>(),
            "exits_per_second": { "limen": self.rates[0], "linux": self.rates[1] },
            "loops_in_ring_3": self.loops,
            "reach": reach.iter().map(claim).collect::<Vec<_>>(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(value: u64) -> Column {
        let said = ROWS.map(|(name, _)| format!("{name} {value}\n")).concat()
            + "version 6.12 #1\r\nvulnerability vmscape: Vulnerable\r\n";
        column(&Ran { output: said, wall_us: 0 }).expect("all is there")
    }

    fn results(off: u64, on: u64, linux: u64) -> Results {
        let flushes = vec![[all(off), all(on)], [all(off), all(on)]];
        let linux = Some(all(linux));
        let (linux_off, loops) = (None, Vec::new());
        Results { limen: all(off), linux, linux_off, flushes, rates: [None, None], loops }
    }

    #[test]
    fn what_costs_more_than_it_may_is_told() {
        let met = |results: &Results| results.judge().iter().map(|r| r.1).collect::<Vec<_>>();
        let good = results(1000, 1002, 1000);
        assert_eq!(met(&good), [true; 5]);
        assert!(good.text(&good.judge()).contains("1.000"), "{}", good.text(&good.judge()));
        assert_eq!(met(&results(1000, 1003, 1000)), [false, false, true, true, true]);
        assert_eq!(met(&results(1000, 1030, 999)), [false, false, false, false, false]);
    }

    #[test]
    fn a_run_that_says_too_little_is_none() {
        assert!(column(&Ran { output: "kernel_cpuid 7\n".to_owned(), wall_us: 0 }).is_err());
        assert_eq!(all(1).vmscape, "Vulnerable");
    }
}
