//! What the machine consists of: CPUs, interrupt controllers, devices.

use alloc::vec::Vec;

use crate::sync::Once;

static CPUS: Once<Vec<u32>> = Once::new();

pub(crate) fn init(_rsdp: u64) {
    CPUS.call_once(Vec::new);
}

/// APIC ids of the CPUs, in the order of the tables.
pub(crate) fn cpus() -> &'static [u32] {
    CPUS.get().map_or(&[], Vec::as_slice)
}
