//! Compares what three witnesses say about the checks of an image.
//!
//! 1. The compiler: `.kcfi_traps`, one entry per check, each naming its `ud2`.
//! 2. The linker: the relocations against `__x86_indirect_thunk_r11` that `--emit-relocs` keeps.
//! 3. The code: the walk of [`crate::scan`].
//!
//! The three sets of checks must be equal. Where an image lacks a witness (no relocations, no
//! symbols) the audit goes on with the others and says what it could not prove.

use std::collections::{BTreeMap, BTreeSet};

use object::elf;
use text_patching::kcfi::{self, CHECK_LEN, Check, Form};
use text_patching::site_table::{self, SiteTables, TableError};
use text_patching::{Text as _, preamble};

use crate::Error;
use crate::allow::{self, Allow};
use crate::elf::{Image, Reloc};
use crate::report::{Evidence, Finding, FindingKind, Report};
use crate::scan::{self, Branch, BranchKind, Scan, Thunks};
use crate::{
    call_depth, entry_text, finish, frames, landing, relocs, returns, scratch, static_calls,
    untrained,
};

/// Name of the compiler's table.
pub const TRAPS_SECTION: &str = ".kcfi_traps";
/// Symbols around it, Limen's and Linux's. They count before the section: a linker script may put
/// the table into another section, or padding in front of it.
pub const TRAPS_BOUNDS: [[&str; 2]; 2] =
    [["__kcfi_traps_start", "__kcfi_traps_end"], ["__start___kcfi_traps", "__stop___kcfi_traps"]];

/// Sections that name addresses of code without anybody calling them.
const DESCRIBE_CODE: [&str; 5] = [
    TRAPS_SECTION,
    static_calls::TRAMPOLINES,
    ".eh_frame",
    ".eh_frame_hdr",
    "__patchable_function_entries",
];

/// How strict an audit is.
#[derive(Clone, Debug)]
pub struct Options {
    /// Unchecked branches that are known and argued for.
    pub allow: Vec<Allow>,
    /// Whether a check whose hash no function carries is a finding. Images of others have them
    /// (a type of which every function was removed, or that nothing implements yet).
    pub strict_hashes: bool,
    /// Whether a large stack frame is a finding: of the image as it is shipped. One that is built
    /// in parts, or with its tests, has other frames.
    pub frames: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { allow: allow::limen(), strict_hashes: false, frames: false }
    }
}

/// Everything an audit knows; [`mod@crate::rewrite`] and [`mod@crate::finish`] go on from here.
#[derive(Debug)]
pub struct Audit<'a> {
    /// The image.
    pub image: Image<'a>,
    /// Its thunks.
    pub thunks: Thunks<'a>,
    /// The walk.
    pub scan: Scan,
    /// Functions with a preamble.
    pub functions: BTreeMap<u64, Function>,
    /// The verdict.
    pub report: Report,
}

/// A function that carries a hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Function {
    /// Its type hash.
    pub hash: u32,
    /// Whether something takes its address; `None` when that cannot be known.
    pub taken: Option<bool>,
}

/// Audits an image.
///
/// # Errors
/// When `data` is no x86-64 image. What is wrong with the image itself is in the report.
pub fn audit(data: &[u8], options: &Options) -> Result<Report, Error> {
    Ok(examine(data, options)?.report)
}

/// As [`audit`], keeping everything that was found.
///
/// # Errors
/// As [`audit`].
pub fn examine<'a>(data: &'a [u8], options: &Options) -> Result<Audit<'a>, Error> {
    let image = Image::parse(data)?;
    let mut thunks = scan::thunks(&image);
    let mut scan = scan::scan(&image, &thunks);
    if thunks.is_empty() && !scan.behind_checks.is_empty() {
        thunks = scan::infer_thunk(&scan);
        scan = scan::scan(&image, &thunks);
    }
    let mut audit =
        Audit { image, thunks, scan, functions: BTreeMap::new(), report: Report::default() };
    audit.evidence();
    audit.compare_traps();
    audit.compare_relocations();
    audit.compare_checks();
    audit.compare_site_tables();
    audit.static_calls();
    audit.returns();
    audit.entry_text();
    audit.untrained();
    audit.scratch();
    audit.frames(options.frames);
    audit.landing(data);
    audit.call_depth(data);
    audit.moves();
    audit.find_functions(options.strict_hashes);
    audit.branches();
    audit.finish(options);
    Ok(audit)
}

