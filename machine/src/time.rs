//! Time: nanoseconds since boot from the TSC, and the wall clock at boot.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::cpu;

static TSC_HZ: AtomicU64 = AtomicU64::new(1_000_000_000);

pub(crate) fn init() {
    apic::calibrate(10_000_000, || busy_wait_us(10_000));
}
use crate::apic;

/// Nanoseconds since the machine started.
pub fn now_ns() -> u64 {
    let ticks = cpu::rdtsc() - crate::boot::info().start_tsc;
    (u128::from(ticks) * 1_000_000_000 / u128::from(TSC_HZ.load(Ordering::Relaxed))) as u64
}

/// TSC ticks in `ns` nanoseconds.
pub(crate) fn ns_to_tsc(ns: u64) -> u64 {
    (u128::from(ns) * u128::from(TSC_HZ.load(Ordering::Relaxed)) / 1_000_000_000) as u64
}

/// Wall-clock time when the machine started, nanoseconds since 1970.
pub fn boot_wall_ns() -> u64 {
    0
}

/// Waits by spinning.
pub(crate) fn busy_wait_us(us: u64) {
    let end = cpu::rdtsc() + ns_to_tsc(us * 1000);
    while cpu::rdtsc() < end {
        core::hint::spin_loop();
    }
}
