//! How much of a datagram of UDP-Lite its checksum covers (RFC 3828, 3.1; udplite(7)).
//!
//! A length counts the eight bytes of the header, which are always covered. A sender chooses how
//! much is covered, a receiver how much must be; both may leave it at all.

/// Bytes of the header.
pub const HEADER_BYTES: u16 = 8;

/// What a socket keeps of the number that setsockopt(2) gives: nothing less than the header but 0,
/// which means all, and nothing longer than a datagram.
#[must_use]
pub fn kept(given: i32) -> u16 {
    match given {
        0 => 0,
        ..=7 => HEADER_BYTES,
        _ => u16::try_from(given).unwrap_or(u16::MAX),
    }
}

/// The bytes that are covered of a datagram of `len` bytes with its header, if not all are.
#[must_use]
pub fn partly(chosen: u16, len: usize) -> Option<u16> {
    (chosen != 0 && usize::from(chosen) < len).then_some(chosen)
}

/// Whether a receiver that asked for `least` (None: it asked for nothing) takes a datagram that
/// is covered so far (None: as a whole).
#[must_use]
pub fn is_taken(least: Option<u16>, covered: Option<u16>) -> bool {
    match (least, covered) {
        (Some(0), Some(_)) => false,
        (Some(least), Some(covered)) => covered >= least,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_rounded() {
        for (given, wanted) in [(0, 0), (1, 8), (7, 8), (8, 8), (9, 9), (-1, 8), (i32::MIN, 8)] {
            assert_eq!(kept(given), wanted, "{given}");
        }
        for (given, wanted) in [(65535, 65535), (65536, 65535), (i32::MAX, 65535)] {
            assert_eq!(kept(given), wanted, "{given}");
        }
    }

    #[test]
    fn all_is_not_part() {
        for (chosen, len, wanted) in
            [(0, 100, None), (8, 8, None), (8, 9, Some(8)), (20, 20, None), (20, 19, None)]
        {
            assert_eq!(partly(chosen, len), wanted, "{chosen} of {len}");
        }
    }

    #[test]
    fn what_is_covered_less_is_not_taken() {
        for covered in [None, Some(8), Some(20)] {
            assert!(is_taken(None, covered), "nobody asked: {covered:?}");
        }
        for least in [None, Some(0), Some(8), Some(u16::MAX)] {
            assert!(is_taken(least, None), "all is covered: {least:?}");
        }
        assert!(!is_taken(Some(0), Some(u16::MAX)), "all of it, or nothing");
        assert!(is_taken(Some(20), Some(20)) && !is_taken(Some(21), Some(20)));
    }
}
