//! Programs and data from a number, the same everywhere.

use seccomp::{Data, Insn};

/// xorshift64*.
#[derive(Clone, Debug)]
pub struct Random(u64);

/// Codes that a filter may have, by class; returns are apart.
const CODES: [u16; 40] = [
    0x20, 0x20, 0x20, 0x80, 0x00, 0x60, // ld: abs (often), len, imm, mem
    0x81, 0x01, 0x61, // ldx: len, imm, mem
    0x02, 0x02, 0x03, 0x03, // st, stx
    0x04, 0x0c, 0x14, 0x1c, 0x24, 0x2c, 0x34, 0x3c, // add, sub, mul, div
    0x44, 0x4c, 0x54, 0x5c, 0x64, 0x6c, 0x74, 0x7c, // or, and, lsh, rsh
    0x84, 0xa4, 0xac, // neg, xor
    0x05, 0x15, 0x1d, 0x25, 0x35, 0x45, // ja, jeq, jgt, jge, jset
    0x07, 0x87, // tax, txa
];

const INTERESTING: [u32; 14] =
    [0, 1, 2, 31, 32, 63, 127, 128, 0xff, 0xffff, 0x1_0000, 0x7fff_ffff, 0x8000_0000, u32::MAX];

impl Random {
    /// From any number.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `limit` (which is not 0).
    pub fn below(&mut self, limit: u32) -> u32 {
        ((self.number() >> 32) % u64::from(limit)) as u32
    }

    fn one_of<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len() as u32) as usize]
    }

    /// A constant: often one at an edge.
    pub fn constant(&mut self) -> u32 {
        match self.below(4) {
            0 => self.number() as u32,
            1 => self.below(0x200),
            _ => self.one_of(&INTERESTING),
        }
    }

    /// An instruction with `left` others behind it, legal in most cases.
    fn instruction(&mut self, left: u32) -> Insn {
        let code = self.one_of(&CODES);
        let near = |random: &mut Self| random.below(left.clamp(1, 256)) as u8;
        let (jt, jf) = (near(self), near(self));
        let k = match code {
            0x20 => 4 * self.below(16),
            0x60 | 0x61 | 0x02 | 0x03 => self.below(16),
            0x05 => self.below(left.max(1)),
            0x64 | 0x74 => self.below(32),
            0x34 => self.constant().max(1),
            _ => self.constant(),
        };
        Insn { code, jt, jf, k }
    }

    /// A body of so many instructions that goes on behind its end, legal in most cases. It writes
    /// all scratch memory first in half of them.
    pub fn body(&mut self, len: u32) -> Vec<Insn> {
        let plain = |code, k| Insn { code, k, ..Insn::default() };
        let mut body = Vec::new();
        if self.below(2) == 0 {
            body.extend((0..16).map(|word| plain(0x02, word)));
        }
        body.extend((0..len).map(|index| self.instruction(len - index)));
        body
    }

    /// A filter, legal in most cases.
    pub fn filter(&mut self, len: u32) -> Vec<Insn> {
        let mut filter = self.body(len);
        filter.push(Insn { code: 0x16, ..Insn::default() });
        filter
    }

    /// Changes one field of one instruction, or the length.
    pub fn damage(&mut self, filter: &mut Vec<Insn>) {
        let at = self.below(filter.len() as u32) as usize;
        let instruction = &mut filter[at];
        match self.below(6) {
            0 => instruction.code = self.below(0x100) as u16,
            1 => instruction.code ^= 1 << self.below(16),
            2 => instruction.k = self.constant(),
            3 => instruction.jt = self.number() as u8,
            4 => instruction.jf = self.number() as u8,
            _ => filter.truncate(at.max(1)),
        }
    }

    /// Data for a filter: constants of the filter turn up in it.
    pub fn data(&mut self, filter: &[Insn]) -> Data {
        Data(core::array::from_fn(|_| match self.below(3) {
            0 => self.one_of(filter).k,
            _ => self.constant(),
        }))
    }
}
