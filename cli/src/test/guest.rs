//! The guest level: the programs of `guest/tests`, first on this host's Linux, then in Limen.
//!
//! The program is built static, so that it runs packed and needs nothing of the live root. It
//! prints `test NAME ... ok` or `FAILED` per test and a closing line; on the host every test must
//! pass, since a test states what Linux does, and where it does not, Debian's kernel decides. A VM
//! that ends without the closing line has failed in the test whose line is last: its name is
//! printed, and the tests behind it count as failed.
//!
//! `limen-vmm` (`guest/vmm`) judges /dev/kvm in the same way; where the host has no KVM that works
//! for guests, Limen's is judged alone.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Context, Summary, watch};
use crate::{Error, children, image};

/// Emulation is up to fifty times slower than the host.
const VM_TIMEOUT_S: u32 = 1500;
/// Longest a single test may take in the VM, in seconds.
const TEST_BOUND_S: u32 = 180;
/// Tests that are known not to pass, in the repository.
const GAPS: &str = "guest/gaps.txt";
/// Memory as files, on every Linux.
const SHM: &str = "/dev/shm";
const TARGET: &str = "x86_64-unknown-linux-gnu";

pub(super) fn run(context: &Context) -> Result<Summary, Error> {
    let program = build(context)?;
    let mut on_host = Command::new(&program);
    let host = results(on_host.args(["run-all", &context.filter]).args(places()?), "host")?;
    let host = with_judge(&program, host)?;
    let mut total = judge("host", &host, &host, &Gaps::new());
    let gaps = parse_gaps(&std::fs::read_to_string(context.repository.join(GAPS))?)?;
    // What Linux itself does not do is no claim about Limen.
    for &smp in &context.smp {
        let place = format!("smp {smp}");
        let got = results(&mut vm(context, smp, &program), &place)?;
        total += judge(&place, &host, &got, &gaps);
    }
    let vmm = build_package(context, "limen-vmm")?;
    for &smp in &context.smp {
        total += judge_kvm(context, smp, &vmm)?;
    }
    total += super::vmscape::run(context, &vmm)?;
    total += super::nested::run(context)?;
    Ok(total)
}

/// Words that tell the tests' program where on this host to work, so that nothing is left there,
/// however it ends.
pub(super) fn places() -> Result<Vec<OsString>, Error> {
    let mut words = Vec::new();
    for (option, base) in [("--tmp", std::env::temp_dir().as_path()), ("--shm", SHM.as_ref())] {
        words.extend([option.into(), children::scratch_in(base)?.into_os_string()]);
    }
    Ok(words)
}

/// The tests of `limen-vmm`: a host whose KVM works for guests is rare, so the list of tests is the
/// program's own, and each must pass in Limen.
fn judge_kvm(context: &Context, smp: u8, program: &Path) -> Result<Summary, Error> {
    let wanted = listed(program, "list")?;
    let wanted = wanted.iter().filter(|name| name.contains(&context.filter));
    let wanted: Results = wanted.map(|name| (name.clone(), true)).collect();
    if wanted.is_empty() {
        return Ok(Summary::default());
    }
    let place = format!("kvm, smp {smp}");
    let mut vm = vm_of(context, smp, &[]);
    let got = results_of_guests(vm.arg(program).args(["test", &context.filter]), &place)?;
    Ok(judge(&place, &wanted, &got, &Gaps::new()))
}

/// The host's results, where Debian's kernel decides about tests that have failed: what a host with
/// other settings or fewer rights answers is no claim about Linux.
pub(super) fn with_judge(program: &Path, mut host: Results) -> Result<Results, Error> {
    let failed: Vec<String> =
        host.iter().filter(|(_, passed)| !**passed).map(|(name, _)| name.clone()).collect();
    for names in failed.chunk_by(|a, b| subject(a) == subject(b)) {
        // One boot for all of a subject.
        let filter = if names.len() > 1 { subject(&names[0]) } else { &names[0] };
        tell!("{filter}: {} fail on this host: asking Debian's Linux in QEMU", names.len());
        let (results, said) = super::judge::ask(program, "", filter, 1)?;
        let passes = |name: &String| results.get(name) == Some(&true);
        if !names.iter().all(passes) {
            tell!("{said}");
        }
        host.extend(names.iter().map(|name| (name.clone(), passes(name))));
    }
    Ok(host)
}

