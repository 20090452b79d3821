//! The console device with its ports to the command line (virtio 1.2, 5.3): standard input and
//! output, standard error, and the control channel. Numbers and names are in `formats::ports`.
//!
//! The device speaks about its ports on a pair of control queues, in messages of eight bytes. They
//! are answered in the interrupt handler, so that no thread has to run before the first byte can
//! flow. A port can be written to only after the host's side was reported open: what is written
//! earlier is thrown away by the device.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use abi::{Errno, Result};
use formats::ports::{
    CONTROL_PORT_NR, EXEC_MAX_PORTS, EXEC_SESSIONS, MAX_PORTS, STDERR_PORT_NR, STDIO_PORT_NR,
    exec_ports,
};
use machine::sync::{Once, SpinLock};
use machine::virtio::{self, Buffers, Device, DeviceError, DeviceKind, Queue};

use super::Port;

const FEATURE_MULTIPORT: u64 = 1 << 1;
const CONFIG_MAX_PORTS: usize = 4;
const CONTROL_RX: u16 = 2;
const CONTROL_TX: u16 = 3;
const QUEUE_SIZE: u16 = 64;
/// Control messages under way at most, and their size with a port's name.
const CONTROL_BUFFERS: usize = 32;
const CONTROL_BYTES: usize = 128;

/// Events of control messages (5.3.6.2).
mod event {
    pub(super) const DEVICE_READY: u16 = 0;
    pub(super) const DEVICE_ADD: u16 = 1;
    pub(super) const PORT_READY: u16 = 3;
    pub(super) const PORT_OPEN: u16 = 6;
}

/// `struct virtio_console_control`.
#[derive(Clone, Copy)]
struct Message {
    port: u32,
    event: u16,
    value: u16,
}

impl Message {
    fn encode(self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(8);
        bytes.extend(self.port.to_le_bytes());
        bytes.extend(self.event.to_le_bytes());
        bytes.extend(self.value.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Message> {
        let [a, b, c, d, e, f, g, h] = *bytes.first_chunk()?;
        Some(Message {
            port: u32::from_le_bytes([a, b, c, d]),
            event: u16::from_le_bytes([e, f]),
            value: u16::from_le_bytes([g, h]),
        })
    }
}

struct Control {
    rx: Queue,
    tx: Queue,
}

impl Control {
    fn give(&mut self, bytes: Vec<u8>) {
        let buffers = Buffers { incoming: [bytes, Vec::new()], ..Buffers::default() };
        // Only a broken device refuses a buffer that was its own before.
        let _ = self.rx.submit(buffers);
    }

    fn send(&mut self, port: u32, event: u16, value: u16) {
        while self.tx.pop_completed().is_some() {}
        let message = Message { port, event, value }.encode();
        let buffers = Buffers { outgoing: [message, Vec::new()], ..Buffers::default() };
        // One message answers one, and there is room for all that can be under way; a device that
        // takes none is broken.
        if self.tx.submit(buffers).is_ok() {
            self.tx.notify();
        }
    }
}

/// The ports to the command line.
pub struct Console {
    control: SpinLock<Control>,
    /// Those of the program first, in the order of [`PROGRAM_PORTS`], then those of sessions.
    ports: Vec<(u32, Port)>,
}

const PROGRAM_PORTS: [u32; 3] = [CONTROL_PORT_NR, STDIO_PORT_NR, STDERR_PORT_NR];

/// The three ports of a session: of a program that was started from outside.
#[derive(Clone, Copy)]
pub struct Session {
    /// The control channel.
    pub control: &'static Port,
    /// Standard input and output.
    pub stdio: &'static Port,
    /// Standard error.
    pub stderr: &'static Port,
}

static CONSOLE: Once<Option<Arc<Console>>> = Once::new();

/// The console, started at the first call. ENODEV if there is none that works. May sleep.
pub fn console() -> Result<&'static Arc<Console>> {
    let start = || {
        let device = virtio::take(DeviceKind::Console)?;
        let started = Console::start(device);
        started.inspect_err(|error| machine::log!("console does not work: {error:?}")).ok()
    };
    CONSOLE.call_once(start).as_ref().ok_or(Errno::ENODEV)
}

impl Console {
    fn start(mut device: Device) -> core::result::Result<Arc<Console>, DeviceError> {
        if device.negotiate(FEATURE_MULTIPORT)? & FEATURE_MULTIPORT == 0 {
            return Err(DeviceError::Features);
        }
        let max_ports = device.config_u32(CONFIG_MAX_PORTS);
        if max_ports < MAX_PORTS {
            return Err(DeviceError::NoQueue);
        }
        let sessions = if max_ports < EXEC_MAX_PORTS { 0 } else { EXEC_SESSIONS };
        let rx = device.queue(CONTROL_RX, QUEUE_SIZE)?;
        let tx = device.queue(CONTROL_TX, QUEUE_SIZE)?;
        let mut port = |number: u32| {
            // Queues 0 and 1 are those of port 0, 2 and 3 the control queues.
            let first = 2 * number as u16 + 2;
            let rx = device.queue(first, QUEUE_SIZE)?;
            let tx = device.queue(first + 1, QUEUE_SIZE)?;
            Ok((number, Port::new(rx, tx)))
        };
        let numbers = PROGRAM_PORTS.into_iter().chain((0..sessions).flat_map(exec_ports));
        let ports = numbers.map(&mut port).collect::<core::result::Result<Vec<_>, _>>()?;
        let mut control = Control { rx, tx };
        for _ in 0..CONTROL_BUFFERS.min(control.rx.size()) {
            control.give(Vec::with_capacity(CONTROL_BYTES));
        }
        let console = Arc::new(Console { control: SpinLock::new(control), ports });
        let handler = console.clone();
        device.start(Box::new(move || handler.on_interrupt()))?;
        let mut control = console.control.lock();
        control.rx.notify();
        control.send(0, event::DEVICE_READY, 1);
        drop(control);
        Ok(console)
    }

    fn port(&self, number: u32) -> Option<&Port> {
        self.ports.iter().find(|(n, _)| *n == number).map(|(_, port)| port)
    }

    /// The control channel.
    pub fn control(&self) -> &Port {
        &self.ports[0].1
    }

    /// Standard input and output.
    pub fn stdio(&self) -> &Port {
        &self.ports[1].1
    }

    /// Standard error.
    pub fn stderr(&self) -> &Port {
        &self.ports[2].1
    }

    /// The ports of a session, if the device has them.
    pub fn session(&'static self, number: u32) -> Option<Session> {
        let [control, stdio, stderr] = exec_ports(number).map(|number| self.port(number));
        Some(Session { control: control?, stdio: stdio?, stderr: stderr? })
    }

    fn on_interrupt(&self) {
        self.serve_control();
        for (_, port) in &self.ports {
            port.on_interrupt();
        }
    }

    fn serve_control(&self) {
        let mut control = self.control.lock();
        while let Some(completed) = control.rx.pop_completed() {
            let [bytes, _] = completed.buffers.incoming;
            if let Some(message) = Message::decode(&bytes) {
                self.answer(&mut control, message);
            }
            control.give(bytes);
            control.rx.notify();
        }
    }

    fn answer(&self, control: &mut Control, message: Message) {
        let Some(port) = self.port(message.port) else { return };
        match message.event {
            event::DEVICE_ADD => {
                control.send(message.port, event::PORT_READY, 1);
                control.send(message.port, event::PORT_OPEN, 1);
            }
            event::PORT_OPEN => port.set_host_open(message.value != 0),
            // Names say what the numbers say; sizes and hints of a console concern port 0.
            _ => {}
        }
    }
}
