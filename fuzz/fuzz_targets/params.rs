//! Hostile command lines for everything that reads one: no panic, and what is found is in the line.
#![no_main]

use context_tracking::isolation::Isolation;
use formats::params::{self, MmioDevice};
use libfuzzer_sys::fuzz_target;
use mitigations::{Built, Facts, Options, select};

const NAMES: [&str; 6] = ["isolcpus", "nohz_full", "cfi", "sysret", "defer", "virtio_mmio.device"];

fuzz_target!(|data: &[u8]| {
    let Ok(line) = str::from_utf8(data) else {
        return;
    };
    for name in NAMES {
        let last = params::find(line, name);
        assert_eq!(last, params::values(line, name).last());
        assert!(last.is_none_or(|value| line.contains(&format!("{name}={value}"))));
        let _ = params::has_flag(line, name);
    }
    for value in params::values(line, "virtio_mmio.device") {
        let _ = MmioDevice::parse(value);
    }
    let _ = MmioDevice::parse(line);
    let mitigations = Options::parse(line, |bad| assert!(line.contains(bad.value)));
    let _ = select(&Facts::default(), &mitigations, &Built::LIMEN);
    if let Ok(facts) = Facts::parse(line) {
        assert_eq!(Facts::parse(&facts.to_string()), Ok(facts));
    }
    for count in [1, 4, 32] {
        if let Ok(isolation) = Isolation::from_command_line(line, count) {
            let all = u32::try_from((1u64 << count) - 1).expect("at most 32 CPUs");
            // The first CPU keeps the house.
            assert_eq!((isolation.isolated | isolation.nohz_full) & !all, 0);
        }
    }
    let mut ignored = 0;
    let cfi = params::find(line, "cfi").unwrap_or(line);
    let options = text_patching::options::parse(cfi, cfi.len() % 2 == 0, |_, _| ignored += 1);
    assert!(ignored <= cfi.split(',').count() && !options.describe().is_empty());
});
