//! Static calls of an image: which there are, where they are called, and that nothing in them is
//! indirect.
//!
//! `__static_call_tramps` lists trampolines: of calls, and of the places in their chains
//! (`machine/src/text/static_call.rs`). A call with several callees has a chain, compiled code that
//! makes one direct call for each of them, and shorter ones for fewer; what is proved here is that
//! each chain does exactly that: as many calls as the table says that it is long, each place once,
//! in order, and no branch out of the chain besides, indirect least of all.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use serde::Serialize;
use text_patching::site_table::CallEntry;
use text_patching::static_call::{self, Target};
use text_patching::{Text as _, jump_label, tail};

use crate::Error;
use crate::elf::{Image, Symbol};
use crate::returns;
use crate::scan::Scan;

/// The table of trampolines.
pub const TRAMPOLINES: &str = "__static_call_tramps";
/// Bytes of an entry: from here to the trampoline, flags, from here to chain or owner, number.
const ENTRY: usize = 16;
/// Flag: sites may change after sealing.
const DYNAMIC: u32 = 1;
/// Flag: a place in the chain of the owner.
const PLACE: u32 = 2;
/// Flag: no trampoline, but a chain that is shorter than the owner's.
const SHORT: u32 = 4;

/// A trampoline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trampoline {
    /// Its address.
    pub at: u64,
    /// Whether its sites may change after sealing.
    pub dynamic: bool,
    /// What it belongs to.
    pub role: Role,
}

/// What a trampoline is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A call.
    Call {
        /// Its chain.
        chain: u64,
        /// How many can be called.
        callees: u32,
    },
    /// A place in a chain.
    Place {
        /// The trampoline of the call.
        owner: u64,
        /// Counted from 0.
        number: u32,
    },
}

impl Trampoline {
    /// What sites refer to it by.
    #[must_use]
    pub const fn key(&self) -> u32 {
        self.at as u32
    }
}

/// What was proved of an image's static calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// Calls.
    pub calls: usize,
    /// Callees of all of them.
    pub callees: usize,
    /// Calls that nobody can answer, and that exactly one can.
    pub alone: [usize; 2],
    /// Callees of calls that have a chain.
    pub chained: usize,
    /// Direct calls that the chains of full length make.
    pub chain_calls: usize,
    /// Places in code where calls are made.
    pub sites: usize,
}

/// Something that is not as it must be: an address and what.
pub type Wrong = (u64, String);

/// An entry of the table: address, flags, chain or owner, number.
type Row = (u64, u32, u64, u32);

fn rows(image: &Image<'_>) -> Result<Vec<Row>, Wrong> {
    let Some(piece) = image.section(TRAMPOLINES) else {
        return Ok(Vec::new());
    };
    let (raws, rest) = piece.bytes.as_chunks::<ENTRY>();
    if !rest.is_empty() {
        return Err((piece.address, format!("{TRAMPOLINES} is no whole number of entries")));
    }
    let row = |(raw, address): (&[u8; ENTRY], u64)| {
        let (words, _) = raw.as_chunks::<4>();
        let &[at, flags, other, number] = words else { return None };
        let at = tail::rel32_target(address, at);
        let other = tail::rel32_target(address.wrapping_add(8), other);
        let [flags, number] = [flags, number].map(u32::from_le_bytes);
        Some((at, flags, other, number))
    };
    Ok(raws.iter().zip((piece.address..).step_by(ENTRY)).filter_map(row).collect())
}

/// The shorter chains: address, the call's trampoline, length.
fn short_chains(image: &Image<'_>) -> Result<Vec<(u64, u64, u32)>, Wrong> {
    let rows = rows(image)?.into_iter().filter(|row| row.1 & SHORT != 0);
    Ok(rows.map(|(at, _, owner, len)| (at, owner, len)).collect())
}

