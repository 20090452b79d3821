//! The audit level: objtool counts the checks, traps and thunk calls of the kernel image and
//! compares them. Neighbours: `objtool`, and `check` which runs the same audit.

use std::path::Path;

use objtool::entry_text::Proved;

use super::{Context, Summary};
use crate::Error;

/// The ways in and out of `machine/src/entry/entry.S`, each of which the proof has to walk: SYSCALL
/// with and without isolated tables for each of four ways of tracking, a stub for each vector, the
/// four vectors that may hit anything, and the ways back: two each to programs, and theirs.
const WAYS: Proved = Proved { calls: 8, vectors: 256, paranoid: 4, exits: 5, instructions: 0 };

pub(super) fn run(context: &Context) -> Result<Summary, Error> {
    let clean = crate::check::audit(&context.kernel)?;
    let missed = missed(&objtool::audit_file(&context.kernel)?);
    missed.iter().for_each(|missed| println!("{missed}"));
    let late = late(&context.kernel)?;
    late.iter().for_each(|late| println!("{late}"));
    let passed = [clean, missed.is_none(), late.is_none()].map(usize::from).iter().sum();
    Ok(Summary { passed, failed: 3 - passed, ..Summary::default() })
}

/// Interrupts that earlier stores of their sender may follow: the receiver would not see why it was
/// interrupted. No emulator shows that.
fn late(kernel: &Path) -> Result<Option<String>, Error> {
    let commands = objtool::interrupt_commands(kernel)?;
    let is_good = commands.bare.is_empty() && commands.fenced > 0;
    Ok((!is_good).then(|| format!("writes to the x2APIC that send interrupts: {commands:x?}")))
}

/// What an audit has against this image, if anything.
pub(super) fn refusal(kernel: &Path) -> Option<String> {
    match objtool::audit_file(kernel) {
        Ok(report) => {
            let violation = report.violations().next().map(ToString::to_string);
            let late = late(kernel).unwrap_or_else(|error| Some(error.to_string()));
            violation.or(missed(&report)).or(late)
        }
        Err(error) => Some(error.to_string()),
    }
}

/// The paths that were not walked: an audit that looks at fewer than there are proves nothing.
fn missed(report: &objtool::Report) -> Option<String> {
    let walked = report.entry_text.map(|walked| Proved { instructions: 0, ..walked });
    (walked != Some(WAYS)).then(|| format!("entry text: not all ways are walked: {walked:?}"))
}
