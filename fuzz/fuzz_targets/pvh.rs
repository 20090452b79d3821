//! Hostile words of a loader: no panic, and no page of RAM twice in the map, or given twice.
//!
//! Input: numbers of what is reserved and taken (16 bytes), then memory from address 0 on, the
//! start info at its beginning. Its magic is made right, and its map put behind it, for half of
//! the inputs.
#![no_main]

use formats::pvh::{Memory, MemoryMap, StartInfo};
use libfuzzer_sys::fuzz_target;

const INFO_BYTES: usize = 56;

struct Flat(Vec<u8>);

impl Memory for Flat {
    fn read(&self, phys: u64, bytes: &mut [u8]) -> bool {
        let start = usize::try_from(phys).unwrap_or(usize::MAX);
        let end = start.saturating_add(bytes.len());
        match self.0.get(start..end) {
            Some(found) => bytes.copy_from_slice(found),
            None => return false,
        }
        true
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((numbers, memory)) = data.split_first_chunk::<16>() else {
        return;
    };
    let mut memory = memory.to_vec();
    if numbers[0] % 2 == 0 && memory.len() >= INFO_BYTES {
        memory[..4].copy_from_slice(&0x336e_c578u32.to_le_bytes());
        memory[40..48].copy_from_slice(&(INFO_BYTES as u64).to_le_bytes());
        let entries = (memory.len() - INFO_BYTES) / 24;
        memory[48..52].copy_from_slice(&(entries as u32).to_le_bytes());
    }
    let Ok(info) = StartInfo::read(0, &Flat(memory)) else {
        return;
    };
    assert!(info.initrd.is_none_or(|(start, end)| start <= end));
    let mut map = info.memory;
    let number = |at: usize| u64::from_le_bytes(*numbers[at..].first_chunk().expect("eight bytes"));
    let (start, end) = (number(0) >> 16, number(8) >> 16);
    let mut given = Vec::new();
    check(&map, &given);
    map.reserve(start, end);
    given.push(if start < end { (start, end) } else { (0, 0) });
    check(&map, &given);
    for bytes in [1, number(4) >> 40, number(8) >> 30, 4096] {
        if let Some(at) = map.take(bytes, number(0) >> (bytes % 64)) {
            given.push((at, at + bytes.next_multiple_of(4096)));
        }
        check(&map, &given);
    }
});

fn check(map: &MemoryMap, given: &[(u64, u64)]) {
    let mut all: Vec<(u64, u64)> = map.ranges().to_vec();
    assert!(all.iter().all(|range| range.0 % 4096 == 0 && range.1 % 4096 == 0));
    assert!(all.iter().all(|range| range.1 <= map.end()));
    all.extend(given.iter().skip(1));
    all.retain(|range| range.0 != range.1);
    all.sort_unstable();
    assert!(all.iter().all(|range| range.0 < range.1));
    assert!(all.windows(2).all(|pair| pair[0].1 <= pair[1].0));
    // What is reserved may overlap anything of the loader's, but nothing that is left.
    let reserved = given.first().copied().unwrap_or((0, 0));
    assert!(all.iter().all(|range| range.1 <= reserved.0 || reserved.1 <= range.0));
}