/// The image's trampolines by address.
///
/// # Errors
/// The first entry that is none.
pub fn trampolines(image: &Image<'_>) -> Result<BTreeMap<u64, Trampoline>, Wrong> {
    let mut out = BTreeMap::new();
    let mut names = BTreeSet::new();
    for (at, flags, other, number) in rows(image)?.into_iter().filter(|row| row.1 & SHORT == 0) {
        let role = match flags & PLACE {
            0 => Role::Call { chain: other, callees: number },
            _ => Role::Place { owner: other, number },
        };
        let trampoline = Trampoline { at, dynamic: flags & DYNAMIC != 0, role };
        let mut bytes = [0; static_call::TRAMPOLINE_LEN];
        let read = image.read(at, &mut bytes);
        let entry = entry(&trampoline, at, true);
        let target = bytes.first_chunk().and_then(|code| static_call::decode(&entry, *code));
        if read.is_err() || target.is_none() || !bytes.ends_with(&static_call::SIGNATURE) {
            return Err((at, "is no static-call trampoline".into()));
        }
        // Two copies of one function would be two calls where the source says one.
        let name = image.symbolize(at).filter(|symbol| symbol.address == at);
        if out.insert(at, trampoline).is_some() || name.is_some_and(|s| !names.insert(s.name)) {
            return Err((at, "is listed twice, or there are two of that name".into()));
        }
    }
    Ok(out)
}

fn entry(trampoline: &Trampoline, site: u64, tail: bool) -> CallEntry {
    CallEntry { site, key: trampoline.key(), tail, dynamic: trampoline.dynamic }
}

/// Every direct call and jump to a trampoline, ascending.
///
/// # Errors
/// A site that cannot be patched, or lies in one of the ranges `forbidden`.
pub fn sites(
    image: &Image<'_>,
    scan: &Scan,
    trampolines: &BTreeMap<u64, Trampoline>,
    forbidden: &[Range<u64>],
) -> Result<Vec<CallEntry>, Wrong> {
    let mut calls = BTreeMap::new();
    for &(site, target) in &scan.direct {
        let Some(trampoline) = trampolines.get(&target) else {
            continue;
        };
        let mut bytes = [0; jump_label::SITE_LEN];
        let read = image.read(site, &mut bytes);
        let tail = bytes.first() == Some(&jump_label::JMP32);
        let call = entry(trampoline, site, tail);
        if read.is_err() || static_call::decode(&call, bytes) != Some(Target::Function(target)) {
            return Err((site, "calls a trampoline in a way that cannot be patched".into()));
        }
        if forbidden.iter().any(|range| range.contains(&site)) {
            return Err((site, "is a static call in entry text".into()));
        }
        calls.insert(site, call);
    }
    Ok(calls.into_values().collect())
}

/// Proves every chain. What is wrong goes to `wrong`.
pub fn prove(image: &Image<'_>, scan: &Scan, wrong: &mut Vec<Wrong>) -> Totals {
    let mut totals = Totals::default();
    let trampolines = match trampolines(image) {
        Ok(trampolines) => trampolines,
        Err(error) => {
            wrong.push(error);
            return totals;
        }
    };
    // A jump to the return thunk is a return.
    let thunk = image.symbol(returns::THUNK);
    let leads_on = |&(_, target): &(u64, u64)| Some(target) != thunk;
    let mut direct: Vec<_> = scan.direct.iter().copied().filter(leads_on).collect();
    direct.sort_unstable();
    let bodies = image.symbol_addresses();
    let mut places: BTreeMap<u64, usize> = BTreeMap::new();
    for trampoline in trampolines.values() {
        match trampoline.role {
            Role::Place { owner, .. } => *places.entry(owner).or_default() += 1,
            Role::Call { callees, .. } => {
                totals.calls += 1;
                totals.callees += callees as usize;
                if let Some(alone) = totals.alone.get_mut(callees as usize) {
                    *alone += 1;
                }
            }
        }
    }
    for (&at, trampoline) in &trampolines {
        let Role::Call { chain, callees } = trampoline.role else { continue };
        let listed = places.get(&at).copied().unwrap_or_default();
        let expected = if callees > 1 { callees as usize } else { 0 };
        if listed != expected {
            wrong.push((at, format!("{listed} places for {callees} callees")));
        }
        let Some(body) = bodies.get(&chain) else {
            wrong.push((chain, "the chain has no symbol".into()));
            continue;
        };
        totals.chained += expected;
        totals.chain_calls += prove_chain(body, at, expected, &trampolines, &direct, scan, wrong);
    }
    let short_calls = prove_short_chains(image, &bodies, &trampolines, &direct, scan, wrong);
    match sites(image, scan, &trampolines, &[]) {
        Ok(sites) => {
            let chained = totals.chain_calls + short_calls;
            totals.sites = sites.len() - chained.min(sites.len());
        }
        Err(error) => wrong.push(error),
    }
    totals
}

