//! The kernel level: the kernel image built with its own tests, booted at each CPU count.
//!
//! The image is built with `--features ktest`. Booted with the parameter `ktest`, it prints
//! `test NAME ... ok` or `test NAME ... FAILED` per test on the serial log, then
//! `N passed, N failed`, and ends the VM. A log without that last line is a failure: a kernel that
//! hangs or dies has not passed.

use std::path::{Path, PathBuf};
use std::time::Duration;

use formats::boot_config::{BootConfig, RootKind};
use formats::{cpio, ports};
use mitigations::profiles;

use super::watch::Running;
use super::{Context, Summary, faults};
use crate::Error;
use crate::args::{AccelChoice, MachineModel};
use crate::image::Form;
use crate::run::accel;
use crate::run::qemu::Qemu;
use crate::run::vm::{Manner, Vm};

/// The kernel with its tests.
const WITH_TESTS: Form = Form { name: "ktest", features: "ktest", is_as_shipped: true };
/// The whole suite, in emulation on a loaded host.
const LIMIT: Duration = Duration::from_secs(300);
const MEMORY_MIB: u64 = 256;

/// Kernel parameters, the tests to run with them, and lines that the log must have. The calls'
/// tests need checks; with `cfi=off` others show that the kernel works without.
const PARAMETERS: [(&str, &str, &[&str]); 14] = [
    ("nokaslr", "memory::", &["KASLR: off"]),
    ("randomize_kstack_offset=off", "handler::stacks", &[]),
    ("cfi=auto", "cfi::good", &["CFI: Using rehashed optimised kCFI"]),
    ("cfi=kcfi", "cfi::", &["CFI: Using rehashed retpoline kCFI"]),
    ("cfi=kcfi,norand", "cfi::", &["CFI: Using retpoline kCFI"]),
    ("cfi=opt,norand", "late_text::", &["CFI: Using optimised kCFI"]),
    ("cfi=off", "static_", &["CFI: disabled"]),
    ("cfi=warn", "cfi::", &["CFI: mismatch non-fatal!"]),
    (
        "cfi=fineibt,paranoid,fast",
        "cfi::good",
        &[
            "CFI: fineibt needs indirect",
            "CFI: paranoid is not built",
            "CFI: ignoring unknown option fast",
            "rehashed optimised",
        ],
    ),
    (
        "kernel_shstk=maybe",
        "shadow_stack::",
        &["kernel_shstk: ignoring unknown value maybe", "shadow stacks: off, the CPU has none"],
    ),
    ("nousershstk", "shadow_stack::", &["shadow stacks of programs: off, as asked for"]),
    ("kernel_shstk=on", "shadow_stack::", &["warning: shadow stacks: off, the CPU has none"]),
    ("cfi=debug spectre_v2=off", "cfi::", &["CFI: verified ", " via Direct"]),
    ("cfi=debug spectre_v2=retpoline,lfence", "cfi::", &["CFI: verified ", " via Lfence"]),
];

/// CPUs that nobody here has, by name (`limen mitigations --list`), and parameters: with their
/// facts every path runs in emulation, and stepping through the boundary sees which sequence ran.
const CPUS: [(&str, &str); 10] = [
    ("icelake-sp", ""),
    ("sapphirerapids", "spectre_v2=eibrs,lfence"),
    ("skylake", ""),
    ("skylake-sp", "spectre_v2=retpoline retbleed=stuff pti=on"),
    ("rocketlake", "spectre_v2=eibrs,retpoline indirect_target_selection=stuff"),
    ("alderlake-e-core", "spectre_v2_user=on"),
    ("zen1", "retbleed=unret spec_rstack_overflow=off pti=on"),
    ("zen2", "spectre_v2_user=seccomp spec_store_bypass_disable=on"),
    ("zen3", "spec_rstack_overflow=ibpb"),
    ("zen4", "vmscape=ibpb"),
];
/// The tests that each of them runs.
const CPU_TESTS: [&str; 2] = ["mitigations::", "window::every"];
/// CPUs as QEMU shows them, each booted [`MODEL_BOOTS`] times: what is chosen for them is right
/// wherever the image was moved to.
const MODELS: [&str; 4] = ["EPYC", "EPYC-Rome", "EPYC-Milan", "Icelake-Server"];
const MODEL_BOOTS: usize = 2;
/// What QEMU says of each feature of a model that it does not emulate.
const UNEMULATED: &str = "TCG doesn't support requested feature";
const MODEL_TESTS: &str = "mitigations::";
/// Facts that are not true of the CPU: what the boot must end with.
const LIES: [(&str, &str, &str); 3] = [
    ("sapphirerapids", "cpu-registers=deaf", "mitigations: SPEC_CTRL was to be 0x401, and this"),
    ("zen4", "cpu-registers=deaf spectre_v2_user=off", "mitigations: EFER.AIBRSE was to be"),
    ("icelake-sp", "cpu-registers=real", "mitigations: SPEC_CTRL was to be 0x1, and this CPU"),
];

