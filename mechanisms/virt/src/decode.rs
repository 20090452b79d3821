//! Decodes the instructions that software may have to execute for a guest: those that touch memory
//! in ways device registers are touched, and those that cause exits. Hardware without decode
//! assists or next-RIP saving leaves even their length to software.
//!
//! What is not listed is [`Unknown`]; nothing is guessed. The tests compare every length and
//! operand with another decoder's. Reference: AMD APM 3, 1.2 to 1.5 and appendix A.

use crate::regs::{CodeSize, seg};

/// The longest instruction there is, bytes.
pub const MAX_LEN: usize = 15;

/// A memory operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// By [`seg`].
    pub segment: u8,
    /// A general register that is added.
    pub base: Option<u8>,
    /// A general register that is added, shifted.
    pub index: Option<(u8, u8)>,
    /// What is added, sign-extended.
    pub displacement: i64,
    /// Relative to the next instruction.
    pub rip_relative: bool,
}

/// The operand that may be a register or in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rm {
    /// A general register.
    Register(u8),
    /// Memory.
    Memory(Memory),
}

/// Prefixes that repeat string instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeat {
    /// F3: REP, REPE.
    Equal,
    /// F2: REPNE.
    NotEqual,
}

/// A decoded instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instruction {
    /// Bytes.
    pub len: u8,
    /// The opcode; two-byte ones are 0x0fNN.
    pub opcode: u16,
    /// The whole ModRM byte, 0 if there is none.
    pub modrm: u8,
    /// The register operand, extended by REX.R.
    pub reg: u8,
    /// The other operand, if there is a ModRM byte.
    pub rm: Option<Rm>,
    /// Bytes of an operand: 1, 2, 4 or 8.
    pub operand: u8,
    /// Bytes of an address: 2, 4 or 8.
    pub address: u8,
    /// The immediate, sign-extended; for the moves A0 to A3 the address.
    pub immediate: u64,
    /// There is a REX prefix: byte registers 4 to 7 are SPL to DIL.
    pub has_rex: bool,
    /// Segment of memory operands that no ModRM byte names.
    pub segment: u8,
    /// Of a string instruction.
    pub repeat: Option<Repeat>,
}

/// Why there is no [`Instruction`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeError {
    /// The bytes end within it.
    Short,
    /// Not one of those that are known.
    Unknown,
}
use DecodeError::{Short, Unknown};

/// What follows an opcode.
#[derive(Clone, Copy)]
struct Shape {
    modrm: bool,
    /// Operands are bytes.
    byte: bool,
    immediate: Immediate,
}

#[derive(Clone, Copy, PartialEq)]
enum Immediate {
    None,
    Byte,
    /// As wide as the operand, at most four bytes.
    Operand,
    /// As wide as an address.
    Address,
}

const fn shape(modrm: bool, byte: bool, immediate: Immediate) -> Option<Shape> {
    Some(Shape { modrm, byte, immediate })
}

/// `extension`: the middle bits of what would be the ModRM byte.
fn shape_of(opcode: u16, extension: u8) -> Option<Shape> {
    let is_byte = opcode & 1 == 0;
    match opcode {
        0x00..=0x3f if opcode & 7 < 4 => shape(true, is_byte, Immediate::None),
        0x63 => shape(true, false, Immediate::None),
        0x6c..=0x6f | 0xa4..=0xa7 | 0xaa..=0xaf => shape(false, is_byte, Immediate::None),
        0x80 | 0xc6 => shape(true, true, Immediate::Byte),
        0x81 | 0xc7 => shape(true, false, Immediate::Operand),
        0x83 => shape(true, false, Immediate::Byte),
        0x84..=0x8b => shape(true, is_byte, Immediate::None),
        0x90 | 0xcc | 0xf1 | 0xf4 => shape(false, true, Immediate::None),
        0xa0..=0xa3 => shape(false, is_byte, Immediate::Address),
        0xcd | 0xe4..=0xe7 => shape(false, is_byte, Immediate::Byte),
        0xec..=0xef => shape(false, is_byte, Immediate::None),
        0xf6 if extension < 2 => shape(true, true, Immediate::Byte),
        0xf7 if extension < 2 => shape(true, false, Immediate::Operand),
        0xf6 | 0xf7 if extension < 4 => shape(true, is_byte, Immediate::None),
        0xfe | 0xff if extension < 2 => shape(true, is_byte, Immediate::None),
        0x0f01 | 0x0f0d | 0x0f18 | 0x0f1f | 0x0fae => shape(true, false, Immediate::None),
        0x0f06 | 0x0f08 | 0x0f09 | 0x0f30..=0x0f33 | 0x0fa2 => shape(false, false, Immediate::None),
        0x0f20..=0x0f23 => shape(true, false, Immediate::None),
        0x0fa3 | 0x0fab | 0x0fb3 | 0x0fbb | 0x0fc3 => shape(true, false, Immediate::None),
        0x0fba if extension >= 4 => shape(true, false, Immediate::Byte),
        0x0fb0 | 0x0fb1 | 0x0fc0 | 0x0fc1 => shape(true, is_byte, Immediate::None),
        // Their register operand is wide; the other has one or two bytes.
        0x0fb6 | 0x0fb7 | 0x0fbe | 0x0fbf => shape(true, false, Immediate::None),
        _ => None,
    }
}

