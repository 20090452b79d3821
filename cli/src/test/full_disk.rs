//! A disk that is full, wherever limen writes: told before a program runs, by the place and by what
//! names another one, and nothing is left behind. Part of the run level.
//!
//! The disk is a small tmpfs in a mount namespace of the test's own, which the host never sees; a
//! host that makes no such namespaces for this user is named, and the test passes over.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use super::run::ensure;
use super::{Context, images};
use crate::Error;

/// Its words: the folder of the disk, and a command. Not a byte of the disk is free.
const SCRIPT: &str = "mount -t tmpfs -o size=256k none \"$0\" && \
    { cat /dev/zero >\"$0/filler\" 2>/dev/null; exec \"$@\"; }";
const NAMESPACE: [&str; 4] = ["--user", "--map-root-user", "--mount", "sh"];

/// Variables that name the disk, the words of limen, the status, and what is said.
type Case = (&'static [&'static str], &'static [&'static str], i32, &'static [&'static str]);

const CASES: [Case; 8] = [
    (
        &["XDG_CACHE_HOME"],
        &["run", "--image", "image"],
        126,
        &["/full/", "No space left", "another place by XDG_CACHE_HOME"],
    ),
    (
        &["XDG_RUNTIME_DIR"],
        &["run", "--detach", "one", "--pack", "--", "/bin/sleep", "60"],
        126,
        &["/full/", "No space left", "another place by XDG_RUNTIME_DIR"],
    ),
    (&["XDG_RUNTIME_DIR"], &["ps"], 0, &[]),
    (
        &["TMPDIR"],
        &["compare", "--with", "pti=off", "--with", "pti=on", "--", "/bin/true"],
        126,
        &["/full/", "No space left", "another place by TMPDIR"],
    ),
    // The shell does not look at what close(2) says.
    (
        &[],
        &["run", "--rw", "full", "--", "sh", "-c", "echo x >full/x"],
        1,
        &["x: what was written is lost: the host has no space left"],
    ),
    (
        &[],
        &["run", "--rw", "full", "--", "dd", "if=/bin/sh", "of=full/y", "conv=fsync"],
        1,
        &["No space left on device"],
    ),
    // What is only kept for the next time is not missed.
    (&["XDG_CACHE_HOME"], &["run", "--", "true"], 0, &["not kept for the next time"]),
    (&["XDG_CACHE_HOME"], &["run", "--pack", "--", "/bin/true"], 0, &["by XDG_CACHE_HOME"]),
];

pub(super) fn full_disk(context: &Context, folder: &Path) -> Result<(), Error> {
    let folder = folder.canonicalize()?;
    let can = Command::new("unshare").args(NAMESPACE).args(["-c", "true"]).output()?;
    if !can.status.success() {
        let why = String::from_utf8_lossy(&can.stderr).into_owned();
        tell!("test run::full_disk: no full disk can be made here: {}", why.trim_end());
        return Ok(());
    }
    images::make(&folder.join("image"))?;
    std::fs::create_dir(folder.join("full"))?;
    for (variables, words, status, says) in CASES {
        let output = on_full_disk(context, &folder, variables, words)?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let all = || format!("limen {words:?}: {}: {said}", output.status);
        ensure(output.status.code() == Some(status), all)?;
        let missing = says.iter().find(|part| !said.contains(**part));
        ensure(missing.is_none(), || format!("no {missing:?} in {}", all()))?;
        ensure(!said.contains("os error"), all)?;
    }
    Ok(())
}

/// One command, with a disk of its own; then what `ps` lists and the processes that are left.
fn on_full_disk(
    context: &Context,
    folder: &Path,
    variables: &[&str],
    words: &[&str],
) -> Result<Output, Error> {
    let disk = folder.join("full");
    let mut command = Command::new("unshare");
    command.args(NAMESPACE).args(["-c", SCRIPT]).arg(&disk).arg(&context.limen).args(words);
    variables.iter().for_each(|name| {
        command.env(name, &disk);
    });
    Ok(command.current_dir(folder).stdin(Stdio::null()).output()?)
}
