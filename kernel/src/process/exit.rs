//! How threads and processes end, and how their parents learn of it.
//!
//! A thread that ends gives back what is its own; the last one of a process gives back what the
//! process had, hands its children to others, and leaves a zombie: the entry in the table and the
//! status. Everything large is dropped here, by the thread itself, outside all spin locks.

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use abi::general as raw;
use entry::PtRegs;

use super::signal::{self, SIG_IGN, SigInfo, send};
use super::usage::Counts;
use super::{ExitState, Process, Thread, hooks, ptrace, relations, release_pid, upper, work};
use crate::base::poll::events;
use crate::base::sched;
use crate::base::sync::WaitError;
use crate::mm::shadow_stack;
use crate::process::current;

/// The status of a program that ended without one: as if SIGKILL had ended it.
pub const NO_STATUS: i32 = raw::SIGKILL as i32;

/// Ends the current process with wait(2) status `status`. `regs`, here and below: what a tracer
/// sees.
pub fn exit_group(regs: &mut PtRegs, status: i32) -> ! {
    let thread = current();
    let process = &thread.process;
    {
        let threads = process.threads.lock();
        let mut shared = process.signals.lock();
        if shared.group_exit.is_none() {
            send::start_exit(process, &threads, &mut shared, status, Some(thread.tid()));
        }
    }
    exit_thread(regs, status)
}

/// Ends the current thread. `status` is the process's wait(2) status if this is its last thread and
/// no exit_group(2) or fatal signal has decided otherwise.
pub fn exit_thread(regs: &mut PtRegs, status: i32) -> ! {
    ptrace::stop::before_exit(regs, status);
    if current().process.settings.dumps_core.load(Ordering::Relaxed) {
        (upper::upper().leaves_core_notes)(regs);
    }
    leave_process(status);
    sched::exit_current()
}

/// Everything but the last step, so that no reference stays on the dead stack.
fn leave_process(status: i32) {
    let thread = current().to_arc();
    let process = thread.process.clone();
    thread.signals.lock().is_exiting = true;
    hooks::task_free((&thread,));
    shadow_stack::drop_area(&*process, thread.shadow_stack.take_area());
    (upper::upper().leaves_memory)(&thread);
    machine::task::leave_space();
    super::own::leave(current());
    super::seccomp::release();
    signal::send::hand_over(&thread);
    ptrace::links::tracer_ends();
    charge(&thread, &process);
    let is_last = {
        let mut threads = process.threads.lock();
        threads.remove(&thread);
        threads.is_empty()
    };
    let is_kept = ptrace::links::thread_ended(&thread, status);
    if thread.tid() != process.pid && !is_kept {
        release_pid(thread.tid());
    }
    process.release_events.wake_all(0);
    if is_last {
        end_process(&process, status);
    } else {
        process.exit_events.wake_all(events::READABLE | events::HUP);
        signal::stop::thread_left(&process);
        relations::creator_ended(&process, thread.tid());
    }
}

fn charge(thread: &Thread, process: &Process) {
    let (user, kernel) = thread.times_ns();
    process.past_times_ns[0].fetch_add(user, Ordering::Relaxed);
    process.past_times_ns[1].fetch_add(kernel, Ordering::Relaxed);
    process.past_transfers.add(thread.transfers.totals());
    process.past_counts.lock().add_switches(thread);
    if thread.tid() == process.pid {
        let left = thread.base.sched.lock().left();
        *process.past_scheduling.lock() = left;
        let name = *thread.name.lock();
        *process.past_name.lock() = name;
    }
}

/// The last thread has left.
fn end_process(process: &Arc<Process>, status: i32) {
    let decided = process.signals.lock().group_exit;
    process.exit_status.store(decided.unwrap_or(status), Ordering::Relaxed);
    super::timers::release(process);
    (upper::upper().leave_undo)(process);
    let mm = process.mm.lock().take();
    if let Some(mm) = &mm {
        // Its lock sleeps: not under the counts' own.
        let mut counts = Counts::default();
        counts.add_memory(mm);
        process.past_counts.lock().add(&counts);
    }
    drop(mm);
    // A zombie runs nothing: its file may be written to.
    let program = core::mem::take(&mut *process.program.lock());
    drop(program);
    release_vfork_parent(process);
    process.signals.lock().pending.clear();
    (upper::upper().process_ended)(process.pid, process.session.load(Ordering::Relaxed));
    relations::give_children_away(process);
    relations::leave_group(process);
    ptrace::links::hold_for_tracer(process);
    let has_threads = {
        let mut relations = process.relations.lock();
        relations.exit_state = ExitState::Zombie;
        relations.wait_event = None;
        process.is_zombie.store(true, Ordering::Release);
        relations.unreaped_threads > 0
    };
    process.exit_events.wake_all(events::READABLE | events::HUP);
    if !has_threads {
        announce(process);
    }
}

