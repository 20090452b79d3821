//! How long threads wait for a CPU (/proc/PID/schedstat, second number), while
//! /proc/sys/kernel/sched_schedstats is 1. Off, which it is at boot, it costs a nop at each of its
//! two places in the scheduler: a static key, which writing the file flips in text that all CPUs
//! run.

use abi::{Errno, Result};
use machine::static_branch::{self, StaticKey, id, static_branch_unlikely};

use crate::base::sync::Mutex;

struct Schedstats;

impl StaticKey for Schedstats {
    const ID: u32 = id::SCHEDSTATS;
}

/// What the key was last set to.
static ENABLED: Mutex<bool> = Mutex::new(false);

/// Whether waits are measured.
#[inline(always)]
pub fn is_on() -> bool {
    static_branch_unlikely::<Schedstats>()
}

/// The setting, as it was last written.
pub fn enabled() -> bool {
    *ENABLED.lock()
}

/// Switches it. EIO if the image has no site tables.
pub fn set(on: bool) -> Result<()> {
    let mut enabled = ENABLED.lock();
    if *enabled != on {
        static_branch::set::<Schedstats>(on).map_err(|_| Errno::EIO)?;
        *enabled = on;
    }
    Ok(())
}
