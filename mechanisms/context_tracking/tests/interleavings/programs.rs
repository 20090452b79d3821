//! What the CPUs do, in terms of the crate's functions, and the mutants: each takes out one
//! barrier, one order or one decision.
//!
//! A program is run again from its start for every step: operations that it has done before return
//! what the log says; the first new one is what it does next, and what follows is ignored.

use std::cell::{Cell, RefCell};

use context_tracking::state::{
    self, Entry, IN_KERNEL, PENDING, PENDING_SYNC, PENDING_TLB, Sender, Spared, dispatch,
};

use crate::world::{FrameKind, Mode, Op, Place};

/// What a CPU's thread does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// In the kernel: changes its entry and asks all others.
    Sender,
    /// In user mode: enters the kernel so many times and comes back.
    Target(u8),
    /// In the kernel: goes to user mode, comes back once.
    Leaver,
    /// In the kernel: goes into a guest and comes back so many times, then stays there.
    Guest(u8),
}

/// One thing that is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutant {
    None,
    /// The sender's barrier between change and look.
    NoBarrier,
    /// The sender sets PENDING by a load and a store.
    SplitCompareExchange,
    /// The sender changes the entry after it has asked.
    ChangeAfterRequest,
    /// The sender does not wait for those it interrupts.
    NoWait,
    /// The entry sets IN_KERNEL by a load and a store.
    SplitOr,
    /// The entry looks at the word before it sets IN_KERNEL.
    LookBeforeOr,
    /// The entry clears what is pending, then flushes.
    ClearBeforeFlush,
    /// The entry flushes, then sets IN_KERNEL.
    FlushBeforeOr,
    /// The exit stores 0 before its last use of the kernel.
    ExitEarly,
    /// The NMI enters only if it finds the program's CR3.
    NmiAsksCr3,
    /// The NMI leaves IN_KERNEL set in a danger zone.
    NmiKeepsState,
    /// The way out of a guest says that it is in the kernel, and catches up with nothing.
    GuestForgets,
    /// Without notes: CR3 is written before the word.
    Cr3BeforeWord,
    /// Without notes: the word is set by a plain store, which the write of CR3 makes seen.
    PlainWord,
    /// Without notes: the NMI writes CR3 only where the word says that it was in user mode.
    NmiTrustsWord,
    /// Without notes: the NMI writes CR3 once, before it has set the word.
    NmiWritesOnce,
}

/// How the CPUs of a case go about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rules {
    pub(crate) mutant: Mutant,
    /// No notes are left: each entry's write of CR3 is the catch-up.
    pub(crate) by_cr3: bool,
}

impl Mutant {
    /// Where it must be found.
    pub(crate) fn rules(self) -> Rules {
        use Mutant::{Cr3BeforeWord, NmiTrustsWord, NmiWritesOnce, PlainWord};
        let by_cr3 = matches!(self, Cr3BeforeWord | PlainWord | NmiTrustsWord | NmiWritesOnce);
        Rules { mutant: self, by_cr3 }
    }
}

pub(crate) const MUTANTS: &[Mutant] = &[
    Mutant::NoBarrier,
    Mutant::SplitCompareExchange,
    Mutant::ChangeAfterRequest,
    Mutant::NoWait,
    Mutant::SplitOr,
    Mutant::LookBeforeOr,
    Mutant::ClearBeforeFlush,
    Mutant::FlushBeforeOr,
    Mutant::ExitEarly,
    Mutant::NmiAsksCr3,
    Mutant::NmiKeepsState,
    Mutant::GuestForgets,
    Mutant::Cr3BeforeWord,
    Mutant::PlainWord,
    Mutant::NmiTrustsWord,
    Mutant::NmiWritesOnce,
];

/// A program's view of the machine.
struct Replay<'a> {
    log: &'a [u32],
    at: Cell<usize>,
    next: RefCell<Option<Op>>,
    mutant: Mutant,
    by_cr3: bool,
    me: usize,
}

