//! The run level: `limen run` and `limen pack` as a user meets them, each with a real VM.
//!
//! Statuses, streams, what the guest sees of the host and what the host sees of the guest, reports.
//! What must not be swallowed, leaked or silent is in `promises.rs`.
//! Neighbour: `cli/tests/plumbing.rs` has a script in QEMU's place, for what no real guest does.

use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use super::watch::Running;
use super::{
    Context, Summary, beside_linux, detached, ended, exec, full_disk, images, launcher, live_root,
    profile, promises, sandboxers, sentences, traces, waiting,
};
use crate::Error;
use crate::image::WITH_PROBES;

/// Seconds for one VM, in emulation on a loaded host.
const LIMIT: &str = "60";
/// What goes through standard input and output.
const STREAM_BYTES: usize = 64 << 20;

pub(super) type Test = fn(&Context, &Path) -> Result<(), Error>;

const TESTS: &[(&str, Test)] = &[
    ("run::statuses", statuses),
    ("run::streams", streams),
    ("run::environment", environment),
    ("run::copies", copies),
    ("run::shared_folder", shared_folder),
    ("run::hidden", hidden),
    ("run::writes_vanish", writes_vanish),
    ("run::other_root", other_root),
    ("run::live_root", live_root::as_on_host),
    ("run::live_root_refused", live_root::refused_by_host),
    ("run::live_root_changes", live_root::changes),
    ("run::report", report),
    ("run::trace_format", traces::format),
    ("run::missing", missing),
    ("run::sysret_off", sysret_off),
    ("run::packed", packed),
    ("run::machines", machines),
    ("run::terminal", terminal),
    ("run::callers_environment", promises::callers_environment),
    ("run::wrong_usage", promises::wrong_usage),
    ("run::sentences", sentences::sentences),
    ("run::output_is_not_lost", promises::output_is_not_lost),
    ("run::children", ended::children),
    ("run::leaves_nothing", ended::leaves_nothing),
    ("run::standstill", ended::standstill),
    ("run::clock", promises::clock),
    ("run::kernel_log", promises::kernel_log),
    ("run::kvm", promises::kvm),
    ("run::launcher", launcher::builds),
    ("run::launcher_lacks", launcher::names_what_is_missing),
    ("run::shared_folder_keeps_no_rights", promises::shared_folder_keeps_no_rights),
    ("run::secrets", promises::secrets),
    ("run::ends_of_its_own", promises::ends_of_its_own),
    ("run::memory", promises::memory),
    ("run::full_disk", full_disk::full_disk),
    ("run::bench_steps", waiting::bench_steps),
    ("run::setuid", promises::setuid),
    ("run::core_to_program", promises::core_to_program),
    ("run::cache_elsewhere", promises::cache_elsewhere),
    ("run::background", detached::background),
    ("run::exec", exec::exec),
    ("run::limits", detached::limits),
    ("run::jail", detached::jail),
    ("run::debugger", detached::debugger),
    ("run::container", images::container),
    ("run::kept", images::kept),
    ("run::randomization", promises::randomization),
    ("run::compare", promises::compare),
    ("run::every_hook", every_hook),
    ("run::refusals", refusals),
    ("run::profile_learned", profile::learned),
    ("run::profile_denies", profile::denies),
    ("run::profile_refused", profile::refused),
    ("run::landlock_crate", sandboxers::of_crate),
    ("run::landlock_setpriv", sandboxers::setpriv),
    ("run::landlock_matrix", beside_linux::matrix),
    ("run::landlock_ports", beside_linux::ports),
    ("run::landlock_as_on_linux", beside_linux::sandboxed),
    ("run::compare_with_linux", promises::compare_with_linux),
];

/// The test of this name.
pub(super) fn find(name: &str) -> Option<Test> {
    TESTS.iter().find(|(other, _)| *other == name).map(|(_, test)| *test)
}

pub(super) fn run(context: &Context) -> Result<Summary, Error> {
    each(context, TESTS.iter().filter(|(name, _)| context.wants(name)))
}

