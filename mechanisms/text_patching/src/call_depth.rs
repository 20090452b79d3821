//! Calls that are counted, so that the return stack never runs empty (`retbleed=stuff`).
//!
//! A CPU of the Skylake family predicts a return by its return stack of 16 entries, and where that
//! is empty by what a program may have trained (CVE-2022-29901). So each call adds to a counter of
//! its CPU, each return takes away, and the return that finds the counter empty fills the return
//! stack first ([`called`], [`returned`]).
//!
//! | Place | Image | Counting |
//! |---|---|---|
//! | F-10, before a function | 10 of 11 nops | `65 48 c1 3c 25 disp32 05` sarq $5, %gs:x |
//! | a direct call of F | `e8 rel32` call F | call F-10 |
//! | an indirect call | a retpoline | another one, which counts |
//! | a return | see [`crate::return_site`] | jmp to a thunk that takes away |
//!
//! Tail calls go to F itself: they push nothing. Functions without that room (assembly) and calls
//! of boot code are not counted. Every miss is on the safe side: a return that takes away what no
//! call has added fills too early, never too late. So nothing may be counted that pushes nothing,
//! and every return of the kernel must take away.
//!
//! The room is that of landing pads ([`crate::fineibt`]), so one excludes the other.
//!
//! Where direct calls are, objtool says in a section of its own, which only a kernel that counts
//! looks at: a number of calls and one of bytes, 4 bytes each, then the distance of each call from
//! the one before it (the first: from the start of text), a byte, or 255 and 4 bytes.

use crate::poke::{Anomaly, Broken, Text, TextPoke, What, read_site};
use crate::site_table::TableError;
use crate::tail::{rel32_target, rel32_to};

/// Name of the section.
pub const SECTION: &str = ".limen_calls";
/// Bits that a call adds to the counter.
pub const SHIFT: u32 = 5;
/// No call: the next return fills.
pub const NONE: u64 = 1 << 63;
/// As many calls as can be counted, and the least that a filled return stack is good for.
pub const FULL: u64 = u64::MAX;
/// Entries of the return stack.
pub const ENTRIES: u32 = 16;

/// The counter behind a call.
#[must_use]
pub const fn called(counter: u64) -> u64 {
    (counter.cast_signed() >> SHIFT).cast_unsigned()
}

/// The counter behind a return, and whether that has filled the return stack first.
#[must_use]
pub const fn returned(counter: u64) -> (u64, bool) {
    match counter << SHIFT {
        0 => (FULL, true),
        left => (left, false),
    }
}

/// Bytes of what counts, and of the room that the compiler leaves.
pub const COUNT_LEN: u64 = 10;
const ROOM_LEN: usize = 11;
const NOP: u8 = 0x90;
/// call rel32, and its length.
const CALL: u8 = 0xe8;
const CALL_LEN: u64 = 5;
/// Bytes before the list of distances.
const HEADER_LEN: usize = 8;
/// A distance that does not fit a byte follows.
const LONG: u8 = 255;

/// sarq $5, %gs:counter.
#[must_use]
pub const fn count(counter: u32) -> [u8; COUNT_LEN as usize] {
    let [a, b, c, d] = counter.to_le_bytes();
    [0x65, 0x48, 0xc1, 0x3c, 0x25, a, b, c, d, SHIFT as u8]
}

/// The list of direct calls, proved.
#[derive(Clone, Copy, Debug)]
pub struct Calls<'a> {
    distances: &'a [u8],
    base: u64,
    count: usize,
}

