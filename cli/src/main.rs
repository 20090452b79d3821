//! `limen`: run Linux programs in a microVM; pack, test and check.
//!
//! Reading order: [`args`] (what can be asked), then [`run`] (the main job), [`pack`], [`test`],
//! [`check`], [`compare`]. [`tree`] resolves paths inside a root, [`paths`] knows where our own
//! files are.

mod args;
mod bench;
mod check;
mod compare;
mod image;
mod linux;
mod mitigations;
mod objtool_cmd;
mod oci;
mod pack;
mod paths;
mod run;
mod test;
mod tidy;
mod toolchain;
mod tree;

use std::ffi::OsString;
use std::io::Write as _;
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser as _};

use args::{Cli, Command};

/// An error for the user: one line on stderr, without a type of its own per cause.
pub(crate) type Error = Box<dyn std::error::Error + Send + Sync>;

/// What was asked for cannot be meant: exit status 2, as for an unknown option.
#[derive(Debug)]
pub(crate) struct Usage(String);

impl std::fmt::Display for Usage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// A [`Usage`] error of this text.
pub(crate) fn usage(text: impl Into<String>) -> Error {
    Box::new(Usage(text.into()))
}

/// Exit status of wrong usage, which is clap's.
const STATUS_USAGE: u8 = 2;

fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    match words.split_first() {
        Some((word, rest)) if word == run::shim::NAME => return run::shim::exec(rest),
        Some((word, [image])) if word == image::FINISH => {
            return exit_code(image::finish(image.as_ref()).map(|()| 0));
        }
        _ => {}
    }
    let parsed = Cli::parse().command;
    if let (Command::Run(_), Some(advice)) = (&parsed, args::forgotten_equals(&words)) {
        return exit_code(Err(usage(advice)));
    }
    let command = match parsed {
        Command::Objtool(args) => return objtool_cmd::run(args),
        command => command,
    };
    exit_code(dispatch(command))
}

fn exit_code(result: Result<u8, Error>) -> ExitCode {
    match result {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            eprintln!("limen: {error}");
            ExitCode::from(match error.is::<Usage>() {
                true => STATUS_USAGE,
                false => run::outcome::STATUS_BOOT_FAILURE,
            })
        }
    }
}

fn dispatch(command: Command) -> Result<u8, Error> {
    match command {
        Command::Run(args) => run::run(&args),
        Command::Pack(args) => pack::command(&args),
        Command::Test(args) => test::command(&args),
        Command::Bench(args) => bench::command(&args),
        Command::Compare(args) => compare::command(&args),
        Command::Check(args) => check::command(&args),
        Command::Mitigations(args) => mitigations::command(&args),
        // Has exit codes of its own and is done already.
        Command::Objtool(_) => Ok(0),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "limen", &mut script);
            print(&script)
        }
        Command::Man => print(&manual()?),
    }
}

/// One page: the program's, followed by each command's.
fn manual() -> Result<Vec<u8>, Error> {
    let mut page = Vec::new();
    let root = Cli::command();
    clap_mangen::Man::new(root.clone()).render(&mut page)?;
    for command in root.get_subcommands().filter(|command| !command.is_hide_set()) {
        let title = format!(".SH LIMEN {}\n", command.get_name().to_uppercase());
        page.extend_from_slice(title.as_bytes());
        let man = clap_mangen::Man::new(command.clone());
        man.render_description_section(&mut page)?;
        man.render_options_section(&mut page)?;
        man.render_extra_section(&mut page)?;
    }
    Ok(page)
}

/// Writes to stdout; a reader that went away early is no error.
fn print(bytes: &[u8]) -> Result<u8, Error> {
    match std::io::stdout().write_all(bytes) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(0),
    }
}
