//! A console with named ports (virtio 1.2, 5.3, VIRTIO_CONSOLE_F_MULTIPORT), as Limen's kernel
//! looks for: control lines, standard input and output, and standard error. The last control line
//! tells how the program ended.

use std::collections::VecDeque;
use std::io::Write as _;
use std::sync::{Arc, Mutex};

use formats::control::{LineBuffer, ToGuest, ToHost};
use formats::ports;
use virtio_queue::Queue;
use vm_memory::GuestMemoryMmap;

use super::virtio::{Device, Request};

const MULTIPORT: u64 = 1 << 1;
/// Control queues: to the guest, from the guest.
const CONTROL: [usize; 2] = [2, 3];

/// Events of the control queues.
mod event {
    pub(super) const DEVICE_READY: u16 = 0;
    pub(super) const DEVICE_ADD: u16 = 1;
    pub(super) const PORT_READY: u16 = 3;
    pub(super) const PORT_OPEN: u16 = 6;
    pub(super) const PORT_NAME: u16 = 7;
}

const PORTS: [(u32, &str); 3] = [
    (ports::CONTROL_PORT_NR, ports::CONTROL_PORT_NAME),
    (ports::STDIO_PORT_NR, ports::STDIO_PORT_NAME),
    (ports::STDERR_PORT_NR, ports::STDERR_PORT_NAME),
];

/// The host's ends of the ports.
#[derive(Default)]
pub(super) struct Ends(Mutex<ConsoleState>);

#[derive(Default)]
struct ConsoleState {
    /// For standard input, and how much there was in all.
    input: VecDeque<u8>,
    total: u64,
    /// Lines for the guest.
    lines: VecDeque<u8>,
    status: Option<u8>,
}

impl Ends {
    /// Standard input goes on; no bytes: it has ended.
    pub(super) fn input(&self, bytes: &[u8]) {
        let mut state = self.0.lock().unwrap();
        state.input.extend(bytes);
        state.total += bytes.len() as u64;
        if bytes.is_empty() {
            let end = ToGuest::StdinEof { total_bytes: state.total }.encode();
            state.lines.extend(end);
        }
    }

    /// The program's status, once it has ended.
    pub(super) fn status(&self) -> Option<u8> {
        self.0.lock().unwrap().status
    }

    fn line(&self, line: &[u8]) {
        let mut state = self.0.lock().unwrap();
        match ToHost::decode(line) {
            Some(ToHost::Exit { code }) => state.status = Some(code),
            Some(ToHost::Signaled { number }) => state.status = Some(128 + number),
            Some(ToHost::NotFound { .. }) => state.status = Some(127),
            Some(ToHost::NotExecutable { .. }) => state.status = Some(126),
            Some(ToHost::AskTime) => {
                let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
                let ns = now.map_or(0, |now| now.as_nanos() as u64);
                state.lines.extend(ToGuest::Realtime { ns }.encode());
            }
            Some(ToHost::Log { text }) => {
                eprintln!("limen: {}", String::from_utf8_lossy(&text));
            }
            _ => {}
        }
    }

    /// Takes what waits for a port, at most `most` bytes.
    fn take(&self, port: u32, most: usize) -> Vec<u8> {
        let mut state = self.0.lock().unwrap();
        let waiting = match port {
            ports::CONTROL_PORT_NR => &mut state.lines,
            ports::STDIO_PORT_NR => &mut state.input,
            _ => return Vec::new(),
        };
        let count = most.min(waiting.len());
        waiting.drain(..count).collect()
    }

    fn has(&self, port: u32) -> bool {
        let state = self.0.lock().unwrap();
        match port {
            ports::CONTROL_PORT_NR => !state.lines.is_empty(),
            ports::STDIO_PORT_NR => !state.input.is_empty(),
            _ => false,
        }
    }
}

/// The device.
pub(super) struct Console {
    ends: Arc<Ends>,
    /// Control messages for the guest.
    messages: VecDeque<Vec<u8>>,
    lines: LineBuffer,
}

fn message(port: u32, event: u16, value: u16, name: &str) -> Vec<u8> {
    let head = [&port.to_le_bytes()[..], &event.to_le_bytes(), &value.to_le_bytes()].concat();
    [&head[..], name.as_bytes()].concat()
}

/// A port's queues: to the guest, from the guest.
const fn queues_of(port: u32) -> [usize; 2] {
    let first = if port == 0 { 0 } else { 2 + 2 * port as usize };
    [first, first + 1]
}

impl Console {
    pub(super) fn new() -> (Console, Arc<Ends>) {
        let ends = Arc::new(Ends::default());
        let lines = LineBuffer::new();
        (Console { ends: ends.clone(), messages: VecDeque::new(), lines }, ends)
    }

    fn said(&mut self, bytes: &[u8]) {
        let &[a, b, c, d, e, f, value, _] = bytes else { return };
        let port = u32::from_le_bytes([a, b, c, d]);
        let name = PORTS.iter().find(|(number, _)| *number == port).map(|(_, name)| *name);
        match (u16::from_le_bytes([e, f]), name) {
            (event::DEVICE_READY, _) if value == 1 => {
                let adds = PORTS.map(|(port, _)| message(port, event::DEVICE_ADD, 1, ""));
                self.messages.extend(adds);
            }
            (event::PORT_READY, Some(name)) if value == 1 => {
                self.messages.push_back(message(port, event::PORT_NAME, 1, name));
                self.messages.push_back(message(port, event::PORT_OPEN, 1, ""));
            }
            _ => {}
        }
    }

    fn output(&mut self, port: u32, bytes: &[u8]) {
        // What cannot be written is lost: nobody reads it.
        let _ = match port {
            ports::STDIO_PORT_NR => {
                let mut out = std::io::stdout();
                out.write_all(bytes).and_then(|()| out.flush())
            }
            ports::STDERR_PORT_NR => std::io::stderr().write_all(bytes),
            _ => {
                let ends = self.ends.clone();
                self.lines.push(bytes, |line| ends.line(line));
                Ok(())
            }
        };
    }
}

impl Device for Console {
    fn id(&self) -> u32 {
        3
    }

    fn features(&self) -> u64 {
        MULTIPORT
    }

    fn queues(&self) -> usize {
        2 + 2 * ports::MAX_PORTS as usize
    }

    fn config(&self) -> Vec<u8> {
        [&[0; 4][..], &ports::MAX_PORTS.to_le_bytes()].concat()
    }

    fn work(&mut self, queues: &mut [Queue], memory: &GuestMemoryMmap) -> bool {
        let mut any = false;
        while let Some(request) = Request::next(&mut queues[CONTROL[1]], memory) {
            self.said(&request.bytes);
            request.finish(&mut queues[CONTROL[1]], memory, &[]);
            any = true;
        }
        for (port, _) in PORTS {
            let [to_guest, from_guest] = queues_of(port);
            while let Some(request) = Request::next(&mut queues[from_guest], memory) {
                self.output(port, &request.bytes);
                request.finish(&mut queues[from_guest], memory, &[]);
                any = true;
            }
            while self.ends.has(port)
                && let Some(request) = Request::next(&mut queues[to_guest], memory)
            {
                let bytes = self.ends.take(port, request.room());
                request.finish(&mut queues[to_guest], memory, &bytes);
                any = true;
            }
        }
        while !self.messages.is_empty()
            && let Some(request) = Request::next(&mut queues[CONTROL[0]], memory)
        {
            let message = self.messages.pop_front().unwrap_or_default();
            request.finish(&mut queues[CONTROL[0]], memory, &message);
            any = true;
        }
        any
    }
}