impl<'a> Calls<'a> {
    /// Proves the section `bytes`, whose distances begin at `base`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(bytes: &'a [u8], base: u64) -> Result<Self, TableError> {
        let (header, rest) = bytes.split_first_chunk::<8>().ok_or(TableError::Truncated)?;
        let [a, b, c, d, e, f, g, h] = *header;
        let [count, len] = [[a, b, c, d], [e, f, g, h]].map(u32::from_le_bytes);
        if count == 0 {
            return Err(TableError::NotFilled);
        }
        let distances = rest.get(..len as usize).ok_or(TableError::Truncated)?;
        let calls = Self { distances, base, count: count as usize };
        let (mut last, mut found) = (None, 0);
        for site in calls.iter() {
            // Calls are instructions of five bytes, one behind the other.
            if last.is_some_and(|last: u64| site.wrapping_sub(last) < CALL_LEN) || site < base {
                return Err(TableError::Unsorted);
            }
            (last, found) = (Some(site), found + 1);
        }
        if found != calls.count { Err(TableError::Field) } else { Ok(calls) }
    }

    /// Writes the section of `sites`, which ascend from `base` on. How many bytes it takes.
    ///
    /// # Errors
    /// [`TableError::NoRoom`], [`TableError::Unsorted`], [`TableError::OutOfReach`].
    pub fn write(sites: &[u64], base: u64, out: &mut [u8]) -> Result<usize, TableError> {
        let (mut at, mut last) = (HEADER_LEN, base);
        let mut put = |out: &mut [u8], bytes: &[u8]| {
            if let Some(room) = out.get_mut(at..at + bytes.len()) {
                room.copy_from_slice(bytes);
            }
            at += bytes.len();
            at
        };
        let mut end = HEADER_LEN;
        for &site in sites {
            let distance = site.checked_sub(last).ok_or(TableError::Unsorted)?;
            let distance = u32::try_from(distance).map_err(|_| TableError::OutOfReach(site))?;
            end = match u8::try_from(distance) {
                Ok(short) if short != LONG => put(out, &[short]),
                _ => {
                    let [a, b, c, d] = distance.to_le_bytes();
                    put(out, &[LONG, a, b, c, d])
                }
            };
            last = site;
        }
        let words = [sites.len(), end - HEADER_LEN].map(|n| u32::try_from(n).unwrap_or(u32::MAX));
        let is_enough = end <= out.len();
        match out.get_mut(..HEADER_LEN) {
            Some(header) if is_enough => {
                let (low, high) = header.split_at_mut(4);
                low.copy_from_slice(&words[0].to_le_bytes());
                high.copy_from_slice(&words[1].to_le_bytes());
                Ok(end)
            }
            _ => Err(TableError::NoRoom(end)),
        }
    }

    /// How many there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.count
    }

    /// Whether there are none, which [`Calls::parse`] refuses.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Their addresses, ascending.
    #[must_use]
    pub fn iter(&self) -> Sites<'a> {
        Sites { distances: self.distances, last: self.base }
    }
}

/// Iterator of [`Calls::iter`].
#[derive(Clone, Debug)]
pub struct Sites<'a> {
    distances: &'a [u8],
    last: u64,
}

impl Iterator for Sites<'_> {
    type Item = u64;
    fn next(&mut self) -> Option<u64> {
        let (&first, rest) = self.distances.split_first()?;
        let (distance, rest) = match first {
            LONG => {
                let (long, rest) = rest.split_first_chunk::<4>()?;
                (u32::from_le_bytes(*long), rest)
            }
            short => (u32::from(short), rest),
        };
        (self.distances, self.last) = (rest, self.last.wrapping_add(u64::from(distance)));
        Some(self.last)
    }
}

/// Whether the function at `function` has the room, or counts already.
///
/// # Errors
/// The first byte that is something else.
pub fn check_room(text: &impl Text, function: u64, counter: u32) -> Result<bool, Anomaly> {
    let at = function.wrapping_sub(ROOM_LEN as u64);
    let [first, found @ ..]: [u8; ROOM_LEN] = read_site(text, at)?;
    if first == NOP && found == count(counter) {
        return Ok(true);
    }
    let wrong = [first].into_iter().chain(found).zip(0_u8..).find(|&(byte, _)| byte != NOP);
    match wrong {
        None => Ok(false),
        Some((found, offset)) => Err(Anomaly::new(at, offset, What::Byte { expected: NOP, found })),
    }
}

/// Where the direct call at `site` goes.
fn target(text: &impl Text, site: u64) -> Result<u64, Anomaly> {
    let [head, rel @ ..]: [u8; CALL_LEN as usize] = read_site(text, site)?;
    match head {
        CALL => Ok(rel32_target(site.wrapping_add(CALL_LEN), rel)),
        found => Err(Anomaly::new(site, 0, What::Byte { expected: CALL, found })),
    }
}

/// Every call is one, and can be counted.
#[derive(Clone, Copy, Debug)]
pub struct Checked<'a> {
    calls: Calls<'a>,
    counter: u32,
}

/// What a pass has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Calls, all verified.
    pub calls: usize,
    /// Functions that count, all verified.
    pub functions: usize,
}

