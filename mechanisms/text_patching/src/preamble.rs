//! The hash in front of a function: where it stands, how it is re-seeded, how it is poisoned.
//!
//! The compiler puts `mov $hash, %eax` (`b8 imm32`) before every function whose address may be
//! called through a pointer. Where exactly depends on `-Zpatchable-function-entry`:
//!
//! | Flag | Bytes before the function | Hash word at | `disp8` of a check |
//! |---|---|---|---|
//! | none | 11 nops, `b8 hash` | -4 | `fc` |
//! | 11,11 | `b8 hash`, 11 nops (16 bytes) | -15 | `f1` |
//! | 16,16 | 11 nops, `b8 hash`, 16 nops (32 bytes) | -20 | `ec` |
//!
//! With the arity extension the register says how many arguments the function takes (`b8`..`bf`).
//! Limen is built with 11,11: the eleven nops are the room of a landing pad ([`crate::fineibt`]).
//!
//! A hash must never be 0 (that is the poison), and neither it nor its negation, which call sites
//! carry, may be the bytes of ENDBR64: they would be a legal landing pad in the middle of text.

use crate::poke::{Anomaly, Code, Patch, Store, Text, What, read_site};

/// `f3 0f 1e fa` ENDBR64, as a little-endian word.
pub const ENDBR64: u32 = u32::from_le_bytes([0xf3, 0x0f, 0x1e, 0xfa]);
/// [`ENDBR64`], so that no instruction of the caller carries it: whoever compares with the constant
/// would be a landing pad itself.
#[must_use]
pub fn endbr64() -> u32 {
    !core::hint::black_box(!ENDBR64)
}

/// The hash of a function that must not be called through a pointer: no check carries it.
pub const POISON: u32 = 0;
/// Steps of the shift register after which a search for a legal hash is given up. Three values of
/// 2^32 are illegal and the register has no short cycle, so four steps are always enough.
pub const REHASH_STEPS_MAX: u32 = 8;

/// How an image was compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Prefix {
    /// No patchable entry.
    Plain,
    /// 11,11.
    Nops11,
    /// 16,16.
    Nops16,
}

impl Prefix {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Plain, Self::Nops11, Self::Nops16];

    /// Where a check's `add` finds the hash word.
    #[must_use]
    pub const fn disp(self) -> i8 {
        match self {
            Self::Plain => -4,
            Self::Nops11 => -15,
            Self::Nops16 => -20,
        }
    }

    /// The mode of an image whose checks use `disp`.
    #[must_use]
    pub fn from_disp(disp: i8) -> Option<Self> {
        Self::ALL.into_iter().find(|prefix| prefix.disp() == disp)
    }

    /// The flag's value.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Plain => "none",
            Self::Nops11 => "11,11",
            Self::Nops16 => "16,16",
        }
    }
}

/// A decoded preamble.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preamble {
    /// Type hash; [`POISON`] after poisoning.
    pub hash: u32,
    /// Number of the register that the `mov` names: 0 (eax) without the arity extension.
    pub arity: u8,
}

/// Decodes the five bytes `b8 hash`; `at` is their address.
///
/// # Errors
/// When they are no `mov $imm32` to one of the eight low registers.
pub fn decode(at: u64, bytes: [u8; 5]) -> Result<Preamble, Anomaly> {
    let [opcode, hash @ ..] = bytes;
    if opcode & 0xf8 != 0xb8 {
        let what = What::Byte { expected: 0xb8, found: opcode };
        return Err(Anomaly::new(at, 0, what));
    }
    Ok(Preamble { hash: u32::from_le_bytes(hash), arity: opcode & 7 })
}

/// Address of the `mov` of `function`.
#[must_use]
pub const fn address(function: u64, disp: i8) -> u64 {
    function.wrapping_add_signed(disp as i64 - 1)
}

