//! TLB shootdown: making every CPU forget translations that a page table no longer has.
//!
//! Each address space counts its changes (`generation`), and remembers for every CPU the last count
//! that CPU's TLB has caught up with (`seen`). A flush increments the count, sends an interrupt to
//! the CPUs that have the space active, and waits until each has caught up or left. Requests
//! coalesce by themselves: one catch-up covers every change before it. There is no queue.
//!
//! Deadlock is excluded by [`serve`]: a CPU that spins, for a lock or for others' catch-up, serves
//! its own requests meanwhile, so masked interrupts never stop a shootdown.
//!
//! Ordering: the sender changes the entry, then increments `generation` (SeqCst), then reads the
//! active set. A CPU that activates a space joins the set (SeqCst), then reads `generation`, then
//! loads CR3. So either the sender sees the CPU, or the CPU's CR3 load comes after the change.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use crate::cpu::{self, MAX_CPUS};
use crate::percpu::{self, CpuLocal};
use crate::sync::IrqGuard;
use crate::{apic, paging};

/// What the shootdown protocol knows of one address space.
pub(crate) struct TlbState {
    generation: AtomicU64,
    /// Bit n: CPU n has the space in its CR3.
    active: AtomicU32,
    seen: [AtomicU64; MAX_CPUS],
}

/// `CpuLocal::tlb_wanted` bits.
const WANT_USER: u32 = 1;
const WANT_KERNEL: u32 = 2;
const WANT_SYNC: u32 = 4;

static KERNEL_GENERATION: AtomicU64 = AtomicU64::new(0);
static KERNEL_SEEN: [AtomicU64; MAX_CPUS] = [const { AtomicU64::new(0) }; MAX_CPUS];
static SYNC_GENERATION: AtomicU64 = AtomicU64::new(0);
static SYNC_SEEN: [AtomicU64; MAX_CPUS] = [const { AtomicU64::new(0) }; MAX_CPUS];

impl TlbState {
    pub(crate) const fn new() -> Self {
        TlbState {
            generation: AtomicU64::new(1),
            active: AtomicU32::new(0),
            seen: [const { AtomicU64::new(0) }; MAX_CPUS],
        }
    }

    /// This CPU is about to load the space into CR3 (which drops all its old translations).
    pub(crate) fn join(&self, cpu: usize) {
        self.active.fetch_or(1 << cpu, Ordering::SeqCst);
        let generation = self.generation.load(Ordering::SeqCst);
        self.seen[cpu].store(generation, Ordering::Release);
    }

    /// This CPU has loaded another space.
    pub(crate) fn leave(&self, cpu: usize) {
        self.active.fetch_and(!(1 << cpu), Ordering::SeqCst);
    }

    /// Makes every CPU forget what this space mapped in `pages` pages from `start` on, before the
    /// call. Returns when all have. May be called with interrupts masked.
    pub(crate) fn flush(&self, start: u64, pages: u64) {
        fence(Ordering::SeqCst);
        let target = self.generation.fetch_add(1, Ordering::SeqCst) + 1;
        let _irq = IrqGuard::new();
        let me = percpu::cpu_id();
        let active = self.active.load(Ordering::SeqCst);
        if active & 1 << me != 0 {
            // Only this CPU raises its own `seen`, so the short way is safe if nothing was missed.
            if self.seen[me].load(Ordering::Relaxed) == target - 1 && pages <= FLUSH_SINGLY {
                for page in 0..pages {
                    paging::flush_page(start + (page << crate::frame::PAGE_SHIFT));
                }
            } else {
                paging::flush_user();
            }
            self.seen[me].store(target, Ordering::Release);
        }
        let others = active & !(1 << me);
        if others != 0 {
            self.flush_others(others, target);
        }
    }

    #[cold]
    fn flush_others(&self, others: u32, target: u64) {
        request(others, WANT_USER);
        for cpu in 0..MAX_CPUS {
            while others & 1 << cpu != 0
                && self.active.load(Ordering::SeqCst) & 1 << cpu != 0
                && self.seen[cpu].load(Ordering::Acquire) < target
            {
                crate::sync::spin_wait();
            }
        }
    }

