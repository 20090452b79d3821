//! What each exit means.

use super::{Host, Mapped, MpState, Outcome, Resume, Vcpu};
use crate::decode::Rm;
use crate::emulate::Stop;
use crate::event::vector;
use crate::exit::{Exit, Io, Vmrun};
use crate::regs::{CodeSize, cr, flags, gpr};

impl<H: Vmrun> Vcpu<H> {
    pub(super) fn handle(&mut self, host: &mut impl Host, exit: Exit) -> Option<Outcome> {
        match exit {
            Exit::Host | Exit::InterruptWindow => None,
            Exit::NmiReturn => {
                self.pending.nmi_return = Some(self.hardware.rip());
                None
            }
            Exit::NmiWindow => {
                (self.pending.nmi_masked, self.pending.nmi_return) = (false, None);
                None
            }
            Exit::Halt => self.halt(host),
            Exit::Cpuid => self.cpuid(host),
            Exit::ReadMsr => self.read_msr_exit(host),
            Exit::WriteMsr => self.write_msr_exit(host),
            Exit::Io(io) => self.io(host, io),
            Exit::NestedFault { address, write, exec } => match host.map(address, write, exec) {
                Mapped::Memory => None,
                Mapped::Device if exec => Some(Outcome::Internal { emulation: true, code: 0 }),
                Mapped::Device => self.emulate(host, false),
                Mapped::Failed => Some(Outcome::BadMemory),
            },
            Exit::ControlRegister { number, write } => self.control_register(host, number, write),
            Exit::DebugRegister { number, write } => self.debug_register(host, number, write),
            // The guest's own, stopped only so that its delivery cannot go on for ever.
            Exit::Exception { vector, error } => {
                let error = crate::event::has_error_code(vector).then_some(error);
                self.raise(vector, error)
            }
            Exit::SetXcr => self.set_xcr(host),
            Exit::Pause => {
                host.pause();
                None
            }
            Exit::CacheFlush => self.skip(host),
            // As on a CPU whose monitor is always triggered.
            Exit::Monitor | Exit::Hypercall | Exit::Undefined => self.raise(vector::UD, None),
            Exit::ReadCounter => self.raise(vector::GP, Some(0)),
            Exit::Shutdown => Some(Outcome::Shutdown),
            Exit::Invalid => Some(Outcome::FailedEntry),
            Exit::Lost => Some(Outcome::LostGuest),
            Exit::TaskSwitch => Some(Outcome::Internal { emulation: true, code: 0 }),
            Exit::Unknown(_) => Some(Self::internal(exit)),
        }
    }

    pub(super) fn raise(&mut self, number: u8, error: Option<u32>) -> Option<Outcome> {
        self.pending.raise(number, error).then_some(Outcome::Shutdown)
    }

    fn halt(&mut self, host: &mut impl Host) -> Option<Outcome> {
        let outcome = self.skip(host);
        if outcome.is_none() && self.pending.exception.is_none() {
            self.mp_state = MpState::Halted;
            if !host.has_controller() && !self.wakes_at_once() {
                // The VMM waits for the interrupt, and says so by giving it.
                self.mp_state = MpState::Runnable;
                return Some(Outcome::Halted);
            }
        }
        outcome
    }

    fn wakes_at_once(&self) -> bool {
        let interruptible = self.hardware.rflags() & flags::IF != 0;
        self.pending.nmis > 0 || interruptible && self.pending.external.is_some()
    }

    fn cpuid(&mut self, host: &mut impl Host) -> Option<Outcome> {
        let outcome = self.skip(host);
        if outcome.is_some() || self.pending.exception.is_some() {
            return outcome;
        }
        let gprs = self.hardware.gprs();
        let (leaf, subleaf) = (gprs[gpr::RAX] as u32, gprs[gpr::RCX] as u32);
        let cr4 = self.hardware.system().cr4;
        let xcr0 = *self.hardware.xcr0();
        let [a, b, c, d] = self.cpuid.execute(leaf, subleaf, cr4, xcr0);
        let gprs = self.hardware.gprs();
        for (register, value) in [(gpr::RAX, a), (gpr::RBX, b), (gpr::RCX, c), (gpr::RDX, d)] {
            gprs[register] = value.into();
        }
        None
    }