/// Runs the tests, each with a folder of its own.
pub(super) fn each<'a>(
    context: &Context,
    tests: impl Iterator<Item = &'a (&'a str, Test)>,
) -> Result<Summary, Error> {
    let mut summary = Summary::default();
    for (name, test) in tests {
        let folder = tempfile::tempdir()?;
        let _running = Running::begin(name);
        match test(context, folder.path()) {
            Ok(()) => summary.passed += 1,
            Err(why) => {
                failed!("test {name} ... FAILED: {why}");
                summary.failed += 1;
            }
        }
    }
    Ok(summary)
}

pub(super) fn names() -> Vec<String> {
    TESTS.iter().map(|(name, _)| (*name).to_owned()).collect()
}

/// `limen run` with these words, started in `folder`.
pub(super) fn limen(context: &Context, folder: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(&context.limen);
    command.args(["run", "--timeout", LIMIT]).args(words).current_dir(folder).stdin(Stdio::null());
    command
}

pub(super) fn output(context: &Context, folder: &Path, words: &[&str]) -> Result<Output, Error> {
    Ok(limen(context, folder, words).output()?)
}

/// Fails unless the program prints exactly this and exits with 0.
pub(super) fn expect(
    context: &Context,
    folder: &Path,
    words: &[&str],
    stdout: &str,
) -> Result<(), Error> {
    let output = output(context, folder, words)?;
    let said = String::from_utf8_lossy(&output.stdout);
    if output.status.success() && said == stdout {
        return Ok(());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    Err(format!("{words:?}: {}, stdout {said:?}, stderr {stderr:?}", output.status).into())
}

pub(super) fn ensure(holds: bool, what: impl FnOnce() -> String) -> Result<(), Error> {
    if holds { Ok(()) } else { Err(what().into()) }
}

fn statuses(context: &Context, folder: &Path) -> Result<(), Error> {
    std::fs::write(folder.join("text"), "no program")?;
    let cases: &[(&[&str], i32)] = &[
        (&["--", "sh", "-c", "exit 7"], 7),
        (&["--", "sh", "-c", "kill -TERM $$"], 128 + 15),
        (&["--", "no-such-program"], 127),
        (&["--", "./text"], 126),
        (&["--timeout", "1s", "--", "sleep", "50"], 124),
        (&["--smp", "17", "--", "true"], 2),
    ];
    for (words, status) in cases {
        let mut command = Command::new(&context.limen);
        let output = command.arg("run").args(*words).current_dir(folder).output()?;
        ensure(output.status.code() == Some(*status), || format!("{words:?}: {output:?}"))?;
    }
    Ok(())
}

/// 64 MiB in and out are the same; standard error is a stream of its own.
fn streams(context: &Context, folder: &Path) -> Result<(), Error> {
    // Bytes of every value, without a period that a lost buffer could hide in.
    let mut state = 1u64;
    let sent: Vec<u8> = (0..STREAM_BYTES)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        })
        .collect();
    let mut command = limen(context, folder, &["--", "sh", "-c", "cat; echo aside >&2"]);
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    let mut stdin = child.stdin.take().ok_or("no stdin")?;
    let (mut got, mut aside) = (Vec::new(), String::new());
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let written = stdin.write_all(&sent);
            drop(stdin);
            written
        });
        child.stdout.take().ok_or("no stdout")?.read_to_end(&mut got)?;
        child.stderr.take().ok_or("no stderr")?.read_to_string(&mut aside)?;
        writer.join().map_err(|_| "the writer died")??;
        Ok::<(), Error>(())
    })?;
    let status = child.wait()?;
    ensure(status.success() && got == sent, || format!("{status}, {} bytes back", got.len()))?;
    ensure(aside.contains("aside\n"), || format!("stderr {aside:?}"))
}

/// Every hook of the table is asked by the system call that it is about, none is counted while
/// nobody asked for that, and counting may begin and end while other CPUs call.
fn every_hook(context: &Context, folder: &Path) -> Result<(), Error> {
    let program = super::guest::build(context)?;
    let program = program.to_str().ok_or("the path of the tests is not UTF-8")?;
    let policies = "lsm=landlock,yama,tally";
    let words = ["--pack", "--smp", "4", "--append", policies, "--", program, "hooks"];
    let output = output(context, folder, &words)?;
    ensure(output.status.success(), || String::from_utf8_lossy(&output.stdout).into_owned())
}

