//! What must change in an image that does not run where it was linked.
//!
//! An image that reserves `.limen_relocs` is moved by its own boot code, before anything else of it
//! runs: the image itself, the map of physical memory and the kernel's mapped memory begin at other
//! addresses at each boot. The linker has resolved every address; the relocations that
//! `--emit-relocs` keeps tell where one is held. [`collect`] sorts them: differences within the
//! image stay, addresses of the image and of the two other areas change, and whatever is neither is
//! refused, as is an address that no relocation accounts for. [`write()`] makes the table.
//!
//! | Offset | Size | Field |
//! |---|---|---|
//! | 0 | 4 | number of 32-bit fields that hold an address of the image, sign-extended |
//! | 4 | 4 | number of 64-bit fields that hold one |
//! | 8 | 4 | number of 64-bit fields with the start of the map of physical memory |
//! | 12 | 4 | number of 64-bit fields with the start of mapped memory |
//! | 16 | 4 each | physical addresses of the fields, kind by kind in that order, ascending |

use object::elf;
use serde::Serialize;
use text_patching::jump_label::RAW_LEN;
use text_patching::site_table;

use crate::elf::{Image, Reloc};
use crate::finish::JUMP_TABLE;

/// Name of the section.
pub const SECTION: &str = ".limen_relocs";
/// Where the image's addresses begin: linked there, loaded that much lower.
pub const IMAGE_BASE: u64 = 0xffff_ffff_8000_0000;
/// Symbols whose values are the starts of the other areas.
pub const AREAS: [&str; 2] = ["__direct_map_base", "__vmap_base"];
/// Physical addresses of boot code end below.
const LOW_END: u64 = 1 << 31;
/// Where the tables of sites hold their base.
const SITES_BASE: u64 = 16;
const HEADER: usize = 16;

/// Fields of each kind: physical addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fields([Vec<u32>; 4]);

/// How many there are of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// 32-bit addresses of the image.
    pub image32: usize,
    /// 64-bit addresses of the image.
    pub image64: usize,
    /// Addresses of other areas.
    pub areas: usize,
    /// Differences, which stay.
    pub relative: usize,
}

/// Something that would be wrong after the move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wrong {
    /// Where.
    pub at: u64,
    /// What.
    pub what: &'static str,
}

/// What a field holds.
enum Holds {
    /// An address that changes; the number of its kind.
    Moving(usize),
    /// A difference within the image.
    Relative,
    /// A physical address.
    Fixed,
}

const fn is_high(address: u64) -> bool {
    address >= IMAGE_BASE
}

/// All fields of the image that change.
///
/// # Errors
/// The first that is none of what can be moved.
pub fn collect(image: &Image<'_>) -> Result<(Fields, Totals), Wrong> {
    let areas = AREAS.map(|name| image.symbol(name));
    let mut fields = Fields::default();
    let mut totals = Totals::default();
    for reloc in image.relocs.iter().filter(|reloc| reloc.kind != elf::R_X86_64_NONE) {
        let wrong = |what| Wrong { at: reloc.at, what };
        match classify(image, reloc, &areas).map_err(wrong)? {
            Holds::Moving(kind) => {
                let at = physical(reloc.at).ok_or(wrong("lies nowhere"))?;
                fields.0[kind].push(at);
            }
            Holds::Relative => totals.relative += 1,
            Holds::Fixed => {}
        }
    }
    if let Some(sites) = image.section(site_table::SECTION) {
        let at = sites.address + SITES_BASE;
        fields.0[1].push(physical(at).ok_or(Wrong { at, what: "lies nowhere" })?);
    }
    for kind in &mut fields.0 {
        kind.sort_unstable();
        if let Some(pair) = kind.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(Wrong { at: pair[0].into(), what: "is named twice" });
        }
    }
    hidden(image, &fields)?;
    let [image32, image64, direct, vmap] = fields.0.each_ref().map(Vec::len);
    Ok((fields, Totals { image32, image64, areas: direct + vmap, ..totals }))
}

fn physical(at: u64) -> Option<u32> {
    let at = if is_high(at) { at - IMAGE_BASE } else { at };
    u32::try_from(at).ok()
}

