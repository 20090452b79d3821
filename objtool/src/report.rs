//! What an audit says, for people and for programs.

use std::fmt;

use serde::Serialize;

use crate::call_depth::CallDepth;
use crate::entry_text::Proved;
use crate::frames::Frames;
use crate::landing::Landing;
use crate::relocs;
use crate::returns::Returns;
use crate::scratch::Scratch;
use crate::static_calls::Totals;
use crate::untrained::Untrained;

/// Class of a finding. Each one makes the audit fail unless the allow list covers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum FindingKind {
    /// An indirect branch without a check in front of it.
    UncheckedBranch,
    /// A conditional jump to a thunk: the compiler has dropped the check of a tail call.
    ConditionalThunk,
    /// A call or jump through the global offset table.
    GotCall,
    /// `.kcfi_traps` names a place that is no check.
    BadTrap,
    /// A check that `.kcfi_traps` does not name: its trap would not be recognised.
    CheckWithoutTrap,
    /// A check that the table names but no walk of the code comes across.
    CheckNotInCode,
    /// A relocation against a thunk that is no checked call or jump as the walk sees it.
    RelocationMismatch,
    /// A relocation patches bytes of a check when the image is loaded.
    RelocationInCheck,
    /// The image's own site tables and its code disagree.
    SiteTable,
    /// A check that reads the hash elsewhere than most others.
    Displacement,
    /// A check whose form differs from the first one's.
    MixedForms,
    /// A check with nothing behind it that branches to the register it checked.
    CheckWithoutBranch,
    /// A return that no mitigation reaches, or a thunk in the wrong place.
    Return,
    /// Entry code uses what may lag behind on a CPU that has not caught up.
    EntryText,
    /// Indirect branches could land elsewhere than at landing pads, or not where they should.
    Landing,
    /// A function takes more of the kernel's stack than the limit.
    Frame,
    /// A static call, or a chain of them, is not made of direct calls to its own callees.
    StaticCall,
    /// A place that would be wrong once the image is moved, or a table of such places that is.
    Move,
    /// A check for a hash that no function carries: it can only trap. Strict audits only.
    OrphanHash,
}

impl FindingKind {
    /// One line for people.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::UncheckedBranch => "indirect branch without a check",
            Self::ConditionalThunk => "conditional jump to a thunk",
            Self::GotCall => "branch through the GOT",
            Self::BadTrap => "trap entry is no check",
            Self::CheckWithoutTrap => "check without a trap entry",
            Self::CheckNotInCode => "trap entry not reached by the code walk",
            Self::RelocationMismatch => "thunk relocation is no known branch",
            Self::RelocationInCheck => "relocation inside a check",
            Self::SiteTable => "site tables disagree",
            Self::Displacement => "hash displacement differs",
            Self::MixedForms => "form differs",
            Self::CheckWithoutBranch => "check without a branch",
            Self::Return => "return",
            Self::EntryText => "entry text breaks a rule",
            Self::Landing => "landing pads",
            Self::Frame => "large stack frame",
            Self::StaticCall => "static call is not as its table says",
            Self::Move => "the image cannot be moved",
            Self::OrphanHash => "hash that no function carries",
        }
    }
}

/// One thing that is wrong, or allowed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Class.
    pub kind: FindingKind,
    /// Virtual address.
    pub address: u64,
    /// Symbol it is in, demangled by nobody; empty when there is none.
    pub symbol: String,
    /// Particulars.
    pub detail: String,
    /// The allow list's reason, if it covers this.
    pub allowed: Option<String>,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, symbol, detail, .. } = self;
        write!(f, "{address:#018x} {symbol}: {} ({detail})", self.kind.text())
    }
}

/// What the image offered to the audit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Evidence {
    /// Section headers.
    pub sections: bool,
    /// Number of symbols.
    pub symbols: usize,
    /// Number of relocations of loaded sections.
    pub relocations: usize,
    /// `.kcfi_traps` is there.
    pub traps: bool,
}

