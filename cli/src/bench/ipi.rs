//! `limen bench ipi`: what reaches two isolated CPUs that spin in user mode while two others do all
//! that makes a kernel interrupt everybody, with deferrable work deferred and not, and on Linux.
//!
//! The program (`guest/bench/kernel`, `ipi.rs`) is the same everywhere, and so is the witness:
//! /proc/interrupts of the kernel that runs. These runs go at QEMU's speed on real threads, since
//! what is counted are events; only the price of an entry is counted in instructions, on CPU 1
//! (isolated) beside CPU 0 of one counted run.
//!
//! Neighbours: `rig.rs` runs, `kernel.rs` lays out the initramfs, `test/isolation.rs` judges.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use super::kernel;
use super::machine::{Extra, Work, limen_initramfs};
use super::rig::{self, Clock, numbers};
use crate::args::{BenchArgs, MachineModel};
use crate::linux;
use crate::progress::{Progress, Steps};
use crate::run::qemu::{Accel, Qemu, Wires, port_file};
use crate::{Error, paths};

pub(crate) const ISOLATED: &str = "isolcpus=2,3 nohz_full=2,3";
/// Everything Linux offers for such CPUs. Emulation does not make its clock worse.
const LINUX_APPEND: &str =
    "console=ttyS0 quiet panic=-1 rcu_nocbs=2,3 nowatchdog tsc=reliable irqaffinity=0,1";
/// Boot, settling and the end of the load, in emulation on a loaded host.
const AROUND: Duration = Duration::from_secs(120);
/// Columns of Limen: values of `defer=`.
const MODES: [&str; 4] = ["pending", "always", "cr3", "off"];
/// The one that has nothing to catch up by without isolated tables.
const ISOLATED_ONLY: &str = "cr3";
/// Instructions that an entry and its exit take on a CPU that is never spared: one store each.
const STORES: u64 = 2;

/// What one kernel said.
pub(crate) type Figures = BTreeMap<String, u64>;

struct Column {
    name: String,
    figures: Figures,
}

/// Measures and prints.
pub(super) fn command(args: &BenchArgs) -> Result<u8, Error> {
    let kernel = paths::kernel_image(args.kernel.as_deref())?;
    let time = if args.tiny { Duration::from_secs(2) } else { args.time };
    let mut columns = vec![];
    let wants = |name: &str| args.only.is_empty() || args.only.iter().any(|only| only == name);
    let modes = || MODES.into_iter().filter(|mode| wants(mode));
    let linux = wants("linux").then(|| super::linux_beside(args)).flatten();
    // Each mode has a load and two prices, one of them without a price for plain tables.
    let spared = modes().filter(|mode| *mode == ISOLATED_ONLY).count();
    let mut steps = Steps::of(3 * modes().count() - spared + usize::from(linux.is_some()));
    for mode in modes() {
        steps.begin(&format!("defer={mode}, {} s", time.as_secs()));
        let figures = limen(&kernel, mode, time)?;
        columns.push(Column { name: mode.to_owned(), figures });
    }
    if let Some(linux) = &linux {
        steps.begin(&format!("Linux {}, {} s", linux.name, time.as_secs()));
        // On a loaded host Linux may fail to calibrate its clock, and hang; and the longer the load
        // flips its keys, the likelier is an oops: with several threads QEMU raises an int3 that a
        // patch has left a moment ago. Its column is missing then, and the others are not lost.
        match on_linux(linux, time) {
            Ok(figures) => columns.push(Column { name: "Linux".to_owned(), figures }),
            Err(error) => say!("limen: without Linux: {error}"),
        }
    }
    let mut prices = vec![];
    for mode in modes() {
        let mut cost = |pti| {
            steps.begin(&format!("the price of an entry, defer={mode} {pti}"));
            entry_cost(&kernel, mode, pti, &args.cpu)
        };
        let plain = (mode != ISOLATED_ONLY).then(|| cost("pti=off")).transpose()?;
        prices.push(Price { mode, plain, isolated: cost("pti=on")? });
    }
    match args.json {
        true => tell!("{:#}", as_json(&columns, &prices)),
        false => crate::out::bytes(as_text(&columns, &prices, time).as_bytes()),
    }
    Ok(0)
}

fn qemu(kernel: &Path, append: String, cpu: Option<String>, smp: u8) -> Qemu {
    Qemu {
        kernel: kernel.to_owned(),
        append,
        machine: MachineModel::Microvm,
        accel: Accel::Tcg,
        cpu,
        smp,
        memory_mib: kernel::MEMORY_MIB,
        gdb: None,
        root: None,
        rw: vec![],
    }
}

