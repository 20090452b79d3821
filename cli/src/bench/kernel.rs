//! `limen bench kernel`: one static program on Limen and on Linux, in the same QEMU.
//!
//! Four columns: both kernels as they come, and with what each does about speculation switched
//! off, which a kernel of another day may not have had yet. Each is two runs of the program: one
//! that measures operations and one that only reports the boot, the latter counted and once more by
//! the host's clock.
//!
//! Neighbours: `machine.rs` has both kernels, `linux.rs` finds the other one, `table.rs` prints.

use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::machine::{Extra, Figures, Machine, Work};
use super::rig::{Clock, numbers};
use super::table;
use crate::Error;
use crate::args::BenchArgs;
use crate::cache::{self, Folder};
use crate::linux::Linux;
use crate::progress::Steps;

pub(super) const PACKAGE: &str = "limen-guest-bench";
/// Memory of every VM.
pub(super) const MEMORY_MIB: u64 = 256;
/// No counted run takes that long, even on a loaded host.
pub(super) const LIMIT: Duration = Duration::from_secs(300);
const MITIGATIONS_OFF: &str = "mitigations=off";
/// Limen moves the stack at each call without being asked.
const LIMEN_OFF: &str = "mitigations=off randomize_kstack_offset=off";

/// What one kernel costs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Column {
    /// The kernel's name.
    pub(super) kernel: String,
    /// By the names of `table::ROWS`, and the hash of the work.
    pub(super) figures: Figures,
}

/// The whole table.
#[derive(Clone, Debug)]
pub(super) struct Results {
    pub(super) cpu: String,
    pub(super) limen: Column,
    pub(super) limen_off: Option<Column>,
    pub(super) linux: Option<Column>,
    pub(super) linux_off: Option<Column>,
}

/// Measures and prints. Where there is no Linux, its columns stay empty and a line says why.
pub(super) fn command(args: &BenchArgs) -> Result<u8, Error> {
    let mut bench = Bench::new(args)?;
    let linux = super::linux_beside(args);
    let mut steps = Steps::of(if linux.is_some() { 4 } else { 2 });
    let mut column = |linux: Option<&Linux>, option: &str| {
        steps.begin(&format!("{} {option}", linux.map_or("Limen", |linux| linux.name.as_str())));
        match linux {
            Some(linux) => bench.linux(linux, option),
            None => bench.limen(option),
        }
    };
    let limen = column(None, "")?;
    let limen_off = Some(column(None, LIMEN_OFF)?);
    let cpu = args.cpu.clone();
    let mut results = Results { cpu, limen, limen_off, linux: None, linux_off: None };
    if let Some(linux) = &linux {
        results.linux = Some(column(Some(linux), "")?);
        results.linux_off = Some(column(Some(linux), MITIGATIONS_OFF)?);
    }
    let others = [&results.limen_off, &results.linux, &results.linux_off];
    for column in others.into_iter().flatten() {
        if column.figures.get("hash") != results.limen.figures.get("hash") {
            return Err(format!("{} did other work than Limen", column.kernel).into());
        }
    }
    match args.json {
        true => tell!("{:#}", table::json(&results)),
        false => crate::out::bytes(table::text(&results).as_bytes()),
    }
    Ok(0)
}

/// A tiny run of Limen alone and of the program on this host: their hashes, which must agree.
pub(crate) fn tiny_hashes(kernel: &Path, cpu: &str) -> Result<(Option<u64>, Option<u64>), Error> {
    let program = super::build(PACKAGE)?;
    let host = std::process::Command::new(&program).arg("--tiny").output()?;
    let host = numbers(&String::from_utf8_lossy(&host.stdout));
    let mut bench = Bench {
        program: std::fs::read(program)?,
        machine: Machine::of(kernel, cpu, MEMORY_MIB, LIMIT)?,
        tiny: true,
        border: false,
    };
    let limen = bench.limen("")?;
    Ok((host.get("hash").copied(), limen.figures.get("hash").copied()))
}

/// What all runs share.
pub(super) struct Bench {
    program: Vec<u8>,
    machine: Machine,
    tiny: bool,
    /// Only the operations of `bench entry`.
    border: bool,
}

