//! The interpreter: what a filter means. The compiler is held against it.

use crate::check::Program;
use crate::instruction::{MEMORY_WORDS, Op, Operand, compute, holds};
use crate::{Data, action};

impl Program {
    /// Runs the filter. It makes at most as many steps as it has instructions.
    #[must_use]
    pub fn run(&self, data: &Data) -> u32 {
        let load = |word: u8| Some(data.0.get(usize::from(word)).copied().unwrap_or(0));
        // Every word is known.
        self.run_with(load).unwrap_or(action::KILL_PROCESS)
    }

    /// Whether the filter allows a call whatever its arguments are, and wherever it comes from: it
    /// comes to that answer from the number and the architecture alone.
    #[must_use]
    pub fn always_allows(&self, number: u32, arch: u32) -> bool {
        let load = |word| match word {
            0 => Some(number),
            1 => Some(arch),
            _ => None,
        };
        self.run_with(load).is_some_and(|answer| answer & action::MASK == action::ALLOW)
    }

    /// Runs the filter on the words that `load` knows; None if it asks for another one.
    fn run_with(&self, load: impl Fn(u8) -> Option<u32>) -> Option<u32> {
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
                Op::Load(word) => a = load(word)?,
                Op::LoadConstant(k) => a = k,
                Op::LoadXConstant(k) => x = k,
                Op::LoadMemory(word) => a = memory.get(usize::from(word)).copied().unwrap_or(0),
                Op::LoadXMemory(word) => x = memory.get(usize::from(word)).copied().unwrap_or(0),
                Op::Store(word) => store(&mut memory, word, a),
                Op::StoreX(word) => store(&mut memory, word, x),
                Op::Alu(alu, operand) => match compute(alu, a, value(operand, x)) {
                    Some(result) => a = result,
                    None => return Some(action::KILL_THREAD),
                },
                Op::Negate => a = a.wrapping_neg(),
                Op::AToX => x = a,
                Op::XToA => a = x,
                Op::Jump(distance) => skip(&mut ops, distance.into()),
                Op::Branch { condition, operand, jt, jf } => {
                    let taken = holds(condition, a, value(operand, x));
                    skip(&mut ops, if taken { jt } else { jf }.into());
                }
                Op::ReturnConstant(k) => return Some(k),
                Op::ReturnA => return Some(a),
            }
        }
        // The check has proved that nobody comes here; if it is wrong, the strict answer is right.
        Some(action::KILL_PROCESS)
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