/// The program that loads and looks.
pub(crate) fn built_program() -> Result<PathBuf, Error> {
    super::build(kernel::PACKAGE)
}

fn program() -> Result<Vec<u8>, Error> {
    Ok(std::fs::read(built_program()?)?)
}

/// The load on Limen with this `defer=`, for this long.
pub(crate) fn limen(kernel: &Path, mode: &str, time: Duration) -> Result<Figures, Error> {
    let dir = paths::scratch()?;
    let words = [format!("--ipi={}", time.as_secs().max(1))];
    let pti = if mode == ISOLATED_ONLY { "pti=on " } else { "" };
    let append = format!("{pti}{ISOLATED} defer={mode}");
    let machine = qemu(kernel, append, None, 4);
    let command = limen_command(&machine, &words, dir.path())?;
    let _slow = Progress::of("the machine runs");
    rig::run_within(&command, Clock::Wall, dir.path(), time + AROUND)?;
    said(dir.path(), "stdio", "Limen")
}

fn limen_command(machine: &Qemu, words: &[String], dir: &Path) -> Result<Vec<OsString>, Error> {
    let initramfs = dir.join("limen.cpio");
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let work = Work { program: &program()?, words: &words, extra: Extra::default() };
    std::fs::write(&initramfs, limen_initramfs(&work)?)?;
    Ok(machine.command(&Wires::Files { initramfs, dir: dir.to_owned() }))
}

fn on_linux(found: &linux::Linux, time: Duration) -> Result<Figures, Error> {
    let dir = paths::scratch()?;
    let seconds = time.as_secs().max(1);
    let append = format!("{LINUX_APPEND} {ISOLATED} -- --ipi={seconds} --poweroff");
    let command = found.command(&linux::Boot {
        program: &program()?,
        file: None,
        files: &[],
        append: &append,
        dir: dir.path(),
        cpu: "max",
        smp: 4,
        memory_mib: kernel::MEMORY_MIB,
        share: None,
    })?;
    let _slow = Progress::of("the machine runs");
    rig::run_within(&command, Clock::Wall, dir.path(), time + AROUND)?;
    said(dir.path(), "serial", &found.name)
}

