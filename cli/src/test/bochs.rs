//! The bochs level: the kernel on another emulator, started by GRUB from a disc image.
//!
//! QEMU's emulation has neither PCIDs, INVPCID, x2APIC nor the TSC deadline, and none of the
//! hazards of SYSRET. Bochs has them all, as an Intel CPU of 2020 has them. It boots through a
//! BIOS, so what is tested on the way is boot by Multiboot2.
//!
//! What runs: the kernel's own tests, guests by Intel's VMX (`limen-vmm`), and programs of
//! `guest/tests` packed into the initramfs, with page-table isolation and without, with PCIDs and
//! without. Their output comes over the serial port into a file. Bochs has no way for the guest to
//! end it: it is ended when the last line has come. Among all levels only some of the kernel's
//! tests run; named, all.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use formats::boot_config::{BootConfig, RootKind};

use super::{Context, Summary, guest, kernel, packages};
use crate::pack::{self, files::FileSet};
use crate::{Error, children};

/// Programs and files that must exist, and their Debian packages.
const NEEDED: [(&str, &str); 8] = [
    ("/usr/bin/bochs-bin", "bochs"),
    ("/usr/share/bochs/BIOS-bochs-latest", "bochsbios"),
    ("/usr/share/bochs/VGABIOS-lgpl-latest", "vgabios"),
    ("/usr/lib/x86_64-linux-gnu/bochs/plugins/libbx_term_gui.so", "bochs-term"),
    ("/usr/bin/grub-mkrescue", "grub-common"),
    ("/usr/lib/grub/i386-pc/multiboot2.mod", "grub-pc-bin"),
    ("/usr/bin/xorriso", "xorriso"),
    ("/usr/bin/mformat", "mtools"),
];

/// Longest a boot with its tests may take among all levels.
const LIMIT: Duration = Duration::from_secs(300);
/// The same where the level is named: with all of the kernel's tests, of which those that stop at
/// every instruction take ten minutes.
const NAMED_LIMIT: Duration = Duration::from_secs(1800);
/// How often the serial port's file is looked at.
const LOOK: Duration = Duration::from_millis(100);
/// Tests of `guest/tests` that run without a filter: the boundary, where emulators differ, and what
/// no other emulator has.
const GUEST_FILTERS: [&str; 2] = ["entry::", "shstk::"];
/// In-kernel tests among all levels: of translations, and of threads on two CPUs.
const KERNEL_FILTERS: [&str; 7] = [
    "memory::",
    "defer::entry_storm",
    "defer::cr3_keeps_nothing pti=on",
    // Intel's virtualisation, which no other emulator has.
    "vmrun::",
    // The one emulator that tracks indirect branches.
    "cfi::",
    "late_text:: cfi=fineibt,norand",
    "shadow_stack::",
];
/// Tests of `limen-vmm` among all levels.
const GUESTS_FILTER: &str = "kvm::long_mode";
/// Tests of what is flushed behind guests among all levels.
const FLUSHES_FILTER: &str = "vmscape::e";
/// Those of `limen-vmm` that take minutes each on this emulator: races of a guest with its VMM's
/// memory, and calls at random.
const SLOW_GUESTS: [&str; 5] = ["kvm::what_", "a_child_has", "no_count", "a_copy_by", "any_call"];
/// The CPU whose facts lead to the long loop.
const CLEARS_HISTORY: &str = "alderlake-e-core";
/// Tests with the facts of CPUs that have shadow stacks as this one has, and other means beside
/// them: safe returns.
const CPUS: [(&str, [&str; 3]); 1] =
    [("zen4", ["shadow_stack::", "mitigations::", "handler::an_exception_in_an_nmi"])];
/// A fault that a program provokes, as a test.
const CHANGED_RETURN: &str = "shadow_stack::the_machine_ends";
/// What begins the report of a machine that ends.
const PANIC: &str = "limen: panic:";
/// The kernel's last line when a program has ended.
const PROGRAM_END: &str = "limen: the program's end: ";

/// Kernel parameters for the programs, and what each boot is for.
const PARAMETERS: [&str; 4] = ["pti=on", "pti=off", "pti=on nopcid", "pti=off nopcid"];

