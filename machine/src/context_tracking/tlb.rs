//! TLB shootdown: making every CPU forget translations that a page table no longer has.
//!
//! Each address space counts its changes (`generation`), and remembers for every CPU the last count
//! that CPU's TLB has caught up with (`seen`). A flush increments the count, sends an interrupt to
//! the CPUs that have the space active, and waits until each has caught up or left. Requests
//! coalesce by themselves: one catch-up covers every change before it. There is no queue. Several
//! CPUs may flush one space at a time.
//!
//! Deadlock is excluded by [`serve`]: a CPU that spins, for a lock or for others' catch-up, serves
//! its own requests meanwhile, so masked interrupts never stop a shootdown.
//!
//! Changes of the kernel's own translations and text concern every CPU. There are no page-table
//! pages among them: the kernel never frees one, so what it changes are leaves, and isolated CPUs
//! in user mode may learn of it later (`context`).
//!
//! Ordering: the sender changes the entry, then increments `generation` (SeqCst), then reads the
//! active set. A CPU that activates a space joins the set (SeqCst), then reads `generation`, then
//! loads CR3. So either the sender sees the CPU, or the CPU's CR3 load comes after the change.

use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering, fence};

use context_tracking::work::Cause;
use context_tracking::{isolation, state};

use crate::context_tracking::{ipi, local, word};
use crate::cpu::percpu::{self, CpuLocal, PerCpu};
use crate::cpu::sealed::sealed;
use crate::cpu::sync::{self, IrqGuard, Once, spin_wait};
use crate::cpu::{self, MAX_CPUS, PAGE_SHIFT};

/// What the shootdown protocol knows of one address space.
pub(crate) struct TlbState {
    generation: AtomicU64,
    /// Bit n: CPU n has the space in its CR3.
    active: AtomicU32,
    seen: [AtomicU64; MAX_CPUS],
}

/// The space in each CPU's CR3, if it is a program's. Only that CPU reads and writes it.
static ACTIVE: PerCpu<AtomicPtr<TlbState>> =
    PerCpu::from_array([const { AtomicPtr::new(core::ptr::null_mut()) }; MAX_CPUS]);

/// `CpuLocal::tlb_wanted` bits: what others want of a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum RemoteRequest {
    /// Forget old translations of the active space.
    User = 1,
    /// Forget everything.
    Kernel = 2,
    /// Serialise.
    Sync = 4,
    /// Choose the entry of system calls anew.
    Entry = 8,
}

impl TlbState {
    pub(crate) const fn new() -> Self {
        TlbState {
            generation: AtomicU64::new(1),
            active: AtomicU32::new(0),
            seen: [const { AtomicU64::new(0) }; MAX_CPUS],
        }
    }

    /// The CPUs that have the space in CR3, a bit each, or had a moment ago.
    pub(crate) fn cpus(&self) -> u32 {
        self.active.load(Ordering::Relaxed)
    }

    /// This CPU is about to load the space into CR3. True if it has caught up with every change, so
    /// that what it still has of the space may be kept; else the load drops all of it. Interrupts
    /// are masked.
    ///
    /// # Safety
    /// It lives, and stays where it is, until this CPU leaves it.
    pub(crate) unsafe fn join(&self, cpu: usize) -> bool {
        ACTIVE.of(cpu).store(core::ptr::from_ref(self).cast_mut(), Ordering::Relaxed);
        self.active.fetch_or(1 << cpu, Ordering::SeqCst);
        let generation = self.generation.load(Ordering::SeqCst);
        // Only this CPU writes it.
        let is_current = self.seen[cpu].load(Ordering::Relaxed) == generation;
        self.seen[cpu].store(generation, Ordering::Release);
        is_current
    }

    /// This CPU has loaded another space, or none. Interrupts are masked since.
    pub(crate) fn leave(&self, cpu: usize) {
        let this = core::ptr::from_ref(self).cast_mut();
        let active = ACTIVE.of(cpu);
        if active.load(Ordering::Relaxed) == this {
            active.store(core::ptr::null_mut(), Ordering::Relaxed);
        }
        self.active.fetch_and(!(1 << cpu), Ordering::SeqCst);
    }

