//! A profile from what a program did: what the old one does not allow is added, and the user sees
//! each change. Nothing is taken away: a run shows what a program needs, never what it does not.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;

use lsm::profile::{Access, Decision, Profile, Rule, matches};

use super::compile::LISTS;
use crate::{Error, paths};

/// Adds what was used to the profile in `file`, and says what is new and what nothing used.
pub(crate) fn learned(file: &Path, used: &[(String, String)]) -> Result<(), Error> {
    let old = match file.exists() {
        true => super::read(file, "--output ")?,
        false => Profile { name: super::name(file), ..Profile::default() },
    };
    let used: BTreeSet<(Access, String)> = used
        .iter()
        .filter_map(|(word, object)| Some((Access::from_word(word)?, general(object))))
        .filter(|(_, object)| !object.contains(char::is_control))
        .collect();
    let (new, changes) = merge(old, &used);
    changes.iter().for_each(|line| say!("limen: {line}"));
    if changes.iter().any(|line| line.starts_with('+')) || !file.exists() {
        paths::write_atomically(file, text(&new).as_bytes())?;
    }
    let (name, count) = (file.display(), new.rules.len());
    say!("limen: {name}: {count} rules; run with it: limen run --profile {name}");
    Ok(())
}

/// An object as it will be called the next time, too: process ids change.
fn general(object: &str) -> String {
    let mut parts: Vec<&str> = object.split('/').collect();
    if parts.len() > 2 && parts[0].is_empty() && parts[1] == "proc" {
        for part in parts.iter_mut().skip(2) {
            if !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()) {
                *part = "*";
            }
        }
    }
    parts.join("/")
}

/// The old rules with what they lack, and the changes in lines.
fn merge(mut profile: Profile, used: &BTreeSet<(Access, String)>) -> (Profile, Vec<String>) {
    let mut changes = Vec::new();
    for (access, object) in used {
        match profile.decide(*access, object.as_bytes()) {
            Decision::Allowed => {}
            Decision::DeniedBy(line) => changes
                .push(format!("! {} {object}: line {line} denies what was used", access.word())),
            Decision::NotAllowed => {
                changes.push(format!("+ {} {object}", access.word()));
                let (access, pattern) = (*access, object.clone());
                profile.rules.push(Rule { allows: true, line: 0, access, pattern });
            }
        }
    }
    for rule in profile.rules.iter().filter(|rule| rule.allows) {
        let is_used = used.iter().any(|(access, object)| {
            *access == rule.access && matches(rule.pattern.as_bytes(), object.as_bytes())
        });
        if !is_used {
            changes.push(format!("  {} {}: not used this time", rule.access.word(), rule.pattern));
        }
    }
    (profile, changes)
}

/// The profile as TOML.
fn text(profile: &Profile) -> String {
    let mut out = String::from(
        "# What programs may do in a VM that is run with `limen run --profile` and this file.\n\
         # All else is denied. `*` is any part of a name, `**` anything below.\n",
    );
    let mut table = "";
    for (of, list, access, allows) in LISTS {
        let mut patterns: Vec<&str> = profile
            .rules
            .iter()
            .filter(|rule| rule.access == access && rule.allows == allows)
            .map(|rule| rule.pattern.as_str())
            .collect();
        if patterns.is_empty() {
            continue;
        }
        if of != table {
            table = of;
            let _ = write!(out, "\n[{table}]\n");
        }
        patterns.sort_unstable();
        patterns.dedup();
        let _ = writeln!(out, "{list} = [");
        for pattern in patterns {
            let _ = writeln!(out, "    {},", quoted(pattern));
        }
        let _ = writeln!(out, "]");
    }
    out
}

/// A text as TOML writes it; control characters are in no pattern.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use super::super::compile::compile;
    use super::*;

    fn used(list: &[(Access, &str)]) -> BTreeSet<(Access, String)> {
        list.iter().map(|(access, object)| (*access, general(object))).collect()
    }

    #[test]
    fn what_is_learned_allows_what_was_done() {
        let did = used(&[
            (Access::Read, "/etc/hosts"),
            (Access::Read, "/proc/17/task/18/maps"),
            (Access::Execute, "/usr/bin/a \"b\""),
            (Access::Connect, "tcp:443"),
        ]);
        let (profile, changes) = merge(Profile::default(), &did);
        assert_eq!(changes.len(), 4);
        let again = compile("a.toml", &text(&profile)).unwrap();
        for (access, object) in &did {
            assert_eq!(again.decide(*access, object.as_bytes()), Decision::Allowed, "{object}");
        }
        assert_eq!(again.decide(Access::Read, b"/proc/99/task/1/maps"), Decision::Allowed);
        assert_eq!(again.decide(Access::Write, b"/etc/hosts"), Decision::NotAllowed);
        // The same again changes nothing.
        assert_eq!(merge(again, &did).1, Vec::<String>::new());
    }

    #[test]
    fn the_next_run_shows_what_changed() {
        let old = compile("a.toml", "[paths]\nread = [\"/a\", \"/b\"]\ndeny_read = [\"/c\"]\n");
        let did = used(&[(Access::Read, "/a"), (Access::Read, "/c"), (Access::Write, "/d")]);
        let (new, changes) = merge(old.unwrap(), &did);
        let wanted = [
            "! read /c: line 3 denies what was used",
            "+ write /d",
            "  read /b: not used this time",
        ];
        assert_eq!(changes, wanted);
        assert_eq!(new.rules.len(), 4);
    }
}
