//! KVM's clock, as a guest has it (KVM_GET_CLOCK, KVM_SET_CLOCK and its registers): one line
//! through the TSC for all virtual CPUs.
//!
//! What is written into the guest's memory is written by the virtual CPU itself before it enters:
//! the memory may not be there yet when the register is set, and is the running program's.

use abi::kvm::{self, ClockData};
use abi::{Errno, Result};
use machine::sync::SpinLock;
use virt::clock::{ENABLED, Line, TIME_BYTES, wall};
use virt::msr;

use super::memory::Map;
use crate::base::time::realtime_ns;
use crate::base::user::UserPtr;

/// The clock of one guest.
pub(super) struct Clock(SpinLock<Line>);

impl Clock {
    /// Zero now.
    pub(super) fn new() -> Clock {
        Clock(SpinLock::new(line(0)))
    }

    fn line(&self) -> Line {
        *self.0.lock()
    }

    /// KVM_GET_CLOCK.
    pub(super) fn get(&self, at: u64) -> Result<u64> {
        let (host_tsc, realtime) = (machine::cpu::rdtsc(), realtime_ns());
        let clock = self.line().at(host_tsc);
        let flags = kvm::CLOCK_TSC_STABLE;
        let data = ClockData { clock, flags, realtime, host_tsc, ..ClockData::default() };
        UserPtr::new(at).write(&data)?;
        Ok(0)
    }

    /// KVM_SET_CLOCK. The CPUs are to write it anew.
    pub(super) fn set(&self, at: u64) -> Result<()> {
        let data = UserPtr::<ClockData>::new(at).read()?;
        if data.flags & !kvm::CLOCK_TSC_STABLE != 0 {
            return Err(Errno::EINVAL);
        }
        *self.0.lock() = line(data.clock);
        Ok(())
    }
}

/// The line through `ns` now.
fn line(ns: u64) -> Line {
    Line::new(machine::cpu::rdtsc(), ns, machine::time::tsc_hz())
}

/// The registers of one virtual CPU, and what is yet to be written.
#[derive(Clone, Copy, Default)]
pub(super) struct Registers {
    system_time: u64,
    wall_clock: u64,
    /// The structures are to be written before the next entry.
    is_time_due: bool,
    is_wall_due: bool,
    /// Of the time that was written last; even.
    version: u32,
}

impl Registers {
    /// None: it is no register of the clock's.
    pub(super) fn read(&self, number: u32) -> Option<u64> {
        match number {
            msr::KVM_SYSTEM_TIME | msr::KVM_SYSTEM_TIME_NEW => Some(self.system_time),
            msr::KVM_WALL_CLOCK | msr::KVM_WALL_CLOCK_NEW => Some(self.wall_clock),
            _ => None,
        }
    }

    /// Whether it is one.
    pub(super) fn write(&mut self, number: u32, value: u64) -> bool {
        match number {
            msr::KVM_SYSTEM_TIME | msr::KVM_SYSTEM_TIME_NEW => {
                self.system_time = value;
                self.is_time_due = value & ENABLED != 0;
            }
            msr::KVM_WALL_CLOCK | msr::KVM_WALL_CLOCK_NEW => {
                self.wall_clock = value;
                self.is_wall_due = value != 0;
            }
            _ => return false,
        }
        true
    }

    /// The line or the counter has changed.
    pub(super) fn refresh(&mut self) {
        self.is_time_due = self.system_time & ENABLED != 0;
    }

    /// Takes what is due.
    pub(super) fn take_due(&mut self) -> Registers {
        self.version = self.version.wrapping_add(2);
        let due = *self;
        (self.is_time_due, self.is_wall_due) = (false, false);
        due
    }

    /// Writes what is due. The version is odd while the rest is not to be believed. Memory that the
    /// guest does not have gets nothing.
    pub(super) fn write_due(self, clock: &Clock, map: &Map, tsc_offset: u64) {
        if self.is_wall_due {
            let now = clock.line().at(machine::cpu::rdtsc());
            let bytes = wall(2, realtime_ns().wrapping_sub(now));
            let _ = map.write(self.wall_clock, &1u32.to_le_bytes())
                && map.write(self.wall_clock, &bytes);
        }
        if self.is_time_due {
            let at = self.system_time & !ENABLED;
            let bytes: [u8; TIME_BYTES] = clock.line().time(self.version, tsc_offset);
            let _ = map.write(at, &self.version.wrapping_sub(1).to_le_bytes())
                && map.write(at + 4, &bytes[4..])
                && map.write(at, &bytes[..4]);
        }
    }
}
