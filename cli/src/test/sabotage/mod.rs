//! The sabotage level: a test of the tests. Each row of `rows.toml` breaks one thing in a copy of
//! the sources and names the test that must fail then; a row that nothing notices has survived, and
//! fails the level.
//!
//! Rows are of four kinds, by what notices: a test of a crate on this host; a test in the booted
//! kernel, or the boot itself; a program on that kernel; the proof that the image is built through.
//! Those of the host
//! run among all levels, for a crate is built in seconds. `--all` runs every row, which builds the
//! kernel once for each batch: rows of one batch are applied together, so they must break different
//! tests. The unbroken sources are what the other levels run.
//!
//! Neighbours: `copy` makes the copy and changes it, `kernel` boots.

mod copy;

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde::Deserialize;

use self::copy::Copy;
use super::watch::Running;
use super::{Context, Summary, audit, bochs, guest, kernel};
use crate::{Error, image, toolchain};

const ROWS: &str = include_str!("rows.toml");
/// What a row's test may take: it was a few seconds before it was broken.
const LIMIT: Duration = Duration::from_secs(240);
/// How often a running command is looked at.
const LOOK: Duration = Duration::from_millis(20);

#[derive(Debug, Deserialize)]
struct Table {
    sabotage: Vec<Row>,
}

/// One thing that is broken.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    name: String,
    file: PathBuf,
    /// Stands once in the file.
    from: String,
    to: String,
    /// What it breaks.
    breaks: String,
    caught_by: Catcher,
    /// Rows of the kernel with the same word are built together.
    batch: Option<String>,
}

/// What must notice.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, deny_unknown_fields)]
enum Catcher {
    /// A test of a crate: in its library, or in the file of `tests/` that `target` names.
    Host { host: String, target: Option<String>, test: String },
    /// A test in the kernel; with the facts of a CPU that nobody here has, by its name.
    Kernel { kernel: String, smp: Option<u8>, cpu: Option<String>, append: Option<String> },
    /// The same on Bochs, which has what QEMU's emulation lacks; `dies`: the machine ends before.
    Bochs {
        bochs: String,
        cpu: Option<String>,
        #[serde(default)]
        dies: bool,
    },
    /// A program of `guest/tests` there, as it is in the sources that are not broken.
    Guest { guest: String },
    /// Two boots, of which this test says the same.
    Boots { boots: String },
    /// The boot does not get as far as its tests, and says this.
    Panic { panic: String, append: Option<String> },
    /// The image is refused with these words when it is built or audited.
    Image { image: String },
}

impl Row {
    fn is_of_host(&self) -> bool {
        matches!(self.caught_by, Catcher::Host { .. })
    }
}

fn rows() -> Result<Vec<Row>, Error> {
    Ok(toml::from_str::<Table>(ROWS)?.sabotage)
}

/// The rows that run: those of the host that have the filter in their names; of the others, with
/// `--all` as many, and without it the one of that name or the batch.
fn wanted(context: &Context) -> Result<Vec<Row>, Error> {
    let is_wanted = |row: &Row| {
        let names = [Some(&row.name), row.batch.as_ref()];
        let is_asked_for = names.contains(&Some(&context.filter));
        is_asked_for || context.wants(&row.name) && (context.all || row.is_of_host())
    };
    Ok(rows()?.into_iter().filter(is_wanted).collect())
}

pub(super) fn names(context: &Context) -> Result<Vec<String>, Error> {
    Ok(wanted(context)?.into_iter().map(|row| row.name).collect())
}

pub(super) fn run(context: &Context) -> Result<Summary, Error> {
    let wanted = wanted(context)?;
    let mut summary = Summary::default();
    if wanted.is_empty() {
        return Ok(summary);
    }
    let root = context.target.join("sabotage");
    let mut copy = Copy::of(&context.repository, root.join("sources"))?;
    let bench = Bench { context, target: root.join("target") };
    let (host, others): (Vec<&Row>, Vec<&Row>) = wanted.iter().partition(|row| row.is_of_host());
    for row in host {
        let noticed = bench.try_host(&mut copy, row);
        summary += told(row, noticed);
    }
    for batch in batches(&others) {
        summary += bench.try_batch(&mut copy, &batch);
    }
    copy.restore()?;
    Ok(summary)
}

/// Rows that are built together, by the words of their batches.
fn batches<'a>(rows: &[&'a Row]) -> Vec<Vec<&'a Row>> {
    let mut batches: BTreeMap<&str, Vec<&Row>> = BTreeMap::new();
    for row in rows {
        batches.entry(row.batch.as_ref().unwrap_or(&row.name)).or_default().push(row);
    }
    batches.into_values().collect()
}

/// Whether a row was noticed, or what happened instead.
type Noticed = Result<(), Error>;

fn told(row: &Row, noticed: Noticed) -> Summary {
    match noticed {
        Ok(()) => Summary { passed: 1, ..Summary::default() },
        Err(why) => {
            failed!("{}: {}: {why}", row.name, row.breaks);
            Summary { failed: 1, ..Summary::default() }
        }
    }
}

/// Where sabotaged sources are built and run.
struct Bench<'a> {
    context: &'a Context,
    target: PathBuf,
}

