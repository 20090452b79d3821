//! `limen run --nested`: the program runs in Limen in `limen-vmm` in Limen. The outer kernel serves
//! /dev/kvm to the VMM, which is an ordinary program on the rust-vmm crates; the inner kernel is
//! the same image, and each has as many CPUs as were asked for.
//!
//! What the program is given is packed, since the VMM shares no folders. Neighbours: `guest/vmm`,
//! and `test/nested.rs`, which does the same with QEMU in its place.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::plan::Plan;
use super::run;
use crate::args::RunArgs;
use crate::failure::{Doing, Failure};
use crate::{Error, image, paths, toolchain};

const PACKAGE: &str = "limen-vmm";
const TARGET: &str = "x86_64-unknown-linux-gnu";
/// Where the outer machine has the inner one's parts.
const KERNEL: &str = "/nested/kernel";
const INITRAMFS: &str = "/nested/initramfs";
/// What the outer machine needs beside two copies of the inner one's memory, MiB.
const OUTER_MIB: u64 = 256;

/// Runs and reports; the result is the inner program's exit status.
pub(super) fn command(args: &RunArgs) -> Result<u8, Error> {
    let vmm = vmm()?;
    let inner = RunArgs { nested: false, pack: true, ..args.clone() };
    let plan = match Plan::make(&inner)? {
        Ok(plan) => plan,
        // As it ends without a machine.
        Err(_) => return run(&inner),
    };
    let dir = paths::scratch()?;
    let initramfs = dir.path().join("initramfs");
    paths::write(&initramfs, &plan.initramfs)?;
    run(&outer(args, &vmm, &plan.qemu.kernel, &initramfs))
}

/// The outer machine: the VMM as its program.
fn outer(args: &RunArgs, vmm: &Path, kernel: &Path, initramfs: &Path) -> RunArgs {
    let place = |host: &Path, guest: &str| {
        let mut word = host.as_os_str().to_owned();
        word.push(":");
        word.push(guest);
        word
    };
    let (memory, cpus) = (args.memory.to_string(), args.smp.to_string());
    let words = ["boot", "--kernel", KERNEL, "--initrd", INITRAMFS];
    let mut program = vec![vmm.as_os_str().to_owned()];
    program.extend(words.map(OsString::from));
    program.extend(["--memory", &memory, "--cpus", &cpus].map(OsString::from));
    program.extend(["--append".into(), OsString::from(&args.append)]);
    program.extend((args.verbose > 0).then(|| OsString::from("--log")));
    RunArgs {
        nested: false,
        pack: true,
        memory: 2 * args.memory + OUTER_MIB,
        append: String::new(),
        cwd: None,
        dir: Vec::new(),
        file: vec![place(kernel, KERNEL), place(initramfs, INITRAMFS)],
        program,
        ..args.clone()
    }
}

/// The VMM: beside this program, else built in the repository.
pub(crate) fn vmm() -> Result<PathBuf, Error> {
    let beside = std::env::current_exe()?.with_file_name(PACKAGE);
    if beside.exists() {
        return Ok(beside);
    }
    build(&paths::repository()?, &paths::target_dir()?.join("guest"))
}

/// Builds it as one static program.
fn build(repository: &Path, target: &Path) -> Result<PathBuf, Error> {
    let mut cargo: Command = toolchain::cargo(repository)?;
    let status = image::build_in_parts(&mut cargo)
        .env("RUSTFLAGS", "-Ctarget-feature=+crt-static")
        .args(["build", "--release", "--quiet", "--package", PACKAGE])
        .args(["--target", TARGET, "--target-dir"])
        .arg(target)
        .status()
        .map_err(Failure::at(Doing::Start, Path::new("cargo")))?;
    match status.success() {
        true => Ok(target.join(TARGET).join("release").join(PACKAGE)),
        false => Err(format!("{PACKAGE} does not build").into()),
    }
}
