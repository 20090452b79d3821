//! Programs again and again in one machine: each must do what it did, and leave nothing behind.
//!
//! For whom: `limen test soak`, which sends the programs and judges what they print. Here they are
//! run one after the other, round after round. Behind each all that it started is killed, what it
//! left in the places of temporary files is removed, and the kernel's accounts are compared with
//! those from behind the first round, in which caches and tables grow to their sizes.
//!
//! What it is sent is a list of fields, each ended by a zero byte: of each program its name, its
//! standard input, how many words it has, and those. What it says: see [`Said`].

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::accounts::{self, Accounts};
use crate::sc;
use crate::sys::*;

/// Where programs leave files that are nobody's.
const PLACES: [&str; 5] = ["/tmp", "/var/tmp", "/dev/shm", "/run", "/run/lock"];
/// Longest a program may take.
const LIMIT: Duration = Duration::from_secs(120);
/// Its status then.
const TOO_LONG: i32 = 124;

struct Program {
    name: String,
    input: Vec<u8>,
    words: Vec<String>,
}

/// A line of the answer, and bytes behind it.
enum Said<'a> {
    /// `ran NAME STATUS LENGTH LENGTH`, then what it printed and what it complained of.
    Ran(&'a str, i32, &'a [u8], &'a [u8]),
    /// `left NAME WORDS`: what a program left behind, which does not go away.
    Left(&'a str, &'a str),
    /// `round NUMBER SECONDS FRAMES`: at the end of each; how many frames are in use.
    Round(u64, u64, i64),
}

impl Said<'_> {
    fn say(&self) {
        let mut out = std::io::stdout().lock();
        let result = match self {
            Said::Ran(name, status, stdout, stderr) => {
                writeln!(out, "ran {name} {status} {} {}", stdout.len(), stderr.len())
                    .and_then(|()| out.write_all(stdout))
                    .and_then(|()| out.write_all(stderr))
            }
            Said::Left(name, words) => writeln!(out, "left {name} {words}"),
            Said::Round(number, s, frames) => writeln!(out, "round {number} {s} {frames}"),
        };
        result.and_then(|()| out.flush()).expect("somebody listens");
    }
}

/// `soak [--seconds N]`, the programs on standard input. At least two rounds.
pub fn main(seconds: u64) -> bool {
    if !has_the_machine() {
        eprintln!("soak: only in a VM: it kills all processes but the first");
        return false;
    }
    sc!(SYS_prctl, PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0).is(0);
    let Some(programs) = programs() else {
        eprintln!("soak: standard input has no list of programs");
        return false;
    };
    let before: Vec<(&str, BTreeSet<PathBuf>)> =
        PLACES.iter().map(|&place| (place, entries(place))).collect();
    let begun = Instant::now();
    let mut accounts = None;
    for round in 1.. {
        for program in &programs {
            let (status, stdout, stderr) = run(program);
            Said::Ran(&program.name, status, &stdout, &stderr).say();
            before.iter().for_each(|(place, kept)| clean(place, kept));
            let left;
            (accounts, left) = accounts::settle(accounts);
            if let Some(left) = left {
                Said::Left(&program.name, &left).say();
            }
        }
        let now = Accounts::now();
        let frames = now.as_ref().map_or(0, Accounts::frames);
        Said::Round(round, begun.elapsed().as_secs(), frames).say();
        if round == 1 {
            accounts = now;
        } else if begun.elapsed().as_secs() >= seconds {
            break;
        }
    }
    true
}

fn programs() -> Option<Vec<Program>> {
    let mut list = Vec::new();
    std::io::stdin().read_to_end(&mut list).ok()?;
    let mut fields = list.strip_suffix(&[0])?.split(|&byte| byte == 0);
    let mut programs = Vec::new();
    while let Some(name) = fields.next() {
        let text = |field: &[u8]| String::from_utf8(field.to_vec()).ok();
        let input = fields.next()?.to_vec();
        let count = text(fields.next()?)?.parse().ok()?;
        let words = (0..count).map(|_| text(fields.next()?)).collect::<Option<Vec<_>>>()?;
        programs.push(Program { name: text(name)?, input, words });
    }
    (!programs.is_empty()).then_some(programs)
}

/// Status, standard output, standard error.
fn run(program: &Program) -> (i32, Vec<u8>, Vec<u8>) {
    let (first, rest) = program.words.split_first().expect("a program has a word");
    let child = Command::new(first)
        .args(rest)
        .current_dir("/tmp")
        .stdin(if program.input.is_empty() { Stdio::null() } else { Stdio::piped() })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(error) => return (127, Vec::new(), error.to_string().into_bytes()),
    };
    // Inputs are far smaller than a pipe.
    if let Some(mut to) = child.stdin.take() {
        let _ = to.write_all(&program.input);
    }
    let readers = [reader(child.stdout.take()), reader(child.stderr.take())];
    let status = wait(&mut child);
    end_all();
    let [stdout, stderr] = readers.map(|reader| reader.join().expect("a reader"));
    (status, stdout, stderr)
}

fn reader(from: Option<impl Read + Send + 'static>) -> std::thread::JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut all = Vec::new();
        let _ = from.map(|mut from| from.read_to_end(&mut all));
        all
    })
}

/// Waits for a program, and kills it and the others when it is too late.
fn wait(child: &mut Child) -> i32 {
    use std::os::unix::process::ExitStatusExt as _;
    let (ended, end) = mpsc::channel::<()>();
    let guard = std::thread::spawn(move || {
        let late = end.recv_timeout(LIMIT) == Err(mpsc::RecvTimeoutError::Timeout);
        if late {
            let _ = sc!(SYS_kill, -1i32, SIGKILL);
        }
        late
    });
    let status = child.wait();
    drop(ended);
    if guard.join().expect("a guard") {
        return TOO_LONG;
    }
    let status = status.expect("a child");
    status.code().unwrap_or(status.signal().map_or(125, |signal| 128 + signal))
}

/// Kills whatever a program started, and waits for it.
fn end_all() {
    let mut status = 0i32;
    // Who is just being started may be missed by a kill: until nobody is left.
    loop {
        let _ = sc!(SYS_kill, -1i32, SIGKILL);
        if let Err(ECHILD) = sc!(SYS_wait4, -1i32, &raw mut status, __WALL, 0) {
            return;
        }
    }
}

fn entries(place: &str) -> BTreeSet<PathBuf> {
    let Ok(entries) = std::fs::read_dir(place) else { return BTreeSet::new() };
    entries.filter_map(|entry| Some(entry.ok()?.path())).collect()
}

/// Removes what was not there before.
fn clean(place: &str, kept: &BTreeSet<PathBuf>) {
    for path in entries(place).difference(kept) {
        let _ = std::fs::remove_file(path).or_else(|_| std::fs::remove_dir_all(path));
    }
}
