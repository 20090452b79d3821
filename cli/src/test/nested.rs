//! Guests of Limen that are whole kernels: Limen and Debian's, in VMMs that run in Limen. Debian's
//! own QEMU is the one that nobody here wrote; `limen-vmm` is on the rust-vmm crates.
//!
//! The level is `guest`; the outer machine is emulated, so everything here is emulated twice and
//! the guests are small.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read as _, Seek as _, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::{Context, Summary, guest};
use crate::Error;
use crate::linux::{self, Linux};
use crate::run::nested;

/// Longest that one of them may take, seconds.
const LIMIT_S: u32 = 480;
/// What the innermost program says.
const SAID: &str = "innermost 42";
const BUSYBOX: &str = "/bin/busybox";
/// What begins the disk, and what the network's other end serves.
const ON_DISK: &str = "words of the disk";
const ON_NET: &str = "words of the net";
const DISK_BYTES: u64 = 4 << 20;

/// What Debian's kernel is given to run, as its first process: a shell on the terminal that its
/// parameters name.
const INIT: &str = "#!/bin/busybox sh\n\
    export B=/bin/busybox\n\
    $B mkdir -p /dev /proc\n\
    $B mount -t devtmpfs dev /dev\n\
    $B mount -t proc proc /proc\n\
    for m in virtio_mmio failover net_failover virtio_net virtio_blk; do\n\
    $B insmod /modules/$m.ko.xz || echo no $m\n\
    done\n\
    n=0; until [ -e /dev/$tty -a -b /dev/vda -a -e /proc/sys/net/ipv4/conf/eth0 ]; do\n\
    n=$((n+1)); [ $n -gt 300 ] && echo no devices && $B reboot -f\n\
    $B usleep 100000\n\
    done\n\
    $B ifconfig eth0 10.0.2.15 up\n\
    exec $B sh -i </dev/$tty >/dev/$tty 2>&1\n";
/// Modules that it needs, in Debian's package.
const MODULES: [&str; 5] = [
    "drivers/virtio/virtio_mmio",
    "net/core/failover",
    "drivers/net/net_failover",
    "drivers/net/virtio_net",
    "drivers/block/virtio_blk",
];
/// The shell's prompt, and what is typed there: the disk is read and written, the other end of the
/// network asked (QEMU's has a file, too), the CPUs counted.
const PROMPT: &[u8] = b"/ # ";
const TYPED: &str = "$B head -n 1 /dev/vda; \
    echo back $((40+2)) >/w; $B dd if=/w of=/dev/vda bs=4096 seek=7 conv=sync,fsync 2>/w2; \
    echo 3 >/proc/sys/vm/drop_caches; \
    $B dd if=/dev/vda bs=4096 skip=7 count=1 2>/w2 | $B head -n 1; \
    $B ping -c 2 -W 20 10.0.2.2; \
    [ $tty = ttyS0 ] || { $B tftp -g -r word -l /word 10.0.2.2 && $B cat /word; }; \
    echo cpus: $($B grep -c ^processor /proc/cpuinfo); \
    echo innermost $((6*7)); $B reboot -f\n";

/// A VMM.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Vmm {
    /// QEMU with this machine.
    Qemu(&'static str),
    Ours,
}

/// A VMM, its CPUs, and what it boots.
struct Case {
    name: &'static str,
    vmm: Vmm,
    smp: u8,
    is_linux: bool,
    /// Only where it is asked for, by name or with everything: a neighbour of it runs always.
    is_extra: bool,
}

impl Case {
    /// What was the outer QEMU's in a failure. Such a run says nothing of Limen: with several CPUs
    /// QEMU may raise an int3 that Linux has patched away a moment ago, also where there is no
    /// Limen (`bench/ipi.rs`).
    fn of_emulator(&self, why: &str) -> Option<&'static str> {
        if self.is_linux && self.smp > 1 && why.contains("Oops: int3") {
            return Some("QEMU raised an int3 that Linux had removed");
        }
        guest::lost_a_guest(why).then_some("QEMU's emulation lost a guest")
    }
}

const MICROVM: &str =
    "microvm,x-option-roms=off,pit=off,pic=off,rtc=on,isa-serial=on,acpi=on,pcie=off";
/// Its second I/O APIC is QEMU's own, and hears of the ends of its interrupts only where the first
/// one is QEMU's, too.
const MICROVM_WHOLE: &str =
    "microvm,x-option-roms=off,rtc=on,isa-serial=on,pcie=off,kernel_irqchip=on,ioapic2=off";
const MICROVM_SPLIT: &str =
    "microvm,x-option-roms=off,rtc=on,isa-serial=on,pcie=off,kernel_irqchip=split";
const Q35: &str = "q35,usb=off,sata=off,smbus=off,vmport=off";

const fn limen(name: &'static str, vmm: Vmm, smp: u8) -> Case {
    Case { name, vmm, smp, is_linux: false, is_extra: false }
}

const fn linux(name: &'static str, vmm: Vmm, smp: u8) -> Case {
    Case { name, vmm, smp, is_linux: true, is_extra: false }
}

