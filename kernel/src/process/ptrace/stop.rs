//! The tracee's side: where a thread stops for its tracer, and how it goes on.
//!
//! [`Trace`]'s lock decides every race: a tracer that comes too early finds no stop, one that comes
//! too late finds it gone (ESRCH both times); a tracee whose tracer has just died does not stop.
//! Only the tracer and death end a stop; no signal does.

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use abi::general as raw;
use abi::ptrace::{self as nr, PTRACE_EVENT_STOP};
use entry::PtRegs;
use machine::fpu::FpuState;
use machine::task;

use super::{Event, Resume, Stop, Trace, TraceeState, step, syscall_work};
use crate::base::sched::Sleep;
use crate::process::current;
use crate::process::signal::{self, SigInfo, bit, send};
use crate::process::{Process, Thread, work};

/// Why a thread stops.
struct Reason {
    /// Bits 8 and up of the wait(2) status.
    code: u32,
    /// CLD_TRAPPED or CLD_STOPPED, for the tracer's SIGCHLD.
    why: u32,
    /// For PTRACE_GETEVENTMSG.
    message: u64,
    info: Option<SigInfo>,
}

impl Reason {
    /// A stop that is not about a signal: its siginfo names the stop itself.
    fn notice(code: u32, why: u32, message: u64) -> Reason {
        let thread = current();
        let uid = thread.process.credentials().uid;
        let info = SigInfo::from_process(code & 0x7f, code as i32, thread.tid(), uid);
        Reason { code, why, message, info: Some(info) }
    }
}

/// How a stop ended.
enum Ended {
    /// There was none: nobody traces, or the thread must die.
    NotStopped,
    /// The thread was killed.
    Killed,
    /// The tracer let it go on, with this signal (or 0), about which this is known.
    Resumed(u32, Option<SigInfo>),
}

/// Stops the running thread until its tracer lets it go on. `regs` are the program's; the tracer
/// may change them meanwhile.
fn stop(regs: &mut PtRegs, reason: Reason) -> Ended {
    let thread = current();
    let (code, why) = (reason.code, reason.why);
    let Some(tracer) = enter(&thread, regs, reason) else { return Ended::NotStopped };
    tell(&tracer, &thread, why, (code & 0x7f) as i32);
    // A last reference must not wait for the end of the stop.
    drop(tracer);
    let trace = &thread.trace;
    let sleep =
        trace.resumed.wait_deadline(Sleep::Killable, None, || trace.is_over().then_some(()));
    let (ended, resume) = leave(&thread, regs);
    // What came meanwhile woke nobody. Only that: a call that gives way to signals (fork) would
    // give way at each try.
    thread.recheck_signals();
    step::resume(regs, resume.work);
    if sleep.is_err() { Ended::Killed } else { ended }
}

/// Puts everything the tracer may ask for into the thread's state. None: not to be stopped.
fn enter(thread: &Thread, regs: &mut PtRegs, reason: Reason) -> Option<Arc<Process>> {
    // Memory is had before the lock is.
    let missing = thread.trace.state().fpu.is_none();
    let fresh = if missing { FpuState::new().ok() } else { None };
    let (fs_base, gs_base) = task::user_bases();
    let shadow = task::shadow_stack_pointer();
    let mut state = thread.trace.state();
    let state = &mut *state;
    let tracer = state.link.as_ref()?.tracer.clone();
    if thread.task().work() & work::EXIT != 0 {
        return None;
    }
    step::disarm(regs, state);
    state.trap = false;
    if reason.code >> 8 == PTRACE_EVENT_STOP {
        state.notify = false;
    }
    state.registers.general = *regs;
    (state.registers.fs_base, state.registers.gs_base) = (fs_base, gs_base);
    state.registers.bases_changed = false;
    state.registers.fpu_changed = false;
    state.registers.debug_changed = false;
    (state.registers.shadow, state.registers.shadow_changed) = (shadow, false);
    if state.fpu.is_none() {
        state.fpu = fresh;
    }
    if let Some(copy) = &mut state.fpu {
        copy.copy_running();
    }
    state.stop = Some(Stop {
        code: reason.code,
        unreported: true,
        listening: false,
        message: reason.message,
        info: reason.info,
        resumed: None,
    });
    Some(tracer)
}

impl Trace {
    /// Whether the stop of the thread is over.
    fn is_over(&self) -> bool {
        let state = self.state();
        let Some(stop) = &state.stop else { return true };
        // A listener stops anew for whatever it has to tell.
        stop.resumed.is_some() || stop.listening && (state.trap || state.notify)
    }
}

