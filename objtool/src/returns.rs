//! Returns: each is made by the thunk, or can be, or is one of a written list.
//!
//! The compiler jumps to `__x86_return_thunk` for every return, and so does the machine's assembly.
//! `finish` makes each of these jumps a plain return of five bytes and lists it; boot makes jumps
//! of them again where the CPU needs it. So one return that is not in the list, in core, in a crate
//! or in assembly, is one that no mitigation reaches: what is proved here is that there is none.
//!
//! - Each near return that the walk of the code finds is a site of the list, or lies in a symbol
//!   that [`PLAIN_RETURNS`] names.
//! - Each jump to the thunk has five bytes that can be changed in place (with
//!   `-Zindirect-branch-cs-prefix` six, of which the last becomes int3 for good), and in a finished
//!   image there is none left: all are plain.
//! - Each relocation against the thunk (the linker's witness) is at a site.
//! - The thunks for CPUs with indirect target selection lie in the upper half of a cache line,
//!   which is what they are for; the one for returns in entry text, where entries return. Those of
//!   other CPUs are `untrained`'s.

use std::collections::BTreeSet;
use std::ops::Range;

use object::elf;
use serde::Serialize;
use text_patching::jump_label::{JMP32, SITE_LEN};
use text_patching::poke::read_site;
use text_patching::return_site::{self, PLAIN, RET, Return};
use text_patching::site_table::{self, SiteTables};
use text_patching::{Anomaly, Code, Patch, Text, What};

use crate::elf::{Image, Reloc};
use crate::scan::Scan;

/// The thunk that returns.
pub const THUNK: &str = "__x86_return_thunk";
/// The thunk that branches to r11 where only its place is to be chosen, and its first bytes: jmp
/// *%r11, int3.
pub const ALIGNED: &str = "__x86_indirect_its_thunk_r11";
const ALIGNED_BYTES: [u8; 4] = [0x41, 0xff, 0xe3, 0xcc];
const CS: u8 = 0x2e;
const INT3: u8 = 0xcc;
/// Bytes of a cache line; branches that end in its lower half are the ones that are misled.
const LINE: u64 = 64;

/// A symbol whose returns are plain for good.
struct PlainReturn {
    /// A trailing `*` matches any ending.
    symbol: &'static str,
    /// Whether they must lie in the upper half of a line.
    upper_half: bool,
    #[expect(dead_code, reason = "for readers")]
    why: &'static str,
}

const PLAIN_RETURNS: [PlainReturn; 9] = [
    PlainReturn { symbol: THUNK, upper_half: true, why: "the thunk itself" },
    PlainReturn { symbol: "untrain_overlaid_thunk", upper_half: false, why: "as the thunk" },
    PlainReturn { symbol: "untrain_safe_return", upper_half: false, why: "as the thunk" },
    PlainReturn { symbol: "untrain_alias_return", upper_half: false, why: "as the thunk" },
    PlainReturn { symbol: "call_depth_return_thunk", upper_half: false, why: "as the thunk" },
    PlainReturn {
        symbol: "call_depth_indirect_jump",
        upper_half: false,
        why: "a retpoline's, where calls are counted: predicted by the call before it",
    },
    PlainReturn {
        symbol: "return_uncounted",
        upper_half: false,
        why: "gives flags back, which counting would change; predicted by the call before it",
    },
    PlainReturn {
        symbol: "clear_bhb_*",
        upper_half: true,
        why: "the loop's own branches are the history that it leaves; no CPU that needs it is one \
              whose returns are untrained",
    },
    PlainReturn {
        symbol: "boot_enable_long_mode",
        upper_half: false,
        why: "boot code, before there are programs; unmapped then",
    },
];

/// What was proved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Returns {
    /// Returns that boot can make jumps to a thunk.
    pub sites: usize,
    /// Of these, those that a relocation names.
    pub by_relocation: usize,
    /// Returns that stay plain, each with a reason.
    pub plain: usize,
}