/// Reads the preamble of the function at `function`, whose hash stands at `disp`.
///
/// # Errors
/// When there is none.
pub fn decode_at(text: &impl Text, function: u64, disp: i8) -> Result<Preamble, Anomaly> {
    let at = address(function, disp);
    decode(at, read_site(text, at)?)
}

/// Whether the function at `function` has a preamble with this hash: [`decode_at`] for a pass over
/// thousands of them.
#[inline]
pub fn is_at(text: &impl Text, function: u64, disp: i8, hash: u32) -> bool {
    let Ok([opcode, found @ ..]) = read_site::<5>(text, address(function, disp)) else {
        return false;
    };
    // Any of the eight low registers.
    opcode & 0xf8 == 0xb8 && u32::from_le_bytes(found) == hash
}

/// Whether a hash may be used: not the poison, and ENDBR64 neither in callees nor in call sites.
#[must_use]
#[inline]
pub fn is_legal(hash: u32) -> bool {
    // Two hashes of 256 have such a last byte, and are looked at.
    const LOW: u8 = ENDBR64 as u8;
    let low = hash as u8;
    low != 0 && low != LOW && low != LOW.wrapping_neg() || is_legal_in_full(hash)
}

fn is_legal_in_full(hash: u32) -> bool {
    let endbr64 = endbr64();
    hash != POISON && hash != endbr64 && hash.wrapping_neg() != endbr64
}

/// A boot's secret, mixed into every type hash so that hashes in the file are worth nothing.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Seed(u32);

impl core::fmt::Debug for Seed {
    // A secret: a debug print must not leak it.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Seed(..)")
    }
}

impl Seed {
    /// From four bytes of entropy. 0 keeps all hashes (`cfi=norand`).
    #[must_use]
    pub const fn new(entropy: u32) -> Self {
        Self(entropy)
    }

    /// The hash of this boot, or `None` for an illegal input.
    ///
    /// Equal inputs give equal outputs, so a function and its callers go on matching. Where the
    /// mixture is illegal it is stepped through a shift register until it is not; two different
    /// types may then share a hash, which costs precision and never a good call.
    #[must_use]
    pub fn rehash(self, hash: u32) -> Option<u32> {
        if hash == POISON {
            return None;
        }
        let mut mixed = hash ^ self.0;
        let mut steps = 0;
        while !is_legal(mixed) {
            if steps == REHASH_STEPS_MAX {
                return None;
            }
            steps += 1;
            mixed = step(mixed);
        }
        Some(mixed)
    }
}

/// One step of a 32-bit shift register; 0, its fixed point, leaves by the feedback constant.
const fn step(value: u32) -> u32 {
    const FEEDBACK: u32 = 0x8020_0003;
    if value == 0 || value & 1 == 1 { (value >> 1) ^ FEEDBACK } else { value >> 1 }
}

/// A function's preamble as the site table knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expect {
    /// The function (not its preamble).
    pub function: u64,
    /// Where checks read its hash.
    pub disp: i8,
    /// The hash in the image.
    pub hash: u32,
}

/// The patch that gives a function's preamble the hash `to`: [`Seed::rehash`] of the image's hash,
/// or [`POISON`] for a function that must not be called through a pointer. A preamble that carries
/// `to` already is left alone. Derive step of a two-phase pass.
///
/// # Errors
/// When there is no preamble, or it carries neither the image's hash nor `to`.
pub fn set_hash(text: &impl Text, expect: Expect, to: u32) -> Result<Patch, Anomaly> {
    let at = address(expect.function, expect.disp);
    let old: [u8; 5] = read_site(text, at)?;
    let found = decode(at, old)?.hash;
    if found != expect.hash && found != to {
        return Err(Anomaly::new(at, 1, What::Hash { expected: expect.hash, found }));
    }
    let old = Code::new(&old);
    let stores = [Store { offset: 1, len: 4 }, Store { offset: 0, len: 0 }];
    Ok(Patch::in_order(at, old, old.with(1, &to.to_le_bytes()), stores))
}
