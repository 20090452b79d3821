//! Executes one decoded instruction for the guest: where its memory is a device's registers, the
//! CPU cannot.
//!
//! What is hard: a read may have to be answered by the VMM, which means leaving in the middle. So
//! an instruction changes nothing before all its reads are answered, and is begun again when the
//! answer is there; writes come last, and do not wait for anybody.
//!
//! Neighbours: `decode` says what it is, `vcpu` has the [`Bus`].

use crate::decode::{Instruction, Memory, Repeat, Rm};
use crate::event::vector;
use crate::regs::{CodeSize, Gprs, System, attribute, flags, gpr, seg};

/// Most rounds of a repeated string instruction in one call.
pub const MAX_ROUNDS: u32 = 512;

/// Why an instruction was not finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// It causes an exception, with this error code.
    Exception(u8, Option<u32>),
    /// It causes a page fault at the linear address.
    PageFault(u64, u32),
    /// Something else must be done first; the bus knows what. To be begun again.
    Wait,
    /// Software cannot do it.
    Unsupported,
}

/// Memory and ports as the guest's instructions see them.
pub trait Bus {
    /// Reads at a linear address.
    fn read(&mut self, linear: u64, into: &mut [u8]) -> Result<(), Stop>;
    /// Writes at a linear address. A device of the VMM's gets it later.
    fn write(&mut self, linear: u64, from: &[u8]) -> Result<(), Stop>;
    /// Reads a port; `more` further reads of the same width follow.
    fn port_in(&mut self, port: u16, into: &mut [u8], more: u64) -> Result<(), Stop>;
    /// Writes a port. A device of the VMM's gets it later.
    fn port_out(&mut self, port: u16, from: &[u8]) -> Result<(), Stop>;
    /// Whether writes wait for the VMM, so that no more should be made.
    fn is_full(&self) -> bool;
}

/// The registers an instruction works on.
pub struct Cpu<'a, B: Bus> {
    /// General registers.
    pub gprs: &'a mut Gprs,
    /// Its address; moves on when it is done.
    pub rip: u64,
    /// Flags.
    pub rflags: u64,
    /// Segments and modes.
    pub system: &'a System,
    /// Memory and ports.
    pub bus: &'a mut B,
}

/// The lowest `bytes` bytes set.
const fn mask(bytes: u8) -> u64 {
    if bytes >= 8 { u64::MAX } else { (1 << (bytes * 8)) - 1 }
}

const fn sign(bytes: u8) -> u64 {
    1 << (bytes * 8 - 1)
}

const fn sign_extend(value: u64, bytes: u8) -> u64 {
    let unused = 64 - bytes as u32 * 8;
    ((value << unused) as i64 >> unused) as u64
}

/// `old` with its lowest `bytes` bytes replaced, as the CPU writes a general register: four bytes
/// clear the upper half.
const fn merge(old: u64, value: u64, bytes: u8) -> u64 {
    match bytes {
        4 | 8 => value & mask(bytes),
        _ => old & !mask(bytes) | value & mask(bytes),
    }
}

/// ADD, OR, ADC, SBB, AND, SUB, XOR, CMP, by their encoding: the result and the status flags.
fn arithmetic(operation: u8, a: u64, b: u64, bytes: u8, rflags: u64) -> (u64, u64) {
    let m = mask(bytes);
    let (a, b) = (a & m, b & m);
    let carry = rflags & flags::CF;
    let (result, is_carry, is_overflow) = match operation {
        0 | 2 => {
            let carry = if operation == 2 { carry } else { 0 };
            let wide = u128::from(a) + u128::from(b) + u128::from(carry);
            let r = wide as u64 & m;
            (r, wide > u128::from(m), (a ^ r) & (b ^ r) & sign(bytes) != 0)
        }
        3 | 5 | 7 => {
            let borrow = if operation == 3 { carry } else { 0 };
            let r = a.wrapping_sub(b).wrapping_sub(borrow) & m;
            let is_carry = u128::from(a) < u128::from(b) + u128::from(borrow);
            (r, is_carry, (a ^ b) & (a ^ r) & sign(bytes) != 0)
        }
        1 => (a | b, false, false),
        4 => (a & b, false, false),
        _ => (a ^ b, false, false),
    };
    let is_logic = matches!(operation, 1 | 4 | 6);
    let mut status = 0;
    for (on, flag) in [
        (is_carry, flags::CF),
        ((result as u8).count_ones().is_multiple_of(2), flags::PF),
        (!is_logic && (a ^ b ^ result) & 0x10 != 0, flags::AF),
        (result == 0, flags::ZF),
        (result & sign(bytes) != 0, flags::SF),
        (is_overflow, flags::OF),
    ] {
        status |= if on { flag } else { 0 };
    }
    (result, status)
}

