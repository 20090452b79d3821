//! Hostile bytes for every decoder that meets text or tables.
#![no_main]

use libfuzzer_sys::fuzz_target;
use text_patching::kcfi::{self, CHECK_LEN, Expect, Form};
use text_patching::poke::{self, SliceText};
use text_patching::site_table::SiteTables;
use text_patching::{preamble, tail};

const BASE: u64 = 0xffff_ffff_8000_0000;

fuzz_target!(|data: &[u8]| {
    let _ = tail::decode(BASE, data);
    if let Some(bytes) = data.first_chunk() {
        let _ = preamble::decode(BASE, *bytes);
    }
    if let Ok(tables) = SiteTables::parse(data) {
        assert!(tables.checks().iter().all(|entry| tables.checks().find(entry.site).is_some()));
    }
    let mut bytes = data.to_vec();
    let mut text = SliceText::new(BASE, &mut bytes);
    let expect = Expect::any(BASE);
    let derive = |text: &SliceText<'_>, expect| kcfi::reform(text, expect, Form::Opt);
    match poke::check(&text, [expect].into_iter(), derive) {
        Ok(pass) => {
            assert!(pass.apply(&mut text).is_ok());
            assert_eq!(bytes[CHECK_LEN..], data[CHECK_LEN..]);
        }
        Err(_) => assert_eq!(bytes, data),
    }
});
