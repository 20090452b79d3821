//! What is left when `limen` is ended by a signal: nothing.
//!
//! Neighbours: `run.rs`, whose level the test belongs to; `crate::children` does what it tests.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::Context;
use super::run::ensure;
use crate::Error;

/// How long whoever was started may outlive who started it.
const REAPED_WITHIN: Duration = Duration::from_secs(10);

/// Whatever ends this program, nothing that it has started goes on, and no temporary file stays.
pub(super) fn children(context: &Context, folder: &Path) -> Result<(), Error> {
    let stubborn = "trap '' TERM INT HUP; while :; do sleep 1; done";
    let run = ["run", "--", "sh", "-c", stubborn];
    let compare = ["compare", "--with", "pti=off", "--with", "pti=on", "--", "sleep", "1000"];
    let test = ["test", "run", "--filter", "run::statuses"];
    let cases: [(&[&str], Signal, usize); 9] = [
        (&run, Signal::TERM, 2),
        (&run, Signal::HUP, 2),
        (&run, Signal::KILL, 1),
        (&compare, Signal::TERM, 1),
        (&compare, Signal::INT, 1),
        (&compare, Signal::HUP, 1),
        (&compare, Signal::KILL, 1),
        (&test, Signal::TERM, 1),
        (&test, Signal::INT, 1),
    ];
    for (words, signal, times) in cases {
        let mut command = Command::new(&context.limen);
        command.args(words).current_dir(folder).env("TMPDIR", folder);
        let nothing = || Stdio::null();
        let mut child = command.stdin(nothing()).stdout(nothing()).stderr(nothing()).spawn()?;
        let emulators = wait_for_emulators(child.id())?;
        let pid = Pid::from_raw(child.id() as i32).ok_or("an impossible process")?;
        for _ in 0..times {
            kill_process(pid, signal)?;
            std::thread::sleep(Duration::from_millis(300));
        }
        child.wait()?;
        let deadline = Instant::now() + REAPED_WITHIN;
        while emulators.iter().any(|pid| is_qemu(*pid)) {
            ensure(Instant::now() < deadline, || format!("{words:?}, {signal:?}: QEMU goes on"))?;
            std::thread::sleep(Duration::from_millis(50));
        }
        // Nobody removes what is left where there was no time to: SIGKILL.
        let left = std::fs::read_dir(folder)?.flatten().map(|entry| entry.file_name());
        let left: Vec<_> = left.collect();
        let may_be_left = signal == Signal::KILL;
        ensure(may_be_left || left.is_empty(), || format!("{words:?}, {signal:?}: {left:?}"))?;
        for name in left {
            std::fs::remove_dir_all(folder.join(name))?;
        }
    }
    Ok(())
}

/// The emulators that a process has started, as soon as there is one.
fn wait_for_emulators(pid: u32) -> Result<Vec<u32>, Error> {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let all = crate::children::descendants(pid).into_iter().filter(|pid| is_qemu(*pid));
        let found: Vec<u32> = all.collect();
        if !found.is_empty() {
            // So that the program runs.
            std::thread::sleep(Duration::from_millis(1500));
            return Ok(found);
        }
        ensure(Instant::now() < deadline, || "no emulator was started".to_owned())?;
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn is_qemu(pid: u32) -> bool {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    name.starts_with("qemu-system")
}
