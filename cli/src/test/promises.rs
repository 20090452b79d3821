//! What `limen run` promises beside running: nothing of the caller's leaks into the guest, nothing
//! that was asked for is ignored, nothing that a program wrote is lost without a word.
//!
//! Neighbour: `run.rs`, whose level these tests belong to.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::Context;
use super::run::{ensure, expect, limen, output};
use crate::Error;

/// How far behind the host's clock the guest's may be at its start, and be read in emulation.
const CLOCK_BEHIND: Duration = Duration::from_millis(100);

/// Only named variables arrive, and the boot configuration is nobody's to read.
pub(super) fn callers_environment(context: &Context, folder: &Path) -> Result<(), Error> {
    let script = "echo $TOKEN,$OTHER,$LC_TIME; cat /.limen/config 2>/dev/null; exit 0";
    let run = |words: &[&str]| -> Result<String, Error> {
        let mut command = limen(context, folder, words);
        command.args(["--", "sh", "-c", script]);
        command.env("TOKEN", "secret").env("OTHER", "o").env("LC_TIME", "C");
        Ok(String::from_utf8_lossy(&command.output()?.stdout).into_owned())
    };
    for (words, wanted) in [
        (&[][..], ",,C\n"),
        (&["--pack"], ",,C\n"),
        (&["--env", "OTHER"], ",o,C\n"),
        (&["--env", "TOKEN=x"], "x,,C\n"),
        (&["--env-all"], "secret,o,C\n"),
    ] {
        let said = run(words)?;
        ensure(said == wanted, || format!("{words:?}: {said:?}"))?;
    }
    let mut command = limen(context, folder, &["--dry-run", "--", "true"]);
    command.env("XDG_CACHE_HOME", folder).output()?;
    let image = std::fs::metadata(folder.join("limen/dry-run.cpio"))?;
    ensure(image.permissions().mode() & 0o077 == 0, || "others can read the image".into())
}

/// Wrong usage is status 2 and says what is right, before any program runs.
pub(super) fn wrong_usage(context: &Context, folder: &Path) -> Result<(), Error> {
    std::fs::create_dir(folder.join("out"))?;
    let cases: &[(&[&str], i32, &str)] = &[
        (&["--memroy", "256M", "ls"], 2, "--memory"),
        (&["--json", "rep.json", "ls"], 2, "--json=rep.json"),
        (&["--gdb", "2345", "ls"], 2, "--gdb=2345"),
        (&["--rw", "/", "--", "ls"], 2, "cannot be shared"),
        (&["--rw", "./out:/", "--", "ls"], 2, "cannot be shared"),
        (&["--pack", "--cwd", "x", "--", "ls"], 2, "must begin with /"),
        (&["--cwd", "/nonexistent", "--", "ls"], 2, "--cwd /nonexistent"),
        (&["--json=/nonexistent/x", "--", "ls"], 2, "--json /nonexistent/x"),
        (&["--trace", "/nonexistent/x", "--", "ls"], 2, "--trace /nonexistent/x"),
        (&["--cpu", "qemu32", "--", "ls"], 2, "64-bit"),
        (&["--root", "/nonexistent", "--", "ls"], 2, "--root /nonexistent"),
        (&["--rw", "/nonexistent", "--", "ls"], 2, "--rw /nonexistent"),
        (&["--file", "/nonexistent", "--", "ls"], 2, "--file /nonexistent"),
        (&["--dir", "/etc/passwd", "--", "ls"], 2, "--dir /etc/passwd: not a folder"),
        (&["--kernel", "/nonexistent", "--", "ls"], 2, "--kernel /nonexistent"),
    ];
    for (words, status, says) in cases {
        let output = output(context, folder, words)?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let good = output.status.code() == Some(*status) && said.contains(says);
        ensure(good && output.stdout.is_empty(), || format!("{words:?}: {output:?}"))?;
    }
    let mut command = limen(context, folder, &["--", "ls"]);
    let lacks = command.env("LIMEN_QEMU", "no-such-qemu").output()?;
    let said = String::from_utf8_lossy(&lacks.stderr).into_owned();
    ensure(lacks.status.code() == Some(2) && said.contains("apt-get install"), || said)?;
    // A name that begins with a dash is a program behind `--`.
    let found = output(context, folder, &["--", "--memroy"])?;
    ensure(found.status.code() == Some(127), || format!("{found:?}"))?;
    std::fs::write(folder.join("x"), "copied\n")?;
    for place in ["/", "/tmp/", "/tmp"] {
        let script = format!("cat {place}/x");
        let words = ["--file", &format!("x:{place}"), "--", "sh", "-c", &script];
        expect(context, folder, &words, "copied\n")?;
    }
    std::fs::write(folder.join("script"), "#!/nonexistent/interpreter\n")?;
    std::fs::set_permissions(folder.join("script"), std::fs::Permissions::from_mode(0o755))?;
    let lacks = output(context, folder, &["--", "./script"])?;
    let said = String::from_utf8_lossy(&lacks.stderr).into_owned();
    ensure(lacks.status.code() == Some(127) && said.contains("/nonexistent/interpreter"), || said)
}

