//! Interrupts from one CPU to another, and the accounts of them: who sent, why, to whom, where the
//! target was, and whether it was interrupted or left to find out; and what each CPU received.
//!
//! Every interrupt between CPUs goes through here, so that the accounts are complete. Each CPU
//! writes its own counters only.
//!
//! Neighbours: `context` decides who is spared, `tlb` waits for the answers, `apic` does the
//! sending.

use core::sync::atomic::{AtomicU64, Ordering};

use context_tracking::state::{self, CONTEXTS, Context, PENDING_SYNC};
use context_tracking::work::{CAUSES, Cause};

use crate::context_tracking::tlb::RemoteRequest;
use crate::context_tracking::word;
use crate::cpu::percpu::{self, PerCpu};
use crate::cpu::{MAX_CPUS, apic, record};

pub use crate::cpu::record::Action;

/// Interrupts that a CPU received, by kind; device interrupts are counted by `irq`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum InterruptKind {
    /// Its timer.
    Timer,
    /// Look at your run queue.
    Reschedule,
    /// TLB shootdown.
    Tlb,
    /// Execute a serialising instruction.
    Sync,
    /// Not maskable.
    Nmi,
    /// The APIC's own "nothing after all".
    Spurious,
    /// A device.
    Device,
}

/// All kinds, in the order of their numbers.
pub const KINDS: [InterruptKind; 7] = [
    InterruptKind::Timer,
    InterruptKind::Reschedule,
    InterruptKind::Tlb,
    InterruptKind::Sync,
    InterruptKind::Nmi,
    InterruptKind::Spurious,
    InterruptKind::Device,
];

impl InterruptKind {
    /// Its name in `/proc/limen/ipi`.
    pub const fn name(self) -> &'static str {
        match self {
            InterruptKind::Timer => "timer",
            InterruptKind::Reschedule => "reschedule",
            InterruptKind::Tlb => "tlb",
            InterruptKind::Sync => "sync",
            InterruptKind::Nmi => "nmi",
            InterruptKind::Spurious => "spurious",
            InterruptKind::Device => "device",
        }
    }
}

/// Target's state, then action (sent, deferred).
type ByState = [[AtomicU64; 2]; CONTEXTS.len()];

const fn none_sent() -> ByState {
    [const { [const { AtomicU64::new(0) }; 2] }; CONTEXTS.len()]
}

struct Account {
    sent: [[ByState; MAX_CPUS]; CAUSES.len()],
    /// All, and those that came while a program ran.
    received: [[AtomicU64; 2]; KINDS.len()],
}

static ACCOUNTS: PerCpu<Account> = PerCpu::from_array(
    [const {
        Account {
            sent: [const { [const { none_sent() }; MAX_CPUS] }; CAUSES.len()],
            received: [const { [const { AtomicU64::new(0) }; 2] }; KINDS.len()],
        }
    }; MAX_CPUS],
);

fn count(target: usize, cause: Cause, state: Context, action: Action) {
    record::ipi(cause, target, state, action);
    let by_state = &ACCOUNTS.get().sent[cause as usize][target];
    by_state[state as usize][usize::from(action == Action::Deferred)]
        .fetch_add(1, Ordering::Relaxed);
}

/// Work for `target` was left pending.
pub(crate) fn count_deferred(target: usize, cause: Cause, state: Context) {
    count(target, cause, state, Action::Deferred);
}

/// This CPU was interrupted.
pub(crate) fn count_received(kind: InterruptKind, from_user: bool) {
    let received = &ACCOUNTS.get().received[kind as usize];
    received[0].fetch_add(1, Ordering::Relaxed);
    if from_user {
        received[1].fetch_add(1, Ordering::Relaxed);
    }
}

/// Interrupts `target` to do deferrable `work`.
pub(crate) fn send_work(target: usize, work: u32, cause: Cause) {
    let request = if work == PENDING_SYNC { RemoteRequest::Sync } else { RemoteRequest::Kernel };
    send_request(target, request, cause);
}

/// Interrupts `target` for something that `tlb::serve` does there.
pub(crate) fn send_request(target: usize, request: RemoteRequest, cause: Cause) {
    percpu::of(target).tlb_wanted.fetch_or(request as u32, Ordering::SeqCst);
    let vector = match request {
        RemoteRequest::User | RemoteRequest::Kernel => apic::VECTOR_TLB,
        RemoteRequest::Sync | RemoteRequest::Entry => apic::VECTOR_SYNC,
    };
    count(target, cause, word::of(target), Action::Sent);
    apic::send_ipi(target, vector);
}

/// Asks CPU `target` to look at its run queue, or at its timers.
pub fn send_reschedule(target: usize, cause: Cause) {
    count(target, cause, word::of(target), Action::Sent);
    apic::send_ipi(target, apic::VECTOR_RESCHEDULE);
}

/// Interrupts CPU `target` unmaskably.
pub(crate) fn send_nmi(target: usize) {
    count(target, Cause::Nmi, word::of(target), Action::Sent);
    apic::send_nmi(target);
}

/// One line of the accounts of what was sent.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "each field is a column of /proc/limen/ipi")]
pub struct Row {
    pub cause: Cause,
    pub sender: usize,
    pub target: usize,
    pub state: Context,
    pub action: Action,
    pub count: u64,
}

/// What was sent or deferred so far; rows with a count of 0 are left out.
pub fn rows() -> impl Iterator<Item = Row> {
    const ACTIONS: [Action; 2] = [Action::Sent, Action::Deferred];
    let columns = CONTEXTS.into_iter().flat_map(|state| ACTIONS.map(|action| (state, action)));
    let cpus = (0..crate::cpu::cpu_count())
        .flat_map(|sender| (0..crate::cpu::cpu_count()).map(move |target| (sender, target)));
    let all = CAUSES.into_iter().flat_map(move |cause| {
        let columns = columns.clone();
        cpus.clone().flat_map(move |(sender, target)| {
            columns.clone().map(move |(state, action)| {
                let by_state = &ACCOUNTS.of(sender).sent[cause as usize][target];
                let is_deferred = usize::from(action == Action::Deferred);
                let count = &by_state[state as usize][is_deferred];
                let count = count.load(Ordering::Relaxed);
                Row { cause, sender, target, state, action, count }
            })
        })
    });
    all.filter(|row| row.count > 0)
}

/// Interrupts of a kind that CPU `cpu` received: all, and those that came while a program ran.
pub fn received(cpu: usize, kind: InterruptKind) -> (u64, u64) {
    let [all, from_user] = &ACCOUNTS.of(cpu).received[kind as usize];
    (all.load(Ordering::Relaxed), from_user.load(Ordering::Relaxed))
}

/// Asks `targets` at once, whatever they do.
pub(crate) fn send_now(targets: u32, request: RemoteRequest, cause: Cause) {
    state::bits(targets).for_each(|cpu| send_request(cpu, request, cause));
}
