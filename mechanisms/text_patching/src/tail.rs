//! What follows a check: the call or jump at S+14, and its forms.
//!
//! | Bytes | Instruction | Kind |
//! |---|---|---|
//! | `2e e8 rel32`, `e8 rel32` | (cs) call `__x86_indirect_thunk_r11` | call, thunk |
//! | `2e e9 rel32`, `e9 rel32` | (cs) jmp `__x86_indirect_thunk_r11` | jump, thunk |
//! | the same two, to another thunk | that only jumps, in the upper half of a line | aligned |
//! | the same two, to others | which count calls ([`crate::call_depth`]) | counted |
//! | `2e 2e 2e 41 ff d3`, `2e 2e 41 ff d3` | call \*%r11 with cs padding in front | call, direct |
//! | `41 ff e3 cc cc cc`, `41 ff e3 cc cc` | jmp \*%r11, int3 behind | jump, direct |
//! | `0f ae e8 41 ff d3` | lfence; call \*%r11 | call, lfence: six bytes only |
//! | `0f ae e8 41 ff e3` | lfence; jmp \*%r11 | jump, lfence: six bytes only |
//!
//! All forms of a site have the length that the compiler gave it: 6 with
//! `-Zindirect-branch-cs-prefix`, 5 without. The padding of a call stands in front so that the
//! return address does not move; a jump's padding stands behind and is int3, so that straight-line
//! speculation past the jump ends there. Images without thunks have `41 ff d3` or any `ff /2`
//! behind the check, which is [`Tail::Bare`]: recognised, never patched.
//!
//! Conditional jumps to a thunk (`0f 8x rel32`) have no check in front of them and are no tail.

use crate::poke::{Anomaly, Change, Code, Patch, Store, Text, What, read_word, word_of};

/// Longest tail.
pub const TAIL_MAX: usize = 6;

/// Calls return, jumps do not (tail calls of the language).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BranchKind {
    /// `call`.
    Call,
    /// `jmp`.
    Jump,
}

/// How the branch is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Via {
    /// Through `__x86_indirect_thunk_r11`.
    Thunk,
    /// `call *%r11`: the CPU's predictor is trusted (enhanced IBRS, or retpolines off).
    Direct,
    /// `lfence; call *%r11`.
    Lfence,
    /// Through the thunk at this address, which makes the branch where its place does no harm.
    Aligned(u64),
    /// Through retpolines of which that of calls counts ([`crate::call_depth`]): a jump pushes
    /// nothing.
    Counted {
        /// Where calls go.
        call: u64,
        /// Where jumps go.
        jump: u64,
    },
}

/// A patchable tail: what it is and how many bytes it owns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Call or jump.
    pub kind: BranchKind,
    /// 5 or 6.
    pub len: u8,
}

/// What was found behind a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tail {
    /// A patchable form.
    Known {
        /// Kind and length. The length of a direct jump is a guess from its padding; the site
        /// table has the true one.
        shape: Shape,
        /// How.
        via: Via,
        /// Where a thunk form goes.
        target: Option<u64>,
    },
    /// `call *%reg` or `jmp *%reg` without room for anything else.
    Bare {
        /// Call or jump.
        kind: BranchKind,
        /// Hardware number of the register.
        register: u8,
        /// Bytes of the instruction.
        len: u8,
    },
}

const CS: u8 = 0x2e;
const LFENCE: [u8; 3] = [0x0f, 0xae, 0xe8];
const CALL_R11: [u8; 3] = [0x41, 0xff, 0xd3];
const JMP_R11: [u8; 3] = [0x41, 0xff, 0xe3];
const INT3: u8 = 0xcc;

/// Where a rel32 that ends at `end` goes.
#[must_use]
pub fn rel32_target(end: u64, rel: [u8; 4]) -> u64 {
    end.wrapping_add_signed(i64::from(i32::from_le_bytes(rel)))
}

/// The rel32 that gets from `end` to `target`, if one does.
#[must_use]
pub fn rel32_to(end: u64, target: u64) -> Option<u32> {
    i32::try_from(target.wrapping_sub(end).cast_signed()).ok().map(i32::cast_unsigned)
}

/// Decodes the tail at `at`; `bytes` are the up to six bytes there (fewer at the end of text).
#[must_use]
pub fn decode(at: u64, bytes: &[u8]) -> Option<Tail> {
    let known =
        |kind, len, via, target| Some(Tail::Known { shape: Shape { kind, len }, via, target });
    let branch = |opcode| {
        if opcode == 0xe8 { BranchKind::Call } else { BranchKind::Jump }
    };
    match *bytes {
        [CS, op @ (0xe8 | 0xe9), a, b, c, d, ..] => {
            let target = rel32_target(at.wrapping_add(6), [a, b, c, d]);
            known(branch(op), 6, Via::Thunk, Some(target))
        }
        [op @ (0xe8 | 0xe9), a, b, c, d, ..] => {
            let target = rel32_target(at.wrapping_add(5), [a, b, c, d]);
            known(branch(op), 5, Via::Thunk, Some(target))
        }
        [CS, CS, CS, 0x41, 0xff, 0xd3] => known(BranchKind::Call, 6, Via::Direct, None),
        [CS, CS, 0x41, 0xff, 0xd3, ..] => known(BranchKind::Call, 5, Via::Direct, None),
        [0x41, 0xff, 0xe3, INT3, INT3, INT3] => known(BranchKind::Jump, 6, Via::Direct, None),
        [0x41, 0xff, 0xe3, INT3, INT3, ..] => known(BranchKind::Jump, 5, Via::Direct, None),
        [0x0f, 0xae, 0xe8, 0x41, 0xff, 0xd3] => known(BranchKind::Call, 6, Via::Lfence, None),
        [0x0f, 0xae, 0xe8, 0x41, 0xff, 0xe3] => known(BranchKind::Jump, 6, Via::Lfence, None),
        [0x41, 0xff, modrm, ..] => bare(modrm, 8, 3),
        [0xff, modrm, ..] => bare(modrm, 0, 2),
        _ => None,
    }
}

