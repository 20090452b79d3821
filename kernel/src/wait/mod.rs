//! wait4(2) and waitid(2): learning of children's ends, stops and continuations.

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use abi::{Errno, Result, general as raw};

use crate::base::user::UserPtr;
use crate::process::usage::{Counts, RUsage};
use crate::process::{ExitState, Pid, Process, Thread, WaitEvent};
use crate::process::{current, exit, pidfd, ptrace, relations};
use tracees::Seen;

mod tracees;

/// Which children.
#[derive(Clone, Copy, Debug)]
pub enum Which {
    /// All.
    Any,
    /// The one with this id.
    Pid(Pid),
    /// Those of this process group.
    Group(Pid),
}

/// What happened to a child, or to a tracee.
struct Event {
    child: Arc<Process>,
    /// The child's id, or the thread's that is traced.
    id: Pid,
    /// CLD_ code.
    code: u32,
    /// Exit code or signal number.
    number: i32,
    /// As wait4(2) gives it.
    status: i32,
}

enum Scan {
    Found(Event),
    /// Nothing yet, but there are children it could happen to.
    Wait,
    NoChildren,
}

/// Waits for an event of a child of the current process. None: WNOHANG, and nothing has happened.
fn wait(which: Which, options: u32) -> Result<Option<Event>> {
    let process = &current().process;
    let mut tracee = None;
    let scanned =
        process.child_events.wait(|| match scan_all(process, which, options, &mut tracee) {
            Scan::Found(event) => Some(Ok(Some(event))),
            Scan::NoChildren => Some(Err(Errno::ECHILD)),
            Scan::Wait if options & raw::WNOHANG != 0 => Some(Ok(None)),
            Scan::Wait => None,
        })?;
    let event = scanned?;
    if let Some(tracee) = tracee {
        ptrace::links::forget_ended(&tracee);
        return Ok(event);
    }
    if let Some(event) = &event
        && event.is_end()
        && event.id == event.child.pid
        && options & raw::WNOWAIT == 0
    {
        bury(process, &event.child);
    }
    Ok(event)
}

impl Event {
    fn is_end(&self) -> bool {
        matches!(self.code, raw::CLD_EXITED | raw::CLD_KILLED | raw::CLD_DUMPED)
    }
}

/// Looks through the children and the tracees. `ended` becomes a tracee whose end was taken.
fn scan_all(
    process: &Process,
    which: Which,
    options: u32,
    ended: &mut Option<Arc<Thread>>,
) -> Scan {
    let children = scan(process, which, options);
    if matches!(children, Scan::Found(_)) {
        return children;
    }
    let wanted = |thread: &Thread| match which {
        Which::Any => true,
        Which::Pid(pid) => thread.tid() == pid,
        Which::Group(group) => thread.process.group() == group,
    };
    match tracees::scan(process, options, wanted) {
        Seen::None => children,
        Seen::Nothing => Scan::Wait,
        Seen::Event(event) => {
            let (child, id) = (event.thread.process.clone(), event.thread.tid());
            let tracees::Event { code, number, status, .. } = event;
            *ended = event.is_taken.then_some(event.thread);
            Scan::Found(Event { child, id, code, number, status })
        }
    }
}

/// Looks through the children. An end that is found is taken: no other waiter sees it.
fn scan(process: &Process, which: Which, options: u32) -> Scan {
    let mut relations = process.relations.lock();
    let relations = &mut *relations;
    let own_only = options & raw::__WNOTHREAD != 0;
    let wanted = |child: &&Arc<Process>| {
        matches(child, which, options) && (!own_only || is_of_current_thread(process, child))
    };
    let event = match which {
        Which::Pid(pid) => {
            relations.children.get(pid).filter(wanted).and_then(|child| look(child, options))
        }
        _ => {
            let with_news = relations.news.iter().filter_map(|&pid| relations.children.get(pid));
            with_news.filter(wanted).find_map(|child| look(child, options))
        }
    };
    if let Some(event) = event {
        // The event holds another reference: nothing is freed under the lock.
        if options & raw::WNOWAIT == 0 {
            if event.is_end() {
                relations.remove_child(event.id);
            } else {
                relations.news.remove(&event.id);
            }
        }
        return Scan::Found(event);
    }
    let may_tell = |child: &&Arc<Process>| {
        wanted(child) && (options & raw::WEXITED != 0 || !has_only_its_end(child))
    };
    let any = match which {
        Which::Pid(pid) => relations.children.get(pid).filter(may_tell).is_some(),
        // The first that may is enough.
        _ => relations.children.values().any(|child| may_tell(&child)),
    };
    if any { Scan::Wait } else { Scan::NoChildren }
}

fn matches(child: &Process, which: Which, options: u32) -> bool {
    let wanted = match which {
        Which::Any => true,
        Which::Pid(pid) => child.pid == pid,
        Which::Group(group) => child.group() == group,
    };
    let is_clone = child.exit_signal.load(Ordering::Relaxed) != raw::SIGCHLD;
    wanted && (options & raw::__WALL != 0 || is_clone == (options & raw::__WCLONE != 0))
}

/// Whether the running thread of `process` made the child; the first thread stands for makers that
/// have ended, or that were of another process.
fn is_of_current_thread(process: &Process, child: &Process) -> bool {
    let maker = child.creator_tid.load(Ordering::Relaxed);
    let threads = process.threads.lock();
    let owner = threads.iter().find(|thread| thread.tid() == maker).or(threads.first());
    owner.is_some_and(|owner| owner.tid() == current().tid())
}

