//! The kernel log as it comes over the serial port: shown with `-v`, else kept for the case that
//! the kernel panics or does not boot.
//!
//! Why it is hard: the guest may be hostile, so lines and their number are bounded and control
//! characters never reach the user's terminal. Neighbours: `vm.rs` feeds it, `backtrace.rs`
//! symbolises what [`KernelLog::panic_lines`] gives.

use std::collections::VecDeque;

use formats::ports::PANIC_PREFIX;

/// How warnings begin.
pub(crate) const WARNING_PREFIX: &str = "limen: warning: ";
/// Lines kept from before a panic, and again from the panic on.
const LINES_MAX: usize = 200;
/// Longest line kept, in bytes; the rest of it becomes a line of its own.
const LINE_LEN_MAX: usize = 1024;

/// Cuts the log into lines and keeps the last of them.
#[derive(Debug, Default)]
pub(crate) struct KernelLog {
    unfinished: Vec<u8>,
    before: VecDeque<String>,
    /// From the panic line on; empty if there was none.
    panic: Vec<String>,
}

impl KernelLog {
    /// A whole log.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        let mut log = Self::default();
        log.push(bytes, |_| {});
        log.finish(|_| {});
        log
    }

    /// Takes bytes from the port; `show` gets each finished line.
    pub(crate) fn push(&mut self, bytes: &[u8], mut show: impl FnMut(&str)) {
        for &byte in bytes {
            if byte != b'\n' {
                self.unfinished.push(byte);
            }
            if byte == b'\n' || self.unfinished.len() == LINE_LEN_MAX {
                self.end_line(&mut show);
            }
        }
    }

    /// The log has ended: what is left is a line, too.
    pub(crate) fn finish(&mut self, mut show: impl FnMut(&str)) {
        if !self.unfinished.is_empty() {
            self.end_line(&mut show);
        }
    }

    fn end_line(&mut self, show: &mut impl FnMut(&str)) {
        let line = printable(&std::mem::take(&mut self.unfinished));
        show(&line);
        if !self.panic.is_empty() || line.starts_with(PANIC_PREFIX) {
            if self.panic.len() < LINES_MAX {
                self.panic.push(line);
            }
            return;
        }
        if self.before.len() == LINES_MAX {
            self.before.pop_front();
        }
        self.before.push_back(line);
    }

    /// True once the kernel said that it panicked.
    pub(crate) fn has_panicked(&self) -> bool {
        !self.panic.is_empty()
    }

    /// The lines before any panic, the last [`LINES_MAX`] of them.
    pub(crate) fn lines(&self) -> impl DoubleEndedIterator<Item = &str> {
        self.before.iter().map(String::as_str)
    }

    /// The panic line and what followed.
    pub(crate) fn panic_lines(&self) -> &[String] {
        &self.panic
    }
}

/// The line without carriage returns, and with other control characters made visible.
pub(crate) fn printable(line: &[u8]) -> String {
    let mut out = String::with_capacity(line.len());
    for c in String::from_utf8_lossy(line).chars() {
        match c {
            '\r' => {}
            '\t' => out.push(' '),
            c if c.is_control() => out.extend(c.escape_default()),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log_of(text: &str) -> KernelLog {
        let mut log = KernelLog::default();
        log.push(text.as_bytes(), |_| {});
        log.finish(|_| {});
        log
    }

    #[test]
    fn keeps_the_last_lines() {
        let text: String = (0..1000).map(|n| format!("line {n}\r\n")).collect();
        let log = log_of(&text);
        assert_eq!(log.lines().next(), Some("line 800"));
        assert_eq!(log.lines().count(), LINES_MAX);
        assert!(!log.has_panicked());
    }

    #[test]
    fn panic_and_what_follows() {
        let log = log_of("boot\nlimen: panic: oh\n  #0 0xffffffff80001000\nno newline");
        assert_eq!(log.lines().collect::<Vec<_>>(), ["boot"]);
        assert_eq!(log.panic_lines().len(), 3);
        assert_eq!(log.panic_lines()[2], "no newline");
    }

    #[test]
    fn terminal_is_safe_from_the_guest() {
        assert_eq!(printable(b"a\x1b[2Jb\tc\r"), "a\\u{1b}[2Jb c");
        let log = log_of(&"x".repeat(3 * LINE_LEN_MAX));
        assert!(log.lines().all(|line| line.len() <= LINE_LEN_MAX));
    }
}
