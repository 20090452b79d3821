//! `limen objtool`: audits and rewrites the kCFI checks of any x86-64 kernel image.
//!
//! Only arguments and exit codes live here; everything else is the `objtool` crate.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};

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
        /// Image to audit.
        elf: PathBuf,
        /// Print one JSON object instead of a table.
        #[arg(long)]
        json: bool,
    },
}

/// Runs the command; 0 when the image is clean, 1 when not, 2 when it could not be read.
pub(crate) fn run(args: ObjtoolArgs) -> ExitCode {
    match args.command {
        Command::Audit { elf, json } => match objtool::audit_file(&elf) {
            Ok(report) => {
                if json {
                    println!("{}", report.to_json());
                } else {
                    print!("{report}");
                }
                ExitCode::from(u8::from(!report.is_clean()))
            }
            Err(error) => {
                eprintln!("limen: {error}");
                ExitCode::from(2)
            }
        },
    }
}
