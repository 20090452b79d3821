//! Delivery: what the running thread does about its pending signals on the way back to the program,
//! and how a system call that a signal interrupted goes on.

use abi::{Errno, general as raw};
use entry::PtRegs;

use super::{Action, SIG_DFL, SIG_IGN, SigInfo, bit, frame, mask, pending, send, stop};
use crate::process::exit;
use crate::sched::current;

/// What to do next.
enum Next {
    /// Nothing is deliverable.
    Nothing,
    /// The process is ending.
    Exit,
    /// The process is stopped.
    Stopped,
    /// This signal, taken when the process had been continued that often.
    Signal(SigInfo, Action, u64),
}

/// Delivers pending signals: sets up a handler frame in `regs`, stops, or ends the process.
/// `restore_mask`: a call left a temporary mask behind.
pub fn deliver(regs: &mut PtRegs, restore_mask: bool) {
    if restore_mask && !mask::was_interrupted(regs) {
        mask::restore();
    }
    loop {
        match next() {
            Next::Exit => exit::exit_thread(0),
            Next::Stopped => stop::park_if_stopped(),
            Next::Signal(info, action, continues) => {
                if take_action(regs, info, action, continues) {
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

fn next() -> Next {
    let thread = current();
    let mut shared = thread.process.signals.lock();
    if shared.group_exit.is_some() {
        return Next::Exit;
    }
    if shared.stop.is_some() {
        return Next::Stopped;
    }
    let mut own = thread.signals.lock();
    let wanted = !own.blocked;
    let Some(info) = own.pending.take(wanted).or_else(|| shared.pending.take(wanted)) else {
        return Next::Nothing;
    };
    let number = info.number();
    let action = thread.process.action(number);
    if action.has(raw::SA_RESETHAND) && action.handler > SIG_IGN {
        let reset = Action { handler: SIG_DFL, ..action };
        thread.process.handlers.lock().set(number, reset);
    }
    Next::Signal(info, action, shared.continues)
}

/// Acts on one signal; true if a handler frame was set up.
fn take_action(regs: &mut PtRegs, info: SigInfo, action: Action, continues: u64) -> bool {
    let number = info.number();
    current().note_delivery(&info);
    if action.ignores(number) {
        return false;
    }
    if action.handler == SIG_DFL {
        if stop::stops(number) {
            stop::begin(number, continues);
            return false;
        }
        let dumps = pending::DUMPS_CORE & bit(number) != 0 && super::may_dump_core();
        exit::exit_group(number as i32 | if dumps { 0x80 } else { 0 });
    }
    enter_handler(regs, &info, &action);
    true
}

fn enter_handler(regs: &mut PtRegs, info: &SigInfo, action: &Action) {
    let thread = current();
    restart_with_handler(regs, action);
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
