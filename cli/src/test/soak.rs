//! The soak level: the programs of `guest/apps.toml` again and again in one machine with the most
//! CPUs, for as long as `--time` says, and twice at least. What each prints is judged as in `apps`,
//! and none may leave anything in the kernel's accounts, nor may the memory in use grow.
//!
//! The other side, which runs them and reads the accounts, is `guest/tests/src/soak.rs`; the form
//! of what both say to each other is described there.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write as _};
use std::process::{Command, Stdio};

use super::apps::manifest::{App, SEARCH};
use super::apps::{self, Ran};
use super::watch::Running;
use super::{Context, Summary, guest};
use crate::Error;

/// Of the machine: as much as the program needs that needs most, and room for what is cached.
const MEMORY: &str = "3G";
/// Beyond the time that was asked for: two rounds take so long on a small host at most.
const SLACK_S: u64 = 3600;
/// Frames of memory that may be in use beyond those behind the first round: see the room that each
/// program has in `guest/tests/src/accounts.rs`.
const FRAMES_ROOM: i64 = 2048;

/// What went wrong, by program.
type Faults = BTreeMap<String, BTreeSet<String>>;

pub(super) fn run(context: &Context) -> Result<Summary, Error> {
    let (apps, skipped) = apps::wanted(context)?;
    let mut summary = Summary { skipped, ..Summary::default() };
    let mut rows = BTreeMap::new();
    for app in apps {
        match apps::on_host(&app).or_else(|_| apps::on_host(&app)) {
            Ok(host) => drop(rows.insert(app.name.clone(), (app, host))),
            Err(why) => {
                failed!("app {} on the host ... FAILED: {why}", app.name);
                summary.failed += 1;
            }
        }
    }
    if rows.is_empty() {
        return Ok(summary);
    }
    let mut heard = Heard { rows: &rows, faults: Faults::new(), rounds: Vec::new() };
    let status = in_vm(context, &mut heard)?;
    let Heard { mut faults, rounds, .. } = heard;
    let mut whole = |why: String| faults.entry("the machine".to_owned()).or_default().insert(why);
    if status != Some(0) || rounds.len() < 2 {
        whole(format!("it ended with {status:?} in round {}", rounds.len() + 1));
    }
    if let [first, .., last] = rounds[..]
        && last > first + FRAMES_ROOM
    {
        whole(format!("{first} frames were in use behind the first round, {last} at the end"));
    }
    for (name, all) in &faults {
        all.iter().for_each(|why| failed!("soak {name} ... FAILED: {why}"));
    }
    summary.failed += faults.len();
    summary.passed = rows.keys().filter(|name| !faults.contains_key(*name)).count();
    Ok(summary)
}

/// Runs all in one machine, and hears what it says; its status.
fn in_vm(context: &Context, heard: &mut Heard<'_>) -> Result<Option<i32>, Error> {
    let program = guest::build(context)?;
    let most = context.smp.iter().max().copied().unwrap_or(1);
    let seconds = context.time.as_secs();
    let mut child = Command::new(&context.limen)
        .args(["run", "--memory", MEMORY, "--smp", &most.to_string(), "--cwd", "/tmp"])
        .args(["--timeout", &(seconds + SLACK_S).to_string(), "--"])
        .arg(program)
        .args(["soak", "--seconds", &seconds.to_string()])
        .env("PATH", SEARCH)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let list = list(heard.rows.values().map(|(app, _)| app));
    child.stdin.take().ok_or("no standard input")?.write_all(&list)?;
    let mut from = BufReader::new(child.stdout.take().ok_or("no standard output")?);
    let mut line = String::new();
    loop {
        line.clear();
        let _running = Running::begin(&format!("soak, round {}", heard.rounds.len() + 1));
        if from.read_line(&mut line)? == 0 {
            break;
        }
        if heard.hear(line.trim_end_matches('\n'), &mut from)?.is_none() {
            return Err(format!("soak: the machine said {line:?}").into());
        }
    }
    Ok(child.wait()?.code())
}

/// The programs, as the machine reads them.
fn list<'a>(apps: impl Iterator<Item = &'a App>) -> Vec<u8> {
    let mut list = Vec::new();
    for app in apps {
        let count = app.run.len().to_string();
        let head = [&app.name, app.stdin.as_deref().unwrap_or_default(), &count];
        for field in head.into_iter().chain(app.run.iter().map(String::as_str)) {
            list.extend_from_slice(field.as_bytes());
            list.push(0);
        }
    }
    list
}