const fn extra(case: Case) -> Case {
    Case { is_extra: true, ..case }
}

const CASES: [Case; 12] = [
    limen("nested::vmm_boots_limen", Vmm::Ours, 1),
    limen("nested::vmm_boots_limen_smp", Vmm::Ours, 2),
    extra(linux("nested::vmm_boots_linux", Vmm::Ours, 1)),
    extra(linux("nested::vmm_boots_linux_smp", Vmm::Ours, 2)),
    limen("nested::microvm_boots_limen", Vmm::Qemu(MICROVM), 1),
    extra(limen("nested::microvm_boots_limen_smp", Vmm::Qemu(MICROVM), 2)),
    extra(limen("nested::q35_boots_limen", Vmm::Qemu(Q35), 1)),
    limen("nested::q35_boots_limen_smp", Vmm::Qemu(Q35), 2),
    extra(linux("nested::microvm_boots_linux", Vmm::Qemu(MICROVM_WHOLE), 1)),
    linux("nested::microvm_boots_linux_smp", Vmm::Qemu(MICROVM_SPLIT), 2),
    extra(linux("nested::q35_boots_linux", Vmm::Qemu(Q35), 1)),
    linux("nested::q35_boots_linux_smp", Vmm::Qemu(Q35), 2),
];

pub(super) fn names() -> Vec<String> {
    CASES.iter().map(|case| case.name.to_owned()).collect()
}

pub(super) fn run(context: &Context) -> Result<Summary, Error> {
    let mut summary = Summary::default();
    for case in CASES.iter().filter(|case| context.wants(case.name)) {
        if case.is_extra && !context.all && context.filter.is_empty() {
            summary.skipped += 1;
            continue;
        }
        let mut result = try_one(context, case);
        for _ in 0..guest::RETRIES {
            let why = result.as_ref().err().and_then(|why| case.of_emulator(&why.to_string()));
            let Some(why) = why else { break };
            tell!("test {}: once more: {why}", case.name);
            result = try_one(context, case);
        }
        match result {
            Ok(()) => summary.passed += 1,
            Err(why) => {
                failed!("test {} ... FAILED: {why}", case.name);
                summary.failed += 1;
            }
        }
    }
    Ok(summary)
}

/// Files of one machine.
struct Parts {
    kernel: PathBuf,
    initramfs: PathBuf,
    append: String,
    disk: PathBuf,
    /// A folder that QEMU's network serves.
    served: PathBuf,
}

impl Parts {
    fn make(context: &Context, case: &Case, dir: &Path) -> Result<Parts, Error> {
        let initramfs = dir.join("initramfs");
        let (disk, served) = (dir.join("disk"), dir.join("served"));
        let (kernel, append) = if case.is_linux {
            let linux = linux::find(None)?;
            std::fs::write(&initramfs, linux_archive(&linux)?)?;
            std::fs::write(&disk, format!("{ON_DISK}\n"))?;
            std::fs::File::options().write(true).open(&disk)?.set_len(DISK_BYTES)?;
            std::fs::create_dir(&served)?;
            std::fs::write(served.join("word"), format!("{ON_NET}\n"))?;
            let tty = if case.vmm == Vmm::Ours { "ttyS0" } else { "hvc0" };
            (linux.vmlinux, format!("{} loglevel=1 tty={tty}", linux::APPEND))
        } else {
            std::fs::write(&initramfs, limen_archive(context, dir)?)?;
            (context.kernel.clone(), String::new())
        };
        Ok(Parts { kernel, initramfs, append, disk, served })
    }
}

fn try_one(context: &Context, case: &Case) -> Result<(), Error> {
    let dir = tempfile::tempdir()?;
    let parts = Parts::make(context, case, dir.path())?;
    let mut command = Command::new(&context.limen);
    let smp = case.smp.to_string();
    // Messages of the kernel between are told where it fails.
    command.args(["run", "-v", "--memory", "1G", "--smp", &smp]);
    command.args(["--timeout", &LIMIT_S.to_string(), "--"]);
    match case.vmm {
        Vmm::Ours => ours(&mut command, case, &parts)?,
        Vmm::Qemu(machine) => qemu(&mut command, machine, case, &parts),
    }
    let mut log = tempfile::tempfile()?;
    let mut child = command
        .stdin(if case.is_linux { Stdio::piped() } else { Stdio::null() })
        .stdout(Stdio::piped())
        .stderr(log.try_clone()?)
        .spawn()?;
    let (process, done) = (Pid::from_child(&child), AtomicBool::new(false));
    let said = std::thread::scope(|scope| {
        scope.spawn(|| end_if_lost(process, &log, &done));
        let said = converse(&mut child);
        done.store(true, Ordering::SeqCst);
        said
    });
    let status = child.wait()?;
    let said = String::from_utf8_lossy(&said?).into_owned();
    let mut wanted = vec![SAID.to_owned()];
    if case.is_linux {
        wanted.extend([ON_DISK, "back 42", "2 packets received"].map(str::to_owned));
        wanted.push(format!("cpus: {}", case.smp));
        wanted.extend((case.vmm != Vmm::Ours).then(|| ON_NET.to_owned()));
    }
    let missing: Vec<_> = wanted.iter().filter(|words| !said.contains(words.as_str())).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let mut told = String::new();
    log.rewind()?;
    log.read_to_string(&mut told)?;
    Err(format!("no {missing:?} in {said:?}; {told:?}; {status}").into())
}