    /// Brings this CPU's TLB up to date, interrupts masked.
    fn catch_up(&self, cpu: usize) {
        let generation = self.generation.load(Ordering::SeqCst);
        if self.active.load(Ordering::Relaxed) & 1 << cpu != 0
            && self.seen[cpu].load(Ordering::Relaxed) < generation
        {
            paging::flush_user();
            self.seen[cpu].store(generation, Ordering::Release);
        }
    }
}

/// Up to this many pages are dropped one by one; more, and the whole TLB goes.
const FLUSH_SINGLY: u64 = 32;

fn request(cpus: u32, what: u32) {
    let vector = if what == WANT_SYNC { apic::VECTOR_SYNC } else { apic::VECTOR_TLB };
    for cpu in 0..cpu::cpu_count() {
        if cpus & 1 << cpu != 0 {
            percpu::of(cpu).tlb_wanted.fetch_or(what, Ordering::SeqCst);
            apic::send_ipi(cpu, vector);
        }
    }
}

/// Serves the requests other CPUs have made to this one. Called by the interrupt and by every
/// busy wait.
#[inline]
pub(crate) fn serve() {
    let local = percpu::local();
    if local.tlb_wanted.load(Ordering::Relaxed) != 0 {
        serve_now(local);
    }
}

#[cold]
fn serve_now(local: &CpuLocal) {
    let _irq = IrqGuard::new();
    let wanted = local.tlb_wanted.swap(0, Ordering::SeqCst);
    let cpu = local.cpu_id.get();
    if wanted & WANT_KERNEL != 0 {
        let generation = KERNEL_GENERATION.load(Ordering::SeqCst);
        paging::flush_all();
        KERNEL_SEEN[cpu].store(generation, Ordering::Release);
    }
    if wanted & WANT_SYNC != 0 {
        let generation = SYNC_GENERATION.load(Ordering::SeqCst);
        cpu::serialize();
        SYNC_SEEN[cpu].store(generation, Ordering::Release);
    }
    if wanted & WANT_USER != 0 {
        paging::with_active(|space| space.tlb.catch_up(cpu));
    }
}

/// Makes every CPU forget everything, the kernel's translations included. For kernel mappings that
/// change; returns when all CPUs have.
pub(crate) fn flush_kernel() {
    fence(Ordering::SeqCst);
    let target = KERNEL_GENERATION.fetch_add(1, Ordering::SeqCst) + 1;
    let _irq = IrqGuard::new();
    paging::flush_all();
    let me = percpu::cpu_id();
    KERNEL_SEEN[me].store(target, Ordering::Release);
    let all = (1u32 << cpu::cpu_count()) - 1;
    request(all & !(1 << me), WANT_KERNEL);
    for cpu in (0..cpu::cpu_count()).filter(|&cpu| cpu != me) {
        while KERNEL_SEEN[cpu].load(Ordering::Acquire) < target {
            crate::sync::spin_wait();
        }
    }
}

/// Makes every CPU, this one included, execute a serialising instruction; returns when all have.
/// What they fetch afterwards are the bytes that are in text now (SDM 3A, 9.1.3). It shares the
/// word of the shootdown because a CPU that spins with interrupts masked must answer it too.
pub(crate) fn sync_cores() {
    fence(Ordering::SeqCst);
    let target = SYNC_GENERATION.fetch_add(1, Ordering::SeqCst) + 1;
    let _irq = IrqGuard::new();
    cpu::serialize();
    let me = percpu::cpu_id();
    SYNC_SEEN[me].store(target, Ordering::Release);
    let all = (1u32 << cpu::cpu_count()) - 1;
    request(all & !(1 << me), WANT_SYNC);
    for cpu in (0..cpu::cpu_count()).filter(|&cpu| cpu != me) {
        while SYNC_SEEN[cpu].load(Ordering::Acquire) < target {
            crate::sync::spin_wait();
        }
    }
}

/// CPUs that have not caught up with the last requests to all.
#[cfg(feature = "ktest")]
pub(crate) fn cpus_behind() -> usize {
    let (kernel, sync) =
        (KERNEL_GENERATION.load(Ordering::SeqCst), SYNC_GENERATION.load(Ordering::SeqCst));
    let is_behind = |&cpu: &usize| {
        KERNEL_SEEN[cpu].load(Ordering::SeqCst) < kernel
            || SYNC_SEEN[cpu].load(Ordering::SeqCst) < sync
    };
    (0..cpu::cpu_count()).filter(is_behind).count()
}
