//! The image in the form of FineIBT: the boot's own rewrite, done to a copy of the text, and then a
//! look at every ENDBR64 there is.
//!
//! Where the CPU tracks indirect branches, they may land on ENDBR64 and nowhere else, so each one
//! is an entry. There must be one in the landing pad of each function that something takes the
//! address of, one before each way into the kernel, and no other at any offset: not in the middle
//! of an instruction either, for a branch may go there.
//!
//! What cannot be proved of the file: hashes are a boot's own, so ENDBR64 could arise where the end
//! of one joins what follows. The crate rules out the hash that is one
//! (`text_patching::preamble::is_legal`), and beside it stand bytes that are no part of ENDBR64.

use std::collections::BTreeSet;

use serde::Serialize;
use text_patching::Text as _;
use text_patching::boot::BootPlan;
use text_patching::fineibt::LANDING;
use text_patching::kcfi::Form;
use text_patching::preamble::{ENDBR64, POISON, Prefix, Seed};
use text_patching::return_site::Return;
use text_patching::site_table::{self, SiteTables};
use text_patching::tail::Via;

use crate::elf::Image;
use crate::file_text::FileText;
use crate::returns::THUNK;

/// The stubs of all vectors, each of which begins with ENDBR64; and their size.
const STUBS: &str = "vector_stubs";
const STUB_BYTES: u64 = 16;
const VECTORS: u64 = 256;
/// Ways in whose symbol stands behind an ENDBR64.
const WAYS_IN: [&str; 2] = ["syscall_entry", "paranoid_"];
/// Bytes of ENDBR64.
const ENDBR_BYTES: usize = 4;
/// Any seed: hashes other than the build's.
const SEED: u32 = 0x5eed_0001;

/// What was proved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Landing {
    /// Checks that have become callers.
    pub callers: usize,
    /// Functions with a landing pad.
    pub pads: usize,
    /// Functions that were given none, since nobody takes their address.
    pub sealed: usize,
    /// Ways in that begin with ENDBR64.
    pub entries: usize,
}

/// Brings a copy of the text of `data`, whose parsed form is `image`, into that form and looks.
/// `Ok(None)`: the image is not finished, was not built for it, or is no kernel of ours.
///
/// # Errors
/// Where something is wrong, and what.
pub fn prove(data: &[u8], image: &Image<'_>) -> Result<Option<Landing>, (u64, String)> {
    let tables = image.section(site_table::SECTION);
    let Some(tables) = tables.and_then(|piece| SiteTables::parse(piece.bytes).ok()) else {
        return Ok(None);
    };
    let is_built_for_it = tables.disp() == Prefix::Nops11.disp() && tables.form() == Form::Opt;
    let Some(stubs) = image.symbol(STUBS).filter(|_| is_built_for_it) else { return Ok(None) };
    let mut text = FileText::new(data, image);
    // With every return made a jump, too: the boot pass must be able to.
    let returns = image.symbol(THUNK).map_or(Return::Plain, Return::Thunk);
    let plan = BootPlan { form: Form::FineIbt, seed: Seed::new(SEED), via: Via::Direct, returns };
    let wrong = |at: u64, what: &dyn std::fmt::Display| (at, what.to_string());
    let checked = plan.check(&text, tables).map_err(|anomaly| wrong(anomaly.site, &anomaly))?;
    let done = checked.apply(&mut text).map_err(|broken| wrong(broken.site, &broken.found))?;

    let taken = tables.functions().iter().filter(|function| function.hash != POISON);
    let pads: BTreeSet<u64> = taken.map(|function| function.function - LANDING).collect();
    let mut entries: BTreeSet<u64> = (0..VECTORS).map(|n| stubs + n * STUB_BYTES).collect();
    let is_way_in = |name: &str| {
        name.starts_with(WAYS_IN[0])
            || name.starts_with(WAYS_IN[1]) && name.ends_with(|c: char| c.is_ascii_digit())
    };
    let ways = image.symbols.iter().filter(|symbol| is_way_in(symbol.name));
    entries.extend(ways.map(|symbol| symbol.address - ENDBR_BYTES as u64));
    let found = landings(image, &text);
    if let Some(at) = found.iter().find(|at| !pads.contains(at) && !entries.contains(at)) {
        return Err((*at, "ENDBR64 where nothing is to land".into()));
    }
    if let Some(at) = pads.iter().chain(&entries).find(|at| !found.contains(at)) {
        return Err((*at, "no ENDBR64 where something is to land".into()));
    }
    Ok(Some(Landing {
        callers: done.checks,
        pads: pads.len(),
        sealed: done.functions - pads.len(),
        entries: entries.len(),
    }))
}

/// Every ENDBR64 in executable bytes, at whatever offset.
fn landings(image: &Image<'_>, text: &FileText) -> BTreeSet<u64> {
    let endbr = ENDBR64.to_le_bytes();
    image
        .text()
        .flat_map(|piece| {
            let mut bytes = vec![0; piece.bytes.len()];
            // What is executable is all there.
            let is_read = text.read(piece.address, &mut bytes).is_ok();
            let windows = bytes.windows(ENDBR_BYTES).enumerate();
            let found = windows.filter(|(_, bytes)| is_read && *bytes == endbr);
            found.map(|(at, _)| piece.address + at as u64).collect::<Vec<_>>()
        })
        .collect()
}
