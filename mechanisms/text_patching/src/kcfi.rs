//! One kCFI check: 14 bytes before an indirect call or jump, in three forms; a fourth, in which the
//! callee checks, is [`crate::fineibt`].
//!
//! The compiler puts the *negated* 32-bit type hash into r10d, adds the hash word that stands in
//! front of the callee, and jumps over a `ud2` if the sum is zero. That jump is taken on every good
//! call. The optimised form turns it into one that is never taken on a good call, without one more
//! byte: the trap moves into the immediate of a `test`.
//!
//! | Offset | Bytes, compiler (`Kcfi`) | Bytes, optimised (`Opt`) | `Off` |
//! |---|---|---|---|
//! | +0 | `41 ba imm32` mov $-hash, %r10d | the same | `eb 0c` jmp +14, imm32 kept |
//! | +6 | `45 03 53 disp8` add disp8(%r11), %r10d | the same | the same, not reached |
//! | +10 | `74 02` je +14 | `75 01` jne +13 | either, not reached |
//! | +12 | `0f 0b` ud2 | `a8 d6` test $0xd6, %al | either, not reached |
//! | +14 | call or jump: [`crate::tail`] | the same | the same |
//!
//! `d6` alone is UDB, a one-byte #UD in 64-bit mode (Intel SDM, volume 2, "UD"): the `jne` lands on
//! it. The flags that `test` destroys are dead, the `add` wrote them.
//!
//! `disp8` names where the hash stands before the function and depends on how the image was
//! compiled ([`crate::preamble`]); it is read, never assumed. The register is r11 wherever external
//! thunks are used; other registers are decoded because images without thunks have them, except
//! rsp and r12, whose encoding is one byte longer.
//!
//! Why this is hard: an NMI may come between two stores. Enabling therefore writes +10 before +0,
//! so that a half-written site is one that jumps over the check.

use crate::fineibt;
use crate::poke::{Anomaly, Code, Patch, Store, Text, What, read_site};
use crate::site_table::CheckEntry;

/// Bytes of a check.
pub const CHECK_LEN: usize = 14;
/// Where `.kcfi_traps` points, relative to the check: the `ud2`.
pub const TRAP_UD2: u64 = 12;
/// Where the optimised form traps: the immediate of the `test`.
pub const TRAP_UDB: u64 = 13;
/// Where the call or jump stands, and where execution goes on in warn mode.
pub const TAIL: u64 = 14;

/// +0 `41 ba`: mov $imm32, %r10d.
pub const HEAD_ON: [u8; 2] = [0x41, 0xba];
/// +0 `eb 0c`: jmp to +14, over the check.
pub const HEAD_OFF: [u8; 2] = [0xeb, 0x0c];
/// +10 `74 02 | 0f 0b`: je +14 | ud2.
pub const BODY_KCFI: [u8; 4] = [0x74, 0x02, 0x0f, 0x0b];
/// +10 `75 01 | a8 d6`: jne +13 | test $0xd6, %al.
pub const BODY_OPT: [u8; 4] = [0x75, 0x01, 0xa8, 0xd6];
/// The second byte of `mov $imm32, %r11d`: the compiler's scratch register when r10 is the target.
const MOV_R11: u8 = 0xbb;

/// Which of the forms a check has.
///
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Form {
    /// As the compiler emits it.
    Kcfi,
    /// Branch not taken on the good path.
    Opt,
    /// Jumped over.
    Off,
    /// The callee checks: [`crate::fineibt`]. Only the whole image can be brought into this form.
    FineIbt,
}

impl Form {
    /// The name that the `cfi=` option uses.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Kcfi => "kcfi",
            Self::Opt => "opt",
            Self::Off => "off",
            Self::FineIbt => "fineibt",
        }
    }
}

/// A decoded check. All 14 bytes are determined by these fields and `body`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Check {
    /// Type hash that the callee must carry.
    pub hash: u32,
    /// Where the `add` reads it, relative to the target.
    pub disp: i8,
    /// Hardware number of the register with the target: 11 is r11.
    pub register: u8,
    /// The form.
    pub form: Form,
}