/// With no to four policies on every hook: each is asked, in the order of `lsm=`; each may refuse,
/// and then the call fails and changes nothing. In a kernel built for it ([`WITH_PROBES`]).
fn refusals(context: &Context, folder: &Path) -> Result<(), Error> {
    let kernel = WITH_PROBES.build(&context.repository, &context.target)?;
    let program = super::guest::build(context)?;
    let [kernel, program] = [&kernel, &program].map(|path| path.display().to_string());
    for policies in ["", "allow2", "allow2,allow1", "allow3,allow1,allow4,allow2"] {
        let append = format!("lsm={policies}");
        let words = ["--pack", "--kernel", &kernel, "--append", &append, "--timeout", "10m"];
        let mut command = Command::new(&context.limen);
        command.arg("run").args(words).args(["--", &program, "refusals"]);
        let output = command.current_dir(folder).stdin(Stdio::null()).output()?;
        ensure(output.status.success(), || {
            let said = [output.stdout, output.stderr].concat();
            format!("{append}: {}", String::from_utf8_lossy(&said))
        })?;
    }
    Ok(())
}

fn environment(context: &Context, folder: &Path) -> Result<(), Error> {
    let words = ["--env", "A=b c", "--cwd", "/usr", "--", "sh", "-c", "echo $A; pwd; nproc"];
    expect(context, folder, &words, "b c\n/usr\n1\n")?;
    let words = ["--smp", "3", "--memory", "128M", "--", "sh", "-c", "nproc; pwd"];
    let here = folder.canonicalize()?;
    expect(context, folder, &words, &format!("3\n{}\n", here.display()))
}

/// --file and --dir, on the live root and packed.
fn copies(context: &Context, folder: &Path) -> Result<(), Error> {
    std::fs::write(folder.join("data"), "copied\n")?;
    std::fs::create_dir_all(folder.join("tree/sub"))?;
    std::fs::write(folder.join("tree/sub/leaf"), "leaf\n")?;
    for way in ["--pack", "--cwd=/"] {
        let words = [
            way,
            "--file",
            "data:/srv/data",
            "--dir",
            "./tree:/srv/tree",
            "--",
            "/bin/cat",
            "/srv/data",
            "/srv/tree/sub/leaf",
        ];
        expect(context, folder, &words, "copied\nleaf\n")?;
        // Into a folder that is a link on a merged-/usr system; found by its name alone.
        let words = [way, "--file=/bin/echo:/bin/limen-own", "--", "sh", "-c", "limen-own way"];
        expect(context, folder, &words, "way\n")?;
        let words = [way, "--file=/bin/echo:/usr/bin/limen-own", "--", "limen-own", "name"];
        expect(context, folder, &words, "name\n")?;
    }
    // Folders that exist stay what they are.
    let script = "[ -e /etc/passwd ] && cat /etc/limen-own && stat -c %a /tmp";
    let words = ["--file=data:/etc/limen-own", "--file=data:/tmp/own", "--", "sh", "-c", script];
    expect(context, folder, &words, "copied\n1777\n")
}

/// What the guest writes below --rw is there for the host, and the other way round.
fn shared_folder(context: &Context, folder: &Path) -> Result<(), Error> {
    let out = folder.join("out");
    std::fs::create_dir(&out)?;
    std::fs::write(out.join("from-host"), "h")?;
    let script = "cat /mnt/from-host; cd /mnt; echo g > a; mv a b; mkdir d; ln -s b l; chmod 705 b";
    expect(context, folder, &["--rw", "out:/mnt", "--", "sh", "-c", script], "h")?;
    let mode = std::fs::metadata(out.join("l"))?.permissions().mode() & 0o777;
    let text = std::fs::read_to_string(out.join("b"))?;
    ensure(
        text == "g\n" && mode == 0o705 && out.join("d").is_dir() && !out.join("a").exists(),
        || format!("text {text:?}, mode {mode:o}"),
    )
}

fn hidden(context: &Context, folder: &Path) -> Result<(), Error> {
    std::fs::write(folder.join("seen"), "s")?;
    std::fs::write(folder.join("key"), "secret")?;
    let key = folder.join("key").display().to_string();
    let words = ["--hide", &key, "--", "sh", "-c", "cat key 2>/dev/null; cat seen; ls"];
    expect(context, folder, &words, "sseen\n")
}

