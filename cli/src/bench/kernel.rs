//! `limen bench kernel`: one static program on Limen and on Linux, in the same QEMU.
//!
//! Three columns: Limen, Linux as it comes, Linux with `mitigations=off`. Each is two runs of the
//! program: one that measures operations and one that only reports the boot, the latter counted
//! and once more by the host's clock. Linux's columns are kept in the cache, named by everything
//! that they depend on, so that the second run is quick; Limen's never are.
//!
//! Neighbours: `rig.rs` runs, `linux.rs` finds the other kernel, `table.rs` prints.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use formats::boot_config::{BootConfig, RootKind, Stdio};
use formats::{cpio, ports};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::rig::{self, Clock, numbers};
use super::table;
use crate::args::{BenchArgs, MachineModel};
use crate::linux::{self, Linux};
use crate::run::qemu::{self, Accel, Qemu, Wires, port_file};
use crate::{Error, paths};

pub(super) const PACKAGE: &str = "limen-guest-bench";
/// Memory of every VM.
pub(super) const MEMORY_MIB: u64 = 256;
/// 2025-01-01, the date that the rig gives the machine's clock, in nanoseconds.
const REALTIME_NS: u64 = 1_735_689_600_000_000_000;
const MITIGATIONS_OFF: &str = "mitigations=off";

/// What one kernel costs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Column {
    /// The kernel's name.
    pub(super) kernel: String,
    /// By the names of `table::ROWS`, and the hash of the work.
    pub(super) figures: BTreeMap<String, u64>,
}

/// The whole table.
#[derive(Clone, Debug)]
pub(super) struct Results {
    pub(super) cpu: String,
    pub(super) limen: Column,
    pub(super) linux: Option<Column>,
    pub(super) linux_off: Option<Column>,
}

/// Measures and prints. Where there is no Linux, its columns stay empty and a line says why.
pub(super) fn command(args: &BenchArgs) -> Result<u8, Error> {
    let bench = Bench::new(args)?;
    let mut results =
        Results { cpu: args.cpu.clone(), limen: bench.limen()?, linux: None, linux_off: None };
    if !args.no_linux {
        match linux::find(args.linux.as_deref()) {
            Ok(linux) => {
                results.linux = Some(bench.linux(&linux, "")?);
                results.linux_off = Some(bench.linux(&linux, MITIGATIONS_OFF)?);
            }
            Err(error) => eprintln!("limen: {error}"),
        }
    }
    for column in [&results.linux, &results.linux_off].into_iter().flatten() {
        if column.figures.get("hash") != results.limen.figures.get("hash") {
            return Err(format!("{} did other work than Limen", column.kernel).into());
        }
    }
    match args.json {
        true => println!("{:#}", table::json(&results)),
        false => print!("{}", table::text(&results)),
    }
    Ok(0)
}

/// A tiny run of Limen alone and of the program on this host: their hashes, which must agree.
pub(crate) fn tiny_hashes(kernel: &Path, cpu: &str) -> Result<(Option<u64>, Option<u64>), Error> {
    let program = super::build(PACKAGE)?;
    let host = std::process::Command::new(&program).arg("--tiny").output()?;
    let host = numbers(&String::from_utf8_lossy(&host.stdout));
    let bench = Bench {
        program: std::fs::read(program)?,
        kernel: kernel.to_owned(),
        cpu: cpu.to_owned(),
        tiny: true,
        border: false,
        append: String::new(),
        dir: Scratch::new()?,
    };
    let limen = bench.limen()?;
    Ok((host.get("hash").copied(), limen.figures.get("hash").copied()))
}

/// What all runs share.
pub(super) struct Bench {
    program: Vec<u8>,
    kernel: PathBuf,
    cpu: String,
    tiny: bool,
    /// Only the operations of `bench entry`.
    border: bool,
    /// Parameters of Limen's kernel.
    append: String,
    dir: Scratch,
}

