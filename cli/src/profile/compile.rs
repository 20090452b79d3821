//! From TOML to rules. Whatever is not understood is refused with file, line and column, and with
//! the nearest word that would have been: a profile with a mistake must not mean less than it says.

use lsm::profile::{Access, PATTERN_MAX, Profile, RULES_MAX, Rule};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// The tables and their lists: each gives rules for an access, and either allows or denies.
pub(super) const LISTS: [(&str, &str, Access, bool); 10] = [
    ("paths", "read", Access::Read, true),
    ("paths", "write", Access::Write, true),
    ("paths", "execute", Access::Execute, true),
    ("paths", "deny_read", Access::Read, false),
    ("paths", "deny_write", Access::Write, false),
    ("paths", "deny_execute", Access::Execute, false),
    ("network", "connect", Access::Connect, true),
    ("network", "bind", Access::Bind, true),
    ("network", "deny_connect", Access::Connect, false),
    ("network", "deny_bind", Access::Bind, false),
];

/// Compiles a profile; the error is a line for the user.
pub(super) fn compile(name: &str, text: &str) -> Result<Profile, String> {
    let at = |offset: usize, what: String| {
        let (line, column) = position(text, offset);
        format!("{name}:{line}:{column}: {what}")
    };
    let document = DeTable::parse(text).map_err(|error| {
        at(error.span().map_or(text.len(), |span| span.start), error.message().to_owned())
    })?;
    let mut rules = Vec::new();
    for (table, value) in document.get_ref() {
        let lists: Vec<&str> =
            LISTS.iter().filter(|list| list.0 == &**table.get_ref()).map(|list| list.1).collect();
        if lists.is_empty() {
            let known = LISTS.map(|list| list.0);
            return Err(at(table.span().start, unknown("table", table.get_ref(), &known)));
        }
        let DeValue::Table(entries) = value.get_ref() else {
            return Err(at(value.span().start, format!("`{}` must be a table", table.get_ref())));
        };
        for (key, list) in entries {
            let known = |of: &&(&str, &str, Access, bool)| {
                of.0 == &**table.get_ref() && of.1 == &**key.get_ref()
            };
            let Some(&(.., access, allows)) = LISTS.iter().find(known) else {
                return Err(at(key.span().start, unknown("list", key.get_ref(), &lists)));
            };
            for pattern in patterns(key.get_ref(), list).map_err(|(o, what)| at(o, what))? {
                let offset = pattern.span().start;
                let text_of = string(pattern).map_err(|what| at(offset, what))?;
                check(access, text_of).map_err(|what| at(offset, what))?;
                let line = position(text, offset).0 as u32;
                rules.push(Rule { allows, line, access, pattern: text_of.to_owned() });
            }
        }
    }
    if rules.len() > RULES_MAX {
        return Err(format!("{name}: {} rules, at most {RULES_MAX}", rules.len()));
    }
    rules.sort_by_key(|rule| rule.line);
    Ok(Profile { name: name.to_owned(), learns: false, rules })
}

type Values<'a, 'b> = &'a [Spanned<DeValue<'b>>];

fn patterns<'a, 'b>(
    key: &str,
    list: &'a Spanned<DeValue<'b>>,
) -> Result<Values<'a, 'b>, (usize, String)> {
    match list.get_ref() {
        DeValue::Array(values) => Ok(values),
        _ => Err((list.span().start, format!("`{key}` must be a list of texts"))),
    }
}

fn string<'a>(value: &'a Spanned<DeValue<'_>>) -> Result<&'a str, String> {
    match value.get_ref() {
        DeValue::String(text) => Ok(text),
        _ => Err("a pattern must be a text".to_owned()),
    }
}

/// What a pattern must look like.
fn check(access: Access, pattern: &str) -> Result<(), String> {
    if pattern.contains(char::is_control) || pattern.len() > PATTERN_MAX {
        return Err(format!("{pattern:?} is too long, or has control characters"));
    }
    if !matches!(access, Access::Connect | Access::Bind) {
        let plain = pattern.split('/').skip(1).all(|part| part != "." && part != "..");
        return match pattern.starts_with('/') && plain {
            true => Ok(()),
            false => Err(format!("{pattern:?}: a path begins with `/` and has no `.` or `..`")),
        };
    }
    let kinds = ["tcp", "udp", "unix"];
    let (kind, rest) = pattern.split_once(':').unwrap_or((pattern, ""));
    if !kinds.contains(&kind) {
        return Err(unknown("kind of address", kind, &kinds));
    }
    let good = match kind {
        "unix" => rest.starts_with(['/', '@']),
        _ => rest.contains(['*', '?']) || rest.parse::<u16>().is_ok(),
    };
    match good {
        true => Ok(()),
        false => Err(format!(
            "{pattern:?}: an address is `tcp:PORT`, `udp:PORT`, `unix:/PATH` or `unix:@NAME`"
        )),
    }
}