/// Takes back what the tracer left.
fn leave(thread: &Thread, regs: &mut PtRegs) -> (Ended, Resume) {
    let mut state = thread.trace.state();
    let state = &mut *state;
    let Some(stop) = state.stop.take() else { return (Ended::Killed, Resume::default()) };
    *regs = state.registers.general;
    if state.registers.bases_changed {
        task::set_user_bases(state.registers.fs_base, state.registers.gs_base);
    }
    if state.registers.fpu_changed
        && let Some(image) = &state.fpu
    {
        task::set_fpu(image);
    }
    if state.registers.debug_changed {
        task::set_debug_registers(&state.debug);
    }
    if state.registers.shadow_changed
        && let Some(pointer) = state.registers.shadow
    {
        task::set_shadow_stack_pointer(pointer);
    }
    let resume = stop.resumed.unwrap_or_default();
    (Ended::Resumed(resume.signal, stop.info), resume)
}

/// Tells a tracer that something happened to a tracee: by SIGCHLD, and by waking its wait(2).
pub(super) fn tell(tracer: &Arc<Process>, thread: &Thread, why: u32, status: i32) {
    let action = tracer.action(raw::SIGCHLD);
    if action.handler != signal::SIG_IGN && !action.has(raw::SA_NOCLDSTOP) {
        let uid = thread.process.credentials().uid;
        let times = <[u64; 2]>::from(thread.times_ns());
        let info = SigInfo::child(raw::SIGCHLD, why, thread.tid(), uid, status, times);
        let _ = send::send_to_process(tracer, info);
    }
    tracer.child_events.wake_all(0);
}

/// A signal is about to be delivered: the tracer may change it, or take it away (None).
pub fn before_signal(regs: &mut PtRegs, info: SigInfo) -> Option<SigInfo> {
    let thread = current();
    let number = info.number();
    let reason = Reason { code: number, why: raw::CLD_TRAPPED, message: 0, info: Some(info) };
    let info = match stop(regs, reason) {
        Ended::NotStopped => return Some(info),
        Ended::Killed | Ended::Resumed(0, _) => return None,
        Ended::Resumed(wanted, changed) if wanted == number => changed.unwrap_or(info),
        Ended::Resumed(wanted, _) => sent_by_tracer(&thread, wanted),
    };
    let mut signals = thread.signals.lock();
    if signals.blocked & bit(info.number()) == 0 {
        return Some(info);
    }
    // It waits until it is unblocked; nothing limits what the tracer does to its tracee.
    let _ = signals.pending.add(info, usize::MAX);
    None
}

fn sent_by_tracer(thread: &Thread, number: u32) -> SigInfo {
    let tracer = thread.trace.state().link.as_ref().map(|link| link.tracer.clone());
    let (pid, uid) = tracer.map_or((0, 0), |tracer| (tracer.pid, tracer.credentials().uid));
    SigInfo::from_process(number, raw::SI_USER as i32, pid, uid)
}

/// A handler's frame has been set up while the tracer steps: the handler's first instruction counts
/// as reached.
pub fn entered_handler(regs: &mut PtRegs) {
    stop(regs, Reason::notice(raw::SIGTRAP, raw::CLD_TRAPPED, 0));
}

/// Stops for an event, if the tracer asked for it.
pub fn event(regs: &mut PtRegs, event: Event, message: u64) {
    if wants(event) {
        let code = event.number << 8 | raw::SIGTRAP;
        let thread = current();
        let work_before = thread.syscall_work.load(Ordering::Relaxed);
        stop(regs, Reason::notice(code, raw::CLD_TRAPPED, message));
        // A call that began without work does not look for any at its end.
        if work_before == 0 && thread.syscall_work.load(Ordering::Relaxed) != 0 {
            thread.task().set_work(work::SYSCALL_EXIT);
        }
    }
}

/// Whether the tracer asked for an event of the running thread.
pub fn wants(event: Event) -> bool {
    let trace = &current().trace;
    trace.is_traced() && trace.state().wants(event.option)
}

/// execve(2) has succeeded. `old_tid` is the id that the thread had before.
pub fn executed(regs: &mut PtRegs, old_tid: u32) {
    let thread = current();
    if !thread.trace.is_traced() {
        return;
    }
    clear_debug_registers(&thread);
    let seized = thread.trace.state().is_seized();
    if wants(Event::EXEC) {
        event(regs, Event::EXEC, u64::from(old_tid));
    } else if !seized {
        // The oldest form: as if by kill(2).
        signal::send_to_current(raw::SIGTRAP);
    }
}

