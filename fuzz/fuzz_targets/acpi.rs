//! Hostile memory under the firmware's tables: no panic, an end, and results within their bounds.
//!
//! The input is memory from address 16 on, since 0 is no address. The root pointer lies where it is
//! found, else at its beginning.
//! Checksums are made right for half of the inputs, so that bodies are reached.
#![no_main]

use formats::acpi::{Memory, find_root_pointer, read};
use libfuzzer_sys::fuzz_target;

const BASE: usize = 16;
/// Bytes of the header of a table, the length among them at 4, the checksum at 9.
const HEADER_BYTES: usize = 36;
/// Bytes of the root pointer of revision 0; its checksum is at 8.
const ROOT_BYTES: usize = 20;

struct Flat(Vec<u8>, bool);

impl Memory for Flat {
    fn read(&self, phys: u64, len: usize) -> Option<Vec<u8>> {
        let start = usize::try_from(phys).ok()?.checked_sub(BASE)?;
        let end = start.checked_add(len)?;
        let mut bytes = self.0.get(start..end)?.to_vec();
        if self.1 && len >= HEADER_BYTES {
            fix(&mut bytes, 9);
        }
        Some(bytes)
    }
}

fn fix(bytes: &mut [u8], at: usize) {
    bytes[at] = 0;
    let sum = bytes.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte));
    bytes[at] = sum.wrapping_neg();
}

fuzz_target!(|data: &[u8]| {
    let Some((&fits, memory)) = data.split_first() else {
        return;
    };
    let mut memory = memory.to_vec();
    let fits = fits % 2 == 0;
    if fits && memory.len() >= ROOT_BYTES {
        memory[..8].copy_from_slice(b"RSD PTR ");
        memory[15] = 0;
        fix(&mut memory[..ROOT_BYTES], 8);
    }
    let at = find_root_pointer(&memory).unwrap_or(0);
    assert!(at <= memory.len());
    if let Ok(firmware) = read((BASE + at) as u64, &Flat(memory, fits)) {
        assert!(firmware.cpus.len() <= 512);
        assert!(firmware.io_apics.len() <= 512 && firmware.overrides.len() <= 512);
    }
});
