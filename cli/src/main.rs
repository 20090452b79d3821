//! `limen`: run Linux programs in a microVM; pack, test and check.
//!
//! Reading order: [`args`] (what can be asked), then [`run`] (the main job), [`pack`], [`test`],
//! [`check`]. [`tree`] resolves paths inside a root, [`paths`] knows where our own files are.

mod args;
mod bench;
mod check;
mod image;
mod linux;
mod objtool_cmd;
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

fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    match words.split_first() {
        Some((word, rest)) if word == run::shim::NAME => return run::shim::exec(rest),
        Some((word, [image])) if word == image::FINISH => {
            return exit_code(image::finish(image.as_ref()).map(|()| 0));
        }
        _ => {}
    }
    let command = match Cli::parse().command {
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
            ExitCode::from(run::outcome::STATUS_BOOT_FAILURE)
        }
    }
}

fn dispatch(command: Command) -> Result<u8, Error> {
    match command {
        Command::Run(args) => run::run(&args),
        Command::Pack(args) => pack::command(&args),
        Command::Test(args) => test::command(&args),
        Command::Bench(args) => bench::command(&args),
        Command::Check(args) => check::command(&args),
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
