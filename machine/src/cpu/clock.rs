//! Time: nanoseconds since boot from the TSC, and the wall clock.
//!
//! All clocks are one linear function of the TSC, fixed at boot and the same on every CPU:
//! `ns = (tsc - tsc_base) * mult >> 32`. A read is RDTSC, a multiplication and a shift, and a
//! program can compute it by itself from [`clock_params`]. This needs a TSC that runs at one rate
//! and alike on all CPUs, which every hypervisor of the last decade gives; where it does not say
//! so, the log does.
//!
//! Neighbours: `device::time` finds the rate and the time of day; `apic` arms the tick; the
//! kernel's vDSO carries [`clock_params`].

use formats::tsc::{self, SHIFT, scale};

use crate::cpu;
use crate::cpu::sync::Once;

/// The clock as a function of the TSC: `ns_base + ((tsc - tsc_base) * mult >> shift)`, with a
/// 128-bit product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockParams {
    /// TSC at the clock's start.
    pub tsc_base: u64,
    /// Nanoseconds per TSC tick, times `2^shift`.
    pub mult: u64,
    /// Always 32.
    pub shift: u32,
    /// The clock's value at `tsc_base`, nanoseconds.
    pub ns_base: u64,
}

const NS_PER_S: u64 = 1_000_000_000;

struct Clock {
    params: ClockParams,
    tsc_hz: u64,
    /// TSC ticks per nanosecond, times 2^32.
    tsc_mult: u64,
}

static CLOCK: Once<Clock> = Once::new();
static BOOT_WALL_NS: Once<u64> = Once::new();

impl Clock {
    fn new(tsc_base: u64, tsc_hz: u64) -> Clock {
        let mult = ((u128::from(NS_PER_S) << SHIFT) / u128::from(tsc_hz)) as u64;
        let tsc_mult = ((u128::from(tsc_hz) << SHIFT) / u128::from(NS_PER_S)) as u64;
        let params = ClockParams { tsc_base, mult, shift: SHIFT, ns_base: 0 };
        Clock { params, tsc_hz, tsc_mult }
    }
}

/// Sets the clock: it starts at `tsc_base`. Once, before the first read that counts.
pub(crate) fn set(tsc_base: u64, tsc_hz: u64) {
    CLOCK.call_once(|| Clock::new(tsc_base, tsc_hz));
}

/// Sets the time of day: nanoseconds since 1970, now.
pub(crate) fn set_wall_ns(now_wall_ns: u64) {
    BOOT_WALL_NS.call_once(|| now_wall_ns.saturating_sub(now_ns()));
}

/// Nanoseconds since the machine started. Never goes back, on whichever CPU it is read.
#[inline]
pub fn now_ns() -> u64 {
    let Some(clock) = CLOCK.get() else { return 0 };
    scale(cpu::rdtsc_ordered().saturating_sub(clock.params.tsc_base), clock.params.mult)
}

/// The clock's parameters, for programs that read the TSC themselves.
pub fn clock_params() -> ClockParams {
    CLOCK.get().expect("time::init has run").params
}

/// TSC ticks per second.
pub fn tsc_hz() -> u64 {
    CLOCK.get().map_or(NS_PER_S, |clock| clock.tsc_hz)
}

/// TSC ticks in `ns` nanoseconds.
#[inline]
pub(crate) fn ns_to_tsc(ns: u64) -> u64 {
    CLOCK.get().map_or(ns, |clock| scale(ns, clock.tsc_mult))
}

/// The TSC's value `ns` nanoseconds from now, which is in the future.
pub(crate) fn tsc_deadline(ns: u64) -> u64 {
    let per_ns = CLOCK.get().map_or(1 << SHIFT, |clock| clock.tsc_mult);
    tsc::deadline(cpu::rdtsc(), ns, per_ns)
}

/// Wall-clock time when the machine started, nanoseconds since 1970. From the real-time clock, so
/// exact to a second.
pub fn boot_wall_ns() -> u64 {
    BOOT_WALL_NS.get().copied().unwrap_or(0)
}

/// Waits by spinning.
pub fn busy_wait_us(us: u64) {
    let start = cpu::rdtsc();
    let ticks = ns_to_tsc(us * 1000);
    while cpu::rdtsc().wrapping_sub(start) < ticks {
        core::hint::spin_loop();
    }
}
