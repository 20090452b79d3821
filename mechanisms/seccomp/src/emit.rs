//! Machine code of single instructions (Intel SDM volume 2). EAX is A, ECX is X, RDI points to the
//! data; EDX and R8D are free. Scratch memory is below RBP.
//!
//! A constant of more than 16 bits never stands in the code as the program gave it: it is made of
//! two others, of which one is random. Else a program could write bytes of its choice into kernel
//! text, 32 bits at a time: instructions for whoever controls a return address, or a type hash with
//! its `b8` in front of it (`mov $hash, %eax`) for whoever controls a function pointer.

use alloc::vec::Vec;

use crate::instruction::{Alu, Condition, MEMORY_WORDS, Operand};

/// Constants up to here are left as they are.
const PLAIN_MAX: u32 = 0xffff;

/// Registers by their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Register {
    Eax = 0,
    Ecx = 1,
    Edx = 2,
    R8d = 8,
}

/// Bytes in the making.
#[derive(Debug, Default)]
pub(crate) struct Emitter {
    pub(crate) bytes: Vec<u8>,
    /// Offset of each return.
    pub(crate) returns: Vec<usize>,
    /// Whether there is a frame to leave.
    pub(crate) frame: bool,
    /// State of the blinding constants.
    pub(crate) key: u64,
}

/// A constant as the code has it.
enum Constant {
    /// Sign-extended from eight bits.
    Short(u8),
    Plain(u32),
    Blinded,
}

fn classify(k: u32) -> Constant {
    match (i8::try_from(k.cast_signed()), k) {
        (Ok(short), _) => Constant::Short(short.cast_unsigned()),
        (_, ..=PLAIN_MAX) => Constant::Plain(k),
        _ => Constant::Blinded,
    }
}

impl Emitter {
    fn put(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    fn put_with(&mut self, bytes: &[u8], imm32: u32) {
        self.put(bytes);
        self.put(&imm32.to_le_bytes());
    }

    /// The next blinding constant: splitmix64.
    fn random(&mut self) -> u32 {
        self.key = self.key.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.key;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 32) as u32
    }

    /// `register = k`.
    pub(crate) fn load(&mut self, register: Register, k: u32) {
        let number = register as u8 % 8;
        let extended = register == Register::R8d;
        if k == 0 && !extended {
            // 31 /r: xor r, r
            return self.put(&[0x31, 0xc0 | number << 3 | number]);
        }
        let blind = if k > PLAIN_MAX { self.random() } else { 0 };
        if extended {
            self.put(&[0x41]); // REX.B
        }
        self.put_with(&[0xb8 | number], k ^ blind); // b8+r: mov $imm32, r
        if k > PLAIN_MAX {
            if extended {
                self.put(&[0x41]);
            }
            self.put_with(&[0x81, 0xf0 | number], blind); // 81 /6: xor $imm32, r
        }
    }

    /// `A = word of the data`.
    pub(crate) fn load_data(&mut self, word: u8) {
        self.put(&[0x8b, 0x47, word * 4]); // mov disp8(%rdi), %eax
    }

    /// Moves between a register and a word of scratch memory.
    pub(crate) fn memory(&mut self, register: Register, word: u8, store: bool) {
        let opcode = if store { 0x89 } else { 0x8b };
        let disp = (word * 4).wrapping_sub(MEMORY_LEN);
        self.put(&[opcode, 0x45 | (register as u8) << 3, disp]); // disp8(%rbp)
    }

    /// `X = A`.
    pub(crate) fn a_to_x(&mut self) {
        self.put(&[0x89, 0xc1]); // mov %eax, %ecx
    }

    /// `A = X`.
    pub(crate) fn x_to_a(&mut self) {
        self.put(&[0x89, 0xc8]); // mov %ecx, %eax
    }

    /// `A = -A`.
    pub(crate) fn negate(&mut self) {
        self.put(&[0xf7, 0xd8]); // neg %eax
    }

    /// One of the operations that have a number in the opcode: `or` 1, `and` 4, `sub` 5, `xor` 6,
    /// `cmp` 7, `add` 0.
    fn arithmetic(&mut self, number: u8, operand: Operand) {
        let with = |register: Register| [number << 3 | 1, 0xc0 | (register as u8) << 3];
        match operand {
            Operand::X => self.put(&with(Register::Ecx)),
            Operand::K(k) => match classify(k) {
                Constant::Short(imm8) => self.put(&[0x83, 0xc0 | number << 3, imm8]),
                Constant::Plain(imm32) => self.put_with(&[number << 3 | 5], imm32),
                Constant::Blinded => {
                    self.load(Register::Edx, k);
                    self.put(&with(Register::Edx));
                }
            },
        }
    }