/// `ff /2` and `ff /4` on a register.
fn bare(modrm: u8, high: u8, len: u8) -> Option<Tail> {
    let kind = match modrm & 0b1111_1000 {
        0xd0 => BranchKind::Call,
        0xe0 => BranchKind::Jump,
        _ => return None,
    };
    Some(Tail::Bare { kind, register: high | modrm & 7, len })
}

/// The bytes of a tail at `at`.
///
/// # Errors
/// [`What::NoRoom`] for an lfence form of five bytes, [`What::OutOfReach`] for a thunk that is
/// further away than 2 GiB.
pub fn encode(at: u64, shape: Shape, via: Via, thunk: u64) -> Result<Code, Anomaly> {
    Ok(Code::from_word(word(at, shape, via, thunk)?, shape.len))
}

fn word(at: u64, shape: Shape, via: Via, thunk: u64) -> Result<u64, Anomaly> {
    let is_call = shape.kind == BranchKind::Call;
    let target = match (via, shape.kind) {
        (Via::Direct, _) => return Ok(direct(shape)),
        (Via::Lfence, _) if shape.len != 6 => return Err(Anomaly::new(at, 0, What::NoRoom)),
        (Via::Lfence, _) => {
            let branch = if is_call { CALL_R11 } else { JMP_R11 };
            return Ok(word_of(&LFENCE) | word_of(&branch) << 24);
        }
        (Via::Thunk, _) => thunk,
        (Via::Aligned(other), _) => other,
        (Via::Counted { call, .. }, BranchKind::Call) => call,
        (Via::Counted { jump, .. }, BranchKind::Jump) => jump,
    };
    let end = at.wrapping_add(u64::from(shape.len));
    let rel = rel32_to(end, target).ok_or(Anomaly::new(at, 0, What::OutOfReach))?;
    let branch = u64::from(rel) << 8 | if is_call { 0xe8 } else { 0xe9 };
    Ok(if shape.len == 6 { branch << 8 | u64::from(CS) } else { branch })
}

/// `call *%r11` behind its padding, or `jmp *%r11` before it.
const fn direct(shape: Shape) -> u64 {
    let ([c0, c1, c2], [j0, j1, j2]) = (CALL_R11, JMP_R11);
    match (shape.kind, shape.len) {
        (BranchKind::Call, 6) => word_of(&[CS, CS, CS, c0, c1, c2]),
        (BranchKind::Call, _) => word_of(&[CS, CS, c0, c1, c2]),
        (BranchKind::Jump, 6) => word_of(&[j0, j1, j2, INT3, INT3, INT3]),
        (BranchKind::Jump, _) => word_of(&[j0, j1, j2, INT3, INT3]),
    }
}

/// A tail as the site table knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expect {
    /// Address of the tail (S+14 behind a check).
    pub at: u64,
    /// What it is.
    pub shape: Shape,
    /// `__x86_indirect_thunk_r11`.
    pub thunk: u64,
}

/// The patch that makes the tail go `via`: derive step of a two-phase pass.
///
/// # Errors
/// As [`change`].
pub fn reroute(text: &impl Text, expect: Expect, via: Via) -> Result<Patch, Anomaly> {
    let change = change(text, expect, via)?;
    Ok(change.patch(expect.at, Store::one(change.len)))
}

/// What makes the tail go `via`, by one store.
///
/// # Errors
/// When the bytes are none of this shape's three forms, the thunk form goes elsewhere, or the
/// wanted form does not fit.
pub fn change(text: &impl Text, expect: Expect, via: Via) -> Result<Change, Anomaly> {
    let Expect { at, shape, thunk } = expect;
    let old = match shape.len {
        6 => read_word::<6>(text, at)?,
        _ => read_word::<5>(text, at)?,
    };
    let new = word(at, shape, via, thunk);
    // As the compiler has left it, and as it shall be, before what it can be besides.
    let forms = [Via::Thunk, Via::Direct, Via::Lfence];
    let is = |via| word(at, shape, via, thunk).is_ok_and(|word| word == old);
    if new.is_ok_and(|new| new == old) || forms.into_iter().any(is) {
        return Ok(Change { old, new: new?, len: shape.len });
    }
    Err(match decode(at, Code::from_word(old, shape.len).as_slice()) {
        Some(Tail::Known { via: Via::Thunk, target: Some(found), .. }) => {
            Anomaly::new(at, 1, What::Target { expected: thunk, found })
        }
        _ => Anomaly::new(at, 0, What::UnknownTail),
    })
}