/// Sites that the image's table lists already; none in an image that is not finished.
fn listed(image: &Image<'_>) -> BTreeSet<u64> {
    let piece = image.section(site_table::SECTION);
    let tables = piece.and_then(|piece| SiteTables::parse(piece.bytes).ok());
    tables.iter().flat_map(|tables| tables.returns().iter()).map(|entry| entry.site).collect()
}

/// Direct branches to the thunk.
fn jumps<'a>(image: &Image<'_>, scan: &'a Scan) -> impl Iterator<Item = u64> + 'a {
    let thunk = image.symbol(THUNK);
    scan.direct.iter().filter(move |(_, target)| Some(*target) == thunk).map(|&(at, _)| at)
}

/// Every site, finished or not.
#[must_use]
pub fn sites(image: &Image<'_>, scan: &Scan) -> BTreeSet<u64> {
    let mut sites = listed(image);
    sites.extend(jumps(image, scan));
    sites
}

/// Proves the rules above of an image that has the thunk and room for tables. What is wrong goes
/// to `wrong`, with its address.
pub fn prove(
    image: &Image<'_>,
    scan: &Scan,
    entry_text: &[Range<u64>],
    wrong: &mut Vec<(u64, String)>,
) -> Option<Returns> {
    image.section(site_table::SECTION)?;
    let thunk = image.symbol(THUNK)?;
    let listed = listed(image);
    let sites = sites(image, scan);
    prove_thunks(image, thunk, entry_text, wrong);
    for at in jumps(image, scan) {
        if !matches!(bytes_at(image, at), Some([JMP32, ..] | [CS, JMP32, ..])) {
            wrong.push((at, "goes to the return thunk and cannot be changed in place".into()));
        } else if !listed.is_empty() {
            wrong.push((at, "goes to the return thunk, and no table lists it".into()));
        }
    }
    let returns: BTreeSet<u64> = scan.returns.iter().copied().collect();
    for &site in &listed {
        if bytes_at(image, site) != Some(PLAIN) || !returns.contains(&site) {
            wrong.push((site, "is listed and no plain return".into()));
        }
    }
    let mut plain = 0;
    for &at in returns.difference(&sites) {
        plain += 1;
        if let Err(what) = may_stay(image, at) {
            wrong.push((at, what.into()));
        }
    }
    let mut named = BTreeSet::new();
    for reloc in image.relocs.iter().filter(|reloc| names(image, reloc, thunk)) {
        // The field follows the opcode, or prefix and opcode.
        match [1, 2].map(|before| reloc.at - before).into_iter().find(|at| sites.contains(at)) {
            Some(site) => _ = named.insert(site),
            None => wrong.push((reloc.at, "names the return thunk and is no site".into())),
        }
    }
    Some(Returns { sites: sites.len(), by_relocation: named.len(), plain })
}

/// The patch that makes the compiler's jump to `thunk` at `site` a plain return. One that is plain
/// already is left alone.
///
/// # Errors
/// When the site is neither.
pub fn make_plain(text: &impl Text, site: u64, thunk: u64) -> Result<Patch, Anomaly> {
    let found: [u8; SITE_LEN + 1] = read_site(text, site)?;
    let [CS, jump @ ..] = found else {
        return return_site::update(text, site, Return::Thunk(thunk), Return::Plain);
    };
    let wanted = return_site::encode(site + 1, Return::Thunk(thunk))?;
    if wanted.as_slice() != jump {
        return Err(Anomaly::new(site, 1, What::UnknownTail));
    }
    let [a, b, c, d, e] = PLAIN;
    Ok(Patch::whole(site, Code::new(&found), Code::new(&[a, b, c, d, e, INT3])))
}

