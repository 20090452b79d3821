//! The log of the guest's kernel, as it comes over the serial line: warnings and what follows a
//! panic go to standard error at once; the rest is kept, and told where no program came to its end.
//!
//! The guest may be hostile: what is kept is bounded, and control characters go nowhere. Neighbour:
//! `cli/src/run/klog.rs`, which does the same for `limen run`.

use std::collections::VecDeque;
use std::io::Write;
use std::sync::{Arc, Mutex};

use formats::ports::PANIC_PREFIX;

/// How warnings begin, behind whatever time the kernel puts before them.
const WARNING: &str = "limen: warning: ";
/// Lines that are kept, and bytes of one.
const LINES_MAX: usize = 200;
const LINE_LEN_MAX: usize = 1024;

#[derive(Debug, Default)]
struct Lines {
    unfinished: Vec<u8>,
    kept: VecDeque<String>,
    has_panicked: bool,
}

/// The log so far; copies are of the same one.
#[derive(Clone, Debug, Default)]
pub(super) struct Kept(Arc<Mutex<Lines>>);

impl Kept {
    /// What was kept, to standard error.
    pub(super) fn tell(&self) {
        for line in self.0.lock().unwrap().kept.drain(..) {
            eprintln!("{line}");
        }
    }
}

impl Write for Kept {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let mut lines = self.0.lock().unwrap();
        for &byte in bytes {
            if byte != b'\n' {
                lines.unfinished.push(byte);
            }
            if byte != b'\n' && lines.unfinished.len() < LINE_LEN_MAX {
                continue;
            }
            let line = std::mem::take(&mut lines.unfinished);
            let line = String::from_utf8_lossy(&line).replace(char::is_control, "");
            lines.has_panicked |= line.starts_with(PANIC_PREFIX);
            if lines.has_panicked || line.contains(WARNING) {
                eprintln!("{line}");
                continue;
            }
            if lines.kept.len() == LINES_MAX {
                lines.kept.pop_front();
            }
            lines.kept.push_back(line);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
