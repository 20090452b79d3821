//! One run on Limen: the kernel says when it starts the program, and at the end how much time, that
//! is instructions, has passed.

use formats::control::{LineBuffer, ToHost};

use super::{Measured, Setup};
use crate::Error;
use crate::args::MachineModel;
use crate::bench::rig::{self, Clock};
use crate::run::outcome::{Facts, Outcome};
use crate::run::qemu::{Accel, Qemu, Wires, port_file};

/// The kernel's clock at the end, which counts instructions where a run is counted.
const RUN_NS: &str = "run-ns";

pub(super) fn run(setup: &Setup<'_>, parameters: &str, clock: Clock) -> Result<Measured, Error> {
    let dir = tempfile::tempdir()?;
    let initramfs = dir.path().join("image.cpio");
    std::fs::write(&initramfs, &setup.image)?;
    let machine = Qemu {
        kernel: setup.kernel.clone(),
        append: parameters.to_owned(),
        machine: MachineModel::Microvm,
        accel: Accel::Tcg,
        cpu: Some(setup.args.cpu.clone()),
        smp: 1,
        memory_mib: setup.args.memory,
        gdb: None,
        root: None,
        rw: vec![],
    };
    let command = machine.command(&Wires::Files { initramfs, dir: dir.path().to_owned() });
    rig::run_within(&command, clock, dir.path(), setup.args.timeout)?;
    let read = |port: &str| std::fs::read(port_file(dir.path(), port)).unwrap_or_default();
    let said = || {
        let text = |port: &str| String::from_utf8_lossy(&read(port)).into_owned();
        format!("the program did not come to its end with {parameters:?}\n{}", text("klog"))
    };
    let (facts, outcome) = report(&read("control"));
    let started = facts.boot_ns.ok_or_else(said)?;
    let ended = *facts.counters.get(RUN_NS).ok_or_else(said)?;
    Ok(Measured {
        outcome: outcome.ok_or_else(said)?,
        ticks: ended.saturating_sub(started),
        counters: facts.counters,
        stdout: read("stdio"),
    })
}

/// What the lines of the control port say.
fn report(bytes: &[u8]) -> (Facts, Option<Outcome>) {
    let (mut facts, mut outcome) = (Facts::default(), None);
    LineBuffer::new().push(bytes, |line| {
        if let Some(message) = ToHost::decode(line) {
            outcome = outcome.take().or_else(|| Outcome::from_last_message(&message));
            facts.note(message);
        }
    });
    (facts, outcome)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_are_from_start_to_end() {
        let lines = b"boot-ns 100\ncounter run-ns 350\ncounter exits-sysret 3\nexit 4\n";
        let (facts, outcome) = report(lines);
        assert_eq!((facts.boot_ns, facts.counters[RUN_NS]), (Some(100), 350));
        assert_eq!(outcome, Some(Outcome::Exit(4)));
        assert_eq!(report(b"boot-ns 100\n").1, None);
    }
}
