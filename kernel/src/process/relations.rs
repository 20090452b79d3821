//! Relations between processes: parents, children, orphans, process groups and sessions
//! (credentials(7), setpgid(2), setsid(2)).
//!
//! Each process has one lock for its own relations. A child's lock may be taken under its parent's,
//! never the other way round; and a child's parent changes only under the locks of the new parent
//! and the child. Whoever finds a child's parent first and then locks it has to look again whether
//! the child is still there.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use abi::general as raw;

use super::signal::{self, SigInfo};
use super::{ExitState, Pid, Process, Thread, init_process, unregister_process};

impl Process {
    /// The parent.
    #[must_use]
    pub fn parent(&self) -> Option<Arc<Process>> {
        self.relations.lock().parent.upgrade()
    }

    /// The parent's id; 0 without one.
    #[must_use]
    pub fn parent_pid(&self) -> Pid {
        self.parent_pid.load(Ordering::Relaxed)
    }
}

/// Makes `child` a child of `parent`; false if `parent` takes no more children.
pub fn adopt(parent: &Arc<Process>, child: &Arc<Process>) -> bool {
    let mut relations = parent.relations.lock();
    if relations.is_closed {
        return false;
    }
    let mut own = child.relations.lock();
    own.parent = Arc::downgrade(parent);
    child.parent_pid.store(parent.pid, Ordering::Relaxed);
    if own.exit_state == ExitState::Zombie || own.wait_event.is_some() {
        relations.news.insert(child.pid);
    }
    drop(own);
    relations.children.insert(child.pid, child.clone());
    true
}

/// Something has happened to `child` that its parent's wait(2) may want to know; before the parent
/// is told to look.
pub fn note(child: &Arc<Process>) {
    // A parent that ends meanwhile has given the child away: the next one finds it by `adopt`.
    if let Some(parent) = child.parent() {
        let mut relations = parent.relations.lock();
        if relations.children.get(child.pid).is_some() {
            relations.news.insert(child.pid);
        }
    }
}

/// Makes `child` a child of `parent`, or of the first process if that is ending.
pub fn adopt_or_orphan(parent: &Arc<Process>, child: &Arc<Process>) {
    if !adopt(parent, child)
        && let Some(init) = init_process()
    {
        adopt(&init, child);
    }
}

/// Takes a process away from its parent; true for the one caller that did. The process then belongs
/// to nobody and can be forgotten.
pub fn detach(child: &Arc<Process>) -> bool {
    loop {
        let Some(parent) = child.parent() else { return false };
        let mut relations = parent.relations.lock();
        if relations.remove_child(child.pid) {
            child.relations.lock().exit_state = ExitState::Reaped;
            return true;
        }
        drop(relations);
        let same = child.parent().is_some_and(|now| Arc::ptr_eq(&now, &parent));
        if same {
            return false;
        }
    }
}

/// Forgets a zombie that has been detached, and gives its id back.
pub fn forget(process: &Arc<Process>) {
    unregister_process(process);
}

/// Who adopts the children of `process`: its nearest ancestor that asked to be a subreaper
/// (PR_SET_CHILD_SUBREAPER), else the first process.
fn reaper_for(process: &Process) -> Option<Arc<Process>> {
    let mut ancestor = process.parent();
    while let Some(candidate) = ancestor {
        if candidate.pid <= 1 {
            break;
        }
        let alive = candidate.relations.lock().exit_state == ExitState::Alive;
        if alive && candidate.settings.is_subreaper.load(Ordering::Relaxed) {
            return Some(candidate);
        }
        ancestor = candidate.parent();
    }
    init_process()
}

/// A child's parent ends, or the thread of it that made the child: the child may have asked for a
/// signal then (PR_SET_PDEATHSIG).
fn send_death_signal(child: &Arc<Process>, parent: &Process) {
    let wanted = |thread: &Arc<Thread>| thread.settings.parent_death_signal.load(Ordering::Relaxed);
    let signals: Vec<u32> = child.threads.lock().iter().map(wanted).filter(|&s| s != 0).collect();
    let uid = parent.credentials().uid;
    for signal in signals {
        let info = SigInfo::from_process(signal, raw::SI_USER as i32, parent.pid, uid);
        // A full queue of real-time signals is the child's own fault.
        let _ = signal::send_to_process(child, info);
    }
}

