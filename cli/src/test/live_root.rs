//! The live root as the guest sees it: beside the host's own view, whichever way it comes; what the
//! host refuses; and when what changes on the host is seen, which is what `--cache` promises.
//!
//! Neighbours: `run.rs`, whose level these tests belong to; `cli/share` has the server alone.

use std::io::{BufReader, Read as _, Write as _};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

use super::Context;
use super::run::{ensure, limen};
use crate::Error;

/// Names in the largest folder.
const MANY: usize = 65_000;

/// What is said of a tree: names, types, sizes, modes, times, targets, contents; then a folder that
/// takes many answers.
const LOOK: &str = "cd tree && find . ! -type d -printf '%p %y %s %m %n %T@ %l\\n' | sort && \
                    find . -type d -printf '%p %m\\n' | sort && cat a/b/file a/link && \
                    md5sum a/large | cut -c1-32 && ls a/b/none 2>/dev/null; \
                    cd ../many && ls | md5sum && ls -U | wc -l && test -e 64999 && ! test -e x";

/// The same by virtio-fs, by 9P and on the host.
pub(super) fn as_on_host(context: &Context, folder: &Path) -> Result<(), Error> {
    let (tree, many) = (folder.join("tree"), folder.join("many"));
    std::fs::create_dir_all(tree.join("a/b"))?;
    std::fs::create_dir(&many)?;
    std::fs::write(tree.join("a/b/file"), "content\n")?;
    let large: Vec<u8> = (0..5_000_000u32).map(|n| (n % 251) as u8).collect();
    std::fs::write(tree.join("a/large"), large)?;
    std::fs::hard_link(tree.join("a/b/file"), tree.join("a/hard"))?;
    std::fs::set_permissions(tree.join("a/b/file"), PermissionsExt::from_mode(0o640))?;
    symlink("b/file", tree.join("a/link"))?;
    symlink("/nowhere", tree.join("a/dangling"))?;
    ensure(Command::new("mkfifo").arg(tree.join("a/fifo")).status()?.success(), || {
        "mkfifo".into()
    })?;
    let _socket = std::os::unix::net::UnixListener::bind(tree.join("a/socket"))?;
    for n in 0..MANY {
        std::fs::write(many.join(n.to_string()), "")?;
    }
    let on_host = Command::new("sh").args(["-c", LOOK]).current_dir(folder).output()?;
    let wanted = String::from_utf8_lossy(&on_host.stdout).into_owned();
    ensure(on_host.status.success() && wanted.contains("\n65000\n"), || wanted.clone())?;
    for words in [
        &["--share", "virtiofs"][..],
        &["--share", "virtiofs", "--machine", "q35", "--smp", "2"],
        &["--share", "9p"],
    ] {
        let output = limen(context, folder, words).args(["--", "sh", "-c", LOOK]).output()?;
        let said = String::from_utf8_lossy(&output.stdout);
        ensure(output.status.success() && said == wanted, || {
            let differs = said.lines().zip(wanted.lines()).find(|(said, wanted)| said != wanted);
            let stderr = String::from_utf8_lossy(&output.stderr);
            format!("{words:?}: {}, {differs:?}, stderr {stderr:?}", output.status)
        })?;
    }
    Ok(())
}

/// What the host does not let the caller read is refused when it is opened, also to the guest's
/// root; and nothing that the guest does reaches the host.
pub(super) fn refused_by_host(context: &Context, folder: &Path) -> Result<(), Error> {
    if !rustix::process::geteuid().is_root() {
        // Who is not root cannot make a file of somebody else's.
        return Ok(());
    }
    let home = folder.join("home");
    std::fs::create_dir(&home)?;
    std::fs::write(home.join("secret"), "secret")?;
    std::fs::write(home.join("open"), "open\n")?;
    std::fs::set_permissions(home.join("secret"), PermissionsExt::from_mode(0o600))?;
    for path in [folder, &home] {
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o777))?;
    }
    let script = "cat open; cat secret || echo refused; echo x > open; cat open";
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]);
    command.arg(&context.limen).args(["run", "--timeout", "60", "--share", "virtiofs"]);
    command.args(["--user", "0", "--", "sh", "-c", script]);
    command.env("HOME", &home).env("XDG_CACHE_HOME", &home).env("TMPDIR", &home);
    let output = command.current_dir(&home).stdin(Stdio::null()).output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure(said == "open\nrefused\nx\n" && stderr.contains("Permission denied"), || {
        format!("{said:?}, stderr {stderr:?}")
    })?;
    let kept = std::fs::read_to_string(home.join("open"))?;
    ensure(kept == "open\n", || format!("the host's file now says {kept:?}"))
}

/// What the guest prints, with pauses in which the host changes the tree; `$1` is how long it waits
/// afterwards.
const WATCH: &str = "look() { cat changed; ls names; test -e gone; echo $?; test -e new; echo $?; }
                     look; echo ready; read go; sleep $1; look; echo ready";
const BEFORE: &str = "before\na\n0\n1\n";
const AFTER: &str = "after it\na\nb\n1\n0\n";

/// A change on the host is seen at once, soon or never, as `--cache` says.
pub(super) fn changes(context: &Context, folder: &Path) -> Result<(), Error> {
    let cases: [(&[&str], &str, &str); 3] = [
        (&["--cache", "none"], "0", AFTER),
        (&["--cache", "auto"], "2", AFTER),
        (&["--cache", "always"], "2", BEFORE),
    ];
    for (index, (words, wait, wanted)) in cases.into_iter().enumerate() {
        let tree = folder.join(index.to_string());
        std::fs::create_dir_all(tree.join("names"))?;
        std::fs::write(tree.join("names/a"), "")?;
        std::fs::write(tree.join("changed"), "before\n")?;
        std::fs::write(tree.join("gone"), "")?;
        let mut command = limen(context, &tree, words);
        command.args(["--", "sh", "-c", WATCH, "sh", wait]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut said = BufReader::new(child.stdout.take().ok_or("piped")?);
        let first = until_ready(&mut said)?;
        std::fs::write(tree.join("changed"), "after it\n")?;
        std::fs::write(tree.join("names/b"), "")?;
        std::fs::remove_file(tree.join("gone"))?;
        std::fs::write(tree.join("new"), "")?;
        child.stdin.take().ok_or("piped")?.write_all(b"go\n")?;
        let second = until_ready(&mut said)?;
        said.read_to_string(&mut String::new())?;
        child.wait()?;
        ensure(first == BEFORE && second == wanted, || {
            format!("{words:?}: first {first:?}, then {second:?}, want {wanted:?}")
        })?;
    }
    Ok(())
}

fn until_ready(said: &mut impl std::io::BufRead) -> Result<String, Error> {
    let mut text = String::new();
    loop {
        let mut line = String::new();
        if said.read_line(&mut line)? == 0 {
            return Err(format!("it has ended: {text:?}").into());
        }
        if line == "ready\n" {
            return Ok(text);
        }
        text += &line;
    }
}
