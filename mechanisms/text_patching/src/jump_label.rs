//! Static branches: five bytes that are a nop or a jump.
//!
//! | Bytes | Instruction | Means |
//! |---|---|---|
//! | `0f 1f 44 00 00` | nopl 0(%rax,%rax) | fall through |
//! | `e9 rel32` | jmp | go to the entry's target |
//!
//! `static_branch_unlikely` falls through while its key is off, `static_branch_likely` while it is
//! on: the entry says which, so that the hot side is always the nop.
//!
//! The compiler leaves twelve bytes per site in `__jump_table`: site and target relative to the
//! field itself, and the key's number with [`LIKELY`] on top. objtool turns them into the sorted
//! table of [`crate::site_table`].

use crate::poke::{Anomaly, Code, Patch, Text, What, read_site};
use crate::site_table::BranchEntry;
use crate::tail::{rel32_target, rel32_to};

/// Bytes of a site.
pub const SITE_LEN: usize = 5;
/// The nop of five bytes that Intel recommends (SDM volume 2, "NOP").
pub const NOP5: [u8; SITE_LEN] = [0x0f, 0x1f, 0x44, 0x00, 0x00];
/// jmp rel32.
pub const JMP32: u8 = 0xe9;
/// Bytes of an entry in `__jump_table`.
pub const RAW_LEN: usize = 12;
/// Bit of the key's number that says "the fall-through side is the enabled one".
pub const LIKELY: u32 = 1 << 31;

/// Bit of the key's number that says "the key does not change after init": only then may a site be
/// in entry text, where a CPU may run without having seen the last serialisation.
pub const RO_AFTER_INIT: u32 = 1 << 30;

/// Decodes the compiler's entry at `address`.
#[must_use]
pub fn decode_raw(address: u64, raw: [u8; RAW_LEN]) -> BranchEntry {
    let [s0, s1, s2, s3, t0, t1, t2, t3, key @ ..] = raw;
    let key = u32::from_le_bytes(key);
    BranchEntry {
        site: rel32_target(address, [s0, s1, s2, s3]),
        target: rel32_target(address.wrapping_add(4), [t0, t1, t2, t3]),
        key: key & !(LIKELY | RO_AFTER_INIT),
        likely: key & LIKELY != 0,
        ro_after_init: key & RO_AFTER_INIT != 0,
    }
}

/// The bytes of `entry` while its key is `enabled`.
///
/// # Errors
/// [`What::OutOfReach`].
pub fn encode(entry: &BranchEntry, enabled: bool) -> Result<Code, Anomaly> {
    if enabled == entry.likely {
        return Ok(Code::new(&NOP5));
    }
    let end = entry.site.wrapping_add(SITE_LEN as u64);
    let far = Anomaly::new(entry.site, 1, What::OutOfReach);
    Ok(Code::with_imm32(&[JMP32], rel32_to(end, entry.target).ok_or(far)?))
}

/// The patch that makes `entry` follow its key: derive step of a two-phase pass, or a part of an
/// [`crate::int3::Batch`].
///
/// # Errors
/// When the site is neither the nop nor the jump to its own target.
pub fn set(text: &impl Text, entry: &BranchEntry, enabled: bool) -> Result<Patch, Anomaly> {
    let found: [u8; SITE_LEN] = read_site(text, entry.site)?;
    let old = Code::new(&found);
    if old != encode(entry, true)? && old != encode(entry, false)? {
        return Err(unexpected(entry, found));
    }
    Ok(Patch::whole(entry.site, old, encode(entry, enabled)?))
}

fn unexpected(entry: &BranchEntry, found: [u8; SITE_LEN]) -> Anomaly {
    match found {
        [JMP32, rel @ ..] => {
            let end = entry.site.wrapping_add(SITE_LEN as u64);
            let what = What::Target { expected: entry.target, found: rel32_target(end, rel) };
            Anomaly::new(entry.site, 1, what)
        }
        _ => {
            let pairs = (0_u8..).zip(NOP5).zip(found);
            let mut wrong = pairs.filter(|((_, expected), found)| expected != found);
            let ((offset, expected), found) = wrong.next().unwrap_or(((0, NOP5[0]), found[0]));
            Anomaly::new(entry.site, offset, What::Byte { expected, found })
        }
    }
}
