//! Hostile images: no panic, and a rewrite changes nothing but the forms of checks.
#![no_main]

use libfuzzer_sys::fuzz_target;
use objtool::{FinishOptions, Form, Options, audit, finish, rewrite};

fuzz_target!(|data: &[u8]| {
    let options = Options::default();
    let _ = audit(data, &options).map(|report| report.to_string());
    let _ = finish(data, &FinishOptions::default());
    if let Ok(rewritten) = rewrite(data, Form::Opt, &options) {
        let changed = rewritten.data.iter().zip(data).filter(|(new, old)| new != old).count();
        assert!(rewritten.data.len() == data.len() && changed <= rewritten.applied.written * 6 + 1);
    }
});
