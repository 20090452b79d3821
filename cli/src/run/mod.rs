//! `limen run`: one program in one microVM.
//!
//! Reading order: [`run`] here; `plan` (options to a VM), `qemu` (its command line), `vm` (its
//! life), `pump` and `tty` (the streams), `outcome` (how it ended), `klog` and `backtrace` (what
//! the kernel said). `shim` is the step between us and QEMU.

pub(crate) mod accel;
mod backtrace;
mod gdb;
pub(crate) mod jail;
pub(crate) mod klog;
pub(crate) mod limits;
pub(crate) mod lookup;
pub(crate) mod nested;
pub(crate) mod outcome;
pub(crate) mod plan;
pub(crate) mod pump;
pub(crate) mod qemu;
pub(crate) mod secrets;
pub(crate) mod share;
pub(crate) mod shim;
pub(crate) mod trace;
pub(crate) mod tty;
pub(crate) mod vm;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::Duration;

use formats::boot_config::Stdio;
use formats::control::SyscallCount;

use crate::args::RunArgs;
use crate::pack::closure;
use crate::tree::Tree;
use crate::{Error, detached, paths};
use limits::Limits;
use outcome::{Facts, Outcome, Report, STATUS_OUTPUT_LOST};
use plan::Plan;
use qemu::{Accel, Qemu, Wires};
use vm::{Ended, Lost, Manner, Vm};

/// Runs and reports; the result is the exit status.
pub(crate) fn run(args: &RunArgs) -> Result<u8, Error> {
    if args.nested {
        return nested::command(args);
    }
    let plan = match Plan::make(args)? {
        Ok(plan) => plan,
        Err(outcome) => {
            let facts = Facts::default();
            return finish(args, &outcome, &facts, Duration::ZERO, None);
        }
    };
    if args.dry_run {
        return dry_run(&plan);
    }
    for (option, file) in [("--json", &args.json), ("--trace", &args.trace)] {
        if let Some(file) = file.as_ref().filter(|file| *file != Path::new("-")) {
            paths::ensure_writable(option, file)?;
        }
    }
    if let Some(name) = &args.detach {
        return detached::start(args, name, &plan);
    }
    announce(args, &plan.qemu);
    let interactive = plan.config.stdio[0] == Stdio::Tty;
    let manner = Manner {
        interactive,
        wants_stdin: plan.config.stdio[0] != Stdio::Null,
        timeout: args.timeout,
        limits: Limits::all(&args.limit),
        patient: args.gdb.is_some(),
        verbose: args.verbose,
    };
    let mut ended = Vm::start(&plan.qemu, &plan.initramfs, manner).and_then(Vm::supervise)?;
    print_logs(args, &plan.qemu.kernel, &ended);
    report_lost(&ended.lost, &mut ended.outcome);
    if ended.kernel_log.lines().any(|line| line.contains(OUT_OF_MEMORY)) {
        let mib = plan.qemu.memory_mib;
        say!("limen: the VM has {mib} MiB of memory: --memory {}M gives it more", mib * 2);
    }
    if ended.kernel_log.lines().any(|line| line.contains(LOST)) {
        is_lost(&mut ended.outcome);
    }
    explain_not_found(args, &plan, &mut ended.outcome);
    print_facts(args, &ended.facts);
    if let Some(file) = &args.learn {
        crate::profile::learned(file, &ended.facts.used)?;
    }
    if let Some(file) = &args.trace {
        let written = trace::write(file, &ended.facts.trace, &ended.facts.threads);
        written.map_err(|error| format!("--trace {}: {error}", file.display()))?;
    }
    finish(args, &ended.outcome, &ended.facts, ended.wall, ended.start)
}

/// Tells what the streams did not take; then a success is none.
pub(crate) fn report_lost(lost: &[Lost], outcome: &mut Outcome) {
    for Lost { fd, error } in lost {
        let stream = if *fd == 1 { "standard output" } else { "standard error" };
        let error = std::io::Error::from(*error);
        say!("limen: {stream}: {error}: what the program wrote there is lost");
        is_lost(outcome);
    }
}

/// Where something was lost, a success is none.
fn is_lost(outcome: &mut Outcome) {
    if *outcome == Outcome::Exit(0) {
        *outcome = Outcome::Exit(STATUS_OUTPUT_LOST);
    }
}

/// What the kernel's log says when the host has not taken what was written to a shared folder.
const LOST: &str = ": what was written is lost: ";

/// What the kernel's log says when it has ended a program for its memory.
const OUT_OF_MEMORY: &str = "out of memory: ";

