//! The apps level: the programs of `guest/apps.toml`.
//!
//! Each runs on the host first, where it must do what its entry says; then in Limen on the live
//! root at every CPU count, and packed where the entry says so, at the highest count. `--all`:
//! packed at every count, too. Where all levels run, the live root has one count for each program,
//! in turn. A program that is not installed is named with its package and counts as failed;
//! `LIMEN_INSTALL=1` lets root install it with apt.

use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use serde::Deserialize;

use super::{Context, Summary};
use crate::Error;

/// Generous: emulation, several VMs on a small host.
const TIMEOUT_S: u32 = 120;
/// Where programs start, here and there.
const CWD: &str = "/tmp";
/// Where Debian's packages put programs: what else a caller's PATH leads to is not what is tested.
const PATH: &str = "/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/games";

#[derive(Deserialize)]
struct Table {
    app: Vec<App>,
}

/// One entry of `guest/apps.toml`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct App {
    name: String,
    package: String,
    run: Vec<String>,
    stdin: Option<String>,
    stdout: Option<String>,
    regex: Option<String>,
    #[serde(default)]
    same_as_host: bool,
    #[serde(default)]
    status: i32,
    #[serde(default)]
    pack: bool,
    memory: Option<String>,
    /// What else is packed: programs by name, and folders; a `*` at the end stands for any rest.
    #[serde(default)]
    programs: Vec<String>,
    #[serde(default)]
    folders: Vec<String>,
}

/// What a run gave.
struct Ran {
    status: i32,
    stdout: String,
    stderr: String,
}

pub(super) fn run(context: &Context) -> Result<Summary, Error> {
    let text = std::fs::read_to_string(context.repository.join("guest/apps.toml"))?;
    let apps: Vec<App> = toml::from_str::<Table>(&text)?.app;
    let wanted: Vec<App> = apps.into_iter().filter(|app| context.wants(&app.name)).collect();
    install(&wanted)?;
    let next = AtomicUsize::new(0);
    let total = Mutex::new(Summary::default());
    std::thread::scope(|scope| {
        for _ in 0..context.jobs {
            scope.spawn(|| {
                loop {
                    let turn = next.fetch_add(1, Ordering::Relaxed);
                    let Some(app) = wanted.get(turn) else { break };
                    let summary = one(context, app, turn);
                    if let Ok(mut total) = total.lock() {
                        *total += summary;
                    }
                }
            });
        }
    });
    let total = total.into_inner().map_err(|_| "a runner thread died")?;
    Ok(total)
}

fn is_installed(app: &App) -> bool {
    find(&app.run[0]).is_some()
}

fn find(program: &str) -> Option<PathBuf> {
    std::env::split_paths(PATH).map(|dir| dir.join(program)).find(|path| path.exists())
}

/// What a path with or without `*` at its end stands for.
fn expand(path: &str) -> Vec<PathBuf> {
    let Some(start) = path.strip_suffix('*') else { return vec![path.into()] };
    let parent = Path::new(start).parent().unwrap_or(Path::new("/"));
    let entries = std::fs::read_dir(parent).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path()).filter(|path| path.exists());
    paths.filter(|path| path.to_string_lossy().starts_with(start)).collect()
}

fn install(apps: &[App]) -> Result<(), Error> {
    let mut missing: Vec<&str> =
        apps.iter().filter(|app| !is_installed(app)).map(|app| app.package.as_str()).collect();
    missing.sort_unstable();
    missing.dedup();
    if missing.is_empty() {
        return Ok(());
    }
    println!("not installed: {}", missing.join(" "));
    let forbidden = std::env::var_os("LIMEN_INSTALL").is_some_and(|value| value == "0");
    let is_root = std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0);
    if is_root && !forbidden {
        println!("installing them with apt-get (LIMEN_INSTALL=0 forbids it)");
        Command::new("apt-get").args(["install", "-y", "-q"]).args(missing).status()?;
    }
    Ok(())
}

/// The CPU counts for the live root: among all levels, each program has its turn at one count.
fn counts(context: &Context, turn: usize) -> &[u8] {
    if context.all || context.is_named {
        return &context.smp;
    }
    let at = turn % context.smp.len().max(1);
    context.smp.get(at..=at).unwrap_or_default()
}

/// Runs one program everywhere it is to run.
fn one(context: &Context, app: &App, turn: usize) -> Summary {
    let mut summary = Summary::default();
    if !is_installed(app) {
        println!("app {} ... FAILED (package {} is missing)", app.name, app.package);
        summary.failed = 1;
        return summary;
    }
    let started = Instant::now();
    // The host may be short of something for a moment; Limen gets one chance only.
    let host = match on_host(app).or_else(|_| on_host(app)) {
        Ok(host) => host,
        Err(why) => {
            println!("app {} on the host ... FAILED: {why}", app.name);
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
            let got = ran(&mut vm(context, app, smp, pack), app)
                .map_err(|error| error.to_string())
                .and_then(|got| judge(app, &host, &got));
            match got {
                Ok(()) => summary.passed += 1,
                Err(why) => {
                    summary.failed += 1;
                    println!("app {} at {place} ... FAILED: {why}", app.name);
                }
            }
        }
    }
    if summary.failed == 0 {
        println!("app {} ... ok ({:.1} s)", app.name, started.elapsed().as_secs_f64());
    }
    summary
}

fn on_host(app: &App) -> Result<Ran, String> {
    let mut command = Command::new(&app.run[0]);
    command.args(&app.run[1..]).current_dir(CWD);
    let host = ran(&mut command, app).map_err(|error| error.to_string())?;
    judge(app, &host, &host).map(|()| host)
}

fn vm(context: &Context, app: &App, smp: u8, pack: bool) -> Command {
    let mut command = Command::new(&context.limen);
    let memory = app.memory.as_deref().unwrap_or("1G");
    command.args(["run", "--memory", memory, "--smp", &smp.to_string()]);
    command.args(["--timeout", &TIMEOUT_S.to_string(), "--cwd", CWD]);
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

fn ran(command: &mut Command, app: &App) -> Result<Ran, Error> {
    use std::os::unix::process::ExitStatusExt as _;
    let mut child = command
        .env("PATH", PATH)
        .stdin(if app.stdin.is_some() { Stdio::piped() } else { Stdio::null() })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    // Inputs are far smaller than a pipe, so writing first cannot block for ever.
    if let (Some(mut to), Some(text)) = (child.stdin.take(), &app.stdin) {
        // A program may end without reading; that is judged by its output.
        let _ = to.write_all(text.as_bytes());
    }
    let output = child.wait_with_output()?;
    let status = output.status;
    let of_signal = status.signal().map_or(125, |signal| 128 + signal);
    Ok(Ran {
        status: status.code().unwrap_or(of_signal),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}

/// The first difference from what the entry and the host say.
fn judge(app: &App, host: &Ran, got: &Ran) -> Result<(), String> {
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
        let text = include_str!("../../../guest/apps.toml");
        toml::from_str::<Table>(text).expect("guest/apps.toml is well formed").app
    }

    #[test]
    fn every_entry_has_one_expectation_and_a_name_of_its_own() {
        let apps = table();
        let mut names: Vec<&str> = apps.iter().map(|app| app.name.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), apps.len());
        for app in &apps {
            let count = usize::from(app.stdout.is_some())
                + usize::from(app.regex.is_some())
                + usize::from(app.same_as_host);
            assert_eq!(count, 1, "{}", app.name);
            assert!(!app.run.is_empty() && !app.package.is_empty(), "{}", app.name);
        }
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
