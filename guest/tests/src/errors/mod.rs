//! Every documented error: calls, each provoked in each way its arguments offer, and the answer
//! that Linux gave.
//!
//! Why it is hard: an error is a promise (programs probe with calls that must fail, and choose by
//! errno), there are thousands, and the manual's ERRORS lists say neither which comes first nor
//! what each kind of object answers. So the rows are made: a call with good arguments (`files.rs`,
//! `places.rs`, `sockets.rs`, `processes.rs`), of which one at a time is replaced by each wrong one
//! of its kind, and then two at a time by the worst. `answers.txt` has what Linux answered, written
//! by `limen-guest-tests errors` as the first process of Debian's kernel and on a newer one;
//! `errors merge` keeps what both agree about. What no replaced argument provokes stands in
//! `cases.rs`.
//!
//! A line of `answers.txt`: CALL ARGUMENT [user]: ANSWER(ROW …) …. The argument counts from 0;
//! `2+4` are the worst of both; `*` are all rows that the line does not name. The user has no
//! privileges. `gaps.txt` has the rows that Limen answers otherwise: `errors differ`. Rows whose
//! answer is a matter of how that kernel was built (PR_SET_VMA_ANON_NAME) have no line.

mod cases;
mod files;
mod fixture;
mod places;
mod processes;
mod rows;
mod sockets;

use std::collections::BTreeMap;
use std::sync::atomic::AtomicI32;
use std::sync::atomic::Ordering::SeqCst;

use crate::sc;
use crate::sys::*;
use crate::tests;
use rows::{Call, Row, Who};

tests! { "errors":
    of_files_by_descriptor, of_transfers, of_controls, of_places, of_attributes, of_sockets,
    of_memory, of_processes, of_signals_and_times, of_identities, of_queues,
    enough_rows, at_limits, of_objects, of_rights, of_mounts,
}

const ANSWERS: &str = include_str!("answers.txt");
/// Rows that Limen answers otherwise, and why.
const GAPS: &str = include_str!("gaps.txt");
/// Rows whose errno is held against Linux's, at least.
const ROWS_MIN: usize = 1500;
/// Rows of one call at most.
const ROWS_MAX: usize = 1000;
/// No row waits; one that does anyway gives EINTR after this time.
const PATIENCE_S: i64 = 5;
/// Row not yet run; row that ended its process; row that succeeded.
const UNKNOWN: i32 = -1;
const DIED: i32 = -2;
const OK: i32 = 0;

fn of_files_by_descriptor() {
    compare(files::by_descriptor);
}

fn of_transfers() {
    compare(files::transfers);
}

fn of_controls() {
    compare(files::controls);
}

fn of_places() {
    compare(places::places);
}

fn of_attributes() {
    compare(places::attributes);
}

fn of_sockets() {
    compare(sockets::sockets);
}

fn of_memory() {
    compare(processes::memory);
}

fn of_processes() {
    compare(processes::processes);
}

fn of_signals_and_times() {
    compare(processes::signals_and_times);
}

fn of_identities() {
    compare(processes::identities);
}

fn of_queues() {
    compare(files::queues);
}

fn at_limits() {
    cases::limits();
}

fn of_objects() {
    cases::objects();
}

fn of_rights() {
    cases::rights();
}

fn of_mounts() {
    cases::mounts();
}

/// All groups, for the record.
const GROUPS: [fn() -> Vec<Call>; 11] = [
    files::by_descriptor,
    files::transfers,
    files::controls,
    files::queues,
    places::places,
    places::attributes,
    sockets::sockets,
    processes::memory,
    processes::processes,
    processes::signals_and_times,
    processes::identities,
];

/// What was answered to each row of a line, in the order of the rows.
type Line = Vec<(String, String)>;

/// `errors [CALL]` prints the answers of the kernel it runs on; `errors merge FILE FILE` what two
/// such outputs agree about, as `answers.txt` has it; `errors differ FILE` which rows of an output
/// are not Linux's, as `gaps.txt` has them but for the reasons.
pub fn main(words: &[String]) -> bool {
    match words {
        [word, one, other] if word == "merge" => merge(one, other),
        [word, answers] if word == "differ" => differ(answers),
        _ => record(words.first().map_or("", String::as_str)),
    }
}

fn record(filter: &str) -> bool {
    let base = dir_in("/dev/shm");
    for group in GROUPS {
        for call in group().iter().filter(|call| call.name.contains(filter)) {
            for (label, line) in &ask(call, &base) {
                println!("{label}: {}", written(line));
            }
        }
    }
    let _ = sc!(SYS_chdir, c"/".as_ptr());
    let _ = std::fs::remove_dir_all(&base);
    true
}

fn merge(one: &str, other: &str) -> bool {
    let texts = [one, other].map(|path| std::fs::read_to_string(path).unwrap_or_default());
    let [one, other] = [parse(&texts[0]), parse(&texts[1])];
    println!("# What Linux answers (mod.rs). Of rows behind `?` it has no one answer.");
    for group in GROUPS {
        for call in group() {
            for (label, rows) in lines_of(&call) {
                let agreed = |row: &String| {
                    let answer = expected_of(&one, &label, row);
                    let also = expected_of(&other, &label, row);
                    let answer = answer.filter(|_| answer == also);
                    // Who waits or dies gives no errno.
                    let answer = answer.filter(|answer| !["EINTR", "died"].contains(answer));
                    (row.clone(), answer.unwrap_or(NO_ANSWER).to_owned())
                };
                println!("{label}: {}", written(&rows.iter().map(agreed).collect()));
            }
        }
    }
    true
}