impl Bench<'_> {
    fn cargo(&self, copy: &Copy) -> Result<Command, Error> {
        let mut cargo = toolchain::cargo(copy.root())?;
        // Built often and run once; its kernels as well (`image::build_quickly`).
        cargo.env("CARGO_PROFILE_DEV_DEBUG", "0");
        Ok(cargo)
    }

    fn try_host(&self, copy: &mut Copy, row: &Row) -> Noticed {
        let Catcher::Host { host, target, test } = &row.caught_by else {
            return Err("no row of the host".into());
        };
        let _running = Running::begin(&row.name);
        copy.restore()?;
        copy.change(row)?;
        let mut cargo = self.cargo(copy)?;
        cargo.env("CARGO_INCREMENTAL", "1");
        cargo.args(["test", "--no-fail-fast", "--package", host, "--target-dir"]);
        cargo.arg(self.target.join("host"));
        match target {
            Some(target) => cargo.args(["--test", target]),
            None => cargo.arg("--lib"),
        };
        judge_host(&output(cargo.args(["--", test]))?, test)
    }

    fn try_batch(&self, copy: &mut Copy, batch: &[&Row]) -> Summary {
        let prepared = copy.restore().and_then(|()| {
            batch.iter().try_for_each(|row| copy.change(row))?;
            self.build(copy)
        });
        let mut summary = Summary::default();
        for row in batch {
            let _running = Running::begin(&row.name);
            summary += told(
                row,
                match &prepared {
                    Ok(built) => self.try_built(row, built),
                    Err(error) => Err(error.to_string().into()),
                },
            );
        }
        summary
    }

    /// The kernel with its tests; or what refused it.
    fn build(&self, copy: &Copy) -> Result<Result<PathBuf, String>, Error> {
        let target = self.target.join("kernel");
        let mut cargo = self.cargo(copy)?;
        cargo.arg("build").args(image::CARGO_FLAGS).args(["--features=ktest", "--quiet"]);
        image::build_quickly(&mut cargo);
        if !cargo.arg("--target-dir").arg(&target).status()?.success() {
            return Err("the kernel does not build".into());
        }
        let built = target.join("x86_64-unknown-none/release/limen-kernel");
        let refused = image::finish(&built).err().map(|error| error.to_string());
        let refused = refused.or_else(|| audit::refusal(&built));
        Ok(refused.map_or(Ok(built), Err))
    }

    fn try_built(&self, row: &Row, built: &Result<PathBuf, String>) -> Noticed {
        let built: &Path = match (&row.caught_by, built) {
            (Catcher::Image { image }, Err(why)) if why.contains(image) => return Ok(()),
            (Catcher::Image { .. }, Ok(_)) => return Err("SURVIVED: the image is accepted".into()),
            (_, Err(why)) => return Err(format!("the image is refused: {why}").into()),
            (_, Ok(built)) => built,
        };
        match &row.caught_by {
            Catcher::Kernel { kernel, smp, cpu, append } => {
                let facts = cpu.as_deref().map(kernel::facts).transpose()?.unwrap_or_default();
                let append = append.as_deref().unwrap_or_default();
                let append = format!("ktest={kernel} {facts} {append}");
                judge_kernel(&kernel::boot(built.to_owned(), smp.unwrap_or(1), append)?, kernel)
            }
            Catcher::Bochs { bochs, cpu, dies } => {
                bochs::prepare()?;
                let facts = cpu.as_deref().map(kernel::facts).transpose()?.unwrap_or_default();
                let dir = self.target.join("bochs");
                let parameters = format!("ktest={bochs} {facts}");
                let lines = bochs::boot_tests(self.context, &dir, built, &parameters)?;
                if *dies { judge_dead(&lines, bochs) } else { judge_kernel(&lines, bochs) }
            }
            Catcher::Guest { guest } => {
                bochs::prepare()?;
                let dir = self.target.join("bochs");
                judge_program(&bochs::boot_programs(self.context, &dir, built, guest)?, guest)
            }
            Catcher::Panic { panic, append } => {
                let append = append.as_deref().unwrap_or_default();
                let lines = kernel::boot(built.to_owned(), 1, format!("ktest=? {append}"))?;
                match lines.iter().any(|line| line.contains(panic)) {
                    true => Ok(()),
                    false => Err(format!("SURVIVED: the boot does not say {panic:?}").into()),
                }
            }
            Catcher::Boots { boots } => {
                let failed = kernel::two_boots(self.context, built)?.failed > 0;
                if failed { Ok(()) } else { Err(format!("SURVIVED: {boots}").into()) }
            }
            Catcher::Host { .. } | Catcher::Image { .. } => Err("is not booted".into()),
        }
    }
}