/// The live root is never written to.
fn writes_vanish(context: &Context, folder: &Path) -> Result<(), Error> {
    std::fs::write(folder.join("old"), "old")?;
    let script = "echo new > old; echo x > made; cat old made";
    expect(context, folder, &["--", "sh", "-c", script], "new\nx\n")?;
    let old = std::fs::read_to_string(folder.join("old"))?;
    ensure(old == "old" && !folder.join("made").exists(), || "the host's files changed".into())
}

/// --root: another tree is all that the guest has.
fn other_root(context: &Context, folder: &Path) -> Result<(), Error> {
    let root = folder.join("root");
    std::fs::create_dir_all(root.join("bin"))?;
    std::fs::copy("/bin/busybox", root.join("bin/sh"))?;
    std::fs::write(root.join("bin/file"), "")?;
    let script = "cd /bin; echo *; [ -e /usr ] || echo alone";
    let root = root.display().to_string();
    expect(context, folder, &["--root", &root, "--", "/bin/sh", "-c", script], "file sh\nalone\n")
}

/// --json: the fate, and memory that the program took.
fn report(context: &Context, folder: &Path) -> Result<(), Error> {
    let script = "head -c 100M /dev/zero | tail -c 90M | wc -c; exit 3";
    let words = ["--json=report.json", "--", "sh", "-c", script];
    let output = output(context, folder, &words)?;
    let report = std::fs::read_to_string(folder.join("report.json"))?;
    let json: serde_json::Value = serde_json::from_str(&report)?;
    let peak = json["peak_memory_bytes"].as_u64().unwrap_or(0);
    let good = output.status.code() == Some(3)
        && json["exit_code"] == 3
        && json["status"] == "exit"
        && json["schema_version"].is_u64()
        && json.get("syscalls").is_some_and(serde_json::Value::is_null)
        && json["boot_ms"].as_f64().is_some_and(|boot_ms| boot_ms > 0.0)
        && (90 << 20..900 << 20).contains(&peak);
    ensure(good, || format!("{}: {report}", output.status))
}

fn missing(context: &Context, folder: &Path) -> Result<(), Error> {
    let script = "cat /srv/absent/file ./here 2>/dev/null; exit 0";
    let words = [
        "--missing-files",
        "--missing-syscalls",
        "--syscall-summary",
        "--cwd",
        "/tmp",
        "--",
        "sh",
        "-c",
        script,
    ];
    let output = output(context, folder, &words)?;
    let said = String::from_utf8_lossy(&output.stderr);
    let wanted =
        ["  /srv/absent/file\n", "  /tmp/here\n", "missing syscalls: none\n", " execve (59)\n"];
    for want in wanted {
        ensure(said.contains(want), || format!("no {want:?} in {said}"))?;
    }
    // As they were: by name where Linux has one, and by number.
    let calls = "syscall(425, 1, 0); syscall(1999); syscall(1999); syscall(513)";
    let output = self::output(context, folder, &["--missing-syscalls", "--", "perl", "-e", calls])?;
    let said = String::from_utf8_lossy(&output.stderr);
    for want in [" 1 io_uring_setup (425)\n", " 2 ? (1999)\n", " 1 ? (513)\n"] {
        ensure(said.contains(want), || format!("no {want:?} in {said}"))?;
    }
    Ok(())
}

/// With `sysret=off` no return is by SYSRET; without it those of plain calls are.
fn sysret_off(context: &Context, folder: &Path) -> Result<(), Error> {
    for (parameter, is_off) in [("sysret=on", false), ("sysret=off", true)] {
        let words = ["--append", parameter, "--", "cat", "/proc/limen/exits"];
        let output = output(context, folder, &words)?;
        let said = String::from_utf8_lossy(&output.stdout);
        let row = said.lines().find(|line| line.contains(" syscall ")).unwrap_or_default();
        let counts: Vec<u64> = row.split(' ').skip(2).filter_map(|n| n.parse().ok()).collect();
        let [by_sysret, .., by_choice] = counts[..] else {
            return Err(format!("{parameter}: {said:?}").into());
        };
        let few = if is_off { by_sysret } else { by_choice };
        let many = if is_off { by_choice } else { by_sysret };
        ensure(few == 0 && many > 20, || format!("{parameter}: {said:?}"))?;
    }
    Ok(())
}