struct Bytes<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Bytes<'_> {
    fn peek(&self) -> Result<u8, DecodeError> {
        if self.at >= MAX_LEN {
            return Err(Unknown);
        }
        self.bytes.get(self.at).copied().ok_or(Short)
    }

    fn next(&mut self) -> Result<u8, DecodeError> {
        let byte = self.peek()?;
        self.at += 1;
        Ok(byte)
    }

    /// `count` bytes, least significant first, sign-extended.
    fn signed(&mut self, count: u32) -> Result<i64, DecodeError> {
        let mut value = 0u64;
        for n in 0..count {
            value |= u64::from(self.next()?) << (8 * n);
        }
        let unused = 64 - 8 * count;
        Ok(if count == 0 { 0 } else { (value << unused) as i64 >> unused })
    }
}

#[derive(Default)]
struct Prefixes {
    operand: bool,
    address: bool,
    segment: Option<usize>,
    repeat: Option<Repeat>,
    lock: bool,
    rex: u8,
}

fn prefixes(bytes: &mut Bytes<'_>, code: CodeSize) -> Result<Prefixes, DecodeError> {
    let mut p = Prefixes::default();
    loop {
        match bytes.peek()? {
            0x26 => p.segment = Some(seg::ES),
            0x2e => p.segment = Some(seg::CS),
            0x36 => p.segment = Some(seg::SS),
            0x3e => p.segment = Some(seg::DS),
            0x64 => p.segment = Some(seg::FS),
            0x65 => p.segment = Some(seg::GS),
            0x66 => p.operand = true,
            0x67 => p.address = true,
            0xf0 => p.lock = true,
            0xf2 => p.repeat = Some(Repeat::NotEqual),
            0xf3 => p.repeat = Some(Repeat::Equal),
            rex @ 0x40..=0x4f if code == CodeSize::Bits64 => {
                bytes.at += 1;
                p.rex = rex;
                // Only directly before the opcode does it count.
                if is_prefix(bytes.peek()?, code) {
                    p.rex = 0;
                    continue;
                }
                return Ok(p);
            }
            _ => return Ok(p),
        }
        bytes.at += 1;
    }
}

fn is_prefix(byte: u8, code: CodeSize) -> bool {
    matches!(byte, 0x26 | 0x2e | 0x36 | 0x3e | 0x64..=0x67 | 0xf0 | 0xf2 | 0xf3)
        || code == CodeSize::Bits64 && byte & 0xf0 == 0x40
}