    /// `A = A op operand`.
    pub(crate) fn alu(&mut self, alu: Alu, operand: Operand) {
        match (alu, operand) {
            (Alu::Add, _) => self.arithmetic(0, operand),
            (Alu::Or, _) => self.arithmetic(1, operand),
            (Alu::And, _) => self.arithmetic(4, operand),
            (Alu::Sub, _) => self.arithmetic(5, operand),
            (Alu::Xor, _) => self.arithmetic(6, operand),
            (Alu::Mul, Operand::X) => self.put(&[0x0f, 0xaf, 0xc1]), // imul %ecx, %eax
            (Alu::Mul, Operand::K(k)) => {
                self.load(Register::Edx, k);
                self.put(&[0x0f, 0xaf, 0xc2]); // imul %edx, %eax
            }
            (Alu::Div, Operand::X) => self.divide_by_x(),
            (Alu::Div, Operand::K(k)) => {
                self.load(Register::R8d, k);
                self.put(&[0x31, 0xd2]); // xor %edx, %edx
                self.put(&[0x41, 0xf7, 0xf0]); // div %r8d
            }
            // The CPU, too, takes the count modulo 32.
            (Alu::Shl, Operand::K(k)) => self.put(&[0xc1, 0xe0, k as u8 % 32]), // shl $imm8, %eax
            (Alu::Shr, Operand::K(k)) => self.put(&[0xc1, 0xe8, k as u8 % 32]), // shr $imm8, %eax
            (Alu::Shl, Operand::X) => self.put(&[0xd3, 0xe0]),                  // shl %cl, %eax
            (Alu::Shr, Operand::X) => self.put(&[0xd3, 0xe8]),                  // shr %cl, %eax
        }
    }

    /// By 0 the filter ends with 0.
    fn divide_by_x(&mut self) {
        self.put(&[0x85, 0xc9]); // test %ecx, %ecx
        self.put(&[0x75, 0]); // jne over the end
        let from = self.bytes.len();
        self.put(&[0x31, 0xc0]); // xor %eax, %eax
        self.leave();
        let distance = self.bytes.len() - from;
        if let Some(field) = self.bytes.get_mut(from - 1) {
            *field = distance as u8;
        }
        self.put(&[0x31, 0xd2]); // xor %edx, %edx
        self.put(&[0xf7, 0xf1]); // div %ecx
    }

    /// Sets the flags for [`condition_code`].
    pub(crate) fn compare(&mut self, condition: Condition, operand: Operand) {
        match (condition, operand) {
            (Condition::AnyBit, Operand::X) => self.put(&[0x85, 0xc8]), // test %ecx, %eax
            // test $imm32, %eax
            (Condition::AnyBit, Operand::K(k @ ..=PLAIN_MAX)) => self.put_with(&[0xa9], k),
            (Condition::AnyBit, Operand::K(k)) => {
                self.load(Register::Edx, k);
                self.put(&[0x85, 0xd0]); // test %edx, %eax
            }
            _ => self.arithmetic(7, operand),
        }
    }

    /// Jumps over `distance` bytes; in the short form where `short`.
    pub(crate) fn jump(&mut self, distance: i64, short: bool) {
        match short {
            true => self.put(&[0xeb, distance as u8]),
            false => self.put_with(&[0xe9], distance as u32),
        }
    }

    /// Jumps over `distance` bytes if the condition holds.
    pub(crate) fn jump_if(&mut self, code: u8, distance: i64, short: bool) {
        match short {
            true => self.put(&[0x70 | code, distance as u8]),
            false => self.put_with(&[0x0f, 0x80 | code], distance as u32),
        }
    }

    /// The function's beginning: A and X are 0, where the program sees that.
    pub(crate) fn enter(&mut self, sees_a: bool, sees_x: bool) {
        if self.frame {
            self.put(&[0x55, 0x48, 0x89, 0xe5]); // push %rbp; mov %rsp, %rbp
            self.put(&[0x48, 0x83, 0xec, MEMORY_LEN]); // sub $64, %rsp
        }
        if sees_a {
            self.load(Register::Eax, 0);
        }
        if sees_x {
            self.load(Register::Ecx, 0);
        }
    }

    /// An end of the function; nothing runs on behind it, not even by speculation.
    pub(crate) fn leave(&mut self) {
        if self.frame {
            self.put(&[0xc9]); // leave
        }
        self.returns.push(self.bytes.len());
        self.put(&[0xc3, 0xcc, 0xcc, 0xcc, 0xcc]); // ret; int3: room for a jump
    }
}

/// Bytes of scratch memory.
const MEMORY_LEN: u8 = (MEMORY_WORDS * 4) as u8;

/// The CPU's number of a condition, after [`Emitter::compare`]; the lowest bit inverts it.
pub(crate) const fn condition_code(condition: Condition) -> u8 {
    match condition {
        Condition::Equal => 0x4,          // e
        Condition::Greater => 0x7,        // a
        Condition::GreaterOrEqual => 0x3, // ae
        Condition::AnyBit => 0x5,         // ne
    }
}
