//! Hostile configurations: no panic, and what decodes survives another round.
#![no_main]

use formats::boot_config::BootConfig;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok(config) = BootConfig::decode(data) {
        assert_eq!(BootConfig::decode(&config.encode()), Ok(config));
    }
});