/// Tells of the end of a process all of whose threads are gone: its tracer first, if there is one
/// and it is not the parent.
pub fn announce(process: &Arc<Process>) {
    let held = process.relations.lock().held_by_tracer;
    if held {
        ptrace::links::tell_tracer(process);
    } else {
        tell_parent(process);
    }
}

/// Tells the parent of a zombie: by signal, by waking its wait(2); or takes the zombie away at once
/// if the parent said that it does not want to know (SIGCHLD ignored, SA_NOCLDWAIT).
pub fn tell_parent(process: &Arc<Process>) {
    let Some(parent) = process.parent() else { return };
    relations::note(process);
    let exit_signal = process.exit_signal.load(Ordering::Relaxed);
    let mut autoreap = false;
    if exit_signal != 0 {
        let action = parent.action(exit_signal);
        let is_child_signal = exit_signal == raw::SIGCHLD;
        let ignored = action.handler == SIG_IGN;
        autoreap = is_child_signal && (ignored || action.has(raw::SA_NOCLDWAIT));
        if !(is_child_signal && ignored) {
            let _ = signal::send_to_process(&parent, child_info(process, exit_signal));
        }
    }
    if autoreap && relations::detach(process) {
        relations::forget(process);
    }
    parent.child_events.wake_all(0);
}

/// The siginfo of a child's end.
fn child_info(process: &Process, signal: u32) -> SigInfo {
    let (code, status) = cause(process.exit_status.load(Ordering::Relaxed));
    let uid = process.credentials().uid;
    SigInfo::child(signal, code, process.pid, uid, status, process.times_ns())
}

/// CLD_ code and number for a wait(2) status.
#[must_use]
pub fn cause(status: i32) -> (u32, i32) {
    let signal = status & 0x7f;
    if signal == 0 {
        (raw::CLD_EXITED, status >> 8 & 0xff)
    } else if status & 0x80 != 0 {
        (raw::CLD_DUMPED, signal)
    } else {
        (raw::CLD_KILLED, signal)
    }
}

/// The process no longer runs in its vfork parent's memory: it has executed a program or ended.
pub fn release_vfork_parent(process: &Process) {
    if process.settings.holds_vfork_parent.swap(false, Ordering::SeqCst) {
        process.release_events.wake_all(0);
    }
}

/// Ends all other threads of the process and waits until they are gone; the current one becomes the
/// first thread. For execve(2). EINTR, restarted, if the process is ending or another thread does
/// the same.
pub fn become_only_thread() -> abi::Result<()> {
    let thread = current();
    let process = &thread.process;
    {
        let threads = process.threads.lock();
        let mut shared = process.signals.lock();
        if thread.task().work() & work::EXIT != 0 || shared.group_exit.is_some() {
            return Err(abi::Errno::ERESTARTNOINTR);
        }
        if threads.len() > 1 {
            shared.stop = None;
            for other in threads.iter().filter(|other| other.tid() != thread.tid()) {
                other.task().set_work(work::EXIT);
                sched::notify(&other.base);
            }
            process.continue_events.wake_all(0);
        }
    }
    let alone = || (process.threads.lock().len() == 1).then_some(());
    match process.release_events.wait_deadline(sched::Sleep::Killable, None, alone) {
        Ok(()) => {}
        Err(WaitError::Interrupted | WaitError::TimedOut) => {
            return Err(abi::Errno::ERESTARTNOINTR);
        }
    }
    take_over_first_tid();
    Ok(())
}

/// Gives the only thread that is left the process's own id, which its first thread had (execve(2)).
fn take_over_first_tid() {
    let thread = current().to_arc();
    let (old, pid) = (thread.tid(), thread.process.pid);
    if old != pid {
        ptrace::links::takes_over_tid(old, pid);
        relations::creator_renamed(&thread.process, old);
        super::renumber_thread(&thread, pid);
    }
}
