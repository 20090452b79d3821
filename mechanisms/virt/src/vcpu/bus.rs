//! Memory and ports as an emulated instruction of the guest reaches them: through the guest's page
//! tables to memory, devices of the kernel's, or the VMM.

use super::{Host, MAX_WRITES, Outcome, PORT_BYTES, Resume, Vcpu};
use crate::decode::{self, DecodeError, Instruction, MAX_LEN};
use crate::emulate::{Bus, Cpu, MAX_ROUNDS, Stop};
use crate::event::vector;
use crate::exit::Vmrun;
use crate::paging::{Access, Failure, Mode};
use crate::regs::{CodeSize, System, seg};

const PAGE: u64 = 4096;
/// Most reads of devices that one instruction makes: two operands, each across two pages.
const MAX_READS: usize = 4;

/// What the VMM has answered to the instruction that was begun.
///
/// The answers belong to the instruction that asked, so it is kept: in memory another CPU of the
/// guest may have put a different one meanwhile.
#[derive(Default)]
pub(super) struct Replay {
    instruction: Option<Instruction>,
    reads: [(u64, u8, [u8; 8]); MAX_READS],
    count: usize,
    /// The read that the VMM is asked for.
    asked: Option<(u64, u8)>,
    /// Answers of a port that were not consumed yet: from where in the data, up to where.
    port: (usize, usize),
}

impl Replay {
    pub(super) fn clear(&mut self) {
        // What was read is nothing without its count.
        (self.instruction, self.count, self.asked, self.port) = (None, 0, None, (0, 0));
    }

    pub(super) fn answer(&mut self, data: [u8; 8]) {
        if let (Some((address, len)), true) = (self.asked.take(), self.count < MAX_READS) {
            self.reads[self.count] = (address, len, data);
            self.count += 1;
        }
    }
}

/// The bus for one instruction.
struct GuestBus<'a, T: Host> {
    host: &'a mut T,
    mode: Mode,
    is_user: bool,
    replay: &'a mut Replay,
    consumed: usize,
    writes: &'a mut alloc::collections::VecDeque<(u64, u8, [u8; 8])>,
    port_data: &'a mut [u8; PORT_BYTES],
    /// Port transfers that the VMM is to be asked for: direction, size, port, count.
    ports: Option<Ports>,
}

type Ports = (bool, u8, u16, u32);

fn io((is_in, size, port, count): Ports) -> Outcome {
    Outcome::Io { is_in, size, port, count }
}

impl<T: Host> GuestBus<'_, T> {
    fn translate(&mut self, linear: u64, write: bool) -> Result<u64, Stop> {
        let access = Access { write, exec: false, user: self.is_user };
        translate(self.host, &self.mode, linear, access)
    }

    /// The parts of a range that lie in one page each: guest-physical address and length.
    fn parts(&mut self, linear: u64, len: usize, write: bool) -> Result<[(u64, usize); 2], Stop> {
        let first = len.min((PAGE - linear % PAGE) as usize);
        let at = self.translate(linear, write)?;
        let mut parts = [(at, first), (0, 0)];
        if first < len {
            let next = linear.wrapping_add(first as u64);
            parts[1] = (self.translate(next, write)?, len - first);
        }
        Ok(parts)
    }

    fn device_read(&mut self, address: u64, into: &mut [u8]) -> Result<(), Stop> {
        if self.host.device_read(address, into) {
            return Ok(());
        }
        if self.consumed < self.replay.count {
            let (_, _, data) = self.replay.reads[self.consumed];
            self.consumed += 1;
            into.copy_from_slice(&data[..into.len()]);
            return Ok(());
        }
        self.replay.asked = Some((address, into.len() as u8));
        Err(Stop::Wait)
    }

    fn device_write(&mut self, address: u64, from: &[u8]) {
        if self.host.device_write(address, from) {
            return;
        }
        let mut data = [0; 8];
        data[..from.len()].copy_from_slice(from);
        self.writes.push_back((address, from.len() as u8, data));
    }
}

