//! Patterns against a slow and obvious model, rules that deny, and texts that are no profiles.

use lsm::profile::{ACCESSES, Access, Decision, Profile, Rule, Unreadable, matches};
use proptest::prelude::*;

/// What a pattern means, by trying everything.
fn model(pattern: &[u8], object: &[u8]) -> bool {
    fn glob(p: &[u8], o: &[u8]) -> bool {
        match (p, o) {
            ([b'*', b'*', rest @ ..], _) => (0..=o.len()).any(|n| glob(rest, &o[n..])),
            ([b'*', rest @ ..], _) => {
                let end = o.iter().position(|&b| b == b'/').unwrap_or(o.len());
                (0..=end).any(|n| glob(rest, &o[n..]))
            }
            ([b'?', p @ ..], [byte, o @ ..]) if *byte != b'/' => glob(p, o),
            ([a, p @ ..], [b, o @ ..]) if a == b => glob(p, o),
            ([], []) => true,
            _ => false,
        }
    }
    let folder = pattern.strip_suffix(b"/**").filter(|folder| !folder.is_empty());
    folder.is_some_and(|folder| glob(folder, object)) || glob(pattern, object)
}

fn profile(rules: &[(bool, Access, &str)]) -> Profile {
    let rule = |(index, &(allows, access, pattern)): (usize, &(bool, Access, &str))| Rule {
        allows,
        line: index as u32 + 1,
        access,
        pattern: pattern.into(),
    };
    let rules = rules.iter().enumerate().map(rule).collect();
    Profile { name: "a.toml".into(), learns: false, rules }
}

#[test]
fn what_patterns_mean() {
    let cases = [
        ("/etc/hosts", "/etc/hosts", true),
        ("/etc/hosts", "/etc/hosts2", false),
        ("/etc/*", "/etc/hosts", true),
        ("/etc/*", "/etc/ssl/cert", false),
        ("/etc/**", "/etc/ssl/cert", true),
        ("/etc/**", "/etc", true),
        ("/etc/**", "/etcetera", false),
        ("/**", "/a", true),
        ("/**/x", "/a/b/x", true),
        ("/**/x", "/x", false),
        ("/a/*/c", "/a/b/c", true),
        ("/a/*/c", "/a/b/b/c", false),
        ("/proc/*/maps", "/proc/17/maps", true),
        ("/a?c", "/abc", true),
        ("/a?c", "/a/c", false),
        ("tcp:*", "tcp:443", true),
        ("tcp:44?", "tcp:80", false),
    ];
    for (pattern, object, wanted) in cases {
        assert_eq!(matches(pattern.as_bytes(), object.as_bytes()), wanted, "{pattern} {object}");
    }
}

#[test]
fn denials_win_and_the_rest_is_denied() {
    use Access::{Read, Write};
    let of = profile(&[(true, Read, "/home/**"), (false, Read, "/home/*/.ssh/**")]);
    assert_eq!(of.decide(Read, b"/home/a/x"), Decision::Allowed);
    assert_eq!(of.decide(Read, b"/home/a/.ssh/id"), Decision::DeniedBy(2));
    assert_eq!(of.decide(Write, b"/home/a/x"), Decision::NotAllowed);
    assert_eq!(of.decide(Read, b"/etc/passwd"), Decision::NotAllowed);
    let nothing = profile(&[]);
    for access in ACCESSES {
        assert_eq!(nothing.decide(access, b"/"), Decision::NotAllowed);
        assert_eq!(Access::from_word(access.word()), Some(access));
    }
    assert_eq!(Profile { learns: true, ..of }.decide(Write, b"/x"), Decision::Allowed);
}

#[test]
fn what_is_no_profile_is_none() {
    let good = profile(&[(true, Access::Read, "/a b"), (false, Access::Bind, "tcp:1")]);
    let text = good.encode();
    assert_eq!(Profile::decode(text.as_bytes()), Ok(good.clone()));
    let learning = Profile { learns: true, ..good };
    assert_eq!(Profile::decode(learning.encode().as_bytes()), Ok(learning));
    for len in 0..text.len() {
        assert!(Profile::decode(&text.as_bytes()[..len]).is_err(), "cut at {len}");
    }
    let line = |text: &str| Profile::decode(text.as_bytes()).unwrap_err().line;
    assert_eq!(Profile::decode(b""), Err(Unreadable { line: 1 }));
    assert_eq!(line("limen-profile 2 a\nend\n"), 1);
    assert_eq!(line("limen-profile 1 \nend\n"), 1);
    assert_eq!(line("limen-profile 1 a\nallow 1 raed /x\nend\n"), 2);
    assert_eq!(line("limen-profile 1 a\nallow 1 read /x\nallow 01 read /x\nend\n"), 3);
    assert_eq!(line("limen-profile 1 a\nallow 1 read \nend\n"), 2);
    assert_eq!(line("limen-profile 1 a\nend\nallow 1 read /x\n"), 3);
}

proptest! {
    #[test]
    fn patterns_are_the_models(pattern in "[a/*?]{0,9}", object in "[a/b]{0,9}") {
        let (pattern, object) = (pattern.as_bytes(), object.as_bytes());
        prop_assert_eq!(matches(pattern, object), model(pattern, object));
    }

    #[test]
    fn decoding_never_panics_and_is_exact(
        text in "(limen-profile 1 a|allow|deny| |\n|1|read|/x|end){0,12}",
    ) {
        if let Ok(profile) = Profile::decode(text.as_bytes()) {
            prop_assert_eq!(profile.encode(), text);
        }
    }
}
