//! The bench level: `limen bench kernel` in its smallest form, so that it cannot rot.
//!
//! Nothing is measured here. The program that measures runs on this host's Linux and in Limen,
//! and the hash of what the two kernels gave it must be the same.

use super::{Context, Summary};
use crate::Error;
use crate::args::BENCH_CPU;
use crate::bench::kernel::tiny_hashes;

const NAME: &str = "bench::kernel";

pub(super) fn run(context: &Context) -> Result<Summary, Error> {
    let mut summary = Summary::default();
    if !context.wants(NAME) {
        summary.skipped = 1;
        return Ok(summary);
    }
    let (host, limen) = tiny_hashes(&context.kernel, BENCH_CPU)?;
    match host.is_some() && host == limen {
        true => summary.passed = 1,
        false => {
            println!("test {NAME} ... FAILED (hash of the work {limen:x?}, on this host {host:x?})");
            summary.failed = 1;
        }
    }
    Ok(summary)
}
