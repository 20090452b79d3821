//! Calls that boot can count (`text_patching::call_depth`): the list of them, and the proof that
//! the boot's own pass can do what it must with this image.
//!
//! - The list has every direct call of a function that the compiler has left room before, in text
//!   at its high address, but for static calls, which change at run time. Others are not counted,
//!   which is safe: nothing may be counted that is no call.
//! - The pass of boot, done to a copy of the text, finds each of them as it must be.
//! - Entries begin to count with one call, that of the guard which does it.
//! - The thunk takes away before it returns, and fills the whole return stack where nothing is
//!   left; it is entry text, where entries return.
//!
//! Neighbours: `returns` proves that all returns can go by the thunk, `untrained` that no way in
//! returns before it has begun to count.

use std::collections::BTreeSet;
use std::ops::Range;

use iced_x86::{Code, Decoder, DecoderOptions, Instruction, Mnemonic, Register};
use serde::Serialize;
use text_patching::call_depth::{self, Calls, ENTRIES, SECTION, SHIFT};
use text_patching::poke::Text as _;
use text_patching::site_table::{self, SiteTables, TableError};

use crate::elf::Image;
use crate::file_text::FileText;
use crate::scan::Scan;

/// The thunk that all returns go by where calls are counted.
pub const THUNK: &str = "call_depth_return_thunk";
/// Where an entry begins to count.
pub(crate) const BEGIN: &str = "call_depth_begin";
/// Where distances begin.
const BASE: &str = "__text_start";
/// call rel32.
const CALL: u8 = 0xe8;
/// Any place of the counter: the machine has its own.
const COUNTER: u32 = 0x80;
/// Bytes of a slot of the stack.
const SLOT: u64 = 8;

/// What was proved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CallDepth {
    /// Direct calls that can be counted.
    pub calls: usize,
    /// Functions that they go to.
    pub functions: usize,
    /// Direct calls that are not.
    pub uncounted: usize,
}

/// Direct calls with five bytes at the image's high addresses, static ones left out.
fn direct<'a>(
    image: &'a Image<'_>,
    scan: &'a Scan,
    not: &'a BTreeSet<u64>,
) -> Option<impl Iterator<Item = (u64, u64)> + 'a> {
    let base = image.symbol(BASE)?;
    let is_call = move |at: u64| {
        let mut opcode = [0];
        at >= base && image.read(at, &mut opcode).is_ok() && opcode == [CALL]
    };
    let calls = scan.direct.iter().copied();
    Some(calls.filter(move |&(at, _)| !not.contains(&at) && is_call(at)))
}

/// The calls that count, ascending; `not` are static calls.
#[must_use]
pub fn sites(image: &Image<'_>, scan: &Scan, not: &BTreeSet<u64>) -> Vec<u64> {
    let functions: BTreeSet<u64> = image
        .symbols
        .iter()
        .filter(|symbol| symbol.function)
        .map(|symbol| symbol.address)
        .collect();
    let has_room = |function: u64| {
        functions.contains(&function) && call_depth::check_room(image, function, COUNTER).is_ok()
    };
    let calls = direct(image, scan, not).into_iter().flatten();
    let sites: BTreeSet<u64> = calls.filter(|&(_, to)| has_room(to)).map(|(at, _)| at).collect();
    sites.into_iter().collect()
}

/// Fills the section in `new`, if the image has one.
///
/// # Errors
/// When it does not fit.
pub fn fill(image: &Image<'_>, sites: &[u64], new: &mut [u8]) -> Result<usize, TableError> {
    let Some(section) = image.section(SECTION) else { return Ok(0) };
    let base = image.symbol(BASE).ok_or(TableError::Unknown)?;
    let from = usize::try_from(section.file_offset).map_err(|_| TableError::Truncated)?;
    let room = new.get_mut(from..from + section.bytes.len()).ok_or(TableError::Truncated)?;
    Calls::write(sites, base, room)
}