pub(super) fn run(context: &Context) -> Result<Summary, Error> {
    prepare()?;
    let dir = context.target.join("bochs");
    let mut total = kernel_tests(context, &dir)?;
    total += other_cpus(context, &dir)?;
    let program = guest::build(context)?;
    total += changed_return(context, &dir, &program)?;
    total += guests(context, &dir)?;
    let listed = guest::listed(&program, "list")?;
    let filters = match context.filter.as_str() {
        "" => GUEST_FILTERS.into(),
        filter => vec![filter],
    };
    for filter in filters {
        if !listed.iter().any(|name| name.contains(filter)) {
            continue;
        }
        let archive = pack_program(&program, &["run-all", filter])?;
        for parameters in PARAMETERS {
            let image = Image {
                kernel: &context.kernel,
                initramfs: &archive,
                parameters,
                limit: limit(context),
            };
            let log = boot(&dir, &image, |line| line.starts_with(PROGRAM_END))?;
            total += judge_log(context, &log, parameters);
        }
    }
    Ok(total)
}

/// A program has the kernel of the tests return elsewhere than a call came from: the CPU must stop
/// it, and the report name it.
fn changed_return(context: &Context, dir: &Path, program: &Path) -> Result<Summary, Error> {
    let mut total = Summary::default();
    if !context.wants(CHANGED_RETURN) {
        return Ok(total);
    }
    let kernel = kernel::build(context)?;
    let archive = pack_program(program, &["provoke", "return-address"])?;
    let image =
        Image { kernel: &kernel, initramfs: &archive, parameters: "", limit: limit(context) };
    let is_last = |line: &str| line.contains(PANIC) || line.starts_with(PROGRAM_END);
    let log = boot(dir, &image, is_last)?;
    let report = format!("{PANIC} shadow stack: the return at ");
    if log.lines().any(|line| line.contains(&report)) {
        total.passed += 1;
    } else {
        tail(&log).for_each(|line| tell!("  {line}"));
        failed!("{CHANGED_RETURN} on Bochs FAILED");
        total.failed += 1;
    }
    Ok(total)
}

/// What the tests of a program have said, and whether it came to a good end.
fn judge_log(context: &Context, log: &str, parameters: &str) -> Summary {
    let mut total = Summary::default();
    let results = guest::parse(log);
    let failed = results.iter().filter(|(_, passed)| !**passed).map(|(name, _)| name);
    failed.clone().for_each(|name| failed!("test {name} on Bochs with {parameters} FAILED"));
    total.failed += failed.count();
    total.passed += results.values().filter(|passed| **passed).count();
    if !log.lines().any(|line| line.trim_end() == format!("{PROGRAM_END}exit 0")) {
        tail(log).for_each(|line| tell!("  {line}"));
        tell!("the programs did not come to a good end on Bochs with {parameters}");
        total.failed += 1;
    }
    if context.verbose {
        tell!("{log}");
    }
    total
}

/// Guests by Intel's VMX, which no other emulator at hand has: the tests of `limen-vmm`, and with a
/// CPU's facts by which branch history is cleared behind them, those of the flush.
fn guests(context: &Context, dir: &Path) -> Result<Summary, Error> {
    let vmm = guest::build_package(context, "limen-vmm")?;
    let facts = mitigations::profiles::find(CLEARS_HISTORY).ok_or("no such CPU")?.facts;
    let mut total = Summary::default();
    let flushed = format!("vmscape=force cpu-facts={facts}");
    for (list, words, default, without, parameters) in [
        ("list", &["test"][..], GUESTS_FILTER, &SLOW_GUESTS[..], String::new()),
        ("vmscape-list", &["vmscape", "bhb_long"], FLUSHES_FILTER, &[], flushed),
    ] {
        let filter = if context.filter.is_empty() { default } else { &context.filter };
        if !guest::listed(&vmm, list)?.iter().any(|name| name.contains(filter)) {
            continue;
        }
        let archive = pack_program(&vmm, &[words, &[filter], without].concat())?;
        let image = Image {
            kernel: &context.kernel,
            initramfs: &archive,
            parameters: &parameters,
            limit: limit(context),
        };
        let log = boot(dir, &image, |line| line.starts_with(PROGRAM_END))?;
        total += judge_log(context, &log, &parameters);
    }
    Ok(total)
}

/// The names that a filter is compared with: of guest tests and of in-kernel tests.
pub(super) fn names(context: &Context) -> Result<Vec<String>, Error> {
    let mut names = guest::listed(&guest::build(context)?, "list")?;
    let vmm = guest::build_package(context, "limen-vmm")?;
    names.extend(guest::listed(&vmm, "list")?);
    names.extend(guest::listed(&vmm, "vmscape-list")?);
    names.extend(kernel::names(context)?);
    names.extend(of_other_cpus().map(|(name, ..)| name));
    names.push(CHANGED_RETURN.to_owned());
    Ok(names)
}

