//! One run on Debian's kernel, in the same QEMU with the same files.
//!
//! A first process of ours (`guest/linux_init`) starts the program and measures it. What is not the
//! same: standard output goes to a file in memory there, not through a device, so Linux pays less
//! for it; and its own interrupts of the clock are counted, as they are on Limen.
//!
//! Neighbours: `crate::linux` finds the kernel, `bench/rig.rs` counts.

use std::collections::BTreeMap;
use std::os::fd::RawFd;
use std::path::Path;
use std::time::Duration;

use super::{Measured, Setup};
use crate::bench::rig::{self, Clock};
use crate::linux::{self, Boot, Linux};
use crate::progress::Progress;
use crate::run::outcome::Outcome;
use crate::run::qemu::port_file;
use crate::{Error, bench, paths};

/// What begins the lines of our process's.
const MARK: &str = "limen-linux ";
/// Linux needs room for its own unpacked kernel beside what the program has.
const KERNEL_MIB: u64 = 128;

/// The kernel and the first process.
pub(crate) struct Beside {
    linux: Linux,
    init: Vec<u8>,
}

impl Beside {
    pub(crate) fn find(given: Option<&Path>) -> Result<Self, Error> {
        let installed = paths::installed(linux::INIT).filter(|path| path.is_file());
        let init = match installed {
            Some(path) => path,
            None => bench::build(linux::INIT)?,
        };
        Ok(Self { linux: linux::find(given)?, init: paths::read(&init)? })
    }

    pub(crate) fn name(&self) -> &str {
        &self.linux.name
    }

    pub(super) fn run(
        &self,
        setup: &Setup<'_>,
        parameters: &str,
        clock: Clock,
    ) -> Result<Measured, Error> {
        let dir = paths::scratch()?;
        let boot = Boot {
            program: &self.init,
            file: None,
            files: &setup.image,
            append: &format!("{} {} {parameters}", linux::APPEND, rig::SAME_PLACES),
            dir: dir.path(),
            cpu: &setup.args.cpu,
            smp: setup.args.smp,
            memory_mib: setup.args.memory + KERNEL_MIB,
            share: None,
        };
        self.measure(&boot, clock, setup.args.timeout)
    }

    /// What the program said that `image` (an archive with its configuration) starts on the root
    /// that is served to this descriptor, on one CPU with this memory.
    pub(crate) fn on_live_root(
        &self,
        image: &[u8],
        share: RawFd,
        memory_mib: u64,
        limit: Duration,
    ) -> Result<Measured, Error> {
        let dir = paths::scratch()?;
        let boot = Boot {
            program: &self.init,
            file: None,
            files: image,
            append: linux::APPEND,
            dir: dir.path(),
            cpu: "max",
            smp: 1,
            memory_mib: memory_mib + KERNEL_MIB,
            share: Some(share),
        };
        self.measure(&boot, Clock::Wall, limit)
    }

    fn measure(&self, boot: &Boot<'_>, clock: Clock, limit: Duration) -> Result<Measured, Error> {
        let command = self.linux.command(boot)?;
        let _slow = Progress::of("the machine runs");
        rig::run_within(&command, clock, boot.dir, limit)?;
        let text = std::fs::read(port_file(boot.dir, "serial")).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let measured = parse(&text, clock);
        measured.ok_or_else(|| {
            let last: Vec<&str> = text.lines().rev().take(20).collect();
            let last: Vec<&str> = last.into_iter().rev().collect();
            format!("the program did not come to its end on Linux\n{}", last.join("\n")).into()
        })
    }
}

/// What our process has said.
fn parse(text: &str, clock: Clock) -> Option<Measured> {
    let mut values = BTreeMap::new();
    let mut counters = BTreeMap::new();
    for line in text.lines().filter_map(|line| line.trim_end().strip_prefix(MARK)) {
        let (name, value) = line.split_once(' ').unwrap_or((line, ""));
        match (name, value.split_once(' ')) {
            ("counter", Some((name, value))) => {
                counters.insert(name.to_owned(), value.parse().ok()?);
            }
            _ => {
                values.insert(name, value);
            }
        }
    }
    values.get("end")?;
    let number = |name: &str| values.get(name)?.parse::<u64>().ok();
    let outcome = match (number("exit"), number("signaled")) {
        (Some(code), _) => Outcome::Exit(code as u8),
        (None, Some(signal)) => Outcome::Signaled(signal as u8),
        (None, None) => return None,
    };
    Some(Measured {
        outcome,
        ticks: number(if clock == Clock::Counted { "ticks" } else { "ns" })?,
        counters,
        stdout: unescape(values.get("output")?),
    })
}

/// The bytes that [`slice::escape_ascii`] has made text of.
fn unescape(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, behind @ ..] = rest {
        let (byte, len) = match (first, behind) {
            (b'\\', [b'x', high, low, ..]) => {
                let digit = |byte: &u8| (*byte as char).to_digit(16).unwrap_or(0) as u8;
                (digit(high) << 4 | digit(low), 4)
            }
            (b'\\', [b't', ..]) => (b'\t', 2),
            (b'\\', [b'r', ..]) => (b'\r', 2),
            (b'\\', [b'n', ..]) => (b'\n', 2),
            (b'\\', [other, ..]) => (*other, 2),
            (other, _) => (*other, 1),
        };
        bytes.push(byte);
        rest = &rest[len..];
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_our_process_says_is_between_the_kernels_lines() {
        let text = "[ 0.1] booting\r\nlimen-linux ticks 77\r\nlimen-linux ns 5\n\
                    limen-linux counter page-faults 9\nlimen-linux exit 3\n\n\
                    limen-linux output a\\\\b\\n\\xff\\'\nlimen-linux end \n[ 0.2] reboot\n";
        let measured = parse(text, Clock::Counted).expect("complete");
        assert_eq!((measured.outcome, measured.ticks), (Outcome::Exit(3), 77));
        assert_eq!(measured.counters["page-faults"], 9);
        assert_eq!(measured.stdout, b"a\\b\n\xff'");
        assert_eq!(parse(text, Clock::Wall).expect("complete").ticks, 5);
        assert!(parse("limen-linux ticks 77\nlimen-linux exit 0\n", Clock::Counted).is_none());
    }

    #[test]
    fn escapes_come_back() {
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(unescape(&all.escape_ascii().to_string()), all);
    }
}
