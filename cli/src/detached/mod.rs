//! VMs that go on without us: `limen run --detach NAME`, `limen ps`, `logs`, `exec`, `stop`.
//!
//! Nothing is resident but QEMU. Each VM has a folder in `$XDG_RUNTIME_DIR/limen`: what the program
//! and the kernel say goes to files there, and whoever has something to say to the guest writes to
//! a FIFO that QEMU holds open. Whether a VM lives is asked of the process that the folder names,
//! by its number and its start, for numbers come again.
//!
//! Reading order: [`VmState`]; `start`; `commands`; `exec`. Neighbours: `run/plan` says what runs,
//! `run/qemu.rs` has the wires.

mod commands;
mod exec;
mod start;

use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

pub(crate) use commands::{logs, ps, stop};
pub(crate) use exec::exec;
pub(crate) use start::start;

use crate::failure::{Doing, Failure};
use crate::oci::user::Names;
use crate::run::outcome::{self, Facts, Outcome};
use crate::run::qemu::port_file;
use crate::{Error, paths, usage};

/// What a folder holds beside the ports' files.
const INFO: &str = "info.json";
/// Who there is in the guest, for `limen exec --user`.
const PASSWD: &str = "passwd";
const GROUP: &str = "group";
/// The guest's control channel: two FIFOs, `control.in` and `control.out`, as QEMU names them.
pub(crate) const CONTROL: &str = "control";
/// Longest name.
const NAME_MAX: usize = 64;

/// What is known of a VM that was started.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Info {
    pid: u32,
    /// When the process started, in ticks since the host's boot (proc(5), stat, field 22).
    started_ticks: u64,
    /// Seconds since 1970.
    started_s: u64,
    program: Vec<String>,
}

/// A VM's folder.
#[derive(Clone, Debug)]
struct VmState {
    name: String,
    dir: PathBuf,
}

impl VmState {
    /// The folder of the VM of this name, whether it is there or not.
    fn of(name: &str) -> Result<Self, Error> {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if name.is_empty() || name.len() > NAME_MAX {
            return Err(usage(format!("{name:?}: a VM's name has 1 to {NAME_MAX} letters")));
        }
        if name.starts_with(['.', '-']) || !name.chars().all(is_plain) {
            return Err(usage(format!(
                "{name:?}: a VM's name has letters, digits, `-`, `_` and `.`, and begins with one \
                 of the first two"
            )));
        }
        Ok(Self { name: name.to_owned(), dir: top()?.join(name) })
    }

    /// All that are there, by name.
    fn all() -> Result<Vec<Self>, Error> {
        // Where nothing was started there is no folder.
        let entries = std::fs::read_dir(top()?).into_iter().flatten().flatten();
        let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        let mut names: Vec<String> = names.collect();
        names.sort();
        Ok(names.iter().filter_map(|name| Self::of(name).ok()).collect())
    }

    fn info(&self) -> Option<Info> {
        serde_json::from_slice(&std::fs::read(self.dir.join(INFO)).ok()?).ok()
    }

    /// What the guest has said, and how its program has ended if it has.
    fn said(&self) -> (Facts, Option<Outcome>) {
        outcome::of_control(&std::fs::read(port_file(&self.dir, CONTROL)).unwrap_or_default())
    }

    /// The process, if it still is the one that was started.
    fn alive(&self) -> Option<Info> {
        self.info().filter(|info| started_ticks(info.pid) == Some(info.started_ticks))
    }

    /// Who there is in the guest: as it was when the VM was started.
    fn names(&self) -> Names {
        let text = |file| std::fs::read_to_string(self.dir.join(file)).unwrap_or_default();
        Names { passwd: text(PASSWD), group: text(GROUP) }
    }

    /// One word or a few.
    fn status(&self) -> String {
        let (_, outcome) = self.said();
        match (self.alive(), outcome) {
            (Some(_), None) => "running".to_owned(),
            (_, Some(Outcome::Exit(code))) => format!("exited {code}"),
            (_, Some(Outcome::Signaled(signal))) => format!("ended by signal {signal}"),
            (_, Some(outcome)) => outcome.explanation().unwrap_or_default(),
            (None, None) => "gone".to_owned(),
        }
    }
}

/// Field 22 of /proc/PID/stat.
fn started_ticks(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, behind) = stat.rsplit_once(')')?;
    let mut fields = behind.split_whitespace();
    // A process that only waits for its parent to ask has ended.
    if fields.next()? == "Z" {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

/// The folder of all VMs, whether it is there or not.
fn top_path() -> PathBuf {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let uid = rustix::process::getuid().as_raw();
    match runtime.filter(|dir| dir.is_absolute() && dir.is_dir()) {
        Some(runtime) => runtime.join("limen"),
        None => std::env::temp_dir().join(format!("limen-run-{uid}")),
    }
}

/// The same; what is there must be nobody else's, who could put VMs there.
fn top() -> Result<PathBuf, Error> {
    let (dir, uid) = (top_path(), rustix::process::getuid().as_raw());
    match dir.symlink_metadata() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(dir),
        Ok(meta) if meta.is_dir() && meta.uid() == uid && meta.mode() & 0o077 == 0 => Ok(dir),
        _ => Err(format!("{}: not a folder of this user alone", dir.display()).into()),
    }
}

/// Makes it if needed.
fn make_top() -> Result<PathBuf, Error> {
    let path = top_path();
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&path);
    made.map_err(Failure::at(Doing::Make, &path))?;
    top()
}

/// Writes so that a reader sees all or nothing.
fn write_info(dir: &Path, info: &Info) -> Result<(), Error> {
    Ok(paths::write_atomically(&dir.join(INFO), &serde_json::to_vec(info)?)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_in_the_folder() {
        for wrong in ["", "..", ".hidden", "a/b", "-x", "ä", &"x".repeat(65)] {
            assert!(VmState::of(wrong).is_err(), "{wrong}");
        }
        assert!(VmState::of("web-1.test_2").is_ok());
    }

    #[test]
    fn a_process_is_known_by_its_start() {
        let own = std::process::id();
        let ticks = started_ticks(own).expect("this process");
        assert!(ticks > 0 && started_ticks(u32::MAX).is_none());
    }
}