impl<B: Bus> Cpu<'_, B> {
    /// Executes it; RIP is behind it afterwards, or still at it while it is to be repeated.
    /// `with_ports`: string instructions on ports are meant (the exit was one).
    pub fn execute(&mut self, i: &Instruction, with_ports: bool) -> Result<(), Stop> {
        match i.opcode {
            0x6c..=0x6f if with_ports => self.string(i),
            0xa4..=0xa7 | 0xaa..=0xaf => self.string(i),
            _ if with_ports => Err(Stop::Unsupported),
            0x00..=0x3f => self.arithmetic_rm(i),
            0x80..=0x83 => {
                let value = i.immediate;
                self.update(i, i.modrm >> 3 & 7, value)
            }
            0x84 | 0x85 => {
                let (a, b) = (self.read_rm(i, i.operand)?, self.register(i, i.reg, i.operand));
                self.set_status(arithmetic(4, a, b, i.operand, self.rflags).1, flags::STATUS);
                self.done(i)
            }
            0x86 | 0x87 => {
                let (old, new) = (self.read_rm(i, i.operand)?, self.register(i, i.reg, i.operand));
                self.write_rm(i, i.operand, new)?;
                self.set_register(i, i.reg, old, i.operand);
                self.done(i)
            }
            0x88 | 0x89 | 0x0fc3 => {
                let value = self.register(i, i.reg, i.operand);
                self.write_rm(i, i.operand, value)?;
                self.done(i)
            }
            0x8a | 0x8b => self.load(i, i.operand, |value| value),
            0xa0..=0xa3 => self.move_direct(i),
            0xc6 | 0xc7 if i.modrm >> 3 & 7 == 0 => {
                self.write_rm(i, i.operand, i.immediate)?;
                self.done(i)
            }
            0x63 => self.load(i, 4, |value| sign_extend(value, 4)),
            0x0fb6 => self.load(i, 1, |value| value),
            0x0fb7 => self.load(i, 2, |value| value),
            0x0fbe => self.load(i, 1, |value| sign_extend(value, 1)),
            0x0fbf => self.load(i, 2, |value| sign_extend(value, 2)),
            0xf6 | 0xf7 | 0xfe | 0xff => self.unary(i),
            0x0fa3 | 0x0fab | 0x0fb3 | 0x0fbb => {
                let at = self.register(i, i.reg, i.operand);
                self.bit(i, (i.opcode >> 3 & 3) as u8, sign_extend(at, i.operand), true)
            }
            0x0fba => self.bit(i, i.modrm >> 3 & 3, i.immediate, false),
            0x0fb0 | 0x0fb1 => self.compare_exchange(i),
            0x0fc0 | 0x0fc1 => {
                let (old, add) = (self.read_rm(i, i.operand)?, self.register(i, i.reg, i.operand));
                let (sum, status) = arithmetic(0, old, add, i.operand, self.rflags);
                self.write_rm(i, i.operand, sum)?;
                self.set_register(i, i.reg, old, i.operand);
                self.set_status(status, flags::STATUS);
                self.done(i)
            }
            // Prefetches, long NOPs and flushes of cache lines mean nothing to a device.
            0x0f0d | 0x0f18 | 0x0f1f => self.done(i),
            0x0fae if i.modrm >> 3 & 7 == 7 => self.done(i),
            _ => Err(Stop::Unsupported),
        }
    }

    /// The operand of LMSW.
    pub fn status_word(&mut self, i: &Instruction) -> Result<u64, Stop> {
        self.read_rm(i, 2)
    }

    fn done(&mut self, i: &Instruction) -> Result<(), Stop> {
        self.rip = self.rip.wrapping_add(u64::from(i.len));
        match self.system.code_size(self.rflags) {
            CodeSize::Bits64 => {}
            _ => self.rip &= 0xffff_ffff,
        }
        Ok(())
    }

    fn set_status(&mut self, status: u64, which: u64) {
        self.rflags = self.rflags & !which | status & which;
    }

    // --------------------------------------------------------------------------------------------
    // Operands

    fn register(&self, i: &Instruction, number: u8, bytes: u8) -> u64 {
        let value = if bytes == 1 && !i.has_rex && (4..8).contains(&number) {
            self.gprs[usize::from(number - 4)] >> 8
        } else {
            self.gprs[usize::from(number & 15)]
        };
        value & mask(bytes)
    }

    fn set_register(&mut self, i: &Instruction, number: u8, value: u64, bytes: u8) {
        if bytes == 1 && !i.has_rex && (4..8).contains(&number) {
            let register = &mut self.gprs[usize::from(number - 4)];
            *register = *register & !0xff00 | (value & 0xff) << 8;
        } else {
            let register = &mut self.gprs[usize::from(number & 15)];
            *register = merge(*register, value, bytes);
        }
    }

    /// The linear address of `bytes` bytes at an offset in a segment.
    fn linear(&self, segment: u8, offset: u64, bytes: u8) -> Result<u64, Stop> {
        let s = &self.system.segments[usize::from(segment)];
        if self.system.code_size(self.rflags) == CodeSize::Bits64 {
            let has_base = matches!(usize::from(segment), seg::FS | seg::GS);
            return Ok(if has_base { s.base.wrapping_add(offset) } else { offset });
        }
        let expands_down = s.attributes & 0xc == 4 && s.attributes & attribute::CODE_OR_DATA != 0;
        let last = offset.wrapping_add(u64::from(bytes) - 1);
        if !expands_down && last > u64::from(s.limit) {
            let is_stack = usize::from(segment) == seg::SS;
            let fault = if is_stack { vector::SS } else { vector::GP };
            return Err(Stop::Exception(fault, Some(0)));
        }
        Ok(s.base.wrapping_add(offset) & 0xffff_ffff)
    }

    fn offset(&self, i: &Instruction, memory: &Memory) -> u64 {
        let mut at = memory.displacement as u64;
        if let Some(base) = memory.base {
            at = at.wrapping_add(self.gprs[usize::from(base & 15)]);
        }
        if let Some((index, shift)) = memory.index {
            at = at.wrapping_add(self.gprs[usize::from(index & 15)] << shift);
        }
        if memory.rip_relative {
            at = at.wrapping_add(self.rip).wrapping_add(u64::from(i.len));
        }
        at & mask(i.address)
    }

    fn read_linear(&mut self, at: u64, bytes: u8) -> Result<u64, Stop> {
        let mut buffer = [0; 8];
        self.bus.read(at, &mut buffer[..usize::from(bytes)])?;
        Ok(u64::from_le_bytes(buffer))
    }

    fn write_linear(&mut self, at: u64, bytes: u8, value: u64) -> Result<(), Stop> {
        self.bus.write(at, &value.to_le_bytes()[..usize::from(bytes)])
    }

    fn read_rm(&mut self, i: &Instruction, bytes: u8) -> Result<u64, Stop> {
        match i.rm.ok_or(Stop::Unsupported)? {
            Rm::Register(number) => Ok(self.register(i, number, bytes)),
            Rm::Memory(memory) => {
                let at = self.linear(memory.segment, self.offset(i, &memory), bytes)?;
                self.read_linear(at, bytes)
            }
        }
    }

    fn write_rm(&mut self, i: &Instruction, bytes: u8, value: u64) -> Result<(), Stop> {
        match i.rm.ok_or(Stop::Unsupported)? {
            Rm::Register(number) => self.set_register(i, number, value, bytes),
            Rm::Memory(memory) => {
                let at = self.linear(memory.segment, self.offset(i, &memory), bytes)?;
                self.write_linear(at, bytes, value)?;
            }
        }
        Ok(())
    }

    // --------------------------------------------------------------------------------------------
    // Groups of instructions

    fn load(&mut self, i: &Instruction, from: u8, widen: fn(u64) -> u64) -> Result<(), Stop> {
        let value = widen(self.read_rm(i, from)?);
        self.set_register(i, i.reg, value, i.operand);
        self.done(i)
    }

    fn move_direct(&mut self, i: &Instruction) -> Result<(), Stop> {
        let at = self.linear(i.segment, i.immediate & mask(i.address), i.operand)?;
        if i.opcode < 0xa2 {
            let value = self.read_linear(at, i.operand)?;
            self.set_register(i, gpr::RAX as u8, value, i.operand);
        } else {
            self.write_linear(at, i.operand, self.gprs[gpr::RAX])?;
        }
        self.done(i)
    }

    /// The operand in register or memory becomes the result, but for CMP.
    fn update(&mut self, i: &Instruction, operation: u8, b: u64) -> Result<(), Stop> {
        let a = self.read_rm(i, i.operand)?;
        let (result, status) = arithmetic(operation, a, b, i.operand, self.rflags);
        if operation != 7 {
            self.write_rm(i, i.operand, result)?;
        }
        self.set_status(status, flags::STATUS);
        self.done(i)
    }

    fn arithmetic_rm(&mut self, i: &Instruction) -> Result<(), Stop> {
        let operation = (i.opcode >> 3 & 7) as u8;
        let b = self.register(i, i.reg, i.operand);
        if i.opcode & 2 == 0 {
            return self.update(i, operation, b);
        }
        let a = self.read_rm(i, i.operand)?;
        let (result, status) = arithmetic(operation, b, a, i.operand, self.rflags);
        if operation != 7 {
            self.set_register(i, i.reg, result, i.operand);
        }
        self.set_status(status, flags::STATUS);
        self.done(i)
    }

    fn unary(&mut self, i: &Instruction) -> Result<(), Stop> {
        let a = self.read_rm(i, i.operand)?;
        let all_but_carry = flags::STATUS & !flags::CF;
        let (result, status, which) = match (i.opcode & 8, i.modrm >> 3 & 7) {
            (0, 0 | 1) => {
                let status = arithmetic(4, a, i.immediate, i.operand, self.rflags).1;
                self.set_status(status, flags::STATUS);
                return self.done(i);
            }
            (0, 2) => (!a, 0, 0),
            (0, 3) => {
                let (result, status) = arithmetic(5, 0, a, i.operand, self.rflags);
                (result, status, flags::STATUS)
            }
            (8, extension @ (0 | 1)) => {
                let operation = if extension == 0 { 0 } else { 5 };
                let (result, status) = arithmetic(operation, a, 1, i.operand, self.rflags);
                (result, status, all_but_carry)
            }
            _ => return Err(Stop::Unsupported),
        };
        self.write_rm(i, i.operand, result)?;
        self.set_status(status, which);
        self.done(i)
    }

    /// BT, BTS, BTR, BTC. A number in a register reaches beyond the operand in memory.
    fn bit(&mut self, i: &Instruction, operation: u8, number: u64, far: bool) -> Result<(), Stop> {
        let width = u64::from(i.operand) * 8;
        let mut moved = *i;
        if let (true, Some(Rm::Memory(mut memory))) = (far, i.rm) {
            let words = (number as i64).div_euclid(width as i64);
            let bytes = words.wrapping_mul(i64::from(i.operand));
            memory.displacement = memory.displacement.wrapping_add(bytes);
            moved.rm = Some(Rm::Memory(memory));
        }
        let bit = 1u64 << (number & (width - 1));
        let old = self.read_rm(&moved, i.operand)?;
        let new = match operation {
            1 => old | bit,
            2 => old & !bit,
            3 => old ^ bit,
            _ => old,
        };
        if operation != 0 {
            self.write_rm(&moved, i.operand, new)?;
        }
        self.set_status(if old & bit != 0 { flags::CF } else { 0 }, flags::CF);
        self.done(i)
    }

    fn compare_exchange(&mut self, i: &Instruction) -> Result<(), Stop> {
        let old = self.read_rm(i, i.operand)?;
        let expected = self.gprs[gpr::RAX];
        let (_, status) = arithmetic(7, expected, old, i.operand, self.rflags);
        let is_equal = status & flags::ZF != 0;
        let new = if is_equal { self.register(i, i.reg, i.operand) } else { old };
        self.write_rm(i, i.operand, new)?;
        if !is_equal {
            self.gprs[gpr::RAX] = merge(expected, old, i.operand);
        }
        self.set_status(status, flags::STATUS);
        self.done(i)
    }

    // --------------------------------------------------------------------------------------------
    // String instructions

    fn string(&mut self, i: &Instruction) -> Result<(), Stop> {
        let counts = mask(i.address);
        for _ in 0..MAX_ROUNDS {
            let left = self.gprs[gpr::RCX] & counts;
            if i.repeat.is_some() && left == 0 {
                return self.done(i);
            }
            let compared = self.string_round(i, if i.repeat.is_some() { left - 1 } else { 0 })?;
            let Some(repeat) = i.repeat else { return self.done(i) };
            self.gprs[gpr::RCX] = merge(self.gprs[gpr::RCX], left - 1, i.address);
            let is_equal = self.rflags & flags::ZF != 0;
            let ended = compared && is_equal != (repeat == Repeat::Equal);
            if left == 1 || ended {
                return self.done(i);
            }
            if self.bus.is_full() {
                break;
            }
        }
        Ok(())
    }

    /// One element. True: flags were set by a comparison.
    fn string_round(&mut self, i: &Instruction, more: u64) -> Result<bool, Stop> {
        let bytes = if matches!(i.opcode, 0x6d | 0x6f) { i.operand.min(4) } else { i.operand };
        let from = self.gprs[gpr::RSI] & mask(i.address);
        let to = self.gprs[gpr::RDI] & mask(i.address);
        let port = self.gprs[gpr::RDX] as u16;
        let (mut uses_from, mut uses_to, mut compared) = (true, true, false);
        match i.opcode {
            0x6c | 0x6d => {
                let to = self.linear(seg::ES as u8, to, bytes)?;
                let mut buffer = [0; 8];
                let buffer = &mut buffer[..usize::from(bytes)];
                self.bus.port_in(port, buffer, more)?;
                self.bus.write(to, buffer)?;
                uses_from = false;
            }
            0x6e | 0x6f => {
                let from = self.linear(i.segment, from, bytes)?;
                let value = self.read_linear(from, bytes)?;
                self.bus.port_out(port, &value.to_le_bytes()[..usize::from(bytes)])?;
                uses_to = false;
            }
            0xa4 | 0xa5 => {
                let from = self.linear(i.segment, from, bytes)?;
                let to = self.linear(seg::ES as u8, to, bytes)?;
                let value = self.read_linear(from, bytes)?;
                self.write_linear(to, bytes, value)?;
            }
            0xa6 | 0xa7 => {
                let from = self.linear(i.segment, from, bytes)?;
                let to = self.linear(seg::ES as u8, to, bytes)?;
                let (a, b) = (self.read_linear(from, bytes)?, self.read_linear(to, bytes)?);
                self.set_status(arithmetic(7, a, b, bytes, self.rflags).1, flags::STATUS);
                compared = true;
            }
            0xaa | 0xab => {
                let to = self.linear(seg::ES as u8, to, bytes)?;
                self.write_linear(to, bytes, self.gprs[gpr::RAX])?;
                uses_from = false;
            }
            0xac | 0xad => {
                let from = self.linear(i.segment, from, bytes)?;
                let value = self.read_linear(from, bytes)?;
                self.gprs[gpr::RAX] = merge(self.gprs[gpr::RAX], value, bytes);
                uses_to = false;
            }
            _ => {
                let to = self.linear(seg::ES as u8, to, bytes)?;
                let (a, b) = (self.gprs[gpr::RAX], self.read_linear(to, bytes)?);
                self.set_status(arithmetic(7, a, b, bytes, self.rflags).1, flags::STATUS);
                (uses_from, compared) = (false, true);
            }
        }
        let bytes = u64::from(bytes);
        let step = if self.rflags & flags::DF == 0 { bytes } else { bytes.wrapping_neg() };
        for (used, register) in [(uses_from, gpr::RSI), (uses_to, gpr::RDI)] {
            if used {
                let moved = self.gprs[register].wrapping_add(step);
                self.gprs[register] = merge(self.gprs[register], moved, i.address);
            }
        }
        Ok(compared)
    }
}
