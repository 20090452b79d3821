//! Who traces whom: attaching, letting go, and what forks, execs and deaths do to it.
//!
//! A link is kept on both sides, in the tracer's process's `tracees` and in the tracee's state, and
//! changes only under both locks. A tracer that ends closes itself under the first, so nobody is
//! given to it afterwards.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use abi::{Errno, Result, general as raw, ptrace as nr};

use super::access::{Ids, may_access};
use super::{Link, Resume, TraceeState};
use crate::process::ExitState;
use crate::process::current;
use crate::process::hooks;
use crate::process::signal::{self, SIG_IGN, SigInfo, send};
use crate::process::{Pid, Process, Thread, exit, find_thread, release_pid, work};
use crate::security::Capability;

/// Makes the two sides know each other. EPERM: traced already, ended, or the tracer is ending.
fn link(tracee: &Arc<Thread>, tracer: &Thread, link: Link, options: u32) -> Result<()> {
    let process = link.tracer.clone();
    let mut tracees = process.tracees.lock();
    if tracer.trace.is_closed.load(Ordering::Relaxed) {
        return Err(Errno::EPERM);
    }
    tracees.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
    let mut state = tracee.trace.state();
    if state.link.is_some() || state.is_gone {
        return Err(Errno::EPERM);
    }
    tracees.push(tracee.clone());
    state.link = Some(link);
    state.options = options;
    state.stop_seen = 0;
    (state.trap, state.notify) = (false, false);
    tracee.trace.is_traced.store(true, Ordering::Relaxed);
    Ok(())
}

/// Takes a tracee's side of the link away; it goes on, if it is stopped. The caller takes the other
/// side away, drops what this returns without locks, and wakes the thread.
pub(crate) fn unlink(tracee: &Thread, state: &mut TraceeState, resume: Resume) -> Option<Link> {
    tracee.trace.is_traced.store(false, Ordering::Relaxed);
    state.options = 0;
    state.stop_seen = 0;
    (state.trap, state.notify) = (false, false);
    state.resume(resume);
    state.link.take()
}

/// Makes a thread see that its tracer has gone: it may have to stop for job control again.
fn release(tracee: &Arc<Thread>) {
    tracee.trace.resumed.wake_all(0);
    send::alert(tracee);
}

/// PTRACE_TRACEME.
pub fn trace_me() -> Result<u64> {
    let thread = current().to_arc();
    let parent = thread.process.parent().ok_or(Errno::EPERM)?;
    // The thread that made this process, or another one if it has ended.
    let maker = thread.process.creator_tid.load(Ordering::Relaxed);
    let tracer = {
        let threads = parent.threads.lock();
        threads.iter().find(|t| t.tid() == maker).or(threads.first()).cloned()
    };
    // Without threads the parent is ending: nobody will ever look, and nothing says so.
    let Some(tracer) = tracer else { return Ok(0) };
    hooks::ptrace_traceme((&thread, &tracer))?;
    let privileged = parent.subject().capable(Capability::SysPtrace);
    let tid = tracer.tid();
    link(&thread, &tracer, Link { tracer: parent, tid, seized: false, privileged }, 0)?;
    Ok(0)
}

/// PTRACE_ATTACH and, with `seize`, PTRACE_SEIZE with its options.
pub fn attach(tracee: &Arc<Thread>, seize: Option<u32>) -> Result<u64> {
    let own = current().to_arc();
    let target = &tracee.process;
    let is_kernel = target.pid == 0 || target.mm.read(Option::is_none);
    if target.is_current() || is_kernel || !may_access(target, Ids::RealToAttach) {
        return Err(Errno::EPERM);
    }
    let privileged = own.process.subject().capable(Capability::SysPtrace);
    let seized = seize.is_some();
    let new = Link { tracer: own.process.clone(), tid: own.tid(), seized, privileged };
    link(tracee, &own, new, seize.unwrap_or(0))?;
    // An execve(2) that gives more rights either sees the link, or is seen here.
    if !may_access(target, Ids::RealToAttach) {
        detach(tracee, 0)?;
        return Err(Errno::EPERM);
    }
    if !seized {
        // Nobody may refuse this signal.
        let _ = signal::send_to_thread(tracee, SigInfo::kernel(raw::SIGSTOP));
    }
    // One that is stopped by job control already now stops for its tracer.
    if target.signals.lock().stop.is_some() {
        tracee.task().set_work(work::SIGNAL);
        target.continue_events.wake_all(0);
    }
    Ok(0)
}