/// Whether nothing can happen to a child any more but that its end is taken.
fn has_only_its_end(child: &Process) -> bool {
    let relations = child.relations.lock();
    relations.exit_state == ExitState::Zombie && !relations.is_held()
}

/// The event of one child that `options` ask for, if there is one.
fn look(child: &Arc<Process>, options: u32) -> Option<Event> {
    let mut relations = child.relations.lock();
    if relations.exit_state == ExitState::Zombie {
        if relations.is_held() {
            return None;
        }
        if options & raw::WEXITED == 0 {
            return None;
        }
        if options & raw::WNOWAIT == 0 {
            relations.exit_state = ExitState::Reaped;
        }
        let status = child.exit_status.load(Ordering::Relaxed);
        let (code, number) = exit::cause(status);
        return Some(Event { child: child.clone(), id: child.pid, code, number, status });
    }
    let event = relations.wait_event?;
    let (code, number, status, option) = match event {
        WaitEvent::Stopped(signal) => {
            let status = (signal as i32) << 8 | 0x7f;
            (raw::CLD_STOPPED, signal as i32, status, raw::WSTOPPED)
        }
        WaitEvent::Continued => (raw::CLD_CONTINUED, raw::SIGCONT as i32, 0xffff, raw::WCONTINUED),
    };
    if options & option == 0 {
        return None;
    }
    if options & raw::WNOWAIT == 0 {
        relations.wait_event = None;
    }
    Some(Event { child: child.clone(), id: child.pid, code, number, status })
}

/// Counts a dead child's times as those of a child, and forgets it.
fn bury(parent: &Process, child: &Arc<Process>) {
    let times = |i: usize| child.past_times_ns[i].load(Ordering::Relaxed);
    parent.past_times_ns[2].fetch_add(times(0) + times(2), Ordering::Relaxed);
    parent.past_times_ns[3].fetch_add(times(1) + times(3), Ordering::Relaxed);
    parent.past_transfers.add(child.past_transfers.totals());
    let counts = Counts::with_children(child);
    parent.children_counts.lock().add(&counts);
    relations::forget(child);
}

/// wait4(2).
pub fn wait4(pid_word: i32, status: u64, options: u32, usage: u64) -> Result<u64> {
    let allowed = raw::WNOHANG
        | raw::WUNTRACED
        | raw::WCONTINUED
        | raw::__WNOTHREAD
        | raw::__WCLONE
        | raw::__WALL;
    if options & !allowed != 0 {
        return Err(Errno::EINVAL);
    }
    let which = match pid_word {
        -1 => Which::Any,
        0 => Which::Group(current().process.group()),
        i32::MIN => return Err(Errno::ESRCH),
        pid @ 1.. => Which::Pid(pid as Pid),
        group => Which::Group(group.unsigned_abs()),
    };
    let Some(event) = wait(which, options | raw::WEXITED)? else { return Ok(0) };
    UserPtr::new(status).write_if_some(&event.status)?;
    if usage != 0 {
        UserPtr::new(usage).write(&RUsage::of_ended(&event.child))?;
    }
    Ok(u64::from(event.id))
}

/// waitid(2). The information is written whatever the answer is: zeros where there is none.
pub fn waitid(kind: u32, id: i32, info: u64, options: u32, usage: u64) -> Result<u64> {
    /// si_pid, si_uid and si_status begin here.
    const DETAILS: u64 = 16;
    let waited = wait_for_id(kind, id, options, usage);
    if info != 0 {
        let event = waited.as_ref().ok().and_then(Option::as_ref);
        let (head, details) = event.map_or(([0; 3], [0; 3]), |event| {
            let uid = event.child.credentials().uid;
            ([raw::SIGCHLD, 0, event.code], [event.id, uid, event.number as u32])
        });
        UserPtr::new(info).write(&head)?;
        UserPtr::new(info.wrapping_add(DETAILS)).write(&details)?;
    }
    waited.map(|_| 0)
}

fn wait_for_id(kind: u32, id: i32, mut options: u32, usage: u64) -> Result<Option<Event>> {
    let events = raw::WEXITED | raw::WSTOPPED | raw::WCONTINUED;
    let others = raw::WNOHANG | raw::WNOWAIT | raw::__WNOTHREAD | raw::__WCLONE | raw::__WALL;
    if options & !(events | others) != 0 || options & events == 0 {
        return Err(Errno::EINVAL);
    }
    let mut is_nonblocking = false;
    let which = match kind {
        raw::P_ALL => Which::Any,
        raw::P_PID if id > 0 => Which::Pid(id as Pid),
        raw::P_PGID if id == 0 => Which::Group(current().process.group()),
        raw::P_PGID if id > 0 => Which::Group(id as Pid),
        raw::P_PIDFD if id >= 0 => {
            let file = current().files().get(id as u32)?;
            is_nonblocking = file.is_nonblocking() && options & raw::WNOHANG == 0;
            options |= if is_nonblocking { raw::WNOHANG } else { 0 };
            Which::Pid(pidfd::id_of(&file)?)
        }
        _ => return Err(Errno::EINVAL),
    };
    let event = wait(which, options)?;
    if event.is_none() && is_nonblocking {
        return Err(Errno::EAGAIN);
    }
    if let Some(event) = &event
        && usage != 0
    {
        UserPtr::new(usage).write(&RUsage::of_ended(&event.child))?;
    }
    Ok(event)
}

/// Takes any child that has ended: its id and wait(2) status. Sleeps until there is one; for the
/// kernel's own first process, which always has or gets children.
pub fn reap_any() -> Option<(Pid, i32)> {
    let event = wait(Which::Any, raw::WEXITED | raw::__WALL).ok()??;
    Some((event.child.pid, event.status))
}
