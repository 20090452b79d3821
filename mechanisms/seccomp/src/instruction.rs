//! Instructions: as programs pass them (`struct sock_filter`), and decoded.

use crate::DATA_BYTES;
use crate::check::Invalid;

/// One instruction of classic BPF, as `struct sock_filter` has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Insn {
    /// Class, size or operation, mode or source.
    pub code: u16,
    /// Instructions to skip if the condition holds.
    pub jt: u8,
    /// Instructions to skip if it does not.
    pub jf: u8,
    /// Constant, offset or distance.
    pub k: u32,
}

impl Insn {
    /// Bytes of an instruction in a program's memory.
    pub const LEN: usize = 8;

    /// From a program's memory, little endian.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; Self::LEN]) -> Self {
        let [c0, c1, jt, jf, k0, k1, k2, k3] = bytes;
        Self { code: u16::from_le_bytes([c0, c1]), jt, jf, k: u32::from_le_bytes([k0, k1, k2, k3]) }
    }
}

/// Words of scratch memory.
pub(crate) const MEMORY_WORDS: u32 = 16;

/// Where an operand comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operand {
    K(u32),
    X,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Alu {
    Add,
    Sub,
    Mul,
    /// By 0 is impossible with a constant; with X it ends the filter with 0.
    Div,
    And,
    Or,
    Xor,
    /// By the operand modulo 32.
    Shl,
    Shr,
}

/// Unsigned comparisons of A with the operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Condition {
    Equal,
    Greater,
    GreaterOrEqual,
    /// Some bit of both.
    AnyBit,
}

/// A decoded instruction. Distances count the instructions in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    /// A = word of the data.
    Load(u8),
    LoadConstant(u32),
    LoadMemory(u8),
    LoadXConstant(u32),
    LoadXMemory(u8),
    Store(u8),
    StoreX(u8),
    Alu(Alu, Operand),
    Negate,
    Jump(u16),
    Branch {
        condition: Condition,
        operand: Operand,
        jt: u8,
        jf: u8,
    },
    ReturnConstant(u32),
    ReturnA,
    /// X = A.
    AToX,
    /// A = X.
    XToA,
}

impl Op {
    pub(crate) const fn uses_memory(&self) -> bool {
        matches!(
            self,
            Self::LoadMemory(_) | Self::LoadXMemory(_) | Self::Store(_) | Self::StoreX(_)
        )
    }

    pub(crate) const fn reads_x(&self) -> bool {
        match self {
            Self::Alu(_, operand) | Self::Branch { operand, .. } => matches!(operand, Operand::X),
            Self::StoreX(_) | Self::XToA => true,
            _ => false,
        }
    }
}

/// Instruction codes: class, then size or operation, then mode or source (linux/bpf_common.h).
mod code {
    pub(super) const LD_W_ABS: u16 = 0x20;
    pub(super) const LD_W_LEN: u16 = 0x80;
    pub(super) const LD_IMM: u16 = 0x00;
    pub(super) const LD_MEM: u16 = 0x60;
    pub(super) const LDX_W_LEN: u16 = 0x81;
    pub(super) const LDX_IMM: u16 = 0x01;
    pub(super) const LDX_MEM: u16 = 0x61;
    pub(super) const ST: u16 = 0x02;
    pub(super) const STX: u16 = 0x03;
    pub(super) const NEG: u16 = 0x84;
    pub(super) const JA: u16 = 0x05;
    pub(super) const RET_K: u16 = 0x06;
    pub(super) const RET_A: u16 = 0x16;
    pub(super) const TAX: u16 = 0x07;
    pub(super) const TXA: u16 = 0x87;
    pub(super) const CLASS: u16 = 0x07;
    pub(super) const ALU: u16 = 0x04;
    pub(super) const JMP: u16 = 0x05;
    /// Source: X instead of the constant.
    pub(super) const X: u16 = 0x08;
}