fn translate(host: &mut impl Host, mode: &Mode, linear: u64, access: Access) -> Result<u64, Stop> {
    let mut read = |at, width: u64| {
        let mut entry = [0; 8];
        host.read(at, &mut entry[..width as usize]).then(|| u64::from_le_bytes(entry))
    };
    mode.translate(linear, access, &mut read).map_err(|failure| match failure {
        Failure::Fault(code) => Stop::PageFault(linear, code),
        Failure::NoMemory(_) => Stop::Unsupported,
    })
}

impl<T: Host> Bus for GuestBus<'_, T> {
    fn read(&mut self, linear: u64, into: &mut [u8]) -> Result<(), Stop> {
        let mut done = 0;
        for (at, len) in self.parts(linear, into.len(), false)? {
            let into = &mut into[done..done + len];
            if len > 0 && !self.host.read(at, into) {
                self.device_read(at, into)?;
            }
            done += len;
        }
        Ok(())
    }

    fn write(&mut self, linear: u64, from: &[u8]) -> Result<(), Stop> {
        let mut done = 0;
        for (at, len) in self.parts(linear, from.len(), true)? {
            let from = &from[done..done + len];
            if len > 0 && !self.host.write(at, from) {
                self.device_write(at, from);
            }
            done += len;
        }
        Ok(())
    }

    fn port_in(&mut self, port: u16, into: &mut [u8], more: u64) -> Result<(), Stop> {
        if self.host.port_read(port, into) {
            return Ok(());
        }
        let (from, to) = self.replay.port;
        if to - from >= into.len() {
            into.copy_from_slice(&self.port_data[from..from + into.len()]);
            self.replay.port.0 += into.len();
            return Ok(());
        }
        let most = u64::from(MAX_ROUNDS);
        let count = (more + 1).min(most) as u32;
        self.ports = Some((true, into.len() as u8, port, count));
        Err(Stop::Wait)
    }

    fn port_out(&mut self, port: u16, from: &[u8]) -> Result<(), Stop> {
        if self.ports.is_none() && self.host.port_write(port, from) {
            return Ok(());
        }
        let (_, size, _, count) = self.ports.get_or_insert((false, from.len() as u8, port, 0));
        let at = *count as usize * usize::from(*size);
        self.port_data[at..at + from.len()].copy_from_slice(from);
        *count += 1;
        Ok(())
    }

    fn is_full(&self) -> bool {
        let is_out_full =
            |&(_, size, _, count): &Ports| (count as usize + 1) * usize::from(size) > PORT_BYTES;
        // What was answered belongs to the round that is over.
        self.consumed > 0
            || self.writes.len() >= MAX_WRITES - 2
            || self.ports.as_ref().is_some_and(is_out_full)
    }
}

impl<H: Vmrun> Vcpu<H> {
    /// Reads the bytes at RIP and decodes them.
    pub(super) fn fetch(
        &mut self,
        host: &mut impl Host,
        system: &System,
    ) -> Result<Instruction, Stop> {
        let rflags = self.hardware.rflags();
        let mode = Mode::new(system, rflags);
        let code = system.code_size(rflags);
        let rip = self.hardware.rip();
        let linear = match code {
            CodeSize::Bits64 => rip,
            _ => system.segments[seg::CS].base.wrapping_add(rip) & 0xffff_ffff,
        };
        let access = Access { write: false, exec: true, user: self.hardware.cpl() == 3 };
        let mut bytes = [0; MAX_LEN];
        let mut len = 0;
        while len < MAX_LEN {
            let at = linear.wrapping_add(len as u64);
            let part = (MAX_LEN - len).min((PAGE - at % PAGE) as usize);
            let physical = translate(host, &mode, at, access)?;
            if !host.read(physical, &mut bytes[len..len + part]) {
                return Err(Stop::Unsupported);
            }
            len += part;
            match decode::decode(&bytes[..len], code) {
                Ok(instruction) => return Ok(instruction),
                Err(DecodeError::Short) => {}
                Err(DecodeError::Unknown) => return Err(Stop::Unsupported),
            }
        }
        Err(Stop::Unsupported)
    }