/// A filter that makes the kernel print its tests' names.
const LIST: &str = "?";
/// So much of the parameters names a boot.
const NAME_COLUMNS: usize = 60;
/// The tests of deferred work once more, on a CPU that nothing else disturbs.
const ISOLATED: [&str; 2] = ["isolcpus=3 nohz_full=3", "isolcpus=3 nohz_full=3 pti=on defer=cr3"];

pub(super) fn run(context: &Context) -> Result<Summary, Error> {
    let kernel = build(context)?;
    let mut total = Summary::default();
    for &smp in &context.smp {
        let filter = if context.filter.is_empty() { "" } else { "=" };
        let append = format!("ktest{filter}{}{}", context.filter, options(smp));
        let lines = boot(kernel.clone(), smp, append)?;
        total += judge(&lines, &format!("--smp {smp}"), context, context.filter.is_empty());
    }
    if context.smp.contains(&4) && context.wants("defer::") {
        for parameters in ISOLATED {
            let lines = boot(kernel.clone(), 4, format!("ktest=defer:: {parameters}"))?;
            total += judge(&lines, parameters, context, true);
        }
    }
    for (parameters, tests, said) in PARAMETERS {
        if !context.wants(&format!("parameter::{parameters}")) {
            continue;
        }
        let lines = boot(kernel.clone(), 1, format!("ktest={tests} {parameters}"))?;
        let mut counted = judge(&lines, parameters, context, true);
        for wanted in said {
            if !lines.iter().any(|line| line.contains(wanted)) {
                tell!("{parameters}: the kernel does not say {wanted:?}");
                counted.failed += 1;
            }
        }
        total += counted;
    }
    total += cpus(context, &kernel)?;
    for model in MODELS {
        let name = format!("model::{model}");
        if context.wants(&name) {
            for _ in 0..MODEL_BOOTS {
                let append = format!("ktest={MODEL_TESTS}");
                let lines = boot_on(kernel.clone(), Some(model.to_owned()), 1, append)?;
                total += judge(&lines, &name, context, true);
            }
        }
    }
    if context.wants(SECRETS) {
        total += two_boots(context, &kernel)?;
    }
    total += faults::run(context, &kernel)?;
    Ok(total)
}

/// What differs from one boot to the next, as the test of this name says it in the log.
const SECRETS: &str = "boot::secrets";
/// Before each secret's name and value.
const SECRET: &str = "secret ";
/// Secrets that the kernel has, at least.
const SECRETS_MIN: usize = 5;

