//! The check: what a program may pass to seccomp(2).
//!
//! A checked [`Program`] ends, and cannot go wrong on the way: jumps lead forward and into it, its
//! last instruction returns, and scratch memory is read only where every way has written it. So
//! interpreter and compiler have no error to report.

use alloc::vec::Vec;

use crate::instruction::{Illegal, Instruction, MEMORY_WORDS, Op, decode};

/// Most instructions of a filter (`BPF_MAXINSNS`).
pub const INSTRUCTIONS_MAX: usize = 4096;

/// Why a program is refused, and which of its instructions is to blame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Index of the instruction.
    pub at: usize,
    /// What is wrong.
    pub why: Why,
}

/// What is wrong with a program. All are EINVAL to a program, but for the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// No instruction, or more than [`INSTRUCTIONS_MAX`].
    Length,
    /// The instruction is none for a filter.
    Illegal(Illegal),
    /// A jump beyond the end.
    Jump,
    /// The last instruction does not return.
    End,
    /// Scratch memory is read that some way there has not written.
    Unwritten,
    /// The kernel's memory is used up: ENOMEM.
    NoMemory,
}

/// A filter that has passed the check.
#[derive(Debug, PartialEq, Eq)]
pub struct Program {
    ops: Vec<Op>,
}

impl Program {
    /// Checks a program.
    ///
    /// # Errors
    /// The first thing that is wrong.
    ///
    /// ```
    /// use seccomp::{Instruction, Program, SeccompData, Verdict};
    /// let allow = Instruction { code: 0x06, k: 0x7fff_0000, ..Instruction::default() };
    /// let program = Program::check(&[allow]).expect("a filter");
    /// assert_eq!(program.run(&SeccompData::default()), Verdict::ALLOW);
    /// assert!(Program::check(&[]).is_err());
    /// ```
    pub fn check(instructions: &[Instruction]) -> Result<Self, Refusal> {
        if !(1..=INSTRUCTIONS_MAX).contains(&instructions.len()) {
            return Err(Refusal {
                at: 0,
                why: Why::Length,
            });
        }
        let no_memory = Refusal {
            at: 0,
            why: Why::NoMemory,
        };
        let mut ops = Vec::new();
        ops.try_reserve_exact(instructions.len())
            .map_err(|_| no_memory)?;
        for (at, &instruction) in instructions.iter().enumerate() {
            let refuse = |why| Refusal { at, why };
            let op = decode(instruction).map_err(|illegal| refuse(Why::Illegal(illegal)))?;
            let left = instructions.len() - at - 1;
            let inside = |distance: usize| distance < left;
            let stays = match op {
                // The decoder cuts distances off at 16 bits, which is more than any program has.
                Op::Jump(distance) => inside(distance.into()),
                Op::Branch { jt, jf, .. } => inside(jt.into()) && inside(jf.into()),
                _ => true,
            };
            if !stays {
                return Err(refuse(Why::Jump));
            }
            ops.push(op);
        }
        if !matches!(ops.last(), Some(Op::ReturnConstant(_) | Op::ReturnA)) {
            return Err(Refusal {
                at: instructions.len() - 1,
                why: Why::End,
            });
        }
        check_memory(&ops)?;
        Ok(Self { ops })
    }

    /// Instructions.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ops.len()
    }

    /// Never: a program has an instruction.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    pub(crate) fn ops(&self) -> &[Op] {
        &self.ops
    }
}

/// Follows all ways at once: jumps lead forward, so whoever comes to an instruction has been seen
/// before it. What nobody comes to is judged as Linux judges it: behind a jump every word counts as
/// written, behind a return those that were written before it.
fn check_memory(ops: &[Op]) -> Result<(), Refusal> {
    const ALL: u16 = u16::MAX;
    const _: () = assert!(MEMORY_WORDS == u16::BITS);
    let mut arriving = Vec::new();
    let no_memory = Refusal {
        at: 0,
        why: Why::NoMemory,
    };
    arriving
        .try_reserve_exact(ops.len())
        .map_err(|_| no_memory)?;
    arriving.resize(ops.len(), ALL);
    let mut written = 0;
    for (at, &op) in ops.iter().enumerate() {
        written &= arriving.get(at).copied().unwrap_or(ALL);
        let mut leave = |distance: usize, written: u16| {
            if let Some(there) = arriving.get_mut(at + 1 + distance) {
                *there &= written;
            }
        };
        match op {
            Op::Store(word) | Op::StoreX(word) => written |= 1 << word,
            Op::LoadMemory(word) | Op::LoadXMemory(word) if written & 1 << word == 0 => {
                return Err(Refusal {
                    at,
                    why: Why::Unwritten,
                });
            }
            Op::Jump(distance) => {
                leave(distance.into(), written);
                written = ALL;
            }
            Op::Branch { jt, jf, .. } => {
                leave(jt.into(), written);
                leave(jf.into(), written);
                written = ALL;
            }
            _ => {}
        }
    }
    Ok(())
}