/// Breakpoints at addresses of the old program mean nothing in the new one.
fn clear_debug_registers(thread: &Thread) {
    let mut state = thread.trace.state();
    state.debug = Default::default();
    task::set_debug_registers(&state.debug);
}

/// The thread is about to end with this wait(2) status. Even a thread that was killed stops here,
/// and only its tracer, or that one's end, ends this stop.
pub fn before_exit(regs: &mut PtRegs, status: i32) {
    if !wants(Event::EXIT) {
        return;
    }
    let thread = current();
    let decided = thread.process.signals.lock().group_exit;
    let status = decided.unwrap_or(status) as u32;
    let killed = thread.task().take_work(work::EXIT) & work::EXIT;
    event(regs, Event::EXIT, u64::from(status));
    thread.task().set_work(killed);
}

/// Job control stops the process, or a PTRACE_EVENT_STOP is due.
pub fn job_control(regs: &mut PtRegs) {
    let thread = current();
    // Of a seized thread (Ok), or of one that was attached to (Err).
    let signal = {
        let shared = thread.process.signals.lock();
        let stopped = shared.stop.as_ref().map(|stop| (stop.signal, stop.sequence));
        let mut state = thread.trace.state();
        state.stop_seen = stopped.map_or(0, |(_, sequence)| sequence);
        let due = core::mem::take(&mut state.trap) | core::mem::take(&mut state.notify);
        let signal = stopped.map(|(signal, _)| signal);
        match (state.is_seized(), signal) {
            (true, None) if !due => return,
            (true, _) => Ok(signal.unwrap_or(raw::SIGTRAP)),
            // Without PTRACE_SEIZE there is only the stop itself to tell.
            (false, Some(signal)) => Err(signal),
            (false, None) => return,
        }
    };
    let reason = match signal {
        Ok(signal) => Reason::notice(PTRACE_EVENT_STOP << 8 | signal, raw::CLD_STOPPED, 0),
        Err(signal) => Reason { code: signal, why: raw::CLD_STOPPED, message: 0, info: None },
    };
    stop(regs, reason);
}

/// The system call in `regs` begins and has `syscall_work`. Whether to make it; its number and
/// arguments are in `regs`, as the tracer left them.
pub fn before_syscall(regs: &mut PtRegs) -> bool {
    let thread = current();
    let bits = thread.syscall_work.load(Ordering::Relaxed);
    if bits & (syscall_work::TRACE | syscall_work::EMULATE) != 0 {
        match syscall_stop(regs, nr::PTRACE_EVENTMSG_SYSCALL_ENTRY) {
            Ended::Killed => return false,
            Ended::NotStopped => step::set_tracing_work(0),
            Ended::Resumed(..) if bits & syscall_work::EMULATE != 0 => return false,
            Ended::Resumed(..) => {}
        }
    }
    // The number -1 means "none"; RAX is then what the tracer put there.
    regs.orig_rax as u32 != u32::MAX
}

/// The system call in `regs` ends.
pub fn after_syscall(regs: &mut PtRegs) {
    let thread = current();
    let bits = thread.syscall_work.load(Ordering::Relaxed);
    if bits & syscall_work::EMULATE != 0 {
        return;
    }
    if bits & syscall_work::STEP != 0 {
        // TF takes effect only after the next instruction.
        send::force(SigInfo::fault(raw::SIGTRAP, raw::TRAP_BRKPT, regs.rip));
    } else if bits & syscall_work::TRACE != 0 {
        syscall_stop(regs, nr::PTRACE_EVENTMSG_SYSCALL_EXIT);
    }
}

fn syscall_stop(regs: &mut PtRegs, which: u32) -> Ended {
    let good = current().trace.state().options & nr::PTRACE_O_TRACESYSGOOD != 0;
    let code = raw::SIGTRAP | if good { 0x80 } else { 0 };
    let ended = stop(regs, Reason::notice(code, raw::CLD_TRAPPED, u64::from(which)));
    if let Ended::Resumed(signal @ 1.., _) = ended {
        let _ = signal::send_to_thread(&current().to_arc(), SigInfo::kernel(signal));
    }
    ended
}

impl TraceeState {
    /// Ends the stop, if there is one. The caller wakes the thread.
    pub(super) fn resume(&mut self, resume: Resume) {
        if let Some(stop) = &mut self.stop {
            stop.unreported = false;
            stop.listening = false;
            stop.resumed = Some(resume);
        }
    }
}
