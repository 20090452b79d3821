//! Which test is running: named after two seconds, so that nobody waits for a silent terminal; in a
//! log, where nobody waits, after half a minute.
//!
//! Why it is hard: tests run in threads, in other programs and inside virtual machines. Whoever
//! runs one holds a [`Running`] as long as it lasts; what runs elsewhere and says `test NAME ...`
//! before each is read by [`output`], which knows from the unfinished line what is running. One
//! thread tells. It goes to stderr: stdout has the results alone.

use std::collections::BTreeMap;
use std::io::{IsTerminal as _, Read as _};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, Once};
use std::time::{Duration, Instant};

use crate::Error;

/// When a test is named first, on a terminal and in a log.
const NAME_AFTER: Duration = Duration::from_secs(2);
const NAME_AFTER_IN_LOG: Duration = Duration::from_secs(30);
/// And when again, as a multiple of the time before.
const AGAIN: u32 = 8;
/// How often to look.
const LOOK: Duration = Duration::from_millis(250);

/// What runs, by number of start.
static TESTS: Mutex<BTreeMap<u64, RunningTest>> = Mutex::new(BTreeMap::new());
static TELLER: Once = Once::new();

struct RunningTest {
    name: String,
    began: Instant,
    tell_after: Duration,
}

/// A test that is running, until this is dropped.
#[derive(Debug)]
pub(crate) struct Running(u64);

impl Running {
    pub(crate) fn begin(name: &str) -> Self {
        TELLER.call_once(|| {
            // Without it tests run in silence, and no worse.
            let _ = std::thread::Builder::new().name("teller".to_owned()).spawn(tell_for_ever);
        });
        let mut tests = tests();
        let number = tests.last_key_value().map_or(0, |(number, _)| number + 1);
        let (name, began) = (name.to_owned(), Instant::now());
        let is_log = !std::io::stderr().is_terminal();
        let tell_after = if is_log { NAME_AFTER_IN_LOG } else { NAME_AFTER };
        tests.insert(number, RunningTest { name, began, tell_after });
        Self(number)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        tests().remove(&self.0);
    }
}

fn tests() -> MutexGuard<'static, BTreeMap<u64, RunningTest>> {
    TESTS.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn tell_for_ever() {
    loop {
        std::thread::sleep(LOOK);
        for line in due(&mut tests(), Instant::now()) {
            say!("{line}");
        }
    }
}

/// The lines that are due now.
fn due(tests: &mut BTreeMap<u64, RunningTest>, now: Instant) -> Vec<String> {
    let mut lines = Vec::new();
    for test in tests.values_mut() {
        let elapsed = now.saturating_duration_since(test.began);
        if elapsed >= test.tell_after {
            test.tell_after *= AGAIN;
            lines.push(format!("running: {} ({} s)", test.name, elapsed.as_secs()));
        }
    }
    lines
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
    fn a_test_is_named_after_two_seconds_and_not_at_each_look() {
        let began = Instant::now();
        let entry = RunningTest { name: "a::b".to_owned(), began, tell_after: NAME_AFTER };
        let mut tests = BTreeMap::from([(0, entry)]);
        assert!(due(&mut tests, began + Duration::from_secs(1)).is_empty());
        assert_eq!(due(&mut tests, began + Duration::from_secs(2)), ["running: a::b (2 s)"]);
        assert!(due(&mut tests, began + Duration::from_secs(3)).is_empty());
        assert_eq!(due(&mut tests, began + Duration::from_secs(17)).len(), 1);
    }

    #[test]
    fn the_unfinished_line_names_the_test() {
        assert_eq!(begun(b"test a ... ok\ntest b::c ... "), Some("b::c"));
        assert_eq!(begun(b"test a ... ok\n"), None);
        assert_eq!(begun(b"3 passed"), None);
    }
}
