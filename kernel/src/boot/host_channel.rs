//! What the command line tells the kernel while the program runs: lines on the control port
//! (`formats::control`). What concerns the standard streams is done here; windows and signals go to
//! a [`Listener`], since terminals and processes are not a driver's business.
//!
//! The other direction is `report`.

use alloc::sync::Arc;

use abi::Result;
use formats::control::{LineBuffer, ToGuest};

use crate::base::io::Sink;
use crate::drivers::console::{Console, console};

/// Who wants to know. Called by the channel's own thread, which may sleep.
pub trait Listener: Send + Sync {
    /// The terminal has this size now, in characters.
    fn window_size(&self, rows: u16, cols: u16);
    /// The host's clock said this a moment ago, in nanoseconds since 1970.
    fn realtime(&self, ns: u64);
    /// The host's user sent this signal to the program (signal(7) number, 1 to 64).
    fn signal(&self, number: u8);
}

const READ_BYTES: usize = 512;

/// Starts the thread that listens. Without a console there is nobody to listen to.
pub fn listen(listener: Arc<dyn Listener>) -> Result<()> {
    let Ok(console) = console() else { return Ok(()) };
    crate::process::spawn_kernel("host-channel", move || run(console, &*listener))?;
    Ok(())
}

fn run(console: &Console, listener: &dyn Listener) {
    let mut lines = LineBuffer::new();
    let mut bytes = [0; READ_BYTES];
    loop {
        // An error or the end: the host has gone, and with it whoever could say something.
        let Ok(len @ 1..) = console.control().read(&mut Sink::kernel(&mut bytes), false) else {
            return;
        };
        lines.push(&bytes[..len], |line| match ToGuest::decode(line) {
            Some(message) => act(console, listener, &message),
            None => machine::log!("not a message of the host: {} bytes", line.len()),
        });
    }
}

fn act(console: &Console, listener: &dyn Listener, message: &ToGuest) {
    match *message {
        ToGuest::StdinEof { total_bytes } => console.stdio().set_end(total_bytes),
        ToGuest::OutputClosed { fd: 2 } => console.stderr().set_output_closed(),
        ToGuest::OutputClosed { .. } => console.stdio().set_output_closed(),
        ToGuest::Winsize { rows, cols } => listener.window_size(rows, cols),
        ToGuest::Realtime { ns } => listener.realtime(ns),
        ToGuest::Signal { number } => listener.signal(number),
        // Sessions have channels of their own (`sessions.rs`).
        ToGuest::Exec { .. } => machine::log!("the first program is running already"),
    }
}
