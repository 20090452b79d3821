//! `limen bench cfi`: the price of kCFI's call sequences, natively, in user mode.
//!
//! An emulator has no branch predictor, so this one measures the host's CPU. The program measures
//! and prints; here it is built, told which bytes the shipped kernel has (objtool knows, from the
//! image's own tables), and started.

use std::process::Command;

use crate::args::BenchArgs;
use crate::{Error, paths};

const PACKAGE: &str = "limen-bench-cfi";

pub(super) fn command(args: &BenchArgs) -> Result<u8, Error> {
    let kernel = paths::kernel_image(args.kernel.as_deref())?;
    let sequence = objtool::sequence(&std::fs::read(&kernel)?)?;
    let hex: String = sequence.bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    say!(
        "sequence {hex} at {:#x} of {}; {} of {} checked calls have it, but for hash and thunk",
        sequence.site,
        kernel.display(),
        sequence.same,
        sequence.calls
    );
    let mut bench = Command::new(super::build(PACKAGE)?);
    bench.arg("--like").arg(hex);
    bench.args(args.json.then_some("--json")).args(args.tiny.then_some("--tiny"));
    if let Some(svg) = &args.svg {
        bench.arg("--svg").arg(svg);
    }
    let status = bench.status()?;
    Ok(u8::from(!status.success()))
}

/// The smallest run: does the program measure the shipped kernel's bytes?
pub(crate) fn tiny(kernel: &std::path::Path) -> Result<bool, Error> {
    let sequence = objtool::sequence(&std::fs::read(kernel)?)?;
    let hex: String = sequence.bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut bench = Command::new(super::build(PACKAGE)?);
    let output = bench.args(["--tiny", "--json", "--like", &hex]).output()?;
    let said: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let points = said["points"].as_array().map_or(0, Vec::len);
    Ok(output.status.success() && points > 0 && sequence.same == sequence.calls)
}
