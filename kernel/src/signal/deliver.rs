//! Delivery: what the running thread does about its pending signals on the way back to the program,
//! and how a system call that a signal interrupted goes on.

use abi::{Errno, general as raw};
use entry::PtRegs;
use machine::sync::IrqGuard;

use super::frame;
use crate::process::signal::{
    Action, SIG_DFL, SIG_IGN, SigInfo, SignalSet, bit, dump_core, mask, pending, send, stop,
};
use crate::process::{Thread, current, exit, ptrace, rseq, timers};

/// What to do next.
enum Next {
    /// Nothing is deliverable.
    Nothing,
    /// The process is ending.
    Exit,
    /// The process is stopped.
    Stopped,
    /// The thread's tracer wants it to stop.
    Trap,
    /// This signal, taken when the process had been continued that often.
    Signal(SigInfo, u64),
}

/// Delivers pending signals: sets up a handler frame in `regs`, stops, or ends the process.
/// `restore_mask`: a call left a temporary mask behind.
pub fn deliver(regs: &mut PtRegs, restore_mask: bool) {
    if restore_mask && !mask::was_interrupted(regs) {
        mask::restore();
    }
    loop {
        match next() {
            Next::Exit => exit::exit_thread(regs, 0),
            Next::Stopped => stop::stop_here(regs),
            Next::Trap => ptrace::stop::job_control(regs),
            Next::Signal(info, continues) => {
                if take_action(regs, info, continues) {
                    return;
                }
            }
            Next::Nothing => break,
        }
    }
    restart_without_handler(regs);
    if restore_mask {
        mask::restore();
    }
}

/// What is next; of a signal its delivery is noted. A tick in between would begin another signal of
/// a timer instead of an overrun in this one.
fn next() -> Next {
    let _irq = IrqGuard::new();
    let mut next = take_next();
    if let Next::Signal(info, _) = &mut next {
        current().note_delivery(info);
    }
    next
}

fn take_next() -> Next {
    let thread = current();
    let mut shared = thread.process.signals.lock();
    if shared.group_exit.is_some() {
        return Next::Exit;
    }
    if shared.stop.as_ref().is_some_and(|stop| !thread.trace.has_seen(stop.sequence)) {
        return Next::Stopped;
    }
    if thread.trace.has_trap() {
        return Next::Trap;
    }
    let mut own = thread.signals.lock();
    let wanted = !own.blocked;
    let Some(info) = own.pending.take(wanted).or_else(|| shared.pending.take(wanted)) else {
        return Next::Nothing;
    };
    Next::Signal(info, shared.continues)
}

/// The action for a signal that is being delivered; its handler may be meant for one signal only.
fn use_action(number: u32) -> Action {
    let process = &current().process;
    let action = process.action(number);
    if action.has(raw::SA_RESETHAND) && action.handler > SIG_IGN {
        let reset = Action { handler: SIG_DFL, ..action };
        process.handlers.lock().set(number, reset);
    }
    action
}

/// Acts on one signal; true if a handler frame was set up.
fn take_action(regs: &mut PtRegs, info: SigInfo, continues: u64) -> bool {
    let thread = current();
    let is_traced = thread.trace.is_traced() && info.number() != raw::SIGKILL;
    let info = if is_traced { ptrace::stop::before_signal(regs, info) } else { Some(info) };
    let Some(info) = info else { return false };
    let number = info.number();
    let action = use_action(number);
    if action.ignores(number) {
        return false;
    }
    if action.handler == SIG_DFL {
        if stop::stops(number) {
            stop::begin(number, continues);
            return false;
        }
        let dumps = pending::DUMPS_CORE & bit(number) != 0;
        let core = if dumps { dump_core(regs, &info) } else { 0 };
        exit::exit_group(regs, number as i32 | core);
    }
    enter_handler(regs, &info, &action);
    true
}

fn enter_handler(regs: &mut PtRegs, info: &SigInfo, action: &Action) {
    let thread = current();
    restart_with_handler(regs, action);
    rseq::before_return(regs);
    let stepping = ptrace::step::pause(regs);
    if frame::push(regs, info, action).is_err() {
        send::force_segv(info.number());
        return;
    }
    let mut signals = thread.signals.lock();
    signals.saved_mask = None;
    signals.blocked |= action.mask;
    if !action.has(raw::SA_NODEFER) {
        signals.blocked |= bit(info.number());
    }
    drop(signals);
    // Other signals may be deliverable still: their frames go on top of this one.
    thread.recheck_signals();
    if stepping {
        ptrace::stop::entered_handler(regs);
    }
}

/// Whether the registers are those of a system call that has not been restarted yet.
fn is_system_call(regs: &PtRegs) -> bool {
    regs.orig_rax as i64 >= 0
}

fn interruption(regs: &PtRegs) -> Option<Errno> {
    let value = regs.rax as i64;
    (is_system_call(regs) && (-516..=-512).contains(&value)).then(|| Errno::new(-value as u32))
}

/// Makes the program execute its SYSCALL instruction (two bytes) again, as call `number`.
fn repeat(regs: &mut PtRegs, number: u64) {
    regs.rax = number;
    regs.rip = regs.rip.wrapping_sub(2);
    // SYSCALL overwrites these two, so the program cannot mind; and so SYSRET can return there.
    regs.rcx = regs.rip;
    regs.r11 = regs.rflags;
}

fn restart_with_handler(regs: &mut PtRegs, action: &Action) {
    let Some(error) = interruption(regs) else { return };
    let restarts = error == Errno::ERESTARTNOINTR
        || error == Errno::ERESTARTSYS && action.has(raw::SA_RESTART);
    if restarts {
        repeat(regs, regs.orig_rax);
    } else {
        regs.rax = Errno::EINTR.to_raw();
    }
    regs.orig_rax = u64::MAX;
}

fn restart_without_handler(regs: &mut PtRegs) {
    let Some(error) = interruption(regs) else { return };
    if error == Errno::ERESTART_RESTARTBLOCK {
        repeat(regs, u64::from(raw::__NR_restart_syscall));
    } else {
        repeat(regs, regs.orig_rax);
    }
    regs.orig_rax = u64::MAX;
}

impl Thread {
    /// Takes a pending signal of `wanted`, the thread's own first.
    pub fn take_signal(&self, wanted: SignalSet) -> Option<SigInfo> {
        // As in `next`.
        let _irq = IrqGuard::new();
        let mut taken = {
            let mut shared = self.process.signals.lock();
            let own = self.signals.lock().pending.take(wanted);
            own.or_else(|| shared.pending.take(wanted))
        };
        if let Some(info) = &mut taken {
            self.note_delivery(info);
        }
        taken
    }

    /// What has to be known about a signal that was taken. No lock is held.
    fn note_delivery(&self, info: &mut SigInfo) {
        if info.code == raw::SI_TIMER {
            timers::note_delivery(&self.process, info);
        }
    }
}