    /// The operand of LMSW, from a register or memory.
    pub(super) fn status_word(
        &mut self,
        host: &mut impl Host,
        instruction: &Instruction,
    ) -> Result<u64, Stop> {
        let system = self.hardware.system();
        let is_user = self.hardware.cpl() == 3;
        let (rip, rflags) = (self.hardware.rip(), self.hardware.rflags());
        let mut bus = GuestBus {
            host,
            mode: Mode::new(&system, rflags),
            is_user,
            replay: &mut Replay::default(),
            consumed: 0,
            writes: &mut self.writes,
            port_data: &mut self.port_data,
            ports: None,
        };
        let gprs = self.hardware.gprs();
        Cpu { gprs, rip, rflags, system: &system, bus: &mut bus }.status_word(instruction)
    }

    /// Executes the instruction at RIP in software.
    pub(super) fn emulate(&mut self, host: &mut impl Host, with_ports: bool) -> Option<Outcome> {
        let system = self.hardware.system();
        let instruction = match self.replay.instruction {
            Some(begun) => begun,
            None => match self.fetch(host, &system) {
                Ok(instruction) => instruction,
                Err(stop) => return self.stopped(stop, with_ports, None),
            },
        };
        self.replay.instruction = Some(instruction);
        let is_user = self.hardware.cpl() == 3;
        let (rip, rflags) = (self.hardware.rip(), self.hardware.rflags());
        let mut bus = GuestBus {
            host,
            mode: Mode::new(&system, rflags),
            is_user,
            replay: &mut self.replay,
            consumed: 0,
            writes: &mut self.writes,
            port_data: &mut self.port_data,
            ports: None,
        };
        let gprs = self.hardware.gprs();
        let mut cpu = Cpu { gprs, rip, rflags, system: &system, bus: &mut bus };
        let result = cpu.execute(&instruction, with_ports);
        let (rip, rflags) = (cpu.rip, cpu.rflags);
        let ports = bus.ports;
        // A round that waits leaves those before it done.
        self.hardware.set_rip(rip);
        self.hardware.set_rflags(rflags);
        match result {
            Ok(()) => {
                self.hardware.set_shadow(false);
                if self.replay.port.0 < self.replay.port.1 {
                    self.resume = Resume::Emulate { with_ports };
                } else {
                    self.replay.clear();
                }
                ports.map(io)
            }
            Err(stop) => self.stopped(stop, with_ports, ports),
        }
    }

    /// `ports`: what the rounds before this one have put out, or what this one waits for.
    fn stopped(&mut self, stop: Stop, with_ports: bool, ports: Option<Ports>) -> Option<Outcome> {
        let is_dead = match stop {
            Stop::Wait => return self.wait_for_answer(with_ports, ports),
            Stop::Exception(number, error) => self.pending.raise(number, error),
            Stop::PageFault(address, code) => self.pending.raise_page_fault(address, code),
            Stop::Unsupported => {
                self.replay.clear();
                return Some(Outcome::Internal { emulation: true, code: 0 });
            }
        };
        self.replay.clear();
        if is_dead { Some(Outcome::Shutdown) } else { ports.map(io) }
    }

    fn wait_for_answer(&mut self, with_ports: bool, ports: Option<Ports>) -> Option<Outcome> {
        self.resume = Resume::Emulate { with_ports };
        if let Some((is_in, size, _, count)) = ports {
            self.replay.count = 0;
            self.replay.port = (0, if is_in { usize::from(size) * count as usize } else { 0 });
            return ports.map(io);
        }
        let (address, len) = self.replay.asked?;
        Some(Outcome::Mmio { address, data: [0; 8], len, write: false })
    }

    /// Moves RIP behind the instruction that caused the exit.
    pub(super) fn skip(&mut self, host: &mut impl Host) -> Option<Outcome> {
        let next = match self.hardware.next_rip() {
            Some(next) => next,
            None => {
                let system = self.hardware.system();
                match self.fetch(host, &system) {
                    Ok(i) => self.hardware.rip().wrapping_add(u64::from(i.len)),
                    Err(Stop::PageFault(address, code)) => {
                        let dead = self.pending.raise_page_fault(address, code);
                        return dead.then_some(Outcome::Shutdown);
                    }
                    // Another CPU of the guest has changed it meanwhile.
                    Err(_) => return self.raise(vector::UD, None),
                }
            }
        };
        self.hardware.set_rip(next);
        self.hardware.set_shadow(false);
        None
    }
}
