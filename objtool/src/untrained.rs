//! Proof that where returns are untrained (`text_patching::untrain`) no way into the kernel returns
//! or branches indirectly before it has done so: what a program or a guest has trained would be
//! taken there. Every path is walked from the entries of SYSCALL, the stubs of all vectors, those
//! of paranoid ones, and behind both world switches, to one of the sequences; an interrupt of the
//! kernel itself ends where it says so. Calls are walked into and never out of: what comes behind
//! one comes behind a return.
//!
//! The walk takes the choices of boot as they are where something is untrained: a static branch to
//! `guard_...` or `..._untrain` is taken, of all others both sides are walked.
//!
//! And the sequences are what they must be: their bytes and places, where their jumps and calls go,
//! and that all of it is entry text, since it runs before the catch-up.
//!
//! Neighbours: `returns` proves that all returns go where boot sends them, `entry_text` the other
//! rules of the same paths.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use iced_x86::{FlowControl, Mnemonic, OpKind};
use serde::Serialize;
use text_patching::site_table::{self, SiteTables};
use text_patching::untrain::{self, Places};

use crate::elf::Image;
use crate::entry_text::{Broken, NO_ENTRY, STUB_BYTES, STUBS, VECTORS, choices};
use crate::scan::decode;
use crate::{call_depth, returns};

/// The sequences, each with the thunk or the return behind it.
const SEQUENCES: [&str; 3] = ["untrain_overlaid", "untrain_safe", "untrain_alias"];
/// Where calls begin to be counted, which is as good: the thunk of returns takes away, and fills.
const COUNTING: &str = call_depth::BEGIN;
/// Where a way in begins, by the beginning of its name; behind exits of guests by its name.
const ENTRIES: [&str; 2] = ["syscall_entry", "paranoid_"];
const BEHIND_GUESTS: [&str; 2] = ["vmrun_next", "context_left_vmx_exit"];
/// What a static branch leads to that untrains or is on the way there.
const GUARD: &str = "guard_";
const BEHIND: &str = "_untrain";

/// What was proved: ways in by their kind, and instructions before they have untrained.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Untrained {
    /// Entries of SYSCALL.
    pub calls: usize,
    /// Entries of interrupts and exceptions.
    pub vectors: usize,
    /// Entries of vectors that may hit any instruction.
    pub paranoid: usize,
    /// Exits of guests.
    pub guests: usize,
    /// Instructions on those paths.
    pub instructions: usize,
}

/// Walks every path. `Ok(None)`: the image has no such sequences.
///
/// # Errors
/// The first thing that is wrong.
pub fn prove(image: &Image<'_>, entry_text: &[Range<u64>]) -> Result<Option<Untrained>, Broken> {
    let [Some(overlaid), Some(safe), Some(alias)] = SEQUENCES.map(|name| image.symbol(name)) else {
        return Ok(None);
    };
    sequences(image, entry_text, [overlaid, safe, alias])?;
    let mut walk = Walk {
        image,
        choices: choices(image),
        ends: [Some(overlaid), Some(safe), Some(alias)]
            .into_iter()
            .chain([NO_ENTRY, COUNTING].map(|name| image.symbol(name)))
            .flatten()
            .collect(),
        seen: BTreeSet::new(),
        pending: vec![],
    };
    let mut proved = Untrained::default();
    for symbol in &image.symbols {
        let is_vector = symbol.name.ends_with(|c: char| c.is_ascii_digit());
        if symbol.name.starts_with(ENTRIES[0]) {
            proved.calls += 1;
        } else if symbol.name.starts_with(ENTRIES[1]) && is_vector {
            proved.paranoid += 1;
        } else if BEHIND_GUESTS.contains(&symbol.name) {
            proved.guests += 1;
        } else if symbol.name == STUBS {
            proved.vectors += VECTORS as usize;
            walk.pending.extend((1..VECTORS).map(|n| symbol.address + n * STUB_BYTES));
        } else {
            continue;
        }
        walk.pending.push(symbol.address);
    }
    while let Some(at) = walk.pending.pop() {
        walk.step(at)?;
    }
    proved.instructions = walk.seen.len();
    Ok(Some(proved))
}