impl Bench {
    pub(super) fn new(args: &BenchArgs) -> Result<Self, Error> {
        Ok(Bench {
            program: std::fs::read(super::build(PACKAGE)?)?,
            machine: Machine::new(args, MEMORY_MIB, LIMIT)?,
            tiny: args.tiny,
            border: false,
        })
    }

    /// The same for the operations of `bench entry`.
    pub(super) fn for_border(args: &BenchArgs) -> Result<Self, Error> {
        Ok(Bench { border: true, ..Bench::new(args)? })
    }

    /// What measures the operations.
    fn work(&self) -> Work<'_> {
        let words: &[&str] = match (self.border, self.tiny) {
            (false, false) => &[],
            (false, true) => &["--tiny"],
            (true, false) => &["--border"],
            (true, true) => &["--border", "--tiny"],
        };
        Work { program: &self.program, words, extra: Extra::default() }
    }

    /// What only reports the boot.
    fn boot(&self) -> Work<'_> {
        Work { program: &self.program, words: &["--boot"], extra: Extra::default() }
    }

    /// Limen's column with these kernel parameters.
    fn limen(&mut self, append: &str) -> Result<Column, Error> {
        append.clone_into(&mut self.machine.append);
        let mut figures = self.machine.limen(&self.work(), Clock::Counted)?.figures();
        figures.extend(self.machine.limen(&self.boot(), Clock::Counted)?.figures());
        let wall_us = self.machine.limen(&self.boot(), Clock::Wall)?.wall_us;
        finish("Limen".to_owned(), figures, Some(wall_us))
    }

    /// Limen's operations with a compiled profile, while another process has restricted itself by
    /// Landlock: with every policy asked, and none that refuses.
    pub(super) fn limen_with_all_policies(&mut self, profile: &[u8]) -> Result<Figures, Error> {
        self.machine.append.clear();
        let words: &[&str] = if self.tiny { &["--landlock", "--tiny"] } else { &["--landlock"] };
        let extra = Extra { profile, ..Extra::default() };
        let work = Work { program: &self.program, words, extra };
        Ok(self.machine.limen(&work, Clock::Counted)?.figures())
    }

    /// Limen's operations with these kernel parameters, counted; and the kernel's log.
    pub(super) fn limen_with(&mut self, append: &str) -> Result<(Column, String), Error> {
        append.clone_into(&mut self.machine.append);
        let figures = self.machine.limen(&self.work(), Clock::Counted)?.figures();
        Ok((Column { kernel: "Limen".to_owned(), figures }, self.machine.limen_log()))
    }

    /// Linux's column, from the cache if nothing that matters has changed.
    pub(super) fn linux(&self, linux: &Linux, option: &str) -> Result<Column, Error> {
        let name = self.machine.name_kept(linux, option, &self.work())?;
        let kept = Folder::of(cache::LINUX_FIGURES)?;
        if let Some(column) = kept.read(&name).and_then(|bytes| serde_json::from_slice(&bytes).ok())
        {
            return Ok(column);
        }
        let run = |work: &Work<'_>, clock| self.machine.linux(linux, option, work, clock);
        let mut figures = run(&self.work(), Clock::Counted)?.figures();
        figures.extend(run(&self.boot(), Clock::Counted)?.figures());
        // On a loaded host Linux fails to calibrate its clock against the old timer, and hangs:
        // then this one figure is missing, and the next run tries again.
        let wall_us = run(&self.boot(), Clock::Wall).map(|ran| ran.wall_us).ok();
        let column = finish(linux.name.clone(), figures, wall_us)?;
        if wall_us.is_some() {
            kept.keep(&name, &serde_json::to_vec(&column)?);
        }
        Ok(column)
    }
}

/// A column from all that the runs said.
fn finish(kernel: String, mut figures: Figures, wall_us: Option<u64>) -> Result<Column, Error> {
    if !figures.contains_key("hash") {
        return Err(format!("the bench did not come to its end on {kernel}").into());
    }
    let free = figures.remove("free_bytes").ok_or("the bench did not say what is free")?;
    let used = (MEMORY_MIB << 20).saturating_sub(free);
    figures.insert("idle_memory_bytes".to_owned(), used);
    figures.extend(wall_us.map(|wall_us| ("boot_wall_us".to_owned(), wall_us)));
    Ok(Column { kernel, figures })
}
