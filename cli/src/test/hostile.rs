//! The hostile level: what must not hurt the kernel, in VMs of its own.
//!
//! - `hogs::*` of `guest/tests`: programs that take all memory, descriptors, names, … in a VM of
//!   128 MiB, at the largest CPU count asked for. They cannot run on the host.
//! - `fuzz::short`: the system call fuzzer for some seconds; the level `fuzz` runs it for ten
//!   minutes.
//! - `boot::*`: initramfs images that are cut or no archive, kernel parameters that do not exist,
//!   programs that are missing or none. Each must end with its status and a line that
//!   names the fault.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use formats::boot_config::{BootConfig, RootKind};
use formats::{cpio, ports};

use super::guest::{self, Results};
use super::watch::{self, Running};
use super::{Context, Summary};
use crate::Error;
use crate::args::{AccelChoice, MachineModel};
use crate::run::accel;
use crate::run::qemu::Qemu;
use crate::run::vm::{Ended, Manner, Vm};

/// All hogs together, in emulation on a loaded host.
const HOGS_LIMIT_S: u32 = 900;
const HOGS_MEMORY: &str = "128M";
/// Children of each job in the short run.
const SHORT_CHILDREN: u64 = 40;
const SHORT_S: u64 = 60;
const LONG_S: u64 = 600;
const FUZZ_SMP: u8 = 4;
const FUZZ_MEMORY: &str = "512M";
const BOOT_LIMIT: Duration = Duration::from_secs(60);

/// Hogs, a short fuzz run, and bad boots.
pub(super) fn run(context: &Context) -> Result<Summary, Error> {
    let mut results = Results::new();
    let program = guest::build(context)?;
    hogs(context, &program, &mut results)?;
    if context.wants("fuzz::short") {
        let passed = fuzz(context, &program, SHORT_S, Some(SHORT_CHILDREN))?;
        results.insert("fuzz::short".to_owned(), passed);
    }
    for (name, boot) in BOOTS {
        if context.wants(name) {
            let _running = Running::begin(name);
            let verdict = boot(context)?;
            if let Err(why) = &verdict {
                tell!("{name}: {why}");
            }
            results.insert((*name).to_owned(), verdict.is_ok());
        }
    }
    Ok(judge(&results))
}

pub(super) fn names(context: &Context) -> Result<Vec<String>, Error> {
    let mut names = guest::listed(&guest::build(context)?, "hogs-list")?;
    names.push("fuzz::short".to_owned());
    names.extend(BOOTS.iter().map(|(name, _)| (*name).to_owned()));
    Ok(names)
}

/// The fuzzer for ten minutes.
pub(super) fn run_fuzz(context: &Context) -> Result<Summary, Error> {
    let program = guest::build(context)?;
    let passed = fuzz(context, &program, LONG_S, None)?;
    Ok(judge(&Results::from([("fuzz::long".to_owned(), passed)])))
}

fn judge(results: &Results) -> Summary {
    let failed = results.iter().filter(|(_, passed)| !**passed);
    failed.clone().for_each(|(name, _)| failed!("test {name} ... FAILED"));
    let failed = failed.count();
    Summary { passed: results.len() - failed, failed, skipped: usize::from(results.is_empty()) }
}

fn vm(context: &Context, smp: u8, memory: &str, limit_s: u64, program: &Path) -> Command {
    let mut command = Command::new(&context.limen);
    command.args(["run", "--pack", "--memory", memory, "--smp", &smp.to_string()]);
    command.args(["--timeout", &limit_s.to_string(), "--"]).arg(program);
    command.stdin(Stdio::null()).stderr(Stdio::inherit());
    command
}

fn hogs(context: &Context, program: &Path, results: &mut Results) -> Result<(), Error> {
    let mut wanted = guest::listed(program, "hogs-list")?;
    wanted.retain(|name| context.wants(name));
    if wanted.is_empty() {
        return Ok(());
    }
    let smp = context.smp.iter().copied().max().unwrap_or(1);
    let mut command = vm(context, smp, HOGS_MEMORY, HOGS_LIMIT_S.into(), program);
    let got = guest::parse(&watch::output(
        command.args(["hogs", &context.filter]),
        &format!("smp {smp}"),
    )?);
    // A test that was not reached has failed.
    let passed = |name: &String| got.get(name).copied().unwrap_or(false);
    results.extend(wanted.iter().map(|name| (name.clone(), passed(name))));
    Ok(())
}