/// The chains for fewer callees than a call can have: one of each length from two on. How many
/// calls they make.
fn prove_short_chains(
    image: &Image<'_>,
    bodies: &BTreeMap<u64, &Symbol<'_>>,
    trampolines: &BTreeMap<u64, Trampoline>,
    direct: &[(u64, u64)],
    scan: &Scan,
    wrong: &mut Vec<Wrong>,
) -> usize {
    let listed = short_chains(image).unwrap_or_else(|error| {
        wrong.push(error);
        Vec::new()
    });
    let lengths = |owner: u64, callees: u32| {
        let own = listed.iter().filter(|(_, of, _)| *of == owner).map(|&(_, _, len)| len);
        own.eq(2..callees.max(2))
    };
    for (&at, trampoline) in trampolines {
        if let Role::Call { callees, .. } = trampoline.role
            && !lengths(at, callees)
        {
            wrong.push((at, format!("not one chain of each length below {callees}")));
        }
    }
    let mut calls = 0;
    for &(chain, owner, len) in &listed {
        match bodies.get(&chain) {
            Some(body) => {
                calls += prove_chain(body, owner, len as usize, trampolines, direct, scan, wrong);
            }
            None => wrong.push((chain, "the chain has no symbol".into())),
        }
    }
    calls
}

/// One chain: how many calls it makes.
fn prove_chain(
    body: &Symbol<'_>,
    owner: u64,
    expected: usize,
    trampolines: &BTreeMap<u64, Trampoline>,
    direct: &[(u64, u64)],
    scan: &Scan,
    wrong: &mut Vec<Wrong>,
) -> usize {
    let range = body.address..body.address.saturating_add(body.size);
    for branch in scan.branches.iter().filter(|branch| range.contains(&branch.at)) {
        wrong.push((branch.at, format!("{} in a chain of direct calls", branch.kind.name())));
    }
    let first = direct.partition_point(|&(at, _)| at < range.start);
    let inside = direct.get(first..).unwrap_or_default();
    let leave = inside.iter().take_while(|(at, _)| *at < range.end);
    let mut called = 0;
    for &(at, target) in leave.filter(|(_, target)| !range.contains(target)) {
        let place = trampolines.get(&target).map(|trampoline| trampoline.role);
        match place {
            Some(Role::Place { owner: of, number }) if of == owner && number as usize == called => {
                called += 1;
            }
            _ => wrong.push((at, format!("leaves a chain for {target:#x}, not place {called}"))),
        }
    }
    if called != expected {
        wrong.push((body.address, format!("{called} calls for {expected} callees")));
    }
    called
}

/// As an error of finishing.
#[must_use]
pub fn refused(image: &Image<'_>, (address, what): &Wrong) -> Error {
    let symbol = image.symbolize(*address).map_or("?", |symbol| symbol.name);
    Error::Refused(format!("{address:#x} ({symbol}) {what}"))
}
