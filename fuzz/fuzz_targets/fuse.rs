//! Hostile replies of a virtio-fs server: no panic, and no more names than there are bytes for.
//!
//! Input: what the header says of the request's number, then the reply.
#![no_main]

use formats::fuse::{
    REPLY_HEADER, attributes, entry, handle, init, names_with_objects, reply_body, stat_fs,
};
use libfuzzer_sys::fuzz_target;

const UNIQUE: u64 = 7;
/// The least that a name takes: its object, and its record.
const NAME: usize = 128 + 24;

fuzz_target!(|data: &[u8]| {
    let Some((&fits, rest)) = data.split_first() else { return };
    let mut reply = rest.to_vec();
    if fits % 2 == 0 && reply.len() >= REPLY_HEADER {
        let len = (reply.len() as u32).to_le_bytes();
        reply[..4].copy_from_slice(&len);
        reply[4..8].fill(0);
        reply[8..16].copy_from_slice(&UNIQUE.to_le_bytes());
    }
    let Ok(body) = reply_body(&reply, reply.len(), UNIQUE) else { return };
    assert_eq!(body.len(), reply.len() - REPLY_HEADER);
    let _ = (init(body), entry(body), attributes(body), handle(body), stat_fs(body));
    let mut found = 0;
    for named in names_with_objects(body) {
        if let Ok((_, name)) = named {
            assert!(name.name.len() <= body.len());
        }
        found += 1;
    }
    assert!(found <= body.len() / NAME + 1);
});
