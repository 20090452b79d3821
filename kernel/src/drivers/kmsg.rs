//! The kernel's log for programs: /dev/kmsg, and the text that syslog(2) reads.
//!
//! Why it is hard: lines are logged from anywhere, also with interrupts masked, so nobody can be
//! woken by them: who waits for the next line looks every [`LOOK_NS`]. And what a program writes
//! must not pass for the kernel's own: it is marked.
//!
//! A read gives one line as `PRIORITY,NUMBER,MICROSECONDS,-;TEXT` (Linux's
//! Documentation/ABI/testing/dev-kmsg). Neighbours: `machine::log` keeps the lines, `fs/devfs.rs`
//! makes the node, `calls/system.rs` has syslog(2).

use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use abi::{Errno, Result, general as raw};
use machine::log::{self, Found, Piece};

use crate::base::io::{Sink, Source};
use crate::base::poll::{PollTable, events};
use crate::base::sched::Sleep;
use crate::base::sync::{WaitError, WaitQueue};
use crate::base::time::Deadline;
use crate::vfs::{File, FileOps, Inode};

/// Facility "kernel", level "informational" (syslog(3)).
const PRIORITY: u32 = 6;
/// How often who waits looks.
const LOOK_NS: u64 = 50_000_000;
/// Longest line that a program may write.
const WRITTEN_MAX: usize = 1024;
/// Nobody wakes it: there is only time.
static NOBODY: WaitQueue = WaitQueue::new();
/// The number of the first line that was not cleared (syslog(2), SYSLOG_ACTION_CLEAR).
static CLEARED: AtomicU64 = AtomicU64::new(0);

/// An open /dev/kmsg.
struct Kmsg {
    node: Arc<dyn Inode>,
    /// The number of the line that is read next.
    next: AtomicU64,
}

/// Opens it at the oldest line.
pub fn open(node: Arc<dyn Inode>) -> Arc<dyn FileOps> {
    Arc::new(Kmsg { node, next: AtomicU64::new(log::kept().start) })
}

/// Text as it stands in a line: what is no ASCII text is escaped.
fn printable(text: &[u8]) -> alloc::string::String {
    let plain = |byte: &u8| (b' '..=b'~').contains(byte) && *byte != b'\\';
    text.iter().fold(alloc::string::String::new(), |mut line, byte| {
        match plain(byte) {
            true => line.push(char::from(*byte)),
            false => line.push_str(&format!("\\x{byte:02x}")),
        }
        line
    })
}

fn line(piece: &Piece) -> alloc::string::String {
    let (number, at_us) = (piece.number, piece.at_ns / 1000);
    format!("{PRIORITY},{number},{at_us},-;{}\n", printable(piece.text()))
}

impl Kmsg {
    /// The next line, if there is one. EPIPE if it was lost: then the oldest is next.
    fn find(&self) -> Option<Result<Piece>> {
        match log::find(self.next.load(Ordering::Relaxed)) {
            Found::Piece(piece) => Some(Ok(piece)),
            Found::Lost(oldest) => {
                self.next.store(oldest, Ordering::Relaxed);
                Some(Err(Errno::EPIPE))
            }
            Found::NotYet => None,
        }
    }

    fn wait(&self) -> Result<Piece> {
        loop {
            let deadline = Some(Deadline::after_ns(LOOK_NS));
            match NOBODY.wait_deadline(Sleep::Interruptible, deadline, || self.find()) {
                Ok(found) => return found,
                Err(WaitError::TimedOut) => {}
                Err(WaitError::Interrupted) => return Err(Errno::ERESTARTSYS),
            }
        }
    }
}

impl FileOps for Kmsg {
    fn read_at(&self, file: &File, _offset: u64, sink: &mut Sink<'_>) -> Result<usize> {
        let piece = match self.find() {
            Some(found) => found?,
            None if file.is_nonblocking() => return Err(Errno::EAGAIN),
            None => self.wait()?,
        };
        let line = line(&piece);
        if line.len() > sink.left() {
            return Err(Errno::EINVAL);
        }
        let put = sink.put(line.as_bytes())?;
        self.next.store(piece.number + 1, Ordering::Relaxed);
        Ok(put)
    }

    fn write_at(&self, _file: &File, _offset: u64, source: &mut Source<'_>) -> Result<usize> {
        let len = source.left();
        if len > WRITTEN_MAX {
            return Err(Errno::EINVAL);
        }
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(len).map_err(|_| Errno::ENOMEM)?;
        bytes.resize(len, 0);
        let taken = source.take(&mut bytes)?;
        let text = bytes[..taken].trim_ascii_end();
        // `<N>` at the start is a priority, which the log does not keep.
        let behind = text.strip_prefix(b"<").and_then(|rest| {
            let end = rest.iter().position(|byte| !byte.is_ascii_digit())?;
            rest[end..].strip_prefix(b">")
        });
        log::write(format_args!("program: {}", printable(behind.unwrap_or(text))));
        Ok(taken)
    }

    fn is_seekable(&self) -> bool {
        true
    }

    fn seek(&self, offset: i64, whence: u32) -> Option<Result<u64>> {
        let kept = log::kept();
        let next = match whence {
            _ if offset != 0 => return Some(Err(Errno::ESPIPE)),
            raw::SEEK_SET => kept.start,
            raw::SEEK_DATA => CLEARED.load(Ordering::Relaxed).max(kept.start),
            raw::SEEK_END => kept.end,
            _ => return Some(Err(Errno::EINVAL)),
        };
        self.next.store(next, Ordering::Relaxed);
        Some(Ok(0))
    }

    fn is_pollable(&self) -> bool {
        true
    }

    fn poll(&self, _file: &File, _table: &mut PollTable) -> u32 {
        let is_there = !matches!(log::find(self.next.load(Ordering::Relaxed)), Found::NotYet);
        events::WRITABLE | if is_there { events::READABLE } else { 0 }
    }

    fn inode(&self) -> Arc<dyn Inode> {
        self.node.clone()
    }
}

/// What syslog(2) reads: the last lines that fit into `len` bytes, as `<PRIORITY>[SECONDS] TEXT`.
pub fn last_lines(len: usize) -> Vec<u8> {
    let kept = log::kept();
    let first = CLEARED.load(Ordering::Relaxed).max(kept.start);
    let mut lines: Vec<Vec<u8>> = Vec::new();
    let mut left = len;
    for number in (first..kept.end).rev() {
        let Found::Piece(piece) = log::find(number) else { break };
        let (at_s, at_us) = (piece.at_ns / 1_000_000_000, piece.at_ns / 1000 % 1_000_000);
        let text = printable(piece.text());
        let line = format!("<{PRIORITY}>[{at_s:5}.{at_us:06}] {text}\n").into_bytes();
        let Some(rest) = left.checked_sub(line.len()) else { break };
        left = rest;
        lines.push(line);
    }
    lines.reverse();
    lines.concat()
}

/// From now on [`last_lines`] gives newer lines only.
pub fn clear() {
    CLEARED.store(log::kept().end, Ordering::Relaxed);
}
