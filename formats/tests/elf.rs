//! Program headers made by hand, and any that a file could have.

use formats::elf::{Header, Image, Pages, Segment};
use proptest::prelude::*;

const USER_END: u64 = 0x7fff_ffff_f000;
const FIRST: u64 = 0x1_0000;
const SHARED_OBJECT: u16 = 3;
const EXECUTABLE: u16 = 2;

fn header(kind: u16, count: u16) -> [u8; Header::BYTES] {
    let mut bytes = [0; Header::BYTES];
    bytes[..4].copy_from_slice(b"\x7fELF");
    bytes[16..18].copy_from_slice(&kind.to_le_bytes());
    bytes[18] = 62;
    bytes[24..32].copy_from_slice(&0x1234u64.to_le_bytes());
    bytes[32..40].copy_from_slice(&64u64.to_le_bytes());
    bytes[54] = 56;
    bytes[56..58].copy_from_slice(&count.to_le_bytes());
    bytes
}

/// Kind and flags; then offset, address, size in the file, size in memory.
fn segment(kind: u32, flags: u32, numbers: [u64; 4]) -> Vec<u8> {
    let [offset, address, file_size, memory_size] = numbers;
    let mut bytes = kind.to_le_bytes().to_vec();
    bytes.extend(flags.to_le_bytes());
    for number in [offset, address, 0, file_size, memory_size, 0x1000] {
        bytes.extend(number.to_le_bytes());
    }
    bytes
}

fn image(kind: u16, segments: &[Vec<u8>]) -> Image {
    let header =
        Header::parse(&header(kind, segments.len() as u16)).expect("a header that this test made");
    Image::new(header, &segments.concat()).expect("a header that this test made")
}

#[test]
fn a_header_is_taken_only_with_all_that_linux_looks_at() {
    let good = header(EXECUTABLE, 1);
    assert_eq!(Header::parse(&good).unwrap().entry, 0x1234);
    for at in [0, 3, 16, 18, 54] {
        let mut bad = good;
        bad[at] ^= 0x40;
        assert_eq!(Header::parse(&bad), None, "byte {at}");
    }
    assert_eq!(Header::parse(&header(EXECUTABLE, 0)), None);
    // 64 KiB of program headers are the most.
    assert!(Header::parse(&header(EXECUTABLE, 1170)).is_some());
    assert_eq!(Header::parse(&header(EXECUTABLE, 1171)), None);
}

#[test]
fn pages_of_a_segment_that_is_longer_in_memory() {
    let image = image(SHARED_OBJECT, &[segment(1, 6, [0x1e10, 0x2e10, 0x300, 0x2000])]);
    assert!(image.is_mappable(USER_END));
    assert_eq!(image.extent(), (0x2000, 0x3000));
    let bias = image.bias(Some(0x50_0000), FIRST, USER_END).unwrap();
    assert_eq!(bias, 0x4f_e000);
    let end = 0x50_3000;
    let pages = Pages { start: 0x50_0000, file_end: 0x50_1110, mapped_end: 0x50_2000, end };
    assert_eq!(image.loads().next().unwrap().pages(bias), pages);
}

#[test]
fn segments_that_wrap_or_do_not_line_up_are_not_mappable() {
    for numbers in [
        [0, u64::MAX - 10, 0, 100],
        [0, USER_END, 0, 1],
        [u64::MAX - 100, 0x1000 - 101, 200, 200],
        [i64::MAX as u64, 0xfff, 1, 1],
        [1, 0x1000, 1, 1],
        [0, 0x1000, 2, 1],
    ] {
        let image = image(EXECUTABLE, &[segment(1, 5, numbers)]);
        assert!(!image.is_mappable(USER_END), "{numbers:x?}");
    }
}

#[test]
fn an_image_that_reaches_beyond_the_places_it_may_have_has_no_bias() {
    let low = image(EXECUTABLE, &[segment(1, 5, [0, 0x1000, 1, 1])]);
    assert_eq!(low.bias(None, FIRST, USER_END), None);
    let wide = [segment(1, 5, [0, 0, 1, 1]), segment(1, 5, [0, USER_END - 0x1000, 1, 1])];
    let wide = image(SHARED_OBJECT, &wide);
    assert!(wide.is_mappable(USER_END));
    assert_eq!(wide.bias(Some(FIRST), FIRST, USER_END), None);
    assert_eq!(image(EXECUTABLE, &[segment(4, 0, [0; 4])]).bias(None, FIRST, USER_END), Some(0));
}

/// Numbers at which sums go wrong, and others.
fn hostile() -> impl Strategy<Value = u64> {
    prop_oneof![
        any::<u64>(),
        0u64..0x10_0000,
        (0u32..64, 0u64..0x2000).prop_map(|(shift, less)| (1u64 << shift).wrapping_sub(less)),
        (0u64..0x3000).prop_map(|less| USER_END.wrapping_sub(less).wrapping_add(0x1000)),
    ]
}

proptest! {
    #[test]
    fn what_is_mappable_lies_where_it_may(
        segments in prop::collection::vec((0u32..8, prop::array::uniform4(hostile())), 1..5),
        shared: bool,
        place in hostile(),
    ) {
        let segments: Vec<_> = segments.iter().map(|(kind, n)| segment(*kind, 7, *n)).collect();
        let image = image(if shared { SHARED_OBJECT } else { EXECUTABLE }, &segments);
        if image.is_mappable(USER_END) {
            let _ = image.headers_address();
            let place = shared.then_some(place & !0xfff);
            if let Some(bias) = image.bias(place, FIRST, USER_END) {
                for pages in image.loads().map(|segment| segment.pages(bias)) {
                    prop_assert!(FIRST <= pages.start && pages.start <= pages.mapped_end);
                    prop_assert!(pages.mapped_end <= pages.end && pages.end <= USER_END);
                }
            }
        }
    }
}

#[test]
fn a_table_that_is_cut_off_gives_fewer_segments() {
    let header = Header::parse(&header(EXECUTABLE, 3)).unwrap();
    let table = segment(1, 5, [0, 0x1_0000, 1, 1]);
    let image = Image::new(header, &table[..Segment::BYTES]).unwrap();
    assert_eq!(image.loads().count(), 1);
}