/// Decodes the 14 bytes of the check at `site`.
///
/// # Errors
/// The first byte that fits no form.
pub fn decode(site: u64, bytes: &[u8; CHECK_LEN]) -> Result<Check, Anomaly> {
    let wrong = |offset: u8, expected: u8| {
        let found = bytes.get(usize::from(offset)).copied().unwrap_or_default();
        Err(Anomaly::new(site, offset, What::Byte { expected, found }))
    };
    let [h0, h1, i0, i1, i2, i3, rex, opcode, modrm, disp, body @ ..] = *bytes;
    if let Some(hash) = fineibt::decode_caller(site, bytes)? {
        if hash == 0 {
            return Err(Anomaly::new(site, 1, What::ZeroHash));
        }
        return Ok(Check { hash, disp: fineibt::DISP, register: 11, form: Form::FineIbt });
    }

    // REX.W must be clear (a 32-bit add) and REX.X has no meaning without a SIB byte; REX.R says
    // that the sum is in r10d or r11d.
    if rex & !1 != 0x44 {
        return wrong(6, 0x45);
    }
    if opcode != 0x03 {
        return wrong(7, 0x03);
    }
    // ModRM: mod 01 (disp8), reg 010 or 011 (r10d, r11d), rm not 100 (that would be a SIB byte).
    let register = (rex & 1) << 3 | modrm & 7;
    let scratch = if register == 10 { 3 } else { 2 };
    if modrm & 0b1111_1000 != 0x40 | scratch << 3 || modrm & 7 == 4 {
        return wrong(8, 0x53);
    }
    let on = h0 == HEAD_ON[0] && h1 == if scratch == 3 { MOV_R11 } else { HEAD_ON[1] };
    let off = [h0, h1] == HEAD_OFF;
    if !on && !off {
        return if h0 == HEAD_ON[0] { wrong(1, HEAD_ON[1]) } else { wrong(0, HEAD_ON[0]) };
    }
    let body = match body {
        BODY_KCFI => Form::Kcfi,
        BODY_OPT => Form::Opt,
        _ => return body_anomaly(site, body),
    };
    let hash = u32::from_le_bytes([i0, i1, i2, i3]).wrapping_neg();
    if hash == 0 {
        return Err(Anomaly::new(site, 2, What::ZeroHash));
    }
    let form = if off { Form::Off } else { body };
    Ok(Check { hash, disp: disp.cast_signed(), register, form })
}

/// Names the first byte of +10..+14 that differs from the form that its first byte chooses.
fn body_anomaly(site: u64, body: [u8; 4]) -> Result<Check, Anomaly> {
    let wanted = if body[0] == BODY_OPT[0] { BODY_OPT } else { BODY_KCFI };
    for ((offset, expected), found) in (10..).zip(wanted).zip(body) {
        if expected != found {
            return Err(Anomaly::new(site, offset, What::Byte { expected, found }));
        }
    }
    Err(Anomaly::new(site, 10, What::UnknownTail))
}

/// Reads and decodes the check at `site`.
///
/// # Errors
/// As [`decode`]; [`What::Unmapped`] when the site is not text.
pub fn decode_at(text: &impl Text, site: u64) -> Result<Check, Anomaly> {
    decode(site, &read_site(text, site)?)
}

/// The 14 bytes of a check. `Off` is written over the compiler's body.
#[must_use]
pub fn encode(check: &Check) -> [u8; CHECK_LEN] {
    if check.form == Form::FineIbt {
        return fineibt::caller(check.hash);
    }
    let imm = check.hash.wrapping_neg().to_le_bytes();
    let scratch = if check.register == 10 { 3 } else { 2 };
    let [h0, h1] = match (check.form, scratch) {
        (Form::Off, _) => HEAD_OFF,
        (_, 3) => [HEAD_ON[0], MOV_R11],
        _ => HEAD_ON,
    };
    let body = if check.form == Form::Opt { BODY_OPT } else { BODY_KCFI };
    let rex = 0x44 | check.register >> 3 & 1;
    let modrm = 0x40 | scratch << 3 | check.register & 7;
    let disp = check.disp.cast_unsigned();
    [
        h0, h1, imm[0], imm[1], imm[2], imm[3], rex, 0x03, modrm, disp, body[0], body[1], body[2],
        body[3],
    ]
}

/// What all checks of one form have in common when their target is in r11: everything but the hash.
/// For a pass over thousands of them, which decodes only what is not as expected.
#[derive(Clone, Copy, Debug)]
pub struct Pattern {
    /// Bytes 0 to 7, without the hash.
    low: u64,
    /// Bytes 6 to 13.
    high: u64,
    /// Where the hash stands in `low`.
    shift: u32,
    /// Whether it stands there negated.
    negated: bool,
}

impl Pattern {
    /// Of checks that read the hash at `disp`.
    #[must_use]
    pub fn new(form: Form, disp: i8) -> Self {
        let bytes = encode(&Check { hash: 0, disp, register: 11, form });
        let (low, high) = Self::halves(&bytes);
        let negated = form != Form::FineIbt;
        Self { low, high, shift: if negated { 16 } else { 8 }, negated }
    }

