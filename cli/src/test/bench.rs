//! The bench level: `limen bench kernel`, `bench growth`, `bench guest` and `bench cfi` in their
//! smallest form, so that they cannot rot.
//!
//! Nothing is measured here. The program that measures runs on this host's Linux and in Limen,
//! and the hash of what the two kernels gave it must be the same; every row about growth can be
//! measured; and the sequences that are measured natively must be those of the kernel's image.

use super::{Context, Summary};
use crate::Error;
use crate::args::BENCH_CPU;
use crate::bench::kernel::tiny_hashes;
use crate::bench::{cfi, growth, guest, root, scale};

pub(super) fn names() -> Vec<String> {
    ["bench::kernel", "bench::growth", "bench::scale", "bench::root", "bench::guest", "bench::cfi"]
        .map(str::to_owned)
        .into()
}

pub(super) fn run(context: &Context) -> Result<Summary, Error> {
    let mut summary = Summary::default();
    let mut judge = |name: &str, test: &dyn Fn() -> Result<Option<String>, Error>| {
        if !context.wants(name) {
            summary.skipped += 1;
            return Ok::<(), Error>(());
        }
        match test()? {
            None => summary.passed += 1,
            Some(why) => {
                failed!("test {name} ... FAILED ({why})");
                summary.failed += 1;
            }
        }
        Ok(())
    };
    judge("bench::kernel", &|| {
        let (host, limen) = tiny_hashes(&context.kernel, BENCH_CPU)?;
        let same = host.is_some() && host == limen;
        Ok((!same).then(|| format!("hash of the work {limen:x?}, on this host {host:x?}")))
    })?;
    judge("bench::growth", &|| {
        let failed = growth::tiny(&context.kernel, BENCH_CPU)?;
        Ok((!failed.is_empty()).then(|| format!("not measured: {}", failed.join(", "))))
    })?;
    judge("bench::scale", &|| {
        let failed = scale::tiny(&context.kernel, BENCH_CPU)?;
        Ok((!failed.is_empty()).then(|| format!("not measured: {}", failed.join(", "))))
    })?;
    judge("bench::root", &|| {
        let failed = root::tiny()?;
        Ok((!failed.is_empty()).then(|| format!("not measured: {}", failed.join(", "))))
    })?;
    judge("bench::guest", &|| {
        let failed = guest::tiny(&context.kernel, BENCH_CPU)?;
        Ok((!failed.is_empty()).then(|| format!("not measured: {}", failed.join(", "))))
    })?;
    judge("bench::cfi", &|| {
        let same = cfi::tiny(&context.kernel)?;
        Ok((!same).then(|| "it does not measure the bytes of the kernel's image".to_owned()))
    })?;
    Ok(summary)
}