/// Decodes one instruction by itself; whether a jump stays in the program is asked elsewhere.
pub(crate) fn decode(insn: Insn) -> Result<Op, Invalid> {
    let Insn { code, jt, jf, k } = insn;
    let memory = || match u8::try_from(k) {
        Ok(index) if k < MEMORY_WORDS => Ok(index),
        _ => Err(Invalid::Offset),
    };
    Ok(match code {
        code::LD_W_ABS => match u8::try_from(k / 4) {
            Ok(word) if k < DATA_BYTES && k % 4 == 0 => Op::Load(word),
            _ => return Err(Invalid::Offset),
        },
        code::LD_W_LEN => Op::LoadConstant(DATA_BYTES),
        code::LDX_W_LEN => Op::LoadXConstant(DATA_BYTES),
        code::LD_IMM => Op::LoadConstant(k),
        code::LDX_IMM => Op::LoadXConstant(k),
        code::LD_MEM => Op::LoadMemory(memory()?),
        code::LDX_MEM => Op::LoadXMemory(memory()?),
        code::ST => Op::Store(memory()?),
        code::STX => Op::StoreX(memory()?),
        code::NEG => Op::Negate,
        // A distance that does not fit leaves every program.
        code::JA => Op::Jump(u16::try_from(k).unwrap_or(u16::MAX)),
        code::RET_K => Op::ReturnConstant(k),
        code::RET_A => Op::ReturnA,
        code::TAX => Op::AToX,
        code::TXA => Op::XToA,
        _ => {
            let operand = if code & code::X == 0 { Operand::K(k) } else { Operand::X };
            let operation = code & !(code::CLASS | code::X);
            match code & code::CLASS {
                code::ALU => Op::Alu(alu(operation, operand)?, operand),
                code::JMP => Op::Branch { condition: condition(operation)?, operand, jt, jf },
                _ => return Err(Invalid::Code),
            }
        }
    })
}

fn alu(operation: u16, operand: Operand) -> Result<Alu, Invalid> {
    let alu = match operation {
        0x00 => Alu::Add,
        0x10 => Alu::Sub,
        0x20 => Alu::Mul,
        0x30 => Alu::Div,
        0x40 => Alu::Or,
        0x50 => Alu::And,
        0x60 => Alu::Shl,
        0x70 => Alu::Shr,
        0xa0 => Alu::Xor,
        // 0x90, the remainder, is classic BPF, but no filter of system calls may use it.
        _ => return Err(Invalid::Code),
    };
    match (alu, operand) {
        (Alu::Div, Operand::K(0)) => Err(Invalid::Operand),
        (Alu::Shl | Alu::Shr, Operand::K(32..)) => Err(Invalid::Operand),
        _ => Ok(alu),
    }
}

fn condition(operation: u16) -> Result<Condition, Invalid> {
    Ok(match operation {
        0x10 => Condition::Equal,
        0x20 => Condition::Greater,
        0x30 => Condition::GreaterOrEqual,
        0x40 => Condition::AnyBit,
        _ => return Err(Invalid::Code),
    })
}

/// The result of an operation; `None` is a division by 0.
pub(crate) const fn compute(alu: Alu, a: u32, b: u32) -> Option<u32> {
    Some(match alu {
        Alu::Add => a.wrapping_add(b),
        Alu::Sub => a.wrapping_sub(b),
        Alu::Mul => a.wrapping_mul(b),
        Alu::Div => return a.checked_div(b),
        Alu::And => a & b,
        Alu::Or => a | b,
        Alu::Xor => a ^ b,
        Alu::Shl => a.wrapping_shl(b),
        Alu::Shr => a.wrapping_shr(b),
    })
}

/// Whether A and the operand compare so.
pub(crate) const fn holds(condition: Condition, a: u32, b: u32) -> bool {
    match condition {
        Condition::Equal => a == b,
        Condition::Greater => a > b,
        Condition::GreaterOrEqual => a >= b,
        Condition::AnyBit => a & b != 0,
    }
}
