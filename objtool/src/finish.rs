//! The last link step of Limen's own image: write the site tables, choose the form, poison.
//!
//! The linker script reserves `.limen_sites`; this fills it. Everything that the kernel will do to
//! its text at boot is thereby proved at build time with the code that boots: a site that is not as
//! it must be fails the build with its address and symbol.
//!
//! In order: an audit that must be clean; static branches from `__jump_table`; static calls,
//! which are the direct calls and jumps to the trampolines that `__static_call_tramps` lists;
//! refusal of both in entry text; the optimised form of all checks; plain returns; poisoned
//! preambles of functions whose address nothing takes; the tables, also of what changes when the
//! image is moved; a second audit that reads the tables back.

use std::collections::BTreeMap;
use std::ops::Range;

use text_patching::jump_label::{self, RAW_LEN};
use text_patching::kcfi::{Form, TAIL};
use text_patching::preamble::{self, POISON};
use text_patching::site_table::{
    self, BranchEntry, CallEntry, CheckEntry, Contents, FunctionEntry, ReturnEntry, ThunkEntry,
};
use text_patching::tail::{self, BranchKind, Shape, Tail};
use text_patching::{Text as _, kcfi, poke};

use crate::Error;
use crate::audit::{Audit, Options, examine};
use crate::elf::Image;
use crate::entry_text::Proved;
use crate::file_text::FileText;
use crate::report::{Finding, Report};
use crate::{call_depth, relocs, returns, static_calls};

/// The compiler's static branches.
pub const JUMP_TABLE: &str = "__jump_table";
/// Text that runs before a CPU has caught up with text patches.
pub const ENTRY_TEXT: &str = ".entry.text";
/// Symbols around it, where the linker script has merged the section into `.text`; and around what
/// must lie far from the rest.
pub const ENTRY_BOUNDS: [[&str; 2]; 2] = [
    ["__entry_text_start", "__entry_text_end"],
    ["__entry_text_far_start", "__entry_text_far_end"],
];
/// The base of all offsets is the lowest site, rounded down to this.
const BASE_ALIGN: u64 = 4096;

/// What finishing does.
#[derive(Clone, Debug)]
pub struct FinishOptions {
    /// How the image is audited, before and after.
    pub audit: Options,
    /// The form that the image gets.
    pub form: Form,
    /// Whether preambles of functions whose address nothing takes are poisoned.
    pub poison: bool,
}

impl Default for FinishOptions {
    fn default() -> Self {
        Self { audit: Options::default(), form: Form::Opt, poison: true }
    }
}

/// A finished image.
#[derive(Debug)]
pub struct Finished {
    /// The new file.
    pub data: Vec<u8>,
    /// Audit of the new file.
    pub report: Report,
    /// Bytes of the tables, and bytes that the section has.
    pub tables: (usize, usize),
    /// Static branches.
    pub branches: usize,
    /// Static calls.
    pub calls: usize,
    /// Poisoned functions.
    pub poisoned: usize,
    /// Returns that boot can make jumps to a thunk.
    pub returns: usize,
    /// What was proved of entry text; `None` if the image has none of this kernel.
    pub entry_text: Option<Proved>,
}

/// Finishes an image.
///
/// # Errors
/// [`Error::Refused`] with the first thing that is wrong; [`Error::NoSection`] when the linker
/// script has reserved no place; [`Error::Table`] when it is too small.
pub fn finish(data: &[u8], options: &FinishOptions) -> Result<Finished, Error> {
    let audit = examine(data, &options.audit)?;
    refuse(audit.report.violations().next())?;
    let section = audit.image.section(site_table::SECTION).ok_or(Error::NoSection)?;
    if section.writable || section.executable {
        return Err(Error::Refused(format!("{} must be read-only data", site_table::SECTION)));
    }
    let place = file_range(section.file_offset, section.bytes.len())?;

    let plan = Plan::new(&audit, options.poison)?;
    let mut text = FileText::new(data, &audit.image);
    plan.write_text(&mut text, options.form)?;
    let mut new = text.into_data();
    let room = new.get_mut(place.clone()).ok_or(Error::NoSection)?;
    let used = plan.contents(options.form).write(room).map_err(Error::Table)?;
    write_relocs(&audit.image, &mut new)?;
    let not = plan.calls.iter().map(|call| call.site).collect();
    let counted = call_depth::sites(&audit.image, &audit.scan, &not);
    call_depth::fill(&audit.image, &counted, &mut new).map_err(Error::Table)?;

    let report = examine(&new, &options.audit)?.report;
    refuse(report.violations().next())?;
    let entry_text = report.entry_text;
    Ok(Finished {
        data: new,
        report,
        tables: (used, place.len()),
        branches: plan.branches.len(),
        calls: plan.calls.len(),
        poisoned: plan.poisoned().count(),
        returns: plan.returns.len(),
        entry_text,
    })
}