fn prove_thunks(
    image: &Image<'_>,
    thunk: u64,
    entry_text: &[Range<u64>],
    wrong: &mut Vec<(u64, String)>,
) {
    if !entry_text.iter().any(|range| range.contains(&thunk)) {
        wrong.push((thunk, "the return thunk is not entry text".into()));
    }
    if bytes_at(image, thunk).is_none_or(|bytes| bytes[..2] != PLAIN[..2]) {
        wrong.push((thunk, "the return thunk does not return".into()));
    }
    let Some(aligned) = image.symbol(ALIGNED) else {
        wrong.push((thunk, "there is no aligned thunk for branches".into()));
        return;
    };
    if bytes_at(image, aligned).is_none_or(|bytes| bytes[..4] != ALIGNED_BYTES) {
        wrong.push((aligned, "the aligned thunk does not branch to r11".into()));
    }
    if !is_upper_half(aligned) {
        wrong.push((aligned, "is in the lower half of a cache line".into()));
    }
}

const fn is_upper_half(at: u64) -> bool {
    at % LINE >= LINE / 2
}

/// Whether the return at `at` may be one that nothing changes.
fn may_stay(image: &Image<'_>, at: u64) -> Result<(), &'static str> {
    let name = image.symbolize(at).map_or("", |symbol| symbol.name);
    let covers = |it: &&PlainReturn| match it.symbol.strip_suffix('*') {
        Some(prefix) => name.starts_with(prefix),
        None => name == it.symbol,
    };
    match PLAIN_RETURNS.iter().find(covers) {
        None => Err("returns, and no table lists it"),
        Some(it) if it.upper_half && !is_upper_half(at) => {
            Err("is in the lower half of a cache line")
        }
        Some(_) => Ok(()),
    }
}

/// Whether the relocation is the displacement of a branch to the thunk.
fn names(image: &Image<'_>, reloc: &Reloc, thunk: u64) -> bool {
    let relative = matches!(reloc.kind, elf::R_X86_64_PC32 | elf::R_X86_64_PLT32);
    let target = reloc.symbol.wrapping_add_signed(reloc.addend).wrapping_add(4);
    let text = || image.piece_at(reloc.at).is_some_and(|piece| piece.executable);
    relative && target == thunk && text()
}

fn bytes_at(image: &Image<'_>, at: u64) -> Option<[u8; SITE_LEN]> {
    let mut bytes = [0; SITE_LEN];
    image.read(at, &mut bytes).ok()?;
    Some(bytes)
}

const _: () = assert!(PLAIN[0] == RET, "a plain return is one byte, and traps behind it");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elf::{Piece, Symbol};
    use crate::scan::{self, Thunks};
    use text_patching::site_table::{Contents, ReturnEntry};

    const BASE: u64 = 0xffff_ffff_8020_0000;
    const AT: [u64; 2] = [BASE + 0x100, BASE + 0x109];

    /// An image with the thunks, two functions of four nops (one in the first), and what ends them.
    struct World {
        text: Vec<u8>,
        table: Vec<u8>,
        symbols: Vec<(&'static str, u64)>,
        relocs: Vec<u64>,
    }

    const TO: Return = Return::Thunk(BASE + 0x20);

    fn jump(at: u64) -> [u8; SITE_LEN] {
        let code = return_site::encode(at, TO);
        code.expect("near").as_slice().try_into().expect("five bytes")
    }

    impl World {
        fn new(finished: bool) -> Self {
            let mut text = vec![0xcc; 0x200];
            text[0x20] = RET;
            text[0x60..0x64].copy_from_slice(&ALIGNED_BYTES);
            let mut world = Self {
                text,
                table: vec![0; 256],
                symbols: vec![(THUNK, BASE + 0x20), (ALIGNED, BASE + 0x60)],
                relocs: AT.iter().map(|at| at + 1).collect(),
            };
            for (at, name) in AT.into_iter().zip(["one", "two"]) {
                world.put(at - 4, &[0x90; 4]);
                world.put(at, &if finished { PLAIN } else { jump(at) });
                world.symbols.push((name, at - 4));
            }
            if finished {
                let returns = AT.map(|site| ReturnEntry { site });
                let contents = Contents { base: BASE, returns: &returns, ..Contents::default() };
                contents.write(&mut world.table).expect("room");
            }
            world
        }

        fn put(&mut self, at: u64, bytes: &[u8]) {
            let at = usize::try_from(at - BASE).expect("small");
            self.text[at..at + bytes.len()].copy_from_slice(bytes);
        }

        fn prove(&self) -> (Option<Returns>, Vec<String>) {
            let symbol = |&(name, address)| Symbol { name, address, size: 0, function: true };
            let reloc =
                |&at| Reloc { at, kind: elf::R_X86_64_PLT32, symbol: BASE + 0x20, addend: -4 };
            let image = Image {
                pieces: vec![
                    Piece::read_only(".text", BASE, &self.text, true),
                    Piece::read_only(site_table::SECTION, BASE + 0x1000, &self.table, false),
                ],
                symbols: self.symbols.iter().map(symbol).collect(),
                relocs: self.relocs.iter().map(reloc).collect(),
                ..Image::default()
            };
            let mut wrong = Vec::new();
            let scan = scan::scan(&image, &Thunks::new());
            let entry_text = BASE..BASE + 0x40;
            let proved = prove(&image, &scan, &[entry_text], &mut wrong);
            (proved, wrong.into_iter().map(|(_, what)| what).collect())
        }

        #[track_caller]
        fn refused(&self, why: &str) {
            let (_, wrong) = self.prove();
            assert!(wrong.iter().any(|what| what.contains(why)), "{wrong:?}");
        }
    }

    #[test]
    fn every_return_is_accounted_for() {
        for finished in [false, true] {
            let (proved, wrong) = World::new(finished).prove();
            assert_eq!(wrong, [""; 0], "{finished}");
            assert_eq!(proved, Some(Returns { sites: 2, by_relocation: 2, plain: 1 }));
        }
    }

    /// With a prefix: the sixth byte is int3 for good, and nothing else is touched.
    #[test]
    fn prefixed_jumps_become_plain() {
        let (at, thunk) = (BASE + 0x10, BASE + 0x20);
        let prefixed = [&[CS], &jump(at + 1)[..]].concat();
        for offset in 0..=prefixed.len() {
            let mut bytes = [&[0x90; 0x10], &prefixed[..], &[0x90; 8]].concat();
            let wrong = offset < prefixed.len();
            if wrong {
                bytes[0x10 + offset] ^= 0x40;
            }
            let mut text = text_patching::poke::SliceText::new(BASE, &mut bytes);
            let derive = |text: &_, site| make_plain(text, site, thunk);
            let checked = text_patching::poke::check(&text, [at].into_iter(), derive);
            assert_eq!(checked.is_err(), wrong, "{offset}");
            if let Ok(checked) = checked {
                checked.apply(&mut text).expect("a plain return");
                assert_eq!(bytes[0x10..0x18], [RET, INT3, INT3, INT3, INT3, INT3, 0x90, 0x90]);
            }
        }
    }

    #[test]
    fn a_return_of_nobodys_is_found() {
        for finished in [false, true] {
            let mut world = World::new(finished);
            world.put(AT[0] - 4, &[RET]);
            world.refused("no table lists it");
        }
    }

    #[test]
    fn a_jump_that_cannot_be_changed_is_found() {
        let mut world = World::new(false);
        // jmp rel8, and behind it what it was: the relocation is none of a site's.
        world.put(BASE + 0x80, &[0xeb, 0x9e]);
        world.refused("cannot be changed in place");
        let mut world = World::new(false);
        world.relocs.push(BASE + 0x181);
        world.refused("is no site");
        let mut world = World::new(true);
        world.put(AT[1], &jump(AT[1]));
        world.refused("no plain return");
    }

    #[test]
    fn thunks_have_their_place() {
        let moved = |number: usize, to: u64, bytes: &[u8]| {
            let mut world = World::new(true);
            world.symbols[number].1 = to;
            world.put(to, bytes);
            world
        };
        moved(0, BASE + 0x40, &PLAIN).refused("not entry text");
        moved(0, BASE + 0x1f, &PLAIN[..1]).refused("lower half");
        moved(1, BASE + 0x44, &ALIGNED_BYTES).refused("lower half");
        let mut world = World::new(true);
        world.put(BASE + 0x60, &[0x90]);
        world.refused("does not branch");
    }
}
