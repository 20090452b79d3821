//! FineIBT, the fourth form of a check: the caller says what it expects, and the callee checks it.
//!
//! With indirect branch tracking (IBT; Intel SDM 1, 17.3) an indirect call or jump must land on
//! ENDBR64, or the CPU raises #CP. So the check can move to where the branch lands, and reads no
//! memory that the attacker has chosen. The landing pad is the function's preamble:
//!
//! | Offset | Caller, the 14 bytes of a check | Offset | Callee, the 16 bytes before it |
//! |---|---|---|---|
//! | +0 | `b8 hash` mov $hash, %eax | -16 | `f3 0f 1e fa` endbr64 |
//! | +5 | `4d 8d 5b f0` lea -16(%r11), %r11 | -12 | `2d hash` sub $hash, %eax |
//! | +9 | `0f 1f 44 00 00` nop | -7 | `75 04` jne -1 |
//! | +14 | call or jump: [`crate::tail`] | -5 | `0f 1f 44 00 d6` nop, whose last byte is UDB |
//!
//! No function begins with ENDBR64, so nothing has to be taken out of functions: a branch to one
//! that was not by its landing pad is #CP, and so is a branch to the landing pad of a function that
//! nobody takes the address of, since it is given none (sealing). The `jne` is not taken on a good
//! call. EAX carries no argument of a checked call, and is dead before one.
//!
//! What differs from others' layouts: they put ENDBR64 at the function too, and take it out again;
//! their `jne` is longer and traps in the function's first bytes.
//!
//! Why it is hard: a caller is 14 bytes, and no store is; an NMI may call through it between two.
//! So a caller is off (a jump over it) until its rest is right, and all landing pads are there
//! before the first caller uses them. IBT is switched on behind the whole pass.
//!
//! A branch to INT3, as between functions, is no #CP but #BP, which ends the machine as well.
//!
//! Not covered, as on every CPU without FRED: an interrupt between the call and its landing pad
//! makes the CPU forget that it waits for one.

use crate::kcfi::CHECK_LEN;
use crate::poke::{Anomaly, Text, What, read_site};
use crate::preamble::endbr64;

/// How far before a function its landing pad begins.
pub const LANDING: u64 = 16;
/// The byte of the pad, counted from the function backwards, that traps: UDB.
pub const TRAP: u64 = 1;
/// Where the pad's hash stands, relative to the function.
pub const HASH: i8 = -11;
/// Where the compiler must have put the hash for the pad to fit: [`crate::preamble::Prefix`] 11,11.
pub const DISP: i8 = -15;
/// The rest of a pad that was not yet made one.
pub const ROOM: [u8; 11] = [0x90; 11];

/// +5: lea -16(%r11), %r11, then a nop of five bytes.
const CALLER_REST: [u8; 9] = [0x4d, 0x8d, 0x5b, 0xf0, 0x0f, 0x1f, 0x44, 0x00, 0x00];
/// mov $imm32, %eax.
const MOV_EAX: u8 = 0xb8;
/// sub $imm32, %eax.
const SUB_EAX: u8 = 0x2d;
/// jne to the last byte, which is UDB; and the nop around it.
const PAD_REST: [u8; 7] = [0x75, 0x04, 0x0f, 0x1f, 0x44, 0x00, 0xd6];

/// The bytes of a caller.
#[must_use]
pub const fn caller(hash: u32) -> [u8; CHECK_LEN] {
    let [h0, h1, h2, h3] = hash.to_le_bytes();
    let [r0, r1, r2, r3, r4, r5, r6, r7, r8] = CALLER_REST;
    [MOV_EAX, h0, h1, h2, h3, r0, r1, r2, r3, r4, r5, r6, r7, r8]
}

/// The hash that the caller at `site` expects; `None`: it has another form.
///
/// # Errors
/// The first byte that is wrong.
pub fn decode_caller(site: u64, bytes: &[u8; CHECK_LEN]) -> Result<Option<u32>, Anomaly> {
    let [head, h0, h1, h2, h3, rest @ ..] = *bytes;
    if head != MOV_EAX {
        return Ok(None);
    }
    same(site, 5, &CALLER_REST, &rest)?;
    Ok(Some(u32::from_le_bytes([h0, h1, h2, h3])))
}

/// The bytes of a landing pad.
#[must_use]
pub fn landing_pad(hash: u32) -> [u8; 16] {
    let [e0, e1, e2, e3] = endbr64().to_le_bytes();
    let [h0, h1, h2, h3] = hash.to_le_bytes();
    let [r0, r1, r2, r3, r4, r5, r6] = PAD_REST;
    [e0, e1, e2, e3, SUB_EAX, h0, h1, h2, h3, r0, r1, r2, r3, r4, r5, r6]
}

/// Whether the landing pad of `function` wants this hash: [`decode_landing_pad`] for a pass over
/// thousands of them.
#[inline]
pub fn is_landing_pad_at(text: &impl Text, function: u64, hash: u32) -> bool {
    read_site(text, function.wrapping_sub(LANDING)) == Ok(landing_pad(hash))
}

/// The hash that the landing pad of `function` wants.
///
/// # Errors
/// The first byte of it that is wrong.
pub fn decode_landing_pad(text: &impl Text, function: u64) -> Result<u32, Anomaly> {
    let at = function.wrapping_sub(LANDING);
    let bytes: [u8; 16] = read_site(text, at)?;
    let [e0, e1, e2, e3, sub, h0, h1, h2, h3, rest @ ..] = bytes;
    same(at, 0, &endbr64().to_le_bytes(), &[e0, e1, e2, e3])?;
    same(at, 4, &[SUB_EAX], &[sub])?;
    same(at, 9, &PAD_REST, &rest)?;
    Ok(u32::from_le_bytes([h0, h1, h2, h3]))
}

/// Verifies that the compiler has left room for a landing pad between the hash and `function`.
///
/// # Errors
/// The first byte that is no nop.
pub fn check_room(text: &impl Text, function: u64) -> Result<(), Anomaly> {
    let at = function.wrapping_sub(LANDING);
    let found: [u8; 11] = read_site(text, at.wrapping_add(5))?;
    same(at, 5, &ROOM, &found)
}

fn same(at: u64, from: u8, wanted: &[u8], found: &[u8]) -> Result<(), Anomaly> {
    let mut pairs = (from..).zip(wanted.iter().zip(found));
    match pairs.find(|(_, (wanted, found))| wanted != found) {
        None => Ok(()),
        Some((offset, (&expected, &found))) => {
            Err(Anomaly::new(at, offset, What::Byte { expected, found }))
        }
    }
}