impl Replay<'_> {
    fn ask(&self, op: Op) -> u32 {
        let at = self.at.replace(self.at.get() + 1);
        if let Some(&result) = self.log.get(at) {
            return result;
        }
        self.next.borrow_mut().get_or_insert(op);
        0
    }
}

impl Sender for Replay<'_> {
    fn load(&self, cpu: usize) -> u32 {
        self.ask(Op::Load(cpu))
    }

    fn compare_exchange(&self, cpu: usize, old: u32, new: u32) -> Result<(), u32> {
        let seen = if self.mutant == Mutant::SplitCompareExchange {
            let seen = self.ask(Op::Load(cpu));
            if seen == old {
                self.ask(Op::Store(Place::Word(cpu), new));
            }
            seen
        } else {
            self.ask(Op::CompareExchange(cpu, old, new))
        };
        if seen == old { Ok(()) } else { Err(seen) }
    }

    fn full_barrier(&self) {
        if self.mutant != Mutant::NoBarrier {
            self.ask(Op::Barrier);
        }
    }

    fn send(&self, cpu: usize, _work: u32) {
        self.ask(Op::Send(cpu));
    }
}

impl Entry for Replay<'_> {
    fn fetch_or(&self, bits: u32) -> u32 {
        match self.mutant {
            Mutant::SplitOr => {
                let seen = self.ask(Op::Load(self.me));
                self.store_release(seen | bits);
                seen
            }
            Mutant::LookBeforeOr => {
                let seen = self.ask(Op::Load(self.me));
                self.ask(Op::Or(self.me, bits));
                seen
            }
            _ => self.ask(Op::Or(self.me, bits)),
        }
    }

    fn fetch_and(&self, bits: u32) {
        self.ask(Op::And(self.me, bits));
    }

    fn store_release(&self, value: u32) {
        self.ask(Op::Store(Place::Word(self.me), value));
    }

    fn flush_kernel_tlb(&self) {
        self.ask(Op::Flush);
    }

    // It serialises, but nothing says that it drains the store buffer before it drops anything.
    fn write_cr3(&self) {
        self.ask(Op::Flush);
        self.ask(Op::Barrier);
    }

    // Translations and text follow the same rule; the search is about one of them at a time.
    fn serialize(&self) {}
}

/// The next operation of a frame; `None`: it has ended.
pub(crate) fn next(
    role: Role,
    kind: FrameKind,
    me: usize,
    cpus: usize,
    log: &[u32],
    rules: Rules,
) -> Option<Op> {
    let Rules { mutant, by_cr3 } = rules;
    let (at, next) = (Cell::new(0), RefCell::new(None));
    let replay = Replay { log, at, next, mutant, by_cr3, me };
    match (kind, role) {
        (FrameKind::Thread, Role::Sender) => sender(&replay, cpus),
        (FrameKind::Thread, Role::Target(rounds)) => {
            for _ in 0..rounds {
                come(&replay);
                replay.ask(Op::Mark(Mode::Kernel));
                replay.ask(Op::Use);
                leave(&replay);
            }
        }
        (FrameKind::Thread, Role::Leaver) => {
            replay.ask(Op::Use);
            leave(&replay);
            come(&replay);
            replay.ask(Op::Mark(Mode::Kernel));
            replay.ask(Op::Use);
            leave(&replay);
        }
        (FrameKind::Thread, Role::Guest(rounds)) => {
            replay.ask(Op::Use);
            into_guest(&replay);
            for _ in 0..rounds {
                out_of_guest(&replay);
                replay.ask(Op::Mark(Mode::Kernel));
                replay.ask(Op::Use);
                into_guest(&replay);
            }
        }
        // An exit like any other; the interrupt comes once the CPU is in the kernel.
        (FrameKind::InterruptOfUser, Role::Guest(_)) => {
            out_of_guest(&replay);
            replay.ask(Op::Mark(Mode::Handler));
            serve(&replay);
            into_guest(&replay);
        }
        (FrameKind::InterruptOfUser, _) => {
            come(&replay);
            replay.ask(Op::Mark(Mode::Handler));
            serve(&replay);
            leave(&replay);
        }
        (FrameKind::InterruptOfKernel, _) => serve(&replay),
        (FrameKind::Nmi, _) => nmi(&replay),
    }
    replay.next.into_inner()
}

