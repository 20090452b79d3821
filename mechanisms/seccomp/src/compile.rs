//! The compiler: a checked program becomes one function, `extern "C" fn(&Data) -> u32`.
//!
//! Every instruction is translated by itself; what takes thought is where it lies. The length of a
//! jump depends on its distance and the distance on all lengths between, so the code is laid out
//! several times, from long jumps down to those that are needed.
//!
//! The code has no indirect branch and no call, reads the data and its own frame and nothing else,
//! lies anywhere, and needs neither checks nor relocations from who loads it: a preamble in front
//! of it, for the call, and W^X.

use alloc::vec::Vec;

use crate::check::Program;
use crate::emit::{Emitter, Register, condition_code};
use crate::instruction::Op;

/// Longest code that is made; what is longer is interpreted. Enough for all programs of some 1,300
/// instructions and for every filter in use.
pub const CODE_MAX: usize = 32 << 10;
/// Most that one instruction becomes, and the function's beginning.
pub const OP_BYTES_MAX: usize = 32;
/// Layouts that are tried. Jumps only get shorter from one to the next.
const LAYOUTS_MAX: usize = 6;

/// A compiled filter. Only [`Program::compile`] makes one: who executes it trusts this crate.
#[derive(Debug, PartialEq, Eq)]
pub struct Code {
    bytes: Vec<u8>,
    returns: Vec<usize>,
}

impl Code {
    /// Offset of each return, ascending: five bytes, which may become a jump to a thunk.
    #[must_use]
    pub fn returns(&self) -> &[usize] {
        &self.returns
    }

    /// The function, from its first instruction on.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl Program {
    /// Compiles the filter. `key` is random and nobody's to know: it blinds the program's
    /// constants.
    ///
    /// `None`: the code would be longer than [`CODE_MAX`], or memory is used up. Interpret then.
    #[must_use]
    pub fn compile(&self, key: u32) -> Option<Code> {
        let mut layout = Layout::new(self.ops().len())?;
        for _ in 0..LAYOUTS_MAX {
            let before = layout.bytes.len();
            layout = layout.next(self, key, true)?;
            // No instruction gets longer, so with the same sum each has the same length.
            if layout.bytes.len() == before {
                return Some(layout.code());
            }
        }
        // Not settled: with long jumps only, the second layout has the first one's places.
        let layout = layout.next(self, key, false)?.next(self, key, false)?;
        Some(layout.code())
    }
}

/// Where everything lies.
struct Layout {
    /// Offset of each instruction, and of the end.
    starts: Vec<u32>,
    bytes: Vec<u8>,
    /// Offset of each return: of an instruction at most one.
    returns: Vec<usize>,
}

impl Layout {
    /// No code yet, and everything so far apart that no jump is short.
    fn new(len: usize) -> Option<Self> {
        const APART: u32 = 1024;
        let mut starts = Vec::new();
        starts.try_reserve_exact(len + 1).ok()?;
        starts.extend((0..=len as u32).map(|index| index * APART));
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(CODE_MAX + OP_BYTES_MAX).ok()?;
        let mut returns = Vec::new();
        returns.try_reserve_exact(len).ok()?;
        Some(Self { starts, bytes, returns })
    }

    fn code(self) -> Code {
        Code { bytes: self.bytes, returns: self.returns }
    }

    /// The code, with jumps that go where this layout has their targets.
    fn next(mut self, program: &Program, key: u32, may_be_short: bool) -> Option<Self> {
        self.bytes.clear();
        self.returns.clear();
        let ops = program.ops();
        let frame = ops.iter().any(Op::uses_memory);
        let mut emitter =
            Emitter { bytes: self.bytes, returns: self.returns, frame, key: key.into() };
        let sets_a = matches!(ops, [Op::Load(_) | Op::LoadConstant(_), ..]);
        emitter.enter(!sets_a, ops.iter().any(Op::reads_x));
        for (index, &op) in ops.iter().enumerate() {
            let start = emitter.bytes.len();
            let places = Places { starts: &self.starts, index, may_be_short };
            translate(&mut emitter, op, &places);
            debug_assert!(emitter.bytes.len() - start <= OP_BYTES_MAX, "{op:?}");
            if emitter.bytes.len() > CODE_MAX {
                return None;
            }
            // In place: jumps lead forward, so nobody asks for this one's old start any more.
            *self.starts.get_mut(index)? = start as u32;
        }
        *self.starts.last_mut()? = emitter.bytes.len() as u32;
        Some(Self { starts: self.starts, bytes: emitter.bytes, returns: emitter.returns })
    }
}

/// Distances from the end of an instruction, in the layout before.
struct Places<'a> {
    starts: &'a [u32],
    index: usize,
    may_be_short: bool,
}

impl Places<'_> {
    /// Bytes between this instruction and the one behind so many others.
    fn over(&self, instructions: usize) -> i64 {
        let start = |index: usize| self.starts.get(index).copied().map_or(0, i64::from);
        start(self.index + 1 + instructions) - start(self.index + 1)
    }

    fn is_short(&self, distance: i64) -> bool {
        self.may_be_short && i8::try_from(distance).is_ok()
    }
}

fn translate(emitter: &mut Emitter, op: Op, places: &Places<'_>) {
    match op {
        Op::Load(word) => emitter.load_data(word),
        Op::LoadConstant(k) => emitter.load(Register::Eax, k),
        Op::LoadXConstant(k) => emitter.load(Register::Ecx, k),
        Op::LoadMemory(word) => emitter.memory(Register::Eax, word, false),
        Op::LoadXMemory(word) => emitter.memory(Register::Ecx, word, false),
        Op::Store(word) => emitter.memory(Register::Eax, word, true),
        Op::StoreX(word) => emitter.memory(Register::Ecx, word, true),
        Op::Alu(alu, operand) => emitter.alu(alu, operand),
        Op::Negate => emitter.negate(),
        Op::AToX => emitter.a_to_x(),
        Op::XToA => emitter.x_to_a(),
        Op::Jump(over) => jump(emitter, over.into(), places),
        Op::Branch { condition, operand, jt, jf } => {
            if jt == jf {
                return jump(emitter, jt.into(), places);
            }
            emitter.compare(condition, operand);
            branch(emitter, condition_code(condition), [jt, jf].map(usize::from), places);
        }
        Op::ReturnConstant(k) => {
            emitter.load(Register::Eax, k);
            emitter.leave();
        }
        Op::ReturnA => emitter.leave(),
    }
}

fn jump(emitter: &mut Emitter, over: usize, places: &Places<'_>) {
    if over > 0 {
        let distance = places.over(over);
        emitter.jump(distance, places.is_short(distance));
    }
}

/// One side of a branch is often the next instruction, which takes no jump.
fn branch(emitter: &mut Emitter, code: u8, [jt, jf]: [usize; 2], places: &Places<'_>) {
    const SHORT_LEN: i64 = 2;
    const LONG_LEN: i64 = 5;
    if jt == 0 {
        let distance = places.over(jf);
        return emitter.jump_if(code ^ 1, distance, places.is_short(distance));
    }
    let behind = match (jf, places.is_short(places.over(jf))) {
        (0, _) => 0,
        (_, true) => SHORT_LEN,
        (_, false) => LONG_LEN,
    };
    let distance = places.over(jt) + behind;
    emitter.jump_if(code, distance, places.is_short(distance));
    jump(emitter, jf, places);
}