    /// Makes every CPU forget what this space mapped in `pages` pages from `start` on, before the
    /// call. Returns when all have. May be called with interrupts masked.
    pub(crate) fn flush(&self, start: u64, pages: u64) {
        // Masked before it counts: CPUs may do this at a time, and one that counted, then caught up
        // with another's later count, would say here that it has seen less.
        let _irq = IrqGuard::new();
        fence(Ordering::SeqCst);
        let target = self.generation.fetch_add(1, Ordering::SeqCst) + 1;
        let me = percpu::cpu_id();
        let active = self.active.load(Ordering::SeqCst);
        if active & 1 << me != 0 {
            // Only this CPU raises its own `seen`, so the short way is safe if nothing was missed.
            if self.seen[me].load(Ordering::Relaxed) == target - 1 && pages <= FLUSH_SINGLY {
                for page in 0..pages {
                    local::flush_user_page(start + (page << PAGE_SHIFT));
                }
            } else {
                local::flush_user();
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
        ipi::send_now(others, RemoteRequest::User, Cause::UserTlb);
        for cpu in 0..MAX_CPUS {
            while others & 1 << cpu != 0
                && self.active.load(Ordering::SeqCst) & 1 << cpu != 0
                && self.seen[cpu].load(Ordering::Acquire) < target
            {
                spin_wait();
            }
        }
    }

    /// Brings this CPU's TLB up to date, interrupts masked.
    fn catch_up(&self, cpu: usize) {
        let generation = self.generation.load(Ordering::SeqCst);
        if self.active.load(Ordering::Relaxed) & 1 << cpu != 0
            && self.seen[cpu].load(Ordering::Relaxed) < generation
        {
            local::flush_user();
            self.seen[cpu].store(generation, Ordering::Release);
        }
    }
}

/// Up to this many pages are dropped one by one; more, and the whole TLB goes.
const FLUSH_SINGLY: u64 = 32;

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
    for all in [&KERNEL, &SYNC, &ENTRY] {
        if wanted & all.request as u32 != 0 {
            all.serve(cpu);
        }
    }
    if wanted & RemoteRequest::User as u32 != 0 {
        let active = ACTIVE.get().load(Ordering::Relaxed);
        // SAFETY: interrupts are masked, so this CPU does not leave the space meanwhile; and until
        // it leaves, it lives (`join`).
        if let Some(space) = unsafe { active.as_ref() } {
            space.catch_up(cpu);
        }
    }
}

/// A request to all CPUs, and who has answered.
struct ToAll {
    generation: AtomicU64,
    seen: [AtomicU64; MAX_CPUS],
    request: RemoteRequest,
}

static KERNEL: ToAll = ToAll::new(RemoteRequest::Kernel);
static SYNC: ToAll = ToAll::new(RemoteRequest::Sync);
static ENTRY: ToAll = ToAll::new(RemoteRequest::Entry);

sealed! {
    static CHOOSE_ENTRY: Once<fn()> = Once::new();
}

/// Says how a CPU chooses its entry of system calls, and makes busy waits serve requests. On the
/// first CPU, before others start.
pub(crate) fn init(choose_entry: fn()) {
    CHOOSE_ENTRY.call_once(|| choose_entry);
    sync::serve_by(serve);
}

fn choose_entry() {
    if let Some(choose) = CHOOSE_ENTRY.get() {
        choose();
    }
}

impl ToAll {
    const fn new(request: RemoteRequest) -> Self {
        let seen = [const { AtomicU64::new(0) }; MAX_CPUS];
        ToAll { generation: AtomicU64::new(0), seen, request }
    }

    /// Does it on this CPU, and answers everything asked so far.
    fn serve(&self, cpu: usize) {
        let generation = self.generation.load(Ordering::SeqCst);
        match self.request {
            RemoteRequest::Kernel => local::flush_all(),
            RemoteRequest::Sync => cpu::serialize(),
            RemoteRequest::Entry => choose_entry(),
            RemoteRequest::User => unreachable!("a space's flush is not a request to all"),
        }
        self.seen[cpu].store(generation, Ordering::Release);
    }

    /// Has it done on every CPU: at once here, and on those that are interrupted before this
    /// returns. CPUs in user mode that are spared such work do it when they enter the kernel.
    fn request(&self, cause: Cause) {
        fence(Ordering::SeqCst);
        let target = self.generation.fetch_add(1, Ordering::SeqCst) + 1;
        let _irq = IrqGuard::new();
        let me = percpu::cpu_id();
        self.serve(me);
        let others = isolation::all(cpu::cpu_count()) & !(1 << me);
        let sent = match cause.deferrable() {
            Some(work) => word::dispatch(others, work, cause).sent,
            None => {
                ipi::send_now(others, self.request, cause);
                others
            }
        };
        for cpu in state::bits(sent) {
            while self.seen[cpu].load(Ordering::Acquire) < target {
                spin_wait();
            }
        }
    }
}

/// Makes every CPU forget everything, the kernel's translations included. For kernel mappings that
/// changed; when it returns no CPU uses an old one in the kernel.
pub(crate) fn flush_kernel(cause: Cause) {
    KERNEL.request(cause);
}

/// Makes every CPU execute a serialising instruction before it goes on in the kernel; what it
/// fetches afterwards are the bytes that are in text now (SDM 3A, 9.1.3). It shares the word of the
/// shootdown because a CPU that spins with interrupts masked must answer it too.
pub(crate) fn sync_cores() {
    SYNC.request(Cause::CoreSync);
}

/// Makes every CPU, whatever it does, pass a full memory barrier; returns when all have.
pub fn barrier_on_all_cpus() {
    SYNC.request(Cause::Membarrier);
}

/// Makes every CPU take the entry that `context` has noted for it; interrupts all.
pub(crate) fn reload_entries() {
    ENTRY.request(Cause::EntryChange);
}

/// CPUs that have not caught up with the last requests to all.
#[cfg(feature = "ktest")]
pub(crate) fn cpus_behind() -> usize {
    let is_behind = |&cpu: &usize| {
        [&KERNEL, &SYNC]
            .into_iter()
            .any(|all| all.seen[cpu].load(Ordering::SeqCst) < all.generation.load(Ordering::SeqCst))
    };
    (0..cpu::cpu_count()).filter(is_behind).count()
}
