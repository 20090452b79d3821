//! Profiles as a user meets them: learned, run with, and refused when they have mistakes.

use std::path::Path;
use std::process::{Command, Output};

use super::Context;
use super::run::{ensure, output};
use crate::Error;

fn said(output: &Output) -> String {
    format!("{}, {:?}", output.status, String::from_utf8_lossy(&output.stderr))
}

fn learn(context: &Context, folder: &Path, script: &str) -> Result<Output, Error> {
    let mut command = Command::new(&context.limen);
    command.args(["profile", "learn", "--output", "app.toml", "--timeout", "60"]);
    Ok(command.args(["--", "sh", "-c", script]).current_dir(folder).output()?)
}

/// A profile that was learned lets the program do the same again and nothing else; who is denied
/// gets EACCES, and the user one line that says what to do.
pub(super) fn learned(context: &Context, folder: &Path) -> Result<(), Error> {
    let script = "echo a,b | awk -F, '{ print $2 }'; echo x >/tmp/y";
    let first = learn(context, folder, script)?;
    ensure(first.status.success() && first.stdout == b"b\n", || said(&first))?;
    let text = std::fs::read_to_string(folder.join("app.toml"))?;
    let writes = text.split_once("write = [").map(|(_, rest)| rest).unwrap_or_default();
    let writes = writes.split_once(']').map(|(list, _)| list).unwrap_or_default();
    ensure(writes.contains("\"/tmp/y\""), || text.clone())?;
    let words = |script| ["--profile", "app.toml", "--", "sh", "-c", script];
    let again = output(context, folder, &words(script))?;
    ensure(again.status.success() && again.stdout == b"b\n", || said(&again))?;
    ensure(again.stderr.is_empty(), || said(&again))?;
    let other = "echo x >/tmp/z || echo x >/tmp/z || exec 2>&-; rm /tmp/y; : </etc/shadow";
    let denied = output(context, folder, &words(other))?;
    let stderr = String::from_utf8_lossy(&denied.stderr);
    let line = "write /tmp/z: to allow it, add \"/tmp/z\" to write in [paths] of app.toml";
    ensure(!denied.status.success(), || said(&denied))?;
    ensure(stderr.matches(line).count() == 1, || said(&denied))?;
    ensure(stderr.contains("limen: denied: sh ("), || said(&denied))?;
    let second = learn(context, folder, "echo x >/tmp/z")?;
    let stderr = String::from_utf8_lossy(&second.stderr);
    ensure(stderr.contains("limen: + write /tmp/z\n"), || said(&second))?;
    ensure(stderr.contains("limen:   write /tmp/y: not used this time\n"), || said(&second))
}

/// A program of `guest/apps.toml`: what it is denied is one line, which names who, what and the way
/// out; with that way out the same run works.
pub(super) fn denies(context: &Context, folder: &Path) -> Result<(), Error> {
    let profile = |more: &str| {
        let system = "\"/usr/**\", \"/lib/**\", \"/lib64/**\", \"/bin/**\", \"/etc/ld.so.cache\"";
        let list = format!("[paths]\nread = [{system}{more}]\nexecute = [{system}]\n");
        std::fs::write(folder.join("head.toml"), list)
    };
    let words =
        ["--env=LC_ALL=C", "--profile", "head.toml", "--", "head", "-n", "1", "/etc/passwd"];
    profile("")?;
    let denied = output(context, folder, &words)?;
    let stderr = String::from_utf8_lossy(&denied.stderr).into_owned();
    let lines: Vec<&str> = stderr.lines().filter(|line| line.contains("denied:")).collect();
    let line =
        "): read /etc/passwd: to allow it, add \"/etc/passwd\" to read in [paths] of head.toml";
    let is_clear =
        |line_of: &&str| line_of.starts_with("limen: denied: head (") && line_of.ends_with(line);
    ensure(lines.len() == 1 && lines.iter().all(is_clear), || said(&denied))?;
    ensure(stderr.contains("Permission denied") && denied.stdout.is_empty(), || said(&denied))?;
    profile(", \"/etc/passwd\"")?;
    let allowed = output(context, folder, &words)?;
    let first = allowed.stdout.starts_with(b"root:");
    ensure(first && allowed.stderr.is_empty(), || said(&allowed))
}

/// Nothing runs under a profile that cannot be read, or that `lsm=` switches off.
pub(super) fn refused(context: &Context, folder: &Path) -> Result<(), Error> {
    std::fs::write(folder.join("typo.toml"), "[paths]\n  raed = [\"/**\"]\n")?;
    std::fs::write(folder.join("all.toml"), "[paths]\nread = [\"/**\"]\nexecute = [\"/**\"]\n")?;
    let run = |words: &[&str]| output(context, folder, &[words, &["--", "echo", "ran"]].concat());
    let typo = run(&["--profile", "typo.toml"])?;
    let wanted = "typo.toml:2:3: unknown list `raed`: did you mean `read`?";
    ensure(typo.status.code() == Some(2) && typo.stdout.is_empty(), || said(&typo))?;
    ensure(String::from_utf8_lossy(&typo.stderr).contains(wanted), || said(&typo))?;
    let missing = run(&["--profile", "missing.toml"])?;
    ensure(missing.status.code() == Some(2) && missing.stdout.is_empty(), || said(&missing))?;
    let good = run(&["--profile", "all.toml"])?;
    ensure(good.status.success() && good.stdout == b"ran\n", || said(&good))?;
    let off = run(&["--profile", "all.toml", "--append", "lsm=landlock"])?;
    ensure(!off.status.success() && off.stdout.is_empty(), || said(&off))
}
