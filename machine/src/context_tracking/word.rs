//! Which CPUs are in user mode, and how one that enters the kernel catches up with what it was not
//! told: the machine's side of `context_tracking`.
//!
//! Every CPU's word says where it is; `entry.S` writes it. On isolated CPUs (`nohz_full=`) it is a
//! protocol with the senders: the entry sets `IN_KERNEL` by a locked instruction and looks at what
//! is pending; or, with `defer=cr3`, senders leave no notes, and the write of CR3 on the way in
//! drops what may be stale. On the others senders never leave a note, so a plain store does; it
//! serves the accounts.
//!
//! What is hard: everything an entry executes before it has caught up may meet text that was
//! changed and translations that are gone. So [`context_catch_up`] and the two functions of
//! paranoid entries are in `.entry.text`, and call nothing outside it; objtool proves that of the
//! built image.
//!
//! Neighbours: `ipi` sends, `tlb` asks, `vmrun/{amd,intel}.S` write the word around guests.

use core::arch::asm;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};

use context_tracking::flush::{Features, Method};
use context_tracking::isolation::Isolation;
use context_tracking::state::{
    self, Context, Dispatched, Entry, PENDING_SYNC, PENDING_TLB, Sender, Spared,
};
use context_tracking::work::Mode;

use crate::context_tracking::{ipi, local, tlb};
use crate::cpu::percpu::{self, CpuLocal, tracking};
use crate::cpu::sync::Once;
use crate::cpu::{self, features, has_pti};

/// CPUs that are spared deferrable work while in user mode.
static SPARED: AtomicU32 = AtomicU32::new(0);
/// They catch up by their write of CR3. Changes only while nobody is spared.
static BY_CR3: AtomicBool = AtomicBool::new(false);
static ISOLATION: Once<Isolation> = Once::new();
/// What `defer=` says.
#[cfg(feature = "ktest")]
static MODE: Once<Mode> = Once::new();

/// Reads `isolcpus=`, `nohz_full=` and `defer=`, and makes each CPU's entries follow them. On the
/// first CPU, when all run, and before any goes to user mode.
pub(crate) fn init(command_line: &str) {
    let isolation = Isolation::from_command_line(command_line, cpu::cpu_count());
    let isolation = isolation.unwrap_or_else(|(word, bad)| {
        crate::log!("warning: {word}= is not a list of CPUs ({bad:?}): no CPU is isolated");
        Isolation::default()
    });
    if isolation.refused != 0 {
        crate::log!("warning: the first CPU keeps the time and cannot be isolated");
    }
    let mode =
        formats::params::find(command_line, "defer").map_or(Some(Mode::Pending), Mode::parse);
    let mode = mode.unwrap_or_else(|| {
        crate::log!("warning: defer= is none of pending, always, cr3, off: taken as pending");
        Mode::Pending
    });
    if mode != mode.possible(has_pti()) {
        crate::log!("warning: defer=cr3 needs pti=on: taken as pending");
    }
    ISOLATION.call_once(|| isolation);
    #[cfg(feature = "ktest")]
    MODE.call_once(|| mode);
    if isolation.nohz_full != 0 {
        spare(isolation.nohz_full, mode);
    }
}

/// From now on `cpus` are spared deferrable work in user mode, and no others; as `mode` says, if
/// that is possible.
pub(crate) fn spare(cpus: u32, mode: Mode) {
    let tracking = match mode.possible(has_pti()) {
        Mode::Pending => tracking::PENDING,
        Mode::Always => tracking::ALWAYS,
        Mode::Cr3 => tracking::CR3,
        Mode::Off => tracking::OFF,
    };
    // First nobody leaves notes: an answer says that a sender is done with its own. Then the second
    // interrupt makes good what was noted; then entries change, then senders.
    SPARED.store(0, Ordering::SeqCst);
    tlb::reload_entries();
    tlb::reload_entries();
    for cpu in 0..cpu::cpu_count() {
        let of_cpu = if cpus & 1 << cpu != 0 { tracking } else { tracking::OFF };
        percpu::of(cpu).tracking.store(of_cpu, Ordering::SeqCst);
    }
    tlb::reload_entries();
    BY_CR3.store(tracking == tracking::CR3, Ordering::SeqCst);
    SPARED.store(if tracking == tracking::OFF { 0 } else { cpus }, Ordering::SeqCst);
}

/// One of [`tracking`]: what entries of this CPU do.
pub(crate) fn tracking_here() -> u32 {
    percpu::local().tracking.load(Ordering::SeqCst)
}

/// What `defer=` says.
#[cfg(feature = "ktest")]
pub(crate) fn mode() -> Mode {
    MODE.get().copied().unwrap_or_default()
}

/// Whether this CPU is told nothing of what may wait, and drops it whenever it writes CR3.
#[inline(always)]
pub(crate) fn catches_up_by_cr3() -> bool {
    percpu::local().tracking.load(Ordering::Relaxed) == tracking::CR3
}

/// Chooses how this CPU flushes. Once on each CPU, when its CR4 is set.
pub(crate) fn init_cpu() {
    let features = Features {
        invpcid: features().invpcid,
        global_pages: features().pge && !has_pti(),
        pcid: crate::context_tracking::pcid::in_use(),
    };
    percpu::local().context.method.set(Method::choose(features));
}

/// Which CPUs are isolated. Nothing before [`init`].
pub fn isolation() -> Isolation {
    ISOLATION.get().copied().unwrap_or_default()
}