fn classify(
    image: &Image<'_>,
    reloc: &Reloc,
    areas: &[Option<u64>; 2],
) -> Result<Holds, &'static str> {
    let value = reloc.symbol.wrapping_add_signed(reloc.addend);
    let held = |len| held(image, reloc.at, len).ok_or("is not in the file");
    match reloc.kind {
        elf::R_X86_64_PC32 | elf::R_X86_64_PLT32 => match is_high(reloc.at) == is_high(value) {
            true => Ok(Holds::Relative),
            false => Err("is a difference between what moves and what stays"),
        },
        elf::R_X86_64_32 | elf::R_X86_64_32S => {
            let low = held(4)?;
            let signed = reloc.kind == elf::R_X86_64_32S;
            let wide = if signed { i64::from(low as u32 as i32).cast_unsigned() } else { low };
            match (is_high(reloc.symbol), is_high(value)) {
                _ if wide != value => Err("does not hold what its relocation says"),
                (true, true) => Ok(Holds::Moving(0)),
                (false, false) if value < LOW_END => Ok(Holds::Fixed),
                // A number: where the key's owner is linked, as the kernel computes it too.
                (true, false) if is_branch_key(image, reloc.at) => Ok(Holds::Fixed),
                _ => Err("is an address of the image less a constant"),
            }
        }
        elf::R_X86_64_64 => match areas.iter().position(|&area| area == Some(value)) {
            _ if held(8)? != value => Err("does not hold what its relocation says"),
            Some(area) => Ok(Holds::Moving(2 + area)),
            None if is_high(reloc.symbol) && is_high(value) => Ok(Holds::Moving(1)),
            None if reloc.symbol < LOW_END && value < LOW_END => Ok(Holds::Fixed),
            None => Err("is an address of nothing that is known"),
        },
        _ => Err("has a relocation of an unknown kind"),
    }
}

/// Whether the field is the key of a static branch (the last word of its entry).
fn is_branch_key(image: &Image<'_>, at: u64) -> bool {
    const KEY: u64 = RAW_LEN as u64 - 4;
    let Some(table) = image.section(JUMP_TABLE) else { return false };
    let offset = at.wrapping_sub(table.address);
    offset < table.bytes.len() as u64 && offset % RAW_LEN as u64 == KEY
}

/// The number of `len` bytes in the file.
fn held(image: &Image<'_>, at: u64, len: u64) -> Option<u64> {
    let bytes = image.between(at, at.checked_add(len)?)?;
    Some(bytes.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte)))
}

/// Data that looks like an address of the image, and that nothing accounts for.
fn hidden(image: &Image<'_>, fields: &Fields) -> Result<(), Wrong> {
    let end = image.pieces.last().map_or(0, crate::elf::Piece::end);
    let start = image.pieces.iter().map(|piece| piece.address).find(|&at| is_high(at));
    let Some(start) = start else { return Ok(()) };
    let data = image.pieces.iter().filter(|piece| is_high(piece.address) && !piece.executable);
    for piece in data {
        let skip = piece.address.next_multiple_of(8) - piece.address;
        let bytes = usize::try_from(skip).ok().and_then(|skip| piece.bytes.get(skip..));
        let (words, _) = bytes.unwrap_or_default().as_chunks::<8>();
        for (word, at) in words.iter().zip((piece.address + skip..).step_by(8)) {
            let is_address = (start..end).contains(&u64::from_le_bytes(*word));
            let known = |at| fields.0[1].binary_search(&at).is_ok();
            if is_address && !physical(at).is_some_and(known) {
                return Err(Wrong { at, what: "holds an address that no relocation tells of" });
            }
        }
    }
    Ok(())
}

/// The table of these fields.
///
/// # Errors
/// How many bytes it needs, where `room` is less.
pub fn write(fields: &Fields, room: &mut [u8]) -> Result<usize, usize> {
    let counts = fields.0.iter().map(|kind| kind.len() as u32);
    let words: Vec<u32> = counts.chain(fields.0.iter().flatten().copied()).collect();
    let needed = words.len() * 4;
    if room.len() < needed {
        return Err(needed);
    }
    room.fill(0);
    for (place, word) in room.chunks_exact_mut(4).zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    Ok(needed)
}

