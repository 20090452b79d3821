//! What happens at the boundary, in order: entries, exits, interrupts between CPUs, what was left
//! pending instead, catch-ups, and switches of threads. For `limen run --trace`.
//!
//! Each CPU writes into a ring of its own, which keeps the latest [`EVENTS`]. A record is a few
//! words, so an NMI in the middle of one costs at most that one. While nobody traces, none of it
//! costs an instruction on the way of a system call: instrumented calls have an entry of their own.
//! Other places have a nop. Neighbour: `entry::trace` starts it.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use context_tracking::state::{CONTEXTS, Context};
use context_tracking::work::Cause;

use crate::cpu::percpu::{self, PerCpu};
use crate::cpu::static_key::{StaticKey, id, static_branch_unlikely};
use crate::cpu::sync::Once;
use crate::cpu::{MAX_CPUS, clock};

/// Records that each CPU keeps: the latest.
pub const EVENTS: usize = 16_384;

/// On while there is a trace.
pub(crate) struct Tracing;

impl StaticKey for Tracing {
    const ID: u32 = id::TRACING;
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The target was interrupted.
    Sent,
    /// The target was in user mode or a guest, and finds it when it enters the kernel.
    Deferred,
}

/// What a record says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A program made the system call of this number, with these arguments.
    Syscall(u32, [u64; ARGUMENTS]),
    /// An interrupt or exception of this vector came while a program ran.
    Vector(u8),
    /// An interrupt came while the kernel ran; it ends with an `Exit` of its own.
    Interrupt(u8),
    /// The way back to what ran before.
    Exit,
    /// The same from a system call, with its result.
    Return(u64),
    /// This CPU asked another one for something.
    Ipi {
        /// Why.
        cause: Cause,
        /// Whom.
        target: usize,
        /// Where the other one was.
        state: Context,
        /// Whether it was interrupted.
        action: Action,
    },
    /// Work that had been left pending was done.
    CatchUp,
    /// The thread of this id runs from now on.
    Switch(u32),
    /// A guest exited.
    GuestExit,
    /// Predictors were flushed behind a guest.
    Flush,
}

/// A record with its place and time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// The CPU.
    pub cpu: usize,
    /// Nanoseconds since boot.
    pub at_ns: u64,
    /// What happened.
    pub event: Event,
}

/// Arguments of a system call.
pub const ARGUMENTS: usize = 6;

/// When, what, and what else there is to say.
pub(crate) type Slot = [AtomicU64; 2 + ARGUMENTS];

struct Ring {
    slots: Once<Vec<Slot>>,
    /// Records ever made.
    made: AtomicUsize,
    /// Catch-ups that have a record.
    caught_up: AtomicU64,
}

static RINGS: PerCpu<Ring> = PerCpu::from_array(
    [const { Ring { slots: Once::new(), made: AtomicUsize::new(0), caught_up: AtomicU64::new(0) } };
        MAX_CPUS],
);

/// Gives CPU `cpu` its ring, of [`EVENTS`] slots. Once, before [`Tracing`] is switched on.
pub(crate) fn begin(cpu: usize, slots: Vec<Slot>) {
    RINGS.of(cpu).slots.call_once(|| slots);
    RINGS.of(cpu).caught_up.store(catch_ups(cpu), Ordering::Relaxed);
}

#[inline(always)]
fn is_on() -> bool {
    static_branch_unlikely::<Tracing>()
}

/// Kinds of records, as the first word's low byte has them.
mod kind {
    pub(super) const SYSCALL: u64 = 1;
    pub(super) const VECTOR: u64 = 2;
    pub(super) const INTERRUPT: u64 = 3;
    pub(super) const EXIT: u64 = 4;
    pub(super) const IPI: u64 = 5;
    pub(super) const CATCH_UP: u64 = 6;
    pub(super) const SWITCH: u64 = 7;
    pub(super) const GUEST_EXIT: u64 = 8;
    pub(super) const FLUSH: u64 = 9;
    pub(super) const RETURN: u64 = 10;
}

#[cold]
fn record(event: Event) {
    let mut values = [0; ARGUMENTS];
    let word = match event {
        Event::Syscall(number, arguments) => {
            values = arguments;
            kind::SYSCALL | u64::from(number) << 8
        }
        Event::Vector(number) => kind::VECTOR | u64::from(number) << 8,
        Event::Interrupt(number) => kind::INTERRUPT | u64::from(number) << 8,
        Event::Exit => kind::EXIT,
        Event::Return(result) => {
            values[0] = result;
            kind::RETURN
        }
        Event::Ipi { cause, target, state, action } => {
            let (state, deferred) = (state as u64, u64::from(action == Action::Deferred));
            kind::IPI | (cause as u64) << 8 | (target as u64) << 16 | state << 24 | deferred << 26
        }
        Event::CatchUp => kind::CATCH_UP,
        Event::Switch(tid) => kind::SWITCH | u64::from(tid) << 8,
        Event::GuestExit => kind::GUEST_EXIT,
        Event::Flush => kind::FLUSH,
    };
    let ring = RINGS.get();
    let Some(slots) = ring.slots.get() else { return };
    let index = ring.made.fetch_add(1, Ordering::Relaxed) % EVENTS;
    slots[index][0].store(clock::now_ns(), Ordering::Relaxed);
    slots[index][1].store(word, Ordering::Relaxed);
    for (place, value) in slots[index][2..].iter().zip(values) {
        place.store(value, Ordering::Relaxed);
    }
}

