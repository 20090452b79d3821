//! Job control: stopping a whole process, and telling its parent (signal(7), wait(2)).
//!
//! Any thread that takes a stop signal marks the process; every thread then parks itself on its way
//! back to the program, and the last one to do so tells the parent. SIGCONT clears the mark. A
//! thread that is traced stops for its tracer instead of parking; it counts all the same.

use alloc::sync::Arc;

use abi::general as raw;
use entry::PtRegs;

use super::{SigInfo, Stop, pending, send};
use crate::process::current;
use crate::process::{Process, WaitEvent, ptrace, relations, work};

/// Takes the default action of a stop signal: marks the process and makes all its threads park.
/// `continues` is the process's count from when the signal was taken.
pub fn begin(signal: u32, continues: u64) {
    let process = &current().process;
    // The stop signals of a terminal do nothing where nobody could continue the process.
    if signal != raw::SIGSTOP && crate::process::relations::is_orphaned_group(process) {
        return;
    }
    let threads = process.threads.lock();
    let mut shared = process.signals.lock();
    // A SIGCONT that came after the stop signal was taken wins.
    let is_late = shared.continues != continues;
    if is_late || shared.group_exit.is_some() || shared.stop.is_some() {
        return;
    }
    shared.stops += 1;
    let sequence = shared.stops;
    shared.stop = Some(Stop { signal, sequence, parked: 0, is_complete: false });
    for thread in threads.iter() {
        thread.trace.job_control_changed();
        send::alert(thread);
    }
}

/// Stops the running thread because the process is stopped. Returns when either is over.
pub fn stop_here(regs: &mut PtRegs) {
    if current().trace.is_traced() {
        participate();
        ptrace::stop::job_control(regs);
    } else {
        park_if_stopped();
    }
}

/// Counts the running thread as stopped, and tells the parent if it is the last one. Returns how
/// often the process had been continued before this stop; None if it is not stopped.
fn participate() -> Option<u64> {
    let thread = current();
    let process = &thread.process;
    let mut signal = None;
    let continues;
    {
        let threads = process.threads.lock();
        let mut shared = process.signals.lock();
        continues = shared.continues;
        let stop = shared.stop.as_mut()?;
        let counted = core::mem::replace(&mut thread.signals.lock().parked_for, stop.sequence);
        if counted != stop.sequence {
            stop.parked += 1;
        }
        if stop.parked >= threads.len() && !stop.is_complete {
            stop.is_complete = true;
            signal = Some(stop.signal);
        }
    }
    if let Some(signal) = signal
        && !ptrace::links::hides_stops_from_parent(process)
    {
        tell_parent(process, WaitEvent::Stopped(signal));
    }
    Some(continues)
}

/// Parks the running thread while its process is stopped, or until somebody traces it.
fn park_if_stopped() {
    let thread = current();
    let process = &thread.process;
    let Some(continues) = participate() else { return };
    process.continue_events.wait_uninterruptible(|| {
        let over = {
            let shared = process.signals.lock();
            shared.stop.is_none() || shared.continues != continues
        };
        let killed = thread.task().work() & work::EXIT != 0;
        (over || killed || thread.trace.is_traced()).then_some(())
    });
    // Whatever came meanwhile is looked at now.
    thread.task().set_work(work::SIGNAL);
}

/// A thread has left the process: those that remain may all be parked now.
pub fn thread_left(process: &Arc<Process>) {
    let signal = {
        let threads = process.threads.lock();
        let mut shared = process.signals.lock();
        let Some(stop) = &mut shared.stop else { return };
        if threads.is_empty() || stop.is_complete || stop.parked < threads.len() {
            return;
        }
        stop.is_complete = true;
        stop.signal
    };
    tell_parent(process, WaitEvent::Stopped(signal));
}

/// The process goes on after a stop.
pub fn report_continued(process: &Arc<Process>) {
    tell_parent(process, WaitEvent::Continued);
}

/// Leaves the event for wait(2) and tells the parent.
fn tell_parent(process: &Arc<Process>, event: WaitEvent) {
    let parent = {
        let mut relations = process.relations.lock();
        relations.wait_event = Some(event);
        relations.parent.upgrade()
    };
    let Some(parent) = parent else { return };
    relations::note(process);
    let (code, status) = match event {
        WaitEvent::Stopped(signal) => (raw::CLD_STOPPED, signal),
        WaitEvent::Continued => (raw::CLD_CONTINUED, raw::SIGCONT),
    };
    let action = parent.action(raw::SIGCHLD);
    if !action.has(raw::SA_NOCLDSTOP) && action.handler != super::SIG_IGN {
        let uid = process.credentials().uid;
        let times = process.times_ns();
        let info = SigInfo::child(raw::SIGCHLD, code, process.pid, uid, status as i32, times);
        let _ = send::send_to_process(&parent, info);
    }
    parent.child_events.wake_all(0);
}

/// Whether a signal stops by default.
#[must_use]
pub fn stops(signal: u32) -> bool {
    pending::STOPS & super::bit(signal) != 0
}