    /// Whether the check at `site` is of this form and has this hash, which is legal.
    #[inline]
    pub fn is_at(&self, text: &impl Text, site: u64, hash: u32) -> bool {
        let Ok(bytes) = read_site::<CHECK_LEN>(text, site) else { return false };
        let (low, high) = Self::halves(&bytes);
        let imm = if self.negated { hash.wrapping_neg() } else { hash };
        hash != 0 && low == self.low | u64::from(imm) << self.shift && high == self.high
    }

    fn halves(bytes: &[u8; CHECK_LEN]) -> (u64, u64) {
        let [a, b, c, d, e, f, g, h, rest @ ..] = *bytes;
        let [i, j, k, l, m, n] = rest;
        (u64::from_le_bytes([a, b, c, d, e, f, g, h]), u64::from_le_bytes([g, h, i, j, k, l, m, n]))
    }
}

/// What phase one must find at a site besides a well-formed check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expect {
    /// The check's address.
    pub site: u64,
    /// Hash that the site table recorded; `None` where no table exists (a foreign image).
    pub hash: Option<u32>,
    /// The image's displacement; `None` where it is not known.
    pub disp: Option<i8>,
    /// The register with the target; `None` where it is not known.
    pub register: Option<u8>,
}

impl Expect {
    /// Nothing but a well-formed check.
    #[must_use]
    pub const fn any(site: u64) -> Self {
        Self { site, hash: None, disp: None, register: None }
    }

    /// What the site table says: together with the layout this determines all 14 bytes but for the
    /// form.
    #[must_use]
    pub fn table(entry: &CheckEntry, disp: i8) -> Self {
        // Without a thunk the compiler chooses the register, and the table does not keep it.
        let register = entry.thunk.then_some(11);
        Self { site: entry.site, hash: Some(entry.hash), disp: Some(disp), register }
    }

    /// Decodes the site and compares.
    ///
    /// # Errors
    /// The first byte or field that is not as expected.
    pub fn decode(&self, text: &impl Text) -> Result<Check, Anomaly> {
        let check = decode_at(text, self.site)?;
        let wrong = |offset, what| Err(Anomaly::new(self.site, offset, what));
        match *self {
            Self { register: Some(expected), .. } if expected != check.register => {
                wrong(8, What::Register { expected, found: check.register })
            }
            Self { disp: Some(expected), .. } if expected != check.disp => {
                wrong(9, What::Displacement { expected, found: check.disp })
            }
            Self { hash: Some(expected), .. } if expected != check.hash => {
                wrong(2, What::Hash { expected, found: check.hash })
            }
            _ => Ok(check),
        }
    }
}

/// The patch that gives the check at `expect.site` the form `form`: derive step of a two-phase pass
/// ([`crate::poke::check`]).
///
/// # Errors
/// As [`Expect::decode`].
pub fn reform(text: &impl Text, expect: Expect, form: Form) -> Result<Patch, Anomaly> {
    let check = expect.decode(text)?;
    if check.form == Form::FineIbt {
        return Err(Anomaly::new(expect.site, 0, What::WholeImage));
    }
    let old: [u8; CHECK_LEN] = read_site(text, expect.site)?;
    let old = Code::new(&old);
    let new = match form {
        // Off leaves +10 alone: one store, and the way back to either form is open.
        Form::Off => old.with(0, &HEAD_OFF),
        Form::Kcfi | Form::Opt => Code::new(&encode(&Check { form, ..check })),
        Form::FineIbt => return Err(Anomaly::new(expect.site, 0, What::WholeImage)),
    };
    // +10 before +0: a site that is being switched on stays jumped over until its body is right.
    let stores = [Store { offset: 10, len: 4 }, Store { offset: 0, len: 2 }];
    Ok(Patch::in_order(expect.site, old, new, stores))
}

/// The patch that gives the check another hash (boot-time re-seeding); the form stays.
///
/// `expect.hash` must be the hash of the image, `to` what [`crate::preamble::Seed::rehash`] makes
/// of it; a check that carries `to` already is left alone.
///
/// # Errors
/// As [`Expect::decode`]; [`What::Hash`] when it carries neither.
pub fn rehash(text: &impl Text, expect: Expect, to: u32) -> Result<Patch, Anomaly> {
    let site = expect.site;
    let seeded = Expect { hash: Some(to), ..expect };
    seeded.decode(text).or_else(|_| expect.decode(text))?;
    let old: [u8; CHECK_LEN] = read_site(text, site)?;
    let old = Code::new(&old);
    let new = old.with(2, &to.wrapping_neg().to_le_bytes());
    let stores = [Store { offset: 2, len: 4 }, Store { offset: 0, len: 0 }];
    Ok(Patch::in_order(site, old, new, stores))
}
