//! Debian packages that tests need: installed where that is possible, as the launcher does it.
//!
//! Why it is hard: apt's lists may be old or empty, the user may or may not be root, and some
//! packages start a service as soon as they are there. `LIMEN_INSTALL=0` forbids it. Neighbours:
//! `apps` and `bochs.rs` say what they need, and look afterwards what they have got.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::Error;

/// Where this is 0, nothing is installed.
const FORBID: &str = "LIMEN_INSTALL";

/// Whether the user wants nothing installed or fetched.
pub(super) fn is_forbidden() -> bool {
    std::env::var_os(FORBID).is_some_and(|value| value == "0")
}

/// Programs of the host that tests of several levels run in guests, and their packages.
const PROGRAMS: [(&str, &str); 1] = [("/bin/busybox", "busybox-static")];

/// Tries to install those of them that are missing.
pub(super) fn install_programs() -> Result<(), Error> {
    let is_missing = |(at, _): &&(&str, &str)| !Path::new(at).exists();
    let missing: Vec<&str> =
        PROGRAMS.iter().filter(is_missing).map(|(_, package)| *package).collect();
    install(&missing)
}

/// Tries to install what is missing; says so before.
pub(super) fn install(missing: &[&str]) -> Result<(), Error> {
    if missing.is_empty() {
        return Ok(());
    }
    say!("limen: not installed: {}", missing.join(" "));
    if is_forbidden() {
        return Ok(());
    }
    let Some(root) = as_root() else {
        say!("limen: only root can install them: sudo apt-get install {}", missing.join(" "));
        return Ok(());
    };
    say!("limen: installing them with apt-get ({FORBID}=0 forbids it)");
    let install = || apt(root, &[&["install", "-y", "--no-install-recommends"], missing].concat());
    if install()? {
        return Ok(());
    }
    // Lists may be fresh enough; where they are not, update once and try again.
    say!("limen: updating apt's package lists");
    if apt(root, &["update"])? && install()? {
        return Ok(());
    }
    // One that is nowhere to be had is no reason to lack the others.
    for package in missing {
        apt(root, &["install", "-y", "--no-install-recommends", package])?;
    }
    Ok(())
}

/// The words that make a command root's, if that is possible without a question.
fn as_root() -> Option<&'static [&'static str]> {
    if rustix::process::geteuid().is_root() {
        return Some(&[]);
    }
    let sudo = Command::new("sudo").args(["-n", "true"]).stderr(Stdio::null()).status();
    sudo.is_ok_and(|status| status.success()).then_some(&["sudo", "-n"])
}

fn apt(root: &[&str], words: &[&str]) -> Result<bool, Error> {
    // Without a run level no service is started (invoke-rc.d(8)).
    let fixed = ["env", "DEBIAN_FRONTEND=noninteractive", "RUNLEVEL=1", "apt-get", "-q"];
    // Levels that run beside each other may install at the same time.
    let waits = ["-o", "DPkg::Lock::Timeout=600"];
    let all: Vec<&str> = root.iter().chain(&fixed).chain(&waits).chain(words).copied().collect();
    let output = Command::new(all[0]).args(&all[1..]).stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("apt-get: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    for line in said.lines().filter(|line| line.starts_with("E: ")) {
        say!("limen: apt-get: {line}");
    }
    Ok(output.status.success())
}
