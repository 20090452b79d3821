//! What is done on behalf of guests that have run on a CPU: before they run, where they exit, and
//! before the next return to user mode (VMSCAPE).
//!
//! What is hard: predictors are the CPU's, so the note that they are trained must be, too, and the
//! next thread that returns to user mode there pays, by whatever way it returns. All ways go
//! through `entry::prepare_return`, where the CPU's word is looked at together with the thread's:
//! a CPU that ran no guest has no branch more for it. Where a guest exits, the note is one store,
//! and text without it where nothing is to be flushed.
//!
//! What a flush is, is a static call that is bound once at boot. Its callees are given the claim
//! [`BeforeUserMode`], so that the loop without a fence can stand nowhere else.
//!
//! Neighbours: `mitigations` chooses, `mitigations::behind_guests` (the room) has the rule and its
//! proof, `vmrun/behind.S` does what must precede the first return behind an exit.

use core::sync::atomic::{AtomicU64, Ordering};

use lsm::fold::All;
use mitigations::behind_guests::{self as rule, Cpu};
use mitigations::bhi::BhbLoop;
use mitigations::plan::Flush;

use crate::cpu::percpu::{self, CpuLocal, PerCpu};
use crate::cpu::speculation::{self, BeforeUserMode};
use crate::cpu::{MAX_CPUS, record};
use crate::mitigations::{BehindGuests, barrier, plan};
use crate::text::static_branch::static_branch_unlikely;
use crate::text::static_call::{self, Binding, Callee, StaticCall};

/// What a flush is.
struct FlushPredictors;

impl StaticCall for FlushPredictors {
    type Args<'a> = BeforeUserMode;
    type Fold = All;
    const CALLEES: &'static [Callee<Self>] =
        &[ibpb, speculation::clear_bhb_short_before, speculation::clear_bhb_long_before];
    const ATTACHABLE: u32 = 0;
}

extern "C" fn ibpb(_: &BeforeUserMode) {
    barrier();
}

/// Kinds of flushes, as numbers of their callees; columns of [`Counts::flushes`].
pub const KINDS: [&str; 3] = ["ibpb", "bhb_short", "bhb_long"];

fn chosen() -> Option<usize> {
    match plan().guest.exit_to_user {
        Flush::None => None,
        Flush::Ibpb => Some(0),
        Flush::Bhb(BhbLoop::LONG) => Some(2),
        Flush::Bhb(_) => Some(1),
    }
}

/// Binds the flush that the plan wants. On the first CPU, before the security hooks are sealed.
pub(crate) fn choose_flush() {
    if chosen().is_none() {
        return;
    }
    let bound = Binding::new().and_then(|mut binding| {
        binding.bind::<FlushPredictors>(&[chosen()])?;
        binding.commit()
    });
    if let Err(error) = bound {
        crate::log!("mitigations: no flush behind guests: {error}");
    }
}

/// Stops unless text calls what the plan wants.
pub(crate) fn verify_text() {
    assert!(
        static_call::only_callee::<FlushPredictors>() == chosen(),
        "mitigations: the flush behind guests is not as it was chosen"
    );
}

// ------------------------------------------------------------------------------------------------
// Counts

/// What one CPU has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Exits of guests.
    pub exits: u64,
    /// Of these, those behind which the word was set: all or none.
    pub set: u64,
    /// Flushes, by [`KINDS`].
    pub flushes: [u64; KINDS.len()],
    /// Of these, those that another thread made than the one whose guest ran last.
    pub by_others: u64,
    /// Exits that no return to user mode had to pay for.
    pub spared: u64,
}

struct Flushes {
    by_kind: [AtomicU64; KINDS.len()],
    by_others: AtomicU64,
}

static FLUSHES: PerCpu<Flushes> = PerCpu::from_array(
    [const { Flushes { by_kind: [const { AtomicU64::new(0) }; _], by_others: AtomicU64::new(0) } };
        MAX_CPUS],
);

/// The counts of CPU `cpu`.
pub fn counts(cpu: usize) -> Counts {
    let local = percpu::of(cpu);
    let of = FLUSHES.of(cpu);
    let flushes = of.by_kind.each_ref().map(|count| count.load(Ordering::Relaxed));
    let exits = local.guest_exits.load(Ordering::Relaxed);
    let set = if chosen().is_some() { exits } else { 0 };
    Counts {
        exits,
        set,
        flushes,
        by_others: of.by_others.load(Ordering::Relaxed),
        spared: rule::spared(set, flushes.iter().sum(), local.exit_work.get()),
    }
}

// ------------------------------------------------------------------------------------------------
// Around a guest

/// This CPU, by the rule's view.
struct Here(&'static CpuLocal);

impl Cpu for Here {
    #[inline(always)]
    fn word(&self) -> u32 {
        self.0.exit_work.get()
    }

    #[inline(always)]
    fn set_word(&self, word: u32) {
        self.0.exit_work.set(word);
    }

    fn flush(&self) {
        static_call::call::<FlushPredictors>(&BeforeUserMode::claim());
        let of = FLUSHES.get();
        if let Some(kind) = chosen() {
            of.by_kind[kind].fetch_add(1, Ordering::Relaxed);
        }
        let is_other = self.0.guest_task.get() != percpu::running_task();
        of.by_others.fetch_add(u64::from(is_other), Ordering::Relaxed);
        record::flushed();
    }
}

/// Before a guest runs. Interrupts are masked.
#[inline(always)]
pub(crate) fn before_guest() {
    if plan().guest.verw {
        speculation::clear_buffers();
    }
}

/// Where a guest exits: interrupts are masked, so the thread is still on the CPU that ran it.
#[inline(always)]
pub(crate) fn guest_ran() {
    let local = percpu::local();
    percpu::count_guest_exit();
    local.guest_task.set(percpu::running_task());
    if static_branch_unlikely::<BehindGuests>() {
        rule::guest_ran(&Here(local));
    }
    if let Some(counts) = plan().guest.bhb {
        speculation::clear_bhb(counts);
    }
    record::guest_left();
}

/// The CPU's word is not zero, and the return to user mode follows. Interrupts are masked.
#[cold]
#[inline(never)]
pub(crate) fn before_user_mode() {
    rule::before_user_mode(&Here(percpu::local()));
}