/// Totals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Checks that the walk of the code found.
    pub checks: usize,
    /// Entries of `.kcfi_traps`.
    pub traps: usize,
    /// Checks in front of the branches that relocations against a thunk name.
    pub checks_by_relocation: usize,
    /// Checks in the compiler's form.
    pub form_kcfi: usize,
    /// Checks in the optimised form.
    pub form_opt: usize,
    /// Checks that are jumped over.
    pub form_off: usize,
    /// Calls through a thunk.
    pub thunk_calls: usize,
    /// Jumps through a thunk.
    pub thunk_jumps: usize,
    /// Indirect branches without a thunk, checked or not.
    pub bare_branches: usize,
    /// Indirect branches without a check that nothing allows.
    pub unchecked: usize,
    /// Those that the allow list covers.
    pub allowed: usize,
    /// Functions with a preamble.
    pub preambles: usize,
    /// Distinct hashes of functions.
    pub hashes: usize,
    /// Checks whose hash no function carries.
    pub orphans: usize,
    /// Functions with a preamble whose address nothing takes (0 when it cannot be known).
    pub poisonable: usize,
    /// Functions without a preamble whose address something takes.
    pub taken_without_preamble: usize,
    /// Bytes of executable code.
    pub text_bytes: usize,
    /// Bytes of it that decode to no instruction.
    pub undecodable: u64,
}

/// The result of an audit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// What there was to go by.
    pub evidence: Evidence,
    /// Totals.
    pub counts: Counts,
    /// Static calls.
    pub static_calls: Totals,
    /// What was proved of returns; `None` if the image has no thunk for them, or no tables.
    pub returns: Option<Returns>,
    /// What was proved of entry text; `None` if the image has none of this kernel.
    pub entry_text: Option<Proved>,
    /// What was proved of calls that can be counted; `None` if the image has no list of them.
    pub call_depth: Option<CallDepth>,
    /// What was proved of ways in where returns are untrained; `None` if nothing untrains.
    pub untrained: Option<Untrained>,
    /// What was proved of the register that returns may change; `None` if none does.
    pub scratch: Option<Scratch>,
    /// What functions take of the stack; `None` if the image is none of this kernel.
    pub frames: Option<Frames>,
    /// What was proved of landing pads; `None` if the image was not built for them.
    pub landing: Option<Landing>,
    /// What changes when the image is moved; `None` if it is not made for that.
    pub moves: Option<relocs::Totals>,
    /// Displacement that all checks use, if they agree.
    pub hash_displacement: Option<i8>,
    /// Everything wrong or allowed.
    pub findings: Vec<Finding>,
    /// What could not be proved, and why.
    pub not_proved: Vec<String>,
}

impl Report {
    /// Whether nothing is wrong that the allow list does not cover.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.violations().next().is_none()
    }

    /// Findings that nothing allows.
    pub fn violations(&self) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(|finding| finding.allowed.is_none())
    }

    /// One JSON object.
    #[must_use]
    pub fn to_json(&self) -> String {
        // Strings, numbers and sequences only: serialisation has nothing that could fail.
        let mut value = serde_json::to_value(self).unwrap_or_default();
        if let Some(object) = value.as_object_mut() {
            object.insert("clean".into(), self.is_clean().into());
        }
        value.to_string()
    }
}

/// Findings of one class that the table prints in full.
const SHOWN_MAX: usize = 20;

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.counted(f)?;
        self.proved(f)?;
        for allowed in [false, true] {
            self.list(f, allowed)?;
        }
        for line in &self.not_proved {
            writeln!(f, "not proved: {line}")?;
        }
        writeln!(f, "{}", if self.is_clean() { "clean" } else { "NOT CLEAN" })
    }
}

