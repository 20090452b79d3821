//! `limen`: run Linux programs in a microVM; pack, test and check.
//!
//! Reading order: [`args`] (what can be asked), then [`run`] (the main job), [`pack`],
//! [`mod@test`], [`check`], [`compare`]. [`tree`] resolves paths inside a root, [`paths`] knows
//! where our own files are.

#[macro_use]
mod out;

mod args;
mod bench;
mod cache;
mod check;
mod children;
mod compare;
mod detached;
mod dist;
mod failure;
mod image;
mod linux;
mod mitigations;
mod objtool_cmd;
mod oci;
mod pack;
mod page;
mod paths;
mod profile;
mod progress;
mod run;
mod test;
mod tidy;
mod toolchain;
mod tree;
mod unused;
mod words;

use std::ffi::OsString;
use std::io::IsTerminal as _;
use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _};

use args::{Cli, Command};

/// An error for the user: one line on stderr. What reads and writes files of the user's makes it
/// of a [`failure::Failure`], which has their paths.
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
    std::panic::set_hook(Box::new(|fault| {
        say!("limen: a fault of limen itself, please report it with the command: {fault}");
    }));
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    match words.split_first() {
        Some((word, rest)) if word == run::shim::NAME => return run::shim::exec(rest),
        Some((word, rest)) if word == run::shim::DETACHED => return run::shim::exec_detached(rest),
        Some((word, [image])) if word == image::FINISH => {
            return exit_code(image::finish(image.as_ref()).map(|()| 0));
        }
        _ => {}
    }
    let matches = Cli::command().try_get_matches();
    let parsed = matches.and_then(|matches| Ok((Cli::from_arg_matches(&matches)?, matches)));
    let (parsed, matches) = match parsed {
        Ok((cli, matches)) => (cli.command, matches),
        Err(error) => return explain(&error),
    };
    if let (Command::Run(_), Some(advice)) = (&parsed, args::forgotten_equals(&words)) {
        return exit_code(Err(usage(advice)));
    }
    if let Err(error) = unused::check(&matches) {
        return exit_code(Err(error));
    }
    match parsed {
        Command::Objtool(args) => objtool_cmd::run(args),
        command => exit_code(dispatch(command)),
    }
}

/// Help goes to stdout, what is wrong to stderr.
fn explain(error: &clap::Error) -> ExitCode {
    let text = match error.use_stderr() {
        // Colours are for terminals.
        true if std::io::stderr().is_terminal() => error.render().ansi().to_string(),
        false if std::io::stdout().is_terminal() => error.render().ansi().to_string(),
        _ => error.render().to_string(),
    };
    match error.use_stderr() {
        true => out::err(format_args!("{text}")),
        false => out::bytes(text.as_bytes()),
    }
    ExitCode::from(out::finish(u8::try_from(error.exit_code()).unwrap_or(STATUS_USAGE)))
}

fn exit_code(result: Result<u8, Error>) -> ExitCode {
    children::leave_the_end_to_signals();
    let status = result.unwrap_or_else(|error| {
        say!("limen: {error}");
        match error.is::<Usage>() {
            true => STATUS_USAGE,
            false => run::outcome::STATUS_BOOT_FAILURE,
        }
    });
    ExitCode::from(out::finish(status))
}

fn dispatch(command: Command) -> Result<u8, Error> {
    let starts_others = matches!(
        command,
        Command::Test(_)
            | Command::Bench(_)
            | Command::Compare(_)
            | Command::Check(_)
            | Command::Dist(_)
    );
    let _guarded = if starts_others { Some(children::guard()?) } else { None };
    match command {
        Command::Run(args) => run::run(&args),
        Command::Ps => detached::ps(),
        Command::Logs(args) => detached::logs(&args),
        Command::Exec(args) => detached::exec(&args),
        Command::Stop(args) => detached::stop(&args),
        Command::Pack(args) => pack::command(&args),
        Command::Profile(args) => profile::command(&args),
        Command::Test(args) => test::command(&args),
        Command::Bench(args) => bench::command(&args),
        Command::Compare(args) => compare::command(&args),
        Command::Check(args) => check::command(&args),
        Command::Mitigations(args) => mitigations::command(&args),
        // Has exit codes of its own and is done already.
        Command::Objtool(_) => Ok(0),
        Command::Dist(args) => dist::command(&args),
        Command::Trace(args) => run::trace::command(&args),
        Command::Completions { shell } => Ok(print(&dist::manual::completions(shell))),
        Command::Man => Ok(print(&dist::manual::page()?)),
    }
}

/// Writes to stdout. What it does not take is told at the end of the program.
pub(crate) fn print(bytes: &[u8]) -> u8 {
    out::bytes(bytes);
    0
}