/// A thread of a process that goes on ends: the children it made are another thread's now, and
/// those that asked get their signal. A process that is ending as a whole gives its children away
/// when its last thread does.
pub fn creator_ended(process: &Process, tid: Pid) {
    let heir = process.threads.lock().first().map(|thread| thread.tid());
    let Some(heir) = heir.filter(|_| !process.is_exiting()) else { return };
    let is_orphan = |child: &&Arc<Process>| {
        child.creator_tid.compare_exchange(tid, heir, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    };
    let orphans: Vec<Arc<Process>> =
        process.relations.lock().children.values().filter(is_orphan).cloned().collect();
    for child in &orphans {
        send_death_signal(child, process);
    }
}

/// The thread of `process` that had the id `old` has the process's own now (execve(2)).
pub fn creator_renamed(process: &Process, old: Pid) {
    for child in process.relations.lock().children.values() {
        let _ = child.creator_tid.compare_exchange(
            old,
            process.pid,
            Ordering::Relaxed,
            Ordering::Relaxed,
        );
    }
}

/// Gives the children of an ending process to others.
pub fn give_children_away(process: &Arc<Process>) {
    let children = {
        let mut relations = process.relations.lock();
        relations.is_closed = true;
        relations.news.clear();
        core::mem::take(&mut relations.children)
    };
    if children.is_empty() {
        return;
    }
    let reaper = reaper_for(process);
    for child in children.values() {
        send_death_signal(child, process);
        if let Some(reaper) = &reaper {
            adopt_or_orphan(reaper, child);
        }
        // Whatever signal the old parent wanted, the new one is told as usual.
        child.exit_signal.store(raw::SIGCHLD, Ordering::Relaxed);
        let (is_zombie, is_held) = {
            let relations = child.relations.lock();
            (relations.exit_state == ExitState::Zombie, relations.is_held())
        };
        if is_held {
            // Its tracer will pass it on.
        } else if is_zombie {
            // It had told its old parent; nobody will ask that one any more.
            super::exit::tell_parent(child);
        } else {
            hang_up_if_newly_orphaned(child, process);
        }
    }
}

/// Whether no member of the process's group has a parent in another group of the same session: then
/// nobody can continue it after a terminal's stop signal (POSIX "orphaned process group").
#[must_use]
pub fn is_orphaned_group(process: &Process) -> bool {
    !has_link(process.group())
}

/// Whether `parent` keeps the group of its child `member` from being orphaned: it can see the
/// member stop, and continue it.
fn is_link(parent: &Process, member: &Process) -> bool {
    parent.pid > 1
        && parent.group() != member.group()
        && parent.session.load(Ordering::Relaxed) == member.session.load(Ordering::Relaxed)
}

/// Whether some member of the group has such a parent. Members that are ending count no more; they
/// are marked before they look, so of two that end at once one at least sees that it was the last.
fn has_link(group: Pid) -> bool {
    super::group_members(group).iter().any(|member| {
        let parent = {
            let relations = member.relations.lock();
            if relations.is_closed { None } else { relations.parent.upgrade() }
        };
        parent.is_some_and(|parent| is_link(&parent, member))
    })
}

/// The link between `parent` and its child `member` is gone, because one of the two is ending. If
/// it was the last one of the member's group, the group is orphaned from now on, and stopped
/// members would never go on: all get SIGHUP and SIGCONT. A group that was orphaned before is left
/// alone, and so is one that setpgid(2) or setsid(2) orphans (Linux; POSIX speaks of exits only).
fn hang_up_if_newly_orphaned(member: &Process, parent: &Process) {
    if !is_link(parent, member) {
        return;
    }
    let group = member.group();
    let is_stopped = |member: &Arc<Process>| {
        member.signals.lock().stop.as_ref().is_some_and(|stop| stop.is_complete)
    };
    if !has_link(group) && super::group_members(group).iter().any(is_stopped) {
        // Standard signals are never refused, and members may have ended meanwhile.
        let _ = signal::send_to_group(group, SigInfo::kernel(raw::SIGHUP));
        let _ = signal::send_to_group(group, SigInfo::kernel(raw::SIGCONT));
    }
}

/// `process` is ending: its own link to its parent goes. Its children have been given away.
pub fn leave_group(process: &Process) {
    if let Some(parent) = process.parent() {
        hang_up_if_newly_orphaned(process, &parent);
    }
}