/// A full disk and a closed descriptor are errors of the run, though the program knew nothing of
/// them; and of what this program says itself. Nothing panics, and what was not written to is no
/// error.
pub(super) fn output_is_not_lost(context: &Context, folder: &Path) -> Result<(), Error> {
    const FULL: &str = "No space left";
    const CLOSED: &str = "Bad file descriptor";
    let cases = [
        ("run -- echo lost", ">/dev/full", 1, FULL),
        ("run -- echo lost", ">&-", 1, CLOSED),
        ("run -- true", ">&-", 0, ""),
        ("run -- true", ">/dev/full 2>&-", 0, ""),
        ("run -- sh -c 'echo lost >&2; exit 3'", ">&-", 3, ""),
        ("run -- sh -c 'echo lost >&2'", "2>/dev/full", 1, ""),
        ("run -- sh -c 'echo lost >&2'", "2>&-", 1, ""),
        ("run -- echo lost", ">&- 2>&-", 1, ""),
        ("run -- echo lost", ">/dev/full 2>/dev/full", 1, ""),
        ("run -- cat", "<&-", 0, ""),
        ("run --dry-run -- true", ">/dev/full", 1, FULL),
        ("man", ">/dev/full", 1, FULL),
        ("man", ">&-", 1, CLOSED),
        ("run --help", ">/dev/full", 1, FULL),
        ("--version", ">&-", 1, CLOSED),
        ("mitigations --list", ">/dev/full", 1, FULL),
        ("ps", ">&-", 1, CLOSED),
        ("run --no-such-option", "2>/dev/full", 2, ""),
        ("logs no-such-vm", "2>&-", 2, ""),
    ];
    for (words, streams, status, says) in cases {
        let script = format!("\"$0\" {words} {streams}");
        let mut command = Command::new("sh");
        command.args(["-c", &script]).arg(&context.limen).current_dir(folder);
        let output = command.stdin(Stdio::null()).output()?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let named = says.is_empty() || said.contains("standard output: ") && said.contains(says);
        let good = output.status.code() == Some(status) && named;
        ensure(good, || format!("{words} {streams}: {}: {said}", output.status))?;
    }
    Ok(())
}

