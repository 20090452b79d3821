//! The check: what a program may pass to seccomp(2).
//!
//! A checked [`Program`] ends, and cannot go wrong on the way: jumps lead forward and into it, its
//! last instruction returns, and scratch memory is read only where every way has written it. So
//! interpreter and compiler have no error to report.

use alloc::vec::Vec;

use crate::instruction::{Insn, MEMORY_WORDS, Op, decode};

/// Most instructions of a filter (`BPF_MAXINSNS`).
pub const INSNS_MAX: usize = 4096;

/// Why a program is no filter: EINVAL, but for the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Invalid {
    /// No instruction, or more than [`INSNS_MAX`].
    Length,
    /// No such instruction, or none that a filter of system calls may use.
    Code,
    /// A load of something else than an aligned word within the data, or no such scratch word.
    Offset,
    /// A jump beyond the end.
    Jump,
    /// A division by the constant 0, or a shift by a constant of 32 or more.
    Operand,
    /// The last instruction does not return.
    NoReturn,
    /// Scratch memory is read that some way there has not written.
    Unwritten,
    /// The kernel's memory is used up: ENOMEM.
    Memory,
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
    /// use seccomp::{Data, Insn, Program, action};
    /// let allow = Insn { code: 0x06, k: action::ALLOW, ..Insn::default() };
    /// let program = Program::check(&[allow]).expect("a filter");
    /// assert_eq!(program.run(&Data::default()), action::ALLOW);
    /// assert!(Program::check(&[]).is_err());
    /// ```
    pub fn check(insns: &[Insn]) -> Result<Self, Invalid> {
        if !(1..=INSNS_MAX).contains(&insns.len()) {
            return Err(Invalid::Length);
        }
        let mut ops = Vec::new();
        ops.try_reserve_exact(insns.len()).map_err(|_| Invalid::Memory)?;
        for (at, &insn) in insns.iter().enumerate() {
            let op = decode(insn)?;
            let left = insns.len() - at - 1;
            let inside = |distance: usize| distance < left;
            let stays = match op {
                // The decoder cuts distances off at 16 bits, which is more than any program has.
                Op::Jump(distance) => inside(distance.into()),
                Op::Branch { jt, jf, .. } => inside(jt.into()) && inside(jf.into()),
                _ => true,
            };
            if !stays {
                return Err(Invalid::Jump);
            }
            ops.push(op);
        }
        if !matches!(ops.last(), Some(Op::ReturnConstant(_) | Op::ReturnA)) {
            return Err(Invalid::NoReturn);
        }
        check_memory(&ops)?;
        Ok(Self { ops })
    }

    pub(crate) fn ops(&self) -> &[Op] {
        &self.ops
    }
}

/// Follows all ways at once: jumps lead forward, so whoever comes to an instruction has been seen
/// before it. What nobody comes to is judged as Linux judges it: behind a jump every word counts as
/// written, behind a return those that were written before it.
fn check_memory(ops: &[Op]) -> Result<(), Invalid> {
    const ALL: u16 = u16::MAX;
    const _: () = assert!(MEMORY_WORDS == u16::BITS);
    let mut arriving = Vec::new();
    arriving.try_reserve_exact(ops.len()).map_err(|_| Invalid::Memory)?;
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
                return Err(Invalid::Unwritten);
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