fn missing() -> Vec<&'static str> {
    let missing = NEEDED.iter().filter(|(path, _)| !Path::new(path).exists());
    missing.map(|(_, package)| *package).collect()
}

/// What runs with facts of other CPUs: its name, the CPU and the tests.
fn of_other_cpus() -> impl Iterator<Item = (String, &'static str, &'static str)> {
    let named = |(cpu, tests): (&'static str, [&'static str; 3])| {
        tests.map(|tests| (format!("cpu::{cpu} {tests} on Bochs"), cpu, tests))
    };
    CPUS.into_iter().flat_map(named)
}

fn other_cpus(context: &Context, dir: &Path) -> Result<Summary, Error> {
    let mut total = Summary::default();
    for (name, cpu, tests) in of_other_cpus().filter(|(name, ..)| context.wants(name)) {
        let kernel = kernel::build(context)?;
        let parameters = format!("ktest={tests} {}", kernel::facts(cpu)?);
        let lines = boot_tests(context, dir, &kernel, &parameters)?;
        total += kernel::judge(&lines, &name, context, true);
    }
    Ok(total)
}

fn kernel_tests(context: &Context, dir: &Path) -> Result<Summary, Error> {
    if context.filter.starts_with("cpu::") {
        return Ok(Summary::default());
    }
    if !kernel::names(context)?.iter().any(|name| name.contains(&context.filter)) {
        return Ok(Summary::default());
    }
    let kernel = kernel::build(context)?;
    let parameters = match context.filter.as_str() {
        "" if context.is_named => vec!["ktest".to_owned()],
        "" => KERNEL_FILTERS.map(|filter| format!("ktest={filter}")).into(),
        filter => vec![format!("ktest={filter}")],
    };
    let mut total = Summary::default();
    for parameters in &parameters {
        let lines = boot_tests(context, dir, &kernel, parameters)?;
        let judged = kernel::judge(&lines, "Bochs", context, context.filter.is_empty());
        total.passed += judged.passed;
        total.failed += judged.failed;
    }
    Ok(total)
}

/// What `kernel` says when it is booted, up to the end of its tests or a panic. Files go to `dir`.
pub(super) fn boot_tests(
    context: &Context,
    dir: &Path,
    kernel: &Path,
    parameters: &str,
) -> Result<Vec<String>, Error> {
    let image = Image { kernel, initramfs: &kernel::archive()?, parameters, limit: limit(context) };
    let log = boot(dir, &image, |line| kernel::parse_closing(line).is_some())?;
    Ok(log.lines().map(|line| line.trim_end().to_owned()).collect())
}

/// What programs of `guest/tests` with `filter` in their names say on `kernel`, whole, up to the
/// end of the last one or a panic.
pub(super) fn boot_programs(
    context: &Context,
    dir: &Path,
    kernel: &Path,
    filter: &str,
) -> Result<String, Error> {
    let archive = pack_program(&guest::build(context)?, &["run-all", filter])?;
    let image = Image { kernel, initramfs: &archive, parameters: "", limit: LIMIT };
    boot(dir, &image, |line| line.contains(PANIC) || line.starts_with(PROGRAM_END))
}

/// Installs what a boot needs.
pub(super) fn prepare() -> Result<(), Error> {
    packages::install(&missing())?;
    match &missing()[..] {
        [] => Ok(()),
        still => Err(format!("not installed: {}", still.join(" ")).into()),
    }
}

/// A program with its words as the first one of an initramfs.
fn pack_program(program: &Path, words: &[&str]) -> Result<Vec<u8>, Error> {
    use std::os::unix::ffi::OsStrExt as _;
    let name = program.as_os_str().as_bytes().to_vec();
    let words = words.iter().map(|word| word.as_bytes().to_vec());
    let config = BootConfig {
        program: name.clone(),
        argv: [name].into_iter().chain(words).collect(),
        cwd: b"/".to_vec(),
        root: RootKind::Packed,
        ..BootConfig::default()
    };
    pack::with_config(&config, program, &FileSet::default())
}

/// What a boot consists of.
struct Image<'a> {
    kernel: &'a Path,
    initramfs: &'a [u8],
    parameters: &'a str,
    limit: Duration,
}

fn limit(context: &Context) -> Duration {
    if context.is_named { NAMED_LIMIT } else { LIMIT }
}

