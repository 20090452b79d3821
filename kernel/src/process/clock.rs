//! Which clock an id names (clock_gettime(2)): those of the machine, and the CPU time of processes
//! and threads.

use alloc::sync::{Arc, Weak};

use abi::{Errno, Result, general as raw};

use super::{Process, Thread, find_process, find_thread};
use crate::base::time::{now_ns, realtime_ns, realtime_offset_ns};
use crate::process::current;

/// A clock.
#[derive(Clone)]
pub enum Clock {
    /// Since 1970.
    Realtime,
    /// Since boot; Limen never sleeps, so monotonic and boot time are one clock.
    Monotonic,
    /// CPU time of a process. The flags say which part counts.
    Process(Arc<Process>, Part),
    /// CPU time of a thread.
    Thread(Arc<Thread>, Part),
    /// As `Process`, in something that the process itself owns.
    OwnProcess(Weak<Process>, Part),
    /// As `Thread`, in something that its process owns.
    OwnThread(Weak<Thread>, Part),
}

/// Which CPU time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// In user mode only.
    User,
    /// In user mode and in the kernel.
    All,
}

impl Clock {
    /// The clock with this id; EINVAL.
    pub fn from_id(id: i32) -> Result<Clock> {
        if id < 0 {
            return Self::from_cpu_id(id);
        }
        Ok(match id as u32 {
            raw::CLOCK_REALTIME
            | raw::CLOCK_REALTIME_COARSE
            | raw::CLOCK_REALTIME_ALARM
            | raw::CLOCK_TAI => Clock::Realtime,
            raw::CLOCK_MONOTONIC
            | raw::CLOCK_MONOTONIC_RAW
            | raw::CLOCK_MONOTONIC_COARSE
            | raw::CLOCK_BOOTTIME
            | raw::CLOCK_BOOTTIME_ALARM => Clock::Monotonic,
            raw::CLOCK_PROCESS_CPUTIME_ID => Clock::Process(current().process.clone(), Part::All),
            raw::CLOCK_THREAD_CPUTIME_ID => Clock::Thread(current().to_arc(), Part::All),
            _ => return Err(Errno::EINVAL),
        })
    }

    /// Ids of CPU clocks of others, as clock_getcpuclockid(3) makes them: the complement of the
    /// process or thread id, bit 2 for threads, and two bits for the part.
    fn from_cpu_id(id: i32) -> Result<Clock> {
        let part = match id & 3 {
            0 | 2 => Part::All,
            1 => Part::User,
            _ => return Err(Errno::EINVAL),
        };
        let pid = !(id >> 3) as u32;
        if id & 4 != 0 {
            let thread = if pid == 0 { Some(current().to_arc()) } else { find_thread(pid) };
            let thread = thread.filter(|thread| thread.process.is_current());
            return Ok(Clock::Thread(thread.ok_or(Errno::EINVAL)?, part));
        }
        let own = || Some(current().process.clone());
        let process = if pid == 0 { own() } else { find_process(pid) };
        Ok(Clock::Process(process.ok_or(Errno::EINVAL)?, part))
    }

    /// Its time, nanoseconds.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        match self {
            Clock::Realtime => realtime_ns(),
            Clock::Monotonic => now_ns(),
            Clock::Process(process, part) => part.of_process(process),
            Clock::Thread(thread, part) => part.of_thread(thread),
            Clock::OwnProcess(process, part) => {
                process.upgrade().map_or(0, |process| part.of_process(&process))
            }
            Clock::OwnThread(thread, part) => {
                thread.upgrade().map_or(0, |thread| part.of_thread(&thread))
            }
        }
    }

    /// The same clock, for something that its process owns.
    #[must_use]
    pub fn downgrade(self) -> Clock {
        match self {
            Clock::Process(process, part) => Clock::OwnProcess(Arc::downgrade(&process), part),
            Clock::Thread(thread, part) => Clock::OwnThread(Arc::downgrade(&thread), part),
            clock => clock,
        }
    }

    /// What to subtract from its times to get monotonic ones; None for CPU clocks.
    #[must_use]
    pub fn monotonic_offset_ns(&self) -> Option<u64> {
        match self {
            Clock::Realtime => Some(realtime_offset_ns()),
            Clock::Monotonic => Some(0),
            _ => None,
        }
    }
}

impl Part {
    fn of_process(self, process: &Process) -> u64 {
        let [user_ns, kernel_ns] = process.times_ns();
        if self == Part::User { user_ns } else { user_ns + kernel_ns }
    }

    fn of_thread(self, thread: &Thread) -> u64 {
        let (user_ns, kernel_ns) = thread.times_ns();
        if self == Part::User { user_ns } else { user_ns + kernel_ns }
    }
}