fn unknown(what: &str, word: &str, known: &[&str]) -> String {
    let nearest = known.iter().min_by_key(|known| distance(word, known));
    let advice = nearest.map_or(String::new(), |nearest| format!(": did you mean `{nearest}`?"));
    format!("unknown {what} `{word}`{advice}")
}

/// How many characters must be changed, added or left out to make one word of the other.
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (i, a) in one.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, &b) in other.iter().enumerate() {
            let changed = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[other.len()]
}

/// Line and column of a byte, from 1.
fn position(text: &str, offset: usize) -> (usize, usize) {
    let before = text.get(..offset).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or("").chars().count() + 1;
    (line, column)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lsm::profile::Decision;

    #[test]
    fn a_profile_becomes_rules() {
        let text = "[paths]\nread = [\"/usr/**\",\n  \"/etc/hosts\"]\ndeny_write = [\"/**\"]\n\
                    [network]\nconnect = [\"tcp:443\", \"unix:@x\"]\n";
        let profile = compile("a.toml", text).unwrap();
        assert_eq!(profile.rules.len(), 5);
        assert_eq!(profile.decide(Access::Read, b"/etc/hosts"), Decision::Allowed);
        assert_eq!(profile.decide(Access::Write, b"/etc/hosts"), Decision::DeniedBy(4));
        assert_eq!(profile.decide(Access::Connect, b"tcp:80"), Decision::NotAllowed);
        assert_eq!(compile("a.toml", "").unwrap().rules, []);
    }

    #[test]
    fn mistakes_are_named_with_their_place() {
        let cases = [
            ("[path]\n", "a.toml:1:2: unknown table `path`: did you mean `paths`?"),
            ("[paths]\nraed = []\n", "a.toml:2:1: unknown list `raed`: did you mean `read`?"),
            (
                "[network]\n\nconect = [\"tcp:1\"]\n",
                "a.toml:3:1: unknown list `conect`: did you mean `connect`?",
            ),
            ("paths = 1\n", "a.toml:1:9: `paths` must be a table"),
            ("[paths]\nread = \"/x\"\n", "a.toml:2:8: `read` must be a list of texts"),
            ("[paths]\nread = [7]\n", "a.toml:2:9: a pattern must be a text"),
            (
                "[paths]\nread = [\"etc\"]\n",
                "a.toml:2:9: \"etc\": a path begins with `/` and has no `.` or `..`",
            ),
            (
                "[network]\nbind = [\"tpc:1\"]\n",
                "a.toml:2:9: unknown kind of address `tpc`: did you mean `tcp`?",
            ),
            (
                "[network]\nbind = [\"tcp:99999\"]\n",
                "a.toml:2:9: \"tcp:99999\": an address is `tcp:PORT`, `udp:PORT`, `unix:/PATH` or \
                 `unix:@NAME`",
            ),
        ];
        for (text, wanted) in cases {
            assert_eq!(compile("a.toml", text).unwrap_err(), wanted);
        }
        let broken = compile("a.toml", "[paths]\nread = [\"/x\"\n").unwrap_err();
        assert!(broken.starts_with("a.toml:"), "{broken}");
    }

    proptest::proptest! {
        /// Whatever is written: a profile that the kernel reads as the same, or a line with a place
        /// that the text has. `fuzz/run.sh profile_toml` looks further.
        #[test]
        fn any_text_is_a_profile_or_refused_with_its_place(
            words in proptest::collection::vec("[a-z]{0,4}|paths|network|read|bind|tcp:[0-9]{1,6}|\
                /[a-z*]{0,3}|\\[|\\]|\"|=|,|\n| |é", 0..24)
        ) {
            let text = words.concat();
            match compile("a.toml", &text) {
                Ok(profile) => {
                    let again = Profile::decode(profile.encode().as_bytes());
                    proptest::prop_assert_eq!(again.ok(), Some(profile));
                }
                Err(said) => {
                    let place = said.strip_prefix("a.toml:").and_then(|rest| {
                        let (line, rest) = rest.split_once(':')?;
                        let column = rest.split_once(':')?.0.parse::<usize>().ok()?;
                        Some((line.parse::<usize>().ok()?, column))
                    });
                    let (line, column) = place.expect("a place");
                    let of_text = text.split('\n').nth(line - 1).expect("a line");
                    proptest::prop_assert!((1..=of_text.chars().count() + 1).contains(&column));
                }
            }
        }
    }

    #[test]
    fn words_are_as_far_apart_as_they_are() {
        let cases = [("", "", 0), ("a", "", 1), ("raed", "read", 2), ("reads", "read", 1)];
        for (one, other, wanted) in cases {
            assert_eq!(distance(one, other), wanted);
        }
    }
}