    // --------------------------------------------------------------------------------------------
    // Ports

    fn io(&mut self, host: &mut impl Host, io: Io) -> Option<Outcome> {
        if io.is_string {
            return self.emulate(host, true);
        }
        let size = usize::from(io.size.clamp(1, 4));
        let mut data = [0; 4];
        if io.is_in {
            if host.port_read(io.port, &mut data[..size]) {
                self.finish_port_in(io.size, io.next_rip, data);
                return None;
            }
            self.resume = Resume::PortIn { size: io.size, next_rip: io.next_rip };
        } else {
            let value = (self.hardware.gprs()[gpr::RAX] as u32).to_le_bytes();
            self.hardware.set_rip(io.next_rip);
            self.hardware.set_shadow(false);
            if host.port_write(io.port, &value[..size]) {
                return None;
            }
            self.port_data[..4].copy_from_slice(&value);
        }
        Some(Outcome::Io { is_in: io.is_in, size: io.size, port: io.port, count: 1 })
    }

    pub(super) fn finish_port_in(&mut self, size: u8, next_rip: u64, data: [u8; 4]) {
        let value = u64::from(u32::from_le_bytes(data));
        let rax = &mut self.hardware.gprs()[gpr::RAX];
        *rax = match size {
            1 => *rax & !0xff | value & 0xff,
            2 => *rax & !0xffff | value & 0xffff,
            _ => value,
        };
        self.hardware.set_rip(next_rip);
        self.hardware.set_shadow(false);
    }

    // --------------------------------------------------------------------------------------------
    // Control and debug registers

    /// The general register that a move to or from a control or debug register names.
    fn moved_register(&mut self, host: &mut impl Host) -> Result<(usize, u64), Stop> {
        let system = self.hardware.system();
        let instruction = self.fetch(host, &system)?;
        match (instruction.opcode, instruction.rm) {
            (0x0f20..=0x0f23, Some(Rm::Register(register))) => {
                let next = self.hardware.rip().wrapping_add(u64::from(instruction.len));
                Ok((usize::from(register & 15), next))
            }
            _ => Err(Stop::Unsupported),
        }
    }

    fn moved(&mut self, host: &mut impl Host) -> Result<(usize, u64), Option<Outcome>> {
        self.moved_register(host).map_err(|stop| match stop {
            Stop::PageFault(address, code) => {
                self.pending.raise_page_fault(address, code).then_some(Outcome::Shutdown)
            }
            _ => self.raise(vector::UD, None),
        })
    }

    /// CR8, and writes of CR0 (MOV, LMSW) and CR4.
    fn control_register(
        &mut self,
        host: &mut impl Host,
        number: u8,
        write: bool,
    ) -> Option<Outcome> {
        match (number, write) {
            (0, true) => return self.write_cr0(host),
            (4, true) => return self.write_cr4(host),
            _ => {}
        }
        if number != 8 {
            return self.raise(vector::UD, None);
        }
        let (register, next) = match self.moved(host) {
            Ok(moved) => moved,
            Err(outcome) => return outcome,
        };
        if write {
            let value = self.hardware.gprs()[register];
            if value > 15 {
                return self.raise(vector::GP, Some(0));
            }
            self.hardware.set_priority(value as u8);
            host.set_priority(value as u8);
        } else {
            let priority = u64::from(self.hardware.priority());
            self.hardware.gprs()[register] = priority;
        }
        self.hardware.set_rip(next);
        None
    }