/// What the machine said so far.
struct Heard<'a> {
    rows: &'a BTreeMap<String, (App, Ran)>,
    faults: Faults,
    /// Frames in use at the end of each.
    rounds: Vec<i64>,
}

impl Heard<'_> {
    /// Judges a line and the bytes that follow it; None for a line that is none.
    fn hear(&mut self, line: &str, from: &mut impl Read) -> Result<Option<()>, Error> {
        let mut words = line.splitn(3, ' ');
        let (Some(what), Some(name), Some(rest)) = (words.next(), words.next(), words.next())
        else {
            return Ok(None);
        };
        let round = self.rounds.len() + 1;
        match what {
            "ran" => {
                let numbers: Vec<i64> = rest.split(' ').flat_map(str::parse).collect();
                let ([status, out, complaints], Some((app, host))) =
                    (numbers.as_slice(), self.rows.get(name))
                else {
                    return Ok(None);
                };
                let mut text = |len: i64| -> Result<String, Error> {
                    let mut bytes = vec![0; usize::try_from(len)?];
                    from.read_exact(&mut bytes)?;
                    Ok(String::from_utf8_lossy(&bytes).into_owned())
                };
                let status = i32::try_from(*status)?;
                let got = Ran { status, stdout: text(*out)?, stderr: text(*complaints)? };
                if let Err(why) = apps::judge(app, host, &got) {
                    self.fault(name, format!("round {round}: {why}"));
                }
            }
            "left" => self.fault(name, format!("it leaves {rest}")),
            "round" => {
                let Some(frames) = rest.split(' ').nth(1).and_then(|text| text.parse().ok()) else {
                    return Ok(None);
                };
                tell!("soak: round {round} ended after {rest} frames in use");
                self.rounds.push(frames);
            }
            _ => return Ok(None),
        }
        Ok(Some(()))
    }

    fn fault(&mut self, name: &str, why: String) {
        self.faults.entry(name.to_owned()).or_default().insert(why);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows() -> BTreeMap<String, (App, Ran)> {
        let text = include_str!("../../../guest/apps.toml");
        let all = apps::manifest::Manifest::parse(text).expect("guest/apps.toml is well formed");
        let app = all.app.into_iter().find(|app| app.name == "tr-stdin").expect("an entry");
        let host = Ran { status: 0, stdout: "HELLO\n".to_owned(), stderr: String::new() };
        BTreeMap::from([(app.name.clone(), (app, host))])
    }

    #[test]
    fn what_a_machine_says_is_judged() {
        let rows = rows();
        let mut heard = Heard { rows: &rows, faults: Faults::new(), rounds: Vec::new() };
        let mut hear = |line: &str, bytes: &str| {
            heard.hear(line, &mut bytes.as_bytes()).map(|heard| heard.is_some()).unwrap_or(false)
        };
        assert!(hear("ran tr-stdin 0 6 2", "HELLO\nno"));
        assert!(hear("round 1 20 5000", ""));
        for bad in ["ran tr-stdin 0 6 9", "ran nobody 0 0 0", "ran tr-stdin 0 0", "told a b", "x"] {
            assert!(!hear(bad, "HELLO\n"), "{bad}");
        }
        assert!(hear("ran tr-stdin 0 6 0", "hello\n"));
        assert!(hear("left tr-stdin pipes +1", ""));
        assert_eq!(heard.rounds, [5000]);
        let faults = &heard.faults["tr-stdin"];
        assert!(faults.contains("it leaves pipes +1"));
        assert!(faults.iter().any(|why| why.starts_with("round 2: stdout")), "{faults:?}");
    }

    #[test]
    fn a_list_has_all_words() {
        let rows = rows();
        let list = list(rows.values().map(|(app, _)| app));
        let fields: Vec<&[u8]> = list.strip_suffix(&[0]).unwrap().split(|b| *b == 0).collect();
        let app = &rows["tr-stdin"].0;
        assert_eq!(fields[0], b"tr-stdin");
        assert_eq!(fields[1], app.stdin.as_ref().unwrap().as_bytes());
        assert_eq!(fields.len(), 3 + app.run.len());
    }
}
