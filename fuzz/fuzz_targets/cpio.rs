//! Hostile archives: no panic, an end, and errors that name an offset inside the archive.
#![no_main]

use formats::cpio::{HEADER_LEN, Reader};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut entries = 0;
    for entry in Reader::new(data) {
        entries += 1;
        if let Err(error) = entry {
            assert!(error.offset <= data.len());
        }
    }
    assert!(entries <= data.len() / HEADER_LEN + 1);
});
