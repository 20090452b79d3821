//! What processes have used: getrusage(2), times(2), and the CPU times behind them.

use abi::{Errno, Result, general as raw};
use core::sync::atomic::Ordering;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{Process, Thread};
use crate::base::sched::RunState;
use crate::base::time::{TimeVal, now_ns};
use crate::base::transfers::{Totals, Transfers};
use crate::base::user::UserPtr;
use crate::mm::Mm;
use crate::process::current;

/// `struct rusage`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy, Default)]
#[repr(C)]
pub struct RUsage {
    user: TimeVal,
    system: TimeVal,
    max_resident_kib: u64,
    /// Three sizes that Linux leaves 0.
    sizes: [u64; 3],
    minor_faults: u64,
    major_faults: u64,
    /// Swaps, blocks read and written, messages and signals: 0 in Linux too, or not counted here.
    others: [u64; 6],
    voluntary_switches: u64,
    involuntary_switches: u64,
}

const _: () = assert!(size_of::<RUsage>() == 144);

impl Thread {
    /// CPU time so far, nanoseconds.
    pub fn runtime_ns(&self) -> u64 {
        let entity = self.base.sched.lock();
        let running = matches!(entity.state, RunState::Running(_));
        let since = if running { now_ns().saturating_sub(entity.ran_since_ns) } else { 0 };
        entity.runtime_ns + since
    }

    /// CPU time in user mode and in the kernel, nanoseconds: the exact total, divided as the ticks
    /// fell.
    pub fn times_ns(&self) -> (u64, u64) {
        let total = self.runtime_ns();
        let user = self.base.cpu_time_ns.0.load(Ordering::Relaxed);
        let kernel = self.base.cpu_time_ns.1.load(Ordering::Relaxed);
        let ticks = user + kernel;
        if ticks == 0 {
            return (total, 0);
        }
        let user = (u128::from(total) * u128::from(user) / u128::from(ticks)) as u64;
        (user, total - user)
    }
}

impl Process {
    /// CPU time of all its threads, past ones included: user, kernel, nanoseconds.
    pub fn times_ns(&self) -> [u64; 2] {
        let mut times = [0, 1].map(|i| self.past_times_ns[i].load(Ordering::Relaxed));
        for thread in self.threads.lock().iter() {
            let (user, kernel) = thread.times_ns();
            times[0] += user;
            times[1] += kernel;
        }
        times
    }

    /// CPU time of children that were waited for, with theirs: user, kernel, nanoseconds.
    pub fn children_times_ns(&self) -> [u64; 2] {
        [2, 3].map(|i| self.past_times_ns[i].load(Ordering::Relaxed))
    }
}

/// What is counted besides time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    peak_pages: u64,
    minor_faults: u64,
    major_faults: u64,
    voluntary_switches: u64,
    involuntary_switches: u64,
}

impl Counts {
    /// Adds what an address space counted.
    pub fn add_memory(&mut self, mm: &Mm) {
        self.peak_pages = self.peak_pages.max(mm.peak_pages());
        self.minor_faults += mm.faults.0.load(Ordering::Relaxed);
        self.major_faults += mm.faults.1.load(Ordering::Relaxed);
    }

    /// Adds what the scheduler counted for a thread.
    pub fn add_switches(&mut self, thread: &Thread) {
        let (voluntary, involuntary) = thread.base.sched.lock().switches;
        self.voluntary_switches += voluntary;
        self.involuntary_switches += involuntary;
    }

    /// Adds another process's counts; the peak is the larger one.
    pub fn add(&mut self, other: &Counts) {
        self.peak_pages = self.peak_pages.max(other.peak_pages);
        self.minor_faults += other.minor_faults;
        self.major_faults += other.major_faults;
        self.voluntary_switches += other.voluntary_switches;
        self.involuntary_switches += other.involuntary_switches;
    }

    /// Of a process that has ended, with its own children.
    #[must_use]
    pub fn with_children(process: &Process) -> Counts {
        let mut counts = *process.past_counts.lock();
        let children = *process.children_counts.lock();
        counts.add(&children);
        counts
    }

    /// Of a process that lives, without its children.
    fn of_living(process: &Process) -> Counts {
        let mut counts = *process.past_counts.lock();
        if let Ok(mm) = process.mm() {
            counts.add_memory(&mm);
        }
        for thread in process.threads.lock().iter() {
            counts.add_switches(thread);
        }
        counts
    }
}

impl RUsage {
    fn new([user_ns, system_ns]: [u64; 2], counts: &Counts) -> Self {
        RUsage {
            user: TimeVal::from_ns(user_ns),
            system: TimeVal::from_ns(system_ns),
            max_resident_kib: counts.peak_pages * 4,
            minor_faults: counts.minor_faults,
            major_faults: counts.major_faults,
            voluntary_switches: counts.voluntary_switches,
            involuntary_switches: counts.involuntary_switches,
            ..RUsage::default()
        }
    }

    /// Of a child, with its own children. It has usually ended.
    #[must_use]
    pub fn of_ended(process: &Process) -> Self {
        let own = process.times_ns();
        let children = process.children_times_ns();
        let times_ns = [own[0] + children[0], own[1] + children[1]];
        Self::new(times_ns, &Counts::with_children(process))
    }
}

/// getrusage(2).
pub fn getrusage(who: i32, usage_at: u64) -> Result<u64> {
    let thread = current();
    let process = &thread.process;
    let usage = match who {
        0 => RUsage::new(process.times_ns(), &Counts::of_living(process)),
        raw::RUSAGE_CHILDREN => {
            let counts = *process.children_counts.lock();
            RUsage::new(process.children_times_ns(), &counts)
        }
        1 => {
            let (user_ns, kernel_ns) = thread.times_ns();
            // Faults are counted for the address space as a whole.
            let mut counts = Counts::default();
            counts.add_memory(&*process.mm()?);
            counts.add_switches(&thread);
            RUsage::new([user_ns, kernel_ns], &counts)
        }
        _ => return Err(Errno::EINVAL),
    };
    UserPtr::new(usage_at).write(&usage)?;
    Ok(0)
}

/// times(2): clock ticks of 10 ms.
pub fn times(buffer: u64) -> Result<u64> {
    const TICK_NS: u64 = 10_000_000;
    let process = &current().process;
    if buffer != 0 {
        let [user, system] = process.times_ns();
        let [child_user, child_system] = process.children_times_ns();
        let ticks = [user, system, child_user, child_system].map(|ns| ns / TICK_NS);
        UserPtr::<[u64; 4]>::new(buffer).write(&ticks)?;
    }
    Ok(now_ns() / TICK_NS)
}

impl Thread {
    /// Counts a call of the running thread, which this is, that reads.
    #[inline(always)]
    pub fn reads(&self, transfer: impl FnOnce() -> Result<u64>) -> Result<u64> {
        let result = transfer();
        self.transfers.read.note(&result);
        result
    }

    /// The same of one that writes.
    #[inline(always)]
    pub fn writes(&self, transfer: impl FnOnce() -> Result<u64>) -> Result<u64> {
        let result = transfer();
        self.transfers.written.note(&result);
        result
    }
}

impl Process {
    /// What all its threads have moved, past ones included, and children that were waited for.
    pub fn transfers(&self) -> Totals {
        let all = Transfers::default();
        all.add(self.past_transfers.totals());
        for thread in self.threads.lock().iter() {
            all.add(thread.transfers.totals());
        }
        all.totals()
    }
}
