//! Static calls: a call whose target changes rarely is a direct call, and changing it is a patch.
//!
//! | Target | Call site | Tail site |
//! |---|---|---|
//! | a function | `e8 rel32` call | `e9 rel32` jmp |
//! | nothing | `0f 1f 44 00 00` nop | `c3 cc cc cc cc` ret; int3 |
//! | return 0 | `2e 2e 2e 31 c0` xor %eax,%eax | `31 c0 c3 cc cc` xor %eax,%eax; ret; int3 |
//! | return n | `b8 imm32` mov $n,%eax | none: it jumps to a function that returns n |
//!
//! Callers call an ordinary typed function, the trampoline; objtool finds their direct calls and
//! makes them sites. A trampoline is eight bytes, `e9 rel32` or a tail form above and then the
//! signature `0f b9 cc` (ud1), so that nothing that merely looks like a jump is ever patched.
//! A nop leaves whatever was in the result register: [`Target::Nothing`] is for calls that return
//! nothing.
//!
//! Conditional tail calls (`0f 8x rel32`) cannot be patched in five bytes; objtool refuses them.

use crate::jump_label::{JMP32, NOP5, SITE_LEN};
use crate::poke::{Anomaly, Code, Patch, Text, What, read_site};
use crate::site_table::CallEntry;
use crate::tail::{rel32_target, rel32_to};

/// call rel32.
pub const CALL32: u8 = 0xe8;
/// mov imm32 to %eax.
pub const MOV_EAX: u8 = 0xb8;
/// xor %eax,%eax with three cs prefixes in front.
pub const RETURN0: [u8; SITE_LEN] = [0x2e, 0x2e, 0x2e, 0x31, 0xc0];
/// ret, and int3 behind it against straight-line speculation.
pub const TAIL_NOTHING: [u8; SITE_LEN] = [0xc3, 0xcc, 0xcc, 0xcc, 0xcc];
/// xor %eax,%eax; ret; int3.
pub const TAIL_RETURN0: [u8; SITE_LEN] = [0x31, 0xc0, 0xc3, 0xcc, 0xcc];
/// ud1 %esp,%ecx: at +5 of every trampoline.
pub const SIGNATURE: [u8; 3] = [0x0f, 0xb9, 0xcc];
/// Bytes of a trampoline.
pub const TRAMPOLINE_LEN: usize = SITE_LEN + SIGNATURE.len();

/// What a static call does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Calls this address: the trampoline, a callee, or a generated chain of calls.
    Function(u64),
    /// Nothing.
    Nothing,
    /// Returns this. At a tail site only 0 fits.
    Return(i32),
}

/// The bytes of a site.
///
/// # Errors
/// [`What::OutOfReach`], or [`What::NoRoom`] for a value at a tail site.
pub fn encode(entry: &CallEntry, target: Target) -> Result<Code, Anomaly> {
    Ok(match (target, entry.tail) {
        (Target::Function(target), tail) => {
            let end = entry.site.wrapping_add(SITE_LEN as u64);
            let far = Anomaly::new(entry.site, 1, What::OutOfReach);
            let opcode = if tail { JMP32 } else { CALL32 };
            Code::with_imm32(&[opcode], rel32_to(end, target).ok_or(far)?)
        }
        (Target::Nothing, false) => Code::new(&NOP5),
        (Target::Nothing, true) => Code::new(&TAIL_NOTHING),
        (Target::Return(0), false) => Code::new(&RETURN0),
        (Target::Return(0), true) => Code::new(&TAIL_RETURN0),
        (Target::Return(value), false) => Code::with_imm32(&[MOV_EAX], value.cast_unsigned()),
        (Target::Return(_), true) => return Err(Anomaly::new(entry.site, 0, What::NoRoom)),
    })
}

/// What the bytes of a site do.
#[must_use]
pub fn decode(entry: &CallEntry, bytes: [u8; SITE_LEN]) -> Option<Target> {
    let end = entry.site.wrapping_add(SITE_LEN as u64);
    match (bytes, entry.tail) {
        ([CALL32, rel @ ..], false) | ([JMP32, rel @ ..], true) => {
            Some(Target::Function(rel32_target(end, rel)))
        }
        (NOP5, false) | (TAIL_NOTHING, true) => Some(Target::Nothing),
        (RETURN0, false) | (TAIL_RETURN0, true) => Some(Target::Return(0)),
        ([MOV_EAX, value @ ..], false) => Some(Target::Return(i32::from_le_bytes(value))),
        _ => None,
    }
}

/// The patch that turns a site from `from` to `to`: derive step of a two-phase pass, or a part of
/// an [`crate::int3::Batch`]. A site that is `to` already is left alone.
///
/// # Errors
/// When the site is neither.
pub fn update(
    text: &impl Text,
    entry: &CallEntry,
    from: Target,
    to: Target,
) -> Result<Patch, Anomaly> {
    let found: [u8; SITE_LEN] = read_site(text, entry.site)?;
    let old = Code::new(&found);
    let new = encode(entry, to)?;
    if old != new && old != encode(entry, from)? {
        return Err(unexpected(entry, from, found));
    }
    Ok(Patch::whole(entry.site, old, new))
}

/// The patch of a trampoline, which is a tail site that carries the signature.
///
/// # Errors
/// When the signature is missing, or as [`update`].
pub fn update_trampoline(
    text: &impl Text,
    entry: &CallEntry,
    from: Target,
    to: Target,
) -> Result<Patch, Anomaly> {
    let found: [u8; TRAMPOLINE_LEN] = read_site(text, entry.site)?;
    let pairs = (5_u8..).zip(SIGNATURE).zip(found.into_iter().skip(SITE_LEN));
    for ((offset, expected), found) in pairs {
        if expected != found {
            return Err(Anomaly::new(entry.site, offset, What::Byte { expected, found }));
        }
    }
    update(text, &CallEntry { tail: true, ..*entry }, from, to)
}

fn unexpected(entry: &CallEntry, from: Target, bytes: [u8; SITE_LEN]) -> Anomaly {
    match (decode(entry, bytes), from) {
        (Some(Target::Function(found)), Target::Function(expected)) => {
            Anomaly::new(entry.site, 1, What::Target { expected, found })
        }
        _ => {
            let expected = if entry.tail { JMP32 } else { CALL32 };
            let found = bytes.first().copied().unwrap_or_default();
            Anomaly::new(entry.site, 0, What::Byte { expected, found })
        }
    }
}