fn differ(path: &str) -> bool {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let (linux, other) = (parse(ANSWERS), parse(&text));
    for call in GROUPS.iter().flat_map(|group| group()) {
        let mut all: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (label, rows) in lines_of(&call) {
            let line = label.strip_suffix(" user").unwrap_or(&label);
            let names = all.entry(line.to_owned()).or_default();
            for row in rows {
                let wanted = expected_of(&linux, &label, &row);
                let got = expected_of(&other, &label, &row);
                if wanted.is_some() && got.is_some() && wanted != got && !names.contains(&row) {
                    names.push(row);
                }
            }
        }
        for (line, rows) in all.iter().filter(|(_, rows)| !rows.is_empty()) {
            println!("{line}({})", rows.join(" "));
        }
    }
    true
}

/// The lines of a call, and their rows.
fn lines_of(call: &Call) -> BTreeMap<String, Vec<String>> {
    let mut lines: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for who in call.who.each() {
        for row in call.rows() {
            lines.entry(label(call, &row, *who)).or_default().push(row.name);
        }
    }
    lines
}

fn label(call: &Call, row: &Row, who: Who) -> String {
    let user = if who == Who::User { " user" } else { "" };
    format!("{} {}{user}", call.name, row.axis)
}

/// Runs the calls of a group, and fails with each row that Linux answered otherwise.
fn compare(group: fn() -> Vec<Call>) {
    sc!(SYS_geteuid).is(0);
    let expected = parse(ANSWERS);
    let is_limen = std::fs::exists("/proc/limen").unwrap_or(false);
    let gaps = if is_limen { gaps() } else { Vec::new() };
    let base = dir_in("/dev/shm");
    let mut differing = Vec::new();
    for call in group() {
        for (label, line) in ask(&call, &base) {
            for (row, answer) in line {
                let linux = expected_of(&expected, &label, &row);
                if gaps.iter().any(|gap| gap.is_about(&label, &row)) {
                    continue;
                }
                if linux.is_some_and(|linux| linux != answer) {
                    differing
                        .push(format!("{label} {row}: {answer}, Linux {}", linux.unwrap_or("")));
                }
            }
        }
    }
    let _ = sc!(SYS_chdir, c"/".as_ptr());
    let count = differing.len();
    assert!(differing.is_empty(), "{count} rows differ:\n{}", differing.join("\n"));
}

/// The table holds as many errors as it promises, each once, and no line for no call.
fn enough_rows() {
    let expected = parse(ANSWERS);
    let lines = ANSWERS.lines().filter(|line| !line.starts_with('#')).count();
    assert_eq!(lines, expected.len(), "a line stands twice, or is none");
    let (mut errors, mut labels) = (0, 0);
    for call in GROUPS.iter().flat_map(|group| group()) {
        for (label, rows) in lines_of(&call) {
            labels += usize::from(expected.contains_key(label.as_str()));
            let answers = rows.iter().filter_map(|row| expected_of(&expected, &label, row));
            errors += answers.filter(|answer| answer.starts_with('E')).count();
        }
    }
    assert_eq!(labels, lines, "a line is about no call");
    assert!(errors >= ROWS_MIN, "{errors} rows with an errno");
}

/// The answer of a row without one: the versions of Linux do not agree.
const NO_ANSWER: &str = "?";
/// All rows of a line that are not named.
const OTHERS: &str = "*";
/// From so many rows on the most frequent answer is that of the others.
const OTHERS_MIN: usize = 4;

/// Rows that are not Linux's yet: lines of `answers.txt` that begin so, and some of their rows.
struct Gap {
    line: &'static str,
    rows: Vec<&'static str>,
}

impl Gap {
    fn is_about(&self, label: &str, row: &str) -> bool {
        label.strip_suffix(" user").unwrap_or(label) == self.line
            && (self.rows == [OTHERS] || self.rows.contains(&row))
    }
}

/// Reads `gaps.txt`: LINE(ROW …): REASON.
fn gaps() -> Vec<Gap> {
    let lines = GAPS.lines().filter(|line| !line.starts_with('#'));
    let gap = |line: &'static str| {
        let (what, reason) = line.split_once("): ").expect("LINE(ROW …): REASON");
        let (line, rows) = what.split_once('(').expect("LINE(ROW …): REASON");
        assert!(!reason.is_empty(), "{line}: no reason");
        Gap { line, rows: rows.split(' ').collect() }
    };
    lines.map(gap).collect()
}

/// Answers by line, by row.
type Table<'a> = BTreeMap<&'a str, BTreeMap<&'a str, &'a str>>;

