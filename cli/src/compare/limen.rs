//! One run on Limen: the kernel says when it starts the program, and at the end how much time, that
//! is instructions, has passed.

use super::{Measured, Setup};
use crate::args::MachineModel;
use crate::bench::rig::{self, Clock};
use crate::progress::Progress;
use crate::run::klog::{KernelLog, WARNING_PREFIX};
use crate::run::outcome;
use crate::run::qemu::{Accel, Qemu, Wires, port_file};
use crate::{Error, paths};

/// The kernel's clock at the end, which counts instructions where a run is counted.
const RUN_NS: &str = "run-ns";

pub(super) fn run(setup: &Setup<'_>, parameters: &str, clock: Clock) -> Result<Measured, Error> {
    let dir = paths::scratch()?;
    let initramfs = dir.path().join("image.cpio");
    paths::write(&initramfs, &setup.image)?;
    let machine = Qemu {
        kernel: setup.kernel.clone(),
        append: format!("{} {parameters}", rig::SAME_PLACES),
        machine: MachineModel::Microvm,
        accel: Accel::Tcg,
        cpu: Some(setup.args.cpu.clone()),
        smp: setup.args.smp,
        memory_mib: setup.args.memory,
        gdb: None,
        root: None,
        rw: vec![],
    };
    let command = machine.command(&Wires::Files { initramfs, dir: dir.path().to_owned() });
    let _slow = Progress::of("the machine runs");
    rig::run_within(&command, clock, dir.path(), setup.args.timeout)?;
    let read = |port: &str| std::fs::read(port_file(dir.path(), port)).unwrap_or_default();
    let said = || {
        let text = |port: &str| String::from_utf8_lossy(&read(port)).into_owned();
        format!("the program did not come to its end with {parameters:?}\n{}", text("klog"))
    };
    // A misspelt protection would cost nothing, and nobody would know why.
    let log = KernelLog::of(&read("klog"));
    log.lines().filter(|line| line.starts_with(WARNING_PREFIX)).for_each(|line| say!("{line}"));
    let (facts, outcome) = outcome::of_control(&read("control"));
    let started = facts.boot_ns.ok_or_else(said)?;
    let ended = *facts.counters.get(RUN_NS).ok_or_else(said)?;
    Ok(Measured {
        outcome: outcome.ok_or_else(said)?,
        ticks: ended.saturating_sub(started),
        counters: facts.counters,
        stdout: read("stdio"),
    })
}
