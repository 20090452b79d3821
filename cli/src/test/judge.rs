//! What Linux answers, whatever this host is: the tests of `guest/tests` on Debian's kernel in
//! QEMU.
//!
//! Why it is needed: a test that fails on the host says nothing yet. The host may be a container,
//! an unprivileged user, a kernel of another version, one with settings that change answers.
//! Debian's kernel, with the tests as its only program, has none of that; so it decides where the
//! host does not agree, and it can be booted with settings that no test may change on a host.
//!
//! Neighbours: `guest.rs` asks for its verdict, `settings.rs` boots it with other settings,
//! `crate::linux` finds it.

use std::path::Path;
use std::time::Duration;

use super::guest::{Results, parse};
use crate::Error;
use crate::bench::rig::{self, Clock};
use crate::linux::{self, Boot};
use crate::run::qemu::port_file;

/// All tests in emulation on a loaded host.
const LIMIT: Duration = Duration::from_secs(1500);
/// Longest a single test may take there, in seconds.
const TEST_BOUND_S: u32 = 180;
const MEMORY_MIB: u64 = 1024;

/// What the tests whose names contain `filter` say on a Linux with these parameters, and the text
/// that the machine's console showed.
pub(super) fn ask(
    program: &Path,
    parameters: &str,
    filter: &str,
    smp: u8,
) -> Result<(Results, String), Error> {
    let words = format!("run-all {filter} --bound {TEST_BOUND_S}");
    let text = say(program, parameters, &words, None, smp)?;
    Ok((parse(&text), text))
}

/// What the tests' program says as the first process of that Linux, started with these words.
pub(super) fn say(
    program: &Path,
    parameters: &str,
    words: &str,
    file: Option<(&str, &[u8])>,
    smp: u8,
) -> Result<String, Error> {
    let linux = linux::find(None)?;
    let dir = tempfile::tempdir()?;
    let clock = tsc_parameter(&std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default());
    // Without protection keys, which a host's CPU has or has not: it says the same everywhere.
    let append =
        format!("{} loglevel=1 nopku {clock}{parameters} -- as-init {words}", linux::APPEND);
    let command = linux.command(&Boot {
        program: &std::fs::read(program)?,
        file,
        files: &[],
        append: &append,
        dir: dir.path(),
        cpu: "max",
        smp,
        memory_mib: MEMORY_MIB,
        share: None,
    })?;
    rig::run_within(&command, Clock::Wall, dir.path(), LIMIT)?;
    let text = std::fs::read(port_file(dir.path(), "serial"))?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// What tells Linux how fast the time-stamp counter is: in emulation it is the host's own. On a
/// host with more to do than CPUs, Linux's measurement against the old timer fails, and its boot
/// then waits for ever.
fn tsc_parameter(cpuinfo: &str) -> String {
    let line = cpuinfo.lines().find(|line| line.starts_with("cpu MHz"));
    let mhz = line.and_then(|line| line.rsplit(' ').next()).and_then(|mhz| mhz.parse::<f64>().ok());
    mhz.map_or(String::new(), |mhz| format!("tsc_early_khz={:.0} ", mhz * 1000.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counters_speed_is_the_hosts() {
        assert_eq!(tsc_parameter("a\ncpu MHz\t\t: 2899.998\n"), "tsc_early_khz=2899998 ");
        assert_eq!(tsc_parameter("nothing"), "");
    }
}
