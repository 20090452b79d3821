//! `limen exec` as a user meets it: streams, statuses, signals, a terminal with its size and
//! Ctrl-C, several at a time, and connections that are cut. Part of the run level.

use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::Context;
use super::run::ensure;
use crate::Error;

/// Longest to wait for what a guest does.
const LIMIT: Duration = Duration::from_secs(60);
/// What goes through a program's standard input and output.
const STREAM_BYTES: usize = 4 << 20;
const NAME: &str = "vm";

/// A VM in the background, which is stopped at the end.
struct Vm<'a> {
    context: &'a Context,
    folder: &'a Path,
}

impl Drop for Vm<'_> {
    fn drop(&mut self) {
        // It has ended already where a test has failed so.
        let _ = self.limen(&["stop", "--time", "1s", NAME]).output();
    }
}

impl Vm<'_> {
    fn limen(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.context.limen);
        command.args(words).current_dir(self.folder).env("XDG_RUNTIME_DIR", self.folder);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn exec(&self, words: &[&str]) -> Command {
        self.limen(&[&["exec", NAME, "--"], words].concat())
    }

    fn sh(&self, script: &str) -> Result<Output, Error> {
        Ok(self.exec(&["sh", "-c", script]).output()?)
    }

    /// Waits until a script in the guest succeeds.
    fn wait_for(&self, script: &str) -> Result<(), Error> {
        let began = Instant::now();
        while !self.sh(script)?.status.success() {
            ensure(began.elapsed() < LIMIT, || format!("never: {script}"))?;
        }
        Ok(())
    }
}

pub(super) fn exec(context: &Context, folder: &Path) -> Result<(), Error> {
    let vm = Vm { context, folder };
    let script = "export KEPT=yes; while :; do sleep 1; done";
    let words = ["run", "--detach", NAME, "--env", "OF=vm", "--cwd", "/usr", "--", "sh", "-c"];
    let started = vm.limen(&[&words[..], &[script]].concat()).output()?;
    ensure(started.status.success(), || format!("{started:?}"))?;
    answers(&vm)?;
    streams(&vm)?;
    signals(&vm)?;
    at_a_time(&vm)?;
    cut(&vm)?;
    terminal(&vm)?;
    // The end of the VM is the end of what runs there, and is told.
    let mut child = vm.exec(&["sh", "-c", "echo up; exec sleep 1000"]).spawn()?;
    child.stdout.as_mut().ok_or("no stdout")?.read_exact(&mut [0; 3])?;
    let stopped = vm.limen(&["stop", NAME]).output()?;
    ensure(stopped.status.success(), || format!("{stopped:?}"))?;
    let output = child.wait_with_output()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure(output.status.code() == Some(137) && said.contains("the VM has ended"), || said)?;
    let gone = vm.exec(&["true"]).output()?;
    ensure(gone.status.code() == Some(2), || format!("{gone:?}"))
}

/// Statuses, and what a program sees of the VM's own: user, folder, environment.
fn answers(vm: &Vm<'_>) -> Result<(), Error> {
    let cases: &[(&[&str], i32, &str, &str)] = &[
        (&["--", "sh", "-c", "echo $OF; pwd; echo e >&2; exit 7"], 7, "vm\n/usr\n", "e\n"),
        (&["--", "sh", "-c", "kill -9 $$"], 137, "", ""),
        (&["--env", "OF=x", "--cwd", "bin", "--", "sh", "-c", "echo $OF; pwd"], 0, "x\n", ""),
        (&["--user", "5:6", "--", "sh", "-c", "id -u; id -g"], 0, "5\n6\n", ""),
        (&["--", "no-such-program"], 127, "", "no-such-program: not found"),
        (&["--", "/etc/passwd"], 126, "", "/etc/passwd: Permission denied"),
        (&["--cwd", "/no/where", "--", "true"], 126, "", "/no/where: No such file"),
        (
            &["--user", "nobody:daemon", "--", "sh", "-c", "id -un; id -gn"],
            0,
            "nobody\ndaemon\n",
            "",
        ),
        (&["--user", "games", "--", "id", "-un"], 0, "games\n", ""),
        (&["--user", "no-such", "--", "true"], 2, "", "--user no-such: no user no-such"),
    ];
    for (words, status, stdout, stderr) in cases {
        let [options @ .., last] = &words[..] else { continue };
        let at = options.iter().position(|word| *word == "--").unwrap_or(0);
        let mut line = vec!["exec"];
        line.extend(&options[..at]);
        line.push(NAME);
        line.extend(&options[at..]);
        line.push(last);
        let output = vm.limen(&line).output()?;
        let (out, err) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        let good = output.status.code() == Some(*status)
            && out.starts_with(stdout)
            && err.contains(stderr);
        ensure(good, || format!("{words:?}: {output:?}"))?;
    }
    Ok(())
}