/// Proves the rules above. `Ok(None)`: the image has no such list, or is not finished.
///
/// # Errors
/// Where something is wrong, and what.
pub fn prove(
    data: &[u8],
    image: &Image<'_>,
    scan: &Scan,
    entry_text: &[Range<u64>],
) -> Result<Option<CallDepth>, (u64, String)> {
    let (Some(section), Some(base)) = (image.section(SECTION), image.symbol(BASE)) else {
        return Ok(None);
    };
    let tables = image.section(site_table::SECTION);
    let Some(tables) = tables.and_then(|piece| SiteTables::parse(piece.bytes).ok()) else {
        return Ok(None);
    };
    let thunk = image.symbol(THUNK).ok_or((section.address, "has no thunk for returns".into()))?;
    prove_thunk(image, thunk, entry_text).map_err(|what| (thunk, what.into()))?;
    let begin = image.symbol(BEGIN).unwrap_or(thunk);
    prove_begin(image, begin).ok_or((begin, "does not begin to count with one call".into()))?;
    let listed = Calls::parse(section.bytes, base)
        .map_err(|error| (section.address, format!("list of calls: {error}")))?;
    let not: BTreeSet<u64> = tables.calls().iter().map(|call| call.site).collect();
    let wanted = sites(image, scan, &not);
    let found: Vec<u64> = listed.iter().collect();
    if let Some(at) = found.iter().find(|at| wanted.binary_search(at).is_err()) {
        return Err((*at, "is listed as a call that counts, and is none".into()));
    }
    if let Some(at) = wanted.iter().find(|at| found.binary_search(at).is_err()) {
        return Err((*at, "is a call that could count, and is not listed".into()));
    }
    let mut text = FileText::new(data, image);
    let wrong = |at: u64, what: &dyn std::fmt::Display| (at, what.to_string());
    let checked = call_depth::check(&text, listed, COUNTER);
    let checked = checked.map_err(|anomaly| wrong(anomaly.site, &anomaly))?;
    let done = checked.apply(&mut text).map_err(|broken| wrong(broken.site, &broken.found))?;
    let all = direct(image, scan, &not).into_iter().flatten().count();
    let uncounted = all - done.calls;
    Ok(Some(CallDepth { calls: done.calls, functions: done.functions, uncounted }))
}

/// Every bit of the counter, and then as many of them away as leave one call.
fn prove_begin(image: &Image<'_>, at: u64) -> Option<()> {
    let mut decoder = decoder(image, at);
    let (full, shift) = (decoder.decode(), decoder.decode());
    let by = call_depth::called(call_depth::NONE).trailing_zeros();
    let same = full.memory_displacement64() == shift.memory_displacement64();
    let is_so = is_on_counter(&full, Mnemonic::Mov, call_depth::FULL)
        && is_on_counter(&shift, Mnemonic::Shl, by.into());
    (same && is_so).then_some(())
}

fn decoder<'a>(image: &'a Image<'_>, at: u64) -> Decoder<'a> {
    let bytes = image.piece_at(at).and_then(|piece| piece.from(at)).unwrap_or_default();
    Decoder::with_ip(64, bytes, at, DecoderOptions::NONE)
}

/// Whether this does `what` with `value` to a fixed place in GS.
fn is_on_counter(found: &Instruction, what: Mnemonic, value: u64) -> bool {
    found.mnemonic() == what
        && found.memory_segment() == Register::GS
        && found.memory_base() == Register::None
        && found.memory_index() == Register::None
        && found.memory_size().size() as u64 == SLOT
        && found.try_immediate(1).is_ok_and(|immediate| immediate == value)
}

