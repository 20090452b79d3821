//! Signals (signal(7)): dispositions, masks, pending sets, sending. What the running thread does
//! about its own, and how a handler runs, is the floor `signal`.
//!
//! A signal is *sent* ([`send`]): it becomes pending for a thread or for a process, and the
//! exit-work bit `work::SIGNAL` of a thread that will take it is set; that ends the thread's sleep
//! or interrupts the CPU it runs on. It is *delivered* (`signal::deliver`) by that thread on its
//! way back to the program: by default action, or by a handler frame (`signal::frame`) from which
//! rt_sigreturn(2) comes back.
//!
//! `work::SIGNAL` means "look": it is set whenever a pending signal may be deliverable, and cleared
//! only by the thread itself, just before it looks. So no signal is missed, and a look in vain
//! costs a little and does no harm.
//!
//! Locks: a process's `threads`, its `signals`, a thread's `signals`, then the handlers.

use alloc::boxed::Box;
use core::sync::atomic::Ordering;

use entry::PtRegs;
use machine::sync::SpinLock;

use super::{Process, Thread, upper, work};
use crate::process::current;

pub mod altstack;
pub mod info;
pub mod mask;
pub mod pending;
pub mod send;
pub mod stop;

pub use info::SigInfo;
pub use mask::{set_blocked, set_temporary_mask};
pub use pending::{LAST, Pending, SignalSet, UNBLOCKABLE, bit};
pub use send::{send_to_current, send_to_group, send_to_process, send_to_thread};

/// A thread's part.
#[derive(Default)]
pub struct ThreadSignals {
    /// Blocked signals.
    pub blocked: SignalSet,
    /// The mask to return to, while a call has replaced it (sigsuspend, ppoll …).
    pub saved_mask: Option<SignalSet>,
    /// Pending for this thread alone.
    pub pending: Pending,
    /// sigaltstack(2).
    pub alt_stack: altstack::AltStack,
    /// The last exception, for the handler's frame.
    pub last_fault: LastFault,
    /// The thread is on its way out: signals for the process go to others.
    pub is_exiting: bool,
    /// The last stop of the process that the thread was counted for.
    pub parked_for: u64,
}

/// What the CPU reported for the last exception of a thread.
#[derive(Clone, Copy, Debug, Default)]
pub struct LastFault {
    /// Vector number.
    pub vector: u64,
    /// Error code.
    pub error: u64,
    /// Faulting address.
    pub address: u64,
}

/// A process's part.
#[derive(Default)]
pub struct ProcessSignals {
    /// Pending for any thread.
    pub pending: Pending,
    /// The process is ending with this wait(2) status; every thread has to leave.
    pub group_exit: Option<i32>,
    /// The process is stopped or stopping.
    pub stop: Option<Stop>,
    /// How many times SIGCONT was sent: tells one stop from the next.
    pub continues: u64,
    /// How many stops there were.
    pub stops: u64,
}

/// A process that is stopped, or about to be.
#[derive(Clone, Copy, Debug)]
pub struct Stop {
    /// The signal that did it.
    pub signal: u32,
    /// Tells it from the process's other stops; never 0.
    pub sequence: u64,
    /// Threads that have parked.
    pub parked: usize,
    /// Whether the parent has been told.
    pub is_complete: bool,
}

/// What to do about one signal (sigaction(2)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Action {
    /// Address of the handler, or SIG_DFL, SIG_IGN.
    pub handler: u64,
    /// SA_ flags.
    pub flags: u64,
    /// Where the handler returns to (SA_RESTORER).
    pub restorer: u64,
    /// Signals blocked meanwhile.
    pub mask: SignalSet,
}

/// Default action.
pub const SIG_DFL: u64 = 0;
/// Ignore.
pub const SIG_IGN: u64 = 1;

/// Dispositions of all signals. CLONE_SIGHAND shares them.
pub struct Handlers {
    actions: SpinLock<Box<[Action; LAST as usize]>>,
}

impl Default for Handlers {
    fn default() -> Self {
        Handlers { actions: SpinLock::new(Box::new([Action::default(); LAST as usize])) }
    }
}

impl Handlers {
    /// The action for a signal (1 to 64).
    pub fn get(&self, signal: u32) -> Action {
        self.actions.lock()[signal as usize - 1]
    }

    /// Replaces the action for a signal; returns the old one.
    pub fn set(&self, signal: u32, action: Action) -> Action {
        core::mem::replace(&mut self.actions.lock()[signal as usize - 1], action)
    }

    /// A copy for fork.
    #[must_use]
    pub fn duplicate(&self) -> Handlers {
        Handlers { actions: SpinLock::new(self.actions.lock().clone()) }
    }

    /// A copy in which handlers are back to default and ignored signals stay ignored: exec, and
    /// CLONE_CLEAR_SIGHAND.
    #[must_use]
    pub fn without_handlers(&self) -> Handlers {
        let copy = self.duplicate();
        for action in copy.actions.lock().iter_mut() {
            let handler = if action.handler == SIG_IGN { SIG_IGN } else { SIG_DFL };
            *action = Action { handler, ..Action::default() };
        }
        copy
    }

    /// Sets of ignored and of caught signals, for /proc/PID/status.
    pub fn ignored_and_caught(&self) -> (SignalSet, SignalSet) {
        let mut sets = (0, 0);
        for (action, signal) in self.actions.lock().iter().zip(1..) {
            match action.handler {
                SIG_DFL => {}
                SIG_IGN => sets.0 |= bit(signal),
                _ => sets.1 |= bit(signal),
            }
        }
        sets
    }
}

impl Action {
    /// Whether the signal has no effect at all.
    #[must_use]
    pub fn ignores(&self, signal: u32) -> bool {
        self.handler == SIG_IGN || self.handler == SIG_DFL && pending::HARMLESS & bit(signal) != 0
    }

    /// Whether a flag is set.
    #[must_use]
    pub fn has(&self, flag: u32) -> bool {
        self.flags as u32 & flag != 0
    }
}

impl Process {
    /// The action for a signal (1 to 64).
    pub fn action(&self, signal: u32) -> Action {
        let handlers = self.handlers.lock();
        handlers.get(signal)
    }
}

impl Thread {
    /// Sets `work::SIGNAL` if a pending signal is deliverable. For the running thread, after its
    /// mask changed.
    pub fn recheck_signals(&self) {
        let shared = self.process.signals.lock();
        let own = self.signals.lock();
        let pending = (shared.pending.set() | own.pending.set()) & !own.blocked;
        let new_stop = shared.stop.as_ref().is_some_and(|s| !self.trace.has_seen(s.sequence));
        if pending != 0 || new_stop || self.trace.has_trap() {
            self.task().set_work(work::SIGNAL);
        }
    }

    /// Signals that are pending for the thread or its process.
    pub fn pending_signals(&self) -> SignalSet {
        let shared = self.process.signals.lock().pending.set();
        shared | self.signals.lock().pending.set()
    }
}

/// Writes a core of the running process, which `info`'s signal ends, if it may be (PR_SET_DUMPABLE)
/// and wanted: what is then in its wait(2) status beside the signal.
pub fn dump_core(regs: &PtRegs, info: &SigInfo) -> i32 {
    let may = !current().process.settings.not_dumpable.load(Ordering::Relaxed);
    if may && upper::dump_core(regs, info) { 0x80 } else { 0 }
}