fn said(dir: &Path, port: &str, who: &str) -> Result<Figures, Error> {
    let read = |port: &str| {
        let bytes = std::fs::read(port_file(dir, port)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let figures = numbers(&read(port));
    match figures.is_empty() {
        true => Err(format!("no figures from {who}\n{}{}", read(port), read("klog")).into()),
        false => Ok(figures),
    }
}

/// Instructions of getpid(2) on a CPU that nobody spares, and on an isolated one.
type Cost = (u64, u64);

/// What one value of `defer=` takes of calls.
struct Price<'a> {
    mode: &'a str,
    plain: Option<Cost>,
    /// With isolated tables.
    isolated: Cost,
}

fn entry_cost(kernel: &Path, mode: &str, pti: &str, cpu: &str) -> Result<Cost, Error> {
    let dir = paths::scratch()?;
    let append = format!("{pti} isolcpus=1 nohz_full=1 defer={mode}");
    let machine = qemu(kernel, append, Some(cpu.to_owned()), 2);
    let command = limen_command(&machine, &["--entry".to_owned()], dir.path())?;
    let _slow = Progress::of("the machine runs");
    rig::run_within(&command, Clock::Counted, dir.path(), kernel::LIMIT)?;
    let figures = said(dir.path(), "stdio", "Limen")?;
    let of = |name: &str| figures.get(name).copied().ok_or("the price was not measured");
    Ok((of("getpid_cpu0")?, of("getpid_cpu1")?))
}

/// CPUs 2 and 3 together.
pub(crate) fn quiet(figures: &Figures, row: &str) -> u64 {
    let of = |cpu: u32| figures.get(&format!("cpu{cpu}_{row}")).copied().unwrap_or_default();
    of(2) + of(3)
}

/// Sum of all whose name begins so.
pub(crate) fn sum(figures: &Figures, prefix: &str) -> u64 {
    figures.iter().filter(|(name, _)| name.starts_with(prefix)).map(|(_, value)| value).sum()
}

const LOAD: [&str; 5] = ["messages", "processes", "unmaps", "flips", "filters"];

fn as_text(columns: &[Column], prices: &[Price<'_>], time: Duration) -> String {
    let mut out = String::new();
    let mut line = |name: &str, cells: &mut dyn Iterator<Item = String>| {
        out += &format!("{name:<36}");
        cells.for_each(|cell| out += &format!("{cell:>12}"));
        out.push('\n');
    };
    line("", &mut columns.iter().map(|column| column.name.clone()));
    let mut figures = |name: &str, of: &dyn Fn(&Figures) -> u64| {
        line(name, &mut columns.iter().map(|column| of(&column.figures).to_string()));
    };
    figures("interrupts on CPUs 2 and 3", &|f| quiet(f, "total"));
    let of_quiet = |name: &str| {
        let row = name.strip_prefix("cpu2_").or(name.strip_prefix("cpu3_"))?;
        (row != "total").then(|| row.to_owned())
    };
    let names = || columns.iter().flat_map(|column| column.figures.keys());
    let rows: BTreeSet<String> = names().filter_map(|name| of_quiet(name)).collect();
    for row in &rows {
        figures(&format!("  {}", row.to_uppercase()), &|f| quiet(f, row));
    }
    for (title, prefix) in [("sent to them", "sent_"), ("left for their next entry", "deferred_")] {
        figures(title, &|f| sum(f, prefix));
        let causes: BTreeSet<&str> = names().filter_map(|name| name.strip_prefix(prefix)).collect();
        for cause in causes {
            let get = |f: &Figures| f.get(&format!("{prefix}{cause}")).copied().unwrap_or(0);
            if columns.iter().any(|column| get(&column.figures) > 0) {
                figures(&format!("  {cause}"), &get);
            }
        }
    }
    figures("interrupts on CPUs 0 and 1", &|f| {
        ["cpu0_total", "cpu1_total"].iter().filter_map(|name| f.get(*name)).sum()
    });
    for name in LOAD {
        figures(name, &|f| f.get(name).copied().unwrap_or_default());
    }
    let shown = |cost: Option<u64>| cost.map_or("-".to_owned(), |cost| cost.to_string());
    let plain = |of: fn(Cost) -> u64| prices.iter().map(move |price| shown(price.plain.map(of)));
    let isolated =
        |of: fn(Cost) -> u64| prices.iter().map(move |price| shown(Some(of(price.isolated))));
    line("getpid on an isolated CPU", &mut plain(|(_, on)| on));
    line("entry and exit, nothing pending", &mut plain(extra));
    line("getpid with isolated tables", &mut isolated(|(_, on)| on));
    line("entry and exit, nothing pending", &mut isolated(extra));
    out += &format!(
        "Events in {} s; instructions by -icount. Linux: its own /proc/interrupts, {ISOLATED}.\n\
         defer=cr3 runs with pti=on: there it also drops the kernel's translations at each entry,\n\
         and so does always; what that costs is not in instructions.\n",
        time.as_secs()
    );
    out
}

/// Instructions that the mechanism takes of an entry and its exit.
fn extra((off, on): (u64, u64)) -> u64 {
    (on + STORES).saturating_sub(off)
}

fn as_json(columns: &[Column], prices: &[Price<'_>]) -> Value {
    let columns: serde_json::Map<String, Value> =
        columns.iter().map(|column| (column.name.clone(), json!(column.figures))).collect();
    let map = |of: &dyn Fn(&Price<'_>) -> Option<u64>| -> serde_json::Map<String, Value> {
        prices.iter().map(|price| (price.mode.to_owned(), json!(of(price)))).collect()
    };
    json!({
        "columns": columns,
        "entry_instructions": map(&|price| price.plain.map(extra)),
        "entry_instructions_pti": map(&|price| Some(extra(price.isolated))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_the_quiet_cpus_only() {
        let figures: Figures =
            [("cpu2_tlb", 3), ("cpu3_tlb", 4), ("cpu0_tlb", 9), ("cpu2_total", 3), ("sent_a", 2)]
                .map(|(name, value)| (name.to_owned(), value))
                .into();
        assert_eq!(quiet(&figures, "tlb"), 7);
        let column = Column { name: "off".to_owned(), figures };
        let price = Price { mode: "off", plain: Some((100, 103)), isolated: (110, 114) };
        let text = as_text(&[column], &[price], Duration::from_secs(1));
        let value = |name: &str| {
            let line = text.lines().find(|line| line.trim_start().starts_with(name))?;
            line.split_whitespace().last().map(str::to_owned)
        };
        assert_eq!(value("TLB").as_deref(), Some("7"));
        assert_eq!(value("sent to them").as_deref(), Some("2"));
        assert_eq!(value("entry and exit").as_deref(), Some("5"));
        assert_eq!(value("getpid with isolated").as_deref(), Some("114"));
    }
}