/// Ends a machine in which QEMU keeps a guest that is lost, for somebody to look at.
fn end_if_lost(process: Pid, log: &File, done: &AtomicBool) {
    let mut text = Vec::new();
    while !done.load(Ordering::SeqCst) {
        std::thread::sleep(Duration::from_millis(500));
        let mut bytes = [0; 4096];
        // Where it is written to stays where it is.
        while let Ok(count @ 1..) = log.read_at(&mut bytes, text.len() as u64) {
            text.extend(&bytes[..count]);
        }
        if guest::lost_a_guest(&String::from_utf8_lossy(&text)) {
            // It may have ended by itself meanwhile; it is not waited for yet.
            let _ = kill_process(process, Signal::TERM);
            return;
        }
    }
}

/// Reads what it says until it ends; at the prompt, where it is asked for, types.
fn converse(child: &mut Child) -> Result<Vec<u8>, Error> {
    let mut out = child.stdout.take().ok_or("no output")?;
    let mut said = Vec::new();
    let mut bytes = [0; 1024];
    loop {
        let count = out.read(&mut bytes)?;
        if count == 0 {
            return Ok(said);
        }
        said.extend(&bytes[..count]);
        if said.windows(PROMPT.len()).any(|words| words == PROMPT)
            && let Some(mut typed) = child.stdin.take()
        {
            typed.write_all(TYPED.as_bytes())?;
        }
    }
}

fn ours(command: &mut Command, case: &Case, parts: &Parts) -> Result<(), Error> {
    let cpus = case.smp.to_string();
    command.arg(nested::vmm()?).args(["boot", "--memory", "256", "--cpus", &cpus, "--kernel"]);
    command.arg(&parts.kernel).arg("--initrd").arg(&parts.initramfs);
    // Its messages are told where it fails.
    command.args(["--log", "--append", &parts.append]);
    if case.is_linux {
        command.args(["--serial", "--net", "--disk"]).arg(&parts.disk);
    }
    Ok(())
}

/// The machine, and its devices: Limen's ports as `limen run` has them, or Linux's.
fn qemu(command: &mut Command, machine: &str, case: &Case, parts: &Parts) {
    let bus = if machine.starts_with("q35") { "pci" } else { "device" };
    let smp = case.smp.to_string();
    command.args(["qemu-system-x86_64", "-no-user-config", "-nodefaults", "-no-reboot"]);
    command.args(["-display", "none", "-M", machine, "-accel", "kvm", "-cpu", "host"]);
    command.args(["-smp", &smp, "-m", "256M", "-global", "virtio-mmio.force-legacy=false"]);
    command.arg("-kernel").arg(&parts.kernel).arg("-initrd").arg(&parts.initramfs);
    command.args(["-append", &parts.append]);
    command.args(["-device", &format!("virtio-serial-{bus},max_ports=8")]);
    if case.is_linux {
        devices_of_linux(command, bus, parts);
    } else {
        ports_of_limen(command, bus);
    }
}

fn devices_of_linux(command: &mut Command, bus: &str, parts: &Parts) {
    // Its messages are told where it fails.
    command.args(["-chardev", "file,id=log,path=/dev/stderr", "-serial", "chardev:log"]);
    command.args(["-chardev", "stdio,id=console", "-device", "virtconsole,chardev=console"]);
    let file = |before: &str, path: &Path, after: &str| {
        let mut word = OsString::from(before);
        word.push(path);
        word.push(after);
        word
    };
    command.arg("-drive").arg(file("if=none,id=disk,format=raw,file=", &parts.disk, ""));
    command.args(["-device", &format!("virtio-blk-{bus},drive=disk")]);
    command.arg("-netdev").arg(file("user,id=net,tftp=", &parts.served, ""));
    let rom = if bus == "pci" { ",romfile=" } else { "" };
    command.args(["-device", &format!("virtio-net-{bus},netdev=net{rom}")]);
}

fn ports_of_limen(command: &mut Command, bus: &str) {
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

/// Busybox, the first process, and the modules.
fn linux_archive(linux: &Linux) -> Result<Vec<u8>, Error> {
    let mut archive = formats::cpio::Writer::new();
    let busybox = std::fs::read(BUSYBOX)?;
    archive.file(b"bin/busybox", 0o755, &busybox);
    archive.file(b"init", 0o755, INIT.as_bytes());
    let archive = archive.finish().map_err(|_| "busybox does not fit an archive")?;
    Ok([linux.archive_of(&MODULES)?, archive].concat())
}