/// Fills the table of what changes when the image is moved, if there is room for one. Only text
/// and tables differ from what was audited, and neither holds an address there.
fn write_relocs(image: &Image<'_>, new: &mut [u8]) -> Result<(), Error> {
    let Some(section) = image.section(relocs::SECTION) else { return Ok(()) };
    let wrong = |at: u64, what| Error::Refused(format!("{at:#x} {what}"));
    let (fields, _) = relocs::collect(image).map_err(|it| wrong(it.at, it.what))?;
    let room = new.get_mut(file_range(section.file_offset, section.bytes.len())?);
    let room = room.ok_or(Error::NoSection)?;
    let too_small = |_| wrong(section.address, "has not room for all that changes");
    relocs::write(&fields, room).map_err(too_small)?;
    Ok(())
}

fn refuse(finding: Option<&Finding>) -> Result<(), Error> {
    finding.map_or(Ok(()), |finding| Err(Error::Refused(finding.to_string())))
}

fn file_range(offset: u64, len: usize) -> Result<Range<usize>, Error> {
    let from = usize::try_from(offset).map_err(|_| Error::NoSection)?;
    Ok(from..from.checked_add(len).ok_or(Error::NoSection)?)
}

/// Everything that goes into the tables.
struct Plan {
    base: u64,
    thunk: Option<u64>,
    disp: i8,
    checks: Vec<CheckEntry>,
    functions: Vec<FunctionEntry>,
    thunks: Vec<ThunkEntry>,
    branches: Vec<BranchEntry>,
    calls: Vec<CallEntry>,
    returns: Vec<ReturnEntry>,
    return_thunk: Option<u64>,
    poison: bool,
    original: BTreeMap<u64, u32>,
}

impl Plan {
    fn new(audit: &Audit<'_>, poison: bool) -> Result<Self, Error> {
        let r11 = audit.thunks.iter().find(|(_, name)| name.ends_with("_r11"));
        let entry = entry_text(&audit.image);
        let mut plan = Self {
            base: 0,
            thunk: r11.map(|(&address, _)| address),
            disp: audit.report.hash_displacement.unwrap_or(preamble::Prefix::Nops11.disp()),
            checks: check_entries(audit)?,
            functions: Vec::new(),
            thunks: thunk_entries(audit)?,
            branches: static_branches(audit, &entry)?,
            calls: calls(audit, &entry)?,
            returns: returns::sites(&audit.image, &audit.scan)
                .into_iter()
                .map(|site| ReturnEntry { site })
                .collect(),
            return_thunk: audit.image.symbol(returns::THUNK),
            poison,
            original: audit.functions.iter().map(|(&at, f)| (at, f.hash)).collect(),
        };
        for (&function, f) in &audit.functions {
            let taken = f.taken.unwrap_or(true);
            let hash = if poison && !taken { POISON } else { f.hash };
            plan.functions.push(FunctionEntry { function, hash, taken });
        }
        plan.base = plan.lowest() & !(BASE_ALIGN - 1);
        Ok(plan)
    }

    /// Lowest address that a table names. Not the start of text: boot code lies far below it.
    fn lowest(&self) -> u64 {
        let sites = self.checks.iter().map(|entry| entry.site);
        let sites = sites.chain(self.functions.iter().map(|entry| entry.function));
        let sites = sites.chain(self.thunks.iter().map(|entry| entry.at));
        let sites = sites.chain(self.branches.iter().map(|entry| entry.site.min(entry.target)));
        let sites = sites.chain(self.calls.iter().map(|entry| entry.site));
        let sites = sites.chain(self.returns.iter().map(|entry| entry.site));
        sites.chain(self.thunk).min().unwrap_or_default()
    }

    fn contents(&self, form: Form) -> Contents<'_> {
        Contents {
            base: self.base,
            thunk: self.thunk,
            disp: self.disp,
            form: Some(form),
            checks: &self.checks,
            functions: &self.functions,
            thunks: &self.thunks,
            branches: &self.branches,
            calls: &self.calls,
            returns: &self.returns,
        }
    }

    fn poisoned(&self) -> impl Iterator<Item = &FunctionEntry> + Clone {
        let poison = self.poison;
        self.functions.iter().filter(move |function| poison && !function.taken)
    }

    fn write_text(&self, text: &mut FileText, form: Form) -> Result<(), Error> {
        let disp = self.disp;
        let refused = |anomaly: poke::Anomaly| Error::Refused(anomaly.to_string());
        let broken = |broken: poke::Broken| Error::Refused(broken.found.to_string());
        let sites = self.checks.iter().map(|entry| kcfi::Expect::table(entry, disp));
        let derive = |text: &FileText, expect| kcfi::reform(text, expect, form);
        let checks = poke::check(text, sites, derive).map_err(refused)?;
        let preambles = self.poisoned().map(|f| preamble::Expect {
            function: f.function,
            disp,
            hash: self.original.get(&f.function).copied().unwrap_or(POISON),
        });
        let derive = |text: &FileText, expect| preamble::set_hash(text, expect, POISON);
        let preambles = poke::check(text, preambles, derive).map_err(refused)?;
        let thunk = self.return_thunk.unwrap_or_default();
        let sites = self.returns.iter().map(|entry| entry.site);
        let derive = |text: &FileText, site| returns::make_plain(text, site, thunk);
        let returns = poke::check(text, sites, derive).map_err(refused)?;
        checks.apply(text).map_err(broken)?;
        returns.apply(text).map_err(broken)?;
        preambles.apply(text).map_err(broken)?;
        Ok(())
    }
}