/// PTRACE_DETACH, with a signal to get or 0.
pub fn detach(tracee: &Arc<Thread>, signal: u32) -> Result<u64> {
    let own = current();
    let link = {
        let mut tracees = own.process.tracees.lock();
        let Some(at) = tracees.iter().position(|t| Arc::ptr_eq(t, tracee)) else {
            return Err(Errno::ESRCH);
        };
        let mut state = tracee.trace.state();
        state.debug = Default::default();
        state.registers.debug_changed = true;
        let link = unlink(tracee, &mut state, Resume { signal, work: 0 });
        drop(state);
        // The caller has another reference.
        tracees.swap_remove(at);
        link
    };
    drop(link);
    release(tracee);
    Ok(0)
}

/// Gives the child of a tracee to the same tracer: for the events of fork, and CLONE_PTRACE. Before
/// the child first runs.
pub fn inherit(child: &Arc<Thread>) {
    let parent = current();
    let (new, options) = {
        let state = parent.trace.state();
        (state.link.clone(), state.options)
    };
    let Some(new) = new else { return };
    let seized = new.seized;
    let tracer = find_thread(new.tid);
    // A tracer that is ending lets its tracees go: so is this one.
    let Some(tracer) = tracer else { return };
    if link(child, &tracer, new, options).is_err() {
        return;
    }
    if seized {
        child.trace.state().trap = true;
    } else {
        let stop = SigInfo::kernel(raw::SIGSTOP);
        let _ = child.signals.lock().pending.add(stop, usize::MAX);
    }
    child.task().set_work(work::SIGNAL);
}

/// The running thread ends: its tracees are let go, or killed (PTRACE_O_EXITKILL).
pub fn tracer_ends() {
    let own = current();
    let mut gone = Vec::new();
    {
        let mut tracees = own.process.tracees.lock();
        own.trace.is_closed.store(true, Ordering::Relaxed);
        let mut at = 0;
        while at < tracees.len() {
            let is_own =
                |state: &TraceeState| state.link.as_ref().is_some_and(|l| l.tid == own.tid());
            let mut state = tracees[at].trace.state();
            if !is_own(&state) {
                at += 1;
                continue;
            }
            let kill = state.wants(nr::PTRACE_O_EXITKILL);
            let signal = pending_signal(&state);
            let link = unlink(&tracees[at], &mut state, Resume { signal, work: 0 });
            let ended = state.ended.is_some();
            drop(state);
            gone.push((tracees.swap_remove(at), link, kill, ended));
        }
    }
    for (tracee, link, kill, ended) in gone {
        drop(link);
        if ended {
            forget_ended(&tracee);
            continue;
        }
        if kill {
            let _ = signal::send_to_thread(&tracee, SigInfo::kernel(raw::SIGKILL));
        }
        release(&tracee);
    }
}

/// The signal that a stopped tracee was about to get.
fn pending_signal(state: &TraceeState) -> u32 {
    let Some(stop) = &state.stop else { return 0 };
    let code = stop.code as i32;
    // A stop that is no delivery has itself as its siginfo's code, or no siginfo.
    match stop.info {
        Some(info) if info.signo == code && info.code != code => stop.code,
        _ => 0,
    }
}

/// A thread has ended with this wait(2) status. True if its id is its tracer's to give back; never
/// for a process's first thread, which ends with its process.
pub fn thread_ended(thread: &Arc<Thread>, status: i32) -> bool {
    let decided = thread.process.signals.lock().group_exit;
    let status = decided.unwrap_or(status);
    let tracer = {
        let mut state = thread.trace.state();
        state.is_gone = true;
        let link = state.link.as_ref().filter(|_| thread.tid() != thread.process.pid);
        link.map(|link| link.tracer.clone())
    };
    let Some(tracer) = tracer else { return false };
    thread.process.relations.lock().unreaped_threads += 1;
    let is_traced = {
        let mut state = thread.trace.state();
        state.ended = state.link.as_ref().map(|_| status);
        state.ended.is_some()
    };
    // The tracer may have died meanwhile, or not want to know.
    if !is_traced || tell_end(&tracer, thread, status) {
        forget_ended(thread);
    }
    true
}

