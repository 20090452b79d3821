//! What README says of mechanisms can be looked at: a price has the command that gives it, a place
//! exists, and an option is one of this program's.
//!
//! Neighbour: `check/spec.rs` runs the commands of SPEC.md.

use std::collections::BTreeSet;
use std::path::Path;

use clap::CommandFactory as _;

use super::Finding;
use crate::args::Cli;

const PAGE: &str = "README.md";
/// The head of the table of prices.
const HEAD: &str = "| Mechanism | Where | Price |";

pub(super) fn check(repository: &Path, text: &str, findings: &mut Vec<Finding>) {
    let mut note = |line: usize, what| findings.push(Finding::new(Path::new(PAGE), line, what));
    let rows: Vec<_> = prices(text).collect();
    if rows.is_empty() {
        note(0, format!("there is no table {HEAD}"));
    }
    for (line, row) in rows {
        if !has_command(row) {
            note(line, "a price without the command that gives it".to_owned());
        }
        for place in quoted(place_of(row)).filter(|place| !repository.join(place).exists()) {
            note(line, format!("{place} is no place here"));
        }
    }
    let known = known_options();
    for (line, option) in options(text).filter(|(_, option)| !known.contains(*option)) {
        note(line, format!("{option} is no option of limen"));
    }
}

/// The rows of the table of prices, with their lines' numbers.
fn prices(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines = text.lines().enumerate().map(|(index, line)| (index + 1, line));
    let rows = lines.skip_while(|(_, line)| *line != HEAD).skip(2);
    rows.take_while(|(_, line)| line.starts_with("| "))
}

fn place_of(row: &str) -> &str {
    row.split(" | ").nth(1).unwrap_or_default()
}

/// Words without a number need none.
fn has_command(row: &str) -> bool {
    let price = row.splitn(3, " | ").nth(2).unwrap_or_default();
    !price.contains(|c: char| c.is_ascii_digit()) || quoted(price).any(is_command)
}

/// What stands between backquotes.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

fn is_command(piece: &str) -> bool {
    ["./limen ", "limen ", "time limen "].iter().any(|start| piece.starts_with(start))
}

/// The options in commands of this program, and those that are named alone.
fn options(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().flat_map(|(index, line)| {
        let shell = line.trim_start().strip_prefix("$ ").filter(|command| is_command(command));
        let pieces = quoted(line).filter(|piece| is_command(piece) || piece.starts_with("--"));
        // What is behind a `--` is of the program's.
        let own = |piece: &'_ str| piece.find(" -- ").unwrap_or(piece.len());
        let pieces = pieces.chain(shell).map(move |piece| &piece[..own(piece)]);
        pieces.flat_map(str::split_whitespace).filter_map(move |word| {
            let end = word.find(['=', ',', ';']).unwrap_or(word.len());
            (word.starts_with("--") && end > 2).then(|| (index + 1, &word[..end]))
        })
    })
}

fn known_options() -> BTreeSet<String> {
    let mut commands = vec![Cli::command()];
    let mut known = BTreeSet::from(["--help".to_owned(), "--version".to_owned()]);
    while let Some(command) = commands.pop() {
        for argument in command.get_arguments() {
            let names = argument
                .get_long()
                .into_iter()
                .chain(argument.get_all_aliases().into_iter().flatten());
            known.extend(names.map(|name| format!("--{name}")));
        }
        commands.extend(command.get_subcommands().cloned());
    }
    known
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<String> {
        let mut findings = vec![];
        check(Path::new(env!("CARGO_MANIFEST_DIR")), text, &mut findings);
        findings.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_price_has_its_command_and_its_place() {
        let row = |row: &str| found(&format!("{HEAD}\n|---|---|---|\n{row}\n"));
        assert!(row("| A | `src/main.rs`, `src` | 1.0 (`./limen bench kernel`) |").is_empty());
        assert!(row("| A | `src` | see its README |").is_empty());
        let price = ["README.md:3: a price without the command that gives it"];
        assert_eq!(row("| A | `src` | 1.0 of `cfi=off` |"), price);
        assert_eq!(row("| A | `none` | dear |"), ["README.md:3: none is no place here"]);
        assert_eq!(found(""), [format!("README.md: there is no table {HEAD}")]);
    }

    #[test]
    fn an_option_is_one_of_ours() {
        let of = |line: &str| found(line).into_iter().filter(|f| f.contains("option")).count();
        assert_eq!(
            of("    $ ./limen run --memory 1G --env=A -- ls --none\n`--minimal` `x --none`"),
            0
        );
        assert_eq!(of("    $ ./limen run --memroy 1G -- ls"), 1);
        assert_eq!(of("`limen test --fliter x; --none` and `--tiem`"), 3);
    }
}