impl Report {
    /// What the image has of each kind.
    fn counted(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let c = &self.counts;
        let disp = self.hash_displacement.map_or("none".into(), |disp| disp.to_string());
        writeln!(
            f,
            "kCFI checks      {:>8}  (kcfi {}, opt {}, off {}; hash at {disp})",
            c.checks, c.form_kcfi, c.form_opt, c.form_off
        )?;
        writeln!(f, "trap entries     {:>8}", c.traps)?;
        writeln!(f, "by relocation    {:>8}", c.checks_by_relocation)?;
        writeln!(f, "thunk calls      {:>8}", c.thunk_calls)?;
        writeln!(f, "thunk jumps      {:>8}", c.thunk_jumps)?;
        writeln!(f, "without a thunk  {:>8}", c.bare_branches)?;
        writeln!(f, "unchecked        {:>8}  (and {} allowed)", c.unchecked, c.allowed)?;
        writeln!(
            f,
            "preambles        {:>8}  ({} hashes, {} checks fit none)",
            c.preambles, c.hashes, c.orphans
        )?;
        writeln!(f, "never taken      {:>8}  (functions that can be poisoned)", c.poisonable)?;
        writeln!(f, "text bytes       {:>8}  ({} undecodable)", c.text_bytes, c.undecodable)?;
        let s = &self.static_calls;
        if s.calls > 0 {
            writeln!(
                f,
                "static calls     {:>8}  ({} places in code; {} with no callee, {} with one)",
                s.calls, s.sites, s.alone[0], s.alone[1]
            )?;
            writeln!(
                f,
                "chained callees  {:>8}  ({} direct calls in chains; {} callees in all)",
                s.chained, s.chain_calls, s.callees
            )?;
        }
        if let Some(r) = &self.returns {
            writeln!(
                f,
                "returns          {:>8}  ({} by relocation; {} more stay plain)",
                r.sites, r.by_relocation, r.plain
            )?;
        }
        Ok(())
    }

    /// What was shown of it, where that was asked.
    fn proved(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(p) = &self.entry_text {
            writeln!(
                f,
                "entry text paths {:>8}  ({} calls, {} vectors, {} paranoid, {} ways out)",
                p.instructions, p.calls, p.vectors, p.paranoid, p.exits
            )?;
        }
        if let Some(u) = &self.untrained {
            writeln!(
                f,
                "untrained before {:>8}  (a return: {} calls, {} vectors, {} paranoid, {} behind \
                 guests)",
                u.instructions, u.calls, u.vectors, u.paranoid, u.guests
            )?;
        }
        if let Some(s) = &self.scratch {
            writeln!(
                f,
                "R11 is not read  {:>8}  (instructions behind {} calls)",
                s.instructions, s.returned_to
            )?;
        }
        if let Some(s) = &self.frames {
            writeln!(
                f,
                "largest frame    {:>8}  (bytes, of {} functions; {} above {})",
                s.largest,
                s.functions,
                s.large,
                crate::frames::LARGE
            )?;
            let (bytes, chain) = &s.deepest;
            writeln!(f, "deepest calls    {bytes:>8}  (bytes, by {} direct calls)", chain.len())?;
        }
        if let Some(c) = &self.call_depth {
            writeln!(
                f,
                "counted calls    {:>8}  (of {} functions; {} more are not counted)",
                c.calls, c.functions, c.uncounted
            )?;
        }
        if let Some(l) = &self.landing {
            writeln!(
                f,
                "landing pads     {:>8}  (of {} callers; {} functions sealed; {} ways in)",
                l.pads, l.callers, l.sealed, l.entries
            )?;
        }
        if let Some(m) = &self.moves {
            writeln!(
                f,
                "moving addresses {:>8}  ({} of 32 bits, {} of 64, {} of other areas; {} \
                 differences stay)",
                m.image32 + m.image64 + m.areas,
                m.image32,
                m.image64,
                m.areas,
                m.relative
            )?;
        }
        Ok(())
    }

    fn list(&self, f: &mut fmt::Formatter<'_>, allowed: bool) -> fmt::Result {
        let mut last = None;
        let mut shown = 0;
        let mut left = 0;
        for finding in self.findings.iter().filter(|x| x.allowed.is_some() == allowed) {
            if last != Some(finding.kind) {
                more(f, &mut left)?;
                shown = 0;
                last = Some(finding.kind);
            }
            if shown == SHOWN_MAX {
                left += 1;
                continue;
            }
            shown += 1;
            let Finding { address, symbol, detail, .. } = finding;
            let verdict = finding.allowed.as_deref().unwrap_or("VIOLATION");
            let what = finding.kind.text();
            writeln!(f, "  {address:#018x} {symbol}: {what} ({detail}): {verdict}")?;
        }
        more(f, &mut left)
    }
}

fn more(f: &mut fmt::Formatter<'_>, left: &mut usize) -> fmt::Result {
    if *left > 0 {
        writeln!(f, "  ... and {left} more of these")?;
    }
    *left = 0;
    Ok(())
}
