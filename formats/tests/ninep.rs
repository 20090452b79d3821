//! The 9P codec against bytes written by hand from the protocol's description, and against replies
//! that a faulty or hostile server could send.

use formats::ninep::{
    DirEntry, GETATTR_BASIC, HEADER_BYTES, Qid, Reply, Request, SetAttr, WALK_MAX, WireError,
    entries,
};
use proptest::prelude::*;

const TAG: u16 = 0x1234;

/// A reply as a server would send it.
fn reply(kind: u8, tag: u16, body: &[u8]) -> Vec<u8> {
    let mut bytes = ((HEADER_BYTES + body.len()) as u32).to_le_bytes().to_vec();
    bytes.push(kind);
    bytes.extend_from_slice(&tag.to_le_bytes());
    bytes.extend_from_slice(body);
    bytes
}

fn qid_bytes(kind: u8, version: u32, path: u64) -> Vec<u8> {
    let mut bytes = vec![kind];
    bytes.extend_from_slice(&version.to_le_bytes());
    bytes.extend_from_slice(&path.to_le_bytes());
    bytes
}

#[test]
fn a_walk_is_encoded_as_the_protocol_says() {
    let request = Request::Walk { fid: 1, new_fid: 2, names: &[b"usr", b"bin"] };
    let bytes = request.encode(TAG).unwrap();
    #[rustfmt::skip]
    let expected = [
        27, 0, 0, 0, // size
        110, 0x34, 0x12, // Twalk, tag
        1, 0, 0, 0, 2, 0, 0, 0, // fid, newfid
        2, 0, // nwname
        3, 0, b'u', b's', b'r', 3, 0, b'b', b'i', b'n',
    ];
    assert_eq!(bytes, expected);
}

#[test]
fn a_setattr_has_a_fixed_layout() {
    let changes = SetAttr { valid: 8, size: 0x0102_0304_0506, ..SetAttr::default() };
    let bytes = Request::SetAttr { fid: 9, changes }.encode(TAG).unwrap();
    // fid, valid, mode, uid, gid; size and two times of two words each.
    assert_eq!(bytes.len(), HEADER_BYTES + 5 * 4 + 5 * 8);
    assert_eq!(bytes[4], 26);
    assert_eq!(bytes[27..35], [6, 5, 4, 3, 2, 1, 0, 0]);
}

#[test]
fn a_write_carries_its_data_last() {
    let bytes = Request::Write { fid: 7, offset: 0x10, data: b"abc" }.encode(TAG).unwrap();
    assert_eq!(bytes[11..], [0x10, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, b'a', b'b', b'c']);
}

#[test]
fn strings_and_walks_that_do_not_fit_are_refused() {
    let long = vec![b'x'; 0x1_0000];
    let request = Request::Unlink { directory: 0, name: &long, flags: 0 };
    assert_eq!(request.encode(TAG), Err(WireError::TooLong));
    let names = [b"a".as_slice(); WALK_MAX + 1];
    let request = Request::Walk { fid: 0, new_fid: 1, names: &names };
    assert_eq!(request.encode(TAG), Err(WireError::TooLong));
}

#[test]
fn attributes_are_read_field_by_field() {
    let mut body = 0x7ffu64.to_le_bytes().to_vec();
    body.extend(qid_bytes(Qid::DIRECTORY, 5, 77));
    for value in [0o40755u32, 1000, 1001] {
        body.extend_from_slice(&value.to_le_bytes());
    }
    for value in 10u64..25 {
        body.extend_from_slice(&value.to_le_bytes());
    }
    let request = Request::GetAttr { fid: 1, mask: GETATTR_BASIC };
    let bytes = reply(25, TAG, &body);
    let Ok(Reply::Attributes(a)) = request.decode(TAG, &bytes) else { panic!("not attributes") };
    assert_eq!(a.qid, Qid { kind: Qid::DIRECTORY, version: 5, path: 77 });
    assert_eq!((a.mode, a.uid, a.gid, a.links, a.rdev, a.size), (0o40755, 1000, 1001, 10, 11, 12));
    assert_eq!((a.block_size, a.blocks), (13, 14));
    assert_eq!((a.atime, a.mtime, a.ctime), ((15, 16), (17, 18), (19, 20)));
}

#[test]
fn errors_of_the_server_come_through_and_nonsense_numbers_do_not() {
    let request = Request::Clunk { fid: 1 };
    let error =
        |number: u32| request.decode(TAG, &reply(7, TAG, &number.to_le_bytes())).map(|_| ());
    assert_eq!(error(2), Err(WireError::Errno(2)));
    assert_eq!(error(0), Err(WireError::Malformed));
    assert_eq!(error(4096), Err(WireError::Malformed));
}

#[test]
fn a_reply_of_another_type_tag_or_length_is_malformed() {
    let request = Request::Read { fid: 1, offset: 0, count: 4 };
    let good = reply(117, TAG, &[3, 0, 0, 0, b'a', b'b', b'c']);
    assert_eq!(request.decode(TAG, &good), Ok(Reply::Data(b"abc")));
    assert_eq!(request.decode(TAG + 1, &good), Err(WireError::Malformed));
    for wrong in [
        reply(119, TAG, &[3, 0, 0, 0, b'a', b'b', b'c']),
        reply(117, TAG, &[4, 0, 0, 0, b'a', b'b', b'c']),
        reply(117, TAG, &[5, 0, 0, 0, b'a', b'b', b'c', b'd', b'e']),
        reply(117, TAG, &[0xff, 0xff, 0xff, 0xff]),
        Vec::new(),
    ] {
        assert_eq!(request.decode(TAG, &wrong), Err(WireError::Malformed));
    }
    for len in 0..good.len() {
        assert_eq!(request.decode(TAG, &good[..len]), Err(WireError::Malformed), "{len} bytes");
    }
}

