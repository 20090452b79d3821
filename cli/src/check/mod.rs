//! `limen check`: are the sources in order; or, with an ELF file, what does that program need.
//!
//! Neighbours: `spec` runs the commands of SPEC.md, `tidy` has the rules that rustfmt and clippy do
//! not know, `pack/closure.rs` finds what a program needs.

mod spec;

use std::path::Path;
use std::process::Command;

use crate::args::CheckArgs;
use crate::pack::closure;
use crate::toolchain::{self, Toolchain};
use crate::tree::{Tree, absolute};
use crate::{Error, image, paths, tidy, usage};

/// Documentation of everything: who reads it works on the code. Which warnings count for the
/// kernel, and with what flags it is built, is in `.cargo/config.toml`.
const DOC: [&str; 4] = ["doc", "--quiet", "--no-deps", "--document-private-items"];
/// Private items are documented, too, so that links may lead to them.
const DOC_FLAGS: &str = "-Dwarnings -Arustdoc::private-intra-doc-links";
const DOC_OF_THE_KERNEL: [&str; 2] = ["--package=limen-machine", "--package=limen-kernel"];

pub(crate) fn command(args: &CheckArgs) -> Result<u8, Error> {
    match &args.elf {
        Some(elf) => check_elf(elf),
        None if args.pages => tidy::pages::write(&paths::repository()?).map(|()| 0),
        None => check_sources(),
    }
}

/// Says which libraries a program needs and where they are. Status 1 if one is missing.
fn check_elf(elf: &Path) -> Result<u8, Error> {
    let magic = crate::pack::files::first_bytes(elf, 4);
    match magic.map_err(|error| usage(format!("{}: {error}", elf.display())))?.as_slice() {
        b"\x7fELF" => {}
        [b'#', b'!', ..] => {}
        _ => return Err(usage(format!("{}: not an ELF program, nor a script", elf.display()))),
    }
    let program = absolute(&paths::here()?, elf);
    let (path, library_path) = closure::callers_paths();
    let closure = closure::closure_of(&Tree::host(), &program, &path, &library_path)
        .map_err(|error| format!("{}: {error}", elf.display()))?;
    for (name, path) in &closure.libraries {
        tell!("found    {name} => {}", path.display());
    }
    for missing in &closure.missing {
        tell!("missing  {missing}");
    }
    tell!("unknown  what the program opens by itself (run it with --missing-files to see)");
    Ok(u8::from(!closure.missing.is_empty()))
}

/// Every check runs, also after one that failed.
fn check_sources() -> Result<u8, Error> {
    let repository = paths::repository()?;
    // Of its own, so that checks and builds do not undo each other's work.
    let target = paths::target_dir()?.join("check");
    for missing in Toolchain::chosen()?.missing() {
        tell!("missing: {missing}");
    }
    let own = toolchain::cargo(&repository)?;
    let cargo = |arguments: &[&str]| {
        let mut command = Command::new(own.get_program());
        command.current_dir(&repository).args(arguments);
        for (name, value) in own.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command
    };
    let kernel = |name: &'static str| [&[name, "--quiet"], &image::CARGO_FLAGS[..]].concat();
    let denied = ["--", "-D", "warnings"];
    let (mut checks, mut failed) = (0, 0);
    let mut step = |name: &str, passed: bool| {
        tell!("check {name} ... {}", if passed { "ok" } else { "FAILED" });
        checks += 1;
        failed += usize::from(!passed);
    };
    let runs = |command: &mut Command| command.status().is_ok_and(|status| status.success());
    step("fmt", runs(&mut cargo(&["fmt", "--all", "--check"])));
    let mut clippy = cargo(&["clippy", "--quiet", "--all-targets", "--target-dir"]);
    step("clippy", runs(clippy.arg(&target).args(denied)));
    let mut clippy = cargo(&kernel("clippy"));
    step("clippy of the kernel", runs(clippy.arg("--target-dir").arg(&target).args(denied)));
    let findings = tidy::check_repository(&repository)?;
    findings.iter().for_each(|finding| tell!("{finding}"));
    step("tidy", findings.is_empty());
    step("build", runs(&mut cargo(&kernel("build"))));
    let built = paths::kernel_image(None)?;
    image::finish(&built)?;
    step("audit", audit(&built)?);
    let mut doc = cargo(&DOC);
    step("doc", runs(doc.arg("--target-dir").arg(&target).env("RUSTDOCFLAGS", DOC_FLAGS)));
    let mut doc = cargo(&[&DOC[..], &image::CARGO_FLAGS, &DOC_OF_THE_KERNEL].concat());
    step("doc of the kernel", runs(doc.arg("--target-dir").arg(&target)));
    let findings = spec::check(&repository)?;
    findings.iter().for_each(|finding| tell!("{finding}"));
    step("spec", findings.is_empty());
    tell!("{failed} of {checks} checks failed");
    Ok(u8::from(failed > 0))
}

/// Audits a kernel image, printing what was found. True if it holds.
pub(crate) fn audit(kernel: &Path) -> Result<bool, Error> {
    let report = objtool::audit_file(kernel)?;
    crate::out::bytes(report.to_string().as_bytes());
    Ok(report.is_clean())
}
