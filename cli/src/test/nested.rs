//! Guests of Limen that are whole kernels: Limen and Debian's, in VMMs that run in Limen. Debian's
//! own QEMU is the one that nobody here wrote; `limen-vmm` is on the rust-vmm crates.
//!
//! The level is `guest`; the outer machine is emulated, so everything here is emulated twice and
//! the guests are small.

use std::path::Path;
use std::process::{Command, Stdio};

use super::{Context, Summary};
use crate::run::nested;
use crate::{Error, linux};

/// Longest that one of them may take, seconds.
const LIMIT_S: u32 = 240;
/// What the innermost program says.
const SAID: &str = "innermost 42";
/// What Debian's kernel is given to run, as its first process.
const INIT: &str = "#!/bin/busybox sh\necho innermost $((6*7))\n\
    /bin/busybox mkdir -p /proc\n/bin/busybox mount -t proc proc /proc\n\
    echo kernel $(/bin/busybox uname -r), $(/bin/busybox grep -c ^processor /proc/cpuinfo) CPUs\n\
    echo b > /proc/sysrq-trigger\n";
const BUSYBOX: &str = "/bin/busybox";

/// A VMM, its CPUs, and what it boots.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Vmm {
    /// QEMU with this machine.
    Qemu(&'static str),
    Ours,
}

struct Case {
    name: &'static str,
    vmm: Vmm,
    smp: u8,
    is_linux: bool,
}

const MICROVM: &str =
    "microvm,x-option-roms=off,pit=off,pic=off,rtc=on,isa-serial=on,acpi=on,pcie=off";
const MICROVM_WHOLE: &str =
    "microvm,x-option-roms=off,rtc=on,isa-serial=on,pcie=off,kernel_irqchip=on";
const Q35: &str = "q35,usb=off,sata=off,smbus=off,vmport=off";

const CASES: [Case; 6] = [
    Case { name: "nested::vmm_boots_limen", vmm: Vmm::Ours, smp: 1, is_linux: false },
    Case { name: "nested::vmm_boots_linux", vmm: Vmm::Ours, smp: 1, is_linux: true },
    Case { name: "nested::microvm_boots_limen", vmm: Vmm::Qemu(MICROVM), smp: 1, is_linux: false },
    Case { name: "nested::q35_boots_limen", vmm: Vmm::Qemu(Q35), smp: 1, is_linux: false },
    Case { name: "nested::q35_boots_limen_smp", vmm: Vmm::Qemu(Q35), smp: 2, is_linux: false },
    Case {
        name: "nested::microvm_boots_linux",
        vmm: Vmm::Qemu(MICROVM_WHOLE),
        smp: 1,
        is_linux: true,
    },
];

pub(super) fn names() -> Vec<String> {
    CASES.iter().map(|case| case.name.to_owned()).collect()
}

pub(super) fn run(context: &Context) -> Result<Summary, Error> {
    let mut summary = Summary::default();
    for case in CASES.iter().filter(|case| context.wants(case.name)) {
        match try_one(context, case) {
            Ok(()) => summary.passed += 1,
            Err(why) => {
                tell!("test {} ... FAILED: {why}", case.name);
                summary.failed += 1;
            }
        }
    }
    Ok(summary)
}

fn try_one(context: &Context, case: &Case) -> Result<(), Error> {
    let dir = tempfile::tempdir()?;
    let initramfs = dir.path().join("initramfs");
    let (kernel, append) = if case.is_linux {
        std::fs::write(&initramfs, linux_archive()?)?;
        (linux::find(None)?.vmlinux, format!("{} loglevel=1", linux::APPEND))
    } else {
        std::fs::write(&initramfs, limen_archive(context, dir.path())?)?;
        (context.kernel.clone(), String::new())
    };
    let mut command = Command::new(&context.limen);
    let smp = case.smp.to_string();
    command.args(["run", "--memory", "1G", "--smp", &smp, "--timeout", &LIMIT_S.to_string(), "--"]);
    match case.vmm {
        Vmm::Ours => {
            command.arg(nested::vmm()?).args(["boot", "--memory", "256", "--kernel"]);
            command.arg(&kernel).arg("--initrd").arg(&initramfs).args(["--append", &append]);
            command.args(case.is_linux.then_some("--serial"));
        }
        Vmm::Qemu(machine) => {
            qemu(&mut command, machine, case);
            command.arg("-kernel").arg(&kernel).arg("-initrd").arg(&initramfs);
            command.args(["-append", &append]);
        }
    }
    let output = command.stdin(Stdio::null()).output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    if said.contains(SAID) {
        return Ok(());
    }
    let log = String::from_utf8_lossy(&output.stderr);
    Err(format!("no {SAID:?} in {said:?}; {log:?}").into())
}

/// Limen's ports as `limen run` has them, or Linux's serial line.
fn qemu(command: &mut Command, machine: &str, case: &Case) {
    let bus = if machine.starts_with("q35") { "pci" } else { "device" };
    let smp = case.smp.to_string();
    command.args(["qemu-system-x86_64", "-no-user-config", "-nodefaults", "-no-reboot"]);
    command.args(["-display", "none", "-M", machine, "-accel", "kvm", "-cpu", "host"]);
    command.args(["-smp", &smp, "-m", "256M", "-global", "virtio-mmio.force-legacy=false"]);
    if case.is_linux {
        command.args(["-serial", "stdio"]);
        return;
    }
    command.args(["-device", &format!("virtio-serial-{bus},max_ports=8")]);
    // Files, so that the host's ends of the ports are open: that of `null` is not, nor that of
    // `stdio` once its input has ended.
    for (id, path) in [("control", "null"), ("stdio", "stdout"), ("stderr", "null")] {
        command.args(["-chardev", &format!("file,id={id},path=/dev/{path}")]);
    }
    for (number, id) in [(1, "control"), (2, "stdio"), (3, "stderr")] {
        let port = format!("virtserialport,chardev={id},nr={number},name=limen.{id}");
        command.args(["-device", &port]);
    }
    command.args(["-device", &format!("virtio-rng-{bus}")]);
    command.args(["-device", "isa-debug-exit,iobase=0xf4,iosize=4"]);
}

/// A program that says it, packed as `limen run --pack` does, by its own dry run.
fn limen_archive(context: &Context, dir: &Path) -> Result<Vec<u8>, Error> {
    let words =
        ["run", "--dry-run", "--pack", "--", BUSYBOX, "sh", "-c", "echo innermost $((6*7))"];
    let mut command = Command::new(&context.limen);
    let output = command.args(words).env("XDG_CACHE_HOME", dir).stdin(Stdio::null()).output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
    }
    Ok(std::fs::read(dir.join("limen/dry-run.cpio"))?)
}

fn linux_archive() -> Result<Vec<u8>, Error> {
    let mut archive = formats::cpio::Writer::new();
    let busybox = std::fs::read(BUSYBOX)?;
    archive.file(b"bin/busybox", 0o755, &busybox);
    archive.file(b"init", 0o755, INIT.as_bytes());
    archive.finish().map_err(|_| "busybox does not fit an archive".into())
}
