//! One measured run: a VM whose instruction count is its clock.
//!
//! `-icount shift=0` makes one instruction one nanosecond of guest time and one tick of the
//! time-stamp counter. That alone is not reproducible: the real-time clock, the seed of the
//! machine and anything that comes in from outside must be fixed as well. With all of [`FIXED`],
//! and nothing but files at the ports, a run gives the same numbers every time, also on a loaded
//! host. Wall time is taken from a run without a count, at QEMU's normal speed.
//!
//! Neighbours: `kernel.rs` says what is run, `children.rs` ends QEMU with us.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::run::qemu;
use crate::{Error, children, words};

/// What makes a run reproducible.
const FIXED: [&str; 8] = [
    "-icount",
    "shift=0,sleep=off",
    "-rtc",
    "base=2025-01-01,clock=vm",
    "-seed",
    "1",
    "-nic",
    "none",
];
/// Kernel parameters, of Limen and of Linux, under which program and kernel lie at the same places
/// in every boot: a random place costs a page more or less, which no protection has to do with.
pub(crate) const SAME_PLACES: &str = "nokaslr norandmaps";
/// The boot that is timed by the host's clock is worth nothing if it takes that long.
pub(super) const WALL_LIMIT: Duration = Duration::from_secs(20);
/// How often to look whether QEMU has ended; wall times are that coarse.
const LOOK: Duration = Duration::from_millis(2);

/// How the VM's time runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Clock {
    /// One instruction is one tick.
    Counted,
    /// As fast as QEMU can.
    Wall,
}

/// Runs a QEMU command to its end, or to this limit; host time from its start.
pub(crate) fn run_within(
    command: &[OsString],
    clock: Clock,
    dir: &Path,
    limit: Duration,
) -> Result<Duration, Error> {
    let messages = std::fs::File::create(dir.join("qemu.log"))?;
    let [program, words @ ..] = command else { return Err("an empty command".into()) };
    let mut qemu = children::emulator(program);
    // CPUs that run side by side have no count in common.
    let (side_by_side, in_turns) = (qemu::emulation(2), qemu::emulation(1));
    let is_turns = |word: &&OsString| clock == Clock::Counted && **word == *side_by_side;
    let words = words.iter().map(|word| if is_turns(&word) { in_turns.as_ref() } else { &**word });
    qemu.args(words).stdin(Stdio::null()).stdout(messages.try_clone()?).stderr(messages);
    if clock == Clock::Counted {
        qemu.args(FIXED);
    }
    let started = Instant::now();
    let mut child = qemu.spawn()?;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if started.elapsed() > limit {
            child.kill()?;
            child.wait()?;
            return Err(format!("a run took more than {} s", limit.as_secs()).into());
        }
        std::thread::sleep(LOOK);
    };
    // It has a word for what it cannot do, before anything runs.
    let messages = std::fs::read_to_string(dir.join("qemu.log")).unwrap_or_default();
    match (status.success(), words::of_qemu(&messages)) {
        (false, Some(reason)) => Err(crate::usage(reason)),
        _ => Ok(started.elapsed()),
    }
}

/// `NAME NUMBER` lines of the measuring program, between whatever else is on a serial port.
pub(crate) fn numbers(text: &str) -> BTreeMap<String, u64> {
    let of_line = |line: &str| {
        let (name, value) = line.trim_end().split_once(' ')?;
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        let value = match name {
            "hash" => u64::from_str_radix(value, 16).ok()?,
            _ => value.parse().ok()?,
        };
        name.chars().all(plain).then(|| (name.to_owned(), value))
    };
    text.lines().filter_map(of_line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_programs_lines_count() {
        let text = "[    1.2] PM: 3\ngetpid 336\r\nhash 00ff\nfoo bar\nSeaBIOS 12\n";
        let numbers = numbers(text);
        assert_eq!(numbers.len(), 2);
        assert_eq!(numbers.get("getpid"), Some(&336));
        assert_eq!(numbers.get("hash"), Some(&0xff));
    }
}
