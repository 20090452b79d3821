//! The hardware behind the clocks: the rate of the TSC, which is what is hard (`calibrate` asks
//! whoever knows it, or measures), and the real-time clock. Neighbour: `cpu::clock` has the clocks.

mod calibrate;
mod rtc;

use crate::cpu::{self, apic, clock};

const NS_PER_S: u64 = 1_000_000_000;

/// Finds the TSC's rate and sets the clocks, which start at `start_tsc`. On the first CPU, after
/// `platform::init`.
pub(crate) fn init(start_tsc: u64) {
    let rate = calibrate::tsc_rate();
    clock::set(start_tsc, rate.hz);
    if cpu::features().hypervisor && !rate.stable {
        crate::log!("the TSC is not known to be alike on all CPUs; clocks may jump");
    }
    apic::set_timer_rate(calibrate::apic_timer_hz());
    let seconds = rtc::read().unwrap_or_else(|| {
        crate::log!("no real-time clock: the time of day starts in 1970");
        0
    });
    clock::set_wall_ns(seconds * NS_PER_S);
}
