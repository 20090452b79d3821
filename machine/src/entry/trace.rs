//! Starting a trace of the boundary, and what it says of vectors. Neighbour: `cpu::record` keeps
//! what happens.

use alloc::vec::Vec;

use super::vector;
use crate::cpu::{self, apic, record};
use crate::memory::frame::OutOfMemory;
use crate::text::static_branch;

pub use crate::cpu::record::{ARGUMENTS, EVENTS, Event, IDLE, Record, for_each, lost, switch};

/// Starts the trace on all CPUs. Once.
///
/// # Errors
/// [`OutOfMemory`] if the rings do not fit, or the image has no site tables.
pub fn start() -> Result<(), OutOfMemory> {
    for cpu in 0..cpu::cpu_count() {
        let mut slots = Vec::new();
        slots.try_reserve_exact(EVENTS).map_err(|_| OutOfMemory)?;
        slots.resize_with(EVENTS, record::Slot::default);
        record::begin(cpu, slots);
    }
    static_branch::set::<record::Tracing>(true).map_err(|_| OutOfMemory)?;
    super::instrument_calls();
    Ok(())
}

/// What a vector is, for people.
pub fn vector_name(number: u8) -> &'static str {
    match number {
        vector::DIVIDE => "divide-error",
        vector::DEBUG => "debug",
        vector::NMI => "nmi",
        vector::BREAKPOINT => "breakpoint",
        vector::INVALID_OPCODE => "invalid-opcode",
        vector::GENERAL_PROTECTION => "general-protection",
        vector::PAGE_FAULT => "page-fault",
        apic::VECTOR_TIMER => "timer",
        apic::VECTOR_RESCHEDULE => "reschedule",
        apic::VECTOR_TLB => "tlb",
        apic::VECTOR_SYNC => "sync",
        _ if number < 32 => "exception",
        _ => "device",
    }
}