#[test]
fn bytes_after_the_message_are_ignored() {
    let request = Request::Read { fid: 1, offset: 0, count: 4 };
    let mut bytes = reply(117, TAG, &[1, 0, 0, 0, b'a']);
    bytes.extend_from_slice(&[0xee; 100]);
    assert_eq!(request.decode(TAG, &bytes), Ok(Reply::Data(b"a")));
}

#[test]
fn a_walk_may_be_partial_but_not_longer_than_asked() {
    let request = Request::Walk { fid: 1, new_fid: 2, names: &[b"a", b"b"] };
    let walked = |count: u16| {
        let mut body = count.to_le_bytes().to_vec();
        (0..count).for_each(|i| body.extend(qid_bytes(0, 0, u64::from(i))));
        reply(111, TAG, &body)
    };
    let partial = walked(1);
    assert_eq!(
        request.decode(TAG, &partial),
        Ok(Reply::Walk(vec![Qid { kind: 0, version: 0, path: 0 }]))
    );
    assert_eq!(request.decode(TAG, &walked(3)), Err(WireError::Malformed));
}

#[test]
fn a_write_may_be_short_but_not_longer_than_asked() {
    let request = Request::Write { fid: 1, offset: 0, data: b"abc" };
    let short = reply(119, TAG, &[2, 0, 0, 0]);
    assert_eq!(request.decode(TAG, &short), Ok(Reply::Written(2)));
    let long = reply(119, TAG, &[4, 0, 0, 0]);
    assert_eq!(request.decode(TAG, &long), Err(WireError::Malformed));
}

#[test]
fn directory_entries_end_at_the_first_that_is_cut() {
    let mut data = qid_bytes(0, 1, 2);
    data.extend_from_slice(&9u64.to_le_bytes());
    data.push(8);
    data.extend_from_slice(&[2, 0, b'o', b'k']);
    let whole = data.len();
    data.extend_from_slice(&qid_bytes(0, 1, 3));
    let found: Vec<_> = entries(&data).collect();
    let ok = DirEntry { qid: Qid { kind: 0, version: 1, path: 2 }, next: 9, kind: 8, name: b"ok" };
    assert_eq!(found, [Ok(ok), Err(WireError::Malformed)]);
    assert_eq!(entries(&data[..whole]).count(), 1);
}

/// One request of each kind that reads its reply differently.
fn requests() -> Vec<Request<'static>> {
    vec![
        Request::Version { max_message: 8192 },
        Request::Attach { fid: 0, user: b"u", tree: b"/", uid: 0 },
        Request::Walk { fid: 0, new_fid: 1, names: &[b"a", b"b", b"c"] },
        Request::GetAttr { fid: 0, mask: GETATTR_BASIC },
        Request::StatFs { fid: 0 },
        Request::Read { fid: 0, offset: 0, count: 64 },
        Request::ReadDir { fid: 0, offset: 0, count: 64 },
        Request::Write { fid: 0, offset: 0, data: b"abc" },
        Request::ReadLink { fid: 0 },
        Request::XattrWalk { fid: 0, new_fid: 1, name: b"n" },
        Request::Clunk { fid: 0 },
    ]
}

proptest! {
    /// Whatever bytes follow a right header, decoding ends, and what it gives lies in the bytes.
    #[test]
    fn any_body_is_decoded_or_refused(body in proptest::collection::vec(any::<u8>(), 0..256)) {
        for request in requests() {
            let bytes = reply(request.kind() + 1, TAG, &body);
            match request.decode(TAG, &bytes) {
                Ok(Reply::Data(data)) => {
                    prop_assert!(data.len() <= 64);
                    prop_assert!(entries(data).count() <= data.len() / 24 + 1);
                }
                Ok(Reply::Walk(found)) => prop_assert!(found.len() <= 3),
                Ok(Reply::Target(name) | Reply::Version(_, name)) => {
                    prop_assert!(name.len() <= body.len());
                }
                _ => {}
            }
        }
    }

    /// Every single changed byte of a good reply is survived, and a changed header is noticed.
    #[test]
    fn a_changed_byte_never_panics(at in 0usize..180, value: u8, fill: u8) {
        for request in requests() {
            let good = reply(request.kind() + 1, TAG, &[fill; 173]);
            let mut bad = good.clone();
            bad[at] = value;
            let result = request.decode(TAG, &bad);
            if (4..7).contains(&at) && bad[at] != good[at] {
                prop_assert!(result.is_err());
            }
        }
    }

    /// The size field of every encoded request is its length.
    #[test]
    fn the_size_field_is_the_length(name in proptest::collection::vec(any::<u8>(), 0..300)) {
        let request = Request::Create { fid: 1, name: &name, flags: 0, mode: 0, gid: 0 };
        let bytes = request.encode(TAG).unwrap();
        prop_assert_eq!(u32::from_le_bytes(bytes[..4].try_into().unwrap()) as usize, bytes.len());
        prop_assert_eq!(bytes.len(), HEADER_BYTES + 4 + 2 + name.len() + 12);
    }
}
