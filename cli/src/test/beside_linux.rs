//! The same program under Landlock on Debian's kernel and on Limen: what it is denied, and what it
//! says of that, must be the same. Part of the run level.
//!
//! Neighbours: `guest/tests/src/landlock_matrix.rs` and `landlock_ports.rs` make the calls,
//! `judge.rs` boots the other kernel, `sandboxers.rs` has the sample of the crate.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use super::run::{ensure, limen};
use super::{Context, guest, judge, packages, sandboxers};
use crate::Error;

/// Rights to files.
const RIGHTS: usize = 16;
/// Calls in the table of rights to files, at least: a table that is cut short proves little.
const CALLS_MIN: usize = 90;
/// Calls in the table of rights to ports, at least, and how each is restricted.
const PORT_CALLS_MIN: usize = 60;
const PORT_RESTRICTIONS: usize = 19;

/// Cells of a table, by the call's name.
type Table = BTreeMap<String, Vec<String>>;

/// Each call with each right denied alone, and with each right the only one denied, gives the same
/// answer and leaves the same names as on Linux.
pub(super) fn matrix(context: &Context, folder: &Path) -> Result<(), Error> {
    compare(context, folder, "landlock-matrix", (CALLS_MIN, 1 + 2 * RIGHTS), &column)
}

/// The same for rights to ports: each call that binds or connects, under rulesets of each kind,
/// one in another, and sixteen deep.
pub(super) fn ports(context: &Context, folder: &Path) -> Result<(), Error> {
    let column = |at: usize| format!("restriction {at} of landlock_ports.rs");
    compare(context, folder, "landlock-ports", (PORT_CALLS_MIN, PORT_RESTRICTIONS), &column)
}

/// Has both kernels fill a table of so many calls at least, and so many columns.
fn compare(
    context: &Context,
    folder: &Path,
    word: &str,
    size: (usize, usize),
    column: &dyn Fn(usize) -> String,
) -> Result<(), Error> {
    let program = guest::build(context)?;
    let linux = judge::say(&program, "", word, None, 1)?;
    let words = ["--pack", "--", &program.display().to_string(), word];
    let output = limen(context, folder, &words).output()?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let (linux, own) = (table(&linux, size)?, table(&said, size)?);
    denies_each_right(&linux, size.1, column)?;
    let differs = |(call, cells): (&String, &Vec<String>)| {
        let theirs = linux.get(call)?;
        let at = cells.iter().zip(theirs).position(|(own, theirs)| own != theirs)?;
        Some(format!("{call}: {}: {} and not {}", column(at), cells[at], theirs[at]))
    };
    let wrong: Vec<String> = own.iter().filter_map(differs).collect();
    ensure(own.len() == linux.len(), || format!("{} rows, Linux {}", own.len(), linux.len()))?;
    ensure(wrong.is_empty(), || format!("{} differ:\n{}", wrong.len(), wrong.join("\n")))
}

/// The rows in what the program has said, all of them: so many at least, with so many cells.
fn table(said: &str, (calls_min, columns): (usize, usize)) -> Result<Table, Error> {
    let of_line = |line: &str| {
        let (call, cells) = line.trim_end().strip_prefix("row ")?.split_once(": ")?;
        let cells: Vec<String> = cells.split(' ').map(str::to_owned).collect();
        (cells.len() == columns).then(|| (call.to_owned(), cells))
    };
    let table: Table = said.lines().filter_map(of_line).collect();
    let end = format!("rows {}", table.len());
    let is_whole = said.lines().any(|line| line.trim_end() == end);
    let last = || said.lines().rev().take(5).collect::<Vec<_>>().join(" | ");
    ensure(is_whole && table.len() >= calls_min, || format!("{} rows: {}", table.len(), last()))?;
    Ok(table)
}

/// On Linux each right alone decides some call, both ways: else the comparison would say nothing.
fn denies_each_right(
    linux: &Table,
    columns: usize,
    column: &dyn Fn(usize) -> String,
) -> Result<(), Error> {
    for at in 1..columns {
        let denied = linux.values().filter(|cells| cells[at] != cells[0]).count();
        ensure(denied > 0 && denied < linux.len(), || format!("{}: denies {denied}", column(at)))?;
    }
    Ok(())
}

/// What a column means.
fn column(at: usize) -> String {
    match at {
        0 => "unrestricted".to_owned(),
        1..=RIGHTS => format!("right {} handled alone", at - 1),
        _ => format!("right {} alone not granted", at - 1 - RIGHTS),
    }
}

/// What the sandboxed shell does: each line tells how it went, on standard output.
const SCRIPT: &str = "exec 2>&1; cd /tmp
    try() { /usr/bin/busybox \"$@\" && echo \"$1: allowed\"; }
    try cat /etc/passwd; try ls /; try ls /usr/bin; try mkdir d; try touch d/f; try ln -s f d/l
    try mv d/f d/g; try ln d/g d/h; try mkfifo d/p; try rm d/h; echo text >d/g; try cat d/g
    try mv d/g /g; try touch /x; try rm /usr/bin/busybox; try rmdir /tmp; try rm -r d
    try cat /proc/self/stat >/dev/null; try mount -t tmpfs none /tmp; echo $?";

/// A sandboxer that others wrote, and a shell in it that does what it may and what it may not, says
/// the same on both kernels; and on Limen it is denied some things and allowed others.
pub(super) fn sandboxed(context: &Context, folder: &Path) -> Result<(), Error> {
    if packages::is_forbidden() {
        say!("limen: the crate landlock is not fetched");
        return Ok(());
    }
    let sample = format!("--file={}:/sandboxer", sandboxers::sample()?.display());
    std::fs::write(folder.join("script"), SCRIPT)?;
    std::fs::write(folder.join("passwd"), "root:x:0:0::/:/bin/sh\n")?;
    let files = [
        &sample,
        "--file=/bin/busybox:/usr/bin/busybox",
        "--file=script:/usr/script",
        "--file=passwd:/etc/passwd",
    ];
    let shell = "LL_FS_RO=/usr:/bin LL_FS_RW=/tmp:/dev/null LL_TCP_BIND= LL_TCP_CONNECT= \
                 exec /sandboxer /usr/bin/busybox sh /usr/script";
    let program = ["--", "/bin/busybox", "sh", "-c", shell];
    let mut command = Command::new(&context.limen);
    command.args(["compare", "--json", "--with", "pti=off", "--with", "linux"]);
    let both = command.args(files).args(program).current_dir(folder).output()?;
    let output = limen(context, folder, &["--pack"]).args(files).args(program).output()?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let told = String::from_utf8_lossy(&both.stderr).into_owned();
    ensure(both.status.success(), || format!("{}: {told}\nOn Limen: {said}", both.status))?;
    let counts = ["ermission denied", ": allowed"].map(|words| said.matches(words).count());
    ensure(counts.iter().all(|&count| count >= 5), || said)
}