/// shl of the counter, jz to what fills, ret; there as many calls as the return stack has entries,
/// each with a trap behind it, the stack as before, a full counter, ret.
fn prove_thunk(image: &Image<'_>, at: u64, entry_text: &[Range<u64>]) -> Result<(), &'static str> {
    if !entry_text.iter().any(|range| range.contains(&at)) {
        return Err("the return thunk that counts is not entry text");
    }
    let mut decoder = decoder(image, at);
    let mut next = || decoder.decode();
    let is = |found: &Instruction, what| found.mnemonic() == what;
    let first = next();
    if !is_on_counter(&first, Mnemonic::Shl, SHIFT.into()) {
        return Err("the return thunk that counts does not take away first");
    }
    let (empty, ret, trap) = (next(), next(), next());
    let leads = is(&empty, Mnemonic::Je) && empty.near_branch_target() == trap.next_ip();
    if !(leads && ret.code() == Code::Retnq && is(&trap, Mnemonic::Int3)) {
        return Err("the return thunk that counts does not ask what is left");
    }
    for _ in 0..ENTRIES {
        let (call, trap) = (next(), next());
        let is_over = is(&call, Mnemonic::Call) && call.near_branch_target() == trap.next_ip();
        if !(is_over && is(&trap, Mnemonic::Int3)) {
            return Err("the return thunk that counts does not fill the return stack");
        }
    }
    let (add, full, ret) = (next(), next(), next());
    let bytes = u64::from(ENTRIES) * SLOT;
    let is_back = is(&add, Mnemonic::Add)
        && add.op0_register() == Register::RSP
        && add.try_immediate(1).is_ok_and(|immediate| immediate == bytes);
    let same = full.memory_displacement64() == first.memory_displacement64();
    let is_full = is_on_counter(&full, Mnemonic::Mov, call_depth::FULL) && same;
    match is_back && is_full && ret.code() == Code::Retnq {
        true => Ok(()),
        false => Err("the return thunk that counts does not return behind a fill"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elf::Piece;

    const BASE_AT: u64 = 0xffff_ffff_8020_0000;
    const COUNTER_BYTES: [u8; 4] = COUNTER.to_le_bytes();

    fn on_counter(head: [u8; 5], value: &[u8]) -> Vec<u8> {
        [&head[..], &COUNTER_BYTES, value].concat()
    }

    fn thunk() -> Vec<u8> {
        let fill = [0xe8, 1, 0, 0, 0, 0xcc].repeat(16);
        [
            on_counter([0x65, 0x48, 0xc1, 0x24, 0x25], &[5]),
            vec![0x74, 2, 0xc3, 0xcc],
            fill,
            vec![0x48, 0x81, 0xc4, 128, 0, 0, 0],
            on_counter([0x65, 0x48, 0xc7, 0x04, 0x25], &[0xff; 4]),
            vec![0xc3, 0xcc],
        ]
        .concat()
    }

    fn begin() -> Vec<u8> {
        let full = on_counter([0x65, 0x48, 0xc7, 0x04, 0x25], &[0xff; 4]);
        [full, on_counter([0x65, 0x48, 0xc1, 0x24, 0x25], &[58])].concat()
    }

    fn with_image<R>(bytes: &[u8], f: impl FnOnce(&Image<'_>) -> R) -> R {
        let piece = Piece::read_only(".text", BASE_AT, bytes, true);
        f(&Image { pieces: vec![piece], ..Image::default() })
    }

    fn decoded(bytes: &[u8]) -> Vec<Instruction> {
        let decoder = Decoder::with_ip(64, bytes, BASE_AT, DecoderOptions::NONE);
        let all = decoder.into_iter().map(|mut found| {
            // Of no index.
            found.set_memory_index_scale(1);
            found
        });
        all.collect()
    }

    /// Each bit, but for those of prefixes that mean nothing here.
    fn flipped(whole: &[u8], len: usize) -> impl Iterator<Item = Vec<u8>> + '_ {
        let bits = (0..len).flat_map(|at| (0..8).map(move |bit| (at, bit)));
        let all = bits.map(|(at, bit)| {
            let mut bytes = whole.to_vec();
            bytes[at] ^= 1 << bit;
            bytes
        });
        all.filter(|bytes| decoded(bytes) != decoded(whole))
    }

    /// Any bit of what matters makes it another thunk.
    #[test]
    fn a_thunk_that_does_less_is_refused() {
        let inside = BASE_AT..BASE_AT + 0x1000;
        let prove = |bytes: &[u8]| {
            with_image(bytes, |image| prove_thunk(image, BASE_AT, std::slice::from_ref(&inside)))
        };
        assert_eq!(prove(&thunk()), Ok(()));
        let thunk = thunk();
        // All but the int3 behind the last return.
        let mut seen = 0;
        for bytes in flipped(&thunk, thunk.len() - 1) {
            assert!(prove(&bytes).is_err(), "{bytes:02x?}");
            seen += 1;
        }
        assert!(seen > 1000, "{seen}");
        with_image(&thunk, |image| assert!(prove_thunk(image, BASE_AT, &[]).is_err()));
    }

    #[test]
    fn an_entry_that_begins_with_more_calls_is_refused() {
        let prove = |bytes: &[u8]| with_image(bytes, |image| prove_begin(image, BASE_AT));
        assert_eq!(prove(&begin()), Some(()));
        let begin = begin();
        for bytes in flipped(&begin, begin.len()) {
            assert_eq!(prove(&bytes), None, "{bytes:02x?}");
        }
    }
}