fn catch_ups(cpu: usize) -> u64 {
    percpu::of(cpu).context.flushed.load(Ordering::Relaxed)
}

/// Notes a catch-up that this entry has made, if it has.
fn note_catch_up() {
    let ring = RINGS.get();
    let now = catch_ups(percpu::cpu_id());
    if ring.caught_up.swap(now, Ordering::Relaxed) != now {
        record(Event::CatchUp);
    }
}

/// A program made a system call.
#[inline(always)]
pub(crate) fn called(number: u64, arguments: [u64; ARGUMENTS]) {
    if is_on() {
        record(Event::Syscall(u32::try_from(number).unwrap_or(u32::MAX), arguments));
        note_catch_up();
    }
}

/// A vector came while a program ran.
#[inline(always)]
pub(crate) fn entered(number: u8) {
    if is_on() {
        record(Event::Vector(number));
        note_catch_up();
    }
}

/// An interrupt came while the kernel ran.
#[inline(always)]
pub(crate) fn interrupt(number: u8) {
    if is_on() {
        record(Event::Interrupt(number));
    }
}

/// Back to what ran before.
#[inline(always)]
pub(crate) fn exit() {
    if is_on() {
        record(Event::Exit);
    }
}

/// Back to the program from a system call.
#[inline(always)]
pub(crate) fn returned(result: u64) {
    if is_on() {
        record(Event::Return(result));
    }
}

/// One CPU wanted something of another.
#[inline(always)]
pub(crate) fn ipi(cause: Cause, target: usize, state: Context, action: Action) {
    if is_on() {
        record(Event::Ipi { cause, target, state, action });
    }
}

/// A guest has exited here.
#[inline(always)]
pub(crate) fn guest_left() {
    if is_on() {
        record(Event::GuestExit);
    }
}

/// Predictors were flushed here.
pub(crate) fn flushed() {
    if is_on() {
        record(Event::Flush);
    }
}

/// What stands for the thread that a CPU runs when there is no other.
pub const IDLE: u32 = 0;

/// The scheduler is about to run the thread of this id here, or [`IDLE`]. It is asked only while
/// there is a trace.
#[inline(always)]
pub fn switch(tid: impl FnOnce() -> u32) {
    if is_on() {
        record(Event::Switch(tid()));
    }
}

/// Calls `f` with what CPU `cpu` has recorded, the oldest first. What is recorded meanwhile may
/// take the place of the oldest.
pub fn for_each(cpu: usize, mut f: impl FnMut(Record)) {
    let ring = RINGS.of(cpu);
    let Some(slots) = ring.slots.get() else { return };
    let made = ring.made.load(Ordering::Acquire);
    for index in made.saturating_sub(EVENTS)..made {
        let words = slots[index % EVENTS].each_ref().map(|word| word.load(Ordering::Relaxed));
        let [at_ns, word, values @ ..] = words;
        if let Some(event) = decode(word, values) {
            f(Record { cpu, at_ns, event });
        }
    }
}

/// Records that CPU `cpu` has lost to newer ones.
pub fn lost(cpu: usize) -> usize {
    RINGS.of(cpu).made.load(Ordering::Relaxed).saturating_sub(EVENTS)
}

fn decode(word: u64, values: [u64; ARGUMENTS]) -> Option<Event> {
    let argument = word >> 8;
    Some(match word & 0xff {
        kind::SYSCALL => Event::Syscall(argument as u32, values),
        kind::RETURN => Event::Return(values[0]),
        kind::VECTOR => Event::Vector(argument as u8),
        kind::INTERRUPT => Event::Interrupt(argument as u8),
        kind::EXIT => Event::Exit,
        kind::IPI => Event::Ipi {
            cause: *context_tracking::work::CAUSES.get(usize::from(argument as u8))?,
            target: usize::from((argument >> 8) as u8),
            state: *CONTEXTS.get((argument >> 16 & 3) as usize)?,
            action: if argument >> 18 & 1 != 0 { Action::Deferred } else { Action::Sent },
        },
        kind::CATCH_UP => Event::CatchUp,
        kind::SWITCH => Event::Switch(argument as u32),
        kind::GUEST_EXIT => Event::GuestExit,
        kind::FLUSH => Event::Flush,
        _ => return None,
    })
}
