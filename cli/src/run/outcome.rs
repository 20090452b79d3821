//! How a run ended, its exit status, and the report that `--json` prints.
//!
//! Neighbours: `vm.rs` finds out, `args.rs` documents the numbers.

use std::collections::BTreeMap;
use std::time::Duration;

use formats::control::{LineBuffer, SyscallCount, ToHost, TraceEvent};
use serde::Serialize;

use super::trace;
use crate::args::RunArgs;
use crate::words;

/// The program ended with 0, but what it wrote could not be written.
pub(crate) const STATUS_OUTPUT_LOST: u8 = 1;
/// `--timeout` or `--limit` ended the VM.
pub(crate) const STATUS_TIMEOUT: u8 = 124;
/// The kernel panicked, or the server of the live root ended.
pub(crate) const STATUS_PANIC: u8 = 125;
/// The VM did not boot, or execve(2) refused the program.
pub(crate) const STATUS_BOOT_FAILURE: u8 = 126;
/// The program does not exist.
pub(crate) const STATUS_NOT_FOUND: u8 = 127;
/// Added to a signal's number.
const STATUS_SIGNAL_BASE: u8 = 128;
/// SIGINT: what `Ctrl-A x` reports.
const SIGINT: u8 = 2;

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The program exited.
    Exit(u8),
    /// A signal ended the program.
    Signaled(u8),
    /// The program's file does not exist.
    NotFound(Vec<u8>),
    /// It exists, but cannot be executed, for this reason.
    NotExecutable(Vec<u8>, String),
    /// The kernel log says so.
    Panic,
    /// No program ran, or the VM ended without a word. The text says what is known.
    BootFailure(String),
    /// `--timeout`, after boot.
    Timeout(Duration),
    /// `--limit`: what was reached.
    Limit(String),
    /// The server of the live root ended before the VM, for this reason.
    RootLost(String),
    /// `Ctrl-A x`.
    Quit,
    /// The second of this signal killed the VM.
    Killed(u8),
}

impl Outcome {
    /// What the guest's last message means.
    pub(crate) fn from_last_message(message: &ToHost) -> Option<Self> {
        match message {
            ToHost::Exit { code } => Some(Self::Exit(*code)),
            ToHost::Signaled { number } => Some(Self::Signaled(*number)),
            ToHost::NotFound { path } => Some(Self::NotFound(path.clone())),
            ToHost::NotExecutable { errno, path } => {
                let reason = std::io::Error::from_raw_os_error(i32::from(*errno));
                Some(Self::NotExecutable(path.clone(), words::plain(&reason.to_string())))
            }
            _ => None,
        }
    }

    /// The exit status of `limen run`.
    pub(crate) fn status(&self) -> u8 {
        match self {
            Self::Exit(code) => *code,
            Self::Signaled(number) | Self::Killed(number) => {
                STATUS_SIGNAL_BASE.saturating_add(*number)
            }
            Self::NotFound(_) => STATUS_NOT_FOUND,
            Self::NotExecutable(..) | Self::BootFailure(_) => STATUS_BOOT_FAILURE,
            Self::Panic | Self::RootLost(_) => STATUS_PANIC,
            Self::Timeout(_) | Self::Limit(_) => STATUS_TIMEOUT,
            Self::Quit => STATUS_SIGNAL_BASE + SIGINT,
        }
    }

    /// One word for programs.
    pub(crate) fn word(&self) -> &'static str {
        match self {
            Self::Exit(_) => "exit",
            Self::Signaled(_) => "signal",
            Self::NotFound(_) => "not-found",
            Self::NotExecutable(..) => "not-executable",
            Self::Panic => "panic",
            Self::BootFailure(_) => "boot-failure",
            Self::Timeout(_) => "timeout",
            Self::Limit(_) => "limit",
            Self::RootLost(_) => "root-lost",
            Self::Quit => "quit",
            Self::Killed(_) => "killed",
        }
    }

    /// The line for people; none if the program itself decided.
    pub(crate) fn explanation(&self) -> Option<String> {
        match self {
            Self::Exit(_) | Self::Signaled(_) | Self::Quit | Self::Killed(_) => None,
            Self::NotFound(path) => Some(format!("{}: not found", path.escape_ascii())),
            Self::NotExecutable(path, reason) => Some(format!("{}: {reason}", path.escape_ascii())),
            Self::Panic => Some("the kernel panicked".to_owned()),
            Self::BootFailure(reason) => Some(reason.clone()),
            Self::Limit(what) => Some(format!("ended: it has taken more than {what} (--limit)")),
            Self::RootLost(why) => Some(format!(
                "the VM was ended, since its files are gone: the server of the live root has \
                 ended ({why}); --share 9p works without it"
            )),
            Self::Timeout(limit) => Some(format!("ended after {limit:?} (--timeout)")),
        }
    }
}

