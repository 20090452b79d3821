//! The apps level: the programs of `guest/apps.toml`.
//!
//! Each runs on the host first, where it must do what its entry says; then in Limen on the live
//! root at every CPU count, and packed where the entry says so, at the highest count. `--all`:
//! packed at every count, too. Where all levels run, the live root has one count for each program,
//! in turn. Packages that a row needs and this machine lacks are installed (`../packages.rs`);
//! where that cannot be, the row is skipped, by name.
//!
//! Every run in Limen also tells how it came back from its system calls: below the least share of
//! SYSRET (`LEAST_SYSRET`, or the entry's own) it has failed. The lowest shares are printed.

pub(crate) mod manifest;

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, mpsc};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use super::watch::Running;
use super::{Context, Summary, packages};
use crate::Error;
use manifest::{App, Manifest, expand, find};

/// Generous: emulation, several VMs on a small host.
const TIMEOUT_S: u32 = 120;
/// Longest for `limen run` itself, which ends the VM before.
const VM_LIMIT: Duration = Duration::from_secs(2 * TIMEOUT_S as u64);
/// Where programs start in Limen, and where they have a folder of their own each on the host: what
/// one leaves there is nobody else's, and is gone with the folder.
const CWD: &str = "/tmp";
/// Longest a program may take on the host: one that waits for something that is not there has
/// failed.
const HOST_LIMIT: Duration = Duration::from_secs(60);

/// Share of returns from system calls by SYSRET in any program.
const LEAST_SYSRET: f64 = 0.999;
/// So many returns by IRET are never too many. A handler that interrupted the program itself, not a
/// call, goes back so, and of few calls one is more than a thousandth.
const FEW_IRETS: u64 = 4;
/// How many of the lowest shares are printed.
const LOWEST_SHOWN: usize = 5;

/// Returns from system calls in one run.
#[derive(Clone, Copy, Debug)]
struct Returns {
    by_sysret: u64,
    by_iret: u64,
}

impl Returns {
    /// What the report of `limen run --json` says.
    fn from_report(text: &str) -> Option<Returns> {
        let report: serde_json::Value = serde_json::from_str(text).ok()?;
        let counter = |name| report["counters"][name].as_u64();
        // A new program's first registers are zero, RCX and R11 among them: only IRET gives it
        // those, and there is no call that it returns from.
        let by_iret = counter("exits-iret")?.saturating_sub(counter("execs")?);
        Some(Returns { by_sysret: counter("exits-sysret")?, by_iret })
    }

    fn share(self) -> f64 {
        self.by_sysret as f64 / (self.by_sysret + self.by_iret).max(1) as f64
    }

    fn judge(self, app: &App) -> Result<(), String> {
        let least = app.least_sysret.unwrap_or(LEAST_SYSRET);
        if self.share() >= least || self.by_iret <= FEW_IRETS {
            return Ok(());
        }
        let Returns { by_sysret, by_iret } = self;
        Err(format!("{by_sysret} returns by SYSRET, {by_iret} by IRET: less than {least}"))
    }
}

/// Shares of all runs, with the place of each.
type Shares = Mutex<Vec<(f64, String)>>;

/// What a run gave.
pub(super) struct Ran {
    pub(super) status: i32,
    pub(super) stdout: String,
    pub(super) stderr: String,
}

/// The programs that were asked for and are there, or can be installed; how many are not.
pub(super) fn wanted(context: &Context) -> Result<(Vec<App>, usize), Error> {
    let manifest = manifest(context)?;
    let mut wanted: Vec<App> =
        manifest.app.iter().filter(|app| context.wants(&app.name)).cloned().collect();
    packages::install(&manifest.missing(&wanted))?;
    let mut skipped = 0;
    wanted.retain(|app| {
        let missing = manifest.missing(std::slice::from_ref(app));
        if !missing.is_empty() {
            tell!("app {} ... skipped (not installed: {})", app.name, missing.join(" "));
            skipped += 1;
        }
        missing.is_empty()
    });
    Ok((wanted, skipped))
}

pub(super) fn run(context: &Context) -> Result<Summary, Error> {
    let (wanted, skipped) = wanted(context)?;
    let next = AtomicUsize::new(0);
    let total = Mutex::new(Summary { skipped, ..Summary::default() });
    let shares = Shares::default();
    std::thread::scope(|scope| {
        for _ in 0..context.jobs {
            scope.spawn(|| {
                loop {
                    let turn = next.fetch_add(1, Ordering::Relaxed);
                    let Some(app) = wanted.get(turn) else { break };
                    let summary = one(context, app, turn, &shares);
                    if let Ok(mut total) = total.lock() {
                        *total += summary;
                    }
                }
            });
        }
    });
    let total = total.into_inner().map_err(|_| "a runner thread died")?;
    let mut shares = shares.into_inner().map_err(|_| "a runner thread died")?;
    shares.sort_by(|a, b| a.0.total_cmp(&b.0));
    for (share, place) in shares.iter().take(LOWEST_SHOWN) {
        tell!("SYSRET in {:.3} % of returns from system calls: {place}", share * 100.0);
    }
    Ok(total)
}

