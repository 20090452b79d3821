//! One machine for both kernels: the same program, memory and CPU model, on Limen or on Linux.
//!
//! Linux's figures are kept in the cache, named by everything that they depend on, so that the
//! second run is quick; Limen's never are. Neighbours: `rig.rs` makes runs reproducible, `linux.rs`
//! finds the other kernel; `kernel.rs` and `growth.rs` say what is measured.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use formats::boot_config::{BootConfig, RootKind, Stdio};
use formats::{cpio, ports};
use tempfile::TempDir;

use super::rig::{self, Clock, numbers};
use crate::args::{BenchArgs, MachineModel};
use crate::linux::{self, Linux};
use crate::progress::Progress;
use crate::run::qemu::{self, Accel, Qemu, Wires, port_file};
use crate::{Error, paths};

/// 2025-01-01, the date that the rig gives the machine's clock, in nanoseconds.
const REALTIME_NS: u64 = 1_735_689_600_000_000_000;

/// Figures by their names.
pub(super) type Figures = BTreeMap<String, u64>;

/// A program and its arguments.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work<'a> {
    pub(super) program: &'a [u8],
    pub(super) words: &'a [&'a str],
    /// What else is there.
    pub(super) extra: Extra<'a>,
}

/// What a program finds besides itself.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Extra<'a> {
    /// A program and its name, without the first slash.
    pub(super) tool: Option<(&'a str, &'a [u8])>,
    /// A compiled profile (`limen run --profile`).
    pub(super) profile: &'a [u8],
    /// On Linux: an archive of other files.
    pub(super) linux_files: &'a [u8],
}

/// What a run gave.
#[derive(Debug)]
pub(super) struct Ran {
    /// What the program printed; on Linux, with what the kernel said.
    pub(super) output: String,
    /// Host time.
    pub(super) wall_us: u64,
}

impl Ran {
    /// The figures in the output.
    pub(super) fn figures(&self) -> Figures {
        numbers(&self.output)
    }
}

/// Where programs are measured.
#[derive(Debug)]
pub(super) struct Machine {
    pub(super) kernel: PathBuf,
    pub(super) cpu: String,
    pub(super) memory_mib: u64,
    /// CPUs.
    pub(super) smp: u8,
    /// Parameters of Limen's kernel.
    pub(super) append: String,
    /// Longest counted run.
    pub(super) limit: Duration,
    dir: TempDir,
}

impl Machine {
    /// As the arguments say.
    pub(super) fn new(args: &BenchArgs, memory_mib: u64, limit: Duration) -> Result<Self, Error> {
        Self::of(&paths::kernel_image(args.kernel.as_deref())?, &args.cpu, memory_mib, limit)
    }

    /// With this kernel and CPU model.
    pub(super) fn of(
        kernel: &Path,
        cpu: &str,
        memory_mib: u64,
        limit: Duration,
    ) -> Result<Self, Error> {
        Ok(Self {
            kernel: kernel.to_owned(),
            cpu: cpu.to_owned(),
            memory_mib,
            smp: 1,
            append: String::new(),
            limit,
            dir: paths::scratch()?,
        })
    }

    /// Runs it on Limen.
    pub(super) fn limen(&self, work: &Work<'_>, clock: Clock) -> Result<Ran, Error> {
        let initramfs = self.dir.path().join("limen.cpio");
        std::fs::write(&initramfs, limen_initramfs(work)?)?;
        let machine = Qemu {
            kernel: self.kernel.clone(),
            append: self.append.clone(),
            machine: MachineModel::Microvm,
            accel: Accel::Tcg,
            cpu: Some(self.cpu.clone()),
            smp: self.smp,
            memory_mib: self.memory_mib,
            gdb: None,
            root: None,
            rw: vec![],
        };
        let command = machine.command(&Wires::Files { initramfs, dir: self.dir.path().to_owned() });
        let _slow = self.progress("stdio");
        let wall = rig::run_within(&command, clock, self.dir.path(), self.limit(clock))?;
        let ran = Ran { output: self.said("stdio"), wall_us: wall.as_micros() as u64 };
        if ran.figures().is_empty() {
            let (log, stderr) = (self.limen_log(), self.said("stderr"));
            return Err(format!("the bench said nothing on Limen\n{log}{stderr}").into());
        }
        Ok(ran)
    }

