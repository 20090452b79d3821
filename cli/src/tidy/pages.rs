//! The pages below `docs/` that are made from tables: options of the command line, kernel
//! parameters, system calls, capabilities of /dev/kvm. `limen check` compares them, `limen check
//! --pages` writes them.
//!
//! Neighbours: `args` defines the options, `formats::params` and `mitigations::options` the
//! parameters, `abi::syscalls` the calls, `abi::kvm_capabilities` those.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use abi::kvm_capabilities::{Answer, CAPABILITIES};
use abi::syscalls::{ArgumentKind, CALLS};
use clap::{Arg, CommandFactory};
use formats::params;

use super::Finding;
use crate::Error;
use crate::args::Cli;

const DIR: &str = "docs";
/// First line of each page.
const MADE: &str = "<!-- Made by `limen check --pages`. -->\n\n";

/// Name in [`DIR`] and text of each page.
fn all() -> [(&'static str, String); 4] {
    [
        ("options.md", options()),
        ("parameters.md", parameters()),
        ("calls.md", calls()),
        ("kvm.md", capabilities()),
    ]
}

/// A page that is not what its tables say is a finding.
pub(super) fn check(repository: &Path, findings: &mut Vec<Finding>) {
    for (name, text) in all() {
        let path = Path::new(DIR).join(name);
        // A page that cannot be read is not what the tables say either.
        if fs::read_to_string(repository.join(&path)).unwrap_or_default() != text {
            let what = "not what its tables say: run `limen check --pages`";
            findings.push(Finding::new(&path, 0, what));
        }
    }
}

/// Writes all pages.
pub(crate) fn write(repository: &Path) -> Result<(), Error> {
    let dir = repository.join(DIR);
    fs::create_dir_all(&dir)?;
    for (name, text) in all() {
        fs::write(dir.join(name), text)?;
    }
    Ok(())
}

/// A cell of a table: one line, in which a bar does not end it.
fn cell(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}

fn options() -> String {
    let mut page = format!("{MADE}# Options of the command line\n\nThe same as `limen --help`.\n");
    for command in Cli::command().get_subcommands().filter(|command| !command.is_hide_set()) {
        let about = command.get_about().map(ToString::to_string).unwrap_or_default();
        let _ = write!(page, "\n## limen {}\n\n{about}.\n", command.get_name());
        let arguments: Vec<&Arg> =
            command.get_arguments().filter(|argument| !argument.is_hide_set()).collect();
        if arguments.is_empty() {
            continue;
        }
        page.push_str("\n| Option | What |\n|---|---|\n");
        for argument in arguments {
            let help = argument.get_long_help().or(argument.get_help());
            let help = help.map(ToString::to_string).unwrap_or_default();
            let _ = writeln!(page, "| `{}` | {} |", cell(&spelling(argument)), cell(&help));
        }
    }
    page
}

/// How an option is written.
fn spelling(argument: &Arg) -> String {
    let takes_values = argument.get_action().takes_values();
    let values = argument.get_value_names().filter(|_| takes_values).unwrap_or_default();
    let values = values.iter().map(|name| format!("<{name}>")).collect::<Vec<_>>().join(" ");
    let short = argument.get_short().map(|short| format!("-{short}"));
    let long = argument.get_long().map(|long| format!("--{long}"));
    let names = short.into_iter().chain(long).collect::<Vec<_>>().join(", ");
    [names, values].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ")
}

fn parameters() -> String {
    let mut page = format!(
        "{MADE}# Kernel parameters\n\nWords of the kernel's command line (`limen run --append`). A \
         word that is in neither table gets a warning in the kernel's log.\n\n| Parameter | What \
         |\n|---|---|\n"
    );
    for param in params::KNOWN {
        let values = if param.has_value() { "=" } else { "" };
        let spelling = format!("{}{values}{}", param.name, param.values);
        let _ = writeln!(page, "| `{}` | {} |", cell(&spelling), cell(param.meaning));
    }
    page.push_str(
        "\n## Mitigations\n\nNames and values are Linux's; `limen mitigations` says what they \
         choose.\n\n",
    );
    for (name, has_value) in mitigations::options::names() {
        let _ = writeln!(page, "- `{name}{}`", if has_value { "=" } else { "" });
    }
    page
}

fn calls() -> String {
    let served = CALLS.iter().filter(|call| call.arguments.is_some());
    let mut page = format!(
        "{MADE}# System calls\n\n{} of {} calls are served; the others give ENOSYS, and `limen run \
         --missing-syscalls` names them.\n\n| Number | Call |\n|---|---|\n",
        served.clone().count(),
        CALLS.len()
    );
    for call in served {
        let arguments = call.arguments.unwrap_or_default().iter();
        let arguments = arguments.map(|(name, kind)| format!("{name}: {}", word(*kind)));
        let arguments = arguments.collect::<Vec<_>>().join(", ");
        let _ = writeln!(page, "| {} | `{}({arguments})` |", call.number, call.name);
    }
    page.push_str("\nNot served: ");
    let others = CALLS.iter().filter(|call| call.arguments.is_none());
    page.push_str(&others.map(|call| call.name).collect::<Vec<_>>().join(", "));
    page.push_str(".\n");
    page
}

fn capabilities() -> String {
    let mut page = format!(
        "{MADE}# Capabilities of /dev/kvm\n\nWhat KVM_CHECK_EXTENSION answers, and what is absent \
         where it answers 0. Calls and exits are in `kernel/src/kvm/README.md`.\n\nGuests run by \
         AMD's SVM, or by Intel's VMX with EPT and unrestricted guests; where the CPU has neither, \
         the device is ENODEV.\n\n| Number | KVM_CAP_ | Answer | Note |\n|---|---|---|---|\n"
    );
    for row in CAPABILITIES {
        let answer = match row.answer {
            Answer::Yes => "1",
            Answer::Number => "number",
            Answer::No => "0",
        };
        let _ = writeln!(page, "| {} | {} | {answer} | {} |", row.number, row.name, row.note);
    }
    page
}

/// What a kind of argument is, in a word.
fn word(kind: ArgumentKind) -> &'static str {
    match kind {
        ArgumentKind::Fd => "fd",
        ArgumentKind::Path => "string",
        ArgumentKind::Pointer => "pointer",
        ArgumentKind::Size => "size",
        ArgumentKind::Int => "int",
        ArgumentKind::Long => "long",
        ArgumentKind::Flags => "flags",
        ArgumentKind::Mode => "mode",
        ArgumentKind::Pid => "pid",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_say_what_the_tables_say() {
        assert!(options().contains("| `--missing-syscalls` |"), "{}", options());
        assert!(parameters().contains("| `isolcpus=LIST` |"), "{}", parameters());
        assert!(calls().contains("| 0 | `read(fd: fd, buffer: pointer, count: size)` |"));
        assert!(calls().contains("Not served: "), "no call is missing?");
    }

    #[test]
    fn a_page_that_differs_is_found() {
        let dir = std::env::temp_dir().join(format!("limen-pages-{}", std::process::id()));
        write(&dir).expect("a folder for the pages");
        let found = || {
            let mut findings = Vec::new();
            check(&dir, &mut findings);
            findings.len()
        };
        assert_eq!(found(), 0);
        fs::write(dir.join(DIR).join("calls.md"), "another").expect("a page");
        assert_eq!(found(), 1);
        fs::remove_dir_all(&dir).expect("the folder is ours");
    }
}
