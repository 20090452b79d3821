//! Hostile lists of a boot loader: no panic, an end, and everything named lies in the list.
#![no_main]

use formats::multiboot::{MEMORY_ENTRY_BYTES, read, total_bytes};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let _ = total_bytes(data);
    let info = read(data);
    let map_bytes = info.memory_map_entries as usize * MEMORY_ENTRY_BYTES;
    assert!(info.memory_map + map_bytes <= data.len() && info.rsdp <= data.len());
    assert!(info.command_line == 0 || data[info.command_line..].contains(&0));
});
