//! Whoever ends this program ends what it has started.
//!
//! Why it is hard: tests, benches and comparisons start virtual machines, emulators, compilers and
//! further copies of this program, which start others, from many threads; and some of them ignore
//! the signals that end others. An emulator is started by [`emulator`], so that it ends even when
//! this program is killed. For everything else there is [`guard`]: a signal that ends this program
//! first ends all its descendants, and removes its temporary files.
//!
//! Neighbours: `run/shim.rs` arranges an emulator's end; `run/vm.rs` has its own use for signals.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::Permissions;
use std::io::Read as _;
use std::os::fd::AsFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};

use crate::Error;
use crate::failure::{Doing, Failure};
use crate::run::shim;

/// Signals that end a program which does not care for them.
const ENDING: [i32; 4] = [SIGTERM, SIGINT, SIGHUP, SIGQUIT];
/// How often descendants are looked for: whoever is being ended may have started another one.
const ROUNDS: usize = 20;
/// How long each of them may take to be gone.
const LOOK: Duration = Duration::from_millis(10);

/// Temporary files of this program, while it is guarded.
static TEMPORARY: Mutex<Vec<tempfile::TempDir>> = Mutex::new(Vec::new());

/// A signal has begun to end this program.
static IS_ENDING: AtomicBool = AtomicBool::new(false);
/// How long the end of this program may take from there on.
const END: Duration = Duration::from_secs(5);

/// True once a signal is ending this program: what others say from then on, whose programs have
/// been ended under them, means nothing.
pub(crate) fn is_ending() -> bool {
    IS_ENDING.load(Ordering::Relaxed)
}

/// Comes back at once, unless a signal is ending this program: then it is not this thread that
/// does.
pub(crate) fn leave_the_end_to_signals() {
    if is_ending() {
        std::thread::sleep(END);
    }
}

/// A command that dies with this program, even if that is killed; in a process group of its own, so
/// that a terminal's signals reach this program alone.
pub(crate) fn emulator(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg(shim::NAME).arg(std::process::id().to_string()).arg(program).process_group(0);
    command
}

/// From here on a signal that ends this program ends its descendants, too.
pub(crate) fn guard() -> Result<Guarded, Error> {
    let folder = tempfile::Builder::new().prefix("limen-").tempdir();
    let folder = folder.map_err(Failure::at(Doing::Make, &std::env::temp_dir()))?;
    // It fails where it was set before, which nobody does; then the usual place is as good.
    let _ = tempfile::env::override_temp_dir(folder.path());
    keep(folder);
    let mut near = Vec::new();
    for number in ENDING {
        let (socket, far) = UnixStream::pair()?;
        signal_hook::low_level::pipe::register(number, far)?;
        near.push((number, socket));
    }
    std::thread::Builder::new().name("guard".to_owned()).spawn(move || watch(near))?;
    Ok(Guarded(()))
}

/// A folder below `base` for programs of any user, removed with the other temporary files.
pub(crate) fn scratch_in(base: &Path) -> Result<PathBuf, Error> {
    let prefix = format!("limen-{}-", std::process::id());
    let folder = tempfile::Builder::new().prefix(&prefix).tempdir_in(base);
    let folder = folder.map_err(Failure::at(Doing::Make, base))?;
    let opened = std::fs::set_permissions(folder.path(), Permissions::from_mode(0o1777));
    opened.map_err(Failure::at(Doing::Write, folder.path()))?;
    let path = folder.path().to_owned();
    keep(folder);
    Ok(path)
}

fn keep(folder: tempfile::TempDir) {
    TEMPORARY.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(folder);
}

/// While it is there, signals are guarded against; then temporary files go.
pub(crate) struct Guarded(());

impl Drop for Guarded {
    fn drop(&mut self) {
        remove_temporary();
    }
}

fn remove_temporary() {
    TEMPORARY.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clear();
}

fn watch(mut sockets: Vec<(i32, UnixStream)>) {
    loop {
        let mut fds: Vec<_> = sockets
            .iter()
            .map(|(_, socket)| PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN))
            .collect();
        // Interrupted by the very signal: it is read in the next round.
        let _ = poll(&mut fds, None);
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        for ((number, socket), _) in sockets.iter_mut().zip(ready).filter(|(_, ready)| *ready) {
            if socket.read(&mut [0; 1]).is_ok_and(|len| len > 0) {
                IS_ENDING.store(true, Ordering::Relaxed);
                end_descendants();
                remove_temporary();
                // It does not come back for these signals.
                let _ = signal_hook::low_level::emulate_default_handler(*number);
            }
        }
    }
}

fn end_descendants() {
    let own = std::process::id();
    for _ in 0..ROUNDS {
        let all = descendants(own);
        if all.is_empty() {
            return;
        }
        for pid in all.into_iter().filter_map(|pid| Pid::from_raw(pid as i32)) {
            // It may have ended by itself.
            let _ = kill_process(pid, Signal::KILL);
        }
        std::thread::sleep(LOOK);
    }
}

/// Everything that `pid` has started, and that these have; what has ended does not count.
pub(crate) fn descendants(pid: u32) -> Vec<u32> {
    let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        if let Some(parent) = living_parent(&stat) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut all = vec![pid];
    let mut next = 0;
    while let Some(parent) = all.get(next) {
        all.extend(children.remove(parent).unwrap_or_default());
        next += 1;
    }
    all.remove(0);
    all
}

/// The parent in a line of /proc/PID/stat (proc(5)); none of a process that has ended.
fn living_parent(stat: &str) -> Option<u32> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    match fields.next()? {
        "Z" | "X" => None,
        _ => fields.next()?.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_ended_is_nobodys_child() {
        assert_eq!(living_parent("7 (a) b) S 3 7 7"), Some(3));
        assert_eq!(living_parent("7 (a) Z 3 7 7"), None);
        assert_eq!(living_parent(""), None);
    }

    #[test]
    fn children_of_children_are_found() {
        let script = "sleep 30 & echo; wait";
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdout(std::process::Stdio::piped());
        let mut child = command.spawn().expect("sh");
        let mut line = [0];
        child.stdout.take().expect("piped").read_exact(&mut line).expect("a line");
        let found = descendants(child.id());
        let own = descendants(std::process::id());
        for pid in found.iter().filter_map(|pid| Pid::from_raw(*pid as i32)) {
            kill_process(pid, Signal::KILL).expect("it is there");
        }
        child.wait().expect("ended");
        assert_eq!(found.len(), 1);
        assert!(own.contains(&found[0]) && own.contains(&child.id()));
    }
}