/// The guest's clock is the host's: never ahead, and hardly behind.
pub(super) fn clock(context: &Context, folder: &Path) -> Result<(), Error> {
    let now = || SystemTime::now().duration_since(UNIX_EPOCH);
    std::fs::create_dir(folder.join("out"))?;
    // The moment at which the guest looks is in what it reads from here.
    let script = "read line; date +%s%N; : >/out/made; date +%s%N";
    let mut command = limen(context, folder, &["--rw", "out:/out", "--", "bash", "-c", script]);
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn()?;
    std::thread::sleep(Duration::from_secs(3));
    let before = now()?;
    drop(child.stdin.take());
    let output = child.wait_with_output()?;
    let after = now()?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let times: Vec<Duration> =
        said.lines().filter_map(|line| line.parse().ok()).map(Duration::from_nanos).collect();
    let [first, last] = times[..] else { return Err(format!("{said:?}").into()) };
    let good = first + CLOCK_BEHIND >= before && last <= after;
    ensure(good, || format!("{before:?} <= {first:?}, {last:?} <= {after:?}"))?;
    let made =
        std::fs::metadata(folder.join("out/made"))?.modified()?.duration_since(UNIX_EPOCH)?;
    ensure(made <= after, || format!("made at {made:?}, after {after:?}"))
}

/// What a guest writes to a shared folder has no rights of its owner's, and is no device.
pub(super) fn shared_folder_keeps_no_rights(context: &Context, folder: &Path) -> Result<(), Error> {
    let out = folder.join("out");
    std::fs::create_dir(&out)?;
    let script = "cd /out; cp /bin/true a; chmod 6755 a; stat -c %a a; \
                  (umask 0; install -m 4755 /bin/true b); stat -c %a b; \
                  mkfifo f 2>&1 | grep -c 'not permitted'; \
                  mknod n c 1 3 2>&1 | grep -c 'not permitted'";
    let words = ["--rw", "out:/out", "--", "sh", "-c", script];
    let output = output(context, folder, &words)?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let warned = String::from_utf8_lossy(&output.stderr).contains("are not kept");
    ensure(said == "755\n755\n1\n1\n" && warned, || format!("{output:?}"))?;
    for name in ["a", "b"] {
        let mode = std::fs::metadata(out.join(name))?.permissions().mode();
        ensure(mode & 0o6000 == 0, || format!("{name} has mode {mode:o}"))?;
    }
    Ok(())
}

/// What is in the list is hidden, below --rw too, and --show names it.
pub(super) fn secrets(context: &Context, folder: &Path) -> Result<(), Error> {
    let home = folder.canonicalize()?;
    std::fs::write(home.join(".npmrc"), "token")?;
    let run = |words: &[&str]| -> Result<Output, Error> {
        Ok(limen(context, folder, words).env("HOME", &home).output()?)
    };
    let script = ["--", "sh", "-c", "cat .npmrc /etc/shadow 2>/dev/null; echo end"];
    let hidden = run(&script)?;
    ensure(hidden.stdout == b"end\n", || format!("{hidden:?}"))?;
    let path = home.join(".npmrc").display().to_string();
    let shown = run(&[&["--show", &path][..], &script].concat())?;
    ensure(shown.stdout == b"tokenend\n", || format!("{shown:?}"))?;
    let shared = run(&[&["--rw", "."][..], &script].concat())?;
    ensure(shared.status.code() == Some(2), || format!("{shared:?}"))?;
    let shared = run(&[&["--rw", ".", "--show", &path][..], &script].concat())?;
    ensure(shared.stdout == b"tokenend\n", || format!("{shared:?}"))
}

/// Power off, halt and reboot are good ends.
pub(super) fn ends_of_its_own(context: &Context, folder: &Path) -> Result<(), Error> {
    for word in ["poweroff", "halt", "reboot"] {
        let script = format!("echo before; exec busybox {word} -f");
        expect(context, folder, &["--", "sh", "-c", &script], "before\n")?;
    }
    Ok(())
}

/// A program that is ended for its memory is reported, with the option that helps.
pub(super) fn memory(context: &Context, folder: &Path) -> Result<(), Error> {
    let script = "head -c 200M /dev/zero | tail -c 200M | wc -c";
    let output = output(context, folder, &["--memory", "64M", "--", "sh", "-c", script])?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure(said.contains("out of memory") && said.contains("--memory 128M"), || said)
}

