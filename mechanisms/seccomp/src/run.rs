//! The interpreter: what a filter means. The compiler is held against it.

use crate::check::Program;
use crate::instruction::{MEMORY_WORDS, Op, Operand, compute, holds};
use crate::{Data, action};

impl Program {
    /// Runs the filter. It makes at most as many steps as it has instructions.
    #[must_use]
    pub fn run(&self, data: &Data) -> u32 {
        let (mut a, mut x) = (0_u32, 0_u32);
        let mut memory = [0_u32; MEMORY_WORDS as usize];
        let mut ops = self.ops().iter();
        // Jumps only lead forward: the iterator is the program counter.
        while let Some(&op) = ops.next() {
            let value = |operand, x| match operand {
                Operand::K(k) => k,
                Operand::X => x,
            };
            match op {
                Op::Load(word) => a = data.0.get(usize::from(word)).copied().unwrap_or(0),
                Op::LoadConstant(k) => a = k,
                Op::LoadXConstant(k) => x = k,
                Op::LoadMemory(word) => a = memory.get(usize::from(word)).copied().unwrap_or(0),
                Op::LoadXMemory(word) => x = memory.get(usize::from(word)).copied().unwrap_or(0),
                Op::Store(word) => store(&mut memory, word, a),
                Op::StoreX(word) => store(&mut memory, word, x),
                Op::Alu(alu, operand) => match compute(alu, a, value(operand, x)) {
                    Some(result) => a = result,
                    None => return action::KILL_THREAD,
                },
                Op::Negate => a = a.wrapping_neg(),
                Op::AToX => x = a,
                Op::XToA => a = x,
                Op::Jump(distance) => skip(&mut ops, distance.into()),
                Op::Branch { condition, operand, jt, jf } => {
                    let taken = holds(condition, a, value(operand, x));
                    skip(&mut ops, if taken { jt } else { jf }.into());
                }
                Op::ReturnConstant(k) => return k,
                Op::ReturnA => return a,
            }
        }
        // The check has proved that nobody comes here; if it is wrong, the strict answer is right.
        action::KILL_PROCESS
    }
}

fn store(memory: &mut [u32], word: u8, value: u32) {
    if let Some(place) = memory.get_mut(usize::from(word)) {
        *place = value;
    }
}

fn skip(ops: &mut core::slice::Iter<'_, Op>, distance: usize) {
    if distance > 0 {
        ops.nth(distance - 1);
    }
}