fn manifest(context: &Context) -> Result<Manifest, Error> {
    let text = std::fs::read_to_string(context.repository.join(manifest::PATH))?;
    Ok(Manifest::parse(&text)?)
}

pub(super) fn names(context: &Context) -> Result<Vec<String>, Error> {
    Ok(manifest(context)?.app.into_iter().map(|app| app.name).collect())
}

/// The CPU counts for the live root: among all levels, each program has its turn at one count.
fn counts(context: &Context, turn: usize) -> &[u8] {
    if context.all || context.is_named {
        return &context.smp;
    }
    let at = turn % context.smp.len().max(1);
    context.smp.get(at..=at).unwrap_or_default()
}

/// A new folder in /tmp, with the rights of /tmp: some programs become another user.
fn folder_on_host() -> std::io::Result<tempfile::TempDir> {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::Builder::new().prefix("limen-app-").tempdir_in(CWD)?;
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o1777))?;
    Ok(folder)
}

/// Runs one program everywhere it is to run.
fn one(context: &Context, app: &App, turn: usize, shares: &Shares) -> Summary {
    let mut summary = Summary::default();
    let started = Instant::now();
    // The host may be short of something for a moment; Limen gets one chance only.
    let host = match on_host(app).or_else(|_| on_host(app)) {
        Ok(host) => host,
        Err(why) => {
            failed!("app {} on the host ... FAILED: {why}", app.name);
            summary.failed = 1;
            return summary;
        }
    };
    let most = context.smp.iter().max();
    for &smp in &context.smp {
        for pack in [false, true] {
            // One count shows that everything was packed.
            let wanted = match pack {
                false => counts(context, turn).contains(&smp),
                true => app.pack && (context.all || Some(&smp) == most),
            };
            if !wanted {
                continue;
            }
            let place = format!("smp {smp} {}", if pack { "packed" } else { "live" });
            match in_vm(context, app, smp, pack, &host, shares) {
                Ok(()) => summary.passed += 1,
                Err(why) => {
                    summary.failed += 1;
                    failed!("app {} at {place} ... FAILED: {why}", app.name);
                }
            }
        }
    }
    if summary.failed == 0 {
        tell!("app {} ... ok ({:.1} s)", app.name, started.elapsed().as_secs_f64());
    }
    summary
}

/// Runs and judges one program here.
pub(super) fn on_host(app: &App) -> Result<Ran, String> {
    let _running = Running::begin(&format!("app {} on the host", app.name));
    let folder = folder_on_host().map_err(|error| error.to_string())?;
    let mut command = Command::new(&app.run[0]);
    command.args(&app.run[1..]).current_dir(folder.path());
    let host = ran(&mut command, app, HOST_LIMIT).map_err(|error| error.to_string())?;
    judge(app, &host, &host).map(|()| host)
}

/// Runs and judges one program in Limen.
fn in_vm(
    context: &Context,
    app: &App,
    smp: u8,
    pack: bool,
    host: &Ran,
    shares: &Shares,
) -> Result<(), String> {
    let place = format!("{} at smp {smp}{}", app.name, if pack { " packed" } else { "" });
    let _running = Running::begin(&format!("app {place}"));
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let report = folder.path().join("report.json");
    let mut command = vm(context, app, smp, pack, &report);
    let got = ran(&mut command, app, VM_LIMIT).map_err(|error| error.to_string());
    let text = std::fs::read_to_string(&report).unwrap_or_default();
    judge(app, host, &got?)?;
    let returns = Returns::from_report(&text).ok_or("the report does not tell returns")?;
    if let Ok(mut shares) = shares.lock() {
        shares.push((returns.share(), place));
    }
    returns.judge(app)
}

fn vm(context: &Context, app: &App, smp: u8, pack: bool, report: &Path) -> Command {
    let mut command = Command::new(&context.limen);
    let memory = app.memory.as_deref().unwrap_or("1G");
    command.args(["run", "--memory", memory, "--smp", &smp.to_string()]);
    command.args(["--timeout", &TIMEOUT_S.to_string(), "--cwd", CWD]);
    command.arg(format!("--json={}", report.display()));
    if pack {
        command.arg("--pack");
        let programs = app.programs.iter().filter_map(|name| find(name));
        let folders = app.folders.iter().flat_map(|folder| expand(folder));
        for path in programs.chain(folders) {
            command.arg(if path.is_dir() { "--dir" } else { "--file" }).arg(path);
        }
    }
    command.arg("--").args(&app.run);
    command
}

