//! KVM's clock for guests: nanoseconds as a line through the time-stamp counter, which the guest
//! reads from its own memory without an exit (Documentation/virt/kvm/x86/msr.rst, `struct
//! pvclock_vcpu_time_info`).
//!
//! All virtual CPUs of a guest get one line ([`Line`]), each with its own TSC offset, so that they
//! agree to the last bit and the guest may be told so ([`STABLE`]).

/// The counters of all CPUs agree.
pub const STABLE: u8 = 1;
/// Bit of the register that says where the structure is: it is there.
pub const ENABLED: u64 = 1;
/// Bytes of the structures.
pub const TIME_BYTES: usize = 32;
/// See [`TIME_BYTES`].
pub const WALL_BYTES: usize = 12;
const NS_PER_SEC: u64 = 1_000_000_000;

/// Time as a function of the host's TSC: `ns` at `tsc`, and from there by its frequency.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
    /// A value of the host's TSC.
    pub tsc: u64,
    /// Nanoseconds of the guest's clock then.
    pub ns: u64,
    scale: Scale,
}

/// Ticks to nanoseconds: `(ticks << shift) * multiplier >> 32`, to the right if negative.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Scale {
    multiplier: u32,
    shift: i8,
}

impl Scale {
    /// Of a frequency from 1 kHz to 1 THz.
    fn new(hz: u64) -> Scale {
        let (mut hz, mut shift) = (hz.clamp(1_000, 1_000_000_000_000), 0);
        while hz > 2 * NS_PER_SEC {
            hz >>= 1;
            shift -= 1;
        }
        while hz <= NS_PER_SEC {
            hz <<= 1;
            shift += 1;
        }
        // Above 1 GHz it is less than 2^32.
        Scale { multiplier: ((NS_PER_SEC << 32) / hz) as u32, shift }
    }

    fn ns(self, ticks: u64) -> u64 {
        let ticks = match self.shift {
            shift if shift < 0 => u128::from(ticks >> -shift),
            shift => u128::from(ticks) << shift,
        };
        ((ticks * u128::from(self.multiplier)) >> 32) as u64
    }
}

impl Line {
    /// Through `ns` at `tsc`, for a TSC of `hz`.
    #[must_use]
    pub fn new(tsc: u64, ns: u64, hz: u64) -> Line {
        Line { tsc, ns, scale: Scale::new(hz) }
    }

    /// The clock when the host's TSC is `tsc`, as the guest computes it.
    #[must_use]
    pub fn at(&self, tsc: u64) -> u64 {
        self.ns.wrapping_add(self.scale.ns(tsc.wrapping_sub(self.tsc)))
    }

    /// What a virtual CPU reads whose TSC is ahead of the host's by `offset`.
    #[must_use]
    pub fn time(&self, version: u32, offset: u64) -> [u8; TIME_BYTES] {
        let mut bytes = [0; TIME_BYTES];
        bytes[..4].copy_from_slice(&version.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.tsc.wrapping_add(offset).to_le_bytes());
        bytes[16..24].copy_from_slice(&self.ns.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.scale.multiplier.to_le_bytes());
        bytes[28] = self.scale.shift as u8;
        bytes[29] = STABLE;
        bytes
    }
}

/// The wall clock when the guest's clock was 0.
#[must_use]
pub fn wall(version: u32, wall_ns: u64) -> [u8; WALL_BYTES] {
    let mut bytes = [0; WALL_BYTES];
    let (sec, ns) = ((wall_ns / NS_PER_SEC) as u32, (wall_ns % NS_PER_SEC) as u32);
    for (n, word) in [version, sec, ns].into_iter().enumerate() {
        bytes[4 * n..4 * n + 4].copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_is_a_second_at_any_frequency() {
        for hz in [
            1_000,
            999_999,
            1_000_000_000,
            1_000_000_001,
            2_000_000_000,
            2_899_999_000,
            5_700_000_000,
            1_000_000_000_000,
        ] {
            let line = Line::new(77, 5, hz);
            for seconds in [1, 60, 86_400] {
                let at = line.at(77 + seconds * hz) - 5;
                // Rounding of the multiplier: below one part in 2^30.
                assert!(at.abs_diff(seconds * NS_PER_SEC) <= seconds + 1, "{hz} Hz: {at}");
            }
        }
    }

    #[test]
    fn time_never_goes_back() {
        let line = Line::new(1 << 40, 1 << 50, 3_123_456_789);
        let mut last = 0;
        for step in 0..100_000u64 {
            let now = line.at((1 << 40) + step * 37);
            assert!(now >= last);
            last = now;
        }
    }

    /// The guest's own computation, from the bytes.
    #[test]
    fn the_guest_computes_the_same() {
        let line = Line::new(1_000_000, 42, 2_500_000_000);
        let bytes = line.time(6, 123);
        let word = |at: usize, len: usize| {
            bytes[at..at + len].iter().rev().fold(0u64, |value, &byte| value << 8 | u64::from(byte))
        };
        assert_eq!((word(0, 4), word(29, 1)), (6, 1));
        let guest_tsc = 9_999_999u64;
        let delta = guest_tsc - word(8, 8);
        let shift = bytes[28] as i8;
        let shifted = if shift < 0 { delta >> -shift } else { delta << shift };
        let ns = ((u128::from(shifted) * u128::from(word(24, 4))) >> 32) as u64 + word(16, 8);
        assert_eq!(ns, line.at(guest_tsc - 123));
        assert_eq!(wall(2, 3_000_000_004), [2, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0]);
    }
}
