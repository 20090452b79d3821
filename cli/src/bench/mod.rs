//! `limen bench`: what Limen costs, beside Linux in the same emulator.
//!
//! Why it is hard: a number must mean the same on both sides and come out again tomorrow. So one
//! static program measures both kernels, QEMU counts instructions instead of time (`rig.rs`), and
//! the hash of the program's work must agree before a ratio is printed.
//!
//! Reading order: [`command`], then `kernel` (what is compared), `machine` and `rig` (one run),
//! `crate::linux` (where the other kernel comes from), `table` (what is printed). `growth` counts
//! what many of something cost; `entry` the border alone, `calls` with equal protection on both
//! sides; `ipi` counts what interrupts isolated CPUs; `cfi` only starts a program; `cfi_kernel`
//! counts what kCFI costs the kernel, `lsm` what security hooks do; `guest` what leaving a guest
//! costs; `scale` what CPUs share; `root` takes the time of programs on the host's files.

mod calls;
pub(crate) mod cfi;
mod cfi_kernel;
mod entry;
pub(crate) mod growth;
pub(crate) mod guest;
pub(crate) mod ipi;
pub(crate) mod kernel;
pub(crate) mod lsm;
mod machine;
mod plot;
pub(crate) mod rig;
pub(crate) mod root;
pub(crate) mod scale;
mod table;

use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

use crate::args::{Bench, BenchArgs};
use crate::progress::Progress;
use crate::{Error, image, linux, paths, toolchain};

/// The target of programs that run in a VM or on the host.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Runs the bench that was asked for.
pub(crate) fn command(args: &BenchArgs) -> Result<u8, Error> {
    // What cannot work is said before minutes of measuring.
    if let Some(linux) = args.linux.as_ref() {
        linux::find(Some(linux)).map_err(|error| crate::usage(error.to_string()))?;
    }
    if let Some(svg) = &args.svg {
        paths::ensure_writable("--svg", svg)?;
    }
    match args.what {
        Bench::Kernel => kernel::command(args),
        Bench::Cfi => cfi::command(args),
        Bench::Growth => growth::command(args),
        Bench::Scale => scale::command(args),
        Bench::Root => root::command(args),
        Bench::Entry => entry::command(args),
        Bench::Calls => calls::command(args),
        Bench::Ipi => ipi::command(args),
        Bench::CfiKernel => cfi_kernel::command(args),
        Bench::Lsm => lsm::command(args),
        Bench::Guest => guest::command(args),
    }
}

/// The Linux to measure beside, where one was not declined; a line says why there is none.
fn linux_beside(args: &BenchArgs) -> Option<linux::Linux> {
    let found = (!args.no_linux).then(|| linux::find(args.linux.as_deref()))?;
    found.inspect_err(|error| say!("limen: without Linux: {error}")).ok()
}

/// Builds a program of `guest/bench`: static and without symbols, so that its size in an
/// initramfs is that of its code.
pub(crate) fn build(package: &str) -> Result<PathBuf, Error> {
    let _slow = Progress::of(format!("building {package}"));
    let target = paths::target_dir()?.join("guest-bench");
    let status = image::build_in_parts(&mut toolchain::cargo(&paths::repository()?)?)
        .env("RUSTFLAGS", "-Ctarget-feature=+crt-static -Cstrip=symbols")
        .args(["build", "--release", "--quiet", "--package", package])
        .args(["--target", TARGET, "--target-dir"])
        .arg(&target)
        .status()?;
    let program = target.join(TARGET).join("release").join(package);
    match status.success() && Path::is_file(&program) {
        true => Ok(program),
        false => Err(format!("{package} does not build").into()),
    }
}

/// SHA-256 of several parts, each with its length before it.
pub(crate) fn hex_hash(parts: &[&[u8]]) -> String {
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update((part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}
