//! The kernel log: lines on the 8250 serial port at I/O port 0x3f8 (QEMU, Firecracker and Cloud
//! Hypervisor have it), and the latest of them in memory. Slow, so only for boot, warnings and
//! panics; programs have their own console.
//!
//! Why the memory is a table of fixed pieces: a line is logged from anywhere, also where nothing
//! can be allocated, and a reader must notice what it has missed. A longer line is several pieces.
//! Neighbour: the kernel's `drivers/kmsg.rs` shows them to programs.

use core::fmt::{self, Write};

use crate::cpu::sync::SpinLock;
use crate::cpu::{inb, outb};

const PORT: u16 = 0x3f8;
/// Bounded wait for the transmitter: a port without a device reads as ready, a stuck one is
/// skipped.
const MAX_POLLS: u32 = 100_000;

/// Pieces that are kept, and the bytes of each.
const KEPT: usize = 256;
const PIECE_MAX: usize = 232;

/// A line of the log, or a part of one that is too long for a piece.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    /// Its number since boot.
    pub number: u64,
    /// Nanoseconds since boot.
    pub at_ns: u64,
    len: usize,
    bytes: [u8; PIECE_MAX],
}

impl Piece {
    const NONE: Piece = Piece { number: 0, at_ns: 0, len: 0, bytes: [0; PIECE_MAX] };

    /// Its text, without the end of the line.
    #[must_use]
    pub fn text(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// What [`find`] has found.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::large_enum_variant, reason = "it is handed up once, and the log has no heap")]
pub enum Found {
    /// The piece of that number.
    Piece(Piece),
    /// It has made room for newer ones; the oldest has this number.
    Lost(u64),
    /// It does not exist yet.
    NotYet,
}

/// The size of what is kept, for those who ask before they read.
pub const KEPT_BYTES: usize = KEPT * PIECE_MAX;

struct Log {
    pieces: [Piece; KEPT],
    /// The number of the piece that is being written, which nobody can read yet.
    next: u64,
}

static LOG: SpinLock<Log> = SpinLock::new(Log { pieces: [Piece::NONE; KEPT], next: 0 });

impl Write for Log {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.put_all(text.as_bytes());
        text.bytes().for_each(|byte| self.keep(byte));
        Ok(())
    }
}

impl Log {
    fn keep(&mut self, byte: u8) {
        let number = self.next;
        let piece = &mut self.pieces[number as usize % KEPT];
        if piece.number != number || piece.len == 0 {
            *piece = Piece { number, at_ns: crate::cpu::clock::now_ns(), ..Piece::NONE };
        }
        if byte == b'\n' {
            self.next += 1;
            return;
        }
        piece.bytes[piece.len] = byte;
        piece.len += 1;
        if piece.len == PIECE_MAX {
            self.next += 1;
        }
    }

    fn oldest(&self) -> u64 {
        // The one that is being written has taken the place of one.
        (self.next + 1).saturating_sub(KEPT as u64)
    }

    /// Writes bytes, with a carriage return before each new line.
    fn put_all(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            if byte == b'\n' {
                self.put(b'\r');
            }
            self.put(byte);
        }
    }

    fn put(&mut self, byte: u8) {
        // SAFETY: the line status register of the first serial port; reading it has no effect.
        let is_ready = || unsafe { inb(PORT + 5) } & 0x20 != 0;
        let mut polls = 0;
        while !is_ready() && polls < MAX_POLLS {
            polls += 1;
        }
        // SAFETY: the data register of the same port: a byte on the wire and no other effect.
        unsafe { outb(PORT, byte) };
    }
}

/// Sets 115200 8N1 with FIFOs.
pub(crate) fn init_serial() {
    let settings = [(1, 0), (3, 0x80), (0, 1), (1, 0), (3, 3), (2, 0xc7), (4, 3)];
    for (register, value) in settings {
        // SAFETY: the registers of the first serial port.
        unsafe { outb(PORT + register, value) };
    }
}

/// Writes to the log. Use [`crate::log!`].
pub fn write(line: fmt::Arguments<'_>) {
    // The port cannot fail.
    let _ = LOG.lock().write_fmt(format_args!("{line}\n"));
}

/// The piece of this number.
#[must_use]
pub fn find(number: u64) -> Found {
    let log = LOG.lock();
    if number >= log.next {
        return Found::NotYet;
    }
    match log.oldest() {
        oldest if number < oldest => Found::Lost(oldest),
        _ => Found::Piece(log.pieces[number as usize % KEPT]),
    }
}

/// The numbers that [`find`] finds now.
#[must_use]
pub fn kept() -> core::ops::Range<u64> {
    let log = LOG.lock();
    log.oldest()..log.next
}

/// Writes bytes, for programs on machines without a console of their own. Few at a
/// time: interrupts are masked meanwhile.
pub fn write_bytes(bytes: &[u8]) {
    LOG.lock().put_all(bytes);
}

/// Writes to the log unless somebody is writing to it, perhaps the code that this handler has
/// interrupted. False: nothing was written.
pub(crate) fn try_write(line: fmt::Arguments<'_>) -> bool {
    let Some(mut log) = LOG.try_lock() else { return false };
    // The port cannot fail.
    let _ = log.write_fmt(format_args!("{line}\n"));
    true
}

/// For the panic path: whoever held the port has been stopped.
pub(crate) fn force_unlock() {
    LOG.force_unlock();
}

/// Logs a line: `log!("found {n} CPUs")`.
#[macro_export]
macro_rules! log {
    ($($arg:tt)*) => { $crate::cpu::log::write(format_args!("limen: {}", format_args!($($arg)*))) };
}
