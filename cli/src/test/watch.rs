//! Which test is running: named by the clock of `crate::progress`, so that nobody waits for a
//! silent terminal.
//!
//! Why it is hard: tests run in threads, in other programs and inside virtual machines. Whoever
//! runs one holds a [`Running`] as long as it lasts; what runs elsewhere and says `test NAME ...`
//! before each is read by [`output`], which knows from the unfinished line what is running. It goes
//! to stderr: stdout has the results alone.

use std::io::Read as _;
use std::process::{Command, Stdio};

use crate::Error;
use crate::progress::Progress;

/// A test that is running, until this is dropped.
#[derive(Debug)]
pub(crate) struct Running {
    _told: Progress,
}

impl Running {
    pub(crate) fn begin(name: &str) -> Self {
        let name = name.to_owned();
        Self { _told: Progress::with(move |seconds| format!("running: {name} ({seconds} s)")) }
    }
}

/// Runs a program that prints `test NAME ... VERDICT` and names what runs, with `place` behind it;
/// all that it printed.
pub(crate) fn output(command: &mut Command, place: &str) -> Result<String, Error> {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let mut from = child.stdout.take().ok_or("no standard output")?;
    let (mut text, mut part) = (Vec::new(), [0; 4096]);
    let mut running: Option<(String, Running)> = None;
    loop {
        let got = from.read(&mut part)?;
        if got == 0 {
            break;
        }
        text.extend_from_slice(&part[..got]);
        let name = begun(&text);
        if name != running.as_ref().map(|(name, _)| name.as_str()) {
            running =
                name.map(|name| (name.to_owned(), Running::begin(&format!("{name} at {place}"))));
        }
    }
    drop(running);
    child.wait()?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// The test that the last, unfinished line names.
fn begun(text: &[u8]) -> Option<&str> {
    let start = text.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
    let line = std::str::from_utf8(&text[start..]).ok()?;
    line.strip_prefix("test ")?.split_once(" ...").map(|(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unfinished_line_names_the_test() {
        assert_eq!(begun(b"test a ... ok\ntest b::c ... "), Some("b::c"));
        assert_eq!(begun(b"test a ... ok\n"), None);
        assert_eq!(begun(b"3 passed"), None);
    }
}
