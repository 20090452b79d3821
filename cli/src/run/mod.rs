//! `limen run`: one program in one microVM.
//!
//! Reading order: [`run`] here; `plan` (options to a VM), `qemu` (its command line), `vm` (its
//! life), `pump` and `tty` (the streams), `outcome` (how it ended), `klog` and `backtrace` (what
//! the kernel said). `shim` is the step between us and QEMU.

pub(crate) mod accel;
mod backtrace;
pub(crate) mod klog;
pub(crate) mod lookup;
pub(crate) mod outcome;
pub(crate) mod plan;
mod pump;
pub(crate) mod qemu;
mod secrets;
pub(crate) mod shim;
pub(crate) mod trace;
mod tty;
pub(crate) mod vm;

use std::path::Path;
use std::time::Duration;

use formats::boot_config::Stdio;
use formats::control::SyscallCount;

use crate::args::RunArgs;
use crate::{Error, paths};
use outcome::{Facts, Outcome, Report};
use plan::Plan;
use qemu::{Qemu, Wires};
use vm::{Ended, Manner, Vm};

/// Runs and reports; the result is the exit status.
pub(crate) fn run(args: &RunArgs) -> Result<u8, Error> {
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
    announce(args, &plan.qemu);
    let interactive = plan.config.stdio[0] == Stdio::Tty;
    let manner = Manner {
        interactive,
        wants_stdin: plan.config.stdio[0] != Stdio::Null,
        timeout: args.timeout,
        patient: args.gdb.is_some(),
        verbose: args.verbose,
    };
    let raw_mode = if interactive { tty::RawMode::enter() } else { None };
    let ended = Vm::start(&plan.qemu, &plan.initramfs, manner).and_then(Vm::supervise);
    drop(raw_mode);
    let ended = ended?;
    print_logs(args, &plan.qemu.kernel, &ended);
    print_facts(args, &ended.facts);
    if let Some(file) = &args.trace {
        let written = std::fs::write(file, trace::json(&ended.facts.trace));
        written.map_err(|error| format!("--trace {}: {error}", file.display()))?;
    }
    finish(args, &ended.outcome, &ended.facts, ended.wall, ended.start)
}

/// Prints the command for a shell; the initramfs stays in the cache.
fn dry_run(plan: &Plan) -> Result<u8, Error> {
    let initramfs = paths::cache_dir()?.join("dry-run.cpio");
    paths::write_atomically(&initramfs, &plan.initramfs)?;
    let command = plan.qemu.command(&Wires::Pasted { initramfs });
    println!("{}", qemu::shell_text(&command));
    Ok(0)
}

fn announce(args: &RunArgs, qemu: &Qemu) {
    if let Some(port) = args.gdb {
        let kernel = qemu.kernel.display();
        eprintln!("limen: waiting for gdb -ex 'target remote 127.0.0.1:{port}' {kernel}");
    }
    if args.verbose > 0 {
        eprintln!(
            "limen: {:?} with {:?}, {} CPUs, {} MiB, kernel {}",
            qemu.machine,
            qemu.accel,
            qemu.smp,
            qemu.memory_mib,
            qemu.kernel.display()
        );
    }
}

/// After a panic or a failed boot: what the kernel and QEMU said.
fn print_logs(args: &RunArgs, kernel: &Path, ended: &Ended) {
    let failed = matches!(ended.outcome, Outcome::BootFailure(_));
    if failed && args.verbose < 2 {
        ended.qemu_log.lines().for_each(|line| eprintln!("qemu: {line}"));
    }
    if (failed || ended.kernel_log.has_panicked()) && args.verbose == 0 {
        ended.kernel_log.lines().for_each(|line| eprintln!("{line}"));
    }
    for line in backtrace::symbolise(kernel, ended.kernel_log.panic_lines()) {
        eprintln!("{line}");
    }
}

/// The lists that were asked for.
fn print_facts(args: &RunArgs, facts: &Facts) {
    let list = |wanted: bool, what: &str, counts: &[SyscallCount]| {
        if !wanted {
            return;
        }
        eprintln!("limen: {what}:{}", if counts.is_empty() { " none" } else { "" });
        for SyscallCount { number, name, count } in counts {
            eprintln!("limen: {count:>10} {name} ({number})");
        }
    };
    list(args.missing_syscalls, "missing syscalls", &facts.missing_syscalls);
    list(args.syscall_summary, "syscalls", &facts.syscalls);
    if args.missing_files {
        let none = if facts.missing_files.is_empty() { " none" } else { "" };
        eprintln!("limen: missing files:{none}");
        for file in &facts.missing_files {
            eprintln!("limen:   {}", klog::printable(file.as_bytes()));
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
        eprintln!("limen: {explanation}");
    }
    if let Some(file) = &args.json {
        let report = serde_json::to_string(&Report::new(outcome, facts, wall, start))?;
        if file == Path::new("-") {
            eprintln!("{report}");
        } else {
            let written = std::fs::write(file, report + "\n");
            written.map_err(|error| format!("--json={}: {error}", file.display()))?;
        }
    }
    Ok(outcome.status())
}