/// Decodes the first instruction of `bytes`.
pub fn decode(bytes: &[u8], code: CodeSize) -> Result<Instruction, DecodeError> {
    let mut bytes = Bytes { bytes, at: 0 };
    let p = prefixes(&mut bytes, code)?;
    let first = bytes.next()?;
    let opcode = if first == 0x0f { 0x0f00 | u16::from(bytes.next()?) } else { first.into() };
    // A missing byte is told apart below, where one is needed.
    let modrm = bytes.peek().unwrap_or(0);
    let shape = shape_of(opcode, modrm >> 3 & 7).ok_or(Unknown)?;
    if opcode == 0x63 && code != CodeSize::Bits64 {
        return Err(Unknown);
    }
    let address = match (code, p.address) {
        (CodeSize::Bits64, false) => 8,
        (CodeSize::Bits64, true) | (CodeSize::Bits32, false) | (CodeSize::Bits16, true) => 4,
        _ => 2,
    };
    let mut operand = match (code, p.operand) {
        (CodeSize::Bits16, false) | (CodeSize::Bits32 | CodeSize::Bits64, true) => 2,
        _ => 4,
    };
    if p.rex & 8 != 0 {
        operand = 8;
    }
    if matches!(opcode, 0x0f20..=0x0f23) {
        operand = if code == CodeSize::Bits64 { 8 } else { 4 };
    }
    let operand = if shape.byte { 1 } else { operand };
    let segment = p.segment.unwrap_or(seg::DS) as u8;
    let mut instruction = Instruction {
        len: 0,
        opcode,
        modrm: 0,
        reg: 0,
        rm: None,
        operand,
        address,
        immediate: 0,
        has_rex: p.rex != 0,
        segment,
        repeat: p.repeat,
    };
    if shape.modrm {
        instruction.modrm = bytes.next()?;
        instruction.reg = instruction.modrm >> 3 & 7 | (p.rex & 4) << 1;
        let always_register = matches!(opcode, 0x0f20..=0x0f23);
        instruction.rm = Some(if instruction.modrm >= 0xc0 || always_register {
            Rm::Register(instruction.modrm & 7 | (p.rex & 1) << 3)
        } else {
            Rm::Memory(memory(&mut bytes, instruction.modrm, address, &p, code)?)
        });
    }
    let width = match shape.immediate {
        Immediate::None => 0,
        Immediate::Byte => 1,
        Immediate::Operand => u32::from(operand.min(4)),
        Immediate::Address => u32::from(address),
    };
    instruction.immediate = bytes.signed(width)? as u64;
    if p.lock && !may_be_locked(&instruction) {
        return Err(Unknown);
    }
    instruction.len = bytes.at as u8;
    Ok(instruction)
}

/// LOCK is #UD but with these, and then with memory as what is written (AMD APM 3, 1.2.5).
fn may_be_locked(instruction: &Instruction) -> bool {
    let writes = match instruction.opcode {
        op @ 0x00..=0x37 => op & 7 < 2,
        0x80..=0x83 => instruction.modrm >> 3 & 7 != 7,
        0x86 | 0x87 | 0xfe | 0xff | 0x0fab | 0x0fb0 | 0x0fb1 | 0x0fb3 | 0x0fbb | 0x0fc0
        | 0x0fc1 => true,
        0xf6 | 0xf7 => instruction.modrm >> 3 & 7 > 1,
        0x0fba => instruction.modrm >> 3 & 7 > 4,
        _ => false,
    };
    writes && matches!(instruction.rm, Some(Rm::Memory(_)))
}

fn memory(
    bytes: &mut Bytes<'_>,
    modrm: u8,
    address: u8,
    p: &Prefixes,
    code: CodeSize,
) -> Result<Memory, DecodeError> {
    let (mode, rm) = (modrm >> 6, modrm & 7);
    let mut memory = Memory {
        segment: seg::DS as u8,
        base: None,
        index: None,
        displacement: 0,
        rip_relative: false,
    };
    let mut width = [0, 1, if address == 2 { 2 } else { 4 }][usize::from(mode)];
    if address == 2 {
        // BX+SI, BX+DI, BP+SI, BP+DI, SI, DI, BP, BX.
        const PAIRS: [(u8, Option<u8>); 8] = [
            (3, Some(6)),
            (3, Some(7)),
            (5, Some(6)),
            (5, Some(7)),
            (6, None),
            (7, None),
            (5, None),
            (3, None),
        ];
        let (base, index) = PAIRS[usize::from(rm)];
        if mode == 0 && rm == 6 {
            width = 2;
        } else {
            memory.base = Some(base);
            memory.index = index.map(|index| (index, 0));
        }
    } else if rm == 4 {
        let sib = bytes.next()?;
        let index = sib >> 3 & 7 | (p.rex & 2) << 2;
        memory.index = (index != 4).then_some((index, sib >> 6));
        if sib & 7 == 5 && mode == 0 {
            width = 4;
        } else {
            memory.base = Some(sib & 7 | (p.rex & 1) << 3);
        }
    } else if rm == 5 && mode == 0 {
        width = 4;
        memory.rip_relative = code == CodeSize::Bits64;
    } else {
        memory.base = Some(rm | (p.rex & 1) << 3);
    }
    memory.displacement = bytes.signed(width)?;
    // RSP and RBP lead to the stack (R12 and R13 do not).
    if matches!(memory.base, Some(4 | 5)) {
        memory.segment = seg::SS as u8;
    }
    if let Some(segment) = p.segment {
        memory.segment = segment as u8;
    }
    Ok(memory)
}
