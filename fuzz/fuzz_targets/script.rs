//! Hostile first lines: no panic, and an interpreter that could be a path.
#![no_main]

use formats::script::{START_MAX, Script};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let whole = Script::parse(data);
    // Nothing counts that the kernel does not read.
    assert_eq!(whole, Script::parse(&data[..data.len().min(START_MAX)]));
    let Some(script) = whole else {
        return;
    };
    let parts = [Some(script.interpreter), script.argument];
    for part in parts.into_iter().flatten() {
        assert!(!part.is_empty() && part.len() < START_MAX - 2);
        assert!(!part.contains(&b'\n') && !part.contains(&0));
        let ends = [part.first(), part.last()];
        assert!(ends.iter().all(|end| !matches!(end, Some(b' ' | b'\t'))));
    }
    assert!(!script.interpreter.contains(&b' ') && !script.interpreter.contains(&b'\t'));
});
