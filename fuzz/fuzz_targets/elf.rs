//! Hostile program files: what passes the checks lies where it may, page by page, without overflow.
//!
//! Input: how to place it, then header and program headers. The header's fixed fields are made
//! right for half of the inputs, so that segments are reached.
#![no_main]

use formats::elf::{Header, Image, Segment};
use libfuzzer_sys::fuzz_target;

const PAGE: u64 = 4096;
const FIRST: u64 = 0x1_0000;
const USER_END: u64 = 0x7fff_ffff_f000;

fuzz_target!(|data: &[u8]| {
    let Some((&[fits, page], data)) = data.split_first_chunk::<2>() else {
        return;
    };
    let Some((header, table)) = data.split_first_chunk::<{ Header::BYTES }>() else {
        return;
    };
    let mut header = *header;
    if fits % 2 == 0 {
        header[..4].copy_from_slice(b"\x7fELF");
        header[16..20].copy_from_slice(&[2 + (page & 1), 0, 62, 0]);
        header[54..58].copy_from_slice(&[56, 0, (table.len() / Segment::BYTES) as u8, 0]);
    }
    let Some(header) = Header::parse(&header) else {
        return;
    };
    let mut table = table.to_vec();
    table.resize(header.table_bytes(), 0);
    let Some(image) = Image::new(header, &table) else {
        return;
    };
    let _ = (image.interpreter(), image.wants_executable_stack());
    if !image.is_mappable(USER_END) {
        return;
    }
    let _ = image.headers_address();
    let place = image.is_position_independent().then_some(u64::from(page) << 39);
    let (low, len) = image.extent();
    let Some(bias) = image.bias(place, FIRST, USER_END) else {
        return;
    };
    let (start, end) = (low.wrapping_add(bias), low.wrapping_add(bias).wrapping_add(len));
    for segment in image.loads() {
        let pages = segment.pages(bias);
        assert!(start >= FIRST && end <= USER_END && pages.start >= start && pages.end <= end);
        assert!(pages.start % PAGE == 0 && pages.mapped_end % PAGE == 0 && pages.end % PAGE == 0);
        assert!(pages.start <= pages.file_end && pages.start < pages.end);
        assert!(pages.start <= pages.mapped_end && pages.mapped_end <= pages.end);
    }
});
