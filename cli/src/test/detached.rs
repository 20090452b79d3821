//! VMs in the background, limits, and QEMU's jail as a user meets them: part of the run level.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use super::Context;
use super::run::{ensure, limen, output};
use crate::Error;

/// Longest to wait for what comes from a guest.
const LIMIT: Duration = Duration::from_secs(60);

/// A command with a runtime folder of its own.
fn limen_of(context: &Context, folder: &Path, words: &[&str]) -> Result<Output, Error> {
    let mut command = Command::new(&context.limen);
    command.args(words).current_dir(folder).env("XDG_RUNTIME_DIR", folder).stdin(Stdio::null());
    Ok(command.output()?)
}

/// Starts in the background, is listed, tells what it said, ends when asked; a name is used once at
/// a time, and an end of its own is told.
pub(super) fn background(context: &Context, folder: &Path) -> Result<(), Error> {
    let run = |words: &[&str]| limen_of(context, folder, words);
    let script = "trap 'echo asked; exit 3' TERM; echo up; while :; do sleep 0.1; done";
    let words = ["run", "--detach", "one", "--pack", "--file", "/bin/sleep", "--", "/bin/sh", "-c"];
    let words = [&words[..], &[script]].concat();
    let started = run(&words)?;
    ensure(started.status.success(), || format!("{started:?}"))?;
    let result: Result<(), Error> = (|| {
        let again = run(&words)?;
        ensure(again.status.code() == Some(2), || format!("{again:?}"))?;
        let list = String::from_utf8_lossy(&run(&["ps"])?.stdout).into_owned();
        let is_listed = list.lines().any(|l| l.starts_with("one ") && l.contains(" running "));
        ensure(is_listed, || list)?;
        let began = Instant::now();
        while run(&["logs", "one"])?.stdout != b"up\n" {
            ensure(began.elapsed() < LIMIT, || "the log stays empty".to_owned())?;
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    })();
    let stopped = run(&["stop", "one"])?;
    let said = String::from_utf8_lossy(&stopped.stderr).into_owned();
    result?;
    ensure(stopped.status.success() && said.contains("exited 3"), || said)?;
    let words = ["run", "--detach", "two", "--pack", "--", "/bin/sh", "-c", "echo out; exit 5"];
    let started = run(&words)?;
    ensure(started.status.success(), || format!("{started:?}"))?;
    let followed = run(&["logs", "-f", "two"])?;
    ensure(followed.stdout == b"out\n", || format!("{followed:?}"))?;
    let list = String::from_utf8_lossy(&run(&["ps"])?.stdout).into_owned();
    ensure(list.contains("two") && list.contains("exited 5"), || list)?;
    ensure(run(&["stop", "two"])?.status.success(), || "stop of what has ended".to_owned())?;
    let missing = run(&["logs", "two"])?;
    ensure(missing.status.code() == Some(2), || format!("{missing:?}"))
}

/// Each limit ends the VM and is named.
pub(super) fn limits(context: &Context, folder: &Path) -> Result<(), Error> {
    for (limit, script) in [
        ("cpu=1s", "while :; do :; done"),
        ("output=1M", "while :; do echo yes yes yes yes yes yes yes; done"),
        ("memory=64M", "sleep 60"),
    ] {
        let words = ["--limit", limit, "--", "sh", "-c", script];
        let output = output(context, folder, &words)?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let name = limit.split('=').next().unwrap_or_default();
        let good =
            output.status.code() == Some(124) && said.contains(&format!("more than {name}="));
        ensure(good, || format!("{limit}: {} {said}", output.status))?;
    }
    let words = ["--limit", "cpu=60s,memory=4G,output=1M", "--", "echo", "within"];
    super::run::expect(context, folder, &words, "within\n")?;
    let output = limen(context, folder, &["--limit", "time=3", "--", "true"]).output()?;
    ensure(output.status.code() == Some(2), || format!("{output:?}"))
}

/// What was arranged is told, and it is true: of a packed program's QEMU, by /proc.
pub(super) fn jail(context: &Context, folder: &Path) -> Result<(), Error> {
    let words =
        ["-v", "--pack", "--file", "/bin/sleep", "--", "/bin/sh", "-c", "echo up; sleep 60"];
    let mut child =
        limen(context, folder, &words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let mut first = [0; 3];
    std::io::Read::read_exact(child.stdout.as_mut().ok_or("no stdout")?, &mut first)?;
    let children = format!("/proc/{0}/task/{0}/children", child.id());
    let qemu: u32 = std::fs::read_to_string(children)?.trim().parse()?;
    let status = std::fs::read_to_string(format!("/proc/{qemu}/status"))?;
    let namespace = |pid: u32, name: &str| std::fs::read_link(format!("/proc/{pid}/ns/{name}"));
    let differs =
        |name: &str| Ok::<_, Error>(namespace(qemu, name)? != namespace(child.id(), name)?);
    let (user, net) = (differs("user")?, differs("net")?);
    child.kill()?;
    let output = child.wait_with_output()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let has = |line: &str| status.lines().any(|l| l.split_whitespace().eq(line.split(' ')));
    ensure(has("NoNewPrivs: 1") && has("Seccomp: 2"), || status.clone())?;
    ensure(said.contains("a user namespace of its own") == user, || said.clone())?;
    ensure(said.contains("no network") == net && (net || said.contains("not more:")), || said)
}

/// `--gdb` waits, and the file that it suggests has the kernel's functions by their plain names;
/// where gdb is installed, it stops there.
pub(super) fn debugger(context: &Context, folder: &Path) -> Result<(), Error> {
    use std::io::BufRead as _;
    let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let option = format!("--gdb={port}");
    let words = [option.as_str(), "--pack", "--", "/bin/true"];
    let mut child = limen(context, folder, &words).stderr(Stdio::piped()).spawn()?;
    let mut said = std::io::BufReader::new(child.stderr.take().ok_or("no stderr")?);
    let mut line = String::new();
    while !line.contains("target remote") {
        line.clear();
        ensure(said.read_line(&mut line)? > 0, || "no gdb command is suggested".to_owned())?;
    }
    let file = line.trim().rsplit(' ').next().unwrap_or_default().to_owned();
    let stop = || {
        let target = format!("target remote 127.0.0.1:{port}");
        let words = ["-batch", "-nx", "-ex", &target, "-ex", "break kernel::main", "-ex"];
        let words = [&words[..], &["continue", "-ex", "kill", &file]].concat();
        Command::new("gdb").args(words).stdin(Stdio::null()).output()
    };
    let has_name = std::fs::read(&file)?.windows(13).any(|part| part == b"\0kernel::main");
    // QEMU listens a moment after the command is suggested.
    std::thread::sleep(Duration::from_secs(1));
    let stopped = stop();
    // What gdb has not ended, Ctrl-C does.
    let pid = rustix::process::Pid::from_raw(child.id() as i32).ok_or("an impossible process")?;
    rustix::process::kill_process(pid, rustix::process::Signal::INT)?;
    let began = Instant::now();
    while child.try_wait()?.is_none() {
        ensure(began.elapsed() < LIMIT, || "Ctrl-C does not end run --gdb".to_owned())?;
        std::thread::sleep(Duration::from_millis(50));
    }
    ensure(has_name, || format!("{file}: no kernel::main"))?;
    if let Ok(output) = stopped {
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        ensure(text.contains("Breakpoint 1, "), || format!("{text} {output:?}"))?;
    }
    Ok(())
}
