//! Sending: making a signal pending, and making a thread look.

use alloc::sync::Arc;
use alloc::vec::Vec;

use abi::{Errno, Result, general as raw};

use super::{Action, Pending, ProcessSignals, SigInfo, SignalSet, bit, pending, stop};
use crate::base::poll::events;
use crate::base::sched;
use crate::process::current;
use crate::process::{Pid, Process, Thread, group_members, has_current, timers, work};
use crate::security::Resource;

/// Sends a signal to a process: some thread that does not block it will take it. EAGAIN if the
/// queue of real-time signals is full. Callable from interrupts.
pub fn send_to_process(process: &Arc<Process>, info: SigInfo) -> Result<()> {
    send(process, (None, None), info, None).map(|_| ())
}

/// The same; `thread` of it takes the signal if it does not block it (kill(2) by a thread's id).
pub fn send_to_process_by(
    process: &Arc<Process>,
    thread: Option<&Arc<Thread>>,
    info: SigInfo,
) -> Result<()> {
    send(process, (None, thread), info, None).map(|_| ())
}

/// Sends a signal to one thread.
pub fn send_to_thread(thread: &Arc<Thread>, info: SigInfo) -> Result<()> {
    send(&thread.process, (Some(thread), None), info, None).map(|_| ())
}

/// Sends the signal of a timer's expiry, if `is_current` says so where nobody can take it back
/// ([`recall_timer`]). False if it is ignored. Callable from interrupts.
pub fn send_timer(
    process: &Arc<Process>,
    target: Option<&Arc<Thread>>,
    info: SigInfo,
    is_current: &dyn Fn() -> bool,
) -> bool {
    // Timers are never refused.
    send(process, (target, None), info, Some(is_current)).unwrap_or(true)
}

/// Takes back the signal of a timer, if it waits: of the process, or of the thread that is told.
pub fn recall_timer(process: &Process, target: Option<&Thread>, number: u32, id: u32) {
    // Also for a thread's: who sends one holds this lock.
    let mut shared = process.signals.lock();
    match target {
        Some(thread) => thread.signals.lock().pending.recall_timer(number, id),
        None => shared.pending.recall_timer(number, id),
    }
}

/// Acts on what is pending for the process, and for each of its threads.
fn each_pending(process: &Process, mut act: impl FnMut(&mut Pending)) {
    let threads = process.threads.lock();
    act(&mut process.signals.lock().pending);
    for thread in threads.iter() {
        act(&mut thread.signals.lock().pending);
    }
}

/// Sends a signal of the kernel to the running thread, synchronously (SIGPIPE).
pub fn send_to_current(number: u32) {
    let thread = current().to_arc();
    let pid = thread.process.pid;
    let uid = thread.process.credentials().uid;
    let info = SigInfo::from_process(number, raw::SI_USER as i32, pid, uid);
    // Standard signals are never refused.
    let _ = send_to_thread(&thread, info);
}

/// Sends a signal to every process of a group; ESRCH if the group has no members. For terminals: no
/// permission is checked.
pub fn send_to_group(group: Pid, info: SigInfo) -> Result<()> {
    let members = group_members(group);
    if members.is_empty() {
        return Err(Errno::ESRCH);
    }
    for process in members {
        send_to_process(&process, info)?;
    }
    Ok(())
}

/// False if it is ignored.
fn send(
    process: &Arc<Process>,
    (target, preferred): (Option<&Arc<Thread>>, Option<&Arc<Thread>>),
    info: SigInfo,
    of_timer: Option<&dyn Fn() -> bool>,
) -> Result<bool> {
    let number = info.number();
    let limit = process.limit(Resource::PendingSignals);
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let threads = process.threads.lock();
    let mut shared = process.signals.lock();
    if shared.group_exit.is_some() || of_timer.is_some_and(|is_current| !is_current()) {
        return Ok(true);
    }
    let resumed = prepare(process, &threads, &mut shared, number);
    if number == raw::SIGKILL {
        start_exit(process, &threads, &mut shared, raw::SIGKILL as i32, None);
        return Ok(true);
    }
    let action = process.action(number);
    let is_kept = !is_ignored(action, &threads, target, number);
    if is_kept {
        let add = |pending: &mut Pending| {
            if of_timer.is_some() {
                pending.add_timer(info);
                return Ok(());
            }
            pending.add(info, limit).map_err(|_| Errno::EAGAIN)
        };
        match target {
            Some(thread) => add(&mut thread.signals.lock().pending),
            None => add(&mut shared.pending),
        }?;
        // A timer that expires while a thread of the process runs is that thread's.
        let own = of_timer.filter(|_| has_current()).map(|_| current().to_arc());
        let own = own.as_ref().filter(|own| threads.has(own));
        let taker = choose(&threads, target.or(preferred).or(own), number);
        // Who is only preferred may not want it.
        let taker = taker.or_else(|| choose(&threads, target, number));
        if let Some(thread) = taker {
            alert(thread);
            if is_fatal(action, thread, number) {
                start_exit(process, &threads, &mut shared, number as i32, None);
            }
        }
    }
    drop(shared);
    drop(threads);
    process.signal_events.wake_all(events::READABLE);
    if resumed {
        stop::report_continued(process);
    }
    Ok(is_kept)
}

/// Makes a thread look for signals: ends its interruptible sleep, or interrupts its CPU.
pub fn alert(thread: &Arc<Thread>) {
    thread.task().set_work(work::SIGNAL);
    sched::notify(&thread.base);
}

