//! Hostile profiles: no panic, what is read is written again byte for byte, what is cut is none,
//! and rules that deny win.
#![no_main]

use libfuzzer_sys::fuzz_target;
use lsm::profile::{ACCESSES, Decision, Profile, Rule, matches};

fuzz_target!(|data: &[u8]| {
    // An object and a profile, apart at the first newline.
    let (object, text) = match data.iter().position(|&byte| byte == b'\n') {
        Some(at) => (&data[..at], &data[at + 1..]),
        None => (&data[..0], data),
    };
    let Ok(profile) = Profile::decode(text) else { return };
    assert_eq!(profile.encode().as_bytes(), text);
    assert!(Profile::decode(&text[..text.len() - 1]).is_err());
    for access in ACCESSES {
        let of = |allows| {
            let those = |rule: &&Rule| (rule.allows, rule.access) == (allows, access);
            let mut rules = profile.rules.iter().filter(those);
            rules.any(|rule| matches(rule.pattern.as_bytes(), object))
        };
        let allowed = profile.decide(access, object) == Decision::Allowed;
        assert_eq!(allowed, profile.learns || of(true) && !of(false));
    }
});
