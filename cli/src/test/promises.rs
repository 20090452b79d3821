//! What `limen run` promises beside running: nothing of the caller's leaks into the guest, nothing
//! that was asked for is ignored, nothing that a program wrote is lost without a word.
//!
//! Neighbour: `run.rs`, whose level these tests belong to.

use std::fs::Permissions;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::Context;
use super::run::{ensure, expect, limen, output};
use crate::Error;

/// How far behind the host's clock the guest's may be.
const CLOCK_BEHIND_NS: i128 = 10_000_000;
/// Longest to ask the guest what time it is.
const CLOCK_ASKED: Duration = Duration::from_secs(60);

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
        let good = output.status.code() == Some(status) && named && !said.contains("(os error");
        ensure(good, || format!("{words} {streams}: {}: {said}", output.status))?;
    }
    Ok(())
}

/// The guest's clock is the host's: not ahead, and less than 10 ms behind.
///
/// Each answer lies between two readings of the host's clock, and so bounds the difference from
/// both sides; a slow host makes the bounds wide, never wrong. It is asked until they prove one or
/// the other. What the guest says of its files is then no later than the host's clock.
pub(super) fn clock(context: &Context, folder: &Path) -> Result<(), Error> {
    std::fs::create_dir(folder.join("out"))?;
    let script = "while read line; do echo $EPOCHREALTIME; done; cd /out; echo a >made; \
                  echo b >>made; touch -d @$EPOCHREALTIME set; cp -p made kept; mkdir folder";
    let mut command = limen(context, folder, &["--rw", "out:/out", "--", "bash", "-c", script]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut to = child.stdin.take().ok_or("no stdin")?;
    let mut from = BufReader::new(child.stdout.take().ok_or("no stdout")?);
    let began = Instant::now();
    let (mut least, mut most) = (i128::MIN, i128::MAX);
    while least < -CLOCK_BEHIND_NS && most >= -CLOCK_BEHIND_NS {
        ensure(began.elapsed() < CLOCK_ASKED, || {
            format!("this host is too slow to tell: {least} to {most} ns ahead")
        })?;
        let before = now_ns()?;
        to.write_all(b"\n")?;
        let mut line = String::new();
        from.read_line(&mut line)?;
        let after = now_ns()?;
        // Seconds with six digits behind the point, whatever it is.
        let digits: String = line.chars().filter(char::is_ascii_digit).collect();
        let guest = digits.parse::<i128>()? * 1000;
        (least, most) = (least.max(guest - after), most.min(guest - before));
    }
    drop(to);
    ensure(child.wait()?.success(), || "the guest's script failed".to_owned())?;
    let after = now_ns()?;
    ensure(least <= 0, || format!("the guest's clock is {least} ns ahead"))?;
    ensure(most >= -CLOCK_BEHIND_NS, || format!("the guest's clock is {} ns behind", -most))?;
    for name in ["made", "set", "kept", "folder"] {
        let meta = std::fs::metadata(folder.join("out").join(name))?;
        let modified = i128::from(meta.mtime()) * 1_000_000_000 + i128::from(meta.mtime_nsec());
        ensure(modified <= after, || format!("{name} is {} ns ahead", modified - after))?;
    }
    Ok(())
}

/// The host's clock, nanoseconds since 1970.
fn now_ns() -> Result<i128, Error> {
    Ok(SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos().try_into()?)
}

/// Programs read the kernel's log as on Linux: dmesg(1) and /dev/kmsg.
pub(super) fn kernel_log(context: &Context, folder: &Path) -> Result<(), Error> {
    let script = "dmesg | wc -l; timeout 5 head -n 1 /dev/kmsg | wc -l";
    let output = output(context, folder, &["--", "sh", "-c", script])?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let lines: Vec<usize> = said.lines().filter_map(|line| line.trim().parse().ok()).collect();
    ensure(lines.len() == 2 && lines[0] >= 1 && lines[1] == 1, || format!("{output:?}"))
}

/// Where there is no KVM, one line says what is missing and what works; where there is, it works.
pub(super) fn kvm(context: &Context, folder: &Path) -> Result<(), Error> {
    let output = output(context, folder, &["--accel", "kvm", "--", "echo", "by KVM"])?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let is_told = output.status.code() == Some(2)
        && said.lines().count() == 1
        && said.contains("--accel kvm: ")
        && said.contains("--accel tcg works");
    ensure(is_told || output.stdout == b"by KVM\n", || format!("{output:?}"))
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

/// A program that is ended for its memory is reported by its name, with the option that helps.
pub(super) fn memory(context: &Context, folder: &Path) -> Result<(), Error> {
    let script = "head -c 200M /dev/zero | tail -c 200M | wc -c";
    let output = output(context, folder, &["--memory", "64M", "--", "sh", "-c", script])?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let is_named = said.contains("out of memory: killed tail (");
    ensure(is_named && said.contains("--memory 128M"), || said)?;
    // A crowd of which none has much: all go, and what they are is told.
    let script = "i=0; while [ $i -lt 3000 ]; do sleep 1000 & i=$((i + 1)); done; wait";
    let output =
        super::run::output(context, folder, &["--memory", "64M", "--", "sh", "-c", script])?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let is_named = said.contains("out of memory: killed sleep and the others of process group ");
    ensure(is_named && said.contains("--memory 128M"), || said)
}

/// The first program has its owner's rights where its mode says so, as any other has.
pub(super) fn setuid(context: &Context, folder: &Path) -> Result<(), Error> {
    let program = folder.join("whose");
    std::fs::copy("/usr/bin/id", &program)?;
    let owner = format!("{}\n", std::fs::metadata(&program)?.uid());
    std::fs::set_permissions(folder, Permissions::from_mode(0o755))?;
    let user = ["--user", "12345", "--", "./whose"];
    for (mode, effective) in [(0o4755, owner.as_str()), (0o755, "12345\n")] {
        std::fs::set_permissions(&program, Permissions::from_mode(mode))?;
        expect(context, folder, &[&user[..], &["-u"]].concat(), effective)?;
        expect(context, folder, &[&user[..], &["-ru"]].concat(), "12345\n")?;
    }
    Ok(())
}

/// Core files go to a program where the pattern names one (core(5)), whatever RLIMIT_CORE is; it
/// finds the process while it reads, and the process's end waits for it.
pub(super) fn core_to_program(context: &Context, folder: &Path) -> Result<(), Error> {
    let script = "cd /tmp; cat >helper <<'END'
#!/bin/sh
{ echo $# $2 $3; id -u; pwd; echo $PATH; cat /proc/$1/comm; } >/tmp/said
head -c 4 >/tmp/head; cat >/tmp/rest
END
        chmod +x helper; ulimit -c 0; cd /proc/sys/kernel; cat core_pipe_limit
        echo '|/tmp/helper %p %s a%%b' >core_pattern; echo 1 >core_pipe_limit
        setpriv --reuid 12345 sh -c 'kill -ABRT $$' 2>&1; echo $?
        cat /tmp/said; od -An -c /tmp/head; test $(wc -c </tmp/rest) -gt 10000 && echo long
        printf '#!/bin/sh\\necho >>/tmp/ends; kill -ABRT $$\\n' >/tmp/ends.sh; chmod +x /tmp/ends.sh
        echo 0 >core_pipe_limit; echo '|/tmp/ends.sh' >core_pattern; sh -c 'kill -ABRT $$' 2>&1
        sleep 1; wc -l </tmp/ends
        echo '|/tmp/none' >core_pattern; sh -c 'kill -ABRT $$' 2>&1; echo $?";
    let wanted = "0\nAborted (core dumped)\n134\n3 6 a%b\n0\n/\n/sbin:/bin:/usr/sbin:/usr/bin\n\
                  sh\n 177   E   L   F\nlong\nAborted\n1\nAborted\n134\n";
    expect(context, folder, &["--user", "0", "--", "sh", "-c", script], wanted)
}

/// A home that cannot be written, or is not there, is no reason to fail, and is not made.
pub(super) fn cache_elsewhere(context: &Context, folder: &Path) -> Result<(), Error> {
    let mut command = limen(context, folder, &["--", "echo", "runs"]);
    let output = command.env("HOME", "/proc/none").env_remove("XDG_CACHE_HOME").output()?;
    ensure(output.stdout == b"runs\n", || format!("{output:?}"))?;
    let home = folder.join("none");
    let mut command = limen(context, folder, &["--", "echo", "runs"]);
    let output = command.env("HOME", &home).env_remove("XDG_CACHE_HOME").output()?;
    ensure(output.stdout == b"runs\n" && !home.exists(), || format!("{output:?}"))
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
/// tables cost some, which shows where a program does little but call.
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
    let calls = ["/bin/dd", "if=/dev/zero", "of=/dev/null", "bs=1", "count=1000"];
    let one = twice(&[&sets[..], &calls].concat())?;
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