impl Audit<'_> {
    fn evidence(&mut self) {
        let image = &self.image;
        let evidence = Evidence {
            sections: image.has_sections,
            symbols: image.symbols.len(),
            relocations: image.relocs.len(),
            traps: traps(image).is_some(),
        };
        let missing = [
            (evidence.sections, "no section headers: data in executable segments is read as code"),
            (evidence.symbols > 0, "no symbols: thunks, functions and allowed places are unknown"),
            (
                image.has_text_relocs(),
                "no relocations of code: thunk calls are found by decoding only, \
                and which functions have their address taken is unknown",
            ),
            (evidence.traps, "no .kcfi_traps: checks are found by decoding only"),
        ];
        for (there, text) in missing {
            if !there {
                self.report.not_proved.push(text.into());
            }
        }
        self.report.evidence = evidence;
        self.report.counts.text_bytes = image.text().map(|piece| piece.bytes.len()).sum();
        self.report.counts.undecodable = self.scan.undecodable;
    }

    fn note(&mut self, kind: FindingKind, address: u64, detail: String) {
        let symbol = self.image.symbolize(address).map_or("", |symbol| symbol.name).to_owned();
        self.report.findings.push(Finding { kind, address, symbol, detail, allowed: None });
    }

    /// Witness 1 against witness 3.
    fn compare_traps(&mut self) {
        let Some((address, bytes)) = traps(&self.image) else {
            return;
        };
        let mut sites = BTreeSet::new();
        let mut bad = Vec::new();
        let (entries, rest) = bytes.as_chunks::<4>();
        if !rest.is_empty() {
            bad.push((address, "section size is no multiple of 4".to_owned()));
        }
        self.report.counts.traps = entries.len();
        for (entry, at) in entries.iter().zip((address..).step_by(4)) {
            let trap = at.wrapping_add_signed(i64::from(i32::from_le_bytes(*entry)));
            let site = trap.wrapping_sub(kcfi::TRAP_UD2);
            if !self.image.piece_at(site).is_some_and(|piece| piece.executable) {
                bad.push((at, format!("points to {trap:#x}, which is not text")));
            } else if let Err(anomaly) = kcfi::decode_at(&self.image, site) {
                bad.push((site, anomaly.to_string()));
            } else if !sites.insert(site) {
                bad.push((site, "named twice".to_owned()));
            }
        }
        for (address, detail) in bad {
            self.note(FindingKind::BadTrap, address, detail);
        }
        let walked: BTreeSet<u64> = self.scan.checks.keys().copied().collect();
        let unnamed: Vec<u64> = walked.difference(&sites).copied().collect();
        for site in unnamed {
            self.note(FindingKind::CheckWithoutTrap, site, "check decoded here".into());
        }
        let unseen: Vec<u64> = sites.difference(&walked).copied().collect();
        for site in unseen {
            self.note(FindingKind::CheckNotInCode, site, "named by the table".into());
        }
    }

    /// Witness 2 against witness 3: every relocation against a thunk is a branch that the walk
    /// has found, and the other way round.
    fn compare_relocations(&mut self) {
        if !self.image.has_text_relocs() || self.thunks.is_empty() {
            return;
        }
        let by_end: BTreeMap<u64, Branch> = self
            .scan
            .branches
            .iter()
            .filter(|branch| branch.kind.is_thunk())
            .map(|branch| (branch.at + u64::from(branch.len), *branch))
            .collect();
        let mut named = BTreeSet::new();
        let mut unknown = Vec::new();
        for reloc in &self.image.relocs {
            if !self.is_thunk_reference(reloc) {
                continue;
            }
            // The field is the last four bytes of the instruction.
            let end = reloc.at.wrapping_add(4);
            if by_end.contains_key(&end) {
                named.insert(end);
            } else {
                unknown.push(reloc.at);
            }
        }
        let unnamed = by_end.iter().filter(|(end, _)| !named.contains(end));
        let unnamed: Vec<u64> = unnamed.map(|(_, branch)| branch.at).collect();
        let checked = named.iter().filter_map(|end| by_end.get(end)?.check).count();
        self.report.counts.checks_by_relocation = checked;
        for at in unknown {
            self.note(FindingKind::RelocationMismatch, at, "no branch decoded here".into());
        }
        for at in unnamed {
            self.note(FindingKind::RelocationMismatch, at, "branch without relocation".into());
        }
    }

    fn is_thunk_reference(&self, reloc: &Reloc) -> bool {
        let relative = matches!(reloc.kind, elf::R_X86_64_PC32 | elf::R_X86_64_PLT32);
        let target = reloc.symbol.wrapping_add_signed(reloc.addend).wrapping_add(4);
        let text = self.image.piece_at(reloc.at).is_some_and(|piece| piece.executable);
        relative && text && self.thunks.contains_key(&target)
    }

    /// A finished image carries its own account of its checks: a fourth witness.
    fn compare_site_tables(&mut self) {
        let relocated = crate::rewrite::relocated_sites(self);
        for site in relocated {
            self.note(FindingKind::RelocationInCheck, site, "bytes are not final".into());
        }
        let Some(piece) = self.image.section(site_table::SECTION) else {
            return;
        };
        let (address, bytes) = (piece.address, piece.bytes);
        let mut wrong = Vec::new();
        match SiteTables::parse(bytes) {
            Err(TableError::NotFilled) => {
                self.report.not_proved.push("site tables are reserved but not filled".into());
            }
            Err(error) => wrong.push((address, error.to_string())),
            Ok(tables) => {
                let own: BTreeMap<u64, u32> =
                    tables.checks().iter().map(|entry| (entry.site, entry.hash)).collect();
                for (&site, check) in &self.scan.checks {
                    if own.get(&site) != Some(&check.hash) || check.form != tables.form() {
                        wrong.push((site, "the table has no such check".into()));
                    }
                }
                let stale = own.keys().filter(|site| !self.scan.checks.contains_key(site));
                wrong.extend(stale.map(|&site| (site, "the table names a check".into())));
            }
        }
        for (address, detail) in wrong {
            self.note(FindingKind::SiteTable, address, detail);
        }
    }

    /// Static calls: only direct calls, as many as there are callees.
    fn static_calls(&mut self) {
        let mut wrong = Vec::new();
        self.report.static_calls = static_calls::prove(&self.image, &self.scan, &mut wrong);
        for (address, detail) in wrong {
            self.note(FindingKind::StaticCall, address, detail);
        }
    }

    fn returns(&mut self) {
        let ranges = finish::entry_text(&self.image);
        let mut wrong = Vec::new();
        self.report.returns = returns::prove(&self.image, &self.scan, &ranges, &mut wrong);
        for (address, detail) in wrong {
            self.note(FindingKind::Return, address, detail);
        }
    }

    fn entry_text(&mut self) {
        let ranges = finish::entry_text(&self.image);
        match entry_text::prove(&self.image, &ranges) {
            Ok(proved) => self.report.entry_text = proved,
            Err(broken) => self.note(FindingKind::EntryText, broken.at, broken.what.into()),
        }
    }

    fn untrained(&mut self) {
        let ranges = finish::entry_text(&self.image);
        match untrained::prove(&self.image, &ranges) {
            Ok(proved) => self.report.untrained = proved,
            Err(broken) => self.note(FindingKind::Return, broken.at, broken.what.into()),
        }
    }

    fn scratch(&mut self) {
        match scratch::prove(&self.image, &self.scan) {
            Ok(proved) => self.report.scratch = proved,
            Err(broken) => self.note(FindingKind::Return, broken.at, broken.what.into()),
        }
    }

    fn frames(&mut self, strict: bool) {
        let mut wrong = Vec::new();
        self.report.frames = frames::prove(&self.image, &mut wrong);
        for (address, detail) in wrong.into_iter().filter(|_| strict) {
            self.note(FindingKind::Frame, address, detail);
        }
    }

    fn call_depth(&mut self, data: &[u8]) {
        let ranges = finish::entry_text(&self.image);
        match call_depth::prove(data, &self.image, &self.scan, &ranges) {
            Ok(proved) => self.report.call_depth = proved,
            Err((at, what)) => self.note(FindingKind::Return, at, what),
        }
    }

    fn landing(&mut self, data: &[u8]) {
        match landing::prove(data, &self.image) {
            Ok(proved) => self.report.landing = proved,
            Err((at, what)) => self.note(FindingKind::Landing, at, what),
        }
    }

    fn moves(&mut self) {
        match relocs::prove(&self.image) {
            Ok(totals) => self.report.moves = totals,
            Err(wrong) => self.note(FindingKind::Move, wrong.at, wrong.what.into()),
        }
    }

    /// What all checks must have in common, and that each guards a branch.
    fn compare_checks(&mut self) {
        let checks: Vec<(u64, Check)> = self.scan.checks.iter().map(|(&a, &c)| (a, c)).collect();
        let counts = &mut self.report.counts;
        counts.checks = checks.len();
        for (_, check) in &checks {
            match check.form {
                Form::Kcfi => counts.form_kcfi += 1,
                Form::Opt => counts.form_opt += 1,
                _ => counts.form_off += 1,
            }
        }
        let form = majority(checks.iter().map(|(_, check)| check.form));
        let disp = majority(checks.iter().map(|(_, check)| check.disp));
        self.report.hash_displacement = disp;
        let guarded: BTreeSet<u64> =
            self.scan.branches.iter().filter_map(|branch| branch.check).collect();
        for (site, check) in checks {
            if Some(check.disp) != disp {
                self.note(FindingKind::Displacement, site, format!("reads at {}", check.disp));
            }
            if Some(check.form) != form {
                self.note(FindingKind::MixedForms, site, check.form.name().into());
            }
            if !guarded.contains(&site) {
                let detail = format!("register {}", check.register);
                self.note(FindingKind::CheckWithoutBranch, site, detail);
            }
        }
    }

    /// Functions with a hash, whether their address is taken, and checks that fit none.
    fn find_functions(&mut self, strict: bool) {
        let disp = self.report.hash_displacement.unwrap_or(preamble::Prefix::Nops11.disp());
        let taken = self.taken_addresses();
        let is_of_compiler = |name: &str| name.starts_with(PREAMBLE);
        let preambles = self.image.symbols.iter().filter(|symbol| is_of_compiler(symbol.name));
        let preambles: BTreeSet<u64> = preambles.map(|symbol| symbol.address).collect();
        for symbol in &self.image.symbols {
            let is_text = self.image.piece_at(symbol.address).is_some_and(|p| p.executable);
            let is_prefix = is_of_compiler(symbol.name) || symbol.name.starts_with("__pfx_");
            if !symbol.function || is_prefix || !is_text {
                continue;
            }
            let taken = taken.as_ref().map(|taken| taken.contains(&symbol.address));
            match preamble_of(&self.image, symbol.address, disp, &preambles) {
                Some(hash) => {
                    self.functions.insert(symbol.address, Function { hash, taken });
                }
                None if taken == Some(true) => self.report.counts.taken_without_preamble += 1,
                None => {}
            }
        }
        let hashes = self.functions.values().map(|f| f.hash);
        let hashes: BTreeSet<u32> = hashes.filter(|&hash| hash != preamble::POISON).collect();
        let orphans: Vec<(u64, u32)> = self
            .scan
            .checks
            .iter()
            .filter(|(_, check)| !hashes.contains(&check.hash))
            .map(|(&site, check)| (site, check.hash))
            .collect();
        let counts = &mut self.report.counts;
        counts.preambles = self.functions.len();
        counts.hashes = hashes.len();
        counts.orphans = orphans.len();
        counts.poisonable = self.functions.values().filter(|f| f.taken == Some(false)).count();
        if strict {
            for (site, hash) in orphans {
                self.note(FindingKind::OrphanHash, site, format!("{hash:#010x}"));
            }
        }
    }

    /// Every address that data or code holds, as far as relocations tell; `None` without them.
    ///
    /// Conservative: whatever is not the displacement of a direct call or jump counts as taken.
    fn taken_addresses(&self) -> Option<BTreeSet<u64>> {
        if !self.image.has_text_relocs() {
            return None;
        }
        let mut taken: BTreeSet<u64> = self.scan.lea_targets.iter().copied().collect();
        for reloc in &self.image.relocs {
            let value = reloc.symbol.wrapping_add_signed(reloc.addend);
            let relative = matches!(reloc.kind, elf::R_X86_64_PC32 | elf::R_X86_64_PLT32);
            let Some(piece) = self.image.piece_at(reloc.at) else {
                continue;
            };
            let name = piece.name.as_str();
            if relative && piece.executable || DESCRIBE_CODE.contains(&name) {
                continue;
            }
            // PC-relative forms other than PC32 carry the same bias of four.
            taken.insert(value);
            taken.insert(value.wrapping_add(4));
        }
        Some(taken)
    }

    /// Unchecked branches.
    fn branches(&mut self) {
        let branches = std::mem::take(&mut self.scan.branches);
        for branch in &branches {
            let counts = &mut self.report.counts;
            match branch.kind {
                BranchKind::ThunkCall => counts.thunk_calls += 1,
                BranchKind::ThunkJump => counts.thunk_jumps += 1,
                BranchKind::ThunkJcc => {}
                _ => counts.bare_branches += 1,
            }
            if branch.check.is_some() {
                continue;
            }
            let kind = match branch.kind {
                BranchKind::ThunkJcc => FindingKind::ConditionalThunk,
                BranchKind::Got => FindingKind::GotCall,
                _ => FindingKind::UncheckedBranch,
            };
            self.note(kind, branch.at, branch.kind.name().into());
        }
        self.scan.branches = branches;
    }

    /// Applies the allow list and counts.
    fn finish(&mut self, options: &Options) {
        let report = &mut self.report;
        for finding in &mut report.findings {
            if finding.kind == FindingKind::UncheckedBranch {
                let allow = options.allow.iter().find(|allow| allow.covers(&finding.symbol));
                finding.allowed = allow.map(|allow| allow.why.clone());
            }
            let branch = matches!(
                finding.kind,
                FindingKind::UncheckedBranch | FindingKind::ConditionalThunk | FindingKind::GotCall
            );
            match (branch, &finding.allowed) {
                (true, None) => report.counts.unchecked += 1,
                (true, Some(_)) => report.counts.allowed += 1,
                (false, _) => {}
            }
        }
        report.findings.sort_by_key(|finding| (finding.kind, finding.address));
        if report.counts.undecodable > 0 {
            let count = report.counts.undecodable;
            report.not_proved.push(format!("{count} bytes of text decode to no instruction"));
        }
    }
}

