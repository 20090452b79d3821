//! `limen objtool`: audits and rewrites the kCFI checks of any x86-64 kernel image.
//!
//! Only arguments and exit codes live here; everything else is the `objtool` crate.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use objtool::Form;

/// Audit or rewrite the kCFI checks of a kernel image.
#[derive(Args, Debug)]
pub(crate) struct ObjtoolArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Find every kCFI check and indirect branch, and compare what compiler, linker and code say.
    ///
    /// Example: `limen objtool audit vmlinux`. Exit status: 0 clean, 1 not clean, 2 unreadable.
    Audit {
        /// Image to audit. Example: limen objtool audit vmlinux
        elf: PathBuf,
        /// Print one JSON object instead of a table. Example: --json
        #[arg(long)]
        json: bool,
    },
    /// Give every kCFI check another form, in place of the compiler's.
    ///
    /// All sites are verified before the first byte is written; on any anomaly OUT is not touched.
    /// Example: `limen objtool rewrite --form opt -o vmlinux.opt vmlinux`.
    Rewrite {
        /// Form of the checks: `kcfi` as compiled, `opt` with the branch not taken, `off`.
        /// Example: --form opt
        #[arg(long, value_parser = parse_form)]
        form: Form,
        /// Where the result goes; may be the image itself. Example: -o vmlinux.opt
        #[arg(short, long)]
        out: PathBuf,
        /// Image to rewrite. Example: limen objtool rewrite --form off -o out vmlinux
        elf: PathBuf,
    },
}

fn parse_form(name: &str) -> Result<Form, String> {
    let forms = [Form::Kcfi, Form::Opt, Form::Off];
    let found = forms.into_iter().find(|form| form.name() == name);
    found.ok_or_else(|| "expected kcfi, opt or off".to_owned())
}

/// Runs the command; 0 when the image is clean or written, 1 when it is not clean, 2 when it could
/// not be read or written.
pub(crate) fn run(args: ObjtoolArgs) -> ExitCode {
    let (result, elf) = match args.command {
        Command::Audit { elf, json } => (audit(&elf, json), elf),
        Command::Rewrite { form, out, elf } => (rewrite(&elf, &out, form), elf),
    };
    result.unwrap_or_else(|error| {
        match error {
            // It names its file itself.
            objtool::Error::Io(..) => say!("limen: {error}"),
            _ => say!("limen: {}: {error}", elf.display()),
        }
        ExitCode::from(2)
    })
}

fn audit(elf: &Path, json: bool) -> objtool::Result<ExitCode> {
    let report = objtool::audit_file(elf)?;
    match json {
        true => tell!("{}", report.to_json()),
        false => crate::out::bytes(report.to_string().as_bytes()),
    }
    Ok(ExitCode::from(u8::from(!report.is_clean())))
}

fn rewrite(elf: &Path, out: &Path, form: Form) -> objtool::Result<ExitCode> {
    let rewritten = objtool::rewrite_file(elf, out, form)?;
    for warning in &rewritten.warnings {
        say!("limen: warning: {warning}");
    }
    let applied = rewritten.applied;
    let (sites, written) = (applied.sites, applied.written);
    tell!("{sites} checks, {written} rewritten to {}", form.name());
    Ok(ExitCode::SUCCESS)
}
