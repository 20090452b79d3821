//! What is left when `limen` is ended by a signal: nothing. And a machine that is stopped for a
//! while goes on.
//!
//! Neighbours: `run.rs`, whose level the test belongs to; `crate::children` does what it tests.

use std::io::Write as _;
use std::os::unix::process::ExitStatusExt as _;
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

/// When a run that is to be interrupted has begun its work.
const AT_WORK: Duration = Duration::from_millis(2500);

/// No run leaves a file where temporary files go, nor in shared memory: neither one that does what
/// it was asked for, nor one that fails, nor one that is interrupted at its work.
pub(super) fn leaves_nothing(context: &Context, folder: &Path) -> Result<(), Error> {
    let compare = "compare --with pti=off --with pti=on --";
    let detached = "run --detach left --pack --file /bin/sleep -- /bin/sleep 1000";
    let cases = [
        ("run -- true".to_owned(), 0, false),
        ("run -- no-such-program".to_owned(), 127, false),
        ("run --pack -- false".to_owned(), 1, false),
        ("run --gdb=1 --timeout 1s -- true".to_owned(), 126, false),
        (format!("{compare} /bin/true"), 0, false),
        (format!("{compare} no-such-program"), 127, false),
        (detached.to_owned(), 0, false),
        ("ps".to_owned(), 0, false),
        ("stop --time 1s left".to_owned(), 0, false),
        ("test guest --filter channels::fifo_hangup --smp 1".to_owned(), 0, false),
        ("test guest --filter :: --smp 1".to_owned(), 130, true),
        ("bench kernel --no-linux".to_owned(), 130, true),
        ("run -- sleep 1000".to_owned(), 130, true),
    ];
    let kept = ["ps", "run --detach"];
    for (words, status, is_interrupted) in &cases {
        let mut command = Command::new(&context.limen);
        command.args(words.split(' ')).env("TMPDIR", folder).env_remove("XDG_RUNTIME_DIR");
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn()?;
        if *is_interrupted {
            std::thread::sleep(AT_WORK);
            let pid = Pid::from_raw(child.id() as i32).ok_or("an impossible process")?;
            kill_process(pid, Signal::INT)?;
        }
        let ended = child.wait()?;
        // A signal that ends this program has it end by that signal.
        let code = ended.code().or_else(|| ended.signal().map(|signal| 128 + signal));
        ensure(code == Some(*status), || format!("limen {words}: {ended}"))?;
        // Who else works on this machine has other names.
        let own = format!("limen-{}-", child.id());
        let left = [left_in(folder, "")?, left_in(Path::new("/dev/shm"), &own)?].concat();
        let may_be = kept.iter().any(|start| words.starts_with(start));
        ensure(may_be || left.is_empty(), || format!("limen {words} leaves {left:?}"))?;
    }
    Ok(())
}

/// A machine that was stopped as a whole, for longer than a CPU may be silent, goes on as if
/// nothing had been: a host that sleeps does the same. One CPU is busy, the other one idle.
pub(super) fn standstill(context: &Context, folder: &Path) -> Result<(), Error> {
    const STOPPED: Duration = Duration::from_secs(12);
    let script = "(while :; do :; done) & read line; kill $!; echo $line";
    let mut child = Command::new(&context.limen)
        .args(["run", "--smp", "2", "--accel", "tcg", "--pack", "--", "/bin/sh", "-c", script])
        .current_dir(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    for signal in [Signal::STOP, Signal::CONT] {
        for emulator in wait_for_emulators(child.id())? {
            let pid = Pid::from_raw(emulator as i32).ok_or("an impossible process")?;
            kill_process(pid, signal)?;
        }
        if signal == Signal::STOP {
            std::thread::sleep(STOPPED);
        }
    }
    // Each CPU looks after the other one meanwhile.
    std::thread::sleep(Duration::from_secs(2));
    if let Some(mut stdin) = child.stdin.take() {
        // A machine that has ended is told by what it said.
        let _ = stdin.write_all(b"goes on\n");
    }
    let output = child.wait_with_output()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure(output.status.success() && output.stdout == b"goes on\n", || said)
}

/// The names in a folder that begin so.
fn left_in(folder: &Path, start: &str) -> Result<Vec<String>, Error> {
    let entries = std::fs::read_dir(folder)?.flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    Ok(names.filter(|name| name.starts_with(start)).collect())
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