/// `limen pack` gives the same image each time, with the program in it.
fn packed(context: &Context, folder: &Path) -> Result<(), Error> {
    let mut images = Vec::new();
    for name in ["a.cpio", "b.cpio"] {
        let mut command = Command::new(&context.limen);
        command.args(["pack", "-o", name, "--", "/bin/ls", "-l"]).current_dir(folder);
        let output = command.output()?;
        ensure(output.status.success(), || format!("{output:?}"))?;
        images.push(std::fs::read(folder.join(name))?);
    }
    let ls = std::fs::read("/bin/ls")?;
    let has_ls = images[0].windows(ls.len().min(4096)).any(|part| part == &ls[..part.len()]);
    ensure(images[0] == images[1] && has_ls, || "images differ, or lack the program".into())?;
    // What is added brings its libraries along.
    let script = "perl -e 'print 6 * 7'";
    expect(
        context,
        folder,
        &["--pack", "--file", "/usr/bin/perl", "--", "sh", "-c", script],
        "42",
    )?;
    // Nothing else of the host is there.
    expect(context, folder, &["--pack", "--", "/bin/ls", "/usr/bin"], "ls\n")
}

/// Both machine models and few megabytes; --dry-run only prints.
fn machines(context: &Context, folder: &Path) -> Result<(), Error> {
    expect(context, folder, &["--machine", "q35", "--smp", "2", "--", "nproc"], "2\n")?;
    let words = ["--memory", "32M", "--pack", "--", "/bin/busybox", "echo", "small"];
    expect(context, folder, &words, "small\n")?;
    let output = output(context, folder, &["--dry-run", "--", "true"])?;
    let said = String::from_utf8_lossy(&output.stdout);
    ensure(output.status.success() && said.contains("qemu-system-x86_64"), || said.to_string())
}

/// With a terminal on both sides: its size, also when the window changes, raw mode, Ctrl-C to the
/// foreground group.
fn terminal(context: &Context, folder: &Path) -> Result<(), Error> {
    let script = AT_A_TERMINAL;
    let inner = format!(
        "tty; stty rows 31 cols 97; exec {} run --timeout {LIMIT} -- sh -c \"{script}\"",
        context.limen.display()
    );
    let mut command = Command::new("script");
    let command = command.args(["-qec", &inner, "/dev/null"]).current_dir(folder);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let said = resize_and_press(&mut child)?;
    let status = child.wait()?;
    let good = status.code() == Some(5) && said.contains("31 97") && said.contains("caught");
    ensure(good && said.contains("40 120"), || format!("{status}: {said:?}"))
}

/// Tells a window's size, at first and when it changes, until Ctrl-C.
pub(super) const AT_A_TERMINAL: &str = "trap 'stty size' WINCH; trap 'echo caught; exit 5' INT; \
    stty size; echo ready; while :; do sleep 0.1; done";

/// All that a program at a terminal says, whose name it begins with: the window changes once the
/// program says that it is ready, and Ctrl-C is pressed once it has said the new size.
pub(super) fn resize_and_press(child: &mut Child) -> Result<String, Error> {
    let mut stdin = child.stdin.take().ok_or("no stdin")?;
    let mut stdout = child.stdout.take().ok_or("no stdout")?;
    let (mut said, mut part, mut is_resized, mut is_pressed) =
        (String::new(), [0; 256], false, false);
    loop {
        let got = stdout.read(&mut part)?;
        if got == 0 {
            return Ok(said);
        }
        said.push_str(&String::from_utf8_lossy(&part[..got]));
        if !is_resized && said.contains("ready") {
            is_resized = true;
            let terminal = said.lines().next().unwrap_or_default().trim_end();
            let words = ["-F", terminal, "rows", "40", "cols", "120"];
            let status = Command::new("stty").args(words).status()?;
            ensure(status.success(), || format!("stty {terminal}: {status}"))?;
        }
        if is_resized && !is_pressed && said.contains("40 120") {
            is_pressed = true;
            stdin.write_all(b"\x03")?;
        }
    }
}
