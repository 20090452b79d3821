//! Options that would have no effect where they were given: refused, with the words that they
//! belong with, before anything runs.
//!
//! Why it is hard: an option with a default value cannot be told from one that was not given by its
//! value, so what the parser saw is asked. Neighbour: `args.rs` has the options, and what excludes
//! what whatever the values.

use clap::ArgMatches;
use clap::parser::ValueSource;

use crate::{Error, usage};

/// An option, and the levels or benches that take it.
type Row = (&'static str, &'static [&'static str]);

const OF_BENCH: [Row; 6] = [
    ("rows", &["growth", "scale"]),
    ("svg", &["cfi", "growth"]),
    ("time", &["ipi"]),
    ("only", &["ipi"]),
    ("linux", &["kernel", "growth", "scale", "entry", "calls", "ipi", "guest"]),
    ("cpu", &["kernel", "growth", "scale", "entry", "ipi", "cfi-kernel", "lsm", "guest"]),
];
const OF_TEST: [Row; 5] = [
    ("seed", &["fuzz", "hostile", "differ"]),
    ("time", &["differ", "soak"]),
    ("smp", &["kernel", "guest", "hostile", "fuzz", "apps", "soak"]),
    ("jobs", &["apps"]),
    ("all", &["apps", "guest", "sabotage"]),
];

/// Options of `limen run`, what makes them useless, and why. `--dry-run` goes behind any command as
/// it is, so what only matters while a program runs is not refused beside it.
const OF_RUN: [(&str, &[&str], &str); 4] = [
    ("cache", &["pack", "image", "detach"], "only a root by virtio-fs is believed"),
    ("share", &["pack"], "nothing of the host is shared there"),
    ("hide", &["pack"], "nothing of the host is there but what the program needs"),
    ("show", &["pack", "image"], "nothing is hidden there"),
];

/// Fails where an option was given that would change nothing.
pub(crate) fn check(matches: &ArgMatches) -> Result<(), Error> {
    match matches.subcommand() {
        Some(("bench", of)) => {
            let what = of.get_one::<crate::args::Bench>("what");
            let what = what.and_then(clap::ValueEnum::to_possible_value);
            only_with("bench", what.as_ref().map_or("", |what| what.get_name()), of, &OF_BENCH)
        }
        Some(("test", of)) => of_test(of),
        Some(("run", of)) => of_run(of),
        Some(("profile", of)) => match of.subcommand() {
            Some(("learn", of)) => of_learn(of),
            _ => Ok(()),
        },
        Some(("compare", of)) => of_compare(of),
        _ => Ok(()),
    }
}

fn is_given(matches: &ArgMatches, option: &str) -> bool {
    matches.value_source(option) == Some(ValueSource::CommandLine)
}

fn only_with(command: &str, what: &str, of: &ArgMatches, rows: &[Row]) -> Result<(), Error> {
    for (option, takers) in rows {
        if is_given(of, option) && !takers.contains(&what) {
            let takers = takers.join(", ");
            let text = format!("--{option}: {command} {what} does not use it; {takers} would");
            return Err(usage(text));
        }
    }
    Ok(())
}

fn of_test(of: &ArgMatches) -> Result<(), Error> {
    let what = of.get_one::<String>("what").map_or("", String::as_str);
    if crate::test::is_level(what) {
        return only_with("test", what, of, &OF_TEST);
    }
    match !what.is_empty() && is_given(of, "filter") {
        true => Err(usage(format!(
            "--filter: {what} is no level, and so a filter itself; give one of the two"
        ))),
        false => Ok(()),
    }
}

fn of_learn(of: &ArgMatches) -> Result<(), Error> {
    let wrong = crate::args::NOT_WHILE_LEARNING.iter().find(|option| is_given(of, option));
    match wrong {
        Some(option) => Err(usage(format!(
            "profile learn: --{}: nothing would be learned; leave it out",
            option.replace('_', "-")
        ))),
        None => of_run(of),
    }
}

fn of_run(of: &ArgMatches) -> Result<(), Error> {
    for (option, others, why) in OF_RUN {
        let other = others.iter().find(|other| is_given(of, other));
        if let Some(other) = other.filter(|_| is_given(of, option)) {
            let other = other.replace('_', "-");
            return Err(usage(format!("--{option} has no effect with --{other}: {why}")));
        }
    }
    let way = of.get_one::<crate::args::Share>("share");
    let by_qemu = ["image", "detach", "dry_run"].iter().find(|other| is_given(of, other));
    match (way, by_qemu) {
        (Some(crate::args::Share::NineP), _) if is_given(of, "cache") => Err(usage(
            "--cache has no effect with --share 9p: only a root by virtio-fs is believed",
        )),
        (Some(crate::args::Share::Virtiofs), Some(other)) if is_given(of, "share") => {
            let other = other.replace('_', "-");
            let text = format!("--share virtiofs is not to be had with --{other}: it is 9P there");
            Err(usage(text))
        }
        _ => Ok(()),
    }
}

fn of_compare(of: &ArgMatches) -> Result<(), Error> {
    let has_linux = of
        .get_many::<String>("with")
        .into_iter()
        .flatten()
        .any(|set| crate::compare::is_of_linux(set));
    match is_given(of, "linux") && !has_linux {
        true => Err(usage("--linux has no effect without --with linux")),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::args::{Bench, Cli};

    fn checked(line: &str) -> Result<(), String> {
        let matches = Cli::command().try_get_matches_from(line.split(' ')).expect("it parses");
        check(&matches).map_err(|error| error.to_string())
    }

    #[test]
    fn what_changes_nothing_is_refused() {
        for (line, says) in [
            ("limen bench --rows fork", "--rows: bench kernel does not use it; growth, scale"),
            ("limen bench lsm --svg x", "--svg: bench lsm does not use it; cfi, growth would"),
            ("limen bench calls --cpu max", "--cpu: bench calls does not use it"),
            ("limen test host --smp 4", "--smp: test host does not use it"),
            ("limen test run --seed 5", "--seed: test run does not use it; fuzz"),
            ("limen test futex --filter x", "--filter: futex is no level"),
            ("limen run --pack --hide x -- true", "--hide has no effect with --pack"),
            ("limen run --share 9p --cache none -- true", "--cache has no effect with --share"),
            ("limen run --share virtiofs --detach x -- true", "not to be had with --detach"),
            ("limen profile learn --pack --cache none -- true", "--cache has no effect"),
            ("limen compare --with a --with b --linux f -- true", "--with linux"),
        ] {
            let why = checked(line).expect_err(line);
            assert!(why.contains(says), "{line}: {why}");
        }
    }

    #[test]
    fn what_has_an_effect_is_taken() {
        for line in [
            "limen bench",
            "limen bench growth --rows fork --svg x",
            "limen bench ipi --time 1m --only off",
            "limen test guest --smp 1 --filter futex",
            "limen test futex --smp 1",
            "limen run --cache none -- true",
            "limen run --cache none --json --trace x --timeout 5 --dry-run -- true",
            "limen run --image x --share 9p --hide y",
            "limen compare --with a --with linux --linux f -- true",
        ] {
            assert_eq!(checked(line), Ok(()), "{line}");
        }
    }

    /// Names that are none would excuse every option.
    #[test]
    fn rows_name_what_there_is() {
        let command = Cli::command();
        let has = |of: &str, option: &str| {
            let of = command.find_subcommand(of).expect("a command");
            of.get_arguments().any(|argument| argument.get_id() == option)
        };
        let benches: Vec<String> = <Bench as clap::ValueEnum>::value_variants()
            .iter()
            .filter_map(|bench| Some(clap::ValueEnum::to_possible_value(bench)?.get_name().into()))
            .collect();
        for (option, takers) in OF_BENCH {
            assert!(has("bench", option), "{option}");
            assert!(takers.iter().all(|taker| benches.iter().any(|b| b == taker)), "{option}");
        }
        for (option, takers) in OF_TEST {
            assert!(has("test", option), "{option}");
            assert!(takers.iter().all(|taker| crate::test::is_level(taker)), "{option}");
        }
        for (option, others, _) in OF_RUN {
            assert!(has("run", option) && others.iter().all(|other| has("run", other)), "{option}");
        }
    }
}