/// Boots twice and compares secrets. The kernel of the tests says them; no other one does.
pub(super) fn two_boots(context: &Context, kernel: &Path) -> Result<Summary, Error> {
    let mut boots = Vec::new();
    let mut total = Summary::default();
    for number in 1..=2 {
        let lines = boot(kernel.to_owned(), 1, format!("ktest={SECRETS}"))?;
        total += judge(&lines, &format!("boot {number} of {SECRETS}"), context, true);
        let said = lines.iter().filter_map(|line| line.split_once(SECRET));
        boots.push(said.map(|(_, secret)| secret.to_owned()).collect::<Vec<_>>());
    }
    let (first, second) = (&boots[0], &boots[1]);
    let same = first.iter().filter(|secret| second.contains(secret));
    same.clone().for_each(|secret| tell!("{SECRETS}: the same in two boots: {secret}"));
    total.failed += same.count();
    if first.len() < SECRETS_MIN || first.len() != second.len() {
        tell!("{SECRETS}: {} and {} secrets", first.len(), second.len());
        total.failed += 1;
    }
    Ok(total)
}

/// The parameter that makes a boot take the facts of this CPU for its own.
pub(super) fn facts(name: &str) -> Result<String, Error> {
    let profile = profiles::find(name).ok_or_else(|| format!("no CPU {name}"))?;
    Ok(format!("cpu-facts={}", profile.facts))
}

/// Boots with facts of other CPUs.
fn cpus(context: &Context, kernel: &Path) -> Result<Summary, Error> {
    let mut total = Summary::default();
    for (cpu, parameters) in CPUS {
        for tests in CPU_TESTS {
            let name = format!("cpu::{cpu} {tests}");
            if context.wants(&name) {
                let append = format!("ktest={tests} {} {parameters}", facts(cpu)?);
                total += judge(&boot(kernel.to_owned(), 1, append)?, &name, context, true);
            }
        }
    }
    for (cpu, parameters, said) in LIES {
        if !context.wants(&format!("lie::{cpu} {parameters}")) {
            continue;
        }
        let append = format!("ktest=mitigations:: {} {parameters}", facts(cpu)?);
        let lines = boot(kernel.to_owned(), 1, append)?;
        let noticed = lines.iter().any(|line| line.contains(said));
        let went_on = lines.iter().any(|line| parse_closing(line).is_some());
        if noticed && !went_on {
            total.passed += 1;
        } else {
            tell!("{cpu} {parameters}: the boot does not end with {said:?}");
            total.failed += 1;
        }
    }
    Ok(total)
}

/// The names of what runs: in the kernel, with parameters, and the faults.
pub(super) fn names(context: &Context) -> Result<Vec<String>, Error> {
    let lines = boot(build(context)?, 1, format!("ktest={LIST}"))?;
    let of_kernel = lines.iter().filter_map(|line| line.trim().strip_prefix("test "));
    let mut names: Vec<String> = of_kernel.map(str::to_owned).collect();
    names.extend(PARAMETERS.iter().map(|(parameters, ..)| format!("parameter::{parameters}")));
    for (cpu, _) in CPUS {
        names.extend(CPU_TESTS.map(|tests| format!("cpu::{cpu} {tests}")));
    }
    names.extend(MODELS.map(|model| format!("model::{model}")));
    names.extend(LIES.iter().map(|(cpu, parameters, _)| format!("lie::{cpu} {parameters}")));
    names.push("boot::secrets differ".to_owned());
    names.extend(faults::names());
    Ok(names)
}

pub(super) fn build(context: &Context) -> Result<PathBuf, Error> {
    WITH_TESTS.build(&context.repository, &context.target)
}

/// With two CPUs page tables are isolated.
fn options(smp: u8) -> &'static str {
    if smp == 2 { " pti=on" } else { "" }
}

/// Boots the tests; the kernel log's lines.
pub(super) fn boot(kernel: PathBuf, smp: u8, append: String) -> Result<Vec<String>, Error> {
    boot_on(kernel, None, smp, append)
}