/// What a test is about: its name up to and with the first `::`.
fn subject(name: &str) -> &str {
    name.split_inclusive("::").next().unwrap_or(name)
}

/// The names of the tests: of both programs, of the image, and of guests.
pub(super) fn names(context: &Context) -> Result<Vec<String>, Error> {
    let mut names = listed(&build(context)?, "list")?;
    let vmm = build_package(context, "limen-vmm")?;
    names.extend(listed(&vmm, "list")?);
    names.extend(super::vmscape::names(&vmm)?);
    names.extend(super::nested::names());
    Ok(names)
}

/// What the tests' program lists for this word.
pub(super) fn listed(program: &Path, word: &str) -> Result<Vec<String>, Error> {
    let output = Command::new(program).arg(word).output()?;
    Ok(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
}

/// Builds the tests as one static program.
pub(super) fn build(context: &Context) -> Result<PathBuf, Error> {
    build_package(context, "limen-guest-tests")
}

/// Builds a package of the guest's as one static program of the same name.
pub(super) fn build_package(context: &Context, package: &str) -> Result<PathBuf, Error> {
    let target = context.target.join("guest");
    let status = image::build_in_parts(&mut context.cargo()?)
        .env("RUSTFLAGS", "-Ctarget-feature=+crt-static")
        .args(["build", "--release", "--quiet", "--package", package])
        .args(["--target", TARGET, "--target-dir"])
        .arg(&target)
        .status()?;
    match status.success() {
        true => Ok(target.join(TARGET).join("release").join(package)),
        false => Err(format!("{package} does not build").into()),
    }
}

fn vm(context: &Context, smp: u8, program: &Path) -> Command {
    let mut command = vm_of(context, smp, &[]);
    command.arg(program);
    command.args(["run-all", &context.filter, "--bound", &TEST_BOUND_S.to_string()]);
    command
}

/// A VM for a packed program, whose words follow; with options of `limen run`.
pub(super) fn vm_of(context: &Context, smp: u8, options: &[&str]) -> Command {
    let mut command = Command::new(&context.limen);
    command.args(["run", "--pack", "--memory", "1G", "--smp", &smp.to_string()]);
    command.args(options).args(["--timeout", &VM_TIMEOUT_S.to_string(), "--"]);
    command
}

/// Test names and whether each passed; a test that was begun and not ended has not.
pub(super) type Results = BTreeMap<String, bool>;

pub(super) fn results(command: &mut Command, place: &str) -> Result<Results, Error> {
    watch::output(command, place).map(|text| told(&text))
}

/// Tells of what has failed, with the reason, where the program gives it.
fn told(text: &str) -> Results {
    text.lines().filter(|line| line.contains("FAILED: ")).for_each(|line| tell!("{line}"));
    parse(text)
}

/// How often a run that says nothing of Limen is made again.
pub(super) const RETRIES: usize = 2;

/// The same of a program that runs guests.
pub(super) fn results_of_guests(command: &mut Command, place: &str) -> Result<Results, Error> {
    let mut text = watch::output(command, place)?;
    for _ in 0..RETRIES {
        if !lost_a_guest(&text) {
            break;
        }
        tell!("guest at {place}: once more: QEMU's emulation lost a guest");
        text = watch::output(command, place)?;
    }
    Ok(told(&text))
}

/// Whether a VMM says that the CPU lost a guest: it is the outer QEMU's, which emulates it
/// (`machine/src/vmrun/amd.rs`), and such a run says nothing of Limen.
pub(super) fn lost_a_guest(text: &str) -> bool {
    let reason = abi::kvm::FAIL_ENTRY_LOST;
    // As `kvm-ioctls` and QEMU say it.
    text.contains(&format!("FailEntry({reason},"))
        || text.contains(&format!("entry failed, hardware error {reason:#x}"))
}

pub(super) fn parse(text: &str) -> Results {
    let of_line = |line: &str| {
        let (name, end) = line.strip_prefix("test ")?.split_once(" ...")?;
        Some((name.to_owned(), end.trim_end().ends_with("ok")))
    };
    text.lines().filter_map(of_line).collect()
}

/// Tests that are known not to pass in a VM: whether it is Limen that lacks something, and the
/// reason.
pub(super) type Gaps = BTreeMap<String, (bool, String)>;

/// Reads [`GAPS`]: `kernel|emulator NAME: REASON` in each line.
fn parse_gaps(text: &str) -> Result<Gaps, Error> {
    let mut gaps = Gaps::new();
    for line in text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty()) {
        let parts = line.split_once(' ').and_then(|(kind, rest)| {
            let (name, reason) = rest.trim().split_once(": ")?;
            let ours = match kind {
                "kernel" => true,
                "emulator" => false,
                _ => return None,
            };
            Some((name.to_owned(), (ours, reason.to_owned())))
        });
        let (name, gap) = parts.ok_or_else(|| Error::from(format!("{GAPS}: bad line: {line}")))?;
        gaps.insert(name, gap);
    }
    Ok(gaps)
}

