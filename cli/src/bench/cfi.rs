//! `limen bench cfi`: the price of kCFI's call sequences, natively, in user mode.
//!
//! An emulator has no branch predictor, so this one measures the host's CPU. The program measures
//! and prints; here it is only built and started.

use std::process::Command;

use crate::Error;
use crate::args::BenchArgs;

const PACKAGE: &str = "limen-bench-cfi";

pub(super) fn command(args: &BenchArgs) -> Result<u8, Error> {
    let mut bench = Command::new(super::build(PACKAGE)?);
    bench.args(args.json.then_some("--json")).args(args.tiny.then_some("--tiny"));
    let status = bench.status()?;
    Ok(u8::from(!status.success()))
}