/// Boots them on a CPU that QEMU shows, if one is named.
fn boot_on(
    kernel: PathBuf,
    cpu: Option<String>,
    smp: u8,
    append: String,
) -> Result<Vec<String>, Error> {
    let has_model = cpu.is_some();
    let shown: String = append.chars().take(NAME_COLUMNS).collect();
    let _running = Running::begin(&format!("the kernel's tests with {shown} at smp {smp}"));
    let qemu = Qemu {
        kernel,
        append,
        machine: MachineModel::Microvm,
        accel: accel::choose(AccelChoice::Auto)?,
        cpu,
        smp,
        memory_mib: MEMORY_MIB,
        gdb: None,
        root: None,
        rw: vec![],
    };
    let archive = archive()?;
    let manner = Manner { patient: true, timeout: Some(LIMIT), ..Manner::default() };
    let ended = Vm::start(&qemu, &archive, manner)?.supervise()?;
    let asked = |line: &&str| !(has_model && line.contains(UNEMULATED));
    ended.qemu_log.lines().filter(asked).for_each(|line| tell!("qemu: {line}"));
    let panic = ended.kernel_log.panic_lines().iter().cloned();
    let lines = ended.kernel_log.lines().map(str::to_owned);
    Ok(lines.chain(panic).collect())
}

/// An initramfs for a kernel that runs its tests and no program.
pub(super) fn archive() -> Result<Vec<u8>, Error> {
    let config = BootConfig {
        program: b"/none".to_vec(),
        argv: vec![b"none".to_vec()],
        cwd: b"/".to_vec(),
        root: RootKind::Packed,
        ..BootConfig::default()
    };
    let encoded = config.encode();
    let mut archive = cpio::Writer::new();
    archive.file(ports::CONFIG_PATH.as_bytes(), 0o600, &encoded);
    archive.finish().map_err(|_| "the configuration does not fit an archive".into())
}

/// Counts the tests' lines and prints those that matter. `must`: some tests were chosen by name
/// here, so that none is a mistake.
pub(super) fn judge(lines: &[String], boot: &str, context: &Context, must: bool) -> Summary {
    let mut counted = Summary::default();
    for line in lines {
        match parse_test(line) {
            Some((_, true)) => counted.passed += 1,
            Some((name, false)) => {
                failed!("kernel test {name} failed with {boot}: {}", reason(lines, name));
                counted.failed += 1;
            }
            None => {}
        }
        if context.verbose {
            tell!("{line}");
        }
    }
    let said = lines.iter().rev().find_map(|line| parse_closing(line));
    let nothing = counted.passed + counted.failed == 0 && must;
    if nothing || said != Some((counted.passed, counted.failed)) {
        let last = lines.len().saturating_sub(20);
        lines[last..].iter().for_each(|line| tell!("  {line}"));
        failed!("the kernel's tests did not come to their end with {boot}");
        counted.failed += 1;
    }
    counted
}

/// What the kernel said of a test that failed: `limen: NAME: WHY`.
fn reason<'a>(lines: &'a [String], name: &str) -> &'a str {
    let why = |line: &'a String| line.split_once(name)?.1.strip_prefix(": ");
    lines.iter().find_map(why).unwrap_or("it does not say why")
}

/// `test NAME ... ok|FAILED`.
pub(super) fn parse_test(line: &str) -> Option<(&str, bool)> {
    let (name, verdict) = line.trim().strip_prefix("test ")?.split_once(" ... ")?;
    match verdict {
        "ok" => Some((name, true)),
        "FAILED" => Some((name, false)),
        _ => None,
    }
}

/// `N passed, N failed`.
pub(super) fn parse_closing(line: &str) -> Option<(usize, usize)> {
    let (passed, failed) = line.trim().split_once(" passed, ")?;
    Some((passed.parse().ok()?, failed.strip_suffix(" failed")?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_is_the_line_that_names_the_test() {
        let lines = ["limen: a::b: no memory".to_owned(), "test a::b ... FAILED".to_owned()];
        assert_eq!(reason(&lines, "a::b"), "no memory");
        assert_eq!(reason(&lines, "a::c"), "it does not say why");
    }

    #[test]
    fn lines() {
        assert_eq!(parse_test("test a::b ... ok"), Some(("a::b", true)));
        assert_eq!(parse_test("test a ... FAILED"), Some(("a", false)));
        assert_eq!(parse_test("test a ... "), None);
        assert_eq!(parse_closing("3 passed, 1 failed"), Some((3, 1)));
        assert_eq!(parse_closing("3 passed"), None);
    }
}