/// Reads `answers.txt` or what it is made from.
fn parse(text: &str) -> Table<'_> {
    let mut all = BTreeMap::new();
    for line in text.lines().map(str::trim_end).filter(|line| !line.starts_with('#')) {
        let Some((label, answers)) = line.split_once(": ") else { continue };
        let mut rows = BTreeMap::new();
        for group in answers.split_terminator(')') {
            let Some((answer, names)) = group.trim_start().split_once('(') else { continue };
            rows.extend(names.split(' ').map(|name| (name, answer)));
        }
        all.insert(label, rows);
    }
    all
}

fn expected_of<'a>(table: &Table<'a>, label: &str, row: &str) -> Option<&'a str> {
    let line = table.get(label)?;
    let answer = line.get(row).or_else(|| line.get(OTHERS)).copied();
    answer.filter(|answer| *answer != NO_ANSWER)
}

fn written(line: &Line) -> String {
    let mut groups: Vec<(&str, Vec<&str>)> = Vec::new();
    for (row, answer) in line {
        match groups.iter_mut().find(|(known, _)| known == answer) {
            Some((_, rows)) => rows.push(row),
            None => groups.push((answer, vec![row])),
        }
    }
    groups.sort_by_key(|(_, rows)| rows.len());
    if let Some((_, rows)) = groups.last_mut().filter(|(_, rows)| rows.len() >= OTHERS_MIN) {
        *rows = vec![OTHERS];
    }
    let groups = groups.iter().map(|(answer, rows)| format!("{answer}({})", rows.join(" ")));
    groups.collect::<Vec<_>>().join(" ")
}

/// The answers to all rows of a call, by line.
fn ask(call: &Call, base: &str) -> BTreeMap<String, Line> {
    let rows = call.rows();
    assert!(rows.len() <= ROWS_MAX, "{}: {} rows", call.name, rows.len());
    let mut lines: BTreeMap<String, Line> = BTreeMap::new();
    for who in call.who.each() {
        for (row, answer) in rows.iter().zip(answers(call, &rows, *who, base)) {
            let line = lines.entry(label(call, row, *who)).or_default();
            line.push((row.name.clone(), answer));
        }
    }
    lines
}

/// The answers to the rows: processes run them one after the other, each as many as nothing has
/// changed for the next one.
fn answers(call: &Call, rows: &[Row], who: Who, base: &str) -> Vec<String> {
    let words = words();
    words[..rows.len()].iter().for_each(|word| word.store(UNKNOWN, SeqCst));
    let mut next = 0;
    while next < rows.len() {
        if next == 0 || call.changes() {
            fixture::folder(base);
        }
        let child = fork(|| {
            run_rows(call, &rows[next..], who, &words[next..]);
            0
        });
        wait(child);
        let known = words[next..rows.len()].iter().take_while(|w| w.load(SeqCst) != UNKNOWN);
        let done = known.count();
        next += done;
        let is_over = done > 0 && call.changes() && words[next - 1].load(SeqCst) == OK;
        // Who ended without having been told to died in the next row.
        if next < rows.len() && !is_over {
            words[next].store(DIED, SeqCst);
            next += 1;
        }
    }
    let text = |value: i32| match value {
        OK => "ok".to_owned(),
        DIED => "died".to_owned(),
        errno => abi::errno::Errno::new(errno as u32).name().to_owned(),
    };
    words[..rows.len()].iter().map(|word| text(word.load(SeqCst))).collect()
}

fn run_rows(call: &Call, rows: &[Row], who: Who, words: &[AtomicI32]) {
    extern "C" fn on_alarm(_: i32) {}
    if who == Who::User {
        sc!(SYS_setgroups, 0, 0).is(0);
        sc!(SYS_setresgid, fixture::USER, fixture::USER, fixture::USER).is(0);
        sc!(SYS_setresuid, fixture::USER, fixture::USER, fixture::USER).is(0);
    }
    on_signal(SIGALRM, on_alarm as *const () as usize, 0, 0);
    on_signal(SIGPIPE, SIG_IGN, 0, 0);
    let memory = rows::Memory::new();
    for (row, word) in rows.iter().zip(words) {
        // Twice, lest it comes before the call.
        let timer = [1i64, 0, PATIENCE_S, 0];
        let _ = sc!(SYS_setitimer, ITIMER_REAL, timer.as_ptr(), 0);
        let answer = match row.call(call, &memory) {
            Ok(_) => OK,
            Err(errno) => errno,
        };
        word.store(answer, SeqCst);
        fixture::close_all();
        if answer == OK && call.changes() {
            return;
        }
    }
}

/// The answers of the rows that run, shared with the processes that run them.
fn words() -> &'static [AtomicI32; ROWS_MAX] {
    static WORDS: std::sync::OnceLock<&'static [AtomicI32; ROWS_MAX]> = std::sync::OnceLock::new();
    WORDS.get_or_init(|| {
        let flags = MAP_SHARED | MAP_ANONYMOUS;
        let at = mmap(0, 4 * ROWS_MAX, PROT_READ | PROT_WRITE, flags, -1, 0).must();
        // SAFETY: a fresh mapping of this size that is never unmapped.
        unsafe { &*(at as *const [AtomicI32; ROWS_MAX]) }
    })
}
