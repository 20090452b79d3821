//! The audit level: objtool counts the checks, traps and thunk calls of the kernel image and
//! compares them. Neighbours: `objtool`, and `check` which runs the same audit.

use std::path::Path;

use objtool::entry_text::Proved;
use objtool::ordering::Place;
use objtool::untrained::Untrained;
use objtool::{Finding, FindingKind};

use super::{Context, Summary};
use crate::Error;

/// The ways in and out of `machine/src/entry/entry.S`, each of which the proof has to walk: SYSCALL
/// with isolated tables, without, and with shadow stacks for each of four ways of tracking, and
/// with isolated tables for a fifth; a stub for each vector, the four vectors that may hit
/// anything, and the ways back: to programs, theirs, to a guest of AMD's, and to one of Intel's and
/// out of it.
const WAYS: Proved = Proved { calls: 13, vectors: 256, paranoid: 4, exits: 8, instructions: 0 };

/// The ways into it, each of which must have untrained returns before the first of them, where that
/// is chosen: the same, and behind the exits of guests of AMD's and of Intel's.
const INTO: Untrained =
    Untrained { calls: 13, vectors: 256, paranoid: 4, guests: 2, instructions: 0 };

pub(super) fn run(context: &Context) -> Result<Summary, Error> {
    let clean = crate::check::audit(&context.kernel)?;
    let missed = missed(&objtool::audit_file(&context.kernel)?);
    missed.iter().for_each(|missed| failed!("{missed}"));
    let unordered = unordered(&context.kernel)?;
    unordered.iter().for_each(|why| failed!("{why}"));
    let passed = [clean, missed.is_none(), unordered.is_none()].map(usize::from).iter().sum();
    Ok(Summary { passed, failed: 3 - passed, ..Summary::default() })
}

/// Places whose order no emulator violates, each of which the image has to have: an interrupt that
/// its reason follows, a deadline that its mode overtakes, GS used too early, translations dropped
/// before the CPU has said that it is in the kernel, old code executed.
const ORDERED: [Place; 6] =
    [Place::Command, Place::Deadline, Place::GsBase, Place::Swapgs, Place::Cr3, Place::Serialize];

fn unordered(kernel: &Path) -> Result<Option<String>, Error> {
    let found = objtool::ordering_file(kernel)?;
    let is_there = ORDERED.iter().all(|&place| found.count(place) > 0);
    let is_good = found.bad.is_empty() && is_there;
    Ok((!is_good).then(|| format!("order that hardware needs: {found:x?}")))
}

/// What an audit has against this image, if anything.
pub(super) fn refusal(kernel: &Path) -> Option<String> {
    match objtool::audit_file(kernel) {
        Ok(report) => {
            // Frames are those of a build in parts.
            let counts = |it: &&Finding| it.kind != FindingKind::Frame;
            let violation = report.violations().find(counts).map(ToString::to_string);
            let unordered = unordered(kernel).unwrap_or_else(|error| Some(error.to_string()));
            violation.or(missed(&report)).or(unordered)
        }
        Err(error) => Some(error.to_string()),
    }
}

/// The paths and returns that were not walked: an audit that looks at fewer than there are proves
/// nothing.
fn missed(report: &objtool::Report) -> Option<String> {
    if report.returns.is_none_or(|returns| returns.by_relocation == 0) {
        return Some("returns: none was looked at".into());
    }
    if report.call_depth.is_none_or(|counted| counted.calls == 0) {
        return Some("calls that can be counted: none was looked at".into());
    }
    let untrained = report.untrained.map(|walked| Untrained { instructions: 0, ..walked });
    if untrained != Some(INTO) {
        return Some(format!("untrained: not all ways in are walked: {untrained:?}"));
    }
    let walked = report.entry_text.map(|walked| Proved { instructions: 0, ..walked });
    (walked != Some(WAYS)).then(|| format!("entry text: not all ways are walked: {walked:?}"))
}