/// Phase one: every call goes to a function with room. Nothing is written.
///
/// # Errors
/// The first anomaly.
pub fn check<'a>(text: &impl Text, calls: Calls<'a>, counter: u32) -> Result<Checked<'a>, Anomaly> {
    for site in calls.iter() {
        let function = target(text, site)?;
        if check_room(text, function, counter)? {
            return Err(Anomaly::new(site, 1, What::WholeImage));
        }
        rel(site, function)?;
    }
    Ok(Checked { calls, counter })
}

/// What the call at `site` has for [`COUNT_LEN`] bytes before `function`.
fn rel(site: u64, function: u64) -> Result<u32, Anomaly> {
    let to = function.wrapping_sub(COUNT_LEN);
    rel32_to(site.wrapping_add(CALL_LEN), to).ok_or(Anomaly::new(site, 1, What::OutOfReach))
}

impl Checked<'_> {
    /// Phase two: each function counts before the first call goes there. Then verifies. One CPU
    /// runs, interrupts are masked; an NMI finds each call whole, by one way or the other.
    ///
    /// # Errors
    /// [`Broken`] when text was changed by somebody else or a store did not arrive: stop.
    pub fn apply(self, text: &mut impl TextPoke) -> Result<Done, Broken> {
        let broken = |found: Anomaly| Broken { site: found.site, found };
        let (low, high) = (&count(self.counter)[..8], &count(self.counter)[8..]);
        let mut done = Done::default();
        for site in self.calls.iter() {
            let function = target(text, site).map_err(broken)?;
            if !check_room(text, function, self.counter).map_err(broken)? {
                let at = function.wrapping_sub(COUNT_LEN);
                text.poke(at, low);
                text.poke(at.wrapping_add(low.len() as u64), high);
                done.functions += 1;
            }
        }
        // Apart, so that these go from page to page.
        for site in self.calls.iter() {
            let rel = rel(site, target(text, site).map_err(broken)?).map_err(broken)?;
            text.poke(site.wrapping_add(1), &rel.to_le_bytes());
        }
        for site in self.calls.iter() {
            let function = target(text, site).map_err(broken)?.wrapping_add(COUNT_LEN);
            if !check_room(text, function, self.counter).map_err(broken)? {
                return Err(broken(Anomaly::new(site, 1, What::UnknownTail)));
            }
            done.calls += 1;
        }
        Ok(done)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::poke::SliceText;
    use std::collections::BTreeSet;
    use std::vec::Vec;

    const BASE: u64 = 0xffff_ffff_8010_0000;
    const COUNTER: u32 = 0x58;
    /// Two functions with room, and calls of them.
    const FUNCTIONS: [u64; 2] = [BASE + 0x20, BASE + 0x60];
    const SITES: [u64; 3] = [BASE + 0x25, BASE + 0x2a, BASE + 0x1_0005];

    fn text() -> Vec<u8> {
        let mut bytes = std::vec![0xcc; 0x1_0010];
        let mut put = |at: u64, new: &[u8]| {
            let at = usize::try_from(at - BASE).expect("small");
            bytes[at..at + new.len()].copy_from_slice(new);
        };
        for function in FUNCTIONS {
            put(function - 11, &[NOP; 11]);
        }
        for (site, function) in SITES.into_iter().zip([FUNCTIONS[1], FUNCTIONS[0], FUNCTIONS[1]]) {
            let rel = rel32_to(site + 5, function).expect("near");
            put(site, &[&[CALL][..], &rel.to_le_bytes()].concat());
        }
        bytes
    }

    fn table(sites: &[u64]) -> Vec<u8> {
        let mut bytes = std::vec![0; 64];
        let len = Calls::write(sites, BASE, &mut bytes).expect("room");
        bytes.truncate(len);
        bytes
    }

    /// All that a CPU and its counter can come to: calls that are counted and others, returns, and
    /// entries, behind which neither counter nor return stack holds anything.
    #[test]
    fn no_order_of_calls_empties_the_return_stack() {
        let mut seen = BTreeSet::new();
        let mut pending = std::vec![(NONE, 0_u32)];
        while let Some((counter, entries)) = pending.pop() {
            if !seen.insert((counter, entries)) {
                continue;
            }
            let more = (entries + 1).min(ENTRIES);
            pending.extend([(called(counter), more), (counter, more), (NONE, entries)]);
            let (counter, filled) = returned(counter);
            let entries = if filled { ENTRIES } else { entries };
            assert!(entries > 0, "a return with an empty return stack: {counter:#x}");
            pending.push((counter, entries - 1));
        }
        assert!(seen.len() > 200, "{} states", seen.len());
    }

    /// Calls and returns in balance cost a fill only where they are deeper than can be counted.
    #[test]
    fn shallow_calls_fill_nothing() {
        for depth in 1..40 {
            let deep = (0..depth).fold(NONE, |counter, _| called(counter));
            let mut fills = 0;
            let left = (0..depth).fold(deep, |counter, _| {
                let (counter, filled) = returned(counter);
                fills += u32::from(filled);
                counter
            });
            assert_eq!(fills > 0, depth > 12, "{depth} calls, {fills} fills");
            assert_eq!(left == NONE, depth <= 12, "{depth} calls leave {left:#x}");
        }
    }

    #[test]
    fn lists_are_read_as_they_were_written() {
        let far = [BASE, BASE + 254, BASE + 509, BASE + 765, BASE + 0x20_0000];
        for sites in [&SITES[..], &far] {
            let bytes = table(sites);
            let calls = Calls::parse(&bytes, BASE).expect("a list");
            assert_eq!(calls.iter().collect::<Vec<_>>(), sites);
            assert_eq!(calls.len(), sites.len());
        }
        assert_eq!(Calls::parse(&[0; 64], BASE).err(), Some(TableError::NotFilled));
        let mut bytes = table(&SITES);
        assert_eq!(Calls::parse(&bytes[..9], BASE).err(), Some(TableError::Truncated));
        bytes[0] += 1;
        assert_eq!(Calls::parse(&bytes, BASE).err(), Some(TableError::Field));
        bytes[0] -= 1;
        bytes[9] = 4;
        assert_eq!(Calls::parse(&bytes, BASE).err(), Some(TableError::Unsorted));
        let mut small = [0; 12];
        assert_eq!(Calls::write(&SITES, BASE, &mut small).err(), Some(TableError::NoRoom(15)));
    }

    #[test]
    fn every_call_goes_where_it_is_counted() {
        let (mut bytes, list) = (text(), table(&SITES));
        let before = bytes.clone();
        let calls = Calls::parse(&list, BASE).expect("a list");
        let mut live = SliceText::new(BASE, &mut bytes);
        let checked = check(&live, calls, COUNTER).expect("as it was built");
        let done = checked.apply(&mut live).expect("nobody else writes");
        assert_eq!(done, Done { calls: 3, functions: 2 });
        assert!(check(&live, calls, COUNTER).is_err(), "once");
        let differs = before.iter().zip(&bytes).filter(|(a, b)| a != b).count();
        assert!(differs <= 3 * 4 + 2 * 10, "{differs} bytes");
        for function in FUNCTIONS {
            let at = usize::try_from(function - BASE).expect("small");
            assert_eq!(bytes[at - 11..at], [&[NOP][..], &count(COUNTER)].concat());
        }
    }

    /// Any other byte stops the pass before anything is written.
    #[test]
    fn a_call_without_room_is_refused() {
        let list = table(&SITES);
        let calls = Calls::parse(&list, BASE).expect("a list");
        let rooms = FUNCTIONS.into_iter().flat_map(|function| function - 11..function);
        for at in rooms.chain(SITES) {
            for flip in 1..=255 {
                let mut bytes = text();
                bytes[usize::try_from(at - BASE).expect("small")] ^= flip;
                let live = SliceText::new(BASE, &mut bytes);
                assert!(check(&live, calls, COUNTER).is_err(), "{at:#x} ^ {flip:#x}");
            }
        }
    }

    /// A store that does not arrive is found.
    #[test]
    fn a_lost_store_is_broken() {
        struct Lossy<'a>(SliceText<'a>, usize);
        impl Text for Lossy<'_> {
            fn read(&self, addr: u64, out: &mut [u8]) -> Result<(), crate::Unmapped> {
                self.0.read(addr, out)
            }
        }
        impl TextPoke for Lossy<'_> {
            fn poke(&mut self, addr: u64, bytes: &[u8]) {
                self.1 = self.1.wrapping_sub(1);
                if self.1 != 0 {
                    self.0.poke(addr, bytes);
                }
            }
        }
        let list = table(&SITES);
        let calls = Calls::parse(&list, BASE).expect("a list");
        for lost in 1..=7 {
            let mut bytes = text();
            let mut live = Lossy(SliceText::new(BASE, &mut bytes), lost);
            let checked = check(&live, calls, COUNTER).expect("as it was built");
            assert!(checked.apply(&mut live).is_err(), "store {lost}");
        }
    }
}