impl Bench {
    pub(super) fn new(args: &BenchArgs) -> Result<Self, Error> {
        Ok(Bench {
            program: std::fs::read(super::build(PACKAGE)?)?,
            kernel: paths::kernel_image(args.kernel.as_deref())?,
            cpu: args.cpu.clone(),
            tiny: args.tiny,
            border: false,
            append: String::new(),
            dir: Scratch::new()?,
        })
    }

    /// The same for the operations of `bench entry`.
    pub(super) fn for_border(args: &BenchArgs) -> Result<Self, Error> {
        Ok(Bench { border: true, ..Bench::new(args)? })
    }

    fn words(&self) -> &'static [&'static str] {
        match (self.border, self.tiny) {
            (false, false) => &[],
            (false, true) => &["--tiny"],
            (true, false) => &["--border"],
            (true, true) => &["--border", "--tiny"],
        }
    }

    fn limen(&self) -> Result<Column, Error> {
        let (mut figures, _) = self.run_limen(self.words(), Clock::Counted)?;
        figures.extend(self.run_limen(&["--boot"], Clock::Counted)?.0);
        let (_, wall_us) = self.run_limen(&["--boot"], Clock::Wall)?;
        finish("Limen".to_owned(), figures, Some(wall_us))
    }

    /// Limen's operations with these kernel parameters, counted; and the kernel's log.
    pub(super) fn limen_with(&mut self, append: &str) -> Result<(Column, String), Error> {
        append.clone_into(&mut self.append);
        let (figures, _) = self.run_limen(self.words(), Clock::Counted)?;
        let log = std::fs::read(port_file(&self.dir.0, "klog"))?;
        let column = Column { kernel: "Limen".to_owned(), figures };
        Ok((column, String::from_utf8_lossy(&log).into_owned()))
    }

    fn run_limen(
        &self,
        words: &[&str],
        clock: Clock,
    ) -> Result<(BTreeMap<String, u64>, u64), Error> {
        let initramfs = self.dir.0.join("limen.cpio");
        std::fs::write(&initramfs, limen_initramfs(&self.program, words)?)?;
        let machine = Qemu {
            kernel: self.kernel.clone(),
            append: self.append.clone(),
            machine: MachineModel::Microvm,
            accel: Accel::Tcg,
            cpu: Some(self.cpu.clone()),
            smp: 1,
            memory_mib: MEMORY_MIB,
            gdb: None,
            root: None,
            rw: vec![],
        };
        let command = machine.command(&Wires::Files { initramfs, dir: self.dir.0.clone() });
        let wall = rig::run(&command, clock, &self.dir.0)?;
        let read = |port: &str| {
            let bytes = std::fs::read(port_file(&self.dir.0, port)).unwrap_or_default();
            String::from_utf8_lossy(&bytes).into_owned()
        };
        let figures = numbers(&read("stdio"));
        if figures.is_empty() {
            let (log, stderr) = (read("klog"), read("stderr"));
            return Err(format!("the bench said nothing on Limen\n{log}{stderr}").into());
        }
        Ok((figures, wall.as_micros() as u64))
    }

    /// Linux's column, from the cache if nothing that matters has changed.
    pub(super) fn linux(&self, linux: &Linux, option: &str) -> Result<Column, Error> {
        let append = format!("{} {option} --", linux::APPEND);
        let qemu = std::process::Command::new(qemu::program()).arg("--version").output()?;
        let settings = format!("{append} {} {} {:?}", linux::MACHINE, self.cpu, self.words());
        let (hash, program) = (linux.hash.as_bytes(), self.program.as_slice());
        let key = hex_hash(&[hash, program, &qemu.stdout, settings.as_bytes()]);
        let kept = paths::cache_dir()?.join(format!("bench-linux-{}.json", &key[..16]));
        let old = std::fs::read(&kept).ok();
        if let Some(column) = old.and_then(|bytes| serde_json::from_slice(&bytes).ok()) {
            return Ok(column);
        }
        let (mut figures, _) = self.run_linux(linux, &append, self.words(), Clock::Counted)?;
        figures.extend(self.run_linux(linux, &append, &["--boot"], Clock::Counted)?.0);
        // On a loaded host Linux fails to calibrate its clock against the old timer, and hangs:
        // then this one figure is missing, and the next run tries again.
        let wall = self.run_linux(linux, &append, &["--boot"], Clock::Wall);
        let wall_us = wall.map(|(_, wall_us)| wall_us).ok();
        let column = finish(linux.name.clone(), figures, wall_us)?;
        if wall_us.is_some() {
            paths::write_atomically(&kept, &serde_json::to_vec(&column)?)?;
        }
        Ok(column)
    }

    fn run_linux(
        &self,
        linux: &Linux,
        append: &str,
        words: &[&str],
        clock: Clock,
    ) -> Result<(BTreeMap<String, u64>, u64), Error> {
        let append = format!("{append} {} --poweroff", words.join(" "));
        let (dir, cpu) = (&self.dir.0, &self.cpu);
        let (program, memory_mib) = (&self.program, MEMORY_MIB);
        let command = linux.command(&linux::Boot {
            program,
            files: &[],
            append: &append,
            dir,
            cpu,
            smp: 1,
            memory_mib,
        })?;
        let serial = port_file(dir, "serial");
        let wall = rig::run(&command, clock, &self.dir.0)?;
        let text = std::fs::read(serial)?;
        let text = String::from_utf8_lossy(&text);
        let figures = numbers(&text);
        match figures.is_empty() {
            true => Err(format!("the bench said nothing on {}\n{text}", linux.name).into()),
            false => Ok((figures, wall.as_micros() as u64)),
        }
    }
}