/// Bytes of every value go both ways; a reader that goes ends the writer.
fn streams(vm: &Vm<'_>) -> Result<(), Error> {
    let sent: Vec<u8> = (0..STREAM_BYTES).map(|n| (n * n / 7 + n) as u8).collect();
    let mut child = vm.exec(&["cat"]).stdin(Stdio::piped()).spawn()?;
    let mut stdin = child.stdin.take().ok_or("no stdin")?;
    let output = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let written = stdin.write_all(&sent);
            drop(stdin);
            written
        });
        let output = child.wait_with_output();
        writer.join().map_err(|_| "the writer panicked")??;
        Ok::<_, Error>(output?)
    })?;
    ensure(output.stdout == sent, || format!("{} bytes came back", output.stdout.len()))?;
    let mut child = vm.exec(&["yes"]).spawn()?;
    child.stdout.take().ok_or("no stdout")?.read_exact(&mut [0; 2])?;
    let status = child.wait()?;
    ensure(status.code() == Some(128 + 13), || format!("yes: {status}"))
}

/// A signal goes to the program.
fn signals(vm: &Vm<'_>) -> Result<(), Error> {
    let script = "trap 'echo caught; exit 9' TERM; echo up; while :; do sleep 0.1; done";
    let mut child = vm.exec(&["sh", "-c", script]).spawn()?;
    child.stdout.as_mut().ok_or("no stdout")?.read_exact(&mut [0; 3])?;
    end(&child, Signal::TERM)?;
    let output = child.wait_with_output()?;
    let good = output.status.code() == Some(9) && output.stdout == b"caught\n";
    ensure(good, || format!("{output:?}"))
}

fn end(child: &Child, signal: Signal) -> Result<(), Error> {
    let pid = Pid::from_raw(child.id() as i32).ok_or("an impossible process")?;
    Ok(kill_process(pid, signal)?)
}

/// As many as there are places run side by side; one more is told so, and places come free.
fn at_a_time(vm: &Vm<'_>) -> Result<(), Error> {
    let mut children = Vec::new();
    for _ in 0..formats::ports::EXEC_SESSIONS {
        let mut child = vm.exec(&["sh", "-c", "echo up; cat"]).stdin(Stdio::piped()).spawn()?;
        child.stdout.as_mut().ok_or("no stdout")?.read_exact(&mut [0; 3])?;
        children.push(child);
    }
    let more = vm.exec(&["true"]).output()?;
    ensure(more.status.code() == Some(2), || format!("{more:?}"))?;
    for mut child in children {
        drop(child.stdin.take());
        let status = child.wait()?;
        ensure(status.success(), || status.to_string())?;
    }
    Ok(())
}

/// Whoever is killed leaves a program that hears of it, and a place for the next, who sees nothing
/// of what went before.
fn cut(vm: &Vm<'_>) -> Result<(), Error> {
    for turn in 0..6 {
        let stubborn = "trap '' HUP PIPE; echo up; while :; do echo noise; done; : stubborn";
        let script = if turn % 2 == 0 { "echo up; exec yes left" } else { stubborn };
        let mut child = vm.exec(&["sh", "-c", script]).stdin(Stdio::piped()).spawn()?;
        child.stdout.as_mut().ok_or("no stdout")?.read_exact(&mut [0; 3])?;
        // More is on its way than anybody takes.
        std::thread::sleep(Duration::from_millis(300));
        // Typed, and never read.
        child.stdin.as_mut().ok_or("no stdin")?.write_all(b"unread\n")?;
        end(&child, Signal::KILL)?;
        child.wait()?;
        let mut next = vm.exec(&["cat"]).stdin(Stdio::piped()).spawn()?;
        next.stdin.take().ok_or("no stdin")?.write_all(b"mine\n")?;
        let output = next.wait_with_output()?;
        let said = || output.stdout.iter().take(80).copied().collect::<Vec<_>>();
        let said = || format!("turn {turn}: {}: {}", output.status, said().escape_ascii());
        ensure(output.stdout == b"mine\n", said)?;
    }
    vm.wait_for("! pgrep -x yes")?;
    let killed = vm.sh("pkill -9 -f ': stubborn$' || true")?;
    ensure(killed.status.success(), || format!("{killed:?}"))
}

/// A terminal of its own: its name, the window's size, also when it changes, and Ctrl-C.
fn terminal(vm: &Vm<'_>) -> Result<(), Error> {
    let script = format!("tty; {}", super::run::AT_A_TERMINAL);
    let inner = format!(
        "tty; stty rows 31 cols 97; exec {} exec {NAME} -- sh -c \"{script}\"",
        vm.context.limen.display()
    );
    let mut command = Command::new("script");
    command.args(["-qec", &inner, "/dev/null"]).current_dir(vm.folder);
    command.env("XDG_RUNTIME_DIR", vm.folder).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn()?;
    let said = super::run::resize_and_press(&mut child)?;
    let status = child.wait()?;
    let says = |text: &str| said.contains(text);
    let good = says("/dev/hvc")
        && says("31 97")
        && says("40 120")
        && says("caught")
        && status.code() == Some(5);
    ensure(good, || format!("{status}: {said:?}"))
}