    fn write_cr0(&mut self, host: &mut impl Host) -> Option<Outcome> {
        let system = self.hardware.system();
        let written = self.fetch(host, &system).and_then(|instruction| {
            let next = self.hardware.rip().wrapping_add(u64::from(instruction.len));
            let value = match (instruction.opcode, instruction.reg, instruction.rm) {
                (0x0f22, 0, Some(Rm::Register(register))) => {
                    let value = self.hardware.gprs()[usize::from(register & 15)];
                    if instruction.operand == 8 { value } else { value & 0xffff_ffff }
                }
                (0x0f01, reg, _) if reg & 7 == 6 => {
                    // PE can be set so, and not cleared.
                    let kept = system.cr0 & !(cr::CR0_STATUS_WORD & !cr::CR0_PE);
                    kept | self.status_word(host, &instruction)? & cr::CR0_STATUS_WORD
                }
                _ => return Err(Stop::Unsupported),
            };
            Ok((value, next))
        });
        let (value, next) = match written {
            Ok(written) => written,
            Err(Stop::PageFault(address, code)) => {
                let is_dead = self.pending.raise_page_fault(address, code);
                return is_dead.then_some(Outcome::Shutdown);
            }
            Err(Stop::Exception(number, error)) => return self.raise(number, error),
            // LMSW from a device's register, or the code is not that any more.
            Err(Stop::Wait) => return Some(Outcome::Internal { emulation: true, code: 0 }),
            Err(Stop::Unsupported) => return self.raise(vector::UD, None),
        };
        match system.with_cr0(value).filter(|_| self.hardware.cpl() == 0) {
            None => self.raise(vector::GP, Some(0)),
            Some(system) => {
                self.hardware.set_system(&system);
                self.hardware.set_rip(next);
                self.hardware.set_shadow(false);
                None
            }
        }
    }

    fn write_cr4(&mut self, host: &mut impl Host) -> Option<Outcome> {
        let (register, next) = match self.moved(host) {
            Ok(moved) => moved,
            Err(outcome) => return outcome,
        };
        let system = self.hardware.system();
        let is_64_bit = system.code_size(self.hardware.rflags()) == CodeSize::Bits64;
        let mask = if is_64_bit { u64::MAX } else { 0xffff_ffff };
        let value = self.hardware.gprs()[register] & mask;
        let new = system.with_cr4(value, self.hardware.cr4_allowed());
        match new.filter(|_| self.hardware.cpl() == 0) {
            None => self.raise(vector::GP, Some(0)),
            Some(system) => {
                self.hardware.set_system(&system);
                self.hardware.set_rip(next);
                self.hardware.set_shadow(false);
                None
            }
        }
    }

    fn debug_register(&mut self, host: &mut impl Host, number: u8, write: bool) -> Option<Outcome> {
        // DR4 and DR5 are other names of DR6 and DR7 (with CR4.DE they are #UD before any exit).
        let number = usize::from(if matches!(number, 4 | 5) { number + 2 } else { number & 7 });
        let (register, next) = match self.moved(host) {
            Ok(moved) => moved,
            Err(outcome) => return outcome,
        };
        if write {
            let value = self.hardware.gprs()[register];
            if number >= 6 && value >> 32 != 0 {
                return self.raise(vector::GP, Some(0));
            }
            self.hardware.debug_registers()[number] = match number {
                6 => value & 0xe00f | 0xffff_0ff0,
                7 => value & 0xffff_2bff | 0x400,
                _ => value,
            };
        } else {
            let value = self.hardware.debug_registers()[number];
            self.hardware.gprs()[register] = value;
        }
        self.hardware.set_rip(next);
        None
    }

    /// XSETBV: what may be enabled, and in which combinations (AMD APM 2, 11.5.2).
    fn set_xcr(&mut self, host: &mut impl Host) -> Option<Outcome> {
        let gprs = self.hardware.gprs();
        let value = gprs[gpr::RDX] << 32 | gprs[gpr::RAX] & 0xffff_ffff;
        let index = gprs[gpr::RCX] as u32;
        if index != 0 || !is_valid_xcr0(value, host.xcr0_allowed()) || self.hardware.cpl() != 0 {
            return self.raise(vector::GP, Some(0));
        }
        *self.hardware.xcr0() = value;
        self.skip(host)
    }
}

/// Whether XCR0 may be `value` where the components `allowed` exist.
#[must_use]
pub fn is_valid_xcr0(value: u64, allowed: u64) -> bool {
    const AVX512: u64 = 0xe0;
    let has = |bits: u64| value & bits == bits;
    value & !allowed == 0
        && has(1)
        && (!has(4) || has(2))
        && (value & AVX512 == 0 || has(AVX512 | 4))
        && matches!(value & 0x18, 0 | 0x18)
}
