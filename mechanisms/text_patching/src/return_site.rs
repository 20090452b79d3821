//! Returns: five bytes that return, or jump to a thunk that does.
//!
//! | Bytes | Instruction | Means |
//! |---|---|---|
//! | `c3 cc cc cc cc` | ret; int3 | returns here |
//! | `e9 rel32` | jmp | returns where the CPU predicts it by nothing a program has left |
//!
//! The compiler jumps to `__x86_return_thunk` for every return (`-Zfunction-return=thunk-extern`).
//! objtool makes each of these a plain return and lists it ([`crate::site_table::ReturnEntry`]), so
//! that only a CPU that needs a thunk pays for one: boot writes the jumps then, each by one store.
//! Where that cannot be ([`update`]), both stores leave a whole instruction: the bytes behind a
//! plain return are never executed.

use crate::jump_label::{JMP32, SITE_LEN};
use crate::poke::{Anomaly, Change, Code, Patch, Store, Text, What, read_word, word_of};
use crate::tail::{rel32_target, rel32_to};

/// ret, and int3 behind it against straight-line speculation.
pub const PLAIN: [u8; SITE_LEN] = [RET, INT3, INT3, INT3, INT3];
/// ret.
pub const RET: u8 = 0xc3;
const INT3: u8 = 0xcc;

/// How a return is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Return {
    /// In place.
    Plain,
    /// By the thunk at this address.
    Thunk(u64),
}

/// The bytes of the site at `site`.
///
/// # Errors
/// [`What::OutOfReach`].
pub fn encode(site: u64, how: Return) -> Result<Code, Anomaly> {
    Ok(Code::from_word(word(site, how)?, SITE_LEN as u8))
}

/// [`encode`] for a pass over thousands of sites: the bytes as the low ones of a word.
#[inline(always)]
pub(crate) fn word(site: u64, how: Return) -> Result<u64, Anomaly> {
    let Return::Thunk(thunk) = how else { return Ok(const { word_of(&PLAIN) }) };
    let end = site.wrapping_add(SITE_LEN as u64);
    let rel = rel32_to(end, thunk).ok_or(Anomaly::new(site, 1, What::OutOfReach))?;
    Ok(u64::from(JMP32) | u64::from(rel) << 8)
}

/// What turns the site from `from` to `to`; one that is `to` already is left alone.
///
/// # Errors
/// When the site is neither.
#[inline]
pub fn change(text: &impl Text, site: u64, from: Return, to: Return) -> Result<Change, Anomaly> {
    let (old, new) = (read_word::<SITE_LEN>(text, site)?, word(site, to)?);
    if old != new && old != word(site, from)? {
        return Err(unexpected(site, from, old));
    }
    Ok(Change { old, new, len: SITE_LEN as u8 })
}

/// [`change`] as the derive step of a two-phase pass.
///
/// # Errors
/// When the site is neither.
pub fn update(text: &impl Text, site: u64, from: Return, to: Return) -> Result<Patch, Anomaly> {
    // What is executed next is whole after each store.
    let (head, rest) = (Store { offset: 0, len: 1 }, Store { offset: 1, len: 4 });
    let stores = if to == Return::Plain { [head, rest] } else { [rest, head] };
    Ok(change(text, site, from, to)?.patch(site, stores))
}

#[cold]
fn unexpected(site: u64, from: Return, found: u64) -> Anomaly {
    let [head, a, b, c, d, ..] = found.to_le_bytes();
    let (found, rel) = ([head, a, b, c, d], [a, b, c, d]);
    match from {
        Return::Thunk(expected) if head == JMP32 => {
            let found = rel32_target(site.wrapping_add(SITE_LEN as u64), rel);
            Anomaly::new(site, 1, What::Target { expected, found })
        }
        Return::Thunk(_) => Anomaly::new(site, 0, What::Byte { expected: JMP32, found: head }),
        Return::Plain => {
            let pairs = (0_u8..).zip(PLAIN).zip(found);
            let mut wrong = pairs.filter(|((_, expected), found)| expected != found);
            let ((offset, expected), found) = wrong.next().unwrap_or(((0, RET), head));
            Anomaly::new(site, offset, What::Byte { expected, found })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TextPoke as _;
    use crate::poke::{SliceText, check};

    const BASE: u64 = 0xffff_ffff_8010_0000;
    const SITE: u64 = BASE + 3;
    const THUNKS: [Return; 3] =
        [Return::Plain, Return::Thunk(BASE - 0x2e0), Return::Thunk(BASE + 0x40_0020)];

    fn text(how: Return) -> [u8; 16] {
        let mut bytes = [0x90; 16];
        bytes[3..8].copy_from_slice(encode(SITE, how).expect("in reach").as_slice());
        bytes
    }

    /// After every store of every change the site is one of its whole forms.
    #[test]
    fn every_store_leaves_a_whole_form() {
        for from in THUNKS {
            for to in THUNKS {
                let mut bytes = text(from);
                let mut text = SliceText::new(BASE, &mut bytes);
                let patch = update(&text, SITE, from, to).expect("as it was made");
                for (at, new) in patch.writes() {
                    text.poke(at, new);
                    let mut now = [0; SITE_LEN];
                    text.read(SITE, &mut now).expect("text");
                    let is_whole = now[0] == RET
                        || [from, to]
                            .iter()
                            .any(|&how| encode(SITE, how).is_ok_and(|code| code.as_slice() == now));
                    assert!(is_whole, "{from:?} {to:?}: {now:02x?}");
                }
                let done = update(&text, SITE, from, to).expect("as it is now");
                assert!(done.is_noop(), "{from:?} {to:?}");
            }
        }
    }

    /// Any other byte at any place stops the pass before anything is written.
    #[test]
    fn one_wrong_byte_is_refused() {
        for from in THUNKS {
            let to = if from == Return::Plain { THUNKS[1] } else { Return::Plain };
            for offset in 0..SITE_LEN {
                for flip in 1..=255_u8 {
                    let mut bytes = text(from);
                    bytes[3 + offset] ^= flip;
                    let before = bytes;
                    let text = SliceText::new(BASE, &mut bytes);
                    let derive = |text: &SliceText<'_>, site| update(text, site, from, to);
                    let anomaly = check(&text, [SITE].into_iter(), derive).err().expect("wrong");
                    assert_eq!(anomaly.site, SITE);
                    assert_eq!(bytes, before);
                }
            }
        }
    }

    #[test]
    fn a_thunk_must_be_in_reach() {
        let far = encode(SITE, Return::Thunk(BASE - 0x1_0000_0000)).expect_err("too far");
        assert_eq!(far.what, What::OutOfReach);
    }
}