/// The sequences at these addresses, and all that belongs to them.
fn sequences(
    image: &Image<'_>,
    entry_text: &[Range<u64>],
    [overlaid, safe, alias]: [u64; 3],
) -> Result<(), Broken> {
    let named = |name: &'static str, at| {
        image.symbol(name).ok_or(Broken { at, what: "has no thunk or return of its own" })
    };
    let overlaid_thunk = named("untrain_overlaid_thunk", overlaid)?;
    let safe_return = named("untrain_safe_return", safe)?;
    let safe_thunk = named("untrain_safe_thunk", safe)?;
    let alias_return = named("untrain_alias_return", alias)?;
    let alias_thunk = named("untrain_alias_thunk", alias)?;
    let shadow_return = named("untrain_alias_shadow_return", alias)?;
    let shadow_thunk = named("untrain_alias_shadow_thunk", alias)?;
    let places = Places { overlaid: overlaid_thunk, safe_return, alias, alias_return };
    untrain::check_alias(image, &places).map_err(|(at, what)| Broken { at, what })?;
    let starts = [
        (overlaid, overlaid_thunk, &untrain::OVERLAID_PREFIX[..]),
        (safe, safe_return, &untrain::SAFE_PREFIX),
    ];
    for (start, thunk, before) in starts {
        if start + before.len() as u64 != thunk {
            return Err(Broken { at: start, what: "does not begin before what it untrains" });
        }
    }
    if shadow_return + untrain::SHADOW_FRONT.len() as u64 != alias_return {
        return Err(Broken { at: shadow_return, what: "does not end at the return" });
    }
    let all = [
        [overlaid, overlaid_thunk, safe, safe_return, safe_thunk],
        [alias, alias_return, alias_thunk, shadow_return, shadow_thunk],
    ];
    let all = all.as_flattened();
    let inside = |at: u64| entry_text.iter().any(|range| range.contains(&at));
    if let Some(&at) = all.iter().find(|&&at| !inside(at)) {
        return Err(Broken { at, what: "is not entry text" });
    }
    let behind = |at: u64, bytes: &[u8]| at + bytes.len() as u64;
    goes(image, behind(overlaid_thunk, &untrain::OVERLAID), Mnemonic::Jmp, overlaid_thunk)?;
    is_return_of_image(image, behind(alias, &untrain::ALIAS))?;
    for (at, to) in [
        (behind(safe_return, &untrain::SAFE), safe_return),
        (safe_thunk, safe_return),
        (alias_thunk, alias_return),
        (shadow_thunk, shadow_return),
    ] {
        // What the return stack predicts behind the call is a trap.
        let next = goes(image, at, Mnemonic::Call, to)?;
        if decode(image, next).is_none_or(|trap| trap.mnemonic() != Mnemonic::Ud2) {
            return Err(Broken { at: next, what: "is no trap, behind a call that never returns" });
        }
    }
    Ok(())
}

/// Whether the image's own return is at `at`, which boot sends where all returns go: a jump to the
/// thunk, or in a finished image a plain one that its tables list.
fn is_return_of_image(image: &Image<'_>, at: u64) -> Result<(), Broken> {
    if image.symbol(returns::THUNK).is_some_and(|to| goes(image, at, Mnemonic::Jmp, to).is_ok()) {
        return Ok(());
    }
    let piece = image.section(site_table::SECTION);
    let tables = piece.and_then(|piece| SiteTables::parse(piece.bytes).ok());
    match tables.and_then(|tables| tables.returns().find(at)) {
        Some(_) => Ok(()),
        None => Err(Broken { at, what: "is no return of the image" }),
    }
}

/// Whether a jump or call to `to` is at `at`; what follows it.
fn goes(image: &Image<'_>, at: u64, how: Mnemonic, to: u64) -> Result<u64, Broken> {
    let found = decode(image, at).filter(|found| {
        found.mnemonic() == how
            && found.op0_kind() == OpKind::NearBranch64
            && found.near_branch_target() == to
    });
    found.map(|found| found.next_ip()).ok_or(Broken { at, what: "does not go to its return" })
}

