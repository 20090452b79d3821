//! A driver and a hostile device at one queue: descriptors are never lost, never given twice, and
//! only what is in flight comes back.
//!
//! Input: the size, then steps of three bytes: submit a chain, or complete an id with a length.
#![no_main]

use std::collections::BTreeMap;

use libfuzzer_sys::fuzz_target;
use virtqueue::Chains;

fuzz_target!(|data: &[u8]| {
    let Some((&size, steps)) = data.split_first() else {
        return;
    };
    let size = 1u16 << (size % 9);
    let mut chains = Chains::new(size);
    // By head: the value, the room, and the descriptors of its chain.
    let mut flying = BTreeMap::<u16, (u32, usize, Vec<u16>)>::new();
    for (value, step) in (0u32..).zip(steps.chunks_exact(3)) {
        let (count, room) = (usize::from(step[1] % 5), usize::from(step[2]));
        if step[0] % 2 == 0 {
            let mut used = Vec::new();
            let free = chains.free();
            match chains.submit(count, value, room, |index, _| used.push(index)) {
                Ok(head) => {
                    assert_eq!((used.len(), used[0]), (count, head));
                    assert!(used.iter().all(|&index| index < size));
                    let taken = flying.values().flat_map(|(_, _, chain)| chain);
                    assert!(taken.clone().all(|index| !used.contains(index)));
                    assert!(flying.insert(head, (value, room, used)).is_none());
                }
                Err(back) => assert!(back == value && (count == 0 || count > free)),
            }
        } else {
            let id = u32::from(step[1]) | u32::from(step[0] & 0x80) << 9;
            let written = u32::from(step[2]) | u32::from(step[0] & 0x40) << 20;
            let known = u16::try_from(id).ok().and_then(|head| flying.get(&head));
            let fits = known.is_some_and(|(_, room, _)| written as usize <= *room);
            match chains.complete(id, written) {
                Some((head, value, len)) => {
                    assert!(fits && u32::from(head) == id && len == written as usize);
                    assert_eq!(flying.remove(&head).map(|(old, ..)| old), Some(value));
                }
                None => assert!(!fits),
            }
        }
        let taken: usize = flying.values().map(|(_, _, chain)| chain.len()).sum();
        assert_eq!(chains.free() + taken, usize::from(size));
        assert_eq!(chains.pending(), flying.len());
    }
});
