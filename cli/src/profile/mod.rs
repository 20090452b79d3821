//! Profiles: what the programs of a VM may do, as a user writes it down (`limen run --profile`).
//!
//! `compile` reads the TOML and refuses what it does not understand, before anything starts;
//! `learn` writes a profile from what a program did. `lsm::profile` says what rules mean, and is
//! what the kernel decides with.

mod compile;
mod learn;

use std::path::Path;

use lsm::profile::Profile;

use crate::args::{ProfileArgs, ProfileCommand, RunArgs};
use crate::{Error, paths, run, usage};

pub(crate) use learn::learned;

/// `limen profile`.
pub(crate) fn command(args: &ProfileArgs) -> Result<u8, Error> {
    match &args.command {
        ProfileCommand::Check { file } => {
            let profile = read(file, "")?;
            tell!("{}: {} rules", file.display(), profile.rules.len());
            Ok(0)
        }
        ProfileCommand::Learn { output, run: args } => {
            let mut args = (**args).clone();
            paths::ensure_writable("--output", output)?;
            if output.exists() {
                // What is there must be readable before the program runs, or it would be lost.
                read(output, "--output ")?;
            }
            args.learn = Some(output.clone());
            let program = args.program.first().map(|word| word.to_string_lossy());
            let program = program.unwrap_or("the program".into());
            say!("limen: {program} runs; what it uses is learned until it ends");
            run::run(&args)
        }
    }
}

/// The compiled profile of a run, for the kernel; empty without one.
pub(crate) fn of(args: &RunArgs) -> Result<Vec<u8>, Error> {
    let profile = match (&args.profile, &args.learn) {
        (Some(file), _) => read(file, "--profile ")?,
        (None, Some(file)) => Profile { name: name(file), learns: true, rules: Vec::new() },
        (None, None) => return Ok(Vec::new()),
    };
    encoded(&profile)
}

/// A profile's text, compiled for the kernel.
pub(crate) fn compiled(name: &str, text: &str) -> Result<Vec<u8>, Error> {
    encoded(&compile::compile(name, text).map_err(usage)?)
}

fn encoded(profile: &Profile) -> Result<Vec<u8>, Error> {
    let text = profile.encode().into_bytes();
    // What the kernel would refuse is refused here.
    match Profile::decode(&text) {
        Ok(again) if again == *profile => Ok(text),
        _ => Err(format!("{}: too many rules, or too long", profile.name).into()),
    }
}

/// A profile's file, which this option has named, compiled.
fn read(file: &Path, option: &str) -> Result<Profile, Error> {
    let text = std::fs::read_to_string(file)
        .map_err(|error| usage(format!("{option}{}: {error}", file.display())))?;
    compile::compile(&name(file), &text).map_err(usage)
}

/// The file as messages name it.
fn name(file: &Path) -> String {
    let text = file.display().to_string();
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}