/// Runs a program and all that it starts; whoever has not ended after `limit` is killed.
fn ran(command: &mut Command, app: &App, limit: Duration) -> Result<Ran, Error> {
    use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
    let mut child = command
        .env("PATH", manifest::SEARCH)
        .process_group(0)
        .stdin(if app.stdin.is_some() { Stdio::piped() } else { Stdio::null() })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    // Inputs are far smaller than a pipe, so writing first cannot block for ever.
    if let (Some(mut to), Some(text)) = (child.stdin.take(), &app.stdin) {
        // A program may end without reading; that is judged by its output.
        let _ = to.write_all(text.as_bytes());
    }
    let group = Pid::from_child(&child);
    let (ended, end) = mpsc::channel();
    let reader = std::thread::spawn(move || {
        let output = child.wait_with_output();
        // Nobody waits any more if time was up.
        let _ = ended.send(());
        output
    });
    let in_time = end.recv_timeout(limit).is_ok();
    if !in_time {
        // It fails if all have ended just now.
        let _ = kill_process_group(group, Signal::KILL);
    }
    let output = reader.join().map_err(|_| "the reading thread died")??;
    if !in_time {
        return Err(format!("it did not end within {} s", limit.as_secs()).into());
    }
    let status = output.status;
    let of_signal = status.signal().map_or(125, |signal| 128 + signal);
    Ok(Ran {
        status: status.code().unwrap_or(of_signal),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}

/// The first difference from what the entry and the host say.
pub(super) fn judge(app: &App, host: &Ran, got: &Ran) -> Result<(), String> {
    let fail = |what: String| {
        let last: Vec<&str> = got.stderr.lines().rev().take(3).collect();
        Err(format!("{what}; stderr ends {last:?}"))
    };
    if got.status != app.status {
        return fail(format!("status {}, expected {}", got.status, app.status));
    }
    let want = if app.same_as_host { Some(&host.stdout) } else { app.stdout.as_ref() };
    if let Some(want) = want
        && *want != got.stdout
    {
        return fail(format!("stdout {:.300?}, expected {want:.300?}", got.stdout));
    }
    if let Some(regex) = &app.regex {
        let whole = format!("^(?:{regex})$");
        let regex = regex_lite::Regex::new(&whole).map_err(|error| error.to_string())?;
        if !regex.is_match(&got.stdout) {
            return fail(format!("stdout {:.300?} does not match {whole}", got.stdout));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Vec<App> {
        let text = include_str!("../../../../guest/apps.toml");
        Manifest::parse(text).expect("guest/apps.toml is well formed").app
    }

    #[test]
    fn who_waits_for_ever_on_the_host_has_failed() {
        let mut app = table().into_iter().find(|app| app.name == "tr-stdin").expect("an entry");
        app.stdin = None;
        let mut command = Command::new("sh");
        // The grandchild holds the output open: it must go, too.
        command.args(["-c", "sleep 1000 & wait"]);
        let began = Instant::now();
        let error = ran(&mut command, &app, Duration::from_millis(50)).err().expect("too long");
        assert!(error.to_string().contains("did not end"), "{error}");
        assert!(began.elapsed() < Duration::from_secs(100));
    }

    #[test]
    fn a_low_share_of_sysret_is_told() {
        let mut app = table().into_iter().find(|app| app.name == "tr-stdin").expect("an entry");
        let text = r#"{"counters":{"exits-sysret":990,"exits-iret":17,"execs":7}}"#;
        let returns = Returns::from_report(text).expect("both are there");
        assert_eq!(returns.by_iret, 10);
        assert!(returns.judge(&app).is_err());
        app.least_sysret = Some(0.99);
        assert!(returns.judge(&app).is_ok());
        app.least_sysret = None;
        assert!(Returns { by_sysret: 99, by_iret: 1 }.judge(&app).is_ok());
        assert!(Returns::from_report("{}").is_none());
    }

    #[test]
    fn a_wrong_status_or_output_is_told() {
        let app = table().into_iter().find(|app| app.name == "tr-stdin").expect("an entry");
        let ran =
            |status, stdout: &str| Ran { status, stdout: stdout.into(), stderr: String::new() };
        let host = ran(0, "HELLO\n");
        assert!(judge(&app, &host, &ran(0, "HELLO\n")).is_ok());
        assert!(judge(&app, &host, &ran(1, "HELLO\n")).is_err());
        assert!(judge(&app, &host, &ran(0, "hello\n")).is_err());
    }
}