/// A program that is there and yet was not found lacks its interpreter: names it.
fn explain_not_found(args: &RunArgs, plan: &Plan, outcome: &mut Outcome) {
    let Outcome::NotFound(path) = outcome else { return };
    let program = Path::new(OsStr::from_bytes(&plan.config.program));
    if args.image.is_some() {
        return;
    }
    let tree = Tree::new(args.root.clone().unwrap_or_else(|| "/".into()));
    let file = tree.find(program).ok();
    if let Some(interpreter) = file.and_then(|file| closure::interpreter(&file))
        && tree.find(Path::new(&interpreter)).is_err()
    {
        let missing = format!("{interpreter} (the interpreter of {})", path.escape_ascii());
        *path = missing.into_bytes();
    }
}

/// Prints the command for a shell; the initramfs stays in the cache.
fn dry_run(plan: &Plan) -> Result<u8, Error> {
    let initramfs = paths::cache_dir()?.join("dry-run.cpio");
    paths::write_atomically(&initramfs, &plan.initramfs)?;
    let command = plan.qemu.command(&Wires::Pasted { initramfs });
    tell!("{}", qemu::shell_text(&command));
    Ok(0)
}

fn announce(args: &RunArgs, qemu: &Qemu) {
    if let Some(port) = args.gdb {
        let kernel = gdb::file(&qemu.kernel).unwrap_or_else(|error| {
            say!("limen: names of functions are not as gdb takes them: {error}");
            qemu.kernel.clone()
        });
        let kernel = kernel.display();
        say!("limen: waiting for gdb -ex 'target remote 127.0.0.1:{port}' {kernel}");
        say!("limen: there, `break kernel::main` and `continue`; Ctrl-C here ends the VM");
    }
    if args.verbose > 0 {
        let by = match qemu.accel {
            Accel::Kvm => "hardware virtualisation (KVM)",
            Accel::Tcg => "QEMU's emulation",
        };
        let cpus = if qemu.smp == 1 { "CPU" } else { "CPUs" };
        say!(
            "limen: a virtual machine with {} {cpus} and {} MiB of memory, by {by}; kernel {}",
            qemu.smp,
            qemu.memory_mib,
            qemu.kernel.display()
        );
    }
}

/// After a panic or a failed boot: what the kernel and QEMU said.
fn print_logs(args: &RunArgs, kernel: &Path, ended: &Ended) {
    let failed = matches!(ended.outcome, Outcome::BootFailure(_));
    // A boot that has said why it failed has said enough.
    let is_told = matches!(&ended.outcome, Outcome::BootFailure(why) if why.starts_with(vm::TOLD));
    if failed && !is_told && args.verbose < 2 {
        ended.qemu_log.lines().for_each(|line| say!("qemu: {line}"));
    }
    if (failed && !is_told || ended.kernel_log.has_panicked()) && args.verbose == 0 {
        ended.kernel_log.lines().for_each(|line| say!("{line}"));
    }
    for line in backtrace::symbolise(kernel, ended.kernel_log.panic_lines()) {
        say!("{line}");
    }
}

/// The lists that were asked for.
fn print_facts(args: &RunArgs, facts: &Facts) {
    let list = |wanted: bool, what: &str, counts: &[SyscallCount]| {
        if !wanted {
            return;
        }
        say!("limen: {what}:{}", if counts.is_empty() { " none" } else { "" });
        for SyscallCount { number, name, count } in counts {
            say!("limen: {count:>10} {name} ({number})");
        }
    };
    list(args.missing_syscalls, "missing syscalls", &facts.missing_syscalls);
    list(args.syscall_summary, "syscalls", &facts.syscalls);
    if args.missing_files {
        let none = if facts.missing_files.is_empty() { " none" } else { "" };
        say!("limen: missing files:{none}");
        for file in &facts.missing_files {
            say!("limen:   {}", klog::printable(file.as_bytes()));
        }
    }
}

fn finish(
    args: &RunArgs,
    outcome: &Outcome,
    facts: &Facts,
    wall: Duration,
    start: Option<Duration>,
) -> Result<u8, Error> {
    if let Some(explanation) = outcome.explanation() {
        say!("limen: {explanation}");
    }
    if let Some(file) = &args.json {
        let report = serde_json::to_string(&Report::new(args, outcome, facts, wall, start))?;
        if file == Path::new("-") {
            say!("{report}");
        } else {
            let written = std::fs::write(file, report + "\n");
            written.map_err(|error| format!("--json={}: {error}", file.display()))?;
        }
    }
    Ok(outcome.status())
}