/// CPUs whose deferrable work waits while they are in user mode.
pub(crate) fn spared() -> Spared {
    let cpus = SPARED.load(Ordering::Acquire);
    Spared { cpus, by_cr3: BY_CR3.load(Ordering::Relaxed) }
}

/// Where CPU `cpu` is, at this moment.
pub fn of(cpu: usize) -> Context {
    Context::of(percpu::of(cpu).context.state.load(Ordering::Relaxed))
}

/// How often CPU `cpu` has caught up: flushes and serialisations.
pub fn catch_ups(cpu: usize) -> (u64, u64) {
    let context = &percpu::of(cpu).context;
    (context.flushed.load(Ordering::Relaxed), context.serialized.load(Ordering::Relaxed))
}

// ------------------------------------------------------------------------------------------------
// Senders

/// The senders' view: any CPU's word.
struct AllCpus {
    cause: context_tracking::work::Cause,
}

/// Asks `targets` for deferrable `work`; those in [`Dispatched::sent`] were interrupted.
pub(crate) fn dispatch(
    targets: u32,
    work: u32,
    cause: context_tracking::work::Cause,
) -> Dispatched {
    let result = state::dispatch(&AllCpus { cause }, targets, spared(), work);
    for cpu in state::bits(result.deferred) {
        let is_guest = result.guests & 1 << cpu != 0;
        ipi::count_deferred(cpu, cause, if is_guest { Context::Guest } else { Context::User });
    }
    result
}

impl Sender for AllCpus {
    fn load(&self, cpu: usize) -> u32 {
        percpu::of(cpu).context.state.load(Ordering::Relaxed)
    }

    fn compare_exchange(&self, cpu: usize, old: u32, new: u32) -> Result<(), u32> {
        let state = &percpu::of(cpu).context.state;
        state.compare_exchange(old, new, Ordering::SeqCst, Ordering::SeqCst).map(|_| ())
    }

    fn full_barrier(&self) {
        fence(Ordering::SeqCst);
    }

    fn send(&self, cpu: usize, work: u32) {
        ipi::send_work(cpu, work, self.cause);
    }
}

// ------------------------------------------------------------------------------------------------
// Entries. Everything below is in `.entry.text`, or inlined there.

/// An entry's view: its own CPU. No function of it may panic or be called elsewhere, so everything
/// is inlined.
struct Here(&'static CpuLocal);

impl Entry for Here {
    #[inline(always)]
    fn fetch_or(&self, bits: u32) -> u32 {
        self.0.context.state.fetch_or(bits, Ordering::SeqCst)
    }

    #[inline(always)]
    fn fetch_and(&self, bits: u32) {
        self.0.context.state.fetch_and(bits, Ordering::SeqCst);
    }

    #[inline(always)]
    fn store_release(&self, value: u32) {
        self.0.context.state.store(value, Ordering::Release);
    }

    #[inline(always)]
    fn flush_kernel_tlb(&self) {
        let context = &self.0.context;
        context.flushed.fetch_add(1, Ordering::Relaxed);
        local::drop_everything(context.method.get());
    }

    #[inline(always)]
    fn write_cr3(&self) {
        local::drop_everything(Method::Cr3Reload);
    }

    #[inline(always)]
    fn serialize(&self) {
        self.0.context.serialized.fetch_add(1, Ordering::Relaxed);
        // MOV to a control register serialises (SDM 3A, 9.3). Not IRET, which would let the next
        // NMI in while this may be one; not CPUID, which a hypervisor intercepts. SAFETY: CR2 keeps
        // its value.
        unsafe {
            asm!("mov {at}, cr2", "mov cr2, {at}", at = out(reg) _,
                 options(nostack, preserves_flags));
        }
    }
}

/// Something is pending, or every entry flushes: called by `entry.S` with the word as it is now.
#[unsafe(no_mangle)]
#[unsafe(link_section = ".entry.text")]
extern "C" fn context_catch_up(word: u32) {
    state::catch_up(&Here(percpu::local()), word);
}

/// What [`context_catch_up`] takes for an entry that flushes whatever is pending.
pub(crate) const ALWAYS_PENDING: u32 = PENDING_TLB | PENDING_SYNC;

/// This CPU is back from a guest: called by `vmrun/behind.S`.
#[unsafe(no_mangle)]
#[unsafe(link_section = ".entry.text")]
extern "C" fn context_leave_guest() {
    let local = percpu::local();
    let here = Here(local);
    let tracking = local.tracking.load(Ordering::Relaxed);
    if tracking == tracking::OFF {
        here.store_release(state::IN_KERNEL);
    } else {
        let also = if tracking == tracking::PENDING { 0 } else { ALWAYS_PENDING };
        state::leave_guest(&here, also);
    }
}

/// NMI, #DB, #DF, #MC from the kernel, or from a danger zone: the old word, for the way back.
#[unsafe(no_mangle)]
#[unsafe(link_section = ".entry.text")]
extern "C" fn context_paranoid_enter() -> u32 {
    let here = Here(percpu::local());
    if catches_up_by_cr3() {
        return state::paranoid_enter_by_cr3(&here);
    }
    state::paranoid_enter(&here)
}

#[unsafe(no_mangle)]
#[unsafe(link_section = ".entry.text")]
extern "C" fn context_paranoid_exit(old: u32) {
    state::paranoid_exit(&Here(percpu::local()), old);
}