impl Image<'_> {
    /// Makes a disc of it that boots by GRUB.
    fn make(&self, dir: &Path) -> Result<PathBuf, Error> {
        let root = dir.join("disc");
        fs::create_dir_all(root.join("boot/grub"))?;
        fs::write(root.join("boot/limen"), without_sections(fs::read(self.kernel)?)?)?;
        fs::write(root.join("boot/initramfs"), self.initramfs)?;
        let parameters = self.parameters;
        let config = format!(
            "set timeout=0\nmenuentry limen {{\n  multiboot2 /boot/limen {parameters}\n  \
             module2 /boot/initramfs\n}}\n"
        );
        fs::write(root.join("boot/grub/grub.cfg"), config)?;
        let disc = dir.join("limen.iso");
        let mut make = Command::new("grub-mkrescue");
        make.args(["-d", "/usr/lib/grub/i386-pc", "-o"]).arg(&disc).arg(&root);
        let output = make.stdin(Stdio::null()).output()?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            return Err(format!("grub-mkrescue: {said}").into());
        }
        Ok(disc)
    }
}

/// The ELF file up to the end of its segments: GRUB would load symbols and relocations, too.
fn without_sections(mut elf: Vec<u8>) -> Result<Vec<u8>, Error> {
    use object::read::elf::{ElfFile64, ProgramHeader as _};
    let file = ElfFile64::<object::Endianness>::parse(&*elf)?;
    let endian = file.endian();
    let ends = file.elf_program_headers().iter();
    let end = ends.map(|header| header.p_offset(endian) + header.p_filesz(endian)).max();
    elf.truncate(usize::try_from(end.unwrap_or(0))?);
    // e_shoff, then e_shentsize, e_shnum and e_shstrndx.
    for field in [0x28..0x30, 0x3a..0x40] {
        elf.get_mut(field).ok_or("the kernel is no ELF file")?.fill(0);
    }
    Ok(elf)
}

fn configuration(disc: &Path, serial: &Path, log: &Path) -> String {
    let (disc, serial, log) = (disc.display(), serial.display(), log.display());
    format!(
        "display_library: term\n\
         config_interface: textconfig\n\
         memory: guest=512, host=512\n\
         romimage: file=/usr/share/bochs/BIOS-bochs-latest\n\
         vgaromimage: file=/usr/share/bochs/VGABIOS-lgpl-latest\n\
         cpu: model=tigerlake, count=2, ips=50000000, reset_on_triple_fault=0\n\
         clock: sync=none, time0=utc\n\
         ata0-master: type=cdrom, path={disc}, status=inserted\n\
         boot: cdrom\n\
         com1: enabled=1, mode=file, dev={serial}\n\
         log: {log}\n\
         panic: action=fatal\n"
    )
}

/// A running Bochs, which ends with this value: it ignores every signal but this one.
struct Bochs(Child);

impl Drop for Bochs {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Boots, waits for a line that is the last one, and returns everything before and with it.
fn boot(dir: &Path, image: &Image<'_>, is_last: impl Fn(&str) -> bool) -> Result<String, Error> {
    fs::create_dir_all(dir)?;
    let disc = image.make(dir)?;
    let [serial, log, config, commands] =
        ["serial", "log", "bochsrc", "commands"].map(|name| dir.join(name));
    fs::write(&serial, "")?;
    fs::write(&config, configuration(&disc, &serial, &log))?;
    // Debian's build has a debugger, which waits for the word to go on.
    fs::write(&commands, "c\n")?;
    let mut command = children::emulator("bochs-bin");
    command.arg("-q").arg("-f").arg(&config).arg("-rc").arg(&commands).env("TERM", "vt100");
    let nothing = || Stdio::null();
    let bochs = command.stdin(nothing()).stdout(nothing()).stderr(nothing()).spawn();
    let mut bochs = Bochs(bochs.map_err(|error| format!("bochs-bin: {error}"))?);
    let deadline = Instant::now() + image.limit;
    loop {
        let ended = bochs.0.try_wait()?.is_some() || Instant::now() > deadline;
        let text = String::from_utf8_lossy(&fs::read(&serial)?).into_owned();
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        if ended || whole.lines().any(&is_last) {
            return Ok(text);
        }
        std::thread::sleep(LOOK);
    }
}

fn tail(log: &str) -> impl Iterator<Item = &str> {
    let skipped = log.lines().count().saturating_sub(20);
    log.lines().skip(skipped)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_ends_with_its_last_lines() {
        let text: String = (0..30).map(|n| format!("{n}\n")).collect();
        assert_eq!(tail(&text).next(), Some("10"));
        assert_eq!(tail("a\nb").count(), 2);
    }
}
