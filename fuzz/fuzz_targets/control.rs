//! Hostile lines, in both directions: no panic, and what decodes survives another round.
#![no_main]

use formats::control::{LINE_MAX, LineBuffer, ToGuest, ToHost};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    LineBuffer::new().push(data, |line| {
        if let Some(message) = ToHost::decode(line) {
            let again = message.encode();
            // Escapes may make a line longer than it came.
            if again.len() <= LINE_MAX {
                assert_eq!(ToHost::decode(&again[..again.len() - 1]), Some(message));
            }
        }
        if let Some(message) = ToGuest::decode(line) {
            let again = message.encode();
            assert_eq!(ToGuest::decode(&again[..again.len() - 1]), Some(message));
        }
    });
});