/// Shape of the tail at `at`, which the walk knows to be `len` bytes long.
fn shape_at(image: &Image<'_>, at: u64, len: u8) -> Option<Shape> {
    let mut bytes = [0; tail::TAIL_MAX];
    let bytes = bytes.get_mut(..usize::from(len))?;
    image.read(at, bytes).ok()?;
    match tail::decode(at, bytes)? {
        Tail::Known { shape, .. } => Some(shape),
        Tail::Bare { .. } => None,
    }
}

fn check_entries(audit: &Audit<'_>) -> Result<Vec<CheckEntry>, Error> {
    let by_check: BTreeMap<u64, _> =
        audit.scan.branches.iter().filter_map(|b| Some((b.check?, b))).collect();
    let mut entries = Vec::new();
    for (&site, check) in &audit.scan.checks {
        let branch = by_check.get(&site).ok_or_else(|| at(audit, site, "has no branch"))?;
        let thunk = branch.kind.is_thunk();
        let shape = match shape_at(&audit.image, site + TAIL, branch.len) {
            Some(shape) if thunk && branch.at == site + TAIL => shape,
            _ if thunk => return Err(at(audit, site, "has a branch that cannot be rerouted")),
            _ => Shape { kind: BranchKind::Call, len: 6 },
        };
        entries.push(CheckEntry { site, hash: check.hash, shape, thunk });
    }
    Ok(entries)
}

fn thunk_entries(audit: &Audit<'_>) -> Result<Vec<ThunkEntry>, Error> {
    let unchecked = audit.scan.branches.iter().filter(|b| b.check.is_none() && b.kind.is_thunk());
    let entry = |b: &crate::scan::Branch| {
        let shape = shape_at(&audit.image, b.at, b.len);
        let shape = shape.ok_or_else(|| at(audit, b.at, "cannot be rerouted"))?;
        Ok(ThunkEntry { at: b.at, shape })
    };
    unchecked.map(entry).collect()
}

fn at(audit: &Audit<'_>, address: u64, what: &str) -> Error {
    let symbol = audit.image.symbolize(address).map_or("?", |symbol| symbol.name);
    Error::Refused(format!("{address:#x} ({symbol}) {what}"))
}

/// Address ranges of entry text.
pub(crate) fn entry_text(image: &Image<'_>) -> Vec<Range<u64>> {
    let section = image.section(ENTRY_TEXT).map(|piece| piece.address..piece.end());
    let bounds = ENTRY_BOUNDS.iter().filter_map(|names| {
        let [start, end] = names.map(|name| image.symbol(name));
        Some(start?..end?)
    });
    section.into_iter().chain(bounds).collect()
}

fn inside(ranges: &[Range<u64>], address: u64) -> bool {
    ranges.iter().any(|range| range.contains(&address))
}

fn static_branches(audit: &Audit<'_>, entry: &[Range<u64>]) -> Result<Vec<BranchEntry>, Error> {
    let Some(piece) = audit.image.section(JUMP_TABLE) else {
        return Ok(Vec::new());
    };
    let (raws, rest) = piece.bytes.as_chunks::<RAW_LEN>();
    if !rest.is_empty() {
        return Err(Error::Refused(format!("{JUMP_TABLE} is no whole number of entries")));
    }
    let mut branches = Vec::new();
    for (raw, address) in raws.iter().zip((piece.address..).step_by(RAW_LEN)) {
        let branch = jump_label::decode_raw(address, *raw);
        if let Err(anomaly) = jump_label::set(&audit.image, &branch, false) {
            return Err(at(audit, branch.site, &anomaly.to_string()));
        }
        if !audit.image.piece_at(branch.target).is_some_and(|piece| piece.executable) {
            return Err(at(audit, branch.site, "jumps out of text"));
        }
        if inside(entry, branch.site) && !branch.ro_after_init {
            return Err(at(audit, branch.site, "is a static branch in entry text"));
        }
        branches.push(branch);
    }
    branches.sort_by_key(|branch| branch.site);
    Ok(branches)
}

fn calls(audit: &Audit<'_>, entry: &[Range<u64>]) -> Result<Vec<CallEntry>, Error> {
    let refused = |wrong| static_calls::refused(&audit.image, &wrong);
    let trampolines = static_calls::trampolines(&audit.image).map_err(refused)?;
    static_calls::sites(&audit.image, &audit.scan, &trampolines, entry).map_err(refused)
}