/// Effects of sending that do not wait for delivery: stop signals and SIGCONT cancel each other,
/// and SIGCONT wakes a stopped process even if it is blocked or ignored. Returns whether it did.
fn prepare(
    process: &Process,
    threads: &[Arc<Thread>],
    shared: &mut ProcessSignals,
    number: u32,
) -> bool {
    let cancelled = if number == raw::SIGCONT {
        pending::STOPS
    } else if pending::STOPS & bit(number) != 0 {
        bit(raw::SIGCONT)
    } else {
        return false;
    };
    shared.pending.remove(cancelled);
    for thread in threads {
        thread.signals.lock().pending.remove(cancelled);
    }
    if number != raw::SIGCONT {
        return false;
    }
    for thread in threads.iter().filter(|thread| thread.trace.job_control_changed()) {
        alert(thread);
    }
    shared.continues += 1;
    if shared.stop.take().is_none() {
        return false;
    }
    process.continue_events.wake_all(0);
    true
}

/// Whether the signal would have no effect, so that it is not even queued. A blocked signal is
/// queued always: its disposition may change before it is unblocked.
fn is_ignored(
    action: Action,
    threads: &[Arc<Thread>],
    target: Option<&Arc<Thread>>,
    number: u32,
) -> bool {
    let Some(thread) = target.or(threads.first()) else { return true };
    if thread.trace.is_traced() {
        // Its tracer may want to know, or to change it.
        return false;
    }
    action.ignores(number) && thread.signals.lock().blocked & bit(number) == 0
}

/// Whether the signal ends the process whatever it does until it is delivered: then it ends at
/// once, before any thread of it makes another call. (A core file wants the thread's registers.)
fn is_fatal(action: Action, thread: &Thread, number: u32) -> bool {
    let ends = action.handler == super::SIG_DFL && !action.ignores(number);
    ends && !stop::stops(number)
        && pending::DUMPS_CORE & bit(number) == 0
        && !thread.trace.is_traced()
}

/// The thread that shall take the signal, the first one before others; rather one that runs or has
/// no other to take. None if all block it.
fn choose<'a>(
    threads: &'a [Arc<Thread>],
    target: Option<&'a Arc<Thread>>,
    number: u32,
) -> Option<&'a Arc<Thread>> {
    let wants = |thread: &&Arc<Thread>| {
        let signals = thread.signals.lock();
        signals.blocked & bit(number) == 0 && !signals.is_exiting
    };
    if let Some(thread) = target {
        return Some(thread).filter(wants);
    }
    let is_free = |thread: &&Arc<Thread>| thread.task().is_on_cpu() || !thread.has_pending_signal();
    let mut wanting = threads.iter().filter(wants);
    let first = wanting.clone().next();
    wanting.find(is_free).or(first)
}

/// Makes every thread of the process but `except` leave with the given wait(2) status.
pub fn start_exit(
    process: &Process,
    threads: &[Arc<Thread>],
    shared: &mut ProcessSignals,
    status: i32,
    except: Option<Pid>,
) {
    shared.group_exit = Some(status);
    shared.stop = None;
    for thread in threads.iter().filter(|thread| Some(thread.tid()) != except) {
        thread.task().set_work(work::EXIT);
        sched::notify(&thread.base);
    }
    process.continue_events.wake_all(0);
}

/// The running thread takes no signals any more: those that wait for the process are others' now.
pub fn hand_over(leaving: &Arc<Thread>) {
    let threads = leaving.process.threads.lock();
    let waiting = leaving.process.signals.lock().pending.set();
    if waiting == 0 {
        return;
    }
    for thread in threads.iter().filter(|thread| !Arc::ptr_eq(thread, leaving)) {
        let wanted = waiting & !thread.signals.lock().blocked;
        if wanted != 0 {
            alert(thread);
        }
    }
}

/// Sends a synchronous signal to the running thread: it is delivered even if it is blocked or
/// ignored, then by its default action.
pub fn force(info: SigInfo) {
    let thread = current();
    let number = info.number();
    {
        let _shared = thread.process.signals.lock();
        let mut own = thread.signals.lock();
        let action = thread.process.action(number);
        if own.blocked & bit(number) != 0 || action.handler == super::SIG_IGN {
            thread.process.handlers.lock().set(number, super::Action::default());
            own.blocked &= !bit(number);
        }
        // A limit must not hide a fault: the set is enough to kill.
        let _ = own.pending.add(info, usize::MAX);
    }
    thread.task().set_work(work::SIGNAL);
}

/// The running thread cannot even get a signal frame: it dies by SIGSEGV, unless it has a handler
/// for it that was not the one being entered.
pub fn force_segv(while_entering: u32) {
    if while_entering == raw::SIGSEGV {
        let thread = current();
        let handlers = thread.process.handlers.lock();
        handlers.set(raw::SIGSEGV, super::Action::default());
    }
    force(SigInfo::kernel(raw::SIGSEGV));
}

/// Forgets signals of `gone` that are pending anywhere in the process: they are ignored now.
pub fn flush(process: &Process, gone: SignalSet) {
    let mut of_timers = Vec::new();
    each_pending(process, |pending| {
        for info in pending.of_timers(gone) {
            // Without memory its overruns are not counted.
            if of_timers.try_reserve(1).is_ok() {
                of_timers.push(info);
            }
        }
        pending.remove(gone);
    });
    // Not above: the timers of CPU clocks ask all threads for their times.
    timers::note_forgotten(process, &of_timers);
}