/// A home that cannot be written is no reason to fail.
pub(super) fn cache_elsewhere(context: &Context, folder: &Path) -> Result<(), Error> {
    let mut command = limen(context, folder, &["--", "echo", "runs"]);
    let output = command.env("HOME", "/proc/none").env_remove("XDG_CACHE_HOME").output()?;
    ensure(output.stdout == b"runs\n", || format!("{output:?}"))
}

/// Programs lie at random places, or where the parameter or the setting says at the same.
pub(super) fn randomization(context: &Context, folder: &Path) -> Result<(), Error> {
    let script = "places() { cut -d' ' -f1 /proc/self/maps; }
        same() { if [ \"$(places)\" = \"$(places)\" ]; then echo same; else echo others; fi; }
        same; cd /proc/sys/kernel; cat randomize_va_space
        echo 0 >randomize_va_space; same; echo 2 >randomize_va_space; same";
    let words = ["--", "sh", "-c", script];
    expect(context, folder, &words, "others\n2\nsame\nothers\n")?;
    let words = [&["--append", "norandmaps"][..], &words].concat();
    expect(context, folder, &words, "same\n0\nsame\nothers\n")
}

/// `limen compare` gives the same instructions each time, also of several CPUs; isolated page
/// tables cost some.
pub(super) fn compare(context: &Context, folder: &Path) -> Result<(), Error> {
    let sets = ["--with", "pti=off", "--with", "pti=on", "--"];
    let run = |words: &[&str]| -> Result<Vec<u64>, Error> {
        let mut command = Command::new(&context.limen);
        command.args(["compare", "--json", "--memory", "128M"]).args(words).current_dir(folder);
        let output = command.output()?;
        ensure(output.status.success(), || format!("{output:?}"))?;
        let json: serde_json::Value = serde_json::from_slice(&output.stdout)?;
        let sets = json["sets"].as_array().cloned().unwrap_or_default();
        Ok(sets.iter().filter_map(|set| set["instructions"].as_u64()).collect())
    };
    let twice = |words: &[&str]| {
        let (first, second) = (run(words)?, run(words)?);
        let good = first == second && first.len() == 2 && first.iter().all(|&n| n > 10_000);
        ensure(good, || format!("{words:?}: {first:?}, then {second:?}"))?;
        Ok::<_, Error>(first)
    };
    let one = twice(&[&sets[..], &["/bin/ls", "/"]].concat())?;
    ensure(one[0] < one[1], || format!("isolation costs nothing: {one:?}"))?;
    let pipes = ["/bin/sh", "-c", "echo a | cat | cat; echo b & wait"];
    twice(&[&["--smp", "3", "--file", "/bin/cat"], &sets[..], &pipes].concat()).map(|_| ())
}

/// Linux as a set: the same output and, twice, the same count; and a page without a network.
pub(super) fn compare_with_linux(context: &Context, folder: &Path) -> Result<(), Error> {
    let mut command = Command::new(&context.limen);
    command.args(["compare", "--json", "--html", "page.html", "--with", "pti=off"]);
    command.args(["--with", "linux", "--with", "linux", "--", "/bin/ls", "-l", "/usr/bin"]);
    let output = command.current_dir(folder).output()?;
    ensure(output.status.success(), || format!("{output:?}"))?;
    let json: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let of = |set: usize| json["sets"][set]["instructions"].as_u64().unwrap_or(0);
    let is_linux = json["sets"][1]["kernel"].as_str().is_some_and(|k| k.starts_with("Linux "));
    let good = is_linux && of(0) > 10_000 && of(1) > 10_000 && of(1) == of(2);
    ensure(good, || json.to_string())?;
    let page = std::fs::read_to_string(folder.join("page.html"))?;
    let is_whole = page.contains("</html>") && !page.contains("http") && page.contains("linux");
    ensure(is_whole, || page)
}