    /// What Limen's kernel said in the last run.
    pub(super) fn limen_log(&self) -> String {
        self.said("klog")
    }

    /// Runs it on Linux with these kernel parameters.
    pub(super) fn linux(
        &self,
        linux: &Linux,
        append: &str,
        work: &Work<'_>,
        clock: Clock,
    ) -> Result<Ran, Error> {
        let words = work.words.join(" ");
        let command = linux.command(&linux::Boot {
            program: work.program,
            file: None,
            files: work.extra.linux_files,
            append: &format!("{} {append} -- {words} --poweroff", linux::APPEND),
            dir: self.dir.path(),
            cpu: &self.cpu,
            smp: self.smp,
            memory_mib: self.memory_mib,
            share: None,
        })?;
        let _slow = self.progress("serial");
        let wall = rig::run_within(&command, clock, self.dir.path(), self.limit(clock))?;
        let ran = Ran { output: self.said("serial"), wall_us: wall.as_micros() as u64 };
        match ran.figures().is_empty() {
            true => Err(format!("the bench said nothing on {}\n{}", linux.name, ran.output).into()),
            false => Ok(ran),
        }
    }

    /// The name by which the cache has Linux's figures for it ([`crate::cache::LINUX_FIGURES`]).
    pub(super) fn name_kept(
        &self,
        linux: &Linux,
        append: &str,
        work: &Work<'_>,
    ) -> Result<String, Error> {
        let qemu = std::process::Command::new(qemu::program()).arg("--version").output()?;
        let settings = format!(
            "{} {append} {} {} {} {} {:?}",
            linux::APPEND,
            linux::MACHINE,
            self.cpu,
            self.memory_mib,
            self.smp,
            work.words
        );
        let hash = linux.hash.as_bytes();
        let key = super::hex_hash(&[hash, work.program, &qemu.stdout, settings.as_bytes()]);
        Ok(format!("{}.json", &key[..16]))
    }

    /// Tells how much the program has said at this port.
    fn progress(&self, port: &str) -> Progress {
        let file = port_file(self.dir.path(), port);
        Progress::telling(move || {
            let said = std::fs::read(&file).unwrap_or_default();
            let figures = numbers(&String::from_utf8_lossy(&said)).len();
            format!("the machine runs: {figures} figures measured")
        })
    }

    fn limit(&self, clock: Clock) -> Duration {
        if clock == Clock::Counted { self.limit } else { rig::WALL_LIMIT }
    }

    fn said(&self, port: &str) -> String {
        let bytes = std::fs::read(port_file(self.dir.path(), port)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// The configuration and the program, as `limen run --pack` would lay them out.
pub(super) fn limen_initramfs(work: &Work<'_>) -> Result<Vec<u8>, Error> {
    let argv = std::iter::once("/init").chain(work.words.iter().copied());
    let config = BootConfig {
        program: b"/init".to_vec(),
        argv: argv.map(|word| word.as_bytes().to_vec()).collect(),
        cwd: b"/".to_vec(),
        root: RootKind::Packed,
        stdio: [Stdio::Null, Stdio::Pipe, Stdio::Pipe],
        realtime_ns: REALTIME_NS,
        profile: work.extra.profile.to_vec(),
        ..BootConfig::default()
    };
    let encoded = config.encode();
    BootConfig::decode(&encoded)?;
    let mut archive = cpio::Writer::new();
    archive.file(ports::CONFIG_PATH.as_bytes(), 0o600, &encoded);
    archive.file(b"init", 0o755, work.program);
    let folders: &[&[u8]] = &[b"tmp", b"dev", b"bin"];
    for dir in &folders[..if work.extra.tool.is_some() { 3 } else { 2 }] {
        archive.dir(dir, 0o755);
    }
    if let Some((name, bytes)) = work.extra.tool {
        archive.file(name.as_bytes(), 0o755, bytes);
    }
    Ok(archive.finish().map_err(|_| "the program does not fit an archive")?)
}