/// Compares with the host and prints what differs.
pub(super) fn judge(place: &str, host: &Results, got: &Results, gaps: &Gaps) -> Summary {
    let mut summary = Summary::default();
    for name in host.keys() {
        match (got.get(name), gaps.get(name)) {
            (Some(true), Some((true, _))) => {
                summary.failed += 1;
                tell!("test {name} at {place} passes: take it out of {GAPS}");
                continue;
            }
            (Some(false), Some((_, reason))) => {
                summary.skipped += 1;
                tell!("test {name} at {place} ... skipped ({reason})");
                continue;
            }
            _ => {}
        }
        match got.get(name) {
            Some(true) => summary.passed += 1,
            Some(false) => {
                summary.failed += 1;
                failed!("test {name} at {place} ... FAILED");
            }
            None => {
                summary.failed += 1;
                failed!("test {name} at {place} ... FAILED (not reached)");
            }
        }
    }
    if host.is_empty() {
        summary.skipped = 1;
    }
    tell!("guest at {place}: {summary}");
    summary
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unfinished_and_missing_tests_count_as_failed() {
        let host = parse("test a::x ... ok\ntest a::y ... ok\ntest a::z ... ok\n3 passed\n");
        let got = parse("test a::x ... ok\ntest a::y ... ");
        let summary = judge("smp 1", &host, &got, &Gaps::new());
        assert_eq!((summary.passed, summary.failed), (1, 2));
    }

    #[test]
    fn a_gap_of_the_kernel_must_be_open() {
        let gaps = parse_gaps("# note\nkernel a::x: why\nemulator a::y: why\n").unwrap();
        let host = parse("test a::x ... ok\ntest a::y ... ok\ntest a::z ... ok\n");
        let open = parse("test a::x ... FAILED\ntest a::y ... FAILED\ntest a::z ... ok\n");
        let summary = judge("smp 1", &host, &open, &gaps);
        assert_eq!((summary.passed, summary.failed, summary.skipped), (1, 0, 2));
        let summary = judge("smp 1", &host, &host, &gaps);
        assert_eq!((summary.passed, summary.failed, summary.skipped), (2, 1, 0));
        assert!(parse_gaps("maybe a::x: why").is_err());
    }

    #[test]
    fn a_failed_line_is_not_ok() {
        assert_eq!(parse("test a::b ... FAILED\n").get("a::b"), Some(&false));
    }
}