/// What the guest reported on the way.
#[derive(Clone, Debug, Default)]
pub(crate) struct Facts {
    pub(crate) boot_ns: Option<u64>,
    pub(crate) counters: BTreeMap<String, u64>,
    pub(crate) missing_syscalls: Vec<SyscallCount>,
    pub(crate) syscalls: Vec<SyscallCount>,
    pub(crate) missing_files: Vec<String>,
    /// What was done, and to what: `limen profile learn`.
    pub(crate) used: Vec<(String, String)>,
    pub(crate) trace: Vec<TraceEvent>,
    /// Process and name of each thread of the trace.
    pub(crate) threads: trace::Names,
}

/// Most lines of one kind that are kept from a guest, which may be hostile.
const FACTS_MAX: usize = 65_536;

impl Facts {
    /// Keeps what a message says.
    pub(crate) fn note(&mut self, message: ToHost) {
        match message {
            ToHost::BootNs(ns) => self.boot_ns = Some(ns),
            ToHost::Counter { name, value } if self.counters.len() < FACTS_MAX => {
                self.counters.insert(name, value);
            }
            ToHost::MissingSyscall(count) => push(&mut self.missing_syscalls, count),
            ToHost::Syscall(count) => push(&mut self.syscalls, count),
            ToHost::MissingFile { path } => {
                push(&mut self.missing_files, String::from_utf8_lossy(&path).into_owned());
            }
            ToHost::Used { access, object } => {
                push(&mut self.used, (access, String::from_utf8_lossy(&object).into_owned()));
            }
            ToHost::Trace(event) if self.trace.len() < trace::EVENTS_MAX => self.trace.push(event),
            ToHost::Thread { tid, pid, name } if self.threads.len() < FACTS_MAX => {
                let name = String::from_utf8_lossy(&name).into_owned();
                self.threads.insert(u64::from(tid), (u64::from(pid), name));
            }
            _ => {}
        }
    }
}

/// What all lines of a control port say together.
pub(crate) fn of_control(bytes: &[u8]) -> (Facts, Option<Outcome>) {
    let (mut facts, mut outcome) = (Facts::default(), None);
    LineBuffer::new().push(bytes, |line| {
        if let Some(message) = ToHost::decode(line) {
            outcome = outcome.take().or_else(|| Outcome::from_last_message(&message));
            facts.note(message);
        }
    });
    (facts, outcome)
}

fn push<T>(list: &mut Vec<T>, item: T) {
    if list.len() < FACTS_MAX {
        list.push(item);
    }
}

/// Of the object that `--json` prints: it grows when a name's meaning changes or a name goes.
const SCHEMA_VERSION: u32 = 1;

/// The object that `--json` prints. Times in ms; what is not known or was not asked for is null.
#[derive(Serialize)]
pub(crate) struct Report<'a> {
    schema_version: u32,
    status: &'static str,
    /// The exit status of `limen run`.
    exit_code: u8,
    signal: Option<u8>,
    message: Option<String>,
    /// Kernel entry to first user instruction, by the guest's clock.
    boot_ms: Option<f64>,
    /// QEMU's start to its end, by the host's clock.
    wall_ms: f64,
    /// Host time from QEMU's start until the guest said that it had booted.
    start_ms: Option<f64>,
    peak_memory_bytes: Option<u64>,
    counters: &'a BTreeMap<String, u64>,
    missing_syscalls: Vec<Count<'a>>,
    syscalls: Option<Vec<Count<'a>>>,
    missing_files: Option<&'a [String]>,
}

#[derive(Serialize)]
struct Count<'a> {
    number: u32,
    name: &'a str,
    count: u64,
}