struct Walk<'a> {
    image: &'a Image<'a>,
    choices: BTreeMap<u64, u64>,
    /// Where the rules end.
    ends: BTreeSet<u64>,
    seen: BTreeSet<u64>,
    pending: Vec<u64>,
}

impl Walk<'_> {
    fn step(&mut self, at: u64) -> Result<(), Broken> {
        if self.ends.contains(&at) || !self.seen.insert(at) {
            return Ok(());
        }
        if let Some(&target) = self.choices.get(&at) {
            self.pending.push(target);
            if self.untrains(target) {
                return Ok(());
            }
        }
        let broken = |what| Err(Broken { at, what });
        let Some(instruction) = decode(self.image, at) else {
            return broken("is no instruction, on a way in");
        };
        let next = instruction.next_ip();
        match instruction.flow_control() {
            FlowControl::Next => self.pending.push(next),
            FlowControl::ConditionalBranch => {
                self.pending.extend([instruction.near_branch_target(), next]);
            }
            FlowControl::UnconditionalBranch | FlowControl::Call
                if instruction.op0_kind() == OpKind::NearBranch64 =>
            {
                self.pending.push(instruction.near_branch_target());
            }
            FlowControl::Interrupt | FlowControl::Exception => {}
            FlowControl::Return => return broken("returns before returns are untrained"),
            _ => return broken("branches indirectly before returns are untrained"),
        }
        Ok(())
    }

    /// Whether boot makes a static branch to `target` a jump, where something untrains.
    fn untrains(&self, target: u64) -> bool {
        let first = self.image.symbols.partition_point(|symbol| symbol.address < target);
        let here = self.image.symbols.get(first..).unwrap_or_default();
        let mut here = here.iter().take_while(|symbol| symbol.address == target);
        here.any(|symbol| symbol.name.starts_with(GUARD) || symbol.name.ends_with(BEHIND))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elf::{Piece, Symbol};
    use text_patching::untrain::{
        ALIAS, ALIAS_BITS, ALIAS_RETURN, OVERLAID, OVERLAID_PREFIX, SAFE, SAFE_PREFIX, SHADOW_FRONT,
    };

    const BASE: u64 = 0xffff_ffff_8020_0000;
    /// Where the sequences, an entry and the stubs are.
    const OVERLAID_AT: u64 = BASE + 0x40;
    const SAFE_AT: u64 = BASE + 0x80;
    const SAFE_THUNK: u64 = BASE + 0xa0;
    const ALIAS_THUNK: u64 = BASE + 0xb0;
    const SHADOW_THUNK: u64 = BASE + 0xc0;
    const SHADOW_RETURN: u64 = BASE + ALIAS_BITS - 11;
    const RETURN_THUNK: u64 = BASE + 0xd0;
    const ENTRY: u64 = BASE + 0x100;
    const GUARD_AT: u64 = BASE + 0x180;
    const STUBS_AT: u64 = BASE + 0x1000;

    struct World {
        text: Vec<u8>,
        /// Of static branches: site and target.
        table: Vec<u8>,
        symbols: Vec<(&'static str, u64)>,
    }

    fn rel32(opcode: u8, at: u64, to: u64) -> Vec<u8> {
        let rel = i32::try_from(to.wrapping_sub(at + 5).cast_signed()).expect("near");
        [&[opcode][..], &rel.to_le_bytes()].concat()
    }

    impl World {
        /// An entry that is `code` and then a choice, which leads to what untrains.
        fn new(code: &[u8]) -> Self {
            let mut world = Self {
                text: vec![0xcc; 0x20_0000],
                table: vec![],
                symbols: vec![
                    ("untrain_alias", BASE),
                    ("untrain_overlaid", OVERLAID_AT - 1),
                    ("untrain_overlaid_thunk", OVERLAID_AT),
                    ("untrain_safe", SAFE_AT - 2),
                    ("untrain_safe_return", SAFE_AT),
                    ("untrain_safe_thunk", SAFE_THUNK),
                    ("untrain_alias_thunk", ALIAS_THUNK),
                    ("syscall_entry_x", ENTRY),
                    ("guard_x", GUARD_AT),
                    (STUBS, STUBS_AT),
                    ("untrain_alias_return", BASE + ALIAS_BITS),
                    ("untrain_alias_shadow_return", SHADOW_RETURN),
                    ("untrain_alias_shadow_thunk", SHADOW_THUNK),
                    (returns::THUNK, RETURN_THUNK),
                ],
            };
            world.put(BASE, &ALIAS);
            world.put(BASE + 5, &rel32(0xe9, BASE + 5, RETURN_THUNK));
            let call = rel32(0xe8, SHADOW_THUNK, SHADOW_RETURN);
            world.put(SHADOW_THUNK, &[&call[..], &[0x0f, 0x0b]].concat());
            world.put(SHADOW_RETURN, &SHADOW_FRONT);
            world.put(OVERLAID_AT - 1, &[&OVERLAID_PREFIX[..], &OVERLAID, &[0xeb, 0xf9]].concat());
            let call = rel32(0xe8, SAFE_AT + 11, SAFE_AT);
            let whole = [&SAFE_PREFIX[..], &SAFE, &call, &[0x0f, 0x0b]].concat();
            world.put(SAFE_AT - 2, &whole);
            world.put(SAFE_THUNK, &[&rel32(0xe8, SAFE_THUNK, SAFE_AT)[..], &[0x0f, 0x0b]].concat());
            let call = rel32(0xe8, ALIAS_THUNK, BASE + ALIAS_BITS);
            world.put(ALIAS_THUNK, &[&call[..], &[0x0f, 0x0b]].concat());
            world.put(BASE + ALIAS_BITS, &ALIAS_RETURN);
            world.put(ENTRY, code);
            let site = ENTRY + code.len() as u64;
            // The choice, and where nothing untrains, a return.
            world.put(site, &[0x0f, 0x1f, 0x44, 0, 0, 0xc3]);
            world.choose(site, GUARD_AT);
            world.put(GUARD_AT, &rel32(0xe9, GUARD_AT, OVERLAID_AT - 1));
            world
        }

        fn put(&mut self, at: u64, bytes: &[u8]) {
            let at = usize::try_from(at - BASE).expect("small");
            self.text[at..at + bytes.len()].copy_from_slice(bytes);
        }

        fn choose(&mut self, site: u64, target: u64) {
            let at = TABLE + self.table.len() as u64;
            let words =
                [site.wrapping_sub(at), target.wrapping_sub(at + 4), 5].map(|word| word as u32);
            self.table.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        }

        fn prove(&self) -> Result<Option<Untrained>, Broken> {
            let symbol = |&(name, address)| Symbol { name, address, size: 0, function: false };
            let mut symbols: Vec<_> = self.symbols.iter().map(symbol).collect();
            symbols.sort_by_key(|symbol| symbol.address);
            let image = Image {
                pieces: vec![
                    Piece::read_only(".entry.text", BASE, &self.text, true),
                    Piece::read_only(crate::finish::JUMP_TABLE, TABLE, &self.table, false),
                ],
                symbols,
                ..Image::default()
            };
            prove(&image, &[BASE..BASE + 0x2000, SHADOW_RETURN..SHADOW_RETURN + 32])
        }

        #[track_caller]
        fn refused(&self, why: &str) {
            match self.prove() {
                Err(broken) => assert!(broken.what.contains(why), "{broken:x?}"),
                Ok(proved) => panic!("not refused: {proved:?}"),
            }
        }
    }

    const TABLE: u64 = BASE + 0x100_0000;
    /// cld; call over a trap.
    const GOOD: [u8; 8] = [0xfc, 0xe8, 2, 0, 0, 0, 0x0f, 0x0b];

    #[test]
    fn an_entry_that_untrains_first() {
        let proved = World::new(&GOOD).prove().expect("good").expect("sequences");
        // In each stub int3.
        let instructions = 2 + 1 + 1 + 256;
        assert_eq!(
            proved,
            Untrained { calls: 1, vectors: 256, instructions, ..Untrained::default() }
        );
        assert_eq!(prove(&Image::default(), &[]).ok(), Some(None));
    }

    #[test]
    fn an_entry_that_returns_first() {
        // ret; call to a return; jmp *%rax; call *%rax; iretq
        World::new(&[0xc3]).refused("returns before");
        World::new(&[0xe8, 1, 0, 0, 0, 0x90, 0xc3]).refused("returns before");
        World::new(&[0xff, 0xe0]).refused("indirectly");
        World::new(&[0xff, 0xd0]).refused("indirectly");
        World::new(&[0x48, 0xcf]).refused("returns before");
        // je to the return where nothing was chosen
        World::new(&[0x74, 5]).refused("returns before");
        // Every kind of way in is walked.
        for name in ["paranoid_2", "vmrun_next", "context_left_vmx_exit"] {
            let mut world = World::new(&GOOD);
            world.symbols.push((name, ENTRY + 0x60));
            world.put(ENTRY + 0x60, &[0xc3]);
            world.refused("returns before");
        }
        let mut world = World::new(&GOOD);
        world.put(STUBS_AT + 255 * STUB_BYTES, &[0xc3]);
        world.refused("returns before");
    }

    /// A choice that leads elsewhere may be made or not.
    #[test]
    fn both_sides_of_other_choices() {
        let mut world = World::new(&[0x0f, 0x1f, 0x44, 0, 0]);
        world.choose(ENTRY, ENTRY + 0x60);
        world.put(ENTRY + 0x60, &[0xc3]);
        world.refused("returns before");
        world.put(ENTRY + 0x60, &rel32(0xe9, ENTRY + 0x60, SAFE_AT - 2));
        assert!(world.prove().is_ok());
    }

    #[test]
    fn each_sequence_is_what_it_must_be() {
        let changed = |at: u64, bytes: &[u8], why: &str| {
            let mut world = World::new(&GOOD);
            world.put(at, bytes);
            world.refused(why);
        };
        changed(OVERLAID_AT - 1, &[0x90], "not part of");
        changed(SAFE_AT + 5, &[0x90], "is not the sequence");
        changed(OVERLAID_AT + 5, &[0xeb, 0xfa], "to its return");
        changed(BASE + 5, &rel32(0xe9, BASE + 5, ALIAS_THUNK), "no return of the image");
        // A plain one that no table lists.
        changed(BASE + 5, &[0xc3], "no return of the image");
        changed(SHADOW_RETURN + 1, &[0xbc], "is not the sequence");
        changed(SHADOW_RETURN + 10, &[0xe9], "is not the sequence");
        changed(SHADOW_THUNK, &rel32(0xe8, SHADOW_THUNK, BASE + ALIAS_BITS), "to its return");
        changed(SAFE_THUNK, &rel32(0xe8, SAFE_THUNK, SAFE_AT + 1), "to its return");
        changed(SAFE_THUNK + 5, &[0xc3], "no trap");
        changed(ALIAS_THUNK + 5, &[0x90], "no trap");
        let moved = |name: &str, by: u64, why: &str| {
            let mut world = World::new(&GOOD);
            let symbol = world.symbols.iter_mut().find(|symbol| symbol.0 == name);
            symbol.expect("a symbol").1 += by;
            world.refused(why);
        };
        moved("untrain_alias_return", 4, "is not the sequence");
        moved("untrain_alias_shadow_return", 6, "does not end");
        moved("untrain_overlaid", 1, "does not begin");
        moved("untrain_safe_thunk", 1, "to its return");
        let mut world = World::new(&GOOD);
        world.symbols.retain(|symbol| symbol.0 != "untrain_safe_thunk");
        world.refused("no thunk");
        let mut world = World::new(&GOOD);
        let thunk = world.symbols.iter_mut().find(|symbol| symbol.0 == "untrain_safe_thunk");
        thunk.expect("a symbol").1 = BASE + 0x3000;
        world.put(BASE + 0x3000, &rel32(0xe8, BASE + 0x3000, SAFE_AT));
        world.put(BASE + 0x3005, &[0x0f, 0x0b]);
        world.refused("not entry text");
    }
}
