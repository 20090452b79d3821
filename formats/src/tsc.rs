//! Nanoseconds and ticks of a time-stamp counter, as fixed-point products.
//!
//! Why it is hard: programs sleep for as long as 292 years, and a product that wraps would make of
//! that an interrupt at once, and again, for ever. Everything saturates.
//!
//! Neighbours: `machine/src/cpu/{clock,apic}.rs`.

/// Binary digits of a factor behind the point.
pub const SHIFT: u32 = 32;

/// `value * factor`, with a factor of [`SHIFT`] binary digits behind the point.
#[inline(always)]
#[must_use]
pub const fn scale(value: u64, factor: u64) -> u64 {
    let product = (value as u128 * factor as u128) >> SHIFT;
    if product > u64::MAX as u128 { u64::MAX } else { product as u64 }
}

/// The TSC's value that is `ns` after `now`, in the future and not 0, which would switch the timer
/// off (SDM 3A, 11.5.4.1). `per_ns`: ticks per nanosecond, [`SHIFT`] digits behind the point.
#[inline]
#[must_use]
pub const fn deadline(now: u64, ns: u64, per_ns: u64) -> u64 {
    let ticks = scale(ns, per_ns);
    now.saturating_add(if ticks == 0 { 1 } else { ticks })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GHZ_2: u64 = 2 << SHIFT;
    const MHZ_100: u64 = (1 << SHIFT) / 10;

    #[test]
    fn a_second() {
        assert_eq!(deadline(7, 1_000_000_000, GHZ_2), 2_000_000_007);
        assert!(deadline(7, 1_000_000_000, MHZ_100).abs_diff(100_000_007) <= 1);
    }

    #[test]
    fn never_now_and_never_off() {
        for per_ns in [GHZ_2, MHZ_100] {
            for now in [0, 1, 1 << 62] {
                assert!(deadline(now, 0, per_ns) == now + 1);
                assert!(deadline(now, 1, per_ns) > now);
            }
        }
    }

    #[test]
    fn the_longest_sleep_does_not_end_at_once() {
        // 2^63 ns at 2 GHz are 2^64 ticks.
        for ns in [i64::MAX as u64, 1 << 63, u64::MAX] {
            assert_eq!(deadline(1 << 40, ns, GHZ_2 + 5), u64::MAX, "{ns}");
        }
        assert_eq!(scale(1 << 63, GHZ_2), u64::MAX);
    }
}
