//! Hostile caches of the dynamic loader: no panic, bounded work, and strings without NUL.
#![no_main]

use formats::library_cache::parse;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some(found) = parse(data) else {
        return;
    };
    assert!(found.len() <= data.len() / 24);
    for (name, path) in found {
        assert!(name.len() < 4096 && path.len() < 4096);
        assert!(!name.contains(&0) && !path.contains(&0));
    }
});
