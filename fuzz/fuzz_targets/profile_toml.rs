//! Hostile profiles as a user writes them: no panic; what is refused is refused at a place that the
//! text has; what is accepted is a profile that the kernel reads as the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use lsm::profile::{Profile, RULES_MAX};

#[path = "../../cli/src/profile/compile.rs"]
#[allow(dead_code, reason = "the lists are also learned from")]
mod compile;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match compile::compile("p.toml", text) {
        Ok(profile) => {
            assert!(profile.rules.len() <= RULES_MAX && !profile.learns);
            // Longer than the kernel reads: the command line says so afterwards.
            if let Ok(again) = Profile::decode(profile.encode().as_bytes()) {
                assert_eq!(again, profile);
            }
        }
        Err(said) => {
            let mut words = said.splitn(4, ':');
            assert_eq!(words.next(), Some("p.toml"));
            let mut number = || words.next().and_then(|word| word.parse::<usize>().ok());
            if let (Some(line), Some(column)) = (number(), number()) {
                let lines: Vec<&str> = text.split('\n').collect();
                assert!(line >= 1 && line <= lines.len(), "{said}");
                assert!(column >= 1 && column <= lines[line - 1].chars().count() + 1, "{said}");
            } else {
                assert!(said.contains("rules, at most"), "{said}");
            }
        }
    }
});