fn sender(replay: &Replay<'_>, cpus: usize) {
    let others = ((1 << cpus) - 1) & !(1 << replay.me);
    let change = || replay.ask(Op::Store(Place::Entry(replay.me), 1));
    if replay.mutant != Mutant::ChangeAfterRequest {
        change();
    }
    let spared = Spared { cpus: others, by_cr3: replay.by_cr3 };
    let dispatched = dispatch(replay, others, spared, PENDING_TLB);
    if replay.mutant == Mutant::ChangeAfterRequest {
        change();
    }
    if replay.mutant != Mutant::NoWait {
        replay.ask(Op::Wait(dispatched.sent));
    }
    replay.ask(Op::Done);
}

/// Into the kernel.
fn come(replay: &Replay<'_>) {
    replay.ask(Op::Mark(Mode::Zone));
    if replay.by_cr3 {
        return come_by_cr3(replay);
    }
    match replay.mutant {
        Mutant::ClearBeforeFlush => {
            let pending = state::enter(replay) & PENDING;
            if pending != 0 {
                replay.fetch_and(!pending);
                replay.flush_kernel_tlb();
            }
        }
        Mutant::FlushBeforeOr => {
            let pending = replay.load(replay.me) & PENDING;
            state::catch_up(replay, pending);
            state::enter(replay);
        }
        _ => {
            let old = state::enter(replay);
            state::catch_up(replay, old);
        }
    }
}

fn come_by_cr3(replay: &Replay<'_>) {
    match replay.mutant {
        Mutant::Cr3BeforeWord => {
            replay.write_cr3();
            state::enter(replay);
        }
        Mutant::PlainWord => {
            replay.store_release(IN_KERNEL);
            replay.write_cr3();
        }
        _ => state::enter_by_cr3(replay),
    }
}

/// Back to user mode.
fn leave(replay: &Replay<'_>) {
    replay.ask(Op::Mark(Mode::Zone));
    state::exit(replay);
    if replay.mutant == Mutant::ExitEarly {
        replay.ask(Op::Use);
    }
    replay.ask(Op::Mark(Mode::User));
}

fn into_guest(replay: &Replay<'_>) {
    replay.ask(Op::Mark(Mode::Zone));
    state::enter_guest(replay);
    replay.ask(Op::Mark(Mode::User));
}

fn out_of_guest(replay: &Replay<'_>) {
    replay.ask(Op::Mark(Mode::Zone));
    if replay.mutant == Mutant::GuestForgets {
        replay.store_release(IN_KERNEL);
    } else {
        state::leave_guest(replay, if replay.by_cr3 { PENDING } else { 0 });
    }
}

/// The handler of a request, and what a CPU that waits does too.
fn serve(replay: &Replay<'_>) {
    let senders = replay.ask(Op::Take);
    replay.ask(Op::Flush);
    replay.ask(Op::Acknowledge(senders));
}

fn nmi(replay: &Replay<'_>) {
    if replay.mutant == Mutant::NmiAsksCr3 && replay.ask(Op::ReadCr3) == 1 {
        replay.ask(Op::Use);
        return;
    }
    let old = match (replay.by_cr3, replay.mutant) {
        (false, _) => state::paranoid_enter(replay),
        (true, Mutant::NmiTrustsWord) => {
            let old = state::enter(replay);
            if old & IN_KERNEL == 0 {
                replay.write_cr3();
            }
            old
        }
        (true, Mutant::NmiWritesOnce) => {
            replay.write_cr3();
            state::enter(replay)
        }
        (true, _) => state::paranoid_enter_by_cr3(replay),
    };
    replay.ask(Op::Use);
    let old = if replay.mutant == Mutant::NmiKeepsState { old | IN_KERNEL } else { old };
    state::paranoid_exit(replay, old);
}

const _: () = assert!(PENDING == PENDING_TLB | PENDING_SYNC);