/// What is proved of an image: every field is accounted for, and the table, if it was written, has
/// them all and no other.
///
/// # Errors
/// The first thing that is wrong.
pub fn prove(image: &Image<'_>) -> Result<Option<Totals>, Wrong> {
    let Some(section) = image.section(SECTION) else { return Ok(None) };
    let (fields, totals) = collect(image)?;
    let is_written = section.bytes.get(..HEADER).is_some_and(|head| head.iter().any(|&b| b != 0));
    let mut should = vec![0; section.bytes.len()];
    let wrong = |what| Wrong { at: section.address, what };
    write(&fields, &mut should).map_err(|_| wrong("is too small for all fields"))?;
    match is_written && should != section.bytes {
        true => Err(wrong("is not the table of the image's fields")),
        false => Ok(Some(totals)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elf::Piece;

    const TEXT: u64 = IMAGE_BASE + 0x20_0000;
    const MAP: u64 = 0xffff_8000_0000_0000;

    fn image(bytes: &[u8], relocs: Vec<Reloc>) -> Image<'_> {
        let piece = Piece::read_only(".text", TEXT, bytes, true);
        let map = crate::elf::Symbol { name: AREAS[0], address: MAP, size: 0, function: false };
        Image { pieces: vec![piece], symbols: vec![map], relocs, has_sections: true }
    }

    fn reloc(kind: u32, symbol: u64, addend: i64) -> Reloc {
        Reloc { at: TEXT, kind, symbol, addend }
    }

    fn what(bytes: u64, reloc: Reloc) -> Result<[usize; 4], &'static str> {
        let bytes = bytes.to_le_bytes();
        let fields = collect(&image(&bytes, vec![reloc])).map_err(|wrong| wrong.what)?.0;
        Ok(fields.0.each_ref().map(Vec::len))
    }

    #[test]
    fn each_kind_is_told_by_what_it_holds() {
        let at = TEXT + 8;
        assert_eq!(what(at, reloc(elf::R_X86_64_64, TEXT, 8)), Ok([0, 1, 0, 0]));
        assert_eq!(what(at & 0xffff_ffff, reloc(elf::R_X86_64_32S, TEXT, 8)), Ok([1, 0, 0, 0]));
        assert_eq!(what(MAP, reloc(elf::R_X86_64_64, MAP, 0)), Ok([0, 0, 1, 0]));
        assert_eq!(what(0x1000, reloc(elf::R_X86_64_32, 0x1000, 0)), Ok([0; 4]));
        assert_eq!(what(0, reloc(elf::R_X86_64_PC32, TEXT, 0)), Ok([0; 4]));
    }

    #[test]
    fn what_cannot_be_moved_is_refused() {
        // An address less the base: a number that no move mends.
        let difference = reloc(elf::R_X86_64_32S, TEXT, -IMAGE_BASE.cast_signed());
        assert!(what(0x20_0000, difference).is_err_and(|what| what.contains("less a constant")));
        let apart = reloc(elf::R_X86_64_PC32, 0x1000, 0);
        assert!(what(0, apart).is_err_and(|what| what.contains("what moves and what stays")));
        let other = reloc(elf::R_X86_64_64, MAP + 4096, 0);
        assert!(what(MAP + 4096, other).is_err_and(|what| what.contains("nothing that is known")));
        let stale = reloc(elf::R_X86_64_64, TEXT, 8);
        assert!(what(TEXT, stale).is_err_and(|what| what.contains("does not hold")));
        let strange = reloc(elf::R_X86_64_GOTPCREL, TEXT, 0);
        assert!(what(0, strange).is_err_and(|what| what.contains("unknown kind")));
    }

    #[test]
    fn an_address_without_a_relocation_is_found() {
        let bytes = (TEXT + 1).to_le_bytes();
        let mut image = image(&bytes, vec![]);
        assert!(collect(&image).is_ok());
        image.pieces[0].executable = false;
        let wrong = collect(&image).expect_err("data holds an address");
        assert!(wrong.at == TEXT && wrong.what.contains("no relocation"));
    }

    #[test]
    fn a_table_needs_its_room() {
        let fields = Fields([vec![1, 2], vec![3], vec![], vec![4]]);
        assert_eq!(write(&fields, &mut [0; 31]), Err(32));
        let mut room = [0xff; 36];
        assert_eq!(write(&fields, &mut room), Ok(32));
        let words: Vec<u8> = room.iter().copied().step_by(4).collect();
        assert_eq!(words, [2, 1, 0, 1, 1, 2, 3, 4, 0]);
    }
}