/// Address and bytes of the compiler's trap table.
fn traps<'a>(image: &Image<'a>) -> Option<(u64, &'a [u8])> {
    let bounded = TRAPS_BOUNDS.iter().find_map(|[start, end]| {
        let start = image.symbol(start)?;
        Some((start, image.between(start, image.symbol(end)?)?))
    });
    let section = || image.section(TRAPS_SECTION).map(|piece| (piece.address, piece.bytes));
    bounded.or_else(section)
}

/// What the compiler calls a function's preamble, before the function's name.
pub(crate) const PREAMBLE: &str = "__cfi_";

/// The hash before a function. Between it and the function stand only the NOPs that the compiler
/// left for patching. In front of a label of assembly `b8 imm32` may be other code, whole or the
/// end of a branch's displacement; rewriting that would change what the code does: where the image
/// names its `preambles`, only those are.
fn preamble_of(
    image: &Image<'_>,
    function: u64,
    disp: i8,
    preambles: &BTreeSet<u64>,
) -> Option<u32> {
    const NOP: u8 = 0x90;
    const ALIGNED: u64 = 16;
    let start = preamble::address(function, disp);
    // The name may stand before NOPs that align the function.
    let is_named = || preambles.range(start.wrapping_sub(ALIGNED)..=start).next().is_some();
    if !preambles.is_empty() && !is_named() {
        return None;
    }
    let mut bytes = [0; 5];
    image.read(start, &mut bytes).ok()?;
    let hash = preamble::decode(function, bytes).ok()?.hash;
    for at in start + 5..function {
        let mut byte = [0];
        image.read(at, &mut byte).ok()?;
        if byte[0] != NOP {
            return None;
        }
    }
    Some(hash)
}

fn majority<T: Copy + Ord>(values: impl Iterator<Item = T>) -> Option<T> {
    let mut counts = BTreeMap::new();
    for value in values {
        *counts.entry(value).or_insert(0_usize) += 1;
    }
    counts.into_iter().max_by_key(|&(_, count)| count).map(|(value, _)| value)
}

const _: () = assert!(CHECK_LEN as u64 == kcfi::TAIL, "the tail follows the check");