/// Whether a test with `test` in its name has failed in this output of cargo.
fn judge_host(text: &str, test: &str) -> Noticed {
    let verdicts = |verdict: &str| {
        let lines = text.lines().filter_map(|line| line.strip_prefix("test ")?.split_once(" ... "));
        lines.filter(|(name, said)| name.contains(test) && said.ends_with(verdict)).count()
    };
    let closed = text.lines().any(|line| line.starts_with("test result:"));
    match (verdicts("FAILED"), verdicts("ok")) {
        (1.., _) => Ok(()),
        (0, 1..) if closed => Err(format!("SURVIVED: {test} passes").into()),
        _ => {
            let errors = text.lines().filter(|line| line.starts_with("error"));
            let said = errors.take(3).collect::<Vec<_>>().join("; ");
            Err(format!("no test {test} came to an end: {said}").into())
        }
    }
}

/// Whether a test with `test` in its name has failed in this log, or has ended the machine.
fn judge_kernel(lines: &[String], test: &str) -> Noticed {
    let tests = lines.iter().filter_map(|line| kernel::parse_test(line));
    let of_row: Vec<bool> =
        tests.filter(|(name, _)| name.contains(test)).map(|(_, passed)| passed).collect();
    let died = lines.iter().any(|line| line.contains("panic: "));
    match of_row[..] {
        _ if of_row.contains(&false) || died => Ok(()),
        [] => Err(format!("no test {test} came to an end").into()),
        _ => Err(format!("SURVIVED: {test} passes").into()),
    }
}

/// Whether the machine has ended before a test with `test` in its name did, with no word: where a
/// return ends it, so does one of the panic.
fn judge_dead(lines: &[String], test: &str) -> Noticed {
    let mut tests = lines.iter().filter_map(|line| kernel::parse_test(line));
    match tests.find(|(name, _)| name.contains(test)) {
        None => Ok(()),
        Some(_) => Err(format!("SURVIVED: {test} comes to an end").into()),
    }
}

/// Whether a program's test with `test` in its name has failed in this log, or has ended the
/// machine.
fn judge_program(log: &str, test: &str) -> Noticed {
    let results = guest::parse(log);
    let of_row: Vec<bool> =
        results.iter().filter(|(name, _)| name.contains(test)).map(|(_, passed)| *passed).collect();
    let died = log.lines().any(|line| line.contains("panic: "));
    match of_row[..] {
        _ if of_row.contains(&false) || died => Ok(()),
        [] => Err(format!("no test {test} came to an end").into()),
        _ => Err(format!("SURVIVED: {test} passes").into()),
    }
}

/// What a command says on both streams; it is ended when it takes too long.
fn output(command: &mut Command) -> Result<String, Error> {
    let (mut reader, writer) = std::io::pipe()?;
    let mut child =
        command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer).spawn()?;
    // The command holds the pipe's other end, too.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let said = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        reader.read_to_end(&mut bytes).map(|_| String::from_utf8_lossy(&bytes).into_owned())
    });
    let deadline = Instant::now() + LIMIT;
    while child.try_wait()?.is_none() {
        if Instant::now() > deadline {
            child.kill()?;
            child.wait()?;
            return Err("it was not noticed in time".into());
        }
        std::thread::sleep(LOOK);
    }
    Ok(said.join().map_err(|_| "the reader has died")??)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// The least number of rows, over all mechanisms.
    const LEAST: usize = 60;

    #[test]
    fn every_row_fits_the_sources() {
        let repository = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the repository");
        let rows = rows().expect("the table is well formed");
        assert!(rows.len() >= LEAST, "{} rows", rows.len());
        let names: BTreeSet<&str> = rows.iter().map(|row| row.name.as_str()).collect();
        assert_eq!(names.len(), rows.len(), "two rows have one name");
        for row in &rows {
            let text = std::fs::read_to_string(repository.join(&row.file)).expect(&row.name);
            assert_eq!(text.matches(&row.from).count(), 1, "{}: not once in its file", row.name);
            assert!(row.from != row.to && !row.breaks.is_empty(), "{}", row.name);
        }
    }

    #[test]
    fn a_row_is_noticed_by_its_own_test_only() {
        let failed = "test a::b ... FAILED\ntest a::c ... ok\ntest result: FAILED. 1 passed";
        assert!(judge_host(failed, "a::b").is_ok());
        assert!(judge_host(failed, "a::c").is_err_and(|why| why.to_string().contains("SURVIVED")));
        assert!(judge_host(failed, "a::d").is_err());
        let broken = judge_host("error[E0308]: mismatched types", "a::b").expect_err("not built");
        assert!(broken.to_string().contains("E0308"));
        let lines = ["test x::y ... FAILED", "test x::z ... ok"].map(str::to_owned);
        assert!(judge_kernel(&lines, "x::y").is_ok());
        assert!(judge_kernel(&lines, "x::z").is_err());
        assert!(judge_kernel(&lines, "nothing").is_err());
        let log = lines.join("\n");
        assert!(judge_program(&log, "x::y").is_ok());
        assert!(judge_program(&log, "x::z").is_err_and(|why| why.to_string().contains("SURVIVED")));
        assert!(judge_program(&log, "nothing").is_err());
        assert!(judge_program("limen: panic: shadow stack", "x::z").is_ok());
    }

    #[test]
    fn a_command_that_ends_has_said_both() {
        let said = output(Command::new("sh").args(["-c", "echo a; echo b >&2"])).expect("runs");
        assert_eq!(said, "a\nb\n");
    }
}