/// Tells a tracer of a tracee's end; true if it does not want to know, and the tracee is forgotten.
fn tell_end(tracer: &Arc<Process>, thread: &Arc<Thread>, status: i32) -> bool {
    let action = tracer.action(raw::SIGCHLD);
    let ignored = action.handler == SIG_IGN;
    let (code, number) = exit::cause(status);
    if !ignored {
        let uid = thread.process.credentials().uid;
        let times = <[u64; 2]>::from(thread.times_ns());
        let info = SigInfo::child(raw::SIGCHLD, code, thread.tid(), uid, number, times);
        let _ = send::send_to_process(tracer, info);
    }
    let unwanted = (ignored || action.has(raw::SA_NOCLDWAIT)) && take_ended(tracer, thread);
    tracer.child_events.wake_all(0);
    unwanted
}

/// Takes a tracee that has ended away from its tracer; true for the one caller that did.
fn take_ended(tracer: &Process, thread: &Arc<Thread>) -> bool {
    let taken = {
        let mut tracees = tracer.tracees.lock();
        let Some(at) = tracees.iter().position(|t| Arc::ptr_eq(t, thread)) else { return false };
        let link = unlink(thread, &mut thread.trace.state(), Resume::default());
        (tracees.swap_remove(at), link)
    };
    drop(taken);
    true
}

/// A tracee that has ended belongs to no tracer any more: its id is free, or, if it stands for its
/// process, the parent learns of the end now.
pub fn forget_ended(thread: &Arc<Thread>) {
    let process = &thread.process;
    if thread.tid() == process.pid {
        process.relations.lock().held_by_tracer = false;
        return exit::tell_parent(process);
    }
    release_pid(thread.tid());
    let was_awaited = {
        let mut relations = process.relations.lock();
        relations.unreaped_threads = relations.unreaped_threads.saturating_sub(1);
        relations.unreaped_threads == 0 && relations.exit_state == ExitState::Zombie
    };
    if was_awaited {
        exit::announce(process);
    }
}

/// The last thread of `process` has left. If the tracer of its first thread is not the parent, the
/// parent's turn comes when that has waited.
pub fn hold_for_tracer(process: &Arc<Process>) {
    let Some(first) = find_thread(process.pid) else { return };
    let tracer = first.trace.state().link.as_ref().map(|link| link.tracer.clone());
    let Some(tracer) = tracer else { return };
    if process.parent().is_some_and(|parent| Arc::ptr_eq(&parent, &tracer)) {
        // The parent sees it among its children.
        take_ended(&tracer, &first);
    } else {
        process.relations.lock().held_by_tracer = true;
    }
}

/// The second half of [`hold_for_tracer`], once the process counts as ended.
pub fn tell_tracer(process: &Arc<Process>) {
    let status = process.exit_status.load(Ordering::Relaxed);
    let Some(first) = find_thread(process.pid) else { return };
    let tracer = {
        let mut state = first.trace.state();
        let tracer = state.link.as_ref().map(|link| link.tracer.clone());
        state.ended = tracer.as_ref().map(|_| status);
        tracer
    };
    // A tracer may have died meanwhile, or not want to know.
    if tracer.is_none_or(|tracer| tell_end(&tracer, &first, status)) {
        forget_ended(&first);
    }
}

/// execve(2) gives the running thread the first thread's id: whoever traced that one has lost it.
/// The running thread's own tracees learn its new id.
pub fn takes_over_tid(old: Pid, new: Pid) {
    let own = current();
    if let Some(first) = find_thread(new) {
        let tracer = first.trace.state().link.as_ref().map(|link| link.tracer.clone());
        if let Some(tracer) = tracer {
            take_ended(&tracer, &first);
            tracer.child_events.wake_all(0);
        }
    }
    for tracee in own.process.tracees.lock().iter() {
        if let Some(link) = tracee.trace.state().link.as_mut().filter(|link| link.tid == old) {
            link.tid = new;
        }
    }
}

/// A stop of job control is complete, or over, and the real parent would be told: not if it traces
/// the running thread itself, and so knows already.
#[must_use]
pub fn hides_stops_from_parent(process: &Process) -> bool {
    let thread = current();
    if !thread.trace.is_traced() || !core::ptr::eq(Arc::as_ptr(&thread.process), process) {
        return false;
    }
    process.parent().is_some_and(|parent| thread.trace.is_traced_by(&parent))
}