/// A column from all that the runs said.
fn finish(
    kernel: String,
    mut figures: BTreeMap<String, u64>,
    wall_us: Option<u64>,
) -> Result<Column, Error> {
    if !figures.contains_key("hash") {
        return Err(format!("the bench did not come to its end on {kernel}").into());
    }
    let free = figures.remove("free_bytes").ok_or("the bench did not say what is free")?;
    let used = (MEMORY_MIB << 20).saturating_sub(free);
    figures.insert("idle_memory_bytes".to_owned(), used);
    figures.extend(wall_us.map(|wall_us| ("boot_wall_us".to_owned(), wall_us)));
    Ok(Column { kernel, figures })
}

/// The configuration and the program, as `limen run --pack` would lay them out.
pub(super) fn limen_initramfs(program: &[u8], words: &[&str]) -> Result<Vec<u8>, Error> {
    let argv = std::iter::once("/init").chain(words.iter().copied());
    let config = BootConfig {
        program: b"/init".to_vec(),
        argv: argv.map(|word| word.as_bytes().to_vec()).collect(),
        cwd: b"/".to_vec(),
        root: RootKind::Packed,
        stdio: [Stdio::Null, Stdio::Pipe, Stdio::Pipe],
        realtime_ns: REALTIME_NS,
        ..BootConfig::default()
    };
    let encoded = config.encode();
    BootConfig::decode(&encoded)?;
    let mut archive = cpio::Writer::new();
    archive.file(ports::CONFIG_PATH.as_bytes(), 0o600, &encoded);
    archive.file(b"init", 0o755, program);
    for dir in [&b"tmp"[..], b"dev"] {
        archive.dir(dir, 0o755);
    }
    Ok(archive.finish().map_err(|_| "the program does not fit an archive")?)
}

/// SHA-256 of several parts, each with its length before it.
pub(crate) fn hex_hash(parts: &[&[u8]]) -> String {
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update((part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A folder for one bench, removed at its end.
pub(super) struct Scratch(pub(super) PathBuf);

impl Scratch {
    pub(super) fn new() -> Result<Self, Error> {
        let dir = std::env::temp_dir().join(format!("limen-bench-{}", std::process::id()));
        std::fs::create_dir_all(&dir)?;
        Ok(Self(dir))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Left behind, it is only a few files in the temporary directory.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