/// Runs the fuzzer; its report goes to stdout. Whether nothing went wrong.
fn fuzz(
    context: &Context,
    program: &Path,
    seconds: u64,
    children: Option<u64>,
) -> Result<bool, Error> {
    let mut command = vm(context, FUZZ_SMP, FUZZ_MEMORY, seconds + 240, program);
    command.args(["fuzz", "--in-vm", "--jobs", "4"]);
    command.args(["--seconds", &seconds.to_string(), "--seed", &context.seed.to_string()]);
    if let Some(children) = children {
        command.args(["--children", &children.to_string()]);
    }
    let _running = Running::begin("fuzz");
    Ok(command.status()?.success())
}

type Boot = fn(&Context) -> Result<Result<(), String>, Error>;

const BOOTS: &[(&str, Boot)] = &[
    ("boot::archive_is_none", |c| refused(c, &[0x5a; 4096], "not a cpio")),
    ("boot::archive_is_empty", |c| refused(c, &[], "initramfs")),
    ("boot::archive_is_cut_in_a_header", |c| refused(c, &archive(b"/none")?[..50], "truncated")),
    ("boot::archive_is_cut_in_a_file", |c| refused(c, &archive(b"/none")?[..180], "truncated")),
    ("boot::archive_without_its_end", |c| {
        let whole = archive(b"/none")?;
        // The trailer begins 124 bytes before the padding: whatever is left of it is not enough.
        let end = whole.windows(10).rposition(|w| w == b"TRAILER!!!").unwrap_or(whole.len());
        refused(c, &whole[..end.saturating_sub(20)], "truncated")
    }),
    ("boot::program_is_missing", |c| expect(boot(c, &archive(b"/none")?, "")?, 127, "/none")),
    ("boot::program_is_a_folder", |c| expect(boot(c, &archive(b"/")?, "")?, 126, "/")),
    ("boot::program_is_none", |c| expect(boot(c, &archive(b"/plain")?, "")?, 126, "")),
    ("boot::unknown_parameter", |c| {
        let ended = boot(c, &archive(b"/none")?, "no_such_thing=1 pti=off nor_this")?;
        let warns = |what: &str| {
            let line = format!("limen: warning: unknown kernel parameter: {what}");
            ended.kernel_log.lines().any(|l| l == line)
        };
        let right = warns("no_such_thing=1") && warns("nor_this") && !warns("pti=off");
        if right { expect(ended, 127, "/none") } else { Ok(Err("no warning that names it".into())) }
    }),
];

/// An archive with a configuration that runs `program`, and one file, `/plain`, that is none.
fn archive(program: &[u8]) -> Result<Vec<u8>, Error> {
    let config = BootConfig {
        program: program.to_vec(),
        argv: vec![b"none".to_vec()],
        cwd: b"/".to_vec(),
        root: RootKind::Packed,
        ..BootConfig::default()
    };
    let encoded = config.encode();
    let mut writer = cpio::Writer::new();
    writer.file(ports::CONFIG_PATH.as_bytes(), 0o600, &encoded);
    writer.file(b"plain", 0o644, b"not a program");
    Ok(writer.finish().map_err(|_| "the configuration does not fit an archive")?)
}

fn boot(context: &Context, archive: &[u8], append: &str) -> Result<Ended, Error> {
    let qemu = Qemu {
        kernel: context.kernel.clone(),
        append: append.to_owned(),
        machine: MachineModel::Microvm,
        accel: accel::choose(AccelChoice::Auto)?,
        cpu: None,
        smp: 1,
        memory_mib: 64,
        gdb: None,
        root: None,
        rw: vec![],
    };
    let manner = Manner { timeout: Some(BOOT_LIMIT), ..Manner::default() };
    Vm::start(&qemu, archive, manner)?.supervise()
}

/// The archive must be refused with a line that says so.
fn refused(context: &Context, archive: &[u8], names: &str) -> Result<Result<(), String>, Error> {
    expect(boot(context, archive, "")?, 126, names)
}

fn expect(ended: Ended, status: u8, names: &str) -> Result<Result<(), String>, Error> {
    let said = ended.outcome.explanation().unwrap_or_default();
    Ok(if ended.outcome.status() != status {
        Err(format!("status {} ({said}), not {status}", ended.outcome.status()))
    } else if !said.contains(names) {
        Err(format!("`{said}` does not say {names:?}"))
    } else {
        Ok(())
    })
}
