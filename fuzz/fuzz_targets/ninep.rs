//! Hostile replies to every kind of request: no panic, and nothing beyond what was asked for.
//!
//! Input: which request, a count, then the reply; its type, tag and size are made to fit for half
//! of the inputs, so that bodies are reached.
#![no_main]

use formats::ninep::{GETATTR_BASIC, HEADER_BYTES, Reply, Request, SetAttr, entries};
use libfuzzer_sys::fuzz_target;

const TAG: u16 = 0x1234;

fuzz_target!(|data: &[u8]| {
    let Some((&[which, count, fits], rest)) = data.split_first_chunk::<3>() else {
        return;
    };
    let names = [b"a".as_slice(), b"b"];
    let names = &names[..usize::from(count) % 3];
    let request = request(which, u32::from(count), names);
    let mut reply = rest.to_vec();
    if fits % 2 == 0 && reply.len() >= HEADER_BYTES {
        let size = (reply.len() as u32).to_le_bytes();
        reply[..4].copy_from_slice(&size);
        reply[4] = request.kind() + 1;
        reply[5..HEADER_BYTES].copy_from_slice(&TAG.to_le_bytes());
    }
    match request.decode(TAG, &reply) {
        Ok(Reply::Data(data)) => {
            assert!(data.len() <= usize::from(count));
            let found = entries(data).count();
            // A whole entry has 24 bytes; the last may be an error.
            assert!(found <= data.len() / 24 + 1);
        }
        Ok(Reply::Walk(found)) => assert!(found.len() <= names.len()),
        Ok(Reply::Written(written)) => assert!(written <= 2),
        Ok(Reply::Version(size, _)) => assert!(size <= u32::from(count)),
        Ok(Reply::Target(target)) => assert!(target.len() <= reply.len()),
        _ => {}
    }
});

fn request<'a>(which: u8, count: u32, names: &'a [&'a [u8]]) -> Request<'a> {
    match which % 14 {
        0 => Request::StatFs { fid: 1 },
        1 => Request::Open { fid: 1, flags: 0 },
        2 => Request::ReadLink { fid: 1 },
        3 => Request::GetAttr { fid: 1, mask: GETATTR_BASIC },
        4 => Request::SetAttr { fid: 1, changes: SetAttr::default() },
        5 => Request::XattrWalk { fid: 1, new_fid: 2, name: b"user.a" },
        6 => Request::ReadDir { fid: 1, offset: 0, count },
        7 => Request::MakeDir { directory: 1, name: b"a", mode: 0, gid: 0 },
        8 => Request::Version { max_message: count },
        9 => Request::Attach { fid: 1, user: b"root", tree: b"", uid: 0 },
        10 => Request::Walk { fid: 1, new_fid: 2, names },
        11 => Request::Read { fid: 1, offset: 0, count },
        12 => Request::Write { fid: 1, offset: 0, data: b"ab" },
        _ => Request::Clunk { fid: 1 },
    }
}
