//! The kernel log: lines on the 8250 serial port at I/O port 0x3f8 (QEMU, Firecracker and Cloud
//! Hypervisor have it). Slow, so only for boot, warnings and panics; programs have their own
//! console.

use core::fmt::{self, Write};

use crate::cpu::{inb, outb};
use crate::sync::SpinLock;

const PORT: u16 = 0x3f8;
/// Bounded wait for the transmitter: a port without a device reads as ready, a stuck one is
/// skipped.
const MAX_POLLS: u32 = 100_000;

struct Serial;

static SERIAL: SpinLock<Serial> = SpinLock::new(Serial);

impl Write for Serial {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.put_all(text.as_bytes());
        Ok(())
    }
}

impl Serial {
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

/// Writes to the log. Use [`crate::log!`] or [`crate::warn!`].
pub fn write(line: fmt::Arguments<'_>) {
    // The port cannot fail.
    let _ = SERIAL.lock().write_fmt(format_args!("{line}\n"));
}

/// Writes bytes, for programs on machines without a console of their own. Few at a
/// time: interrupts are masked meanwhile.
pub fn write_bytes(bytes: &[u8]) {
    SERIAL.lock().put_all(bytes);
}

/// Writes to the log unless somebody is writing to it, perhaps the code that this handler has
/// interrupted. False: nothing was written.
pub(crate) fn try_write(line: fmt::Arguments<'_>) -> bool {
    let Some(mut serial) = SERIAL.try_lock() else { return false };
    // The port cannot fail.
    let _ = serial.write_fmt(format_args!("{line}\n"));
    true
}

/// For the panic path: whoever held the port has been stopped.
pub(crate) fn force_unlock() {
    SERIAL.force_unlock();
}

/// Logs a line: `log!("found {n} CPUs")`.
#[macro_export]
macro_rules! log {
    ($($arg:tt)*) => { $crate::log::write(format_args!("limen: {}", format_args!($($arg)*))) };
}