/// Name of the counter that the report lifts out.
const PEAK_MEMORY: &str = "peak-memory-bytes";

impl<'a> Report<'a> {
    pub(crate) fn new(
        args: &RunArgs,
        outcome: &Outcome,
        facts: &'a Facts,
        wall: Duration,
        start: Option<Duration>,
    ) -> Self {
        let signal = match outcome {
            Outcome::Signaled(number) | Outcome::Killed(number) => Some(*number),
            _ => None,
        };
        let ms = |duration: Duration| duration.as_secs_f64() * 1e3;
        let syscalls = || facts.syscalls.iter().map(Count::from).collect();
        Self {
            schema_version: SCHEMA_VERSION,
            status: outcome.word(),
            exit_code: outcome.status(),
            signal,
            message: outcome.explanation(),
            boot_ms: facts.boot_ns.map(|ns| ns as f64 / 1e6),
            wall_ms: ms(wall),
            start_ms: start.map(ms),
            peak_memory_bytes: facts.counters.get(PEAK_MEMORY).copied(),
            counters: &facts.counters,
            missing_syscalls: facts.missing_syscalls.iter().map(Count::from).collect(),
            syscalls: args.syscall_summary.then(syscalls),
            missing_files: args.missing_files.then_some(&*facts.missing_files),
        }
    }
}

impl<'a> From<&'a SyscallCount> for Count<'a> {
    fn from(count: &'a SyscallCount) -> Self {
        Self { number: count.number, name: &count.name, count: count.count }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;

    #[test]
    fn statuses() {
        let path = || b"/x".to_vec();
        for (outcome, status) in [
            (Outcome::Exit(7), 7),
            (Outcome::Signaled(9), 137),
            (Outcome::Signaled(64), 192),
            (Outcome::Killed(15), 143),
            (Outcome::NotFound(path()), 127),
            (Outcome::NotExecutable(path(), String::new()), 126),
            (Outcome::BootFailure(String::new()), 126),
            (Outcome::Panic, 125),
            (Outcome::Timeout(Duration::from_secs(1)), 124),
            (Outcome::Limit(String::new()), 124),
            (Outcome::RootLost(String::new()), 125),
            (Outcome::Quit, 130),
        ] {
            assert_eq!(outcome.status(), status, "{outcome:?}");
        }
    }

    #[test]
    fn last_messages() {
        let message = ToHost::NotExecutable { errno: 8, path: b"/x".to_vec() };
        let outcome = Outcome::from_last_message(&message).expect("is a last message");
        assert!(outcome.explanation().is_some_and(|text| text.contains("Exec format")));
        assert_eq!(Outcome::from_last_message(&ToHost::BootNs(1)), None);
    }

    #[test]
    fn the_lines_of_a_port_say_how_it_ended() {
        let lines = b"boot-ns 100\ncounter run-ns 350\ncounter exits-sysret 3\nexit 4\n";
        let (facts, outcome) = of_control(lines);
        assert_eq!((facts.boot_ns, facts.counters["run-ns"]), (Some(100), 350));
        assert_eq!(outcome, Some(Outcome::Exit(4)));
        assert_eq!(of_control(b"boot-ns 100\n").1, None);
    }

    #[test]
    fn report_is_one_object() {
        let mut facts = Facts::default();
        facts.note(ToHost::Counter { name: PEAK_MEMORY.into(), value: 5 });
        facts.note(ToHost::BootNs(1_500_000));
        let line = ["limen", "run", "--missing-files", "x"];
        let cli = crate::args::Cli::try_parse_from(line).expect("valid");
        let crate::args::Command::Run(args) = cli.command else { panic!("not run") };
        let wall = Duration::from_secs(1);
        let report = Report::new(&args, &Outcome::Signaled(11), &facts, wall, None);
        let json = serde_json::to_value(report).expect("serialises");
        assert_eq!(json["exit_code"], 139);
        assert_eq!(json["signal"], 11);
        assert_eq!(json["peak_memory_bytes"], 5);
        assert_eq!(json["boot_ms"], 1.5);
        assert_eq!(json["schema_version"], SCHEMA_VERSION);
        assert!(json["syscalls"].is_null() && json["missing_files"].is_array());
    }
}
